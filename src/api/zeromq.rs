//! The ZeroMQ sockets as the daemon sees them: the calls of their processes, and the state of each.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::Mutex;

use super::call::Ctx;
use crate::model::{FrameBatch, Source};
use crate::wire::call::{Args, CallError};
use crate::wire::msgpack::{self, Writer};
use crate::wire::salt_event;

/// The state of a ZeroMQ socket; clones share it.
#[derive(Debug, Clone)]
pub(crate) struct ZmqSocketStatus {
    /// `pull` or `pub`.
    pub(crate) kind: &'static str,
    pub(crate) path: PathBuf,
    process: Arc<Mutex<ZmqProcess>>,
}

#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct ZmqProcess {
    /// The process id; `None` between two processes.
    pub(crate) pid: Option<u32>,
    /// Number of processes that ended.
    pub(crate) restarts: u64,
}

impl ZmqSocketStatus {
    /// The state of a socket without a process.
    pub(crate) fn new(kind: &'static str, path: &Path) -> Self {
        Self {
            kind,
            path: path.to_owned(),
            process: Arc::default(),
        }
    }

    pub(crate) fn process(&self) -> ZmqProcess {
        *self.process.lock()
    }

    /// Records the process that serves the socket now.
    pub(crate) fn set_pid(&self, pid: Option<u32>) {
        self.process.lock().pid = pid;
    }

    pub(crate) fn count_restart(&self) {
        self.process.lock().restarts += 1;
    }
}

/// Stores events of the PULL.
pub(super) fn events(
    ctx: &Ctx,
    args: &Args<'_>,
    to: &mut FrameBatch<'_>,
) -> Result<Vec<u8>, CallError> {
    let at = ctx.clock.now();

    let mut taken = 0;
    for event in msgpack::elements(args.required_array("events")?) {
        let mut parts = msgpack::elements(event).map(msgpack::as_bytes);
        let (Some(Some(tag)), Some(Some(data))) = (parts.next(), parts.next()) else {
            // The process is the daemon's own, so another form is a bug and not a sender's mistake.
            return Err(CallError::BadArgs {
                key: "events",
                expected: "an array of [tag, data], both binary",
            });
        };
        // A sender cannot be told, so its message is counted and skipped.
        if !salt_event::is_event(tag, data) || !salt_event::is_clean_tag(tag) {
            ctx.metrics.zmq_messages_malformed.add(1);
            continue;
        }

        // The policy counts and logs rejected events; senders treat dropped ones as stored.
        if let Ok(Some(accepted)) = ctx.policy.event(tag, data, Source::Zeromq, at) {
            to.push(&accepted.entry(), accepted.fingerprints);
            taken += 1;
        }
    }

    ctx.metrics.zmq_events.add(taken);
    let mut answer = Writer::new();
    answer.uint(taken);
    Ok(answer.into_bytes())
}

/// Counts what the PULL did not pass on.
pub(super) fn ignored(ctx: &Ctx, args: &Args<'_>) -> Result<Vec<u8>, CallError> {
    let metrics = &ctx.metrics;
    let counts = [
        ("malformed", &metrics.zmq_messages_malformed),
        ("too_large", &metrics.entries_too_large),
        ("peers", &metrics.zmq_peers_dropped),
        ("lost", &metrics.zmq_events_lost),
    ];

    for (key, counter) in counts {
        counter.add(args.count(key)?.unwrap_or(0) as u64);
    }
    Ok(vec![0xc0])
}
