//! `saltcellar reactor why`: explains the rules and latest reactions of a tag.

use super::history;
use crate::cli::{Fields as _, Global, ask, leaf, show};

#[derive(clap::Args, serde::Serialize)]
pub(in crate::cli) struct Args {
    /// The event's tag
    tag: String,
}

pub(super) const EXAMPLES: &str = "\
Examples:
  saltcellar reactor why salt/minion/web1/start";

pub(super) fn run(global: &Global, args: &Args) -> anyhow::Result<()> {
    let answer = ask::answer(global, "reactor_why", args, "query the rules of the tag")?;
    show(global.output, &answer, |out| {
        let rules: Vec<_> = answer.list("rules").iter().map(leaf).collect();
        if rules.is_empty() {
            out.line("no rule matches this tag")?;
        } else {
            out.line(&format!("matched by {}", rules.join(", ")))?;
        }

        // An event that the reactor does not handle explains why nothing happened.
        if answer.get("event").is_some() {
            let [event, time, source] = ["event", "time", "source"].map(|name| answer.leaf(name));
            out.line(&format!("latest event {event} of {time}, source {source}"))?;
            // Salt's reactor ignores these events as well, against loops.
            if answer.text("user") == "Reactor" {
                out.line("ignored: a reactor caused this event")?;
            }
            if !source.starts_with("bus") {
                out.line(
                    "ignored: the reactor handles only events that the daemon read from the master's bus",
                )?;
            }
        } else {
            out.line("the archive has no event with this tag")?;

            // Newest last, as in the history.
        }

        let rows: Vec<_> = answer
            .list("reactions")
            .iter()
            .rev()
            .map(history::row)
            .collect();

        if rows.is_empty() {
            return Ok(out.line("no reactions")?);
        }
        Ok(history::table().print(out, &rows)?)
    })
}
