//! The ZeroMQ sockets with hand-written ZMTP peers, valid and invalid.

use std::io::{ErrorKind, Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::Duration;

use rmpv::Value;
use saltcellar::wire::zmtp;
use saltcellar_testkit::Random;

use crate::fake_daemon::program;
use crate::harness::{Asks as _, Cellar, read_to_end, wait_for};

const SOCKETS: &str = "zeromq: {pull: 'ipc://DIR/z/in.sock', pub: 'ipc://DIR/z/out.sock'}\n";

fn start() -> Cellar {
    Cellar::start_configured(SOCKETS, &[])
}

fn place(cellar: &Cellar, name: &str) -> PathBuf {
    cellar.dir.path().join("z").join(name)
}

/// The greeting and READY command of a socket of that type.
pub(crate) fn hello(socket_type: &str) -> Vec<u8> {
    let mut hello = zmtp::greeting().to_vec();
    let len = u8::try_from(socket_type.len()).unwrap();
    let ready = [
        b"\x05READY\x0bSocket-Type\0\0\0",
        &[len][..],
        socket_type.as_bytes(),
    ]
    .concat();
    hello.extend_from_slice(&[4, u8::try_from(ready.len()).unwrap()]);
    hello.extend_from_slice(&ready);
    hello
}

pub(crate) fn message(parts: &[&[u8]]) -> Vec<u8> {
    let mut out = Vec::new();
    zmtp::put_message(&mut out, parts);
    out
}

fn event(tag: &str, n: u64) -> Vec<u8> {
    let mut data = Vec::new();
    rmpv::encode::write_value(&mut data, &Value::Map(vec![("n".into(), n.into())])).unwrap();
    message(&[tag.as_bytes(), b"\n\n", &data])
}

/// A peer after the handshake.
pub(crate) struct Peer(UnixStream);

impl Peer {
    fn greeted(cellar: &Cellar, source: &str, socket_type: &str) -> Self {
        Self::try_greeted(cellar, source, socket_type).unwrap()
    }

    fn try_greeted(cellar: &Cellar, source: &str, socket_type: &str) -> std::io::Result<Self> {
        let mut stream = UnixStream::connect(place(cellar, source))?;
        stream.set_read_timeout(Some(Duration::from_secs(30)))?;
        stream.write_all(&hello(socket_type))?;
        let mut theirs = [0; 64];
        stream.read_exact(&mut theirs)?;
        assert!(theirs.starts_with(&[0xff]));
        let mut header = [0; 2];
        stream.read_exact(&mut header)?;
        assert_eq!(header[0], 4, "a short command");
        stream.read_exact(&mut vec![0; usize::from(header[1])])?;
        Ok(Self(stream))
    }

    pub(crate) fn push(cellar: &Cellar) -> Self {
        Self::greeted(cellar, "in.sock", "PUSH")
    }

    /// A subscriber to prefixes, after its subscriptions have arrived: `push` sends marked events until it receives one.
    fn sub(cellar: &Cellar, push: &mut Peer, prefixes: &[&str]) -> Self {
        let mut peer = Self::greeted(cellar, "out.sock", "SUB");
        // The last one, so that the others arrived before it.
        let mark = format!("{}mark", prefixes.last().unwrap());
        for prefix in prefixes {
            peer.send(&message(&[&[1], prefix.as_bytes()]));
        }
        let mut sent = 0;
        peer.0
            .set_read_timeout(Some(Duration::from_millis(100)))
            .unwrap();
        wait_for("the subscription", || {
            sent += 1;
            push.send(&event(&mark, sent));
            peer.0.peek_one().then_some(())
        });
        peer.0
            .set_read_timeout(Some(Duration::from_secs(30)))
            .unwrap();
        while peer.receive() != (mark.clone(), sent) {}
        peer
    }

    pub(crate) fn send(&mut self, bytes: &[u8]) {
        self.0.write_all(bytes).unwrap();
    }

    /// The tag and the sequence number of the next event.
    fn receive(&mut self) -> (String, u64) {
        let mut header = [0; 2];
        self.0.read_exact(&mut header).unwrap();
        assert_eq!(header[0], 0, "a short message");
        let mut body = vec![0; usize::from(header[1])];
        self.0.read_exact(&mut body).unwrap();
        let at = body.windows(2).position(|two| two == b"\n\n").unwrap();
        let data = rmpv::decode::read_value(&mut &body[at + 2..]).unwrap();
        (
            String::from_utf8(body[..at].to_vec()).unwrap(),
            data["n"].as_u64().unwrap(),
        )
    }
}

/// Whether a byte arrives before the timeout; it stays in the stream.
trait PeekOne {
    fn peek_one(&self) -> bool;
}

impl PeekOne for UnixStream {
    fn peek_one(&self) -> bool {
        let mut one = [0];
        rustix::net::recv(self, &mut one, rustix::net::RecvFlags::PEEK)
            .is_ok_and(|(bytes, _)| bytes > 0)
    }
}

/// The process of a socket.
fn process(cellar: &Cellar, kind: &str) -> Option<u32> {
    let status = cellar.ask("status", vec![]);
    let socket = status["zeromq"]
        .as_array()
        .unwrap()
        .iter()
        .find(|socket| socket["source"] == kind.into());
    socket.unwrap()["process"]
        .as_u64()
        .map(|pid| u32::try_from(pid).unwrap())
}

fn stored(cellar: &Cellar, count: u64) {
    wait_for("the store", || {
        (cellar.counter("entries_stored") >= count).then_some(())
    });
}

/// Tag and number of each event, in order.
fn archived(cellar: &Cellar) -> Vec<(String, u64)> {
    let page = cellar.ask(
        "events_list",
        vec![("limit", 10_000.into()), ("newest_first", false.into())],
    );
    let event = |e: &Value| {
        (
            e["tag"].as_str().unwrap().to_owned(),
            e["data"]["n"].as_u64().unwrap(),
        )
    };
    page["events"]
        .as_array()
        .unwrap()
        .iter()
        .map(event)
        .collect()
}

fn rss_kb(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let rss = status
        .lines()
        .find_map(|line| line.strip_prefix("VmRSS:"))
        .unwrap();
    rss.trim().trim_end_matches(" kB").trim().parse().unwrap()
}

#[test]
fn events_of_a_push_socket_are_archived_in_order() {
    let cellar = start();
    let mut peer = Peer::push(&cellar);
    peer.send(&event("a/0", 0));
    // In two frames, tag and data.
    peer.send(b"\x01\x03a/1\x00\x04\x81\xa1n\x01");
    for n in 2..200 {
        peer.send(&event(&format!("a/{n}"), n));
    }
    stored(&cellar, 200);
    let expected: Vec<_> = (0..200).map(|n| (format!("a/{n}"), n)).collect();
    assert_eq!(archived(&cellar), expected);
    let page = cellar.ask("events_list", vec![("limit", 1.into())]);
    assert_eq!(page["events"][0]["source"], "zeromq".into());
    // They may be on disk before the call has counted them.
    cellar.counted("zmq_events", 200);
}

#[test]
fn events_unreadable_to_salt_are_rejected_and_the_connection_stays_open() {
    let cellar = start();
    let mut peer = Peer::push(&cellar);
    for (_, odd) in crate::salt_codec::attacks() {
        let mut data = Vec::new();
        rmpv::encode::write_value(&mut data, &Value::Map(vec![("odd".into(), odd)])).unwrap();
        peer.send(&message(&[b"bad", b"\n\n", &data]));
    }
    peer.send(&event("good", 1));
    stored(&cellar, 1);
    assert_eq!(archived(&cellar), [("good".to_owned(), 1)]);
    cellar.counted(
        "entries_rejected_unreadable",
        crate::salt_codec::attacks().len() as u64,
    );
}

#[test]
fn malformed_events_are_counted_and_the_connection_stays_open() {
    let cellar = start();
    let mut peer = Peer::push(&cellar);
    for wrong in [
        &b""[..],
        b"no newlines",
        b"\n\n\x80",
        b"a\n\n",
        b"a\n\n\x90",
        b"a\n\n\x80\x80",
        b"a\n\n{\"n\": 1}",
    ] {
        peer.send(&message(&[wrong]));
    }
    peer.send(b"\x01\x01a\x01\x01\x80\x00\x01\x80");
    peer.send(&event("good", 7));
    stored(&cellar, 1);
    assert_eq!(archived(&cellar), [("good".to_owned(), 7)]);
    cellar.counted("zmq_messages_malformed", 8);
    assert_eq!(cellar.counter("zmq_connections_dropped"), 0);
}

#[test]
fn an_oversized_event_is_skipped_and_one_at_the_limit_is_stored() {
    let cellar =
        Cellar::start_configured(&format!("{SOCKETS}store: {{entry_bytes_max: 1MiB}}\n"), &[]);
    let mut peer = Peer::push(&cellar);
    let body = |bytes: usize| {
        let mut data = Vec::new();
        let pairs = vec![
            ("n".into(), 1.into()),
            ("fill".into(), Value::Binary(vec![7; bytes])),
        ];
        rmpv::encode::write_value(&mut data, &Value::Map(pairs)).unwrap();
        message(&[b"large\n\n", &data])
    };
    for bytes in [1 << 20, (1 << 20) - 100, 3 << 20] {
        peer.send(&body(bytes));
    }
    peer.send(&event("after", 2));
    stored(&cellar, 2);
    assert_eq!(
        archived(&cellar),
        [("large".to_owned(), 1), ("after".to_owned(), 2)]
    );
    assert_eq!(cellar.counter("entries_rejected_too_large"), 2);
}

#[test]
fn no_peer_ends_the_daemon_and_others_connect_again() {
    let cellar = start();
    let greeting = zmtp::greeting();
    let with = |at: usize, bytes: &[u8]| {
        let mut greeting = greeting;
        greeting[at..at + bytes.len()].copy_from_slice(bytes);
        greeting.to_vec()
    };
    let (push, sub) = (hello("PUSH"), hello("SUB"));
    let endless = [&[2][..], &u64::MAX.to_be_bytes()].concat();
    let giant_command = [&[6][..], &(1_u64 << 40).to_be_bytes()].concat();
    // The crate reserves the announced length, which ends the process.
    let beyond_memory = [&[2][..], &(1_u64 << 62).to_be_bytes()].concat();
    let many_frames = [1, 0].repeat(100);
    let many_prefixes: Vec<u8> = (0..10_000_u32)
        .flat_map(|n| message(&[&[1], &n.to_be_bytes()]))
        .collect();
    let (version, curve) = (with(10, &[1]), with(12, b"CURVE"));
    let cases: Vec<Vec<&[u8]>> = vec![
        vec![b"GET / HTTP/1.1\r\n\r\n"],
        vec![&[0; 200]],
        vec![&version],
        vec![&curve],
        vec![&sub],
        vec![&push],
        vec![&greeting, b"\x00\x01x"],
        vec![&greeting, b"\x04\x05\x04PING"],
        vec![&greeting, &giant_command],
        vec![&push, b"\x01\x01x", &endless],
        vec![&push, &many_frames],
        vec![&push, b"\xf0\x01x"],
        vec![&sub, b"\xf0\x01x"],
        vec![&sub, &many_prefixes],
        vec![&push, &beyond_memory],
        vec![&sub, &beyond_memory],
    ];
    let mut held = Vec::new();
    for (n, words) in (0..).zip(&cases) {
        for source in ["in.sock", "out.sock"] {
            let mut stream = UnixStream::connect(place(&cellar, source)).unwrap();
            for bytes in words {
                // It may close the connection before it has read everything.
                let _ = stream.write_all(bytes);
            }
            held.push(stream);
        }
        // As libzmq does, until a process serves the socket again. One that is about to end may have accepted the connection.
        wait_for("an event of another peer", || {
            let mut peer = Peer::try_greeted(&cellar, "in.sock", "PUSH").ok()?;
            peer.0.write_all(&event("good", n)).ok()?;
            (0..20).find_map(|_| {
                std::thread::sleep(Duration::from_millis(20));
                archived(&cellar)
                    .contains(&("good".to_owned(), n))
                    .then_some(())
            })
        });
    }
    wait_for("ended processes to be counted", || {
        (cellar.counter("zmq_restarts") >= 2).then_some(())
    });
    assert!(rss_kb(cellar.process.0.id()) < 200_000);
}

#[test]
fn a_message_without_an_end_exhausts_the_memory_of_its_process_only() {
    let cellar = start();
    let before = wait_for("a process", || process(&cellar, "pull"));
    let mut stream = UnixStream::connect(place(&cellar, "in.sock")).unwrap();
    stream.write_all(&hello("PUSH")).unwrap();
    let frame = [&[3][..], &(1_u64 << 20).to_be_bytes(), &vec![7; 1 << 20]].concat();
    let mut sent = 0;
    while stream.write_all(&frame).is_ok() {
        sent += 1;
        assert!(
            sent < 2000,
            "a process with a limit of 512 MiB takes everything"
        );
    }
    let after = wait_for("another process", || {
        process(&cellar, "pull").filter(|pid| *pid != before)
    });
    assert!(rss_kb(after) < 200_000);
    Peer::push(&cellar).send(&event("good", 1));
    stored(&cellar, 1);
    assert!(rss_kb(cellar.process.0.id()) < 200_000);
}

#[test]
fn a_killed_process_is_replaced_and_ends_with_its_daemon() {
    let mut cellar = start();
    for kind in ["pull", "pub"] {
        let killed = wait_for("a process", || process(&cellar, kind));
        let pid = rustix::process::Pid::from_raw(i32::try_from(killed).unwrap()).unwrap();
        rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
        wait_for("another process", || {
            process(&cellar, kind).filter(|pid| *pid != killed)
        });
    }
    assert_eq!(cellar.counter("zmq_restarts"), 2);
    cellar.logged(
        "ZeroMQ process ended, restarting it: see its messages above, or `dmesg` if it was killed",
    );
    let mut push = Peer::push(&cellar);
    let mut sub = Peer::sub(&cellar, &mut push, &["a"]);
    push.send(&event("a", 7));
    assert_eq!(sub.receive(), ("a".to_owned(), 7));
    let processes = ["pull", "pub"].map(|kind| wait_for("a process", || process(&cellar, kind)));
    cellar.kill();
    for pid in processes {
        wait_for("the process to end", || {
            (!std::path::Path::new(&format!("/proc/{pid}")).exists()).then_some(())
        });
    }
}

/// Nothing would end it, and the next daemon would find its socket in use.
#[test]
fn a_process_whose_daemon_has_ended_before_it_started_does_not_serve() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("pull");
    let listener = std::os::unix::net::UnixListener::bind(&path).unwrap();
    let output = program()
        .arg("--socket")
        .arg(dir.path().join("daemon"))
        // Its parent is this test.
        .args(["zeromq", "pull", "1"])
        .stdin(std::os::fd::OwnedFd::from(listener))
        .output()
        .unwrap();
    let error = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{error}");
    assert!(
        error.contains("the daemon, process 1, has ended"),
        "{error}"
    );
    assert!(UnixStream::connect(&path).is_err());
}

#[test]
fn stalled_peers_do_not_block_others() {
    let cellar = start();
    let push = hello("PUSH");
    let giant = [&push[..], &[2], &6_000_000_u64.to_be_bytes(), b"tag\n\n"].concat();
    let mut held = Vec::new();
    for words in [
        &b""[..],
        &push[..5],
        &push[..64],
        &push[..70],
        &[&push[..], &[0, 200, 1]].concat(),
        &giant,
    ] {
        for _ in 0..5 {
            let mut stream = UnixStream::connect(place(&cellar, "in.sock")).unwrap();
            stream.write_all(words).unwrap();
            held.push(stream);
        }
    }
    Peer::push(&cellar).send(&event("good", 1));
    stored(&cellar, 1);
    assert!(rss_kb(cellar.process.0.id()) < 200_000);
}

/// Writes events until the source stops reading for a second. Returns the number of complete events, and the rest of the next.
fn flood(peer: &mut Peer, tag: &str) -> (u64, Vec<u8>) {
    // Incompressible, because compressible data would not fill the store's queues.
    let mut random = Random::new(1);
    peer.0
        .set_write_timeout(Some(Duration::from_secs(1)))
        .unwrap();
    let mut events = 0;
    loop {
        let fill = random.bytes(10_000);
        let mut data = Vec::new();
        let pairs = vec![
            ("n".into(), events.into()),
            ("fill".into(), Value::Binary(fill)),
        ];
        rmpv::encode::write_value(&mut data, &Value::Map(pairs)).unwrap();
        let bytes = message(&[tag.as_bytes(), b"\n\n", &data]);
        let mut written = 0;
        while written < bytes.len() {
            match peer.0.write(&bytes[written..]) {
                Ok(n) => written += n,
                Err(e) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                    return (events, bytes[written..].to_vec());
                }
                Err(e) => panic!("{e}"),
            }
        }
        events += 1;
        assert!(events < 5_000, "the source takes everything");
    }
}

#[cfg(debug_assertions)]
#[test]
fn while_the_disk_is_full_senders_wait_and_nothing_is_lost() {
    let cellar = Cellar::start_configured_on_disk(SOCKETS, "");
    let mut peer = Peer::push(&cellar);
    peer.send(&event("first", 1));
    stored(&cellar, 1);
    cellar.plan_disk("space=1/1000000");
    wait_for("the daemon to see it", || {
        (cellar.ask("store_stats", vec![])["space"]["state"] == "full".into()).then_some(())
    });
    let (taken, rest) = flood(&mut peer, "flood");
    assert!(taken * 10_000 < 4_000_000, "{taken} events were accepted");
    assert_eq!(cellar.counter("entries_stored"), 1);
    cellar.plan_disk("");
    peer.0.set_write_timeout(None).unwrap();
    peer.send(&rest);
    stored(&cellar, taken + 2);
    assert_eq!(archived(&cellar).len() as u64, taken + 2);
    assert_eq!(cellar.counter("zmq_events_lost"), 0);
}

#[cfg(debug_assertions)]
#[test]
fn an_orderly_stop_stores_all_written_events() {
    let mut cellar = Cellar::start_configured_on_disk(SOCKETS, "");
    let mut peers = [Peer::push(&cellar), Peer::push(&cellar)];
    // The store is slow; its queue and the socket buffers fill up.
    cellar.plan_disk("sync_delay_ms=2500");
    let [(first, _), (second, _)] = ["first", "second"].map(|tag| {
        let peer = if tag == "first" {
            &mut peers[0]
        } else {
            &mut peers[1]
        };
        flood(peer, tag)
    });
    cellar.plan_disk("");
    assert!(cellar.terminate(), "{}", cellar.log());
    assert!(first + second > 20, "{first} {second}");
    cellar.restart();
    let found = archived(&cellar);
    for (tag, count) in [("first", first), ("second", second)] {
        let numbers: Vec<_> = found
            .iter()
            .filter(|(found, _)| found == tag)
            .map(|(_, n)| *n)
            .collect();
        assert_eq!(numbers, (0..count).collect::<Vec<_>>(), "{tag}");
    }
}

#[test]
fn subscribers_receive_matching_events_once_and_in_order() {
    let cellar = start();
    let mut push = Peer::push(&cellar);
    push.send(&event("salt/before", 0));
    stored(&cellar, 1);
    let mut all = Peer::sub(&cellar, &mut push, &[""]);
    let mut jobs = Peer::sub(&cellar, &mut push, &["salt/job/", "salt/job/1", "other"]);
    let tags = [
        "salt/job/1/new",
        "salt/auth",
        "salt/job/2/new",
        "other/x",
        "salt/jobs",
    ];
    for n in 0..100 {
        push.send(&event(tags[n % 5], n as u64));
    }
    let expected = |wanted: &[&str]| -> Vec<(String, u64)> {
        let of = |n: usize| (tags[n % 5].to_owned(), n as u64);
        (0..100)
            .map(of)
            .filter(|(tag, _)| wanted.contains(&tag.as_str()))
            .collect()
    };
    let received = |peer: &mut Peer, wanted: &[&str]| {
        let expected = expected(wanted);
        let mut received = Vec::new();
        while received.len() < expected.len() {
            // The marked events are for the other subscriber.
            received.extend(Some(peer.receive()).filter(|(tag, _)| !tag.ends_with("mark")));
        }
        assert_eq!(received, expected);
    };
    received(&mut all, &tags);
    received(&mut jobs, &["salt/job/1/new", "salt/job/2/new", "other/x"]);
    // Cancelled subscriptions end, and nothing arrives twice.
    jobs.send(&message(&[&[0], b"salt/job/"]));
    wait_for("the cancellation", || {
        push.send(&event("salt/job/2/new", 200));
        push.send(&event("other/x", 201));
        (jobs.receive().0 == "other/x").then_some(())
    });
}

#[test]
fn events_of_the_local_socket_are_published_but_returner_calls_are_not() {
    let cellar = start();
    let mut push = Peer::push(&cellar);
    let mut all = Peer::sub(&cellar, &mut push, &[""]);
    let load = crate::harness::map(vec![
        ("jid", "20261121030955000001".into()),
        ("id", "web1".into()),
        ("fun", "test.ping".into()),
        ("return", true.into()),
    ]);
    cellar.ask("returner", vec![("load", load)]);
    let fired = crate::harness::map(vec![
        ("tag", "mine".into()),
        ("data", crate::harness::map(vec![("n", 3.into())])),
    ]);
    cellar.ask("event_return", vec![("events", Value::Array(vec![fired]))]);
    assert_eq!(all.receive(), ("mine".to_owned(), 3));
}

#[test]
fn a_subscriber_that_does_not_read_delays_no_other() {
    let cellar = start();
    let mut push = Peer::push(&cellar);
    let slow = Peer::sub(&cellar, &mut push, &[""]);
    let mut brisk = Peer::sub(&cellar, &mut push, &["tick"]);
    // About 20 MB wait for the slow subscriber.
    let fill = "x".repeat(100_000);
    for n in 0..200_u64 {
        let mut data = Vec::new();
        let pairs = vec![
            ("n".into(), n.into()),
            ("fill".into(), fill.as_str().into()),
        ];
        rmpv::encode::write_value(&mut data, &Value::Map(pairs)).unwrap();
        push.send(&message(&[b"fill\n\n", &data]));
        push.send(&event("tick", n));
        assert_eq!(brisk.receive(), ("tick".to_owned(), n));
    }
    assert!(rss_kb(cellar.process.0.id()) < 250_000);
    drop(slow);
}

#[test]
fn events_stored_before_a_graceful_stop_are_published() {
    let mut cellar = start();
    let mut push = Peer::push(&cellar);
    let mut all = Peer::sub(&cellar, &mut push, &[""]);
    let before = cellar.counter("entries_stored");
    let sent: Vec<u8> = (0..5000_u64).flat_map(|n| event("last", n)).collect();
    push.send(&sent);
    stored(&cellar, before + 5000);
    let (received, rest) = std::thread::scope(|scope| {
        let listens = scope.spawn(|| {
            let received: Vec<_> = (0..5000).map(|_| all.receive().1).collect();
            (received, read_to_end(&mut all.0))
        });
        assert!(cellar.terminate(), "{}", cellar.log());
        listens.join().unwrap()
    });
    assert_eq!(received, (0..5000).collect::<Vec<_>>());
    assert!(rest.is_empty());
}
