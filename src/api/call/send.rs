//! `event_send`: fires an event onto Salt's bus.

use std::sync::Arc;

use salt_sls::Glob;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Archive, Call, Caller, Changing, In, Run};
use crate::base::clock::Micros;
use crate::base::limits::{FIRE_BYTES_MAX, LIST_BYTES_MAX, WIRE_FRAME_BYTES_MAX};
use crate::bus::fire::{FireError, FiredTag, Firer, TAG_EXPECTED, Target};
use crate::model::{EventFilter, Right};
use crate::wire::call::CallError;
use crate::wire::frame::Framing;
use crate::wire::msgpack::PackedMap;
use crate::wire::salt_codec::check_whole;
use crate::wire::salt_event;

answers! {
    /// An event that was fired.
    Fired {
        tag: String,
        #[serde(rename = "_stamp")]
        stamp: String,
        socket: String,
        framing: Framing,
    }
}

impl From<FireError> for CallError {
    fn from(error: FireError) -> Self {
        match error {
            FireError::Unreachable { .. } | FireError::Hung { .. } => {
                CallError::Unavailable(error.to_string())
            }
            FireError::BadTag => CallError::BadArgs {
                key: "tag",
                expected: TAG_EXPECTED,
            },
            _ => CallError::Refused(error.to_string()),
        }
    }
}

/// `event_send`.
pub(crate) struct Send;

#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
pub(crate) struct SendArgs<'a> {
    /// 1 to 1024 bytes without control characters
    pub(crate) tag: String,
    /// The event's data, a map as in all events of Salt; by default empty
    #[serde(borrow)]
    pub(crate) data: Option<PackedMap<'a>>,
    /// A configured bus, by its directory; needed if there are several
    pub(crate) bus: Option<String>,
}

impl Call for Send {
    const NAME: &'static str = "event_send";
    const DOC: &'static str = "Fire an event onto Salt's bus";
    const RIGHT: Right = Right::Admin;
    /// The data is checked against its own limit.
    const ARGS_BYTES_MAX: usize = WIRE_FRAME_BYTES_MAX;
    type Scope = Changing<Firing>;
    type Args<'a> = SendArgs<'a>;
    type Answer = Fired;
}

impl Run for Send {
    fn run(ctx: &In<'_, Self>, args: SendArgs<'_>) -> Result<Fired, CallError> {
        let data = args.data.map_or(&[0x80][..], |PackedMap(data)| data);
        if let Err(why) = check_whole(data) {
            // Every reader of the bus loads the data with that codec.
            return Err(CallError::Refused(format!(
                "Salt's codec cannot read the data: {why}"
            )));
        }

        ctx.fire(args.bus.as_deref(), &args.tag, data, |target| {
            check_caller(target, ctx.caller)
        })
    }
}

/// Fires events onto the buses that the daemon reads, with the stamp that Salt would give them.
/// Clones share them.
#[derive(Clone)]
pub(crate) struct Firing {
    pub(crate) firer: Arc<Firer>,
    pub(crate) archive: Archive,
}

impl Firing {
    /// Fires an event onto a bus, or onto the only one, if `check` allows the target. `data` is a map
    /// that Salt's codec can read.
    pub(crate) fn fire(
        &self,
        bus: Option<&str>,
        tag: &str,
        data: &[u8],
        check: impl FnOnce(&Target) -> Result<(), CallError>,
    ) -> Result<Fired, CallError> {
        let tag = FiredTag::new(tag)?;
        let target = self.firer.target(bus)?;
        // Before anything is sent or looked up on behalf of the caller.
        check(&target)?;

        let framing = self.firer.framing(&target)?;

        let stamp = stamp(self.archive.clock.now(), self.has_zone(framing));
        let data = salt_event::stamped(data, &stamp);

        if data.len() > FIRE_BYTES_MAX {
            return Err(CallError::TooLarge {
                len: data.len(),
                max: FIRE_BYTES_MAX,
            });
        }

        self.firer.fire(&target, framing, tag, &data)?;
        self.archive.metrics.events_fired.add(1);

        let socket = target.path.to_string_lossy().into_owned();
        Ok(Fired {
            tag: tag.as_str().to_owned(),
            stamp,
            socket,
            framing,
        })
    }

    /// Whether Salt's own stamps have a time zone, as in 3008. Derived from Salt's latest stored event;
    /// without one, from the framing, which is length-prefixed on 3006 only.
    fn has_zone(&self, framing: Framing) -> bool {
        let filter = EventFilter {
            tag: Some(Glob::new("salt/*")),
            ..EventFilter::default()
        };

        let latest = self
            .archive
            .store
            .events_before(&filter, self.archive.store.durable(), 1, LIST_BYTES_MAX)
            .unwrap_or_default();

        let stamp = latest
            .first()
            .and_then(|event| salt_event::stamp_of(&event.body).map(|s| s.contains('+')));
        // Only a bus of 3006 prefixes lengths, so one that is not such a bus is of a newer release.
        let by_framing = framing == Framing::Plain || !self.firer.reads(Framing::Len32);

        stamp.unwrap_or(by_framing)
    }
}

/// Rejects callers that Salt would not let fire: all but root and the owner of the socket.
fn check_caller(target: &Target, caller: &Caller) -> Result<(), CallError> {
    if caller
        .uid
        .is_some_and(|uid| uid == 0 || uid == target.owner)
    {
        return Ok(());
    }
    let owner = format!("root and the master's user (uid {})", target.owner);
    Err(FireError::NotAllowed {
        who: "the caller",
        path: target.path.clone(),
        owner,
    }
    .into())
}

/// A `_stamp` in the form of Python's `isoformat`, which omits a fraction of zero.
fn stamp(now: Micros, zone: bool) -> String {
    let iso = now.iso();
    let text = iso.trim_end_matches('Z');
    let text = text.strip_suffix(".000000").unwrap_or(text);
    format!("{text}{}", if zone { "+00:00" } else { "" })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stamps_have_the_form_of_python() {
        let at = Micros(1_763_700_237_899_729);
        assert_eq!(stamp(at, false), "2025-11-21T04:43:57.899729");
        assert_eq!(stamp(at, true), "2025-11-21T04:43:57.899729+00:00");
        assert_eq!(
            stamp(Micros(1_763_700_237_000_000), true),
            "2025-11-21T04:43:57+00:00"
        );
    }
}
