//! The methods of values.

pub(super) mod collection;
pub(super) mod number;
pub(super) mod text;
