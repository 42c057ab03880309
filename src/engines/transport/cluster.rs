//! The transport of the sink `cluster`: the entries of this daemon's master, in blocks, to the stream of the shared history.
//!
//! A batch becomes blocks of the store's own format, which are published in order and await their acknowledgements together. Nothing is
//! ever rejected: what the stream does not accept now is republished, because the other masters must miss nothing.
//!
//! # Invariant
//!
//! A block says which entry came before it ([`Header::before`]), and all entries between the two that are shared are in the stream, or
//! were lost here before they could be published, which the others then learn.

use std::borrow::Cow;
use std::sync::Arc;

use async_nats::jetstream::context::PublishAckFuture;
use async_nats::jetstream::message::PublishMessage;

use super::deliver::{
    DeliverError, Dependencies, Destination, Rejected, RequestLimits, Transcript, Transport,
};
use super::item::Item;
use crate::base::clock::Micros;
use crate::base::limits::{
    BLOCK_ENTRIES_MAX, CLUSTER_GATHER, CLUSTER_MESSAGE_BYTES, CLUSTER_PARTS_MAX,
    CLUSTER_PUBLISH_BYTES, SINK_BATCH_EVENTS_MAX,
};
use crate::base::metrics::Metrics;
use crate::client::nats::Connection;
use crate::client::secret::Revealed;
use crate::client::thread::ClientThread;
use crate::cluster::envelope::Header;
use crate::cluster::numbering::{Numbering, OwnNumbering};
use crate::cluster::peers::Peers;
use crate::cluster::stream::Difference;
use crate::cluster::{Cluster, OUTBOX};
use crate::model::SeqNo;
use crate::store::log::exchange::{self, TravelPacker, Travelling};
use crate::store::{Store, StoreError};
use crate::wire::filter::Entries;
use crate::wire::msgpack;

/// What the outbox needs of the daemon.
#[derive(Clone)]
pub(crate) struct OutboxParts {
    pub(crate) cluster: Arc<Cluster>,
    pub(crate) peers: Arc<Peers>,
    pub(crate) numbering: Arc<OwnNumbering>,
    pub(crate) store: Store,
    pub(crate) metrics: Arc<Metrics>,
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
            bytes: CLUSTER_PUBLISH_BYTES,
            time: CLUSTER_GATHER,
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
    /// The number of this master's last message in the stream; 0 without one.
    last_message: u64,
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

        // After a failure a new connection is made.
        let mut open = match self.open.take() {
            Some(open) => open,
            None => match self.connect().map_err(DeliverError::retry)? {
                Some(open) => open,
                // These are no longer the next entries, and the sink takes others.
                None => return Ok(Vec::new()),
            },
        };
        let published = self.publish(&mut open, items);
        if let Some(transcript) = transcript {
            let entries: usize = items.iter().map(|item| item.event.entries()).sum();
            transcript.request = format!("{entries} entries");
            transcript.response = match &published {
                Ok(messages) => format!("{messages} messages stored"),
                Err(error) => error.clone(),
            };
        }

        // Whatever was stored of a failed batch is dropped by its numbers when it is republished.
        published.map_err(DeliverError::retry)?;
        self.open = Some(open);
        Ok(Vec::new())
    }

    fn check(&mut self) -> Result<String, String> {
        self.open = self.connect()?;
        let own = self.parts.cluster.subjects.log(&self.parts.cluster.name);
        Ok(format!("the stream keeps {own}"))
    }

    fn reopen(&mut self) {
        self.open = None;
    }
}

impl OutboxTransport {
    /// Connects, and compares the newest message of this master in the stream with the store. `None` if the sink has to go back to an earlier place.
    fn connect(&self) -> Result<Option<Open>, String> {
        let OutboxParts {
            cluster,
            peers,
            store,
            numbering,
            ..
        } = &self.parts;

        let thread = ClientThread::start("sc-outbox")?;
        let (connection, stream, newest) = thread.block_on(async {
            let connection = cluster.connect("outbox", &self.secrets).await?;
            let stream = cluster.ensure_stream(&connection).await?;
            let newest = cluster.newest_of_own(&connection).await?;
            Ok((connection, stream, newest))
        })?;
        // What such a stream acknowledges may reach nobody, and must not count as published.
        let unusable = |difference: &&Difference| difference.is_unusable();
        if let Some(difference) = stream.differences.iter().find(unusable) {
            let stream = cluster.subjects.stream();
            return Err(format!("the stream {stream} cannot be used: {difference}"));
        }

        let last_message = newest.as_ref().map_or(0, |newest| newest.message);
        let failed = |error: StoreError| error.to_string();
        numbering
            .agree(cluster, store, newest, stream.created)
            .map_err(failed)?;
        if store.consumers().is_moved(OUTBOX).map_err(failed)? {
            return Ok(None);
        }
        peers.found_stream(stream.shortcomings());

        // The rest is for the header, which contains names of limited length.
        let most = usize::try_from(stream.message_bytes_max).unwrap_or(usize::MAX);
        let payload_max = most.saturating_sub(HEADER_ROOM).max(1);
        Ok(Some(Open {
            connection,
            last_message,
            payload_max,
            packer: TravelPacker::new().map_err(|error| error.to_string())?,
            thread,
        }))
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

        // A copy, because nothing counts as published until the stream has stored all of it.
        let mut own = numbering.get();
        let mut messages = Vec::new();
        let (mut bytes, mut raw_bytes) = (0, 0);
        let mut entries = 0;
        let is_shared = |item: &&Item| {
            let event = &item.event;
            !(event.stored.kind.lacks_fun() && is_of_question(store, &event.jid))
        };
        let shared: Vec<&Item> = items.iter().filter(is_shared).collect();
        let parts = blocks(&mut open.packer, &own, &shared)?;
        let bytes_max = open.payload_max.min(CLUSTER_MESSAGE_BYTES);
        for block in joined(parts, &own, bytes_max) {
            let block = match block {
                Part::Blocks(blocks) => blocks,
                Part::Lost(last) => {
                    // The next block names this entry as the one before it, by which the others
                    // learn of the loss.
                    own.published = own.published.max(last.0);
                    continue;
                }
            };
            // Republished from an earlier position.
            let before = own.published.min(block.first.0.saturating_sub(1));
            own.published = own.published.max(block.last.0);
            bytes += block.len() as u64;
            entries += block.entries as u64;
            messages.extend(self.messages(&own, before, &block, open.payload_max)?);
            raw_bytes += block.raw_bytes;
        }

        let count = messages.len();
        let work = self.send(&open.connection, open.last_message, messages);
        let sent = open.thread.wait(cluster.nats.timeout, work);
        let sent = sent.and_then(|sent| sent).map_err(|why| {
            // A missing right is reported separately from the request, which then times out.
            match open.connection.last_error() {
                Some(reported) => format!("{reported} ({why})"),
                None => why,
            }
        });
        open.last_message = sent?;

        metrics.cluster_entries_sent.add(entries);
        metrics.cluster_bytes_sent.add(bytes);
        metrics.cluster_raw_bytes_sent.add(raw_bytes);
        // After the acknowledgements, because heartbeats state up to where it is published.
        numbering
            .published(own.published, store.settings())
            .map_err(|error| error.to_string())?;
        Ok(count)
    }

    /// Sends messages, and waits until all are stored. Returns the number of the last one.
    async fn send(
        &self,
        connection: &Connection,
        mut last: u64,
        messages: Vec<(String, Vec<u8>)>,
    ) -> Result<u64, String> {
        let cluster = &self.parts.cluster;
        let subject = cluster.subjects.log(&cluster.name);
        let stream = cluster.subjects.stream();
        // Only the configured stream may take them, even if another one stores the subject.
        let message = |(id, payload): (String, Vec<u8>)| {
            PublishMessage::build()
                .payload(payload.into())
                .message_id(id)
                .expected_stream(stream)
        };

        // Only behind the last message that is known of this master: the stream may have been
        // recreated meanwhile, and what was published before is republished first. Or another node
        // uses this name.
        let mut messages = messages.into_iter().map(message);
        if let Some(first) = messages.next() {
            let first = first.expected_last_subject_sequence(last);
            let sent = connection
                .context
                .send_publish(subject.clone(), first)
                .await
                .map_err(|error| error.to_string())?;
            last = stored(sent).await?;
        }

        // All others are sent before their first acknowledgement is awaited. A batch thus takes two
        // round trips.
        let mut waiting = Vec::new();
        for message in messages {
            let sent = connection
                .context
                .send_publish(subject.clone(), message)
                .await;
            waiting.push(sent.map_err(|error| error.to_string())?);
        }
        for acknowledgement in waiting {
            last = stored(acknowledgement).await?;
        }
        Ok(last)
    }

    /// The messages of blocks that are published together: one, unless there is one block, which is larger than a message. With their ids,
    /// by which the stream drops repetitions.
    fn messages(
        &self,
        own: &Numbering,
        before: u64,
        block: &Blocks<'_>,
        payload_max: usize,
    ) -> Result<Vec<(String, Vec<u8>)>, String> {
        let all: Vec<&[u8]> = block.bytes.iter().map(|bytes| &**bytes).collect();
        // As they are: several in one message are copied into it, and not put together before.
        let parts: Vec<&[&[u8]]>;
        let chunks: Vec<&[u8]>;
        if let [one] = all[..] {
            chunks = one.chunks(payload_max).collect();
            parts = chunks.chunks(1).collect();
        } else {
            parts = vec![&all];
        }
        let count = u32::try_from(parts.len()).unwrap_or(u32::MAX);
        if count > CLUSTER_PARTS_MAX {
            return Err(format!(
                "an entry of {} bytes does not fit into {CLUSTER_PARTS_MAX} messages of {payload_max} bytes; raise max_payload of the servers",
                block.len()
            ));
        }

        let message = |(part, bytes): (u32, &[&[u8]])| {
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

/// Room for the header of a message and the headers of NATS.
const HEADER_ROOM: usize = 4 * 1024;

/// The number of a message once it is stored.
async fn stored(acknowledgement: PublishAckFuture) -> Result<u64, String> {
    let stored = acknowledgement.await.map_err(|error| error.to_string())?;
    Ok(stored.sequence)
}

/// Whether an entry that does not say its function is of a job that is not shared.
pub(in crate::engines) fn is_of_question(store: &Store, jid: &str) -> bool {
    // If the store cannot tell, it is shared, because an entry too many is no error at a peer.
    let row = store.job_row(jid).ok().flatten();
    row.is_some_and(|row| msgpack::as_text(&row.fun) == Some(Entries::QUESTION))
}

/// What a batch consists of.
enum Part<'a> {
    Blocks(Blocks<'a>),
    /// Entries up to this one were dropped here before they were published, or cannot be read.
    Lost(SeqNo),
}

/// Blocks that follow each other.
struct Blocks<'a> {
    first: SeqNo,
    last: SeqNo,
    /// Arrival of the last entry.
    last_at: Micros,
    entries: usize,
    raw_bytes: u64,
    /// Of each block; borrowed from its item, if it is published as it is.
    bytes: Vec<Cow<'a, [u8]>>,
}

impl Blocks<'_> {
    /// Bytes of all of them.
    fn len(&self) -> usize {
        self.bytes.iter().map(|bytes| bytes.len()).sum()
    }
}

impl From<Travelling> for Part<'_> {
    fn from(block: Travelling) -> Self {
        Self::Blocks(Blocks {
            first: block.first,
            last: block.last,
            last_at: block.last_at,
            entries: block.entries,
            raw_bytes: block.raw_bytes,
            bytes: vec![Cow::Owned(block.bytes)],
        })
    }
}

/// As many blocks as fit into a message are one part.
fn joined<'a>(parts: Vec<Part<'a>>, own: &Numbering, bytes_max: usize) -> Vec<Part<'a>> {
    let mut joined: Vec<Part<'a>> = Vec::new();
    for part in parts {
        let (Some(Part::Blocks(to)), Part::Blocks(next)) = (joined.last_mut(), &part) else {
            joined.push(part);
            continue;
        };

        // All blocks of a message share its header, which names one numbering.
        let fits = to.len() + next.len() <= bytes_max
            && to.entries + next.entries <= BLOCK_ENTRIES_MAX
            && own.of_number(to.first.0) == own.of_number(next.first.0);
        if !fits {
            joined.push(part);
            continue;
        }

        if let Part::Blocks(next) = part {
            to.last = next.last;
            to.last_at = next.last_at;
            to.entries += next.entries;
            to.raw_bytes += next.raw_bytes;
            to.bytes.extend(next.bytes);
        }
    }
    joined
}

fn blocks<'a>(
    packer: &mut TravelPacker,
    own: &Numbering,
    items: &[&'a Item],
) -> Result<Vec<Part<'a>>, String> {
    let failed = |error: StoreError| error.to_string();
    let mut parts: Vec<Part<'a>> = Vec::new();
    let mut before = None;

    for item in items {
        let event = &item.event;
        if let Some(packed) = event.stored.block {
            // The packed entries come before this block in the log, and parts must stay in order.
            parts.extend(packer.finish().map_err(failed)?.map(Part::from));
            if !own.is_one(packed.first.0, event.seq.0) {
                let blocks = divided(packer, own, &item.bytes)?;
                parts.extend(blocks.into_iter().map(Part::from));
                continue;
            }

            parts.push(Part::Blocks(Blocks {
                first: packed.first,
                last: event.seq,
                last_at: event.at,
                entries: packed.entries,
                raw_bytes: packed.raw_bytes,
                bytes: vec![Cow::Borrowed(&item.bytes)],
            }));
            continue;
        }
        // A block contains one numbering.
        let begins = before.is_some_and(|before| !own.is_one(before, event.seq.0));
        before = Some(event.seq.0);
        if begins {
            parts.extend(packer.finish().map_err(failed)?.map(Part::from));
        }

        if event.is_lost_record() {
            parts.extend(packer.finish().map_err(failed)?.map(Part::from));
            let last = msgpack::get(&event.body, "last").and_then(msgpack::as_int);
            parts.extend(last.map(|last| Part::Lost(SeqNo(last.unsigned_abs()))));
            continue;
        }

        let full = packer.push(event.seq, &event.as_entry()).map_err(failed)?;
        parts.extend(full.map(Part::from));
    }
    parts.extend(packer.finish().map_err(failed)?.map(Part::from));
    Ok(parts)
}

/// The blocks of a block that a numbering begins in, each with one numbering.
fn divided(
    packer: &mut TravelPacker,
    own: &Numbering,
    block: &[u8],
) -> Result<Vec<Travelling>, String> {
    let failed = |error: StoreError| error.to_string();
    let mut blocks = Vec::new();
    let mut before = None;

    for view in exchange::read(block).map_err(|error| error.to_string())? {
        let rows = view.rows();
        for row in 0..rows.len() {
            let (seq, tag, jid) = (rows.seq(row), rows.tag(row), rows.jid(row));
            if before.is_some_and(|before| !own.is_one(before, seq.0)) {
                blocks.extend(packer.finish().map_err(failed)?);
            }

            before = Some(seq.0);
            let entry = rows.entry(row, &tag, &jid, rows.body(row)?);
            blocks.extend(packer.push(seq, &entry).map_err(failed)?);
        }
    }
    blocks.extend(packer.finish().map_err(failed)?);
    Ok(blocks)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engines::event::{Event, PackedBlock};
    use crate::model::{Entry, Kind, Source};
    use crate::store::settings::Settings;

    fn entry(body: &[u8]) -> Entry<'_> {
        Entry {
            tag: b"salt/job/1/ret/web1",
            ..Entry::new(Kind::Return, Source::Returner, Micros(7), body)
        }
    }

    /// A block of the log as the encoder makes an item of it.
    fn copied(numbers: std::ops::RangeInclusive<u64>) -> Item {
        let mut packer = TravelPacker::new().unwrap();
        for n in numbers {
            let body = n.to_string().into_bytes();
            assert_eq!(packer.push(SeqNo(n), &entry(&body)).unwrap(), None);
        }
        let block = packer.finish().unwrap().unwrap();
        let packed = PackedBlock {
            first: block.first,
            entries: block.entries,
            raw_bytes: block.raw_bytes,
        };
        let event = Event::of_block(packed, block.last, block.last_at);
        Item::new(Arc::new(event), None, block.bytes)
    }

    /// Numbers, and the bodies behind them, of each message that is made of these items.
    fn published(own: &Numbering, items: &[Item]) -> Vec<Vec<(u64, String)>> {
        let items: Vec<&Item> = items.iter().collect();
        let parts = blocks(&mut TravelPacker::new().unwrap(), own, &items).unwrap();
        let mut messages = Vec::new();
        for part in joined(parts, own, usize::MAX) {
            let Part::Blocks(blocks) = part else {
                panic!("nothing is lost")
            };
            let mut found = Vec::new();
            for view in exchange::read(&blocks.bytes.concat()).unwrap() {
                let rows = view.rows();
                found.extend((0..rows.len()).map(|row| {
                    let body = rows.body(row).unwrap().to_vec();
                    (rows.seq(row).0, String::from_utf8(body).unwrap())
                }));
            }

            // What its header says.
            let said = [blocks.first.0, blocks.last.0, blocks.entries as u64];
            let (first, last) = (found[0].0, found[found.len() - 1].0);
            assert_eq!(said, [first, last, found.len() as u64]);
            assert!(own.is_one(first, last), "{first} {last}");
            messages.push(found);
        }
        messages
    }

    #[test]
    fn a_copied_block_in_which_numberings_begin_is_divided() {
        let dir = tempfile::tempdir().unwrap();
        let settings = Settings::for_tests(dir.path());
        let mut own = Numbering::of(&settings).unwrap();
        let items = [copied(1..=3), copied(4..=9), copied(10..=12)];
        let numbers = |own: &Numbering| -> Vec<(u64, u64)> {
            let messages = published(own, &items);
            let all: Vec<_> = messages.concat();
            let expected: Vec<_> = (1..=12).map(|n| (n, n.to_string())).collect();
            assert_eq!(all, expected, "each once, in order");
            let ends = |found: &Vec<(u64, String)>| (found[0].0, found[found.len() - 1].0);
            messages.iter().map(ends).collect()
        };
        assert_eq!(numbers(&own), [(1, 12)]);

        // Within a block; with the first of a block; and an earlier one within a block, which is published once more.
        own.renew(SeqNo(6), &settings).unwrap();
        assert_eq!(numbers(&own), [(1, 5), (6, 12)]);
        own.renew(SeqNo(10), &settings).unwrap();
        assert_eq!(numbers(&own), [(1, 5), (6, 9), (10, 12)]);
        own.renew(SeqNo(12), &settings).unwrap();
        assert_eq!(numbers(&own), [(1, 5), (6, 9), (10, 11), (12, 12)]);
    }
}
