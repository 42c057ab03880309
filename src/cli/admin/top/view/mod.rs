//! The state of the live view, and the keys that change it.

use std::time::Instant;

use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

use crate::api::call::jobs::answers::{JobAnswer, JobRow};
use crate::api::call::reactor::ReactionRow;
use crate::api::call::status::Status;
use crate::base::metrics::names;
use crate::cli::{joined, nested};

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Action {
    /// Nothing to do outside of the view.
    Stay,
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
    /// All that is known of it.
    pub(super) text: String,
}

#[derive(Default)]
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
    updated: Option<Instant>,
    /// Why the daemon does not answer now; what is shown is older.
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
    ) -> Result<(), serde_json::Error> {
        let text = match job {
            Some(job) => {
                let mut fields = serde_json::to_value(job)?;
                // What is not known would only take the place of what is.
                if let Some(fields) = fields.as_object_mut() {
                    fields.retain(|_, value| !value.is_null());
                }
                nested(&fields, 0)
            }
            None => "the job is no longer stored".to_owned(),
        };
        self.job = Some(OpenJob { jid, text });
        self.scroll = 0;
        Ok(())
    }

    fn clamp(&mut self) {
        self.selected = self.selected.min(self.shown().len().saturating_sub(1));
    }

    pub(super) fn press(&mut self, key: KeyEvent) -> Action {
        // The terminal is in raw mode, so Ctrl-C is a key and not a signal.
        if key.modifiers.contains(KeyModifiers::CONTROL) && key.code == KeyCode::Char('c') {
            return Action::Quit;
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

        // An open job is scrolled with the keys that otherwise move the selection.
        if self.job.is_some() {
            match key.code {
                KeyCode::Esc | KeyCode::Char('q') | KeyCode::Enter => self.job = None,
                KeyCode::Down | KeyCode::Char('j') => self.scroll = self.scroll.saturating_add(1),
                KeyCode::Up | KeyCode::Char('k') => self.scroll = self.scroll.saturating_sub(1),
                KeyCode::PageDown => self.scroll = self.scroll.saturating_add(10),
                KeyCode::PageUp => self.scroll = self.scroll.saturating_sub(10),
                _ => {}
            }
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
            KeyCode::Home => self.selected = 0,
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

#[cfg(test)]
mod tests;
