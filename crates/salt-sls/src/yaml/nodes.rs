//! The nodes of a document and their places, for programs with their own rules for scalars, for
//! example in their configuration.

use super::error::YamlError;
use super::parse::{Id, Kind, NONE, Nodes, Parser};

/// A document as it is written: tags, aliases and types of plain scalars are not resolved.
pub struct Document<'a> {
    nodes: Nodes<'a>,
    root: Option<Id>,
}

/// Parses the only document of `text`.
pub fn parse(text: &str) -> Result<Document<'_>, YamlError> {
    super::check(text)?;
    let mut parser = Parser::new(text);
    let root = parser.document()?;
    Ok(Document {
        nodes: parser.nodes,
        root,
    })
}

impl Document<'_> {
    /// The outermost node; `None` without a document.
    pub fn root(&self) -> Option<Node<'_>> {
        self.root.map(|id| Node {
            nodes: &self.nodes,
            id,
        })
    }
}

/// A node of a [`Document`].
#[derive(Clone, Copy)]
pub struct Node<'d> {
    nodes: &'d Nodes<'d>,
    id: Id,
}

/// What a node consists of.
pub enum Content<'d> {
    /// A scalar; a missing one is plain and empty.
    Scalar {
        /// Its text, without quotes and escapes.
        text: &'d str,
        /// It has no quotes, and is no block.
        is_plain: bool,
    },
    /// A sequence.
    Sequence(Items<'d>),
    /// A mapping: keys and values in turn.
    Mapping(Items<'d>),
    /// `*name`
    Alias,
}

impl<'d> Node<'d> {
    /// The line at which it begins, from 1; for a missing scalar, the line of what follows.
    pub fn line(self) -> usize {
        self.of().map_or(1, |node| node.mark.line as usize + 1)
    }

    /// Whether it has a tag, such as `!!str`.
    pub fn is_tagged(self) -> bool {
        self.of().is_some_and(|node| node.written.tagged)
    }

    /// Whether it has an anchor, such as `&name`.
    pub fn is_anchored(self) -> bool {
        self.of().is_some_and(|node| node.written.anchored)
    }

    /// What it consists of.
    pub fn content(self) -> Content<'d> {
        let items = |next: Id| Items {
            nodes: self.nodes,
            next,
        };

        let Some(node) = self.of() else {
            return Content::Sequence(items(NONE));
        };
        match &node.kind {
            Kind::Scalar(text) => Content::Scalar {
                text,
                is_plain: node.written.plain,
            },
            Kind::Sequence { first } => Content::Sequence(items(*first)),
            Kind::Mapping { first } => Content::Mapping(items(*first)),
            Kind::Alias(_) => Content::Alias,
        }
    }

    fn of(self) -> Option<&'d super::parse::Node<'d>> {
        self.nodes.get(self.id)
    }
}

/// The items of a sequence, or the keys and values of a mapping.
pub struct Items<'d> {
    nodes: &'d Nodes<'d>,
    next: Id,
}

impl<'d> Iterator for Items<'d> {
    type Item = Node<'d>;

    fn next(&mut self) -> Option<Node<'d>> {
        let id = self.next;
        if id == NONE {
            return None;
        }
        self.next = self.nodes.after(id);
        Some(Node {
            nodes: self.nodes,
            id,
        })
    }
}
