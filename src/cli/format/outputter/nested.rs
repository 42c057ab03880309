//! Salt's `nested` outputter: `salt/output/nested.py`.

use std::borrow::Cow;
use std::cmp::Ordering;

use rmpv::Value;

use super::colours::Colours;
use super::escape::line;
use super::python;

/// Formats a value as lines indented by `indent`, without a final line end. `failed` colours keys
/// red.
pub(in crate::cli) fn nested(
    value: &Value,
    indent: usize,
    colours: Colours,
    failed: bool,
) -> String {
    let mut nest = Nest {
        colours,
        failed,
        lines: Vec::new(),
    };

    nest.display(value, indent, "");
    nest.lines.join("\n")
}

struct Nest {
    colours: Colours,
    failed: bool,
    lines: Vec<String>,
}

impl Nest {
    fn line(&mut self, indent: usize, colour: &str, prefix: &str, text: &str, suffix: &str) {
        let end = self.colours.end();
        self.lines.push(format!(
            "{:indent$}{colour}{prefix}{}{end}{suffix}",
            "",
            line(text)
        ));
    }

    fn display(&mut self, value: &Value, indent: usize, prefix: &str) {
        let head = if self.failed {
            self.colours.red()
        } else {
            self.colours.cyan()
        };
        match value {
            // Salt shows these as Python's `repr`, and strings without quotes.
            Value::Nil | Value::Boolean(_) | Value::Integer(_) | Value::F32(_) | Value::F64(_) => {
                self.line(
                    indent,
                    self.colours.light_yellow(),
                    prefix,
                    &python::repr(value),
                    "",
                );
            }
            Value::String(_) | Value::Binary(_) | Value::Ext(..) => {
                let text = python::text(value);

                let mut prefix = Cow::Borrowed(prefix);
                for line in python::lines(&text) {
                    self.line(indent, self.colours.green(), &prefix, line, "");
                    // Further lines stand below the first.
                    prefix = Cow::Owned(" ".repeat(prefix.len()));
                }
            }
            Value::Array(items) => {
                // A list in a failed return is as red as its keys.
                let colour = if self.failed {
                    self.colours.red()
                } else {
                    self.colours.green()
                };
                for item in items {
                    match item {
                        Value::Array(_) | Value::Map(_) => {
                            // A nested collection gets a mark of its own, and starts below it.
                            self.line(indent, colour, "", "|_", "");
                            let prefix = if item.is_map() { "" } else { "- " };
                            self.display(item, indent + 2, prefix);
                        }
                        item => self.display(item, indent, "- "),
                    }
                }
            }
            Value::Map(pairs) => {
                // The outermost map needs no rule above it.
                if indent > 0 {
                    self.line(indent, head, "", "----------", "");
                }
                for (key, value) in sorted(pairs) {
                    self.line(indent, head, prefix, &key, ":");
                    self.display(value, indent + 4, "");
                }
            }
        }
    }
}

/// Sorts pairs by key: in Python's order for numbers, otherwise as text.
fn sorted(pairs: &[(Value, Value)]) -> Vec<(String, &Value)> {
    let number = |value: &Value| {
        value
            .as_f64()
            .or_else(|| value.as_bool().map(|b| if b { 1.0 } else { 0.0 }))
    };

    let mut sorted: Vec<_> = pairs.iter().collect();
    // Numbers sort by value: 9 comes before 10.
    if pairs.iter().all(|(key, _)| number(key).is_some()) {
        sorted
            .sort_by(|(a, _), (b, _)| number(a).partial_cmp(&number(b)).unwrap_or(Ordering::Equal));
        return sorted
            .into_iter()
            .map(|(key, value)| (python::text(key), value))
            .collect();
    }

    // Salt sorts keys of mixed types by their text, because Python cannot compare them.
    let mut named: Vec<_> = sorted
        .drain(..)
        .map(|(key, value)| (python::text(key), value))
        .collect();
    named.sort_by(|(a, _), (b, _)| a.cmp(b));
    named
}
