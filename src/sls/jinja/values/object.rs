//! The values that are neither text, number nor container: iterators, functions, macros, loops, what `salt` is.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;

use super::num;
use super::val::{Dict, Hashed, Text, Val, let_go};
use super::walk::Walk;
use crate::sls::jinja::eval::args::Args;
use crate::sls::jinja::eval::frame::Frame;
use crate::sls::jinja::syntax::ast::{ForLoop, MacroDef};
use crate::sls::map::OrderedMap;

/// Another value.
pub(crate) enum Object {
    Range(Range),
    Iter(Iter),
    View(View, Rc<Dict>),
    /// A method bound to its value.
    Method(Val, &'static str),
    Func(Func),
    Macro(Macro),
    Module(Module),
    Namespace(RefCell<OrderedMap<Hashed, Val>>),
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
pub(crate) struct Range {
    pub(crate) start: i64,
    pub(crate) stop: i64,
    pub(crate) step: i64,
}

impl Range {
    pub(crate) fn len(self) -> usize {
        let (low, high) = if self.step > 0 { (self.start, self.stop) } else { (self.stop, self.start) };
        if low >= high {
            return 0;
        }
        let span = high.abs_diff(low);
        usize::try_from((span - 1) / self.step.unsigned_abs() + 1).unwrap_or(usize::MAX)
    }

    pub(crate) fn get(self, place: usize) -> Option<i64> {
        (place < self.len()).then(|| self.start.saturating_add(num::len(place).saturating_mul(self.step)))
    }
}

/// Which view of a mapping.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum View {
    Keys,
    Values,
    Items,
}

/// What is walked once.
pub(crate) struct Iter {
    pub(crate) type_name: &'static str,
    pub(crate) walk: RefCell<Walk>,
}

/// What a lazy filter does to each member.
pub(crate) enum Each {
    /// `map` with a filter
    Filter { name: Text, args: Args },
    /// `map` with an attribute
    Attribute { path: Vec<Val>, default: Val },
    /// `select`, `reject` and with an attribute
    Test { path: Vec<Val>, test: Option<(Text, Args)>, keep: bool },
}

/// A function that is always there.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Func {
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
    pub(crate) fn name(self) -> &'static str {
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
pub(crate) struct Macro {
    pub(crate) def: Arc<MacroDef>,
    pub(crate) file: Text,
    pub(crate) frame: Rc<Frame>,
}

/// What an import gives.
pub(crate) struct Module {
    pub(crate) name: Text,
    pub(crate) text: Text,
    pub(crate) exported: RefCell<Vec<(Text, Val)>>,
}

/// The variable `loop`.
pub(crate) struct Loop {
    pub(crate) state: RefCell<LoopState>,
    pub(crate) depth0: i64,
    pub(crate) recurse: Option<(Arc<ForLoop>, Rc<Frame>)>,
}

/// Where a loop is.
pub(crate) struct LoopState {
    pub(crate) iterable: Val,
    pub(crate) walk: Walk,
    /// The one read ahead, or that there is none.
    pub(crate) ahead: Option<Option<Val>>,
    pub(crate) index0: i64,
    pub(crate) length: Option<i64>,
    pub(crate) before: Val,
    pub(crate) current: Val,
    pub(crate) changed: Option<Val>,
}

impl Object {
    pub(crate) fn type_name(&self) -> &'static str {
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
    pub(crate) fn callable(&self) -> bool {
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
    pub(crate) fn same(&self, other: &Object) -> bool {
        match (self, other) {
            (Object::Func(a), Object::Func(b)) => a == b,
            (Object::Salt, Object::Salt) | (Object::Template, Object::Template) => true,
            (Object::SaltModule(a), Object::SaltModule(b))
            | (Object::SaltFunction(a), Object::SaltFunction(b)) => a == b,
            _ => false,
        }
    }

    /// The values it holds and can be reached through.
    pub(crate) fn held(&self) -> Vec<Val> {
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
