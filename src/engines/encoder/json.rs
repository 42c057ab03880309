//! The encoder `json`: an event in its documented JSON form, see [`crate::engines::event`].

use serde::Deserialize;

use super::encode::{BoxedEncoder, EncodeError, Encoder};
use crate::engines::event::Event;
use crate::engines::kind::{Kind, options};

const DOC: &str = r#"One JSON object per event.

| key | value |
|---|---|
| `id` | identifies the event: store and sequence number; the same at each delivery |
| `seq` | sequence number |
| `time` | arrival, `2026-11-21T05:47:28.123456Z` |
| `tag` | tag |
| `minion`, `fun`, `jid` | minion id, function, job id; null without one |
| `master_id` | id of the master that fired the event: of a peer in a cluster, else of this host's master; null if unknown. `master_id` in the data, such as that of a syndic's master, has precedence |
| `data` | the event's data; values that JSON lacks have the form of `--output json` ([JSON form](WIRE.md#json-form)), such as `{"$bin": "..."}` |"#;

pub(super) const KIND: Kind<BoxedEncoder> = Kind {
    name: "json",
    doc: DOC,
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
