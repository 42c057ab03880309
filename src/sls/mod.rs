//! SLS files as in Salt: Jinja to text, text to values by PyYAML's rules, values to low chunks.
//!
//! The module has no connection to a master, an event bus or the store. Its caller is the reactor (`reactor/`).

pub mod compile;
pub mod jinja;
pub mod json;
pub mod python;
pub mod value;
pub mod yaml;

pub use value::{Map, Value};
