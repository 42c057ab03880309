//! MessagePack: reading in place, and writing into a buffer.
//!
//! Salt's values are not converted into a tree on the way in: [`Reader`] traverses them, checks that they are
//! complete, and returns slices of the original bytes. Salt sends more than JSON-like values: ext types, keys of any
//! type, nan, and strings that are not UTF-8.
//!
//! # Invariant
//!
//! No input panics, recurses or allocates: the traversal is a loop with one counter. Code that builds trees limits their
//! depth by [`saltcellar_base::limits::MSGPACK_DEPTH_MAX`].

mod deserialize;
pub mod json;
mod serialize;

pub use deserialize::{Decoder, NotOfType, Packed, PackedArray, PackedMap, Pairs, decode};
pub use serialize::{EncodeError, Stored, Time, encode, or_absent};

/// Why bytes are not a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// The bytes end inside a value; more may follow.
    #[error("msgpack ends inside a value")]
    Short,
    /// The byte `0xc1`, which is reserved.
    #[error("invalid msgpack byte 0xc1")]
    Marker,
    /// A value of another type than requested.
    #[error("msgpack value is not a {0}")]
    Type(&'static str),
}

/// The head of a value: its type, and the number of following bytes or elements.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Head {
    /// nil
    Nil,
    /// true or false
    Bool(bool),
    /// An integer that fits `i64`.
    Int(i64),
    /// An integer beyond `i64`.
    Big(u64),
    /// A float of either width.
    Float(f64),
    /// A string of this many bytes.
    Str(usize),
    /// Binary of this many bytes.
    Bin(usize),
    /// Extension: type code and length in bytes.
    Ext(i8, usize),
    /// Array of this many values.
    Array(usize),
    /// Map of this many pairs.
    Map(usize),
}

/// A position in msgpack bytes.
#[derive(Debug, Clone, Copy)]
pub struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    /// A reader at the start of `bytes`.
    pub fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes }
    }

    /// The unread bytes.
    pub fn rest(&self) -> &'a [u8] {
        self.rest
    }

    /// Whether the next value is an array.
    pub fn is_at_array(&self) -> bool {
        matches!(self.rest.first(), Some(0x90..=0x9f | 0xdc | 0xdd))
    }

    /// Reads this many bytes.
    #[inline]
    pub fn take(&mut self, n: usize) -> Result<&'a [u8], DecodeError> {
        let (taken, rest) = self.rest.split_at_checked(n).ok_or(DecodeError::Short)?;
        self.rest = rest;
        Ok(taken)
    }

    fn number<const N: usize>(&mut self) -> Result<[u8; N], DecodeError> {
        let (taken, rest) = self
            .rest
            .split_first_chunk::<N>()
            .ok_or(DecodeError::Short)?;
        self.rest = rest;
        Ok(*taken)
    }

    fn size<const N: usize>(&mut self) -> Result<usize, DecodeError> {
        const { assert!(matches!(N, 1 | 2 | 4)) };
        let size = number_at(
            self.rest,
            0,
            if N == 1 {
                1
            } else if N == 2 {
                2
            } else {
                4
            },
        )?;
        self.take(N)?;
        Ok(size)
    }

    /// Reads the head of the next value and stops before its content.
    #[inline]
    pub fn head(&mut self) -> Result<Head, DecodeError> {
        let [marker] = self.number::<1>()?;

        Ok(match marker {
            0x00..=0x7f => Head::Int(i64::from(marker)),
            0x80..=0x8f => Head::Map(usize::from(marker & 0x0f)),
            0x90..=0x9f => Head::Array(usize::from(marker & 0x0f)),
            0xa0..=0xbf => Head::Str(usize::from(marker & 0x1f)),
            0xc0 => Head::Nil,
            // Reserved by the format.
            0xc1 => return Err(DecodeError::Marker),
            0xc2 => Head::Bool(false),
            0xc3 => Head::Bool(true),
            0xc4 => Head::Bin(self.size::<1>()?),
            0xc5 => Head::Bin(self.size::<2>()?),
            0xc6 => Head::Bin(self.size::<4>()?),
            0xc7 => self.ext_of_size::<1>()?,
            0xc8 => self.ext_of_size::<2>()?,
            0xc9 => self.ext_of_size::<4>()?,
            0xca => Head::Float(f64::from(f32::from_be_bytes(self.number()?))),
            0xcb => Head::Float(f64::from_be_bytes(self.number()?)),
            0xcc => Head::Int(i64::from(u8::from_be_bytes(self.number()?))),
            0xcd => Head::Int(i64::from(u16::from_be_bytes(self.number()?))),
            0xce => Head::Int(i64::from(u32::from_be_bytes(self.number()?))),
            // Most code handles integers as one case, so only integers that do not fit `i64` are
            // separate.
            0xcf => {
                let n = u64::from_be_bytes(self.number()?);
                i64::try_from(n).map_or(Head::Big(n), Head::Int)
            }
            0xd0 => Head::Int(i64::from(i8::from_be_bytes(self.number()?))),
            0xd1 => Head::Int(i64::from(i16::from_be_bytes(self.number()?))),
            0xd2 => Head::Int(i64::from(i32::from_be_bytes(self.number()?))),
            0xd3 => Head::Int(i64::from_be_bytes(self.number()?)),
            0xd4 => self.ext(1)?,
            0xd5 => self.ext(2)?,
            0xd6 => self.ext(4)?,
            0xd7 => self.ext(8)?,
            0xd8 => self.ext(16)?,
            0xd9 => Head::Str(self.size::<1>()?),
            0xda => Head::Str(self.size::<2>()?),
            0xdb => Head::Str(self.size::<4>()?),
            0xdc => Head::Array(self.size::<2>()?),
            0xdd => Head::Array(self.size::<4>()?),
            0xde => Head::Map(self.size::<2>()?),
            0xdf => Head::Map(self.size::<4>()?),
            0xe0..=0xff => Head::Int(i64::from(i8::from_be_bytes([marker]))),
        })
    }

    fn ext_of_size<const N: usize>(&mut self) -> Result<Head, DecodeError> {
        let len = self.size::<N>()?;
        self.ext(len)
    }

    fn ext(&mut self, len: usize) -> Result<Head, DecodeError> {
        Ok(Head::Ext(i8::from_be_bytes(self.number()?), len))
    }

    /// Reads one complete value and returns its bytes.
    #[inline]
    pub fn value(&mut self) -> Result<&'a [u8], DecodeError> {
        let len = match self.rest.first() {
            // Nothing is in it.
            Some(0x80 | 0x90) => 1,
            // Keys and names are short strings.
            Some(marker) if let ValueTail::Bytes(len) = ValueTail::of(*marker) => {
                1 + usize::from(len)
            }
            _ => value_len(self.rest)?,
        };
        self.take(len)
    }

    /// Reads a value and returns the bytes of its text or binary; empty for another value.
    #[inline]
    pub(super) fn text_bytes(&mut self) -> Result<&'a [u8], DecodeError> {
        self.value().map(text_bytes)
    }

    /// Reads the head of a map: its number of pairs.
    #[inline]
    pub fn map(&mut self) -> Result<usize, DecodeError> {
        match self.head()? {
            Head::Map(n) => Ok(n),
            _ => Err(DecodeError::Type("map")),
        }
    }

    /// Reads the head of an array: its number of values.
    pub fn array(&mut self) -> Result<usize, DecodeError> {
        match self.head()? {
            Head::Array(n) => Ok(n),
            _ => Err(DecodeError::Type("array")),
        }
    }

    /// Reads text or binary.
    #[inline]
    pub fn bytes(&mut self) -> Result<&'a [u8], DecodeError> {
        match self.head()? {
            Head::Str(n) | Head::Bin(n) => self.take(n),
            _ => Err(DecodeError::Type("str")),
        }
    }

    /// Reads text.
    pub fn text(&mut self) -> Result<&'a str, DecodeError> {
        std::str::from_utf8(self.bytes()?).map_err(|_| DecodeError::Type("UTF-8 str"))
    }
}

/// The continuation of a value after its first byte.
#[derive(Clone, Copy)]
pub(super) enum ValueTail {
    /// This many bytes of a scalar, a str or a bin.
    Bytes(u8),
    /// A length of this many bytes, then a str or a bin of that length.
    Sized(u8),
    /// The type of an ext, then this many bytes.
    Ext(u8),
    /// A length of this many bytes, the type of an ext, then that many bytes.
    SizedExt(u8),
    /// This many elements of an array.
    Array(u8),
    /// This many pairs of a map.
    Map(u8),
    /// A count of this many bytes, then that many elements.
    CountedArray(u8),
    /// A count of this many bytes, then that many pairs.
    CountedMap(u8),
    /// Invalid.
    Never,
}

impl ValueTail {
    /// The continuation after a first byte.
    #[inline]
    pub(super) fn of(marker: u8) -> Self {
        TAILS
            .get(usize::from(marker))
            .copied()
            .unwrap_or(ValueTail::Never)
    }
}

static TAILS: [ValueTail; 256] = tails();

const fn tails() -> [ValueTail; 256] {
    // A table, computed at compile time, saves the traversal a branch for each form.
    let mut tails = [ValueTail::Bytes(0); 256];
    let mut marker = 0;
    while marker < 256 {
        #[expect(
            clippy::cast_possible_truncation,
            reason = "below 256; `try_from` is not const"
        )]
        let byte = marker as u8;

        #[expect(clippy::indexing_slicing, reason = "one item per byte value")]
        let tail = &mut tails[marker];

        *tail = match byte {
            0x80..=0x8f => ValueTail::Map(byte & 0x0f),
            0x90..=0x9f => ValueTail::Array(byte & 0x0f),
            0xa0..=0xbf => ValueTail::Bytes(byte & 0x1f),
            0xc1 => ValueTail::Never,
            0xc4 | 0xd9 => ValueTail::Sized(1),
            0xc5 | 0xda => ValueTail::Sized(2),
            0xc6 | 0xdb => ValueTail::Sized(4),
            0xc7 => ValueTail::SizedExt(1),
            0xc8 => ValueTail::SizedExt(2),
            0xc9 => ValueTail::SizedExt(4),
            0xcc | 0xd0 => ValueTail::Bytes(1),
            0xcd | 0xd1 => ValueTail::Bytes(2),
            0xca | 0xce | 0xd2 => ValueTail::Bytes(4),
            0xcb | 0xcf | 0xd3 => ValueTail::Bytes(8),
            0xd4 => ValueTail::Ext(1),
            0xd5 => ValueTail::Ext(2),
            0xd6 => ValueTail::Ext(4),
            0xd7 => ValueTail::Ext(8),
            0xd8 => ValueTail::Ext(16),
            0xdc => ValueTail::CountedArray(2),
            0xdd => ValueTail::CountedArray(4),
            0xde => ValueTail::CountedMap(2),
            0xdf => ValueTail::CountedMap(4),
            _ => ValueTail::Bytes(0),
        };

        marker += 1;
    }

    tails
}

/// The big-endian number of `size` bytes at `at`: 1, 2 or 4.
#[inline]
pub(super) fn number_at(bytes: &[u8], at: usize, size: u8) -> Result<usize, DecodeError> {
    let rest = bytes.get(at..).ok_or(DecodeError::Short)?;
    let number = match size {
        1 => rest.first().map(|n| u32::from(*n)),
        2 => rest
            .first_chunk()
            .map(|n| u32::from(u16::from_be_bytes(*n))),
        _ => rest.first_chunk().map(|n| u32::from_be_bytes(*n)),
    };
    Ok(number.ok_or(DecodeError::Short)? as usize)
}

/// Length of the first value in `bytes`.
pub(super) fn value_len(bytes: &[u8]) -> Result<usize, DecodeError> {
    let mut at: usize = 0;
    // The number of values still expected, at any level: the traversal needs no more state.
    let mut wanted: usize = 1;

    while wanted > 0 {
        wanted -= 1;
        let marker = *bytes.get(at).ok_or(DecodeError::Short)?;
        at += 1;
        let (size, times) = match ValueTail::of(marker) {
            ValueTail::Bytes(n) => {
                at += usize::from(n);
                continue;
            }
            ValueTail::Sized(size) => {
                at += usize::from(size) + number_at(bytes, at, size)?;
                continue;
            }
            ValueTail::Ext(n) => {
                at += 1 + usize::from(n);
                continue;
            }
            ValueTail::SizedExt(size) => {
                at += usize::from(size) + 1 + number_at(bytes, at, size)?;
                continue;
            }
            ValueTail::Array(n) => {
                wanted += usize::from(n);
                continue;
            }
            ValueTail::Map(n) => {
                wanted += 2 * usize::from(n);
                continue;
            }
            ValueTail::CountedArray(size) => (size, 1),
            ValueTail::CountedMap(size) => (size, 2),
            ValueTail::Never => return Err(DecodeError::Marker),
        };

        wanted = wanted.saturating_add(number_at(bytes, at, size)?.saturating_mul(times));
        at += usize::from(size);
        // A value has at least one byte: an impossible count is rejected before traversal.
        if wanted > bytes.len().saturating_sub(at) {
            return Err(DecodeError::Short);
        }
    }

    // Lengths are added without reading the bytes, so the end is checked here.
    if at > bytes.len() {
        Err(DecodeError::Short)
    } else {
        Ok(at)
    }
}

/// The bytes of a string or binary; empty for another value.
#[inline]
pub(crate) fn text_bytes(value: &[u8]) -> &[u8] {
    match value.split_first() {
        // The length distinguishes most strings without comparing bytes.
        Some((0xa0..=0xbf, text)) => text,
        _ => Reader::new(value).bytes().unwrap_or_default(),
    }
}

/// The bytes of text or binary.
pub fn as_bytes(value: &[u8]) -> Option<&[u8]> {
    Reader::new(value).bytes().ok()
}

/// The value, if it is text.
pub fn as_text(value: &[u8]) -> Option<&str> {
    Reader::new(value).text().ok()
}

/// The value, if it is an integer.
pub fn as_int(value: &[u8]) -> Option<i64> {
    match Reader::new(value).head().ok()? {
        Head::Int(n) => Some(n),
        _ => None,
    }
}

/// The value, if it is a boolean.
pub fn as_bool(value: &[u8]) -> Option<bool> {
    match Reader::new(value).head().ok()? {
        Head::Bool(b) => Some(b),
        _ => None,
    }
}

/// Whether the value is nil.
pub fn is_nil(value: &[u8]) -> bool {
    value == [0xc0]
}

/// Whether a value is empty: nil, false, no elements, no text.
pub fn is_empty(value: &[u8]) -> bool {
    let nothing = matches!(
        Reader::new(value).head(),
        Ok(Head::Str(0) | Head::Bin(0) | Head::Array(0) | Head::Map(0) | Head::Bool(false))
    );
    value.is_empty() || is_nil(value) || nothing
}

/// The pairs of a map as slices of its bytes; ends early at malformed data. Empty for a value
/// of another type.
pub fn pairs(value: &[u8]) -> impl Iterator<Item = (&[u8], &[u8])> {
    let mut reader = Reader::new(value);
    let count = reader.map().unwrap_or(0);
    (0..count).map_while(move |_| Some((reader.value().ok()?, reader.value().ok()?)))
}

/// As [`pairs`], for the elements of an array.
pub fn elements(value: &[u8]) -> impl Iterator<Item = &[u8]> {
    let mut reader = Reader::new(value);
    let count = reader.array().unwrap_or(0);
    (0..count).map_while(move |_| reader.value().ok())
}

/// The value under a str key of a map.
pub fn get<'a>(map: &'a [u8], key: &str) -> Option<&'a [u8]> {
    pairs(map)
        .find(|(k, _)| as_text(k) == Some(key))
        .map(|(_, v)| v)
}

/// Writes msgpack; each call appends one head or value.
#[derive(Debug, Default)]
pub struct Writer(Vec<u8>);

impl Writer {
    /// A writer with an empty buffer.
    pub fn new() -> Self {
        Self::default()
    }

    /// Appends to `bytes`.
    pub fn behind(bytes: Vec<u8>) -> Self {
        Self(bytes)
    }

    /// The written bytes.
    pub fn into_bytes(self) -> Vec<u8> {
        self.0
    }

    /// Number of bytes written.
    #[expect(clippy::len_without_is_empty, reason = "not needed")]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Appends values that are already msgpack.
    pub fn raw(&mut self, value: &[u8]) -> &mut Self {
        self.0.extend_from_slice(value);
        self
    }

    /// nil
    pub fn nil(&mut self) -> &mut Self {
        self.raw(&[0xc0])
    }

    /// true or false
    pub fn bool(&mut self, b: bool) -> &mut Self {
        self.raw(&[0xc2 + u8::from(b)])
    }

    /// An integer, in its shortest form.
    pub fn int(&mut self, n: i64) -> &mut Self {
        // Python's packer also writes positive numbers in the unsigned forms.
        if let Ok(n) = u64::try_from(n) {
            return self.uint(n);
        }

        if n >= -32 {
            self.raw(&n.to_be_bytes()[7..])
        } else if let Ok(n) = i8::try_from(n) {
            self.raw(&[0xd0]).raw(&n.to_be_bytes())
        } else if let Ok(n) = i16::try_from(n) {
            self.raw(&[0xd1]).raw(&n.to_be_bytes())
        } else if let Ok(n) = i32::try_from(n) {
            self.raw(&[0xd2]).raw(&n.to_be_bytes())
        } else {
            self.raw(&[0xd3]).raw(&n.to_be_bytes())
        }
    }

    /// An unsigned integer, in its shortest form.
    pub fn uint(&mut self, n: u64) -> &mut Self {
        if n < 0x80 {
            self.raw(&n.to_be_bytes()[7..])
        } else if let Ok(n) = u8::try_from(n) {
            self.raw(&[0xcc, n])
        } else if let Ok(n) = u16::try_from(n) {
            self.raw(&[0xcd]).raw(&n.to_be_bytes())
        } else if let Ok(n) = u32::try_from(n) {
            self.raw(&[0xce]).raw(&n.to_be_bytes())
        } else {
            self.raw(&[0xcf]).raw(&n.to_be_bytes())
        }
    }

    /// A float.
    pub fn float(&mut self, x: f64) -> &mut Self {
        self.raw(&[0xcb]).raw(&x.to_be_bytes())
    }

    /// Text.
    pub fn str(&mut self, s: &str) -> &mut Self {
        self.str_bytes(s.as_bytes())
    }

    /// A string that may not be UTF-8, because Salt's codec can write such strings.
    pub fn str_bytes(&mut self, s: &[u8]) -> &mut Self {
        match s.len() {
            n @ 0..0x20 => self.raw(&[0xa0 | u8::try_from(n).expect("five bits")]),
            n => self.sized([Some(0xd9), Some(0xda), Some(0xdb)], n),
        }
        .raw(s)
    }

    /// Binary.
    pub fn bin(&mut self, b: &[u8]) -> &mut Self {
        self.sized([Some(0xc4), Some(0xc5), Some(0xc6)], b.len())
            .raw(b)
    }

    /// An extension.
    pub fn ext(&mut self, code: i8, data: &[u8]) -> &mut Self {
        match data.len() {
            1 => self.raw(&[0xd4]),
            2 => self.raw(&[0xd5]),
            4 => self.raw(&[0xd6]),
            8 => self.raw(&[0xd7]),
            16 => self.raw(&[0xd8]),
            n => self.sized([Some(0xc7), Some(0xc8), Some(0xc9)], n),
        };
        self.raw(&code.to_be_bytes()).raw(data)
    }

    /// The head of an array; `len` values follow.
    pub fn array(&mut self, len: usize) -> &mut Self {
        match len {
            n @ 0..0x10 => self.raw(&[0x90 | u8::try_from(n).expect("four bits")]),
            n => self.sized([None, Some(0xdc), Some(0xdd)], n),
        }
    }

    /// The head of a map; `len` pairs follow.
    pub fn map(&mut self, len: usize) -> &mut Self {
        match len {
            n @ 0..0x10 => self.raw(&[0x80 | u8::try_from(n).expect("four bits")]),
            n => self.sized([None, Some(0xde), Some(0xdf)], n),
        }
    }

    fn sized(&mut self, markers: [Option<u8>; 3], len: usize) -> &mut Self {
        let [one, two, four] = markers;
        if let (Some(marker), Ok(n)) = (one, u8::try_from(len)) {
            return self.raw(&[marker, n]);
        }
        if let (Some(marker), Ok(n)) = (two, u16::try_from(len)) {
            return self.raw(&[marker]).raw(&n.to_be_bytes());
        }

        let n = u32::try_from(len)
            .expect("lengths are bounded by limits::WIRE_FRAME_BYTES_MAX, far below 4 GiB");
        self.raw(&[four.unwrap_or(0xdd)]).raw(&n.to_be_bytes())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn rmpv_bytes(value: &rmpv::Value) -> Vec<u8> {
        let mut out = Vec::new();
        rmpv::encode::write_value(&mut out, value).unwrap();
        out
    }

    fn any_value() -> impl Strategy<Value = rmpv::Value> {
        use rmpv::Value;
        let leaf = prop_oneof![
            Just(Value::Nil),
            any::<bool>().prop_map(Value::from),
            any::<i64>().prop_map(Value::from),
            any::<u64>().prop_map(Value::from),
            any::<f64>().prop_map(Value::from),
            ".{0,40}".prop_map(Value::from),
            prop::collection::vec(any::<u8>(), 0..300).prop_map(Value::Binary),
            (any::<i8>(), prop::collection::vec(any::<u8>(), 0..20))
                .prop_map(|(t, d)| Value::Ext(t, d)),
        ];
        leaf.prop_recursive(5, 60, 20, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..20).prop_map(Value::Array),
                prop::collection::vec((inner.clone(), inner), 0..20).prop_map(Value::Map),
            ]
        })
    }

    proptest! {
        #[test]
        fn a_value_is_read_to_its_exact_end(value in any_value(), tail in prop::collection::vec(any::<u8>(), 0..8)) {
            let mut bytes = rmpv_bytes(&value);
            let len = bytes.len();
            bytes.extend_from_slice(&tail);
            prop_assert_eq!(Reader::new(&bytes).value(), Ok(&bytes[..len]));
            for cut in 0..len {
                prop_assert_eq!(Reader::new(&bytes[..cut]).value(), Err(DecodeError::Short));
            }
        }

        #[test]
        fn arbitrary_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = Reader::new(&bytes).value();
            let _ = pairs(&bytes).count() + elements(&bytes).count();
        }

        #[test]
        fn written_values_are_readable_by_another_library(n in any::<i64>(), u in any::<u64>(), s in ".{0,300}", len in 0_usize..70_000) {
            let mut w = Writer::new();
            w.array(5).int(n).uint(u).str(&s).bin(s.as_bytes()).array(0);
            let bytes = w.into_bytes();
            let read = rmpv::decode::read_value(&mut &bytes[..]).unwrap();
            prop_assert_eq!(read, rmpv::Value::Array(vec![n.into(), u.into(), s.clone().into(), rmpv::Value::Binary(s.into_bytes()), rmpv::Value::Array(vec![])]));
            let mut w = Writer::new();
            w.map(len);
            prop_assert_eq!(Reader::new(&w.into_bytes()).head(), Ok(Head::Map(len)));
        }
    }

    #[test]
    fn nesting_uses_no_stack() {
        let deep = [vec![0x91; 1_000_000], vec![0xc0]].concat();
        assert_eq!(Reader::new(&deep).value().map(<[u8]>::len), Ok(1_000_001));
    }

    #[test]
    fn an_impossible_count_is_rejected_at_once() {
        assert_eq!(
            Reader::new(&[0xdf, 0xff, 0xff, 0xff, 0xff]).value(),
            Err(DecodeError::Short)
        );
        assert_eq!(Reader::new(&[0xc1]).value(), Err(DecodeError::Marker));
    }

    #[test]
    fn a_key_is_found_among_keys_of_other_types() {
        let map = [0x83, 0x01, 0xa1, b'x', 0xa1, b'a', 0x05, 0xc0, 0xc3];
        assert_eq!(get(&map, "a").and_then(as_int), Some(5));
        assert_eq!(get(&map, "b"), None);
        assert_eq!(get(&[0xc0], "a"), None);
    }
}
