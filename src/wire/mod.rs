//! The edges: bytes and text to values and back.

pub mod json;
