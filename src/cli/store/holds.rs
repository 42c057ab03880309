//! `saltcellar store holds`: exempts jobs from retention.

use anyhow::{Context as _, bail};
use serde_json::json;

use crate::api::call::store::{self, HeldJob, HoldAnswer, HoldArgs};
use crate::api::call::{self as calls, NoArgs};
use crate::api::client::ClientError;
use crate::cli::{
    Column, Form, Global, Table, ask, ask::confirm, plain, short_at, show, show_rows, title,
};
use crate::wire::call::Id;

#[derive(clap::Subcommand)]
pub(in crate::cli) enum Holds {
    /// List the held jobs
    List,
    /// Exempt a job from retention
    #[command(after_long_help = ADD)]
    Add(Add),
    /// Release a job: retention applies again
    Remove(Remove),
}

#[derive(clap::Args)]
pub(in crate::cli) struct Add {
    /// The job's id
    jid: String,
    /// Reason, shown in the list
    #[arg(
        long,
        value_name = "TEXT",
        default_value = "",
        hide_default_value = true
    )]
    reason: String,
}

#[derive(clap::Args)]
pub(in crate::cli) struct Remove {
    /// The job's id
    jid: String,
}

impl Holds {
    /// Whether it prints a table.
    pub(super) fn has_rows(&self) -> bool {
        match self {
            Self::List => true,
            Self::Add(_) | Self::Remove(_) => false,
        }
    }
}

const ADD: &str = "\
Retention keeps all entries of a held job: load, returns, events. Holds survive restarts and are part of backups. \
With cluster.nats a hold and its removal count on all masters of the history.

Examples:
  saltcellar store holds add 20261121054728123456 --reason 'outage of monday'
  saltcellar store holds list
  saltcellar store holds remove 20261121054728123456";

pub(super) fn run(global: &Global, verb: Holds) -> anyhow::Result<()> {
    match verb {
        Holds::List => list(global),
        Holds::Add(args) => add(global, args),
        Holds::Remove(Remove { jid }) => remove(global, &jid),
    }
}

fn add(global: &Global, args: Add) -> anyhow::Result<()> {
    let call = HoldArgs {
        jid: Id(args.jid.clone()),
        reason: args.reason,
        ..HoldArgs::default()
    };

    match ask::answer::<calls::store::HoldJob>(global, &call, "hold the job")? {
        HoldAnswer::Held(held) => confirm(global, &held, &format!("{} is held", args.jid)),
        HoldAnswer::Released(_) => {
            Err(ClientError::Protocol("it released the job".to_owned())).context("hold the job")
        }
    }
}

fn remove(global: &Global, jid: &str) -> anyhow::Result<()> {
    let call = HoldArgs {
        jid: Id(jid.to_owned()),
        release: true,
        ..HoldArgs::default()
    };

    match ask::answer::<calls::store::HoldJob>(global, &call, "release the job")? {
        HoldAnswer::Released(true) => {
            // The call only says that the job was held.
            let answer = json!({ "jid": jid, "released": true });
            confirm(global, &answer, &format!("{jid} is released"))
        }
        HoldAnswer::Released(false) => bail!(
            "release the job: {jid} is not held; `saltcellar store holds list` lists the held jobs"
        ),
        HoldAnswer::Held(_) => {
            Err(ClientError::Protocol("it held the job".to_owned())).context("release the job")
        }
    }
}

fn list(global: &Global) -> anyhow::Result<()> {
    let store::Holds { holds } =
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
