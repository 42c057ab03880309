//! Cases recorded with Salt: configurations, files and events, run through the pipeline.

use std::path::PathBuf;

use saltcellar::reactor::conformance::{ConformanceOptions, run};

/// The cases of the project, and those of the directories that `REACTOR_CASES` names (colons between). Cases that need Salt's own
/// Python count only if `SALTCELLAR_SALT_PYTHON` names one, as `make test-sls` does.
#[test]
fn every_case_matches_salt() {
    let data = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/data");
    let mut dirs = vec![data.join("reactor-cases"), data.join("reactor-cases-own")];
    if let Ok(more) = std::env::var("REACTOR_CASES") {
        dirs.extend(more.split(':').filter(|dir| !dir.is_empty()).map(PathBuf::from));
    }
    let signatures = std::fs::read_to_string(data.join("signatures.json")).unwrap();
    let options = ConformanceOptions {
        salt_python: std::env::var_os("SALTCELLAR_SALT_PYTHON").map(PathBuf::from),
        signatures: serde_json::from_str(&signatures).unwrap(),
    };
    let report = run(&dirs, &options, |result| {
        if !result.passed() {
            println!("{result}");
        }
    })
    .unwrap();
    println!("{}", report.summary());
    assert!(report.results.len() >= 400, "cases are missing");
    let failing: Vec<&str> = report
        .failing()
        .filter(|result| options.salt_python.is_some() || result.needs_salt.is_none())
        .map(|result| result.id.as_str())
        .collect();
    assert!(failing.is_empty(), "{failing:?}");
    let need_salt = report.failing().count();
    assert!(need_salt <= 75, "{need_salt} cases need Salt's own Python; most must not");
}
