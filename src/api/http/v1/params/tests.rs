//! Tests of the parameters of operations.

use super::*;

const KNOWN: &[Param] = &[
    param("limit", ParamKind::Count, ""),
    param("since", ParamKind::Time, ""),
    param("match", ParamKind::Json, ""),
    param("links", ParamKind::Flag, ""),
    param("cursor", ParamKind::SeqCursor, ""),
];

fn read(given: &[(&str, &str)]) -> Result<Json, String> {
    let given = given
        .iter()
        .map(|(name, value)| ((*name).to_owned(), Json::from(*value)))
        .collect();
    let path = [("name".to_owned(), "audit".to_owned())];
    arguments(KNOWN, &path, given, "00ab")
        .map(Json::Object)
        .map_err(|error| error.message)
}

#[test]
fn parameters_become_arguments() {
    let given = [
        ("limit", "5"),
        ("since", "2026-11-21T05:47:28Z"),
        ("match", "[{\"tag\": \"a\"}]"),
        ("links", "true"),
        ("cursor", "00ab:77"),
    ];
    let expected = serde_json::json!({
        "limit": 5, "since": 1_795_240_048_000_000_i64, "match": [{"tag": "a"}], "links": true, "before": 77,
        "name": "audit",
    });
    assert_eq!(read(&given), Ok(expected));
}

#[test]
fn wrong_parameters_name_what_is_accepted() {
    for (given, expected) in [
        (("limit", "many"), "parameter `limit`: expected a number"),
        (
            ("limt", "1"),
            "unknown parameter limt; known: limit, since, match, links, cursor",
        ),
        (("since", "yesterday"), "parameter `since`: expected a time"),
        (("match", "[{"), "parameter `match`: expected JSON: EOF"),
        (
            ("links", "perhaps"),
            "parameter `links`: expected true or false",
        ),
        (("cursor", "77"), "a cursor has the form STORE:POSITION"),
        (
            ("cursor", "00ac:77"),
            "the cursor is of store 00ac, this is store 00ab",
        ),
    ] {
        let error = read(&[given]).unwrap_err();
        assert!(error.starts_with(expected), "{given:?}: {error}");
    }
    assert!(
        read(&[("limit", "1"), ("limit", "2")])
            .unwrap_err()
            .contains("given twice")
    );
}
