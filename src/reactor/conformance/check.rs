//! Runs a case through the pipeline and compares the results.

use std::path::PathBuf;
use std::sync::{Arc, OnceLock};

use serde_json::{Value as Json, json};

use super::case::{Case, CaseDir, mapped};
use super::compare::{difference, parting, short};
use super::{CaseResult, ConformanceOptions, Difference, Layer};
use crate::config::salt_master::SaltMaster;
use crate::model::{Note, NoteLevel};
use crate::reactor::encode::{decode, encode, encode_map};
use crate::reactor::helper::salt::{Salt, SaltAnswer, SaltError, SaltFile, SaltRendered};
use crate::reactor::helper::{Helper, HelperOptions, LOGGERS};
use crate::reactor::pipeline::outcome::{Detail, Fired, Outcome};
use crate::reactor::pipeline::{Body, Pipeline, Worker};
use crate::sls::{Map, Value};

/// Runs a case.
pub fn check_case(case: &Case, options: &ConformanceOptions) -> CaseResult {
    let mut result =
        CaseResult { id: case.id.clone(), differences: Vec::new(), excused: Vec::new(), needs_salt: None };
    let dir = match CaseDir::set(case) {
        Ok(dir) => dir,
        Err(error) => {
            result.differences.push(Difference {
                event: 0,
                layer: Layer::Case,
                what: error.to_string(),
                lesser: false,
            });
            return result;
        }
    };
    let mut differences = Differences { all: Vec::new(), event: 0 };
    let master = SaltMaster::read(&dir.config());
    configuration(case, &dir, &master, &mut differences);
    let salt = Arc::new(CaseSalt::new(case, &dir, options));
    let pipeline = Pipeline::new(&master, Arc::clone(&salt) as Arc<dyn Salt>).with_full_pool(case.pool_full);
    pipeline.set_leader(case.is_leader);
    // Errors in the rules are logged once, when they are read.
    let rules_errors = pipeline.rules().map_or(0, |rules| errors(&rules.notes));
    let mut worker = Worker::new(Arc::new(pipeline));
    let expected = case.expect.get("events").and_then(Json::as_array).cloned().unwrap_or_default();
    let mut more_errors = false;
    let mut crashed = false;
    let mut changed = false;
    for (number, event) in case.events.iter().enumerate() {
        differences.event = number + 1;
        let event = dir.placed(event);
        let tag = event.get("tag").and_then(Json::as_str).unwrap_or_default();
        let data = event.get("data").map_or(Value::Null, decode);
        let outcome = worker.react(tag, Body::Value(&data), Detail::Everything);
        let foreign = outcome.not_native.iter().any(|file| file.why.starts_with("renderer "));
        if let Some(file) = outcome.not_native.first() {
            salt.wanted.get_or_init(|| format!("{}: {}", file.file, file.why));
        }
        let Some(expected) = expected.get(number) else {
            // Salt's process died before, so the case has no results for this event.
            if !crashed {
                differences.add(Layer::Case, "the case has no results for this event".to_owned());
            }
            continue;
        };
        let mut got = Got::of(&outcome, &dir);
        // Text from a Python renderer is printed with quotes; the cases hold the printed form.
        let unquoted = if foreign { got.unquote().then(|| unquoted(expected)) } else { None };
        let expected = unquoted.as_ref().unwrap_or(expected);
        if expected.get("crash").is_some() {
            crashed = true;
            after_crash(expected, &got, errors(&outcome.notes) + rules_errors, &mut differences);
        } else {
            let before = differences.all.len();
            layers(case, expected, &got, &mut differences);
            // Salt 3008.3 changes a copy of the rules. Here the changes take effect, so further matches are correct.
            let since = differences.all.get(before..).unwrap_or_default();
            if changed && since.iter().any(|difference| difference.layer == Layer::Matched) {
                result.excused.extend(differences.all.split_off(before));
                continue;
            }
        }
        changed |= outcome.fired.iter().any(changes_rules);
        let salt_s = expected.get("logs").and_then(Json::as_array).map_or(0, |logs| {
            logs.iter().filter(|log| log.get("level").and_then(Json::as_str) == Some("ERROR")).count()
        });
        more_errors |= errors(&outcome.notes) > salt_s;
    }
    // Where Salt has a defect, a difference is accepted unless it is an error of ours.
    if case.advice.starts_with("salt-defect") && !more_errors {
        result.excused.append(&mut differences.all);
    } else {
        result.differences = differences.all;
    }
    if !result.differences.is_empty() && !salt.is_whole() {
        result.needs_salt = salt.wanted.get().map(|why| match dir.general(&Json::from(why.as_str())) {
            Json::String(why) => why,
            other => other.to_string(),
        });
    }
    result
}

/// True if a rule was added or deleted.
fn changes_rules(fired: &Fired) -> bool {
    let result = fired.data.as_map().and_then(|data| data.get("result")).and_then(Value::as_map);
    (fired.tag.ends_with("/add-complete") || fired.tag.ends_with("/delete-complete"))
        && result.is_some_and(|result| result.get("status") == Some(&Value::Bool(true)))
}

fn errors(notes: &[Note]) -> usize {
    notes.iter().filter(|note| note.level == NoteLevel::Error).count()
}

struct Differences {
    all: Vec<Difference>,
    event: usize,
}

impl Differences {
    fn add(&mut self, layer: Layer, what: String) {
        self.all.push(Difference { event: self.event, layer, what, lesser: false });
    }

    fn compare(&mut self, layer: Layer, expected: &Json, got: &Json, ordered: bool) {
        if let Some(what) = difference(expected, got, ordered) {
            self.add(layer, what);
        }
    }
}

/// An outcome in the form of the cases.
struct Got {
    matched: Json,
    renders: Vec<(String, Option<String>)>,
    high: Json,
    low: Json,
    calls: Json,
    salt_calls: Json,
    fired: Json,
    logs: Vec<(String, String)>,
}

impl Got {
    fn of(outcome: &Outcome, dir: &CaseDir) -> Self {
        let general = |json: Json| dir.general(&json);
        let text = |text: &str| match dir.general(&Json::from(text)) {
            Json::String(text) => text,
            other => other.to_string(),
        };
        let salt_calls: Json = outcome
            .salt_calls
            .iter()
            .map(|call| {
                let args: Vec<Json> = call.args.iter().map(encode).collect();
                let mut row = json!({"fun": call.fun, "args": args, "kwargs": encode_map(&call.kwargs)});
                if let Some(row) = row.as_object_mut() {
                    match &call.answer {
                        Ok(value) => row.insert("return".to_owned(), encode(value)),
                        Err((kind, message)) => {
                            row.insert("raised".to_owned(), json!({"type": kind, "message": message}))
                        }
                    };
                }
                row
            })
            .collect();
        Self {
            matched: general(outcome.matched.iter().map(encode).collect()),
            renders: outcome
                .renders
                .iter()
                .map(|render| (text(&render.file), render.text.as_deref().map(text)))
                .collect(),
            high: general(outcome.high.iter().map(encode_map).collect()),
            low: general(outcome.low.iter().map(encode_map).collect()),
            calls: general(outcome.calls.iter().map(super::super::Call::to_json).collect()),
            salt_calls: general(salt_calls),
            fired: general(
                outcome
                    .fired
                    .iter()
                    .map(|fired| json!({"tag": fired.tag, "data": encode(&fired.data)}))
                    .collect(),
            ),
            logs: logs(&outcome.notes, dir),
        }
    }
}

impl Got {
    /// Removes the quotes of printed text; true if the expected text must be treated equally.
    fn unquote(&mut self) -> bool {
        for part in [&mut self.high, &mut self.low, &mut self.calls] {
            *part = unquoted(part);
        }
        true
    }
}

fn unquoted(json: &Json) -> Json {
    mapped(json, &|text| {
        let inner = text.strip_prefix('"').and_then(|rest| rest.strip_suffix('"'));
        inner.unwrap_or(text).to_owned()
    })
}

/// Level and message prefix of the log records that correspond to Salt's.
fn logs(notes: &[Note], dir: &CaseDir) -> Vec<(String, String)> {
    notes
        .iter()
        .filter(|note| {
            note.level >= NoteLevel::Warning && LOGGERS.iter().any(|name| note.logger.starts_with(name))
        })
        .map(|note| {
            let message = dir.general(&Json::from(note.message.as_str()));
            (note.level.name().to_owned(), beginning(message.as_str().unwrap_or_default()))
        })
        .collect()
}

fn expected_logs(expected: Option<&Json>) -> Vec<(String, String)> {
    let rows = expected.and_then(Json::as_array).map(Vec::as_slice).unwrap_or_default();
    rows.iter()
        .map(|row| {
            let get = |name: &str| row.get(name).and_then(Json::as_str).unwrap_or_default();
            (get("level").to_owned(), beginning(get("message")))
        })
        .collect()
}

/// The constant part of a message.
fn beginning(message: &str) -> String {
    message.split([':', '\'', '"']).next().unwrap_or_default().trim_end().to_owned()
}

fn lists(logs: &[(String, String)]) -> String {
    let rows: Vec<String> = logs.iter().map(|(level, message)| format!("{level} {message}")).collect();
    if rows.is_empty() { "nothing".to_owned() } else { rows.join(" | ") }
}

fn configuration(case: &Case, dir: &CaseDir, master: &SaltMaster, differences: &mut Differences) {
    if let Some(expected) = case.expect.get("effective_reactor") {
        let got = dir.general(&master.option("reactor").map_or(Json::Null, encode));
        differences.compare(Layer::EffectiveReactor, expected, &got, false);
    }
    // Salt logs an unreadable file twice.
    let mut rows = case.expect.get("config_logs").and_then(Json::as_array).cloned().unwrap_or_default();
    rows.dedup_by(|a, b| a.get("message") == b.get("message"));
    let (expected, got) = (expected_logs(Some(&Json::from(rows))), logs(&master.notes, dir));
    if expected != got {
        differences.add(Layer::ConfigLogs, format!("expected {}, got {}", lists(&expected), lists(&got)));
    }
}

fn layers(case: &Case, expected: &Json, got: &Got, differences: &mut Differences) {
    let empty = Json::Array(Vec::new());
    let of = |name: &str| expected.get(name).unwrap_or(&empty);
    differences.compare(Layer::Matched, of("matched"), &got.matched, false);
    let before = differences.all.len();
    differences.compare(Layer::High, of("high"), &got.high, false);
    let same_high = differences.all.len() == before;
    renders(case, of("renders"), &got.renders, same_high, differences);
    differences.compare(Layer::Low, of("low"), &got.low, true);
    differences.compare(Layer::Calls, of("calls"), &got.calls, false);
    salt_calls(of("salt_calls"), &got.salt_calls, differences);
    differences.compare(Layer::Fired, of("fired"), &got.fired, false);
    let wanted = expected_logs(expected.get("logs"));
    if wanted != got.logs {
        differences.add(Layer::Logs, format!("expected {}, got {}", lists(&wanted), lists(&got.logs)));
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
    if case.unordered_renders {
        expected.sort();
        got.sort();
    }
    let files = |rows: &[(String, Option<String>)]| {
        let texts: Vec<String> = rows
            .iter()
            .map(|(file, text)| format!("{file}{}", if text.is_some() { "" } else { " (failed)" }))
            .collect();
        if texts.is_empty() { "none".to_owned() } else { texts.join(", ") }
    };
    let kinds = |rows: &[(String, Option<String>)]| {
        rows.iter().map(|(f, t)| (f.clone(), t.is_some())).collect::<Vec<_>>()
    };
    if kinds(&expected) != kinds(&got) {
        differences.add(Layer::Renders, format!("expected {}, got {}", files(&expected), files(&got)));
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

/// Compares calls, but not the texts of exceptions, which are Python's.
fn salt_calls(expected: &Json, got: &Json, differences: &mut Differences) {
    let without_texts = |json: &Json| -> Json {
        let rows = json.as_array().map(Vec::as_slice).unwrap_or_default();
        rows.iter()
            .map(|row| {
                let mut row = row.clone();
                if let Some(raised) = row.get_mut("raised") {
                    *raised = Json::Bool(true);
                }
                row
            })
            .collect()
    };
    differences.compare(Layer::SaltCalls, &without_texts(expected), &without_texts(got), false);
}

/// Checks an event of which Salt's process died: an ERROR is required, and everything that Salt did before.
fn after_crash(expected: &Json, got: &Got, errors: usize, differences: &mut Differences) {
    if errors == 0 {
        differences.add(
            Layer::Logs,
            "Salt's process dies here, which must cause an ERROR; none was logged".to_owned(),
        );
    }
    let empty = Vec::new();
    let calls = expected.get("calls").and_then(Json::as_array).unwrap_or(&empty);
    let ours = got.calls.as_array().unwrap_or(&empty);
    let begins = calls.len() <= ours.len()
        && calls.iter().zip(ours).all(|(expected, got)| difference(expected, got, false).is_none());
    if !begins {
        differences.add(
            Layer::Calls,
            format!(
                "expected to begin with {}, got {}",
                short(&Json::from(calls.clone())),
                short(&got.calls)
            ),
        );
    }
    for (layer, name, got) in [(Layer::Matched, "matched", &got.matched), (Layer::Low, "low", &got.low)] {
        if let Some(expected) = expected.get(name) {
            differences.compare(layer, expected, got, false);
        }
    }
}

/// The stubs of a case, and Salt behind them if a Python is given.
struct CaseSalt {
    stubs: serde_json::Map<String, Json>,
    helper: Option<Helper>,
    /// The first function that is not stubbed.
    wanted: OnceLock<String>,
}

impl CaseSalt {
    fn new(case: &Case, dir: &CaseDir, options: &ConformanceOptions) -> Self {
        let helper = options.salt_python.as_ref().map(|python| {
            let mut options = HelperOptions::new(python, dir.config());
            options.stubs = case.salt_stubs.clone();
            Helper::new(options)
        });
        Self {
            stubs: case.salt_stubs.as_object().cloned().unwrap_or_default(),
            helper,
            wanted: OnceLock::new(),
        }
    }

    /// True if there is a Python with Salt.
    fn is_whole(&self) -> bool {
        self.helper.as_ref().is_some_and(|helper| matches!(helper.salt_version(), Ok(Some(_))))
    }

    fn helper(&self) -> Result<&Helper, SaltError> {
        self.helper.as_ref().ok_or_else(|| SaltError::Absent("no Python with Salt given".to_owned()))
    }
}

impl Salt for CaseSalt {
    fn render(&self, file: &SaltFile<'_>) -> Result<SaltRendered, SaltError> {
        self.helper()?.render(file)
    }

    fn call(&self, fun: &str, args: &[Value], kwargs: &Map) -> Result<SaltAnswer, SaltError> {
        let Some(stub) = self.stubs.get(fun) else {
            self.wanted.get_or_init(|| fun.to_owned());
            return self.helper()?.call(fun, args, kwargs);
        };
        let result = match stub.get("raise") {
            Some(raised) => {
                let get = |name: &str| raised.get(name).and_then(Json::as_str).unwrap_or_default().to_owned();
                Err((get("type"), get("message")))
            }
            None => Ok(stub.get("return").map_or(Value::Null, decode)),
        };
        Ok(SaltAnswer { result, retcode: 0, notes: Vec::new() })
    }

    fn has(&self, fun: &str) -> Result<Option<bool>, SaltError> {
        if self.stubs.contains_key(fun) {
            return Ok(Some(true));
        }
        self.helper.as_ref().map_or(Ok(None), |helper| helper.has(fun))
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
