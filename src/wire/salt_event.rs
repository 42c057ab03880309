//! Salt's events and returns: what the store needs to know of them, peeked without decoding the rest.
//!
//! An event on a bus is its tag, two newlines, and a msgpack map; the data may contain more newlines, so the
//! first pair counts (`salt/utils/event.py`). Tags that speak of jobs are those of `salt/utils/event.py`'s
//! `tagify` callers: `salt/job/<jid>/{new,ret/<id>,prog/<id>/..}`, `salt/{run,wheel,batch}/<jid>/..`.

use memchr::memmem;

use super::msgpack::{self, DecodeError, Reader, Writer, as_bool, as_int, as_text};
use super::salt_codec::{Unreadable, checked_key, checked_value};
use crate::clock::Micros;
use crate::limits::{MSGPACK_DEPTH_MAX, NAME_BYTES_MAX};
use crate::model::{Entry, Flags, Kind, Prints, Source, chained, secret_seed};

/// Splits a frame's body into tag and data. `None` if there is no tag.
pub fn split(body: &[u8]) -> Option<(&[u8], &[u8])> {
    let at = memmem::find(body, b"\n\n")?;
    let (tag, rest) = body.split_at_checked(at)?;
    (!tag.is_empty()).then_some((tag, rest.get(2..)?))
}

/// A map of data with its `_stamp`: in the place of the one that it has, else behind the rest, as Salt's own firing does.
pub fn stamped(data: &[u8], stamp: &str) -> Vec<u8> {
    let known = msgpack::get(data, "_stamp").is_some();
    let pairs: Vec<_> = msgpack::pairs(data).collect();
    let mut w = Writer::new();
    w.map(pairs.len() + usize::from(!known));
    for (key, value) in pairs {
        w.raw(key);
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

/// What a job's tag says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct JobTag<'a> {
    /// Job id.
    pub jid: &'a str,
    /// What about the job: `new`, `ret`, `prog`, ... The empty text for a bare jid.
    pub about: &'a str,
    /// Minion id, in `ret/<id>`, `prog/<id>/..`, `sub/<id>/..`.
    pub minion: &'a str,
    /// Is it a job of minions, not of a runner or a wheel?
    pub of_minions: bool,
}

/// Reads a tag that belongs to a job.
pub fn job_tag(tag: &[u8]) -> Option<JobTag<'_>> {
    let rest = std::str::from_utf8(tag).ok()?.strip_prefix("salt/")?;
    let (space, rest) = rest.split_once('/')?;
    if !matches!(space, "job" | "run" | "wheel" | "batch") {
        return None;
    }
    let (jid, rest) = rest.split_once('/')?;
    let (about, rest) = rest.split_once('/').unwrap_or((rest, ""));
    if jid.is_empty() || about.is_empty() || tag.len() > NAME_BYTES_MAX {
        return None;
    }
    let of_minions = space == "job";
    let minion = match about {
        "ret" if of_minions => rest,
        "prog" | "sub" if of_minions => rest.split_once('/').map_or(rest, |(id, _)| id),
        _ => "",
    };
    Some(JobTag { jid, about, minion, of_minions })
}

/// The top-level keys of an event or a return that the store keeps in columns.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Peeked<'a> {
    /// `jid`, if it is text.
    pub jid: Option<&'a str>,
    /// `id`: the minion.
    pub id: Option<&'a str>,
    /// `fun`, if it is one function.
    pub fun: Option<&'a str>,
    /// `cmd`: `_return` in what a master fires, `publish` in a load.
    pub cmd: Option<&'a str>,
    /// `retcode`, if it is one integer.
    pub retcode: Option<i64>,
    /// `success`, if it is a truth.
    pub success: Option<bool>,
    /// Is there a `return`?
    pub has_return: bool,
    /// The text of `_stamp`, which the firing of an event adds.
    pub stamp: Option<&'a [u8]>,
    /// The msgpack of `return`, `retcode` and `success`: what was answered.
    pub answer: [&'a [u8]; 3],
}

/// A name worth a column; a longer text stays in the body alone.
fn name(value: &[u8]) -> Option<&str> {
    as_text(value).filter(|text| text.len() <= NAME_BYTES_MAX)
}

/// Walks over a stored msgpack map once. All empty for a value of another type. Values that Salt's codec cannot read,
/// which stores of earlier releases hold, are not an error.
pub fn peek(map: &[u8]) -> Peeked<'_> {
    peek_next::<false>(&mut Reader::new(map)).unwrap_or_default()
}

/// As [`peek`], of a value on its way into the store: the same walk checks that Salt's codec can read all of it.
pub fn peek_checked(value: &[u8]) -> Result<Peeked<'_>, Unreadable> {
    let mut reader = Reader::new(value);
    let seen = peek_next::<true>(&mut reader)?;
    if reader.rest().is_empty() { Ok(seen) } else { Err(Unreadable::Trailing) }
}

/// Peeks into the value that comes next.
fn peek_next<'a, const CHECKED: bool>(reader: &mut Reader<'a>) -> Result<Peeked<'a>, Unreadable> {
    let mut seen = Peeked::default();
    let start = *reader;
    let Ok(pairs) = reader.map() else {
        *reader = start;
        if CHECKED {
            checked_value(reader, MSGPACK_DEPTH_MAX)?
        } else {
            reader.value()?
        };
        return Ok(seen);
    };
    for _ in 0..pairs {
        let (key, value) = if CHECKED {
            (checked_key(reader)?, checked_value(reader, MSGPACK_DEPTH_MAX - 1)?)
        } else {
            (reader.value()?, reader.value()?)
        };
        // By length first: most keys are told apart by it, without a look at their bytes.
        let key = text_bytes(key);
        match key.len() {
            2 if key == b"id" => seen.id = name(value),
            3 if key == b"jid" => seen.jid = name(value),
            3 if key == b"fun" => seen.fun = name(value),
            3 if key == b"cmd" => seen.cmd = as_text(value),
            6 if key == b"return" => (seen.has_return, seen.answer[0]) = (true, value),
            6 if key == b"_stamp" => seen.stamp = Some(text_bytes(value)),
            7 if key == b"retcode" => (seen.retcode, seen.answer[1]) = (as_int(value), value),
            7 if key == b"success" => (seen.success, seen.answer[2]) = (as_bool(value), value),
            _ => {}
        }
    }
    Ok(seen)
}

/// The bytes of a text; nothing for another value.
fn text_bytes(value: &[u8]) -> &[u8] {
    match value.split_first() {
        Some((0xa0..=0xbf, text)) => text,
        _ => Reader::new(value).bytes().unwrap_or_default(),
    }
}

/// An event in an `event_return` batch: a map with `tag` and `data`.
#[derive(Debug, Clone, Copy)]
pub struct Fired<'a> {
    tag: &'a [u8],
    data: &'a [u8],
    /// When it was fired, if the element says so: what is imported has times of its own.
    pub at: Option<Micros>,
    seen: Result<Peeked<'a>, Unreadable>,
}

/// Reads an array of events in one walk. `None` stands for an element without tag or data; an error ends it.
pub fn fired(array: &[u8]) -> impl Iterator<Item = Result<Option<Fired<'_>>, DecodeError>> {
    let mut reader = Reader::new(array);
    let count = reader.array().unwrap_or(0);
    (0..count).map(move |_| next_fired(&mut reader))
}

fn next_fired<'a>(reader: &mut Reader<'a>) -> Result<Option<Fired<'a>>, DecodeError> {
    let start = *reader;
    let Ok(pairs) = reader.map() else {
        *reader = start;
        reader.value()?;
        return Ok(None);
    };
    let (mut tag, mut data, mut at) = (None, None, None);
    for _ in 0..pairs {
        match text_bytes(reader.value()?) {
            b"tag" => tag = Reader::new(reader.value()?).bytes().ok(),
            b"at" => at = as_int(reader.value()?).map(Micros),
            b"data" => {
                let start = *reader;
                let seen = peek_next::<true>(reader);
                if seen.is_err() {
                    // The elements behind it are read all the same.
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
    Ok(tag.zip(data).map(|(tag, (data, seen))| Fired { tag, data, at, seen }))
}

impl<'a> Fired<'a> {
    /// The event.
    pub fn event(&self, source: Source, at: Micros) -> Event<'a> {
        event_of(self.tag, self.data, self.seen, source, at)
    }
}

/// How the data of an event is made. Salt fires maps; the bus itself checks nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    /// A map.
    Map,
    /// Another value.
    NoMap,
    /// Not a value that Salt's codec reads. Such an event is not stored.
    Unreadable(Unreadable),
}

/// An event as a door sees it.
#[derive(Debug, Clone, Copy)]
pub struct Event<'a> {
    /// What is to be stored.
    pub entry: Entry<'a>,
    /// What it is recognised by.
    pub prints: Prints,
    /// The text of its `_stamp`.
    pub stamp: Option<&'a [u8]>,
    /// How its data is made.
    pub form: Form,
}

/// Reads an event that came as tag and data.
pub fn read_event<'a>(tag: &'a [u8], data: &'a [u8], source: Source, at: Micros) -> Event<'a> {
    event_of(tag, data, peek_checked(data), source, at)
}

fn event_of<'a>(
    tag: &'a [u8],
    data: &'a [u8],
    seen: Result<Peeked<'a>, Unreadable>,
    source: Source,
    at: Micros,
) -> Event<'a> {
    let form = match seen {
        Ok(_) if Reader::new(data).map().is_ok() => Form::Map,
        Ok(_) => Form::NoMap,
        Err(why) => Form::Unreadable(why),
    };
    let seen = seen.unwrap_or_default();
    let (entry, prints) = entry_of(tag, data, &seen, source, at);
    Event { entry, prints, stamp: seen.stamp, form }
}

/// What an entry is recognised by; `answer` is that of [`Peeked`].
pub fn prints(entry: &Entry<'_>, answer: [&[u8]; 3]) -> Prints {
    let seed = secret_seed();
    // What has no tag is told apart by its kind.
    let of_kind = seed ^ if entry.tag.is_empty() { u64::from(entry.kind as u8) + 1 } else { 0 };
    let whole = chained(of_kind, [entry.tag, entry.jid.as_bytes(), entry.body]);
    if entry.kind != Kind::Return {
        return Prints { whole, ..Prints::default() };
    }
    let asked = chained(seed, [entry.jid.as_bytes(), entry.minion.as_bytes()]);
    Prints { whole, asked, answer: chained(seed, answer) }
}

/// As [`prints`], of an entry whose body was not peeked into.
pub fn prints_of(entry: &Entry<'_>) -> Prints {
    prints(entry, if entry.kind == Kind::Return { peek(entry.body).answer } else { [b""; 3] })
}

impl Peeked<'_> {
    /// The flags of a return.
    pub fn flags(&self) -> Flags {
        let mut flags = Flags::default();
        if let Some(success) = self.success {
            flags = flags.with(Flags::SUCCESS_KNOWN);
            if success {
                flags = flags.with(Flags::SUCCESS);
            }
        }
        if self.retcode.is_some() {
            flags = flags.with(Flags::RETCODE_KNOWN);
        }
        flags
    }
}

/// The entry for an event, whichever door it came by.
pub fn event_entry<'a>(tag: &'a [u8], data: &'a [u8], source: Source, at: Micros) -> Entry<'a> {
    read_event(tag, data, source, at).entry
}

/// As [`event_entry`], with its prints.
pub fn printed_entry<'a>(tag: &'a [u8], data: &'a [u8], source: Source, at: Micros) -> (Entry<'a>, Prints) {
    let event = read_event(tag, data, source, at);
    (event.entry, event.prints)
}

fn entry_of<'a>(
    tag: &'a [u8],
    data: &'a [u8],
    seen: &Peeked<'a>,
    source: Source,
    at: Micros,
) -> (Entry<'a>, Prints) {
    let job = job_tag(tag);
    let kind = match job {
        Some(JobTag { of_minions: true, about: "new", .. }) => Kind::JobNew,
        // A minion may fire any tag it likes; an answer is what says itself whose answer to which job it is.
        Some(JobTag { of_minions: true, about: "ret", jid, minion })
            if !minion.is_empty() && seen.has_return && seen.id == Some(minion) && seen.jid == Some(jid) =>
        {
            Kind::Return
        }
        _ => Kind::Event,
    };
    let minion = match job {
        Some(job) if !job.minion.is_empty() => job.minion,
        Some(_) => "",
        None => minion_of(tag).or(seen.id).unwrap_or(""),
    };
    let entry = Entry {
        kind,
        source,
        flags: seen.flags().with(Flags::ON_BUS),
        at,
        tag,
        jid: job.map_or("", |job| job.jid),
        minion,
        fun: seen.fun.unwrap_or(""),
        retcode: seen.retcode.unwrap_or(0),
        body: data,
    };
    (entry, prints(&entry, seen.answer))
}

/// The minion that sent an event, if the master put it there: it does so where it fires the whole of what a minion sent, after it has
/// checked who that is. A list of events in one message is fired without it, and so is what others fire.
pub fn authenticated(data: &[u8]) -> Option<&str> {
    let seen = peek(data);
    seen.id.filter(|_| matches!(seen.cmd, Some("_minion_event" | "_return")))
}

/// The minion in `salt/minion/<id>/start`, `salt/beacon/<id>/..`, `minion/refresh/<id>`.
fn minion_of(tag: &[u8]) -> Option<&str> {
    let tag = std::str::from_utf8(tag).ok()?;
    let rest =
        ["salt/minion/", "salt/beacon/", "minion/refresh/"].iter().find_map(|p| tag.strip_prefix(p))?;
    rest.split('/').next().filter(|id| !id.is_empty())
}

#[cfg(test)]
mod tests {
    use super::super::msgpack;
    use super::*;

    #[test]
    fn the_first_pair_of_newlines_ends_the_tag() {
        assert_eq!(split(b"a/b\n\n\x81\xa1x\xa2\n\n"), Some((&b"a/b"[..], &b"\x81\xa1x\xa2\n\n"[..])));
        assert_eq!(split(b"\n\n\x80"), None);
        assert_eq!(split(b"a/b\n"), None);
        assert_eq!(split(b"a\n\n"), Some((&b"a"[..], &b""[..])));
    }

    #[test]
    fn a_stamp_takes_the_place_of_another_or_comes_last() {
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
    fn tags_of_jobs_tell_jid_and_minion() {
        let check = |tag: &str, expected: Option<(&str, &str, &str)>| {
            let got = job_tag(tag.as_bytes()).map(|t| (t.jid, t.about, t.minion));
            assert_eq!(got, expected, "{tag}");
        };
        check("salt/job/20261121/new", Some(("20261121", "new", "")));
        check("salt/job/20261121/ret/web1", Some(("20261121", "ret", "web1")));
        check("salt/job/20261121/ret/a/b", Some(("20261121", "ret", "a/b")));
        check("salt/job/20261121/prog/web1/3", Some(("20261121", "prog", "web1")));
        check("salt/job/20261121/sub/web1/error/state.sls", Some(("20261121", "sub", "web1")));
        check("salt/run/20261121/ret", Some(("20261121", "ret", "")));
        check("salt/job/error", None);
        check("salt/job//new", None);
        check("salt/auth", None);
        check("20261121030955505683", None);
    }

    #[test]
    fn a_return_event_shows_its_columns() {
        let mut w = msgpack::Writer::new();
        w.map(7).str("fun").str("test.ping").str("retcode").int(2).str("success").bool(false);
        w.str("return").map(0).int(7).nil().str("id").str("web1").str("jid").str("1");
        let data = w.into_bytes();
        let entry = event_entry(b"salt/job/1/ret/web1", &data, Source::Bus, Micros(9));
        assert_eq!(
            (entry.kind, entry.jid, entry.minion, entry.fun),
            (Kind::Return, "1", "web1", "test.ping")
        );
        assert!(entry.flags.has(Flags::ON_BUS) && entry.flags.failed(entry.retcode));
    }

    #[test]
    fn an_event_that_is_nobodys_answer_is_just_an_event() {
        let event = |id: &str, jid: &str, answer: &str| {
            let mut w = msgpack::Writer::new();
            w.map(3).str("id").str(id).str("jid").str(jid).str(answer).nil();
            event_entry(b"salt/job/1/ret/web1", &w.into_bytes(), Source::Bus, Micros(0)).kind
        };
        assert_eq!(event("web1", "1", "return"), Kind::Return);
        assert_eq!(event("web2", "1", "return"), Kind::Event);
        assert_eq!(event("web1", "2", "return"), Kind::Event);
        assert_eq!(event("web1", "1", "other"), Kind::Event);
    }

    #[test]
    fn minions_are_known_from_tag_or_data() {
        let mut w = msgpack::Writer::new();
        w.map(1).str("id").str("db1");
        let data = w.into_bytes();
        let minion = |tag: &str| event_entry(tag.as_bytes(), &data, Source::Bus, Micros(0)).minion.to_owned();
        assert_eq!(minion("salt/beacon/web1/status/2026"), "web1");
        assert_eq!(minion("salt/auth"), "db1");
        assert_eq!(minion("salt/job/1/new"), "");
    }
}
