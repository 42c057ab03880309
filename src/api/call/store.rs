//! Calls about the store: statistics, retention on demand, holds.

use serde_json::{Value as Json, json};

use super::{Ctx, document, failed};
use crate::base::limits::HOURS_SHOWN;
use crate::model::{Age, Keep};
use crate::store::read::stats::ClassStats;
use crate::store::retain::{DropOutcome, PlannedDrop, PruneOptions};
use crate::store::segment::usage::SegmentUsage;
use crate::store::{Hold, StoreError};
use crate::wire::call::{Args, CallError};

pub(super) fn stats(ctx: &Ctx, _: &Args<'_>) -> Result<Vec<u8>, CallError> {
    let stats = ctx.store.stats().map_err(failed)?;
    let space = stats.space;
    let step = stats.clock_step;
    document(json!({
        "state_dir": ctx.state_dir.to_string_lossy(),
        "head": stats.head.0,
        "durable": stats.durable.0,
        "checkpoint": ctx.store.lowest_cursor().map(|cursor| cursor.0),
        "space": {
            "state": space.room.name(), "free_bytes": space.free, "total_bytes": space.total,
            "low_bytes": space.low, "min_bytes": space.min,
        },
        "clock_step":
            step.map(|step| json!({ "ahead_s": step.ahead / 1_000_000, "wait_s": step.left.as_secs() })),
        "holds": stats.holds,
        "entries_by_hour": ctx.store.entries_by_hour(HOURS_SHOWN).map_err(failed)?,
        "classes": stats.classes.iter().map(class_stats).collect::<Json>(),
    }))
}

fn class_stats(class: &ClassStats) -> Json {
    let (usage, keep) = (&class.segment_usage, &class.keep);
    let [oldest, newest] = times(usage);
    // In thousandths, because answers contain no floats.
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a rate, not negative")]
    let rate = (class.rate * 1000.0).round() as u64;
    let age = match keep.age {
        Age::Forever => "forever",
        Age::Salt => "salt",
        Age::For(_) => "fixed",
    };
    json!({
        "class": *class.name, "configured": class.configured, "segments": class.segments,
        "entries": usage.entries, "raw_bytes": usage.raw_bytes, "disk_bytes": usage.disk_bytes,
        "oldest": oldest, "newest": newest, "entries_per_1000_s": rate,
        "keep_age": age, "keep_age_known": class.age_known, "keep_age_s": class.age.map(|age| age.as_secs()),
        "keep_bytes": keep.bytes, "keep_entries": keep.entries, "held_segments": class.held_segments,
    })
}

/// The earliest and the latest time.
fn times(usage: &SegmentUsage) -> [Option<i64>; 2] {
    [usage.at_min, usage.at_max].map(|at| Some(at.0).filter(|_| usage.entries > 0))
}

/// Deletes segments beyond limits, or lists them.
pub(super) fn prune(ctx: &Ctx, args: &Args<'_>) -> Result<Vec<u8>, CallError> {
    let count = |key| args.count(key).map(|n| n.map(|n| n as u64));
    let (age, bytes, entries) = (count("age_s")?, count("bytes")?, count("entries")?);
    let keep = (age.is_some() || bytes.is_some() || entries.is_some()).then(|| Keep {
        age: age.map_or(Age::Forever, |s| Age::For(std::time::Duration::from_secs(s))),
        bytes,
        entries,
    });
    let class = args.text("class")?.map(str::to_owned);
    let options = PruneOptions { class, keep, dry_run: args.flag("dry_run")? };
    document(prune_answer(&ctx.store.prune(&options).map_err(refused)?))
}

/// The answer to `store_prune`, also used without a daemon.
pub(crate) fn prune_answer(all: &[PlannedDrop]) -> Json {
    let row = |planned: &PlannedDrop| {
        let (usage, [oldest, newest]) = (&planned.segment_usage, times(&planned.segment_usage));
        let outcome = match &planned.outcome {
            DropOutcome::Planned => json!({ "outcome": "planned" }),
            DropOutcome::Dropped => json!({ "outcome": "dropped" }),
            DropOutcome::Held(jobs) => json!({ "held_jobs": jobs, "outcome": "held" }),
            DropOutcome::Register => json!({ "outcome": "register" }),
            DropOutcome::Pinned(consumer) => json!({ "consumer": consumer, "outcome": "pinned" }),
            DropOutcome::Busy => json!({ "outcome": "busy" }),
            DropOutcome::Failed(error) => json!({ "error": error, "outcome": "failed" }),
        };
        let mut row = json!({
            "class": *planned.class, "segment": planned.segment.0, "jobs": usage.jobs, "entries": usage.entries,
            "raw_bytes": usage.raw_bytes, "disk_bytes": usage.disk_bytes, "oldest": oldest, "newest": newest,
            "reason": planned.reason.name(),
        });
        if let (Json::Object(row), Json::Object(outcome)) = (&mut row, outcome) {
            row.extend(outcome);
        }
        row
    };
    json!({ "segments": all.iter().map(row).collect::<Json>() })
}

/// Holds a job, or releases it.
pub(super) fn hold(ctx: &Ctx, args: &Args<'_>) -> Result<Vec<u8>, CallError> {
    let jid = args.required_id("jid")?;
    if args.flag("release")? {
        return document(ctx.store.release(&jid).map_err(refused)?.into());
    }
    if ctx.store.job_entries_with(&jid, |_| false).map_err(failed)?.is_empty() {
        return Err(CallError::Refused(format!("job {jid} is not stored and cannot be held")));
    }
    let hold = ctx.store.hold(&jid, args.text("reason")?.unwrap_or("")).map_err(refused)?;
    document(json!({ "jid": hold.jid, "time": hold.since.0, "reason": hold.reason }))
}

/// The held jobs with their numbers of entries.
pub(super) fn holds(ctx: &Ctx, _: &Args<'_>) -> Result<Vec<u8>, CallError> {
    let row = |hold: &Hold| {
        let entries = ctx.store.job_entries_with(&hold.jid, |_| false).map_err(failed)?.len();
        Ok(json!({ "jid": hold.jid, "time": hold.since.0, "reason": hold.reason, "entries": entries }))
    };
    let holds = ctx.store.holds().iter().map(row).collect::<Result<Json, CallError>>()?;
    document(json!({ "holds": holds }))
}

/// Converts a store error for the caller; a refusal keeps its message.
pub(super) fn refused(error: StoreError) -> CallError {
    match error {
        StoreError::Refused(message) => CallError::Refused(message),
        other => failed(other),
    }
}
