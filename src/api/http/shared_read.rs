//! A read that several readers need: one of them makes it with its own budget, and the others wait for it.
//!
//! # Invariant
//!
//! Nobody waits for the budget of another: a reader whose read only waits for its own budget gives up its turn, and the next one makes the
//! read as well. The first result counts for all of them.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;

use tokio::sync::{Mutex, watch};

use crate::api::budget::Budget;

#[derive(Debug)]
pub(super) struct SharedRead<T> {
    /// Held by the reader whose turn it is. Lock order: before the locks of the store; never taken under the lock of all such reads.
    turn: Mutex<()>,
    /// The latest result.
    known: watch::Sender<Option<T>>,
}

impl<T> Default for SharedRead<T> {
    fn default() -> Self {
        Self {
            turn: Mutex::default(),
            known: watch::Sender::new(None),
        }
    }
}

impl<T: Clone> SharedRead<T> {
    /// A valid result, by `read` unless another reader has made one or is making it. A result is kept, an error is not.
    pub(super) async fn get<E, F: Future<Output = Result<T, E>>>(
        &self,
        budget: &Budget,
        is_valid: impl Fn(&T) -> bool,
        read: impl FnOnce(Arc<Budget>) -> F,
    ) -> Result<T, E> {
        let mut latest = self.known.subscribe();
        let known = async {
            let known = latest.wait_for(|known| known.as_ref().is_some_and(&is_valid));
            known.await.ok().and_then(|known| known.clone())
        };

        let own = async {
            let mut turn = Some(self.turn.lock().await);
            let budget = budget.of_read();
            let mut read = pin!(read(budget.clone()));
            let done = tokio::select! {
                biased;
                done = &mut read => done,
                () = budget.stalled() => {
                    turn = None;
                    read.await
                }
            };

            if let Ok(value) = &done {
                self.known.send_replace(Some(value.clone()));
            }
            // The next one finds the result.
            drop(turn);
            done
        };

        tokio::select! {
            biased;
            Some(known) = known => Ok(known),
            done = own => done,
        }
    }
}
