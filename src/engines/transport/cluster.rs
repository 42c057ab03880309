//! The transport of the sink `cluster`: the own master's entries, in blocks, to the stream of the shared history.
//!
//! A batch becomes blocks of the store's own format, which are published in order and await their acknowledgements together. Nothing is
//! ever rejected: what the stream does not accept now is published again, because the other masters must miss nothing.
//!
//! # Invariant
//!
//! A block says which entry came before it ([`Header::before`]), and all entries between the two that are shared are in the stream, or
//! were lost here before they could be published, which the others then learn.

use std::sync::Arc;
use std::time::Duration;

use async_nats::jetstream::message::PublishMessage;

use super::deliver::{
    DeliverError, Dependencies, Destination, Rejected, RequestLimits, Transcript, Transport,
};
use super::item::Item;
use crate::base::clock::{Clock, Micros};
use crate::base::limits::{CLUSTER_BATCH_BYTES, CLUSTER_PARTS_MAX, SINK_BATCH_EVENTS_MAX};
use crate::base::metrics::Metrics;
use crate::client::nats::Connection;
use crate::client::secret::Revealed;
use crate::client::thread::ClientThread;
use crate::cluster::Cluster;
use crate::cluster::envelope::Header;
use crate::cluster::numbering::{Newest, Numbering, OwnNumbering};
use crate::cluster::peers::Peers;
use crate::cluster::stream::Difference;
use crate::engines::event::Event;
use crate::model::{Kind, SeqNo};
use crate::store::log::exchange::{TravelPacker, Travelling};
use crate::store::{Start, Store, StoreError};
use crate::wire::filter::Entries;
use crate::wire::msgpack;

/// The name of the sink that publishes the own history.
pub(crate) const OUTBOX: &str = "cluster";

/// What the outbox needs of the daemon.
#[derive(Clone)]
pub(crate) struct OutboxParts {
    pub(crate) cluster: Arc<Cluster>,
    pub(crate) peers: Arc<Peers>,
    pub(crate) numbering: Arc<OwnNumbering>,
    pub(crate) store: Store,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) clock: Clock,
}

impl std::fmt::Debug for OutboxParts {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("OutboxParts").finish_non_exhaustive()
    }
}

/// The stream as the destination of the sink `cluster`.
#[derive(Debug)]
pub(crate) struct Outbox(pub(crate) OutboxParts);

impl Destination for Outbox {
    fn open(&self, deps: &Dependencies) -> Box<dyn Transport> {
        Box::new(OutboxTransport {
            parts: self.0.clone(),
            secrets: deps.secrets.clone(),
            open: None,
        })
    }

    fn describe(&self) -> String {
        let Cluster { nats, subjects, .. } = &*self.0.cluster;
        format!("{} stream {}", nats.servers.join(","), subjects.stream())
    }

    fn limits(&self) -> RequestLimits {
        RequestLimits {
            count: SINK_BATCH_EVENTS_MAX,
            bytes: CLUSTER_BATCH_BYTES,
            time: Duration::ZERO,
        }
    }

    fn concurrency_max(&self) -> usize {
        1
    }
}

struct OutboxTransport {
    parts: OutboxParts,
    secrets: Revealed,
    open: Option<Open>,
}

/// A connection on which the numbering is known to be the stream's.
struct Open {
    connection: Connection,
    /// Bytes of a block in a message.
    payload_max: usize,
    packer: TravelPacker,
    /// Last: the client ends before its thread.
    thread: ClientThread,
}

impl Transport for OutboxTransport {
    fn deliver(
        &mut self,
        items: &[Item],
        transcript: Option<&mut Transcript>,
    ) -> Result<Vec<Rejected>, DeliverError> {
        if let Some(twin) = self.parts.peers.twin() {
            return Err(DeliverError::retry(format!(
                "another node publishes as {:?} (its instance is {twin}, this one's {}); give each a cluster.name of its own",
                self.parts.peers.own.as_str(),
                self.parts.peers.instance()
            )));
        }

        // After a failure the connection is made anew.
        let mut open = match self.open.take() {
            Some(open) => open,
            None => match self.connect(items).map_err(DeliverError::retry)? {
                Some(open) => open,
                // These are not the next ones any more: the sink takes others.
                None => return Ok(Vec::new()),
            },
        };
        let published = self.publish(&mut open, items);
        if let Some(transcript) = transcript {
            transcript.request = format!("{} entries", items.len());
            transcript.response = match &published {
                Ok(messages) => format!("{messages} messages stored"),
                Err(error) => error.clone(),
            };
        }

        // Whatever was stored of a failed batch is dropped by its numbers when it is published again.
        published.map_err(DeliverError::retry)?;
        self.open = Some(open);
        Ok(Vec::new())
    }

    fn check(&mut self) -> Result<String, String> {
        self.open = self.connect(&[])?;
        let own = self.parts.cluster.subjects.log(&self.parts.cluster.name);
        Ok(format!("the stream keeps {own}"))
    }

    fn reopen(&mut self) {
        self.open = None;
    }
}

impl OutboxTransport {
    /// Connects, and compares what the stream has of this master with the store. `None` if the sink has to go back to an earlier place.
    fn connect(&self, items: &[Item]) -> Result<Option<Open>, String> {
        let OutboxParts { cluster, peers, .. } = &self.parts;

        let thread = ClientThread::start("sc-outbox")?;
        let (connection, stream, newest) = thread.block_on(async {
            let connection = cluster.connect("outbox", &self.secrets).await?;
            let stream = cluster.ensure_stream(&connection).await?;
            let newest = cluster.newest_of_own(&connection).await?;
            Ok((connection, stream, newest))
        })?;
        let unusable = |difference: &&Difference| difference.is_unusable();
        if let Some(difference) = stream.differences.iter().find(unusable) {
            let stream = cluster.subjects.stream();
            return Err(format!("the stream {stream} cannot be used: {difference}"));
        }

        let first = items.first().map(|item| item.event.seq);
        let is_here = self.agree(newest, stream.created, first);
        if !is_here.map_err(|error| error.to_string())? {
            return Ok(None);
        }
        peers.found_stream(stream.differences.iter().map(ToString::to_string).collect());

        // The rest is for the header, which has names of limited length.
        let most = usize::try_from(stream.message_bytes_max).unwrap_or(usize::MAX);
        let payload_max = most.saturating_sub(HEADER_ROOM).max(1);
        Ok(Some(Open {
            connection,
            payload_max,
            packer: TravelPacker::new().map_err(|error| error.to_string())?,
            thread,
        }))
    }

    /// Makes the numbering agree with what the stream has. `first` is the number of the entry to be published next; false if there are
    /// earlier ones, which the sink then finds.
    fn agree(
        &self,
        newest: Option<Newest>,
        created: Micros,
        first: Option<SeqNo>,
    ) -> Result<bool, StoreError> {
        let OutboxParts {
            cluster,
            store,
            numbering,
            clock,
            ..
        } = &self.parts;
        let settings = store.settings();
        let known = numbering.get();

        let of_own = newest.filter(|newest| newest.epoch == known.epoch);
        match (&of_own, first) {
            (Some(newest), Some(first)) if is_set_back(store, newest.last, newest.last_at)? => {
                // Everything before it was published before the store was set back.
                numbering.change(|own| own.renew(first, settings))?;
                tracing::warn!(
                    last = newest.last,
                    first = first.0,
                    "the store was set back: the stream has later entries of this master, so a new numbering begins"
                );
            }
            (Some(newest), _) => numbering.change(|own| own.published(newest.last, settings))?,
            (None, _) => {}
        }

        if created == known.stream {
            return Ok(true);
        }
        let is_first = known.stream == Micros::default();
        if !is_first {
            let window = i64::try_from(cluster.window.as_micros()).unwrap_or(i64::MAX);
            let since = Start::Time(Micros(clock.now().0.saturating_sub(window)));
            store.consumers().seek(OUTBOX, since)?;
            tracing::warn!(
                stream = cluster.subjects.stream(),
                "the stream is another one than before, publishing again what is not older than cluster.window"
            );
        }
        // Last: after a crash before, all of it happens again.
        numbering.change(|own| own.is_in(created, settings))?;
        Ok(is_first)
    }

    /// Publishes entries, and returns the number of messages once all are stored.
    fn publish(&self, open: &mut Open, items: &[Item]) -> Result<usize, String> {
        let OutboxParts {
            cluster,
            numbering,
            store,
            metrics,
            ..
        } = &self.parts;

        let mut own = numbering.get();
        let mut messages = Vec::new();
        let mut bytes = 0;
        let is_shared = |item: &&Item| !self.is_of_question(&item.event);
        let shared: Vec<&Item> = items.iter().filter(is_shared).collect();
        for block in blocks(&mut open.packer, &own, &shared)? {
            let block = match block {
                Part::Block(block) => block,
                Part::Lost(last) => {
                    own.published = own.published.max(last.0);
                    continue;
                }
            };
            // Published once more, from an earlier place on.
            let before = own.published.min(block.first.0.saturating_sub(1));
            own.published = own.published.max(block.last.0);
            bytes += block.bytes.len() as u64;
            messages.extend(self.messages(&own, before, &block, open.payload_max)?);
            metrics.cluster_raw_bytes_sent.add(block.raw_bytes);
        }

        let subject = cluster.subjects.log(&cluster.name);
        let stream = cluster.subjects.stream();
        let context = &open.connection.context;
        let count = messages.len();
        let work = async {
            // All are sent before the first acknowledgement is awaited, so a batch takes one round trip.
            let mut waiting = Vec::with_capacity(messages.len());
            for (id, payload) in messages {
                let message = PublishMessage::build()
                    .payload(payload.into())
                    .message_id(id)
                    .expected_stream(stream);
                let sent = context.send_publish(subject.clone(), message).await;
                waiting.push(sent.map_err(|error| error.to_string())?);
            }
            for acknowledgement in waiting {
                acknowledgement.await.map_err(|error| error.to_string())?;
            }
            Ok::<_, String>(())
        };
        let published = open.thread.wait(cluster.nats.timeout, work);
        published.and_then(|done| done).map_err(|why| {
            // A right that the user lacks is reported beside the request, which then ends late.
            match open.connection.last_error() {
                Some(reported) => format!("{reported} ({why})"),
                None => why,
            }
        })?;

        metrics.cluster_entries_sent.add(shared.len() as u64);
        metrics.cluster_bytes_sent.add(bytes);
        numbering
            .change(|numbering| numbering.published(own.published, store.settings()))
            .map_err(|error| error.to_string())?;
        Ok(count)
    }

    /// Whether an entry without a function belongs to a job that is not shared.
    fn is_of_question(&self, event: &Event) -> bool {
        let has_no_fun = matches!(
            event.stored.kind,
            Kind::Endtime | Kind::NoCache | Kind::Minions
        );
        if !has_no_fun {
            return false;
        }
        // Without an answer it is shared: a peer that has too much has nothing wrong.
        let row = self.parts.store.job_row(&event.jid).ok().flatten();
        row.is_some_and(|row| msgpack::as_text(&row.fun) == Some(Entries::QUESTION))
    }

    /// The messages of a block: one, unless it is larger than a message. With their ids, by which the stream drops repetitions.
    fn messages(
        &self,
        own: &Numbering,
        before: u64,
        block: &Travelling,
        payload_max: usize,
    ) -> Result<Vec<(String, Vec<u8>)>, String> {
        let parts: Vec<&[u8]> = block.bytes.chunks(payload_max).collect();
        let count = u32::try_from(parts.len()).unwrap_or(u32::MAX);
        if count > CLUSTER_PARTS_MAX {
            return Err(format!(
                "an entry of {} bytes does not fit into {CLUSTER_PARTS_MAX} messages of {payload_max} bytes; raise max_payload of the servers",
                block.bytes.len()
            ));
        }

        let message = |(part, bytes): (u32, &[u8])| {
            let (epoch, from) = own.of_number(block.first.0);
            let header = Header {
                origin: self.parts.cluster.name.as_str().to_owned(),
                epoch: epoch.to_owned(),
                from: from.min(block.first.0),
                before,
                first: block.first.0,
                last: block.last.0,
                last_at: block.last_at.0,
                part,
                parts: count,
            };
            let id = format!("{epoch}:{}:{}:{part}", block.first, block.last);
            (id, header.message(bytes))
        };
        Ok((1..).zip(parts).map(message).collect())
    }
}

/// Room for the header of a message and those of NATS.
const HEADER_ROOM: usize = 4 * 1024;

/// Whether the store was set back to an earlier state: the stream has a later entry of its own numbering, or another entry with that number.
fn is_set_back(store: &Store, last: u64, last_at: Micros) -> Result<bool, StoreError> {
    if last >= store.durable().0 {
        return Ok(true);
    }
    let mut found = None;
    let any = |_: Kind, _: crate::model::Flags| true;
    store.first_entry(any, SeqNo(last), |entry| {
        found = Some((entry.seq.0, entry.at));
    })?;
    // Retention may have dropped it.
    Ok(found.is_some_and(|(seq, at)| seq == last && at != last_at))
}

/// What a batch consists of.
enum Part {
    Block(Travelling),
    /// Entries up to this one were dropped here before they were published.
    Lost(SeqNo),
}

fn blocks(
    packer: &mut TravelPacker,
    own: &Numbering,
    items: &[&Item],
) -> Result<Vec<Part>, String> {
    let failed = |error: StoreError| error.to_string();
    let mut parts = Vec::new();
    for item in items {
        let event = &item.event;
        // A block has one numbering.
        if event.seq.0 == own.from {
            parts.extend(packer.finish().map_err(failed)?.map(Part::Block));
        }
        if event.is_lost_record() {
            parts.extend(packer.finish().map_err(failed)?.map(Part::Block));
            let last = msgpack::get(&event.body, "last").and_then(msgpack::as_int);
            parts.extend(last.map(|last| Part::Lost(SeqNo(last.unsigned_abs()))));
            continue;
        }
        let full = packer.push(event.seq, &event.as_entry()).map_err(failed)?;
        parts.extend(full.map(Part::Block));
    }
    parts.extend(packer.finish().map_err(failed)?.map(Part::Block));
    Ok(parts)
}
