//! `verify`: checks that the data on disk is what was written.
//!
//! Reads every log, and every file that cannot be rebuilt. Beside a running daemon, active logs are
//! read up to their size at the start of the check. The indexes are compared with the logs only if
//! no daemon has them open.

pub mod compare;
pub mod small_files;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::known::known_segments;
use super::layout::{self, DaemonWatch, FoundLog, SegmentFiles};
use super::losses::{Account, Basis, Cause, Loss, ReadLog};
use super::{ToolError, Watch};
use crate::format;
use crate::index::SegmentMetadata;
use crate::index::sealed::SealedIndex;
use crate::index::state::StateDatabase;
use crate::index::tree::sled_guard::DatabaseCopy;
use crate::log::block::BlockView;
use crate::log::file::{BlockMeta, Header, LogFile};
use crate::log::walk::{self, Bounds, Walked};
use crate::segment::Segment;
use crate::segment::removal::{left_dropped, was_dropped};
use crate::settings::{FoundSettings, INCOMPLETE, loss_text};
use crate::stopped::Stopped;
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
    /// The entries lost by these, and whether it is their number.
    lost_more: (u64, bool),
    /// Findings without consequences.
    pub notes: Vec<Problem>,
}

impl VerifyReport {
    /// A report of nothing yet.
    fn new(holder: Option<String>) -> Self {
        Self {
            format: crate::FORMAT_VERSION,
            holder,
            segments: 0,
            frames: 0,
            entries: 0,
            log_bytes: 0,
            indexes: IndexCheck::Compared(0),
            problems: Vec::new(),
            problems_more: 0,
            lost_more: (0, true),
            notes: Vec::new(),
        }
    }

    /// The entries lost: their number, or an upper bound.
    pub fn entries_lost(&self) -> u64 {
        let listed = self.problems.iter().map(|problem| problem.entries_lost);
        listed.sum::<u64>() + self.lost_more.0
    }

    /// Whether [`Self::entries_lost`] is their number.
    pub fn is_exact(&self) -> bool {
        self.lost_more.1 && self.problems.iter().all(|problem| problem.exact)
    }

    /// Counts a log that was read.
    fn add(&mut self, scanned: &Walked, size: u64) {
        self.segments += 1;
        self.frames += scanned.frames;
        self.entries += scanned.entries;
        self.log_bytes += size;
    }

    fn damage(&mut self, problem: Problem) {
        if self.problems.len() < VERIFY_PROBLEMS_MAX {
            self.problems.push(problem);
        } else {
            self.problems_more += 1;
            self.lost_more.0 += problem.entries_lost;
            self.lost_more.1 &= problem.exact;
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
        tracing::info!(dir = %dir.display(), "a daemon opened the store during the check, repeating the check");
    }

    Err(StoreError::Refused(format!(
        "cannot verify {}: daemons were started and stopped during each of {VERIFY_TRIES} checks; keep the daemon running, or stopped, and retry",
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
    let (mut opened, mut unopened, mut unreadable) = (Vec::new(), Vec::new(), Vec::new());
    for mut segment in segments {
        // Opened and measured before any log is read: retention and sealing may continue meanwhile.
        let log = match open(&mut segment, store_id)? {
            Opened::Log(log) => log,
            Opened::Dropped => continue,
            Opened::Unreadable(problem) => {
                unreadable.push(problem);
                unopened.push(segment);
                continue;
            }
        };
        let size = if segment.is_sealed {
            log.size()?
        } else {
            walk::end(&log)?.0
        };

        total += size;
        // Keep only active logs open, to limit open files; finished logs can be reopened.
        let log = (!segment.is_sealed).then_some(log);
        opened.push((segment, log, size));
    }

    let mut report = VerifyReport::new(holder);

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

    let (end, skipped) = match numbers {
        Some(numbers) => (Some(numbers.end), numbers.skipped),
        None => (None, Vec::new()),
    };
    let read = opened.iter().map(|(segment, ..)| segment);
    let mut check = Verifier {
        options,
        store_id,
        end,
        account: Account::new(known, read, end, skipped),
        problems: Vec::new(),
        class_name: String::new(),
        last_seq: SeqNo::default(),
        done: 0,
        total,
    };

    check.account.note_unopened(&unopened);

    let mut scans = Vec::new();
    for (mut segment, log, size) in opened {
        let (log, size) = if let Some(log) = log {
            // An active log, whose size was measured at the start.
            (log, size)
        } else {
            match open(&mut segment, store_id)? {
                Opened::Log(log) => {
                    let size = log.size()?;
                    (log, size)
                }
                Opened::Dropped => continue,
                Opened::Unreadable(problem) => {
                    check.problems.push(problem);
                    check.account.note_unopened([&segment]);
                    continue;
                }
            }
        };
        let scanned = check.read(&segment, &log, size, watch)?;
        report.add(&scanned, size);
        scans.push((segment, scanned));
    }

    let mut problems = check.problems;
    for loss in check.account.losses(dir) {
        lost(loss, &mut problems, &mut report);
    }
    // What is wrong with a log is listed together.
    problems.sort_by(|a, b| a.path.cmp(&b.path));
    for problem in problems {
        report.damage(problem);
    }

    sequence(dir, check.account.last(), &mut report)?;
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

/// The log of a segment.
enum Opened {
    Log(LogFile),
    /// The segment was dropped since it was listed.
    Dropped,
    /// The disk cannot open it.
    Unreadable(Problem),
}

fn open(segment: &mut SegmentFiles, store_id: u64) -> Result<Opened, StoreError> {
    let found = segment.open_log()?;
    let path = segment.log();
    Ok(match found {
        FoundLog::Open(file) => {
            Opened::Log(LogFile::of(&path, Box::new(file), segment.id(store_id)))
        }
        FoundLog::Dropped => Opened::Dropped,
        FoundLog::Unreadable(why) => {
            let means =
                "its entries are missing until the disk can open it: restore it from a backup";
            Opened::Unreadable(about(&path, format!("unreadable: {why}"), means))
        }
    })
}

/// The consequence of damage to a file that cannot be rebuilt.
const UNREBUILDABLE: &str = "it cannot be rebuilt: a backup may have it";

/// Reads the logs.
struct Verifier {
    options: VerifyOptions,
    store_id: u64,
    /// All numbers below may have been assigned, if the file `SEQUENCE` is intact.
    end: Option<SeqNo>,
    account: Account,
    /// What is wrong with logs, except for what it has cost.
    problems: Vec<Problem>,
    /// The class of the last log.
    class_name: String,
    /// Its last sequence number.
    last_seq: SeqNo,
    done: u64,
    total: u64,
}

impl Verifier {
    fn read(
        &mut self,
        segment: &SegmentFiles,
        log: &LogFile,
        size: u64,
        watch: &mut dyn Watch,
    ) -> Result<Walked, ToolError> {
        // Numbers ascend within a class, not between classes.
        if self.class_name != segment.class_name {
            self.class_name.clone_from(&segment.class_name);
            self.last_seq = SeqNo::default();
        }

        let header = log.header()?;
        self.problems.extend(header_problem(
            log.path(),
            header.as_ref(),
            segment,
            self.store_id,
        ));
        // In a directory that was renamed they are still the entries of their class.
        let class_name = header.as_ref().and_then(Header::class_name);
        let class_name = class_name.unwrap_or(&segment.class_name);

        let name = segment.name();
        let (before, total, quick) = (self.done, self.total, self.options.quick);
        let (account, last_seq) = (&mut self.account, &mut self.last_seq);
        let mut scanned = walk::walk(
            log,
            Bounds::of_log(size).below(self.end.unwrap_or(SeqNo(u64::MAX))),
            !quick,
            |meta, view| {
                watch.step(before + meta.end(), total, &name);
                let disorder = disorder(meta, view, *last_seq, segment.first_seq, account);
                *last_seq = (*last_seq).max(meta.last_seq);
                // Decompresses once per block.
                if !quick && let Some(what) = undecodable(view) {
                    return Some(what);
                }

                // Entries with wrong numbers are not lost.
                let rows = view.rows();
                for at in 0..rows.len() {
                    account.note_found(class_name, rows.seq(at));
                }
                disorder
            },
        )?;

        self.done += size;
        watch.step(self.done, self.total, &name);

        let read = ReadLog {
            path: log.path(),
            segment: Some(segment),
            has_header: header.is_some(),
            size,
        };
        self.account.note_damage(&read, &mut scanned);
        Ok(scanned)
    }
}

/// The consequence of damage that may have cost entries, if no number is known.
const UNKNOWN_END: &str = "an unknown number of entries is lost, because the file SEQUENCE cannot be read: a backup may have them";

/// What is wrong with the header of a log; `None` for one that is damaged.
fn header_problem(
    path: &Path,
    header: Option<&Header>,
    segment: &SegmentFiles,
    store_id: u64,
) -> Option<Problem> {
    let at_0 = |what: &str, means: &str| Problem {
        offset: Some(0),
        ..about(path, what, means)
    };
    // Not fatal: class and number follow from the path, and frames have their own checksums.
    let Some(header) = header else {
        let means = "no entry is lost, its frames are read without it: check the disk";
        return Some(at_0("log header damaged", means));
    };

    let mismatch = header.mismatch(&segment.class_name, segment.id(store_id));
    let means =
        "a directory was renamed or copied; the daemon reads around it. Restore the original name";
    mismatch.map(|what| at_0(&what, means))
}

/// Describes what is wrong with the order of a block: in its log, then within the block.
fn disorder(
    meta: &BlockMeta,
    view: &BlockView,
    last_seq: SeqNo,
    first_seq: SeqNo,
    account: &Account,
) -> Option<String> {
    if meta.first_seq <= last_seq {
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

    let rows = view.rows();
    let mut before = None;
    for at in 0..rows.len() {
        let seq = rows.seq(at);
        if before.is_some_and(|before| seq <= before) {
            return Some(format!("its sequence numbers do not ascend at {}", seq.0));
        }
        before = Some(seq);
        // Of all logs, so this also finds entries that are in two of them.
        if account.has(seq) {
            return Some(format!("duplicate sequence number {}", seq.0));
        }
    }
    None
}

/// Describes an entry that cannot be read despite a valid checksum.
fn undecodable(view: &BlockView) -> Option<String> {
    let rows = view.rows();
    (0..rows.len()).find_map(|at| {
        let what = rows.body(at).err()?;
        Some(format!("entry {}: {what}", rows.seq(at).0))
    })
}

/// Adds a loss to the problems of logs, or to the notes of the report.
fn lost(loss: Loss, of_logs: &mut Vec<Problem>, report: &mut VerifyReport) {
    let path = loss.path.as_path();
    let means = consequence(&loss);
    match loss.cause {
        Cause::Damaged => of_logs.push(Problem {
            offset: Some(loss.range.offset),
            bytes: Some(loss.range.bytes),
            entries_lost: loss.entries,
            exact: loss.exact,
            ..about(path, loss.range.what, means)
        }),

        // With a running daemon, an unfinished end is being written.
        Cause::Unfinished if report.holder.is_some() => {}
        Cause::Unfinished => {
            let what = format!("unfinished write of {} bytes", loss.range.bytes);
            let means = "it was never acknowledged; the next start removes it and keeps a copy";
            report.notes.push(Problem {
                offset: Some(loss.range.offset),
                bytes: Some(loss.range.bytes),
                ..about(path, what, means)
            });
        }

        Cause::UnknownEnd => of_logs.push(Problem {
            offset: Some(loss.range.offset),
            entries_lost: loss.entries,
            exact: loss.exact,
            ..about(path, loss.range.what, means)
        }),

        Cause::Missing { missing, held, .. } if path.is_file() => {
            let what = if loss.entries == missing {
                format!("{missing} entries of {held} are missing")
            } else {
                format!(
                    "{missing} entries of {held} are missing, more than the damaged ranges account for"
                )
            };
            of_logs.push(Problem {
                entries_lost: loss.entries,
                ..about(path, what, means)
            });
        }
        // With a running daemon, retention has dropped it meanwhile.
        Cause::Missing { .. } if report.holder.is_some() => {}
        Cause::Missing { .. } => {
            // Supersedes the finding of a directory without a log.
            report.problems.retain(|problem| problem.path != path);
            of_logs.push(Problem {
                entries_lost: loss.entries,
                ..about(path, "segment missing", means)
            });
        }
    }
}

/// What a loss means.
fn consequence(loss: &Loss) -> String {
    let (lost, range) = (loss.entries, &loss.range);

    if let Cause::Missing { first, last, .. } = loss.cause {
        let numbers = format!(
            "sequence numbers {} to {}: restore it from a backup",
            first.0, last.0
        );
        let of = if loss.path.is_file() { "of " } else { "" };
        return format!("{lost} entries are lost, {of}{numbers}");
    }

    match (loss.basis, range.entries, range.before) {
        // Nothing follows, so there is no upper bound.
        (Basis::Nothing, ..) if loss.cause == Cause::UnknownEnd => UNKNOWN_END.to_owned(),
        (Basis::Nothing, ..) => {
            let after = range.after.0;
            format!(
                "entries from sequence number {} on may be lost: a backup may have them",
                after + 1
            )
        }
        _ if lost == 0 => "no entry is lost".to_owned(),
        // A readable header names the numbers.
        (Basis::Header, Some((first, last, _)), _) => {
            let (first, last) = (first.0, last.0);
            format!(
                "{lost} entries are lost, sequence numbers {first} to {last}: a backup may have them"
            )
        }
        (Basis::Numbers, _, Some(before)) => format!(
            "at most {lost} entries are lost, sequence numbers {} to {}: a backup may have them",
            range.after.0 + 1,
            before.0.saturating_sub(1)
        ),
        _ => format!("{lost} entries are lost: a backup may have them"),
    }
}

/// Checks that the reserved sequence numbers are not behind the log.
fn sequence(dir: &Path, last: Option<SeqNo>, report: &mut VerifyReport) -> Result<(), ToolError> {
    let path = dir.join(SEQUENCE);
    let Some(file) = SequenceFile::read(&Disk, dir)? else {
        // An empty store may never have reserved a number.
        if last.is_some() {
            let means = "the next start skips numbers after the last one in the log; the numbers of lost entries may be reused";
            report.damage(about(&path, "missing", means));
        }
        return Ok(());
    };

    let last = last.unwrap_or_default();
    match file {
        // The usual case: numbers are reserved in advance.
        Some(file) if file.end > last => {}
        // The last update was lost; a start also reads the logs.
        Some(file) => {
            let what = format!("the file has {}, the log has entry {}", file.end.0, last.0);
            report
                .notes
                .push(about(&path, what, "the next start continues after the log"));
        }
        None => {
            let means = "the next start skips numbers after the last one in the log; the numbers of lost entries may be reused";
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
            // In a directory that was renamed or copied, which its header has told.
            Err(StoreError::Misplaced { .. }) => None,
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

    let dropped = left_dropped(dir);
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_of_problems_that_are_not_listed_count_as_well() {
        let mut report = VerifyReport::new(None);
        let lost = VERIFY_PROBLEMS_MAX + 5;
        for _ in 0..lost {
            report.damage(Problem {
                entries_lost: 1,
                ..about(Path::new("log"), "damaged", "lost")
            });
        }
        assert_eq!(report.problems_more, 5);
        assert_eq!(
            (report.entries_lost(), report.is_exact()),
            (lost as u64, true)
        );
    }
}
