//! Access to a field of an event's bytes without parsing the whole.

use crate::wire::msgpack::{Reader, as_text};

/// The string under the key `user` of a mapping; `None` if the bytes are not a mapping.
///
/// Checked for each event, therefore it must be cheap.
#[expect(
    clippy::option_option,
    reason = "no mapping, and a mapping without such a key, are two answers"
)]
pub(in crate::reactor) fn user_of(bytes: &[u8]) -> Option<Option<&str>> {
    let mut reader = Reader::new(bytes);
    let mut user = None;
    for _ in 0..reader.map().ok()? {
        let key = reader.value().ok()?;
        let value = reader.value().ok()?;

        // To the end, because the last of equal keys counts in Python.
        if as_text(key) == Some("user") {
            user = as_text(value);
        }
    }
    Some(user)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_user_is_found_only_at_the_top_level() {
        assert_eq!(user_of(b"\x81\xa4user\xa7Reactor"), Some(Some("Reactor")));
        assert_eq!(user_of(b"\x82\xa1a\x81\xa4user\xa1x\x01\xc0"), Some(None));
        assert_eq!(user_of(b"\x80"), Some(None));
        assert_eq!(user_of(b"\x81\xa4user\x05"), Some(None));
        assert_eq!(user_of(b"\x91\x01"), None);
        assert_eq!(user_of(b"\x81\xa4user"), None);
        assert_eq!(user_of(b""), None);
    }
}
