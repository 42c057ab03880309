//! What one client of the HTTP listener may hold, and who is served meanwhile.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::os::unix::net::{UnixListener, UnixStream};

use saltcellar::base::limits::{HTTP_CALLS_OF_ONE, HTTP_PEERS_OF_ONE, HTTP_STREAMS_OF_ONE};

use rmpv::Value;

use crate::harness::{Asks as _, Cellar, in_dir, map, wait_for};
use crate::http::{LISTENER, address, connect, get, receive, request, token};

/// Sends the head of a GET request on an open connection.
fn ask(stream: &mut TcpStream, path: &str, headers: &str) {
    let head = format!("GET {path} HTTP/1.1\r\nhost: localhost\r\n{headers}\r\n");
    stream.write_all(head.as_bytes()).unwrap();
}

#[test]
fn one_token_holds_its_share_of_connections_and_none_after_its_revocation() {
    let cellar = Cellar::start_configured(LISTENER, &[]);
    let address = address(&cellar);
    let greedy = token(&cellar, &["greedy", "--scope", "read", "--minion", "none"]);
    let other = token(&cellar, &["other", "--scope", "read"]);
    let path = "/api/v1/events?limit=1";
    let mut held: Vec<_> = (0..HTTP_PEERS_OF_ONE)
        .map(|_| {
            let mut stream = connect(&address);
            ask(&mut stream, path, &greedy);
            assert_eq!(receive(&mut stream).status, 200);
            stream
        })
        .collect();
    let refused = get(&address, path, &greedy);
    assert!(
        refused.status == 429 && refused.text().contains("token greedy has"),
        "{}",
        refused.text()
    );
    assert_eq!(get(&address, path, &other).status, 200);
    assert_eq!(get(&address, "/metrics", "").status, 200);
    // Those that it has go on.
    ask(&mut held[0], path, &greedy);
    assert_eq!(receive(&mut held[0]).status, 200);

    cellar.ask("token_revoke", vec![("name", "greedy".into())]);
    for stream in &mut held {
        assert_eq!(stream.read(&mut [0]).unwrap_or(0), 0, "it is closed");
    }
    assert_eq!(get(&address, path, &greedy).status, 401);
    assert_eq!(get(&address, path, &other).status, 200);
}

#[test]
fn one_token_holds_its_share_of_streams() {
    let cellar = Cellar::start_configured(LISTENER, &[]);
    let address = address(&cellar);
    let greedy = token(&cellar, &["greedy", "--scope", "read"]);
    let other = token(&cellar, &["other", "--scope", "read"]);
    let path = "/api/v1/events/stream";
    let mut held = Vec::new();
    for _ in 0..HTTP_STREAMS_OF_ONE {
        let mut stream = connect(&address);
        ask(&mut stream, path, &greedy);
        assert_eq!(receive(&mut stream).status, 200);
        held.push(stream);
    }
    assert_eq!(get(&address, path, &greedy).status, 503);
    let mut another = connect(&address);
    ask(&mut another, path, &other);
    assert_eq!(receive(&mut another).status, 200);

    // A stream ends with the reason, without waiting for an event.
    cellar.ask("token_revoke", vec![("name", "greedy".into())]);
    for stream in &mut held {
        let mut rest = String::new();
        stream.read_to_string(&mut rest).unwrap();
        assert!(rest.contains("the token was revoked"), "{rest}");
    }
}

/// A bus of a master that hangs: its sockets exist and accept nothing.
struct HungMaster {
    _sockets: Vec<UnixListener>,
    _waiting: Vec<UnixStream>,
}

impl HungMaster {
    fn start(dir: &std::path::Path) -> Self {
        let (mut sockets, mut waiting) = (Vec::new(), Vec::new());
        for name in ["master_event_pub.ipc", "master_event_pull.ipc"] {
            let path = dir.join(name);
            let listener = UnixListener::bind(&path).unwrap();
            rustix::net::listen(&listener, 0).unwrap();
            // The backlog of zero has room for one.
            waiting.push(UnixStream::connect(&path).unwrap());
            sockets.push(listener);
        }
        Self {
            _sockets: sockets,
            _waiting: waiting,
        }
    }
}

#[test]
fn a_master_that_hangs_delays_neither_requests_nor_the_stop_of_the_daemon() {
    let dir = tempfile::tempdir().unwrap();
    let _master = HungMaster::start(dir.path());
    std::fs::write(dir.path().join("c.yaml"), in_dir(LISTENER, dir.path())).unwrap();
    let mut cellar = Cellar::start_in(dir, &["--config", "DIR/c.yaml", "--bus", "DIR"]);
    let address = address(&cellar);
    let write = token(&cellar, &["hooks", "--scope", "write"]);
    let fire = || {
        let (address, write) = (address.clone(), write.clone());
        let post = move || request(&address, "POST", "/hook/a", &write, b"{}");
        std::thread::Builder::new().spawn(post).unwrap()
    };
    let fired: Vec<_> = (0..12).map(|_| fire()).collect();
    // Hooks have threads of their own.
    for _ in 0..5 {
        let read = get(&address, "/api/v1/events?limit=1", &write);
        assert_eq!(read.status, 200, "{}", read.text());
        assert_eq!(get(&address, "/metrics", "").status, 200);
    }
    for fired in fired {
        let answer = fired.join().unwrap();
        assert!(
            answer.status == 503 && answer.text().contains("if it hangs"),
            "{}",
            answer.text()
        );
    }
    assert_eq!(cellar.counter("hook_events"), 0);
    let last = fire();
    wait_for("a request", || {
        (cellar.counter("http_requests") >= 23).then_some(())
    });
    assert!(cellar.terminate());
    let _ = last.join();
}

/// The highest resident memory of the daemon so far, in MiB.
fn peak(cellar: &Cellar) -> u64 {
    let path = format!("/proc/{}/status", cellar.process.0.id());
    let status = std::fs::read_to_string(path).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kib: u64 = line
        .unwrap()
        .trim()
        .trim_end_matches(" kB")
        .parse()
        .unwrap();
    kib / 1024
}

/// Whether the peer of a connection that does not read has had the begin of its response, and the daemon has closed its end.
fn is_cut_off(address: &str, stream: &TcpStream) -> bool {
    let mut head = [0; 12];
    if stream.peek(&mut head).is_err() || !head.ends_with(b" 200") {
        return false;
    }

    let port = |address: &str| {
        let port: u16 = address.rsplit(':').next().unwrap().parse().unwrap();
        format!(":{port:04X}")
    };
    let (ours, theirs) = (
        port(&stream.local_addr().unwrap().to_string()),
        port(address),
    );
    let table = std::fs::read_to_string("/proc/self/net/tcp").unwrap();
    let is_open = table.lines().any(|row| {
        let columns: Vec<_> = row.split_whitespace().take(4).collect();
        // 01: established.
        matches!(&columns[..], [_, local, remote, "01"] if local.ends_with(&theirs) && remote.ends_with(&ours))
    });
    !is_open
}

/// Stores events; a response with all of them is as long as answers get.
fn store_large(cellar: &Cellar) {
    for n in 0..4 {
        let text = "x".repeat(4 << 20);
        let data = map(vec![("n", n.into()), ("text", text.into())]);
        let event = map(vec![("tag", "big".into()), ("data", data)]);
        cellar.ask("event_return", vec![("events", Value::Array(vec![event]))]);
    }
}

/// What a peer knows of its response.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Answer {
    /// Nothing has come.
    Awaited,
    /// It is not the one that was asked for.
    Refused,
    /// It has begun.
    Served,
    /// It ended, or the connection did.
    Ended,
}

/// A peer that reads its response slowly, or not at all.
struct SlowReader {
    stream: TcpStream,
    reads: bool,
    answer: Answer,
}

impl SlowReader {
    fn ask(address: &str, path: &str, token: &str, reads: bool) -> Self {
        let mut stream = connect(address);
        ask(&mut stream, path, token);
        stream.set_nonblocking(true).unwrap();
        Self {
            stream,
            reads,
            answer: Answer::Awaited,
        }
    }

    /// Looks for the begin of a response, and then reads a small piece of it.
    fn go_on(&mut self, address: &str) {
        match self.answer {
            Answer::Awaited => {
                let mut head = [0; 12];
                let peeked = self.stream.peek(&mut head);
                if peeked.is_ok_and(|got| got == head.len()) {
                    let is_served = head.ends_with(b" 200");
                    self.answer = if is_served {
                        Answer::Served
                    } else {
                        Answer::Refused
                    };
                }
            }
            Answer::Served => {
                if self.has_ended(address) {
                    self.answer = Answer::Ended;
                }
            }
            Answer::Refused | Answer::Ended => {}
        }
    }

    fn has_ended(&mut self, address: &str) -> bool {
        if !self.reads {
            return is_cut_off(address, &self.stream);
        }
        let is_waiting = |error: std::io::Error| error.kind() == std::io::ErrorKind::WouldBlock;
        let got = self.stream.read(&mut [0; 16 * 1024]);
        got.map_or_else(|error| !is_waiting(error), |got| got == 0)
    }
}

#[test]
fn slow_readers_of_large_answers_do_not_delay_metrics_and_health() {
    /// Tokens, each with as many requests as one may have carried out at the same time.
    const TOKENS: usize = 40 / HTTP_CALLS_OF_ONE;

    let cellar = Cellar::start_configured(LISTENER, &[]);
    let address = address(&cellar);
    store_large(&cellar);
    let mut slow = Vec::new();
    for n in 0..TOKENS {
        let token = token(&cellar, &[&format!("slow{n}"), "--scope", "read"]);
        let one = |reads| SlowReader::ask(&address, "/api/v1/events", &token, reads);
        slow.extend((0..HTTP_CALLS_OF_ONE).map(|n| one(n % 2 == 0)));
    }
    wait_for("slow readers that are served", || {
        for reader in &mut slow {
            reader.go_on(&address);
        }
        let is_served = |reads| {
            let of_kind = |of: &SlowReader| of.answer == Answer::Served && of.reads == reads;
            slow.iter().any(of_kind)
        };
        (is_served(true) && is_served(false)).then_some(())
    });

    // A request that waits for a slow reader is answered after one of them has ended. On a busy host one can end beside a
    // request that did not wait, but hardly beside each of five.
    let mut count_ended = || {
        for reader in &mut slow {
            reader.go_on(&address);
        }
        let is_ended = |of: &&SlowReader| of.answer == Answer::Ended;
        slow.iter().filter(is_ended).count()
    };
    for path in ["/metrics", "/healthz"] {
        let was_at_once = (0..5).any(|_| {
            let before = count_ended();
            assert_eq!(get(&address, path, "").status, 200);
            count_ended() == before
        });
        assert!(was_at_once, "{path} is answered when a slow reader ends");
    }

    // Nor had they to wait for the requests that wait for a thread.
    let is_waiting = |of: &&SlowReader| of.answer == Answer::Awaited;
    let waiting = slow.iter().filter(is_waiting).count();
    assert!(waiting > 0, "none of {} slow readers waits", slow.len());
}

#[test]
fn unread_answers_take_bounded_memory_and_their_readers_are_disconnected() {
    /// Tokens.
    const READERS: usize = 6;
    const PATHS: [&str; 2] = [
        "/api/v1/events",
        "/api/v1/events/stream?since=2020-01-01T00:00:00Z",
    ];
    /// What the daemon may take for all responses, in MiB.
    const GROWN_MAX: u64 = 700;

    // Connections of each token: every other one reads a stream. A debug build takes most of the test's time to make the responses.
    let is_long = std::env::var_os("CI").is_some_and(|ci| !ci.is_empty());
    let peers = if is_long { 40 } else { 16 };
    let unread_mib = READERS * peers * 16;

    let cellar = Cellar::start_configured(LISTENER, &[]);
    let address = address(&cellar);
    store_large(&cellar);
    let tokens: Vec<_> = (0..READERS)
        .map(|n| token(&cellar, &[&format!("reader{n}"), "--scope", "read"]))
        .collect();
    let other = token(&cellar, &["other", "--scope", "read"]);
    let before = peak(&cellar);

    let requests = cellar.counter("http_requests");
    let unread: Vec<_> = tokens
        .iter()
        .flat_map(|token| (0..peers).map(move |n| (token, PATHS[n % 2])))
        .map(|(token, path)| {
            let mut stream = connect(&address);
            ask(&mut stream, path, token);
            stream.set_nonblocking(true).unwrap();
            stream
        })
        .collect();
    wait_for("the requests", || {
        let all = requests + unread.len() as u64;
        (cellar.counter("http_requests") >= all).then_some(())
    });

    // Others are served meanwhile: one that waits for room gets it when the slow ones are disconnected.
    assert_eq!(get(&address, "/metrics", "").status, 200);
    assert_eq!(get(&address, "/api/v1/jobs", &other).status, 200);

    // The responses do not fit into the buffers of the connections, and a peer must read.
    let slow = wait_for("the end of a slow reader", || {
        unread
            .iter()
            .position(|stream| is_cut_off(&address, stream))
    });
    let grown = peak(&cellar).saturating_sub(before);
    assert!(
        grown < GROWN_MAX,
        "{grown} MiB for {unread_mib} MiB of unread responses"
    );
    let mut rest = Vec::new();
    unread[slow].set_nonblocking(false).unwrap();
    // The close may reset the connection.
    let _ = (&unread[slow]).read_to_end(&mut rest);
    assert!(rest.len() < 16 << 20, "it got the whole response");

    // Their room is free once they are gone.
    drop(unread);
    wait_for("room for a response", || {
        let answer = get(&address, "/api/v1/events?limit=1", &other);
        (answer.status == 200).then_some(())
    });
}
