//! Tokens to statements.

use std::sync::Arc;

use super::ast::{Block, Expr, ForLoop, MacroDef, Stmt, StmtKind, Target, Template};
use super::lexer::{Tok, Token, syntax_error, tokens};
use super::uses;
use crate::sls::jinja::budget;
use crate::sls::jinja::exc::{self, Exc, Res};
use crate::sls::jinja::options::Syntax;
use crate::sls::jinja::values::val::Text;
use crate::sls::python::text;

pub(crate) struct Parser {
    pub(super) tokens: Vec<Token>,
    pub(crate) pos: usize,
    pub(crate) file: Text,
    /// How deep the expression is that was parsed last.
    pub(crate) deep: u32,
    blocks: Vec<Arc<Block>>,
}

/// Parses a template.
pub(crate) fn parse(source: &str, syntax: &Syntax, file: &Text) -> Res<Template> {
    let mut tokens = tokens(source, syntax)?;
    // Looking ahead by one never runs off the end.
    tokens.extend(tokens.last().cloned());
    let mut parser = Parser { tokens, pos: 0, file: Text::clone(file), deep: 0, blocks: Vec::new() };
    let body = parser.body(&[])?;
    if parser.current().kind != Tok::Eof {
        return Err(parser.fail_here("unexpected end of a block"));
    }
    Ok(Template { body, blocks: parser.blocks })
}

static EOF: Token = Token { line: 0, kind: Tok::Eof };

impl Parser {
    pub(super) fn current(&self) -> &Token {
        self.tokens.get(self.pos).unwrap_or(&EOF)
    }

    pub(super) fn ahead(&self) -> &Token {
        self.tokens.get(self.pos + 1).unwrap_or(&EOF)
    }

    pub(crate) fn line(&self) -> u32 {
        self.current().line
    }

    pub(super) fn next(&mut self) -> Token {
        let token = self.current().clone();
        if self.pos < self.tokens.len() {
            self.pos += 1;
        }
        token
    }

    pub(super) fn is_op(&self, op: &str) -> bool {
        matches!(self.current().kind, Tok::Op(here) if here == op)
    }

    pub(super) fn is_name(&self, name: &str) -> bool {
        matches!(&self.current().kind, Tok::Name(here) if here == name)
    }

    pub(super) fn skip_op(&mut self, op: &str) -> bool {
        let is = self.is_op(op);
        if is {
            self.pos += 1;
        }
        is
    }

    pub(super) fn skip_name(&mut self, name: &str) -> bool {
        let is = self.is_name(name);
        if is {
            self.pos += 1;
        }
        is
    }

    pub(super) fn fail_here(&self, message: impl Into<String>) -> Exc {
        syntax_error(self.line(), message)
    }

    fn unexpected(&self, expected: &str) -> Exc {
        match &self.current().kind {
            Tok::Eof => self.fail_here(format!("unexpected end of template, expected '{expected}'.")),
            kind => self.fail_here(format!("expected token '{expected}', got '{}'", describe(kind))),
        }
    }

    pub(super) fn expect_op(&mut self, op: &str) -> Res<()> {
        if self.skip_op(op) { Ok(()) } else { Err(self.unexpected(op)) }
    }

    fn expect_name(&mut self, name: &str) -> Res<()> {
        if self.skip_name(name) { Ok(()) } else { Err(self.unexpected(name)) }
    }

    pub(crate) fn name(&mut self) -> Res<Text> {
        match &self.current().kind {
            Tok::Name(name) => {
                let name = Text::from(name.as_str());
                self.pos += 1;
                Ok(name)
            }
            _ => Err(self.unexpected("name")),
        }
    }

    fn block_end(&mut self) -> Res<()> {
        if self.current().kind == Tok::BlockEnd {
            self.pos += 1;
            return Ok(());
        }
        Err(self.unexpected("end of statement block"))
    }

    /// Statements up to one of these names, which is left.
    fn body(&mut self, ends: &[&str]) -> Res<Vec<Stmt>> {
        let _level = budget::deeper()?;
        let mut body = Vec::new();
        loop {
            let line = self.line();
            match &self.current().kind {
                Tok::Eof => {
                    if ends.is_empty() {
                        return Ok(body);
                    }
                    return Err(self.fail_here(format!(
                        "Unexpected end of template. Jinja was looking for the following tags: '{}'.",
                        ends.join("' or '")
                    )));
                }
                Tok::Data(text) => {
                    let text = Text::from(text.as_str());
                    self.pos += 1;
                    body.push(Stmt { line, kind: StmtKind::Data(text) });
                }
                Tok::VarBegin => {
                    self.pos += 1;
                    let expr = self.tuple(true, None, false)?;
                    if self.current().kind != Tok::VarEnd {
                        return Err(self.unexpected("end of print statement"));
                    }
                    self.pos += 1;
                    body.push(Stmt { line, kind: StmtKind::Print(expr) });
                }
                Tok::BlockBegin => {
                    self.pos += 1;
                    if let Tok::Name(name) = &self.current().kind
                        && ends.contains(&name.as_str())
                    {
                        return Ok(body);
                    }
                    self.statement(&mut body)?;
                    self.block_end()?;
                }
                _ => return Err(self.fail_here("internal parsing error")),
            }
        }
    }

    /// The end of a tag, and the statements up to one of these names.
    fn statements(&mut self, ends: &[&str], drop: bool) -> Res<Vec<Stmt>> {
        self.skip_op(":");
        self.block_end()?;
        let body = self.body(ends)?;
        if drop {
            self.pos += 1;
        }
        Ok(body)
    }

    fn statement(&mut self, body: &mut Vec<Stmt>) -> Res<()> {
        let line = self.line();
        let Tok::Name(tag) = self.current().kind.clone() else {
            return Err(self.fail_here("tag name expected"));
        };
        self.pos += 1;
        let kind = match tag.as_str() {
            "for" => StmtKind::For(Arc::new(self.for_loop(line)?)),
            "if" => self.if_statement()?,
            "block" => {
                let block = Arc::new(self.block()?);
                if self.blocks.iter().any(|other| other.name == block.name) {
                    return Err(syntax_error(line, format!("block '{}' defined twice", block.name)));
                }
                self.blocks.push(Arc::clone(&block));
                StmtKind::Block(block)
            }
            "extends" => StmtKind::Extends(self.expression(true)?),
            "print" => {
                let mut first = true;
                while self.current().kind != Tok::BlockEnd {
                    if !first {
                        self.expect_op(",")?;
                    }
                    first = false;
                    let expr = self.expression(true)?;
                    body.push(Stmt { line, kind: StmtKind::Print(expr) });
                }
                return Ok(());
            }
            "macro" => {
                let name = self.target_name()?;
                let (args, defaults) = self.signature()?;
                let inner = self.statements(&["endmacro"], true)?;
                StmtKind::Macro(Arc::new(macro_def(Some(name), args, defaults, inner, line)?))
            }
            "call" => self.call_block(line)?,
            "filter" => {
                let filter = self.filter_chain(None, true)?;
                let inner = self.statements(&["endfilter"], true)?;
                match filter {
                    Some(filter) => StmtKind::Filter { filter, body: inner },
                    None => return Err(self.fail_here("expected a filter")),
                }
            }
            "include" => {
                let name = self.expression(true)?;
                let ignore_missing = self.is_name("ignore")
                    && matches!(&self.ahead().kind, Tok::Name(name) if name == "missing");
                if ignore_missing {
                    self.pos += 2;
                }
                let with_context = self.import_context().unwrap_or(true);
                StmtKind::Include { name, ignore_missing, with_context }
            }
            "from" => self.import_names()?,
            "import" | "import_yaml" | "import_json" | "import_text" => {
                let name = self.expression(true)?;
                self.expect_name("as")?;
                let target = self.target_name()?;
                let with_context = self.import_context().unwrap_or(false);
                let load = match tag.as_str() {
                    "import_yaml" => Some("load_yaml"),
                    "import_json" => Some("load_json"),
                    "import_text" => Some("load_text"),
                    _ => None,
                };
                StmtKind::Import { name, target, with_context, load }
            }
            "set" => {
                let target = self.target(None, true)?;
                if self.skip_op("=") {
                    StmtKind::Set(target, self.tuple(true, None, false)?)
                } else {
                    let filter = self.filter_chain(None, false)?;
                    let inner = self.statements(&["endset"], true)?;
                    StmtKind::SetBlock { target, filter, body: inner }
                }
            }
            "with" => {
                let mut targets = Vec::new();
                while self.current().kind != Tok::BlockEnd {
                    if !targets.is_empty() {
                        self.expect_op(",")?;
                    }
                    let target = self.target(None, false)?;
                    self.expect_op("=")?;
                    targets.push((target, self.expression(true)?));
                }
                StmtKind::With { targets, body: self.statements(&["endwith"], true)? }
            }
            "autoescape" => {
                let on = self.expression(true)?;
                let inner = self.statements(&["endautoescape"], true)?;
                if !matches!(on, Expr::Bool(false)) {
                    return Err(exc::not_native("autoescape"));
                }
                StmtKind::Scope(inner)
            }
            "do" => StmtKind::Do(self.tuple(true, None, false)?),
            "break" => StmtKind::Break,
            "continue" => StmtKind::Continue,
            "load_yaml" | "load_json" | "load_text" => {
                let filter = match tag.as_str() {
                    "load_yaml" => "load_yaml",
                    "load_json" => "load_json",
                    _ => "load_text",
                };
                self.expect_name("as")?;
                let target = self.target(None, false)?;
                let inner = self.statements(&["endload"], true)?;
                StmtKind::Load { target, filter, body: inner }
            }
            "profile" => {
                self.expect_name("as")?;
                let label = self.expression(true)?;
                StmtKind::Profile { label, body: self.statements(&["endprofile"], true)? }
            }
            other => {
                return Err(syntax_error(line, format!("Encountered unknown tag '{other}'.")));
            }
        };
        body.push(Stmt { line, kind });
        Ok(())
    }

    fn for_loop(&mut self, line: u32) -> Res<ForLoop> {
        let target = self.target(Some("in"), false)?;
        self.expect_name("in")?;
        let iter = self.tuple(false, Some("recursive"), false)?;
        let test = if self.skip_name("if") { Some(self.expression(true)?) } else { None };
        let recursive = self.skip_name("recursive");
        let body = self.statements(&["endfor", "else"], false)?;
        let or_else = if matches!(self.next().kind, Tok::Name(name) if name == "endfor") {
            Vec::new()
        } else {
            self.statements(&["endfor"], true)?
        };
        if target_names(&target).any(|name| name == "loop") {
            return Err(syntax_error(line, "Can't assign to special loop variable in for-loop target"));
        }
        let uses_loop = recursive || uses::name(&body, "loop") || uses::scoped_block(&body);
        if uses::stores(&body, "loop") {
            return Err(syntax_error(line, "Can't assign to special loop variable in for-loop target"));
        }
        Ok(ForLoop { target, iter, test, recursive, body, or_else, uses_loop })
    }

    fn if_statement(&mut self) -> Res<StmtKind> {
        let mut tests = Vec::new();
        loop {
            let line = self.line();
            let test = self.tuple(false, None, false)?;
            let body = self.statements(&["elif", "else", "endif"], false)?;
            tests.push((line, test, body));
            match self.next().kind {
                Tok::Name(name) if name == "elif" => {}
                Tok::Name(name) if name == "else" => {
                    return Ok(StmtKind::If { tests, or_else: self.statements(&["endif"], true)? });
                }
                _ => return Ok(StmtKind::If { tests, or_else: Vec::new() }),
            }
        }
    }

    fn block(&mut self) -> Res<Block> {
        let name = self.name()?;
        let scoped = self.skip_name("scoped");
        let required = self.skip_name("required");
        if self.is_op("-") {
            return Err(self.fail_here(
                "Block names in Jinja have to be valid Python identifiers and may not contain hyphens, use an underscore instead.",
            ));
        }
        let body = self.statements(&["endblock"], true)?;
        if required
            && !body
                .iter()
                .all(|stmt| matches!(&stmt.kind, StmtKind::Data(text) if text::all(text, text::is_space)))
        {
            return Err(self.fail_here("Required blocks can only contain comments or whitespace"));
        }
        if self.is_name(&name) {
            self.pos += 1;
        }
        Ok(Block { name, scoped, required, body, file: Text::clone(&self.file) })
    }

    fn call_block(&mut self, line: u32) -> Res<StmtKind> {
        let (args, defaults) = if self.is_op("(") { self.signature()? } else { (Vec::new(), Vec::new()) };
        let call = self.expression(true)?;
        if !matches!(call, Expr::Call(_)) {
            return Err(syntax_error(line, "expected call"));
        }
        let body = self.statements(&["endcall"], true)?;
        Ok(StmtKind::Call { def: Arc::new(macro_def(None, args, defaults, body, line)?), call })
    }

    /// `with context` or `without context`, if it is there.
    fn import_context(&mut self) -> Option<bool> {
        let with = self.is_name("with");
        if (with || self.is_name("without"))
            && matches!(&self.ahead().kind, Tok::Name(name) if name == "context")
        {
            self.pos += 2;
            return Some(with);
        }
        None
    }

    fn import_names(&mut self) -> Res<StmtKind> {
        let name = self.expression(true)?;
        self.expect_name("import")?;
        let mut names: Vec<(Text, Text)> = Vec::new();
        let with_context = loop {
            if !names.is_empty() {
                self.expect_op(",")?;
            }
            if !matches!(self.current().kind, Tok::Name(_)) {
                return Err(self.unexpected("name"));
            }
            if let found @ Some(_) = self.import_context() {
                break found;
            }
            let line = self.line();
            let imported = self.target_name()?;
            if imported.starts_with('_') {
                return Err(syntax_error(line, "names starting with an underline can not be imported"));
            }
            let alias = if self.skip_name("as") { self.target_name()? } else { Text::clone(&imported) };
            names.push((imported, alias));
            let found = self.import_context();
            if found.is_some() || !self.is_op(",") {
                break found;
            }
        };
        Ok(StmtKind::FromImport { name, names, with_context: with_context.unwrap_or(false) })
    }

    /// `(a, b=1)`
    fn signature(&mut self) -> Res<(Vec<Text>, Vec<Expr>)> {
        let (mut args, mut defaults) = (Vec::new(), Vec::new());
        self.expect_op("(")?;
        while !self.is_op(")") {
            if !args.is_empty() {
                self.expect_op(",")?;
            }
            let arg = self.target_name()?;
            if self.skip_op("=") {
                defaults.push(self.expression(true)?);
            } else if !defaults.is_empty() {
                return Err(self.fail_here("non-default argument follows default argument"));
            }
            if args.contains(&arg) {
                return Err(self.fail_here(format!("duplicate argument '{arg}' in function definition")));
            }
            args.push(arg);
        }
        self.expect_op(")")?;
        Ok((args, defaults))
    }

    /// One name to assign to.
    fn target_name(&mut self) -> Res<Text> {
        let line = self.line();
        let name = self.name()?;
        assignable(&name, line)?;
        Ok(name)
    }

    /// What is assigned to: names, tuples of them, attributes of namespaces.
    fn target(&mut self, end: Option<&str>, namespace: bool) -> Res<Target> {
        let _level = budget::deeper()?;
        let mut targets = Vec::new();
        let mut is_tuple = false;
        loop {
            if !targets.is_empty() {
                self.expect_op(",")?;
            }
            if self.tuple_ends(end) {
                break;
            }
            targets.push(self.target_part(namespace)?);
            if !self.is_op(",") {
                break;
            }
            is_tuple = true;
        }
        if is_tuple {
            return Ok(Target::Tuple(targets));
        }
        targets.pop().ok_or_else(|| {
            self.fail_here(format!("Expected an expression, got '{}'", describe(&self.current().kind)))
        })
    }

    fn target_part(&mut self, namespace: bool) -> Res<Target> {
        let line = self.line();
        if self.skip_op("(") {
            let inner = if self.is_op(")") { Target::Tuple(Vec::new()) } else { self.target(None, false)? };
            self.expect_op(")")?;
            return Ok(inner);
        }
        let name = match &self.current().kind {
            Tok::Name(name) => Text::from(name.as_str()),
            kind => return Err(self.fail_here(format!("can't assign to '{}'", describe(kind)))),
        };
        self.pos += 1;
        if namespace && self.is_op(".") {
            self.pos += 1;
            return Ok(Target::Attr(name, self.name()?));
        }
        assignable(&name, line)?;
        Ok(Target::Name(name))
    }

    pub(super) fn tuple_ends(&self, end: Option<&str>) -> bool {
        match &self.current().kind {
            Tok::VarEnd | Tok::BlockEnd => true,
            Tok::Op(op) => *op == ")",
            Tok::Name(name) => end == Some(name.as_str()),
            _ => false,
        }
    }
}

fn assignable(name: &str, line: u32) -> Res<()> {
    if ["true", "false", "none", "True", "False", "None"].contains(&name) {
        return Err(syntax_error(line, "can't assign to 'const'"));
    }
    Ok(())
}

fn target_names(target: &Target) -> Box<dyn Iterator<Item = &str> + '_> {
    match target {
        Target::Name(name) => Box::new(std::iter::once(&**name)),
        Target::Attr(..) => Box::new(std::iter::empty()),
        Target::Tuple(targets) => Box::new(targets.iter().flat_map(target_names)),
    }
}

fn macro_def(
    name: Option<Text>,
    args: Vec<Text>,
    defaults: Vec<Expr>,
    body: Vec<Stmt>,
    line: u32,
) -> Res<MacroDef> {
    let declared = |name: &str| args.iter().any(|arg| **arg == *name);
    let uses_caller = uses::name(&body, "caller");
    if uses_caller && let Some(place) = args.iter().position(|arg| &**arg == "caller") {
        // With a default it is an argument like any other.
        if place + defaults.len() < args.len() {
            return Err(syntax_error(
                line,
                "When defining macros or call blocks the special \"caller\" argument must be omitted or be given a default.",
            ));
        }
    }
    Ok(MacroDef {
        takes_caller: uses_caller,
        takes_kwargs: uses::name(&body, "kwargs") && !declared("kwargs"),
        takes_varargs: uses::name(&body, "varargs") && !declared("varargs"),
        name,
        args,
        defaults,
        body,
        line,
    })
}

pub(super) fn describe(kind: &Tok) -> String {
    match kind {
        Tok::Data(_) => "template data / text".to_owned(),
        Tok::BlockBegin => "begin of statement block".to_owned(),
        Tok::BlockEnd => "end of statement block".to_owned(),
        Tok::VarBegin => "begin of print statement".to_owned(),
        Tok::VarEnd => "end of print statement".to_owned(),
        Tok::Name(name) => name.clone(),
        Tok::Str(_) => "string".to_owned(),
        Tok::Int(_) => "integer".to_owned(),
        Tok::Float(_) => "float".to_owned(),
        Tok::Op(op) => (*op).to_owned(),
        Tok::Eof => "end of template".to_owned(),
    }
}
