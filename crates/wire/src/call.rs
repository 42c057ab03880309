//! Frames of the local socket: an implementation of `docs/WIRE.md`.

use saltcellar_base::limits::NAME_BYTES_MAX;

use super::msgpack::{
    self, DecodeError, EncodeError, Pairs, Reader, Writer, as_bytes, as_int, as_text, is_nil,
};

/// The first bytes from a client, before the version.
pub const MAGIC: &[u8; 6] = b"SCWIRE";

/// The protocol version.
///
/// 1: the first one.
pub const VERSION: u16 = 1;

/// Bytes of the preamble: magic and version.
pub const PREAMBLE_LEN: usize = 8;

/// The preamble of this version.
pub fn preamble() -> [u8; PREAMBLE_LEN] {
    let [hi, lo] = VERSION.to_be_bytes();
    let mut preamble = [0, 0, 0, 0, 0, 0, hi, lo];
    if let Some(magic) = preamble.first_chunk_mut() {
        *magic = *MAGIC;
    }
    preamble
}

/// Reads a preamble: the client's version, or `None` for another protocol.
pub fn read_preamble(bytes: [u8; PREAMBLE_LEN]) -> Option<u16> {
    let rest = bytes.strip_prefix(MAGIC)?;
    Some(u16::from_be_bytes(*rest.first_chunk()?))
}

/// The error of a call, sent to its caller. The code is stable, the message is for humans.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CallError {
    /// The peer broke the protocol; the connection is closed.
    #[error("{0}")]
    Protocol(String),
    /// The call does not exist.
    #[error("unknown call `{0}`: upgrade this daemon, if its client is newer")]
    UnknownCall(String),
    /// An argument is missing or of the wrong type.
    #[error("argument `{key}`: expected {expected}")]
    BadArgs {
        /// The name of the argument.
        key: &'static str,
        /// The accepted values.
        expected: &'static str,
    },
    /// An argument is invalid; the text names it and what is accepted.
    #[error("{0}")]
    Argument(String),
    /// Rejected by a rule.
    #[error("{0}")]
    Refused(String),
    /// The caller lacks the right for it.
    #[error("{0}")]
    Denied(String),
    /// A position is of another store, or of one that was replaced.
    #[error("{0}")]
    OtherStore(String),
    /// The entry exceeds the size limit.
    #[error(
        "an entry of {len} bytes exceeds the limit of {max}: send less, or raise `store.entry_bytes_max` if it has this value"
    )]
    TooLarge {
        /// Size of the entry in bytes.
        len: usize,
        /// The limit in bytes.
        max: usize,
    },
    /// Sender or time could not be verified; only from the minion listener.
    #[error("{message}")]
    Unproven {
        /// `not_accepted`, `signature`, `clock` or `replayed`.
        code: &'static str,
        /// The failed check.
        message: String,
    },
    /// A temporary failure; retry later.
    #[error("{0}")]
    Unavailable(String),
    /// A bug or failure of the daemon.
    #[error("{0}")]
    Internal(String),
}

impl From<EncodeError> for CallError {
    fn from(error: EncodeError) -> Self {
        Self::Internal(error.to_string())
    }
}

impl CallError {
    /// The code on the wire.
    pub fn code(&self) -> &'static str {
        match self {
            CallError::Protocol(_) => "protocol",
            CallError::UnknownCall(_) => "unknown_call",
            CallError::BadArgs { .. } | CallError::Argument(_) => "bad_args",
            CallError::Refused(_) | CallError::Denied(_) => "refused",
            CallError::OtherStore(_) => "other_store",
            CallError::TooLarge { .. } => "too_large",
            CallError::Unproven { code, .. } => code,
            CallError::Unavailable(_) => "unavailable",
            CallError::Internal(_) => "internal",
        }
    }
}

/// A request, borrowed from its frame.
#[derive(Debug, Clone, Copy)]
pub struct Request<'a> {
    /// The client's id for it.
    pub id: u64,
    /// The name of the call.
    pub call: &'a str,
    /// The arguments.
    pub args: Args<'a>,
}

impl<'a> Request<'a> {
    /// Parses a frame's payload.
    pub fn read(payload: &'a [u8]) -> Result<Self, CallError> {
        Self::read_for(payload, |_| false)
    }

    /// As [`Request::read`], but leaves the last argument unread if `walks` is true for the call: it is then the rest of the payload.
    /// The call finds the end of the value and rejects a payload that does not end there.
    pub fn read_for(
        payload: &'a [u8],
        walks: impl FnOnce(&str) -> bool,
    ) -> Result<Self, CallError> {
        let protocol =
            |what: &str| CallError::Protocol(format!("a request is [id, call, args]: {what}"));

        // Everything is read first: one message then covers all malformed forms.
        let read = || -> Result<_, DecodeError> {
            let mut r = Reader::new(payload);
            let len = r.array()?;
            let id = r.value()?;
            let call = r.text()?;
            let args = Args::next(&mut r, walks(call))?;
            Ok((len, id, call, args, r.rest().is_empty()))
        };

        let (len, id, call, args, whole) = read().map_err(|e| protocol(&e.to_string()))?;
        let id = as_int(id).and_then(|id| u64::try_from(id).ok());

        match id {
            _ if len != 3 || !whole => Err(protocol("not three elements")),
            None => Err(protocol("the id is not an unsigned integer")),
            Some(id) => Ok(Self {
                id,
                call,
                args: args.ok_or_else(|| protocol("args is not a map"))?,
            }),
        }
    }
}

/// Number of arguments found without traversing the map. No call has more.
const ARGS_AT_HAND: usize = 8;

/// The arguments of a call: a msgpack map, traversed once.
#[derive(Debug, Clone, Copy)]
pub struct Args<'a> {
    /// Names and values of the first arguments.
    at_hand: [(&'a [u8], &'a [u8]); ARGS_AT_HAND],
    map: &'a [u8],
}

impl<'a> Args<'a> {
    /// Accepts a value that is a map.
    pub fn of(map: &'a [u8]) -> Option<Self> {
        Self::next(&mut Reader::new(map), false).ok().flatten()
    }

    /// Reads the next value; `None` if it is not a map. With `leaves_last` its last value is the rest of the bytes, if that
    /// begins as an array.
    fn next(reader: &mut Reader<'a>, leaves_last: bool) -> Result<Option<Self>, DecodeError> {
        let start = reader.rest();
        let mut inside = *reader;
        let Ok(pairs) = inside.map() else {
            // Skip it here, and let the caller name the problem.
            reader.value()?;
            return Ok(None);
        };

        *reader = inside;

        let nothing: &[u8] = &[];
        let mut at_hand = [(nothing, nothing); ARGS_AT_HAND];
        for n in 0..pairs {
            // One pass finds the end of the map and keeps what calls ask for.
            let key = reader.value()?;
            let is_left = leaves_last && n + 1 == pairs && n < ARGS_AT_HAND;
            let value = if is_left && reader.is_at_array() {
                reader.take(reader.rest().len())?
            } else {
                reader.value()?
            };
            if let Some(slot) = at_hand.get_mut(n) {
                *slot = (Reader::new(key).bytes().unwrap_or_default(), value);
            }
        }

        let len = start.len() - reader.rest().len();
        Ok(Some(Self {
            at_hand,
            map: start.get(..len).unwrap_or_default(),
        }))
    }

    /// All arguments, as msgpack.
    pub fn map(&self) -> &'a [u8] {
        self.map
    }

    /// The arguments as a type: nil counts as absent, and unknown names are ignored.
    pub fn read<T: serde::Deserialize<'a>>(&self) -> Result<T, CallError> {
        // The place of an error is looked for once there is one: most arguments have none.
        T::deserialize(Pairs::new(self.pairs())).or_else(|_| {
            serde_path_to_error::deserialize(Pairs::new(self.pairs())).map_err(bad_argument)
        })
    }

    /// The strings of the names, and the values.
    fn pairs(&self) -> impl Iterator<Item = (&'a [u8], &'a [u8])> {
        // The slots contain the first pairs only.
        let (slots, map): (&[_], &[u8]) = if self.is_full() {
            (&[], self.map)
        } else {
            (&self.at_hand, &[0x80])
        };
        let named = |(name, value)| (as_bytes(name).unwrap_or_default(), value);

        let slots: Vec<_> = slots
            .iter()
            .take_while(|(_, value)| !value.is_empty())
            .copied()
            .collect();
        slots.into_iter().chain(msgpack::pairs(map).map(named))
    }

    /// Whether there may be arguments beyond the slots.
    fn is_full(&self) -> bool {
        self.at_hand
            .last()
            .is_some_and(|(_, value)| !value.is_empty())
    }

    /// Any value; nil counts as absent.
    pub fn raw(&self, key: &str) -> Option<&'a [u8]> {
        let found = self
            .at_hand
            .iter()
            .find(|(name, _)| *name == key.as_bytes())
            .map(|(_, value)| *value);

        // Only a map with more arguments than slots is searched again.
        found
            .or_else(|| self.is_full().then(|| msgpack::get(self.map, key))?)
            .filter(|v| !is_nil(v))
    }
}

/// The error of arguments that do not fit the call; the message names the place.
#[expect(clippy::needless_pass_by_value, reason = "for `map_err`")]
pub fn bad_argument<E: std::fmt::Display>(error: serde_path_to_error::Error<E>) -> CallError {
    let path = error.path().to_string();
    // A missing argument is named by the message, without a path.
    CallError::Argument(if path == "." {
        error.inner().to_string()
    } else {
        format!("argument `{path}`: {}", error.inner())
    })
}

/// A name: text, or an integer converted to its digits.
pub fn id_text(value: &[u8]) -> Option<String> {
    if value.len() > NAME_BYTES_MAX {
        return None;
    }
    match Reader::new(value).head().ok()? {
        msgpack::Head::Str(_) | msgpack::Head::Bin(_) => as_text(value).map(str::to_owned),
        msgpack::Head::Int(n) if n >= 0 => Some(n.to_string()),
        msgpack::Head::Big(n) => Some(n.to_string()),
        _ => None,
    }
}

/// A name among arguments: a string of at most 16 KiB, or an integer from 0, which becomes its
/// digits.
#[derive(Debug, Clone, Default, PartialEq, Eq, serde::Serialize)]
#[serde(transparent)]
pub struct Id(pub String);

impl<'de> serde::Deserialize<'de> for Id {
    fn deserialize<D: serde::Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_any(IdVisitor)
    }
}

struct IdVisitor;

impl serde::de::Visitor<'_> for IdVisitor {
    type Value = Id;

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("str of at most 16 KiB")
    }

    fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<Id, E> {
        if text.len() > NAME_BYTES_MAX {
            return Err(E::custom("expected str of at most 16 KiB"));
        }
        Ok(Id(text.to_owned()))
    }

    fn visit_bytes<E: serde::de::Error>(self, text: &[u8]) -> Result<Id, E> {
        self.visit_str(std::str::from_utf8(text).map_err(E::custom)?)
    }

    // pepper and other clients of Salt send job ids as numbers.
    fn visit_u64<E>(self, number: u64) -> Result<Id, E> {
        Ok(Id(number.to_string()))
    }
}

impl schemars::JsonSchema for Id {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Id".into()
    }

    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        schemars::json_schema!({ "type": "string" })
    }
}

/// A complete request frame, for clients.
pub fn request_frame(id: u64, call: &str, args: &[u8]) -> Vec<u8> {
    framed(args.len(), |w| {
        w.array(3).uint(id).str(call).raw(args);
    })
}

/// A complete response frame; `value` is msgpack.
pub fn answer_frame(id: u64, value: &[u8]) -> Vec<u8> {
    framed(value.len(), |w| {
        w.array(3).uint(id).bool(true).raw(value);
    })
}

/// As [`answer_frame`], in the value's buffer if it has [`ANSWER_HEAD_BYTES_MAX`] spare bytes,
/// which keeps a long response in memory only once.
pub fn into_answer_frame(id: u64, mut value: Vec<u8>) -> Vec<u8> {
    if value.capacity() - value.len() < ANSWER_HEAD_BYTES_MAX {
        // Making room in front of the value would copy it as well.
        return answer_frame(id, &value);
    }

    let mut head = answer_frame(id, &[]);
    set_length(&mut head, value.len());
    value.splice(0..0, head);
    value
}

/// Bytes before the value in a response frame: length, array, id, true.
pub const ANSWER_HEAD_BYTES_MAX: usize = 4 + 1 + 9 + 1;

/// A complete error frame.
pub fn refusal_frame(id: Option<u64>, error: &CallError) -> Vec<u8> {
    framed(0, |w| {
        w.array(3);
        match id {
            Some(id) => w.uint(id),
            // The request could not be read far enough.
            None => w.nil(),
        };

        w.bool(false)
            .map(2)
            .str("code")
            .str(error.code())
            .str("message")
            .str(&error.to_string());
    })
}

/// The error frame for a client of another version.
pub fn version_frame(theirs: u16) -> Vec<u8> {
    let message = format!(
        "this daemon supports version {VERSION} of the socket protocol, the client uses version {theirs}"
    );

    framed(0, |w| {
        w.array(3)
            .nil()
            .bool(false)
            .map(3)
            .str("code")
            .str("version")
            .str("message")
            .str(&message);
        w.str("server_version").uint(u64::from(VERSION));
    })
}

/// A frame around the output of `write`, of about `value_bytes`.
fn framed(value_bytes: usize, write: impl FnOnce(&mut Writer)) -> Vec<u8> {
    let mut frame = Vec::with_capacity(value_bytes + 64);
    // Room for the length, which is known at the end.
    frame.extend_from_slice(&[0; 4]);
    let mut w = Writer::behind(frame);
    write(&mut w);

    let mut frame = w.into_bytes();
    set_length(&mut frame, 0);
    frame
}

/// Writes the length of a frame's payload: its bytes so far, and `follow` more.
fn set_length(frame: &mut [u8], follow: usize) {
    let payload = frame.len().saturating_sub(4) + follow;
    if let Some(header) = frame.first_chunk_mut() {
        *header = u32::try_from(payload).unwrap_or(u32::MAX).to_be_bytes();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(serde::Deserialize)]
    struct TestArgs {
        jid: Id,
        #[serde(default)]
        count: u64,
        nil: Option<String>,
    }

    #[test]
    fn an_argument_that_its_call_walks_is_whole_or_rejected_by_the_call() {
        let event = [&[0x82][..], b"\xa3tag\xa1a\xa4data\x80"].concat();
        let payload = |before: &[u8], events: &[u8]| {
            [b"\x93\x07\xacevent_return", before, b"\xa6events", events].concat()
        };
        let left = |payload: &[u8]| {
            let request = Request::read_for(payload, |call| call == "event_return").unwrap();
            let mut events = crate::salt_event::fired(request.args.raw("events").unwrap());
            let found = events
                .by_ref()
                .filter(|event| matches!(event, Ok(Some(_))))
                .count();
            (found, events.is_whole())
        };

        let two = [b"\x92", &event[..], &event].concat();
        let whole = payload(b"\x81", &two);
        assert_eq!(left(&whole), (2, true));
        assert_eq!(
            Request::read(&whole).unwrap().args.raw("events"),
            Some(&two[..])
        );
        // Behind another argument, and as the last of as many as there are slots.
        assert_eq!(left(&payload(b"\x82\xa6replay\xc2", &two)), (2, true));
        let many = [&[0x88][..], &b"\xa1x\xc2".repeat(7)].concat();
        assert_eq!(left(&payload(&many, &two)), (2, true));

        // What a walk of the whole request would have rejected.
        let broken = [
            payload(b"\x81", &two[..two.len() - 1]),
            payload(b"\x81", &[&two[..], b"\xc0"].concat()),
            payload(b"\x81", b"\x92\xc1\x80"),
            payload(b"\x81", b"\xdd\xff\xff\xff\xff"),
            payload(b"\x81", &[b"\x92", &event[..]].concat()),
        ];
        for payload in broken {
            assert!(Request::read(&payload).is_err());
            assert!(!left(&payload).1, "{payload:x?}");
        }

        // Any other value is walked.
        let text = payload(b"\x81", b"\xa5ab");
        assert!(Request::read_for(&text, |_| true).is_err());
        // And so is one that is not the last.
        let first = [b"\x93\x07\xa1x\x82\xa6events", &two[..], b"\xa1y\xc2"].concat();
        let request = Request::read_for(&first, |_| true).unwrap();
        assert_eq!(request.args.raw("events"), Some(&two[..]));
    }

    #[test]
    fn a_framed_request_is_parsed() {
        let mut args = Writer::new();
        args.map(3)
            .str("jid")
            .int(20_261_121)
            .str("count")
            .int(5)
            .str("nil")
            .nil();
        let frame = request_frame(9, "get_jid", &args.into_bytes());
        assert_eq!(
            frame[..4],
            u32::try_from(frame.len() - 4).unwrap().to_be_bytes()
        );
        let request = Request::read(&frame[4..]).unwrap();
        assert_eq!((request.id, request.call), (9, "get_jid"));

        let args: TestArgs = request.args.read().unwrap();
        assert_eq!(args.jid, Id("20261121".to_owned()), "a number is an id");
        assert_eq!((args.count, args.nil), (5, None));

        let other = request_frame(9, "get_jid", &[0x81, 0xa3, b'j', b'i', b'd', 0xc2]);
        let request = Request::read(&other[4..]).unwrap();
        assert_eq!(
            request.args.read::<TestArgs>().map(|args| args.jid),
            Err(CallError::Argument(
                "argument `jid`: invalid type: boolean `false`, expected str of at most 16 KiB"
                    .to_owned()
            ))
        );
    }

    #[test]
    fn a_malformed_request_is_a_protocol_error() {
        for payload in [
            &b""[..],
            b"\xc0",
            b"\x92\x01\xa1x",
            b"\x93\x01\xa1x\x90",
            b"\x93\xa1y\xa1x\x80",
            b"\x93\xff\xa1x\x80",
            b"\x93\x01\x01\x80",
            b"\x93\x01\xa1x\x80\x00",
            b"\x94\x01\xa1x\x80\x00",
        ] {
            assert_eq!(
                Request::read(payload).unwrap_err().code(),
                "protocol",
                "{payload:x?}"
            );
        }
    }

    #[test]
    fn a_preamble_contains_the_version() {
        assert_eq!(read_preamble(preamble()), Some(VERSION));
        assert_eq!(read_preamble(*b"SCWIRE\x01\x02"), Some(0x0102));
        assert_eq!(read_preamble(*b"GET / HT"), None);
    }
}
