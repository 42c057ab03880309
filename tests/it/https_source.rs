//! The minion listener: authentic minions, and many kinds of invalid ones.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::path::{Path, PathBuf};

use rmpv::Value;
use saltcellar::base::clock::{Clock, Micros};
use saltcellar::wire::call::request_frame;
use saltcellar::wire::signed::Envelope;
use saltcellar_testkit::minion::{Address, HttpsAnswer, HttpsConnection, Signer};

use crate::harness::{Asks as _, Cellar, in_dir, map, wait_for};
use crate::told::assert_told;

const JID: &str = "20241121031733650863";
const HOUR: i64 = 3_600_000_000;

fn data(name: &str) -> Vec<u8> {
    std::fs::read(
        Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("salt/tests/data/https")
            .join(name),
    )
    .unwrap()
}

pub(crate) fn signer(name: &str) -> Signer {
    Signer::from_pem(&data(name)).unwrap()
}

fn now() -> Micros {
    Clock::real().now()
}

/// A daemon that serves minions, and its master's keys.
pub(crate) struct Server {
    pub(crate) cellar: Cellar,
}

impl Server {
    /// Accepts minions `a` and `b`.
    pub(crate) fn open(more: &str) -> Self {
        Self::open_with("server", more)
    }

    fn open_with(certificate: &str, more: &str) -> Self {
        let keys = "listen: 127.0.0.1:0\n  certificate: DIR/tls.pem\n  key: DIR/tls.key";
        Self::configured(
            certificate,
            &format!("https:\n  {keys}\n  pki_dir: DIR/pki\n{more}"),
        )
    }

    /// Serves minions on the HTTP listener.
    fn open_on_http(more: &str) -> Self {
        let tls = "{certificate: DIR/tls.pem, key: DIR/tls.key}";
        let http = format!("http: {{listen: '127.0.0.1:0', tls: {tls}, minions: true}}");
        Self::configured(
            "server",
            &format!("{http}\nhttps:\n  pki_dir: DIR/pki\n{more}"),
        )
    }

    fn configured(certificate: &str, config: &str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        for sub in [
            "minions",
            "minions_pre",
            "minions_rejected",
            "minions_denied",
        ] {
            std::fs::create_dir_all(dir.path().join("pki").join(sub)).unwrap();
        }
        std::fs::write(dir.path().join("c.yaml"), in_dir(config, dir.path())).unwrap();
        put_certificate(dir.path(), certificate);
        let server = Self {
            cellar: Cellar::start_in(dir, &["--config", "DIR/c.yaml"]),
        };
        server.accept("a", "minion-a.pub");
        server.accept("b", "minion-b.pub");
        server
    }

    fn accept(&self, id: &str, key: &str) {
        std::fs::write(self.pki("minions").join(id), data(key)).unwrap();
    }

    fn pki(&self, sub: &str) -> PathBuf {
        self.cellar.dir.path().join("pki").join(sub)
    }

    fn status(&self, field: &str) -> Value {
        self.cellar.ask("status", vec![])["https"][field].clone()
    }

    /// `open`, or why it is not, or not as configured.
    fn state(&self) -> String {
        let status = ["problem", "state"].map(|field| self.status(field));
        let text = status.iter().find_map(rmpv::Value::as_str);
        text.unwrap().to_owned()
    }

    fn port(&self) -> u16 {
        // The address has no port until the listener is open.
        let port = || {
            let listen = self.status("listen");
            let (_, port) = listen.as_str()?.rsplit_once(':')?;
            port.parse().ok().filter(|port| *port != 0)
        };
        wait_for("the listener", port)
    }

    fn address(&self) -> Address {
        // Also with its previous certificate.
        wait_for("the source", || {
            let state = self.status("state");
            ["open", "impaired"]
                .contains(&state.as_str()?)
                .then_some(())
        });
        Address::new(
            ([127, 0, 0, 1], self.port()).into(),
            "localhost",
            &data("ca.pem"),
        )
        .unwrap()
    }

    pub(crate) fn connect(&self) -> HttpsConnection {
        HttpsConnection::open(&self.address()).unwrap()
    }

    fn stored(&self) -> Vec<String> {
        let job = self.cellar.ask("get_jid", vec![("jid", JID.into())]);
        job.as_map()
            .unwrap()
            .iter()
            .map(|(minion, _)| minion.as_str().unwrap().to_owned())
            .collect()
    }

    fn counter(&self, name: &str) -> u64 {
        self.cellar.counter(name)
    }
}

fn put_certificate(dir: &Path, name: &str) {
    std::fs::write(dir.join("tls.pem"), data(&format!("{name}.pem"))).unwrap();
    std::fs::write(dir.join("tls.key"), data(&format!("{name}.key"))).unwrap();
}

/// A frame with a return of that minion.
fn returned(minion: &str, more: Vec<(&str, Value)>) -> Vec<u8> {
    let mut load = vec![
        ("id", minion.into()),
        ("jid", JID.into()),
        ("return", true.into()),
    ];
    load.extend([
        ("fun", "test.ping".into()),
        ("retcode", 0.into()),
        ("success", true.into()),
    ]);
    let mut args = vec![("load", map(load))];
    args.extend(more);
    call("returner", args)
}

pub(crate) fn call(name: &str, args: Vec<(&str, Value)>) -> Vec<u8> {
    let mut bytes = Vec::new();
    rmpv::encode::write_value(&mut bytes, &map(args)).unwrap();
    request_frame(7, name, &bytes)
}

/// The first frame of a response: its value, or the code and message of an error.
fn first(answer: &HttpsAnswer) -> Result<Value, (String, String)> {
    let frame = rmpv::decode::read_value(&mut &answer.body[4..]).unwrap();
    if frame[1] == Value::from(true) {
        return Ok(frame[2].clone());
    }
    let word = |key: &str| frame[2][key].as_str().unwrap().to_owned();
    Err((word("code"), word("message")))
}

/// Signs and posts as `id`.
pub(crate) fn post(
    connection: &mut HttpsConnection,
    id: &str,
    key: &Signer,
    payload: &[u8],
) -> Result<Value, (String, String)> {
    let batch = connection.sealed(id, key, now(), payload).unwrap();
    first(&connection.post(&batch).unwrap())
}

#[test]
fn a_minion_stores_its_own_returns() {
    let server = Server::open("");
    let mut connection = server.connect();
    assert_eq!(
        post(
            &mut connection,
            "a",
            &signer("minion-a.pem"),
            &returned("a", vec![])
        ),
        Ok(Value::Nil)
    );
    assert_eq!(server.stored(), ["a"], "readable once it is acknowledged");
    // Another minion over the same connection, and several calls in one batch.
    let two = [returned("b", vec![]), returned("b", vec![])].concat();
    let batch = connection
        .sealed("b", &signer("minion-b.pem"), now(), &two)
        .unwrap();
    let answer = connection.post(&batch).unwrap();
    assert_eq!((answer.status, answer.body.len()), (200, 2 * (4 + 4)));
    assert_eq!(server.stored(), ["a", "b"]);
    assert_eq!(server.counter("https_batches"), 2);
    assert_eq!(server.status("peers"), 1.into());
    let mut status = crate::fake_daemon::program();
    let status = status
        .args(["status", "--socket"])
        .arg(server.cellar.socket())
        .output()
        .unwrap();
    let shown = crate::fake_daemon::stdout(&status);
    let line = shown
        .lines()
        .find(|line| line.starts_with("https "))
        .unwrap_or_default();
    assert!(
        line.contains("127.0.0.1:") && line.contains("open") && line.contains("1 connections"),
        "{shown}"
    );
    assert!(server.status("certificate_until").as_i64().is_some());
}

#[test]
fn a_signed_return_unreadable_to_salt_does_not_hide_others() {
    let server = Server::open("");
    let mut connection = server.connect();
    assert_eq!(
        post(
            &mut connection,
            "b",
            &signer("minion-b.pem"),
            &returned("b", vec![])
        ),
        Ok(Value::Nil)
    );
    for (words, odd) in crate::salt_codec::attacks() {
        let payload = call(
            "returner",
            vec![("load", crate::salt_codec::returned("a", &odd))],
        );
        // The minion has answered, so only what Salt cannot read is left out.
        let answer = post(&mut connection, "a", &signer("minion-a.pem"), &payload);
        assert_eq!(answer, Ok(Value::Nil), "{words}");
    }
    assert_eq!(
        server.counter("returns_repaired"),
        crate::salt_codec::attacks().len() as u64
    );
    // The connection still accepts a valid return.
    assert_eq!(
        post(
            &mut connection,
            "a",
            &signer("minion-a.pem"),
            &returned("a", vec![])
        ),
        Ok(Value::Nil)
    );
    assert_eq!(server.stored(), ["a", "b"]);
}

#[test]
fn unauthenticated_batches_are_rejected_and_counted() {
    let server = Server::open("");
    let (a, b) = (signer("minion-a.pem"), signer("minion-b.pem"));
    std::fs::write(
        server.pki("minions_pre").join("waits"),
        data("minion-a.pub"),
    )
    .unwrap();
    std::fs::write(
        server.pki("minions_rejected").join("turned-down"),
        data("minion-a.pub"),
    )
    .unwrap();
    std::fs::write(
        server.pki("minions_denied").join("another"),
        data("minion-a.pub"),
    )
    .unwrap();
    std::fs::write(
        server.pki("minions").join("broken"),
        "-----BEGIN PUBLIC KEY-----\n",
    )
    .unwrap();
    let check =
        |id: &str, key: &Signer, time: Micros, code: &str, counter: &str, words: &[&str]| {
            let before = server.counter(counter);
            let mut connection = server.connect();
            let batch = connection
                .sealed(id, key, time, &returned(id, vec![]))
                .unwrap();
            let (found, message) = first(&connection.post(&batch).unwrap()).unwrap_err();
            assert_eq!(found, code, "{message}");
            for word in words {
                assert!(message.contains(word), "{word}: {message}");
            }
            assert_eq!(server.counter(counter), before + 1, "{counter}");
        };
    check(
        "a",
        &b,
        now(),
        "signature",
        "https_rejected_bad_signature",
        &["the accepted key of minion a"],
    );
    let unknown = "https_rejected_key_not_accepted";
    check(
        "unlisted",
        &a,
        now(),
        "not_accepted",
        unknown,
        &["unlisted", "unknown", "names this master"],
    );
    check(
        "waits",
        &a,
        now(),
        "not_accepted",
        unknown,
        &["pending", "`salt-key -a waits`"],
    );
    check(
        "turned-down",
        &a,
        now(),
        "not_accepted",
        unknown,
        &["rejected", "`salt-key -a turned-down --include-rejected`"],
    );
    check(
        "another",
        &a,
        now(),
        "not_accepted",
        unknown,
        &["denied", "--include-denied"],
    );
    check(
        "broken",
        &a,
        now(),
        "unavailable",
        "https_rejected_key_unreadable",
        &["broken", "see the daemon's log"],
    );
    let year = now().iso()[..4].to_owned();
    check(
        "a",
        &a,
        Micros(0),
        "clock",
        "https_rejected_clock_skew",
        &["minion a shows 1970-", &year, "300 s"],
    );
    check(
        "a",
        &a,
        Micros(now().0 + HOUR),
        "clock",
        "https_rejected_clock_skew",
        &["minion a shows"],
    );
    check(
        "a",
        &a,
        Micros(i64::MAX),
        "clock",
        "https_rejected_clock_skew",
        &["9223372036854775807 microseconds"],
    );
    check(
        "../minions/a",
        &a,
        now(),
        "protocol",
        "https_rejected_malformed",
        &["a valid file name"],
    );
    assert_eq!(server.stored(), [""; 0]);
    server.cellar.logged("minions/broken");
}

#[test]
fn a_batch_is_valid_once_and_only_on_its_connection() {
    let mut server = Server::open("");
    let key = signer("minion-a.pem");
    let mut connection = server.connect();
    let batch = connection
        .sealed("a", &key, now(), &returned("a", vec![]))
        .unwrap();
    assert_eq!(first(&connection.post(&batch).unwrap()), Ok(Value::Nil));
    let code = |answer: HttpsAnswer| first(&answer).unwrap_err();
    let (again, words) = code(connection.post(&batch).unwrap());
    assert_eq!(
        (
            again.as_str(),
            words.contains("batch 1 of minion a was sent before")
        ),
        ("replayed", true),
        "{words}"
    );
    let (elsewhere, words) = code(server.connect().post(&batch).unwrap());
    assert_eq!(
        (elsewhere.as_str(), words.contains("for another connection")),
        ("replayed", true),
        "{words}"
    );
    assert_eq!(server.counter("https_rejected_replayed"), 2);
    // Replay protection needs no state across a restart.
    assert!(server.cellar.terminate());
    server.cellar.restart();
    let (later, _) = code(server.connect().post(&batch).unwrap());
    assert_eq!(later, "replayed");
    assert_eq!(server.stored(), ["a"]);
}

#[test]
fn a_batch_signed_for_another_certificate_is_refused() {
    let server = Server::open("");
    let key = signer("minion-a.pem");
    let mut connection = server.connect();
    let payload = returned("a", vec![]);
    let sum = |bytes: &[u8]| {
        ring::digest::digest(&ring::digest::SHA256, bytes)
            .as_ref()
            .try_into()
            .unwrap()
    };
    let envelope = Envelope {
        time: now(),
        challenge: *connection.challenge(),
        number: 1,
        payload_digest: sum(&payload),
        payload_len: u32::try_from(payload.len()).unwrap(),
        id: "a",
    };
    // A man in the middle relays a batch: everything is valid except the certificate.
    let signed = |certificate: &[u8; 32], payload: &[u8]| {
        [
            &envelope.write(&key.sign(&envelope.signed_text(certificate)).unwrap()),
            payload,
        ]
        .concat()
    };
    let (code, _) = first(
        &connection
            .post(&signed(&sum(b"another"), &payload))
            .unwrap(),
    )
    .unwrap_err();
    assert_eq!(code, "signature");
    // A batch with a replaced payload.
    let mut connection = server.connect();
    let envelope = Envelope {
        challenge: *connection.challenge(),
        ..envelope
    };
    let text = envelope.signed_text(connection.certificate());
    let mut forged = envelope.write(&key.sign(&text).unwrap());
    let mut other = payload.clone();
    let last = other.len() - 1;
    other[last] ^= 1;
    forged.extend_from_slice(&other);
    let (code, words) = first(&connection.post(&forged).unwrap()).unwrap_err();
    assert_eq!(
        (code.as_str(), words.contains("not the one")),
        ("signature", true),
        "{words}"
    );
    assert_eq!(server.counter("https_rejected_bad_signature"), 2);
    assert_eq!(server.stored(), [""; 0]);
}

#[test]
fn a_key_is_valid_from_acceptance_to_deletion() {
    let server = Server::open("");
    let (a, b) = (signer("minion-a.pem"), signer("minion-b.pem"));
    let mut connection = server.connect();
    let mut code = |key: &Signer| {
        post(&mut connection, "new", key, &returned("new", vec![])).map_err(|(code, _)| code)
    };
    server.accept("new", "minion-a.pub");
    assert_eq!(code(&a), Ok(Value::Nil));
    assert_eq!(code(&a), Ok(Value::Nil));
    server.accept("new", "minion-b.pub");
    assert_eq!(code(&b), Ok(Value::Nil));
    assert_eq!(code(&a), Err("signature".to_owned()));
    let mut connection = server.connect();
    std::fs::remove_file(server.pki("minions").join("new")).unwrap();
    let (code, _) = post(&mut connection, "new", &b, &returned("new", vec![])).unwrap_err();
    assert_eq!(code, "not_accepted");
}

#[test]
fn a_retry_after_a_lost_answer_is_stored_once() {
    let mut server = Server::open("");
    let key = signer("minion-a.pem");
    let at = Value::from(now().0 - 1000);
    let retry = returned("a", vec![("at", at.clone()), ("replay", true.into())]);
    assert_eq!(
        post(
            &mut server.connect(),
            "a",
            &key,
            &returned("a", vec![("at", at)])
        ),
        Ok(Value::Nil)
    );
    assert_eq!(
        post(&mut server.connect(), "a", &key, &retry),
        Ok(Value::Nil)
    );
    server.cellar.kill();
    server.cellar.restart();
    assert_eq!(
        post(&mut server.connect(), "a", &key, &retry),
        Ok(Value::Nil)
    );
    let job = server.cellar.ask("job_show", vec![("jid", JID.into())]);
    assert_eq!(job["returns"].as_array().unwrap().len(), 1);
    let entries: u64 = server.cellar.ask("status", vec![])["classes"]
        .as_array()
        .unwrap()
        .iter()
        .map(|class| class["entries"].as_u64().unwrap())
        .sum();
    assert_eq!(entries, 1);
}

#[test]
fn a_minion_can_only_store_its_own_returns() {
    let server = Server::open("");
    let key = signer("minion-a.pem");
    let mut connection = server.connect();
    let mut refused = |frame: &[u8]| post(&mut connection, "a", &key, frame).unwrap_err();
    let (code, words) = refused(&returned("b", vec![]));
    assert_eq!(
        (
            code.as_str(),
            words.contains("minion a signed a return of b")
        ),
        ("refused", true),
        "{words}"
    );
    assert_eq!(server.counter("https_returns_other_minion"), 1);
    // Two ids in one map are rejected.
    let twice = map(vec![
        ("id", "a".into()),
        ("id", "b".into()),
        ("jid", JID.into()),
        ("return", 1.into()),
    ]);
    assert_eq!(
        refused(&call("returner", vec![("load", twice)])).0,
        "refused"
    );
    assert_eq!(
        refused(&call(
            "returner",
            vec![("load", map(vec![("id", "a".into())]))]
        ))
        .0,
        "refused",
        "no jid"
    );
    assert_eq!(
        refused(&call("returner", vec![("load", 5.into())])).0,
        "bad_args"
    );
    let (code, words) = refused(&call("get_jid", vec![("jid", JID.into())]));
    assert_eq!(
        (code.as_str(), words.contains("https.read is none")),
        ("refused", true),
        "{words}"
    );
    for name in [
        "save_load",
        "event_return",
        "save_reg",
        "prep_jid",
        "status",
        "store_prune",
        "events_list",
    ] {
        assert_eq!(refused(&call(name, vec![])).0, "refused", "{name}");
    }
    assert_eq!(server.counter("https_calls_denied"), 8);
    assert_eq!(refused(&call("no_such_call", vec![])).0, "unknown_call");
    assert_eq!(server.stored(), [""; 0]);
}

#[test]
fn a_minions_return_is_not_an_event_and_has_no_future_time() {
    let server = Server::open("");
    let load = map(vec![
        ("id", "a".into()),
        ("jid", JID.into()),
        ("return", 1.into()),
        ("cmd", "_return".into()),
        ("_stamp", "2026-11-21T03:17:33.650863".into()),
    ]);
    let frame = call(
        "returner",
        vec![
            ("load", load),
            ("at", Value::from(now().0 + 1000 * 24 * HOUR)),
        ],
    );
    assert_eq!(
        post(&mut server.connect(), "a", &signer("minion-a.pem"), &frame),
        Ok(Value::Nil)
    );
    assert_eq!(
        server.cellar.ask("events_list", vec![])["events"]
            .as_array()
            .unwrap()
            .len(),
        0
    );
    let job = server.cellar.ask("job_show", vec![("jid", JID.into())]);
    assert!(job["returns"][0]["time"].as_i64().unwrap() <= now().0);
}

/// A jid that contains a time.
fn jid_at(at: i64) -> String {
    saltcellar::model::stamped_jid(Micros(at))
}

/// A frame with a return of `a` for that job, with additional keys.
fn returned_for(jid: &str, more: Vec<(&str, Value)>) -> Vec<u8> {
    let mut load = vec![
        ("id", "a".into()),
        ("jid", jid.into()),
        ("return", "mine".into()),
        ("fun", "test.echo".into()),
    ];
    load.extend(more);
    call("returner", vec![("load", map(load))])
}

#[test]
fn a_minion_cannot_forge_a_job_of_the_master() {
    let server = Server::open("");
    let (jid, key) = (jid_at(now().0 - HOUR), signer("minion-a.pem"));
    let kept = vec![
        ("fun_args", Value::Array(vec!["x".into()])),
        ("retcode", 3.into()),
        ("success", false.into()),
        ("out", "highstate".into()),
    ];
    let mut more = kept.clone();
    more.extend([
        ("user", "root".into()),
        ("tgt", "*".into()),
        ("tgt_type", "glob".into()),
        ("cmd", "_return".into()),
    ]);
    more.extend([
        ("arg", Value::Array(vec!["rm".into()])),
        ("metadata", map(vec![("ticket", "forged".into())])),
    ]);
    more.extend([
        ("minions", Value::Array(vec!["b".into()])),
        ("endtime", "x".into()),
        ("fun", "cmd.run".into()),
    ]);
    assert_eq!(
        post(&mut server.connect(), "a", &key, &returned_for(&jid, more)),
        Ok(Value::Nil)
    );
    let entries = server
        .cellar
        .ask("entries", vec![("jid", jid.as_str().into())]);
    let entry = &entries["entries"][0];
    let body = rmpv::decode::read_value(&mut entry["body"].as_slice().unwrap()).unwrap();
    let mut expected = vec![
        ("id", "a".into()),
        ("jid", jid.as_str().into()),
        ("return", "mine".into()),
        ("fun", "test.echo".into()),
    ];
    expected.extend(kept);
    let sorted = |value: &Value| {
        let mut pairs = value.as_map().unwrap().clone();
        pairs.sort_by_key(|(key, _)| key.to_string());
        pairs
    };
    assert_eq!(
        sorted(&body),
        sorted(&map(expected)),
        "the first of two equal keys"
    );
    let row = &server.cellar.ask("jobs_list", vec![])["jobs"][0];
    assert_eq!(
        (row["jid"].as_str(), row["user"].as_str().unwrap_or("")),
        (Some(jid.as_str()), "")
    );
    assert_eq!(
        row["tgt"].as_str(),
        Some("a"),
        "the only minion known to have run it"
    );
}

#[test]
fn returns_of_real_minions_are_stored_unchanged() {
    let server = Server::open("");
    let key = signer("minion-a.pem");
    let by_function = |a: Value, b: Value| map(vec![("test.ping", a), ("test.echo", b)]);
    for (n, more) in (0_i64..).zip([
        // `salt-call --local --return saltcellar`, a schedule with `return`, and several functions in one job.
        vec![
            ("fun_args", Value::Array(vec!["x".into()])),
            ("retcode", 0.into()),
            ("success", true.into()),
        ],
        vec![
            ("fun_args", Value::Array(vec![])),
            ("retcode", 0.into()),
            ("success", true.into()),
            ("out", "nested".into()),
        ],
        vec![
            (
                "fun_args",
                Value::Array(vec![Value::Array(vec![]), Value::Array(vec!["x".into()])]),
            ),
            ("retcode", by_function(0.into(), 1.into())),
            ("success", by_function(true.into(), false.into())),
        ],
    ]) {
        let jid = jid_at(now().0 - HOUR + n);
        let mut load = vec![
            ("jid", Value::from(jid.as_str())),
            ("id", "a".into()),
            ("return", by_function(true.into(), "x".into())),
        ];
        load.push((
            "fun",
            Value::Array(vec!["test.ping".into(), "test.echo".into()]),
        ));
        load.extend(more);
        let frame = call("returner", vec![("load", map(load.clone()))]);
        assert_eq!(
            post(&mut server.connect(), "a", &key, &frame),
            Ok(Value::Nil)
        );
        let full = server
            .cellar
            .ask("get_jid", vec![("jid", jid.into()), ("full", true.into())]);
        assert_eq!(full["a"], map(load));
    }
}

#[test]
fn a_minion_cannot_forge_a_future_jid() {
    let mut server = Server::open("");
    let key = signer("minion-a.pem");
    let refused = server.counter("calls_rejected");
    let far = [
        "99991231235959999999",
        "99999999999999999999",
        "20991121031733650863",
        "zzz",
        "_",
        "20261121",
    ]
    .map(str::to_owned);
    let near = [jid_at(now().0 + 301_000_000 + 60_000_000)];
    for jid in far.iter().chain(&near) {
        let (code, words) =
            post(&mut server.connect(), "a", &key, &returned_for(jid, vec![])).unwrap_err();
        assert_eq!(code, "refused", "{jid}");
        assert!(
            words.contains(jid.as_str()) && words.contains("minion a signed"),
            "{words}"
        );
    }
    assert_eq!(server.counter("calls_rejected") - refused, 7);
    // A clock may be a little ahead, and a jid may be any text that the master has published.
    let ahead = jid_at(now().0 + 240_000_000);
    assert_eq!(
        post(
            &mut server.connect(),
            "a",
            &key,
            &returned_for(&ahead, vec![])
        ),
        Ok(Value::Nil)
    );
    let load = map(vec![("fun", "test.echo".into()), ("jid", "zzz".into())]);
    server.cellar.ask(
        "save_load",
        vec![
            ("jid", "zzz".into()),
            ("load", load),
            ("minions", Value::Array(vec!["a".into()])),
        ],
    );
    assert_eq!(
        post(
            &mut server.connect(),
            "a",
            &key,
            &returned_for("zzz", vec![])
        ),
        Ok(Value::Nil)
    );
    // It does not advance the clock of the daemon's jids.
    server.cellar.terminate();
    server.cellar.restart();
    let made = server.cellar.ask("prep_jid", vec![]);
    assert!(
        made.as_str().unwrap() < jid_at(now().0 + 1).as_str(),
        "{made} was made after {ahead} was stored"
    );
    // Jids allocated by the daemon remain valid after a change of the clock.
    let ours = jid_at((now().0 + 1_800_000_000) & !1);
    let load = map(vec![
        ("fun", "test.echo".into()),
        ("jid", ours.as_str().into()),
    ]);
    server.cellar.ask(
        "save_load",
        vec![
            ("jid", ours.as_str().into()),
            ("load", load),
            ("minions", Value::Array(vec!["a".into()])),
        ],
    );
    server.cellar.terminate();
    server.cellar.restart();
    let made = server.cellar.ask("prep_jid", vec![]);
    assert!(
        made.as_str().unwrap() > ours.as_str(),
        "{made} after {ours}"
    );
}

#[test]
fn a_batch_may_have_exactly_the_maximum_of_calls() {
    let server = Server::open("");
    let key = signer("minion-a.pem");
    let batch = |from: i64, calls: i64| -> Vec<u8> {
        (0..calls)
            .flat_map(|n| returned_for(&jid_at(now().0 - HOUR + (from + n) * 1000), vec![]))
            .collect()
    };
    let stored = server.counter("entries_stored");
    for (from, calls, rejections) in [(0, 1024, 0), (2000, 1025, 1)] {
        let mut connection = server.connect();
        let sealed = connection
            .sealed("a", &key, now(), &batch(from, calls))
            .unwrap();
        let answer = connection.post(&sealed).unwrap();
        let text = String::from_utf8_lossy(&answer.body);
        assert_eq!(
            text.matches("a batch has at most 1024 calls").count(),
            rejections,
            "{calls} calls"
        );
    }
    assert_eq!(server.counter("entries_stored") - stored, 2 * 1024);
}

#[test]
fn a_batch_may_have_exactly_the_maximum_of_bytes() {
    use saltcellar::base::limits::WIRE_FRAME_BYTES_MAX;
    let server = Server::open("");
    let key = signer("minion-a.pem");
    let response = |len: usize| {
        let mut connection = server.connect();
        // The content is irrelevant: only payloads within the limit are read.
        let sealed = connection
            .sealed("a", &key, now(), &vec![0xff; len])
            .unwrap();
        let envelope = sealed.len() - len;
        let head = format!(
            "POST /v1/batch HTTP/1.1\r\nhost: x\r\ncontent-length: {}\r\n\r\n",
            sealed.len()
        );
        connection.send(head.as_bytes()).unwrap();
        if len > WIRE_FRAME_BYTES_MAX {
            connection.send(&sealed[..envelope]).unwrap();
        } else {
            connection.send(&sealed).unwrap();
        }
        let answer = connection.receive().unwrap();
        (answer.status, first(&answer).unwrap_err().0)
    };
    assert_eq!(response(WIRE_FRAME_BYTES_MAX), (200, "protocol".to_owned()));
    assert_eq!(
        response(WIRE_FRAME_BYTES_MAX + 1),
        (413, "too_large".to_owned())
    );
}

#[test]
fn a_minion_cannot_import() {
    let server = Server::open("");
    let frame = returned("a", vec![("import", true.into()), ("at", 0.into())]);
    let (code, words) =
        post(&mut server.connect(), "a", &signer("minion-a.pem"), &frame).unwrap_err();
    assert_eq!(
        (code.as_str(), words.contains("cannot import")),
        ("refused", true),
        "{words}"
    );
    assert_eq!(server.stored(), [""; 0]);
}

#[test]
fn an_answer_of_a_minion_that_was_not_asked_is_marked() {
    let server = Server::open("");
    let jid = jid_at(now().0 - HOUR);
    let load = map(vec![
        ("fun", "test.echo".into()),
        ("jid", jid.as_str().into()),
        ("tgt", "b".into()),
    ]);
    server.cellar.ask(
        "save_load",
        vec![
            ("jid", jid.as_str().into()),
            ("load", load),
            ("minions", Value::Array(vec!["b".into()])),
        ],
    );
    for (id, key) in [("a", "minion-a.pem"), ("b", "minion-b.pem")] {
        let load = map(vec![
            ("id", id.into()),
            ("jid", jid.as_str().into()),
            ("return", id.into()),
            ("tgt", id.into()),
        ]);
        assert_eq!(
            post(
                &mut server.connect(),
                id,
                &signer(key),
                &call("returner", vec![("load", load)])
            ),
            Ok(Value::Nil)
        );
    }
    let job = server
        .cellar
        .ask("job_show", vec![("jid", jid.as_str().into())]);
    let marks: Vec<_> = job["returns"]
        .as_array()
        .unwrap()
        .iter()
        .map(|one| one["not_targeted"].as_bool())
        .collect();
    assert_eq!(marks, [Some(true), None]);
    let output = crate::fake_daemon::program()
        .arg("--socket")
        .arg(server.cellar.socket())
        .args(["jobs", "show", &jid])
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    let marked: Vec<_> = text
        .lines()
        .filter(|line| line.contains("not targeted by this job"))
        .collect();
    assert!(marked.len() == 1 && marked[0].starts_with("a:"), "{text}");
}

#[test]
fn one_minion_cannot_hold_all_connections() {
    use saltcellar::base::limits::HTTPS_PEERS_OF_ONE;
    let server = Server::open("");
    let address = server.address();
    let (a, b) = (signer("minion-a.pem"), signer("minion-b.pem"));
    let open = |id: &str, key: &Signer| {
        let mut connection = HttpsConnection::open(&address).unwrap();
        assert_eq!(
            post(&mut connection, id, key, &returned(id, vec![])),
            Ok(Value::Nil)
        );
        connection
    };
    let mut other = open("b", &b);
    let mut held: Vec<HttpsConnection> = (0..HTTPS_PEERS_OF_ONE).map(|_| open("a", &a)).collect();
    let peers = || server.status("peers").as_u64().unwrap();
    assert_eq!(peers(), 1 + HTTPS_PEERS_OF_ONE as u64);
    held.extend((0..5).map(|_| open("a", &a)));
    wait_for("the longest idle ones to be closed", || {
        (peers() == 1 + HTTPS_PEERS_OF_ONE as u64).then_some(())
    });
    for (n, connection) in held.iter_mut().enumerate() {
        let lives = connection.request("GET", "/v1/hello", b"").is_ok();
        assert_eq!(lives, n >= 5, "connection {n}");
    }
    assert_eq!(
        post(&mut other, "b", &b, &returned("b", vec![])),
        Ok(Value::Nil)
    );
}

/// The status code of a request for a path of the API.
fn status(connection: &mut HttpsConnection, path: &str, headers: &str) -> std::io::Result<u16> {
    let head = format!("GET {path} HTTP/1.1\r\nhost: localhost\r\n{headers}\r\n");
    connection
        .send(head.as_bytes())
        .and_then(|()| connection.receive())
        .map(|answer| answer.status)
}

#[test]
fn the_http_listener_serves_minions_if_configured() {
    let server = Server::open_on_http("  read: own\n");
    let key = signer("minion-a.pem");
    let mut connection = server.connect();
    assert_eq!(
        post(&mut connection, "a", &key, &returned("a", vec![])),
        Ok(Value::Nil)
    );
    assert_eq!(server.stored(), ["a"]);
    assert!(
        post(
            &mut connection,
            "a",
            &key,
            &call("get_jid", vec![("jid", JID.into())])
        )
        .is_ok()
    );
    let (code, words) = post(&mut connection, "a", &key, &returned("b", vec![])).unwrap_err();
    assert!(
        code == "refused" && words.contains("signed a return of b"),
        "{words}"
    );
    // A batch is also valid once here.
    let batch = connection
        .sealed("a", &key, now(), &returned("a", vec![]))
        .unwrap();
    assert_eq!(first(&connection.post(&batch).unwrap()), Ok(Value::Nil));
    assert_eq!(
        first(&connection.post(&batch).unwrap()).unwrap_err().0,
        "replayed"
    );
    assert_eq!(
        first(&server.connect().post(&batch).unwrap())
            .unwrap_err()
            .0,
        "replayed"
    );
    let connect = || HttpsConnection::connect(&server.address()).unwrap();
    for (method, path) in [("GET", "/v1/batch"), ("POST", "/v1/hello")] {
        let answer = connect().request(method, path, b"").unwrap();
        assert_eq!(
            (answer.status, first(&answer).unwrap_err().0.as_str()),
            (400, "protocol"),
            "{path}"
        );
    }
    for (path, expected) in [("/healthz", 200), ("/v1/other", 401), ("/api/v1/jobs", 401)] {
        assert_eq!(
            status(&mut connect(), path, "").unwrap(),
            expected,
            "{path}"
        );
    }
    assert_eq!(server.counter("https_rejected_malformed"), 2);
    let status = server.cellar.ask("status", vec![]);
    assert_eq!(status["https"]["listen"], status["http"]["listen"]);
    assert!(status["https"]["certificate_until"].as_i64().is_some());
}

#[test]
fn the_address_for_minions_has_no_other_routes_and_the_http_listener_none_of_minions() {
    let server = Server::open("http: {unix: DIR/http.sock}\n");
    for path in ["/healthz", "/metrics", "/api/v1/jobs", "/"] {
        let answer = server.connect().request("GET", path, b"").unwrap();
        assert_eq!(
            (answer.status, first(&answer).unwrap_err().0.as_str()),
            (400, "protocol"),
            "{path}"
        );
    }
    assert_eq!(server.counter("https_rejected_malformed"), 4);
    for (method, path) in [("GET", "/v1/hello"), ("POST", "/v1/batch")] {
        assert_eq!(
            crate::http::local(&server.cellar, method, path, b"").status,
            404,
            "{path}"
        );
    }
}

#[test]
fn a_full_http_listener_closes_connections_without_authentication_first() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    use saltcellar::base::limits::{HTTP_PEERS_MAX, HTTPS_PEERS_OF_ONE};
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
        .is_some_and(|files| files < HTTP_PEERS_MAX as u64 + 200)
    {
        return saltcellar_testkit::forbidden("a hard limit of 1,224 open files");
    }
    let server = Server::open_on_http("");
    let (address, key) = (server.address(), signer("minion-a.pem"));
    let token = crate::http::token(&server.cellar, &["reader", "--scope", "read"]);
    let mut with_token = HttpsConnection::connect(&address).unwrap();
    assert_eq!(
        status(&mut with_token, "/api/v1/status", &token).unwrap(),
        200
    );
    let mut health = HttpsConnection::connect(&address).unwrap();
    assert_eq!(status(&mut health, "/healthz", "").unwrap(), 200);
    // One minion has at most its number of connections, also here.
    let open = || {
        let mut connection = HttpsConnection::open(&address).unwrap();
        assert_eq!(
            post(&mut connection, "a", &key, &returned("a", vec![])),
            Ok(Value::Nil)
        );
        connection
    };
    let mut minion: Vec<_> = (0..=HTTPS_PEERS_OF_ONE).map(|_| open()).collect();
    wait_for("its longest idle one to be closed", || {
        minion[0]
            .request("GET", "/v1/hello", b"")
            .is_err()
            .then_some(())
    });
    assert!(minion[1].request("GET", "/v1/hello", b"").is_ok());
    let mut flood = Vec::new();
    wait_for("the limit", || {
        // On a slow host the first ones are closed for their missing handshake before the last ones are accepted.
        flood.retain(|peer: &TcpStream| {
            peer.peek(&mut [0])
                .is_err_and(|error| error.kind() == std::io::ErrorKind::WouldBlock)
        });
        while flood.len() < HTTP_PEERS_MAX {
            let peer = TcpStream::connect(("127.0.0.1", server.port())).unwrap();
            peer.set_nonblocking(true).unwrap();
            flood.push(peer);
        }
        (server.counter("http_connections_evicted") > 0).then_some(())
    });
    let mut other = HttpsConnection::open(&address).unwrap();
    let b = signer("minion-b.pem");
    assert_eq!(
        post(&mut other, "b", &b, &returned("b", vec![])),
        Ok(Value::Nil),
        "{} connections",
        flood.len()
    );
    assert!(
        status(&mut health, "/healthz", "").is_err(),
        "the oldest without authentication is closed"
    );
    assert_eq!(
        status(&mut with_token, "/api/v1/status", &token).unwrap(),
        200,
        "a connection with a token is kept"
    );
}

#[test]
fn a_minions_read_rights_follow_the_configuration() {
    let read = |how: &str| {
        let server = Server::open(&format!("  read: {how}\n"));
        let (a, b) = (signer("minion-a.pem"), signer("minion-b.pem"));
        let mut connection = server.connect();
        post(&mut connection, "a", &a, &returned("a", vec![])).unwrap();
        post(&mut connection, "b", &b, &returned("b", vec![])).unwrap();
        let mut ask = |name: &str, args| {
            post(&mut connection, "b", &b, &call(name, args)).map_err(|(code, _)| code)
        };
        let names = |value: Value| {
            value
                .as_map()
                .unwrap()
                .iter()
                .map(|(k, _)| k.to_string())
                .collect::<Vec<_>>()
                .join(" ")
        };
        let minions =
            ask("get_minions", vec![]).map(|list| list.as_array().unwrap().len().to_string());
        let job = ask("get_jid", vec![("jid", JID.into())]).map(names);
        let fun = ask("get_fun", vec![("fun", "test.ping".into())]).map(names);
        assert!(ask("save_minions", vec![]).is_err() && ask("status", vec![]).is_err());
        [job, fun, minions]
            .map(|found| found.unwrap_or_else(|code| code))
            .join(", ")
    };
    assert_eq!(read("none"), "refused, refused, refused");
    assert_eq!(read("own"), "\"b\", \"b\", refused");
    assert_eq!(read("all"), "\"a\" \"b\", \"a\" \"b\", 2");
}

/// The result of a runner has the id of its master, and data of any minion. A minion on the master's host may have the same id.
#[test]
fn a_minion_may_not_read_the_result_of_a_runner_as_its_own() {
    let server = Server::open("https.read: own\n");
    let runner = "20261121054728123457";
    let load = map(vec![
        ("id", "a".into()),
        ("jid", runner.into()),
        ("fun", "runner.state.orchestrate".into()),
        ("return", "of all minions".into()),
        ("success", true.into()),
    ]);
    server.cellar.ask("returner", vec![("load", load)]);
    let key = signer("minion-a.pem");
    let mut connection = server.connect();
    assert_eq!(
        post(&mut connection, "a", &key, &returned("a", vec![])),
        Ok(Value::Nil)
    );
    let mut read = |name: &str, argument: (&str, &str)| {
        let frame = call(name, vec![(argument.0, argument.1.into())]);
        let answer = post(&mut connection, "a", &key, &frame).unwrap();
        answer.as_map().unwrap().len()
    };
    assert_eq!(read("get_jid", ("jid", JID)), 1);
    assert_eq!(read("get_jid", ("jid", runner)), 0);
    assert_eq!(read("get_fun", ("fun", "test.ping")), 1);
    assert_eq!(read("get_fun", ("fun", "runner.state.orchestrate")), 0);
}

#[test]
fn invalid_batches_are_rejected_with_an_error() {
    let server = Server::open("store:\n  entry_bytes_max: 64KiB\n");
    let key = signer("minion-a.pem");
    let status = |method: &str, path: &str, body: &[u8]| {
        let answer = server.connect().request(method, path, body).unwrap();
        (answer.status, first(&answer).unwrap_err())
    };
    for (method, path, body) in [
        ("GET", "/", &b""[..]),
        ("GET", "/v1/batch", b""),
        ("POST", "/v1/batch", b"{}"),
        ("POST", "/v1/batch", b"SCSIGN\0\x09"),
        ("POST", "/v1/batch", b"SCSIGN\0\x01 cut"),
        ("POST", "/v1/batch", b""),
    ] {
        let (status, (code, words)) = status(method, path, body);
        assert_eq!(
            (status, code.as_str()),
            (400, "protocol"),
            "{method} {path}: {words}"
        );
    }
    assert_eq!(server.counter("https_rejected_malformed"), 6);
    // Signed, but not requests.
    for payload in [
        &b"\xc1\xc1\xc1\xc1\xc1\xc1"[..],
        b"\0\0\0\x02\xc1\xc1",
        b"\0\0\0\x04\x93\x01\xa1x",
        b"\xff\xff\xff\xff",
    ] {
        let mut connection = server.connect();
        let (code, _) = post(&mut connection, "a", &key, payload).unwrap_err();
        assert_eq!(code, "protocol", "{payload:x?}");
    }
    // An envelope with a wrong payload length.
    let mut connection = server.connect();
    let whole = connection
        .sealed("a", &key, now(), &returned("a", vec![]))
        .unwrap();
    let answer = connection.post(&whole[..whole.len() - 1]).unwrap();
    assert!(
        first(&answer)
            .unwrap_err()
            .1
            .contains("the envelope announces"),
        "{answer:?}"
    );
    let mut connection = server.connect();
    let mut longer = connection
        .sealed("a", &key, now(), &returned("a", vec![]))
        .unwrap();
    longer.push(0);
    assert!(
        first(&connection.post(&longer).unwrap())
            .unwrap_err()
            .1
            .contains("continues after")
    );
    assert_eq!(server.counter("https_rejected_malformed"), 12);
    // A single entry that is too large, and a batch with too large a length: rejected before it is sent.
    let big = returned("a", vec![("x", Value::from("x".repeat(10)))]);
    assert_eq!(post(&mut server.connect(), "a", &key, &big), Ok(Value::Nil));
    let load = map(vec![
        ("id", "a".into()),
        ("jid", JID.into()),
        ("return", "x".repeat(70_000).into()),
    ]);
    // It is a return all the same, so only its value is left out.
    let large = call("returner", vec![("load", load)]);
    assert_eq!(
        post(&mut server.connect(), "a", &key, &large),
        Ok(Value::Nil)
    );
    assert_eq!(server.counter("returns_without_value"), 1);
    let connection = &mut server.connect();
    let envelope = Envelope {
        time: now(),
        challenge: *connection.challenge(),
        number: 1,
        payload_digest: [0; 32],
        payload_len: 1 << 30,
        id: "a",
    };
    let signed = envelope.write(
        &key.sign(&envelope.signed_text(connection.certificate()))
            .unwrap(),
    );
    let answer = connection.post(&signed).unwrap();
    assert_eq!(
        (answer.status, first(&answer).unwrap_err().0.as_str()),
        (413, "too_large")
    );
    assert_eq!(server.counter("https_rejected_too_large"), 1);
}

#[test]
fn peers_without_tls_get_an_error_and_half_open_ones_do_not_block_others() {
    let server = Server::open("");
    let address = ([127, 0, 0, 1], server.port());
    wait_for("the source", || (server.state() == "open").then_some(()));
    let mut plain = TcpStream::connect(std::net::SocketAddr::from(address)).unwrap();
    plain
        .write_all(b"GET /v1/hello HTTP/1.1\r\nhost: x\r\n\r\n")
        .unwrap();
    let mut printed = String::new();
    plain.read_to_string(&mut printed).unwrap();
    assert!(
        printed.starts_with("HTTP/1.1 400 ") && printed.contains("https://"),
        "{printed}"
    );
    assert_eq!(server.counter("https_rejected_without_tls"), 1);
    let mut held = Vec::new();
    // No bytes, the start of a handshake, and an invalid one.
    for words in [&b""[..], b"\x16\x03\x01", b"\x16\x03\x01\x02\x00\x01\x00"] {
        for _ in 0..40 {
            let mut stream = TcpStream::connect(std::net::SocketAddr::from(address)).unwrap();
            stream.write_all(words).unwrap();
            held.push(stream);
        }
    }
    let mut garbage = TcpStream::connect(std::net::SocketAddr::from(address)).unwrap();
    garbage
        .write_all(&[0x16, 0xff, 0xff, 0xff, 0xff, 0, 1, 2, 3, 4])
        .unwrap();
    // Requests that stop within their header, envelope or payload.
    let key = signer("minion-a.pem");
    let mut stopped = Vec::new();
    for left in [420, 300, 3] {
        let mut connection = server.connect();
        let batch = connection
            .sealed("a", &key, now(), &returned("a", vec![]))
            .unwrap();
        let head = format!(
            "POST /v1/batch HTTP/1.1\r\nhost: x\r\ncontent-length: {}\r\n\r\n",
            batch.len()
        );
        let bytes = [head.as_bytes(), &batch].concat();
        connection.send(&bytes[..bytes.len() - left]).unwrap();
        stopped.push(connection);
    }
    assert_eq!(
        post(&mut server.connect(), "a", &key, &returned("a", vec![])),
        Ok(Value::Nil)
    );
    wait_for("the failed handshake", || {
        (server.counter("https_handshakes_failed") > 0).then_some(())
    });
    drop((held, stopped, garbage));
    wait_for("all to be disconnected", || {
        (server.status("peers") == 0.into()).then_some(())
    });
}

#[test]
fn a_new_certificate_is_loaded_and_a_bad_one_is_not() {
    let server = Server::open("");
    let dir = server.cellar.dir.path();
    let mut before = server.connect();
    let shown = *before.certificate();
    std::fs::write(dir.join("tls.pem"), "no certificate at all").unwrap();
    let state = wait_for("the invalid certificate in the status", || {
        Some(server.state()).filter(|state| state.contains("previous certificate"))
    });
    assert!(
        state.contains("tls.pem") && server.counter("https_certificates_unusable") > 0,
        "{state}"
    );
    assert_eq!(*server.connect().certificate(), shown);
    put_certificate(dir, "renewed");
    wait_for("the new one", || (server.state() == "open").then_some(()));
    assert_ne!(*server.connect().certificate(), shown);
    // Existing connections continue.
    let key = signer("minion-a.pem");
    assert_eq!(
        post(&mut before, "a", &key, &returned("a", vec![])),
        Ok(Value::Nil)
    );
}

#[test]
fn an_expired_certificate_is_refused_by_minions_and_counted() {
    let server = Server::open_with("expired", "");
    server.cellar.logged("expired=\"2020-02-01T00:00:00");
    server.cellar.counted("https_certificates_expired", 1);
    let part = format!("https 127.0.0.1:{}", server.port());
    let told = "the certificate has expired";
    assert_told(&server.cellar, "problem", &part, told);
    let error = HttpsConnection::open(&server.address())
        .err()
        .unwrap()
        .to_string();
    assert!(error.contains("expired"), "{error}");
    wait_for("the refusal", || {
        (server.counter("https_handshakes_failed") > 0).then_some(())
    });
}

#[test]
fn a_daemon_without_a_valid_certificate_runs_and_reports_the_reason() {
    let server = Server::open_with("server", "");
    let dir = server.cellar.dir.path();
    // The key of another certificate.
    std::fs::write(dir.join("tls.key"), data("renewed.key")).unwrap();
    // The daemon may read a half-written file and retry.
    wait_for("the mismatch in the status", || {
        server.state().contains("do not match").then_some(())
    });
    assert!(server.counter("https_certificates_unusable") > 0);
    let mut server = server;
    assert!(server.cellar.terminate());
    server.cellar.restart();
    wait_for("the reason in the status", || {
        server
            .state()
            .starts_with("rejects every connection, for lack of a certificate: ")
            .then_some(())
    });
    let mut stream =
        TcpStream::connect(std::net::SocketAddr::from(([127, 0, 0, 1], server.port()))).unwrap();
    let _ = stream.read(&mut [0]);
    wait_for("the peer to be counted", || {
        (server.counter("https_connections_rejected") > 0).then_some(())
    });
    put_certificate(server.cellar.dir.path(), "server");
    wait_for("the source", || (server.state() == "open").then_some(()));
    assert_eq!(
        post(
            &mut server.connect(),
            "a",
            &signer("minion-a.pem"),
            &returned("a", vec![])
        ),
        Ok(Value::Nil)
    );
}

#[test]
fn a_daemon_runs_without_https_if_its_port_is_in_use() {
    let server = Server::open("");
    wait_for("the source", || (server.state() == "open").then_some(()));
    let dir = tempfile::tempdir().unwrap();
    let shown = dir.path().display();
    let config = format!(
        "https: {{listen: \"127.0.0.1:{}\", certificate: {shown}/tls.pem, key: {shown}/tls.key}}\n",
        server.port()
    );
    std::fs::write(dir.path().join("c.yaml"), config).unwrap();
    put_certificate(dir.path(), "server");
    let second = Server {
        cellar: Cellar::start_in(dir, &["--config", "DIR/c.yaml"]),
    };
    wait_for("the reason in the status", || {
        second.state().starts_with("cannot listen: ").then_some(())
    });
    drop(server);
    wait_for("the port to be free", || {
        (second.state() == "open").then_some(())
    });
}

#[test]
fn a_thousand_minions_at_once_are_served_in_bounded_memory() {
    const MINIONS: usize = 1000;
    const THREADS: usize = 8;
    let server = Server::open("");
    let rss = || {
        let status =
            std::fs::read_to_string(format!("/proc/{}/status", server.cellar.process.0.id()))
                .unwrap();
        let line = status
            .lines()
            .find_map(|l| l.strip_prefix("VmRSS:"))
            .unwrap();
        line.trim()
            .trim_end_matches(" kB")
            .trim()
            .parse::<u64>()
            .unwrap()
    };
    for n in 0..MINIONS {
        server.accept(&format!("minion-{n}"), "minion-a.pub");
    }
    let (address, key) = (server.address(), signer("minion-a.pem"));
    let before = rss();
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..THREADS)
            .map(|t| {
                let (address, key) = (&address, &key);
                let work = move || {
                    // Each stays open. It posts immediately: a busy host may take longer to open all than a peer may be silent.
                    let connected = |n| {
                        let id = format!("minion-{n}");
                        let mut connection = HttpsConnection::open(address).unwrap();
                        let stored = post(&mut connection, &id, key, &returned(&id, vec![]));
                        assert_eq!(stored, Ok(Value::Nil));
                        connection
                    };
                    (t..MINIONS)
                        .step_by(THREADS)
                        .map(connected)
                        .collect::<Vec<_>>()
                };
                std::thread::Builder::new()
                    .spawn_scoped(scope, work)
                    .unwrap()
            })
            .collect();
        let connections: Vec<_> = workers
            .into_iter()
            .map(|worker| worker.join().unwrap())
            .collect();
        assert_eq!(server.status("peers"), MINIONS.into());
        let grown = rss().saturating_sub(before);
        assert!(grown < 100 * 1024, "{grown} kB for {MINIONS} connections");
        println!("{grown} kB more for {MINIONS} connections");
        drop(connections);
    });
    assert_eq!(server.stored().len(), MINIONS);
    assert_eq!(server.counter("https_connections_rejected"), 0);
}

#[test]
fn peers_that_never_read_answers_use_bounded_memory_and_do_not_block_others() {
    const PEERS: usize = 64;
    const BATCHES: usize = 4;
    let server = Server::open("  read: all\n");
    let key = signer("minion-a.pem");
    let mut honest = server.connect();
    let large = returned("a", vec![]);
    assert_eq!(post(&mut honest, "a", &key, &large), Ok(Value::Nil));
    // A response of 4 MiB, many times larger than its request.
    let other = "20261121031733650864";
    let load = map(vec![
        ("id", "a".into()),
        ("jid", other.into()),
        ("fun", "cp.get".into()),
        ("return", Value::Binary(vec![7; 4 << 20])),
    ]);
    server.cellar.ask("returner", vec![("load", load)]);
    let rss = || {
        let status =
            std::fs::read_to_string(format!("/proc/{}/status", server.cellar.process.0.id()))
                .unwrap();
        let line = status
            .lines()
            .find_map(|l| l.strip_prefix("VmRSS:"))
            .unwrap();
        line.trim()
            .trim_end_matches(" kB")
            .trim()
            .parse::<u64>()
            .unwrap()
    };
    let before = rss();
    let questions: Vec<u8> = (0..3)
        .flat_map(|_| call("get_jid", vec![("jid", other.into())]))
        .collect();
    let mut unread = Vec::new();
    for n in 0..PEERS {
        // Each is a different minion, because pending data per minion is limited.
        let id = format!("unread-{n}");
        server.accept(&id, "minion-a.pub");
        let mut peer = server.connect();
        for _ in 0..BATCHES {
            let batch = peer.sealed(&id, &key, now(), &questions).unwrap();
            let head = format!(
                "POST /v1/batch HTTP/1.1\r\nhost: x\r\ncontent-length: {}\r\n\r\n",
                batch.len()
            );
            // Beyond the limit of unread responses, a peer gets `unavailable` and is disconnected.
            if peer.send(&[head.as_bytes(), &batch].concat()).is_err() {
                break;
            }
        }
        unread.push(peer);
    }
    // The responses need 3 GB, 768 MB of it at once. Answers up to the limit are sent, and not read.
    wait_for("the limit on answers", || {
        (server.counter("https_rejected_overloaded") > 0).then_some(())
    });
    let mut most = 0;
    for n in 0..20 {
        let frame = returned("b", vec![("at", Value::from(n))]);
        let key = signer("minion-b.pem");
        let mut other = server.connect();
        assert_eq!(
            post(&mut other, "b", &key, &frame),
            Ok(Value::Nil),
            "the source still serves others"
        );
        most = most.max(rss());
    }
    let grown = most.saturating_sub(before);
    assert!(grown < 400 * 1024, "{grown} kB for unread responses");
    println!("{grown} kB more for unread responses");
    assert_eq!(post(&mut honest, "a", &key, &large), Ok(Value::Nil));
    drop(unread);
    assert_eq!(server.stored(), ["a", "b"]);
}

#[test]
fn a_stop_completes_pending_batches() {
    let mut server = Server::open("");
    let key = signer("minion-a.pem");
    let mut connection = server.connect();
    let _idle = server.connect();
    assert_eq!(
        post(&mut connection, "a", &key, &returned("a", vec![])),
        Ok(Value::Nil)
    );
    assert!(server.cellar.terminate());
    let batch = connection
        .sealed("a", &key, now(), &returned("a", vec![]))
        .unwrap();
    assert!(connection.post(&batch).is_err(), "closed");
}
