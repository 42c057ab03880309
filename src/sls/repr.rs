//! Values as Python prints them, as methods.

use super::{Value, python};

impl Value {
    /// `str(value)`.
    pub fn python_str(&self) -> String {
        python::str(self)
    }

    /// `repr(value)`.
    pub fn python_repr(&self) -> String {
        python::repr(self)
    }
}
