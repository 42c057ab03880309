//! Parses JSON that comes from outside.
//!
//! # Invariant
//!
//! Parsing recurses no deeper than [`JSON_DEPTH_MAX`].

use serde::Deserialize as _;
use serde_json::Value as Json;

use saltcellar_base::limits::JSON_DEPTH_MAX;

/// Why a string is not JSON that can be read.
#[derive(Debug, thiserror::Error)]
pub enum JsonError {
    /// Reading deeper JSON could exhaust a thread's stack.
    #[error("nested deeper than {JSON_DEPTH_MAX} levels")]
    Depth,
    /// It is not JSON.
    #[error(transparent)]
    Syntax(#[from] serde_json::Error),
}

/// Parses JSON as deep as the forms of stored values, which is deeper than serde_json allows by itself.
pub fn parse(text: &[u8]) -> Result<Json, JsonError> {
    // Before parsing, because the parser's own limit is switched off below.
    if depth_of(text) > JSON_DEPTH_MAX {
        return Err(JsonError::Depth);
    }

    let mut reader = serde_json::Deserializer::from_slice(text);
    reader.disable_recursion_limit();
    let json = Json::deserialize(&mut reader)?;
    reader.end()?;
    Ok(json)
}

/// The nesting depth of JSON text; of other text, at least the depth up to its first error.
fn depth_of(text: &[u8]) -> usize {
    let mut depth = 0_usize;
    let mut deepest = 0;
    let (mut is_text, mut is_escaped) = (false, false);

    for byte in text {
        match byte {
            _ if is_escaped => is_escaped = false,
            b'\\' if is_text => is_escaped = true,
            b'"' => is_text = !is_text,
            // Brackets in a string are not structure.
            _ if is_text => {}
            b'[' | b'{' => {
                depth += 1;
                deepest = deepest.max(depth);
            }
            b']' | b'}' => depth = depth.saturating_sub(1),
            _ => {}
        }
    }

    deepest
}
