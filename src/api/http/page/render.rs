//! Templates, and the filters that they use.

use std::borrow::Cow;
use std::fmt::Write as _;
use std::sync::LazyLock;
use std::time::Duration;

use minijinja::value::{Serde, ValueKind};
use minijinja::{
    AutoEscape, Environment, HtmlEscape, State, UndefinedBehavior, Value, escape_formatter,
};
use salt_sls::jinja::bounded::BoundedSource;
use serde::Serialize;

use super::super::answer::HttpError;
use crate::base::clock::Micros;
use crate::base::limits::{PAGE_TEXT_MAX, PAGE_TREE_DEPTH_MAX, PAGE_TREE_NODES_MAX};
use crate::base::units;
use crate::base::visible::plain;
use crate::wire::call::CallError;
use crate::wire::msgpack::{Stored, as_text, elements};

macro_rules! templates {
    ($($name:literal)+) => { &[$(($name, include_str!(concat!("templates/", $name)))),+] };
}

pub(super) const TEMPLATES: &[(&str, &str)] = templates! {
    "causes.html" "diff.html" "durations.html" "delivery.html" "events.html" "failures.html" "find.html" "fleet.html"
    "job.html" "jobs.html" "layout.html" "minion.html" "minions.html" "notice.html" "overview.html" "reaction.html"
    "reactor.html" "strip.html" "times.html"
};

/// The time before and after an event or a job that a link shows.
const AROUND: Duration = Duration::from_secs(5 * 60);

/// Depth to which a tree is open.
const TREE_OPEN: usize = 3;

static PAGES: LazyLock<Environment<'static>> = LazyLock::new(|| {
    let mut env = Environment::new();
    env.set_auto_escape_callback(|_| AutoEscape::Html);
    env.set_undefined_behavior(UndefinedBehavior::Chainable);
    // Applied to every value, because a template could forget it. Only the filters below make
    // output that is marked as safe.
    env.set_formatter(|out, state, value| {
        if value.is_none() {
            return Ok(());
        }
        match value.as_str().filter(|_| !value.is_safe()).map(shown) {
            Some(Cow::Owned(text)) => escape_formatter(out, state, &Value::from(text)),
            _ => escape_formatter(out, state, value),
        }
    });

    env.add_filter("ago", ago);
    env.add_filter("around", around);
    env.add_filter("brief", brief);
    env.add_filter("bytes", |value: &Value| short(units::bytes, value));
    env.add_filter("iso", |value: &Value| iso(value).unwrap_or_default());
    env.add_filter("ms", |value: &Value| duration(value));
    env.add_filter("part", part);
    env.add_filter("shown_as", shown_as);
    env.add_filter("precise", precise);
    env.add_filter("span", |value: &Value| short(units::span, value));
    env.add_filter("tree", tree);
    env.add_filter("when", when);
    env.add_filter("words", words);

    for (name, text) in TEMPLATES {
        let syntax = env.syntax().clone();
        let added = match BoundedSource::template(text, syntax) {
            Ok(source) => source
                .add_to(&mut env, name)
                .map_err(|error| error.to_string()),
            Err(error) => Err(error.to_string()),
        };
        // A malformed template costs its view alone.
        if let Err(error) = added {
            tracing::error!(
                name,
                error,
                "page template malformed, views that use it fail: report this message"
            );
        }
    }

    env
});

/// The data of a template, of a type of its own.
pub(super) trait Data: Send {
    fn value(&self) -> Value;
}

impl<T: Serialize + Send> Data for T {
    fn value(&self) -> Value {
        Value::from(Serde(self))
    }
}

/// A page: the template within the layout.
pub(super) fn page(template: &str, frame: &dyn Data, data: &dyn Data) -> Result<String, HttpError> {
    let failed = |error: minijinja::Error| {
        tracing::error!(template, %error, "cannot render a page, the browser gets an error: report this message");
        HttpError::from(CallError::Internal(format!(
            "the page cannot be rendered: {error}"
        )))
    };

    let (frame, data) = (frame.value(), data.value());
    let render = |name: &str, body: Value| {
        let template = PAGES.get_template(name)?;
        template.render(minijinja::context! { page => &frame, data => &data, body => body })
    };

    // The view first: the layout has it as a variable, which replaces template inheritance.
    let body = render(template, Value::default()).map_err(failed)?;
    render("layout.html", Value::from_safe_string(body)).map_err(failed)
}

/// Text whose invisible characters are spelled out, as on the command line: a minion's id must not
/// look like another one. Lines and tabs stay what they are.
fn shown(text: &str) -> Cow<'_, str> {
    let is_plain = |c: char| (' '..='~').contains(&c) || matches!(c, '\n' | '\t');
    // Nearly every string: no copy.
    if text.chars().all(is_plain) {
        return Cow::Borrowed(text);
    }

    let mut out = String::with_capacity(text.len());
    for part in text.split_inclusive(['\n', '\t']) {
        let (line, end) = match part.strip_suffix(['\n', '\t']) {
            // The end of a line that Windows made is no text.
            Some(line) => (
                line.strip_suffix('\r').unwrap_or(line),
                part.get(line.len()..).unwrap_or_default(),
            ),
            None => (part, ""),
        };
        out.push_str(&plain(line));
        out.push_str(end);
    }
    Cow::Owned(out)
}

/// A value in one line: strings as they are, other values as JSON, cut at a limit.
fn brief(value: &Value) -> String {
    let text = match value.as_str() {
        Some(text) => text.to_owned(),
        None if value.is_none() || value.is_undefined() => String::new(),
        None => serde_json::to_string(value).unwrap_or_else(|error| error.to_string()),
    };
    units::cut(&text, PAGE_TEXT_MAX).into_owned()
}

/// Arguments in one line, as on a command line.
fn words(value: &Value) -> String {
    let words: Vec<String> = value
        .try_iter()
        .into_iter()
        .flatten()
        .map(|one| brief(&one))
        .collect();
    brief(&Value::from(words.join(" ")))
}

/// A number of seconds, or of bytes, in few characters.
fn short(of: fn(u64) -> String, value: &Value) -> String {
    of(u64::try_from(value.as_i64().unwrap_or(0)).unwrap_or(0))
}

/// A number of milliseconds, in few characters.
fn duration(value: &Value) -> String {
    let ms = f64::try_from(value.clone()).unwrap_or(0.0);
    match ms {
        ..10.0 => format!("{ms:.1} ms"),
        ..1_000.0 => format!("{ms:.0} ms"),
        ..60_000.0 => format!("{:.1} s", ms / 1e3),
        _ => format!("{:.1} min", ms / 6e4),
    }
}

/// A part that several views have, by the template for it.
fn shown_as(
    state: &State<'_, '_>,
    value: &Value,
    template: &str,
) -> Result<Value, minijinja::Error> {
    let template = state.env().get_template(template)?;
    let text = template.render(minijinja::context! { data => value })?;
    Ok(Value::from_safe_string(text))
}

/// Text as a part of a path or as a value in a query.
fn part(value: &Value) -> Value {
    Value::from_safe_string(encoded(&plain_text(value)))
}

pub(super) fn encoded(text: &str) -> String {
    let mut encoded = String::new();
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            encoded.push(char::from(byte));
        } else {
            let _ = write!(encoded, "%{byte:02X}");
        }
    }
    encoded
}

fn plain_text(value: &Value) -> String {
    value
        .as_str()
        .map_or_else(|| value.to_string(), str::to_owned)
}

/// A time as ISO text: it is that, or microseconds since 1970.
fn iso(value: &Value) -> Option<String> {
    match value.as_i64() {
        Some(at) => Some(Micros(at).iso()),
        None => value.as_str().map(str::to_owned),
    }
}

/// The instant of ISO text.
pub(super) fn instant(text: &str) -> Option<Micros> {
    let at: jiff::Timestamp = text.parse().ok()?;
    Some(Micros(at.as_microsecond()))
}

/// The instant of ISO text, or of microseconds since 1970.
fn micros(value: &Value) -> Option<Micros> {
    match value.as_i64() {
        Some(at) => Some(Micros(at)),
        None => instant(value.as_str()?),
    }
}

/// A day and a time in few characters, for titles.
pub(super) fn calendar(at: Micros) -> String {
    at.utc()
        .map_or_else(|| at.iso(), |at| at.strftime("%-d %b %H:%M").to_string())
}

/// The string in a stored value that is a string, or a list of strings.
pub(super) fn text_of(value: &Stored) -> String {
    let packed = value.packed();
    as_text(packed).map_or_else(
        || {
            elements(packed)
                .filter_map(as_text)
                .collect::<Vec<_>>()
                .join(", ")
        },
        str::to_owned,
    )
}

/// A time to the second: ISO text, or microseconds since 1970.
fn when(value: &Value) -> Value {
    time(value, "YYYY-MM-DD HH:MM:SS".len())
}

/// A time to the millisecond.
fn precise(value: &Value) -> Value {
    time(value, "YYYY-MM-DD HH:MM:SS.mmm".len())
}

/// A time in UTC, cut to this many characters. The page states the zone once.
fn time(value: &Value, len: usize) -> Value {
    let Some(iso) = iso(value) else {
        return Value::from_safe_string(String::new());
    };

    let text = match iso.get(..len) {
        Some(text) if iso.ends_with('Z') => text.replace('T', " "),
        _ => iso.clone(),
    };

    Value::from_safe_string(format!(
        "<time datetime=\"{}\">{}</time>",
        HtmlEscape(&iso),
        HtmlEscape(&text)
    ))
}

/// A time, and how long before the making of the page it was.
fn ago(state: &State, value: &Value) -> Value {
    let exact = when(value);
    let now = state
        .lookup("page")
        .and_then(|page| page.get_attr("now").ok());
    let passed = micros(value)
        .zip(now.and_then(|now| now.as_i64()))
        .and_then(|(Micros(at), now)| u64::try_from(now.checked_sub(at)? / 1_000_000).ok());

    // A time in the future comes from another clock.
    let Some(passed) = passed else {
        return exact;
    };
    let span = units::span(passed);
    Value::from_safe_string(format!("{exact} <small class=\"ago\">{span} ago</small>"))
}

/// The fields of a time range around a time.
fn around(value: &Value) -> Value {
    let fields = micros(value).map(|at| {
        let [since, until] = [at.before(AROUND), at.after(AROUND)].map(|at| encoded(&at.iso()));
        format!("since={since}&amp;until={until}")
    });
    Value::from_safe_string(fields.unwrap_or_default())
}

/// Whether a string is a unified diff, as states report changes of files.
fn is_diff(text: &str) -> bool {
    text.starts_with("--- ") && text.contains("\n+++ ") || text.starts_with("@@ ")
}

/// A value as nested lists.
fn tree(value: &Value) -> Value {
    let mut tree = Tree::default();
    tree.append(value, 0);
    if tree.nodes >= PAGE_TREE_NODES_MAX {
        tree.html
            .push_str("<p>The rest is not shown; the API returns all of it.</p>");
    }

    Value::from_safe_string(tree.html)
}

#[derive(Default)]
struct Tree {
    html: String,
    nodes: usize,
}

impl Tree {
    fn append(&mut self, value: &Value, depth: usize) {
        let is_empty = value.len() == Some(0);
        match value.kind() {
            ValueKind::Map if !is_empty => {
                self.html.push_str("<ul class=\"tree\">");
                for key in value.try_iter().into_iter().flatten() {
                    self.item(
                        &plain_text(&key),
                        &value.get_item(&key).unwrap_or_default(),
                        depth,
                    );
                }
                self.html.push_str("</ul>");
            }
            ValueKind::Seq | ValueKind::Iterable if !is_empty => {
                self.html.push_str("<ul class=\"tree\">");
                for (n, item) in value.try_iter().into_iter().flatten().enumerate() {
                    self.item(&n.to_string(), &item, depth);
                }
                self.html.push_str("</ul>");
            }
            ValueKind::String => {
                let text = value.as_str().unwrap_or_default();
                if is_diff(text) {
                    self.diff(text);
                    return;
                }
                let tag = if text.contains('\n') { "pre" } else { "span" };

                // Writing to a `String` cannot fail.
                let _ = write!(
                    self.html,
                    "<{tag} class=\"text\">{}</{tag}>",
                    HtmlEscape(&shown(text))
                );
            }
            _ => {
                let text = serde_json::to_string(value).unwrap_or_default();

                let _ = write!(
                    self.html,
                    "<span class=\"scalar\">{}</span>",
                    HtmlEscape(&shown(&text))
                );
            }
        }
    }

    /// A unified diff, with a class for each line that was added or removed.
    fn diff(&mut self, text: &str) {
        self.html.push_str("<pre class=\"text\">");
        for line in text.lines() {
            let class = match line.as_bytes() {
                // The names of the two files.
                [b'+', b'+', b'+', ..] | [b'-', b'-', b'-', ..] => None,
                [b'+', ..] => Some("plus"),
                [b'-', ..] => Some("minus"),
                _ => None,
            };
            let line = shown(line);
            let line = HtmlEscape(&line);

            // Writing to a `String` cannot fail.
            let _ = match class {
                Some(class) => writeln!(self.html, "<span class=\"{class}\">{line}</span>"),
                None => writeln!(self.html, "{line}"),
            };
        }
        self.html.push_str("</pre>");
    }

    fn item(&mut self, key: &str, value: &Value, depth: usize) {
        self.nodes += 1;
        // Counted and not shown: `tree` adds that there is more.
        if self.nodes >= PAGE_TREE_NODES_MAX {
            return;
        }

        let key = shown(key);
        let key = HtmlEscape(&key);
        let is_nested =
            matches!(value.kind(), ValueKind::Map | ValueKind::Seq) && value.len() != Some(0);

        // A browser cuts a document at 512 levels.
        if is_nested && depth >= PAGE_TREE_DEPTH_MAX {
            let _ = write!(
                self.html,
                "<li><b>{key}</b>: nested deeper; the API returns all of it</li>"
            );
        } else if is_nested {
            let open = if depth < TREE_OPEN { " open" } else { "" };
            let _ = write!(self.html, "<li><details{open}><summary>{key}</summary>");
            self.append(value, depth + 1);
            self.html.push_str("</details></li>");
        } else {
            let _ = write!(self.html, "<li><b>{key}</b>: ");
            self.append(value, depth + 1);
            self.html.push_str("</li>");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value as Json, json};

    const HOSTILE: &str = "<script>alert(1)</script>\"'&</a>{{ 7 * 7 }}{% x %}";

    #[test]
    fn every_template_is_well_formed() {
        for (name, _) in TEMPLATES {
            PAGES
                .get_template(name)
                .unwrap_or_else(|error| panic!("{name}: {error}"));
        }
    }

    #[test]
    fn filters_escape_text() {
        for filter in [tree, when] {
            for value in [
                json!(HOSTILE),
                json!({ HOSTILE: [HOSTILE, { HOSTILE: HOSTILE }] }),
            ] {
                let html = filter(&Value::from(Serde(&value))).to_string();
                assert!(!html.contains("<script") && !html.contains("\"'"), "{html}");
            }
        }
        assert_eq!(
            part(&Value::from("a/b?c&d=é")).to_string(),
            "a%2Fb%3Fc%26d%3D%C3%A9"
        );
    }

    #[test]
    fn lines_of_a_diff_have_their_colours_and_are_escaped() {
        let diff = "--- \n+++ \n@@ -1 +1 @@\n-old <b>\n+new\u{202e}\n same";
        let html = tree(&Value::from(diff)).to_string();
        assert!(
            html.contains("<span class=\"minus\">-old &lt;b&gt;</span>"),
            "{html}"
        );
        assert!(
            html.contains("<span class=\"plus\">+new\\u{202e}</span>"),
            "{html}"
        );
        assert_eq!(html.matches("<span").count(), 2, "{html}");
        let list = tree(&Value::from("- a\n- b")).to_string();
        assert!(!list.contains("minus"), "{list}");
    }

    #[test]
    fn the_lag_of_a_sink_is_drawn_up_to_now() {
        let view = |lags: &[u64]| {
            let sink = json!({"name": "s", "state": "running", "lag_history": lags});
            let data = json!({"sinks": {"sinks": [sink]}, "letters": {"total": 0}});
            let template = PAGES.get_template("delivery.html").unwrap();
            let data = Value::from(Serde(&data));
            template.render(minijinja::context! { data }).unwrap()
        };

        // The right edge is now, whatever the number of values; the highest lag is at the top.
        let drawn = view(&[0, 3600, 900]);
        let label = "aria-label=\"Lag once a minute; now 15m, at most 60m\"";
        assert!(drawn.contains(label), "{drawn}");
        let points = "points=\"570,98.0 580,4.0 590,74.0 \"";
        assert!(drawn.contains(points), "{drawn}");

        assert!(!view(&[5]).contains("<polyline"), "a line of one point");
    }

    #[test]
    fn a_large_tree_is_cut() {
        let many: Json = (0..2 * PAGE_TREE_NODES_MAX).collect();
        let html = tree(&Value::from(Serde(&many))).to_string();
        assert!(html.contains("The rest is not shown") && html.len() < 100 * PAGE_TREE_NODES_MAX);
        assert_eq!(
            brief(&Value::from("é".repeat(PAGE_TEXT_MAX + 1)))
                .chars()
                .count(),
            PAGE_TEXT_MAX + 1
        );
    }

    #[test]
    fn sizes_and_times_are_readable() {
        assert_eq!(
            [0, 1536, -1].map(|n: i64| short(units::bytes, &Value::from(n))),
            ["0B", "1.50K", "0B"]
        );
        assert_eq!(
            [59, 90_013].map(|n: i64| short(units::span, &Value::from(n))),
            ["59s", "25h"]
        );
        assert_eq!(
            words(&Value::from(Serde(&json!(["web", 1, {"a": 2}])))),
            "web 1 {\"a\":2}"
        );
        let expected = "<time datetime=\"1970-01-01T00:00:00.000000Z\">1970-01-01 00:00:00</time>";
        assert_eq!(when(&Value::from(0)).to_string(), expected);
        let precise = precise(&Value::from("2026-11-21T05:47:28.123456Z")).to_string();
        assert!(
            precise.ends_with(">2026-11-21 05:47:28.123</time>"),
            "{precise}"
        );
        assert_eq!(
            around(&Value::from("2026-11-21T05:47:28Z")).to_string(),
            "since=2026-11-21T05%3A42%3A28.000000Z&amp;until=2026-11-21T05%3A52%3A28.000000Z"
        );
        assert_eq!(calendar(Micros(0)), "1 Jan 00:00");
        assert_eq!(when(&Value::from(())).to_string(), "");
    }
}
