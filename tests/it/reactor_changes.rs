//! The reactor of the real program: changes of its configuration and of the master's, acting reactors, shadow mode, log messages.

use std::fs;

use rmpv::Value;
use serde_json::Value as Json;

use crate::fake_daemon::{program, stderr, stdout};
use crate::harness::{Asks as _, Cellar, map, wait_for};
use crate::reactor::{FakeMaster, LEGACY, Lab, lab};
use saltcellar_testkit::{missing, python3};

const RULES: &str = "[{'a/*': DIR/a.sls}]";

fn path(lab: &Lab, name: &str) -> std::path::PathBuf {
    lab.cellar.dir.path().join(name)
}

fn change(lab: &Lab, name: &str, from: &str, to: &str) {
    let file = path(lab, name);
    let text = fs::read_to_string(&file).unwrap();
    assert!(text.contains(from), "{text}");
    fs::write(file, text.replace(from, to)).unwrap();
}

/// Changes a file without changing its modification time.
fn change_unseen(lab: &Lab, name: &str, from: &str, to: &str) {
    let file = path(lab, name);
    let before = fs::metadata(&file).unwrap().modified().unwrap();
    change(lab, name, from, to);
    fs::File::options()
        .write(true)
        .open(file)
        .unwrap()
        .set_modified(before)
        .unwrap();
}

fn hang_up(cellar: &Cellar) {
    let pid =
        rustix::process::Pid::from_raw(i32::try_from(cellar.process.0.id()).unwrap()).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::HUP).unwrap();
}

fn run(lab: &Lab, words: &[&str]) -> (String, Option<i32>) {
    let out = program()
        .args(words)
        .arg("--socket")
        .arg(lab.cellar.socket())
        .output()
        .unwrap();
    (stdout(&out) + &stderr(&out), out.status.code())
}

#[test]
fn sighup_applies_a_new_configuration_completely_or_not_at_all() {
    let master = FakeMaster::start();
    let mut lab = lab(master.port, RULES, &[("a.sls", LEGACY)], "  depth_max: 5\n");
    let rule = |lab: &Lab| {
        lab.cellar.ask("reactor_list", vec![])["rules"][0]["rule"]
            .as_str()
            .unwrap()
            .to_owned()
    };
    // The first key is valid, the second is not: neither takes effect.
    change_unseen(&lab, "c.yaml", "'a/*'", "'b/*'");
    change_unseen(&lab, "c.yaml", "depth_max: 5", "depth_max: none");
    hang_up(&lab.cellar);
    let refused = wait_for("the refusal", || {
        let listed = lab.cellar.ask("reactor_list", vec![]);
        listed["refused"]["why"].as_str().map(str::to_owned)
    });
    assert!(
        refused.contains("c.yaml") && refused.contains("depth_max"),
        "{refused}"
    );
    lab.cellar.counted("reactor_reloads_rejected", 1);
    assert_eq!(rule(&lab), "a/*");
    lab.cellar.logged("invalid, keeping the previous one");
    let (printed, _) = run(&lab, &["reactor", "rules"]);
    assert!(
        printed.contains("new configuration invalid since ") && printed.contains("a/*"),
        "{printed}"
    );
    lab.fire_one("a/1", "web1");
    assert_eq!(master.wait(1)[0].2, "a/1");
    change_unseen(&lab, "c.yaml", "depth_max: none", "depth_max: 6");
    hang_up(&lab.cellar);
    // Counted once the whole configuration is in effect.
    lab.cellar.counted("reactor_reloads", 1);
    assert_eq!(rule(&lab), "b/*");
    assert!(lab.cellar.ask("reactor_list", vec![])["refused"].is_nil());
    // The master cannot be changed at run time.
    change(&lab, "c.yaml", "/master\n", "/other\n");
    lab.cellar.counted("reactor_reloads_rejected", 2);
    let why = lab.cellar.ask("reactor_list", vec![])["refused"]["why"].to_string();
    assert!(
        why.contains("restart the daemon to apply the change"),
        "{why}"
    );
    lab.fire_one("a/2", "web1");
    lab.fire_one("b/1", "web1");
    let asked = master.wait(2);
    assert_eq!(
        asked
            .iter()
            .map(|asked| asked.2.as_str())
            .collect::<Vec<_>>(),
        ["a/1", "b/1"]
    );
}

#[test]
fn an_error_in_an_included_file_is_fixed_there() {
    let master = FakeMaster::start();
    let mut lab = lab(master.port, RULES, &[("a.sls", LEGACY)], "");
    let part = path(&lab, "master.d/part.conf");
    fs::create_dir(path(&lab, "master.d")).unwrap();
    fs::write(&part, "user: [\n").unwrap();
    wait_for("the refusal", || {
        let refused = lab.cellar.ask("reactor_list", vec![])["refused"]["why"].to_string();
        refused.contains("part.conf").then_some(())
    });
    // Its directory does not change with this.
    fs::write(path(&lab, "cache/.salt_key"), "the key").unwrap();
    fs::write(&part, "user: salt\n").unwrap();
    wait_for("it to be used", || {
        lab.cellar.ask("reactor_list", vec![])["refused"]
            .is_nil()
            .then_some(())
    });
    lab.fire_one("a/1", "web1");
    assert_eq!(master.wait(1)[0].4, "salt");
}

#[test]
fn changes_of_the_master_s_address_user_and_key_take_effect() {
    let (first, second) = (FakeMaster::start(), FakeMaster::start());
    let mut lab = lab(first.port, RULES, &[("a.sls", LEGACY)], "");
    lab.fire_one("a/1", "web1");
    assert_eq!(first.wait(1)[0].4, "root");
    // There the key has another name, and the old one is invalid.
    fs::write(path(&lab, "cache/.root_key"), "an old key").unwrap();
    fs::write(path(&lab, "cache/.salt_key"), "the key").unwrap();
    change(
        &lab,
        "master",
        &format!("ret_port: {}", first.port),
        &format!("ret_port: {}", second.port),
    );
    change(&lab, "master", "user: root", "user: salt");
    lab.cellar
        .logged("master address changed, sending reactions to the new one");
    lab.fire_one("a/2", "web1");
    let asked = second.wait(1);
    assert_eq!((asked[0].2.as_str(), asked[0].4.as_str()), ("a/2", "salt"));
    assert_eq!(first.asked().len(), 1);
}

/// The findings of `doctor` about the reactor: verdict and words.
fn doctor(lab: &Lab) -> Vec<(String, String)> {
    let dir = lab.cellar.dir.path();
    let mut command = program();
    command
        .args(["--output", "json", "--config"])
        .arg(dir.join("c.yaml"));
    command
        .arg("--socket")
        .arg(lab.cellar.socket())
        .arg("--state-dir")
        .arg(dir.join("state"));
    command
        .arg("doctor")
        .arg("--salt-config")
        .arg(dir)
        .arg("--salt-python")
        .arg("/no/such/python");
    let document: Json = serde_json::from_str(&stdout(&command.output().unwrap())).unwrap();
    let checks = document["checks"].as_array().unwrap().iter();
    let text = |one: &Json, key: &str| one[key].as_str().unwrap_or_default().to_owned();
    checks
        .filter(|one| one["check"] == "reactor")
        .map(|one| {
            (
                text(one, "result"),
                format!("{} ({})", text(one, "message"), text(one, "remedy")),
            )
        })
        .collect()
}

#[test]
fn doctor_and_the_log_report_the_acting_reactor() {
    let master = FakeMaster::start();
    let mut lab = lab(master.port, RULES, &[("a.sls", LEGACY)], "");
    wait_for("the reactor", || (lab.open() == 0).then_some(()));
    let found = doctor(&lab);
    assert!(
        matches!(&found[..], [(verdict, words)] if verdict == "ok" && words.contains("1 rules")),
        "{found:?}"
    );
    // Salt's reactor is enabled while the daemon's is active.
    let own = "reactor:\n  - 'a/*': /a.sls\n";
    let plain = fs::read_to_string(path(&lab, "master")).unwrap();
    fs::write(path(&lab, "master"), plain.clone() + own).unwrap();
    wait_for("the change", || {
        (lab.cellar.ask("reactor_list", vec![])["shadow"] == true.into()).then_some(())
    });
    let found = doctor(&lab);
    let [live, written] = &found[..] else {
        panic!("{found:?}")
    };
    assert!(
        live.0 == "warning" && live.1.contains("it runs in shadow mode"),
        "{live:?}"
    );
    assert!(
        written.0 == "problem" && written.1.contains("/master:7"),
        "{written:?}"
    );
    assert!(
        written.1.contains("reactor.shadow: true")
            && written.1.contains("`saltcellar setup --reactor`"),
        "{written:?}"
    );
    // The same at a start: it is logged, and the reactor does not act.
    lab.cellar.kill();
    fs::write(path(&lab, "log"), "").unwrap();
    lab.restart();
    lab.cellar.logged("Salt's reactor runs on this master");
    lab.fire_one("a/1", "web1");
    wait_for("the record", || (lab.history().len() == 1).then_some(()));
    assert_eq!(
        lab.history()[0]["reaction"]["calls"][0]["outcome"],
        "shadowed".into()
    );
    assert_eq!(master.asked().len(), 0);
    // Configured shadow mode is not reported as a problem.
    change(&lab, "c.yaml", "reactor:\n", "reactor:\n  shadow: true\n");
    let found = doctor(&lab);
    assert!(
        matches!(&found[..], [(verdict, _)] if verdict == "ok"),
        "{found:?}"
    );
    // An invalid configuration is.
    fs::write(path(&lab, "master"), "reactor: [\n").unwrap();
    wait_for("the refusal", || {
        (lab.cellar.counter("reactor_reloads_rejected") > 0).then_some(())
    });
    let found = doctor(&lab);
    assert!(
        found.iter().any(
            |(verdict, words)| verdict == "problem" && words.contains("invalid and not in use")
        ),
        "{found:?}"
    );
}

#[test]
fn the_debug_log_has_the_messages_of_salts_guide() {
    let master = FakeMaster::start();
    let files = [
        ("a.sls", LEGACY),
        ("none.sls", "{% if tag == 'x' %}a: b{% endif %}\n"),
    ];
    let mut lab = lab(
        master.port,
        "[{'a/*': [DIR/a.sls, DIR/none.sls]}]",
        &files,
        "log: {level: debug}\n",
    );
    lab.fire_one("b/1", "web1");
    lab.fire_one("a/1", "web1");
    lab.fire(&[("a/own".to_owned(), map(vec![("user", "Reactor".into())]))]);
    lab.fire_one("b/2", "web1");
    master.wait(1);
    wait_for("all to be through", || (lab.open() == 0).then_some(()));
    let log = wait_for("the last event", || {
        Some(lab.cellar.log()).filter(|log| log.contains("Gathering reactors for tag b/2\n"))
    });
    let dir = lab.cellar.dir.path().display();
    let mut from = 0;
    // In this order. Rendered text is escaped within its log line, and not truncated.
    for words in [
        "Gathering reactors for tag b/1\n".to_owned(),
        "Gathering reactors for tag a/1\n".to_owned(),
        "Compiling reactions for tag a/1".to_owned(),
        format!("compile template: {dir}/a.sls"),
        format!(
            "Rendered data from file: {dir}/a.sls:\\nping web1:\\n  local.test.arg:\\n    - tgt: web1\\n    - arg:\\n      - a/1\\n\n"
        ),
        format!("Rendered data from file: {dir}/none.sls:\\n"),
    ] {
        let at = log[from..]
            .find(&words)
            .unwrap_or_else(|| panic!("{words:?} is not in\n{}", &log[from..]));
        from += at + words.len();
    }
    assert!(!log.contains("reactors for tag a/own"), "as in Salt");
    for message in [
        "Gathering reactors for tag a/1\n",
        "Compiling reactions for tag a/1",
    ] {
        assert_eq!(log.matches(message).count(), 1, "{message}\n{log}");
    }
}

#[test]
fn uses_of_salts_own_renderers_are_counted() {
    let Some(python) = python3() else {
        return missing("python3");
    };
    let python = python.display();
    let good = "#!py\ndef run():\n    return {'x': {'local.test.arg': [{'tgt': data['id']}, {'arg': [tag]}]}}\n";
    let dies = "#!py\nimport os\ndef run():\n    os._exit(1)\n";
    let rules = "[{'a/*': DIR/good.sls}, {'b/*': DIR/dies.sls}]";
    let master = FakeMaster::start();
    let options = format!("  python: {python}\n");
    let mut lab = lab(
        master.port,
        rules,
        &[("good.sls", good), ("dies.sls", dies)],
        &options,
    );
    // One after the other, so that one process suffices.
    for (n, tag) in ["a/1", "b/1", "a/2"].into_iter().enumerate() {
        lab.fire_one(tag, "web1");
        wait_for("the record", || {
            (lab.history().len() == n + 1).then_some(())
        });
    }
    assert_eq!(master.wait(2)[1].2, "a/2");
    let count = |name: &str| lab.cellar.counter(name);
    // A file that kills its process is tried three times.
    assert_eq!(
        (
            count("helper_starts"),
            count("helper_renders"),
            count("helper_requests_failed_broken")
        ),
        (4, 3, 3)
    );
    assert_eq!(count("helper_requests_retried"), 2);
    assert!(count("helper_requests") >= 3 && count("helper_requests_failed_timeout") == 0);
}

fn shadow(lab: &Lab) -> (Json, Option<i32>) {
    let (text, code) = run(lab, &["reactor", "diff", "--exit-code", "--output", "json"]);
    (
        serde_json::from_str(text.lines().next().unwrap_or_default()).unwrap_or_else(|_| {
            // The error follows the document.
            serde_json::Deserializer::from_str(&text)
                .into_iter()
                .next()
                .unwrap()
                .unwrap()
        }),
        code,
    )
}

#[test]
fn shadow_lists_the_differences_from_salts_reactor() {
    let runner = "run:\n  runner.test.arg:\n    - arg: [{{ tag }}]\n    - kwarg: {n: 1}\n";
    let no_target = "none:\n  local.test.ping:\n    - tgt: absent\n";
    let files = [("r.sls", runner), ("n.sls", no_target)];
    let rules = "[{'a/*': DIR/r.sls}, {'n/*': DIR/n.sls}, {'once/*': DIR/r.sls}]";
    let options =
        "  shadow: true\n  shadow_window: 1s\n  options: [{rule: 'once/*', once_per: 10m}]\n";
    let mut lab = lab(1, rules, &files, options);
    fs::create_dir_all(path(&lab, "pki/minions")).unwrap();
    change(
        &lab,
        "master",
        "id: m\n",
        &format!("id: m\npki_dir: {}/pki\n", lab.cellar.dir.path().display()),
    );
    lab.cellar.counted("reactor_reloads", 1);
    let salts = |jid: &str, arg: &str, n: i64| {
        let args = Value::Array(vec![arg.into(), map(vec![("n", n.into())])]);
        let data = vec![
            ("fun", "runner.test.arg".into()),
            ("jid", jid.into()),
            ("user", "Reactor".into()),
            ("fun_args", args),
        ];
        (format!("salt/run/{jid}/new"), map(data))
    };
    // Differences are listed in the order of our records.
    for (n, tag) in ["a/same", "a/differs", "n/1", "once/1", "once/2"]
        .into_iter()
        .enumerate()
    {
        lab.fire_one(tag, "web1");
        wait_for("the record", || {
            (lab.history().len() == n + 1).then_some(())
        });
    }
    lab.fire(&[salts("1", "a/same", 1), salts("2", "a/differs", 2)]);
    lab.fire(&[salts("3", "once/1", 1), salts("4", "once/2", 1)]);
    let (found, code) = wait_for("the verdicts", || {
        let (found, code) = shadow(&lab);
        (found["waiting"]["saltcellar"] == 0).then_some((found, code))
    });
    assert_eq!(code, Some(1), "{found}");
    let counts = &found["counts"];
    assert_eq!(
        (counts["same"].as_u64(), counts["different"].as_u64()),
        (Some(2), Some(1)),
        "{found}"
    );
    assert_eq!(
        counts["only_saltcellar"].as_u64(),
        Some(0),
        "a job without a target leaves no trace: {found}"
    );
    let one = &found["differences"][0];
    assert_eq!(
        one["fields"][0],
        serde_json::json!({"field": "kwarg.n", "saltcellar": 1, "salt": 2})
    );
    assert_eq!(
        (
            one["saltcellar"]["tag"].as_str(),
            one["salt"]["jid"].as_str()
        ),
        (Some("a/differs"), Some("2"))
    );
    // Salt has no throttles; calls prevented by ours are reported with the rule.
    assert_eq!(
        found["throttled"],
        serde_json::json!({"once_per": 1}),
        "{found}"
    );
    let left = &found["differences"][1];
    let (why, ours) = (&left["blocked"]["why"], &left["blocked"]["saltcellar"]);
    assert_eq!(
        (left["what"].as_str(), left["salt"]["jid"].as_str()),
        (Some("only_salt"), Some("4"))
    );
    assert_eq!(
        (&left["blocked"]["throttle"], &ours["rules"][0]),
        (&"once_per".into(), &"once/*".into())
    );
    assert!(why.as_str().unwrap().contains("only the first"), "{why}");
    let of_rule = found["rules"]
        .as_array()
        .unwrap()
        .iter()
        .find(|row| row["rule"] == "once/*")
        .unwrap();
    assert_eq!(
        (of_rule["same"].as_u64(), of_rule["only_salt"].as_u64()),
        (Some(1), Some(1))
    );
    let (printed, _) = run(&lab, &["reactor", "diff"]);
    for words in [
        "different: runner.test.arg",
        "kwarg.n: saltcellar 1, Salt 2",
        "rule a/*",
        "Salt's job 2 of",
        "NOT COMPARABLE",
        "saltcellar's call was prevented: `once_per` of once/*: only the first of the minion's events counts",
        "1 only Salt, because `once_per` of the rule prevented saltcellar's call",
    ] {
        assert!(printed.contains(words), "{words}: {printed}");
    }
    let (_, code) = run(&lab, &["reactor", "diff", "--exit-code", "--until", "1h"]);
    assert_eq!(code, Some(0), "before it there was nothing");
    lab.cellar.counted("shadow_calls_different", 1);
    lab.cellar.counted("shadow_calls_same", 2);
}

#[test]
fn a_reactor_does_not_act_on_events_from_before_it_was_configured_again() {
    let master = FakeMaster::start();
    let mut lab = lab(master.port, RULES, &[("a.sls", LEGACY)], "");
    lab.fire_one("a/1", "web1");
    assert_eq!(master.wait(1)[0].2, "a/1");
    wait_for("the record", || (lab.open() == 0).then_some(()));
    let with = fs::read_to_string(path(&lab, "c.yaml")).unwrap();
    let (without, _) = with.split_once("reactor:").unwrap();
    fs::write(path(&lab, "c.yaml"), without).unwrap();
    assert!(lab.cellar.terminate());
    lab.restart();
    for n in 2..8 {
        lab.fire_one(&format!("a/{n}"), "web1");
    }
    wait_for("the events", || {
        let found = lab.cellar.ask(
            "events_list",
            vec![("tag", "a/*".into()), ("limit", 100.into())],
        );
        (found["events"].as_array().unwrap().len() == 7).then_some(())
    });
    lab.cellar.logged("no reactor is configured");
    fs::write(path(&lab, "c.yaml"), with).unwrap();
    assert!(lab.cellar.terminate());
    lab.restart();
    lab.fire_one("a/8", "web1");
    let asked: Vec<_> = master
        .wait(2)
        .into_iter()
        .map(|(_, _, tag, ..)| tag)
        .collect();
    assert_eq!(asked, ["a/1", "a/8"]);
    wait_for("the record", || (lab.open() == 0).then_some(()));
    assert_eq!(lab.history().len(), 2);
}

#[test]
fn a_torn_checkpoint_is_read_up_to_the_damage() {
    let master = FakeMaster::start();
    let mut lab = lab(master.port, RULES, &[("a.sls", LEGACY)], "");
    // Changes are appended to two logs; the newer one has the highest number.
    let newest = || {
        let segments = fs::read_dir(path(&lab, "state").join("log/settings")).unwrap();
        let logs = segments.map(|segment| segment.unwrap().path().join("log"));
        logs.max().unwrap()
    };
    let checkpoint = newest();
    let whole = fs::metadata(&checkpoint).unwrap().len();
    for n in 0..20 {
        lab.fire_one(&format!("a/{n}"), "web1");
    }
    master.wait(20);
    wait_for("the records", || (lab.open() == 0).then_some(()));
    // A kill between two checkpoints, and an incomplete write.
    wait_for("something to be appended", || {
        (fs::metadata(&checkpoint).unwrap().len() > whole).then_some(())
    });
    lab.cellar.kill();
    let end = fs::metadata(&checkpoint).unwrap().len();
    fs::File::options()
        .write(true)
        .open(&checkpoint)
        .unwrap()
        .set_len(end - 3)
        .unwrap();
    lab.restart();
    wait_for("all to be through", || (lab.open() == 0).then_some(()));
    assert_eq!((master.asked().len(), lab.history().len()), (20, 20));
}
