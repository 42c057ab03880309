//! Tests of the check of Salt's Python.

use std::fs;

use super::*;
use crate::testkit::program;

#[test]
fn an_extension_is_installed_if_salts_loader_finds_it() {
    let dir = tempfile::tempdir().unwrap();
    let master = SaltMaster::read(&dir.path().join("master"));
    let answer_of = |text: &str, code: i32| {
        let path = program(
            dir.path(),
            "python",
            &format!("#!/bin/sh\necho '{text}'\nexit {code}\n"),
        );
        ask(&path, &master)
    };
    let whole = r#"{"salt": "3008.3", "extension": "0.1.0", "module": "/x.py", "entry": true, "id": "a.b_master"}"#;
    assert_eq!(
        answer_of(whole, 0).unwrap().extension.as_deref(),
        Some("0.1.0")
    );
    assert_eq!(answer_of(whole, 0).unwrap().salt.as_deref(), Some("3008.3"));
    assert_eq!(
        answer_of(whole, 0).unwrap().id.as_deref(),
        Some("a.b_master")
    );
    // More than the buffer of a pipe has room for.
    let warnings = vec!["w".repeat(2_000); 50];
    let long = format!(
        "{}, \"warnings\": {}}}",
        &whole[..whole.len() - 1],
        serde_json::json!(warnings)
    );
    assert_eq!(answer_of(&long, 0).unwrap().warnings, warnings);
    for torn in [
        whole.replace("\"module\": \"/x.py\"", "\"module\": null"),
        whole.replace("\"entry\": true", "\"entry\": false"),
    ] {
        assert_eq!(answer_of(&torn, 0).unwrap().extension, None, "{torn}");
    }
    assert!(answer_of(whole, 3).unwrap_err().contains("no response"));
    assert!(
        answer_of("Segmentation fault", 0)
            .unwrap_err()
            .contains("no response")
    );
    assert!(ask(&dir.path().join("none"), &master).is_err());
}

#[test]
fn a_module_in_a_directory_contains_its_version() {
    let dir = tempfile::tempdir().unwrap();
    let (first, second) = (dir.path().join("a.py"), dir.path().join("b.py"));
    let candidates = [first.clone(), second.clone()];
    assert_eq!(module_file(&candidates), None);
    fs::write(
        &second,
        "\"\"\"\nDocs\n\"\"\"\n# Written from saltext.saltcellar 0.3.1 by salt/tools\n",
    )
    .unwrap();
    assert_eq!(
        module_file(&candidates),
        Some((second, Some("0.3.1".to_owned())))
    );
    let tool = include_str!("../../../../salt/tools/package.py");
    assert!(
        tool.contains(&format!("\n{WRITTEN_FROM}{{version}} by ")),
        "the tool writes another head"
    );
    fs::write(&first, "from saltext.saltcellar.utils import client\n").unwrap();
    assert_eq!(module_file(&candidates), Some((first, None)));
}
