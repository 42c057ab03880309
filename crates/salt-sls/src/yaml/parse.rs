//! Tokens to nodes: the grammar, tags and anchors.
//!
//! All nodes of a document are in one list. `next` chains the items of a collection, in a mapping keys and values in turn. A node
//! is in one chain; an alias is a node that refers to another.

use std::borrow::Cow;
use std::collections::HashMap;

use super::error::YamlError;
use super::resolve::{Tag, resolve};
use super::scan::{Mark, Scanner, Token};
use crate::limits::SLS_DEPTH_MAX;

/// The index of a node in [`Nodes`].
pub(super) type Id = u32;

/// The end of a chain.
pub(super) const NONE: Id = Id::MAX;

#[derive(Debug)]
pub(super) enum Kind<'a> {
    Scalar(Cow<'a, str>),
    Sequence { first: Id },
    Mapping { first: Id },
    Alias(Id),
}

#[derive(Debug)]
pub(super) struct Node<'a> {
    pub(super) kind: Kind<'a>,
    pub(super) tag: Tag,
    pub(super) mark: Mark,
    pub(super) next: Id,
    /// Under construction: a reference to it now comes from its inside.
    pub(super) busy: bool,
    pub(super) written: Written,
}

/// How a node is written, for readers that restrict it.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Written {
    /// A scalar without quotes.
    pub(super) plain: bool,
    pub(super) tagged: bool,
    pub(super) anchored: bool,
}

/// The nodes of one document.
#[derive(Default)]
pub(super) struct Nodes<'a> {
    pub(super) all: Vec<Node<'a>>,
    /// Unknown tags.
    pub(super) unknown: Vec<String>,
    /// Whether nodes may have several references.
    pub(super) has_anchors: bool,
    /// Whether there may be `<<` or `=`.
    pub(super) has_special_keys: bool,
}

impl<'a> Nodes<'a> {
    pub(super) fn get(&self, id: Id) -> Option<&Node<'a>> {
        self.all.get(id as usize)
    }

    pub(super) fn get_mut(&mut self, id: Id) -> Option<&mut Node<'a>> {
        self.all.get_mut(id as usize)
    }

    pub(super) fn add(&mut self, kind: Kind<'a>, tag: Tag, mark: Mark) -> Id {
        let id = Id::try_from(self.all.len()).unwrap_or(NONE);
        self.has_special_keys |= matches!(tag, Tag::Merge | Tag::Value);
        self.all.push(Node {
            kind,
            tag,
            mark,
            next: NONE,
            busy: false,
            written: Written::default(),
        });
        id
    }

    fn written(&mut self, id: Id, written: Written) {
        if let Some(node) = self.get_mut(id) {
            node.written = written;
        }
    }

    /// Resolves an alias.
    pub(super) fn behind(&self, id: Id) -> Id {
        match self.get(id) {
            Some(Node {
                kind: Kind::Alias(target),
                ..
            }) => *target,
            _ => id,
        }
    }

    /// The next node of the chain.
    pub(super) fn after(&self, id: Id) -> Id {
        self.get(id).map_or(NONE, |node| node.next)
    }

    fn tag(&mut self, name: String) -> Tag {
        match name.strip_prefix("tag:yaml.org,2002:") {
            Some("null") => Tag::Null,
            Some("bool") => Tag::Bool,
            Some("int") => Tag::Int,
            Some("float") => Tag::Float,
            Some("timestamp") => Tag::Timestamp,
            Some("str") => Tag::Str,
            Some("merge") => Tag::Merge,
            Some("value") => Tag::Value,
            Some("binary") => Tag::Binary,
            Some("python/unicode") => Tag::Unicode,
            Some("seq") => Tag::Seq,
            Some("pairs") => Tag::Pairs,
            Some("map") => Tag::Map,
            Some("omap") => Tag::Omap,
            Some("set") => Tag::Set,
            _ => {
                self.unknown.push(name);
                Tag::Other(u32::try_from(self.unknown.len() - 1).unwrap_or(u32::MAX))
            }
        }
    }
}

/// A chain of nodes under construction.
struct Chain {
    first: Id,
    last: Id,
}

impl Chain {
    const EMPTY: Self = Self {
        first: NONE,
        last: NONE,
    };

    fn push(&mut self, nodes: &mut Nodes<'_>, id: Id) {
        match nodes.get_mut(self.last) {
            Some(last) => last.next = id,
            None => self.first = id,
        }
        self.last = id;
    }
}

/// Parses the items of a collection.
type ParseItems<'a> = fn(&mut Parser<'a>) -> Result<Chain, YamlError>;

/// The collections that may start at a node.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Place {
    Flow,
    Block,
    /// The value of a block mapping: a sequence in it need not be indented.
    BlockValue,
}

pub(super) struct Parser<'a> {
    scanner: Scanner<'a>,
    pub(super) nodes: Nodes<'a>,
    anchors: HashMap<&'a str, Id>,
    /// Handles of tags with their prefixes.
    handles: Vec<(String, String)>,
    depth: usize,
}

impl<'a> Parser<'a> {
    pub(super) fn new(text: &'a str) -> Self {
        let nodes = Nodes {
            all: Vec::with_capacity(32),
            ..Nodes::default()
        };
        Self {
            scanner: Scanner::new(text),
            nodes,
            anchors: HashMap::new(),
            handles: Vec::new(),
            depth: 0,
        }
    }

    /// Parses the only document of the text, if any.
    pub(super) fn document(&mut self) -> Result<Option<Id>, YamlError> {
        let root = match self.scanner.peek_token()? {
            Token::StreamEnd => return Ok(None),
            Token::Version { .. } | Token::TagDirective(_) | Token::DocumentStart => {
                self.directives()?;
                self.explicit_document()?
            }
            _ => self.node(Place::Block)?,
        };

        // Further ends change nothing.
        while matches!(self.scanner.peek_token()?, Token::DocumentEnd) {
            self.scanner.skip_token();
        }

        match self.scanner.peek_token()? {
            Token::StreamEnd => Ok(Some(root)),
            Token::DocumentStart => Err(
                self.error("expected a single document in the stream, but found another document")?
            ),
            _ => Err(self.error("did not find expected <document start>")?),
        }
    }

    /// An error at the next token.
    fn error(&mut self, message: &str) -> Result<YamlError, YamlError> {
        Ok(self.scanner.token_mark()?.error(message))
    }

    fn explicit_document(&mut self) -> Result<Id, YamlError> {
        if !matches!(self.scanner.peek_token()?, Token::DocumentStart) {
            return Err(self.error("did not find expected <document start>")?);
        }
        self.scanner.skip_token();
        match self.scanner.peek_token()? {
            Token::Version { .. }
            | Token::TagDirective(_)
            | Token::DocumentStart
            | Token::DocumentEnd
            | Token::StreamEnd => self.empty(),
            _ => self.node(Place::Block),
        }
    }

    fn directives(&mut self) -> Result<(), YamlError> {
        let mut has_version = false;
        loop {
            let mark = self.scanner.token_mark()?;
            match self.scanner.peek_token()? {
                // libyaml reads both versions alike.
                Token::Version {
                    major: 1,
                    minor: 1 | 2,
                } if !has_version => has_version = true,
                Token::Version { .. } if has_version => {
                    return Err(mark.error("found duplicate %YAML directive"));
                }
                Token::Version { .. } => return Err(mark.error("found incompatible YAML document")),
                Token::TagDirective(of) => {
                    let (handle, prefix) = &**of;
                    if self.handles.iter().any(|(known, _)| known == handle) {
                        return Err(mark.error("found duplicate %TAG directive"));
                    }
                    self.handles.push((handle.clone(), prefix.clone()));
                }
                _ => return Ok(()),
            }

            self.scanner.skip_token();
        }
    }

    /// The tag's whole name.
    fn tag_name(&self, handle: &str, suffix: String, mark: Mark) -> Result<String, YamlError> {
        if handle.is_empty() {
            return Ok(suffix);
        }

        let own = self
            .handles
            .iter()
            .find(|(known, _)| known == handle)
            .map(|(_, prefix)| prefix.as_str());

        // A document may redefine the standard handles.
        let prefix = own.or(match handle {
            "!" => Some("!"),
            "!!" => Some("tag:yaml.org,2002:"),
            _ => None,
        });

        let prefix =
            prefix.ok_or_else(|| mark.error("while parsing a node: found undefined tag handle"))?;
        Ok(format!("{prefix}{suffix}"))
    }

    /// An empty node is null.
    fn empty(&mut self) -> Result<Id, YamlError> {
        let mark = self.scanner.token_mark()?;
        let id = self.nodes.add(Kind::Scalar("".into()), Tag::Null, mark);
        let plain = true;
        self.nodes.written(
            id,
            Written {
                plain,
                ..Written::default()
            },
        );
        Ok(id)
    }

    fn node(&mut self, place: Place) -> Result<Id, YamlError> {
        let mark = self.scanner.token_mark()?;
        if let Token::Alias(name) = *self.scanner.peek_token()? {
            self.scanner.skip_token();
            let Some(target) = self.anchors.get(name) else {
                return Err(mark.error(format!("found undefined alias '{name}'")));
            };
            return Ok(self.nodes.add(Kind::Alias(*target), Tag::Null, mark));
        }

        let (mut anchor, mut tagged, mut lone) = (None, None, false);
        if let Token::Anchor(_) | Token::Tag(_) = self.scanner.peek_token()? {
            let tag;
            (anchor, tag) = self.properties()?;
            // `!` alone resolves as the plain node, quoted or not.
            lone = tag.as_deref() == Some("!");

            if anchor.is_some_and(|anchor| self.anchors.contains_key(anchor)) {
                let anchor = anchor.unwrap_or_default();
                return Err(mark.error(format!("found duplicate anchor '{anchor}'")));
            }
            tagged = tag
                .filter(|name| !name.is_empty() && name != "!")
                .map(|name| self.nodes.tag(name));
        }

        let written = Written {
            plain: false,
            tagged: tagged.is_some() || lone,
            anchored: anchor.is_some(),
        };

        // Block collections cannot begin within flow collections.
        let block = place != Place::Flow;
        let (sequence, mapping) = (
            Kind::Sequence { first: NONE },
            Kind::Mapping { first: NONE },
        );

        let (parse, tag, kind): (ParseItems<'a>, _, _) = match self.scanner.peek_token()? {
            // As the value of a mapping, a sequence may stand at the mapping's own indentation.
            Token::BlockEntry if place == Place::BlockValue => {
                (Self::indentless_sequence, Tag::Seq, sequence)
            }
            Token::FlowSequenceStart => (Self::flow_sequence, Tag::Seq, sequence),
            Token::BlockSequenceStart if block => (Self::block_sequence, Tag::Seq, sequence),
            Token::FlowMappingStart => (Self::flow_mapping, Tag::Map, mapping),
            Token::BlockMappingStart if block => (Self::block_mapping, Tag::Map, mapping),
            Token::Scalar { .. } => {
                let Token::Scalar { text, plain } = self.scanner.next_token()? else {
                    return self.empty();
                };
                let tag = tagged.unwrap_or_else(|| {
                    if plain || lone {
                        self.resolve(&text)
                    } else {
                        Tag::Str
                    }
                });
                let id = self.nodes.add(Kind::Scalar(text), tag, mark);
                self.nodes.written(id, Written { plain, ..written });
                self.anchored(anchor, id);
                return Ok(id);
            }
            // Properties without content: an empty scalar.
            _ if anchor.is_some() || tagged.is_some() || lone => {
                let bare = if lone { Tag::Str } else { Tag::Null };
                let id = self
                    .nodes
                    .add(Kind::Scalar("".into()), tagged.unwrap_or(bare), mark);
                let plain = true;
                self.nodes.written(id, Written { plain, ..written });
                self.anchored(anchor, id);
                return Ok(id);
            }
            _ => return Err(self.error("did not find expected node content")?),
        };

        let id = self.nodes.add(kind, tagged.unwrap_or(tag), mark);
        self.nodes.written(id, written);
        // Before its items are parsed, because they may refer to it.
        self.anchored(anchor, id);

        self.depth += 1;
        if self.depth > SLS_DEPTH_MAX {
            return Err(mark.error(format!("nested more than {SLS_DEPTH_MAX} levels deep")));
        }

        let items = parse(self)?.first;
        self.depth -= 1;
        if let Some(Node {
            kind: Kind::Mapping { first } | Kind::Sequence { first },
            ..
        }) = self.nodes.get_mut(id)
        {
            *first = items;
        }

        Ok(id)
    }

    fn resolve(&mut self, text: &str) -> Tag {
        resolve(text).unwrap_or_else(|| self.nodes.tag("tag:yaml.org,2002:yaml".to_owned()))
    }

    fn anchored(&mut self, anchor: Option<&'a str>, id: Id) {
        if let Some(anchor) = anchor {
            self.anchors.insert(anchor, id);
            self.nodes.has_anchors = true;
        }
    }

    /// An optional anchor and an optional tag, in any order.
    fn properties(&mut self) -> Result<(Option<&'a str>, Option<String>), YamlError> {
        let (mut anchor, mut tag) = (None, None);
        let begin = self.scanner.token_mark()?;

        loop {
            match self.scanner.peek_token()? {
                Token::Anchor(name) if anchor.is_none() => {
                    anchor = Some(*name);
                    self.scanner.skip_token();
                }
                Token::Tag(_) if tag.is_none() => {
                    if let Token::Tag(of) = self.scanner.next_token()? {
                        let (handle, suffix) = *of;
                        tag = Some(self.tag_name(&handle, suffix, begin)?);
                    }
                }
                // A second anchor or tag is no content of a node, which the caller reports.
                _ => return Ok((anchor, tag)),
            }
        }
    }

    fn block_sequence(&mut self) -> Result<Chain, YamlError> {
        self.scanner.skip_token();
        let mut items = Chain::EMPTY;

        loop {
            match self.scanner.peek_token()? {
                Token::BlockEntry => {
                    self.scanner.skip_token();
                    let item = match self.scanner.peek_token()? {
                        // An entry without content is null.
                        Token::BlockEntry | Token::BlockEnd => self.empty()?,
                        _ => self.node(Place::Block)?,
                    };

                    items.push(&mut self.nodes, item);
                }
                Token::BlockEnd => {
                    self.scanner.skip_token();
                    return Ok(items);
                }
                _ => {
                    return Err(self.error(
                        "while parsing a block collection: did not find expected '-' indicator",
                    )?);
                }
            }
        }
    }

    fn indentless_sequence(&mut self) -> Result<Chain, YamlError> {
        let mut items = Chain::EMPTY;
        while matches!(self.scanner.peek_token()?, Token::BlockEntry) {
            self.scanner.skip_token();
            let item = match self.scanner.peek_token()? {
                Token::BlockEntry | Token::Key | Token::Value | Token::BlockEnd => self.empty()?,
                _ => self.node(Place::Block)?,
            };
            items.push(&mut self.nodes, item);
        }
        Ok(items)
    }

    fn block_mapping(&mut self) -> Result<Chain, YamlError> {
        self.scanner.skip_token();
        let mut items = Chain::EMPTY;

        loop {
            let token = self.scanner.peek_token()?;
            let (is_key, is_end) = (
                matches!(token, Token::Key),
                matches!(token, Token::BlockEnd),
            );
            self.scanner.skip_token();

            if is_end {
                return Ok(items);
            }
            if !is_key {
                return Err(self.error("while parsing a block mapping: did not find expected key")?);
            }

            let key = self.block_value()?;
            items.push(&mut self.nodes, key);
            // A key without a colon has the value null.
            let value = if matches!(self.scanner.peek_token()?, Token::Value) {
                self.scanner.skip_token();
                self.block_value()?
            } else {
                self.empty()?
            };

            items.push(&mut self.nodes, value);
        }
    }

    fn block_value(&mut self) -> Result<Id, YamlError> {
        match self.scanner.peek_token()? {
            Token::Key | Token::Value | Token::BlockEnd => self.empty(),
            _ => self.node(Place::BlockValue),
        }
    }

    fn flow_sequence(&mut self) -> Result<Chain, YamlError> {
        self.scanner.skip_token();
        let mut items = Chain::EMPTY;
        loop {
            self.flow_comma(&items, &Token::FlowSequenceEnd)?;
            let item = match self.scanner.peek_token()? {
                Token::FlowSequenceEnd => {
                    self.scanner.skip_token();
                    return Ok(items);
                }
                Token::Key => self.flow_pair()?,
                _ => self.node(Place::Flow)?,
            };
            items.push(&mut self.nodes, item);
        }
    }

    /// Commas separate items of a flow collection; a trailing comma is permitted.
    fn flow_comma(&mut self, items: &Chain, end: &Token<'a>) -> Result<(), YamlError> {
        match self.scanner.peek_token()? {
            token if token == end || items.first == NONE => Ok(()),
            Token::FlowEntry => {
                self.scanner.skip_token();
                Ok(())
            }
            _ => Err(self
                .error("while parsing a flow collection: did not find expected ',' or its end")?),
        }
    }

    /// `[key: value]` is a sequence of a mapping.
    fn flow_pair(&mut self) -> Result<Id, YamlError> {
        let mark = self.scanner.token_mark()?;
        self.scanner.skip_token();
        let mut items = Chain::EMPTY;

        let key = match self.scanner.peek_token()? {
            Token::Value | Token::FlowEntry | Token::FlowSequenceEnd => {
                // libyaml skips this token of any type.
                self.scanner.skip_token();
                self.empty()?
            }
            _ => self.node(Place::Flow)?,
        };

        items.push(&mut self.nodes, key);
        let value = self.flow_value(&Token::FlowSequenceEnd)?;
        items.push(&mut self.nodes, value);

        Ok(self
            .nodes
            .add(Kind::Mapping { first: items.first }, Tag::Map, mark))
    }

    fn flow_value(&mut self, end: &Token<'a>) -> Result<Id, YamlError> {
        if matches!(self.scanner.peek_token()?, Token::Value) {
            self.scanner.skip_token();
            let token = self.scanner.peek_token()?;
            if *token != Token::FlowEntry && token != end {
                return self.node(Place::Flow);
            }
        }
        self.empty()
    }

    fn flow_mapping(&mut self) -> Result<Chain, YamlError> {
        self.scanner.skip_token();
        let mut items = Chain::EMPTY;
        loop {
            self.flow_comma(&items, &Token::FlowMappingEnd)?;

            let (key, value);
            match self.scanner.peek_token()? {
                Token::FlowMappingEnd => {
                    self.scanner.skip_token();
                    return Ok(items);
                }
                Token::Key => {
                    self.scanner.skip_token();
                    key = match self.scanner.peek_token()? {
                        Token::Value | Token::FlowEntry | Token::FlowMappingEnd => self.empty()?,
                        _ => self.node(Place::Flow)?,
                    };
                    value = self.flow_value(&Token::FlowMappingEnd)?;
                }
                _ => {
                    // A key without a value.
                    key = self.node(Place::Flow)?;
                    value = self.empty()?;
                }
            }

            items.push(&mut self.nodes, key);
            items.push(&mut self.nodes, value);
        }
    }
}
