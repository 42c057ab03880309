//! Compressed answers: the same text in every form, and what is never compressed.

use std::io::Read as _;

use super::http_page::{JID, put_job};
use crate::cli::in_process::{LISTENER, token};
use crate::daemon::in_process::{Answer, Cellar, address, get, stream};

/// The text of a response in this encoding.
fn decoded(answer: &Answer, encoding: &str) -> String {
    assert_eq!(answer.header("content-encoding"), Some(encoding));
    let mut text = String::new();
    match encoding {
        "gzip" => {
            let mut from = flate2::read::GzDecoder::new(&*answer.body);
            from.read_to_string(&mut text).unwrap();
        }
        _ => text = String::from_utf8(zstd::decode_all(&*answer.body).unwrap()).unwrap(),
    }
    text
}

#[test]
fn pages_and_answers_have_the_same_text_in_every_encoding() {
    let cellar = Cellar::start_configured(LISTENER);
    let address = address(&cellar);
    put_job(&cellar, JID, &["web1", "web2"], "x");
    let line = token(&cellar, &["r", "--scope", "read"]);

    for path in [
        format!("/jobs/{JID}"),
        format!("/api/v1/jobs/{JID}"),
        "/assets/page.css".to_owned(),
    ] {
        let whole = get(&address, &path, &line);
        assert_eq!(whole.header("content-encoding"), None, "{path}");
        assert_eq!(whole.header("vary"), Some("accept-encoding"), "{path}");
        for encoding in ["gzip", "zstd"] {
            let headers = format!("{line}accept-encoding: {encoding}\r\n");
            let short = get(&address, &path, &headers);
            assert!(
                short.body.len() * 2 < whole.body.len(),
                "{path}: {encoding}"
            );
            // The page states the second in which it was made.
            if path.starts_with("/jobs") {
                assert!(decoded(&short, encoding).contains("state.highstate"));
            } else {
                assert_eq!(
                    decoded(&short, encoding),
                    whole.text(),
                    "{path}: {encoding}"
                );
            }
        }
    }

    // Each form has a tag, and the peer that has one gets no body.
    let path = format!("/api/v1/jobs/{JID}");
    let tag = |encoding: &str, known: &str| {
        let headers = format!("{line}accept-encoding: {encoding}\r\nif-none-match: {known}\r\n");
        let answer = get(&address, &path, &headers);
        (answer.status, answer.header("etag").unwrap().to_owned())
    };
    let (_, plain) = tag("identity", "x");
    let (_, zstd) = tag("zstd", "x");
    assert_ne!(plain, zstd);
    assert_eq!(tag("zstd", &zstd), (304, zstd.clone()));
    assert_eq!(tag("zstd", &plain), (304, plain));
}

#[test]
fn streams_short_answers_and_visits_without_a_click_are_not_compressed() {
    let cellar = Cellar::start_configured(LISTENER);
    let address = address(&cellar);
    put_job(&cellar, JID, &["web1"], "x");
    let line = token(&cellar, &["r", "--scope", "read"]);
    let headers = format!("{line}accept-encoding: zstd, gzip\r\n");

    let short = get(&address, "/api/v1/consumers", &headers);
    assert_eq!(short.header("content-encoding"), None, "{}", short.text());
    let opened = stream(&address, "/api/v1/events/stream", &headers);
    assert_eq!(opened.answer.header("content-encoding"), None);

    let visit = format!("{headers}sec-fetch-site: same-origin\r\nsec-fetch-mode: navigate\r\n");
    assert_eq!(
        get(&address, "/jobs", &visit).header("content-encoding"),
        None
    );
    let click = format!("{visit}sec-fetch-user: ?1\r\n");
    assert_eq!(
        get(&address, "/jobs", &click).header("content-encoding"),
        Some("zstd")
    );
}
