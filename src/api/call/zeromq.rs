//! The calls of the processes of the ZeroMQ sockets.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Acceptor, Archive, Call, Changing, In, Run, Save};
use crate::base::limits::WIRE_FRAME_BYTES_MAX;
use crate::model::{FrameBatch, Right, Source};
use crate::wire::call::CallError;
use crate::wire::msgpack::{self, PackedArray};
use crate::wire::salt_event;

/// `zeromq_events`.
pub(crate) struct Events;

#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
pub(crate) struct EventsArgs<'a> {
    /// Events: [[tag, data], ...], both binary
    #[serde(borrow)]
    pub(crate) events: PackedArray<'a>,
}

impl Call for Events {
    const NAME: &'static str = "zeromq_events";
    const DOC: &'static str = "Store events of the ZeroMQ PULL, for its process";
    const RIGHT: Right = Right::Admin;
    const ARGS_BYTES_MAX: usize = WIRE_FRAME_BYTES_MAX;
    type Scope = Changing<Acceptor>;
    type Args<'a> = EventsArgs<'a>;
    type Answer = u64;
}

impl Save for Events {
    fn save(
        ctx: &In<'_, Self>,
        args: EventsArgs<'_>,
        to: &mut FrameBatch<'_>,
    ) -> Result<u64, CallError> {
        let at = ctx.archive.clock.now();

        let mut taken = 0;
        for event in msgpack::elements(args.events.0) {
            let mut parts = msgpack::elements(event).map(msgpack::as_bytes);
            let (Some(Some(tag)), Some(Some(data))) = (parts.next(), parts.next()) else {
                // The process is the daemon's own, so another form is a bug and not a sender's
                // mistake.
                return Err(CallError::BadArgs {
                    key: "events",
                    expected: "an array of [tag, data], both binary",
                });
            };
            // A sender cannot be told, so its message is counted and skipped.
            if !salt_event::is_event(tag, data) || !salt_event::is_clean_tag(tag) {
                ctx.archive.metrics.zmq_messages_malformed.add(1);
                continue;
            }

            // The policy counts and logs rejected events; senders treat dropped events as stored.
            if let Ok(Some(accepted)) = ctx.policy.event(tag, data, Source::Zeromq, at) {
                to.push(&accepted.entry(), accepted.fingerprints);
                taken += 1;
            }
        }

        ctx.archive.metrics.zmq_events.add(taken);
        Ok(taken)
    }
}

/// `zeromq_ignored`.
pub(crate) struct Ignored;

/// What the process did not pass on.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub(crate) struct IgnoredArgs {
    pub(crate) malformed: u64,
    pub(crate) too_large: u64,
    pub(crate) peers: u64,
    pub(crate) lost: u64,
}

impl Call for Ignored {
    const NAME: &'static str = "zeromq_ignored";
    const DOC: &'static str = "Count messages that the ZeroMQ PULL ignored";
    const RIGHT: Right = Right::Admin;
    type Scope = Changing<Archive>;
    type Args<'a> = IgnoredArgs;
    type Answer = ();
}

impl Run for Ignored {
    fn run(ctx: &In<'_, Self>, args: IgnoredArgs) -> Result<(), CallError> {
        let metrics = &ctx.metrics;
        metrics.zmq_messages_malformed.add(args.malformed);
        metrics.entries_rejected_too_large.add(args.too_large);
        metrics.zmq_connections_dropped.add(args.peers);
        metrics.zmq_events_lost.add(args.lost);
        Ok(())
    }
}
