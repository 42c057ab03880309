//! Events with the stamp that Salt would give them, fired onto a bus that the daemon reads.

use std::path::PathBuf;
use std::sync::Arc;

use salt_sls::Glob;

use super::fire::{FireError, FiredTag, Firer, Target};
use crate::base::clock::{Clock, Micros};
use crate::base::limits::{FIRE_BYTES_MAX, LIST_BYTES_MAX};
use crate::base::metrics::Metrics;
use crate::model::EventFilter;
use crate::store::Store;
use crate::wire::frame::Framing;
use crate::wire::salt_event;

/// An event as it was fired.
#[derive(Debug)]
pub(crate) struct FiredEvent {
    pub(crate) stamp: String,
    pub(crate) socket: PathBuf,
    pub(crate) framing: Framing,
}

/// Fires events onto the buses that the daemon reads, with the stamp that Salt would give them.
/// Clones share them.
#[derive(Clone)]
pub(crate) struct Firing {
    pub(crate) firer: Arc<Firer>,
    /// The stored events show the form of Salt's stamps.
    pub(crate) store: Store,
    pub(crate) clock: Clock,
    pub(crate) metrics: Arc<Metrics>,
}

impl Firing {
    /// Fires an event onto a bus, or onto the only one, if `check` allows the target. `data` is a map
    /// that Salt's codec can read.
    pub(crate) fn fire(
        &self,
        bus: Option<&str>,
        tag: &str,
        data: &[u8],
        check: impl FnOnce(&Target) -> Result<(), FireError>,
    ) -> Result<FiredEvent, FireError> {
        // Checked first, because a bad tag should cost no access to a socket.
        let tag = FiredTag::new(tag)?;
        let target = self.firer.target(bus)?;
        // Before anything is sent or looked up on behalf of the caller.
        check(&target)?;

        let framing = self.firer.framing(&target)?;

        let stamp = stamp(self.clock.now(), self.has_zone(framing));
        let data = salt_event::stamped(data, &stamp);

        // Measured with the stamp, because Salt's limit is for what arrives on its bus.
        if data.len() > FIRE_BYTES_MAX {
            return Err(FireError::TooLarge {
                len: data.len(),
                max: FIRE_BYTES_MAX,
            });
        }

        self.firer.fire(&target, framing, tag, &data)?;
        // Only here is it known that the socket took the event. Salt sends no response.
        self.metrics.events_fired.add(1);

        Ok(FiredEvent {
            stamp,
            socket: target.path,
            framing,
        })
    }

    /// Whether Salt's stamps have a time zone, as in 3008. Derived from Salt's latest stored event;
    /// without one, from the framing, which is length-prefixed on 3006 only.
    fn has_zone(&self, framing: Framing) -> bool {
        let filter = EventFilter {
            tag: Some(Glob::new("salt/*")),
            ..EventFilter::default()
        };

        let latest = self
            .store
            .events_before(&filter, self.store.durable(), 1, LIST_BYTES_MAX)
            .unwrap_or_default();

        let stamp = latest
            .first()
            .and_then(|event| salt_event::stamp_of(&event.body).map(|s| s.contains('+')));
        // Only a bus of 3006 prefixes lengths. Any other bus is of a newer release.
        let by_framing = framing == Framing::Plain || !self.firer.reads(Framing::Len32);

        stamp.unwrap_or(by_framing)
    }
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
