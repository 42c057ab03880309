//! Conversion between bytes of sockets and files and the types of the model or of Python (`salt_sls`); unix socket listeners.

pub mod call;
pub mod filter;
pub mod frame;
pub mod json;
pub mod msgpack;
pub mod outcome;
pub mod salt_codec;
pub mod salt_event;
pub mod salt_value;
pub mod signed;
pub mod unix_listener;
pub mod zmtp;
