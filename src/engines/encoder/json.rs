//! The encoder `json`: an event in its documented JSON form, see [`crate::engines::event`].

use serde::Deserialize;

use super::{BoxedEncoder, EncodeError, Encoder};
use crate::engines::event::Event;
use crate::engines::kind::{Kind, options};

pub(super) const KIND: Kind<BoxedEncoder> = Kind {
    name: "json",
    doc: "One JSON object per event.",
    example: "{}",
    build: |given| Ok(Box::new(options::<JsonEncoder>(given)?)),
};

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct JsonEncoder {}

impl Encoder for JsonEncoder {
    fn encode(&self, event: &Event, items: &mut Vec<Vec<u8>>) -> Result<(), EncodeError> {
        items.push(event.to_text()?);
        Ok(())
    }
}
