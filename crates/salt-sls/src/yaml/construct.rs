//! Nodes to values, as in PyYAML's safe constructor with Salt's changes: merge keys, duplicates, tags.

use std::borrow::Cow;

use super::error::YamlError;
use super::parse::{Id, Kind, NONE, Node, Nodes};
use super::resolve::{Tag, float, int};
use super::scan::Mark;
use indexmap::map::Entry;

use super::base64;
use crate::limits::{SLS_DEPTH_MAX, YAML_ALIASED_BYTES_MAX, YAML_ALIASED_VALUES_MAX};
use crate::value::{Key, Map, Value, with_room};

pub(super) struct Constructor<'a> {
    pub(super) nodes: Nodes<'a>,
    /// Remaining values and bytes of text.
    values_left: usize,
    bytes_left: usize,
    depth: usize,
}

impl<'a> Constructor<'a> {
    pub(super) fn new(nodes: Nodes<'a>, text: &str) -> Self {
        let values_left = nodes.all.len() + YAML_ALIASED_VALUES_MAX;
        Self {
            nodes,
            values_left,
            bytes_left: text.len() + YAML_ALIASED_BYTES_MAX,
            depth: 0,
        }
    }

    pub(super) fn value(&mut self, id: Id) -> Result<Value, YamlError> {
        let id = self.nodes.behind(id);
        let Some(node) = self.nodes.get(id) else {
            return Ok(Value::Null);
        };

        let (tag, mark) = (node.tag, node.mark);

        // Each alias is a copy, so a small document could become any number of values.
        self.values_left = self.values_left.checked_sub(1).ok_or_else(|| {
            mark.error(format!(
                "aliases make more than {YAML_ALIASED_VALUES_MAX} values out of the document"
            ))
        })?;

        match tag {
            // Salt reads dates as strings.
            Tag::Str | Tag::Timestamp => Ok(Value::Str(self.text(id)?)),
            Tag::Null => self.scalar(id).map(|_| Value::Null),
            Tag::Bool => {
                let text = self.scalar(id)?;
                match text.to_lowercase().as_str() {
                    "yes" | "true" | "on" => Ok(Value::Bool(true)),
                    "no" | "false" | "off" => Ok(Value::Bool(false)),
                    _ => Err(mark.error(format!("no boolean: {text:?}"))),
                }
            }
            Tag::Int => {
                // Salt's constructor of integers accepts no other node.
                let Some(Node {
                    kind: Kind::Scalar(_),
                    ..
                }) = self.nodes.get(id)
                else {
                    return Err(mark.error("expected a scalar node"));
                };
                let value = int(self.scalar(id)?).map_err(|message| mark.error(message))?;
                self.keep_without_zeros(id);
                Ok(value)
            }
            Tag::Float => float(self.scalar(id)?)
                .map(Value::Float)
                .map_err(|message| mark.error(message)),
            Tag::Binary => binary(self.scalar(id)?)
                .map(Value::Bytes)
                .map_err(|message| mark.error(message)),
            Tag::Unicode => match self.nodes.get(id) {
                Some(Node {
                    kind: Kind::Scalar(_),
                    ..
                }) => Ok(Value::Str(self.text(id)?)),
                _ => Err(mark.error("expected a scalar node")),
            },
            Tag::Seq => self.sequence(id).map(Value::List),
            Tag::Pairs => self.pairs(id).map(Value::List),
            Tag::Map | Tag::Omap => self.mapping(id).map(Value::Map),
            Tag::Set => Ok(Value::Set(
                self.mapping(id)?.into_keys().map(|key| key.0).collect(),
            )),
            // PyYAML has no constructor for these two where they are not keys.
            Tag::Merge => Err(unknown(mark, "tag:yaml.org,2002:merge")),
            Tag::Value => Err(unknown(mark, "tag:yaml.org,2002:value")),
            Tag::Other(at) => Err(unknown(
                mark,
                self.nodes
                    .unknown
                    .get(at as usize)
                    .map_or("", String::as_str),
            )),
        }
    }

    /// The scalar of a node: itself, or the value of `=` in a mapping.
    fn scalar_id(&self, id: Id) -> Result<Id, YamlError> {
        let mut id = self.nodes.behind(id);
        // Each step descends, except through an alias.
        for _ in 0..SLS_DEPTH_MAX {
            match self.nodes.get(id) {
                Some(Node {
                    kind: Kind::Scalar(_),
                    ..
                }) => return Ok(id),
                Some(Node {
                    kind: Kind::Mapping { first },
                    ..
                }) => {
                    let Some((_, value)) = self
                        .chain_pairs(*first)
                        .find(|(key, _)| self.tag_of(*key) == Some(Tag::Value))
                    else {
                        break;
                    };
                    id = self.nodes.behind(value);
                }
                _ => break,
            }
        }

        let mark = self.nodes.get(id).map(|node| node.mark).unwrap_or_default();
        Err(mark.error("expected a scalar node"))
    }

    fn scalar(&self, id: Id) -> Result<&str, YamlError> {
        match self.nodes.get(self.scalar_id(id)?) {
            Some(Node {
                kind: Kind::Scalar(text),
                tag: Tag::Int,
                ..
            }) => Ok(without_zeros(text)),
            Some(Node {
                kind: Kind::Scalar(text),
                ..
            }) => Ok(text),
            _ => Ok(""),
        }
    }

    /// A scalar's text, moved out of the node unless it is needed again.
    fn text(&mut self, id: Id) -> Result<String, YamlError> {
        let id = self.scalar_id(id)?;
        let shared = self.nodes.has_anchors;

        let Some(Node {
            kind: Kind::Scalar(text),
            mark,
            tag,
            ..
        }) = self.nodes.get_mut(id)
        else {
            return Ok(String::new());
        };

        let left = self.bytes_left.checked_sub(text.len());
        self.bytes_left = left.ok_or_else(|| {
            mark.error(format!(
                "aliases make more than {YAML_ALIASED_BYTES_MAX} bytes of text out of the document"
            ))
        })?;

        // The value of `=` may be an integer.
        if *tag == Tag::Int {
            return Ok(without_zeros(text).to_owned());
        }

        // Without anchors no other node needs the text, so it is not copied.
        Ok(if shared {
            text.clone().into_owned()
        } else {
            std::mem::take(text).into_owned()
        })
    }

    /// Salt changes the node of an integer while it constructs it, and merge keys compare strings of nodes.
    fn keep_without_zeros(&mut self, id: Id) {
        if self.nodes.has_anchors
            && let Some(Node {
                kind: Kind::Scalar(text),
                ..
            }) = self.nodes.get_mut(id)
            && without_zeros(text).len() != text.len()
        {
            *text = Cow::Owned(without_zeros(text).to_owned());
        }
    }

    fn tag_of(&self, id: Id) -> Option<Tag> {
        self.nodes.get(self.nodes.behind(id)).map(|node| node.tag)
    }

    fn chain(&self, first: Id) -> impl Iterator<Item = Id> + '_ {
        std::iter::successors(Some(first), |id| Some(self.nodes.after(*id)))
            .take_while(|id| *id != NONE)
    }

    fn chain_pairs(&self, first: Id) -> impl Iterator<Item = (Id, Id)> + '_ {
        let mut key = first;
        std::iter::from_fn(move || {
            let value = self.nodes.after(key);
            (key != NONE && value != NONE).then(|| {
                let pair = (key, value);
                key = self.nodes.after(value);
                pair
            })
        })
    }

    /// Marks a collection as under construction. A node that contains itself is an error.
    fn enter(&mut self, id: Id) -> Result<(), YamlError> {
        self.depth += 1;
        let too_deep = self.depth > SLS_DEPTH_MAX;
        if let Some(node) = self.nodes.get_mut(id) {
            if node.busy {
                return Err(node.mark.error("found unconstructable recursive node"));
            }
            if too_deep {
                return Err(node
                    .mark
                    .error(format!("nested more than {SLS_DEPTH_MAX} levels deep")));
            }
            node.busy = true;
        }
        Ok(())
    }

    fn leave(&mut self, id: Id) {
        self.depth -= 1;
        if let Some(node) = self.nodes.get_mut(id) {
            node.busy = false;
        }
    }

    fn items(&self, id: Id, wanted: &str) -> Result<Id, YamlError> {
        match self.nodes.get(id) {
            Some(Node {
                kind: Kind::Sequence { first },
                ..
            }) => Ok(*first),
            Some(node) => Err(node.mark.error(format!(
                "expected {wanted}, but found {}",
                kind_name(&node.kind)
            ))),
            None => Ok(NONE),
        }
    }

    fn sequence(&mut self, id: Id) -> Result<Vec<Value>, YamlError> {
        let first = self.items(id, "a sequence node")?;
        self.enter(id)?;

        let mut values = Vec::with_capacity(self.chain(first).count());
        let mut item = first;
        while item != NONE {
            values.push(self.value(item)?);
            item = self.nodes.after(item);
        }

        self.leave(id);
        Ok(values)
    }

    fn pairs(&mut self, id: Id) -> Result<Vec<Value>, YamlError> {
        let first = self.items(id, "a sequence")?;
        self.enter(id)?;

        let mut values = Vec::new();
        let mut item = first;
        while item != NONE {
            let pair = match self.nodes.get(self.nodes.behind(item)) {
                Some(Node {
                    kind: Kind::Mapping { first },
                    ..
                }) => *first,
                _ => NONE,
            };

            // PyYAML's `!!pairs` is a list of mappings with one pair each.
            let mut pairs = self.chain_pairs(pair);
            let (Some((key, value)), None) = (pairs.next(), pairs.next()) else {
                let mark = self
                    .nodes
                    .get(item)
                    .map(|node| node.mark)
                    .unwrap_or_default();
                return Err(mark.error("while constructing pairs: expected a mapping of length 1"));
            };
            // Ends the borrow of the nodes.
            drop(pairs);
            values.push(Value::Tuple(vec![self.value(key)?, self.value(value)?]));
            item = self.nodes.after(item);
        }

        self.leave(id);
        Ok(values)
    }

    pub(super) fn mapping(&mut self, id: Id) -> Result<Map, YamlError> {
        let Some(Node {
            kind: Kind::Mapping { .. },
            mark,
            ..
        }) = self.nodes.get(id)
        else {
            let node = self.nodes.get(id);
            let mark = node.map(|node| node.mark).unwrap_or_default();
            let found = node.map_or("nothing", |node| kind_name(&node.kind));
            return Err(mark.error(format!("expected a mapping node, but found {found}")));
        };

        let mark = *mark;
        self.enter(id)?;
        // Merge keys change the pairs, so they are resolved before the pairs are read.
        self.flatten(id, 0)?;

        let first = match self.nodes.get(id) {
            Some(Node {
                kind: Kind::Mapping { first },
                ..
            }) => *first,
            _ => NONE,
        };

        let mut map = with_room(self.chain_pairs(first).count());
        let mut at = first;
        while at != NONE {
            let key_id = at;
            let value_id = self.nodes.after(at);
            let key = self.value(key_id)?;
            if let Value::List(_) | Value::Map(_) | Value::Set(_) = key {
                let at = self.nodes.get(key_id).map_or(mark, |node| node.mark);
                return Err(at.error("while constructing a mapping: found unacceptable key"));
            }

            let value = self.value(value_id)?;
            match map.entry(Key(key)) {
                Entry::Vacant(place) => {
                    place.insert(value);
                }
                Entry::Occupied(there) => {
                    // Salt rejects duplicates, which YAML and PyYAML accept.
                    let at = self.nodes.get(key_id).map_or(mark, |node| node.mark);
                    let key = match &there.key().0 {
                        Value::Str(text) => text.clone(),
                        _ => self.scalar(key_id).unwrap_or_default().to_owned(),
                    };
                    return Err(at.error(format!(
                        "while constructing a mapping: found conflicting ID '{key}'"
                    )));
                }
            }

            at = self.nodes.after(value_id);
        }

        self.leave(id);
        Ok(map)
    }

    /// Inserts the pairs of `<<` before a mapping's own pairs, except keys with equal text; `=` becomes a plain key.
    fn flatten(&mut self, id: Id, depth: usize) -> Result<(), YamlError> {
        let first = match self.nodes.get(id) {
            Some(Node {
                kind: Kind::Mapping { first },
                ..
            }) => *first,
            _ => return Ok(()),
        };

        let is_special = |(key, _)| matches!(self.tag_of(key), Some(Tag::Merge | Tag::Value));
        if !self.nodes.has_special_keys || !self.chain_pairs(first).any(is_special) {
            // Nearly all mappings.
            return Ok(());
        }

        let pairs: Vec<(Id, Id)> = self.chain_pairs(first).collect();
        let mark = self.nodes.get(id).map(|node| node.mark).unwrap_or_default();

        if depth > SLS_DEPTH_MAX {
            return Err(mark.error(format!("merged more than {SLS_DEPTH_MAX} levels deep")));
        }

        let mut own = Vec::with_capacity(pairs.len());
        let mut merged: Vec<(Id, Id)> = Vec::new();
        for (at, (key, value)) in pairs.iter().enumerate() {
            match self.tag_of(*key) {
                Some(Tag::Merge) => {
                    // A merge of this same mapping meanwhile sees it without the key.
                    let rest: Vec<_> = own
                        .iter()
                        .chain(pairs.get(at + 1..).unwrap_or_default())
                        .copied()
                        .collect();
                    self.rebuild(id, &rest);
                    self.merge(*value, mark, depth, &mut merged)?;
                }
                Some(Tag::Value) => {
                    let key = self.nodes.behind(*key);
                    if let Some(node) = self.nodes.get_mut(key) {
                        node.tag = Tag::Str;
                    }
                    own.push((key, *value));
                }
                _ => own.push((*key, *value)),
            }
        }

        // Own pairs win, wherever the merge key is.
        merged.retain(|(key, _)| !own.iter().any(|(own, _)| self.same_text(*key, *own)));
        merged.append(&mut own);

        self.rebuild(id, &merged);
        Ok(())
    }

    fn merge(
        &mut self,
        value: Id,
        mark: Mark,
        depth: usize,
        merged: &mut Vec<(Id, Id)>,
    ) -> Result<(), YamlError> {
        let value = self.nodes.behind(value);
        let from: Vec<Id> = match self.nodes.get(value).map(|node| &node.kind) {
            Some(Kind::Mapping { .. }) => vec![value],
            Some(Kind::Sequence { first }) => self
                .chain(*first)
                .map(|item| self.nodes.behind(item))
                .collect(),
            _ => {
                let message = "while constructing a mapping: expected a mapping or list of mappings for merging";
                return Err(mark.error(message));
            }
        };

        for source in &from {
            if !matches!(
                self.nodes.get(*source),
                Some(Node {
                    kind: Kind::Mapping { .. },
                    ..
                })
            ) {
                return Err(
                    mark.error("while constructing a mapping: expected a mapping for merging")
                );
            }
            self.flatten(*source, depth + 1)?;
        }

        // In reverse, as PyYAML does it.
        for source in from.iter().rev() {
            if let Some(Node {
                kind: Kind::Mapping { first },
                ..
            }) = self.nodes.get(*source)
            {
                merged.extend(self.chain_pairs(*first));
            }

            // Each merge copies pairs, so a few lines could become millions.
            if merged.len() > YAML_ALIASED_VALUES_MAX {
                let message = format!(
                    "merge keys make more than {YAML_ALIASED_VALUES_MAX} values out of the document"
                );
                return Err(mark.error(message));
            }
        }

        Ok(())
    }

    /// Replaces a mapping's pairs. A node that is in another chain is represented by an alias.
    fn rebuild(&mut self, id: Id, pairs: &[(Id, Id)]) {
        let mut first = NONE;
        // From the last pair, because each node refers to the next one.
        for target in pairs
            .iter()
            .flat_map(|(key, value)| [*value, *key].into_iter().rev())
            .rev()
            .collect::<Vec<_>>()
        {
            let target = self.nodes.behind(target);
            let mark = self
                .nodes
                .get(target)
                .map(|node| node.mark)
                .unwrap_or_default();
            let alias = self.nodes.add(Kind::Alias(target), Tag::Null, mark);
            if let Some(node) = self.nodes.get_mut(alias) {
                node.next = first;
            }
            first = alias;
        }

        self.nodes.has_anchors = true;
        if let Some(node) = self.nodes.get_mut(id) {
            node.kind = Kind::Mapping { first };
        }
    }

    /// Equality of text, or identity of collections.
    fn same_text(&self, one: Id, other: Id) -> bool {
        let (one, other) = (self.nodes.behind(one), self.nodes.behind(other));
        match (
            self.nodes.get(one).map(|node| &node.kind),
            self.nodes.get(other).map(|node| &node.kind),
        ) {
            (Some(Kind::Scalar(a)), Some(Kind::Scalar(b))) => a == b,
            _ => one == other,
        }
    }

    /// For each pair of a constructed mapping: the node of its value, and for a mapping, the nodes of its values.
    pub(super) fn sharing(&self, root: Id) -> Vec<(Id, Vec<Id>)> {
        let values = |id: Id| match self.nodes.get(id).map(|node| &node.kind) {
            Some(Kind::Mapping { first }) => self
                .chain_pairs(*first)
                .map(|(_, value)| self.nodes.behind(value))
                .collect(),
            _ => Vec::new(),
        };
        values(self.nodes.behind(root))
            .into_iter()
            .map(|body| (body, values(body)))
            .collect()
    }
}

fn unknown(mark: Mark, tag: &str) -> YamlError {
    mark.error(format!(
        "could not determine a constructor for the tag '{tag}'"
    ))
}

fn kind_name(kind: &Kind<'_>) -> &'static str {
    match kind {
        Kind::Scalar(_) => "scalar",
        Kind::Sequence { .. } => "sequence",
        Kind::Mapping { .. } => "mapping",
        Kind::Alias(_) => "alias",
    }
}

/// Salt removes leading zeros of an integer without sign and base.
fn without_zeros(text: &str) -> &str {
    if !text.starts_with('0') || text == "0" || text.starts_with("0b") || text.starts_with("0x") {
        return text;
    }
    let rest = text.trim_start_matches('0');
    if rest.is_empty() { "0" } else { rest }
}

/// Base 64 as in Python; Salt adds missing padding.
fn binary(text: &str) -> Result<Vec<u8>, String> {
    if !text.is_ascii() {
        return Err("failed to convert base64 data into ascii".to_owned());
    }
    let padding = (4 - text.len() % 4) % 4;
    base64::decode(text.bytes().chain(std::iter::repeat_n(b'=', padding)))
        .map_err(|error| format!("failed to decode base64 data: {error}"))
}
