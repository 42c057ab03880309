//! `saltcellar jobs states`: lists the states of jobs.

use anyhow::Context as _;
use salt_sls::Glob;
use serde::Serialize;
use serde_json::Value as Json;

use super::job_id::{self, unknown};
use crate::api::call as calls;
use crate::api::call::jobs::answers::{State, StatesPage};
use crate::api::call::jobs::{StateResult, StatesArgs};
use crate::cli::{Column, Format, Global, Output, Paged, Table, Tone, ask, leaf, plain, value};
use crate::wire::call::Id;

const EXAMPLES: &str = "\
Prints one row per state and minion of state.apply, state.highstate, state.sls and similar functions, even within \
orchestrations. JSON includes complete changes and comments; docs/WIRE.md lists the fields.

Examples:
  saltcellar jobs states 20261121054728123456
  saltcellar jobs states 20261121054728123456 --result failed
  saltcellar jobs states 20261121054728123456 --sort duration | head
  saltcellar jobs states 20261121054728123456 --fun 'service.*' --minion 'web*' --output jsonl
  saltcellar jobs list --fun 'state.*' --since 1d --output jsonl | jq -r .jid |
    xargs saltcellar jobs states --result changed --output jsonl | jq -r .id | sort | uniq -c | sort -rn";

#[derive(clap::Args)]
#[command(after_long_help = EXAMPLES)]
pub(in crate::cli) struct Args {
    /// Job ids
    #[arg(required = true, value_name = "JID")]
    jids: Vec<String>,
    /// Only minions that match this glob
    #[arg(long, value_name = "GLOB")]
    minion: Option<String>,
    /// Only state ids that match this glob
    #[arg(long, value_name = "GLOB")]
    id: Option<String>,
    /// Only functions that match this glob: service.running, pkg.*
    #[arg(long, value_name = "GLOB")]
    fun: Option<String>,
    /// Only SLS files that match this glob
    #[arg(long, value_name = "GLOB")]
    sls: Option<String>,
    /// Only this result: failed, succeeded, none (a test run with pending changes) or changed
    #[arg(long, value_name = "RESULT", value_parser = ask::words::<StateResult>(),
          hide_possible_values = true)]
    result: Option<StateResult>,
    /// Order of the states of a job: duration, the slowest first
    #[arg(long, value_enum, value_name = "ORDER", hide_possible_values = true)]
    sort: Option<StateOrder>,
}

/// The values of `--sort`. Without it, states are in the order of their minions and their runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum StateOrder {
    Duration,
}

impl Paged for calls::jobs::States {
    type Row = State;
    type After = String;

    fn rows(answer: &mut Option<StatesPage>) -> Option<&mut Vec<State>> {
        answer.as_mut().map(|page| &mut page.states)
    }

    fn next(answer: &Option<StatesPage>) -> (bool, Option<String>) {
        // There are no pages of an unknown job.
        answer
            .as_ref()
            .map_or((false, None), |page| (page.more, page.next.clone()))
    }

    fn go_to(args: &mut StatesArgs, after: String) {
        args.page.after = Some(after);
    }
}

impl Args {
    fn of_job(&self, jid: &str) -> StatesArgs {
        let glob = |text: &Option<String>| text.clone().map(Glob::from);
        let mut call = StatesArgs {
            jid: Id(jid.to_owned()),
            id: glob(&self.id),
            fun: glob(&self.fun),
            sls: glob(&self.sls),
            result: self.result,
            ..StatesArgs::default()
        };
        call.page.minion = glob(&self.minion);
        call
    }
}

/// A state in JSON.
#[derive(Serialize)]
struct StateOf<'a> {
    jid: &'a str,
    #[serde(flatten)]
    state: State,
}

/// The states of all jobs in JSON.
#[derive(Serialize)]
struct States<'a> {
    states: Vec<StateOf<'a>>,
}

pub(super) fn run(global: &Global, args: &Args) -> anyhow::Result<()> {
    let mut client = ask::connect(global)?;
    let mut out = Output::paged(global.output);

    let mut columns = vec![
        Column::middle_truncated("MINION").min_chars(9),
        Column::left("RESULT").toned(Tone::of_word),
        Column::truncated("FUN"),
        Column::truncated("ID"),
        Column::right("MS").drop_order(2),
        Column::truncated("SLS").drop_order(3),
        Column::truncated("COMMENT").drop_order(1),
    ];

    // A single job needs no column for its id.
    if args.jids.len() > 1 {
        columns.insert(0, Column::jid().drop_order(4));
    }

    let mut table = Table::new(columns);
    // JSON is one document, so its rows are collected; the other formats are printed job by job.
    let mut all = Vec::new();

    // All ids are found before a row is printed, because a beginning that fits several jobs is an
    // error.
    let jids = args.jids.iter();
    let jids: Vec<String> = jids
        .map(|jid| job_id::whole(&mut client, jid))
        .collect::<anyhow::Result<_>>()?;

    for jid in &jids {
        let operation = "list the states";
        let page =
            ask::whole::<calls::jobs::States>(&mut client, args.of_job(jid)).context(operation)?;

        let Some(mut page) = page else {
            return Err(unknown(jid).context(operation));
        };

        if args.sort == Some(StateOrder::Duration) {
            // A state without a duration did not run.
            let duration = |state: &State| state.duration_ms.unwrap_or(-1.0);
            let slowest_first = |a: &State, b: &State| duration(b).total_cmp(&duration(a));
            page.states.sort_by(slowest_first);
        }

        if out.format == Format::Table {
            let cells: Vec<_> = page
                .states
                .iter()
                .map(|state| row(jid, state, jids.len() > 1))
                .collect();
            table.print(&mut out, &cells)?;
            continue;
        }

        let mut lines = page.states.into_iter().map(|state| StateOf { jid, state });
        if out.format == Format::Json {
            all.extend(lines);
        } else {
            lines.try_for_each(|line| out.json(&line))?;
        }
    }

    if out.format == Format::Json {
        out.json(&States { states: all })?;
    }

    Ok(out.finish()?)
}

fn row(jid: &str, state: &State, with_jid: bool) -> Vec<String> {
    let duration = state.duration_ms.map(|ms| format!("{ms:.1}"));

    // Some states return a list of comments.
    let comment = match value(&state.comment) {
        Json::Array(parts) => parts.iter().map(leaf).collect::<Vec<_>>().join("; "),
        // A row is one line, so the first line stands for a comment.
        comment => comment
            .as_str()
            .unwrap_or_default()
            .trim()
            .lines()
            .next()
            .unwrap_or_default()
            .to_owned(),
    };

    let text = |text: &str| plain(text).into_owned();
    let mut cells = vec![
        text(&state.minion),
        result(Some(state)).to_owned(),
        text(&state.fun),
        text(&state.id),
        duration.unwrap_or_default(),
        state.sls.as_deref().map(text).unwrap_or_default(),
        comment,
    ];

    if with_jid {
        cells.insert(0, jid.to_owned());
    }

    cells
}

/// The result of a state; `none` for an absent state.
pub(super) fn result(state: Option<&State>) -> &'static str {
    state.map_or("none", |state| word(state.result, state.changed))
}

/// The name of a result.
pub(super) fn word(result: Option<bool>, changed: bool) -> &'static str {
    match (result, changed) {
        (Some(true), true) => "changed",
        (Some(true), false) => "ok",
        (Some(false), _) => "failed",
        (None, _) => "none",
    }
}
