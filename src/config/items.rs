//! Lists of mappings, such as rules, as a configuration file contains them.

use serde::ser::Error as _;
use serde::{Serialize, Serializer};
use serde_json::{Value as Json, json};

/// Writes a list of mappings without the fields that are not set.
pub(super) fn without_unset<T: Serialize, S: Serializer>(
    items: &[T],
    to: S,
) -> Result<S::Ok, S::Error> {
    let mut value = serde_json::to_value(items).map_err(S::Error::custom)?;
    remove_unset(&mut value);
    value.serialize(to)
}

fn remove_unset(value: &mut Json) {
    match value {
        Json::Array(items) => items.iter_mut().for_each(remove_unset),
        Json::Object(map) => {
            let is_unset = |value: &Json| {
                matches!(value, Json::Null | Json::Bool(false)) || *value == json!([])
            };
            map.retain(|_, value| !is_unset(value));
            map.values_mut().for_each(remove_unset);
        }
        _ => {}
    }
}
