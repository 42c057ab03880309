//! What has values among the settings: a kind, and how its values are written.

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::error::StoreError;

/// A kind of setting: a value for each of its names.
pub trait Setting: Serialize + DeserializeOwned {
    /// First part of the keys.
    const KIND: &'static str;

    /// The value on disk.
    fn encode(&self) -> Result<Vec<u8>, StoreError> {
        serde_json::to_vec(self).map_err(|_| StoreError::Broken("a setting that is not JSON"))
    }

    /// Reads a value.
    fn decode(value: &[u8]) -> Option<Self> {
        serde_json::from_slice(value).ok()
    }
}

/// The key of a name.
pub(super) fn key<T: Setting>(name: &str) -> String {
    format!("{}/{name}", T::KIND)
}
