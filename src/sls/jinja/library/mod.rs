//! What templates reach of Python's library: regular expressions, hashes, addresses, JSON, HTML.

pub(super) mod hash;
pub(super) mod html;
pub(super) mod ip;
pub(super) mod json;
pub(super) mod re;
