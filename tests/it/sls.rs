//! Parsing and compiling of rendered SLS files: expectations were recorded with Salt 3008.3.

use std::fs;
use std::path::{Path, PathBuf};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use saltcellar::base::limits::SLS_DEPTH_MAX;
use saltcellar::model::Glob;
use saltcellar::model::Note;
use saltcellar::reactor::render::compile::{self, FileError, Refused};
use saltcellar::wire::python;
use saltcellar::wire::python::value::{Key, Map, Value};
use saltcellar::wire::python::{json, yaml};
use serde_json::{Value as Json, json};

fn data(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/data")
        .join(path)
}

fn lines(name: &str) -> Vec<Json> {
    let text = fs::read_to_string(data("sls").join(name)).unwrap();
    text.lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}

/// Encodes a value in the JSON format of the cases.
fn spell(value: &Value) -> Json {
    let items = |items: &[Value]| items.iter().map(spell).collect::<Vec<_>>();
    match value {
        Value::Null => Json::Null,
        Value::Bool(b) => json!(b),
        Value::Int(i) if i.unsigned_abs() < 1 << 53 => json!(i),
        Value::Int(i) => json!({"$int": i.to_string()}),
        Value::BigInt(digits) => json!({"$int": digits}),
        Value::Float(f) if f.is_finite() && f.fract() != 0.0 => json!(f),
        Value::Float(_) => json!({"$float": python::repr(value)}),
        Value::Str(text) => json!(text),
        Value::Bytes(bytes) => json!({"$bytes": STANDARD.encode(bytes)}),
        Value::List(list) => Json::Array(items(list)),
        Value::Tuple(list) => json!({"$tuple": items(list)}),
        Value::Set(list) => {
            let mut list = items(list);
            list.sort_by_key(Json::to_string);
            json!({"$set": list})
        }
        Value::Map(map) => spell_map(map),
        Value::Object(object) => panic!("YAML and JSON have no {}", object.type_name),
    }
}

fn spell_map(map: &Map) -> Json {
    if map
        .keys()
        .all(|key| key.as_str().is_some_and(|key| !key.starts_with('$')))
    {
        let pair = |(key, value): (&Key, &Value)| (key.as_str().unwrap().to_owned(), spell(value));
        return Json::Object(map.iter().map(pair).collect());
    }
    json!({"$map": map.iter().map(|(key, value)| json!([spell(&key.0), spell(value)])).collect::<Vec<_>>()})
}

/// Decodes a value from the JSON format of the cases.
fn read(json: &Json) -> Value {
    let list = |json: &Json| {
        json.as_array()
            .unwrap()
            .iter()
            .map(read)
            .collect::<Vec<_>>()
    };
    match json {
        Json::Null => Value::Null,
        Json::Bool(b) => Value::Bool(*b),
        Json::Number(n) => n
            .as_i64()
            .map_or_else(|| Value::Float(n.as_f64().unwrap()), Value::Int),
        Json::String(text) => Value::Str(text.clone()),
        Json::Array(_) => Value::List(list(json)),
        Json::Object(map) => match map.iter().next().map(|(key, value)| (key.as_str(), value)) {
            Some(("$int", digits)) => json::load(digits.as_str().unwrap()).unwrap(),
            Some(("$float", text)) => Value::Float(text.as_str().unwrap().parse().unwrap()),
            Some(("$bytes", text)) => {
                Value::Bytes(STANDARD.decode(text.as_str().unwrap()).unwrap())
            }
            Some(("$tuple", items)) => Value::Tuple(list(items)),
            Some(("$set", items)) => Value::Set(list(items)),
            Some(("$map", pairs)) => {
                let pair = |pair: &Json| (Key(read(&pair[0])), read(&pair[1]));
                Value::Map(pairs.as_array().unwrap().iter().map(pair).collect())
            }
            _ => Value::Map(read_map(json)),
        },
    }
}

fn read_map(json: &Json) -> Map {
    match json.get("$map") {
        Some(_) => read(json).as_map().unwrap().clone(),
        None => json
            .as_object()
            .unwrap()
            .iter()
            .map(|(key, value)| (key.as_str().into(), read(value)))
            .collect(),
    }
}

/// Equality including the order of keys.
fn alike(found: &Json, expected: &Json) -> bool {
    let (found, expected) = (found.to_string(), expected.to_string());
    found == expected
}

/// The differences, one per line; empty for a pass.
fn assert_none(wrong: &[String], of: usize) {
    assert!(of > 0);
    assert!(
        wrong.is_empty(),
        "{} of {of}:\n{}",
        wrong.len(),
        wrong.join("\n")
    );
}

fn check_texts(name: &str, load: impl Fn(&str) -> Result<Value, String>) {
    let rows = lines(name);
    let mut wrong = Vec::new();
    for row in &rows {
        let text = row["text"].as_str().unwrap();
        let found = load(text);
        let same = match (&found, row.get("value")) {
            (Ok(found), Some(expected)) => alike(&spell(found), expected),
            (Err(_), None) => true,
            _ => false,
        };
        if !same {
            wrong.push(format!(
                "{text:?}\n  Salt: {}\n  here: {:?}",
                row.get("value").unwrap_or(&row["fails"]),
                found
            ));
        }
    }
    assert_none(&wrong, rows.len());
}

#[test]
fn yaml_is_parsed_as_by_salt() {
    check_texts("yaml.jsonl", |text| {
        yaml::load(text).map_err(|error| error.to_string())
    });
}

#[test]
fn json_is_parsed_as_by_python() {
    check_texts("json.jsonl", |text| {
        json::load(text).map_err(|error| error.to_string())
    });
    for row in lines("json.jsonl") {
        let (Err(error), Some(expected)) = (
            json::load(row["text"].as_str().unwrap()),
            row["fails"].as_str(),
        ) else {
            continue;
        };
        if expected.contains(": line") {
            assert_eq!(error.to_string(), expected, "{row}");
        }
    }
}

#[test]
fn globs_match_as_in_python() {
    for row in lines("fnmatch.jsonl") {
        let glob = Glob::new(row["pattern"].as_str().unwrap());
        assert_eq!(
            glob.matches(row["name"].as_str().unwrap()),
            row["matches"].as_bool().unwrap(),
            "{row}"
        );
    }
}

/// Chunks compared without regard to the order of their keys.
fn spell_low(low: &Json) -> Vec<String> {
    let chunk = |chunk: &Json| {
        let mut pairs: Vec<_> = chunk.as_object().unwrap().iter().collect();
        pairs.sort_by_key(|(key, _)| key.as_str());
        json!(pairs).to_string()
    };
    low.as_array()
        .map_or(vec![], |low| low.iter().map(chunk).collect())
}

fn low_of(files: Vec<Map>) -> Result<Json, Refused> {
    compile::low(files).map(|low| low.iter().map(spell_map).collect())
}

#[test]
fn events_compile_as_in_salt() {
    let rows = lines("compile.jsonl");
    let mut wrong = Vec::new();
    for row in &rows {
        let mut files = Vec::new();
        for (file, expected) in row["files"]
            .as_array()
            .unwrap()
            .iter()
            .zip(row["high"].as_array().unwrap())
        {
            let (path, text) = (file[0].as_str().unwrap(), file[1].as_str().unwrap());
            let high = compile::high(text, path);
            let found = high.as_ref().map_or(Json::Null, spell_map);
            if !alike(&found, expected) {
                wrong.push(format!(
                    "{text}\n  Salt: {expected}\n  here: {found} {:?}",
                    high.as_ref().err()
                ));
            }
            files.extend(high);
        }
        let found = low_of(files);
        let same = match &found {
            Ok(low) => row
                .get("low")
                .is_some_and(|expected| spell_low(low) == spell_low(expected)),
            Err(Refused::Errors(errors)) => row.get("errors") == Some(&json!(errors)),
            Err(Refused::Exception(_)) => row.get("raises").is_some(),
        };
        if !same {
            wrong.push(format!("{row}\n  here: {found:?}"));
        }
    }
    assert_none(&wrong, rows.len());
}

/// Replaces the placeholders of a case by the paths of the recording.
fn cases() -> Vec<Json> {
    let mut paths: Vec<_> = fs::read_dir(data("reactor-cases"))
        .unwrap()
        .map(|file| file.unwrap().path())
        .collect();
    paths.retain(|path| {
        path.extension()
            .is_some_and(|extension| extension == "json")
    });
    paths.sort();
    let case = |path: &PathBuf| {
        let text = fs::read_to_string(path).unwrap();
        serde_json::from_str(
            &text
                .replace("${ROOT}", "/case")
                .replace("${CACHE}", "/case/cache"),
        )
        .unwrap()
    };
    paths.iter().map(case).collect()
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

/// Whether Salt's log has a record of this level with this start.
fn is_logged(note: &Note, logs: &Json) -> bool {
    let begin = |message: &str| {
        message
            .split([':', '"', '\''])
            .next()
            .unwrap_or_default()
            .to_owned()
    };
    logs.as_array().unwrap().iter().any(|log| {
        log["level"] == note.level.name()
            && log["logger"] == note.logger
            && begin(log["message"].as_str().unwrap()) == begin(&note.message)
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
                            if !is_logged(&Note::error("salt.utils.reactor", words), &event["logs"])
                            {
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
                let note = refused.note(sent["tag"].as_str().unwrap(), &references);
                let whole = matches!(refused, Refused::Errors(_));
                let matches_message = |log: &Json| !whole || log["message"] == note.message;
                if !is_logged(&note, &event["logs"])
                    || !event["logs"]
                        .as_array()
                        .unwrap()
                        .iter()
                        .any(matches_message)
                {
                    wrong.push(format!("{}: not logged: {}", case["id"], note.message));
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

#[test]
fn a_small_document_with_many_aliases_is_refused() {
    let level = |n: usize| {
        format!(
            "a{n}: &a{n} [{}]\n",
            vec![format!("*a{}", n - 1); 10].join(", ")
        )
    };
    let bomb: String = std::iter::once("a0: &a0 [lol]\n".to_owned())
        .chain((1..9).map(level))
        .collect();
    assert!(yaml::load(&bomb).unwrap_err().message.contains("aliases"));

    let level = |n: usize| {
        format!(
            "m{n}: &m{n} {{<<: [{}]}}\n",
            vec![format!("*m{}", n - 1); 10].join(", ")
        )
    };
    let bomb: String = std::iter::once("m0: &m0 {a: b}\n".to_owned())
        .chain((1..9).map(level))
        .collect();
    yaml::load(&bomb).unwrap_err();

    let text = format!(
        "a: &a {}\nb: [{}]\n",
        "x".repeat(1 << 20),
        vec!["*a"; 100].join(", ")
    );
    assert!(yaml::load(&text).unwrap_err().message.contains("aliases"));
}

#[test]
fn deep_nesting_is_refused() {
    for deep in [
        "[".repeat(100_000),
        "{a: ".repeat(100_000),
        "- ".repeat(100_000),
        "[[a]: ".repeat(1000),
    ] {
        yaml::load(&deep).unwrap_err();
    }
    let blocks: Vec<String> = (0..1000).map(|n| format!("{}a:", " ".repeat(n))).collect();
    assert!(
        yaml::load(&blocks.join("\n"))
            .unwrap_err()
            .message
            .contains("deep")
    );
    assert!(
        json::load(&"[".repeat(100_000))
            .unwrap_err()
            .message
            .contains("deep")
    );
    let deepest = format!("{}{}", "[".repeat(SLS_DEPTH_MAX), "]".repeat(SLS_DEPTH_MAX));
    assert_eq!(yaml::load(&deepest), Ok(json::load(&deepest).unwrap()));
}

#[test]
fn yaml_errors_contain_line_and_column() {
    let error = yaml::load("a: b\né: [c\nd: e\n").unwrap_err();
    assert_eq!((error.line, error.column), (3, 2), "{error}");
    let error = yaml::load("a: b\nc: d\na: e\n").unwrap_err();
    assert_eq!(
        error.to_string(),
        "line 3, column 1: while constructing a mapping: found conflicting ID 'a'"
    );
}

/// Measures one event of Salt's benchmark file, from rendered text to low chunks.
#[test]
#[ignore = "prints a measurement; run it in release"]
fn speed_of_yaml_and_compile() {
    let text = "\nrefresh_pool_web1:\n  local.state.apply:\n    - tgt: 'haproxy*'\n    - args:\n      - mods: \
                haproxy.refresh_pool\n      - pillar:\n          new_minion: web1\n\n";
    let rounds = 200_000;
    let mut best = [f64::MAX; 3];
    for _ in 0..5 {
        let cpu = |run: &dyn Fn()| {
            let now = || {
                let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
                std::time::Duration::new(
                    time.tv_sec.unsigned_abs(),
                    u32::try_from(time.tv_nsec).unwrap(),
                )
            };
            let begin = now();
            (0..rounds).for_each(|_| run());
            now().saturating_sub(begin).as_secs_f64() * 1e6 / f64::from(rounds)
        };
        let high = compile::high(text, "/srv/reactor/r.sls").unwrap();
        let rows = [
            cpu(&|| drop(yaml::load(text).unwrap())),
            cpu(&|| drop(compile::high(text, "/srv/reactor/r.sls").unwrap())),
            cpu(&|| drop(compile::low(vec![high.clone()]).unwrap())),
        ];
        best = [0, 1, 2].map(|n| best[n].min(rows[n]));
    }
    println!(
        "yaml {:.2} us, yaml and padding {:.2} us, compiling (with a copy) {:.2} us",
        best[0], best[1], best[2]
    );
}
