//! `saltcellar-bench`: every benchmark runs today, and the keys of its JSON stay.

#![expect(clippy::unwrap_used, reason = "a test may fail by panicking")]

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

use serde_json::Value as Json;

/// The output of a benchmark with `--output json`.
fn run(args: &[&str]) -> String {
    let bench = Path::new(env!("CARGO_BIN_EXE_saltcellar-bench"));
    let daemon = bench.with_file_name("saltcellar");
    assert!(
        daemon.is_file(),
        "{} is not there: run `cargo build`, as `make test` does",
        daemon.display()
    );

    let output = Command::new(bench)
        .args(args)
        .args(["--output", "json"])
        .output()
        .unwrap();
    let words = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{args:?}: {words}");
    String::from_utf8(output.stdout).unwrap()
}

/// The response of a benchmark.
fn bench(args: &[&str]) -> Json {
    serde_json::from_str(&run(args)).unwrap()
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
fn ingest_runs_and_its_json_keeps_its_keys() {
    let document = bench(&["ingest", "--load", "small", "--entries", "20000"]);
    check_keys(
        &document,
        "load saltcellar baseline of_baseline cpu_of_baseline ack_p99_of_baseline",
    );
    for store in ["saltcellar", "baseline"] {
        check_keys(
            &document[store],
            "entries_per_s cpu_s_per_million raw_bytes_per_entry disk_bytes_per_entry ack_p50_ms ack_p99_ms \
             rss_peak_mb entries generator_cpu_s_per_million rss_mb_by_quarter",
        );
    }
    assert_eq!(
        (&document["load"], &document["saltcellar"]["entries"]),
        (&"small".into(), &20_000.into())
    );

    // Each ratio is the quotient of the figures, which are rounded as well.
    for (ratio, figure) in [
        ("of_baseline", "entries_per_s"),
        ("cpu_of_baseline", "cpu_s_per_million"),
        ("ack_p99_of_baseline", "ack_p99_ms"),
    ] {
        let [own, baseline] =
            ["saltcellar", "baseline"].map(|store| document[store][figure].as_f64().unwrap());
        // CPU time is counted in hundredths of a second: the baseline's can be zero.
        if baseline == 0.0 {
            assert_eq!(document[ratio], Json::Null, "{ratio}: {document}");
            continue;
        }
        let (expected, found) = (own / baseline, document[ratio].as_f64().unwrap());
        assert!(
            (found - expected).abs() < 0.01 * expected + 0.001,
            "{ratio}: {document}"
        );
    }

    let document = bench(&[
        "ingest",
        "--load",
        "small",
        "--entries",
        "200",
        "--no-baseline",
    ]);
    check_keys(&document, "load saltcellar");
}

/// A line in the daemon's log would fail it, for example about an event whose stamp is wrong.
#[test]
fn a_recorded_bus_is_replayed() {
    let corpus = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/data/3008.3.sbus");
    let args = ["ingest", "--corpus", corpus, "--load", "mix"];
    let document = bench(&[&args[..], &["--entries", "2000", "--no-baseline"]].concat());
    assert_eq!(document["load"], "corpus");
}

#[test]
fn returner_and_sources_run_and_their_json_keeps_its_keys() {
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
        .map(|run| &run["source"])
        .collect();
    assert_eq!(
        sources,
        ["baseline", "bus", "pull", "socket", "https", "https"]
    );
    for run in document["runs"].as_array().unwrap() {
        check_keys(
            run,
            "source batch connections entries entries_per_s p50_ms p99_ms max_ms daemon_cpu_s_per_million \
             sender_cpu_s_per_million rss_peak_mb",
        );
    }

    let paced = bench(&[
        "sources",
        "--source",
        "bus",
        "--rate",
        "2000",
        "--load",
        "small",
        "--entries",
        "400",
    ]);
    // Of the writes.
    assert!(paced["runs"][0]["max_ms"].is_f64(), "{paced}");
}

#[test]
fn query_runs_and_its_json_keeps_its_keys() {
    let document = bench(&[
        "query",
        "--jobs",
        "300",
        "--minions",
        "20",
        "--limited-seconds",
        "0",
    ]);
    check_keys(
        &document,
        "jobs entries minions_of_wide jobs_list_50 jobs_list_50_process jobs_list_50_process_cold get_jid get_jid_wide \
         get_jids tag_scan tag_scan_heads minion_search time_search returner_quiet returner_cleaning limited \
         segments_let_go rss_peak_mb disk_bytes_per_entry",
    );
    check_keys(&document["get_jid"], "asked p50_ms p99_ms max_ms");
    check_keys(
        &document["limited"][0],
        "minions limit search asked nothing_ms first_ms limited_ms same_ms ratio_same whole_ms ratio_whole",
    );
}

#[test]
fn reactor_runs_and_its_json_keeps_its_keys() {
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
    check_keys(&document, "events events_per_s reactions skipped rss_mb");
}

/// The short form of `make soak-reactor` and of the other long runs: nothing is lost, and they
/// finish.
#[test]
fn the_benchmarks_of_the_reactor_run() {
    let soak = run(&["reactor", "--soak", "3000"]);
    assert!(soak.contains("\"events\": 3000"), "{soak}");
    let wire: Json = serde_json::from_str(&run(&[
        "reactor",
        "--wire",
        "--rate",
        "200",
        "--seconds",
        "1",
    ]))
    .unwrap();
    let requests: Vec<_> = wire
        .as_array()
        .unwrap()
        .iter()
        .map(|row| row["requests"].as_u64())
        .collect();
    assert_eq!(requests, [Some(2), Some(20), Some(200)]);
    // Some events wait in memory, the rest as sequence numbers.
    let backlog = run(&["reactor", "--backlog", "3000"]);
    assert!(backlog.contains("\"waiting\": 3000"), "{backlog}");
    let isolation: Json = serde_json::from_str(&run(&[
        "reactor",
        "--isolation",
        "--rate",
        "200",
        "--seconds",
        "1",
    ]))
    .unwrap();
    assert_eq!(isolation.as_array().unwrap().len(), 4);
}

#[test]
fn a_program_that_is_not_there_is_named() {
    let output = Command::new(env!("CARGO_BIN_EXE_saltcellar-bench"))
        .args(["returner", "--program", "/absent/saltcellar"])
        .output()
        .unwrap();
    let words = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{words}");
    assert!(
        words.starts_with(
            "saltcellar-bench: cannot find the program to measure: /absent/saltcellar is no file"
        ),
        "{words}"
    );
}
