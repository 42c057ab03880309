//! Backward scan over events that skips blocks without matches.
//!
//! The index of a segment selects candidate blocks by time of arrival, tag templates and minions. The scan reads the heads
//! of these, evaluates the pattern once per distinct template ([`super::pattern`]), and expands the tags of possible
//! matches only. Bodies are read for matches.

use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;

use super::pattern::{Need, TagCondition, condition};
use crate::base::clock::Micros;
use crate::model::{EventFilter, JidSpeller, ReadLimits, SeqNo};
use crate::store::StoreInner;
use crate::store::error::StoreError;
use crate::store::index::summary::UNLISTED;
use crate::store::index::{Blocks, MinionSelection, TagTemplates};
use crate::store::log::block::{BlockView, FREE_JID, Rows};
use crate::store::log::builder::distinct;
use crate::store::read::{StoredEntry, stored};
use crate::store::segment::Segment;
use crate::store::write::class::Class;
use crate::wire::filter::EntryFilter;

/// A search and its cache of evaluated templates.
pub(in crate::store) struct Search<'a> {
    filter: &'a EventFilter,
    select: &'a EntryFilter,
    /// What the reader may know; for the scan, other entries do not exist.
    limits: &'a ReadLimits,
    before: SeqNo,
    templates: HashMap<Vec<u8>, Rc<TagCondition>>,
    /// Amounts read.
    pub(in crate::store) stats: ScanStats,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct ScanStats {
    /// Segments whose times exclude a match.
    pub(crate) segments_skipped: u64,
    /// Segments whose summaries were examined.
    pub(crate) segments: u64,
    /// Blocks that the summaries exclude.
    pub(crate) blocks_skipped: u64,
    /// Blocks whose columns were read.
    pub(crate) blocks: u64,
    /// Entries whose bodies were read.
    pub(crate) entries: u64,
}

/// The result of a pattern for all tags of one template in a block.
enum TagMatch {
    Never,
    Always,
    /// A tag may match if its entry satisfies all of these.
    If(Vec<Passing>),
}

/// The minions and jids of a block that can supply a literal of the pattern; indexed like the block's texts and jids.
struct Passing {
    minions: Vec<bool>,
    jids: Vec<bool>,
}

impl Passing {
    /// Whether the minion or the jid of an entry, as in its columns, can supply the literal.
    fn allows(&self, minion: i64, jid: i64) -> bool {
        let marked = |marks: &[bool], at: i64| {
            usize::try_from(at - 1).is_ok_and(|at| marks.get(at).copied().unwrap_or(false))
        };
        marked(&self.minions, minion) || marked(&self.jids, jid)
    }
}

impl<'a> Search<'a> {
    pub(in crate::store) fn new(
        filter: &'a EventFilter,
        select: &'a EntryFilter,
        limits: &'a ReadLimits,
        before: SeqNo,
    ) -> Self {
        Self {
            filter,
            select,
            limits,
            before,
            templates: HashMap::new(),
            stats: ScanStats::default(),
        }
    }

    /// Evaluates the pattern for a template.
    fn condition(&mut self, template: &[u8]) -> Rc<TagCondition> {
        if let Some(known) = self.templates.get(template) {
            return known.clone();
        }
        let condition = Rc::new(
            self.filter
                .tag
                .as_ref()
                .map_or(TagCondition::Always, |glob| condition(glob, template)),
        );
        // Bounds the memory in a store where every tag is a template of its own.
        if self.templates.len() < crate::base::limits::TAG_TEMPLATES_MAX as usize {
            self.templates.insert(template.to_vec(), condition.clone());
        }
        condition
    }

    /// Candidate blocks of a segment, ascending.
    fn candidates(
        &mut self,
        blocks: &Blocks,
        templates: &TagTemplates,
        blocks_with: impl Fn(MinionSelection<'_>) -> Result<Vec<bool>, StoreError>,
    ) -> Result<Vec<u32>, StoreError> {
        // Bits of templates that may match for any minion, and of those that match for some minions only.
        let (mut open, mut bound) = (
            if self.filter.tag.is_some() {
                UNLISTED
            } else {
                u64::MAX
            },
            0,
        );
        // The bit of blocks with a jid that is arbitrary text.
        let mut free = 0;
        // Many templates need the same of the minion.
        let mut wanted: Vec<Vec<Need>> = Vec::new();
        if self.filter.tag.is_some() {
            for (template, bit) in templates.each() {
                let condition = self.condition(template);
                if template == FREE_JID {
                    free = bit;
                }
                match &*condition {
                    TagCondition::Never => {}
                    TagCondition::AllOf(needs) if needs.iter().any(Need::is_of_minion) => {
                        bound |= bit;
                        let of_minion: Vec<Need> = needs
                            .iter()
                            .filter(|need| need.is_of_minion())
                            .cloned()
                            .collect();
                        if !wanted.contains(&of_minion) {
                            wanted.push(of_minion);
                        }
                    }
                    _ => open |= bit,
                }
            }
        }
        let holds = |minion: &[u8]| {
            wanted
                .iter()
                .any(|needs| needs.iter().all(|need| need.minion_holds(minion)))
        };
        let matching = if bound & !open == 0 {
            None
        } else {
            Some(blocks_with(MinionSelection::Passing(&holds))?)
        };
        let minion = self.filter.minion.as_deref().map(str::as_bytes);
        let of_minion = minion
            .map(|minion| blocks_with(MinionSelection::Is(minion)))
            .transpose()?;
        let is = |list: &Option<Vec<bool>>, at: usize| {
            list.as_ref()
                .is_none_or(|list| list.get(at).copied().unwrap_or(true))
        };
        let is_candidate = |at: &usize| {
            let bits = blocks.templates(*at);
            let bound = bits & bound != 0 && (bits & free != 0 || is(&matching, *at));
            (bits & open != 0 || bound) && is(&of_minion, *at)
        };
        let early = blocks
            .metas()
            .partition_point(|meta| meta.first_seq < self.before);
        let found = blocks.metas().iter().take(early).enumerate();
        let in_time = found.filter(|(_, meta)| self.filter.allows_span(meta.at_min, meta.at_max));
        let mut found: Vec<usize> = in_time.map(|(at, _)| at).filter(is_candidate).collect();
        // Last, because it tests the ids of the segment: most searches need it for few segments.
        if let Some(glob) = self.limits.minions.as_ref().filter(|_| !found.is_empty()) {
            let is_allowed = |minion: &[u8]| glob.matches_bytes(minion);
            let of_limit = match glob.as_literal() {
                Some(minion) => blocks_with(MinionSelection::Is(minion.as_bytes()))?,
                None => blocks_with(MinionSelection::Passing(&is_allowed))?,
            };
            found.retain(|at| of_limit.get(*at).copied().unwrap_or(true));
        }
        let found: Vec<u32> = found
            .into_iter()
            .filter_map(|at| u32::try_from(at).ok())
            .collect();
        self.stats.segments += 1;
        self.stats.blocks_skipped += (blocks.metas().len() - found.len()) as u64;
        Ok(found)
    }

    /// The matching entries of a block, oldest first: sequence numbers and row numbers.
    fn passing(&mut self, rows: Rows<'_>) -> Vec<(SeqNo, usize)> {
        let (texts, ends) = rows.texts();
        let text = |at: usize| {
            let from = at
                .checked_sub(1)
                .and_then(|n| ends.get(n))
                .copied()
                .unwrap_or(0);
            ends.get(at)
                .and_then(|&end| texts.get(from..end))
                .unwrap_or_default()
        };
        let tags = rows.tags();
        let mut tag_matches: Vec<TagMatch> = Vec::new();
        if self.filter.tag.is_some() {
            let mut possible = false;
            for at in distinct(&tags) {
                let tag_match = match &*self.condition(text(at)) {
                    TagCondition::Never => TagMatch::Never,
                    TagCondition::Always => TagMatch::Always,
                    TagCondition::AllOf(needs) => tag_match(needs, rows, texts, &ends),
                };
                possible |= !matches!(tag_match, TagMatch::Never);
                if tag_matches.len() <= at {
                    tag_matches.resize_with(at + 1, || TagMatch::Never);
                }
                if let Some(slot) = tag_matches.get_mut(at) {
                    *slot = tag_match;
                }
            }
            if !possible {
                return Vec::new();
            }
        }
        let (filter, select, limits) = (self.filter, self.select, self.limits);
        let (minions, jids) = (rows.minions(), rows.jids());
        let allowed = AllowedMinions::of(rows, &minions, limits);
        let passes = |at: usize, tag: i64, minion: i64, jid: i64| {
            let tag_match = match &filter.tag {
                Some(_) => usize::try_from(tag)
                    .ok()
                    .and_then(|tag| tag_matches.get(tag)),
                None => Some(&TagMatch::Always),
            };
            let undecided = match tag_match {
                Some(TagMatch::Always) => false,
                Some(TagMatch::If(needs)) if needs.iter().all(|need| need.allows(minion, jid)) => {
                    true
                }
                _ => return false,
            };
            rows.seq(at) < self.before
                && allowed.has(minion)
                && filter.allows(rows.flags(at), rows.at(at), rows.minion(at))
                && (!limits.is_limited() || limits.allow_fun(rows.fun(at)))
                && select.may_match(rows.minion(at), rows.fun(at))
                && (limits.tags.is_none() || limits.allow_tag(&rows.tag(at)))
                && (!undecided
                    || filter
                        .tag
                        .as_ref()
                        .is_none_or(|glob| glob.matches_bytes(&rows.tag(at))))
        };
        let entries = tags.iter().zip(&minions).zip(&jids).enumerate();
        entries
            .filter(|&(at, ((&tag, &minion), &jid))| passes(at, tag, minion, jid))
            .map(|(at, _)| (rows.seq(at), at))
            .collect()
    }
}

/// The minions of a block that a reader may know, evaluated once per minion; indexed like the block's texts.
struct AllowedMinions(Option<Vec<bool>>);

impl AllowedMinions {
    fn of(rows: Rows<'_>, minions: &[i64], limits: &ReadLimits) -> Self {
        let Some(glob) = &limits.minions else {
            return Self(None);
        };
        let mut allowed: Vec<Option<bool>> = vec![None; rows.texts_len() + 1];
        for (row, minion) in minions.iter().enumerate() {
            let known = usize::try_from(*minion).ok();
            if let Some(slot) = known.and_then(|at| allowed.get_mut(at)) {
                slot.get_or_insert_with(|| glob.matches(rows.minion(row)));
            }
        }
        Self(Some(
            allowed.into_iter().map(|one| one == Some(true)).collect(),
        ))
    }

    /// Whether the minion with this number in the columns is one of them.
    fn has(&self, minion: i64) -> bool {
        let is_marked = |marks: &Vec<bool>| {
            let at = usize::try_from(minion).ok();
            at.and_then(|at| marks.get(at)) == Some(&true)
        };
        self.0.as_ref().is_none_or(is_marked)
    }
}

/// Evaluates the needs of a template for the minions and jids of a block.
fn tag_match(needs: &[Need], rows: Rows<'_>, texts: &[u8], ends: &[usize]) -> TagMatch {
    let mut all = Vec::new();
    for need in needs {
        let mut minions = vec![false; ends.len()];
        need.minion
            .iter()
            .for_each(|test| test.mark(texts, ends, &mut minions));
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
            jids = rows
                .jid_times()
                .into_iter()
                .enumerate()
                .map(holds)
                .collect();
        }
        if !minions.contains(&true) && !jids.contains(&true) {
            return TagMatch::Never;
        }
        all.push(Passing { minions, jids });
    }
    TagMatch::If(all)
}

/// A scan of a class from its newest entry to its oldest.
pub(in crate::store) struct Backwards<'a> {
    shared: &'a StoreInner,
    segments: Vec<Arc<Segment>>,
    /// The current segment and its candidate blocks, in ascending order; the next one is the last.
    current: Option<(Arc<Segment>, Vec<u32>)>,
    block: Option<(Arc<Segment>, u32)>,
    view: Option<Arc<BlockView>>,
    /// Matching entries of `block`, in ascending order: sequence numbers and row numbers.
    passing: Vec<(SeqNo, usize)>,
    /// Entries from here on have been examined; `None` if all have.
    examined: Option<SeqNo>,
}

impl<'a> Backwards<'a> {
    pub(in crate::store) fn new(shared: &'a StoreInner, class: Class) -> Self {
        let segments = shared.segments(class);
        Self {
            shared,
            segments,
            current: None,
            block: None,
            view: None,
            passing: Vec::new(),
            examined: Some(SeqNo(u64::MAX)),
        }
    }

    /// Sequence number of the next match, if it is known.
    pub(in crate::store) fn next(&self) -> Option<SeqNo> {
        self.passing.last().map(|(seq, _)| *seq)
    }

    /// The position before which the next match must be found; `None` once it is known, and at the end of the class.
    pub(in crate::store) fn unexamined(&self) -> Option<SeqNo> {
        self.examined.filter(|_| self.passing.is_empty())
    }

    /// Examines the next block.
    pub(in crate::store) fn step(&mut self, search: &mut Search<'_>) -> Result<(), StoreError> {
        loop {
            let Some((segment, blocks)) = &mut self.current else {
                let Some(segment) = self.segments.pop() else {
                    self.examined = None;
                    return Ok(());
                };
                let blocks = self.candidates(&segment, search)?;
                self.current = Some((segment, blocks));
                continue;
            };
            let Some(number) = blocks.pop() else {
                self.current = None;
                continue;
            };
            let segment = segment.clone();
            search.stats.blocks += 1;
            if let Some(view) = self.shared.head(&segment, number)? {
                let rows = view.rows();
                self.passing = search.passing(rows);
                self.examined = Some(rows.seq(0));
                self.block = Some((segment, number));
                self.view = None;
                return Ok(());
            }
        }
    }

    /// Candidate blocks of a segment.
    fn candidates(
        &self,
        segment: &Arc<Segment>,
        search: &mut Search<'_>,
    ) -> Result<Vec<u32>, StoreError> {
        let out_of_time = |metadata: Arc<crate::store::index::SegmentMetadata>| {
            !search
                .filter
                .allows_span(metadata.totals.at_min, metadata.totals.at_max)
        };
        if segment.first_seq >= search.before || segment.metadata().is_some_and(out_of_time) {
            search.stats.segments_skipped += 1;
            return Ok(Vec::new());
        }
        let search = std::cell::RefCell::new(search);
        self.shared.query_index(
            segment,
            |index| {
                let with = |selection: MinionSelection<'_>| Ok(index.blocks_with(selection));
                search
                    .borrow_mut()
                    .candidates(index.blocks(), index.templates(), with)
            },
            |index| {
                let with = |selection: MinionSelection<'_>| index.blocks_with(selection);
                search
                    .borrow_mut()
                    .candidates(index.blocks(), index.templates(), with)
                    .map(Ok)
            },
        )?
    }

    /// The entry found by [`Backwards::step`], with its class; `None` if its block has become unreadable.
    pub(in crate::store) fn take(&mut self) -> Result<Option<(StoredEntry, Arc<str>)>, StoreError> {
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
        Ok(Some((
            stored(segment, view.rows(), at, true)?,
            segment.class_name.clone(),
        )))
    }
}
