//! Drawing of the live view: header, parts with trouble, jobs; or one job.
//!
//! All text is escaped first: widgets drop control characters, but not characters that change the
//! direction of text.

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, Borders, Clear, Paragraph};

use super::view::{KEYS, OpenJob, View};
use crate::api::call::jobs::answers::JobRow;
use crate::api::call::reactor::ReactionRow;
use crate::base::units::{bytes, span};
use crate::cli::admin::status::{part_lines, reason_lines, summary, tone_of};
use crate::cli::format::colour;
use crate::cli::jobs::job_rows;
use crate::cli::{Column, Table, Tone, plain, short_at, title as time_title};
use crate::reactor::stored::StoredRecord;

/// Says where to find the rows of a list that does not fit.
const HINT: &str = ", see `saltcellar status`";
/// Minimum number of lines of the list of jobs, where there is room.
const JOBS_MIN: usize = 8;
/// Minimum number of lines of the reasons.
const REASONS_MIN: usize = 2;

pub(super) fn draw(frame: &mut Frame<'_>, view: &View) {
    let area = frame.area();
    let width = usize::from(area.width);
    let height = usize::from(area.height);

    let facts = facts(view);
    // The lines that jobs do not need. Some of them say why the daemon is not well.
    let spare = height
        .saturating_sub(facts.len() + 1)
        .saturating_sub(JOBS_MIN.max(height * 2 / 5));
    let reasons = reason_lines(
        &view.status.health.reasons,
        width,
        (spare / 3).max(REASONS_MIN),
        HINT,
    );
    let spare = spare.saturating_sub(reasons.len());

    let mut head: Vec<Line<'static>> = facts;
    // Below the summary.
    let at = head.len().min(1 + usize::from(view.lost.is_some()));
    head.splice(at..at, reasons.iter().map(drawn));

    // An open job gets all the room.
    let (parts, reactions) = if view.job.is_some() {
        (Vec::new(), Vec::new())
    } else {
        let reactions = reaction_lines(view, width);
        let left = spare.saturating_sub(reactions.len());
        let parts = part_lines(&view.status, width, left.max(2), HINT);
        (parts.iter().map(drawn).collect(), reactions)
    };

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

    // Without the heading or the border.
    view.page.set(list.height.saturating_sub(1));
    view.width.set(area.width);
    match &view.job {
        Some(job) => draw_job(frame, job, view.scroll, list),
        None => draw_jobs(frame, view, list),
    }

    if view.has_help {
        draw_help(frame, area);
    }
}

/// A line of the command line as one of the screen.
fn drawn(line: &crate::cli::Line) -> Line<'static> {
    let spans = line
        .pieces()
        .map(|(tone, text)| Span::styled(text, style(tone)));
    spans.collect()
}

fn style(tone: Tone) -> Style {
    let style = Style::default();
    let colour = match tone {
        Tone::Plain => return style,
        Tone::Title => return title(),
        Tone::Good => Color::Green,
        Tone::Warning => Color::Yellow,
        Tone::Bad => Color::Red,
    };
    // The view runs on a terminal only.
    if colour::is_on(true) {
        style.fg(colour)
    } else {
        style
    }
}

fn title() -> Style {
    Style::default().add_modifier(Modifier::BOLD)
}

/// The first lines, which are always there: what the daemon is, and how much it does.
fn facts(view: &View) -> Vec<Line<'static>> {
    let status = &view.status;

    let name = format!(
        "saltcellar {}, up {}: ",
        plain(&status.version),
        span(status.uptime_s)
    );

    let mut lines = vec![Line::from(vec![
        Span::styled(name, title()),
        Span::styled(
            summary(&status.health.reasons),
            style(tone_of(status.health.state)),
        ),
        Span::raw(if view.is_paused() { "  PAUSED" } else { "" }),
    ])];

    // Everything below is of the time before.
    if let Some(why) = &view.lost {
        let text = format!("daemon unreachable, waiting for it: {why}");
        lines.push(Line::styled(plain(&text).into_owned(), style(Tone::Bad)));
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
    let mut stored = vec![Span::raw(format!("disk {used} used, {free} free, {left}"))];

    // Entries that no sink delivers any more: they wait for somebody.
    let dead: u64 = status.sinks.iter().map(|sink| sink.dead_letters).sum();
    if dead > 0 {
        let text = format!("; {dead} dead letters");
        stored.push(Span::styled(text, style(Tone::Bad)));
    }
    lines.push(Line::from(stored));

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
    let lines = Table::new(columns).lines(rows, Some(width));
    lines.iter().map(drawn).collect()
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
        Column::time("FAILED REACTION"),
        Column::left("STATE").toned(Tone::of_word),
        Column::right("MS"),
        Column::middle_truncated("TAG"),
    ];
    table(columns, &rows, width)
}

fn draw_jobs(frame: &mut Frame<'_>, view: &View, area: Rect) {
    let jobs = view.shown();

    let row = |job: &&JobRow| {
        let mut row = job_rows::row(job);
        // The last one is the master, for which there is no room.
        row.truncate(8);
        row
    };

    let rows: Vec<_> = jobs.iter().map(row).collect();

    let columns = [
        Column::jid(),
        Column::time(time_title("TIME", "TIME (UTC)")).drop_order(1),
        Column::truncated("FUN").min_chars(11),
        Column::middle_truncated("TGT").min_chars(8),
        Column::truncated("USER").min_chars(6).drop_order(2),
        Column::right("RETURNED").toned(Tone::of_share),
        Column::right("FAILED").toned(Tone::of_failures),
        Column::truncated("ARG").min_chars(16).drop_order(3),
    ];

    let mut lines = table(columns, &rows, usize::from(area.width)).into_iter();
    let heading = lines.next();

    // Scrolls only as far as the selected row requires.
    let height = usize::from(area.height).saturating_sub(1).max(1);
    let first = view.selected().saturating_sub(height - 1);

    let lines = lines.enumerate().skip(first).take(height).map(|(n, line)| {
        if n == view.selected() {
            line.style(Style::default().add_modifier(Modifier::REVERSED))
        } else {
            line
        }
    });

    let lines: Vec<Line<'_>> = heading.into_iter().chain(lines).collect();
    frame.render_widget(Paragraph::new(lines), area);
}

fn draw_job(frame: &mut Frame<'_>, job: &OpenJob, scroll: u16, area: Rect) {
    // Only what is on the screen, because a return may be thousands of lines long.
    let shown = job.lines.iter().skip(usize::from(scroll));
    let shown = shown.take(usize::from(area.height));
    let lines: Vec<Line<'_>> = shown.map(drawn).collect();

    let title = format!(" job {} ", plain(&job.jid));
    let block = Block::default().borders(Borders::TOP).title(title);
    frame.render_widget(Paragraph::new(lines).block(block), area);
}

/// All keys, over what is shown.
fn draw_help(frame: &mut Frame<'_>, area: Rect) {
    let lines: Vec<Line<'_>> = KEYS
        .iter()
        .map(|(keys, what)| Line::raw(format!(" {keys:<18}{what} ")))
        .collect();

    let width = lines.iter().map(Line::width).max().unwrap_or(0) + 2;
    // A terminal may be smaller than the list.
    let size = |wanted: usize, most: u16| u16::try_from(wanted).unwrap_or(most).min(most);
    let width = size(width, area.width);
    let height = size(lines.len() + 2, area.height);
    let place = Rect {
        x: area.x + (area.width - width) / 2,
        y: area.y + (area.height - height) / 2,
        width,
        height,
    };

    frame.render_widget(Clear, place);
    let block = Block::default().borders(Borders::ALL).title(" keys ");
    frame.render_widget(Paragraph::new(lines).block(block), place);
}

fn foot_line(view: &View) -> Line<'static> {
    // In the order in which keys are handled: the list of keys takes every key, then the filter all
    // letters.
    let text = if view.has_help {
        "any key closes the list of keys".to_owned()
    } else if view.is_editing {
        format!(
            "filter: {}_   Enter keeps it, Esc removes it",
            plain(&view.filter)
        )
    } else if view.job.is_some() {
        "up/down scroll  Esc back  ? keys".to_owned()
    } else {
        let filter = match (view.filter.as_str(), view.is_failed_only()) {
            ("", false) => "/ filter  F failed only".to_owned(),
            ("", true) => "/ filter  F all jobs".to_owned(),
            (filter, _) => format!("filter: {}  Esc remove", plain(filter)),
        };
        format!("up/down select  Enter open  {filter}  p pause  ? keys  q quit")
    };

    Line::styled(text, Style::default().add_modifier(Modifier::DIM))
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::*;
    use crate::api::call::jobs::answers::{JobAnswer, Return};
    use crate::api::call::status::{BusRow, Health, LastFailure, Level, Reason, SinkRow, Status};
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
            // A second apart: at 80 columns this is what tells jobs apart.
            time: Time(Micros(1_795_240_048_000_000 + n.cast_signed() * 1_000_000)),
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
            (10, "TIME"),
            (11, "2026112105472"),
            (
                23,
                "up/down select  Enter open  / filter  F failed only  p pause  ? keys  q quit",
            ),
        ] {
            assert!(
                lines[line].contains(part),
                "{part:?} in line {line} of {lines:#?}"
            );
        }
        assert!(
            lines[11].contains("2/3") && lines[11].contains("root"),
            "{lines:#?}"
        );
        assert!(lines[22].contains("11-21 05:47:39"), "{lines:#?}");
    }

    /// A daemon with this many reasons and sinks.
    fn crowded(count: usize) -> View {
        let mut view = view();
        let reason = |n: usize| Reason {
            level: Level::Warning,
            part: format!("sink s{n}"),
            message: "it is behind".to_owned(),
        };
        let sink = |n: usize| SinkRow {
            name: format!("s{n}"),
            dead_letters: n as u64,
            ..SinkRow::default()
        };
        view.status.health.reasons = (0..count).map(reason).collect();
        view.status.sinks = (0..count).map(sink).collect();
        view
    }

    #[test]
    fn reasons_and_parts_have_the_room_there_is() {
        let count = |lines: &[String], start: &str| {
            lines.iter().filter(|line| line.starts_with(start)).count()
        };
        let more = |lines: &[String]| -> Vec<usize> {
            let numbers = lines.iter().filter_map(|line| {
                let rest = line.trim().strip_prefix("and ")?;
                rest.strip_suffix(" more, see `saltcellar status`")?
                    .parse()
                    .ok()
            });
            numbers.collect()
        };

        let lines = screen(&crowded(9), 200, 50);
        assert_eq!(count(&lines, "warning"), 7, "{lines:#?}");
        assert_eq!(more(&lines), [2], "{lines:#?}");
        assert_eq!(count(&lines, "sink"), 9, "{lines:#?}");
        assert!(lines.iter().any(|line| line.contains("; 36 dead letters")));
        // The jobs have most of the screen all the same.
        assert!(count(&lines, "2026") >= 18, "{lines:#?}");

        // What is left out is counted.
        let lines = screen(&crowded(9), 80, 24);
        let [reasons, parts] = more(&lines)[..] else {
            panic!("{lines:#?}")
        };
        assert_eq!(count(&lines, "warning") + reasons, 9, "{lines:#?}");
        // With the bus.
        assert_eq!(count(&lines, "sink") + parts, 10, "{lines:#?}");
        assert!(count(&lines, "2026") >= 6, "{lines:#?}");
    }

    #[test]
    fn failed_jobs_are_red_and_can_be_shown_alone() {
        let mut view = view();
        let failed = |view: &View| {
            let mut terminal = Terminal::new(TestBackend::new(120, 40)).unwrap();
            terminal.draw(|frame| draw(frame, view)).unwrap();
            let buffer = terminal.backend().buffer().clone();
            let red = buffer
                .content()
                .iter()
                .filter(|cell| cell.fg == Color::Red && cell.symbol() == "1");
            red.count()
        };
        colour::choose(colour::Choice::Always);
        let before = view.shown().len();
        assert!(failed(&view) > 5);
        colour::choose(colour::Choice::Never);
        assert_eq!(failed(&view), 0);

        view.press(KeyEvent::from(KeyCode::Char('F')));
        assert_eq!(view.shown().len(), before / 2);
        assert!(view.shown().iter().all(|job| job.failed > 0));
        let lines = screen(&view, 80, 24);
        assert!(lines[23].contains("F all jobs"), "{lines:#?}");
    }

    #[test]
    fn all_keys_are_listed_over_the_screen() {
        let mut view = view();
        view.press(KeyEvent::from(KeyCode::Char('?')));
        let lines = screen(&view, 80, 24);
        for (keys, what) in KEYS {
            assert!(
                lines
                    .iter()
                    .any(|line| line.contains(keys) && line.contains(what)),
                "{keys} in {lines:#?}"
            );
        }
        view.press(KeyEvent::from(KeyCode::Char('q')));
        assert!(
            !screen(&view, 80, 24)
                .iter()
                .any(|line| line.contains("Ctrl-C"))
        );
    }

    #[test]
    fn a_selected_job_below_the_screen_scrolls_the_list() {
        let mut view = view();
        for _ in 0..30 {
            view.press(KeyEvent::from(KeyCode::Down));
        }
        let lines = screen(&view, 80, 24);
        assert!(lines[22].contains("11-21 05:47:58"), "{lines:#?}");
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
        assert!(lines[12].contains("2026112105472"), "{lines:#?}");
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
        view.open("1".to_owned(), Some(&job), None);
        let lines = screen(&view, 80, 24);
        assert!(
            lines.iter().any(|line| line.contains("job 1")),
            "{lines:#?}"
        );
        assert!(
            lines.iter().any(|line| line.contains("\\x1b[31mred")),
            "{lines:#?}"
        );
        assert_eq!(lines[23], "up/down scroll  Esc back  ? keys");
    }

    #[test]
    fn tiny_terminals_do_not_panic() {
        for (width, height) in [(1, 1), (20, 3), (10, 50), (200, 5)] {
            screen(&view(), width, height);
        }
    }
}
