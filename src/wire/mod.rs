//! Conversion between bytes of sockets and files and the types of the model.

pub mod call;
pub mod der;
pub mod frame;
pub mod json;
pub mod msgpack;
pub mod salt_codec;
pub mod salt_event;
pub mod signed;
pub mod zmtp;
