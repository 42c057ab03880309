//! The queue between threads: bounded, lock-free, named.
//!
//! A queue is named for its messages; its documentation describes the behaviour when it is full.

use std::time::Duration;

use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, TrySendError};

/// Creates a queue for `capacity` messages.
pub fn bounded<T>(name: &'static str, capacity: usize) -> (Tx<T>, Rx<T>) {
    let (tx, rx) = crossbeam_channel::bounded(capacity);
    (Tx { name, tx }, Rx { name, rx })
}

/// The sending half; clones send into the same queue.
#[derive(Debug)]
pub struct Tx<T> {
    name: &'static str,
    tx: Sender<T>,
}

/// The receiving half.
#[derive(Debug)]
pub struct Rx<T> {
    name: &'static str,
    rx: Receiver<T>,
}

/// The result of [`Rx::next`].
#[derive(Debug, PartialEq, Eq)]
pub enum Next<T> {
    /// A message.
    Message(T),
    /// No message in time.
    Idle,
    /// All senders are gone.
    Closed,
}

/// A message with the queue that it came from.
#[derive(Debug, PartialEq, Eq)]
pub enum Either<T, U> {
    /// The queue of the call.
    This(T),
    /// The second queue.
    Other(U),
}

/// A message that could not be sent.
#[derive(Debug)]
pub enum Refused<T> {
    /// The queue is full.
    Full(T),
    /// The receiver is gone.
    Closed(T),
}

impl<T> Clone for Tx<T> {
    fn clone(&self) -> Self {
        Self { name: self.name, tx: self.tx.clone() }
    }
}

impl<T> Tx<T> {
    /// Sends, waiting for room; returns the message if the receiver is gone.
    pub fn send(&self, message: T) -> Result<(), T> {
        self.tx.send(message).map_err(|gone| gone.0)
    }

    /// Sends without waiting.
    pub fn try_send(&self, message: T) -> Result<(), Refused<T>> {
        self.tx.try_send(message).map_err(|why| match why {
            TrySendError::Full(m) => Refused::Full(m),
            TrySendError::Disconnected(m) => Refused::Closed(m),
        })
    }

    /// Messages waiting.
    pub fn depth(&self) -> usize {
        self.tx.len()
    }

    /// The queue's name.
    pub fn name(&self) -> &'static str {
        self.name
    }
}

impl<T> Rx<T> {
    /// Waits up to `pause` for a message.
    pub fn next(&self, pause: Duration) -> Next<T> {
        match self.rx.recv_timeout(pause) {
            Ok(m) => Next::Message(m),
            Err(RecvTimeoutError::Timeout) => Next::Idle,
            Err(RecvTimeoutError::Disconnected) => Next::Closed,
        }
    }

    /// Waits up to `pause` for a message of this queue or of `other`. `Closed` as soon as this queue is.
    pub fn next_of<U>(&self, other: &Rx<U>, pause: Duration) -> Next<Either<T, U>> {
        crossbeam_channel::select! {
            recv(self.rx) -> message => message.map_or(Next::Closed, |m| Next::Message(Either::This(m))),
            recv(other.rx) -> message => message.map_or(Next::Idle, |m| Next::Message(Either::Other(m))),
            default(pause) => Next::Idle,
        }
    }

    /// Whether no message is waiting.
    pub fn is_empty(&self) -> bool {
        self.rx.is_empty()
    }

    /// Receives without waiting.
    pub fn try_next(&self) -> Option<T> {
        self.rx.try_recv().ok()
    }

    /// The queue's name.
    pub fn name(&self) -> &'static str {
        self.name
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_queue_returns_the_message() {
        let (tx, rx) = bounded("test", 1);
        tx.send(1).unwrap();
        assert!(matches!(tx.try_send(2), Err(Refused::Full(2))));
        assert_eq!(tx.depth(), 1);
        assert_eq!(rx.next(Duration::ZERO), Next::Message(1));
        assert_eq!(rx.next(Duration::ZERO), Next::Idle);
        drop(tx);
        assert_eq!(rx.next(Duration::ZERO), Next::Closed);
    }

    #[test]
    fn one_call_waits_for_two_queues() {
        let ((tx, rx), (other_tx, other_rx)) = (bounded("one", 1), bounded::<u8>("other", 1));
        tx.send('a').unwrap();
        assert_eq!(rx.next_of(&other_rx, Duration::ZERO), Next::Message(Either::This('a')));
        other_tx.send(2).unwrap();
        assert_eq!(rx.next_of(&other_rx, Duration::ZERO), Next::Message(Either::Other(2)));
        assert_eq!(rx.next_of(&other_rx, Duration::ZERO), Next::Idle);
        drop(tx);
        assert_eq!(rx.next_of(&other_rx, Duration::ZERO), Next::Closed);
    }
}
