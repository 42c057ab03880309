//! A recorded bus as a load: each event again and again, with a new jid, stamp, minion and values each time.
//!
//! # File
//!
//! `SBUS1\n`; u32 size and JSON header; then records of u64 arrival time (ns), u32 size, frame as on the bus.
//! Integers are big-endian.
//!
//! New are: every jid (one new jid for each in each replay), every time stamp, every minion id (in tags and
//! anywhere in the data), floats, integers of more than a byte, and every run of three digits or more. Long
//! hexadecimal text is new too. Words, paths and public keys stay.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use anyhow::{Context as _, bail};
use rmpv::Value;

use super::template::{Form, JID_LEN, MINION_DIGITS, Part, Place, STAMP_LEN, What};
use crate::wire::msgpack::{Head, Reader};
use crate::wire::{frame, salt_event};

/// Events above this size are left out: a recording of some minutes has one or two of a megabyte, and played
/// in a loop they would be most of the load.
pub(super) const EVENT_BYTES_MAX: usize = 64 * 1024;

/// Hexadecimal text of at least so many digits is a hash or a token, not a word.
const HEX_RUN_MIN: usize = 16;

/// A shorter run of digits is part of a word.
const DIGIT_RUN_MIN: usize = 3;

/// Forms, and how many jobs each replay of them has.
pub(super) struct Corpus {
    pub(super) forms: Vec<Form>,
    pub(super) jobs: u64,
}

/// Reads a recording.
pub(super) fn read(path: &Path) -> anyhow::Result<Corpus> {
    let bytes = std::fs::read(path).with_context(|| format!("read {}", path.display()))?;
    let events = events(&bytes).with_context(|| format!("read {} as a recorded bus", path.display()))?;
    Ok(corpus(&events))
}

fn events(bytes: &[u8]) -> anyhow::Result<Vec<(&[u8], &[u8])>> {
    let mut rest = bytes.strip_prefix(b"SBUS1\n").context("no SBUS1 at its beginning")?;
    let mut take = |n: usize| {
        let (taken, after) = rest.split_at_checked(n)?;
        rest = after;
        Some(taken)
    };
    let size = |b: &[u8]| b.iter().fold(0_usize, |n, b| n << 8 | usize::from(*b));
    let head = take(4).context("no header")?;
    take(size(head)).context("half a header")?;
    let mut events = Vec::new();
    while let Some(head) = take(12) {
        let frame = take(size(head.get(8..).unwrap_or_default())).context("half a frame at its end")?;
        if let Some((tag, data)) = frame::body(frame).and_then(salt_event::split)
            && tag.len() + data.len() <= EVENT_BYTES_MAX
            && Reader::new(data).value().is_ok_and(|value| value.len() == data.len())
        {
            events.push((tag, data));
        }
    }
    if events.is_empty() {
        bail!("no events in it");
    }
    Ok(events)
}

fn corpus(events: &[(&[u8], &[u8])]) -> Corpus {
    let mut minions = BTreeSet::new();
    for (tag, _) in events {
        minions.extend(salt_event::job_tag(tag).map(|job| job.minion.to_owned()).filter(|id| !id.is_empty()));
    }
    let mut names = Names {
        // Longest first: `web12` must not be taken for `web1`.
        minions: minions.into_iter().collect(),
        jids: BTreeMap::new(),
    };
    names.minions.sort_by_key(|id| std::cmp::Reverse(id.len()));
    let forms = events.iter().map(|(tag, data)| names.form(tag, data)).collect();
    Corpus { forms, jobs: names.jids.len().max(1) as u64 }
}

struct Names {
    minions: Vec<String>,
    jids: BTreeMap<Vec<u8>, u32>,
}

impl Names {
    fn form(&mut self, tag: &[u8], data: &[u8]) -> Form {
        let tag = self.text(tag);
        let mut part = Part::default();
        let whole = rmpv::decode::read_value_with_max_depth(&mut &*data, crate::limits::RMPV_DEPTH_MAX);
        match whole {
            Ok(value) => self.value(&value, &mut part),
            // Too deep, or no msgpack: as it is.
            Err(_) => part.bytes.extend_from_slice(data),
        }
        Form { tag, data: part }
    }

    fn value(&mut self, value: &Value, part: &mut Part) {
        match value {
            Value::String(text) => {
                let filled = self.text(text.as_bytes());
                let head = "x".repeat(filled.bytes.len());
                let mut bytes = Vec::new();
                let _ = rmpv::encode::write_value(&mut bytes, &Value::from(head));
                bytes.truncate(bytes.len() - filled.bytes.len());
                part.bytes.extend_from_slice(&bytes);
                let shift = part.bytes.len();
                part.bytes.extend_from_slice(&filled.bytes);
                part.places.extend(filled.places.iter().map(|p| Place { at: p.at + shift, ..*p }));
            }
            Value::Array(items) => {
                head(part, value);
                for item in items {
                    self.value(item, part);
                }
            }
            Value::Map(pairs) => {
                head(part, value);
                for (key, value) in pairs {
                    self.value(key, part);
                    self.value(value, part);
                }
            }
            other => {
                let at = part.bytes.len();
                let _ = rmpv::encode::write_value(&mut part.bytes, other);
                let number = part.bytes.get(at..).unwrap_or_default();
                let what = match (number.first(), other) {
                    (Some(0xcb), Value::F64(float)) if float.is_finite() => Some((1, What::Near(*float))),
                    (Some(0xcd | 0xd1), _) => Some((2, What::Low(1))),
                    (Some(0xce), _)
                        if other.as_u64().is_some_and(|n| (1_600_000_000..2_000_000_000).contains(&n)) =>
                    {
                        Some((1, What::Seconds))
                    }
                    (Some(0xce | 0xd2), _) => Some((2, What::Low(3))),
                    _ => None,
                };
                part.places.extend(what.map(|(shift, what)| Place { at: at + shift, what }));
            }
        }
    }

    /// Marks what is new each time in a text.
    fn text(&mut self, text: &[u8]) -> Part {
        let mut part = Part::default();
        let mut at = 0;
        while let Some(rest) = text.get(at..).filter(|rest| !rest.is_empty()) {
            let begins = at == 0 || !text.get(at - 1).is_some_and(u8::is_ascii_alphanumeric);
            let digits = run(rest, u8::is_ascii_digit);
            let hex = run(rest, u8::is_ascii_hexdigit);
            let word = run(rest, u8::is_ascii_alphanumeric);
            let to = part.bytes.len();
            let place =
                |part: &mut Part, shift: usize, what| part.places.push(Place { at: to + shift, what });
            let (taken, len) = if let Some(id) = self.minion(rest, begins) {
                let (number, name) = id;
                let stem = name.trim_end_matches(|c: char| c.is_ascii_digit());
                part.bytes.extend_from_slice(stem.as_bytes());
                part.bytes.extend_from_slice(&[b'0'; MINION_DIGITS]);
                place(&mut part, stem.len(), What::Minion(number));
                at += name.len();
                continue;
            } else if begins && digits == JID_LEN && rest.starts_with(b"20") {
                let next = u32::try_from(self.jids.len()).unwrap_or(u32::MAX);
                let jid = rest.get(..JID_LEN).unwrap_or_default().to_vec();
                place(&mut part, 0, What::Jid(*self.jids.entry(jid).or_insert(next)));
                (JID_LEN, JID_LEN)
            } else if begins && is_stamp(rest) {
                place(&mut part, 0, What::Stamp);
                (STAMP_LEN, STAMP_LEN)
            } else if begins && hex == word && hex >= HEX_RUN_MIN && digits < hex {
                place(&mut part, 0, What::Hex(u32::try_from(hex).unwrap_or(0)));
                (hex, hex)
            } else if digits >= DIGIT_RUN_MIN {
                place(&mut part, 0, What::Digits(u32::try_from(digits).unwrap_or(0)));
                (digits, digits)
            } else {
                let plain = digits.max(1);
                (plain, plain)
            };
            part.bytes.extend_from_slice(rest.get(..len).unwrap_or_default());
            at += taken;
        }
        part
    }

    fn minion(&self, rest: &[u8], begins: bool) -> Option<(u32, String)> {
        if !begins {
            return None;
        }
        let ends = |id: &str| !rest.get(id.len()).is_some_and(u8::is_ascii_alphanumeric);
        let at = self.minions.iter().position(|id| rest.starts_with(id.as_bytes()) && ends(id))?;
        Some((u32::try_from(at).unwrap_or(0), self.minions.get(at)?.clone()))
    }
}

/// The head of an array or a map.
fn head(part: &mut Part, value: &Value) {
    let mut bytes = Vec::new();
    let _ = rmpv::encode::write_value(&mut bytes, value);
    let mut reader = Reader::new(&bytes);
    if let Ok(Head::Array(_) | Head::Map(_)) = reader.head() {
        let len = bytes.len() - reader.rest().len();
        part.bytes.extend_from_slice(bytes.get(..len).unwrap_or_default());
    }
}

fn run(text: &[u8], of: impl Fn(&u8) -> bool) -> usize {
    text.iter().take_while(|b| of(b)).count()
}

fn is_stamp(text: &[u8]) -> bool {
    let pattern = b"dddd-dd-ddTdd:dd:dd.dddddd";
    text.len() >= STAMP_LEN
        && text.iter().zip(pattern).all(|(c, p)| if *p == b'd' { c.is_ascii_digit() } else { c == p })
}

#[cfg(test)]
mod tests {
    use super::super::template::{Jobs, Pool, Wrap};
    use super::*;

    #[test]
    fn a_replay_is_new_each_time_and_stays_msgpack() {
        for release in ["3006.28", "3007.15", "3008.3"] {
            let path = format!("{}/tests/data/{release}.sbus", env!("CARGO_MANIFEST_DIR"));
            let corpus = read(Path::new(&path)).unwrap();
            let count = corpus.forms.len() as u64;
            let pool = Pool::new(&corpus.forms, Wrap::EventReturn, Jobs::Replayed(corpus.jobs), 7);
            let mut seen = BTreeSet::new();
            let mut job_tags = 0;
            for n in 0..2 * count {
                let mut out = Vec::new();
                pool.write(n, &mut out);
                let whole = Reader::new(&out).value().map(<[u8]>::len);
                assert_eq!(whole, Ok(out.len()), "{release} event {n}");
                let value = rmpv::decode::read_value(&mut out.as_slice()).unwrap();
                let tag =
                    value["tag"].as_slice().unwrap_or_else(|| value["tag"].as_str().unwrap().as_bytes());
                let recorded = tag.split(|b| *b == b'/').any(|word| word == b"web1" || word == b"db1");
                assert!(!recorded, "{}", String::from_utf8_lossy(tag));
                if tag.starts_with(b"salt/job/") {
                    job_tags += 1;
                    assert!(seen.insert((n, tag.to_vec())), "{}", String::from_utf8_lossy(tag));
                }
            }
            assert!(job_tags > 10);
        }
    }
}
