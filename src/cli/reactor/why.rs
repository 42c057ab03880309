//! `saltcellar reactor why`: explains the rules and latest reactions of a tag.

use super::history;
use crate::api::call as calls;
use crate::api::call::reactor::WhyArgs;
use crate::cli::{Global, ask, plain, show};

#[derive(clap::Args)]
pub(in crate::cli) struct Args {
    /// The event's tag
    tag: String,
}

pub(super) const EXAMPLES: &str = "\
Examples:
  saltcellar reactor why salt/minion/web1/start";

pub(super) fn run(global: &Global, args: &Args) -> anyhow::Result<()> {
    let operation = "query the rules of the tag";
    let call = WhyArgs {
        tag: args.tag.clone(),
        ..WhyArgs::default()
    };
    let why = ask::answer::<calls::reactor::Explain>(global, &call, operation)?;

    show(global.output, &why, |out| {
        if why.rules.is_empty() {
            out.line("no rule matches this tag")?;
        } else {
            out.line(&format!("matched by {}", plain(&why.rules.join(", "))))?;
        }

        // An event that the reactor does not handle explains why nothing happened.
        if let Some(event) = why.event {
            let time = why.time.map(|time| time.0.iso()).unwrap_or_default();
            let source = why.source.unwrap_or_default();
            out.line(&format!(
                "latest event {event} of {time}, source {}",
                source.name()
            ))?;
            if let Some(peer) = &why.peer {
                out.line(&format!(
                    "fired on master {}, whose daemon reacts",
                    plain(peer)
                ))?;
            }
            // Salt's reactor ignores these events as well, against loops.
            if why.user.as_deref() == Some("Reactor") {
                out.line("ignored: a reactor caused this event")?;
            }
            if !source.is_bus() {
                out.line(
                    "ignored: the reactor handles only events that the daemon read from the master's bus",
                )?;
            }
        } else {
            out.line("the archive contains no event with this tag")?;
        }

        let rows: Vec<_> = why.reactions.iter().map(history::row).collect();

        if rows.is_empty() {
            return Ok(out.line("no reactions")?);
        }
        Ok(history::table().print(out, &rows)?)
    })
}
