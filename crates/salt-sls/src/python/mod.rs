//! What Python shows of values: `str`, `repr`, `type`, and the methods of its strings.

mod repr;
pub mod text;

pub use repr::{repr, repr_texts, str, type_name, write_float};
