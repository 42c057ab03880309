//! Start, stop and kill.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::UnixDatagram;

use rmpv::Value;

use crate::fake_daemon::stderr;
use crate::harness::{Asks as _, Cellar, ended, map, serve_command, wait_for};
use saltcellar_testkit::DEADLINE;

fn a_return(n: u64) -> Value {
    map(vec![
        ("jid", format!("20261121030955{n:06}").into()),
        ("id", "web1".into()),
        ("fun", "test.ping".into()),
        ("return", n.into()),
    ])
}

fn returned(cellar: &Cellar, n: u64) -> Value {
    cellar.ask(
        "get_jid",
        vec![("jid", format!("20261121030955{n:06}").into())],
    )["web1"]["return"]
        .clone()
}

#[test]
fn every_acknowledged_return_survives_kill_9() {
    let mut cellar = Cellar::start();
    let mut acknowledged = 0;
    for round in 0..5 {
        let mut client = cellar.client();
        for _ in 0..40 + round * 7 {
            client
                .call("returner", map(vec![("load", a_return(acknowledged))]))
                .unwrap();
            acknowledged += 1;
        }
        // One more without waiting for its response: it is stored completely or not at all.
        let _ = std::os::unix::net::UnixStream::connect(cellar.socket());
        cellar.kill();
        cellar.restart();
        for n in 0..acknowledged {
            assert_eq!(returned(&cellar, n), n.into(), "round {round}");
        }
    }
    assert!(cellar.terminate());
}

#[test]
fn a_graceful_stop_answers_received_calls_and_removes_the_socket() {
    let mut cellar = Cellar::start();
    let mut client = cellar.client();
    client
        .call("returner", map(vec![("load", a_return(7))]))
        .unwrap();
    assert!(cellar.terminate(), "{}", cellar.log());
    assert!(!cellar.socket().exists());
    assert!(client.call("status", map(vec![])).is_err());
    cellar.restart();
    assert_eq!(returned(&cellar, 7), 7.into());
}

#[test]
fn a_second_daemon_on_a_directory_reports_the_first() {
    let cellar = Cellar::start();
    let output = serve_command(cellar.dir.path()).output().unwrap();
    let words = stderr(&output);
    assert_eq!(output.status.code(), Some(75), "{words}");
    assert!(
        words.contains(&format!("pid {}", cellar.process.0.id())),
        "{words}"
    );
    cellar.ask("status", vec![]);
}

#[test]
fn a_directory_of_another_format_is_refused_by_both_versions() {
    let mut cellar = Cellar::start();
    assert!(cellar.terminate());
    fs::write(
        cellar.state_dir().join("FORMAT"),
        "saltcellar store, format 99\n",
    )
    .unwrap();
    let output = serve_command(cellar.dir.path()).output().unwrap();
    let words = stderr(&output);
    assert_eq!(output.status.code(), Some(65), "{words}");
    assert!(
        words.contains("format 99") && words.contains("format 5"),
        "{words}"
    );
}

#[test]
fn a_stale_socket_is_replaced_and_other_files_are_kept() {
    let mut cellar = Cellar::start();
    cellar.kill();
    assert!(cellar.socket().exists());
    cellar.restart();
    assert_eq!(
        fs::metadata(cellar.socket()).unwrap().permissions().mode() & 0o777,
        0o660
    );
    assert!(cellar.terminate());
    fs::write(cellar.socket(), "a user's notes").unwrap();
    let output = serve_command(cellar.dir.path()).output().unwrap();
    assert!(
        stderr(&output).contains("is not a socket"),
        "{}",
        stderr(&output)
    );
    assert_eq!(
        fs::read_to_string(cellar.socket()).unwrap(),
        "a user's notes"
    );
}

#[test]
fn systemd_is_notified_of_start_watchdog_and_stop() {
    let dir = tempfile::tempdir().unwrap();
    let notify = UnixDatagram::bind(dir.path().join("notify")).unwrap();
    notify.set_read_timeout(Some(DEADLINE)).unwrap();
    let mut child = serve_command(dir.path())
        .env("NOTIFY_SOCKET", dir.path().join("notify"))
        .env("WATCHDOG_USEC", "300000")
        .stderr(std::process::Stdio::null())
        .spawn()
        .unwrap();
    let hear = |wanted: &str| loop {
        let mut words = [0; 500];
        let len = notify
            .recv(&mut words)
            .unwrap_or_else(|error| panic!("no {wanted}: {error}"));
        if String::from_utf8_lossy(&words[..len]).contains(wanted) {
            break;
        }
    };
    hear("READY=1");
    hear("WATCHDOG=1");
    let pid = rustix::process::Pid::from_raw(i32::try_from(child.id()).unwrap()).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::HUP).unwrap();
    hear("RELOADING=1\nMONOTONIC_USEC=");
    hear("READY=1");
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    hear("STOPPING=1");
    assert!(ended(&mut child).success());
}

#[test]
fn sighup_names_changed_keys_that_need_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("c.yaml");
    fs::write(&file, "socket_peers: write\n").unwrap();
    let log = dir.path().join("log");
    let child = serve_command(dir.path())
        .arg("--config")
        .arg(&file)
        .stderr(fs::File::create(&log).unwrap())
        .spawn()
        .unwrap();
    let child = saltcellar_testkit::usage::Process(child);
    let pid = rustix::process::Pid::from_raw(i32::try_from(child.0.id()).unwrap()).unwrap();
    let logged = |words: &str| {
        wait_for(words, || {
            fs::read_to_string(&log)
                .unwrap()
                .contains(words)
                .then_some(())
        });
    };
    logged("listening");
    for (text, words) in [
        ("socket_peers: everything\n", "c.yaml:1: socket_peers"),
        (
            "socket_peers: read\nreactor: {master: /etc/salt/master}\n",
            "some changed keys take effect after `systemctl restart saltcellar` changed=\"none\" needs_restart=\"socket_peers, reactor.master\"",
        ),
    ] {
        fs::write(&file, text).unwrap();
        rustix::process::kill_process(pid, rustix::process::Signal::HUP).unwrap();
        logged(words);
    }
}

#[test]
#[cfg(debug_assertions)]
fn a_sighup_during_the_start_is_a_reload_after_it() {
    let dir = tempfile::tempdir().unwrap();
    // Long enough for a signal while a new store is made.
    crate::harness::put_plan(dir.path(), "sync_delay_ms=300");
    let log = dir.path().join("log");
    let child = serve_command(dir.path())
        .env("SALTCELLAR_TEST_FS", dir.path().join("disk"))
        .stderr(fs::File::create(&log).unwrap())
        .spawn();
    let mut child = saltcellar_testkit::usage::Process(child.unwrap());
    wait_for("the store to be opened", || {
        fs::read_dir(dir.path().join("state")).ok()?.next()?.ok()
    });
    let pid = rustix::process::Pid::from_raw(i32::try_from(child.0.id()).unwrap()).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::HUP).unwrap();
    wait_for("the reload", || {
        assert_eq!(child.0.try_wait().unwrap(), None);
        let log = fs::read_to_string(&log).unwrap();
        log.contains("reload").then_some(())
    });
}

#[test]
#[cfg(debug_assertions)]
fn a_stuck_appender_stops_the_watchdog_notifications() {
    let dir = tempfile::tempdir().unwrap();
    let notify = UnixDatagram::bind(dir.path().join("notify")).unwrap();
    notify.set_nonblocking(true).unwrap();
    let log = fs::File::create(dir.path().join("log")).unwrap();
    let child = serve_command(dir.path())
        .env("NOTIFY_SOCKET", dir.path().join("notify"))
        .env("WATCHDOG_USEC", "300000")
        .env("SALTCELLAR_TEST_FS", dir.path().join("disk"))
        .stderr(log)
        .spawn();
    let child = saltcellar_testkit::usage::Process(child.unwrap());
    // All received notifications, and the number of those that feed the watchdog.
    let fed = || {
        let mut words = [0; 500];
        std::iter::from_fn(|| {
            notify
                .recv(&mut words)
                .ok()
                .map(|len| words[..len].to_vec())
        })
        .filter(|words| String::from_utf8_lossy(words).contains("WATCHDOG=1"))
        .count()
    };
    wait_for("the watchdog to be fed", || (fed() > 0).then_some(()));
    crate::harness::put_plan(dir.path(), "sync_delay_ms=600000");
    let mut client = saltcellar::api::client::Client::connect(&dir.path().join("s.sock")).unwrap();
    let call = std::thread::Builder::new()
        .spawn(move || client.call("save_reg", map(vec![("data", 1.into())])))
        .unwrap();
    let beats = || {
        let log = fs::read_to_string(dir.path().join("log")).unwrap();
        log.lines()
            .filter(|line| line.contains("not feeding the watchdog"))
            .count()
    };
    // Read continuously, because the daemon would block on a full socket.
    wait_for("the stuck appender to be noticed", || {
        fed();
        (beats() > 0).then_some(())
    });
    fed();
    let before = beats();
    wait_for("more watchdog notifications", || {
        (beats() > before + 5).then_some(())
    });
    let fed_while_stuck = fed();
    drop(child);
    assert!(
        call.join().unwrap().is_err(),
        "the disk held the appender up all the time"
    );
    assert_eq!(fed_while_stuck, 0);
}

#[test]
fn a_world_writable_socket_directory_is_rejected() {
    let dir = tempfile::tempdir().unwrap();
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o777)).unwrap();
    let output = serve_command(dir.path()).output().unwrap();
    assert!(!output.status.success());
    let words = stderr(&output);
    assert!(
        words.contains("anyone can write to the socket's directory") && words.contains("chmod"),
        "{words}"
    );
    assert!(!dir.path().join("s.sock").exists());
}

#[test]
fn a_world_accessible_socket_directory_is_reported() {
    let mut cellar = Cellar::start();
    let mut logged_after_start_with = |mode| {
        assert!(cellar.terminate());
        fs::set_permissions(cellar.dir.path(), fs::Permissions::from_mode(mode)).unwrap();
        let before = cellar.log().len();
        cellar.restart();
        cellar.log()[before..].contains("anyone can enter the socket's directory")
    };
    assert!(!logged_after_start_with(0o700));
    assert!(logged_after_start_with(0o755));
}

#[test]
fn a_directory_created_for_the_socket_is_closed_to_others() {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("made/s.sock");
    let mut command = crate::fake_daemon::program();
    command
        .args(["serve", "--state-dir"])
        .arg(dir.path().join("state"))
        .arg("--socket")
        .arg(&socket);
    let mut child = command.stderr(std::process::Stdio::null()).spawn().unwrap();
    // The mode is set between the begin of listening and the first response; until then only the daemon's user may connect.
    wait_for("the daemon", || {
        let mut client = saltcellar::api::client::Client::connect(&socket).ok()?;
        client.call("status", crate::harness::map(vec![])).ok()
    });
    let mode = |path: &std::path::Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    let modes = (mode(socket.parent().unwrap()), mode(&socket));
    child.kill().unwrap();
    child.wait().unwrap();
    assert_eq!(modes, (0o750, 0o660));
}
