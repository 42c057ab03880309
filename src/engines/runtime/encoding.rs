//! Stored entries to encoded events.

use std::ops::Range;
use std::sync::Arc;

use crate::engines::encoder::Encoder;
use crate::engines::event::{Event, PackedBlock};
use crate::engines::framing::Framing;
use crate::engines::settings::SinkSettings;
use crate::engines::transport::Item;
use crate::model::SeqNo;
use crate::policy::redact::Redactor;
use crate::store::log::exchange::Travelling;
use crate::store::{StoreError, StoredEntry};

/// How a sink makes items of events. Sinks with an equal [`SinkSettings::encoding_key`] have equal
/// encodings.
pub(super) struct Encoding {
    encoder: Arc<dyn Encoder>,
    framing: Framing,
    redactor: Option<Redactor>,
    master_id: Arc<str>,
}

pub(super) struct EncodedEvent {
    pub(super) event: Arc<Event>,
    /// Its items, or why it cannot be encoded.
    pub(super) items: Result<Vec<Item>, String>,
    /// Whether the sink's own redaction changed it.
    pub(super) is_redacted: bool,
    /// The size of its tag and data as stored, or of those in its block, which counts for the limits of a batch.
    pub(super) stored_bytes: usize,
}

impl Encoding {
    pub(super) fn new(settings: &SinkSettings, master_id: &Arc<str>) -> Self {
        Self {
            encoder: settings.encoder.1.clone(),
            framing: settings.framing(),
            redactor: (!settings.redact.is_empty()).then(|| Redactor::new(&settings.redact)),
            master_id: master_id.clone(),
        }
    }

    /// Packs a part of the log if the encoder takes no single events: its blocks, and the position after them.
    pub(super) fn pack(
        &self,
        range: Range<SeqNo>,
        bytes_max: usize,
    ) -> Option<Result<(Vec<EncodedEvent>, SeqNo), StoreError>> {
        let packed = self.encoder.pack(range, bytes_max)?;
        Some(packed.map(|part| {
            (
                part.blocks.into_iter().map(encoded_block).collect(),
                part.next,
            )
        }))
    }

    /// Redacts and encodes a stored event with this id.
    pub(super) fn of_entry(&self, mut entry: StoredEntry, id: String) -> EncodedEvent {
        let stored_bytes = entry.tag.len() + entry.body.len();

        let mut is_redacted = false;
        if let Some(redactor) = &self.redactor {
            let redacted = redactor.replaced(&entry.as_entry());
            is_redacted = !redacted.is_nothing();
            entry.replace(redacted);
        }

        EncodedEvent {
            is_redacted,
            stored_bytes,
            ..self.of_event(Event::new(entry, id, &self.master_id))
        }
    }

    /// Encodes an event that is redacted already.
    pub(super) fn of_event(&self, event: Event) -> EncodedEvent {
        let event = Arc::new(event);
        let mut encoded = Vec::new();
        let items = match self.encoder.encode(&event, &mut encoded) {
            Ok(()) => Ok(Item::of(&event, &mut encoded, self.framing).collect()),
            Err(error) => Err(error.to_string()),
        };

        EncodedEvent {
            stored_bytes: event.tag.len() + event.body.len(),
            event,
            items,
            is_redacted: false,
        }
    }
}

fn encoded_block(block: Travelling) -> EncodedEvent {
    let Travelling {
        first,
        last,
        last_at,
        entries,
        raw_bytes,
        bytes,
    } = block;
    let packed = PackedBlock {
        first,
        entries,
        raw_bytes,
    };
    let event = Arc::new(Event::of_block(packed, last, last_at));

    EncodedEvent {
        items: Ok(vec![Item::new(event.clone(), None, bytes)]),
        event,
        is_redacted: false,
        stored_bytes: usize::try_from(raw_bytes).unwrap_or(usize::MAX),
    }
}

impl EncodedEvent {
    /// Its memory in bytes, about.
    pub(super) fn memory(&self) -> usize {
        // The structs, and what their allocations cost.
        let fixed = 600;
        let items = self.items.as_deref().unwrap_or_default();
        let items: usize = items.iter().map(|item| item.bytes.len() + 100).sum();
        fixed + self.stored_bytes + items
    }
}
