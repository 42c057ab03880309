//! The call about the shadow reactor: calls of our reactor and of Salt's in the log, for
//! comparison.

use super::super::{Ctx, failed};
use crate::base::clock::Micros;
use crate::base::limits::{LIST_BYTES_MAX, REACTOR_SHADOW_SEARCH_BYTES, REACTOR_SHADOW_WINDOW};
use crate::model::{EventFilter, SeqNo};
use crate::reactor::run::engine::Handle;
use crate::reactor::shadow::{ShadowItem, is_of_interest, is_timely};
use crate::wire::call::{Args, CallError};
use crate::wire::msgpack::Writer;

/// Bytes of the log searched between checks for a full page.
const STEP_BYTES: usize = 1024 * 1024;

/// Calls made or shadowed, in the order of the log.
pub(in crate::api::call) fn shadow(ctx: &Ctx, args: &Args<'_>) -> Result<Vec<u8>, CallError> {
    let mut from = match (args.count("from")?, args.int("since")?) {
        (Some(from), _) => SeqNo(from as u64),
        (None, Some(since)) => first_since(ctx, Micros(since))?,
        (None, None) => SeqNo(1),
    };

    let durable = ctx.store.durable();
    let mut items = Vec::new();
    let (mut count, mut searched, mut seen, mut invalid) = (0, 0, None, None);
    while from < durable && items.len() < LIST_BYTES_MAX && searched < REACTOR_SHADOW_SEARCH_BYTES {
        // A step may exceed the limits by its own bytes; that is cheaper than ending within it.
        let take = |row: crate::store::Followed<'_>| {
            // The time of a spooled entry is not that of the log at this point.
            if is_timely(row.source) {
                seen = seen.max(Some(row.at));
            }

            for item in ShadowItem::read(&row) {
                match item.packed() {
                    Ok(bytes) => items.extend(bytes),
                    Err(why) => invalid = Some(why),
                }
                count += 1;
            }
        };

        from = ctx
            .store
            .follow(is_of_interest, from, STEP_BYTES, take)
            .map_err(failed)?;
        searched += STEP_BYTES;
    }
    // A page with a missing item would be read as a call that was not made.
    if let Some(why) = invalid {
        return Err(CallError::Internal(why));
    }

    let is_over = from >= durable;
    let window = ctx
        .reactor
        .as_ref()
        .map_or(REACTOR_SHADOW_WINDOW, Handle::shadow_window);

    let mut w = Writer::new();
    w.map(6).str("items").array(count).raw(&items);
    w.str("next").uint(from.0).str("more").bool(!is_over);

    // The end of the log is the present: windows that are over by now are complete.
    let reached = if is_over { Some(ctx.clock.now()) } else { seen };
    w.str("reached").int(reached.unwrap_or_default().0);

    w.str("window_s").uint(window.as_secs());
    w.str("workers")
        .uint(ctx.reactor.as_ref().map_or(0, Handle::salts_workers) as u64);
    Ok(w.into_bytes())
}

/// The first event at or after `since`.
fn first_since(ctx: &Ctx, since: Micros) -> Result<SeqNo, CallError> {
    let before = EventFilter {
        until: Some(since),
        ..EventFilter::default()
    };
    let latest = ctx
        .store
        .events_before(&before, ctx.store.durable(), 1, 1)
        .map_err(failed)?;
    Ok(latest.first().map_or(SeqNo(1), |event| event.seq.next()))
}
