//! `saltcellar jobs show`: shows one job.

use std::collections::BTreeMap;

use anyhow::Context as _;
use rmpv::Value;
use salt_sls::Glob;
use serde::Serialize;
use serde_json::Value as Json;

use super::super::format::outputter;
use super::job_rows::{arg, args};
use crate::api::call as calls;
use crate::api::call::jobs::answers::{JobAnswer, Publish, Return, UnknownReturn};
use crate::api::call::jobs::{ReturnResult, ShowArgs};
use crate::base::limits::RMPV_ANSWER_DEPTH_MAX;
use crate::base::units::span;
use crate::cli::{
    Column, Form, Global, Output, Paged, Table, ask, joined, line_of, nested, plain, short_at,
    short_at_in_zone, value,
};
use crate::wire::call::Id;
use crate::wire::msgpack::json::to_json;

const EXAMPLES: &str = "\
With --output json the job is one object; with jsonl each return is a line. nested and highstate format the returns as \
Salt does. json with --returns prints {minion: return}, as Salt does.
With --result missing or unknown there are no returns; jsonl and csv then have a line for each of these minions.

Examples:
  saltcellar jobs show 20261121054728123456
  saltcellar jobs show 20261121054728123456 --output highstate
  saltcellar jobs show 20261121054728123456 --result failed --minion 'web*'
  saltcellar jobs show 20261121054728123456 --result missing --output jsonl | jq -r .minion
  saltcellar jobs show 20261121054728123456 --output json --returns | jq '.web1'";

#[derive(clap::Args)]
#[command(after_long_help = EXAMPLES)]
pub(in crate::cli) struct Args {
    /// The job's id
    jid: String,
    /// Only returns of minions that match this glob
    #[arg(long, value_name = "GLOB")]
    minion: Option<String>,
    /// Only returns with this result: failed, succeeded or changed (by a state). Or the minions without one: missing (they have not returned) or unknown (they may have returned to a master that is behind)
    #[arg(long, value_name = "RESULT", value_parser = ask::words::<ReturnResult>(), hide_possible_values = true)]
    result: Option<ReturnResult>,
    /// Show only the returns
    #[arg(long)]
    returns: bool,
}

impl Paged for calls::jobs::Show {
    type Row = Return;
    type After = String;

    fn rows(answer: &mut Option<JobAnswer>) -> Option<&mut Vec<Return>> {
        answer.as_mut().map(|job| &mut job.returns)
    }

    fn next(answer: &Option<JobAnswer>) -> (bool, Option<String>) {
        // An unknown job has no pages.
        answer
            .as_ref()
            .map_or((false, None), |job| (job.more, job.next.clone()))
    }

    fn go_to(args: &mut ShowArgs, after: String) {
        args.page.after = Some(after);
    }
}

/// A line of JSON for each return.
#[derive(Serialize)]
struct ReturnOf<'a> {
    jid: &'a str,
    #[serde(flatten)]
    answer: &'a Return,
}

/// A line of JSON for each minion without a return.
#[derive(Serialize)]
struct NoReturnOf<'a> {
    jid: &'a str,
    result: &'static str,
    minion: &'a str,
    /// Which master may have it, if it is unknown.
    #[serde(skip_serializing_if = "Option::is_none")]
    master: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    behind_s: Option<u64>,
}

/// The minions without a return that an answer lists by such a result.
fn without_return(job: &JobAnswer) -> Vec<NoReturnOf<'_>> {
    let jid = job.row.jid.as_str();
    let missing = job.missing.iter().map(|minion| NoReturnOf {
        jid,
        result: ReturnResult::Missing.name(),
        minion,
        master: None,
        behind_s: None,
    });
    let unknown = job.unknown.iter().map(|one| NoReturnOf {
        jid,
        result: ReturnResult::Unknown.name(),
        minion: &one.minion,
        master: Some(&one.master),
        behind_s: Some(one.behind_s),
    });
    missing.chain(unknown).collect()
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

pub(super) fn run(global: &Global, args: &Args) -> anyhow::Result<()> {
    let mut call = ShowArgs {
        jid: Id(args.jid.clone()),
        result: args.result,
        // Parent and children take further reads, which only this view needs.
        links: true,
        ..ShowArgs::default()
    };
    call.page.minion = args.minion.clone().map(Glob::from);

    let mut client = ask::connect(global)?;
    let job = ask::whole::<calls::jobs::Show>(&mut client, call).context("show the job")?;

    // An unknown job is no error of the call.
    let Some(job) = job else {
        return Err(unknown(&args.jid).context("show the job"));
    };

    let is_without_return = args.result.is_some_and(ReturnResult::is_without_return);
    let mut out = Output::paged(global.output);
    match out.form {
        Form::Nested | Form::Highstate => {
            let returns = returns(&job)?;
            // Salt's outputters take the whole map, and colour it by the job's success.
            let text = if out.form == Form::Highstate {
                outputter::highstate(&returns, out.colours())
            } else {
                outputter::nested(&returns, 0, out.colours(), job.row.failed > 0)
            };

            out.rendered(text.trim_end())?;
        }
        Form::Json if args.returns => out.json(&to_json(&returns(&job)?))?,
        Form::Json => out.json(&job)?,
        Form::Jsonl if args.returns => {
            // `returns` always makes a map.
            let Value::Map(returns) = returns(&job)? else {
                return Ok(());
            };

            returns
                // One minion for each line, as Salt prints them.
                .into_iter()
                .try_for_each(|pair| out.json(&to_json(&Value::Map(vec![pair]))))?;
        }
        Form::Jsonl if is_without_return => {
            without_return(&job)
                .iter()
                .try_for_each(|one| out.json(one))?;
        }
        Form::Jsonl => {
            job.returns.iter().try_for_each(|answer| {
                out.json(&ReturnOf {
                    jid: &args.jid,
                    answer,
                })
            })?;
        }
        Form::Csv if is_without_return => {
            let columns = ["minion", "result", "master", "behind_s"].map(Column::left);
            let cells = |one: &NoReturnOf| {
                vec![
                    plain(one.minion).into_owned(),
                    one.result.to_owned(),
                    plain(one.master.unwrap_or_default()).into_owned(),
                    one.behind_s.map_or_else(String::new, |s| s.to_string()),
                ]
            };
            let rows: Vec<_> = without_return(&job).iter().map(cells).collect();
            Table::new(columns).print(&mut out, &rows)?;
        }
        Form::Csv => {
            let columns = ["minion", "time", "failed", "retcode", "return"].map(Column::left);

            let cells = |answer: &Return| {
                vec![
                    plain(&answer.minion).into_owned(),
                    short_at_in_zone(answer.time),
                    answer.failed.to_string(),
                    line_of(&answer.retcode),
                    // A return is no flat value, so it is JSON in its cell.
                    value(&answer.value).to_string(),
                ]
            };

            Table::new(columns)
                .print(&mut out, &job.returns.iter().map(cells).collect::<Vec<_>>())?;
        }
        Form::Table => table(&mut out, &job, args.returns)?,
    }

    Ok(out.finish()?)
}

/// `{minion: return}`, as Salt's own commands print it.
fn returns(job: &JobAnswer) -> anyhow::Result<Value> {
    let pair = |answer: &Return| {
        let mut packed = answer.value.packed();
        let value = rmpv::decode::read_value_with_max_depth(&mut packed, RMPV_ANSWER_DEPTH_MAX)
            .context("read a return")?;
        Ok((answer.minion.as_str().into(), value))
    };

    Ok(Value::Map(
        job.returns
            .iter()
            .map(pair)
            .collect::<anyhow::Result<_>>()?,
    ))
}

fn table(out: &mut Output, job: &JobAnswer, returns_only: bool) -> anyhow::Result<()> {
    if !returns_only {
        head(out, job)?;
    }

    for answer in &job.returns {
        if !returns_only {
            out.line("")?;
        }
        one_return(out, job, answer)?;
    }

    if returns_only { Ok(()) } else { foot(out, job) }
}

fn head(out: &mut Output, job: &JobAnswer) -> anyhow::Result<()> {
    let row = &job.row;

    let tgt_type = match line_of(&row.tgt_type) {
        kind if kind.is_empty() => kind,
        kind => format!(" ({kind})"),
    };
    let expected = row
        .expected
        .map_or_else(String::new, |expected| format!(" of {expected}"));
    // Events of returns that the master never confirmed (docs/decisions/confirmed-returns.md).
    let bus_only = match row.bus_only.saturating_sub(row.unverified) {
        0 => String::new(),
        count => format!(", {count} seen on the bus only"),
    };
    let unverified = match row.unverified {
        0 => String::new(),
        count => format!(", {count} from peers, not verified here"),
    };

    let last = row.last_answer.map(short_at).unwrap_or_default();
    // Unknown until something has returned.
    let took = row
        .duration_us
        .map(|us| format!("{:.3} s, last return {last}", us as f64 / 1e6))
        .unwrap_or_default();

    let head = [
        ("jid", row.jid.clone()),
        ("time", short_at_in_zone(row.time)),
        ("fun", joined(&row.fun)),
        ("arg", arg(row)),
        ("tgt", joined(&row.tgt) + &tgt_type),
        ("user", line_of(&row.user)),
        ("master", row.master.clone().unwrap_or_default()),
        (
            "returned",
            format!(
                "{}{expected}, {} failed{unverified}{bus_only}",
                row.returned, row.failed
            ),
        ),
        ("retcodes", retcodes(&row.retcodes)),
        ("took", took),
        ("endtime", row.endtime.clone().unwrap_or_default()),
        ("metadata", line_of(&row.metadata)),
        ("parent", job.parent.clone().unwrap_or_default()),
        (
            "nocache",
            if job.nocache {
                "true".to_owned()
            } else {
                String::new()
            },
        ),
    ];

    // Most jobs have only some of these.
    for (name, value) in head.iter().filter(|(_, value)| !value.is_empty()) {
        out.line(&format!("{name:<9} {}", plain(value)))?;
    }

    conflict(out, &job.publishes)
}

/// The jobs that were published under one id.
fn conflict(out: &mut Output, publishes: &[Publish]) -> anyhow::Result<()> {
    // The usual case.
    if publishes.is_empty() {
        return Ok(());
    }

    out.line("")?;
    out.heading("conflict: different jobs were published under this id; the first one counts:")?;
    for publish in publishes {
        let words = [
            joined(&publish.fun),
            args(&publish.arg),
            format!("on {}", joined(&publish.tgt)),
            format!("by {}", line_of(&publish.user)),
            publish
                .master
                .as_ref()
                .map_or_else(String::new, |id| format!("at {id}")),
        ];
        let words: Vec<_> = words.into_iter().filter(|word| !word.is_empty()).collect();
        let time = short_at_in_zone(publish.time);
        out.line(&format!("    {time}  {}", plain(&words.join(" "))))?;
    }
    Ok(())
}

/// Formats `0: 9, 2: 1`; empty if all are zero.
fn retcodes(codes: &BTreeMap<String, u64>) -> String {
    // Only failures are worth a line.
    if codes.keys().all(|code| code == "0") {
        return String::new();
    }

    codes
        .iter()
        .map(|(code, count)| format!("{code}: {count}"))
        .collect::<Vec<_>>()
        .join(", ")
}

fn one_return(out: &mut Output, job: &JobAnswer, answer: &Return) -> anyhow::Result<()> {
    let mut marks = vec![short_at(answer.time)];

    if !answer.retcode.is_none() {
        marks.push(format!("retcode {}", line_of(&answer.retcode)));
    }

    let seen = match &answer.master {
        Some(peer) => format!("answered, from peer {}, not verified here", plain(peer)),
        None => "seen on the bus only".to_owned(),
    };
    for (is_set, mark) in [
        (answer.failed, "failed"),
        (answer.bus_only, seen.as_str()),
        (answer.not_targeted, "not targeted by this job"),
    ] {
        marks.extend(is_set.then(|| mark.to_owned()));
    }

    if answer.duplicates > 0 {
        marks.push(format!("{} different later return(s)", answer.duplicates));
    }

    out.heading(&format!(
        "{}: ({})",
        plain(&answer.minion),
        marks.join(", ")
    ))?;

    let whole = value(&answer.value);

    // The return of a runner or a wheel function is its final event.
    let has_ended =
        whole.get("jid").and_then(Json::as_str) == Some(&job.row.jid) && whole.get("fun").is_some();
    let inner = whole.get("return").filter(|_| has_ended);

    out.text(&nested(inner.unwrap_or(&whole), 4))?;

    // The first return counts; different later ones are only shown.
    for other in &answer.others {
        let code = if other.retcode.is_none() {
            String::new()
        } else {
            format!(", retcode {}", line_of(&other.retcode))
        };

        out.line(&format!(
            "    later return: ({}{code})",
            short_at(other.time)
        ))?;
        out.text(&nested(&value(&other.value), 8))?;
    }
    Ok(())
}

/// `web1: unknown (master b is 4m behind)`
pub(super) fn unknown_return(row: &UnknownReturn) -> String {
    format!(
        "{}: unknown (master {} is {} behind)",
        plain(&row.minion),
        plain(&row.master),
        span(row.behind_s)
    )
}

fn foot(out: &mut Output, job: &JobAnswer) -> anyhow::Result<()> {
    let mut started = Vec::new();

    for child in &job.children {
        // Only `test: True` leaves the result open.
        let result = match child.result {
            Some(true) => "succeeded",
            Some(false) => "failed",
            None => "would change",
        };

        let [jid, kind, name, id] =
            [&child.jid, &child.fun, &child.name, &child.id].map(|text| plain(text));
        // A state without a name of its own is named by its id.
        let id = if id == name {
            String::new()
        } else {
            format!(" ({id})")
        };

        started.push(format!("{jid}  {kind} {name}{id}: {result}"));
    }

    let names =
        |ids: &mut dyn Iterator<Item = &String>| ids.map(|id| plain(id).into_owned()).collect();

    let unknown = job.unknown.iter().map(unknown_return).collect();
    let lists: [(&str, Vec<String>); 4] = [
        ("started:", started),
        ("missing:", names(&mut job.missing.iter())),
        ("not known to have answered:", unknown),
        (
            "seen on the bus only, not confirmed by the master:",
            names(&mut job.not_confirmed.iter()),
        ),
    ];

    for (heading, lines) in lists.into_iter().filter(|(_, lines)| !lines.is_empty()) {
        out.line("")?;
        out.heading(heading)?;
        lines
            .iter()
            .try_for_each(|line| out.line(&format!("    {line}")))?;
    }
    Ok(())
}
