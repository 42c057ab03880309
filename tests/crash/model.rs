//! The data sent and expected: an entry is a pure function of its sender and its number, so that any entry can be checked
//! without being recorded.

use std::collections::BTreeMap;

use saltcellar::wire::msgpack::Writer;
use saltcellar_testkit::Random;

/// How a sender submits entries.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Source {
    /// Batches of events of class `events`.
    Events,
    /// Batches of returns as events: class `jobs`.
    JobEvents,
    /// Single `returner` calls.
    Returner,
}

/// Identity of an entry: its sender, and its number among those of the sender.
pub(crate) type Name = (u64, u64);

/// An entry as it must be stored.
pub(crate) struct Entry {
    pub(crate) tag: String,
    pub(crate) data: Vec<u8>,
}

/// How this sender submits entries.
pub(crate) fn source(sender: u64) -> Source {
    match sender % 5 {
        0 | 1 => Source::Events,
        2 => Source::JobEvents,
        _ => Source::Returner,
    }
}

/// Entry `n` of a sender.
pub(crate) fn entry(seed: u64, (sender, n): Name) -> Entry {
    let mut random = Random::of(seed ^ (sender << 48), n);
    // Mostly small, some that fill a block, a few larger than a block; half of the bytes are incompressible.
    let len = match random.below(1000) {
        0..850 => random.below(400),
        850..990 => 1_000 + random.below(5_000),
        990..998 => 20_000 + random.below(60_000),
        _ => 250_000 + random.below(200_000),
    };
    let mut blob = Vec::with_capacity(usize::try_from(len).unwrap());
    while (blob.len() as u64) < len {
        blob.extend_from_slice(&random.next().to_le_bytes());
        blob.extend_from_slice(b"comment ");
    }
    blob.truncate(usize::try_from(len).unwrap());
    let id = format!("m{sender}-{}", n % 7);
    let jid = format!("2026112109{:04}{:06}", n / 1_000_000 % 6000, n % 1_000_000);
    let jid = if sender % 2 == 0 {
        jid
    } else {
        format!("{jid}_{sender}")
    };
    let mut w = Writer::new();
    w.map(8)
        .str("cmd")
        .str("_return")
        .str("who")
        .uint(sender)
        .str("n")
        .uint(n)
        .str("id")
        .str(&id);
    w.str("jid")
        .str(&jid)
        .str("fun")
        .str("test.crash")
        .str("return")
        .bin(&blob)
        .str("_stamp")
        .str("now");
    let tag = match source(sender) {
        Source::Events => format!("crash/{sender}/{n}"),
        Source::JobEvents | Source::Returner => format!("salt/job/{jid}/ret/{id}"),
    };
    Entry {
        tag,
        data: w.into_bytes(),
    }
}

/// The state of a sender.
#[derive(Default)]
pub(crate) struct Sender {
    /// The next number.
    pub(crate) next: u64,
    /// First numbers and counts of batches without an acknowledgement when the daemon died.
    pub(crate) open: BTreeMap<u64, u64>,
    /// Whether each entry was acknowledged.
    pub(crate) acknowledged: Vec<bool>,
}

impl Sender {
    pub(crate) fn acknowledge(&mut self, first: u64, count: u64) {
        let end = usize::try_from(first + count).unwrap();
        if self.acknowledged.len() < end {
            self.acknowledged.resize(end, false);
        }
        self.acknowledged[usize::try_from(first).unwrap()..end].fill(true);
    }

    pub(crate) fn was_acknowledged(&self, n: u64) -> bool {
        self.acknowledged
            .get(usize::try_from(n).unwrap())
            .copied()
            .unwrap_or(false)
    }
}
