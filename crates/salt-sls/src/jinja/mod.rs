//! Jinja templates, rendered natively where the result is certain to be Salt's.
//!
//! [minijinja] lexes, parses and runs templates. `translate` rewrites their syntax tree: operators,
//! lookups, calls and literals become filters with Python's semantics for plain types. All other
//! constructs, types and errors are *not native* ([`RenderError::not_native`]): Salt's renderer
//! gets the file. [`Engine::check`] lists constructs without an event.
//!
//! ```
//! use std::sync::Arc;
//! use salt_sls::jinja::{Ambient, Context, Data, Engine, EngineOptions, NoFunctions, SaltFunctions, Source};
//!
//! let engine = Engine::new(EngineOptions::default());
//! let data = Data::from_value(&salt_sls::yaml::load("{id: web1}").unwrap());
//! let (ambient, salt): (_, Arc<dyn SaltFunctions>) = (Arc::new(Ambient::default()), Arc::new(NoFunctions));
//! let context = Context { tag: "salt/key", data: &data, ambient: &ambient, salt: &salt };
//! let source = Source { path: "/srv/reactor/key.sls", text: "tgt: {{ data['id'] }}\n" };
//! assert_eq!(engine.render(&source, &context).unwrap().text, "tgt: web1\n");
//! ```
//!
//! # Limits
//!
//! Templates come from the operator, data from minions. Steps, bytes and depth of a rendering are
//! limited ([`limits`](crate::limits), `JINJA_*`). No template and no data can cause a panic,
//! and data is never parsed as a template.

// Evaluation goes upwards: `value`, then `ops`, `call`, `filters` and `engine`, each of which
// imports the preceding modules.
pub mod bounded;
mod budget;
mod call;
mod context;
mod data;
mod engine;
mod error;
mod filters;
mod lexical;
mod ops;
mod salt_functions;
mod translate;
mod value;

pub use budget::RenderLimits;
pub use context::{Ambient, Context};
pub use data::{Data, DictBuilder, Item};
pub use engine::{Engine, EngineOptions, Prepared, Rendered, Source};
pub use error::{NotNative, RenderError, RenderErrorKind};
pub use salt_functions::{NoFunctions, SaltFunctions};
