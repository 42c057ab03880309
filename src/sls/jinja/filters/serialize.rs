//! Filters between values and text: JSON, YAML, XML; and the products of sequences.

use std::rc::Rc;

use super::{Filter, flag};
use crate::sls::jinja::budget;
use crate::sls::jinja::eval::args::Args;
use crate::sls::jinja::eval::interp::Interp;
use crate::sls::jinja::exc::{Exc, Kind, Res, not_native, runtime_error, type_error, value_error};
use crate::sls::jinja::library::json;
use crate::sls::jinja::methods::text::want_int;
use crate::sls::jinja::values::num;
use crate::sls::jinja::values::object::Object;
use crate::sls::jinja::values::ops;
use crate::sls::jinja::values::repr;
use crate::sls::jinja::values::val::{self, Hashed, Val};
use crate::sls::jinja::values::walk::{Walk, iterator};
use crate::sls::jinja::yaml;
use crate::sls::jinja::yaml::load;
use crate::sls::map::OrderedMap;
use crate::sls::python::text::is_space;

pub(super) const FILTERS: &[(&str, Filter)] = &[
    ("json", json_filter),
    ("tojson", tojson),
    ("yaml", yaml),
    ("dict_to_sls_yaml_params", dict_to_sls_yaml_params),
    ("xml", xml),
    ("load_yaml", load_yaml),
    ("load_json", load_json),
    ("load_text", load_text),
    ("zip", zip),
    ("zip_longest", zip_longest),
    ("product", product),
    ("permutations", permutations),
    ("combinations", combinations),
    ("combinations_with_replacement", combinations_with_replacement),
    ("compress", compress),
];

fn collect_undefined(val: &Val, seen: &mut Vec<*const ()>, messages: &mut Vec<String>) -> Res<()> {
    let _level = budget::deeper()?;
    budget::step()?;
    let mut once = |address: *const ()| {
        let new = !seen.contains(&address);
        if new && seen.len() < 64 {
            seen.push(address);
        }
        new
    };
    match val {
        Val::Undef(undef) if undef.strict => {
            if once(Rc::as_ptr(undef).cast()) {
                messages.push(undef.message.clone());
            }
            Ok(())
        }
        Val::List(list) => list.items().iter().try_for_each(|item| collect_undefined(item, seen, messages)),
        Val::Tuple(tuple) => tuple.items.iter().try_for_each(|item| collect_undefined(item, seen, messages)),
        Val::Dict(dict) => {
            dict.pairs().iter().try_for_each(|(_, item)| collect_undefined(item, seen, messages))
        }
        _ => Ok(()),
    }
}

/// What is undefined anywhere in a value, as one undefined value.
pub(super) fn undefined_within(val: &Val) -> Res<Option<Val>> {
    let mut messages = Vec::new();
    collect_undefined(val, &mut Vec::new(), &mut messages)?;
    Ok(if messages.is_empty() { None } else { Some(Val::undef(true, messages.join("\n"))) })
}

macro_rules! defined {
    ($val:expr) => {
        if let Some(undefined) = undefined_within($val)? {
            return Ok(undefined);
        }
    };
}

fn indent_of(val: Option<&Val>) -> Res<Option<String>> {
    Ok(match val {
        None | Some(Val::None) => None,
        Some(Val::Str(text) | Val::Markup(text)) => Some(text.to_string()),
        Some(other) => {
            let width = num::size(want_int(other)?);
            budget::room(width)?;
            Some(" ".repeat(width))
        }
    })
}

fn json_filter(_: &mut Interp<'_>, val: Val, args: Args) -> Res<Val> {
    defined!(&val);
    let [sort_keys, indent] = args.bind("format_json", ["sort_keys", "indent"], 0)?;
    let style = json::Style::new(flag(sort_keys.as_ref(), true)?, false, indent_of(indent.as_ref())?);
    let text = json::dumps(&val, &style)?;
    Ok(Val::markup(text.trim_matches(is_space)))
}

fn tojson(_: &mut Interp<'_>, val: Val, mut args: Args) -> Res<Val> {
    defined!(&val);
    let indent = match args.take("indent") {
        Some(indent) => Some(indent),
        None if args.pos.is_empty() => None,
        None => Some(args.pos.remove(0)),
    };
    let sort_keys = flag(args.take("sort_keys").as_ref(), false)?;
    let ascii = flag(args.take("ensure_ascii").as_ref(), true)?;
    let mut style = json::Style::new(sort_keys, ascii, indent_of(indent.as_ref())?);
    if let Some(separators) = args.take("separators") {
        let parts = match &separators {
            Val::Tuple(tuple) => tuple.items.clone(),
            Val::List(list) => list.items(),
            Val::None => Vec::new(),
            _ => return Err(type_error("cannot unpack separators")),
        };
        if let [item, key] = parts.as_slice() {
            style.item_separator = repr::str(item)?;
            style.key_separator = repr::str(key)?;
        } else if !matches!(separators, Val::None) {
            return Err(value_error("separators are two"));
        }
    }
    if let Some((name, _)) = args.kw.first() {
        return Err(not_native(format!("tojson({name}=..)")));
    }
    if !args.pos.is_empty() {
        return Err(type_error("tojson() takes from 1 to 2 positional arguments"));
    }
    let text = json::dumps(&val, &style)?;
    let safe =
        text.replace('<', "\\u003c").replace('>', "\\u003e").replace('&', "\\u0026").replace('\'', "\\u0027");
    Ok(Val::str(safe))
}

fn style_of(val: Option<&Val>, default: bool) -> Res<yaml::dump::Style> {
    Ok(match val {
        Some(Val::None) => yaml::dump::Style::Leaves,
        other => {
            if flag(other, default)? {
                yaml::dump::Style::Flow
            } else {
                yaml::dump::Style::Block
            }
        }
    })
}

fn yaml(_: &mut Interp<'_>, val: Val, args: Args) -> Res<Val> {
    defined!(&val);
    let [flow] = args.bind("format_yaml", ["flow_style"], 0)?;
    Ok(Val::markup(yaml::dump::dump(&val, style_of(flow.as_ref(), true)?)?))
}

fn dict_to_sls_yaml_params(_: &mut Interp<'_>, val: Val, args: Args) -> Res<Val> {
    defined!(&val);
    let [flow] = args.bind("dict_to_sls_yaml_params", ["flow_style"], 0)?;
    let Val::Dict(dict) = &val else {
        return Err(type_error(format!("'{}' object has no attribute 'items'", val.type_name())));
    };
    let rows = dict.pairs().into_iter().map(|(key, value)| {
        let mut map = OrderedMap::new();
        map.insert(Hashed(key), value);
        Val::dict(map)
    });
    Ok(Val::markup(yaml::dump::dump(&Val::list(rows.collect()), style_of(flow.as_ref(), false)?)?))
}

/// The text of what is loaded: also that of an imported template.
fn source(val: &Val) -> Res<Option<String>> {
    Ok(match val {
        Val::Str(text) | Val::Markup(text) => Some(text.to_string()),
        Val::Object(object) => match &**object {
            Object::Module(module) => Some(module.text.to_string()),
            _ => None,
        },
        Val::Bytes(bytes) => Some(String::from_utf8_lossy(bytes).into_owned()),
        _ => None,
    })
}

fn load_yaml(_: &mut Interp<'_>, val: Val, args: Args) -> Res<Val> {
    defined!(&val);
    args.none("load_yaml")?;
    match source(&val)? {
        Some(text) => load::load(&text),
        None => Err(runtime_error(format!("Unable to load yaml from {}", repr::str(&val)?))),
    }
}

fn load_json(_: &mut Interp<'_>, val: Val, args: Args) -> Res<Val> {
    defined!(&val);
    args.none("load_json")?;
    let unable = || runtime_error("Unable to load json");
    let text = source(&val)?.ok_or_else(unable)?;
    budget::steps(text.len() as u64 / 16)?;
    json::loads(&text).map_err(|error| {
        if error.kind() == Kind::Value {
            runtime_error(format!("Unable to load json from {text}"))
        } else {
            error
        }
    })
}

fn load_text(_: &mut Interp<'_>, val: Val, args: Args) -> Res<Val> {
    defined!(&val);
    args.none("load_text")?;
    if let Val::Object(object) = &val
        && let Object::Module(module) = &**object
    {
        return Ok(Val::Str(val::Text::clone(&module.text)));
    }
    Ok(val)
}

fn rows(rows: Vec<Vec<Val>>, name: &'static str) -> Val {
    iterator(name, Walk::Items(rows.into_iter().map(Val::tuple).collect::<Vec<_>>().into_iter()))
}

/// Room for so many tuples of such a length.
fn tuples(count: u128, len: usize) -> Res<()> {
    let bytes = count.saturating_mul(len as u128 * size_of::<Val>() as u128 + 64);
    budget::room(usize::try_from(bytes).unwrap_or(usize::MAX))?;
    budget::steps(u64::try_from(count).unwrap_or(u64::MAX))
}

fn columns(interp: &mut Interp<'_>, val: &Val, others: &[Val]) -> Res<Vec<Vec<Val>>> {
    std::iter::once(val).chain(others).map(|val| interp.collect(val)).collect()
}

fn zip(interp: &mut Interp<'_>, val: Val, mut args: Args) -> Res<Val> {
    defined!(&val);
    let strict = flag(args.take("strict").as_ref(), false)?;
    if let Some((name, _)) = args.kw.first() {
        return Err(type_error(format!("zip() got an unexpected keyword argument '{name}'")));
    }
    let columns = columns(interp, &val, &args.pos)?;
    let len = columns.iter().map(Vec::len).min().unwrap_or(0);
    if strict && columns.iter().any(|column| column.len() != len) {
        return Err(value_error("zip() arguments have different lengths"));
    }
    tuples(len as u128, columns.len())?;
    Ok(rows(
        (0..len).map(|i| columns.iter().filter_map(|column| column.get(i).cloned()).collect()).collect(),
        "zip",
    ))
}

fn zip_longest(interp: &mut Interp<'_>, val: Val, mut args: Args) -> Res<Val> {
    defined!(&val);
    let fill = args.take("fillvalue").unwrap_or(Val::None);
    if let Some((name, _)) = args.kw.first() {
        return Err(type_error(format!("zip_longest() got an unexpected keyword argument '{name}'")));
    }
    let columns = columns(interp, &val, &args.pos)?;
    let len = columns.iter().map(Vec::len).max().unwrap_or(0);
    tuples(len as u128, columns.len())?;
    let row = |i: usize| {
        columns.iter().map(|column| column.get(i).cloned().unwrap_or_else(|| fill.clone())).collect()
    };
    Ok(rows((0..len).map(row).collect(), "itertools.zip_longest"))
}

fn product(interp: &mut Interp<'_>, val: Val, mut args: Args) -> Res<Val> {
    defined!(&val);
    let repeat = num::size(super::int_arg(args.take("repeat").as_ref(), 1)?);
    if let Some((name, _)) = args.kw.first() {
        return Err(type_error(format!("product() got an unexpected keyword argument '{name}'")));
    }
    let once = columns(interp, &val, &args.pos)?;
    tuples(repeat as u128, 1)?;
    let columns: Vec<&Vec<Val>> = std::iter::repeat_n(&once, repeat).flatten().collect();
    let count = columns.iter().fold(1_u128, |count, column| count.saturating_mul(column.len() as u128));
    tuples(count, columns.len())?;
    let mut made: Vec<Vec<Val>> = vec![Vec::new()];
    for column in columns {
        made = made
            .iter()
            .flat_map(|row| {
                column
                    .iter()
                    .map(move |item| row.iter().cloned().chain(std::iter::once(item.clone())).collect())
            })
            .collect();
    }
    Ok(rows(made, "itertools.product"))
}

/// Rows of `r` members by their places, in the order that Python's `itertools` has.
fn arranged(
    items: &[Val],
    r: usize,
    name: &'static str,
    next: fn(usize, &[usize]) -> std::ops::Range<usize>,
    distinct: bool,
) -> Res<Val> {
    let n = items.len();
    let mut made = Vec::new();
    let mut stack: Vec<Vec<usize>> = vec![Vec::new()];
    while let Some(places) = stack.pop() {
        budget::step()?;
        if places.len() == r {
            budget::took(r * size_of::<Val>() + 64);
            made.push(places.iter().filter_map(|i| items.get(*i).cloned()).collect());
            continue;
        }
        for i in next(n, &places).rev() {
            if !(distinct && places.contains(&i)) {
                let mut longer = places.clone();
                longer.push(i);
                stack.push(longer);
            }
        }
        budget::room(stack.len().saturating_mul(r.saturating_mul(8)))?;
    }
    Ok(rows(made, name))
}

fn permutations(interp: &mut Interp<'_>, val: Val, args: Args) -> Res<Val> {
    defined!(&val);
    let [r] = args.bind("permutations", ["r"], 0)?;
    let items = interp.collect(&val)?;
    let r = match &r {
        None | Some(Val::None) => items.len(),
        Some(r) => count_of(r)?,
    };
    if r > items.len() {
        return Ok(rows(Vec::new(), "itertools.permutations"));
    }
    arranged(&items, r, "itertools.permutations", |n, _| 0..n, true)
}

fn count_of(r: &Val) -> Res<usize> {
    let r = want_int(r)?;
    if r < 0 { Err(value_error("r must be non-negative")) } else { Ok(num::size(r)) }
}

fn combinations(interp: &mut Interp<'_>, val: Val, args: Args) -> Res<Val> {
    defined!(&val);
    let [r] = args.bind("combinations", ["r"], 1)?;
    let items = interp.collect(&val)?;
    let r = count_of(&r.unwrap_or(Val::None))?;
    if r > items.len() {
        return Ok(rows(Vec::new(), "itertools.combinations"));
    }
    arranged(
        &items,
        r,
        "itertools.combinations",
        |n, places| places.last().map_or(0, |last| last + 1)..n,
        false,
    )
}

fn combinations_with_replacement(interp: &mut Interp<'_>, val: Val, args: Args) -> Res<Val> {
    defined!(&val);
    let [r] = args.bind("combinations_with_replacement", ["r"], 1)?;
    let items = interp.collect(&val)?;
    let r = count_of(&r.unwrap_or(Val::None))?;
    if r > 64 {
        budget::room(r.saturating_mul(1 << 20))?;
    }
    arranged(
        &items,
        r,
        "itertools.combinations_with_replacement",
        |n, places| places.last().copied().unwrap_or(0)..n,
        false,
    )
}

fn compress(interp: &mut Interp<'_>, val: Val, args: Args) -> Res<Val> {
    defined!(&val);
    let [selectors] = args.bind("compress", ["selectors"], 1)?;
    let items = interp.collect(&val)?;
    let selectors = interp.collect(&selectors.unwrap_or(Val::None))?;
    let mut kept = Vec::new();
    for (item, selector) in items.into_iter().zip(&selectors) {
        if ops::truth(selector)? {
            kept.push(item);
        }
    }
    Ok(iterator("itertools.compress", Walk::Items(kept.into_iter())))
}

/// XML out of nested values.
struct Element {
    tag: String,
    text: Option<String>,
    attributes: Vec<(String, String)>,
    children: Vec<Element>,
}

fn is_scalar(val: &Val) -> bool {
    matches!(val, Val::Str(_) | Val::Markup(_) | Val::Int(_) | Val::Big(_) | Val::Bool(_) | Val::Float(_))
}

/// The pairs that Salt's `normalize_iter` gives.
fn xml_pairs(val: &Val) -> Res<Vec<(Val, Val)>> {
    let pair_of = |items: &[Val]| match items {
        [tag, attrs] => Ok((tag.clone(), attrs.clone())),
        _ => Err(value_error("too many values to unpack (expected 2)")),
    };
    match val {
        Val::List(_) | Val::Tuple(_) => {
            let items = match val {
                Val::List(list) => list.items(),
                Val::Tuple(tuple) => tuple.items.clone(),
                _ => Vec::new(),
            };
            let first = items.first().ok_or_else(|| Exc::new(Kind::Lookup, "list index out of range"))?;
            // A pair itself is looked at as a list of pairs, which ends badly; what is no text gives nothing.
            if first.as_str().is_none() {
                return Ok(Vec::new());
            }
            items
                .iter()
                .map(|item| match item {
                    Val::List(list) => pair_of(&list.items()),
                    Val::Tuple(tuple) => pair_of(&tuple.items),
                    Val::Str(text) | Val::Markup(text) => {
                        pair_of(&text.chars().map(|c| Val::str(c.to_string())).collect::<Vec<_>>())
                    }
                    other => {
                        Err(type_error(format!("cannot unpack non-iterable {} object", other.type_name())))
                    }
                })
                .collect()
        }
        Val::Dict(dict) => Ok(dict.pairs()),
        _ => Err(runtime_error("Value is not a dict or list. Cannot render as XML")),
    }
}

/// Adds elements to a parent, or makes the root; the last one is what counts.
fn recurse(pairs: Vec<(Val, Val)>, mut parent: Option<&mut Element>) -> Res<Option<Element>> {
    let _level = budget::deeper()?;
    let mut last: Option<Element> = None;
    for (tag, attrs) in pairs {
        budget::step()?;
        if let Val::List(list) = &attrs {
            for attr in list.items() {
                match parent.as_deref_mut() {
                    Some(parent) => {
                        recurse(vec![(tag.clone(), attr)], Some(parent))?;
                    }
                    None => return Err(not_native("XML whose root is a list")),
                }
            }
            continue;
        }
        let Some(name) = tag.as_str() else { return Err(type_error("a tag must be text")) };
        let mut element =
            Element { tag: name.to_owned(), text: None, attributes: Vec::new(), children: Vec::new() };
        if is_scalar(&attrs) {
            element.text = Some(repr::str(&attrs)?);
        } else {
            if let Val::Dict(dict) = &attrs {
                for (key, value) in dict.pairs() {
                    if !matches!(value, Val::Dict(_) | Val::List(_)) {
                        element.attributes.push((repr::str(&key)?, repr::str(&value)?));
                    }
                }
            }
            for (tag, value) in xml_pairs(&attrs)? {
                if matches!(value, Val::Dict(_) | Val::List(_)) {
                    recurse(vec![(tag, value)], Some(&mut element))?;
                }
            }
        }
        match parent.as_deref_mut() {
            Some(parent) => parent.children.push(element),
            None => last = Some(element),
        }
    }
    Ok(last)
}

fn write_xml(element: &Element, depth: usize, out: &mut String) {
    let escape = |text: &str| text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
    out.push_str(&" ".repeat(depth));
    out.push('<');
    out.push_str(&element.tag);
    for (name, value) in &element.attributes {
        let value = escape(value)
            .replace('"', "&quot;")
            .replace('\r', "&#13;")
            .replace('\n', "&#10;")
            .replace('\t', "&#9;");
        out.push_str(&format!(" {name}=\"{value}\""));
    }
    match &element.text {
        Some(text) if !text.is_empty() => out.push_str(&format!(">{}</{}>\n", escape(text), element.tag)),
        _ if element.children.is_empty() => out.push_str("/>\n"),
        _ => {
            out.push_str(">\n");
            for child in &element.children {
                write_xml(child, depth + 1, out);
            }
            out.push_str(&" ".repeat(depth));
            out.push_str(&format!("</{}>\n", element.tag));
        }
    }
}

fn xml(_: &mut Interp<'_>, val: Val, args: Args) -> Res<Val> {
    defined!(&val);
    args.none("format_xml")?;
    let Some(root) = recurse(xml_pairs(&val)?, None)? else { return Err(not_native("XML without a root")) };
    let mut out = String::from("<?xml version=\"1.0\" ?>\n");
    write_xml(&root, 0, &mut out);
    budget::room(out.len())?;
    Ok(Val::markup(out))
}
