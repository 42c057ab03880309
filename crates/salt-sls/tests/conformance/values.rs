//! YAML, JSON and globs.

use salt_sls::limits::SLS_DEPTH_MAX;
use salt_sls::{Glob, Value, json, yaml};

use crate::json_form::{alike, assert_none, spell};
use crate::lines;

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
