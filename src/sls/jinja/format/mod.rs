//! Text by a format: `%`, `str.format`, and what both share.

pub(super) mod brace;
pub(super) mod percent;
pub(super) mod spec;
