//! The options of a Jinja environment: Salt's `jinja_env`, and the `#jinja2:` line of a file.

use std::borrow::Cow;

use super::budget::RenderLimits;
use crate::sls::python::text;
use crate::sls::value::{Key, Map, Value};

/// How an engine renders.
#[derive(Debug, Clone, Default)]
pub struct EngineOptions {
    /// The master's `jinja_env`: delimiters, `trim_blocks`, `lstrip_blocks` and their like. Unknown names are passed over, as Salt does.
    pub jinja_env: Map,
    /// The master's `allow_undefined`: what is undefined prints as nothing, instead of failing.
    pub allow_undefined: bool,
    /// What one rendering may cost.
    pub limits: RenderLimits,
}

/// How a template is written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Syntax {
    pub(crate) block: (String, String),
    pub(crate) variable: (String, String),
    pub(crate) comment: (String, String),
    pub(crate) line_statement: Option<String>,
    pub(crate) line_comment: Option<String>,
    pub(crate) trim_blocks: bool,
    pub(crate) lstrip_blocks: bool,
    pub(crate) newline: String,
    pub(crate) keep_trailing_newline: bool,
}

impl Default for Syntax {
    fn default() -> Self {
        let pair = |a: &str, b: &str| (a.to_owned(), b.to_owned());
        Syntax {
            block: pair("{%", "%}"),
            variable: pair("{{", "}}"),
            comment: pair("{#", "#}"),
            line_statement: None,
            line_comment: None,
            trim_blocks: false,
            lstrip_blocks: false,
            newline: "\n".to_owned(),
            keep_trailing_newline: false,
        }
    }
}

impl Syntax {
    /// These options over the ones there are. An error is what Jinja would not start with.
    pub(crate) fn apply(&mut self, options: &Map) -> Result<(), String> {
        for (key, value) in options {
            let Some(name) = key.as_str().map(str::to_lowercase) else {
                return Err("an option of jinja_env is not named by text".to_owned());
            };
            let text =
                || value.as_str().map(str::to_owned).ok_or_else(|| format!("jinja_env: {name} is not text"));
            match name.as_str() {
                "block_start_string" => self.block.0 = text()?,
                "block_end_string" => self.block.1 = text()?,
                "variable_start_string" => self.variable.0 = text()?,
                "variable_end_string" => self.variable.1 = text()?,
                "comment_start_string" => self.comment.0 = text()?,
                "comment_end_string" => self.comment.1 = text()?,
                "line_statement_prefix" => {
                    self.line_statement = if *value == Value::Null { None } else { Some(text()?) }
                }
                "line_comment_prefix" => {
                    self.line_comment = if *value == Value::Null { None } else { Some(text()?) }
                }
                "trim_blocks" => self.trim_blocks = value.truthy(),
                "lstrip_blocks" => self.lstrip_blocks = value.truthy(),
                "keep_trailing_newline" => self.keep_trailing_newline = value.truthy(),
                "newline_sequence" => self.newline = text()?,
                "default_filters" | "default_tests" | "default_namespace" | "default_policies" => {
                    return Err(format!("jinja_env: Jinja takes no option {name}"));
                }
                // Salt warns, and goes on.
                _ => {}
            }
        }
        if !["\n", "\r\n", "\r"].contains(&self.newline.as_str()) {
            return Err("jinja_env: newline_sequence must be one of '\\r', '\\r\\n', or '\\n'.".to_owned());
        }
        let starts = [&self.block.0, &self.variable.0, &self.comment.0];
        if starts[0] == starts[1] || starts[1] == starts[2] || starts[0] == starts[2] {
            return Err("jinja_env: block, variable and comment start strings must be different".to_owned());
        }
        if starts.iter().any(|start| start.is_empty()) {
            return Err("jinja_env: a start string is empty".to_owned());
        }
        Ok(())
    }
}

/// The options that a file's `#jinja2:` line gives, and the text without that line.
///
/// It is the first line, or the one below a shebang of renderers. A line that is no mapping is left where it is, as Salt does.
pub(crate) fn header(text: &str) -> (Option<Map>, Cow<'_, str>) {
    let lines = text::lines(text, true);
    let shebang = lines.first().is_some_and(|line| line.starts_with("#!") && !line.starts_with("#!/"));
    let place = usize::from(shebang);
    let Some(payload) = lines.get(place).and_then(|line| line.strip_prefix("#jinja2:")) else {
        return (None, Cow::Borrowed(text));
    };
    let Ok(serde_json::Value::Object(object)) = serde_json::from_str(payload) else {
        return (None, Cow::Borrowed(text));
    };
    let options = object.into_iter().map(|(key, value)| (Key::from(key), plain(value))).collect();
    let rest = lines.iter().enumerate().filter(|(i, _)| *i != place).map(|(_, line)| *line).collect();
    (Some(options), Cow::Owned(rest))
}

/// As much of a JSON value as an option can be.
fn plain(value: serde_json::Value) -> Value {
    match value {
        serde_json::Value::Null => Value::Null,
        serde_json::Value::Bool(b) => Value::Bool(b),
        serde_json::Value::String(text) => Value::Str(text),
        serde_json::Value::Number(number) => Value::Bool(number.as_f64() != Some(0.0)),
        serde_json::Value::Array(items) => Value::Bool(!items.is_empty()),
        serde_json::Value::Object(items) => Value::Bool(!items.is_empty()),
    }
}
