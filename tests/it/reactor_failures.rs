//! Failures of reactions and acting reactors of rules, as reported by all verbs and calls.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;

use rmpv::Value;
use serde_json::Value as Json;

use crate::fake_daemon::program;
use crate::harness::{Asks as _, Cellar, map, master_bus, wait_for};
use crate::reactor::{FakeMaster, LEGACY, Lab, lab};

/// The program's combined output and its exit code.
fn run(cellar: &Cellar, words: &[&str]) -> (String, Option<i32>) {
    let mut command = program();
    command
        .args(words)
        .arg("--socket")
        .arg(cellar.socket())
        .arg("--state-dir")
        .arg(cellar.state_dir());
    let out = command
        .arg("--config")
        .arg(cellar.dir.path().join("c.yaml"))
        .output()
        .unwrap();
    (
        String::from_utf8(out.stdout).unwrap() + &String::from_utf8(out.stderr).unwrap(),
        out.status.code(),
    )
}

/// A check of `doctor`: its verdict and message.
fn doctor(cellar: &Cellar, check: &str) -> (String, String) {
    let mut command = program();
    command
        .arg("--socket")
        .arg(cellar.socket())
        .arg("--state-dir")
        .arg(cellar.state_dir());
    command
        .arg("--config")
        .arg(cellar.dir.path().join("c.yaml"));
    let out = command
        .args(["--output", "json", "doctor", "--no-master"])
        .output()
        .unwrap();
    let document: Json = serde_json::from_slice(&out.stdout).unwrap();
    let checks = document["checks"].as_array().unwrap();
    let found = checks.iter().filter(|one| one["check"] == check);
    // The most severe one.
    let rank = |one: &&Json| {
        ["ok", "warning", "problem"]
            .iter()
            .position(|word| one["result"] == **word)
    };
    let one = found
        .max_by_key(rank)
        .unwrap_or_else(|| panic!("{check}: {document}"));
    let problems = checks
        .iter()
        .filter(|one| one["result"] == "problem")
        .count();
    assert_eq!(
        document["summary"],
        format!("{problems} of {} checks failed", checks.len())
    );
    (
        one["result"].as_str().unwrap().to_owned(),
        one["message"].as_str().unwrap().to_owned(),
    )
}

fn records(lab: &Lab, count: usize) -> Vec<Value> {
    wait_for("the records", || {
        Some(lab.history()).filter(|history| history.len() == count)
    })
}

fn put(lab: &Lab, file: &str, text: &str) {
    fs::write(lab.cellar.dir.path().join(file), text).unwrap();
}

const BAD: &str = "# one\n# two\n{{ nothing.here }}\n";

#[test]
fn a_reaction_that_cannot_be_rendered_is_failed() {
    let master = FakeMaster::start();
    let files = [("bad.sls", BAD)];
    let mut lab = lab(master.port, "[{'b/*': DIR/bad.sls}]", &files, "");
    lab.fire_one("b/1", "web1");
    let record = records(&lab, 1).remove(0);
    let dir = lab.cellar.dir.path().to_str().unwrap().to_owned();
    let reaction = &record["reaction"];
    assert_eq!(reaction["state"], "failed".into(), "{reaction}");
    let failure = &reaction["failures"][0];
    assert_eq!(failure["file"], format!("{dir}/bad.sls").into());
    assert_eq!(
        (failure["line"].as_u64(), &failure["rendered"]),
        (Some(3), &false.into())
    );
    assert!(
        failure["cause"].as_str().unwrap().contains("nothing"),
        "{failure}"
    );
    let counted = ["reactions_done", "reactions_failed"].map(|name| lab.cellar.counter(name));
    assert_eq!(counted, [0, 1]);
    let (printed, _) = run(&lab.cellar, &["status"]);
    let words: Vec<_> = printed.split_whitespace().collect();
    let expected = "warning reactor: 1 reactions of the last day failed, the latest to b/1 by b/*";
    assert!(words.join(" ").contains(expected), "{printed}");
    // Reported by all of these.
    let number = record["seq"].to_string();
    let place = format!("{dir}/bad.sls:3");
    for words in [
        &["reactor", "history"][..],
        &["reactor", "history", "--state", "dead,failed"],
        &["reactor", "show", &number],
        &["reactor", "why", "b/1"],
    ] {
        let (printed, _) = run(&lab.cellar, words);
        let printed_flat = printed.split_whitespace().collect::<String>();
        assert!(
            printed.contains("failed") && printed_flat.contains("bad.sls:3"),
            "{words:?}: {printed}"
        );
    }
    assert!(
        run(&lab.cellar, &["reactor", "show", &number])
            .0
            .contains(&place)
    );
    assert!(
        run(&lab.cellar, &["reactor", "rules"])
            .0
            .contains("0 done, 1 failed"),
        "counted in the list"
    );
    let (verdict, found) = doctor(&lab.cellar, "reactions");
    assert!(
        verdict == "problem" && found.contains(&place) && found.contains(&number),
        "{verdict}: {found}"
    );
    let (printed, code) = run(&lab.cellar, &["doctor", "--no-master"]);
    assert!(
        printed.contains(" checks failed") && !printed.contains("saltcellar: cannot"),
        "{printed}"
    );
    assert_eq!(code, Some(1));
    // Once the file is fixed, a replay succeeds.
    put(&lab, "bad.sls", LEGACY);
    let (printed, code) = run(&lab.cellar, &["reactor", "replay", &number]);
    assert!(
        code == Some(0) && printed.contains("1 rules of"),
        "{printed}"
    );
    assert_eq!(master.wait(1)[0].2, "b/1");
    assert_eq!(records(&lab, 2)[0]["reaction"]["state"], "done".into());
    let (verdict, found) = doctor(&lab.cellar, "reactions");
    assert_eq!(verdict, "ok", "{found}");
}

#[test]
fn each_failure_has_its_file_and_cause() {
    let master = FakeMaster::start();
    let files = [
        ("yaml.sls", "a:\n  - b\n c: d\n"),
        (
            "type.sls",
            "{% set x = 1 %}\nodd:\n  carrier.test.arg:\n    - tgt: x\n",
        ),
        (
            "tgt.sls",
            "\n\nnowhere:\n  local.test.arg:\n    - arg: [x]\n",
        ),
        ("fun.sls", "no such:\n  wheel.nothing.such:\n    - a: b\n"),
        ("shape.sls", "- a\n- b\n"),
        ("pipe.sls", "#!jinja|nope\na: b\n"),
        ("blank.sls", "  \n\n"),
        (
            "twice.sls",
            "one:\n  local.test.arg:\n    - tgt: x\n    - require: [{local: absent}]\n",
        ),
    ];
    let names: Vec<_> = files
        .iter()
        .map(|(file, _)| file.split_once('.').unwrap().0)
        .chain(["none"])
        .collect();
    let rules: Vec<_> = names
        .iter()
        .map(|name| format!("{{'{name}/*': DIR/{name}.sls}}"))
        .collect();
    let mut lab = lab(master.port, &format!("[{}]", rules.join(", ")), &files, "");
    for name in &names {
        lab.fire_one(&format!("{name}/1"), "web1");
    }
    // Anything that Salt's compiler accepts makes a call.
    let history = records(&lab, names.len());
    let mut printed = Vec::new();
    for name in &names {
        let of = history
            .iter()
            .find(|row| row["tag"] == format!("{name}/1").into())
            .unwrap();
        let reaction = &of["reaction"];
        let failures = reaction["failures"].as_array().cloned().unwrap_or_default();
        let lines: Vec<_> = failures
            .iter()
            .map(|one| {
                assert!(
                    one["file"]
                        .as_str()
                        .unwrap()
                        .ends_with(&format!("/{name}.sls")),
                    "{name}: {one}"
                );
                assert!(!one["cause"].as_str().unwrap().is_empty());
                format!("{}", one["line"])
            })
            .collect();
        printed.push(format!(
            "{name} {} {}",
            reaction["state"].as_str().unwrap(),
            lines.join(",")
        ));
    }
    assert_eq!(
        printed.join("\n"),
        "yaml failed 3\ntype failed 2\ntgt failed 3\nfun failed 1\nshape failed nil\npipe failed 1\nblank failed nil\n\
         twice failed nil\nnone failed nil"
    );
}

#[test]
fn a_partly_failed_reaction_is_partial_and_its_replay_makes_only_the_rest() {
    let master = FakeMaster::start();
    let files = [("a.sls", LEGACY), ("bad.sls", BAD)];
    let mut lab = lab(
        master.port,
        "[{'a/*': [DIR/a.sls, DIR/bad.sls]}]",
        &files,
        "",
    );
    lab.fire_one("a/1", "web1");
    assert_eq!(master.wait(1)[0].2, "a/1");
    let record = records(&lab, 1).remove(0);
    let reaction = &record["reaction"];
    assert_eq!(reaction["state"], "partial".into(), "{reaction}");
    assert_eq!(reaction["calls"][0]["outcome"], "published".into());
    assert_eq!(reaction["failures"].as_array().map(Vec::len), Some(1));
    assert_eq!(lab.cellar.counter("reactions_partial"), 1);
    assert_eq!(doctor(&lab.cellar, "reactions").0, "problem");
    put(
        &lab,
        "bad.sls",
        "more:\n  local.test.arg:\n    - tgt: web1\n    - arg: [more]\n",
    );
    let answer = lab
        .cellar
        .ask("reactor_replay", vec![("seq", record["seq"].clone())]);
    assert_eq!(answer["what"], "rules".into());
    assert_eq!(records(&lab, 2)[0]["reaction"]["state"], "done".into());
    let asked: Vec<_> = master
        .asked()
        .into_iter()
        .map(|(_, _, arg, ..)| arg)
        .collect();
    assert_eq!(asked, ["a/1", "more"], "what was made is not made again");
    assert_eq!(doctor(&lab.cellar, "reactions").0, "ok");
}

#[test]
fn a_reaction_with_a_refused_call_is_partial() {
    let master = FakeMaster::start();
    let runner = "run:\n  runner.test.arg:\n    - arg: [{{ tag }}]\n    - kwarg: {}\n";
    let options = "  allow: [{client: runner, fun: '*'}]\n";
    let files = [("a.sls", LEGACY), ("r.sls", runner)];
    let mut lab = lab(
        master.port,
        "[{'a/*': [DIR/a.sls, DIR/r.sls]}]",
        &files,
        options,
    );
    lab.fire_one("a/1", "web1");
    let record = records(&lab, 1).remove(0);
    assert_eq!(record["reaction"]["state"], "partial".into(), "{record}");
    assert_eq!(doctor(&lab.cellar, "reactions").0, "problem");
}

/// The acting reactor of each rule, by `reactor_list`, and the reason for the first.
fn acts(cellar: &Cellar) -> (Vec<String>, String) {
    let list = cellar.ask("reactor_list", vec![]);
    let rules = list["rules"].as_array().unwrap();
    let who = rules
        .iter()
        .map(|rule| rule["handled_by"].as_str().unwrap().to_owned());
    (who.collect(), rules[0]["why"].as_str().unwrap().to_owned())
}

/// Asserts that no reactor acts, for that reason, in the list and in `doctor`.
fn assert_no_actor(cellar: &Cellar, why: &str) {
    let found = wait_for("nobody to act", || {
        Some(acts(cellar)).filter(|(who, _)| *who == ["none"])
    });
    assert!(found.1.contains(why), "{found:?}");
    let (printed, _) = run(cellar, &["reactor", "rules"]);
    assert!(
        printed.contains("none") && printed.contains("inactive: "),
        "{printed}"
    );
    let (verdict, words) = doctor(cellar, "reactor");
    assert!(
        verdict == "problem" && words.contains("no reactor acts on 1 of 1 rules (a/*)"),
        "{verdict}: {words}"
    );
    assert!(words.contains(why), "{words}");
}

/// A directory with the configuration of a master and of a daemon.
fn configured(master: &str, yaml: &str) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    let at = dir.path().to_str().unwrap();
    fs::create_dir_all(dir.path().join("cache")).unwrap();
    fs::write(dir.path().join("cache/.root_key"), "the key").unwrap();
    let master = format!(
        "interface: 127.0.0.1\nret_port: 1\ncachedir: {at}/cache\nuser: root\nid: m\n{master}"
    );
    fs::write(dir.path().join("master"), master).unwrap();
    fs::write(dir.path().join("a.sls"), LEGACY).unwrap();
    fs::write(dir.path().join("c.yaml"), yaml.replace("DIR", at)).unwrap();
    dir
}

const RULES: &str = "rules: [{'a/*': DIR/a.sls}]";

#[test]
fn rules_without_a_bus_have_no_actor() {
    let yaml = format!("reactor: {{master: DIR/master, {RULES}}}\n");
    let cellar = Cellar::start_in(configured("", &yaml), &["--config", "DIR/c.yaml"]);
    assert_no_actor(&cellar, "no bus is configured");
}

#[test]
fn rules_of_a_disconnected_bus_have_no_actor() {
    let yaml = format!("bus: [DIR]\nreactor: {{master: DIR/master, {RULES}}}\n");
    let cellar = Cellar::start_in(configured("", &yaml), &["--config", "DIR/c.yaml"]);
    assert_no_actor(&cellar, "no bus is connected");
    let bus = master_bus(cellar.dir.path());
    let _stream = bus.subscriber().unwrap();
    wait_for("saltcellar to act", || {
        (acts(&cellar).0 == ["saltcellar"]).then_some(())
    });
    assert_eq!(doctor(&cellar, "reactor").0, "ok");
}

#[test]
fn in_shadow_mode_salt_acts_if_its_reactor_is_enabled() {
    let yaml = "bus: [DIR]\nreactor: {master: DIR/master, shadow: true}\n";
    let rules = "reactor: [{'a/*': [/a.sls]}]\n";
    let dir = configured(&format!("{rules}engines: [saltcellar-reactor]\n"), yaml);
    let bus = master_bus(dir.path());
    let cellar = Cellar::start_in(dir, &["--config", "DIR/c.yaml"]);
    let _stream = bus.subscriber().unwrap();
    assert_no_actor(&cellar, "`reactor.shadow` is true; Salt's reactor is off");
    // Salt's reactor is enabled.
    let conf = cellar.dir.path().join("master");
    let text = fs::read_to_string(&conf).unwrap();
    fs::write(&conf, text.replace("engines: [saltcellar-reactor]\n", "")).unwrap();
    wait_for("Salt to act", || {
        (acts(&cellar).0 == ["salt"]).then_some(())
    });
    let (verdict, words) = doctor(&cellar, "reactor");
    assert!(
        verdict == "ok" && words.contains("Salt's reactor acts"),
        "{words}"
    );
}

#[test]
fn a_rule_only_in_the_masters_list_has_no_actor_once_its_reactor_is_disabled() {
    let yaml = format!("bus: [DIR]\nreactor: {{master: DIR/master, {RULES}}}\n");
    let master = "engines: [saltcellar-reactor]\nreactor: [{'a/*': [/a.sls]}, {'b/*': [/b.sls]}]\n";
    let dir = configured(master, &yaml);
    let bus = master_bus(dir.path());
    let cellar = Cellar::start_in(dir, &["--config", "DIR/c.yaml"]);
    let _stream = bus.subscriber().unwrap();
    wait_for("saltcellar to act", || {
        (acts(&cellar).0 == ["saltcellar", "none"]).then_some(())
    });
    let (verdict, words) = doctor(&cellar, "reactor");
    assert!(
        verdict == "problem" && words.contains("`reactor.rules` does not have it"),
        "{words}"
    );
}

#[test]
fn rules_have_no_actor_if_the_daemon_has_no_reactor() {
    let dir = configured(
        "reactor: [{'a/*': [/a.sls]}]\nengines: [saltcellar-reactor]\n",
        "{}",
    );
    let cellar = Cellar::start_in(dir, &["--config", "DIR/c.yaml"]);
    let conf = cellar.dir.path().join("master");
    let dir = cellar.dir.path().to_str().unwrap();
    let (printed, code) = run(&cellar, &["reactor", "rules", "--salt-config", dir]);
    assert!(
        code == Some(0)
            && printed.contains("none")
            && printed.contains("`reactor.master` is not set"),
        "{printed}"
    );
    fs::write(&conf, "reactor: [{'a/*': [/a.sls]}]\n").unwrap();
    let (printed, _) = run(&cellar, &["reactor", "rules", "--salt-config", dir]);
    assert!(
        printed.contains("salt ") && !printed.contains("none"),
        "{printed}"
    );
}

#[cfg(debug_assertions)]
#[test]
fn rules_have_no_actor_while_the_disk_is_full() {
    let yaml = format!("bus: [DIR]\nreactor: {{master: DIR/master, {RULES}}}\n");
    let dir = configured("", &yaml);
    let bus = master_bus(dir.path());
    fs::write(dir.path().join("disk"), "").unwrap();
    let cellar = Cellar::start_in(dir, &["--config", "DIR/c.yaml"]);
    let mut stream = bus.subscriber().unwrap();
    wait_for("saltcellar to act", || {
        (acts(&cellar).0 == ["saltcellar"]).then_some(())
    });
    cellar.plan_disk("write=ENOSPC@1+:log/");
    let mut body = b"a/1\n\n".to_vec();
    rmpv::encode::write_value(&mut body, &map(vec![("id", "web1".into())])).unwrap();
    let frame = map(vec![("head", map(vec![])), ("body", Value::Binary(body))]);
    let mut bytes = Vec::new();
    rmpv::encode::write_value(&mut bytes, &frame).unwrap();
    crate::harness::publish(&mut stream, "plain", &[bytes]);
    assert_no_actor(&cellar, "the store accepts no events");
    wait_for("a record that is not stored", || {
        let (printed, _) = run(&cellar, &["reactor", "rules"]);
        printed.contains("1 records not stored yet").then_some(())
    });
    cellar.plan_disk("");
    wait_for("saltcellar to act again", || {
        (acts(&cellar).0 == ["saltcellar"]).then_some(())
    });
}

#[test]
fn signatures_are_asked_once_of_salts_python() {
    let master = FakeMaster::start();
    // Answers each request with the signature of a custom runner.
    let program = "#!/bin/sh\nwhile read line <&1; do\n  echo \"$line\" >> DIR/asked\n  \
         echo '{\"signature\": {\"name\": \"open\", \"required\": [\"source\"], \"optional\": [[\"till\", 7]], \"any_keyword\": false}}'\n\
         done\n";
    let dir = tempfile::tempdir().unwrap();
    let (python, asked) = (dir.path().join("python"), dir.path().join("asked"));
    std::fs::write(
        &python,
        program.replace("DIR", dir.path().to_str().unwrap()),
    )
    .unwrap();
    std::fs::set_permissions(&python, std::fs::Permissions::from_mode(0o755)).unwrap();
    let requests = || {
        let lines = std::fs::read_to_string(&asked).unwrap_or_default();
        lines
            .lines()
            .filter(|line| line.contains("\"op\":\"signature\""))
            .map(str::to_owned)
            .collect::<Vec<_>>()
    };
    let known = "run:\n  runner.test.arg:\n    - arg: [{{ tag }}]\n    - kwarg: {}\n";
    let own = "own:\n  runner.shop.open:\n    - source: {{ tag }}\n";
    let files = [("known.sls", known), ("own.sls", own)];
    let rules = "[{'known/*': DIR/known.sls}, {'own/*': DIR/own.sls}]";
    let mut lab = lab(
        master.port,
        rules,
        &files,
        &format!("  python: {}\n", python.display()),
    );
    lab.fire_one("known/1", "web1");
    master.wait(1);
    assert_eq!(requests(), [""; 0], "the current form needs none");
    lab.fire_one("own/1", "web1");
    let made = master.wait(2);
    assert_eq!(
        (made[1].1.as_str(), made[1].2.as_str()),
        ("shop.open", "own/1")
    );
    assert!(
        requests()[0].contains("\"fun\":\"shop.open\""),
        "{:?}",
        requests()
    );
    lab.fire_one("own/2", "web1");
    master.wait(3);
    assert_eq!(requests().len(), 1);
}
