//! A stuck sink on the page: what happens next, reasons of dead letters, and their change.

use std::io::{Read as _, Write as _};
use std::net::TcpListener;

use super::http_page::html;
use crate::cli::in_process::{LISTENER, token};
use crate::daemon::in_process::{Cellar, address, local, map, request, wait_for};
use crate::testkit::entries::Asks as _;
use rmpv::Value;

/// A destination that rejects every event, with its number in the reason; its port.
fn rejecting() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let answer = move || {
        for (n, stream) in listener.incoming().enumerate() {
            let mut stream = stream.unwrap();
            let mut got = Vec::new();
            let mut piece = [0; 4096];
            // The body ends with the JSON of one event.
            while !got.ends_with(b"}\n") && !got.ends_with(b"}") && !got.ends_with(b"]") {
                let count = stream.read(&mut piece).unwrap();
                if count == 0 {
                    break;
                }
                got.extend_from_slice(&piece[..count]);
            }
            let body = format!("field {n} is unknown");
            let answer = format!(
                "HTTP/1.1 400 Bad Request\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{body}",
                body.len()
            );
            // The sink may have gone at the end of the test.
            let _ = stream.write_all(answer.as_bytes());
        }
    };
    let thread = std::thread::Builder::new().name("rejecting".to_owned());
    thread.spawn(answer).unwrap();
    port
}

fn total(cellar: &Cellar) -> u64 {
    let letters = cellar.ask("sink_dead_letters", vec![("name", "dead".into())]);
    letters["total"].as_u64().unwrap()
}

#[test]
fn dead_letters_are_grouped_by_reason_and_an_administrator_changes_them() {
    let port = rejecting();
    let cellar = Cellar::start_configured(&format!(
        "{LISTENER}sinks:\n  dead:\n    match: [{{tag: 'dead/*'}}]\n    encoder: json\n    batch: {{count: 1, time: 0s}}\n    transport: {{http: {{url: 'http://127.0.0.1:{port}/'}}}}\n"
    ));
    for n in 0..3 {
        let tag = format!("dead/{n}");
        let event = map(vec![("tag", tag.as_str().into()), ("data", map(vec![]))]);
        cellar.ask("event_return", vec![("events", Value::Array(vec![event]))]);
    }
    wait_for("the dead letters", || (total(&cellar) == 3).then_some(()));

    let page = html(&local(&cellar, "GET", "/sinks/dead", b""));
    for part in [
        "Dead letters: 3",
        "What happens next",
        "Retry 3",
        "Drop 3",
        "saltcellar sinks dead-letters list dead",
    ] {
        assert!(page.contains(part), "{part} in {page}");
    }
    assert_eq!(
        page.matches("name=\"reason\"").count(),
        2,
        "one group: {page}"
    );
    let (_, reason) = page.split_once("name=\"reason\" value=\"").unwrap();
    let (reason, _) = reason.split_once('"').unwrap();
    assert!(reason.contains("field # is unknown"), "{reason}");

    // A reader sees no form, and cannot send one.
    let address = address(&cellar);
    let line = token(&cellar, &["r", "--scope", "read"]);
    let shown = html(&crate::daemon::in_process::get(
        &address,
        "/sinks/dead",
        &line,
    ));
    assert!(
        !shown.contains("<form method=\"post\" action=\"/sinks"),
        "{shown}"
    );
    let path = "/sinks/dead/dead-letters/drop";
    let body = format!(
        "reason={}",
        reason
            .replace('#', "%23")
            .replace(' ', "%20")
            .replace("&#x2f;", "/")
    );
    assert_eq!(
        request(&address, "POST", path, &line, body.as_bytes()).status,
        403
    );
    assert_eq!(total(&cellar), 3);

    let other = local(&cellar, "POST", path, b"reason=another");
    assert_eq!(
        (other.status, other.header("location")),
        (303, Some("/sinks/dead?drop=0"))
    );
    let empty = local(&cellar, "POST", path, b"reason=");
    assert_eq!(empty.header("location"), Some("/sinks/dead?drop=0"));
    assert_eq!(total(&cellar), 3, "none has an empty reason");
    let retried = local(&cellar, "POST", "/sinks/dead/dead-letters/retry", b"");
    assert_eq!(retried.header("location"), Some("/sinks/dead?retry=3"));
    let none = local(&cellar, "POST", "/sinks/dead/dead-letters/forget", b"");
    assert_eq!(none.status, 404, "{}", none.text());

    // The retried ones are rejected again, and stay.
    let dropped = local(&cellar, "POST", path, b"");
    assert_eq!(dropped.status, 303, "{}", dropped.text());
    wait_for("no dead letter", || {
        local(&cellar, "POST", path, b"");
        (total(&cellar) == 0).then_some(())
    });
    let page = html(&local(&cellar, "GET", "/sinks/dead?drop=3", b""));
    assert!(page.contains("Dropped: <bdi>3</bdi>"), "{page}");
}

#[test]
fn a_sink_that_retries_says_how_long_nothing_is_lost() {
    let cellar = Cellar::start_configured(&format!(
        "{LISTENER}sinks:\n  away: {{encoder: json, transport: {{http: {{url: 'http://127.0.0.1:9/'}}}}}}\n"
    ));
    cellar.store_numbered(0..2);
    let shown = wait_for("a failure", || {
        let page = html(&local(&cellar, "GET", "/sinks/away", b""));
        page.contains("retrying").then_some(page)
    });
    for part in [
        "It retries at least every",
        "d left</b>",
        "saltcellar sinks test away",
    ] {
        assert!(shown.contains(part), "{part} in {shown}");
    }
}
