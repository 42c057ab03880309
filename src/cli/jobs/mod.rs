//! `saltcellar jobs`, `minions`, `events` and `consumers`: queries of the job cache and of the
//! event archive.

pub(super) mod causes;
pub(super) mod consumers;
mod diff;
mod event_rows;
pub(super) mod events;
pub(super) mod facts;
mod filter;
mod job_id;
pub(super) mod job_rows;
pub(super) mod minions;
pub(super) mod missing_lines;
pub(super) mod one_return;
mod show;
mod states;
mod tail;
mod watch;

use anyhow::Context;
use salt_sls::Glob;
use serde::Serialize;

use self::job_id::unknown;
use self::job_rows::{returned, row};
use crate::api::call::jobs::answers::{JobAnswer, JobRow, UnknownReturn};
use crate::api::call::{self as calls, Cursor};
use crate::api::client::Client;
use crate::api::query::JobResult;
use crate::cli::{
    Column, Format, Global, ListFlags, ListOf, Listing, Output, Table, TimeRange, Tone, ask, plain,
    show as show_answer, title,
};
use crate::wire::call::Id;

#[derive(clap::Subcommand)]
pub(super) enum Jobs {
    /// List recent jobs, newest first
    List(Filter),
    /// Show a job: targets, returns and missing minions
    Show(show::Args),
    /// Group the failures of a job, or of a time, by their cause
    Causes(causes::Args),
    /// List the states of jobs
    States(states::Args),
    /// List the missing minions of a job, or recent jobs with missing minions
    Missing(Missing),
    /// Compare two runs of a job
    Diff(diff::Args),
    /// Follow a job until all expected minions have returned
    Watch(watch::Args),
}

impl Jobs {
    /// Whether it prints a table.
    pub(super) fn has_rows(&self) -> bool {
        match self {
            Self::List(_) | Self::Show(_) | Self::Causes(_) | Self::States(_) => true,
            // For one job only names are printed.
            Self::Missing(Missing { job, .. }) => job.is_none(),
            Self::Diff(_) | Self::Watch(_) => false,
        }
    }
}

#[derive(clap::Args)]
#[command(after_long_help = LIST_EXAMPLES)]
pub(super) struct Filter {
    #[command(flatten)]
    rows: ListFlags,
    /// Only jobs of this user
    #[arg(long)]
    user: Option<String>,
    /// Only functions that match this glob
    #[arg(long, value_name = "GLOB")]
    fun: Option<String>,
    /// Only jobs with an argument that contains TEXT, or that matches TEXT as a glob if it contains *, ? or [
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true)]
    arg: Option<String>,
    /// Only targets that match this glob
    #[arg(long, value_name = "GLOB")]
    tgt: Option<String>,
    /// Only jobs that a minion that matches this glob returned or was expected to
    #[arg(long, value_name = "GLOB")]
    minion: Option<String>,
    /// Only jobs published by a master that matches this glob
    #[arg(long, value_name = "GLOB")]
    master: Option<String>,
    /// Only jobs with this result: failed, succeeded, missing (minions have not returned), unknown (they may have returned to a master that is behind) or changed (by a state); with --minion, this result of such a minion
    #[arg(long, value_name = "RESULT", value_parser = ask::words::<JobResult>(),
          hide_possible_values = true)]
    result: Option<JobResult>,
    /// Only failed jobs, as --result failed
    #[arg(long, conflicts_with = "result")]
    failed: bool,
    /// Only jobs with this metadata; if repeated, all must match
    #[arg(long, value_name = "KEY=GLOB", value_parser = key_and_glob)]
    metadata: Vec<(String, String)>,
    /// Only job ids with this prefix, such as 20261121 for one day
    #[arg(long = "jid", value_name = "PREFIX")]
    prefix: Option<String>,
    #[command(flatten)]
    when: TimeRange,
    /// Only jobs before this one
    #[arg(long, value_name = "JID")]
    before: Option<String>,
    /// Include saltutil.find_job, which Salt uses to poll running jobs
    #[arg(long)]
    include_polling: bool,
}

const LIST_EXAMPLES: &str = "\
RETURNED is the number of minions that returned, and of those expected, if the master reported them.

Examples:
  saltcellar jobs list
  saltcellar jobs list --fun 'state.*' --since 3d -n 100
  saltcellar jobs list --minion web1 --user root
  saltcellar jobs list --fun cmd.run --arg 'rm *'
  saltcellar jobs list --failed --metadata ticket='OPS-*'
  saltcellar jobs list --output jsonl | jq -r 'select(.failed > 0) | .jid'";

const MISSING_EXAMPLES: &str = "\
With a JID, prints one missing minion per line, for `salt -L`. Without, lists recent jobs with missing minions.

Examples:
  saltcellar jobs missing 20261121054728123456
  salt -L \"$(saltcellar jobs missing 20261121054728123456 | paste -sd,)\" test.ping
  saltcellar jobs missing --since 1d";

#[derive(clap::Args)]
#[command(after_long_help = MISSING_EXAMPLES)]
pub(super) struct Missing {
    /// The job's id
    #[arg(value_name = "JID")]
    job: Option<String>,
    #[command(flatten)]
    filter: Filter,
}

fn key_and_glob(text: &str) -> Result<(String, String), String> {
    let (key, glob) = text
        .split_once('=')
        .ok_or("expected KEY=GLOB, such as ticket=OPS-123")?;
    Ok((key.to_owned(), glob.to_owned()))
}

impl Filter {
    fn args(self) -> calls::jobs::ListArgs {
        let glob = |text: Option<String>| text.map(Glob::from);
        let metadata = self.metadata.into_iter();

        calls::jobs::ListArgs {
            limit: Some(self.rows.limit()),
            since: self.when.since(),
            until: self.when.until(),
            minion: glob(self.minion),
            master: glob(self.master),
            fun: glob(self.fun),
            arg: self.arg,
            tgt: glob(self.tgt),
            user: self.user,
            jid: self.prefix.map(Id),
            result: if self.failed {
                Some(JobResult::Failed)
            } else {
                self.result
            },
            metadata: metadata
                .map(|(key, text)| (key, Glob::from(text)))
                .collect(),
            include_polling: self.include_polling,
            before: self.before.map(Id),
            ..calls::jobs::ListArgs::default()
        }
    }
}

ask::paged! {
    calls::jobs::List: JobRow, in jobs, after Cursor, in cursor,
    limited by limit
}

impl ListOf for calls::jobs::List {
    const ROWS: &'static str = "jobs";
    const OPERATION: &'static str = "list the jobs";
}

pub(super) fn run(global: &Global, jobs: Jobs) -> anyhow::Result<()> {
    match jobs {
        Jobs::List(filter) => list(global, filter),
        Jobs::Show(args) => show::run(global, &args),
        Jobs::Causes(args) => causes::run(global, &args),
        Jobs::States(args) => states::run(global, &args),
        Jobs::Missing(Missing { job: Some(jid), .. }) => missing(global, &jid),
        Jobs::Missing(Missing { job: None, filter }) => list_missing(global, filter),
        Jobs::Diff(args) => diff::run(global, &args),
        Jobs::Watch(args) => watch::run(global, &args),
    }
}

fn list(global: &Global, filter: Filter) -> anyhow::Result<()> {
    // One table for all pages, because each table prints its headings once.
    let mut table = Table::new([
        Column::jid(),
        Column::time(title("TIME", "TIME (UTC)")).drop_order(1),
        Column::truncated("FUN").min_chars(11),
        Column::middle_truncated("TGT").min_chars(9),
        Column::truncated("USER").min_chars(6).drop_order(2),
        Column::right("RETURNED").toned(Tone::of_share),
        Column::right("FAILED").toned(Tone::of_failures),
        Column::truncated("ARG").min_chars(16).drop_order(3),
        Column::middle_truncated("MASTER")
            .min_chars(9)
            .drop_order(4)
            .if_different(),
    ]);

    let is_reversed = filter.rows.reverse;
    Listing::<calls::jobs::List>::new(global, filter.args())?
        .reversed(is_reversed)
        .print(global.output, |out, rows| {
            Ok(table.print(out, &rows.iter().map(row).collect::<Vec<_>>())?)
        })
}

const LIST_MISSING: &str = "list the missing minions";

/// A job without its returns; `None` if the daemon does not know it.
fn job_of(client: &mut Client, jid: &str) -> anyhow::Result<Option<JobAnswer>> {
    let mut args = calls::jobs::ShowArgs {
        jid: Id(jid.to_owned()),
        ..calls::jobs::ShowArgs::default()
    };
    args.page.limit = Some(0);
    client
        .make::<calls::jobs::Show>(&args)
        .context(LIST_MISSING)
}

/// The missing minions of a job, as JSON.
#[derive(Serialize)]
struct MissingOf<'a> {
    jid: &'a str,
    expected: Option<u64>,
    returned: u64,
    missing: &'a [String],
    unknown: &'a [UnknownReturn],
}

fn missing(global: &Global, jid: &str) -> anyhow::Result<()> {
    let mut client = ask::connect(global)?;
    let jid = job_id::whole(&mut client, jid)?;
    let job = job_of(&mut client, &jid)?.ok_or_else(|| unknown(&jid).context(LIST_MISSING))?;

    let answer = MissingOf {
        jid: &job.row.jid,
        expected: job.row.expected,
        returned: job.row.returned,
        missing: &job.missing,
        unknown: &job.unknown,
    };

    show_answer(global.output, &answer, |out| {
        job.missing
            .iter()
            .try_for_each(|minion| out.line(&plain(minion)))?;
        Ok(())
    })
}

/// A job in the list of those with missing minions, as JSON.
#[derive(Serialize)]
struct ListedMissing {
    #[serde(flatten)]
    job: JobRow,
    missing: Vec<String>,
}

/// Jobs with missing minions, as JSON.
#[derive(Default, Serialize)]
struct MissingList {
    jobs: Vec<ListedMissing>,
    /// Whether there are more than the limit.
    more: bool,
}

fn list_missing(global: &Global, filter: Filter) -> anyhow::Result<()> {
    let filter = Filter {
        result: Some(JobResult::Missing),
        failed: false,
        ..filter
    };

    let is_reversed = filter.rows.reverse;
    let mut pages = Listing::<calls::jobs::List>::new(global, filter.args())?.reversed(is_reversed);
    // A second connection, because the list uses the first until its end.
    let mut client = ask::connect(global)?;
    let mut out = Output::paged(global.output);

    let mut table = Table::new([
        Column::jid(),
        Column::time(title("TIME", "TIME (UTC)")).drop_order(2),
        Column::truncated("FUN").min_chars(11),
        Column::middle_truncated("TGT").min_chars(9).drop_order(3),
        Column::right("RETURNED").toned(Tone::of_share),
        Column::right("MISSING").toned(Tone::of_changes),
        Column::truncated("MINIONS"),
    ]);

    let mut document = MissingList::default();
    let mut first = true;
    loop {
        let rows = pages.next_in_order()?;

        // The first page of a table prints the heading even without rows.
        if rows.is_empty() && !(first && out.format == Format::Table) {
            document.more = pages.has_more();
            if out.format == Format::Json {
                out.json(&document)?;
            }
            return Ok(out.finish()?);
        }
        first = false;

        let mut cells = Vec::new();
        for job in rows {
            // The list contains no names, therefore each job is read separately. Retention may drop
            // a job between the two calls; then it is no longer in the list.
            let Some(full) = job_of(&mut client, &job.jid)? else {
                continue;
            };

            if out.format != Format::Table {
                let listed = ListedMissing {
                    job,
                    missing: full.missing,
                };
                match out.format {
                    // One document, printed at the end.
                    Format::Json => document.jobs.push(listed),
                    _ => out.json(&listed)?,
                }
                continue;
            }

            let mut row = row(&job);
            // Up to the target; the other columns are this list's own.
            row.truncate(4);
            row.extend([
                returned(&job),
                full.missing.len().to_string(),
                plain(&full.missing.join(",")).into_owned(),
            ]);
            cells.push(row);
        }

        if out.format == Format::Table {
            table.print(&mut out, &cells)?;
        }
    }
}
