//! `saltcellar store hold`: exempts jobs from retention.

use anyhow::bail;
use serde_json::json;

use crate::api::call::store::{HeldJob, HoldAnswer, HoldArgs, Holds};
use crate::api::call::{self as calls, NoArgs};
use crate::cli::{Column, Form, Global, Table, ask, plain, short_at, show, show_rows, title};
use crate::wire::call::Id;

#[derive(clap::Args)]
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
Retention keeps all entries of a held job: load, returns, events. Holds survive restarts and are part of backups. With cluster.nats a hold and its \
release count on all masters of the history.

Examples:
  saltcellar store hold 20261121054728123456 --reason 'outage of monday'
  saltcellar store hold
  saltcellar store hold 20261121054728123456 --release";

pub(super) fn run(global: &Global, args: &Args) -> anyhow::Result<()> {
    let Some(jid) = &args.jid else {
        return list(global);
    };

    let call = HoldArgs {
        jid: Id(jid.clone()),
        reason: args.reason.clone().unwrap_or_default(),
        release: args.release,
        ..HoldArgs::default()
    };

    let operation = if args.release {
        "release the job"
    } else {
        "hold the job"
    };

    match ask::answer::<calls::store::HoldJob>(global, &call, operation)? {
        HoldAnswer::Held(held) => show(global.output, &held, |out| {
            Ok(out.line(&format!("{jid} is held"))?)
        }),
        HoldAnswer::Released(true) => {
            // The call only says that the job was held.
            let answer = json!({ "jid": jid, "released": true });
            show(global.output, &answer, |out| {
                Ok(out.line(&format!("{jid} is released"))?)
            })
        }
        HoldAnswer::Released(false) => bail!("release the job: {jid} is not held"),
    }
}

fn list(global: &Global) -> anyhow::Result<()> {
    let Holds { holds } =
        ask::answer::<calls::store::ListHolds>(global, &NoArgs {}, "list the holds")?;

    // JSON output is the list itself, not an object with a list.
    if global.output == Form::Json {
        return show(global.output, &holds, |_| Ok(()));
    }

    show_rows(global.output, &holds, &holds, |out| {
        let columns = [
            Column::jid(),
            Column::time(title("SINCE", "SINCE (UTC)")),
            Column::middle_truncated("MASTER")
                .min_chars(9)
                .drop_order(1),
            Column::truncated("REASON"),
        ];

        let cells = |hold: &HeldJob| {
            let master = hold.master.as_deref().unwrap_or_default();
            vec![
                hold.jid.clone(),
                short_at(hold.time),
                plain(master).into_owned(),
                hold.reason.clone(),
            ]
        };
        Ok(Table::new(columns).print(out, &holds.iter().map(cells).collect::<Vec<_>>())?)
    })
}
