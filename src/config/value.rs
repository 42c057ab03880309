//! The kinds of values: how each is written in a file, read, and rendered.

use std::fmt;
use std::marker::PhantomData;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::de::{IntoDeserializer, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::Value as Json;
use tracing_subscriber::EnvFilter;

use super::read::{list, problem};
use super::{LogFormat, MinionsRead, Space, duration, size};
use crate::limits::{self, INGEST_RULES_MAX};
use crate::model::{Builtin, Durability, Glob, Right, RuleOrder};

/// The value of a key.
pub(super) trait Setting {
    type Value;

    fn read<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Self::Value, D::Error>;

    /// The value as in a file.
    fn show(value: &Self::Value) -> Json;
}

/// A value that is written as one word or string. YAML's types do not matter: `0660` is text until its key reads it.
pub(super) trait Scalar {
    type Value;

    /// The accepted values, worded to follow "give"; empty if the key states them.
    fn accepts() -> String {
        String::new()
    }

    fn parse(text: &str) -> Result<Self::Value, String>;

    fn show(value: &Self::Value) -> Json;
}

/// A scalar of the form `S`.
pub(super) struct Of<S: Scalar>(pub(super) S::Value);

impl<'de, S: Scalar> Deserialize<'de> for Of<S> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Text<S>(PhantomData<S>);

        impl<S: Scalar> Visitor<'_> for Text<S> {
            type Value = S::Value;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("text")
            }

            fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<S::Value, E> {
                let usable = !text.is_empty() && !text.contains('\0');
                let value = if usable { S::parse(text) } else { refused(text) };
                value.map_err(|found| match S::accepts() {
                    accepts if accepts.is_empty() => problem(&found, ""),
                    accepts => problem(&found, &format!("give {accepts}")),
                })
            }
        }

        deserializer.deserialize_str(Text::<S>(PhantomData)).map(Self)
    }
}

impl<S: Scalar> Serialize for Of<S> {
    fn serialize<T: Serializer>(&self, serializer: T) -> Result<T::Ok, T::Error> {
        S::show(&self.0).serialize(serializer)
    }
}

/// A scalar of the form `S`, or a list of them.
pub(super) struct Texts<S: Scalar>(pub(super) Vec<S::Value>);

impl<'de, S: Scalar> Deserialize<'de> for Texts<S> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct One<S>(PhantomData<S>);

        impl<'de, S: Scalar> Visitor<'de> for One<S> {
            type Value = Vec<S::Value>;

            /// A number or a boolean has lost its spelling here.
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "give {} in quotes, or a list of 1 to {INGEST_RULES_MAX}", S::accepts())
            }

            fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<Self::Value, E> {
                Of::<S>::deserialize(text.into_deserializer()).map(|one| vec![one.0])
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Self::Value, A::Error> {
                let mut found = Vec::new();
                while let Some(item) = items.next_element::<Of<S>>()? {
                    found.push(item.0);
                }
                if (1..=INGEST_RULES_MAX).contains(&found.len()) {
                    return Ok(found);
                }
                let accepted = format!("give {}, or a list of 1 to {INGEST_RULES_MAX}", S::accepts());
                Err(problem(&format!("a list of {}", found.len()), &accepted))
            }
        }

        deserializer.deserialize_any(One::<S>(PhantomData)).map(Self)
    }
}

impl<S: Scalar> Serialize for Texts<S> {
    fn serialize<T: Serializer>(&self, serializer: T) -> Result<T::Ok, T::Error> {
        serializer.collect_seq(self.0.iter().map(S::show))
    }
}

impl<S: Scalar> Setting for S {
    type Value = S::Value;

    fn read<'de, D: Deserializer<'de>>(deserializer: D) -> Result<S::Value, D::Error> {
        Of::<S>::deserialize(deserializer).map(|value| value.0)
    }

    fn show(value: &S::Value) -> Json {
        S::show(value)
    }
}

/// A scalar without a default.
pub(super) struct Maybe<S>(S);

impl<S: Scalar> Setting for Maybe<S> {
    type Value = Option<S::Value>;

    fn read<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Self::Value, D::Error> {
        <S as Setting>::read(deserializer).map(Some)
    }

    fn show(value: &Self::Value) -> Json {
        value.as_ref().map_or(Json::Null, S::show)
    }
}

/// A list of scalars.
pub(super) struct Many<S>(S);

impl<S: Scalar> Setting for Many<S> {
    type Value = Vec<S::Value>;

    fn read<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Self::Value, D::Error> {
        list(deserializer, |_, item: Of<S>| Ok(item.0))
    }

    fn show(values: &Self::Value) -> Json {
        values.iter().map(S::show).collect()
    }
}

pub(super) fn refused<T>(text: &str) -> Result<T, String> {
    Err(format!("{text:?} is not accepted"))
}

/// An absolute path.
pub(super) struct AbsolutePath;

impl Scalar for AbsolutePath {
    type Value = PathBuf;

    fn parse(text: &str) -> Result<PathBuf, String> {
        let path = Path::new(text);
        if path.is_absolute() { Ok(path.to_owned()) } else { refused(text) }
    }

    fn show(path: &PathBuf) -> Json {
        Json::from(path.to_string_lossy().into_owned())
    }
}

/// The path of a unix socket.
pub(super) struct SocketPath;

impl Scalar for SocketPath {
    type Value = PathBuf;

    fn parse(text: &str) -> Result<PathBuf, String> {
        match AbsolutePath::parse(text)? {
            _ if text.len() > limits::SOCKET_PATH_BYTES_MAX => {
                Err(format!("{text:?} has {} bytes, too long for a unix socket", text.len()))
            }
            path => Ok(path),
        }
    }

    fn show(path: &PathBuf) -> Json {
        <AbsolutePath as Scalar>::show(path)
    }
}

/// The address of a ZeroMQ socket.
pub(super) struct Ipc;

impl Scalar for Ipc {
    type Value = PathBuf;

    fn parse(text: &str) -> Result<PathBuf, String> {
        match text.split_once("://") {
            Some(("ipc", path)) => SocketPath::parse(path),
            Some((other, _)) => Err(format!(
                "{other}:// is not supported: ZeroMQ sockets here are protected by file permissions only"
            )),
            None => refused(text),
        }
    }

    fn show(path: &PathBuf) -> Json {
        Json::from(format!("ipc://{}", path.display()))
    }
}

/// Permission bits, in octal.
pub(super) struct Mode;

impl Scalar for Mode {
    type Value = u32;

    fn parse(text: &str) -> Result<u32, String> {
        let digits = text.strip_prefix("0o").unwrap_or(text);
        match u32::from_str_radix(digits, 8) {
            Ok(mode @ 0o600..=0o777) if mode & 0o600 == 0o600 && digits.len() <= 4 => Ok(mode),
            _ => refused(text),
        }
    }

    fn show(mode: &u32) -> Json {
        Json::from(format!("{mode:04o}"))
    }
}

/// Any text.
pub(super) struct Name;

impl Scalar for Name {
    type Value = String;

    fn parse(text: &str) -> Result<String, String> {
        Ok(text.to_owned())
    }

    fn show(name: &String) -> Json {
        Json::from(name.as_str())
    }
}

impl Scalar for Glob {
    type Value = Self;

    fn accepts() -> String {
        "a glob".to_owned()
    }

    fn parse(text: &str) -> Result<Self, String> {
        Ok(Self::new(text))
    }

    fn show(glob: &Self) -> Json {
        Json::from(glob.as_str())
    }
}

/// `true` or `false`.
pub(super) struct Flag;

impl Scalar for Flag {
    type Value = bool;

    fn accepts() -> String {
        "true or false".to_owned()
    }

    fn parse(text: &str) -> Result<bool, String> {
        text.parse().or_else(|_| refused(text))
    }

    fn show(value: &bool) -> Json {
        Json::from(*value)
    }
}

/// A number from 1 to `MAX`.
pub(super) struct Number<const MAX: u32>;

impl<const MAX: u32> Scalar for Number<MAX> {
    type Value = u32;

    fn accepts() -> String {
        format!("a number from 1 to {MAX}")
    }

    fn parse(text: &str) -> Result<u32, String> {
        let number = text.parse().ok().filter(|number| (1..=MAX).contains(number));
        number.map_or_else(|| refused(text), Ok)
    }

    fn show(number: &u32) -> Json {
        Json::from(*number)
    }
}

/// A size from `MIN` to `MAX` bytes.
pub(super) struct ByteSize<const MIN: u64, const MAX: u64>;

impl<const MIN: u64, const MAX: u64> Scalar for ByteSize<MIN, MAX> {
    type Value = u64;

    fn accepts() -> String {
        let most = if MAX == u64::MAX { String::new() } else { format!(" to {}", size::show(MAX)) };
        format!("a size from {}{most}: a number of bytes, or a number with KiB, MiB or GiB", size::show(MIN))
    }

    fn parse(text: &str) -> Result<u64, String> {
        size::parse(text).filter(|bytes| (MIN..=MAX).contains(bytes)).map_or_else(|| refused(text), Ok)
    }

    fn show(bytes: &u64) -> Json {
        Json::from(size::show(*bytes))
    }
}

/// The size of an entry, which fits memory.
pub(super) struct EntrySize;

impl Scalar for EntrySize {
    type Value = usize;

    fn parse(text: &str) -> Result<usize, String> {
        let bytes = ByteSize::<{ 64 * size::KIB }, { limits::ENTRY_BYTES_MAX as u64 }>::parse(text)?;
        usize::try_from(bytes).or_else(|_| refused(text))
    }

    fn show(bytes: &usize) -> Json {
        Json::from(size::show(*bytes as u64))
    }
}

/// A size, or `none` for no limit.
pub(super) struct Memory;

impl Scalar for Memory {
    type Value = Option<u64>;

    fn parse(text: &str) -> Result<Option<u64>, String> {
        match text {
            "none" => Ok(None),
            _ => ByteSize::<{ limits::REACTOR_HELPER_MEMORY_MIN }, { u64::MAX }>::parse(text).map(Some),
        }
    }

    fn show(bytes: &Option<u64>) -> Json {
        Json::from(bytes.map_or_else(|| "none".to_owned(), size::show))
    }
}

/// A time from `MIN` to `MAX` seconds.
pub(super) struct Span<const MIN: u64, const MAX: u64>;
/// A time of any length.
pub(super) type AnySpan = Span<0, { u64::MAX }>;

impl<const MIN: u64, const MAX: u64> Scalar for Span<MIN, MAX> {
    type Value = Duration;

    fn accepts() -> String {
        if MAX == u64::MAX { "a time, such as 30s or 10m".to_owned() } else { String::new() }
    }

    fn parse(text: &str) -> Result<Duration, String> {
        let length = duration::parse(text).filter(|length| (MIN..=MAX).contains(&length.as_secs()));
        length.map_or_else(|| refused(text), Ok)
    }

    fn show(length: &Duration) -> Json {
        Json::from(duration::show(*length))
    }
}

/// The bounds of `reactor.shadow_window`.
pub(super) type ShadowWindow =
    Span<{ limits::REACTOR_SHADOW_WINDOW_MIN.as_secs() }, { limits::REACTOR_SHADOW_WINDOW_MAX.as_secs() }>;

/// An address and a port.
pub(super) struct Address;

impl Scalar for Address {
    type Value = SocketAddr;

    fn parse(text: &str) -> Result<SocketAddr, String> {
        text.parse().or_else(|_| refused(text))
    }

    fn show(address: &SocketAddr) -> Json {
        Json::from(address.to_string())
    }
}

/// A level, or a filter of `tracing_subscriber`.
pub(super) struct LogLevel;

impl Scalar for LogLevel {
    type Value = String;

    fn parse(text: &str) -> Result<String, String> {
        let plain = matches!(text, "off" | "error" | "warn" | "info" | "debug" | "trace");
        // The filter reads a lone word that is not a level as a module name; here it is a typing error.
        let filter = text.contains('=') && EnvFilter::builder().parse(text).is_ok();
        if plain || filter { Ok(text.to_owned()) } else { refused(text) }
    }

    fn show(level: &String) -> Json {
        Json::from(level.as_str())
    }
}

impl Scalar for Durability {
    type Value = Self;

    fn parse(text: &str) -> Result<Self, String> {
        let within = || {
            let within = duration::parse(text.strip_prefix("written ")?.trim())?;
            (1..=60).contains(&within.as_secs()).then_some(Self::Written { within })
        };
        if text == "durable" { Ok(Self::Durable) } else { within().map_or_else(|| refused(text), Ok) }
    }

    fn show(durability: &Self) -> Json {
        Json::from(match durability {
            Self::Durable => "durable".to_owned(),
            Self::Written { within } => format!("written {}", duration::show(*within)),
        })
    }
}

impl Scalar for Space {
    type Value = Self;

    fn parse(text: &str) -> Result<Self, String> {
        match text {
            "auto" => Ok(Self::Auto),
            _ => size::parse(text).map_or_else(|| refused(text), |bytes| Ok(Self::Bytes(bytes))),
        }
    }

    fn show(space: &Self) -> Json {
        Json::from(space.bytes().map_or_else(|| "auto".to_owned(), size::show))
    }
}

/// Words that name the variants of an enumeration.
macro_rules! words {
    ($($kind:ident in $all:expr, $accepts:literal;)*) => {$(
        impl Scalar for $kind {
            type Value = Self;

            fn accepts() -> String {
                $accepts.to_owned()
            }

            fn parse(text: &str) -> Result<Self, String> {
                $all.into_iter().find(|one| one.name() == text).map_or_else(|| refused(text), Ok)
            }

            fn show(value: &Self) -> Json {
                Json::from(value.name())
            }
        }
    )*};
}

words! {
    Builtin in Self::ALL, "one of passwords, private_keys, pillar";
    LogFormat in Self::ALL, "auto, text or json";
    MinionsRead in Self::ALL, "none, own or all";
    Right in [Self::Read, Self::Write], "read or write";
    RuleOrder in [Self::Rule, Self::Minion, Self::None], "rule, minion or none";
}
