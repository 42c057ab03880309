//! Attributes, items and slices, as a sandboxed environment gives them.

use super::num;
use super::object::{self, Func, Object, View};
use super::ops;
use super::repr;
use super::val::{Hashed, Text, Undef, Val};
use crate::sls::jinja::eval::interp::Interp;
use crate::sls::jinja::exc::{Kind, Res, type_error, value_error};
use crate::sls::python::text;

/// Of text and of bytes.
const TEXT: &[&str] = &[
    "capitalize",
    "center",
    "count",
    "endswith",
    "expandtabs",
    "find",
    "index",
    "isalnum",
    "isalpha",
    "isascii",
    "isdigit",
    "islower",
    "isspace",
    "istitle",
    "isupper",
    "join",
    "ljust",
    "lower",
    "lstrip",
    "maketrans",
    "partition",
    "removeprefix",
    "removesuffix",
    "replace",
    "rfind",
    "rindex",
    "rjust",
    "rpartition",
    "rsplit",
    "rstrip",
    "split",
    "splitlines",
    "startswith",
    "strip",
    "swapcase",
    "title",
    "translate",
    "upper",
    "zfill",
];
const STR: &[&str] =
    &["casefold", "encode", "format", "format_map", "isdecimal", "isidentifier", "isnumeric", "isprintable"];
const MARKUP: &[&str] = &["escape", "striptags", "unescape"];
const LIST: &[&str] =
    &["append", "clear", "copy", "count", "extend", "index", "insert", "pop", "remove", "reverse", "sort"];
const TUPLE: &[&str] = &["count", "index"];
const DICT: &[&str] = &[
    "clear",
    "copy",
    "fromkeys",
    "get",
    "items",
    "keys",
    "pop",
    "popitem",
    "setdefault",
    "update",
    "values",
];
const ORDERED: &[&str] = &["move_to_end"];
const SET: &[&str] = &[
    "add",
    "clear",
    "copy",
    "difference",
    "difference_update",
    "discard",
    "intersection",
    "intersection_update",
    "isdisjoint",
    "issubset",
    "issuperset",
    "pop",
    "remove",
    "symmetric_difference",
    "symmetric_difference_update",
    "union",
    "update",
];
const INT: &[&str] = &["as_integer_ratio", "bit_count", "bit_length", "conjugate", "from_bytes", "to_bytes"];
const FLOAT: &[&str] = &["as_integer_ratio", "conjugate", "fromhex", "hex", "is_integer"];
const BYTES: &[&str] = &["decode", "fromhex", "hex"];
/// What every object of Python has; names that begin with an underscore are unsafe.
const DUNDER: &[&str] = &[
    "__class__",
    "__delattr__",
    "__dir__",
    "__doc__",
    "__eq__",
    "__format__",
    "__ge__",
    "__getattribute__",
    "__getstate__",
    "__gt__",
    "__hash__",
    "__init__",
    "__init_subclass__",
    "__le__",
    "__lt__",
    "__ne__",
    "__new__",
    "__reduce__",
    "__reduce_ex__",
    "__repr__",
    "__setattr__",
    "__sizeof__",
    "__str__",
    "__subclasshook__",
];
const SEQUENCE_DUNDER: &[&str] = &[
    "__add__",
    "__contains__",
    "__getitem__",
    "__iter__",
    "__len__",
    "__mul__",
    "__rmul__",
    "__getnewargs__",
];
const DICT_DUNDER: &[&str] = &[
    "__class_getitem__",
    "__contains__",
    "__delitem__",
    "__getitem__",
    "__ior__",
    "__iter__",
    "__len__",
    "__or__",
    "__reversed__",
    "__ror__",
    "__setitem__",
];

fn find(names: &'static [&'static str], name: &str) -> Option<&'static str> {
    names.iter().find(|known| **known == name).copied()
}

/// The method of this name that a value has.
pub(crate) fn method_name(val: &Val, name: &str) -> Option<&'static str> {
    match val {
        Val::Dict(dict) => find(DICT, name).or_else(|| if dict.ordered { find(ORDERED, name) } else { None }),
        Val::Str(_) => find(TEXT, name).or_else(|| find(STR, name)),
        Val::Markup(_) => [TEXT, STR, MARKUP].into_iter().find_map(|names| find(names, name)),
        Val::List(_) => find(LIST, name),
        Val::Tuple(_) => find(TUPLE, name),
        Val::Set(_) => find(SET, name),
        Val::Int(_) | Val::Bool(_) | Val::Big(_) => find(INT, name),
        Val::Float(_) => find(FLOAT, name),
        Val::Bytes(_) => find(TEXT, name).or_else(|| find(BYTES, name)),
        Val::Object(object) => match &**object {
            Object::Loop(_) => find(&["cycle", "changed"], name),
            Object::Cycler { .. } => find(&["next", "reset"], name),
            Object::Range(_) => find(&["count", "index"], name),
            Object::View(View::Values, _) => None,
            Object::View(..) => find(&["isdisjoint"], name),
            Object::Func(Func::Dict | Func::OrderedDict) => find(&["fromkeys"], name),
            Object::Salt => find(&["get", "keys", "values", "items"], name),
            _ => None,
        },
        _ => None,
    }
}

/// What Python calls the type of a value in front of an undefined attribute.
pub(super) fn object_type(val: &Val) -> String {
    let module = match val {
        Val::None => return "None".to_owned(),
        Val::Markup(_) => "markupsafe.",
        Val::Undef(_) | Val::Tuple(_) if val.type_name() != "tuple" => "jinja2.",
        Val::Dict(dict) if dict.ordered => "collections.",
        Val::Object(object) => match &**object {
            Object::Salt => "salt.utils.templates.",
            Object::SaltModule(_) | Object::SaltFunction(_) => "salt.loader.lazy.",
            Object::Namespace(_) | Object::Cycler { .. } | Object::Joiner { .. } => "jinja2.utils.",
            Object::Loop(_) | Object::Macro(_) | Object::Block { .. } | Object::Template => "jinja2.runtime.",
            Object::Module(_) => "jinja2.environment.",
            _ => "",
        },
        _ => "",
    };
    format!("{module}{} object", val.type_name())
}

/// Sets an attribute of a namespace.
pub(crate) fn set_namespace(namespace: &Val, name: &Text, val: Val) -> Res<()> {
    ops::may_hold(namespace, &val)?;
    if let Val::Object(object) = namespace
        && let Object::Namespace(map) = &**object
    {
        let old = map.borrow_mut().insert(Hashed(Val::Str(Text::clone(name))), val);
        drop(old);
    }
    Ok(())
}

impl Interp<'_> {
    fn no_attribute(&self, val: &Val, name: &str) -> Val {
        self.undefined(format!("'{}' has no attribute '{name}'", object_type(val)))
    }

    pub(crate) fn no_element(&self, val: &Val, key: &str) -> Val {
        self.undefined(format!("{} has no element {key}", object_type(val)))
    }

    fn unsafe_attribute(&self, val: &Val, name: &str) -> Val {
        let message = format!("access to attribute '{name}' of '{}' object is unsafe.", val.type_name());
        Val::Undef(std::rc::Rc::new(Undef { message, strict: self.strict, kind: Kind::Security }))
    }

    /// What Python finds as an attribute.
    fn python_attr(&mut self, val: &Val, name: &str) -> Res<Option<Val>> {
        if let Some(method) = method_name(val, name) {
            return Ok(Some(Val::object(Object::Method(val.clone(), method))));
        }
        if name.starts_with('_') {
            let has = find(DUNDER, name).is_some()
                || match val {
                    Val::Dict(_) => find(DICT_DUNDER, name).is_some(),
                    Val::Str(_) | Val::Markup(_) | Val::List(_) | Val::Tuple(_) | Val::Bytes(_) => {
                        find(SEQUENCE_DUNDER, name).is_some()
                    }
                    Val::Object(object) => match &**object {
                        Object::Macro(_) | Object::Func(_) => {
                            find(&["__call__", "__dict__", "__module__", "__name__"], name).is_some()
                        }
                        Object::Module(_) => {
                            find(&["__dict__", "__name__", "__html__", "_body_stream"], name).is_some()
                        }
                        _ => false,
                    },
                    _ => false,
                };
            return Ok(has.then(|| self.unsafe_attribute(val, name)));
        }
        match val {
            Val::Undef(undef) => Err(undef.fail()),
            Val::Int(_) | Val::Bool(_) | Val::Big(_) => Ok(match name {
                "real" | "numerator" => ops::sign(val, false).ok(),
                "imag" => Some(Val::Int(0)),
                "denominator" => Some(Val::Int(1)),
                _ => None,
            }),
            Val::Float(_) => Ok(match name {
                "real" => Some(val.clone()),
                "imag" => Some(Val::Float(0.0)),
                _ => None,
            }),
            Val::Tuple(tuple) => Ok(tuple
                .named
                .and_then(|names| names.iter().position(|known| *known == name))
                .and_then(|place| tuple.items.get(place).cloned())),
            Val::Object(object) => self.object_attr(object, name),
            _ => Ok(None),
        }
    }

    fn object_attr(&mut self, object: &std::rc::Rc<Object>, name: &str) -> Res<Option<Val>> {
        Ok(match &**object {
            Object::Namespace(map) => map.borrow().get(name).cloned(),
            Object::Module(module) => module
                .exported
                .borrow()
                .iter()
                .find(|(other, _)| **other == *name)
                .map(|(_, val)| val.clone()),
            Object::Loop(_) => self.loop_attr(object, name)?,
            Object::Range(range) => match name {
                "start" => Some(Val::Int(range.start)),
                "stop" => Some(Val::Int(range.stop)),
                "step" => Some(Val::Int(range.step)),
                _ => None,
            },
            Object::Cycler { items, place } => match name {
                "current" => items.get(place.get()).cloned(),
                "items" => Some(Val::tuple(items.clone())),
                "pos" => Some(Val::len(place.get())),
                _ => None,
            },
            Object::Joiner { between, used } => match name {
                "sep" => Some(between.clone()),
                "used" => Some(Val::Bool(used.get())),
                _ => None,
            },
            Object::Macro(def) => match name {
                "name" => Some(def.def.name.as_ref().map_or(Val::None, |name| Val::Str(Text::clone(name)))),
                "arguments" => {
                    Some(Val::tuple(def.def.args.iter().map(|arg| Val::Str(Text::clone(arg))).collect()))
                }
                "catch_kwargs" => Some(Val::Bool(def.def.takes_kwargs)),
                "catch_varargs" => Some(Val::Bool(def.def.takes_varargs)),
                "caller" => Some(Val::Bool(def.def.takes_caller)),
                _ => None,
            },
            Object::Block { name: block, level } => match name {
                "name" => Some(Val::Str(Text::clone(block))),
                "super" => {
                    let over = self.block_stack(block).map_or(0, Vec::len) > level + 1;
                    Some(if over {
                        Val::object(Object::Block { name: Text::clone(block), level: level + 1 })
                    } else {
                        self.undefined(format!("there is no parent block called '{block}'."))
                    })
                }
                _ => None,
            },
            // A name with a dot is no module.
            Object::Salt if !name.contains('.') => self.salt_attr(name)?,
            Object::SaltModule(module) => {
                let fun = format!("{module}.{name}");
                self.salt_function(&fun)?
            }
            _ => None,
        })
    }

    /// `value.name`: an attribute, or else an item.
    pub(crate) fn attr(&mut self, val: &Val, name: &Text) -> Res<Val> {
        if let Some(found) = self.python_attr(val, name)? {
            return Ok(found);
        }
        let found = match val {
            Val::Dict(dict) => dict.get_str(name),
            Val::Object(object) => match &**object {
                Object::Salt => self.salt_function(name)?,
                Object::Template => self.block_reference(name),
                _ => None,
            },
            _ => None,
        };
        Ok(found.unwrap_or_else(|| self.no_attribute(val, name)))
    }

    fn block_reference(&self, name: &str) -> Option<Val> {
        self.block_stack(name).map(|_| Val::object(Object::Block { name: Text::from(name), level: 0 }))
    }

    /// `value|attr(name)`: an attribute alone.
    pub(crate) fn only_attr(&mut self, val: &Val, name: &str) -> Res<Val> {
        Ok(self.python_attr(val, name)?.unwrap_or_else(|| self.no_attribute(val, name)))
    }

    /// `value[key]`: an item, or else an attribute.
    pub(crate) fn item(&mut self, val: &Val, key: &Val) -> Res<Val> {
        if let Some(found) = self.python_item(val, key)? {
            return Ok(found);
        }
        if let Some(name) = key.as_str() {
            if let Some(found) = self.python_attr(val, name)? {
                return Ok(found);
            }
            return Ok(self.no_attribute(val, name));
        }
        let key = repr::repr(key)?;
        Ok(self.no_element(val, &key))
    }

    /// What Python finds as an item; `None` for a `TypeError` or a `LookupError`.
    pub(crate) fn python_item(&mut self, val: &Val, key: &Val) -> Res<Option<Val>> {
        let place =
            |len: usize| key.as_int().and_then(|i| i64::try_from(i).ok()).and_then(|i| num::index(i, len));
        Ok(match val {
            Val::Undef(undef) => return Err(undef.fail()),
            Val::Dict(dict) => {
                if let Val::Undef(undef) = key {
                    undef.check()?;
                }
                if key.hashable().is_err() { None } else { dict.get(key) }
            }
            Val::List(list) => {
                let items = list.0.borrow();
                place(items.len()).and_then(|i| items.get(i).cloned())
            }
            Val::Tuple(tuple) => place(tuple.items.len()).and_then(|i| tuple.items.get(i).cloned()),
            Val::Str(text) | Val::Markup(text) => place(text::len(text)).and_then(|i| {
                let start = text::byte_of(text, i);
                let c = text.get(start..)?.chars().next()?;
                Some(Val::text_like(val, c.encode_utf8(&mut [0; 4]) as &str))
            }),
            Val::Bytes(bytes) => {
                place(bytes.len()).and_then(|i| bytes.get(i)).map(|b| Val::Int(i64::from(*b)))
            }
            Val::Object(object) => match &**object {
                Object::Range(range) => place(range.len()).and_then(|i| range.get(i)).map(Val::Int),
                Object::Salt => match key.as_str() {
                    Some(fun) => self.salt_function(fun)?,
                    None => None,
                },
                Object::Template => key.as_str().and_then(|name| self.block_reference(name)),
                _ => None,
            },
            _ => None,
        })
    }
}

/// `value[start:stop:step]`
pub(crate) fn slice(val: &Val, bounds: &[Option<Val>; 3]) -> Res<Val> {
    if let Val::Undef(undef) = val {
        return Err(undef.fail());
    }
    let mut whole = [None; 3];
    for (whole, bound) in whole.iter_mut().zip(bounds) {
        if let Some(bound) = bound {
            let Some(i) = bound.as_int() else {
                return Err(type_error("slice indices must be integers or None or have an __index__ method"));
            };
            *whole = Some(i64::try_from(i).unwrap_or(if i < 0 { i64::MIN } else { i64::MAX }));
        }
    }
    let [start, stop, step] = whole;
    let step = step.unwrap_or(1);
    if step == 0 {
        return Err(value_error("slice step cannot be zero"));
    }
    let take = |items: &[Val]| -> Vec<Val> {
        num::slice(start, stop, step, items.len()).into_iter().filter_map(|i| items.get(i).cloned()).collect()
    };
    Ok(match val {
        Val::List(list) => Val::list(take(&list.0.borrow())),
        Val::Tuple(tuple) => Val::tuple(take(&tuple.items)),
        Val::Str(text) | Val::Markup(text) => {
            let sliced: String = if text.is_ascii() {
                let bytes = text.as_bytes();
                num::slice(start, stop, step, bytes.len())
                    .into_iter()
                    .filter_map(|i| bytes.get(i).map(|b| char::from(*b)))
                    .collect()
            } else {
                let chars: Vec<char> = text.chars().collect();
                num::slice(start, stop, step, chars.len()).into_iter().filter_map(|i| chars.get(i)).collect()
            };
            Val::text_like(val, sliced)
        }
        Val::Bytes(bytes) => Val::bytes(
            num::slice(start, stop, step, bytes.len())
                .into_iter()
                .filter_map(|i| bytes.get(i).copied())
                .collect(),
        ),
        Val::Object(object) => match &**object {
            Object::Range(range) => {
                let places = num::slice(start, stop, step, range.len());
                let first = places.first().and_then(|i| range.get(*i)).unwrap_or(range.start);
                let step = range.step.saturating_mul(step);
                Val::object(Object::Range(object::Range {
                    start: first,
                    stop: first.saturating_add(step.saturating_mul(num::len(places.len()))),
                    step,
                }))
            }
            _ => return Err(type_error(format!("'{}' object is not subscriptable", val.type_name()))),
        },
        Val::Dict(_) => return Err(type_error("unhashable type: 'slice'")),
        _ => return Err(type_error(format!("'{}' object is not subscriptable", val.type_name()))),
    })
}
