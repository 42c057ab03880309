//! The values that Salt's codec can read: `salt.payload.loads`, which is Python's msgpack with hooks for two ext types.
//!
//! One unreadable value makes the whole response around it unreadable: one return would hide all
//! returns of its job. Values are therefore checked on entry, during the traversal that finds their
//! ends anyway, and responses on exit ([`repaired`]). A record of the reactor needs the latter: it keeps what the master
//! returned as it is, and a wheel function can return a date that Python writes but does not read.
//!
//! | value | Salt's codec | accepted |
//! |---|---|---|
//! | str that is not UTF-8 | bytes | yes |
//! | ext -1: a timestamp | 4, 8 or 12 bytes, up to 999,999,999 ns; else an error | as Salt |
//! | ext 78: a date | `strptime("%Y%m%dT%H:%M:%S.%f")`; else an error | as Salt writes them: ASCII digits, two for each field |
//! | ext 79: a constant | any msgpack that unpacks into two, str in UTF-8; else an error | an array of a str and a scalar; not as a map key |
//! | other ext | bytes | yes |
//! | map key that is an array or a map | an error: not hashable | no; in a return it becomes Python's text of it |
//! | nesting | reads 1,024 levels, writes 512 | 512 levels ([`MSGPACK_DEPTH_MAX`]) |
//!
//! Salt's codec does not write the values for which this check is stricter than Salt.
//!
//! # Invariant
//!
//! No input panics. The traversal recurses once per level of nesting, up to the limit above.

use std::borrow::Cow;
use std::cmp::Ordering;

use salt_sls::{Value, python};

use super::msgpack::{DecodeError, Reader, ValueTail, Writer, number_at, value_len};
use crate::salt_value::{
    EXT_CONSTANT, EXT_DATE, EXT_TIMESTAMP, from_msgpack, is_constant, is_date, is_timestamp,
};
use saltcellar_base::limits::{
    ENVELOPE_DEPTH_MAX, MSGPACK_DEPTH_MAX, UNREADABLE_KEY_BYTES_MAX, UNREADABLE_SHOWN_MAX,
};

/// Why Salt's codec cannot read a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Unreadable {
    /// The bytes end inside a value.
    #[error("msgpack ends inside a value")]
    Short,
    /// The byte `0xc1`, which is reserved.
    #[error("invalid msgpack byte 0xc1")]
    Marker,
    /// Bytes follow the value.
    #[error("bytes follow the msgpack value")]
    Trailing,
    /// An ext of type -1 that is not a timestamp.
    #[error("ext -1 is not a timestamp of 4, 8 or 12 bytes")]
    Timestamp,
    /// An ext of type 78 that is not a date.
    #[error("ext 78 is not a date as Salt writes it")]
    Date,
    /// An ext of type 79 that is not a constant.
    #[error("ext 79 is not a constant as Salt writes it")]
    Constant,
    /// A map key that Python cannot hash.
    #[error("a map key is an array, a map or a constant")]
    Key,
    /// A value nested too deep.
    #[error("nested deeper than {MSGPACK_DEPTH_MAX} levels")]
    Depth,
}

impl From<DecodeError> for Unreadable {
    fn from(error: DecodeError) -> Self {
        match error {
            DecodeError::Marker => Unreadable::Marker,
            DecodeError::Short | DecodeError::Type(_) => Unreadable::Short,
        }
    }
}

/// Checks that `bytes` are exactly one value that Salt's codec can read.
pub fn check_whole(bytes: &[u8]) -> Result<(), Unreadable> {
    let end = ValueWalk {
        bytes,
        any_key: false,
        sink: Reject,
    }
    .value(0, MSGPACK_DEPTH_MAX)?;

    match end.cmp(&bytes.len()) {
        Ordering::Less => Err(Unreadable::Trailing),
        Ordering::Equal => Ok(()),
        // No step checks the end of the last value.
        Ordering::Greater => Err(Unreadable::Short),
    }
}

/// A key and its value.
pub(super) type Pair<'a> = (&'a [u8], &'a [u8]);

/// The map that a reader is at, checked while it is read: after an error nothing more of it can be read.
pub(super) struct CheckedMap<'a> {
    walk: ValueWalk<'a, Reject>,
    /// Behind the pairs that were read.
    at: usize,
    /// Pairs that were not read.
    left: usize,
}

impl<'a> CheckedMap<'a> {
    /// `None` if the next value is not a map; it is then still unread.
    pub(super) fn of(reader: &Reader<'a>) -> Option<Self> {
        let bytes = reader.rest();
        let mut inside = *reader;
        let left = inside.map().ok()?;
        Some(Self {
            walk: ValueWalk {
                bytes,
                any_key: false,
                sink: Reject,
            },
            at: bytes.len() - inside.rest().len(),
            left,
        })
    }

    /// The next pair; `None` after the last one.
    #[inline]
    pub(super) fn next_pair(&mut self) -> Result<Option<Pair<'a>>, Unreadable> {
        let Some(left) = self.left.checked_sub(1) else {
            return Ok(None);
        };
        self.left = left;

        let start = self.at;
        // Arrays and maps as keys are errors, so a key is one level deep.
        let middle = self.walk.key(start, 1)?;
        self.at = self.walk.value(middle, MSGPACK_DEPTH_MAX - 1)?;

        let bytes = self.walk.bytes;
        let key = bytes.get(start..middle).ok_or(Unreadable::Short)?;
        let value = bytes.get(middle..self.at).ok_or(Unreadable::Short)?;
        Ok(Some((key, value)))
    }

    /// The bytes of the pairs that were read, and of the head.
    pub(super) fn len(&self) -> usize {
        self.at
    }
}

/// Reads and checks a value of at most `depth` levels.
pub(super) fn checked_value<'a>(
    reader: &mut Reader<'a>,
    depth: usize,
) -> Result<&'a [u8], Unreadable> {
    let end = ValueWalk {
        bytes: reader.rest(),
        any_key: false,
        sink: Reject,
    }
    .value(0, depth)?;
    Ok(reader.take(end)?)
}

/// `answer` with each value that the extension cannot read replaced by a str with the reason. Map keys of any type are kept,
/// because the extension can read them. Fails if the bytes are not exactly one value.
pub fn repaired(answer: &[u8]) -> Result<Cow<'_, [u8]>, Unreadable> {
    repair(answer, MSGPACK_DEPTH_MAX + ENVELOPE_DEPTH_MAX, true)
}

/// A value to be stored that is not wholly readable, with each part that Salt's codec cannot read replaced by a str with the
/// reason: one odd value does not lose a return. Fails if the bytes are not exactly one value.
pub fn mended(body: &[u8]) -> Result<Vec<u8>, Unreadable> {
    repair(body, MSGPACK_DEPTH_MAX, false).map(Cow::into_owned)
}

fn repair(bytes: &[u8], depth: usize, any_key: bool) -> Result<Cow<'_, [u8]>, Unreadable> {
    // Nearly always there is nothing to replace, and nothing is copied.
    if (ValueWalk {
        bytes,
        any_key,
        sink: Reject,
    })
    .value(0, depth)
        == Ok(bytes.len())
    {
        return Ok(Cow::Borrowed(bytes));
    }

    // Replacing a value requires its end.
    if value_len(bytes)? != bytes.len() {
        return Err(Unreadable::Trailing);
    }

    let mut walk = ValueWalk {
        bytes,
        any_key,
        sink: Replace::default(),
    };
    walk.value(0, depth)?;
    walk.sink.copy_until(bytes, bytes.len());

    Ok(Cow::Owned(walk.sink.copy))
}

/// Handles unreadable values.
trait Sink {
    /// Handles the value at `start`. Returns the position to continue at, or an error.
    fn unreadable(
        &mut self,
        bytes: &[u8],
        start: usize,
        why: Unreadable,
    ) -> Result<usize, Unreadable>;
}

/// Fails at the first one.
struct Reject;

impl Sink for Reject {
    fn unreadable(&mut self, _: &[u8], _: usize, why: Unreadable) -> Result<usize, Unreadable> {
        Err(why)
    }
}

/// Replaces each such value in a copy.
#[derive(Default)]
struct Replace {
    copy: Vec<u8>,
    /// Bytes of the original already copied or replaced.
    done: usize,
    replaced: usize,
}

impl Replace {
    fn copy_until(&mut self, original: &[u8], end: usize) {
        self.copy
            .extend_from_slice(original.get(self.done..end).unwrap_or_default());
    }
}

impl Sink for Replace {
    fn unreadable(
        &mut self,
        bytes: &[u8],
        start: usize,
        why: Unreadable,
    ) -> Result<usize, Unreadable> {
        self.copy_until(bytes, start);
        self.replaced += 1;

        let mut w = Writer::behind(std::mem::take(&mut self.copy));
        let rest = bytes.get(start..).unwrap_or_default();
        let len = value_len(rest)?;

        let key = (why == Unreadable::Key)
            .then(|| key_text(rest.get(..len)?))
            .flatten();

        // A nil is no longer than the value it replaces, so the copy does not outgrow the original.
        if self.replaced > UNREADABLE_SHOWN_MAX {
            w.nil()
        } else {
            w.str(&key.unwrap_or_else(|| format!("<unreadable: {why}>")))
        };

        self.copy = w.into_bytes();
        self.done = start + len;
        Ok(self.done)
    }
}

/// Python's string for a key that it cannot hash, as the extension writes it; `None` for a long
/// string. Different keys stay different. Salt packs tuples, which Python can hash, as arrays.
fn key_text(key: &[u8]) -> Option<String> {
    fn with_tuples(value: Value) -> Value {
        match value {
            Value::List(items) => Value::Tuple(items.into_iter().map(with_tuples).collect()),
            other => other,
        }
    }

    if key.len() > UNREADABLE_KEY_BYTES_MAX {
        return None;
    }
    from_msgpack(key).map(|key| python::str(&with_tuples(key)))
}

/// A traversal of values. Each step receives the start of a value and returns its end, which may be past the end of
/// the bytes; the next step, or the caller after the last one, detects that.
struct ValueWalk<'a, S> {
    bytes: &'a [u8],
    /// Accept arrays, maps and constants as map keys.
    any_key: bool,
    sink: S,
}

impl<S: Sink> ValueWalk<'_, S> {
    /// A value of at most `depth` levels, including its own.
    #[inline]
    fn value(&mut self, start: usize, depth: usize) -> Result<usize, Unreadable> {
        let at = start + 1;

        // The forms of nearly all values. The rest is kept out of this function, which is inlined.
        match ValueTail::of(*self.bytes.get(start).ok_or(Unreadable::Short)?) {
            ValueTail::Bytes(n) => Ok(at + usize::from(n)),
            ValueTail::Sized(size) => Ok(at + usize::from(size) + number_at(self.bytes, at, size)?),
            ValueTail::Map(n) => self.items::<true>(start, at, usize::from(n), depth),
            ValueTail::Array(n) => self.items::<false>(start, at, usize::from(n), depth),
            tail => self.rare_value(tail, start, depth),
        }
    }

    fn rare_value(
        &mut self,
        tail: ValueTail,
        start: usize,
        depth: usize,
    ) -> Result<usize, Unreadable> {
        let at = start + 1;

        match tail {
            ValueTail::CountedMap(size) => {
                let count = number_at(self.bytes, at, size)?;
                self.items::<true>(start, at + usize::from(size), count, depth)
            }
            ValueTail::CountedArray(size) => {
                let count = number_at(self.bytes, at, size)?;
                self.items::<false>(start, at + usize::from(size), count, depth)
            }
            ValueTail::Ext(n) => self.ext(start, at, usize::from(n), false),
            ValueTail::SizedExt(size) => {
                let len = number_at(self.bytes, at, size)?;
                self.ext(start, at + usize::from(size), len, false)
            }
            ValueTail::Never => Err(Unreadable::Marker),
            // `value` handles these and calls this function only for other forms.
            ValueTail::Bytes(_) | ValueTail::Sized(_) | ValueTail::Map(_) | ValueTail::Array(_) => {
                self.value(start, depth)
            }
        }
    }

    /// The elements of an array, or the pairs of a map, that starts at `start`.
    fn items<const IS_MAP: bool>(
        &mut self,
        start: usize,
        mut at: usize,
        count: usize,
        depth: usize,
    ) -> Result<usize, Unreadable> {
        // There is no level below an empty collection.
        if count > 0 && depth <= 1 {
            return self.sink.unreadable(self.bytes, start, Unreadable::Depth);
        }

        for _ in 0..count {
            if IS_MAP {
                at = self.key(at, depth - 1)?;
            }
            at = self.value(at, depth - 1)?;
        }

        Ok(at)
    }

    /// A map's key.
    #[inline]
    fn key(&mut self, start: usize, depth: usize) -> Result<usize, Unreadable> {
        // Almost every key is a short str.
        match *self.bytes.get(start).ok_or(Unreadable::Short)? {
            marker @ 0xa0..=0xbf => Ok(start + 1 + usize::from(marker & 0x1f)),
            marker => self.rare_key(ValueTail::of(marker), start, depth),
        }
    }

    fn rare_key(
        &mut self,
        tail: ValueTail,
        start: usize,
        depth: usize,
    ) -> Result<usize, Unreadable> {
        let at = start + 1;

        match tail {
            // The extension reads any key.
            _ if self.any_key => self.value(start, depth),
            ValueTail::Map(_)
            | ValueTail::Array(_)
            | ValueTail::CountedMap(_)
            | ValueTail::CountedArray(_) => {
                self.sink.unreadable(self.bytes, start, Unreadable::Key)
            }
            ValueTail::Ext(n) => self.ext(start, at, usize::from(n), true),
            ValueTail::SizedExt(size) => {
                let len = number_at(self.bytes, at, size)?;
                self.ext(start, at + usize::from(size), len, true)
            }
            _ => self.value(start, depth),
        }
    }

    /// An ext with its type at `at`.
    fn ext(
        &mut self,
        start: usize,
        at: usize,
        len: usize,
        is_key: bool,
    ) -> Result<usize, Unreadable> {
        let (code, rest) = self
            .bytes
            .get(at..)
            .and_then(<[u8]>::split_first)
            .ok_or(Unreadable::Short)?;
        let data = rest.get(..len).ok_or(Unreadable::Short)?;

        let why = match i8::from_be_bytes([*code]) {
            EXT_TIMESTAMP if !is_timestamp(data) => Unreadable::Timestamp,
            EXT_DATE if !is_date(data) => Unreadable::Date,
            EXT_CONSTANT if is_key => Unreadable::Key,
            EXT_CONSTANT if !is_constant(data) => Unreadable::Constant,
            // Valid data, or another type, whose bytes Salt's codec hands on.
            _ => return Ok(at + 1 + len),
        };

        self.sink.unreadable(self.bytes, start, why)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_that_python_cannot_hash_become_its_text_of_them() {
        let mut w = Writer::new();
        w.map(3);
        w.array(2).str("a").int(1);
        w.str("of a tuple");
        w.array(1).nil();
        w.str("of another");
        w.array(2000);
        for _ in 0..2000 {
            w.nil();
        }
        w.str("of a long one");
        let body = mended(&w.into_bytes()).unwrap();

        let mut expected = Writer::new();
        expected.map(3);
        expected.str("('a', 1)").str("of a tuple");
        expected.str("(None,)").str("of another");
        expected.str("<unreadable: a map key is an array, a map or a constant>");
        expected.str("of a long one");
        assert_eq!(body, expected.into_bytes());
        assert_eq!(check_whole(&body), Ok(()));
    }

    fn ext(code: i8, data: &[u8]) -> Vec<u8> {
        [
            &[
                0xc7,
                u8::try_from(data.len()).unwrap(),
                code.to_be_bytes()[0],
            ],
            data,
        ]
        .concat()
    }

    fn nested(levels: usize, inner: &[u8]) -> Vec<u8> {
        [&vec![0x91; levels - 1], inner].concat()
    }

    #[test]
    fn the_table_is_implemented() {
        let good = [
            b"\xa1\xff".to_vec(),
            b"\x81\xc0\x01".to_vec(),
            b"\x81\xc4\x01\xff\x01".to_vec(),
            b"\xcf\xff\xff\xff\xff\xff\xff\xff\xff".to_vec(),
            ext(-1, &[0; 4]),
            b"\xd6\xff\x00\x00\x00\x01".to_vec(),
            ext(-1, &(999_999_999_u64 << 34 | 5).to_be_bytes()),
            ext(
                -1,
                &[&999_999_999_u32.to_be_bytes()[..], &i64::MIN.to_be_bytes()].concat(),
            ),
            ext(0, b"x"),
            ext(-2, b"x"),
            ext(78, b"20240229T23:59:59.999999"),
            ext(78, b"00010101T00:00:00.0"),
            ext(79, b"\x92\xa7NOT_SET\xc0"),
            [&b"\x81"[..], &ext(5, b"x"), b"\x01"].concat(),
            [&b"\x81"[..], &ext(78, b"20240229T23:59:59.999999"), b"\x01"].concat(),
            nested(512, b"\xc0"),
            nested(512, b"\x80"),
        ];
        for bytes in good {
            assert_eq!(check_whole(&bytes), Ok(()), "{bytes:x?}");
            assert_eq!(repaired(&bytes), Ok(Cow::Borrowed(&bytes[..])));
        }
        let short = || Unreadable::Short;
        let bad = [
            (b"".to_vec(), short()),
            (b"\x92\x01".to_vec(), short()),
            (b"\xa2x".to_vec(), short()),
            (b"\xdd\xff\xff\xff\xff".to_vec(), short()),
            (b"\xc7\x05\xff".to_vec(), short()),
            (b"\xc1".to_vec(), Unreadable::Marker),
            (b"\x01\x01".to_vec(), Unreadable::Trailing),
            (ext(-1, b""), Unreadable::Timestamp),
            (ext(-1, &[0; 5]), Unreadable::Timestamp),
            (
                ext(-1, &(1_000_000_000_u64 << 34).to_be_bytes()),
                Unreadable::Timestamp,
            ),
            (ext(-1, &[0xff; 12]), Unreadable::Timestamp),
            (ext(78, b"yesterday"), Unreadable::Date),
            (ext(78, b"20230229T00:00:00.0"), Unreadable::Date),
            (ext(78, b"00000101T00:00:00.0"), Unreadable::Date),
            (ext(78, b"20230101T00:00:60.0"), Unreadable::Date),
            (ext(78, b"20230101T00:00:00."), Unreadable::Date),
            (ext(78, b"20230101T00:00:00.1234567"), Unreadable::Date),
            (ext(79, b"\xc1"), Unreadable::Constant),
            (ext(79, b"\x93\x01\x02\x03"), Unreadable::Constant),
            (ext(79, b"\x92\xa1\xff\xc0"), Unreadable::Constant),
            (ext(79, b"\x92\xa1a\xc0\xc0"), Unreadable::Constant),
            (b"\x81\x90\x01".to_vec(), Unreadable::Key),
            (b"\x81\xde\x00\x00\x01".to_vec(), Unreadable::Key),
            (
                [&b"\x81"[..], &ext(79, b"\x92\xa1a\xc0"), b"\x01"].concat(),
                Unreadable::Key,
            ),
            (nested(513, b"\xc0"), Unreadable::Depth),
            (nested(1100, b"\x81\xa1a\xc0"), Unreadable::Depth),
        ];
        for (bytes, why) in bad {
            assert_eq!(check_whole(&bytes), Err(why), "{bytes:x?}");
        }
    }

    #[test]
    fn only_unreadable_values_are_replaced() {
        let bad = [
            ext(-1, b"12345"),
            ext(78, b"soon"),
            ext(79, b"\xc1"),
            b"\x81\x90\x01".to_vec(),
        ];
        let mut w = Writer::new();
        w.array(6).str("first");
        for value in &bad {
            w.raw(value);
        }
        w.map(1).raw(&bad[0]).str("last");
        let bytes = w.into_bytes();
        let text = |why: Unreadable| format!("<unreadable: {why}>");
        let expected = |key: &[u8]| {
            let mut w = Writer::new();
            w.array(6)
                .str("first")
                .str(&text(Unreadable::Timestamp))
                .str(&text(Unreadable::Date));
            w.str(&text(Unreadable::Constant)).map(1).raw(key).uint(1);
            w.map(1).str(&text(Unreadable::Timestamp)).str("last");
            w.into_bytes()
        };
        assert_eq!(repaired(&bytes).unwrap(), expected(b"\x90"));
        assert_eq!(repaired(b"\x92\x01"), Err(Unreadable::Short));
        assert_eq!(repaired(b"\x01\x01"), Err(Unreadable::Trailing));
    }

    #[test]
    fn many_unreadable_values_do_not_enlarge_an_answer() {
        let count = UNREADABLE_SHOWN_MAX + 50_000;
        let mut w = Writer::new();
        w.array(count);
        for _ in 0..count {
            w.raw(&ext(-1, b""));
        }
        let bytes = w.into_bytes();
        let repaired = repair(&bytes, MSGPACK_DEPTH_MAX, true).unwrap();
        assert!(
            repaired.len() < bytes.len(),
            "{} of {}",
            repaired.len(),
            bytes.len()
        );
        assert_eq!(check_whole(&repaired), Ok(()));
    }

    #[test]
    fn a_value_nested_too_deep_is_replaced_at_the_limit() {
        let bytes = nested(3000, b"\xc0");
        let repaired = repair(&bytes, MSGPACK_DEPTH_MAX, true).unwrap();
        assert_eq!(check_whole(&repaired), Ok(()));
        assert!(repaired.starts_with(&[0x91; 511]) && repaired.ends_with(b"levels>"));
        // A response adds levels around the deepest accepted value.
        let answer = |levels| super::repaired(&nested(levels, b"\xc0")).unwrap().len() == levels;
        assert!(
            answer(MSGPACK_DEPTH_MAX + ENVELOPE_DEPTH_MAX)
                && !answer(MSGPACK_DEPTH_MAX + ENVELOPE_DEPTH_MAX + 1)
        );
    }
}
