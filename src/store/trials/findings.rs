//! Findings of the trials that are not mended yet: what would find them is left out of a trial.
//!
//! `FINDINGS=all` leaves out nothing; `FINDINGS=ClockJump,FullDisk` lets these two be found. When the list is empty, this file
//! and its callers ([`super::random`], `ingest::spill::trials`) can go.

use super::hostile::{FOREIGN, LAST_NUMBERS, UNKNOWN_VERSION};
use super::operations::Op;
use super::random::Setup;

/// What the trials find.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Finding {
    /// A copy of a frame of this store in a body is taken for a frame behind damage.
    CopiedFrame,
    /// A frame of another store is, where damage comes before the first good frame.
    ForeignFrame,
    /// A frame of another version in a body keeps every start from succeeding.
    UnknownVersion,
    /// Pages that a failed sync left in the kernel's memory are trusted by the next process.
    UnsyncedTail,
    /// Recent entries are pushed out of the duplicate memory by older ones of other classes when it is refilled.
    Refill,
    /// More than 255 equal events overflow the counts of the duplicate memory.
    EqualEvents,
    /// A clock that is set forward lets retention by age drop everything.
    ClockJump,
    /// Nothing can be dropped on a full disk.
    FullDisk,
    /// A read error in a finished segment stops the start.
    BadSector,
    /// A segment that is being sealed is left out of a backup.
    BackupWindow,
    /// `verify` takes an unfinished write for a loss.
    VerifyTail,
    /// A read error makes the spill remove a file.
    SpillReadError,
    /// A flipped bit costs the spill all that lies behind it.
    SpillDamage,
}

/// Those that are not mended yet.
const KNOWN: &[Finding] = &[
    Finding::CopiedFrame,
    Finding::ForeignFrame,
    Finding::UnknownVersion,
    Finding::UnsyncedTail,
    Finding::Refill,
    Finding::EqualEvents,
    Finding::ClockJump,
    Finding::FullDisk,
    Finding::BadSector,
    Finding::BackupWindow,
    Finding::VerifyTail,
    Finding::SpillReadError,
    Finding::SpillDamage,
];

/// Is it left out?
pub(crate) fn is_left_out(finding: Finding) -> bool {
    let wanted = std::env::var("FINDINGS").unwrap_or_default();
    let is_wanted = wanted == "all" || wanted.split(',').any(|name| name == format!("{finding:?}"));
    KNOWN.contains(&finding) && !is_wanted
}

/// What a trial cannot do without finding this.
fn needed_for(op: &Op) -> Option<Finding> {
    Some(match op {
        Op::Hostile { kind: UNKNOWN_VERSION, .. } => Finding::UnknownVersion,
        Op::Hostile { kind: FOREIGN | LAST_NUMBERS, .. } => Finding::ForeignFrame,
        Op::Hostile { .. } => Finding::CopiedFrame,
        Op::FaultAndKill(..) => Finding::UnsyncedTail,
        Op::Equal(..) => Finding::EqualEvents,
        Op::Clock(_) => Finding::ClockJump,
        Op::FullDisk(..) => Finding::FullDisk,
        Op::BadSector(_) => Finding::BadSector,
        Op::Backup { racing: true, .. } => Finding::BackupWindow,
        Op::Verify(..) => Finding::VerifyTail,
        _ => return None,
    })
}

/// Leaves out of a trial what would find what is known.
pub(super) fn spare(setup: &mut Setup, ops: &mut Vec<Op>) {
    ops.retain(|op| needed_for(op).is_none_or(|finding| !is_left_out(finding)));
    if is_left_out(Finding::Refill) {
        setup.dedupe_window = crate::limits::DEDUPE_WINDOW;
    }
}
