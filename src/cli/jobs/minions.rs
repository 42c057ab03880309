//! `saltcellar minions`: lists minions, and shows one, from the archive.

use anyhow::Context as _;
use serde_json::{Value as Json, json};

use crate::base::clock::Clock;
use crate::base::units::span;
use crate::cli::{
    Column, Fields as _, Global, Output, Table, ask, short, short_in_zone, show, show_rows, time_of, title,
};

#[derive(clap::Subcommand)]
pub(in crate::cli) enum Minions {
    /// List minions with their last job, last highstate and missing returns
    List(List),
    /// Show one minion: last jobs by function, highstate, missing returns, timeline
    Show(Show),
}

#[derive(clap::Args)]
#[command(after_long_help = LIST_EXAMPLES)]
pub(in crate::cli) struct List {
    /// Only minions that match this glob
    #[arg(value_name = "GLOB")]
    minion: Option<String>,
    /// Maximum number of minions
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u64).range(1..))]
    limit: Option<u64>,
}

#[derive(clap::Args)]
#[command(after_long_help = SHOW_EXAMPLES)]
pub(in crate::cli) struct Show {
    /// The minion's id
    #[arg(value_name = "ID")]
    minion: String,
}

const LIST_EXAMPLES: &str = "\
SEEN is the age of the last event or return, HIGHSTATE that of the last state.highstate or state.apply with its result, \
MISSING the number of recent jobs that expect a return.

Examples:
  saltcellar minions list
  saltcellar minions list 'web*'
  saltcellar minions list --output jsonl | jq -r 'select(.highstate.failed) | .id'";

const SHOW_EXAMPLES: &str = "\
Examples:
  saltcellar minions show web1.example.com
  saltcellar minions show web1.example.com --output json | jq .failed_states";

pub(in crate::cli) fn run(global: &Global, verb: Minions) -> anyhow::Result<()> {
    match verb {
        Minions::List(args) => list(global, &args),
        Minions::Show(args) => show_one(global, &args.minion),
    }
}

fn list(global: &Global, args: &List) -> anyhow::Result<()> {
    let operation = "list the minions";
    let mut client = ask::connect(global)?;
    let mut all = Json::Null;
    let mut call = json!({ "minion": args.minion, "limit": args.limit });
    loop {
        let mut answer = ask::call(&mut client, "minions_list", &call).context(operation)?;
        let (more, next) = (answer.is("more"), answer.of("next").clone());
        let rows = answer.get_mut("minions").map(Json::take).unwrap_or_default();
        match (all.get_mut("minions"), rows) {
            (Some(Json::Array(all)), Json::Array(mut rows)) => all.append(&mut rows),
            (_, rows) => {
                all = answer;
                ask::set(&mut all, "minions", rows);
            }
        }
        let count = all.list("minions").len() as u64;
        let left = args.limit.map(|limit| limit.saturating_sub(count));
        if !more || next.is_null() || left == Some(0) {
            break;
        }
        ask::set(&mut call, "after", next);
        ask::set(&mut call, "limit", left.into());
    }
    show_rows(global.output, &all, "minions", |out| {
        let columns = [
            Column::middle_truncated("MINION"),
            Column::right("SEEN"),
            Column::left("HIGHSTATE"),
            Column::right("CHANGED"),
            Column::right("MISSING"),
            Column::truncated("LAST FUNCTION").min_chars(13),
            Column::left("JID").drop_order(1),
        ];
        let now = Clock::real().now().0;
        let cells = |row: &Json| {
            let last = row.of("last");
            vec![
                row.leaf("id"),
                age(row.of("last_seen"), now),
                highstate(row.of("highstate"), now),
                row.of("highstate").of("states").leaf("changed"),
                row.leaf("missing"),
                last.leaf("fun"),
                last.leaf("jid"),
            ]
        };
        let rows: Vec<_> = all.list("minions").iter().map(cells).collect();
        Table::new(columns).print(out, &rows)?;
        skipped(out, all.of("skipped"))
    })
}

/// The age of a time; a dash without one.
fn age(of: &Json, now: i64) -> String {
    let at = time_of(of.of("time"));
    at.map_or("-".to_owned(), |at| span(u64::try_from(now.saturating_sub(at.0) / 1_000_000).unwrap_or(0)))
}

/// `ok 3h`, `failed 2d`, `ok 3h (part)`; a dash without one.
fn highstate(run: &Json, now: i64) -> String {
    if run.is_null() {
        return "-".to_owned();
    }
    let result = match run.of("failed").as_bool() {
        Some(true) => "failed",
        Some(false) => "ok",
        None => "unknown",
    };
    let part = if run.is("partial") { " (part)" } else { "" };
    format!("{result} {}{part}", age(run, now))
}

/// States what the answer does not cover.
fn skipped(out: &mut Output, skipped: &Json) -> anyhow::Result<()> {
    let mut notes = Vec::new();
    if skipped.is("jobs_skipped") {
        notes.push(format!("missing returns of the newest {} jobs", skipped.leaf("jobs_checked")));
    }
    if let Some(since) = skipped.of("events_since").as_i64() {
        let since = short(&Json::from(crate::base::clock::Micros(since).iso()));
        notes.push(format!("events without a return since {since}"));
    }
    let unread = skipped.number("states_unread");
    if unread > 0 {
        notes.push(format!("{unread} highstates without their states"));
    }
    if !notes.is_empty() {
        out.line(&format!("limited to: {}", notes.join("; ")))?;
    }
    Ok(())
}

fn show_one(global: &Global, id: &str) -> anyhow::Result<()> {
    let operation = "show the minion";
    let minion = ask::answer(global, "minions_show", json!({ "minion": id }), operation)?;
    if minion.is_null() {
        let shown: String = id.chars().take(64).collect();
        return Err(anyhow::anyhow!("no entry of the archive names the minion {shown}").context(operation));
    }
    show(global.output, &minion, |out| details(out, &minion))
}

fn details(out: &mut Output, minion: &Json) -> anyhow::Result<()> {
    let run = |run: &Json| {
        let time = short_in_zone(run.of("time"));
        format!("{time}  {}  {}", run.leaf("fun"), run.leaf("jid"))
    };
    out.line(&format!("minion     {}", minion.leaf("id")))?;
    out.line(&format!("last seen  {}", short_in_zone(minion.of("last_seen").of("time"))))?;
    if !minion.of("last").is_null() {
        out.line(&format!("last job   {}", run(minion.of("last"))))?;
    }
    let last = minion.of("highstate");
    if !last.is_null() {
        let result = highstate(last, Clock::real().now().0);
        out.line(&format!("highstate  {}", run(last)))?;
        let counts = last.of("states");
        let [total, failed, changed] = ["total", "failed", "changed"].map(|name| counts.number(name));
        out.line(&format!("           {result}: {total} states, {failed} failed, {changed} changed"))?;
        for (name, title) in [("failed_states", "failed"), ("changed_states", "changed")] {
            if !minion.list(name).is_empty() {
                out.line(&format!("{title:<9}  {}", minion.joined(name).replace(',', ", ")))?;
            }
        }
    }
    let time = || Column::left(title("TIME", "TIME (UTC)"));
    let rows = |name: &str, fields: [&str; 2]| -> Vec<Vec<String>> {
        let cells = |row: &Json| vec![short(row.of("time")), row.leaf(fields[0]), row.leaf(fields[1])];
        minion.list(name).iter().map(cells).collect()
    };
    let missing = rows("missing_jobs", ["fun", "jid"]);
    if !missing.is_empty() {
        out.line("")?;
        Table::new([time(), Column::truncated("MISSING RETURN OF"), Column::left("JID")])
            .print(out, &missing)?;
    }
    out.line("")?;
    let functions = rows("functions", ["fun", "jid"]);
    Table::new([time(), Column::truncated("LAST RUN OF"), Column::left("JID")]).print(out, &functions)?;
    let timeline = rows("timeline", ["tag", "retcode"]);
    if !timeline.is_empty() {
        out.line("")?;
        let columns = [time(), Column::middle_truncated("EVENT"), Column::right("RETCODE")];
        Table::new(columns).print(out, &timeline)?;
    }
    skipped(out, minion.of("skipped"))
}
