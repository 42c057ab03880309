//! Event streams with a maximum rate.

use std::fmt::Write as _;
use std::io::{BufRead as _, BufReader};

use rmpv::Value;
use serde_json::Value as Json;

use super::http_api::put;
use crate::cli::in_process::{LISTENER, cli, stderr, stdout, token};
use crate::daemon::in_process::{Cellar, Http, address, get, map, stream};
use crate::testkit::entries::Asks as _;

/// The numbers and ids of a limited stream: events, and counts of skipped ones, until there are `count` in total.
fn follow_limited(
    address: &Http,
    path: &str,
    headers: &str,
    count: u64,
) -> Vec<(&'static str, u64, String)> {
    let stream = stream(address, path, headers);
    let (mut found, mut kind, mut seen) = (Vec::new(), "event", 0);
    for line in BufReader::new(stream).lines().map(Result::unwrap) {
        if line == "event: skipped" {
            kind = "skipped";
        }
        // A line of NDJSON is the data alone.
        let Ok(data) = serde_json::from_str::<Json>(line.strip_prefix("data: ").unwrap_or(&line))
        else {
            continue;
        };
        let (skipped, is_skipped) = match data.get("skipped") {
            Some(skipped) => (skipped.clone(), true),
            None => (data.clone(), kind == "skipped"),
        };
        let Some(id) = skipped["id"].as_str() else {
            continue;
        };
        if is_skipped {
            let count = skipped["count"].as_u64().unwrap();
            found.push(("skipped", count, id.to_owned()));
            seen += count;
        } else {
            found.push(("event", data["data"]["n"].as_u64().unwrap(), id.to_owned()));
            seen += 1;
        }
        kind = "event";
        if seen >= count {
            break;
        }
    }
    found
}

#[test]
fn a_stream_with_a_maximum_rate_counts_what_it_skips() {
    let cellar = Cellar::start_configured(LISTENER);
    let address = address(&cellar);
    let read = token(&cellar, &["reader", "--scope", "read"]);
    put(&cellar, 0..300);
    let path = "/api/v1/events/stream?since=2020-01-01T00:00:00Z&max_rate=10";
    for headers in [
        read.clone(),
        format!("{read}accept: application/x-ndjson\r\n"),
    ] {
        let found = follow_limited(&address, path, &headers, 300);
        // Ten events of a second, and the number of the others in the next one.
        let kinds = |wanted| found.iter().filter(move |(kind, ..)| *kind == wanted);
        assert_eq!(
            found
                .iter()
                .take(10)
                .map(|(_, n, _)| *n)
                .collect::<Vec<_>>(),
            (0..10).collect::<Vec<_>>()
        );
        let skipped: u64 = kinds("skipped").map(|(_, count, _)| *count).sum();
        assert_eq!(kinds("event").count() as u64 + skipped, 300, "{found:?}");
        assert!(
            skipped > 0 && kinds("event").is_sorted_by_key(|(_, n, _)| n),
            "{found:?}"
        );
    }
    // The id of the message is one to continue from.
    let found = follow_limited(&address, path, &read, 300);
    put(&cellar, 300..303);
    let last = format!("{read}last-event-id: {}\r\n", found.last().unwrap().2);
    let rest = follow_limited(&address, path, &last, 3);
    assert_eq!(
        rest.iter()
            .map(|(kind, n, _)| (*kind, *n))
            .collect::<Vec<_>>(),
        [300, 301, 302].map(|n| ("event", n))
    );
    // Only events that the filter and the token allow are counted: one of two.
    let web = token(&cellar, &["web", "--scope", "read", "--minion", "web*"]);
    let matched = format!("{path}&where=data.id%20==%20%22web1%22");
    for (path, headers) in [(path.to_owned(), &web), (matched, &read)] {
        let found = follow_limited(&address, &path, headers, 152);
        let total: u64 = found
            .iter()
            .map(|(kind, n, _)| if *kind == "skipped" { *n } else { 1 })
            .sum();
        assert_eq!(total, 152, "{found:?}");
    }
    assert_eq!(
        get(&address, "/api/v1/events/stream?max_rate=0", &read).status,
        400
    );
}

#[test]
fn a_stream_passes_an_event_that_its_filter_is_too_slow_for_and_reports_it() {
    let cellar = Cellar::start_configured(LISTENER);
    let address = address(&cellar);
    let read = token(&cellar, &["reader", "--scope", "read"]);
    let data = |n: u64, big: usize| {
        map(vec![
            ("n", n.into()),
            ("big", "a".repeat(big).as_str().into()),
        ])
    };
    // The first and the last one match, whatever is in between.
    let event = |n, big| map(vec![("tag", "test/x".into()), ("data", data(n, big))]);
    let events = vec![event(3, 1), event(1, 200_000), event(3, 1)];
    cellar.ask("event_return", vec![("events", Value::Array(events))]);

    let slow = format!(
        "data.n == 3 or data.big is matching('*{}b*')",
        "a".repeat(3_900)
    );
    let mut encoded = String::new();
    for byte in slow.bytes() {
        write!(encoded, "%{byte:02x}").unwrap();
    }
    // Each value of both once: the one event costs a second of processor time each time.
    let plain = read.clone();
    let lines = format!("{read}accept: application/x-ndjson\r\n");
    for (rate, headers) in [("", lines), ("&max_rate=1", plain)] {
        let path =
            format!("/api/v1/events/stream?since=2020-01-01T00:00:00Z&where={encoded}{rate}");
        let found = follow_limited(&address, &path, &headers, 3);
        let kinds: Vec<_> = found.iter().map(|(kind, n, _)| (*kind, *n)).collect();
        // With a rate the last one may come in the same second.
        assert_eq!(kinds[..2], [("event", 3), ("skipped", 1)], "{found:?}");
        assert!(found[1].2.ends_with(":2"), "{found:?}");
        assert!(found[2].2.ends_with(":3"), "{found:?}");

        // A client that reconnects also passes it.
        let headers = format!("{headers}last-event-id: {}\r\n", found[1].2);
        let rest = follow_limited(&address, &path, &headers, 1);
        assert_eq!(rest[0].1, 3, "{rest:?}");
    }
    assert!(cellar.counter("conditions_too_costly") >= 2);
}

#[test]
fn tail_shows_the_events_around_one_that_its_filter_is_too_slow_for() {
    let cellar = Cellar::start();
    let event = |n: u64, big: usize| {
        let big = "a".repeat(big);
        let data = map(vec![("n", n.into()), ("big", big.as_str().into())]);
        map(vec![("tag", "test/x".into()), ("data", data)])
    };
    let events = vec![event(3, 1), event(1, 200_000), event(3, 1)];
    cellar.ask("event_return", vec![("events", Value::Array(events))]);
    let slow = format!(
        "data.n == 3 or data.big is matching('*{}b*')",
        "a".repeat(3_900)
    );
    let args = ["events", "tail", "--since", "1d", "--limit", "2"];
    let filter = ["--output", "jsonl", "--where", &slow];
    let output = cli(&cellar, &[&args[..], &filter].concat());
    assert!(output.status.success(), "{}", stderr(&output));
    let numbers: Vec<_> = stdout(&output)
        .lines()
        .map(|line| serde_json::from_str::<Json>(line).unwrap()["seq"].clone())
        .collect();
    assert_eq!(numbers, [1, 3]);
    assert!(
        stderr(&output).contains("event 2: the condition goes through more than"),
        "{}",
        stderr(&output)
    );
}
