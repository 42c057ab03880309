//! What the streams of events share: their forms, their pieces, and their rates.

pub(super) mod format;
pub(super) mod pieces;
pub(super) mod rate;
