//! The one kind of queue between threads: bounded, lock-free, named.
//!
//! A queue is named for what it carries and says in its documentation what happens when it is full.

use std::time::Duration;

use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, TrySendError};

/// Makes a queue for `capacity` messages.
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

/// What [`Rx::next`] found.
#[derive(Debug, PartialEq, Eq)]
pub enum Next<T> {
    /// A message.
    Message(T),
    /// Nothing came in time.
    Idle,
    /// Nothing will come any more: every sender is gone.
    Closed,
}

/// From which of two queues a message came.
#[derive(Debug, PartialEq, Eq)]
pub enum Either<T, U> {
    /// The one that was asked.
    This(T),
    /// The other one.
    Other(U),
}

/// The message that did not fit, given back.
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
    /// Sends, waiting for room; gives the message back if the receiver is gone.
    pub fn send(&self, message: T) -> Result<(), T> {
        self.tx.send(message).map_err(|gone| gone.0)
    }

    /// Sends if there is room at once.
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

    /// Waits up to `pause` for a message of this queue or of `other`. Closed as soon as this one is.
    pub fn next_of<U>(&self, other: &Rx<U>, pause: Duration) -> Next<Either<T, U>> {
        crossbeam_channel::select! {
            recv(self.rx) -> message => message.map_or(Next::Closed, |m| Next::Message(Either::This(m))),
            recv(other.rx) -> message => message.map_or(Next::Idle, |m| Next::Message(Either::Other(m))),
            default(pause) => Next::Idle,
        }
    }

    /// Does nothing wait?
    pub fn is_empty(&self) -> bool {
        self.rx.is_empty()
    }

    /// A message that is already waiting.
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
    fn a_full_queue_gives_the_message_back() {
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
    fn two_queues_are_waited_for_at_once() {
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
