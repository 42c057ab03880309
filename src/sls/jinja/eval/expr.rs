//! Expressions to values.

use std::rc::Rc;

use super::args::Args;
use super::frame::Frame;
use super::interp::Interp;
use super::is;
use crate::sls::jinja::budget;
use crate::sls::jinja::exc::{Res, runtime_error, type_error};
use crate::sls::jinja::filters;
use crate::sls::jinja::syntax::ast::{Call, CallArgs, CmpOp, Expr};
use crate::sls::jinja::values::access;
use crate::sls::jinja::values::ops;
use crate::sls::jinja::values::repr;
use crate::sls::jinja::values::val::{Hashed, Text, Val};
use crate::sls::map::OrderedMap;

/// Bytes of a long text that are read for one step. Hashes read the slowest.
const READ_PER_STEP: usize = 128;

impl Interp<'_> {
    pub(crate) fn eval(&mut self, expr: &Expr, frame: &Rc<Frame>) -> Res<Val> {
        budget::step()?;
        let val = self.eval_any(expr, frame)?;
        // Whatever is done with a long text takes as long as it is.
        if let Some(text) = val.as_str()
            && text.len() > 1024
        {
            budget::steps((text.len() / READ_PER_STEP) as u64)?;
        }
        Ok(val)
    }

    fn eval_any(&mut self, expr: &Expr, frame: &Rc<Frame>) -> Res<Val> {
        match expr {
            Expr::None => Ok(Val::None),
            Expr::Bool(b) => Ok(Val::Bool(*b)),
            Expr::Int(i) => Ok(Val::int(*i)),
            Expr::Float(f) => Ok(Val::Float(*f)),
            Expr::Str(text) => Ok(Val::Str(Text::clone(text))),
            Expr::Name(name) => Ok(self.variable(name, frame)),
            Expr::Attr(inner, name) => {
                let val = self.eval(inner, frame)?;
                self.attr(&val, name)
            }
            Expr::Item(pair) => {
                let val = self.eval(&pair.0, frame)?;
                if let Expr::BareSlice = pair.1 {
                    return Ok(self.no_element(&val, "slice"));
                }
                if let (Val::Dict(dict), Expr::Str(key)) = (&val, &pair.1)
                    && let Some(found) = dict.get_str(key)
                {
                    return Ok(found);
                }
                let key = self.eval(&pair.1, frame)?;
                self.item(&val, &key)
            }
            Expr::Call(call) => self.call(call, frame, None),
            Expr::Filter(filter) => {
                let target = match &filter.target {
                    Some(target) => self.eval(target, frame)?,
                    None => return Err(runtime_error("a filter without anything to filter")),
                };
                let args = self.args(&filter.args, frame)?;
                self.line = filter.line;
                filters::call(self, &filter.name, target, args)
            }
            Expr::Compare(first, others) if others.len() == 1 => {
                let left = self.eval(first, frame)?;
                let Some((op, right)) = others.first() else { return Ok(left) };
                let right = self.eval(right, frame)?;
                self.compare(*op, &left, &right).map(Val::Bool)
            }
            _ => self.eval_rarer(expr, frame),
        }
    }

    /// The rest, apart, so that deep expressions take little stack.
    fn eval_rarer(&mut self, expr: &Expr, frame: &Rc<Frame>) -> Res<Val> {
        let _level = budget::deeper()?;
        match expr {
            Expr::And(pair) => {
                let left = self.eval(&pair.0, frame)?;
                if ops::truth(&left)? { self.eval(&pair.1, frame) } else { Ok(left) }
            }
            Expr::Or(pair) => {
                let left = self.eval(&pair.0, frame)?;
                if ops::truth(&left)? { Ok(left) } else { self.eval(&pair.1, frame) }
            }
            Expr::Not(inner) => {
                let val = self.eval(inner, frame)?;
                Ok(Val::Bool(!ops::truth(&val)?))
            }
            Expr::Neg(inner) | Expr::Pos(inner) => {
                let val = self.eval(inner, frame)?;
                ops::sign(&val, matches!(expr, Expr::Neg(_)))
            }
            Expr::Bin(op, pair) => {
                let left = self.eval(&pair.0, frame)?;
                let right = self.eval(&pair.1, frame)?;
                ops::binary(*op, &left, &right)
            }
            Expr::Compare(first, others) => {
                let mut left = self.eval(first, frame)?;
                let mut holds = true;
                for (op, right) in others {
                    let right = self.eval(right, frame)?;
                    holds = self.compare(*op, &left, &right)?;
                    if !holds {
                        break;
                    }
                    left = right;
                }
                Ok(Val::Bool(holds))
            }
            Expr::Concat(parts) => {
                let mut text = String::new();
                let vals = self.eval_all(parts, frame)?;
                for val in &vals {
                    match val.as_str() {
                        Some(part) => {
                            budget::room(part.len())?;
                            text.push_str(part);
                        }
                        None => text.push_str(&repr::str(val)?),
                    }
                }
                Ok(Val::str(text))
            }
            Expr::Cond(cond) => {
                let test = self.eval(&cond.test, frame)?;
                if ops::truth(&test)? {
                    return self.eval(&cond.then, frame);
                }
                match &cond.or_else {
                    Some(or_else) => self.eval(or_else, frame),
                    // Jinja makes this one lenient, whatever the environment says.
                    None => Ok(Val::undef(
                        false,
                        "the inline if-expression evaluated to false and no else section was defined.",
                    )),
                }
            }
            Expr::Test(test) => {
                let target = self.eval(&test.target, frame)?;
                let args = self.args(&test.args, frame)?;
                self.line = test.line;
                is::call(self, &test.name, &target, args).map(Val::Bool)
            }
            Expr::List(items) => Ok(Val::list(self.eval_all(items, frame)?)),
            Expr::Tuple(items) => Ok(Val::tuple(self.eval_all(items, frame)?)),
            Expr::Dict(items) => {
                let mut map = OrderedMap::with_capacity(items.len());
                for (key, value) in items {
                    let key = self.eval(key, frame)?;
                    let value = self.eval(value, frame)?;
                    // An existing key keeps its first spelling, as in Python.
                    map.insert(key.key()?, value);
                }
                Ok(Val::dict(map))
            }
            Expr::Slice(slice) => {
                let val = self.eval(&slice.0, frame)?;
                let mut bounds = [None, None, None];
                for (bound, part) in bounds.iter_mut().zip(&slice.1) {
                    if let Some(part) = part {
                        *bound = match self.eval(part, frame)? {
                            Val::None => None,
                            val => Some(val),
                        };
                    }
                }
                access::slice(&val, &bounds)
            }
            other => self.eval(other, frame),
        }
    }

    fn eval_all(&mut self, exprs: &[Expr], frame: &Rc<Frame>) -> Res<Vec<Val>> {
        let mut vals = Vec::with_capacity(exprs.len());
        for expr in exprs {
            vals.push(self.eval(expr, frame)?);
        }
        Ok(vals)
    }

    pub(crate) fn compare(&mut self, op: CmpOp, left: &Val, right: &Val) -> Res<bool> {
        match op {
            CmpOp::In => self.contains(right, left),
            CmpOp::NotIn => self.contains(right, left).map(|found| !found),
            op => ops::compare(op, left, right),
        }
    }

    pub(crate) fn args(&mut self, args: &CallArgs, frame: &Rc<Frame>) -> Res<Args> {
        let mut made = Args { pos: self.eval_all(&args.pos, frame)?, kw: Vec::with_capacity(args.kw.len()) };
        for (name, expr) in &args.kw {
            let val = self.eval(expr, frame)?;
            made.kw.push((Text::clone(name), val));
        }
        if let Some(star) = &args.star {
            let val = self.eval(star, frame)?;
            made.pos.extend(self.collect(&val)?);
        }
        if let Some(star_star) = &args.star_star {
            let val = self.eval(star_star, frame)?;
            let Val::Dict(dict) = &val else {
                if let Val::Undef(undef) = &val {
                    undef.check()?;
                }
                return Err(type_error(format!(
                    "argument after ** must be a mapping, not {}",
                    val.type_name()
                )));
            };
            for (key, val) in dict.pairs() {
                let Some(name) = key.as_str() else { return Err(type_error("keywords must be strings")) };
                if made.kw.iter().any(|(other, _)| **other == *name) {
                    return Err(type_error(format!("got multiple values for keyword argument '{name}'")));
                }
                made.kw.push((Text::from(name), val));
            }
        }
        Ok(made)
    }

    /// A call, perhaps with the body of a `call` block.
    pub(super) fn call_expr(&mut self, expr: &Expr, frame: &Rc<Frame>, caller: Option<Val>) -> Res<Val> {
        match expr {
            Expr::Call(call) => self.call(call, frame, caller),
            other => self.eval(other, frame),
        }
    }

    fn call(&mut self, call: &Call, frame: &Rc<Frame>, caller: Option<Val>) -> Res<Val> {
        let _level = budget::deeper()?;
        // A method that is called right away need not become a value.
        let method = match &call.callee {
            Expr::Attr(inner, name) => {
                let val = self.eval(inner, frame)?;
                match access::method_name(&val, name) {
                    Some(method) => Some((val, method)),
                    None => {
                        let callee = self.attr(&val, name)?;
                        return self.call_with(&callee, call, frame, caller);
                    }
                }
            }
            _ => None,
        };
        match method {
            Some((val, method)) => {
                let mut args = self.args(&call.args, frame)?;
                args.kw.extend(caller.map(|caller| (Text::from("caller"), caller)));
                self.line = call.line;
                self.call_method(&val, method, args)
            }
            None => {
                let callee = self.eval(&call.callee, frame)?;
                self.call_with(&callee, call, frame, caller)
            }
        }
    }

    fn call_with(&mut self, callee: &Val, call: &Call, frame: &Rc<Frame>, caller: Option<Val>) -> Res<Val> {
        let mut args = self.args(&call.args, frame)?;
        args.kw.extend(caller.map(|caller| (Text::from("caller"), caller)));
        self.line = call.line;
        self.call_value(callee, args, frame)
    }

    /// The filters of a block, over what the block printed.
    pub(crate) fn filter_chain(&mut self, filter: &Expr, captured: Val, frame: &Rc<Frame>) -> Res<Val> {
        let Expr::Filter(filter) = filter else { return self.eval(filter, frame) };
        let target = match &filter.target {
            Some(target) => self.filter_chain(target, captured, frame)?,
            None => captured,
        };
        let args = self.args(&filter.args, frame)?;
        self.line = filter.line;
        filters::call(self, &filter.name, target, args)
    }

    /// A mapping out of pairs.
    pub(crate) fn dict_of(pairs: impl IntoIterator<Item = (&'static str, Val)>) -> Val {
        Val::dict(pairs.into_iter().map(|(key, val)| (Hashed(Val::Str(Text::from(key))), val)).collect())
    }
}
