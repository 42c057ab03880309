//! One batch: judged by its envelope, then read, then carried out.
//!
//! In this order, so that what costs more comes after what costs less: is the minion's key accepted, do the clocks
//! agree, is the batch for this connection, does the signature hold, is its number new; only then the payload.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use http_body_util::BodyExt as _;
use hyper::body::{Bytes, Incoming};
use ring::rand::{SecureRandom as _, SystemRandom};
use ring::signature::{RSA_PKCS1_2048_8192_SHA256, UnparsedPublicKey};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};
use tokio::time::{Instant, timeout, timeout_at};

use super::keys::{Keys, NoKey};
use super::seats::{Seat, UnderWay};
use super::tls::sha256;
use crate::api::call::{Caller, Ctx, Run, find, signed_return};
use crate::api::submit::submit;
use crate::clock::Micros;
use crate::config::MinionsRead;
use crate::limits::{
    HTTPS_ANSWER_BYTES, HTTPS_ANSWERS_OF_ONE_BYTES, HTTPS_ASKING_MAX, HTTPS_BATCHES_OF_ONE,
    HTTPS_BYTES_PER_S_MIN, HTTPS_CALLS_MAX, HTTPS_CLOCK_OFF_MAX, HTTPS_LARGE_BYTES_IN_FLIGHT,
    HTTPS_PEERS_OF_ONE, HTTPS_SAYS_BAD, HTTPS_SMALL_BYTES, HTTPS_SMALL_BYTES_IN_FLIGHT, PEER_PATIENCE,
    WIRE_FRAME_BYTES_MAX,
};
use crate::metrics::{Counter, Metrics};
use crate::model::Drafts;
use crate::store::Intake;
use crate::wire::call::{CallError, Request, answer_frame, refusal_frame};
use crate::wire::msgpack::{self, Writer};
use crate::wire::signed::{Challenge, Digest, ENVELOPE_LEN_MAX, Envelope, HELLO_PATH, Opened, frames};

/// Bytes that one permit of a lane stands for.
const PERMIT_BYTES: usize = 1024;

/// Bytes of a refused batch that are read all the same, so that its sender reads the answer.
const DRAIN_BYTES: usize = 64 * 1024;

/// Calls that change nothing and that a minion may make where the configuration lets it read all.
const READABLE: [&str; 7] =
    ["get_jid", "get_fun", "get_load", "get_jids", "get_jids_filter", "get_minions", "get_endtime"];

/// Of those, the ones whose answer is a map by minion, of which its own part is its own.
const OWN_READABLE: [&str; 2] = ["get_jid", "get_fun"];

/// What all connections share.
pub(super) struct House {
    pub(super) ctx: Arc<Ctx>,
    intake: Intake,
    keys: Keys,
    read: MinionsRead,
    small: Arc<Semaphore>,
    large: Arc<Semaphore>,
    under_way: Mutex<HashMap<String, Weak<Semaphore>>>,
    asking: Semaphore,
    answer_bytes: AtomicUsize,
    said: Mutex<HashMap<&'static str, Instant>>,
}

impl House {
    pub(super) fn new(ctx: Arc<Ctx>, intake: Intake, keys: Keys, read: MinionsRead) -> Self {
        let lane = |bytes: usize| Arc::new(Semaphore::new(bytes / PERMIT_BYTES));
        Self {
            ctx,
            intake,
            keys,
            read,
            small: lane(HTTPS_SMALL_BYTES_IN_FLIGHT),
            large: lane(HTTPS_LARGE_BYTES_IN_FLIGHT),
            under_way: Mutex::default(),
            asking: Semaphore::new(HTTPS_ASKING_MAX),
            answer_bytes: AtomicUsize::new(0),
            said: Mutex::default(),
        }
    }

    /// Of one minion's batches, those under way.
    fn places_of(&self, id: &str) -> Arc<Semaphore> {
        let mut all = self.under_way.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(places) = all.get(id).and_then(Weak::upgrade) {
            return places;
        }
        let places = Arc::new(Semaphore::new(HTTPS_BATCHES_OF_ONE));
        all.insert(id.to_owned(), Arc::downgrade(&places));
        places
    }

    /// Forgets about a minion that has nothing under way any more.
    fn tidy_places(&self, id: &str) {
        let mut all = self.under_way.lock().unwrap_or_else(PoisonError::into_inner);
        if all.get(id).is_some_and(|places| places.strong_count() == 0) {
            all.remove(id);
        }
    }

    /// Room for a batch, out of that for all and that for its minion.
    async fn room(self: &Arc<Self>, id: &str, len: usize) -> Option<Room> {
        let lane = if len <= HTTPS_SMALL_BYTES { &self.small } else { &self.large };
        // A large batch is alone of its minion.
        let places = if len <= HTTPS_SMALL_BYTES { 1 } else { HTTPS_BATCHES_OF_ONE };
        let take = |from: Arc<Semaphore>, permits: usize| {
            timeout(PEER_PATIENCE, from.acquire_many_owned(u32::try_from(permits).unwrap_or(u32::MAX)))
        };
        let mut room = Room { house: self.clone(), id: id.to_owned(), held: Vec::with_capacity(2) };
        room.held.push(take(self.places_of(id), places).await.ok()?.ok()?);
        room.held.push(take(lane.clone(), len / PERMIT_BYTES + 1).await.ok()?.ok()?);
        Some(room)
    }
}

/// What a batch has set aside; given back when dropped.
struct Room {
    house: Arc<House>,
    id: String,
    held: Vec<OwnedSemaphorePermit>,
}

impl Drop for Room {
    fn drop(&mut self) {
        self.held.clear();
        self.house.tidy_places(&self.id);
    }
}

/// A connection and what was agreed on it.
pub(super) struct Guest {
    pub(super) house: Arc<House>,
    pub(super) seat: Seat,
    pub(super) from: SocketAddr,
    certificate: Digest,
    challenge: Challenge,
    number: AtomicU64,
    requests: AtomicU64,
}

impl Guest {
    pub(super) fn new(house: Arc<House>, seat: Seat, from: SocketAddr, certificate: Digest) -> Self {
        let mut challenge = Challenge::default();
        if SystemRandom::new().fill(&mut challenge).is_err() {
            // The kernel has no randomness to give: no batch will be believed on this connection.
            tracing::error!("no random bytes for a challenge");
        }
        Self {
            house,
            seat,
            from,
            certificate,
            challenge,
            number: AtomicU64::new(0),
            requests: AtomicU64::new(0),
        }
    }

    pub(super) fn challenge(&self) -> &Challenge {
        &self.challenge
    }

    pub(super) fn count_request(&self) {
        self.requests.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn requests(&self) -> u64 {
        self.requests.load(Ordering::Relaxed)
    }

    /// Takes a batch: the answers to its calls, or why it is refused as a whole.
    pub(super) async fn take_batch(&self, body: Incoming) -> Result<Bytes, CallError> {
        let mut body = Body { incoming: body, begun: Vec::new() };
        let outcome = self.judge_and_read(&mut body).await;
        match outcome {
            Ok((signer, payload, room, under_way)) => {
                let answers = self.carry_out(signer, payload, room).await;
                drop(under_way);
                self.house.outgoing(answers)
            }
            Err(error) => {
                body.drain().await;
                Err(error)
            }
        }
    }

    async fn judge_and_read(
        &self,
        body: &mut Body,
    ) -> Result<(String, Vec<u8>, Room, UnderWay<'_>), CallError> {
        let metrics = &self.house.ctx.metrics;
        let until = Instant::now() + PEER_PATIENCE;
        let (signer, digest, len, end) = loop {
            match Envelope::read(&body.begun) {
                Ok(Some(Opened { envelope, signature, len: end })) => {
                    self.judge(&envelope, signature)?;
                    let len = envelope.payload_len as usize;
                    break (envelope.id.to_owned(), envelope.payload_digest, len, end);
                }
                Ok(None) if body.begun.len() <= ENVELOPE_LEN_MAX => {}
                Ok(None) => return Err(self.malformed("a batch without an end of its envelope")),
                Err(bad) => return Err(self.malformed(bad)),
            }
            let more = body.more(until).await?;
            let more = more.ok_or_else(|| self.malformed("the body ends within the envelope"))?;
            body.begun.extend_from_slice(&more);
        };
        if len > WIRE_FRAME_BYTES_MAX {
            metrics.https_too_large.add(1);
            return Err(CallError::TooLarge { len, max: WIRE_FRAME_BYTES_MAX });
        }
        let under_way = self.seat.begin(&signer).ok_or_else(|| {
            metrics.https_overloaded.add(1);
            CallError::Unavailable(format!(
                "minion {signer} has {HTTPS_PEERS_OF_ONE} connections with batches under way; try again later"
            ))
        })?;
        let room = self.house.room(&signer, len).await.ok_or_else(|| {
            metrics.https_overloaded.add(1);
            CallError::Unavailable("too many bytes of batches are under way; try again later".to_owned())
        })?;
        let slow = Duration::from_secs((len / HTTPS_BYTES_PER_S_MIN) as u64);
        let until = Instant::now() + PEER_PATIENCE + slow;
        let mut payload = Vec::new();
        // Spare room keeps what is made up beside it from growing it.
        payload.reserve_exact(len + 64);
        payload.extend_from_slice(body.begun.get(end..).unwrap_or_default());
        body.begun = Vec::new();
        while payload.len() <= len {
            let Some(more) = body.more(until).await? else { break };
            payload.extend_from_slice(&more);
        }
        if payload.len() > len {
            return Err(self.malformed("the body goes on after the payload"));
        }
        if payload.len() != len {
            return Err(
                self.malformed(format!("the payload has {} bytes, the envelope says {len}", payload.len()))
            );
        }
        if sha256(&payload) != digest {
            let words = format!("the payload is not the one that minion {signer} signed");
            return Err(self.unproven("signature", &metrics.https_signatures_bad, words));
        }
        metrics.https_batches.add(1);
        Ok((signer, payload, room, under_way))
    }

    /// Is the envelope that of a minion whose key is accepted, made now, for this connection, and not seen before?
    fn judge(&self, envelope: &Envelope<'_>, signature: &[u8]) -> Result<(), CallError> {
        let (ctx, id) = (&self.house.ctx, envelope.id);
        let metrics: &Metrics = &ctx.metrics;
        let key = self.house.keys.accepted(id).map_err(|no_key| match &no_key {
            NoKey::NotAccepted { .. } => {
                self.unproven("not_accepted", &metrics.https_keys_not_accepted, no_key.to_string())
            }
            NoKey::Unreadable { .. } => {
                metrics.https_keys_unreadable.add(1);
                self.say("unreadable key", &no_key.to_string());
                CallError::Unavailable(format!("the key of minion {id} cannot be read, see the daemon's log"))
            }
        })?;
        let (theirs, ours) = (envelope.time, ctx.clock.now());
        if u128::from(theirs.0.abs_diff(ours.0)) > HTTPS_CLOCK_OFF_MAX.as_micros() {
            let words = format!(
                "the clock of minion {id} shows {}, the daemon's {}: they may differ by {} s",
                said_time(theirs),
                said_time(ours),
                HTTPS_CLOCK_OFF_MAX.as_secs()
            );
            return Err(self.unproven("clock", &metrics.https_clocks_off, words));
        }
        if envelope.challenge != self.challenge || self.challenge == Challenge::default() {
            let words = format!(
                "the batch of minion {id} was made for another connection: it is sent twice, or without GET {HELLO_PATH} before"
            );
            return Err(self.unproven("replayed", &metrics.https_replayed, words));
        }
        let text = envelope.signed_text(&self.certificate);
        if UnparsedPublicKey::new(&RSA_PKCS1_2048_8192_SHA256, &key).verify(&text, signature).is_err() {
            let words = format!(
                "the signature is not by the key that the master accepted for minion {id}, or not for this certificate"
            );
            return Err(self.unproven("signature", &metrics.https_signatures_bad, words));
        }
        // Requests of a connection come one after the other; the number only rises.
        if self.number.fetch_max(envelope.number, Ordering::AcqRel) >= envelope.number {
            let words =
                format!("batch {} of minion {id} was sent before on this connection", envelope.number);
            return Err(self.unproven("replayed", &metrics.https_replayed, words));
        }
        Ok(())
    }

    fn malformed(&self, what: impl std::fmt::Display) -> CallError {
        self.house.ctx.metrics.https_malformed.add(1);
        self.say("malformed", &what.to_string());
        CallError::Protocol(what.to_string())
    }

    fn unproven(&self, code: &'static str, counter: &Counter, message: String) -> CallError {
        counter.add(1);
        self.say(code, &message);
        CallError::Unproven { code, message }
    }

    /// Once in a while for each kind: anybody may knock here.
    fn say(&self, kind: &'static str, words: &str) {
        let mut said = self.house.said.lock().unwrap_or_else(PoisonError::into_inner);
        if said.get(kind).is_none_or(|last| last.elapsed() >= HTTPS_SAYS_BAD) {
            said.insert(kind, Instant::now());
            tracing::warn!(from = %self.from, why = words, "a batch on the HTTPS door was refused");
        }
    }

    /// Stores what is to be stored, then answers what is asked.
    async fn carry_out(&self, signer: String, payload: Vec<u8>, room: Room) -> Vec<u8> {
        let mut drafts = Drafts::within(&payload);
        let mut answers = Answers::default();
        let mut questions = Vec::new();
        for (n, frame) in frames(&payload).enumerate() {
            let request = frame.map_err(|cut| CallError::Protocol(cut.to_string()));
            let request = match request.and_then(Request::read) {
                Ok(_) if n >= HTTPS_CALLS_MAX => {
                    Err(CallError::Protocol(format!("a batch has at most {HTTPS_CALLS_MAX} calls")))
                }
                read => read,
            };
            let request = match request {
                Ok(request) => request,
                Err(error) => {
                    // Where the next one begins is anybody's guess.
                    self.malformed(&error);
                    answers.refuse(None, &error);
                    break;
                }
            };
            if request.call == "returner" {
                match signed_return(&self.house.ctx, &signer, &request.args, &mut drafts) {
                    Ok(answer) => answers.stored.push((request.id, answer)),
                    Err(error) => answers.refuse(Some(request.id), &error),
                }
            } else if let Err(error) = self.may_ask(request.call) {
                answers.refuse(Some(request.id), &error);
            } else {
                questions.push(frame.unwrap_or_default().to_vec());
            }
        }
        let loose = drafts.loose();
        let stored = if loose.is_empty() { Ok(()) } else { self.store(loose.into_batch(payload)).await };
        answers.settle(stored, &self.house.ctx.metrics);
        self.answer(&signer, questions, &mut answers).await;
        drop(room);
        answers.frames
    }

    async fn store(&self, batch: crate::model::Batch) -> Result<(), String> {
        let (told, word) = oneshot::channel();
        let done = Box::new(move |stored| {
            let _ = told.send(stored);
        });
        submit(&self.house.intake, batch, done).await;
        word.await.unwrap_or_else(|_| Err("the daemon is stopping".to_owned()))
    }

    fn may_ask(&self, call: &str) -> Result<(), CallError> {
        if find(call).is_none() {
            self.house.ctx.metrics.calls_failed.add(1);
            return Err(CallError::UnknownCall(call.to_owned()));
        }
        let may = match self.house.read {
            MinionsRead::None => false,
            MinionsRead::Own => OWN_READABLE.contains(&call),
            MinionsRead::All => READABLE.contains(&call),
        };
        if may {
            return Ok(());
        }
        self.house.ctx.metrics.https_calls_denied.add(1);
        let read = self.house.read.name();
        Err(CallError::Refused(format!("a minion may not call `{call}` over HTTPS (https.read is {read})")))
    }

    /// Looks up what is asked, for a few batches at once.
    async fn answer(&self, signer: &str, questions: Vec<Vec<u8>>, answers: &mut Answers) {
        if questions.is_empty() {
            return;
        }
        let _place = self.house.asking.acquire().await;
        for question in questions {
            if answers.frames.len() > HTTPS_ANSWERS_OF_ONE_BYTES {
                self.house.ctx.metrics.https_overloaded.add(1);
                let id = Request::read(&question).ok().map(|request| request.id);
                let words = "the answers before this one are long; ask in a batch of its own".to_owned();
                answers.refuse(id, &CallError::Unavailable(words));
                continue;
            }
            answers.frames.extend_from_slice(&self.look_up(signer, question).await);
        }
    }

    async fn look_up(&self, signer: &str, question: Vec<u8>) -> Vec<u8> {
        let (house, signer) = (self.house.clone(), signer.to_owned());
        let answered = tokio::task::spawn_blocking(move || {
            let Ok(request) = Request::read(&question) else { return Vec::new() };
            let Some(run @ Run::Read(_)) = find(request.call).map(|call| &call.run) else {
                return Vec::new();
            };
            let work = || run.answer(&house.ctx, &request.args, Caller { uid: None });
            let answer = catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|_| {
                Err(CallError::Internal("the call ended by a panic, see the daemon's log".to_owned()))
            });
            let answer = answer.map(|answer| match house.read {
                MinionsRead::Own => own_part(&answer, &signer),
                MinionsRead::None | MinionsRead::All => answer,
            });
            match answer {
                Ok(answer) => answer_frame(request.id, &answer),
                Err(error) => {
                    house.ctx.metrics.calls_failed.add(1);
                    refusal_frame(Some(request.id), &error)
                }
            }
        });
        answered.await.unwrap_or_default()
    }
}

impl House {
    /// Answers on their way out, if there is room for them.
    pub(super) fn outgoing(self: &Arc<Self>, answers: Vec<u8>) -> Result<Bytes, CallError> {
        let len = answers.len();
        let waiting = self.answer_bytes.fetch_add(len, Ordering::AcqRel);
        let outgoing = Outgoing { answers, house: self.clone() };
        if waiting + len > HTTPS_ANSWER_BYTES {
            self.ctx.metrics.https_overloaded.add(1);
            let words = format!(
                "an answer of {len} bytes, while {waiting} bytes of others wait to be read; try again later"
            );
            return Err(CallError::Unavailable(words));
        }
        Ok(Bytes::from_owner(outgoing))
    }
}

/// Answers, which count until the last byte of them has left.
struct Outgoing {
    answers: Vec<u8>,
    house: Arc<House>,
}

impl AsRef<[u8]> for Outgoing {
    fn as_ref(&self) -> &[u8] {
        &self.answers
    }
}

impl Drop for Outgoing {
    fn drop(&mut self) {
        self.house.answer_bytes.fetch_sub(self.answers.len(), Ordering::AcqRel);
    }
}

/// Of a map by minion, one minion's pair.
fn own_part(answer: &[u8], signer: &str) -> Vec<u8> {
    let own: Vec<_> =
        msgpack::pairs(answer).filter(|(minion, _)| msgpack::as_text(minion) == Some(signer)).collect();
    let mut w = Writer::new();
    w.map(own.len());
    for (minion, value) in own {
        w.raw(minion).raw(value);
    }
    w.into_bytes()
}

/// The answers of a batch, in the making.
#[derive(Default)]
struct Answers {
    frames: Vec<u8>,
    /// Calls that are answered so once everything is on disk.
    stored: Vec<(u64, Vec<u8>)>,
}

impl Answers {
    fn refuse(&mut self, id: Option<u64>, error: &CallError) {
        self.frames.extend_from_slice(&refusal_frame(id, error));
    }

    fn settle(&mut self, stored: Result<(), String>, metrics: &Metrics) {
        let error = stored.err().map(CallError::Unavailable);
        for (id, answer) in std::mem::take(&mut self.stored) {
            match &error {
                None => self.frames.extend_from_slice(&answer_frame(id, &answer)),
                Some(error) => {
                    metrics.calls_failed.add(1);
                    self.refuse(Some(id), error);
                }
            }
        }
    }
}

/// A request's body, of which some was read.
struct Body {
    incoming: Incoming,
    begun: Vec<u8>,
}

impl Body {
    /// The next bytes; `None` at the end.
    async fn more(&mut self, until: Instant) -> Result<Option<Bytes>, CallError> {
        loop {
            let frame = timeout_at(until, self.incoming.frame());
            let frame = frame
                .await
                .map_err(|_| CallError::Protocol("a batch that was begun did not end in time".into()))?;
            return match frame {
                None => Ok(None),
                Some(Err(error)) => Err(CallError::Protocol(format!("the body broke off: {error}"))),
                Some(Ok(frame)) => match frame.into_data() {
                    Ok(bytes) => Ok(Some(bytes)),
                    // Trailers say nothing here.
                    Err(_) => continue,
                },
            };
        }
    }

    /// Reads on for a little: a peer that is still sending would not see the answer.
    async fn drain(&mut self) {
        let until = Instant::now() + Duration::from_secs(1);
        let mut left = DRAIN_BYTES;
        while let Ok(Some(bytes)) = self.more(until).await {
            if bytes.len() > left {
                return;
            }
            left -= bytes.len();
        }
    }
}

/// Any time that a peer may say, also one that no calendar has.
fn said_time(time: Micros) -> String {
    /// The years 1 to 9999.
    const CALENDAR: std::ops::Range<i64> = -62_135_596_800_000_000..253_402_300_800_000_000;
    if CALENDAR.contains(&time.0) { time.iso() } else { format!("{} microseconds since 1970", time.0) }
}
