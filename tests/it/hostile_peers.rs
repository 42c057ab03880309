//! Peers that are none.

use std::io::Write as _;
use std::os::unix::net::UnixStream;

use saltcellar::wire::call::{preamble, request_frame};

use crate::harness::{Cellar, read_to_end, wait_for};

/// Says something and hears the last words.
fn last_words(cellar: &Cellar, words: &[&[u8]]) -> String {
    let mut stream = UnixStream::connect(cellar.socket()).unwrap();
    for bytes in words {
        stream.write_all(bytes).unwrap();
    }
    String::from_utf8_lossy(&read_to_end(&mut stream)).into_owned()
}

#[test]
fn what_is_no_client_is_told_so_and_dropped() {
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
        let answer = last_words(&cellar, words);
        assert!(answer.contains("protocol"), "{words:x?}: {answer:?}");
    }
    assert_eq!(cellar.counter("peers_dropped"), 5);
}

#[test]
fn a_client_of_another_version_learns_the_daemons() {
    let cellar = Cellar::start();
    let answer = last_words(&cellar, &[b"SCWIRE\x00\x63"]);
    assert!(answer.contains("server_version") && answer.contains("99"), "{answer:?}");
}

#[test]
fn peers_that_stop_in_the_middle_hold_up_nobody() {
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
            let mut stream = UnixStream::connect(cellar.socket()).unwrap();
            stream.write_all(words).unwrap();
            held.push(stream);
        }
    }
    // One that asks and never reads.
    let mut deaf = UnixStream::connect(cellar.socket()).unwrap();
    deaf.write_all(&hello).unwrap();
    deaf.set_nonblocking(true).unwrap();
    for id in 0..10_000 {
        if deaf.write_all(&request_frame(id, "status", &[0x80])).is_err() {
            break;
        }
    }
    cellar.ask("status", vec![]);
    drop((held, deaf));
    cellar.ask("status", vec![]);
}

#[test]
fn a_peer_that_announces_a_giant_and_leaves_costs_nothing() {
    let cellar = Cellar::start();
    for _ in 0..50 {
        let mut stream = UnixStream::connect(cellar.socket()).unwrap();
        stream.write_all(&preamble()).unwrap();
        stream.write_all(&[4, 0, 0, 0, 1, 2, 3]).unwrap();
    }
    cellar.ask("status", vec![]);
    wait_for("the memory to be given back", || {
        let status = std::fs::read_to_string(format!("/proc/{}/status", cellar.child.id())).unwrap();
        let rss = status.lines().find_map(|l| l.strip_prefix("VmRSS:")).unwrap();
        let kb: u64 = rss.trim().trim_end_matches(" kB").trim().parse().unwrap();
        (kb < 200_000).then_some(())
    });
}
