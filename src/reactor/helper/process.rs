//! A helper process of Salt's Python.
//!
//! The program is `render_helper.py`, which is embedded in the binary. Python reads it from an
//! anonymous file in memory. Python is isolated from its environment: the current directory is `/`,
//! no `PYTHON*` variable of the daemon reaches it, and neither the current directory nor
//! `PYTHONUSERBASE` is searched for modules. This equals Python's `-I`, except for a variable that
//! `-I` would ignore: sets then have the same order in each process, and rerendering a template
//! gives the same calls.
//!
//! Requests and responses are lines of JSON, over a socket that is the program's standard output.
//! Values have the form of conformance cases.
//!
//! # Invariant
//!
//! Salt's Python runs as Salt's user, with no module of the current directory or the environment.

use std::fs::File;
use std::io::{ErrorKind, Read as _, Seek as _, Write as _};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use rustix::fs::{MemfdFlags, memfd_create};
use serde_json::Value as Json;

use super::account::{Account, SaltPython};
use super::options::{HelperOptions, LOGGERS};
use crate::base::limits;
use crate::config::salt_master::Role;
use crate::wire::json;

const PROGRAM: &str = include_str!("render_helper.py");

/// Maximum number of bytes read from the standard error of a failed start.
const LAST_WORDS_BYTES_MAX: u64 = 16 * 1024;

#[derive(Debug)]
pub(in crate::reactor) enum Fault {
    /// The process ended before it received the whole request, so nothing was executed.
    NotStarted(String),
    /// The process ended while it handled the request.
    Died(String),
    /// The time limit was exceeded.
    TooLong,
    /// The response is invalid.
    Nonsense(String),
}

#[derive(Debug)]
pub(in crate::reactor) enum StartError {
    /// It was killed; a retry may succeed.
    Killed(String),
    /// A retry would fail as well.
    Failed(String),
}

pub(in crate::reactor) struct Process {
    child: Child,
    /// The user that it was switched to.
    account: Option<Account>,
    stream: UnixStream,
    /// Bytes received after the last response.
    rest: Vec<u8>,
}

impl Drop for Process {
    fn drop(&mut self) {
        self.end();
    }
}

impl Process {
    pub(in crate::reactor) fn start(options: &HelperOptions) -> Result<Self, StartError> {
        let (process, stderr) = Self::spawn(options)?;
        options.metrics.helper_starts.add(1);
        let (process, _) = process.greet(options, stderr, &hello(options))?;
        Ok(process)
    }

    /// Whether a package that is installed in this Python may have renderers for Salt. Takes a
    /// separate process, which does not load Salt.
    pub(in crate::reactor) fn packages_have_renderers(
        options: &HelperOptions,
    ) -> Result<bool, StartError> {
        let (process, stderr) = Self::spawn(options)?;
        let question = serde_json::json!({"op": "packages"});
        let (_, answer) = process.greet(options, stderr, &question)?;
        answer
            .get("packages")
            .and_then(Json::as_bool)
            .ok_or_else(|| {
                let python = options.python.display();
                StartError::Failed(format!(
                    "{python}: invalid response about packages: {answer}"
                ))
            })
    }

    /// Starts the program, and returns its standard error.
    fn spawn(options: &HelperOptions) -> Result<(Self, UnixStream), StartError> {
        let python = options.python.display();
        let failed = |what: &dyn std::fmt::Display| StartError::Failed(format!("{python}: {what}"));

        let salt_python = SaltPython::new(&options.python, options.user.as_deref())
            .map_err(StartError::Failed)?;
        let account = salt_python.account().cloned();
        let mut command = command(&salt_python);

        let (ours, theirs) = UnixStream::pair().map_err(|error| failed(&error))?;
        let (stderr, theirs_stderr) = UnixStream::pair().map_err(|error| failed(&error))?;
        // What the process wrote is read without waiting, see `last_words`.
        stderr
            .set_nonblocking(true)
            .map_err(|error| failed(&error))?;

        command
            .stdin(Stdio::from(
                memory_file(PROGRAM.as_bytes()).map_err(|error| failed(&error))?,
            ))
            .stdout(Stdio::from(OwnedFd::from(theirs)))
            .stderr(Stdio::from(OwnedFd::from(theirs_stderr)));

        // The command holds the other ends of the sockets, and would hide the end of the child, if
        // it were kept.
        let child = command.spawn().map_err(|error| failed(&error))?;

        let process = Self {
            child,
            account,
            stream: ours,
            rest: Vec::new(),
        };
        Ok((process, stderr))
    }

    /// Sends the first request to a new process.
    fn greet(
        mut self,
        options: &HelperOptions,
        stderr: UnixStream,
        request: &Json,
    ) -> Result<(Self, Json), StartError> {
        let python = options.python.display();
        let failed = |what: &dyn std::fmt::Display| StartError::Failed(format!("{python}: {what}"));

        match self.ask(request, limits::REACTOR_HELPER_START_TIME) {
            Ok(answer) => match answer.get("error").and_then(Json::as_str) {
                Some(error) => Err(failed(&error)),
                None => Ok((self, answer)),
            },
            Err(fault) => {
                // Wait for the end of the process first. Otherwise its last output may be
                // incomplete.
                let status = self.end();
                let words = last_words(stderr);
                Err(match fault {
                    Fault::TooLong => {
                        let seconds = limits::REACTOR_HELPER_START_TIME.as_secs();
                        failed(&format!(
                            "it did not start within {seconds} s and was killed{words}"
                        ))
                    }
                    Fault::Nonsense(why) => failed(&format!("{why}{words}")),
                    Fault::NotStarted(why) | Fault::Died(why) => {
                        let why = format!("{python}: {why}{words}");
                        match status.and_then(|status| status.signal()) {
                            Some(_) => StartError::Killed(why),
                            None => StartError::Failed(why),
                        }
                    }
                })
            }
        }
    }

    pub(in crate::reactor) fn has_ended(&mut self) -> bool {
        !matches!(self.child.try_wait(), Ok(None))
    }

    /// Sends a request and waits for the response. After a fault the process is unusable.
    pub(in crate::reactor) fn ask(
        &mut self,
        request: &Json,
        time: Duration,
    ) -> Result<Json, Fault> {
        // One deadline for the whole request, because a response can come in small pieces.
        let until = Instant::now() + time;
        let nonsense = |what: &dyn std::fmt::Display| Fault::Nonsense(what.to_string());

        let mut line = request.to_string().into_bytes();
        line.push(b'\n');

        self.stream
            .set_write_timeout(Some(time))
            .map_err(|error| nonsense(&error))?;
        if let Err(error) = self.stream.write_all(&line) {
            return Err(match error.kind() {
                ErrorKind::WouldBlock | ErrorKind::TimedOut => Fault::TooLong,
                // A request is executed once its line is complete.
                _ => Fault::NotStarted(self.death()),
            });
        }

        let mut chunk = vec![0; 64 * 1024];
        // Up to here no end of line was found; a response can have megabytes.
        let mut looked = 0;
        loop {
            if let Some(end) = memchr::memchr(b'\n', self.rest.get(looked..).unwrap_or_default()) {
                let answer: Vec<u8> = self.rest.drain(..=looked + end).collect();
                return json::parse(&answer).map_err(|error| nonsense(&error));
            }

            looked = self.rest.len();
            // A response without an end must not take all memory.
            if looked > limits::REACTOR_HELPER_ANSWER_BYTES_MAX {
                return Err(nonsense(&format!(
                    "a response exceeds {} bytes",
                    limits::REACTOR_HELPER_ANSWER_BYTES_MAX
                )));
            }

            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(Fault::TooLong);
            }

            self.stream
                .set_read_timeout(Some(left))
                .map_err(|error| nonsense(&error))?;

            match self.stream.read(&mut chunk) {
                Ok(0) => return Err(Fault::Died(self.death())),
                Ok(read) => self
                    .rest
                    .extend_from_slice(chunk.get(..read).unwrap_or_default()),
                Err(error) => match error.kind() {
                    ErrorKind::WouldBlock | ErrorKind::TimedOut => return Err(Fault::TooLong),
                    ErrorKind::Interrupted => {}
                    _ => return Err(Fault::Died(self.death())),
                },
            }
        }
    }

    /// Describes the end of the process. Its socket closes a moment earlier, so this waits for the
    /// end: otherwise a process killed here would look like one killed by the kernel.
    fn death(&mut self) -> String {
        let until = Instant::now() + limits::REACTOR_HELPER_EXIT_TIME;
        while !self.has_ended() {
            if Instant::now() >= until {
                self.end();
                return "it closed its socket without ending and was killed".to_owned();
            }
            std::thread::sleep(Duration::from_millis(1));
        }

        // Without a status it could not be killed, and `end` has logged that.
        let Some(status) = self.end() else {
            return "it ended".to_owned();
        };

        match (status.signal(), status.code()) {
            (Some(9), _) => {
                "it was killed by signal 9 (SIGKILL), as the kernel does when memory runs out"
                    .to_owned()
            }
            (Some(signal), _) => format!("it was killed by signal {signal}"),
            (_, code) => format!("it ended with exit code {}", code.unwrap_or_default()),
        }
    }

    /// Kills the process unless it has ended, and returns its exit status; `None` if it cannot be
    /// killed.
    fn end(&mut self) -> Option<ExitStatus> {
        let killed = match (self.child.kill(), &self.account) {
            // The unit has no CAP_KILL: only that user may send a signal. The process is not
            // reaped, so its id is not in use again.
            (Err(error), Some(account)) if error.kind() == ErrorKind::PermissionDenied => {
                account.kill(self.child.id())
            }
            (killed, _) => killed,
        };

        // Waited for, or it would remain as a zombie.
        match killed.and_then(|()| self.child.wait()) {
            Ok(status) => Some(status),
            Err(error) => {
                // No wait, because it could take long.
                tracing::error!(%error, pid = self.child.id(), "cannot kill a Salt Python process, abandoning it: end it with `kill -9`");
                None
            }
        }
    }
}

fn command(python: &SaltPython) -> Command {
    let mut command = python.command();
    for (name, _) in
        std::env::vars_os().filter(|(name, _)| name.as_encoded_bytes().starts_with(b"PYTHON"))
    {
        command.env_remove(name);
    }

    command
        // No modules of the user's home, no bytecode files, no buffering; the last argument is for
        // `ps`.
        .args(["-s", "-B", "-u", "-", "saltcellar-helper"])
        .env("PYTHONHASHSEED", "0")
        .env("PYTHONSAFEPATH", "1")
        // Control-C in a terminal is for the daemon only.
        .process_group(0);
    command
}

/// An anonymous file in memory with this content.
pub(crate) fn memory_file(content: &[u8]) -> std::io::Result<File> {
    let mut file = File::from(memfd_create("saltcellar-helper", MemfdFlags::CLOEXEC)?);
    file.write_all(content)?;
    file.rewind()?;
    Ok(file)
}

fn hello(options: &HelperOptions) -> Json {
    serde_json::json!({
        "op": "hello",
        "config": options.config.to_string_lossy(),
        "options": options.user.as_ref().and(options.given.as_ref()),
        "stubs": options.stubs,
        "loggers": LOGGERS,
        "role": match options.role {
            Role::Master => "master",
            Role::Minion => "minion",
        },
        "caller": options.caller,
        "memory": options.memory,
    })
}

/// The last line that a process wrote to standard error, as a suffix of a message.
fn last_words(stderr: UnixStream) -> String {
    let mut bytes = Vec::new();
    // The bytes available now; a grandchild may hold the other end open.
    let _ = stderr.take(LAST_WORDS_BYTES_MAX).read_to_end(&mut bytes);
    let text = String::from_utf8_lossy(&bytes);
    let last = text.lines().map(str::trim).rfind(|line| !line.is_empty());
    last.map(|line| format!(": {line}")).unwrap_or_default()
}
