//! Cases recorded with Salt: configurations, files and events, run through the pipeline.

use std::path::PathBuf;

use serde_json::Value as Json;

use crate::reactor::conformance::{ConformanceOptions, run};
use crate::reactor::{Client, Helper, HelperOptions, Salt as _, Signature};

fn data() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/data")
}

fn recorded_signatures() -> Json {
    serde_json::from_str(&std::fs::read_to_string(data().join("signatures.json")).unwrap()).unwrap()
}

fn salt_python() -> Option<PathBuf> {
    std::env::var_os("SALTCELLAR_SALT_PYTHON").map(PathBuf::from)
}

#[test]
#[ignore = "needs SALTCELLAR_SALT_PYTHON; a part of make test-sls"]
fn recorded_signatures_are_those_of_salt() {
    let python = salt_python().expect("SALTCELLAR_SALT_PYTHON names Salt's Python");
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(
        dir.path().join("master"),
        format!("root_dir: {}\n", dir.path().display()),
    )
    .unwrap();
    let helper = Helper::new(HelperOptions::new(&python, dir.path().join("master")));
    let recorded = recorded_signatures();
    for client in [Client::Runner, Client::Wheel] {
        for (fun, signature) in recorded[client.name()].as_object().unwrap() {
            let of_salt = helper.signature(client, fun).unwrap();
            assert_eq!(
                of_salt,
                Signature::from_json(signature),
                "{} {fun}",
                client.name()
            );
        }
    }
}

/// The cases of the project, and those of the directories that `REACTOR_CASES` names (colons between). Cases that need Salt's own
/// Python count only if `SALTCELLAR_SALT_PYTHON` names one, as `make test-sls` does.
#[test]
fn every_case_matches_salt() {
    let mut dirs = vec![
        data().join("reactor-cases"),
        data().join("reactor-cases-own"),
    ];
    if let Ok(more) = std::env::var("REACTOR_CASES") {
        dirs.extend(
            more.split(':')
                .filter(|dir| !dir.is_empty())
                .map(PathBuf::from),
        );
    }
    let options = ConformanceOptions {
        salt_python: salt_python(),
        signatures: recorded_signatures(),
    };
    let report = run(&dirs, &options, |result| {
        if !result.passed() {
            println!("{result}");
        }
    })
    .unwrap();
    println!("{}", report.summary());
    assert!(report.results.len() >= 400, "cases are missing");
    let failing: Vec<&str> = report
        .failing()
        .filter(|result| options.salt_python.is_some() || result.needs_salt.is_none())
        .map(|result| result.id.as_str())
        .collect();
    assert!(failing.is_empty(), "{failing:?}");
    let need_salt = report.failing().count();
    assert!(
        need_salt <= 84,
        "{need_salt} cases need Salt's Python; most must not"
    );
}

#[test]
fn a_failing_case_is_named_and_missing_cases_are_an_error() {
    let dir = tempfile::tempdir().unwrap();
    let text = std::fs::read_to_string(data().join("reactor-cases/seed-sync-grains.json")).unwrap();
    std::fs::write(dir.path().join("seed-sync-grains.json"), &text).unwrap();

    let mut case: Json = serde_json::from_str(&text).unwrap();
    case["expect"]["events"][0]["calls"] = Json::Array(Vec::new());
    case["id"] = "mine".into();
    std::fs::write(dir.path().join("mine.json"), case.to_string()).unwrap();

    let options = ConformanceOptions::default();
    let report = run(&[dir.path().to_owned()], &options, |_| {}).unwrap();
    assert_eq!(report.summary(), "2 cases: 1 passed, 1 failed");
    let failing: Vec<String> = report.failing().map(ToString::to_string).collect();
    assert!(
        failing[0].starts_with("FAIL mine: event 1: calls: expected 0 items, got 1"),
        "{failing:?}"
    );

    let none = run(&["/no/such".into()], &options, |_| {}).unwrap_err();
    assert!(none.to_string().contains("/no/such"), "{none}");
}
