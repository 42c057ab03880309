//! `saltcellar jobs show`: shows one job.

use anyhow::Context as _;
use rmpv::Value;
use serde_json::Value as Json;

use super::super::format::outputter;
use super::{arg, unknown};
use crate::cli::{
    Column, Fields as _, Form, Global, Output, Table, ask, iso_at, leaf, nested, plain, short,
    short_in_zone,
};
use crate::wire::json::{from_json, to_json};

const EXAMPLES: &str = "\
With --output json the job is one object; with jsonl each return is a line. nested and highstate format the returns as \
Salt does. json with --returns prints {minion: return}, as Salt does.

Examples:
  saltcellar jobs show 20261121054728123456
  saltcellar jobs show 20261121054728123456 --output highstate
  saltcellar jobs show 20261121054728123456 --result failed --minion 'web*'
  saltcellar jobs show 20261121054728123456 --output json | jq '.missing'
  saltcellar jobs show 20261121054728123456 --output json --returns | jq '.web1'";

#[derive(clap::Args, serde::Serialize)]
#[command(after_long_help = EXAMPLES)]
pub(in crate::cli) struct Args {
    /// The job's id
    jid: String,
    /// Only returns of minions that match this glob
    #[arg(long, value_name = "GLOB")]
    minion: Option<String>,
    /// Only returns with this result: failed, succeeded or changed (by a state)
    #[arg(long, value_name = "RESULT", value_parser = ["failed", "succeeded", "changed"], hide_possible_values = true)]
    result: Option<String>,
    /// Show only the returns
    #[arg(long)]
    #[serde(skip)]
    returns: bool,
}

pub(super) fn run(global: &Global, args: &Args) -> anyhow::Result<()> {
    let mut call_args = serde_json::to_value(args)?;
    // Parent and children take further reads, which only this view needs.
    ask::set(&mut call_args, "links", true.into());

    let mut client = ask::connect(global)?;
    let mut job =
        ask::call_paged(&mut client, "job_show", "returns", call_args).context("show the job")?;

    // An unknown job is no error of the call.
    if job.is_null() {
        return Err(unknown(&args.jid).context("show the job"));
    }

    // Times are numbers in the call, and text in JSON output.
    for name in ["first_answer", "last_answer"] {
        iso_at(&mut job, name);
    }

    let mut out = Output::paged(global.output);
    match out.form {
        Form::Nested | Form::Highstate => {
            let returns = returns(&job)?;
            // Salt's outputters take the whole map, and colour it by the job's success.
            let text = if out.form == Form::Highstate {
                outputter::highstate(&returns, out.colours())
            } else {
                outputter::nested(&returns, 0, out.colours(), job.number("failed") > 0)
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
        Form::Jsonl => {
            job.list("returns")
                .iter()
                .try_for_each(|answer| out.json(&ask::with_jid(&args.jid, answer)))?;
        }
        Form::Csv => {
            let columns = ["minion", "time", "failed", "retcode", "return"].map(Column::left);

            let cells = |answer: &Json| {
                let time = short_in_zone(answer.of("time"));
                let [minion, failed, code] =
                    ["minion", "failed", "retcode"].map(|name| answer.leaf(name));
                // A return is no flat value, so it is JSON in its cell.
                vec![minion, time, failed, code, answer.of("return").to_string()]
            };

            Table::new(columns).print(
                &mut out,
                &job.list("returns").iter().map(cells).collect::<Vec<_>>(),
            )?;
        }
        Form::Table => table(&mut out, &job, args.returns)?,
    }

    Ok(out.finish()?)
}

/// `{minion: return}`, as Salt's own commands print it.
fn returns(job: &Json) -> anyhow::Result<Value> {
    let pair = |answer: &Json| {
        Ok((
            answer.text("minion").into(),
            from_json(answer.of("return"))?,
        ))
    };

    Ok(Value::Map(
        job.list("returns")
            .iter()
            .map(pair)
            .collect::<anyhow::Result<_>>()?,
    ))
}

fn table(out: &mut Output, job: &Json, returns_only: bool) -> anyhow::Result<()> {
    if !returns_only {
        head(out, job)?;
    }

    for answer in job.list("returns") {
        if !returns_only {
            out.line("")?;
        }
        one_return(out, job, answer)?;
    }

    if returns_only { Ok(()) } else { foot(out, job) }
}

fn head(out: &mut Output, job: &Json) -> anyhow::Result<()> {
    let of =
        |text: String, form: fn(String) -> String| if text.is_empty() { text } else { form(text) };
    let tgt_type = of(job.leaf("tgt_type"), |kind| format!(" ({kind})"));
    let expected = of(job.leaf("expected"), |expected| format!(" of {expected}"));
    // Events of returns that the master never confirmed (docs/decisions/confirmed-returns.md).
    let bus_only = match job.number("bus_only") {
        0 => String::new(),
        count => format!(", {count} seen on the bus only"),
    };

    let last = short(job.of("last_answer"));
    // Unknown until something has returned.
    let took = job.of("duration_us").as_i64();
    let took = took
        .map(|us| format!("{:.3} s, last return {last}", us as f64 / 1e6))
        .unwrap_or_default();

    let head = [
        ("jid", job.leaf("jid")),
        ("time", short_in_zone(job.of("time"))),
        ("fun", job.joined("fun")),
        ("arg", arg(job)),
        ("tgt", job.joined("tgt") + &tgt_type),
        ("user", job.leaf("user")),
        (
            "returned",
            format!(
                "{}{expected}, {} failed{bus_only}",
                job.leaf("returned"),
                job.leaf("failed")
            ),
        ),
        ("retcodes", retcodes(job.of("retcodes"))),
        ("took", took),
        ("endtime", job.leaf("endtime")),
        ("metadata", job.leaf("metadata")),
        ("parent", job.leaf("parent")),
        (
            "nocache",
            if job.is("nocache") {
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
    Ok(())
}

/// Formats `0: 9, 2: 1`; empty if all are zero.
fn retcodes(codes: &Json) -> String {
    let codes: Vec<_> = codes.as_object().into_iter().flatten().collect();
    // Only failures are worth a line.
    if codes.iter().all(|(code, _)| *code == "0") {
        return String::new();
    }

    codes
        .iter()
        .map(|(code, count)| format!("{code}: {count}"))
        .collect::<Vec<_>>()
        .join(", ")
}

fn one_return(out: &mut Output, job: &Json, answer: &Json) -> anyhow::Result<()> {
    let mut marks = vec![short(answer.of("time"))];

    if !answer.of("retcode").is_null() {
        marks.push(format!("retcode {}", answer.leaf("retcode")));
    }

    for (name, mark) in [
        ("failed", "failed"),
        ("bus_only", "seen on the bus only"),
        ("not_targeted", "not targeted by this job"),
    ] {
        marks.extend(answer.is(name).then(|| mark.to_owned()));
    }

    let duplicates = answer.number("duplicates");
    if duplicates > 0 {
        marks.push(format!("{duplicates} different later return(s)"));
    }

    out.heading(&format!(
        "{}: ({})",
        answer.leaf("minion"),
        marks.join(", ")
    ))?;

    let value = answer.of("return");

    // The return of a runner or a wheel function is its final event.
    let has_ended = value.get("jid") == job.get("jid") && value.get("fun").is_some();
    let inner = value.get("return").filter(|_| has_ended);

    out.text(&nested(inner.unwrap_or(value), 4))?;

    // The first return counts; different later ones are only shown.
    for other in answer.list("others") {
        let code = other
            .get("retcode")
            .map(|code| format!(", retcode {}", leaf(code)))
            .unwrap_or_default();

        out.line(&format!(
            "    later return: ({}{code})",
            short(other.of("time"))
        ))?;
        out.text(&nested(other.of("return"), 8))?;
    }
    Ok(())
}

fn foot(out: &mut Output, job: &Json) -> anyhow::Result<()> {
    let mut started = Vec::new();

    for child in job.list("children") {
        // Only `test: True` leaves the result open.
        let result = match child.of("result").as_bool() {
            Some(true) => "succeeded",
            Some(false) => "failed",
            None => "would change",
        };

        let [jid, kind, name, id] = ["jid", "fun", "name", "id"].map(|name| child.leaf(name));
        // A state without a name of its own is named by its id.
        let id = if id == name {
            String::new()
        } else {
            format!(" ({id})")
        };

        started.push(format!("{jid}  {kind} {name}{id}: {result}"));
    }

    let names = |name: &str| job.list(name).iter().map(leaf).collect();

    let lists: [(&str, Vec<String>); 3] = [
        ("started:", started),
        ("missing:", names("missing")),
        (
            "seen on the bus only, not confirmed by the master:",
            names("not_confirmed"),
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
