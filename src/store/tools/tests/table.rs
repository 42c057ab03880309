//! Tables of indexes, as seen by the tools.

use super::*;

#[test]
fn damage_of_a_database_and_of_a_table_are_found_and_repaired() {
    for file in ["db", "pages"] {
        let (_dir, state) = a_store();
        let segments = layout::segments(&state).unwrap();
        let index = segments
            .iter()
            .find(|segment| segment.is_sealed)
            .unwrap()
            .dir
            .join("index");
        fs::write(index.join(file), b"neither sled nor a table").unwrap();
        let report = check(&state);
        assert_eq!(report.problems.len(), 1, "{file}: {report:#?}");
        assert_eq!(
            (&report.problems[0].path, report.problems[0].entries_lost),
            (&index, 0),
            "{file}"
        );
        rebuild(&options(&state), None, &mut ()).unwrap();
        assert_clean(&state);
        assert_eq!(content(&state).len(), 199);
    }
}

#[test]
fn a_table_of_another_segment_is_found() {
    let (_dir, state) = a_store();
    let segments: Vec<_> = layout::segments(&state)
        .unwrap()
        .into_iter()
        .filter(|segment| segment.is_sealed)
        .collect();
    let [one, two] = [0, 1].map(|n| segments[n].dir.join("index"));
    fs::copy(two.join("pages"), one.join("pages")).unwrap();
    let report = check(&state);
    assert_eq!(
        (report.problems.len(), &report.problems[0].path),
        (1, &one),
        "{report:#?}"
    );
}

#[test]
fn an_index_without_a_table_is_valid() {
    let (_dir, state) = a_store();
    let segments = layout::segments(&state).unwrap();
    for segment in segments.iter().filter(|segment| segment.is_sealed) {
        fs::remove_file(segment.dir.join("index/pages")).unwrap();
    }
    assert_clean(&state);
    assert!(
        !segments
            .iter()
            .any(|segment| segment.dir.join("index/pages").exists()),
        "verify writes nothing"
    );
}
