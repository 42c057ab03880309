//! What entries of the log say about reactions.

use crate::reactor::master::REACTOR_USER;
use crate::wire::msgpack::{as_text, get};

/// True if the data names a reactor as its cause. As in Salt: `user` at the top level, compared
/// exactly.
pub(crate) fn is_by_reactor(body: &[u8]) -> bool {
    memchr::memmem::find(body, REACTOR_USER.as_bytes()).is_some()
        && get(body, "user").and_then(as_text) == Some(REACTOR_USER)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::msgpack::Writer;

    #[test]
    fn only_a_user_at_the_top_level_of_the_data_counts() {
        let is_reactor = |at_top: &str, below: &str| {
            let mut w = Writer::new();
            w.map(2)
                .str("user")
                .str(at_top)
                .str("data")
                .map(1)
                .str("user")
                .str(below);
            is_by_reactor(&w.into_bytes())
        };
        assert!(is_reactor("Reactor", "root"));
        assert!(
            !is_reactor("root", "Reactor")
                && !is_reactor("reactor", "")
                && !is_reactor("Reactor2", "")
        );
        assert!(!is_by_reactor(b"\xc1Reactor"));
    }
}
