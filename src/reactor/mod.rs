//! The reactor: from an event to calls, by the master's `reactor` rules and SLS files.
//!
//! ```text
//! event -> manage (requests by salt-run)
//!       -> rules + matcher: references
//!       -> files: paths, salt://        render: Jinja, YAML, JSON (sls/), or Salt's own renderers (salt)
//!       -> sls::compile: low chunks     dispatch: calls of local, runner, wheel, caller
//! ```
//!
//! The reference is Salt 3008.3 (`tests/data/reactor-cases`, [`conformance`]). In cases in which Salt's process dies, this reactor logs an
//! ERROR and continues with the next event. [`run`] sends the calls.

mod account;
pub mod acting;
mod arguments;
mod call;
pub mod conformance;
mod dispatch;
mod encode;
mod files;
mod functions;
mod grains;
mod hash;
mod helper;
mod manage;
mod matcher;
mod msgpack;
mod nodegroup;
mod outcome;
mod pipe;
mod pipeline;
mod process;
mod render;
mod rules;
pub mod run;
mod salt;
pub mod shadow;
mod signatures;

pub use account::Account;
pub use call::{Call, CallerCall, Client, LocalCall, MasterCall};
pub use dispatch::{DispatchSettings, REACTOR_USER};
pub use encode::{decode, encode, encode_map};
pub use files::{FileSettings, Found, Template, Templates, Unusable, resolve};
pub use helper::{Helper, HelperOptions};
pub use matcher::Matcher;
pub use outcome::{Detail, Fired, NotNative, Outcome, Render, SaltCall};
pub use pipe::{RendererSettings, Stage};
pub use pipeline::{Body, Learn, Pipeline, Worker};
pub use rules::Rules;
pub use salt::{NoSalt, Salt, SaltAnswer, SaltError, SaltFile, SaltRendered};
pub use signatures::{BadSignatures, Signature, Signatures};
