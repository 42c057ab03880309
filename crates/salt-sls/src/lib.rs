//! SLS files as [Salt](https://docs.saltproject.io) reads them: Jinja, YAML, and the low chunks that its reactor makes of them,
//! without Python.
//!
//! An SLS file is a Jinja template that renders to YAML. Neither is what other implementations
//! read: Salt's templates work on Python's values and methods, and its YAML is libyaml's and
//! PyYAML's, with its own changes. The rules here were written down from the sources of Salt
//! 3008.3, Jinja2 3.1, PyYAML 6.0 and libyaml 0.2.5, and are compared with what these do
//! (about 4,000 recordings, which are in the repository).
//!
//! ```text
//! template, event --jinja--> text --yaml--> Value --compile--> high data of a file --> low chunks of an event
//! ```
//!
//! | module | what it does | its reference |
//! |---|---|---|
//! | [`jinja`] | renders a template where the result is certain to be Salt's, and says where it is not | Jinja2, `salt.utils.templates` |
//! | [`yaml`] | reads YAML 1.1 | libyaml, PyYAML, `salt.utils.yamlloader` |
//! | [`json`](mod@json) | reads JSON | Python's `json` |
//! | `json_form` (a feature) | writes values as JSON and reads them back, exactly | |
//! | [`compile`] | makes high data and low chunks | `salt.state.Compiler`, `salt.utils.reactor` |
//! | [`functions`] | calls `salt['pillar.get']` and others that need no Salt | `salt.modules` |
//! | [`python`] | shows a value as Python does | CPython 3.11 |
//! | [`Glob`] | matches names | `fnmatch.fnmatchcase` |
//!
//! ```
//! use std::sync::Arc;
//! use salt_sls::jinja::{Ambient, Context, Data, Engine, EngineOptions, NoFunctions, SaltFunctions, Source};
//! use salt_sls::{compile, yaml};
//!
//! let text = "\
//! {% if data.act == 'accept' %}
//! sync {{ data.id }}:
//!   local.state.apply:
//!     - tgt: {{ data.id }}
//! {% endif %}
//! ";
//!
//! let engine = Engine::new(EngineOptions::default());
//! let data = Data::from_value(&yaml::load("{id: web1, act: accept}").unwrap());
//! let (ambient, salt): (_, Arc<dyn SaltFunctions>) = (Arc::new(Ambient::default()), Arc::new(NoFunctions));
//! let context = Context { tag: "salt/key", data: &data, ambient: &ambient, salt: &salt };
//! let rendered = engine.render(&Source { path: "key.sls", text }, &context).unwrap().text;
//!
//! let low = compile::low(vec![compile::high(&rendered, "key.sls").unwrap()]).unwrap();
//! assert_eq!(low[0]["state"].as_str(), Some("local"));
//! assert_eq!(low[0]["fun"].as_str(), Some("state.apply"));
//! assert_eq!(low[0]["tgt"].as_str(), Some("web1"));
//! ```
//!
//! # Limits
//!
//! Templates and their data may come from strangers. No input panics, overflows a stack or runs
//! without bound: [`limits`] lists all bounds, and an input beyond a bound is an error that names
//! it.

#![forbid(unsafe_code)]

pub mod compile;
pub mod functions;
mod glob;
mod hash;
pub mod jinja;
pub mod json;
#[cfg(feature = "json-form")]
pub mod json_form;
pub mod limits;
mod object;
pub mod python;
mod value;
pub mod yaml;

pub use glob::{Glob, Literal};
pub use object::Object;
pub use value::{Key, Map, PythonDict, Value, with_room};

/// Compiles and runs the example of the README.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
