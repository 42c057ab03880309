//! Values of a condition: constants of the expression, and msgpack in place.
//!
//! Equality, order and truth are Python's, as in the reactor's Jinja, with two exceptions. Values
//! of different types have no order instead of raising an error, and collections within the data
//! are equal if their bytes are equal.

use std::borrow::Cow;
use std::cell::Cell;
use std::cmp::Ordering;

use crate::msgpack::{Head, Reader, elements, pairs};
use saltcellar_base::limits::FILTER_BYTES_MAX;

/// An evaluation over the limit; the event counts as not matching.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the condition goes through more than {FILTER_BYTES_MAX} bytes of one event: simplify it")]
pub struct TooCostly;

/// A value.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Value<'a> {
    /// A missing member.
    Undefined,
    Nil,
    Bool(bool),
    Int(i64),
    Float(f64),
    Text(Cow<'a, str>),
    /// A list of the expression.
    List(Vec<Value<'a>>),
    /// An array of the data, as msgpack.
    Array(&'a [u8]),
    /// A map of the data, as msgpack.
    Map(&'a [u8]),
    /// Any other msgpack: dates, bytes that are not text.
    Opaque(&'a [u8]),
}

/// Bytes of one event's data that lookups and tests have traversed.
#[derive(Debug, Default)]
pub(super) struct Budget(Cell<usize>);

impl Budget {
    /// Counts bytes; fails over the limit.
    pub(super) fn charge(&self, bytes: usize) -> Result<(), TooCostly> {
        self.0.set(self.0.get().saturating_add(bytes));
        if self.0.get() > FILTER_BYTES_MAX {
            Err(TooCostly)
        } else {
            Ok(())
        }
    }
}

impl<'a> Value<'a> {
    /// One msgpack value. Malformed data is opaque.
    pub(super) fn of(bytes: &'a [u8]) -> Self {
        let mut reader = Reader::new(bytes);

        match reader.head() {
            Ok(Head::Nil) => Self::Nil,
            Ok(Head::Bool(b)) => Self::Bool(b),
            Ok(Head::Int(n)) => Self::Int(n),
            // For a comparison an approximation is enough.
            Ok(Head::Big(n)) => Self::Float(n as f64),
            Ok(Head::Float(x)) => Self::Float(x),
            Ok(Head::Str(_) | Head::Bin(_)) => match Reader::new(bytes).text() {
                Ok(text) => Self::Text(Cow::Borrowed(text)),
                Err(_) => Self::Opaque(bytes),
            },
            Ok(Head::Array(_)) => Self::Array(bytes),
            Ok(Head::Map(_)) => Self::Map(bytes),
            Ok(Head::Ext(..)) | Err(_) => Self::Opaque(bytes),
        }
    }

    pub(super) fn is_true(&self) -> bool {
        match self {
            Self::Undefined | Self::Nil => false,
            Self::Bool(b) => *b,
            Self::Int(n) => *n != 0,
            Self::Float(x) => *x != 0.0,
            Self::Opaque(_) => true,
            Self::Text(_) | Self::List(_) | Self::Array(_) | Self::Map(_) => self.len() != Some(0),
        }
    }

    /// Number of characters or members.
    pub(super) fn len(&self) -> Option<usize> {
        match self {
            Self::Text(text) => Some(text.chars().count()),
            Self::List(items) => Some(items.len()),
            Self::Array(bytes) => Reader::new(bytes).array().ok(),
            Self::Map(bytes) => Reader::new(bytes).map().ok(),
            _ => None,
        }
    }

    pub(super) fn as_text(&self) -> Option<&str> {
        match self {
            Self::Text(text) => Some(text),
            _ => None,
        }
    }

    /// The value as a number; Python's `True` is 1.
    fn number(&self) -> Option<Number> {
        match self {
            Self::Bool(b) => Some(Number::Int(i64::from(*b))),
            Self::Int(n) => Some(Number::Int(*n)),
            Self::Float(x) => Some(Number::Float(*x)),
            _ => None,
        }
    }

    pub(super) fn equals(&self, other: &Self, budget: &Budget) -> Result<bool, TooCostly> {
        // Numbers of both types and booleans are comparable with each other, as in Python.
        if let (Some(a), Some(b)) = (self.number(), other.number()) {
            return Ok(a.order(b) == Some(Ordering::Equal));
        }

        Ok(match (self, other) {
            (Self::Text(a), Self::Text(b)) => {
                budget.charge(a.len().min(b.len()))?;
                a == b
            }
            // Two collections of the data are equal if their bytes are.
            (Self::Array(a), Self::Array(b))
            | (Self::Map(a), Self::Map(b))
            | (Self::Opaque(a), Self::Opaque(b)) => {
                budget.charge(a.len().min(b.len()))?;
                a == b
            }
            (Self::List(items), Self::Array(bytes)) | (Self::Array(bytes), Self::List(items)) => {
                // A list of the expression and one of the data are compared item by item.
                if Reader::new(bytes).array() != Ok(items.len()) {
                    return Ok(false);
                }

                for (item, element) in items.iter().zip(elements(bytes)) {
                    budget.charge(element.len())?;
                    if !item.equals(&Value::of(element), budget)? {
                        return Ok(false);
                    }
                }
                true
            }
            (Self::List(a), Self::List(b)) => {
                if a.len() != b.len() {
                    return Ok(false);
                }

                for (a, b) in a.iter().zip(b) {
                    if !a.equals(b, budget)? {
                        return Ok(false);
                    }
                }
                true
            }
            (Self::Undefined, Self::Undefined) | (Self::Nil, Self::Nil) => true,
            _ => false,
        })
    }

    /// `None` for values without an order, such as a number and a string.
    pub(super) fn order(
        &self,
        other: &Self,
        budget: &Budget,
    ) -> Result<Option<Ordering>, TooCostly> {
        if let (Self::Text(a), Self::Text(b)) = (self, other) {
            budget.charge(a.len().min(b.len()))?;
            return Ok(Some(a.cmp(b)));
        }
        Ok(self
            .number()
            .zip(other.number())
            .and_then(|(a, b)| a.order(b)))
    }

    /// Whether this collection has the member, this map the key, or this text the part.
    pub(super) fn contains(&self, part: &Self, budget: &Budget) -> Result<bool, TooCostly> {
        match self {
            Self::Text(text) => {
                let Self::Text(part) = part else {
                    return Ok(false);
                };

                budget.charge(text.len() + part.len())?;
                Ok(memchr::memmem::find(text.as_bytes(), part.as_bytes()).is_some())
            }
            Self::List(items) => {
                for item in items {
                    if item.equals(part, budget)? {
                        return Ok(true);
                    }
                }
                Ok(false)
            }
            Self::Array(bytes) => {
                for element in elements(bytes) {
                    budget.charge(element.len())?;
                    if Value::of(element).equals(part, budget)? {
                        return Ok(true);
                    }
                }
                Ok(false)
            }
            // The members of a map are its keys.
            Self::Map(_) => Ok(!matches!(self.member(part, budget)?, Self::Undefined)),
            _ => Ok(false),
        }
    }

    /// The value of a key, or of an index; negative indexes count from the end.
    pub(super) fn member(&self, key: &Self, budget: &Budget) -> Result<Value<'a>, TooCostly> {
        let place = |n: i64, len: usize| {
            let len = i64::try_from(len).ok()?;
            usize::try_from(if n < 0 { n.checked_add(len)? } else { n }).ok()
        };

        match (self, key) {
            (Self::Map(bytes), key) => {
                for (name, value) in pairs(bytes) {
                    // Before the comparison, because no lookup may be free.
                    budget.charge(name.len() + value.len())?;
                    if Value::of(name).equals(key, budget)? {
                        return Ok(Value::of(value));
                    }
                }
                Ok(Value::Undefined)
            }
            (Self::Array(bytes), Self::Int(n)) => {
                let len = Reader::new(bytes).array().unwrap_or(0);
                let Some(at) = place(*n, len) else {
                    return Ok(Value::Undefined);
                };

                // Elements have no fixed length, so all preceding elements are traversed.
                for (n, element) in elements(bytes).enumerate() {
                    budget.charge(element.len())?;
                    if n == at {
                        return Ok(Value::of(element));
                    }
                }
                Ok(Value::Undefined)
            }
            (Self::List(items), Self::Int(n)) => Ok(place(*n, items.len())
                .and_then(|at| items.get(at).cloned())
                .unwrap_or(Value::Undefined)),
            _ => Ok(Value::Undefined),
        }
    }
}

/// A number of either type.
#[derive(Debug, Clone, Copy)]
enum Number {
    Int(i64),
    Float(f64),
}

impl Number {
    fn order(self, other: Self) -> Option<Ordering> {
        match (self, other) {
            (Self::Int(a), Self::Int(b)) => Some(a.cmp(&b)),
            (Self::Float(a), Self::Float(b)) => a.partial_cmp(&b),
            (Self::Int(a), Self::Float(b)) => (a as f64).partial_cmp(&b),
            (Self::Float(a), Self::Int(b)) => a.partial_cmp(&(b as f64)),
        }
    }
}
