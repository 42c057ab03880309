//! Who makes a call.

use std::sync::Arc;

use crate::model::{ReadLimits, Right};

/// The maker of a call, and what limits it: of the local socket by its user, of HTTP by its token.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Caller {
    /// The effective user when the caller connected; `None` if the kernel does not report it.
    pub(crate) uid: Option<u32>,
    /// The process id when the caller connected, if it is a process of this host.
    pub(crate) pid: Option<u32>,
    /// The right of its token; without one the right follows from the user.
    pub(crate) granted: Option<Right>,
    /// Limits on what the caller may read.
    pub(crate) limits: Arc<ReadLimits>,
}
