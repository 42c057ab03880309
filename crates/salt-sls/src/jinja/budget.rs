//! Limits of one rendering: steps, bytes, depth. The counters are per thread, because a rendering
//! never changes its thread.

use std::cell::Cell;

use minijinja::{Error, ErrorKind};

use super::error::{Res, not_native};
use crate::limits;

/// The limits of one rendering.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RenderLimits {
    /// Steps of evaluation.
    pub steps: u64,
    /// Bytes allocated for values, freed or not.
    pub bytes: u64,
}

impl RenderLimits {
    const DEFAULT: Self = Self {
        steps: limits::JINJA_STEPS_MAX,
        bytes: limits::JINJA_BYTES_MAX,
    };
}

impl Default for RenderLimits {
    fn default() -> Self {
        Self::DEFAULT
    }
}

thread_local! {
    static LIMITS: Cell<RenderLimits> = const { Cell::new(RenderLimits::DEFAULT) };
    static STEPS: Cell<u64> = const { Cell::new(0) };
    static BYTES: Cell<u64> = const { Cell::new(0) };
}

/// Resets the counters of this thread for a new rendering.
pub(crate) fn begin(limits: RenderLimits) {
    LIMITS.set(limits);
    STEPS.set(0);
    BYTES.set(0);
}

/// Counts steps; an error over the limit.
pub(crate) fn spend(steps: usize) -> Res<()> {
    let spent = STEPS.get().saturating_add(steps as u64);
    STEPS.set(spent);
    let limit = LIMITS.get().steps;
    if spent > limit {
        Err(steps_spent(limit))
    } else {
        Ok(())
    }
}

/// The error of a rendering over the limit of steps.
pub(crate) fn steps_spent(limit: u64) -> Error {
    Error::new(
        ErrorKind::OutOfFuel,
        format!("the template needs more than {limit} steps, simplify it"),
    )
}

/// Counts bytes, before they are allocated if possible; an error over the limit.
pub(crate) fn charge(bytes: usize) -> Res<()> {
    let taken = BYTES.get().saturating_add(bytes as u64);
    BYTES.set(taken);
    let limit = LIMITS.get().bytes;
    if taken > limit {
        let what = format!("the template's values need more than {limit} bytes, simplify it");
        return Err(Error::new(ErrorKind::OutOfFuel, what));
    }
    Ok(())
}

/// An error for values that nest deeper than native code traverses.
pub(crate) fn depth(depth: usize) -> Res<()> {
    if depth > limits::JINJA_DEPTH_MAX {
        not_native("a value that is nested too deeply")
    } else {
        Ok(())
    }
}
