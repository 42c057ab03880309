//! Values of templates: Python's collections as objects of minijinja.
//!
//! # Invariant
//!
//! A collection never contains itself and does not change during an iteration. A template that
//! would do so is not native.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use minijinja::Value;
use minijinja::value::{Enumerator, Object, ObjectRepr, ValueKind};
use parking_lot::{Mutex, MutexGuard};

use super::budget;
use super::error::{Res, not_native};
use super::salt_functions::SaltFunctions;
use crate::limits;
use crate::value::{Key, PythonDict, Value as Plain};

/// The items of a dict.
pub(crate) type Pairs = PythonDict<Value>;

/// Permitted operations of a collection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Access {
    /// All.
    Full,
    /// Reading: it outlives the rendering.
    Read,
    /// Lookup of present keys: Salt knows more.
    Partial,
}

/// A shared, mutable collection, as in Python.
pub(crate) struct Shared<T> {
    /// Lock order: no other lock is taken under it.
    items: Mutex<T>,
    /// Number of running iterations.
    walked: AtomicUsize,
    pub(crate) access: Access,
}

impl<T> Shared<T> {
    fn new(items: T, access: Access) -> Self {
        Self {
            items: Mutex::new(items),
            walked: AtomicUsize::new(0),
            access,
        }
    }

    /// Locks the items for a change.
    pub(crate) fn change(&self) -> Res<MutexGuard<'_, T>> {
        if self.access != Access::Full {
            return not_native("a change of a shared variable");
        }
        if self.walked.load(Ordering::Relaxed) > 0 {
            return not_native("a change of a collection in an iteration");
        }
        Ok(self.items.lock())
    }
}

impl Shared<Vec<Value>> {
    /// Locks the items. Release the lock before any access to another value, which may be the same
    /// object.
    pub(crate) fn lock(&self) -> MutexGuard<'_, Vec<Value>> {
        self.items.lock()
    }
}

/// A dict is read through these two only: otherwise an operation could take the grains or options
/// that are known here for all that Salt knows.
impl Shared<Pairs> {
    /// Locks all items. As for lists, release the lock before any access to another value.
    pub(crate) fn all(&self) -> Res<MutexGuard<'_, Pairs>> {
        if self.access == Access::Partial {
            return not_native("all grains or options");
        }
        Ok(self.items.lock())
    }

    /// The value of a key; `None` if there is certainly none.
    pub(crate) fn look_up(&self, wanted: &Value) -> Res<Option<Value>> {
        let found = match kind(wanted) {
            // The common case needs no copy of the key.
            Kind::Str(name) => self.items.lock().get(name).cloned(),
            _ => self.items.lock().get(&key(wanted)?).cloned(),
        };

        // Salt knows more keys: the absence of a key here proves nothing.
        if found.is_none() && self.access == Access::Partial {
            return not_native(format!("{wanted:?} of the grains or options"));
        }
        Ok(found)
    }
}

/// The part of a dict that a view shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum View {
    Keys,
    Values,
    Items,
}

/// Python's types that minijinja lacks.
pub(crate) enum Obj {
    List(Shared<Vec<Value>>),
    Dict(Shared<Pairs>),
    Tuple(Vec<Value>),
    /// `dict.keys()`, `dict.values()`, `dict.items()`
    View(View, Arc<Obj>),
    /// A generator of Jinja. The translation permits it only where it is consumed immediately.
    Lazy(Vec<Value>),
    /// Lock order: no other lock is taken under it.
    Namespace(Mutex<Vec<(String, Value)>>),
    /// Bytes, sets, large integers, dates: templates can only pass them on.
    Other(Plain),
    /// The variable `salt`.
    Salt(Arc<dyn SaltFunctions>),
}

/// The type of a value, with its content.
pub(crate) enum Kind<'a> {
    Undefined,
    None,
    Bool(bool),
    Int(i64),
    Float(f64),
    Str(&'a str),
    /// The result of `|json`, which escapes other strings.
    Markup(&'a str),
    List(&'a Shared<Vec<Value>>),
    Dict(&'a Shared<Pairs>),
    Tuple(&'a [Value]),
    View(View, &'a Arc<Obj>),
    Lazy(&'a [Value]),
    Namespace(&'a Mutex<Vec<(String, Value)>>),
    Other,
}

/// The type of a value.
pub(crate) fn kind(value: &Value) -> Kind<'_> {
    if let Some(object) = value.as_object() {
        return match object.downcast_ref::<Obj>() {
            Some(Obj::List(list)) => Kind::List(list),
            Some(Obj::Dict(dict)) => Kind::Dict(dict),
            Some(Obj::Tuple(items)) => Kind::Tuple(items),
            Some(Obj::View(view, of)) => Kind::View(*view, of),
            Some(Obj::Lazy(items)) => Kind::Lazy(items),
            Some(Obj::Namespace(members)) => Kind::Namespace(members),
            _ => Kind::Other,
        };
    }

    match value.kind() {
        ValueKind::Undefined => Kind::Undefined,
        ValueKind::None => Kind::None,
        ValueKind::Bool => Kind::Bool(value.is_true()),
        // Integers of more than 64 bits can only be passed on.
        ValueKind::Number if value.is_integer() => value.as_i64().map_or(Kind::Other, Kind::Int),
        ValueKind::Number => f64::try_from(value.clone()).map_or(Kind::Other, Kind::Float),
        ValueKind::String => match value.as_str() {
            Some(text) if value.is_safe() => Kind::Markup(text),
            Some(text) => Kind::Str(text),
            None => Kind::Other,
        },
        _ => Kind::Other,
    }
}

impl fmt::Debug for Obj {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Obj")
    }
}

/// An iteration; the collection cannot change until it is dropped.
struct Walk {
    of: Arc<Obj>,
    items: std::vec::IntoIter<Value>,
}

impl Walk {
    fn count(of: &Obj, by: impl Fn(&AtomicUsize)) {
        match of {
            Obj::List(list) => by(&list.walked),
            Obj::Dict(dict) => by(&dict.walked),
            Obj::View(_, dict) => Self::count(dict, by),
            _ => {}
        }
    }
}

impl Iterator for Walk {
    type Item = Value;

    fn next(&mut self) -> Option<Value> {
        self.items.next()
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        self.items.size_hint()
    }
}

impl Drop for Walk {
    fn drop(&mut self) {
        Self::count(&self.of, |walked| {
            _ = walked.fetch_sub(1, Ordering::Relaxed);
        });
    }
}

impl Object for Obj {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        match &**self {
            Obj::Dict(_) => ObjectRepr::Map,
            Obj::List(_) | Obj::Tuple(_) => ObjectRepr::Seq,
            Obj::View(..) | Obj::Lazy(_) => ObjectRepr::Iterable,
            _ => ObjectRepr::Plain,
        }
    }

    fn enumerate(self: &Arc<Self>) -> Enumerator {
        match self.items() {
            Ok(items) => {
                // Until the iteration ends, see `Walk`.
                Walk::count(self, |walked| _ = walked.fetch_add(1, Ordering::Relaxed));
                Enumerator::Iter(Box::new(Walk {
                    of: Arc::clone(self),
                    items: items.into_iter(),
                }))
            }
            // The engine fails at such a value.
            Err(error) => Enumerator::Iter(Box::new(std::iter::once(Value::from(error)))),
        }
    }

    fn enumerator_len(self: &Arc<Self>) -> Option<usize> {
        self.len()
    }

    fn is_true(self: &Arc<Self>) -> bool {
        match &**self {
            Obj::Other(plain) => plain.truthy(),
            // The length of grains and options is unknown here, and in Salt they are never empty.
            _ => self.len() != Some(0),
        }
    }
}

impl Obj {
    /// `len()`; `None` for grains and options, and for types without a length.
    pub(crate) fn len(&self) -> Option<usize> {
        match self {
            Obj::List(list) => Some(list.lock().len()),
            Obj::Dict(dict) => dict.all().ok().map(|pairs| pairs.len()),
            Obj::Tuple(items) | Obj::Lazy(items) => Some(items.len()),
            Obj::View(_, dict) => dict.len(),
            _ => None,
        }
    }

    /// The items of an iteration.
    pub(crate) fn items(&self) -> Res<Vec<Value>> {
        let items = match self {
            Obj::List(list) => list.lock().clone(),
            Obj::Dict(_) => self.seen(View::Keys)?,
            Obj::Tuple(items) | Obj::Lazy(items) => items.clone(),
            Obj::View(view, dict) => dict.seen(*view)?,
            _ => return not_native("a loop over another type than list, dict or string"),
        };

        budget::spend(items.len())?;
        Ok(items)
    }

    pub(crate) fn seen(&self, view: View) -> Res<Vec<Value>> {
        let Obj::Dict(dict) = self else {
            return not_native("a view of another type than dict");
        };

        let pairs = dict.all()?;
        pairs
            .iter()
            .map(|(key, value)| {
                Ok(match view {
                    View::Keys => from_key(key),
                    View::Values => value.clone(),
                    View::Items => tuple(vec![from_key(key), value.clone()]),
                })
            })
            .collect()
    }

    /// Moves the members out.
    fn empty(&mut self, into: &mut Vec<Value>) {
        match self {
            Obj::List(list) => {
                into.append(list.items.get_mut());
            }
            Obj::Dict(dict) => {
                let dict = dict.items.get_mut();
                into.extend(std::mem::take(dict).into_values());
            }
            Obj::Tuple(items) | Obj::Lazy(items) => into.append(items),
            Obj::Namespace(members) => {
                let members = members.get_mut();
                into.extend(members.drain(..).map(|(_, value)| value));
            }
            _ => {}
        }
    }

    fn holds_objects(&mut self) -> bool {
        let is_object = |value: &Value| value.as_object().is_some();
        match self {
            Obj::List(list) => list.items.get_mut().iter().any(is_object),
            Obj::Dict(dict) => dict.items.get_mut().values().any(is_object),
            Obj::Tuple(items) | Obj::Lazy(items) => items.iter().any(is_object),
            Obj::Namespace(_) => true,
            _ => false,
        }
    }
}

/// Loops can nest values without bound, and a recursive drop would overflow the stack.
impl Drop for Obj {
    fn drop(&mut self) {
        if !self.holds_objects() {
            return;
        }

        let mut pending = Vec::new();
        self.empty(&mut pending);
        while let Some(value) = pending.pop() {
            if let Some(object) = value.downcast_object::<Obj>() {
                // First, because the object is moved out only of its last reference.
                drop(value);
                if let Some(mut object) = Arc::into_inner(object) {
                    object.empty(&mut pending);
                }
            }
        }
    }
}

/// A mutable list.
pub(crate) fn list(items: Vec<Value>) -> Value {
    Value::from_object(Obj::List(Shared::new(items, Access::Full)))
}

/// A mutable dict.
pub(crate) fn dict(pairs: Pairs) -> Value {
    Value::from_object(Obj::Dict(Shared::new(pairs, Access::Full)))
}

pub(crate) fn tuple(items: Vec<Value>) -> Value {
    Value::from_object(Obj::Tuple(items))
}

/// A generator of Jinja.
pub(crate) fn lazy(items: Vec<Value>) -> Value {
    Value::from_object(Obj::Lazy(items))
}

/// A string; counts its bytes.
pub(crate) fn text(text: String) -> Res<Value> {
    budget::charge(text.len())?;
    Ok(Value::from(text))
}

/// The key of a dict; rare types are not native.
pub(crate) fn key(value: &Value) -> Res<Key> {
    Ok(Key(match kind(value) {
        Kind::Str(text) => Plain::Str(text.to_owned()),
        Kind::Int(i) => Plain::Int(i),
        Kind::Bool(b) => Plain::Bool(b),
        Kind::None => Plain::Null,
        _ => return not_native("a key of a rare type"),
    }))
}

fn from_key(key: &Key) -> Value {
    match &key.0 {
        Plain::Str(text) => Value::from(text.as_str()),
        plain => from_plain(plain, Access::Read, 1),
    }
}

/// Checks a new member of a collection: plain data that does not contain the collection.
pub(crate) fn member(value: &Value, into: Option<&Obj>) -> Res<()> {
    match kind(value) {
        Kind::Undefined => return not_native("an undefined value in a collection"),
        // A view shows later changes, and a generator can be read once.
        Kind::View(..) | Kind::Lazy(_) | Kind::Namespace(_) => {
            return not_native("a view, range or namespace in a collection");
        }
        // In a collection, for example the event's data, it could be passed on as the whole.
        Kind::Dict(dict) => drop(dict.all()?),
        Kind::Other
            if value
                .downcast_object_ref::<Obj>()
                .is_none_or(|obj| !matches!(obj, Obj::Other(_))) =>
        {
            return not_native("an object in a collection");
        }
        _ => {}
    }

    match into {
        Some(into) if holds(value, into, 0)? => not_native("a collection that contains itself"),
        _ => Ok(()),
    }
}

fn holds(value: &Value, wanted: &Obj, depth: usize) -> Res<bool> {
    budget::depth(depth)?;
    let Some(object) = value.downcast_object_ref::<Obj>() else {
        return Ok(false);
    };

    // By identity, because equal collections may be different objects.
    if std::ptr::eq(object, wanted) {
        return Ok(true);
    }

    let items = match object {
        // Copied, because the search may come to the same object again.
        Obj::List(list) => list.lock().clone(),
        Obj::Dict(dict) => dict.items.lock().values().cloned().collect(),
        Obj::Tuple(items) => items.clone(),
        _ => return Ok(false),
    };

    budget::spend(items.len())?;
    for item in &items {
        if item.as_object().is_some() && holds(item, wanted, depth + 1)? {
            return Ok(true);
        }
    }

    Ok(false)
}

/// Converts a value for templates. Templates can only pass on parts deeper than the limit.
pub(crate) fn from_plain(plain: &Plain, access: Access, depth: usize) -> Value {
    // Only the collection itself is incomplete, not what is in it.
    let inside = if access == Access::Partial {
        Access::Read
    } else {
        access
    };
    let all = |items: &[Plain]| {
        items
            .iter()
            .map(|item| from_plain(item, inside, depth + 1))
            .collect()
    };

    match plain {
        Plain::Null => Value::from(()),
        Plain::Bool(b) => Value::from(*b),
        Plain::Int(i) => Value::from(*i),
        Plain::Float(f) => Value::from(*f),
        Plain::Str(text) => Value::from(text.as_str()),
        // Nothing below is converted, which ends the recursion.
        _ if depth > limits::JINJA_DATA_DEPTH_MAX => Value::from_object(Obj::Other(plain.clone())),
        Plain::List(items) => Value::from_object(Obj::List(Shared::new(all(items), access))),
        Plain::Tuple(items) => tuple(all(items)),
        Plain::Map(map) => {
            let pairs = map
                .iter()
                .map(|(key, value)| (key.clone(), from_plain(value, inside, depth + 1)));
            Value::from_object(Obj::Dict(Shared::new(pairs.collect(), access)))
        }
        Plain::BigInt(_) | Plain::Bytes(_) | Plain::Set(_) | Plain::Object(_) => {
            Value::from_object(Obj::Other(plain.clone()))
        }
    }
}

/// Converts a value of a template.
pub(crate) fn to_plain(value: &Value, depth: usize) -> Res<Plain> {
    budget::depth(depth)?;
    let all = |items: &[Value]| {
        budget::spend(items.len())?;
        items
            .iter()
            .map(|item| to_plain(item, depth + 1))
            .collect::<Res<Vec<_>>>()
    };

    Ok(match kind(value) {
        Kind::None => Plain::Null,
        Kind::Bool(b) => Plain::Bool(b),
        Kind::Int(i) => Plain::Int(i),
        Kind::Float(f) => Plain::Float(f),
        Kind::Str(text) => Plain::Str(text.to_owned()),
        Kind::List(list) => {
            // Copied, because no lock may be held while the members are converted.
            let items = list.lock().clone();
            Plain::List(all(&items)?)
        }
        Kind::Tuple(items) => Plain::Tuple(all(items)?),
        Kind::Dict(dict) => {
            // Copied for the same reason.
            let pairs = dict.all()?.clone();
            budget::spend(pairs.len())?;
            let pair =
                |(key, value): (&Key, &Value)| Ok((key.clone(), to_plain(value, depth + 1)?));
            Plain::Map(pairs.iter().map(pair).collect::<Res<_>>()?)
        }
        _ => match value.downcast_object_ref::<Obj>() {
            Some(Obj::Other(plain)) => plain.clone(),
            _ => return not_native("a value that is not plain data"),
        },
    })
}
