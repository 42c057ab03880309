//! Backward scan over events that skips blocks without matches.
//!
//! The index of a segment selects candidate blocks by time of arrival, tag templates and minions.
//! The scan reads the heads of these, evaluates the pattern once per distinct template
//! ([`super::pattern`]), and expands the tags of possible matches only. Bodies are read for
//! matches.

use std::borrow::Cow;
use std::cell::{Cell, OnceCell};
use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;

use salt_sls::Glob;

use super::pattern::{Need, TagCondition, condition};
use crate::error::{StoreError, fits};
use crate::index::summary::UNLISTED;
use crate::index::{Blocks, MinionSelection, TagTemplates};
use crate::log::block::{BlockView, Rows};
use crate::log::column::distinct;
use crate::log::columns::FREE_JID;
use crate::read::StoredEntry;
use crate::read::allowed::{AllowedBlocks, AllowedCache};
use crate::read::blocks::BlockReader;
use crate::segment::Segment;
use saltcellar_base::clock::Micros;
use saltcellar_model::{EventFilter, JidSpeller, ReadLimits, SeqNo};
use saltcellar_wire::filter::EntryFilter;

/// A search and its caches of evaluated templates.
pub(crate) struct Search<'a> {
    filter: &'a EventFilter,
    select: &'a EntryFilter,
    /// What the reader may know, if that is not everything; for the scan, other entries do not
    /// exist.
    limits: Option<Arc<ReadLimits>>,
    before: SeqNo,
    tag: Option<TagPattern<'a>>,
    allowed_tag: Option<TagPattern<'a>>,
    pub(crate) stats: ScanStats,
}

/// What a scan looked at.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ScanStats {
    /// Segments whose times exclude a match.
    pub segments_skipped: u64,
    /// Segments whose summaries were examined.
    pub segments: u64,
    /// Blocks that the summaries exclude.
    pub blocks_skipped: u64,
    /// Blocks whose columns were read.
    pub blocks: u64,
    /// Entries whose bodies were read.
    pub entries: u64,
    /// Minion ids of segments that were tested.
    pub(crate) minions: u64,
}

/// The result of a pattern for all tags of one template in a block.
enum TagMatch {
    Never,
    Always,
    /// A tag may match if its entry satisfies all of these.
    If(Vec<Passing>),
}

/// The minions and jids of a block that can supply a literal of the pattern; indexed like the
/// block's strings and jids.
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

/// A pattern for tags, and its cache of evaluated templates.
struct TagPattern<'a> {
    glob: &'a Glob,
    templates: HashMap<Vec<u8>, Rc<TagCondition>>,
}

impl<'a> TagPattern<'a> {
    fn new(glob: &'a Glob) -> Self {
        let templates = HashMap::new();
        Self { glob, templates }
    }

    /// Evaluates the pattern for a template.
    fn condition(&mut self, template: &[u8]) -> Rc<TagCondition> {
        if let Some(known) = self.templates.get(template) {
            return known.clone();
        }

        let condition = Rc::new(condition(self.glob, template));
        // Bounds the memory in a store where every tag is a separate template.
        if self.templates.len() < saltcellar_base::limits::TAG_TEMPLATES_MAX as usize {
            self.templates.insert(template.to_vec(), condition.clone());
        }
        condition
    }

    /// Evaluates the pattern for the tags of the rows in `among`, or of all. `None` if no tag can
    /// match.
    fn matches(
        &mut self,
        columns: &BlockColumns<'_>,
        among: Option<&[bool]>,
    ) -> Option<Vec<TagMatch>> {
        let mut matches: Vec<TagMatch> = Vec::new();
        // Each template of the block once, whatever the number of its rows.
        let mut possible = false;
        for at in distinct(&kept(&columns.tags, among)) {
            let tag_match = match &*self.condition(columns.text(at)) {
                TagCondition::Never => TagMatch::Never,
                TagCondition::Always => TagMatch::Always,
                TagCondition::AllOf(needs) => tag_match(needs, columns, among),
            };
            possible |= !matches!(tag_match, TagMatch::Never);
            if matches.len() <= at {
                matches.resize_with(at + 1, || TagMatch::Never);
            }
            if let Some(slot) = matches.get_mut(at) {
                *slot = tag_match;
            }
        }

        possible.then_some(matches)
    }

    /// Whether the tag of a row may match, by the result for its block.
    fn may_match(matches: &[TagMatch], columns: &BlockColumns<'_>, row: usize) -> TagAnswer {
        // A row without a tag does not exist, but the columns come from a disk.
        let of = |column: &[i64]| column.get(row).copied().unwrap_or(0);
        let at = usize::try_from(of(&columns.tags)).ok();

        match at.and_then(|at| matches.get(at)) {
            Some(TagMatch::Always) => TagAnswer::Yes,
            Some(TagMatch::If(needs)) => {
                let (minion, jid) = (of(columns.minions()), of(columns.jids()));
                if needs.iter().all(|need| need.allows(minion, jid)) {
                    TagAnswer::Perhaps
                } else {
                    TagAnswer::No
                }
            }
            Some(TagMatch::Never) | None => TagAnswer::No,
        }
    }

    /// Decides a [`TagAnswer::Perhaps`]: expands the tag, which costs more than all other tests.
    fn decide(&self, answer: TagAnswer, rows: Rows<'_>, row: usize) -> bool {
        match answer {
            TagAnswer::Yes => true,
            TagAnswer::No => false,
            TagAnswer::Perhaps => self.glob.matches_bytes(&rows.tag(row)),
        }
    }
}

/// What the columns of an entry say about a pattern for its tag.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum TagAnswer {
    No,
    Perhaps,
    Yes,
}

/// The columns of a block, unpacked when first used: most blocks contain no matching template, and
/// only their tags are.
struct BlockColumns<'a> {
    rows: Rows<'a>,
    tags: Vec<i64>,
    minions: OnceCell<Vec<i64>>,
    jids: OnceCell<Vec<i64>>,
    texts: &'a [u8],
    ends: Vec<usize>,
}

impl<'a> BlockColumns<'a> {
    fn of(rows: Rows<'a>) -> Self {
        let (texts, ends) = rows.texts();
        Self {
            rows,
            tags: rows.tags(),
            minions: OnceCell::new(),
            jids: OnceCell::new(),
            texts,
            ends,
        }
    }

    fn minions(&self) -> &[i64] {
        self.minions.get_or_init(|| self.rows.minions())
    }

    fn jids(&self) -> &[i64] {
        self.jids.get_or_init(|| self.rows.jids())
    }

    fn text(&self, at: usize) -> &'a [u8] {
        let end = |at: usize| self.ends.get(at).copied();
        let from = at.checked_sub(1).and_then(end).unwrap_or(0);
        end(at)
            .and_then(|end| self.texts.get(from..end))
            .unwrap_or_default()
    }

    /// Per row, whether the text passes that this column has as 1 + its index; an empty one for 0.
    /// Each text is tested once.
    fn test(&self, column: &[i64], passes: impl Fn(&[u8]) -> bool) -> Vec<bool> {
        // Each text at most once: a block has few minions and many rows.
        let mut known: Vec<Option<bool>> = vec![None; self.ends.len() + 1];
        let of_row = |number: &i64| {
            let number = usize::try_from(*number).unwrap_or(0);
            let text = || number.checked_sub(1).map_or(&b""[..], |at| self.text(at));
            known
                .get_mut(number)
                .is_some_and(|known| *known.get_or_insert_with(|| passes(text())))
        };

        column.iter().map(of_row).collect()
    }

    /// Removes the marks of those items of a column, 1 + an index of the marks, that occur in no
    /// row of `among`.
    fn retain_of(column: &[i64], among: Option<&[bool]>, marks: &mut [bool]) {
        // All rows count, so all marks stay.
        let Some(among) = among else {
            return;
        };

        let mut of_rows = vec![false; marks.len() + 1];
        for (number, is_among) in column.iter().zip(among) {
            let slot = usize::try_from(*number).ok();
            if let Some(slot) = slot.and_then(|at| of_rows.get_mut(at)) {
                *slot |= *is_among;
            }
        }

        for (mark, is_of_row) in marks.iter_mut().zip(of_rows.into_iter().skip(1)) {
            *mark &= is_of_row;
        }
    }
}

/// The values of a column in the rows of `among`, or in all.
fn kept<'a>(column: &'a [i64], among: Option<&[bool]>) -> Cow<'a, [i64]> {
    let Some(among) = among else {
        return column.into();
    };
    let kept = column.iter().zip(among).filter(|(_, keep)| **keep);
    kept.map(|(value, _)| *value).collect()
}

impl<'a> Search<'a> {
    pub(crate) fn new(
        filter: &'a EventFilter,
        select: &'a EntryFilter,
        limits: &'a ReadLimits,
        before: SeqNo,
    ) -> Self {
        Self {
            filter,
            select,
            limits: limits.is_limited().then(|| Arc::new(limits.clone())),
            before,
            tag: filter.tag.as_ref().map(TagPattern::new),
            allowed_tag: limits.tags.as_ref().map(TagPattern::new),
            stats: ScanStats::default(),
        }
    }

    /// Candidate blocks of a segment, ascending, by its index and whether that is sealed. Under limits,
    /// `known` is what they leave of the segment.
    fn candidates(
        &mut self,
        (blocks, templates, is_sealed): (&Blocks, &TagTemplates, bool),
        known: Option<&AllowedBlocks>,
        blocks_with: impl Fn(MinionSelection<'_>) -> Result<Vec<bool>, StoreError>,
    ) -> Result<Vec<u32>, StoreError> {
        // Blocks from `before` on cannot contain a match; entries ascend.
        let early = blocks
            .metas()
            .partition_point(|meta| meta.first_seq < self.before);

        let in_time = |at: &u32| {
            let meta = blocks.metas().get(*at as usize);
            meta.is_some_and(|meta| self.filter.allows_span(meta.at_min, meta.at_max))
        };
        let early = fits(early, "a segment has over 4 G blocks")?;
        let mut found: Vec<u32> = (0..early).filter(in_time).collect();

        // `None`: not read under these limits yet, so it must be, whatever the search is for.
        let bits_of = |at: u32| match known {
            Some(known) => known.bits(at as usize),
            None => Some(blocks.templates(at as usize)),
        };

        // Bits of templates that may match for any minion, and of those that match for some minions
        // only.
        let mut open = u64::MAX;
        let mut bound = 0;
        // The bit of blocks with a jid that is arbitrary text.
        let mut free = 0;
        // Many templates need the same of the minion.
        let mut wanted: Vec<Vec<Need>> = Vec::new();
        if let Some(tag) = &mut self.tag {
            open = UNLISTED;
            let present = found
                .iter()
                .fold(0, |present, at| present | bits_of(*at).unwrap_or(0));
            for (template, bit) in templates.each().filter(|(_, bit)| bit & present != 0) {
                let condition = tag.condition(template);
                if template == FREE_JID {
                    free = bit;
                }
                // Whether the minion decides it determines which blocks to read.
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

        // The index names the blocks of a minion whatever their function and tag. Under limits by
        // functions or tags, they would show the presence of entries that the reader may not know.
        let limits = self.limits.as_deref();
        let may_use_ids =
            limits.is_none_or(|limits| limits.functions.is_none() && limits.tags.is_none());

        let tested = Cell::new(0);
        // The limits first: the time must not depend on what hidden ids have in common with the
        // pattern.
        let is_allowed = |number, minion: &[u8]| match (known, limits) {
            (Some(known), Some(limits)) => known.allows_name((is_sealed, number), minion, limits),
            _ => true,
        };
        let holds = |number: Option<usize>, minion: &[u8]| {
            tested.set(tested.get() + 1);
            is_allowed(number, minion)
                && wanted
                    .iter()
                    .any(|needs| needs.iter().all(|need| need.minion_holds(minion)))
        };

        // Only if some blocks can be excluded by it.
        let matching = if bound & !open == 0 || !may_use_ids {
            None
        } else {
            Some(blocks_with(MinionSelection::Numbered(&holds))?)
        };

        let minion = self.filter.only_minion().filter(|_| may_use_ids);
        let of_minion = minion
            .map(|minion| blocks_with(MinionSelection::Is(minion.as_bytes())))
            .transpose()?;
        self.stats.minions += tested.get();

        let is = |list: &Option<Vec<bool>>, at: u32| {
            list.as_ref()
                .is_none_or(|list| list.get(at as usize).copied().unwrap_or(true))
        };

        // Each block contains a template, so without a tag, a minion or limits all of them stay.
        if self.tag.is_some() || of_minion.is_some() || known.is_some() {
            found.retain(|&at| {
                // Not read under these limits yet.
                let Some(bits) = bits_of(at) else {
                    return true;
                };
                let bound = bits & bound != 0 && (bits & free != 0 || is(&matching, at));
                (bits & open != 0 || bound) && is(&of_minion, at)
            });
        }

        self.stats.segments += 1;
        self.stats.blocks_skipped += (blocks.metas().len() - found.len()) as u64;
        Ok(found)
    }

    pub(crate) fn is_limited(&self) -> bool {
        self.limits.is_some()
    }

    /// Tests the limits for each row of a block.
    fn allowed(&mut self, columns: &BlockColumns<'_>) -> Vec<bool> {
        let rows = columns.rows;
        let Some(limits) = self.limits.as_ref() else {
            return vec![true; rows.len()];
        };

        // By columns first: they cost least.
        let of_fun = columns.test(&rows.funs(), |fun| {
            limits.allow_fun(&String::from_utf8_lossy(fun))
        });
        let mut allowed = columns.test(columns.minions(), |minion| {
            limits.allow_minion_bytes(minion)
        });

        for (allowed, of_fun) in allowed.iter_mut().zip(of_fun) {
            *allowed &= of_fun;
        }
        // Only for what is left: expanding tags costs most.
        if let Some(tag) = &mut self.allowed_tag {
            let matches = tag.matches(columns, Some(&allowed)).unwrap_or_default();
            for (row, allowed) in allowed.iter_mut().enumerate() {
                let answer = TagPattern::may_match(&matches, columns, row);
                *allowed = *allowed && tag.decide(answer, rows, row);
            }
        }
        allowed
    }

    /// What the limits leave of a segment, with the entries of all of its blocks; `None` without limits.
    pub(crate) fn learn_all(
        &mut self,
        (blocks, allowed): (&BlockReader, &AllowedCache),
        segment: &Arc<Segment>,
    ) -> Result<Option<Arc<AllowedBlocks>>, StoreError> {
        let Some(limits) = &self.limits else {
            return Ok(None);
        };
        let (known, tested) = allowed.blocks(segment, limits)?;
        self.stats.minions += tested;

        let count = blocks.indexes().ready(segment)?.blocks().metas().len();
        let unread: Vec<u32> = known.unread(count).collect();
        for number in unread {
            self.stats.blocks += 1;
            if let Some(view) = blocks.head(segment, number)? {
                let columns = BlockColumns::of(view.rows());
                let learn = || self.allowed(&columns);
                allowed.rows(segment, number, view.rows(), &known, learn)?;
            }
        }
        Ok(Some(known))
    }

    /// The matching entries of a block among its `allowed` entries, oldest first: sequence numbers
    /// and row numbers.
    fn passing(
        &mut self,
        columns: &BlockColumns<'_>,
        allowed: Option<&[bool]>,
    ) -> Vec<(SeqNo, usize)> {
        // A block without an allowed entry ends here, whatever it has.
        if allowed.is_some_and(|allowed| !allowed.contains(&true)) {
            return Vec::new();
        }

        let matches = match &mut self.tag {
            None => Vec::new(),
            Some(tag) => match tag.matches(columns, allowed) {
                None => return Vec::new(),
                Some(matches) => matches,
            },
        };

        let filter = self.filter;
        let select = self.select;
        let tag = self.tag.as_ref();
        // Row by row from the cheapest test to the most expensive one.
        let rows = columns.rows;
        let passes = |row: &usize| {
            let row = *row;
            let answer = match tag {
                Some(_) => TagPattern::may_match(&matches, columns, row),
                None => TagAnswer::Yes,
            };
            answer != TagAnswer::No
                && rows.seq(row) < self.before
                && filter.allows(
                    rows.flags(row),
                    rows.at(row),
                    rows.minion(row),
                    rows.origin(row),
                )
                && select.may_match(rows.minion(row), rows.fun(row))
                && tag.is_none_or(|tag| tag.decide(answer, rows, row))
        };

        let is_allowed =
            |row: &usize| allowed.is_none_or(|allowed| allowed.get(*row) == Some(&true));
        let found = (0..rows.len()).filter(is_allowed).filter(passes);
        found.map(|row| (rows.seq(row), row)).collect()
    }
}

/// Evaluates the needs of a template for the minions and jids of the rows in `among`, or of all.
fn tag_match(needs: &[Need], columns: &BlockColumns<'_>, among: Option<&[bool]>) -> TagMatch {
    let rows = columns.rows;
    let ends = &columns.ends;

    let mut all = Vec::new();
    for need in needs {
        // Minions and jids are tested as the strings of the block, not row by row.
        let mut minions = vec![false; ends.len()];
        need.minion
            .iter()
            .for_each(|test| test.mark(columns.texts, ends, &mut minions));
        // Names of other columns are also among the strings.
        if !need.minion.is_empty() {
            BlockColumns::retain_of(columns.minions(), among, &mut minions);
        }

        let digits = need.jid.iter().any(super::pattern::Test::fits_digits);
        // Spelling jids is expensive, so only if a literal could be in one.
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
            BlockColumns::retain_of(columns.jids(), among, &mut jids);
        }
        // One literal that nothing can supply excludes the template.
        if !minions.contains(&true) && !jids.contains(&true) {
            return TagMatch::Never;
        }
        all.push(Passing { minions, jids });
    }
    TagMatch::If(all)
}

/// A segment and its candidate blocks.
struct Candidates {
    segment: Arc<Segment>,
    /// In ascending order; the next one is the last.
    blocks: Vec<u32>,
    /// What the limits leave of the segment; `None` without limits.
    known: Option<Arc<AllowedBlocks>>,
}

/// A scan of a class from its newest entry to its oldest.
pub(crate) struct Backwards<'a> {
    blocks: &'a BlockReader,
    /// Used under limits only.
    allowed: &'a AllowedCache,
    segments: Vec<Arc<Segment>>,
    current: Option<Candidates>,
    block: Option<(Arc<Segment>, u32)>,
    view: Option<Arc<BlockView>>,
    /// Matching entries of `block`, in ascending order: sequence numbers and row numbers.
    passing: Vec<(SeqNo, usize)>,
    /// Entries from here on have been examined; `None` if all have.
    examined: Option<SeqNo>,
}

impl<'a> Backwards<'a> {
    /// A scan of the segments of a class. Later segments contain later entries.
    pub(crate) fn new(
        segments: Vec<Arc<Segment>>,
        blocks: &'a BlockReader,
        allowed: &'a AllowedCache,
    ) -> Self {
        Self {
            blocks,
            allowed,
            segments,
            current: None,
            block: None,
            view: None,
            passing: Vec::new(),
            examined: Some(SeqNo(u64::MAX)),
        }
    }

    /// Sequence number of the next match, if it is known.
    pub(crate) fn next(&self) -> Option<SeqNo> {
        self.passing.last().map(|(seq, _)| *seq)
    }

    /// The position before which the next match must be found; `None` once it is known, and at the
    /// end of the class.
    pub(crate) fn unexamined(&self) -> Option<SeqNo> {
        self.examined.filter(|_| self.passing.is_empty())
    }

    /// Examines the next block, or the end of a segment.
    pub(crate) fn step(&mut self, search: &mut Search<'_>) -> Result<(), StoreError> {
        loop {
            let Some(current) = &mut self.current else {
                // The end of the class.
                let Some(segment) = self.segments.pop() else {
                    self.examined = None;
                    return Ok(());
                };
                self.current = Some(self.candidates(segment, search)?);
                continue;
            };
            let Some(number) = current.blocks.pop() else {
                // What is older need not be looked at if another class has enough matches that are
                // newer.
                self.examined = Some(current.segment.first_seq);
                self.current = None;
                return Ok(());
            };

            let (segment, known) = (current.segment.clone(), current.known.clone());
            // A block that cannot be read is passed over by the loop.
            search.stats.blocks += 1;
            if let Some(view) = self.blocks.head(&segment, number)? {
                let rows = view.rows();
                let columns = BlockColumns::of(rows);
                // The limits first: nothing after them depends on entries that the reader may not know.
                let allowed = match known {
                    Some(known) => {
                        let learn = || search.allowed(&columns);
                        Some(self.allowed.rows(&segment, number, rows, &known, learn)?)
                    }
                    None => None,
                };
                self.passing = search.passing(&columns, allowed.as_deref());
                // All of the block counts as examined, even without a match.
                self.examined = Some(rows.seq(0));
                self.block = Some((segment, number));
                self.view = None;
                return Ok(());
            }
        }
    }

    fn candidates(
        &self,
        segment: Arc<Segment>,
        search: &mut Search<'_>,
    ) -> Result<Candidates, StoreError> {
        // Without opening the index.
        let out_of_time = |metadata: Arc<crate::index::SegmentMetadata>| {
            !search
                .filter
                .allows_span(metadata.totals.at_min, metadata.totals.at_max)
        };
        if segment.first_seq >= search.before || segment.metadata().is_some_and(out_of_time) {
            search.stats.segments_skipped += 1;
            return Ok(Candidates {
                segment,
                blocks: Vec::new(),
                known: None,
            });
        }

        let mut known = None;
        if let Some(limits) = &search.limits {
            let (blocks, tested) = self.allowed.blocks(&segment, limits)?;
            search.stats.minions += tested;
            known = Some(blocks);
        }

        // Both closures need the search, and only one of them is called.
        let search = std::cell::RefCell::new(search);
        let blocks = self.blocks.indexes().query(
            &segment,
            |index| {
                let with = |selection: MinionSelection<'_>| Ok(index.blocks_with(selection));
                let of_index = (index.blocks(), index.templates(), false);
                search
                    .borrow_mut()
                    .candidates(of_index, known.as_deref(), with)
            },
            |index| {
                let with = |selection: MinionSelection<'_>| index.blocks_with(selection);
                let of_index = (index.blocks(), index.templates(), true);
                search
                    .borrow_mut()
                    .candidates(of_index, known.as_deref(), with)
                    .map(Ok)
            },
        )??;
        Ok(Candidates {
            segment,
            blocks,
            known,
        })
    }

    /// The entry found by [`Backwards::step`], with its class; `None` if its block has become
    /// unreadable.
    pub(crate) fn take(&mut self) -> Result<Option<(StoredEntry, Arc<str>)>, StoreError> {
        // Only after `step` has found a match.
        let (Some((segment, number)), Some((seq, at))) = (&self.block, self.passing.pop()) else {
            return Ok(None);
        };
        // Bodies are read for the first match of the block. Its head was read by `step`.
        if self.view.is_none() {
            self.view = self.blocks.block(segment, *number)?;
        }
        // It became unreadable in between, or its number now means another block.
        let rows = self.view.as_ref().map(|view| view.rows());
        let rows = rows.filter(|rows| at < rows.len() && rows.seq(at) == seq);
        let entry = rows.and_then(|rows| self.blocks.stored(segment, rows, at));

        let Some(entry) = entry else {
            self.passing.clear();
            return Ok(None);
        };
        Ok(Some((entry, segment.class_name.clone())))
    }
}
