//! Templates of events: fixed bytes with slots that get new content in each event.
//!
//! # Invariant
//!
//! The content of a slot is a pure function of the seed, the event's number and the hour of the
//! start, and is as long as the bytes it replaces. Generating an event is one copy and a few small
//! writes, so the generator is cheap compared with the daemon.

use std::sync::LazyLock;

use crate::Random;
use saltcellar_base::clock::{Clock, Micros};
use saltcellar_model::stamped_jid;
use saltcellar_wire::msgpack::Writer;

/// The time of event 0, in microseconds: 20 to 21 hours ago: no stamp may be a day off, and jids
/// must be in the past.
static EPOCH: LazyLock<i64> = LazyLock::new(|| {
    let now = Clock::real().now().0;
    now - now.rem_euclid(HOUR) - 20 * HOUR
});
const HOUR: i64 = 3_600_000_000;

/// Microseconds between events, and between jobs.
const EVENT_STEP: i64 = 53;
const JOB_STEP: i64 = 7_003;

const MINIONS: u64 = 20_000;

/// Bytes of a jid, of a time stamp without its zone, and of a minion's number.
pub(super) const JID_LEN: usize = 20;
pub(super) const STAMP_LEN: usize = 26;
pub(super) const MINION_DIGITS: usize = 5;

#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum SlotContent {
    /// The jid of the event's n-th job.
    Jid(u32),
    /// `2026-11-21T03:15:30.124503`
    Stamp,
    /// The five digits of the event's n-th minion.
    Minion(u32),
    /// This many random decimal digits.
    Digits(usize),
    /// This many random hexadecimal digits.
    Hex(usize),
    /// A float64 near this one, with three decimals.
    Near(f64),
    /// This many low bytes of an integer, at random.
    Low(usize),
    /// Seconds since 1970, u32.
    Seconds,
}

#[derive(Debug, Clone, Copy)]
struct Slot {
    at: usize,
    content: SlotContent,
}

/// Bytes with slots.
#[derive(Debug, Clone, Default)]
pub(super) struct Template {
    pub(super) bytes: Vec<u8>,
    slots: Vec<Slot>,
}

impl Template {
    /// Appends msgpack.
    pub(super) fn write(&mut self, write: impl FnOnce(&mut Writer) -> &mut Writer) {
        let mut w = Writer::behind(std::mem::take(&mut self.bytes));
        write(&mut w);
        self.bytes = w.into_bytes();
    }

    pub(super) fn slot(&mut self, at: usize, content: SlotContent) {
        self.slots.push(Slot { at, content });
    }

    fn append(&mut self, other: &Self) {
        self.bytes.extend_from_slice(&other.bytes);
        self.append_slots(other);
    }

    /// Appends a string as a msgpack str.
    pub(super) fn append_str(&mut self, text: &Self) {
        self.write(|w| w.str_bytes(&text.bytes));
        self.append_slots(text);
    }

    /// Appends the slots of the bytes that were appended last.
    fn append_slots(&mut self, other: &Self) {
        let shift = self.bytes.len() - other.bytes.len();
        self.slots.extend(other.slots.iter().map(|slot| Slot {
            at: slot.at + shift,
            ..*slot
        }));
    }
}

/// An event: its tag and its msgpack data.
#[derive(Debug, Default)]
pub(super) struct EventTemplate {
    pub(super) tag: Template,
    pub(super) data: Template,
}

impl EventTemplate {
    pub(super) fn len(&self) -> usize {
        self.tag.bytes.len() + self.data.bytes.len()
    }

    fn encoded(&self, encoding: Encoding) -> Template {
        let mut part = Template::default();
        match encoding {
            Encoding::EventReturn => {
                part.write(|w| w.map(2).str("tag"));
                part.append_str(&self.tag);
                part.write(|w| w.str("data"));
            }
            // The load of a return is its data alone.
            Encoding::Returner => {}
            Encoding::Bare => part.append(&self.tag),
            Encoding::Message => {
                part.append(&self.tag);
                part.bytes.extend_from_slice(b"\n\n");
            }
        }

        part.append(&self.data);
        part
    }
}

/// Encoding of an event in a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Encoding {
    /// An element of `event_return`'s list.
    EventReturn,
    /// The load of a `returner` call.
    Returner,
    /// Only tag and data, for the baseline.
    Bare,
    /// Tag, two newlines, data: a message as on Salt's bus.
    Message,
}

/// Assignment of events to jobs.
#[derive(Debug, Clone, Copy)]
pub(super) enum Jobs {
    /// Jobs of fifty returns, eight at a time.
    Interleaved,
    /// Jobs of this many events, one after the other.
    Of(u64),
    /// This many jobs in each replay of a recording.
    Replayed(u64),
}

/// Generates the events of a load.
#[derive(Debug)]
pub struct EventGenerator {
    /// The encoded templates, with the bytes of tag and data.
    requests: Vec<(Template, usize)>,
    pub(super) encoding: Encoding,
    jobs: Jobs,
    seed: u64,
}

impl EventGenerator {
    /// Event `n` uses template `n` modulo their number.
    pub(super) fn new(
        templates: &[EventTemplate],
        encoding: Encoding,
        jobs: Jobs,
        seed: u64,
    ) -> Self {
        let encoded = |template: &EventTemplate| (template.encoded(encoding), template.len());
        Self {
            requests: templates.iter().map(encoded).collect(),
            encoding,
            jobs,
            seed,
        }
    }

    /// Appends event `n` to a request, and returns the bytes of its tag and data.
    pub fn write(&self, n: u64, out: &mut Vec<u8>) -> usize {
        let templates = self.requests.len().max(1) as u64;
        let request = usize::try_from(n % templates)
            .ok()
            .and_then(|at| self.requests.get(at));
        let Some((template, raw_len)) = request else {
            return 0;
        };

        let start = out.len();
        out.extend_from_slice(&template.bytes);
        let own = out.get_mut(start..).unwrap_or_default();

        let cycle = n / templates;
        let random = Random::of(self.seed, n);
        let mut fill = SlotFiller {
            n,
            cycle,
            jobs: self.jobs,
            seed: self.seed,
            random,
        };

        for slot in &template.slots {
            fill.fill(slot.content, own.get_mut(slot.at..).unwrap_or_default());
        }

        *raw_len
    }

    /// The jid of the job that event `n` belongs to.
    pub fn jid(&self, n: u64) -> String {
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

const fn three_digits() -> [[u8; 3]; 1000] {
    let mut table = [[0; 3]; 1000];
    let mut n = 0;

    #[expect(
        clippy::cast_possible_truncation,
        clippy::indexing_slicing,
        reason = "computed at compile time"
    )]
    while n < 1000 {
        table[n] = [
            b'0' + (n / 100) as u8,
            b'0' + (n / 10 % 10) as u8,
            b'0' + (n % 10) as u8,
        ];
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
            SlotContent::Digits(len) => self.digits(first(to, len)),
            SlotContent::Jid(index) => {
                let time = job_time(job_number(self.jobs, self.n, self.cycle, index));
                put_stamp(first(to, JID_LEN), time, JID_FIELDS);
            }
            SlotContent::Stamp => put_stamp(first(to, STAMP_LEN), self.time(), STAMP_FIELDS),
            SlotContent::Minion(index) => {
                // Within one replay a minion keeps its name, which keeps its events together.
                let group = if matches!(self.jobs, Jobs::Replayed(_)) {
                    self.cycle
                } else {
                    self.n
                };

                let number =
                    Random::of(self.seed ^ 0x6d69, group * 64 + u64::from(index)).below(MINIONS);
                put_decimal(first(to, MINION_DIGITS), number);
            }
            SlotContent::Hex(len) => {
                for slot in first(to, len) {
                    let digit = u8::try_from(self.random.below(16)).unwrap_or(0);
                    *slot = if digit < 10 {
                        b'0' + digit
                    } else {
                        b'a' + digit - 10
                    };
                }
            }
            SlotContent::Near(value) => {
                // From half to one and a half of the value. Whole numbers stay whole.
                let factor = 0.5 + self.random.below(1_000_000) as f64 / 1e6;
                let near = if value.fract() == 0.0 {
                    (value * factor).round()
                } else {
                    value * factor
                };

                put(first(to, 8), &((near * 1e3).round() / 1e3).to_be_bytes());
            }
            SlotContent::Low(bytes) => {
                let from = self.random.next().to_be_bytes();
                put(first(to, bytes), &from);
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

    let [month, day, hour, minute, second] =
        [at.month(), at.day(), at.hour(), at.minute(), at.second()];

    let values = [
        at.year(),
        month.into(),
        day.into(),
        hour.into(),
        minute.into(),
        second.into(),
    ];

    for ((at, value), digits) in fields.iter().zip(values).zip([4, 2, 2, 2, 2, 2]) {
        put_decimal(
            to.get_mut(*at..at + digits).unwrap_or_default(),
            value.unsigned_abs().into(),
        );
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
        let bytes = b"salt/job/00000000000000000000/ret/web00000".to_vec();
        let mut tag = Template {
            bytes,
            slots: Vec::new(),
        };
        tag.slot(9, SlotContent::Jid(0));
        tag.slot(37, SlotContent::Minion(0));
        let mut data = Template::default();
        data.write(|w| w.map(1).str("n").str(&"0".repeat(40)));
        data.slot(data.bytes.len() - 40, SlotContent::Digits(40));
        EventTemplate { tag, data }
    }

    #[test]
    fn an_event_depends_only_on_its_number_and_not_on_its_encoding() {
        let write = |encoding: Encoding, n: u64| {
            let mut out = Vec::new();
            let raw = EventGenerator::new(&[template()], encoding, Jobs::Interleaved, 7)
                .write(n, &mut out);
            (raw, out)
        };
        let (raw, bare) = write(Encoding::Bare, 9);
        assert_eq!((raw, &bare), (bare.len(), &write(Encoding::Bare, 9).1));
        assert_ne!(bare, write(Encoding::Bare, 10).1);
        let (tag, data) = bare.split_at(template().tag.bytes.len());
        let start_of_the_jid = format!("salt/job/{}", &stamped_jid(Micros(*EPOCH))[..10]);
        assert!(
            tag.starts_with(start_of_the_jid.as_bytes()),
            "{}",
            String::from_utf8_lossy(tag)
        );
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
        assert_eq!(
            String::from_utf8_lossy(&stamp),
            time.iso().trim_end_matches('Z')
        );
    }
}
