//! A helper that is a Python without Salt, and programs that are no helper.

use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use super::*;
use crate::sls::yaml;

fn python(time: Duration) -> Option<Helper> {
    let there =
        Command::new("python3").arg("-V").stdout(Stdio::null()).status().is_ok_and(|status| status.success());
    let mut options = HelperOptions::new("python3", "/no/such/master");
    options.stubs = json!({"test.echo": {"return": "stubbed"}, "test.fail": {"raise": {"type": "Oops", "message": "no"}}});
    options.time = time;
    there.then(|| Helper::new(options))
}

fn file(dir: &Path, text: &str) -> PathBuf {
    let path = dir.join("x.sls");
    std::fs::write(&path, text).unwrap();
    path
}

fn render(helper: &Helper, path: &Path) -> Result<SaltRendered, SaltError> {
    let data = yaml::load("{id: web1, big: 123456789012345678901}").unwrap();
    let shown = path.to_str().unwrap();
    helper.render(&SaltFile { path: shown, source: path, reference: None, tag: "a/b", data: &data })
}

#[test]
fn python_files_run_without_salt() {
    let Some(helper) = python(Duration::from_secs(30)) else { return };
    let dir = tempfile::tempdir().unwrap();
    let path = file(
        dir.path(),
        "#!py\nimport sys\ndef run():\n    print('noise')\n    data['seen'] = tag\n    \
         return {data['id']: [__salt__['test.echo'](1), data['big'], (1, 2.0, b'x')]}\n",
    );
    let rendered = render(&helper, &path).unwrap();
    let expected = yaml::load("{web1: [stubbed, 123456789012345678901]}").unwrap();
    let Some(Ok(Value::Map(got))) = &rendered.result else { panic!("{:?}", rendered.result) };
    assert_eq!(
        got.get("web1").unwrap().as_list().unwrap()[..2],
        *expected.as_map().unwrap().first().unwrap().1.as_list().unwrap()
    );
    assert_eq!(rendered.data.unwrap().as_map().unwrap().get("seen"), Some(&"a/b".into()));
    assert_eq!(rendered.salt_calls[0].fun, "test.echo");
    let path = file(dir.path(), "#!py\ndef run():\n    return data['no']\n");
    assert_eq!(render(&helper, &path).unwrap().result, Some(Err(("KeyError".to_owned(), "'no'".to_owned()))));
    let path = file(dir.path(), "#!mako|yaml\n");
    assert!(matches!(render(&helper, &path), Err(SaltError::Absent(_)) | Ok(_)));
}

#[test]
fn stubs_answer_and_raise() {
    let Some(helper) = python(Duration::from_secs(30)) else { return };
    assert_eq!(helper.call("test.echo", &[], &Map::new()).unwrap().result, Ok("stubbed".into()));
    assert_eq!(helper.call("test.fail", &[], &Map::new()).unwrap().result.unwrap_err().1, "no");
    assert_eq!(helper.has("test.echo"), Some(true));
}

#[test]
fn a_file_that_never_ends_is_killed_and_the_next_one_served() {
    let Some(helper) = python(Duration::from_millis(700)) else { return };
    let dir = tempfile::tempdir().unwrap();
    let path = file(dir.path(), "#!py\nimport time\ndef run():\n    time.sleep(600)\n");
    assert_eq!(render(&helper, &path).unwrap_err(), SaltError::TooLong { seconds: 0 });
    let path = file(dir.path(), "#!py\ndef run():\n    return {}\n");
    assert!(render(&helper, &path).is_ok());
    let metrics = &helper.options.metrics;
    assert_eq!((metrics.helper_requests_too_long.get(), metrics.helper_starts.get()), (1, 2));
}

/// Renders a file that waits until another one has been rendered; how many processes there were.
fn one_waits_for_the_other(processes: usize, seconds: u64) -> (Result<SaltRendered, SaltError>, u64) {
    let Some(mut helper) = python(Duration::from_secs(seconds)) else { panic!("no python3") };
    helper.options.processes = processes;
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    let (begun, done) = (at("begun"), at("done"));
    let waits = format!(
        "#!py\nimport os, time\ndef run():\n    open({begun:?}, 'w').close()\n    \
         while not os.path.exists({done:?}):\n        time.sleep(0.01)\n    return {{}}\n"
    );
    std::fs::write(at("slow.sls"), waits).unwrap();
    let quick = format!("#!py\ndef run():\n    open({done:?}, 'w').close()\n    return {{}}\n");
    std::fs::write(at("quick.sls"), quick).unwrap();
    let rendered = std::thread::scope(|scope| {
        let waiting =
            std::thread::Builder::new().spawn_scoped(scope, || render(&helper, &at("slow.sls"))).unwrap();
        while !begun.exists() {
            std::thread::sleep(Duration::from_millis(5));
        }
        render(&helper, &at("quick.sls")).unwrap();
        waiting.join().unwrap()
    });
    (rendered, helper.options.metrics.helper_starts.get())
}

#[test]
fn a_slow_file_holds_up_no_other_one() {
    let (rendered, processes) = one_waits_for_the_other(2, 30);
    assert_eq!((rendered.unwrap().result, processes), (Some(Ok(Value::Map(Map::default()))), 2));
    // With one process the other file has its turn only once the slow one was ended.
    let (rendered, processes) = one_waits_for_the_other(1, 1);
    assert_eq!((rendered.unwrap_err(), processes), (SaltError::TooLong { seconds: 1 }, 2));
}

#[test]
fn programs_that_are_no_helper_are_told_apart() {
    let dir = tempfile::tempdir().unwrap();
    let program = |text: &str| {
        let path = dir.path().join("program");
        std::fs::write(&path, text).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
        Helper::new(HelperOptions::new(path, "/x"))
    };
    let none = Helper::new(HelperOptions::new("/no/such/python", "/x"));
    assert!(matches!(none.salt_version(), Err(SaltError::Absent(why)) if why.contains("/no/such/python")));
    assert_eq!(none.options.metrics.helper_starts_failed.get(), 1);
    assert!(program("#!/bin/sh\nexit 0\n").salt_version().is_err());
    assert!(program("#!/bin/sh\necho nonsense; cat\n").salt_version().is_err());
}
