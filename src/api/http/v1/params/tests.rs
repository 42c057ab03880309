//! Tests of the parameters of operations.

use salt_sls::Glob;

use super::*;
use crate::wire::msgpack::Time;

/// The name is in the path.
#[expect(dead_code, reason = "only its schema is used")]
#[derive(schemars::JsonSchema)]
struct Args {
    name: String,
    limit: Option<usize>,
    since: Option<Time>,
    #[schemars(rename = "match")]
    scopes: Vec<String>,
    links: bool,
    kind: Option<Kind>,
    tag: Option<Glob>,
}

/// Each variant has a comment.
#[expect(dead_code, reason = "only its schema is used")]
#[derive(schemars::JsonSchema)]
enum Kind {
    /// One.
    First,
    /// Another.
    Second,
}

#[test]
fn parameters_are_the_arguments_of_the_call() {
    let params = of_arguments(SchemaGenerator::subschema_for::<Args>, "/x/{name}");
    let kinds: Vec<_> = params
        .iter()
        .map(|param| (param.name.as_str(), param.kind))
        .collect();
    assert_eq!(
        kinds,
        [
            ("limit", ParamKind::Count),
            ("since", ParamKind::Time),
            ("match", ParamKind::Json),
            ("links", ParamKind::Flag),
            ("kind", ParamKind::Text),
            ("tag", ParamKind::Text),
        ]
    );
}

fn read(given: &[(&str, &str)]) -> Result<Json, String> {
    let given = given
        .iter()
        .map(|(name, value)| ((*name).to_owned(), Json::from(*value)))
        .collect();
    let path = [("name".to_owned(), "audit".to_owned())];
    let known = of_arguments(SchemaGenerator::subschema_for::<Args>, "/x/{name}");
    arguments(&known, &path, given)
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
        ("tag", "77"),
    ];
    let expected = serde_json::json!({
        "limit": 5, "since": 1_795_240_048_000_000_i64, "match": [{"tag": "a"}], "links": true, "tag": "77",
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
            "unknown parameter limt; known: limit, since, match, links, kind, tag",
        ),
        (("since", "yesterday"), "parameter `since`: expected a time"),
        (("match", "[{"), "parameter `match`: expected JSON: EOF"),
        (
            ("links", "perhaps"),
            "parameter `links`: expected true or false",
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
