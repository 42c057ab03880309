//! Scripts: programs whose lines of output become events on Salt's bus, as with Salt's engine
//! `script`.
//!
//! ```text
//! from the program   one JSON object a line: {"tag": "door/open", "data": {"door": 4}}
//! ```
//!
//! # Invariants
//!
//! An event is fired before the next line is read further, so a program that writes faster than its
//! rate, or while Salt's bus is unreachable, waits. A loop from an event to a sink to a script to
//! an event is bounded by the rate. A line that is no event is counted and left out. At any time at
//! most one program of a script's name runs.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::io::{BufRead as _, BufReader, Read};
use std::path::PathBuf;
use std::process::{Child, Stdio};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, bounded, select};
use parking_lot::Mutex;
use rustix::process::Signal;
use serde::Deserialize;
use serde_json::Value as Json;

use super::program::{Variables, check_command, end, read_lines, signal, spawn, start};
use crate::base::clock::Clock;
use crate::base::limits::{
    FIRE_BYTES_MAX, SCRIPT_LINES_WAITING, SCRIPTS_MAX, SINK_STOP_TIMEOUT, SOURCE_LOG_INTERVAL,
};
use crate::base::log_once::LogOnce;
use crate::base::metrics::Metrics;
use crate::base::threads;
use crate::bus::fire::FireError;
use crate::bus::firing::Firing;
use crate::client::secret::Revealed;
use crate::config::{Config, ConfigError, Invalid, read_options, within};
use crate::engines::per_name::PerName;
use crate::engines::settings::{RetrySettings, check_name, check_retry};
use crate::engines::supervised::{Engine, Supervised};
use crate::engines::transport::shortened;
use crate::model::word::{self, Word};
use crate::model::{Rate, Throttle};
use crate::wire::msgpack::json::from_json;
use crate::wire::salt_codec::check_whole;

#[derive(Debug, Clone)]
pub(crate) struct ScriptSettings {
    pub(crate) name: String,
    options: ScriptOptions,
    /// The configuration of these settings, for comparison.
    source: Json,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
struct ScriptOptions {
    command: Vec<String>,
    #[serde(default)]
    environment: Variables,
    /// The directory of the bus; without it the only one.
    #[serde(default, with = "word")]
    bus: Option<PathBuf>,
    /// The pause after an end with status 0.
    #[serde(default = "one_second", with = "word")]
    interval: Duration,
    /// The pauses after failures.
    #[serde(default)]
    retry: RetrySettings,
    #[serde(default = "default_rate", with = "word")]
    rate: Rate,
}

fn one_second() -> Duration {
    Duration::from_secs(1)
}

fn default_rate() -> Rate {
    Rate {
        times: 100,
        per: one_second(),
    }
}

/// All scripts of a configuration. The error names file, line and key.
pub(crate) fn of_config(config: &Config) -> Result<Vec<ScriptSettings>, ConfigError> {
    let one = |(name, given): (&String, &Json)| {
        let checked = check_name(name, "script").and_then(|()| script(name, given, &config.bus));
        checked.map_err(|bad| bad.below(&format!("scripts.{name}")))
    };
    let all: Result<Vec<_>, Invalid> = config.scripts.iter().map(one).collect();

    let count = config.scripts.len();

    let checked = all.and_then(|all| match count {
        0..=SCRIPTS_MAX => Ok(all),
        _ => Err(Invalid::new(
            "scripts",
            format!("{count} scripts; give at most {SCRIPTS_MAX}"),
        )),
    });

    checked.map_err(|Invalid { path, problem }| config.error_at(path, problem))
}

fn script(name: &str, given: &Json, buses: &[PathBuf]) -> Result<ScriptSettings, Invalid> {
    let options: ScriptOptions = read_options(given)?;
    check_command(&options.command)?;
    check_retry(options.retry)?;
    within("interval", &options.interval, Duration::from_secs(1)..)?;

    // Checked at the start, because an event without a bus could never be fired.
    match (&options.bus, buses) {
        (_, []) => {
            return Err(Invalid::new(
                "",
                "no bus is configured: set `bus` in the configuration",
            ));
        }
        (Some(bus), _) if !buses.contains(bus) => {
            return Err(Invalid::new(
                "bus",
                "not a bus of the configuration: give an item of `bus`",
            ));
        }
        (None, [_, _, ..]) => {
            return Err(Invalid::new(
                "",
                "several buses are configured: set `bus` to one of them",
            ));
        }
        _ => {}
    }

    Ok(ScriptSettings {
        name: name.to_owned(),
        options,
        source: given.clone(),
    })
}

#[derive(Clone)]
pub(crate) struct Dependencies {
    pub(crate) firing: Firing,
    /// The `id` of events without one; empty for none.
    pub(crate) id: Arc<str>,
    pub(crate) clock: Clock,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) monitor: Arc<ScriptMonitor>,
}

/// The states of all scripts, by name. Lock order: no other lock is taken under it.
#[derive(Debug, Default)]
pub(crate) struct ScriptMonitor(Mutex<BTreeMap<String, ScriptStatus>>);

#[derive(Debug, Clone, Default)]
pub(crate) struct ScriptStatus {
    pub(crate) phase: ScriptPhase,
    /// Failures in a row.
    pub(crate) failures: u64,
    /// The last failure; remains after a success.
    pub(crate) error: Option<String>,
    pub(crate) rejected_lines: u64,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum ScriptPhase {
    /// Its program waits for its next start.
    #[default]
    Waiting,
    /// Its program runs. From `well_from` on (monotonic) earlier failures do not count.
    Running { well_from: Duration },
    /// Its thread could not be started.
    Failed,
}

impl ScriptMonitor {
    /// The states at a monotonic time.
    pub(crate) fn all(&self, now: Duration) -> BTreeMap<String, ScriptStatus> {
        let mut all = self.0.lock().clone();

        for status in all.values_mut() {
            if matches!(status.phase, ScriptPhase::Running { well_from } if now >= well_from) {
                status.failures = 0;
            }
        }
        all
    }

    /// Restarts a script that is new or has changed.
    fn begin(&self, name: &str) {
        self.0
            .lock()
            .insert(name.to_owned(), ScriptStatus::default());
    }

    /// Forgets a script that is not configured any more.
    fn forget(&self, name: &str) {
        self.0.lock().remove(name);
    }

    /// Changes the state of a script that is configured.
    fn change(&self, name: &str, change: impl FnOnce(&mut ScriptStatus)) {
        // A thread may outlive its script by a moment.
        if let Some(status) = self.0.lock().get_mut(name) {
            change(status);
        }
    }
}

pub(crate) struct Scripts {
    deps: Dependencies,
    running: Supervised<Running>,
    /// Held by the thread of a name that works. Lock order: before all that a script takes, because
    /// it is held meanwhile; never taken under another lock.
    turns: PerName<Mutex<()>>,
}

struct Running {
    source: Json,
    /// `None` if it could not start.
    thread: Option<(Stop, JoinHandle<()>)>,
}

/// Dropping it asks the thread to end; nothing is sent.
struct Stop {
    _sender: Sender<()>,
}

impl Scripts {
    pub(crate) fn start(deps: Dependencies, settings: Vec<ScriptSettings>) -> Self {
        let scripts = Self {
            deps,
            running: Supervised::new("script"),
            turns: PerName::default(),
        };
        scripts.apply(settings);
        scripts
    }

    /// Starts new scripts, and restarts or stops scripts that were changed or removed.
    pub(crate) fn apply(&self, settings: Vec<ScriptSettings>) {
        let removed = self.running.apply(settings, |settings, thread_name| {
            let (name, source) = (settings.name.clone(), settings.source.clone());
            // Before its thread, which changes it.
            self.deps.monitor.begin(&name);

            let thread = self.start_one(settings, thread_name).inspect_err(|error| {
                tracing::error!(script = name, %error, "script not started: correct the cause and run `systemctl reload saltcellar`");
                self.deps.monitor.change(&name, |status| {
                    status.phase = ScriptPhase::Failed;
                    status.error = Some(error.to_string());
                });
            });
            Running {
                source,
                thread: thread.ok(),
            }
        });

        for name in removed {
            tracing::info!(script = name, "script removed");
            self.deps.monitor.forget(&name);
        }
    }

    fn start_one(
        &self,
        settings: ScriptSettings,
        thread_name: &str,
    ) -> std::io::Result<(Stop, JoinHandle<()>)> {
        // Nothing is ever sent: the end of the sender is the signal to stop.
        let (sender, stop) = bounded(0);
        let made = self
            .turns
            .get(&settings.name, || Ok::<_, Infallible>(Mutex::new(())));
        let Ok(turn) = made;

        let script = Script {
            settings,
            deps: self.deps.clone(),
            stop,
        };

        let work = move || {
            // The thread before this one ends its program first.
            let _turn = turn.lock();
            script.run();
        };

        let thread = threads::spawn(thread_name, work)?;
        Ok((Stop { _sender: sender }, thread))
    }

    /// Stops all scripts. Lines that were not fired are lost.
    pub(crate) fn stop(&self) {
        for name in self.running.stop(SINK_STOP_TIMEOUT) {
            tracing::warn!(
                script = name,
                "script did not exit after SIGKILL, abandoning it: look for its process with `ps`, and end it with `kill -9`"
            );
        }
    }
}

impl Engine for Running {
    type Settings = ScriptSettings;

    fn name(settings: &ScriptSettings) -> &str {
        &settings.name
    }

    fn runs(&self, settings: &ScriptSettings) -> bool {
        let is_working = self
            .thread
            .as_ref()
            .is_some_and(|(_, thread)| !thread.is_finished());
        is_working && self.source == settings.source
    }

    fn end(&mut self) -> Option<JoinHandle<()>> {
        // Dropping the sender is the request.
        self.thread.take().map(|(_stop, thread)| thread)
    }
}

struct Script {
    settings: ScriptSettings,
    deps: Dependencies,
    /// Disconnected when a stop is requested.
    stop: Receiver<()>,
}

/// The reason why a program is not read any more.
enum Ended {
    Stop,
    /// It ended with status 0.
    Success,
    /// It ended otherwise, or did not start.
    Failure(String),
}

#[derive(Debug, PartialEq, Eq)]
enum Line {
    Whole(Vec<u8>),
    TooLong,
}

impl Script {
    fn run(self) {
        let ScriptOptions {
            retry,
            interval,
            rate,
            ..
        } = self.settings.options;

        let name = self.settings.name.as_str();
        let mut backoff = retry.backoff();
        let mut output = Output {
            rate,
            throttle: Throttle::default(),
            rejections: LogOnce::every(SOURCE_LOG_INTERVAL),
        };

        // Replaced before its turn came.
        if self.is_stopped_within(Duration::ZERO) {
            return;
        }

        loop {
            let well_from = self.deps.clock.monotonic().saturating_add(retry.max);
            self.deps.monitor.change(name, |status| {
                status.phase = ScriptPhase::Running { well_from };
            });

            let ended = self.follow(&mut output);
            // A program that ran longer than the longest pause did not fail at its start.
            let was_well = self.deps.clock.monotonic() > well_from;
            if was_well {
                backoff.reset();
            }

            self.deps.monitor.change(name, |status| {
                status.phase = ScriptPhase::Waiting;
                match &ended {
                    Ended::Stop => {}
                    Ended::Success => status.failures = 0,
                    Ended::Failure(reason) => {
                        let before = if was_well { 0 } else { status.failures };
                        status.failures = before + 1;
                        status.error = Some(reason.clone());
                    }
                }
            });

            // A program that ends with success is also restarted: it may read its source at
            // intervals.
            let pause = match ended {
                Ended::Stop => return,
                Ended::Success => {
                    backoff.reset();
                    interval
                }
                Ended::Failure(reason) => {
                    self.deps.metrics.script_failures.add(1);
                    let pause = backoff.next();
                    tracing::warn!(
                        script = name,
                        reason,
                        ?pause,
                        "script failed, restarting it: see the reason and its messages above, or `dmesg` if it was killed"
                    );
                    pause
                }
            };

            if self.is_stopped_within(pause) {
                return;
            }
        }
    }

    /// Waits for `pause`; true if a stop is requested before its end.
    fn is_stopped_within(&self, pause: Duration) -> bool {
        self.stop.recv_timeout(pause) == Err(RecvTimeoutError::Disconnected)
    }

    /// Runs the program once.
    fn follow(&self, output: &mut Output) -> Ended {
        let ScriptOptions {
            command,
            environment,
            ..
        } = &self.settings.options;

        // Of this run only: secrets are read again at each start of the program.
        let revealed = Revealed::default();

        let mut child = match start(command, environment, Stdio::null(), &revealed) {
            Ok(child) => child,
            Err(reason) => return Ended::Failure(revealed.scrub(&reason)),
        };

        let ended = self.read(&mut child, revealed, output);
        match ended {
            Err(reason) => {
                // It may still run, and nobody reads its output.
                end(&mut child, || false);
                Ended::Failure(reason)
            }
            Ok(false) => {
                // A chance to end by itself, before its group is killed.
                signal(&child, Signal::TERM);
                end(&mut child, || true);
                Ended::Stop
            }
            Ok(true) => {
                // It has closed its output, and gets time to end.
                end(&mut child, || true);

                match child.wait() {
                    Ok(status) if status.success() => Ended::Success,
                    Ok(status) => Ended::Failure(format!("the program has ended: {status}")),
                    Err(why) => Ended::Failure(format!("the program's status is unknown: {why}")),
                }
            }
        }
    }

    /// Fires the events of a program to the end of its output; false if a stop is requested.
    fn read(
        &self,
        child: &mut Child,
        revealed: Revealed,
        output: &mut Output,
    ) -> Result<bool, String> {
        let (sender, lines) = bounded(SCRIPT_LINES_WAITING);

        // The threads end with the pipes, which the end of the process group closes.
        if let Some(from) = child.stdout.take() {
            let work = move || {
                let mut from = BufReader::new(from);
                while let Some(line) = next_line(&mut from) {
                    if sender.send(line).is_err() {
                        break;
                    }
                }
            };
            spawn("sc-script-out", work).map_err(|why| why.to_string())?;
        }

        if let Some(from) = child.stderr.take() {
            let name = self.settings.name.clone();
            let work = move || {
                read_lines(from, |line| {
                    let line = revealed.scrub(&line);
                    tracing::warn!(script = name, line, "message of a script");
                    true
                });
            };
            spawn("sc-script-err", work).map_err(|why| why.to_string())?;
        }

        loop {
            let line = select! {
                recv(lines) -> line => line,
                // Nothing is sent: the channel is disconnected.
                recv(self.stop) -> _ => return Ok(false),
            };
            let Ok(line) = line else { return Ok(true) };
            // Fired before the next line is taken: a full channel makes the program wait.
            if !self.take(line, output) {
                return Ok(false);
            }
        }
    }

    /// Fires the event of a line; false if a stop is requested meanwhile.
    fn take(&self, line: Line, output: &mut Output) -> bool {
        let event = match line {
            // An empty line is no mistake of the program.
            Line::Whole(line) if line.iter().all(u8::is_ascii_whitespace) => return true,
            Line::Whole(line) => parse(&line, &self.deps.id),
            Line::TooLong => Err(format!("longer than {FIRE_BYTES_MAX} bytes")),
        };

        let (tag, data) = match event {
            Ok(event) => event,
            Err(reason) => {
                self.reject(&reason, output);
                return true;
            }
        };

        // The rate bounds a loop from an event over a sink and a script to the next event.
        let now = self.deps.clock.monotonic();
        if self.is_stopped_within(output.throttle.pause(output.rate, now, 1)) {
            return false;
        }

        let bus = self.settings.options.bus.as_ref().and_then(Word::show);
        let mut backoff = self.settings.options.retry.backoff();
        let mut is_logged = false;

        loop {
            match self
                .deps
                .firing
                .fire(bus.as_deref(), &tag, &data, |_| Ok(()))
            {
                Ok(_) => return true,
                Err(error @ (FireError::BadTag | FireError::TooLarge { .. })) => {
                    // The same event would be rejected again.
                    self.reject(&error.to_string(), output);
                    return true;
                }
                // Everything else passes: a stopped bus, a full queue, a master that restarts.
                Err(error) => {
                    // An unreachable bus is logged once per event.
                    if !std::mem::replace(&mut is_logged, true) {
                        let script = self.settings.name.as_str();
                        tracing::warn!(script, %error, "cannot fire an event of a script, retrying");
                    }
                    if self.is_stopped_within(backoff.next()) {
                        return false;
                    }
                }
            }
        }
    }

    fn reject(&self, reason: &str, output: &mut Output) {
        self.deps.metrics.script_lines_rejected.add(1);
        let name = self.settings.name.as_str();
        let count = |status: &mut ScriptStatus| status.rejected_lines += 1;
        self.deps.monitor.change(name, count);

        if output.rejections.is_due((), self.deps.clock.monotonic()) {
            tracing::warn!(
                script = self.settings.name,
                reason,
                "script line is not an event, skipping it: each line must be a JSON object with `tag` and `data`"
            );
        }
    }
}

struct Output {
    rate: Rate,
    throttle: Throttle,
    /// A program that writes something else would fill the journal.
    rejections: LogOnce,
}

/// The next line; `None` at the end.
fn next_line(from: &mut BufReader<impl Read>) -> Option<Line> {
    // One byte more than allowed: a longer line is recognised without being read as a whole.
    let most = FIRE_BYTES_MAX as u64 + 1;

    let mut line = Vec::new();
    let mut is_long = false;

    loop {
        line.clear();
        match from.by_ref().take(most).read_until(b'\n', &mut line) {
            Ok(0) | Err(_) => return is_long.then_some(Line::TooLong),
            // The rest of a long line is read and forgotten.
            Ok(_) if line.last() != Some(&b'\n') && line.len() as u64 == most => is_long = true,
            Ok(_) if is_long => return Some(Line::TooLong),
            Ok(_) => return Some(Line::Whole(line)),
        }
    }
}

/// Tag and data of an event; the error states what would be right. Data without `id` gets the id
/// of the master, as in Salt.
fn parse(line: &[u8], id: &str) -> Result<(String, Vec<u8>), String> {
    let shown = || shortened(&String::from_utf8_lossy(line.get(..200).unwrap_or(line)));
    let expected = "give one JSON object a line, with `tag` (a string) and `data` (an object)";

    let Ok(Json::Object(mut event)) = serde_json::from_slice(line) else {
        return Err(format!("{:?}: not a JSON object; {expected}", shown()));
    };

    let Some(Json::String(tag)) = event.remove("tag") else {
        return Err(format!("{:?}: no tag; {expected}", shown()));
    };

    let data = match event.remove("data") {
        None | Some(Json::Null) => Json::Object(serde_json::Map::new()),
        Some(data) => data,
    };

    let value = from_json(&data).map_err(|error| error.to_string())?;
    // Salt's readers index into the data of every event.
    let rmpv::Value::Map(mut pairs) = value else {
        return Err(format!("{:?}: data is not an object; {expected}", shown()));
    };

    if !id.is_empty()
        && !pairs.is_empty()
        && !pairs.iter().any(|(key, _)| key.as_str() == Some("id"))
    {
        pairs.push(("id".into(), id.into()));
    }

    let mut bytes = Vec::new();
    rmpv::encode::write_value(&mut bytes, &rmpv::Value::Map(pairs))
        .map_err(|error| error.to_string())?;
    // The daemon would reject it on its return from the bus, after everybody else has received it.
    check_whole(&bytes).map_err(|why| format!("Salt's codec cannot read the data: {why}"))?;

    Ok((tag, bytes))
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;
    use std::path::Path;

    use super::*;
    use crate::bus::BusLink;
    use crate::bus::fire::Firer;
    use crate::config::tests::{in_directory, without};
    use crate::store::{Options, Store};
    use crate::testkit::wait_for;
    use crate::wire::frame::{FrameSplitter, Framing, body};
    use crate::wire::msgpack::json::to_json;
    use crate::wire::salt_event::split;

    /// Events that were fired, as tag and JSON of the data.
    type Fired = Arc<Mutex<Vec<(String, String)>>>;

    struct Fixture {
        deps: Dependencies,
        fired: Fired,
        /// Of the store, and of the bus.
        dir: tempfile::TempDir,
    }

    /// Takes what is fired onto the bus in a directory.
    fn take(dir: &Path, fired: &Fired) {
        let socket = UnixListener::bind(dir.join("master_event_pull.ipc")).unwrap();
        let fired = fired.clone();
        let work = move || {
            for mut peer in socket.incoming().flatten() {
                let mut bytes = Vec::new();
                peer.read_to_end(&mut bytes).unwrap();
                let mut splitter = FrameSplitter::new(FIRE_BYTES_MAX * 2);
                splitter.feed(&bytes);
                while let Some(frame) = splitter.next_frame().unwrap() {
                    let (tag, mut data) = split(body(frame).unwrap()).unwrap();
                    let data = rmpv::decode::read_value(&mut data).unwrap();
                    let mut data = to_json(&data);
                    // The stamp is the time of the test.
                    data.as_object_mut().unwrap().remove("_stamp").unwrap();
                    let tag = String::from_utf8(tag.to_vec()).unwrap();
                    fired.lock().push((tag, data.to_string()));
                }
            }
        };
        // It ends with the process of the test.
        std::thread::Builder::new().spawn(work).unwrap();
    }

    /// A bus that nobody serves yet.
    fn without_master() -> Fixture {
        let dir = tempfile::tempdir().unwrap();
        let link = BusLink::new(dir.path().join("master_event_pub.ipc"));
        link.change(|state| {
            state.connected = true;
            state.framing = Some(Framing::Len32);
        });

        let (clock, metrics) = (Clock::real(), Arc::new(Metrics::default()));
        let options = Options {
            metrics: metrics.clone(),
            ..Options::for_tests(&dir.path().join("state"), clock.clone())
        };
        let firing = Firing {
            firer: Arc::new(Firer::new(vec![link], clock.clone())),
            store: Store::open(&options).unwrap().store,
            clock: clock.clone(),
            metrics: metrics.clone(),
        };

        let deps = Dependencies {
            firing,
            id: "m_master".into(),
            clock,
            metrics,
            monitor: Arc::default(),
        };
        Fixture {
            deps,
            fired: Fired::default(),
            dir,
        }
    }

    fn fixture() -> Fixture {
        let fixture = without_master();
        take(fixture.dir.path(), &fixture.fired);
        fixture
    }

    fn settings(text: &str, more: &str) -> Vec<ScriptSettings> {
        let command = serde_json::to_string(&["/bin/sh", "-c", text]).unwrap();
        let yaml = format!("{{command: {command}{more}}}");
        let given = crate::config::read_yaml(&yaml).unwrap();
        vec![script("s", &given, &["/bus".into()]).unwrap()]
    }

    fn tags(fired: &Fired) -> Vec<String> {
        fired.lock().iter().map(|(tag, _)| tag.clone()).collect()
    }

    #[test]
    fn lines_become_events_and_other_lines_are_counted() {
        let Fixture {
            deps,
            fired,
            dir: _bus,
        } = fixture();
        let text = r#"echo '{"tag": "a", "data": {"x": 1}}'; echo garbage; echo; echo '{"tag": "b", "data": {"id": "own"}}'
                      echo '{"data": {}}'; echo '{"tag": "c", "data": [1]}'; echo '{"tag": "d"}'; sleep 1000"#;
        let scripts = Scripts::start(deps.clone(), settings(text, ""));
        wait_for("the last event", || {
            tags(&fired).contains(&"d".to_owned()).then_some(())
        });
        scripts.stop();
        let expected = [
            ("a", r#"{"x":1,"id":"m_master"}"#),
            ("b", r#"{"id":"own"}"#),
            ("d", "{}"),
        ];
        let expected: Vec<_> = expected
            .map(|(tag, data)| (tag.to_owned(), data.to_owned()))
            .into();
        assert_eq!(*fired.lock(), expected);
        assert_eq!(
            (
                deps.metrics.script_lines_rejected.get(),
                deps.metrics.script_failures.get()
            ),
            (3, 0)
        );
        assert_eq!(deps.monitor.all(Duration::ZERO)["s"].rejected_lines, 3);
    }

    #[test]
    fn an_event_waits_for_the_bus_and_a_rejected_one_does_not() {
        let Fixture { deps, fired, dir } = without_master();
        let long = "x".repeat(2_000);
        let text =
            format!(r#"for n in {long} 2 3; do echo "{{\"tag\": \"$n\"}}"; done; sleep 1000"#);
        let scripts = Scripts::start(deps.clone(), settings(&text, ""));
        wait_for("the rejected one", || {
            (deps.metrics.script_lines_rejected.get() == 1).then_some(())
        });
        take(dir.path(), &fired);
        wait_for("two events", || (fired.lock().len() == 2).then_some(()));
        scripts.stop();
        assert_eq!(tags(&fired), ["2", "3"]);
        assert_eq!(deps.metrics.script_lines_rejected.get(), 1);
    }

    #[test]
    fn a_program_that_ends_is_started_again() {
        let dir = tempfile::tempdir().unwrap();
        let Fixture {
            deps,
            fired,
            dir: _bus,
        } = fixture();
        // Fails at first, then ends as a script that is to be repeated does.
        let mark = dir.path().join("mark");
        let text = format!(
            "if mkdir {0}; then exit 3; fi; echo '{{\"tag\": \"x\"}}'",
            mark.display()
        );
        let scripts = Scripts::start(deps.clone(), settings(&text, ""));
        wait_for("two runs", || (fired.lock().len() >= 2).then_some(()));
        scripts.stop();
        assert_eq!(deps.metrics.script_failures.get(), 1);
        let missing = crate::config::read_yaml("{command: [/nonexistent/program]}").unwrap();
        let scripts = Scripts::start(
            deps.clone(),
            vec![script("s", &missing, &["/bus".into()]).unwrap()],
        );
        wait_for("a failure", || {
            (deps.metrics.script_failures.get() >= 2).then_some(())
        });
        scripts.stop();

        // The status tells it, until the program has run for longer than its longest pause.
        let status = deps.monitor.all(Duration::ZERO)["s"].clone();
        assert!(status.failures >= 1 && status.error.is_some(), "{status:?}");
        let well_from = Duration::from_secs(9);
        let running = |status: &mut ScriptStatus| status.phase = ScriptPhase::Running { well_from };
        deps.monitor.change("s", running);
        assert_eq!(deps.monitor.all(well_from)["s"].failures, 0);
    }

    #[test]
    fn the_rate_bounds_a_program_that_never_stops_writing() {
        let Fixture {
            deps,
            fired,
            dir: _bus,
        } = fixture();
        let text = r#"while :; do echo '{"tag": "loop"}'; done"#;
        let scripts = Scripts::start(deps, settings(text, ", rate: 5/1000s"));
        wait_for("the events of one period", || {
            (fired.lock().len() == 5).then_some(())
        });
        scripts.stop();
        assert_eq!(fired.lock().len(), 5, "the sixth waits for 200 s");
    }

    #[test]
    fn a_reload_replaces_changed_scripts_and_a_stop_ends_all_processes() {
        let dir = tempfile::tempdir().unwrap();
        let Fixture {
            deps,
            fired,
            dir: _bus,
        } = fixture();
        let text = |tag: &str| {
            let pid = dir.path().join(tag);
            format!(
                "sleep 1000 & echo $! > {}; echo '{{\"tag\": \"{tag}\"}}'; wait",
                pid.display()
            )
        };
        let scripts = Scripts::start(deps, settings(&text("one"), ""));
        wait_for("one", || (tags(&fired) == ["one"]).then_some(()));
        scripts.apply(settings(&text("one"), ""));
        scripts.apply(settings(&text("two"), ""));
        wait_for("two", || (tags(&fired) == ["one", "two"]).then_some(()));
        scripts.apply(Vec::new());
        scripts.stop();
        for tag in ["one", "two"] {
            let pid = std::fs::read_to_string(dir.path().join(tag)).unwrap();
            let stat = format!("/proc/{}/stat", pid.trim());
            wait_for("the end of the child", || {
                match std::fs::read_to_string(&stat) {
                    Err(_) => Some(()),
                    // A zombie that its new parent has not collected yet.
                    Ok(stat) => stat.contains(") Z ").then_some(()),
                }
            });
        }
    }

    #[test]
    fn a_reload_that_the_stop_overtakes_starts_no_script() {
        let Fixture { deps, dir, .. } = without_master();
        let scripts = Scripts::start(deps.clone(), Vec::new());
        scripts.stop();
        scripts.apply(settings("exit 0", ""));
        assert!(deps.monitor.all(Duration::ZERO).is_empty());
        drop(dir);
    }

    #[test]
    fn a_removed_script_that_returns_waits_for_the_end_of_its_program() {
        let dir = tempfile::tempdir().unwrap();
        let Fixture {
            deps,
            fired,
            dir: _bus,
        } = fixture();
        let mark = dir.path().join("mark");
        // Takes a while to end.
        let text = format!(
            "trap 'sleep 0.3; rmdir {0}; exit' TERM; mkdir {0} && tag=alone || tag=both; \
             echo '{{\"tag\": \"'$tag'\"}}'; sleep 1000 & wait",
            mark.display()
        );
        let scripts = Scripts::start(deps, settings(&text, ""));
        wait_for("the start", || (tags(&fired).len() == 1).then_some(()));
        scripts.apply(Vec::new());
        scripts.apply(settings(&text, ""));
        wait_for("the second start", || {
            (tags(&fired).len() == 2).then_some(())
        });
        scripts.apply(Vec::new());
        scripts.stop();
        assert_eq!(tags(&fired), ["alone", "alone"]);
        assert!(!mark.exists(), "the stop also waits for a removed script");
    }

    #[test]
    fn a_long_line_is_left_out_as_a_whole() {
        let long = "x".repeat(2 * FIRE_BYTES_MAX + 7);
        let text = format!("a\n{long}\nb\n{long}");
        let mut from = BufReader::new(text.as_bytes());
        let mut lines = Vec::new();
        while let Some(line) = next_line(&mut from) {
            lines.push(line);
        }
        let whole = |text: &str| Line::Whole(text.as_bytes().to_vec());
        assert_eq!(
            lines,
            [whole("a\n"), Line::TooLong, whole("b\n"), Line::TooLong]
        );
    }

    #[test]
    fn an_error_names_line_key_and_accepted_values() {
        for (text, expected) in [
            (
                "bus: [/b]\nscripts:\n  a: {command: [sh]}",
                "c.yaml:3: scripts.a.command: give the absolute path",
            ),
            (
                "scripts:\n  a: {command: [/bin/sh]}",
                "c.yaml:2: scripts.a: no bus is configured",
            ),
            (
                "bus: [/b, /c]\nscripts:\n  a: {command: [/bin/sh]}",
                "c.yaml:3: scripts.a: several buses",
            ),
            (
                "bus: [/b]\nscripts:\n  a:\n    command: [/bin/sh]\n    bus: /c",
                "c.yaml:5: scripts.a.bus: not a bus",
            ),
            (
                "bus: [/b]\nscripts:\n  a:\n    comand: x",
                "c.yaml:4: scripts.a.comand: unknown field `comand`",
            ),
            (
                "bus: [/b]\nscripts:\n  a:\n    command: [/p]\n    rate: fast",
                "c.yaml:5: scripts.a.rate: \"fast\" is not accepted",
            ),
            (
                "bus: [/b]\nscripts:\n  'a b': {command: [/p]}",
                "c.yaml:3: scripts.a b: not a name of a script",
            ),
        ] {
            let (config, dir) = in_directory(text).unwrap();
            let error = without(&dir, &of_config(&config).unwrap_err());
            assert!(error.starts_with(expected), "{text:?}: {error}");
        }
    }
}
