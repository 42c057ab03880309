//! The methods of lists, tuples, mappings and sets.

use std::rc::Rc;

use indexmap::IndexSet;

use super::text::want_int;
use crate::sls::jinja::budget;
use crate::sls::jinja::eval::args::Args;
use crate::sls::jinja::eval::interp::Interp;
use crate::sls::jinja::exc::{Res, lookup_error, not_native, type_error, value_error};
use crate::sls::jinja::values::num;
use crate::sls::jinja::values::object::{Object, View};
use crate::sls::jinja::values::ops;
use crate::sls::jinja::values::pyset;
use crate::sls::jinja::values::repr;
use crate::sls::jinja::values::val::{Dict, Hashed, List, Set, Val};
use crate::sls::map::OrderedMap;

impl Interp<'_> {
    pub(super) fn list_method(
        &mut self,
        val: &Val,
        list: &Rc<List>,
        name: &'static str,
        args: Args,
    ) -> Res<Val> {
        match name {
            "append" => {
                let [item] = args.positional(name, 1)?;
                let item = item.unwrap_or(Val::None);
                ops::may_hold(val, &item)?;
                budget::took(size_of::<Val>());
                list.0.borrow_mut().push(item);
                Ok(Val::None)
            }
            "extend" => {
                let [items] = args.positional(name, 1)?;
                let items = self.collect(&items.unwrap_or(Val::None))?;
                for item in &items {
                    ops::may_hold(val, item)?;
                }
                budget::room(items.len() * size_of::<Val>())?;
                budget::took(items.len() * size_of::<Val>());
                list.0.borrow_mut().extend(items);
                Ok(Val::None)
            }
            "insert" => {
                let [place, item] = args.positional(name, 2)?;
                let place = want_int(&place.unwrap_or(Val::None))?;
                let item = item.unwrap_or(Val::None);
                ops::may_hold(val, &item)?;
                budget::took(size_of::<Val>());
                let mut items = list.0.borrow_mut();
                let len = num::len(items.len());
                let place = if place < 0 { (place.saturating_add(len)).max(0) } else { place.min(len) };
                budget::steps((items.len() / 64) as u64)?;
                items.insert(num::size(place), item);
                Ok(Val::None)
            }
            "pop" => {
                let [place] = args.positional(name, 0)?;
                let place = place.as_ref().map(want_int).transpose()?.unwrap_or(-1);
                let mut items = list.0.borrow_mut();
                if items.is_empty() {
                    return Err(lookup_error("pop from empty list"));
                }
                budget::steps((items.len() / 64) as u64)?;
                match num::index(place, items.len()) {
                    Some(place) => Ok(items.remove(place)),
                    None => Err(lookup_error("pop index out of range")),
                }
            }
            "remove" => {
                let [item] = args.positional(name, 1)?;
                let place = position(&list.items(), &item.unwrap_or(Val::None))?;
                match place {
                    Some(place) => {
                        let gone = list.0.borrow_mut().remove(place);
                        drop(gone);
                        Ok(Val::None)
                    }
                    None => Err(value_error("list.remove(x): x not in list")),
                }
            }
            "clear" => {
                args.none(name)?;
                let gone = list.0.take();
                drop(gone);
                Ok(Val::None)
            }
            "reverse" => {
                args.none(name)?;
                let mut items = list.0.borrow_mut();
                budget::steps((items.len() / 64) as u64)?;
                items.reverse();
                Ok(Val::None)
            }
            "copy" => {
                args.none(name)?;
                Ok(Val::list(list.items()))
            }
            "sort" => {
                if !args.pos.is_empty() {
                    return Err(type_error("sort() takes no positional arguments"));
                }
                let [key, reverse] = args.bind(name, ["key", "reverse"], 0)?;
                if key.is_some_and(|key| !matches!(key, Val::None)) {
                    return Err(not_native("list.sort(key=..)"));
                }
                let reverse = reverse.as_ref().map(ops::truth).transpose()?.unwrap_or(false);
                let sorted =
                    ops::sort(list.items().into_iter().map(|item| (item.clone(), item)).collect(), reverse)?;
                *list.0.borrow_mut() = sorted;
                Ok(Val::None)
            }
            _ => self.tuple_method(&list.items(), name, args),
        }
    }

    /// What lists and tuples share: `count` and `index`.
    pub(super) fn tuple_method(&mut self, items: &[Val], name: &'static str, args: Args) -> Res<Val> {
        budget::steps((items.len() / 64) as u64)?;
        if name == "count" {
            let [item] = args.positional(name, 1)?;
            let item = item.unwrap_or(Val::None);
            let mut count = 0;
            for other in items {
                budget::step()?;
                if other.same(&item) || ops::equal(other, &item)? {
                    count += 1;
                }
            }
            return Ok(Val::Int(count));
        }
        let [item, start, stop] = args.positional(name, 1)?;
        let item = item.unwrap_or(Val::None);
        let len = num::len(items.len());
        let bound = |val: Option<&Val>, default: i64| -> Res<usize> {
            let i = val.map(want_int).transpose()?.unwrap_or(default);
            Ok(num::size(if i < 0 { (i.saturating_add(len)).max(0) } else { i.min(len) }))
        };
        let (start, stop) = (bound(start.as_ref(), 0)?, bound(stop.as_ref(), len)?);
        let window = items.get(start..stop.max(start)).unwrap_or_default();
        match position(window, &item)? {
            Some(place) => Ok(Val::len(start + place)),
            None => Err(value_error(format!("{} is not in list", repr::repr(&item)?))),
        }
    }

    pub(crate) fn fromkeys(&mut self, args: Args) -> Res<Val> {
        let [keys, val] = args.positional("fromkeys", 1)?;
        let val = val.unwrap_or(Val::None);
        let mut map = OrderedMap::new();
        for key in self.collect(&keys.unwrap_or(Val::None))? {
            map.insert(key.key()?, val.clone());
        }
        Ok(Val::dict(map))
    }

    pub(super) fn dict_method(
        &mut self,
        of: &Val,
        dict: &Rc<Dict>,
        name: &'static str,
        args: Args,
    ) -> Res<Val> {
        match name {
            "get" => {
                let [key, default] = args.positional(name, 1)?;
                let key = key.unwrap_or(Val::None);
                key.hashable()?;
                Ok(dict.get(&key).or(default).unwrap_or(Val::None))
            }
            "items" | "keys" | "values" => {
                args.none(name)?;
                let view = match name {
                    "items" => View::Items,
                    "keys" => View::Keys,
                    _ => View::Values,
                };
                Ok(Val::object(Object::View(view, Rc::clone(dict))))
            }
            "update" => {
                if args.pos.len() > 1 {
                    return Err(type_error(format!(
                        "update expected at most 1 argument, got {}",
                        args.pos.len()
                    )));
                }
                let mut new = OrderedMap::new();
                if let Some(from) = args.pos.first() {
                    self.update_map(&mut new, from)?;
                }
                for (name, val) in args.kw {
                    new.insert(Hashed(Val::Str(name)), val);
                }
                for val in new.values() {
                    ops::may_hold(of, val)?;
                }
                budget::took(new.len() * 80);
                for (key, val) in new {
                    let old = dict.map.borrow_mut().insert(key, val);
                    drop(old);
                }
                Ok(Val::None)
            }
            "setdefault" => {
                let [key, default] = args.positional(name, 1)?;
                let key = key.unwrap_or(Val::None).key()?;
                let default = default.unwrap_or(Val::None);
                ops::may_hold(of, &default)?;
                budget::took(80);
                Ok(dict.map.borrow_mut().entry(key).or_insert(default).clone())
            }
            "pop" => {
                let [key, default] = args.positional(name, 1)?;
                let key = key.unwrap_or(Val::None);
                let hashed = ops::key(&key)?;
                budget::steps((dict.len() / 64) as u64)?;
                let found = dict.map.borrow_mut().shift_remove(&hashed);
                match found.or(default) {
                    Some(val) => Ok(val),
                    None => Err(lookup_error(repr::repr(&key)?)),
                }
            }
            "popitem" => {
                args.none(name)?;
                let found = dict.map.borrow_mut().pop();
                match found {
                    Some((key, val)) => Ok(Val::tuple(vec![key.0, val])),
                    None => Err(lookup_error("'popitem(): dictionary is empty'")),
                }
            }
            "clear" => {
                args.none(name)?;
                let gone = dict.map.take();
                drop(gone);
                Ok(Val::None)
            }
            "copy" => {
                args.none(name)?;
                let map = dict.map.borrow().clone();
                budget::took(map.len() * 80 + 128);
                Ok(Val::Dict(Rc::new(Dict { map: std::cell::RefCell::new(map), ordered: dict.ordered })))
            }
            "fromkeys" => self.fromkeys(args),
            "move_to_end" => {
                let [key, last] = args.bind(name, ["key", "last"], 1)?;
                let key = key.unwrap_or(Val::None).key()?;
                let last = last.as_ref().map(ops::truth).transpose()?.unwrap_or(true);
                let mut map = dict.map.borrow_mut();
                let Some(place) = map.get_index_of(&key) else {
                    return Err(lookup_error(repr::repr(&key.0)?));
                };
                let to = if last { map.len() - 1 } else { 0 };
                map.move_index(place, to);
                Ok(Val::None)
            }
            other => Err(not_native(format!("dict.{other}()"))),
        }
    }

    pub(super) fn set_method(&mut self, of: &Val, set: &Rc<Set>, name: &'static str, args: Args) -> Res<Val> {
        let mut others = Vec::new();
        if let Some((name, _)) = args.kw.first() {
            return Err(type_error(format!("got an unexpected keyword argument '{name}'")));
        }
        match name {
            "copy" => return Ok(Val::set(set.0.borrow().clone())),
            "clear" => {
                let gone = set.0.take();
                drop(gone);
                return Ok(Val::None);
            }
            "pop" => {
                let Some(first) = pyset::order(set.items()).into_iter().next() else {
                    return Err(lookup_error("'pop from an empty set'"));
                };
                set.0.borrow_mut().shift_remove(&ops::key(&first)?);
                return Ok(first);
            }
            "add" | "discard" | "remove" => {
                let [item] = args.positional(name, 1)?;
                let item = item.unwrap_or(Val::None);
                let key = ops::key(&item)?;
                if name == "add" {
                    ops::may_hold(of, &item)?;
                    budget::took(56);
                    set.0.borrow_mut().insert(key);
                } else if !set.0.borrow_mut().shift_remove(&key) && name == "remove" {
                    return Err(lookup_error(repr::repr(&item)?));
                }
                return Ok(Val::None);
            }
            _ => {}
        }
        for other in &args.pos {
            let mut members = IndexSet::new();
            for item in self.collect(other)? {
                members.insert(item.key()?);
            }
            others.push(members);
        }
        let mine = set.0.borrow().clone();
        let first = || {
            others.first().ok_or_else(|| type_error(format!("{name}() takes exactly one argument (0 given)")))
        };
        match name {
            "isdisjoint" => return Ok(Val::Bool(mine.is_disjoint(first()?))),
            "issubset" => return Ok(Val::Bool(mine.is_subset(first()?))),
            "issuperset" => return Ok(Val::Bool(mine.is_superset(first()?))),
            _ => {}
        }
        let mut made = mine;
        for other in &others {
            match name.trim_end_matches("_update") {
                "difference" => made.retain(|item| !other.contains(item)),
                "intersection" => made.retain(|item| other.contains(item)),
                "symmetric_difference" => {
                    let both: IndexSet<Hashed> = made.symmetric_difference(other).cloned().collect();
                    made = both;
                }
                _ => made.extend(other.iter().cloned()),
            }
        }
        if name.ends_with("update") {
            *set.0.borrow_mut() = made;
            return Ok(Val::None);
        }
        Ok(Val::set(made))
    }
}

fn position(items: &[Val], item: &Val) -> Res<Option<usize>> {
    for (i, other) in items.iter().enumerate() {
        budget::step()?;
        if other.same(item) || ops::equal(other, item)? {
            return Ok(Some(i));
        }
    }
    Ok(None)
}
