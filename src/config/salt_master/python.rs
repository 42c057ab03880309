//! Salt's Python: the interpreter in which Salt is installed.
//!
//! [`find`] is used by everything that needs it: the daemon's reactor, `reactor lint` and its siblings, `doctor` and `setup`. It depends on
//! installed files only, therefore all of them find the same interpreter. [`of_running_master`] shows what a master that runs now was started with,
//! [`of_unit`] what systemd would start.
//!
//! A path that is found here is not trusted yet: [`TrustedProgram`](crate::base::trusted::TrustedProgram) decides whether it is run.

use std::fs::{self, File};
use std::io::{BufRead as _, BufReader, Read as _};
use std::path::{Path, PathBuf};

use crate::base::trusted::PROGRAM_PATH;

/// The Python of Salt's packages.
pub const SALT_PYTHON: &str = "/opt/saltstack/salt/bin/python3";

/// Programs of Salt whose first line names its Python.
const PROGRAMS: [&str; 3] = ["salt-master", "salt-call", "salt"];
/// Searched after `PATH`, which a service manager may have shortened.
const DIRECTORIES: [&str; 3] = ["/usr/bin", "/usr/local/bin", "/opt/saltstack/salt"];

/// Salt's Python: `configured`, else the interpreter of Salt's programs in `PATH` or the usual directories, else the interpreter in Salt's packages.
pub fn find(configured: Option<&Path>) -> Option<PathBuf> {
    if let Some(configured) = configured {
        return Some(configured.to_owned());
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    in_directories(std::env::split_paths(&path))
}

/// What [`find`] finds with the `PATH` of a service, which lacks directories of a person's.
pub fn found_by_a_service() -> Option<PathBuf> {
    in_directories(PROGRAM_PATH.split(':').map(PathBuf::from))
}

fn in_directories(path: impl Iterator<Item = PathBuf>) -> Option<PathBuf> {
    path.chain(DIRECTORIES.map(PathBuf::from))
        .flat_map(|dir| PROGRAMS.map(|program| dir.join(program)))
        .find_map(|program| interpreter(&program))
        .or_else(|| Some(PathBuf::from(SALT_PYTHON)).filter(|python| python.is_file()))
}

/// The Python on a program's first line, or in `bin` next to it, which the shell scripts of Salt's packages start.
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
/// or if several run with different interpreters.
///
/// Anyone can start a process with any command line. Therefore only processes of root and of the user `uid` count, which is the master's user.
/// Whether the interpreter may be run is checked where it is run.
pub fn of_running_master(uid: Option<u32>) -> Option<PathBuf> {
    let own = rustix::process::geteuid().as_raw();
    let trusted = [Some(0), Some(own), uid];
    let processes = fs::read_dir("/proc").ok()?;

    let processes = processes.filter_map(|process| {
        let process = process.ok()?;
        process.file_name().to_str()?.parse::<u32>().ok()?;

        // A process that has ended meanwhile is skipped.
        Some(Process {
            status: fs::read_to_string(process.path().join("status")).ok()?,
            command_line: fs::read(process.path().join("cmdline")).ok()?,
        })
    });

    of_processes(processes, |uid| trusted.contains(&Some(uid)))
}

/// A process, as `/proc` shows it.
struct Process {
    status: String,
    command_line: Vec<u8>,
}

impl Process {
    /// Whether all its user ids are trusted. The real id is of the person who started a set-uid program, with any command line; the
    /// owner of its directory in `/proc` is root if the process made itself unreadable.
    fn belongs_to(&self, is_trusted: impl Fn(u32) -> bool) -> bool {
        let line = self
            .status
            .lines()
            .find_map(|line| line.strip_prefix("Uid:"));
        let ids: Option<Vec<u32>> =
            line.and_then(|line| line.split_whitespace().map(|id| id.parse().ok()).collect());
        ids.is_some_and(|ids| ids.len() == 4 && ids.into_iter().all(is_trusted))
    }
}

fn of_processes(
    processes: impl Iterator<Item = Process>,
    is_trusted: impl Fn(u32) -> bool,
) -> Option<PathBuf> {
    let mut found: Vec<PathBuf> = processes
        .filter(|process| process.belongs_to(&is_trusted))
        .filter_map(|process| started_with(&process.command_line))
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
    of_command(text.split(['\0', ' ']))
}

fn of_command<'a>(words: impl Iterator<Item = &'a str>) -> Option<PathBuf> {
    let mut words = words.filter(|word| !word.is_empty());
    let python = Path::new(words.next()?);
    let program = words.find(|word| !word.starts_with('-'))?;
    let is_master = Path::new(program).file_name()?.to_str()? == "salt-master";
    let is_python = python.is_absolute() && python.file_name()?.to_str()?.starts_with("python");
    (is_master && is_python).then(|| python.to_owned())
}

/// The Python of the unit of a master, which may be stopped: from its `ExecStart`, as `systemctl show --value` prints it.
pub fn of_unit(exec_start: &str) -> Option<PathBuf> {
    let (_, rest) = exec_start.split_once("argv[]=")?;
    let (command, _) = rest.split_once(" ; ")?;
    let program = Path::new(command.split_whitespace().next()?);
    of_command(command.split(' ')).or_else(|| {
        let is_master = program.file_name()?.to_str()? == "salt-master";
        interpreter(program).filter(|_| is_master && program.is_absolute())
    })
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

    #[test]
    fn only_processes_of_root_and_of_the_masters_user_count() {
        let process = |uids: &str, python: &str| Process {
            status: format!(
                "Name:\tpython3\nUid:\t{}\nGid:\t0\t0\t0\t0\n",
                uids.replace(' ', "\t")
            ),
            command_line: format!("{python}\0/x/salt-master\0").into_bytes(),
        };
        let find = |processes: Vec<Process>| {
            of_processes(processes.into_iter(), |uid| [0, 980].contains(&uid))
                .map(|found| found.display().to_string())
        };
        let (home, opt) = ("/home/u/python3", "/opt/python3");
        assert_eq!(find(vec![process("1000 1000 1000 1000", home)]), None);
        // A set-uid program, and one that has given up a right.
        for uids in ["1000 0 0 0", "0 1000 0 1000", "", "0 0", "x 0 0 0"] {
            assert_eq!(find(vec![process(uids, home)]), None, "{uids}");
        }
        for uids in ["0 0 0 0", "980 980 980 980"] {
            let found = find(vec![
                process("1000 1000 1000 1000", home),
                process(uids, opt),
            ]);
            assert_eq!(found.as_deref(), Some(opt), "{uids}");
        }
        let two = vec![
            process("0 0 0 0", opt),
            process("0 0 0 0", "/usr/bin/python3"),
        ];
        assert_eq!(find(two), None);
    }

    #[test]
    fn the_python_of_a_unit_is_that_of_its_command_or_of_its_script() {
        let dir = tempfile::tempdir().unwrap();
        let script = program(dir.path(), "salt-master", "#!/srv/venv/bin/python3\n");
        let unit = |command: &str| {
            let first = command.split(' ').next().unwrap_or_default();
            of_unit(&format!(
                "{{ path={first} ; argv[]={command} ; ignore_errors=no ; start_time=[n/a] ; status=0/0 }}"
            ))
        };
        let venv = Some(PathBuf::from("/srv/venv/bin/python3"));
        assert_eq!(
            unit("/srv/venv/bin/python3 /srv/venv/bin/salt-master -l info"),
            venv
        );
        assert_eq!(unit(&format!("{} -l info", script.display())), venv);
        assert_eq!(unit("/usr/bin/salt-minion"), None);
        assert_eq!(unit("/no/such/salt-master"), None);
        assert_eq!(of_unit(""), None);
    }
}
