//! Calls about the store: statistics, retention on demand, holds.

use super::lists::Map;
use super::{Ctx, failed};
use crate::model::{Age, Keep};
use crate::store::read::stats::ClassStats;
use crate::store::retain::{DropOutcome, PlannedDrop, PruneOptions};
use crate::store::segment::usage::SegmentUsage;
use crate::store::{Hold, StoreError};
use crate::wire::call::{Args, CallError};
use crate::wire::msgpack::Writer;

pub(super) fn stats(ctx: &Ctx, _: &Args<'_>) -> Result<Vec<u8>, CallError> {
    let stats = ctx.store.stats().map_err(failed)?;
    let mut map = Map::default();
    map.key("state_dir").str(&ctx.state_dir.to_string_lossy());
    map.key("head").uint(stats.head.0);
    map.key("durable").uint(stats.durable.0);
    // Reserved: consumers have no cursors yet.
    map.key("checkpoint").nil();
    let w = map.key("space");
    let space = stats.space;
    w.map(5).str("state").str(space.room.name()).str("free_bytes").uint(space.free);
    w.str("total_bytes").uint(space.total).str("low_bytes").uint(space.low).str("min_bytes").uint(space.min);
    let w = map.key("clock_step");
    match stats.clock_step {
        Some(step) => {
            w.map(2).str("ahead_s").int(step.ahead / 1_000_000).str("wait_s").uint(step.left.as_secs())
        }
        None => w.nil(),
    };
    map.key("holds").uint(stats.holds as u64);
    let w = map.key("classes").array(stats.classes.len());
    for class in &stats.classes {
        class_stats(class).write(w);
    }
    Ok(map.into_bytes())
}

fn class_stats(class: &ClassStats) -> Map {
    let mut map = Map::default();
    map.key("class").str(&class.name);
    map.key("configured").bool(class.configured);
    map.key("segments").uint(class.segments as u64);
    usage(&mut map, &class.segment_usage);
    // In thousandths, because answers contain no floats.
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a rate, not negative")]
    map.key("entries_per_1000_s").uint((class.rate * 1000.0).round() as u64);
    let age = match class.keep.age {
        Age::Forever => "forever",
        Age::Salt => "salt",
        Age::For(_) => "fixed",
    };
    map.key("keep_age").str(age);
    map.key("keep_age_known").bool(class.age_known);
    number_or_nil(&mut map, "keep_age_s", class.age.map(|age| age.as_secs()));
    number_or_nil(&mut map, "keep_bytes", class.keep.bytes);
    number_or_nil(&mut map, "keep_entries", class.keep.entries);
    map.key("held_segments").uint(class.held_segments as u64);
    map
}

fn number_or_nil(map: &mut Map, key: &str, number: Option<u64>) {
    match number {
        Some(number) => map.key(key).uint(number),
        None => map.key(key).nil(),
    };
}

fn usage(map: &mut Map, usage: &SegmentUsage) {
    map.key("entries").uint(usage.entries);
    map.key("raw_bytes").uint(usage.raw_bytes);
    map.key("disk_bytes").uint(usage.disk_bytes);
    for (key, at) in [("oldest", usage.at_min), ("newest", usage.at_max)] {
        if usage.entries > 0 {
            map.key(key).int(at.0);
        } else {
            map.key(key).nil();
        }
    }
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
    Ok(prune_answer(&ctx.store.prune(&options).map_err(refused)?))
}

/// The answer to `store_prune`, also used without a daemon.
pub fn prune_answer(all: &[PlannedDrop]) -> Vec<u8> {
    let mut map = Map::default();
    let w = map.key("segments").array(all.len());
    for planned in all {
        let mut row = Map::default();
        row.key("class").str(&planned.class);
        row.key("segment").uint(planned.segment.0);
        row.key("jobs").uint(planned.segment_usage.jobs);
        usage(&mut row, &planned.segment_usage);
        row.key("reason").str(planned.reason.name());
        let outcome = match &planned.outcome {
            DropOutcome::Planned => "planned",
            DropOutcome::Dropped => "dropped",
            DropOutcome::Held(jobs) => {
                row.key("held_jobs").uint(*jobs as u64);
                "held"
            }
            DropOutcome::Register => "register",
            DropOutcome::Busy => "busy",
            DropOutcome::Failed(error) => {
                row.key("error").str(error);
                "failed"
            }
        };
        row.key("outcome").str(outcome);
        row.write(w);
    }
    map.into_bytes()
}

/// Holds a job, or releases it.
pub(super) fn hold(ctx: &Ctx, args: &Args<'_>) -> Result<Vec<u8>, CallError> {
    let jid = args.required_id("jid")?;
    let mut w = Writer::new();
    if args.flag("release")? {
        w.bool(ctx.store.release(&jid).map_err(refused)?);
        return Ok(w.into_bytes());
    }
    if ctx.store.job_entries_with(&jid, |_| false).map_err(failed)?.is_empty() {
        return Err(CallError::Refused(format!("job {jid} is not stored and cannot be held")));
    }
    let hold = ctx.store.hold(&jid, args.text("reason")?.unwrap_or("")).map_err(refused)?;
    hold_row(&hold).write(&mut w);
    Ok(w.into_bytes())
}

/// The held jobs with their numbers of entries.
pub(super) fn holds(ctx: &Ctx, _: &Args<'_>) -> Result<Vec<u8>, CallError> {
    let holds = ctx.store.holds();
    let mut map = Map::default();
    let w = map.key("holds").array(holds.len());
    for hold in &holds {
        let mut row = hold_row(hold);
        let entries = ctx.store.job_entries_with(&hold.jid, |_| false).map_err(failed)?;
        row.key("entries").uint(entries.len() as u64);
        row.write(w);
    }
    Ok(map.into_bytes())
}

fn hold_row(hold: &Hold) -> Map {
    let mut map = Map::default();
    map.key("jid").str(&hold.jid);
    map.key("time").int(hold.since.0);
    map.key("reason").str(&hold.reason);
    map
}

/// Converts a store error for the caller; a refusal keeps its message.
fn refused(error: StoreError) -> CallError {
    match error {
        StoreError::Refused(message) => CallError::Refused(message),
        other => failed(other),
    }
}
