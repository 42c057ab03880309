//! The arrival time of the newest entry of each segment, as far as clocks can be trusted.

use std::sync::Arc;

use crate::segment::Segment;
use crate::segment::usage::SegmentUsage;
use saltcellar_base::clock::{Micros, micros};
use saltcellar_base::limits::SEGMENT_AGE_MAX;

/// The arrival time of the newest entry of each segment of a class, given oldest first. It is the
/// latest time of the segment's entries, unless that is provably wrong:
///
/// - In the future (set by a caller, or by a clock that was ahead): the entry is not newer than the
///   next log, and an active segment is finished after [`SEGMENT_AGE_MAX`].
/// - Unknown, because no entry of the log can be read now: as in the future.
/// - In a log created before an older one according to the headers (the clock was set back): the
///   entry is not older than the entries of earlier segments.
pub(super) fn arrivals(usages: &[(Arc<Segment>, SegmentUsage)], now: Micros) -> Vec<Micros> {
    let created =
        |segment: &Segment| Some(segment.log().created()).filter(|at| *at != Micros::default());

    let mut next = None;
    // From the newest to the oldest: a log is newer than all entries of the logs before it.
    let mut found = Vec::with_capacity(usages.len());

    for (segment, segment_usage) in usages.iter().rev() {
        let created_at = created(segment);

        let finished = || {
            Some(Micros(
                created_at?.0.saturating_add(micros(SEGMENT_AGE_MAX)),
            ))
        };
        // A timestamp in the future is not trusted, and without entries both timestamps are zero:
        // see above for the bound that replaces them.
        let is_known = segment_usage.entries > 0 && segment_usage.at_max <= now;

        found.push(if is_known {
            segment_usage.at_max
        } else {
            next.or_else(finished).unwrap_or(segment_usage.at_max)
        });
        next = next.into_iter().chain(created_at).min();
    }
    // From the oldest to the newest, for logs that claim to be older than their predecessors.
    found.reverse();

    let (mut created_last, mut newest) = (Micros(i64::MIN), Micros(i64::MIN));
    for ((segment, _), at) in usages.iter().zip(&mut found) {
        let created_at = created(segment).unwrap_or(created_last);
        // Its entries are treated as no older than those before it, so it is not dropped before
        // them.
        if created_at < created_last {
            *at = newest.max(*at);
        }

        created_last = created_at.max(created_last);
        newest = newest.max(*at);
    }
    found
}
