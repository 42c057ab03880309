//! Salt's filters about lists and what is in them.

use indexmap::IndexSet;

use super::numbers;
use super::{Filter, flag, int_arg, text_arg};
use crate::model::Glob;
use crate::sls::jinja::budget;
use crate::sls::jinja::eval::args::Args;
use crate::sls::jinja::eval::interp::Interp;
use crate::sls::jinja::exc::{self, Res, not_native, type_error, value_error};
use crate::sls::jinja::library::hash;
use crate::sls::jinja::library::re::{self, At};
use crate::sls::jinja::methods::text;
use crate::sls::jinja::syntax::ast::BinOp;
use crate::sls::jinja::values::num;
use crate::sls::jinja::values::object::{Object, View};
use crate::sls::jinja::values::ops;
use crate::sls::jinja::values::pyset;
use crate::sls::jinja::values::val::{Hashed, Val};
use crate::sls::jinja::values::walk::walk;
use crate::sls::jinja::yaml::load;
use crate::sls::map::OrderedMap;

pub(super) const FILTERS: &[(&str, Filter)] = &[
    ("unique", unique),
    ("union", union),
    ("intersect", intersect),
    ("difference", difference),
    ("symmetric_difference", symmetric_difference),
    ("flatten", flatten),
    ("avg", avg),
    ("sorted_ignorecase", sorted_ignorecase),
    ("sequence", sequence),
    ("is_list", is_list),
    ("is_iter", is_iter),
    ("compare_lists", compare_lists),
    ("compare_dicts", compare_dicts),
    ("substring_in_list", substring_in_list),
    ("traverse", traverse),
    ("exactly_n_true", exactly_n_true),
    ("exactly_one_true", exactly_one_true),
    ("check_whitelist_blacklist", check_whitelist_blacklist),
    ("random_sample", random_sample),
    ("random_shuffle", random_shuffle),
    ("json_encode_dict", encode),
    ("json_decode_dict", encode),
    ("json_encode_list", encode),
    ("json_decode_list", encode),
];

/// Whether Python's `Hashable` says so of the value's type.
fn hashable(val: &Val) -> bool {
    match val {
        Val::List(_) | Val::Dict(_) | Val::Set(_) => false,
        Val::Object(object) => !matches!(&**object, Object::View(View::Keys | View::Items, _)),
        _ => true,
    }
}

fn set_of(interp: &mut Interp<'_>, val: &Val) -> Res<IndexSet<Hashed>> {
    let mut set = IndexSet::new();
    for item in interp.collect(val)? {
        set.insert(item.key()?);
    }
    Ok(set)
}

fn holds(items: &[Val], wanted: &Val) -> Res<bool> {
    for item in items {
        budget::step()?;
        if item.same(wanted) || ops::equal(item, wanted)? {
            return Ok(true);
        }
    }
    Ok(false)
}

fn distinct(items: Vec<Val>) -> Res<Vec<Val>> {
    let mut kept: Vec<Val> = Vec::new();
    for item in items {
        if !holds(&kept, &item)? {
            kept.push(item);
        }
    }
    Ok(kept)
}

fn unique(interp: &mut Interp<'_>, val: Val, args: Args) -> Res<Val> {
    args.none("unique")?;
    if hashable(&val) {
        return set_of(interp, &val).map(Val::set);
    }
    let items = interp.collect(&val)?;
    distinct(items).map(Val::list)
}

fn second(args: Args, name: &str) -> Res<Val> {
    let [other] = args.bind(name, ["lst2"], 1)?;
    Ok(other.unwrap_or(Val::None))
}

fn union(interp: &mut Interp<'_>, val: Val, args: Args) -> Res<Val> {
    let other = second(args, "union")?;
    if hashable(&val) && hashable(&other) {
        let mut set = set_of(interp, &val)?;
        set.extend(set_of(interp, &other)?);
        return Ok(Val::set(set));
    }
    let both = ops::binary(BinOp::Add, &val, &other)?;
    unique(interp, both, Args::default())
}

fn intersect(interp: &mut Interp<'_>, val: Val, args: Args) -> Res<Val> {
    let other = second(args, "intersect")?;
    if hashable(&val) && hashable(&other) {
        let (mine, theirs) = (set_of(interp, &val)?, set_of(interp, &other)?);
        return Ok(Val::set(mine.into_iter().filter(|item| theirs.contains(item)).collect()));
    }
    let mut kept = Vec::new();
    for item in interp.collect(&val)? {
        if interp.contains(&other, &item)? {
            kept.push(item);
        }
    }
    distinct(kept).map(Val::list)
}

fn difference(interp: &mut Interp<'_>, val: Val, args: Args) -> Res<Val> {
    let other = second(args, "difference")?;
    if hashable(&val) && hashable(&other) {
        let (mine, theirs) = (set_of(interp, &val)?, set_of(interp, &other)?);
        return Ok(Val::set(mine.into_iter().filter(|item| !theirs.contains(item)).collect()));
    }
    let mut kept = Vec::new();
    for item in interp.collect(&val)? {
        if !interp.contains(&other, &item)? {
            kept.push(item);
        }
    }
    distinct(kept).map(Val::list)
}

fn symmetric_difference(interp: &mut Interp<'_>, val: Val, args: Args) -> Res<Val> {
    let other = second(args, "symmetric_difference")?;
    if hashable(&val) && hashable(&other) {
        let (mine, theirs) = (set_of(interp, &val)?, set_of(interp, &other)?);
        return Ok(Val::set(mine.symmetric_difference(&theirs).cloned().collect()));
    }
    let both = union(interp, val.clone(), Args::of(vec![other.clone()]))?;
    let mut kept = Vec::new();
    for item in interp.collect(&both)? {
        if !(interp.contains(&val, &item)? && interp.contains(&other, &item)?) {
            kept.push(item);
        }
    }
    distinct(kept).map(Val::list)
}

fn iterable(val: &Val) -> bool {
    val.as_str().is_none() && walk(val).is_ok()
}

fn flatten_into(
    interp: &mut Interp<'_>,
    val: &Val,
    levels: Option<i64>,
    nulls: bool,
    out: &mut Vec<Val>,
) -> Res<()> {
    let _level = budget::deeper()?;
    for item in interp.collect(val)? {
        budget::step()?;
        if !nulls && (matches!(item, Val::None) || matches!(item.as_str(), Some("None" | "null"))) {
            continue;
        }
        if let Val::Undef(undef) = &item {
            undef.check()?;
        }
        if iterable(&item) && levels.is_none_or(|levels| levels >= 1) {
            flatten_into(interp, &item, levels.map(|levels| levels - 1), nulls, out)?;
        } else {
            budget::took(size_of::<Val>());
            out.push(item);
        }
    }
    Ok(())
}

fn flatten(interp: &mut Interp<'_>, val: Val, args: Args) -> Res<Val> {
    let [levels, nulls] = args.bind("flatten", ["levels", "preserve_nulls"], 0)?;
    let levels = match &levels {
        None | Some(Val::None) => None,
        Some(levels) => Some(text::want_int(levels)?),
    };
    let mut out = Vec::new();
    flatten_into(interp, &val, levels, flag(nulls.as_ref(), false)?, &mut out)?;
    Ok(Val::list(out))
}

fn avg(interp: &mut Interp<'_>, val: Val, args: Args) -> Res<Val> {
    args.none("lst_avg")?;
    if hashable(&val) {
        return numbers::to_float(interp, &val).map(Val::Float);
    }
    let mut total = Val::Int(0);
    for item in interp.collect(&val)? {
        total = ops::binary(BinOp::Add, &total, &item)?;
    }
    let mean = ops::binary(BinOp::Div, &total, &Val::len(ops::len(&val)?))?;
    numbers::to_float(interp, &mean).map(Val::Float)
}

fn sorted_ignorecase(interp: &mut Interp<'_>, val: Val, args: Args) -> Res<Val> {
    args.none("sorted_ignorecase")?;
    let mut keyed = Vec::new();
    for item in interp.collect(&val)? {
        if let Val::Undef(undef) = &item {
            return Err(undef.fail());
        }
        let Some(text) = item.as_str() else {
            return Err(type_error(format!("'{}' object has no attribute 'lower'", item.type_name())));
        };
        keyed.push((Val::str(text.to_lowercase()), item));
    }
    ops::sort(keyed, false).map(Val::list)
}

fn sequence(_: &mut Interp<'_>, val: Val, args: Args) -> Res<Val> {
    args.none("ensure_sequence_filter")?;
    Ok(if matches!(val, Val::List(_) | Val::Tuple(_) | Val::Set(_) | Val::Dict(_)) {
        val
    } else {
        Val::list(vec![val])
    })
}

fn is_list(_: &mut Interp<'_>, val: Val, args: Args) -> Res<Val> {
    args.none("is_list")?;
    Ok(Val::Bool(matches!(val, Val::List(_))))
}

fn is_iter(_: &mut Interp<'_>, val: Val, args: Args) -> Res<Val> {
    args.none("is_iter")?;
    if let Val::Undef(undef) = &val {
        undef.check()?;
    }
    Ok(Val::Bool(iterable(&val)))
}

fn compare_lists(interp: &mut Interp<'_>, val: Val, args: Args) -> Res<Val> {
    let [new] = args.bind("compare_lists", ["new"], 0)?;
    let new = new.unwrap_or(Val::None);
    let mut map = OrderedMap::new();
    let mut missing = |interp: &mut Interp<'_>, from: &Val, other: &Val, name: &str| -> Res<()> {
        let mut gone = Vec::new();
        for item in interp.collect(from)? {
            if !interp.contains(other, &item)? {
                gone.push(item);
            }
        }
        if !gone.is_empty() {
            map.insert(Hashed(Val::from(name)), Val::list(gone));
        }
        Ok(())
    };
    missing(interp, &new, &val, "new")?;
    missing(interp, &val, &new, "old")?;
    Ok(Val::dict(map))
}

fn compare_dicts(interp: &mut Interp<'_>, val: Val, args: Args) -> Res<Val> {
    let [new] = args.bind("compare_dicts", ["new"], 0)?;
    let new = new.unwrap_or(Val::None);
    // The order of the keys is that of a set.
    let mut keys = if ops::truth(&new)? { set_of(interp, &new)? } else { IndexSet::new() };
    if ops::truth(&val)? {
        keys.extend(set_of(interp, &val)?);
    }
    let mut map = OrderedMap::new();
    for key in pyset::order(keys.into_iter().map(|key| key.0).collect()) {
        let (was, is) = (interp.contains(&val, &key)?, interp.contains(&new, &key)?);
        let old_value = if was { interp.item(&val, &key)? } else { Val::from("") };
        let new_value = if is { interp.item(&new, &key)? } else { Val::from("") };
        let pair = if was && is {
            if ops::equal(&new_value, &old_value)? {
                continue;
            }
            [("old", old_value), ("new", new_value)]
        } else if is {
            [("old", old_value), ("new", new_value)]
        } else {
            [("new", new_value), ("old", old_value)]
        };
        map.insert(Hashed(key), Interp::dict_of(pair));
    }
    Ok(Val::dict(map))
}

fn substring_in_list(interp: &mut Interp<'_>, val: Val, args: Args) -> Res<Val> {
    let [list] = args.bind("substr_in_list", ["list_to_search"], 1)?;
    for item in interp.collect(&list.unwrap_or(Val::None))? {
        if interp.contains(&item, &val)? {
            return Ok(Val::Bool(true));
        }
    }
    Ok(Val::Bool(false))
}

/// A key as YAML reads it: numbers and the like.
fn yaml_key(key: &Val) -> Option<Val> {
    let text = key.as_str()?;
    match load::load(text) {
        Ok(val) if !matches!(val, Val::Str(_)) => Some(val),
        _ => numbers::parse_int(text, 10).ok().map(Val::int),
    }
}

fn traverse(interp: &mut Interp<'_>, val: Val, args: Args) -> Res<Val> {
    let [key, default, delimiter] =
        args.bind("traverse_dict_and_list", ["key", "default", "delimiter"], 1)?;
    let (key, default) = (key.unwrap_or(Val::None), default.unwrap_or(Val::None));
    let delimiter = text_arg(delimiter, ":")?;
    let keys = match &key {
        Val::Str(text) | Val::Markup(text) => {
            if delimiter.is_empty() {
                return Err(value_error("empty separator"));
            }
            text.split(&*delimiter).map(Val::from).collect()
        }
        Val::Int(_) | Val::Big(_) | Val::Bool(_) => vec![key.clone()],
        other => interp.collect(other)?,
    };
    let mut at = val;
    'keys: for key in keys {
        if let Val::Undef(undef) = &at {
            return Err(undef.fail());
        }
        if let Val::List(list) = &at {
            let items = list.items();
            let place = match key.as_str() {
                Some(text) => numbers::parse_int(text, 10).ok(),
                None => match &key {
                    Val::Float(f) => num::trunc(*f),
                    other => other.as_int(),
                },
            };
            let wanted = place.map_or_else(|| key.clone(), Val::int);
            for item in &items {
                if let Val::Dict(dict) = item
                    && let Some(found) = dict.get(&wanted)
                {
                    at = found;
                    continue 'keys;
                }
            }
            match place
                .and_then(|place| i64::try_from(place).ok())
                .and_then(|place| num::index(place, items.len()))
            {
                Some(place) => at = items.get(place).cloned().unwrap_or(Val::None),
                None => return Ok(default),
            }
            continue;
        }
        at = match &at {
            Val::Dict(dict) => {
                if key.hashable().is_err() {
                    return Ok(default);
                }
                match dict.get(&key).or_else(|| yaml_key(&key).and_then(|key| dict.get(&key))) {
                    Some(found) => found,
                    None => return Ok(default),
                }
            }
            // A key of text is no index, which is a `TypeError`; an index beyond the end raises.
            Val::Str(_) | Val::Markup(_) | Val::Tuple(_) if key.as_int().is_some() => {
                interp.python_item(&at, &key)?.ok_or_else(|| exc::lookup_error("index out of range"))?
            }
            _ => return Ok(default),
        };
    }
    Ok(at)
}

fn exactly(interp: &mut Interp<'_>, val: &Val, amount: i64) -> Res<Val> {
    let mut count = 0;
    let mut walk = walk(val)?;
    while let Some(item) = walk.next(interp)? {
        if ops::truth(&item)? {
            count += 1;
            if count > amount.max(0) {
                return Ok(Val::Bool(false));
            }
        }
    }
    Ok(Val::Bool(count == amount.max(0)))
}

fn exactly_n_true(interp: &mut Interp<'_>, val: Val, args: Args) -> Res<Val> {
    let [amount] = args.bind("exactly_n", ["amount"], 0)?;
    let amount = int_arg(amount.as_ref(), 1)?;
    exactly(interp, &val, amount)
}

fn exactly_one_true(interp: &mut Interp<'_>, val: Val, args: Args) -> Res<Val> {
    args.none("exactly_one")?;
    exactly(interp, &val, 1)
}

/// Whether a glob or a pattern matches: `salt.utils.stringutils.expr_match`.
fn expr_match(val: &Val, expr: &Val) -> Res<bool> {
    let (Some(line), Some(pattern)) = (val.as_str(), expr.as_str()) else { return Ok(false) };
    if Glob::new(pattern).matches_within(line, budget::step)? {
        return Ok(true);
    }
    match re::compile(pattern, At::Whole, false, false) {
        Ok(regex) => re::is_match(&regex, line),
        Err(error) if error.is_exception() => Ok(false),
        Err(error) => Err(error),
    }
}

fn check_whitelist_blacklist(interp: &mut Interp<'_>, val: Val, args: Args) -> Res<Val> {
    let [white, black] = args.bind("check_whitelist_blacklist", ["whitelist", "blacklist"], 0)?;
    let mut listed = |list: Option<Val>, name: &str| -> Res<(bool, bool)> {
        let Some(list) = list else { return Ok((false, false)) };
        if !ops::truth(&list)? {
            return Ok((false, false));
        }
        let items = if list.as_str().is_some() {
            vec![list]
        } else if iterable(&list) {
            interp.collect(&list)?
        } else {
            return Err(type_error(format!("Expecting iterable {name}, but got {}", list.type_name())));
        };
        for item in &items {
            if expr_match(&val, item)? {
                return Ok((true, true));
            }
        }
        Ok((true, false))
    };
    let (has_black, is_black) = listed(black, "blacklist")?;
    let (has_white, is_white) = listed(white, "whitelist")?;
    Ok(Val::Bool(match (has_black, has_white) {
        (true, false) => !is_black,
        (false, true) => is_white,
        (true, true) => !is_black && is_white,
        (false, false) => true,
    }))
}

fn sampled(interp: &mut Interp<'_>, val: &Val, size: usize, seed: Option<Val>) -> Res<Val> {
    if seed.is_some_and(|seed| !matches!(seed, Val::None)) {
        return Err(not_native("a sample with a seed"));
    }
    if !matches!(val, Val::List(_) | Val::Tuple(_) | Val::Str(_) | Val::Markup(_)) {
        return Err(type_error("Population must be a sequence.  For dicts or sets, use sorted(d)."));
    }
    let mut items = interp.collect(val)?;
    if size > items.len() {
        return Err(value_error("Sample larger than population or is negative"));
    }
    let mut out = Vec::with_capacity(size);
    for _ in 0..size {
        let place = hash::random(items.len())?;
        out.push(items.swap_remove(place));
    }
    Ok(Val::list(out))
}

fn random_sample(interp: &mut Interp<'_>, val: Val, args: Args) -> Res<Val> {
    let [size, seed] = args.bind("sample", ["size", "seed"], 1)?;
    let size = int_arg(size.as_ref(), 0)?;
    if size < 0 {
        return Err(value_error("Sample larger than population or is negative"));
    }
    sampled(interp, &val, num::size(size), seed)
}

fn random_shuffle(interp: &mut Interp<'_>, val: Val, args: Args) -> Res<Val> {
    let [seed] = args.bind("shuffle", ["seed"], 0)?;
    let size = ops::len(&val)?;
    sampled(interp, &val, size, seed)
}

/// Text to bytes, however deep.
fn encoded(val: &Val) -> Res<Val> {
    let _level = budget::deeper()?;
    budget::step()?;
    Ok(match val {
        Val::Str(text) | Val::Markup(text) => Val::bytes(text.as_bytes().to_vec()),
        Val::List(list) => Val::list(list.items().iter().map(encoded).collect::<Res<_>>()?),
        Val::Tuple(tuple) => Val::list(tuple.items.iter().map(encoded).collect::<Res<_>>()?),
        Val::Dict(dict) => {
            let mut map = OrderedMap::new();
            for (key, value) in dict.pairs() {
                let key = if matches!(key, Val::Tuple(_)) {
                    return Err(type_error("unhashable type: 'list'"));
                } else {
                    encoded(&key)?
                };
                map.insert(Hashed(key), encoded(&value)?);
            }
            Val::dict(map)
        }
        other => other.clone(),
    })
}

fn encode(_: &mut Interp<'_>, val: Val, args: Args) -> Res<Val> {
    if !args.pos.is_empty() || !args.kw.is_empty() {
        return Err(not_native("json_encode_dict with arguments"));
    }
    match &val {
        Val::Dict(_) | Val::List(_) | Val::Tuple(_) => encoded(&val),
        Val::Undef(undef) => Err(undef.fail()),
        Val::Str(_) | Val::Markup(_) => Err(not_native("json_encode of text")),
        other => Err(type_error(format!("'{}' object has no attribute 'items'", other.type_name()))),
    }
}
