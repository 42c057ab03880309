//! The parts of the daemon as calls that change them get them.

use std::ops::Deref;

use crate::api::caller::Caller;

/// The context of a call that changes something.
pub(crate) struct ChangeCtx<'a, P> {
    part: &'a P,
    pub(crate) caller: &'a Caller,
}

impl<'a, P> ChangeCtx<'a, P> {
    pub(super) fn new(part: &'a P, caller: &'a Caller) -> Self {
        Self { part, caller }
    }
}

impl<P> Deref for ChangeCtx<'_, P> {
    type Target = P;

    fn deref(&self) -> &P {
        self.part
    }
}
