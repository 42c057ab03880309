//! What goes wrong inside a template: Python's exceptions, as far as something depends on their kind.

use std::sync::Arc;

/// A kind of exception.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// `jinja2.UndefinedError`
    Undefined,
    /// `jinja2.TemplateRuntimeError` and its like
    Runtime,
    /// `jinja2.TemplateSyntaxError`
    Syntax,
    /// `jinja2.SecurityError`
    Security,
    /// `jinja2.TemplateNotFound`
    NotFound,
    /// `TypeError`
    Type,
    /// `ValueError`
    Value,
    /// `KeyError`, `IndexError`
    Lookup,
    /// `OverflowError`
    Overflow,
    /// `StopIteration` and everything else
    Other,
    /// What a function of Salt raised.
    Salt,
    /// Not an exception: what only Salt can do.
    NotNative,
    /// Not an exception: a bound of this program.
    Limit,
}

/// An exception.
#[derive(Debug)]
pub(crate) struct Exc(pub(crate) Box<Inner>);

#[derive(Debug)]
pub(crate) struct Inner {
    pub(crate) kind: Kind,
    pub(crate) message: String,
    /// Where: file and line, as soon as somebody knows.
    pub(crate) at: Option<(Arc<str>, u32)>,
}

pub(crate) type Res<T> = Result<T, Exc>;

impl Exc {
    pub(crate) fn new(kind: Kind, message: impl Into<String>) -> Self {
        Exc(Box::new(Inner { kind, message: message.into(), at: None }))
    }

    pub(crate) fn kind(&self) -> Kind {
        self.0.kind
    }

    pub(crate) fn place(mut self, file: &Arc<str>, line: u32) -> Self {
        if self.0.at.is_none() {
            self.0.at = Some((Arc::clone(file), line));
        }
        self
    }

    /// At a line of a file that is not known yet.
    pub(crate) fn at_line(mut self, line: u32) -> Self {
        self.0.at = Some((Arc::from(""), line));
        self
    }

    /// In this file, unless it is known to be in another.
    pub(crate) fn in_file(mut self, file: &Arc<str>) -> Self {
        match &mut self.0.at {
            None => self.0.at = Some((Arc::clone(file), 0)),
            Some((known, _)) if known.is_empty() => *known = Arc::clone(file),
            Some(_) => {}
        }
        self
    }

    /// Whether Python code that catches exceptions would see this one.
    pub(crate) fn is_exception(&self) -> bool {
        !matches!(self.0.kind, Kind::NotNative | Kind::Limit)
    }

    /// What `except (TypeError, ValueError)` catches.
    pub(crate) fn is_type_or_value(&self) -> bool {
        matches!(self.0.kind, Kind::Type | Kind::Value)
    }
}

macro_rules! raise {
    ($($name:ident $kind:ident,)*) => {
        $(pub(crate) fn $name(message: impl Into<String>) -> Exc {
            Exc::new(Kind::$kind, message)
        })*
    };
}

raise! {
    runtime_error Runtime,
    type_error Type,
    value_error Value,
    lookup_error Lookup,
    overflow_error Overflow,
    other_error Other,
    not_native NotNative,
    limit_error Limit,
}
