//! Settings of the configuration: storage classes, durability, ingest rules, the reactor's options, masters' names and slots.

pub(super) mod class;
pub(super) mod durability;
pub(super) mod master_name;
pub(super) mod reaction;
pub(super) mod rule;
pub(super) mod slot;
pub mod word;
