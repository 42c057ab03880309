//! Events as rows of a table.

use crate::api::call::events::EventRow;
use crate::cli::{Column, Line, Tone, plain, short_at, title};
use crate::wire::outcome::Outcome;
use crate::wire::outcome::states::StateRow;

pub(super) fn columns() -> [Column; 6] {
    [
        Column::right("SEQ"),
        Column::time(title("TIME", "TIME (UTC)")),
        Column::middle_truncated("TAG").toned_by_row(),
        Column::middle_truncated("MINION")
            .min_chars(9)
            .drop_order(2),
        Column::truncated("FUN").drop_order(1),
        Column::middle_truncated("MASTER")
            .min_chars(9)
            .drop_order(3)
            .if_different(),
    ]
}

pub(super) fn row(event: &EventRow) -> Vec<String> {
    let text = |text: &str| plain(text).into_owned();
    let optional = |name: &Option<String>| name.as_deref().map_or_else(String::new, text);
    vec![
        event.seq.to_string(),
        short_at(event.time),
        text(&event.tag),
        optional(&event.minion),
        optional(&event.fun),
        optional(&event.master),
    ]
}

/// What an event says of a result: a return whether it failed, or changed something.
pub(super) fn tone(event: &EventRow) -> Tone {
    let (Some(jid), Some(minion)) = (&event.jid, &event.minion) else {
        return Tone::Plain;
    };

    let outcome = Outcome::of(event.data.packed(), jid);
    // The publish of a job also names minions.
    if outcome.value.is_none() {
        return Tone::Plain;
    }

    if outcome.failed() {
        Tone::Bad
    } else if outcome.states(minion).iter().any(StateRow::changed) {
        Tone::Warning
    } else {
        Tone::Good
    }
}

/// An event as a line that is not aligned with others.
pub(super) fn line(event: &EventRow) -> Line {
    // The tag is the third cell.
    let tones = [Tone::Plain, Tone::Plain, tone(event)];
    let tones = tones.into_iter().chain(std::iter::repeat(Tone::Plain));
    let cells = row(event).into_iter().zip(tones);

    let mut line = Line::default();
    for (number, (cell, tone)) in cells.filter(|(cell, _)| !cell.is_empty()).enumerate() {
        if number > 0 {
            line = line.and(Tone::Plain, "  ");
        }
        line = line.and(tone, cell);
    }
    line
}
