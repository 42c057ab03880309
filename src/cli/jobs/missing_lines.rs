//! The minions that have not returned a job, as lines of text.

use std::collections::BTreeMap;

use crate::api::query::{MissingGroup, MissingMinion, Silence};
use crate::cli::{Line, LongWords, Tone, plain, short_at, short_at_in_zone, wrapped};

/// Lines of a terminal that the names of a group take at most.
const NAME_LINES: usize = 3;
const INDENT: usize = 4;

/// The missing minions, in groups by what is known of them. A terminal with `width` columns gets some
/// names of each group and the number of the others; other output gets all `names`, one a line.
pub(in crate::cli) fn missing_lines(
    groups: &[MissingGroup],
    names: &[String],
    width: Option<usize>,
) -> Vec<Line> {
    // Groups may be of fewer minions than there are names, by a glob.
    let count = if groups.is_empty() {
        names.len() as u64
    } else {
        groups.iter().map(|group| group.count).sum()
    };
    if count == 0 {
        return Vec::new();
    }

    let mut lines = vec![Line::default()];
    // Programs that read the lines expect one minion on each.
    let Some(width) = width else {
        lines.push(Line::new(Tone::Title, "missing:"));
        lines.extend(one_by_one(groups, names));
        return lines;
    };

    lines.push(Line::new(Tone::Title, "missing: ").and(Tone::Warning, count.to_string()));
    if groups.is_empty() {
        let names: Vec<String> = names.iter().map(|id| plain(id).into_owned()).collect();
        lines.extend(some_of(&names, count, INDENT, width));
    }
    for group in groups {
        let what = format!("{} {}", group.count, reason(group.why));
        let head = Line::from(" ".repeat(INDENT)).and(Tone::Warning, what);
        lines.push(head.and(Tone::Plain, format!(": {}", meaning(group.why))));

        let names: Vec<String> = group.minions.iter().map(name_of).collect();
        lines.extend(some_of(&names, group.count, 2 * INDENT, width));
    }
    lines
}

/// `web1 (2026-11-21 05:47)`: its id, and when it was heard last.
fn name_of(minion: &MissingMinion) -> String {
    let id = plain(&minion.id).into_owned();
    match minion.since.map(short_at) {
        // Without seconds.
        Some(at) => format!("{id} ({})", at.get(..16).unwrap_or(&at)),
        None => id,
    }
}

/// What is known of each minion, one a line.
fn one_by_one(groups: &[MissingGroup], names: &[String]) -> Vec<Line> {
    // Only the first minions of each group are described, so a name may lack a description.
    let known: BTreeMap<&str, (Silence, &MissingMinion)> = groups
        .iter()
        .flat_map(|group| group.minions.iter().map(|minion| (group.why, minion)))
        .map(|(why, minion)| (minion.id.as_str(), (why, minion)))
        .collect();

    // Of several jobs there are no names but those in the groups.
    let all: Vec<&str> = if names.is_empty() {
        known.keys().copied().collect()
    } else {
        names.iter().map(String::as_str).collect()
    };

    let line = |id: &str| {
        let what = known.get(id).map_or_else(String::new, |(why, minion)| {
            let heard = minion.since.map_or_else(String::new, |at| {
                format!(", last heard {}", short_at_in_zone(at))
            });
            format!("  {}{heard}", reason(*why))
        });
        format!("{:INDENT$}{}{what}", "", plain(id)).into()
    };
    let mut lines: Vec<Line> = all.into_iter().map(line).collect();

    // A group names the first of its minions only.
    if names.is_empty() {
        for group in groups {
            let unnamed = group.count.saturating_sub(group.minions.len() as u64);
            if unnamed > 0 {
                let why = reason(group.why);
                lines.push(format!("{:INDENT$}and {unnamed} more  {why}", "").into());
            }
        }
    }
    lines
}

fn reason(why: Silence) -> &'static str {
    match why {
        Silence::Down => "down",
        Silence::Busy => "busy",
        Silence::Silent => "silent",
        Silence::NeverSeen => "never seen",
    }
}

fn meaning(why: Silence) -> &'static str {
    match why {
        Silence::Down => "not heard since before the job",
        Silence::Busy => "still running it",
        Silence::Silent => "heard since, without a return of this job",
        Silence::NeverSeen => "no event or return of them is stored",
    }
}

/// As many names of `count` as fit into some lines, and how many there are beyond them.
fn some_of(names: &[String], count: u64, indent: usize, width: usize) -> Vec<Line> {
    let room = width.saturating_sub(indent);
    // A name takes three columns at least, with what separates it from the next one.
    let most = names.len().min(room * NAME_LINES / 3);

    // All of them, or fewer until they fit.
    let mut shown = most;
    loop {
        let some = names.get(..shown).unwrap_or_default().join(", ");
        let text = match (shown, count.saturating_sub(shown as u64)) {
            (_, 0) => some,
            (0, rest) => format!("{rest} minions"),
            (_, rest) => format!("{some} and {rest} more"),
        };

        let lines = wrapped(&text, room, LongWords::Cut);
        if lines.len() <= NAME_LINES || shown == 0 {
            let lines = lines.into_iter();
            return lines
                .map(|line| format!("{:indent$}{line}", "").into())
                .collect();
        }
        shown -= 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn minions_that_a_group_does_not_name_are_counted() {
        let group = MissingGroup {
            why: Silence::Down,
            count: 150,
            minions: vec![MissingMinion {
                id: "web1".to_owned(),
                ..MissingMinion::default()
            }],
        };
        let lines = missing_lines(&[group], &[], None);
        let lines: Vec<String> = lines.iter().map(Line::text).collect();
        assert_eq!(lines[2..], ["    web1  down", "    and 149 more  down"]);
    }

    #[test]
    fn some_names_are_shown_and_the_others_counted() {
        let names: Vec<String> = (0..1_000).map(|n| format!("web{n}.example.net")).collect();
        let lines: Vec<String> = missing_lines(&[], &names, Some(80))
            .iter()
            .map(Line::text)
            .collect();
        assert_eq!(lines[1], "missing: 1000");
        assert_eq!(lines.len(), 2 + NAME_LINES, "{lines:#?}");
        assert!(lines.iter().all(|line| line.len() <= 80), "{lines:#?}");

        let last = lines.last().unwrap();
        let shown = lines.join(" ").matches(".example.net").count();
        assert!(
            last.ends_with(&format!(" and {} more", 1_000 - shown)),
            "{last}"
        );
        assert!(shown > 5, "{lines:#?}");

        // All that fit, and elsewhere all there are.
        let few = missing_lines(&[], &names[..2], Some(80));
        assert_eq!(few[2].text(), "    web0.example.net, web1.example.net");
        assert_eq!(missing_lines(&[], &names, None).len(), 1_002);
        assert!(missing_lines(&[], &[], Some(80)).is_empty());
    }
}
