//! The state of the live view, and the keys that change it.

use std::cell::Cell;
use std::time::Instant;

use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

use crate::api::call::causes::CausesPage;
use crate::api::call::jobs::answers::{JobAnswer, JobRow, Return};
use crate::api::call::reactor::ReactionRow;
use crate::api::call::status::Status;
use crate::base::metrics::names;
use crate::cli::jobs::causes::cause_lines;
use crate::cli::jobs::facts::facts;
use crate::cli::jobs::missing_lines::missing_lines;
use crate::cli::jobs::one_return::{StateView, return_lines};
use crate::cli::{Line, joined};

/// All keys, for the screen that lists them.
pub(super) const KEYS: &[(&str, &str)] = &[
    ("up, k / down, j", "select a job, or scroll an open one"),
    (
        "page up / down",
        "ten at a time, or a screen of an open job",
    ),
    ("g, Home / G, End", "first / last"),
    ("Enter", "open the selected job"),
    ("Esc", "close the job, or remove the filter"),
    (
        "/",
        "only jobs whose function, target or user contains a string",
    ),
    ("F", "only jobs with failed returns, or all"),
    ("p, space", "pause, or go on"),
    ("?", "this list"),
    ("q, Ctrl-C", "quit"),
];

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Action {
    /// Nothing to do outside of the view.
    Stay,
    /// Read the jobs once more: others are wanted.
    Reload,
    /// Read this job and open it.
    Open(String),
    Quit,
}

/// Rates between the last two updates, per second.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(super) struct LiveRates {
    pub(super) events: f64,
    pub(super) returns: f64,
    pub(super) failed: f64,
    pub(super) entries: f64,
}

pub(super) struct OpenJob {
    pub(super) jid: String,
    /// What it is, which minions are missing, and the returns, failed ones first.
    pub(super) lines: Vec<Line>,
}

#[derive(Default)]
#[expect(clippy::struct_excessive_bools, reason = "they are independent")]
pub(super) struct View {
    pub(super) status: Status,
    /// Absent before the second update.
    pub(super) rates: Option<LiveRates>,
    pub(super) reactions: Vec<ReactionRow>,
    pub(super) job: Option<OpenJob>,
    /// Lines by which the open job is scrolled.
    pub(super) scroll: u16,
    pub(super) filter: String,
    /// Whether keys change the filter.
    pub(super) is_editing: bool,
    jobs: Vec<JobRow>,
    selected: usize,
    paused: bool,
    is_failed_only: bool,
    /// Whether the keys are listed.
    pub(super) has_help: bool,
    /// Lines of the list or of the open job, as drawn last.
    pub(super) page: Cell<u16>,
    /// Columns of the screen, as drawn last.
    pub(super) width: Cell<u16>,
    updated: Option<Instant>,
    /// Why the daemon does not respond now; what is shown is older.
    pub(super) lost: Option<String>,
}

const EVENTS: [&str; 3] = [
    names::bus_events,
    names::event_return_events,
    names::zmq_events,
];

impl View {
    pub(super) fn is_paused(&self) -> bool {
        self.paused
    }

    /// Whether only jobs with failed returns are shown.
    pub(super) fn is_failed_only(&self) -> bool {
        self.is_failed_only
    }

    /// Replaces what is shown. The selected job stays selected.
    pub(super) fn update(
        &mut self,
        now: Instant,
        status: Status,
        jobs: Vec<JobRow>,
        reactions: Vec<ReactionRow>,
    ) {
        let of = |status: &Status, counters: &[&str]| -> u64 {
            counters
                .iter()
                .filter_map(|name| status.counters.get(*name))
                .sum()
        };

        // A restarted daemon counts from zero.
        let before = self.updated.filter(|_| self.status.pid == status.pid);
        self.rates = before.map(|before| {
            // Two updates at the same instant must not divide by zero.
            let seconds = now
                .saturating_duration_since(before)
                .as_secs_f64()
                .max(1e-3);

            let rate = |counters: &[&str]| {
                of(&status, counters).saturating_sub(of(&self.status, counters)) as f64 / seconds
            };

            LiveRates {
                events: rate(&EVENTS),
                returns: rate(&[names::returns_stored]),
                failed: rate(&[names::returns_failed]),
                entries: rate(&[names::entries_stored]),
            }
        });

        // Remembered by id, because new jobs move the rows.
        let selected = self.shown().get(self.selected).map(|job| job.jid.clone());

        self.status = status;
        self.jobs = jobs;
        self.reactions = reactions;
        self.updated = Some(now);
        self.lost = None;

        // A selected first row means the newest job.
        if self.selected > 0
            && let Some(at) =
                selected.and_then(|jid| self.shown().iter().position(|job| job.jid == jid))
        {
            self.selected = at;
        }

        self.clamp();
    }

    /// Keeps what is shown, and says that it is no longer up to date.
    pub(super) fn lose(&mut self, why: String) {
        self.lost = Some(why);
    }

    pub(super) fn shown(&self) -> Vec<&JobRow> {
        let passes = |job: &&JobRow| {
            if self.is_failed_only && job.failed == 0 {
                return false;
            }
            [&job.fun, &job.tgt, &job.user]
                .iter()
                .any(|value| joined(value).contains(self.filter.as_str()))
        };
        self.jobs.iter().filter(passes).collect()
    }

    pub(super) fn selected(&self) -> usize {
        self.selected
    }

    /// Opens a job; none is stored any more.
    pub(super) fn open(
        &mut self,
        jid: String,
        job: Option<&JobAnswer>,
        causes: Option<&CausesPage>,
    ) {
        let width = match self.width.get() {
            // Nothing is drawn yet.
            0 => 80,
            width => usize::from(width),
        };

        let lines = job.map_or_else(
            || vec![Line::from("the job is no longer stored")],
            |job| job_lines(job, causes, width),
        );

        self.job = Some(OpenJob { jid, lines });
        self.scroll = 0;
    }

    fn clamp(&mut self) {
        self.selected = self.selected.min(self.shown().len().saturating_sub(1));
    }

    pub(super) fn press(&mut self, key: KeyEvent) -> Action {
        // The terminal is in raw mode, so Ctrl-C is a key and not a signal.
        if key.modifiers.contains(KeyModifiers::CONTROL) && key.code == KeyCode::Char('c') {
            return Action::Quit;
        }

        // Any key closes the list of keys and does nothing else, as the last line of the screen
        // says.
        if self.has_help {
            self.has_help = false;
            return Action::Stay;
        }

        // While the filter is edited, letters are text and not commands.
        if self.is_editing {
            match key.code {
                KeyCode::Enter => self.is_editing = false,
                KeyCode::Esc => (self.is_editing, self.filter) = (false, String::new()),
                KeyCode::Backspace => drop(self.filter.pop()),
                KeyCode::Char(c) => self.filter.push(c),
                _ => {}
            }
            self.clamp();
            return Action::Stay;
        }

        if key.code == KeyCode::Char('?') {
            self.has_help = true;
            return Action::Stay;
        }

        // An open job is scrolled with the keys that otherwise move the selection.
        if let Some(job) = &self.job {
            let lines = u16::try_from(job.lines.len()).unwrap_or(u16::MAX);
            let page = self.page.get();
            let scroll = self.scroll;
            let scroll = match key.code {
                KeyCode::Esc | KeyCode::Char('q') | KeyCode::Enter => {
                    self.job = None;
                    0
                }
                KeyCode::Down | KeyCode::Char('j') => scroll.saturating_add(1),
                KeyCode::Up | KeyCode::Char('k') => scroll.saturating_sub(1),
                KeyCode::PageDown | KeyCode::Char(' ') => scroll.saturating_add(page),
                KeyCode::PageUp => scroll.saturating_sub(page),
                KeyCode::Home | KeyCode::Char('g') => 0,
                KeyCode::End | KeyCode::Char('G') => u16::MAX,
                _ => scroll,
            };
            // The last line stays at the end of the screen.
            self.scroll = scroll.min(lines.saturating_sub(page));
            return Action::Stay;
        }

        match key.code {
            KeyCode::Char('q') => return Action::Quit,
            KeyCode::Char('p' | ' ') => self.paused = !self.paused,
            KeyCode::Char('/') => self.is_editing = true,
            KeyCode::Esc => self.filter.clear(),
            KeyCode::Down | KeyCode::Char('j') => self.selected += 1,
            KeyCode::Up | KeyCode::Char('k') => self.selected = self.selected.saturating_sub(1),
            KeyCode::PageDown => self.selected += 10,
            KeyCode::PageUp => self.selected = self.selected.saturating_sub(10),
            KeyCode::Home | KeyCode::Char('g') => self.selected = 0,
            KeyCode::End | KeyCode::Char('G') => self.selected = usize::MAX,
            KeyCode::Char('F') => {
                self.is_failed_only = !self.is_failed_only;
                self.clamp();
                // The daemon selects the jobs, because the rows here are the latest and may contain
                // no failure.
                return Action::Reload;
            }
            KeyCode::Enter => {
                if let Some(job) = self.shown().get(self.selected) {
                    return Action::Open(job.jid.clone());
                }
            }
            _ => {}
        }

        // The moves above do not look at the number of rows.
        self.clamp();
        Action::Stay
    }
}

/// Lines of one return; `jobs show` prints all of them.
const RETURN_LINES: usize = 40;

/// An open job on a screen with `width` columns: as `jobs show` begins.
fn job_lines(job: &JobAnswer, causes: Option<&CausesPage>, width: usize) -> Vec<Line> {
    let mut lines = facts(job, Some(width));
    if let Some(causes) = causes {
        lines.extend(cause_lines(causes, Some(width)));
    }
    // Without causes the names are shown alone, without what is known of each minion.
    let groups = causes.map(|causes| causes.missing.as_slice());
    lines.extend(missing_lines(
        groups.unwrap_or_default(),
        &job.missing,
        Some(width),
    ));

    let view = StateView {
        is_report: true,
        ..StateView::default()
    };
    let mut returns: Vec<&Return> = job.returns.iter().collect();
    // Stable: among each other they stay in the order of the response.
    returns.sort_by_key(|answer| !answer.failed);

    for answer in returns {
        let mut shown = return_lines(&job.row.jid, answer, view);
        // One long return would push the others out of reach.
        if shown.len() > RETURN_LINES {
            let more = shown.len() - RETURN_LINES;
            shown.truncate(RETURN_LINES);
            shown.push(format!("    and {more} more lines").into());
        }
        lines.push(Line::default());
        lines.extend(shown);
    }

    if job.more {
        let text = format!("more returns: saltcellar jobs show {}", job.row.jid);
        lines.extend([Line::default(), text.into()]);
    }
    lines
}

#[cfg(test)]
mod tests;
