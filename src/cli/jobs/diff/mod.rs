//! `saltcellar jobs diff`: compares two runs of a job.

use anyhow::Context as _;
use salt_sls::Glob;
use serde_json::Value as Json;
use similar::{Algorithm, ChangeTag, capture_diff_slices};

use super::job_id;
use super::job_rows::{arg, returned};
use super::states::result;
use crate::api::call as calls;
use crate::api::call::jobs::DiffArgs;
use crate::api::call::jobs::answers::{JobDiff, MinionDiff, RunOutcome, State, StateDiff};
use crate::api::query::DiffKind;
use crate::cli::{
    Global, Line, Output, Tone, ask, finding, joined, line_of, nested, plain, short_at_in_zone,
    show_rows, value,
};
use crate::wire::call::Id;

const EXAMPLES: &str = "\
With one JID, compares it with the previous run: same function, arguments, target and user. Durations and times of day \
are ignored. Marks in front of states: + only in the later run, - only in the earlier run, ! different result, ~ \
different changes.

Examples:
  saltcellar jobs diff 20261121054728123456
  saltcellar jobs diff 20261120054728123456 20261121054728123456 --minion 'web*'
  saltcellar jobs diff 20261121054728123456 --exit-code > /dev/null || echo 'differs from yesterday'";

/// Longer strings are not compared line by line: all lines of both count as different.
const LINES_MAX: usize = 1_000;

#[derive(clap::Args)]
#[command(after_long_help = EXAMPLES)]
pub(in crate::cli) struct Args {
    /// The earlier and the later run, or only the later one
    #[arg(required = true, num_args = 1..=2, value_name = "JID")]
    jids: Vec<String>,
    /// Only minions that match this glob
    #[arg(long, value_name = "GLOB")]
    minion: Option<String>,
    /// Exit with 1 if the runs differ
    #[arg(long)]
    exit_code: bool,
}

ask::paged! {
    calls::jobs::Diff: MinionDiff, in minions, after String, in page.after,
    joined by |before, page| page.same += before.same
}

pub(super) fn run(global: &Global, args: &Args) -> anyhow::Result<()> {
    // Without an earlier run the daemon finds the previous run of the same job.
    let (with, jid) = match args.jids.as_slice() {
        [earlier, later] => (Some(earlier), later.as_str()),
        // The command line requires one.
        jids => (None, jids.first().map(String::as_str).unwrap_or_default()),
    };

    let mut client = ask::connect(global)?;
    let jid = job_id::whole(&mut client, jid)?;
    let with = with
        .map(|jid| job_id::whole(&mut client, jid))
        .transpose()?;

    let mut call = DiffArgs {
        jid: Id(jid),
        with: with.map(Id),
        ..DiffArgs::default()
    };
    call.page.minion = args.minion.clone().map(Glob::from);

    let found = ask::whole::<calls::jobs::Diff>(&mut client, call).context("compare the jobs")?;

    show_rows(global.output, &found, &found.minions, |out| {
        table(out, &found)
    })?;

    let count = found.minions.len();
    if args.exit_code && count > 0 {
        return Err(finding(format!("the returns of {count} minions differ")));
    }
    Ok(())
}

fn table(out: &mut Output, found: &JobDiff) -> anyhow::Result<()> {
    for (name, job) in [("a", &found.a), ("b", &found.b)] {
        let what = [
            joined(&job.fun),
            arg(job),
            format!("on {}", joined(&job.tgt)),
        ]
        .join(" ")
        // Jobs without arguments leave two spaces.
        .replace("  ", " ");

        let came = format!("{} returned, {} failed", returned(job), job.failed);
        let time = short_at_in_zone(job.time);

        out.line(&format!(
            "{name}  {}  {time}  {what}: {came}",
            plain(&job.jid)
        ))?;
    }

    if found.minions.is_empty() {
        // Nothing at all could be taken for a failure.
        out.line("")?;
        out.line("no differences")?;
    }

    for one in &found.minions {
        out.line("")?;

        let minion = plain(&one.minion);
        let [a, b] = [&one.a, &one.b].map(|run| outcome(run.as_ref()));
        match one.what {
            DiffKind::Added => out.heading(&format!("{minion}: only in the later run ({b})"))?,
            DiffKind::Removed => {
                out.heading(&format!("{minion}: only in the earlier run ({a})"))?;
            }
            DiffKind::Result => out.styled(&from_to(Tone::Title, format!("{minion}: "), &a, &b))?,
            DiffKind::Value => out.heading(&format!("{minion}: different return"))?,
        }

        one.states
            .iter()
            .try_for_each(|state| state_lines(out, state))?;

        // Returns without states are compared line by line.
        if let (Some(a), Some(b)) = (&one.a, &one.b)
            && one.states.is_empty()
        {
            value_lines(out, &value(&a.value), &value(&b.value), 4)?;
        }
    }
    Ok(())
}

/// `head` and two results, each in its colour.
fn from_to(tone: Tone, head: String, a: &str, b: &str) -> Line {
    Line::new(tone, head)
        .and(Tone::of_word(a), a)
        .and(Tone::Plain, " -> ")
        .and(Tone::of_word(b), b)
}

fn outcome(run: Option<&RunOutcome>) -> String {
    let Some(run) = run else {
        return String::new();
    };

    let word = if run.failed { "failed" } else { "succeeded" };
    if run.retcode.is_none() {
        word.to_owned()
    } else {
        format!("{word}, retcode {}", line_of(&run.retcode))
    }
}

fn state_lines(out: &mut Output, state: &StateDiff) -> anyhow::Result<()> {
    let [a, b] = [&state.a, &state.b].map(Option::as_ref);
    // The later run's names, unless the state is only in the earlier run.
    let Some(one) = b.or(a) else { return Ok(()) };

    let head = if one.fun.is_empty() {
        "states".to_owned()
    } else {
        format!("{} ({})", plain(&one.id), plain(&one.fun))
    };

    let changes = |state: Option<&State>| state.map_or(Json::Null, |state| value(&state.changes));
    match state.what {
        DiffKind::Added => {
            let line = Line::from(format!("    + {head}: "));
            out.styled(&line.and(Tone::of_word(result(b)), result(b)))?;
        }
        DiffKind::Removed => {
            let line = Line::from(format!("    - {head}: "));
            out.styled(&line.and(Tone::of_word(result(a)), result(a)))?;
        }
        DiffKind::Result => {
            let head = format!("    ! {head}: ");
            out.styled(&from_to(Tone::Plain, head, result(a), result(b)))?;
            // The comment says why the result of a state is another.
            if let Some(b) = b {
                out.text(&nested(&value(&b.comment), 8))?;
            }
        }
        DiffKind::Value => {
            // The same result, so the changes differ.
            let head = format!("    ~ {head}: ");
            out.styled(&from_to(Tone::Plain, head, result(a), result(b)))?;
            value_lines(out, &changes(a), &changes(b), 8)?;
        }
    }
    Ok(())
}

/// Prints the lines that only one of the values contains.
fn value_lines(out: &mut Output, a: &Json, b: &Json, indent: usize) -> anyhow::Result<()> {
    // An empty value has no lines.
    let is_nothing = |value: &Json| match value {
        Json::Null => true,
        Json::Object(object) => object.is_empty(),
        Json::Array(items) => items.is_empty(),
        _ => false,
    };

    // Compared as they are printed, because the result is shown as lines.
    let [a, b] = [a, b].map(|value| {
        if is_nothing(value) {
            String::new()
        } else {
            nested(value, 0)
        }
    });

    let [a, b]: [Vec<&str>; 2] = [a.lines().collect(), b.lines().collect()];

    for (mark, line) in changed_lines(&a, &b) {
        let tone = if mark == '+' { Tone::Good } else { Tone::Bad };
        let text = format!("{:indent$}{mark} {line}", "");
        out.styled(&Line::new(tone, text.trim_end()))?;
    }
    Ok(())
}

fn changed_lines<'a>(a: &[&'a str], b: &[&'a str]) -> Vec<(char, &'a str)> {
    // The algorithm takes quadratic time for strings with nothing in common.
    if a.len().max(b.len()) > LINES_MAX {
        let all =
            |mark, lines: &[&'a str]| lines.iter().map(|line| (mark, *line)).collect::<Vec<_>>();
        return [all('-', a), all('+', b)].concat();
    }

    let ops = capture_diff_slices(Algorithm::Myers, a, b);

    let changes = ops.iter().flat_map(|op| op.iter_changes(a, b));
    let changed = changes.filter_map(|change| match change.tag() {
        ChangeTag::Delete => Some(('-', change.value())),
        ChangeTag::Insert => Some(('+', change.value())),
        ChangeTag::Equal => None,
    });
    changed.collect()
}

#[cfg(test)]
mod tests;
