//! The verbs of sinks.

use std::path::Path;

use crate::cli::in_process::{cli, document, stderr, text};
use crate::daemon::in_process::{Cellar, wait_for};
use crate::testkit::entries::Asks as _;

const FILE: &str = "sinks:\n  audit:\n    match: [{tag: 'test/*'}]\n    encoder: json\n    transport: {file: {path: DIR/out.jsonl}}\n";

fn lines_of(path: &Path) -> usize {
    std::fs::read_to_string(path).map_or(0, |text| text.matches('\n').count())
}

#[test]
fn a_sink_is_paused_moved_and_tested_from_the_command_line() {
    let mut cellar = Cellar::start_configured(FILE);
    let out = cellar.dir.path().join("out.jsonl");
    assert_eq!(
        text(&cellar, &["sinks", "pause", "audit"]),
        "audit is paused\n"
    );
    cellar.store_numbered(0..5);
    cellar.terminate();
    cellar.restart();
    assert_eq!(
        document(&cellar, &["sinks", "show", "audit"])["state"],
        "paused",
        "also after a restart"
    );
    assert_eq!(lines_of(&out), 0);
    text(&cellar, &["sinks", "resume", "audit"]);
    wait_for("the lines", || (lines_of(&out) == 5).then_some(()));
    assert!(
        text(&cellar, &["sinks", "seek", "audit", "oldest"]).starts_with("audit continues with ")
    );
    wait_for("the lines again", || (lines_of(&out) == 10).then_some(()));
    let test = text(&cellar, &["sinks", "test", "audit"]);
    assert!(
        test.contains("test/4, 1 items") && test.contains("bytes written to"),
        "{test}"
    );
    assert_eq!(lines_of(&out), 11);
    let list = text(&cellar, &["sinks", "list"]);
    assert!(
        list.contains("audit") && list.contains("out.jsonl"),
        "{list}"
    );
    let unknown = cli(&cellar, &["sinks", "pause", "nothing"]);
    assert!(
        stderr(&unknown).contains("no sink \"nothing\" is configured; configured are: audit"),
        "{}",
        stderr(&unknown)
    );
}
