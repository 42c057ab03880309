//! `saltcellar jobs diff`: compares two runs of a job.

use anyhow::Context as _;
use serde_json::{Value as Json, json};
use similar::{Algorithm, ChangeTag, capture_diff_slices};

use super::states::result;
use super::{arg, returned};
use crate::cli::{Fields as _, Global, Output, ask, finding, nested, short_in_zone, show_rows};

const EXAMPLES: &str = "\
With one JID, compares it with the previous run: same function, arguments, target and user. Durations and times of day \
are ignored. Marks in front of states: + only in the later run, - only in the earlier run, ! different result, ~ \
different changes.

Examples:
  saltcellar jobs diff 20261121054728123456
  saltcellar jobs diff 20261120054728123456 20261121054728123456 --minion 'web*'
  saltcellar jobs diff 20261121054728123456 --exit-code > /dev/null || echo 'differs from yesterday'";

/// Longer texts are not compared line by line: all lines of both count as different.
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

pub(super) fn run(global: &Global, args: &Args) -> anyhow::Result<()> {
    let [with, jid] = match args.jids.as_slice() {
        [earlier, later] => [Some(earlier), Some(later)],
        jids => [None, jids.first()],
    };

    let call_args = json!({ "jid": jid, "with": with, "minion": args.minion });
    let mut client = ask::connect(global)?;
    let mut found = ask::call_paged(&mut client, "job_diff", "minions", call_args)
        .context("compare the jobs")?;

    // `same` counts only the minions of the first page.
    if let Some(found) = found.as_object_mut() {
        found.shift_remove("same");
    }

    show_rows(global.output, &found, "minions", |out| table(out, &found))?;

    let count = found.list("minions").len();
    if args.exit_code && count > 0 {
        return Err(finding(format!("the returns of {count} minions differ")));
    }
    Ok(())
}

fn table(out: &mut Output, found: &Json) -> anyhow::Result<()> {
    for name in ["a", "b"] {
        let job = found.of(name);
        let what = [
            job.joined("fun"),
            arg(job),
            format!("on {}", job.joined("tgt")),
        ]
        .join(" ")
        // Jobs without arguments leave two spaces.
        .replace("  ", " ");

        let came = format!("{} returned, {} failed", returned(job), job.leaf("failed"));
        let time = short_in_zone(job.of("time"));

        out.line(&format!(
            "{name}  {}  {time}  {what}: {came}",
            job.leaf("jid")
        ))?;
    }

    if found.list("minions").is_empty() {
        // Nothing at all could be taken for a failure.
        out.line("")?;
        out.line("no differences")?;
    }

    for one in found.list("minions") {
        out.line("")?;

        let minion = one.leaf("minion");
        let [a, b] = ["a", "b"].map(|name| one.of(name));
        // The kinds that the daemon distinguishes; anything else differs in the return only.
        match one.text("what") {
            "appeared" => {
                out.heading(&format!("{minion}: only in the later run ({})", outcome(b)))?;
            }
            "went" => out.heading(&format!(
                "{minion}: only in the earlier run ({})",
                outcome(a)
            ))?,
            "result" => out.heading(&format!("{minion}: {} -> {}", outcome(a), outcome(b)))?,
            _ => out.heading(&format!("{minion}: different return"))?,
        }

        one.list("states")
            .iter()
            .try_for_each(|state| state_lines(out, state))?;

        // Returns without states are compared as text.
        if let (Some(a), Some(b)) = (a.get("return"), b.get("return")) {
            value_lines(out, a, b, 4)?;
        }
    }
    Ok(())
}

fn outcome(answer: &Json) -> String {
    let word = if answer.is("failed") {
        "failed"
    } else {
        "succeeded"
    };

    match answer.of("retcode") {
        Json::Null => word.to_owned(),
        _ => format!("{word}, retcode {}", answer.leaf("retcode")),
    }
}

fn state_lines(out: &mut Output, state: &Json) -> anyhow::Result<()> {
    let [a, b] = ["a", "b"].map(|name| state.of(name));
    // The later run's names, unless the state is only in the earlier run.
    let one = if b.is_null() { a } else { b };
    let (id, function) = (one.leaf("id"), one.leaf("fun"));

    let head = if function.is_empty() {
        "states".to_owned()
    } else {
        format!("{id} ({function})")
    };

    match state.text("what") {
        "appeared" => out.line(&format!("    + {head}: {}", result(b)))?,
        "went" => out.line(&format!("    - {head}: {}", result(a)))?,
        "result" => {
            out.line(&format!("    ! {head}: {} -> {}", result(a), result(b)))?;
            // The comment says why a state has another result.
            out.text(
                &b.get("comment")
                    .map(|comment| nested(comment, 8))
                    .unwrap_or_default(),
            )?;
        }
        _ => {
            // The same result, so the changes differ.
            out.line(&format!("    ~ {head}: {} -> {}", result(a), result(b)))?;
            value_lines(out, a.of("changes"), b.of("changes"), 8)?;
        }
    }
    Ok(())
}

/// Prints the lines that only one of the values has.
fn value_lines(out: &mut Output, a: &Json, b: &Json, indent: usize) -> anyhow::Result<()> {
    // An empty value has no lines.
    let is_nothing = |value: &Json| match value {
        Json::Null => true,
        Json::Object(object) => object.is_empty(),
        Json::Array(items) => items.is_empty(),
        _ => false,
    };

    let [a, b] = [a, b].map(|value| {
        if is_nothing(value) {
            String::new()
        } else {
            nested(value, 0)
        }
    });

    let [a, b]: [Vec<&str>; 2] = [a.lines().collect(), b.lines().collect()];

    for (mark, line) in changed_lines(&a, &b) {
        out.line(format!("{:indent$}{mark} {line}", "").trim_end())?;
    }
    Ok(())
}

fn changed_lines<'a>(a: &[&'a str], b: &[&'a str]) -> Vec<(char, &'a str)> {
    // The algorithm takes quadratic time for texts with nothing in common.
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
