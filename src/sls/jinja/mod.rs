//! Jinja as Salt renders it, where that is sure; everything else is refused, for Salt's own renderer.
//!
//! [minijinja] lexes, scopes and runs; the gate rewrites its syntax tree, so that every operator, look-up and call is one of ours, with
//! Python's meaning for plain types. Whatever is not certain to render as in Salt, and every error, is *not native*
//! ([`RenderError::not_native`]): the file is then given to Salt's own renderer. [`Engine::check`] tells most of it beforehand.
//!
//! ```
//! use std::sync::Arc;
//! use saltcellar::sls::jinja::{Ambient, Context, Data, Engine, EngineOptions, NoFunctions, SaltFunctions, Source};
//!
//! let engine = Engine::new(EngineOptions::default());
//! let data = Data::from_msgpack(b"\x81\xa2id\xa4web1").unwrap();
//! let (ambient, salt): (_, Arc<dyn SaltFunctions>) = (Arc::new(Ambient::default()), Arc::new(NoFunctions));
//! let context = Context { tag: "salt/key", data: &data, ambient: &ambient, salt: &salt };
//! let source = Source { path: "/srv/reactor/key.sls", text: "tgt: {{ data['id'] }}\n" };
//! assert_eq!(engine.render(&source, &context).unwrap().text, "tgt: web1\n");
//! ```
//!
//! # What a template cannot do
//!
//! Run for ever, or allocate without bound: every step costs fuel, and every value that grows is charged
//! ([`limits`](crate::limits), `JINJA_*`). Nothing panics, whatever the template or the data.

mod budget;
mod call;
mod context;
mod engine;
mod error;
mod filters;
mod lexical;
mod ops;
mod translate;
mod value;

pub use budget::RenderLimits;
pub use context::{Ambient, Context, Data, NoFunctions, SaltFunctions};
pub use engine::{Engine, EngineOptions, NotNative, Prepared, Rendered, Source};
pub use error::{RenderError, RenderErrorKind};
