//! Rights of calls, by user and by arguments.

use rmpv::Value;

use crate::api::CALLS;
use crate::api::client::{Client, ClientError};
use crate::daemon::in_process::{Cellar, map};
use crate::testkit::rights::{ADMIN, WRITE};

/// A user without any files.
const NOBODY: u32 = 65534;

/// Makes a call without arguments, and returns the message if the right is missing.
fn denied(client: &mut Client, call: &str) -> Option<String> {
    match client.call(call, map(vec![])) {
        Err(ClientError::Refused { code, message, .. }) if message.contains("needs the right") => {
            assert_eq!(code, "refused");
            Some(message)
        }
        _ => None,
    }
}

/// The calls that a user cannot make, in the order of the table.
fn all_denied(uid: u32, cellar: &Cellar) -> Vec<&'static str> {
    let mut client = cellar.client_of(Some(uid));
    CALLS
        .iter()
        .map(|call| call.name)
        .filter(|name| denied(&mut client, name).is_some())
        .collect()
}

fn of_table(lists: &[&[&str]]) -> Vec<&'static str> {
    CALLS
        .iter()
        .map(|call| call.name)
        .filter(|name| lists.iter().any(|list| list.contains(name)))
        .collect()
}

#[test]
fn peers_with_the_right_to_read_cannot_write() {
    let cellar = Cellar::start_configured("socket_peers: read\n");
    assert_eq!(all_denied(NOBODY, &cellar), of_table(&[&ADMIN, &WRITE]));
    assert_eq!(all_denied(0, &cellar), [""; 0]);
    let mut client = cellar.client_of(Some(NOBODY));
    let load = map(vec![
        ("jid", "20261121030955505683".into()),
        ("id", "web1".into()),
        ("return", 1.into()),
    ]);
    let stored = cellar.counter("entries_stored");
    assert!(client.call("returner", map(vec![("load", load)])).is_err());
    assert_eq!(cellar.counter("entries_stored"), stored);
}

/// The calls that change a consumer; each needs the name alone to be denied.
const OF_CONSUMERS: [&str; 9] = [
    "consumer_create",
    "consumer_next",
    "consumer_ack",
    "consumer_nack",
    "consumer_release",
    "consumer_seek",
    "consumer_pause",
    "consumer_resume",
    "consumer_delete",
];

#[test]
fn the_consumer_of_a_sink_is_changed_by_administrators_only() {
    let sink = "sinks:\n  out: {encoder: json, transport: {file: {path: DIR/out.jsonl}}}\n";
    let mut cellar = Cellar::start_configured(sink);
    let denied_of = |cellar: &Cellar, uid: u32, name: &str| -> Vec<&str> {
        let mut client = cellar.client_of(Some(uid));
        let is_denied = |call: &&str| {
            let error = client
                .call(call, map(vec![("name", name.into())]))
                .err()
                .map(|error| error.to_string())
                .unwrap_or_default();
            error.contains("needs the right `admin`")
                && error.contains("for the consumer of a sink")
        };
        OF_CONSUMERS.into_iter().filter(is_denied).collect()
    };
    assert_eq!(denied_of(&cellar, NOBODY, "out"), OF_CONSUMERS);
    assert_eq!(denied_of(&cellar, NOBODY, "own"), [""; 0]);
    // Its position is kept when the sink is removed from the configuration.
    cellar.configure("");
    cellar.restart();
    assert_eq!(denied_of(&cellar, NOBODY, "out"), OF_CONSUMERS);
    assert_eq!(denied_of(&cellar, 0, "out"), [""; 0]);
    assert_eq!(
        denied_of(&cellar, NOBODY, "out"),
        [""; 0],
        "deleted by root"
    );
}

/// The stored time of an event in a batch; `more` are arguments of the batch, `own` fields of the event.
fn stored_at(client: &mut Client, tag: &str, own: Option<i64>, more: Vec<(&str, Value)>) -> i64 {
    let mut event = vec![("tag", tag.into()), ("data", map(vec![]))];
    event.extend(own.map(|at| ("at", at.into())));
    let mut args = vec![("events", Value::Array(vec![map(event)]))];
    args.extend(more);
    client.call("event_return", map(args)).unwrap();
    let list = client
        .call("events_list", map(vec![("tag", tag.into())]))
        .unwrap();
    list["events"][0]["time"].as_i64().unwrap()
}

#[test]
fn a_caller_cannot_set_a_future_or_very_old_time() {
    const YEAR: i64 = 366 * 86_400_000_000;
    const CALENDAR_END: i64 = 253_402_300_799_999_999;
    let cellar = Cellar::start();
    let mut client = cellar.client();
    let now = || crate::base::clock::Clock::real().now().0;
    let mut n = 0;
    let mut tag = || {
        n += 1;
        format!("clamped/{n}")
    };
    for at in [i64::MAX, now() + YEAR, now() + 3_600_000_000] {
        for (own, args) in [(None, vec![("at", at.into())]), (Some(at), vec![])] {
            let before = now();
            let stored = stored_at(&mut client, &tag(), own, args);
            assert!((before..=now()).contains(&stored), "{at} became {stored}");
        }
    }
    for at in [i64::MIN, -1, 0, now() - YEAR - 3_600_000_000] {
        for (own, args) in [(None, vec![("at", at.into())]), (Some(at), vec![])] {
            let before = now();
            let stored = stored_at(&mut client, &tag(), own, args);
            assert!(
                (before - YEAR..=now() - YEAR).contains(&stored),
                "{at} became {stored}"
            );
        }
    }
    let recent = now() - YEAR + 3_600_000_000;
    assert_eq!(
        stored_at(&mut client, &tag(), None, vec![("at", recent.into())]),
        recent
    );
    for (at, stored) in [
        (i64::MIN, 0),
        (-1, 0),
        (1, 1),
        (CALENDAR_END, CALENDAR_END),
        (i64::MAX, CALENDAR_END),
    ] {
        let found = stored_at(&mut client, &tag(), Some(at), vec![("import", true.into())]);
        assert_eq!(found, stored, "an import sets {at}");
    }
    // Every kind of entry, and all of them are read.
    let jid = ("jid", Value::from("20261121030955505683"));
    for at in [i64::MIN, i64::MAX] {
        let args = |more: Vec<(&'static str, Value)>| {
            let mut args = vec![("at", Value::from(at)), jid.clone()];
            args.extend(more);
            map(args)
        };
        let load = map(vec![
            jid.clone(),
            ("id", "web1".into()),
            ("return", 1.into()),
        ]);
        for (call, more) in [
            (
                "prep_jid",
                vec![("nocache", true.into()), ("passed_jid", "a jid".into())],
            ),
            ("save_load", vec![("load", load.clone())]),
            ("save_minions", vec![("minions", Value::Array(vec![]))]),
            ("returner", vec![("load", load), ("endtime", "x".into())]),
            ("update_endtime", vec![("endtime", "x".into())]),
            ("save_reg", vec![("data", at.into())]),
        ] {
            client.call(call, args(more)).unwrap();
        }
    }
    let all = client
        .call("entries", map(vec![("all", true.into())]))
        .unwrap();
    let times: Vec<i64> = all["entries"]
        .as_array()
        .unwrap()
        .iter()
        .map(|e| e["time"].as_i64().unwrap())
        .collect();
    assert!(
        times.len() > 20 && times.iter().all(|at| (0..=CALENDAR_END).contains(at)),
        "{times:?}"
    );
    for call in [
        "get_jids",
        "jobs_list",
        "store_stats",
        "status",
        "store_prune",
    ] {
        client.call(call, map(vec![])).unwrap();
    }
}
