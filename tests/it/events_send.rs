//! `events send` with a fake bus, in the framing of each Salt release.

use std::io::Write as _;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::Output;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::Builder;

use rmpv::Value;
use saltcellar::wire::frame::{FrameSplitter, Framing, body, fired};
use saltcellar::wire::salt_event::split;

use crate::fake_daemon::program;
use crate::harness::{Asks as _, Cellar, wait_for};
use saltcellar_testkit::{missing, receive};

/// A master's bus, which publishes fired events to its subscribers.
pub(crate) struct FakeMaster {
    fired: Receiver<(String, Value)>,
    pull: PathBuf,
}

/// Splits a stream into frames as the puller of that framing does.
fn cut(framing: Framing, stream: &mut dyn std::io::Read, mut take: impl FnMut(&[u8])) {
    let mut bytes = Vec::new();
    let mut splitter = FrameSplitter::new(1 << 22);
    let mut piece = vec![0; 4096];
    while let Ok(n @ 1..) = stream.read(&mut piece) {
        bytes.extend_from_slice(&piece[..n]);
        let wrong = match framing {
            // Reads the first bytes of a map as a length of 2 GB.
            Framing::Len32 => bytes[0] >= 0x80,
            Framing::Plain => bytes[0] < 0x80,
        };
        if wrong {
            continue;
        }
        splitter.feed(&bytes);
        bytes.clear();
        while let Ok(Some(frame)) = splitter.next_frame() {
            take(body(frame).unwrap());
        }
    }
}

/// Ends with the test's process.
fn spawn(work: impl FnOnce() + Send + 'static) {
    Builder::new().spawn(work).unwrap();
}

impl FakeMaster {
    pub(crate) fn start(dir: &Path, published: Framing, pulled: Framing) -> Self {
        for name in ["master_event_pub.ipc", "master_event_pull.ipc"] {
            let _ = std::fs::remove_file(dir.join(name));
        }
        let publisher = UnixListener::bind(dir.join("master_event_pub.ipc")).unwrap();
        let pull = dir.join("master_event_pull.ipc");
        let puller = UnixListener::bind(&pull).unwrap();
        let (events, fired_events): (SyncSender<(String, Value)>, _) = sync_channel(1000);
        let subscribers = std::sync::Arc::new(parking_lot::Mutex::new(Vec::new()));
        let to = subscribers.clone();
        spawn(move || {
            publisher
                .incoming()
                .flatten()
                .for_each(|peer| to.lock().push(peer));
        });
        spawn(move || {
            for mut peer in puller.incoming().flatten() {
                let (events, subscribers) = (events.clone(), subscribers.clone());
                spawn(move || {
                    cut(pulled, &mut peer, |body| {
                        let (tag, data) = split(body).unwrap();
                        for subscriber in subscribers.lock().iter_mut() {
                            let _ = subscriber.write_all(&fired(published, tag, data));
                        }
                        let data = rmpv::decode::read_value(&mut &data[..]).unwrap();
                        let _ = events.send((String::from_utf8(tag.to_vec()).unwrap(), data));
                    });
                });
            }
        });
        Self {
            fired: fired_events,
            pull,
        }
    }

    /// The next event except probes.
    pub(crate) fn next(&self) -> (String, Value) {
        loop {
            let event = receive(&self.fired);
            if !event.0.starts_with("saltcellar/probe/") {
                return event;
            }
        }
    }
}

fn send(cellar: &Cellar, args: &[&str]) -> Output {
    program()
        .args(["--socket"])
        .arg(cellar.socket())
        .args(["events", "send"])
        .args(args)
        .output()
        .unwrap()
}

fn printed(output: &Output) -> String {
    String::from_utf8_lossy(&[&output.stdout[..], &output.stderr].concat()).into_owned()
}

pub(crate) fn connected(cellar: &Cellar) {
    let status = || cellar.ask("status", vec![]);
    wait_for("the bus", || {
        (status()["bus"][0]["connected"] == true.into()).then_some(())
    });
}

#[test]
fn an_event_is_fired_in_the_framing_of_the_release() {
    use Framing::{Len32, Plain};
    // 3006.28; 3007.15 and 3008.3; those before.
    for (published, pulled) in [(Len32, Len32), (Plain, Len32), (Plain, Plain)] {
        let dir = tempfile::tempdir().unwrap();
        let master = FakeMaster::start(dir.path(), published, pulled);
        let cellar = Cellar::start_with(&["--bus", dir.path().to_str().unwrap()]);
        connected(&cellar);
        let output = send(&cellar, &["deploy/done", r#"{"app": "shop", "n": 3}"#]);
        assert!(output.status.success(), "{}", printed(&output));
        let (tag, data) = master.next();
        assert_eq!(tag, "deploy/done");
        let stamp = data["_stamp"].as_str().unwrap().to_owned();
        assert_eq!(
            data.to_string(),
            format!(r#"{{"app": "shop", "n": 3, "_stamp": "{stamp}"}}"#)
        );
        // The bus source receives it.
        wait_for("the archive", || {
            let page = cellar.ask("events_list", vec![("tag", "deploy/*".into())]);
            (page["events"][0]["source"] == "bus".into()).then_some(())
        });
        // The framing is cached for each socket.
        let probes = || {
            let tag = "saltcellar/probe/*".into();
            cellar.ask("events_list", vec![("tag", tag)])["events"]
                .as_array()
                .unwrap()
                .len()
        };
        let before = probes();
        assert!(send(&cellar, &["again"]).status.success());
        assert_eq!((master.next().0, probes()), ("again".to_owned(), before));
        assert_eq!(cellar.counter("events_fired"), 2);
        // Probes have a current time stamp.
        assert!(published == Len32 || probes() > 0);
        assert_eq!(
            cellar.counter("event_timestamps_off"),
            0,
            "{}",
            cellar.log()
        );
        let other = if published == Len32 {
            (Plain, Plain)
        } else {
            (Plain, if pulled == Plain { Len32 } else { Plain })
        };
        drop(master);
        let master = FakeMaster::start(dir.path(), other.0, other.1);
        if published == Plain {
            assert!(send(&cellar, &["upgraded"]).status.success());
            assert_eq!(master.next().0, "upgraded");
        }
    }
}

#[test]
fn data_comes_as_json_as_yaml_from_a_file_or_from_standard_input() {
    let dir = tempfile::tempdir().unwrap();
    let master = FakeMaster::start(dir.path(), Framing::Len32, Framing::Len32);
    let cellar = Cellar::start_with(&["--bus", dir.path().to_str().unwrap()]);
    connected(&cellar);
    std::fs::write(dir.path().join("data.yaml"), "a: yes\nb: [1, 2]\n").unwrap();
    let file = dir.path().join("data.yaml");
    let file = file.to_str().unwrap();
    let check = |args: &[&str], expected: &str| {
        let output = send(&cellar, args);
        assert!(output.status.success(), "{args:?}: {}", printed(&output));
        let (_, data) = master.next();
        assert!(data.to_string().starts_with(expected), "{args:?}: {data}");
    };
    check(&["t"], r#"{"_stamp": "#);
    check(&["t", "{a: 1}"], r#"{"a": 1, "#);
    check(
        &["t", r#"{"_stamp": "old", "a": {"$bin": "AAE="}}"#],
        r#"{"_stamp": "20"#,
    );
    check(&["t", "--data-file", file], r#"{"a": true, "b": [1, 2], "#);
    let mut child = program()
        .args(["--socket"])
        .arg(cellar.socket())
        .args(["events", "send", "t", "-", "--output", "json"])
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(b"c: 3").unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(
        printed(&output).contains("\"framing\": \"len32\""),
        "{}",
        printed(&output)
    );
    assert!(master.next().1.to_string().starts_with(r#"{"c": 3, "#));
}

#[test]
fn events_that_cannot_be_fired_are_rejected_with_the_reason() {
    let dir = tempfile::tempdir().unwrap();
    let cellar = Cellar::start_with(&["--bus", dir.path().to_str().unwrap()]);
    let alone = Cellar::start();
    let check = |cellar: &Cellar, args: &[&str], code: i32, why: &str| {
        let output = send(cellar, args);
        assert_eq!(
            output.status.code(),
            Some(code),
            "{args:?}: {}",
            printed(&output)
        );
        assert!(
            printed(&output).contains(why),
            "{args:?}: {}",
            printed(&output)
        );
    };
    check(&alone, &["t"], 1, "no bus is configured");
    check(&cellar, &["t"], 75, "is salt-master running?");
    check(
        &cellar,
        &["t", "--bus", "/elsewhere"],
        1,
        "bus /elsewhere is not configured; configured are: ",
    );
    for data in ["[1]", "text", "1"] {
        check(&cellar, &["t", data], 64, "expected a map such as");
    }
    check(&cellar, &["t", "{a: 1"], 64, "neither JSON nor YAML");
    check(&cellar, &["t", "--data-file", "/none"], 64, "/none");
    check(&cellar, &[""], 64, "1 to 1024 bytes");
    for tag in ["ci\n", "a\n\nb", "a\tb", "\u{1b}[2J"] {
        check(&cellar, &[tag], 64, "without control characters");
    }
    // A master that accepts events but does not publish them.
    let _publisher = UnixListener::bind(dir.path().join("master_event_pub.ipc")).unwrap();
    let _puller = UnixListener::bind(dir.path().join("master_event_pull.ipc")).unwrap();
    check(&cellar, &["t"], 75, "do not appear on the bus");
    assert_eq!(cellar.counter("events_fired"), 0);
}

#[test]
fn an_event_that_salt_would_truncate_is_rejected() {
    let dir = tempfile::tempdir().unwrap();
    let _master = FakeMaster::start(dir.path(), Framing::Len32, Framing::Len32);
    let cellar = Cellar::start_with(&["--bus", dir.path().to_str().unwrap()]);
    wait_for("the bus", || {
        (cellar.counter("bus_connects") > 0).then_some(())
    });
    std::fs::write(
        dir.path().join("large"),
        format!("a: {}", "x".repeat(1 << 20)),
    )
    .unwrap();
    let output = send(
        &cellar,
        &[
            "t",
            "--data-file",
            dir.path().join("large").to_str().unwrap(),
        ],
    );
    assert!(
        printed(&output).contains("exceeds the limit of 1048576"),
        "{}",
        printed(&output)
    );
}

#[test]
fn the_right_to_read_does_not_include_firing() {
    if !rustix::process::getuid().is_root() {
        return missing("root, to act as another user");
    }
    let dir = tempfile::tempdir().unwrap();
    let master = FakeMaster::start(dir.path(), Framing::Len32, Framing::Len32);
    let cellar = Cellar::start_configured(
        &format!("bus: [{}]\nsocket_mode: \"0777\"\n", dir.path().display()),
        &[],
    );
    connected(&cellar);
    let open = std::fs::Permissions::from_mode(0o755);
    std::fs::set_permissions(cellar.dir.path(), open).unwrap();
    let as_unprivileged = || {
        use std::os::unix::process::CommandExt as _;
        let mut command = program();
        command.uid(65534).args(["--socket"]).arg(cellar.socket());
        command.args(["events", "send", "t"]).output().unwrap()
    };
    let output = as_unprivileged();
    assert!(
        printed(&output).contains("call `event_send` needs the right `admin`"),
        "{}",
        printed(&output)
    );
    assert_eq!(output.status.code(), Some(1));
    // The owner of the publisher's socket is an administrator, and must also own the puller's socket.
    std::os::unix::fs::chown(dir.path().join("master_event_pub.ipc"), Some(65534), None).unwrap();
    let output = as_unprivileged();
    assert!(
        printed(&output).contains("may not fire events at"),
        "{}",
        printed(&output)
    );
    std::os::unix::fs::chown(&master.pull, Some(65534), None).unwrap();
    let output = as_unprivileged();
    assert!(output.status.success(), "{}", printed(&output));
    assert_eq!(master.next().0, "t");
}
