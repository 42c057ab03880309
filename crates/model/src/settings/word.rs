//! Values that the configuration writes as one word: a size, a time, a path, a pattern.
//!
//! `#[serde(with = "word")]` on a field reads and writes a [`Word`], [`many`] a list of them, [`some`] one or a list.

use std::fmt;
use std::marker::PhantomData;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use salt_sls::Glob;
use serde::de::value::MapAccessDeserializer;
use serde::de::{DeserializeSeed, Deserializer, Error, MapAccess, SeqAccess, Unexpected, Visitor};
use serde::{Deserialize, Serialize, Serializer};

use saltcellar_base::limits::INGEST_RULES_MAX;

/// Bytes of a KiB.
pub const KIB: u64 = 1024;
/// Bytes of a MiB.
pub const MIB: u64 = 1024 * KIB;
/// Bytes of a GiB.
pub const GIB: u64 = 1024 * MIB;

const SIZES: [(&str, u64); 4] = [("", 1), ("KiB", KIB), ("MiB", MIB), ("GiB", GIB)];
const TIMES: [(&str, u64); 5] = [
    ("s", 1),
    ("m", 60),
    ("h", 3_600),
    ("w", 604_800),
    ("d", 86_400),
];

/// A value with a string form.
pub trait Word: Sized {
    /// The accepted strings, worded to follow "give".
    const ACCEPTS: &'static str;

    /// Parses the text.
    fn parse(text: &str) -> Option<Self>;

    /// The string that parses to this value; `None` for an absent value.
    fn show(&self) -> Option<String>;

    /// The reason for rejecting `text`, and the accepted strings.
    fn problem(text: &str) -> String {
        format!("{text:?} is not accepted; give {}", Self::ACCEPTS)
    }

    /// The value of a key with nothing behind it; by default it is rejected.
    fn absent() -> Option<Self> {
        None
    }
}

/// Declares words by what they accept, how they are parsed, and how they are shown.
#[macro_export]
macro_rules! words {
    ($($type:ty: $accepts:expr, $parse:expr, $show:expr;)*) => {$(
        impl Word for $type {
            const ACCEPTS: &'static str = $accepts;

            fn parse(text: &str) -> Option<Self> {
                let parse: fn(&str) -> Option<Self> = $parse;
                parse(text)
            }

            fn show(&self) -> Option<String> {
                let show: fn(&Self) -> String = $show;
                Some(show(self))
            }
        }
    )*};
}
pub use words;

words! {
    u64: "a size: a number of bytes, or a number with KiB, MiB or GiB",
        |text| times_unit(text, &SIZES), |bytes| in_unit(*bytes, &SIZES);
    usize: u64::ACCEPTS, |text| u64::parse(text)?.try_into().ok(), |bytes| in_unit(*bytes as u64, &SIZES);
    Duration: "a time, such as 30s or 10m",
        |text| times_unit(text, &TIMES).map(Duration::from_secs), |time| in_unit(time.as_secs(), &TIMES);
    u32: "a number", |text| text.parse().ok(), ToString::to_string;
    PathBuf: "an absolute path",
        |text| Some(Self::from(text)).filter(|path| path.is_absolute()), |path| path.to_string_lossy().into_owned();
    SocketAddr: "an address and a port, such as \"0.0.0.0:4580\" or \"[::]:4580\"",
        |text| text.parse().ok(), ToString::to_string;
    String: "a string", |text| Some(text.to_owned()), Self::clone;
    Arc<str>: "a string", |text| Some(text.into()), ToString::to_string;
    Glob: "a glob", |text| Some(Self::new(text)), |glob| glob.as_str().to_owned();
    Vec<Glob>: "keys joined by dots, such as return.password",
        |text| text.split('.').map(|key| (!key.is_empty()).then(|| Glob::new(key))).collect(),
        |keys| keys.iter().map(Glob::as_str).collect::<Vec<_>>().join(".");
}

/// A value or nothing.
impl<T: Word> Word for Option<T> {
    const ACCEPTS: &'static str = T::ACCEPTS;

    fn parse(text: &str) -> Option<Self> {
        T::parse(text).map(Some)
    }

    fn show(&self) -> Option<String> {
        self.as_ref()?.show()
    }

    fn problem(text: &str) -> String {
        T::problem(text)
    }

    fn absent() -> Option<Self> {
        Some(None)
    }
}

/// A number times its unit. `None` if the string is malformed, contains an unknown unit, or is out
/// of range.
fn times_unit(text: &str, units: &[(&str, u64)]) -> Option<u64> {
    let digits_end = text
        .find(|c: char| !c.is_ascii_digit())
        .unwrap_or(text.len());

    let (digits, unit) = text.split_at_checked(digits_end)?;
    let unit = unit.trim_start();
    // Units of time are lower-case only: `M` might mean months.

    let is_unit =
        |name: &str| name == unit || (name.ends_with('B') && name.eq_ignore_ascii_case(unit));
    let (_, factor) = units.iter().find(|(name, _)| is_unit(name))?;
    digits.parse::<u64>().ok()?.checked_mul(*factor)
}

/// The number in the last unit that divides it.
fn in_unit(value: u64, units: &[(&str, u64)]) -> String {
    let divides = |(_, factor): &&(&str, u64)| value != 0 && value.is_multiple_of(*factor);
    let (name, factor) = units
        .iter()
        .rev()
        .find(divides)
        .or(units.first())
        .unwrap_or(&("", 1));
    format!("{}{name}", value / factor)
}

/// Writes the word, or nothing for an absent value.
pub fn serialize<T: Word, S: Serializer>(value: &T, to: S) -> Result<S::Ok, S::Error> {
    value.show().serialize(to)
}

/// Reads one word.
pub fn deserialize<'de, T: Word, D: Deserializer<'de>>(from: D) -> Result<T, D::Error> {
    let one = Words {
        shape: Shape::One,
        word: PhantomData,
    }
    .deserialize(from)?;
    one.into_iter()
        .next()
        .ok_or_else(|| D::Error::custom("nothing is given"))
}

/// A list of words, which may be empty.
pub mod many {
    use super::{DeserializeSeed as _, Deserializer, PhantomData, Serializer, Shape, Word, Words};

    /// Writes the list.
    pub fn serialize<T: Word, S: Serializer>(values: &[T], to: S) -> Result<S::Ok, S::Error> {
        to.collect_seq(values.iter().map(Word::show))
    }

    /// Reads the list.
    pub fn deserialize<'de, T: Word, D: Deserializer<'de>>(from: D) -> Result<Vec<T>, D::Error> {
        Words {
            shape: Shape::Many,
            word: PhantomData,
        }
        .deserialize(from)
    }
}

/// One word, or a list of at least one.
pub mod some {
    pub use super::many::serialize;
    use super::{DeserializeSeed as _, Deserializer, PhantomData, Shape, Word, Words};

    /// Reads the word or the list.
    pub fn deserialize<'de, T: Word, D: Deserializer<'de>>(from: D) -> Result<Vec<T>, D::Error> {
        Words {
            shape: Shape::Some,
            word: PhantomData,
        }
        .deserialize(from)
    }
}

/// A word, or `none` for no limit.
pub mod or_none {
    use super::{Deserializer, Serializer, Word};

    /// A limit or none.
    struct Limit<T>(Option<T>);

    impl<T: Word> Word for Limit<T> {
        const ACCEPTS: &'static str = T::ACCEPTS;

        fn parse(text: &str) -> Option<Self> {
            if text == "none" {
                Some(Self(None))
            } else {
                T::parse(text).map(|limit| Self(Some(limit)))
            }
        }

        fn show(&self) -> Option<String> {
            self.0
                .as_ref()
                .map_or_else(|| Some("none".to_owned()), Word::show)
        }

        fn problem(text: &str) -> String {
            format!("{}, or none", T::problem(text))
        }
    }

    /// Writes the word or `none`.
    pub fn serialize<T: Word + Clone, S: Serializer>(
        value: &Option<T>,
        to: S,
    ) -> Result<S::Ok, S::Error> {
        super::serialize(&Limit(value.clone()), to)
    }

    /// Reads the word or `none`.
    pub fn deserialize<'de, T: Word, D: Deserializer<'de>>(from: D) -> Result<Option<T>, D::Error> {
        super::deserialize(from).map(|Limit(value)| value)
    }
}

/// Reads a struct from a mapping only; serde alone would also read it from a list.
pub fn mapping<'de, T: Deserialize<'de>, D: Deserializer<'de>>(
    from: D,
) -> Result<Option<T>, D::Error> {
    struct Mapping<T>(PhantomData<T>);

    impl<'de, T: Deserialize<'de>> Visitor<'de> for Mapping<T> {
        type Value = T;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a mapping")
        }

        fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<T, A::Error> {
            T::deserialize(MapAccessDeserializer::new(map))
        }
    }

    from.deserialize_any(Mapping(PhantomData)).map(Some)
}

#[derive(Clone, Copy, PartialEq)]
enum Shape {
    One,
    Some,
    Many,
}

/// Reads words in one of the shapes.
struct Words<T> {
    shape: Shape,
    word: PhantomData<T>,
}

impl<'de, T: Word> DeserializeSeed<'de> for Words<T> {
    type Value = Vec<T>;

    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<Vec<T>, D::Error> {
        from.deserialize_any(self)
    }
}

impl<'de, T: Word> Visitor<'de> for Words<T> {
    type Value = Vec<T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.shape {
            Shape::One => f.write_str(T::ACCEPTS),
            Shape::Some => write!(f, "{}, or a list of 1 to {INGEST_RULES_MAX}", T::ACCEPTS),
            Shape::Many => write!(f, "a list, each item {}", T::ACCEPTS),
        }
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Vec<T>, E> {
        if self.shape == Shape::Many {
            return Err(E::invalid_type(Unexpected::Str(text), &self));
        }
        T::parse(text)
            .map(|word| vec![word])
            .ok_or_else(|| E::custom(T::problem(text)))
    }

    fn visit_u64<E: Error>(self, number: u64) -> Result<Vec<T>, E> {
        self.visit_str(&number.to_string())
    }

    fn visit_bool<E: Error>(self, truth: bool) -> Result<Vec<T>, E> {
        self.visit_str(&truth.to_string())
    }

    fn visit_unit<E: Error>(self) -> Result<Vec<T>, E> {
        // Only a single value may be absent; an empty item of a list is a mistake.
        let absent = T::absent().filter(|_| self.shape == Shape::One);
        absent
            .map(|absent| vec![absent])
            .ok_or_else(|| E::invalid_type(Unexpected::Unit, &self))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Vec<T>, A::Error> {
        if self.shape == Shape::One {
            return Err(A::Error::invalid_type(Unexpected::Seq, &self));
        }

        let mut words = Vec::new();
        while let Some(word) = items.next_element_seed(Self {
            shape: Shape::One,
            word: PhantomData,
        })? {
            words.extend(word);
        }

        if self.shape == Shape::Some && !(1..=INGEST_RULES_MAX).contains(&words.len()) {
            return Err(A::Error::invalid_length(words.len(), &self));
        }
        Ok(words)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_parsed_and_formatted() {
        for (text, bytes, shown) in [
            ("256MiB", 256 * MIB, "256MiB"),
            ("1 gib", GIB, "1GiB"),
            ("1048576", MIB, "1MiB"),
            ("1000", 1000, "1000"),
            ("0", 0, "0"),
        ] {
            assert_eq!(u64::parse(text), Some(bytes), "{text}");
            assert_eq!(bytes.show().unwrap(), shown);
        }
        for text in [
            "",
            "MiB",
            "1MB",
            "1.5GiB",
            "-1",
            "1 parsec",
            "99999999999GiB",
        ] {
            assert_eq!(u64::parse(text), None, "{text}");
        }
    }

    #[test]
    fn durations_are_parsed_and_formatted() {
        for (text, seconds, shown) in [
            ("30d", 2_592_000, "30d"),
            ("2w", 1_209_600, "14d"),
            ("90 m", 5_400, "90m"),
            ("3600s", 3_600, "1h"),
            ("86401s", 86_401, "86401s"),
            ("0s", 0, "0s"),
        ] {
            let length = Duration::parse(text).unwrap();
            assert_eq!(length.as_secs(), seconds, "{text}");
            assert_eq!(length.show().unwrap(), shown);
        }
        for text in [
            "",
            "30",
            "d",
            "1.5h",
            "-1d",
            "1y",
            "1D",
            "99999999999999999999w",
        ] {
            assert_eq!(Duration::parse(text), None, "{text}");
        }
    }
}
