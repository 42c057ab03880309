//! The sink `cluster`, which publishes this master's history to the other masters: a sink as any other, with an encoder and a transport that no
//! configuration can name.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use super::encoder::{EncodeError, Encoder};
use super::event::Event;
use super::settings::{RetrySettings, SinkOrder, SinkSettings};
use super::transport::Destination;
use super::transport::cluster::{Outbox, OutboxParts, is_of_question};
use crate::base::clock::Micros;
use crate::cluster::OUTBOX;
use crate::model::SeqNo;
use crate::store::{Start, Store, StoreError, TravellingPart};
use crate::wire::filter::{Entries, EntryFilter};

/// The settings of the sink that publishes this master's history.
pub(crate) fn outbox(parts: OutboxParts, now: Micros) -> SinkSettings {
    let (window, entries) = (parts.cluster.window, parts.cluster.shared());
    let store = parts.store.clone();
    let source = serde_json::json!({ "transport": { "cluster": parts.peers.own.as_str() } });
    let destination: Arc<dyn Destination> = Arc::new(Outbox(parts));

    SinkSettings {
        name: OUTBOX.to_owned(),
        filter: EntryFilter {
            entries,
            ..EntryFilter::default()
        },
        // What is older, the stream would not keep.
        start: Start::Time(now.before(window)),
        encoder: ("entry", Arc::new(Whole { entries, store })),
        limits: destination.limits(),
        transport: (OUTBOX, destination),
        // One lane, because the stream keeps the entries of an origin in their order.
        concurrency: 1,
        order: SinkOrder::Minion,
        retry: RetrySettings {
            max: Duration::from_secs(10),
            ..RetrySettings::default()
        },
        redact: Vec::new(),
        rate: None,
        source,
    }
}

/// The encoder of entries that are taken whole: blocks of them, or one item without bytes of its own where the sink reads events.
struct Whole {
    entries: Entries,
    store: Store,
}

impl std::fmt::Debug for Whole {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Whole").finish_non_exhaustive()
    }
}

impl Encoder for Whole {
    fn encode(&self, _: &Event, items: &mut Vec<Vec<u8>>) -> Result<(), EncodeError> {
        items.push(Vec::new());
        Ok(())
    }

    fn pack(
        &self,
        range: Range<SeqNo>,
        bytes_max: usize,
    ) -> Option<Result<TravellingPart, StoreError>> {
        let is_wanted = |jid: &str| !is_of_question(&self.store, jid);
        Some(
            self.store
                .travelling(self.entries, range, bytes_max, is_wanted),
        )
    }
}
