//! A recorded bus as a load: each event is replayed repeatedly, with a new jid, time stamp, minion and values each time.
//!
//! # File
//!
//! `SBUS1\n`; u32 size and JSON header; then records of u64 arrival time (ns), u32 size, frame of the bus.
//! Integers are big-endian.
//!
//! Each replay replaces every jid (one new jid for each), time stamp, minion id (in tags and data), float, integer of
//! more than one byte, run of at least three digits, and long hexadecimal text. Words, paths and public keys are kept.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use anyhow::{Context as _, bail};
use rmpv::Value;

use super::template::{EventTemplate, JID_LEN, MINION_DIGITS, STAMP_LEN, Slot, SlotContent, Template};
use crate::wire::msgpack::{Head, Reader};
use crate::wire::{frame, salt_event};

/// Larger events are skipped: a recording of some minutes has one or two of a megabyte, which would dominate the replay.
pub(in crate::cli::bench) const EVENT_BYTES_MAX: usize = 64 * 1024;

/// Minimum length of hexadecimal text that counts as a hash or token instead of a word.
const HEX_RUN_MIN: usize = 16;

/// Minimum length of a run of digits that is replaced.
const DIGIT_RUN_MIN: usize = 3;

/// Templates, and the number of jobs in each replay.
pub(in crate::cli::bench) struct Corpus {
    pub(in crate::cli::bench) templates: Vec<EventTemplate>,
    pub(in crate::cli::bench) jobs: u64,
}

/// Reads a recording.
pub(in crate::cli::bench) fn read(path: &Path) -> anyhow::Result<Corpus> {
    let bytes = std::fs::read(path).with_context(|| format!("read {}", path.display()))?;
    let events = events(&bytes).with_context(|| format!("read the recorded bus {}", path.display()))?;
    Ok(corpus(&events))
}

fn events(bytes: &[u8]) -> anyhow::Result<Vec<(&[u8], &[u8])>> {
    let mut rest = bytes.strip_prefix(b"SBUS1\n").context("SBUS1 is missing")?;
    let mut take = |n: usize| {
        let (consumed, after) = rest.split_at_checked(n)?;
        rest = after;
        Some(consumed)
    };
    let size = |b: &[u8]| b.iter().fold(0_usize, |n, b| n << 8 | usize::from(*b));
    let head = take(4).context("header is missing")?;
    take(size(head)).context("truncated header")?;
    let mut events = Vec::new();
    while let Some(head) = take(12) {
        let frame = take(size(head.get(8..).unwrap_or_default())).context("truncated frame")?;
        if let Some((tag, data)) = frame::body(frame).and_then(salt_event::split)
            && tag.len() + data.len() <= EVENT_BYTES_MAX
            && Reader::new(data).value().is_ok_and(|value| value.len() == data.len())
        {
            events.push((tag, data));
        }
    }
    if events.is_empty() {
        bail!("no events");
    }
    Ok(events)
}

fn corpus(events: &[(&[u8], &[u8])]) -> Corpus {
    let mut minions = BTreeSet::new();
    for (tag, _) in events {
        minions.extend(salt_event::job_tag(tag).map(|job| job.minion.to_owned()).filter(|id| !id.is_empty()));
    }
    let mut names = KnownNames {
        // Longest first: `web12` must not be consumed for `web1`.
        minions: minions.into_iter().collect(),
        jids: BTreeMap::new(),
    };
    names.minions.sort_by_key(|id| std::cmp::Reverse(id.len()));
    let templates = events.iter().map(|(tag, data)| names.template(tag, data)).collect();
    Corpus { templates, jobs: names.jids.len().max(1) as u64 }
}

struct KnownNames {
    minions: Vec<String>,
    jids: BTreeMap<Vec<u8>, u32>,
}

impl KnownNames {
    fn template(&mut self, tag: &[u8], data: &[u8]) -> EventTemplate {
        let tag = self.text(tag);
        let mut part = Template::default();
        let whole = rmpv::decode::read_value_with_max_depth(&mut &*data, crate::limits::RMPV_DEPTH_MAX);
        match whole {
            Ok(value) => self.value(&value, &mut part),
            // Too deep, or not msgpack: unchanged.
            Err(_) => part.bytes.extend_from_slice(data),
        }
        EventTemplate { tag, data: part }
    }

    fn value(&mut self, value: &Value, part: &mut Template) {
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
                part.slots.extend(filled.slots.iter().map(|p| Slot { at: p.at + shift, ..*p }));
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
                let content = match (number.first(), other) {
                    (Some(0xcb), Value::F64(float)) if float.is_finite() => {
                        Some((1, SlotContent::Near(*float)))
                    }
                    (Some(0xcd | 0xd1), _) => Some((2, SlotContent::Low(1))),
                    (Some(0xce), _)
                        if other.as_u64().is_some_and(|n| (1_600_000_000..2_000_000_000).contains(&n)) =>
                    {
                        Some((1, SlotContent::Seconds))
                    }
                    (Some(0xce | 0xd2), _) => Some((2, SlotContent::Low(3))),
                    _ => None,
                };
                part.slots.extend(content.map(|(shift, content)| Slot { at: at + shift, content }));
            }
        }
    }

    /// Finds the slots of a text.
    fn text(&mut self, text: &[u8]) -> Template {
        let mut part = Template::default();
        let mut at = 0;
        while let Some(rest) = text.get(at..).filter(|rest| !rest.is_empty()) {
            let begins = at == 0 || !text.get(at - 1).is_some_and(u8::is_ascii_alphanumeric);
            let digits = run(rest, u8::is_ascii_digit);
            let hex = run(rest, u8::is_ascii_hexdigit);
            let word = run(rest, u8::is_ascii_alphanumeric);
            let to = part.bytes.len();
            let slot = |part: &mut Template, shift: usize, content| {
                part.slots.push(Slot { at: to + shift, content });
            };
            let (consumed, len) = if let Some(id) = self.minion(rest, begins) {
                let (number, name) = id;
                let stem = name.trim_end_matches(|c: char| c.is_ascii_digit());
                part.bytes.extend_from_slice(stem.as_bytes());
                part.bytes.extend_from_slice(&[b'0'; MINION_DIGITS]);
                slot(&mut part, stem.len(), SlotContent::Minion(number));
                at += name.len();
                continue;
            } else if begins && digits == JID_LEN && rest.starts_with(b"20") {
                let next = u32::try_from(self.jids.len()).unwrap_or(u32::MAX);
                let jid = rest.get(..JID_LEN).unwrap_or_default().to_vec();
                slot(&mut part, 0, SlotContent::Jid(*self.jids.entry(jid).or_insert(next)));
                (JID_LEN, JID_LEN)
            } else if begins && is_stamp(rest) {
                slot(&mut part, 0, SlotContent::Stamp);
                (STAMP_LEN, STAMP_LEN)
            } else if begins && hex == word && hex >= HEX_RUN_MIN && digits < hex {
                slot(&mut part, 0, SlotContent::Hex(u32::try_from(hex).unwrap_or(0)));
                (hex, hex)
            } else if digits >= DIGIT_RUN_MIN {
                slot(&mut part, 0, SlotContent::Digits(u32::try_from(digits).unwrap_or(0)));
                (digits, digits)
            } else {
                let plain = digits.max(1);
                (plain, plain)
            };
            part.bytes.extend_from_slice(rest.get(..len).unwrap_or_default());
            at += consumed;
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

/// Appends the head of an array or a map.
fn head(part: &mut Template, value: &Value) {
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
    use super::super::template::{Encoding, EventGenerator, Jobs};
    use super::*;

    #[test]
    fn each_replay_has_new_values_and_is_valid_msgpack() {
        for release in ["3006.28", "3007.15", "3008.3"] {
            let path = format!("{}/tests/data/{release}.sbus", env!("CARGO_MANIFEST_DIR"));
            let corpus = read(Path::new(&path)).unwrap();
            let count = corpus.templates.len() as u64;
            let generator =
                EventGenerator::new(&corpus.templates, Encoding::EventReturn, Jobs::Replayed(corpus.jobs), 7);
            let mut seen = BTreeSet::new();
            let mut job_tags = 0;
            for n in 0..2 * count {
                let mut out = Vec::new();
                generator.write(n, &mut out);
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
