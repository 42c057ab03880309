//! Open events: those that rules took, until all of them are through. A million are open after an hour without a master.

use std::collections::BTreeMap;

use crate::model::SeqNo;

/// Lower bits of a sequence number, by which events of a block are sorted. Smaller blocks cost more for events that are far apart, larger
/// ones when an event is removed.
const BLOCK_BITS: u32 = 10;

/// Open events, in order. An event costs 8 bytes beside its block.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct OpenEvents {
    /// By the upper bits of the number, then the lower ones: how many rules took an event.
    blocks: BTreeMap<u64, Vec<(u16, u32)>>,
    len: usize,
    /// Of events of which something was done: few.
    progress: BTreeMap<SeqNo, Progress>,
}

const _: () = assert!(size_of::<(u16, u32)>() == 8);

/// What was done about an open event.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Progress {
    /// Hashes of the rules that are through.
    pub done: Vec<u64>,
    /// Calls that may have been made already and must not be made twice; one as often as it was begun and not taken back.
    pub begun: Vec<u64>,
}

/// The key of a block, and of an event in it.
fn split(event: SeqNo) -> (u64, u16) {
    let low = event.0 & ((1 << BLOCK_BITS) - 1);
    (event.0 >> BLOCK_BITS, u16::try_from(low).unwrap_or(u16::MAX))
}

impl OpenEvents {
    /// How many events.
    pub fn len(&self) -> usize {
        self.len
    }

    /// None?
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// How many rules took an event, if it is open.
    pub fn of(&self, event: SeqNo) -> Option<u32> {
        let (key, low) = split(event);
        let block = self.blocks.get(&key)?;
        let at = block.binary_search_by_key(&low, |(low, _)| *low).ok()?;
        block.get(at).map(|(_, of)| *of)
    }

    /// Is it open?
    pub fn contains(&self, event: SeqNo) -> bool {
        self.of(event).is_some()
    }

    /// So many rules took an event.
    pub fn insert(&mut self, event: SeqNo, of: u32) {
        let (key, low) = split(event);
        let block = self.blocks.entry(key).or_default();
        let at = block.partition_point(|(other, _)| *other < low);
        match block.get_mut(at) {
            Some(entry) if entry.0 == low => entry.1 = of,
            _ => {
                block.insert(at, (low, of));
                self.len += 1;
            }
        }
    }

    /// An event is open no longer.
    pub fn remove(&mut self, event: SeqNo) {
        let (key, low) = split(event);
        let Some(block) = self.blocks.get_mut(&key) else { return };
        let Ok(at) = block.binary_search_by_key(&low, |(low, _)| *low) else { return };
        block.remove(at);
        self.len -= 1;
        if block.is_empty() {
            self.blocks.remove(&key);
        }
        self.progress.remove(&event);
    }

    /// The events and how many rules took each.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = (SeqNo, u32)> + '_ {
        self.blocks.iter().flat_map(|(key, block)| {
            let first = key << BLOCK_BITS;
            block.iter().map(move |(low, of)| (SeqNo(first | u64::from(*low)), *of))
        })
    }

    /// What was done about an event.
    pub fn progress(&self, event: SeqNo) -> &Progress {
        static NONE: Progress = Progress { done: Vec::new(), begun: Vec::new() };
        self.progress.get(&event).unwrap_or(&NONE)
    }

    /// What was done about an open event, to be changed.
    pub fn progress_mut(&mut self, event: SeqNo) -> &mut Progress {
        self.progress.entry(event).or_default()
    }

    /// The first event with calls that may have been made.
    pub fn first_begun(&self) -> Option<SeqNo> {
        self.progress.iter().find(|(_, progress)| !progress.begun.is_empty()).map(|(event, _)| *event)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn events_are_as_in_a_map_however_far_apart(
            acts in proptest::collection::vec((0_u64..6, 0_u64..4, 0_u32..4), 1..200)
        ) {
            let (mut open, mut model) = (OpenEvents::default(), BTreeMap::new());
            for (block, low, of) in acts {
                // Neighbours on both sides of the end of a block.
                let event = SeqNo((block << BLOCK_BITS) + low + ((1 << BLOCK_BITS) - 2));
                if of == 0 {
                    open.remove(event);
                    model.remove(&event);
                } else {
                    open.insert(event, of);
                    model.insert(event, of);
                }
                prop_assert_eq!(open.of(event), model.get(&event).copied());
                prop_assert_eq!((open.len(), open.is_empty()), (model.len(), model.is_empty()));
                prop_assert_eq!(open.iter().collect::<Vec<_>>(), model.clone().into_iter().collect::<Vec<_>>());
                prop_assert_eq!(open.iter().next_back(), model.clone().pop_last());
            }
            model.keys().for_each(|event| open.remove(*event));
            prop_assert_eq!(open, OpenEvents::default(), "no block is left behind");
        }
    }

    #[test]
    fn progress_goes_with_its_event() {
        let mut open = OpenEvents::default();
        for event in [3, 5, 7] {
            open.insert(SeqNo(event), 1);
        }
        open.progress_mut(SeqNo(3)).done.push(1);
        open.progress_mut(SeqNo(5)).begun.push(2);
        assert_eq!((open.first_begun(), &open.progress(SeqNo(7)).begun), (Some(SeqNo(5)), &Vec::new()));
        open.remove(SeqNo(5));
        open.insert(SeqNo(5), 1);
        assert_eq!((open.first_begun(), open.progress(SeqNo(5))), (None, &Progress::default()));
    }
}
