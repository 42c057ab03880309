//! Salt's events and returns: extraction of the fields that the store needs, without decoding the rest.
//!
//! An event on a bus is its tag, two newlines, and a msgpack map; the data can contain more newlines, so the
//! first pair separates (`salt/utils/event.py`). The tags of jobs are
//! `salt/job/<jid>/{new,ret/<id>,prog/<id>/..}` and `salt/{run,wheel,batch}/<jid>/..`.

use memchr::memmem;

use super::msgpack::{self, DecodeError, Head, Reader, Writer, as_int, as_text, text_bytes};
use super::outcome::Outcome;
use super::salt_codec::{CheckedMap, Unreadable, checked_value};
use saltcellar_base::clock::Micros;
use saltcellar_base::limits::{MSGPACK_DEPTH_MAX, NAME_BYTES_MAX};
use saltcellar_model::{Entry, Fingerprints, Flags, Kind, Source, chained, secret_seed};

/// Prefix of the tags of hooks, the same prefix as in Salt's engine `webhook`.
pub const HOOK_TAG: &str = "salt/engines/hook/";

/// The key that a master of a cluster puts into the data of an event of a peer: the id of the master that fired it
/// (`salt/channel/server.py`). On the bus of that master the same event does not have it.
const PEER_ID: &str = "__peer_id";

/// What the mark of a peer in an event means ([`PEER_ID`]).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PeerMark {
    /// The source's master is in a cluster: the mark is the origin of the event.
    Origin,
    /// It has no peers: the sender of the event wrote the mark, which is data like any other.
    Data,
}

/// The header with the number of hooks that an event has passed through.
pub const HOPS: &str = "saltcellar-hops";

/// Splits a frame's body into tag and data. `None` without a tag.
pub fn split(body: &[u8]) -> Option<(&[u8], &[u8])> {
    // A tag rarely contains a line break: the first is usually the place.
    let at = memchr::memchr_iter(b'\n', body).find(|&at| body.get(at + 1) == Some(&b'\n'))?;
    let (tag, rest) = body.split_at_checked(at)?;
    (!tag.is_empty()).then_some((tag, rest.get(2..)?))
}

/// Prefix of the string that replaces a value that is too large. The extension writes the same
/// string.
const TOO_LARGE: &str = "saltcellar: this value was too large to be stored";

/// Whether a value stands in the place of one that was too large.
pub fn replaces_value(value: &[u8]) -> bool {
    as_text(value).is_some_and(|text| text.starts_with(TOO_LARGE))
}

/// Replaces the value of a return, which is too large, by a string with its size. `None` if the
/// return contains no value.
pub fn without_value(body: &[u8]) -> Option<Vec<u8>> {
    let pairs: Vec<_> = msgpack::pairs(body).collect();
    let is_value = |key: &[u8]| as_text(key) == Some("return");
    if !pairs.iter().any(|(key, _)| is_value(key)) {
        return None;
    }

    // The other fields stay: they show which minion has returned, and how the run ended.
    let mut w = Writer::new();
    w.map(pairs.len());
    for (key, value) in pairs {
        w.raw(key);
        if is_value(key) {
            w.str(&format!("{TOO_LARGE}: {} bytes", value.len()));
        } else {
            w.raw(value);
        }
    }

    Some(w.into_bytes())
}

/// The data of a return of `bytes` bytes that was too large to be received, by its tag. `None` for other tags.
pub fn return_without_data(tag: &[u8], bytes: usize) -> Option<Vec<u8>> {
    let of_job = job_tag(tag).filter(|job| job.about == "ret" && !job.minion.is_empty())?;
    let mut w = Writer::new();
    w.map(4)
        .str("cmd")
        .str("_return")
        .str("id")
        .str(of_job.minion)
        .str("jid")
        .str(of_job.jid)
        .str("return")
        .str(&format!("{TOO_LARGE}: {bytes} bytes"));
    Some(w.into_bytes())
}

/// Whether these are the tag and the data of an event: a tag without two newlines, and exactly one msgpack map.
pub fn is_event(tag: &[u8], data: &[u8]) -> bool {
    let mut reader = Reader::new(data);
    let is_map = matches!(data.first(), Some(0x80..=0x8f | 0xde | 0xdf));
    let whole = is_map && reader.value().is_ok() && reader.rest().is_empty();
    whole && !tag.is_empty() && memmem::find(tag, b"\n\n").is_none()
}

/// Whether a tag may be given to clients: it is a UTF-8 string without control characters. A line
/// break would end the tag within a frame, and other control characters could forge lines of logs
/// and of clients.
pub fn is_clean_tag(tag: &[u8]) -> bool {
    std::str::from_utf8(tag).is_ok_and(|tag| !tag.is_empty() && !tag.contains(char::is_control))
}

/// Sets the `_stamp` of a map: replaces an existing one, else appends it, like Salt.
pub fn stamped(data: &[u8], stamp: &str) -> Vec<u8> {
    let known = msgpack::get(data, "_stamp").is_some();
    let pairs: Vec<_> = msgpack::pairs(data).collect();

    let mut w = Writer::new();
    w.map(pairs.len() + usize::from(!known));
    for (key, value) in pairs {
        w.raw(key);
        // In its old place, as an assignment in Python leaves it.
        if as_text(key) == Some("_stamp") {
            w.str(stamp);
        } else {
            w.raw(value);
        }
    }

    if !known {
        w.str("_stamp").str(stamp);
    }

    w.into_bytes()
}

/// The `_stamp` of an event's data.
pub fn stamp_of(data: &[u8]) -> Option<&str> {
    as_text(msgpack::get(data, "_stamp")?)
}

/// The parts of a job's tag.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct JobTag<'a> {
    /// Job id.
    pub jid: &'a str,
    /// The event of the job: `new`, `ret`, `prog`, ... Empty for a bare jid.
    pub about: &'a str,
    /// Minion id, in `ret/<id>`, `prog/<id>/..`, `sub/<id>/..`.
    pub minion: &'a str,
    /// Whether it is a job of minions rather than of a runner or a wheel.
    pub of_minions: bool,
}

/// Placeholders that Salt passes instead of a jid: nothing is stored under them as a job.
pub const PLACEHOLDER_JIDS: [&str; 3] = ["", "req", "nocache"];

/// Parses the tag of a job. For a job that must not be cached it contains a placeholder
/// (`salt/job/nocache/ret/<id>`, for a schedule with `return_job: nocache`), so its event contains
/// no job.
pub fn job_tag(tag: &[u8]) -> Option<JobTag<'_>> {
    job_of(std::str::from_utf8(tag).ok()?)
}

fn job_of(tag: &str) -> Option<JobTag<'_>> {
    let (space, rest) = cut(tag.strip_prefix("salt/")?)?;
    if !matches!(space, "job" | "run" | "wheel" | "batch") {
        // Other tags below `salt/` are about no job.
        return None;
    }

    let (jid, rest) = cut(rest)?;
    let (about, rest) = cut(rest).unwrap_or((rest, ""));

    if PLACEHOLDER_JIDS.contains(&jid) || about.is_empty() || tag.len() > NAME_BYTES_MAX {
        // A placeholder is no job, and a longer name fits into no column.
        return None;
    }

    let of_minions = space == "job";
    let minion = match about {
        "ret" if of_minions => rest,
        "prog" | "sub" if of_minions => cut(rest).map_or(rest, |(id, _)| id),
        _ => "",
    };

    Some(JobTag {
        jid,
        about,
        minion,
        of_minions,
    })
}

/// The parts before and behind the first slash. `str::split_once` costs more than the parts of a tag are long.
fn cut(text: &str) -> Option<(&str, &str)> {
    let at = text.bytes().position(|byte| byte == b'/')?;
    Some((text.get(..at)?, text.get(at + 1..)?))
}

/// The values of an event or a return that the store reads, in msgpack; empty for one that it does not have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Peeked<'a> {
    jid: &'a [u8],
    id: &'a [u8],
    fun: &'a [u8],
    cmd: &'a [u8],
    fun_args: &'a [u8],
    stamp: &'a [u8],
    peer: &'a [u8],
    /// `return`, `retcode` and `success`.
    pub answer: [&'a [u8]; 3],
}

/// A name short enough for a column; longer text stays in the body only.
fn name(value: &[u8]) -> Option<&str> {
    as_text(value).filter(|text| text.len() <= NAME_BYTES_MAX)
}

impl<'a> Peeked<'a> {
    /// `jid`, if it is text.
    pub fn jid(&self) -> Option<&'a str> {
        name(self.jid)
    }

    /// `id`: the minion.
    pub fn id(&self) -> Option<&'a str> {
        name(self.id)
    }

    /// `fun`, if it is one function.
    pub fn fun(&self) -> Option<&'a str> {
        name(self.fun)
    }

    /// `cmd`: `_return` in events of a master, `publish` in a load.
    pub fn cmd(&self) -> Option<&'a str> {
        as_text(self.cmd)
    }

    /// Whether `return` exists.
    pub fn has_return(&self) -> bool {
        !self.answer[0].is_empty()
    }

    /// The value of `_stamp`, which is added when an event is fired.
    pub fn stamp(&self) -> Option<&'a [u8]> {
        (!self.stamp.is_empty()).then(|| text_bytes(self.stamp))
    }

    /// The form that the event of a peer has on the bus of its own master; `None` for an event that
    /// does not come from a peer. `map` are the bytes that were peeked into.
    pub fn foreign(&self, map: &[u8], mark: PeerMark) -> Option<Foreign<'a>> {
        let origin = self.marked_peer()?;
        if mark == PeerMark::Data {
            return None;
        }

        let body = without_peer(map, self.peer)?;
        Some(Foreign { origin, body })
    }

    /// The master that the mark of a peer names.
    fn marked_peer(&self) -> Option<&'a str> {
        // Mostly: the event is the master's own.
        if self.peer.is_empty() {
            return None;
        }
        // What is not the id of a master, or too long to be one, is data like any other. A binary is none: Salt's ids are text.
        if !matches!(Reader::new(self.peer).head(), Ok(Head::Str(1..))) {
            return None;
        }
        name(self.peer)
    }

    /// Whether it is the return of this minion for this job.
    fn is_return_of(&self, minion: &str, jid: &str) -> bool {
        self.has_return()
            && text_bytes(self.id) == minion.as_bytes()
            && text_bytes(self.jid) == jid.as_bytes()
    }

    #[inline]
    fn take(&mut self, packed_key: &[u8], value: &'a [u8]) {
        // The length distinguishes most keys without comparing bytes.
        let key = text_bytes(packed_key);
        match key.len() {
            2 if key == b"id" => self.id = value,
            3 if key == b"jid" => self.jid = value,
            3 if key == b"fun" => self.fun = value,
            3 if key == b"cmd" => self.cmd = value,
            6 if key == b"return" => self.answer[0] = value,
            6 if key == b"_stamp" => self.stamp = value,
            7 if key == b"retcode" => self.answer[1] = value,
            7 if key == b"success" => self.answer[2] = value,
            8 if key == b"fun_args" => self.fun_args = value,
            9 if key == PEER_ID.as_bytes() && packed_key.len() == PEER_KEY_LEN => self.peer = value,
            _ => {}
        }
    }
}

/// Bytes of the packed key [`PEER_ID`]. Salt packs it as a str with a head of one byte; any other form was not written by Salt.
const PEER_KEY_LEN: usize = 1 + PEER_ID.len();

/// An event that came from a peer, as its own master fired it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Foreign<'a> {
    /// The id of that master.
    pub origin: &'a str,
    /// The data without the mark of the peer. All other bytes are as on the event's own master, so
    /// every master computes the same fingerprints.
    pub body: Vec<u8>,
}

/// A map without the pair of the key [`PEER_ID`], whose value is a slice of the map.
fn without_peer(map: &[u8], value: &[u8]) -> Option<Vec<u8>> {
    // By address: the walk that found the value has seen its place, and a second one would cost as much.
    let value_at = value.as_ptr().addr().checked_sub(map.as_ptr().addr())?;
    let pair_at = value_at.checked_sub(PEER_KEY_LEN)?;

    let mut reader = Reader::new(map);
    let others = reader.map().ok()?.checked_sub(1)?;
    let pairs_at = map.len() - reader.rest().len();

    let mut w = Writer::behind(Vec::with_capacity(map.len()));
    // The shortest head, as Python packs it: 16 pairs need a longer head than 15.
    w.map(others)
        .raw(map.get(pairs_at..pair_at)?)
        .raw(map.get(value_at + value.len()..)?);
    Some(w.into_bytes())
}

/// Reads a stored msgpack map once. All values are empty for a value of another type. Values that Salt's codec cannot read
/// are not an error.
pub fn peek(map: &[u8]) -> Peeked<'_> {
    peek_whole(map).unwrap_or_default()
}

fn peek_whole(map: &[u8]) -> Result<Peeked<'_>, DecodeError> {
    let mut seen = Peeked::default();
    let mut reader = Reader::new(map);
    for _ in 0..reader.map()? {
        let (key, value) = (reader.value()?, reader.value()?);
        seen.take(key, value);
    }
    Ok(seen)
}

/// As [`peek`], for a value to be stored: also checks that Salt's codec can read all of it.
pub fn peek_checked(value: &[u8]) -> Result<Peeked<'_>, Unreadable> {
    let mut reader = Reader::new(value);
    let seen = peek_next(&mut reader)?;
    if reader.rest().is_empty() {
        Ok(seen)
    } else {
        Err(Unreadable::Trailing)
    }
}

/// Peeks into the next value, and checks it. After an error the value is unread.
fn peek_next<'a>(reader: &mut Reader<'a>) -> Result<Peeked<'a>, Unreadable> {
    let mut seen = Peeked::default();
    let Some(mut map) = CheckedMap::of(reader) else {
        // A value of another type has no fields, but still has an end.
        checked_value(reader, MSGPACK_DEPTH_MAX)?;
        return Ok(seen);
    };

    while let Some((key, value)) = map.next_pair()? {
        seen.take(key, value);
    }
    reader.take(map.len())?;
    Ok(seen)
}

/// An item of an `event_return` batch: a map with `tag` and `data`.
#[derive(Debug, Clone, Copy)]
pub struct FiredEvent<'a> {
    tag: &'a [u8],
    data: &'a [u8],
    /// The timestamp in the item, if any: imported events keep their own timestamps.
    pub at: Option<Micros>,
    /// The master in the item, if any: imported events come from several.
    pub master: Option<&'a str>,
    seen: Result<Peeked<'a>, Unreadable>,
}

/// Reads an array of events. `None` is an item without tag or data; an error ends the iteration.
pub fn fired(array: &[u8]) -> FiredEvents<'_> {
    let mut reader = Reader::new(array);
    let left = reader.array().unwrap_or(0);
    FiredEvents { reader, left }
}

/// The events of an array.
#[derive(Debug)]
pub struct FiredEvents<'a> {
    reader: Reader<'a>,
    left: usize,
}

impl FiredEvents<'_> {
    /// Whether all events were read, and nothing follows them.
    pub fn is_whole(&self) -> bool {
        self.left == 0 && self.reader.rest().is_empty()
    }
}

impl<'a> Iterator for FiredEvents<'a> {
    type Item = Result<Option<FiredEvent<'a>>, DecodeError>;

    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        self.left = self.left.checked_sub(1)?;
        let next = next_fired(&mut self.reader);
        // Where the next event begins is not known.
        if next.is_err() {
            self.left = 0;
            self.reader = Reader::new(&[0xc1]);
        }
        Some(next)
    }
}

fn next_fired<'a>(reader: &mut Reader<'a>) -> Result<Option<FiredEvent<'a>>, DecodeError> {
    let start = *reader;
    let Ok(pairs) = reader.map() else {
        // Not an event, which the caller counts. The next item is still found.
        *reader = start;
        reader.value()?;
        return Ok(None);
    };

    let (mut tag, mut data, mut at, mut master) = (None, None, None, None);
    for _ in 0..pairs {
        match reader.text_bytes()? {
            b"tag" => tag = Some(reader.text_bytes()?),
            b"at" => at = as_int(reader.value()?).map(Micros),
            b"master" => master = as_text(reader.value()?),
            b"data" => {
                let start = *reader;
                let seen = peek_next(reader);
                if seen.is_err() {
                    // Skip the value; the following items are still read.
                    *reader = start;
                    reader.value()?;
                }

                let len = start.rest().len() - reader.rest().len();
                data = Some((start.rest().get(..len).unwrap_or_default(), seen));
            }
            _ => {
                reader.value()?;
            }
        }
    }

    let tag = tag.filter(|tag| !tag.is_empty());
    Ok(tag.zip(data).map(|(tag, (data, seen))| FiredEvent {
        tag,
        data,
        at,
        master,
        seen,
    }))
}

impl<'a> FiredEvent<'a> {
    /// Converts it to an event.
    pub fn event(&self, source: Source, at: Micros, mark: PeerMark) -> SaltEvent<'a> {
        event_of(self.tag, self.data, self.seen, source, at, mark)
    }
}

/// The form of an event's data. Salt fires maps; the bus checks nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DataForm {
    /// A map.
    Map,
    /// A value of another type.
    NoMap,
    /// A value that Salt's codec cannot read, wholly or in part.
    Unreadable(Unreadable),
}

/// An event as received by a source.
#[derive(Debug, Clone)]
pub struct SaltEvent<'a> {
    /// The entry, but for the body of an event of a peer, which is as received.
    received: Entry<'a>,
    /// The body to store of an event of a peer.
    body: Option<Vec<u8>>,
    /// The fingerprints of the entry to store.
    pub fingerprints: Fingerprints,
    /// The value of its `_stamp`.
    pub stamp: Option<&'a [u8]>,
    /// The mark of a peer that its data keep, because it does not count.
    pub ignored_peer: Option<&'a str>,
    /// The form of its data.
    pub form: DataForm,
}

impl<'a> SaltEvent<'a> {
    /// The entry to store.
    pub fn entry(&self) -> Entry<'_> {
        Entry {
            body: self.body.as_deref().unwrap_or(self.received.body),
            ..self.received
        }
    }

    /// Sets the master that it came from.
    pub fn set_origin(&mut self, origin: &'a str) {
        self.received.origin = origin;
    }

    /// The entry to store, and its body if it differs from the body in the entry.
    pub fn into_parts(self) -> (Entry<'a>, Option<Vec<u8>>) {
        (self.received, self.body)
    }
}

/// Parses an event given as tag and data.
pub fn read_event<'a>(
    tag: &'a [u8],
    data: &'a [u8],
    source: Source,
    at: Micros,
    mark: PeerMark,
) -> SaltEvent<'a> {
    event_of(tag, data, peek_checked(data), source, at, mark)
}

fn event_of<'a>(
    tag: &'a [u8],
    data: &'a [u8],
    seen: Result<Peeked<'a>, Unreadable>,
    source: Source,
    at: Micros,
    mark: PeerMark,
) -> SaltEvent<'a> {
    let form = match seen {
        Ok(_) if Reader::new(data).map().is_ok() => DataForm::Map,
        Ok(_) => DataForm::NoMap,
        Err(why) => DataForm::Unreadable(why),
    };

    // Its names count although a part of it is unreadable.
    let seen = seen.unwrap_or_else(|_| peek(data));
    let mut received = entry_of(tag, data, &seen, source, at);

    // Fingerprints are computed from the bytes that are stored, without the mark of a peer: all
    // masters must get the same fingerprints.
    let (body, fingerprints) = match seen.foreign(data, mark) {
        None => (None, fingerprints(&received, seen.answer)),
        Some(Foreign { origin, body }) => {
            received.origin = origin;
            let stored = Entry {
                body: &body,
                ..received
            };
            let fingerprints = fingerprints(&stored, seen.answer);
            (Some(body), fingerprints)
        }
    };

    SaltEvent {
        ignored_peer: seen.marked_peer().filter(|_| body.is_none()),
        received,
        body,
        fingerprints,
        stamp: seen.stamp(),
        form,
    }
}

/// The fingerprints of an entry; `answer` comes from [`Peeked`].
pub fn fingerprints(entry: &Entry<'_>, answer: [&[u8]; 3]) -> Fingerprints {
    let seed = secret_seed();

    // Entries without a tag are distinguished by kind.
    let of_kind = seed
        ^ if entry.tag.is_empty() {
            u64::from(entry.kind as u8) + 1
        } else {
            0
        };
    let whole = chained(of_kind, [entry.tag, entry.jid.as_bytes(), entry.body]);

    // Only returns are compared by their parts.
    if entry.kind != Kind::Return {
        return Fingerprints {
            whole,
            ..Fingerprints::default()
        };
    }

    let asked = chained(seed, [entry.jid.as_bytes(), entry.minion.as_bytes()]);
    Fingerprints {
        whole,
        asked,
        answer: chained(seed, answer),
    }
}

/// As [`fingerprints`], for an entry that was not peeked into.
pub fn fingerprints_of(entry: &Entry<'_>) -> Fingerprints {
    fingerprints(
        entry,
        if entry.kind == Kind::Return {
            peek(entry.body).answer
        } else {
            [b""; 3]
        },
    )
}

impl<'a> Peeked<'a> {
    /// The flags and the exit code of a return, or of another event with a `retcode` or `success`.
    pub fn columns(&self) -> (Flags, i64) {
        // Most events are no returns, and each of them passes here.
        if self.answer.iter().all(|part| part.is_empty()) {
            return (Flags::default(), 0);
        }

        let some = |value: &'a [u8]| Some(value).filter(|value| !value.is_empty());
        let [value, retcode, success] = self.answer;
        let outcome = Outcome {
            value: some(value),
            retcode: some(retcode),
            success: some(success),
            fun: some(self.fun),
            fun_args: some(self.fun_args),
            ..Outcome::default()
        };

        outcome.resolved(self.jid().unwrap_or_default()).columns()
    }
}

/// The entry of an event, the same for every source. The data are taken for an event of the
/// daemon's own master.
pub fn event_entry<'a>(tag: &'a [u8], data: &'a [u8], source: Source, at: Micros) -> Entry<'a> {
    entry_of(tag, data, &peek(data), source, at)
}

fn entry_of<'a>(
    tag: &'a [u8],
    data: &'a [u8],
    seen: &Peeked<'a>,
    source: Source,
    at: Micros,
) -> Entry<'a> {
    // Once for all names in it.
    let text = std::str::from_utf8(tag).ok();
    let job = text.and_then(job_of);
    let kind = match job {
        Some(JobTag {
            of_minions: true,
            about: "new",
            ..
        }) => Kind::JobNew,
        // A minion can fire any tag, so a return must contain its own minion id and jid.
        Some(JobTag {
            of_minions: true,
            about: "ret",
            jid,
            minion,
        }) if !minion.is_empty() && seen.is_return_of(minion, jid) => Kind::Return,
        _ => Kind::Event,
    };

    let minion = match job {
        Some(job) if !job.minion.is_empty() => job.minion,
        // The event is about the job as a whole.
        Some(_) => "",
        None => text.and_then(minion_of).or_else(|| seen.id()).unwrap_or(""),
    };

    let (flags, retcode) = seen.columns();
    Entry {
        kind,
        source,
        origin: "",
        number: 0,
        flags: flags.with(Flags::ON_BUS),
        at,
        tag,
        jid: job.map_or("", |job| job.jid),
        minion,
        fun: seen.fun().unwrap_or(""),
        retcode,
        body: data,
    }
}

/// The functions of a job with several functions, from a return or a load.
pub fn funs_of(body: &[u8]) -> Vec<&str> {
    let funs = msgpack::get(body, "fun").unwrap_or_default();
    msgpack::elements(funs)
        .filter_map(msgpack::as_text)
        .collect()
}

/// The minion that sent an event, if the master added it. It does so when it fires a minion's whole message, after
/// authenticating the minion. Lists of events in one message, and events of other programs, are fired without it.
pub fn authenticated(data: &[u8]) -> Option<&str> {
    let seen = peek(data);
    seen.id()
        .filter(|_| matches!(seen.cmd(), Some("_minion_event" | "_return")))
}

/// The minion in `salt/minion/<id>/start`, `salt/beacon/<id>/..`, `minion/refresh/<id>`.
fn minion_of(tag: &str) -> Option<&str> {
    let rest = ["salt/minion/", "salt/beacon/", "minion/refresh/"]
        .iter()
        .find_map(|p| tag.strip_prefix(p))?;
    let id = cut(rest).map_or(rest, |(id, _)| id);
    (!id.is_empty()).then_some(id)
}

#[cfg(test)]
mod tests {
    use super::super::msgpack;
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn an_event_is_a_tag_and_exactly_one_map() {
        assert!(is_event(b"a/b", b"\x80") && is_event(b"a/b", b"\x81\xa1x\xa2\n\n"));
        let malformed: [(&[u8], &[u8]); 7] = [
            (b"", b"\x80"),
            (b"a\n\nb", b"\x80"),
            (b"a", b""),
            (b"a", b"\x90"),
            (b"a", b"\x80\x80"),
            (b"a", b"\x81"),
            (b"a", b"{}"),
        ];
        for (tag, data) in malformed {
            assert!(!is_event(tag, data), "{tag:?} {data:?}");
        }
    }

    #[test]
    fn the_first_empty_line_ends_the_tag() {
        assert_eq!(
            split(b"a/b\n\n\x81\xa1x\xa2\n\n"),
            Some((&b"a/b"[..], &b"\x81\xa1x\xa2\n\n"[..]))
        );
        assert_eq!(split(b"\n\n\x80"), None);
        assert_eq!(split(b"a/b\n"), None);
        assert_eq!(split(b"a\n\n"), Some((&b"a"[..], &b""[..])));
    }

    #[test]
    fn a_stamp_replaces_an_existing_one_or_is_appended() {
        let map = |pairs: &[(&str, &str)]| {
            let mut w = msgpack::Writer::new();
            w.map(pairs.len());
            for (key, value) in pairs {
                w.str(key).str(value);
            }
            w.into_bytes()
        };
        let (bare, old) = (map(&[("a", "1")]), map(&[("_stamp", "old"), ("a", "1")]));
        assert_eq!(stamped(&bare, "now"), map(&[("a", "1"), ("_stamp", "now")]));
        assert_eq!(stamped(&old, "now"), map(&[("_stamp", "now"), ("a", "1")]));
        assert_eq!((stamp_of(&old), stamp_of(&bare)), (Some("old"), None));
    }

    #[test]
    fn tags_of_jobs_contain_jid_and_minion() {
        let check = |tag: &str, expected: Option<(&str, &str, &str)>| {
            let got = job_tag(tag.as_bytes()).map(|t| (t.jid, t.about, t.minion));
            assert_eq!(got, expected, "{tag}");
        };
        check("salt/job/20261121/new", Some(("20261121", "new", "")));
        check(
            "salt/job/20261121/ret/web1",
            Some(("20261121", "ret", "web1")),
        );
        check(
            "salt/job/20261121/ret/a/b",
            Some(("20261121", "ret", "a/b")),
        );
        check(
            "salt/job/20261121/prog/web1/3",
            Some(("20261121", "prog", "web1")),
        );
        check(
            "salt/job/20261121/sub/web1/error/state.sls",
            Some(("20261121", "sub", "web1")),
        );
        check("salt/run/20261121/ret", Some(("20261121", "ret", "")));
        check("salt/job/error", None);
        check("salt/job//new", None);
        check("salt/auth", None);
        check("20261121030955505683", None);
    }

    #[test]
    fn a_return_event_yields_its_columns() {
        let mut w = msgpack::Writer::new();
        w.map(7)
            .str("fun")
            .str("test.ping")
            .str("retcode")
            .int(2)
            .str("success")
            .bool(false);
        w.str("return")
            .map(0)
            .int(7)
            .nil()
            .str("id")
            .str("web1")
            .str("jid")
            .str("1");
        let data = w.into_bytes();
        let entry = event_entry(b"salt/job/1/ret/web1", &data, Source::Bus, Micros(9));
        assert_eq!(
            (entry.kind, entry.jid, entry.minion, entry.fun),
            (Kind::Return, "1", "web1", "test.ping")
        );
        assert!(entry.flags.has(Flags::ON_BUS) && entry.flags.failed(entry.retcode));
    }

    /// The data of a return, with the mark of a peer at this position, if it has one.
    fn marked(at: usize, mark: Option<&[u8]>) -> Vec<u8> {
        let pairs: [(&str, &str); 4] = [
            ("fun", "test.ping"),
            ("id", "web1"),
            ("jid", "1"),
            ("return", "x"),
        ];
        let mut w = msgpack::Writer::new();
        w.map(pairs.len() + usize::from(mark.is_some()));
        for n in 0..=pairs.len() {
            if let Some(mark) = mark.filter(|_| n == at) {
                w.str(PEER_ID).raw(mark);
            }
            if let Some((key, value)) = pairs.get(n) {
                w.str(key).str(value);
            }
        }
        w.into_bytes()
    }

    fn returned(data: &[u8]) -> SaltEvent<'_> {
        returned_to(data, PeerMark::Origin)
    }

    fn returned_to(data: &[u8], mark: PeerMark) -> SaltEvent<'_> {
        read_event(b"salt/job/1/ret/web1", data, Source::Bus, Micros(1), mark)
    }

    #[test]
    fn the_event_of_a_peer_is_stored_as_on_its_own_master() {
        let own_data = marked(0, None);
        let own = returned(&own_data);
        assert_eq!((own.entry().origin, own.entry().body), ("", &own_data[..]));

        for at in 0..=4 {
            let data = marked(at, Some(b"\xa8master-b"));
            let event = returned(&data);
            let entry = event.entry();
            assert_eq!(entry.origin, "master-b");
            assert_eq!(
                Entry {
                    origin: "",
                    number: 0,
                    ..entry
                },
                own.entry(),
                "at {at}"
            );
            assert_eq!(event.fingerprints, own.fingerprints);
            assert_eq!(event.fingerprints, fingerprints_of(&entry));
            assert_eq!(fingerprints_of(&own.entry()), own.fingerprints);
        }
    }

    #[test]
    fn an_event_of_a_batch_has_the_origin_as_well() {
        let mut w = msgpack::Writer::new();
        w.array(1).map(2).str("tag").str("salt/job/1/ret/web1");
        w.str("data").raw(&marked(4, Some(b"\xa1b")));
        let array = w.into_bytes();
        let event = fired(&array).next().unwrap().unwrap().unwrap();
        let event = event.event(Source::EventReturn, Micros(1), PeerMark::Origin);
        assert_eq!(event.entry().origin, "b");
        assert_eq!(event.entry().body, marked(0, None));
    }

    #[test]
    fn without_a_cluster_the_mark_of_a_peer_is_data() {
        for at in 0..=4 {
            let data = marked(at, Some(b"\xa8master-b"));
            let event = returned_to(&data, PeerMark::Data);
            assert_eq!((event.entry().origin, event.entry().body), ("", &data[..]));
            assert_eq!(event.fingerprints, fingerprints_of(&event.entry()));
            assert_eq!(event.ignored_peer, Some("master-b"));
        }
        assert_eq!(returned(&marked(4, Some(b"\xa1b"))).ignored_peer, None);
        for (data, mark) in [
            (marked(0, None), PeerMark::Data),
            (marked(0, Some(b"\xc0")), PeerMark::Data),
            (marked(0, Some(b"\xc0")), PeerMark::Origin),
        ] {
            assert_eq!(returned_to(&data, mark).ignored_peer, None);
        }
    }

    #[test]
    fn what_is_no_id_of_a_master_stays_in_the_data() {
        let text = |len: usize| {
            let mut w = msgpack::Writer::new();
            w.str(&"m".repeat(len));
            w.into_bytes()
        };
        let nested = b"\x81\xa9__peer_id\xa1b";
        let marks: [&[u8]; 9] = [
            b"\xa0",
            b"\xc0",
            b"\x07",
            b"\xc3",
            b"\xc4\x01b",
            b"\x91\xa1b",
            nested,
            b"\xa1\xff",
            &text(NAME_BYTES_MAX + 1),
        ];
        for mark in marks {
            let data = marked(2, Some(mark));
            let event = returned(&data);
            assert_eq!((event.entry().origin, event.entry().body), ("", &data[..]));
        }
        let longest = text(NAME_BYTES_MAX);
        let data = marked(2, Some(&longest));
        assert_eq!(returned(&data).entry().origin.len(), NAME_BYTES_MAX);

        // Deeper in the data it is a value like any other, and no other spelling of the key is Salt's.
        let deeper = [&b"\x81\xa4data"[..], nested].concat();
        let spelled = b"\x81\xd9\x09__peer_id\xa1b";
        let bytes = b"\x81\xc4\x09__peer_id\xa1b";
        for data in [&deeper[..], spelled, bytes, b"\x81\xa9__peer_id", b"\x81"] {
            let event = returned(data);
            assert_eq!((event.entry().origin, event.entry().body), ("", data));
        }
    }

    #[test]
    fn the_head_of_a_map_without_the_mark_is_the_shortest() {
        for pairs in [0_usize, 14, 15, 16, 65_535, 65_536] {
            let write = |is_marked: bool| {
                let mut w = msgpack::Writer::new();
                w.map(pairs + usize::from(is_marked));
                for n in 0..pairs {
                    w.uint(n as u64).nil();
                }
                if is_marked {
                    w.str(PEER_ID).str("b");
                }
                w.into_bytes()
            };
            let (own, marked) = (write(false), write(true));
            let event = returned(&marked);
            assert_eq!(event.entry().origin, "b");
            assert!(event.entry().body == own, "{pairs} pairs");
        }
    }

    /// One value of any type, packed.
    fn any_value() -> impl Strategy<Value = Vec<u8>> {
        let leaf = prop_oneof![
            any::<i64>().prop_map(|n| packed(|w| {
                w.int(n);
            })),
            any::<f64>().prop_map(|x| packed(|w| {
                w.float(x);
            })),
            prop::collection::vec(any::<u8>(), 0..40).prop_map(|b| packed(|w| {
                w.bin(&b);
            })),
            prop::collection::vec(any::<u8>(), 0..40).prop_map(|b| packed(|w| {
                w.str_bytes(&b);
            })),
            Just(packed(|w| {
                w.str(PEER_ID);
            })),
            Just(packed(|w| {
                w.nil();
            })),
        ];
        leaf.prop_recursive(3, 24, 4, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..4).prop_map(|items| packed(|w| {
                    w.array(items.len());
                    for item in &items {
                        w.raw(item);
                    }
                })),
                prop::collection::vec(inner, 0..4).prop_map(|items| packed(|w| {
                    w.map(items.len());
                    for item in &items {
                        w.str(PEER_ID).raw(item);
                    }
                })),
            ]
        })
    }

    fn packed(write: impl FnOnce(&mut msgpack::Writer)) -> Vec<u8> {
        let mut w = msgpack::Writer::new();
        write(&mut w);
        w.into_bytes()
    }

    proptest! {
        #[test]
        fn the_mark_of_a_peer_is_taken_out_of_any_map(
            pairs in prop::collection::vec(("[a-z]{0,12}", any_value()), 0..20),
            at in any::<prop::sample::Index>(),
            origin in "\\PC{1,20}",
            tag in "[a-z/0-9]{1,30}",
        ) {
            let write = |mark: Option<&str>| packed(|w| {
                let at = at.index(pairs.len() + 1);
                w.map(pairs.len() + usize::from(mark.is_some()));
                for n in 0..=pairs.len() {
                    if let Some(mark) = mark.filter(|_| n == at) {
                        w.str(PEER_ID).str(mark);
                    }
                    if let Some((key, value)) = pairs.get(n) {
                        w.str(key).raw(value);
                    }
                }
            });
            let (own, of_peer) = (write(None), write(Some(&origin)));
            let read = |data| read_event(tag.as_bytes(), data, Source::Bus, Micros(1), PeerMark::Origin);

            let (own_event, event) = (read(&own), read(&of_peer));
            prop_assert_eq!(own_event.entry().body, &own[..]);
            prop_assert_eq!(own_event.entry().origin, "");
            prop_assert_eq!(event.entry().origin, &origin);
            prop_assert_eq!(event.entry().body, &own[..]);
            prop_assert_eq!(event.fingerprints, own_event.fingerprints);
            prop_assert_eq!(event.form, own_event.form);
        }
    }

    #[test]
    fn an_event_without_matching_ids_is_not_a_return() {
        let event = |id: &str, jid: &str, answer: &str| {
            let mut w = msgpack::Writer::new();
            w.map(3)
                .str("id")
                .str(id)
                .str("jid")
                .str(jid)
                .str(answer)
                .nil();
            event_entry(
                b"salt/job/1/ret/web1",
                &w.into_bytes(),
                Source::Bus,
                Micros(0),
            )
            .kind
        };
        assert_eq!(event("web1", "1", "return"), Kind::Return);
        assert_eq!(event("web2", "1", "return"), Kind::Event);
        assert_eq!(event("web1", "2", "return"), Kind::Event);
        assert_eq!(event("web1", "1", "other"), Kind::Event);
    }

    #[test]
    fn the_minion_is_taken_from_tag_or_data() {
        let mut w = msgpack::Writer::new();
        w.map(1).str("id").str("db1");
        let data = w.into_bytes();
        let minion = |tag: &str| {
            event_entry(tag.as_bytes(), &data, Source::Bus, Micros(0))
                .minion
                .to_owned()
        };
        assert_eq!(minion("salt/beacon/web1/status/2026"), "web1");
        assert_eq!(minion("salt/auth"), "db1");
        assert_eq!(minion("salt/job/1/new"), "");
    }
}
