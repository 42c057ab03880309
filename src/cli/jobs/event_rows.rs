//! Events as rows of a table.

use crate::api::call::events::EventRow;
use crate::cli::{Column, plain, short_at, title};

pub(super) fn columns() -> [Column; 6] {
    [
        Column::right("SEQ"),
        Column::left(title("TIME", "TIME (UTC)")),
        Column::middle_truncated("TAG"),
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
