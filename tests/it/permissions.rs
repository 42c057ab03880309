//! Permissions of state directories, exports and backups, and handling of symbolic links.

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};

use rmpv::Value;

use crate::fake_daemon::{program, stderr, stdout};
use crate::harness::{Asks as _, Cellar, map};

fn mode(path: &Path) -> u32 {
    fs::symlink_metadata(path).unwrap().permissions().mode() & 0o7777
}

fn set_mode(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}

/// A directory and everything below it.
fn all(dir: &Path) -> Vec<PathBuf> {
    let mut found = vec![dir.to_owned()];
    let mut at = 0;
    while let Some(path) = found.get(at).cloned() {
        if path.is_dir() && !path.is_symlink() {
            found.extend(
                fs::read_dir(&path)
                    .unwrap()
                    .map(|item| item.unwrap().path()),
            );
        }
        at += 1;
    }
    found
}

/// The paths with any of these permissions.
fn open_to(dir: &Path, mask: u32) -> Vec<(PathBuf, u32)> {
    let modes = all(dir).into_iter().map(|path| (path.clone(), mode(&path)));
    modes
        .filter(|(path, mode)| mode & mask != 0 && !path.is_symlink())
        .collect()
}

/// The daemon and its exports must not depend on the umask of the test run.
fn with_open_umask(program: &std::process::Command) -> std::process::Command {
    let mut command = std::process::Command::new("sh");
    command
        .args(["-c", "umask 0; exec \"$@\"", "sh"])
        .arg(program.get_program())
        .args(program.get_args());
    for (key, value) in program.get_envs() {
        match value {
            Some(value) => command.env(key, value),
            None => command.env_remove(key),
        };
    }
    command
}

fn filled(cellar: &Cellar) {
    for n in 0..3 {
        let load = map(vec![
            ("jid", format!("20261121030955{n:06}").into()),
            ("id", "web1".into()),
            ("fun", "test.ping".into()),
            ("return", Value::from("secret")),
        ]);
        cellar.ask("returner", vec![("load", load)]);
    }
}

fn run(cellar: &Cellar, args: &[&str]) -> std::process::Output {
    let mut command = program();
    command.arg("--socket").arg(cellar.socket()).args(args);
    with_open_umask(&command).output().unwrap()
}

#[test]
fn the_state_directory_in_an_existing_parent_was_readable_by_others() {
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir(dir.path().join("state")).unwrap();
    set_mode(&dir.path().join("state"), 0o755);
    let mut cellar = Cellar::start_on(dir);
    filled(&cellar);
    assert_eq!(open_to(&cellar.state_dir(), 0o077), []);
    // Somebody has opened them to others, such as a restore by hand.
    assert!(cellar.terminate());
    for name in ["", "log", "state", "FORMAT"] {
        let path = cellar.state_dir().join(name);
        set_mode(&path, mode(&path) | 0o055);
    }
    cellar.restart();
    assert_eq!(open_to(&cellar.state_dir(), 0o077), []);
    cellar.logged("permissions restricted");
}

#[test]
fn the_group_of_the_socket_may_only_read_the_state_directory() {
    let cellar = Cellar::start_configured("socket_group: root\n", &[]);
    filled(&cellar);
    assert_eq!(open_to(&cellar.state_dir(), 0o027), []);
    assert_eq!(mode(&cellar.state_dir()), 0o750);
    assert_eq!(mode(&cellar.socket()), 0o660);
}

#[test]
fn a_directory_with_other_files_keeps_its_permissions_and_is_reported() {
    let dir = tempfile::tempdir().unwrap();
    let state = dir.path().join("state");
    fs::create_dir(&state).unwrap();
    fs::write(state.join("web site.html"), "for all").unwrap();
    symlink(dir.path().join("elsewhere"), state.join("SEQUENCE.tmp")).unwrap();
    set_mode(&state, 0o755);
    set_mode(&state.join("web site.html"), 0o644);
    let cellar = Cellar::start_on(dir);
    assert_eq!(
        (mode(&state), mode(&state.join("web site.html"))),
        (0o755, 0o644)
    );
    assert_eq!(open_to(&state.join("log"), 0o077), []);
    cellar.logged("contains foreign files");
}

#[test]
fn exports_and_backups_were_readable_by_others() {
    let cellar = Cellar::start();
    filled(&cellar);
    let to = |name: &str| cellar.dir.path().join(name);
    let (lines, backup) = (to("lines.jsonl"), to("backup"));
    for args in [
        ["export", "jsonl", lines.to_str().unwrap()],
        ["store", "backup", backup.to_str().unwrap()],
    ] {
        let state = cellar.state_dir();
        let args = [&args[..], &["--state-dir", state.to_str().unwrap()]].concat();
        let output = run(&cellar, &args);
        assert!(output.status.success(), "{args:?}: {}", stderr(&output));
    }
    for path in [&lines, &backup] {
        assert!(path.exists());
        assert_eq!(open_to(path, 0o077), []);
    }
    let restored = to("restored");
    let output = run(
        &cellar,
        &[
            "store",
            "restore",
            backup.to_str().unwrap(),
            restored.to_str().unwrap(),
        ],
    );
    assert!(output.status.success(), "{}", stderr(&output));
    assert_eq!(open_to(&restored, 0o077), []);
}

#[test]
fn a_jsonl_export_does_not_follow_links() {
    let cellar = Cellar::start();
    filled(&cellar);
    let (victim, out) = (
        cellar.dir.path().join("victim"),
        cellar.dir.path().join("lines.jsonl"),
    );
    for content in [
        "",
        "{\"kind\": \"saltcellar\", \"version\": 1, \"events\": false}\n",
    ] {
        fs::write(&victim, content).unwrap();
        let _ = fs::remove_file(cellar.dir.path().join("lines.jsonl.part"));
        symlink(&victim, cellar.dir.path().join("lines.jsonl.part")).unwrap();
        let output = run(&cellar, &["export", "jsonl", out.to_str().unwrap()]);
        assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
        assert_eq!(fs::read_to_string(&victim).unwrap(), content);
    }
    // A link with the final name is not followed either.
    fs::remove_file(cellar.dir.path().join("lines.jsonl.part")).unwrap();
    symlink(cellar.dir.path().join("not there"), &out).unwrap();
    let output = run(&cellar, &["export", "jsonl", out.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
    assert!(!cellar.dir.path().join("not there").exists() && out.is_symlink());
}

#[test]
fn a_resumed_export_restricts_open_permissions() {
    let cellar = Cellar::start();
    filled(&cellar);
    let out = cellar.dir.path().join("lines.jsonl");
    let part = cellar.dir.path().join("lines.jsonl.part");
    fs::write(&part, "").unwrap();
    set_mode(&part, 0o644);
    let output = run(&cellar, &["export", "jsonl", out.to_str().unwrap()]);
    assert!(output.status.success(), "{}", stderr(&output));
    assert_eq!(mode(&out), 0o600);
}

#[test]
fn a_backup_followed_a_link_in_its_directory() {
    let cellar = Cellar::start();
    filled(&cellar);
    let elsewhere = cellar.dir.path().join("elsewhere");
    let victim = elsewhere.join("00000000000000000001-0");
    for link in ["log", "log/jobs", "MANIFEST.tmp", "UNFINISHED.tmp"] {
        let backup = tempfile::tempdir_in(cellar.dir.path()).unwrap();
        let _ = fs::remove_dir_all(&elsewhere);
        fs::create_dir_all(&elsewhere).unwrap();
        fs::write(&victim, "not a copy").unwrap();
        fs::write(backup.path().join("UNFINISHED"), "").unwrap();
        let link = backup.path().join(link);
        fs::create_dir_all(link.parent().unwrap()).unwrap();
        let target = if link.extension().is_some() {
            &victim
        } else {
            &elsewhere
        };
        symlink(target, &link).unwrap();
        if link.ends_with("UNFINISHED.tmp") {
            fs::remove_file(backup.path().join("UNFINISHED")).unwrap();
            fs::write(backup.path().join("MANIFEST.tmp"), "").unwrap();
        }
        let state = cellar.state_dir();
        let args = [
            "store",
            "backup",
            backup.path().to_str().unwrap(),
            "--state-dir",
            state.to_str().unwrap(),
        ];
        let output = run(&cellar, &args);
        let what = format!(
            "{}: {} {}",
            link.display(),
            stdout(&output),
            stderr(&output)
        );
        assert_eq!(fs::read_to_string(&victim).unwrap(), "not a copy", "{what}");
        assert_eq!(all(&elsewhere).len(), 2, "{what}");
        assert_eq!(output.status.code(), Some(1), "{what}");
    }
}
