//! What a template sees: the event, and what surrounds it.

use std::sync::{Arc, OnceLock};

use minijinja::Value;

use super::budget::{self, RenderLimits};
use super::value::{self, Access};
use crate::sls::value::{Map, Value as Plain};

/// An event's data as templates see it: one value, shared by all files of an event, that they may change.
///
/// Cheap to clone: a clone is the same data.
#[derive(Clone)]
pub struct Data(pub(crate) Value);

impl Data {
    /// Out of the bytes of a msgpack value.
    pub fn from_msgpack(bytes: &[u8]) -> Result<Self, String> {
        value::from_msgpack(bytes).map(Data)
    }

    /// Out of a value.
    pub fn from_value(value: &Plain) -> Self {
        Data(value::from_plain(value, Access::Full, 0))
    }

    /// As it is now. What nests too deep to be walked is nothing.
    pub fn to_value(&self) -> Plain {
        budget::begin(RenderLimits::default());
        value::to_plain(&self.0, 0).unwrap_or(Plain::Null)
    }
}

/// What surrounds the events of one thread: the same for all, converted when first asked for. Native templates do not change it.
pub struct Ambient {
    grains: Lazy,
    opts: Lazy,
    pillar: Value,
}

struct Lazy {
    from: Arc<Plain>,
    access: Access,
    value: OnceLock<Value>,
}

impl Lazy {
    fn get(&self) -> Value {
        self.value.get_or_init(|| value::from_plain(&self.from, self.access, 0)).clone()
    }
}

impl Ambient {
    /// The master's grains and options; `whole` where these are all grains that Salt has. There are always more options.
    pub fn new(grains: Arc<Plain>, opts: Arc<Plain>, whole: bool) -> Self {
        let lazy = |from, access| Lazy { from, access, value: OnceLock::new() };
        Ambient {
            grains: lazy(grains, if whole { Access::Read } else { Access::Partial }),
            opts: lazy(opts, Access::Partial),
            pillar: value::from_plain(&Plain::Map(Map::new()), Access::Read, 0),
        }
    }

    /// What a template finds under a name.
    pub(crate) fn get(&self, name: &str) -> Option<Value> {
        match name {
            "grains" => Some(self.grains.get()),
            "opts" => Some(self.opts.get()),
            "pillar" => Some(self.pillar.clone()),
            "saltenv" => Some(Value::from("base")),
            _ => None,
        }
    }
}

impl Default for Ambient {
    fn default() -> Self {
        let empty = Arc::new(Plain::Map(Map::new()));
        Ambient::new(Arc::clone(&empty), empty, false)
    }
}

/// The execution modules behind `salt`, of which some need no Salt and have no effect.
pub trait SaltFunctions: Send + Sync {
    /// Calls a function, if it is one of those and its arguments are of a kind that is known here.
    fn call(&self, fun: &str, args: &[Plain], kwargs: &Map) -> Option<Plain>;
}

/// No function at all; Salt might have them.
pub struct NoFunctions;

impl SaltFunctions for NoFunctions {
    fn call(&self, _fun: &str, _args: &[Plain], _kwargs: &Map) -> Option<Plain> {
        None
    }
}

/// What one rendering sees. All files of an event get the same.
#[derive(Clone)]
pub struct Context<'a> {
    /// The event's tag.
    pub tag: &'a str,
    /// The event's data.
    pub data: &'a Data,
    /// Grains, options, pillar.
    pub ambient: &'a Arc<Ambient>,
    /// The functions of `salt`.
    pub salt: &'a Arc<dyn SaltFunctions>,
}
