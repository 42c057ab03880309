//! What one rendering may cost: steps, bytes, depth. Counted per thread, for a rendering never leaves its thread.

use std::cell::Cell;

use minijinja::{Error, ErrorKind};

use super::value::{Res, salt};
use crate::limits;

/// The bounds of one rendering.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RenderLimits {
    /// Steps of evaluation.
    pub steps: u64,
    /// Bytes of all values made.
    pub bytes: u64,
}

impl RenderLimits {
    const DEFAULT: Self = Self { steps: limits::JINJA_STEPS_MAX, bytes: limits::JINJA_BYTES_MAX };
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

/// A rendering begins.
pub(crate) fn begin(limits: RenderLimits) {
    LIMITS.set(limits);
    STEPS.set(0);
    BYTES.set(0);
}

/// Work that is worth so many steps.
pub(crate) fn spend(steps: usize) -> Res<()> {
    let spent = STEPS.get().saturating_add(steps as u64);
    STEPS.set(spent);
    let limit = LIMITS.get().steps;
    if spent > limit { Err(steps_spent(limit)) } else { Ok(()) }
}

/// The template took too many steps.
pub(crate) fn steps_spent(limit: u64) -> Error {
    Error::new(ErrorKind::OutOfFuel, format!("the template takes more than {limit} steps"))
}

/// Bytes of something that was made, or is about to be.
pub(crate) fn charge(bytes: usize) -> Res<()> {
    let taken = BYTES.get().saturating_add(bytes as u64);
    BYTES.set(taken);
    let limit = LIMITS.get().bytes;
    if taken > limit {
        let what = format!("the template's values take more than {limit} bytes");
        return Err(Error::new(ErrorKind::OutOfFuel, what));
    }
    Ok(())
}

/// Refuses values that nest too deep to be walked.
pub(crate) fn depth(depth: usize) -> Res<()> {
    if depth > limits::JINJA_DEPTH_MAX { salt("a value that nests too deep") } else { Ok(()) }
}
