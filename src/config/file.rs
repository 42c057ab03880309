//! Reads the YAML of a configuration file.
//!
//! Numbers and booleans are typed only if they are written the usual way: the key decides whether `0660` is a number, an octal mode
//! or a name.
//!
//! # Invariant
//!
//! A [`Document`] has no duplicate keys, anchors, aliases, tags, empty texts or lists within lists, and is at most
//! [`limits::CONFIG_DEPTH_MAX`] deep.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use saphyr_parser::{Event, Parser, ScalarStyle, StrInput};
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

/// The text is not YAML, or uses YAML that configurations do not support.
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

/// The value of a YAML text, read as a configuration file is.
pub fn read_yaml(text: &str) -> Result<Json, Invalid> {
    match parse(text) {
        Ok(document) => Ok(document.value),
        Err(BadYaml { line, problem }) => Err(Invalid::new("", format!("line {line}: {problem}"))),
    }
}

/// Reads one document. An empty file is null.
pub(super) fn parse(text: &str) -> Result<Document, BadYaml> {
    let mut reader = Reader {
        parser: Parser::new_from_str(text),
        lines: Lines::default(),
    };
    let (mut value, mut first_line) = (None, 1);

    loop {
        let (event, line) = reader.next()?;
        match event {
            Event::StreamEnd => {
                return Ok(Document {
                    value: value.unwrap_or_default(),
                    line: first_line,
                    lines: reader.lines,
                });
            }
            Event::DocumentStart(_) if value.is_some() => {
                return bad(line, "a second document starts here; only one is allowed");
            }
            Event::DocumentStart(_) => {
                let (event, line) = reader.next()?;
                first_line = line;
                value = Some(reader.node(event, line, "", 0)?);
            }

            // The start of the stream, and the end of the document.
            _ => {}
        }
    }
}

struct Reader<'a> {
    parser: Parser<'a, StrInput<'a>>,
    lines: Lines,
}

impl<'a> Reader<'a> {
    fn next(&mut self) -> Result<(Event<'a>, usize), BadYaml> {
        match self.parser.next_event() {
            Some(Ok((event, span))) => Ok((event, span.start.line())),
            Some(Err(error)) => bad(error.marker().line(), format!("not YAML: {}", error.info())),
            None => Ok((Event::StreamEnd, 1)),
        }
    }

    fn node(
        &mut self,
        event: Event<'a>,
        line: usize,
        path: &str,
        depth: usize,
    ) -> Result<Json, BadYaml> {
        // Each level is a recursion of this function.
        if depth > limits::CONFIG_DEPTH_MAX {
            return bad(line, "nested too deeply");
        }

        match event {
            // A value is what is written in its place: no tag changes it, and no alias refers to
            // another.
            Event::Scalar(.., Some(_))
            | Event::SequenceStart(_, Some(_))
            | Event::MappingStart(_, Some(_)) => bad(
                line,
                "tags (!name) are not supported; write the value alone",
            ),
            Event::Alias(_)
            | Event::Scalar(_, _, 1.., _)
            | Event::SequenceStart(1.., _)
            | Event::MappingStart(1.., _) => bad(
                line,
                "anchors and aliases (&name, *name) are not supported; write the value out",
            ),
            Event::Scalar(text, ScalarStyle::Plain, ..) => Ok(plain(&text)),
            Event::Scalar(text, ..) if text.is_empty() || text.contains('\0') => bad(
                line,
                format!("{path}: {text:?} is not accepted; give a text without null characters"),
            ),
            Event::Scalar(text, ..) => Ok(Json::from(text)),
            // No key has such a value.
            Event::SequenceStart(..) if path.ends_with(']') => {
                bad(line, format!("{path}: a list within a list"))
            }
            Event::SequenceStart(..) => self.list(path, depth + 1).map(Json::Array),
            Event::MappingStart(..) => self.map(path, depth + 1).map(Json::Object),
            _ => bad(line, "a value is missing"),
        }
    }

    fn list(&mut self, path: &str, depth: usize) -> Result<Vec<Json>, BadYaml> {
        let mut items = Vec::new();
        loop {
            let (event, line) = self.next()?;
            if event == Event::SequenceEnd {
                return Ok(items);
            }

            let path = format!("{path}[{}]", items.len());
            items.push(self.node(event, line, &path, depth)?);
            self.lines.0.insert(path, line);
        }
    }

    fn map(&mut self, path: &str, depth: usize) -> Result<Map<String, Json>, BadYaml> {
        let mut map = Map::new();
        loop {
            let (event, line) = self.next()?;
            let name = match event {
                Event::MappingEnd => return Ok(map),
                Event::Scalar(name, _, 0, None) if !name.is_empty() => name.into_owned(),
                // A list, a mapping, an anchor or a tag.
                _ => return bad(line, "a key must be a name"),
            };

            let path = if path.is_empty() {
                name.clone()
            } else {
                format!("{path}.{name}")
            };

            // This also finds a key that is in its section and again by its dotted name.
            if self.lines.0.insert(path.clone(), line).is_some() {
                return bad(line, format!("duplicate key {name:?}"));
            }

            let (event, line) = self.next()?;
            let value = self.node(event, line, &path, depth)?;
            map.insert(name, value);
        }
    }
}

fn plain(text: &str) -> Json {
    match text {
        "" | "~" | "null" | "Null" | "NULL" => Json::Null,
        "true" => Json::Bool(true),
        "false" => Json::Bool(false),
        _ => match text.parse::<u64>() {
            // Only the usual spelling is a number: `0660` stays a text, which may be a mode or a
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
        assert!(problem("a: 1\n---\nb: 2\n").starts_with("2: a second document"));
        assert!(problem("[a]: 1\n").starts_with("1: a key must be a name"));
        assert!(problem("a: [1\nb: 2\n").contains("not YAML"));
        assert!(problem("a: [[1]]\n").starts_with("1: a[0]: a list within a list"));
        assert!(problem("a:\n  b: \"\"\n").starts_with("2: a.b: \"\" is not accepted"));
        assert!(problem(&"{a: ".repeat(50)).contains("nested too deeply"));
    }
}
