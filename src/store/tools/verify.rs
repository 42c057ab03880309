//! `verify`: is everything that lies on disk what was written there?
//!
//! Reads every log. Beside a running daemon the growing segments are read up to the size they have at the beginning: what
//! is below it was written in whole. The indexes are the daemon's while it runs, and are compared with the logs only
//! if none does.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::compare::{self, Difference};
use super::layout::{self, Place};
use super::seqs::SeqSet;
use super::{ToolError, Watch, files};
use crate::limits::VERIFY_PROBLEMS_MAX;
use crate::model::SeqNo;
use crate::store::block::BlockView;
use crate::store::error::io_at;
use crate::store::format::{self, FORMAT_VERSION};
use crate::store::frame::LogId;
use crate::store::index::Facts;
use crate::store::log::{BlockMeta, LogFile};
use crate::store::medium::{Disk, Medium};
use crate::store::segment::{Index, Segment};
use crate::store::walk::{self, Bounds, Stretch, Walked};
use crate::store::{Class, StoreError};

/// Something that is not as it should be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// The file, or the directory.
    pub path: PathBuf,
    /// Where in it.
    pub offset: Option<u64>,
    /// How many bytes.
    pub bytes: Option<u64>,
    /// What is wrong.
    pub what: String,
    /// What it costs, and what to do.
    pub means: String,
    /// Entries that it costs, at most.
    pub entries_lost: u64,
    /// The numbers before and behind what is damaged.
    gap: Option<(SeqNo, SeqNo)>,
}

/// What became of checking the indexes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Indexes {
    /// So many segments' indexes were compared with their logs.
    Compared(u64),
    /// They were not, and why.
    Skipped(String),
}

/// What was found.
#[derive(Debug)]
pub struct Report {
    /// The version of the format.
    pub format: u32,
    /// The daemon that has the store.
    pub holder: Option<String>,
    /// Segments read.
    pub segments: u64,
    /// Good frames in them.
    pub frames: u64,
    /// Entries in those.
    pub entries: u64,
    /// Bytes of the logs.
    pub log_bytes: u64,
    /// What became of the indexes.
    pub indexes: Indexes,
    /// Damage.
    pub problems: Vec<Problem>,
    /// Problems left out of the list.
    pub problems_more: u64,
    /// Oddities that cost nothing.
    pub notes: Vec<Problem>,
}

impl Report {
    /// Entries lost, at most.
    pub fn entries_lost(&self) -> u64 {
        self.problems.iter().map(|problem| problem.entries_lost).sum()
    }

    fn damage(&mut self, problem: Problem) {
        if self.problems.len() < VERIFY_PROBLEMS_MAX {
            self.problems.push(problem);
        } else {
            self.problems_more += 1;
        }
    }
}

fn about(path: &Path, what: impl Into<String>, means: impl Into<String>) -> Problem {
    let (what, means) = (what.into(), means.into());
    Problem { path: path.to_owned(), offset: None, bytes: None, what, means, entries_lost: 0, gap: None }
}

/// What to check.
#[derive(Debug, Clone, Copy, Default)]
pub struct Options {
    /// The heads of frames alone: no bodies, no indexes.
    pub quick: bool,
}

/// Checks a store. An error means that it could not be checked, not that it is damaged.
pub fn verify(dir: &Path, options: Options, watch: &mut dyn Watch) -> Result<Report, ToolError> {
    let store_id = layout::check_store(dir)?;
    let holder = layout::holder(dir)?;
    let places = layout::segments(dir)?;
    let mut total = 0;
    let mut opened = Vec::new();
    for mut place in places {
        // Opened at once, and at their size now: retention and sealing may go on meanwhile.
        let Some(file) = place.open_log()? else { continue };
        let log = LogFile::of(&place.log(), Box::new(file), place.id(store_id));
        let size = if place.is_sealed { log.size()? } else { walk::end(&log)? };
        total += size;
        // A store of many segments would need as many open files; finished ones can be opened again.
        let log = (!place.is_sealed).then_some(log);
        opened.push((place, log, size));
    }
    let mut report = Report {
        format: FORMAT_VERSION,
        holder,
        segments: 0,
        frames: 0,
        entries: 0,
        log_bytes: 0,
        indexes: Indexes::Compared(0),
        problems: Vec::new(),
        problems_more: 0,
        notes: Vec::new(),
    };
    for path in layout::foreign(dir)? {
        report.notes.push(about(&path, "saltcellar did not put this here", "it is not looked at"));
    }
    for place in layout::without_log(dir)? {
        let means = "every entry that was in it is lost: put it back from a backup";
        report.damage(about(&place.log(), "the log of a segment is not there", means));
    }
    let mut check =
        Check { options, store_id, seqs: SeqSet::default(), last_seq: SeqNo::default(), done: 0, total };
    let mut class_name = String::new();
    let mut scans = Vec::new();
    let mut names: Vec<_> =
        opened.iter().map(|(place, ..)| (place.class_name.clone(), place.first_seq)).collect();
    names.reverse();
    for (mut place, log, size) in opened {
        names.pop();
        let next =
            names.last().filter(|(class_name, _)| *class_name == place.class_name).map(|(_, seq)| *seq);
        if class_name != place.class_name {
            class_name.clone_from(&place.class_name);
            check.last_seq = SeqNo::default();
        }
        let Some((log, size)) = reopened(&mut place, store_id, log, size)? else { continue };
        let scanned = check.segment((&place, next), &log, size, &mut report, watch)?;
        scans.push((place, scanned));
    }
    count_gaps(&mut report.problems, &check.seqs);
    sequence(dir, check.seqs.last(), &mut report)?;
    report.indexes = indexes((dir, store_id), options, &scans, &mut report, watch)?;
    Ok(report)
}

/// A log that was not kept open; none if retention has dropped the segment since.
fn reopened(
    place: &mut Place,
    store_id: u64,
    log: Option<LogFile>,
    size: u64,
) -> Result<Option<(LogFile, u64)>, StoreError> {
    if let Some(log) = log {
        return Ok(Some((log, size)));
    }
    let Some(file) = place.open_log()? else { return Ok(None) };
    let log = LogFile::of(&place.log(), Box::new(file), place.id(store_id));
    let size = log.size()?;
    Ok(Some((log, size)))
}

struct Check {
    options: Options,
    store_id: u64,
    seqs: SeqSet,
    /// The last number of the class so far.
    last_seq: SeqNo,
    done: u64,
    total: u64,
}

impl Check {
    fn segment(
        &mut self,
        (place, next): (&Place, Option<SeqNo>),
        log: &LogFile,
        size: u64,
        report: &mut Report,
        watch: &mut dyn Watch,
    ) -> Result<Walked, ToolError> {
        let name = place.name();
        header(place, log, place.id(self.store_id), report)?;
        let (mut last_seq, before) = (self.last_seq, self.done);
        let (seqs, total, quick) = (&mut self.seqs, self.total, self.options.quick);
        let mut scanned = walk::walk(log, Bounds::of_log(size), !quick, |meta, view| {
            watch.step(before + meta.end(), total, &name);
            let fault = block(meta, view, quick, &mut last_seq, place.first_seq, seqs);
            last_seq = last_seq.max(meta.last_seq);
            fault
        })?;
        self.last_seq = last_seq;
        self.done += size;
        watch.step(self.done, self.total, &name);
        if !place.grows() {
            scanned = scanned.finished();
        }
        for unfinished in std::mem::take(&mut scanned.unfinished) {
            Self::tail(place, log.path(), &unfinished, report);
        }
        for stretch in std::mem::take(&mut scanned.damaged) {
            report.damage(lost(log.path(), &stretch));
        }
        if let Some(mut tail) = scanned.tail.take() {
            tail.before = next;
            Self::tail(place, log.path(), &tail, report);
        }
        report.segments += 1;
        report.frames += scanned.frames;
        report.entries += scanned.entries;
        report.log_bytes += size;
        Ok(scanned)
    }

    fn tail(place: &Place, path: &Path, tail: &Stretch, report: &mut Report) {
        if !place.grows() {
            return report.damage(lost(path, tail));
        }
        if report.holder.is_none() {
            let what = format!("an unfinished write of {} bytes", tail.bytes);
            let means = "it was never answered as stored; the next start removes it and keeps a copy";
            report.notes.push(Problem {
                offset: Some(tail.offset),
                bytes: Some(tail.bytes),
                ..about(path, what, means)
            });
        }
    }
}

/// The header of a log: what the daemon says of it at start, and more.
fn header(place: &Place, log: &LogFile, id: LogId, report: &mut Report) -> Result<(), ToolError> {
    let path = log.path();
    let at_0 = |what: &str, means: &str| Problem { offset: Some(0), bytes: None, ..about(path, what, means) };
    let Some(header) = log.header()? else {
        let means = "costs nothing by itself: the frames are read all the same";
        report.damage(at_0("the header of the log is damaged", means));
        return Ok(());
    };
    if let Some(what) = header.contradicts(&place.class_name, id) {
        let means = "a directory was renamed or copied; the daemon refuses to start on it. Name it as it was";
        report.damage(at_0(&what, means));
    }
    Ok(())
}

/// What is wrong with a block behind a good checksum.
fn block(
    meta: &BlockMeta,
    view: &BlockView,
    quick: bool,
    last_seq: &mut SeqNo,
    first_seq: SeqNo,
    seqs: &mut SeqSet,
) -> Option<String> {
    let rows = view.rows();
    if meta.first_seq <= *last_seq {
        return Some(format!(
            "its first entry is number {}, and {} came before it",
            meta.first_seq.0, last_seq.0
        ));
    }
    if meta.first_seq < first_seq {
        return Some(format!("its first entry is number {}, less than the segment's", meta.first_seq.0));
    }
    let mut before = None;
    for at in 0..rows.len() {
        let seq = rows.seq(at);
        if before.is_some_and(|before| seq <= before) {
            return Some(format!("the numbers of its entries do not ascend at {}", seq.0));
        }
        before = Some(seq);
        if !seqs.insert(seq) {
            return Some(format!("number {} is there twice", seq.0));
        }
        if !quick && let Err(what) = rows.body(at) {
            return Some(format!("entry {}: {what}", seq.0));
        }
    }
    None
}

/// A stretch of a log as a problem. What it costs is known when all logs are read.
fn lost(path: &Path, stretch: &Stretch) -> Problem {
    let mut problem = about(path, stretch.what.clone(), "");
    (problem.offset, problem.bytes) = (Some(stretch.offset), Some(stretch.bytes));
    match (stretch.entries, stretch.before) {
        (Some((first, last, count)), _) => {
            problem.entries_lost = count;
            problem.means = format!("{count} entries are lost, numbers {} to {}", first.0, last.0);
        }
        (None, Some(before)) => problem.gap = Some((stretch.after, before)),
        (None, None) => {
            problem.means = format!("entries from number {} on may be lost", stretch.after.0 + 1);
        }
    }
    problem
}

/// Says what is lost in gaps: numbers that no other log has.
fn count_gaps(problems: &mut [Problem], seqs: &SeqSet) {
    for problem in problems {
        let Some((after, before)) = problem.gap else { continue };
        problem.entries_lost = seqs.missing_between(after, before);
        problem.means = match problem.entries_lost {
            0 => "no entry can have been here".to_owned(),
            most => format!(
                "at most {most} entries are lost, of numbers {} to {}",
                after.0 + 1,
                before.0.saturating_sub(1)
            ),
        };
    }
}

/// The file of numbers set aside must not be behind the log.
fn sequence(dir: &Path, last: Option<SeqNo>, report: &mut Report) -> Result<(), ToolError> {
    let path = dir.join("SEQUENCE");
    let Some(text) = files::text(&path)? else { return Ok(()) };
    let last = last.unwrap_or_default();
    match text.trim_end().parse::<u64>() {
        Ok(end) if end > last.0 => {}
        Ok(end) => {
            let what = format!("it says {end}, and the log has entry {}", last.0);
            report.notes.push(about(&path, what, "the next start goes on behind the log"));
        }
        Err(_) => {
            let means = "numbers that were given out and whose entries are lost may be given out again. \
                         Write a number into it that is larger than any seen";
            report.damage(about(&path, "it holds no number", means));
        }
    }
    Ok(())
}

fn indexes(
    (dir, store_id): (&Path, u64),
    options: Options,
    scans: &[(Place, Walked)],
    report: &mut Report,
    watch: &mut dyn Watch,
) -> Result<Indexes, ToolError> {
    if options.quick {
        return Ok(Indexes::Skipped("--quick reads the heads of frames alone".to_owned()));
    }
    if let Some(holder) = &report.holder {
        return Ok(Indexes::Skipped(format!(
            "{holder} has them open, and checks each when it opens it; to compare them with the logs, stop it first"
        )));
    }
    let total = scans.iter().filter(|(place, _)| place.is_sealed).map(|(_, scanned)| scanned.end).sum();
    let (mut done, mut compared) = (0, 0);
    let mut facts = Vec::new();
    for (place, scanned) in scans {
        let name = (place.class_name.clone(), place.first_seq);
        if !place.is_sealed {
            facts.push((name.0, name.1, None));
            continue;
        }
        watch.step(done, total, &format!("index of {}", place.name()));
        done += scanned.end;
        compared += 1;
        let means = "costs no entry: the daemon makes it again from the log when it notices, \
                     `saltcellar store rebuild` does now";
        let path = place.dir.join("index");
        let known = match compare(dir, store_id, place) {
            Ok((known, None)) => Some(known),
            Ok((_, Some(what))) | Err(StoreError::Index { what, .. }) => {
                report.damage(about(&path, what, means));
                None
            }
            Err(error) => return Err(error.into()),
        };
        facts.push((name.0, name.1, known));
    }
    catalogue(dir, &facts, report)?;
    Ok(Indexes::Compared(compared))
}

/// What the state database says of segments; it also tells that one is gone.
fn catalogue(
    dir: &Path,
    facts: &[(String, SeqNo, Option<Facts>)],
    report: &mut Report,
) -> Result<(), ToolError> {
    let path = dir.join("state");
    if !path.is_dir() {
        // A store that was salvaged or restored has none before its first start.
        if facts.iter().all(|(.., known)| known.is_none()) {
            return Ok(());
        }
        let means = "costs no entry: the next start makes it again; until then nobody can tell whether segments are missing";
        report.notes.push(about(&path, "the state database is missing", means));
        return Ok(());
    }
    let scratch = Scratch::new()?;
    let copy = scratch.0.join("state");
    copy_dir(&path, &copy)?;
    let differences = match compare::catalogue(&copy, facts) {
        Err(StoreError::Index { what, .. }) => {
            let means = "costs no entry: the next start makes it again; until then nobody can tell whether segments are missing";
            report.damage(about(&path, what, means));
            return Ok(());
        }
        differences => differences?,
    };
    for (class_name, first_seq, difference) in differences {
        let segment = format::class_dir(dir, &class_name).join(format::segment_name(first_seq));
        let log = segment.join("log");
        match difference {
            Difference::Missing { entries, last_seq } => {
                let (first, last) = (first_seq.0, last_seq.0);
                let means = format!(
                    "{entries} entries are lost, of numbers {first} to {last}: restore it from a backup"
                );
                // Its directory may be there; then this is more exact.
                report.problems.retain(|problem| problem.path != log);
                let problem = about(&log, "the segment is not there", means);
                report.damage(Problem { entries_lost: entries, ..problem });
            }
            Difference::Facts => {
                let means = "costs no entry; `saltcellar store rebuild` mends it";
                report.damage(about(&segment, "the state database says something else of it", means));
            }
        }
    }
    Ok(())
}

/// The first difference between a sealed index and the log beside it, and what the index knows. A copy is opened: sled
/// writes into what it opens.
fn compare(dir: &Path, store_id: u64, place: &Place) -> Result<(Facts, Option<String>), StoreError> {
    let scratch = Scratch::new()?;
    let copy = scratch.0.join("index");
    copy_dir(&place.dir.join("index"), &copy)?;
    let name: Arc<str> = place.class_name.as_str().into();
    let medium: Arc<dyn Medium> = Arc::new(Disk);
    let segment = Segment::open(&medium, dir, (Class::JOBS, name), place.id(store_id), Index::Closed)?;
    let (expected, _) = segment.walk()?;
    compare::difference(&copy, &expected)
}

/// A directory that goes when it is dropped.
struct Scratch(PathBuf);

impl Scratch {
    fn new() -> Result<Self, StoreError> {
        use std::os::unix::fs::DirBuilderExt as _;
        let parent = std::env::temp_dir();
        for number in 0..1000 {
            let path = parent.join(format!("saltcellar-verify-{}-{number}", std::process::id()));
            match std::fs::DirBuilder::new().mode(0o700).create(&path) {
                Err(e) if e.kind() == std::io::ErrorKind::AlreadyExists => {}
                made => {
                    made.map_err(io_at("create", &path))?;
                    return Ok(Self(path));
                }
            }
        }
        Err(StoreError::Failed(format!("make a directory in {}: all names are taken", parent.display())))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn copy_dir(from: &Path, to: &Path) -> Result<(), StoreError> {
    std::fs::create_dir(to).map_err(io_at("create", to))?;
    for path in files::list(from)? {
        let Some(name) = path.file_name() else { continue };
        if path.is_dir() {
            copy_dir(&path, &to.join(name))?;
        } else {
            std::fs::copy(&path, to.join(name)).map_err(io_at("copy", &path))?;
        }
    }
    Ok(())
}
