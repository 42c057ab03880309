//! The variables of a template: the event, grains, options and functions.

use std::sync::{Arc, OnceLock};

use minijinja::Value;

use super::data::Data;
use super::salt_functions::SaltFunctions;
use super::value::{self, Access};
use crate::value::{Map, Value as Plain};

/// Variables that are equal for all events of a thread, converted on first use. Native templates
/// cannot change them.
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
        self.value
            .get_or_init(|| value::from_plain(&self.from, self.access, 0))
            .clone()
    }
}

impl Ambient {
    /// The master's grains and options. `whole`: these are all grains that Salt knows. Salt always
    /// knows more options.
    pub fn new(grains: Arc<Plain>, opts: Arc<Plain>, whole: bool) -> Self {
        let lazy = |from, access| Lazy {
            from,
            access,
            value: OnceLock::new(),
        };
        Ambient {
            grains: lazy(grains, if whole { Access::Read } else { Access::Partial }),
            opts: lazy(opts, Access::Partial),
            pillar: value::from_plain(&Plain::Map(Map::default()), Access::Read, 0),
        }
    }

    /// The variable of this name.
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
        let empty = Arc::new(Plain::Map(Map::default()));
        Ambient::new(Arc::clone(&empty), empty, false)
    }
}

/// The variables of one rendering, shared by all files of an event.
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
