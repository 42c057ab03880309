//! `saltcellar top`: a live view of the daemon.
//!
//! One thread polls the daemon and the keyboard in turn. The terminal is restored on every way out,
//! even after a panic.

mod draw;
mod view;

use std::io::IsTerminal as _;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use ratatui::crossterm::event::{self, Event, KeyEventKind};
use serde_json::{Value as Json, json};

use self::view::{Action, View};
use crate::api::client::{Client, ClientError};
use crate::api::status::Status;
use crate::cli::{Global, NoDaemon, ask};

pub(in crate::cli) const EXAMPLES: &str = "\
Keys: up and down select a job, Enter opens it, Esc closes it, / filters jobs by function or target, p pauses, q quits.

Examples:
  saltcellar top
  saltcellar top --interval 5";

#[derive(clap::Args)]
pub(in crate::cli) struct Args {
    /// Seconds between two updates
    #[arg(long, value_name = "SECONDS", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=60))]
    interval: u64,
}

const JOBS: u64 = 50;
const REACTIONS: u64 = 5;

pub(in crate::cli) fn run(global: &Global, flags: &Args) -> anyhow::Result<()> {
    if !std::io::stdout().is_terminal() {
        bail!(
            "show the live view: standard output is not a terminal; `saltcellar status` prints once"
        );
    }

    let operation = "query the status";
    let mut client = ask::connect(global)?;
    let mut view = View::default();

    // Before the terminal changes: an error of the first update is an ordinary message.
    update(&mut client, &mut view).context(operation)?;

    let mut terminal = ratatui::try_init().context("prepare the terminal")?;
    let result = live(
        &mut terminal,
        global,
        &mut client,
        &mut view,
        Duration::from_secs(flags.interval),
    );

    // Before the error is printed, which the other screen would hide.
    ratatui::restore();
    result.context(operation)
}

fn live(
    terminal: &mut ratatui::DefaultTerminal,
    global: &Global,
    client: &mut Client,
    view: &mut View,
    interval: Duration,
) -> anyhow::Result<()> {
    let mut updated = Instant::now();
    loop {
        terminal.draw(|frame| draw::draw(frame, view))?;

        let wait = interval.saturating_sub(updated.elapsed());

        // Some terminals report releases of keys, too.
        if event::poll(wait)?
            && let Event::Key(key) = event::read()?
            && key.kind == KeyEventKind::Press
        {
            match view.press(key) {
                Action::Quit => return Ok(()),
                Action::Open(jid) => {
                    // More returns than fit a screen; `jobs show` has all of them.
                    let call = json!({ "jid": jid, "limit": 200 });
                    match ask::call(client, "job_show", call) {
                        Err(error) if ask::is_gone(&error) => view.lose(error.to_string()),
                        job => view.open(job?),
                    }
                }
                Action::Stay => {}
            }
        }

        if updated.elapsed() >= interval {
            if view.lost.is_some() {
                reconnect(global, client, view)?;
            }
            if !view.is_paused() && view.lost.is_none() {
                match update(client, view) {
                    Err(error) if ask::is_gone(&error) => view.lose(error.to_string()),
                    updated => updated?,
                }
            }
            // Even while paused, so that the next wait is a full interval.
            updated = Instant::now();
        }
    }
}

/// Tries once to connect to a daemon that went away. The keyboard works between the attempts.
fn reconnect(global: &Global, client: &mut Client, view: &mut View) -> anyhow::Result<()> {
    match ask::connect(global) {
        Ok(connected) => {
            *client = connected;
            view.lost = None;
        }
        // It may be restarting.
        Err(error) if error.is::<NoDaemon>() => view.lose(format!("{error:#}")),
        Err(error) => return Err(error),
    }
    Ok(())
}

fn update(client: &mut Client, view: &mut View) -> Result<(), ClientError> {
    let (status, _): (Status, _) = ask::call_as(client, "status", ())?;

    let mut jobs = ask::call(client, "jobs_list", json!({ "limit": JOBS }))?;
    // A daemon without a reactor rejects the call.
    let reactions = if status.reactor {
        let call = json!({ "limit": REACTIONS, "state": "failed,partial,dead" });
        ask::call(client, "reactor_history", call)?
            .get_mut("reactions")
            .map(Json::take)
    } else {
        None
    };

    let jobs = jobs.get_mut("jobs").map(Json::take).unwrap_or_default();
    view.update(Instant::now(), status, jobs, reactions.unwrap_or_default());
    Ok(())
}
