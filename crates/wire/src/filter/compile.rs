//! Compiles the source of a condition to its tree. minijinja parses it.

use std::borrow::Cow;

use minijinja::machinery::ast::{self, BinOpKind, CallArg, CompareOpKind, Expr, UnaryOpKind};
use minijinja::value::ValueKind;
use salt_sls::Glob;
use salt_sls::jinja::bounded::BoundedSource;

use super::node::{Comparison, ConditionError, Filter, Node, Test};
use super::value::Value;
use saltcellar_base::limits::FILTER_TEXT_BYTES_MAX;

const NAMES: &str = "data, tag";
const FILTERS: &str = "default, length, lower, upper";
const TESTS: &str = "boolean, containing, defined, endingwith, false, mapping, matching, none, number, sequence, startingwith, string, true, \
                     undefined";

/// Compiles an expression.
pub(super) fn compile(text: &str) -> Result<Node, ConditionError> {
    let at_start = |what: String| ConditionError {
        line: 1,
        column: 1,
        what,
    };

    if text.trim().is_empty() {
        return Err(at_start(
            "empty: expected an expression over `tag` and `data`".to_owned(),
        ));
    }
    if text.len() > FILTER_TEXT_BYTES_MAX {
        return Err(at_start(format!(
            "longer than {FILTER_TEXT_BYTES_MAX} bytes"
        )));
    }

    // Measured first, because minijinja's parser recurses without a limit.
    let source =
        BoundedSource::expression(text).map_err(|error| at(text, error.offset, error.what))?;
    let tree = source
        .parse_expression()
        .map_err(|error| syntax_error(&source, &error))?;

    let compiler = Compiler { text };
    compiler.node(&tree)
}

fn detail(error: &minijinja::Error) -> String {
    error
        .detail()
        .map_or_else(|| error.kind().to_string(), str::to_owned)
}

/// minijinja reports the line only. The offending token is the last token of the shortest prefix of
/// the source that fails with an error other than an early end.
fn syntax_error(source: &BoundedSource<'_>, error: &minijinja::Error) -> ConditionError {
    let text = source.text();
    let mut end = 0;
    for token in source.tokens() {
        let Ok((_, span)) = token else {
            // The lexer fails here, before the parser sees anything.
            let rest = text.get(end..).unwrap_or_default();
            return at(
                text,
                end + (rest.len() - rest.trim_start().len()),
                detail(error),
            );
        };
        end = span.end_offset as usize;

        // The text can be cut here unless this is within a character.
        let Some(part) = source.up_to(end) else {
            continue;
        };

        if part
            .parse_expression()
            .is_err_and(|found| detail(&found) == detail(error) && !is_early_end(&found))
        {
            return at(text, span.start_offset as usize, detail(error));
        }
    }

    at(text, text.len(), detail(error))
}

fn is_early_end(error: &minijinja::Error) -> bool {
    error
        .detail()
        .is_some_and(|detail| detail.contains("unexpected end of input"))
}

fn at(text: &str, offset: usize, what: String) -> ConditionError {
    let before = text.get(..offset).unwrap_or(text);
    let (line, start) = (
        before.matches('\n').count() + 1,
        before.rfind('\n').map_or(0, |n| n + 1),
    );
    ConditionError {
        line,
        column: before.get(start..).unwrap_or_default().chars().count() + 1,
        what,
    }
}

struct Compiler<'t> {
    text: &'t str,
}

impl Compiler<'_> {
    fn refuse<T>(&self, expr: &Expr<'_>, what: impl Into<String>) -> Result<T, ConditionError> {
        Err(at(
            self.text,
            expr.span().start_offset as usize,
            what.into(),
        ))
    }

    fn boxed(&self, expr: &Expr<'_>) -> Result<Box<Node>, ConditionError> {
        self.node(expr).map(Box::new)
    }

    /// The tree of an expression. It recurses along the source, so its own frame must stay small:
    /// each construct is a separate function.
    fn node(&self, expr: &Expr<'_>) -> Result<Node, ConditionError> {
        match expr {
            Expr::Var(name) => self.name(expr, name.id),
            Expr::Const(constant) => self.constant(expr, &constant.value),
            Expr::List(list) => self.list(&list.items),
            Expr::Tuple(tuple) => self.list(&tuple.items),
            Expr::UnaryOp(op) => self.unary(expr, op),
            Expr::BinOp(op) => self.binary(expr, op),
            Expr::Compare(chain) => self.chain(chain),
            Expr::IfExpr(choice) => self.choice(choice),
            Expr::GetAttr(member) => self.attribute(member),
            Expr::GetItem(member) => self.item(member),
            Expr::Test(test) => self.tested(expr, test),
            Expr::Filter(filter) => self.filtered(expr, filter),
            // Whatever could loop or allocate without a limit is left out.
            Expr::Call(_) => self.refuse(
                expr,
                "calls are not supported; use tests (`is`) and filters (`|`)",
            ),
            Expr::Slice(_) => self.refuse(expr, "slices are not supported"),
            Expr::Map(_) => self.refuse(expr, "map literals are not supported"),
        }
    }

    fn name(&self, expr: &Expr<'_>, name: &str) -> Result<Node, ConditionError> {
        match name {
            "tag" => Ok(Node::Tag),
            "data" => Ok(Node::Data),
            other => self.refuse(expr, format!("unknown name `{other}`; available: {NAMES}")),
        }
    }

    fn constant(&self, expr: &Expr<'_>, value: &minijinja::Value) -> Result<Node, ConditionError> {
        match plain(value) {
            Some(value) => Ok(Node::Constant(value)),
            None => self.refuse(expr, "constants of this type are not supported"),
        }
    }

    fn list(&self, items: &[Expr<'_>]) -> Result<Node, ConditionError> {
        Ok(Node::List(self.nodes(items)?))
    }

    fn unary(&self, expr: &Expr<'_>, op: &ast::UnaryOp<'_>) -> Result<Node, ConditionError> {
        match op.op {
            UnaryOpKind::Not => Ok(Node::Not(self.boxed(&op.expr)?)),
            UnaryOpKind::Neg => match *self.boxed(&op.expr)? {
                Node::Constant(Value::Int(n)) => Ok(Node::Constant(Value::Int(n.saturating_neg()))),
                Node::Constant(Value::Float(x)) => Ok(Node::Constant(Value::Float(-x))),
                _ => self.refuse(expr, "operator `-` is supported only in front of a number"),
            },
        }
    }

    fn binary(&self, expr: &Expr<'_>, op: &ast::BinOp<'_>) -> Result<Node, ConditionError> {
        let comparison = match op.op {
            BinOpKind::ScAnd => {
                return Ok(Node::And(self.boxed(&op.left)?, self.boxed(&op.right)?));
            }
            BinOpKind::ScOr => {
                return Ok(Node::Or(self.boxed(&op.left)?, self.boxed(&op.right)?));
            }
            BinOpKind::Eq => Comparison::Equal,
            BinOpKind::Ne => Comparison::NotEqual,
            BinOpKind::Lt => Comparison::Less,
            BinOpKind::Lte => Comparison::LessOrEqual,
            BinOpKind::Gt => Comparison::Greater,
            BinOpKind::Gte => Comparison::GreaterOrEqual,
            BinOpKind::In => Comparison::In,
            other => {
                let what = format!("operator `{}` is not supported", operator(other));
                return self.refuse(expr, what);
            }
        };

        let left = self.boxed(&op.left)?;
        // The parser knows two forms, for one comparison and for several. Here both are a chain.
        let right = self.nodes(std::slice::from_ref(&op.right))?;
        let rest = right.into_iter().map(|right| (comparison, right)).collect();
        Ok(Node::Compare(left, rest))
    }

    fn chain(&self, chain: &ast::Compare<'_>) -> Result<Node, ConditionError> {
        let mut rest = Vec::new();
        for op in &chain.ops {
            rest.push((comparison(op.op), self.node(&op.expr)?));
        }
        Ok(Node::Compare(self.boxed(&chain.expr)?, rest))
    }

    fn choice(&self, choice: &ast::IfExpr<'_>) -> Result<Node, ConditionError> {
        let other = match &choice.false_expr {
            Some(other) => self.node(other)?,
            None => Node::Constant(Value::Undefined),
        };
        let parts = [
            self.node(&choice.test_expr)?,
            self.node(&choice.true_expr)?,
            other,
        ];
        Ok(Node::If(Box::new(parts)))
    }

    fn attribute(&self, member: &ast::GetAttr<'_>) -> Result<Node, ConditionError> {
        let key = Node::Constant(Value::Text(Cow::Owned(member.name.to_owned())));
        Ok(Node::Member(self.boxed(&member.expr)?, Box::new(key)))
    }

    fn item(&self, member: &ast::GetItem<'_>) -> Result<Node, ConditionError> {
        let key = self.boxed(&member.subscript_expr)?;
        Ok(Node::Member(self.boxed(&member.expr)?, key))
    }

    fn tested(&self, expr: &Expr<'_>, test: &ast::Test<'_>) -> Result<Node, ConditionError> {
        let of = self.boxed(&test.expr)?;
        Ok(Node::Test(self.test(expr, test.name, &test.args)?, of))
    }

    fn filtered(&self, expr: &Expr<'_>, filter: &ast::Filter<'_>) -> Result<Node, ConditionError> {
        let Some(of) = &filter.expr else {
            return self.refuse(expr, "a filter without a value");
        };
        let of = self.boxed(of)?;
        Ok(Node::Filter(
            self.filter(expr, filter.name, &filter.args)?,
            of,
        ))
    }

    fn nodes(&self, items: &[Expr<'_>]) -> Result<Vec<Node>, ConditionError> {
        items.iter().map(|item| self.node(item)).collect()
    }

    fn test(
        &self,
        expr: &Expr<'_>,
        name: &str,
        args: &[CallArg<'_>],
    ) -> Result<Test, ConditionError> {
        let one = || {
            self.one_argument(expr, name, args)
                .and_then(|arg| self.boxed(arg))
        };

        let test = match name {
            "startingwith" => return Ok(Test::StartingWith(one()?)),
            "endingwith" => return Ok(Test::EndingWith(one()?)),
            "containing" => return Ok(Test::Containing(one()?)),
            // The glob is compiled once, so it must be a constant.
            "matching" => {
                return match self.node(self.one_argument(expr, name, args)?)? {
                    Node::Constant(Value::Text(glob)) => Ok(Test::Matching(Glob::new(&glob))),
                    _ => self.refuse(expr, "`matching` takes a glob in quotes"),
                };
            }
            "true" => Test::Is(true),
            "false" => Test::Is(false),
            "defined" => Test::Defined,
            "undefined" => Test::Undefined,
            "none" => Test::None,
            "string" => Test::Text,
            "number" => Test::Number,
            "boolean" => Test::Boolean,
            "mapping" => Test::Map,
            "sequence" => Test::List,
            other => {
                return self.refuse(expr, format!("unknown test `{other}`; available: {TESTS}"));
            }
        };

        if args.is_empty() {
            Ok(test)
        } else {
            self.refuse(expr, format!("`{name}` takes no argument"))
        }
    }

    fn filter(
        &self,
        expr: &Expr<'_>,
        name: &str,
        args: &[CallArg<'_>],
    ) -> Result<Filter, ConditionError> {
        let filter = match name {
            "lower" => Filter::Lower,
            "upper" => Filter::Upper,
            // As in Jinja, some filters have a second name.
            "length" | "count" => Filter::Length,
            "default" | "d" => {
                return Ok(Filter::Default(
                    self.boxed(self.one_argument(expr, name, args)?)?,
                ));
            }
            other => {
                return self.refuse(
                    expr,
                    format!("unknown filter `{other}`; available: {FILTERS}"),
                );
            }
        };

        if args.is_empty() {
            Ok(filter)
        } else {
            self.refuse(expr, format!("`{name}` takes no argument"))
        }
    }

    fn one_argument<'e, 's>(
        &self,
        expr: &Expr<'_>,
        name: &str,
        args: &'e [CallArg<'s>],
    ) -> Result<&'e Expr<'s>, ConditionError> {
        match args {
            [CallArg::Pos(argument)] => Ok(argument),
            _ => self.refuse(expr, format!("`{name}` takes one argument")),
        }
    }
}

fn comparison(op: CompareOpKind) -> Comparison {
    match op {
        CompareOpKind::Eq => Comparison::Equal,
        CompareOpKind::Ne => Comparison::NotEqual,
        CompareOpKind::Lt => Comparison::Less,
        CompareOpKind::Lte => Comparison::LessOrEqual,
        CompareOpKind::Gt => Comparison::Greater,
        CompareOpKind::Gte => Comparison::GreaterOrEqual,
        CompareOpKind::In => Comparison::In,
        CompareOpKind::NotIn => Comparison::NotIn,
    }
}

fn operator(op: BinOpKind) -> &'static str {
    match op {
        BinOpKind::Add => "+",
        BinOpKind::Sub => "-",
        BinOpKind::Mul => "*",
        BinOpKind::Div => "/",
        BinOpKind::FloorDiv => "//",
        BinOpKind::Rem => "%",
        BinOpKind::Pow => "**",
        BinOpKind::Concat => "~",
        _ => "?",
    }
}

/// A constant; minijinja folds lists of constants into one.
fn plain(value: &minijinja::Value) -> Option<Value<'static>> {
    Some(match value.kind() {
        ValueKind::None => Value::Nil,
        ValueKind::Bool => Value::Bool(value.is_true()),
        ValueKind::Number if value.is_integer() => Value::Int(value.as_i64()?),
        ValueKind::Number => Value::Float(f64::try_from(value.clone()).ok()?),
        ValueKind::String => Value::Text(Cow::Owned(value.as_str()?.to_owned())),
        ValueKind::Seq => Value::List(
            value
                .try_iter()
                .ok()?
                .map(|item| plain(&item))
                .collect::<Option<_>>()?,
        ),
        _ => return None,
    })
}
