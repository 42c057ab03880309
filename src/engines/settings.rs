//! The settings of sinks: presets merged with the file's own, and everything checked.

use std::sync::Arc;
use std::time::Duration;

use serde::Deserialize;
use serde_json::{Map, Value as Json};

use super::encoder::{ENCODERS, Encoder};
use super::framing::Framing;
use super::kind::build;
use super::preset;
use super::transport::{Destination, RequestLimits, TRANSPORTS};
use crate::base::backoff::Backoff;
use crate::base::limits::{
    SINK_BATCH_BYTES_MAX, SINK_BATCH_EVENTS_MAX, SINK_CONCURRENCY_MAX, SINKS_MAX,
};
use crate::cluster::OUTBOX;
use crate::config::{Config, ConfigError, Invalid, name_redact_rules, read_options, within};
use crate::model::word;
use crate::model::{Rate, RedactRule};
use crate::store::Start;
use crate::wire::filter::EntryFilter;

#[derive(Debug, Clone)]
pub(crate) struct SinkSettings {
    /// The name of the sink and of its position in the log.
    pub(crate) name: String,
    pub(crate) filter: EntryFilter,
    /// Where a new one starts.
    pub(crate) start: Start,
    pub(crate) encoder: (&'static str, Arc<dyn Encoder>),
    pub(crate) transport: (&'static str, Arc<dyn Destination>),
    pub(crate) limits: RequestLimits,
    pub(crate) concurrency: usize,
    pub(crate) order: SinkOrder,
    /// Repeated deliveries.
    pub(crate) retry: RetrySettings,
    /// Redaction in addition to `ingest.redact`.
    pub(crate) redact: Vec<RedactRule>,
    pub(crate) rate: Option<Rate>,
    /// The configuration of these settings, for comparison.
    pub(crate) source: Json,
}

impl SinkSettings {
    pub(crate) fn framing(&self) -> Framing {
        self.transport.1.framing()
    }

    /// Equal for sinks that have the same events with the same items.
    pub(crate) fn encoding_key(&self) -> String {
        // All settings, except settings that certainly change neither.
        let others = [
            "batch",
            "concurrency",
            "order",
            "rate",
            "retry",
            "transport",
        ];
        let mut given = self.source.as_object().cloned().unwrap_or_default();
        given.retain(|key, _| !others.contains(&key.as_str()));

        let framing = self.framing();
        format!("{} {framing:?} {}", self.encoder.0, Json::Object(given))
    }
}

/// The events that a sink with parallel deliveries delivers in order.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum SinkOrder {
    /// Those of a minion.
    #[default]
    Minion,
    /// None.
    None,
}

/// The pauses between attempts of a failed delivery, which is repeated until it succeeds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct RetrySettings {
    /// The first pause; each further one is twice as long.
    #[serde(with = "word")]
    pub(crate) backoff: Duration,
    #[serde(with = "word")]
    pub(crate) max: Duration,
    /// Percentage by which a pause varies at random.
    #[serde(with = "word")]
    pub(crate) jitter: u32,
}

impl RetrySettings {
    pub(crate) fn backoff(&self) -> Backoff {
        Backoff::new(self.backoff, self.max).with_jitter(self.jitter)
    }
}

impl Default for RetrySettings {
    fn default() -> Self {
        Self {
            backoff: Duration::from_secs(1),
            max: Duration::from_secs(60),
            jitter: 20,
        }
    }
}

/// A sink as in the file, with the values of its preset.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct GivenSink {
    #[serde(default, rename = "match")]
    scopes: Json,
    #[serde(default, rename = "where")]
    condition: Json,
    #[serde(default)]
    encoder: Json,
    #[serde(default)]
    transport: Json,
    #[serde(default)]
    batch: GivenBatch,
    #[serde(default, with = "word")]
    concurrency: Option<usize>,
    #[serde(default)]
    order: SinkOrder,
    #[serde(default)]
    retry: RetrySettings,
    #[serde(default)]
    redact: Vec<RedactRule>,
    #[serde(default, with = "word")]
    rate: Option<Rate>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct GivenBatch {
    #[serde(with = "word")]
    count: Option<usize>,
    #[serde(with = "word")]
    bytes: Option<usize>,
    #[serde(with = "word")]
    time: Option<Duration>,
}

/// All sinks of a configuration. The error names file, line and key.
pub(crate) fn of_config(config: &Config) -> Result<Vec<SinkSettings>, ConfigError> {
    let all = config.sinks.iter().map(|(name, given)| {
        let path = format!("sinks.{name}");
        sink(name, given).map_err(|bad| bad.below(&path))
    });
    let all: Result<Vec<_>, Invalid> = all.collect();

    let checked = all.and_then(|all| {
        let count = all.len();
        if count <= SINKS_MAX {
            return Ok(all);
        }
        Err(Invalid::new(
            "sinks",
            format!("{count} sinks; give at most {SINKS_MAX}"),
        ))
    });

    checked.map_err(|Invalid { path, problem }| config.error_at(path, problem))
}

/// Checks a name; `what` has it.
pub(super) fn check_name(name: &str, what: &str) -> Result<(), Invalid> {
    let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
    if name.is_empty() || name.len() > 64 || !name.chars().all(is_name) {
        let expected = "give 1 to 64 letters, digits, hyphens and underscores";
        return Err(Invalid::new(
            "",
            format!("not a name of a {what}; {expected}"),
        ));
    }
    Ok(())
}

pub(super) fn check_retry(retry: RetrySettings) -> Result<(), Invalid> {
    within("retry.backoff", &retry.backoff, Duration::from_secs(1)..)?;
    within("retry.max", &retry.max, retry.backoff..)?;
    within("retry.jitter", &retry.jitter, 0..=100)
}

fn sink(name: &str, given: &Json) -> Result<SinkSettings, Invalid> {
    check_name(name, "sink")?;
    if name == OUTBOX {
        let problem =
            "is the name of the sink that the keys under `cluster` make; give another one";
        return Err(Invalid::new("", problem));
    }
    let Json::Object(given) = given else {
        return Err(Invalid::new(
            "",
            "give a mapping with encoder and transport, or with preset",
        ));
    };

    // The preset is filled in before the options are parsed, because it may give encoder and
    // transport.
    let merged = with_preset(given)?;
    let source = Json::Object(merged.clone());
    let given: GivenSink = read_options(&source)?;

    // Named here, because serde would not mention the preset.
    for (key, value) in [("encoder", &given.encoder), ("transport", &given.transport)] {
        if value.is_null() {
            return Err(Invalid::new(
                "",
                format!("it has no {key}; give encoder and transport, or preset"),
            ));
        }
    }

    let (encoder_name, mut encoder) = build("encoder", &given.encoder, ENCODERS)?;
    let (transport_name, destination) = build("transport", &given.transport, TRANSPORTS)?;
    // Rows of a table are made of the event itself: items of another encoder would be dropped.
    if let Some(only) = destination.encoder().filter(|only| *only != encoder_name) {
        let problem = format!("the transport {transport_name} accepts only the encoder {only}");
        return Err(Invalid::new("encoder", problem));
    }

    // Where a line break ends an item, no value may contain one.
    if destination.framing() != Framing::Message {
        encoder.break_no_lines();
    }

    let defaults = destination.limits();
    let GivenBatch { count, bytes, time } = given.batch;
    let limits = RequestLimits {
        count: count.unwrap_or(defaults.count),
        bytes: bytes.unwrap_or(defaults.bytes),
        time: time.unwrap_or(defaults.time),
    };

    within("batch.count", &limits.count, 1..=SINK_BATCH_EVENTS_MAX)?;
    within("batch.bytes", &limits.bytes, 1..=SINK_BATCH_BYTES_MAX)?;
    within(
        "batch.time",
        &limits.time,
        Duration::ZERO..=Duration::from_secs(3_600),
    )?;

    // A transport with one file or one program has one writer.
    let most = destination.concurrency_max().min(SINK_CONCURRENCY_MAX);
    let concurrency = given.concurrency.unwrap_or(1);
    within("concurrency", &concurrency, 1..=most)?;

    check_retry(given.retry)?;

    let mut redact = given.redact;
    name_redact_rules("redact", &mut redact)?;
    let filter = filter(given.scopes, given.condition)?;

    Ok(SinkSettings {
        name: name.to_owned(),
        filter,
        start: Start::Newest,
        encoder: (encoder_name, Arc::from(encoder)),
        transport: (transport_name, Arc::from(destination)),
        limits,
        concurrency,
        order: given.order,
        retry: given.retry,
        redact,
        rate: given.rate,
        source,
    })
}

/// The filter of a sink.
fn filter(scopes: Json, condition: Json) -> Result<EntryFilter, Invalid> {
    let mut filter = Map::new();
    for (key, value) in [("match", scopes), ("where", condition)] {
        if !value.is_null() {
            filter.insert(key.to_owned(), value);
        }
    }
    read_options(&Json::Object(filter))
}

/// The values of the preset, if any, replaced by the values that the sink gives itself.
fn with_preset(given: &Map<String, Json>) -> Result<Map<String, Json>, Invalid> {
    let mut own = given.clone();

    let parameters = own.shift_remove("with").unwrap_or_default();
    let parameters = match parameters {
        Json::Null => Map::new(),
        Json::Object(parameters) => parameters,
        _ => {
            return Err(Invalid::new(
                "with",
                "give a mapping of the preset's parameters",
            ));
        }
    };

    let preset = own.shift_remove("preset").unwrap_or_default();
    let mut merged = match preset {
        Json::Null if !parameters.is_empty() => {
            return Err(Invalid::new("with", "there is no preset; give preset too"));
        }
        Json::Null => Map::new(),
        Json::String(name) => preset::settings(&name, &parameters)?,
        _ => return Err(Invalid::new("preset", "give the name of a preset")),
    };

    // What the sink states itself wins over its preset.
    merge(&mut merged, own);
    Ok(merged)
}

/// Replaces values; mappings are merged. An encoder or transport of another kind replaces the
/// preset's.
fn merge(base: &mut Map<String, Json>, over: Map<String, Json>) {
    for (key, value) in over {
        // Options of the preset's kind mean nothing to another kind.
        let is_kind = matches!(key.as_str(), "encoder" | "transport");
        match (base.get_mut(&key), value) {
            (Some(Json::Object(base)), Json::Object(over))
                if !is_kind || over.keys().all(|kind| base.contains_key(kind)) =>
            {
                merge(base, over);
            }
            (_, value) => _ = base.insert(key, value),
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::config::tests::{in_directory, without};
    use crate::engines::script;

    /// The sinks of a file with this content.
    pub(in crate::engines) fn load(text: &str) -> Result<Vec<SinkSettings>, String> {
        let (config, dir) = in_directory(text)?;
        let again = config.to_yaml();
        assert!(again.contains("\nsinks:"), "{again}");
        of_config(&config).map_err(|error| without(&dir, &error))
    }

    #[test]
    fn the_examples_of_the_documentation_are_accepted() {
        let page = include_str!("../../docs/SINKS.md");
        let examples: Vec<_> = page
            .split("```yaml\n")
            .skip(1)
            .map(|rest| rest.split("```").next().unwrap())
            .collect();
        assert!(examples.len() >= 2, "{}", examples.len());
        for example in examples {
            if example.starts_with("scripts:") {
                let (config, _dir) =
                    in_directory(&format!("bus: [/var/run/salt/master]\n{example}")).unwrap();
                assert!(!script::of_config(&config).unwrap().is_empty());
                continue;
            }
            assert!(
                !load(example)
                    .unwrap_or_else(|error| panic!("{error}: {example}"))
                    .is_empty()
            );
        }
    }

    #[test]
    fn every_preset_makes_a_sink_and_its_values_can_be_replaced() {
        for (name, _) in preset::all() {
            let with = serde_json::to_string(&preset::tests::sample(name)).unwrap();
            let text = format!("sinks: {{a: {{preset: {name}, with: {with}}}}}\n");
            let sinks = load(&text).unwrap_or_else(|error| panic!("{name}: {error}"));
            assert_eq!(sinks.len(), 1);
        }
        let text = "sinks:\n  a:\n    preset: webhook\n    with: {url: 'https://h.example/x'}\n    batch: {count: 7}\n    \
                    transport: {http: {timeout: 5s}}\n    encoder: states\n";
        let sinks = load(text).unwrap();
        assert_eq!((sinks[0].limits.count, sinks[0].encoder.0), (7, "states"));
        assert_eq!(sinks[0].transport.1.describe(), "https://h.example/x");
        let text = "sinks: {a: {preset: webhook, with: {url: 'https://h.example/x'}, transport: {file: {path: /f}}}}";
        assert_eq!(load(text).unwrap()[0].transport.0, "file");
    }

    #[test]
    fn an_error_names_line_key_and_accepted_values() {
        let sink = |rest: &str| {
            format!(
                "sinks:\n  audit:\n    encoder: json\n    transport: {{file: {{path: /f}}}}\n{rest}"
            )
        };
        for (text, expected) in [
            ("sinks: []".to_owned(), "c.yaml:1: sinks: a list is not accepted; give a map"),
            ("sinks:\n  audit: json".to_owned(), "c.yaml:2: sinks.audit: give a mapping with encoder and transport"),
            ("sinks:\n  'a b': {}".to_owned(), "c.yaml:2: sinks.a b: not a name of a sink"),
            ("sinks:\n  audit:\n    encoder: json".to_owned(), "c.yaml:2: sinks.audit: it has no transport"),
            (sink("    encodr: json"), "c.yaml:5: sinks.audit.encodr: unknown field `encodr`, expected one of `match`"),
            (sink("    batch:\n      count: 0"), "c.yaml:6: sinks.audit.batch.count: \"0\" is not accepted; give a value from 1 to 10000"),
            (sink("    concurrency: 2"), "c.yaml:5: sinks.audit.concurrency: \"2\" is not accepted; give a value from 1 to 1"),
            (sink("    retry: {max: 1s, backoff: 2s}"), "c.yaml:5: sinks.audit.retry.max: \"1s\" is not accepted; give a value from 2s on"),
            (sink("    order: time"), "c.yaml:5: sinks.audit.order: unknown variant `time`, expected `minion` or `none`"),
            (sink("    with: {a: b}"), "c.yaml:5: sinks.audit.with: there is no preset"),
            (sink("    match:\n    - {tagg: x}"), "c.yaml:6: sinks.audit.match[0].tagg: unknown field `tagg`"),
            (sink("    where: data.x =="), "c.yaml:5: sinks.audit.where: column 10"),
            (sink("    redact:\n    - tag: x"), "c.yaml:6: sinks.audit.redact[0]: it selects nothing"),
            (
                "sinks:\n  a:\n    encoder: jsno\n    transport: exec".to_owned(),
                "c.yaml:3: sinks.a.encoder: \"jsno\" is not accepted; give json, template, states, beacons, otlp_logs, otlp_metrics",
            ),
            (
                "sinks:\n  a:\n    encoder:\n      template:\n        text: '{% if %}'\n    transport: exec".to_owned(),
                "c.yaml:5: sinks.a.encoder.template.text: the template is not valid: line 1: syntax error",
            ),
            (
                "sinks:\n  a:\n    encoder: json\n    transport:\n      http:\n        url: 'https://h'\n        auth: {bearer: s3cret}".to_owned(),
                "c.yaml:7: sinks.a.transport.http.auth.bearer: ",
            ),
            (
                "sinks:\n  a:\n    encoder: states\n    transport: {postgres: {host: h}}".to_owned(),
                "c.yaml:3: sinks.a.encoder: the transport postgres accepts only the encoder json",
            ),
            (
                "sinks:\n  a:\n    encoder: json\n    transport: {syslog: {address: 'udp://h:514'}}".to_owned(),
                "c.yaml:4: sinks.a.transport.syslog.address: \"udp://h:514\" is not accepted; give unix: and an absolute path",
            ),
            (
                "sinks:\n  a:\n    preset: datadog\n    with:\n      api_key: 0123abc".to_owned(),
                "c.yaml:5: sinks.a.with.api_key: give file: and an absolute path",
            ),
        ] {
            let error = load(&text).unwrap_err();
            assert!(error.starts_with(expected), "{text:?}: {error}");
        }
    }
}
