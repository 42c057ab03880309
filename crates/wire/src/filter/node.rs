//! The tree that an expression is compiled to.

use salt_sls::Glob;

use super::value::Value;

/// Why a string is not a condition.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{}column {column}: {what}", if *.line > 1 { format!("line {line}, ") } else { String::new() })]
pub struct ConditionError {
    /// From 1.
    pub line: usize,
    /// In characters, from 1.
    pub column: usize,
    /// The error, and the accepted form.
    pub what: String,
}

/// An expression.
#[derive(Debug, Clone)]
pub(super) enum Node {
    Tag,
    Data,
    Constant(Value<'static>),
    List(Vec<Node>),
    Not(Box<Node>),
    And(Box<Node>, Box<Node>),
    Or(Box<Node>, Box<Node>),
    /// A chain: each value is compared with the previous value.
    Compare(Box<Node>, Vec<(Comparison, Node)>),
    Member(Box<Node>, Box<Node>),
    /// Test, then, else.
    If(Box<[Node; 3]>),
    Test(Test, Box<Node>),
    Filter(Filter, Box<Node>),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Comparison {
    Equal,
    NotEqual,
    Less,
    LessOrEqual,
    Greater,
    GreaterOrEqual,
    In,
    NotIn,
}

/// The right side of `is`.
#[derive(Debug, Clone)]
pub(super) enum Test {
    StartingWith(Box<Node>),
    EndingWith(Box<Node>),
    Containing(Box<Node>),
    Matching(Glob),
    /// The value itself; a number is none.
    Is(bool),
    Defined,
    Undefined,
    None,
    Text,
    Number,
    Boolean,
    Map,
    List,
}

/// A filter of Jinja, behind `|`.
#[derive(Debug, Clone)]
pub(super) enum Filter {
    Lower,
    Upper,
    Length,
    Default(Box<Node>),
}
