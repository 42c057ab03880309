//! Pieces of event streams, read and formatted once for all streams that are at the same position
//! with the same filter.
//!
//! Streams with equal filters soon share their pieces: two that read to the end of the log in the
//! same instant continue at the same position.

use std::collections::VecDeque;
use std::future::Future;
use std::sync::Arc;

use hyper::body::Bytes;
use parking_lot::Mutex;

use super::super::answer::HttpError;
use super::super::shared_read::SharedRead;
use super::format::Format;
use crate::api::budget::Budget;
use crate::base::limits::{HTTP_SHARED_PIECE_BYTES, HTTP_SHARED_PIECES};
use crate::model::{ReadLimits, SeqNo};

#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::api::http) struct PieceKey {
    pub(in crate::api::http) from: u64,
    /// The filter, as JSON text.
    pub(in crate::api::http) filter: Arc<str>,
    pub(in crate::api::http) limits: Arc<ReadLimits>,
    pub(in crate::api::http) format: Format,
    pub(in crate::api::http) part: Part,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::api::http) enum Part {
    /// Up to this many events.
    Events(usize),
    /// The number of events before this position.
    Skipped(SeqNo),
}

#[derive(Debug, Clone)]
pub(in crate::api::http) struct Piece {
    /// In room of the whole: see [`Room::share`](crate::api::budget::Room::share).
    pub(in crate::api::http) text: Bytes,
    pub(in crate::api::http) events: usize,
    /// True if more events are stored already.
    pub(in crate::api::http) more: bool,
    /// The position after the piece.
    pub(in crate::api::http) next: u64,
}

type Slot = Arc<SharedRead<Piece>>;

/// The latest pieces, and the pieces that are being read. Lock order: no other lock is taken under
/// it.
#[derive(Debug, Default)]
pub(in crate::api::http) struct SharedPieces(Mutex<VecDeque<(PieceKey, Slot)>>);

impl SharedPieces {
    /// The piece of this key, made by `read` unless another stream has read it or is reading it. The
    /// caller holds it in its own room.
    pub(in crate::api::http) async fn get<F: Future<Output = Result<Piece, HttpError>>>(
        &self,
        key: &PieceKey,
        budget: &Budget,
        read: impl FnOnce(Arc<Budget>) -> F,
    ) -> Result<Piece, HttpError> {
        let slot = self.slot(key);
        let piece = slot.get(budget, |_| true, read).await;

        // A piece without progress is a heartbeat, and is not valid any more when the next event
        // arrives.
        let is_kept = piece
            .as_ref()
            .is_ok_and(|one| one.next > key.from && one.text.len() <= HTTP_SHARED_PIECE_BYTES);
        if !is_kept {
            // By identity: another stream may have put a new slot under this key in the meantime.
            self.0
                .lock()
                .retain(|(_, known)| !Arc::ptr_eq(known, &slot));
        }

        let mut piece = piece?;
        piece.text = budget.hold(piece.text).await?;
        Ok(piece)
    }

    fn slot(&self, key: &PieceKey) -> Slot {
        let mut slots = self.0.lock();
        if let Some((_, slot)) = slots.iter().find(|(known, _)| known == key) {
            return slot.clone();
        }
        // Streams that wait for the oldest piece keep a reference to it.
        if slots.len() >= HTTP_SHARED_PIECES {
            slots.pop_front();
        }

        let slot = Slot::default();
        slots.push_back((key.clone(), slot.clone()));
        slot
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::super::super::server::BUDGET;
    use super::*;
    use crate::api::budget::{Budgets, Client};
    use crate::base::limits::HTTP_ANSWER_BYTES_OF_ONE;
    use salt_sls::Glob;
    use std::time::Duration;

    fn budget(budgets: &Budgets, name: &str) -> Arc<Budget> {
        budgets.of(Client::Token(name.to_owned()))
    }

    fn key(from: u64) -> PieceKey {
        let (limits, part) = (Arc::default(), Part::Events(500));
        PieceKey {
            from,
            filter: "{}".into(),
            limits,
            format: Format::Sse,
            part,
        }
    }

    /// Gets a piece; counts the read if it happens.
    async fn get(
        shared: &SharedPieces,
        key: &PieceKey,
        next: u64,
        len: usize,
        reads: &AtomicUsize,
    ) -> Piece {
        let read = |_| async {
            reads.fetch_add(1, Ordering::Relaxed);
            tokio::task::yield_now().await;
            Ok(Piece {
                text: vec![b'x'; len].into(),
                events: 1,
                more: false,
                next,
            })
        };
        let budget = budget(&Budgets::new(BUDGET), "a");
        shared.get(key, &budget, read).await.unwrap()
    }

    #[tokio::test]
    async fn streams_at_one_position_with_equal_filters_and_rights_read_once() {
        let (shared, reads) = (SharedPieces::default(), AtomicUsize::new(0));
        let at = key(5);
        let (one, other) = tokio::join!(
            get(&shared, &at, 9, 1, &reads),
            get(&shared, &at, 9, 1, &reads)
        );
        assert_eq!(
            (one.next, other.next, reads.load(Ordering::Relaxed)),
            (9, 9, 1),
            "at once"
        );
        get(&shared, &at, 9, 1, &reads).await;
        assert_eq!(reads.load(Ordering::Relaxed), 1, "later");
        let limits = Arc::new(ReadLimits {
            minions: Some(Glob::new("web*")),
            ..ReadLimits::default()
        });
        for other in [
            key(6),
            PieceKey {
                filter: "{\"match\":[]}".into(),
                ..key(5)
            },
            PieceKey {
                format: Format::Ndjson,
                ..key(5)
            },
            PieceKey { limits, ..key(5) },
            PieceKey {
                part: Part::Events(10),
                ..key(5)
            },
            PieceKey {
                part: Part::Skipped(SeqNo(10)),
                ..key(5)
            },
        ] {
            let before = reads.load(Ordering::Relaxed);
            get(&shared, &other, 9, 1, &reads).await;
            assert_eq!(reads.load(Ordering::Relaxed), before + 1, "{other:?}");
        }
    }

    #[tokio::test]
    async fn signs_of_life_large_pieces_and_errors_are_not_kept() {
        let (shared, reads) = (SharedPieces::default(), AtomicUsize::new(0));
        for (next, len) in [(5, 1), (9, HTTP_SHARED_PIECE_BYTES + 1)] {
            get(&shared, &key(5), next, len, &reads).await;
            assert!(shared.0.lock().is_empty(), "{next} {len}");
        }
        let budget = budget(&Budgets::new(BUDGET), "a");
        let failed = shared
            .get(&key(5), &budget, |_| async {
                Err(HttpError::bad("broken"))
            })
            .await;
        assert!(failed.is_err() && shared.0.lock().is_empty());
        for from in 0..100 {
            get(&shared, &key(from), from + 1, 1, &reads).await;
        }
        assert_eq!(shared.0.lock().len(), HTTP_SHARED_PIECES);
    }

    #[tokio::test]
    async fn another_stream_reads_on_if_the_reading_one_ends() {
        let (shared, reads) = (Arc::new(SharedPieces::default()), AtomicUsize::new(0));
        let reader = shared.clone();
        let budget = budget(&Budgets::new(BUDGET), "a");
        let first = tokio::spawn(async move {
            reader
                .get(&key(5), &budget, |_| std::future::pending())
                .await
        });
        tokio::task::yield_now().await;
        let at = key(5);
        let second = get(&shared, &at, 9, 1, &reads);
        first.abort();
        assert_eq!(second.await.next, 9);
    }

    #[tokio::test(start_paused = true)]
    async fn a_stream_that_waits_for_its_own_budget_delays_no_other() {
        let (shared, budgets) = (SharedPieces::default(), Budgets::new(BUDGET));
        let [slow, other] = ["slow", "other"].map(|name| budget(&budgets, name));
        let unread = slow.room(HTTP_ANSWER_BYTES_OF_ONE - 1).await.unwrap();
        let read = async |budget: Arc<Budget>, next| {
            let room = budget.room(1).await?;
            let text = room.share(b"x".to_vec()).unwrap();
            Ok(Piece {
                text,
                events: 1,
                more: false,
                next,
            })
        };

        let began = tokio::time::Instant::now();
        let at = key(5);
        let one = shared.get(&at, &slow, |budget| read(budget, 8));
        let two = async {
            let piece = shared.get(&at, &other, |budget| read(budget, 9)).await;
            drop(unread);
            (piece.unwrap().next, began.elapsed())
        };
        let (one, two) = tokio::join!(one, two);
        assert_eq!(two, (9, Duration::ZERO));
        assert_eq!(one.unwrap().next, 9, "it need not read any more");
    }

    #[tokio::test(start_paused = true)]
    async fn a_slow_stream_holds_room_of_its_own_client_whoever_read_its_piece() {
        let (shared, budgets) = (SharedPieces::default(), Budgets::new(BUDGET));
        let [reader, slow] = ["reader", "slow"].map(|name| budget(&budgets, name));
        let len = HTTP_SHARED_PIECE_BYTES / 2;

        let room = reader.room(len).await.unwrap();
        let text = room.share(vec![b'x'; len]).unwrap();
        let read = |_| async {
            Ok(Piece {
                text,
                events: 1,
                more: false,
                next: 9,
            })
        };
        let at = key(5);
        drop(shared.get(&at, &reader, read).await.unwrap());
        // The piece is known, so it is not reread.
        let held = shared.get(&at, &slow, |_| std::future::pending());
        let held = held.await.unwrap();

        // The whole share is free, including what is kept for others.
        let all = HTTP_ANSWER_BYTES_OF_ONE - 1;
        assert!(reader.room(all).await.is_ok());
        assert!(slow.room(all).await.is_err(), "it holds a piece");
        drop(held);
        assert!(slow.room(all).await.is_ok());
    }
}
