//! Calls: macros, loops, blocks, functions of Salt, and the functions that are always there.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use super::args::Args;
use super::frame::Frame;
use super::interp::Interp;
use super::is;
use super::lipsum;
use crate::limits;
use crate::sls::jinja::budget;
use crate::sls::jinja::exc::{
    Exc, Kind, Res, not_native, overflow_error, runtime_error, type_error, value_error,
};
use crate::sls::jinja::filters;
use crate::sls::jinja::values::convert;
use crate::sls::jinja::values::num;
use crate::sls::jinja::values::object::{Each, Func, Macro, Object, Range};
use crate::sls::jinja::values::ops;
use crate::sls::jinja::values::repr;
use crate::sls::jinja::values::val::{Dict, Hashed, Text, Val};
use crate::sls::jinja::values::walk;
use crate::sls::map::OrderedMap;

impl Interp<'_> {
    /// A variable of this name, wherever it is.
    pub(crate) fn variable(&mut self, name: &Text, frame: &Frame) -> Val {
        if let Some(val) = frame.get(name) {
            return val;
        }
        match self.ambient(name) {
            Some(val) => val,
            None => self.undefined(format!("'{name}' is undefined")),
        }
    }

    /// What every template knows.
    pub(crate) fn ambient(&mut self, name: &str) -> Option<Val> {
        let context = self.context;
        Some(match name {
            "data" => context.data.0.clone(),
            "tag" => Val::from(context.tag),
            "grains" => context.ambient.grains.get(),
            "opts" => context.ambient.opts.get(),
            "pillar" => context.ambient.pillar.get(),
            "salt" => self.one("salt", || Val::object(Object::Salt)),
            "saltenv" => Val::from(context.saltenv),
            "tplpath" => Val::from(self.tplpath),
            "sls" | "slspath" | "slsdotpath" | "slscolonpath" | "sls_path" => Val::from(""),
            "tplfile" => Val::from(self.tplpath.rsplit('/').next().unwrap_or_default()),
            "tpldir" => Val::from("."),
            "tpldot" => Val::from(""),
            "proxy" => self.one("proxy", || Val::dict(OrderedMap::new())),
            "self" => Val::object(Object::Template),
            "range" => function(Func::Range),
            "dict" => function(Func::Dict),
            "odict" => function(Func::OrderedDict),
            "namespace" => function(Func::Namespace),
            "cycler" => function(Func::Cycler),
            "joiner" => function(Func::Joiner),
            "lipsum" => function(Func::Lipsum),
            "raise" => function(Func::Raise),
            "show_full_context" => function(Func::ShowFullContext),
            "ifelse" => function(Func::IfElse),
            _ => return None,
        })
    }

    fn one(&mut self, name: &'static str, make: impl FnOnce() -> Val) -> Val {
        self.globals.entry(name).or_insert_with(make).clone()
    }

    /// Calls a value.
    pub(super) fn call_value(&mut self, callee: &Val, args: Args, frame: &Rc<Frame>) -> Res<Val> {
        let _level = budget::deeper()?;
        let object = match callee {
            Val::Undef(undef) => return Err(undef.fail()),
            Val::Object(object) => object,
            _ => return Err(type_error(format!("'{}' object is not callable", callee.type_name()))),
        };
        match &**object {
            Object::Method(val, name) => self.call_method(val, name, args),
            Object::Macro(def) => self.call_macro(def, args),
            Object::Func(func) => self.call_func(*func, args, frame),
            Object::SaltFunction(fun) => self.call_salt(fun, args),
            Object::Loop(_) => self.call_loop(object, args),
            Object::Block { name, level } => {
                args.none("BlockReference.__call__")?;
                let root = Rc::clone(&self.running.root);
                let mut out = String::new();
                self.run_block(name, *level, &root, &mut out)?;
                Ok(Val::str(out))
            }
            Object::Joiner { between, used } => {
                args.none("Joiner.__call__")?;
                Ok(if used.replace(true) { between.clone() } else { Val::from("") })
            }
            other => Err(type_error(format!("'{}' object is not callable", other.type_name()))),
        }
    }

    fn call_macro(&mut self, of: &Macro, mut args: Args) -> Res<Val> {
        let def = &of.def;
        let frame = Frame::inner(&of.frame);
        let name = || match &def.name {
            Some(name) => format!("'{name}'"),
            None => "None".to_owned(),
        };
        let extra =
            if args.pos.len() > def.args.len() { args.pos.split_off(def.args.len()) } else { Vec::new() };
        let mut given: Vec<Option<Val>> = args.pos.drain(..).map(Some).collect();
        let mut found_caller = given.len() == def.args.len() && def.args.iter().any(|arg| &**arg == "caller");
        for arg in def.args.iter().skip(given.len()) {
            found_caller |= &**arg == "caller";
            given.push(args.take(arg));
        }
        if def.takes_caller && !found_caller {
            let caller = args.take("caller").unwrap_or_else(|| self.undefined("No caller defined"));
            frame.set(&Text::from("caller"), caller);
        }
        if def.takes_kwargs {
            let kwargs = args.kw.drain(..).map(|(name, val)| (Hashed(Val::Str(name)), val)).collect();
            frame.set(&Text::from("kwargs"), Val::dict(kwargs));
        } else if let Some((arg, _)) = args.kw.first() {
            if args.kw.iter().any(|(arg, _)| &**arg == "caller") {
                return Err(type_error(format!(
                    "macro {} was invoked with two values for the special caller argument. This is most likely a bug.",
                    name()
                )));
            }
            return Err(type_error(format!("macro {} takes no keyword argument '{arg}'", name())));
        }
        if def.takes_varargs {
            frame.set(&Text::from("varargs"), Val::tuple(extra));
        } else if !extra.is_empty() {
            return Err(type_error(format!(
                "macro {} takes not more than {} argument(s)",
                name(),
                def.args.len()
            )));
        }
        let file = std::mem::replace(&mut self.running.file, Text::clone(&of.file));
        let line = std::mem::replace(&mut self.line, def.line);
        let result =
            self.run_macro(of, given, &frame).map_err(|error| error.place(&self.running.file, self.line));
        self.running.file = file;
        self.line = line;
        result
    }

    fn run_macro(&mut self, of: &Macro, given: Vec<Option<Val>>, frame: &Rc<Frame>) -> Res<Val> {
        let def = &of.def;
        let first_default = def.args.len() - def.defaults.len().min(def.args.len());
        for (arg, val) in def.args.iter().zip(&given) {
            // Before its turn an argument is nothing, whatever that name is further out.
            frame.set(arg, val.clone().unwrap_or_else(|| self.undefined(format!("'{arg}' is undefined"))));
        }
        for (i, (arg, val)) in def.args.iter().zip(given).enumerate() {
            if val.is_some() {
                continue;
            }
            let val = match i.checked_sub(first_default).and_then(|i| def.defaults.get(i)) {
                Some(default) => self.eval(default, frame)?,
                None => self.undefined(format!("parameter '{arg}' was not provided")),
            };
            frame.set(arg, val);
        }
        self.captured_text(&def.body, frame).map(Val::str)
    }

    fn call_loop(&mut self, object: &Rc<Object>, args: Args) -> Res<Val> {
        let Object::Loop(state) = &**object else { return Err(type_error("not a loop")) };
        let [iterable] = args.bind("LoopContext.__call__", ["iterable"], 1)?;
        let iterable = iterable.unwrap_or(Val::None);
        let Some((for_loop, frame)) = &state.recurse else {
            return Err(type_error("The loop must have the 'recursive' marker to be called recursively."));
        };
        let (for_loop, frame) = (std::sync::Arc::clone(for_loop), Rc::clone(frame));
        let mut out = String::new();
        self.run_loop(&for_loop, &iterable, &frame, state.depth0 + 1, &mut out)?;
        budget::took(out.len());
        Ok(Val::str(out))
    }

    /// The next round of a loop.
    pub(super) fn loop_next(&mut self, object: &Rc<Object>) -> Res<Option<Val>> {
        let Object::Loop(of) = &**object else { return Ok(None) };
        let ahead = of.state.borrow_mut().ahead.take();
        let next = match ahead {
            Some(next) => next,
            None => self.loop_pull(object)?,
        };
        let mut state = of.state.borrow_mut();
        match next {
            Some(val) => {
                state.index0 += 1;
                state.before = std::mem::replace(&mut state.current, val.clone());
                Ok(Some(val))
            }
            None => {
                state.ahead = Some(None);
                Ok(None)
            }
        }
    }

    /// Takes one more from what a loop walks over.
    fn loop_pull(&mut self, object: &Rc<Object>) -> Res<Option<Val>> {
        let Object::Loop(of) = &**object else { return Ok(None) };
        let mut walk = std::mem::replace(&mut of.state.borrow_mut().walk, walk::Walk::Done);
        let next = walk.next(self);
        of.state.borrow_mut().walk = walk;
        next
    }

    fn loop_peek(&mut self, object: &Rc<Object>) -> Res<Option<Val>> {
        let Object::Loop(of) = &**object else { return Ok(None) };
        let ahead = of.state.borrow().ahead.clone();
        if let Some(ahead) = ahead {
            return Ok(ahead);
        }
        let next = self.loop_pull(object)?;
        of.state.borrow_mut().ahead = Some(next.clone());
        Ok(next)
    }

    fn loop_length(&mut self, object: &Rc<Object>) -> Res<i64> {
        let Object::Loop(of) = &**object else { return Ok(0) };
        let (known, iterable) = {
            let state = of.state.borrow();
            (state.length, state.iterable.clone())
        };
        if let Some(length) = known {
            return Ok(length);
        }
        let length = match ops::len(&iterable) {
            Ok(len) => num::len(len),
            Err(_) => {
                let walk = std::mem::replace(&mut of.state.borrow_mut().walk, walk::Walk::Done);
                let rest = self.collect_walk(walk)?;
                let mut state = of.state.borrow_mut();
                let length =
                    num::len(rest.len()) + state.index0 + 1 + i64::from(matches!(state.ahead, Some(Some(_))));
                state.walk = walk::Walk::Items(rest.into_iter());
                length
            }
        };
        of.state.borrow_mut().length = Some(length);
        Ok(length)
    }

    pub(crate) fn loop_attr(&mut self, object: &Rc<Object>, name: &str) -> Res<Option<Val>> {
        let Object::Loop(of) = &**object else { return Ok(None) };
        let index0 = of.state.borrow().index0;
        Ok(Some(match name {
            "index" => Val::Int(index0 + 1),
            "index0" => Val::Int(index0),
            "first" => Val::Bool(index0 == 0),
            "depth" => Val::Int(of.depth0 + 1),
            "depth0" => Val::Int(of.depth0),
            "length" => Val::Int(self.loop_length(object)?),
            "revindex" => Val::Int(self.loop_length(object)? - index0),
            "revindex0" => Val::Int(self.loop_length(object)? - index0 - 1),
            "last" => Val::Bool(self.loop_peek(object)?.is_none()),
            "nextitem" => match self.loop_peek(object)? {
                Some(val) => val,
                None => self.undefined("there is no next item"),
            },
            "previtem" if index0 == 0 => self.undefined("there is no previous item"),
            "previtem" => of.state.borrow().before.clone(),
            _ => return Ok(None),
        }))
    }

    /// `loop.cycle(..)`, `loop.changed(..)`
    pub(crate) fn loop_method(&mut self, object: &Rc<Object>, name: &str, args: Args) -> Res<Val> {
        let Object::Loop(of) = &**object else { return Err(type_error("not a loop")) };
        if let Some((name, _)) = args.kw.first() {
            return Err(type_error(format!("got an unexpected keyword argument '{name}'")));
        }
        if name == "cycle" {
            let count = args.pos.len();
            if count == 0 {
                return Err(type_error("no items for cycling given"));
            }
            let place = num::size(of.state.borrow().index0) % count;
            return args.pos.into_iter().nth(place).ok_or_else(|| type_error("no items for cycling given"));
        }
        let now = Val::tuple(args.pos);
        let before = of.state.borrow().changed.clone();
        if let Some(before) = before
            && ops::equal(&before, &now)?
        {
            return Ok(Val::Bool(false));
        }
        of.state.borrow_mut().changed = Some(now);
        Ok(Val::Bool(true))
    }

    fn call_func(&mut self, func: Func, mut args: Args, frame: &Rc<Frame>) -> Res<Val> {
        match func {
            Func::Range => {
                let bounds = args.positional::<3>("range", 1)?;
                let mut whole = Vec::new();
                for bound in bounds.iter().flatten() {
                    if let Val::Undef(undef) = bound {
                        undef.check()?;
                    }
                    let Some(i) = bound.as_int() else {
                        return Err(type_error(format!(
                            "'{}' object cannot be interpreted as an integer",
                            bound.type_name()
                        )));
                    };
                    whole.push(
                        i64::try_from(i)
                            .map_err(|_| not_native("a range of integers of more than 64 bits"))?,
                    );
                }
                let range = match *whole.as_slice() {
                    [stop] => Range { start: 0, stop, step: 1 },
                    [start, stop] => Range { start, stop, step: 1 },
                    [start, stop, step] => Range { start, stop, step },
                    _ => return Err(type_error("range expected at least 1 argument, got 0")),
                };
                if range.step == 0 {
                    return Err(value_error("range() arg 3 must not be zero"));
                }
                if range.len() > limits::JINJA_RANGE_MAX {
                    return Err(overflow_error(format!(
                        "Range too big. The sandbox blocks ranges larger than MAX_RANGE ({}).",
                        limits::JINJA_RANGE_MAX
                    )));
                }
                Ok(Val::object(Object::Range(range)))
            }
            Func::Dict | Func::OrderedDict | Func::Namespace => {
                let mut map = OrderedMap::new();
                if args.pos.len() > 1 {
                    return Err(type_error(format!(
                        "dict expected at most 1 argument, got {}",
                        args.pos.len()
                    )));
                }
                if let Some(from) = args.pos.pop() {
                    self.update_map(&mut map, &from)?;
                }
                for (name, val) in args.kw {
                    map.insert(Hashed(Val::Str(name)), val);
                }
                Ok(match func {
                    Func::Namespace => Val::object(Object::Namespace(RefCell::new(map))),
                    _ => {
                        budget::took(map.len() * 80 + 128);
                        Val::Dict(Rc::new(Dict {
                            map: RefCell::new(map),
                            ordered: func == Func::OrderedDict,
                        }))
                    }
                })
            }
            Func::Cycler => {
                if args.pos.is_empty() {
                    return Err(runtime_error("at least one item has to be provided"));
                }
                Ok(Val::object(Object::Cycler { items: args.pos, place: Cell::new(0) }))
            }
            Func::Joiner => {
                let [between] = args.bind("Joiner", ["sep"], 0)?;
                Ok(Val::object(Object::Joiner {
                    between: between.unwrap_or_else(|| Val::from(", ")),
                    used: Cell::new(false),
                }))
            }
            Func::Lipsum => lipsum::generate(args),
            Func::Raise => {
                let [message] = args.bind("jinja_raise", ["msg"], 1)?;
                let message = match message {
                    Some(message) => repr::str(&message)?,
                    None => String::new(),
                };
                Err(Exc::new(Kind::Other, message))
            }
            Func::ShowFullContext => self.show_full_context(args, frame),
            // Salt's own fails when it is called from a template: it asks for `__opts__`.
            Func::IfElse => Err(Exc::new(Kind::Other, "name '__opts__' is not defined")),
        }
    }

    /// `dict.update(from)`
    pub(crate) fn update_map(&mut self, map: &mut OrderedMap<Hashed, Val>, from: &Val) -> Res<()> {
        match from {
            Val::Dict(dict) => {
                for (key, val) in dict.pairs() {
                    map.insert(Hashed(key), val);
                }
                Ok(())
            }
            Val::Undef(undef) => undef.check(),
            _ => {
                for (i, pair) in self.collect(from)?.into_iter().enumerate() {
                    let items = self.collect(&pair).map_err(|error| {
                        if error.kind() == Kind::Type {
                            type_error(format!(
                                "cannot convert dictionary update sequence element #{i} to a sequence"
                            ))
                        } else {
                            error
                        }
                    })?;
                    let [key, val] = items.as_slice() else {
                        return Err(value_error(format!(
                            "dictionary update sequence element #{i} has length {}; 2 is required",
                            items.len()
                        )));
                    };
                    map.insert(key.clone().key()?, val.clone());
                }
                Ok(())
            }
        }
    }

    fn show_full_context(&mut self, args: Args, frame: &Rc<Frame>) -> Res<Val> {
        const NAMES: [&str; 28] = [
            "range",
            "dict",
            "lipsum",
            "cycler",
            "joiner",
            "namespace",
            "ifelse",
            "raise",
            "odict",
            "show_full_context",
            "salt",
            "grains",
            "opts",
            "pillar",
            "saltenv",
            "sls",
            "proxy",
            "renderers",
            "tag",
            "data",
            "tplpath",
            "tplfile",
            "tpldir",
            "tpldot",
            "slspath",
            "slsdotpath",
            "slscolonpath",
            "sls_path",
        ];
        args.none("show_full_context")?;
        let mut map = OrderedMap::new();
        for name in NAMES {
            if let Some(val) = self.ambient(name) {
                map.insert(Hashed(Val::from(name)), simple(&val)?);
            }
        }
        for (name, val) in frame.all() {
            map.insert(Hashed(Val::Str(name)), simple(&val)?);
        }
        Ok(Val::dict(map))
    }

    /// Whether a function of Salt that is not known here might exist there; then the template is not for us.
    pub(crate) fn salt_elsewhere(&self, fun: &str) -> Res<bool> {
        if self.context.salt.elsewhere().map_err(salt_error)? {
            Err(not_native(format!("salt[\"{fun}\"]")))
        } else {
            Ok(false)
        }
    }

    /// Whether there is such a function behind `salt`.
    pub(crate) fn salt_has(&self, fun: &str) -> Res<bool> {
        self.context.salt.has(fun).map_err(salt_error)
    }

    pub(crate) fn salt_function(&mut self, fun: &str) -> Res<Option<Val>> {
        if self.salt_has(fun)? {
            return Ok(Some(Val::object(Object::SaltFunction(Text::from(fun)))));
        }
        if fun.contains('.') {
            self.salt_elsewhere(fun)?;
        }
        Ok(None)
    }

    pub(crate) fn salt_attr(&mut self, name: &str) -> Res<Option<Val>> {
        let there =
            self.context.salt.has_module(name) || self.context.salt.elsewhere().map_err(salt_error)?;
        Ok(there.then(|| Val::object(Object::SaltModule(Text::from(name)))))
    }

    fn call_salt(&mut self, fun: &str, args: Args) -> Res<Val> {
        let pos: Vec<_> = args.pos.iter().map(convert::value).collect::<Res<_>>()?;
        let mut kw = Vec::with_capacity(args.kw.len());
        for (name, val) in &args.kw {
            kw.push((name.to_string(), convert::value(val)?));
        }
        match self.context.salt.call(fun, &pos, &kw) {
            Ok(value) => convert::val(&value),
            Err(message) => Err(salt_error(message)),
        }
    }

    /// `salt.get(..)` and its like.
    pub(crate) fn salt_method(&mut self, name: &str, args: Args) -> Res<Val> {
        if name != "get" {
            return Err(not_native(format!("salt.{name}()")));
        }
        let [fun, default] = args.bind("get", ["key", "default"], 1)?;
        let found = match fun.as_ref().and_then(Val::as_str) {
            Some(fun) => self.salt_function(fun)?,
            None => None,
        };
        Ok(found.or(default).unwrap_or(Val::None))
    }

    /// One member of a lazy filter: what becomes of it, if it stays.
    pub(crate) fn each(&mut self, each: &Each, item: Val) -> Res<Option<Val>> {
        match each {
            Each::Filter { name, args } => filters::call(self, name, item, args.clone()).map(Some),
            Each::Attribute { path, default } => {
                filters::attribute(self, item, path, Some(default)).map(Some)
            }
            Each::Test { path, test, keep } => {
                let subject = filters::attribute(self, item.clone(), path, None)?;
                let holds = match test {
                    Some((name, args)) => is::call(self, name, &subject, args.clone())?,
                    None => ops::truth(&subject)?,
                };
                Ok((holds == *keep).then_some(item))
            }
        }
    }
}

fn function(func: Func) -> Val {
    Val::object(Object::Func(func))
}

/// `salt.utils.data.simple_types_filter`: containers of plain values; the rest as text.
fn simple(val: &Val) -> Res<Val> {
    let _level = budget::deeper()?;
    Ok(match val {
        Val::List(list) => Val::list(list.items().iter().map(simple).collect::<Res<_>>()?),
        Val::Dict(dict) => {
            let mut map = OrderedMap::new();
            for (key, val) in dict.pairs() {
                let key = if matches!(key, Val::Tuple(_) | Val::None | Val::Bytes(_)) {
                    Val::str(repr::repr(&key)?)
                } else {
                    key
                };
                map.insert(Hashed(key), simple(&val)?);
            }
            Val::dict(map)
        }
        Val::None
        | Val::Bool(_)
        | Val::Int(_)
        | Val::Big(_)
        | Val::Float(_)
        | Val::Str(_)
        | Val::Markup(_) => val.clone(),
        other => Val::str(repr::repr(other)?),
    })
}

/// What a call of Salt, or a question about it, raises in a template.
fn salt_error(message: String) -> Exc {
    Exc::new(Kind::Salt, message)
}
