//! One batch: its envelope is verified, then its payload read, then its calls run.
//!
//! Checks run in order of cost: accepted key, clock, connection, signature, batch number; only then
//! the payload is read.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use axum::body::Body;
use http_body_util::BodyExt as _;
use hyper::body::Bytes;
use ring::signature::{RSA_PKCS1_2048_8192_SHA256, UnparsedPublicKey};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};
use tokio::time::{Instant, timeout, timeout_at};

use super::keys::{Keys, NoKey};
use crate::api::budget::on_worker;
use crate::api::call::{CallHandler, Caller, Ctx, find, signed_return};
use crate::api::http::answer::AnswerRoom;
use crate::api::http::listener::{BatchInFlight, Connection, Permit};
use crate::api::submit::submit;
use crate::base::limits::{
    HTTP_PROCESSOR_TIME, HTTPS_ANSWER_BYTES, HTTPS_ANSWERS_OF_ONE_BYTES, HTTPS_ASKING_MAX,
    HTTPS_BAD_LOG_INTERVAL, HTTPS_BATCHES_OF_ONE, HTTPS_BYTES_PER_S_MIN, HTTPS_CALLS_MAX,
    HTTPS_CLOCK_OFF_MAX, HTTPS_LARGE_BYTES_IN_FLIGHT, HTTPS_PEERS_OF_ONE, HTTPS_SMALL_BYTES,
    HTTPS_SMALL_BYTES_IN_FLIGHT, PEER_TIMEOUT, WIRE_FRAME_BYTES_MAX,
};
use crate::base::log_once::LogOnce;
use crate::base::metrics::{Counter, Metrics};
use crate::config::{HttpsConfig, MinionsRead};
use crate::model::{FrameBatch, ReadLimits};
use crate::store::Intake;
use crate::wire::call::{CallError, Request, answer_frame, refusal_frame};
use crate::wire::signed::{
    Challenge, Digest, ENVELOPE_LEN_MAX, Envelope, HELLO_PATH, OpenedEnvelope, frames, sha256,
};

/// Bytes per permit of a lane.
const PERMIT_BYTES: usize = 1024;

/// Bytes of a rejected batch that are still read, because its sender must be able to read the response.
const DRAIN_BYTES: usize = 64 * 1024;

/// Reading calls allowed with `https.read: all`.
const READABLE: [&str; 7] = [
    "get_jid",
    "get_fun",
    "get_load",
    "get_jids",
    "get_jids_filter",
    "get_minions",
    "get_endtime",
];

/// Reading calls whose result is by minion, allowed with `https.read: own` for the minion's own
/// part.
const OWN_READABLE: [&str; 2] = ["get_jid", "get_fun"];

/// Shared by all their connections.
pub(in crate::api::http) struct Minions {
    pub(super) ctx: Arc<Ctx>,
    intake: Intake,
    keys: Keys,
    read: MinionsRead,
    small: Arc<Semaphore>,
    large: Arc<Semaphore>,
    asking: Arc<Semaphore>,
    answers: AnswerRoom,
    logged: LogOnce<&'static str>,
}

impl Minions {
    pub(in crate::api::http) fn new(ctx: Arc<Ctx>, intake: Intake, config: &HttpsConfig) -> Self {
        let lane = |bytes: usize| Arc::new(Semaphore::new(bytes / PERMIT_BYTES));
        Self {
            ctx,
            intake,
            keys: Keys::of(&config.pki_dir),
            read: config.read,
            small: lane(HTTPS_SMALL_BYTES_IN_FLIGHT),
            large: lane(HTTPS_LARGE_BYTES_IN_FLIGHT),
            asking: Arc::new(Semaphore::new(HTTPS_ASKING_MAX)),
            answers: AnswerRoom::new(HTTPS_ANSWER_BYTES),
            logged: LogOnce::every(HTTPS_BAD_LOG_INTERVAL),
        }
    }

    /// Handles a batch: returns the responses to its calls, or the reason why it is rejected as a
    /// whole.
    pub(super) async fn take_batch(
        self: &Arc<Self>,
        connection: &Connection,
        body: Body,
    ) -> Result<Bytes, CallError> {
        // A signature covers the certificate, so there is nothing to verify over a unix socket or
        // without TLS.
        let (Some(permit), Some(certificate)) = (&connection.permit, &connection.certificate)
        else {
            return Err(CallError::Protocol(
                "minions connect over a network address with TLS".to_owned(),
            ));
        };

        let request = SignedRequest {
            server: self,
            connection,
            permit,
            certificate,
        };

        let mut body = BatchBody {
            incoming: body,
            received: Vec::new(),
        };

        match request.verify_and_read(&mut body).await {
            Ok((signer, payload, held)) => {
                let answers = request.carry_out(signer, payload).await;
                // The memory of the payload is free before room for the responses is taken: their
                // budgets are separate.
                drop(held);

                let len = answers.len();
                // Waiting for room would keep the response in memory outside the budget. The returns
                // are stored, and a repetition is recognised as a replay.
                self.answers.hold_now(answers).ok_or_else(|| {
                    self.ctx.archive.metrics.https_rejected_overloaded.add(1);
                    CallError::Unavailable(format!(
                        "a response of {len} bytes, while too many bytes of other responses wait to be read; retry later"
                    ))
                })
            }
            Err(error) => {
                // A peer that still sends would get a reset instead of the reason.
                body.drain().await;
                Err(error)
            }
        }
    }

    /// Reserves bytes for a batch, and its share of its minion's permits.
    async fn room(
        &self,
        batches: &Arc<Semaphore>,
        len: usize,
    ) -> Option<[OwnedSemaphorePermit; 2]> {
        // A large batch takes all permits of its minion.
        let (lane, permits) = if len <= HTTPS_SMALL_BYTES {
            (&self.small, 1)
        } else {
            (&self.large, HTTPS_BATCHES_OF_ONE)
        };

        let take = |from: &Arc<Semaphore>, permits: usize| {
            timeout(
                PEER_TIMEOUT,
                from.clone()
                    .acquire_many_owned(u32::try_from(permits).unwrap_or(u32::MAX)),
            )
        };

        // The minion's own permits come first: while a minion waits for itself, it must not hold
        // memory that other minions wait for.
        let of_minion = take(batches, permits).await.ok()?.ok()?;
        Some([
            of_minion,
            take(lane, len / PERMIT_BYTES + 1).await.ok()?.ok()?,
        ])
    }
}

/// The reserved memory of a batch, and its connection's state.
type Held<'a> = ([OwnedSemaphorePermit; 2], BatchInFlight<'a>);

/// A request with a batch.
struct SignedRequest<'a> {
    server: &'a Arc<Minions>,
    connection: &'a Connection,
    permit: &'a Permit,
    certificate: &'a Digest,
}

impl SignedRequest<'_> {
    async fn verify_and_read(
        &self,
        body: &mut BatchBody,
    ) -> Result<(String, Vec<u8>, Held<'_>), CallError> {
        let metrics = &self.server.ctx.archive.metrics;
        let until = Instant::now() + PEER_TIMEOUT;

        // The envelope arrives in pieces of any size, so reading it is attempted after each piece.
        let (signer, digest, len, end) = loop {
            match Envelope::read(&body.received) {
                Ok(Some(OpenedEnvelope {
                    envelope,
                    signature,
                    len: end,
                })) => {
                    // Before anything is done with the length: it is unauthenticated until now.
                    self.verify(&envelope, signature)?;
                    let len = envelope.payload_len as usize;
                    break (envelope.id.to_owned(), envelope.payload_digest, len, end);
                }
                // The limit bounds what an unknown peer can make the daemon keep.
                Ok(None) if body.received.len() <= ENVELOPE_LEN_MAX => {}
                Ok(None) => return Err(self.malformed("the envelope of a batch has no end")),
                Err(bad) => return Err(self.malformed(bad)),
            }
            let more = body.more(until).await?;
            let more = more.ok_or_else(|| self.malformed("the body ends within the envelope"))?;
            body.received.extend_from_slice(&more);
        };

        if len > WIRE_FRAME_BYTES_MAX {
            metrics.https_rejected_too_large.add(1);
            return Err(CallError::TooLarge {
                len,
                max: WIRE_FRAME_BYTES_MAX,
            });
        }

        // From here on the minion is known: limits apply to it, and no longer to the connection
        // alone.
        let in_flight = self.permit.begin(&signer).ok_or_else(|| {
            metrics.https_rejected_overloaded.add(1);
            CallError::Unavailable(format!(
                "minion {signer} has {HTTPS_PEERS_OF_ONE} connections with batches in flight; retry later"
            ))
        })?;

        let room = self
            .server
            .room(&in_flight.batches, len)
            .await
            .ok_or_else(|| {
                metrics.https_rejected_overloaded.add(1);
                CallError::Unavailable(
                    "too many bytes of batches are in flight; retry later".to_owned(),
                )
            })?;

        // The time for the payload grows with its size. A slow line can then send a large return,
        // and a stalled line still ends.
        let slow = Duration::from_secs((len / HTTPS_BYTES_PER_S_MIN) as u64);
        let until = Instant::now() + PEER_TIMEOUT + slow;
        let mut payload = Vec::new();
        // The spare capacity lets the batch be framed in place, without a copy.
        payload.reserve_exact(len + 64);
        payload.extend_from_slice(body.received.get(end..).unwrap_or_default());
        // Its bytes are now part of the payload.
        body.received = Vec::new();

        // One byte too many is enough to know, and no more is kept.
        while payload.len() <= len {
            let Some(more) = body.more(until).await? else {
                break;
            };
            payload.extend_from_slice(&more);
        }

        if payload.len() > len {
            return Err(self.malformed("the body continues after the payload"));
        }
        if payload.len() != len {
            return Err(self.malformed(format!(
                "the payload has {} bytes, the envelope announces {len}",
                payload.len()
            )));
        }

        // The signature covers this hash, so the payload is verified only now.
        if sha256(&payload) != digest {
            let message = format!("the payload is not the one that minion {signer} signed");
            return Err(self.unproven("signature", &metrics.https_rejected_bad_signature, message));
        }

        metrics.https_batches.add(1);
        Ok((signer, payload, (room, in_flight)))
    }

    /// Verifies that the envelope is from a minion with an accepted key, current, for this
    /// connection, and new.
    fn verify(&self, envelope: &Envelope<'_>, signature: &[u8]) -> Result<(), CallError> {
        let ctx = &self.server.ctx;
        let id = envelope.id;
        let metrics: &Metrics = &ctx.archive.metrics;

        // Looking for the key file is the cheapest check, and most strangers fail it.
        let key = self
            .server
            .keys
            .accepted(id)
            .map_err(|no_key| match &no_key {
                NoKey::NotAccepted { .. } => self.unproven(
                    "not_accepted",
                    &metrics.https_rejected_key_not_accepted,
                    no_key.to_string(),
                ),
                // The minion keeps its batch and resends it, because an unreadable file is a fault
                // of this host.
                NoKey::Unreadable { .. } => {
                    metrics.https_rejected_key_unreadable.add(1);
                    self.log("unreadable key", &no_key.to_string());
                    CallError::Unavailable(format!(
                        "the key of minion {id} cannot be read, see the daemon's log"
                    ))
                }
            })?;

        // The clock is checked because entries carry the minion's timestamps.
        let theirs = envelope.time;
        let ours = ctx.archive.clock.now();
        if u128::from(theirs.0.abs_diff(ours.0)) > HTTPS_CLOCK_OFF_MAX.as_micros() {
            let message = format!(
                "the clock of minion {id} shows {}, the daemon's {}: the limit is {} s, synchronise the clocks",
                theirs.iso(),
                ours.iso(),
                HTTPS_CLOCK_OFF_MAX.as_secs()
            );
            return Err(self.unproven("clock", &metrics.https_rejected_clock_skew, message));
        }

        // A default challenge means that the kernel had no random bytes: see `SignedSession::new`.
        let known = self.connection.session.get();
        let is_unusable = known.is_some_and(|session| session.challenge == Challenge::default());
        let session =
            known.filter(|session| !is_unusable && session.challenge == envelope.challenge);

        let Some(session) = session else {
            let why = if is_unusable {
                "cannot be verified, because the daemon has no random bytes: see its log".to_owned()
            } else {
                format!(
                    "was made for another connection: it was sent twice, or without GET {HELLO_PATH} before"
                )
            };
            let message = format!("the batch of minion {id} {why}");
            return Err(self.unproven("replayed", &metrics.https_rejected_replayed, message));
        };

        let text = envelope.signed_text(self.certificate);
        if UnparsedPublicKey::new(&RSA_PKCS1_2048_8192_SHA256, &key)
            .verify(&text, signature)
            .is_err()
        {
            let message = format!(
                "the signature does not match the accepted key of minion {id}, or not this certificate: compare `salt-key -f {id}` with \
                 `salt-call --local key.finger` on the minion; no proxy may end its TLS"
            );
            return Err(self.unproven("signature", &metrics.https_rejected_bad_signature, message));
        }
        // Last, since only a batch with a valid signature may raise the number. Requests of a
        // connection are sequential, so numbers only increase.
        if session.number.fetch_max(envelope.number, Ordering::AcqRel) >= envelope.number {
            let message = format!(
                "batch {} of minion {id} was sent before on this connection",
                envelope.number
            );
            return Err(self.unproven("replayed", &metrics.https_rejected_replayed, message));
        }

        Ok(())
    }

    fn malformed(&self, what: impl std::fmt::Display) -> CallError {
        self.server
            .ctx
            .archive
            .metrics
            .https_rejected_malformed
            .add(1);
        self.log("malformed", &what.to_string());
        CallError::Protocol(what.to_string())
    }

    fn unproven(&self, code: &'static str, counter: &Counter, message: String) -> CallError {
        counter.add(1);
        self.log(code, &message);
        CallError::Unproven { code, message }
    }

    /// Logs with an interval per kind, because anyone can send batches.
    fn log(&self, kind: &'static str, why: &str) {
        let now = self.server.ctx.archive.clock.monotonic();
        if self.server.logged.is_due(kind, now) {
            tracing::warn!(from = %self.connection.peer, why, "batch of a minion rejected, none of it was stored");
        }
    }

    /// Stores the returns, then makes the reading calls.
    async fn carry_out(&self, signer: String, payload: Vec<u8>) -> Vec<u8> {
        // Frames are parsed in place; entries keep the payload, without copies of their bodies.
        let mut batch = FrameBatch::within(&payload);
        let mut answers = BatchAnswers::default();
        let mut reads = Vec::new();

        for (n, frame) in frames(&payload).enumerate() {
            let request = frame.map_err(|cut| CallError::Protocol(cut.to_string()));
            let request = match request.and_then(Request::read) {
                Ok(_) if n >= HTTPS_CALLS_MAX => Err(CallError::Protocol(format!(
                    "a batch has at most {HTTPS_CALLS_MAX} calls"
                ))),
                read => read,
            };

            let request = match request {
                Ok(request) => request,
                Err(error) => {
                    // The start of the next frame is unknown, therefore later calls get no
                    // response. Those before it are carried out.
                    self.malformed(&error);
                    answers.refuse(None, &error);
                    break;
                }
            };

            // Calls that only read wait until the returns are stored, because a minion must read
            // its own writes.
            if request.call == "returner" {
                match signed_return(
                    &self.server.ctx.acceptor,
                    &signer,
                    &request.args,
                    &mut batch,
                ) {
                    Ok(answer) => answers.stored.push((request.id, answer)),
                    Err(error) => answers.refuse(Some(request.id), &error),
                }
            } else if let Err(error) = self.may_read(request.call) {
                answers.refuse(Some(request.id), &error);
            } else {
                // A copy, because the payload is about to become the batch of entries.
                reads.push((request.id, frame.unwrap_or_default().to_vec()));
            }
        }

        let entries = batch.detach();
        // Reading calls alone need no place in the queue.
        let stored = if entries.is_empty() {
            Ok(())
        } else {
            self.store(entries.into_batch(payload)).await
        };

        // Answers to stored returns first: they are sent even if reading fails.
        answers.settle(stored, &self.server.ctx.archive.metrics);
        self.answer(&signer, reads, &mut answers).await;
        answers.frames
    }

    async fn store(&self, batch: crate::model::Batch) -> Result<(), String> {
        let (report, result) = oneshot::channel();
        let done = Box::new(move |stored| {
            let _ = report.send(stored);
        });
        submit(&self.server.intake, batch, done).await;
        // The appender drops the callback without a call only when the daemon stops.
        result
            .await
            .unwrap_or_else(|_| Err("the daemon is stopping".to_owned()))
    }

    fn may_read(&self, call: &str) -> Result<(), CallError> {
        // An unknown call is named as such whatever the minion may read: it hints at a newer
        // extension.
        if find(call).is_none() {
            self.server.ctx.archive.metrics.calls_failed.add(1);
            return Err(CallError::UnknownCall(call.to_owned()));
        }
        let may = match self.server.read {
            MinionsRead::None => false,
            MinionsRead::Own => OWN_READABLE.contains(&call),
            MinionsRead::All => READABLE.contains(&call),
        };

        if may {
            return Ok(());
        }
        // Counted apart from errors: a minion that asks for too much is a matter of configuration.
        self.server.ctx.archive.metrics.https_calls_denied.add(1);
        let read = self.server.read.name();
        Err(CallError::Refused(format!(
            "a minion may not call `{call}` over HTTPS (https.read is {read})"
        )))
    }

    /// Answers reading calls, for a few batches at a time.
    async fn answer(&self, signer: &str, reads: Vec<(u64, Vec<u8>)>, answers: &mut BatchAnswers) {
        if reads.is_empty() {
            return;
        }
        let metrics = &self.server.ctx.archive.metrics;

        for (id, read) in reads {
            // The responses of one batch are held together until the minion reads them.
            if answers.frames.len() > HTTPS_ANSWERS_OF_ONE_BYTES {
                metrics.https_rejected_overloaded.add(1);
                let message =
                    "the responses before this one are long; send this call in a separate batch";
                answers.refuse(Some(id), &CallError::Unavailable(message.to_owned()));
            } else {
                answers.add(id, self.look_up(signer, read).await, metrics);
            }
        }
    }

    async fn look_up(&self, signer: &str, read: Vec<u8>) -> Result<Vec<u8>, CallError> {
        let server = self.server.clone();
        let signer = signer.to_owned();
        // Few at a time, which leaves threads for other minions. The semaphore is never closed.
        let permit = self.server.asking.clone().acquire_owned().await;

        // A search ends like those of other clients: with its processor time, or when the minion is gone.
        let answered = on_worker(permit, Some(HTTP_PROCESSOR_TIME), move || {
            let request = Request::read(&read)?;
            let Some(CallHandler::Run(run)) = find(request.call).map(|call| &call.run) else {
                return Err(CallError::UnknownCall(request.call.to_owned()));
            };

            // Under `own` the limits reduce the response to what the signer returned itself.
            let limits = match server.read {
                MinionsRead::Own => ReadLimits::of_minion(&signer),
                MinionsRead::None | MinionsRead::All => ReadLimits::default(),
            };
            let caller = Caller {
                limits: Arc::new(limits),
                ..Caller::default()
            };

            (run.msgpack)(&server.ctx, &caller, &request.args)
        });

        answered.await?
    }
}

/// The responses of a batch under construction.
#[derive(Default)]
struct BatchAnswers {
    frames: Vec<u8>,
    /// Answers to send once everything is durable.
    stored: Vec<(u64, Vec<u8>)>,
}

impl BatchAnswers {
    fn refuse(&mut self, id: Option<u64>, error: &CallError) {
        self.frames.extend_from_slice(&refusal_frame(id, error));
    }

    fn settle(&mut self, stored: Result<(), String>, metrics: &Metrics) {
        let stored = stored.map_err(CallError::Unavailable);
        for (id, answer) in std::mem::take(&mut self.stored) {
            self.add(id, stored.clone().map(|()| answer), metrics);
        }
    }

    fn add(&mut self, id: u64, answer: Result<Vec<u8>, CallError>, metrics: &Metrics) {
        match answer {
            Ok(answer) => self.frames.extend_from_slice(&answer_frame(id, &answer)),
            Err(error) => {
                metrics.calls_failed.add(1);
                self.refuse(Some(id), &error);
            }
        }
    }
}

/// A partly read body of a request.
struct BatchBody {
    incoming: Body,
    received: Vec<u8>,
}

impl BatchBody {
    /// The next bytes; `None` at the end.
    // The loop only skips trailers.
    async fn more(&mut self, until: Instant) -> Result<Option<Bytes>, CallError> {
        loop {
            let frame = timeout_at(until, self.incoming.frame());
            let frame = frame
                .await
                .map_err(|_| CallError::Protocol("timeout within a batch".into()))?;
            return match frame {
                None => Ok(None),
                Some(Err(error)) => Err(CallError::Protocol(format!(
                    "the body was interrupted: {error}"
                ))),
                Some(Ok(frame)) => match frame.into_data() {
                    Ok(bytes) => Ok(Some(bytes)),
                    // Trailers are ignored.
                    Err(_) => continue,
                },
            };
        }
    }

    /// Reads a little more: a peer that is still sending would not see the response.
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
