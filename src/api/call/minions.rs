//! Calls about minions.

use salt_sls::Glob;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Call, In, Limited, OF_MINIONS, Run, failed};
use crate::api::query::{
    Minion, MinionState, MinionsFilter, MinionsPage, MinionsSort, members, minion, minions_list,
    not_seen_since,
};
use crate::base::limits::MINIONS_ROWS_MAX;
use crate::model::Limit;
use crate::wire::call::CallError;
use crate::wire::msgpack::Time;

/// `minions_list`.
pub(crate) struct List;

#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
pub(crate) struct ListArgs {
    /// Maximum number of rows
    pub(crate) limit: Option<usize>,
    /// Only minions that match this glob
    pub(crate) minion: Option<Glob>,
    /// Only minions whose last highstate failed, or with missing returns
    #[serde(default)]
    pub(crate) attention: bool,
    /// Only minions in this state: failed, changed or ok by their last highstate of the last 14 days; missing returns of the last 24 hours; or not seen for 24 hours
    pub(crate) state: Option<MinionState>,
    /// Only minions that were seen before this time, and not since
    pub(crate) not_seen_since: Option<Time>,
    /// Only minions after this one: `next` of the previous page
    pub(crate) after: Option<String>,
    /// Order: id, last_seen (the latest first), failed (failed highstates first) or missing (most missing returns first)
    pub(crate) sort: Option<MinionsSort>,
}

impl Call for List {
    const NAME: &'static str = "minions_list";
    const DOC: &'static str = "List minions with their last jobs";
    const APPLIES: &'static [Limit] = OF_MINIONS;
    type Scope = Limited;
    type Args<'a> = ListArgs;
    type Answer = MinionsPage;
}

impl Run for List {
    fn run(ctx: &In<'_, Self>, args: ListArgs) -> Result<MinionsPage, CallError> {
        let only = args
            .state
            .map(|state| members(&ctx.store, &ctx.others, &ctx.digest, state).map_err(failed))
            .transpose()?;

        let silent = args
            .not_seen_since
            .map(|Time(since)| not_seen_since(&ctx.store, since).map_err(failed))
            .transpose()?;

        let only = match (only, silent) {
            (Some(only), Some(silent)) => Some(only.and(&silent)),
            (only, silent) => only.or(silent),
        };
        let (highstates_since, events_since) = only
            .as_ref()
            .map(|only| (only.highstates_since, only.events_since))
            .unwrap_or_default();

        let filter = MinionsFilter {
            only: only.map(|members| members.ids),
            minion: args.minion,
            attention: args.attention,
            after: args.after,
            sort: args.sort.unwrap_or_default(),
            limit: args
                .limit
                .unwrap_or(MINIONS_ROWS_MAX)
                .clamp(1, MINIONS_ROWS_MAX),
        };
        let mut page = minions_list(&ctx.store, &ctx.others, &filter).map_err(failed)?;
        page.skipped.highstates_since = highstates_since.map(Time);
        // The later time, because since then both have been read.
        page.skipped.events_since = page.skipped.events_since.max(events_since.map(Time));
        Ok(page)
    }
}

/// `minions_show`.
pub(crate) struct Show;

#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
pub(crate) struct ShowArgs {
    /// The minion's id
    pub(crate) minion: String,
}

impl Call for Show {
    const NAME: &'static str = "minions_show";
    const DOC: &'static str = "Show one minion";
    const APPLIES: &'static [Limit] = OF_MINIONS;
    type Scope = Limited;
    type Args<'a> = ShowArgs;
    /// None for an unknown minion.
    type Answer = Option<Minion>;
}

impl Run for Show {
    fn run(ctx: &In<'_, Self>, args: ShowArgs) -> Result<Option<Minion>, CallError> {
        minion(&ctx.store, &ctx.others, &ctx.digest, &args.minion).map_err(failed)
    }
}
