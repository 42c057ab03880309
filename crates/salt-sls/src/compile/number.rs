//! Values of `order`: comparison and arithmetic of Python's numbers.

use std::cmp::Ordering;

use crate::value::Value;

/// A number of Python. Integers over 128 bits are floats.
#[derive(Debug, Clone, Copy)]
pub(super) enum Number {
    Int(i128),
    Float(f64),
}

impl Number {
    pub(super) fn of(value: &Value) -> Option<Self> {
        Some(match value {
            Value::Bool(b) => Self::Int(i128::from(*b)),
            Value::Int(i) => Self::Int(i128::from(*i)),
            Value::BigInt(digits) => digits
                .parse()
                .ok()
                .filter(|i: &i128| i.unsigned_abs() < 1 << 120)
                .map_or_else(
                    || Self::Float(digits.parse().unwrap_or(f64::INFINITY)),
                    Self::Int,
                ),
            Value::Float(f) => Self::Float(*f),
            _ => return None,
        })
    }

    pub(super) fn value(self) -> Value {
        match self {
            Self::Int(i) => {
                i64::try_from(i).map_or_else(|_| Value::BigInt(i.to_string()), Value::Int)
            }
            Self::Float(f) => Value::Float(f),
        }
    }

    pub(super) fn float(self) -> f64 {
        match self {
            Self::Int(i) => i as f64,
            Self::Float(f) => f,
        }
    }

    pub(super) fn plus(self, other: Self) -> Self {
        match (self, other) {
            (Self::Int(a), Self::Int(b)) => Self::Int(a.saturating_add(b)),
            _ => Self::Float(self.float() + other.float()),
        }
    }

    /// Values that cannot be compared, such as `nan`, are neither less nor greater.
    pub(super) fn compare(&self, other: &Self) -> Ordering {
        match (self, other) {
            (Self::Int(a), Self::Int(b)) => a.cmp(b),
            (Self::Int(a), Self::Float(b)) => against(*a, *b),
            (Self::Float(a), Self::Int(b)) => against(*b, *a).reverse(),
            _ => self
                .float()
                .partial_cmp(&other.float())
                .unwrap_or(Ordering::Equal),
        }
    }

    pub(super) fn less(&self, other: &Self) -> bool {
        self.compare(other) == Ordering::Less
    }
}

/// An integer compared with a float, exactly.
#[expect(
    clippy::cast_possible_truncation,
    reason = "saturates, which compares alike"
)]
fn against(int: i128, float: f64) -> Ordering {
    let rough = (int as f64).partial_cmp(&float).unwrap_or(Ordering::Equal);
    if rough == Ordering::Equal && !float.is_nan() {
        int.cmp(&(float as i128))
    } else {
        rough
    }
}
