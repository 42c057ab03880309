//! The pool in which Salt's reactor runs runners and wheel functions: the times at which it was
//! full and calls had to wait.

use std::collections::{HashMap, VecDeque};
use std::time::Duration;

use crate::base::clock::Micros;
use crate::base::limits::REACTOR_SHADOW_WINDOW_MAX;

/// See the module. All timestamps come from the log.
#[derive(Debug, Default)]
pub(super) struct Pool {
    workers: usize,
    under_way: HashMap<String, Micros>,
    /// Times at which all workers were busy, oldest first; the last may have no end yet.
    full: VecDeque<(Micros, Option<Micros>)>,
    now: Micros,
}

impl Pool {
    /// A pool with this number of workers; 0 stands for unlimited.
    pub(super) fn new(workers: usize) -> Self {
        Self {
            workers,
            ..Self::default()
        }
    }

    pub(super) fn workers(&self) -> usize {
        self.workers
    }

    /// True if it is or was full recently.
    pub(super) fn was_full(&self) -> bool {
        !self.full.is_empty()
    }

    pub(super) fn began(&mut self, jid: &str, at: Micros) {
        self.under_way.insert(jid.to_owned(), at);
        self.pass(at);
        let is_open = self.full.back().is_some_and(|(_, end)| end.is_none());
        if self.workers > 0 && self.under_way.len() >= self.workers && !is_open {
            self.full.push_back((at, None));
        }
    }

    pub(super) fn ended(&mut self, jid: &str, at: Micros) {
        self.under_way.remove(jid);
        self.pass(at);
    }

    /// Advances the time. Calls older than the longest window count as ended.
    pub(super) fn pass(&mut self, now: Micros) {
        self.now = self.now.max(now);
        let oldest = self.now.before(REACTOR_SHADOW_WINDOW_MAX);
        // A result that never came must not keep the pool full.
        self.under_way.retain(|_, began| *began > oldest);

        if let Some((_, end)) = self.full.back_mut()
            && end.is_none()
            && self.under_way.len() < self.workers
        {
            *end = Some(self.now);
        }

        // No window reaches back to these.
        while self
            .full
            .front()
            .is_some_and(|(_, end)| end.is_some_and(|end| end < oldest))
        {
            self.full.pop_front();
        }
    }

    /// The end of a window that starts `at` that time and restarts at each moment at which the pool
    /// is full within it.
    pub(super) fn extended(&self, at: Micros, window: Duration) -> Micros {
        let mut to = at.after(window);
        for (begin, end) in &self.full {
            let end = end.unwrap_or(self.now);
            if *begin <= to && end >= at {
                to = to.max(end.after(window));
            }
        }
        to.min(at.after(REACTOR_SHADOW_WINDOW_MAX))
    }
}
