//! Salt's Python: the interpreter in which Salt is installed.
//!
//! [`find`] is used by everything that needs it: the daemon's reactor, `reactor check` and its siblings, `doctor` and `setup`. It depends on
//! installed files only, so that all of them find the same one. [`of_running_master`] shows what a master that runs now was started with.

use std::fs::{self, File};
use std::io::{BufRead as _, BufReader, Read as _};
use std::path::{Path, PathBuf};

/// The Python of Salt's own packages.
pub const SALT_PYTHON: &str = "/opt/saltstack/salt/bin/python3";

/// Programs of Salt whose first line names its Python.
const PROGRAMS: [&str; 3] = ["salt-master", "salt-call", "salt"];
/// Searched after `PATH`, which a service manager may have shortened.
const DIRECTORIES: [&str; 3] = ["/usr/bin", "/usr/local/bin", "/opt/saltstack/salt"];

/// Salt's Python: `configured`, else the interpreter of Salt's programs in `PATH` or the usual directories, else that of Salt's packages.
pub fn find(configured: Option<&Path>) -> Option<PathBuf> {
    if let Some(configured) = configured {
        return Some(configured.to_owned());
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    let directories = std::env::split_paths(&path).chain(DIRECTORIES.map(PathBuf::from));
    directories
        .flat_map(|dir| PROGRAMS.map(|program| dir.join(program)))
        .find_map(|program| interpreter(&program))
        .or_else(|| Some(PathBuf::from(SALT_PYTHON)).filter(|python| python.is_file()))
}

/// The Python on a program's first line, or in `bin` beside it, which the shell scripts of Salt's packages start.
fn interpreter(program: &Path) -> Option<PathBuf> {
    let program = program.canonicalize().ok()?;
    let mut line = String::new();
    BufReader::new(File::open(&program).ok()?.take(4096))
        .read_line(&mut line)
        .ok()?;
    let mut words = line.strip_prefix("#!")?.split_whitespace();
    let first = PathBuf::from(words.next()?);
    if first.file_name()?.to_str()?.starts_with("python") {
        return Some(first);
    }
    let beside = program.parent()?.join("bin/python3");
    beside.exists().then_some(beside)
}

/// The Python of a running `salt-master`, by its command line: as it was started, possibly before an upgrade of Salt. `None` if none runs,
/// or if several run with different ones.
pub fn of_running_master() -> Option<PathBuf> {
    let processes = fs::read_dir("/proc").ok()?;
    let mut found: Vec<PathBuf> = processes
        .filter_map(|process| {
            let process = process.ok()?;
            process.file_name().to_str()?.parse::<u32>().ok()?;
            started_with(&fs::read(process.path().join("cmdline")).ok()?)
        })
        .collect();
    found.sort_unstable();
    found.dedup();
    match found.as_slice() {
        [only] => Some(only.clone()),
        _ => None,
    }
}

/// The interpreter in the command line of a master. Salt changes the title of its processes, which joins the words by spaces.
fn started_with(command_line: &[u8]) -> Option<PathBuf> {
    let text = std::str::from_utf8(command_line).ok()?;
    let mut words = text.split(['\0', ' ']).filter(|word| !word.is_empty());
    let python = Path::new(words.next()?);
    let program = words.find(|word| !word.starts_with('-'))?;
    let is_master = Path::new(program).file_name()?.to_str()? == "salt-master";
    let is_python = python.is_absolute() && python.file_name()?.to_str()?.starts_with("python");
    (is_master && is_python).then(|| python.to_owned())
}

#[cfg(test)]
mod tests {

    use super::*;
    use crate::testkit::program;

    #[test]
    fn salts_python_is_the_interpreter_of_its_programs() {
        let dir = tempfile::tempdir().unwrap();
        let plain = program(
            dir.path(),
            "plain",
            "#!/opt/venv/bin/python3.11\nimport salt\n",
        );
        assert_eq!(
            interpreter(&plain),
            Some(PathBuf::from("/opt/venv/bin/python3.11"))
        );
        let shell = program(dir.path(), "salt/salt-master", "#!/bin/sh\n\"exec\" ...\n");
        assert_eq!(interpreter(&shell), None);
        let beside = program(dir.path(), "salt/bin/python3", "");
        assert_eq!(interpreter(&shell), Some(beside.canonicalize().unwrap()));
        assert_eq!(interpreter(&dir.path().join("nothing")), None);
        assert_eq!(interpreter(&program(dir.path(), "elf", "\x7fELF")), None);
        assert_eq!(
            find(Some(Path::new("/any"))),
            Some(PathBuf::from("/any")),
            "configured"
        );
    }

    #[test]
    fn the_python_of_a_running_master_is_the_first_word_of_its_command_line() {
        let check = |line: &str, python: Option<&str>| {
            assert_eq!(
                started_with(line.as_bytes()),
                python.map(PathBuf::from),
                "{line:?}"
            );
        };
        let onedir = Some("/opt/saltstack/salt/bin/python3.10");
        check(
            "/opt/saltstack/salt/bin/python3.10\0/usr/bin/salt-master\0",
            onedir,
        );
        check(
            "/opt/saltstack/salt/bin/python3.10 /usr/bin/salt-master MainProcess\0\0",
            onedir,
        );
        check(
            "/opt/saltstack/salt/bin/python3.10\0-I\0/usr/bin/salt-master\0-d\0",
            onedir,
        );
        check("/usr/bin/python3\0/usr/bin/salt-minion\0", None);
        check("python3\0salt-master\0", None);
        check("vi\0/usr/bin/salt-master\0", None);
        check("", None);
    }
}
