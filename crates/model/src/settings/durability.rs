//! The durability of acknowledged entries.

use std::time::Duration;

use crate::word::{Word, words};

/// When an entry is acknowledged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Durability {
    /// After it is synced: no acknowledged entry is lost, even in a power loss.
    Durable,
    /// After it is written. A killed daemon loses nothing; a power loss costs the entries
    /// acknowledged in the last `within`, and during one sync.
    Written {
        /// Maximum time until the sync.
        within: Duration,
    },
}

words! {
    Durability: "durable, or written and a time from 1s to 60s",
        |text| match text.strip_prefix("written ") {
            Some(time) => {
                let within = Duration::parse(time.trim())?;
                (1..=60).contains(&within.as_secs()).then_some(Self::Written { within })
            }
            None => (text == "durable").then_some(Self::Durable),
        },
        |durability| match durability {
            Self::Durable => "durable".to_owned(),
            Self::Written { within } => format!("written {}", within.show().unwrap_or_default()),
        };
}
