//! Encoders: events to items. An item is what a destination stores, accepts or rejects as one: a
//! line, a document, a measurement.

mod beacons;
pub(super) mod encode;
mod json;
mod otlp;
mod states;
mod template;

pub(crate) use self::encode::{BoxedEncoder, EncodeError, Encoder};
use super::Kind;

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

#[cfg(test)]
mod tests {
    use serde_json::Value as Json;

    use super::encode::EncodeError;
    use super::*;
    use crate::config::read_yaml;
    use crate::engines::event::Event;

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
