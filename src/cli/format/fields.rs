//! Fields of the maps in responses. An absent field is like null.

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

pub(in crate::cli) trait Fields {
    fn of(&self, name: &str) -> &Json;
    /// A value on one line, see [`leaf`].
    fn leaf(&self, name: &str) -> String;
    fn text(&self, name: &str) -> &str;
    fn number(&self, name: &str) -> u64;
    fn is(&self, name: &str) -> bool;
    fn list(&self, name: &str) -> &[Json];
    /// The lines of a list or of a single value, joined with commas.
    fn joined(&self, name: &str) -> String;
}

impl Fields for Json {
    fn of(&self, name: &str) -> &Json {
        self.get(name).unwrap_or(&Json::Null)
    }

    fn leaf(&self, name: &str) -> String {
        leaf(self.of(name))
    }

    fn text(&self, name: &str) -> &str {
        self.of(name).as_str().unwrap_or_default()
    }

    fn number(&self, name: &str) -> u64 {
        self.of(name).as_u64().unwrap_or(0)
    }

    fn is(&self, name: &str) -> bool {
        self.of(name) == true
    }

    fn list(&self, name: &str) -> &[Json] {
        self.of(name).as_array().map_or(&[], Vec::as_slice)
    }

    fn joined(&self, name: &str) -> String {
        match self.of(name) {
            Json::Array(items) => items.iter().map(leaf).collect::<Vec<_>>().join(","),
            one => leaf(one),
        }
    }
}
