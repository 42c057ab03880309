//! Each kind of difference must be detected.

/// Cases recorded with Salt.
mod recorded;

use serde_json::{Value as Json, json};

use super::*;

/// A case that passes.
fn good() -> Json {
    let kwargs = json!({
        "state": "local", "name": "x", "__sls__": "${ROOT}/srv/reactor/r.sls", "__id__": "x", "order": 1,
    });
    let mut all = kwargs.clone();
    all["arg"] = json!({"$tuple": []});
    all["kwarg"] = json!({});
    let chunk =
        json!({"local": [{"tgt": "web1"}, "test.ping"], "__sls__": "${ROOT}/srv/reactor/r.sls"});
    let low = json!({
        "state": "local", "name": "x", "__sls__": "${ROOT}/srv/reactor/r.sls", "__id__": "x", "tgt": "web1",
        "fun": "test.ping", "order": 1,
    });
    json!({
        "id": "made-up",
        "input": {
            "master_config": "reactor:\n  - 'a/*':\n    - ${ROOT}/srv/reactor/r.sls\n    - /no.sls\n",
            "files": {"srv/reactor/r.sls": "x:\n  local.test.ping:\n    - tgt: {{ data.id }}\n"},
            "events": [{"tag": "a/b", "data": {"id": "web1"}}],
        },
        "expect": {
            "effective_reactor": [{"a/*": ["${ROOT}/srv/reactor/r.sls", "/no.sls"]}],
            "events": [{
                "matched": ["${ROOT}/srv/reactor/r.sls", "/no.sls"],
                "renders": [{
                    "file": "${ROOT}/srv/reactor/r.sls",
                    "text": "x:\n  local.test.ping:\n    - tgt: web1\n",
                }],
                "high": [{"x": chunk}, {}],
                "low": [low],
                "calls": [{
                    "client": "local", "tgt": "web1", "fun": "test.ping", "kwargs": all,
                    "publish": {
                        "cmd": "publish", "tgt": "web1", "fun": "test.ping", "arg": [], "tgt_type": "glob", "ret": "",
                        "jid": "", "kwargs": kwargs, "user": "root", "__publish_timeout": 30,
                    },
                }],
                "logs": [{
                    "level": "ERROR", "logger": "salt.utils.reactor",
                    "message": "Can not render SLS /no.sls for tag a/b. File missing or not found.",
                }],
            }],
        },
    })
}

fn result(case: &Json) -> CaseResult {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("case.json"), case.to_string()).unwrap();
    let report = run(
        &[dir.path().to_owned()],
        &ConformanceOptions::default(),
        |_| {},
    )
    .unwrap();
    report.results.into_iter().next().unwrap()
}

#[test]
fn a_case_that_matches_salt_passes() {
    let result = result(&good());
    assert!(result.passed(), "{:#?}", result.differences);
}

#[test]
fn every_layer_is_compared() {
    let check = |pointer: &str, other: Json, layer: Layer| {
        let mut case = good();
        *case
            .pointer_mut(pointer)
            .unwrap_or_else(|| panic!("no {pointer}")) = other;
        let result = result(&case);
        let found: Vec<Layer> = result
            .differences
            .iter()
            .map(|difference| difference.layer)
            .collect();
        assert_eq!(found, [layer], "{pointer}: {:#?}", result.differences);
    };
    check(
        "/expect/effective_reactor",
        json!([]),
        Layer::EffectiveReactor,
    );
    let event = |name: &str| format!("/expect/events/0/{name}");
    check(&event("matched/1"), json!("/yes.sls"), Layer::Matched);
    check(&event("high/0/x/local/0/tgt"), json!("web2"), Layer::High);
    check(&event("renders/0/text"), json!("x"), Layer::Renders);
    check(&event("low/0/order"), json!(1.0), Layer::Low);
    check(&event("calls/0/publish/user"), json!("salt"), Layer::Calls);
    check(&event("logs/0/level"), json!("WARNING"), Layer::Logs);
    check(&event("logs"), json!([]), Layer::Logs);
    let mut case = good();
    case["expect"]["events"][0]["fired"] = json!([{"tag": "x", "data": {}}]);
    assert_eq!(result(&case).differences[0].layer, Layer::Fired);
    case = good();
    case["expect"]["events"][0]["salt_calls"] =
        json!([{"fun": "x", "args": [], "kwargs": {}, "return": null}]);
    assert_eq!(result(&case).differences[0].layer, Layer::SaltCalls);
}

#[test]
fn an_error_is_required_where_salt_dies() {
    let mut case = good();
    case["expect"]["events"] =
        json!([{"calls": [], "logs": [], "crash": {"type": "X", "message": "x"}}]);
    assert!(result(&case).passed(), "the missing file is an ERROR");
    case["input"]["master_config"] = json!("reactor: []\n");
    case["expect"]["effective_reactor"] = json!([]);
    assert_eq!(result(&case).differences[0].layer, Layer::Logs);
}

#[test]
fn an_invalid_case_fails() {
    let mut case = good();
    case.as_object_mut().unwrap().remove("expect");
    let result = result(&case);
    assert_eq!(result.id, "case");
    assert_eq!(result.differences[0].layer, Layer::Case);
    assert!(result.to_string().starts_with("FAIL case: case: "));
}
