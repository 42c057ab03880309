//! Templates of sinks: Jinja over the keys of an event's JSON form.
//!
//! Besides Jinja's filters there is `tojson`, which writes any value as JSON. A missing value is
//! empty, and so are its members. Nothing is escaped. A template is compiled once, and each
//! rendering is bounded by [`SINK_TEMPLATE_FUEL`] and [`SINK_ITEM_BYTES_MAX`].

use std::sync::Arc;

use minijinja::syntax::SyntaxConfig;
use minijinja::{Environment, UndefinedBehavior, Value, escape_formatter};
use salt_sls::jinja::bounded::BoundedSource;
use serde::Serialize;
use serde_json::Value as Json;

use super::framing::{escaped, has_break};
use crate::base::limits::{
    SINK_ITEM_BYTES_MAX, SINK_TEMPLATE_ASSIGNED_MAX, SINK_TEMPLATE_FUEL,
    SINK_TEMPLATE_RECURSION_MAX,
};
use crate::config::Invalid;

/// A compiled template.
#[derive(Clone)]
pub struct Template(Arc<Environment<'static>>);

/// The name of a template in its own environment.
const NAME: &str = "template";

/// The reason why a template makes no string of an event.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the template of the sink failed: {0}; correct it, reload, and retry the dead letter")]
pub struct RenderError(String);

impl Template {
    /// Compiles a template; `key` is its place in the configuration, for errors.
    pub fn new(key: &str, text: &str) -> Result<Self, Invalid> {
        let mut env = Environment::new();
        // Events differ: a value that one of them does not contain is empty, and no error.
        env.set_undefined_behavior(UndefinedBehavior::Chainable);
        // Templates make JSON or lines, and HTML's escapes would be a part of them.
        env.set_auto_escape_callback(|_| minijinja::AutoEscape::None);
        env.set_fuel(Some(SINK_TEMPLATE_FUEL));
        // minijinja's own `tojson` also replaces characters that HTML reserves.
        env.add_filter("tojson", |value: &Value| {
            serde_json::to_string(value).map_err(|error| {
                minijinja::Error::new(minijinja::ErrorKind::BadSerialization, error.to_string())
            })
        });
        // With the limits of `BoundedSource`, these two bound the nesting of values that a template
        // makes, and so the recursion of their destructor: an object that outlives an iteration
        // could nest them once per iteration.
        env.set_recursion_limit(SINK_TEMPLATE_RECURSION_MAX);
        env.remove_global("namespace");

        let invalid = |line: Option<usize>, problem: &str| {
            let line = line
                .map(|line| format!("line {line}: "))
                .unwrap_or_default();
            Invalid::new(key, format!("the template is not valid: {line}{problem}"))
        };

        let source =
            BoundedSource::template(text, SyntaxConfig::default()).map_err(|too_deep| {
                let before = text.get(..too_deep.offset).unwrap_or_default();
                invalid(Some(before.matches('\n').count() + 1), &too_deep.what)
            })?;
        // Each of them can add a level of nesting to a value, even in a loop.
        if source.assigned_depth() > SINK_TEMPLATE_ASSIGNED_MAX {
            let problem = format!(
                "more than {SINK_TEMPLATE_ASSIGNED_MAX} operations in its `set` tags together"
            );
            return Err(invalid(None, &problem));
        }

        source
            .add_to(&mut env, NAME)
            .map_err(|error| invalid(error.line(), &message(&error)))?;

        // Without the global the name would only be undefined, and the template would fail at each
        // event instead of at the start.
        let uses_namespace = env
            .get_template(NAME)
            .is_ok_and(|template| template.undeclared_variables(false).contains("namespace"));
        if uses_namespace {
            return Err(invalid(None, "`namespace` is not supported"));
        }

        Ok(Self(Arc::new(env)))
    }

    /// From now on values are written without line breaks, see [`super::framing`]. Line
    /// breaks in the template itself stay.
    pub(crate) fn break_no_lines(&mut self) {
        Arc::make_mut(&mut self.0).set_formatter(|out, state, value| {
            // Other values than strings are written in a form that escapes line breaks, or have none.
            match value.as_str().filter(|text| has_break(text.as_bytes())) {
                Some(text) => {
                    let line = escaped(text.as_bytes());
                    let line = minijinja::Value::from(String::from_utf8_lossy(&line));
                    escape_formatter(out, state, &line)
                }
                None => escape_formatter(out, state, value),
            }
        });
    }

    /// The string for an event.
    pub fn render(&self, context: impl Serialize) -> Result<String, RenderError> {
        let failed = |error: minijinja::Error| {
            let line = error
                .line()
                .map(|line| format!("line {line}: "))
                .unwrap_or_default();
            RenderError(format!("{line}{}", message(&error)))
        };

        let text = self
            .0
            .get_template(NAME)
            .and_then(|template| template.render(minijinja::value::Serde(context)))
            .map_err(failed)?;

        // The fuel bounds the number of operations, not the size of the strings that they copy.
        if text.len() > SINK_ITEM_BYTES_MAX {
            return Err(RenderError(format!(
                "its text contains more than {SINK_ITEM_BYTES_MAX} bytes"
            )));
        }

        Ok(text)
    }
}

/// The kind and the detail of an error.
fn message(error: &minijinja::Error) -> String {
    match error.detail() {
        Some(detail) => format!("{}: {detail}", error.kind()),
        None => error.kind().to_string(),
    }
}

impl std::fmt::Debug for Template {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Template")
    }
}

/// The value of a dotted path, such as `items.0.status`; `*` is the only member of a map or list.
pub(crate) fn at_path<'a>(value: &'a Json, path: &str) -> Option<&'a Json> {
    path.split('.')
        .filter(|step| !step.is_empty())
        .try_fold(value, |value, step| match (value, step) {
            (Json::Object(map), "*") if map.len() == 1 => map.values().next(),
            (Json::Object(map), key) => map.get(key),
            (Json::Array(list), "*") if list.len() == 1 => list.first(),
            (Json::Array(list), index) => list.get(index.parse::<usize>().ok()?),
            _ => None,
        })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn render(text: &str, context: Json) -> String {
        Template::new("t", text).unwrap().render(context).unwrap()
    }

    #[test]
    fn values_are_printed_and_missing_ones_are_empty() {
        let event = json!({"tag": "a/b", "data": {"x": [1, "<&\">"], "ok": true}});
        assert_eq!(render("{{ tag }} {{ data.x[0] }}", event.clone()), "a/b 1");
        assert_eq!(render("[{{ data.none.at.all }}]", event.clone()), "[]");
        assert_eq!(
            render("{{ data | tojson }}", event.clone()),
            r#"{"ok":true,"x":[1,"<&\">"]}"#,
            "keys are sorted"
        );
        assert_eq!(
            render("{{ data.x[1] | tojson }}", event.clone()),
            r#""<&\">""#
        );
        assert_eq!(
            render("{% for x in data.x %}{{ loop.index }}{% endfor %}", event),
            "12"
        );
    }

    #[test]
    fn values_can_be_kept_from_breaking_lines() {
        let event = json!({"tag": "a\nforged", "data": {"x": ["b\r\nc"], "y\nz": 1}});
        let text = "{{ tag }} {{ data.none }}{{ 1 }}\n{{ data }} {{ data.x | join(',') }}";
        let mut template = Template::new("t", text).unwrap();
        assert!(
            template
                .render(event.clone())
                .unwrap()
                .starts_with("a\nforged")
        );
        template.break_no_lines();
        let rendered = template.render(event).unwrap();
        assert_eq!(rendered.lines().count(), 2, "{rendered}");
        assert!(rendered.starts_with("a\\nforged 1\n"), "{rendered}");
        assert!(rendered.ends_with(r" b\r\nc"), "{rendered}");
    }

    #[test]
    fn an_invalid_template_is_reported_with_its_line_and_an_endless_one_ends() {
        let error = Template::new("encoder.template", "a\n{% if %}").unwrap_err();
        assert_eq!(error.path, "encoder.template");
        assert!(
            error
                .problem
                .starts_with("the template is not valid: line 2: syntax error"),
            "{error:?}"
        );
        let slow = Template::new(
            "t",
            "{% for a in range(9999) %}{% for b in range(9999) %}{{ b }}{% endfor %}{% endfor %}",
        );
        let error = slow.unwrap().render(json!({})).unwrap_err().to_string();
        assert!(error.contains("ran out of fuel"), "{error}");
        let wrong = Template::new("t", "\n{{ tag + 1 }}")
            .unwrap()
            .render(json!({"tag": "a"}))
            .unwrap_err();
        assert!(
            wrong
                .to_string()
                .starts_with("the template of the sink failed: line 2: "),
            "{wrong}"
        );
    }

    #[test]
    fn a_template_that_could_overflow_the_stack_is_refused_with_its_line() {
        let deep = format!("a\n{{{{ data{} }}}}", ".a".repeat(1_900));
        let nested = format!("a\n{}", "{% if a %}".repeat(500));
        let namespace =
            "{% set n = namespace(x=1) %}{% for i in range(9) %}{% set n.x = [n.x] %}{% endfor %}";
        let assigned = "{% set x = [x] %}".repeat(SINK_TEMPLATE_ASSIGNED_MAX + 1);
        for (text, expected) in [
            (&*deep, "line 2: an expression of more than"),
            (&*nested, "line 2: more than"),
            (namespace, "`namespace` is not supported"),
            (&*assigned, "in its `set` tags together"),
        ] {
            let error = Template::new("encoder.template", text).unwrap_err();
            assert!(error.problem.contains(expected), "{error:?}");
        }
    }

    #[test]
    fn a_path_finds_members() {
        let value = json!({"items": [{"create": {"status": 201}}], "a": {"b": 1, "c": 2}});
        assert_eq!(at_path(&value, "items.0.*.status"), Some(&json!(201)));
        assert_eq!(at_path(&value, "a.b"), Some(&json!(1)));
        assert_eq!(at_path(&value, ""), Some(&value));
        for path in ["a.*", "items.1", "items.x", "a.b.c"] {
            assert_eq!(at_path(&value, path), None, "{path}");
        }
    }
}
