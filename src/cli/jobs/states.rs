//! `saltcellar jobs states`: lists the states of jobs.

use anyhow::Context as _;
use serde_json::{Value as Json, json};

use super::unknown;
use crate::api::call as calls;
use crate::api::call::jobs::answers::State;
use crate::cli::{Column, Fields as _, Format, Global, Output, Table, ask, leaf, plain, value};

const EXAMPLES: &str = "\
Prints one row per state and minion of state.apply, state.highstate, state.sls and similar functions, also within \
orchestrations. JSON includes complete changes and comments; docs/WIRE.md lists the fields.

Examples:
  saltcellar jobs states 20261121054728123456
  saltcellar jobs states 20261121054728123456 --result failed
  saltcellar jobs states 20261121054728123456 --fun 'service.*' --minion 'web*' --output jsonl
  saltcellar jobs list --fun 'state.*' --since 1d --output jsonl | jq -r .jid |
    xargs saltcellar jobs states --result changed --output jsonl | jq -r .id | sort | uniq -c | sort -rn";

#[derive(clap::Args, serde::Serialize)]
#[command(after_long_help = EXAMPLES)]
pub(in crate::cli) struct Args {
    /// Job ids
    #[arg(required = true, value_name = "JID")]
    #[serde(skip)]
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
    #[arg(long, value_name = "RESULT", value_parser = ["failed", "succeeded", "none", "changed"],
          hide_possible_values = true)]
    result: Option<String>,
}

pub(super) fn run(global: &Global, args: &Args) -> anyhow::Result<()> {
    let mut client = ask::connect(global)?;
    let mut out = Output::paged(global.output);

    let mut columns = vec![
        Column::middle_truncated("MINION").min_chars(9),
        Column::left("RESULT"),
        Column::truncated("FUN"),
        Column::truncated("ID"),
        Column::right("MS").drop_order(2),
        Column::truncated("SLS").drop_order(3),
        Column::truncated("COMMENT").drop_order(1),
    ];

    // A single job needs no column for its id.
    if args.jids.len() > 1 {
        columns.insert(0, Column::left("JID").drop_order(4));
    }

    let mut table = Table::new(columns);
    // JSON is one document, so its rows are collected; the other formats are printed job by job.
    let mut all = Vec::new();

    for jid in &args.jids {
        let mut call_args = serde_json::to_value(args)?;
        ask::set(&mut call_args, "jid", jid.as_str().into());

        let operation = "list the states";
        let (page, answer) = ask::call_paged::<calls::jobs::States>(
            &mut client,
            "states",
            call_args,
            |all, more| {
                if let (Some(all), Some(more)) = (all, more) {
                    all.states.extend(more.states);
                }
            },
        )
        .context(operation)?;

        let Some(page) = page else {
            return Err(unknown(jid).context(operation));
        };

        let mut lines = answer
            .list("states")
            .iter()
            .map(|state| ask::with_jid(jid, state));

        match out.format {
            Format::Table => {
                let cells: Vec<_> = page
                    .states
                    .iter()
                    .map(|state| row(jid, state, args.jids.len() > 1))
                    .collect();
                table.print(&mut out, &cells)?;
            }
            Format::Json => all.extend(lines),
            Format::Jsonl => lines.try_for_each(|line| out.json(&line))?,
        }
    }

    if out.format == Format::Json {
        out.json(&json!({ "states": all }))?;
    }

    Ok(out.finish()?)
}

fn row(jid: &str, state: &State, with_jid: bool) -> Vec<String> {
    let duration = state.duration_ms.map(|ms| format!("{ms:.1}"));

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

/// The result of a state; that of an absent one is none.
pub(super) fn result(state: Option<&State>) -> &'static str {
    match state.map(|state| (state.result, state.changed)) {
        Some((Some(true), true)) => "changed",
        Some((Some(true), false)) => "ok",
        Some((Some(false), _)) => "failed",
        Some((None, _)) | None => "none",
    }
}
