//! Statements run and expressions evaluated: variables, calls, other files.

pub(super) mod args;
pub(super) mod call;
pub(super) mod expr;
pub(super) mod frame;
pub(super) mod interp;
pub(super) mod is;
pub(super) mod lipsum;
pub(super) mod load;
