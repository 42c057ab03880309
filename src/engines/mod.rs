//! Engines: they carry stored events to other systems, each from a saved position on and at its own
//! pace.
//!
//! A *sink* is a [`feed::Feed`] of events, an [`encoder`] (events to items, which are bytes) and a
//! [`transport`] (items to a destination). A *preset* is a YAML file with the settings of both for
//! one vendor. docs/SINKS.md describes the configuration.
//!
//! ```text
//! log -> Feed -> Event -> redaction -> Encoder -> items -> requests of a batch's size -> Transport -> destination
//!          ^                                                     |  rejected alone
//!          +-- acknowledged when all are delivered               +-> dead letters
//! ```
//!
//! The encoder of the sink that shares this master's history takes parts of the log instead of events
//! ([`outbox`]).
//!
//! Sinks whose items are equal share all up to the items ([`runtime`]).
//!
//! A [`script`] is an engine in the other direction: the lines of a program become events
//! on Salt's bus.
//!
//! # Invariant
//!
//! A feed's position passes an event only after the destination has accepted each of its items, or
//! their dead letters are durable. Therefore every matching event is delivered at least once. Engines only
//! read the log: none of them delays a writer or another engine. A script writes to Salt's bus
//! only, at a limited rate.

pub(crate) mod dead_letters;
pub(crate) mod encoder;
pub(crate) mod event;
pub(crate) mod feed;
pub(crate) mod framing;
mod kind;
pub(crate) mod outbox;
mod per_name;
pub mod preset;
pub(crate) mod program;
pub(crate) mod runtime;
pub(crate) mod script;
pub(crate) mod settings;
mod supervised;
pub mod template;
pub(crate) mod transport;

pub use encoder::reference as reference_of_encoders;
pub use kind::Kind;
pub use transport::reference as reference_of_transports;
