//! `saltcellar reactor show`: shows a reaction from its event to the results of its jobs.

use serde_json::Value as Json;

use super::history::{self, outcome};
use crate::api::call as calls;
use crate::cli::{Fields as _, Global, Output, ask, leaf, nested, show};

#[derive(clap::Args, serde::Serialize)]
pub(in crate::cli) struct Args {
    /// Sequence number of the reaction, or of the event
    seq: u64,
}

pub(super) const EXAMPLES: &str = "\
Examples:
  saltcellar reactor show 18234
  saltcellar reactor show 18234 --output json";

pub(super) fn run(global: &Global, args: &Args) -> anyhow::Result<()> {
    let answer = ask::answer::<calls::reactor::Show>(global, args, "show the reaction")?;
    show(global.output, &answer, |out| print(out, &answer))
}

/// The reason in `row`, with a colon in front; empty without one.
fn why(row: &Json) -> String {
    let why = row.leaf("why");
    if why.is_empty() {
        why
    } else {
        format!(": {why}")
    }
}

fn print(out: &mut Output, answer: &Json) -> anyhow::Result<()> {
    let record = answer.of("reaction");
    let [seq, time, tag, minion] = ["seq", "time", "tag", "minion"].map(|name| answer.leaf(name));

    out.line(&format!(
        "reaction {seq}, {}{}, {time}",
        record.leaf("state"),
        why(record)
    ))?;

    out.line(&format!(
        "  event {}  {tag}  {minion}",
        record.leaf("event")
    ))?;

    let rules: Vec<_> = record.list("rules").iter().map(leaf).collect();
    out.line(&format!("  rules {}", rules.join(", ")))?;

    // Files and notes are pairs of text.
    let part = |parts: &Json, n: usize| {
        parts
            .get(n)
            .and_then(Json::as_str)
            .unwrap_or_default()
            .to_owned()
    };

    for file in record.list("files") {
        out.line("")?;
        // A third element marks a text that was cut.
        out.heading(
            &(part(file, 0)
                + if file.get(2).is_some() {
                    " (truncated)"
                } else {
                    ""
                }),
        )?;

        part(file, 1)
            .lines()
            .try_for_each(|line| out.line(&format!("    {line}")))?;
    }

    for (n, call) in record.list("calls").iter().enumerate() {
        let [id, client, fun, tgt] = ["id", "client", "fun", "tgt"].map(|name| call.leaf(name));

        out.line("")?;
        out.heading(&format!("{id}: {client}.{fun} {tgt}"))?;

        let took = call
            .of("took_us")
            // Zero for a call that was not made.
            .as_i64()
            .map_or(0.0, |us| us as f64 / 1e3);

        let (outcome, tries, jid) = (outcome(call), call.leaf("tries"), call.leaf("jid"));
        out.line(&format!(
            "    {outcome}{}, try {tries}, {took:.1} ms, jid {jid}",
            why(call)
        ))?;

        out.text(&nested(call.of("load"), 4))?;

        // Only jobs and runners whose end is stored have a result.
        if let Some(result) = answer
            .list("results")
            .get(n)
            .filter(|result| !result.is_null())
        {
            out.line("    result:")?;
            out.text(&nested(result, 6))?;
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

    for note in record.list("notes") {
        out.line(&format!("  {}: {}", part(note, 0), part(note, 1)))?;
    }

    Ok(())
}
