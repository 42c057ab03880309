//! The event's data of a template, and its construction from a format that this crate does not know.

use minijinja::Value;

use super::budget::{self, RenderLimits};
use super::value::{self, Access, Obj, Pairs};
use crate::value::{Key, Value as Plain, with_room};

/// The data of an event: one mutable value, shared by all files of the event.
///
/// A clone shares the data.
#[derive(Clone)]
pub struct Data(pub(crate) Value);

impl Data {
    /// Copies a value.
    pub fn from_value(value: &Plain) -> Self {
        Data(value::from_plain(value, Access::Full, 0))
    }

    /// The current data; `Null` if it is nested too deeply.
    pub fn to_value(&self) -> Plain {
        plain(&self.0).unwrap_or(Plain::Null)
    }
}

impl From<Item> for Data {
    fn from(item: Item) -> Self {
        Data(item.0)
    }
}

fn plain(value: &Value) -> Option<Plain> {
    // The counters belong to the last rendering on this thread.
    budget::begin(RenderLimits::default());
    value::to_plain(value, 0).ok()
}

/// A value of an event's data under construction.
///
/// For decoders, which need no [`Value`](crate::Value) in between: with `From<Item>` the outermost
/// one becomes the [`Data`]. A decoder rejects data that nests deeper than
/// [`JINJA_DATA_DEPTH_MAX`](crate::limits::JINJA_DATA_DEPTH_MAX).
pub struct Item(Value);

impl Item {
    /// `None`
    pub fn none() -> Self {
        Item(Value::from(()))
    }

    /// A list.
    pub fn list(items: Vec<Item>) -> Self {
        Item(value::list(items.into_iter().map(|item| item.0).collect()))
    }

    /// A value that templates can only pass on: bytes, a large integer, an object of another type.
    pub fn opaque(value: Plain) -> Self {
        Item(Value::from_object(Obj::Other(value)))
    }

    /// The value; `None` if it is nested too deeply.
    pub fn to_value(&self) -> Option<Plain> {
        plain(&self.0)
    }
}

impl From<bool> for Item {
    fn from(value: bool) -> Self {
        Item(value.into())
    }
}

impl From<i64> for Item {
    fn from(value: i64) -> Self {
        Item(value.into())
    }
}

impl From<f64> for Item {
    fn from(value: f64) -> Self {
        Item(value.into())
    }
}

impl From<&str> for Item {
    fn from(text: &str) -> Self {
        Item(text.into())
    }
}

impl From<DictBuilder> for Item {
    fn from(dict: DictBuilder) -> Self {
        Item(value::dict(dict.0))
    }
}

/// A dict under construction.
pub struct DictBuilder(Pairs);

impl DictBuilder {
    /// An empty dict with room for this number of pairs.
    pub fn with_room(pairs: usize) -> Self {
        DictBuilder(with_room(pairs))
    }

    /// Adds a pair. As in Python, the last value of equal keys counts, at the place of the first.
    pub fn insert(&mut self, key: Key, item: Item) {
        self.0.insert(key, item.0);
    }
}
