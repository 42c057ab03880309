//! Open events: matched by rules and not yet complete. There are a million of them after an hour
//! without a master.

use std::collections::BTreeMap;

use crate::model::SeqNo;

/// Low bits of a sequence number, which order the events of a block. Smaller blocks cost more
/// memory for sparse events, larger ones make removal slower.
const BLOCK_BITS: u32 = 10;

/// Open events, in order. An event costs 8 bytes in its block.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct OpenEvents {
    /// High bits of the sequence number to low bits, with the number of rules that matched.
    blocks: BTreeMap<u64, Vec<(u16, u32)>>,
    len: usize,
    /// Only of events with completed rules or started calls.
    progress: BTreeMap<SeqNo, EventProgress>,
}

const _: () = assert!(size_of::<(u16, u32)>() == 8);

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct EventProgress {
    /// Hashes of completed rules.
    pub(crate) done: Vec<u64>,
    /// Keys of calls that may have been made and must not be repeated; each once per start without
    /// withdrawal.
    pub(crate) started: Vec<u64>,
}

/// The key of an event's block, and of the event in it.
fn split(event: SeqNo) -> (u64, u16) {
    // The bits of a block always fit into 16, so the default is never used.
    let low = event.0 & ((1 << BLOCK_BITS) - 1);
    (
        event.0 >> BLOCK_BITS,
        u16::try_from(low).unwrap_or(u16::MAX),
    )
}

/// The key of an event's block.
pub(super) fn block_of(event: SeqNo) -> u64 {
    split(event).0
}

/// The event with this place in a block.
pub(super) fn joined(block: u64, low: u16) -> SeqNo {
    SeqNo(block << BLOCK_BITS | u64::from(low))
}

impl OpenEvents {
    /// The keys of all blocks.
    pub(super) fn blocks(&self) -> impl Iterator<Item = u64> + '_ {
        self.blocks.keys().copied()
    }

    /// The open events of a block: low bits, with the number of rules that matched.
    pub(super) fn block(&self, block: u64) -> Option<&[(u16, u32)]> {
        self.blocks.get(&block).map(Vec::as_slice)
    }

    /// Those from a number on.
    pub(super) fn from(&self, event: SeqNo) -> impl Iterator<Item = SeqNo> + '_ {
        let events = self.iter().map(|(event, _)| event).rev();
        events.take_while(move |open| *open >= event)
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Number of rules that matched an event; `None` if it is not open.
    pub(crate) fn of(&self, event: SeqNo) -> Option<u32> {
        let (key, low) = split(event);
        let block = self.blocks.get(&key)?;
        let at = block.binary_search_by_key(&low, |(low, _)| *low).ok()?;
        block.get(at).map(|(_, rule_count)| *rule_count)
    }

    pub(crate) fn contains(&self, event: SeqNo) -> bool {
        self.of(event).is_some()
    }

    /// Opens an event that `rule_count` rules matched.
    pub(crate) fn insert(&mut self, event: SeqNo, rule_count: u32) {
        let (key, low) = split(event);
        let block = self.blocks.entry(key).or_default();
        let at = block.partition_point(|(other, _)| *other < low);
        match block.get_mut(at) {
            Some(entry) if entry.0 == low => entry.1 = rule_count,
            _ => {
                block.insert(at, (low, rule_count));
                self.len += 1;
            }
        }
    }

    pub(crate) fn remove(&mut self, event: SeqNo) {
        let (key, low) = split(event);
        let Some(block) = self.blocks.get_mut(&key) else {
            return;
        };
        let Ok(at) = block.binary_search_by_key(&low, |(low, _)| *low) else {
            return;
        };

        block.remove(at);
        self.len -= 1;
        if block.is_empty() {
            self.blocks.remove(&key);
        }
        self.progress.remove(&event);
    }

    pub(crate) fn iter(&self) -> impl DoubleEndedIterator<Item = (SeqNo, u32)> + '_ {
        self.blocks.iter().flat_map(|(key, block)| {
            let events = block.iter();
            events.map(|(low, rule_count)| (joined(*key, *low), *rule_count))
        })
    }

    pub(crate) fn progress(&self, event: SeqNo) -> &EventProgress {
        static NONE: EventProgress = EventProgress {
            done: Vec::new(),
            started: Vec::new(),
        };
        self.progress.get(&event).unwrap_or(&NONE)
    }

    pub(crate) fn progress_mut(&mut self, event: SeqNo) -> &mut EventProgress {
        self.progress.entry(event).or_default()
    }

    /// The first event with started calls.
    pub(crate) fn first_started(&self) -> Option<SeqNo> {
        self.progress
            .iter()
            .find(|(_, progress)| !progress.started.is_empty())
            .map(|(event, _)| *event)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn open_events_behave_like_a_map(
            acts in proptest::collection::vec((0_u64..6, 0_u64..4, 0_u32..4), 1..200)
        ) {
            let (mut open, mut model) = (OpenEvents::default(), BTreeMap::new());
            for (block, low, rule_count) in acts {
                // On both sides of a block boundary.
                let event = SeqNo((block << BLOCK_BITS) + low + ((1 << BLOCK_BITS) - 2));
                if rule_count == 0 {
                    open.remove(event);
                    model.remove(&event);
                } else {
                    open.insert(event, rule_count);
                    model.insert(event, rule_count);
                }
                prop_assert_eq!(open.of(event), model.get(&event).copied());
                prop_assert_eq!(open.len(), model.len());
                prop_assert_eq!(open.iter().collect::<Vec<_>>(), model.clone().into_iter().collect::<Vec<_>>());
                prop_assert_eq!(open.iter().next_back(), model.clone().pop_last());
            }
            for event in model.keys() {
                open.remove(*event);
            }
            prop_assert_eq!(open, OpenEvents::default(), "no block is left behind");
        }
    }

    #[test]
    fn progress_is_removed_with_its_event() {
        let mut open = OpenEvents::default();
        for event in [3, 5, 7] {
            open.insert(SeqNo(event), 1);
        }
        open.progress_mut(SeqNo(3)).done.push(1);
        open.progress_mut(SeqNo(5)).started.push(2);
        assert_eq!(
            (open.first_started(), &open.progress(SeqNo(7)).started),
            (Some(SeqNo(5)), &Vec::new())
        );
        open.remove(SeqNo(5));
        open.insert(SeqNo(5), 1);
        assert_eq!(
            (open.first_started(), open.progress(SeqNo(5))),
            (None, &EventProgress::default())
        );
    }
}
