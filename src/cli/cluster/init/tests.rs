//! The files of `cluster init`.

use clap::Parser;

use super::*;
use crate::cluster::Cluster;
use crate::config::tests::in_directory;
use crate::model::word::Word as _;

#[derive(Parser)]
struct Command {
    #[command(flatten)]
    args: Args,
}

fn args(words: &str) -> Args {
    Command::parse_from(["init"].into_iter().chain(words.split(' '))).args
}

fn files(words: &str) -> Files {
    let args = args(words);
    let plan = Plan::of(&args).unwrap();
    super::files(&plan, |user| Ok(format!("secret-of-{user}"))).unwrap()
}

#[test]
fn there_is_a_file_for_each_server_master_and_password() {
    let three = files("--masters m1,m2,m3");
    let names: Vec<_> = three.keys().map(String::as_str).collect();
    assert_eq!(
        names,
        [
            "master-m1.password",
            "master-m2.password",
            "master-m3.password",
            "nats-admin.password",
            "nats-route.password",
            "nats-server-m1.conf",
            "nats-server-m2.conf",
            "nats-server-m3.conf",
            "saltcellar-m1.yaml",
            "saltcellar-m2.yaml",
            "saltcellar-m3.yaml",
        ]
    );
    assert!(!three["saltcellar-m1.yaml"].contains("secret-of"));

    let one = files("--masters 10.0.0.1 --server n1:5000 --no-tls");
    assert!(one.contains_key("nats-server-n1-5000.conf"));
    let server = &one["nats-server-n1-5000.conf"];
    assert!(
        !server.contains("cluster {") && !server.contains("tls {"),
        "{server}"
    );
    assert!(
        server.contains("\"saltcellar.log.10=2E0=2E0=2E1\"\n"),
        "{server}"
    );
}

#[test]
fn a_daemon_accepts_its_section() {
    for (words, file, name, slot, servers, monitor) in [
        (
            "--masters m1,m2,m3",
            "saltcellar-m2.yaml",
            "m2",
            "2/8",
            "tls://m1:4222,tls://m2:4222,tls://m3:4222",
            "http://127.0.0.1:8222",
        ),
        (
            "--masters 10.0.0.1,b --server [::1]:5000 --no-tls --stream s_1",
            "saltcellar-10=2E0=2E0=2E1.yaml",
            "10.0.0.1",
            "1/8",
            "nats://[::1]:5000",
            "",
        ),
    ] {
        let files = files(words);
        let (config, _dir) = in_directory(&files[file]).unwrap();
        let cluster = Cluster::of(&config, "").unwrap().unwrap();
        assert_eq!(cluster.name.as_str(), name);
        assert_eq!(cluster.slot.unwrap().show().as_deref(), Some(slot));
        assert_eq!(cluster.nats.servers.join(","), servers);
        assert_eq!(config.cluster.monitor.join(","), monitor);
        assert_eq!(cluster.replicas == 3, !monitor.is_empty());
    }
}

#[test]
fn flags_that_do_not_fit_are_rejected() {
    for (words, expected) in [
        ("--masters m1,m2", "read --server: fewer than three masters"),
        ("--masters m1,m2,m1", "read --masters: \"m1\" appears twice"),
        (
            "--masters a,,b --server n",
            "read --masters: \"\" is not accepted",
        ),
        ("--masters a --server n1,n2", "read --server: 2 hosts"),
        (
            "--masters a --server n1,n2,n1",
            "read --server: a host appears twice",
        ),
        (
            "--masters a --server n/1",
            "read --server: \"n/1\" is not accepted",
        ),
        (
            "--masters a --server n1:64000",
            "read --server: \"n1:64000\"",
        ),
        (
            "--masters a --server n --stream a.b",
            "read --stream: \"a.b\"",
        ),
    ] {
        let args = args(words);
        let Err(error) = Plan::of(&args) else {
            panic!("{words}")
        };
        assert!(error.starts_with(expected), "{words}: {error}");
    }
}

#[test]
fn passwords_are_random_private_and_kept() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path().join("new");
    let new = || {
        let args = args("--masters m1,m2,m3");
        let plan = Plan::of(&args).unwrap();
        super::files(&plan, |user| password(Some(&dir), user)).unwrap()
    };

    let first = new();
    let passwords: std::collections::BTreeSet<_> = first
        .iter()
        .filter(|(name, _)| name.ends_with(".password"))
        .map(|(_, text)| text)
        .collect();
    assert_eq!(passwords.len(), 5);
    assert!(passwords.iter().all(|text| text.len() == 33));
    assert_ne!(new(), first);

    write(&dir, &first).unwrap();
    for name in first.keys() {
        use std::os::unix::fs::PermissionsExt as _;
        let mode = fs::metadata(dir.join(name)).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600, "{name}");
    }
    assert_eq!(new(), first);
    write(&dir, &first).unwrap();

    fs::write(dir.join("master-m1.password"), "a\"b\n").unwrap();
    let error = password(Some(&dir), "master-m1").unwrap_err();
    assert!(error.to_string().contains("remove the file"), "{error}");
}
