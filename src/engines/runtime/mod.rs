//! Runs the sinks: one thread each, started, stopped and replaced with the configuration.
//!
//! # Invariant
//!
//! A sink that cannot start, fails or panics affects no other sink. At any time at most one thread
//! of a sink's name works, and all of them know the same dead letters ([`Shared`]). Sinks with
//! equal items share what was read and encoded, and nothing else ([`Group`]).

mod deliver;
mod encoding;
mod group;
mod reader;
mod shared;
mod sink;
mod state;
#[cfg(test)]
mod tests;

use std::collections::HashSet;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use parking_lot::Mutex;

use self::deliver::DeliverContext;
use self::encoding::Encoding;
use self::group::{Group, Room};
use self::reader::Reader;
use self::shared::Shared;
use self::sink::Sink;
pub(crate) use self::state::{Last, Phase, SinkCounts, SinkState};
use super::dead_letters::{DeadLetter, DeadLetterError, DeadLetters};
use super::event::Event;
use super::feed::{Feed, FeedError, Position, Progress};
use super::per_name::PerName;
use super::settings::SinkSettings;
use super::transport::{self, DeliverError, Item, Transcript};
use crate::base::clock::Clock;
use crate::base::file_fault::FileFault;
use crate::base::limits::SINK_STOP_TIMEOUT;
use crate::base::threads;
use crate::engines::supervised::{Engine, Supervised};
use crate::policy::redact::Redactor;
use crate::store::Store;
use crate::store::vfs::Fs;

#[derive(Clone)]
pub(crate) struct Dependencies {
    /// Has the events, the positions of the sinks and the dead letters.
    pub(crate) store: Store,
    pub(crate) fs: Arc<dyn Fs>,
    pub(crate) clock: Clock,
    /// The id of this host's master; empty if unknown.
    pub(crate) master_id: Arc<str>,
    /// A sink without events looks after idle connections and files this often.
    pub(crate) idle: Duration,
}

#[derive(Debug, thiserror::Error)]
pub(crate) enum SinkError {
    #[error("no sink {name:?} is configured; configured are: {known}")]
    Unknown { name: String, known: String },
    #[error(
        "the sink {0:?} is the daemon's own, made of the keys under `cluster`: it can be paused, and neither moved nor tested"
    )]
    Own(String),
    #[error(
        "the sink could not start: {0}; correct the cause and run `systemctl reload saltcellar`"
    )]
    NotStarted(String),
    #[error(transparent)]
    Feed(#[from] FeedError),
    #[error(transparent)]
    DeadLetters(#[from] DeadLetterError),
}

/// A sink, for calls about it.
type FoundSink = (Arc<SinkSettings>, Arc<SinkState>, Parts);

#[derive(Debug, Clone)]
pub(crate) struct SinkStatus {
    pub(crate) settings: Arc<SinkSettings>,
    pub(crate) last: Last,
    /// Counters since the start of the daemon.
    pub(crate) counters: SinkCounts,
    pub(crate) progress: Result<Progress, String>,
    /// Seconds, one value a minute, the oldest first.
    pub(crate) lags: Vec<u64>,
    pub(crate) dead_letters: usize,
}

#[derive(Debug, Clone)]
pub(crate) struct TestResult {
    pub(crate) event: Arc<Event>,
    pub(crate) items: usize,
    pub(crate) transcript: Transcript,
    pub(crate) error: Option<String>,
}

pub(crate) struct Engines {
    deps: Dependencies,
    /// Sinks of the daemon's own, which a reload does not change.
    own: Vec<SinkSettings>,
    sinks: Supervised<Running>,
    /// The names of the configured sinks, and during a reload also the names before it.
    /// Lock order: no other lock is taken under it.
    names: Mutex<HashSet<String>>,
    shared: PerName<Shared>,
    /// By what makes encodings equal ([`SinkSettings::encoding_key`]).
    groups: PerName<Group>,
    /// Of all groups.
    room: Arc<Room>,
}

struct Running {
    settings: Arc<SinkSettings>,
    state: Arc<SinkState>,
    /// The error if it could not start.
    parts: Result<Parts, String>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Clone)]
struct Parts {
    feed: Arc<Feed>,
    shared: Arc<Shared>,
}

impl Engines {
    /// Starts the configured sinks, and `own` besides.
    pub(crate) fn start(
        deps: Dependencies,
        settings: Vec<SinkSettings>,
        own: Vec<SinkSettings>,
    ) -> Self {
        let engines = Self {
            deps,
            own,
            sinks: Supervised::new("sink"),
            names: Mutex::default(),
            shared: PerName::default(),
            groups: PerName::default(),
            room: Arc::default(),
        };

        engines.apply(settings);
        engines
    }

    /// Starts new sinks, replaces changed ones, stops removed ones, and reopens the files and
    /// connections of the others.
    pub(crate) fn apply(&self, mut settings: Vec<SinkSettings>) {
        settings.extend(self.own.iter().cloned());
        let names: HashSet<_> = settings.iter().map(|one| one.name.clone()).collect();
        // Before a feed is opened: its consumer must not be changeable as one without a sink.
        self.names.lock().extend(names.iter().cloned());

        let removed = self.sinks.apply(settings, |settings, thread| {
            self.start_one(settings, thread)
        });
        for name in removed {
            tracing::info!(
                sink = name,
                "sink removed, keeping its position: delete it with `saltcellar consumers delete`"
            );
        }

        *self.names.lock() = names;
    }

    fn start_one(&self, settings: SinkSettings, thread_name: &str) -> Running {
        let settings = Arc::new(settings);
        match self.try_start(&settings, thread_name) {
            Ok(running) => running,
            // A sink that cannot start is still listed, with the reason.
            Err(error) => {
                tracing::error!(
                    sink = settings.name,
                    error,
                    "sink not started, it delivers nothing: correct the cause and run `systemctl reload saltcellar`"
                );
                let state = SinkState::new(false);
                state.failed(self.deps.clock.now(), &error);
                state.set_phase(Phase::Failed);

                Running {
                    settings,
                    state,
                    parts: Err(error),
                    thread: None,
                }
            }
        }
    }

    fn try_start(
        &self,
        settings: &Arc<SinkSettings>,
        thread_name: &str,
    ) -> Result<Running, String> {
        let deps = &self.deps;
        let filter = settings.filter.clone().beside(&deps.master_id);
        let feed = Feed::open(deps.store.clone(), &settings.name, &filter, settings.start)
            .map(Arc::new)
            .map_err(|error| error.to_string())?;

        // One for all threads of this name, because older threads may still have a delivery in
        // flight.
        let shared = self.shared.get(&settings.name, || {
            let letters = DeadLetters::of(deps.store.settings().clone(), &settings.name);
            Ok::<_, String>(Shared::new(letters))
        })?;

        // A pause is saved with the position, and outlives the process.
        let progress = feed.progress().map_err(|error| error.to_string())?;
        let state = SinkState::new(progress.is_paused);

        let group = self.groups.get(&settings.encoding_key(), || {
            let encoding = Encoding::new(settings, &deps.master_id);
            Ok::<_, String>(Group::new(encoding, &self.room))
        })?;

        let around = transport::Dependencies::new(&deps.clock, &deps.fs);
        let context = DeliverContext {
            settings: settings.clone(),
            state: state.clone(),
            shared: shared.clone(),
            throttle: Mutex::default(),
            clock: deps.clock.clone(),
        };

        let reader = Reader {
            context,
            feed: feed.clone(),
            member: group.join(progress.cursor),
            lanes: settings.concurrency,
            idle: deps.idle,
        };

        let lanes = (0..settings.concurrency)
            .map(|_| transport::open(&*settings.transport.1, &around))
            .collect();

        let sink = Sink {
            reader,
            lanes,
            thread_name: thread_name.to_owned(),
            ahead: None,
        };

        let thread = spawn(sink).map_err(|error| error.to_string())?;
        let parts = Ok(Parts { feed, shared });
        Ok(Running {
            settings: settings.clone(),
            state,
            parts,
            thread: Some(thread),
        })
    }

    /// Status of all sinks, in the order of the configuration.
    pub(crate) fn list(&self) -> Vec<SinkStatus> {
        // Copied, because a position is read from the store, which must not happen under the lock.
        let all: Vec<_> = self.sinks.lock().values().map(Running::parts).collect();

        all.into_iter()
            .map(|(settings, state, parts)| SinkStatus {
                settings,
                last: state.last(),
                counters: state.counters.get(),
                lags: state.lags(),
                progress: match &parts {
                    Ok(parts) => parts.feed.progress().map_err(|error| error.to_string()),
                    Err(error) => Err(error.clone()),
                },
                dead_letters: parts.map_or(0, |parts| parts.shared.dead_letters.count()),
            })
            .collect()
    }

    /// Notes the present lag of each sink, for [`SinkStatus::lags`].
    pub(crate) fn note_lags(&self) {
        // Copied, as in `list`.
        let all: Vec<_> = self.sinks.lock().values().map(Running::parts).collect();
        for (_, state, parts) in all {
            // Without a position there is nothing to note; the status says why.
            if let Ok(Ok(progress)) = parts.map(|parts| parts.feed.progress()) {
                state.note_lag(progress.lag);
            }
        }
    }

    /// Files of dead letters with content that is ignored.
    pub(crate) fn file_faults(&self) -> Vec<FileFault> {
        let running = self.sinks.lock();
        let opened = running.values().filter_map(|one| one.parts.as_ref().ok());
        opened
            .filter_map(|parts| parts.shared.dead_letters.fault())
            .collect()
    }

    /// True if a sink of this name is configured. Does not wait for a reload.
    pub(crate) fn has(&self, name: &str) -> bool {
        self.names.lock().contains(name)
    }

    fn find(&self, name: &str) -> Result<FoundSink, SinkError> {
        let running = self.sinks.lock();
        let Some(one) = running.get(name) else {
            let known = running.keys().cloned().collect::<Vec<_>>().join(", ");
            let known = if known.is_empty() {
                "none".to_owned()
            } else {
                known
            };
            return Err(SinkError::Unknown {
                name: name.to_owned(),
                known,
            });
        };

        let (settings, state, parts) = one.parts();
        Ok((settings, state, parts.map_err(SinkError::NotStarted)?))
    }

    /// Fails for a sink of the daemon itself: what it delivers must be whole.
    fn not_own(&self, name: &str) -> Result<(), SinkError> {
        if self.own.iter().any(|own| own.name == name) {
            return Err(SinkError::Own(name.to_owned()));
        }
        Ok(())
    }

    /// Pauses a sink, or resumes it. Durable.
    pub(crate) fn pause(&self, name: &str, paused: bool) -> Result<(), SinkError> {
        let (_, state, parts) = self.find(name)?;
        // The consumer first: it is durable, and the thread only follows.
        parts.feed.pause(paused)?;
        state.pause(paused);
        parts.feed.wake();
        Ok(())
    }

    /// Moves the position of a sink. Deliveries in progress are abandoned.
    pub(crate) fn seek(&self, name: &str, to: Position) -> Result<Progress, SinkError> {
        self.not_own(name)?;
        let (_, state, parts) = self.find(name)?;
        // The consumer first: what the thread fetches after the interruption must come from the new
        // position.
        parts.feed.seek(to)?;
        state.moved();
        parts.feed.wake();
        Ok(parts.feed.progress()?)
    }

    /// Delivers the newest matching event over a connection of its own, in any state of the sink.
    pub(crate) fn test(&self, name: &str) -> Result<TestResult, SinkError> {
        // A test of the outbox would publish an entry out of its order.
        self.not_own(name)?;
        let (settings, _, parts) = self.find(name)?;
        let newest = parts.feed.newest()?;

        let mut entry = newest
            .ok_or_else(|| FeedError("no stored event matches the sink's filter".to_owned()))?;
        // A test shows what a delivery would send, so the sink's redaction applies.
        if !settings.redact.is_empty() {
            let redacted = Redactor::new(&settings.redact).replaced(&entry.as_entry());
            entry.replace(redacted);
        }

        let id = parts.feed.id_of(&entry);
        let event = Arc::new(Event::new(entry, id, &self.deps.master_id));

        let mut count = 0;
        let mut encoded = Vec::new();
        let mut transcript = Transcript::default();

        // An error of the encoder or the destination is the result of the test, not a failure of
        // the call.
        let error = match settings.encoder.1.encode(&event, &mut encoded) {
            Err(error) => Some(error.to_string()),
            Ok(()) if encoded.is_empty() => {
                Some("the encoder makes no item of this event".to_owned())
            }
            Ok(()) => {
                let mut items: Vec<_> =
                    Item::of(&event, &mut encoded, settings.framing()).collect();
                // As many as a request of the sink would have.
                items.truncate(settings.limits.count);
                count = items.len();
                let around = transport::Dependencies::new(&self.deps.clock, &self.deps.fs);
                // A separate connection, because a test must not disturb a delivery.
                let mut transport = transport::open(&*settings.transport.1, &around);
                let result = transport.deliver(&items, Some(&mut transcript));

                match result {
                    Ok(rejected) => rejected.into_iter().next().map(|one| one.reason),
                    Err(DeliverError::Retry { reason, .. } | DeliverError::Refused { reason }) => {
                        Some(reason)
                    }
                }
            }
        };

        Ok(TestResult {
            event,
            items: count,
            transcript,
            error,
        })
    }

    /// Checks that the destination of each sink is reachable: name, and what was found.
    pub(crate) fn check(&self) -> Vec<(String, Result<String, String>)> {
        let all: Vec<_> = self.sinks.lock().values().map(Running::parts).collect();
        let around = transport::Dependencies::new(&self.deps.clock, &self.deps.fs);
        let check = |settings: &SinkSettings, parts: Result<Parts, String>| {
            parts?;
            transport::open(&*settings.transport.1, &around).check()
        };
        all.into_iter()
            .map(|(settings, _, parts)| (settings.name.clone(), check(&settings, parts)))
            .collect()
    }

    pub(crate) fn dead_letters(&self, name: &str) -> Result<Vec<DeadLetter>, SinkError> {
        Ok(self.find(name)?.2.shared.dead_letters.all())
    }

    /// Delivers dead letters again, all or these; returns how many. Those that are rejected again
    /// stay.
    pub(crate) fn retry_dead_letters(
        &self,
        name: &str,
        ids: Option<&[String]>,
    ) -> Result<usize, SinkError> {
        let (_, _, parts) = self.find(name)?;

        let mut wanted = parts.shared.dead_letters.all();
        // Named by id or number, passed on by id, because a replaced store may have used the same
        // number.
        wanted.retain(|letter| ids.is_none_or(|ids| ids.iter().any(|id| letter.is(id))));

        let count = wanted.len();
        let ids = wanted.into_iter().map(|letter| letter.id);
        // Not immediately: the thread takes them before its next batch.
        parts.shared.add_retries(ids);
        Ok(count)
    }

    pub(crate) fn drop_dead_letters(
        &self,
        name: &str,
        ids: Option<&[String]>,
    ) -> Result<usize, SinkError> {
        Ok(self.find(name)?.2.shared.dead_letters.remove(ids)?)
    }

    /// Stops all sinks.
    pub(crate) fn stop(&self) {
        self.stop_within(SINK_STOP_TIMEOUT);
    }

    /// A delivery that takes longer is abandoned, and repeated after the next start.
    fn stop_within(&self, time: Duration) {
        for name in self.sinks.stop(time) {
            tracing::warn!(
                sink = name,
                "delivery still in progress at shutdown, it is repeated after the next start"
            );
        }
    }
}

impl Engine for Running {
    type Settings = SinkSettings;

    fn name(settings: &SinkSettings) -> &str {
        &settings.name
    }

    fn runs(&self, settings: &SinkSettings) -> bool {
        let is_working = self
            .thread
            .as_ref()
            .is_some_and(|thread| !thread.is_finished());
        is_working && self.settings.source == settings.source
    }

    fn kept(&self) {
        self.state.reopen();
    }

    fn end(&mut self) -> Option<JoinHandle<()>> {
        self.state.stop();
        if let Ok(parts) = &self.parts {
            parts.feed.wake();
        }
        self.thread.take()
    }
}

impl Running {
    fn parts(&self) -> (Arc<SinkSettings>, Arc<SinkState>, Result<Parts, String>) {
        (
            self.settings.clone(),
            self.state.clone(),
            self.parts.clone(),
        )
    }
}

fn spawn(sink: Sink) -> io::Result<JoinHandle<()>> {
    let context = &sink.reader.context;
    let (state, clock, name, shared) = (
        context.state.clone(),
        context.clock.clone(),
        context.settings.name.clone(),
        context.shared.clone(),
    );
    let thread_name = sink.thread_name.clone();

    let work = move || {
        // The thread before this one may have a delivery in flight. In whatever order waiting
        // threads get the lock, all but the newest have been stopped, and end at their first step.
        let _turn = shared.turn.lock();

        // A panic is a bug of one transport or encoder; the sink stays stopped, because its state
        // is unknown.
        if catch_unwind(AssertUnwindSafe(|| sink.run())).is_err() {
            tracing::error!(
                sink = name,
                "sink panicked and is stopped: run `systemctl reload saltcellar`, and report the backtrace above"
            );
            state.failed(clock.now(), "the sink panicked, see the daemon's log");
            state.set_phase(Phase::Failed);
        }
    };
    threads::spawn(&thread_name, work)
}
