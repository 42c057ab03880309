//! Gap records: periods in which bus events may have been missed.
//!
//! A gap is an entry of the kind [`Kind::Gap`] in the log, before the first event after it. Readers of
//! events see it as an event with the tag `saltcellar/gap/<cause>` and this data:
//!
//! ```text
//! bus      the publisher's socket
//! cause    as in the tag
//! begin    everything up to here is stored; nil if unknown
//! end      reading continues here
//! seconds  its length; negative if the clock was set back meanwhile
//! lost     the number of lost events; nil if unknown
//! ```
//!
//! Timestamps are strings in UTC, to the microsecond. A gap can be longer than the actual loss,
//! never shorter: it includes events that were read but not stored when a daemon was killed.

use std::path::Path;

use crate::base::clock::Micros;
use crate::base::limits::BUS_RESTART_MAX;
use crate::model::{Batch, Entry, Flags, GAP_TAG, Kind, Source};
use crate::wire::msgpack::Writer;

/// Why events may have been missed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Cause {
    /// The daemon was not running.
    StartUp,
    /// The connection ended: the master stopped, or disconnected this subscriber.
    Disconnect,
    /// Malformed data ended the connection.
    Framing,
    /// Memory and spill were full.
    Overflow,
    /// Records of the spill were damaged or missing.
    Spill,
    /// The store rejected these entries while it accepted others.
    Refused,
}

impl Cause {
    /// The name in tag and data.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::StartUp => "start-up",
            Self::Disconnect => "disconnect",
            Self::Framing => "framing",
            Self::Overflow => "overflow",
            Self::Spill => "spill",
            Self::Refused => "refused",
        }
    }
}

/// A period in which events may have been missed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Gap {
    /// Everything before is stored; `None` if unknown.
    pub(crate) begin: Option<Micros>,
    /// Reading continues here.
    pub(crate) end: Micros,
    pub(crate) cause: Cause,
    /// Events lost, if known.
    pub(crate) lost: Option<u64>,
}

impl Gap {
    pub(crate) fn batch(&self, bus: &Path) -> Batch {
        let tag = format!("{GAP_TAG}/{}", self.cause.name());
        let body = self.body(bus);
        Batch::of(&entry(tag.as_bytes(), &body, self.end))
    }

    /// Whether it is as short as a restart of the daemon or of the master, in which the master fires little or nothing.
    pub(crate) fn is_of_a_restart(&self) -> bool {
        let seconds = |begin: Micros| self.end.0.saturating_sub(begin.0) / 1_000_000;
        matches!(self.cause, Cause::StartUp | Cause::Disconnect)
            && self.begin.is_some_and(|begin| {
                u64::try_from(seconds(begin)).is_ok_and(|gap| gap <= BUS_RESTART_MAX.as_secs())
            })
    }

    fn body(&self, bus: &Path) -> Vec<u8> {
        let mut w = Writer::new();
        w.map(6)
            .str("bus")
            .str(&bus.to_string_lossy())
            .str("cause")
            .str(self.cause.name())
            .str("begin");

        match self.begin {
            Some(begin) => w.str(&begin.iso()),
            None => w.nil(),
        };

        w.str("end").str(&self.end.iso()).str("seconds");
        match self.begin {
            #[expect(
                clippy::cast_precision_loss,
                reason = "for people; the instants are exact"
            )]
            Some(begin) => w.float((self.end.0.saturating_sub(begin.0)) as f64 / 1e6),
            None => w.nil(),
        };

        w.str("lost");
        match self.lost {
            Some(lost) => w.uint(lost),
            None => w.nil(),
        };

        w.into_bytes()
    }
}

/// The entry of a gap, new or read back.
pub(super) fn entry<'a>(tag: &'a [u8], body: &'a [u8], at: Micros) -> Entry<'a> {
    Entry {
        flags: Flags::ON_BUS,
        tag,
        ..Entry::new(Kind::Gap, Source::Bus, at, body)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::msgpack::{as_text, get};

    #[test]
    fn only_a_short_gap_of_a_restart_is_expected() {
        let is_expected = |cause, begin: Option<i64>, seconds: i64| {
            Gap {
                begin: begin.map(Micros),
                end: Micros(seconds * 1_000_000),
                cause,
                lost: None,
            }
            .is_of_a_restart()
        };
        assert!(is_expected(Cause::StartUp, Some(0), 5));
        assert!(is_expected(Cause::Disconnect, Some(0), 60));
        assert!(!is_expected(Cause::StartUp, Some(0), 61));
        assert!(!is_expected(Cause::StartUp, None, 5), "unknown");
        assert!(
            !is_expected(Cause::StartUp, Some(9_000_000), 5),
            "a clock that was set back"
        );
        assert!(!is_expected(Cause::Overflow, Some(0), 5));
    }

    #[test]
    fn a_gap_record_contains_begin_end_and_cause() {
        let gap = Gap {
            begin: Some(Micros(1_000_000)),
            end: Micros(3_500_000),
            cause: Cause::Overflow,
            lost: Some(7),
        };
        let batch = gap.batch(Path::new("/run/x.ipc"));
        let entry = batch.entry(0).unwrap();
        assert_eq!(
            (entry.kind, entry.tag, entry.at),
            (Kind::Gap, &b"saltcellar/gap/overflow"[..], gap.end)
        );
        let value = rmpv::decode::read_value(&mut &entry.body[..]).unwrap();
        assert_eq!(value["seconds"], rmpv::Value::F64(2.5));
        assert_eq!(value["lost"], rmpv::Value::from(7));
        assert_eq!(
            get(entry.body, "begin").and_then(as_text),
            Some("1970-01-01T00:00:01.000000Z")
        );
        let unknown = Gap {
            begin: None,
            lost: None,
            ..gap
        }
        .batch(Path::new("/x"));
        let value = rmpv::decode::read_value(&mut unknown.entry(0).unwrap().body).unwrap();
        assert!(value["begin"].is_nil() && value["seconds"].is_nil() && value["lost"].is_nil());
    }
}
