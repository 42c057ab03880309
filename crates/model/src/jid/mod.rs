//! Job ids.
//!
//! A jid is text: 20 digits `YYYYMMDDhhmmssffffff` in UTC, with `unique_jid` followed by `_<pid>`. A
//! client may pass any other text (`salt/utils/jid.py`; accepted by 3006 to 3008). Twenty
//! digits do not fit a `u64`, so an index key is built from the time.

use std::fmt;

use xxhash_rust::xxh3::xxh3_128;

use saltcellar_base::clock::{Micros, digits};

/// A fixed-size key for a jid that sorts by time.
///
/// ```text
/// bit 127     0: built from a time 1: any other text
/// 126..64     microseconds         the upper 127 bits of xxh3-128 of the text
/// 63..0       0, or 1 + pid        (two strings may share a key: compare the text)
/// ```
///
/// # Invariant
///
/// A key built from a time determines its jid ([`JidKey::text`]); other keys only find candidates.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct JidKey(pub u128);

const ODD: u128 = 1 << 127;

impl JidKey {
    /// The key of any string: made from the time in it, or else from its hash.
    pub fn of(jid: &str) -> Self {
        stamped(jid).unwrap_or_else(|| Self(ODD | (xxh3_128(jid.as_bytes()) >> 1)))
    }

    /// The key of a jid made at `at`, by process `pid` if the jid carries one.
    pub fn from_time(at: Micros, pid: Option<u32>) -> Self {
        let us = u128::from(u64::try_from(at.0).unwrap_or(0));
        Self(us << 64 | pid.map_or(0, |pid| u128::from(pid) + 1))
    }

    /// The time in the jid, if any.
    pub fn time(self) -> Option<Micros> {
        (self.0 & ODD == 0).then(|| Micros(i64::try_from(self.0 >> 64).expect("63 bits")))
    }

    /// The pid at the end of the jid, if any.
    pub fn pid(self) -> Option<u32> {
        self.time()?;
        u64::try_from(self.0 & u128::from(u64::MAX))
            .ok()?
            .checked_sub(1)?
            .try_into()
            .ok()
    }

    /// The jid, if the key is built from a time.
    pub fn text(self) -> Option<String> {
        let base = stamped_jid(self.time()?);
        Some(match self.pid() {
            Some(pid) => format!("{base}_{pid}"),
            None => base,
        })
    }
}

/// A jid in the space of its key. Most jids are spelled from their key: lists of many rows then
/// need no string for each.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Jid {
    key: JidKey,
    /// The text, unless the key determines it.
    free: Option<Box<str>>,
}

impl Jid {
    /// The jid with this text.
    pub fn of(text: &str) -> Self {
        let key = JidKey::of(text);
        let free = key.time().is_none().then(|| text.into());
        Self { key, free }
    }

    /// The jid of a key that determines it.
    pub fn of_key(key: JidKey) -> Option<Self> {
        key.time().map(|_| Self { key, free: None })
    }

    /// Its key.
    pub fn key(&self) -> JidKey {
        self.key
    }
}

impl fmt::Display for Jid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.free {
            Some(text) => f.pad(text),
            None => f.pad(&self.key.text().expect("a key with a time")),
        }
    }
}

/// A jid in Salt's format for an instant (`gen_jid` in `salt/utils/jid.py`).
///
/// For a time that [`Micros::utc`] cannot represent, it is a longer number, which contains no time.
pub fn stamped_jid(at: Micros) -> String {
    let mut jid = at.iso();
    jid.retain(|c| c.is_ascii_digit());
    jid
}

/// Formats many jids faster: jids of the same second share their first digits.
#[derive(Debug)]
pub struct JidSpeller {
    second: Option<i64>,
    digits: [u8; 20],
}

impl Default for JidSpeller {
    fn default() -> Self {
        Self {
            second: None,
            digits: [b'0'; 20],
        }
    }
}

impl JidSpeller {
    /// The twenty digits of a time.
    pub fn spell(&mut self, at: Micros) -> &[u8; 20] {
        let second = at.0.div_euclid(1_000_000);
        if self.second != Some(second) {
            self.second = Some(second);
            self.digits
                .iter_mut()
                .zip(stamped_jid(at).bytes())
                .for_each(|(to, from)| *to = from);
        }

        let mut rest = at.0.rem_euclid(1_000_000).unsigned_abs();
        for digit in self.digits.iter_mut().rev().take(6) {
            *digit = b'0' + u8::try_from(rest % 10).expect("a digit");
            rest /= 10;
        }

        &self.digits
    }
}

/// The time of a jid in Salt's format (`jid_to_time`): `2026, Nov 21 03:10:37.359479`; empty for a jid of
/// another form.
pub fn start_time(jid: &str) -> String {
    let at = JidKey::of(jid).time().and_then(Micros::utc);
    at.map_or_else(String::new, |at| {
        at.strftime("%Y, %b %d %H:%M:%S.%6f").to_string()
    })
}

fn stamped(jid: &str) -> Option<JidKey> {
    let field = |from: usize, to: usize| digits(jid.as_bytes().get(from..to)?);
    let (year, month, day) = (field(0, 4)?, field(4, 6)?, field(6, 8)?);
    let (hour, minute, second) = (field(8, 10)?, field(10, 12)?, field(12, 14)?);

    let at = Micros::of_utc([year, month, day, hour, minute, second, field(14, 20)?])?;

    // The key cannot represent times before 1970, so such a jid counts as free text.
    if at.0 < 0 {
        return None;
    }

    let rest = jid.get(20..)?;
    if rest.is_empty() {
        return Some(JidKey::from_time(at, None));
    }

    // Accept only canonical numbers: `_007` is free text.
    let pid: u32 = rest.strip_prefix('_')?.parse().ok()?;
    (pid.to_string() == rest.get(1..)?).then(|| JidKey::from_time(at, Some(pid)))
}

#[cfg(test)]
mod tests;
