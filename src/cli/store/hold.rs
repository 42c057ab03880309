//! `saltcellar store hold`: exempts jobs from retention.

use anyhow::bail;
use serde_json::json;

use crate::api::call as calls;
use crate::api::call::store::{HeldJob, Holds};
use crate::cli::{Column, Fields as _, Form, Global, Table, ask, short_at, show, show_rows, title};

#[derive(clap::Args, serde::Serialize)]
pub(in crate::cli) struct Args {
    /// Job id; without it, list the held jobs
    jid: Option<String>,
    /// Reason, shown in the list
    #[arg(
        long,
        value_name = "TEXT",
        requires = "jid",
        conflicts_with = "release"
    )]
    reason: Option<String>,
    /// Release the job: retention applies again
    #[arg(long, requires = "jid")]
    release: bool,
}

impl Args {
    /// Whether it prints a table: only the list does.
    pub(super) fn has_rows(&self) -> bool {
        self.jid.is_none()
    }
}

pub(super) const EXAMPLES: &str = "\
Retention keeps all entries of a held job: load, returns, events. Holds are stored in the file HOLDS of the state directory.

Examples:
  saltcellar store hold 20261121054728123456 --reason 'outage of monday'
  saltcellar store hold
  saltcellar store hold 20261121054728123456 --release";

pub(super) fn run(global: &Global, args: &Args) -> anyhow::Result<()> {
    let Some(jid) = &args.jid else {
        return list(global);
    };

    let operation = if args.release {
        "release the job"
    } else {
        "hold the job"
    };

    let mut answer = ask::answer::<calls::store::HoldJob>(global, args, operation)?;
    // The call only says whether the job was held.
    if args.release && answer == false {
        bail!("release the job: {jid} is not held");
    }

    if args.release {
        answer = json!({ "jid": jid, "released": true });
    }

    let state = if args.release {
        "is released"
    } else {
        "is held"
    };

    show(global.output, &answer, |out| {
        Ok(out.line(&format!("{jid} {state}"))?)
    })
}

fn list(global: &Global) -> anyhow::Result<()> {
    let (Holds { holds }, answer) =
        ask::answer_as::<calls::store::ListHolds>(global, (), "list the holds")?;

    // JSON output is the list itself, not an object with a list.
    if global.output == Form::Json {
        return show(global.output, answer.of("holds"), |_| Ok(()));
    }

    show_rows(global.output, &answer, "holds", |out| {
        let columns = [
            Column::left("JID"),
            Column::left(title("SINCE", "SINCE (UTC)")),
            Column::truncated("REASON"),
        ];

        let cells = |hold: HeldJob| vec![hold.jid, short_at(hold.time), hold.reason];
        Ok(Table::new(columns).print(out, &holds.into_iter().map(cells).collect::<Vec<_>>())?)
    })
}
