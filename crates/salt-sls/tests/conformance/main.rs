//! What Salt 3008.3, Jinja2, PyYAML and Python made of the recorded inputs (`tests/data`), is what this crate makes of them.

#![expect(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a test may fail by panicking"
)]

mod compile;
mod jinja;
mod json_form;
mod reactor_cases;
mod values;

use std::fs;
use std::path::Path;

use serde_json::Value as Json;

/// The lines of a recording.
fn lines(name: &str) -> Vec<Json> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/data")
        .join(name);
    let text = fs::read_to_string(path).unwrap();
    text.lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}
