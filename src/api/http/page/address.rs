//! The address of a view: its filter, its time range and its place in a list, which keep each other
//! in every link of the view.

use std::collections::HashMap;

use serde::Serialize;

use super::super::answer::HttpError;
use super::render::encoded;
use crate::base::clock::Micros;
use crate::base::limits::PAGE_BACK_BYTES_MAX;

/// Fields of a place in a list. A change of the filter leaves them out: they are places in another
/// list.
const PLACE: [&str; 4] = ["cursor", "after", "before", BACK];

/// The cursors of the pages between the first one and this one.
const BACK: &str = "back";

/// The spans of `last` that the form offers, in seconds.
const SPANS: [(&str, i64); 4] = [
    ("1h", 3600),
    ("1d", 86_400),
    ("7d", 7 * 86_400),
    ("30d", 30 * 86_400),
];

/// The time range that an address selects.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum TimeRange<'a> {
    All,
    /// Up to now.
    Last(&'a str),
    /// `since` and `until`, of which one may be absent.
    Between,
}

/// The fields of an address.
#[derive(Debug, Clone, Copy)]
pub(super) struct Address<'a> {
    pub(super) query: &'a [(String, String)],
    pub(super) now: Micros,
}

/// The links from a page of a list to the others.
#[derive(Debug, Default, PartialEq, Eq, Serialize)]
#[expect(
    clippy::struct_field_names,
    reason = "flattened into the data of templates, where `next` is that of the call"
)]
pub(super) struct Paging {
    pub(super) next_page: Option<String>,
    pub(super) newer_page: Option<String>,
    /// The first page, unless `newer_page` is that one.
    pub(super) first_page: Option<String>,
}

impl<'a> Address<'a> {
    /// A field that is not empty.
    pub(super) fn field(&self, name: &str) -> Option<&'a str> {
        self.given()
            .find(|(known, _)| *known == name)
            .map(|(_, value)| value)
    }

    /// The fields that are not empty: a form sends all of its fields.
    fn given(&self) -> impl Iterator<Item = (&'a str, &'a str)> + use<'a> {
        self.query
            .iter()
            .map(|(name, value)| (name.as_str(), value.as_str()))
            .filter(|(_, value)| !value.is_empty())
    }

    fn range(&self) -> TimeRange<'a> {
        let chosen = self.query.iter().find(|(name, _)| name == "last");
        match chosen.map(|(_, value)| value.as_str()) {
            // The form was sent with "all", and fields of a range that are not shown.
            Some("") => TimeRange::All,
            Some("between") => TimeRange::Between,
            Some(span) => TimeRange::Last(span),
            None if self.field("since").or(self.field("until")).is_some() => TimeRange::Between,
            None => TimeRange::All,
        }
    }

    /// Start and end of the time range.
    pub(super) fn bounds(&self) -> Result<[Option<Micros>; 2], HttpError> {
        Ok(match self.range() {
            TimeRange::All => [None, None],
            TimeRange::Last(span) => [Some(self.before(span)?), None],
            TimeRange::Between => [self.time("since")?, self.time("until")?],
        })
    }

    /// The time this long before now.
    pub(super) fn before(&self, span: &str) -> Result<Micros, HttpError> {
        let known = SPANS.iter().find(|(name, _)| *name == span);
        let (_, seconds) = known.ok_or_else(|| {
            HttpError::bad(format!(
                "`last={span:.20}`: expected 1h, 1d, 7d, 30d or between"
            ))
        })?;
        Ok(Micros(self.now.0.saturating_sub(seconds * 1_000_000)))
    }

    /// A field with a time. A form sends it without a zone, and then it is UTC.
    fn time(&self, name: &str) -> Result<Option<Micros>, HttpError> {
        let Some(text) = self.field(name) else {
            return Ok(None);
        };

        let known = text.parse().ok().map(Micros);
        let known = known.or_else(|| super::render::instant(text));
        let expected = "a time such as 2026-11-21T05:47:28Z, or microseconds since 1970";
        known
            .or_else(|| Micros::of_stamp(text))
            .map(Some)
            .ok_or_else(|| HttpError::bad(format!("`{name}={text:.40}`: expected {expected}")))
    }

    /// The fields for a call, without its time range and the fields of the view itself (`own`).
    pub(super) fn of_call(&self, own: &[&str]) -> impl Iterator<Item = (&'a str, &'a str)> {
        self.given().filter(move |(name, _)| {
            !own.contains(name) && !["last", "since", "until", BACK].contains(name)
        })
    }

    /// The query of this view with other values of these fields; an empty value removes one.
    pub(super) fn with(&self, changed: &[(&str, &str)]) -> String {
        let kept = self
            .given()
            .filter(|(known, _)| !changed.iter().any(|(name, _)| name == known));
        let set = changed
            .iter()
            .copied()
            .filter(|(_, value)| !value.is_empty());
        query(kept.chain(set))
    }

    /// Links to other pages, from the page that the field `cursor` names. `next` is the value of
    /// that field for the next page.
    pub(super) fn paging(&self, cursor: &str, next: Option<&str>) -> Paging {
        let here = self.field(cursor);
        let back: Vec<&str> = self
            .given()
            .filter(|(name, _)| *name == BACK)
            .map(|(_, value)| value)
            .collect();

        let page = |back: &[&'a str], at: Option<&str>| {
            let kept = self
                .given()
                .filter(|(name, _)| *name != BACK && *name != cursor);
            let back = back.iter().map(|one| (BACK, *one));
            query(kept.chain(back).chain(at.map(|at| (cursor, at))))
        };

        // An address has a limit in browsers and servers. Beyond it the way back skips pages.
        let mut passed = back.clone();
        passed.extend(here);
        while passed.iter().map(|one| one.len()).sum::<usize>() > PAGE_BACK_BYTES_MAX {
            passed.remove(0);
        }

        Paging {
            next_page: next.map(|next| page(&passed, Some(next))),
            newer_page: here.map(|_| match back.split_last() {
                Some((last, earlier)) => page(earlier, Some(last)),
                None => page(&[], None),
            }),
            first_page: (!back.is_empty()).then(|| page(&[], None)),
        }
    }

    /// The same view with absolute timestamps instead of `last`, for a link that will show the same
    /// tomorrow; `None` if its range does not depend on now.
    pub(super) fn absolute(&self) -> Result<Option<String>, HttpError> {
        let TimeRange::Last(span) = self.range() else {
            return Ok(None);
        };
        let since = self.before(span)?.iso();
        let changed = [
            ("last", ""),
            ("since", since.as_str()),
            ("until", &self.now.iso()),
        ];
        Ok(Some(self.with(&changed)))
    }

    /// The values of the form's fields.
    pub(super) fn filter(&self) -> HashMap<String, String> {
        let mut filter: HashMap<String, String> = self
            .given()
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
            .collect();

        let is_between = self.range() == TimeRange::Between;
        for name in ["since", "until"] {
            let time = self.time(name).ok().flatten().filter(|_| is_between);
            // As `datetime-local` wants it: a time without a zone, which is UTC.
            let text = time.and_then(Micros::utc).map(|at| format!("{at:.0}"));
            filter.insert(name.to_owned(), text.unwrap_or_default());
        }
        if is_between {
            filter.insert("last".to_owned(), "between".to_owned());
        }
        filter
    }

    /// The fields of the form that restrict what is shown.
    pub(super) fn set(&self, form: &[&str]) -> Vec<String> {
        let mut set: Vec<String> = self
            .given()
            .filter(|(name, _)| form.contains(name))
            .map(|(name, _)| name.to_owned())
            .collect();
        if self.range() != TimeRange::All {
            set.push("time".to_owned());
        }
        set
    }

    /// Fields that the form has no place for, and keeps.
    pub(super) fn kept(&self, form: &[&str]) -> Vec<(String, String)> {
        self.given()
            .filter(|(name, _)| {
                !form.contains(name)
                    && !PLACE.contains(name)
                    && !["last", "since", "until"].contains(name)
            })
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
            .collect()
    }
}

/// A query, with `?`.
pub(super) fn query<'a>(fields: impl Iterator<Item = (&'a str, &'a str)>) -> String {
    let fields: Vec<_> = fields
        .map(|(name, value)| format!("{}={}", encoded(name), encoded(value)))
        .collect();
    format!("?{}", fields.join("&"))
}

#[cfg(test)]
mod tests {
    use axum::extract::Query;
    use hyper::Uri;

    use super::*;

    const NOW: Micros = Micros(1_795_230_637_000_000);

    fn fields(text: &str) -> Vec<(String, String)> {
        let uri: Uri = format!("/{text}").parse().unwrap();
        let Query(fields) = Query::<Vec<(String, String)>>::try_from_uri(&uri).unwrap();
        fields
    }

    fn check<T>(text: &str, of: impl FnOnce(Address<'_>) -> T) -> T {
        let query = fields(text);
        of(Address {
            query: &query,
            now: NOW,
        })
    }

    #[test]
    fn a_query_holds_any_text() {
        let text = query([("tag", "a/*&b=c #\"<é"), ("x", "")].into_iter());
        assert_eq!(
            fields(&text),
            [
                ("tag".to_owned(), "a/*&b=c #\"<é".to_owned()),
                ("x".to_owned(), String::new())
            ]
        );
    }

    #[test]
    fn a_time_range_is_that_of_the_form_or_of_a_shared_link() {
        let at = |text| Micros::of_stamp(text);
        let day_ago = Some(Micros(NOW.0 - 86_400_000_000));
        for (text, expected) in [
            ("?last=1d", [day_ago, None]),
            ("?last=1d&since=2026-11-20T02:00", [day_ago, None]),
            ("?last=&since=2026-11-20T02:00", [None, None]),
            ("?last=between&since=&until=", [None, None]),
            (
                "?last=between&since=2026-11-20T02:00&until=2026-11-20T03:00:30",
                [at("2026-11-20T02:00"), at("2026-11-20T03:00:30")],
            ),
            (
                "?since=2026-11-20T03:00:00%2B01:00",
                [at("2026-11-20T02:00"), None],
            ),
            ("?until=1000", [None, Some(Micros(1000))]),
            ("", [None, None]),
        ] {
            let found = check(text, |address| address.bounds().unwrap());
            assert_eq!(found, expected, "{text}");
        }
        for text in ["?last=1y", "?since=yesterday", "?last=between&until=x"] {
            assert!(check(text, |address| address.bounds().is_err()), "{text}");
        }
    }

    #[test]
    fn a_link_with_absolute_times_has_the_filter_and_the_page() {
        let link = |text| check(text, |address| address.absolute().unwrap());
        assert_eq!(
            link("?fun=a&last=1h&cursor=s:1").unwrap(),
            "?fun=a&cursor=s%3A1&since=2026-11-21T13%3A10%3A37.000000Z&until=2026-11-21T14%3A10%3A37.000000Z"
                .replace("11-21T13", &NOW.before(std::time::Duration::from_secs(3600)).iso()[5..13])
                .replace("11-21T14", &NOW.iso()[5..13])
        );
        assert_eq!(link("?fun=a&since=1"), None);
    }

    #[test]
    fn the_form_shows_the_range_and_keeps_what_it_has_no_field_for() {
        let text = "?fun=a&limit=7&since=2026-11-20T02:00:00Z&cursor=s:1&back=s:0";
        let (filter, kept) = check(text, |address| (address.filter(), address.kept(&["fun"])));
        assert_eq!(filter["last"], "between");
        assert_eq!(filter["since"], "2026-11-20T02:00:00");
        assert_eq!(filter["until"], "");
        assert_eq!(kept, [("limit".to_owned(), "7".to_owned())]);
    }

    #[test]
    fn pages_lead_on_and_back() {
        let links = |text, next| check(text, |address| address.paging("cursor", next));
        let some = |text: &str| Some(text.to_owned());
        let first = links("?fun=a", Some("c1"));
        assert_eq!(first.next_page, some("?fun=a&cursor=c1"));
        assert_eq!((first.newer_page, first.first_page), (None, None));

        let second = links("?fun=a&cursor=c1", Some("c2"));
        assert_eq!(second.next_page, some("?fun=a&back=c1&cursor=c2"));
        assert_eq!(second.newer_page, some("?fun=a"));
        assert_eq!(second.first_page, None, "the newer page is the first one");

        let third = links("?fun=a&back=c1&cursor=c2", None);
        assert_eq!(third.next_page, None);
        assert_eq!(third.newer_page, some("?fun=a&cursor=c1"));
        assert_eq!(third.first_page, some("?fun=a"));
    }

    #[test]
    fn the_way_back_has_a_limit() {
        let long = "x".repeat(PAGE_BACK_BYTES_MAX - 1);
        let text = format!("?back={long}&back=c1&cursor=c2");
        let next = check(&text, |address| address.paging("cursor", Some("c3")));
        assert_eq!(
            next.next_page.as_deref(),
            Some("?back=c1&back=c2&cursor=c3")
        );
    }
}
