//! The parsed answer of one minion: its value, and whether it failed.
//!
//! Three forms occur:
//!
//! - the return of a minion: `return`, `retcode` and `success` are in its map;
//! - that of a job with several functions: `fun` is a list, `return`, `retcode` and `success` are maps by function;
//! - the result of a runner or a wheel, whose `id` is `<master>_master`: `return` is the whole end event, which contains
//!   the value, `success` and `fun_args`. The value may contain a retcode (orchestrations).

use crate::model::Flags;
use crate::store::StoredEntry;
use crate::wire::msgpack::{self, Reader, as_bool, as_int, as_text, is_nil};
use crate::wire::salt_event::peek;

/// One minion's answer, with later differing ones.
#[derive(Debug, Clone)]
pub(crate) struct Answer {
    /// The answer that counts.
    pub(crate) entry: StoredEntry,
    /// Number of differing other answers; beyond those in `others`, every entry counts.
    pub(crate) duplicates: u64,
    /// The first differing answers, in the order of the log.
    pub(crate) others: Vec<StoredEntry>,
}

/// The fields of an answer. Values are msgpack as received.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Outcome<'a> {
    /// The function's result.
    pub(crate) value: Option<&'a [u8]>,
    /// `retcode`: an integer, or a map by function.
    pub(crate) retcode: Option<&'a [u8]>,
    /// `success`: a bool, or a map by function.
    pub(crate) success: Option<&'a [u8]>,
    /// `fun`: text, or a list.
    pub(crate) fun: Option<&'a [u8]>,
    pub(crate) fun_args: Option<&'a [u8]>,
    /// The requested outputter.
    pub(crate) out: Option<&'a [u8]>,
    /// It is the result of a runner or wheel.
    pub(crate) of_master: bool,
}

impl<'a> Outcome<'a> {
    /// Parses a return's map.
    pub(crate) fn of(body: &'a [u8], jid: &str) -> Self {
        let mut seen = Self::read(body);
        let Some(inner) = seen.value.filter(|value| is_end_of(value, jid)) else {
            return seen;
        };
        let inner = Self::read(inner);
        let in_value = |key| inner.value.and_then(|value| msgpack::get(value, key));
        let retcode = inner
            .retcode
            .or_else(|| in_value("retcode").filter(|code| as_int(code).is_some()));
        seen.fun = inner.fun.or(seen.fun);
        let out = inner.out.or_else(|| in_value("outputter")).or(seen.out);
        Self {
            retcode: retcode.or(seen.retcode),
            out,
            of_master: true,
            fun: seen.fun,
            ..inner
        }
    }

    fn read(map: &'a [u8]) -> Self {
        let mut seen = Self::default();
        for (key, value) in msgpack::pairs(map) {
            match as_text(key) {
                Some("return") => seen.value = Some(value),
                Some("retcode") => seen.retcode = Some(value),
                Some("success") => seen.success = Some(value),
                Some("fun") => seen.fun = Some(value),
                Some("fun_args") => seen.fun_args = Some(value),
                Some("out") => seen.out = Some(value),
                _ => {}
            }
        }
        seen
    }

    /// Whether `success` is false or the retcode is not zero, for any of several functions.
    pub(crate) fn failed(&self) -> bool {
        let unsuccessful = |value: &[u8]| as_bool(value) == Some(false);
        let nonzero = |value: &[u8]| as_int(value).is_some_and(|code| code != 0);
        any(self.success, unsuccessful) || any(self.retcode, nonzero)
    }

    /// The exit code; of several functions the first that is not zero.
    pub(crate) fn code(&self) -> Option<i64> {
        let code = self.retcode?;
        as_int(code).or_else(|| {
            let codes = || msgpack::pairs(code).filter_map(|(_, code)| as_int(code));
            codes().find(|code| *code != 0).or_else(|| codes().next())
        })
    }
}

/// Whether a value is the end event of a runner or wheel of that job.
fn is_end_of(value: &[u8], jid: &str) -> bool {
    let text = |key| msgpack::get(value, key);
    text("jid").and_then(as_text) == Some(jid) && text("fun").is_some() && text("return").is_some()
}

fn any(value: Option<&[u8]>, test: impl Fn(&[u8]) -> bool) -> bool {
    value.is_some_and(|value| test(value) || msgpack::pairs(value).any(|(_, value)| test(value)))
}

/// Whether the body is needed to determine failure: columns are not sufficient for several functions,
/// runners and wheels.
pub(super) fn needs_body(entry: &StoredEntry) -> bool {
    entry.fun.is_empty()
        || ["runner.", "wheel."]
            .iter()
            .any(|kind| entry.fun.starts_with(kind))
}

impl Answer {
    pub(super) fn new(entry: StoredEntry) -> Self {
        Self {
            entry,
            duplicates: 0,
            others: Vec::new(),
        }
    }

    /// A value of the return's map, as msgpack.
    pub(crate) fn get(&self, key: &str) -> Option<&[u8]> {
        msgpack::get(&self.entry.body, key)
    }

    /// Whether it was seen on a bus only, so that any program may have fired it. False for entries of releases up to 0.1, which did not
    /// record it.
    pub(crate) fn is_bus_only(&self) -> bool {
        is_bus_only(&self.entry)
    }

    pub(crate) fn outcome(&self) -> Outcome<'_> {
        Outcome::of(&self.entry.body, &self.entry.jid)
    }

    fn by_body(&self) -> bool {
        needs_body(&self.entry) && !self.entry.body.is_empty()
    }

    pub(crate) fn failed(&self) -> bool {
        self.entry.flags.failed(self.entry.retcode) || self.by_body() && self.outcome().failed()
    }

    pub(crate) fn code(&self) -> Option<i64> {
        if self.by_body() {
            return self.outcome().code();
        }
        self.entry
            .flags
            .has(Flags::RETCODE_KNOWN)
            .then_some(self.entry.retcode)
    }
}

/// Whether a return was seen on a bus only when it was stored.
pub(super) fn is_bus_only(entry: &StoredEntry) -> bool {
    entry.flags.has(Flags::UNCONFIRMED)
}

/// Whether two answers have the same content.
pub(super) fn same(one: &StoredEntry, other: &StoredEntry) -> bool {
    peek(&one.body).answer == peek(&other.body).answer
}

/// Whether a value is empty: nil, false, no elements, no text.
pub(crate) fn is_empty(value: &[u8]) -> bool {
    use msgpack::Head;
    let nothing = matches!(
        Reader::new(value).head(),
        Ok(Head::Str(0) | Head::Bin(0) | Head::Array(0) | Head::Map(0) | Head::Bool(false))
    );
    value.is_empty() || is_nil(value) || nothing
}
