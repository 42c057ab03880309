//! Values with Python's types: the data model, its text form, JSON as Python reads it, YAML as PyYAML and Salt read it.

pub(crate) mod base64;
pub mod json;
mod object;
mod repr;
pub(crate) mod text;
pub mod value;
pub mod yaml;

pub use object::Object;
pub(crate) use repr::write_float;
pub use repr::{repr, repr_texts, str, type_name};
pub use value::{Map, Value};
