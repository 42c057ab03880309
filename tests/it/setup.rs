//! `saltcellar setup --master-only` and `--minion-listener`: planning, writing, checking and removing the file.

use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::process::Output;

use rmpv::Value;

use crate::doctor_master::{CLUSTER, Shop};
use crate::fake_daemon::{FakeDaemon, map, program, stderr, stdout};

fn setup(shop: &Shop, flags: &[&str]) -> Output {
    let mut command = program();
    command
        .arg("--config")
        .arg(shop.path("c.yaml"))
        .arg("--socket")
        .arg(shop.path("s.sock"));
    command
        .arg("setup")
        .arg("--salt-config")
        .arg(shop.path("salt"));
    if !flags.contains(&"--minion-listener") {
        command.arg("--master-only");
        if !flags.contains(&"--extension-dir") {
            command.args(["--extension", "manual"]);
        }
    }
    command.args(flags).output().unwrap()
}

fn code(output: &Output) -> i32 {
    output.status.code().unwrap()
}

/// A host without any configuration for saltcellar.
fn shop() -> Shop {
    let shop = Shop::new();
    shop.put("salt/master", "root_dir: DIR\n");
    shop
}

fn written(shop: &Shop) -> String {
    fs::read_to_string(shop.path("salt/master.d/saltcellar.conf")).unwrap()
}

#[test]
fn without_permission_setup_only_shows_the_plan() {
    let shop = shop();
    for (flags, expected) in [(&["--dry-run"][..], 0), (&[], 1)] {
        let output = setup(&shop, flags);
        assert_eq!(code(&output), expected, "{}", stderr(&output));
        let text = stdout(&output);
        let file = shop.path("salt/master.d/saltcellar.conf");
        assert!(
            text.contains(&format!("will      write {}\n", file.display())),
            "{text}"
        );
        let socket = format!("| saltcellar.socket: {}\n", shop.path("s.sock").display());
        assert!(
            text.contains("| master_job_cache: saltcellar\n") && text.contains(&socket),
            "{text}"
        );
        assert!(!shop.path("salt/master.d").exists());
    }
    let refused = stderr(&setup(&shop, &[]));
    assert_eq!(
        refused,
        "saltcellar: nothing was changed: add --yes to make these steps without a question\n"
    );
}

#[test]
fn the_plan_says_what_several_masters_need() {
    let shop = shop();
    shop.put("salt/master", &format!("root_dir: DIR\n{CLUSTER}"));
    let plan = stdout(&setup(&shop, &["--dry-run"]));
    for words in [
        "note      the daemon has no slot of job ids: one of the 3 masters of the cluster c (",
        "each needs a daemon: 10.0.0.2, 10.0.0.3: `cluster: {slot: K/3}` in the configuration",
        "note      returns from minions of the other masters are shown as not verified; ",
    ] {
        assert!(plan.contains(words), "{words}: {plan}");
    }

    shop.put("c.yaml", "cluster.slot: 1/3\n");
    let plan = stdout(&setup(&shop, &["--dry-run"]));
    assert!(
        plan.contains("note      slot 1/3 of job ids; one of the 3 masters"),
        "{plan}"
    );

    shop.put("salt/master", "root_dir: DIR\n");
    let plan = stdout(&setup(&shop, &["--dry-run"]));
    assert!(!plan.contains("masters"), "{plan}");
}

#[test]
fn the_plan_counts_what_salts_time_would_delete() {
    let shop = shop();
    shop.put("salt/master", "root_dir: DIR\nkeep_jobs_seconds: 7200\n");
    let class = "store: {classes: [{name: jobs, keep: {age: salt}}]}\n";
    shop.put("c.yaml", class);
    let says = "this master's keep_jobs_seconds is 2h, and store.classes has `age: salt`: older jobs will be deleted: ";
    let unknown = stdout(&setup(&shop, &["--dry-run"]));
    let expected = format!("{says}how many is unknown while the daemon does not respond\n");
    assert!(unknown.contains(&expected), "{unknown}");

    let segment = |entries: u64, outcome: &'static str| {
        map([
            ("class", "jobs".into()),
            ("segment", 1.into()),
            ("jobs", 1.into()),
            ("entries", entries.into()),
            ("raw_bytes", 1.into()),
            ("disk_bytes", 1.into()),
            ("reason", "age".into()),
            ("outcome", outcome.into()),
        ])
    };
    let daemon = FakeDaemon::answering("store_prune", move |args| {
        let asked = ["class", "age_s", "dry_run"].map(|key| args[key].to_string());
        assert_eq!(asked, ["\"jobs\"", "7200", "true"]);
        // A held one stays.
        let rows = vec![
            segment(1000, "planned"),
            segment(200, "planned"),
            segment(30, "held"),
        ];
        Ok(map([("segments", Value::Array(rows))]))
    });
    std::os::unix::fs::symlink(&daemon.socket, shop.path("s.sock")).unwrap();
    let counted = stdout(&setup(&shop, &["--dry-run"]));
    assert!(
        counted.contains(&format!("{says}1200 stored entries\n")),
        "{counted}"
    );
}

#[test]
fn a_bus_is_known_by_any_of_its_names() {
    let shop = shop();
    // Salt moves a socket directory whose path is much longer than that of the cache.
    let master = "root_dir: DIR\nsock_dir: DIR/real\ncachedir: DIR/cache\n";
    shop.put("salt/master", master);
    fs::create_dir(shop.path("real")).unwrap();
    std::os::unix::fs::symlink("real", shop.path("name")).unwrap();
    shop.put("c.yaml", "bus: [DIR/name]\n");
    let text = stdout(&setup(&shop, &["--yes"]));
    assert!(
        text.contains("master_job_cache") && !text.contains("bus: ["),
        "{text}"
    );
    shop.put("c.yaml", "{}");
    fs::remove_dir_all(shop.path("salt/master.d")).unwrap();
    let text = stdout(&setup(&shop, &["--yes"]));
    assert!(
        text.contains("next      for events, add to the daemon's configuration: `bus: ["),
        "{text}"
    );
}

#[test]
fn setup_writes_recognises_and_removes_its_file() {
    let shop = shop();
    let file = shop.path("salt/master.d/saltcellar.conf");
    assert_eq!(code(&setup(&shop, &["--check"])), 1);
    let output = setup(&shop, &["--yes"]);
    assert_eq!(code(&output), 0, "{}", stderr(&output));
    assert!(
        stdout(&output).contains("restart the master"),
        "{}",
        stdout(&output)
    );
    assert_eq!(
        fs::metadata(&file).unwrap().permissions().mode() & 0o777,
        0o644
    );
    assert_eq!(code(&setup(&shop, &["--check"])), 0);
    let inode = fs::metadata(&file).unwrap().ino();
    assert_eq!(code(&setup(&shop, &["--yes"])), 0);
    assert_eq!(
        fs::metadata(&file).unwrap().ino(),
        inode,
        "the file was correct already"
    );
    let again = stdout(&setup(&shop, &["--yes"]));
    assert!(
        again.ends_with("everything is in place, nothing was changed\n"),
        "{again}"
    );

    let more = ["--events", "event-return"];
    let output = setup(&shop, &[&more[..], &["--check"]].concat());
    assert_eq!(code(&output), 1);
    assert_eq!(
        stderr(&output),
        "saltcellar: not in place: master (`saltcellar setup`)\n"
    );
    assert_eq!(code(&setup(&shop, &[&more[..], &["--yes"]].concat())), 0);
    let text = written(&shop);
    for line in [
        "event_return: [saltcellar]",
        "event_return_queue: 1000",
        "event_return_queue_max_seconds: 1",
    ] {
        assert!(text.lines().any(|one| one == line), "{text}");
    }

    assert_eq!(code(&setup(&shop, &["--remove", "--yes"])), 0);
    assert!(!file.exists());
    let output = setup(&shop, &["--remove", "--yes"]);
    assert!(
        code(&output) == 0 && stdout(&output).contains("it does not exist"),
        "{output:?}"
    );
}

#[test]
fn files_of_an_administrator_are_neither_overwritten_nor_removed() {
    let shop = shop();
    for text in [
        "timeout: 5\n",
        "# Written by `saltcellar setup`, sum 00000000\ntimeout: 5\n",
        "",
    ] {
        shop.put("salt/master.d/saltcellar.conf", text);
        for act in [&["--yes"][..], &["--remove", "--yes"]] {
            let output = setup(&shop, act);
            assert_eq!(code(&output), 1, "{act:?} {text:?}");
            assert!(
                stderr(&output).contains("move it away first"),
                "{}",
                stderr(&output)
            );
            assert_eq!(written(&shop), text);
        }
        assert_eq!(code(&setup(&shop, &["--check"])), 1);
    }
}

#[test]
fn an_existing_returner_stays_and_a_replaced_one_is_named() {
    let shop = shop();
    shop.put(
        "salt/master",
        "root_dir: DIR\nmaster_job_cache: redis\nevent_return: mysql\n",
    );
    let output = setup(&shop, &["--yes", "--events", "event-return"]);
    assert_eq!(code(&output), 0, "{}", stderr(&output));
    assert!(
        stdout(&output).contains("master_job_cache is currently redis"),
        "{}",
        stdout(&output)
    );
    assert!(
        written(&shop).contains("\nevent_return: [mysql, saltcellar]\n"),
        "{}",
        written(&shop)
    );
    assert_eq!(
        code(&setup(&shop, &["--check", "--events", "event-return"])),
        0,
        "also once it is in effect"
    );
}

#[test]
fn options_overridden_by_a_later_file_are_an_error_before_anything_is_written() {
    let shop = shop();
    shop.put("salt/master.d/zz.conf", "master_job_cache: redis\n");
    for act in ["--yes", "--check"] {
        let output = setup(&shop, &[act]);
        assert_eq!(code(&output), 1);
        let dir = shop.path("salt/master.d");
        let expected = format!(
            "saltcellar: cannot change the master's configuration: {0}/saltcellar.conf would have no effect, because {0}/zz.conf is read \
             later and overrides master_job_cache: saltcellar; remove it there\n",
            dir.display()
        );
        assert_eq!(stderr(&output), expected);
        assert!(!dir.join("saltcellar.conf").exists());
    }
}

#[test]
fn the_extension_is_loaded_from_its_directory_and_checked_before() {
    let shop = shop();
    shop.put("share/returners/saltcellar.py", "");
    shop.salt_python("exit 3", "{}");
    let share = shop.path("share");
    let python = shop.path("python");
    let flags = [
        "--extension-dir",
        share.to_str().unwrap(),
        "--salt-python",
        python.to_str().unwrap(),
        "--yes",
    ];
    let output = setup(&shop, &flags);
    assert_eq!(code(&output), 1, "{}", stdout(&output));
    let expected = format!(
        "saltcellar: cannot load the extension in Salt's Python, {}: exit status: 3: it printed nothing\n",
        python.display()
    );
    assert_eq!(stderr(&output), expected);
    assert!(!shop.path("salt/master.d").exists(), "nothing is written");

    shop.salt_python("echo 3008.3", "{}");
    shop.put("salt/master", "root_dir: DIR\nmodule_dirs: [/srv/mine]\n");
    let output = setup(&shop, &flags);
    assert_eq!(code(&output), 0, "{}", stderr(&output));
    assert!(
        stdout(&output).contains("done      Salt 3008.3 loads it\n"),
        "{}",
        stdout(&output)
    );
    let line = format!("module_dirs: [/srv/mine, {}]", share.display());
    assert!(
        written(&shop).lines().any(|one| one == line),
        "{}",
        written(&shop)
    );
    let output = setup(&shop, &flags);
    assert!(
        stdout(&output).ends_with("everything is in place, nothing was changed\n"),
        "{}",
        stdout(&output)
    );
}

#[test]
fn the_reactor_is_handed_over_beside_other_engines_and_back() {
    let shop = shop();
    let rules = "root_dir: DIR\nreactor: [{'a/*': [DIR/a.sls]}]\n";
    shop.put("a.sls", "say: {local.test.ping: [{tgt: web1}]}\n");
    shop.put("salt/master", &format!("{rules}engines: [logs, reactor]\n"));
    let output = setup(&shop, &["--reactor", "--yes"]);
    assert_eq!(code(&output), 1);
    assert!(
        stderr(&output).contains("names `reactor`; remove it there"),
        "{}",
        stderr(&output)
    );
    shop.put("salt/master", &format!("{rules}engines: [logs]\n"));
    let output = setup(&shop, &["--reactor", "--yes"]);
    assert_eq!(code(&output), 0, "{}", stderr(&output));
    let handed_over = written(&shop);
    assert!(
        handed_over.contains("\nengines: [logs, saltcellar_reactor]\n"),
        "{handed_over}"
    );
    // A plain run keeps what was chosen, until it is undone.
    let output = setup(&shop, &["--yes"]);
    assert_eq!((code(&output), written(&shop)), (0, handed_over.clone()));
    assert_eq!(code(&setup(&shop, &["--no-reactor", "--yes"])), 0);
    assert!(!written(&shop).contains("engines"), "{}", written(&shop));
    assert_eq!(code(&setup(&shop, &["--reactor", "--yes"])), 0);
    assert_eq!(written(&shop), handed_over);

    shop.put("salt/master.d/own.conf", "engines: [saltcellar_reactor]\n");
    let output = setup(&shop, &["--remove", "--yes"]);
    assert_eq!(code(&output), 1);
    let expected = format!(
        "saltcellar: cannot hand the reactor back: no reactor would act on the rules of `reactor`, because `engines` in {} keeps Salt's reactor \
         off; remove the item that names saltcellar's reactor there\n",
        shop.path("salt/master.d/own.conf").display()
    );
    assert_eq!(stderr(&output), expected);
    fs::remove_file(shop.path("salt/master.d/own.conf")).unwrap();
    let output = setup(&shop, &["--remove", "--yes"]);
    assert_eq!(code(&output), 0, "{}", stderr(&output));
    let text = stdout(&output);
    assert!(
        text.contains("note      Salt uses its own job cache (local_cache) and reactor again\n"),
        "{text}"
    );
    assert!(
        text.contains("run `saltcellar export`") && text.contains("next      these stay"),
        "{text}"
    );
}

#[test]
fn a_reactor_whose_files_would_fail_is_not_handed_over() {
    let shop = shop();
    shop.put(
        "salt/master",
        "root_dir: DIR\nreactor: [{'a/*': [DIR/a.sls, DIR/none.sls]}, {'b/*': [DIR/b.sls]}]\n",
    );
    shop.put("a.sls", "say: {local.test.ping: [{tgt: web1}]}\n");
    shop.put("b.sls", "{% if %}\n");
    for act in ["--yes", "--dry-run"] {
        let output = setup(&shop, &["--reactor", act]);
        assert_eq!(code(&output), 1, "{}", stdout(&output));
        let text = stderr(&output);
        assert!(
            text.starts_with("saltcellar: cannot hand the reactor over: reactions would fail;"),
            "{text}"
        );
        for (file, is_named) in [("none.sls", true), ("b.sls", true), ("a.sls", false)] {
            let path = shop.path(file);
            assert_eq!(
                text.contains(&format!("{} (", path.display())),
                is_named,
                "{text}"
            );
        }
        assert!(!shop.path("salt/master.d").exists());
    }
}

#[test]
fn a_removal_can_be_shown_first() {
    let shop = shop();
    assert_eq!(code(&setup(&shop, &["--yes"])), 0);
    let before = written(&shop);
    let output = setup(&shop, &["--remove", "--dry-run"]);
    assert_eq!(code(&output), 0, "{}", stderr(&output));
    assert!(
        stdout(&output).contains("will      remove "),
        "{}",
        stdout(&output)
    );
    assert_eq!(written(&shop), before);
}

/// A process of another user that looks like a master: root must not run the interpreter that it names.
#[test]
fn root_runs_no_interpreter_that_another_user_made_it_find() {
    const NOBODY: u32 = 65534;
    if !rustix::process::geteuid().is_root() {
        return saltcellar_testkit::missing("root");
    }
    let theirs = tempfile::tempdir_in("/tmp").unwrap();
    let python = saltcellar_testkit::program(
        theirs.path(),
        "python3",
        &format!("#!/bin/sh\ntouch {}/ran\n", theirs.path().display()),
    );
    fs::write(theirs.path().join("salt-master"), "").unwrap();
    for path in [theirs.path(), &python] {
        std::os::unix::fs::chown(path, Some(NOBODY), None).unwrap();
    }
    let mut process = std::process::Command::new("tail");
    std::os::unix::process::CommandExt::arg0(&mut process, &python);
    std::os::unix::process::CommandExt::uid(&mut process, NOBODY);
    let mut process = process
        .arg("-f")
        .arg(theirs.path().join("salt-master"))
        .spawn()
        .unwrap();

    let shop = shop();
    shop.put("share/returners/saltcellar.py", "");
    let share = shop.path("share");
    let flags = ["--extension-dir", share.to_str().unwrap(), "--yes"];
    setup(&shop, &flags);
    let salt = shop.path("salt");
    let doctor = ["doctor", "--salt-config", salt.to_str().unwrap()];
    program().args(doctor).output().unwrap();
    // Not even if a person names it.
    let named = [&flags[..], &["--salt-python", python.to_str().unwrap()]].concat();
    let output = setup(&shop, &named);
    process.kill().unwrap();
    process.wait().unwrap();
    let expected = format!(
        "{} is not used, because users other than root can replace it: ",
        python.display()
    );
    assert!(stderr(&output).contains(&expected), "{}", stderr(&output));
    assert!(!theirs.path().join("ran").exists());
}

#[test]
fn the_file_is_written_to_the_masters_include_directory() {
    let shop = shop();
    shop.put(
        "salt/master",
        "root_dir: DIR\ndefault_include: conf.d/*.conf\n",
    );
    assert_eq!(code(&setup(&shop, &["--yes"])), 0);
    assert!(shop.path("salt/conf.d/saltcellar.conf").exists());
    shop.put(
        "salt/master",
        "root_dir: DIR\ndefault_include: master.d/one.conf\n",
    );
    let output = setup(&shop, &["--yes"]);
    assert!(
        code(&output) == 1 && stderr(&output).contains("default_include"),
        "{}",
        stderr(&output)
    );
    fs::remove_file(shop.path("salt/master")).unwrap();
    let output = setup(&shop, &["--dry-run"]);
    assert!(
        code(&output) == 1 && stderr(&output).contains("--salt-config"),
        "{}",
        stderr(&output)
    );
}

#[test]
fn minions_have_a_separate_file() {
    let shop = shop();
    let flags = [
        "--minion-listener",
        "https://master.example:4580",
        "--ca",
        "/etc/ca.pem",
    ];
    let output = setup(
        &shop,
        &[&flags[..], &["--yes", "--output", "json"]].concat(),
    );
    assert_eq!(code(&output), 0, "{}", stderr(&output));
    let document: serde_json::Value = serde_json::from_str(&stdout(&output)).unwrap();
    let (step, result) = (&document["steps"][0], &document["results"][0]["result"]);
    assert_eq!(
        (&step["step"], &step["state"]),
        (&"minion".into(), &"needed".into()),
        "{document}"
    );
    assert!(
        result
            .as_str()
            .unwrap()
            .ends_with("minion.d/saltcellar.conf is written"),
        "{document}"
    );
    let text = fs::read_to_string(shop.path("salt/minion.d/saltcellar.conf")).unwrap();
    assert_eq!(document["text"], text);
    assert!(
        text.ends_with(
            "\nsaltcellar.url: \"https://master.example:4580\"\nsaltcellar.ca: /etc/ca.pem\n"
        ),
        "{text}"
    );
    assert_eq!(code(&setup(&shop, &[&flags[..], &["--check"]].concat())), 0);
    for (url, ca) in [
        ("http://master:4580", "/c"),
        ("https://", "/c"),
        ("https://a\"b", "/c"),
        ("https://a", "c.pem"),
    ] {
        assert_eq!(
            code(&setup(&shop, &["--minion-listener", url, "--ca", ca])),
            64,
            "{url} {ca}"
        );
    }
}
