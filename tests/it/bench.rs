//! `saltcellar bench`: it runs today, and the keys of its JSON stay.

use std::collections::BTreeSet;

use serde_json::Value as Json;

use crate::fake_daemon::{program, stderr};

#[test]
fn bench_ingest_runs_and_its_json_keeps_its_keys() {
    let output = program()
        .args(["bench", "ingest", "--load", "small", "--entries", "2000", "--output", "json"])
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", stderr(&output));
    let document: Json = serde_json::from_slice(&output.stdout).unwrap();
    let keys = |value: &Json| -> BTreeSet<String> { value.as_object().unwrap().keys().cloned().collect() };
    assert_eq!(
        keys(&document),
        BTreeSet::from(["load", "saltcellar", "baseline", "of_baseline"].map(String::from))
    );
    let row = BTreeSet::from(
        [
            "entries_per_s",
            "cpu_s_per_million",
            "raw_bytes_per_entry",
            "disk_bytes_per_entry",
            "ack_p50_ms",
            "ack_p99_ms",
            "rss_peak_mb",
            "entries",
            "generator_cpu_s_per_million",
            "rss_mb_by_quarter",
        ]
        .map(String::from),
    );
    assert_eq!((keys(&document["saltcellar"]), keys(&document["baseline"])), (row.clone(), row));
    assert_eq!((&document["load"], &document["saltcellar"]["entries"]), (&"small".into(), &2000.into()));
}
