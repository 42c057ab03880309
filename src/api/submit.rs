//! Submission of entries to the appender, shared by the interfaces.

use std::time::Duration;

use crossbeam_channel::TrySendError;
use tokio::time::{Instant, sleep};

use crate::base::limits::INTAKE_TIMEOUT;
use crate::model::Batch;
use crate::store::{Done, Intake};

/// Passes entries to the appender, waiting up to [`INTAKE_TIMEOUT`] for room. `done` is always
/// called.
pub(super) async fn submit(intake: &Intake, mut batch: Batch, done: Done) {
    let mut done = Some(done);
    let deadline = Instant::now() + INTAKE_TIMEOUT;

    loop {
        // A batch that is refused comes back with its callback, so neither is lost between two
        // attempts.
        let (done, why) = match intake.try_submit(batch, done.take()) {
            Ok(()) => return,
            Err(TrySendError::Full((back, back_done))) if Instant::now() < deadline => {
                batch = back;
                done = back_done;
                // One cannot wait asynchronously for room in the queue. A millisecond is little
                // against a commit.
                sleep(Duration::from_millis(1)).await;
                continue;
            }
            Err(TrySendError::Full((_, done))) => (done, "the disk cannot keep up; retry later"),
            Err(TrySendError::Disconnected((_, done))) => (done, "the daemon is stopping"),
        };

        // Dropped, the callback would leave its caller waiting.
        if let Some(done) = done {
            done(Err(why.to_owned()));
        }
        return;
    }
}
