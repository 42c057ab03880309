//! Hostile and broken peers.

use std::io::{Read, Write as _};
use std::os::unix::net::UnixStream;

use rmpv::Value;
use saltcellar::base::limits::{HTTP_CALLS_OF_ONE, SOCKET_CALLS_OF_ONE, WIRE_FRAME_BYTES_MAX};
use saltcellar::wire::call::{preamble, request_frame};
use saltcellar_testkit::response;

use crate::harness::{Asks as _, Cellar, map, read_to_end, wait_for};

/// Announced bytes of each peer's frame, and bytes actually sent.
const GIANT: usize = WIRE_FRAME_BYTES_MAX;
const SENT: usize = 48 << 20;

/// One that is told of a timeout has delayed the stop by it.
#[test]
fn stalled_peers_do_not_delay_a_stop() {
    let mut cellar = Cellar::start();
    let hello = preamble();
    let half = [&hello[..], &[0, 0, 1, 0, 0x93]].concat();
    let mut held: Vec<UnixStream> = [&b""[..], b"SCW", &hello, &half]
        .into_iter()
        .map(|words| {
            let mut stream = UnixStream::connect(cellar.socket()).unwrap();
            stream.write_all(words).unwrap();
            stream
        })
        .collect();
    // A peer that came later is answered, so these are being served.
    cellar.ask("status", vec![]);

    assert!(cellar.terminate(), "{}", cellar.log());
    for stream in &mut held {
        let last = read_to_end(stream);
        assert!(last.is_empty(), "{}", String::from_utf8_lossy(&last));
    }
}

/// The events of `event_return` are walked once, by the call itself.
#[test]
fn events_that_do_not_end_with_their_frame_store_nothing_and_end_the_connection() {
    let cellar = Cellar::start();
    let event = b"\x82\xa3tag\xa1a\xa4data\x80";
    let args = |events: &[&[u8]]| [&b"\x81\xa6events"[..], &events.concat()].concat();

    for broken in [
        args(&[b"\x92", event]),
        args(&[b"\x91", event, b"\xc0"]),
        args(&[b"\x92", event, b"\xc1"]),
        args(&[b"\x91", &event[..event.len() - 1]]),
    ] {
        let mut stream = UnixStream::connect(cellar.socket()).unwrap();
        stream.write_all(&preamble()).unwrap();
        stream
            .write_all(&request_frame(1, "event_return", &broken))
            .unwrap();

        let told = String::from_utf8_lossy(&read_to_end(&mut stream)).into_owned();
        assert!(told.contains("protocol"), "{broken:x?}: {told}");
    }

    let stored = || cellar.ask("status", vec![])["counters"]["entries_stored"].clone();
    assert_eq!(stored(), Value::from(0));
    let mut stream = UnixStream::connect(cellar.socket()).unwrap();
    stream.write_all(&preamble()).unwrap();
    stream
        .write_all(&request_frame(1, "event_return", &args(&[b"\x91", event])))
        .unwrap();
    assert_eq!(response(&mut stream)[2], Value::from(1));
    assert_eq!(stored(), Value::from(1));
}

#[test]
fn abandoned_large_frames_use_bounded_memory_and_are_freed() {
    let cellar = Cellar::start();
    let before = memory_kb(&cellar, "VmHWM:");
    // All write as fast as the daemon reads. It reads from one at a time, because the limit allows only one such frame.
    std::thread::scope(|scope| {
        for _ in 0..5 {
            scope.spawn(|| {
                let mut stream = UnixStream::connect(cellar.socket()).unwrap();
                stream
                    .set_write_timeout(Some(std::time::Duration::from_secs(30)))
                    .unwrap();
                stream.write_all(&preamble()).unwrap();
                stream
                    .write_all(&u32::try_from(GIANT).unwrap().to_be_bytes())
                    .unwrap();
                stream.write_all(&vec![0x80; SENT]).unwrap();
            });
        }
    });
    let grown = memory_kb(&cellar, "VmHWM:").saturating_sub(before) * 1024;
    assert!(
        grown < SENT as u64 * 2,
        "{grown} bytes at once for frames that never ended"
    );
    // A complete large frame is accepted at once: disconnected peers hold no reservation.
    let mut args = Vec::new();
    let pad = Value::Binary(vec![0; GIANT - 1024]);
    rmpv::encode::write_value(&mut args, &map(vec![("pad", pad)])).unwrap();
    let mut stream = UnixStream::connect(cellar.socket()).unwrap();
    stream.write_all(&preamble()).unwrap();
    stream
        .write_all(&request_frame(1, "prep_jid", &args))
        .unwrap();
    assert_eq!(response(&mut stream)[1], true.into());
    let held = || memory_kb(&cellar, "VmRSS:").saturating_sub(before) * 1024;
    wait_for("the memory to be released", || {
        (held() < SENT as u64 / 2).then_some(())
    });
}

#[test]
fn no_number_in_a_call_overflows() {
    let cellar = Cellar::start();
    let jid = || Value::from("20261121030955505683");
    let load = || {
        map(vec![
            ("jid", jid()),
            ("id", "web1".into()),
            ("return", 1.into()),
            ("retcode", i64::MIN.into()),
        ])
    };
    cellar.ask(
        "save_load",
        vec![
            ("jid", jid()),
            ("load", load()),
            ("minions", Value::Array(vec!["web1".into()])),
        ],
    );
    cellar.ask("returner", vec![("load", load())]);
    let numbers = [
        "at",
        "limit",
        "count",
        "since",
        "until",
        "from",
        "seq",
        "age_s",
        "bytes",
        "entries",
        "keep_jobs_seconds",
    ];
    let mut client = cellar.client();
    for call in saltcellar::api::CALLS {
        for number in [
            Value::from(i64::MIN),
            (-1).into(),
            0.into(),
            i64::MAX.into(),
            u64::MAX.into(),
        ] {
            let texts = [
                ("jid", jid()),
                ("before", jid()),
                ("load", load()),
                ("tag", "a/b".into()),
                ("fun", "test.ping".into()),
            ];
            let mut args: Vec<_> = texts.into_iter().collect();
            args.extend([
                ("minions", Value::Array(vec![])),
                ("endtime", "x".into()),
                ("nocache", true.into()),
            ]);
            let element = map(vec![
                ("tag", "a/b".into()),
                ("data", map(vec![])),
                ("at", number.clone()),
            ]);
            args.push(("events", Value::Array(vec![element])));
            args.extend(numbers.map(|name| (name, number.clone())));
            // All of them, then each alone, because the first error hides the others.
            let mut alone: Vec<Vec<_>> = vec![args.clone()];
            alone.extend(numbers.map(|name| {
                args.iter()
                    .filter(|(key, _)| *key == name || !numbers.contains(key))
                    .cloned()
                    .collect()
            }));
            for args in alone {
                if let Err(saltcellar::api::client::ClientError::Refused { code, message }) =
                    client.call(call.name, map(args))
                {
                    assert_ne!(code, "internal", "{} with {number}: {message}", call.name);
                }
            }
        }
    }
    assert!(!cellar.log().contains("panicked"), "{}", cellar.log());
}

/// Resident memory of the daemon.
fn rss_kb(cellar: &Cellar) -> u64 {
    memory_kb(cellar, "VmRSS:")
}

/// Memory of the daemon in kB: `VmRSS:`, resident, or `VmHWM:`, peak.
fn memory_kb(cellar: &Cellar, what: &str) -> u64 {
    let status =
        std::fs::read_to_string(format!("/proc/{}/status", cellar.process.0.id())).unwrap();
    let found = status.lines().find_map(|l| l.strip_prefix(what)).unwrap();
    found.trim().trim_end_matches(" kB").trim().parse().unwrap()
}

/// Processor time of the daemon, in ticks.
fn processor_time(cellar: &Cellar) -> u64 {
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", cellar.process.0.id())).unwrap();
    let (_, fields) = stat.rsplit_once(')').unwrap();
    let ticks = fields.split_whitespace().skip(11).take(2);
    ticks.map(|ticks| ticks.parse::<u64>().unwrap()).sum()
}

#[test]
fn ten_thousand_connections_are_served_in_bounded_memory() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    const PEERS: usize = 10_000;
    let limit = getrlimit(Resource::Nofile);
    setrlimit(
        Resource::Nofile,
        Rlimit {
            current: limit.maximum,
            maximum: limit.maximum,
        },
    )
    .unwrap();
    if limit
        .maximum
        .is_some_and(|files| files < PEERS as u64 + 200)
    {
        return saltcellar_testkit::forbidden("a hard limit of 10,200 open files");
    }
    let cellar = Cellar::start();
    let before = rss_kb(&cellar);
    let mut peers: Vec<UnixStream> = (0..PEERS)
        .map(|n| {
            let mut peer = UnixStream::connect(cellar.socket()).unwrap();
            peer.write_all(&preamble()).unwrap();
            // Every third stops in the middle of a request, and every third sends nothing further.
            match n % 3 {
                0 => peer
                    .write_all(&request_frame(1, "prep_jid", &[0x80])[..9])
                    .unwrap(),
                1 => peer
                    .write_all(&request_frame(1, "prep_jid", &[0x80]))
                    .unwrap(),
                _ => {}
            }
            peer
        })
        .collect();
    for peer in peers.iter_mut().skip(1).step_by(3) {
        assert_eq!(response(peer)[1], true.into());
    }
    for peer in peers.iter_mut().skip(2).step_by(3) {
        peer.write_all(&request_frame(2, "prep_jid", &[0x80]))
            .unwrap();
        assert_eq!(response(peer)[1], true.into());
    }
    let load = map(vec![
        ("jid", "20261121030955505683".into()),
        ("id", "web1".into()),
        ("return", 1.into()),
    ]);
    cellar.ask("returner", vec![("load", load)]);
    let grown = rss_kb(&cellar).saturating_sub(before);
    assert!(
        grown < PEERS as u64 * 8,
        "{grown} KiB for {PEERS} connections"
    );
    assert!(cellar.counter("socket_connections") >= PEERS as u64);
    assert_eq!(cellar.counter("socket_connections_closed_too_many"), 0);
    drop(peers);
    cellar.ask("status", vec![]);
}

#[test]
fn peers_that_do_not_read_use_bounded_memory_and_do_not_block_others() {
    let cellar = Cellar::start();
    // Four events of 4 MiB: a response with all of them is as long as answers get.
    for n in 0..4_u8 {
        let data = map(vec![("blob", Value::Binary(vec![n; 4 * 1024 * 1024]))]);
        let event = map(vec![("tag", "big".into()), ("data", data)]);
        cellar.ask("event_return", vec![("events", Value::Array(vec![event]))]);
    }
    let before = rss_kb(&cellar);
    let unread: Vec<UnixStream> = (0..8)
        .map(|_| {
            let mut peer = UnixStream::connect(cellar.socket()).unwrap();
            peer.write_all(&preamble()).unwrap();
            for id in 0..60 {
                peer.write_all(&request_frame(id, "events_list", &[0x80]))
                    .unwrap();
            }
            peer
        })
        .collect();
    // The responses would need 7.5 GiB. Beyond the limit, requests are rejected.
    wait_for("the limit on answers", || {
        (cellar.counter("calls_failed") > 0).then_some(())
    });
    let grown = rss_kb(&cellar).saturating_sub(before);
    assert!(grown < 1_000_000, "{grown} KiB for unread responses");
    let load = map(vec![
        ("jid", "20261121030955505683".into()),
        ("id", "web1".into()),
        ("return", 1.into()),
    ]);
    cellar.ask("returner", vec![("load", load)]);
    drop(unread);
    wait_for("the memory of the responses to be free", || {
        cellar.call("events_list", vec![("limit", 1.into())]).ok()
    });
}

#[test]
#[cfg(debug_assertions)]
fn eight_synchronous_workers_share_syncs() {
    const CALLS: u64 = 25;
    let cellar = Cellar::start_on_disk("sync_delay_ms=10");
    let before = cellar.counter("commits");
    std::thread::scope(|scope| {
        for worker in 0..8 {
            let cellar = &cellar;
            scope.spawn(move || {
                let mut client = cellar.client();
                for n in 0..CALLS {
                    let jid = format!("202611210309{worker:02}{n:06}");
                    let load = map(vec![
                        ("jid", jid.into()),
                        ("id", "web1".into()),
                        ("return", n.into()),
                    ]);
                    client.call("returner", map(vec![("load", load)])).unwrap();
                }
            });
        }
    });
    let commits = cellar.counter("commits") - before;
    assert!(
        commits <= CALLS * 8 / 2,
        "{commits} commits for {} calls",
        CALLS * 8
    );
}

/// A metric, which is answered whatever the local socket does.
fn metric(address: &str, name: &str) -> u64 {
    let metrics = crate::http::get(address, "/metrics", "").text();
    let mut lines = metrics.lines().filter_map(|line| line.split_once(' '));
    let (_, value) = lines.find(|(known, _)| *known == name).unwrap();
    value.parse().unwrap()
}

#[test]
fn a_search_whose_client_is_gone_ends() {
    const CLIENTS: u64 = 60;
    let cellar = Cellar::start_configured(crate::http::LISTENER, &[]);
    let event = |n: usize| {
        let data = map(vec![("n", n.into()), ("text", "x".repeat(200).into())]);
        map(vec![("tag", format!("test/{n}").into()), ("data", data)])
    };
    for start in (0..20_000).step_by(1_000) {
        let events = Value::Array((start..start + 1_000).map(event).collect());
        cellar.ask("event_return", vec![("events", events)]);
    }
    let address = crate::http::address(&cellar);
    // Long, compared with the time in which all of them are asked for.
    let condition = ["data.text == 'y'"; 12].join(" or ");
    let search = vec![("where", condition.as_str().into()), ("limit", 5.into())];
    let mut args = Vec::new();
    rmpv::encode::write_value(&mut args, &map(search)).unwrap();
    let request = request_frame(1, "events_list", &args);
    let connect = || {
        let mut peer = UnixStream::connect(cellar.socket()).unwrap();
        peer.write_all(&preamble()).unwrap();
        peer.write_all(&request).unwrap();
        peer
    };

    // One that has only finished writing waits for its response.
    let patient = || {
        let mut peer = connect();
        peer.shutdown(std::net::Shutdown::Write).unwrap();
        assert!(read_to_end(&mut peer).len() > 4);
    };
    let before = processor_time(&cellar);
    patient();
    let cost = processor_time(&cellar) - before;
    // What the daemon spent on searches that nobody has a response of, and the last one: of those that were carried
    // out when their clients left, less than half.
    let assert_ended = |spent: u64, answered: usize, at_once: u64| {
        let answered = u64::try_from(answered).unwrap() + 1;
        let most = (answered + at_once / 2) * cost;
        assert!(
            spent < most,
            "{spent} ticks, {most} at most, {cost} of each search, {answered} answered: the others did not end"
        );
    };

    let count = |name: &str| metric(&address, name);
    let calls = count("saltcellar_calls_total");
    let before = processor_time(&cellar);
    let impatient: Vec<_> = (0..CLIENTS).map(|_| connect()).collect();
    wait_for("the requests", || {
        (count("saltcellar_calls_total") >= calls + CLIENTS).then_some(())
    });
    let answered = impatient.into_iter().filter(|peer| {
        peer.set_nonblocking(true).unwrap();
        is_answered(peer)
    });
    let answered = answered.count();
    // The calls of one user are carried out in order: this one is answered after those that were not ended.
    patient();
    assert_ended(
        processor_time(&cellar) - before,
        answered,
        SOCKET_CALLS_OF_ONE as u64,
    );

    // Over HTTP, with a token: `/metrics` is answered beside them.
    let answers = "saltcellar_response_duration_seconds_count";
    let token = crate::http::token(&cellar, &["gone", "--scope", "read"]);
    let path = format!(
        "/api/v1/events?limit=5&where={}",
        condition.replace(' ', "%20")
    );
    assert_eq!(crate::http::get(&address, &path, &token).status, 200);
    let requests = cellar.counter("http_requests");
    let (before, spent) = (count(answers), processor_time(&cellar));
    let impatient: Vec<_> = (0..CLIENTS)
        .map(|_| {
            let mut peer = crate::http::connect(&address);
            let head = format!("GET {path} HTTP/1.1\r\nhost: localhost\r\n{token}\r\n");
            peer.write_all(head.as_bytes()).unwrap();
            peer
        })
        .collect();
    wait_for("the requests", || {
        (cellar.counter("http_requests") >= requests + CLIENTS).then_some(())
    });
    let beside = count(answers) - before;
    assert!(beside < CLIENTS, "/metrics was answered after all searches");
    let answered = impatient.into_iter().filter(|peer| {
        peer.set_nonblocking(true).unwrap();
        is_answered(peer)
    });
    let answered = answered.count();
    // A client has few workers, so this one is answered after those that were not ended.
    assert_eq!(crate::http::get(&address, &path, &token).status, 200);
    let at_once = HTTP_CALLS_OF_ONE as u64;
    assert_ended(processor_time(&cellar) - spent, answered, at_once);
}

/// Whether a peer that does not block has had a byte.
fn is_answered(mut peer: impl Read) -> bool {
    matches!(peer.read(&mut [0]), Ok(1))
}
