//! `verify`: checks that the data on disk is what was written.
//!
//! Reads every log, and every file that cannot be rebuilt. Beside a running daemon, active logs are
//! read up to their size at the start of the check. The indexes are compared with the logs only if
//! no daemon has them open.

pub mod compare;
pub mod small_files;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::known::{FoundNumbers, KnownSegment, known_segments};
use super::layout::{self, DaemonWatch, FoundLog, SegmentFiles};
use super::{ToolError, Watch};
use crate::format;
use crate::index::SegmentMetadata;
use crate::index::sealed::SealedIndex;
use crate::index::state::StateDatabase;
use crate::index::tree::sled_guard::DatabaseCopy;
use crate::log::block::BlockView;
use crate::log::file::{BlockMeta, LogFile};
use crate::log::frame::LogId;
use crate::log::walk::{self, Bounds, DamagedRange, Walked};
use crate::segment::Segment;
use crate::segment::removal::{left_in_trash, was_dropped};
use crate::settings::{FoundSettings, INCOMPLETE, loss_text};
use crate::skipped::SkippedNumbers;
use crate::stopped::Stopped;
use crate::tools::seqs::SeqSet;
use crate::vfs::{Disk, Fs};
use crate::write::seqno::{SEQUENCE, SequenceFile};
use crate::{Class, StoreError};
use compare::CatalogueDifference;
use saltcellar_base::limits::VERIFY_PROBLEMS_MAX;
use saltcellar_model::{SETTINGS, SeqNo};
use small_files::{CheckFile, FileFault};

/// A finding.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// The file.
    pub path: PathBuf,
    /// Offset of the finding in the file.
    pub offset: Option<u64>,
    /// Length of the affected range.
    pub bytes: Option<u64>,
    /// What is wrong.
    pub what: String,
    /// Consequence and remedy.
    pub means: String,
    /// The entries lost: their number, or an upper bound.
    pub entries_lost: u64,
    /// Whether `entries_lost` is their number.
    pub exact: bool,
    /// The sequence numbers before and after the damaged range.
    gap: Option<(SeqNo, SeqNo)>,
}

/// Result of the comparison of indexes with logs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum IndexCheck {
    /// This many were compared.
    Compared(u64),
    /// Not compared, and why.
    Skipped(String),
}

/// What was verified, and the findings.
#[derive(Debug)]
pub struct VerifyReport {
    /// Version of the format.
    pub format: u32,
    /// The daemon that has the store open.
    pub holder: Option<String>,
    /// Number of segments.
    pub segments: u64,
    /// Number of good frames.
    pub frames: u64,
    /// Entries of good frames.
    pub entries: u64,
    /// Bytes of logs.
    pub log_bytes: u64,
    /// Whether indexes equal their logs.
    pub indexes: IndexCheck,
    /// The findings, up to a limit.
    pub problems: Vec<Problem>,
    /// Number of problems omitted from the list.
    pub problems_more: u64,
    /// Findings without consequences.
    pub notes: Vec<Problem>,
}

impl VerifyReport {
    /// The entries lost: their number, or an upper bound.
    pub fn entries_lost(&self) -> u64 {
        self.problems
            .iter()
            .map(|problem| problem.entries_lost)
            .sum()
    }

    /// Whether [`Self::entries_lost`] is their number.
    pub fn is_exact(&self) -> bool {
        self.problems_more == 0 && self.problems.iter().all(|problem| problem.exact)
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
    Problem {
        path: path.to_owned(),
        offset: None,
        bytes: None,
        what,
        means,
        entries_lost: 0,
        exact: true,
        gap: None,
    }
}

/// How thorough it is.
#[derive(Debug, Clone, Copy, Default)]
pub struct VerifyOptions {
    /// Verify only the heads of frames: no bodies, no indexes.
    pub quick: bool,
}

/// Verifies a store. An error means that the check could not be completed, not that the store is
/// damaged.
pub fn verify(
    dir: &Path,
    options: VerifyOptions,
    check_file: &CheckFile<'_>,
    watch: &mut dyn Watch,
) -> Result<VerifyReport, ToolError> {
    for _ in 0..VERIFY_TRIES {
        let daemon = DaemonWatch::begin(dir)?;
        let verified = verify_once(dir, daemon.holder.clone(), options, check_file, watch);

        // With a daemon, nothing is judged that it may change.
        if daemon.holder.is_some() || !daemon.has_started()? {
            return verified;
        }
        // One that started meanwhile has changed what was compared. Even an error may come of it.
        tracing::info!(dir = %dir.display(), "a daemon has opened the store during the check, checking again");
    }

    Err(StoreError::Refused(format!(
        "cannot verify {}: daemons were started and stopped during each of {VERIFY_TRIES} checks; keep the daemon running, or stopped, and try again",
        dir.display()
    ))
    .into())
}

/// Attempts to check a store without a daemon whose daemon is started meanwhile.
const VERIFY_TRIES: usize = 3;

/// As [`verify`]. `holder` is the daemon that has the store open, if any.
fn verify_once(
    dir: &Path,
    holder: Option<String>,
    options: VerifyOptions,
    check_file: &CheckFile<'_>,
    watch: &mut dyn Watch,
) -> Result<VerifyReport, ToolError> {
    // `FORMAT` first: without the store id no frame can be recognized.
    let store_id = layout::check_store(dir)?;

    let segments = layout::segments(dir)?;
    let stopped = Stopped::read(dir)?;
    // Derived data is compared only if it does not change meanwhile.
    let databases = holder.is_none() && !options.quick;
    let known = known_segments(
        (dir, store_id),
        &segments,
        databases,
        stopped.as_ref().and_then(Option::as_ref),
    );

    let mut total = 0;
    let (mut opened, mut unreadable) = (Vec::new(), Vec::new());
    for mut segment in segments {
        // Opened and measured before any log is read: retention and sealing may continue meanwhile.
        let file = match segment.open_log()? {
            FoundLog::Open(file) => file,
            FoundLog::Dropped => continue,
            FoundLog::Unreadable(why) => {
                unreadable.push(unreadable_log(&segment, &why));
                continue;
            }
        };

        let log = LogFile::of(&segment.log(), Box::new(file), segment.id(store_id));
        let size = if segment.is_sealed {
            log.size()?
        } else {
            walk::end(&log)?.0
        };

        total += size;
        // Keep only active logs open, to limit open files; finished ones can be reopened.
        let log = (!segment.is_sealed).then_some(log);
        opened.push((segment, log, size));
    }

    let mut report = VerifyReport {
        format: crate::FORMAT_VERSION,
        holder,
        segments: 0,
        frames: 0,
        entries: 0,
        log_bytes: 0,
        indexes: IndexCheck::Compared(0),
        problems: Vec::new(),
        problems_more: 0,
        notes: Vec::new(),
    };

    for problem in unreadable {
        report.damage(problem);
    }
    for path in layout::foreign(dir)? {
        report
            .notes
            .push(about(&path, "unknown file", "saltcellar ignores it"));
    }
    for segment in layout::without_log(dir)? {
        let means = "all its entries are lost: restore it from a backup";
        report.damage(about(&segment.log(), "log of a segment missing", means));
    }

    for fault in small_files::check((dir, store_id), stopped.as_ref(), check_file)? {
        match fault {
            // A running daemon may be in the middle of that write.
            FileFault { is_note: true, .. } if report.holder.is_some() => {}
            FileFault {
                is_note: true,
                path,
                what,
            } => report.notes.push(about(
                &path,
                what,
                "an unfinished write, which was never acknowledged; the daemon ignores it",
            )),
            FileFault { path, what, .. } => report.damage(about(&path, what, UNREBUILDABLE)),
        }
    }
    let position = stopped.as_ref().and_then(Option::as_ref);
    let position = position.and_then(|stopped| stopped.settings);
    settings((dir, store_id), position, &mut report)?;

    // After the logs are measured: their numbers were reserved before they were written.
    let numbers = SequenceFile::read(&Disk, dir)?.flatten();

    let mut check = Verifier {
        options,
        store_id,
        known: known
            .iter()
            .map(|known| (known.class_name.clone(), known.first_seq))
            .collect(),
        end: numbers.as_ref().map(|numbers| numbers.end),
        found: FoundNumbers::default(),
        skipped: numbers.map(|numbers| numbers.skipped).unwrap_or_default(),
        seqs: SeqSet::default(),
        last_seq: SeqNo::default(),
        done: 0,
        total,
    };

    let mut class_name = String::new();
    let mut scans = Vec::new();
    // Reversed, so that the name after the current segment is at the end.
    let mut names: Vec<_> = opened
        .iter()
        .map(|(segment, ..)| (segment.class_name.clone(), segment.first_seq))
        .collect();

    names.reverse();
    for (mut segment, log, size) in opened {
        names.pop();
        let next = names
            .last()
            .filter(|(class_name, _)| *class_name == segment.class_name)
            .map(|(_, seq)| *seq);
        // Numbers ascend within a class, not between classes.
        if class_name != segment.class_name {
            class_name.clone_from(&segment.class_name);
            check.last_seq = SeqNo::default();
        }

        let (log, size) = match reopened(&mut segment, store_id, log, size)? {
            FoundLog::Open(opened) => opened,
            FoundLog::Dropped => continue,
            FoundLog::Unreadable(why) => {
                report.damage(unreadable_log(&segment, &why));
                continue;
            }
        };
        let scanned = check.segment((&segment, next), &log, size, &mut report, watch)?;
        scans.push((segment, scanned));
    }

    // After all logs: what is missing in one may be in another.
    check.count_gaps(&mut report.problems);
    check.count_known(dir, &known, &mut report);
    sequence(dir, check.seqs.last(), &mut report)?;
    report.indexes = indexes((dir, store_id), options, &scans, &mut report, watch)?;
    Ok(report)
}

/// Checks the settings. `position` is the last one at a clean stop.
fn settings(
    (dir, store_id): (&Path, u64),
    position: Option<u64>,
    report: &mut VerifyReport,
) -> Result<(), ToolError> {
    let class_dir = format::class_dir(dir, SETTINGS);
    let mut found = FoundSettings::read(&Disk, dir, store_id, position)?;
    // They are made before any other segment.
    if !found.has_segments() && !layout::segments(dir)?.is_empty() {
        found.lose_all();
    }

    if let Some(missing) = found.missing {
        let what = match missing.records {
            Some(records) => {
                format!("{records} changes of the settings are missing in both copies")
            }
            None => "the settings are damaged in both copies".to_owned(),
        };
        let means = "they cannot be rebuilt: a backup may have them. Consumers continue at earlier positions, tokens are rejected, \
                     and every job counts as held until `saltcellar store accept-loss`";
        report.damage(about(&class_dir, what, means));
    } else if let Some(loss) = found.loss() {
        let what = "changes of the settings were lost, and the loss was not accepted";
        report.damage(about(&class_dir, what, loss_text(&loss)));
    }

    let means = match found.missing {
        Some(_) => "see below for what is lost",
        None => "nothing is lost: the other copy has it, and the next start makes a new one",
    };
    let has_damage = !found.damage.is_empty();
    for part in std::mem::take(&mut found.damage) {
        report.damage(Problem {
            offset: Some(part.offset),
            bytes: Some(part.bytes),
            ..about(&part.path, part.what, means)
        });
    }

    // A running daemon is in the middle of a change, and a store that was just made has none.
    let is_settled = report.holder.is_none() && found.has_segments();
    if is_settled && !has_damage && found.missing.is_none() && !found.is_whole() {
        let means = "nothing is lost; the next start makes them equal";
        let problem = about(&class_dir, INCOMPLETE, means);
        match position {
            // After a clean stop they are equal.
            Some(_) => report.damage(problem),
            None => report.notes.push(problem),
        }
    }
    Ok(())
}

/// A log of which not even the file can be opened.
fn unreadable_log(segment: &SegmentFiles, why: &StoreError) -> Problem {
    let means = "its entries are missing until the disk can open it: restore it from a backup";
    about(&segment.log(), format!("unreadable: {why}"), means)
}

/// Reopens a log that was not kept open, and measures it.
fn reopened(
    segment: &mut SegmentFiles,
    store_id: u64,
    log: Option<LogFile>,
    size: u64,
) -> Result<FoundLog<(LogFile, u64)>, StoreError> {
    // An active log, whose size was measured at the start.
    if let Some(log) = log {
        return Ok(FoundLog::Open((log, size)));
    }

    segment.open_log()?.map(|file| {
        let log = LogFile::of(&segment.log(), Box::new(file), segment.id(store_id));
        let size = log.size()?;
        Ok((log, size))
    })
}

/// The consequence of damage to a file that cannot be rebuilt.
const UNREBUILDABLE: &str = "it cannot be rebuilt: a backup may have it";

struct Verifier {
    options: VerifyOptions,
    store_id: u64,
    /// The segments of which more is known than their logs.
    known: BTreeSet<(String, SeqNo)>,
    /// All numbers below may have been assigned, if the file `SEQUENCE` is intact.
    end: Option<SeqNo>,
    found: FoundNumbers,
    skipped: Vec<SkippedNumbers>,
    seqs: SeqSet,
    /// The last sequence number of the class so far.
    last_seq: SeqNo,
    done: u64,
    total: u64,
}

impl Verifier {
    fn segment(
        &mut self,
        (segment, next): (&SegmentFiles, Option<SeqNo>),
        log: &LogFile,
        size: u64,
        report: &mut VerifyReport,
        watch: &mut dyn Watch,
    ) -> Result<Walked, ToolError> {
        let name = segment.name();
        let has_header = header(segment, log, segment.id(self.store_id), report)?;

        let found = self.found.of_class(&segment.class_name);
        let (mut last_seq, before) = (self.last_seq, self.done);
        let seqs = &mut self.seqs;
        let total = self.total;
        let quick = self.options.quick;
        let mut scanned = walk::walk(
            log,
            Bounds::of_log(size).below(self.end.unwrap_or(SeqNo(u64::MAX))),
            !quick,
            |meta, view| {
                watch.step(before + meta.end(), total, &name);
                let fault = block(meta, view, quick, &mut last_seq, segment.first_seq, seqs);
                if fault.is_none() {
                    let rows = view.rows();
                    for at in 0..rows.len() {
                        found.insert(rows.seq(at));
                    }
                }
                last_seq = last_seq.max(meta.last_seq);
                fault
            },
        )?;

        self.last_seq = last_seq;
        self.done += size;
        watch.step(self.done, self.total, &name);
        // Where no daemon continues to write, an unfinished write is damage.
        if !segment.grows() {
            scanned = scanned.finished();
        }

        for unfinished in std::mem::take(&mut scanned.unfinished) {
            Self::tail(segment, log.path(), &unfinished, report);
        }
        for range in std::mem::take(&mut scanned.damaged) {
            report.damage(lost(log.path(), &range));
        }

        // The next segment of the class, or the end of all numbers, bounds what can be lost.
        let before = next.or(self.end);
        let is_known = self
            .known
            .contains(&(segment.class_name.clone(), segment.first_seq));
        let has_tail = scanned.tail.is_some();
        if let Some(mut tail) = scanned.tail.take() {
            tail.before = before;
            if !is_known {
                // More than the entries of the incomplete frame may be cut off.
                tail.entries = None;
            }
            Self::tail(segment, log.path(), &tail, report);
        }

        // Without its header, or without an index that can be read, a log may have lost any number
        // of entries at its end.
        let is_cut = !is_known && (!has_header || segment.is_sealed);
        if is_cut && (!has_tail || segment.grows()) {
            let what = if scanned.frames == 0 {
                "no frame can be read"
            } else {
                "the end of the log is unknown"
            };
            // An empty range: nothing is damaged, but numbers may be missing.
            let mut problem = about(log.path(), what, UNKNOWN_END);
            problem.offset = Some(scanned.end.min(size));
            problem.exact = false;
            problem.gap = before.map(|before| (scanned.last_seq, before));
            report.damage(problem);
        }

        report.segments += 1;
        report.frames += scanned.frames;
        report.entries += scanned.entries;
        report.log_bytes += size;
        Ok(scanned)
    }

    fn tail(segment: &SegmentFiles, path: &Path, tail: &DamagedRange, report: &mut VerifyReport) {
        // A finished log ends with a whole frame.
        if !segment.grows() {
            return report.damage(lost(path, tail));
        }

        if report.holder.is_none() {
            // With a running daemon, an unfinished end is being written.
            let what = format!("unfinished write of {} bytes", tail.bytes);
            let means = "it was never acknowledged; the next start removes it and keeps a copy";
            report.notes.push(Problem {
                offset: Some(tail.offset),
                bytes: Some(tail.bytes),
                ..about(path, what, means)
            });
        }
    }
}

/// The consequence of damage that may have cost entries, if no number is known.
const UNKNOWN_END: &str = "an unknown number of entries is lost: the file SEQUENCE cannot be read";

/// Checks the header of a log; returns whether it is intact.
fn header(
    segment: &SegmentFiles,
    log: &LogFile,
    id: LogId,
    report: &mut VerifyReport,
) -> Result<bool, ToolError> {
    let path = log.path();
    let at_0 = |what: &str, means: &str| Problem {
        offset: Some(0),

        bytes: None,
        ..about(path, what, means)
    };
    // Not fatal: class and number follow from the path, and frames have their own checksums.
    let Some(header) = log.header()? else {
        let means = "frames are read without the header";
        report.damage(at_0("log header damaged", means));
        return Ok(false);
    };

    if let Some(what) = header.mismatch(&segment.class_name, id) {
        let means = "a directory was renamed or copied; the daemon reads around it. Restore the original name";
        report.damage(at_0(&what, means));
    }
    Ok(true)
}

/// Describes a defect of a block with a valid checksum.
fn block(
    meta: &BlockMeta,
    view: &BlockView,
    quick: bool,
    last_seq: &mut SeqNo,
    first_seq: SeqNo,
    seqs: &mut SeqSet,
) -> Option<String> {
    let rows = view.rows();
    // In the order of the log, then within the block.
    if meta.first_seq <= *last_seq {
        return Some(format!(
            "its first entry has sequence number {}, after {} before it",
            meta.first_seq.0, last_seq.0
        ));
    }
    if meta.first_seq < first_seq {
        return Some(format!(
            "its first entry has sequence number {}, less than that of the segment",
            meta.first_seq.0
        ));
    }

    let mut before = None;
    for at in 0..rows.len() {
        let seq = rows.seq(at);
        if before.is_some_and(|before| seq <= before) {
            return Some(format!("its sequence numbers do not ascend at {}", seq.0));
        }
        before = Some(seq);
        // The set is that of all logs, so this also finds entries that are in two of them.
        if !seqs.insert(seq) {
            return Some(format!("duplicate sequence number {}", seq.0));
        }
        // Decompresses once per block.
        if !quick && let Err(what) = rows.body(at) {
            return Some(format!("entry {}: {what}", seq.0));
        }
    }
    None
}

/// Converts a damaged range to a problem. The loss in a gap is computed after all logs are read.
fn lost(path: &Path, range: &DamagedRange) -> Problem {
    let mut problem = about(path, range.what.clone(), "");
    problem.offset = Some(range.offset);
    problem.bytes = Some(range.bytes);
    match (range.entries, range.before) {
        // A readable header names the numbers.
        (Some((first, last, count)), _) => {
            problem.entries_lost = count;
            problem.exact = true;
            problem.means = format!(
                "{count} entries are lost, sequence numbers {} to {}",
                first.0, last.0
            );
        }
        (None, Some(before)) => {
            problem.exact = false;
            problem.gap = Some((range.after, before));
        }
        // Nothing follows, so there is no upper bound.
        (None, None) => {
            problem.exact = false;
            problem.means = format!(
                "entries from sequence number {} on may be lost",
                range.after.0 + 1
            );
        }
    }

    problem
}

impl Verifier {
    /// The numbers between two that may belong to entries and are in no log.
    fn missing_between(&self, after: SeqNo, before: SeqNo) -> u64 {
        // Numbers that were left out on purpose are not lost entries.
        let skipped = self.skipped.iter();
        let skipped: u64 = skipped
            .map(|range| range.count_between(after.next(), before))
            .sum();
        self.seqs
            .missing_between(after, before)
            .saturating_sub(skipped)
    }

    /// Computes the loss in gaps: sequence numbers that are in no log.
    fn count_gaps(&self, problems: &mut Vec<Problem>) {
        for problem in problems.iter_mut() {
            let Some((after, before)) = problem.gap else {
                // Not a gap.
                continue;
            };
            problem.entries_lost = self.missing_between(after, before);

            problem.means = match problem.entries_lost {
                0 => "no entry is lost".to_owned(),
                most => format!(
                    "at most {most} entries are lost, sequence numbers {} to {}",
                    after.0 + 1,
                    before.0.saturating_sub(1)
                ),
            };
            problem.exact = problem.entries_lost == 0;
        }

        // An end of a log behind which no number is missing.
        let is_end = |problem: &Problem| problem.gap.is_some() && problem.bytes.is_none();
        problems.retain(|problem| !is_end(problem) || problem.entries_lost > 0);
    }

    /// Compares the entries that were found with those that indexes, state database and the last
    /// stop know.
    fn count_known(&self, dir: &Path, known: &[KnownSegment], report: &mut VerifyReport) {
        for segment in known {
            let missing = segment.missing(&self.found, known);
            let log = segment.log(dir);
            let is_there = log.is_file();
            // With a running daemon, retention has dropped it meanwhile.
            if missing == 0 || !is_there && report.holder.is_some() {
                continue;
            }

            let (first, last) = (segment.first_seq.0, segment.last_seq.0);
            let numbers = format!("sequence numbers {first} to {last}: restore it from a backup");

            // Not an unfinished write: the last stop was clean.
            report.notes.retain(|note| note.path != log);
            if !is_there {
                // Supersedes the finding of a directory without a log.
                report.problems.retain(|problem| problem.path != log);
                let means = format!("{missing} entries are lost, {numbers}");
                report.damage(Problem {
                    entries_lost: missing,
                    ..about(&log, "segment missing", means)
                });
                continue;
            }

            let ranges = report
                .problems
                .iter_mut()
                .filter(|problem| problem.path == log && problem.entries_lost > 0);
            let mut ranges: Vec<_> = ranges.collect();
            if let [range] = ranges.as_mut_slice() {
                // The index lists what the log had: the bound of the range is not needed.
                if range.entries_lost > missing || !range.exact {
                    range.means = format!("{missing} entries are lost");
                    range.entries_lost = missing;
                    range.exact = true;
                }
            }

            let counted: u64 = ranges.iter().map(|range| range.entries_lost).sum();
            if counted < missing {
                let rest = missing - counted;
                let what = format!(
                    "{} entries of {} are missing, more than the damaged ranges account for",
                    missing, segment.entries
                );
                let what = if counted == 0 {
                    format!("{missing} entries of {} are missing", segment.entries)
                } else {
                    what
                };
                for range in ranges {
                    range.exact = true;
                }
                report.damage(Problem {
                    entries_lost: rest,
                    ..about(&log, what, format!("{rest} entries are lost, of {numbers}"))
                });
            }
        }
    }
}

/// Checks that the reserved sequence numbers are not behind the log.
fn sequence(dir: &Path, last: Option<SeqNo>, report: &mut VerifyReport) -> Result<(), ToolError> {
    let path = dir.join(SEQUENCE);
    let Some(file) = SequenceFile::read(&Disk, dir)? else {
        // An empty store may never have reserved a number.
        if last.is_some() {
            let means = "the next start skips numbers after the last one in the log; those of lost entries may be assigned again";
            report.damage(about(&path, "missing", means));
        }
        return Ok(());
    };

    let last = last.unwrap_or_default();
    match file {
        // The usual case: numbers are reserved in advance.
        Some(file) if file.end > last => {}
        // The last update was lost; a start reads the logs, too.
        Some(file) => {
            let what = format!("the file has {}, the log has entry {}", file.end.0, last.0);
            report
                .notes
                .push(about(&path, what, "the next start continues after the log"));
        }
        None => {
            let means = "the next start skips numbers after the last one in the log; those of lost entries may be assigned again";
            report.damage(about(
                &path,
                "malformed, or its checksum does not match",
                means,
            ));
        }
    }
    Ok(())
}

fn indexes(
    (dir, store_id): (&Path, u64),
    options: VerifyOptions,
    scans: &[(SegmentFiles, Walked)],
    report: &mut VerifyReport,
    watch: &mut dyn Watch,
) -> Result<IndexCheck, ToolError> {
    // Comparing needs the bodies: job summaries are made of them.
    if options.quick {
        return Ok(IndexCheck::Skipped(
            "--quick reads only the heads of frames".to_owned(),
        ));
    }

    if let Some(holder) = &report.holder {
        return Ok(IndexCheck::Skipped(format!(
            "{holder} has them open and checks each on opening; stop it to compare them with the logs"
        )));
    }

    let total = scans
        .iter()
        .filter(|(segment, _)| segment.is_sealed)
        .map(|(_, scanned)| scanned.end)
        .sum();

    let (mut done, mut compared) = (0, 0);
    let mut metadata = Vec::new();
    for (segment, scanned) in scans {
        let name = (segment.class_name.clone(), segment.first_seq);
        // Its index is made from the log at each start.
        if !segment.is_sealed {
            metadata.push((name.0, name.1, None));
            continue;
        }

        watch.step(done, total, &format!("index of {}", segment.name()));
        done += scanned.end;
        compared += 1;
        let means = "no entry is lost: the daemon rebuilds it from the log on the next use; \
                     `saltcellar store rebuild` does so now";
        let path = segment.index();
        let known = match compare(store_id, segment) {
            Ok((known, None)) => Some(known),
            // A damaged index and one that differs are repaired in the same way.
            Ok((_, Some(what))) | Err(StoreError::Index { what, .. }) => {
                report.damage(about(&path, what, means));
                None
            }
            Err(error) => return Err(error.into()),
        };

        metadata.push((name.0, name.1, known));
    }
    catalogue(dir, &metadata, report)?;
    Ok(IndexCheck::Compared(compared))
}

/// Compares the state database with the segments, which also detects missing segments.
fn catalogue(
    dir: &Path,
    metadata: &[(String, SeqNo, Option<SegmentMetadata>)],
    report: &mut VerifyReport,
) -> Result<(), ToolError> {
    let path = dir.join("state");
    if !StateDatabase::exists(&path) {
        // A salvaged or restored store has no state database before its first start.
        if metadata.iter().all(|(.., known)| known.is_none()) {
            return Ok(());
        }

        let means = "no entry is lost: the next start rebuilds it; until then missing segments cannot be detected";
        report
            .notes
            .push(about(&path, "state database missing", means));
        return Ok(());
    }

    let copy = DatabaseCopy::of(&path, &std::env::temp_dir());
    // Reported, and the rest of the report stands.
    let differences = match copy.and_then(|copy| compare::catalogue(&copy.0, metadata)) {
        Err(StoreError::Index { what, .. }) => {
            let means = "no entry is lost: the next start rebuilds it; until then missing segments cannot be detected";
            report.damage(about(&path, what, means));
            return Ok(());
        }
        differences => differences?,
    };

    let dropped = left_in_trash(dir);
    for (class_name, first_seq, difference) in differences {
        // The drop is not finished, and the next start continues it.
        if was_dropped(&dropped, &class_name, first_seq) {
            continue;
        }

        let segment = format::segment_dir(dir, &class_name, first_seq);
        match difference {
            CatalogueDifference::Unknown => {
                let means = "no entry is lost; `saltcellar store rebuild` repairs it";
                let what = "the state database does not list it";
                report.damage(about(&segment, what, means));
            }
            CatalogueDifference::SegmentMetadata => {
                let means = "no entry is lost; `saltcellar store rebuild` repairs it";
                report.damage(about(
                    &segment,
                    "metadata in the state database differ",
                    means,
                ));
            }
        }
    }
    Ok(())
}

/// The first difference between a sealed index and its log, and the metadata in the index.
fn compare(
    store_id: u64,
    segment: &SegmentFiles,
) -> Result<(SegmentMetadata, Option<String>), StoreError> {
    let index = SealedIndex::open(&Disk, &segment.index(), segment.id(store_id))?;
    // The class number does not matter: nothing is written.
    let name: Arc<str> = segment.class_name.as_str().into();
    let fs: Arc<dyn Fs> = Arc::new(Disk);
    let id = segment.id(store_id);
    let segment = Segment::open(&fs, &segment.dir, (Class::JOBS, name), id)?;

    let (expected, _) = segment.walk(SeqNo(u64::MAX))?;
    let difference = compare::difference(&index, &expected)?;
    Ok((index.metadata().clone(), difference))
}
