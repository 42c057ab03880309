//! A fake master: working ones, and peers that are not masters.

use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::mpsc::{Receiver, sync_channel};
use std::thread::JoinHandle;

use salt_sls::{Map, Value};

use super::*;
use crate::testkit::master::{Router, published};
use crate::wire::msgpack::{Writer, as_text, get};
use crate::wire::salt_value::from_msgpack;
use crate::wire::zmtp::{self, SocketType};

const TIMEOUT: Duration = Duration::from_secs(20);

/// A listener, and a directory with a key.
struct FakePeer {
    _dir: tempfile::TempDir,
    place: MasterAddress,
    thread: Option<JoinHandle<()>>,
}

/// A fake peer: passes `times` connections to `play`, one after the other.
fn fake_peer(times: usize, mut play: impl FnMut(usize, TcpStream) + Send + 'static) -> FakePeer {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join(".root_key"), "the key").unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let place = MasterAddress {
        host: "0.0.0.0".to_owned(),
        port: listener.local_addr().unwrap().port(),
        cachedir: dir.path().to_owned(),
        user: "root".to_owned(),
    };
    let thread = std::thread::Builder::new()
        .name("peer".to_owned())
        .spawn(move || {
            for n in 0..times {
                play(n, listener.accept().unwrap().0);
            }
        });
    FakePeer {
        _dir: dir,
        place,
        thread: Some(thread.unwrap()),
    }
}

impl FakePeer {
    fn master(&self) -> Master {
        Master::new(self.place.clone(), Arc::default())
    }

    fn end(mut self) {
        self.thread.take().unwrap().join().unwrap();
    }
}

fn handshake(stream: TcpStream) -> Router {
    Router::accept(stream).unwrap()
}

/// The body of the next request; `None` at the end.
fn next(router: &mut Router) -> Option<Vec<u8>> {
    router.next_request().ok().flatten()
}

/// Sends a response in chunks with arbitrary boundaries.
fn send(router: &mut Router, body: &[u8]) {
    let mut bytes = Vec::new();
    zmtp::put_request(&mut bytes, body);
    for piece in bytes.chunks(3) {
        let _ = router.stream.write_all(piece);
    }
}

fn error(name: &str) -> Vec<u8> {
    let mut w = Writer::new();
    w.map(1)
        .str("error")
        .map(2)
        .str("name")
        .str(name)
        .str("message")
        .str("no");
    w.into_bytes()
}

fn text(text: &str) -> Vec<u8> {
    let mut w = Writer::new();
    w.str(text);
    w.into_bytes()
}

fn ping() -> Call {
    Call::publish("*", "glob", "test.ping", vec![])
}

/// A fake master that answers with these in turn; also returns the received requests.
fn answering(answers: Vec<Vec<u8>>) -> (FakePeer, Receiver<Vec<u8>>) {
    let (tx, asked) = sync_channel(100);
    let peer = fake_peer(1, move |_, stream| {
        let mut router = handshake(stream);
        for answer in &answers {
            tx.send(next(&mut router).unwrap()).unwrap();
            send(&mut router, answer);
        }
    });
    (peer, asked)
}

#[test]
fn requests_reuse_the_connection_of_reach() {
    let (peer, asked) = answering(vec![published("7_1")]);
    let master = peer.master();
    master.reach().unwrap();
    master.reach().unwrap();
    assert!(asked.try_recv().is_err(), "no request was sent");
    master.ask(&ping(), "7_1", TIMEOUT).unwrap();
    assert_eq!(master.metrics.master_connects.get(), 1);
    peer.end();
    assert!(matches!(
        master.reach(),
        Err(MasterError::Unreachable { .. })
    ));
}

#[test]
fn a_job_is_published_with_our_jid_and_key_and_the_connection_is_reused() {
    let (peer, asked) = answering(vec![published("7_1"), published("7_2")]);
    let master = peer.master();
    let answer = master.ask(&ping(), "7_1", TIMEOUT).unwrap();
    let minions = vec!["web1".to_owned()];
    assert_eq!(
        answer,
        Answer::Published {
            jid: "7_1".to_owned(),
            minions,
            missing: vec![]
        }
    );
    master.ask(&ping(), "7_2", TIMEOUT).unwrap();
    let request = crate::testkit::receive(&asked);
    let load = get(&request, "load").unwrap();
    assert_eq!(get(&request, "version"), Some(&[3][..]));
    let text = |key| get(load, key).and_then(as_text);
    let sent = ["cmd", "tgt", "tgt_type", "fun", "jid", "user", "key", "ret"]
        .map(|key| text(key).unwrap());
    assert_eq!(
        sent,
        [
            "publish",
            "*",
            "glob",
            "test.ping",
            "7_1",
            "root",
            "the key",
            ""
        ]
    );
    assert!(get(load, "arg").is_some() && get(load, "kwargs").is_some());
    assert_eq!(master.metrics.master_connects.get(), 1);
    assert_eq!(master.metrics.master_requests.get(), 2);
    drop(master);
    peer.end();
}

#[test]
fn a_calls_load_cannot_override_key_user_or_command() {
    let mut call = ping();
    for name in ["key", "user", "cmd", "jid", "fun"] {
        call.load.insert(name.into(), "forged".into());
    }
    let request = call.request("the key", "root", "1");
    let load = get(&request, "load").unwrap();
    assert_eq!(crate::wire::msgpack::pairs(load).count(), 10);
    assert!(!load.windows(6).any(|bytes| bytes == b"forged"));
}

#[test]
fn a_master_gets_no_caller_functions() {
    let peer = fake_peer(0, |_, _| ());
    let call = Call::caller("test.ping", vec![], Value::Null);
    let error = peer
        .master()
        .ask(&call, "", Duration::from_millis(300))
        .unwrap_err();
    assert!(matches!(error, MasterError::Refused { .. }), "{error}");
    peer.end();
}

#[test]
fn runners_and_wheels_use_the_reactors_name_and_fall_back_to_the_masters() {
    let started = {
        let mut w = Writer::new();
        w.map(2).str("tag").str("salt/run/9").str("jid").str("9");
        w.into_bytes()
    };
    let no = error("UserAuthenticationError");
    let (peer, asked) = answering(vec![started.clone(), no.clone(), no, started]);
    let master = peer.master();
    let call = Call::runner("state.orchestrate", vec!["x".into()], Map::default());
    let answer = master.ask(&call, "", TIMEOUT).unwrap();
    assert_eq!(
        answer,
        Answer::Started {
            jid: "9".to_owned(),
            tag: "salt/run/9".to_owned()
        }
    );
    master.ask(&call, "", TIMEOUT).unwrap();
    let users: Vec<_> = (0..4)
        .map(|_| {
            let request = crate::testkit::receive(&asked);
            as_text(get(get(&request, "load").unwrap(), "user").unwrap())
                .unwrap()
                .to_owned()
        })
        .collect();
    // The second call: rejected, rejected with the key reread, accepted with the other name.
    assert_eq!(users, ["Reactor", "Reactor", "Reactor", "root"]);
    drop(master);
    peer.end();
}

/// A fake master that accepts certain users and keys; also returns the user of every request.
fn accepting(
    accepts: impl Fn(&str, &str) -> bool + Send + 'static,
) -> (FakePeer, Receiver<String>) {
    let (tx, asked) = sync_channel(100);
    let mut started = Writer::new();
    started
        .map(2)
        .str("tag")
        .str("salt/run/9")
        .str("jid")
        .str("9");
    let (started, rejected) = (started.into_bytes(), error("UserAuthenticationError"));
    let peer = fake_peer(1, move |_, stream| {
        let mut router = handshake(stream);
        while let Some(request) = next(&mut router) {
            let load = get(&request, "load").unwrap();
            let text = |name| as_text(get(load, name).unwrap()).unwrap().to_owned();
            let is_accepted = accepts(&text("user"), &text("key"));
            send(&mut router, if is_accepted { &started } else { &rejected });
            tx.send(text("user")).unwrap();
        }
    });
    (peer, asked)
}

#[test]
fn after_a_wrong_key_runners_use_the_reactors_name_again() {
    let (peer, asked) = accepting(|_, key| key == "the key");
    let file = peer.place.cachedir.join(".root_key");
    std::fs::write(&file, "a wrong one").unwrap();
    let (master, call) = (
        peer.master(),
        Call::runner("test.arg", vec![], Map::default()),
    );
    assert!(matches!(
        master.ask(&call, "", TIMEOUT),
        Err(MasterError::Unauthenticated { .. })
    ));
    std::fs::write(&file, "the key").unwrap();
    master.ask(&call, "", TIMEOUT).unwrap();
    drop(master);
    peer.end();
    assert_eq!(
        asked.iter().collect::<Vec<_>>(),
        ["Reactor", "Reactor", "root", "Reactor"]
    );
}

#[test]
fn a_new_key_restores_the_reactors_name() {
    let (peer, asked) = accepting(|user, key| user == "root" || key == "another key");
    let (master, call) = (
        peer.master(),
        Call::runner("test.arg", vec![], Map::default()),
    );
    for _ in 0..2 {
        master.ask(&call, "", TIMEOUT).unwrap();
    }
    std::fs::write(peer.place.cachedir.join(".root_key"), "another key").unwrap();
    master.ask(&call, "", TIMEOUT).unwrap();
    drop(master);
    peer.end();
    assert_eq!(
        asked.iter().collect::<Vec<_>>(),
        ["Reactor", "Reactor", "root", "root", "Reactor"]
    );
}

#[test]
fn the_answer_to_a_wheel_call_is_its_result() {
    let mut w = Writer::new();
    w.map(2).str("tag").str("salt/wheel/5").str("data").map(3);
    w.str("jid")
        .str("5")
        .str("success")
        .bool(true)
        .str("return")
        .array(1)
        .str("web1");
    let (peer, _asked) = answering(vec![w.into_bytes()]);
    let answer = peer
        .master()
        .ask(
            &Call::wheel("key.list_all", vec![], Map::default()),
            "",
            TIMEOUT,
        )
        .unwrap();
    assert_eq!(
        answer,
        Answer::Ran {
            jid: "5".to_owned(),
            success: true,
            result: b"\x91\xa4web1".to_vec()
        }
    );
    peer.end();
}

#[test]
fn errors_distinguish_retry_from_rejection() {
    let no_target = {
        let mut w = Writer::new();
        w.map(2)
            .str("enc")
            .str("clear")
            .str("load")
            .map(3)
            .str("jid")
            .nil()
            .str("minions")
            .array(0);
        w.str("error")
            .str("Master could not resolve minions for target x");
        w.into_bytes()
    };
    let no_jid = {
        let mut w = Writer::new();
        w.map(1)
            .str("load")
            .map(2)
            .str("jid")
            .nil()
            .str("error")
            .str("Failed to allocate a jid.");
        w.into_bytes()
    };
    let check = |answer: Vec<u8>, expected: &str| {
        let (peer, _asked) = answering(vec![answer]);
        let outcome = peer.master().ask(&ping(), "1", TIMEOUT);
        let name = match outcome {
            Ok(Answer::NoTarget { .. }) => "no target",
            Err(MasterError::Refused { .. }) => "refused",
            Err(MasterError::Retry { .. }) => "retry",
            Err(MasterError::NoAnswer { .. }) => "no answer",
            other => panic!("{other:?}"),
        };
        assert_eq!(name, expected);
        peer.end();
    };
    check(text("bad load"), "refused");
    check(text("Some exception handling minion payload"), "no answer");
    check(error("AuthorizationError"), "refused");
    check(error("OSError"), "retry");
    check(no_target, "no target");
    check(no_jid, "retry");
    check(text("payload and load must be a dict"), "refused");
    // Malformed answers do not prove that nothing was done.
    check(text("something else"), "no answer");
    check(b"\xc1".to_vec(), "no answer");
    check(b"\x80".to_vec(), "no answer");
    check(b"\x81\xa4load".to_vec(), "no answer");
    check(vec![], "no answer");
}

#[test]
fn a_rejected_key_is_read_again_once() {
    let no = error("AuthenticationError");
    let (tx, asked) = sync_channel(100);
    let peer = fake_peer(1, move |_, stream| {
        let mut router = handshake(stream);
        while let Some(request) = next(&mut router) {
            let key = as_text(get(get(&request, "load").unwrap(), "key").unwrap())
                .unwrap()
                .to_owned();
            send(
                &mut router,
                &if key == "another" {
                    published("1")
                } else {
                    no.clone()
                },
            );
            tx.send(key).unwrap();
        }
    });
    let master = peer.master();
    assert!(matches!(
        master.ask(&ping(), "1", TIMEOUT),
        Err(MasterError::Unauthenticated { .. })
    ));
    std::fs::write(peer.place.cachedir.join(".root_key"), "another").unwrap();
    master.ask(&ping(), "1", TIMEOUT).unwrap();
    std::fs::remove_file(peer.place.cachedir.join(".root_key")).unwrap();
    let gone = master.ask(&ping(), "1", TIMEOUT).unwrap_err();
    assert!(gone.to_string().contains(".root_key"), "{gone}");
    drop(master);
    peer.end();
    assert_eq!(
        asked.iter().collect::<Vec<_>>(),
        ["the key", "the key", "another"]
    );
}

#[test]
fn an_idle_connection_that_was_closed_is_not_reused() {
    let peer = fake_peer(2, |n, stream| {
        let mut router = handshake(stream);
        next(&mut router).unwrap();
        send(&mut router, &published(&n.to_string()));
    });
    let master = peer.master();
    master.ask(&ping(), "0", TIMEOUT).unwrap();
    let deadline = Instant::now() + TIMEOUT;
    while master.idle.lock().iter().any(MasterConnection::is_quiet) {
        assert!(Instant::now() < deadline, "the peer did not close it");
    }
    master.ask(&ping(), "1", TIMEOUT).unwrap();
    assert_eq!(master.metrics.master_connects.get(), 2);
    peer.end();
}

#[test]
fn a_second_answer_to_one_request_is_not_used_for_the_next() {
    let peer = fake_peer(2, |n, stream| {
        let mut router = handshake(stream);
        next(&mut router).unwrap();
        for _ in 0..=1 - n {
            send(&mut router, &published(&n.to_string()));
        }
        next(&mut router);
    });
    let master = peer.master();
    let jid = |answer| match answer {
        Ok(Answer::Published { jid, .. }) => jid,
        other => panic!("{other:?}"),
    };
    assert_eq!(jid(master.ask(&ping(), "0", TIMEOUT)), "0");
    crate::testkit::wait_for("the second answer", || {
        (!master.idle.lock().iter().any(MasterConnection::is_quiet)).then_some(())
    });
    assert_eq!(jid(master.ask(&ping(), "1", TIMEOUT)), "1");
    assert_eq!(master.metrics.master_connects.get(), 2);
    drop(master);
    peer.end();
}

#[test]
fn peers_that_are_not_masters_fail_in_time_without_a_panic() {
    type Play = fn(TcpStream);
    // Each ends the exchange in its own way, before or after the request was sent.
    let peers: [(&str, Play, bool); 7] = [
        (
            "speaks another protocol",
            |mut s| drop(s.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n")),
            true,
        ),
        ("closes immediately", drop, true),
        (
            "is a PUB",
            |mut s| {
                s.write_all(&zmtp::greeting()).unwrap();
                drop(s.write_all(&zmtp::ready(SocketType::Pub)));
                drop(s.read_to_end(&mut Vec::new()));
            },
            true,
        ),
        (
            "announces 4 TiB",
            |s| {
                let mut router = handshake(s);
                next(&mut router).unwrap();
                router
                    .stream
                    .write_all(b"\x01\0\x02\0\0\x04\0\0\0\0\0")
                    .unwrap();
            },
            false,
        ),
        (
            "disconnects within its response",
            |s| {
                let mut router = handshake(s);
                next(&mut router).unwrap();
                router.stream.write_all(b"\x01\0\0\x20abc").unwrap();
            },
            false,
        ),
        (
            "answers in three frames",
            |s| {
                let mut router = handshake(s);
                next(&mut router).unwrap();
                router.stream.write_all(b"\x01\0\x01\0\0\x01\x80").unwrap();
            },
            false,
        ),
        (
            "never answers",
            |s| {
                let mut router = handshake(s);
                next(&mut router).unwrap();
                assert_eq!(next(&mut router), None);
            },
            false,
        ),
    ];
    for (what, play, unsent) in peers {
        let peer = fake_peer(1, move |_, stream| play(stream));
        let error = peer
            .master()
            .ask(&ping(), "1", Duration::from_millis(300))
            .unwrap_err();
        assert_eq!(error.was_not_done(), unsent, "{what}: {error}");
        peer.end();
    }
}

#[test]
fn a_missing_master_is_reported_with_its_address() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    drop(listener);
    let peer = fake_peer(0, |_, _| ());
    let place = MasterAddress {
        port,
        ..peer.place.clone()
    };
    let error = Master::new(place, Arc::default())
        .ask(&ping(), "1", TIMEOUT)
        .unwrap_err();
    assert!(matches!(error, MasterError::Unreachable { .. }), "{error}");
    assert!(
        error.to_string().contains(&format!("127.0.0.1:{port}")),
        "{error}"
    );
    peer.end();
}

#[test]
fn many_threads_send_requests_concurrently() {
    let (tx, seen) = sync_channel(100);
    let peer = fake_peer(4, move |_, stream| {
        // Handshakes one after the other, answers only after all four requests.
        let mut router = handshake(stream);
        next(&mut router).unwrap();
        tx.send(router).unwrap();
    });
    let master = peer.master();
    std::thread::scope(|threads| {
        let asking: Vec<_> = (0..4)
            .map(|_| {
                std::thread::Builder::new()
                    .spawn_scoped(threads, || master.ask(&ping(), "1", TIMEOUT))
                    .unwrap()
            })
            .collect();
        let routers: Vec<_> = (0..4).map(|_| crate::testkit::receive(&seen)).collect();
        for mut router in routers {
            send(&mut router, &published("1"));
        }
        for asked in asking {
            asked.join().unwrap().unwrap();
        }
    });
    peer.end();
}

#[test]
fn values_survive_a_round_trip_through_msgpack() {
    let mut inner = Map::default();
    inner.insert("k".into(), Value::Int(-7));
    inner.insert(salt_sls::Key(Value::Int(3)), Value::Null);
    let value = Value::List(vec![
        Value::Bool(true),
        Value::BigInt(u64::MAX.to_string()),
        Value::Float(1.5),
        "text".into(),
        Value::Bytes(vec![0xff]),
        Value::Map(inner),
    ]);
    assert_eq!(from_msgpack(&pack::packed(&value)), Some(value.clone()));
    assert_eq!(
        from_msgpack(&pack::packed(&Value::Tuple(vec![value.clone()]))),
        Some(Value::List(vec![value]))
    );
    assert_eq!(
        from_msgpack(&pack::packed(&Value::BigInt(
            "1208925819614629174706176".to_owned()
        ))),
        Some("1208925819614629174706176".into())
    );
    assert_eq!(from_msgpack(&vec![0x91; 100_000]), None);
    assert_eq!(from_msgpack(b"\xdd\xff\xff\xff\xff"), None);
}
