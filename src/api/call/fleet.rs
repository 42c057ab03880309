//! The call for the state of the fleet.

use super::{Call, In, Limited, NoArgs, OF_JOBS, Run, failed};
use crate::api::query::{Fleet, fleet};
use crate::model::Limit;
use crate::wire::call::CallError;

/// `fleet`.
pub(crate) struct Show;

impl Call for Show {
    const NAME: &'static str = "fleet";
    const DOC: &'static str = "Count minions by their last highstate, and highstates by day";
    const APPLIES: &'static [Limit] = OF_JOBS;
    type Scope = Limited;
    type Args<'a> = NoArgs;
    type Answer = Fleet;
}

impl Run for Show {
    fn run(ctx: &In<'_, Self>, _: NoArgs) -> Result<Fleet, CallError> {
        fleet(&ctx.store, &ctx.others, &ctx.digest).map_err(failed)
    }
}
