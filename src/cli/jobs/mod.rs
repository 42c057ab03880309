//! `saltcellar jobs`, `minions`, `events` and `consumers`: queries of the job cache and of the
//! event archive.

pub(super) mod consumers;
mod diff;
pub(super) mod events;
mod filter;
pub(super) mod minions;
mod show;
mod states;
mod tail;
mod watch;

use anyhow::Context;
use serde_json::{Value as Json, json};

use crate::api::call as calls;
use crate::api::call::events::Scan;
use crate::api::call::jobs::answers::{JobAnswer, JobRow, JobsPage};
use crate::api::client::Client;
use crate::cli::{
    Column, Format, Global, ListOf, Order, Output, Page, Pages, Table, TimeRange, ask, joined,
    leaf, line_of, plain, short_at, show as show_answer, title, value,
};

#[derive(clap::Subcommand)]
pub(super) enum Jobs {
    /// List recent jobs, newest first
    List(Filter),
    /// Show a job: targets, returns and missing minions
    Show(show::Args),
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
            Self::List(_) | Self::Show(_) | Self::States(_) => true,
            // One job has a list of names only.
            Self::Missing(Missing { job, .. }) => job.is_none(),
            Self::Diff(_) | Self::Watch(_) => false,
        }
    }
}

#[derive(clap::Args, serde::Serialize)]
#[command(after_long_help = LIST_EXAMPLES)]
pub(super) struct Filter {
    /// Maximum number of jobs
    #[arg(long, default_value_t = 20, value_name = "COUNT", value_parser = clap::value_parser!(u64).range(1..))]
    limit: u64,
    /// Only jobs of this user
    #[arg(long)]
    user: Option<String>,
    /// Only functions that match this glob
    #[arg(long, value_name = "GLOB")]
    fun: Option<String>,
    /// Only targets that match this glob
    #[arg(long, value_name = "GLOB")]
    tgt: Option<String>,
    /// Only jobs that this minion returned or was expected to
    #[arg(long, value_name = "ID")]
    minion: Option<String>,
    /// Only jobs with this result: failed, succeeded, missing (minions have not returned) or changed (by a state)
    #[arg(long, value_name = "RESULT", value_parser = ["failed", "succeeded", "missing", "changed"],
          hide_possible_values = true)]
    result: Option<String>,
    /// Only jobs with this metadata; if repeated, all must match
    #[arg(long, value_name = "KEY=GLOB", value_parser = key_and_glob)]
    #[serde(serialize_with = "as_map")]
    metadata: Vec<(String, String)>,
    /// Only job ids with this prefix, such as 20261121 for one day
    #[arg(long = "jid", value_name = "PREFIX")]
    #[serde(rename = "jid")]
    prefix: Option<String>,
    #[command(flatten)]
    #[serde(flatten)]
    when: TimeRange,
    /// Only jobs before this one
    #[arg(long, value_name = "JID")]
    before: Option<String>,
    /// Include saltutil.find_job, by which Salt polls running jobs
    #[arg(long)]
    find_job: bool,
}

const LIST_EXAMPLES: &str = "\
RETURNED is the number of minions that returned, and of those expected, if the master reported them.

Examples:
  saltcellar jobs list
  saltcellar jobs list --fun 'state.*' --since 3d --limit 100
  saltcellar jobs list --minion web1 --user root
  saltcellar jobs list --result failed --metadata ticket='OPS-*'
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

fn as_map<S: serde::Serializer>(pairs: &[(String, String)], to: S) -> Result<S::Ok, S::Error> {
    if pairs.is_empty() {
        to.serialize_none()
    } else {
        to.collect_map(pairs.iter().map(|(key, glob)| (key, glob)))
    }
}

impl ListOf for calls::jobs::List {
    type Row = JobRow;
    const ROWS: &'static str = "jobs";
    const OPERATION: &'static str = "list the jobs";

    fn page(answer: JobsPage) -> Page<JobRow> {
        Page {
            rows: answer.jobs,
            more: answer.more,
            next: answer.next,
            scan: Scan::default(),
        }
    }
}

pub(super) fn run(global: &Global, jobs: Jobs) -> anyhow::Result<()> {
    match jobs {
        Jobs::List(filter) => list(global, filter),
        Jobs::Show(args) => show::run(global, &args),
        Jobs::States(args) => states::run(global, &args),
        Jobs::Missing(Missing { job: Some(jid), .. }) => missing(global, &jid),
        Jobs::Missing(Missing { job: None, filter }) => list_missing(global, filter),
        Jobs::Diff(args) => diff::run(global, &args),
        Jobs::Watch(args) => watch::run(global, &args),
    }
}

/// The error for an unknown job id, which may have any length.
pub(super) fn unknown(jid: &str) -> anyhow::Error {
    let shown: String = jid.chars().take(64).collect();

    let rest = if shown.len() < jid.len() {
        format!("... ({} bytes)", jid.len())
    } else {
        String::new()
    };

    anyhow::anyhow!("unknown job {shown}{rest}")
}

fn list(global: &Global, filter: Filter) -> anyhow::Result<()> {
    let mut table = Table::new([
        Column::left("JID"),
        Column::left(title("TIME", "TIME (UTC)")).drop_order(3),
        Column::truncated("FUN").min_chars(14),
        Column::middle_truncated("TGT").min_chars(9),
        Column::left("USER").drop_order(2),
        Column::right("RETURNED"),
        Column::right("FAILED"),
        Column::truncated("ARG").drop_order(1),
    ]);

    Pages::<calls::jobs::List>::new(global, filter)?.print(
        global.output,
        Order::NewestFirst,
        |out, rows| Ok(table.print(out, &rows.iter().map(row).collect::<Vec<_>>())?),
    )
}

const LIST_MISSING: &str = "list the missing minions";

/// A job without its returns, as its type and as JSON; `None` if the daemon does not know it.
fn job_of(client: &mut Client, jid: &str) -> anyhow::Result<Option<(JobAnswer, Json)>> {
    let (job, json) = ask::call_as::<calls::jobs::Show>(client, json!({ "jid": jid, "limit": 0 }))
        .context(LIST_MISSING)?;
    Ok(job.map(|job| (job, json)))
}

fn missing(global: &Global, jid: &str) -> anyhow::Result<()> {
    let (job, _) = job_of(&mut ask::connect(global)?, jid)?
        .ok_or_else(|| unknown(jid).context(LIST_MISSING))?;

    let answer = json!({
        "jid": job.row.jid,
        "expected": job.row.expected,
        "returned": job.row.returned,
        "missing": job.missing,
    });

    show_answer(global.output, &answer, |out| {
        job.missing
            .iter()
            .try_for_each(|minion| out.line(&plain(minion)))?;
        Ok(())
    })
}

fn list_missing(global: &Global, filter: Filter) -> anyhow::Result<()> {
    let filter = Filter {
        result: Some("missing".to_owned()),
        ..filter
    };

    let mut pages = Pages::<calls::jobs::List>::new(global, filter)?;
    let mut client = ask::connect(global)?;
    let mut out = Output::paged(global.output);

    let mut table = Table::new([
        Column::left("JID"),
        Column::left(title("TIME", "TIME (UTC)")).drop_order(3),
        Column::truncated("FUN").min_chars(14),
        Column::middle_truncated("TGT").min_chars(9).drop_order(2),
        Column::right("RETURNED"),
        Column::right("MISSING"),
        Column::truncated("MINIONS"),
    ]);

    let mut first = true;
    loop {
        let rows = pages.next()?;

        // The first page of a table prints the heading even without rows.
        if rows.typed.is_empty() && !(first && out.format == Format::Table) {
            return Ok(out.finish()?);
        }
        first = false;

        let mut cells = Vec::new();
        for (job, mut json) in rows.typed.into_iter().zip(rows.json) {
            // The list has no names, so each job is read by itself.
            // Retention may drop a job between the two calls; then it is no longer in the list.
            let Some((full, _)) = job_of(&mut client, &job.jid)? else {
                continue;
            };

            if out.format != Format::Table {
                ask::set(&mut json, "missing", json!(full.missing));
                out.json(&json)?;
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

pub(super) fn returned(job: &JobRow) -> String {
    match job.expected {
        Some(expected) => format!("{}/{expected}", job.returned),
        None => job.returned.to_string(),
    }
}

fn row(job: &JobRow) -> Vec<String> {
    vec![
        plain(&job.jid).into_owned(),
        short_at(job.time),
        joined(&job.fun),
        joined(&job.tgt),
        line_of(&job.user),
        returned(job),
        job.failed.to_string(),
        arg(job),
    ]
}

fn arg(job: &JobRow) -> String {
    match value(&job.arg) {
        // The arguments as a shell would have them: separated, empty ones left out.
        Json::Array(items) => items
            .iter()
            .map(argument)
            .filter(|text| !text.is_empty())
            .collect::<Vec<_>>()
            .join(" "),
        other => leaf(&other),
    }
}

/// Formats an argument as on Salt's command line. Keyword arguments are a map that also holds
/// internal keys of Salt.
fn argument(arg: &Json) -> String {
    let of_salt = |key: &String| key == "orchestration_jid" || key.starts_with("__");

    match arg.as_object() {
        Some(keywords) if keywords.keys().any(of_salt) => {
            let public = keywords.iter().filter(|(key, _)| !of_salt(key));
            public
                .map(|(key, value)| format!("{key}={}", leaf(value)))
                .collect::<Vec<_>>()
                .join(" ")
        }
        _ => leaf(arg),
    }
}
