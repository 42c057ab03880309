//! Jinja as Salt renders it: text in, text out, to the character what Salt 3008.3 with Jinja2 3.1 gives.
//!
//! The engine is Salt's dialect of Jinja2 over Python's values: shared and mutable lists and mappings, attributes that win over
//! keys, `%` on text, Python's printing, strict undefined values, a sandbox. Templates are compiled once and kept by content.
//!
//! ```
//! use saltcellar::sls::jinja::{Ambient, Context, Data, Engine, EngineOptions, NoFiles, NoFunctions, Source};
//!
//! let engine = Engine::new(EngineOptions::default());
//! let data = Data::from_msgpack(b"\x81\xa2id\xa4web1").unwrap();
//! let ambient = Ambient::default();
//! let context = Context::new("salt/key", &data, &ambient, &NoFiles, &NoFunctions);
//! let source = Source { path: "/srv/reactor/key.sls", text: "tgt: {{ data['id'] }}\n" };
//! assert_eq!(engine.render(&source, &context).unwrap().text, "tgt: web1\n");
//! ```
//!
//! # What a template cannot do
//!
//! Run for ever, or allocate without bound: every step costs fuel, and every value that grows is charged
//! ([`limits`](crate::limits), `JINJA_*`). Nothing panics, whatever the template or the data.
//!
//! What exists in Salt and not here is refused as *not native* ([`RenderError::not_native`]), so that the file can be given to Salt's
//! own renderer; [`Engine::check`] tells it beforehand.

#![expect(
    clippy::needless_pass_by_value,
    clippy::single_match_else,
    clippy::match_same_arms,
    clippy::unused_self,
    clippy::unnecessary_wraps,
    clippy::format_push_string,
    clippy::needless_for_each,
    clippy::type_complexity,
    clippy::option_option,
    reason = "filters and methods have one signature each, and cases stand one by one as Python's documentation has them"
)]

mod budget;
mod check;
mod context;
mod engine;
mod error;
mod eval;
mod exc;
mod filters;
mod format;
mod jmes;
mod library;
mod methods;
mod options;
mod syntax;
mod values;
mod yaml;

pub use budget::RenderLimits;
pub use context::{Ambient, Context, Data, Loaded, Loader, NoFiles, NoFunctions, SaltFunctions};
pub use engine::{Engine, NotNative, Prepared, Rendered, Source};
pub use error::{RenderError, RenderErrorKind};
pub use options::EngineOptions;

/// A hash in hexadecimal digits by its name (`md5`, `sha256`); none for one that is not known here.
pub fn hash_by_name(name: &str, bytes: &[u8]) -> Option<String> {
    library::hash::by_name(name, bytes)
}
