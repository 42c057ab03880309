//! Calls that return when there is something new, or after a time. They occupy no thread while they
//! wait.

use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{Instant, sleep, sleep_until};

use super::archive::Archive;
use super::changing::ChangeCtx;
use super::read_ctx::ReadCtx;
use crate::api::budget::Budget;
use crate::base::limits::POLL_WAIT_MAX;
use crate::model::SeqNo;
use crate::wire::call::CallError;

pub(super) enum Attempt<A> {
    Done(A),
    /// Nothing yet, but the log contains more.
    Again,
    /// Nothing yet: attempt it again when the entry with this number is durable.
    After(SeqNo),
    /// Nothing, for a reason that an administrator ends.
    Idle,
}

/// Pause between two attempts of a call that is idle.
const IDLE_PAUSE: Duration = Duration::from_millis(500);

/// Makes one attempt, which does not wait. The flag is set for the last one, which must return
/// [`Attempt::Done`].
type MakeAttempt<A> = Box<dyn FnMut(&Archive, bool) -> Result<Attempt<A>, CallError> + Send>;

/// A polling call with its arguments.
pub(crate) struct Poll<A> {
    wait: Duration,
    gather: Duration,
    attempt: MakeAttempt<A>,
}

impl<A: Send + 'static> Poll<A> {
    /// Like [`Poll::changing`], under the limits of the caller of `reading`. Entries that the caller may
    /// not know do not end the wait.
    pub(super) fn limited(
        reading: &ReadCtx<'_>,
        wait_ms: Option<u64>,
        gather: Duration,
        mut attempt: impl FnMut(&ReadCtx<'_>, bool) -> Result<Attempt<A>, CallError> + Send + 'static,
    ) -> Self {
        let limits = reading.limits.clone();
        Self::of(wait_ms, gather, move |archive, is_last| {
            attempt(&ReadCtx::of(archive, &limits), is_last)
        })
    }

    /// A call that waits at most for `wait_ms`, and for `gather` after the first news. Each attempt
    /// may change the store, so only a call that changes it can make one.
    pub(super) fn changing(
        _: &ChangeCtx<'_, Archive>,
        wait_ms: Option<u64>,
        gather: Duration,
        attempt: impl FnMut(&Archive, bool) -> Result<Attempt<A>, CallError> + Send + 'static,
    ) -> Self {
        Self::of(wait_ms, gather, attempt)
    }

    fn of(
        wait_ms: Option<u64>,
        gather: Duration,
        attempt: impl FnMut(&Archive, bool) -> Result<Attempt<A>, CallError> + Send + 'static,
    ) -> Self {
        let wait = Duration::from_millis(wait_ms.unwrap_or(0)).min(POLL_WAIT_MAX);
        Self {
            wait,
            gather,
            attempt: Box::new(attempt),
        }
    }

    /// The same call with its response in another form.
    pub(super) fn map<B>(
        self,
        form: impl Fn(A) -> Result<B, CallError> + Send + 'static,
    ) -> Poll<B> {
        let mut attempt = self.attempt;
        Poll {
            wait: self.wait,
            gather: self.gather,
            attempt: Box::new(move |archive, is_last| {
                Ok(match attempt(archive, is_last)? {
                    Attempt::Done(answer) => Attempt::Done(form(answer)?),
                    Attempt::Again => Attempt::Again,
                    Attempt::After(seq) => Attempt::After(seq),
                    Attempt::Idle => Attempt::Idle,
                })
            }),
        }
    }

    /// Attempts the call until it has a result. After the wait, or when `stop` turns true, the next
    /// attempt is the last one. Each attempt is carried out within the client's budget; between
    /// attempts the call holds nothing.
    pub(in crate::api) async fn run(
        self,
        archive: Archive,
        budget: &Budget,
        mut stop: watch::Receiver<bool>,
    ) -> Result<A, CallError> {
        let Self {
            wait,
            gather,
            mut attempt,
        } = self;

        let deadline = Instant::now() + wait;
        loop {
            // Looked at before the attempt: news that arrive during the last one are in it.
            let is_last = *stop.borrow() || Instant::now() >= deadline;

            let archive_of_work = archive.clone();
            // The closure goes to a thread and comes back, because it keeps the position of the
            // search.
            let work = move || {
                let outcome = attempt(&archive_of_work, is_last);
                (attempt, outcome)
            };

            let done = budget.carry_out(work).await?;
            attempt = done.0;

            let outcome = match done.1? {
                Attempt::Done(answer) => return Ok(answer),
                // The search ended at its limit of work. Each round is a new claim on the budget,
                // which gives other clients their turn.
                Attempt::Again => continue,
                other => other,
            };

            let news = async {
                match outcome {
                    Attempt::After(seq) => {
                        // News come in groups: a response after a short time contains all of them.
                        archive.store.durable_after(seq).await;
                        sleep(gather).await;
                    }
                    _ => sleep(IDLE_PAUSE).await,
                }
            };

            // The deadline and the end of the daemon lead to the last attempt, which returns
            // what there is.
            tokio::select! {
                () = news => {}
                () = sleep_until(deadline) => {}
                _ = stop.wait_for(|stop| *stop) => {}
            }
        }
    }
}
