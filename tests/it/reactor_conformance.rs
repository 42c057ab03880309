//! Cases recorded with Salt: configurations, files and events, run through the pipeline.

use std::path::PathBuf;

use saltcellar::reactor::conformance::{ConformanceOptions, run};
use saltcellar::reactor::{Client, Helper, HelperOptions, Salt as _, Signature};
use serde_json::Value as Json;

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

const CHECKED: [(&str, &str, &str, &str); 11] = [
    ("jinja", "{% if %}\n", "broken", "Jinja syntax error"),
    ("filter", "a: {{ 1 | nothing }}\n", "broken", "nothing"),
    ("py", "#!py\ndef run(:\n", "broken", "SyntaxError"),
    (
        "ran",
        "#!py\nopen('DIR/ran', 'w')\ndef run():\n    return {}\n",
        "not native",
        "does not run it",
    ),
    ("yamlex", "#!yamlex\na: [\n", "broken", "expected"),
    ("yaml", "a: [\n", "broken", "did not find expected"),
    (
        "kind",
        "a: {locl.test.ping: [{tgt: x}]}\n",
        "broken",
        "unknown reaction type",
    ),
    (
        "renderer",
        "#!jinja|nope\na: {}\n",
        "broken",
        "not available",
    ),
    (
        "called",
        "{% do salt['cmd.run']('touch DIR/ran') %}\na: {}\n",
        "not native",
        "does not call salt['cmd.run']",
    ),
    (
        "data",
        "{% macro m(x) %}{{ x }}{% endmacro %}a: {{ m(data['list'].x) }}\n",
        "not native",
        "",
    ),
    (
        "good",
        "a: {local.test.ping: [{tgt: {{ data['id'] }}}]}\n",
        "ok",
        "",
    ),
];

#[test]
#[ignore = "needs SALTCELLAR_SALT_PYTHON; a part of make test-sls"]
fn a_check_finds_errors_that_need_no_event_and_runs_nothing_of_the_site() {
    let python = salt_python().expect("SALTCELLAR_SALT_PYTHON names Salt's Python");
    let dir = tempfile::tempdir().unwrap();
    let at = dir.path().display().to_string();
    let mut rules = String::new();
    for (name, text, ..) in CHECKED {
        std::fs::write(
            dir.path().join(format!("{name}.sls")),
            text.replace("DIR", &at),
        )
        .unwrap();
        rules.extend(["  - 'x/", name, "': ", &at, "/", name, ".sls\n"]);
    }
    let master = dir.path().join("master");
    std::fs::write(&master, format!("root_dir: {at}\nreactor:\n{rules}")).unwrap();

    let check = || {
        let output = crate::fake_daemon::program()
            .args(["--output", "json", "reactor", "lint", "--salt-config"])
            .arg(dir.path())
            .arg("--salt-python")
            .arg(&python)
            .output()
            .unwrap();
        String::from_utf8(output.stdout).unwrap()
    };
    let shown = check();
    let found: Json = serde_json::from_str(&shown).unwrap();
    for (name, _, state, why) in CHECKED {
        let rows = found["files"].as_array().unwrap();
        let row = rows
            .iter()
            .find(|row| row["rule"] == format!("x/{name}"))
            .unwrap();
        assert_eq!(row["state"], state, "{row}");
        assert!(row["why"].as_str().unwrap().contains(why), "{row}");
    }
    let says = "data.sls (x/data): it is compiled, but does not render";
    assert!(shown.contains(says), "{shown}");
    assert!(!dir.path().join("ran").exists());
    // `#!py`, of which one cannot be compiled.
    let says = "2 files are programs, for which Salt waits without limit: each may take 10m here (reactor.program_timeout)";
    assert!(shown.contains(says), "{shown}");

    // With a `yaml` of the site, which is not run either, the file that was fine is not rendered here.
    let replaced = format!("def render(*args, **kwargs):\n    open('{at}/ran', 'w')\n");
    std::fs::create_dir_all(dir.path().join("ext/renderers")).unwrap();
    std::fs::write(dir.path().join("ext/renderers/yaml.py"), replaced).unwrap();
    let rules = format!(
        "root_dir: {at}\nextension_modules: {at}/ext\nreactor:\n  - 'x/good': {at}/good.sls\n"
    );
    std::fs::write(&master, rules).unwrap();
    let shown = check();
    let found: Json = serde_json::from_str(&shown).unwrap();
    let row = &found["files"][0];
    assert_eq!(row["state"], "not native", "{row}");
    assert!(row["why"].as_str().unwrap().contains("yaml"), "{row}");
    let says = "1 file is a program, for which Salt waits without limit: it may take 10m here";
    assert!(shown.contains(says), "{shown}");
    assert!(!dir.path().join("ran").exists());
}
