//! `saltcellar store hold`: exempts jobs from retention.

use anyhow::{Context, bail};
use rmpv::Value;
use serde_json::{Value as Json, json};

use super::super::format::output::{Format, Output};
use super::super::format::table::{Column, Table};
use super::super::format::when::{iso_in, short};
use super::super::{Global, ask};
use super::text;

/// Flags of `store hold`.
#[derive(clap::Args)]
pub(in crate::cli) struct Args {
    /// Job id; without it, list the held jobs
    jid: Option<String>,
    /// Reason, shown in the list
    #[arg(long, value_name = "TEXT", requires = "jid", conflicts_with = "release")]
    reason: Option<String>,
    /// Release the job: retention applies again
    #[arg(long, requires = "jid")]
    release: bool,
}

pub(super) const EXAMPLES: &str = "\
Retention keeps all entries of a held job: load, returns, events. Holds are stored in the file HOLDS of the state directory.

Examples:
  saltcellar store hold 20261121054728123456 --reason 'outage of monday'
  saltcellar store hold
  saltcellar store hold 20261121054728123456 --release";

pub(super) fn run(global: &Global, args: Args) -> anyhow::Result<()> {
    let mut client = ask::connect(global)?;
    let mut out = Output::new(global.output);
    let Some(jid) = args.jid else {
        let mut answer = ask::call(&mut client, "store_holds", []).context("list the holds")?;
        let holds = answer.get_mut("holds").and_then(Json::as_array_mut);
        let holds = holds.map(std::mem::take).unwrap_or_default();
        let holds: Vec<Json> = holds
            .into_iter()
            .map(|mut hold| {
                iso_in(&mut hold);
                hold
            })
            .collect();
        match out.format {
            Format::Table => {
                let columns = [Column::left("JID"), Column::left("SINCE (UTC)"), Column::truncated("REASON")];
                let cells = |hold: &Json| {
                    let since = hold.get("time").map(short).unwrap_or_default();
                    vec![text(hold, "jid").to_owned(), since, text(hold, "reason").to_owned()]
                };
                Table::new(columns).print(&mut out, &holds.iter().map(cells).collect::<Vec<_>>())?;
            }
            Format::Json => out.json(&Json::from(holds))?,
            Format::Jsonl => holds.iter().try_for_each(|hold| out.json(hold))?,
        }
        return Ok(out.flush()?);
    };
    let pairs = [
        ("jid", Value::from(jid.as_str())),
        ("reason", args.reason.map_or(Value::Nil, Value::from)),
        ("release", Value::from(args.release)),
    ];
    let operation = if args.release { "release the job" } else { "hold the job" };
    let mut answer = ask::call(&mut client, "store_hold", pairs).context(operation)?;
    if args.release && answer == false {
        bail!("release the job: {jid} is not held");
    }
    if args.release {
        answer = json!({ "jid": jid, "released": true });
    }
    iso_in(&mut answer);
    match out.format {
        Format::Table => {
            let state = if args.release { "is released" } else { "is held" };
            out.line(&format!("{jid} {state}"))?;
        }
        Format::Json | Format::Jsonl => out.json(&answer)?,
    }
    Ok(out.flush()?)
}
