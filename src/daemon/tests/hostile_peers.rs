//! Peers that violate the protocol, stall, or send as much as they may.

use std::io::Write as _;

use rmpv::Value;

use crate::base::limits::WIRE_FRAME_BYTES_MAX;
use crate::daemon::in_process::{Cellar, map};
use crate::testkit::entries::Asks as _;
use crate::testkit::{read_to_end, response};
use crate::wire::call::{preamble, request_frame};

/// Sends bytes and returns the last message before the connection is closed.
fn last_message(cellar: &Cellar, words: &[&[u8]]) -> String {
    let mut stream = cellar.connect();
    for bytes in words {
        stream.write_all(bytes).unwrap();
    }
    String::from_utf8_lossy(&read_to_end(&mut stream)).into_owned()
}

#[test]
fn other_protocols_get_an_error_and_are_disconnected() {
    let cellar = Cellar::start();
    let hello = preamble();
    let garbage = vec![0xc1; 64];
    for words in [
        &[&b"GET / HTTP/1.1\r\n\r\n"[..]][..],
        &[&hello, &[0xff, 0xff, 0xff, 0xff]],
        &[&hello, &[0, 0, 0, 64], &garbage],
        &[&hello, &[0, 0, 0, 0]],
        &[&hello, &[0, 0, 0, 3], &[0x93, 0x01, 0xa1]],
    ] {
        let answer = last_message(&cellar, words);
        assert!(answer.contains("protocol"), "{words:x?}: {answer:?}");
    }
    assert_eq!(cellar.counter("socket_connections_closed_protocol"), 5);
}

#[test]
fn a_client_of_another_version_gets_the_daemons_version() {
    let cellar = Cellar::start();
    let answer = last_message(&cellar, &[b"SCWIRE\x00\x63"]);
    assert!(
        answer.contains("server_version") && answer.contains("99"),
        "{answer:?}"
    );
}

#[test]
fn stalled_peers_do_not_block_others() {
    let cellar = Cellar::start();
    let hello = preamble();
    let mut held = Vec::new();
    for words in [
        &b""[..],
        b"SCW",
        &hello,
        &[&hello[..], &[0, 0]].concat(),
        &[&hello[..], &[0, 0, 1, 0, 0x93]].concat(),
    ] {
        for _ in 0..20 {
            let mut stream = cellar.connect();
            stream.write_all(words).unwrap();
            held.push(stream);
        }
    }
    // A peer that sends requests and never reads.
    let mut unread = cellar.connect();
    unread.write_all(&hello).unwrap();
    unread.set_nonblocking(true).unwrap();
    for id in 0..10_000 {
        if unread
            .write_all(&request_frame(id, "status", &[0x80]))
            .is_err()
        {
            break;
        }
    }
    cellar.ask("status", vec![]);
    drop((held, unread));
    cellar.ask("status", vec![]);
}

#[test]
fn a_frame_may_have_exactly_the_maximum_of_bytes() {
    let cellar = Cellar::start();
    let frame_of = |len: usize| {
        let frame = |pad: usize| {
            let mut args = Vec::new();
            let pad = Value::Binary(vec![0; pad]);
            rmpv::encode::write_value(&mut args, &map(vec![("pad", pad)])).unwrap();
            request_frame(1, "prep_jid", &args)
        };
        let around = frame(1 << 20).len() - (1 << 20);
        let frame = frame(len + 4 - around);
        assert_eq!(frame.len(), len + 4);
        frame
    };
    let mut stream = cellar.connect();
    stream.write_all(&preamble()).unwrap();
    stream.write_all(&frame_of(WIRE_FRAME_BYTES_MAX)).unwrap();
    assert_eq!(response(&mut stream)[1], true.into());
    // Rejected by the header; the connection is closed.
    stream
        .write_all(&frame_of(WIRE_FRAME_BYTES_MAX + 1)[..4])
        .unwrap();
    let words = String::from_utf8_lossy(&read_to_end(&mut stream)).into_owned();
    assert!(
        words.contains(&format!(
            "a frame of {} bytes exceeds the limit",
            WIRE_FRAME_BYTES_MAX + 1
        )),
        "{words}"
    );
    assert_eq!(
        WIRE_FRAME_BYTES_MAX,
        (64 << 20) + (64 << 10),
        "as docs/WIRE.md has it"
    );
}

#[test]
fn an_entry_may_have_exactly_the_maximum_of_bytes() {
    const MAX: usize = 64 * 1024;
    let cellar = Cellar::start_configured("store:\n  entry_bytes_max: 64KiB\n");
    let event = |bytes: usize| {
        let data = |pad: usize| map(vec![("pad", Value::Binary(vec![0; pad]))]);
        let mut packed = Vec::new();
        rmpv::encode::write_value(&mut packed, &data(bytes / 2)).unwrap();
        let around = "t".len() + packed.len() - bytes / 2;
        vec![(
            "events",
            Value::Array(vec![map(vec![
                ("tag", "t".into()),
                ("data", data(bytes - around)),
            ])]),
        )]
    };
    assert_eq!(cellar.ask("event_return", event(MAX)), 1.into());
    let refused = cellar
        .call("event_return", event(MAX + 1))
        .unwrap_err()
        .to_string();
    assert!(
        refused.contains("an entry of 65537 bytes exceeds the limit of 65536"),
        "{refused}"
    );
}

#[test]
fn concurrent_writes_share_syncs_and_are_acknowledged_individually() {
    const CALLS: u64 = 400;
    let cellar = Cellar::start();
    let mut stream = cellar.connect();
    let mut words = preamble().to_vec();
    for id in 0..CALLS {
        let load = map(vec![
            ("jid", format!("2026112103095500{id:04}").into()),
            ("id", "web1".into()),
            ("return", id.into()),
        ]);
        let mut args = Vec::new();
        rmpv::encode::write_value(&mut args, &map(vec![("load", load)])).unwrap();
        words.extend_from_slice(&request_frame(id, "returner", &args));
    }
    let before = cellar.counter("commits");
    // Split at arbitrary positions, so that frames arrive in parts.
    let mut sending = stream.try_clone().unwrap();
    let sender = std::thread::Builder::new()
        .name("sender".to_owned())
        .spawn(move || {
            for piece in words.chunks(3_001) {
                sending.write_all(piece).unwrap();
            }
        });
    let sender = sender.unwrap();
    let mut acknowledged: Vec<u64> = (0..CALLS)
        .map(|_| {
            let answer = response(&mut stream);
            assert_eq!(answer[1], true.into(), "{answer}");
            answer[0].as_u64().unwrap()
        })
        .collect();
    sender.join().unwrap();
    acknowledged.sort_unstable();
    assert!(acknowledged.iter().copied().eq(0..CALLS));
    let commits = cellar.counter("commits") - before;
    assert!(commits < CALLS / 4, "{commits} commits for {CALLS} calls");
    assert_eq!(cellar.counter("entries_stored"), CALLS);
}
