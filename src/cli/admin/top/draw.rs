//! Drawing of the live view: header, parts with trouble, jobs; or one job.
//!
//! All text is escaped first: widgets drop control characters, but not characters that change the
//! direction of text.

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, Borders, Paragraph};

use super::view::{OpenJob, View};
use crate::api::call::jobs::answers::JobRow;
use crate::api::call::reactor::ReactionRow;
use crate::api::call::status::Level;
use crate::base::units::{bytes, span};
use crate::cli::admin::status::{parts, summary};
use crate::cli::{Column, Table, is_coloured, joined, line_of, plain, short_at};
use crate::reactor::stored::StoredRecord;

/// Maximum rows of sources and readers.
const PARTS: usize = 5;

pub(super) fn draw(frame: &mut Frame<'_>, view: &View) {
    let area = frame.area();
    let width = usize::from(area.width);

    let head = head(view);
    let parts = part_lines(view, width);
    let reactions = reaction_lines(view, width);

    let rows =
        |lines: &[Line<'_>]| Constraint::Length(u16::try_from(lines.len()).unwrap_or(u16::MAX));

    let layout = [
        rows(&head),
        rows(&parts),
        rows(&reactions),
        // The jobs get what is left.
        Constraint::Min(3),
        Constraint::Length(1),
    ];

    let [top, middle, below, list, foot] = Layout::vertical(layout).areas(area);

    frame.render_widget(Paragraph::new(head), top);
    frame.render_widget(Paragraph::new(parts), middle);
    frame.render_widget(Paragraph::new(reactions), below);
    frame.render_widget(Paragraph::new(foot_line(view)), foot);

    match &view.job {
        Some(job) => draw_job(frame, job, view.scroll, list),
        None => draw_jobs(frame, view, list),
    }
}

fn coloured(colour: Color) -> Style {
    if is_coloured() {
        Style::default().fg(colour)
    } else {
        Style::default()
    }
}

fn title() -> Style {
    Style::default().add_modifier(Modifier::BOLD)
}

fn head(view: &View) -> Vec<Line<'static>> {
    let status = &view.status;
    let colour = match status.health.state {
        Level::Ok => Color::Green,
        Level::Warning => Color::Yellow,
        Level::Problem => Color::Red,
    };

    let name = format!(
        "saltcellar {}, up {}: ",
        plain(&status.version),
        span(status.uptime_s)
    );

    let mut lines = vec![Line::from(vec![
        Span::styled(name, title()),
        Span::styled(summary(&status.health.reasons), coloured(colour)),
        Span::raw(if view.is_paused() { "  PAUSED" } else { "" }),
    ])];

    // Everything below is of the time before.
    if let Some(why) = &view.lost {
        let text = format!("daemon unreachable, waiting for it: {why}");
        lines.push(Line::styled(
            plain(&text).into_owned(),
            coloured(Color::Red),
        ));
    }

    // One reason is enough here; `saltcellar status` has the others.
    if let Some(reason) = status.health.reasons.first() {
        let text = format!("{}: {}", reason.part, reason.message);
        lines.push(Line::styled(plain(&text).into_owned(), coloured(colour)));
    }

    // A rate needs two updates.
    let rates = match &view.rates {
        Some(now) => format!(
            "now {:.1} events/s, {:.1} returns/s, {:.1} failed/s, {:.1} entries/s",
            now.events, now.returns, now.failed, now.entries
        ),
        None => "now -".to_owned(),
    };
    lines.push(Line::raw(rates));

    let disk = &status.disk;
    let left = disk.days_left.map_or_else(
        || "growth is limited".to_owned(),
        |days| format!("{days} days left"),
    );
    let [used, free] = [disk.used_bytes, disk.free_bytes].map(bytes);
    lines.push(Line::raw(format!("disk {used} used, {free} free, {left}")));

    if let Some(last) = &status.last_failure {
        let text = format!(
            "last failure {} on {}, exit code {}, {}",
            last.fun, last.minion, last.retcode, last.jid
        );
        lines.push(Line::raw(plain(&text).into_owned()));
    }

    lines
}

fn table(
    columns: impl Into<Vec<Column>>,
    rows: &[Vec<String>],
    width: usize,
) -> Vec<Line<'static>> {
    let lines = Table::new(columns).lines(rows, Some(width)).into_iter();
    lines
        .enumerate()
        .map(|(n, line)| Line::styled(line, if n == 0 { title() } else { Style::default() }))
        .collect()
}

fn part_lines(view: &View, width: usize) -> Vec<Line<'static>> {
    let rows = parts(&view.status);

    let rows = rows.get(..rows.len().min(PARTS)).unwrap_or_default();
    // Without rows the heading is left out as well.
    if rows.is_empty() {
        return Vec::new();
    }

    let columns = [
        Column::left("PART"),
        Column::middle_truncated("NAME"),
        Column::truncated("STATE"),
        Column::truncated("LAG"),
    ];
    table(columns, rows, width)
}

fn reaction_lines(view: &View, width: usize) -> Vec<Line<'static>> {
    if view.reactions.is_empty() {
        return Vec::new();
    }

    let row = |reaction: &ReactionRow| {
        let (state, took) = match StoredRecord::read(reaction.reaction.packed()) {
            Ok(record) => {
                let took = record.took_us().map(|us| (us / 1000).to_string());
                (record.state.name(), took.unwrap_or_default())
            }
            // A damaged record, which must not hide the others.
            Err(_) => ("unreadable", String::new()),
        };
        vec![
            short_at(reaction.time),
            state.to_owned(),
            took,
            plain(&reaction.tag).into_owned(),
        ]
    };

    // More would take the place of jobs.
    let rows: Vec<_> = view.reactions.iter().take(3).map(row).collect();

    let columns = [
        Column::left("FAILED REACTION"),
        Column::left("STATE"),
        Column::right("MS"),
        Column::middle_truncated("TAG"),
    ];
    table(columns, &rows, width)
}

fn draw_jobs(frame: &mut Frame<'_>, view: &View, area: Rect) {
    let jobs = view.shown();

    let row = |job: &&JobRow| {
        // Of minions whose masters are behind.
        let unknown = match job.unknown_count {
            0 => String::new(),
            count => format!(" ({count} unknown)"),
        };
        let returned = match job.expected {
            Some(expected) => format!("{}/{expected}{unknown}", job.returned),
            None => job.returned.to_string(),
        };

        vec![
            plain(&job.jid).into_owned(),
            joined(&job.fun),
            joined(&job.tgt),
            line_of(&job.user),
            returned,
            job.failed.to_string(),
        ]
    };

    let rows: Vec<_> = jobs.iter().map(row).collect();

    let columns = [
        Column::left("JID"),
        Column::truncated("FUN"),
        Column::middle_truncated("TGT").min_chars(8),
        Column::left("USER").drop_order(1),
        Column::right("RETURNED"),
        Column::right("FAILED"),
    ];

    let mut lines = table(columns, &rows, usize::from(area.width)).into_iter();
    let heading = lines.next();

    // Scrolls only as far as the selected row requires.
    let height = usize::from(area.height).saturating_sub(1).max(1);
    let first = view.selected().saturating_sub(height - 1);

    let lines = lines
        .zip(&jobs)
        .enumerate()
        .skip(first)
        .take(height)
        .map(|(n, (line, job))| {
            let style = if job.failed > 0 {
                coloured(Color::Red)
            } else {
                Style::default()
            };
            let marked = if n == view.selected() {
                style.add_modifier(Modifier::REVERSED)
            } else {
                style
            };
            line.style(marked)
        });

    let lines: Vec<Line<'_>> = heading.into_iter().chain(lines).collect();
    frame.render_widget(Paragraph::new(lines), area);
}

fn draw_job(frame: &mut Frame<'_>, job: &OpenJob, scroll: u16, area: Rect) {
    let lines: Vec<Line<'_>> = job
        .text
        .lines()
        .map(|line| Line::raw(plain(line).into_owned()))
        .collect();

    let title = format!(" job {} ", plain(&job.jid));
    let block = Block::default().borders(Borders::TOP).title(title);
    frame.render_widget(Paragraph::new(lines).block(block).scroll((scroll, 0)), area);
}

fn foot_line(view: &View) -> Line<'static> {
    let text = if view.is_editing {
        format!(
            "filter: {}_   Enter keeps it, Esc removes it",
            plain(&view.filter)
        )
    } else if view.job.is_some() {
        "up/down scroll   Esc back".to_owned()
    } else if view.filter.is_empty() {
        "up/down select   Enter open   / filter   p pause   q quit".to_owned()
    } else {
        format!(
            "filter: {}   Esc remove   Enter open   p pause   q quit",
            plain(&view.filter)
        )
    };

    Line::styled(text, Style::default().add_modifier(Modifier::DIM))
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::*;
    use crate::api::call::jobs::answers::{JobAnswer, Return};
    use crate::api::call::status::{BusRow, Health, LastFailure, Reason, SinkRow, Status};
    use crate::base::clock::Micros;
    use crate::engines::runtime::Phase;
    use crate::wire::msgpack::{Stored, Time, Writer};
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;
    use ratatui::crossterm::event::{KeyCode, KeyEvent};

    fn text(text: &str) -> Stored {
        let mut w = Writer::new();
        w.str(text);
        Stored::Packed(w.into_bytes())
    }

    fn status(events: u64) -> Status {
        let reason = Reason {
            level: Level::Problem,
            part: "sink audit".to_owned(),
            message: "refused\x1b[2J".to_owned(),
        };
        let sink = SinkRow {
            name: "audit".to_owned(),
            state: Phase::Retrying,
            failures: 3,
            ..SinkRow::default()
        };
        Status {
            version: "0.1.0".to_owned(),
            pid: 7,
            health: Health {
                state: Level::Problem,
                reasons: vec![reason],
            },
            bus: vec![BusRow {
                path: "/run/salt/master".to_owned(),
                connected: true,
                ..BusRow::default()
            }],
            sinks: vec![sink],
            last_failure: Some(LastFailure {
                fun: "cmd.run".to_owned(),
                minion: "web1".to_owned(),
                ..LastFailure::default()
            }),
            counters: [("bus_events".to_owned(), events)].into(),
            ..Status::default()
        }
    }

    fn view() -> View {
        let job = |n: u64| JobRow {
            jid: format!("202611210547281234{n:02}"),
            fun: text("state.apply\u{202e}"),
            tgt: text("*"),
            user: text("root"),
            returned: 2,
            expected: Some(3),
            failed: n % 2,
            ..JobRow::default()
        };
        let jobs: Vec<_> = (0..40).map(job).collect();
        let mut record = Writer::new();
        record
            .map(3)
            .str("state")
            .str("failed")
            .str("at")
            .int(1_000)
            .str("ended")
            .int(5_000);
        let reactions = vec![ReactionRow {
            time: Time(Micros(1_795_240_048_123_456)),
            tag: "salt/minion/web1/start".to_owned(),
            reaction: Stored::Packed(record.into_bytes()),
            ..ReactionRow::default()
        }];
        let mut view = View::default();
        let start = Instant::now();
        view.update(start, status(0), jobs.clone(), reactions.clone());
        view.update(start + Duration::from_secs(1), status(12), jobs, reactions);
        view
    }

    fn screen(view: &View, width: u16, height: u16) -> Vec<String> {
        let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
        terminal.draw(|frame| draw(frame, view)).unwrap();
        let buffer = terminal.backend().buffer().clone();
        let line = |y: u16| {
            (0..width)
                .map(|x| buffer[(x, y)].symbol().to_owned())
                .collect::<String>()
        };
        (0..height).map(|y| line(y).trim_end().to_owned()).collect()
    }

    #[test]
    fn everything_fits_80_by_24() {
        let lines = screen(&view(), 80, 24);
        for (line, part) in [
            (0, "saltcellar 0.1.0, up 0s: 1 problem"),
            (1, "sink audit: refused\\x1b[2J"),
            (2, "now 12.0 events/s, 0.0 returns/s"),
            (4, "last failure cmd.run on web1"),
            (5, "PART  NAME"),
            (6, "sink  audit             retrying"),
            (7, "bus   /run/salt/master  connected"),
            (8, "FAILED REACTION"),
            (9, "failed   4  salt/minion/web1/start"),
            (10, "JID                   FUN"),
            (11, "20261121054728123400"),
            (
                23,
                "up/down select   Enter open   / filter   p pause   q quit",
            ),
        ] {
            assert!(
                lines[line].contains(part),
                "{part:?} in line {line} of {lines:#?}"
            );
        }
        assert!(
            lines[11].contains("2/3") && lines[11].contains("\\u{202e}"),
            "{lines:#?}"
        );
        assert!(lines[22].contains("20261121054728123411"), "{lines:#?}");
    }

    #[test]
    fn a_selected_job_below_the_screen_scrolls_the_list() {
        let mut view = view();
        for _ in 0..30 {
            view.press(KeyEvent::from(KeyCode::Down));
        }
        let lines = screen(&view, 80, 24);
        assert!(lines[22].contains("20261121054728123430"), "{lines:#?}");
    }

    #[test]
    fn without_the_daemon_the_last_state_stays_and_is_marked() {
        let mut view = view();
        view.lose("no daemon answers".to_owned());
        let lines = screen(&view, 80, 24);
        assert_eq!(
            lines[1].trim_end(),
            "daemon unreachable, waiting for it: no daemon answers"
        );
        assert!(lines[12].contains("20261121054728123400"), "{lines:#?}");
    }

    #[test]
    fn an_open_job_replaces_the_list() {
        let mut view = view();
        let job = JobAnswer {
            returns: vec![Return {
                minion: "web1".to_owned(),
                value: text("\x1b[31mred"),
                ..Return::default()
            }],
            ..JobAnswer::default()
        };
        view.open("1".to_owned(), Some(&job)).unwrap();
        // To the returns, which follow what the job is.
        view.press(KeyEvent::from(KeyCode::PageDown));
        view.press(KeyEvent::from(KeyCode::PageDown));
        let lines = screen(&view, 80, 24);
        assert!(
            lines.iter().any(|line| line.contains("job 1")),
            "{lines:#?}"
        );
        assert!(
            lines.iter().any(|line| line.contains("\\x1b[31mred")),
            "{lines:#?}"
        );
        assert_eq!(lines[23], "up/down scroll   Esc back");
    }

    #[test]
    fn tiny_terminals_do_not_panic() {
        for (width, height) in [(1, 1), (20, 3), (10, 50), (200, 5)] {
            screen(&view(), width, height);
        }
    }
}
