//! Runs a case through the pipeline and compares the results.

use std::path::PathBuf;
use std::sync::{Arc, OnceLock};

use salt_sls::Value;
use salt_sls::json_form::{decode, encode, encode_map};
use serde_json::{Value as Json, json};

use super::case::{Case, CaseDir, CaseError, mapped};
use super::compare::{difference, parting, short};
use super::result::{CaseResult, Difference, Layer};
use crate::config::salt_master::SaltMaster;
use crate::model::{Note, NoteLevel};
use crate::reactor::helper::salt::{Salt, SaltError, SaltFile, SaltRendered};
use crate::reactor::helper::{Helper, HelperOptions, LOGGERS};
use crate::reactor::master::Client;
use crate::reactor::outcome::{Detail, Fired, Outcome, Render, SaltCall};
use crate::reactor::pipeline::{Body, Pipeline, Worker};
use crate::reactor::prepared::Prepared;
use crate::reactor::signature::Signature;

/// Options of a run.
#[derive(Debug, Clone, Default)]
pub(crate) struct ConformanceOptions {
    /// A Python with Salt, for cases that require it.
    pub(crate) salt_python: Option<PathBuf>,
    /// Signatures recorded with Salt: `{"runner": {function: signature}, "wheel": {..}}`. Python is
    /// asked for others only: its start takes longer than a case.
    pub(crate) signatures: Json,
}

/// Runs a case.
pub(crate) fn check_case(
    case: &Case,
    options: &ConformanceOptions,
) -> Result<CaseResult, CaseError> {
    let mut result = CaseResult {
        id: case.id.clone(),
        differences: Vec::new(),
        excused: Vec::new(),
        needs_salt: None,
    };

    let dir = CaseDir::set(case)?;
    let mut differences = Differences {
        all: Vec::new(),
        event: 0,
    };
    let master = SaltMaster::read(&dir.config());
    // Event 0 is the configuration itself.
    configuration(case, &dir, &master, &mut differences);

    let salt = Arc::new(CaseSalt::new(case, &dir, options));
    let pipeline =
        Pipeline::new(&master, Arc::clone(&salt) as Arc<dyn Salt>).with_full_pool(case.pool_full);
    pipeline.set_leader(case.is_leader);

    // Errors in the rules are logged once, when they are read.
    let rules_errors = pipeline.rules().map_or(0, |rules| errors(&rules.notes));
    let mut worker = Worker::new(Arc::new(pipeline));

    let expected = case
        .expect
        .get("events")
        .and_then(Json::as_array)
        .cloned()
        .unwrap_or_default();

    let mut more_errors = false;
    let mut crashed = false;
    let mut changed = false;
    for (number, event) in case.events.iter().enumerate() {
        differences.event = number + 1;
        let event = dir.placed(event);
        let tag = event.get("tag").and_then(Json::as_str).unwrap_or_default();
        let data = event.get("data").map_or(Value::Null, decode);
        let outcome = worker.react(tag, Body::Value(&data), Detail::Everything);

        let foreign = outcome
            .not_native
            .iter()
            .any(|file| file.why.starts_with("renderer "));

        // The first reason is enough for the report.
        if let Some(file) = outcome.not_native.first() {
            salt.wanted
                .get_or_init(|| format!("{}: {}", file.file, file.why));
        }

        let Some(expected) = expected.get(number) else {
            // Salt's process died before, so the case contains no results for this event.
            if !crashed {
                differences.add(
                    Layer::Case,
                    "the case contains no results for this event".to_owned(),
                );
            }
            continue;
        };

        let mut got = Got::of(&outcome, &dir);
        let mut expected = expected.clone();

        // Text from a Python renderer is printed with quotes; the cases hold the printed form.
        if foreign {
            got.layers = unquoted(&got.layers);
            expected = unquoted(&expected);
        }

        let expected = &expected;
        if expected.get("crash").is_some() {
            crashed = true;
            after_crash(
                expected,
                &got,
                errors(&outcome.notes) + rules_errors,
                &mut differences,
            );
        } else {
            let before = differences.all.len();
            layers(case, expected, &got, &mut differences);
            // Salt 3008.3 changes a copy of the rules. Here the changes take effect, so further
            // matches are correct.
            let since = differences.all.get(before..).unwrap_or_default();
            if changed
                && since
                    .iter()
                    .any(|difference| difference.layer == Layer::Matched)
            {
                result.excused.extend(differences.all.split_off(before));
                continue;
            }
        }

        // From here on Salt still matches by the old rules.
        changed |= outcome.fired.iter().any(changes_rules);

        let salt_s = expected
            .get("logs")
            .and_then(Json::as_array)
            .map_or(0, |logs| {
                logs.iter()
                    .filter(|log| log.get("level").and_then(Json::as_str) == Some("ERROR"))
                    .count()
            });
        // An ERROR that Salt does not have is never excused.
        more_errors |= errors(&outcome.notes) > salt_s;
    }

    // Where Salt has a defect, a difference is accepted unless it is a saltcellar error.
    if case.advice.starts_with("salt-defect") && !more_errors {
        result.excused.append(&mut differences.all);
    } else {
        result.differences = differences.all;
    }

    // The case may pass with Salt's Python.
    if !result.differences.is_empty() && !salt.is_whole() {
        result.needs_salt = salt.wanted.get().map(|why| dir.general_text(why));
    }

    Ok(result)
}

/// True if a rule was added or deleted.
fn changes_rules(fired: &Fired) -> bool {
    let result = fired
        .data
        .as_map()
        .and_then(|data| data.get("result"))
        .and_then(Value::as_map);
    (fired.tag.ends_with("/add-complete") || fired.tag.ends_with("/delete-complete"))
        && result.is_some_and(|result| result.get("status") == Some(&Value::Bool(true)))
}

fn errors(notes: &[Note]) -> usize {
    notes
        .iter()
        .filter(|note| note.level == NoteLevel::Error)
        .count()
}

struct Differences {
    all: Vec<Difference>,
    event: usize,
}

impl Differences {
    fn add(&mut self, layer: Layer, what: String) {
        self.all.push(Difference {
            event: self.event,
            layer,
            what,
            lesser: false,
        });
    }

    fn compare(&mut self, layer: Layer, expected: &Json, got: &Json, ordered: bool) {
        if let Some(what) = difference(expected, got, ordered) {
            self.add(layer, what);
        }
    }
}

/// An outcome in the form of the cases.
struct Got {
    /// `matched`, `high`, `low`, `calls`, `salt_calls` and `fired`.
    layers: Json,
    renders: Vec<(String, Option<String>)>,
    logs: Vec<(String, String)>,
}

impl Got {
    fn of(outcome: &Outcome, dir: &CaseDir) -> Self {
        let salt_call = |call: &SaltCall| {
            let args: Vec<Json> = call.args.iter().map(encode).collect();
            let (name, answer) = match &call.answer {
                Ok(value) => ("return", encode(value)),
                Err((kind, message)) => ("raised", json!({"type": kind, "message": message})),
            };
            json!({"fun": call.fun, "args": args, "kwargs": encode_map(&call.kwargs), name: answer})
        };

        let fired = |fired: &Fired| json!({"tag": fired.tag, "data": encode(&fired.data)});
        let layers = json!({
            "matched": outcome.matched.iter().map(encode).collect::<Json>(),
            "high": outcome.high.iter().map(encode_map).collect::<Json>(),
            "low": outcome.low.iter().map(encode_map).collect::<Json>(),
            "calls": outcome.calls.iter().map(Prepared::to_json).collect::<Json>(),
            "salt_calls": outcome.salt_calls.iter().map(salt_call).collect::<Json>(),
            "fired": outcome.fired.iter().map(fired).collect::<Json>(),
        });

        let text = |text: &str| dir.general_text(text);
        let render = |render: &Render| (text(&render.file), render.text.as_deref().map(text));
        Self {
            // Paths become placeholders, because each run has another directory.
            layers: dir.general(&layers),
            renders: outcome.renders.iter().map(render).collect(),
            logs: logs(&outcome.notes, dir),
        }
    }

    fn layer(&self, name: &str) -> &Json {
        self.layers.get(name).unwrap_or(&Json::Null)
    }
}

fn unquoted(json: &Json) -> Json {
    mapped(json, &|text| {
        let inner = text
            .strip_prefix('"')
            .and_then(|rest| rest.strip_suffix('"'));
        inner.unwrap_or(text).to_owned()
    })
}

/// Level and message prefix of the log records that correspond to Salt's.
fn logs(notes: &[Note], dir: &CaseDir) -> Vec<(String, String)> {
    notes
        .iter()
        .filter(|note| {
            note.level >= NoteLevel::Warning
                && LOGGERS.iter().any(|name| note.logger.starts_with(name))
        })
        .map(|note| {
            (
                note.level.name().to_owned(),
                beginning(&dir.general_text(&note.message)),
            )
        })
        .collect()
}

fn expected_logs(expected: Option<&Json>) -> Vec<(String, String)> {
    let rows = expected
        .and_then(Json::as_array)
        .map(Vec::as_slice)
        .unwrap_or_default();
    rows.iter()
        .map(|row| {
            let get = |name: &str| row.get(name).and_then(Json::as_str).unwrap_or_default();
            (get("level").to_owned(), beginning(get("message")))
        })
        .collect()
}

/// The constant part of a message.
fn beginning(message: &str) -> String {
    message
        .split([':', '\'', '"'])
        .next()
        .unwrap_or_default()
        .trim_end()
        .to_owned()
}

fn lists(logs: &[(String, String)]) -> String {
    let rows: Vec<String> = logs
        .iter()
        .map(|(level, message)| format!("{level} {message}"))
        .collect();
    if rows.is_empty() {
        "nothing".to_owned()
    } else {
        rows.join(" | ")
    }
}

fn configuration(case: &Case, dir: &CaseDir, master: &SaltMaster, differences: &mut Differences) {
    if let Some(expected) = case.expect.get("effective_reactor") {
        let got = dir.general(&master.option("reactor").map_or(Json::Null, encode));
        differences.compare(Layer::EffectiveReactor, expected, &got, false);
    }

    // Salt logs an unreadable file twice.
    let mut rows = case
        .expect
        .get("config_logs")
        .and_then(Json::as_array)
        .cloned()
        .unwrap_or_default();
    rows.dedup_by(|a, b| a.get("message") == b.get("message"));

    // The types of options are Salt's concern.
    rows.retain(|row| {
        let message = row
            .get("message")
            .and_then(Json::as_str)
            .unwrap_or_default();
        !(message.starts_with("Config option ") && message.contains(" has an invalid type of "))
    });

    let (expected, got) = (
        expected_logs(Some(&Json::from(rows))),
        logs(&master.notes, dir),
    );

    if expected != got {
        differences.add(
            Layer::ConfigLogs,
            format!("expected {}, got {}", lists(&expected), lists(&got)),
        );
    }
}

fn layers(case: &Case, expected: &Json, got: &Got, differences: &mut Differences) {
    // A part that the case lacks was empty.
    let empty = Json::Array(Vec::new());
    let of = |name: &str| expected.get(name).unwrap_or(&empty);
    let before = differences.all.len();

    for (layer, name, ordered) in [
        (Layer::Matched, "matched", false),
        (Layer::High, "high", false),
        (Layer::Low, "low", true),
        (Layer::Calls, "calls", false),
        (Layer::Fired, "fired", false),
    ] {
        differences.compare(layer, of(name), got.layer(name), ordered);
    }

    // With equal data a difference between strings has no effect.
    let same_high = differences
        .all
        .iter()
        .skip(before)
        .all(|found| found.layer != Layer::High);

    renders(case, of("renders"), &got.renders, same_high, differences);
    salt_calls(of("salt_calls"), got.layer("salt_calls"), differences);

    let wanted = expected_logs(expected.get("logs"));
    if wanted != got.logs {
        differences.add(
            Layer::Logs,
            format!("expected {}, got {}", lists(&wanted), lists(&got.logs)),
        );
    }
}

fn renders(
    case: &Case,
    expected: &Json,
    got: &[(String, Option<String>)],
    same_high: bool,
    differences: &mut Differences,
) {
    let rows = expected.as_array().map(Vec::as_slice).unwrap_or_default();
    let mut expected: Vec<(String, Option<String>)> = rows
        .iter()
        .map(|row| {
            let get = |name: &str| row.get(name).and_then(Json::as_str).map(str::to_owned);
            (get("file").unwrap_or_default(), get("text"))
        })
        .collect();

    let mut got = got.to_vec();
    // The files come in the order of a directory, which no file system promises.
    if case.unordered_renders {
        expected.sort();
        got.sort();
    }

    let files = |rows: &[(String, Option<String>)]| {
        let texts: Vec<String> = rows
            .iter()
            .map(|(file, text)| format!("{file}{}", if text.is_some() { "" } else { " (failed)" }))
            .collect();
        if texts.is_empty() {
            "none".to_owned()
        } else {
            texts.join(", ")
        }
    };

    let kinds = |rows: &[(String, Option<String>)]| {
        rows.iter()
            .map(|(f, t)| (f.clone(), t.is_some()))
            .collect::<Vec<_>>()
    };

    // Other files are a separate difference, and their strings are not compared.
    if kinds(&expected) != kinds(&got) {
        differences.add(
            Layer::Renders,
            format!("expected {}, got {}", files(&expected), files(&got)),
        );
        return;
    }

    for ((file, expected), (_, got)) in expected.iter().zip(&got) {
        if let (Some(expected), Some(got)) = (expected, got)
            && expected != got
        {
            differences.all.push(Difference {
                event: differences.event,
                layer: Layer::Renders,
                what: format!("{file}: {}", parting(expected, got)),
                lesser: same_high,
            });
        }
    }
}

/// Compares calls, but not the strings of exceptions, which are Python's.
fn salt_calls(expected: &Json, got: &Json, differences: &mut Differences) {
    let without_texts = |json: &Json| -> Json {
        let rows = json.as_array().map(Vec::as_slice).unwrap_or_default();
        rows.iter()
            .map(|row| {
                let mut row = row.clone();
                // That it raised must be equal, not the message.
                if let Some(raised) = row.get_mut("raised") {
                    *raised = Json::Bool(true);
                }
                row
            })
            .collect()
    };

    differences.compare(
        Layer::SaltCalls,
        &without_texts(expected),
        &without_texts(got),
        false,
    );
}

/// Checks an event of which Salt's process died: an ERROR is required, and everything that Salt did
/// before.
fn after_crash(expected: &Json, got: &Got, errors: usize, differences: &mut Differences) {
    if errors == 0 {
        differences.add(
            Layer::Logs,
            "Salt's process dies here, which must cause an ERROR; none was logged".to_owned(),
        );
    }

    // A part that the case lacks was empty.
    let empty = Vec::new();
    let calls = expected
        .get("calls")
        .and_then(Json::as_array)
        .unwrap_or(&empty);

    let ours = got.layer("calls").as_array().unwrap_or(&empty);

    // Salt loses the calls after the crash; they are made here.
    let begins = calls.len() <= ours.len()
        && calls
            .iter()
            .zip(ours)
            .all(|(expected, got)| difference(expected, got, false).is_none());

    if !begins {
        let (calls, ours) = (short(&Json::from(calls.clone())), short(got.layer("calls")));
        differences.add(
            Layer::Calls,
            format!("expected to begin with {calls}, got {ours}"),
        );
    }

    // What Salt did before it died must be the same.
    for (layer, name) in [(Layer::Matched, "matched"), (Layer::Low, "low")] {
        if let Some(expected) = expected.get(name) {
            differences.compare(layer, expected, got.layer(name), false);
        }
    }
}

/// The stubs of a case, and Salt behind them if a Python is given.
struct CaseSalt {
    stubs: serde_json::Map<String, Json>,
    helper: Option<Helper>,
    signatures: Json,
    /// The first thing that requires Salt.
    wanted: OnceLock<String>,
}

impl CaseSalt {
    fn new(case: &Case, dir: &CaseDir, options: &ConformanceOptions) -> Self {
        let helper = options.salt_python.as_ref().map(|python| {
            let stubs = case.salt_stubs.clone();
            Helper::new(HelperOptions {
                stubs,
                ..HelperOptions::new(python, dir.config())
            })
        });
        Self {
            stubs: case.salt_stubs.as_object().cloned().unwrap_or_default(),
            helper,
            signatures: options.signatures.clone(),
            wanted: OnceLock::new(),
        }
    }

    /// True if there is a Python with Salt.
    fn is_whole(&self) -> bool {
        self.helper
            .as_ref()
            .is_some_and(|helper| matches!(helper.grains(), Ok(Some(_))))
    }

    fn helper(&self) -> Result<&Helper, SaltError> {
        self.helper
            .as_ref()
            .ok_or_else(|| SaltError::Absent("no Python with Salt given".to_owned()))
    }
}

impl Salt for CaseSalt {
    fn render(&self, file: &SaltFile<'_>) -> Result<SaltRendered, SaltError> {
        self.helper()?.render(file)
    }

    fn signature(&self, client: Client, fun: &str) -> Result<Option<Signature>, SaltError> {
        let recorded = self
            .signatures
            .get(client.name())
            .and_then(|functions| functions.get(fun));

        match (recorded, &self.helper) {
            (Some(recorded), _) => Ok(Signature::from_json(recorded)),
            (None, Some(helper)) => helper.signature(client, fun),
            (None, None) => {
                // The reaction fails for lack of it, and the report gives the reason.
                self.wanted
                    .get_or_init(|| format!("the signature of {} {fun}", client.name()));
                Ok(None)
            }
        }
    }

    fn grains(&self) -> Result<Option<Value>, SaltError> {
        self.helper.as_ref().map_or(Ok(None), Salt::grains)
    }

    fn fetch(&self, reference: &str) -> Result<Option<PathBuf>, SaltError> {
        self.helper()?.fetch(reference)
    }

    fn insists(&self, fun: &str) -> bool {
        self.stubs.contains_key(fun)
    }
}
