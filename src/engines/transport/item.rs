//! What a destination accepts or rejects as one.

use std::ops::Deref;
use std::sync::Arc;

use crate::engines::event::Event;
use crate::engines::framing::Framing;
use crate::model::SeqNo;

/// A unit that a destination accepts or rejects. A clone is the same item: sinks share it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Item(Arc<Content>);

#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Content {
    pub(crate) event: Arc<Event>,
    /// The index among the items of the event; `None` if it is the only one.
    pub(crate) part: Option<usize>,
    pub(crate) bytes: Vec<u8>,
}

impl Deref for Item {
    type Target = Content;

    fn deref(&self) -> &Content {
        &self.0
    }
}

impl Item {
    pub(crate) fn new(event: Arc<Event>, part: Option<usize>, bytes: Vec<u8>) -> Self {
        Self(Arc::new(Content { event, part, bytes }))
    }

    pub(crate) fn seq(&self) -> SeqNo {
        self.event.seq
    }

    /// Identifies the item: the event's id, followed by `:<part>` if the event has several items.
    pub(crate) fn id(&self) -> String {
        self.part.map_or_else(
            || self.event.id.clone(),
            |part| format!("{}:{part}", self.event.id),
        )
    }

    pub(crate) fn of(
        event: &Arc<Event>,
        encoded: &mut Vec<Vec<u8>>,
        framing: Framing,
    ) -> impl Iterator<Item = Self> {
        // The only item of an event contains the event's own id, so a sink's destination sees the same
        // id as other readers.
        let is_only = encoded.len() == 1;
        let item = move |(n, bytes)| {
            Self::new(event.clone(), (!is_only).then_some(n), framing.item(bytes))
        };
        encoded.drain(..).enumerate().map(item)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engines::event::tests::event;

    #[test]
    fn the_items_of_an_event_have_distinct_ids() {
        let event = Arc::new(event(3, "t", "m", serde_json::json!({})));
        let ids = |count: usize| {
            Item::of(&event, &mut vec![Vec::new(); count], Framing::Message)
                .map(|item| item.id())
                .collect::<Vec<_>>()
        };
        assert_eq!(ids(1), ["store:3"]);
        assert_eq!(ids(2), ["store:3:0", "store:3:1"]);
    }
}
