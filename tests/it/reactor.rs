//! The reactor in the real program, with a fake bus and a fake request port of a master.

use std::collections::HashMap;
use std::net::TcpListener;
use std::os::unix::net::UnixStream;
use std::sync::Arc;

use parking_lot::Mutex;
use rmpv::Value;
use saltcellar::base::clock::Clock;
use saltcellar::model::{Entry, Flags, Kind, Source};
use saltcellar_testkit::master::serve;

use crate::fake_daemon::program;
use crate::harness::{Asks as _, Cellar, FakeBus, map, master_bus, publish, wait_for};
use crate::salt_codec::store_unchecked;

/// A request to the master: `cmd`, `fun`, the first argument, `jid`, `user`.
pub(crate) type Asked = (String, String, String, String, String);

/// A master that accepts every request.
pub(crate) struct FakeMaster {
    pub(crate) port: u16,
    asked: Arc<Mutex<Vec<Asked>>>,
}

impl FakeMaster {
    pub(crate) fn start() -> Self {
        let asked: Arc<Mutex<Vec<Asked>>> = Arc::default();
        let seen = asked.clone();
        let port = serve(move |request| {
            let request = rmpv::decode::read_value(&mut &request[..]).unwrap();
            let mut answer = Vec::new();
            rmpv::encode::write_value(&mut answer, &reply(&request["load"], &seen)).unwrap();
            answer
        });
        Self {
            port: port.unwrap(),
            asked,
        }
    }

    pub(crate) fn asked(&self) -> Vec<Asked> {
        self.asked.lock().clone()
    }

    pub(crate) fn wait(&self, count: usize) -> Vec<Asked> {
        wait_for("the master to be asked", || {
            Some(self.asked()).filter(|asked| asked.len() >= count)
        })
    }
}

fn reply(load: &Value, seen: &Mutex<Vec<Asked>>) -> Value {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let (cmd, jid) = (text(&load["cmd"]), text(&load["jid"]));
    let first = match (cmd.as_str(), &load["kwarg"]["arg"][0]) {
        ("publish", _) => &load["arg"][0],
        // Keyword arguments, if there is no list.
        (_, Value::Nil) => &load["kwarg"]["kwarg"]["source"],
        (_, first) => first,
    };
    let tag = text(first);
    let asked = (
        cmd.clone(),
        text(&load["fun"]),
        tag.clone(),
        jid.clone(),
        text(&load["user"]),
    );
    let mut seen = seen.lock();
    let times = seen
        .iter()
        .filter(|(_, _, known, ..)| *known == tag)
        .count();
    seen.push(asked);
    // The first few answers to these are unreadable.
    if times < 2 && tag.starts_with("bad/") || times < 3 && tag.starts_with("worse/") {
        return "bad load".into();
    }
    assert_eq!(text(&load["key"]), "the key");
    match cmd.as_str() {
        "publish" => map(vec![(
            "load",
            map(vec![
                ("jid", jid.into()),
                ("minions", Value::Array(vec!["web1".into()])),
                ("missing", Value::Array(vec![])),
            ]),
        )]),
        "runner" => map(vec![("tag", "salt/run/77".into()), ("jid", "77".into())]),
        _ => map(vec![(
            "data",
            map(vec![
                ("jid", "88".into()),
                ("success", true.into()),
                ("return", "done".into()),
            ]),
        )]),
    }
}

/// A port without a listener.
fn closed_port() -> u16 {
    TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap()
        .port()
}

pub(crate) struct Lab {
    pub(crate) cellar: Cellar,
    bus: FakeBus,
    stream: UnixStream,
}

/// A daemon with these rules, files and options; `DIR` stands for its directory.
pub(crate) fn lab(port: u16, rules: &str, files: &[(&str, &str)], options: &str) -> Lab {
    lab_of(port, rules, files, options, "id: m\n")
}

/// As [`lab`], with these further options of the master.
pub(crate) fn lab_of(
    port: u16,
    rules: &str,
    files: &[(&str, &str)],
    options: &str,
    of_master: &str,
) -> Lab {
    let dir = tempfile::tempdir().unwrap();
    let at = dir.path().to_str().unwrap().to_owned();
    std::fs::create_dir_all(dir.path().join("cache")).unwrap();
    std::fs::write(dir.path().join("cache/.root_key"), "the key").unwrap();
    let master = format!(
        "interface: 127.0.0.1\nret_port: {port}\ncachedir: {at}/cache\nsock_dir: {at}\nuser: root\n{of_master}"
    );
    std::fs::write(dir.path().join("master"), master).unwrap();
    for (name, text) in files {
        std::fs::write(dir.path().join(name), text).unwrap();
    }
    let yaml = format!("bus: [DIR]\nreactor:\n  master: DIR/master\n  rules: {rules}\n{options}")
        .replace("DIR", &at);
    std::fs::write(dir.path().join("c.yaml"), yaml).unwrap();
    let bus = master_bus(dir.path());
    let cellar = Cellar::start_in(dir, &["--config", "DIR/c.yaml"]);
    let stream = bus.subscriber().unwrap();
    Lab {
        cellar,
        bus,
        stream,
    }
}

impl Lab {
    pub(crate) fn fire(&mut self, events: &[(String, Value)]) {
        let frame = |(tag, data): &(String, Value)| {
            let mut body = format!("{tag}\n\n").into_bytes();
            rmpv::encode::write_value(&mut body, data).unwrap();
            let frame = map(vec![("head", map(vec![])), ("body", Value::Binary(body))]);
            let mut bytes = Vec::new();
            rmpv::encode::write_value(&mut bytes, &frame).unwrap();
            bytes
        };
        publish(
            &mut self.stream,
            "plain",
            &events.iter().map(frame).collect::<Vec<_>>(),
        );
    }

    pub(crate) fn fire_one(&mut self, tag: &str, id: &str) {
        self.fire(&[(
            tag.to_owned(),
            map(vec![("id", id.into()), ("user", "root".into())]),
        )]);
    }

    pub(crate) fn restart(&mut self) {
        self.cellar.restart();
        self.stream = self.bus.subscriber().unwrap();
    }

    /// Changes the port in the master's configuration.
    fn has_moved(&self, from: u16, to: u16) {
        let path = self.cellar.dir.path().join("master");
        let text = std::fs::read_to_string(&path).unwrap();
        std::fs::write(path, text.replace(&from.to_string(), &to.to_string())).unwrap();
    }

    pub(crate) fn history(&self) -> Vec<Value> {
        let answer = self
            .cellar
            .ask("reactor_history", vec![("limit", 1000.into())]);
        answer["reactions"].as_array().unwrap().clone()
    }

    pub(crate) fn open(&self) -> u64 {
        let list = self.cellar.ask("reactor_list", vec![]);
        ["behind", "waiting", "open"]
            .iter()
            .map(|name| list[*name].as_u64().unwrap())
            .sum()
    }
}

pub(crate) const LEGACY: &str = "ping {{ data['id'] }}:\n  local.test.arg:\n    - tgt: {{ data['id'] }}\n    - arg:\n      - {{ tag }}\n";

#[test]
fn an_event_on_the_bus_becomes_a_job_with_history() {
    let master = FakeMaster::start();
    let runner = "run:\n  runner.test.arg:\n    - arg: [{{ tag }}]\n    - kwarg: {}\n";
    let files = [
        ("a.sls", LEGACY),
        ("r.sls", runner),
        ("bad.sls", "{{ nothing.here }}\n"),
    ];
    let rules = "[{'a/*': [DIR/a.sls]}, {'a/*': DIR/r.sls}, {'b/*': DIR/bad.sls}]";
    let mut lab = lab(master.port, rules, &files, "");
    lab.fire_one("a/1", "web1");
    let asked = master.wait(2);
    let seen: Vec<_> = asked
        .iter()
        .map(|(cmd, fun, arg, _, user)| [cmd, fun, arg, user].map(String::as_str))
        .collect();
    assert_eq!(
        seen,
        [
            ["publish", "test.arg", "a/1", "root"],
            ["runner", "test.arg", "a/1", "Reactor"]
        ]
    );
    let jid = asked[0].3.clone();
    wait_for("the record", || (lab.history().len() == 1).then_some(()));
    // The job returns; the history shows it.
    let ret = map(vec![
        ("id", "web1".into()),
        ("jid", jid.as_str().into()),
        ("fun", "test.arg".into()),
        ("retcode", 0.into()),
        ("success", true.into()),
        ("return", true.into()),
    ]);
    lab.fire(&[(format!("salt/job/{jid}/ret/web1"), ret)]);
    lab.fire(&[(
        "salt/run/77/ret".to_owned(),
        map(vec![
            ("jid", "77".into()),
            ("fun", "runner.test.arg".into()),
            ("success", true.into()),
            ("return", 5.into()),
        ]),
    )]);
    let number = lab.history()[0]["seq"].clone();
    let shown = wait_for("the results", || {
        let shown = lab
            .cellar
            .ask("reactor_show", vec![("seq", number.clone())]);
        (shown["results"][0]["returned"] == 1.into()
            && shown["results"][1]["success"] == true.into())
        .then_some(shown)
    });
    let record = &shown["reaction"];
    assert_eq!(record["state"], "done".into());
    assert_eq!(record["calls"][0]["outcome"], "published".into());
    assert_eq!(record["calls"][0]["jid"], jid.as_str().into());
    assert!(
        record["files"][0][1].as_str().unwrap().contains("- a/1"),
        "{record}"
    );
    assert_eq!(shown["results"][1]["return"], 5.into());
    // The result equals that of `jobs show`, also for a job of several functions.
    let strs = |key: &str, items: [(&str, Value); 2]| (key.to_owned(), map(items.to_vec()));
    let several: Vec<(String, Value)> = vec![
        ("id".to_owned(), "web2".into()),
        ("jid".to_owned(), jid.as_str().into()),
        (
            "fun".to_owned(),
            crate::harness::list(["test.arg", "test.false"]),
        ),
        strs(
            "retcode",
            [("test.arg", 0.into()), ("test.false", 1.into())],
        ),
        strs(
            "success",
            [("test.arg", true.into()), ("test.false", false.into())],
        ),
        strs(
            "return",
            [("test.arg", true.into()), ("test.false", false.into())],
        ),
    ];
    let several = Value::Map(
        several
            .into_iter()
            .map(|(key, value)| (key.into(), value))
            .collect(),
    );
    lab.fire(&[(format!("salt/job/{jid}/ret/web2"), several)]);
    wait_for("the second return", || {
        let shown = lab
            .cellar
            .ask("reactor_show", vec![("seq", number.clone())]);
        (shown["results"][0]["returned"] == 2.into()).then(|| {
            assert_eq!(shown["results"][0]["failed"], 1.into(), "{shown}");
        })
    });
    // It is also found by the event's sequence number.
    let by_event = lab
        .cellar
        .ask("reactor_show", vec![("seq", record["event"].clone())]);
    assert_eq!(by_event["seq"], number);
    let why = lab.cellar.ask("reactor_why", vec![("tag", "a/1".into())]);
    assert_eq!(
        (
            why["rules"][0].as_str(),
            why["reactions"].as_array().unwrap().len()
        ),
        (Some("a/*"), 1)
    );
    // A broken file is logged and counted, and does not affect others.
    lab.fire_one("b/1", "web1");
    lab.fire_one("a/2", "web1");
    master.wait(4);
    wait_for("all to be through", || (lab.open() == 0).then_some(()));
    assert!(lab.cellar.counter("reactor_errors") > 0);
    lab.cellar.logged("bad.sls");
    let counted = ["reactions_done", "reactions_failed"].map(|name| lab.cellar.counter(name));
    assert_eq!(counted, [2, 1]);
}

#[test]
fn a_master_that_answers_bad_load_is_retried_and_nothing_is_lost() {
    let master = FakeMaster::start();
    let options = "  options:\n  - {rule: '*', tries: 3, backoff: 1s}\n";
    let mut lab = lab(
        master.port,
        "[{'*': DIR/a.sls}]",
        &[("a.sls", LEGACY)],
        options,
    );
    lab.fire_one("bad/1", "web1");
    lab.fire_one("worse/1", "web2");
    let history = wait_for("both records", || {
        Some(lab.history()).filter(|history| history.len() == 2)
    });
    let of = |tag: &str| history.iter().find(|row| row["tag"] == tag.into()).unwrap();
    let call = |tag: &str| of(tag)["reaction"]["calls"][0].clone();
    assert_eq!(
        (
            of("bad/1")["reaction"]["state"].as_str(),
            call("bad/1")["tries"].as_u64()
        ),
        (Some("done"), Some(3))
    );
    // Dead-lettered after the tries of its rule, with the master's message; a replay succeeds.
    assert_eq!(
        (
            of("worse/1")["reaction"]["state"].as_str(),
            call("worse/1")["tries"].as_u64()
        ),
        (Some("dead"), Some(3))
    );
    assert!(
        call("worse/1")["why"]
            .as_str()
            .unwrap()
            .contains("bad load"),
        "{}",
        call("worse/1")
    );
    lab.cellar.logged("call failed, retrying");
    lab.cellar.logged("see the master's log");
    assert_eq!(lab.cellar.counter("reactor_calls_dead"), 1);
    lab.cellar.ask(
        "reactor_replay",
        vec![("seq", of("worse/1")["seq"].clone())],
    );
    master.wait(7);
    wait_for("the third record", || {
        (lab.history().len() == 3).then_some(())
    });
    assert_eq!(lab.history()[0]["reaction"]["state"], "done".into());
}

#[test]
fn a_kill_while_the_master_is_down_leaves_no_call_in_unknown_state() {
    let port = closed_port();
    let options = "  options:\n  - {rule: 'once/*', at_most_once: true}\n";
    let mut lab = lab(
        port,
        "[{'once/*': DIR/a.sls}]",
        &[("a.sls", LEGACY)],
        options,
    );
    let event = |n| {
        (
            format!("once/{n}"),
            map(vec![("id", format!("web{n}").into())]),
        )
    };
    lab.fire(&(0..40).map(event).collect::<Vec<_>>());
    // Each has been tried and is waiting.
    wait_for("the tries", || {
        (lab.cellar.counter("master_connects") > 80).then_some(())
    });
    lab.cellar.kill();
    let master = FakeMaster::start();
    lab.has_moved(port, master.port);
    lab.restart();
    wait_for("all to be through", || (lab.open() == 0).then_some(()));
    let mut asked: Vec<_> = master
        .asked()
        .into_iter()
        .map(|(_, _, tag, ..)| tag)
        .collect();
    asked.sort();
    let mut expected: Vec<_> = (0..40).map(|n| format!("once/{n}")).collect();
    expected.sort();
    assert_eq!(asked, expected);
}

#[test]
fn a_disconnected_event_bus_does_not_use_up_tries() {
    let port = closed_port();
    let mut lab = lab(port, "[{'a/*': DIR/a.sls}]", &[("a.sls", LEGACY)], "");
    lab.fire_one("a/1", "web1");
    wait_for("a try", || {
        (lab.cellar.counter("master_connects") > 0).then_some(())
    });
    // The request port of the master is reachable, its publisher is not.
    lab.cellar.kill();
    std::fs::remove_file(lab.cellar.dir.path().join("master_event_pub.ipc")).unwrap();
    let master = FakeMaster::start();
    lab.has_moved(port, master.port);
    lab.cellar.restart();
    wait_for("the master to be away", || {
        let list = lab.cellar.ask("reactor_list", vec![]);
        (list["master_unreachable"] == true.into()).then_some(())
    });
    assert_eq!(master.asked(), []);
    lab.bus = master_bus(lab.cellar.dir.path());
    lab.stream = lab.bus.subscriber().unwrap();
    assert_eq!(master.wait(1).len(), 1);
    wait_for("the record", || (lab.history().len() == 1).then_some(()));
    assert_eq!(
        lab.history()[0]["reaction"]["calls"][0]["tries"].as_u64(),
        Some(1)
    );
}

#[test]
fn kills_lose_no_reactions_and_repeat_no_runner() {
    // The master is down at first.
    let port = closed_port();
    let options = "  options:\n  - {rule: 'once/*', at_most_once: true}\n";
    let mut lab = lab(
        port,
        "[{'a/*': DIR/a.sls}, {'once/*': DIR/a.sls}]",
        &[("a.sls", LEGACY)],
        options,
    );
    let events: Vec<_> = (0..200)
        .flat_map(|n| ["a", "once"].map(|kind| format!("{kind}/{n}")))
        .enumerate()
        .map(|(n, tag)| (tag, map(vec![("id", format!("web{}", n % 7).into())])))
        .collect();
    lab.fire(&events);
    wait_for("the events to be on disk", || {
        (lab.cellar.counter("reactor_events") == 400).then_some(())
    });
    lab.cellar.kill();
    // Killed repeatedly while it works through the backlog.
    let master = FakeMaster::start();
    lab.has_moved(port, master.port);
    for count in [20, 90, 200] {
        lab.restart();
        master.wait(count);
        lab.cellar.kill();
    }
    lab.restart();
    wait_for("all to be through", || (lab.open() == 0).then_some(()));
    let mut times: HashMap<String, (u32, Vec<String>)> = HashMap::new();
    for (_, _, tag, jid, _) in master.asked() {
        let of_tag = times.entry(tag).or_default();
        of_tag.0 += 1;
        of_tag.1.push(jid);
    }
    let unknown = lab.cellar.ask(
        "reactor_history",
        vec![("limit", 1000.into()), ("state", "dead".into())],
    );
    let unknown = unknown["reactions"].as_array().unwrap().len();
    for n in 0..200 {
        let (_, jids) = times
            .get(&format!("a/{n}"))
            .unwrap_or_else(|| panic!("a/{n} was lost"));
        assert!(
            jids.iter().all(|jid| *jid == jids[0]),
            "one job, however often it was asked for"
        );
    }
    let once: Vec<u32> = (0..200)
        .filter_map(|n| times.get(&format!("once/{n}")).map(|(times, _)| *times))
        .collect();
    assert!(once.iter().all(|times| *times == 1), "{once:?}");
    assert!(
        once.len() + unknown >= 200,
        "{} made, {unknown} unknown",
        once.len()
    );
    assert!(
        unknown <= 3 * 16,
        "no more than were under way at each kill: {unknown}"
    );
}

#[test]
fn rejected_calls_are_dead_lettered_and_replayed_from_the_command_line() {
    let master = FakeMaster::start();
    let options = "  allow: [{client: runner, fun: '*'}]\n";
    let mut lab = lab(
        master.port,
        "[{'a/*': DIR/a.sls}]",
        &[("a.sls", LEGACY)],
        options,
    );
    lab.fire_one("a/1", "web1");
    wait_for("the record", || (lab.history().len() == 1).then_some(()));
    assert_eq!(
        lab.history()[0]["reaction"]["calls"][0]["outcome"],
        "dead".into()
    );
    let run = |words: &[&str]| {
        let out = crate::fake_daemon::program()
            .args(words)
            .arg("--socket")
            .arg(lab.cellar.socket())
            .output()
            .unwrap();
        (
            String::from_utf8(out.stdout).unwrap() + &String::from_utf8(out.stderr).unwrap(),
            out.status.code(),
        )
    };
    let (history, _) = run(&["reactor", "history", "--state", "dead"]);
    assert!(history.contains("local.test.arg web1: dead"), "{history}");
    let of = |minion: &str| run(&["reactor", "history", "--minion", minion]).0;
    assert!(of("w?b*").contains("a/1"), "{}", of("w?b*"));
    assert!(!of("db*").contains("a/1"), "{}", of("db*"));
    let number = lab.history()[0]["seq"].to_string();
    let (shown, _) = run(&["reactor", "show", &number]);
    assert!(shown.contains("does not permit local test.arg"), "{shown}");
    let (why, _) = run(&["reactor", "why", "a/1"]);
    assert!(why.contains("matched by a/*"), "{why}");
    let (list, _) = run(&["reactor", "rules"]);
    assert!(list.contains("active;") && list.contains("a.sls"), "{list}");
    let (replayed, code) = run(&["reactor", "replay", &number]);
    assert_eq!(
        (replayed.as_str(), code),
        (
            format!("1 calls of {number} are being repeated\n").as_str(),
            Some(0)
        )
    );
    wait_for("the record of the replay", || {
        (lab.history().len() == 2).then_some(())
    });
    assert_eq!(master.asked().len(), 0, "it is still not allowed");
    let (nothing, code) = run(&["reactor", "replay", "99999"]);
    assert!(
        nothing.contains("no reaction with the number 99999") && code == Some(1),
        "{nothing}"
    );
}

#[test]
fn a_master_with_its_own_rules_causes_shadow_mode() {
    let master = FakeMaster::start();
    let mut lab = lab(
        master.port,
        "[{'a/*': DIR/a.sls}]",
        &[("a.sls", LEGACY)],
        "",
    );
    let conf = lab.cellar.dir.path().join("master");
    let plain = std::fs::read_to_string(&conf).unwrap();
    std::fs::write(&conf, format!("{plain}reactor:\n  - 'x': /x.sls\n")).unwrap();
    let shadow = |lab: &Lab, wanted: bool| {
        wait_for("the change", || {
            (lab.cellar.ask("reactor_list", vec![])["shadow"] == wanted.into()).then_some(())
        });
    };
    shadow(&lab, true);
    lab.cellar.logged("Salt's reactor runs on this master");
    lab.fire_one("a/1", "web1");
    wait_for("the record", || (lab.history().len() == 1).then_some(()));
    assert_eq!(
        lab.history()[0]["reaction"]["calls"][0]["outcome"],
        "shadowed".into()
    );
    // An unreadable file changes nothing.
    std::fs::write(&conf, "reactor: [\n").unwrap();
    lab.cellar
        .logged("changed reactor configuration invalid, keeping the previous one: correct the master's configuration (`saltcellar reactor rules` shows the error)");
    std::fs::write(&conf, plain).unwrap();
    shadow(&lab, false);
    lab.fire_one("a/2", "web1");
    assert_eq!(master.wait(1)[0].2, "a/2");
}

#[test]
fn without_a_reactor_its_calls_are_errors() {
    let cellar = Cellar::start();
    let error = cellar.call("reactor_list", vec![]).unwrap_err().to_string();
    assert!(error.contains("reactor.master"), "{error}");
    assert_eq!(
        cellar.ask("reactor_history", vec![])["reactions"],
        Value::Array(vec![])
    );
}

#[test]
fn a_search_for_a_rare_state_takes_several_calls_that_each_state_where_they_ended() {
    let dir = tempfile::tempdir().unwrap();
    // One reaction that failed, and behind it more than one call looks at.
    store_unchecked(&dir.path().join("state"), |batch| {
        let large = "x".repeat(2 * 1024 * 1024);
        for n in 0..40_u64 {
            let state = if n == 3 { "dead" } else { "done" };
            let body = map(vec![
                ("event", n.into()),
                ("state", state.into()),
                ("notes", large.as_str().into()),
            ]);
            let mut packed = Vec::new();
            rmpv::encode::write_value(&mut packed, &body).unwrap();
            let tag = format!("saltcellar/reaction/test/{n}");
            let entry = Entry {
                kind: Kind::Reaction,
                source: Source::Reactor,
                origin: "",
                number: 0,
                flags: Flags::REACTION,
                at: Clock::real().now(),
                tag: tag.as_bytes(),
                jid: "",
                minion: "",
                fun: "",
                retcode: 0,
                body: &packed,
            };
            batch.push(&entry, None);
        }
    });
    let cellar = Cellar::start_in(dir, &[]);

    let (mut cursor, mut pages, mut found) = (Value::Nil, 0, Vec::new());
    loop {
        let args = vec![("state", "dead".into()), ("limit", 5.into())];
        let args = [args, vec![("cursor", cursor.clone())]].concat();
        let page = cellar.ask("reactor_history", args);
        found.extend(page["reactions"].as_array().unwrap().clone());
        pages += 1;
        assert_eq!(page["more"].as_bool(), Some(page["next"] != Value::Nil));
        if page["next"] == Value::Nil {
            break;
        }
        cursor = page["next"].clone();
    }
    assert!(pages > 1, "one call must not search everything");
    assert_eq!(found.len(), 1);
    assert_eq!(found[0]["tag"], "test/3".into());

    let listed = program()
        .arg("--socket")
        .arg(cellar.socket())
        .args(["reactor", "history", "--state", "dead", "--output", "json"])
        .output()
        .unwrap();
    let listed: serde_json::Value = serde_json::from_slice(&listed.stdout).unwrap();
    assert_eq!(listed["reactions"][0]["tag"], "test/3");
    assert_eq!(
        (
            listed["more"].as_bool(),
            listed["reactions"].as_array().unwrap().len()
        ),
        (Some(false), 1)
    );
}
