//! `saltcellar jobs show`: shows one job.

use anyhow::Context as _;
use rmpv::Value;
use salt_sls::Glob;
use serde::Serialize;

use super::super::format::outputter;
use super::causes::{cause_key, cause_lines, causes_of};
use super::facts::facts;
use super::job_id::{self, unknown};
use super::missing_lines::missing_lines;
use super::one_return::{StateView, return_lines};
use super::states::StateOrder;
use crate::api::call as calls;
use crate::api::call::jobs::answers::{JobAnswer, Return, UnknownReturn};
use crate::api::call::jobs::{ReturnResult, ShowArgs};
use crate::api::client::Client;
use crate::base::limits::RMPV_ANSWER_DEPTH_MAX;
use crate::base::units::span;
use crate::cli::{
    BadUsage, Column, Form, Global, Output, Paged, Table, ask, line_of, plain, short_at_in_zone,
    value,
};
use crate::wire::call::Id;
use crate::wire::msgpack::json::to_json;

const EXAMPLES: &str = "\
First what the job is, then why it failed and which minions are missing, then the returns, failed ones first. A terminal \
shows the states that failed or changed; other output contains all of them. The beginning of a JID is enough if no other job \
begins with it.

With --output json the job is one object; with jsonl each return is a line. --format prints the returns as Salt does. \
json with --returns prints {minion: return}, as Salt does.
With --result missing or unknown there are no returns; jsonl and csv then have a line for each of these minions.

Examples:
  saltcellar jobs show 20261121054728123456
  saltcellar jobs show 20261121054728123456 --format highstate
  saltcellar jobs show 20261121054728123456 --format highstate --sort duration
  saltcellar jobs show 20261121054728123456 --result failed --minion 'web*'
  saltcellar jobs show 20261121054728123456 --result missing --output jsonl | jq -r .minion
  saltcellar jobs show 20261121054728123456 --cause 5a17c0de
  saltcellar jobs show 20261121054728123456 --output json --returns | jq '.web1'";

#[derive(clap::Args)]
#[command(after_long_help = EXAMPLES)]
pub(in crate::cli) struct Args {
    /// The job's id, or its beginning
    jid: String,
    /// Only returns of minions that match this glob
    #[arg(long, value_name = "GLOB")]
    minion: Option<String>,
    /// Only returns with this result: failed, succeeded or changed (by a state). Or the minions without one: missing (they have not returned) or unknown (they may have returned to a master that is behind)
    #[arg(long, value_name = "RESULT", value_parser = ask::words::<ReturnResult>(), hide_possible_values = true)]
    result: Option<ReturnResult>,
    /// Only returns that failed for this cause: its key in `jobs causes`
    #[arg(long, value_name = "KEY")]
    cause: Option<String>,
    /// Show only the returns
    #[arg(long)]
    returns: bool,
    /// On a terminal, show also the states that succeeded without a change
    #[arg(long)]
    all_states: bool,
    /// Print the returns as Salt does: salt (its `nested` outputter) or highstate
    #[arg(
        long,
        value_name = "salt|highstate",
        value_enum,
        hide_possible_values = true,
        conflicts_with = "returns"
    )]
    format: Option<SaltFormat>,
    /// Order of the states of a minion, on a terminal and with --format highstate: duration, the slowest first
    #[arg(long, value_name = "ORDER", value_enum, hide_possible_values = true)]
    sort: Option<StateOrder>,
}

/// One of Salt's outputters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum SaltFormat {
    /// `nested`.
    Salt,
    /// `highstate`.
    Highstate,
}

impl Paged for calls::jobs::Show {
    type Row = Return;
    type After = String;

    fn rows(answer: &mut Option<JobAnswer>) -> Option<&mut Vec<Return>> {
        answer.as_mut().map(|job| &mut job.returns)
    }

    fn next(answer: &Option<JobAnswer>) -> (bool, Option<String>) {
        // There are no pages of an unknown job.
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

/// The minions without a return that a response lists by such a result.
fn without_return(job: &JobAnswer) -> Vec<NoReturnOf<'_>> {
    let jid = job.row.jid.as_str();
    let missing = job.missing.iter().map(|minion| NoReturnOf {
        jid,
        result: ReturnResult::Missing.name(),
        minion,
        master: None,
        behind_s: None,
    });

    // The master is named, because the return may be there.
    let unknown = job.unknown.iter().map(|one| NoReturnOf {
        jid,
        result: ReturnResult::Unknown.name(),
        minion: &one.minion,
        master: Some(&one.master),
        behind_s: Some(one.behind_s),
    });

    missing.chain(unknown).collect()
}

const OPERATION: &str = "show the job";

pub(super) fn run(global: &Global, args: &Args) -> anyhow::Result<()> {
    // Salt's formats are for people.
    if args.format.is_some() && global.output != Form::Table {
        return Err(
            BadUsage("read --format: it cannot be combined with --output".to_owned()).into(),
        );
    }

    let mut client = ask::connect(global)?;
    let jid = job_id::whole(&mut client, &args.jid)?;

    let mut call = ShowArgs {
        jid: Id(jid.clone()),
        result: args.result,
        // Parent and children take further reads, which only this view needs.
        links: true,
        ..ShowArgs::default()
    };
    call.page.minion = args.minion.clone().map(Glob::from);
    if let Some(beginning) = &args.cause {
        call.cause = Some(cause_key(&mut client, &jid, beginning)?);
    }

    let mut out = Output::paged(global.output);

    // A table on a terminal is read from its beginning: it is printed as it arrives.
    if out.form == Form::Table && args.format.is_none() && out.width.is_some() {
        report(global, args, call, &mut out)?;
        return Ok(out.finish()?);
    }

    let job = ask::whole::<calls::jobs::Show>(&mut client, call).context(OPERATION)?;

    // An unknown job is no error of the call.
    let Some(job) = job else {
        return Err(unknown(&jid).context(OPERATION));
    };

    let is_without_return = args.result.is_some_and(ReturnResult::is_without_return);
    let by_duration = args.sort.is_some();
    if let Some(format) = args.format {
        let mut returns = returns(&job)?;
        // Salt's outputters take the whole map, and colour it by the job's success.
        let text = match format {
            SaltFormat::Salt => outputter::nested(&returns, 0, out.colours(), job.row.failed > 0),
            SaltFormat::Highstate => {
                if by_duration {
                    outputter::slowest_first(&mut returns);
                }
                outputter::highstate(&returns, out.colours())
            }
        };

        out.rendered(text.trim_end())?;
        return Ok(out.finish()?);
    }

    match out.form {
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
            job.returns
                .iter()
                .try_for_each(|answer| out.json(&ReturnOf { jid: &jid, answer }))?;
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
        Form::Table => {
            if !args.returns {
                head(&mut out, &mut client, &job, args)?;
            }
            one_by_one(
                &mut out,
                &job,
                args.returns,
                StateView::default(),
                &mut true,
            )?;
            if !args.returns {
                foot(&mut out, &job)?;
            }
        }
    }

    Ok(out.finish()?)
}

/// Prints a job for a person, page by page.
fn report(global: &Global, args: &Args, call: ShowArgs, out: &mut Output) -> anyhow::Result<()> {
    let Id(jid) = call.jid.clone();
    let view = StateView {
        is_report: true,
        all: args.all_states,
        by_duration: args.sort.is_some(),
    };

    // One connection reads the pages, another what is said before them.
    let [mut client, mut other] = [ask::connect(global)?, ask::connect(global)?];
    let mut pages = ask::Pages::<calls::jobs::Show, _>::new(call, |args| {
        client.make::<calls::jobs::Show>(args)
    });

    let mut last = None;
    let mut is_long = true;
    while let Some(page) = pages.next_page().context(OPERATION)? {
        let Some(job) = page else {
            return Err(unknown(&jid).context(OPERATION));
        };

        if last.is_none() && !args.returns {
            head(out, &mut other, &job, args)?;
        }
        one_by_one(out, &job, args.returns, view, &mut is_long)?;
        // The next page may be slow.
        out.flush()?;
        last = Some(job);
    }

    match last {
        Some(job) if !args.returns => foot(out, &job),
        _ => Ok(()),
    }
}

/// `{minion: return}`, as Salt's commands print it.
fn returns(job: &JobAnswer) -> anyhow::Result<Value> {
    let pair = |answer: &Return| {
        let mut packed = answer.value.packed();
        let value = rmpv::decode::read_value_with_max_depth(&mut packed, RMPV_ANSWER_DEPTH_MAX)
            .with_context(|| {
                format!(
                    "read the return of {}; report this message",
                    answer.minion.as_str()
                )
            })?;
        Ok((answer.minion.as_str().into(), value))
    };

    Ok(Value::Map(
        job.returns
            .iter()
            .map(pair)
            .collect::<anyhow::Result<_>>()?,
    ))
}

/// What the job is, why it failed, and which minions are missing.
fn head(out: &mut Output, client: &mut Client, job: &JobAnswer, args: &Args) -> anyhow::Result<()> {
    let minion = args.minion.clone().map(Glob::from);
    let found = causes_of(client, job, minion).context("group the failures")?;
    let found = found.unwrap_or_default();

    let facts = facts(job, out.width);
    let causes = cause_lines(&found, out.width);
    // By a result the response may list none of them. If it lists them, they are what was asked
    // for, and are printed whole.
    let (groups, width) = match args.result.filter(|result| result.is_without_return()) {
        Some(_) if job.missing.is_empty() => (&[][..], None),
        Some(_) => (found.missing.as_slice(), None),
        None => (found.missing.as_slice(), out.width),
    };
    let missing = missing_lines(groups, &job.missing, width);
    for line in facts.iter().chain(&causes).chain(&missing) {
        out.styled(line)?;
    }
    Ok(())
}

/// Prints the returns of a page. `is_long` is whether the part before takes more than one line.
fn one_by_one(
    out: &mut Output,
    job: &JobAnswer,
    returns_only: bool,
    view: StateView,
    is_long: &mut bool,
) -> anyhow::Result<()> {
    for answer in &job.returns {
        let lines = return_lines(&job.row.jid, answer, view);

        // In a report one line is enough for a minion that is well.
        let is_apart = std::mem::replace(is_long, !view.is_report || lines.len() > 1);
        if !returns_only && (is_apart || *is_long) {
            out.line("")?;
        }
        for line in lines {
            out.styled(&line)?;
        }
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
    let lists: [(&str, Vec<String>); 3] = [
        ("started:", started),
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
