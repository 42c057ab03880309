//! Tokens to expressions.

use super::ast::{BinOp, Call, CallArgs, CmpOp, Cond, Expr, Filter, Test};
use super::lexer::Tok;
use super::parser::{Parser, describe};
use crate::limits;
use crate::sls::jinja::budget;
use crate::sls::jinja::exc::{Res, limit_error};
use crate::sls::jinja::values::val::Text;

impl Parser {
    /// Expressions with commas between, or one alone.
    pub(crate) fn tuple(&mut self, with_cond: bool, end: Option<&str>, parentheses: bool) -> Res<Expr> {
        let mut items = Vec::new();
        let mut is_tuple = false;
        loop {
            if !items.is_empty() {
                self.expect_op(",")?;
            }
            if self.tuple_ends(end) {
                break;
            }
            let before = self.deep;
            items.push(self.expression(with_cond)?);
            if items.len() > 1 {
                self.deep = self.deep.max(before);
            }
            if !self.is_op(",") {
                break;
            }
            is_tuple = true;
        }
        if !is_tuple {
            if let Some(item) = items.pop() {
                return Ok(item);
            }
            self.deep = 0;
            if !parentheses {
                return Err(self
                    .fail_here(format!("Expected an expression, got '{}'", describe(&self.current().kind))));
            }
        }
        self.nest(0)?;
        Ok(Expr::Tuple(items))
    }

    /// What was just parsed lies in something, beside something of depth `beside`.
    fn nest(&mut self, beside: u32) -> Res<()> {
        self.deep = self.deep.max(beside) + 1;
        if self.deep > limits::JINJA_DEPTH_MAX {
            return Err(limit_error(format!(
                "an expression nests more than {} levels",
                limits::JINJA_DEPTH_MAX
            )));
        }
        Ok(())
    }

    pub(crate) fn expression(&mut self, with_cond: bool) -> Res<Expr> {
        let _level = budget::deeper()?;
        let mut expr = self.or()?;
        while with_cond && self.skip_name("if") {
            let mut before = self.deep;
            let test = self.or()?;
            before = before.max(self.deep);
            let or_else = if self.skip_name("else") { Some(self.expression(true)?) } else { None };
            self.nest(before)?;
            expr = Expr::Cond(Box::new(Cond { test, then: expr, or_else }));
        }
        Ok(expr)
    }

    fn or(&mut self) -> Res<Expr> {
        let mut left = self.and()?;
        while self.skip_name("or") {
            let before = self.deep;
            left = Expr::Or(Box::new((left, self.and()?)));
            self.nest(before)?;
        }
        Ok(left)
    }

    fn and(&mut self) -> Res<Expr> {
        let mut left = self.not()?;
        while self.skip_name("and") {
            let before = self.deep;
            left = Expr::And(Box::new((left, self.not()?)));
            self.nest(before)?;
        }
        Ok(left)
    }

    fn not(&mut self) -> Res<Expr> {
        if self.skip_name("not") {
            let _level = budget::deeper()?;
            let inner = self.not()?;
            self.nest(0)?;
            return Ok(Expr::Not(Box::new(inner)));
        }
        self.compare()
    }

    fn compare(&mut self) -> Res<Expr> {
        let expr = self.sum()?;
        let mut ops = Vec::new();
        loop {
            let op = match &self.current().kind {
                Tok::Op("==") => CmpOp::Eq,
                Tok::Op("!=") => CmpOp::Ne,
                Tok::Op("<") => CmpOp::Lt,
                Tok::Op("<=") => CmpOp::Le,
                Tok::Op(">") => CmpOp::Gt,
                Tok::Op(">=") => CmpOp::Ge,
                Tok::Name(name) if name == "in" => CmpOp::In,
                Tok::Name(name)
                    if name == "not" && matches!(&self.ahead().kind, Tok::Name(name) if name == "in") =>
                {
                    self.pos += 1;
                    CmpOp::NotIn
                }
                _ => break,
            };
            self.pos += 1;
            let before = self.deep;
            ops.push((op, self.sum()?));
            self.deep = self.deep.max(before);
        }
        if ops.is_empty() {
            return Ok(expr);
        }
        self.nest(0)?;
        Ok(Expr::Compare(Box::new(expr), ops))
    }

    fn sum(&mut self) -> Res<Expr> {
        let mut left = self.concat()?;
        loop {
            let op = match self.current().kind {
                Tok::Op("+") => BinOp::Add,
                Tok::Op("-") => BinOp::Sub,
                _ => return Ok(left),
            };
            self.pos += 1;
            let before = self.deep;
            left = Expr::Bin(op, Box::new((left, self.concat()?)));
            self.nest(before)?;
        }
    }

    fn concat(&mut self) -> Res<Expr> {
        let first = self.product()?;
        if !self.is_op("~") {
            return Ok(first);
        }
        let mut parts = vec![first];
        while self.skip_op("~") {
            let before = self.deep;
            parts.push(self.product()?);
            self.deep = self.deep.max(before);
        }
        self.nest(0)?;
        Ok(Expr::Concat(parts))
    }

    fn product(&mut self) -> Res<Expr> {
        let mut left = self.power()?;
        loop {
            let op = match self.current().kind {
                Tok::Op("*") => BinOp::Mul,
                Tok::Op("/") => BinOp::Div,
                Tok::Op("//") => BinOp::FloorDiv,
                Tok::Op("%") => BinOp::Mod,
                _ => return Ok(left),
            };
            self.pos += 1;
            let before = self.deep;
            left = Expr::Bin(op, Box::new((left, self.power()?)));
            self.nest(before)?;
        }
    }

    fn power(&mut self) -> Res<Expr> {
        let mut left = self.unary(true)?;
        while self.skip_op("**") {
            let before = self.deep;
            left = Expr::Bin(BinOp::Pow, Box::new((left, self.unary(true)?)));
            self.nest(before)?;
        }
        Ok(left)
    }

    fn unary(&mut self, with_filter: bool) -> Res<Expr> {
        let _level = budget::deeper()?;
        let expr = if self.skip_op("-") {
            let inner = self.unary(false)?;
            self.nest(0)?;
            Expr::Neg(Box::new(inner))
        } else if self.skip_op("+") {
            let inner = self.unary(false)?;
            self.nest(0)?;
            Expr::Pos(Box::new(inner))
        } else {
            self.primary()?
        };
        let expr = self.postfix(expr)?;
        if with_filter { self.filters(expr) } else { Ok(expr) }
    }

    fn primary(&mut self) -> Res<Expr> {
        let kind = self.current().kind.clone();
        self.deep = 0;
        let expr = match kind {
            Tok::Name(name) => match name.as_str() {
                "true" | "True" => Expr::Bool(true),
                "false" | "False" => Expr::Bool(false),
                "none" | "None" => Expr::None,
                _ => Expr::Name(Text::from(name)),
            },
            Tok::Str(mut text) => {
                self.pos += 1;
                while let Tok::Str(more) = &self.current().kind {
                    text.push_str(more);
                    self.pos += 1;
                }
                return Ok(Expr::Str(Text::from(text)));
            }
            Tok::Int(i) => Expr::Int(i),
            Tok::Float(f) => Expr::Float(f),
            Tok::Op("(") => {
                self.pos += 1;
                let expr = self.tuple(true, None, true)?;
                self.expect_op(")")?;
                return Ok(expr);
            }
            Tok::Op("[") => return self.list(),
            Tok::Op("{") => return self.dict(),
            other => return Err(self.fail_here(format!("unexpected '{}'", describe(&other)))),
        };
        self.pos += 1;
        Ok(expr)
    }

    fn list(&mut self) -> Res<Expr> {
        self.expect_op("[")?;
        let mut items = Vec::new();
        while !self.is_op("]") {
            if !items.is_empty() {
                self.expect_op(",")?;
            }
            if self.is_op("]") {
                break;
            }
            let before = self.deep;
            items.push(self.expression(true)?);
            self.deep = self.deep.max(before);
        }
        self.expect_op("]")?;
        self.nest(0)?;
        Ok(Expr::List(items))
    }

    fn dict(&mut self) -> Res<Expr> {
        self.expect_op("{")?;
        let mut items = Vec::new();
        while !self.is_op("}") {
            if !items.is_empty() {
                self.expect_op(",")?;
            }
            if self.is_op("}") {
                break;
            }
            let mut before = self.deep;
            let key = self.expression(true)?;
            before = before.max(self.deep);
            self.expect_op(":")?;
            items.push((key, self.expression(true)?));
            self.deep = self.deep.max(before);
        }
        self.expect_op("}")?;
        self.nest(0)?;
        Ok(Expr::Dict(items))
    }

    fn postfix(&mut self, mut expr: Expr) -> Res<Expr> {
        loop {
            let before = self.deep;
            expr = if self.skip_op(".") {
                match self.current().kind.clone() {
                    Tok::Name(name) => {
                        self.pos += 1;
                        Expr::Attr(Box::new(expr), Text::from(name))
                    }
                    Tok::Int(i) => {
                        self.pos += 1;
                        Expr::Item(Box::new((expr, Expr::Int(i))))
                    }
                    _ => return Err(self.fail_here("expected name or number")),
                }
            } else if self.is_op("[") {
                self.pos += 1;
                self.subscript(expr)?
            } else if self.is_op("(") {
                self.call(expr)?
            } else {
                return Ok(expr);
            };
            self.nest(before)?;
        }
    }

    fn filters(&mut self, mut expr: Expr) -> Res<Expr> {
        loop {
            let before = self.deep;
            expr = if self.is_op("|") {
                match self.filter_chain(Some(expr), false)? {
                    Some(expr) => expr,
                    None => return Err(self.fail_here("expected a filter")),
                }
            } else if self.is_name("is") {
                self.test(expr)?
            } else if self.is_op("(") {
                self.call(expr)?
            } else {
                return Ok(expr);
            };
            self.nest(before)?;
        }
    }

    fn subscript(&mut self, expr: Expr) -> Res<Expr> {
        let mut slices: Vec<[Option<Expr>; 3]> = Vec::new();
        let mut items = Vec::new();
        let mut count = 0;
        let mut deepest = self.deep;
        while !self.is_op("]") {
            deepest = deepest.max(self.deep);
            if count > 0 {
                self.expect_op(",")?;
            }
            count += 1;
            let start = if self.is_op(":") { None } else { Some(self.expression(true)?) };
            if !self.skip_op(":") {
                items.extend(start);
                continue;
            }
            let part = |parser: &mut Parser| -> Res<Option<Expr>> {
                if parser.is_op("]") || parser.is_op(",") || parser.is_op(":") {
                    Ok(None)
                } else {
                    parser.expression(true).map(Some)
                }
            };
            let stop = part(self)?;
            let step = if self.skip_op(":") { part(self)? } else { None };
            slices.push([start, stop, step]);
        }
        self.expect_op("]")?;
        self.nest(deepest)?;
        Ok(match (count, slices.pop(), items.pop()) {
            (1, Some(slice), _) => Expr::Slice(Box::new((expr, slice))),
            (1, None, Some(item)) => Expr::Item(Box::new((expr, item))),
            (_, Some(_), _) => Expr::Item(Box::new((expr, Expr::BareSlice))),
            (_, None, last) => {
                items.extend(last);
                Expr::Item(Box::new((expr, Expr::Tuple(items))))
            }
        })
    }

    fn call(&mut self, callee: Expr) -> Res<Expr> {
        let line = self.line();
        let args = self.call_args()?;
        Ok(Expr::Call(Box::new(Call { line, callee, args })))
    }

    fn call_args(&mut self) -> Res<CallArgs> {
        self.expect_op("(")?;
        let mut args = CallArgs::default();
        let mut comma = false;
        let mut deepest = self.deep;
        while !self.is_op(")") {
            deepest = deepest.max(self.deep);
            if comma {
                self.expect_op(",")?;
                if self.is_op(")") {
                    break;
                }
            }
            let invalid = "invalid syntax for function call expression";
            if self.skip_op("*") {
                if args.star.is_some() || args.star_star.is_some() {
                    return Err(self.fail_here(invalid));
                }
                args.star = Some(self.expression(true)?);
            } else if self.skip_op("**") {
                if args.star_star.is_some() {
                    return Err(self.fail_here(invalid));
                }
                args.star_star = Some(self.expression(true)?);
            } else if matches!(self.current().kind, Tok::Name(_)) && self.ahead().kind == Tok::Op("=") {
                if args.star_star.is_some() {
                    return Err(self.fail_here(invalid));
                }
                let name = self.name()?;
                self.pos += 1;
                let value = self.expression(true)?;
                if args.kw.iter().any(|(other, _)| *other == name) {
                    return Err(self.fail_here(format!("keyword argument repeated: {name}")));
                }
                args.kw.push((name, value));
            } else {
                if args.star.is_some() || args.star_star.is_some() || !args.kw.is_empty() {
                    return Err(self.fail_here(invalid));
                }
                args.pos.push(self.expression(true)?);
            }
            comma = true;
        }
        self.expect_op(")")?;
        self.nest(deepest)?;
        Ok(args)
    }

    fn dotted_name(&mut self) -> Res<Text> {
        let mut name = self.name()?.to_string();
        while self.skip_op(".") {
            name.push('.');
            name.push_str(&self.name()?);
        }
        Ok(Text::from(name))
    }

    /// Filters one after the other. `inline`: the first has no `|` before it.
    pub(crate) fn filter_chain(&mut self, target: Option<Expr>, mut inline: bool) -> Res<Option<Expr>> {
        let mut target = target;
        while inline || self.is_op("|") {
            if !inline {
                self.pos += 1;
            }
            inline = false;
            let before = self.deep;
            let line = self.line();
            let name = self.dotted_name()?;
            let args = if self.is_op("(") { self.call_args()? } else { CallArgs::default() };
            target = Some(Expr::Filter(Box::new(Filter { line, name, target, args })));
            self.nest(before)?;
        }
        Ok(target)
    }

    fn test(&mut self, target: Expr) -> Res<Expr> {
        let line = self.line();
        self.pos += 1;
        let negated = self.skip_name("not");
        let name = self.dotted_name()?;
        let args = match &self.current().kind {
            Tok::Op("(") => self.call_args()?,
            Tok::Name(name) if name == "is" => {
                return Err(self.fail_here("You cannot chain multiple tests with is"));
            }
            Tok::Name(name) if !matches!(name.as_str(), "else" | "or" | "and") => self.one_arg()?,
            Tok::Str(_) | Tok::Int(_) | Tok::Float(_) | Tok::Op("[" | "{") => self.one_arg()?,
            _ => CallArgs::default(),
        };
        let test = Expr::Test(Box::new(Test { line, name, target, args }));
        Ok(if negated { Expr::Not(Box::new(test)) } else { test })
    }

    fn one_arg(&mut self) -> Res<CallArgs> {
        let arg = self.primary()?;
        let arg = self.postfix(arg)?;
        Ok(CallArgs { pos: vec![arg], ..CallArgs::default() })
    }
}
