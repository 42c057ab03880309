//! What a template asks for that is not there: at once where Jinja's compiler would say so, or only when somebody asks.

use super::engine::NotNative;
use super::exc::{Exc, Kind, Res, not_native as not_native_error};
use crate::sls::jinja::eval::is;
use crate::sls::jinja::filters;
use crate::sls::jinja::syntax::ast::{Expr, Stmt, StmtKind, Template};
use crate::sls::jinja::syntax::uses::{Seen, visit};

/// Jinja refuses a filter or test that it does not know, unless that stands right under a condition. Salt may know it.
pub(crate) fn names(template: &Template) -> Res<()> {
    let mut missing: Option<(String, u32)> = None;
    let mut wrong: Option<(String, u32)> = None;
    visit(&template.body, false, &mut |seen, soft, line| {
        if let Seen::Stmt(stmt) = &seen
            && matches!(stmt.kind, StmtKind::Break | StmtKind::Continue)
            && wrong.is_none()
            && !in_loop(template, stmt)
        {
            wrong = Some(("'break' or 'continue' outside of a loop".to_owned(), line));
        }
        if soft || missing.is_some() {
            return;
        }
        if let Seen::Expr(expr) = seen {
            missing = unknown(expr).map(|what| (what, line));
        }
    });
    if let Some((what, line)) = missing {
        return Err(not_native_error(what).at_line(line));
    }
    match wrong {
        Some((message, line)) => Err(Exc::new(Kind::Syntax, message).at_line(line)),
        None => Ok(()),
    }
}

/// Whether a `break` stands within a loop of its own function.
fn in_loop(template: &Template, wanted: &Stmt) -> bool {
    fn find(body: &[Stmt], wanted: &Stmt, inside: bool) -> Option<bool> {
        for stmt in body {
            if std::ptr::eq(stmt, wanted) {
                return Some(inside);
            }
            let found = match &stmt.kind {
                StmtKind::For(for_loop) => {
                    find(&for_loop.body, wanted, true).or_else(|| find(&for_loop.or_else, wanted, inside))
                }
                StmtKind::If { tests, or_else } => tests
                    .iter()
                    .find_map(|(_, _, body)| find(body, wanted, inside))
                    .or_else(|| find(or_else, wanted, inside)),
                StmtKind::With { body, .. }
                | StmtKind::Scope(body)
                | StmtKind::SetBlock { body, .. }
                | StmtKind::Filter { body, .. }
                | StmtKind::Profile { body, .. } => find(body, wanted, inside),
                StmtKind::Macro(def) => find(&def.body, wanted, false),
                StmtKind::Call { def, .. } => find(&def.body, wanted, false),
                StmtKind::Block(block) => find(&block.body, wanted, false),
                StmtKind::Load { body, .. } => find(body, wanted, false),
                _ => None,
            };
            if found.is_some() {
                return found;
            }
        }
        None
    }
    find(&template.body, wanted, false).unwrap_or(false)
}

fn unknown(expr: &Expr) -> Option<String> {
    match expr {
        Expr::Filter(filter) if !filters::known(&filter.name) => Some(format!("filter \"{}\"", filter.name)),
        Expr::Test(test) if !is::known(&test.name) => Some(format!("test \"{}\"", test.name)),
        _ => None,
    }
}

/// The function of Salt that an expression names: `salt['m.f']`, `salt.m.f`, `salt.get('m.f')`.
fn salt_function(expr: &Expr) -> Option<String> {
    let is_salt = |expr: &Expr| matches!(expr, Expr::Name(name) if &**name == "salt");
    match expr {
        Expr::Item(pair) if is_salt(&pair.0) => match &pair.1 {
            Expr::Str(fun) => Some(format!("salt[\"{fun}\"]")),
            _ => Some("salt[..]".to_owned()),
        },
        Expr::Attr(inner, fun) => match &**inner {
            Expr::Attr(salt, module) if is_salt(salt) => Some(format!("salt[\"{module}.{fun}\"]")),
            _ => None,
        },
        _ => None,
    }
}

/// Everything in a template that is not done natively, by line.
pub(crate) fn not_native(template: &Template) -> Vec<NotNative> {
    let mut found: Vec<NotNative> = Vec::new();
    visit(&template.body, false, &mut |seen, _, line| {
        if let Seen::Expr(expr) = seen
            && let Some(what) = unknown(expr).or_else(|| salt_function(expr))
        {
            let new = NotNative { line, what };
            if !found.contains(&new) {
                found.push(new);
            }
        }
    });
    found
}
