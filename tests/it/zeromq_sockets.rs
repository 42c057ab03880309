//! The ZeroMQ sockets with hand-written ZMTP peers, valid and invalid.

use std::io::{ErrorKind, Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::Duration;

use rmpv::Value;
use saltcellar::testkit::Random;
use saltcellar::wire::zmtp;

use crate::harness::{Cellar, read_to_end, wait_for};

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
    let ready = [b"\x05READY\x0bSocket-Type\0\0\0", &[len][..], socket_type.as_bytes()].concat();
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
        let mut stream = UnixStream::connect(place(cellar, source)).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
        stream.write_all(&hello(socket_type)).unwrap();
        let mut theirs = vec![0; hello(if source == "in.sock" { "PULL" } else { "PUB" }).len()];
        stream.read_exact(&mut theirs).unwrap();
        assert!(theirs.starts_with(&[0xff]));
        Self(stream)
    }

    pub(crate) fn push(cellar: &Cellar) -> Self {
        Self::greeted(cellar, "in.sock", "PUSH")
    }

    /// A subscriber to prefixes, with active subscriptions on return.
    fn sub(cellar: &Cellar, prefixes: &[&str]) -> Self {
        let mut peer = Self::greeted(cellar, "out.sock", "SUB");
        for prefix in prefixes {
            peer.send(&message(&[&[1], prefix.as_bytes()]));
        }
        peer.settle();
        peer
    }

    pub(crate) fn send(&mut self, bytes: &[u8]) {
        self.0.write_all(bytes).unwrap();
    }

    /// Waits until all earlier commands are processed, by a PING.
    fn settle(&mut self) {
        self.send(b"\x04\x09\x04PING\0\0ab");
        let mut pong = [0; 9];
        self.0.read_exact(&mut pong).unwrap();
        assert_eq!(&pong, b"\x04\x07\x04PONGab");
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
        (String::from_utf8(body[..at].to_vec()).unwrap(), data["n"].as_u64().unwrap())
    }
}

fn stored(cellar: &Cellar, count: u64) {
    wait_for("the store", || (cellar.counter("entries_stored") >= count).then_some(()));
}

/// Tag and number of each event, in order.
fn archived(cellar: &Cellar) -> Vec<(String, u64)> {
    let page = cellar.ask("events_list", vec![("limit", 10_000.into()), ("newest_first", false.into())]);
    let event = |e: &Value| (e["tag"].as_str().unwrap().to_owned(), e["data"]["n"].as_u64().unwrap());
    page["events"].as_array().unwrap().iter().map(event).collect()
}

fn rss_kb(cellar: &Cellar) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", cellar.process.0.id())).unwrap();
    let rss = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    rss.trim().trim_end_matches(" kB").trim().parse().unwrap()
}

#[test]
fn events_of_a_push_socket_are_archived_in_order() {
    let cellar = start();
    let mut peer = Peer::push(&cellar);
    peer.send(&event("a/0", 0));
    // In two frames, tag and data, with a command in between, as libzmq may send it.
    peer.send(b"\x01\x03a/1\x04\x09\x04PING\0\0ab\x00\x04\x81\xa1n\x01");
    for n in 2..200 {
        peer.send(&event(&format!("a/{n}"), n));
    }
    stored(&cellar, 200);
    let expected: Vec<_> = (0..200).map(|n| (format!("a/{n}"), n)).collect();
    assert_eq!(archived(&cellar), expected);
    let page = cellar.ask("events_list", vec![("limit", 1.into())]);
    assert_eq!(page["events"][0]["source"], "zeromq".into());
    // They may be on disk before the source has counted them.
    cellar.counted("zmq_events", 200);
    let source = wait_for("the source's own count", || {
        let source = cellar.ask("status", vec![])["zeromq"][0].clone();
        (source["events"] == 200.into()).then_some(source)
    });
    assert_eq!((&source["source"], &source["peers"]), (&"pull".into(), &1.into()));
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
    cellar.counted("entries_unreadable", crate::salt_codec::attacks().len() as u64);
}

#[test]
fn malformed_events_are_counted_and_the_connection_stays_open() {
    let cellar = start();
    let mut peer = Peer::push(&cellar);
    for wrong in
        [&b""[..], b"no newlines", b"\n\n\x80", b"a\n\n", b"a\n\n\x90", b"a\n\n\x80\x80", b"a\n\n{\"n\": 1}"]
    {
        peer.send(&message(&[wrong]));
    }
    peer.send(b"\x01\x01a\x01\x01\x80\x00\x01\x80");
    peer.send(&event("good", 7));
    stored(&cellar, 1);
    assert_eq!(archived(&cellar), [("good".to_owned(), 7)]);
    assert_eq!(cellar.counter("zmq_messages_malformed"), 8);
    assert_eq!(cellar.counter("zmq_peers_dropped"), 0);
}

#[test]
fn an_oversized_event_is_skipped_and_one_at_the_limit_is_stored() {
    let cellar = Cellar::start_configured(&format!("{SOCKETS}store: {{entry_bytes_max: 1MiB}}\n"), &[]);
    let mut peer = Peer::push(&cellar);
    let body = |bytes: usize| {
        let mut data = Vec::new();
        let pairs = vec![("n".into(), 1.into()), ("fill".into(), Value::Binary(vec![7; bytes]))];
        rmpv::encode::write_value(&mut data, &Value::Map(pairs)).unwrap();
        message(&[b"large\n\n", &data])
    };
    for bytes in [1 << 20, (1 << 20) - 100, 3 << 20] {
        peer.send(&body(bytes));
    }
    peer.send(&event("after", 2));
    stored(&cellar, 2);
    assert_eq!(archived(&cellar), [("large".to_owned(), 1), ("after".to_owned(), 2)]);
    assert_eq!(cellar.counter("entries_too_large"), 2);
}

/// Sends bytes to a socket and returns its last message.
fn last_message(cellar: &Cellar, source: &str, words: &[&[u8]]) -> String {
    let mut stream = UnixStream::connect(place(cellar, source)).unwrap();
    for bytes in words {
        // It may close the connection before it has read everything.
        let _ = stream.write_all(bytes);
    }
    String::from_utf8_lossy(&read_to_end(&mut stream)).into_owned()
}

#[test]
fn peers_that_break_the_protocol_end_their_own_connection_only() {
    let cellar = start();
    let mut good = Peer::push(&cellar);
    let greeting = zmtp::greeting();
    let with = |at: usize, bytes: &[u8]| {
        let mut greeting = greeting;
        greeting[at..at + bytes.len()].copy_from_slice(bytes);
        greeting.to_vec()
    };
    let push = hello("PUSH");
    let four_tib = [&[2][..], &(1_u64 << 42).to_be_bytes()].concat();
    let endless = [&[2][..], &u64::MAX.to_be_bytes()].concat();
    let giant_command = [&[6][..], &(1_u64 << 40).to_be_bytes()].concat();
    let many_frames = [1, 0].repeat(100);
    let version = with(10, &[1]);
    let curve = with(12, b"CURVE");
    let sub = hello("SUB");
    let cases: Vec<(&str, Vec<&[u8]>)> = vec![
        ("begins with ff", vec![b"GET / HTTP/1.1\r\n\r\n"]),
        ("begins with ff", vec![&[0; 200]]),
        ("ZMTP 1", vec![&version]),
        ("CURVE", vec![&curve]),
        ("SUB socket is incompatible with a PULL", vec![&sub]),
        ("before the READY", vec![&greeting, b"\x00\x01x"]),
        ("first command is not READY", vec![&greeting, b"\x04\x05\x04PING"]),
        ("an oversized READY", vec![&greeting, b"\x06\0\0\0\0\0\x10\0\0"]),
        ("exceeds the limit", vec![&greeting, &giant_command]),
        ("exceeds the limit", vec![&push, &four_tib]),
        ("exceeds the limit", vec![&push, &endless]),
        ("exceeds the limit", vec![&push, b"\x01\x01x", &endless]),
        ("too many frames", vec![&push, &many_frames]),
        ("flags", vec![&push, b"\xf0\x01x"]),
    ];
    for (wanted, words) in &cases {
        let received = last_message(&cellar, "in.sock", words);
        assert!(received.contains(wanted), "{wanted}: {received:?}");
    }
    cellar.counted("zmq_peers_dropped", cases.len() as u64);
    // Complete messages before the violation are stored.
    last_message(&cellar, "in.sock", &[&push, &event("before", 1), &four_tib]);
    good.send(&event("good", 2));
    stored(&cellar, 2);
    assert_eq!(archived(&cellar), [("before".to_owned(), 1), ("good".to_owned(), 2)]);
    assert!(rss_kb(&cellar) < 200_000);
}

#[test]
fn stalled_peers_do_not_block_others() {
    let cellar = start();
    let push = hello("PUSH");
    let giant = [&push[..], &[2], &60_000_000_u64.to_be_bytes(), b"tag\n\n"].concat();
    let mut held = Vec::new();
    for words in [&b""[..], &push[..5], &push[..64], &push[..70], &[&push[..], &[0, 200, 1]].concat(), &giant]
    {
        for _ in 0..20 {
            let mut stream = UnixStream::connect(place(&cellar, "in.sock")).unwrap();
            stream.write_all(words).unwrap();
            held.push(stream);
        }
    }
    // Peers that started a message have completed the handshake.
    for stream in held.iter_mut().skip(4 * 20) {
        stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
        stream.read_exact(&mut vec![0; hello("PULL").len()]).unwrap();
    }
    Peer::push(&cellar).send(&event("good", 1));
    stored(&cellar, 1);
    assert!(rss_kb(&cellar) < 200_000, "{} kB", rss_kb(&cellar));
    drop(held);
    wait_for("the permits to be released", || {
        (cellar.ask("status", vec![])["zeromq"][0]["peers"] == 0.into()).then_some(())
    });
    wait_for("peers with a partial message to be counted", || {
        (cellar.counter("zmq_messages_cut") >= 20).then_some(())
    });
}

#[test]
fn excess_peers_are_rejected() {
    let cellar = start();
    let held: Vec<_> = (0..600).map(|_| UnixStream::connect(place(&cellar, "in.sock")).unwrap()).collect();
    wait_for("peers over the limit to be disconnected", || {
        (cellar.counter("zmq_peers_rejected") >= 88).then_some(())
    });
    drop(held);
    wait_for("a place", || {
        let mut stream = UnixStream::connect(place(&cellar, "in.sock")).unwrap();
        stream.write_all(&[&hello("PUSH")[..], &event("good", 1)].concat()).ok()?;
        stream.shutdown(std::net::Shutdown::Write).ok()?;
        read_to_end(&mut stream);
        (cellar.counter("entries_stored") > 0).then_some(())
    });
}

/// Writes events until the source stops reading for a second. Returns the number of complete events, and the rest of the next.
fn flood(peer: &mut Peer, tag: &str) -> (u64, Vec<u8>) {
    // Incompressible, because compressible data would not fill the store's queues.
    let mut random = Random::new(1);
    peer.0.set_write_timeout(Some(Duration::from_secs(1))).unwrap();
    let mut events = 0;
    loop {
        let fill = random.bytes(10_000);
        let mut data = Vec::new();
        let pairs = vec![("n".into(), events.into()), ("fill".into(), Value::Binary(fill))];
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
    assert_eq!(cellar.counter("zmq_events_lost") + cellar.counter("entries_refused_disk_full"), 0);
}

#[cfg(debug_assertions)]
#[test]
fn an_orderly_stop_stores_all_written_events() {
    let mut cellar = Cellar::start_configured_on_disk(SOCKETS, "");
    let mut peers = [Peer::push(&cellar), Peer::push(&cellar)];
    // The store is slow; its queue and the socket buffers fill up.
    cellar.plan_disk("sync_delay_ms=2500");
    let [(first, _), (second, _)] = ["first", "second"].map(|tag| {
        let peer = if tag == "first" { &mut peers[0] } else { &mut peers[1] };
        flood(peer, tag)
    });
    cellar.plan_disk("");
    assert!(cellar.terminate(), "{}", cellar.log());
    assert!(first + second > 100, "{first} {second}");
    cellar.restart();
    let found = archived(&cellar);
    for (tag, count) in [("first", first), ("second", second)] {
        let numbers: Vec<_> = found.iter().filter(|(found, _)| found == tag).map(|(_, n)| *n).collect();
        assert_eq!(numbers, (0..count).collect::<Vec<_>>(), "{tag}");
    }
}

#[test]
fn subscribers_receive_matching_events_once_and_in_order() {
    let cellar = start();
    let mut push = Peer::push(&cellar);
    push.send(&event("salt/before", 0));
    stored(&cellar, 1);
    let mut all = Peer::sub(&cellar, &[""]);
    let mut jobs = Peer::sub(&cellar, &["salt/job/", "salt/job/1", "other"]);
    // By command, as in ZMTP 3.1; and without any subscription.
    let mut auth = Peer::greeted(&cellar, "out.sock", "XSUB");
    auth.send(b"\x04\x13\x09SUBSCRIBEsalt/auth");
    auth.settle();
    let mut nothing = Peer::sub(&cellar, &[]);
    let tags = ["salt/job/1/new", "salt/auth", "salt/job/2/new", "other/x", "salt/jobs"];
    for n in 0..100 {
        push.send(&event(tags[n % 5], n as u64));
    }
    let expected = |wanted: &[&str]| -> Vec<(String, u64)> {
        let of = |n: usize| (tags[n % 5].to_owned(), n as u64);
        (0..100).map(of).filter(|(tag, _)| wanted.contains(&tag.as_str())).collect()
    };
    let received = |peer: &mut Peer, wanted: &[&str]| {
        let expected = expected(wanted);
        let received: Vec<_> = expected.iter().map(|_| peer.receive()).collect();
        assert_eq!(received, expected);
    };
    received(&mut all, &tags);
    received(&mut jobs, &["salt/job/1/new", "salt/job/2/new", "other/x"]);
    received(&mut auth, &["salt/auth"]);
    // Cancelled subscriptions end, and nothing arrives twice: the next message is the answer to a PING.
    jobs.send(&message(&[&[0], b"salt/job/"]));
    auth.send(b"\x04\x10\x06CANCELsalt/auth");
    for peer in [&mut all, &mut jobs, &mut auth, &mut nothing] {
        peer.settle();
    }
    for (n, tag) in tags.iter().enumerate() {
        push.send(&event(tag, 100 + n as u64));
    }
    let of = |tag: &str, n| (tag.to_owned(), n);
    assert_eq!([jobs.receive(), jobs.receive()], [of("salt/job/1/new", 100), of("other/x", 103)]);
    assert_eq!((0..5).map(|_| all.receive().1).collect::<Vec<_>>(), [100, 101, 102, 103, 104]);
    for peer in [&mut jobs, &mut auth, &mut nothing] {
        peer.settle();
    }
    cellar.counted("zmq_events_published", 100 + 60 + 20 + 5 + 2);
    assert_eq!(cellar.counter("zmq_events_dropped"), 0);
}

#[test]
fn events_of_the_local_socket_are_published_but_returner_calls_are_not() {
    let cellar = start();
    let mut all = Peer::sub(&cellar, &[""]);
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
fn only_a_slow_subscriber_loses_events() {
    let cellar = start();
    let mut push = Peer::push(&cellar);
    let slow = Peer::sub(&cellar, &[""]);
    let mut brisk = Peer::sub(&cellar, &["tick"]);
    // About 20 MB for the slow subscriber, whose queue holds 8 MB plus the socket buffer.
    let fill = "x".repeat(20_000);
    for n in 0..1000_u64 {
        let mut data = Vec::new();
        let pairs = vec![("n".into(), n.into()), ("fill".into(), fill.as_str().into())];
        rmpv::encode::write_value(&mut data, &Value::Map(pairs)).unwrap();
        push.send(&message(&[b"fill\n\n", &data]));
        push.send(&event("tick", n));
        assert_eq!(brisk.receive(), ("tick".to_owned(), n));
    }
    stored(&cellar, 2000);
    wait_for("the count", || (cellar.counter("zmq_events_dropped") > 0).then_some(()));
    assert_eq!(cellar.counter("zmq_subscribers_dropped"), 0, "it is slow, not disconnected");
    wait_for("the source's own count", || {
        let source = &cellar.ask("status", vec![])["zeromq"][1];
        assert_eq!(source["source"], "pub".into());
        (source["dropped"].as_u64().unwrap() > 0).then_some(())
    });
    assert!(rss_kb(&cellar) < 250_000, "{} kB", rss_kb(&cellar));
    drop(slow);
}

#[test]
fn subscribers_over_a_limit_are_disconnected() {
    let cellar = start();
    let mut good = Peer::sub(&cellar, &["good"]);
    let sub = hello("SUB");
    let many: Vec<u8> = (0..100_000_u32).flat_map(|n| message(&[&[1], &n.to_be_bytes()])).collect();
    let long = message(&[&[1], &[b'x'; 5000]]);
    for words in [&many, &long, &vec![0xf8; 10]] {
        last_message(&cellar, "out.sock", &[&sub, words]);
    }
    let push = hello("PUSH");
    assert!(last_message(&cellar, "out.sock", &[&push]).contains("PUSH socket is incompatible with a PUB"));
    cellar.counted("zmq_peers_dropped", 4);
    Peer::push(&cellar).send(&event("good", 1));
    assert_eq!(good.receive(), ("good".to_owned(), 1));
}

#[cfg(debug_assertions)]
#[test]
fn all_stored_events_are_published_before_a_graceful_stop_ends() {
    let mut cellar = Cellar::start_configured_on_disk(SOCKETS, "");
    let mut all = Peer::sub(&cellar, &[""]);
    let mut push = Peer::push(&cellar);
    // Several batches, most of which are stored during the stop.
    cellar.plan_disk("sync_delay_ms=500");
    let fill = "x".repeat(200);
    let sent: Vec<u8> = (0..5000_u64)
        .flat_map(|n| {
            let mut data = Vec::new();
            let pairs = vec![("n".into(), n.into()), ("fill".into(), fill.as_str().into())];
            rmpv::encode::write_value(&mut data, &Value::Map(pairs)).unwrap();
            message(&[b"last\n\n", &data])
        })
        .collect();
    push.send(&sent);
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
