//! Walking over events backwards, past every block in which nothing can pass.
//!
//! A walk asks the index of a segment once which of its blocks are worth reading: by arrival, by the shapes of their tags, by
//! their minions. Of those it reads the heads, asks of each distinct shape what the pattern wants ([`super::pattern`]), and
//! builds the tags of entries alone that can match. Bodies are read for what has passed.

use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;

use super::Shared;
use super::block::{BlockView, FREE_JID, Rows};
use super::builder::distinct;
use super::class::Class;
use super::error::StoreError;
use super::index::summary::UNLISTED;
use super::index::{Blocks, Shapes};
use super::pattern::{Asks, Need, asks};
use super::read::{StoredEntry, stored};
use super::segment::Segment;
use crate::clock::Micros;
use crate::model::{EventFilter, JidSpeller, SeqNo};

/// A search: what is looked for, and what has been found out about shapes.
pub(super) struct Search<'a> {
    filter: &'a EventFilter,
    before: SeqNo,
    shapes: HashMap<Vec<u8>, Rc<Asks>>,
}

/// What is known of the tags of one shape in a block.
enum Verdict {
    /// None matches.
    Never,
    /// Each matches.
    Always,
    /// Those match perhaps that pass all of these.
    Perhaps(Vec<Passing>),
}

/// Which minions and which jids of a block make a literal of the pattern possible.
struct Passing {
    minions: Vec<bool>,
    jids: Vec<bool>,
}

impl Passing {
    /// Do the minion and the jid of an entry, as in its columns, make it possible?
    fn allows(&self, minion: i64, jid: i64) -> bool {
        let marked = |marks: &[bool], at: i64| {
            usize::try_from(at - 1).is_ok_and(|at| marks.get(at).copied().unwrap_or(false))
        };
        marked(&self.minions, minion) || marked(&self.jids, jid)
    }
}

impl<'a> Search<'a> {
    pub(super) fn new(filter: &'a EventFilter, before: SeqNo) -> Self {
        Self { filter, before, shapes: HashMap::new() }
    }

    /// What the pattern asks of a shape.
    fn asks(&mut self, shape: &[u8]) -> Rc<Asks> {
        if let Some(known) = self.shapes.get(shape) {
            return known.clone();
        }
        let asks = Rc::new(self.filter.tag.as_ref().map_or(Asks::Nothing, |glob| asks(glob, shape)));
        // A store whose every tag is a shape of its own must not fill the memory.
        if self.shapes.len() < crate::limits::SHAPES_MAX as usize {
            self.shapes.insert(shape.to_vec(), asks.clone());
        }
        asks
    }

    /// The blocks of a segment that are worth reading, ascending.
    fn worth(
        &mut self,
        blocks: &Blocks,
        shapes: &Shapes,
        blocks_with: impl Fn(&dyn Fn(&[u8]) -> bool) -> Result<Vec<bool>, StoreError>,
    ) -> Result<Vec<u32>, StoreError> {
        // Bits of shapes that may match whoever the minion is, and of those that match for some minions only.
        let (mut open, mut bound) = (if self.filter.tag.is_some() { UNLISTED } else { u64::MAX }, 0);
        // The bit of blocks with a jid that may be any text.
        let mut free = 0;
        let mut wanted: Vec<Rc<Asks>> = Vec::new();
        if self.filter.tag.is_some() {
            for (shape, bit) in shapes.each() {
                let asks = self.asks(shape);
                if shape == FREE_JID {
                    free = bit;
                }
                match &*asks {
                    Asks::Never => {}
                    Asks::Each(needs) if needs.iter().any(Need::is_of_minion) => {
                        bound |= bit;
                        wanted.push(asks);
                    }
                    _ => open |= bit,
                }
            }
        }
        let holds = |minion: &[u8]| {
            wanted.iter().any(|asks| {
                let Asks::Each(needs) = &**asks else { return true };
                needs.iter().filter(|need| need.is_of_minion()).all(|need| need.minion_holds(minion))
            })
        };
        let matching = if bound & !open == 0 { None } else { Some(blocks_with(&holds)?) };
        let minion = self.filter.minion.as_deref().map(str::as_bytes);
        let of_minion = minion.map(|minion| blocks_with(&|name| name == minion)).transpose()?;
        let is = |list: &Option<Vec<bool>>, at: usize| {
            list.as_ref().is_none_or(|list| list.get(at).copied().unwrap_or(true))
        };
        let worth = |at: &usize| {
            let bits = blocks.shapes(*at);
            let bound = bits & bound != 0 && (bits & free != 0 || is(&matching, *at));
            (bits & open != 0 || bound) && is(&of_minion, *at)
        };
        let early = blocks.metas().partition_point(|meta| meta.first_seq < self.before);
        let found = blocks.metas().iter().take(early).enumerate();
        let in_time = found.filter(|(_, meta)| self.filter.allows_span(meta.at_min, meta.at_max));
        Ok(in_time.map(|(at, _)| at).filter(worth).filter_map(|at| u32::try_from(at).ok()).collect())
    }

    /// The entries of a block that pass, the latest last: their numbers and their places.
    fn passing(&mut self, rows: Rows<'_>) -> Vec<(SeqNo, usize)> {
        let (texts, ends) = rows.texts();
        let text = |at: usize| {
            let from = at.checked_sub(1).and_then(|n| ends.get(n)).copied().unwrap_or(0);
            ends.get(at).and_then(|&end| texts.get(from..end)).unwrap_or_default()
        };
        let tags = rows.tags();
        let mut verdicts: Vec<Verdict> = Vec::new();
        if self.filter.tag.is_some() {
            let mut possible = false;
            for at in distinct(&tags) {
                let verdict = match &*self.asks(text(at)) {
                    Asks::Never => Verdict::Never,
                    Asks::Nothing => Verdict::Always,
                    Asks::Each(needs) => verdict(needs, rows, texts, &ends),
                };
                possible |= !matches!(verdict, Verdict::Never);
                if verdicts.len() <= at {
                    verdicts.resize_with(at + 1, || Verdict::Never);
                }
                if let Some(slot) = verdicts.get_mut(at) {
                    *slot = verdict;
                }
            }
            if !possible {
                return Vec::new();
            }
        }
        let filter = self.filter;
        let (minions, jids) = (rows.minions(), rows.jids());
        let passes = |at: usize, tag: i64, minion: i64, jid: i64| {
            let verdict = match &filter.tag {
                Some(_) => usize::try_from(tag).ok().and_then(|tag| verdicts.get(tag)),
                None => Some(&Verdict::Always),
            };
            let perhaps = match verdict {
                Some(Verdict::Always) => false,
                Some(Verdict::Perhaps(needs)) if needs.iter().all(|need| need.allows(minion, jid)) => true,
                _ => return false,
            };
            rows.seq(at) < self.before
                && filter.allows(rows.flags(at), rows.at(at), rows.minion(at))
                && (!perhaps || filter.tag.as_ref().is_none_or(|glob| glob.matches_bytes(&rows.tag(at))))
        };
        let entries = tags.iter().zip(&minions).zip(&jids).enumerate();
        entries
            .filter(|&(at, ((&tag, &minion), &jid))| passes(at, tag, minion, jid))
            .map(|(at, _)| (rows.seq(at), at))
            .collect()
    }
}

/// Asks the minions and the jids of a block what a shape needs.
fn verdict(needs: &[Need], rows: Rows<'_>, texts: &[u8], ends: &[usize]) -> Verdict {
    let mut all = Vec::new();
    for need in needs {
        let mut minions = vec![false; ends.len()];
        need.minion.iter().for_each(|test| test.mark(texts, ends, &mut minions));
        let digits = need.jid.iter().any(super::pattern::Test::fits_digits);
        let mut jids = Vec::new();
        if !need.jid.is_empty() {
            let mut speller = JidSpeller::default();
            let any = |jid: &[u8]| need.jid.iter().any(|test| test.holds(jid));
            let holds = |(at, time): (usize, i64)| {
                if time < 0 || (digits && rows.jid_has_pid(at)) {
                    return any(rows.jid_text(at).as_bytes());
                }
                digits && any(speller.spell(Micros(time)))
            };
            jids = rows.jid_times().into_iter().enumerate().map(holds).collect();
        }
        if !minions.contains(&true) && !jids.contains(&true) {
            return Verdict::Never;
        }
        all.push(Passing { minions, jids });
    }
    Verdict::Perhaps(all)
}

/// A walk over a class from its end to its beginning.
pub(super) struct Backwards<'a> {
    shared: &'a Shared,
    segments: Vec<Arc<Segment>>,
    /// The segment that is walked over, and its blocks that are worth it, the next one last.
    current: Option<(Arc<Segment>, Vec<u32>)>,
    block: Option<(Arc<Segment>, u32)>,
    view: Option<Arc<BlockView>>,
    /// Entries of `block` that pass, the next one last: their numbers and their places in it.
    passing: Vec<(SeqNo, usize)>,
}

impl<'a> Backwards<'a> {
    pub(super) fn new(shared: &'a Shared, class: Class) -> Self {
        let segments = shared.segments(class);
        Self { shared, segments, current: None, block: None, view: None, passing: Vec::new() }
    }

    /// The number of the next event that passes.
    pub(super) fn peek(&mut self, search: &mut Search<'_>) -> Result<Option<SeqNo>, StoreError> {
        loop {
            if let Some((seq, _)) = self.passing.last() {
                return Ok(Some(*seq));
            }
            let Some((segment, blocks)) = &mut self.current else {
                let Some(segment) = self.segments.pop() else { return Ok(None) };
                let blocks = self.worth(&segment, search)?;
                self.current = Some((segment, blocks));
                continue;
            };
            let Some(number) = blocks.pop() else {
                self.current = None;
                continue;
            };
            let segment = segment.clone();
            if let Some(view) = self.shared.head(&segment, number)? {
                self.passing = search.passing(view.rows());
                self.block = Some((segment, number));
                self.view = None;
            }
        }
    }

    /// The blocks of a segment that are worth reading.
    fn worth(&self, segment: &Arc<Segment>, search: &mut Search<'_>) -> Result<Vec<u32>, StoreError> {
        let out_of_time = |facts: Arc<super::index::Facts>| {
            !search.filter.allows_span(facts.sums.at_min, facts.sums.at_max)
        };
        if segment.first_seq >= search.before || segment.facts().is_some_and(out_of_time) {
            return Ok(Vec::new());
        }
        let search = std::cell::RefCell::new(search);
        self.shared.ask(
            segment,
            |index| {
                let with = |wanted: &dyn Fn(&[u8]) -> bool| Ok(index.blocks_with(wanted));
                search.borrow_mut().worth(index.blocks(), index.shapes(), with)
            },
            |index| {
                let with = |wanted: &dyn Fn(&[u8]) -> bool| index.blocks_with(wanted);
                search.borrow_mut().worth(index.blocks(), index.shapes(), with).map(Ok)
            },
        )?
    }

    /// The event that [`Backwards::peek`] found; `None` if its block has been damaged meanwhile.
    pub(super) fn take(&mut self) -> Result<Option<StoredEntry>, StoreError> {
        let (Some((segment, number)), Some((_, at))) = (&self.block, self.passing.pop()) else {
            return Ok(None);
        };
        if self.view.is_none() {
            self.view = self.shared.block(segment, *number)?;
        }
        let Some(view) = &self.view else {
            self.passing.clear();
            return Ok(None);
        };
        stored(segment, view.rows(), at, true).map(Some)
    }
}
