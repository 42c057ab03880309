//! The order of one chunk: its `order`, and that as a number.

use std::cmp::Ordering;

use super::chunks::field;
use super::error::Refused;
use super::number::Number;
use crate::value::{Map, Value};

/// Raises the cap, which is the order of chunks without `order`, above a positive integer order.
pub(super) fn raise(cap: Number, chunk: &Map) -> Number {
    match (chunk.get("order").and_then(Number::of), cap) {
        (Some(Number::Int(order)), Number::Int(cap)) if order > cap - 1 && order > 0 => {
            Number::Int(order.saturating_add(100))
        }
        _ => cap,
    }
}

/// The number of an order in words.
pub(super) fn in_words(order: &Value, cap: Number) -> Number {
    match order.as_str() {
        Some("first") => Number::Int(0),
        Some("last") => cap.plus(Number::Int(1_000_000)),
        _ => cap,
    }
}

/// Computes a chunk's order as a number and stores it in the chunk.
pub(super) fn settle(chunk: &mut Map, cap: Number) -> Result<Number, Refused> {
    let given = chunk.get("order").and_then(Number::of);
    let mut order = given.unwrap_or_else(|| in_words(field(chunk, "order"), cap));
    let mut changed = given.is_none();

    if let Some(place) = chunk.shift_remove("name_order")
        && place.truthy()
    {
        let place = Number::of(&place)
            .ok_or_else(|| Refused::Exception("`name_order` is no number".to_owned()))?;
        // Keeps the order of the list `names` among chunks of one order.
        order = order.plus(Number::Float(place.float() / 10_000.0));
        changed = true;
    }

    // As in Salt, negative orders come after all other orders.
    if order.less(&Number::Int(0)) {
        order = order.plus(cap.plus(Number::Int(1_000_000)));
        changed = true;
    }

    if changed {
        chunk.insert("order".into(), order.value());
    }
    Ok(order)
}

/// A node without open requirements, with its sort key.
pub(super) struct Ready {
    pub(super) order: Number,
    pub(super) own: Number,
    pub(super) label: String,
    pub(super) tag: String,
    pub(super) node: usize,
}

impl Ord for Ready {
    fn cmp(&self, other: &Self) -> Ordering {
        (self.order.compare(&other.order))
            .then_with(|| self.own.compare(&other.own))
            .then_with(|| self.label.cmp(&other.label))
            .then_with(|| self.tag.cmp(&other.tag))
    }
}

impl PartialOrd for Ready {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Ready {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Ready {}
