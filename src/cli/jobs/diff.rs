//! `saltcellar jobs diff`: compares two runs of a job.

use anyhow::Context as _;
use rmpv::Value;
use serde_json::Value as Json;

use super::super::format::nested::{leaf, nested};
use super::super::format::output::{Format, Output};
use super::super::format::when::{iso_in, short};
use super::super::{Global, ask, finding};
use super::states::result;
use super::{arg, field, fun, list_of, returned, tgt};
use crate::wire::json::to_json;

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

/// Flags of `jobs diff`.
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
    let mut client = ask::connect(global)?;
    let (with, jid) = match args.jids.as_slice() {
        [earlier, later] => (Value::from(earlier.as_str()), later),
        [later, ..] => (Value::Nil, later),
        [] => return Ok(()),
    };
    let minion = args.minion.as_deref().map_or(Value::Nil, Value::from);
    let call_args = [("jid", Value::from(jid.as_str())), ("with", with), ("minion", minion)];
    let answer =
        ask::call_paged(&mut client, "job_diff", "minions", &call_args).context("compare the jobs")?;
    let mut found = to_json(&answer);
    for run in ["a", "b"] {
        if let Some(job) = found.get_mut(run) {
            iso_in(job);
        }
    }
    // `same` counts only the minions of the first page.
    if let Some(found) = found.as_object_mut() {
        found.remove("same");
    }
    let mut out = Output::new(global.output);
    match out.format {
        Format::Json => out.json(&found)?,
        Format::Jsonl => list_of(&found, "minions").iter().try_for_each(|one| out.json(one))?,
        Format::Table => table(&mut out, &found)?,
    }
    out.flush()?;
    let count = list_of(&found, "minions").len();
    if args.exit_code && count > 0 {
        return Err(finding(format!("the returns of {count} minions differ")));
    }
    Ok(())
}

fn table(out: &mut Output, found: &Json) -> anyhow::Result<()> {
    let nothing = Json::Null;
    for name in ["a", "b"] {
        let job = found.get(name).unwrap_or(&nothing);
        let time = job.get("time").map(short).unwrap_or_default();
        let what = [fun(job), arg(job), format!("on {}", tgt(job))].join(" ").replace("  ", " ");
        let came = format!("{} returned, {} failed", returned(job), field(job, "failed"));
        out.line(&format!("{name}  {}  {time} UTC  {what}: {came}", field(job, "jid")))?;
    }
    let minions = list_of(found, "minions");
    if minions.is_empty() {
        out.line("")?;
        out.line("no differences")?;
    }
    for one in minions {
        out.line("")?;
        let minion = field(one, "minion");
        let [a, b] = ["a", "b"].map(|name| one.get(name).unwrap_or(&nothing));
        match field(one, "what").as_str() {
            "appeared" => out.heading(&format!("{minion}: only in the later run ({})", outcome(b)))?,
            "went" => out.heading(&format!("{minion}: only in the earlier run ({})", outcome(a)))?,
            "result" => out.heading(&format!("{minion}: {} -> {}", outcome(a), outcome(b)))?,
            _ => out.heading(&format!("{minion}: different return"))?,
        }
        for state in list_of(one, "states") {
            state_lines(out, state)?;
        }
        if let (Some(a), Some(b)) = (a.get("return"), b.get("return")) {
            value_lines(out, a, b, 4)?;
        }
    }
    Ok(())
}

fn outcome(answer: &Json) -> String {
    let word =
        if answer.get("failed").and_then(Json::as_bool) == Some(true) { "failed" } else { "succeeded" };
    match answer.get("retcode").filter(|code| !code.is_null()) {
        Some(code) => format!("{word}, retcode {}", leaf(code)),
        None => word.to_owned(),
    }
}

fn state_lines(out: &mut Output, state: &Json) -> anyhow::Result<()> {
    let nothing = Json::Null;
    let [a, b] = ["a", "b"].map(|name| state.get(name).unwrap_or(&nothing));
    let one = if b.is_null() { a } else { b };
    let (id, function) = (field(one, "id"), field(one, "fun"));
    let head = if function.is_empty() { "states".to_owned() } else { format!("{id} ({function})") };
    let comment = |state: &Json| state.get("comment").map(|comment| nested(comment, 8)).unwrap_or_default();
    let changes = |state: &Json| state.get("changes").cloned().unwrap_or_default();
    match field(state, "what").as_str() {
        "appeared" => out.line(&format!("    + {head}: {}", result(b)))?,
        "went" => out.line(&format!("    - {head}: {}", result(a)))?,
        "result" => {
            out.line(&format!("    ! {head}: {} -> {}", result(a), result(b)))?;
            out.text(&comment(b))?;
        }
        _ => {
            out.line(&format!("    ~ {head}: {} -> {}", result(a), result(b)))?;
            value_lines(out, &changes(a), &changes(b), 8)?;
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
    let [a, b] = [a, b].map(|value| if is_nothing(value) { String::new() } else { nested(value, 0) });
    let [a, b]: [Vec<&str>; 2] = [a.lines().collect(), b.lines().collect()];
    for (mark, line) in changed_lines(&a, &b) {
        out.line(format!("{:indent$}{mark} {line}", "").trim_end())?;
    }
    Ok(())
}

/// The lines that differ, in order, by longest common subsequence.
fn changed_lines<'a>(a: &[&'a str], b: &[&'a str]) -> Vec<(char, &'a str)> {
    let begin = a.iter().zip(b).take_while(|(a, b)| a == b).count();
    let (a, b) = (a.get(begin..).unwrap_or_default(), b.get(begin..).unwrap_or_default());
    let end = a.iter().rev().zip(b.iter().rev()).take_while(|(a, b)| a == b).count();
    let a = a.get(..a.len() - end).unwrap_or_default();
    let b = b.get(..b.len() - end).unwrap_or_default();
    let all = |mark, lines: &[&'a str]| lines.iter().map(|line| (mark, *line)).collect::<Vec<_>>();
    if a.len().max(b.len()) > LINES_MAX {
        return [all('-', a), all('+', b)].concat();
    }
    // `common[i * width + j]` is the length of the longest common subsequence of `a[i..]` and `b[j..]`.
    let width = b.len() + 1;
    let mut common = vec![0_u32; (a.len() + 1) * width];
    let at = |common: &[u32], i: usize, j: usize| common.get(i * width + j).copied().unwrap_or(0);
    for (i, one) in a.iter().enumerate().rev() {
        for (j, other) in b.iter().enumerate().rev() {
            let length = if one == other {
                at(&common, i + 1, j + 1) + 1
            } else {
                at(&common, i + 1, j).max(at(&common, i, j + 1))
            };
            if let Some(cell) = common.get_mut(i * width + j) {
                *cell = length;
            }
        }
    }
    let (mut i, mut j) = (0, 0);
    let mut changed = Vec::new();
    while let (Some(one), Some(other)) = (a.get(i), b.get(j)) {
        if one == other {
            (i, j) = (i + 1, j + 1);
        } else if at(&common, i + 1, j) >= at(&common, i, j + 1) {
            changed.push(('-', *one));
            i += 1;
        } else {
            changed.push(('+', *other));
            j += 1;
        }
    }
    changed.extend(all('-', a.get(i..).unwrap_or_default()));
    changed.extend(all('+', b.get(j..).unwrap_or_default()));
    changed
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn different_lines_keep_their_order() {
        let lines = |a: &str, b: &str| {
            let (a, b): (Vec<_>, Vec<_>) = (a.split(' ').collect(), b.split(' ').collect());
            changed_lines(&a, &b)
                .into_iter()
                .map(|(mark, line)| format!("{mark}{line}"))
                .collect::<Vec<_>>()
                .join(" ")
        };
        assert_eq!(lines("a b c d", "a b c d"), "");
        assert_eq!(lines("a b c d", "a x c d e"), "-b +x +e");
        assert_eq!(lines("a b c", "c a b"), "+c -c");
        assert_eq!(lines("x", "y"), "-x +y");
    }
}
