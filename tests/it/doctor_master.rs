//! `saltcellar doctor` with generated master configurations, without a daemon or Salt.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use saltcellar::config::salt_master::python::found_by_a_service;

use crate::fake_daemon::{program, stdout};

/// A correctly configured host with a Salt master and saltcellar. `DIR` in any text stands for its directory.
pub(crate) struct Shop {
    pub(crate) dir: tempfile::TempDir,
    salt_python: PathBuf,
}

/// One finding.
#[derive(Debug)]
struct Found {
    check: String,
    verdict: String,
    words: String,
    why: Option<String>,
    write: Option<String>,
}

const MASTER: &str = "root_dir: DIR\nmaster_job_cache: saltcellar\nsaltcellar.socket: DIR/s.sock\nmodule_dirs: [DIR/ext]\n";

impl Shop {
    pub(crate) fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let salt_python = dir.path().join("python");
        let shop = Self { dir, salt_python };
        shop.put("salt/master", MASTER);
        shop.put("c.yaml", "{}");
        shop.put(
            "ext/returners/saltcellar.py",
            concat!(
                "# Written from saltext.saltcellar ",
                env!("CARGO_PKG_VERSION"),
                " by x\n"
            ),
        );
        shop.python(r#"{"salt": "3008.3", "extension": null, "module": null, "entry": false}"#);
        shop
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub(crate) fn put(&self, name: &str, text: &str) {
        let path = self.path(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text.replace("DIR", self.dir.path().to_str().unwrap())).unwrap();
    }

    /// Installs a Salt Python with this constant output.
    fn python(&self, answer: &str) {
        self.put("python", &format!("#!/bin/sh\necho '{answer}'\n"));
        fs::set_permissions(&self.salt_python, fs::Permissions::from_mode(0o755)).unwrap();
    }

    /// Installs a Salt Python that loads the returners by `load`, and answers all else with `answer`.
    pub(crate) fn salt_python(&self, load: &str, answer: &str) {
        let script = format!(
            "#!/bin/sh\ncase \"$*\" in *salt.loader.returners*) {load};; *) echo '{answer}';; esac\n"
        );
        self.put("python", &script);
        fs::set_permissions(&self.salt_python, fs::Permissions::from_mode(0o755)).unwrap();
    }

    fn command(&self) -> Command {
        let mut command = program();
        command
            .args(["--output", "json", "--config"])
            .arg(self.path("c.yaml"));
        command
            .arg("--socket")
            .arg(self.path("s.sock"))
            .arg("--state-dir")
            .arg(self.path("state"));
        command
            .arg("doctor")
            .arg("--salt-config")
            .arg(self.path("salt"))
            .arg("--salt-python")
            .arg(&self.salt_python);
        command
    }

    fn doctor(&self) -> Vec<Found> {
        let output = self.command().output().unwrap();
        assert_eq!(
            output.status.code(),
            Some(69),
            "no daemon answers: {output:?}"
        );
        let document: serde_json::Value = serde_json::from_str(&stdout(&output)).unwrap();
        let text = |one: &serde_json::Value, key: &str| one[key].as_str().map(str::to_owned);
        let one = |one: &serde_json::Value| Found {
            check: text(one, "check").unwrap(),
            verdict: text(one, "result").unwrap(),
            words: text(one, "message").unwrap(),
            why: text(one, "reason"),
            write: text(one, "remedy"),
        };
        document["checks"]
            .as_array()
            .unwrap()
            .iter()
            .map(one)
            .collect()
    }

    /// All findings, except of the missing daemon and the system's disk.
    fn findings(&self) -> Vec<Found> {
        let known = ["socket", "daemon", "disk", "inodes"];
        // Most tests have no bus.
        let without_bus =
            |one: &Found| one.check == "event_return" && one.words.contains("not archived");
        let found = self.doctor().into_iter();
        found
            .filter(|one| {
                one.verdict != "ok" && !known.contains(&one.check.as_str()) && !without_bus(one)
            })
            .collect()
    }

    /// Asserts that this is the only finding, and that it has a reason and a fix.
    fn assert_finding(&self, check: &str, verdict: &str, words: &str, write: &str) {
        let found = self.findings();
        let [one] = found.as_slice() else {
            panic!("{check}: {found:?}")
        };
        assert_eq!(
            (one.check.as_str(), one.verdict.as_str()),
            (check, verdict),
            "{one:?}"
        );
        let dir = self.dir.path().to_str().unwrap();
        assert!(
            one.words.contains(&words.replace("DIR", dir)),
            "{words}: {one:?}"
        );
        assert!(
            one.write
                .as_ref()
                .unwrap()
                .contains(&write.replace("DIR", dir)),
            "{write}: {one:?}"
        );
        assert!(!one.why.as_ref().unwrap().is_empty());
    }
}

#[test]
fn a_disabled_reactor_without_replacement_is_a_problem() {
    let shop = Shop::new();
    let reactor = "reactor: [{'a/*': [/a.sls]}]\n";
    shop.put(
        "salt/master",
        &format!("{MASTER}{reactor}engines: [saltcellar_reactor]\n"),
    );
    shop.assert_finding(
        "reactor",
        "problem",
        "no reactor acts on the 1 rules",
        "reactor: {master: DIR/salt/master}",
    );
    shop.put("salt/master", &format!("{MASTER}{reactor}"));
    assert!(
        shop.findings().is_empty(),
        "Salt's acts: {:?}",
        shop.findings()
    );
    shop.put(
        "salt/master",
        &format!("{MASTER}{reactor}engines: [saltcellar_reactor]\n"),
    );
    shop.put(
        "c.yaml",
        "reactor: {master: DIR/salt/master, python: DIR/python}\n",
    );
    assert!(shop.findings().is_empty(), "ours: {:?}", shop.findings());
}

#[test]
fn salts_warnings_about_the_types_of_options_are_findings() {
    let shop = Shop::new();
    shop.python(r#"{"salt": "3008.3", "extension": null, "module": null, "entry": false, "warnings": ["timeout is a list"]}"#);
    let found = shop.findings();
    let [one] = found.as_slice() else {
        panic!("{found:?}")
    };
    assert_eq!(
        (one.check.as_str(), one.words.as_str()),
        ("master_config", "Salt warns: timeout is a list")
    );
}

const BUS: &str = "bus: [DIR/var/run/salt/master]\n";
/// The same, where jobs are kept for as long as Salt keeps them.
const BUS_AND_SALTS_AGE: &str =
    "bus: [DIR/var/run/salt/master]\n\nstore: {classes: [{name: jobs, keep: {age: salt}}]}";

#[test]
fn a_correct_setup_has_no_findings() {
    let shop = Shop::new();
    shop.put("c.yaml", BUS);
    assert!(shop.findings().is_empty(), "{:?}", shop.findings());
    let found = shop.doctor();
    for (check, words) in [
        ("master_config", "salt/master"),
        ("master_job_cache", "saltcellar is the master's job cache"),
        ("extension", concat!("version ", env!("CARGO_PKG_VERSION"))),
        ("event_return", "reads the bus directly"),
        ("keep_jobs_seconds", "jobs are kept for 7776000 s"),
        ("salt", "3008.3"),
    ] {
        let one = found
            .iter()
            .find(|one| one.check == check)
            .unwrap_or_else(|| panic!("{check}: {found:?}"));
        assert!(one.verdict == "ok" && one.words.contains(words), "{one:?}");
    }
}

#[test]
fn findings_about_options_name_their_line_and_the_fix() {
    let rows: &[(&str, &str, &str, &str, &str, &str)] = &[
        (
            "ipc_write_buffer: 1000000",
            BUS,
            "ipc_write_buffer",
            "problem",
            "DIR/salt/master:5",
            "ipc_write_buffer: 0",
        ),
        (
            "ipc_write_buffer: 1000000",
            "",
            "ipc_write_buffer",
            "warning",
            "is set",
            "ipc_write_buffer: 0",
        ),
        (
            "ipc_mode: tcp",
            BUS,
            "ipc_mode",
            "problem",
            "is tcp",
            "ipc_mode: ipc",
        ),
        (
            "event_return: saltcellar",
            "",
            "event_return_queue",
            "warning",
            "one call per event",
            "event_return_queue: 1000",
        ),
        (
            "event_return: [mysql, saltcellar]\nevent_return_queue: 500",
            "",
            "event_return_queue_max_seconds",
            "warning",
            "is 500",
            "event_return_queue_max_seconds: 1",
        ),
        (
            "event_return: saltcellar\nevent_return_queue: 500\nevent_return_queue_max_seconds: 1",
            BUS,
            "event_return",
            "warning",
            "is redundant",
            "remove saltcellar from event_return",
        ),
        (
            "max_event_size: 100000",
            BUS,
            "max_event_size",
            "warning",
            "is 100000",
            "max_event_size: 1048576",
        ),
        (
            "max_event_size: 100000000",
            "",
            "max_event_size",
            "warning",
            "the store's limit for an entry is 67108864 bytes",
            "67108864",
        ),
        (
            "job_cache: False",
            "",
            "job_cache",
            "problem",
            "is False",
            "job_cache: True",
        ),
        (
            "ext_job_cache: redis",
            "",
            "ext_job_cache",
            "problem",
            "is redis",
            "remove ext_job_cache",
        ),
        (
            "ext_job_cache: saltcellar",
            "",
            "ext_job_cache",
            "warning",
            "the master stores none",
            "master_job_cache: saltcellar",
        ),
        (
            "job_cache_store_endtime: True",
            "",
            "job_cache_store_endtime",
            "warning",
            "is on",
            ": False",
        ),
        (
            "keep_jobs_seconds: 0",
            "",
            "keep_jobs_seconds",
            "warning",
            "forever",
            "2592000",
        ),
        (
            "keep_jobs_seconds: 172800",
            "store: {classes: [{name: jobs, keep: {age: 1d}}]}",
            "keep_jobs_seconds",
            "warning",
            "is 172800 s, but the store keeps jobs for 86400 s",
            "age: 1d or salt",
        ),
        (
            "master_job_cache: local_cache",
            BUS_AND_SALTS_AGE,
            "keep_jobs_seconds",
            "warning",
            "follows Salt's, which is unknown",
            "age: 90d or salt",
        ),
        (
            "saltcellar.socket: /elsewhere.sock",
            "",
            "saltcellar.socket",
            "problem",
            "uses socket /elsewhere.sock",
            "DIR/s.sock",
        ),
    ];
    for (more, daemon, check, verdict, words, write) in rows {
        let shop = Shop::new();
        // Salt rejects duplicate keys.
        let key = more.split(':').next().unwrap();
        let master: Vec<&str> = MASTER
            .lines()
            .filter(|line| !line.starts_with(key))
            .collect();
        shop.put("salt/master", &format!("{}\n{more}\n", master.join("\n")));
        shop.put("c.yaml", if daemon.is_empty() { "{}" } else { daemon });
        shop.assert_finding(check, verdict, words, write);
    }
}

#[test]
fn doctor_reports_a_daemon_that_the_extension_does_not_trust() {
    const NOBODY: u32 = 65534;
    if !rustix::process::geteuid().is_root() {
        return saltcellar_testkit::missing("root, to make a socket of another user");
    }
    let shop = Shop::new();
    // The socket file remains without a listener.
    drop(std::os::unix::net::UnixListener::bind(shop.path("s.sock")).unwrap());
    assert!(shop.findings().is_empty(), "{:?}", shop.findings());
    std::os::unix::fs::chown(shop.path("s.sock"), Some(NOBODY), None).unwrap();
    shop.assert_finding(
        "saltcellar.socket",
        "problem",
        "does not trust nobody",
        "saltcellar.daemon_user: nobody",
    );
    shop.put(
        "salt/master",
        &format!("{MASTER}saltcellar.daemon_user: daemon\n"),
    );
    shop.assert_finding(
        "saltcellar.socket",
        "problem",
        "does not trust nobody",
        "saltcellar.daemon_user: nobody",
    );
    for user in ["nobody", "65534"] {
        shop.put(
            "salt/master",
            &format!("{MASTER}saltcellar.daemon_user: {user}\n"),
        );
        assert!(shop.findings().is_empty(), "{:?}", shop.findings());
    }
}

#[test]
fn options_of_the_extension_may_be_a_map_but_flat_ones_take_precedence() {
    let shop = Shop::new();
    let without = MASTER.replace("saltcellar.socket: DIR/s.sock\n", "");
    shop.put(
        "salt/master",
        &format!("{without}saltcellar: {{socket: /map.sock}}\n"),
    );
    shop.assert_finding(
        "saltcellar.socket",
        "problem",
        "uses socket /map.sock",
        "saltcellar.socket: DIR/s.sock",
    );
    shop.put(
        "salt/master",
        &format!("{MASTER}saltcellar: {{socket: /map.sock}}\n"),
    );
    assert!(shop.findings().is_empty(), "{:?}", shop.findings());
}

#[test]
fn options_of_included_files_count_and_are_named_by_file_and_line() {
    let shop = Shop::new();
    shop.put("salt/master.d/a.conf", "# first\n\nipc_write_buffer: 5\n");
    shop.assert_finding(
        "ipc_write_buffer",
        "warning",
        "DIR/salt/master.d/a.conf:3",
        "ipc_write_buffer: 0",
    );
    shop.put("salt/master.d/b.conf", "ipc_write_buffer: 0\n");
    assert!(
        shop.findings().is_empty(),
        "the later file wins: {:?}",
        shop.findings()
    );
}

#[test]
fn masters_without_saltcellar_and_missing_masters_are_reported() {
    let shop = Shop::new();
    shop.put("salt/master", "root_dir: DIR\n");
    shop.put(
        "c.yaml",
        "store: {classes: [{name: jobs, keep: {age: 1d}}]}",
    );
    shop.assert_finding(
        "master_job_cache",
        "warning",
        "its job cache is local_cache",
        "`saltcellar setup`",
    );
    fs::remove_file(shop.path("salt/master")).unwrap();
    let found = shop.findings();
    assert!(
        found.len() == 1 && found[0].check == "master_config" && found[0].verdict == "problem",
        "{found:?}"
    );
}

#[test]
fn unreadable_files_are_reported_with_salts_message() {
    let shop = Shop::new();
    shop.put("salt/master.d/bad.conf", "a: [1\n");
    let found = shop.findings();
    assert!(
        found
            .iter()
            .any(|one| one.check == "master_config" && one.words.contains("bad.conf")),
        "{found:?}"
    );
}

#[test]
fn the_extension_is_searched_in_salts_order() {
    let package = |version: &str| {
        format!(
            r#"{{"salt": "3008.3", "extension": "{version}", "module": "/p/x.py", "entry": true}}"#
        )
    };
    let shop = Shop::new();
    shop.python(&package(env!("CARGO_PKG_VERSION")));
    shop.assert_finding(
        "extension",
        "warning",
        "installed twice: as DIR/ext/returners/saltcellar.py",
        "remove DIR/ext",
    );
    fs::remove_dir_all(shop.path("ext")).unwrap();
    assert!(
        shop.findings().is_empty(),
        "the package alone: {:?}",
        shop.findings()
    );
    shop.python(&package("0.0.9"));
    shop.assert_finding(
        "extension",
        "warning",
        "has version 0.0.9",
        "`saltcellar setup`",
    );
    shop.python(r#"{"salt": "3008.3", "extension": null, "module": null, "entry": false}"#);
    shop.assert_finding(
        "extension",
        "problem",
        "does not find the extension",
        "`saltcellar setup`",
    );
    shop.put(
        "more/returners/saltcellar.py",
        "# Written from saltext.saltcellar 0.0.8 by x\n",
    );
    shop.put("salt/master.d/dirs.conf", "module_dirs: [DIR/more]\n");
    shop.assert_finding(
        "extension",
        "warning",
        "has version 0.0.8",
        "`saltcellar setup`",
    );
    fs::remove_dir_all(shop.path("more")).unwrap();
    shop.python("no Python at all");
    shop.assert_finding(
        "extension",
        "warning",
        "cannot check whether Salt finds",
        "--salt-python",
    );
}

#[test]
fn directories_and_keys_accessible_to_others_are_problems() {
    let shop = Shop::new();
    shop.put("c.yaml", BUS);
    let mode = |path: &Path, mode: u32| {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    };
    let socks = shop.path("var/run/salt/master");
    fs::create_dir_all(&socks).unwrap();
    mode(&socks, 0o777);
    shop.assert_finding("sock_dir", "problem", "is world-writable", "chmod o-w");
    mode(&socks, 0o755);
    assert!(shop.findings().is_empty(), "{:?}", shop.findings());
    shop.put("etc/salt/pki/master/master.pem", "secret");
    mode(&shop.path("etc/salt/pki/master/master.pem"), 0o644);
    shop.assert_finding(
        "pki_dir",
        "problem",
        "is readable by other users (mode 0644)",
        "chmod 0400",
    );
    mode(&shop.path("etc/salt/pki/master/master.pem"), 0o400);
    let https =
        "https: {listen: \"127.0.0.1:4580\", certificate: /c.pem, key: /k.pem, pki_dir: PKI}";
    fs::create_dir_all(shop.path("etc/salt/pki/master/minions")).unwrap();
    shop.put("c.yaml", &https.replace("PKI", "DIR/etc/salt/pki/master"));
    assert!(shop.findings().is_empty(), "{:?}", shop.findings());
    fs::create_dir_all(shop.path("other/minions")).unwrap();
    shop.put("c.yaml", &https.replace("PKI", "DIR/other"));
    shop.assert_finding(
        "pki_dir",
        "problem",
        "uses the keys in DIR/other",
        "https.pki_dir: DIR/etc/salt/pki/master",
    );
    fs::remove_dir(shop.path("etc/salt/pki/master/minions")).unwrap();
    shop.put("c.yaml", &https.replace("PKI", "DIR/etc/salt/pki/master"));
    shop.assert_finding(
        "pki_dir",
        "problem",
        "there is no directory DIR/etc/salt/pki/master/minions",
        "start the master",
    );
}

#[test]
fn a_master_whose_events_go_nowhere_is_a_warning() {
    let found = Shop::new().doctor();
    let one = found
        .iter()
        .find(|one| one.check == "event_return")
        .unwrap();
    assert_eq!(one.verdict, "warning");
    assert!(
        one.words
            .starts_with("events of this master are not archived"),
        "{one:?}"
    );
    assert!(
        one.write
            .as_ref()
            .unwrap()
            .contains("/var/run/salt/master]` in the daemon's configuration"),
        "{one:?}"
    );
}

#[test]
fn keys_that_are_not_files_are_a_problem_of_the_https_source() {
    let shop = Shop::new();
    fs::create_dir_all(shop.path("etc/salt/pki/master/minions")).unwrap();
    let https = "https: {listen: \"127.0.0.1:4580\", certificate: /c.pem, key: /k.pem, pki_dir: DIR/etc/salt/pki/master}";
    shop.put("c.yaml", https);
    shop.put(
        "salt/master",
        &format!("{MASTER}keys.cache_driver: mmap_key\n"),
    );
    shop.assert_finding(
        "pki_dir",
        "problem",
        "keys.cache_driver is mmap_key (DIR/salt/master:5)",
        "keys.cache_driver: localfs_key",
    );
    shop.put(
        "salt/master",
        &format!(
            "{MASTER}keys.cache_driver: localfs_key\ncluster_id: c\ncluster_pki_dir: DIR/shared\n"
        ),
    );
    let slot = "cluster.slot: 1/2";
    shop.put("c.yaml", &format!("{https}\n{slot}\n"));
    shop.assert_finding(
        "pki_dir",
        "problem",
        "this master's are in DIR/shared",
        "https.pki_dir: DIR/shared",
    );
    shop.put("c.yaml", slot);
    assert!(
        shop.findings().is_empty(),
        "without HTTPS: {:?}",
        shop.findings()
    );
}

/// Options of one of three masters.
pub(crate) const CLUSTER: &str =
    "cluster_id: c\ncluster_peers: [10.0.0.2, 10.0.0.3]\ncluster_pki_dir: DIR/shared\n";

#[test]
fn each_master_of_a_cluster_needs_a_slot_of_job_ids() {
    let shop = Shop::new();
    let which = "one of the 3 masters of the cluster c (DIR/salt/master:5); each needs a daemon: 10.0.0.2, 10.0.0.3";
    shop.put("salt/master", &format!("{MASTER}{CLUSTER}"));
    shop.put("c.yaml", BUS);
    shop.assert_finding(
        "cluster_id",
        "warning",
        &format!("the daemon has no slot of job ids: {which}"),
        "`cluster: {slot: K/3}`",
    );

    shop.put("c.yaml", &format!("{BUS}cluster: {{slot: 1/2}}\n"));
    shop.assert_finding(
        "cluster_id",
        "warning",
        "the slot of job ids is 1/2, for fewer masters than there are",
        "`cluster: {slot: K/3}`",
    );

    for slot in ["2/3", "2/8"] {
        shop.put("c.yaml", &format!("{BUS}cluster: {{slot: {slot}}}\n"));
        assert!(shop.findings().is_empty(), "{slot}: {:?}", shop.findings());
        let expected = format!(
            "slot {slot} of job ids; {}",
            which.replace("DIR", shop.dir.path().to_str().unwrap())
        );
        let found = shop.doctor();
        assert!(
            found
                .iter()
                .any(|one| one.check == "cluster_id" && one.words == expected),
            "{found:?}"
        );
    }

    // Salt makes the job ids of a master with another job cache.
    let only_watched = MASTER.replace("master_job_cache: saltcellar\n", "");
    shop.put("salt/master", &format!("{only_watched}{CLUSTER}"));
    shop.put("c.yaml", BUS);
    assert!(shop.findings().is_empty(), "{:?}", shop.findings());

    // Masters may join later.
    shop.put("salt/master", &format!("{MASTER}cluster_id: c\n"));
    shop.assert_finding(
        "cluster_id",
        "warning",
        "a master of the cluster c",
        "`cluster: {slot: K/N}`",
    );
    shop.put("salt/master", &format!("{MASTER}cluster_id: ''\n"));
    assert!(shop.findings().is_empty(), "{:?}", shop.findings());
}

#[test]
fn in_a_shared_history_a_master_of_a_cluster_has_its_own_name() {
    let shop = Shop::new();
    let name_of = |shop: &Shop| {
        let found = shop.doctor();
        let named: Vec<_> = found
            .into_iter()
            .filter(|one| one.check == "cluster.name")
            .map(|one| (one.verdict, one.words))
            .collect();
        named
    };
    // No server is there, which is another finding.
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = port.local_addr().unwrap().port();
    let shared = |keys: &str| {
        format!("{BUS}cluster: {{nats: {{servers: ['nats://127.0.0.1:{port}']}}{keys}}}\n")
    };
    let found = |verdict: &str, words: &str| (verdict.to_owned(), words.to_owned());

    shop.put("c.yaml", BUS);
    assert_eq!(name_of(&shop), []);

    let another = found("ok", "this master is \"b\" in the shared history");
    shop.put("c.yaml", &shared(", slot: 1/8, name: b"));
    assert_eq!(name_of(&shop), std::slice::from_ref(&another));
    shop.put("c.yaml", &shared(", name: b"));
    let no_slot = found("warning", "the daemon has no slot of job ids");
    assert_eq!(name_of(&shop), [no_slot, another]);

    shop.put("salt/master", &format!("{MASTER}{CLUSTER}id: 10.0.0.1\n"));
    shop.put("c.yaml", &shared(", slot: 1/8, name: b"));
    let words = "the name in the shared history is \"b\", and the id of the master of the cluster c is \"10.0.0.1\"";
    assert_eq!(name_of(&shop), [found("problem", words)]);
    let ingest = "\ningest: {masters: [DIR/salt/master]}\n";
    shop.put("c.yaml", &format!("{}{ingest}", shared(", slot: 1/8")));
    let words = "this master is \"10.0.0.1\" in the shared history";
    assert_eq!(name_of(&shop), [found("ok", words)]);

    let nats = shop
        .doctor()
        .into_iter()
        .find(|one| one.check == "cluster.nats")
        .unwrap();
    assert_eq!(nats.verdict, "problem");
    assert!(
        nats.words
            .starts_with(&format!("cannot connect to nats://127.0.0.1:{port}: ")),
        "{}",
        nats.words
    );
}

#[test]
fn doctor_says_which_answers_a_master_of_a_cluster_has_not_verified() {
    let shop = Shop::new();
    let is_said = |shop: &Shop| {
        let words = "returns from minions of the other masters are shown as not verified; ";
        let found = shop.doctor();
        found.iter().any(|one| {
            (one.check.as_str(), one.verdict.as_str()) == ("cluster_id", "ok")
                && one.words.starts_with(words)
        })
    };
    shop.put("salt/master", &format!("{MASTER}{CLUSTER}"));
    assert!(is_said(&shop));
    shop.put("salt/master", MASTER);
    assert!(!is_said(&shop));
}

#[test]
fn a_minion_with_several_masters_shows_that_each_needs_a_slot_of_job_ids() {
    let shop = Shop::new();
    shop.put("c.yaml", BUS);
    for (minion, words) in [
        (
            "master: [a, b]",
            "this host's minion has 2 masters; each needs a daemon, which stores only the jobs of its master: a, b",
        ),
        (
            "master: [a, b]\nmaster_type: failover",
            "this host's minion has 2 masters, one at a time; each needs a daemon",
        ),
    ] {
        shop.put("salt/minion", &format!("{minion}\n"));
        shop.assert_finding("masters", "warning", words, "`cluster: {slot: K/2}`");
    }

    shop.put("c.yaml", &format!("{BUS}cluster: {{slot: 1/2}}\n"));
    assert!(shop.findings().is_empty(), "{:?}", shop.findings());

    // The reactor of each would act on its events.
    let reacts = format!("{BUS}cluster: {{slot: 1/2}}\nreactor.master: DIR/salt/master\n");
    shop.put("c.yaml", &reacts);
    shop.put("salt/minion", "master: [a, b]\n");
    let words = "each master's reactor acts on the minion's events";
    let has_it = |shop: &Shop| {
        let found = shop.findings();
        let advice = "`cluster.nats` and `reactor: {election: NAME}`";
        let is_it = |one: &Found| {
            let write = one.write.as_deref().unwrap_or_default();
            one.words == words && write.starts_with(advice)
        };
        found.iter().any(is_it)
    };
    assert!(has_it(&shop));
    shop.put("salt/minion", "master: [a, b]\nmaster_type: failover\n");
    assert!(!has_it(&shop));

    // One master, of a daemon without a bus.
    shop.put("c.yaml", "{}\n");
    for (minion, is_shown) in [("master: [a, b]\n", true), ("master: [a]\n", false)] {
        shop.put("salt/minion", minion);
        let found = shop.doctor();
        let shown = found.iter().any(|one| one.check == "masters");
        assert_eq!(shown, is_shown, "{minion}: {found:?}");
    }
    shop.put("salt/minion", "master: [a, b]\n");

    // Two masters on this host.
    shop.put("c.yaml", "bus: [DIR/var/run/salt/master, /var/run/other]\n");
    assert!(shop.findings().is_empty(), "{:?}", shop.findings());

    shop.put("c.yaml", BUS);
    for minion in ["master: a", "master: [a]", "id: a"] {
        shop.put("salt/minion", &format!("{minion}\n"));
        assert!(
            shop.findings().is_empty(),
            "{minion}: {:?}",
            shop.findings()
        );
    }
}

#[test]
fn engines_that_another_file_replaces_are_findings() {
    let shop = Shop::new();
    shop.put("salt/master", &format!("{MASTER}engines: [logs]\n"));
    shop.put("salt/master.d/a.conf", "engines: [saltcellar_reactor]\n");
    shop.assert_finding(
        "engines",
        "warning",
        "logs of DIR/salt/master are not started: another file replaces this value of `engines`, which is now [saltcellar_reactor]",
        "engines: [saltcellar_reactor, logs] in DIR/salt/master.d/a.conf",
    );
    shop.put(
        "salt/master",
        &format!("{MASTER}reactor: [{{'a/*': [/a.sls]}}]\n"),
    );
    shop.put("salt/master.d/z.conf", "engines: {logs: {}}\n");
    shop.assert_finding(
        "engines",
        "problem",
        "saltcellar_reactor of DIR/salt/master.d/a.conf are not started",
        "engines: [logs, saltcellar_reactor] in DIR/salt/master.d/z.conf",
    );
    shop.put(
        "salt/master.d/z.conf",
        "engines: {saltcellar_reactor: {}}\n",
    );
    shop.assert_finding(
        "engines",
        "problem",
        "engines is a mapping (DIR/salt/master.d/z.conf:1)",
        "engines: [saltcellar_reactor], a list",
    );
}

#[test]
fn an_extension_that_an_upgrade_removes_is_a_warning() {
    let shop = Shop::new();
    fs::remove_dir_all(shop.path("ext")).unwrap();
    let package = |module: &str| {
        let version = env!("CARGO_PKG_VERSION");
        format!(
            r#"{{"salt": "3006.28", "python": "3.10", "extension": "{version}", "module": "{module}", "entry": true}}"#
        )
    };
    shop.python(&package(
        "/opt/saltstack/salt/extras-3.10/saltext/saltcellar/returners/saltcellar.py",
    ));
    shop.assert_finding(
        "extension",
        "warning",
        "the extension is installed for Python 3.10 only: /opt/",
        "`saltcellar setup`",
    );
    shop.python(&package(
        "/venv/lib/python3.10/site-packages/saltext/saltcellar/returners/saltcellar.py",
    ));
    assert!(shop.findings().is_empty(), "{:?}", shop.findings());

    // After the upgrade: Salt's Python is bin/python3.14 in a directory that has extras-3.10.
    let python = shop.path("python");
    shop.python(r#"{"salt": "3008.3", "python": "3.14", "extension": null, "module": null, "entry": false}"#);
    fs::create_dir(shop.path("bin")).unwrap();
    fs::rename(&python, shop.path("bin/python3")).unwrap();
    fs::create_dir_all(shop.path("extras-3.10/saltext/saltcellar")).unwrap();
    let shop = Shop {
        salt_python: shop.path("bin/python3"),
        ..shop
    };
    shop.assert_finding(
        "extension",
        "problem",
        "does not find the extension: it is installed for another Python, in DIR/extras-3.10",
        "`saltcellar setup`",
    );
}

#[test]
fn the_masters_own_spool_is_checked_by_default() {
    let shop = Shop::new();
    fs::create_dir_all(shop.path("var/cache/salt/master/saltcellar")).unwrap();
    fs::write(shop.path("var/cache/salt/master/saltcellar/spool"), [0; 50]).unwrap();
    let found = shop.findings();
    assert!(
        found.len() == 1 && found[0].check == "spool" && found[0].words.contains("50B are waiting"),
        "{found:?}"
    );
}

#[test]
fn reason_and_fix_are_printed_below_a_finding() {
    let shop = Shop::new();
    shop.put("salt/master.d/a.conf", "job_cache: False\n");
    let mut command = program();
    command
        .arg("--socket")
        .arg(shop.path("s.sock"))
        .arg("--state-dir")
        .arg(shop.path("state"));
    command
        .arg("doctor")
        .arg("--salt-config")
        .arg(shop.path("salt"))
        .arg("--salt-python")
        .arg(shop.path("python"));
    let text = stdout(&command.output().unwrap());
    let at = text
        .find("job_cache is False")
        .unwrap_or_else(|| panic!("{text}"));
    let after: Vec<&str> = text[at..].lines().skip(1).take(2).map(str::trim).collect();
    assert!(
        after[0].starts_with("reason ") && after[1] == "remedy  job_cache: True",
        "{text}"
    );
}

#[test]
fn a_python_that_only_the_path_of_this_shell_finds_is_not_the_daemons() {
    if found_by_a_service().is_some() {
        // Salt is installed on this host, so the daemon finds its Python in any case.
        return saltcellar_testkit::forbidden("a host without a salt-master in /usr/bin");
    }
    let shop = Shop::new();
    shop.put("c.yaml", "reactor: {master: DIR/salt/master}\n");
    shop.put("bin/salt-master", "#!DIR/venv/bin/python3\n");
    shop.put("venv/bin/python3", "");
    let output = shop
        .command()
        .env("PATH", shop.path("bin"))
        .output()
        .unwrap();
    let document: serde_json::Value = serde_json::from_str(&stdout(&output)).unwrap();
    let checks = document["checks"].as_array().unwrap();
    let python = checks.iter().find(|one| one["check"] == "reactor.python");
    let found = python.unwrap()["message"].as_str().unwrap();
    assert!(
        found.contains("in the PATH of this shell only"),
        "{document}"
    );
}
