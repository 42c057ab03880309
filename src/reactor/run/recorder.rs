//! Writing records into the log. What the store does not take is offered again until it does.

use std::sync::mpsc::sync_channel;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use super::lock;
use crate::channel::Refused;
use crate::limits::{REACTOR_RECORD_TIMEOUT, REACTOR_RECORDS_MAX};
use crate::metrics::Metrics;
use crate::model::Batch;
use crate::store::Intake;

/// MasterExecutor records to the store.
pub struct Recorder {
    /// Gone once the daemon stops: then the store must be able to end.
    intake: Mutex<Option<Intake>>,
    /// What was refused, or failed.
    again: Arc<Mutex<Vec<Arc<Batch>>>>,
    /// Redacts what must not be stored.
    clean: Clean,
    metrics: Arc<Metrics>,
}

/// Redacts in a record what must not be stored.
pub type Clean = Arc<dyn Fn(Batch) -> Batch + Send + Sync>;

impl Recorder {
    /// Writes through that.
    pub fn new(intake: Intake, clean: Clean, metrics: Arc<Metrics>) -> Self {
        Self { intake: Mutex::new(Some(intake)), again: Arc::default(), clean, metrics }
    }

    /// Writes a record. It is not waited for: until it is in the log, its event counts as open.
    pub fn write(&self, batch: Batch) {
        self.offer(Arc::new((self.clean)(batch)));
    }

    fn offer(&self, batch: Arc<Batch>) {
        let Some(intake) = lock(&self.intake).clone() else { return };
        let (again, metrics, kept) = (self.again.clone(), self.metrics.clone(), batch.clone());
        let done = Box::new(move |stored: Result<(), String>| {
            if stored.is_err() {
                metrics.reactor_records_failed.add(1);
                lock(&again).push(kept);
            }
        });
        if let Err(Refused::Full((batch, _)) | Refused::Closed((batch, _))) =
            intake.try_share(batch, Some(done))
        {
            lock(&self.again).push(batch);
        }
    }

    /// Writes a record and waits until it is on disk.
    pub fn write_and_wait(&self, batch: Batch) -> Result<(), String> {
        let gone = || "the daemon is stopping".to_owned();
        let intake = lock(&self.intake).clone().ok_or_else(gone)?;
        let (tell, told) = sync_channel(1);
        let done = Box::new(move |stored| drop(tell.try_send(stored)));
        intake.submit((self.clean)(batch), Some(done)).map_err(|error| error.to_string())?;
        drop(intake);
        told.recv_timeout(REACTOR_RECORD_TIMEOUT)
            .unwrap_or_else(|_| Err("the disk does not answer".to_owned()))
    }

    /// Offers again what the store has not taken.
    pub fn offer_again(&self) {
        let waiting = std::mem::take(&mut *lock(&self.again));
        for batch in waiting {
            self.offer(batch);
        }
    }

    /// Are so many records waiting that nothing more should be begun?
    pub fn is_full(&self) -> bool {
        lock(&self.again).len() >= REACTOR_RECORDS_MAX
    }

    /// Writes nothing more. What is waiting is lost, and its events are open.
    pub fn close(&self, timeout: Duration) {
        let until = std::time::Instant::now() + timeout;
        while !lock(&self.again).is_empty() && std::time::Instant::now() < until {
            self.offer_again();
            std::thread::sleep(Duration::from_millis(10));
        }
        drop(lock(&self.intake).take());
    }
}
