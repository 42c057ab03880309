//! The log of a segment: a file of frames, each with one block of entries.

pub mod block;
pub mod builder;
pub mod column;
pub(crate) mod columns;
pub mod exchange;
pub mod file;
pub mod frame;
pub mod walk;
pub mod writer;
