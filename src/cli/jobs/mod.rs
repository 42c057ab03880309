//! `saltcellar jobs`: queries of the job cache.

mod diff;
mod show;
mod states;
mod watch;

use anyhow::Context;
use rmpv::Value;
use serde_json::{Value as Json, json};

use super::ask::{ListCall, Pages};
use super::format::nested::leaf;
use super::format::output::{Format, Output};
use super::format::table::{Column, Table};
use super::format::when::{TimeRange, short};
use super::{Global, ask};

/// Verbs under `jobs`.
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

/// Flags of `jobs list`.
#[derive(clap::Args)]
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
    metadata: Vec<(String, String)>,
    /// Only job ids with this prefix, such as 20261121 for one day
    #[arg(long = "jid", value_name = "PREFIX")]
    prefix: Option<String>,
    #[command(flatten)]
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

/// Flags of `jobs missing`.
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
    let (key, glob) = text.split_once('=').ok_or("expected KEY=GLOB, such as ticket=OPS-123")?;
    Ok((key.to_owned(), glob.to_owned()))
}

const LIST_CALL: ListCall = ListCall { call: "jobs_list", rows: "jobs", cursor: "jid" };

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
    let rest = if shown.len() < jid.len() { format!("... ({} bytes)", jid.len()) } else { String::new() };
    anyhow::anyhow!("unknown job {shown}{rest}")
}

impl Filter {
    fn pages(self, global: &Global) -> anyhow::Result<Pages> {
        let client = ask::connect(global)?;
        let text = |value: Option<String>| value.map_or(Value::Nil, Value::from);
        let metadata = self.metadata.into_iter().map(|(key, glob)| (Value::from(key), Value::from(glob)));
        let metadata: Vec<_> = metadata.collect();
        let mut filter_args = vec![
            ("user", text(self.user)),
            ("fun", text(self.fun)),
            ("tgt", text(self.tgt)),
            ("minion", text(self.minion)),
            ("result", text(self.result)),
            ("metadata", if metadata.is_empty() { Value::Nil } else { Value::Map(metadata) }),
            ("jid", text(self.prefix)),
            ("find_job", if self.find_job { Value::from(true) } else { Value::Nil }),
        ];
        filter_args.extend(self.when.arguments());
        Ok(Pages::new(client, LIST_CALL, filter_args, text(self.before), self.limit))
    }
}

fn list(global: &Global, filter: Filter) -> anyhow::Result<()> {
    let mut pages = filter.pages(global)?;
    let mut out = Output::new(global.output);
    let operation = "list the jobs";
    if out.format != Format::Table {
        print_json(&mut out, &mut pages, LIST_CALL.rows).context(operation)?;
        return Ok(out.flush()?);
    }
    let mut table = Table::new([
        Column::left("JID"),
        Column::left("TIME (UTC)").drop_order(3),
        Column::truncated("FUN").min_chars(14),
        Column::truncated("TGT"),
        Column::left("USER").drop_order(2),
        Column::right("RETURNED"),
        Column::right("FAILED"),
        Column::truncated("ARG").drop_order(1),
    ]);
    let mut first = true;
    loop {
        let rows = pages.next().context(operation)?;
        if rows.is_empty() && !first {
            return Ok(out.flush()?);
        }
        first = false;
        table.print(&mut out, &rows.iter().map(row).collect::<Vec<_>>())?;
    }
}

fn missing_of(client: &mut crate::api::client::Client, jid: &str) -> anyhow::Result<Json> {
    let pairs = [("jid", Value::from(jid)), ("limit", Value::from(0))];
    let job = ask::call(client, "job_show", pairs).context("list the missing minions")?;
    if job.is_null() {
        return Err(unknown(jid).context("list the missing minions"));
    }
    Ok(job)
}

fn missing(global: &Global, jid: &str) -> anyhow::Result<()> {
    let job = missing_of(&mut ask::connect(global)?, jid)?;
    let mut out = Output::new(global.output);
    let missing = list_of(&job, "missing");
    if out.format == Format::Table {
        for minion in missing {
            out.line(&leaf(minion))?;
        }
    } else {
        let field = |name: &str| job.get(name).cloned().unwrap_or_default();
        let (expected, returned) = (field("expected"), field("returned"));
        out.json(
            &json!({ "jid": field("jid"), "expected": expected, "returned": returned, "missing": missing }),
        )?;
    }
    Ok(out.flush()?)
}

fn list_missing(global: &Global, filter: Filter) -> anyhow::Result<()> {
    let filter = Filter { result: Some("missing".to_owned()), ..filter };
    let mut pages = filter.pages(global)?;
    let mut client = ask::connect(global)?;
    let mut out = Output::new(global.output);
    let mut table = Table::new([
        Column::left("JID"),
        Column::left("TIME (UTC)").drop_order(3),
        Column::truncated("FUN").min_chars(14),
        Column::truncated("TGT").drop_order(2),
        Column::right("RETURNED"),
        Column::right("MISSING"),
        Column::truncated("MINIONS"),
    ]);
    let mut first = true;
    loop {
        let rows = pages.next().context("list the jobs")?;
        if rows.is_empty() && !(first && out.format == Format::Table) {
            return Ok(out.flush()?);
        }
        first = false;
        let mut cells = Vec::new();
        for mut job in rows {
            let shown_job = missing_of(&mut client, &field(&job, "jid"))?;
            let missing = list_of(&shown_job, "missing");
            if out.format == Format::Table {
                let minions = missing.iter().map(leaf).collect::<Vec<_>>().join(",");
                let time = job.get("time").map(short).unwrap_or_default();
                cells.push(vec![
                    field(&job, "jid"),
                    time,
                    fun(&job),
                    tgt(&job),
                    returned(&job),
                    missing.len().to_string(),
                    minions,
                ]);
            } else {
                if let Some(job) = job.as_object_mut() {
                    job.insert("missing".to_owned(), missing.into());
                }
                out.json(&job)?;
            }
        }
        if out.format == Format::Table {
            table.print(&mut out, &cells)?;
        }
    }
}

fn returned(job: &Json) -> String {
    match job.get("expected").and_then(Json::as_u64) {
        Some(expected) => format!("{}/{expected}", field(job, "returned")),
        None => field(job, "returned"),
    }
}

fn row(job: &Json) -> Vec<String> {
    let time = job.get("time").map(short).unwrap_or_default();
    vec![
        field(job, "jid"),
        time,
        fun(job),
        tgt(job),
        field(job, "user"),
        returned(job),
        field(job, "failed"),
        arg(job),
    ]
}

fn field(row: &Json, name: &str) -> String {
    row.get(name).map(leaf).unwrap_or_default()
}

/// Formats the target as on Salt's command line.
fn tgt(job: &Json) -> String {
    match job.get("tgt") {
        Some(Json::Array(minions)) => minions.iter().map(leaf).collect::<Vec<_>>().join(","),
        Some(other) => leaf(other),
        None => String::new(),
    }
}

/// Formats the function, or the functions of a compound job.
fn fun(job: &Json) -> String {
    match job.get("fun") {
        Some(Json::Array(names)) => names.iter().map(leaf).collect::<Vec<_>>().join(","),
        Some(other) => leaf(other),
        None => String::new(),
    }
}

fn arg(job: &Json) -> String {
    match job.get("arg") {
        Some(Json::Array(items)) => {
            items.iter().map(argument).filter(|text| !text.is_empty()).collect::<Vec<_>>().join(" ")
        }
        Some(other) => leaf(other),
        None => String::new(),
    }
}

/// Formats an argument as on Salt's command line. Keyword arguments are a map that also holds internal keys of Salt.
fn argument(arg: &Json) -> String {
    let of_salt = |key: &String| key == "orchestration_jid" || key.starts_with("__");
    match arg.as_object() {
        Some(keywords) if keywords.keys().any(of_salt) => {
            let public = keywords.iter().filter(|(key, _)| !of_salt(key));
            public.map(|(key, value)| format!("{key}={}", leaf(value))).collect::<Vec<_>>().join(" ")
        }
        _ => leaf(arg),
    }
}

/// Prints a list as `{"jobs": [...], "more": bool}` with one row per line, or as `jsonl` with rows only.
pub(super) fn print_json(out: &mut Output, pages: &mut Pages, name: &str) -> anyhow::Result<()> {
    let document = out.format == Format::Json;
    if document {
        out.text(&format!("{{{}: [", json!(name)))?;
    }
    let mut first = true;
    loop {
        let rows = pages.next()?;
        if rows.is_empty() {
            break;
        }
        for row in &rows {
            if document {
                out.text(if first { "\n" } else { ",\n" })?;
                out.json_compact(row)?;
            } else {
                out.json(row)?;
            }
            first = false;
        }
        // The next page may be slow.
        out.flush()?;
    }
    if document {
        out.rendered(&format!("{}], \"more\": {}}}", if first { "" } else { "\n" }, pages.more))?;
    }
    Ok(())
}

fn list_of<'a>(job: &'a Json, name: &str) -> &'a [Json] {
    job.get(name).and_then(Json::as_array).map_or(&[], Vec::as_slice)
}
