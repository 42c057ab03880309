//! Titles of tabs, which bookmarks, the history and screen readers have too.

use hyper::StatusCode;

use crate::base::limits::PAGE_TITLE_PART_MAX;
use crate::base::units::cut;
use crate::base::visible::plain;

/// A title made of the parts that are not empty. A part may come from outside, therefore it is cut,
/// and invisible characters are spelled out.
pub(super) fn title(parts: &[&str]) -> String {
    let shown = |part: &&str| cut(&plain(part), PAGE_TITLE_PART_MAX).into_owned();

    let given = parts.iter().filter(|part| !part.is_empty());
    given.map(shown).collect::<Vec<_>>().join(" · ")
}

/// The title of an error's tab.
pub(super) fn error_title(status: StatusCode) -> String {
    title(&["Error", status.as_str()])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_title_is_short_and_visible() {
        assert_eq!(
            title(&["state.apply", "", "37 failed"]),
            "state.apply · 37 failed"
        );
        assert_eq!(title(&["a\u{202e}b\x1b\n"]), "a\\u{202e}b\\x1b\\n");
        let long = title(&[&"é".repeat(PAGE_TITLE_PART_MAX + 1)]);
        assert_eq!(long.chars().count(), PAGE_TITLE_PART_MAX + 1);
        assert!(long.ends_with('…'), "{long}");
    }
}
