//! Runs the statements of a template.

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;

use super::frame::Frame;
use crate::sls::jinja::budget;
use crate::sls::jinja::context::Context;
use crate::sls::jinja::engine::{Compiled, Engine};
use crate::sls::jinja::exc::{self, Exc, Kind, Res, runtime_error, value_error};
use crate::sls::jinja::options;
use crate::sls::jinja::syntax::ast::{Block, Expr, ForLoop, MacroDef, Stmt, StmtKind, Target, Template};
use crate::sls::jinja::values::access;
use crate::sls::jinja::values::object::{Loop, LoopState, Macro, Object};
use crate::sls::jinja::values::ops;
use crate::sls::jinja::values::repr;
use crate::sls::jinja::values::val::{self, Text, Val};
use crate::sls::jinja::values::walk::{Walk, walk};

/// What a statement says about the loop around it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Flow {
    On,
    Break,
    Continue,
}

/// A template being run: what its blocks and its `extends` know of each other.
pub(super) struct Running {
    pub(crate) file: Text,
    pub(crate) root: Rc<Frame>,
    pub(crate) blocks: Vec<(Text, Vec<Arc<Block>>)>,
    /// The template that it extends.
    parent: Option<Arc<Template>>,
    parent_file: Option<Text>,
}

/// One rendering.
pub(crate) struct Interp<'a> {
    pub(crate) engine: &'a Engine,
    pub(crate) context: &'a Context<'a>,
    pub(crate) tplpath: &'a str,
    pub(crate) strict: bool,
    pub(crate) syntax: &'a options::Syntax,
    pub(crate) line: u32,
    pub(super) running: Running,
    /// Whether output goes nowhere, for the template extends another.
    suppressed: bool,
    pub(crate) loaded: HashMap<Text, (Text, Arc<Template>)>,
    pub(crate) modules: HashMap<Text, Val>,
    /// `tplfile`, `tpldir` and `tpldot` of the file loaded last.
    pub(super) tpl: [Text; 3],
    /// Frames that macros hold on to.
    captured: Vec<Rc<Frame>>,
    pub(super) globals: HashMap<&'static str, Val>,
}

impl<'a> Interp<'a> {
    pub(crate) fn new(
        engine: &'a Engine,
        context: &'a Context<'a>,
        tplpath: &'a str,
        compiled: &'a Compiled,
        strict: bool,
    ) -> Self {
        Interp {
            engine,
            context,
            tplpath,
            strict,
            syntax: &compiled.syntax,
            line: 0,
            running: Running {
                file: Text::clone(&compiled.file),
                root: Frame::root(None),
                blocks: Vec::new(),
                parent: None,
                parent_file: None,
            },
            suppressed: false,
            loaded: HashMap::new(),
            modules: HashMap::new(),
            tpl: compiled.tpl.clone(),
            captured: Vec::new(),
            globals: HashMap::new(),
        }
    }

    /// Runs a template to its end, and those that it extends.
    pub(crate) fn template(&mut self, template: &Arc<Template>, out: &mut String) -> Res<()> {
        let mut template = Arc::clone(template);
        self.add_blocks(&template);
        // A template that extends itself would pile up its blocks.
        let mut levels = Vec::new();
        loop {
            let root = Rc::clone(&self.running.root);
            let suppressed = self.suppressed;
            let flow = self.body(&template.body, &root, out);
            self.suppressed = suppressed;
            flow?;
            match self.running.parent.take() {
                Some(parent) => {
                    levels.push(budget::deeper()?);
                    if let Some(file) = self.running.parent_file.take() {
                        self.running.file = file;
                    }
                    template = parent;
                }
                None => return Ok(()),
            }
        }
    }

    fn add_blocks(&mut self, template: &Template) {
        for block in &template.blocks {
            match self.running.blocks.iter_mut().find(|(name, _)| *name == block.name) {
                Some((_, stack)) => stack.push(Arc::clone(block)),
                None => self.running.blocks.push((Text::clone(&block.name), vec![Arc::clone(block)])),
            }
        }
    }

    /// Runs another template in its own context, and comes back.
    pub(super) fn apart<T>(
        &mut self,
        file: &Text,
        root: Rc<Frame>,
        run: impl FnOnce(&mut Self) -> Res<T>,
    ) -> Res<(T, Rc<Frame>)> {
        let _level = budget::deeper()?;
        let inner =
            Running { file: Text::clone(file), root, blocks: Vec::new(), parent: None, parent_file: None };
        let outer = std::mem::replace(&mut self.running, inner);
        let suppressed = std::mem::replace(&mut self.suppressed, false);
        let line = self.line;
        let result = run(self).map_err(|error| error.place(&self.running.file, self.line));
        self.line = line;
        self.suppressed = suppressed;
        let inner = std::mem::replace(&mut self.running, outer);
        Ok((result?, inner.root))
    }

    pub(crate) fn body(&mut self, body: &[Stmt], frame: &Rc<Frame>, out: &mut String) -> Res<Flow> {
        for stmt in body {
            self.line = stmt.line;
            let flow = self.statement(stmt, frame, out)?;
            if flow != Flow::On {
                return Ok(flow);
            }
        }
        Ok(Flow::On)
    }

    /// What statements print, for themselves.
    pub(super) fn captured_text(&mut self, body: &[Stmt], frame: &Rc<Frame>) -> Res<String> {
        let mut out = String::new();
        let suppressed = std::mem::replace(&mut self.suppressed, false);
        let result = self.body(body, frame, &mut out);
        self.suppressed = suppressed;
        result?;
        budget::took(out.len());
        Ok(out)
    }

    fn statement(&mut self, stmt: &Stmt, frame: &Rc<Frame>, out: &mut String) -> Res<Flow> {
        budget::step()?;
        match &stmt.kind {
            StmtKind::Data(text) => {
                if !self.suppressed {
                    budget::took(text.len());
                    out.push_str(text);
                }
            }
            StmtKind::Print(expr) => {
                if !self.suppressed {
                    let val = self.eval(expr, frame)?;
                    repr::print(&val, out)?;
                }
            }
            StmtKind::If { tests, or_else } => {
                for (line, test, body) in tests {
                    self.line = *line;
                    if self.holds(test, frame)? {
                        return self.body(body, frame, out);
                    }
                }
                return self.body(or_else, frame, out);
            }
            StmtKind::For(for_loop) => self.for_loop(for_loop, frame, out)?,
            StmtKind::Set(target, expr) => {
                let val = self.eval_for(target, expr, frame)?;
                self.assign(target, val, frame)?;
            }
            StmtKind::SetBlock { target, filter, body } => {
                let inner = Frame::inner(frame);
                let text = self.captured_text(body, &inner)?;
                let val = match filter {
                    Some(filter) => self.filter_chain(filter, Val::str(text), &inner)?,
                    None => Val::str(text),
                };
                Self::check_target(target, frame)?;
                self.assign(target, val, frame)?;
            }
            StmtKind::With { targets, body } => {
                let inner = Frame::inner(frame);
                for (target, expr) in targets {
                    let val = self.eval(expr, frame)?;
                    self.assign(target, val, &inner)?;
                }
                return self.body(body, &inner, out);
            }
            StmtKind::Scope(body) => {
                let inner = Frame::inner(frame);
                return self.body(body, &inner, out);
            }
            StmtKind::Filter { filter, body } => {
                let inner = Frame::inner(frame);
                let text = self.captured_text(body, &inner)?;
                let val = self.filter_chain(filter, Val::str(text), &inner)?;
                if !self.suppressed {
                    repr::print(&val, out)?;
                }
            }
            StmtKind::Macro(def) => {
                let val = self.macro_value(def, frame);
                if let Some(name) = &def.name {
                    frame.set(name, val);
                    frame.hide(name, false);
                }
            }
            StmtKind::Call { def, call } => {
                let caller = self.macro_value(def, frame);
                let val = self.call_expr(call, frame, Some(caller))?;
                if !self.suppressed {
                    repr::print(&val, out)?;
                }
            }
            StmtKind::Do(expr) => {
                self.eval(expr, frame)?;
            }
            StmtKind::Break => return Ok(Flow::Break),
            StmtKind::Continue => return Ok(Flow::Continue),
            StmtKind::Block(block) => {
                if !self.suppressed {
                    self.block(block, frame, out)?;
                }
            }
            StmtKind::Extends(name) => {
                if self.running.parent.is_some() {
                    return Err(runtime_error("extended multiple times"));
                }
                let name = self.eval(name, frame)?;
                let (file, template) = self.load(&name)?;
                self.add_blocks(&template);
                self.running.parent = Some(template);
                self.running.parent_file = Some(file);
                self.suppressed = true;
            }
            StmtKind::Include { name, ignore_missing, with_context } => {
                let name = self.eval(name, frame)?;
                self.include(&name, *ignore_missing, *with_context, frame, out)?;
            }
            StmtKind::Import { name, target, with_context, load } => {
                let name = self.eval(name, frame)?;
                let module = self.import(&name, *with_context, frame)?;
                let val = match load {
                    Some(filter) => self.load_filter(filter, &module)?,
                    None => module,
                };
                frame.set(target, val);
                // Plain imports are not exported; what `import_yaml` loads is assigned, and so is.
                frame.hide(target, load.is_none());
            }
            StmtKind::FromImport { name, names, with_context } => {
                let name = self.eval(name, frame)?;
                let module = self.import(&name, *with_context, frame)?;
                for (name, alias) in names {
                    let val = self.imported(&module, name);
                    frame.set(alias, val);
                    frame.hide(alias, true);
                }
            }
            StmtKind::Load { target, filter, body } => {
                let inner = Frame::inner(frame);
                let text = self.captured_text(body, &inner)?;
                let val = self.load_filter(filter, &Val::str(text))?;
                self.assign(target, val, frame)?;
            }
            StmtKind::Profile { label, body } => {
                self.eval(label, frame)?;
                return self.body(body, frame, out);
            }
        }
        Ok(Flow::On)
    }

    /// Whether a condition holds.
    fn holds(&mut self, test: &Expr, frame: &Rc<Frame>) -> Res<bool> {
        let val = self.eval(test, frame)?;
        ops::truth(&val)
    }

    /// Evaluates what is to be assigned, after it is clear that it can be.
    fn eval_for(&mut self, target: &Target, expr: &Expr, frame: &Rc<Frame>) -> Res<Val> {
        Self::check_target(target, frame)?;
        self.eval(expr, frame)
    }

    fn check_target(target: &Target, frame: &Rc<Frame>) -> Res<()> {
        match target {
            Target::Name(_) => Ok(()),
            Target::Attr(name, _) => match frame.get(name) {
                Some(Val::Object(object)) if matches!(&*object, Object::Namespace(_)) => Ok(()),
                _ => Err(runtime_error("cannot assign attribute on non-namespace object")),
            },
            Target::Tuple(targets) => targets.iter().try_for_each(|target| Self::check_target(target, frame)),
        }
    }

    pub(crate) fn assign(&mut self, target: &Target, val: Val, frame: &Rc<Frame>) -> Res<()> {
        match target {
            Target::Name(name) => {
                frame.set(name, val);
                frame.hide(name, false);
                Ok(())
            }
            Target::Attr(name, attr) => match frame.get(name) {
                Some(namespace @ Val::Object(_)) => access::set_namespace(&namespace, attr, val),
                _ => Err(runtime_error("cannot assign attribute on non-namespace object")),
            },
            Target::Tuple(targets) => {
                let Ok(walk) = walk(&val) else {
                    if let Val::Undef(undef) = &val {
                        return Err(undef.fail());
                    }
                    return Err(exc::type_error(format!(
                        "cannot unpack non-iterable {} object",
                        val.type_name()
                    )));
                };
                let mut walk = walk;
                let mut vals = Vec::with_capacity(targets.len());
                while vals.len() <= targets.len() {
                    match walk.next(self)? {
                        Some(val) => vals.push(val),
                        None => break,
                    }
                }
                if vals.len() < targets.len() {
                    return Err(value_error(format!(
                        "not enough values to unpack (expected {}, got {})",
                        targets.len(),
                        vals.len()
                    )));
                }
                if vals.len() > targets.len() {
                    return Err(value_error(format!(
                        "too many values to unpack (expected {})",
                        targets.len()
                    )));
                }
                targets.iter().zip(vals).try_for_each(|(target, val)| self.assign(target, val, frame))
            }
        }
    }

    fn for_loop(&mut self, for_loop: &Arc<ForLoop>, frame: &Rc<Frame>, out: &mut String) -> Res<()> {
        let iterable = self.eval(&for_loop.iter, frame)?;
        if for_loop.recursive {
            let suppressed = std::mem::replace(&mut self.suppressed, false);
            let mut text = String::new();
            let result = self.run_loop(for_loop, &iterable, frame, 0, &mut text);
            self.suppressed = suppressed;
            result?;
            if !self.suppressed {
                out.push_str(&text);
            }
            return Ok(());
        }
        self.run_loop(for_loop, &iterable, frame, 0, out)
    }

    /// Walks over something and runs the body of a loop for each.
    pub(super) fn run_loop(
        &mut self,
        for_loop: &Arc<ForLoop>,
        iterable: &Val,
        frame: &Rc<Frame>,
        depth0: i64,
        out: &mut String,
    ) -> Res<()> {
        let _level = budget::deeper()?;
        let mut source = walk(iterable)?;
        // The length of what is filtered is not known beforehand.
        let mut length_of = iterable.clone();
        if for_loop.test.is_some() {
            self.keep(frame);
            source = Walk::Tested {
                from: Box::new(source),
                for_loop: Arc::clone(for_loop),
                frame: Rc::clone(frame),
            };
            length_of = Val::None;
        }
        if for_loop.recursive {
            self.keep(frame);
        }
        let mut ran = false;
        if for_loop.uses_loop {
            let object = Rc::new(Object::Loop(Loop {
                state: RefCell::new(LoopState {
                    iterable: length_of,
                    walk: source,
                    ahead: None,
                    index0: -1,
                    length: None,
                    before: Val::None,
                    current: Val::None,
                    changed: None,
                }),
                depth0,
                recurse: for_loop.recursive.then(|| (Arc::clone(for_loop), Rc::clone(frame))),
            }));
            let name = Text::from("loop");
            while let Some(item) = self.loop_next(&object)? {
                ran = true;
                let inner = Frame::inner(frame);
                inner.set(&name, Val::Object(Rc::clone(&object)));
                self.assign(&for_loop.target, item, &inner)?;
                if self.body(&for_loop.body, &inner, out)? == Flow::Break {
                    break;
                }
            }
        } else {
            while let Some(item) = source.next(self)? {
                ran = true;
                let inner = Frame::inner(frame);
                self.assign(&for_loop.target, item, &inner)?;
                if self.body(&for_loop.body, &inner, out)? == Flow::Break {
                    break;
                }
            }
        }
        if !ran && !for_loop.or_else.is_empty() {
            let inner = Frame::inner(frame);
            self.body(&for_loop.or_else, &inner, out)?;
        }
        Ok(())
    }

    /// Whether a loop's filter keeps a value.
    pub(crate) fn keeps(&mut self, for_loop: &ForLoop, frame: &Rc<Frame>, item: &Val) -> Res<bool> {
        let Some(test) = &for_loop.test else { return Ok(true) };
        let inner = Frame::inner(frame);
        self.assign(&for_loop.target, item.clone(), &inner)?;
        if for_loop.uses_loop {
            inner.set(&Text::from("loop"), self.undefined("'loop' is undefined"));
        }
        self.holds(test, &inner)
    }

    /// A value will hold on to this frame, which may hold that value: it is emptied at the end.
    fn keep(&mut self, frame: &Rc<Frame>) {
        if !frame.captured.replace(true) {
            self.captured.push(Rc::clone(frame));
        }
    }

    pub(super) fn macro_value(&mut self, def: &Arc<MacroDef>, frame: &Rc<Frame>) -> Val {
        self.keep(frame);
        Val::object(Object::Macro(Macro {
            def: Arc::clone(def),
            file: Text::clone(&self.running.file),
            frame: Rc::clone(frame),
        }))
    }

    fn block(&mut self, block: &Arc<Block>, frame: &Rc<Frame>, out: &mut String) -> Res<()> {
        let count = self.block_stack(&block.name).map_or(0, Vec::len);
        if block.required && count <= 1 {
            return Err(runtime_error(format!("Required block '{}' not found", block.name)));
        }
        let outer = if block.scoped { Rc::clone(frame) } else { Rc::clone(&self.running.root) };
        self.run_block(&block.name, 0, &outer, out)
    }

    pub(crate) fn block_stack(&self, name: &str) -> Option<&Vec<Arc<Block>>> {
        self.running.blocks.iter().find(|(other, _)| **other == *name).map(|(_, stack)| stack)
    }

    /// Runs one level of a block.
    pub(super) fn run_block(
        &mut self,
        name: &Text,
        level: usize,
        outer: &Rc<Frame>,
        out: &mut String,
    ) -> Res<()> {
        let _level = budget::deeper()?;
        let Some(block) = self.block_stack(name).and_then(|stack| stack.get(level)).cloned() else {
            return Err(runtime_error(format!("there is no block called '{name}'")));
        };
        let inner = Frame::inner(outer);
        let over = self.block_stack(name).map_or(0, Vec::len) > level + 1;
        let above = if over {
            Val::object(Object::Block { name: Text::clone(name), level: level + 1 })
        } else {
            Val::undef(self.strict, format!("there is no parent block called '{name}'."))
        };
        inner.set(&Text::from("super"), above);
        let file = std::mem::replace(&mut self.running.file, Text::clone(&block.file));
        let suppressed = std::mem::replace(&mut self.suppressed, false);
        let line = self.line;
        let result =
            self.body(&block.body, &inner, out).map_err(|error| error.place(&self.running.file, self.line));
        self.line = line;
        self.suppressed = suppressed;
        self.running.file = file;
        result.map(|_| ())
    }

    /// Lets go what macros would hold for ever.
    pub(crate) fn end(&mut self) {
        let mut vals = Vec::new();
        for frame in self.captured.drain(..) {
            vals.extend(frame.clear());
        }
        val::let_go(vals.into_iter());
    }

    pub(crate) fn fail(&self, error: Exc) -> Exc {
        error.place(&self.running.file, self.line)
    }

    /// An undefined value, as this engine makes them.
    pub(crate) fn undefined(&self, message: impl Into<String>) -> Val {
        Val::undef(self.strict, message)
    }

    /// The exception that a test of names caught, if it is one that Python code can catch.
    pub(crate) fn missing(error: &Exc) -> bool {
        error.kind() == Kind::NotFound
    }
}
