//! The syntax tree of a configuration file.
//!
//! Every key and value knows its line. Scalars stay text as typed: the key decides whether `0660` is a number, an octal
//! mode or a name.
//!
//! # Invariant
//!
//! A tree has no duplicate keys, no anchors, aliases or tags, and is at most
//! [`limits::CONFIG_DEPTH_MAX`] deep.

use std::collections::HashSet;

use saphyr_parser::{Event, Parser, ScalarStyle, Span, StrInput};

use crate::limits;

/// A value and the line on which it starts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ConfigNode {
    pub(super) line: usize,
    pub(super) value: Value,
}

/// A value as typed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Value {
    /// Nothing, `~` or `null`.
    Null,
    /// One word or string.
    Text(String),
    /// A sequence.
    List(Vec<ConfigNode>),
    /// A mapping, in the order of the file.
    Map(Vec<ConfigEntry>),
}

impl Value {
    /// A description for messages.
    pub(super) fn noun(&self) -> String {
        match self {
            Self::Null => "nothing".to_owned(),
            Self::Text(text) => format!("{text:?}"),
            Self::List(_) => "a list".to_owned(),
            Self::Map(_) => "a mapping".to_owned(),
        }
    }
}

/// One key of a mapping.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ConfigEntry {
    pub(super) name: String,
    pub(super) line: usize,
    pub(super) node: ConfigNode,
}

/// The text is not YAML, or uses YAML that configurations do not support.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct BadYaml {
    pub(super) line: usize,
    pub(super) problem: String,
}

impl BadYaml {
    fn new(line: usize, problem: impl Into<String>) -> Self {
        Self { line, problem: problem.into() }
    }
}

/// Reads one document. An empty file is [`Value::Null`].
pub(super) fn parse(text: &str) -> Result<ConfigNode, BadYaml> {
    let mut reader = Reader { parser: Parser::new_from_str(text) };
    let mut document = None;
    loop {
        let (event, line) = reader.next()?;
        match event {
            Event::StreamEnd => return Ok(document.unwrap_or(ConfigNode { line: 1, value: Value::Null })),
            Event::StreamStart | Event::DocumentEnd | Event::Nothing => {}
            Event::DocumentStart(_) if document.is_some() => {
                return Err(BadYaml::new(line, "a second document starts here; only one is allowed"));
            }
            Event::DocumentStart(_) => document = Some(reader.node(0)?),
            _ => return Err(BadYaml::new(line, "content outside of a document")),
        }
    }
}

/// Turns the parser's events into nodes.
struct Reader<'a> {
    parser: Parser<'a, StrInput<'a>>,
}

impl<'a> Reader<'a> {
    fn next(&mut self) -> Result<(Event<'a>, usize), BadYaml> {
        match self.parser.next_event() {
            Some(Ok((event, span))) => Ok((event, line_of(span))),
            Some(Err(error)) => {
                Err(BadYaml::new(error.marker().line(), format!("not YAML: {}", error.info())))
            }
            None => Ok((Event::StreamEnd, 1)),
        }
    }

    fn node(&mut self, depth: usize) -> Result<ConfigNode, BadYaml> {
        let (event, line) = self.next()?;
        self.node_from(event, line, depth)
    }

    fn node_from(&mut self, event: Event<'a>, line: usize, depth: usize) -> Result<ConfigNode, BadYaml> {
        if depth > limits::CONFIG_DEPTH_MAX {
            return Err(BadYaml::new(line, "nested too deeply"));
        }
        let value = match event {
            Event::Scalar(_, _, _, Some(_))
            | Event::SequenceStart(_, Some(_))
            | Event::MappingStart(_, Some(_)) => {
                return Err(BadYaml::new(line, "tags (!name) are not supported; write the value alone"));
            }
            Event::Alias(_)
            | Event::Scalar(_, _, 1.., _)
            | Event::SequenceStart(1.., _)
            | Event::MappingStart(1.., _) => {
                return Err(BadYaml::new(
                    line,
                    "anchors and aliases (&name, *name) are not supported; write the value out",
                ));
            }
            Event::Scalar(text, ScalarStyle::Plain, ..) if is_null(&text) => Value::Null,
            Event::Scalar(text, ..) => Value::Text(text.into_owned()),
            Event::SequenceStart(..) => Value::List(self.list(depth)?),
            Event::MappingStart(..) => Value::Map(self.map(depth)?),
            _ => return Err(BadYaml::new(line, "a value is missing")),
        };
        Ok(ConfigNode { line, value })
    }

    fn list(&mut self, depth: usize) -> Result<Vec<ConfigNode>, BadYaml> {
        let mut items = Vec::new();
        loop {
            let (event, line) = self.next()?;
            if event == Event::SequenceEnd {
                return Ok(items);
            }
            items.push(self.node_from(event, line, depth + 1)?);
        }
    }

    fn map(&mut self, depth: usize) -> Result<Vec<ConfigEntry>, BadYaml> {
        let mut entries = Vec::new();
        let mut seen = HashSet::new();
        loop {
            let (event, line) = self.next()?;
            if event == Event::MappingEnd {
                return Ok(entries);
            }
            let key = self.node_from(event, line, depth + 1)?;
            let Value::Text(name) = key.value else {
                return Err(BadYaml::new(line, format!("a key must be a name, not {}", key.value.noun())));
            };
            let node = self.node(depth + 1)?;
            if !seen.insert(name.clone()) {
                return Err(BadYaml::new(line, format!("duplicate key {name:?}")));
            }
            entries.push(ConfigEntry { name, line, node });
        }
    }
}

fn line_of(span: Span) -> usize {
    span.start.line()
}

fn is_null(text: &str) -> bool {
    matches!(text, "" | "~" | "null" | "Null" | "NULL")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn problem(text: &str) -> String {
        let bad = parse(text).expect_err("accepted");
        format!("{}: {}", bad.line, bad.problem)
    }

    #[test]
    fn keys_and_values_know_their_lines() {
        let Value::Map(entries) = parse("# one\na: 1\nb:\n  - x\n  - 0660\n").unwrap().value else {
            panic!("no mapping");
        };
        let seen: Vec<_> = entries.iter().map(|e| (e.name.as_str(), e.line, e.node.line)).collect();
        assert_eq!(seen, [("a", 2, 2), ("b", 3, 4)]);
        let Value::List(items) = &entries[1].node.value else { panic!("no list") };
        assert_eq!(items[1], ConfigNode { line: 5, value: Value::Text("0660".into()) });
    }

    #[test]
    fn an_empty_file_is_nothing() {
        for text in ["", "\n", "# only a comment\n", "---\n"] {
            assert_eq!(parse(text).unwrap().value, Value::Null, "{text:?}");
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
        assert!(problem(&"[".repeat(50)).contains("nested too deeply"));
    }
}
