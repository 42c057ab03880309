//! Answers of the calls about jobs.

use std::collections::{BTreeMap, BTreeSet};

use crate::api::call::Cursor;
use crate::api::query::{Child, DiffKind, StateCounts};
use crate::wire::msgpack::{Stored, Time, or_absent};

answers! {
    /// Jobs, the latest first.
    JobsPage {
        jobs: Vec<JobRow>,
        /// Whether more follow.
        more: bool,
        /// The `cursor` of the next page.
        #[serde(serialize_with = "or_absent")]
        next: Option<Cursor>,
    }
    /// The minions that have not returned a job.
    Awaited {
        jid: String,
        expected: Option<u64>,
        returned: u64,
        missing_count: Option<u64>,
        missing: Vec<String>,
        /// Minions that may have returned to a master whose history is not here up to now. They are not `missing`.
        #[serde(serialize_with = "or_absent")]
        unknown: Vec<UnknownReturn>,
    }
    /// A minion of which it is unknown whether it has returned.
    UnknownReturn {
        minion: String,
        /// The master that may have its return.
        master: String,
        /// By which that master's history is behind here.
        behind_s: u64,
    }
    /// A job in a list.
    JobRow {
        jid: String,
        time: Time,
        fun: Stored,
        arg: Stored,
        tgt: Stored,
        tgt_type: Stored,
        user: Stored,
        /// The id of the master that published it.
        #[serde(serialize_with = "or_absent")]
        master: Option<String>,
        /// Number of minions that were targeted, if known.
        expected: Option<u64>,
        returned: u64,
        failed: u64,
        succeeded: u64,
        missing_count: Option<u64>,
        /// Number of minions of which it is unknown whether they have returned, because a master of the shared history is behind.
        #[serde(serialize_with = "or_absent")]
        unknown_count: u64,
        /// Number of returns that are known from a bus only.
        bus_only: u64,
        /// Number of those that came from peers of the cluster: they count as returns, but are not verified here.
        unverified: u64,
        /// Number of returns by exit code.
        retcodes: BTreeMap<String, u64>,
        #[serde(serialize_with = "or_absent")]
        first_return: Option<Time>,
        #[serde(serialize_with = "or_absent")]
        last_return: Option<Time>,
        #[serde(serialize_with = "or_absent")]
        duration_us: Option<i64>,
        #[serde(serialize_with = "or_absent")]
        endtime: Option<String>,
        #[serde(serialize_with = "or_absent")]
        metadata: Stored,
        /// Whether different jobs were published under this id.
        #[serde(serialize_with = "or_absent")]
        conflict: bool,
    }
    /// A job with a page of its returns.
    #[schemars(rename = "Job")]
    JobAnswer {
        #[serde(flatten)]
        row: JobRow,
        /// The job as published; null if it is not known. A token limited to minions gets function, user and its minions.
        load: Stored,
        minions: BTreeSet<String>,
        missing: Vec<String>,
        /// Minions that may have returned to a master whose history is not here up to now. They are not `missing`.
        #[serde(serialize_with = "or_absent")]
        unknown: Vec<UnknownReturn>,
        not_confirmed: BTreeSet<String>,
        nocache: bool,
        /// With a conflict the different jobs that were published under this id, the one that counts first.
        #[serde(serialize_with = "or_absent")]
        publishes: Vec<Publish>,
        #[serde(serialize_with = "or_absent")]
        parent: Option<String>,
        #[serde(serialize_with = "or_absent")]
        children: Vec<Child>,
        returns: Vec<Return>,
        more: bool,
        /// `after` of the next page.
        #[serde(serialize_with = "or_absent")]
        next: Option<String>,
    }
    /// One of several jobs that were published under one id.
    Publish {
        seq: u64,
        time: Time,
        fun: Stored,
        arg: Stored,
        tgt: Stored,
        tgt_type: Stored,
        user: Stored,
        /// The id of the master that published it.
        #[serde(serialize_with = "or_absent")]
        master: Option<String>,
    }
    /// A return.
    Return {
        minion: String,
        seq: u64,
        time: Time,
        /// Numbers of its states, if it ran any.
        #[serde(serialize_with = "or_absent")]
        states: Option<StateCounts>,
        #[serde(rename = "return")]
        value: Stored,
        #[serde(serialize_with = "or_absent")]
        retcode: Stored,
        #[serde(serialize_with = "or_absent")]
        success: Stored,
        fun: Stored,
        #[serde(serialize_with = "or_absent")]
        fun_args: Stored,
        #[serde(serialize_with = "or_absent")]
        out: Stored,
        failed: bool,
        bus_only: bool,
        /// Whether a returner call of this master confirmed it.
        verified: bool,
        /// The peer of the cluster that it came from, if it is not verified.
        #[serde(serialize_with = "or_absent")]
        master: Option<String>,
        duplicates: u64,
        /// Later returns of the minion that differ from the first.
        #[serde(serialize_with = "or_absent")]
        others: Vec<LaterReturn>,
        #[serde(serialize_with = "or_absent")]
        not_targeted: bool,
    }
    /// A return that differs from the one before.
    LaterReturn {
        seq: u64,
        time: Time,
        #[serde(rename = "return")]
        value: Stored,
        #[serde(skip_serializing_if = "Stored::is_none")]
        retcode: Stored,
        #[serde(skip_serializing_if = "Stored::is_none")]
        success: Stored,
    }
    /// States of a job.
    StatesPage {
        jid: String,
        states: Vec<State>,
        more: bool,
        /// `after` of the next page.
        #[serde(serialize_with = "or_absent")]
        next: Option<String>,
    }
    /// A state of a minion.
    #[schemars(rename = "StateRow")]
    State {
        minion: String,
        id: String,
        name: String,
        fun: String,
        sls: Option<String>,
        result: Option<bool>,
        changed: bool,
        changes: Stored,
        comment: Stored,
        duration_ms: Option<f64>,
        #[serde(serialize_with = "or_absent")]
        start_time: Option<String>,
        run_num: Option<i64>,
        #[serde(serialize_with = "or_absent")]
        job: Option<String>,
    }
    /// A comparison of two runs of a job, by minion.
    JobDiff {
        /// The earlier run.
        a: JobRow,
        /// The later run.
        b: JobRow,
        /// Number of minions of this page that do not differ.
        same: u64,
        /// The numbers of the whole jobs, if they are asked for.
        #[serde(serialize_with = "or_absent")]
        totals: Option<DiffTotals>,
        minions: Vec<MinionDiff>,
        more: bool,
        /// `after` of the next page.
        #[serde(serialize_with = "or_absent")]
        next: Option<String>,
    }
    /// Numbers of minions by what became of them. Each counts once.
    DiffTotals {
        /// Failed in the later run only.
        newly_failed: u64,
        /// Failed in the earlier run only.
        fixed: u64,
        /// Other differences.
        changed: u64,
        /// In the later run only.
        added: u64,
        /// In the earlier run only.
        removed: u64,
        same: u64,
    }
    /// A minion whose runs differ.
    MinionDiff {
        minion: String,
        what: DiffKind,
        #[serde(serialize_with = "or_absent")]
        a: Option<RunOutcome>,
        #[serde(serialize_with = "or_absent")]
        b: Option<RunOutcome>,
        /// The states that differ, if the runs have states.
        #[serde(serialize_with = "or_absent")]
        states: Vec<StateDiff>,
    }
    /// The outcome of a run on a minion.
    RunOutcome {
        failed: bool,
        #[serde(serialize_with = "or_absent")]
        retcode: Stored,
        #[serde(serialize_with = "or_absent")]
        success: Stored,
        /// Absent if the states are compared.
        #[serde(rename = "return", serialize_with = "or_absent")]
        value: Stored,
    }
    /// A state that differs.
    StateDiff {
        what: DiffKind,
        #[serde(serialize_with = "or_absent")]
        a: Option<State>,
        #[serde(serialize_with = "or_absent")]
        b: Option<State>,
    }
    /// Changes of a job since a position.
    JobUpdate {
        next: u64,
        ended: bool,
        known: bool,
        /// Newly expected minions.
        minions: Option<BTreeSet<String>>,
        #[serde(serialize_with = "or_absent")]
        fun: Stored,
        #[serde(serialize_with = "or_absent")]
        tgt: Stored,
        answers: Vec<NewReturn>,
        steps: Vec<Step>,
    }
    /// A return that arrived.
    NewReturn {
        minion: String,
        seq: u64,
        time: Time,
        #[serde(serialize_with = "or_absent")]
        retcode: Option<i64>,
        failed: bool,
        bus_only: bool,
        /// The peer of the cluster that it came from, if it is not verified.
        #[serde(serialize_with = "or_absent")]
        master: Option<String>,
    }
    /// A state that ran, or a progress report of a runner.
    Step {
        #[serde(serialize_with = "or_absent")]
        minion: Option<String>,
        seq: u64,
        time: Time,
        data: Stored,
    }
}
