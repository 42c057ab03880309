//! Tests of hooks: tags, bodies and hops.

use super::*;
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
    ];
    let data = data(&headers(&given), b"{\"a\": 1}\xff");
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
    assert_eq!(bus(Some("bus=%2Fa")).unwrap().as_deref(), Some("/a"));
    assert!(
        bus(Some("buss=x"))
            .unwrap_err()
            .message
            .contains("unknown parameter")
    );
}
