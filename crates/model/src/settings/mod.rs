//! Settings of the configuration: storage classes, durability, ingest rules, the reactor's options.

pub(super) mod class;
pub(super) mod durability;
pub(super) mod reaction;
pub(super) mod rule;
pub(super) mod slot;
pub mod word;
