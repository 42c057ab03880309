//! Programs of engines: child processes with an environment of their own, each in its process
//! group.
//!
//! # Invariant
//!
//! A process group ends with its program. Values of secrets are only in the program's
//! environment.

use std::collections::BTreeMap;
use std::io::{self, BufRead as _, BufReader, Read};
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process_group};
use serde::Deserialize;

use crate::base::advice::TOO_FEW_TASKS;
use crate::base::limits::{SINK_EXEC_STOP, SINK_REASON_BYTES_MAX};
use crate::base::threads;
use crate::client::secret::Revealed;
use crate::config::Invalid;
use crate::config::Text;
use crate::model::word;

#[derive(Debug, Clone, Deserialize)]
#[serde(transparent)]
pub(super) struct Variable(#[serde(with = "word")] Text);

/// Variables of a program's environment, which is empty otherwise but for `PATH`.
pub(super) type Variables = BTreeMap<String, Variable>;

pub(super) fn check_command(command: &[String]) -> Result<(), Invalid> {
    match command.first() {
        Some(program) if program.starts_with('/') => Ok(()),
        _ => Err(Invalid::new(
            "command",
            "give the absolute path of a program, and its arguments",
        )),
    }
}

/// Starts a program; standard output and standard error are pipes. Secrets of its environment are
/// added to `revealed`.
pub(super) fn start(
    command: &[String],
    variables: &Variables,
    stdin: Stdio,
    revealed: &Revealed,
) -> Result<Child, String> {
    let (program, arguments) = command.split_first().ok_or("no command")?;

    let mut command = Command::new(program);
    // The environment is empty, because the daemon's environment may contain secrets. In a process
    // group of its own, because its children must end with it.
    command
        .args(arguments)
        .env_clear()
        .process_group(0)
        .current_dir("/");

    command
        .stdin(stdin)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());

    // The empty environment would also leave a script without a path to other programs.
    command.env(
        "PATH",
        "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    );

    for (name, Variable(value)) in variables {
        command.env(
            name,
            revealed
                .named(name, value)
                .map_err(|error| error.to_string())?,
        );
    }

    command.spawn().map_err(|why| {
        let remedy = match why.kind() {
            io::ErrorKind::NotFound => "correct `command`, or install the program",
            io::ErrorKind::PermissionDenied => "let the daemon's user execute it",
            io::ErrorKind::WouldBlock => TOO_FEW_TASKS,
            _ => return format!("cannot start {program}: {why}"),
        };
        format!("cannot start {program}: {why}; {remedy}")
    })
}

/// Waits up to [`SINK_EXEC_STOP`] for the end of a program while `is_patient`, then kills its
/// process group.
pub(super) fn end(child: &mut Child, is_patient: impl Fn() -> bool) {
    // Polled, because the standard library cannot wait with a timeout.
    let until = Instant::now() + SINK_EXEC_STOP;
    while is_patient() && matches!(child.try_wait(), Ok(None)) && Instant::now() < until {
        thread::sleep(Duration::from_millis(5));
    }
    // Even if the program has ended: its children may be left in the group.
    signal(child, Signal::KILL);
    // Otherwise it would stay a zombie.
    let _ = child.wait();
}

/// Sends a signal to the process group of a program.
pub(super) fn signal(child: &Child, signal: Signal) {
    if let Some(group) = i32::try_from(child.id()).ok().and_then(Pid::from_raw) {
        // The group may have ended.
        let _ = kill_process_group(group, signal);
    }
}

/// Starts a thread that ends with a pipe of the program.
pub(super) fn spawn(name: &str, work: impl FnOnce() + Send + 'static) -> io::Result<()> {
    threads::spawn(name, work).map(drop)
}

/// Passes on lines of at most [`SINK_REASON_BYTES_MAX`] bytes; longer lines are divided. Ends with
/// the stream, or when `take` returns false.
pub(super) fn read_lines(from: impl Read, mut take: impl FnMut(String) -> bool) {
    let mut from = BufReader::new(from);

    loop {
        let mut line = Vec::new();
        // The limit keeps a program without line breaks from filling memory.
        match from
            .by_ref()
            .take(SINK_REASON_BYTES_MAX as u64)
            .read_until(b'\n', &mut line)
        {
            // A pipe fails only when the program has ended.
            Ok(0) | Err(_) => break,
            Ok(_) => {
                let text = String::from_utf8_lossy(&line);
                if !take(text.trim_end_matches(['\n', '\r']).to_owned()) {
                    break;
                }
            }
        }
    }
}
