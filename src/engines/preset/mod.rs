//! Presets: the settings of a sink for one vendor, as embedded YAML.
//!
//! ```yaml
//! doc: One line for people.
//! parameters:
//!   site: {doc: The region., default: datadoghq.com}   # without `default` it must be given
//!   api_key: {doc: The key., secret: true}             # only `file:` or `credential:`
//!   title: {doc: A name., optional: true}              # without it, values that use it are left out
//! sink: {encoder: .., transport: ..}                   # `${site}` stands for the parameter
//! ```
//!
//! A mapping with the key `if` is left out if the parameter behind it is absent.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::{Map, Value as Json};

use crate::config::Secret;
use crate::config::{Invalid, read_options, read_yaml};
use crate::model::word::Word as _;

const PRESETS: &[(&str, &str)] = &[
    ("alertmanager", include_str!("message/alertmanager.yaml")),
    ("datadog", include_str!("metrics/datadog.yaml")),
    ("datadog_logs", include_str!("logs/datadog_logs.yaml")),
    ("elasticsearch", include_str!("logs/elasticsearch.yaml")),
    ("loki", include_str!("logs/loki.yaml")),
    ("mattermost", include_str!("message/mattermost.yaml")),
    ("otlp_logs", include_str!("logs/otlp_logs.yaml")),
    ("otlp_metrics", include_str!("metrics/otlp_metrics.yaml")),
    ("slack", include_str!("message/slack.yaml")),
    ("sns", include_str!("queue/sns.yaml")),
    ("splunk", include_str!("logs/splunk.yaml")),
    ("sqs", include_str!("queue/sqs.yaml")),
    ("teams", include_str!("message/teams.yaml")),
    ("webhook", include_str!("message/webhook.yaml")),
];

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Preset {
    doc: String,
    #[serde(default)]
    parameters: BTreeMap<String, Parameter>,
    sink: Map<String, Json>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Parameter {
    doc: String,
    #[serde(default)]
    default: Option<Json>,
    #[serde(default)]
    secret: bool,
    #[serde(default)]
    optional: bool,
}

/// Names and descriptions of all presets, for the table in docs/SINKS.md.
pub fn all() -> impl Iterator<Item = (&'static str, String)> {
    PRESETS.iter().map(|(name, yaml)| (*name, read(yaml).doc))
}

fn read(yaml: &str) -> Preset {
    let preset = read_yaml(yaml).and_then(|value| read_options(&value));
    preset.expect("a test reads every preset")
}

pub(super) fn settings(
    name: &str,
    given: &Map<String, Json>,
) -> Result<Map<String, Json>, Invalid> {
    let Some((_, yaml)) = PRESETS.iter().find(|(known, _)| *known == name) else {
        let names = PRESETS
            .iter()
            .map(|(name, _)| *name)
            .collect::<Vec<_>>()
            .join(", ");
        return Err(Invalid::new(
            "preset",
            format!("{name:?} is not accepted; give {names}"),
        ));
    };

    let preset = read(yaml);
    // Otherwise a misspelled parameter would silently keep its default.
    if let Some(unknown) = given
        .keys()
        .find(|key| !preset.parameters.contains_key(*key))
    {
        let names = preset
            .parameters
            .keys()
            .map(String::as_str)
            .collect::<Vec<_>>()
            .join(", ");
        let problem = format!("unknown parameter of the preset {name}; give {names}");
        return Err(Invalid::new(format!("with.{unknown}"), problem));
    }

    let mut values = BTreeMap::new();
    for (
        parameter,
        Parameter {
            doc,
            default,
            secret,
            optional,
        },
    ) in &preset.parameters
    {
        let path = format!("with.{parameter}");

        // In YAML a key without a value is null, and means the default.
        let value = given
            .get(parameter)
            .filter(|value| !value.is_null())
            .or(default.as_ref());

        let Some(value) = value else {
            if *optional {
                values.insert(parameter.as_str(), Json::Null);
                continue;
            }
            return Err(Invalid::new(
                "with",
                format!("the preset {name} needs {parameter}: {doc}"),
            ));
        };
        // The configuration is shown by commands and copied into backups, so it may only name the
        // place of a secret.
        if *secret
            && value
                .as_str()
                .is_none_or(|text| Secret::parse(text).is_none())
        {
            return Err(Invalid::new(path, format!("give {}", Secret::ACCEPTS)));
        }

        values.insert(parameter.as_str(), value.clone());
    }

    // A default may use other parameters.
    let known = values.clone();
    for value in values.values_mut() {
        substitute(value, &known);
    }

    let mut sink = Json::Object(preset.sink);
    substitute(&mut sink, &values);
    match sink {
        Json::Object(sink) => Ok(sink),
        _ => Ok(Map::new()),
    }
}

/// Replaces `${name}` in all strings. A string that is only that becomes the value, of any type;
/// nothing that uses an absent value remains.
fn substitute(value: &mut Json, values: &BTreeMap<&str, Json>) {
    match value {
        Json::Object(map) => {
            for value in map.values_mut() {
                substitute(value, values);
            }
            // A mapping is left out as a whole.
            if map.shift_remove("if") == Some(Json::Null) {
                *value = Json::Null;
                return;
            }
            map.retain(|_, value| !value.is_null());
        }
        Json::Array(list) => {
            for value in list.iter_mut() {
                substitute(value, values);
            }
            list.retain(|value| !value.is_null());
        }

        Json::String(text) => {
            let whole = text
                .strip_prefix("${")
                .and_then(|rest| rest.strip_suffix('}'));
            // The value keeps its type: a number stays a number.
            if let Some(found) = whole.and_then(|name| values.get(name)) {
                *value = found.clone();
                return;
            }

            let mut made = text.clone();
            for (name, found) in values {
                let place = format!("${{{name}}}");
                if !made.contains(&place) {
                    continue;
                }
                // A string with a part missing, such as a URL, is of no use.
                if found.is_null() {
                    *value = Json::Null;
                    return;
                }

                let found = found
                    .as_str()
                    .map_or_else(|| found.to_string(), ToOwned::to_owned);
                made = made.replace(&place, &found);
            }

            *text = made;
        }
        _ => {}
    }
}

#[cfg(test)]
pub(super) mod tests {
    use serde_json::json;

    use super::*;

    /// Parameters for a preset: a secret for each secret, an address or a name for others.
    pub(in crate::engines) fn sample(name: &str) -> Map<String, Json> {
        let yaml = PRESETS.iter().find(|(known, _)| *known == name).unwrap().1;
        let required = read(yaml)
            .parameters
            .into_iter()
            .filter(|(_, p)| p.default.is_none() && !p.optional);
        let value = |name: &str, parameter: &Parameter| match name {
            _ if parameter.secret => json!("file:/etc/saltcellar/secret"),
            "url" | "queue_url" => json!("https://host.example/path"),
            _ => json!("value"),
        };
        required
            .map(|(name, parameter)| (name.clone(), value(&name, &parameter)))
            .collect()
    }

    #[test]
    fn every_preset_is_described_and_has_no_open_place() {
        for (name, doc) in all() {
            let sink = Json::Object(settings(name, &sample(name)).unwrap());
            assert!(!sink.to_string().contains("${"), "{name}: {sink}");
            assert!(
                !doc.is_empty() && !doc.contains(['|', '\n']),
                "{name}: {doc}"
            );
        }
    }

    #[test]
    fn parameters_are_checked() {
        let error = |name: &str, with: Json| settings(name, with.as_object().unwrap()).unwrap_err();
        assert!(
            error("datadgo", json!({}))
                .problem
                .contains("give alertmanager, datadog")
        );
        assert_eq!(error("datadog", json!({"sites": "x"})).path, "with.sites");
        assert!(
            error("datadog", json!({}))
                .problem
                .starts_with("the preset datadog needs api_key: ")
        );
        let inline = error("datadog", json!({"api_key": "0123"}));
        assert_eq!(inline.path, "with.api_key");
        assert!(!inline.problem.contains("0123"), "a secret is not repeated");
    }

    #[test]
    fn places_become_values_of_any_type_or_disappear() {
        let values = BTreeMap::from([("a", json!({"x": 1})), ("b", json!("t")), ("c", Json::Null)]);
        let mut value = json!({"kept": {"if": "${b}", "k": 1}, "left_out": {"if": "${c}", "k": 1}, "whole": "${a}", "part": "<${b}>", "gone": "${c}", "gone_too": "x${c}", "list": ["${c}", "${b}"]});
        substitute(&mut value, &values);
        assert_eq!(
            value,
            json!({"kept": {"k": 1}, "whole": {"x": 1}, "part": "<t>", "list": ["t"]})
        );
    }
}
