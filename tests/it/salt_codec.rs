//! Values that Salt's codec cannot read: replaced in returns, rejected elsewhere by every source, and replaced in responses if already
//! stored.

use std::path::Path;

use rmpv::Value;
use saltcellar::base::clock::{Clock, Micros};
use saltcellar::model::{Batch, Entry, Flags, Kind, Source};
use saltcellar::wire::salt_event::event_entry;

use crate::bus_outages::frame;
use crate::fake_daemon::{program, stdout};
use crate::harness::{Asks as _, Cellar, list, map, master_bus, publish, wait_for};

const JID: &str = "20261121030955505683";

/// One value of each kind that made the enclosing answer unreadable.
pub(crate) fn attacks() -> Vec<(&'static str, Value)> {
    vec![
        ("ext -1 is not a timestamp", Value::Ext(-1, vec![0; 5])),
        (
            "ext 78 is not a date",
            Value::Ext(78, b"yesterday".to_vec()),
        ),
        (
            "ext 79 is not a constant",
            Value::Ext(79, b"\xc1garbage".to_vec()),
        ),
        (
            "a map key is an array",
            Value::Map(vec![(list(["a", "b"]), 1.into())]),
        ),
        (
            "nested deeper than 512",
            (0..1100).fold(Value::Nil, |inner, _| Value::Array(vec![inner])),
        ),
    ]
}

/// A return of `JID`, with `odd` in its arguments and its value.
pub(crate) fn returned(minion: &str, odd: &Value) -> Value {
    map(vec![
        ("id", minion.into()),
        ("jid", JID.into()),
        ("fun", "test.echo".into()),
        ("fun_args", Value::Array(vec![odd.clone()])),
        (
            "return",
            map(vec![("odd", odd.clone()), ("even", "kept".into())]),
        ),
        ("retcode", 0.into()),
        ("success", true.into()),
    ])
}

fn packed(value: &Value) -> Vec<u8> {
    let mut bytes = Vec::new();
    rmpv::encode::write_value(&mut bytes, value).unwrap();
    bytes
}

#[test]
fn a_value_unreadable_to_salt_is_replaced_in_a_return_and_rejected_elsewhere() {
    let cellar = Cellar::start();
    cellar.ask("returner", vec![("load", returned("good", &"fine".into()))]);
    let mut rejected = 0;
    for (words, odd) in attacks() {
        for replay in [false, true] {
            let load = returned("bad", &odd);
            let event = map(vec![("tag", "test/bad".into()), ("data", load.clone())]);
            let good = map(vec![
                ("tag", "test/good".into()),
                ("data", map(vec![("n", rejected.into())])),
            ]);
            // A return is stored without the value.
            cellar.ask(
                "returner",
                vec![("load", load.clone()), ("replay", replay.into())],
            );
            for (call, args) in [
                (
                    "save_load",
                    vec![("jid", "20261121030955505684".into()), ("load", load)],
                ),
                (
                    "save_minions",
                    vec![
                        ("jid", JID.into()),
                        ("minions", list(["a"])),
                        ("syndic_id", odd.clone()),
                    ],
                ),
                ("save_reg", vec![("data", odd.clone())]),
            ] {
                let args = [args, vec![("replay", replay.into())]].concat();
                let error = cellar.call(call, args).unwrap_err().to_string();
                assert!(
                    error.contains("Salt's codec cannot read the data") && error.contains(words),
                    "{call}: {error}"
                );
                rejected += 1;
            }
            // It is not fired either: the error differs from that of a missing bus.
            let data = map(vec![("odd", odd.clone())]);
            let fired = cellar.call(
                "event_send",
                vec![("tag", "test/bad".into()), ("data", data)],
            );
            let error = fired.unwrap_err().to_string();
            assert!(
                error.contains("Salt's codec cannot read the data") && error.contains(words),
                "{error}"
            );
            // The other events of a batch are stored.
            let events = Value::Array(vec![event.clone(), good, event]);
            let taken = cellar.ask(
                "event_return",
                vec![("events", events), ("replay", replay.into())],
            );
            assert_eq!(taken, 1.into(), "{words}");
            rejected += 2;
        }
    }
    assert_eq!(cellar.counter("entries_rejected_unreadable"), rejected);
    assert_eq!(
        cellar.counter("returns_repaired"),
        2 * attacks().len() as u64
    );
    let job = cellar.ask("get_jid", vec![("jid", JID.into())]);
    assert_eq!(job.as_map().unwrap().len(), 2, "{job}");
    assert_eq!(job["bad"]["return"]["even"].as_str(), Some("kept"));
    let marked = job["bad"]["return"]["odd"].to_string();
    assert!(marked.contains("<unreadable: ext -1"), "{marked}");
    assert_eq!(cellar.ask("get_jids", vec![]).as_map().unwrap().len(), 1);
    assert_eq!(cellar.ask("load_reg", vec![]), Value::Nil);
    cellar.logged("entry rejected and not stored, Salt's codec cannot read its data");
}

#[test]
fn a_return_on_a_bus_that_is_unreadable_to_salt_in_part_is_stored_and_counted() {
    let dir = tempfile::tempdir().unwrap();
    let bus = master_bus(dir.path());
    let cellar = Cellar::start_with(&["--bus", dir.path().to_str().unwrap()]);
    let mut to = bus.subscriber().unwrap();
    let bad: Vec<_> = attacks()
        .iter()
        .map(|(_, odd)| frame(&format!("salt/job/{JID}/ret/bad"), &returned("bad", odd)))
        .collect();
    publish(&mut to, "len32", &bad);
    publish(
        &mut to,
        "len32",
        &[frame(
            &format!("salt/job/{JID}/ret/good"),
            &returned("good", &"fine".into()),
        )],
    );
    let job = wait_for("the good return", || {
        let job = cellar.ask("get_jid", vec![("jid", JID.into())]);
        (job["good"] != Value::Nil).then_some(job)
    });
    assert_eq!(job["bad"]["return"]["even"].as_str(), Some("kept"), "{job}");
    assert_eq!(cellar.counter("returns_repaired"), attacks().len() as u64);
    assert_eq!(cellar.counter("entries_rejected_unreadable"), 0);
    assert_eq!(cellar.counter("bus_events_lost"), 0);
}

/// Stores entries past all checks, as a source with a mistake would.
pub(crate) fn store_unchecked(state_dir: &Path, fill: impl FnOnce(&mut Batch)) {
    let options = saltcellar::daemon::store_options(
        &saltcellar::config::Config::for_state_dir(state_dir, "/s"),
        "the test".to_owned(),
        Clock::real(),
    );
    let opened = saltcellar::store::Store::open(&options).unwrap();
    let mut batch = Batch::default();
    fill(&mut batch);
    let (sender, receiver) = std::sync::mpsc::sync_channel(1);
    let done: saltcellar::store::Done = Box::new(move |outcome| sender.send(outcome).unwrap());
    let saltcellar::store::Opened {
        store,
        intake,
        appender,
        committer,
        sealer,
        retainer,
    } = opened;
    std::thread::scope(|threads| {
        threads.spawn(|| appender.run());
        threads.spawn(|| committer.run());
        threads.spawn(|| sealer.run());
        threads.spawn(|| retainer.run());
        intake.submit(batch, Some(done)).unwrap();
        receiver
            .recv_timeout(std::time::Duration::from_secs(30))
            .unwrap()
            .unwrap();
        drop((store, intake));
    });
}

/// A store with one good return and one bad one for each attack, a load of each kind, and an event whose data is not msgpack.
fn store_with_unreadable_values() -> Cellar {
    let dir = tempfile::tempdir().unwrap();
    store_unchecked(&dir.path().join("state"), |batch| {
        fn of_call<'a>(kind: Kind, jid: &'a str, body: &'a [u8], at: Micros) -> Entry<'a> {
            Entry {
                kind,
                source: Source::Returner,
                origin: "",
                number: 0,
                flags: Flags::default(),
                at,
                tag: b"",
                jid,
                minion: "",
                fun: "",
                retcode: 0,
                body,
            }
        }
        let at = Micros(1_795_230_595_505_683);
        let mut of_minion = |minion: &str, odd: &Value| {
            let (tag, body) = (
                format!("salt/job/{JID}/ret/{minion}"),
                packed(&returned(minion, odd)),
            );
            let entry = of_call(Kind::Return, JID, &body, at);
            let flags = Flags::ON_BUS;
            batch.push(
                &Entry {
                    tag: tag.as_bytes(),
                    minion,
                    fun: "test.echo",
                    flags,
                    ..entry
                },
                None,
            );
        };
        of_minion("good", &"fine".into());
        for (n, (_, odd)) in attacks().iter().enumerate() {
            of_minion(&format!("bad{n}"), odd);
        }
        for (jid, (_, odd)) in [
            "20261121030955505690",
            "20261121030955505691",
            "20261121030955505692",
        ]
        .iter()
        .zip(attacks())
        {
            let load = map(vec![
                ("jid", (*jid).into()),
                ("fun", "test.echo".into()),
                ("tgt", "*".into()),
                ("arg", Value::Array(vec![odd, "kept".into()])),
            ]);
            let body = packed(&Value::Array(vec![load, list(["good"])]));
            batch.push(&of_call(Kind::Load, jid, &body, at), None);
        }
        batch.push(
            &of_call(
                Kind::Register,
                "",
                &packed(&map(vec![("odd", attacks()[0].1.clone())])),
                at,
            ),
            None,
        );
        batch.push(
            &event_entry(
                b"salt/job/20261121030955505690/prog/good/1",
                b"\x82\xa1",
                Source::Bus,
                at,
            ),
            None,
        );
        batch.push(&event_entry(b"broken", b"\x82\xa1", Source::Bus, at), None);
    });
    Cellar::start_on(dir)
}

#[test]
fn only_a_stored_value_unreadable_to_salt_is_replaced() {
    let cellar = store_with_unreadable_values();
    let job = cellar.ask("get_jid", vec![("jid", JID.into())]);
    assert_eq!(job.as_map().unwrap().len(), 1 + attacks().len(), "{job}");
    assert_eq!(job["good"]["return"]["odd"], "fine".into());
    let full = cellar.ask("get_jid", vec![("jid", JID.into()), ("full", true.into())]);
    for (n, (words, odd)) in attacks().into_iter().enumerate() {
        let minion = format!("bad{n}");
        assert_eq!(
            job[minion.as_str()]["return"]["even"],
            "kept".into(),
            "{minion}"
        );
        assert_eq!(job[minion.as_str()]["retcode"], 0.into(), "{minion}");
        for shown in [
            &job[minion.as_str()]["return"]["odd"],
            &full[minion.as_str()]["fun_args"][0],
        ] {
            match &odd {
                Value::Ext(..) => {
                    let shown = shown.as_str().unwrap();
                    assert!(
                        shown.starts_with("<unreadable: ") && shown.contains(words),
                        "{shown}"
                    );
                }
                // The extension reads a key of any type.
                Value::Map(_) => assert_eq!(shown, &odd),
                _ => assert!(
                    shown.to_string().contains("<unreadable: nested deeper"),
                    "{shown}"
                ),
            }
        }
    }
    let jobs = cellar.ask("get_jids", vec![]);
    assert_eq!(jobs.as_map().unwrap().len(), 4, "{jobs}");
    assert_eq!(jobs["20261121030955505690"]["Arguments"][1], "kept".into());
    assert!(
        jobs["20261121030955505690"]["Arguments"][0]
            .as_str()
            .unwrap()
            .starts_with("<unreadable: ")
    );
    assert_eq!(
        cellar
            .ask("get_jids_filter", vec![("count", 9.into())])
            .as_array()
            .unwrap()
            .len(),
        4
    );
    assert_eq!(
        cellar.ask("get_load", vec![("jid", "20261121030955505691".into())])["arg"][1],
        "kept".into()
    );
    assert!(
        cellar.ask("load_reg", vec![])["odd"]
            .as_str()
            .unwrap()
            .starts_with("<unreadable: ")
    );
    let events = cellar.ask("events_list", vec![("limit", 100.into())]);
    assert_eq!(
        events["events"].as_array().unwrap().len(),
        3 + attacks().len()
    );
    for (call, args) in [
        (
            "get_fun",
            vec![("fun", "test.echo".into()), ("full", true.into())],
        ),
        ("job_show", vec![("jid", JID.into())]),
        ("job_states", vec![("jid", JID.into())]),
        ("jobs_list", vec![]),
        ("entries", vec![("all", true.into())]),
        (
            "job_watch",
            vec![("jid", JID.into()), ("wait_ms", 0.into())],
        ),
        (
            "job_watch",
            vec![
                ("jid", "20261121030955505690".into()),
                ("wait_ms", 0.into()),
            ],
        ),
        (
            "job_diff",
            vec![
                ("jid", "20261121030955505691".into()),
                ("with", "20261121030955505690".into()),
            ],
        ),
    ] {
        assert_ne!(cellar.ask(call, args), Value::Nil, "{call}");
    }
    for verb in [
        &["jobs", "show", JID][..],
        &["jobs", "list"],
        &["jobs", "show", JID, "--format", "salt"],
        &["jobs", "show", JID, "--format", "highstate"],
        &["jobs", "show", JID, "--output", "json"],
        &["events", "list", "--output", "jsonl"],
    ] {
        let output = program()
            .arg("--socket")
            .arg(cellar.socket())
            .args(verb)
            .output()
            .unwrap();
        assert!(
            output.status.success(),
            "{verb:?}: {}",
            String::from_utf8_lossy(&output.stderr)
        );
        let is_of_job = verb.contains(&JID);
        assert!(
            !is_of_job || stdout(&output).contains("good"),
            "{verb:?}: {}",
            stdout(&output)
        );
    }
}
