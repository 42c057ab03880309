//! JMESPath, as Python's `jmespath` 1.1 evaluates it, for `json_query`.
//!
//! ```text
//! name "quoted" [0] [] [*] [a:b:c] * [?cond] {k: e} [e, e] a.b a|b a||b a&&b !a (a) @ 'raw' `json` f(x, &e) == != < <= > >=
//! ```

use super::parse::{Node, parse};
use crate::sls::jinja::budget;
use crate::sls::jinja::exc::{self, Exc, Kind, Res, not_native, value_error};
use crate::sls::jinja::library::json;
use crate::sls::jinja::syntax::ast;
use crate::sls::jinja::syntax::ast::CmpOp;
use crate::sls::jinja::values::num;
use crate::sls::jinja::values::ops;
use crate::sls::jinja::values::repr;
use crate::sls::jinja::values::val::{Hashed, Val};
use crate::sls::map::OrderedMap;

/// `jmespath.search(expression, value)`
pub(crate) fn search(expression: &str, val: &Val) -> Res<Val> {
    let node = parse(expression)?;
    eval(&node, val)
}

/// What JMESPath holds for false; 0 is none of it.
fn is_false(val: &Val) -> bool {
    match val {
        Val::None | Val::Bool(false) => true,
        Val::Str(_) | Val::Markup(_) | Val::List(_) | Val::Dict(_) => ops::len(val).is_ok_and(|len| len == 0),
        _ => false,
    }
}

fn members(val: &Val) -> Option<Vec<Val>> {
    match val {
        Val::List(list) => Some(list.items()),
        _ => None,
    }
}

fn eval(node: &Node, val: &Val) -> Res<Val> {
    let _level = budget::deeper()?;
    budget::step()?;
    Ok(match node {
        Node::Current => val.clone(),
        Node::Literal(literal) => literal.clone(),
        Node::Field(name) => match val {
            Val::Dict(dict) => dict.get_str(name).unwrap_or(Val::None),
            _ => Val::None,
        },
        Node::Index(place) => match val {
            Val::List(list) => {
                let items = list.0.borrow();
                num::index(*place, items.len())
                    .and_then(|place| items.get(place).cloned())
                    .unwrap_or(Val::None)
            }
            _ => Val::None,
        },
        Node::Slice(parts) => match members(val) {
            Some(items) => {
                let step = parts[2].unwrap_or(1);
                if step == 0 {
                    return Err(value_error("slice step cannot be zero"));
                }
                let places = num::slice(parts[0], parts[1], step, items.len());
                Val::list(places.into_iter().filter_map(|place| items.get(place).cloned()).collect())
            }
            None => Val::None,
        },
        Node::Sub(pair) | Node::Pipe(pair) => {
            let left = eval(&pair.0, val)?;
            eval(&pair.1, &left)?
        }
        Node::Project(pair) => match members(&eval(&pair.0, val)?) {
            Some(items) => project(items, &pair.1)?,
            None => Val::None,
        },
        Node::ProjectValues(pair) => match eval(&pair.0, val)? {
            Val::Dict(dict) => {
                let items = dict.map.borrow().values().cloned().collect();
                project(items, &pair.1)?
            }
            _ => Val::None,
        },
        Node::Filter(parts) => match members(&eval(&parts.0, val)?) {
            Some(items) => {
                let mut kept = Vec::new();
                for item in items {
                    if !is_false(&eval(&parts.2, &item)?) {
                        kept.push(item);
                    }
                }
                project(kept, &parts.1)?
            }
            None => Val::None,
        },
        Node::Flatten(inner) => match members(&eval(inner, val)?) {
            Some(items) => {
                let flat =
                    items.into_iter().flat_map(|item| members(&item).unwrap_or_else(|| vec![item])).collect();
                Val::list(flat)
            }
            None => Val::None,
        },
        Node::Or(pair) => {
            let left = eval(&pair.0, val)?;
            if is_false(&left) { eval(&pair.1, val)? } else { left }
        }
        Node::And(pair) => {
            let left = eval(&pair.0, val)?;
            if is_false(&left) { left } else { eval(&pair.1, val)? }
        }
        Node::Not(inner) => Val::Bool(is_false(&eval(inner, val)?)),
        Node::Compare(op, pair) => {
            let (left, right) = (eval(&pair.0, val)?, eval(&pair.1, val)?);
            let number = |val: &Val| matches!(val, Val::Int(_) | Val::Big(_) | Val::Float(_));
            match op {
                CmpOp::Eq => Val::Bool(same(&left, &right)?),
                CmpOp::Ne => Val::Bool(!same(&left, &right)?),
                op if (number(&left) || left.as_str().is_some())
                    && (number(&right) || right.as_str().is_some()) =>
                {
                    if number(&left) == number(&right) {
                        Val::Bool(ops::compare(*op, &left, &right)?)
                    } else {
                        Val::None
                    }
                }
                _ => Val::None,
            }
        }
        Node::List(_) | Node::Dict(_) if matches!(val, Val::None) => Val::None,
        Node::List(items) => Val::list(items.iter().map(|item| eval(item, val)).collect::<Res<_>>()?),
        Node::Dict(items) => {
            let mut map = OrderedMap::new();
            for (name, item) in items {
                map.insert(Hashed(Val::from(name.as_str())), eval(item, val)?);
            }
            Val::dict(map)
        }
        Node::Call(name, args) => call(name, args, val)?,
        Node::Ref(_) => return Err(not_native("an expression as a value in json_query")),
    })
}

/// Equality, in which 1 is not true.
fn same(left: &Val, right: &Val) -> Res<bool> {
    if matches!(left, Val::Bool(_)) != matches!(right, Val::Bool(_)) {
        return Ok(false);
    }
    ops::equal(left, right)
}

fn project(items: Vec<Val>, right: &Node) -> Res<Val> {
    let mut made = Vec::new();
    for item in items {
        let one = eval(right, &item)?;
        if !matches!(one, Val::None) {
            made.push(one);
        }
    }
    Ok(Val::list(made))
}

fn call(name: &str, args: &[Node], val: &Val) -> Res<Val> {
    let wrong =
        || Exc::new(Kind::Value, format!("In function {name}(), invalid type or number of arguments"));
    // Functions that take an expression.
    if let (Some(Node::Ref(by)), "sort_by" | "max_by" | "min_by") = (args.get(1), name) {
        let items = members(&eval(args.first().ok_or_else(wrong)?, val)?).ok_or_else(wrong)?;
        let mut keyed = Vec::new();
        for item in items {
            let key = eval(by, &item)?;
            if key.as_str().is_none() && key.as_float().is_none() {
                return Err(wrong());
            }
            keyed.push((key, item));
        }
        return match name {
            "sort_by" => ops::sort(keyed, false).map(Val::list),
            _ => best(keyed, name == "max_by"),
        };
    }
    if let (Some(Node::Ref(by)), "map") = (args.first(), name) {
        let items = members(&eval(args.get(1).ok_or_else(wrong)?, val)?).ok_or_else(wrong)?;
        return Ok(Val::list(items.iter().map(|item| eval(by, item)).collect::<Res<_>>()?));
    }
    let args: Vec<Val> = args.iter().map(|arg| eval(arg, val)).collect::<Res<_>>()?;
    let first = args.first();
    let second = args.get(1);
    let text = |val: Option<&Val>| val.and_then(Val::as_str).map(str::to_owned).ok_or_else(wrong);
    let list = |val: Option<&Val>| val.and_then(members).ok_or_else(wrong);
    Ok(match (name, args.len()) {
        ("length", 1) => match first {
            Some(val @ (Val::Str(_) | Val::Markup(_) | Val::List(_) | Val::Dict(_))) => {
                Val::len(ops::len(val)?)
            }
            _ => return Err(wrong()),
        },
        ("keys" | "values", 1) => match first {
            Some(Val::Dict(dict)) => Val::list(if name == "keys" {
                dict.keys()
            } else {
                dict.map.borrow().values().cloned().collect()
            }),
            _ => return Err(wrong()),
        },
        ("contains", 2) => match (first, second) {
            (Some(Val::Str(text) | Val::Markup(text)), Some(part)) => {
                Val::Bool(part.as_str().is_some_and(|part| text.contains(part)))
            }
            (Some(Val::List(list)), Some(item)) => {
                let mut found = false;
                for other in list.items() {
                    found |= ops::equal(&other, item)?;
                }
                Val::Bool(found)
            }
            _ => return Err(wrong()),
        },
        ("starts_with", 2) => Val::Bool(text(first)?.starts_with(&text(second)?)),
        ("ends_with", 2) => Val::Bool(text(first)?.ends_with(&text(second)?)),
        ("join", 2) => {
            let parts = list(second)?.iter().map(|part| text(Some(part))).collect::<Res<Vec<_>>>()?;
            Val::str(parts.join(&text(first)?))
        }
        ("sort", 1) => ops::sort(list(first)?.into_iter().map(|item| (item.clone(), item)).collect(), false)
            .map(Val::list)?,
        ("reverse", 1) => match first {
            Some(Val::Str(text) | Val::Markup(text)) => Val::str(text.chars().rev().collect::<String>()),
            other => {
                let mut items = list(other)?;
                items.reverse();
                Val::list(items)
            }
        },
        ("max" | "min", 1) => {
            best(list(first)?.into_iter().map(|item| (item.clone(), item)).collect(), name == "max")?
        }
        ("sum", 1) => {
            let mut total = Val::Int(0);
            for item in list(first)? {
                total = ops::binary(ast::BinOp::Add, &total, &item)?;
            }
            total
        }
        ("type", 1) => Val::from(match first {
            Some(Val::Str(_) | Val::Markup(_)) => "string",
            Some(Val::Bool(_)) => "boolean",
            Some(Val::List(_)) => "array",
            Some(Val::Dict(_)) => "object",
            Some(Val::None) => "null",
            _ => "number",
        }),
        ("to_string", 1) => match first {
            Some(val) if val.as_str().is_some() => val.clone(),
            Some(val) => {
                let mut style = json::Style::new(false, true, None);
                (style.item_separator, style.key_separator) = (",".to_owned(), ":".to_owned());
                Val::str(json::dumps(val, &style)?)
            }
            None => return Err(wrong()),
        },
        ("to_array", 1) => match first {
            Some(Val::List(_)) => args.into_iter().next().unwrap_or(Val::None),
            _ => Val::list(args),
        },
        ("not_null", _) => args.into_iter().find(|val| !matches!(val, Val::None)).unwrap_or(Val::None),
        ("merge", _) => {
            let mut map = OrderedMap::new();
            for arg in &args {
                let Val::Dict(dict) = arg else { return Err(wrong()) };
                map.extend(dict.pairs().into_iter().map(|(key, val)| (Hashed(key), val)));
            }
            Val::dict(map)
        }
        ("abs" | "avg" | "ceil" | "floor" | "to_number" | "sort_by" | "max_by" | "min_by" | "map", _) => {
            return Err(not_native(format!("{name}() in json_query")));
        }
        _ => return Err(Exc::new(Kind::Value, format!("Unknown function: {name}()"))),
    })
}

fn best(keyed: Vec<(Val, Val)>, largest: bool) -> Res<Val> {
    let mut best: Option<(Val, Val)> = None;
    for (key, item) in keyed {
        budget::step()?;
        let better = match &best {
            None => true,
            Some((known, _)) if largest => ops::less(known, &key)?,
            Some((known, _)) => ops::less(&key, known)?,
        };
        if better {
            best = Some((key, item));
        }
    }
    Ok(best.map_or(Val::None, |(_, item)| item))
}

/// An expression out of an argument.
pub(crate) fn filter(val: &Val, expression: &Val) -> Res<Val> {
    let Some(text) = expression.as_str() else {
        return Err(exc::type_error(format!("{} is no expression", repr::repr(expression)?)));
    };
    search(text, val)
}
