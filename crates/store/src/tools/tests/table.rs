//! Indexes as seen by the tools.

use super::*;

#[test]
fn damage_of_an_index_is_found_and_repaired() {
    let (_dir, state) = a_store();
    let segments = layout::segments(&state).unwrap();
    let index = segments
        .iter()
        .find(|segment| segment.is_sealed)
        .unwrap()
        .index();
    fs::write(&index, b"no table").unwrap();
    let report = check(&state);
    assert_eq!(report.problems.len(), 1, "{report:#?}");
    assert_eq!(
        (&report.problems[0].path, report.problems[0].entries_lost),
        (&index, 0)
    );
    rebuild(&options(&state), None, &mut ()).unwrap();
    assert_clean(&state);
    assert_eq!(content(&state).len(), 199);
}

#[test]
fn an_index_of_another_segment_is_found_and_accuses_no_log() {
    let (_dir, state) = a_store();
    let segments: Vec<_> = layout::segments(&state)
        .unwrap()
        .into_iter()
        .filter(|segment| segment.is_sealed)
        .collect();
    let [one, two] = [0, 1].map(|n| segments[n].index());
    fs::copy(&two, &one).unwrap();
    let report = check(&state);
    assert_eq!(
        (report.problems.len(), &report.problems[0].path),
        (1, &one),
        "{report:#?}"
    );
    assert_eq!(report.problems[0].entries_lost, 0);
}
