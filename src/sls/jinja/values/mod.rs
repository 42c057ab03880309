//! Python's values, as far as a template can tell: what they are, how they compare, count, print and are walked over.

pub(super) mod access;
pub(super) mod convert;
pub(super) mod num;
pub(super) mod object;
pub(super) mod ops;
pub(super) mod pyset;
pub(super) mod repr;
pub(super) mod val;
pub(super) mod walk;
