//! What statements mention: variables, filters, tests, functions of Salt.

use super::ast::{CallArgs, Expr, Stmt, StmtKind, Target};

/// What is visited.
pub(crate) enum Seen<'a> {
    Expr(&'a Expr),
    Stmt(&'a Stmt),
}

/// Visits statements and all within. `soft`: whether they run only if a condition holds, as Jinja's compiler sees it.
pub(crate) fn visit<'a>(body: &'a [Stmt], soft: bool, see: &mut dyn FnMut(Seen<'a>, bool, u32)) {
    for stmt in body {
        see(Seen::Stmt(stmt), soft, stmt.line);
        let line = stmt.line;
        match &stmt.kind {
            StmtKind::Data(_) | StmtKind::Break | StmtKind::Continue => {}
            StmtKind::Print(expr) | StmtKind::Do(expr) | StmtKind::Extends(expr) | StmtKind::Set(_, expr) => {
                visit_expr(expr, soft, line, see);
            }
            StmtKind::Include { name, .. }
            | StmtKind::Import { name, .. }
            | StmtKind::FromImport { name, .. } => {
                visit_expr(name, soft, line, see);
            }
            StmtKind::For(for_loop) => {
                visit_expr(&for_loop.iter, soft, line, see);
                for_loop.test.iter().for_each(|test| visit_expr(test, false, line, see));
                visit(&for_loop.body, false, see);
                visit(&for_loop.or_else, false, see);
            }
            StmtKind::If { tests, or_else } => {
                for (line, test, body) in tests {
                    visit_expr(test, true, *line, see);
                    visit(body, true, see);
                }
                visit(or_else, true, see);
            }
            StmtKind::With { targets, body } => {
                targets.iter().for_each(|(_, expr)| visit_expr(expr, soft, line, see));
                visit(body, false, see);
            }
            StmtKind::Scope(body) => visit(body, false, see),
            StmtKind::SetBlock { filter, body, .. } => {
                visit(body, false, see);
                filter.iter().for_each(|filter| visit_expr(filter, false, line, see));
            }
            StmtKind::Filter { filter, body } => {
                visit(body, false, see);
                visit_expr(filter, false, line, see);
            }
            StmtKind::Macro(def) => {
                def.defaults.iter().for_each(|expr| visit_expr(expr, false, line, see));
                visit(&def.body, false, see);
            }
            StmtKind::Call { def, call } => {
                def.defaults.iter().for_each(|expr| visit_expr(expr, false, line, see));
                visit(&def.body, false, see);
                visit_expr(call, soft, line, see);
            }
            StmtKind::Block(block) => visit(&block.body, false, see),
            StmtKind::Load { body, .. } => visit(body, false, see),
            StmtKind::Profile { label, body } => {
                visit_expr(label, soft, line, see);
                visit(body, soft, see);
            }
        }
    }
}

fn visit_args<'a>(args: &'a CallArgs, soft: bool, line: u32, see: &mut dyn FnMut(Seen<'a>, bool, u32)) {
    args.pos.iter().for_each(|expr| visit_expr(expr, soft, line, see));
    args.kw.iter().for_each(|(_, expr)| visit_expr(expr, soft, line, see));
    args.star.iter().for_each(|expr| visit_expr(expr, soft, line, see));
    args.star_star.iter().for_each(|expr| visit_expr(expr, soft, line, see));
}

/// Visits an expression and all within.
pub(super) fn visit_expr<'a>(
    expr: &'a Expr,
    soft: bool,
    line: u32,
    see: &mut dyn FnMut(Seen<'a>, bool, u32),
) {
    see(Seen::Expr(expr), soft, line);
    match expr {
        Expr::None
        | Expr::Bool(_)
        | Expr::Int(_)
        | Expr::Float(_)
        | Expr::Str(_)
        | Expr::Name(_)
        | Expr::BareSlice => {}
        Expr::List(items) | Expr::Tuple(items) | Expr::Concat(items) => {
            items.iter().for_each(|item| visit_expr(item, soft, line, see));
        }
        Expr::Dict(items) => {
            for (key, value) in items {
                visit_expr(key, soft, line, see);
                visit_expr(value, soft, line, see);
            }
        }
        Expr::Attr(inner, _) | Expr::Not(inner) | Expr::Neg(inner) | Expr::Pos(inner) => {
            visit_expr(inner, soft, line, see);
        }
        Expr::Item(pair) | Expr::Bin(_, pair) | Expr::And(pair) | Expr::Or(pair) => {
            visit_expr(&pair.0, soft, line, see);
            visit_expr(&pair.1, soft, line, see);
        }
        Expr::Slice(slice) => {
            visit_expr(&slice.0, soft, line, see);
            slice.1.iter().flatten().for_each(|part| visit_expr(part, soft, line, see));
        }
        Expr::Call(call) => {
            visit_expr(&call.callee, soft, call.line, see);
            visit_args(&call.args, soft, call.line, see);
        }
        Expr::Filter(filter) => {
            filter.target.iter().for_each(|target| visit_expr(target, soft, filter.line, see));
            visit_args(&filter.args, soft, filter.line, see);
        }
        Expr::Test(test) => {
            visit_expr(&test.target, soft, test.line, see);
            visit_args(&test.args, soft, test.line, see);
        }
        Expr::Compare(first, others) => {
            visit_expr(first, soft, line, see);
            others.iter().for_each(|(_, other)| visit_expr(other, soft, line, see));
        }
        Expr::Cond(cond) => {
            visit_expr(&cond.test, true, line, see);
            visit_expr(&cond.then, true, line, see);
            cond.or_else.iter().for_each(|expr| visit_expr(expr, true, line, see));
        }
    }
}

/// Whether statements ask for this variable.
pub(crate) fn name(body: &[Stmt], name: &str) -> bool {
    let mut found = false;
    visit(body, false, &mut |seen, _, _| {
        found |= matches!(seen, Seen::Expr(Expr::Name(other)) if **other == *name);
    });
    found
}

/// Whether there is a scoped block in it.
pub(super) fn scoped_block(body: &[Stmt]) -> bool {
    let mut found = false;
    visit(body, false, &mut |seen, _, _| {
        found |= matches!(seen, Seen::Stmt(Stmt { kind: StmtKind::Block(block), .. }) if block.scoped);
    });
    found
}

/// Whether something in it assigns to this variable.
pub(super) fn stores(body: &[Stmt], name: &str) -> bool {
    fn names(target: &Target, name: &str) -> bool {
        match target {
            Target::Name(other) => **other == *name,
            Target::Attr(..) => false,
            Target::Tuple(targets) => targets.iter().any(|target| names(target, name)),
        }
    }
    let mut found = false;
    visit(body, false, &mut |seen, _, _| {
        if let Seen::Stmt(stmt) = seen {
            found |= match &stmt.kind {
                StmtKind::Set(target, _)
                | StmtKind::SetBlock { target, .. }
                | StmtKind::Load { target, .. } => names(target, name),
                StmtKind::For(for_loop) => names(&for_loop.target, name),
                _ => false,
            };
        }
    });
    found
}
