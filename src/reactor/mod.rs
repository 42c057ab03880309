//! The reactor: from an event to calls, by the master's `reactor` rules and SLS files.
//!
//! ```text
//! event -> manage (requests by salt-run)
//!       -> rules + matcher: references
//!       -> files: paths, salt://        render: Jinja, YAML, JSON, or Salt's renderers (helper)
//!       -> salt_sls::compile: low chunks  dispatch: calls of local, runner, wheel, caller
//!       -> run: order, throttles, retries, records  ->  master: the master's request port
//! ```
//!
//! The reference is Salt 3008.3 (`tests/data/reactor-cases`, `conformance`). In cases in which
//! Salt's process dies, this reactor logs an ERROR and continues with the next event. [`run`] sends
//! the calls.

mod call;
#[cfg(test)]
mod conformance;
mod dispatch;
mod helper;
mod latest;
mod logged;
pub mod master;
mod outcome;
mod pipeline;
mod prepared;
pub mod render;
mod rules;
pub mod run;
pub(crate) mod service;
pub(crate) mod shadow;
mod signature;
pub(crate) mod stored;

pub use helper::functions::SaltAnswer;
pub use helper::salt::{NoSalt, Salt, SaltChecked, SaltError, SaltFile, SaltRendered};
pub use helper::{Helper, HelperOptions};
pub use master::Client;
pub use outcome::{Detail, Outcome};
pub use pipeline::{Body, Pipeline, Worker};
pub use prepared::Prepared;
pub use rules::matcher::Matcher;
pub use signature::Signature;

pub(crate) use call::{CallOutcome, CallRecord};
pub(crate) use helper::account::{Account, SaltPython};
pub(crate) use helper::process::memory_file;
pub(crate) use helper::salt::NO_SALT;
pub(crate) use render::files::{Found, Template, Unusable, resolve};
pub(crate) use rules::lease::EngineReport;
pub(crate) use rules::{Rules, acting};
