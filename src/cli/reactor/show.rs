//! `saltcellar reactor show`: shows a reaction from its event to the results of its jobs.

use anyhow::Context as _;

use super::history::{self, outcome};
use crate::api::call as calls;
use crate::api::call::reactor::{ReactionRow, ShowArgs};
use crate::cli::{Global, Output, ask, nested, plain, show, value};
use crate::reactor::CallRecord;
use crate::reactor::master::{Call, pack};
use crate::reactor::stored::{SkipReason, StoredRecord};
use crate::wire::msgpack::Stored;

#[derive(clap::Args)]
pub(in crate::cli) struct Args {
    /// Sequence number of the reaction, or of the event
    seq: u64,
}

pub(super) const EXAMPLES: &str = "\
Examples:
  saltcellar reactor show 18234
  saltcellar reactor show 18234 --output json";

pub(super) fn run(global: &Global, args: &Args) -> anyhow::Result<()> {
    let operation = "show the reaction";
    let call = ShowArgs {
        seq: args.seq,
        ..ShowArgs::default()
    };
    let row = ask::answer::<calls::reactor::Show>(global, &call, operation)?;
    show(global.output, &row, |out| {
        let record = StoredRecord::read(row.reaction.packed())
            .context("read the record")
            .context(operation)?;
        print(out, &row, &record)
    })
}

/// A reason with a colon in front; empty without one.
fn why(why: &str) -> String {
    if why.is_empty() {
        String::new()
    } else {
        format!(": {}", plain(why))
    }
}

fn print(out: &mut Output, row: &ReactionRow, record: &StoredRecord) -> anyhow::Result<()> {
    out.line(&format!(
        "reaction {}, {}{}, {}",
        row.seq,
        record.state.name(),
        why(record.why.map(SkipReason::name).unwrap_or_default()),
        row.time.0.iso()
    ))?;

    // A number in another master's record is one of its own log.
    let event = match &row.master {
        Some(master) => format!("of the master {}", plain(master)),
        None => record.event.to_string(),
    };
    out.line(&format!(
        "  event {event}  {}  {}",
        plain(&row.tag),
        plain(row.minion.as_deref().unwrap_or_default())
    ))?;

    out.line(&format!("  rules {}", plain(&record.rules.join(", "))))?;

    for file in record.files() {
        out.line("")?;
        let mark = if file.is_cut { " (truncated)" } else { "" };
        out.heading(&format!("{}{mark}", file.name))?;

        file.text
            .lines()
            .try_for_each(|line| out.line(&format!("    {line}")))?;
    }

    for (n, call) in record.calls.iter().enumerate() {
        print_call(out, call)?;

        // Only jobs and runners whose end is stored show a result.
        if let Some(Some(result)) = row.results.iter().flatten().nth(n) {
            out.line("    result:")?;
            out.text(&nested(&serde_json::to_value(result)?, 6))?;
        }
    }

    // The headings of failures and notes appear only with something below them.
    let failures: Vec<_> = history::failures(record).collect();
    if !failures.is_empty() {
        out.line("")?;
        out.heading("failed:")?;
    }

    failures
        .iter()
        .try_for_each(|failure| out.line(&format!("    {failure}")))?;

    for (level, text) in &record.notes {
        out.line(&format!("  {level}: {text}"))?;
    }

    Ok(())
}

fn print_call(out: &mut Output, made: &CallRecord) -> anyhow::Result<()> {
    let Call {
        id,
        client,
        fun,
        tgt,
        load,
        ..
    } = &made.call;

    out.line("")?;
    out.heading(&format!("{id}: {}.{fun} {tgt}", client.name()))?;

    // Zero for a call that was not made.
    let took = made.took_us as f64 / 1e3;
    let outcome = outcome(made);
    let why = why(made.outcome.why());
    out.line(&format!(
        "    {outcome}{why}, try {}, {took:.1} ms, jid {}",
        made.tries, made.jid
    ))?;

    // Empty if it was too large for the record.
    let load = Some(pack::packed_map(load)).filter(|_| !load.is_empty());
    let load = value(&Stored::of(load.as_deref()));
    Ok(out.text(&nested(&load, 4))?)
}
