//! What an encoder does.

use std::ops::Range;

use crate::engines::event::{Event, Unreadable};
use crate::engines::template::RenderError;
use crate::model::SeqNo;
use crate::store::{StoreError, TravellingPart};

/// Encodes events; shared by the threads of a sink.
pub(crate) trait Encoder: Send + Sync + std::fmt::Debug {
    /// Adds the items of an event: any number, and none for an event without a value for the
    /// destination.
    fn encode(&self, event: &Event, items: &mut Vec<Vec<u8>>) -> Result<(), EncodeError>;

    /// Packs the events of a part of the log itself, up to about this many bytes, for a destination that takes the blocks of the log. `None`
    /// for an encoder of events.
    fn pack(
        &self,
        _: Range<SeqNo>,
        _bytes_max: usize,
    ) -> Option<Result<TravellingPart, StoreError>> {
        None
    }

    /// From now on no value of an event contains a line break in an item, see
    /// [`crate::engines::framing`]. Encoders that write JSON have none.
    fn break_no_lines(&mut self) {}
}

/// An event that cannot be encoded; it becomes a dead letter.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum EncodeError {
    #[error(transparent)]
    Unreadable(#[from] Unreadable),
    #[error(transparent)]
    Template(#[from] RenderError),
}

pub(crate) type BoxedEncoder = Box<dyn Encoder>;

/// A JSON value as a compact string.
pub(super) fn bytes_of(value: &serde_json::Value) -> Vec<u8> {
    value.to_string().into_bytes()
}
