//! Reads the YAML of a configuration file.
//!
//! Numbers and booleans are typed only if they are written the usual way: the key decides whether `0660` is a number, an octal mode
//! or a name.
//!
//! # Invariant
//!
//! A [`Document`] has no duplicate keys, anchors, aliases, tags, empty strings or lists within lists, and is at most
//! [`limits::CONFIG_DEPTH_MAX`] deep.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use salt_sls::yaml::nodes::{self, Content, Items, Node};
use serde_json::{Map, Value as Json};

use super::error::Invalid;
use crate::base::limits;

/// A value, and the line of each of its keys and items.
#[derive(Debug, Default)]
pub(super) struct Document {
    pub(super) value: Json,
    /// The line at which the value begins.
    pub(super) line: usize,
    pub(super) lines: Lines,
}

/// Lines by path, such as `log.level` or `bus[0]`.
#[derive(Debug, Clone, Default)]
pub(super) struct Lines(HashMap<String, usize>);

impl Lines {
    /// The line of `path`, or else of what contains it.
    pub(super) fn of(&self, mut path: &str) -> usize {
        loop {
            match (self.0.get(path), path.rfind(['.', '['])) {
                (Some(line), _) => return *line,
                (None, Some(end)) => path = path.get(..end).unwrap_or_default(),
                (None, None) => return 1,
            }
        }
    }
}

/// File and line by path, of several files whose values were merged.
#[derive(Debug, Clone, Default)]
pub(super) struct Places(HashMap<String, (Arc<PathBuf>, usize)>);

impl Places {
    /// File and line of `path`, or else of what contains it.
    pub(super) fn of(&self, mut path: &str) -> Option<(&Path, usize)> {
        loop {
            if let Some((file, line)) = self.0.get(path) {
                return Some((file, *line));
            }
            path = path.get(..path.rfind(['.', '['])?).unwrap_or_default();
        }
    }

    /// Adds the lines of the value at `from` in a file, which is at `to` in the merged values.
    pub(super) fn add(&mut self, file: &Arc<PathBuf>, lines: &Lines, from: &str, to: &str) {
        for (path, line) in &lines.0 {
            let Some(rest) = path.strip_prefix(from) else {
                continue;
            };
            if rest.is_empty() || rest.starts_with(['.', '[']) {
                self.0.insert(format!("{to}{rest}"), (file.clone(), *line));
            }
        }
    }
}

/// The file is not YAML, or uses YAML that configurations do not support.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct BadYaml {
    pub(super) line: usize,
    pub(super) problem: String,
}

fn bad<T>(line: usize, problem: impl Into<String>) -> Result<T, BadYaml> {
    Err(BadYaml {
        line,
        problem: problem.into(),
    })
}

/// The value of a YAML string, read as a configuration file is.
pub fn read_yaml(text: &str) -> Result<Json, Invalid> {
    match parse(text) {
        Ok(document) => Ok(document.value),
        Err(BadYaml { line, problem }) => Err(Invalid::new("", format!("line {line}: {problem}"))),
    }
}

/// Reads one document. An empty file is null.
pub(super) fn parse(text: &str) -> Result<Document, BadYaml> {
    let document = nodes::parse(text).map_err(|error| BadYaml {
        line: error.line,
        problem: format!("not YAML: {}", error.message),
    })?;

    let mut reader = Reader::default();
    let Some(root) = document.root() else {
        return Ok(Document {
            line: 1,
            ..Document::default()
        });
    };
    Ok(Document {
        value: reader.node(root, "", 0)?,
        line: root.line(),
        lines: reader.lines,
    })
}

#[derive(Default)]
struct Reader {
    lines: Lines,
}

impl Reader {
    fn node(&mut self, node: Node<'_>, path: &str, depth: usize) -> Result<Json, BadYaml> {
        let line = node.line();
        // Each level is a recursion of this function.
        if depth > limits::CONFIG_DEPTH_MAX {
            return bad(line, "nested too deeply");
        }

        // A value is what is written in its place: no tag changes it, and no alias refers to another.
        if node.is_tagged() {
            return bad(
                line,
                "tags (!name) are not supported; write the value alone",
            );
        }

        match node.content() {
            Content::Alias => bad(line, NO_ALIASES),
            _ if node.is_anchored() => bad(line, NO_ALIASES),
            // Only a plain scalar can be a number or a boolean. A quoted one is always a string.
            Content::Scalar {
                text,
                is_plain: true,
            } => Ok(plain(text)),
            // Without quotes such a value would be null, which stands for the default.
            Content::Scalar { text, .. } if text.is_empty() || text.contains('\0') => bad(
                line,
                format!("{path}: {text:?} is not accepted; give a string without null characters"),
            ),
            Content::Scalar { text, .. } => Ok(Json::from(text)),
            // No key has such a value.
            Content::Sequence(_) if path.ends_with(']') => {
                bad(line, format!("{path}: a list within a list"))
            }
            Content::Sequence(items) => self.list(items, path, depth + 1).map(Json::Array),
            Content::Mapping(items) => self.map(items, path, depth + 1).map(Json::Object),
        }
    }

    fn list(&mut self, nodes: Items<'_>, path: &str, depth: usize) -> Result<Vec<Json>, BadYaml> {
        let mut items = Vec::new();
        for node in nodes {
            let path = format!("{path}[{}]", items.len());
            items.push(self.node(node, &path, depth)?);
            self.lines.0.insert(path, node.line());
        }
        Ok(items)
    }

    fn map(
        &mut self,
        mut nodes: Items<'_>,
        path: &str,
        depth: usize,
    ) -> Result<Map<String, Json>, BadYaml> {
        let mut map = Map::new();
        while let Some(key) = nodes.next() {
            let line = key.line();
            let name = match key.content() {
                Content::Scalar { text, .. }
                    if !text.is_empty() && !key.is_tagged() && !key.is_anchored() =>
                {
                    text
                }
                // A list, a mapping, an anchor or a tag.
                _ => return bad(line, "a key must be a name"),
            };

            let path = if path.is_empty() {
                name.to_owned()
            } else {
                format!("{path}.{name}")
            };

            // This also finds a key that is in its section and again by its dotted name.
            if self.lines.0.insert(path.clone(), line).is_some() {
                return bad(line, format!("duplicate key {name:?}"));
            }

            // The parser adds a value to each key.
            let Some(value) = nodes.next() else {
                return bad(line, format!("{path}: a value is missing"));
            };
            map.insert(name.to_owned(), self.node(value, &path, depth)?);
        }
        Ok(map)
    }
}

const NO_ALIASES: &str =
    "anchors and aliases (&name, *name) are not supported; write the value out";

fn plain(text: &str) -> Json {
    match text {
        "" | "~" | "null" | "Null" | "NULL" => Json::Null,
        "true" => Json::Bool(true),
        "false" => Json::Bool(false),
        _ => match text.parse::<u64>() {
            // Only the usual spelling is a number: `0660` stays a string, which may be a mode or a
            // name.
            Ok(number) if number.to_string() == text => Json::from(number),
            _ => Json::from(text),
        },
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn problem(text: &str) -> String {
        let bad = parse(text).expect_err("accepted");
        format!("{}: {}", bad.line, bad.problem)
    }

    #[test]
    fn keys_and_items_know_their_lines() {
        let document = parse("# one\na: 1\nb:\n  - x\n  - 0660\n").unwrap();
        assert_eq!(document.value, json!({ "a": 1, "b": ["x", "0660"] }));
        let lines = ["a", "b", "b[0]", "b[1]", "b[1].c", "c"].map(|path| document.lines.of(path));
        assert_eq!(lines, [2, 3, 4, 5, 5, 1]);
    }

    #[test]
    fn an_empty_file_is_nothing() {
        for text in ["", "\n", "# only a comment\n", "---\n"] {
            assert_eq!(parse(text).unwrap().value, Json::Null, "{text:?}");
        }
    }

    #[test]
    fn unsupported_yaml_is_rejected_with_its_line() {
        assert_eq!(problem("a: 1\nb: 2\na: 3\n"), "3: duplicate key \"a\"");
        assert_eq!(problem("a: 1\n'a': 3\n"), "2: duplicate key \"a\"");
        assert!(problem("a: &x 1\nb: *x\n").starts_with("1: anchors"));
        assert!(problem("a: !!str 1\n").starts_with("1: tags"));
        assert_eq!(
            problem("a: 1\n---\nb: 2\n"),
            "2: not YAML: expected a single document in the stream, but found another document"
        );
        assert!(problem("[a]: 1\n").starts_with("1: a key must be a name"));
        assert!(problem("a: [1\nb: 2\n").contains("not YAML"));
        assert!(problem("a: [[1]]\n").starts_with("1: a[0]: a list within a list"));
        assert!(problem("a:\n  b: \"\"\n").starts_with("2: a.b: \"\" is not accepted"));
        assert!(problem("a: *x\n").starts_with("1: not YAML: found undefined alias"));
        assert!(problem("a: &x [1]\n").starts_with("1: anchors"));
        assert!(problem("a: ! x\n").starts_with("1: tags"));
        assert!(problem("a: 1\n&x b: 2\n").starts_with("2: a key must be a name"));
        assert!(problem("a: 1\nb:\n\t- c\n").starts_with("3: not YAML: "));
        let nested = format!("{}1{}", "{a: ".repeat(50), "}".repeat(50));
        assert!(problem(&nested).contains("nested too deeply"));
        assert!(problem(&"{a: ".repeat(5000)).contains("nested more than"));
    }
}
