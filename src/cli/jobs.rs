//! `saltcellar jobs list` and `jobs show`: the job cache.

use anyhow::{Context, bail};
use rmpv::Value;
use serde_json::{Value as Json, json};

use super::ask::{Names, Pages};
use super::nested::{leaf, nested};
use super::output::{Format, Output, plain};
use super::table::{Column, Table};
use super::when::{When, iso_in, short};
use super::{Global, ask};

/// Verbs under `jobs`.
#[derive(clap::Subcommand)]
pub(super) enum Jobs {
    /// The last jobs, newest first
    List(Filter),
    /// One job: whom it asked, who answered what, who did not
    #[command(after_long_help = SHOW_EXAMPLES)]
    Show {
        /// The job's id
        jid: String,
    },
}

/// Flags of `jobs list`.
#[derive(clap::Args)]
#[command(after_long_help = LIST_EXAMPLES)]
pub(super) struct Filter {
    /// At most so many jobs
    #[arg(long, default_value_t = 20, value_name = "COUNT", value_parser = clap::value_parser!(u64).range(1..))]
    limit: u64,
    /// Only jobs that this user published
    #[arg(long)]
    user: Option<String>,
    /// Only functions that match this glob
    #[arg(long, value_name = "GLOB")]
    fun: Option<String>,
    /// Only targets that match this glob
    #[arg(long, value_name = "GLOB")]
    tgt: Option<String>,
    /// Only jobs that this minion answered
    #[arg(long, value_name = "ID")]
    minion: Option<String>,
    /// Not older than: 10m, 2h, 3d, 2026-11-21, 2026-11-21T05:47:28 (UTC)
    #[arg(long, value_name = "TIME")]
    since: Option<When>,
    /// Not younger than
    #[arg(long, value_name = "TIME")]
    until: Option<When>,
    /// Only jobs before this one
    #[arg(long, value_name = "JID")]
    before: Option<String>,
    /// Show saltutil.find_job, too, with which Salt asks whether a job still runs
    #[arg(long)]
    find_job: bool,
}

const LIST_EXAMPLES: &str = "\
RETURNED counts the minions that answered, of those expected where the master said whom it expected.

Examples:
  saltcellar jobs list
  saltcellar jobs list --fun 'state.*' --since 3d --limit 100
  saltcellar jobs list --minion web1 --user root
  saltcellar jobs list --output jsonl | jq -r 'select(.failed > 0) | .jid'";

const SHOW_EXAMPLES: &str = "\
With --output json the job is one object; with jsonl each minion's return is a line.

Examples:
  saltcellar jobs show 20261121054728123456
  saltcellar jobs show 20261121054728123456 --output json | jq '.missing'";

const NAMES: Names = Names { call: "jobs_list", rows: "jobs", cursor: "jid" };

pub(super) fn run(global: &Global, jobs: Jobs) -> anyhow::Result<()> {
    match jobs {
        Jobs::List(filter) => list(global, filter),
        Jobs::Show { jid } => show(global, &jid),
    }
}

fn list(global: &Global, filter: Filter) -> anyhow::Result<()> {
    let client = ask::connect(global)?;
    let text = |value: Option<String>| value.map_or(Value::Nil, Value::from);
    let time = |value: Option<When>| value.map_or(Value::Nil, |When(micros)| Value::from(micros));
    let said = vec![
        ("user", text(filter.user)),
        ("fun", text(filter.fun)),
        ("tgt", text(filter.tgt)),
        ("minion", text(filter.minion)),
        ("since", time(filter.since)),
        ("until", time(filter.until)),
        ("find_job", if filter.find_job { Value::from(true) } else { Value::Nil }),
    ];
    let mut pages = Pages::new(client, NAMES, said, text(filter.before), filter.limit);
    let mut out = Output::new(global.output);
    let asking = "list the jobs";
    if out.format != Format::Table {
        print_json(&mut out, &mut pages, NAMES.rows).context(asking)?;
        return Ok(out.flush()?);
    }
    let mut table = Table::new([
        Column::left("JID"),
        Column::left("TIME (UTC)"),
        Column::shrinks("FUN"),
        Column::shrinks("TGT"),
        Column::left("USER"),
        Column::right("RETURNED"),
        Column::right("FAILED"),
        Column::shrinks("ARG"),
    ]);
    let mut first = true;
    loop {
        let rows = pages.next().context(asking)?;
        if rows.is_empty() && !first {
            return Ok(out.flush()?);
        }
        first = false;
        table.print(&mut out, &rows.iter().map(row).collect::<Vec<_>>())?;
    }
}

fn row(job: &Json) -> Vec<String> {
    let time = job.get("time").map(short).unwrap_or_default();
    let returned = match job.get("expected").and_then(Json::as_u64) {
        Some(expected) => format!("{}/{expected}", field(job, "returned")),
        None => field(job, "returned"),
    };
    vec![
        field(job, "jid"),
        time,
        field(job, "fun"),
        tgt(job),
        field(job, "user"),
        returned,
        field(job, "failed"),
        arg(job),
    ]
}

fn field(row: &Json, name: &str) -> String {
    row.get(name).map(leaf).unwrap_or_default()
}

/// A list of minions reads as Salt takes it on its command line.
fn tgt(job: &Json) -> String {
    match job.get("tgt") {
        Some(Json::Array(minions)) => minions.iter().map(leaf).collect::<Vec<_>>().join(","),
        Some(other) => leaf(other),
        None => String::new(),
    }
}

fn arg(job: &Json) -> String {
    match job.get("arg") {
        Some(Json::Array(items)) => items.iter().map(leaf).collect::<Vec<_>>().join(" "),
        Some(other) => leaf(other),
        None => String::new(),
    }
}

/// Lists as programs read them: `{"jobs": [...], "more": bool}` with a row a line, or rows alone as `jsonl`.
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
        // A page may be long in coming; what is there can be worked on.
        out.flush()?;
    }
    if document {
        out.line(&format!("{}], \"more\": {}}}", if first { "" } else { "\n" }, pages.more))?;
    }
    Ok(())
}

fn show(global: &Global, jid: &str) -> anyhow::Result<()> {
    let mut client = ask::connect(global)?;
    let mut job = ask::call(&mut client, "job_show", [("jid", Value::from(jid))]).context("show the job")?;
    if job.is_null() {
        bail!("show the job: no job {jid} is known");
    }
    iso_in(&mut job);
    if let Some(Json::Array(returns)) = job.get_mut("returns") {
        returns.iter_mut().for_each(iso_in);
    }
    let mut out = Output::new(global.output);
    match out.format {
        Format::Json => out.json(&job)?,
        Format::Jsonl => {
            for answer in list_of(&job, "returns") {
                let mut line = json!({ "jid": job.get("jid") });
                if let (Json::Object(line), Json::Object(answer)) = (&mut line, answer) {
                    line.extend(answer.clone());
                }
                out.json(&line)?;
            }
        }
        Format::Table => show_text(&mut out, &job)?,
    }
    Ok(out.flush()?)
}

fn list_of<'a>(job: &'a Json, name: &str) -> &'a [Json] {
    job.get(name).and_then(Json::as_array).map_or(&[], Vec::as_slice)
}

fn show_text(out: &mut Output, job: &Json) -> anyhow::Result<()> {
    let time = job.get("time").map(short).unwrap_or_default();
    let time = if time.is_empty() { time } else { format!("{time} UTC") };
    let tgt_type = field(job, "tgt_type");
    let tgt = if tgt_type.is_empty() { tgt(job) } else { format!("{} ({tgt_type})", tgt(job)) };
    let expected = match job.get("expected").and_then(Json::as_u64) {
        Some(expected) => format!(" of {expected}"),
        None => String::new(),
    };
    let returned = format!("{}{expected}, {} failed", field(job, "returned"), field(job, "failed"));
    let head = [
        ("jid", field(job, "jid")),
        ("time", time),
        ("fun", field(job, "fun")),
        ("arg", arg(job)),
        ("tgt", tgt),
        ("user", field(job, "user")),
        ("returned", returned),
        ("endtime", field(job, "endtime")),
        ("metadata", field(job, "metadata")),
    ];
    for (name, value) in head.iter().filter(|(_, value)| !value.is_empty()) {
        out.line(&format!("{name:<9} {}", plain(value)))?;
    }
    for answer in list_of(job, "returns") {
        out.line("")?;
        let mut marks = vec![answer.get("time").map(short).unwrap_or_default()];
        if let Some(code) = answer.get("retcode").filter(|code| !code.is_null()) {
            marks.push(format!("retcode {}", leaf(code)));
        }
        if answer.get("success").and_then(Json::as_bool) == Some(false) {
            marks.push("failed".to_owned());
        }
        if let Some(count) = answer.get("duplicates").and_then(Json::as_u64).filter(|count| *count > 0) {
            marks.push(format!("{count} later return(s) differ"));
        }
        out.heading(&format!("{}: ({})", field(answer, "minion"), marks.join(", ")))?;
        out.text(&nested(answer.get("return").unwrap_or(&Json::Null), 4))?;
    }
    let missing = list_of(job, "missing");
    if !missing.is_empty() {
        out.line("")?;
        out.heading("missing:")?;
        for minion in missing {
            out.line(&format!("    {}", leaf(minion)))?;
        }
    }
    Ok(())
}
