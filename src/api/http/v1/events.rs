//! Events as text: in a response, and as a stream.
//!
//! A stream is a sequence of `events_follow` calls. Each piece is written before the next one is
//! read, so a slow reader holds one piece and no thread. Streams at the same position share their
//! pieces ([`super::super::stream::pieces`]). A stream with `max_rate` skips events, and sends their number
//! ([`super::super::stream::rate`]).

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::{Body, HttpBody};
use hyper::StatusCode;
use hyper::body::{Bytes, Frame};
use hyper::header::HeaderMap;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Map, Value as Json};
use tokio::sync::mpsc;
use tokio::time::sleep;

use super::super::access::{Access, token_revoked};
use super::super::answer::{Answer, HttpError, plain};
use super::super::server::HttpServer;
use super::super::stream::format::Format;
use super::super::stream::pieces::{Part, Piece, PieceKey};
use super::super::stream::rate::{Budget as RateBudget, until_next_second};
use crate::api::budget::{Budget, Reserved};
use crate::api::call::events::{FilterArgs, FollowFrom, follow};
use crate::api::call::{Archive, ReadCtx, failed, from_json, seq};
use crate::api::sign_in::tokens::{Token, Tokens};
use crate::base::limits::{
    HTTP_STREAM_BEAT, HTTP_STREAM_EVENTS, HTTP_STREAM_PAUSE, HTTP_STREAM_PIECE_BYTES,
    HTTP_STREAM_RESERVE,
};
use crate::model::SeqNo;
use crate::store::Start;
use crate::wire::call::CallError;
use crate::wire::filter::EntryFilter;
use crate::wire::msgpack::Time;

/// Waits until the token is revoked; without a token forever.
async fn revoked(token: Option<Box<Token>>, tokens: Arc<Tokens>) {
    match token {
        Some(token) => tokens.revoked(&token).await,
        None => std::future::pending().await,
    }
}

/// The pieces of a stream, with the permit of the stream.
struct Pieces {
    from: mpsc::Receiver<Bytes>,
    _permit: Reserved,
}

impl HttpBody for Pieces {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        self.from
            .poll_recv(context)
            .map(|piece| piece.map(|piece| Ok(Frame::data(piece))))
    }
}

/// The parameters of a stream.
#[derive(Deserialize, JsonSchema)]
pub(super) struct StreamArgs {
    #[serde(flatten)]
    filter: FilterArgs,
    /// Begin with the first event since this time
    since: Option<Time>,
    /// Begin after the event with this id; the header `Last-Event-ID` has the same effect
    after: Option<String>,
    /// Send at most this many events per second; `skipped` messages count the others
    max_rate: Option<u64>,
}

pub(super) struct Stream {
    server: Arc<HttpServer>,
    filter: EntryFilter,
    access: Access,
    format: Format,
    /// The rate limit of a stream with `max_rate`.
    budget: Option<RateBudget>,
    /// True when all stored events were sent.
    is_end: bool,
}

impl Stream {
    /// Starts a stream; an error in its arguments is found before the response begins.
    pub(super) async fn start(
        server: Arc<HttpServer>,
        access: &Access,
        args: Map<String, Json>,
        headers: &HeaderMap,
        format: Format,
    ) -> Result<Answer, HttpError> {
        let StreamArgs {
            filter,
            since,
            after,
            max_rate,
        } = from_json(Json::Object(args))?;
        let filter = filter.filter(&server.ctx.archive.master)?;

        let seen = headers
            .get("last-event-id")
            .and_then(|id| id.to_str().ok().map(str::to_owned));

        // A browser that reconnects sends `Last-Event-ID`, a later position than the one in its
        // address.
        let start = if let Some(id) = seen.filter(|id| !id.is_empty()).or(after) {
            Start::Seq(seq(&id, &server.ctx.archive.store.id())?.next())
        } else {
            since.map_or(Start::Newest, |Time(since)| Start::Time(since))
        };

        if max_rate == Some(0) {
            return Err(HttpError::bad(
                "parameter `max_rate`: expected a number from 1",
            ));
        }

        // A separate limit for streams leaves connections for other requests.
        let permit = access.budget.stream().ok_or_else(|| {
            HttpError::new(
                StatusCode::SERVICE_UNAVAILABLE,
                "unavailable",
                "too many event streams are open; close one, or retry later",
            )
        })?;

        let now = server.ctx.archive.clock.monotonic();
        let budget =
            max_rate.map(|rate| RateBudget::new(usize::try_from(rate).unwrap_or(usize::MAX), now));
        let mut stream = Self {
            server,
            access: access.clone(),
            filter,
            format,
            budget,
            is_end: false,
        };

        let events = stream.events_at_once(now);
        // Without a wait: checks the filter, and fixes the position before the response begins.
        let mut first = stream
            .read(start, events, Duration::ZERO, &access.budget)
            .await?;
        first.text = access.budget.hold(first.text).await?;
        stream.note(&first);

        let filter = serde_json::to_string(&stream.filter)
            .map_err(|error| CallError::Internal(error.to_string()))?;
        let key = PieceKey {
            from: first.next,
            filter: filter.into(),
            limits: stream.access.caller.limits.clone(),
            format,
            part: Part::Events(events),
        };

        // One piece at a time: the next one is read when the connection has taken this one.
        let (to, from) = mpsc::channel(1);
        tokio::spawn(async move { stream.run(first.text, key, to).await });

        let mut answer = plain(StatusCode::OK, format.content_type(), Bytes::new());
        *answer.body_mut() = Body::new(Pieces {
            from,
            _permit: permit,
        });

        Ok(answer)
    }

    /// The events that may be sent in one piece; 0 if the budget is spent.
    fn events_at_once(&mut self, now: Duration) -> usize {
        self.budget.as_mut().map_or(HTTP_STREAM_EVENTS, |budget| {
            budget.left(now).min(HTTP_STREAM_EVENTS)
        })
    }

    fn note(&mut self, piece: &Piece) {
        self.is_end = piece.events > 0 && !piece.more;
        let now = self.server.ctx.archive.clock.monotonic();
        if let Some(budget) = &mut self.budget {
            budget.spend(piece.events, now);
        }
    }

    /// The next events from a position on, after at most `wait`.
    async fn read(
        &self,
        start: Start,
        events: usize,
        wait: Duration,
        budget: &Arc<Budget>,
    ) -> Result<Piece, HttpError> {
        let from = FollowFrom {
            filter: self.filter.clone(),
            start,
            limit: events,
            bytes: HTTP_STREAM_PIECE_BYTES,
        };
        let archive = &self.server.ctx.archive;

        // Little room is held while the stream waits for events.
        let mut wait_ms = u64::try_from(wait.as_millis()).unwrap_or(u64::MAX);
        let mut bytes = HTTP_STREAM_RESERVE;
        loop {
            let room = budget.room(bytes).await?;
            let reading = ReadCtx::of(archive, &self.access.caller.limits);
            let found = follow(&reading, from.clone(), Some(wait_ms))
                .run(archive.clone(), budget, self.server.stop.clone())
                .await?;

            let mut text = Vec::new();
            self.format.append(&found, &mut text);
            match room.share(text) {
                Ok(text) => {
                    return Ok(Piece {
                        text,
                        events: found.events.len(),
                        more: found.more,
                        next: found.next,
                    });
                }
                // With nothing in memory, it waits for room of that size and reads them again.
                Err(needed) => (bytes, wait_ms) = (needed, 0),
            }
        }
    }

    /// Counts the events from a position on and before `upto`, and makes the message about them.
    async fn skip(
        &self,
        from: SeqNo,
        upto: SeqNo,
        budget: &Arc<Budget>,
    ) -> Result<Piece, HttpError> {
        let server = self.server.clone();
        let limits = self.access.caller.limits.clone();
        let filter = self.filter.clone();

        let count = move || {
            let reading = ReadCtx::of(&server.ctx.archive, &limits);
            reading.store.count(&filter, from, upto)
        };

        let room = budget.room(HTTP_STREAM_RESERVE).await?;
        let found = self
            .server
            .carry_out(budget, count)
            .await?
            .map_err(failed)?;

        // Nothing was skipped, so nothing is sent: a heartbeat would tell that entries were
        // stored which the token may not read.
        let store = self.server.ctx.archive.store.id();
        let mut text = found.last.map_or_else(Vec::new, |last| {
            self.format
                .skipped(found.count, &format!("{store}:{last}"), None)
        });

        // It ended the count, so it comes behind the others.
        if let Some((seq, error)) = found.too_costly {
            self.server.ctx.archive.metrics.conditions_too_costly.add(1);
            let id = format!("{store}:{seq}");
            text.extend(self.format.skipped(1, &id, Some(&error.to_string())));
        }

        // It is shorter than its room.
        let text = room.share(text).map_err(|_| {
            HttpError::from(CallError::Internal("a message has no room".to_owned()))
        })?;
        Ok(Piece {
            text,
            events: 0,
            more: true,
            next: found.next.0,
        })
    }

    /// The part of the stream that follows at a position; waits for the next second if the budget
    /// is spent.
    async fn next_part(&mut self, from: SeqNo) -> Result<Part, HttpError> {
        let now = self.server.ctx.archive.clock.monotonic();
        let events = self.events_at_once(now);

        if events > 0 {
            return Ok(Part::Events(events));
        }

        // The budget of this second is spent. What arrives until the next one is skipped and
        // counted.
        sleep(until_next_second(now)).await;
        let Archive { clock, store, .. } = &self.server.ctx.archive;
        let upto = self.server.marks.at(clock.monotonic(), store.durable());
        let oldest = store.position(Start::Seq(from)).map_err(failed)?;

        // Entries that retention has dropped are reported by a gap record, which is an event.
        if from < upto && store.gap_before(from, oldest).is_none() {
            return Ok(Part::Skipped(upto));
        }

        let now = clock.monotonic();
        // At least one, even if the sleep ended a moment early and the second is still the same.
        Ok(Part::Events(self.events_at_once(now).max(1)))
    }

    /// The next piece, which other streams may have read.
    async fn piece(&mut self, key: &mut PieceKey) -> Result<Piece, HttpError> {
        // The events of a busy log are sent in fewer, larger writes.
        if self.is_end {
            sleep(HTTP_STREAM_PAUSE).await;
        }

        key.part = self.next_part(SeqNo(key.from)).await?;
        let (stream, from, part) = (&*self, SeqNo(key.from), key.part);
        let read = |budget| async move {
            match part {
                Part::Events(events) => {
                    let start = Start::Seq(from);
                    stream.read(start, events, HTTP_STREAM_BEAT, &budget).await
                }
                Part::Skipped(upto) => stream.skip(from, upto, &budget).await,
            }
        };

        let pieces = &self.server.pieces;
        let piece = pieces.get(key, &self.access.budget, read).await?;

        // The token may have been revoked, or the session ended, while this stream waited, and the piece may have been read by the
        // stream of another client.
        self.access.check_valid(&self.server.ctx)?;

        self.note(&piece);
        Ok(piece)
    }

    async fn run(mut self, first: Bytes, mut key: PieceKey, to: mpsc::Sender<Bytes>) {
        let mut piece = first;
        // The peer is gone if the piece is not accepted; a peer that does not read is disconnected
        // by the connection's timeout.
        while (piece.is_empty() || to.send(piece).await.is_ok()) && !*self.server.stop.borrow() {
            let revoked = revoked(
                self.access.token.clone(),
                self.server.ctx.sign_in.tokens.clone(),
            );
            let next = tokio::select! {
                next = self.piece(&mut key) => next,
                () = revoked => Err(token_revoked()),
                () = to.closed() => return,
            };

            match next {
                Ok(next) => (piece, key.from) = (next.text, next.next),
                Err(error) => {
                    let _ = to.send(self.format.error(&error).into()).await;
                    return;
                }
            }
        }
    }
}
