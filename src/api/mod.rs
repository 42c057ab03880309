//! The interfaces of the daemon: the local socket and HTTP, their calls and queries, clients, and
//! ZeroMQ.

/// Defines answers of calls. Every field has a default, so that a client can read the response of
/// another release.
macro_rules! answers {
    ($($(#[$outer:meta])* $name:ident { $($(#[$inner:meta])* $field:ident: $kind:ty,)* })+) => {
        $(
            #[derive(Debug, Clone, Default, PartialEq, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
            #[serde(default)]
            $(#[$outer])*
            pub(crate) struct $name {
                $($(#[$inner])* pub(crate) $field: $kind,)*
            }
        )+
    };
}

mod budget;
pub(crate) mod call;
mod caller;
pub mod client;
pub mod http;
pub(crate) mod monitor;
pub(crate) mod query;
pub(crate) mod sign_in;
pub(crate) mod socket;
mod stream;
mod submit;
mod trust;

pub use call::status::loss_counters;
pub use call::{CALLS, document as calls};
