//! What a page has around its template, and the pages without a view.

use serde::Serialize;

/// What every page has around its template; without a reader, only the template's part is shown.
#[derive(Default, Serialize)]
pub(super) struct Layout<'a> {
    pub(super) who: &'a str,
    pub(super) right: &'a str,
    pub(super) signed_in: bool,
    /// What the token is limited to; empty without limits.
    pub(super) limits: &'a str,
    pub(super) nav: &'a [NavItem],
    /// When the view is made, in microseconds since 1970.
    pub(super) now: i64,
    /// The title of the tab.
    pub(super) title: &'a str,
    /// The entry of the navigation.
    pub(super) part: &'a str,
    pub(super) version: &'a str,
}

/// An entry of the navigation.
#[derive(Debug, Serialize)]
pub(super) struct NavItem {
    pub(super) name: &'static str,
    pub(super) path: &'static str,
    pub(super) text: &'static str,
}

/// The data of `notice.html`.
#[derive(Serialize)]
#[serde(untagged)]
pub(super) enum Notice<'a> {
    /// Leads to a view of this page.
    Arrived {
        to: &'a str,
    },
    /// The form for a token, which leads to `next`.
    SignIn {
        next: &'a str,
        why: Option<&'a str>,
    },
    Failed {
        status: u16,
        message: &'a str,
    },
}
