//! A look into an event's bytes without making values of them.

use crate::wire::msgpack::{Reader, as_text};

/// The text under the key `user` of a mapping; none at all if the bytes are no mapping.
///
/// Salt asks this of every event, so it must not cost a tree.
#[expect(clippy::option_option, reason = "no mapping, and a mapping without such a key, are two answers")]
pub(super) fn user_of(bytes: &[u8]) -> Option<Option<&str>> {
    let mut reader = Reader::new(bytes);
    let mut user = None;
    for _ in 0..reader.map().ok()? {
        let key = reader.value().ok()?;
        let value = reader.value().ok()?;
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
    fn the_user_is_found_at_the_top_only() {
        assert_eq!(user_of(b"\x81\xa4user\xa7Reactor"), Some(Some("Reactor")));
        assert_eq!(user_of(b"\x82\xa1a\x81\xa4user\xa1x\x01\xc0"), Some(None));
        assert_eq!(user_of(b"\x80"), Some(None));
        assert_eq!(user_of(b"\x81\xa4user\x05"), Some(None));
        assert_eq!(user_of(b"\x91\x01"), None);
        assert_eq!(user_of(b"\x81\xa4user"), None);
        assert_eq!(user_of(b""), None);
    }
}
