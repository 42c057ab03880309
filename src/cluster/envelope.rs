//! Messages of the stream: a part of an origin's history, in a block of the store's own format.
//!
//! # Form
//!
//! ```text
//! "saltcellar block 1 "      the version of this form
//! 8 hexadecimal digits       crc32 of all bytes behind them
//! " ", a JSON object, "\n"   [`Header`]
//! the blocks, or a part of them, see crates/store/src/log/exchange.rs
//! ```
//!
//! A message contains as many blocks as fit. A block that is larger than a message is split.
//!
//! # Invariant
//!
//! The blocks of an origin, in the order of the stream, contain all its entries that are shared. `before` names the last entry before the
//! block: a receiver that lacks entries knows which. A receiver drops the entries up to its mark.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::base::limits::{CLUSTER_OPEN_MESSAGES_MAX, CLUSTER_PARTS_MAX, WIRE_FRAME_BYTES_MAX};

/// The first bytes of a message of this release.
const MAGIC: &str = "saltcellar block 1 ";
/// The first bytes of a message of any release.
const MAGIC_OF_ALL: &str = "saltcellar block ";
const CRC_LEN: usize = 8;

/// What a message says about its block.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Header {
    /// The master whose entries these are.
    pub(crate) origin: String,
    /// The numbering of that master's store, 16 hexadecimal digits.
    pub(crate) epoch: String,
    /// The first number of this numbering.
    pub(crate) from: u64,
    /// The number of the last entry that was shared before; less than `first`.
    pub(crate) before: u64,
    /// The number of the first entry.
    pub(crate) first: u64,
    /// The number of the last entry.
    pub(crate) last: u64,
    /// The arrival of the last entry at its origin, in microseconds since 1970.
    pub(crate) last_at: i64,
    /// Which part of the block this is, from 1, of how many.
    pub(crate) part: u32,
    pub(crate) parts: u32,
}

/// Why a message is rejected.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Rejected {
    /// It is not the work of any release.
    #[error("not a message of saltcellar")]
    Foreign,
    /// A later release wrote it.
    #[error(
        "a message of a newer release (its form is {0:?}, this release reads {MAGIC:?}): upgrade this daemon"
    )]
    Newer(String),
    /// It was changed, or says what cannot be.
    #[error("a damaged message: {0}")]
    Damaged(String),
}

impl Header {
    /// The message with blocks, or with a part of one.
    pub(crate) fn message(&self, blocks: &[&[u8]]) -> Vec<u8> {
        let json = serde_json::to_string(self).expect("a header is JSON");
        let len: usize = blocks.iter().map(|block| block.len()).sum();
        // Two more bytes: the space and the line break around the JSON.
        let mut message = Vec::with_capacity(MAGIC.len() + CRC_LEN + json.len() + len + 2);
        message.extend_from_slice(MAGIC.as_bytes());
        // Replaced below, because the checksum covers all bytes behind it.
        message.extend_from_slice(&[b'0'; CRC_LEN]);
        message.push(b' ');
        message.extend_from_slice(json.as_bytes());
        message.push(b'\n');
        for block in blocks {
            message.extend_from_slice(block);
        }

        let from = MAGIC.len() + CRC_LEN;
        let crc = crc32fast::hash(message.get(from..).unwrap_or_default());
        let crc = format!("{crc:08x}");
        if let Some(place) = message.get_mut(MAGIC.len()..from) {
            place.copy_from_slice(crc.as_bytes());
        }
        message
    }

    /// Reads a message: what it says, and its part of the block.
    pub(crate) fn read(message: &[u8]) -> Result<(Self, &[u8]), Rejected> {
        let Some(rest) = message.strip_prefix(MAGIC.as_bytes()) else {
            // A later form makes the receiver wait for an upgrade. Anything else is skipped.
            let number = message.strip_prefix(MAGIC_OF_ALL.as_bytes());
            let is_ours = number.is_some_and(|rest| rest.first().is_some_and(u8::is_ascii_digit));
            let begin = message.get(..MAGIC.len()).unwrap_or(message);
            return Err(if is_ours {
                Rejected::Newer(String::from_utf8_lossy(begin).into_owned())
            } else {
                Rejected::Foreign
            });
        };
        let damaged = |what: &str| Rejected::Damaged(what.to_owned());

        let (crc, rest) = rest
            .split_at_checked(CRC_LEN)
            .ok_or_else(|| damaged("it ends too early"))?;
        let crc = std::str::from_utf8(crc)
            .ok()
            .and_then(|crc| u32::from_str_radix(crc, 16).ok());

        // Verified before the header is parsed, because damaged JSON may still be valid.
        if crc != Some(crc32fast::hash(rest)) {
            return Err(damaged("another checksum"));
        }

        let end = memchr::memchr(b'\n', rest).ok_or_else(|| damaged("no header"))?;
        let (json, part) = rest.split_at(end);
        let header: Self =
            serde_json::from_slice(json).map_err(|why| damaged(&format!("its header: {why}")))?;
        header.check()?;
        Ok((header, part.get(1..).unwrap_or_default()))
    }

    fn check(&self) -> Result<(), Rejected> {
        let is_epoch =
            self.epoch.len() == 16 && self.epoch.bytes().all(|byte| byte.is_ascii_hexdigit());
        let is_right = is_epoch
            && self.before < self.first
            && self.first <= self.last
            && self.from <= self.first
            && (1..=self.parts).contains(&self.part)
            && self.parts <= CLUSTER_PARTS_MAX;
        if is_right {
            return Ok(());
        }
        Err(Rejected::Damaged(
            "its numbers contradict each other".to_owned(),
        ))
    }
}

/// Blocks of which a part is here, one for each origin: the parts of one origin follow each other, with messages of others between.
#[derive(Debug, Default)]
pub(crate) struct OpenBlocks(BTreeMap<String, OpenBlock>);

/// A block of which all parts are here.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct WholeBlock {
    /// The message with its first part.
    pub(crate) begun: u64,
    pub(crate) header: Header,
    pub(crate) bytes: Vec<u8>,
}

#[derive(Debug)]
struct OpenBlock {
    /// The message with its first part.
    begun: u64,
    last: Header,
    bytes: Vec<u8>,
}

impl OpenBlocks {
    /// Adds the part in a message; returns the block when it is whole. A part that does not continue the last one restarts, or is
    /// dropped if it is not a first one.
    pub(crate) fn add(&mut self, message: u64, header: Header, part: &[u8]) -> Option<WholeBlock> {
        // Removed in any case: a part that does not continue it shows that the sender has restarted.
        let begun = self.0.remove(&header.origin);
        if header.parts == 1 {
            return Some(WholeBlock {
                begun: message,
                header,
                bytes: part.to_vec(),
            });
        }

        // The whole header is compared, because parts of different blocks must not be joined.
        let continued = begun.filter(|open| {
            let next = Header {
                part: open.last.part + 1,
                ..open.last.clone()
            };
            // The number of parts alone would allow a peer more memory than any block needs.
            next == header && open.bytes.len() + part.len() <= OPEN_BYTES_MAX
        });

        let open = match continued {
            Some(open) => OpenBlock {
                bytes: [open.bytes.as_slice(), part].concat(),
                last: header,
                begun: open.begun,
            },
            None if header.part == 1 => OpenBlock {
                begun: message,
                bytes: part.to_vec(),
                last: header,
            },
            None => return None,
        };

        if open.last.part == open.last.parts {
            return Some(WholeBlock {
                begun: open.begun,
                header: open.last,
                bytes: open.bytes,
            });
        }
        self.0.insert(open.last.origin.clone(), open);
        None
    }

    /// The last message that need not be reread, once all up to this one are read. A block whose sender is gone is given up at last.
    pub(crate) fn read_up_to(&mut self, message: u64) -> u64 {
        self.0
            .retain(|_, open| message - open.begun <= CLUSTER_OPEN_MESSAGES_MAX);
        let begun = self.0.values().map(|open| open.begun - 1).min();
        begun.unwrap_or(message)
    }

    /// Forgets all parts.
    pub(crate) fn clear(&mut self) {
        self.0.clear();
    }
}

/// Bytes of a block in parts.
const OPEN_BYTES_MAX: usize = 2 * WIRE_FRAME_BYTES_MAX;

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use proptest::prelude::*;

    pub(crate) fn header(before: u64, first: u64, last: u64) -> Header {
        Header {
            origin: "m1".to_owned(),
            epoch: "0123456789abcdef".to_owned(),
            from: 1,
            before,
            first,
            last,
            last_at: 7,
            part: 1,
            parts: 1,
        }
    }

    proptest! {
        #[test]
        fn a_message_is_read_as_it_was_written_and_not_when_a_byte_differs(
            part in prop::collection::vec(any::<u8>(), 0..200), at in any::<usize>(), to in any::<u8>(),
        ) {
            let header = header(4, 5, 9);
            let message = header.message(&[&part]);
            prop_assert_eq!(Header::read(&message), Ok((header, &part[..])));

            let mut changed = message.clone();
            let at = at % message.len();
            changed[at] = to;
            prop_assert!(changed == message || Header::read(&changed).is_err());
            prop_assert!(Header::read(&message[..at]).is_err());
        }

        #[test]
        fn no_bytes_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = Header::read(&bytes);
            let _ = Header::read(&[MAGIC.as_bytes(), &bytes].concat());
        }
    }

    #[test]
    fn what_cannot_be_is_rejected_and_a_newer_form_is_told_apart() {
        let wrong = [
            // The entry before the block is not below its first one.
            header(5, 5, 9),
            // The last entry is below the first.
            header(4, 9, 5),
            // The numbering begins behind the first entry.
            Header {
                from: 6,
                ..header(4, 5, 9)
            },
            // Part 2 of 1, and then part 0.
            Header {
                part: 2,
                ..header(4, 5, 9)
            },
            Header {
                part: 0,
                ..header(4, 5, 9)
            },
            Header {
                parts: CLUSTER_PARTS_MAX + 1,
                ..header(4, 5, 9)
            },
            Header {
                epoch: "x".to_owned(),
                ..header(4, 5, 9)
            },
        ];
        for header in wrong {
            let read = Header::read(&header.message(&[])).map(drop);
            assert!(matches!(read, Err(Rejected::Damaged(_))), "{header:?}");
        }
        let newer = Header::read(b"saltcellar block 2 \xff").map(drop);
        assert!(matches!(newer, Err(Rejected::Newer(_))), "{newer:?}");
        for foreign in [&b"hello"[..], b"saltcellar block ! ", b"saltcellar block "] {
            assert_eq!(Header::read(foreign).map(drop), Err(Rejected::Foreign));
        }
    }

    #[test]
    fn parts_make_a_block_only_in_order_whatever_others_send_between() {
        let part = |part, parts| Header {
            part,
            parts,
            ..header(4, 5, 9)
        };
        let other = |header: Header| Header {
            origin: "m2".to_owned(),
            ..header
        };
        let whole = |begun, header, bytes: &[u8]| {
            Some(WholeBlock {
                begun,
                header,
                bytes: bytes.to_vec(),
            })
        };
        let mut open = OpenBlocks::default();
        assert_eq!(open.add(1, part(2, 3), b"b"), None);
        assert_eq!(open.add(2, part(1, 3), b"a"), None);
        assert_eq!(open.add(3, part(3, 3), b"c"), None);
        assert_eq!(open.read_up_to(3), 3, "nothing is open");

        assert_eq!(open.add(4, part(1, 3), b"a"), None);
        assert_eq!(open.add(5, other(part(1, 2)), b"x"), None);
        assert_eq!(open.add(6, part(2, 3), b"b"), None);
        assert_eq!(open.read_up_to(6), 3);
        let found = open.add(7, other(part(2, 2)), b"y");
        assert_eq!(found, whole(5, other(part(2, 2)), b"xy"));
        let found = open.add(8, part(3, 3), b"c");
        assert_eq!(found, whole(4, part(3, 3), b"abc"));
        assert_eq!(open.read_up_to(8), 8);
        let found = open.add(9, part(1, 1), b"x");
        assert_eq!(found, whole(9, part(1, 1), b"x"));

        // Sent again from its first part on, and then never ended.
        assert_eq!(open.add(10, part(1, 3), b"a"), None);
        assert_eq!(open.add(11, part(1, 3), b"a"), None);
        assert_eq!(open.read_up_to(11), 10);
        let late = 11 + CLUSTER_OPEN_MESSAGES_MAX + 1;
        assert_eq!(open.read_up_to(late), late);
    }
}
