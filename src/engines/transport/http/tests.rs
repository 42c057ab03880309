//! Requests to a local receiver that accepts, refuses, delays and breaks off.

use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};

use super::super::tests::{items, open_with};
use super::*;

/// A receiver that reads one request per answer and closes the connection. The requests arrive in the channel.
pub(in crate::engines) fn receiver(
    answers: Vec<String>,
) -> (u16, crossbeam_channel::Receiver<String>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let (tx, rx) = crossbeam_channel::bounded(1_000);
    let serve = move || {
        for answer in answers {
            let (mut stream, _) = listener.accept().unwrap();
            tx.send(request(&mut stream)).unwrap();
            // The peer may have closed the connection.
            let _ = stream.write_all(answer.as_bytes());
        }
    };
    std::thread::Builder::new()
        .name("receiver".to_owned())
        .spawn(serve)
        .unwrap();
    (port, rx)
}

/// Reads one request with a `content-length`.
pub(in crate::engines) fn request(stream: &mut TcpStream) -> String {
    let mut text = Vec::new();
    let mut byte = [0];
    while !text.ends_with(b"\r\n\r\n") {
        stream.read_exact(&mut byte).unwrap();
        text.push(byte[0]);
    }
    let head = String::from_utf8(text).unwrap();
    let length = head.lines().find_map(|line| {
        line.to_ascii_lowercase()
            .strip_prefix("content-length: ")?
            .parse()
            .ok()
    });
    let mut body = vec![0; length.unwrap_or(0)];
    stream.read_exact(&mut body).unwrap();
    match String::from_utf8(body) {
        Ok(text) => head + &text,
        Err(binary) => {
            let mut text = String::new();
            flate2::read::GzDecoder::new(binary.as_bytes())
                .read_to_string(&mut text)
                .unwrap();
            head + &text
        }
    }
}

/// A response with this status line and body.
pub(in crate::engines) fn answer(status: &str, headers: &str, body: &str) -> String {
    format!(
        "HTTP/1.1 {status}\r\ncontent-length: {}\r\nconnection: close\r\n{headers}\r\n{body}",
        body.len()
    )
}

fn deps() -> Dependencies {
    super::super::tests::deps(&Clock::manual(Micros(1_795_000_000_000_000)))
}

/// Delivers three items to a receiver with this answer; returns the result and the request.
fn deliver(options: &str, answer: String) -> (Result<Vec<Rejected>, DeliverError>, String) {
    let (port, requests) = receiver(vec![answer]);
    let options = format!("{{url: 'http://127.0.0.1:{port}/in', {options}}}");
    let result = open_with(&KIND, &options, &deps()).deliver(&items(&["a", "b", "c"]), None);
    (result, requests.recv().unwrap())
}

#[test]
fn items_are_framed_and_sent_with_headers() {
    let options =
        "headers: {Content-Type: text/plain}, body: {prefix: '[', separator: ',', suffix: ']'}";
    let (result, request) = deliver(options, answer("204 No Content", "", ""));
    assert_eq!(result, Ok(vec![]));
    assert!(
        request.starts_with("POST /in HTTP/1.1\r\n") && request.ends_with("\r\n\r\n[a,b,c]"),
        "{request}"
    );
    let lower = request.to_ascii_lowercase();
    assert!(
        lower.contains("\r\ncontent-type: text/plain\r\n"),
        "{request}"
    );
    assert!(lower.contains("\r\nuser-agent: saltcellar/"), "{request}");
    let (result, request) = deliver("compress: gzip, method: PUT", answer("200 OK", "", "fine"));
    assert_eq!(result, Ok(vec![]));
    assert!(
        request.starts_with("PUT ") && request.ends_with("\r\n\r\nabc"),
        "{request}"
    );
}

#[test]
fn each_status_means_delivered_refused_or_later() {
    let retry = |options: &str, status: &str, headers: &str| match deliver(
        options,
        answer(status, headers, "why"),
    )
    .0
    {
        Err(DeliverError::Retry { reason, after }) => (reason, after),
        other => panic!("{status}: {other:?}"),
    };
    assert_eq!(
        retry("", "503 Service Unavailable", ""),
        ("503 Service Unavailable: why".to_owned(), None)
    );
    assert_eq!(
        retry("", "429 Too Many Requests", "Retry-After: 7\r\n").1,
        Some(Duration::from_secs(7))
    );
    let date = "Retry-After: Wed, 18 Nov 2026 11:07:10 GMT\r\n";
    assert_eq!(
        retry("", "503 Service Unavailable", date).1,
        Some(Duration::from_secs(30))
    );
    assert_eq!(
        retry("", "429 Too Many Requests", "Retry-After: 999999\r\n").1,
        Some(SINK_RETRY_AFTER_MAX)
    );
    assert_eq!(
        retry("", "429 Too Many Requests", "Retry-After: soon\r\n").1,
        None
    );
    for (status, remedy) in [
        ("301 Moved Permanently", " (correct the sink's address)"),
        (
            "401 Unauthorized",
            " (correct the sink's credentials, or their rights)",
        ),
        ("404 Not Found", " (correct the sink's address)"),
        ("500 Internal Server Error", ""),
    ] {
        assert_eq!(retry("", status, "").0, format!("{status}{remedy}: why"));
    }
    for status in [
        "400 Bad Request",
        "413 Payload Too Large",
        "422 Unprocessable Entity",
    ] {
        let (result, _) = deliver("", answer(status, "", "why"));
        assert!(
            matches!(&result, Err(DeliverError::Refused { reason }) if reason.ends_with(": why")),
            "{result:?}"
        );
    }
    assert_eq!(
        deliver("accept: [409]", answer("409 Conflict", "", "known")).0,
        Ok(vec![])
    );
}

#[test]
fn broken_connections_and_answers_are_sent_again() {
    for broken in [
        "",
        "HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\nhalf",
        "garbage\r\n\r\n",
    ] {
        let (result, _) = deliver("", broken.to_owned());
        assert!(
            matches!(result, Err(DeliverError::Retry { .. })),
            "{broken:?}: {result:?}"
        );
    }
    let closed = TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap();
    let mut transport = open_with(&KIND, &format!("url: 'http://{closed}/'"), &deps());
    let error = transport
        .deliver(&items(&["a"]), None)
        .unwrap_err()
        .to_string();
    assert!(error.contains("refused"), "{error}");
    assert!(transport.check().unwrap_err().contains("does not respond"));
    // A receiver that accepts connections and never answers.
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let options = format!(
        "{{url: 'http://{}/', timeout: 1s}}",
        silent.local_addr().unwrap()
    );
    let error = open_with(&KIND, &options, &deps())
        .deliver(&items(&["a"]), None)
        .unwrap_err()
        .to_string();
    assert!(error.starts_with("timeout"), "{error}");
}

#[test]
fn errors_of_items_are_found_in_the_answer() {
    let options =
        "item_errors: {list: items, status: '*.status', reason: '*.error.reason', accept: [409]}";
    let body = r#"{"errors":true,"items":[{"create":{"status":201}},{"create":{"status":400,"error":{"reason":"bad"}}},{"create":{"status":409}}]}"#;
    let rejected = Rejected {
        index: 1,
        reason: "400: bad".to_owned(),
        is_temporary: false,
    };
    assert_eq!(
        deliver(options, answer("200 OK", "", body)).0,
        Ok(vec![rejected])
    );
    let (result, _) = deliver(options, answer("200 OK", "", "<html>"));
    assert!(
        matches!(&result, Err(DeliverError::Retry { reason, .. }) if reason.contains("not JSON")),
        "{result:?}"
    );
}

#[test]
fn secrets_are_sent_and_shown_nowhere() {
    let dir = tempfile::tempdir().unwrap();
    let file = |name: &str, text: &str| {
        std::fs::write(dir.path().join(name), text).unwrap();
        format!("'file:{}/{name}'", dir.path().display())
    };
    let echo = answer(
        "503 Service Unavailable",
        "X-Echo: t0ken\r\n",
        "key h3ader, t0ken and /hook-s3cret are not welcome, nor is %2Fhook%2ds3cret, hook-s3cret, L2hvb2stczNjcmV0",
    );
    let (port, requests) = receiver(vec![echo.clone(), echo]);
    let url = file("url", &format!("http://127.0.0.1:{port}/hook-s3cret"));
    let (token, header) = (file("token", "t0ken\n"), file("header", "h3ader"));
    let options =
        format!("{{url: {url}, auth: {{bearer: {token}}}, headers: {{X-Key: {header}}}}}");
    let settings = (KIND.build)(&crate::config::read_yaml(&options).unwrap()).unwrap();
    let mut transport = super::super::open(&*settings, &deps());
    let mut transcript = Transcript::default();
    let error = transport
        .deliver(&items(&["a"]), Some(&mut transcript))
        .unwrap_err();
    let request = requests.recv().unwrap().to_ascii_lowercase();
    assert!(
        request.contains("authorization: bearer t0ken") && request.contains("x-key: h3ader"),
        "{request}"
    );
    assert!(request.starts_with("post /hook-s3cret "), "{request}");
    let shown = format!(
        "{error} {transcript:?} {} {settings:?} {:?}",
        settings.describe(),
        transport.check()
    );
    for secret in ["t0ken", "h3ader", "s3cret", "L2hvb2stczN"] {
        assert!(!shown.contains(secret), "{secret}: {shown}");
    }
    assert!(
        transcript
            .request
            .contains("authorization: Bearer [redacted]"),
        "{transcript:?}"
    );
    // A rejected credential is reread.
    std::fs::remove_file(dir.path().join("token")).unwrap();
    transport.reopen();
    let error = transport
        .deliver(&items(&["a"]), None)
        .unwrap_err()
        .to_string();
    assert!(
        error.starts_with("cannot read the secret file:/"),
        "{error}"
    );
}

#[test]
fn invalid_settings_name_the_option() {
    for (options, path) in [
        ("url: 'ftp://a/b'", "url"),
        ("url: nowhere", "url"),
        ("{url: 'http://a', method: GET}", "method"),
        ("{url: 'http://a', headers: {'a b': c}}", "headers.a b"),
        ("{url: 'http://a', timeout: 0s}", "timeout"),
        ("{url: 'http://a', tls: {key: /k}}", "tls"),
        ("{url: 'http://a', limits: {count: 0}}", "limits.count"),
        (
            "{url: 'http://a', auth: {token: {scheme: X}}}",
            "auth.token",
        ),
        ("{url: 'http://a', auth: {bearer: inline}}", "auth.bearer"),
        ("{url: 'http://a', compress: lzma}", "compress"),
    ] {
        let error = (KIND.build)(&crate::config::read_yaml(options).unwrap()).unwrap_err();
        assert_eq!(error.path, path, "{options}: {error:?}");
    }
    let shown = (KIND.build)(
        &crate::config::read_yaml("url: 'https://u:p@h.example:8443/a?key=x'").unwrap(),
    )
    .unwrap();
    assert_eq!(shown.describe(), "https://h.example:8443/a");
}
