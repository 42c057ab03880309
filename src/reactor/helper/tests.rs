//! A helper with a Python without Salt, and programs that are not helpers.

use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{Command, Stdio};

use salt_sls::yaml;

use super::*;
use crate::testkit::{missing, wait_for};

fn python(time: Duration) -> Option<Helper> {
    let there = Command::new("python3")
        .arg("-V")
        .stdout(Stdio::null())
        .status()
        .is_ok_and(|status| status.success());
    let mut options = HelperOptions::new("python3", "/no/such/master");
    options.stubs = json!({"test.echo": {"return": "stubbed"}, "test.fail": {"raise": {"type": "Oops", "message": "no"}}});
    options.time = time;
    if !there {
        missing("python3");
    }
    there.then(|| Helper::new(options))
}

/// A helper that runs a program with this text.
fn program(dir: &Path, text: &str) -> Helper {
    let path = dir.join("program");
    std::fs::write(&path, text).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
    Helper::new(HelperOptions::new(path, "/x"))
}

fn file(dir: &Path, text: &str) -> PathBuf {
    let path = dir.join("x.sls");
    std::fs::write(&path, text).unwrap();
    path
}

fn render(helper: &Helper, path: &Path) -> Result<SaltRendered, SaltError> {
    render_as(helper, path, false)
}

fn render_as(helper: &Helper, path: &Path, is_program: bool) -> Result<SaltRendered, SaltError> {
    let data = yaml::load("{id: web1, big: 123456789012345678901}").unwrap();
    let shown = path.to_str().unwrap();
    helper.render(&SaltFile {
        path: shown,
        source: path,
        reference: None,
        tag: "a/b",
        data: &data,
        renderers: 0,
        is_program,
    })
}

#[test]
fn a_program_has_a_longer_time_limit_of_its_own() {
    let short = Duration::from_millis(1);
    let Some(mut helper) = python(short) else {
        return;
    };
    let dir = tempfile::tempdir().unwrap();
    let path = file(dir.path(), "#!py\ndef run():\n    return {'a': {}}\n");
    assert!(render_as(&helper, &path, true).is_ok(), "within 10 minutes");
    let endless = "#!py\nimport threading\ndef run():\n    threading.Event().wait()\n";
    let path = file(dir.path(), endless);
    let limit = "0 s (reactor.helper_timeout)".to_owned();
    let error = render_as(&helper, &path, false).unwrap_err();
    assert_eq!(error, SaltError::TooLong { limit });
    helper.options.program_time = short;
    let limit = "0 s (reactor.program_timeout)".to_owned();
    let error = render_as(&helper, &path, true).unwrap_err();
    assert_eq!(error, SaltError::TooLong { limit });
    helper.options.time = limits::REACTOR_HELPER_TIME;
    let (time, _) = helper.options.time_limit(true);
    assert_eq!(
        time,
        limits::REACTOR_HELPER_TIME,
        "a longer limit of all files also applies to programs"
    );
}

#[test]
fn python_files_run_without_salt() {
    let Some(helper) = python(Duration::from_secs(30)) else {
        return;
    };
    let dir = tempfile::tempdir().unwrap();
    let path = file(
        dir.path(),
        "#!py\nimport sys\ndef run():\n    print('noise')\n    data['seen'] = tag\n    \
         return {data['id']: [__salt__['test.echo'](1), data['big'], (1, 2.0, b'x')]}\n",
    );
    let rendered = render(&helper, &path).unwrap();
    let expected = yaml::load("{web1: [stubbed, 123456789012345678901]}").unwrap();
    let Some(Ok(Value::Map(got))) = &rendered.result else {
        panic!("{:?}", rendered.result)
    };
    assert_eq!(
        got.get("web1").unwrap().as_list().unwrap()[..2],
        *expected
            .as_map()
            .unwrap()
            .first()
            .unwrap()
            .1
            .as_list()
            .unwrap()
    );
    assert_eq!(
        rendered.data.unwrap().as_map().unwrap().get("seen"),
        Some(&"a/b".into())
    );
    assert_eq!(rendered.salt_calls[0].fun, "test.echo");
    let path = file(dir.path(), "#!py\ndef run():\n    return data['no']\n");
    assert_eq!(
        render(&helper, &path).unwrap().result,
        Some(Err(("KeyError".to_owned(), "'no'".to_owned())))
    );
    let path = file(dir.path(), "#!mako|yaml\n");
    assert!(matches!(
        render(&helper, &path),
        Err(SaltError::Absent(_)) | Ok(_)
    ));
}

/// What a file with dates gives, and the bytes that a master gets.
#[test]
fn dates_of_python_files_travel_as_salt_sends_them() {
    let Some(helper) = python(Duration::from_secs(30)) else {
        return;
    };
    let dir = tempfile::tempdir().unwrap();
    let text = "#!py\nimport datetime as d\ndef run():\n    return [d.date(2024, 1, 2), d.datetime(5, 1, 2, 3, 4, 5, 6), 'a\\udcff']\n";
    let rendered = render(&helper, &file(dir.path(), text)).unwrap();
    assert_eq!(
        returned(&rendered),
        ["2024-01-02", "0005-01-02 03:04:05.000006", "a\\udcff"]
    );
    let Some(Ok(Value::List(items))) = rendered.result else {
        panic!()
    };
    let packed = crate::reactor::master::pack::packed(&items[0]);
    assert_eq!(packed, b"\xc7\x18N20240102T00:00:00.000000");
    let packed = crate::reactor::master::pack::packed(&items[1]);
    assert_eq!(packed, b"\xc7\x18N00050102T03:04:05.000006");
}

#[test]
fn a_program_is_compiled_by_a_check_and_not_run() {
    let Some(helper) = python(Duration::from_secs(30)) else {
        return;
    };
    let dir = tempfile::tempdir().unwrap();
    let check = |text: &str| {
        let path = file(dir.path(), text);
        let file = SaltFile {
            path: path.to_str().unwrap(),
            source: &path,
            reference: None,
            tag: "a/b",
            data: &Value::Null,
            renderers: 0,
            is_program: true,
        };
        helper.check(&file, true).unwrap()
    };
    let found = check("#!py\nraise Exception\n");
    assert!(matches!(found, SaltChecked::Compiled(_)), "{found:?}");
    let found = check("#!py\nx = (\n");
    assert!(matches!(found, SaltChecked::Broken(_)), "{found:?}");
}

/// The list returned by a file, each item as `str`.
fn returned(rendered: &SaltRendered) -> Vec<String> {
    let Some(Ok(Value::List(items))) = &rendered.result else {
        panic!("{:?}", rendered.result)
    };
    items.iter().map(Value::python_str).collect()
}

fn is_root() -> bool {
    if rustix::process::geteuid().is_root() {
        return true;
    }
    assert!(std::env::var_os("CI").is_none(), "this test needs root");
    eprintln!("skipped: only root can switch users");
    false
}

/// A user other than root, preferably one with supplementary groups.
fn other_user() -> String {
    let groups = std::fs::read_to_string("/etc/group").unwrap();
    let members = groups
        .lines()
        .filter_map(|line| line.split(':').nth(3))
        .flat_map(|names| names.split(','));
    members
        .into_iter()
        .find(|name| !name.is_empty() && *name != "root")
        .unwrap_or("nobody")
        .to_owned()
}

/// A directory that all users can access.
fn open_dir() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(0o777)).unwrap();
    dir
}

const WHO: &str = "#!py
import os, subprocess
def run():
    made = data['id'] + '/made'
    os.mkdir(made)
    env = [os.environ.get(name, '') for name in ('HOME', 'USER', 'PYTHONHASHSEED', 'PYTHONPATH')]
    child = subprocess.run(['cat'], stdout=subprocess.PIPE).stdout.decode()
    return [os.getresuid(), os.getresgid(), sorted(os.getgroups()), os.stat(made).st_uid,
            oct(os.stat(made).st_mode), env, os.getcwd(), child, hash('salt')]
";

#[test]
fn the_helper_of_root_runs_as_the_master_s_user() {
    let Some(mut helper) = python(Duration::from_secs(30)) else {
        return;
    };
    if !is_root() {
        return;
    }
    let name = other_user();
    helper.options.user = Some(name.clone());
    // A Python that other users can execute.
    helper.options.python = "/usr/bin/python3".into();
    let dir = open_dir();
    let path = file(
        dir.path(),
        &WHO.replace("data['id']", &format!("{:?}", dir.path())),
    );
    let got = returned(&render(&helper, &path).unwrap());
    let id = |flag: &str| {
        let output = Command::new("id").args([flag, &name]).output().unwrap();
        let mut ids: Vec<u32> = String::from_utf8(output.stdout)
            .unwrap()
            .split_whitespace()
            .map(|id| id.parse().unwrap())
            .collect();
        ids.sort_unstable();
        ids
    };
    let (uid, gid) = (id("-u")[0], id("-g")[0]);
    assert_eq!(got[0], format!("({uid}, {uid}, {uid})"));
    assert_eq!(got[1], format!("({gid}, {gid}, {gid})"));
    assert_eq!(
        got[2],
        format!("{:?}", id("-G")),
        "supplementary groups of {name}"
    );
    assert_eq!(
        (got[3].as_str(), got[4].as_str()),
        (uid.to_string().as_str(), "0o40755")
    );
    assert!(!got[5].contains("root"), "{}", got[5]);
    assert_eq!((got[6].as_str(), got[7].as_str()), ("/", ""));
}

#[test]
fn sets_have_the_same_order_in_each_process_and_the_environment_is_not_inherited() {
    let dir = tempfile::tempdir().unwrap();
    let mut hashes = Vec::new();
    for _ in 0..2 {
        let Some(helper) = python(Duration::from_secs(30)) else {
            return;
        };
        let path = file(
            dir.path(),
            &WHO.replace("data['id']", &format!("{:?}", dir.path())),
        );
        let got = returned(&render(&helper, &path).unwrap());
        assert!(got[5].ends_with("'', '']"), "{}", got[5]);
        hashes.push(got[8].clone());
        std::fs::remove_dir(dir.path().join("made")).unwrap();
    }
    assert_eq!(hashes[0], hashes[1]);
}

#[test]
fn the_error_names_a_missing_user() {
    let Some(mut helper) = python(Duration::from_secs(30)) else {
        return;
    };
    helper.options.user = Some("no-such-user".to_owned());
    let Err(SaltError::Absent(why)) = helper.signature(Client::Runner, "test.arg") else {
        panic!("it started")
    };
    assert!(why.contains("no such user \"no-such-user\""), "{why}");
    // The error has the last line of the process.
    let broken = Helper::new(HelperOptions::new("/bin/ls", "/x"));
    let Err(SaltError::Absent(why)) = broken.signature(Client::Runner, "test.arg") else {
        panic!("it started")
    };
    assert!(why.contains("exit code 2: ") && why.contains("ls"), "{why}");
}

/// A file that counts its runs, followed by the code `then`.
fn counting(dir: &Path, then: &str) -> PathBuf {
    let text = format!(
        "#!py\nimport os, signal\ndef run():\n    with open({:?}, 'a') as file:\n        file.write('x')\n    \
         times = os.stat({:?}).st_size\n    {then}\n",
        dir.join("times"),
        dir.join("times")
    );
    file(dir, &text)
}

fn times(dir: &Path) -> u64 {
    std::fs::metadata(dir.join("times")).unwrap().len()
}

#[test]
fn a_file_is_rendered_again_after_the_death_of_its_process() {
    let Some(helper) = python(Duration::from_secs(30)) else {
        return;
    };
    let dir = tempfile::tempdir().unwrap();
    let path = counting(
        dir.path(),
        "return [os.kill(os.getpid(), signal.SIGKILL) if times < 3 else 'rendered at last']",
    );
    assert_eq!(
        returned(&render(&helper, &path).unwrap()),
        ["rendered at last"]
    );
    let metrics = &helper.options.metrics;
    assert_eq!(
        (times(dir.path()), metrics.helper_requests_retried.get()),
        (3, 2)
    );
    assert_eq!(
        (
            metrics.helper_starts.get(),
            metrics.helper_requests_failed_broken.get()
        ),
        (3, 2)
    );
}

#[test]
fn a_file_that_always_kills_its_process_fails_with_the_reason() {
    let Some(helper) = python(Duration::from_secs(30)) else {
        return;
    };
    let dir = tempfile::tempdir().unwrap();
    let path = counting(dir.path(), "os.kill(os.getpid(), signal.SIGKILL)");
    let Err(SaltError::Broken(why)) = render(&helper, &path) else {
        panic!("it was rendered")
    };
    assert!(
        why.contains("died 3 times") && why.contains("SIGKILL"),
        "{why}"
    );
    assert_eq!(times(dir.path()), 3);
    let path = file(dir.path(), "#!py\ndef run():\n    return ['good']\n");
    assert_eq!(
        returned(&render(&helper, &path).unwrap()),
        ["good"],
        "the next file is not affected"
    );
}

/// Kills a process and waits for its end.
fn kill(pid: &str) {
    let pid = rustix::process::Pid::from_raw(pid.parse().unwrap()).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
    let stat = format!("/proc/{}/stat", pid.as_raw_nonzero());
    let until = Instant::now() + Duration::from_secs(30);
    while !std::fs::read_to_string(&stat).is_ok_and(|stat| stat.contains(") Z ")) {
        assert!(Instant::now() < until, "{pid:?} does not end");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn a_request_succeeds_after_the_death_of_an_idle_process() {
    let Some(mut helper) = python(Duration::from_secs(30)) else {
        return;
    };
    // Not even with a single try.
    helper.options.tries = 1;
    let dir = tempfile::tempdir().unwrap();
    let path = file(
        dir.path(),
        "#!py\nimport os\ndef run():\n    return [os.getpid()]\n",
    );
    let first = returned(&render(&helper, &path).unwrap());
    kill(&first[0]);
    let second = returned(&render(&helper, &path).unwrap());
    assert_ne!(first, second);
    // It ends between the check and the request.
    let mut process = helper.pool.lock().idle.pop().unwrap();
    kill(&second[0]);
    let fault = process
        .ask(&json!({"op": "nothing"}), Duration::from_secs(30))
        .unwrap_err();
    assert!(matches!(fault, Fault::NotStarted(_)), "{fault:?}");
}

#[test]
fn the_helper_does_not_repeat_a_function_that_may_have_run() {
    let Some(mut helper) = python(Duration::from_secs(30)) else {
        return;
    };
    helper.options = helper.options.for_callers();
    let dir = tempfile::tempdir().unwrap();
    let path = counting(dir.path(), "os.kill(os.getpid(), signal.SIGKILL)");
    assert!(matches!(render(&helper, &path), Err(SaltError::Broken(_))));
    assert_eq!(times(dir.path()), 1);
}

#[test]
fn a_file_that_exceeds_the_memory_limit_does_not_affect_others() {
    let Some(mut helper) = python(Duration::from_secs(30)) else {
        return;
    };
    helper.options.memory = Some(limits::REACTOR_HELPER_MEMORY_MIN);
    let dir = tempfile::tempdir().unwrap();
    let path = file(
        dir.path(),
        "#!py\ndef run():\n    return [len(bytearray(1 << 30))]\n",
    );
    let rendered = render(&helper, &path).unwrap();
    let Some(Err((kind, text))) = rendered.result else {
        panic!("{:?}", rendered.result)
    };
    assert_eq!(kind, "MemoryError");
    assert!(
        text.contains("268435456 bytes (reactor.helper_memory)"),
        "{text}"
    );
    let score = "#!py\ndef run():\n    return [open('/proc/self/oom_score_adj').read()]\n";
    let score = returned(&render(&helper, &file(dir.path(), score)).unwrap());
    assert_eq!(
        score,
        ["500\n"],
        "the kernel prefers to kill it, not the daemon"
    );
    assert_eq!(helper.options.metrics.helper_starts.get(), 1);
}

#[test]
fn the_death_of_a_process_is_an_error_of_signatures_and_grains() {
    let dir = tempfile::tempdir().unwrap();
    // It sends the greeting, and dies of the first request.
    let text =
        "#!/bin/sh\nread hello <&1; echo '{\"salt\": \"3008.3\"}'; read request <&1; kill -9 $$\n";
    let helper = program(dir.path(), text);
    let died =
        |error: SaltError| matches!(&error, SaltError::Broken(why) if why.contains("died 3 times"));
    assert!(died(
        helper.signature(Client::Runner, "test.arg").unwrap_err()
    ));
    assert!(died(helper.grains().unwrap_err()));
    assert_eq!(
        helper.options.metrics.helper_requests_retried.get(),
        4,
        "three tries each"
    );
}

#[test]
fn a_request_that_no_process_started_is_repeated() {
    let dir = tempfile::tempdir().unwrap();
    let closed = dir.path().join("closed");
    // The first one stops reading but does not end; the second one answers.
    let text = format!(
        "#!/bin/sh\nread hello <&1; echo '{{\"salt\": \"3008.3\"}}'\n\
         if [ -e {closed:?} ]; then read request <&1; echo '{{\"grains\": null}}'; exec sleep 60; fi\n\
         exec 1>&-; : > {closed:?}; exec sleep 60\n"
    );
    let mut helper = program(dir.path(), &text);
    helper.options.tries = 1;
    let process = Process::start(&helper.options).ok().unwrap();
    wait_for("closed socket", || closed.exists().then_some(()));
    helper.with_pool(|pool| (pool.count, pool.idle) = (1, vec![process]));
    assert_eq!(helper.grains(), Ok(None));
    assert_eq!(helper.options.metrics.helper_starts.get(), 2);
}

#[test]
fn stubs_return_and_raise() {
    let Some(helper) = python(Duration::from_secs(30)) else {
        return;
    };
    assert_eq!(
        helper
            .call("test.echo", &[], &Map::default())
            .unwrap()
            .result,
        Ok("stubbed".into())
    );
    assert_eq!(
        helper
            .call("test.fail", &[], &Map::default())
            .unwrap()
            .result
            .unwrap_err()
            .1,
        "no"
    );
    assert_eq!(helper.grains(), Ok(None), "unknown without Salt");
}

#[test]
fn a_file_that_never_ends_is_killed_and_the_next_one_is_rendered() {
    let Some(helper) = python(Duration::from_millis(700)) else {
        return;
    };
    let dir = tempfile::tempdir().unwrap();
    let path = file(
        dir.path(),
        "#!py\nimport time\ndef run():\n    time.sleep(600)\n",
    );
    assert_eq!(
        render(&helper, &path).unwrap_err(),
        SaltError::TooLong {
            limit: "0 s (reactor.helper_timeout)".to_owned()
        }
    );
    let path = file(dir.path(), "#!py\ndef run():\n    return {}\n");
    assert!(render(&helper, &path).is_ok());
    let metrics = &helper.options.metrics;
    assert_eq!(
        (
            metrics.helper_requests_failed_timeout.get(),
            metrics.helper_starts.get()
        ),
        (1, 2)
    );
}

/// Renders a file that waits for another one; also returns the number of processes.
fn one_waits_for_the_other(
    mut helper: Helper,
    processes: usize,
) -> (Result<SaltRendered, SaltError>, u64) {
    helper.options.processes = processes;
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    let (started_file, done) = (at("started"), at("done"));
    let waits = format!(
        "#!py\nimport os, time\ndef run():\n    open({started_file:?}, 'w').close()\n    \
         while not os.path.exists({done:?}):\n        time.sleep(0.01)\n    return {{}}\n"
    );
    std::fs::write(at("slow.sls"), waits).unwrap();
    let quick = format!("#!py\ndef run():\n    open({done:?}, 'w').close()\n    return {{}}\n");
    std::fs::write(at("quick.sls"), quick).unwrap();
    let rendered = std::thread::scope(|scope| {
        let waiting = std::thread::Builder::new()
            .spawn_scoped(scope, || render(&helper, &at("slow.sls")))
            .unwrap();
        wait_for("the start of the rendering", || {
            started_file.exists().then_some(())
        });
        render(&helper, &at("quick.sls")).unwrap();
        waiting.join().unwrap()
    });
    (rendered, helper.options.metrics.helper_starts.get())
}

#[test]
fn a_slow_file_does_not_delay_others() {
    let Some(helper) = python(Duration::from_secs(30)) else {
        return;
    };
    let (rendered, processes) = one_waits_for_the_other(helper, 2);
    assert_eq!(
        (rendered.unwrap().result, processes),
        (Some(Ok(Value::Map(Map::default()))), 2)
    );
    // With one process the other file is rendered after the end of the slow one.
    let Some(helper) = python(Duration::from_secs(1)) else {
        return;
    };
    let (rendered, processes) = one_waits_for_the_other(helper, 1);
    assert_eq!(
        (rendered.unwrap_err(), processes),
        (
            SaltError::TooLong {
                limit: "1 s (reactor.helper_timeout)".to_owned()
            },
            2
        )
    );
}

#[test]
fn programs_that_are_not_helpers_are_errors() {
    let dir = tempfile::tempdir().unwrap();
    let none = Helper::new(HelperOptions::new("/no/such/python", "/x"));
    assert!(
        matches!(none.signature(Client::Runner, "test.arg"), Err(SaltError::Absent(why)) if why.contains("/no/such/python"))
    );
    assert_eq!(none.options.metrics.helper_starts_failed.get(), 1);
    assert!(
        program(dir.path(), "#!/bin/sh\nexit 0\n")
            .signature(Client::Runner, "test.arg")
            .is_err()
    );
    assert!(
        program(dir.path(), "#!/bin/sh\necho nonsense; cat\n")
            .signature(Client::Runner, "test.arg")
            .is_err()
    );
}
