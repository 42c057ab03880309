//! System calls before a response, recorded by a library between the daemon and the C library.
//!
//! All other tests of power losses replace the file system. This one shows that acknowledged entries are synced to the real one.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

use rmpv::Value;
use saltcellar::api::client::Client;

use saltcellar_testkit::usage::Process;

use crate::harness::{map, serve_command, wait_for};

/// Compiles the library; `None` without a C compiler.
fn library(dir: &Path) -> Option<PathBuf> {
    compiled(dir, "sync_order", include_str!("sync_order.c"))
}

/// Compiles a library to preload; `None` without a C compiler.
pub(crate) fn compiled(dir: &Path, name: &str, text: &str) -> Option<PathBuf> {
    let (source, library) = (
        dir.join(format!("{name}.c")),
        dir.join(format!("{name}.so")),
    );
    std::fs::write(&source, text).unwrap();
    let mut cc = Command::new("cc");
    cc.args(["-shared", "-fPIC", "-Wall", "-Werror", "-o"])
        .arg(&library)
        .arg(&source)
        .arg("-ldl");
    let output = cc.output().ok()?;
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    Some(library)
}

/// The operations on the store's log, in order: `(act, path)`.
fn operations(trace: &Path, log: &Path) -> Vec<(String, PathBuf)> {
    let text = std::fs::read_to_string(trace).unwrap();
    let operations = text.lines().map(|line| line.split_once(' ').unwrap());
    let operations = operations.map(|(act, path)| (act.to_owned(), PathBuf::from(path)));
    operations
        .filter(|(_, path)| path.starts_with(log))
        .collect()
}

#[test]
fn an_entry_is_acknowledged_after_its_sync() {
    let dir = tempfile::tempdir().unwrap();
    let Some(library) = library(dir.path()) else {
        return saltcellar_testkit::missing("a C compiler as `cc`");
    };
    let (trace, log) = (dir.path().join("trace"), dir.path().join("state/log"));
    std::fs::write(&trace, "").unwrap();
    let child = serve_command(dir.path())
        .env("LD_PRELOAD", library)
        .env("SYNC_ORDER", &trace)
        .stderr(std::process::Stdio::null())
        .spawn();
    let _child = Process(child.unwrap());
    let mut client = wait_for("the daemon", || {
        Client::connect(&dir.path().join("s.sock")).ok()
    });
    let mut known = 0;
    let mut new_names = 0;
    for n in 0..12_u64 {
        let jid = format!("20261121030955{n:06}");
        let (name, args) = match n % 3 {
            0 => ("save_reg", vec![("data", n.into())]),
            1 => (
                "save_load",
                vec![
                    ("jid", jid.into()),
                    ("load", map(vec![("fun", "test.ping".into())])),
                ],
            ),
            _ => {
                let answer = vec![
                    ("jid", jid.into()),
                    ("id", "web1".into()),
                    ("fun", "test.ping".into()),
                    ("return", Value::from(n)),
                ];
                ("returner", vec![("load", map(answer))])
            }
        };
        client.call(name, map(args)).unwrap();
        let operations = operations(&trace, &log);
        let (mut unsynced, mut written) = (BTreeSet::new(), 0);
        for (at, (act, path)) in operations.iter().enumerate() {
            match &**act {
                "sync" => unsynced.remove(path),
                _ => unsynced.insert(path.clone()),
            };
            written += usize::from(at >= known && act == "write" && path.ends_with("log"));
            new_names += usize::from(at >= known && act == "name");
        }
        assert!(written > 0, "no writes of {name} {n} were recorded");
        assert!(
            unsynced.is_empty(),
            "{name} {n} was acknowledged before the sync of {unsynced:?}"
        );
        known = operations.len();
    }
    assert!(new_names > 0, "no new names were recorded");
}
