//! Salt's own Python as a process beside the daemon: it renders what is not done natively, and calls the functions of `salt`.
//!
//! The program is `render_helper.py` of the extension, which is inside the binary too. One line of JSON is a request, one line its
//! answer; values are written as in the parity cases. A process that takes too long or answers nonsense is killed, and the next
//! request starts another.
//!
//! While one process is busy another is started, up to [`limits::REACTOR_HELPERS`], so that a slow file holds up no other one. Functions
//! of `caller` have one process: they run one after the other, as in Salt.

use std::collections::HashMap;
use std::io::{ErrorKind, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Condvar, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use serde_json::{Value as Json, json};

use super::encode::{decode, encode, encode_map};
use super::outcome::{Render, SaltCall};
use super::salt::{Salt, SaltAnswer, SaltError, SaltFile, SaltRendered};
use crate::config::salt_master::Role;
use crate::limits;
use crate::metrics::Metrics;
use crate::model::{Note, NoteLevel};
use crate::sls::{Map, Value};

/// The program.
const PROGRAM: &str = include_str!("../../salt/src/saltext/saltcellar/utils/render_helper.py");

/// Which Python, and what it is told.
#[derive(Debug, Clone)]
pub struct HelperOptions {
    /// The Python that Salt is installed for; one without Salt still runs `#!py` files.
    pub python: PathBuf,
    /// The configuration file.
    pub config: PathBuf,
    /// Whose that is.
    pub role: Role,
    /// It runs a minion's `caller` reactions, and nothing else.
    pub caller: bool,
    /// Answers that functions of `salt` give without being called, as in the parity cases; an object.
    pub stubs: Json,
    /// How many processes there may be at once.
    pub processes: usize,
    /// How long one file or one call may take.
    pub time: Duration,
    /// Where to count.
    pub metrics: Arc<Metrics>,
}

impl HelperOptions {
    /// For a master: the usual limits, no stubs.
    pub fn new(python: impl Into<PathBuf>, config: impl Into<PathBuf>) -> Self {
        let empty = Json::Object(serde_json::Map::new());
        let (python, config) = (python.into(), config.into());
        let time = limits::REACTOR_HELPER_TIME;
        let (processes, metrics) = (limits::REACTOR_HELPERS, Arc::default());
        Self { python, config, role: Role::Master, caller: false, stubs: empty, processes, time, metrics }
    }

    /// That counts there.
    #[must_use]
    pub fn counting(mut self, metrics: Arc<Metrics>) -> Self {
        self.metrics = metrics;
        self
    }

    /// For that role.
    #[must_use]
    pub fn of(mut self, role: Role) -> Self {
        self.role = role;
        self
    }

    /// For `caller` reactions, which may be as long as a state run.
    #[must_use]
    pub fn for_callers(mut self) -> Self {
        // A master has no functions of a minion; its renderer's have to do.
        self.caller = self.role == Role::Minion;
        self.time = limits::REACTOR_CALLER_TIME;
        self.processes = 1;
        self
    }
}

/// Helper processes, each started when it is needed.
pub struct Helper {
    options: HelperOptions,
    pool: Mutex<Pool>,
    /// Told whenever a process has become idle, or has gone.
    freed: Condvar,
    /// Where Salt put what it fetched, and until when that is trusted.
    fetched: Mutex<HashMap<String, (Instant, PathBuf)>>,
    greeting: OnceLock<Greeting>,
}

/// What a process says about itself.
#[derive(Debug, Clone)]
struct Greeting {
    /// Salt's release; none without Salt.
    salt: Option<String>,
}

#[derive(Default)]
struct Pool {
    idle: Vec<Process>,
    /// Busy ones and idle ones.
    count: usize,
}

struct Process {
    child: Child,
    stream: UnixStream,
    /// Bytes behind the last answer.
    rest: Vec<u8>,
}

impl Drop for Process {
    fn drop(&mut self) {
        // A process that is dropped is idle or out of hand; either way nobody waits for it.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Helper {
    /// A helper; nothing is started yet.
    pub fn new(options: HelperOptions) -> Self {
        let (pool, freed, fetched, greeting) = Default::default();
        Self { options, pool, freed, fetched, greeting }
    }

    /// The release of the Salt behind it; none if its Python has no Salt.
    pub fn salt_version(&self) -> Result<Option<String>, SaltError> {
        Ok(self.greeted()?.salt)
    }

    fn greeted(&self) -> Result<Greeting, SaltError> {
        if let Some(greeting) = self.greeting.get() {
            return Ok(greeting.clone());
        }
        // Starting greets.
        self.ask(&json!({"op": "nothing"}))?;
        self.greeting.get().cloned().ok_or_else(|| SaltError::Broken("no greeting".to_owned()))
    }

    fn ask(&self, request: &Json) -> Result<Json, SaltError> {
        let metrics = &self.options.metrics;
        let mut process = self.take_process()?;
        metrics.helper_requests.add(1);
        let answer = process.ask(request, self.options.time);
        let counter = match &answer {
            Ok(_) => {
                self.with_pool(|pool| pool.idle.push(process));
                None
            }
            Err(error) => {
                // Killed; the next request starts another.
                drop(process);
                self.with_pool(|pool| pool.count -= 1);
                Some(match error {
                    SaltError::TooLong { .. } => &metrics.helper_requests_too_long,
                    _ => &metrics.helper_requests_broken,
                })
            }
        };
        if let Some(counter) = counter {
            counter.add(1);
        }
        let answer = answer?;
        match answer.get("error").and_then(Json::as_str) {
            Some(error) => Err(SaltError::Absent(error.to_owned())),
            None => Ok(answer),
        }
    }

    /// An idle process, or a new one; waits if there are as many as there may be.
    fn take_process(&self) -> Result<Process, SaltError> {
        let most = self.options.processes;
        let pool = self.pool.lock().unwrap_or_else(PoisonError::into_inner);
        let full = |pool: &mut Pool| pool.idle.is_empty() && pool.count >= most;
        let mut pool = self.freed.wait_while(pool, full).unwrap_or_else(PoisonError::into_inner);
        if let Some(idle) = pool.idle.pop() {
            return Ok(idle);
        }
        pool.count += 1;
        drop(pool);
        self.start().inspect_err(|_| {
            self.options.metrics.helper_starts_failed.add(1);
            self.with_pool(|pool| pool.count -= 1);
        })
    }

    fn with_pool(&self, change: impl FnOnce(&mut Pool)) {
        change(&mut self.pool.lock().unwrap_or_else(PoisonError::into_inner));
        self.freed.notify_one();
    }

    fn start(&self) -> Result<Process, SaltError> {
        let python = self.options.python.display().to_string();
        let absent = |what: String| SaltError::Absent(format!("{python}: {what}"));
        let (ours, theirs) = UnixStream::pair().map_err(|error| absent(error.to_string()))?;
        let output = theirs.try_clone().map_err(|error| absent(error.to_string()))?;
        let mut command = Command::new(&self.options.python);
        command
            .args(["-u", "-c", PROGRAM])
            .stdin(Stdio::from(OwnedFd::from(theirs)))
            .stdout(Stdio::from(OwnedFd::from(output)))
            .stderr(Stdio::null());
        // What functions of `caller` start has nothing to do with these.
        if !self.options.caller {
            command.env("PYTHONHASHSEED", "0").env("PYTHONDONTWRITEBYTECODE", "1");
        }
        let child = command.spawn().map_err(|error| absent(error.to_string()))?;
        // It holds the other end of the socket; without it the end of the child shows.
        drop(command);
        let mut process = Process { child, stream: ours, rest: Vec::new() };
        self.options.metrics.helper_starts.add(1);
        let hello = json!({
            "op": "hello",
            "config": self.options.config.to_string_lossy(),
            "stubs": self.options.stubs,
            "loggers": LOGGERS,
            "role": match self.options.role {
                Role::Master => "master",
                Role::Minion => "minion",
            },
            "caller": self.options.caller,
        });
        let answer = process
            .ask(&hello, limits::REACTOR_HELPER_START_TIME)
            .map_err(|error| absent(error.to_string()))?;
        let salt = answer.get("salt").and_then(Json::as_str).map(str::to_owned);
        if let Some(error) = answer.get("error").and_then(Json::as_str) {
            return Err(absent(error.to_owned()));
        }
        let _ = self.greeting.set(Greeting { salt });
        Ok(process)
    }
}

impl Process {
    fn ask(&mut self, request: &Json, time: Duration) -> Result<Json, SaltError> {
        let until = Instant::now() + time;
        let broken = |what: &dyn std::fmt::Display| SaltError::Broken(what.to_string());
        let too_long = || SaltError::TooLong { seconds: time.as_secs() };
        let mut line = request.to_string().into_bytes();
        line.push(b'\n');
        self.stream.set_write_timeout(Some(time)).map_err(|error| broken(&error))?;
        self.stream.write_all(&line).map_err(|error| match error.kind() {
            ErrorKind::WouldBlock | ErrorKind::TimedOut => too_long(),
            _ => broken(&error),
        })?;
        let mut chunk = vec![0; 64 * 1024];
        let mut looked = 0;
        loop {
            if let Some(end) = memchr::memchr(b'\n', self.rest.get(looked..).unwrap_or_default()) {
                let answer: Vec<u8> = self.rest.drain(..=looked + end).collect();
                return serde_json::from_slice(&answer).map_err(|error| broken(&error));
            }
            looked = self.rest.len();
            if looked > limits::REACTOR_HELPER_ANSWER_BYTES_MAX {
                return Err(broken(&format!(
                    "an answer has more than {} bytes",
                    limits::REACTOR_HELPER_ANSWER_BYTES_MAX
                )));
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(too_long());
            }
            self.stream.set_read_timeout(Some(left)).map_err(|error| broken(&error))?;
            match self.stream.read(&mut chunk) {
                Ok(0) => return Err(broken(&"it ended")),
                Ok(read) => self.rest.extend_from_slice(chunk.get(..read).unwrap_or_default()),
                Err(error) => match error.kind() {
                    ErrorKind::WouldBlock | ErrorKind::TimedOut => return Err(too_long()),
                    ErrorKind::Interrupted => {}
                    _ => return Err(broken(&error)),
                },
            }
        }
    }
}

impl Salt for Helper {
    fn render(&self, file: &SaltFile<'_>) -> Result<SaltRendered, SaltError> {
        self.options.metrics.helper_renders.add(1);
        let answer = self.ask(&json!({
            "op": "render",
            "path": file.path,
            "source": file.source.to_string_lossy(),
            "reference": file.reference,
            "tag": file.tag,
            "data": encode(file.data),
        }))?;
        Ok(SaltRendered {
            result: match answer.get("raised") {
                Some(raised) => Some(Err(exception(raised))),
                None => answer.get("result").map(|value| Ok(decode(value))),
            },
            renders: list(&answer, "renders", |row| {
                Some(Render {
                    file: row.get("file")?.as_str()?.to_owned(),
                    text: row.get("text").and_then(Json::as_str).map(str::to_owned),
                })
            }),
            salt_calls: list(&answer, "salt_calls", |row| {
                let kwargs = decode(row.get("kwargs")?);
                let args = decode(row.get("args")?);
                Some(SaltCall {
                    fun: row.get("fun")?.as_str()?.to_owned(),
                    args: args.as_list()?.to_vec(),
                    kwargs: kwargs.as_map()?.clone(),
                    answer: answered(row),
                })
            }),
            notes: notes(&answer),
            data: answer.get("data").map(decode),
        })
    }

    fn call(&self, fun: &str, args: &[Value], kwargs: &Map) -> Result<SaltAnswer, SaltError> {
        let args: Vec<Json> = args.iter().map(encode).collect();
        let answer =
            self.ask(&json!({"op": "call", "fun": fun, "args": args, "kwargs": encode_map(kwargs)}))?;
        Ok(SaltAnswer { result: answered(&answer), notes: notes(&answer) })
    }

    fn has(&self, fun: &str) -> Option<bool> {
        // Without Salt it cannot be known, but what is stubbed is there.
        let answer = self.ask(&json!({"op": "has", "fun": fun})).ok()?;
        answer.get("has").and_then(Json::as_bool)
    }

    fn grains(&self) -> Option<Value> {
        let answer = self.ask(&json!({"op": "grains"})).ok()?;
        answer.get("grains").filter(|grains| !grains.is_null()).map(decode)
    }

    fn fetch(&self, reference: &str) -> Result<Option<PathBuf>, SaltError> {
        let now = Instant::now();
        let fetched = || self.fetched.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((until, path)) = fetched().get(reference)
            && now < *until
        {
            return Ok(Some(path.clone()));
        }
        let answer = self.ask(&json!({"op": "fetch", "reference": reference}))?;
        let Some(path) = answer.get("path").and_then(Json::as_str).map(PathBuf::from) else {
            return Ok(None);
        };
        let mut fetched = fetched();
        if fetched.len() >= limits::REACTOR_TEMPLATES_MAX {
            fetched.clear();
        }
        let until = Instant::now() + limits::REACTOR_FETCHED_TRUSTED;
        fetched.insert(reference.to_owned(), (until, path.clone()));
        Ok(Some(path))
    }
}

fn answered(row: &Json) -> Result<Value, (String, String)> {
    match row.get("raised") {
        Some(raised) => Err(exception(raised)),
        None => Ok(row.get("return").map_or(Value::Null, decode)),
    }
}

fn exception(raised: &Json) -> (String, String) {
    let get = |name: &str| raised.get(name).and_then(Json::as_str).unwrap_or_default().to_owned();
    (get("type"), get("message"))
}

fn list<T>(answer: &Json, name: &str, read: impl Fn(&Json) -> Option<T>) -> Vec<T> {
    answer
        .get(name)
        .and_then(Json::as_array)
        .map(|rows| rows.iter().filter_map(read).collect())
        .unwrap_or_default()
}

/// Log records; loggers are few, so that each name is kept once for good.
fn notes(answer: &Json) -> Vec<Note> {
    list(answer, "logs", |row| {
        let level = match row.get("level")?.as_str()? {
            "WARNING" => NoteLevel::Warning,
            "INFO" => NoteLevel::Info,
            "DEBUG" => NoteLevel::Debug,
            _ => NoteLevel::Error,
        };
        let mut note = Note::new(level, logger(row.get("logger")?.as_str()?), row.get("message")?.as_str()?);
        note.cause = row.get("cause").and_then(Json::as_str).map(str::to_owned);
        Some(note)
    })
}

/// The loggers of Salt whose records tell of the reactor. The helper is told of them when it is greeted.
pub(super) const LOGGERS: [&str; 14] = [
    "salt.utils.reactor",
    "salt.template",
    "salt.utils.templates",
    "salt.utils.data",
    "salt.state",
    "salt.utils.requisite",
    "salt.utils.jinja",
    "salt.loaded.int.render",
    "salt.renderers",
    "salt.fileclient",
    "salt.loaded.int.module.cp",
    "salt.loaded.int.module.logmod",
    "salt.client",
    "salt.config",
];

/// The logger's name, out of those that matter.
fn logger(name: &str) -> &'static str {
    LOGGERS.into_iter().find(|known| name.starts_with(known)).unwrap_or("salt")
}

#[cfg(test)]
#[path = "helper_tests.rs"]
mod tests;
