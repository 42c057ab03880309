//! How values print: Python's `str` and `repr`, and what Salt makes of mappings before it prints them.

use std::fmt::Write as _;

use super::access;
use super::object::{Func, Object, View};
use super::ops;
use super::pyset;
use super::val;
use super::val::Val;
use crate::sls::jinja::budget;
use crate::sls::jinja::exc::{Res, type_error};
use crate::sls::jinja::yaml;
use crate::sls::python;
use crate::sls::python::text;

/// What a value prints as in a template: mappings as Salt writes them.
pub(crate) fn print(val: &Val, out: &mut String) -> Res<()> {
    match val {
        Val::Str(text) | Val::Markup(text) => {
            budget::took(text.len());
            out.push_str(text);
            Ok(())
        }
        _ => Printer { salt: true }.str(val, out),
    }
}

/// `str(value)`
pub(crate) fn str(val: &Val) -> Res<String> {
    let mut out = String::new();
    Printer { salt: false }.str(val, &mut out)?;
    Ok(out)
}

/// `repr(value)`
pub(crate) fn repr(val: &Val) -> Res<String> {
    let mut out = String::new();
    Printer { salt: false }.repr(val, &mut out)?;
    Ok(out)
}

/// `markupsafe.soft_str(value)`: text stays what it is.
pub(crate) fn soft_str(val: &Val) -> Res<Val> {
    if val.as_str().is_some() { Ok(val.clone()) } else { str(val).map(Val::str) }
}

/// A mapping in braces.
fn braced(pairs: &[(Val, Val)], out: &mut String, print: impl Fn(&Val, &mut String) -> Res<()>) -> Res<()> {
    let _level = budget::deeper()?;
    out.push('{');
    for (i, (key, value)) in pairs.iter().enumerate() {
        budget::step()?;
        if i > 0 {
            out.push_str(", ");
        }
        // Keys are what they were: Salt prepares the values alone.
        Printer { salt: false }.repr(key, out)?;
        out.push_str(": ");
        print(value, out)?;
    }
    out.push('}');
    Ok(())
}

struct Printer {
    /// Whether mappings print as Salt's `PrintableDict`.
    salt: bool,
}

impl Printer {
    fn str(&self, val: &Val, out: &mut String) -> Res<()> {
        match val {
            Val::Undef(undef) => undef.check(),
            Val::Str(text) | Val::Markup(text) => {
                out.push_str(text);
                Ok(())
            }
            Val::Dict(dict) if self.salt => self.mapping(&dict.pairs(), true, out),
            Val::Object(object) => {
                if let Object::Module(module) = &**object {
                    out.push_str(&module.text);
                    return Ok(());
                }
                self.repr(val, out)
            }
            _ => self.repr(val, out),
        }
    }

    /// A mapping, whose values print with `str` or with `repr`.
    fn mapping(&self, pairs: &[(Val, Val)], values_as_str: bool, out: &mut String) -> Res<()> {
        braced(pairs, out, |value, out| match value {
            Val::Str(text) | Val::Markup(text) if text.contains(['\n', '\r', '\t']) => {
                yaml::scalar::double_quoted(text, out);
                Ok(())
            }
            Val::Str(_) | Val::Markup(_) => self.repr(value, out),
            _ if values_as_str => self.str(value, out),
            _ => self.repr(value, out),
        })
    }

    fn items(&self, items: &[Val], out: &mut String) -> Res<()> {
        let _level = budget::deeper()?;
        for (i, item) in items.iter().enumerate() {
            budget::step()?;
            if i > 0 {
                out.push_str(", ");
            }
            self.repr(item, out)?;
        }
        Ok(())
    }

    fn repr(&self, val: &Val, out: &mut String) -> Res<()> {
        budget::took(16);
        match val {
            Val::Undef(_) => out.push_str("Undefined"),
            Val::None => out.push_str("None"),
            Val::Bool(b) => out.push_str(if *b { "True" } else { "False" }),
            Val::Int(i) => {
                let _ = write!(out, "{i}");
            }
            Val::Big(i) => {
                let _ = write!(out, "{i}");
            }
            Val::Float(f) => python::write_float(*f, out),
            Val::Str(text) => {
                budget::took(text.len());
                text::repr(text, out);
            }
            Val::Markup(text) => {
                budget::took(text.len());
                out.push_str("Markup(");
                text::repr(text, out);
                out.push(')');
            }
            Val::Bytes(bytes) => {
                budget::took(bytes.len());
                text::repr_bytes(bytes, out);
            }
            Val::List(list) => {
                out.push('[');
                self.items(&list.items(), out)?;
                out.push(']');
            }
            Val::Tuple(tuple) => {
                if self.salt && tuple.named.is_some() {
                    // Salt makes it anew out of one list, which it does not take.
                    return Err(type_error(
                        "_GroupTuple.__new__() missing 1 required positional argument: 'list'",
                    ));
                }
                out.push('(');
                self.items(&tuple.items, out)?;
                out.push_str(if tuple.items.len() == 1 { ",)" } else { ")" });
            }
            Val::Set(set) => {
                let items = set.items();
                if items.is_empty() {
                    out.push_str("set()");
                } else {
                    out.push('{');
                    let mut items = pyset::order(items);
                    if self.salt {
                        // Salt makes it anew out of its members, in the order it finds them.
                        items = pyset::order(items);
                    }
                    self.items(&items, out)?;
                    out.push('}');
                }
            }
            Val::Dict(dict) => {
                let pairs = dict.pairs();
                if self.salt {
                    return self.mapping(&pairs, false, out);
                }
                if dict.ordered {
                    let pairs: Vec<Val> =
                        pairs.into_iter().map(|(key, value)| Val::tuple(vec![key, value])).collect();
                    out.push_str("OrderedDict(");
                    if !pairs.is_empty() {
                        out.push('[');
                        self.items(&pairs, out)?;
                        out.push(']');
                    }
                    out.push(')');
                    return Ok(());
                }
                braced(&pairs, out, |value, out| self.repr(value, out))?;
            }
            Val::Object(object) => self.object(object, out)?,
        }
        Ok(())
    }

    fn object(&self, object: &std::rc::Rc<Object>, out: &mut String) -> Res<()> {
        let plain = Printer { salt: false };
        let address = std::rc::Rc::as_ptr(object).cast::<()>();
        match &**object {
            Object::Range(range) => {
                let _ = write!(out, "range({}, {}", range.start, range.stop);
                if range.step != 1 {
                    let _ = write!(out, ", {}", range.step);
                }
                out.push(')');
            }
            Object::View(view, dict) => {
                out.push_str(match view {
                    View::Keys => "dict_keys([",
                    View::Values => "dict_values([",
                    View::Items => "dict_items([",
                });
                plain.items(&ops::view_items(*view, dict), out)?;
                out.push_str("])");
            }
            Object::Namespace(map) => {
                let pairs: Vec<_> =
                    map.borrow().iter().map(|(key, val)| (key.0.clone(), val.clone())).collect();
                out.push_str("<Namespace ");
                let dict = Val::dict(pairs.into_iter().map(|(key, val)| (val::Hashed(key), val)).collect());
                plain.repr(&dict, out)?;
                out.push('>');
            }
            Object::Macro(def) => match &def.def.name {
                Some(name) => {
                    out.push_str("<Macro ");
                    text::repr(name, out);
                    out.push('>');
                }
                None => out.push_str("<Macro anonymous>"),
            },
            Object::Module(module) => {
                out.push_str("<TemplateModule ");
                text::repr(&module.name, out);
                out.push('>');
            }
            Object::Loop(state) => match state.state.try_borrow() {
                Ok(state) => {
                    let _ = write!(
                        out,
                        "<LoopContext {}/{}>",
                        state.index0 + 1,
                        state.length.unwrap_or(state.index0 + 1)
                    );
                }
                Err(_) => out.push_str("<LoopContext>"),
            },
            Object::Method(of, name) => {
                let _ = write!(out, "<built-in method {name} of {} object at {address:p}>", of.type_name());
            }
            Object::Func(func) => match func {
                Func::Dict => out.push_str("<class 'dict'>"),
                Func::OrderedDict => out.push_str("<class 'collections.OrderedDict'>"),
                Func::Namespace => out.push_str("<class 'jinja2.utils.Namespace'>"),
                Func::Cycler => out.push_str("<class 'jinja2.utils.Cycler'>"),
                Func::Joiner => out.push_str("<class 'jinja2.utils.Joiner'>"),
                func => {
                    let _ = write!(out, "<function {} at {address:p}>", func.name());
                }
            },
            Object::Template => out.push_str("<TemplateReference None>"),
            _ => {
                let of = access::object_type(&Val::Object(std::rc::Rc::clone(object)));
                let _ = write!(out, "<{of} at {address:p}>");
            }
        }
        Ok(())
    }
}
