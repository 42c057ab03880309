//! Templates made from examples of events: every generated event has new values in place of the example's.
//!
//! Replaced are every jid (one new jid for each), time stamp, minion id (in tags and data), float, integer of more than one
//! byte, run of at least three digits, and long hexadecimal text. Words, paths and public keys are kept.

use std::collections::{BTreeMap, BTreeSet};

use rmpv::Value;

use super::template::{EventTemplate, JID_LEN, MINION_DIGITS, STAMP_LEN, SlotContent, Template};
use saltcellar_wire::salt_event;

/// Minimum length of hexadecimal text that counts as a hash or token instead of a word.
const HEX_RUN_MIN: usize = 16;

/// Minimum length of a run of digits that is replaced.
const DIGIT_RUN_MIN: usize = 3;

/// The templates of events, given by tag and data, and the number of their jobs.
pub(super) fn templates<'a>(
    events: impl Iterator<Item = (&'a [u8], &'a [u8])> + Clone,
) -> (Vec<EventTemplate>, u64) {
    let minions: BTreeSet<_> = events
        .clone()
        .filter_map(|(tag, _)| salt_event::job_tag(tag).map(|job| job.minion.to_owned()))
        .filter(|id| !id.is_empty())
        .collect();

    let mut names = KnownNames {
        minions: minions.into_iter().collect(),
        jids: BTreeMap::new(),
    };

    // Longest first: `web12` must not be consumed for `web1`.
    names.minions.sort_by_key(|id| std::cmp::Reverse(id.len()));

    let templates = events
        .map(|(tag, data)| names.template(tag, data))
        .collect();

    (templates, names.jids.len().max(1) as u64)
}

struct KnownNames {
    minions: Vec<String>,
    jids: BTreeMap<Vec<u8>, u32>,
}

impl KnownNames {
    fn template(&mut self, tag: &[u8], data: &[u8]) -> EventTemplate {
        let mut part = Template::default();
        match rmpv::decode::read_value_with_max_depth(
            &mut &*data,
            saltcellar_base::limits::RMPV_DEPTH_MAX,
        ) {
            Ok(value) => self.value(&value, &mut part),
            // Too deep, or not msgpack: unchanged.
            Err(_) => part.bytes.extend_from_slice(data),
        }

        EventTemplate {
            tag: self.text(tag),
            data: part,
        }
    }

    fn value(&mut self, value: &Value, part: &mut Template) {
        match value {
            Value::String(text) => part.append_str(&self.text(text.as_bytes())),
            Value::Array(items) => {
                part.write(|w| w.array(items.len()));
                for item in items {
                    self.value(item, part);
                }
            }
            Value::Map(pairs) => {
                part.write(|w| w.map(pairs.len()));
                for (key, value) in pairs {
                    self.value(key, part);
                    self.value(value, part);
                }
            }
            other => {
                let at = part.bytes.len();
                // A write to memory succeeds.
                let _ = rmpv::encode::write_value(&mut part.bytes, other);

                // A number in this range is a time, from 2020 to 2033.
                let is_time = other
                    .as_u64()
                    .is_some_and(|n| (1_600_000_000..2_000_000_000).contains(&n));

                // By the first byte: only values in an encoding of fixed length can be replaced in
                // place.
                match (part.bytes.get(at).copied(), other) {
                    (Some(0xcb), Value::F64(float)) if float.is_finite() => {
                        part.slot(at + 1, SlotContent::Near(*float));
                    }
                    (Some(0xcd | 0xd1), _) => part.slot(at + 2, SlotContent::Low(1)),
                    (Some(0xce), _) if is_time => part.slot(at + 1, SlotContent::Seconds),
                    (Some(0xce | 0xd2), _) => part.slot(at + 2, SlotContent::Low(3)),
                    _ => {}
                }
            }
        }
    }

    /// Finds the slots of a string.
    fn text(&mut self, text: &[u8]) -> Template {
        let mut part = Template::default();
        let mut at = 0;
        while let Some(rest) = text.get(at..).filter(|rest| !rest.is_empty()) {
            let to = part.bytes.len();
            let begins = at == 0 || !text.get(at - 1).is_some_and(u8::is_ascii_alphanumeric);

            // A minion's name keeps its stem and gets a number of fixed length.
            if let Some((number, name)) = begins.then(|| self.minion(rest)).flatten() {
                let stem = name.trim_end_matches(|c: char| c.is_ascii_digit());
                part.bytes.extend_from_slice(stem.as_bytes());
                part.bytes.extend_from_slice(&[b'0'; MINION_DIGITS]);
                part.slot(to + stem.len(), SlotContent::Minion(number));
                at += name.len();
                continue;
            }

            let digits = run(rest, u8::is_ascii_digit);
            let hex = if begins {
                run(rest, u8::is_ascii_hexdigit)
            } else {
                0
            };

            // From the most specific form to the least.
            let (len, content) = if begins && digits == JID_LEN && rest.starts_with(b"20") {
                let next = u32::try_from(self.jids.len()).unwrap_or(u32::MAX);
                let jid = rest.get(..JID_LEN).unwrap_or_default().to_vec();
                (
                    JID_LEN,
                    Some(SlotContent::Jid(*self.jids.entry(jid).or_insert(next))),
                )
            } else if begins && is_stamp(rest) {
                (STAMP_LEN, Some(SlotContent::Stamp))
            } else if hex >= HEX_RUN_MIN
                // Digits alone are a number, and hexadecimal digits before other letters are part
                // of a word.
                && digits < hex
                && hex == run(rest, u8::is_ascii_alphanumeric)
            {
                (hex, Some(SlotContent::Hex(hex)))
            } else if digits >= DIGIT_RUN_MIN {
                (digits, Some(SlotContent::Digits(digits)))
            } else {
                // Letters, or any other single character, stay as they are.
                (digits.max(run(rest, u8::is_ascii_alphabetic)).max(1), None)
            };

            part.bytes
                .extend_from_slice(rest.get(..len).unwrap_or_default());
            if let Some(content) = content {
                part.slot(to, content);
            }

            at += len;
        }

        part
    }

    /// The minion whose id starts a string, and its number.
    fn minion<'a>(&'a self, text: &[u8]) -> Option<(u32, String)> {
        let is_id = |id: &&'a String| {
            text.starts_with(id.as_bytes())
                && !text.get(id.len()).is_some_and(u8::is_ascii_alphanumeric)
        };
        let (number, id) = (0..).zip(&self.minions).find(|(_, id)| is_id(id))?;
        Some((number, id.clone()))
    }
}

fn run(text: &[u8], of: impl Fn(&u8) -> bool) -> usize {
    text.iter().take_while(|b| of(b)).count()
}

pub(super) fn is_stamp(text: &[u8]) -> bool {
    let pattern = b"dddd-dd-ddTdd:dd:dd.dddddd";
    text.len() >= STAMP_LEN
        && text.iter().zip(pattern).all(|(c, p)| {
            if *p == b'd' {
                c.is_ascii_digit()
            } else {
                c == p
            }
        })
}
