//! From a call to the appender: shared by the doors.

use std::time::Duration;

use tokio::time::{Instant, sleep};

use crate::channel::Refused;
use crate::limits::INTAKE_PATIENCE;
use crate::model::Batch;
use crate::store::{Done, Intake};

/// Hands entries to the appender, waiting for room within reason. `done` is called in any case.
pub(super) async fn submit(intake: &Intake, mut batch: Batch, done: Done) {
    let mut done = Some(done);
    let deadline = Instant::now() + INTAKE_PATIENCE;
    loop {
        let (done, why) = match intake.try_submit(batch, done.take()) {
            Ok(()) => return,
            Err(Refused::Full((back, back_done))) if Instant::now() < deadline => {
                (batch, done) = (back, back_done);
                sleep(Duration::from_millis(1)).await;
                continue;
            }
            Err(Refused::Full((_, done))) => (done, "the disk cannot keep up; try again later"),
            Err(Refused::Closed((_, done))) => (done, "the daemon is stopping"),
        };
        if let Some(done) = done {
            done(Err(why.to_owned()));
        }
        return;
    }
}
