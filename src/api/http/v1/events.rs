//! Events as text: in a response, and as a stream.
//!
//! A stream is a sequence of `events_follow` calls. Each piece is written before the next one is
//! read, so a slow reader holds one piece and no thread. Streams at the same position share their
//! pieces ([`super::shared`]). A stream with `max_rate` skips events, and sends their number
//! ([`super::rate`]).

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::{Body, HttpBody};
use hyper::StatusCode;
use hyper::body::{Bytes, Frame};
use hyper::header::HeaderMap;
use serde_json::{Map, Value as Json, json};
use tokio::sync::mpsc;
use tokio::time::sleep;

use super::super::access::Access;
use super::super::answer::{Answer, HttpError, plain};
use super::super::server::HttpServer;
use super::super::tokens::{Token, Tokens};
use super::rate::{Budget as RateBudget, until_next_second};
use super::shared::{Part, Piece, PieceKey};
use crate::api::budget::{Budget, Reserved};
use crate::api::call::{Caller, Ctx, ReadCtx, failed, find, position};
use crate::base::clock::Micros;
use crate::base::limits::{
    HTTP_STREAM_BEAT, HTTP_STREAM_EVENTS, HTTP_STREAM_PAUSE, HTTP_STREAM_PIECE_BYTES,
    HTTP_STREAM_RESERVE, RMPV_DEPTH_MAX,
};
use crate::model::SeqNo;
use crate::store::Start;
use crate::wire::call::{Args, CallError};
use crate::wire::filter::EntryFilter;
use crate::wire::json::{append_plain, to_json};
use crate::wire::msgpack::{as_bool, as_int, as_text, elements, encode, get, pairs};

/// Appends the JSON form of a value.
fn append(value: &[u8], out: &mut Vec<u8>) {
    if !append_plain(value, out) {
        let read = rmpv::decode::read_value_with_max_depth(&mut &*value, RMPV_DEPTH_MAX);
        // Answers of calls are whole msgpack.
        out.extend_from_slice(
            read.map_or(Json::Null, |value| to_json(&value))
                .to_string()
                .as_bytes(),
        );
    }
}

/// Appends an event of a call's result; its time becomes text.
fn append_event(event: &[u8], out: &mut Vec<u8>) {
    out.push(b'{');
    for (n, (key, value)) in pairs(event).enumerate() {
        if n > 0 {
            out.push(b',');
        }
        append(key, out);
        out.push(b':');
        // Only here is it known that the number is a time.
        match as_int(value).filter(|_| as_text(key) == Some("time")) {
            Some(at) => out.extend_from_slice(format!("\"{}\"", Micros(at).iso()).as_bytes()),
            None => append(value, out),
        }
    }
    out.push(b'}');
}

/// Appends the lines of an event as salt-api sends them.
fn append_for_salt(event: &[u8], out: &mut Vec<u8>) {
    let tag = get(event, "tag").and_then(as_text).unwrap_or_default();
    // A line break in a tag would begin another line.
    let line: String = tag
        .chars()
        .map(|c| if c.is_control() { ' ' } else { c })
        .collect();

    out.extend_from_slice(
        format!(
            "\ntag: {line}\ndata: {{\"tag\":{},\"data\":",
            Json::from(tag)
        )
        .as_bytes(),
    );
    append(get(event, "data").unwrap_or(&[0xc0]), out);
    out.push(b'}');
}

/// The JSON text of a call's result with `events`; `next` becomes a cursor.
pub(super) fn answer_text(answer: &[u8], store: &str) -> Vec<u8> {
    let mut out = b"{\"events\":[".to_vec();
    let (mut first, mut last) = (true, None);
    for event in get(answer, "events").into_iter().flat_map(elements) {
        let seq = get(event, "seq").and_then(as_int);
        // The lowest one of a page, in any order.
        last = [last, seq].into_iter().flatten().min();
        if !std::mem::take(&mut first) {
            out.push(b',');
        }
        append_event(event, &mut out);
    }

    let more = get(answer, "more").and_then(as_bool).unwrap_or(false);
    // A search that ended early states its own end, which lies below the last row.
    let next = get(answer, "next")
        .and_then(as_int)
        .or_else(|| last.filter(|_| more));

    let next = next.map(|seq| format!("{store}:{seq}"));
    let rest = match get(answer, "paused").and_then(as_bool) {
        Some(paused) => json!({ "more": more, "next": next, "paused": paused }),
        None => json!({ "more": more, "next": next }),
    };

    out.extend_from_slice(b"],");
    out.extend_from_slice(rest.to_string().trim_start_matches('{').as_bytes());
    out
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Format {
    Sse,
    Ndjson,
    /// The server-sent events of salt-api: `tag`, and `data` with the tag and the event's data.
    Salt,
}

impl Format {
    pub(super) fn of(headers: &HeaderMap) -> Self {
        let accept = headers
            .get_all("accept")
            .iter()
            .filter_map(|value| value.to_str().ok());
        let is_ndjson = accept
            .flat_map(|list| list.split(','))
            .any(|kind| kind.trim().starts_with("application/x-ndjson"));
        if is_ndjson { Self::Ndjson } else { Self::Sse }
    }

    fn content_type(self) -> &'static str {
        match self {
            Self::Sse | Self::Salt => "text/event-stream",
            Self::Ndjson => "application/x-ndjson",
        }
    }

    /// Appends the events of a call's result; without any, a sign of life. Returns their number.
    fn append(self, answer: &[u8], out: &mut Vec<u8>) -> usize {
        let mut count = 0;
        for event in get(answer, "events").into_iter().flat_map(elements) {
            count += 1;
            // A line of NDJSON has the id in the event.
            if self != Self::Ndjson {
                out.extend_from_slice(b"id: ");
                out.extend_from_slice(
                    get(event, "id")
                        .and_then(as_text)
                        .unwrap_or_default()
                        .as_bytes(),
                );
            }

            match self {
                Self::Sse => {
                    out.extend_from_slice(b"\ndata: ");
                    append_event(event, out);
                }
                Self::Ndjson => append_event(event, out),
                Self::Salt => append_for_salt(event, out),
            }
            out.extend_from_slice(if self == Self::Ndjson { b"\n" } else { b"\n\n" });
        }

        if let Some(unfiltered) = get(answer, "unfiltered") {
            let text = |key| get(unfiltered, key).and_then(as_text).unwrap_or_default();
            out.extend(self.skipped(1, text("id"), Some(text("reason"))));
        }

        if out.is_empty() {
            out.extend_from_slice(self.sign_of_life());
        }

        count
    }

    fn sign_of_life(self) -> &'static [u8] {
        if self == Self::Ndjson {
            b"\n"
        } else {
            b":\n\n"
        }
    }

    /// The message about skipped events; `id` is that of the last position among them. Without a
    /// reason they were more than `max_rate`.
    fn skipped(self, count: u64, id: &str, reason: Option<&str>) -> Vec<u8> {
        let mut text = json!({ "count": count, "id": id });
        if let (Some(text), Some(reason)) = (text.as_object_mut(), reason) {
            text.insert("reason".to_owned(), reason.into());
        }
        match self {
            Self::Sse | Self::Salt => {
                format!("id: {id}\nevent: skipped\ndata: {text}\n\n").into_bytes()
            }
            Self::Ndjson => format!("{}\n", json!({ "skipped": text })).into_bytes(),
        }
    }

    fn error(self, error: &HttpError) -> Vec<u8> {
        let text = json!({ "error": { "code": error.code, "message": error.message } });
        match self {
            Self::Sse | Self::Salt => format!("event: error\ndata: {text}\n\n").into_bytes(),
            Self::Ndjson => format!("{text}\n").into_bytes(),
        }
    }
}

fn token_revoked() -> HttpError {
    let why = "the token was revoked";
    HttpError::new(StatusCode::UNAUTHORIZED, "unauthenticated", why)
}

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

pub(super) struct Stream {
    server: Arc<HttpServer>,
    /// The filter, as arguments of a call.
    filter: Map<String, Json>,
    caller: Caller,
    token: Option<Box<Token>>,
    budget_of_client: Arc<Budget>,
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
        mut args: Map<String, Json>,
        headers: &HeaderMap,
        format: Format,
    ) -> Result<Answer, HttpError> {
        let seen = headers
            .get("last-event-id")
            .and_then(|id| id.to_str().ok().map(str::to_owned));

        let after = args
            .remove("after")
            .and_then(|after| after.as_str().map(str::to_owned));

        let since = args.remove("since");

        // A browser that reconnects sends `Last-Event-ID`, a later position than the one in its
        // address.
        let start = if let Some(id) = seen.filter(|id| !id.is_empty()).or(after) {
            let seq = position(&id, &server.ctx.store.id())?.parse::<u64>();
            let seq =
                seq.map_err(|_| HttpError::bad(format!("{id:.60} is not the id of an event")))?;
            Some(("seq", seq.saturating_add(1).into()))
        } else {
            since.map(|since| ("time", since))
        };

        let max_rate = args.remove("max_rate").and_then(|rate| rate.as_u64());
        if max_rate == Some(0) {
            return Err(HttpError::bad(
                "parameter `max_rate`: expected a number from 1",
            ));
        }

        // Streams have a limit of their own, so that they leave connections for other requests.
        let permit = access.budget.stream().ok_or_else(|| {
            HttpError::new(
                StatusCode::SERVICE_UNAVAILABLE,
                "unavailable",
                "too many event streams are open",
            )
        })?;

        let now = server.ctx.clock.monotonic();
        let budget =
            max_rate.map(|rate| RateBudget::new(usize::try_from(rate).unwrap_or(usize::MAX), now));
        let (caller, token) = (access.caller.clone(), access.token.clone());

        let mut stream = Self {
            server,
            budget_of_client: access.budget.clone(),
            filter: args,
            caller,
            token,
            format,
            budget,
            is_end: false,
        };

        let events = stream.events_at_once(now);
        // Without a wait: checks the filter, and fixes the position before the answer begins.
        let mut first = stream.read(start, events, Duration::ZERO).await?;
        first.text = access.budget.hold(first.text).await?;
        stream.note(&first);

        let key = PieceKey {
            from: first.next,
            filter: Json::from(stream.filter.clone()).to_string().into(),
            limits: stream.caller.limits.clone(),
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
        let now = self.server.ctx.clock.monotonic();
        if let Some(budget) = &mut self.budget {
            budget.spend(piece.events, now);
        }
    }

    /// The next events from a position on, after at most `wait`.
    async fn read(
        &self,
        start: Option<(&str, Json)>,
        events: usize,
        wait: Duration,
    ) -> Result<Piece, HttpError> {
        let mut args = self.filter.clone();
        args.extend(start.map(|(name, value)| (name.to_owned(), value)));
        args.insert("limit".to_owned(), events.into());
        args.insert("bytes".to_owned(), HTTP_STREAM_PIECE_BYTES.into());
        args.insert(
            "wait_ms".to_owned(),
            u64::try_from(wait.as_millis()).unwrap_or(u64::MAX).into(),
        );

        let args = encode(&args)?;
        let ctx = &self.server.ctx;
        let cannot = || CallError::Internal("events cannot be followed".to_owned());

        let poll = {
            let args = Args::of(&args).ok_or_else(cannot)?;
            let call = find("events_follow").ok_or_else(cannot)?;
            call.run
                .poll(ctx, &args, &self.caller)
                .ok_or_else(cannot)??
        };

        // Little room is held while the stream waits for events; their text, which other streams may
        // share, then takes what it needs.
        let budget = &self.budget_of_client;
        let room = budget.room(HTTP_STREAM_RESERVE).await?;
        let answer = poll
            .run(ctx.clone(), budget, self.server.stop.clone())
            .await?;

        let next = get(&answer, "next")
            .and_then(as_int)
            .and_then(|next| u64::try_from(next).ok());
        let next = next
            .ok_or_else(|| CallError::Internal("events_follow answered no position".to_owned()))?;

        let mut text = Vec::new();
        let events = self.format.append(&answer, &mut text);
        let more = get(&answer, "more").and_then(as_bool).unwrap_or(false);

        // To wait for more room while holding some could wait forever.
        drop(room);
        Ok(Piece {
            text: budget.shared(text).await?,
            events,
            more,
            next,
        })
    }

    /// Counts the events from a position on and before `upto`, and makes the message about them.
    async fn skip(&self, from: SeqNo, upto: SeqNo) -> Result<Piece, HttpError> {
        let (server, limits) = (self.server.clone(), self.caller.limits.clone());
        let filter: EntryFilter = serde_json::from_value(Json::from(self.filter.clone()))
            .map_err(|error| HttpError::bad(error.to_string()))?;

        let count = move || {
            let reading = ReadCtx::of(&server.ctx, &limits);
            reading.store.count(&filter, from, upto)
        };

        let budget = &self.budget_of_client;
        let room = budget.room(HTTP_STREAM_RESERVE).await?;
        let found = self
            .server
            .carry_out(budget, count)
            .await?
            .map_err(failed)?;

        // Nothing was skipped, so nothing is sent: a sign of life would tell that entries were
        // stored which the token may not read.
        let store = self.server.ctx.store.id();
        let mut text = found.last.map_or_else(Vec::new, |last| {
            self.format
                .skipped(found.count, &format!("{store}:{last}"), None)
        });

        // It ended the count, so it comes behind the others.
        if let Some((seq, error)) = found.too_costly {
            self.server.ctx.metrics.filters_too_costly.add(1);
            let id = format!("{store}:{seq}");
            text.extend(self.format.skipped(1, &id, Some(&error.to_string())));
        }

        drop(room);
        Ok(Piece {
            text: budget.shared(text).await?,
            events: 0,
            more: true,
            next: found.next.0,
        })
    }

    /// The part of the stream that follows at a position; waits for the next second if the budget
    /// is spent.
    async fn next_part(&mut self, from: SeqNo) -> Result<Part, HttpError> {
        let now = self.server.ctx.clock.monotonic();
        let events = self.events_at_once(now);

        if events > 0 {
            return Ok(Part::Events(events));
        }

        // The budget of this second is spent. What arrives until the next one is skipped and
        // counted.
        sleep(until_next_second(now)).await;
        let Ctx { clock, store, .. } = &*self.server.ctx;
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
        let read = async {
            match key.part {
                Part::Events(events) => {
                    self.read(Some(("seq", key.from.into())), events, HTTP_STREAM_BEAT)
                        .await
                }
                Part::Skipped(upto) => self.skip(SeqNo(key.from), upto).await,
            }
        };

        let pieces = &self.server.pieces;
        let piece = pieces.get(key, &self.budget_of_client, read).await?;

        // The token may have been revoked while this stream waited, or the piece was read by the
        // stream of another token.
        if self
            .token
            .as_ref()
            .is_some_and(|token| !self.server.ctx.tokens.is_valid(token))
        {
            return Err(token_revoked());
        }

        self.note(&piece);
        Ok(piece)
    }

    async fn run(mut self, first: Bytes, mut key: PieceKey, to: mpsc::Sender<Bytes>) {
        let mut piece = first;
        // The peer is gone if the piece is not accepted; a peer that does not read is disconnected
        // by the connection's timeout.
        while (piece.is_empty() || to.send(piece).await.is_ok()) && !*self.server.stop.borrow() {
            let revoked = revoked(self.token.clone(), self.server.ctx.tokens.clone());
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::msgpack::Writer;

    fn answer(more: bool, next: Option<u64>) -> Vec<u8> {
        let mut w = Writer::new();
        w.map(if next.is_some() { 3 } else { 2 })
            .str("events")
            .array(2);
        for (seq, minion) in [(9, "web1"), (7, "db1")] {
            w.map(5)
                .str("id")
                .str(&format!("ab:{seq}"))
                .str("seq")
                .uint(seq)
                .str("time")
                .int(0);
            w.str("minion")
                .str(minion)
                .str("data")
                .map(1)
                .str("blob")
                .bin(b"\xff");
        }
        w.str("more").bool(more);
        if let Some(next) = next {
            w.str("next").uint(next);
        }
        w.into_bytes()
    }

    #[test]
    fn an_answer_has_times_as_text_and_a_cursor() {
        let parsed =
            |answer: &[u8]| -> Json { serde_json::from_slice(&answer_text(answer, "ab")).unwrap() };
        let all = parsed(&answer(true, None));
        assert_eq!(all["events"][0]["time"], "1970-01-01T00:00:00.000000Z");
        assert_eq!(all["events"][0]["data"], json!({"blob": {"$bin": "/w=="}}));
        assert_eq!(all["next"], "ab:7", "the last row");
        assert_eq!(parsed(&answer(false, None))["next"], Json::Null);
        let ended = parsed(&answer(true, Some(3)));
        assert_eq!(ended["next"], "ab:3", "where the search ended");
    }

    #[test]
    fn a_stream_has_ids_and_signs_of_life() {
        let mut sse = Vec::new();
        Format::Sse.append(&answer(false, None), &mut sse);
        let sse = String::from_utf8(sse).unwrap();
        assert!(
            sse.starts_with("id: ab:9\ndata: {\"id\":\"ab:9\"") && sse.ends_with("}\n\n"),
            "{sse}"
        );
        let mut quiet = Vec::new();
        Format::Ndjson.append(&[0x80], &mut quiet);
        assert_eq!(quiet, b"\n");
    }
}
