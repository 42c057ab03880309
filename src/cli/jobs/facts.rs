//! What a job is, as lines of text: the beginning of `jobs show`, and of a job that `top` opens.

use std::collections::BTreeMap;

use super::job_rows::{arg, args};
use crate::api::call::jobs::answers::{JobAnswer, Publish};
use crate::cli::format::width::prefix;
use crate::cli::{Line, Tone, joined, line_of, plain, short_at, short_at_in_zone, width_of};

/// Lines of a terminal that one value takes at most.
const VALUE_LINES: usize = 3;
/// Columns of the name before it.
const NAME: usize = 10;

/// The facts. On a terminal with `width` columns a long value is cut.
pub(in crate::cli) fn facts(job: &JobAnswer, width: Option<usize>) -> Vec<Line> {
    let row = &job.row;

    let tgt_type = match line_of(&row.tgt_type) {
        kind if kind.is_empty() => kind,
        kind => format!(" ({kind})"),
    };

    let last = row.last_return.map(short_at).unwrap_or_default();
    // Unknown until something has returned.
    let took = row
        .duration_us
        .map(|us| format!("{:.3} s, last return {last}", us as f64 / 1e6))
        .unwrap_or_default();

    let text = |text: String| Line::from(cut(&text, width));
    let head = [
        ("jid", text(row.jid.clone())),
        ("time", text(short_at_in_zone(row.time))),
        ("fun", text(joined(&row.fun))),
        ("arg", text(arg(row))),
        ("tgt", text(joined(&row.tgt) + &tgt_type)),
        ("user", text(line_of(&row.user))),
        ("master", text(row.master.clone().unwrap_or_default())),
        ("returned", returned(job)),
        ("retcodes", text(retcodes(&row.retcodes))),
        ("took", text(took)),
        ("endtime", text(row.endtime.clone().unwrap_or_default())),
        ("metadata", text(line_of(&row.metadata))),
        ("parent", text(job.parent.clone().unwrap_or_default())),
        ("nocache", Line::from(if job.nocache { "true" } else { "" })),
    ];

    // Most jobs lack some of these.
    let known = head
        .into_iter()
        .filter(|(_, value)| !value.text().is_empty());
    let mut lines: Vec<Line> = known
        .map(|(name, value)| Line::from(format!("{name:<9} ")).joined(value))
        .collect();

    lines.extend(conflict(&job.publishes, width));
    lines
}

/// `3 of 4, 1 failed`
fn returned(job: &JobAnswer) -> Line {
    let row = &job.row;
    // Without a list of minions nobody knows how many were addressed.
    let share = match row.expected {
        Some(expected) => format!("{} of {expected}", row.returned),
        None => row.returned.to_string(),
    };
    let share_tone = match row.expected {
        Some(expected) if row.returned < expected => Tone::Warning,
        _ => Tone::Plain,
    };

    let failed_tone = match (row.failed, row.returned) {
        (0, 0) => Tone::Plain,
        (0, _) => Tone::Good,
        _ => Tone::Bad,
    };

    // Events of returns that the master never confirmed (docs/decisions/confirmed-returns.md).
    let bus_only = match row.bus_only.saturating_sub(row.unverified) {
        0 => String::new(),
        count => format!(", {count} seen on the bus only"),
    };
    let unverified = match row.unverified {
        0 => String::new(),
        count => format!(", {count} from peers, not verified here"),
    };

    Line::new(share_tone, share)
        .and(Tone::Plain, ", ")
        .and(failed_tone, format!("{} failed", row.failed))
        .and(Tone::Plain, unverified + &bus_only)
}

/// A value in as many lines of the terminal as one may take; the other formats print all of it.
fn cut(value: &str, width: Option<usize>) -> String {
    let value = plain(value);
    let most = width.map_or(usize::MAX, |width| {
        width.saturating_mul(VALUE_LINES).saturating_sub(NAME)
    });

    // Few bytes take few columns, and counting columns is slower.
    if value.len() <= most || width_of(&value) <= most {
        return value.into_owned();
    }

    let count = value.chars().count();
    let rest = format!("\u{2026} ({count} characters, see --output json)");
    let room = most.saturating_sub(rest.len());
    let begin: String = prefix(value.chars(), room, usize::MAX)
        .into_iter()
        .collect();
    begin + &rest
}

/// The jobs that were published under one id.
fn conflict(publishes: &[Publish], width: Option<usize>) -> Vec<Line> {
    // The usual case.
    if publishes.is_empty() {
        return Vec::new();
    }

    let title = "conflict: different jobs were published under this id; the first one counts:";
    let mut lines = vec![Line::default(), Line::new(Tone::Title, title)];
    for publish in publishes {
        let words = [
            joined(&publish.fun),
            args(&publish.arg),
            format!("on {}", joined(&publish.tgt)),
            format!("by {}", line_of(&publish.user)),
            publish
                .master
                .as_ref()
                .map_or_else(String::new, |id| format!("at {id}")),
        ];
        let words: Vec<_> = words.into_iter().filter(|word| !word.is_empty()).collect();
        let time = short_at_in_zone(publish.time);
        lines.push(cut(&format!("    {time}  {}", words.join(" ")), width).into());
    }
    lines
}

/// Formats `0: 9, 2: 1`; empty if all are zero.
fn retcodes(codes: &BTreeMap<String, u64>) -> String {
    // Only failures are worth a line.
    if codes.keys().all(|code| code == "0") {
        return String::new();
    }

    codes
        .iter()
        .map(|(code, count)| format!("{code}: {count}"))
        .collect::<Vec<_>>()
        .join(", ")
}
