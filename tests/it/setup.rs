//! `saltcellar setup`: showing, writing, checking and removing the file.

use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::process::Output;

use crate::doctor_master::Shop;
use crate::fake_daemon::{program, stderr, stdout};

fn setup(shop: &Shop, flags: &[&str]) -> Output {
    let mut command = program();
    command.arg("--config").arg(shop.path("c.yaml")).arg("--socket").arg(shop.path("s.sock"));
    command.arg("setup").arg("--salt-config").arg(shop.path("salt")).args(flags).output().unwrap()
}

fn code(output: &Output) -> i32 {
    output.status.code().unwrap()
}

/// A machine without any configuration for saltcellar.
fn shop() -> Shop {
    let shop = Shop::new();
    shop.put("salt/master", "root_dir: DIR\n");
    shop
}

fn written(shop: &Shop) -> String {
    fs::read_to_string(shop.path("salt/master.d/saltcellar.conf")).unwrap()
}

#[test]
fn without_write_setup_only_prints_the_file() {
    let shop = shop();
    let output = setup(&shop, &[]);
    assert_eq!(code(&output), 0, "{}", stderr(&output));
    let text = stdout(&output);
    let settings: Vec<_> = text.lines().filter(|line| !line.is_empty() && !line.starts_with('#')).collect();
    let socket = format!("saltcellar.socket: {}", shop.path("s.sock").display());
    assert_eq!(settings, ["master_job_cache: saltcellar", socket.as_str()], "all else is a comment: {text}");
    assert!(
        text.contains("restart the master") && text.contains("master.d/saltcellar.conf: absent"),
        "{text}"
    );
    assert!(text.contains("bus: ["), "how to have events: {text}");
    assert!(!shop.path("salt/master.d").exists());
}

#[test]
fn a_bus_is_known_by_any_of_its_names() {
    let shop = shop();
    shop.put("salt/master", "root_dir: DIR\nsock_dir: DIR/real\n");
    fs::create_dir(shop.path("real")).unwrap();
    std::os::unix::fs::symlink("real", shop.path("name")).unwrap();
    shop.put("c.yaml", "bus: [DIR/name]\n");
    let text = stdout(&setup(&shop, &[]));
    assert!(text.contains("master_job_cache") && !text.contains("bus: ["), "{text}");
}

#[test]
fn setup_writes_recognises_and_removes_its_file() {
    let shop = shop();
    let file = shop.path("salt/master.d/saltcellar.conf");
    assert_eq!(code(&setup(&shop, &["--check"])), 1);
    let output = setup(&shop, &["--write"]);
    assert_eq!(code(&output), 0, "{}", stderr(&output));
    assert!(stdout(&output).contains("restart the master"), "{}", stdout(&output));
    assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o644);
    assert_eq!(code(&setup(&shop, &["--check"])), 0);
    let inode = fs::metadata(&file).unwrap().ino();
    assert_eq!(code(&setup(&shop, &["--write"])), 0);
    assert_eq!(fs::metadata(&file).unwrap().ino(), inode, "the file was correct already");

    let more = ["--events", "event-return"];
    let output = setup(&shop, &[&more[..], &["--check"]].concat());
    assert_eq!(code(&output), 1);
    assert!(stderr(&output).contains("outdated"), "{}", stderr(&output));
    assert_eq!(code(&setup(&shop, &[&more[..], &["--write"]].concat())), 0);
    let text = written(&shop);
    for line in
        ["event_return: [saltcellar]", "event_return_queue: 1000", "event_return_queue_max_seconds: 1"]
    {
        assert!(text.lines().any(|one| one == line), "{text}");
    }

    assert_eq!(code(&setup(&shop, &["--remove"])), 0);
    assert!(!file.exists());
    let output = setup(&shop, &["--remove"]);
    assert!(code(&output) == 0 && stdout(&output).contains("does not exist"), "{output:?}");
}

#[test]
fn files_of_an_administrator_are_neither_overwritten_nor_removed() {
    let shop = shop();
    for text in ["timeout: 5\n", "# Written by `saltcellar setup`, sum 00000000\ntimeout: 5\n", ""] {
        shop.put("salt/master.d/saltcellar.conf", text);
        for act in ["--write", "--remove"] {
            let output = setup(&shop, &[act]);
            assert_eq!(code(&output), 1, "{act} {text:?}");
            assert!(stderr(&output).contains("move it away first"), "{}", stderr(&output));
            assert_eq!(written(&shop), text);
        }
        assert_eq!(code(&setup(&shop, &["--check"])), 1);
    }
}

#[test]
fn an_existing_returner_stays_and_a_replaced_one_is_named() {
    let shop = shop();
    shop.put("salt/master", "root_dir: DIR\nmaster_job_cache: redis\nevent_return: mysql\n");
    let output = setup(&shop, &["--write", "--events", "event-return"]);
    assert_eq!(code(&output), 0, "{}", stderr(&output));
    assert!(stdout(&output).contains("master_job_cache is currently redis"), "{}", stdout(&output));
    assert!(written(&shop).contains("\nevent_return: [mysql, saltcellar]\n"), "{}", written(&shop));
    assert_eq!(code(&setup(&shop, &["--check", "--events", "event-return"])), 0, "also once it is in effect");
}

#[test]
fn options_overridden_by_a_later_file_are_an_error() {
    let shop = shop();
    shop.put("salt/master.d/zz.conf", "master_job_cache: redis\n");
    for act in ["--write", "--check"] {
        let output = setup(&shop, &[act]);
        assert_eq!(code(&output), 1);
        assert!(stderr(&output).contains("overrides master_job_cache: saltcellar"), "{}", stderr(&output));
    }
}

#[test]
fn the_file_is_written_to_the_masters_include_directory() {
    let shop = shop();
    shop.put("salt/master", "root_dir: DIR\ndefault_include: conf.d/*.conf\n");
    assert_eq!(code(&setup(&shop, &["--write"])), 0);
    assert!(shop.path("salt/conf.d/saltcellar.conf").exists());
    shop.put("salt/master", "root_dir: DIR\ndefault_include: master.d/one.conf\n");
    let output = setup(&shop, &["--write"]);
    assert!(code(&output) == 1 && stderr(&output).contains("default_include"), "{}", stderr(&output));
    fs::remove_file(shop.path("salt/master")).unwrap();
    let output = setup(&shop, &[]);
    assert!(code(&output) == 1 && stderr(&output).contains("--salt-config"), "{}", stderr(&output));
}

#[test]
fn minions_have_a_separate_file() {
    let shop = shop();
    let flags = ["--minion", "https://master.example:4580", "--ca", "/etc/ca.pem"];
    let output = setup(&shop, &[&flags[..], &["--write", "--output", "json"]].concat());
    assert_eq!(code(&output), 0, "{}", stderr(&output));
    let document: serde_json::Value = serde_json::from_str(&stdout(&output)).unwrap();
    assert_eq!((&document["written"], &document["state"]), (&true.into(), &"in place".into()), "{document}");
    let text = fs::read_to_string(shop.path("salt/minion.d/saltcellar.conf")).unwrap();
    assert_eq!(document["text"], text);
    assert!(
        text.ends_with("\nsaltcellar.url: \"https://master.example:4580\"\nsaltcellar.ca: /etc/ca.pem\n"),
        "{text}"
    );
    assert_eq!(code(&setup(&shop, &[&flags[..], &["--check"]].concat())), 0);
    for (url, ca) in
        [("http://master:4580", "/c"), ("https://", "/c"), ("https://a\"b", "/c"), ("https://a", "c.pem")]
    {
        assert_eq!(code(&setup(&shop, &["--minion", url, "--ca", ca])), 64, "{url} {ca}");
    }
}
