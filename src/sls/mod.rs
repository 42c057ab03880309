//! SLS files, as Salt's state compiler knows them: Jinja to text, text to values by PyYAML's rules, values to low chunks.
//!
//! Nothing here knows a master, an event bus or the store; the reactor (`reactor/`) brings the data and takes the chunks.

pub mod compile;
pub mod jinja;
pub mod json;
pub mod python;
pub mod value;
pub mod yaml;

pub use value::{Map, Value};
