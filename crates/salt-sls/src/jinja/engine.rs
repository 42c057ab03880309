//! The engine: compilation, rendering, and the filters that translated syntax trees use.

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};

use minijinja::machinery::{self, CodeGenerator, Instructions};
use minijinja::syntax::SyntaxConfig;
use minijinja::value::Object;
use minijinja::{
    AutoEscape, Environment, Error, ErrorKind, Output, State, UndefinedBehavior, Value,
};

use super::budget::{self, RenderLimits};
use super::call::{self, Args};
use super::context::{Ambient, Context};
use super::error::{NotNative, Res, not_native};
use super::error::{RenderError, RenderErrorKind};
use super::salt_functions::SaltFunctions;
use super::value::{self, Obj};
use super::{filters, ops, translate};
use crate::value::{Map, Value as Plain, with_room};

/// Options of an engine.
#[derive(Debug, Clone, Default)]
pub struct EngineOptions {
    /// The master's `jinja_env`. With other options than `trim_blocks` and `lstrip_blocks` no file
    /// is native.
    pub jinja_env: Map,
    /// The master's `allow_undefined`. With it no file is native.
    pub allow_undefined: bool,
    /// Limits of one rendering.
    pub limits: RenderLimits,
    /// Names of supported functions of `salt`: `test.ping`.
    pub functions: Vec<String>,
}

/// A template.
#[derive(Debug, Clone, Copy)]
pub struct Source<'a> {
    /// The file's absolute path, for error messages.
    pub path: &'a str,
    /// The file's text.
    pub text: &'a str,
}

/// The result of a rendering.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rendered {
    /// The text.
    pub text: String,
}

/// Path and text of a template; its program borrows from them.
struct Origin {
    path: String,
    text: String,
}

struct Program<'s> {
    instructions: Instructions<'s>,
    blocks: BTreeMap<&'s str, Instructions<'s>>,
    mutates: bool,
}

self_cell::self_cell!(
    struct Native {
        owner: Origin,
        #[covariant]
        dependent: Program,
    }
);

/// A template with its program, or the constructs that are not native.
struct Compiled {
    path: String,
    native: Result<Native, Vec<NotNative>>,
}

/// A compiled template, for callers that cache it.
#[derive(Clone)]
pub struct Prepared(Arc<Compiled>);

impl std::fmt::Debug for Prepared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Prepared").field(&self.0.path).finish()
    }
}

impl Prepared {
    /// Whether a rendering may change the event's data.
    pub fn mutates(&self) -> bool {
        self.0
            .native
            .as_ref()
            .is_ok_and(|native| native.borrow_dependent().mutates)
    }
}

/// Renders templates; shared by all threads.
pub struct Engine {
    env: Environment<'static>,
    limits: RenderLimits,
    /// Options of the syntax, or the option that makes all files not native.
    syntax: Result<SyntaxConfig, String>,
    functions: Vec<String>,
}

/// The variables of a template.
struct Root {
    tag: Value,
    data: Value,
    ambient: Arc<Ambient>,
    salt: Arc<dyn SaltFunctions>,
}

impl std::fmt::Debug for Root {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Root")
    }
}

impl Object for Root {
    fn get_value(self: &Arc<Self>, key: &Value) -> Option<Value> {
        self.get_value_by_str(key.as_str()?)
    }

    fn get_value_by_str(self: &Arc<Self>, name: &str) -> Option<Value> {
        match name {
            "data" => Some(self.data.clone()),
            "tag" => Some(self.tag.clone()),
            "salt" => Some(Value::from_object(Obj::Salt(Arc::clone(&self.salt)))),
            name => self.ambient.get(name),
        }
    }
}

fn print(out: &mut Output<'_>, _: &mut State<'_, '_>, value: &Value) -> Res<()> {
    let printed = match value.as_str() {
        Some(text) => {
            budget::charge(text.len())?;
            out.write_str(text)
        }
        None => out.write_str(&ops::print(value)?),
    };
    printed.map_err(Error::from)
}

fn syntax(options: &EngineOptions) -> Result<SyntaxConfig, String> {
    if options.allow_undefined {
        return Err("the option allow_undefined".to_owned());
    }
    let mut builder = SyntaxConfig::builder();
    for (name, value) in &options.jinja_env {
        match (name.as_str().map(str::to_lowercase).as_deref(), value) {
            (Some("trim_blocks"), Plain::Bool(yes)) => drop(builder.trim_blocks(*yes)),
            (Some("lstrip_blocks"), Plain::Bool(yes)) => drop(builder.lstrip_blocks(*yes)),
            _ => return Err(format!("the option jinja_env: {}", name.0.python_str())),
        }
    }
    builder.build().map_err(|error| error.to_string())
}

/// The filters that [`translate`] puts in place of operators, lookups, calls and literals.
fn environment(limits: RenderLimits) -> Environment<'static> {
    use std::cmp::Ordering::{Equal, Greater, Less};

    fn argument(args: &[Value]) -> Res<(&str, &[Value])> {
        match args.split_first() {
            Some((name, rest)) => Ok((name.as_str().unwrap_or_default(), rest)),
            None => not_native("a call"),
        }
    }
    fn ordered(a: &Value, b: &Value, wanted: &[std::cmp::Ordering]) -> Res<bool> {
        Ok(ops::order(a, b)?.is_some_and(|order| wanted.contains(&order)))
    }

    let mut env = Environment::empty();
    // The use of an undefined value fails, and the file is then not native.
    env.set_undefined_behavior(UndefinedBehavior::Strict);
    env.set_formatter(print);
    // Counts minijinja's own instructions, in addition to the work of the filters.
    env.set_fuel(Some(limits.steps));
    env.set_recursion_limit(400);

    // Lookups and operators.
    env.add_filter("__attr", |a: &Value, b: &Value| ops::attr(a, b));
    env.add_filter("__item", |a: &Value, b: &Value| ops::item(a, b));
    env.add_filter("__slice", |a: &Value, from: &Value, to: &Value| {
        ops::slice(a, from, to)
    });
    env.add_filter("__eq", |a: &Value, b: &Value| ops::equal(a, b, 0));
    env.add_filter("__ne", |a: &Value, b: &Value| {
        ops::equal(a, b, 0).map(|equal| !equal)
    });
    env.add_filter("__lt", |a: &Value, b: &Value| ordered(a, b, &[Less]));
    env.add_filter("__le", |a: &Value, b: &Value| ordered(a, b, &[Less, Equal]));
    env.add_filter("__gt", |a: &Value, b: &Value| ordered(a, b, &[Greater]));
    env.add_filter("__ge", |a: &Value, b: &Value| {
        ordered(a, b, &[Greater, Equal])
    });
    env.add_filter("__add", |a: &Value, b: &Value| ops::arithmetic('+', a, b));
    env.add_filter("__sub", |a: &Value, b: &Value| ops::arithmetic('-', a, b));
    env.add_filter("__mul", |a: &Value, b: &Value| ops::arithmetic('*', a, b));
    env.add_filter("__floor", |a: &Value, b: &Value| ops::arithmetic('#', a, b));
    env.add_filter("__rem", |a: &Value, b: &Value| ops::arithmetic('%', a, b));
    env.add_filter("__neg", ops::negative);
    env.add_filter("__concat", |a: &Value, b: &Value| {
        value::text(ops::string(a)? + &ops::string(b)?)
    });
    env.add_filter("__in", |a: &Value, b: &Value| ops::contains(b, a));

    env.add_filter("__iter", |of: &Value| {
        match of.downcast_object_ref::<Obj>() {
            // A collection counts its iterations itself.
            Some(_) => Ok(of.clone()),
            None => ops::items(of).map(value::lazy),
        }
    });

    // Literals. The charges approximate the memory of their members.
    env.add_filter("__list", |_: &Value, items: &[Value]| {
        budget::charge(items.len() * 24)?;
        items
            .iter()
            .try_for_each(|item| value::member(item, None))?;
        Res::Ok(value::list(items.to_vec()))
    });
    env.add_filter("__tuple", |_: &Value, items: &[Value]| {
        budget::charge(items.len() * 24)?;
        items
            .iter()
            .try_for_each(|item| value::member(item, None))?;
        Res::Ok(value::tuple(items.to_vec()))
    });
    env.add_filter("__dict", |_: &Value, parts: &[Value]| {
        budget::charge(parts.len() * 32)?;
        let mut pairs = with_room(parts.len() / 2);
        for pair in parts.chunks(2) {
            let [key, of] = pair else {
                return not_native("a mapping");
            };
            value::member(of, None)?;
            pairs.insert(value::key(key)?, of.clone());
        }
        Ok(value::dict(pairs))
    });

    // Calls, by the name of what is called.
    env.add_filter("__method", |of: &Value, args: &[Value]| {
        let (name, args) = argument(args)?;
        call::method(of, name, &Args::of(args)?)
    });
    env.add_filter("__filter", |of: &Value, args: &[Value]| {
        let (name, args) = argument(args)?;
        filters::apply(name, of, &Args::of(args)?)
    });
    env.add_filter("__is", |of: &Value, args: &[Value]| {
        let (name, args) = argument(args)?;
        filters::test(name, of, args)
    });
    env.add_filter("__salt", |of: &Value, args: &[Value]| {
        let (name, args) = argument(args)?;
        call::function(of, name, &Args::of(args)?)
    });
    env.add_filter("__range", |_: &Value, args: &[Value]| {
        call::range(&Args::of(args)?)
    });
    env.add_filter("__namespace", |_: &Value, args: &[Value]| {
        call::namespace(&Args::of(args)?)
    });
    env.add_filter("__set_member", |of: &Value, args: &[Value]| match args {
        [name, member] => {
            call::set_member(of, name.as_str().unwrap_or_default(), member).map(|()| "")
        }
        _ => not_native("a namespace"),
    });

    // Without output: `do`, and the charge of each iteration.
    env.add_filter("__void", |_: &Value| "");
    env.add_filter("__charge", |bytes: &Value| {
        budget::charge(bytes.as_usize().unwrap_or(0)).map(|()| "")
    });
    env
}

/// Whether there is a `#jinja2:` line with options, first or below a shebang.
fn has_header(text: &str) -> bool {
    let mut lines = text.lines();
    let first = lines.next().unwrap_or_default();
    let line = if first.starts_with("#!") && !first.starts_with("#!/") {
        lines.next()
    } else {
        Some(first)
    };

    line.is_some_and(|line| line.starts_with("#jinja2:"))
}

impl Engine {
    /// Creates an engine.
    pub fn new(options: EngineOptions) -> Self {
        Engine {
            env: environment(options.limits),
            limits: options.limits,
            syntax: syntax(&options),
            functions: options.functions,
        }
    }

    /// Renders a template.
    pub fn render(
        &self,
        source: &Source<'_>,
        context: &Context<'_>,
    ) -> Result<Rendered, RenderError> {
        self.render_cached(source, &OnceLock::new(), context)
    }

    /// As [`Engine::render`], with a compiled template that the caller keeps with the source.
    pub fn render_cached(
        &self,
        source: &Source<'_>,
        kept: &OnceLock<Prepared>,
        context: &Context<'_>,
    ) -> Result<Rendered, RenderError> {
        // The path is a part of a program's errors, so a program is for one path.
        let compiled = kept
            .get()
            .filter(|kept| kept.0.path == source.path)
            .cloned()
            .unwrap_or_else(|| {
                let compiled = self.prepare(source);
                let _ = kept.set(compiled.clone());
                compiled
            });

        let fail = |kind, line, message: String| RenderError {
            file: source.path.to_owned(),
            line,
            message,
            kind,
        };

        // The first construct is enough for the error; `check` lists all of them.
        let native = compiled.0.native.as_ref().map_err(|refused| {
            let (line, what) = refused
                .first()
                .map_or((0, ""), |first| (first.line, &first.what));
            fail(RenderErrorKind::NotNative, line, what.to_owned())
        })?;

        budget::begin(self.limits);
        let root = Value::from_object(Root {
            tag: Value::from(context.tag),
            data: context.data.0.clone(),
            ambient: Arc::clone(context.ambient),
            salt: Arc::clone(context.salt),
        });

        // A guess that mostly avoids a second allocation.
        let mut text = String::with_capacity(source.text.len() + source.text.len() / 4);
        let result = native.with_dependent(|_, program| {
            let mut out = machinery::make_string_output(&mut text);
            machinery::eval(
                &self.env,
                &program.instructions,
                root,
                &program.blocks,
                &mut out,
                AutoEscape::None,
            )
            .map(drop)?;
            // Later files and Salt need plain data.
            if program.mutates {
                value::to_plain(&context.data.0, 0).map(drop)
            } else {
                Ok(())
            }
        });

        if let Err(error) = result {
            let line = error
                .line()
                .and_then(|line| u32::try_from(line).ok())
                .unwrap_or(0);

            if error.kind() == ErrorKind::OutOfFuel {
                // minijinja also counts steps, and its error contains no detail.
                let error = if error.detail().is_none() {
                    budget::steps_spent(self.limits.steps)
                } else {
                    error
                };
                return Err(fail(
                    RenderErrorKind::Limit,
                    line,
                    error.detail().unwrap_or_default().to_owned(),
                ));
            }

            // Any other error means a type or value that is not certain here.
            let what = error
                .detail()
                .map_or_else(|| error.kind().to_string(), str::to_owned);
            return Err(fail(RenderErrorKind::NotNative, line, what));
        }
        // Jinja removes the last newline; Salt restores it.
        if source.text.ends_with('\n') {
            text.push('\n');
        }
        Ok(Rendered { text })
    }

    /// The constructs of a template that are not native, as far as they are known without an event.
    pub fn check(&self, source: &Source<'_>) -> Vec<NotNative> {
        self.prepare(source)
            .0
            .native
            .as_ref()
            .err()
            .cloned()
            .unwrap_or_default()
    }

    /// Compiles a template.
    pub fn prepare(&self, source: &Source<'_>) -> Prepared {
        Prepared(Arc::new(Compiled {
            path: source.path.to_owned(),
            native: self.compile(source),
        }))
    }

    fn compile(&self, source: &Source<'_>) -> Result<Native, Vec<NotNative>> {
        let whole = |what: &str| {
            vec![NotNative {
                line: 0,
                what: what.to_owned(),
            }]
        };

        let syntax = self.syntax.as_ref().map_err(|what| whole(what))?;
        // Such a line changes the syntax of the file.
        if has_header(source.text) {
            return Err(whole("a `#jinja2:` header"));
        }

        // Jinja normalizes line breaks.
        let text = source.text.replace("\r\n", "\n").replace('\r', "\n");

        Native::try_new(
            Origin {
                path: source.path.to_owned(),
                text,
            },
            |origin| {
                let translated =
                    translate::translate(&origin.path, &origin.text, syntax, &self.functions)?;
                let mut generator = CodeGenerator::new(&origin.path, &origin.text);
                generator.compile_stmt(&translated.tree);
                let (instructions, blocks) = generator.finish();
                Ok(Program {
                    instructions,
                    blocks,
                    mutates: translated.mutates,
                })
            },
        )
    }
}
