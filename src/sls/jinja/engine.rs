//! The engine: compiled templates, and what they are rendered with.

use std::collections::HashMap;
use std::hash::{BuildHasher as _, RandomState};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use super::budget::{self, RenderLimits};
use super::check;
use super::context::Context;
use super::error::{RenderError, RenderErrorKind};
use super::exc::{Exc, Kind, Res};
use super::options::{EngineOptions, Syntax, header};
use crate::limits;
use crate::sls::jinja::eval::interp::Interp;
use crate::sls::jinja::syntax::ast::Template;
use crate::sls::jinja::syntax::parser;
use crate::sls::jinja::values::val::Text;

/// A template's text and where it comes from.
#[derive(Debug, Clone, Copy)]
pub struct Source<'a> {
    /// The file's absolute path: `tplpath`, and what errors name.
    pub path: &'a str,
    /// The file's text.
    pub text: &'a str,
}

/// What a template gave.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rendered {
    /// The text.
    pub text: String,
}

/// Something in a template that is not done natively.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NotNative {
    /// Where, from 1.
    pub line: u32,
    /// What: `filter "ipaddr"`, `salt["pillar.get"]`.
    pub what: String,
}

/// A template, ready to run.
pub(crate) struct Compiled {
    text: String,
    pub(crate) file: Text,
    /// `tplfile`, `tpldir` and `tpldot`.
    pub(crate) tpl: [Text; 3],
    pub(crate) syntax: Arc<Syntax>,
    template: Arc<Template>,
}

/// What a text was compiled to, for who keeps it beside the text.
#[derive(Clone)]
pub struct Prepared(Arc<Compiled>);

impl std::fmt::Debug for Prepared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Prepared").field(&self.0.file).finish()
    }
}

impl Compiled {
    fn new(text: &str, file: Text, syntax: Arc<Syntax>, template: Arc<Template>) -> Self {
        let name = file.rsplit('/').next().unwrap_or(&file);
        let tpl = [name, ".", ""].map(Text::from);
        Self { text: text.to_owned(), file, tpl, syntax, template }
    }
}

/// Compiled templates by content.
#[derive(Default)]
struct Cache {
    templates: HashMap<u64, Arc<Compiled>>,
    bytes: usize,
}

/// Renders templates. One serves all threads.
pub struct Engine {
    allow_undefined: bool,
    limits: RenderLimits,
    /// The syntax that all files have, or why there is none.
    syntax: Result<Arc<Syntax>, String>,
    cache: Mutex<Cache>,
    hasher: RandomState,
}

impl Engine {
    /// An engine with these options.
    pub fn new(options: EngineOptions) -> Self {
        let mut syntax = Syntax::default();
        let syntax = syntax.apply(&options.jinja_env).map(|()| Arc::new(syntax));
        Engine {
            allow_undefined: options.allow_undefined,
            limits: options.limits,
            syntax,
            cache: Mutex::default(),
            hasher: RandomState::new(),
        }
    }

    /// Renders a template.
    pub fn render(&self, source: &Source<'_>, context: &Context<'_>) -> Result<Rendered, RenderError> {
        self.render_kept(source, &OnceLock::new(), context)
    }

    /// As [`Engine::render`], for a text whose owner keeps what it was compiled to by this engine.
    pub fn render_kept(
        &self,
        source: &Source<'_>,
        kept: &OnceLock<Prepared>,
        context: &Context<'_>,
    ) -> Result<Rendered, RenderError> {
        budget::begin(self.limits);
        let compiled;
        let compiled = match kept.get().filter(|kept| *kept.0.file == *source.path) {
            Some(kept) => &*kept.0,
            None => {
                compiled = self.whole(source).map_err(|error| outcome(error, &Text::from(source.path)))?;
                let _ = kept.set(Prepared(Arc::clone(&compiled)));
                &*compiled
            }
        };
        let mut interp = Interp::new(self, context, source.path, compiled, !self.allow_undefined);
        let mut text = String::with_capacity(source.text.len() + source.text.len() / 4);
        let result = interp.template(&compiled.template, &mut text);
        // What was done last may have been too much.
        let result = result.and_then(|()| budget::step()).map_err(|error| interp.fail(error));
        interp.end();
        result.map_err(|error| outcome(error, &compiled.file))?;
        // Jinja takes the last newline away, and Salt gives it back.
        if source.text.ends_with('\n') {
            text.push('\n');
        }
        Ok(Rendered { text })
    }

    /// Whether a template compiles at all; what only an event can show is not seen.
    pub fn compile(&self, source: &Source<'_>) -> Result<(), RenderError> {
        budget::begin(self.limits);
        self.whole(source).map(drop).map_err(|error| outcome(error, &Text::from(source.path)))
    }

    /// What of a template Salt itself would have to do.
    pub fn check(&self, source: &Source<'_>) -> Vec<NotNative> {
        budget::begin(self.limits);
        match self.whole(source) {
            Ok(compiled) => check::not_native(&compiled.template),
            Err(error) if error.kind() == Kind::NotNative => {
                let line = error.0.at.as_ref().map_or(0, |(_, line)| *line);
                vec![NotNative { line, what: error.0.message.clone() }]
            }
            Err(_) => Vec::new(),
        }
    }

    /// A file, compiled, its header line seen.
    fn whole(&self, source: &Source<'_>) -> Res<Arc<Compiled>> {
        let syntax = self.syntax.as_ref().map_err(|message| Exc::new(Kind::Other, message.clone()))?;
        let key = self.hasher.hash_one((source.text, 0_u8, source.path));
        if let Some(compiled) = self.kept(key, source.text, syntax, source.path, true) {
            return Ok(compiled);
        }
        let (options, text) = header(source.text);
        let syntax = match options {
            Some(options) => {
                let mut own = Syntax::clone(syntax);
                own.apply(&options).map_err(|message| Exc::new(Kind::Other, message))?;
                Arc::new(own)
            }
            None => Arc::clone(syntax),
        };
        let file = Text::from(source.path);
        let template = Arc::new(parser::parse(&text, &syntax, &file)?);
        check::names(&template)?;
        Ok(self.keep(key, Compiled::new(source.text, file, syntax, template)))
    }

    /// An imported file, compiled.
    pub(crate) fn compiled(&self, text: &str, syntax: &Syntax, file: &Text) -> Res<Arc<Template>> {
        let key = self.hasher.hash_one((text, 1_u8, &**file));
        if let Some(compiled) = self.kept(key, text, syntax, file, false) {
            return Ok(Arc::clone(&compiled.template));
        }
        let parse = || -> Res<Template> {
            let template = parser::parse(text, syntax, file)?;
            check::names(&template)?;
            Ok(template)
        };
        let template = Arc::new(parse().map_err(|error| error.in_file(file))?);
        let syntax = Arc::new(Syntax::clone(syntax));
        let compiled = Compiled::new(text, Text::clone(file), syntax, template);
        Ok(Arc::clone(&self.keep(key, compiled).template))
    }

    fn kept(&self, key: u64, text: &str, syntax: &Syntax, file: &str, header: bool) -> Option<Arc<Compiled>> {
        let cache = self.cache.lock().unwrap_or_else(PoisonError::into_inner);
        let found = cache.templates.get(&key)?;
        // What macros and blocks say of their file is compiled in.
        let same = found.text == text && *found.file == *file && (header || *found.syntax == *syntax);
        same.then(|| Arc::clone(found))
    }

    fn keep(&self, key: u64, compiled: Compiled) -> Arc<Compiled> {
        let compiled = Arc::new(compiled);
        let bytes = compiled.text.len();
        let mut cache = self.cache.lock().unwrap_or_else(PoisonError::into_inner);
        if cache.bytes + bytes > limits::JINJA_CACHE_BYTES
            || cache.templates.len() >= limits::JINJA_CACHE_TEMPLATES
        {
            cache.templates.clear();
            cache.bytes = 0;
        }
        cache.bytes += bytes;
        if let Some(old) = cache.templates.insert(key, Arc::clone(&compiled)) {
            cache.bytes -= old.text.len().min(cache.bytes);
        }
        compiled
    }
}

/// An exception as the caller sees it.
fn outcome(error: Exc, file: &Text) -> RenderError {
    let inner = *error.in_file(file).0;
    let (file, line) = inner.at.unwrap_or((Text::clone(file), 0));
    let kind = match inner.kind {
        Kind::NotNative => RenderErrorKind::NotNative,
        Kind::Limit => RenderErrorKind::Limit,
        _ => RenderErrorKind::Failed,
    };
    let message = match inner.kind {
        Kind::Undefined => format!("Jinja variable {}", inner.message),
        Kind::Runtime | Kind::Syntax | Kind::Security => format!("Jinja syntax error: {}", inner.message),
        Kind::Salt => format!("Problem running salt function in Jinja template: {}", inner.message),
        Kind::NotNative | Kind::Limit => inner.message,
        Kind::NotFound => format!("Jinja error: {}: no such template", inner.message),
        _ => format!("Jinja error: {}", inner.message),
    };
    RenderError { file: file.to_string(), line, message, kind }
}
