//! Positions of lists, which name the store that they are of.

use std::fmt::Display;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::model::SeqNo;
use crate::wire::call::CallError;

/// Where a list continues: `STORE:POSITION`. Positions are of one store: a store that was replaced
/// counts from 1 again, and the same number would be another entry.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(transparent)]
pub(crate) struct Cursor(String);

impl Cursor {
    pub(in crate::api) fn new(store: &str, position: impl Display) -> Self {
        Self(format!("{store}:{position}"))
    }

    /// As a string, for an address.
    pub(in crate::api) fn as_str(&self) -> &str {
        &self.0
    }

    /// The position in this store.
    pub(in crate::api) fn position(&self, store: &str) -> Result<&str, CallError> {
        position(&self.0, store)
    }

    /// The position in this store, which is a sequence number.
    pub(in crate::api) fn seq(&self, store: &str) -> Result<SeqNo, CallError> {
        seq(&self.0, store)
    }
}

/// The position in a cursor, or in the id of an event, of this store.
fn position<'a>(text: &'a str, store: &str) -> Result<&'a str, CallError> {
    match text.split_once(':') {
        // The id of a gap record, `STORE:gap:SEQ`, is a position as well.
        Some((of, position)) if of == store => Ok(position.trim_start_matches("gap:")),
        Some((of, _)) => Err(CallError::OtherStore(format!(
            "the cursor is of store {of:.40}, this is store {store}: start without a cursor"
        ))),
        None => Err(CallError::Argument(
            "a cursor has the form STORE:POSITION, as in `next` and in ids of events".to_owned(),
        )),
    }
}

/// The sequence number in a cursor, or in the id of an event, of this store.
pub(in crate::api) fn seq(text: &str, store: &str) -> Result<SeqNo, CallError> {
    let position = position(text, store)?;
    position
        .parse()
        .map(SeqNo)
        .map_err(|_| CallError::Argument(format!("{text:.60} is not a position among events")))
}
