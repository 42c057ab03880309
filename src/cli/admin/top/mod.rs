//! `saltcellar top`: a live view of the daemon.
//!
//! One thread polls the daemon and the keyboard in turn. The terminal is restored on every way out,
//! even after a panic.

mod draw;
mod view;

use std::io::IsTerminal as _;
use std::time::{Duration, Instant};

use self::view::{Action, View};
use crate::api::call::causes::CausesPage;
use crate::api::call::jobs::ShowArgs;
use crate::api::call::jobs::answers::JobAnswer;
use crate::api::call::reactor::HistoryArgs;
use crate::api::call::{self as calls, NoArgs};
use crate::api::client::{Client, ClientError};
use crate::api::query::JobResult;
use crate::cli::format::colour;
use crate::cli::jobs::causes::causes_of;
use crate::cli::{Global, NoDaemon, ask, duration};
use crate::reactor::stored::States;
use crate::wire::call::Id;
use anyhow::{Context as _, bail};
use ratatui::crossterm::event::{self, Event, KeyEventKind};

pub(in crate::cli) const EXAMPLES: &str = "\
Keys: up and down (or k and j) select a job, Enter opens it, Esc closes it, / filters jobs by function, target or user, F shows only \
jobs with failed returns, p pauses, ? lists all keys, q quits. \
Failed reactions are those among the latest; `saltcellar reactor history --state failed,partial,dead` finds older ones.

Examples:
  saltcellar top
  saltcellar top --interval 5s";

#[derive(clap::Args)]
pub(in crate::cli) struct Args {
    /// Time between two updates, from 1s to 60s
    #[arg(long, value_name = "DURATION", default_value = "1s", value_parser = interval)]
    interval: Duration,
}

/// Faster updates would load the daemon, and a slower view is not live.
fn interval(text: &str) -> Result<Duration, String> {
    let interval = duration(text)?;
    if !(Duration::from_secs(1)..=Duration::from_secs(60)).contains(&interval) {
        return Err("expected a duration from 1s to 60s".to_owned());
    }
    Ok(interval)
}

/// As many as fit a large screen.
const JOBS: usize = 100;
const REACTIONS: usize = 5;
/// More returns than fit a screen; `jobs show` prints all of them.
const RETURNS: usize = 200;

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

    // The library would decide by itself, and not know `--color`.
    ratatui::crossterm::style::force_color_output(colour::is_on(true));

    let mut terminal =
        ratatui::try_init().context("prepare the terminal; `saltcellar status` prints once")?;
    let result = live(
        &mut terminal,
        global,
        &mut client,
        &mut view,
        flags.interval,
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
        // Drawn after each key and not only after an update, because the keyboard would seem slow.
        terminal.draw(|frame| draw::draw(frame, view))?;

        let wait = interval.saturating_sub(updated.elapsed());

        // Some terminals also report releases of keys.
        if event::poll(wait)?
            && let Event::Key(key) = event::read()?
            && key.kind == KeyEventKind::Press
        {
            match view.press(key) {
                Action::Quit => return Ok(()),
                Action::Open(jid) => match read_job(client, &jid) {
                    // A restart of the daemon must not end the view.
                    Err(error) if ask::is_gone(&error) => view.lose(error.to_string()),
                    read => {
                        let (job, causes) = read?;
                        view.open(jid, job.as_ref(), causes.as_ref());
                    }
                },
                Action::Reload => refresh(global, client, view)?,
                Action::Stay => {}
            }
        }

        if updated.elapsed() >= interval {
            refresh(global, client, view)?;
            // Even while paused, because the next wait must be a full interval.
            updated = Instant::now();
        }
    }
}

/// A job with the first of its returns, and why it failed.
fn read_job(
    client: &mut Client,
    jid: &str,
) -> Result<(Option<JobAnswer>, Option<CausesPage>), ClientError> {
    let mut call = ShowArgs {
        jid: Id(jid.to_owned()),
        ..ShowArgs::default()
    };
    call.page.limit = Some(RETURNS);

    let job = client.make::<calls::jobs::Show>(&call)?;
    let causes = match &job {
        Some(job) => causes_of(client, job, None)?,
        None => None,
    };
    Ok((job, causes))
}

/// Updates the view. Without the daemon the last state stays, and each refresh looks for it.
fn refresh(global: &Global, client: &mut Client, view: &mut View) -> anyhow::Result<()> {
    if view.lost.is_some() {
        reconnect(global, client, view)?;
    }
    if view.is_paused() || view.lost.is_some() {
        return Ok(());
    }

    match update(client, view) {
        Err(error) if ask::is_gone(&error) => view.lose(error.to_string()),
        updated => updated?,
    }
    Ok(())
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
    let status = client.make::<calls::status::Show>(&NoArgs {})?;

    let call = calls::jobs::ListArgs {
        limit: Some(JOBS),
        // Of all jobs, not of the latest.
        result: view.is_failed_only().then_some(JobResult::Failed),
        ..calls::jobs::ListArgs::default()
    };
    let jobs = client.make::<calls::jobs::List>(&call)?.jobs;

    // A daemon without a reactor rejects the call. One call looks at the latest reactions, not at all
    // of them: it is repeated every second.
    let reactions = if status.reactor {
        let call = HistoryArgs {
            limit: Some(REACTIONS),
            state: Some(States::unfinished()),
            ..HistoryArgs::default()
        };
        client.make::<calls::reactor::History>(&call)?.reactions
    } else {
        Vec::new()
    };

    view.update(Instant::now(), status, jobs, reactions);
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};
    use std::os::unix::net::{UnixListener, UnixStream};
    use std::path::Path;
    use std::thread::JoinHandle;

    use rmpv::Value;

    use super::*;

    /// Answers `count` calls with empty maps, on one connection; nobody listens afterwards.
    fn daemon(socket: &Path, count: usize) -> JoinHandle<()> {
        let listener = UnixListener::bind(socket).unwrap();
        let socket = socket.to_owned();
        let serve = move || {
            let (mut peer, _) = listener.accept().unwrap();
            peer.read_exact(&mut [0; 8]).unwrap();
            (0..count).for_each(|_| answer(&mut peer));
            drop(listener);
            std::fs::remove_file(socket).unwrap();
        };
        std::thread::Builder::new().spawn(serve).unwrap()
    }

    fn answer(peer: &mut UnixStream) {
        let mut header = [0; 4];
        peer.read_exact(&mut header).unwrap();
        let mut request = vec![0; u32::from_be_bytes(header) as usize];
        peer.read_exact(&mut request).unwrap();
        let request = rmpv::decode::read_value(&mut request.as_slice()).unwrap();
        let answer = vec![request[0].clone(), true.into(), Value::Map(Vec::new())];
        let mut body = Vec::new();
        rmpv::encode::write_value(&mut body, &Value::Array(answer)).unwrap();
        let header = u32::try_from(body.len()).unwrap().to_be_bytes();
        peer.write_all(&[&header[..], &body].concat()).unwrap();
    }

    #[test]
    fn the_view_outlives_the_daemon_and_goes_on_with_the_next_one() {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("s.sock");
        let global = Global {
            socket: Some(socket.clone()),
            ..Global::with_json()
        };
        // An update is two calls.
        let first = daemon(&socket, 2);
        let mut client = ask::connect(&global).unwrap();
        let mut view = View::default();
        refresh(&global, &mut client, &mut view).unwrap();
        assert_eq!(view.lost, None);
        first.join().unwrap();

        for _ in 0..2 {
            refresh(&global, &mut client, &mut view).unwrap();
            let lost = view.lost.as_deref().unwrap();
            assert!(lost.contains("s.sock"), "{lost}");
        }

        let second = daemon(&socket, 2);
        refresh(&global, &mut client, &mut view).unwrap();
        assert_eq!(view.lost, None);
        second.join().unwrap();
    }
}
