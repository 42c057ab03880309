//! Walking over values: Python's iterators.

use std::rc::Rc;
use std::sync::Arc;

use super::num;
use super::object::{Each, Iter, Object, Range, View};
use super::ops;
use super::pyset;
use super::val::{Dict, List, Text, Tuple, Val};
use crate::sls::jinja::budget;
use crate::sls::jinja::eval::frame::Frame;
use crate::sls::jinja::eval::interp::Interp;
use crate::sls::jinja::exc::{Exc, Kind, Res, type_error, value_error};
use crate::sls::jinja::syntax::ast::ForLoop;

/// A place in something that is walked over.
pub(crate) enum Walk {
    Done,
    Items(std::vec::IntoIter<Val>),
    List {
        list: Rc<List>,
        place: usize,
    },
    /// Backwards; the place is one past the next.
    ListBack {
        list: Rc<List>,
        place: usize,
    },
    Tuple {
        tuple: Rc<Tuple>,
        place: usize,
    },
    Dict {
        dict: Rc<Dict>,
        view: View,
        place: usize,
        len: usize,
    },
    Chars {
        text: Text,
        byte: usize,
    },
    Bytes {
        bytes: Rc<[u8]>,
        place: usize,
    },
    Range {
        range: Range,
        place: usize,
    },
    /// An iterator that others may walk, too.
    Shared(Rc<Object>),
    /// Each member through a filter or a test.
    Lazy {
        from: Box<Walk>,
        each: Rc<Each>,
    },
    /// What the filter of a `for` keeps.
    Tested {
        from: Box<Walk>,
        for_loop: Arc<ForLoop>,
        frame: Rc<Frame>,
    },
}

/// `iter(value)`
pub(crate) fn walk(val: &Val) -> Res<Walk> {
    Ok(match val {
        Val::Undef(undef) => {
            undef.check()?;
            Walk::Done
        }
        Val::Str(text) | Val::Markup(text) => Walk::Chars { text: Text::clone(text), byte: 0 },
        Val::Bytes(bytes) => Walk::Bytes { bytes: Rc::clone(bytes), place: 0 },
        Val::List(list) => Walk::List { list: Rc::clone(list), place: 0 },
        Val::Tuple(tuple) => Walk::Tuple { tuple: Rc::clone(tuple), place: 0 },
        Val::Dict(dict) => Walk::Dict { dict: Rc::clone(dict), view: View::Keys, place: 0, len: dict.len() },
        Val::Set(set) => {
            let items = set.items();
            budget::steps((items.len() / 16) as u64)?;
            Walk::Items(pyset::order(items).into_iter())
        }
        Val::Object(object) => match &**object {
            Object::Range(range) => Walk::Range { range: *range, place: 0 },
            Object::View(view, dict) => {
                Walk::Dict { dict: Rc::clone(dict), view: *view, place: 0, len: dict.len() }
            }
            Object::Iter(_) => Walk::Shared(Rc::clone(object)),
            _ => return Err(not_iterable(val)),
        },
        _ => return Err(not_iterable(val)),
    })
}

fn not_iterable(val: &Val) -> Exc {
    type_error(format!("'{}' object is not iterable", val.type_name()))
}

/// An iterator as a value.
pub(crate) fn iterator(type_name: &'static str, walk: Walk) -> Val {
    Val::object(Object::Iter(Iter { type_name, walk: std::cell::RefCell::new(walk) }))
}

impl Walk {
    pub(crate) fn next(&mut self, interp: &mut Interp<'_>) -> Res<Option<Val>> {
        budget::step()?;
        Ok(match self {
            Walk::Done => None,
            Walk::Items(items) => items.next(),
            Walk::List { list, place } => {
                let item = list.0.borrow().get(*place).cloned();
                *place += 1;
                item
            }
            Walk::ListBack { list, place } => {
                let next = place.checked_sub(1);
                *place = next.unwrap_or(0);
                next.and_then(|place| list.0.borrow().get(place).cloned())
            }
            Walk::Tuple { tuple, place } => {
                let item = tuple.items.get(*place).cloned();
                *place += 1;
                item
            }
            Walk::Dict { dict, view, place, len } => {
                let map = dict.map.borrow();
                if map.len() != *len {
                    return Err(Exc::new(Kind::Other, "dictionary changed size during iteration"));
                }
                let item = map.get_index(*place).map(|(key, value)| match view {
                    View::Keys => key.0.clone(),
                    View::Values => value.clone(),
                    View::Items => Val::tuple(vec![key.0.clone(), value.clone()]),
                });
                *place += 1;
                item
            }
            Walk::Chars { text, byte } => {
                let c = text.get(*byte..).and_then(|rest| rest.chars().next());
                c.map(|c| {
                    *byte += c.len_utf8();
                    Val::from(c.encode_utf8(&mut [0; 4]) as &str)
                })
            }
            Walk::Bytes { bytes, place } => {
                let item = bytes.get(*place).map(|b| Val::Int(i64::from(*b)));
                *place += 1;
                item
            }
            Walk::Range { range, place } => {
                let item = range.get(*place).map(Val::Int);
                *place += 1;
                item
            }
            Walk::Shared(object) => {
                let _level = budget::deeper()?;
                let Object::Iter(iter) = &**object else { return Ok(None) };
                let Ok(mut walk) = iter.walk.try_borrow_mut() else {
                    return Err(value_error("generator already executing"));
                };
                walk.next(interp)?
            }
            Walk::Lazy { from, each } => {
                let _level = budget::deeper()?;
                let each = Rc::clone(each);
                loop {
                    let Some(item) = from.next(interp)? else { break None };
                    if let Some(made) = interp.each(&each, item)? {
                        break Some(made);
                    }
                }
            }
            Walk::Tested { from, for_loop, frame } => {
                let (for_loop, frame) = (Arc::clone(for_loop), Rc::clone(frame));
                loop {
                    let Some(item) = from.next(interp)? else { break None };
                    if interp.keeps(&for_loop, &frame, &item)? {
                        break Some(item);
                    }
                }
            }
        })
    }

    /// The values it stands on.
    pub(crate) fn held(&self) -> Vec<Val> {
        match self {
            Walk::Items(items) => items.as_slice().to_vec(),
            Walk::List { list, .. } | Walk::ListBack { list, .. } => vec![Val::List(Rc::clone(list))],
            Walk::Tuple { tuple, .. } => vec![Val::Tuple(Rc::clone(tuple))],
            Walk::Dict { dict, .. } => vec![Val::Dict(Rc::clone(dict))],
            Walk::Shared(object) => vec![Val::Object(Rc::clone(object))],
            Walk::Lazy { from, each } => {
                let mut vals = from.held();
                match &**each {
                    Each::Filter { args, .. } | Each::Test { test: Some((_, args)), .. } => {
                        vals.extend(args.pos.iter().cloned());
                        vals.extend(args.kw.iter().map(|(_, val)| val.clone()));
                    }
                    Each::Attribute { default, .. } => vals.push(default.clone()),
                    Each::Test { .. } => {}
                }
                vals
            }
            Walk::Tested { from, .. } => from.held(),
            _ => Vec::new(),
        }
    }

    /// The values it stands on, which it leaves.
    pub(super) fn take_values(&mut self) -> Vec<Val> {
        match std::mem::replace(self, Walk::Done) {
            Walk::Items(items) => items.collect(),
            Walk::Lazy { mut from, each } => {
                let mut vals = from.take_values();
                if let Some(each) = Rc::into_inner(each) {
                    match each {
                        Each::Filter { args, .. } | Each::Test { test: Some((_, args)), .. } => {
                            vals.extend(args.pos);
                            vals.extend(args.kw.into_iter().map(|(_, val)| val));
                        }
                        Each::Attribute { default, .. } => vals.push(default),
                        Each::Test { .. } => {}
                    }
                }
                vals
            }
            Walk::Tested { mut from, .. } => from.take_values(),
            Walk::List { list, .. } | Walk::ListBack { list, .. } => vec![Val::List(list)],
            Walk::Tuple { tuple, .. } => vec![Val::Tuple(tuple)],
            Walk::Dict { dict, .. } => vec![Val::Dict(dict)],
            Walk::Shared(object) => vec![Val::Object(object)],
            _ => Vec::new(),
        }
    }
}

impl Interp<'_> {
    /// `list(value)`
    pub(crate) fn collect(&mut self, val: &Val) -> Res<Vec<Val>> {
        match val {
            Val::List(list) => {
                let items = list.items();
                budget::steps((items.len() / 64) as u64)?;
                Ok(items)
            }
            Val::Tuple(tuple) => {
                budget::steps((tuple.items.len() / 64) as u64)?;
                Ok(tuple.items.clone())
            }
            _ => {
                let walk = walk(val)?;
                self.collect_walk(walk)
            }
        }
    }

    /// All that is left of a walk.
    pub(crate) fn collect_walk(&mut self, mut walk: Walk) -> Res<Vec<Val>> {
        let mut items = Vec::new();
        while let Some(item) = walk.next(self)? {
            budget::took(size_of::<Val>());
            items.push(item);
        }
        Ok(items)
    }

    /// `value in container`
    pub(crate) fn contains(&mut self, container: &Val, val: &Val) -> Res<bool> {
        match container {
            Val::Str(text) | Val::Markup(text) => match val {
                Val::Str(part) | Val::Markup(part) => Ok(text.contains(&**part)),
                _ => Err(type_error(format!(
                    "'in <string>' requires string as left operand, not {}",
                    val.type_name()
                ))),
            },
            Val::Bytes(bytes) => match val {
                Val::Bytes(part) => {
                    Ok(part.is_empty() || bytes.windows(part.len()).any(|window| window == &**part))
                }
                _ => match val.as_int() {
                    Some(i) => Ok(u8::try_from(i).is_ok_and(|b| bytes.contains(&b))),
                    None => {
                        Err(type_error(format!("a bytes-like object is required, not '{}'", val.type_name())))
                    }
                },
            },
            Val::Dict(dict) => {
                val.hashable()?;
                Ok(dict.get(val).is_some())
            }
            Val::Set(set) => {
                let key = ops::key(val)?;
                Ok(set.0.borrow().contains(&key))
            }
            Val::Object(object) => match &**object {
                Object::Range(range) => Ok(match val.as_int() {
                    Some(i) => {
                        let (start, step) = (i128::from(range.start), i128::from(range.step));
                        let place = (i - start) / step;
                        (i - start) % step == 0 && place >= 0 && place < i128::from(num::len(range.len()))
                    }
                    None => false,
                }),
                Object::View(View::Keys, dict) => {
                    val.hashable()?;
                    Ok(dict.get(val).is_some())
                }
                Object::Salt => match val.as_str() {
                    Some(fun) => Ok(self.salt_has(fun)? || self.salt_elsewhere(fun)?),
                    None => Ok(false),
                },
                _ => self.walk_contains(container, val),
            },
            Val::Undef(undef) => {
                undef.check()?;
                Ok(false)
            }
            Val::List(_) | Val::Tuple(_) => self.walk_contains(container, val),
            _ => Err(type_error(format!("argument of type '{}' is not iterable", container.type_name()))),
        }
    }

    fn walk_contains(&mut self, container: &Val, val: &Val) -> Res<bool> {
        let mut walk = match walk(container) {
            Err(error) if error.kind() == Kind::Type => {
                return Err(type_error(format!(
                    "argument of type '{}' is not iterable",
                    container.type_name()
                )));
            }
            other => other?,
        };
        while let Some(item) = walk.next(self)? {
            if item.same(val) || ops::equal(&item, val)? {
                return Ok(true);
            }
        }
        Ok(false)
    }
}
