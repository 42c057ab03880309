//! Tests of hooks: tags, bodies and hops.

use super::*;
use crate::api::sign_in::tokens::Tokens;
use crate::store::settings::Settings;
use hyper::header::{HeaderName, HeaderValue};

fn headers(list: &[(&'static str, &'static str)]) -> HeaderMap {
    let mut headers = HeaderMap::new();
    for (name, value) in list {
        headers.append(
            HeaderName::from_static(name),
            HeaderValue::from_static(value),
        );
    }
    headers
}

#[test]
fn data_has_the_shape_of_salts_engine_without_secrets() {
    let given = [
        ("x-gitlab-event", "Push"),
        ("accept", "a"),
        ("accept", "b"),
        ("authorization", "Bearer sct_x"),
        ("cookie", "c"),
        ("x-auth-token", "sct_x"),
    ];
    let none = TokenScanner::default();
    let data = data(&headers(&given), b"{\"a\": 1}\xff", None, &none);
    let value = rmpv::decode::read_value(&mut data.as_slice()).unwrap();
    assert_eq!(value["headers"]["X-Gitlab-Event"].as_str(), Some("Push"));
    assert_eq!(value["headers"]["Accept"].as_str(), Some("a,b"));
    assert_eq!(value["headers"].as_map().unwrap().len(), 2);
    assert_eq!(
        value["body"],
        rmpv::Value::Binary(b"{\"a\": 1}\xff".to_vec()),
        "bytes, as in Salt"
    );
}

#[test]
fn hops_are_counted_and_must_be_a_number() {
    assert_eq!(hops(&headers(&[])), Ok(0));
    assert_eq!(hops(&headers(&[(HOPS, "2"), (HOPS, "3")])), Ok(3));
    assert!(hops(&headers(&[(HOPS, "many")])).is_err());
}

#[test]
fn a_query_names_the_bus_and_may_have_anything_else() {
    for (uri, expected) in [
        ("/hook/a?bus=%2Fa", Some("/a")),
        ("/hook/a?secret=x&bus=/b&bus=/c", Some("/b")),
        ("/hook/a?buss=x", None),
        ("/hook/a?&&=%ff%zz", None),
        ("/hook/a?", None),
        ("/hook/a", None),
    ] {
        assert_eq!(bus(&uri.parse().unwrap()).as_deref(), expected, "{uri}");
    }
}

#[test]
fn only_listed_headers_are_in_the_event_and_none_with_a_valid_token() {
    let dir = tempfile::tempdir().unwrap();
    let tokens = Tokens::open(Settings::for_tests(dir.path()));
    let token = tokens.create_for_tests("ci");
    let unknown = format!("sct_{}", "A".repeat(43));
    let token_in = |prefix: &str| HeaderValue::from_str(&format!("{prefix}{token}")).unwrap();
    let mut given = headers(&[("x-gitlab-event", "Push"), ("accept", "a")]);
    given.insert("x-gitlab-token", token_in(""));
    given.insert("referer", token_in("http://h/?t=sct_"));
    given.insert("x-other", HeaderValue::from_str(&unknown).unwrap());
    let names = |only: Option<&[String]>| {
        let data = data(&given, b"", only, &tokens.scanner());
        let value = rmpv::decode::read_value(&mut data.as_slice()).unwrap();
        let pairs = value["headers"].as_map().unwrap().clone();
        pairs
            .iter()
            .map(|(name, _)| name.as_str().unwrap().to_owned())
            .collect::<Vec<_>>()
    };
    assert_eq!(names(None), ["Accept", "X-Gitlab-Event", "X-Other"]);
    let only = ["X-GITLAB-EVENT", "X-Gitlab-Token", "X-None"].map(str::to_owned);
    assert_eq!(names(Some(&only)), ["X-Gitlab-Event"]);
    let scanner = tokens.scanner();
    assert!(scanner.finds_in(format!("sct_sct_x{token}.").as_bytes()));
    assert!(!scanner.finds_in(unknown.as_bytes()) && !scanner.finds_in(b"sct_"));
    assert!(!scanner.finds_in(&token.as_bytes()[..token.len() - 1]));
}
