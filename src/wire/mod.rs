//! Edges: bytes from sockets and files turned into the model's words, and back.

pub mod call;
pub mod der;
pub mod frame;
pub mod json;
pub mod msgpack;
pub mod salt_codec;
pub mod salt_event;
pub mod signed;
pub mod zmtp;
