//! The secret keys of Salt masters: detection in events, search, and blanking.
//!
//! A master accepts every command from a peer with the key in its key file (`.root_key` in its `cachedir`). `salt-run reactor.list`
//! and similar commands fire that key on the event bus, visible to every subscriber.

use std::hint::black_box;
use std::sync::LazyLock;

use memchr::memmem;
use regex::bytes::Regex;

use super::entry::{Entry, Names};
use saltcellar_base::limits::MASTER_KEYS_MAX;

/// Replaces a redacted value.
pub const REDACTED: &str = "[redacted]";

/// Part of the tag of each request to the reactor (`salt-run reactor.*`), whose data contains the master's key.
pub const MANAGE_TAG: &str = "salt/reactors/manage";

/// Minimum length of a key; shorter key files are ignored: Salt's keys have 76 bytes, and a short text can occur by chance.
const KEY_BYTES_MIN: usize = 16;

/// Whether the data of an event with this tag contains a master's key.
pub fn is_manage_tag(tag: &[u8]) -> bool {
    static FINDER: LazyLock<memmem::Finder<'static>> =
        LazyLock::new(|| memmem::Finder::new(MANAGE_TAG));
    FINDER.find(tag).is_some()
}

/// Compares a given key with the right one in constant time.
pub fn same_key(given: &[u8], right: &[u8]) -> bool {
    // No early return: the duration must not reveal where the first difference is.
    let mut difference = u8::from(given.len() != right.len());
    for (one, other) in given.iter().zip(right) {
        difference |= black_box(one ^ other);
    }
    black_box(difference) == 0 && !right.is_empty()
}

/// Known keys, compiled for searching.
#[derive(Debug, Clone, Default)]
pub struct KeyTexts {
    keys: Vec<Vec<u8>>,
    left_out: usize,
    finder: Option<Regex>,
}

impl KeyTexts {
    /// The distinct keys of sufficient length, at most [`MASTER_KEYS_MAX`]; [`Self::left_out`]
    /// counts the rest.
    pub fn new(keys: impl IntoIterator<Item = Vec<u8>>) -> Self {
        let keys = keys.into_iter().map(|key| key.trim_ascii().to_vec());
        let mut keys: Vec<Vec<u8>> = keys.filter(|key| key.len() >= KEY_BYTES_MIN).collect();

        keys.sort_unstable();
        keys.dedup();
        let left_out = keys.len().saturating_sub(MASTER_KEYS_MAX);
        keys.truncate(MASTER_KEYS_MAX);

        // Byte by byte, because a key may contain characters with a meaning in expressions.
        let literal = |key: &Vec<u8>| {
            key.iter()
                .fold(String::new(), |text, byte| text + &format!("\\x{byte:02x}"))
        };

        let literals: Vec<_> = keys.iter().map(literal).collect();
        let finder =
            (!keys.is_empty()).then(|| Regex::new(&format!("(?-u:{})", literals.join("|"))));

        // An alternation of literals is valid, and a tenth of the size limit (a test).
        Self {
            keys,
            left_out,
            finder: finder.map(Result::unwrap),
        }
    }

    /// How many keys are searched for.
    #[expect(
        clippy::len_without_is_empty,
        reason = "it is shown, and not asked for emptiness"
    )]
    pub fn len(&self) -> usize {
        self.keys.len()
    }

    /// The number of keys that are not searched for.
    pub fn left_out(&self) -> usize {
        self.left_out
    }

    /// The keys that are searched for, sorted.
    pub fn keys(&self) -> &[Vec<u8>] {
        &self.keys
    }

    /// Whether any of the keys is in these bytes.
    pub fn occur_in(&self, bytes: &[u8]) -> bool {
        self.finder
            .as_ref()
            .is_some_and(|finder| finder.is_match(bytes))
    }

    /// Overwrites each occurrence with [`REDACTED`], padded to the length of the key, which keeps the format of the bytes
    /// valid. Returns the number of occurrences.
    pub fn blank(&self, bytes: &mut [u8]) -> usize {
        let Some(finder) = &self.finder else { return 0 };
        let found: Vec<_> = finder.find_iter(bytes).map(|found| found.range()).collect();
        for range in &found {
            for (to, from) in bytes
                .iter_mut()
                .take(range.end)
                .skip(range.start)
                .zip(filler())
            {
                *to = from;
            }
        }
        found.len()
    }
}

impl KeyTexts {
    /// The names of an entry without keys; `None` if they have none.
    pub fn blank_names(&self, entry: &Entry<'_>) -> Option<Box<Names>> {
        let texts = [
            entry.tag,
            entry.jid.as_bytes(),
            entry.minion.as_bytes(),
            entry.fun.as_bytes(),
        ];
        let has_key = |text: &[u8]| text.len() >= KEY_BYTES_MIN && self.occur_in(text);

        if self.finder.is_none() || !texts.into_iter().any(has_key) {
            return None;
        }

        let text = |text: &str| {
            let mut bytes = text.as_bytes().to_vec();
            self.blank(&mut bytes);
            // Lossy only if a key begins or ends within a character.
            String::from_utf8_lossy(&bytes).into_owned()
        };

        let mut names = Names::of(entry);
        self.blank(&mut names.tag);
        names.jid = text(entry.jid);
        names.minion = text(entry.minion);
        names.fun = text(entry.fun);
        Some(Box::new(names))
    }
}

fn filler() -> impl Iterator<Item = u8> {
    REDACTED.bytes().chain(std::iter::repeat(b'*'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_blanked_everywhere_and_other_bytes_are_kept() {
        let (one, two) = ([b'a'; 16], b"+/=.(x)*?[y]{3}|".to_vec());
        let keys = KeyTexts::new([
            one.to_vec(),
            two.clone(),
            b"short".to_vec(),
            Vec::new(),
            one.to_vec(),
        ]);
        assert_eq!(keys.len(), 2);
        let mut bytes = [b"x".as_slice(), &one, b"short", &two, &one, b"z"].concat();
        assert!(keys.occur_in(&bytes));
        assert_eq!(keys.blank(&mut bytes), 3);
        let blank = b"[redacted]******";
        assert_eq!(
            bytes,
            [b"x".as_slice(), blank, b"short", blank, blank, b"z"].concat()
        );
        assert!(!keys.occur_in(&bytes));
        assert_eq!(KeyTexts::default().blank(&mut bytes), 0);
    }

    #[test]
    fn keys_beyond_the_limit_are_counted() {
        let keys =
            |count: usize| KeyTexts::new((0..count).map(|n| format!("{n:076}").into_bytes()));
        let most = keys(MASTER_KEYS_MAX);
        assert_eq!((most.len(), most.left_out()), (MASTER_KEYS_MAX, 0));
        assert!(most.keys().iter().all(|key| most.occur_in(key)));
        let more = keys(MASTER_KEYS_MAX + 3);
        assert_eq!((more.len(), more.left_out()), (MASTER_KEYS_MAX, 3));
    }

    #[test]
    fn only_the_whole_key_matches() {
        let check =
            |given: &[u8], right: &[u8], expected| assert_eq!(same_key(given, right), expected);
        check(b"the key", b"the key", true);
        check(b"the kez", b"the key", false);
        check(b"the ke", b"the key", false);
        check(b"the key\n", b"the key", false);
        check(b"", b"the key", false);
        check(b"", b"", false);
    }
}
