//! The segments of the store, by class.
//!
//! # Invariant
//!
//! The segments of a class are in the order of their numbers, oldest first, and each is listed
//! once. Only retention itself shows a segment again that it has hidden: a rewritten form never
//! takes the place of a dropped segment.
//!
//! A list is copied out, so a reader may still hold a segment that was dropped since. It finds no
//! entries in it.

use std::collections::BTreeSet;
use std::sync::Arc;

use parking_lot::RwLock;

use super::Segment;
use crate::class::Class;
use saltcellar_model::{JidKey, SeqNo};

/// One chain of segments per class.
#[derive(Debug)]
pub(crate) struct Segments {
    /// By class. Held for moments, one at a time. Lock order: no other lock is taken under it.
    lists: Vec<RwLock<Vec<Arc<Segment>>>>,
}

impl Segments {
    pub(crate) fn new(classes: usize) -> Self {
        Self {
            lists: (0..classes).map(|_| RwLock::default()).collect(),
        }
    }

    /// The segments of a class, oldest first.
    pub(crate) fn of(&self, class: Class) -> Vec<Arc<Segment>> {
        let list = self.lists.get(class.index());
        list.map_or(Vec::new(), |list| list.read().clone())
    }

    /// The segments of all classes, by class: each may contain entries of a job.
    pub(crate) fn all(&self) -> Vec<Arc<Segment>> {
        let copies = self.lists.iter().map(|list| list.read().clone());
        copies.flatten().collect()
    }

    /// Adds the newest segment of a class.
    pub(crate) fn add(&self, segment: Arc<Segment>) {
        if let Some(list) = self.lists.get(segment.class.index()) {
            list.write().push(segment);
        }
    }

    /// Replaces a segment by its rewritten form.
    pub(crate) fn replace(&self, old: &Arc<Segment>, new: Arc<Segment>) {
        if let Some(list) = self.lists.get(new.class.index()) {
            let mut list = list.write();
            // By identity: retention may have removed it, and then nothing is shown again.
            if let Some(place) = list.iter_mut().find(|segment| Arc::ptr_eq(segment, old)) {
                *place = new;
            }
        }
    }

    /// Removes a segment from the chain of its class. No reader finds it afterwards.
    pub(crate) fn hide(&self, segment: &Arc<Segment>) {
        if let Some(list) = self.lists.get(segment.class.index()) {
            list.write().retain(|other| !Arc::ptr_eq(other, segment));
        }
    }

    /// Undoes [`Segments::hide`].
    pub(crate) fn show(&self, segment: &Arc<Segment>) {
        if let Some(list) = self.lists.get(segment.class.index()) {
            let mut list = list.write();
            list.push(segment.clone());
            list.sort_unstable_by_key(|segment| segment.first_seq);
        }
    }

    /// The first number of the oldest segment.
    pub(crate) fn oldest(&self) -> SeqNo {
        let first = self.all().iter().map(|segment| segment.first_seq).min();
        first.unwrap_or(SeqNo::FIRST)
    }

    /// The number of the newest Thorium register.
    pub(crate) fn newest_register(&self) -> Option<SeqNo> {
        let segments = self.all();
        segments
            .iter()
            .filter_map(|segment| segment.register())
            .max()
    }

    /// Returns a test whether the entry with a sequence number is still in a segment.
    pub(crate) fn stored_seqs(&self) -> impl Fn(SeqNo) -> bool + use<> {
        // Segments without jobs have no rows, whatever their numbers are.
        let spans: BTreeSet<(SeqNo, SeqNo)> = self
            .all()
            .iter()
            .filter(|segment| segment.metadata().is_none_or(|metadata| metadata.jobs > 0))
            .map(|segment| {
                (
                    segment.first_seq,
                    segment.totals().last_seq.max(segment.first_seq),
                )
            })
            .collect();
        // Segments of different classes overlap, so all that start at or before the number are
        // tested.
        move |seq| {
            spans
                .range(..=(seq, SeqNo(u64::MAX)))
                .rev()
                .any(|&(_, last)| seq <= last)
        }
    }

    /// Finished segments that may contain jobs older than `than`. Active segments are excluded:
    /// readers consult their in-memory index directly.
    pub(crate) fn with_older_jobs(&self, than: JidKey) -> Vec<Arc<Segment>> {
        let mut segments = self.all();
        // Unknown metadata may hold anything.
        segments.retain(|segment| {
            segment.is_finished()
                && segment
                    .metadata()
                    .is_none_or(|metadata| metadata.may_hold_older(than))
        });
        segments
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::path::Path;

    use super::*;
    use crate::format::make_dir;
    use crate::log::frame::LogId;
    use crate::segment::create;
    use crate::vfs::{Disk, Fs};
    use saltcellar_base::clock::Micros;

    /// A segment without entries, in a separate directory.
    pub(crate) fn segment(dir: &Path, class: Class, first_seq: u64) -> Arc<Segment> {
        let fs: Arc<dyn Fs> = Arc::new(Disk);
        let name: Arc<str> = format!("class-{}", class.index()).into();
        let id = LogId {
            store_id: 7,
            first_seq: SeqNo(first_seq),
        };
        make_dir(&*fs, &dir.join("log")).unwrap();
        make_dir(&*fs, &crate::format::class_dir(dir, &name)).unwrap();
        let place = create(&*fs, dir, &name, id, Micros(1)).unwrap();
        Arc::new(Segment::open(&fs, &place, (class, name), id).unwrap())
    }

    /// As [`segment`], with its index on disk.
    pub(crate) fn sealed_segment(dir: &Path, class: Class, first_seq: u64) -> Arc<Segment> {
        let segment = segment(dir, class, first_seq);
        let written = segment.write_index(&segment.memory().unwrap()).unwrap();
        segment.set_sealed(written.metadata);
        segment
    }

    fn numbers(segments: &[Arc<Segment>]) -> Vec<u64> {
        segments.iter().map(|segment| segment.first_seq.0).collect()
    }

    #[test]
    fn a_segment_that_is_shown_again_is_at_its_place() {
        let dir = tempfile::tempdir().unwrap();
        let segments = Segments::new(2);
        assert_eq!(segments.oldest(), SeqNo::FIRST);
        for first_seq in [10, 20, 30] {
            segments.add(segment(dir.path(), Class::JOBS, first_seq));
        }
        segments.add(segment(dir.path(), Class::EVENTS, 5));

        let middle = segments.of(Class::JOBS).swap_remove(1);
        segments.hide(&middle);
        assert_eq!(numbers(&segments.of(Class::JOBS)), [10, 30]);
        segments.show(&middle);
        assert_eq!(numbers(&segments.of(Class::JOBS)), [10, 20, 30]);

        assert_eq!(segments.all().len(), 4);
        assert_eq!(segments.oldest(), SeqNo(5));
    }

    #[test]
    fn a_rewritten_form_takes_the_place_of_a_segment_only_while_that_is_listed() {
        let dir = tempfile::tempdir().unwrap();
        let segments = Segments::new(2);
        let old = segment(dir.path(), Class::JOBS, 10);
        segments.add(old.clone());
        segments.add(segment(dir.path(), Class::JOBS, 20));

        let new = segment(dir.path(), Class::JOBS, 10);
        segments.replace(&old, new.clone());
        let listed = segments.of(Class::JOBS);
        assert_eq!(numbers(&listed), [10, 20]);
        assert!(Arc::ptr_eq(&listed[0], &new));

        // Retention drops it during another rewrite.
        segments.hide(&new);
        segments.replace(&new, segment(dir.path(), Class::JOBS, 10));
        assert_eq!(numbers(&segments.of(Class::JOBS)), [20]);
    }

    #[test]
    fn a_number_is_stored_while_a_segment_may_hold_it() {
        let dir = tempfile::tempdir().unwrap();
        let segments = Segments::new(2);
        let only = segment(dir.path(), Class::EVENTS, 10);
        segments.add(only.clone());

        let is_stored = segments.stored_seqs();
        assert!(is_stored(SeqNo(10)) && !is_stored(SeqNo(9)) && !is_stored(SeqNo(11)));
        segments.hide(&only);
        assert!(
            is_stored(SeqNo(10)),
            "the segments of the moment of the question"
        );
        assert!(!segments.stored_seqs()(SeqNo(10)));
    }
}
