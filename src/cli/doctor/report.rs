//! The findings for a person.

use std::fmt::Write as _;

use super::finding::{CheckFinding, Findings};
use crate::cli::{Column, Line, LongWords, Output, Table, Tone, plain, wrapped, wrapped_after};

/// Widths of result names, of a gap between columns, and of the heads of advice.
const RESULT: usize = 7;
const GAP: usize = 2;
const ADVICE: usize = 8;
/// With less room after the checks' names, what was found goes on below them.
const BESIDE_MIN: usize = 40;

/// The findings, problems first, then warnings. On a terminal they are broken at words.
pub(super) fn table(out: &mut Output, found: &Findings) -> anyhow::Result<()> {
    let mut findings: Vec<&CheckFinding> = found.0.iter().collect();
    // Stable: within a result the order of the checks stays.
    findings.sort_by_key(|finding| std::cmp::Reverse(finding.result));

    // Without a terminal each finding stays on one line, where programs can search it.
    let Some(width) = out.width else {
        let columns = ["RESULT", "CHECK", "MESSAGE"].map(Column::left);
        let row = |f: &&CheckFinding| {
            vec![
                f.result.name().to_owned(),
                f.check.to_owned(),
                f.message.clone(),
            ]
        };
        let rows: Vec<_> = findings.iter().map(row).collect();
        // The row's number leads back to its finding, for the lines below it.
        return Ok(Table::new(columns).print_with(
            out,
            &rows,
            |_| Tone::Plain,
            |number| {
                findings
                    .get(number)
                    .map_or_else(String::new, |finding| below(finding, usize::MAX))
            },
        )?);
    };

    let checks = findings.iter().map(|finding| finding.check.len());
    let checks = checks.max().unwrap_or(0).max("CHECK".len());
    let start = RESULT + GAP + checks + GAP;
    // Where the lines after the first one start.
    let indent = if width >= start + BESIDE_MIN {
        start
    } else {
        RESULT + GAP
    };

    out.heading(&format!(
        "{:RESULT$}  {:checks$}  MESSAGE",
        "RESULT", "CHECK"
    ))?;
    for finding in findings {
        let message = plain(&finding.message);
        // The first line is shorter than the others if they start further left.
        let room = width.saturating_sub(indent);
        let lines = wrapped_after(start - indent, &message, room, LongWords::Keep);

        let name = finding.result.name();
        for (number, text) in lines.iter().enumerate() {
            let line = if number == 0 {
                Line::new(Tone::of_word(name), name).and(
                    Tone::Plain,
                    format!(
                        "{:gap$}{:checks$}  {text}",
                        "",
                        finding.check,
                        gap = RESULT + GAP - name.len()
                    ),
                )
            } else {
                Line::from(format!("{:indent$}{text}", ""))
            };
            out.styled(&line.trimmed())?;
        }
        out.text(&below(finding, width))?;
    }
    Ok(())
}

/// The reason and the remedy of a finding, in lines of at most `width` columns.
fn below(finding: &CheckFinding, width: usize) -> String {
    let Some(advice) = &finding.advice else {
        return String::new();
    };

    let indent = RESULT + GAP;
    let room = width.saturating_sub(indent + ADVICE);
    let mut text = String::new();
    for (head, advice) in [("reason", &advice.reason), ("remedy", &advice.remedy)] {
        // A command or a line of a file stays whole where it can: it is copied.
        let lines = wrapped(&plain(advice), room, LongWords::Keep);
        let heads = std::iter::once(head).chain(std::iter::repeat(""));
        for (line, head) in lines.iter().zip(heads) {
            // Writing to a String cannot fail.
            let _ = writeln!(text, "{:indent$}{head:ADVICE$}{line}", "");
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::sync::Arc;

    use parking_lot::Mutex;

    use super::*;
    use crate::cli::{Form, width_of};

    struct Written(Arc<Mutex<Vec<u8>>>);

    impl io::Write for Written {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().write(bytes)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn shown(found: &Findings, width: Option<usize>) -> String {
        let text = Arc::new(Mutex::new(Vec::new()));
        let mut out = Output::to(Form::Table, Box::new(Written(Arc::clone(&text))));
        out.width = width;
        table(&mut out, found).unwrap();
        drop(out);
        String::from_utf8(text.lock().clone()).unwrap()
    }

    fn findings() -> Findings {
        let mut found = Findings::default();
        found.of("socket").ok("it is there");
        found.of("disk").warn("should be watched ".repeat(9));
        found.of("keys").needs_root("the directory of keys");
        found.of("master_job_cache").problem_because(
            "the master could not be asked, because it is old",
            "returns of minions would be lost while the daemon is away, which nobody wants",
            "`systemctl restart salt-master && saltcellar doctor --salt-config /etc/salt`, as root",
        );
        found
    }

    #[test]
    fn problems_come_first_and_lines_break_at_words() {
        for width in [40, 80, 200] {
            let text = shown(&findings(), Some(width));
            let starts = ["problem", "warning", "skipped", "ok"];
            let at = starts.map(|start| text.find(&format!("\n{start} ")).unwrap());
            assert!(at.is_sorted(), "{text}");

            let words: Vec<&str> = text.split_whitespace().collect();
            for word in [
                "master_job_cache",
                "should",
                "watched",
                "directory",
                "nobody",
                "remedy",
            ] {
                assert!(words.contains(&word), "{word} at {width}: {text}");
            }
            for line in text.lines() {
                let is_fitting = width_of(line) <= width;
                // A command is not broken where it fits into a line.
                assert!(is_fitting || width == 40, "{line}");
            }
        }
        let text = shown(&findings(), Some(100));
        let command =
            "`systemctl restart salt-master && saltcellar doctor --salt-config /etc/salt`,";
        assert!(text.contains(command), "{text}");
    }

    #[test]
    fn without_a_terminal_each_finding_is_a_line() {
        let text = shown(&findings(), None);
        assert_eq!(text.lines().count(), 1 + 4 + 2, "{text}");
        assert!(
            text.lines().nth(1).unwrap().starts_with("problem"),
            "{text}"
        );
    }
}
