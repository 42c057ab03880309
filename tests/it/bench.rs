//! `saltcellar bench`: it runs today, and the keys of its JSON stay.

use std::collections::BTreeSet;

use serde_json::Value as Json;

use crate::fake_daemon::{program, stderr};

/// The answer of a benchmark.
fn bench(args: &[&str]) -> Json {
    let output = program()
        .arg("bench")
        .args(args)
        .args(["--output", "json"])
        .output()
        .unwrap();
    assert!(output.status.success(), "{args:?}: {}", stderr(&output));
    serde_json::from_slice(&output.stdout).unwrap()
}

fn check_keys(value: &Json, expected: &str) {
    let keys: BTreeSet<_> = value
        .as_object()
        .unwrap()
        .keys()
        .map(String::as_str)
        .collect();
    assert_eq!(keys, expected.split_whitespace().collect(), "{value}");
}

#[test]
fn bench_ingest_runs_and_its_json_keeps_its_keys() {
    let document = bench(&["ingest", "--load", "small", "--entries", "2000"]);
    check_keys(&document, "load saltcellar baseline of_baseline");
    for store in ["saltcellar", "baseline"] {
        check_keys(
            &document[store],
            "entries_per_s cpu_s_per_million raw_bytes_per_entry disk_bytes_per_entry ack_p50_ms ack_p99_ms \
             rss_peak_mb entries generator_cpu_s_per_million rss_mb_by_quarter",
        );
    }
    assert_eq!(
        (&document["load"], &document["saltcellar"]["entries"]),
        (&"small".into(), &2000.into())
    );
}

#[test]
fn bench_returner_and_sources_run_and_their_json_keeps_its_keys() {
    let document = bench(&["returner", "--entries", "50", "--connections", "2"]);
    check_keys(&document["runs"][0], "connections saltcellar baseline");
    let call_keys = "calls_per_s p50_ms p99_ms cpu_s_per_million calls";
    check_keys(&document["runs"][0]["saltcellar"], call_keys);
    check_keys(&document["runs"][0]["baseline"], call_keys);
    let document = bench(&["sources", "--entries", "100"]);
    let sources: Vec<_> = document["runs"]
        .as_array()
        .unwrap()
        .iter()
        .map(|run| &run["door"])
        .collect();
    assert_eq!(
        sources,
        ["baseline", "bus", "pull", "socket", "https", "https"]
    );
    for run in document["runs"].as_array().unwrap() {
        check_keys(
            run,
            concat!(
                "door",
                " batch connections entries entries_per_s p50_ms p99_ms daemon_cpu_s_per_million \
                 sender_cpu_s_per_million rss_peak_mb"
            ),
        );
    }
}

#[test]
fn bench_reactor_runs_and_its_json_keeps_its_keys() {
    let document = bench(&["reactor", "--seconds", "0.01", "--only", "if false 10"]);
    check_keys(&document[0], "situation entries events_per_s p50_us p99_us");
    let document = bench(&["reactor", "--seconds", "0.1", "--rate", "500", "--wire"]);
    check_keys(
        &document[2],
        "one_of events_per_s requests requests_per_s p50_ms p99_ms max_ms sync_p50_ms sync_p99_ms cpu_us_per_event",
    );
    assert_eq!(
        (&document[2]["one_of"], &document[2]["requests"]),
        (&1.into(), &50.into())
    );
    let document = bench(&["reactor", "--backlog", "200"]);
    check_keys(
        &document,
        "events waiting down_peak_mb events_per_s peak_mb",
    );
    let document = bench(&["reactor", "--soak", "50"]);
    check_keys(&document, "events events_per_s reactions left_out rss_mb");
}
