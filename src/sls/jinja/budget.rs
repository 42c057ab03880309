//! What one rendering may cost: steps, bytes, depth. Counted per thread, for a rendering never leaves its thread.

use std::cell::Cell;

use super::exc::{Res, limit_error};
use crate::limits;

thread_local! {
    static STEPS: Cell<u64> = const { Cell::new(0) };
    static BYTES: Cell<u64> = const { Cell::new(0) };
    static DEPTH: Cell<u32> = const { Cell::new(0) };
}

/// A rendering begins.
pub(crate) fn begin() {
    STEPS.set(0);
    BYTES.set(0);
    DEPTH.set(0);
}

/// One step of evaluation.
pub(crate) fn step() -> Res<()> {
    steps(1)
}

/// Work that is worth `n` steps.
pub(crate) fn steps(n: u64) -> Res<()> {
    let spent = STEPS.get().saturating_add(n);
    STEPS.set(spent);
    if spent > limits::JINJA_STEPS_MAX {
        return Err(limit_error(format!("the template takes more than {} steps", limits::JINJA_STEPS_MAX)));
    }
    if BYTES.get() > limits::JINJA_BYTES_MAX {
        return Err(too_many_bytes());
    }
    Ok(())
}

/// Bytes that something has taken; the next step notices if they were too many.
pub(crate) fn took(bytes: usize) {
    BYTES.set(BYTES.get().saturating_add(bytes as u64));
}

/// Whether there is room for something that is about to grow, before it does.
pub(crate) fn room(bytes: usize) -> Res<()> {
    if BYTES.get().saturating_add(bytes as u64) > limits::JINJA_BYTES_MAX {
        Err(too_many_bytes())
    } else {
        Ok(())
    }
}

fn too_many_bytes() -> super::exc::Exc {
    limit_error(format!("the template's values take more than {} bytes", limits::JINJA_BYTES_MAX))
}

/// A level of nesting, until it is dropped.
pub(crate) struct Level(());

impl Drop for Level {
    fn drop(&mut self) {
        DEPTH.set(DEPTH.get().saturating_sub(1));
    }
}

/// One level deeper: in a call, an expression, a value.
pub(crate) fn deeper() -> Res<Level> {
    let depth = DEPTH.get() + 1;
    if depth > limits::JINJA_DEPTH_MAX {
        return Err(limit_error(format!("the template nests more than {} levels", limits::JINJA_DEPTH_MAX)));
    }
    DEPTH.set(depth);
    Ok(Level(()))
}
