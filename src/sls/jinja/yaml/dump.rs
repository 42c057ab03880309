//! Values to YAML, as PyYAML's C dumper writes them for Salt.

use std::collections::{HashMap, HashSet};
use std::rc::Rc;

use super::scalar::{Analysis, Scalar, escape, is_break, is_printable, reads_as_text, scalar};
use crate::sls::jinja::budget;
use crate::sls::jinja::exc::{Res, not_native};
use crate::sls::jinja::values::ops;
use crate::sls::jinja::values::val::Val;
use crate::sls::python::text;

/// Columns after which a line is folded at the next blank.
const WIDTH: usize = 80;

/// How lists and mappings are written.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Style {
    Flow,
    Block,
    /// Flow where nothing but scalars is inside.
    Leaves,
}

/// A value as a document, without white space around it.
pub(crate) fn dump(val: &Val, style: Style) -> Res<String> {
    let mut emitter = Emitter {
        out: String::new(),
        column: 0,
        whitespace: true,
        indention: true,
        indent: None,
        flow: 0,
        style,
        anchors: HashMap::new(),
        written: HashSet::new(),
        next_anchor: 0,
    };
    emitter.count(val)?;
    emitter.node(val, Place::Root)?;
    let text = emitter.out.trim_matches(text::is_space);
    Ok(text.strip_suffix("\n...").unwrap_or(text).to_owned())
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Place {
    Root,
    /// An item of a list, or what follows `?`.
    Item,
    SimpleKey,
    /// What follows `key:`.
    Value,
}

struct Emitter {
    out: String,
    column: usize,
    whitespace: bool,
    indention: bool,
    indent: Option<usize>,
    flow: usize,
    style: Style,
    /// Containers by address: how often they are met, at most twice counted.
    anchors: HashMap<*const (), Option<usize>>,
    written: HashSet<*const ()>,
    next_anchor: usize,
}

fn address(val: &Val) -> Option<*const ()> {
    match val {
        Val::List(list) => Some(Rc::as_ptr(list).cast()),
        Val::Dict(dict) => Some(Rc::as_ptr(dict).cast()),
        Val::Set(set) => Some(Rc::as_ptr(set).cast()),
        Val::Tuple(tuple) if !tuple.items.is_empty() => Some(Rc::as_ptr(tuple).cast()),
        _ => None,
    }
}

/// The pairs of a mapping in the order they are written: sorted if they can be.
fn pairs(val: &Val) -> Res<Vec<(Val, Val)>> {
    match val {
        Val::Dict(dict) => {
            let pairs = dict.pairs();
            if dict.ordered {
                return Ok(pairs);
            }
            let keyed = pairs
                .iter()
                .map(|(key, value)| (key.clone(), Val::tuple(vec![key.clone(), value.clone()])))
                .collect();
            match ops::sort(keyed, false) {
                Ok(sorted) => Ok(sorted
                    .into_iter()
                    .filter_map(|pair| match pair {
                        Val::Tuple(tuple) => {
                            Some((tuple.items.first()?.clone(), tuple.items.get(1)?.clone()))
                        }
                        _ => None,
                    })
                    .collect()),
                Err(error) if error.is_exception() => Ok(pairs),
                Err(error) => Err(error),
            }
        }
        Val::Set(set) => {
            let items = set.items();
            let sorted = ops::sort(items.iter().map(|item| (item.clone(), item.clone())).collect(), false);
            Ok(sorted.unwrap_or(items).into_iter().map(|item| (item, Val::None)).collect())
        }
        _ => Ok(Vec::new()),
    }
}

impl Emitter {
    /// Finds what is met twice, and numbers it in that order.
    fn count(&mut self, val: &Val) -> Res<()> {
        let _level = budget::deeper()?;
        budget::step()?;
        if let Some(address) = address(val) {
            match self.anchors.get(&address) {
                Some(Some(_)) => return Ok(()),
                Some(None) => {
                    self.next_anchor += 1;
                    self.anchors.insert(address, Some(self.next_anchor));
                    return Ok(());
                }
                None => {
                    self.anchors.insert(address, None);
                }
            }
        }
        match val {
            Val::List(list) => list.items().iter().try_for_each(|item| self.count(item)),
            Val::Tuple(tuple) => tuple.items.iter().try_for_each(|item| self.count(item)),
            Val::Dict(_) => {
                for (key, value) in pairs(val)? {
                    self.count(&key)?;
                    self.count(&value)?;
                }
                Ok(())
            }
            _ => Ok(()),
        }
    }

    fn put(&mut self, c: char) {
        self.out.push(c);
        self.column += 1;
    }

    fn put_break(&mut self, c: char) {
        self.out.push(c);
        self.column = 0;
    }

    fn write_indent(&mut self) {
        let indent = self.indent.unwrap_or(0);
        if !self.indention || self.column > indent || (self.column == indent && !self.whitespace) {
            self.put_break('\n');
        }
        while self.column < indent {
            self.put(' ');
        }
        self.whitespace = true;
        self.indention = true;
    }

    fn indicator(&mut self, text: &str, needs_space: bool, is_space: bool, is_indention: bool) {
        if needs_space && !self.whitespace {
            self.put(' ');
        }
        for c in text.chars() {
            self.put(c);
        }
        self.whitespace = is_space;
        self.indention = self.indention && is_indention;
    }

    fn deeper(&mut self, flow: bool, indentless: bool) -> Option<usize> {
        let before = self.indent;
        self.indent = match before {
            None => Some(if flow { 2 } else { 0 }),
            Some(indent) if !indentless => Some(indent + 2),
            same => same,
        };
        before
    }

    fn node(&mut self, val: &Val, place: Place) -> Res<()> {
        let _level = budget::deeper()?;
        budget::step()?;
        budget::room(self.out.len())?;
        if let Some(address) = address(val)
            && let Some(Some(number)) = self.anchors.get(&address).copied()
        {
            if !self.written.insert(address) {
                self.indicator(&format!("*id{number:03}"), true, false, false);
                return Ok(());
            }
            self.indicator(&format!("&id{number:03}"), true, false, false);
        }
        if let Some(scalar) = scalar(val)? {
            self.scalar(&scalar, place);
            return Ok(());
        }
        match val {
            Val::List(list) => self.sequence(&list.items(), place),
            Val::Tuple(tuple) => self.sequence(&tuple.items, place),
            _ => {
                if matches!(val, Val::Set(_)) {
                    self.indicator("!!set", true, false, false);
                }
                self.mapping(&pairs(val)?, place)
            }
        }
    }

    fn is_flow<'v>(&self, mut members: impl Iterator<Item = &'v Val>) -> bool {
        self.flow > 0
            || match self.style {
                Style::Flow => true,
                Style::Block => false,
                Style::Leaves => members
                    .all(|val| !matches!(val, Val::List(_) | Val::Tuple(_) | Val::Dict(_) | Val::Set(_))),
            }
    }

    fn sequence(&mut self, items: &[Val], place: Place) -> Res<()> {
        if items.is_empty() || self.is_flow(items.iter()) {
            self.indicator("[", true, true, false);
            let before = self.deeper(true, false);
            self.flow += 1;
            for (i, item) in items.iter().enumerate() {
                if i > 0 {
                    self.indicator(",", false, false, false);
                }
                if self.column > WIDTH {
                    self.write_indent();
                }
                self.node(item, Place::Item)?;
            }
            self.flow -= 1;
            self.indent = before;
            self.indicator("]", false, false, false);
            return Ok(());
        }
        let before = self.deeper(false, place == Place::Value && !self.indention);
        for item in items {
            self.write_indent();
            self.indicator("-", true, false, true);
            self.node(item, Place::Item)?;
        }
        self.indent = before;
        Ok(())
    }

    fn mapping(&mut self, pairs: &[(Val, Val)], place: Place) -> Res<()> {
        let _ = place;
        if pairs.is_empty() || self.is_flow(pairs.iter().flat_map(|(key, value)| [key, value])) {
            self.indicator("{", true, true, false);
            let before = self.deeper(true, false);
            self.flow += 1;
            for (i, (key, value)) in pairs.iter().enumerate() {
                if i > 0 {
                    self.indicator(",", false, false, false);
                }
                if self.column > WIDTH {
                    self.write_indent();
                }
                if Self::is_simple(key)? {
                    self.node(key, Place::SimpleKey)?;
                    self.indicator(":", false, false, false);
                } else {
                    self.indicator("?", true, false, false);
                    self.node(key, Place::Item)?;
                    if self.column > WIDTH {
                        self.write_indent();
                    }
                    self.indicator(":", true, false, false);
                }
                self.node(value, Place::Value)?;
            }
            self.flow -= 1;
            self.indent = before;
            self.indicator("}", false, false, false);
            return Ok(());
        }
        let before = self.deeper(false, false);
        for (key, value) in pairs {
            self.write_indent();
            if Self::is_simple(key)? {
                self.node(key, Place::SimpleKey)?;
                self.indicator(":", false, false, false);
            } else {
                self.indicator("?", true, false, true);
                self.node(key, Place::Item)?;
                self.write_indent();
                self.indicator(":", true, false, true);
            }
            self.node(value, Place::Value)?;
        }
        self.indent = before;
        Ok(())
    }

    /// Whether a key fits before its colon.
    fn is_simple(key: &Val) -> Res<bool> {
        Ok(match scalar(key)? {
            Some(Scalar::Text(text) | Scalar::Plain(text) | Scalar::Binary(text)) => {
                text.len() <= 128 && !text.contains(is_break)
            }
            None => match key {
                Val::Tuple(tuple) => tuple.items.is_empty(),
                _ => return Err(not_native("a mapping as a key in YAML")),
            },
        })
    }

    fn scalar(&mut self, scalar: &Scalar, place: Place) {
        let before = self.deeper(true, false);
        self.scalar_inside(scalar, place);
        self.indent = before;
    }

    fn scalar_inside(&mut self, scalar: &Scalar, place: Place) {
        let simple_key = place == Place::SimpleKey;
        let (text, plain) = match scalar {
            Scalar::Plain(text) => (text, true),
            Scalar::Text(text) => (text, reads_as_text(text)),
            Scalar::Binary(text) => {
                self.indicator("!!binary", true, false, false);
                if self.flow > 0 || simple_key {
                    self.double(text, !simple_key);
                } else {
                    self.literal(text);
                }
                return;
            }
        };
        let analysis = Analysis::of(text);
        let multiline_key = simple_key && analysis.multiline;
        let plain = plain
            && !multiline_key
            && if self.flow > 0 { analysis.flow_plain } else { analysis.block_plain }
            && !(text.is_empty() && (self.flow > 0 || simple_key));
        if plain {
            self.plain(text, !simple_key);
        } else if analysis.single && !multiline_key {
            self.single(text, !simple_key);
        } else {
            self.double(text, !simple_key);
        }
    }

    fn plain(&mut self, text: &str, fold: bool) {
        if !self.whitespace && (!text.is_empty() || self.flow > 0) {
            self.put(' ');
        }
        let mut spaces = false;
        let mut chars = text.chars().peekable();
        while let Some(c) = chars.next() {
            if c == ' ' {
                if fold && !spaces && self.column > WIDTH && chars.peek() != Some(&' ') {
                    self.write_indent();
                } else {
                    self.put(c);
                }
                spaces = true;
            } else {
                self.put(c);
                self.indention = false;
                spaces = false;
            }
        }
        self.whitespace = false;
        self.indention = false;
    }

    fn single(&mut self, text: &str, fold: bool) {
        self.indicator("'", true, false, false);
        let (mut spaces, mut breaks, mut first) = (false, false, true);
        let mut chars = text.chars().peekable();
        while let Some(c) = chars.next() {
            if c == ' ' {
                let inside = !first && chars.peek().is_some_and(|next| *next != ' ');
                if fold && !spaces && self.column > WIDTH && inside {
                    self.write_indent();
                } else {
                    self.put(c);
                }
                spaces = true;
            } else if is_break(c) {
                if !breaks && c == '\n' {
                    self.put_break('\n');
                }
                self.put_break(c);
                self.indention = true;
                breaks = true;
            } else {
                if breaks {
                    self.write_indent();
                }
                if c == '\'' {
                    self.put('\'');
                }
                self.put(c);
                self.indention = false;
                (spaces, breaks) = (false, false);
            }
            first = false;
        }
        if breaks {
            self.write_indent();
        }
        self.indicator("'", false, false, false);
        self.whitespace = false;
        self.indention = false;
    }

    fn double(&mut self, text: &str, fold: bool) {
        self.indicator("\"", true, false, false);
        let (mut spaces, mut first) = (false, true);
        let mut chars = text.chars().peekable();
        while let Some(c) = chars.next() {
            if !is_printable(c) || is_break(c) || matches!(c, '"' | '\\') {
                let mut escaped = String::new();
                escape(c, &mut escaped);
                for c in escaped.chars() {
                    self.put(c);
                }
                spaces = false;
            } else if c == ' ' {
                if fold && !spaces && self.column > WIDTH && !first && chars.peek().is_some() {
                    self.write_indent();
                    if chars.peek() == Some(&' ') {
                        self.put('\\');
                    }
                } else {
                    self.put(c);
                }
                spaces = true;
            } else {
                self.put(c);
                spaces = false;
            }
            first = false;
        }
        self.indicator("\"", false, false, false);
        self.whitespace = false;
        self.indention = false;
    }

    /// Lines of their own, as base64 has them.
    fn literal(&mut self, text: &str) {
        self.indicator("|", true, false, false);
        self.put_break('\n');
        self.indention = true;
        self.whitespace = true;
        for line in text.lines() {
            self.write_indent();
            for c in line.chars() {
                self.put(c);
            }
            self.indention = false;
            self.whitespace = false;
        }
    }
}
