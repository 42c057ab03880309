//! The store as a caller may know it: reads under [`ReadLimits`].
//!
//! # Invariant
//!
//! A [`StoreView`] behaves as if the entries that its limits exclude had never been stored. The
//! limits apply where entries are found: before a filter is evaluated, before anything is counted,
//! and before a page ends. Hidden entries affect only sequence numbers and, by their number, how
//! much one read examines.
//!
//! # Jobs under a limit by minions
//!
//! | entry | what is left of it |
//! |---|---|
//! | return | itself, if its minion is allowed; no result of a runner or wheel, which has data of any minion |
//! | load, event `.../new` | function, user and jid, and the allowed ones of the expected minions: target, arguments and metadata name others |
//! | a return passed to `save_load` | itself, if its minion is allowed |
//! | minions of a syndic | the allowed ones |
//! | end time | nothing: it follows the last return of any minion |
//! | other events of the job | themselves, if they are of an allowed minion |
//!
//! A job of which no allowed minion and no allowed function is left does not exist. That is decided before any of its entries is looked at, by
//! what is known of whole blocks ([`super::allowed`]): the work is that for a job that was never stored.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::allowed::{AllowedBlocks, Role, Roles};
use super::consumer::Start;
use super::follow::{Counted, Selected};
use super::job::{self, JobPage, JobPart};
use super::last_seen::LastSeen;
use super::returns::{Asked, JobReturns, Place, PlacesIn};
use super::scan::Search;
use super::stored_entry::{StoredEntry, without_body};
use super::{EntriesIn, EventPage, LogReader, ScanStats};
use crate::error::StoreError;
use crate::index::job_summary::{JobSummary, is_of_cached_job, load_of, rank};
use crate::index::{EntryPosition, LatestJob};
use crate::log::block::Rows;
use crate::segment::{Segment, with_same_numbers};
use saltcellar_base::clock::Micros;
use saltcellar_base::limits::{ALLOWED_JOBS_AT_ONCE, JOBS_READ_AT_ONCE, LIST_JOBS_READ};
use saltcellar_model::{EventFilter, JidKey, Kind, ReadLimits, SeqNo};
use saltcellar_wire::call::id_text;
use saltcellar_wire::filter::EntryFilter;
use saltcellar_wire::msgpack::{self, Writer, as_text};
use saltcellar_wire::salt_event::funs_of;

/// The keys of a published load that name no minion.
const SHARED: [&str; 3] = ["fun", "user", "jid"];

const HOUR_US: i64 = 3_600_000_000;

/// A store under the limits of a caller.
#[derive(Debug, Clone)]
pub struct StoreView {
    log: Arc<LogReader>,
    limits: Arc<ReadLimits>,
}

/// Job summaries, the latest first.
#[derive(Debug, Default)]
pub struct JobRows {
    /// Each with the key that orders the list.
    pub rows: Vec<(JidKey, JobSummary)>,
    /// The read ended here; `None` at the end of the list.
    pub next: Option<JidKey>,
    /// Number of jobs that were looked at, and are not among the rows if the reader may not know
    /// them.
    pub seen: usize,
}

/// The allowed entries of a job, as far as its summary needs them.
#[derive(Default)]
struct AllowedJob {
    first_at: Option<Micros>,
    /// The first return.
    first_return: Option<(SeqNo, Arc<Segment>, EntryPosition)>,
    /// Whether it has several returns.
    has_returns: bool,
    /// The wanted returns, without bodies.
    returns: Vec<StoredEntry>,
    /// Neither events nor returns.
    others: Vec<StoredEntry>,
}

impl AllowedJob {
    /// Notes the time of arrival of an entry.
    fn arrived(&mut self, at: Micros) {
        let first_at = self.first_at.get_or_insert(at);
        *first_at = at.min(*first_at);
    }
}

/// What is known of a segment under limits, and the positions of a job's entries in it.
type KnownPlaces = (Arc<Segment>, Arc<AllowedBlocks>, Vec<EntryPosition>);

impl StoreView {
    /// The store as a caller with these limits may know it.
    pub(crate) fn new(log: Arc<LogReader>, limits: Arc<ReadLimits>) -> Self {
        Self { log, limits }
    }

    /// Whether the limits exclude anything.
    pub fn is_limited(&self) -> bool {
        self.limits.is_limited()
    }

    /// As [`LogReader::now`](crate::LogReader::now).
    pub fn now(&self) -> Micros {
        self.log.now()
    }

    /// The durable watermark of the whole store.
    pub fn durable(&self) -> SeqNo {
        self.log.durable()
    }

    /// As [`LogReader::position`](crate::LogReader::position).
    pub fn position(&self, start: Start) -> Result<SeqNo, StoreError> {
        self.log.position(start)
    }

    /// As [`LogReader::end_before`].
    pub fn end_before(&self, at: Micros) -> Result<SeqNo, StoreError> {
        self.log.end_before(at)
    }

    /// As [`LogReader::gap_before`]. A gap record is an event, without minion and function.
    pub fn gap_before(&self, asked: SeqNo, from: SeqNo) -> Option<StoredEntry> {
        let gap = self.log.gap_before(asked, from);
        gap.filter(|gap| self.limits.allow_event(&gap.tag, &gap.minion, &gap.fun))
    }

    /// As [`LogReader::id`](crate::LogReader::id).
    pub fn id(&self) -> String {
        self.log.id()
    }

    /// As [`LogReader::event_id`](crate::LogReader::event_id).
    pub fn event_id(&self, event: &StoredEntry) -> String {
        self.log.event_id(event)
    }

    /// As [`LogReader::id_at`](crate::LogReader::id_at).
    pub fn id_at(&self, seq: SeqNo) -> String {
        self.log.id_at(seq)
    }

    /// As [`LogReader::search_events`]. Under limits the statistics are zero, because they also
    /// count entries that the reader may not see.
    pub fn search_events(
        &self,
        filter: &EventFilter,
        select: &EntryFilter,
        before: SeqNo,
        limit: usize,
        bytes_max: usize,
    ) -> Result<EventPage, StoreError> {
        let select = (select, &*self.limits);
        let mut page = self
            .log
            .search_allowed(filter, select, before, limit, bytes_max)?;
        // The amount that was examined would tell how much is stored that the reader may not see.
        if self.is_limited() {
            page.stats = ScanStats::default();
        }

        Ok(page)
    }

    /// As [`LogReader::events_before`].
    pub fn events_before(
        &self,
        filter: &EventFilter,
        before: SeqNo,
        limit: usize,
        bytes_max: usize,
    ) -> Result<Vec<StoredEntry>, StoreError> {
        let all = EntryFilter::default();
        let page = self.search_events(filter, &all, before, limit, bytes_max)?;
        Ok(page.events)
    }

    /// As [`LogReader::select`].
    pub fn select(
        &self,
        filter: &EntryFilter,
        from: SeqNo,
        upto: SeqNo,
        events_max: usize,
        bytes_max: usize,
    ) -> Result<Selected, StoreError> {
        let filter = (filter, &*self.limits);
        self.log
            .select_allowed(filter, from, upto, events_max, bytes_max)
    }

    /// The number of events that [`StoreView::select`] returns; at most as far as one read
    /// examines.
    pub fn count(
        &self,
        filter: &EntryFilter,
        from: SeqNo,
        upto: SeqNo,
    ) -> Result<Counted, StoreError> {
        self.log.count_allowed((filter, &*self.limits), from, upto)
    }

    /// Whether jobs are restricted.
    fn hides_jobs(&self) -> bool {
        self.limits.minions.is_some() || self.limits.functions.is_some()
    }

    /// As [`LogReader::job_entries`].
    pub fn job_entries(&self, jid: &str) -> Result<Vec<StoredEntry>, StoreError> {
        if !self.hides_jobs() {
            return self.log.job_entries(jid);
        }
        Ok(self.page_of(jid, JobPart::ALL, |_| true)?.entries)
    }

    /// As [`LogReader::job_entries_with`].
    pub fn job_entries_with(
        &self,
        jid: &str,
        wanted: impl Fn(&StoredEntry) -> bool,
    ) -> Result<Vec<StoredEntry>, StoreError> {
        if !self.hides_jobs() {
            return self.log.job_entries_with(jid, wanted);
        }
        Ok(self.page_of(jid, JobPart::ALL, wanted)?.entries)
    }

    /// As [`LogReader::job_page_with`].
    pub fn job_page_with(
        &self,
        jid: &str,
        part: JobPart,
        wanted: impl Fn(&StoredEntry) -> bool,
    ) -> Result<JobPage, StoreError> {
        if !self.hides_jobs() {
            return self.log.job_page_with(jid, part, wanted);
        }
        self.page_of(jid, part, wanted)
    }

    fn page_of(
        &self,
        jid: &str,
        part: JobPart,
        wanted: impl Fn(&StoredEntry) -> bool,
    ) -> Result<JobPage, StoreError> {
        with_same_numbers(|| match self.known_places(jid)? {
            Some(places) => self.page_at(&places, (jid, part), &wanted),
            None => Ok(JobPage::default()),
        })
    }

    fn page_at(
        &self,
        places: &[EntriesIn],
        (jid, part): (&str, JobPart),
        wanted: impl Fn(&StoredEntry) -> bool,
    ) -> Result<JobPage, StoreError> {
        // Loads are always wanted: which minions they name decides whether the job exists.
        let needed = |entry: &StoredEntry| match entry.kind {
            Kind::Load | Kind::ReturnLoad | Kind::JobNew | Kind::Minions => true,
            Kind::Return => {
                self.limits.allow_minion(&entry.minion)
                    && (self.is_undecided(entry) || wanted(entry))
            }
            _ => wanted(entry),
        };
        let keep = |entry: StoredEntry| {
            let mut entry = self.allowed(entry)?;
            // It was needed only to decide that.
            if entry.kind == Kind::Return && !wanted(&entry) {
                entry.leave_body();
            }
            Some(entry)
        };

        let pick = job::pick_entries(jid, needed);
        let page = self.log.walk_job(places, (jid, part), pick, keep)?;

        // A job of which nothing is left must look like one that was never stored. Whether a job exists of which this is a
        // part was decided by [`StoreView::known_places`].
        let is_part = part.range.0 > SeqNo::FIRST || page.next.is_some();
        let exists = is_part || self.has_subject(&page.entries);
        Ok(if exists { page } else { JobPage::default() })
    }

    /// Whether only its body tells if the reader may know a return: that of several functions names them.
    fn is_undecided(&self, entry: &StoredEntry) -> bool {
        entry.fun.is_empty() && self.limits.functions.is_some()
    }

    /// As [`LogReader::returns_between`].
    pub fn returns_between(
        &self,
        jid: &str,
        range: (SeqNo, SeqNo),
        wanted: impl Fn(&str) -> bool,
    ) -> Result<Vec<StoredEntry>, StoreError> {
        if !self.hides_jobs() {
            return self.log.returns_between(jid, range, wanted);
        }
        with_same_numbers(|| {
            let Some(places) = self.known_places(jid)? else {
                return Ok(Vec::new());
            };
            let wanted = |minion: &str| self.limits.allow_minion(minion) && wanted(minion);
            let keep = |entry| self.allowed(entry);
            let (part, pick) = (JobPart::of(range), job::pick_returns(jid, wanted));
            let page = self.log.walk_job(&places, (jid, part), pick, keep)?;
            Ok(page.entries)
        })
    }

    /// Where the entries of a job are that the reader may know; `None` without any. The same data
    /// is then examined as for an absent job.
    fn known_places(&self, jid: &str) -> Result<Option<Vec<EntriesIn>>, StoreError> {
        let key = JidKey::of(jid);
        let mut places = Vec::new();
        // Not by `may_hold`, which skips a segment by the other jobs in it: the time must not
        // depend on hidden jobs.
        for segment in self.log.segments_that(|metadata| metadata.spans(key)) {
            let (known, positions) = loop {
                let (known, _) = self.log.allowed.blocks(&segment, &self.limits)?;
                let positions = self.log.positions_in(&segment, key)?;
                // Both are of one numbering, unless the index was rebuilt in between.
                if known.is_of(&segment) {
                    break (known, positions);
                }
            };
            places.push((segment, known, positions));
        }

        // The cheapest first. Lists have looked at the newest jobs, and a return names its minion and its function in the head of its block.
        let exists = self.has_known_roles(&places)
            || self.has_allowed_return(&places)?
            || self.has_roles(&places)?;
        if !exists {
            return Ok(None);
        }

        let with_parts = places.into_iter().map(|(segment, known, mut positions)| {
            positions.retain(|position| {
                let roles = known.roles(position.block);
                roles.is_none_or(|roles| roles.of(usize::from(position.at)).is_part)
            });
            (segment, positions)
        });
        let with_parts = with_parts.filter(|(_, positions)| !positions.is_empty());
        Ok(Some(with_parts.collect()))
    }

    /// Whether a job exists for the reader, by what is known of the roles of its entries.
    fn has_known_roles(&self, places: &[KnownPlaces]) -> bool {
        let mut joined = Role::default();
        for (_, known, positions) in places {
            for of_block in positions.chunk_by(|a, b| a.block == b.block) {
                let roles = of_block.first().and_then(|first| known.roles(first.block));
                let Some(roles) = roles else {
                    continue;
                };
                for position in of_block {
                    joined |= roles.of(usize::from(position.at));
                }
            }
        }
        self.makes_job(joined)
    }

    /// Whether a job has a return that the reader may know, by the heads of all blocks that may hold it.
    fn has_allowed_return(&self, places: &[KnownPlaces]) -> Result<bool, StoreError> {
        let (filter, all) = (EventFilter::default(), EntryFilter::default());
        let mut search = Search::new(&filter, &all, &self.limits, SeqNo(u64::MAX));
        // All of them before an entry of the job is looked at.
        let mut allowed = Vec::new();
        for (segment, _, positions) in places {
            if let Some(known) = search.learn_all((&self.log.blocks, &self.log.allowed), segment)? {
                let positions = positions.iter().filter(|at| known.may_allow(**at));
                allowed.push((segment, positions.copied().collect::<Vec<_>>()));
            }
        }

        for (segment, allowed) in allowed {
            for position in allowed {
                let Some(view) = self.log.blocks.head(segment, position.block)? else {
                    continue;
                };
                let rows = view.rows();
                let at = usize::from(position.at);
                // Of several functions the body names all.
                if at < rows.len()
                    && rows.kind(at) == Kind::Return
                    && (self.limits.functions.is_none() || !rows.fun(at).is_empty())
                {
                    return Ok(true);
                }
            }
        }
        Ok(false)
    }

    /// As [`StoreView::has_known_roles`], once the roles of the entries of all blocks are known that may hold the job.
    fn has_roles(&self, places: &[KnownPlaces]) -> Result<bool, StoreError> {
        for (segment, known, _) in places {
            let count = self
                .log
                .blocks
                .indexes()
                .ready(segment)?
                .blocks()
                .metas()
                .len();
            for number in known.without_roles(count) {
                self.roles(segment, known, number)?;
            }
        }
        Ok(self.has_known_roles(places))
    }

    /// Whether the reader may know a job of whose entries these are the roles.
    fn makes_job(&self, joined: Role) -> bool {
        joined.is_part
            && (self.limits.minions.is_none() || joined.names_minion)
            && (self.limits.functions.is_none() || joined.names_function)
    }

    /// The roles of the entries of a block, which are remembered; `None` if the block cannot be read.
    fn roles(
        &self,
        segment: &Arc<Segment>,
        known: &AllowedBlocks,
        number: u32,
    ) -> Result<Option<Arc<Roles>>, StoreError> {
        if let Some(roles) = known.roles(number) {
            return Ok(Some(roles));
        }
        let Some(view) = self.log.blocks.block(segment, number)? else {
            return Ok(None);
        };
        // Its index was rebuilt since, and the number may mean another block.
        if !known.is_of(segment) {
            return Ok(None);
        }

        let rows = view.rows();
        let mut is_whole = true;
        let role = |at| {
            let role = self.role(segment, rows, at);
            is_whole &= role.is_some();
            role.unwrap_or_default()
        };
        let roles: Vec<Role> = (0..rows.len()).map(role).collect();

        let roles = Arc::new(Roles::new(&roles));
        // As a damaged block: the disk may read it at the next try.
        if is_whole {
            known.learn_roles(number, &roles);
        }
        Ok(Some(roles))
    }

    /// The role of an entry; `None` if its body, which decides it, cannot be read.
    fn role(&self, segment: &Arc<Segment>, rows: Rows<'_>, at: usize) -> Option<Role> {
        let kind = rows.kind(at);
        let nothing = Some(Role::default());
        // It is no part of a job.
        if rows.jid_key(at).is_none() {
            return nothing;
        }
        // Before anything is copied: most entries of most jobs are of other minions.
        let is_of_minion = matches!(kind, Kind::Return | Kind::Event);
        if is_of_minion && !self.limits.allow_minion(rows.minion(at)) {
            return nothing;
        }

        let of_return = Role {
            is_part: true,
            names_minion: true,
            names_function: true,
        };
        // The body of a return of several functions names them.
        let is_decided = self.limits.functions.is_none() || !rows.fun(at).is_empty();
        if kind == Kind::Return && is_decided {
            let is_allowed = self.limits.allow_fun(rows.fun(at));
            return Some(if is_allowed {
                of_return
            } else {
                Role::default()
            });
        }

        let with_tag = kind == Kind::Event && self.limits.tags.is_some();
        let mut entry = without_body(rows, at, String::new(), with_tag);
        if kind != Kind::Event {
            entry.set_body(self.log.blocks.body(segment, rows, at)?);
        }
        let Some(entry) = self.allowed(entry) else {
            return nothing;
        };
        Some(Role {
            is_part: true,
            names_minion: names_minion(&entry),
            names_function: rank(kind) > 0,
        })
    }

    /// What the reader may know of an entry of a job.
    fn allowed(&self, entry: StoredEntry) -> Option<StoredEntry> {
        let limits = &self.limits;
        match entry.kind {
            Kind::Load | Kind::ReturnLoad | Kind::JobNew => self.allowed_load(entry),
            Kind::Return => {
                // The column is empty for several functions, which the body names.
                let is_of_fun = if entry.fun.is_empty() && limits.functions.is_some() {
                    self.allow_funs(&entry.body)
                } else {
                    limits.allow_fun(&entry.fun)
                };
                (is_of_fun && limits.allow_minion(&entry.minion)).then_some(entry)
            }
            // The syndic's own id is left out, because it is not among the minions of the limit.
            Kind::Minions if limits.minions.is_some() => {
                let listed = msgpack::elements(&entry.body).next().unwrap_or_default();
                let mut w = Writer::new();
                w.array(2);
                self.write_minions(&mut w, listed);
                w.nil();
                Some(StoredEntry {
                    body: w.into_bytes(),
                    ..entry
                })
            }
            Kind::Minions | Kind::NoCache => Some(entry),
            // It follows the last return of any minion.
            Kind::Endtime => limits.minions.is_none().then_some(entry),
            Kind::Event => limits
                .allow_event(&entry.tag, &entry.minion, &entry.fun)
                .then_some(entry),
            // None of them is part of a job.
            Kind::Register | Kind::Gap | Kind::Reaction | Kind::SeenOnBus | Kind::Setting => None,
        }
    }

    fn allowed_load(&self, entry: StoredEntry) -> Option<StoredEntry> {
        let load = load_of(entry.kind, &entry.body);
        // One function that is not allowed hides the load: its arguments belong to all.
        if !self.allow_funs(load) {
            return None;
        }
        // Limits by functions alone leave nothing else out.
        if self.limits.minions.is_none() {
            return Some(entry);
        }

        let mut w = Writer::new();
        match entry.kind {
            // A publish event contains its minions as a key of the same map.
            Kind::JobNew => {
                let minions = msgpack::get(load, "minions");
                self.write_shared(&mut w, load, minions);
            }
            kind => {
                let is_return = kind == Kind::ReturnLoad;
                let of_minion = msgpack::get(load, "id").and_then(id_text);
                // The load is that return.
                if is_return && !self.limits.allow_minion(&of_minion.unwrap_or_default()) {
                    return None;
                }
                w.array(2);
                if is_return {
                    w.raw(load);
                } else {
                    self.write_shared(&mut w, load, None);
                }
                // Without a list, Salt wrote nil.
                let listed = msgpack::elements(&entry.body).nth(1).unwrap_or(&[0xc0]);
                self.write_minions(&mut w, listed);
            }
        }

        Some(StoredEntry {
            body: w.into_bytes(),
            ..entry
        })
    }

    /// Writes what a load shares with every reader, and the allowed ids of `minions`.
    fn write_shared(&self, w: &mut Writer, load: &[u8], minions: Option<&[u8]>) {
        let is_shared = |key: &[u8]| as_text(key).is_some_and(|key| SHARED.contains(&key));
        let shared: Vec<_> = msgpack::pairs(load)
            .filter(|(key, _)| is_shared(key))
            .collect();

        w.map(shared.len() + usize::from(minions.is_some()));
        for (key, value) in shared {
            w.raw(key).raw(value);
        }

        if let Some(minions) = minions {
            self.write_minions(w.str("minions"), minions);
        }
    }

    /// Writes the allowed ids of a list of minions; nil for nil.
    fn write_minions(&self, w: &mut Writer, listed: &[u8]) {
        if msgpack::is_nil(listed) {
            w.nil();
            return;
        }
        let is_allowed = |id: &&[u8]| id_text(id).is_some_and(|id| self.limits.allow_minion(&id));

        let allowed: Vec<_> = msgpack::elements(listed).filter(is_allowed).collect();
        w.array(allowed.len());
        for id in allowed {
            w.raw(id);
        }
    }

    /// Whether all functions that a map names are allowed.
    fn allow_funs(&self, map: &[u8]) -> bool {
        let fun = msgpack::get(map, "fun").unwrap_or_default();
        let many = funs_of(map);
        // A single function, as text.
        if many.is_empty() {
            return self.limits.allow_fun(as_text(fun).unwrap_or_default());
        }
        many.iter().all(|fun| self.limits.allow_fun(fun))
    }

    /// Whether the allowed entries of a job name something that the reader may know.
    fn has_subject(&self, entries: &[StoredEntry]) -> bool {
        let mut joined = Role::default();
        for entry in entries {
            joined |= Role {
                is_part: true,
                names_minion: names_minion(entry),
                names_function: rank(entry.kind) > 0,
            };
        }
        self.makes_job(joined)
    }

    /// As [`LogReader::job_row`]. Under limits the summary is made of the allowed entries.
    pub fn job_row(&self, jid: &str) -> Result<Option<JobSummary>, StoreError> {
        if !self.hides_jobs() {
            return self.log.job_row(jid);
        }
        with_same_numbers(|| self.allowed_row(jid))
    }

    /// The summary made of the allowed entries.
    fn allowed_row(&self, jid: &str) -> Result<Option<JobSummary>, StoreError> {
        let Some(places) = self.known_places(jid)? else {
            return Ok(None);
        };

        let one = BTreeMap::from([(jid, BTreeSet::new())]);
        let asked = Asked::of(&one);
        // The only job that is asked for.
        let numbered = |(segment, positions): EntriesIn| {
            (segment, positions.into_iter().map(|at| (at, 0)).collect())
        };
        let places: Vec<PlacesIn> = places.into_iter().map(numbered).collect();
        let job = self.read_jobs(&asked, &places)?.pop();
        Ok(job.flatten().map(|job| job.summary))
    }

    /// As [`LogReader::returns_of`], made of the allowed entries: what a list of jobs reads of them. Only loads are read whole.
    fn allowed_jobs(
        &self,
        wanted: &BTreeMap<&str, BTreeSet<&str>>,
    ) -> Result<BTreeMap<String, JobReturns>, StoreError> {
        let asked = Asked::of(wanted);
        let mut places = self.log.places_of(&asked, |_, one, _| one.is_plain)?;

        let mut joined = vec![Role::default(); asked.len()];
        for (segment, positions) in &mut places {
            let (known, _) = self.log.allowed.blocks(segment, &self.limits)?;
            let mut parts = Vec::new();
            for of_block in positions.chunk_by(|a, b| a.0.block == b.0.block) {
                let Some((first, _)) = of_block.first() else {
                    continue;
                };
                // A block that cannot be read contributes no entry.
                let Some(roles) = self.roles(segment, &known, first.block)? else {
                    continue;
                };
                for (position, number) in of_block {
                    let role = roles.of(usize::from(position.at));
                    if let Some(joined) = joined.get_mut(*number).filter(|_| role.is_part) {
                        *joined |= role;
                        parts.push((*position, *number));
                    }
                }
            }
            *positions = parts;
        }

        // Entries of jobs that the reader may not know are not looked at.
        let exists: Vec<bool> = joined.iter().map(|role| self.makes_job(*role)).collect();
        for (_, positions) in &mut places {
            positions.retain(|(_, number)| exists.get(*number).copied().unwrap_or(false));
        }

        let jobs = self.read_jobs(&asked, &places)?;
        let named = asked.iter().zip(jobs).filter(|(one, _)| one.is_plain);
        let mut found: BTreeMap<String, JobReturns> = named
            .filter_map(|(one, job)| Some((one.jid.to_owned(), job?)))
            .collect();
        // Jids that are arbitrary text are rare, and one by one they are found even if their keys collide.
        let is_plain = |jid: &str| JidKey::of(jid).text().as_deref() == Some(jid);
        for (jid, minions) in wanted.iter().filter(|(jid, _)| !is_plain(jid)) {
            let places = self.log.job_places(jid)?;
            let page = self.page_at(&places, (jid, JobPart::ALL), |_| true)?;
            let entries = page.entries;
            if let Some(summary) = summary(&entries) {
                let is_cached = entries
                    .iter()
                    .any(|entry| is_of_cached_job(entry.kind, entry.flags));
                let is_wanted = |entry: &StoredEntry| {
                    entry.kind == Kind::Return && minions.contains(entry.minion.as_str())
                };
                let returns = entries.into_iter().filter(is_wanted).collect();
                let job = JobReturns {
                    summary,
                    is_cached,
                    returns,
                };
                found.insert((*jid).to_owned(), job);
            }
        }
        Ok(found)
    }

    /// Jobs made of the allowed entries at these places.
    fn read_jobs(
        &self,
        asked: &[Asked<'_>],
        places: &[PlacesIn],
    ) -> Result<Vec<Option<JobReturns>>, StoreError> {
        let mut jobs: Vec<AllowedJob> = Vec::new();
        jobs.resize_with(asked.len(), AllowedJob::default);
        LogReader::each_place(
            asked,
            places,
            |segment, block| self.log.blocks.block(segment, block),
            |number, one, place| {
                if let Some(job) = jobs.get_mut(number) {
                    self.take(job, one, place);
                }
                Ok(())
            },
        )?;
        jobs.into_iter().map(|job| self.joined(job)).collect()
    }

    /// Adds an entry of a job, if the reader may know it.
    fn take(&self, job: &mut AllowedJob, one: &Asked<'_>, place: Place<'_>) {
        let rows = place.rows;
        let at = place.at();
        let kind = place.rows.kind(place.at());
        let is_of_minion = matches!(kind, Kind::Return | Kind::Event);
        if !is_of_minion {
            // Noted, and the rest of the job is worth having.
            let Some(body) = self.log.blocks.body(place.segment, rows, at) else {
                return;
            };
            let mut entry = without_body(rows, at, one.jid.to_owned(), false);
            entry.set_body(body);
            if let Some(entry) = self.allowed(entry) {
                job.arrived(entry.at);
                job.others.push(entry);
            }
            return;
        }

        // Nothing is copied of an entry that only counts.
        if !self
            .role(place.segment, rows, at)
            .unwrap_or_default()
            .is_part
        {
            return;
        }
        job.arrived(rows.at(at));
        if kind == Kind::Event {
            return;
        }
        let seq = rows.seq(at);
        job.has_returns |= job.first_return.is_some();
        if job
            .first_return
            .as_ref()
            .is_none_or(|(first, ..)| seq < *first)
        {
            job.first_return = Some((seq, place.segment.clone(), place.position));
        }
        if one.minions.contains(rows.minion(at)) {
            let entry = without_body(rows, at, one.jid.to_owned(), false);
            job.returns.push(entry);
        }
    }

    /// A job from its allowed entries; `None` if they name nothing that the reader may know.
    fn joined(&self, mut job: AllowedJob) -> Result<Option<JobReturns>, StoreError> {
        // A return names an allowed minion and an allowed function.
        let exists = job.first_return.is_some() || self.has_subject(&job.others);
        let Some(first_at) = job.first_at.filter(|_| exists) else {
            return Ok(None);
        };

        let is_cached = job
            .others
            .iter()
            .any(|entry| is_of_cached_job(entry.kind, entry.flags));
        // A return describes the job only if nothing better does.
        let best = job.others.iter().map(|entry| rank(entry.kind)).max();
        if best.unwrap_or(0) < rank(Kind::Return)
            && let Some((seq, segment, position)) = &job.first_return
        {
            let at = (position.block, usize::from(position.at));
            job.others
                .extend(self.log.blocks.stored_again(segment, at, *seq)?);
        }

        job.others.sort_by_key(|entry| entry.seq);
        job.returns.sort_by_key(|entry| entry.seq);
        let summary = summary(&job.others).map(|summary| JobSummary {
            first_at: first_at.0,
            // Only the first return was taken.
            contested: summary.contested || summary.rank == rank(Kind::Return) && job.has_returns,
            ..summary
        });
        Ok(summary.map(|summary| JobReturns {
            summary,
            is_cached,
            returns: job.returns,
        }))
    }

    /// Up to `limit` job summaries with keys below `before`, the latest first. Under limits the
    /// read ends early after some hidden jobs.
    pub fn jobs_before(&self, before: Option<JidKey>, limit: usize) -> Result<JobRows, StoreError> {
        let mut found = JobRows::default();

        if !self.hides_jobs() {
            // Without limits a single read returns all rows.
            found.rows = self.log.jobs_before(before, limit)?;
            found.seen = found.rows.len();
            let last = found.rows.last().map(|(key, _)| *key);
            found.next = last.filter(|_| found.rows.len() >= limit);
            return Ok(found);
        }

        found.next = before;
        // Bounded by the jobs that were examined, hidden jobs included.
        let mut at_once = limit.clamp(ALLOWED_JOBS_AT_ONCE, JOBS_READ_AT_ONCE);
        while found.rows.len() < limit && found.seen < LIST_JOBS_READ {
            let rows = self.log.jobs_before(found.next, at_once)?;
            let is_end = rows.len() < at_once;
            let mut left = rows.as_slice();
            while !left.is_empty() && found.rows.len() < limit {
                // Not many more than are missing, and not one by one.
                let wanted = (limit - found.rows.len()).clamp(8, ALLOWED_JOBS_AT_ONCE);
                let (part, _) = left.split_at(wanted.min(left.len()));
                let keys = part.iter().map(|(_, row)| (&*row.jid, BTreeSet::new()));
                let keys = keys.collect();
                let mut allowed = with_same_numbers(|| self.allowed_jobs(&keys))?;
                for (key, row) in part {
                    if found.rows.len() >= limit {
                        break;
                    }
                    left = left.get(1..).unwrap_or_default();
                    found.seen += 1;
                    found.next = Some(*key);
                    let job = allowed.remove(&row.jid);
                    found.rows.extend(job.map(|job| (*key, job.summary)));
                }
            }

            // Fewer than asked for: the list ends here.
            if is_end && left.is_empty() {
                found.next = None;
                break;
            }
            at_once = at_once.saturating_mul(2).min(JOBS_READ_AT_ONCE);
        }

        Ok(found)
    }

    /// As [`LogReader::jobs_at_most`]; unknown under limits.
    pub fn jobs_at_most(&self) -> u64 {
        if self.hides_jobs() {
            return 0;
        }
        self.log.jobs_at_most()
    }

    /// As [`LogReader::returns_of`].
    pub fn returns_of(
        &self,
        wanted: &BTreeMap<&str, BTreeSet<&str>>,
    ) -> Result<BTreeMap<String, JobReturns>, StoreError> {
        if !self.hides_jobs() {
            return self.log.returns_of(wanted);
        }
        with_same_numbers(|| self.allowed_jobs(wanted))
    }

    /// Those that Salt's master stored through the extension, see
    /// [`JobSummary::is_cached_by_salt`], of jobs of which the reader may know a return.
    pub fn cached_by_salt<'a>(
        &self,
        jids: &BTreeSet<&'a str>,
    ) -> Result<BTreeSet<&'a str>, StoreError> {
        let wanted = jids.iter().map(|jid| (*jid, BTreeSet::new())).collect();
        let known = self.log.returns_of(&wanted)?;
        let mut cached = BTreeSet::new();
        for jid in jids {
            // Of jobs with equal keys `returns_of` knows only one.
            let row = match known.get(*jid) {
                Some(job) => Some(job.summary.clone()),
                None => self.log.job_row(jid)?,
            };

            let Some(row) = row else {
                continue;
            };

            let mut is_cached = row.is_cached_by_salt();
            // An allowed load decides it, and limits add no entry: most jobs need not be read. But
            // an excluded load may hide other loads.
            let is_decided =
                self.allows_load_of(&row) && is_cached == (row.rank == rank(Kind::Load));
            if self.hides_jobs() && !is_decided {
                let row = with_same_numbers(|| self.allowed_row(jid))?;
                is_cached = row.is_some_and(|row| row.is_cached_by_salt());
            }

            if is_cached {
                cached.insert(*jid);
            }
        }
        Ok(cached)
    }

    /// Whether the load that a summary shows is one that the reader may know.
    fn allows_load_of(&self, row: &JobSummary) -> bool {
        let is_allowed = |fun: &str| self.limits.allow_fun(fun);
        // One function, as text; several are an array.
        if let Some(fun) = as_text(&row.fun) {
            return is_allowed(fun);
        }
        let mut funs = msgpack::elements(&row.fun).peekable();
        funs.peek().is_some() && funs.all(|fun| as_text(fun).is_some_and(is_allowed))
    }

    /// As [`LogReader::latest_of`].
    pub fn latest_of(&self, fun: &str) -> Result<BTreeMap<String, LatestJob>, StoreError> {
        Ok(self.allowed_latest(fun, self.log.latest_of(fun)?))
    }

    /// As [`LogReader::latest_on_bus_only`].
    pub fn latest_on_bus_only(&self, fun: &str) -> Result<BTreeMap<String, LatestJob>, StoreError> {
        Ok(self.allowed_latest(fun, self.log.latest_on_bus_only(fun)?))
    }

    fn allowed_latest(
        &self,
        fun: &str,
        mut latest: BTreeMap<String, LatestJob>,
    ) -> BTreeMap<String, LatestJob> {
        latest.retain(|minion, _| self.limits.allow_fun(fun) && self.limits.allow_minion(minion));
        latest
    }

    /// As [`LogReader::latest_jobs`].
    pub fn latest_jobs(
        &self,
        wanted: &dyn Fn(&[u8], &[u8]) -> bool,
    ) -> Result<Vec<(LatestJob, bool)>, StoreError> {
        if !self.hides_jobs() {
            return self.log.latest_jobs(wanted);
        }
        // The limits first, as everywhere.
        self.log.latest_jobs(&|fun, minion| {
            let [fun_text, minion_text] = [fun, minion].map(String::from_utf8_lossy);
            self.limits.allow_minion(&minion_text)
                && self.limits.allow_fun(&fun_text)
                && wanted(fun, minion)
        })
    }

    /// As [`LogReader::minions`].
    pub fn minions(&self, confirmed_only: bool) -> Result<Vec<String>, StoreError> {
        let rows = self.latest_jobs(&|_, _| true)?.into_iter();
        let counted = rows.filter(|(_, is_bus_only)| !(confirmed_only && *is_bus_only));
        let ids: BTreeSet<Vec<u8>> = counted.map(|(row, _)| row.minion).collect();
        Ok(ids
            .into_iter()
            .filter_map(|minion| String::from_utf8(minion).ok())
            .collect())
    }

    /// As [`LogReader::last_seen`]. Under limits the time since which entries were examined is
    /// rounded to a full hour, because it is the time of an entry of any minion.
    pub fn last_seen(
        &self,
        entries_max: usize,
        wanted: Option<&BTreeSet<&str>>,
    ) -> Result<LastSeen, StoreError> {
        let mut seen = self.log.last_seen(entries_max, wanted)?;
        // After the search, which examines the same entries in any case.
        if self.is_limited() {
            seen.minions
                .retain(|minion, _| self.limits.allow_minion(minion));
            // Rounded up: the exact time belongs to an entry of any minion.
            let full_hour = |at: Micros| {
                let hours = at.0.div_euclid(HOUR_US).saturating_add(1);
                Micros(hours.saturating_mul(HOUR_US))
            };

            seen.since = seen.since.map(full_hour);
        }
        Ok(seen)
    }
}

/// Whether an entry names a minion; an allowed entry names only minions that the reader may know.
fn names_minion(entry: &StoredEntry) -> bool {
    match entry.kind {
        Kind::Return | Kind::ReturnLoad => true,
        Kind::Load => has_elements(msgpack::elements(&entry.body).nth(1)),
        Kind::Minions => has_elements(msgpack::elements(&entry.body).next()),
        Kind::JobNew => has_elements(msgpack::get(&entry.body, "minions")),
        _ => false,
    }
}

fn has_elements(list: Option<&[u8]>) -> bool {
    list.is_some_and(|list| msgpack::elements(list).next().is_some())
}

/// The summary that an index would have of these entries of a job; `None` without any.
pub(crate) fn summary(entries: &[StoredEntry]) -> Option<JobSummary> {
    let first = entries.iter().min_by_key(|entry| entry.at)?;

    let mut summary = JobSummary {
        jid: first.jid.clone(),
        first_at: first.at.0,
        ..JobSummary::default()
    };
    for entry in entries {
        summary.update(entry.seq, &entry.as_entry());
    }
    Some(summary)
}
