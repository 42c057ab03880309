//! `saltcellar setup` with a fake `systemctl` that starts the real daemon, a fake bus, and a Salt Python with constant answers.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::process::Output;

use saltcellar_testkit::bus::FakeBus;

use crate::doctor_master::Shop;
use crate::fake_daemon::{program, stderr, stdout};
use crate::harness::master_bus;

/// Units exist, are enabled and active as files in `units`, `enabled` and `active`. `fail` names a call that fails.
const SYSTEMCTL: &str = r#"#!/bin/sh
cd DIR
echo "$*" >> log
[ "$(cat fail 2>/dev/null)" = "$*" ] && { rm fail; echo "Job for $2 failed." >&2; exit 1; }
verb=$1; shift
[ "$1" = --now ] && { now=yes; shift; }
start() {
    touch active/$1
    [ $1 = saltcellar.service ] || return 0
    PROGRAM serve --config c.yaml --socket DIR/s.sock --state-dir DIR/state > daemon.log 2>&1 &
    echo $! > pid
    i=0
    while [ $i -lt 1000 ]; do
        [ -S s.sock ] && PROGRAM --socket DIR/s.sock status > /dev/null 2>&1 && return 0
        sleep 0.02; i=$((i + 1))
    done
    cat daemon.log >&2
    return 1
}
stop() {
    rm -f active/$1
    [ $1 = saltcellar.service ] && [ -e pid ] || return 0
    p=$(cat pid); rm pid; kill $p
    # A zombie has ended: init may take its time to reap it.
    while [ -e /proc/$p ] && ! grep -q '^State:.Z' /proc/$p/status 2>/dev/null; do sleep 0.02; done
}
for unit; do
    case $verb in
    cat) [ -e units/$unit ] || exit 1;;
    is-enabled) [ -e enabled/$unit ] || exit 1;;
    is-active) [ -e active/$unit ] || exit 3;;
    enable) touch enabled/$unit;;
    disable) rm -f enabled/$unit; [ -z "$now" ] || stop $unit;;
    start) start $unit || exit 1;;
    stop) stop $unit;;
    restart) stop $unit; start $unit || exit 1;;
    *) exit 1;;
    esac
done
"#;

/// A host with systemd, the units of the package, and a running master.
struct Machine {
    shop: Shop,
    _bus: FakeBus,
}

impl Drop for Machine {
    fn drop(&mut self) {
        self.systemctl(&["stop", "saltcellar.service"]);
    }
}

impl Machine {
    fn new() -> Self {
        let shop = Shop::new();
        // Its request port answers with the request, as Salt's `ping` does.
        let port = saltcellar_testkit::master::serve(<[u8]>::to_vec).unwrap();
        shop.put("salt/master", &format!("root_dir: DIR\nret_port: {port}\n"));
        shop.put(
            "bin/systemctl",
            &SYSTEMCTL.replace("PROGRAM", env!("CARGO_BIN_EXE_saltcellar")),
        );
        for name in ["systemd-sysusers", "systemd-tmpfiles"] {
            shop.put(
                &format!("bin/{name}"),
                &format!("#!/bin/sh\necho \"{name} $*\" >> DIR/log\n"),
            );
        }
        for program in fs::read_dir(shop.path("bin")).unwrap() {
            fs::set_permissions(program.unwrap().path(), fs::Permissions::from_mode(0o755))
                .unwrap();
        }
        for name in [
            "units/saltcellar.service",
            "units/saltcellar.socket",
            "active/salt-master.service",
            "enabled/x",
            "log",
        ] {
            shop.put(name, "");
        }
        let version = env!("CARGO_PKG_VERSION");
        let found = r#"{"salt": "3008.3", "python": "3.11", "extension": null, "module": null, "entry": false}"#;
        shop.salt_python("echo 3008.3", found);
        fs::remove_dir_all(shop.path("ext")).unwrap();
        shop.put(
            "share/returners/saltcellar.py",
            &format!("# Written from saltext.saltcellar {version} by x\n"),
        );
        let socks = shop.path("var/run/salt/master");
        fs::create_dir_all(&socks).unwrap();
        let bus = master_bus(&socks);
        Self { shop, _bus: bus }
    }

    fn path_variable(&self) -> String {
        format!(
            "{}:{}",
            self.shop.path("bin").display(),
            std::env::var("PATH").unwrap()
        )
    }

    fn systemctl(&self, args: &[&str]) {
        let program = self.shop.path("bin/systemctl");
        let done = std::process::Command::new(program)
            .args(args)
            .env("PATH", self.path_variable())
            .output()
            .unwrap();
        assert!(done.status.success(), "{done:?}");
    }

    fn setup(&self, flags: &[&str]) -> Output {
        let mut command = program();
        command
            .env("PATH", self.path_variable())
            .current_dir(self.shop.dir.path());
        command
            .arg("--config")
            .arg(self.shop.path("c.yaml"))
            .arg("--socket")
            .arg(self.shop.path("s.sock"));
        command.arg("--state-dir").arg(self.shop.path("state"));
        command
            .arg("setup")
            .arg("--salt-config")
            .arg(self.shop.path("salt"))
            .arg("--root")
            .arg(self.shop.dir.path());
        if !flags.contains(&"--extension-dir") {
            command.arg("--extension-dir").arg(self.shop.path("share"));
        }
        command
            .arg("--salt-python")
            .arg(self.shop.path("python"))
            .args(flags)
            .output()
            .unwrap()
    }

    fn read(&self, name: &str) -> String {
        fs::read_to_string(self.shop.path(name)).unwrap_or_default()
    }

    fn exists(&self, name: &str) -> bool {
        self.shop.path(name).exists()
    }

    /// The calls of systemctl that change something, since the last time.
    fn changes(&self) -> Vec<String> {
        let log = self.read("log");
        fs::write(self.shop.path("log"), "").unwrap();
        let asks = |line: &&str| line.starts_with("is-") || line.starts_with("cat ");
        log.lines()
            .filter(|line| !asks(line))
            .map(str::to_owned)
            .collect()
    }
}

#[test]
fn setup_installs_everything_once_and_removes_it() {
    let machine = Machine::new();
    let output = machine.setup(&["--yes"]);
    let text = stdout(&output);
    assert_eq!(output.status.code(), Some(0), "{text}{}", stderr(&output));
    assert!(
        text.contains("done      saltcellar.service runs\n")
            && text.contains("done      salt-master.service responds with it\n"),
        "{text}"
    );
    assert!(
        text.contains(" checks failed\n"),
        "doctor at the end: {text}"
    );
    assert_eq!(
        machine.changes(),
        [
            "enable saltcellar.service",
            "restart saltcellar.service",
            "stop salt-master.service",
            "start salt-master.service",
        ]
    );
    let bus = format!(
        "\nbus: [{}]\n",
        machine.shop.path("var/run/salt/master").display()
    );
    assert!(machine.read("conf.d/setup.yaml").ends_with(&bus));
    assert_eq!(machine.read("c.yaml"), "{}", "it stays as it was packaged");
    // Daemons and masters that do not run as root read them.
    for (name, mode) in [
        ("conf.d", 0o755),
        ("conf.d/setup.yaml", 0o644),
        ("salt/master.d", 0o755),
        ("salt/master.d/saltcellar.conf", 0o644),
    ] {
        let found = fs::metadata(machine.shop.path(name)).unwrap().permissions();
        assert_eq!(found.mode() & 0o7777, mode, "{name}");
    }
    let conf = machine.read("salt/master.d/saltcellar.conf");
    assert!(conf.contains("\nmaster_job_cache: saltcellar\n"), "{conf}");
    assert!(
        conf.contains(&format!(
            "\nmodule_dirs: [{}]\n",
            machine.shop.path("share").display()
        )),
        "{conf}"
    );

    let again = machine.setup(&["--yes"]);
    assert!(
        stdout(&again).ends_with("everything is in place, nothing was changed\n"),
        "{}",
        stdout(&again)
    );
    assert_eq!(
        (again.status.code(), machine.changes()),
        (Some(0), Vec::new())
    );
    assert_eq!(machine.setup(&["--check"]).status.code(), Some(0));

    // One entry waits in the spool; the fake Salt does not deliver it.
    machine.shop.put(
        "var/cache/salt/master/saltcellar/spool",
        "12345678901234567890",
    );
    let shown = machine.setup(&["--remove", "--dry-run"]);
    assert_eq!(shown.status.code(), Some(0), "{}", stderr(&shown));
    assert!(
        machine.changes().is_empty() && machine.exists("salt/master.d/saltcellar.conf"),
        "{}",
        stdout(&shown)
    );
    let output = machine.setup(&["--remove", "--yes"]);
    let text = stdout(&output);
    assert_eq!(output.status.code(), Some(0), "{text}{}", stderr(&output));
    let left = format!(
        "done      20 bytes of entries are left in {} (the daemon accepts none of them: `saltcellar doctor`): they are delivered if \
         saltcellar is set up later\n",
        machine
            .shop
            .path("var/cache/salt/master/saltcellar")
            .display()
    );
    assert!(text.contains(&left), "{text}");
    assert!(
        text.contains("note      Salt uses its own job cache (local_cache) again\n"),
        "{text}"
    );
    let stays = format!(
        "next      these stay, and can be deleted once nothing in them is needed: {}, ",
        machine.shop.path("state").display()
    );
    assert!(text.contains(&stays), "{text}");
    assert!(!machine.exists("salt/master.d/saltcellar.conf") && machine.exists("state"));
    assert!(!machine.exists("conf.d/setup.yaml") && machine.exists("c.yaml"));
    assert_eq!(
        machine.changes(),
        [
            "stop salt-master.service",
            "start salt-master.service",
            "disable --now saltcellar.service"
        ]
    );
    let again = machine.setup(&["--remove", "--yes"]);
    assert_eq!(
        (again.status.code(), machine.changes()),
        (Some(0), Vec::new())
    );
}

#[test]
fn a_master_that_does_not_answer_with_the_new_options_gets_its_old_ones_back() {
    let machine = Machine::new();
    let nobody = std::net::TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap();
    machine.shop.put(
        "salt/master",
        &format!("root_dir: DIR\nret_port: {}\n", nobody.port()),
    );
    // It ends right after its start.
    let systemctl = machine.read("bin/systemctl");
    let ends = systemctl.replace(
        "    touch active/$1\n",
        "    [ $1 = salt-master.service ] || touch active/$1\n",
    );
    assert_ne!(systemctl, ends);
    machine.shop.put("bin/systemctl", &ends);
    let output = machine.setup(&["--yes"]);
    assert_eq!(output.status.code(), Some(1), "{}", stdout(&output));
    let printed = stderr(&output);
    assert!(
        printed.contains("its previous configuration is restored: wait for salt-master.service (see `journalctl -u salt-master.service`)"),
        "{printed}"
    );
    assert!(
        !machine.exists("salt/master.d/saltcellar.conf") && !machine.exists("conf.d/setup.yaml")
    );
}

#[test]
fn a_passive_setup_leaves_the_master_alone_and_a_later_one_keeps_the_page() {
    let machine = Machine::new();
    // The page's usual address may be in use on the host of the test.
    machine.shop.put("c.yaml", "http.listen: \"127.0.0.1:0\"\n");
    let output = machine.setup(&["--passive", "--yes"]);
    let text = stdout(&output);
    assert_eq!(output.status.code(), Some(0), "{text}{}", stderr(&output));
    assert!(
        text.contains("note      the master is neither changed nor restarted\n"),
        "{text}"
    );
    assert_eq!(
        machine.changes(),
        ["enable saltcellar.service", "restart saltcellar.service"]
    );
    assert!(!machine.exists("salt/master.d"));
    assert!(machine.read("conf.d/setup.yaml").contains("\nbus: ["));
    machine.shop.put("c.yaml", "{}");
    let shown = stdout(&machine.setup(&["--passive", "--dry-run"]));
    assert!(
        shown.contains("and to serve the web UI at http://127.0.0.1:4581/"),
        "{shown}"
    );
}

#[test]
fn without_the_job_cache_nothing_of_the_master_changes() {
    let machine = Machine::new();
    let output = machine.setup(&["--no-job-cache", "--yes"]);
    let text = stdout(&output);
    assert_eq!(output.status.code(), Some(0), "{text}{}", stderr(&output));
    assert!(!machine.exists("salt/master.d"), "{text}");
    assert_eq!(
        machine.changes(),
        ["enable saltcellar.service", "restart saltcellar.service"]
    );
    // A plain run keeps the choice.
    let again = machine.setup(&["--yes"]);
    assert!(
        stdout(&again).ends_with("everything is in place, nothing was changed\n"),
        "{}",
        stdout(&again)
    );
    assert_eq!(
        machine.setup(&["--job-cache", "--yes"]).status.code(),
        Some(0)
    );
    assert!(
        machine
            .read("salt/master.d/saltcellar.conf")
            .contains("\nmaster_job_cache: saltcellar\n")
    );
    // Back again: the file goes, and the master is restarted.
    machine.changes();
    assert_eq!(
        machine.setup(&["--no-job-cache", "--yes"]).status.code(),
        Some(0)
    );
    assert!(!machine.exists("salt/master.d/saltcellar.conf"));
    assert!(
        machine
            .changes()
            .contains(&"start salt-master.service".to_owned())
    );
}

#[test]
fn examples_of_the_packaged_configuration_work_after_setup() {
    let sample = include_str!("../../systemd/saltcellar.yaml");
    // A paragraph of lines that are commented out without a space is one example.
    let examples: Vec<String> = sample
        .split("\n\n")
        .map(|paragraph| {
            let lines = paragraph.lines().filter_map(|line| line.strip_prefix('#'));
            lines
                .filter(|line| !line.starts_with(' ') || line.starts_with("  "))
                .flat_map(|line| [line, "\n"])
                .collect()
        })
        .filter(|example: &String| !example.is_empty())
        .collect();
    assert!(examples.len() > 3, "{examples:?}");
    let written = "bus: [/var/run/salt/master]\nreactor.master: /etc/salt/master\nhttp.listen: \"127.0.0.1:4581\"\n";
    let check = |main: &str| {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("conf.d")).unwrap();
        fs::write(dir.path().join("conf.d/setup.yaml"), written).unwrap();
        fs::write(dir.path().join("c.yaml"), main).unwrap();
        let output = program()
            .arg("--config")
            .arg(dir.path().join("c.yaml"))
            .args(["config", "check"])
            .output()
            .unwrap();
        assert_eq!(output.status.code(), Some(0), "{main}{}", stderr(&output));
    };
    check(sample);
    for example in &examples {
        check(example);
    }
    check(&examples.concat());
}

#[test]
fn a_failed_step_leaves_nothing_behind() {
    for (fails, message) in [
        (
            "restart saltcellar.service",
            "saltcellar: cannot restart saltcellar.service (see `journalctl -u saltcellar.service`): run `systemctl restart \
             saltcellar.service`: exit status: 1: Job for saltcellar.service failed.\n",
        ),
        (
            "start salt-master.service",
            "saltcellar: cannot restart the master; its previous configuration is restored: start salt-master.service (see `journalctl -u \
             salt-master.service`): run `systemctl start salt-master.service`: exit status: 1: Job for \
             salt-master.service failed.\n",
        ),
    ] {
        let machine = Machine::new();
        machine.shop.put("c.yaml", "log.level: debug\n");
        machine.shop.put("fail", fails);
        let output = machine.setup(&["--yes"]);
        assert_eq!(output.status.code(), Some(1), "{}", stdout(&output));
        let printed = stderr(&output);
        assert!(printed.ends_with(message), "{printed}");
        assert!(
            printed.contains(&format!(
                "undone    restore {}\n",
                machine.shop.path("conf.d/setup.yaml").display()
            )),
            "{printed}"
        );
        assert_eq!(machine.read("c.yaml"), "log.level: debug\n");
        assert!(!machine.exists("conf.d/setup.yaml"));
        assert!(!machine.exists("salt/master.d/saltcellar.conf"));
        assert!(
            !machine.exists("enabled/saltcellar.service")
                && !machine.exists("active/saltcellar.service")
        );
        assert!(
            machine.exists("active/salt-master.service"),
            "the master runs as before"
        );
    }
}

#[test]
fn a_failed_step_returns_the_daemon_to_its_state_before() {
    for (enabled, active) in [(true, false), (false, true), (true, true)] {
        let machine = Machine::new();
        machine.shop.put("c.yaml", "log.level: debug\n");
        if enabled {
            machine.systemctl(&["enable", "saltcellar.service"]);
        }
        if active {
            machine.systemctl(&["start", "saltcellar.service"]);
        }

        // A step after that of the daemon.
        machine.shop.put("fail", "start salt-master.service");
        machine.changes();
        let output = machine.setup(&["--yes"]);
        assert_eq!(output.status.code(), Some(1), "{}", stdout(&output));

        let after = ["enabled", "active"]
            .map(|state| machine.exists(&format!("{state}/saltcellar.service")));
        let changes = machine.changes();
        assert_eq!(after, [enabled, active], "{changes:#?}{}", stderr(&output));
        assert!(!machine.exists("conf.d/setup.yaml"));

        // A daemon that runs has read the new configuration, and then the restored one.
        let restarts = changes
            .iter()
            .filter(|change| *change == "restart saltcellar.service")
            .count();
        assert_eq!(restarts, if active { 2 } else { 1 }, "{changes:#?}");
    }
}

#[test]
fn a_running_daemon_continues_with_its_old_configuration_if_a_step_fails() {
    let machine = Machine::new();
    machine.shop.put("c.yaml", "log.level: debug\n");
    machine.systemctl(&["enable", "saltcellar.service"]);
    machine.systemctl(&["start", "saltcellar.service"]);
    machine.shop.put("fail", "restart saltcellar.service");
    let output = machine.setup(&["--yes"]);
    assert_eq!(output.status.code(), Some(1), "{}", stdout(&output));
    assert!(
        machine.exists("active/saltcellar.service") && machine.exists("s.sock"),
        "{}",
        stderr(&output)
    );
    assert_eq!(machine.read("c.yaml"), "log.level: debug\n");
    assert!(!machine.exists("conf.d/setup.yaml"));
    assert_eq!(
        machine.changes().last().unwrap(),
        "restart saltcellar.service"
    );
}

#[test]
fn without_a_package_the_units_come_from_its_directory() {
    let machine = Machine::new();
    for name in ["units/saltcellar.service", "units/saltcellar.socket"] {
        fs::remove_file(machine.shop.path(name)).unwrap();
    }
    let output = machine.setup(&["--yes"]);
    assert_eq!(output.status.code(), Some(1));
    let expected = format!(
        "saltcellar: cannot install saltcellar.service: systemd knows no such unit, and {} does not contain it; install the package, \
         or use --master-only where systemd does not run\n",
        machine.shop.path("share/systemd").display()
    );
    assert_eq!(stderr(&output), expected);

    machine.shop.put(
        "share/systemd/saltcellar.service",
        include_str!("../../systemd/saltcellar.service"),
    );
    machine
        .shop
        .put("share/systemd/saltcellar.sysusers", "g saltcellar - -\n");
    let output = machine.setup(&["--dry-run"]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let text = stdout(&output);
    assert!(
        text.contains("will      install ")
            && text.contains("etc/systemd/system/saltcellar.service, "),
        "{text}"
    );
    assert!(!machine.exists("etc"), "a dry run");
    machine.shop.put("fail", "daemon-reload");
    let output = machine.setup(&["--yes"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(
        stderr(&output).contains("cannot daemon-reload: run `systemctl daemon-reload`"),
        "{}",
        stderr(&output)
    );
    assert!(
        !machine.exists("etc/systemd/system/saltcellar.service"),
        "{}",
        stderr(&output)
    );

    machine.changes();
    let output = machine.setup(&["--yes"]);
    assert_eq!(
        output.status.code(),
        Some(0),
        "{}{}",
        stdout(&output),
        stderr(&output)
    );
    let unit = machine.read("etc/systemd/system/saltcellar.service");
    assert!(
        unit.contains(&format!(
            "ExecStart={} serve\n",
            env!("CARGO_BIN_EXE_saltcellar")
        )),
        "{unit}"
    );
    assert_eq!(
        machine.read("etc/sysusers.d/saltcellar.conf"),
        "g saltcellar - -\n"
    );
    let changes = machine.changes();
    assert_eq!(
        changes[..3],
        [
            "systemd-sysusers ",
            "systemd-tmpfiles --create",
            "daemon-reload"
        ]
    );
}

#[test]
fn missing_files_and_programs_are_named_with_the_remedy() {
    let machine = Machine::new();
    let none = machine.shop.path("none");
    let output = machine.setup(&["--yes", "--extension-dir", none.to_str().unwrap()]);
    let expected = format!(
        "saltcellar: cannot find the extension: there is no returners/saltcellar.py in {}; install the package saltcellar, or name its \
         directory with --extension-dir\n",
        none.display()
    );
    assert_eq!((output.status.code(), stderr(&output)), (Some(1), expected));
    let output = machine.setup(&["--yes", "--extension", "pip"]);
    let expected = format!(
        "saltcellar: cannot find the extension: there is no saltext_saltcellar-*.whl in {}; install the package saltcellar, or name its \
         directory with --extension-dir; `--extension module-dirs` needs no wheel\n",
        machine.shop.path("share").display()
    );
    assert_eq!((output.status.code(), stderr(&output)), (Some(1), expected));
    fs::remove_file(machine.shop.path("bin/systemctl")).unwrap();
    let mut command = program();
    command
        .env("PATH", machine.shop.path("bin"))
        .arg("--config")
        .arg(machine.shop.path("c.yaml"));
    command
        .arg("setup")
        .arg("--yes")
        .arg("--salt-config")
        .arg(machine.shop.path("salt"));
    command
        .arg("--extension-dir")
        .arg(machine.shop.path("share"))
        .arg("--salt-python")
        .arg(machine.shop.path("python"));
    let output = command
        .arg("--root")
        .arg(machine.shop.dir.path())
        .arg("--state-dir")
        .arg(machine.shop.path("state"))
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(
        stderr(&output).contains(
            "run `systemctl cat saltcellar.service`: systemctl: not found in PATH: is systemd running here? Without it, use --master-only"
        ),
        "{}",
        stderr(&output)
    );
    machine.shop.put("bin/systemctl", "#!/bin/sh\nexit 0\n");
    fs::set_permissions(
        machine.shop.path("bin/systemctl"),
        fs::Permissions::from_mode(0o755),
    )
    .unwrap();
}
