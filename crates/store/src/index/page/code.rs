//! Encoding of integers and bytes in index pages: LEB128, zigzag, length-prefixed bytes.

/// Appends an unsigned integer as LEB128.
pub fn put(out: &mut Vec<u8>, mut n: u64) {
    while n >= 0x80 {
        out.push(low(n) | 0x80);
        n >>= 7;
    }
    out.push(low(n));
}

fn low(n: u64) -> u8 {
    n.to_le_bytes()[0] & 0x7f
}

/// Appends a signed integer: zigzag, then LEB128.
pub(crate) fn put_signed(out: &mut Vec<u8>, n: i64) {
    put(out, ((n << 1) ^ (n >> 63)).cast_unsigned());
}

pub(crate) fn put_bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    put(out, bytes.len() as u64);
    out.extend_from_slice(bytes);
}

/// Appends a name: the length of the prefix that it shares with the name `before`, and the rest.
pub(crate) fn put_name(out: &mut Vec<u8>, before: &[u8], name: &[u8]) {
    let shared = before.iter().zip(name).take_while(|(a, b)| a == b).count();
    put(out, shared as u64);
    put_bytes(out, name.split_at(shared).1);
}

/// Reads these encodings; `None` at the end of the bytes.
#[derive(Debug, Clone, Copy)]
pub struct FieldReader<'a>(pub &'a [u8]);

impl<'a> FieldReader<'a> {
    /// Whether all bytes are read.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Reads a byte.
    pub fn byte(&mut self) -> Option<u8> {
        let (first, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(*first)
    }

    /// Reads an unsigned integer.
    pub fn number(&mut self) -> Option<u64> {
        let mut n = 0;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            n |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                return Some(n);
            }
        }
        None
    }

    /// Reads an unsigned integer of at most 32 bits.
    pub fn small(&mut self) -> Option<u32> {
        self.number()?.try_into().ok()
    }

    /// Reads a signed integer.
    pub fn signed(&mut self) -> Option<i64> {
        let n = self.number()?;
        Some((n >> 1).cast_signed() ^ -(n & 1).cast_signed())
    }

    /// Reads `len` bytes.
    pub fn take(&mut self, len: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(len)?;
        self.0 = rest;
        Some(taken)
    }

    /// Reads length-prefixed bytes.
    pub fn bytes(&mut self) -> Option<&'a [u8]> {
        let len = usize::try_from(self.number()?).ok()?;
        self.take(len)
    }
    /// Reads a name; `name` contains the previous name, and receives this name.
    pub(crate) fn name(&mut self, name: &mut Vec<u8>) -> Option<()> {
        let shared = usize::try_from(self.number()?).ok()?;
        name.get(..shared)?;
        name.truncate(shared);
        name.extend_from_slice(self.bytes()?);
        Some(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn values_are_read_as_they_were_written(numbers in prop::collection::vec(any::<u64>(), 0..20), bytes in any::<Vec<u8>>()) {
            let mut out = Vec::new();
            for &n in &numbers {
                put(&mut out, n);
                put_signed(&mut out, n.cast_signed());
                put(&mut out, n >> 50);
            }
            put_bytes(&mut out, &bytes);
            let mut reader = FieldReader(&out);
            for &n in &numbers {
                prop_assert_eq!(reader.number(), Some(n));
                prop_assert_eq!(reader.signed(), Some(n.cast_signed()));
                prop_assert_eq!(reader.small(), Some(u32::try_from(n >> 50).unwrap()));
            }
            prop_assert_eq!(reader.bytes(), Some(bytes.as_slice()));
            prop_assert!(reader.is_empty());
        }

        #[test]
        fn any_bytes_are_read_without_panic(bytes in any::<Vec<u8>>()) {
            let mut reader = FieldReader(&bytes);
            while reader.number().is_some() && reader.signed().is_some() && reader.bytes().is_some() {}
        }
    }
}
