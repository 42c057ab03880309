//! The call about the shadow reactor: calls of saltcellar's reactor and of Salt's in the log, for
//! comparison.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value as Json;

use super::super::{Call, In, Reacting, Run, Whole, failed};
use crate::base::clock::Micros;
use crate::base::limits::{LIST_BYTES_MAX, REACTOR_SHADOW_SEARCH_BYTES, REACTOR_SHADOW_WINDOW};
use crate::model::{EventFilter, SeqNo};
use crate::reactor::run::engine::ReactorReader;
use crate::reactor::shadow::{ShadowItem, is_of_interest, is_timely};
use crate::store::StoreReader;
use crate::wire::call::CallError;
use crate::wire::msgpack::{Time, encode};

/// Bytes of the log searched between checks for a full page.
const STEP_BYTES: usize = 1024 * 1024;

answers! {
    /// Calls made or shadowed, in the order of the log.
    ShadowPage {
        /// Mappings with `item` and its fields.
        #[schemars(with = "Vec<BTreeMap<String, Json>>")]
        items: Vec<ShadowItem>,
        /// `from` of the next page.
        next: u64,
        more: bool,
        /// The time up to which the log was read.
        reached: Time,
        window_s: u64,
        workers: u64,
    }
}

/// `reactor_shadow`.
pub(crate) struct Shadow;

#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
pub(crate) struct ShadowArgs {
    /// Start with this sequence number: `next` of the previous page
    pub(crate) from: Option<u64>,
    /// Start with the first entry since this time
    pub(crate) since: Option<Time>,
}

impl Call for Shadow {
    const NAME: &'static str = "reactor_shadow";
    const DOC: &'static str = "List calls of saltcellar's reactor and of Salt's for comparison";
    type Scope = Whole<Reacting>;
    type Args<'a> = ShadowArgs;
    type Answer = ShadowPage;
}

impl Run for Shadow {
    fn run(ctx: &In<'_, Self>, args: ShadowArgs) -> Result<ShadowPage, CallError> {
        let mut from = match (args.from, args.since) {
            (Some(from), _) => SeqNo(from),
            (None, Some(Time(since))) => first_since(ctx.archive.store, since)?,
            (None, None) => SeqNo(1),
        };

        // The clock is read before the end of the log. All entries of a time that counts as over
        // are then before that end.
        let now = ctx.archive.clock.now();
        let durable = ctx.archive.store.durable();
        let mut items = Vec::new();
        let mut bytes = 0;
        let mut searched = 0;
        let mut seen = None;
        let mut invalid = None;
        while from < durable && bytes < LIST_BYTES_MAX && searched < REACTOR_SHADOW_SEARCH_BYTES {
            // A step may exceed the limits by its own bytes; that is cheaper than ending within it.
            let take = |row: crate::store::Followed<'_>| {
                // The time of a spooled entry may differ from the time of its neighbours in the
                // log.
                if is_timely(row.source) {
                    seen = seen.max(Some(row.at));
                }

                for item in ShadowItem::read(&row) {
                    match encode(&item) {
                        Ok(packed) => bytes += packed.len(),
                        Err(why) => invalid = Some(why),
                    }
                    items.push(item);
                }
            };

            from = ctx
                .archive
                .store
                .follow(is_of_interest, from, STEP_BYTES, take)
                .map_err(failed)?;
            searched += STEP_BYTES;
        }
        // A page with a missing item would be read as a call that was not made.
        if let Some(why) = invalid {
            return Err(why.into());
        }

        let is_over = from >= durable;
        let window = ctx
            .handle
            .map_or(REACTOR_SHADOW_WINDOW, ReactorReader::shadow_window);

        // The end of the log is the present: windows that are over by now are complete.
        let reached = if is_over { Some(now) } else { seen };
        Ok(ShadowPage {
            items,
            next: from.0,
            more: !is_over,
            reached: Time(reached.unwrap_or_default()),
            window_s: window.as_secs(),
            workers: ctx.handle.map_or(0, ReactorReader::salts_workers) as u64,
        })
    }
}

/// The first event at or after `since`.
fn first_since(store: &StoreReader, since: Micros) -> Result<SeqNo, CallError> {
    let before = EventFilter {
        until: Some(since),
        ..EventFilter::default()
    };
    let latest = store
        .events_before(&before, store.durable(), 1, 1)
        .map_err(failed)?;
    Ok(latest.first().map_or(SeqNo(1), |event| event.seq.next()))
}
