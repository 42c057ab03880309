//! What entries of the log say about reactions.

use crate::model::{Location, ReactionFailure};
use crate::reactor::master::REACTOR_USER;
use crate::wire::msgpack::{as_bool, as_int, as_text, elements, get};

/// True if the data names a reactor as its cause. As in Salt: `user` at the top level, compared
/// exactly.
pub(crate) fn is_by_reactor(body: &[u8]) -> bool {
    memchr::memmem::find(body, REACTOR_USER.as_bytes()).is_some()
        && get(body, "user").and_then(as_text) == Some(REACTOR_USER)
}

/// The failures in the body of a record.
pub(crate) fn failures(body: &[u8]) -> Vec<ReactionFailure> {
    let one = |failure| {
        let text = |key| {
            get(failure, key)
                .and_then(as_text)
                .unwrap_or_default()
                .to_owned()
        };

        let line = get(failure, "line")
            .and_then(as_int)
            .and_then(|line| u32::try_from(line).ok());
        let rendered = get(failure, "rendered").and_then(as_bool).unwrap_or(false);

        ReactionFailure {
            at: Location {
                file: text("file"),
                line,
                rendered,
            },
            cause: text("cause"),
        }
    };

    elements(get(body, "failures").unwrap_or_default())
        .map(one)
        .collect()
}

/// The option of a rule for a record's `why`; `None` for other reasons.
pub(crate) fn option_of(why: &str) -> Option<&'static str> {
    match why {
        "once" => Some("once_per"),
        "quiet" => Some("debounce"),
        "rate" => Some("rate"),
        "budget" => Some("budget"),
        _ => None,
    }
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
