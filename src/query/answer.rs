//! One minion's answer, read: what it returned, whether it failed.
//!
//! Three shapes occur (CONTRACT 2.2):
//!
//! - a minion's return: `return`, `retcode`, `success` stand in its map;
//! - that of a job with several functions: `fun` is a list, `return`, `retcode` and `success` are maps by function;
//! - the result of a runner or a wheel, whose `id` is `<master>_master`: `return` holds the whole event of its end, and
//!   its value, `success` and `fun_args` stand in there. A retcode may stand in the value (orchestrations).

use crate::model::Flags;
use crate::store::StoredEntry;
use crate::wire::msgpack::{self, Reader, as_bool, as_int, as_text, is_nil};
use crate::wire::salt_event::peek;

/// One minion's answer.
#[derive(Debug, Clone)]
pub struct Answer {
    /// The answer that counts.
    pub entry: StoredEntry,
    /// How many different other answers there are; beyond those in `others`, each entry counts.
    pub duplicates: u64,
    /// The first of those, in the order of the log.
    pub others: Vec<StoredEntry>,
}

/// What an answer says. Values are msgpack as they came.
#[derive(Debug, Clone, Copy, Default)]
pub struct Outcome<'a> {
    /// What the function gave.
    pub value: Option<&'a [u8]>,
    /// `retcode`: an integer, or a map by function.
    pub retcode: Option<&'a [u8]>,
    /// `success`: a bool, or a map by function.
    pub success: Option<&'a [u8]>,
    /// `fun`: text, or a list.
    pub fun: Option<&'a [u8]>,
    /// `fun_args`.
    pub fun_args: Option<&'a [u8]>,
    /// The outputter asked for.
    pub out: Option<&'a [u8]>,
    /// A runner or a wheel gave it.
    pub of_master: bool,
}

impl<'a> Outcome<'a> {
    /// Reads a return's map.
    pub fn of(body: &'a [u8], jid: &str) -> Self {
        let mut seen = Self::read(body);
        let Some(inner) = seen.value.filter(|value| is_end_of(value, jid)) else { return seen };
        let inner = Self::read(inner);
        let in_value = |key| inner.value.and_then(|value| msgpack::get(value, key));
        let retcode = inner.retcode.or_else(|| in_value("retcode").filter(|code| as_int(code).is_some()));
        seen.fun = inner.fun.or(seen.fun);
        let out = inner.out.or_else(|| in_value("outputter")).or(seen.out);
        Self { retcode: retcode.or(seen.retcode), out, of_master: true, fun: seen.fun, ..inner }
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

    /// It says that it failed, or its retcode is not zero; one of several functions is enough.
    pub fn failed(&self) -> bool {
        let says_no = |value: &[u8]| as_bool(value) == Some(false);
        let says_bad = |value: &[u8]| as_int(value).is_some_and(|code| code != 0);
        any(self.success, says_no) || any(self.retcode, says_bad)
    }

    /// Its exit code; of several functions the first that is not zero.
    pub fn code(&self) -> Option<i64> {
        let code = self.retcode?;
        as_int(code).or_else(|| {
            let codes = || msgpack::pairs(code).filter_map(|(_, code)| as_int(code));
            codes().find(|code| *code != 0).or_else(|| codes().next())
        })
    }
}

/// Is a value the event with which a runner or a wheel of that job ends?
fn is_end_of(value: &[u8], jid: &str) -> bool {
    let text = |key| msgpack::get(value, key);
    text("jid").and_then(as_text) == Some(jid) && text("fun").is_some() && text("return").is_some()
}

fn any(value: Option<&[u8]>, test: impl Fn(&[u8]) -> bool) -> bool {
    value.is_some_and(|value| test(value) || msgpack::pairs(value).any(|(_, value)| test(value)))
}

/// Does an entry's body have to be read to know whether it failed? Its columns do not tell for several functions, nor for
/// runners and wheels.
pub(super) fn tells_by_body(entry: &StoredEntry) -> bool {
    entry.fun.is_empty() || ["runner.", "wheel."].iter().any(|kind| entry.fun.starts_with(kind))
}

impl Answer {
    pub(super) fn new(entry: StoredEntry) -> Self {
        Self { entry, duplicates: 0, others: Vec::new() }
    }

    /// A value of the return's map, as msgpack.
    pub fn get(&self, key: &str) -> Option<&[u8]> {
        msgpack::get(&self.entry.body, key)
    }

    /// Was it on a bus alone, so that anybody may have fired it? False of what releases up to 0.1 stored: they did not
    /// record it.
    pub fn is_bus_only(&self) -> bool {
        is_bus_only(&self.entry)
    }

    /// What it says.
    pub fn outcome(&self) -> Outcome<'_> {
        Outcome::of(&self.entry.body, &self.entry.jid)
    }

    fn by_body(&self) -> bool {
        tells_by_body(&self.entry) && !self.entry.body.is_empty()
    }

    /// Did it fail?
    pub fn failed(&self) -> bool {
        self.entry.flags.failed(self.entry.retcode) || self.by_body() && self.outcome().failed()
    }

    /// Its exit code, if it says one.
    pub fn code(&self) -> Option<i64> {
        if self.by_body() {
            return self.outcome().code();
        }
        self.entry.flags.has(Flags::RETCODE_KNOWN).then_some(self.entry.retcode)
    }
}

/// Is a return known to have been on a bus alone when it was stored?
pub(super) fn is_bus_only(entry: &StoredEntry) -> bool {
    entry.flags.has(Flags::UNCONFIRMED)
}

/// Do two answers say the same?
pub(super) fn same(one: &StoredEntry, other: &StoredEntry) -> bool {
    peek(&one.body).answer == peek(&other.body).answer
}

/// Is there nothing in a value: nil, no elements, no text?
pub fn is_empty(value: &[u8]) -> bool {
    use msgpack::Head;
    let nothing = matches!(
        Reader::new(value).head(),
        Ok(Head::Str(0) | Head::Bin(0) | Head::Array(0) | Head::Map(0) | Head::Bool(false))
    );
    value.is_empty() || is_nil(value) || nothing
}
