//! Salt's calls: stored, rejected and read entries.

use crate::api::client::ClientError;
use crate::base::clock::Clock;
use crate::daemon::in_process::{Cellar, list, map};
use crate::model::JidKey;
use crate::model::{Batch, Source};
use crate::testkit::entries::{Asks as _, ping, pong};
use crate::wire::salt_event::{PeerMark, read_event};
use proptest::prelude::*;
use proptest::test_runner::TestRunner;
use rmpv::Value;

const JID: &str = "20261121030955505683";

fn answer(minion: &str, value: Value) -> Value {
    pong(JID, minion, value)
}

fn code(result: Result<Value, ClientError>) -> String {
    match result {
        Err(ClientError::Refused { code, .. }) => code,
        other => panic!("{other:?}"),
    }
}

/// What `_store_job` does for each return: `save_load` with the return as load, then `returner`.
fn store_job(cellar: &Cellar, load: &Value) {
    cellar.ask(
        "save_load",
        vec![("jid", JID.into()), ("load", load.clone())],
    );
    cellar.ask("returner", vec![("load", load.clone())]);
}

#[test]
fn return_loads_never_replace_the_published_load() {
    let cellar = Cellar::start();
    let minions = list(["web1", "db1"]);
    cellar.ask(
        "save_load",
        vec![
            ("jid", JID.into()),
            ("load", ping(JID)),
            ("minions", minions),
        ],
    );
    store_job(&cellar, &answer("web1", true.into()));
    store_job(&cellar, &answer("db1", true.into()));
    let load = cellar.ask("get_load", vec![("jid", JID.into())]);
    assert_eq!(
        (&load["tgt"], &load["cmd"], &load["Minions"]),
        (&"*".into(), &"publish".into(), &list(["db1", "web1"]))
    );
    let row = &cellar.ask("get_jids", vec![])[JID];
    assert_eq!(
        (&row["Function"], &row["Target"], &row["Target-type"]),
        (&"test.ping".into(), &"*".into(), &"glob".into())
    );
    assert_eq!(
        (&row["Arguments"], &row["User"]),
        (&list(["a"]), &"root".into())
    );
    assert_eq!(row["Metadata"]["why"], "test".into());
    assert_eq!(row["StartTime"], "2026, Nov 21 03:09:55.505683".into());
    assert_eq!(
        cellar.counter("entries_stored"),
        3,
        "one load and two returns"
    );
}

#[test]
fn a_job_without_publish_is_listed_by_its_return() {
    let cellar = Cellar::start();
    store_job(&cellar, &answer("web1", 5.into()));
    let load = cellar.ask("get_load", vec![("jid", JID.into())]);
    assert_eq!(
        (&load["fun"], &load["return"]),
        (&"test.ping".into(), &5.into())
    );
    let row = &cellar.ask("get_jids_filter", vec![("count", 1.into())])[0];
    assert_eq!((&row["JID"], &row["Target"]), (&JID.into(), &"web1".into()));
    // A late publish takes precedence.
    cellar.ask(
        "save_load",
        vec![
            ("jid", JID.into()),
            ("load", ping(JID)),
            ("minions", Value::Nil),
        ],
    );
    assert_eq!(
        cellar.ask("get_load", vec![("jid", JID.into())])["cmd"],
        "publish".into()
    );
}

#[test]
fn values_are_read_unchanged() {
    let cellar = Cellar::start();
    let awkward = Value::Map(vec![
        (1.into(), "int key".into()),
        ("1".into(), Value::Binary(vec![0x80, 0xff])),
        (Value::Nil, f64::INFINITY.into()),
        (
            "date".into(),
            Value::Ext(78, b"20260203T04:05:06.000789".to_vec()),
        ),
        ("big".into(), u64::MAX.into()),
        (
            "deep".into(),
            (0..60).fold(Value::Nil, |v, _| Value::Array(vec![v])),
        ),
    ]);
    cellar.ask("returner", vec![("load", answer("web1", awkward.clone()))]);
    assert_eq!(
        cellar.ask("get_jid", vec![("jid", JID.into())])["web1"]["return"],
        awkward
    );
}

#[test]
fn the_first_answer_counts_and_later_ones_are_history() {
    let cellar = Cellar::start();
    for value in [1, 1, 2] {
        cellar.ask("returner", vec![("load", answer("web1", value.into()))]);
    }
    assert_eq!(
        cellar.ask("get_jid", vec![("jid", JID.into())])["web1"]["return"],
        1.into()
    );
    let shown = cellar.ask("job_show", vec![("jid", JID.into())]);
    assert_eq!(shown["returns"][0]["duplicates"], 1.into());
    assert_eq!(cellar.counter("returns_differing"), 1);
}

#[test]
fn an_invalid_minion_id_is_rejected_and_counted() {
    let cellar = Cellar::start();
    let bad = [".", "..", "../../etc/passwd", "a/b", "a\\b", "a\0b"];
    for id in bad {
        assert_eq!(
            code(cellar.call("returner", vec![("load", answer(id, 1.into()))])),
            "refused",
            "{id:?}"
        );
    }
    assert_eq!(cellar.counter("calls_rejected"), bad.len() as u64);
    for id in ["a", "...", "a..b", "ž b"] {
        cellar.ask("returner", vec![("load", answer(id, 1.into()))]);
    }
}

#[test]
fn complete_returns_are_available_on_request() {
    let cellar = Cellar::start();
    cellar.ask("returner", vec![("load", answer("web1", 1.into()))]);
    cellar.ask("returner", vec![("load", answer("db1", 2.into()))]);
    let whole = map(vec![
        ("db1", answer("db1", 2.into())),
        ("web1", answer("web1", 1.into())),
    ]);
    assert_eq!(
        cellar.ask("get_jid", vec![("jid", JID.into()), ("full", true.into())]),
        whole
    );
    let fun = |full: bool| vec![("fun", "test.ping".into()), ("full", full.into())];
    assert_eq!(cellar.ask("get_fun", fun(true)), whole);
    assert_eq!(
        cellar.ask("get_fun", fun(false)),
        map(vec![("db1", JID.into()), ("web1", JID.into())])
    );
    assert_eq!(
        cellar.ask(
            "get_fun",
            vec![("fun", "test".into()), ("full", true.into())]
        ),
        map(vec![])
    );
}

#[test]
fn calls_without_a_job_id_are_rejected_and_counted() {
    let cellar = Cellar::start();
    let no_id = map(vec![("jid", JID.into()), ("return", 1.into())]);
    let no_jid = map(vec![("id", "web1".into()), ("return", 1.into())]);
    assert_eq!(
        code(cellar.call("returner", vec![("load", no_id)])),
        "refused"
    );
    assert_eq!(
        code(cellar.call("returner", vec![("load", no_jid)])),
        "refused"
    );
    for jid in ["req", "nocache", ""] {
        assert_eq!(
            code(cellar.call("save_load", vec![("jid", jid.into()), ("load", ping(JID))])),
            "refused"
        );
    }
    assert_eq!(cellar.counter("calls_rejected"), 5);
    assert_eq!(
        code(cellar.call("save_load", vec![("jid", JID.into())])),
        "bad_args"
    );
    assert_eq!(
        code(cellar.call("save_load", vec![("jid", true.into()), ("load", ping(JID))])),
        "bad_args"
    );
    assert_eq!(code(cellar.call("make_tea", vec![])), "unknown_call");
    assert_eq!(cellar.counter("entries_stored"), 0);
}

#[test]
fn unknown_jobs_answer_as_salt_expects() {
    let cellar = Cellar::start();
    let jid = || vec![("jid", JID.into())];
    assert_eq!(cellar.ask("get_load", jid()), map(vec![]));
    assert_eq!(cellar.ask("get_jid", jid()), map(vec![]));
    assert_eq!(cellar.ask("get_jids", vec![]), map(vec![]));
    assert_eq!(cellar.ask("get_endtime", jid()), false.into());
    assert_eq!(cellar.ask("load_reg", vec![]), Value::Nil);
    assert_eq!(cellar.ask("job_show", jid()), Value::Nil);
    assert_eq!(
        cellar.ask("get_fun", vec![("fun", "test.ping".into())]),
        map(vec![])
    );
}

#[test]
fn jids_are_generated_or_kept_and_are_unique() {
    let cellar = Cellar::start();
    let mut client = cellar.client();
    let mut made: Vec<String> = (0..500)
        .map(|_| {
            client
                .call("prep_jid", map(vec![]))
                .unwrap()
                .as_str()
                .unwrap()
                .to_owned()
        })
        .collect();
    assert!(
        made.iter()
            .all(|jid| jid.len() == 20 && jid.bytes().all(|b| b.is_ascii_digit()))
    );
    let odd = |jid: &&String| jid.ends_with(['1', '3', '5', '7', '9']);
    assert_eq!(
        made.iter().find(odd),
        None,
        "odd microseconds are the extension's"
    );
    made.sort();
    made.dedup();
    assert_eq!(made.len(), 500);
    assert_eq!(
        cellar.ask("prep_jid", vec![("passed_jid", "mine".into())]),
        "mine".into()
    );
}

#[test]
fn the_extension_gets_the_slot_of_the_jids_if_it_asks_for_it() {
    let ask = |cellar: &Cellar| cellar.ask("prep_jid", vec![("slot", true.into())]);

    let without = ask(&Cellar::start());
    assert_eq!(without["jid"].as_str().unwrap().len(), 20);
    assert_eq!(without["slot"], Value::Nil);

    let cellar = Cellar::start_configured("cluster.slot: 2/3\n");
    let (first, second) = (ask(&cellar), ask(&cellar));
    assert_eq!(first["slot"], "2/3".into());
    let time = |answer: &Value| {
        JidKey::of(answer["jid"].as_str().unwrap())
            .time()
            .unwrap()
            .0
    };
    assert_eq!([time(&first) % 6, time(&second) % 6], [2, 2]);
    assert!(time(&first) < time(&second));

    let alone = cellar.ask("prep_jid", vec![]);
    assert!(
        alone.is_str(),
        "older extensions get the jid alone: {alone}"
    );
    let status = cellar.ask("status", vec![]);
    assert_eq!(status["slot"], "2/3".into());
}

#[test]
fn a_job_with_nocache_keeps_its_load_and_shows_no_returns() {
    let cellar = Cellar::start();
    cellar.ask(
        "prep_jid",
        vec![("passed_jid", JID.into()), ("nocache", true.into())],
    );
    cellar.ask(
        "save_load",
        vec![
            ("jid", JID.into()),
            ("load", ping(JID)),
            ("minions", list(["web1"])),
        ],
    );
    cellar.ask("returner", vec![("load", answer("web1", 1.into()))]);
    assert_eq!(
        cellar.ask("get_jid", vec![("jid", JID.into())]),
        map(vec![])
    );
    assert_eq!(
        cellar.ask("get_load", vec![("jid", JID.into())])["tgt"],
        "*".into()
    );
}

#[test]
fn entries_spooled_twice_are_stored_once() {
    let cellar = Cellar::start();
    let at = crate::base::clock::Clock::real().now().0 - 3_600_000_000;
    let spooled = |mut args: Vec<(&'static str, Value)>| {
        args.extend([("at", at.into()), ("replay", true.into())]);
        args
    };
    let event =
        |tag: String, data| Value::Array(vec![map(vec![("tag", tag.into()), ("data", data)])]);
    cellar.ask("returner", vec![("load", answer("web1", 1.into()))]);
    cellar.ask(
        "returner",
        spooled(vec![("load", answer("web1", 1.into()))]),
    );
    let other = || event("a/b".to_owned(), map(vec![]));
    cellar.ask("event_return", vec![("events", other())]);
    cellar.ask("event_return", spooled(vec![("events", other())]));
    assert_eq!(cellar.counter("entries_stored"), 2);
    // Both sources have spooled the same return during an outage.
    let of_bus = event(format!("salt/job/{JID}/ret/db1"), answer("db1", 1.into()));
    cellar.ask("returner", spooled(vec![("load", answer("db1", 1.into()))]));
    cellar.ask("event_return", spooled(vec![("events", of_bus)]));
    assert_eq!(cellar.counter("entries_stored"), 3);
    assert_eq!(cellar.counter("duplicates_folded"), 3);
}

#[test]
fn equal_events_of_one_spooled_batch_are_all_stored_and_only_once() {
    let cellar = Cellar::start();
    let event = || {
        map(vec![
            ("tag", "a/b".into()),
            ("data", map(vec![("x", 1.into())])),
        ])
    };
    let at = crate::base::clock::Clock::real().now().0 - 3_600_000_000;
    let batch = || {
        let events = Value::Array(vec![event(), event(), event()]);
        vec![
            ("events", events),
            ("at", at.into()),
            ("replay", true.into()),
        ]
    };
    cellar.ask("event_return", batch());
    cellar.ask("event_return", batch());
    assert_eq!(cellar.counter("entries_stored"), 3);
}

#[test]
fn a_batch_of_events_is_stored_and_its_malformed_elements_are_counted() {
    let cellar = Cellar::start();
    let events = Value::Array(vec![
        map(vec![
            ("tag", "a/b".into()),
            ("data", map(vec![("x", 1.into())])),
        ]),
        map(vec![("data", map(vec![]))]),
        "no map".into(),
        map(vec![("tag", "a/c".into()), ("data", map(vec![]))]),
    ]);
    assert_eq!(
        cellar.ask("event_return", vec![("events", events)]),
        2.into()
    );
    assert_eq!(cellar.counter("event_return_malformed"), 2);
    let page = cellar.ask("events_list", vec![("limit", 1.into())]);
    assert_eq!(
        (&page["events"][0]["tag"], &page["more"]),
        (&"a/c".into(), &true.into())
    );
    let page = cellar.ask("events_list", vec![("tag", "*/b".into())]);
    assert_eq!(
        (&page["events"][0]["data"]["x"], &page["more"]),
        (&1.into(), &false.into())
    );
}

#[test]
fn an_entry_over_the_limit_is_refused_and_counted() {
    let cellar = Cellar::start();
    let giant = Value::Binary(vec![0; 64 * 1024 * 1024 + 1]);
    let mut load = ping(JID);
    if let Value::Map(pairs) = &mut load {
        pairs.push(("big".into(), giant.clone()));
    }
    assert_eq!(
        code(cellar.call("save_load", vec![("jid", JID.into()), ("load", load)])),
        "too_large"
    );
    assert_eq!(cellar.counter("entries_rejected_too_large"), 1);
    // A return is one all the same: only its value is left out.
    cellar.ask("returner", vec![("load", answer("db1", giant))]);
    assert_eq!(cellar.counter("returns_without_value"), 1);
    let large = answer("web1", Value::Binary(vec![7; 20 * 1024 * 1024]));
    cellar.ask("returner", vec![("load", large.clone())]);
    assert_eq!(
        cellar.ask("get_jid", vec![("jid", JID.into())])["web1"]["return"],
        large["return"]
    );
}

#[test]
fn oversized_names_are_rejected() {
    let cellar = Cellar::start();
    let long = "x".repeat(20_000);
    assert_eq!(
        code(cellar.call(
            "prep_jid",
            vec![
                ("passed_jid", long.as_str().into()),
                ("nocache", true.into())
            ]
        )),
        "bad_args"
    );
    let mut load = answer("web1", 1.into());
    if let Value::Map(pairs) = &mut load {
        pairs.retain(|(k, _)| k.as_str() != Some("fun"));
        pairs.push(("fun".into(), "f".repeat(1_000_000).into()));
    }
    cellar.ask("returner", vec![("load", load.clone())]);
    let shown = cellar.ask("job_show", vec![("jid", JID.into())]);
    assert_eq!(
        shown["returns"][0]["fun"], load["fun"],
        "unchanged in the body"
    );
}

#[test]
fn a_forged_event_does_not_replace_the_minions_return() {
    let cellar = Cellar::start();
    let event = |data: Value| {
        let tag = format!("salt/job/{JID}/ret/web1");
        vec![(
            "events",
            Value::Array(vec![map(vec![("tag", tag.into()), ("data", data)])]),
        )]
    };
    cellar.ask("event_return", event(answer("web1", "forged".into())));
    cellar.ask("event_return", event(answer("web1", "real".into())));
    cellar.ask("returner", vec![("load", answer("web1", "real".into()))]);
    assert_eq!(
        cellar.ask("get_jid", vec![("jid", JID.into())])["web1"]["return"],
        "real".into()
    );
    let events = cellar.ask("events_list", vec![]);
    assert_eq!(
        events["events"].as_array().unwrap().len(),
        2,
        "the archive contains the bus events once"
    );
}

/// An event on the bus of a master of a cluster; with a peer it is the event of that peer.
fn on_bus(cellar: &Cellar, tag: &str, mut data: Value, peer: Option<&str>) {
    if let (Value::Map(pairs), Some(peer)) = (&mut data, peer) {
        pairs.push(("__peer_id".into(), peer.into()));
    }
    let mut body = Vec::new();
    rmpv::encode::write_value(&mut body, &data).unwrap();
    let now = Clock::default().now();
    let event = read_event(tag.as_bytes(), &body, Source::Bus, now, PeerMark::Origin);
    cellar.store(Batch::of(&event.entry()));
}

/// A call that a master makes for an event of a peer.
fn mirror(cellar: &Cellar, call: &str, mut args: Vec<(&str, Value)>) {
    args.push(("mirrored", true.into()));
    cellar.ask(call, args);
}

fn publish_to(cellar: &Cellar, minions: [&str; 2]) {
    let load = vec![
        ("jid", JID.into()),
        ("load", ping(JID)),
        ("minions", list(minions)),
    ];
    cellar.ask("save_load", load);
}

#[test]
fn a_return_that_was_forged_is_confirmed_by_no_master_of_a_cluster() {
    let forged = || answer("web2", "forged".into());
    let tag = format!("salt/job/{JID}/ret/web2");
    let of_job = || vec![("jid", JID.into())];
    let confirmed = |cellar: &Cellar| {
        let args = [of_job(), vec![("confirmed", true.into())]].concat();
        cellar.ask("get_jid", args)
    };
    let show = |cellar: &Cellar| cellar.ask("job_show", of_job());

    // The master of the minion that fired it.
    let own = Cellar::start();
    publish_to(&own, ["web1", "web2"]);
    on_bus(&own, &tag, forged(), None);
    assert_eq!(confirmed(&own), map(vec![]));
    assert_eq!(show(&own)["not_confirmed"], list(["web2"]));

    // Each peer has it on its bus, and mirrors it; and may have published the job or not.
    for (publishes, bus, peer) in [true, false].into_iter().flat_map(|publishes| {
        let peers = [None, Some("master1")];
        [0, 1, 2]
            .into_iter()
            .flat_map(move |bus| peers.map(|peer| (publishes, bus, peer)))
    }) {
        let about = format!("published {publishes}, bus at {bus}, peer {peer:?}");
        let cellar = Cellar::start();
        if publishes {
            publish_to(&cellar, ["web1", "web2"]);
        }
        for n in 0..2 {
            if n == bus {
                on_bus(&cellar, &tag, forged(), Some("master1"));
            }
            if n == 0 {
                let mut args = vec![("load", forged())];
                args.extend(peer.map(|peer| ("master", peer.into())));
                mirror(&cellar, "save_load", [of_job(), args.clone()].concat());
                mirror(&cellar, "returner", args);
                mirror(
                    &cellar,
                    "update_endtime",
                    [of_job(), vec![("endtime", "x".into())]].concat(),
                );
            }
        }

        assert_eq!(confirmed(&cellar), map(vec![]), "{about}");
        assert_eq!(cellar.ask("get_endtime", of_job()), false.into(), "{about}");
        let job = show(&cellar);
        // Neither a bus nor a call has named the peer: it is known from a bus only.
        let is_known = bus < 2 || peer.is_some();
        if is_known || !publishes {
            let shown = &job["returns"][0];
            assert_eq!(shown["return"], "forged".into(), "{about}");
            assert_eq!(
                (&shown["verified"], &shown["bus_only"]),
                (&false.into(), &true.into()),
                "{about}"
            );
            assert_eq!(job["not_confirmed"], list([]), "{about}");
        } else {
            assert_eq!(job["not_confirmed"], list(["web2"]), "{about}");
        }
        if bus == 0 || peer.is_some() {
            assert_eq!(job["returns"][0]["master"], "master1".into(), "{about}");
            assert_eq!(
                cellar.counter("entries_stored"),
                1 + u64::from(publishes),
                "{about}"
            );
        }

        // The minion's own return.
        cellar.ask("returner", vec![("load", answer("web2", "real".into()))]);
        let job = show(&cellar);
        assert_eq!(
            confirmed(&cellar)["web2"]["return"],
            "real".into(),
            "{about}"
        );
        let shown = &job["returns"][0];
        assert_eq!(
            (&shown["return"], &shown["verified"]),
            (&"real".into(), &true.into()),
            "{about}"
        );
    }
}

#[test]
fn an_answer_is_one_of_a_peer_only_if_the_master_has_a_cluster() {
    let mut forged = answer("web2", "forged".into());
    if let Value::Map(pairs) = &mut forged {
        pairs.push(("__peer_id".into(), "master2".into()));
    }
    let tag = format!("salt/job/{JID}/ret/web2");
    let event = map(vec![("tag", tag.into()), ("data", forged)]);
    let of_job = || vec![("jid", JID.into())];

    // Without a configuration of a master nothing is known of a cluster.
    for (master, is_peers) in [
        (None, false),
        (Some("id: master1\n"), false),
        (Some("id: master1\ncluster_id: c\n"), true),
    ] {
        let about = format!("{master:?}");
        let mut cellar = Cellar::start();
        if let Some(master) = master {
            std::fs::write(cellar.dir.path().join("master"), master).unwrap();
        }
        cellar.configure("ingest: {masters: [DIR/master]}\n");
        cellar.restart();
        publish_to(&cellar, ["web1", "web2"]);

        let events = Value::Array(vec![event.clone()]);
        cellar.ask("event_return", vec![("events", events)]);

        let job = cellar.ask("job_show", of_job());
        let ignored = cellar.counter("event_peer_ids_ignored");
        let stored = cellar.ask("events_list", vec![("data", true.into())])["events"][0].clone();
        let marked = stored["data"]["__peer_id"].clone();
        if is_peers {
            assert_eq!(job["returns"][0]["verified"], false.into(), "{about}");
            assert_eq!(job["returns"][0]["master"], "master2".into(), "{about}");
            assert_eq!((ignored, stored["master"].as_str()), (0, Some("master2")));
            assert!(marked.is_nil(), "{about}");
        } else {
            assert_eq!(job["returns"], list([]), "{about}");
            assert_eq!(job["not_confirmed"], list(["web2"]), "{about}");
            assert_eq!(stored["master"].as_str(), master.and(Some("master1")));
            assert_eq!((ignored, marked), (1, "master2".into()), "{about}");
        }

        // The minion's own return has the same bytes on the bus and in the call, whichever is first.
        cellar.ask("returner", vec![("load", event["data"].clone())]);
        let job = cellar.ask("job_show", of_job());
        assert_eq!(job["returns"][0]["verified"], true.into(), "{about}");
        assert_ne!(job["returns"][0]["master"], "master2".into(), "{about}");
        let events = || {
            cellar.ask("events_list", vec![])["events"]
                .as_array()
                .unwrap()
                .len()
        };
        assert_eq!(events(), 1, "{about}");

        let mut other = answer("web1", true.into());
        if let Value::Map(pairs) = &mut other {
            pairs.push(("__peer_id".into(), "master2".into()));
        }
        cellar.ask("returner", vec![("load", other.clone())]);
        let tag = format!("salt/job/{JID}/ret/web1");
        let event = map(vec![("tag", tag.into()), ("data", other)]);
        cellar.ask("event_return", vec![("events", Value::Array(vec![event]))]);
        assert_eq!(
            (events(), cellar.counter("duplicates_folded")),
            (2, 1),
            "{about}"
        );
    }
}

#[test]
fn an_authenticated_return_is_one_of_this_master_whatever_its_minion_wrote_into_it() {
    let mut cellar = Cellar::start();
    let path = cellar.dir.path().join("master");
    std::fs::write(path, "id: master1\ncluster_id: c\n").unwrap();
    cellar.configure("ingest: {masters: [DIR/master]}\n");
    cellar.restart();
    publish_to(&cellar, ["web1", "web2"]);

    let Value::Map(mut load) = answer("web1", 1.into()) else {
        unreachable!("a return is a map")
    };
    load.push(("__peer_id".into(), "master2".into()));
    cellar.ask("returner", vec![("load", Value::Map(load))]);
    // Only imports and mirrored calls may state another master.
    let stated = vec![
        ("load", answer("web2", 1.into())),
        ("master", "master2".into()),
    ];
    cellar.ask("returner", stated);

    let of_job = || vec![("jid", JID.into())];
    let job = cellar.ask("job_show", of_job());
    for returned in job["returns"].as_array().unwrap() {
        assert_eq!(returned["verified"], true.into());
        assert!(returned["master"].is_nil(), "{job}");
    }
    let entries = cellar.ask("entries", of_job())["entries"].clone();
    let masters: Vec<_> = entries
        .as_array()
        .unwrap()
        .iter()
        .map(|entry| entry["master"].as_str().unwrap_or_default())
        .collect();
    assert_eq!(masters, ["master1"; 3]);
}

#[test]
fn a_mirrored_call_stores_no_load_and_its_minions_only_without_the_event_of_the_job() {
    let cellar = Cellar::start();
    let of_job = || ("jid", Value::from(JID));
    mirror(
        &cellar,
        "save_load",
        vec![of_job(), ("load", ping(JID)), ("minions", list(["db1"]))],
    );
    assert_eq!(cellar.ask("get_load", vec![of_job()]), map(vec![]));

    let minions = |names| vec![of_job(), ("minions", names), ("master", "master1".into())];
    mirror(&cellar, "save_minions", minions(list(["web1"])));
    let job = cellar.ask("job_show", vec![of_job()]);
    assert_eq!(job["missing"], list(["web1"]));

    on_bus(
        &cellar,
        &format!("salt/job/{JID}/new"),
        ping(JID),
        Some("master1"),
    );
    mirror(&cellar, "save_minions", minions(list(["web2"])));
    let job = cellar.ask("job_show", vec![of_job()]);
    assert_eq!(
        (&job["fun"], &job["missing"]),
        (&"test.ping".into(), &list(["web1"]))
    );
    assert_eq!(cellar.counter("entries_stored"), 2);

    // Nor does it make the job one that this master stores, whose responses need a returner call.
    on_bus(
        &cellar,
        &format!("salt/job/{JID}/ret/web1"),
        answer("web1", true.into()),
        None,
    );
    let job = cellar.ask("job_show", vec![of_job()]);
    assert_eq!(job["returns"][0]["bus_only"], true.into(), "{job}");
    assert_eq!(job["not_confirmed"], list([]), "{job}");
}

#[test]
fn daemons_of_a_cluster_list_the_same_one_of_two_jobs_under_one_id() {
    let publish = |fun: &str, at: &str| {
        let Value::Map(mut load) = ping(JID) else {
            unreachable!("a load is a map")
        };
        load.retain(|(key, _)| key != &Value::from("fun"));
        load.extend([
            ("fun".into(), fun.into()),
            ("_stamp".into(), format!("2026-11-21T03:09:{at}").into()),
        ]);
        Value::Map(load)
    };
    let by_master1 = || publish("test.version", "55.2");
    let by_master2 = || publish("test.ping", "55.1");
    let tag = format!("salt/job/{JID}/new");

    // The one that counts is that of master 2: there it is the load, and at the others the event of a peer.
    for (own, here) in [(Some(by_master1()), 1), (Some(by_master2()), 2), (None, 3)] {
        let cellar = Cellar::start();
        for (n, event) in [(1, by_master1()), (2, by_master2())] {
            let name = format!("master{n}");
            on_bus(&cellar, &tag, event, Some(&*name).filter(|_| n != here));
        }
        if let Some(own) = &own {
            cellar.ask(
                "save_load",
                vec![("jid", JID.into()), ("load", own.clone())],
            );
        }

        let of_job = || vec![("jid", JID.into())];
        let shown = cellar.ask("job_show", of_job());
        let listed = cellar.ask("jobs_list", vec![])["jobs"][0].clone();
        for row in [&shown, &listed] {
            let counts = (&row["fun"], row["master"].as_str(), &row["conflict"]);
            let master = (here != 2).then_some("master2");
            assert_eq!(
                counts,
                (&"test.ping".into(), master, &true.into()),
                "{here}"
            );
        }
        let funs = [0, 1].map(|n| shown["publishes"][n]["fun"].clone());
        assert_eq!(funs, ["test.ping".into(), "test.version".into()], "{here}");
        assert_eq!(shown["load"]["fun"], "test.ping".into(), "{here}");

        let answered = cellar.ask("get_load", of_job());
        assert_eq!(
            answered["fun"],
            own.map_or("test.ping".into(), |own| own["fun"].clone())
        );
    }
}

/// The calls that a job consists of, each with the number of seconds since the first one.
fn calls_of(jid: &str) -> Vec<(&'static str, Vec<(&'static str, Value)>)> {
    let publish = |fun: &str, user: &str| {
        map(vec![
            ("cmd", "publish".into()),
            ("fun", fun.into()),
            ("arg", list([])),
            ("tgt", "*".into()),
            ("tgt_type", "glob".into()),
            ("user", user.into()),
            ("jid", jid.into()),
        ])
    };
    let save_load = |fun, user, minions| {
        let load = publish(fun, user);
        ("save_load", vec![("load", load), ("minions", minions)])
    };
    let returned = |minion, value: Value| {
        let load = pong(jid, minion, value);
        ("returner", vec![("load", load)])
    };
    let fired = |tag: String, data| ("event_return", vec![("tag", tag.into()), ("data", data)]);
    let started = |parent: &str| {
        let args = Value::Array(vec![map(vec![("orchestration_jid", parent.into())])]);
        fired(
            format!("salt/run/{jid}/new"),
            map(vec![("jid", jid.into()), ("fun_args", args)]),
        )
    };
    let seen = |minion, value: &str| {
        let data = pong(jid, minion, value.into());
        fired(format!("salt/job/{jid}/ret/{minion}"), data)
    };
    let ended = |text: &str| ("update_endtime", vec![("endtime", text.into())]);

    vec![
        fired(format!("salt/job/{jid}/new"), publish("test.ping", "root")),
        save_load("test.ping", "root", list(["web1", "web2"])),
        save_load("test.version", "bob", list(["web1"])),
        fired(
            format!("salt/job/{jid}/new"),
            publish("test.version", "bob"),
        ),
        ("save_minions", vec![("minions", list(["db1"]))]),
        returned("web1", 1.into()),
        returned("web1", 2.into()),
        returned("web2", 3.into()),
        seen("web2", "forged"),
        seen("db1", "VALUE_TRIMMED"),
        seen("db1", "whole"),
        ended("2026, Nov 21 03:09:53.349344"),
        started("20261121030955000001"),
        started("20261121030955000002"),
    ]
}

/// What readers show of a job, without its jid and sequence numbers.
fn shown(cellar: &Cellar, jid: &str) -> String {
    fn without_numbers(value: Value) -> Value {
        match value {
            Value::Map(pairs) => {
                let pairs = pairs.into_iter().filter(|(key, _)| *key != "seq".into());
                Value::Map(
                    pairs
                        .map(|(key, value)| (key, without_numbers(value)))
                        .collect(),
                )
            }
            Value::Array(items) => Value::Array(items.into_iter().map(without_numbers).collect()),
            other => other,
        }
    }

    let of_job = || ("jid", Value::from(jid));
    let answers = [
        cellar.ask("get_load", vec![of_job()]),
        cellar.ask("get_jid", vec![of_job()]),
        cellar.ask(
            "get_jid",
            vec![of_job(), ("confirmed", true.into()), ("full", true.into())],
        ),
        cellar.ask("get_endtime", vec![of_job()]),
        cellar.ask("job_show", vec![of_job()]),
        cellar.ask("jobs_list", vec![of_job()]),
        cellar.ask("get_jids", vec![])[jid].clone(),
    ];
    format!("{:?}", answers.map(without_numbers)).replace(jid, "JID")
}

#[test]
fn a_job_is_shown_alike_in_each_order_in_which_its_entries_arrive() {
    let cellar = Cellar::start();
    let now = Clock::default().now().0;

    let mut number = 0;
    let mut in_order = |keys: &[u32]| {
        number += 1;
        let jid = format!("{JID}_{number}");
        let mut calls: Vec<_> = keys.iter().zip(0..).zip(calls_of(&jid)).collect();
        calls.sort_by_key(|((key, _), _)| **key);

        for ((_, seconds), (call, mut args)) in calls {
            let at = Value::from(now - 1_000_000_000 + seconds * 1_000_000);
            if call == "event_return" {
                args = vec![("events", Value::Array(vec![map(args)]))];
            } else if call != "returner" {
                args.push(("jid", jid.as_str().into()));
            }
            args.push(("at", at));
            cellar.ask(call, args);
        }
        shown(&cellar, &jid)
    };

    let count = calls_of(JID).len();
    let expected = in_order(&vec![0; count]);
    for part in ["test.version", "bob", "forged", "publishes", "conflict"] {
        assert!(expected.contains(part), "{part}: {expected}");
    }

    let config = ProptestConfig {
        cases: 32,
        ..ProptestConfig::default()
    };
    let each = prop::collection::vec(any::<u32>(), count);
    let mut runner = TestRunner::new(config);
    let in_order = std::cell::RefCell::new(in_order);
    runner
        .run(&each, |keys| {
            let found = in_order.borrow_mut()(&keys);
            prop_assert_eq!(&expected, &found);
            Ok(())
        })
        .unwrap();
}
