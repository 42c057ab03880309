//! `saltcellar jobs watch`: follows a job.
//!
//! Each call waits in the daemon, which follows the log and returns the new entries of the job.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use serde::Serialize;
use serde_json::Value as Json;

use super::job_id::{self, unknown};
use super::show::unknown_return;
use crate::api::call as calls;
use crate::api::call::jobs::answers::{Awaited, JobUpdate, NewReturn, Step, UnknownReturn};
use crate::api::call::jobs::{MissingArgs, WatchArgs};
use crate::api::client::Client;
use crate::cli::{
    Exit, Finding, Format, Global, Output, ask, duration, finding, joined, leaf, plain, short_at,
    value,
};
use crate::wire::call::Id;

const EXAMPLES: &str = "\
Exits once all expected minions have returned, or a runner has finished. A terminal shows a status line and the failed \
returns; other output contains one line per return. With state_events in the master's configuration, states are shown \
as they run.

Exit codes: 0 all returned successfully, 1 minions failed, 75 timed out with missing minions.

Examples:
  saltcellar jobs watch 20261121054728123456
  saltcellar jobs watch \"$(salt --async '*' state.apply | grep -o '[0-9]\\{20\\}')\" --timeout 30m
  saltcellar jobs watch 20261121054728123456 --output jsonl";

/// Time for the first entry of the job to arrive.
const KNOWN_WITHIN: Duration = Duration::from_secs(5);
/// Longest wait of one call, which bounds the time until a dead daemon is noticed.
const ONE_WAIT: Duration = Duration::from_secs(10);
/// Interval between two drawings of the status line, which shows seconds.
const REDRAW: Duration = Duration::from_secs(1);

#[derive(clap::Args)]
#[command(after_long_help = EXAMPLES)]
pub(in crate::cli) struct Args {
    /// The job's id
    jid: String,
    /// Timeout: 30s, 10m, 2h
    #[arg(long, value_name = "DURATION", default_value = "10m", value_parser = duration)]
    timeout: Duration,
}

#[derive(Default)]
struct JobState {
    expected: Option<BTreeSet<String>>,
    /// Whether each minion that returned has failed.
    returned: BTreeMap<String, bool>,
    ended: bool,
}

impl JobState {
    fn failed(&self) -> usize {
        self.returned.values().filter(|failed| **failed).count()
    }

    /// Minions that are waited for. Whether they are missing in the end, the daemon knows.
    fn awaited(&self) -> Vec<&str> {
        let expected = self.expected.iter().flatten();
        expected
            .filter(|id| !self.returned.contains_key(*id))
            .map(String::as_str)
            .collect()
    }

    fn is_done(&self) -> bool {
        self.ended || self.expected.is_some() && self.awaited().is_empty()
    }

    fn share(&self) -> String {
        match &self.expected {
            Some(expected) => format!("{}/{}", self.returned.len(), expected.len()),
            None => self.returned.len().to_string(),
        }
    }
}

pub(super) fn run(global: &Global, args: &Args) -> anyhow::Result<()> {
    let operation = "watch the job";
    let mut client = ask::connect(global)?;
    let jid = job_id::whole(&mut client, &args.jid)?;
    let mut out = Output::new(global.output);
    let started = Instant::now();
    let mut job = JobState::default();

    let mut known = false;
    let mut from = 0;
    let mut step = String::new();

    loop {
        let left = limit(args, known).saturating_sub(started.elapsed());

        // A terminal shows the elapsed seconds, so calls wait for less.
        let wait = left.min(if out.width.is_some() {
            REDRAW
        } else {
            ONE_WAIT
        });

        let wait_ms = u64::try_from(wait.as_millis()).unwrap_or(0);

        let call = WatchArgs {
            jid: Id(jid.clone()),
            from: Some(from),
            wait_ms: Some(wait_ms),
            ..WatchArgs::default()
        };
        let mut update = match client.make::<calls::jobs::Watch>(&call) {
            // `from` is a position in the log, so a restarted daemon continues there.
            Err(error) if ask::is_gone(&error) => {
                out.status("")?;
                client =
                    ask::reconnected(global, Some(started + args.timeout)).context(operation)?;
                continue;
            }
            update => update.context(operation)?,
        };

        from = update.next;

        // Printed once, with the first entry that says what the job is.
        if update.known && !known {
            known = true;
            print_heading(&mut out, &jid, &update)?;
        }

        // More than one entry can name expected minions.
        if let Some(minions) = update.minions.take() {
            job.expected.get_or_insert_default().extend(minions);
        }

        job.ended |= update.ended;
        for one in &update.steps {
            step = step_line(&mut out, one)?;
        }

        // In the order of the log, because the first return of a minion counts.
        update.answers.sort_by_key(|answer| answer.seq);
        for answer in &update.answers {
            print_return(&mut out, &mut job, answer)?;
        }

        if job.is_done() {
            break;
        }

        if started.elapsed() >= limit(args, known) {
            // The line is cleared before anything else is printed.
            out.status("")?;

            if !known {
                return Err(unknown(&jid).context(operation));
            }

            finish(&mut out, &mut client, &jid, &job)?;
            let message = format!(
                "timed out: {} returned within {} seconds",
                job.share(),
                args.timeout.as_secs()
            );
            return Err(Finding {
                exit: Exit::TempFail,
                message,
            }
            .into());
        }

        status(&mut out, &job, started.elapsed(), &step)?;
    }

    out.status("")?;
    finish(&mut out, &mut client, &jid, &job)?;

    match job.failed() {
        0 => Ok(()),
        failed => Err(finding(format!(
            "{failed} of {} minions failed",
            job.returned.len()
        ))),
    }
}

/// For how long to watch. An unknown job gets less time: its first entry may be on its way, or the id
/// is wrong.
fn limit(args: &Args, is_known: bool) -> Duration {
    if is_known {
        args.timeout
    } else {
        args.timeout.min(KNOWN_WITHIN)
    }
}

fn print_heading(out: &mut Output, jid: &str, update: &JobUpdate) -> anyhow::Result<()> {
    if out.format == Format::Table {
        let [fun, tgt] = [&update.fun, &update.tgt].map(joined);
        let on = if tgt.is_empty() {
            tgt
        } else {
            format!(" on {tgt}")
        };

        out.status("")?;
        out.line(&format!("job {jid} {fun}{on}"))?;
        out.flush()?;
    }
    Ok(())
}

/// A return and the totals so far, as a line of JSON.
#[derive(Serialize)]
struct WatchedReturn<'a> {
    #[serde(flatten)]
    answer: &'a NewReturn,
    returned: usize,
    expected: Option<usize>,
}

/// How the job ended, as JSON.
#[derive(Serialize)]
struct Watched<'a> {
    jid: &'a str,
    expected: Option<usize>,
    returned: usize,
    failed: usize,
    missing: &'a [String],
    unknown: &'a [UnknownReturn],
    ended: bool,
}

fn print_return(out: &mut Output, job: &mut JobState, answer: &NewReturn) -> anyhow::Result<()> {
    let minion = plain(&answer.minion);
    let failed = answer.failed;

    // The first return counts; `jobs show` lists the others.
    if job.returned.contains_key(&answer.minion) {
        return Ok(());
    }

    job.returned.insert(answer.minion.clone(), failed);
    match out.format {
        Format::Table => {
            // A terminal counts successful returns in its status line.
            if out.width.is_none() || failed {
                let mut marks = vec![if failed { "failed" } else { "ok" }.to_owned()];
                marks.extend(answer.retcode.map(|code| format!("retcode {code}")));
                marks.extend(answer.bus_only.then(|| match &answer.master {
                    Some(peer) => format!("from peer {}, not verified here", plain(peer)),
                    None => "seen on the bus only".to_owned(),
                }));

                let time = short_at(answer.time);
                let marks = marks.join(", ");

                out.status("")?;
                out.line(&format!("{time}  {:>9}  {minion}: {marks}", job.share()))?;
            }
        }
        Format::Jsonl => {
            // The totals so far, as the status line of a terminal shows them.
            out.json(&WatchedReturn {
                answer,
                returned: job.returned.len(),
                expected: job.expected.as_ref().map(BTreeSet::len),
            })?;
        }
        // One document, printed at the end.
        Format::Json => {}
    }

    Ok(out.flush()?)
}

/// Formats the result of a state or a runner's progress event, and prints it unless on a terminal.
fn step_line(out: &mut Output, step: &Step) -> anyhow::Result<String> {
    // The data of a Salt event. There is no type for it here.
    let data = &value(&step.data);
    // A state, else the progress of a runner, else whatever it sent.
    let text = match data.get("__id__").or_else(|| data.get("name")).map(leaf) {
        Some(id) => {
            let result = match data.get("result").and_then(Json::as_bool) {
                Some(true) => "ok",
                Some(false) => "failed",
                None => "would change",
            };
            format!("{id}: {result}")
        }
        None => leaf(data.get("message").unwrap_or(data)),
    };

    // Runners have no minion.
    let text = match &step.minion {
        Some(minion) => format!("{} {text}", plain(minion)),
        None => text,
    };

    // A terminal shows the latest step in its status line.
    if out.format == Format::Table && out.width.is_none() {
        out.line(&format!("{}             {text}", short_at(step.time)))?;
        out.flush()?;
    }

    Ok(text)
}

fn status(out: &mut Output, job: &JobState, since: Duration, step: &str) -> anyhow::Result<()> {
    if out.format != Format::Table || out.width.is_none() {
        return Ok(());
    }

    let awaited = job.awaited();
    let mut parts = vec![
        format!("{} returned", job.share()),
        format!("{} failed", job.failed()),
    ];
    parts.push(format!("{} s", since.as_secs()));
    // A step says more than the names of minions, and one line has no room for both.
    if !step.is_empty() {
        parts.push(step.to_owned());
    } else if !awaited.is_empty() {
        // More names do not fit a line.
        let some: Vec<&str> = awaited.into_iter().take(20).collect();
        parts.push(format!("waiting for {}", some.join(",")));
    }

    out.status(&parts.join("  "))?;
    Ok(())
}

fn finish(out: &mut Output, client: &mut Client, jid: &str, job: &JobState) -> anyhow::Result<()> {
    // As in `jobs show`: while a master is behind, its minions are not missing, because its
    // responses may still come.
    let args = MissingArgs {
        jid: Id(jid.to_owned()),
    };
    let without_answer = client
        .make::<calls::jobs::Missing>(&args)
        .context("list the missing minions")?;
    // Retention may have dropped the job meanwhile.
    let Awaited {
        missing, unknown, ..
    } = without_answer.unwrap_or_default();

    if out.format == Format::Table {
        out.line(&format!(
            "{} returned, {} failed",
            job.share(),
            job.failed()
        ))?;
        // The names are enough for another run with `salt -L`.
        let names: Vec<_> = missing.iter().map(|minion| plain(minion)).collect();
        if !names.is_empty() {
            out.line(&format!("missing: {}", names.join(",")))?;
        }
        for one in &unknown {
            out.line(&unknown_return(one))?;
        }
    } else {
        // The last line of JSON output says how the job ended.
        out.json(&Watched {
            jid,
            expected: job.expected.as_ref().map(BTreeSet::len),
            returned: job.returned.len(),
            failed: job.failed(),
            missing: &missing,
            unknown: &unknown,
            ended: job.is_done(),
        })?;
    }

    Ok(out.flush()?)
}
