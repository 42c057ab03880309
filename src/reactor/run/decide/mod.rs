//! The decisions about a reaction and its calls, as pure functions: the facts are gathered before,
//! and the decision is carried out after.
//!
//! # Invariant
//!
//! A call that may have been made is never recorded as not made, and is resent only if a
//! repetition is harmless.

use super::record::ReactionState;
use super::{CallerError, MasterError};
use crate::reactor::stored::SkipReason;

/// Why an event on its arrival gets no reaction.
pub(super) fn at_arrival(depth: u32, depth_max: u32) -> Option<SkipReason> {
    // Recorded like any skipped reaction, because `doctor` finds the loop by these records.
    (depth > depth_max).then_some(SkipReason::Depth)
}

/// The facts about a task at its turn.
#[derive(Debug, Clone, Copy)]
#[expect(clippy::struct_excessive_bools, reason = "independent facts")]
pub(super) struct Turn {
    /// The event is older than `reactor.age_max`, and no user asked for the reaction.
    pub(super) is_old: bool,
    /// It was rendered at an earlier turn, or is a replay of recorded calls.
    pub(super) has_begun: bool,
    /// A call of it may have been sent, even before the daemon's last start.
    pub(super) may_have_sent: bool,
    pub(super) is_replay: bool,
    /// One of its rules still matches the event.
    pub(super) has_rule: bool,
    /// Another master's daemon reacts to the event.
    pub(super) is_of_peer: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum AtTurn {
    /// Record that it is skipped, for that reason.
    Skip(SkipReason),
    /// Pass it through the throttles, and render it.
    Begin,
    /// Make its calls.
    Continue,
}

impl Turn {
    pub(super) fn decide(self) -> AtTurn {
        // A call that was sent may have been executed, so it is settled at any age.
        if self.is_old && !self.may_have_sent {
            return AtTurn::Skip(SkipReason::TooOld);
        }
        if self.has_begun {
            return AtTurn::Continue;
        }

        // The master's configuration contains a `cluster_id` since the event was queued.
        if self.is_of_peer && !self.is_replay && !self.may_have_sent {
            return AtTurn::Skip(SkipReason::Peer);
        }

        // A removed rule does not handle pending events, even if it was added again.
        if !self.is_replay && !self.has_rule {
            return AtTurn::Skip(SkipReason::NoRule);
        }
        AtTurn::Begin
    }
}

/// The facts by which calls are made, or only recorded.
#[derive(Debug, Clone, Copy)]
#[expect(clippy::struct_excessive_bools, reason = "independent facts")]
pub(super) struct Mode {
    /// The reactor is in shadow mode.
    pub(super) shadow: bool,
    /// A throttle has skipped the reaction, which is rendered for the comparison only.
    pub(super) is_skipped: bool,
    pub(super) is_replay: bool,
    /// The event is from after the end of shadow mode, and Salt's reactor was not in charge of
    /// it as a fallback.
    pub(super) is_ours: bool,
}

impl Mode {
    /// True if calls are recorded and not made.
    pub(super) fn only_watches(self) -> bool {
        // A user who replays a reaction wants its calls, whoever was in charge of the event.
        self.shadow || self.is_skipped || !(self.is_replay || self.is_ours)
    }
}

/// The facts about a call before a try.
#[derive(Debug, Clone, Copy)]
#[expect(clippy::struct_excessive_bools, reason = "independent facts")]
pub(super) struct Attempt {
    /// The lease forbids calls now.
    pub(super) is_held: bool,
    /// It can never be made: the rule does not allow it, or this daemon cannot make it.
    pub(super) is_refused: bool,
    /// See [`Mode::only_watches`].
    pub(super) only_watches: bool,
    /// See [`Turn::is_old`].
    pub(super) is_old: bool,
    /// The log contains a mark that it was started before the daemon's last start.
    pub(super) was_started: bool,
    /// It must not be resent if it may have been made.
    pub(super) must_not_repeat: bool,
    /// Number of tries in this run of the daemon.
    pub(super) tries: u32,
    /// An earlier try may have reached the master. True for each call after a restart.
    pub(super) maybe_sent: bool,
    /// It was sent, its response was lost, and it is not resent.
    pub(super) is_unanswered: bool,
    /// The log was searched for a proof that it was made, and contains none.
    pub(super) is_searched: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Next {
    /// Wait for the lease.
    Hold,
    /// Dead-letter it, for the reason of the refusal.
    Refuse,
    /// Record it as it would be made.
    Show,
    /// Search the log for a proof, until a time limit.
    Settle,
    /// Search the log for a proof once, and decide again without one.
    Search,
    /// Dead-letter it, for that reason.
    Dead(&'static str),
    /// Record that its outcome is unknown, for that reason.
    Unknown(&'static str),
    Send,
}

impl Attempt {
    pub(super) fn next(self) -> Next {
        // A lease can end between two calls of a plan.
        if self.is_held {
            return Next::Hold;
        }
        // This applies in shadow as well, because the record shows the result that the call would
        // have.
        if self.is_refused {
            return Next::Refuse;
        }

        // After a restart only a try proves that the call was sent.
        let was_sent =
            self.was_started || self.is_unanswered || (self.maybe_sent && self.tries > 0);
        if self.only_watches && !was_sent {
            return Next::Show;
        }

        if self.is_unanswered || (self.was_started && self.must_not_repeat) {
            return Next::Settle;
        }

        // The response may be lost although the job was published, so the log is asked before a
        // new try.
        if self.maybe_sent && !self.is_searched {
            return Next::Search;
        }

        if self.is_old || self.only_watches {
            let why = if self.only_watches {
                "the reactor is in shadow mode now"
            } else {
                "the event is older than `reactor.age_max`"
            };
            return if self.maybe_sent || self.was_started {
                Next::Unknown(why)
            } else {
                Next::Dead(why)
            };
        }

        Next::Send
    }
}

/// Why a try of a call failed, by the consequence.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Failure {
    /// The master is unreachable: wait, without counting the try.
    Unreachable(String),
    /// The mark that must precede the call could not be stored: wait, without counting the try.
    MarkNotStored(String),
    /// The call was not made: a retry is safe.
    NotMade(String),
    /// The call may have been made.
    PossiblyMade(String),
    /// The call was made, or can never be: do not retry.
    Final(String),
}

impl From<MasterError> for Failure {
    fn from(error: MasterError) -> Self {
        let words = error.to_string();
        match error {
            MasterError::Unreachable { .. } => Self::Unreachable(words),
            // A rejection is also retried: a master that restarts rejects the key that it has just
            // replaced, and accepts the next request.
            error if error.was_not_done() => Self::NotMade(words),
            _ => Self::PossiblyMade(words),
        }
    }
}

impl From<CallerError> for Failure {
    fn from(error: CallerError) -> Self {
        match error {
            CallerError::NotStarted(words) => Self::NotMade(words),
            CallerError::Failed(words) => Self::Final(words),
            CallerError::Lost(words) => Self::PossiblyMade(words),
        }
    }
}

impl Failure {
    /// False if nothing was tried: neither the call nor its repetition is used up.
    pub(super) fn is_a_try(&self) -> bool {
        !matches!(self, Self::Unreachable(_) | Self::MarkNotStored(_))
    }

    pub(super) fn into_why(self) -> String {
        match self {
            Self::Unreachable(why)
            | Self::MarkNotStored(why)
            | Self::NotMade(why)
            | Self::PossiblyMade(why)
            | Self::Final(why) => why,
        }
    }

    /// What follows from the failure of a try. `tries` includes it.
    pub(super) fn consequence(
        &self,
        tries: u32,
        tries_max: u32,
        maybe_sent: bool,
        must_not_repeat: bool,
    ) -> Consequence {
        let possibly_made = matches!(self, Self::PossiblyMade(_));
        match self {
            Self::Unreachable(_) | Self::MarkNotStored(_) => Consequence::Wait,
            Self::Final(_) => Consequence::Dead,
            Self::PossiblyMade(_) if must_not_repeat => Consequence::Settle,
            _ if tries < tries_max => Consequence::Retry,
            _ if possibly_made || maybe_sent => Consequence::Search,
            // No try was sent, so the outcome is certain.
            _ => Consequence::Dead,
        }
    }
}

/// What follows from a failed try.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Consequence {
    /// Try again soon: nothing was sent, so this was no try.
    Wait,
    /// Try again after the pause of the rule.
    Retry,
    /// Do not send it again; search the log for a proof, until a time limit.
    Settle,
    /// Search the log once; without a proof its outcome is unknown.
    Search,
    /// Dead-letter it.
    Dead,
}

/// Whether the search for a proof goes on, for a call that has no response, has no proof yet, and is
/// not resent. `may_start_late` is true for a runner or wheel function, which a busy master may
/// start long after the request; `has_time` until the time of the search is over and the log of that
/// time has been read.
pub(super) fn searches_on(may_start_late: bool, has_time: bool) -> bool {
    // A job is proved now or not at all.
    may_start_late && has_time
}

/// The state of a reaction at its end, from its number of calls and of those that failed.
pub(super) fn state(
    skipped: Option<SkipReason>,
    has_failures: bool,
    calls: usize,
    dead: usize,
) -> ReactionState {
    match (skipped, has_failures, dead) {
        (Some(why), ..) => ReactionState::Skipped(why),
        (None, false, 0) => ReactionState::Done,
        // At least one call was made, whatever else failed.
        _ if dead < calls => ReactionState::Partial,
        (None, true, _) => ReactionState::Failed,
        (None, false, _) => ReactionState::Dead,
    }
}

#[cfg(test)]
mod tests;
