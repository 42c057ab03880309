//! Values from msgpack, with its extensions, as Salt's codec reads them.

use std::fmt::Write as _;

use salt_sls::{Key, Map, Object, Value};

use super::msgpack::{DecodeError, Head, Reader};
use saltcellar_base::clock::{Micros, digits};
use saltcellar_base::limits::MSGPACK_DEPTH_MAX;

/// Code of msgpack's own extension type for timestamps.
pub const EXT_TIMESTAMP: i8 = -1;
/// Code of Salt's extension type for dates.
pub const EXT_DATE: i8 = 78;
/// Code of Salt's extension type for its constants.
pub const EXT_CONSTANT: i8 = 79;

/// The value that Salt's codec reads from an ext: a timestamp, a date, a constant, or bytes.
pub fn from_ext(code: i8, data: &[u8]) -> Value {
    let read = match code {
        EXT_TIMESTAMP if is_timestamp(data) => timestamp(data),
        EXT_DATE if is_date(data) => date(data),
        EXT_CONSTANT if is_constant(data) => constant(data),
        _ => None,
    };

    match read {
        Some((type_name, text, repr)) => Value::Object(Box::new(Object {
            type_name: type_name.to_owned(),
            text,
            repr,
            is_true: true,
            packed: Ok((code, data.to_vec())),
        })),
        // Salt's codec hands other types on as bytes.
        None => Value::Bytes(data.to_vec()),
    }
}

/// Type, `str` and `repr` of a date like `20260203T04:05:06.000789`.
fn date(data: &[u8]) -> Option<(&'static str, String, String)> {
    let text = std::str::from_utf8(data).ok()?;
    let part = |from: usize, to: usize| text.get(from..to);
    let (year, month, day) = (part(0, 4)?, part(4, 6)?, part(6, 8)?);
    let (time, fraction) = text.get(9..)?.split_once('.')?;
    // `strptime` accepts fewer digits as well, and takes them for the leading digits.
    let micros: u32 = format!("{fraction:0<6}").parse().ok()?;

    let mut shown = format!("{year}-{month}-{day} {time}");
    if micros > 0 {
        let _ = write!(shown, ".{micros:06}");
    }

    let mut numbers = Vec::with_capacity(7);
    for number in [year, month, day].into_iter().chain(time.split(':')) {
        numbers.push(number.parse::<u32>().ok()?);
    }
    numbers.push(micros);

    // Python leaves microseconds and seconds out where they are zero.
    while numbers.len() > 5 && numbers.last() == Some(&0) {
        numbers.pop();
    }
    let numbers: Vec<String> = numbers.iter().map(u32::to_string).collect();
    let repr = format!("datetime.datetime({})", numbers.join(", "));

    Some(("datetime", shown, repr))
}

/// Type, `str` and `repr` of a timestamp of msgpack, in any of its three lengths.
fn timestamp(data: &[u8]) -> Option<(&'static str, String, String)> {
    let (seconds, nanoseconds) = match data.len() {
        4 => (i64::from(u32::from_be_bytes(data.try_into().ok()?)), 0),
        8 => {
            let both = u64::from_be_bytes(data.try_into().ok()?);
            (i64::try_from(both & 0x3_ffff_ffff).ok()?, both >> 34)
        }
        _ => {
            let (nanoseconds, seconds) = data.split_first_chunk()?;
            let seconds = i64::from_be_bytes(seconds.try_into().ok()?);
            (seconds, u64::from(u32::from_be_bytes(*nanoseconds)))
        }
    };

    let shown = format!("Timestamp(seconds={seconds}, nanoseconds={nanoseconds})");
    Some(("Timestamp", shown.clone(), shown))
}

/// Type, `str` and `repr` of a constant of `salt.defaults`: a pair of name and scalar.
fn constant(data: &[u8]) -> Option<(&'static str, String, String)> {
    let mut reader = Reader::new(data);
    reader.array().ok()?;
    let name = reader.text().ok()?;

    let value = match reader.head().ok()? {
        Head::Bool(b) => Value::Bool(b),
        Head::Int(i) => Value::Int(i),
        Head::Big(n) => Value::BigInt(n.to_string()),
        Head::Float(f) => Value::Float(f),
        Head::Str(_) => std::str::from_utf8(reader.rest()).ok()?.into(),
        Head::Bin(_) => Value::Bytes(reader.rest().to_vec()),
        // `is_constant` accepts no other value.
        _ => Value::Null,
    };

    let shown = if value.truthy() {
        format!("<Constant.{name} value={}>", value.python_str())
    } else {
        format!("<Constant.{name}>")
    };

    Some(("_Constant", shown.clone(), shown))
}

/// `msgpack.Timestamp`, in any of its three lengths.
pub fn is_timestamp(data: &[u8]) -> bool {
    let nanoseconds = match data.len() {
        4 => 0,
        8 => data
            .first_chunk()
            .map_or(u32::MAX, |b| u32::from_be_bytes(*b) >> 2),
        12 => data
            .first_chunk()
            .map_or(u32::MAX, |b| u32::from_be_bytes(*b)),
        _ => return false,
    };
    nanoseconds < 1_000_000_000
}

/// A date such as `20260203T04:05:06.000789`, as Salt's format with `strftime` yields it and `strptime` accepts it.
pub fn is_date(data: &[u8]) -> bool {
    let number = |from: usize, to: usize| digits(data.get(from..to)?);
    let signs = [(8, b'T'), (11, b':'), (14, b':'), (17, b'.')];
    if !(19..=24).contains(&data.len())
        || !signs.iter().all(|(at, sign)| data.get(*at) == Some(sign))
    {
        return false;
    }

    let read = || {
        let (year, month, day) = (number(0, 4)?, number(4, 6)?, number(6, 8)?);
        let (hour, minute, second) = (number(9, 11)?, number(12, 14)?, number(15, 17)?);
        let micros = number(18, data.len())?;
        Micros::of_utc([year, month, day, hour, minute, second, micros]).filter(|_| year >= 1)
    };
    read().is_some()
}

/// A pair of name and scalar: Salt's form of `salt.defaults._Constant`.
pub fn is_constant(data: &[u8]) -> bool {
    let mut reader = Reader::new(data);
    let read = |reader: &mut Reader<'_>| {
        let pair = reader.array()? == 2;
        let name = is_plain(reader.value()?);
        Ok::<_, DecodeError>(pair && name && is_plain(reader.value()?))
    };
    read(&mut reader) == Ok(true) && reader.rest().is_empty()
}

/// A scalar, a bin, or a str in UTF-8.
fn is_plain(value: &[u8]) -> bool {
    let mut reader = Reader::new(value);
    match reader.head() {
        Ok(Head::Str(_)) => std::str::from_utf8(reader.rest()).is_ok(),
        Ok(Head::Array(_) | Head::Map(_) | Head::Ext(..)) | Err(_) => false,
        Ok(_) => true,
    }
}

/// Decodes a value; `None` for malformed msgpack, or nesting beyond [`MSGPACK_DEPTH_MAX`].
pub fn from_msgpack(bytes: &[u8]) -> Option<Value> {
    read(&mut Reader::new(bytes), MSGPACK_DEPTH_MAX)
}

fn read(reader: &mut Reader<'_>, depth: usize) -> Option<Value> {
    // Bounds the recursion.
    let depth = depth.checked_sub(1)?;
    let text = |bytes: &[u8]| match std::str::from_utf8(bytes) {
        Ok(text) => Value::Str(text.to_owned()),
        Err(_) => Value::Bytes(bytes.to_vec()),
    };

    let mut look = *reader;
    Some(match look.head().ok()? {
        Head::Str(_) | Head::Bin(_) => {
            let is_text = matches!(look_head(reader)?, Head::Str(_));
            let bytes = reader.bytes().ok()?;
            if is_text {
                text(bytes)
            } else {
                Value::Bytes(bytes.to_vec())
            }
        }
        Head::Array(len) => {
            *reader = look;
            // Grows with the actual data, not with the announced length.
            let mut items = Vec::new();
            for _ in 0..len {
                items.push(read(reader, depth)?);
            }
            Value::List(items)
        }
        Head::Map(len) => {
            *reader = look;
            let mut map = Map::default();
            for _ in 0..len {
                let key = read(reader, depth)?;
                // The last value of a repeated key counts, as in Python.
                map.insert(Key(key), read(reader, depth)?);
            }
            Value::Map(map)
        }
        Head::Ext(code, len) => {
            *reader = look;
            from_ext(code, reader.take(len).ok()?)
        }
        scalar => {
            *reader = look;
            match scalar {
                Head::Bool(b) => Value::Bool(b),
                Head::Int(i) => Value::Int(i),
                Head::Big(n) => Value::BigInt(n.to_string()),
                Head::Float(f) => Value::Float(f),
                _ => Value::Null,
            }
        }
    })
}

fn look_head(reader: &Reader<'_>) -> Option<Head> {
    let mut look = *reader;
    look.head().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The expected strings come from Python 3.11 and Salt 3008.3.
    #[test]
    fn an_ext_is_read_as_salt_reads_it() {
        let check = |code: i8, data: &[u8], text: &str, repr: &str| {
            let value = from_ext(code, data);
            assert_eq!(value.python_str(), text);
            assert_eq!(value.python_repr(), repr);
        };
        check(
            78,
            b"20260203T04:05:06.000789",
            "2026-02-03 04:05:06.000789",
            "datetime.datetime(2026, 2, 3, 4, 5, 6, 789)",
        );
        check(
            78,
            b"20240101T00:00:00.000000",
            "2024-01-01 00:00:00",
            "datetime.datetime(2024, 1, 1, 0, 0)",
        );
        check(
            78,
            b"20240101T00:00:07.5",
            "2024-01-01 00:00:07.500000",
            "datetime.datetime(2024, 1, 1, 0, 0, 7, 500000)",
        );
        check(78, b"yesterday", "b'yesterday'", "b'yesterday'");
        check(
            79,
            b"\x92\xa7NOT_SET\xc0",
            "<Constant.NOT_SET>",
            "<Constant.NOT_SET>",
        );
        check(
            79,
            b"\x92\xa1N\x05",
            "<Constant.N value=5>",
            "<Constant.N value=5>",
        );
        check(5, b"x", "b'x'", "b'x'");
        let shown = "Timestamp(seconds=1, nanoseconds=5)";
        check(-1, b"\x00\x00\x00\x14\x00\x00\x00\x01", shown, shown);
        let shown = "Timestamp(seconds=-1, nanoseconds=5)";
        let data = [&[0, 0, 0, 5][..], &[0xff; 8]].concat();
        check(-1, &data, shown, shown);
    }
}
