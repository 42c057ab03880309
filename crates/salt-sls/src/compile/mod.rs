//! Compiles the values of SLS files to low chunks as the reactor of Salt 3008: each file to high
//! data, then the high data of all files of an event to sorted chunks.
//!
//! ```text
//! yaml -> pad: high data of a file -> verify, chunks, graph: low chunks of an event
//! ```

mod chunks;
mod error;
mod graph;
mod number;
mod order;
mod pad;
mod verify;

use crate::value::{Map, Value};
use crate::yaml::load_shared;
pub use error::{FileError, Refused};

/// The high data of a rendered YAML file, with `path` as `__sls__`.
///
/// A list with an anchor is one object, as in Salt: each of its places gets the functions of all.
/// The result may therefore differ from `pad(yaml::load(text)?, path)`.
pub fn high(text: &str, path: &str) -> Result<Map, FileError> {
    let (value, sharing) = load_shared(text)?;
    if value.truthy() {
        pad::pad(value, sharing.as_ref(), path)
    } else {
        Ok(Map::default())
    }
}

/// The high data of values from another renderer.
pub fn pad(value: Value, path: &str) -> Result<Map, FileError> {
    pad::pad(value, None, path)
}

/// Sorted low chunks from the high data of all files of an event, in the order of references.
///
/// An ID of a later file replaces an earlier one completely.
pub fn low(files: Vec<Map>) -> Result<Vec<Map>, Refused> {
    let mut files = files.into_iter();
    let mut high = files.next().unwrap_or_default();
    for file in files {
        high.extend(file);
    }

    let errors = verify::verify(&high)?;
    if !errors.is_empty() {
        return Err(Refused::Errors(errors));
    }

    let mut low = graph::order(chunks::chunks(high)?)?;

    // `cmd` is Salt's old name of `local`.
    for chunk in &mut low {
        if let Some(state) = chunk
            .get_mut("state")
            .filter(|state| state.as_str() == Some("cmd"))
        {
            *state = "local".into();
        }
    }

    Ok(low)
}
