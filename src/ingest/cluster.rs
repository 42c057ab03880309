//! The inbox: the histories of the other masters, from the stream of NATS JetStream into the store.
//!
//! One thread reads the stream in its order, from the place that is saved in the store's settings. What it reads together is one batch
//! for `intake`. The next batch is unpacked meanwhile, and follows when this one is on disk. Therefore the entries of an origin are stored in
//! their order. It also sends and hears heartbeats.
//!
//! # Invariant
//!
//! An entry of a peer is stored once, whatever is repeated: it has a name, which is its origin, its numbering and its number. The marks in
//! the settings may be older than the log after a crash. Therefore at the start, and after a batch that failed, the log is read from the
//! place on that was saved with them ([`Stored::since`]).
//!
//! A message counts only under the subject of its origin, which no other master's user may publish to. Whatever else is in the stream is
//! counted and passed over. A message of a newer release is not: nothing of its origin is read until this program is replaced, and then
//! the stream is read from there on.

use std::collections::BTreeMap;
use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use async_nats::jetstream::message::Message;
use futures_util::{FutureExt as _, StreamExt as _};
use tokio::sync::oneshot;

use crate::base::advice::TOO_FEW_FILES;
use crate::base::backoff::Backoff;
use crate::base::clock::{Clock, Micros};
use crate::base::limits::{
    CLUSTER_BATCH_BYTES, CLUSTER_BEAT, CLUSTER_PEERS_MAX, CLUSTER_PIN_CHECK, CLUSTER_RETRY_MAX,
    CLUSTER_SAVE_ENTRIES, SOURCE_LOG_INTERVAL, STOP_CHECK,
};
use crate::base::log_once::LogOnce;
use crate::base::metrics::Metrics;
use crate::base::shutdown::Drain;
use crate::client::nats::Connection;
use crate::client::secret::Revealed;
use crate::cluster::envelope::{self, Header, OpenBlocks, WholeBlock};
use crate::cluster::holds::{self, KnownDigest, Told};
use crate::cluster::numbering::OwnNumbering;
use crate::cluster::peers::{Beat, Mark, Peers, Place};
use crate::cluster::reader::Reader;
use crate::cluster::shared_hold::SharedHold;
use crate::cluster::{Cluster, OUTBOX};
use crate::ingest::of_peers::{Stored, accept, is_shared};
use crate::model::{Batch, Entry, Flags, Kind, MasterName, SeqNo, Source};
use crate::policy::Policy;
use crate::store::log::block::{BlockView, Speller};
use crate::store::log::exchange::{self, NoBlock};
use crate::store::settings::{Changes, Save};
use crate::store::{Intake, SkippedNumbers, Store, StoreError};
use crate::wire::msgpack::Writer;

/// What the inbox needs of the daemon.
#[derive(Clone)]
pub(crate) struct InboxParts {
    pub(crate) cluster: Arc<Cluster>,
    pub(crate) peers: Arc<Peers>,
    pub(crate) numbering: Arc<OwnNumbering>,
    pub(crate) store: Store,
    pub(crate) intake: Intake,
    pub(crate) policy: Arc<Policy>,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) clock: Clock,
    pub(crate) drain: Drain,
}

/// The tag of a gap in the history of a peer.
const GAP_TAG: &[u8] = b"saltcellar/gap/replication";

/// Why a message is not stored.
enum Bad {
    /// It is passed over and counted: the reason.
    Rejected(String),
    /// Nothing of its origin may be read before it: the reason, and the message with its first part.
    Wait(String, u64),
    /// Nothing at all can be read now: the reason.
    Stop(String),
}

impl Bad {
    fn of_other_release(why: &dyn std::fmt::Display, begun: u64) -> Self {
        let why = format!("{why}; all masters of a history need releases that read each other");
        Self::Wait(why, begun)
    }

    /// Why a message is no part of a block.
    fn of_message(why: &envelope::Rejected, number: u64) -> Self {
        match why {
            envelope::Rejected::Newer(_) => Self::of_other_release(why, number),
            _ => Self::Rejected(why.to_string()),
        }
    }
}

/// An origin and its numbering.
type Line = (String, String);

/// What is to be stored together.
#[derive(Default)]
struct Taken {
    batch: Batch,
    /// Its entries, once the store has it.
    entries: u64,
    /// The marks once it is stored, and how many entries are of each.
    marks: BTreeMap<Line, (Mark, u64)>,
    /// Entries that the stream did not contain, by origin.
    missed: Vec<(String, u64)>,
    /// The last message that is part of it.
    message: Option<u64>,
}

/// A batch that is being stored, and what it was made of.
struct Storing {
    taken: Taken,
    /// `None` if there is nothing to store.
    done: Option<oneshot::Receiver<Result<(), String>>>,
}

impl Storing {
    /// Waits until it is on disk. Nothing is lost if the future is dropped.
    async fn wait(&mut self) -> Result<(), String> {
        let Some(done) = &mut self.done else {
            return Ok(());
        };
        match done.await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(why)) => Err(format!("the store rejects entries: {why}")),
            Err(_) => Err("the store is stopping".to_owned()),
        }
    }
}

pub(crate) struct Inbox {
    parts: InboxParts,
    place: Place,
    /// Entries behind the marks that the log contains.
    stored: Stored,
    open_blocks: OpenBlocks,
    /// Origins with a message of another release, and its number: they wait for that release.
    waiting: BTreeMap<String, u64>,
    /// The batch that is being stored.
    storing: Option<Storing>,
    /// Whether a batch was given to the store, and the marks were not moved behind it.
    is_unmarked: bool,
    /// Whether the settings have the marks and the place.
    is_saved: bool,
    pin_checked: Option<Instant>,
    /// By what the line is about: reasons contain what peers wrote.
    log: LogOnce<&'static str>,
}

impl Inbox {
    pub(crate) fn new(parts: InboxParts) -> Self {
        let settings = parts.store.settings();
        let place = settings.get::<Place>("").and_then(|found| found.value);
        Self {
            place: place.unwrap_or_default(),
            parts,
            stored: Stored::default(),
            open_blocks: OpenBlocks::default(),
            waiting: BTreeMap::new(),
            storing: None,
            is_unmarked: false,
            is_saved: true,
            pin_checked: None,
            log: LogOnce::every(SOURCE_LOG_INTERVAL),
        }
    }

    /// Reads until shutdown.
    pub(crate) fn run(mut self) {
        let runtime = match tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
        {
            Ok(runtime) => runtime,
            Err(error) => {
                tracing::error!(%error, "cannot start reading the histories of other masters: raise LimitNOFILE of the unit, then restart the daemon");
                let why = format!(
                    "cannot start the inbox: {error}; {TOO_FEW_FILES}, then restart the daemon"
                );
                return self.parts.peers.receives(Some(why));
            }
        };

        let mut backoff = Backoff::new(Duration::from_secs(1), CLUSTER_RETRY_MAX).with_jitter(20);
        while !self.parts.drain.is_stopping() {
            // Decided without a connection as well: after an outage longer than the window
            // retention goes on.
            self.pin();
            let began = Instant::now();
            let Err(why) = runtime.block_on(self.connected()) else {
                break;
            };

            // A connection that lasted ends a series of failures.
            if began.elapsed() > CLUSTER_RETRY_MAX {
                backoff.reset();
            }
            let pause = backoff.next();

            if self.log.is_due("reading", self.parts.clock.monotonic()) {
                tracing::warn!(
                    error = why,
                    ?pause,
                    "cannot read the histories of other masters, retrying: `saltcellar doctor` checks NATS"
                );
            }
            self.parts.peers.receives(Some(why));
            self.parts.drain.wait(pause);
        }

        // Earlier saves need not be on disk yet, and none follows.
        if let Err(error) = self.save(Save::Durable) {
            tracing::warn!(%error, "cannot save the position in the stream, the next start rereads some messages");
        }
    }

    /// Connects, and reads until an error, or until shutdown.
    async fn connected(&mut self) -> Result<(), String> {
        let cluster = self.parts.cluster.clone();
        let secrets = Revealed::default();
        let connection = cluster.connect("inbox", &secrets).await?;

        // Heartbeats do not depend on the stream: while it is away, the others learn how far this master is.
        let beats = beats(self.parts.clone(), &connection).await?;
        let mut beats = pin!(beats);

        let drain = self.parts.drain.clone();
        let reading = async {
            loop {
                let why = match self.read(&connection).await {
                    Err(why) if !drain.is_stopping() => why,
                    ended => return ended,
                };
                // The connection may be right, and the disk full: heartbeats go on.
                let is_lost = connection.context.client().connection_state()
                    != async_nats::connection::State::Connected;
                let why = connection
                    .last_error()
                    .map_or(why.clone(), |reported| format!("{reported} ({why})"));
                if is_lost {
                    return Err(why);
                }
                if self.log.is_due("reading", self.parts.clock.monotonic()) {
                    tracing::warn!(
                        error = why,
                        "cannot read or store the histories of other masters, retrying: see `saltcellar status`, and run `saltcellar doctor`"
                    );
                }
                self.parts.peers.receives(Some(why));
                self.pin();
                let until = Instant::now() + CLUSTER_BEAT;
                // In short steps, because a stop must not wait for the rest.
                while Instant::now() < until && !drain.is_stopping() {
                    tokio::time::sleep(STOP_CHECK).await;
                }
            }
        };

        // Either end makes a new connection: without heartbeats this master would look as if it
        // were away.
        tokio::select! {
            ended = reading => ended,
            ended = &mut beats => ended,
        }
    }

    /// Reads the stream from the place on.
    async fn read(&mut self, connection: &Connection) -> Result<(), String> {
        let cluster = self.parts.cluster.clone();
        let found = cluster.ensure_stream(connection).await?;
        self.parts.peers.found_stream(found.shortcomings());
        if let Some(unusable) = found.differences.iter().find(|one| one.is_unusable()) {
            return Err(format!(
                "the stream {} cannot be used: {unusable}",
                cluster.subjects.stream()
            ));
        }

        // Another stream has other numbers. What is in it already is known by its own.
        if self.place.created != found.created {
            self.place.created = found.created;
            self.place.message = 0;
            self.place.is_refilled = true;
            self.is_saved = false;
        }
        // The stream was purged, or made from an older copy.
        self.place.message = self.place.message.min(found.last);
        // Parts without their rest, and messages that wait for a release, come again from the place
        // on.
        self.open_blocks.clear();
        self.waiting.clear();

        // First, because the messages of this master in the stream may be of another state of this
        // store.
        let newest = cluster.newest_of_own(connection).await?;
        let failed = |error: StoreError| error.to_string();
        let InboxParts {
            store, numbering, ..
        } = &self.parts;
        numbering
            .agree(&cluster, store, newest, found.created)
            .map_err(failed)?;

        // A restored store may have later marks than entries.
        let restores = self.parts.store.skipped().len();
        if self.place.restores != restores {
            // Every message in the stream is compared with the log.
            self.parts
                .peers
                .forget_marks(self.parts.store.settings())
                .map_err(failed)?;
            self.place.message = 0;
            self.place.upto = SeqNo::FIRST;
            self.place.restores = restores;
            self.place.compared_upto = found.last;
            self.is_saved = false;
        }
        // A batch of the last connection is in the log that is read now, or it has failed.
        if let Some(mut batch) = self.storing.take() {
            let _ = batch.wait().await;
        }
        let (store, upto) = (self.parts.store.clone(), self.place.upto);
        // Off this thread, which sends heartbeats: after a restore it is the whole log.
        let stored = tokio::task::spawn_blocking(move || Stored::since(&store, upto)).await;
        let stored = stored.map_err(|error| error.to_string())?;
        self.stored = stored.map_err(failed)?;
        // If the log has nothing beyond the marks, nothing can arrive twice.
        self.place.is_refilled &= !self.stored.is_empty();
        self.is_unmarked = false;
        // The log contains entries beyond the marks, until the stream is read up to here.
        if !self.stored.is_empty() || self.place.message < self.place.compared_upto {
            self.place.compared_upto = found.last;
        }

        self.parts.peers.has_stored(self.place.message);
        let from = self.place.message + 1;
        let mut reader = cluster.reader(connection, from).await?;

        self.parts.peers.receives(None);
        self.log.reset();
        let mut tick = tokio::time::interval(STOP_CHECK);
        loop {
            tokio::select! {
                _ = tick.tick() => {
                    // What is being stored is still marked, and need not be compared at the next
                    // start.
                    if self.parts.drain.is_stopping() && self.storing.is_none() {
                        return Ok(());
                    }
                    self.save_if_due().map_err(failed)?;
                    self.pin();
                }
                stored = until_stored(&mut self.storing) => {
                    let batch = stored?;
                    self.mark(batch)?;
                    self.forget_compared(found.last);
                }
                message = reader.next(), if !self.parts.drain.is_stopping() => {
                    let taken = self.take_arrived(&mut reader, message?)?;
                    // One batch at a time: behind one that fails nothing is stored.
                    if self.storing.is_some() {
                        let batch = until_stored(&mut self.storing).await?;
                        self.mark(batch)?;
                    }
                    self.submit(taken).await?;
                }
            }
        }
    }

    /// Forgets which entries the log contains beyond the marks once none of them can come any more; `last` is the last message at the start.
    fn forget_compared(&mut self, last: u64) {
        if self.stored.is_empty() {
            return;
        }

        let peers = &self.parts.peers;
        let is_over = if self.place.is_refilled {
            // Whatever was in the stream then, each master publishes its entries again.
            self.stored.is_marked(|origin| peers.newest_mark(origin))
        } else {
            self.place.message >= last
        };

        if is_over {
            self.stored = Stored::default();
            self.place.is_refilled = false;
            self.is_saved = false;
        }
    }

    /// Takes a message, and all others that have arrived, within the limit of a batch.
    fn take_arrived(
        &mut self,
        reader: &mut Reader,
        first: (u64, Message),
    ) -> Result<Taken, String> {
        let mut taken = Taken::default();
        let (mut number, mut message) = first;
        loop {
            self.take(number, &message, &mut taken)?;
            if taken.batch.bytes() >= CLUSTER_BATCH_BYTES {
                break;
            }

            // Without waiting: a single message is stored immediately, and a backlog in large
            // batches.
            match reader.next().now_or_never() {
                Some(more) => (number, message) = more?,
                None => break,
            }
        }
        Ok(taken)
    }

    /// Adds the entries of a message.
    fn take(&mut self, number: u64, message: &Message, taken: &mut Taken) -> Result<(), String> {
        let InboxParts {
            cluster, metrics, ..
        } = &self.parts;
        let master = cluster
            .subjects
            .publisher_of_log(&message.subject, message.headers.as_ref());
        metrics
            .cluster_bytes_received
            .add(message.payload.len() as u64);

        let outcome = match &master {
            Some(master) => self.take_of(master.as_str(), number, &message.payload, taken),
            None => Err(Bad::Rejected(format!(
                "the subject {} is no master's",
                message.subject
            ))),
        };

        let (peers, metrics) = (&self.parts.peers, &self.parts.metrics);
        match outcome {
            Ok(()) => {}
            Err(Bad::Rejected(why)) => {
                let master = master.as_ref().map(crate::model::MasterName::as_str);
                peers.rejected(master, &why);
                metrics.cluster_messages_rejected.add(1);
                // No peer may fill the journal.
                if self.log.is_due("rejected", self.parts.clock.monotonic()) {
                    tracing::warn!(number, subject = %message.subject, why, "message of a peer rejected, its entries are not stored here: see `saltcellar status`");
                }
            }
            Err(Bad::Wait(why, begun)) => {
                let name = master.as_ref().map(crate::model::MasterName::as_str);
                peers.rejected(name, &why);
                metrics.cluster_messages_rejected.add(1);
                self.waiting
                    .insert(name.unwrap_or_default().to_owned(), begun);
                tracing::error!(
                    number,
                    master = name,
                    why,
                    "reading the history of a master has stopped at this message: see `saltcellar status`"
                );
            }
            Err(Bad::Stop(why)) => {
                let subject = &message.subject;
                return Err(format!(
                    "cannot take message {number} of the stream ({subject}): {why}"
                ));
            }
        }

        // What waits is reread by the next start.
        let read = self.open_blocks.read_up_to(number);
        let waits = self.waiting.values().map(|first| first - 1).min();
        taken.message = Some(waits.map_or(read, |waits| read.min(waits)));
        Ok(())
    }

    fn take_of(
        &mut self,
        master: &str,
        message: u64,
        payload: &[u8],
        taken: &mut Taken,
    ) -> Result<(), Bad> {
        // Its later entries must not be stored before a block that cannot be read yet.
        if self.waiting.contains_key(master) {
            return Ok(());
        }
        let (header, part) = Header::read(payload).map_err(|why| Bad::of_message(&why, message))?;
        if header.origin != master {
            return Err(Bad::Rejected(format!(
                "it claims to be of {:?} under the subject of {master:?}",
                header.origin
            )));
        }
        // Where NATS has no users, anybody can make up names.
        if !self.parts.peers.know(master) {
            return Err(Bad::Rejected(format!(
                "its history has more than {CLUSTER_PEERS_MAX} masters"
            )));
        }

        let line = (header.origin.clone(), header.epoch.clone());
        // The newest state counts: this batch, then the batch that is being stored, then what is on
        // disk.
        let of_taken = taken.marks.get(&line).map(|(mark, _)| mark.number);
        let of_storing = || {
            let marks = &self.storing.as_ref()?.taken.marks;
            marks.get(&line).map(|(mark, _)| mark.number)
        };
        let stored = of_taken
            .or_else(of_storing)
            .unwrap_or_else(|| self.parts.peers.mark(&line.0, &line.1));
        let is_own = master == self.parts.peers.own.as_str();
        // Repetitions are dropped before they are unpacked.
        if header.last <= stored || (is_own && self.has_all(&header)) {
            return Ok(());
        }

        let Some(whole) = self.open_blocks.add(message, header, part) else {
            return Ok(());
        };
        let WholeBlock {
            begun,
            header,
            bytes,
        } = whole;
        let blocks = exchange::read(&bytes).map_err(|why| match why {
            NoBlock::OtherVersion(_) => Bad::of_other_release(&why, begun),
            NoBlock::Damaged(what) => Bad::Rejected(what),
        })?;
        let first = blocks.first().map(|block| block.rows().seq(0).0);
        let last = blocks
            .last()
            .map(|block| block.rows().seq(block.len() - 1).0);
        // The mark follows the header, so a block with fewer entries would hide the rest.
        if (first, last) != (Some(header.first), Some(header.last)) {
            return Err(Bad::Rejected("its block has other numbers".to_owned()));
        }

        // All of it is checked before any of it is taken.
        let all = || {
            let blocks = blocks.iter().map(BlockView::rows);
            blocks.flat_map(|rows| (0..rows.len()).map(move |n| (rows, n)))
        };
        for (rows, n) in all() {
            check(rows.kind(n), rows.origin(n), rows.number(n))?;
        }

        // Numbers below `from` are of an earlier numbering. What the log has beyond the mark is no
        // gap.
        let known = stored
            .max(header.from.saturating_sub(1))
            .max(self.stored.last(master));
        if header.before > known && !is_own {
            self.note_gap(&header, known, taken);
        }
        let mut entries = 0;
        for block in &blocks {
            let rows = block.rows();
            let mut speller = Speller::new(rows);
            for n in 0..rows.len() {
                let number = rows.seq(n).0;
                if number <= stored {
                    continue;
                }
                let failed = |error: StoreError| Bad::Stop(error.to_string());
                // After a restore the stream brings back what this store lost, among entries that
                // it has.
                if is_own
                    && self
                        .has(&header.epoch, number, rows.at(n))
                        .map_err(failed)?
                {
                    continue;
                }
                let (tag, jid) = speller.tag_and_jid(n);
                let body = rows.body(n).map_err(Bad::Rejected)?;
                let entry = Entry {
                    origin: &header.origin,
                    number,
                    ..rows.entry(n, tag, jid, body)
                };
                // Stored before a crash, and the mark was not.
                if self.stored.has(&entry) {
                    continue;
                }
                let InboxParts {
                    policy, metrics, ..
                } = &self.parts;
                accept(policy, metrics, &entry, &mut taken.batch);
                entries += 1;
            }
        }

        let mark = Mark {
            number: header.last,
            at: Micros(header.last_at),
        };
        // Even if the policy drops every entry, because none of them may come again.
        let marked = taken.marks.entry(line).or_insert((mark.clone(), 0));
        marked.0 = mark;
        marked.1 += entries;
        Ok(())
    }

    /// Whether this store has all entries of a block of its own master. Such a block is skipped.
    fn has_all(&self, header: &Header) -> bool {
        let skipped = self.parts.store.skipped();
        let own = self.parts.numbering.get();
        header.first >= restored_below(skipped)
            && own.has(&header.epoch, header.first, skipped)
            && own.has(&header.epoch, header.last, skipped)
    }

    /// Whether this store has an entry of its own master.
    fn has(&self, epoch: &str, number: u64, at: Micros) -> Result<bool, StoreError> {
        let store = &self.parts.store;
        let skipped = store.skipped();
        if !self.parts.numbering.get().has(epoch, number, skipped) {
            return Ok(false);
        }
        if number >= restored_below(skipped) {
            return Ok(true);
        }

        // The classes of a backup end at different numbers, so only the log knows.
        let mut found = false;
        let any = |_: Kind, _: Flags| true;
        store.first_entry(any, SeqNo(number), |own| {
            found = own.seq.0 == number && own.at == at;
        })?;
        Ok(found)
    }

    /// Adds a record of entries that the stream does not have any more.
    fn note_gap(&self, header: &Header, known: u64, taken: &mut Taken) {
        let mut w = Writer::new();
        w.map(5).str("cause").str("replication");
        w.str("master").str(&header.origin);
        w.str("epoch").str(&header.epoch);
        w.str("first").uint(known + 1);
        w.str("last").uint(header.before);
        let body = w.into_bytes();

        let gap = Entry {
            origin: &header.origin,
            number: header.before,
            flags: Flags::ON_BUS,
            tag: GAP_TAG,
            ..Entry::new(Kind::Gap, Source::Bus, self.parts.clock.now(), &body)
        };

        // Without fingerprints, because a gap never repeats another.
        taken.batch.push(&gap, None);
        let count = header.before - known;
        taken.missed.push((header.origin.clone(), count));

        tracing::warn!(
            master = header.origin,
            first = known + 1,
            last = header.before,
            "the stream no longer contains these entries of a master: run `saltcellar cluster join` to copy them from another daemon"
        );
    }

    /// Gives what was taken to the store.
    async fn submit(&mut self, mut taken: Taken) -> Result<(), String> {
        let batch = std::mem::take(&mut taken.batch);
        taken.entries = batch.len() as u64;
        // Messages without a new entry still move the place.
        if batch.is_empty() {
            self.storing = Some(Storing { taken, done: None });
            return Ok(());
        }

        self.is_unmarked = true;
        let (done, stored) = oneshot::channel();
        let done = move |result| _ = done.send(result);
        let mut offer = (batch, Some(Box::new(done) as crate::store::Done));

        // A blocking send would stop this runtime, which has a single thread.
        loop {
            match self.parts.intake.try_submit(offer.0, offer.1) {
                Ok(()) => break,
                Err(crossbeam_channel::TrySendError::Full(back)) => offer = back,
                Err(crossbeam_channel::TrySendError::Disconnected(_)) => {
                    return Err("the store is stopping".to_owned());
                }
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        self.storing = Some(Storing {
            taken,
            done: Some(stored),
        });
        Ok(())
    }

    /// Moves the marks behind a batch that is on disk.
    fn mark(&mut self, stored: Taken) -> Result<(), String> {
        let Taken {
            batch: _,
            entries,
            marks,
            missed,
            message,
        } = stored;
        self.parts.metrics.cluster_entries_received.add(entries);

        let failed = |error: StoreError| error.to_string();
        let mut changes = Changes::default();
        for (line, (mark, entries)) in marks {
            let line = (line.0.as_str(), line.1.as_str());
            self.parts
                .peers
                .have(line, mark, entries, &mut changes)
                .map_err(failed)?;
            self.is_saved = false;
        }
        self.is_unmarked = false;

        for (origin, count) in missed {
            self.parts.metrics.cluster_entries_missed.add(count);
            self.parts.peers.missed(&origin, count);
        }
        if let Some(message) = message {
            self.place.message = message;
            self.is_saved = false;
            self.parts.peers.has_stored(message);
        }

        if !self.is_saved {
            self.count_upto_end();

            // Marks and place are saved in one commit, because after a crash they must describe the
            // same entries.
            changes.put("", &self.place).map_err(failed)?;
            self.parts
                .store
                .settings()
                .commit(changes, Save::Later)
                .map_err(failed)?;
            self.is_saved = true;
        }
        Ok(())
    }

    /// Saves the place if the log has grown much since: after a crash it is read from there on.
    fn save_if_due(&mut self) -> Result<(), StoreError> {
        let grown = self
            .parts
            .store
            .durable()
            .0
            .saturating_sub(self.place.upto.0);
        if self.is_compared() && grown > CLUSTER_SAVE_ENTRIES {
            self.save(Save::Later)?;
        }
        Ok(())
    }

    fn save(&mut self, save: Save) -> Result<(), StoreError> {
        self.count_upto_end();
        self.parts.store.settings().put("", &self.place, save)
    }

    /// All that the marks count is before the end of the log, whatever comes next, unless the log contains entries beyond them.
    fn count_upto_end(&mut self) {
        if self.is_compared() {
            self.place.upto = self.parts.store.durable();
        }
    }

    /// Whether the marks count all entries of peers in the log.
    fn is_compared(&self) -> bool {
        let is_read = self.place.message >= self.place.compared_upto;
        is_read && !self.is_unmarked && self.stored.is_empty()
    }

    /// Retention keeps what is not published yet, for as long as the stream would keep it.
    /// Also while NATS is away: that is what the limit is for.
    fn pin(&mut self) {
        let is_due = self
            .pin_checked
            .is_none_or(|last| last.elapsed() > CLUSTER_PIN_CHECK);
        if !is_due {
            return;
        }
        self.pin_checked = Some(Instant::now());
        if let Err(error) = self.decide_pin() {
            tracing::error!(%error, "cannot read the publishing position, retention keeps all entries, retrying: run `saltcellar store verify`");
        }
    }

    fn decide_pin(&self) -> Result<(), StoreError> {
        let store = &self.parts.store;
        let all = store.consumer_states()?;
        let Some(own) = all.iter().find(|one| one.record.name == OUTBOX) else {
            return Ok(());
        };
        let pin = own.lag < self.parts.cluster.window;
        if pin != own.record.pin {
            store.pin_consumer(OUTBOX, pin)?;
            if !pin {
                tracing::warn!(lag = ?own.lag, "nothing was published for longer than cluster.window, retention may delete unpublished entries: `saltcellar doctor` checks NATS");
            }
        }
        Ok(())
    }
}

/// Waits until a batch is on disk, and takes it; forever without one.
async fn until_stored(storing: &mut Option<Storing>) -> Result<Taken, String> {
    let stored = match storing {
        Some(batch) => batch.wait().await,
        None => std::future::pending().await,
    };
    // It has told its end, and is not asked again.
    let batch = storing.take();
    stored.map(|()| batch.map(|batch| batch.taken).unwrap_or_default())
}

/// Numbers below this one are of the time before the last restore.
fn restored_below(skipped: &[SkippedNumbers]) -> u64 {
    skipped.iter().map(|range| range.end.0).max().unwrap_or(0)
}

/// Whether a peer may share such an entry.
fn check(kind: Kind, origin: &str, number: u64) -> Result<(), Bad> {
    if !is_shared(kind) {
        return Err(Bad::Rejected(
            "it has entries that no master shares".to_owned(),
        ));
    }
    if !origin.is_empty() || number != 0 {
        return Err(Bad::Rejected("it has entries of another master".to_owned()));
    }
    Ok(())
}

/// Sends heartbeats and hears the heartbeats of the other masters, until an error.
async fn beats(
    parts: InboxParts,
    connection: &Connection,
) -> Result<impl Future<Output = Result<(), String>> + use<>, String> {
    let client = connection.context.client();
    let subjects = parts.cluster.subjects.clone();
    let own = subjects.beat(&parts.cluster.name);
    let mut heard = client
        .subscribe(subjects.beats())
        .await
        .map_err(|error| format!("cannot hear other masters: {error}"))?;

    Ok(async move {
        let mut tick = tokio::time::interval(CLUSTER_BEAT);
        let digest = Arc::new(KnownDigest::default());
        loop {
            tokio::select! {
                _ = tick.tick() => {
                    // Off this thread: it reads the log.
                    let (made, digest) = (parts.clone(), digest.clone());
                    let beats = tokio::task::spawn_blocking(move || beats_now(&made, &digest)).await;
                    let beats = beats.map_err(|error| error.to_string())?;
                    for beat in beats.map_err(|error| error.to_string())? {
                        let beat = serde_json::to_vec(&beat).map_err(|error| error.to_string())?;
                        client
                            .publish(own.clone(), beat.into())
                            .await
                            .map_err(|error| format!("cannot send a heartbeat: {error}"))?;
                    }
                }
                message = heard.next() => {
                    let Some(message) = message else {
                        return Err("the server has ended the hearing of other masters".to_owned());
                    };
                    let sender = subjects.publisher_of_beat(&message.subject, message.headers.as_ref());
                    match (sender, serde_json::from_slice::<Beat>(&message.payload)) {
                        (Some(sender), Ok(beat)) => {
                            let told = parts.peers.heard(&sender, beat);
                            if !told.is_empty() {
                                hear_holds(&parts, sender, told).await;
                            }
                        }
                        (sender, _) => {
                            let name = sender.as_ref().map(crate::model::MasterName::as_str);
                            parts.peers.rejected(name, "a heartbeat that cannot be read");
                        }
                    }
                }
            }
        }
    })
}

/// Takes the holds in a heartbeat.
async fn hear_holds(parts: &InboxParts, sender: MasterName, told: Vec<SharedHold>) {
    let (store, peers, name) = (parts.store.clone(), parts.peers.clone(), sender.clone());
    // Off this thread: it waits for the disk, and for a round of retention.
    let heard =
        tokio::task::spawn_blocking(move || holds::hear(&store, &peers, &sender, told)).await;

    let why = match heard {
        Ok(Ok(())) => return,
        Ok(Err(why)) => why.to_string(),
        Err(why) => why.to_string(),
    };
    // They come again, because the masters do not agree.
    tracing::warn!(
        master = name.as_str(),
        error = why,
        "cannot store the holds of another master, retrying: check the disk for errors and free space"
    );
}

/// The heartbeat of this daemon, and more of them if others lack its holds.
fn beats_now(parts: &InboxParts, digest: &KnownDigest) -> Result<Vec<Beat>, StoreError> {
    let Told {
        digest,
        parts: holds,
    } = holds::tell(&parts.store, &parts.peers, digest);
    let beat = Beat {
        holds_digest: Some(digest),
        ..beat(parts)?
    };

    let with = |holds| Beat {
        holds,
        ..beat.clone()
    };
    let mut beats: Vec<Beat> = holds.into_iter().map(with).collect();
    if beats.is_empty() {
        beats.push(beat);
    }
    Ok(beats)
}

/// The heartbeat of this daemon.
fn beat(parts: &InboxParts) -> Result<Beat, StoreError> {
    // In this order: what is stored after this moment is not claimed to be published.
    let at = parts.clock.now();
    let all = parts.store.consumer_states()?;
    let own = all.iter().find(|one| one.record.name == OUTBOX);
    let unpublished = own.map_or(Duration::ZERO, |one| {
        if one.lag_entries > 0 {
            one.lag
        } else {
            Duration::ZERO
        }
    });
    let numbering = parts.numbering.get();

    Ok(Beat {
        name: parts.cluster.name.as_str().to_owned(),
        epoch: numbering.epoch,
        instance: parts.peers.instance().to_owned(),
        published: numbering.published,
        unpublished_us: u64::try_from(unpublished.as_micros()).unwrap_or(u64::MAX),
        at: at.0,
        slot: parts.peers.slot().map(str::to_owned),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        holds_digest: None,
        holds: Vec::new(),
    })
}
