//! Python's operators: truth, equality, order, arithmetic.

use std::cmp::Ordering;
use std::rc::Rc;

use indexmap::IndexSet;

use super::num;
use super::object::{Object, View};
use super::val::{self, Hashed, Val};
use crate::sls::jinja::budget;
use crate::sls::jinja::exc::{Exc, Kind, Res, not_native, overflow_error, type_error};
use crate::sls::jinja::format::percent;
use crate::sls::jinja::syntax::ast::{BinOp, CmpOp};
use crate::sls::python::text;

/// `bool(value)`
pub(crate) fn truth(val: &Val) -> Res<bool> {
    Ok(match val {
        Val::Undef(undef) => {
            undef.check()?;
            false
        }
        Val::None => false,
        Val::Bool(b) => *b,
        Val::Int(i) => *i != 0,
        Val::Big(_) => true,
        Val::Float(f) => *f != 0.0,
        Val::Str(text) | Val::Markup(text) => !text.is_empty(),
        Val::Bytes(bytes) => !bytes.is_empty(),
        Val::List(list) => !list.0.borrow().is_empty(),
        Val::Tuple(tuple) => !tuple.items.is_empty(),
        Val::Dict(dict) => dict.len() > 0,
        Val::Set(set) => !set.0.borrow().is_empty(),
        Val::Object(object) => match &**object {
            Object::Range(range) => range.len() > 0,
            Object::View(_, dict) => dict.len() > 0,
            _ => true,
        },
    })
}

/// `left == right`
pub(crate) fn equal(left: &Val, right: &Val) -> Res<bool> {
    if let (Val::Undef(a), Val::Undef(b)) = (left, right) {
        a.check()?;
        b.check()?;
        return Ok(true);
    }
    Ok(match (left, right) {
        (Val::Undef(undef), _) | (_, Val::Undef(undef)) => {
            undef.check()?;
            false
        }
        (Val::Str(a) | Val::Markup(a), Val::Str(b) | Val::Markup(b)) => a == b,
        (Val::None, Val::None) => true,
        (Val::Bytes(a), Val::Bytes(b)) => a == b,
        (Val::List(a), Val::List(b)) => Rc::ptr_eq(a, b) || all_equal(&a.0.borrow(), &b.0.borrow())?,
        (Val::Tuple(a), Val::Tuple(b)) => Rc::ptr_eq(a, b) || all_equal(&a.items, &b.items)?,
        (Val::Set(a), Val::Set(b)) => {
            let (a, b) = (a.0.borrow(), b.0.borrow());
            budget::steps((a.len() / 16) as u64)?;
            a.len() == b.len() && a.iter().all(|item| b.contains(item))
        }
        (Val::Dict(a), Val::Dict(b)) => {
            if Rc::ptr_eq(a, b) {
                return Ok(true);
            }
            let _level = budget::deeper()?;
            let (a, b) = (a.map.borrow(), b.map.borrow());
            if a.len() != b.len() {
                return Ok(false);
            }
            for (key, value) in a.iter() {
                budget::step()?;
                match b.get(key) {
                    Some(other) if value.same(other) || equal(value, other)? => {}
                    _ => return Ok(false),
                }
            }
            true
        }
        (Val::Object(a), Val::Object(b)) => match (&**a, &**b) {
            (Object::Range(a), Object::Range(b)) => {
                a.len() == b.len() && (0..a.len().min(3)).all(|i| a.get(i) == b.get(i))
            }
            (Object::View(a, x), Object::View(b, y)) if *a != View::Values && *b != View::Values => {
                let (a, b) = (view_items(*a, x), view_items(*b, y));
                if a.len() != b.len() {
                    return Ok(false);
                }
                for item in &a {
                    let mut found = false;
                    for other in &b {
                        budget::step()?;
                        found |= equal(item, other)?;
                    }
                    if !found {
                        return Ok(false);
                    }
                }
                true
            }
            (a, b) => std::ptr::eq(a, b) || a.same(b),
        },
        (a, b) => match (a.as_int(), b.as_int()) {
            (Some(a), Some(b)) => a == b,
            _ => matches!(order_numbers(a, b), Some(Some(Ordering::Equal))),
        },
    })
}

fn all_equal(a: &[Val], b: &[Val]) -> Res<bool> {
    if a.len() != b.len() {
        return Ok(false);
    }
    let _level = budget::deeper()?;
    for (a, b) in a.iter().zip(b) {
        budget::step()?;
        if !a.same(b) && !equal(a, b)? {
            return Ok(false);
        }
    }
    Ok(true)
}

/// What a view of a mapping shows at this moment.
pub(super) fn view_items(view: View, dict: &val::Dict) -> Vec<Val> {
    match view {
        View::Keys => dict.keys(),
        View::Values => dict.map.borrow().values().cloned().collect(),
        View::Items => dict.pairs().into_iter().map(|(key, value)| Val::tuple(vec![key, value])).collect(),
    }
}

/// The order of two numbers; the inner `None` is for what is not a number.
fn order_numbers(a: &Val, b: &Val) -> Option<Option<Ordering>> {
    Some(match (a, b) {
        (Val::Float(a), Val::Float(b)) => a.partial_cmp(b),
        (Val::Float(f), other) => order_mixed(other.as_int()?, *f).map(Ordering::reverse),
        (other, Val::Float(f)) => order_mixed(other.as_int()?, *f),
        (a, b) => Some(a.as_int()?.cmp(&b.as_int()?)),
    })
}

fn order_mixed(i: i128, f: f64) -> Option<Ordering> {
    match num::trunc(f) {
        Some(whole) => Some(i.cmp(&whole).then(if f.fract() > 0.0 {
            Ordering::Less
        } else if f.fract() < 0.0 {
            Ordering::Greater
        } else {
            Ordering::Equal
        })),
        None => num::float(i).partial_cmp(&f),
    }
}

/// The order of two values, for an operator; `None` if neither is less nor are they equal.
fn order(left: &Val, right: &Val, sign: &str) -> Res<Option<Ordering>> {
    for val in [left, right] {
        if let Val::Undef(undef) = val {
            return Err(undef.fail());
        }
    }
    if let Some(order) = order_numbers(left, right) {
        return Ok(order);
    }
    match (left, right) {
        (Val::Str(a) | Val::Markup(a), Val::Str(b) | Val::Markup(b)) => Ok(Some(a.cmp(b))),
        (Val::Bytes(a), Val::Bytes(b)) => Ok(Some(a.cmp(b))),
        (Val::List(a), Val::List(b)) => order_all(&a.items(), &b.items(), sign),
        (Val::Tuple(a), Val::Tuple(b)) => order_all(&a.items, &b.items, sign),
        _ => Err(type_error(format!(
            "'{sign}' not supported between instances of '{}' and '{}'",
            left.type_name(),
            right.type_name()
        ))),
    }
}

fn order_all(a: &[Val], b: &[Val], sign: &str) -> Res<Option<Ordering>> {
    let _level = budget::deeper()?;
    for (a, b) in a.iter().zip(b) {
        budget::step()?;
        if !a.same(b) && !equal(a, b)? {
            return order(a, b, sign);
        }
    }
    Ok(Some(a.len().cmp(&b.len())))
}

/// `left < right`
pub(crate) fn less(left: &Val, right: &Val) -> Res<bool> {
    compare(CmpOp::Lt, left, right)
}

/// A comparison, except `in`.
pub(crate) fn compare(op: CmpOp, left: &Val, right: &Val) -> Res<bool> {
    let (sign, holds): (&str, fn(Ordering) -> bool) = match op {
        CmpOp::Eq | CmpOp::In => return equal(left, right),
        CmpOp::Ne | CmpOp::NotIn => return equal(left, right).map(|equal| !equal),
        CmpOp::Lt => ("<", Ordering::is_lt),
        CmpOp::Le => ("<=", Ordering::is_le),
        CmpOp::Gt => (">", Ordering::is_gt),
        CmpOp::Ge => (">=", Ordering::is_ge),
    };
    if let (Val::Set(a), Val::Set(b)) = (left, right) {
        let (a, b) = (a.0.borrow(), b.0.borrow());
        return Ok(match op {
            CmpOp::Lt => a.len() < b.len() && a.is_subset(&b),
            CmpOp::Le => a.is_subset(&b),
            CmpOp::Gt => a.len() > b.len() && b.is_subset(&a),
            _ => b.is_subset(&a),
        });
    }
    Ok(order(left, right, sign)?.is_some_and(holds))
}

/// Sorts as Python's `sorted` does, stable, with `<` alone.
pub(crate) fn sort(items: Vec<(Val, Val)>, reverse: bool) -> Res<Vec<Val>> {
    let mut items = items;
    if reverse {
        items.reverse();
    }
    let mut sorted = merge_sort(items)?;
    if reverse {
        sorted.reverse();
    }
    Ok(sorted.into_iter().map(|(_, val)| val).collect())
}

/// Sorts pairs by their first; an order that is none cannot make it panic.
fn merge_sort(mut items: Vec<(Val, Val)>) -> Res<Vec<(Val, Val)>> {
    if items.len() < 2 {
        return Ok(items);
    }
    let right = merge_sort(items.split_off(items.len() / 2))?;
    let left = merge_sort(items)?;
    let mut merged = Vec::with_capacity(left.len() + right.len());
    let (mut left, mut right) = (left.into_iter().peekable(), right.into_iter().peekable());
    while let (Some(a), Some(b)) = (left.peek(), right.peek()) {
        budget::step()?;
        let from = if less(&b.0, &a.0)? { &mut right } else { &mut left };
        merged.extend(from.next());
    }
    merged.extend(left);
    merged.extend(right);
    Ok(merged)
}

fn unsupported(op: BinOp, left: &Val, right: &Val) -> Exc {
    type_error(format!(
        "unsupported operand type(s) for {}: '{}' and '{}'",
        op.sign(),
        left.type_name(),
        right.type_name()
    ))
}

fn too_big() -> Exc {
    not_native("an integer of more than 128 bits")
}

/// An arithmetic operator.
pub(crate) fn binary(op: BinOp, left: &Val, right: &Val) -> Res<Val> {
    if op == BinOp::Mod && left.as_str().is_some() {
        return percent::format(left, right);
    }
    for val in [left, right] {
        if let Val::Undef(undef) = val {
            return Err(undef.fail());
        }
    }
    if let (Some(a), Some(b)) = (left.as_int(), right.as_int()) {
        return int_binary(op, a, b);
    }
    if let (Some(a), Some(b)) = (left.as_float(), right.as_float()) {
        return float_binary(op, a, b);
    }
    match op {
        BinOp::Add => add(left, right),
        BinOp::Mul => match (left.as_int(), right.as_int()) {
            (None, Some(times)) => repeat(left, times).ok_or_else(|| unsupported(op, left, right))?,
            (Some(times), None) => repeat(right, times).ok_or_else(|| unsupported(op, left, right))?,
            _ => Err(unsupported(op, left, right)),
        },
        BinOp::Sub => match (left, right) {
            (Val::Set(a), Val::Set(b)) => {
                Ok(Val::set(a.0.borrow().difference(&b.0.borrow()).cloned().collect()))
            }
            (Val::Object(object), _) => match (&**object, right) {
                (Object::View(view, dict), Val::List(_) | Val::Tuple(_) | Val::Set(_))
                    if *view != View::Values =>
                {
                    let without: Vec<Val> = match right {
                        Val::List(list) => list.items(),
                        Val::Tuple(tuple) => tuple.items.clone(),
                        Val::Set(set) => set.items(),
                        _ => Vec::new(),
                    };
                    let mut set = IndexSet::new();
                    for item in view_items(*view, dict) {
                        set.insert(item.key()?);
                    }
                    for item in without {
                        set.shift_remove(&item.key()?);
                    }
                    Ok(Val::set(set))
                }
                _ => Err(unsupported(op, left, right)),
            },
            _ => Err(unsupported(op, left, right)),
        },
        _ => Err(unsupported(op, left, right)),
    }
}

fn add(left: &Val, right: &Val) -> Res<Val> {
    let join = |a: &str, b: &str| {
        budget::room(a.len() + b.len())?;
        let mut text = String::with_capacity(a.len() + b.len());
        text.push_str(a);
        text.push_str(b);
        Ok(text)
    };
    match (left, right) {
        (Val::Str(a), Val::Str(b)) => Ok(Val::str(join(a, b)?)),
        (Val::Markup(a), Val::Markup(b)) => Ok(Val::markup(join(a, b)?)),
        (Val::Markup(a), Val::Str(b)) => Ok(Val::markup(join(a, &text::escaped(b))?)),
        (Val::Str(a), Val::Markup(b)) => Ok(Val::markup(join(&text::escaped(a), b)?)),
        (Val::Bytes(a), Val::Bytes(b)) => {
            budget::room(a.len() + b.len())?;
            Ok(Val::bytes([&**a, &**b].concat()))
        }
        (Val::List(a), Val::List(b)) => {
            let (a, b) = (a.0.borrow(), b.0.borrow());
            budget::room((a.len() + b.len()) * size_of::<Val>())?;
            Ok(Val::list(a.iter().chain(b.iter()).cloned().collect()))
        }
        (Val::Tuple(a), Val::Tuple(b)) => {
            budget::room((a.items.len() + b.items.len()) * size_of::<Val>())?;
            Ok(Val::tuple(a.items.iter().chain(&b.items).cloned().collect()))
        }
        (Val::Str(_) | Val::Markup(_), other) => {
            Err(type_error(format!("can only concatenate str (not \"{}\") to str", other.type_name())))
        }
        (Val::List(_), other) => {
            Err(type_error(format!("can only concatenate list (not \"{}\") to list", other.type_name())))
        }
        (Val::Tuple(_), other) => {
            Err(type_error(format!("can only concatenate tuple (not \"{}\") to tuple", other.type_name())))
        }
        _ => Err(unsupported(BinOp::Add, left, right)),
    }
}

/// A sequence several times; `None` if it is none.
fn repeat(val: &Val, times: i128) -> Option<Res<Val>> {
    let times = usize::try_from(times.max(0)).unwrap_or(usize::MAX);
    let room = |len: usize| budget::room(len.saturating_mul(times));
    Some(match val {
        Val::Str(text) => {
            room(text.len()).map(|()| Val::str(text.repeat(if text.is_empty() { 0 } else { times })))
        }
        Val::Markup(text) => {
            room(text.len()).map(|()| Val::markup(text.repeat(if text.is_empty() { 0 } else { times })))
        }
        Val::Bytes(bytes) => {
            room(bytes.len()).map(|()| Val::bytes(bytes.repeat(if bytes.is_empty() { 0 } else { times })))
        }
        Val::List(list) => {
            let items = list.items();
            room(items.len() * size_of::<Val>()).map(|()| Val::list(repeated(&items, times)))
        }
        Val::Tuple(tuple) => {
            room(tuple.items.len() * size_of::<Val>()).map(|()| Val::tuple(repeated(&tuple.items, times)))
        }
        _ => return None,
    })
}

fn repeated(items: &[Val], times: usize) -> Vec<Val> {
    if items.is_empty() {
        return Vec::new();
    }
    std::iter::repeat_n(items, times).flatten().cloned().collect()
}

fn division_by_zero(what: &str) -> Exc {
    Exc::new(Kind::Other, what)
}

fn int_binary(op: BinOp, a: i128, b: i128) -> Res<Val> {
    let result = match op {
        BinOp::Add => a.checked_add(b),
        BinOp::Sub => a.checked_sub(b),
        BinOp::Mul => a.checked_mul(b),
        BinOp::Div => {
            if b == 0 {
                return Err(division_by_zero("division by zero"));
            }
            return Ok(Val::Float(num::float(a) / num::float(b)));
        }
        BinOp::FloorDiv | BinOp::Mod => {
            if b == 0 {
                return Err(division_by_zero("integer division or modulo by zero"));
            }
            let quotient = a.checked_div_euclid(b).ok_or_else(too_big)?;
            let rest = a.checked_rem_euclid(b).ok_or_else(too_big)?;
            // Python's remainder has the sign of the divisor.
            let (quotient, rest) =
                if rest != 0 && b < 0 { (quotient - 1, rest + b) } else { (quotient, rest) };
            Some(if op == BinOp::Mod { rest } else { quotient })
        }
        BinOp::Pow => {
            if b < 0 {
                return float_binary(op, num::float(a), num::float(b));
            }
            match (a, u32::try_from(b)) {
                (0 | 1, _) => Some(if b == 0 { 1 } else { a }),
                (-1, _) => Some(if b % 2 == 0 { 1 } else { -1 }),
                (_, Ok(b)) => a.checked_pow(b),
                _ => None,
            }
        }
    };
    result.map(Val::int).ok_or_else(too_big)
}

fn float_binary(op: BinOp, a: f64, b: f64) -> Res<Val> {
    Ok(Val::Float(match op {
        BinOp::Add => a + b,
        BinOp::Sub => a - b,
        BinOp::Mul => a * b,
        BinOp::Div => {
            if b == 0.0 {
                return Err(division_by_zero("float division by zero"));
            }
            a / b
        }
        BinOp::FloorDiv | BinOp::Mod => {
            if b == 0.0 {
                return Err(division_by_zero(if op == BinOp::Mod {
                    "float modulo"
                } else {
                    "float floor division by zero"
                }));
            }
            let (quotient, rest) = float_divmod(a, b);
            if op == BinOp::Mod { rest } else { quotient }
        }
        BinOp::Pow => {
            if a == 0.0 && b < 0.0 {
                return Err(division_by_zero("0.0 cannot be raised to a negative power"));
            }
            if a < 0.0 && b.is_finite() && b.fract() != 0.0 {
                return Err(not_native("a complex number"));
            }
            let power = a.powf(b);
            if power.is_infinite() && a.is_finite() && b.is_finite() {
                return Err(overflow_error("(34, 'Numerical result out of range')"));
            }
            power
        }
    }))
}

fn float_divmod(a: f64, b: f64) -> (f64, f64) {
    let mut rest = a % b;
    let mut quotient = (a - rest) / b;
    if rest == 0.0 {
        rest = 0.0_f64.copysign(b);
    } else if (b < 0.0) != (rest < 0.0) {
        rest += b;
        quotient -= 1.0;
    }
    if quotient == 0.0 {
        return (0.0_f64.copysign(a / b), rest);
    }
    let whole = quotient.floor();
    (if quotient - whole > 0.5 { whole + 1.0 } else { whole }, rest)
}

/// `-value`, or `+value`.
pub(crate) fn sign(val: &Val, negative: bool) -> Res<Val> {
    if let Val::Undef(undef) = val {
        return Err(undef.fail());
    }
    if let Some(i) = val.as_int() {
        return if negative { i.checked_neg().map(Val::int).ok_or_else(too_big) } else { Ok(Val::int(i)) };
    }
    match val {
        Val::Float(f) => Ok(Val::Float(if negative { -f } else { *f })),
        _ => Err(type_error(format!(
            "bad operand type for unary {}: '{}'",
            if negative { "-" } else { "+" },
            val.type_name()
        ))),
    }
}

/// `len(value)`
pub(crate) fn len(val: &Val) -> Res<usize> {
    Ok(match val {
        Val::Undef(undef) => {
            undef.check()?;
            0
        }
        Val::Str(text) | Val::Markup(text) => text::len(text),
        Val::Bytes(bytes) => bytes.len(),
        Val::List(list) => list.0.borrow().len(),
        Val::Tuple(tuple) => tuple.items.len(),
        Val::Dict(dict) => dict.len(),
        Val::Set(set) => set.0.borrow().len(),
        Val::Object(object) => match &**object {
            Object::Range(range) => range.len(),
            Object::View(_, dict) => dict.len(),
            _ => return Err(no_len(val)),
        },
        _ => return Err(no_len(val)),
    })
}

fn no_len(val: &Val) -> Exc {
    type_error(format!("object of type '{}' has no len()", val.type_name()))
}

/// Whether a container may take a value: not one that holds the container itself, for such a ring is never let go.
pub(crate) fn may_hold(container: &Val, new: &Val) -> Res<()> {
    let mut waiting = vec![new.clone()];
    let mut seen = std::collections::HashSet::new();
    while let Some(val) = waiting.pop() {
        if val.same(container) {
            return Err(not_native("a value that holds itself"));
        }
        let address = match &val {
            Val::List(list) => Rc::as_ptr(list).cast::<()>(),
            Val::Dict(dict) => Rc::as_ptr(dict).cast(),
            Val::Tuple(tuple) => Rc::as_ptr(tuple).cast(),
            Val::Set(set) => Rc::as_ptr(set).cast(),
            Val::Object(object) => Rc::as_ptr(object).cast(),
            _ => continue,
        };
        if !seen.insert(address) {
            continue;
        }
        budget::steps(1 + (len(&val).unwrap_or(0) / 16) as u64)?;
        match &val {
            Val::List(list) => waiting.extend(list.0.borrow().iter().cloned()),
            Val::Tuple(tuple) => waiting.extend(tuple.items.iter().cloned()),
            Val::Dict(dict) => waiting.extend(dict.map.borrow().values().cloned()),
            Val::Object(object) => waiting.extend(object.held()),
            _ => {}
        }
    }
    Ok(())
}

/// A key out of a value that may not be one.
pub(crate) fn key(val: &Val) -> Res<Hashed> {
    val.clone().key()
}
