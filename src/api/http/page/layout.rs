//! What a page has around its template, and the pages without a view.

use serde::Serialize;

/// What every page has around its template; without a reader, only the template's part is shown.
#[derive(Default, Serialize)]
pub(super) struct Layout<'a> {
    pub(super) who: &'a str,
    pub(super) right: &'a str,
    pub(super) signed_in: bool,
    pub(super) title: &'a str,
    /// The entry of the navigation.
    pub(super) part: &'a str,
    pub(super) version: &'a str,
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
