//! Writes records to the log. Rejected records are offered again until the store accepts them.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::time::Duration;

use parking_lot::Mutex;

use crate::base::limits::REACTOR_RECORDS_MAX;
use crate::base::metrics::Metrics;
use crate::model::Batch;
use crate::policy::master_keys::MasterKeys;
use crate::store::Intake;

pub(crate) struct Recorder {
    /// `None` once the daemon stops, because the store stops when all senders are gone. Lock order:
    /// no other lock is taken under it.
    intake: Mutex<Option<Intake>>,
    /// Rejected or failed records. Lock order: after the scheduler; no other lock is taken under it.
    waiting: Arc<Mutex<Vec<Arc<Batch>>>>,
    /// Redacts masters' keys in records.
    keys: Arc<MasterKeys>,
    metrics: Arc<Metrics>,
}

/// A record on its way to the disk. It may be stored even if nobody waits for it any more.
#[derive(Debug)]
pub(crate) struct PendingRecord(Receiver<Result<(), String>>);

impl PendingRecord {
    /// Waits until the record is on disk or has failed; an error is the record itself, if that
    /// takes longer than `timeout`.
    pub(crate) fn wait(self, timeout: Duration) -> Result<Result<(), String>, Self> {
        match self.0.recv_timeout(timeout) {
            Ok(stored) => Ok(stored),
            Err(RecvTimeoutError::Timeout) => Err(self),
            Err(RecvTimeoutError::Disconnected) => {
                Ok(Err("the store has given up the record".to_owned()))
            }
        }
    }
}

impl Recorder {
    pub(crate) fn new(intake: Intake, keys: Arc<MasterKeys>, metrics: Arc<Metrics>) -> Self {
        Self {
            intake: Mutex::new(Some(intake)),
            waiting: Arc::default(),
            keys,
            metrics,
        }
    }

    /// Writes a record without waiting. Its event stays open until the record is in the log.
    pub(crate) fn write(&self, batch: Batch) {
        self.offer(Arc::new(self.keys.clean_batch(batch)));
    }

    fn offer(&self, batch: Arc<Batch>) {
        let Some(intake) = self.intake.lock().clone() else {
            return;
        };

        let (waiting, metrics, kept) = (self.waiting.clone(), self.metrics.clone(), batch.clone());
        // Called by the store once the batch is on disk or has failed; it must not block there.
        let done = Box::new(move |stored: Result<(), String>| {
            if stored.is_err() {
                metrics.reactor_record_writes_failed.add(1);
                waiting.lock().push(kept);
            }
        });

        if let Err(refused) = intake.try_share(batch, Some(done)) {
            self.waiting.lock().push(refused.into_inner().0);
        }
    }

    /// Writes a record for whose storage the caller waits.
    pub(crate) fn submit(&self, batch: Batch) -> Result<PendingRecord, String> {
        let stopping = || "the daemon is stopping".to_owned();
        let intake = self.intake.lock().clone().ok_or_else(stopping)?;

        let (sender, receiver) = sync_channel(1);
        // The receiver may have given up; nobody needs the result then.
        let done = Box::new(move |stored| drop(sender.try_send(stored)));
        // An intake that exists keeps the store from stopping, so it is not held while waiting.
        intake
            .submit(self.keys.clean_batch(batch), Some(done))
            .map_err(|error| error.to_string())?;
        Ok(PendingRecord(receiver))
    }

    /// Offers rejected records again.
    pub(crate) fn retry(&self) {
        // Taken out as a whole, because `offer` puts rejected records back.
        let waiting = std::mem::take(&mut *self.waiting.lock());
        for batch in waiting {
            self.offer(batch);
        }
    }

    /// True if too many records wait for another reaction to start.
    pub(crate) fn is_full(&self) -> bool {
        self.waiting.lock().len() >= REACTOR_RECORDS_MAX
    }

    /// Stops writing. The events of waiting records stay open.
    pub(crate) fn close(&self, timeout: Duration) {
        let until = std::time::Instant::now() + timeout;
        while !self.waiting.lock().is_empty() && std::time::Instant::now() < until {
            self.retry();
            std::thread::sleep(Duration::from_millis(10));
        }
        drop(self.intake.lock().take());
    }
}
