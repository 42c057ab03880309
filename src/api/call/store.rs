//! Calls about the store: statistics, retention on demand, holds.

use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::archive::OwnMaster;
use super::shared::SharedHistory;
use super::status::{ClockStep, per_1000_s};
use super::{Archive, Call, Changing, In, NoArgs, Run, Whole, failed};
use crate::api::sign_in::SignIn;
use crate::base::limits::HOURS_SHOWN;
use crate::base::named::named;
use crate::model::word::Word as _;
use crate::model::{Age, Keep, Right};
use crate::store::free_space::SpaceLevel;
use crate::store::retain::{DropOutcome, PlannedDrop, PruneOptions, Reason};
use crate::store::segment::usage::SegmentUsage;
use crate::store::stats::ClassStats;
use crate::store::{Hold, StoreError, StoreReader};
use crate::wire::call::{CallError, Id};
use crate::wire::msgpack::{Time, or_absent};

answers! {
    /// The store.
    StoreState {
        state_dir: String,
        head: u64,
        durable: u64,
        /// The lowest position of a consumer.
        checkpoint: Option<u64>,
        space: Space,
        clock_step: Option<ClockStep>,
        holds: u64,
        entries_by_hour: Vec<u64>,
        classes: Vec<StoreClass>,
    }
    /// Space of the file system.
    Space {
        state: SpaceLevel,
        free_bytes: u64,
        total_bytes: u64,
        low_bytes: u64,
        min_bytes: u64,
    }
    /// Lost settings that count as gone.
    LossAccepted {
        /// Whether any were lost.
        accepted: bool,
        /// The number of their changes, if it is known.
        changes: Option<u64>,
    }
    /// A class of entries.
    StoreClass {
        class: String,
        configured: bool,
        segments: u64,
        entries: u64,
        raw_bytes: u64,
        disk_bytes: u64,
        oldest: Option<Time>,
        newest: Option<Time>,
        /// In thousandths, because responses contain no floats.
        entries_per_1000_s: u64,
        /// As configured, such as `30d`, `salt` or `forever`.
        keep_age: String,
        /// The age in effect; absent for forever.
        keep_age_s: Option<u64>,
        /// A shorter age that Salt reported, and that waits for `store prune --accept-salt`.
        shorter_age_s: Option<u64>,
        /// The entries that the shorter age would delete now.
        shorter_drops: u64,
        keep_bytes: Option<u64>,
        keep_entries: Option<u64>,
        held_segments: u64,
    }
    /// Segments beyond limits.
    Pruned {
        segments: Vec<PrunedSegment>,
    }
    /// A segment beyond a limit.
    PrunedSegment {
        class: String,
        segment: u64,
        jobs: u64,
        entries: u64,
        raw_bytes: u64,
        disk_bytes: u64,
        oldest: Option<Time>,
        newest: Option<Time>,
        reason: Reason,
        #[serde(serialize_with = "or_absent")]
        held_jobs: Option<u64>,
        #[serde(serialize_with = "or_absent")]
        consumer: Option<String>,
        #[serde(serialize_with = "or_absent")]
        error: Option<String>,
        outcome: PruneOutcome,
    }
    /// Held jobs.
    Holds {
        holds: Vec<HeldJob>,
    }
    /// A held job.
    HeldJob {
        jid: String,
        time: Time,
        reason: String,
        /// The master on which it was held; absent if it has no id.
        master: Option<String>,
        #[serde(serialize_with = "or_absent")]
        entries: Option<u64>,
    }
}

/// What became of a segment beyond a limit.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum PruneOutcome {
    #[default]
    Planned,
    Dropped,
    /// It stays for held jobs.
    Held,
    /// It stays for the register of Thorium.
    Register,
    /// It stays for a pinned consumer.
    Pinned,
    /// It stays for now.
    Busy,
    Failed,
}

named! {
    PruneOutcome {
        Planned: "planned",
        Dropped: "dropped",
        Held: "held",
        Register: "register",
        Pinned: "pinned",
        Busy: "busy",
        Failed: "failed",
    }
}

/// `store_stats`.
pub(crate) struct Stats;

impl Call for Stats {
    const NAME: &'static str = "store_stats";
    const DOC: &'static str = "Show statistics of the store";
    type Scope = Whole<Archive>;
    type Args<'a> = NoArgs;
    type Answer = StoreState;
}

impl Run for Stats {
    fn run(ctx: &In<'_, Self>, _: NoArgs) -> Result<StoreState, CallError> {
        let stats = ctx.store.stats().map_err(failed)?;

        let space = stats.space;
        Ok(StoreState {
            state_dir: ctx.state_dir.to_string_lossy().into_owned(),
            head: stats.head.0,
            durable: stats.durable.0,
            checkpoint: ctx.store.lowest_cursor().map(|cursor| cursor.0),
            space: Space {
                state: space.room,
                free_bytes: space.free,
                total_bytes: space.total,
                low_bytes: space.low,
                min_bytes: space.min,
            },
            clock_step: stats.clock_step.map(ClockStep::from),
            holds: stats.holds as u64,
            entries_by_hour: ctx.store.entries_by_hour(HOURS_SHOWN).map_err(failed)?,
            classes: stats.classes.iter().map(class_stats).collect(),
        })
    }
}

fn class_stats(class: &ClassStats) -> StoreClass {
    let (usage, keep) = (&class.segment_usage, &class.keep);

    let [oldest, newest] = times(usage);
    StoreClass {
        class: class.name.to_string(),
        configured: class.configured,
        segments: class.segments as u64,
        entries: usage.entries,
        raw_bytes: usage.raw_bytes,
        disk_bytes: usage.disk_bytes,
        oldest,
        newest,
        entries_per_1000_s: per_1000_s(class.rate),
        keep_age: keep.age.show().unwrap_or_default(),
        keep_age_s: class.age.map(|age| age.as_secs()),
        shorter_age_s: class.shorter.map(|(age, _)| age.as_secs()),
        shorter_drops: class.shorter.map_or(0, |(_, entries)| entries),
        keep_bytes: keep.bytes,
        keep_entries: keep.entries,
        held_segments: class.held_segments as u64,
    }
}

/// The earliest and the latest time.
fn times(usage: &SegmentUsage) -> [Option<Time>; 2] {
    [usage.at_min, usage.at_max].map(|at| Some(Time(at)).filter(|_| usage.entries > 0))
}

/// `store_prune`.
pub(crate) struct Prune;

#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
pub(crate) struct PruneArgs {
    /// Only this class
    pub(crate) class: Option<String>,
    /// Delete what is older, in seconds, instead of what the configured limits select
    pub(crate) age_s: Option<u64>,
    /// Keep at most this many bytes
    pub(crate) bytes: Option<u64>,
    /// Keep at most this many entries
    pub(crate) entries: Option<u64>,
    /// Accept the shorter age that Salt has reported; refused until a master has reported since the start of the daemon
    #[serde(default)]
    pub(crate) accept_salt: bool,
    /// Delete nothing
    #[serde(default)]
    pub(crate) dry_run: bool,
}

impl Call for Prune {
    const NAME: &'static str = "store_prune";
    const DOC: &'static str = "Delete segments beyond limits, or list them";
    const RIGHT: Right = Right::Admin;
    type Scope = Changing<Archive>;
    type Args<'a> = PruneArgs;
    type Answer = Pruned;
}

impl Run for Prune {
    fn run(ctx: &In<'_, Self>, args: PruneArgs) -> Result<Pruned, CallError> {
        let PruneArgs {
            class,
            age_s,
            bytes,
            entries,
            accept_salt,
            dry_run,
        } = args;

        // Without a limit in the call, a prune applies the configured limits.
        let keep = (age_s.is_some() || bytes.is_some() || entries.is_some()).then(|| Keep {
            // A limit that is not given drops nothing.
            age: age_s.map_or(Age::Forever, |s| Age::For(Duration::from_secs(s))),
            bytes,
            entries,
        });

        let options = PruneOptions {
            class,
            keep,
            accept_salt,
            dry_run,
        };
        Ok(pruned(&ctx.store.prune(&options).map_err(refused)?))
    }
}

/// The result of `store_prune`. The command line also uses it without a daemon.
pub(crate) fn pruned(all: &[PlannedDrop]) -> Pruned {
    let row = |planned: &PlannedDrop| {
        let (usage, [oldest, newest]) = (&planned.segment_usage, times(&planned.segment_usage));
        // What a row adds depends on the outcome alone.
        let (mut held_jobs, mut consumer, mut error) = (None, None, None);

        let outcome = match &planned.outcome {
            DropOutcome::Planned => PruneOutcome::Planned,
            DropOutcome::Dropped => PruneOutcome::Dropped,
            DropOutcome::Held(jobs) => {
                held_jobs = Some(*jobs as u64);
                PruneOutcome::Held
            }
            DropOutcome::Register => PruneOutcome::Register,
            DropOutcome::Pinned(name) => {
                consumer = Some(name.clone());
                PruneOutcome::Pinned
            }
            DropOutcome::Busy => PruneOutcome::Busy,
            DropOutcome::Failed(why) => {
                error = Some(why.clone());
                PruneOutcome::Failed
            }
        };

        PrunedSegment {
            class: planned.class.to_string(),
            segment: planned.segment.0,
            jobs: usage.jobs,
            entries: usage.entries,
            raw_bytes: usage.raw_bytes,
            disk_bytes: usage.disk_bytes,
            oldest,
            newest,
            reason: planned.reason,
            held_jobs,
            consumer,
            error,
            outcome,
        }
    };

    Pruned {
        segments: all.iter().map(row).collect(),
    }
}

/// `store_hold`.
pub(crate) struct HoldJob;

#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
pub(crate) struct HoldArgs {
    /// The job's id
    pub(crate) jid: Id,
    /// Why it is held
    #[serde(default)]
    pub(crate) reason: String,
    /// Release it instead
    #[serde(default)]
    pub(crate) release: bool,
}

/// The hold, or whether there was one to release.
#[derive(Debug, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
pub(crate) enum HoldAnswer {
    Released(bool),
    Held(HeldJob),
}

impl Call for HoldJob {
    const NAME: &'static str = "store_hold";
    const DOC: &'static str = "Hold a job, or release it";
    const RIGHT: Right = Right::Admin;
    type Scope = Changing<Archive>;
    type Args<'a> = HoldArgs;
    type Answer = HoldAnswer;
}

impl Run for HoldJob {
    fn run(ctx: &In<'_, Self>, args: HoldArgs) -> Result<HoldAnswer, CallError> {
        let HoldArgs {
            jid: Id(jid),
            reason,
            release,
        } = args;

        if release {
            return Ok(HoldAnswer::Released(
                ctx.store.release(&jid).map_err(refused)?,
            ));
        }
        // A hold on a job that is not stored would protect nothing, and hide a typing mistake.
        if count_entries(&ctx.store, &jid)? == 0 {
            return Err(CallError::Refused(format!(
                "job {jid} is not stored and cannot be held; `saltcellar jobs list` lists the stored jobs"
            )));
        }

        let hold = ctx.store.hold(&jid, &reason).map_err(refused)?;
        Ok(HoldAnswer::Held(HeldJob {
            master: held_on(&ctx.master, ctx.shared.as_ref(), &hold),
            jid: hold.jid,
            time: Time(hold.since),
            reason: hold.reason,
            entries: None,
        }))
    }
}

/// The master on which a job was held. By the name that it has on the others, if it shares its history.
fn held_on(master: &OwnMaster, shared: Option<&SharedHistory>, hold: &Hold) -> Option<String> {
    let own = shared.map(SharedHistory::own);
    let own = own.filter(|_| hold.origin.is_empty());
    own.map(str::to_owned)
        .or_else(|| master.shown(&hold.origin))
}

/// The number of entries of a job.
fn count_entries(store: &StoreReader, jid: &str) -> Result<u64, CallError> {
    // Without their bodies.
    let entries = store.job_entries_with(jid, |_| false).map_err(failed)?;
    Ok(entries.len() as u64)
}

/// `store_holds`.
pub(crate) struct ListHolds;

impl Call for ListHolds {
    const NAME: &'static str = "store_holds";
    const DOC: &'static str = "List held jobs";
    type Scope = Whole<Archive>;
    type Args<'a> = NoArgs;
    type Answer = Holds;
}

impl Run for ListHolds {
    fn run(ctx: &In<'_, Self>, _: NoArgs) -> Result<Holds, CallError> {
        let row = |hold: Hold| {
            Ok(HeldJob {
                entries: Some(count_entries(ctx.store, &hold.jid)?),
                master: held_on(ctx.master, ctx.shared, &hold),
                jid: hold.jid,
                time: Time(hold.since),
                reason: hold.reason,
            })
        };

        let holds = ctx.store.holds().into_iter().map(row);
        Ok(Holds {
            holds: holds.collect::<Result<_, CallError>>()?,
        })
    }
}

/// `store_accept_loss`.
pub(crate) struct AcceptLoss;

impl Call for AcceptLoss {
    const NAME: &'static str = "store_accept_loss";
    const DOC: &'static str = "Count lost settings as gone";
    const RIGHT: Right = Right::Admin;
    type Scope = Changing<SignIn>;
    type Args<'a> = NoArgs;
    type Answer = LossAccepted;
}

impl Run for AcceptLoss {
    fn run(ctx: &In<'_, Self>, _: NoArgs) -> Result<LossAccepted, CallError> {
        let loss = ctx.store.settings().loss();
        let accepted = ctx.store.accept_loss().map_err(refused)?;
        if accepted {
            tracing::info!(target: "audit", action = "store_accept_loss", "loss of settings accepted");
            // Those from before are valid again.
            ctx.tokens.reload();
        }
        Ok(LossAccepted {
            accepted,
            changes: loss.and_then(|loss| loss.records),
        })
    }
}

/// Converts a store error for the caller; a refusal keeps its message.
pub(super) fn refused(error: StoreError) -> CallError {
    match error {
        StoreError::Refused(message) => CallError::Refused(message),
        other => failed(other),
    }
}
