//! Salt's Python: renders files without a native implementation, describes Salt's functions,
//! and runs `caller` reactions.
//!
//! The work is done by processes ([`process`]). If all are busy another one is started, up to
//! [`limits::REACTOR_HELPERS`], because a slow file must not delay other files. Functions of
//! `caller` share one process, therefore they run one after the other, as in Salt.
//!
//! # A process that dies
//!
//! The kernel may kill a process when memory runs out. The request is then repeated in a new
//! process, [`limits::REACTOR_HELPER_TRIES`] times in total. Therefore rendering is done at least once: it
//! is also repeated after a restart of the daemon, and `salt[...]` functions with side effects must
//! tolerate that. A function of a `caller` reaction is not repeated here; its rule decides
//! (`tries`, `at_most_once`). A request that no process has started is always repeated. A process
//! that exceeds its time limit or sends an invalid response is killed, and its request fails.

pub(super) mod account;
pub(super) mod functions;
mod options;
pub(super) mod process;
pub(super) mod salt;

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use quick_cache::sync::Cache;
use salt_sls::json_form::{decode, encode, encode_map};
use salt_sls::{Map, Value};
use serde_json::{Value as Json, json};

use self::functions::SaltAnswer;
pub use self::options::HelperOptions;
pub(super) use self::options::LOGGERS;
use self::options::absolute;
use self::process::{Fault, Process, StartError};
use self::salt::{Salt, SaltChecked, SaltError, SaltFile, SaltRendered};
use super::master::Client;
use super::outcome::{Render, SaltCall};
use super::signature::Signature;
use crate::base::limits;
use crate::model::{Note, NoteLevel};

/// A pool of helper processes, started on demand.
pub struct Helper {
    options: HelperOptions,
    /// Lock order: no other lock is taken under it.
    pool: Mutex<Pool>,
    /// Signals that a process is idle or has ended.
    freed: Condvar,
    /// Paths of fetched files.
    fetched: Expiring<PathBuf>,
    /// Signatures by client and function.
    signatures: Expiring<Option<Signature>>,
}

/// Values with the end of their validity.
struct Expiring<V>(Cache<String, (Instant, V)>);

impl<V: Clone> Expiring<V> {
    fn new() -> Self {
        Self(Cache::new(limits::REACTOR_TEMPLATES_MAX))
    }

    fn get(&self, key: &str) -> Option<V> {
        let (until, value) = self.0.get(key)?;
        (Instant::now() < until).then_some(value)
    }

    fn put(&self, key: String, value: V, valid: Duration) {
        self.0.insert(key, (Instant::now() + valid, value));
    }
}

#[derive(Default)]
struct Pool {
    idle: Vec<Process>,
    /// Number of processes, busy and idle.
    count: usize,
}

impl Helper {
    /// A helper without running processes.
    pub fn new(options: HelperOptions) -> Self {
        let (pool, freed) = Default::default();
        Self {
            options,
            pool,
            freed,
            fetched: Expiring::new(),
            signatures: Expiring::new(),
        }
    }

    /// Calls an execution function.
    pub fn call(&self, fun: &str, args: &[Value], kwargs: &Map) -> Result<SaltAnswer, SaltError> {
        let args: Vec<Json> = args.iter().map(encode).collect();
        let answer = self
            .ask(&json!({"op": "call", "fun": fun, "args": args, "kwargs": encode_map(kwargs)}))?;
        let retcode = answer
            .get("retcode")
            .and_then(Json::as_i64)
            .unwrap_or_default();
        Ok(SaltAnswer {
            result: answered(&answer),
            retcode,
            notes: notes(&answer),
        })
    }

    fn ask(&self, request: &Json) -> Result<Json, SaltError> {
        self.ask_within(request, self.options.time_limit(false))
    }

    fn ask_within(
        &self,
        request: &Json,
        (time, limit): (Duration, String),
    ) -> Result<Json, SaltError> {
        let metrics = &self.options.metrics;
        let (mut tries, mut not_started) = (0, 0);

        let answer = loop {
            let mut process = self.take_process()?;
            metrics.helper_requests.add(1);

            // Only a response leaves the process in a known state, fit for the next request.
            let fault = match process.ask(request, time) {
                Ok(answer) => {
                    self.with_pool(|pool| pool.idle.push(process));
                    break answer;
                }
                Err(fault) => fault,
            };

            // Kills the process; the next request starts another one.
            drop(process);
            self.with_pool(|pool| pool.count -= 1);
            if !matches!(fault, Fault::TooLong) {
                metrics.helper_requests_failed_broken.add(1);
            }

            let why = match fault {
                Fault::TooLong => {
                    // Not repeated: it would take as long again, and a program has done a part of
                    // its work.
                    metrics.helper_requests_failed_timeout.add(1);
                    return Err(SaltError::TooLong { limit });
                }
                // The program itself is wrong, so a repetition would not help.
                Fault::Nonsense(why) => return Err(SaltError::Broken(why)),
                // Idle processes may have ended, possibly all of them.
                Fault::NotStarted(why) => {
                    not_started += 1;
                    if not_started > self.options.processes + 1 {
                        return Err(SaltError::Absent(format!(
                            "Salt's Python dies immediately: {why}"
                        )));
                    }
                    why
                }
                Fault::Died(why) => {
                    tries += 1;
                    if tries >= self.options.tries {
                        let times = if tries == 1 {
                            "died".to_owned()
                        } else {
                            format!("died {tries} times")
                        };
                        return Err(SaltError::Broken(format!(
                            "its process {times} during the request: {why}"
                        )));
                    }
                    why
                }
            };

            let (op, path) = (
                request.get("op"),
                request.get("path").or_else(|| request.get("fun")),
            );
            tracing::warn!(
                why,
                ?op,
                ?path,
                "Salt's Python process died, retrying its request"
            );
            metrics.helper_requests_retried.add(1);
        };

        match answer.get("error").and_then(Json::as_str) {
            Some(error) => Err(SaltError::Absent(error.to_owned())),
            None => Ok(answer),
        }
    }

    /// An idle process, or a new one. Waits at the maximum number of processes.
    fn take_process(&self) -> Result<Process, SaltError> {
        let most = self.options.processes;
        let mut pool = self.pool.lock();
        let full = |pool: &mut Pool| pool.idle.is_empty() && pool.count >= most;
        self.freed.wait_while(&mut pool, full);

        // Idle processes may have died since, for example when memory ran out.
        while let Some(mut idle) = pool.idle.pop() {
            if !idle.has_ended() {
                return Ok(idle);
            }
            pool.count -= 1;
        }

        // Counted before the start, which takes too long to hold the lock. The maximum therefore
        // also holds while processes start.
        pool.count += 1;
        drop(pool);
        self.start().inspect_err(|_| {
            self.options.metrics.helper_starts_failed.add(1);
            self.with_pool(|pool| pool.count -= 1);
        })
    }

    /// Changes the pool and wakes one thread that waits for a process.
    fn with_pool(&self, change: impl FnOnce(&mut Pool)) {
        change(&mut self.pool.lock());
        self.freed.notify_one();
    }

    fn start(&self) -> Result<Process, SaltError> {
        Self::started(|| Process::start(&self.options))
    }

    /// Tries a start again if the process is killed meanwhile.
    fn started<T>(start: impl Fn() -> Result<T, StartError>) -> Result<T, SaltError> {
        let mut tries = 0;
        loop {
            match start() {
                Ok(started) => return Ok(started),
                Err(StartError::Failed(why)) => return Err(SaltError::Absent(why)),
                Err(StartError::Killed(why)) => {
                    tries += 1;
                    // Memory may have run out for a moment, but a program that always dies must not
                    // be started forever.
                    if tries >= limits::REACTOR_HELPER_TRIES {
                        return Err(SaltError::Absent(format!("{why} ({tries} times)")));
                    }

                    tracing::warn!(
                        why,
                        "Salt's Python process died during its start, restarting it"
                    );
                }
            }
        }
    }
}

impl Salt for Helper {
    fn render(&self, file: &SaltFile<'_>) -> Result<SaltRendered, SaltError> {
        self.options.metrics.helper_renders.add(1);
        let request = of_file("render", file);
        let answer = self.ask_within(&request, self.options.time_limit(file.is_program))?;

        Ok(SaltRendered {
            // Without an exception and without a result, Salt's compiler gave nothing.
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
            // Absent unless the file changed it.
            data: answer.get("data").map(decode),
        })
    }

    fn check(&self, file: &SaltFile<'_>, is_static: bool) -> Result<SaltChecked, SaltError> {
        let mut request = of_file("check", file);
        if let Some(members) = request.as_object_mut() {
            members.insert("is_static".to_owned(), Json::Bool(is_static));
        }
        let answer = self.ask(&request)?;

        let cause = |raised: &Json| {
            let (kind, message) = exception(raised);
            format!("{kind}: {message}")
        };

        // Before `failed`: a file that is wrong with any data also fails with the data of the
        // check.
        if let Some(raised) = answer.get("broken") {
            return Ok(SaltChecked::Broken(cause(raised)));
        }
        if let Some(raised) = answer.get("failed") {
            return Ok(SaltChecked::Fails(cause(raised)));
        }

        Ok(match answer.get("compiled").and_then(Json::as_str) {
            Some(why) => SaltChecked::Compiled(why.to_owned()),
            None => SaltChecked::Rendered,
        })
    }

    fn packages_have_renderers(&self) -> Result<bool, SaltError> {
        Self::started(|| Process::packages_have_renderers(&self.options))
    }

    fn renderers(&self, state: u64) -> Result<HashMap<String, bool>, SaltError> {
        let answer = self.ask(&json!({"op": "renderers", "state": state}))?;
        let all = answer
            .get("renderers")
            .ok_or_else(|| SaltError::Broken("it lists no renderers".to_owned()))?;
        serde_json::from_value(all.clone())
            .map_err(|error| SaltError::Broken(format!("invalid list of renderers: {error}")))
    }

    fn signature(&self, client: Client, fun: &str) -> Result<Option<Signature>, SaltError> {
        let key = format!("{}.{fun}", client.name());
        if let Some(known) = self.signatures.get(&key) {
            return Ok(known);
        }

        let answer = self.ask(&json!({"op": "signature", "client": client.name(), "fun": fun}))?;
        let found = match answer.get("signature") {
            None | Some(Json::Null) => None,
            Some(found) => Some(Signature::from_json(found).ok_or_else(|| {
                SaltError::Broken(format!("invalid signature of {key}: {found}"))
            })?),
        };

        // A missing function may be installed at any time.
        let valid = if found.is_some() {
            limits::REACTOR_SIGNATURES
        } else {
            limits::REACTOR_SIGNATURES / 60
        };

        self.signatures.put(key, found.clone(), valid);
        Ok(found)
    }

    fn grains(&self) -> Result<Option<Value>, SaltError> {
        match self.ask(&json!({"op": "grains"})) {
            Ok(answer) => Ok(answer
                .get("grains")
                .filter(|grains| !grains.is_null())
                .map(decode)),
            Err(SaltError::Absent(_)) => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn fetch(&self, reference: &str) -> Result<Option<PathBuf>, SaltError> {
        if let Some(path) = self.fetched.get(reference) {
            return Ok(Some(path));
        }

        let answer = self.ask(&json!({"op": "fetch", "reference": reference}))?;
        let Some(path) = answer.get("path").and_then(Json::as_str).map(PathBuf::from) else {
            return Ok(None);
        };

        self.fetched.put(
            reference.to_owned(),
            path.clone(),
            limits::REACTOR_FETCHED_TRUSTED,
        );
        Ok(Some(path))
    }
}

/// A request about a file.
fn of_file(op: &str, file: &SaltFile<'_>) -> Json {
    json!({
        "op": op,
        "path": absolute(Path::new(file.path)).to_string_lossy(),
        "source": absolute(file.source).to_string_lossy(),
        "reference": file.reference,
        "tag": file.tag,
        "data": encode(file.data),
        "renderers": file.renderers,
    })
}

fn answered(row: &Json) -> Result<Value, (String, String)> {
    match row.get("raised") {
        Some(raised) => Err(exception(raised)),
        None => Ok(row.get("return").map_or(Value::Null, decode)),
    }
}

fn exception(raised: &Json) -> (String, String) {
    let get = |name: &str| {
        raised
            .get(name)
            .and_then(Json::as_str)
            .unwrap_or_default()
            .to_owned()
    };
    (get("type"), get("message"))
}

fn list<T>(answer: &Json, name: &str, read: impl Fn(&Json) -> Option<T>) -> Vec<T> {
    answer
        .get(name)
        .and_then(Json::as_array)
        .map(|rows| rows.iter().filter_map(read).collect())
        .unwrap_or_default()
}

/// Converts log records.
fn notes(answer: &Json) -> Vec<Note> {
    list(answer, "logs", |row| {
        let level = match row.get("level")?.as_str()? {
            "WARNING" => NoteLevel::Warning,
            "INFO" => NoteLevel::Info,
            "DEBUG" => NoteLevel::Debug,
            // Above ERROR there is only CRITICAL.
            _ => NoteLevel::Error,
        };

        let mut note = Note::new(
            level,
            logger(row.get("logger")?.as_str()?),
            row.get("message")?.as_str()?,
        );
        note.cause = row.get("cause").and_then(Json::as_str).map(str::to_owned);
        Some(note)
    })
}

/// The known logger with this prefix, as a static string.
fn logger(name: &str) -> &'static str {
    LOGGERS
        .into_iter()
        .find(|known| name.starts_with(known))
        .unwrap_or("salt")
}

#[cfg(test)]
mod tests;
