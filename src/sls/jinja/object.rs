//! The values that are neither text, number nor container: iterators, functions, macros, loops, what `salt` is.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;

use super::args::Args;
use super::ast::{ForLoop, MacroDef};
use super::frame::Frame;
use super::val::{Dict, Hashed, Text, Val, let_go};
use super::walk::Walk;
use indexmap::IndexMap;

/// Another value.
pub(super) enum Object {
    Range(Range),
    Iter(Iter),
    View(View, Rc<Dict>),
    /// A method bound to its value.
    Method(Val, &'static str),
    Func(Func),
    Macro(Macro),
    Module(Module),
    Namespace(RefCell<IndexMap<Hashed, Val>>),
    Loop(Loop),
    Cycler {
        items: Vec<Val>,
        place: Cell<usize>,
    },
    Joiner {
        between: Val,
        used: Cell<bool>,
    },
    /// `salt`
    Salt,
    /// `salt.cmd`
    SaltModule(Text),
    /// `salt.cmd.run`
    SaltFunction(Text),
    /// A block as a value: `super`, `self.name`.
    Block {
        name: Text,
        level: usize,
    },
    /// `self`
    Template,
}

/// `range(..)`
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Range {
    pub(super) start: i64,
    pub(super) stop: i64,
    pub(super) step: i64,
}

impl Range {
    pub(super) fn len(self) -> usize {
        let (low, high) = if self.step > 0 { (self.start, self.stop) } else { (self.stop, self.start) };
        if low >= high {
            return 0;
        }
        let span = high.abs_diff(low);
        usize::try_from((span - 1) / self.step.unsigned_abs() + 1).unwrap_or(usize::MAX)
    }

    pub(super) fn get(self, place: usize) -> Option<i64> {
        (place < self.len())
            .then(|| self.start.saturating_add(super::num::len(place).saturating_mul(self.step)))
    }
}

/// Which view of a mapping.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum View {
    Keys,
    Values,
    Items,
}

/// What is walked once.
pub(super) struct Iter {
    pub(super) type_name: &'static str,
    pub(super) walk: RefCell<Walk>,
}

/// What a lazy filter does to each member.
pub(super) enum Each {
    /// `map` with a filter
    Filter { name: Text, args: Args },
    /// `map` with an attribute
    Attribute { path: Vec<Val>, default: Val },
    /// `select`, `reject` and with an attribute
    Test { path: Vec<Val>, test: Option<(Text, Args)>, keep: bool },
}

/// A function that is always there.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Func {
    Range,
    Dict,
    OrderedDict,
    Namespace,
    Cycler,
    Joiner,
    Lipsum,
    Raise,
    ShowFullContext,
    IfElse,
}

impl Func {
    pub(super) fn name(self) -> &'static str {
        match self {
            Func::Range => "safe_range",
            Func::Dict => "dict",
            Func::OrderedDict => "OrderedDict",
            Func::Namespace => "Namespace",
            Func::Cycler => "Cycler",
            Func::Joiner => "Joiner",
            Func::Lipsum => "generate_lorem_ipsum",
            Func::Raise => "jinja_raise",
            Func::ShowFullContext => "show_full_context",
            Func::IfElse => "ifelse",
        }
    }
}

/// A macro, or the body of a `call` block.
pub(super) struct Macro {
    pub(super) def: Arc<MacroDef>,
    pub(super) file: Text,
    pub(super) frame: Rc<Frame>,
}

/// What an import gives.
pub(super) struct Module {
    pub(super) name: Text,
    pub(super) text: Text,
    pub(super) exported: RefCell<Vec<(Text, Val)>>,
}

/// The variable `loop`.
pub(super) struct Loop {
    pub(super) state: RefCell<LoopState>,
    pub(super) depth0: i64,
    pub(super) recurse: Option<(Arc<ForLoop>, Rc<Frame>)>,
}

/// Where a loop is.
pub(super) struct LoopState {
    pub(super) iterable: Val,
    pub(super) walk: Walk,
    /// The one read ahead, or that there is none.
    pub(super) ahead: Option<Option<Val>>,
    pub(super) index0: i64,
    pub(super) length: Option<i64>,
    pub(super) before: Val,
    pub(super) current: Val,
    pub(super) changed: Option<Val>,
}

impl Object {
    pub(super) fn type_name(&self) -> &'static str {
        match self {
            Object::Range(_) => "range",
            Object::Iter(iter) => iter.type_name,
            Object::View(View::Keys, _) => "dict_keys",
            Object::View(View::Values, _) => "dict_values",
            Object::View(View::Items, _) => "dict_items",
            Object::Method(..) => "builtin_function_or_method",
            Object::Func(Func::Range | Func::Lipsum | Func::Raise | Func::ShowFullContext | Func::IfElse) => {
                "function"
            }
            Object::Func(_) => "type",
            Object::Macro(_) => "Macro",
            Object::Module(_) => "TemplateModule",
            Object::Namespace(_) => "Namespace",
            Object::Loop(_) => "LoopContext",
            Object::Cycler { .. } => "Cycler",
            Object::Joiner { .. } => "Joiner",
            Object::Salt => "AliasedLoader",
            Object::SaltModule(_) => "LoadedMod",
            Object::SaltFunction(_) => "LoadedFunc",
            Object::Block { .. } => "BlockReference",
            Object::Template => "TemplateReference",
        }
    }

    /// Whether it can be called.
    pub(super) fn callable(&self) -> bool {
        matches!(
            self,
            Object::Method(..)
                | Object::Func(_)
                | Object::Macro(_)
                | Object::Loop(_)
                | Object::Joiner { .. }
                | Object::SaltFunction(_)
                | Object::Block { .. }
        )
    }

    /// Whether both stand for one object of Python.
    pub(super) fn same(&self, other: &Object) -> bool {
        match (self, other) {
            (Object::Func(a), Object::Func(b)) => a == b,
            (Object::Salt, Object::Salt) | (Object::Template, Object::Template) => true,
            (Object::SaltModule(a), Object::SaltModule(b))
            | (Object::SaltFunction(a), Object::SaltFunction(b)) => a == b,
            _ => false,
        }
    }

    /// The values it holds and can be reached through.
    pub(super) fn held(&self) -> Vec<Val> {
        match self {
            Object::Iter(iter) => iter.walk.try_borrow().map(|walk| walk.held()).unwrap_or_default(),
            Object::View(_, dict) => vec![Val::Dict(Rc::clone(dict))],
            Object::Method(val, _) => vec![val.clone()],
            Object::Module(module) => module.exported.borrow().iter().map(|(_, val)| val.clone()).collect(),
            Object::Namespace(map) => map.borrow().values().cloned().collect(),
            Object::Cycler { items, .. } => items.clone(),
            Object::Joiner { between, .. } => vec![between.clone()],
            Object::Loop(state) => match state.state.try_borrow() {
                Ok(state) => {
                    let mut vals = state.walk.held();
                    vals.extend([state.iterable.clone(), state.before.clone(), state.current.clone()]);
                    vals.extend(state.changed.clone());
                    vals.extend(state.ahead.clone().flatten());
                    vals
                }
                Err(_) => Vec::new(),
            },
            _ => Vec::new(),
        }
    }

    /// The values it holds, which it loses.
    pub(super) fn take_values(&mut self) -> Vec<Val> {
        match self {
            Object::Iter(iter) => iter.walk.get_mut().take_values(),
            Object::View(_, dict) => vec![Val::Dict(Rc::clone(dict))],
            Object::Method(val, _) => vec![std::mem::replace(val, Val::None)],
            Object::Module(module) => module.exported.take().into_iter().map(|(_, val)| val).collect(),
            Object::Namespace(map) => map.take().into_values().collect(),
            Object::Cycler { items, .. } => std::mem::take(items),
            Object::Joiner { between, .. } => vec![std::mem::replace(between, Val::None)],
            Object::Loop(state) => {
                let state = state.state.get_mut();
                let mut vals = state.walk.take_values();
                vals.extend(state.ahead.take().flatten());
                vals.extend(state.changed.take());
                for val in [&mut state.iterable, &mut state.before, &mut state.current] {
                    vals.push(std::mem::replace(val, Val::None));
                }
                vals
            }
            _ => Vec::new(),
        }
    }
}

impl Drop for Object {
    fn drop(&mut self) {
        let vals = self.take_values();
        if !vals.is_empty() {
            let_go(vals.into_iter());
        }
    }
}
