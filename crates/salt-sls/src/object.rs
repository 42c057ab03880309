//! Values of Python's other types: dates, constants of Salt, and whatever a program returns.
//!
//! Salt's codec packs some of them as an ext (`salt/payload.py`), and rejects the rest. An object
//! therefore contains its ext, or the reason why Salt cannot send it, in addition to what templates
//! and messages show.

/// An object of Python.
#[derive(Debug, Clone, PartialEq)]
pub struct Object {
    /// `type(value).__name__`
    pub type_name: String,
    /// `str(value)`
    pub text: String,
    /// `repr(value)`
    pub repr: String,
    /// `bool(value)`
    pub is_true: bool,
    /// The ext of Salt's codec, its type and data; or why Salt's codec cannot pack the object.
    pub packed: Result<(i8, Vec<u8>), String>,
}
