//! Encoders: events to items. An item is what a destination stores, accepts or rejects as one: a
//! line, a document, a measurement.

mod beacons;
mod json;
mod otlp;
mod states;
mod template;

use super::Kind;
use super::event::{Event, Unreadable};
use super::template::RenderError;

/// Encodes events; shared by the threads of a sink.
pub(crate) trait Encoder: Send + Sync + std::fmt::Debug {
    /// Adds the items of an event: any number, and none for an event without a value for the
    /// destination.
    fn encode(&self, event: &Event, items: &mut Vec<Vec<u8>>) -> Result<(), EncodeError>;

    /// From now on no value of an event has a line break in an item, see
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

pub(crate) const ENCODERS: &[Kind<BoxedEncoder>] = &[
    json::KIND,
    template::KIND,
    states::KIND,
    beacons::KIND,
    otlp::LOGS,
    otlp::METRICS,
];

/// The sections of docs/SINKS.md about the encoders.
pub fn reference() -> String {
    Kind::reference(ENCODERS)
}

/// The compact text of a JSON value.
fn bytes_of(value: &serde_json::Value) -> Vec<u8> {
    value.to_string().into_bytes()
}

#[cfg(test)]
mod tests {
    use serde_json::Value as Json;

    use super::*;
    use crate::config::read_yaml;

    pub(super) fn items(
        kind: &Kind<BoxedEncoder>,
        options: &Json,
        event: &Event,
    ) -> Result<Vec<String>, EncodeError> {
        let encoder = (kind.build)(options).unwrap();
        let mut items = Vec::new();
        encoder.encode(event, &mut items)?;
        Ok(items
            .into_iter()
            .map(|item| String::from_utf8(item).unwrap())
            .collect())
    }

    #[test]
    fn every_example_is_accepted_and_unknown_options_are_not() {
        for kind in ENCODERS {
            let options = read_yaml(kind.example).unwrap();
            assert!((kind.build)(&options).is_ok(), "{}", kind.name);
            let unknown = serde_json::json!({"unknown_option": 1});
            assert!((kind.build)(&unknown).is_err(), "{}", kind.name);
        }
    }
}
