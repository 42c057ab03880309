//! Values in responses as text.

use serde_json::Value as Json;

use super::nested::leaf;
use crate::wire::msgpack::Stored;

/// A value, or nothing.
pub(in crate::cli) fn or_empty<T: ToString>(value: Option<T>) -> String {
    value.map(|value| value.to_string()).unwrap_or_default()
}

/// The JSON form of a value of Salt.
pub(in crate::cli) fn value(stored: &Stored) -> Json {
    // The daemon sends whole values; one that is nested too deep shows as its error.
    stored
        .json()
        .unwrap_or_else(|error| format!("unreadable: {error}").into())
}

/// A value of Salt on one line, see [`leaf`].
pub(in crate::cli) fn line_of(stored: &Stored) -> String {
    leaf(&value(stored))
}

/// The lines of a list or of a single value of Salt, joined with commas.
pub(in crate::cli) fn joined(stored: &Stored) -> String {
    match value(stored) {
        Json::Array(items) => items.iter().map(leaf).collect::<Vec<_>>().join(","),
        one => leaf(&one),
    }
}
