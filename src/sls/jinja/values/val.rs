//! The values of a template: Python's, as far as a template can tell.
//!
//! Lists, mappings and sets are shared and mutable. A value that holds others is let go without recursion, however deep it is.

use std::cell::RefCell;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::rc::Rc;
use std::sync::Arc;

use indexmap::IndexSet;

use super::num;
use super::object::Object;
use super::ops;
use crate::sls::jinja::budget;
use crate::sls::jinja::exc::{Exc, Kind, Res, type_error};
use crate::sls::map::OrderedMap;

/// Members of a list, a mapping or a set that are copied for one step.
const COPIED_PER_STEP: usize = 16;

/// Text, shared between templates and values.
pub(crate) type Text = Arc<str>;

/// A value.
#[derive(Clone)]
pub(crate) enum Val {
    /// What is not there.
    Undef(Rc<Undef>),
    None,
    Bool(bool),
    Int(i64),
    /// An integer outside of `i64`; never one that fits.
    Big(Rc<i128>),
    Float(f64),
    Str(Text),
    /// `markupsafe.Markup`: text that is HTML already.
    Markup(Text),
    Bytes(Rc<[u8]>),
    List(Rc<List>),
    Tuple(Rc<Tuple>),
    Dict(Rc<Dict>),
    Set(Rc<Set>),
    /// Everything else.
    Object(Rc<Object>),
}

/// An undefined value: what it was to be.
#[derive(Debug)]
pub(crate) struct Undef {
    /// What using it says.
    pub(crate) message: String,
    /// Whether printing, comparing and testing it fails, too.
    pub(crate) strict: bool,
    pub(crate) kind: Kind,
}

impl Undef {
    pub(crate) fn fail(&self) -> Exc {
        Exc::new(self.kind, self.message.clone())
    }

    /// Fails if it is strict.
    pub(crate) fn check(&self) -> Res<()> {
        if self.strict { Err(self.fail()) } else { Ok(()) }
    }
}

/// A list.
pub(crate) struct List(pub(crate) RefCell<Vec<Val>>);

/// A tuple; `groupby` names the parts of its own.
pub(crate) struct Tuple {
    pub(crate) items: Vec<Val>,
    pub(crate) named: Option<&'static [&'static str]>,
}

/// A mapping.
pub(crate) struct Dict {
    pub(crate) map: RefCell<OrderedMap<Hashed, Val>>,
    /// `OrderedDict`, which prints otherwise.
    pub(crate) ordered: bool,
}

/// A set.
pub(crate) struct Set(pub(crate) RefCell<IndexSet<Hashed>>);

/// A value as a key: equal and hashed as in Python.
#[derive(Clone)]
pub(crate) struct Hashed(pub(crate) Val);

impl Val {
    pub(crate) fn str(text: impl Into<Text>) -> Val {
        let text = text.into();
        budget::took(text.len());
        Val::Str(text)
    }

    pub(crate) fn markup(text: impl Into<Text>) -> Val {
        let text = text.into();
        budget::took(text.len());
        Val::Markup(text)
    }

    /// Text of the kind that `like` is.
    pub(crate) fn text_like(like: &Val, text: impl Into<Text>) -> Val {
        if matches!(like, Val::Markup(_)) { Val::markup(text) } else { Val::str(text) }
    }

    pub(crate) fn list(items: Vec<Val>) -> Val {
        budget::took(items.len() * size_of::<Val>() + 64);
        Val::List(Rc::new(List(RefCell::new(items))))
    }

    pub(crate) fn tuple(items: Vec<Val>) -> Val {
        budget::took(items.len() * size_of::<Val>() + 64);
        Val::Tuple(Rc::new(Tuple { items, named: None }))
    }

    pub(crate) fn dict(map: OrderedMap<Hashed, Val>) -> Val {
        budget::took(map.len() * 80 + 128);
        Val::Dict(Rc::new(Dict { map: RefCell::new(map), ordered: false }))
    }

    pub(crate) fn set(set: IndexSet<Hashed>) -> Val {
        budget::took(set.len() * 56 + 128);
        Val::Set(Rc::new(Set(RefCell::new(set))))
    }

    pub(crate) fn bytes(bytes: Vec<u8>) -> Val {
        budget::took(bytes.len());
        Val::Bytes(bytes.into())
    }

    pub(crate) fn object(object: Object) -> Val {
        budget::took(128);
        Val::Object(Rc::new(object))
    }

    pub(crate) fn int(i: i128) -> Val {
        match i64::try_from(i) {
            Ok(i) => Val::Int(i),
            Err(_) => Val::Big(Rc::new(i)),
        }
    }

    pub(crate) fn len(n: usize) -> Val {
        Val::Int(num::len(n))
    }

    pub(crate) fn undef(strict: bool, message: impl Into<String>) -> Val {
        Val::Undef(Rc::new(Undef { message: message.into(), strict, kind: Kind::Undefined }))
    }

    /// The text, if it is text of either kind.
    pub(crate) fn as_str(&self) -> Option<&str> {
        match self {
            Val::Str(text) | Val::Markup(text) => Some(text),
            _ => None,
        }
    }

    /// The whole number, if it is one; booleans are.
    pub(crate) fn as_int(&self) -> Option<i128> {
        match self {
            Val::Bool(b) => Some(i128::from(*b)),
            Val::Int(i) => Some(i128::from(*i)),
            Val::Big(i) => Some(**i),
            _ => None,
        }
    }

    /// The number as a float, if it is one.
    pub(crate) fn as_float(&self) -> Option<f64> {
        match self {
            Val::Float(f) => Some(*f),
            _ => self.as_int().map(num::float),
        }
    }

    pub(crate) fn is_undef(&self) -> bool {
        matches!(self, Val::Undef(_))
    }

    /// Whether Python can hash it; an undefined value that is strict raises its own error.
    pub(crate) fn hashable(&self) -> Res<()> {
        match self {
            Val::List(_) | Val::Dict(_) | Val::Set(_) => {
                Err(type_error(format!("unhashable type: '{}'", self.type_name())))
            }
            Val::Tuple(tuple) => {
                let _level = budget::deeper()?;
                tuple.items.iter().try_for_each(|item| {
                    // A tuple may hold another one twice, which holds a third one twice.
                    budget::step()?;
                    item.hashable()
                })
            }
            Val::Undef(undef) => undef.check(),
            _ => Ok(()),
        }
    }

    /// As a key.
    pub(crate) fn key(self) -> Res<Hashed> {
        self.hashable()?;
        Ok(Hashed(self))
    }

    /// `type(value).__name__`
    pub(crate) fn type_name(&self) -> &'static str {
        match self {
            Val::Undef(undef) if undef.strict => "StrictUndefined",
            Val::Undef(_) => "Undefined",
            Val::None => "NoneType",
            Val::Bool(_) => "bool",
            Val::Int(_) | Val::Big(_) => "int",
            Val::Float(_) => "float",
            Val::Str(_) => "str",
            Val::Markup(_) => "Markup",
            Val::Bytes(_) => "bytes",
            Val::List(_) => "list",
            Val::Tuple(tuple) if tuple.named.is_some() => "_GroupTuple",
            Val::Tuple(_) => "tuple",
            Val::Dict(dict) if dict.ordered => "OrderedDict",
            Val::Dict(_) => "dict",
            Val::Set(_) => "set",
            Val::Object(object) => object.type_name(),
        }
    }

    /// Whether both are one object: Python's `is`.
    pub(crate) fn same(&self, other: &Val) -> bool {
        match (self, other) {
            (Val::Undef(a), Val::Undef(b)) => Rc::ptr_eq(a, b),
            (Val::None, Val::None) => true,
            (Val::Bool(a), Val::Bool(b)) => a == b,
            // Small integers and short texts are one object in Python; larger ones mostly are not.
            (Val::Int(a), Val::Int(b)) => a == b && (-5..=256).contains(a),
            (Val::Str(a), Val::Str(b)) => Arc::ptr_eq(a, b) || (a.is_empty() && b.is_empty()),
            (Val::Markup(a), Val::Markup(b)) => Arc::ptr_eq(a, b),
            (Val::List(a), Val::List(b)) => Rc::ptr_eq(a, b),
            (Val::Tuple(a), Val::Tuple(b)) => Rc::ptr_eq(a, b) || (a.items.is_empty() && b.items.is_empty()),
            (Val::Dict(a), Val::Dict(b)) => Rc::ptr_eq(a, b),
            (Val::Set(a), Val::Set(b)) => Rc::ptr_eq(a, b),
            (Val::Object(a), Val::Object(b)) => Rc::ptr_eq(a, b) || a.same(b),
            (Val::Big(a), Val::Big(b)) => Rc::ptr_eq(a, b),
            (Val::Bytes(a), Val::Bytes(b)) => Rc::ptr_eq(a, b),
            _ => false,
        }
    }

    fn holds_values(&self) -> bool {
        matches!(self, Val::List(_) | Val::Tuple(_) | Val::Dict(_) | Val::Set(_) | Val::Object(_))
    }
}

impl From<&str> for Val {
    fn from(text: &str) -> Val {
        Val::str(text)
    }
}

impl fmt::Debug for Val {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.type_name())
    }
}

impl Hash for Hashed {
    fn hash<H: Hasher>(&self, state: &mut H) {
        hash(&self.0, state);
    }
}

fn hash<H: Hasher>(val: &Val, state: &mut H) {
    match val {
        Val::Str(text) | Val::Markup(text) => (**text).hash(state),
        Val::None | Val::Undef(_) => state.write_u8(0),
        Val::Bool(b) => state.write_i128(i128::from(*b)),
        Val::Int(i) => state.write_i128(i128::from(*i)),
        Val::Big(i) => state.write_i128(**i),
        Val::Float(f) => match num::trunc(*f).filter(|_| f.fract() == 0.0) {
            Some(i) => state.write_i128(i),
            None => state.write_u64(f.to_bits()),
        },
        Val::Bytes(bytes) => bytes.hash(state),
        Val::Tuple(tuple) => {
            state.write_usize(tuple.items.len());
            // What lies deeper is left to the comparison, so that no depth can exhaust the stack.
            for item in tuple.items.iter().filter(|item| !matches!(item, Val::Tuple(_))) {
                hash(item, state);
            }
        }
        Val::List(_) | Val::Dict(_) | Val::Set(_) | Val::Object(_) => state.write_u8(1),
    }
}

impl PartialEq for Hashed {
    fn eq(&self, other: &Self) -> bool {
        match (&self.0, &other.0) {
            (Val::Str(a) | Val::Markup(a), Val::Str(b) | Val::Markup(b)) => a == b,
            // What cannot be compared for its depth is taken to differ. If the rendering is about to fail, nothing more is compared.
            (a, b) => a.same(b) || ops::equal(a, b).unwrap_or_else(|_| budget::is_spent()),
        }
    }
}

impl Eq for Hashed {}

/// A text finds its key without being made a value first.
impl hashbrown::Equivalent<Hashed> for str {
    fn equivalent(&self, key: &Hashed) -> bool {
        key.0.as_str() == Some(self)
    }
}

impl Dict {
    pub(crate) fn get(&self, key: &Val) -> Option<Val> {
        match key.as_str() {
            Some(text) => self.map.borrow().get(text).cloned(),
            None => self.map.borrow().get(&Hashed(key.clone())).cloned(),
        }
    }

    pub(crate) fn get_str(&self, key: &str) -> Option<Val> {
        self.map.borrow().get(key).cloned()
    }

    pub(crate) fn len(&self) -> usize {
        self.map.borrow().len()
    }

    /// Its pairs at this moment.
    pub(crate) fn pairs(&self) -> Vec<(Val, Val)> {
        budget::spend(self.len() / COPIED_PER_STEP);
        self.map.borrow().iter().map(|(key, value)| (key.0.clone(), value.clone())).collect()
    }

    pub(crate) fn keys(&self) -> Vec<Val> {
        budget::spend(self.len() / COPIED_PER_STEP);
        self.map.borrow().keys().map(|key| key.0.clone()).collect()
    }
}

impl Set {
    pub(crate) fn items(&self) -> Vec<Val> {
        let items = self.0.borrow();
        budget::spend(items.len() / COPIED_PER_STEP);
        items.iter().map(|item| item.0.clone()).collect()
    }
}

impl List {
    /// Its members at this moment.
    pub(crate) fn items(&self) -> Vec<Val> {
        let items = self.0.borrow();
        budget::spend(items.len() / COPIED_PER_STEP);
        items.clone()
    }
}

/// Lets values go one after the other, and what only they held.
pub(crate) fn let_go(items: impl Iterator<Item = Val>) {
    let mut waiting: Vec<Val> = items.filter(Val::holds_values).collect();
    while let Some(val) = waiting.pop() {
        match val {
            Val::List(list) => {
                if let Some(list) = Rc::into_inner(list) {
                    waiting.extend(list.0.take().into_iter().filter(Val::holds_values));
                }
            }
            Val::Tuple(tuple) => {
                if let Some(mut tuple) = Rc::into_inner(tuple) {
                    waiting.extend(std::mem::take(&mut tuple.items).into_iter().filter(Val::holds_values));
                }
            }
            Val::Dict(dict) => {
                if let Some(dict) = Rc::into_inner(dict) {
                    for (key, value) in dict.map.take() {
                        waiting.extend([key.0, value].into_iter().filter(Val::holds_values));
                    }
                }
            }
            Val::Set(set) => {
                if let Some(set) = Rc::into_inner(set) {
                    waiting.extend(set.0.take().into_iter().map(|item| item.0).filter(Val::holds_values));
                }
            }
            Val::Object(object) => {
                if let Some(mut object) = Rc::into_inner(object) {
                    waiting.extend(object.take_values().into_iter().filter(Val::holds_values));
                }
            }
            _ => {}
        }
    }
}

impl Drop for List {
    fn drop(&mut self) {
        if self.0.get_mut().iter().any(Val::holds_values) {
            let_go(self.0.take().into_iter());
        }
    }
}

impl Drop for Tuple {
    fn drop(&mut self) {
        if self.items.iter().any(Val::holds_values) {
            let_go(std::mem::take(&mut self.items).into_iter());
        }
    }
}

impl Drop for Dict {
    fn drop(&mut self) {
        if self.map.get_mut().iter().any(|(key, value)| key.0.holds_values() || value.holds_values()) {
            let_go(self.map.take().into_iter().flat_map(|(key, value)| [key.0, value]));
        }
    }
}

impl Drop for Set {
    fn drop(&mut self) {
        if self.0.get_mut().iter().any(|item| item.0.holds_values()) {
            let_go(self.0.take().into_iter().map(|item| item.0));
        }
    }
}
