//! The verbs of the reactor that need no master and no daemon.

use std::fs;
use std::path::Path;

use serde_json::Value as Json;

use crate::fake_daemon::{program, stderr, stdout};
use saltcellar_testkit::{missing, python3};

/// The configuration of a master in this directory.
fn master(dir: &Path) -> String {
    let root = dir.display();
    let reactor = format!(
        "file_roots: {{base: ['{root}/salt']}}\ncachedir: {root}/cache\nreactor:\n- 'salt/minion/*/start':\n  - {root}/good.sls\n  \
         - {root}/none.sls\n- 'salt/key':\n  - salt://py.sls\n  - {root}/broken.sls\n"
    );
    fs::write(dir.join("master"), reactor).unwrap();
    fs::create_dir(dir.join("salt")).unwrap();
    fs::write(dir.join("salt/py.sls"), "#!py\ndef run():\n    return {}\n").unwrap();
    fs::write(dir.join("broken.sls"), "{% if x %}\n").unwrap();
    fs::write(
        dir.join("good.sls"),
        "start:\n  local.state.apply:\n    - tgt: {{ data['id'] }}\n    - expr_form: glob\n",
    )
    .unwrap();
    dir.display().to_string()
}

#[test]
fn a_file_is_tested_without_a_master() {
    let dir = tempfile::tempdir().unwrap();
    let master = master(dir.path());
    let file = dir.path().join("good.sls").display().to_string();
    let test = |more: &[&str]| {
        program()
            .args([
                "reactor",
                "render",
                &file,
                "--tag",
                "salt/minion/web1/start",
                "--data",
                r#"{"id": "web1"}"#,
            ])
            .args(["--salt-config", &master])
            .args(more)
            .output()
            .unwrap()
    };
    let done = test(&["--output", "json"]);
    assert!(done.status.success(), "{}", stderr(&done));
    let json: Json = serde_json::from_str(&stdout(&done)).unwrap();
    assert_eq!(json["calls"][0]["publish"]["tgt"], "web1");
    assert_eq!(json["low"][0]["fun"], "state.apply");
    assert!(
        json["rendered"][0]["text"]
            .as_str()
            .unwrap()
            .contains("tgt: web1")
    );
    assert_eq!(json["notes"][0]["level"], "WARNING");
    let printed = stdout(&test(&[]));
    assert!(printed.contains("local state.apply (start)"), "{printed}");
    assert!(printed.contains("`expr_form` is ignored"), "{printed}");
    let missing = program()
        .args([
            "reactor",
            "render",
            "/no.sls",
            "--tag",
            "a",
            "--salt-config",
            &master,
        ])
        .output()
        .unwrap();
    assert!(
        stdout(&missing).contains("ERROR: Can not render SLS /no.sls for tag a"),
        "{}",
        stdout(&missing)
    );
    assert_eq!(missing.status.code(), Some(1), "{}", stderr(&missing));
    assert!(test(&[]).status.success());
    let bad = program()
        .args(["reactor", "render", "/no.sls", "--tag", "a", "--data", "{"])
        .output()
        .unwrap();
    assert!(
        stderr(&bad).contains("read --data as JSON"),
        "{}",
        stderr(&bad)
    );
}

#[test]
fn rules_and_files_are_checked() {
    let dir = tempfile::tempdir().unwrap();
    let master = master(dir.path());
    let check = |more: &[&str]| {
        program()
            .args(["reactor", "lint", "--salt-config", &master])
            .args(more)
            .output()
            .unwrap()
    };
    let done = check(&["--output", "json"]);
    assert_eq!(done.status.code(), Some(1));
    let json: Json = serde_json::from_str(&stdout(&done)).unwrap();
    let states: Vec<&str> = json["files"]
        .as_array()
        .unwrap()
        .iter()
        .map(|row| row["state"].as_str().unwrap())
        .collect();
    assert_eq!(states, ["ok", "broken", "not native", "broken"]);
    // With a Python of Salt on the host it says as well how far the file was checked.
    let why = json["files"][2]["why"].as_str().unwrap();
    assert!(why.starts_with("renderer \"py\""), "{why}");
    assert_eq!(
        (json["rules"].as_u64(), json["faults"].as_u64()),
        (Some(2), Some(2))
    );
    assert!(
        stdout(&check(&[])).ends_with("2 rules, 4 files, 2 faults\n"),
        "{}",
        stdout(&check(&[]))
    );
}

#[test]
fn check_uses_the_master_of_the_configuration() {
    let dir = tempfile::tempdir().unwrap();
    let (master, config) = (master(dir.path()), dir.path().join("c.yaml"));
    let check = |yaml: &str| {
        std::fs::write(&config, yaml).unwrap();
        program()
            .args(["reactor", "lint", "--config"])
            .arg(&config)
            .output()
            .unwrap()
    };
    let done = check(&format!("reactor:\n  master: {master}/master\n"));
    assert!(
        stdout(&done).ends_with("2 rules, 4 files, 2 faults\n"),
        "{}{}",
        stdout(&done),
        stderr(&done)
    );
    let done = check(&format!(
        "reactor:\n  master: {master}/master\n  rules: [{{a: [/no/such.sls]}}]\n"
    ));
    assert!(
        stdout(&done).ends_with("1 rules, 1 files, 1 faults\n"),
        "{}{}",
        stdout(&done),
        stderr(&done)
    );
}

#[test]
fn the_helper_runs_no_python_from_the_current_directory_or_the_environment() {
    let Some(python) = python3() else {
        return missing("python3");
    };
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    let master = master(dir.path());
    let (planted, marks) = (at("planted"), at("marks"));
    let version = std::process::Command::new(&python)
        .args([
            "-I",
            "-c",
            "import sys; print('python%d.%d' % sys.version_info[:2])",
        ])
        .output()
        .unwrap();
    let site = at("home/.local/lib")
        .join(stdout(&version).trim())
        .join("site-packages");
    for place in [&planted, &site, &marks] {
        fs::create_dir_all(place).unwrap();
    }
    // Whichever of them is imported, leaves a mark.
    for name in [
        "salt",
        "json",
        "base64",
        "pwd",
        "sitecustomize",
        "usercustomize",
    ] {
        let mark = format!("open({:?}, 'w').close()\n", marks.join(name));
        fs::write(planted.join(format!("{name}.py")), &mark).unwrap();
        fs::write(site.join(format!("{name}.py")), &mark).unwrap();
        fs::write(
            site.join(format!("{name}.pth")),
            format!("import os; {mark}"),
        )
        .unwrap();
    }
    let done = program()
        .args([
            "reactor",
            "render",
            "../salt/py.sls",
            "--tag",
            "a",
            "--salt-config",
            &master,
        ])
        .args(["--salt-python", python.to_str().unwrap()])
        .current_dir(&planted)
        .env("PYTHONPATH", &planted)
        .env("PYTHONSTARTUP", planted.join("salt.py"))
        .env("PYTHONUSERBASE", at("home/.local"))
        .env("HOME", at("home"))
        .output()
        .unwrap();
    assert!(done.status.success(), "{} {}", stdout(&done), stderr(&done));
    assert!(
        stdout(&done).contains("rendered by Salt's Python"),
        "{}",
        stdout(&done)
    );
    let run: Vec<_> = fs::read_dir(&marks)
        .unwrap()
        .map(|mark| mark.unwrap().file_name())
        .collect();
    assert!(run.is_empty(), "these were run: {run:?}");
}
