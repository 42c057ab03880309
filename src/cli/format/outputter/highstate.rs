//! Salt's `highstate` outputter with its default options: `salt/output/highstate.py`.

use std::fmt::Write as _;

use rmpv::Value;

use super::colours::Colours;
use super::escape::{block, clean, line};
use super::nested::nested;
use super::python;

/// Line width of warnings, and their indent.
const WRAP: usize = 80;
const DEEP: usize = 14;
/// Width of the longest label in the summary.
const LABEL: usize = "Succeeded".len();

/// Formats returns by minion. Like Salt, falls back to `nested` for returns without states.
pub(in crate::cli) fn highstate(returns: &Value, colours: Colours) -> String {
    let text = output(returns, 1, colours).unwrap_or_else(|| nested(returns, 0, colours, false));
    text.trim_end().to_owned()
}

/// Renumbers the states of each minion, the slowest first: they are formatted by their numbers.
pub(in crate::cli) fn slowest_first(returns: &mut Value) {
    let Value::Map(hosts) = returns else { return };

    for (_, states) in hosts {
        let Value::Map(states) = states else { continue };

        let took = |state: &Value| get(state, "duration").and_then(milliseconds).unwrap_or(0.0);
        // The states keep their places and only their numbers change, because the formatting sorts
        // by them.
        let mut slowest: Vec<(usize, f64)> = states
            .iter()
            .map(|(_, state)| took(state))
            .enumerate()
            .collect();
        slowest.sort_by(|(_, a), (_, b)| b.total_cmp(a));

        for (place, (at, _)) in slowest.into_iter().enumerate() {
            let number = states
                .get_mut(at)
                .and_then(|(_, state)| match state {
                    Value::Map(fields) => Some(fields),
                    _ => None,
                })
                .and_then(|fields| {
                    fields
                        .iter_mut()
                        .find(|(name, _)| name.as_str() == Some("__run_num__"))
                });
            if let Some((_, number)) = number {
                *number = Value::from(place as u64);
            }
        }
    }
}

fn get<'a>(map: &'a Value, key: &str) -> Option<&'a Value> {
    map.as_map()?
        .iter()
        .find(|(name, _)| name.as_str() == Some(key))
        .map(|(_, value)| value)
}

/// `None` for returns without states.
fn output(data: &Value, level: usize, colours: Colours) -> Option<String> {
    // The layers around the states of an event or a runner, as in Salt's `output`.
    let mut data = get(data, "return").unwrap_or(data);
    data = get(data, "data").unwrap_or(data);

    // The final event of a runner, instead of a minion's return.
    if let Some([(_, only)]) = data.as_map().map(Vec::as_slice)
        && get(only, "jid").is_some()
        && get(only, "fun").is_some()
    {
        data = get(only, "return")
            .and_then(|value| get(value, "data"))
            .unwrap_or(data);
    }

    match data {
        Value::Integer(_) | Value::Boolean(_) | Value::String(_) | Value::Nil => {
            Some(clean(&python::text(data)))
        }
        Value::Map(hosts) => {
            // An orchestration is shown under the id of the master, with its `retcode`.
            let master = |key: &Value| key.as_str().is_some_and(|key| key.ends_with("_master"));
            let of_master = hosts.iter().filter(|(key, _)| master(key)).count() == 1;
            // Next to the results of a runner, `retcode` is no host.
            let is_host = |key: &Value| !(of_master && key.as_str() == Some("retcode"));

            let hosts = hosts.iter().filter(|(key, _)| is_host(key));

            let shown: Option<Vec<_>> = hosts
                .map(|(host, data)| Some(format_host(host, data, level, colours)?.0))
                .collect();

            Some(shown?.join("\n"))
        }
        _ => None,
    }
}

#[derive(Default)]
struct Counts {
    succeeded: usize,
    failed: usize,
    not_run: usize,
    other: usize,
    warnings: usize,
    changed: usize,
    durations: f64,
    longest_parallel: f64,
}

/// Formats one minion's return, and returns whether it changed anything.
fn format_host(
    host: &Value,
    data: &Value,
    level: usize,
    colours: Colours,
) -> Option<(String, bool)> {
    let end = colours.end();
    let host = line(&python::text(host));
    let mut colour = colours.green();
    let mut lines = Vec::new();
    let mut counts = Counts::default();

    match data {
        Value::Integer(_) | Value::Boolean(_) => {
            // Salt counts a bare value as a change, and colours it so.
            counts.changed = 1;
            lines.push(format!("{colour}    {}{end}", python::repr(data)));
            colour = colours.cyan();
        }
        Value::String(_) => {
            counts.changed = 1;
            let text = python::text(data);
            lines.extend(
                python::lines(&text)
                    .iter()
                    .map(|line| format!("{colour}    {}{end}", clean(line))),
            );
            colour = colours.cyan();
        }
        // A list instead of states contains the reasons why they did not compile.
        Value::Array(errors) => {
            colour = colours.light_red();
            lines.push(format!("    {colour}Data failed to compile:{end}"));
            for error in errors {
                lines.push(format!(
                    "{colour}----------\n    {}{end}",
                    block(&python::text(error), 4)
                ));
            }
        }
        Value::Map(states) => {
            for (key, state) in states {
                // States without a number were not recorded in order. Salt warns before anything
                // else.
                let lost = state.as_map().is_some_and(|state| !state.is_empty());
                if lost && key.as_str() != Some("changes") && get(state, "__run_num__").is_none() {
                    lines.insert(0, line(&sorted_repr(state)));
                    lines.insert(0, LOST.to_owned());
                }
            }

            let mut states: Vec<_> = states
                .iter()
                .filter(|(_, state)| get(state, "result").is_some())
                .collect();

            // In the order in which they ran.
            states.sort_by_key(|(_, state)| {
                get(state, "__run_num__")
                    .and_then(Value::as_i64)
                    .unwrap_or(0)
            });

            for (key, state) in states {
                colour = format_state(
                    &mut lines,
                    &mut counts,
                    (key.as_str()?, state),
                    level,
                    colours,
                    colour,
                )?;
            }

            summary(&mut lines, &counts, &host, colours);
        }
        _ => {}
    }

    lines.insert(0, format!("{colour}{host}:{end}"));
    Some((lines.join("\n"), counts.changed > 0))
}

const LOST: &str = "The State execution failed to record the order in which all states were executed. The state return \
                    missing data is:";

/// `pprint.pformat` of a short value.
fn sorted_repr(value: &Value) -> String {
    let Value::Map(pairs) = value else {
        return python::repr(value);
    };

    let mut pairs: Vec<_> = pairs
        .iter()
        .map(|(key, value)| (python::repr(key), sorted_repr(value)))
        .collect();

    pairs.sort();
    let pairs = pairs
        .into_iter()
        .map(|(key, value)| format!("{key}: {value}"));
    format!("{{{}}}", pairs.collect::<Vec<_>>().join(", "))
}

/// Formats one state and returns the colour of the minion's heading.
fn format_state(
    lines: &mut Vec<String>,
    counts: &mut Counts,
    (key, state): (&str, &Value),
    level: usize,
    colours: Colours,
    mut heading: &'static str,
) -> Option<&'static str> {
    let end = colours.end();
    let result = get(state, "result")?;

    match result {
        Value::Boolean(true) => counts.succeeded += 1,
        Value::Boolean(false) => counts.failed += 1,
        Value::Nil => counts.not_run += 1,
        _ => counts.other += 1,
    }

    let duration = get(state, "duration");
    let took = duration.and_then(milliseconds).unwrap_or(0.0);
    // Parallel states overlap, so only the longest one counts for the run time.
    if get(state, "__parallel__").is_some() {
        counts.longest_parallel = counts.longest_parallel.max(took);
    } else {
        counts.durations += took;
    }

    let name = get(state, "name")
        .and_then(Value::as_str)
        .unwrap_or_default();

    let changes = get(state, "changes")?;

    let (changed, change_text) = if matches!(name, "state.orch" | "state.orchestrate" | "state.sls")
    {
        // The changes of an orchestration are returns of its own jobs.
        let inner = format!("\n{}", output(changes, level + 1, colours)?);

        let pad = " ".repeat(DEEP * level);
        (
            true,
            inner
                .split('\n')
                .map(|line| format!("{pad}{line}"))
                .collect::<Vec<_>>()
                .join("\n"),
        )
    } else {
        format_changes(changes, colours)?
    };

    counts.changed += usize::from(changed);

    let mut colour = if changed {
        colours.cyan()
    } else {
        colours.green()
    };

    // A result outweighs the changes. As in Salt the last such state colours the heading, even
    // yellow after red.
    match result {
        Value::Boolean(false) => (colour, heading) = (colours.red(), colours.red()),
        Value::Nil => (colour, heading) = (colours.light_yellow(), colours.light_yellow()),
        _ => {}
    }

    let parts: Vec<_> = key.split("_|-").collect();
    // A key in another form is not from a state: the caller falls back to `nested`.
    let [module, id, about, function, ..] = parts.as_slice() else {
        return None;
    };

    lines.push(format!("{colour}----------{end}"));
    let mut put = |label: &str, text: &str| lines.push(format!("    {colour}{label}: {text}{end}"));

    let shown = |text: &str| block(text, DEEP);
    let mut comment = shown(python::text(get(state, "comment")?).trim());

    match get(state, "data") {
        Some(Value::Array(items)) => {
            for item in items {
                comment.extend([" ", &shown(&python::text(item))]);
            }
        }
        Some(Value::Map(pairs)) => {
            // Salt lists such data below the comment.
            for (key, value) in pairs {
                let _ = write!(
                    comment,
                    "\n\t\t{}: {}",
                    shown(&python::text(key)),
                    shown(&python::text(value))
                );
            }
        }
        Some(other) => comment.extend([" ", &shown(&python::text(other))]),
        None => {}
    }

    put("      ID", &shown(id));
    put("Function", &shown(&format!("{module}.{function}")));
    if id != about {
        put("    Name", &shown(about));
    }
    put("  Result", &shown(&python::text(result)));
    put(" Comment", &comment);

    // Not every return contains these times.
    if let Some(start) = get(state, "start_time") {
        put(" Started", &shown(&python::text(start)));

        let duration = duration.map(python::text).filter(|text| !text.is_empty());
        put(
            "Duration",
            &duration.map_or_else(String::new, |text| format!("{} ms", shown(&text))),
        );
    }

    lines.push(format!("{colour}     Changes:   {change_text}{end}"));

    if let Some(warnings) = get(state, "warnings").and_then(Value::as_array) {
        counts.warnings += 1;
        let text = warnings
            .iter()
            .map(python::text)
            .collect::<Vec<_>>()
            .join("\n");
        let red = colours.light_red();
        let text = wrapped(&clean(&text));
        lines.push(format!("   {red} Warnings: {text}{end}"));
    }

    Some(heading)
}

/// A number, or a string such as `12.3 ms`.
fn milliseconds(value: &Value) -> Option<f64> {
    value
        .as_f64()
        .or_else(|| value.as_str()?.split(" ms").next()?.trim().parse().ok())
}

fn format_changes(changes: &Value, colours: Colours) -> Option<(bool, String)> {
    let falsy = match changes {
        Value::Nil | Value::Boolean(false) => true,
        Value::String(text) => text.as_bytes().is_empty(),
        Value::Array(items) => items.is_empty(),
        Value::Map(pairs) => pairs.is_empty(),
        other => other.as_f64() == Some(0.0),
    };

    if falsy {
        return Some((false, String::new()));
    }

    // A module of the site may return anything.
    if !changes.is_map() {
        return Some((
            true,
            format!(
                "Invalid Changes data: {}",
                block(&python::text(changes), DEEP)
            ),
        ));
    }

    // `salt.state` of an orchestration: the changes are returns of minions, and formatted like
    // them.
    let states = get(changes, "ret")
        .filter(|_| get(changes, "out").and_then(Value::as_str) == Some("highstate"));

    let Some(states) = states.filter(|ret| !ret.is_nil()) else {
        return Some((
            true,
            format!("\n{}", nested(changes, DEEP, colours, false).trim_end()),
        ));
    };

    let mut text = String::new();
    let mut changed = false;
    for (host, data) in states.as_map()? {
        let (shown, any) = format_host(host, data, 1, colours)?;
        // A change anywhere inside is a change of this state.
        changed |= any;
        for line in python::lines(&shown) {
            let _ = write!(text, "\n{:DEEP$}{line}", "");
        }
    }
    Some((changed, text))
}

/// Wraps text at [`WRAP`] columns and indents all lines except the first. Preserves spaces within a
/// line.
fn wrapped(text: &str) -> String {
    let pad = " ".repeat(DEEP);
    let mut lines: Vec<String> = Vec::new();
    let mut line = String::new();
    let mut gap = 0;

    for word in text.split(|c: char| c.is_ascii_whitespace()) {
        // Several spaces in a row are kept within a line.
        if word.is_empty() {
            gap += 1;
            continue;
        }

        let spaces = if line.is_empty() && !lines.is_empty() {
            0
        } else {
            gap
        };

        // A line may only be longer than the limit if it is a single word.
        let wide = DEEP + line.chars().count() + spaces + word.chars().count() > WRAP;
        if wide && !line.is_empty() {
            lines.push(std::mem::take(&mut line));
        } else {
            line.push_str(&" ".repeat(spaces));
        }
        line.push_str(word);
        gap = 1;
    }

    lines.push(line);
    lines.join(&format!("\n{pad}")).trim_start().to_owned()
}

fn summary(lines: &mut Vec<String>, counts: &Counts, host: &str, colours: Colours) {
    let (cyan, green, end) = (colours.cyan(), colours.green(), colours.end());
    let Counts {
        succeeded,
        failed,
        not_run,
        other,
        warnings,
        changed,
        ..
    } = *counts;

    let digits = [succeeded, failed, not_run, other, warnings]
        .iter()
        .map(|n| n.to_string().len())
        .max();

    // Without any state the width excludes digits.
    let any = succeeded + failed + not_run + other + warnings > 0;
    let width = LABEL + 2 + digits.filter(|_| any).unwrap_or(0);

    let rule = "-".repeat(width);
    let count =
        |label: &str, n: usize| format!("{label}: {n:>0$}", width.saturating_sub(label.len() + 2));

    lines.push(format!("{cyan}\nSummary for {host}\n{rule}{end}"));

    // Salt calls states that a test run would change "unchanged", and counts them as succeeded.
    let mut marks = Vec::new();
    if not_run > 0 {
        marks.push(format!(
            "{}unchanged={not_run}{end}",
            colours.light_yellow()
        ));
    }
    if changed > 0 {
        marks.push(format!("{green}changed={changed}{end}"));
    }

    let marks = if marks.is_empty() {
        String::new()
    } else {
        format!(" ({})", marks.join(", "))
    };

    lines.push(format!(
        "{green}{}{end}{marks}",
        count("Succeeded", succeeded + not_run)
    ));

    let colour = if failed > 0 { colours.red() } else { cyan };
    lines.push(format!("{colour}{}{end}", count("Failed", failed)));

    // Salt leaves this line out without warnings, unlike the others.
    if warnings > 0 {
        lines.push(format!(
            "{}{}{end}",
            colours.light_red(),
            count("Warnings", warnings)
        ));
    }

    // A state with the result `None` counts as run.
    let total = succeeded + failed + not_run + other;
    lines.push(format!(
        "{cyan}{rule}\nTotal states run: {total:>0$}{end}",
        width.saturating_sub(7)
    ));

    let sum = counts.durations + counts.longest_parallel;
    // Salt switches to seconds as late as this.
    let (sum, unit) = if sum > 999.0 {
        (sum / 1000.0, "s")
    } else {
        (sum, "ms")
    };

    let sum = format!("{sum:.3}");
    lines.push(format!(
        "{cyan}Total run time: {sum:>0$} {unit}{end}",
        width.saturating_sub(5)
    ));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn value(json: &serde_json::Value) -> Value {
        crate::wire::msgpack::json::from_json(json).unwrap()
    }

    #[test]
    fn a_minions_text_cannot_forge_another_minions_heading() {
        let forged = "x\nweb2:\n----------\n          ID: forged\r\u{2028}\u{85}\x0b\nweb3:";
        let state = serde_json::json!({
            "result": true, "changes": {forged: forged}, "comment": forged, "name": forged, "__run_num__": 0,
            "start_time": forged, "duration": forged, "data": {forged: forged}, "warnings": [forged],
        });
        let key = format!("cmd_|-{forged}_|-{forged}b_|-run{forged}");
        let mut odd = state.clone();
        (odd["changes"], odd["data"], odd["result"]) =
            (forged.into(), forged.into(), forged.into());
        let returns = serde_json::json!({
            "web1": {&key: state, format!("{key}2"): odd, "lost": {forged: forged}},
            "errors": [forged, forged],
            "text": forged,
            forged: {"a": forged},
        });
        let returns = value(&returns);
        for text in [
            highstate(&returns, Colours::new(false)),
            nested(&returns, 0, Colours::new(false), false),
        ] {
            for line in text.lines() {
                let heads = ["web2", "web3", "          ID: forged"];
                assert!(
                    !heads.iter().any(|head| line.starts_with(head)),
                    "{line:?} in\n{text}"
                );
                assert!(
                    !line.contains(['\r', '\u{2028}', '\u{85}', '\x0b']),
                    "{line:?}"
                );
            }
        }
    }

    #[test]
    fn returns_are_formatted_as_by_salt() {
        let cases = include_str!("../../../../tests/data/outputters.jsonl");
        let mut wrong = Vec::new();
        let mut count = 0;
        for line in cases.lines() {
            let case: serde_json::Value = serde_json::from_str(line).unwrap();
            let data = value(&case["data"]);
            let colours = Colours::new(case["colour"].as_bool().unwrap());
            let failed = case["retcode"].as_i64().unwrap() != 0;
            let shown = match case["out"].as_str().unwrap() {
                "nested" => nested(&data, 0, colours, failed).trim_end().to_owned(),
                _ => highstate(&data, colours),
            };
            count += 1;
            let expected = case["text"].as_str().unwrap();
            if shown != expected {
                wrong.push(format!(
                    "{} {}\n--- salt\n{expected}\n--- here\n{shown}\n",
                    case["name"], case["out"]
                ));
            }
        }
        assert!(count > 20, "{count} cases");
        assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    }
}
