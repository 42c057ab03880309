//! The HTTP listener from outside: access, tokens, health, hostile requests.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::UnixStream;

use saltcellar_testkit::DEADLINE;
use serde_json::Value as Json;

use crate::fake_daemon::{program, stderr, stdout};
use crate::harness::{Asks as _, Cellar, wait_for};

pub(crate) const LISTENER: &str = "http: {listen: '127.0.0.1:0', unix: DIR/http.sock}\n";

/// A response.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) head: String,
    pub(crate) body: Vec<u8>,
}

impl Answer {
    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    pub(crate) fn json(&self) -> Json {
        serde_json::from_slice(&self.body)
            .unwrap_or_else(|error| panic!("{error}: {}", self.text()))
    }

    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.head.lines().find_map(|line| {
            let (found, value) = line.split_once(':')?;
            found.eq_ignore_ascii_case(name).then(|| value.trim())
        })
    }
}

/// The address of the listener.
pub(crate) fn address(cellar: &Cellar) -> String {
    wait_for("the HTTP listener", || {
        let status = cellar.ask("status", vec![]);
        (status["http"]["state"].as_str() == Some("open"))
            .then(|| status["http"]["listen"].as_str().unwrap().to_owned())
    })
}

/// Reads one response.
pub(crate) fn receive(stream: &mut impl Read) -> Answer {
    let mut bytes = Vec::new();
    let mut piece = vec![0; 64 * 1024];
    let end = loop {
        if let Some(end) = bytes.windows(4).position(|window| window == b"\r\n\r\n") {
            break end + 4;
        }
        let got = stream.read(&mut piece).unwrap();
        assert!(got > 0, "closed: {:?}", String::from_utf8_lossy(&bytes));
        bytes.extend_from_slice(&piece[..got]);
    };
    let head = String::from_utf8_lossy(&bytes[..end]).into_owned();
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    let mut answer = Answer {
        status,
        head,
        body: bytes.split_off(end),
    };
    let len = answer
        .header("content-length")
        .map_or(0, |len| len.parse().unwrap());
    while answer.body.len() < len {
        let got = stream.read(&mut piece).unwrap();
        assert!(got > 0, "closed within the body");
        answer.body.extend_from_slice(&piece[..got]);
    }
    answer
}

pub(crate) fn connect(address: &str) -> TcpStream {
    let stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(DEADLINE)).unwrap();
    stream
}

/// Sends raw bytes over TCP, and reads one response.
pub(crate) fn raw(address: &str, request: &[u8]) -> Answer {
    let mut stream = connect(address);
    stream.write_all(request).unwrap();
    receive(&mut stream)
}

/// A request with these header lines.
pub(crate) fn request(
    address: &str,
    method: &str,
    path: &str,
    headers: &str,
    body: &[u8],
) -> Answer {
    let head = format!(
        "{method} {path} HTTP/1.1\r\nhost: {address}\r\n{headers}content-length: {}\r\n\r\n",
        body.len()
    );
    raw(address, &[head.as_bytes(), body].concat())
}

pub(crate) fn get(address: &str, path: &str, headers: &str) -> Answer {
    request(address, "GET", path, headers, b"")
}

/// A request over the unix socket.
pub(crate) fn local(cellar: &Cellar, method: &str, path: &str, body: &[u8]) -> Answer {
    let mut stream = UnixStream::connect(cellar.dir.path().join("http.sock")).unwrap();
    stream.set_read_timeout(Some(DEADLINE)).unwrap();
    let head = format!(
        "{method} {path} HTTP/1.1\r\nhost: localhost\r\ncontent-length: {}\r\n\r\n",
        body.len()
    );
    stream.write_all(&[head.as_bytes(), body].concat()).unwrap();
    receive(&mut stream)
}

/// The header line of a new token.
pub(crate) fn token(cellar: &Cellar, args: &[&str]) -> String {
    let output = program()
        .args(["tokens", "create"])
        .args(args)
        .arg("--socket")
        .arg(cellar.socket())
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", stderr(&output));
    format!(
        "authorization: Bearer {}\r\n",
        stdout(&output).lines().last().unwrap()
    )
}

#[test]
fn health_needs_no_token_and_everything_else_does() {
    let cellar = Cellar::start_configured(LISTENER, &[]);
    let address = address(&cellar);
    let healthy = get(&address, "/healthz", "");
    assert_eq!((healthy.status, healthy.text().as_str()), (200, "ok\n"));
    assert_eq!(healthy.header("x-content-type-options"), Some("nosniff"));
    assert_eq!(healthy.header("access-control-allow-origin"), None);
    assert_eq!(get(&address, "/readyz", "").text(), "ready\n");
    let denied = get(&address, "/nowhere", "");
    assert_eq!(
        (denied.status, denied.json()["error"]["code"].as_str()),
        (401, Some("unauthenticated"))
    );
    assert!(
        denied
            .header("www-authenticate")
            .unwrap()
            .starts_with("Bearer")
    );
    let token = token(&cellar, &["ci", "--scope", "read"]);
    let unknown = get(&address, "/nowhere", &token);
    assert_eq!(
        (unknown.status, unknown.json()["error"]["code"].as_str()),
        (404, Some("not_found"))
    );
    assert_eq!(
        request(&address, "POST", "/healthz", &token, b"").status,
        405
    );
    assert_eq!(local(&cellar, "GET", "/healthz", b"").status, 200);
    assert_eq!(
        local(&cellar, "GET", "/nowhere", b"").status,
        404,
        "root needs no token on the unix socket"
    );
    for wrong in [
        "authorization: Bearer sct_x\r\n",
        "authorization: Basic YTpi\r\n",
        &token.replace("Bearer", "Token"),
    ] {
        assert_eq!(get(&address, "/nowhere", wrong).status, 401, "{wrong}");
    }
    let revoked = program()
        .args(["tokens", "revoke", "ci", "--socket"])
        .arg(cellar.socket())
        .output()
        .unwrap();
    assert!(revoked.status.success(), "{}", stderr(&revoked));
    assert_eq!(get(&address, "/nowhere", &token).status, 401);
    for words in ["audit", "token ci", "token created"] {
        cellar.logged(words);
    }
    let log = cellar.log();
    assert!(!log.contains("sct_"), "no token is logged: {log}");
}

#[test]
fn the_log_has_who_reads_what_and_no_token() {
    let cellar = Cellar::start_configured(LISTENER, &[]);
    let address = address(&cellar);
    let line = token(&cellar, &["web", "--scope", "read", "--minion", "web*"]);
    let secret = line.trim().rsplit(' ').next().unwrap();
    let job = "/api/v1/jobs/20261121054728123456";
    assert_eq!(get(&address, job, &line).status, 404);

    // In a form, and in an address, where it counts as none.
    let origin =
        format!("origin: http://{address}\r\ncontent-type: application/x-www-form-urlencoded\r\n");
    let form = format!("token={secret}&next=/");
    let signed_in = request(&address, "POST", "/sign-in", &origin, form.as_bytes());
    assert_eq!(signed_in.status, 303);
    let stream = "accept: text/event-stream\r\n";
    let in_address = get(&address, &format!("/events?token={secret}"), stream);
    assert_eq!(in_address.status, 401);

    for words in ["token web", job, "signed in to the page"] {
        cellar.logged(words);
    }
    let log = cellar.log();
    assert!(!log.contains(secret), "{log}");
}

#[test]
fn tokens_survive_a_restart_and_are_not_in_the_state_directory() {
    let mut cellar = Cellar::start_configured(LISTENER, &["--log-level", "error"]);
    let line = token(&cellar, &["ci", "--scope", "write", "--minion", "web*"]);
    let text = line.trim().rsplit(' ').next().unwrap().to_owned();
    assert!(cellar.terminate());
    let mut logs = 0;
    for segment in std::fs::read_dir(cellar.state_dir().join("log/settings")).unwrap() {
        let log = segment.unwrap().path().join("log");
        let stored = std::fs::read(&log).unwrap();
        assert!(memchr::memmem::find(&stored, text.as_bytes()).is_none());
        let mode = std::fs::metadata(&log).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        logs += 1;
    }
    assert_eq!(logs, 2);
    cellar.restart();
    assert_eq!(get(&address(&cellar), "/nowhere", &line).status, 404);
    let listed = program()
        .args(["tokens", "list", "--output", "json", "--socket"])
        .arg(cellar.socket())
        .output()
        .unwrap();
    let listed: Json = serde_json::from_str(&stdout(&listed)).unwrap();
    assert_eq!(listed["tokens"][0]["name"], "ci");
    assert_eq!(listed["tokens"][0]["minions"], "web*");
    assert!(!listed.to_string().contains("hash"), "{listed}");
    // The audit log does not depend on the level.
    cellar.logged("HTTP request");
}

#[test]
fn a_network_listener_serves_only_tls() {
    let dir = tempfile::tempdir().unwrap();
    let data = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("salt/tests/data/https");
    for (from, to) in [("server.pem", "tls.pem"), ("server.key", "tls.key")] {
        std::fs::copy(data.join(from), dir.path().join(to)).unwrap();
    }
    let text = "http: {listen: '0.0.0.0:0', tls: {certificate: DIR/tls.pem, key: DIR/tls.key}}\n";
    std::fs::write(
        dir.path().join("c.yaml"),
        crate::harness::in_dir(text, dir.path()),
    )
    .unwrap();
    let cellar = Cellar::start_in(dir, &["--config", "DIR/c.yaml"]);
    let port = address(&cellar).rsplit(':').next().unwrap().to_owned();
    let mut plain = connect(&format!("127.0.0.1:{port}"));
    plain
        .write_all(b"GET /healthz HTTP/1.1\r\nhost: a\r\n\r\n")
        .unwrap();
    let mut answer = Vec::new();
    // The close may reset the connection.
    let _ = plain.read_to_end(&mut answer);
    assert!(!answer.starts_with(b"HTTP"), "{answer:?}");
    cellar.counted("http_handshakes_failed", 1);
    let ca = std::fs::read(data.join("ca.pem")).unwrap();
    let to = format!("127.0.0.1:{port}").parse().unwrap();
    let address = saltcellar_testkit::minion::Address::new(to, "localhost", &ca).unwrap();
    let mut connection = saltcellar_testkit::minion::HttpsConnection::connect(&address).unwrap();
    assert_eq!(
        connection.request("GET", "/healthz", b"").unwrap().status,
        200
    );
    assert_eq!(
        connection.request("GET", "/metrics", b"").unwrap().status,
        401,
        "no token, not loopback"
    );
    cellar.logged("HTTP listener has no token");
}

#[test]
fn requests_of_web_pages_are_rejected() {
    let cellar = Cellar::start_configured(LISTENER, &[]);
    let address = address(&cellar);
    for (head, status) in [
        ("GET /healthz HTTP/1.1\r\nhost: evil.example\r\n\r\n", 403),
        (
            "GET /healthz HTTP/1.1\r\nhost: localhost\r\norigin: https://evil.example\r\n\r\n",
            403,
        ),
        (
            "GET /healthz HTTP/1.1\r\nhost: localhost\r\nsec-fetch-site: cross-site\r\n\r\n",
            403,
        ),
        ("GET /healthz HTTP/1.1\r\n\r\n", 400),
        (
            "GET /healthz HTTP/1.1\r\nhost: localhost\r\nhost: localhost\r\n\r\n",
            400,
        ),
        (
            "OPTIONS /healthz HTTP/1.1\r\nhost: localhost\r\norigin: null\r\naccess-control-request-method: POST\r\n\r\n",
            403,
        ),
    ] {
        let answer = raw(&address, head.as_bytes());
        assert_eq!(answer.status, status, "{head}: {}", answer.text());
        assert_eq!(answer.header("access-control-allow-origin"), None);
    }
    cellar.counted("http_rejected_cross_site", 4);
}

#[test]
fn a_second_request_cannot_hide_in_the_first() {
    let cellar = Cellar::start_configured(LISTENER, &[]);
    let address = address(&cellar);
    let hidden = "GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n";
    for head in [
        "content-length: 0\r\ntransfer-encoding: chunked\r\n",
        "transfer-encoding: chunked\r\ncontent-length: 3\r\n",
        "content-length: 3\r\ncontent-length: 4\r\n",
        "transfer-encoding: xchunked\r\n",
        "transfer-encoding : chunked\r\n",
        "content-length: +3\r\n",
    ] {
        let mut stream = connect(&address);
        let text =
            format!("POST /healthz HTTP/1.1\r\nhost: localhost\r\n{head}\r\n0\r\n\r\n{hidden}");
        stream.write_all(text.as_bytes()).unwrap();
        let mut answers = Vec::new();
        // A close with unread bytes resets the connection.
        let _ = stream.read_to_end(&mut answers);
        let answers = String::from_utf8_lossy(&answers).into_owned();
        assert_eq!(answers.matches("HTTP/1.1 ").count(), 1, "{head}: {answers}");
        assert!(!answers.contains("ok\n"), "{head}: {answers}");
    }
}

#[test]
fn long_heads_and_connections_without_a_request_end() {
    let mut cellar = Cellar::start_configured(LISTENER, &[]);
    let address = address(&cellar);
    let long = format!(
        "GET /healthz HTTP/1.1\r\nhost: localhost\r\nx: {}\r\n\r\n",
        "x".repeat(64 * 1024)
    );
    assert_eq!(raw(&address, long.as_bytes()).status, 431);
    let many = format!(
        "GET /healthz HTTP/1.1\r\nhost: localhost\r\n{}\r\n",
        "a: b\r\n".repeat(200)
    );
    assert_eq!(raw(&address, many.as_bytes()).status, 431);
    // An idle connection does not delay the stop.
    let mut idle = connect(&address);
    idle.write_all(b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n")
        .unwrap();
    assert_eq!(receive(&mut idle).status, 200);
    assert!(cellar.terminate());
    assert_eq!(idle.read(&mut [0; 8]).unwrap(), 0);
    assert!(!cellar.dir.path().join("http.sock").exists());
}
