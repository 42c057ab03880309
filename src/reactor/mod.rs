//! The reactor: from an event to calls, by the master's `reactor` rules and SLS files.
//!
//! ```text
//! event -> manage (requests by salt-run)
//!       -> rules + matcher: references
//!       -> files: paths, salt://        render: Jinja, YAML, JSON, or Salt's own renderers (helper)
//!       -> render::compile: low chunks  dispatch: calls of local, runner, wheel, caller
//!       -> run: order, throttles, retries, records  ->  master: the master's request port
//! ```
//!
//! The reference is Salt 3008.3 (`tests/data/reactor-cases`, [`conformance`]). In cases in which Salt's process dies, this reactor logs an
//! ERROR and continues with the next event. [`run`] sends the calls.

pub mod conformance;
mod dispatch;
mod helper;
mod latest;
pub mod master;
mod pipeline;
pub mod render;
mod rules;
pub mod run;
pub mod service;
pub mod shadow;

pub use dispatch::arguments::Signature;
pub use dispatch::call::{Call, Client};
pub use dispatch::{DispatchSettings, REACTOR_USER};
pub use helper::account::Account;
pub use helper::encode::{decode, encode, encode_map};
pub use helper::process::memory_file;
pub use helper::salt::{NO_SALT, NoSalt, Salt, SaltAnswer, SaltError, SaltFile, SaltRendered};
pub use helper::{Helper, HelperOptions};
pub use pipeline::outcome::{Detail, Fired, NotNative, Outcome, Render, SaltCall};
pub use pipeline::{Body, Pipeline, Worker};
pub use render::files::{FileSettings, Found, Template, Templates, Unusable, resolve};
pub use render::pipe::{RendererSettings, Stage};
pub use rules::lease::{EngineReport, Lease};
pub use rules::matcher::Matcher;
pub use rules::{Rules, acting};
