//! Template text to statements and expressions.

pub(super) mod ast;
pub(super) mod expr;
pub(super) mod lexer;
pub(super) mod parser;
pub(super) mod uses;
