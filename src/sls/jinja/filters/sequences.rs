//! Jinja's filters about sequences.

use std::rc::Rc;

use super::{Filter, flag, int_arg, text_arg};
use crate::sls::jinja::budget;
use crate::sls::jinja::eval::args::Args;
use crate::sls::jinja::eval::interp::Interp;
use crate::sls::jinja::exc::{self, Res, not_native, runtime_error, type_error};
use crate::sls::jinja::library::hash;
use crate::sls::jinja::syntax::ast;
use crate::sls::jinja::values::num;
use crate::sls::jinja::values::object::{self, Each, Object};
use crate::sls::jinja::values::ops;
use crate::sls::jinja::values::repr;
use crate::sls::jinja::values::val::{Text, Tuple, Val};
use crate::sls::jinja::values::walk::{Walk, iterator, walk};
use crate::sls::map::OrderedMap;
use crate::sls::python::text;

pub(super) const FILTERS: &[(&str, Filter)] = &[
    ("attr", attr),
    ("batch", batch),
    ("count", length),
    ("length", length),
    ("d", default),
    ("default", default),
    ("dictsort", dictsort),
    ("first", first),
    ("last", last),
    ("groupby", groupby),
    ("items", items),
    ("join", join),
    ("list", list),
    ("map", map),
    ("max", max),
    ("min", min),
    ("random", random),
    ("select", select),
    ("selectattr", selectattr),
    ("reject", reject),
    ("rejectattr", rejectattr),
    ("reverse", reverse),
    ("slice", slice),
    ("sort", sort),
    ("sum", sum),
];

/// The parts of an attribute: `a.b.0`.
fn parts(attribute: &Val) -> Vec<Val> {
    match attribute {
        Val::None => Vec::new(),
        Val::Str(text) | Val::Markup(text) => text
            .split('.')
            .map(|part| match part.parse::<i64>() {
                Ok(i) if text::all(part, text::is_digit) => Val::Int(i),
                _ => Val::from(part),
            })
            .collect(),
        other => vec![other.clone()],
    }
}

/// The attribute of a value, part by part.
pub(crate) fn attribute(interp: &mut Interp<'_>, val: Val, path: &[Val], default: Option<&Val>) -> Res<Val> {
    let mut val = val;
    for part in path {
        val = interp.item(&val, part)?;
        if let (Some(default), true) = (default, val.is_undef())
            && !matches!(default, Val::None)
        {
            val = default.clone();
        }
    }
    Ok(val)
}

fn ignore_case(val: Val) -> Val {
    match val.as_str() {
        Some(text) => Val::text_like(&val, text.to_lowercase()),
        None => val,
    }
}

fn attr(interp: &mut Interp<'_>, val: Val, args: Args) -> Res<Val> {
    let [name] = args.bind("do_attr", ["name"], 1)?;
    let name = name.unwrap_or(Val::None);
    let Some(name) = name.as_str() else {
        return Err(type_error(format!("attribute name must be string, not '{}'", name.type_name())));
    };
    interp.only_attr(&val, name)
}

fn batch(interp: &mut Interp<'_>, val: Val, args: Args) -> Res<Val> {
    let [count, fill] = args.bind("do_batch", ["linecount", "fill_with"], 1)?;
    let count = count.unwrap_or(Val::None);
    let size = int_arg(Some(&count), 0)?;
    let mut rows = Vec::new();
    let mut row: Vec<Val> = Vec::new();
    for item in interp.collect(&val)? {
        if num::len(row.len()) == size {
            rows.push(Val::list(std::mem::take(&mut row)));
        }
        row.push(item);
    }
    if !row.is_empty() {
        if let Some(fill) = fill.filter(|fill| !matches!(fill, Val::None)) {
            let missing = num::size(size).saturating_sub(row.len());
            budget::room(missing.saturating_mul(size_of::<Val>()))?;
            row.extend(std::iter::repeat_n(fill, missing));
        }
        rows.push(Val::list(row));
    }
    Ok(iterator("generator", Walk::Items(rows.into_iter())))
}

fn slice(interp: &mut Interp<'_>, val: Val, args: Args) -> Res<Val> {
    let [slices, fill] = args.bind("sync_do_slice", ["slices", "fill_with"], 1)?;
    let slices = int_arg(slices.as_ref(), 0)?;
    let items = interp.collect(&val)?;
    if slices == 0 {
        return Err(exc::Exc::new(exc::Kind::Other, "integer division or modulo by zero"));
    }
    let slices = num::size(slices);
    if slices > items.len() {
        budget::room(slices.saturating_mul(128))?;
    }
    let (each, extra) = (items.len() / slices.max(1), items.len() % slices.max(1));
    let mut rows = Vec::new();
    let mut start = 0;
    for i in 0..slices {
        budget::step()?;
        let end = start + each + usize::from(i < extra);
        let mut row = items.get(start..end).unwrap_or_default().to_vec();
        if let Some(fill) = fill.as_ref().filter(|fill| !matches!(fill, Val::None))
            && i >= extra
        {
            row.push(fill.clone());
        }
        rows.push(Val::list(row));
        start = end;
    }
    Ok(iterator("generator", Walk::Items(rows.into_iter())))
}

fn length(_: &mut Interp<'_>, val: Val, args: Args) -> Res<Val> {
    args.none("len")?;
    ops::len(&val).map(Val::len)
}

fn default(_: &mut Interp<'_>, val: Val, args: Args) -> Res<Val> {
    let [default, boolean] = args.bind("do_default", ["default_value", "boolean"], 0)?;
    let default = || default.unwrap_or_else(|| Val::from(""));
    if val.is_undef() || (flag(boolean.as_ref(), false)? && !ops::truth(&val)?) {
        return Ok(default());
    }
    Ok(val)
}

fn dictsort(_: &mut Interp<'_>, val: Val, args: Args) -> Res<Val> {
    let [case_sensitive, by, reverse] = args.bind("do_dictsort", ["case_sensitive", "by", "reverse"], 0)?;
    let case_sensitive = flag(case_sensitive.as_ref(), false)?;
    let by = text_arg(by, "key")?;
    if !["key", "value"].contains(&&*by) {
        return Err(runtime_error("You can only sort by either \"key\" or \"value\""));
    }
    let Val::Dict(dict) = &val else {
        if let Val::Undef(undef) = &val {
            return Err(undef.fail());
        }
        return Err(type_error(format!("'{}' object has no attribute 'items'", val.type_name())));
    };
    let keyed = dict.pairs().into_iter().map(|(key, value)| {
        let by = if &*by == "key" { key.clone() } else { value.clone() };
        (if case_sensitive { by } else { ignore_case(by) }, Val::tuple(vec![key, value]))
    });
    ops::sort(keyed.collect(), flag(reverse.as_ref(), false)?).map(Val::list)
}

fn first(interp: &mut Interp<'_>, val: Val, args: Args) -> Res<Val> {
    args.none("sync_do_first")?;
    match walk(&val)?.next(interp)? {
        Some(item) => Ok(item),
        None => Ok(interp.undefined("No first item, sequence was empty.")),
    }
}

/// `reversed(value)`, or why not.
fn reversed(interp: &mut Interp<'_>, val: &Val) -> Res<Vec<Val>> {
    let mut items = match val {
        Val::Undef(undef) => {
            undef.check()?;
            Vec::new()
        }
        Val::Object(object) if matches!(&**object, Object::Iter(_)) => {
            return Err(type_error(format!("'{}' object is not reversible", val.type_name())));
        }
        Val::Set(_) => return Err(type_error("'set' object is not reversible")),
        other => match interp.collect(other) {
            Err(error) if error.kind() == exc::Kind::Type => {
                return Err(type_error(format!("'{}' object is not reversible", val.type_name())));
            }
            items => items?,
        },
    };
    items.reverse();
    Ok(items)
}

fn last(interp: &mut Interp<'_>, val: Val, args: Args) -> Res<Val> {
    args.none("do_last")?;
    match reversed(interp, &val)?.into_iter().next() {
        Some(item) => Ok(item),
        None => Ok(interp.undefined("No last item, sequence was empty.")),
    }
}

fn reverse(interp: &mut Interp<'_>, val: Val, args: Args) -> Res<Val> {
    args.none("do_reverse")?;
    match &val {
        Val::Str(text) | Val::Markup(text) => {
            Ok(Val::text_like(&val, text.chars().rev().collect::<String>()))
        }
        Val::List(list) => {
            let place = list.0.borrow().len();
            Ok(iterator("list_reverseiterator", Walk::ListBack { list: Rc::clone(list), place }))
        }
        Val::Object(object) if matches!(&**object, Object::Iter(_)) => {
            let mut items = interp.collect(&val)?;
            items.reverse();
            Ok(Val::list(items))
        }
        Val::Set(_) => {
            let mut items = interp.collect(&val)?;
            items.reverse();
            Ok(Val::list(items))
        }
        other => match reversed(interp, other) {
            Ok(items) => {
                let name = match other {
                    Val::Dict(_) => "dict_reversekeyiterator",
                    Val::Object(_) => "range_iterator",
                    _ => "reversed",
                };
                Ok(iterator(name, Walk::Items(items.into_iter())))
            }
            Err(error) if error.kind() == exc::Kind::Type => Err(runtime_error("argument must be iterable")),
            Err(error) => Err(error),
        },
    }
}

fn groupby(interp: &mut Interp<'_>, val: Val, args: Args) -> Res<Val> {
    let [by, default, case_sensitive] =
        args.bind("sync_do_groupby", ["attribute", "default", "case_sensitive"], 1)?;
    let path = parts(&by.unwrap_or(Val::None));
    let default = default.unwrap_or(Val::None);
    let case_sensitive = flag(case_sensitive.as_ref(), false)?;
    let mut keyed = Vec::new();
    for item in interp.collect(&val)? {
        let key = attribute(interp, item.clone(), &path, Some(&default))?;
        keyed.push((if case_sensitive { key } else { ignore_case(key) }, item));
    }
    let pairs = keyed.into_iter().map(|(key, item)| (key.clone(), Val::tuple(vec![key, item]))).collect();
    let mut groups: Vec<(Val, Vec<Val>)> = Vec::new();
    for pair in ops::sort(pairs, false)? {
        let Val::Tuple(pair) = pair else { continue };
        let (Some(key), Some(item)) = (pair.items.first(), pair.items.get(1)) else { continue };
        match groups.last_mut() {
            Some((last, members)) if last.same(key) || ops::equal(last, key)? => members.push(item.clone()),
            _ => groups.push((key.clone(), vec![item.clone()])),
        }
    }
    let mut out = Vec::new();
    for (key, members) in groups {
        let key = match members.first() {
            Some(first) if !case_sensitive => attribute(interp, first.clone(), &path, Some(&default))?,
            _ => key,
        };
        let items = vec![key, Val::list(members)];
        out.push(Val::Tuple(Rc::new(Tuple { items, named: Some(&["grouper", "list"]) })));
    }
    Ok(Val::list(out))
}

fn items(interp: &mut Interp<'_>, val: Val, args: Args) -> Res<Val> {
    args.none("do_items")?;
    let pairs = match &val {
        Val::Undef(_) => Vec::new(),
        Val::Dict(dict) => {
            let (dict, len) = (Rc::clone(dict), dict.len());
            let walk = Walk::Dict { dict, view: object::View::Items, place: 0, len };
            return Ok(iterator("generator", walk));
        }
        _ => return Err(type_error("Can only get item pairs from a mapping.")),
    };
    let _ = interp;
    Ok(iterator("generator", Walk::Items(pairs.into_iter())))
}

fn join(interp: &mut Interp<'_>, val: Val, args: Args) -> Res<Val> {
    let [between, by] = args.bind("sync_do_join", ["d", "attribute"], 0)?;
    let path = by.as_ref().map(parts).unwrap_or_default();
    let between = between.map_or_else(|| Ok(String::new()), |between| repr::str(&between))?;
    let mut out = String::new();
    let mut walk = walk(&val)?;
    let mut first = true;
    while let Some(item) = walk.next(interp)? {
        let item = if path.is_empty() { item } else { attribute(interp, item, &path, None)? };
        if !first {
            out.push_str(&between);
        }
        first = false;
        match item.as_str() {
            Some(text) => out.push_str(text),
            None => out.push_str(&repr::str(&item)?),
        }
        budget::room(out.len())?;
    }
    Ok(Val::str(out))
}

fn list(interp: &mut Interp<'_>, val: Val, args: Args) -> Res<Val> {
    args.none("sync_do_list")?;
    interp.collect(&val).map(Val::list)
}

/// What a lazy filter gives: nothing for what is false, which is asked when it is walked.
fn lazy(val: &Val, each: Each) -> Res<Val> {
    if let Val::Undef(undef) = val {
        // The generator fails when it is walked, which it nearly always is.
        undef.check()?;
        return Ok(iterator("generator", Walk::Done));
    }
    let from = if ops::truth(val)? { walk(val)? } else { Walk::Done };
    Ok(iterator("generator", Walk::Lazy { from: Box::new(from), each: Rc::new(each) }))
}

fn map(_: &mut Interp<'_>, val: Val, mut args: Args) -> Res<Val> {
    if args.pos.is_empty() && args.kw.iter().any(|(name, _)| &**name == "attribute") {
        let by = args.take("attribute").unwrap_or(Val::None);
        let default = args.take("default").unwrap_or(Val::None);
        if let Some((name, _)) = args.kw.first() {
            return Err(runtime_error(format!("Unexpected keyword argument '{name}'")));
        }
        return lazy(&val, Each::Attribute { path: parts(&by), default });
    }
    if args.pos.is_empty() {
        return Err(runtime_error("map requires a filter argument"));
    }
    let name = args.pos.remove(0);
    let Some(name) = name.as_str() else { return Err(runtime_error("No filter of that name.")) };
    lazy(&val, Each::Filter { name: Text::from(name), args })
}

fn tested(val: &Val, mut args: Args, with_attribute: bool, keep: bool) -> Res<Val> {
    let mut path = Vec::new();
    if with_attribute {
        if args.pos.is_empty() {
            return Err(runtime_error("Missing parameter for attribute name"));
        }
        path = parts(&args.pos.remove(0));
    }
    let test = if args.pos.is_empty() {
        None
    } else {
        let name = args.pos.remove(0);
        let Some(name) = name.as_str() else { return Err(runtime_error("No test of that name.")) };
        Some((Text::from(name), args))
    };
    lazy(val, Each::Test { path, test, keep })
}

fn select(_: &mut Interp<'_>, val: Val, args: Args) -> Res<Val> {
    tested(&val, args, false, true)
}

fn reject(_: &mut Interp<'_>, val: Val, args: Args) -> Res<Val> {
    tested(&val, args, false, false)
}

fn selectattr(_: &mut Interp<'_>, val: Val, args: Args) -> Res<Val> {
    tested(&val, args, true, true)
}

fn rejectattr(_: &mut Interp<'_>, val: Val, args: Args) -> Res<Val> {
    tested(&val, args, true, false)
}

/// Salt's own take the place of Jinja's: one argument, no attribute.
fn extreme(interp: &mut Interp<'_>, val: &Val, args: Args, largest: bool) -> Res<Val> {
    let name = if largest { "max" } else { "min" };
    args.none(name)?;
    let mut best: Option<Val> = None;
    for item in interp.collect(val)? {
        budget::step()?;
        let better = match &best {
            None => true,
            Some(best) if largest => ops::less(best, &item)?,
            Some(best) => ops::less(&item, best)?,
        };
        if better {
            best = Some(item);
        }
    }
    best.ok_or_else(|| exc::value_error(format!("{name}() arg is an empty sequence")))
}

fn max(interp: &mut Interp<'_>, val: Val, args: Args) -> Res<Val> {
    extreme(interp, &val, args, true)
}

fn min(interp: &mut Interp<'_>, val: Val, args: Args) -> Res<Val> {
    extreme(interp, &val, args, false)
}

fn random(interp: &mut Interp<'_>, val: Val, args: Args) -> Res<Val> {
    args.none("do_random")?;
    let len = ops::len(&val)?;
    if len == 0 {
        return Ok(interp.undefined("No random item, sequence was empty."));
    }
    let place = hash::random(len)?;
    match interp.python_item(&val, &Val::len(place))? {
        Some(item) => Ok(item),
        None => Err(type_error(format!("'{}' object is not subscriptable", val.type_name()))),
    }
}

fn sort(interp: &mut Interp<'_>, val: Val, args: Args) -> Res<Val> {
    let [reverse, case_sensitive, by] =
        args.bind("do_sort", ["reverse", "case_sensitive", "attribute"], 0)?;
    let case_sensitive = flag(case_sensitive.as_ref(), false)?;
    let paths: Vec<Vec<Val>> = match &by {
        Some(Val::Str(text) | Val::Markup(text)) => {
            text.split(',').map(|part| parts(&Val::from(part))).collect()
        }
        Some(other) => vec![parts(other)],
        None => vec![Vec::new()],
    };
    let mut keyed = Vec::new();
    for item in interp.collect(&val)? {
        let mut keys = Vec::with_capacity(paths.len());
        for path in &paths {
            let key = attribute(interp, item.clone(), path, None)?;
            keys.push(if case_sensitive { key } else { ignore_case(key) });
        }
        keyed.push((Val::list(keys), item));
    }
    ops::sort(keyed, flag(reverse.as_ref(), false)?).map(Val::list)
}

fn sum(interp: &mut Interp<'_>, val: Val, args: Args) -> Res<Val> {
    let [by, start] = args.bind("sync_do_sum", ["attribute", "start"], 0)?;
    let path = by.as_ref().map(parts).unwrap_or_default();
    let mut total = start.unwrap_or(Val::Int(0));
    if total.as_str().is_some() {
        return Err(type_error("sum() can't sum strings [use ''.join(seq) instead]"));
    }
    if matches!(total, Val::Bytes(_)) {
        return Err(not_native("sum of bytes"));
    }
    let mut walk = walk(&val)?;
    while let Some(item) = walk.next(interp)? {
        let item = if path.is_empty() { item } else { attribute(interp, item, &path, None)? };
        total = ops::binary(ast::BinOp::Add, &total, &item)?;
    }
    Ok(total)
}

/// A mapping out of what a filter made.
pub(super) fn dict_of(pairs: Vec<(Val, Val)>) -> Res<Val> {
    let mut map = OrderedMap::with_capacity(pairs.len());
    for (key, val) in pairs {
        map.insert(key.key()?, val);
    }
    Ok(Val::dict(map))
}
