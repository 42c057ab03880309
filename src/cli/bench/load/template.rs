//! Templates of events: fixed bytes with slots that get new content in each event.
//!
//! # Invariant
//!
//! The content of a slot is a pure function of the seed, the event's number and the hour of the start, and has the length of the
//! bytes it replaces.
//! Generating an event is one copy and a few small writes, so the generator is cheap compared with the daemon.

use std::sync::LazyLock;

use crate::clock::{Clock, Micros};
use crate::model::stamped_jid;
use crate::wire::msgpack::Writer;

/// The time of event 0, in microseconds: 20 to 21 hours ago, so that no stamp is a day off and jids are in the past.
static EPOCH: LazyLock<i64> = LazyLock::new(|| {
    let now = Clock::real().now().0;
    now - now.rem_euclid(HOUR) - 20 * HOUR
});
const HOUR: i64 = 3_600_000_000;

/// Microseconds between events, and between jobs.
const EVENT_STEP: i64 = 53;
const JOB_STEP: i64 = 7_003;

pub(in crate::cli::bench) const MINIONS: u64 = 20_000;

/// Bytes of a jid, of a time stamp without its zone, and of a minion's number.
pub(in crate::cli::bench) const JID_LEN: usize = 20;
pub(in crate::cli::bench) const STAMP_LEN: usize = 26;
pub(in crate::cli::bench) const MINION_DIGITS: usize = 5;

/// The content of a slot.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(in crate::cli::bench) enum SlotContent {
    /// The jid of the event's n-th job.
    Jid(u32),
    /// `2026-11-21T03:15:30.124503`
    Stamp,
    /// The five digits of the event's n-th minion.
    Minion(u32),
    /// This many random decimal digits.
    Digits(u32),
    /// This many random hexadecimal digits.
    Hex(u32),
    /// A float64 near this one, with three decimals.
    Near(f64),
    /// This many low bytes of an integer, at random.
    Low(u32),
    /// Seconds since 1970, u32.
    Seconds,
}

#[derive(Debug, Clone, Copy)]
pub(in crate::cli::bench) struct Slot {
    pub(in crate::cli::bench) at: usize,
    pub(in crate::cli::bench) content: SlotContent,
}

/// Bytes with slots.
#[derive(Debug, Clone, Default)]
pub(in crate::cli::bench) struct Template {
    pub(in crate::cli::bench) bytes: Vec<u8>,
    pub(in crate::cli::bench) slots: Vec<Slot>,
}

impl Template {
    fn append(&mut self, other: &Template) {
        let shift = self.bytes.len();
        self.bytes.extend_from_slice(&other.bytes);
        self.slots.extend(other.slots.iter().map(|p| Slot { at: p.at + shift, ..*p }));
    }
}

/// An event: its tag and its msgpack data.
#[derive(Debug, Clone, Default)]
pub(in crate::cli::bench) struct EventTemplate {
    pub(in crate::cli::bench) tag: Template,
    pub(in crate::cli::bench) data: Template,
}

/// Encoding of an event in a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::cli::bench) enum Encoding {
    /// An element of `event_return`'s list.
    EventReturn,
    /// The load of a `returner` call.
    Returner,
    /// Only tag and data, for the baseline.
    Bare,
    /// Tag, two newlines, data: a message as on Salt's bus.
    Message,
}

/// A template encoded for a request.
struct RequestTemplate {
    part: Template,
    raw_len: usize,
}

impl RequestTemplate {
    fn new(template: &EventTemplate, encoding: Encoding) -> Self {
        let mut part = Template::default();
        match encoding {
            Encoding::EventReturn => {
                // Only the head of the tag's str: the text itself has slots.
                let mut w = Writer::new();
                w.map(2).str("tag").str(&"x".repeat(template.tag.bytes.len()));
                let mut head = w.into_bytes();
                head.truncate(head.len() - template.tag.bytes.len());
                part.bytes = head;
                part.append(&template.tag);
                let mut w = Writer::new();
                w.str("data");
                part.bytes.extend_from_slice(&w.into_bytes());
                part.append(&template.data);
            }
            Encoding::Returner => part.append(&template.data),
            Encoding::Bare => {
                part.append(&template.tag);
                part.append(&template.data);
            }
            Encoding::Message => {
                part.append(&template.tag);
                part.bytes.extend_from_slice(b"\n\n");
                part.append(&template.data);
            }
        }
        Self { part, raw_len: template.tag.bytes.len() + template.data.bytes.len() }
    }
}

/// Assignment of events to jobs.
#[derive(Debug, Clone, Copy)]
pub(in crate::cli::bench) enum Jobs {
    /// Jobs of fifty returns, eight at a time.
    Interleaved,
    /// Jobs of this many events, one after the other.
    Of(u64),
    /// This many jobs in each replay of a recording.
    Replayed(u64),
}

/// Generates the events of a load.
pub(in crate::cli::bench) struct EventGenerator {
    requests: Vec<RequestTemplate>,
    jobs: Jobs,
    seed: u64,
}

impl EventGenerator {
    /// Event `n` uses template `n` modulo their number.
    pub(in crate::cli::bench) fn new(
        templates: &[EventTemplate],
        encoding: Encoding,
        jobs: Jobs,
        seed: u64,
    ) -> Self {
        Self {
            requests: templates.iter().map(|template| RequestTemplate::new(template, encoding)).collect(),
            jobs,
            seed,
        }
    }

    /// Appends event `n` to a request, and returns the bytes of its tag and data.
    pub(in crate::cli::bench) fn write(&self, n: u64, out: &mut Vec<u8>) -> usize {
        let templates = self.requests.len().max(1) as u64;
        let Some(request) = usize::try_from(n % templates).ok().and_then(|at| self.requests.get(at)) else {
            return 0;
        };
        let start = out.len();
        out.extend_from_slice(&request.part.bytes);
        let Some(own) = out.get_mut(start..) else { return 0 };
        let mut fill = SlotFiller {
            n,
            cycle: n / templates,
            jobs: self.jobs,
            seed: self.seed,
            random: Random::of(self.seed, n),
        };
        for slot in &request.part.slots {
            if let Some(to) = own.get_mut(slot.at..) {
                fill.fill(slot.content, to);
            }
        }
        request.raw_len
    }

    /// The jid of the job of event `n`.
    pub(in crate::cli::bench) fn jid(&self, n: u64) -> String {
        stamped_jid(job_time(job_number(self.jobs, n, 0, 0)))
    }
}

fn job_number(jobs: Jobs, n: u64, cycle: u64, index: u32) -> u64 {
    match jobs {
        Jobs::Interleaved => n / 400 * 8 + n % 8,
        Jobs::Of(events) => n / events.max(1),
        Jobs::Replayed(each) => cycle * each + u64::from(index),
    }
}

fn job_time(number: u64) -> Micros {
    Micros(EPOCH.saturating_add(JOB_STEP.saturating_mul(i64::try_from(number).unwrap_or(i64::MAX))))
}

/// A pseudorandom generator.
#[derive(Debug, Clone, Copy)]
pub(in crate::cli::bench) struct Random(u64);

impl Random {
    /// The generator for event `n`.
    pub(in crate::cli::bench) fn of(seed: u64, n: u64) -> Self {
        let mut x = (seed ^ n.wrapping_mul(0x9e37_79b9_7f4a_7c15)).wrapping_add(0x9e37_79b9_7f4a_7c15);
        x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        Self((x ^ (x >> 31)) | 1)
    }

    pub(in crate::cli::bench) fn next(&mut self) -> u64 {
        // xorshift64*
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    pub(in crate::cli::bench) fn below(&mut self, n: u64) -> u64 {
        let wide = u128::from(self.next()) * u128::from(n);
        u64::try_from(wide >> 64).unwrap_or(0)
    }
}

const fn three_digits() -> [[u8; 3]; 1000] {
    let mut table = [[0; 3]; 1000];
    let mut n = 0;
    #[expect(clippy::cast_possible_truncation, clippy::indexing_slicing, reason = "computed at compile time")]
    while n < 1000 {
        table[n] = [b'0' + (n / 100) as u8, b'0' + (n / 10 % 10) as u8, b'0' + (n % 10) as u8];
        n += 1;
    }
    table
}

static THREE: [[u8; 3]; 1000] = three_digits();

/// The first `len` bytes, or none if there are fewer.
fn first(to: &mut [u8], len: usize) -> &mut [u8] {
    to.get_mut(..len).unwrap_or_default()
}

fn put(to: &mut [u8], bytes: &[u8]) {
    for (to, from) in to.iter_mut().zip(bytes) {
        *to = *from;
    }
}

/// Writes the last digits of a number, right-aligned.
fn put_decimal(to: &mut [u8], mut n: u64) {
    for slot in to.iter_mut().rev() {
        *slot = b'0' + u8::try_from(n % 10).unwrap_or(0);
        n /= 10;
    }
}

struct SlotFiller {
    n: u64,
    cycle: u64,
    jobs: Jobs,
    seed: u64,
    random: Random,
}

impl SlotFiller {
    #[inline]
    fn fill(&mut self, content: SlotContent, to: &mut [u8]) {
        match content {
            SlotContent::Digits(len) => self.digits(first(to, len as usize)),
            SlotContent::Jid(index) => {
                let time = job_time(job_number(self.jobs, self.n, self.cycle, index));
                put_stamp(first(to, JID_LEN), time, JID_FIELDS);
            }
            SlotContent::Stamp => put_stamp(first(to, STAMP_LEN), self.time(), STAMP_FIELDS),
            SlotContent::Minion(index) => {
                let group = if matches!(self.jobs, Jobs::Replayed(_)) { self.cycle } else { self.n };
                let number = Random::of(self.seed ^ 0x6d69, group * 64 + u64::from(index)).below(MINIONS);
                put_decimal(first(to, MINION_DIGITS), number);
            }
            SlotContent::Hex(len) => {
                for slot in first(to, len as usize) {
                    let digit = u8::try_from(self.random.below(16)).unwrap_or(0);
                    *slot = if digit < 10 { b'0' + digit } else { b'a' + digit - 10 };
                }
            }
            SlotContent::Near(value) => {
                let factor = 0.5 + self.random.below(1_000_000) as f64 / 1e6;
                let near = if value.fract() == 0.0 { (value * factor).round() } else { value * factor };
                put(first(to, 8), &((near * 1e3).round() / 1e3).to_be_bytes());
            }
            SlotContent::Low(bytes) => {
                let from = self.random.next().to_be_bytes();
                put(first(to, bytes as usize), &from);
            }
            SlotContent::Seconds => {
                let seconds = u32::try_from(self.time().0 / 1_000_000).unwrap_or(0);
                put(first(to, 4), &seconds.to_be_bytes());
            }
        }
    }

    fn time(&self) -> Micros {
        Micros(*EPOCH + EVENT_STEP * i64::try_from(self.n).unwrap_or(0))
    }

    /// Writes random digits in groups of three; one random number gives eighteen digits.
    fn digits(&mut self, to: &mut [u8]) {
        for group in to.chunks_mut(18) {
            let mut bits = self.random.next();
            for part in group.chunks_mut(3) {
                let three = usize::try_from(((bits & 0x3ff) * 1000) >> 10).unwrap_or(0);
                put(part, THREE.get(three).unwrap_or(b"000"));
                bits >>= 10;
            }
        }
    }
}

/// Offsets of year, month, day, hour, minute, second and microseconds.
type Fields = [usize; 7];
const JID_FIELDS: Fields = [0, 4, 6, 8, 10, 12, 14];
const STAMP_FIELDS: Fields = [0, 5, 8, 11, 14, 17, 20];

fn put_stamp(to: &mut [u8], time: Micros, fields: Fields) {
    let Some(at) = time.utc() else { return };
    let [month, day, hour, minute, second] = [at.month(), at.day(), at.hour(), at.minute(), at.second()];
    let values = [at.year(), month.into(), day.into(), hour.into(), minute.into(), second.into()];
    for ((at, value), digits) in fields.iter().zip(values).zip([4, 2, 2, 2, 2, 2]) {
        put_decimal(to.get_mut(*at..at + digits).unwrap_or_default(), value.unsigned_abs().into());
    }
    let [.., micros] = fields;
    put_decimal(
        to.get_mut(micros..micros + 6).unwrap_or_default(),
        time.0.rem_euclid(1_000_000).unsigned_abs(),
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    fn template() -> EventTemplate {
        let tag = Template {
            bytes: b"salt/job/00000000000000000000/ret/web00000".to_vec(),
            slots: vec![
                Slot { at: 9, content: SlotContent::Jid(0) },
                Slot { at: 37, content: SlotContent::Minion(0) },
            ],
        };
        let mut w = Writer::new();
        w.map(1).str("n").str(&"0".repeat(40));
        let data = w.into_bytes();
        let slots = vec![Slot { at: data.len() - 40, content: SlotContent::Digits(40) }];
        EventTemplate { tag, data: Template { bytes: data, slots } }
    }

    #[test]
    fn an_event_depends_only_on_its_number_and_not_on_its_encoding() {
        let write = |encoding: Encoding, n: u64| {
            let mut out = Vec::new();
            let raw = EventGenerator::new(&[template()], encoding, Jobs::Interleaved, 7).write(n, &mut out);
            (raw, out)
        };
        let (raw, bare) = write(Encoding::Bare, 9);
        assert_eq!((raw, &bare), (bare.len(), &write(Encoding::Bare, 9).1));
        assert_ne!(bare, write(Encoding::Bare, 10).1);
        let (tag, data) = bare.split_at(template().tag.bytes.len());
        let start_of_the_jid = format!("salt/job/{}", &stamped_jid(Micros(*EPOCH))[..10]);
        assert!(tag.starts_with(start_of_the_jid.as_bytes()), "{}", String::from_utf8_lossy(tag));
        let wrapped = write(Encoding::EventReturn, 9).1;
        let value = rmpv::decode::read_value(&mut wrapped.as_slice()).unwrap();
        assert_eq!(value["tag"].as_str().unwrap().as_bytes(), tag);
        assert!(wrapped.ends_with(data));
        assert_eq!(write(Encoding::Returner, 9).1, data);
    }

    #[test]
    fn jids_and_time_stamps_match_the_calendar() {
        let time = Micros(*EPOCH + 123_456);
        let mut jid = *b"xxxxxxxxxxxxxxxxxxxx";
        put_stamp(&mut jid, time, JID_FIELDS);
        assert_eq!(String::from_utf8_lossy(&jid), stamped_jid(time));
        let mut stamp = *b"____-__-__T__:__:__.______";
        put_stamp(&mut stamp, time, STAMP_FIELDS);
        assert_eq!(String::from_utf8_lossy(&stamp), time.iso().trim_end_matches('Z'));
    }
}
