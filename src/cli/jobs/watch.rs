//! `saltcellar jobs watch`: a job as it goes on.
//!
//! The daemon follows the log and answers when something of the job has come; nothing is read twice.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use rmpv::Value;
use serde_json::{Value as Json, json};

use super::super::nested::leaf;
use super::super::output::{Format, Output, plain};
use super::super::when::{iso_in, short};
use super::super::{Global, ask};
use super::{field, list_of, tgt, unknown};

const EXAMPLES: &str = "\
Ends once everybody has answered whom the master expected, or a runner has ended. On a terminal one line tells how far it \
is, and those that failed stay above it; elsewhere each answer is a line. With state_events in the master's \
configuration, states are told as they run.

Exit codes: 0 all answered and nobody failed, 1 somebody failed, 75 not all had answered when the time was over.

Examples:
  saltcellar jobs watch 20261121054728123456
  saltcellar jobs watch \"$(salt --async '*' state.apply | grep -o '[0-9]\\{20\\}')\" --timeout 30m
  saltcellar jobs watch 20261121054728123456 --output jsonl";

/// How long a job may be unknown before that is said.
const KNOWN_WITHIN: Duration = Duration::from_secs(5);
/// How long one call waits: so often it is seen that the daemon is there.
const ONE_WAIT: Duration = Duration::from_secs(10);
/// How often the line on a terminal is drawn while nothing comes: it shows the seconds.
const REDRAW: Duration = Duration::from_secs(1);

/// How long to pause before asking again, if the daemon did not wait.
const PAUSE: Duration = Duration::from_millis(300);

/// Flags of `jobs watch`.
#[derive(clap::Args)]
#[command(after_long_help = EXAMPLES)]
pub(in crate::cli) struct Args {
    /// The job's id
    jid: String,
    /// Give up after this long: 30s, 10m, 2h
    #[arg(long, value_name = "TIME", default_value = "10m", value_parser = patience)]
    timeout: Duration,
}

fn patience(text: &str) -> Result<Duration, String> {
    let seconds = super::super::when::ago_s(text).and_then(|seconds| u64::try_from(seconds).ok());
    seconds.map(Duration::from_secs).ok_or_else(|| "give 30s, 10m, 2h or 1d".to_owned())
}

/// The time was over before everybody had answered.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(in crate::cli) struct Unfinished(String);

/// What is known of the job.
#[derive(Default)]
struct Tally {
    expected: Option<BTreeSet<String>>,
    /// Who answered, and whether that failed.
    answered: BTreeMap<String, bool>,
    ended: bool,
}

impl Tally {
    fn failed(&self) -> usize {
        self.answered.values().filter(|failed| **failed).count()
    }

    fn missing(&self) -> Vec<&str> {
        let asked = self.expected.iter().flatten();
        asked.filter(|id| !self.answered.contains_key(*id)).map(String::as_str).collect()
    }

    fn is_done(&self) -> bool {
        self.ended || self.expected.is_some() && self.missing().is_empty()
    }

    fn share(&self) -> String {
        match &self.expected {
            Some(expected) => format!("{}/{}", self.answered.len(), expected.len()),
            None => self.answered.len().to_string(),
        }
    }
}

pub(super) fn run(global: &Global, args: &Args) -> anyhow::Result<()> {
    let asking = "watch the job";
    let mut client = ask::connect(global)?;
    let mut out = Output::new(global.output);
    let begun = Instant::now();
    let mut tally = Tally::default();
    let (mut known, mut from, mut step) = (false, 0, String::new());
    loop {
        let most = if known { args.timeout } else { args.timeout.min(KNOWN_WITHIN) };
        let left = most.saturating_sub(begun.elapsed());
        let wait = left.min(if out.width.is_some() { REDRAW } else { ONE_WAIT });
        let pairs = [
            ("jid", Value::from(args.jid.as_str())),
            ("from", Value::from(from)),
            ("wait_ms", Value::from(u64::try_from(wait.as_millis()).unwrap_or(0))),
        ];
        let asked = Instant::now();
        let news = ask::call(&mut client, "job_watch", pairs).context(asking)?;
        // Where too many wait already nobody is made to, and asks again after a while.
        let is_news = ["answers", "steps"].iter().any(|name| !list_of(&news, name).is_empty());
        if !is_news && asked.elapsed() < PAUSE.min(wait) {
            std::thread::sleep(PAUSE);
        }
        from = news.get("next").and_then(Json::as_u64).unwrap_or(from);
        if news.get("known").and_then(Json::as_bool) == Some(true) && !known {
            known = true;
            begin(&mut out, &args.jid, &news)?;
        }
        if let Some(minions) = news.get("minions").and_then(Json::as_array) {
            let expected = tally.expected.get_or_insert_default();
            expected.extend(minions.iter().map(leaf));
        }
        tally.ended |= news.get("ended").and_then(Json::as_bool) == Some(true);
        for one in list_of(&news, "steps") {
            step = step_line(&mut out, one)?;
        }
        let mut answers = list_of(&news, "answers").to_vec();
        answers.sort_by_key(|answer| answer.get("seq").and_then(Json::as_u64));
        for answer in answers {
            answered(&mut out, &mut tally, answer)?;
        }
        if tally.is_done() {
            break;
        }
        if begun.elapsed() >= most {
            out.status("")?;
            if !known {
                return Err(unknown(&args.jid).context(asking));
            }
            finish(&mut out, &args.jid, &tally)?;
            let words = format!(
                "{asking} to its end: {} answered within {} seconds",
                tally.share(),
                args.timeout.as_secs()
            );
            return Err(Unfinished(words).into());
        }
        status(&mut out, &tally, begun.elapsed(), &step)?;
    }
    out.status("")?;
    finish(&mut out, &args.jid, &tally)?;
    match tally.failed() {
        0 => Ok(()),
        failed => anyhow::bail!("{asking} succeed: {failed} of {} failed", tally.answered.len()),
    }
}

fn begin(out: &mut Output, jid: &str, news: &Json) -> anyhow::Result<()> {
    if out.format == Format::Table {
        let fun = super::fun(news);
        let tgt = tgt(news);
        let on = if tgt.is_empty() { String::new() } else { format!(" on {tgt}") };
        out.status("")?;
        out.line(&plain(&format!("job {jid} {fun}{on}")))?;
        out.flush()?;
    }
    Ok(())
}

fn answered(out: &mut Output, tally: &mut Tally, mut answer: Json) -> anyhow::Result<()> {
    let minion = field(&answer, "minion");
    let failed = answer.get("failed").and_then(Json::as_bool) == Some(true);
    // The first answer counts; the daemon shows the others in `jobs show`.
    if tally.answered.contains_key(&minion) {
        return Ok(());
    }
    tally.answered.insert(minion.clone(), failed);
    iso_in(&mut answer);
    let code = answer.get("retcode").map(|code| format!("retcode {}", leaf(code)));
    let bus_only = answer.get("bus_only").and_then(Json::as_bool) == Some(true);
    let bus_only = bus_only.then(|| "seen on the bus only".to_owned());
    let word = if failed { "failed" } else { "ok" };
    match out.format {
        Format::Table => {
            if out.width.is_none() || failed {
                let time = answer.get("time").map(short).unwrap_or_default();
                let marks =
                    [word.to_owned()].into_iter().chain(code).chain(bus_only).collect::<Vec<_>>().join(", ");
                out.status("")?;
                out.line(&format!("{time}  {:>9}  {minion}: {marks}", tally.share()))?;
            }
        }
        Format::Jsonl => {
            if let Some(answer) = answer.as_object_mut() {
                answer.insert("returned".to_owned(), json!(tally.answered.len()));
                answer.insert("expected".to_owned(), json!(tally.expected.as_ref().map(BTreeSet::len)));
            }
            out.json(&answer)?;
        }
        Format::Json => {}
    }
    out.flush()?;
    Ok(())
}

/// Tells a state that ran, or what a runner reports, in a line; gives it in short.
fn step_line(out: &mut Output, step: &Json) -> anyhow::Result<String> {
    let nothing = Json::Null;
    let data = step.get("data").unwrap_or(&nothing);
    let id = data.get("__id__").or_else(|| data.get("name")).map(leaf);
    let words = match id {
        Some(id) => {
            let result = match data.get("result").and_then(Json::as_bool) {
                Some(true) => "ok",
                Some(false) => "failed",
                None => "would change",
            };
            format!("{id}: {result}")
        }
        None => data.get("message").map_or_else(|| leaf(data), leaf),
    };
    let who = field(step, "minion");
    let words = if who.is_empty() { words } else { format!("{who} {words}") };
    if out.format == Format::Table && out.width.is_none() {
        let mut step = step.clone();
        iso_in(&mut step);
        let time = step.get("time").map(short).unwrap_or_default();
        out.line(&format!("{time}             {words}"))?;
        out.flush()?;
    }
    Ok(words)
}

fn status(out: &mut Output, tally: &Tally, since: Duration, step: &str) -> anyhow::Result<()> {
    if out.format != Format::Table || out.width.is_none() {
        return Ok(());
    }
    let missing = tally.missing();
    let mut words = vec![format!("{} answered", tally.share()), format!("{} failed", tally.failed())];
    words.push(format!("{} s", since.as_secs()));
    if !step.is_empty() {
        words.push(step.to_owned());
    } else if !missing.is_empty() {
        let some: Vec<&str> = missing.into_iter().take(20).collect();
        words.push(format!("waiting for {}", some.join(",")));
    }
    out.status(&plain(&words.join("  ")))?;
    Ok(())
}

fn finish(out: &mut Output, jid: &str, tally: &Tally) -> anyhow::Result<()> {
    let missing = tally.missing();
    if out.format == Format::Table {
        out.line(&format!("{} answered, {} failed", tally.share(), tally.failed()))?;
        if !missing.is_empty() {
            out.line(&plain(&format!("missing: {}", missing.join(","))))?;
        }
    } else {
        out.json(&json!({
            "jid": jid,
            "expected": tally.expected.as_ref().map(BTreeSet::len),
            "returned": tally.answered.len(),
            "failed": tally.failed(),
            "missing": missing,
            "ended": tally.is_done(),
        }))?;
    }
    Ok(out.flush()?)
}
