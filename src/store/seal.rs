//! Sealing: a finished segment's index moves from memory to sled, beside its log, whose small blocks are merged.
//!
//! The thread takes finished segments in order. For each it writes `index/`, applies the segment to the state
//! database, and only then lets go of the index in memory. A crash at any point leaves a segment that the
//! next start seals again. Indexes that turned out damaged are made again in memory by readers, and come here too.

use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use super::error::StoreError;
use super::index::MemIndex;
use super::segment::{Index, Segment};
use super::{Shared, rewrite};
use crate::channel::{Next, Rx};
use crate::limits::SEAL_RETRY;

/// The sealer's thread.
pub struct Sealer {
    pub(super) shared: Arc<Shared>,
    pub(super) seals: Rx<Arc<Segment>>,
    /// Segments that could not be sealed yet, oldest first.
    pub(super) backlog: Vec<Arc<Segment>>,
}

impl Sealer {
    /// Works until the committer is gone and everything finished is sealed.
    pub fn run(mut self) {
        let mut tried = Instant::now();
        loop {
            let came = match self.seals.next(Duration::from_secs(1)) {
                Next::Message(segment) => {
                    self.backlog.push(segment);
                    true
                }
                Next::Idle => false,
                Next::Closed => break,
            };
            let known = self.backlog.len() - usize::from(came);
            self.backlog.extend(self.shared.take_damaged());
            // Those that failed before wait for their time, unless something new comes.
            if self.backlog.is_empty() || (self.backlog.len() == known && tried.elapsed() < SEAL_RETRY) {
                continue;
            }
            tried = Instant::now();
            self.try_all();
        }
        self.backlog.extend(self.shared.take_damaged());
        self.try_all();
        self.shared.retention.stop();
        for segment in self.backlog {
            tracing::warn!(dir = %segment.dir().display(), "left for the next start to seal");
        }
    }

    fn try_all(&mut self) {
        let shared = &self.shared;
        self.backlog.retain(|segment| match seal(shared, segment) {
            Ok(()) => false,
            // The index stays in memory and goes on answering until it can be written.
            Err(error) => {
                tracing::error!(dir = %segment.dir().display(), %error, "could not seal a segment; trying again");
                shared.metrics.seals_failed.add(1);
                true
            }
        });
    }
}

/// Seals a finished segment whose index lies in memory.
pub(super) fn seal(shared: &Shared, segment: &Arc<Segment>) -> Result<(), StoreError> {
    let mut gone = segment.work.lock().unwrap_or_else(PoisonError::into_inner);
    if *gone {
        return Ok(());
    }
    // Reading: the segment is finished, so its index does not change while readers go on.
    if let Index::Memory(index) = &*segment.index() {
        if rewritten(shared, segment, index)? {
            // Another one stands for it now; whoever still has this one leaves it alone.
            *gone = true;
            shared.metrics.segments_sealed.add(1);
            shared.metrics.segments_rewritten.add(1);
            return Ok(());
        }
        let facts = segment.write_index(index)?;
        apply(shared, segment, &facts, index, || {
            segment.set_facts(facts.clone());
            Ok(())
        })?;
    } else {
        return Ok(());
    }
    *segment.index_mut() = Index::Closed;
    shared.metrics.segments_sealed.add(1);
    Ok(())
}

/// Merges the small blocks of a segment, if there are enough of them. Readers that hold the old segment go on reading its log
/// by the open file.
fn rewritten(shared: &Shared, segment: &Arc<Segment>, index: &MemIndex) -> Result<bool, StoreError> {
    let Some(groups) = rewrite::plan(segment, index)? else { return Ok(false) };
    let Some(facts) = rewrite::write(segment, index, &groups)? else { return Ok(false) };
    apply(shared, segment, &facts, index, || {
        rewrite::swap(&*shared.medium, segment.dir())?;
        let class = (segment.class, segment.class_name.clone());
        let new = Segment::open(&shared.medium, &shared.dir, class, segment.log().id(), Index::Closed)?;
        new.set_facts(facts.clone());
        shared.replace_segment(segment, Arc::new(new));
        Ok(())
    })?;
    Ok(true)
}

/// Tells the state database of a segment, then lets `show` make it one that is sealed. A reader who finds the state database
/// damaged in between makes it again from those that are, so it is told once more.
fn apply(
    shared: &Shared,
    segment: &Segment,
    facts: &super::index::Facts,
    index: &MemIndex,
    show: impl FnOnce() -> Result<(), StoreError>,
) -> Result<(), StoreError> {
    let latest = index.latest();
    let tell =
        || shared.with_state(|state| state.apply(&segment.class_name, segment.first_seq, facts, &latest));
    let state = shared.state();
    tell()?;
    show()?;
    if Arc::ptr_eq(&state, &shared.state()) { Ok(()) } else { tell() }
}
