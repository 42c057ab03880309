//! What a template sees: the event, and what surrounds it.

use std::sync::Arc;

use crate::sls::jinja::values::convert;
use crate::sls::value::{Map, Value};

/// An event's data as templates see it: one value, shared by all files of an event, that they may change.
///
/// Cheap to clone: a clone is the same data. It stays on its thread.
#[derive(Clone)]
pub struct Data(pub(crate) convert::Shared);

impl Data {
    /// Out of the bytes of a msgpack value.
    pub fn from_msgpack(bytes: &[u8]) -> Result<Self, String> {
        convert::from_msgpack(bytes).map(Data)
    }

    /// Out of a value.
    pub fn from_value(value: &Value) -> Self {
        Data(convert::from_value(value))
    }

    /// As it is now.
    pub fn to_value(&self) -> Value {
        convert::to_value(&self.0)
    }
}

/// What surrounds the events of one thread: the same for all, converted when first asked for.
///
/// Templates can change it, and later ones see that, as in Salt's process.
pub struct Ambient {
    pub(crate) grains: convert::Lazy,
    pub(crate) opts: convert::Lazy,
    pub(crate) pillar: convert::Lazy,
}

impl Ambient {
    /// The master's grains and options.
    pub fn new(grains: Arc<Value>, opts: Arc<Value>) -> Self {
        Ambient {
            grains: convert::Lazy::new(grains),
            opts: convert::Lazy::new(opts),
            pillar: convert::Lazy::new(Arc::new(Value::Map(Map::new()))),
        }
    }
}

impl Default for Ambient {
    fn default() -> Self {
        let empty = Arc::new(Value::Map(Map::new()));
        Ambient::new(Arc::clone(&empty), empty)
    }
}

/// A file that a template imports.
#[derive(Debug, Clone)]
pub struct Loaded {
    /// Where it lies, for errors.
    pub path: String,
    /// What is in it.
    pub text: Arc<str>,
}

/// Where imports, includes and `extends` look: the file server's environment `base`.
pub trait Loader {
    /// The file of this name, relative to the root; `None` if there is none. An error fails the rendering.
    fn load(&self, name: &str) -> Result<Option<Loaded>, String>;
}

/// No file at all.
pub struct NoFiles;

impl Loader for NoFiles {
    fn load(&self, _name: &str) -> Result<Option<Loaded>, String> {
        Ok(None)
    }
}

/// The execution modules behind `salt`.
pub trait SaltFunctions {
    /// Whether there is such a function: `test.ping`. An error says why that cannot be found out at the moment.
    fn has(&self, fun: &str) -> Result<bool, String>;

    /// Whether there is such a module: `test`.
    fn has_module(&self, module: &str) -> bool {
        let _ = module;
        true
    }

    /// Calls it. An error is the exception's text.
    fn call(&self, fun: &str, args: &[Value], kwargs: &[(String, Value)]) -> Result<Value, String>;

    /// Whether the functions are not known here, but might be to Salt: then what [`has`](Self::has) denies is not native, instead of
    /// undefined.
    fn elsewhere(&self) -> Result<bool, String> {
        Ok(false)
    }
}

/// No function at all; Salt might have them.
pub struct NoFunctions;

impl SaltFunctions for NoFunctions {
    fn has(&self, _fun: &str) -> Result<bool, String> {
        Ok(false)
    }

    fn call(&self, fun: &str, _args: &[Value], _kwargs: &[(String, Value)]) -> Result<Value, String> {
        Err(format!("no function {fun}"))
    }

    fn elsewhere(&self) -> Result<bool, String> {
        Ok(true)
    }
}

/// What one rendering sees. All files of an event get the same.
pub struct Context<'a> {
    /// The event's tag.
    pub tag: &'a str,
    /// The event's data.
    pub data: &'a Data,
    /// The file server's environment, `base`.
    pub saltenv: &'a str,
    /// Grains, options, pillar.
    pub ambient: &'a Ambient,
    /// Where imports come from.
    pub loader: &'a dyn Loader,
    /// The functions of `salt`.
    pub salt: &'a dyn SaltFunctions,
}

impl<'a> Context<'a> {
    /// The context of an event, in environment `base`.
    pub fn new(
        tag: &'a str,
        data: &'a Data,
        ambient: &'a Ambient,
        loader: &'a dyn Loader,
        salt: &'a dyn SaltFunctions,
    ) -> Self {
        Context { tag, data, saltenv: "base", ambient, loader, salt }
    }
}
