//! Translation of a syntax tree: known constructs are rebuilt with Python's semantics, all other
//! constructs are rejected.
//!
//! minijinja keeps lexing, scopes, `if`, `for`, `set`, `with`, `and`, `or`, `not` and output. Every
//! operator, lookup, call and literal of a list or dict becomes a filter of [`super::engine`].
//!
//! Before that, [`lexical`] rejects spellings that minijinja and Jinja read differently.

use std::collections::HashSet;

use minijinja::Value;
use minijinja::machinery::Span;
use minijinja::machinery::ast::{self, BinOpKind, CallArg, Expr, Spanned, Stmt, UnaryOpKind};
use minijinja::syntax::SyntaxConfig;

use super::call::is_mutating;
use super::error::NotNative;
use super::filters::{consumes, is_filter, is_lazy, is_test};
use super::{lexical, ops};

/// Variables of every template. Salt defines more.
const GIVEN: [&str; 6] = ["data", "grains", "opts", "pillar", "saltenv", "tag"];

/// Further names that Salt or Jinja define.
const RESERVED: [&str; 30] = [
    "caller",
    "context",
    "cycler",
    "dict",
    "env",
    "ifelse",
    "joiner",
    "kwargs",
    "lipsum",
    "loop",
    "namespace",
    "odict",
    "proxy",
    "raise",
    "range",
    "renderers",
    "salt",
    "self",
    "show_full_context",
    "slscolonpath",
    "sls",
    "slsdotpath",
    "slspath",
    "sls_path",
    "super",
    "tpldir",
    "tpldot",
    "tplfile",
    "tplpath",
    "varargs",
];

/// Native attributes of the variable `loop`.
const LOOP: [&str; 7] = [
    "first",
    "index",
    "index0",
    "last",
    "length",
    "revindex",
    "revindex0",
];

/// A translated template.
pub(crate) struct Translated<'s> {
    pub(crate) tree: Stmt<'s>,
    /// Whether it may change the event's data.
    pub(crate) mutates: bool,
}

/// Translates a template, or lists the constructs that are not native.
pub(crate) fn translate<'s>(
    path: &'s str,
    text: &'s str,
    syntax: &SyntaxConfig,
    functions: &[String],
) -> Result<Translated<'s>, Vec<NotNative>> {
    // Spellings first, because the tree no longer shows them.
    let source = lexical::source(text, syntax).map_err(|refused| vec![refused])?;
    let tokens = lexical::check(&source, syntax).map_err(|refused| vec![refused])?;
    let tree = source
        .parse_template(path)
        .map_err(|error| vec![lexical::syntax_error(&error)])?;

    let mut translator = Translator {
        functions,
        names: tokens.assigned,
        mutates: tokens.mutates,
        in_loop: false,
        used: HashSet::new(),
        refused: Vec::new(),
    };

    let Stmt::Template(template) = &tree else {
        return Err(vec![NotNative {
            line: 0,
            what: "a template".to_owned(),
        }]);
    };

    let children = translator.body(&template.children);
    if translator.refused.is_empty() {
        let tree = Stmt::Template(Spanned::new(ast::Template { children }, template.span()));
        Ok(Translated {
            tree,
            mutates: translator.mutates,
        })
    } else {
        Err(translator.refused)
    }
}

struct Translator<'s, 'f> {
    functions: &'f [String],
    /// Names that the file assigns.
    names: HashSet<&'s str>,
    mutates: bool,
    /// Whether `loop` is defined.
    in_loop: bool,
    /// Names used since this was last cleared.
    used: HashSet<&'s str>,
    refused: Vec<NotNative>,
}

fn constant<'s>(value: impl Into<Value>, span: Span) -> Expr<'s> {
    Expr::Const(Spanned::new(
        ast::Const {
            value: value.into(),
        },
        span,
    ))
}

fn filter<'s>(name: &'static str, of: Expr<'s>, args: Vec<Expr<'s>>, span: Span) -> Expr<'s> {
    let args = args.into_iter().map(CallArg::Pos).collect();
    Expr::Filter(Spanned::new(
        ast::Filter {
            name,
            expr: Some(of),
            args,
        },
        span,
    ))
}

fn emit(expr: Expr<'_>, span: Span) -> Stmt<'_> {
    Stmt::EmitExpr(Spanned::new(ast::EmitExpr { expr }, span))
}

fn scoped<'s>(assignments: Vec<(Expr<'s>, Expr<'s>)>, body: Vec<Stmt<'s>>, span: Span) -> Stmt<'s> {
    Stmt::WithBlock(Spanned::new(ast::WithBlock { assignments, body }, span))
}

/// Whether Jinja's compiler may fold an expression.
fn is_constant(expr: &Expr<'_>) -> bool {
    match expr {
        Expr::Const(_) => true,
        Expr::List(list) => list.items.iter().all(is_constant),
        Expr::Tuple(tuple) => tuple.items.iter().all(is_constant),
        Expr::Map(map) => map.keys.iter().chain(&map.values).all(is_constant),
        Expr::UnaryOp(op) => is_constant(&op.expr),
        Expr::BinOp(op) => is_constant(&op.left) && is_constant(&op.right),
        Expr::Filter(filter) => filter.expr.as_ref().is_none_or(is_constant),
        Expr::Test(test) => is_constant(&test.expr),
        Expr::IfExpr(choice) => is_constant(&choice.true_expr) || is_constant(&choice.test_expr),
        _ => false,
    }
}

/// `salt['module.function']`, `salt.module.function`
fn salt_function(expr: &Expr<'_>) -> Option<String> {
    let is_salt = |expr: &Expr<'_>| matches!(expr, Expr::Var(name) if name.id == "salt");
    match expr {
        Expr::GetItem(item) if is_salt(&item.expr) => match &item.subscript_expr {
            Expr::Const(name) => name.value.as_str().map(str::to_owned),
            _ => None,
        },
        Expr::GetAttr(function) => match &function.expr {
            Expr::GetAttr(module) if is_salt(&module.expr) => {
                Some(format!("{}.{}", module.name, function.name))
            }
            _ => None,
        },
        _ => None,
    }
}

impl<'s> Translator<'s, '_> {
    fn refuse(&mut self, what: impl Into<String>, span: Span) -> Expr<'s> {
        let refused = NotNative {
            line: u32::from(span.start_line),
            what: what.into(),
        };
        if !self.refused.contains(&refused) {
            self.refused.push(refused);
        }
        constant((), span)
    }

    fn body(&mut self, body: &[Stmt<'s>]) -> Vec<Stmt<'s>> {
        body.iter().filter_map(|stmt| self.stmt(stmt)).collect()
    }

    fn stmt(&mut self, stmt: &Stmt<'s>) -> Option<Stmt<'s>> {
        Some(match stmt {
            Stmt::EmitRaw(raw) => {
                Stmt::EmitRaw(Spanned::new(ast::EmitRaw { raw: raw.raw }, raw.span()))
            }
            Stmt::EmitExpr(printed) => {
                let expr = match &printed.expr {
                    // Without `else` the result is empty.
                    Expr::IfExpr(choice) if choice.false_expr.is_none() => {
                        self.choice(choice, Some(constant("", choice.span())))
                    }
                    expr => self.expr(expr),
                };
                emit(expr, printed.span())
            }
            Stmt::ForLoop(for_loop) => self.for_loop(for_loop),
            Stmt::IfCond(cond) => {
                let expr = self.expr(&cond.expr);
                let (true_body, false_body) =
                    (self.body(&cond.true_body), self.body(&cond.false_body));
                Stmt::IfCond(Spanned::new(
                    ast::IfCond {
                        expr,
                        true_body,
                        false_body,
                    },
                    cond.span(),
                ))
            }
            Stmt::WithBlock(with) => {
                let targets: Vec<_> = with
                    .assignments
                    .iter()
                    .map(|(target, _)| self.target(target))
                    .collect();
                let mut values: Vec<_> = with
                    .assignments
                    .iter()
                    .map(|(_, value)| self.expr(value))
                    .collect();

                let body = self.body(&with.body);
                let span = with.span();

                // Values are evaluated before any of the names is assigned.
                let assignments = if targets.len() > 1 {
                    if with
                        .assignments
                        .iter()
                        .any(|(target, _)| !matches!(target, Expr::Var(_)))
                    {
                        self.refuse("`with` of several names at once", span);
                    }
                    let all = filter(
                        "__tuple",
                        constant((), span),
                        std::mem::take(&mut values),
                        span,
                    );
                    vec![(
                        Expr::List(Spanned::new(ast::List { items: targets }, span)),
                        all,
                    )]
                } else {
                    targets.into_iter().zip(values).collect()
                };

                scoped(assignments, body, span)
            }
            Stmt::Set(set) => self.set(set),
            Stmt::SetBlock(set) => {
                if set.filter.is_some() || !matches!(set.target, Expr::Var(_)) {
                    self.refuse("a filter or several names of a `set` block", set.span());
                }

                let target = self.target(&set.target);
                // In a separate scope, which minijinja does not create.
                let body = vec![scoped(Vec::new(), self.body(&set.body), set.span())];
                Stmt::SetBlock(Spanned::new(
                    ast::SetBlock {
                        target,
                        filter: None,
                        body,
                    },
                    set.span(),
                ))
            }
            Stmt::Do(done) => {
                let call = self.call(&done.call, false);
                emit(filter("__void", call, Vec::new(), done.span()), done.span())
            }
            Stmt::FilterBlock(block) => {
                self.refuse("a `filter` block", block.span());
                return None;
            }
            Stmt::AutoEscape(block) => {
                self.refuse("`autoescape`", block.span());
                return None;
            }
            // Only the root of a tree is one.
            Stmt::Template(_) => return None,
            // Macros, imports and jumps: minijinja has them if another crate of the build enables its features.
            #[allow(unreachable_patterns, reason = "minijinja's features decide")]
            _ => {
                self.refuse("this statement", Span::default());
                return None;
            }
        })
    }

    fn for_loop(&mut self, for_loop: &Spanned<ast::ForLoop<'s>>) -> Stmt<'s> {
        let span = for_loop.span();
        // Its body calls the loop again.
        if for_loop.recursive {
            self.refuse("a recursive loop", span);
        }

        let is_range = matches!(&for_loop.iter, Expr::Call(call) if names(&call.expr) == ["range"]);
        // If nothing changes, it makes no difference when a generator is consumed.
        let iter = self.value(&for_loop.iter, is_range || !self.mutates);
        let iter = filter("__iter", iter, Vec::new(), span);
        let target = self.target(&for_loop.target);

        // In its condition and in `else` a loop has no variable `loop`.
        let in_loop = std::mem::replace(&mut self.in_loop, false);
        let filter_expr = for_loop.filter_expr.as_ref().map(|filter| {
            if self.mutates {
                self.refuse("a loop with `if` in a file that changes values", span);
            }

            // Collects the names of the condition alone.
            let used = std::mem::take(&mut self.used);
            let condition = self.expr(filter);
            let used = std::mem::replace(&mut self.used, used);

            // Jinja evaluates the condition in a separate function, where the file's variables may
            // have other values.
            let targets = names(&for_loop.target);
            if used
                .iter()
                .any(|name| !targets.contains(name) && !GIVEN.contains(name))
            {
                self.refuse(
                    "a loop with `if` that uses other variables of the file",
                    span,
                );
            }
            condition
        });

        self.in_loop = true;
        let mut body = self.body(&for_loop.body);
        self.in_loop = false;
        let else_body = self.body(&for_loop.else_body);
        self.in_loop = in_loop;

        // Counts the text of each iteration.
        let bytes: usize = for_loop.body.iter().map(raw_bytes).sum();
        if bytes > 0 {
            let size = constant(i64::try_from(bytes).unwrap_or(i64::MAX), span);
            body.insert(0, emit(filter("__charge", size, Vec::new(), span), span));
        }

        // In a separate scope, as in Jinja.
        let else_body = if else_body.is_empty() {
            else_body
        } else {
            vec![scoped(Vec::new(), else_body, span)]
        };

        let (recursive, rebuilt) = (false, span);
        Stmt::ForLoop(Spanned::new(
            ast::ForLoop {
                target,
                iter,
                filter_expr,
                recursive,
                body,
                else_body,
            },
            rebuilt,
        ))
    }

    fn set(&mut self, set: &Spanned<ast::Set<'s>>) -> Stmt<'s> {
        let span = set.span();
        let expr = match &set.expr {
            // A namespace is native only where it gets a name.
            Expr::Call(call) if matches!(&call.expr, Expr::Var(name) if name.id == "namespace") => {
                let args = self.args(&call.args, span);
                filter("__namespace", constant((), span), args, span)
            }
            expr => self.expr(expr),
        };

        match &set.target {
            Expr::GetAttr(member) => {
                let of = self.expr(&member.expr);
                // Only namespaces have members that can be set.
                if !matches!(member.expr, Expr::Var(_)) || ops::is_attribute(member.name) {
                    self.refuse("an assignment to this attribute", span);
                }
                emit(
                    filter(
                        "__set_member",
                        of,
                        vec![constant(member.name, span), expr],
                        span,
                    ),
                    span,
                )
            }
            target => {
                let target = self.target(target);
                Stmt::Set(Spanned::new(ast::Set { target, expr }, span))
            }
        }
    }

    /// The target of a loop, `set` or `with`: a name, or several.
    fn target(&mut self, target: &Expr<'s>) -> Expr<'s> {
        match target {
            Expr::Var(name) => {
                // The translation relies on the meaning of these names.
                if GIVEN.contains(&name.id) || RESERVED.contains(&name.id) {
                    return self.refuse(format!("a new value of {:?}", name.id), name.span());
                }
                Expr::Var(Spanned::new(ast::Var { id: name.id }, name.span()))
            }
            Expr::List(list) if list.items.len() > 1 => {
                if !list.items.iter().all(|item| matches!(item, Expr::Var(_))) {
                    self.refuse("nested targets of an assignment", list.span());
                    return Expr::List(Spanned::new(ast::List { items: Vec::new() }, list.span()));
                }
                let items = list.items.iter().map(|item| self.target(item)).collect();
                Expr::List(Spanned::new(ast::List { items }, list.span()))
            }
            other => self.refuse("this target of an assignment", other.span()),
        }
    }

    fn choice(
        &mut self,
        choice: &Spanned<ast::IfExpr<'s>>,
        otherwise: Option<Expr<'s>>,
    ) -> Expr<'s> {
        let span = choice.span();
        let (test_expr, true_expr) = (self.expr(&choice.test_expr), self.expr(&choice.true_expr));

        let false_expr = match (&choice.false_expr, otherwise) {
            (Some(expr), _) => Some(self.expr(expr)),
            (None, Some(expr)) => Some(expr),
            // The result could be undefined, which is certain only where it is printed.
            (None, None) => Some(self.refuse("an `if` without `else` in an expression", span)),
        };

        Expr::IfExpr(Spanned::new(
            ast::IfExpr {
                test_expr,
                true_expr,
                false_expr,
            },
            span,
        ))
    }

    fn expr(&mut self, expr: &Expr<'s>) -> Expr<'s> {
        self.value(expr, false)
    }

    /// An expression. `walked`: the result is consumed immediately, and may therefore be a
    /// generator in Jinja.
    fn value(&mut self, expr: &Expr<'s>, walked: bool) -> Expr<'s> {
        let span = expr.span();
        match expr {
            Expr::Var(name) => {
                self.used.insert(name.id);
                if GIVEN.contains(&name.id)
                    || (self.names.contains(name.id) && !RESERVED.contains(&name.id))
                {
                    return Expr::Var(Spanned::new(ast::Var { id: name.id }, span));
                }
                self.refuse(format!("the name {:?}", name.id), span)
            }
            Expr::Const(constant_) => {
                let value = &constant_.value;
                match (value.is_integer(), value.as_i64()) {
                    (true, Some(i)) => constant(i, span),
                    (true, None) => self.refuse("a large integer", span),
                    (false, _) => constant(value.clone(), span),
                }
            }
            Expr::Slice(slice) => {
                // Jinja folds it when it compiles.
                if is_constant(&slice.expr) {
                    return self.refuse("a slice of a literal", span);
                }

                let of = self.expr(&slice.expr);
                if slice.step.is_some() {
                    return self.refuse("a slice with a step", span);
                }

                let bounds = [&slice.start, &slice.stop];
                let bounds = bounds.map(|bound| {
                    bound
                        .as_ref()
                        .map_or_else(|| constant((), span), |bound| self.expr(bound))
                });
                filter("__slice", of, bounds.into(), span)
            }
            Expr::UnaryOp(op) => {
                let of = self.expr(&op.expr);
                match op.op {
                    UnaryOpKind::Not => Expr::UnaryOp(Spanned::new(
                        ast::UnaryOp {
                            op: UnaryOpKind::Not,
                            expr: of,
                        },
                        span,
                    )),
                    UnaryOpKind::Neg => filter("__neg", of, Vec::new(), span),
                }
            }
            Expr::BinOp(op) => self.operator(op),
            Expr::Compare(_) => self.refuse("a chain of comparisons", span),
            Expr::IfExpr(choice) => self.choice(choice, None),
            Expr::Filter(named) => self.filter(named, walked),
            Expr::Test(test) => {
                // minijinja and Jinja group these differently.
                if matches!(&test.expr, Expr::Test(_) | Expr::UnaryOp(_)) {
                    return self.refuse("a test of a test or sign", span);
                }

                let of = self.expr(&test.expr);
                let mut args = vec![constant(test.name, span)];
                for arg in &test.args {
                    match arg {
                        CallArg::Pos(Expr::UnaryOp(_)) => {
                            args.push(self.refuse("a test by a sign", span));
                        }
                        CallArg::Pos(arg) => args.push(self.expr(arg)),
                        _ => args.push(self.refuse("a test with named arguments", span)),
                    }
                }

                if !is_test(test.name, test.args.len()) {
                    return self.refuse(format!("test {:?}", test.name), span);
                }
                filter("__is", of, args, span)
            }
            Expr::GetAttr(attr) => {
                if matches!(&attr.expr, Expr::Var(name) if name.id == "loop") {
                    if !self.in_loop || !LOOP.contains(&attr.name) {
                        return self.refuse(format!("`loop.{}` here", attr.name), span);
                    }
                    let expr = Expr::Var(Spanned::new(ast::Var { id: "loop" }, span));
                    return Expr::GetAttr(Spanned::new(
                        ast::GetAttr {
                            expr,
                            name: attr.name,
                        },
                        span,
                    ));
                }

                if is_constant(&attr.expr) || ops::is_attribute(attr.name) {
                    return self.refuse(format!("the attribute {:?}", attr.name), span);
                }

                let of = self.expr(&attr.expr);
                filter("__attr", of, vec![constant(attr.name, span)], span)
            }
            Expr::GetItem(item) => {
                // Only a call of such a function is native.
                if let Some(name) = salt_function(expr) {
                    return self.refuse(format!("salt[{name:?}]"), span);
                }

                if is_constant(&item.expr) {
                    return self.refuse("a lookup in a literal", span);
                }

                let of = self.expr(&item.expr);
                let index = self.expr(&item.subscript_expr);
                filter("__item", of, vec![index], span)
            }
            Expr::Call(call) => self.call(call, walked),
            Expr::List(list) => {
                let items = list.items.iter().map(|item| self.expr(item)).collect();
                filter("__list", constant((), span), items, span)
            }
            Expr::Tuple(tuple) => {
                let items = tuple.items.iter().map(|item| self.expr(item)).collect();
                filter("__tuple", constant((), span), items, span)
            }
            Expr::Map(map) => {
                let pairs = map
                    .keys
                    .iter()
                    .zip(&map.values)
                    .flat_map(|(key, value)| [key, value]);
                let pairs = pairs.map(|part| self.expr(part)).collect();
                filter("__dict", constant((), span), pairs, span)
            }
        }
    }

    fn operator(&mut self, op: &Spanned<ast::BinOp<'s>>) -> Expr<'s> {
        let span = op.span();
        let (left, right) = (self.expr(&op.left), self.expr(&op.right));

        let name = match op.op {
            // minijinja evaluates both sides only if necessary, like Python.
            BinOpKind::ScAnd | BinOpKind::ScOr => {
                return Expr::BinOp(Spanned::new(
                    ast::BinOp {
                        op: op.op,
                        left,
                        right,
                    },
                    span,
                ));
            }
            BinOpKind::Eq => "__eq",
            BinOpKind::Ne => "__ne",
            BinOpKind::Lt => "__lt",
            BinOpKind::Lte => "__le",
            BinOpKind::Gt => "__gt",
            BinOpKind::Gte => "__ge",
            BinOpKind::Add => "__add",
            BinOpKind::Sub => "__sub",
            BinOpKind::Mul => "__mul",
            BinOpKind::FloorDiv => "__floor",
            BinOpKind::Rem => "__rem",
            BinOpKind::Div => return self.refuse("the operator `/`", span),
            BinOpKind::Pow => return self.refuse("the operator `**`", span),
            BinOpKind::Concat => "__concat",
            BinOpKind::In => "__in",
        };

        filter(name, left, vec![right], span)
    }

    fn filter(&mut self, named: &Spanned<ast::Filter<'s>>, walked: bool) -> Expr<'s> {
        let span = named.span();
        let name = named.name;
        if !is_filter(name) {
            return self.refuse(format!("filter {name:?}"), span);
        }

        // Jinja consumes a generator once; here it would be a list, which can be reread.
        if is_lazy(name) && !walked {
            return self.refuse(
                format!("a generator of the filter {name:?} that is kept"),
                span,
            );
        }

        let of = match &named.expr {
            // A filter that consumes a generator, or passes it on, may have one as its input.
            Some(of) => self.value(of, consumes(name) || is_lazy(name)),
            None => self.refuse("a filter without a value", span),
        };

        let mut args = self.args(&named.args, span);
        args.insert(0, constant(name, span));
        filter("__filter", of, args, span)
    }

    fn call(&mut self, call: &Spanned<ast::Call<'s>>, walked: bool) -> Expr<'s> {
        let span = call.span();

        if let Some(name) = salt_function(&call.expr) {
            // All other functions may have an effect.
            if !self.functions.contains(&name) {
                return self.refuse(format!("salt[{name:?}]"), span);
            }
            let mut args = self.args(&call.args, span);
            args.insert(0, constant(name, span));
            let salt = Expr::Var(Spanned::new(ast::Var { id: "salt" }, span));
            return filter("__salt", salt, args, span);
        }

        match &call.expr {
            // Only in a loop: otherwise a range shows its own type.
            Expr::Var(name) if name.id == "range" && walked => {
                let args = self.args(&call.args, span);
                filter("__range", constant((), span), args, span)
            }
            Expr::GetAttr(attr) if matches!(&attr.expr, Expr::Var(name) if name.id == "salt" || name.id == "loop") => {
                self.refuse(format!("a call of {:?}", attr.name), span)
            }
            Expr::GetAttr(attr) if is_mutating(attr.name).is_some() => {
                let of = self.expr(&attr.expr);
                let mut args = self.args(&call.args, span);
                args.insert(0, constant(attr.name, span));
                filter("__method", of, args, span)
            }
            Expr::GetAttr(attr) => self.refuse(format!("the method {:?}", attr.name), span),
            Expr::Var(name) => self.refuse(format!("the function {:?}", name.id), span),
            _ => self.refuse("this call", span),
        }
    }

    /// Arguments, encoded as [`super::call::Args`] reads them.
    fn args(&mut self, args: &[CallArg<'s>], span: Span) -> Vec<Expr<'s>> {
        let (mut pos, mut named, mut names) = (Vec::new(), Vec::new(), HashSet::new());
        for arg in args {
            match arg {
                CallArg::Pos(expr) => pos.push(self.expr(expr)),
                CallArg::Kwarg(name, expr) => {
                    // A syntax error in Python.
                    if !names.insert(*name) {
                        self.refuse(format!("the argument {name:?} twice"), span);
                    }
                    named.extend([constant(*name, span), self.expr(expr)]);
                }
                CallArg::PosSplat(_) | CallArg::KwargSplat(_) => {
                    self.refuse("arguments from a list or mapping", span);
                }
            }
        }

        let mut all = vec![constant(i64::try_from(pos.len()).unwrap_or(i64::MAX), span)];
        all.append(&mut pos);
        all.append(&mut named);
        all
    }
}

/// Maximum bytes that a statement prints, without the output of inner loops.
fn raw_bytes(stmt: &Stmt<'_>) -> usize {
    let all = |body: &[Stmt<'_>]| body.iter().map(raw_bytes).sum::<usize>();
    match stmt {
        Stmt::EmitRaw(raw) => raw.raw.len(),
        Stmt::IfCond(cond) => all(&cond.true_body).max(all(&cond.false_body)),
        Stmt::WithBlock(with) => all(&with.body),
        Stmt::SetBlock(set) => all(&set.body),
        Stmt::ForLoop(for_loop) => all(&for_loop.else_body),
        _ => 0,
    }
}

/// The names that a target assigns.
fn names<'s>(target: &Expr<'s>) -> Vec<&'s str> {
    match target {
        Expr::Var(name) => vec![name.id],
        Expr::List(list) => list.items.iter().flat_map(names).collect(),
        _ => Vec::new(),
    }
}
