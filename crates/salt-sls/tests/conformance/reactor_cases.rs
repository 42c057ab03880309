//! The recorded cases of Salt's reactor, as far as they need only files and events.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use salt_sls::compile::{self, FileError, Refused};
use salt_sls::jinja::{Context, Data, SaltFunctions, Source};
use salt_sls::{Glob, Map, Value, json, yaml};
use serde_json::Value as Json;

use crate::jinja::{ambient, difference, engine};
use crate::json_form::{alike, assert_none, low_of, read, read_map, spell_low, spell_map};

/// The case files, which the daemon's tests use as well.
fn paths() -> Vec<PathBuf> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/data/reactor-cases");
    let mut paths: Vec<_> = fs::read_dir(directory)
        .unwrap()
        .map(|file| file.unwrap().path())
        .collect();
    paths.retain(|path| path.extension().is_some_and(|end| end == "json"));
    paths.sort();
    paths
}

/// Replaces the placeholders of a case by the paths of the recording.
fn cases() -> Vec<Json> {
    let case = |path: &PathBuf| {
        let text = fs::read_to_string(path).unwrap();
        serde_json::from_str(
            &text
                .replace("${ROOT}", "/case")
                .replace("${CACHE}", "/case/cache"),
        )
        .unwrap()
    };
    paths().iter().map(case).collect()
}

/// The last renderer of a file's pipe, if it is native.
fn last_renderer(case: &Json, text: &str) -> Option<String> {
    let line = text.lines().next().unwrap_or_default();
    let config = yaml::load(case["input"]["master_config"].as_str().unwrap_or_default()).unwrap();
    let option = |key: &str| config.as_map().and_then(|config| config.get(key));
    if option("renderer_whitelist")
        .or(option("renderer_blacklist"))
        .is_some()
    {
        return None;
    }
    let pipe = match line.strip_prefix("#!") {
        Some(pipe) if !pipe.starts_with('/') => pipe,
        _ => option("renderer")
            .and_then(Value::as_str)
            .unwrap_or("jinja|yaml"),
    };
    // `yaml_jinja` and the like are pipes in reverse order.
    let last = pipe.rsplit('|').next().unwrap_or_default().trim();
    let last = last.split(['_', ' ']).next().unwrap_or_default();
    ["yaml", "json", "jinja"]
        .contains(&last)
        .then(|| last.to_owned())
}

fn high_of(last: &str, text: &str, path: &str) -> Result<Map, FileError> {
    match last {
        "yaml" => compile::high(text, path),
        "json" => {
            let text = if text.starts_with("#!") {
                text.split_once('\n').map_or("", |(_, text)| text)
            } else {
                text
            };
            let value = json::load(text).map_err(|error| FileError::Shape(error.to_string()))?;
            compile::pad(value, path)
        }
        _ => Err(FileError::Shape("it ends as text".to_owned())),
    }
}

/// Whether Salt's log contains an ERROR of its reactor with this start.
fn is_logged(message: &str, logs: &Json) -> bool {
    let begin = |message: &str| {
        message
            .split([':', '"', '\''])
            .next()
            .unwrap_or_default()
            .to_owned()
    };
    logs.as_array().unwrap().iter().any(|log| {
        log["level"] == "ERROR"
            && log["logger"] == "salt.utils.reactor"
            && begin(log["message"].as_str().unwrap()) == begin(message)
    })
}

/// Whether a reference matches this file.
fn refers(reference: &str, path: &str) -> bool {
    match reference.strip_prefix("salt://") {
        Some(rest) => path.ends_with(&format!("/{}", rest.split('?').next().unwrap())),
        None => Glob::new(reference).matches(path),
    }
}

#[test]
fn rendered_files_of_the_cases_give_their_high_data() {
    let mut wrong = Vec::new();
    let mut files = 0;
    for case in cases() {
        for event in case["expect"]["events"].as_array().unwrap() {
            let empty = vec![];
            let mut renders = event["renders"]
                .as_array()
                .unwrap_or(&empty)
                .iter()
                .peekable();
            let references = event["matched"].as_array().unwrap_or(&empty).iter();
            for (reference, expected) in references.zip(event["high"].as_array().unwrap_or(&empty))
            {
                let mut high = Map::default();
                let mut seen = 0;
                let means = |render: &&Json| {
                    refers(
                        reference.as_str().unwrap_or_default(),
                        render["file"].as_str().unwrap(),
                    )
                };
                while let Some(render) = renders.next_if(means) {
                    let Some(text) = render["text"].as_str() else {
                        continue;
                    };
                    let path = render["file"].as_str().unwrap();
                    let Some(last) = last_renderer(&case, text) else {
                        continue;
                    };
                    seen += 1;
                    match high_of(&last, text, path) {
                        Ok(one) => high.extend(one),
                        Err(error) => {
                            let words = format!("Failed to render \"{path}\": {error}");
                            if !is_logged(&words, &event["logs"]) {
                                wrong.push(format!("{} {path}: {error}", case["id"]));
                            }
                        }
                    }
                }
                files += seen;
                let found = spell_map(&high);
                // The order of directory entries is undefined.
                let unordered = case["input"]["unordered_renders"] == true && found == *expected;
                if seen > 0 && !unordered && !alike(&found, expected) {
                    wrong.push(format!(
                        "{}\n  Salt: {expected}\n  here: {}",
                        case["id"],
                        spell_map(&high)
                    ));
                }
            }
        }
    }
    assert_none(&wrong, files);
}

#[test]
fn high_data_of_the_cases_gives_their_low_chunks() {
    let mut wrong = Vec::new();
    let mut events = 0;
    for case in cases() {
        let sent = case["input"]["events"].as_array().unwrap();
        for (event, sent) in case["expect"]["events"]
            .as_array()
            .unwrap()
            .iter()
            .zip(sent)
        {
            let Some(high) = event["high"].as_array() else {
                continue;
            };
            events += 1;
            let low = low_of(high.iter().map(read_map).collect());
            if let Err(refused) = &low {
                let references: Vec<String> = event["matched"]
                    .as_array()
                    .unwrap()
                    .iter()
                    .map(|one| one.as_str().unwrap().to_owned())
                    .collect();
                let message = refused.message(sent["tag"].as_str().unwrap(), &references);
                let whole = matches!(refused, Refused::Errors(_));
                let matches_message = |log: &Json| !whole || log["message"] == message;
                if !is_logged(&message, &event["logs"])
                    || !event["logs"]
                        .as_array()
                        .unwrap()
                        .iter()
                        .any(matches_message)
                {
                    wrong.push(format!("{}: not logged: {message}", case["id"]));
                }
            }
            let low = low.unwrap_or_default();
            if spell_low(&low) != spell_low(&event["low"]) {
                wrong.push(format!(
                    "{}\n  Salt: {}\n  here: {low}",
                    case["id"], event["low"]
                ));
            }
        }
    }
    assert_none(&wrong, events);
}

/// The functions that a case called in Salt, with their results.
struct Recorded(Vec<Json>);

impl SaltFunctions for Recorded {
    fn call(&self, fun: &str, args: &[Value], kwargs: &Map) -> Option<Value> {
        let args = Value::List(args.to_vec());
        let kwargs = Value::Map(kwargs.clone());
        let call = self.0.iter().find(|call| {
            call["fun"] == fun
                && read(&call["args"]).python_eq(&args)
                && read(&call["kwargs"]).python_eq(&kwargs)
        })?;
        call.get("return").map(read)
    }
}

#[test]
fn the_cases_of_the_reactor_render_as_in_salt() {
    let paths = paths();
    assert!(paths.len() > 300);
    let (mut rendered, mut native, mut wrong) = (0, 0, Vec::new());
    for path in &paths {
        let case: Json = serde_json::from_str(&fs::read_to_string(path).unwrap()).unwrap();
        let input = &case["input"];
        let files = input["files"].as_object().cloned().unwrap_or_default();
        let config =
            yaml::load(input["master_config"].as_str().unwrap_or_default()).unwrap_or(Value::Null);
        let engine = engine(&config);
        let ambient = ambient();
        let none = Vec::new();
        for (event, expected) in input["events"]
            .as_array()
            .unwrap()
            .iter()
            .zip(case["expect"]["events"].as_array().unwrap())
        {
            let data = Data::from_value(&read(&event["data"]));
            let salt: Arc<dyn SaltFunctions> = Arc::new(Recorded(
                expected["salt_calls"]
                    .as_array()
                    .cloned()
                    .unwrap_or_default(),
            ));
            let tag = event["tag"].as_str().unwrap();
            let context = Context {
                tag,
                data: &data,
                ambient: &ambient,
                salt: &salt,
            };
            for render in expected["renders"].as_array().unwrap_or(&none) {
                let Some(path) = render["file"].as_str() else {
                    continue;
                };
                let name = path
                    .replace("${ROOT}/", "")
                    .replace("${CACHE}/files/base/", "srv/salt/")
                    .replace("${CACHE}/files/dev/", "srv/salt-dev/");
                // Files that are not text have no template.
                let Some(text) = files.get(&name).and_then(Json::as_str) else {
                    continue;
                };
                let got = engine
                    .render(&Source { path, text }, &context)
                    .map(|rendered| rendered.text);
                rendered += 1;
                native += usize::from(got.is_ok());
                let id = case["id"].as_str().unwrap();
                wrong.extend(
                    difference(&got, render["text"].as_str())
                        .map(|what| format!("{id}: {name} {what}")),
                );
            }
        }
    }
    assert!(rendered > 330, "only {rendered} files were rendered");
    println!("{native} of {rendered} native");
    assert!(
        native * 100 > rendered * 78,
        "only {native} of {rendered} are native"
    );
    assert!(
        wrong.is_empty(),
        "{} of {rendered}:\n{}",
        wrong.len(),
        wrong.join("\n")
    );
}
