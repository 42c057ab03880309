//! A master that the test plays: good ones, and such as are none.

use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::mpsc::{Receiver, sync_channel};
use std::thread::JoinHandle;

use super::*;
use crate::sls::value::{Map, Value};
use crate::wire::msgpack::{Writer, as_text, get};
use crate::wire::zmtp::{self, Message, Piece, SocketType, Splitter};

const PATIENCE: Duration = Duration::from_secs(20);

/// Something that listens, and a key in a directory.
struct Lab {
    _dir: tempfile::TempDir,
    place: Place,
    thread: Option<JoinHandle<()>>,
}

/// Plays a peer: each connection is handed to `play`, one after the other, `times` of them.
fn peer(times: usize, mut play: impl FnMut(usize, TcpStream) + Send + 'static) -> Lab {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join(".root_key"), "the key").unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let place = Place {
        host: "0.0.0.0".to_owned(),
        port: listener.local_addr().unwrap().port(),
        cachedir: dir.path().to_owned(),
        user: "root".to_owned(),
    };
    let thread = std::thread::Builder::new().name("peer".to_owned()).spawn(move || {
        for n in 0..times {
            play(n, listener.accept().unwrap().0);
        }
    });
    Lab { _dir: dir, place, thread: Some(thread.unwrap()) }
}

impl Lab {
    fn master(&self) -> Master {
        Master::new(self.place.clone(), Arc::default())
    }

    fn end(mut self) {
        self.thread.take().unwrap().join().unwrap();
    }
}

/// The far end of a REQ: what a ROUTER says.
struct Router {
    stream: TcpStream,
    splitter: Splitter,
}

fn greeted(mut stream: TcpStream) -> Router {
    stream.write_all(&zmtp::greeting()).unwrap();
    let mut theirs = [0; zmtp::GREETING_LEN];
    stream.read_exact(&mut theirs).unwrap();
    zmtp::check_greeting(&theirs).unwrap();
    stream.write_all(b"\x04\x1c\x05READY\x0bSocket-Type\0\0\0\x06ROUTER").unwrap();
    let mut router = Router { stream, splitter: Splitter::new(1 << 20) };
    assert!(router.next().unwrap().is_empty(), "the READY");
    router
}

impl Router {
    /// The body of the next request, or nothing for a command; `None` at the end.
    fn next(&mut self) -> Option<Vec<u8>> {
        loop {
            match self.splitter.next_piece().unwrap() {
                Some(Piece::Command(_)) => return Some(Vec::new()),
                Some(Piece::Message(Message { first, second, frames })) => {
                    assert_eq!((first, frames), (&[][..], 2));
                    return Some(second.unwrap().to_vec());
                }
                None => {}
            }
            let mut buffer = [0; 1000];
            match self.stream.read(&mut buffer) {
                Ok(n) if n > 0 => self.splitter.feed(&buffer[..n]),
                _ => return None,
            }
        }
    }

    fn say(&mut self, body: &[u8]) {
        let mut bytes = Vec::new();
        zmtp::put_request(&mut bytes, body);
        // In pieces that end anywhere.
        for piece in bytes.chunks(3) {
            let _ = self.stream.write_all(piece);
        }
    }
}

fn published(jid: &str) -> Vec<u8> {
    let mut w = Writer::new();
    w.map(2).str("enc").str("clear").str("load").map(3).str("jid").str(jid);
    w.str("minions").array(1).str("web1").str("missing").array(0);
    w.into_bytes()
}

fn error(name: &str) -> Vec<u8> {
    let mut w = Writer::new();
    w.map(1).str("error").map(2).str("name").str(name).str("message").str("no");
    w.into_bytes()
}

fn words(text: &str) -> Vec<u8> {
    let mut w = Writer::new();
    w.str(text);
    w.into_bytes()
}

fn ping() -> Call {
    Call::publish("*", "glob", "test.ping", vec![])
}

/// A good master that answers each request with the next of these; what it was asked.
fn answering(answers: Vec<Vec<u8>>) -> (Lab, Receiver<Vec<u8>>) {
    let (tx, asked) = sync_channel(100);
    let lab = peer(1, move |_, stream| {
        let mut router = greeted(stream);
        for answer in &answers {
            tx.send(router.next().unwrap()).unwrap();
            router.say(answer);
        }
    });
    (lab, asked)
}

#[test]
fn who_is_reached_is_asked_over_the_same_connection() {
    let (lab, asked) = answering(vec![published("7_1")]);
    let master = lab.master();
    master.reach().unwrap();
    master.reach().unwrap();
    assert!(asked.try_recv().is_err(), "nothing was asked");
    master.ask(&ping(), "7_1", PATIENCE).unwrap();
    assert_eq!(master.metrics.master_connects.get(), 1);
    lab.end();
    assert!(matches!(master.reach(), Err(MasterError::Unreachable { .. })));
}

#[test]
fn a_job_is_published_with_our_jid_and_key_and_the_connection_is_kept() {
    let (lab, asked) = answering(vec![published("7_1"), published("7_2")]);
    let master = lab.master();
    let answer = master.ask(&ping(), "7_1", PATIENCE).unwrap();
    let minions = vec!["web1".to_owned()];
    assert_eq!(answer, Answer::Published { jid: "7_1".to_owned(), minions, missing: vec![] });
    master.ask(&ping(), "7_2", PATIENCE).unwrap();
    let request = crate::testing::receive(&asked);
    let load = get(&request, "load").unwrap();
    assert_eq!(get(&request, "version"), Some(&[3][..]));
    let text = |key| get(load, key).and_then(as_text);
    let said = ["cmd", "tgt", "tgt_type", "fun", "jid", "user", "key", "ret"].map(|key| text(key).unwrap());
    assert_eq!(said, ["publish", "*", "glob", "test.ping", "7_1", "root", "the key", ""]);
    assert!(get(load, "arg").is_some() && get(load, "kwargs").is_some());
    assert_eq!(master.metrics.master_connects.get(), 1);
    assert_eq!(master.metrics.master_requests.get(), 2);
    drop(master);
    lab.end();
}

#[test]
fn what_a_call_says_cannot_stand_in_for_key_user_or_command() {
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
fn runners_and_wheels_go_out_under_the_reactors_name_and_only_then_under_the_masters() {
    let started = {
        let mut w = Writer::new();
        w.map(2).str("tag").str("salt/run/9").str("jid").str("9");
        w.into_bytes()
    };
    let no = error("UserAuthenticationError");
    let (lab, asked) = answering(vec![started.clone(), no.clone(), no, started]);
    let master = lab.master();
    let call = Call::runner("state.orchestrate", vec!["x".into()], Map::new());
    let answer = master.ask(&call, "", PATIENCE).unwrap();
    assert_eq!(answer, Answer::Started { jid: "9".to_owned(), tag: "salt/run/9".to_owned() });
    master.ask(&call, "", PATIENCE).unwrap();
    let users: Vec<_> = (0..4)
        .map(|_| {
            let request = crate::testing::receive(&asked);
            as_text(get(get(&request, "load").unwrap(), "user").unwrap()).unwrap().to_owned()
        })
        .collect();
    // The second one: refused, refused with the key read anew, taken with the other name.
    assert_eq!(users, ["Reactor", "Reactor", "Reactor", "root"]);
    drop(master);
    lab.end();
}

/// A master that accepts these users with these keys; every request's user, as it comes in.
fn accepting(accepts: impl Fn(&str, &str) -> bool + Send + 'static) -> (Lab, Receiver<String>) {
    let (tx, asked) = sync_channel(100);
    let mut started = Writer::new();
    started.map(2).str("tag").str("salt/run/9").str("jid").str("9");
    let (started, rejected) = (started.into_bytes(), error("UserAuthenticationError"));
    let lab = peer(1, move |_, stream| {
        let mut router = greeted(stream);
        while let Some(request) = router.next() {
            let load = get(&request, "load").unwrap();
            let text = |name| as_text(get(load, name).unwrap()).unwrap().to_owned();
            let is_accepted = accepts(&text("user"), &text("key"));
            router.say(if is_accepted { &started } else { &rejected });
            tx.send(text("user")).unwrap();
        }
    });
    (lab, asked)
}

#[test]
fn after_a_wrong_key_runners_went_out_under_the_masters_name_for_ever() {
    let (lab, asked) = accepting(|_, key| key == "the key");
    let file = lab.place.cachedir.join(".root_key");
    std::fs::write(&file, "a wrong one").unwrap();
    let (master, call) = (lab.master(), Call::runner("test.arg", vec![], Map::new()));
    assert!(matches!(master.ask(&call, "", PATIENCE), Err(MasterError::Unauthenticated { .. })));
    std::fs::write(&file, "the key").unwrap();
    master.ask(&call, "", PATIENCE).unwrap();
    drop(master);
    lab.end();
    assert_eq!(asked.iter().collect::<Vec<_>>(), ["Reactor", "Reactor", "root", "Reactor"]);
}

#[test]
fn a_new_key_did_not_bring_the_reactors_name_back() {
    let (lab, asked) = accepting(|user, key| user == "root" || key == "another key");
    let (master, call) = (lab.master(), Call::runner("test.arg", vec![], Map::new()));
    for _ in 0..2 {
        master.ask(&call, "", PATIENCE).unwrap();
    }
    std::fs::write(lab.place.cachedir.join(".root_key"), "another key").unwrap();
    master.ask(&call, "", PATIENCE).unwrap();
    drop(master);
    lab.end();
    assert_eq!(asked.iter().collect::<Vec<_>>(), ["Reactor", "Reactor", "root", "root", "Reactor"]);
}

#[test]
fn a_wheels_answer_is_its_result() {
    let mut w = Writer::new();
    w.map(2).str("tag").str("salt/wheel/5").str("data").map(3);
    w.str("jid").str("5").str("success").bool(true).str("return").array(1).str("web1");
    let (lab, _asked) = answering(vec![w.into_bytes()]);
    let answer = lab.master().ask(&Call::wheel("key.list_all", vec![], Map::new()), "", PATIENCE).unwrap();
    assert_eq!(answer, Answer::Ran { jid: "5".to_owned(), success: true, result: b"\x91\xa4web1".to_vec() });
    lab.end();
}

#[test]
fn each_refusal_says_what_to_do_next() {
    let nobody = {
        let mut w = Writer::new();
        w.map(2).str("enc").str("clear").str("load").map(3).str("jid").nil().str("minions").array(0);
        w.str("error").str("Master could not resolve minions for target x");
        w.into_bytes()
    };
    let no_jid = {
        let mut w = Writer::new();
        w.map(1).str("load").map(2).str("jid").nil().str("error").str("Failed to allocate a jid.");
        w.into_bytes()
    };
    let check = |answer: Vec<u8>, expected: &str| {
        let (lab, _asked) = answering(vec![answer]);
        let outcome = lab.master().ask(&ping(), "1", PATIENCE);
        let name = match outcome {
            Ok(Answer::Nobody { .. }) => "nobody",
            Err(MasterError::Refused { .. }) => "refused",
            Err(MasterError::Retry { .. }) => "retry",
            Err(MasterError::NoAnswer { .. }) => "no answer",
            other => panic!("{other:?}"),
        };
        assert_eq!(name, expected);
        lab.end();
    };
    check(words("bad load"), "refused");
    check(words("Some exception handling minion payload"), "no answer");
    check(error("AuthorizationError"), "refused");
    check(nobody, "nobody");
    check(no_jid, "retry");
    check(words("payload and load must be a dict"), "refused");
    // Garbage does not tell that nothing was done.
    check(words("something else"), "no answer");
    check(b"\xc1".to_vec(), "no answer");
    check(b"\x80".to_vec(), "no answer");
    check(b"\x81\xa4load".to_vec(), "no answer");
    check(vec![], "no answer");
}

#[test]
fn a_key_that_is_not_taken_is_read_anew_once() {
    let no = error("AuthenticationError");
    let (tx, asked) = sync_channel(100);
    let lab = peer(1, move |_, stream| {
        let mut router = greeted(stream);
        while let Some(request) = router.next() {
            let key = as_text(get(get(&request, "load").unwrap(), "key").unwrap()).unwrap().to_owned();
            router.say(&if key == "another" { published("1") } else { no.clone() });
            tx.send(key).unwrap();
        }
    });
    let master = lab.master();
    assert!(matches!(master.ask(&ping(), "1", PATIENCE), Err(MasterError::Unauthenticated { .. })));
    std::fs::write(lab.place.cachedir.join(".root_key"), "another").unwrap();
    master.ask(&ping(), "1", PATIENCE).unwrap();
    std::fs::remove_file(lab.place.cachedir.join(".root_key")).unwrap();
    let gone = master.ask(&ping(), "1", PATIENCE).unwrap_err();
    assert!(gone.to_string().contains(".root_key"), "{gone}");
    drop(master);
    lab.end();
    assert_eq!(asked.iter().collect::<Vec<_>>(), ["the key", "the key", "another"]);
}

#[test]
fn a_connection_that_died_while_nothing_was_asked_is_not_asked() {
    let lab = peer(2, |n, stream| {
        let mut router = greeted(stream);
        router.next().unwrap();
        router.say(&published(&n.to_string()));
    });
    let master = lab.master();
    master.ask(&ping(), "0", PATIENCE).unwrap();
    let deadline = Instant::now() + PATIENCE;
    while master.idle().iter().any(Connection::is_quiet) {
        assert!(Instant::now() < deadline, "the peer has closed it");
    }
    master.ask(&ping(), "1", PATIENCE).unwrap();
    assert_eq!(master.metrics.master_connects.get(), 2);
    lab.end();
}

#[test]
fn a_second_answer_to_one_request_is_not_the_answer_to_the_next() {
    let lab = peer(2, |n, stream| {
        let mut router = greeted(stream);
        router.next().unwrap();
        for _ in 0..=1 - n {
            router.say(&published(&n.to_string()));
        }
        router.next();
    });
    let master = lab.master();
    let jid = |answer| match answer {
        Ok(Answer::Published { jid, .. }) => jid,
        other => panic!("{other:?}"),
    };
    assert_eq!(jid(master.ask(&ping(), "0", PATIENCE)), "0");
    crate::testing::wait_for("the second answer", || {
        (!master.idle().iter().any(Connection::is_quiet)).then_some(())
    });
    assert_eq!(jid(master.ask(&ping(), "1", PATIENCE)), "1");
    assert_eq!(master.metrics.master_connects.get(), 2);
    drop(master);
    lab.end();
}

#[test]
fn peers_that_are_no_master_end_in_time_and_without_a_panic() {
    type Play = fn(TcpStream);
    // Each ends the exchange in its own way; nothing was sent by then, or it was.
    let peers: [(&str, Play, bool); 7] = [
        ("speaks another language", |mut s| drop(s.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n")), true),
        ("closes at once", drop, true),
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
                let mut router = greeted(s);
                router.next().unwrap();
                router.stream.write_all(b"\x01\0\x02\0\0\x04\0\0\0\0\0").unwrap();
            },
            false,
        ),
        (
            "leaves in the middle of its answer",
            |s| {
                let mut router = greeted(s);
                router.next().unwrap();
                router.stream.write_all(b"\x01\0\0\x20abc").unwrap();
            },
            false,
        ),
        (
            "answers in three frames",
            |s| {
                let mut router = greeted(s);
                router.next().unwrap();
                router.stream.write_all(b"\x01\0\x01\0\0\x01\x80").unwrap();
            },
            false,
        ),
        (
            "never answers",
            |s| {
                let mut router = greeted(s);
                router.next().unwrap();
                assert_eq!(router.next(), None);
            },
            false,
        ),
    ];
    for (what, play, unsent) in peers {
        let lab = peer(1, move |_, stream| play(stream));
        let error = lab.master().ask(&ping(), "1", Duration::from_millis(300)).unwrap_err();
        assert_eq!(error.was_not_done(), unsent, "{what}: {error}");
        assert!(error.may_pass(), "{what}: {error}");
        lab.end();
    }
}

#[test]
fn nobody_there_is_said_with_the_address() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    drop(listener);
    let lab = peer(0, |_, _| ());
    let place = Place { port, ..lab.place.clone() };
    let error = Master::new(place, Arc::default()).ask(&ping(), "1", PATIENCE).unwrap_err();
    assert!(matches!(error, MasterError::Unreachable { .. }), "{error}");
    assert!(error.to_string().contains(&format!("127.0.0.1:{port}")), "{error}");
    lab.end();
}

#[test]
fn many_threads_ask_at_once() {
    let (tx, seen) = sync_channel(100);
    let lab = peer(4, move |_, stream| {
        // Greeted one after the other, answered only when all four have asked.
        let mut router = greeted(stream);
        router.next().unwrap();
        tx.send(router).unwrap();
    });
    let master = lab.master();
    std::thread::scope(|threads| {
        let asking: Vec<_> = (0..4)
            .map(|_| {
                std::thread::Builder::new()
                    .spawn_scoped(threads, || master.ask(&ping(), "1", PATIENCE))
                    .unwrap()
            })
            .collect();
        let routers: Vec<_> = (0..4).map(|_| crate::testing::receive(&seen)).collect();
        for mut router in routers {
            router.say(&published("1"));
        }
        for asked in asking {
            asked.join().unwrap().unwrap();
        }
    });
    lab.end();
}

#[test]
fn values_go_to_msgpack_and_back() {
    let mut inner = Map::new();
    inner.insert("k".into(), Value::Int(-7));
    inner.insert(crate::sls::value::Key(Value::Int(3)), Value::Null);
    let value = Value::List(vec![
        Value::Bool(true),
        Value::BigInt(u64::MAX.to_string()),
        Value::Float(1.5),
        "text".into(),
        Value::Bytes(vec![0xff]),
        Value::Map(inner),
    ]);
    assert_eq!(pack::unpacked(&pack::packed(&value)), Some(value.clone()));
    assert_eq!(
        pack::unpacked(&pack::packed(&Value::Tuple(vec![value.clone()]))),
        Some(Value::List(vec![value]))
    );
    assert_eq!(
        pack::unpacked(&pack::packed(&Value::BigInt("1208925819614629174706176".to_owned()))),
        Some("1208925819614629174706176".into())
    );
    assert_eq!(pack::unpacked(&vec![0x91; 100_000]), None);
    assert_eq!(pack::unpacked(b"\xdd\xff\xff\xff\xff"), None);
}

#[test]
fn signatures_are_read_as_salt_reports_them() {
    let mut w = Writer::new();
    w.map(2).str("state.orchestrate").map(4);
    w.str("args").array(2).str("mods").str("saltenv").str("defaults").array(1).str("base");
    w.str("varargs").nil().str("kwargs").bool(true);
    w.str("odd.one").str("?");
    let found = signatures::read(&w.into_bytes());
    let one = &found["state.orchestrate"];
    assert_eq!((found.len(), one.args.len(), one.varargs, one.kwargs), (1, 2, false, true));
    assert_eq!(one.defaults, ["base".into()]);
}
