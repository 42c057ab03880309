//! The call about the daemon's status.

use super::{Call, In, NoArgs, Run, Whole, failed};
use crate::api::status::{Status, status};
use crate::wire::call::CallError;

/// `status`.
pub(crate) struct Show;

impl Call for Show {
    const NAME: &'static str = "status";
    const DOC: &'static str = "Show the status of the daemon, its sources and its store";
    type Scope = Whole;
    type Args<'a> = NoArgs;
    type Answer = Status;
}

impl Run for Show {
    fn run(ctx: &In<'_, Self>, _: NoArgs) -> Result<Status, CallError> {
        status(ctx).map_err(failed)
    }
}
