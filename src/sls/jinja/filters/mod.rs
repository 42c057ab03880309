//! The filters: Jinja's own, and Salt's.

mod data;
mod dates;
mod entries;
mod net;
mod numbers;
mod regexes;
mod sequences;
mod serialize;
mod texts;
mod wrap;

use std::collections::HashMap;
use std::sync::LazyLock;

use crate::sls::jinja::eval::args::Args;
use crate::sls::jinja::eval::interp::Interp;
use crate::sls::jinja::exc::{Res, not_native};
use crate::sls::jinja::methods::text;
use crate::sls::jinja::values::ops;
use crate::sls::jinja::values::val::{Text, Val};

/// What a filter does with a value and arguments.
pub(crate) type Filter = fn(&mut Interp<'_>, Val, Args) -> Res<Val>;

static FILTERS: LazyLock<HashMap<&'static str, Filter>> = LazyLock::new(|| {
    [
        texts::FILTERS,
        wrap::FILTERS,
        numbers::FILTERS,
        sequences::FILTERS,
        serialize::FILTERS,
        regexes::FILTERS,
        data::FILTERS,
        entries::FILTERS,
        net::FILTERS,
        dates::FILTERS,
    ]
    .into_iter()
    .flatten()
    .copied()
    .collect()
});

/// Whether there is a filter of this name.
pub(crate) fn known(name: &str) -> bool {
    FILTERS.contains_key(name)
}

/// Calls a filter.
pub(crate) fn call(interp: &mut Interp<'_>, name: &str, val: Val, args: Args) -> Res<Val> {
    match FILTERS.get(name) {
        Some(filter) => filter(interp, val, args),
        None => Err(not_native(format!("filter \"{name}\""))),
    }
}

pub(crate) use sequences::attribute;

impl Interp<'_> {
    /// `load_yaml` and its like, for a tag.
    pub(crate) fn load_filter(&mut self, name: &str, val: &Val) -> Res<Val> {
        call(self, name, val.clone(), Args::default())
    }
}

/// Text out of an argument, or a default.
fn text_arg(val: Option<Val>, default: &str) -> Res<Text> {
    match val {
        None => Ok(Text::from(default)),
        Some(Val::Str(text) | Val::Markup(text)) => Ok(text),
        Some(other) => text::want_str(&other, "filter").map(Text::from),
    }
}

/// Truth out of an argument, or a default.
fn flag(val: Option<&Val>, default: bool) -> Res<bool> {
    val.map_or(Ok(default), ops::truth)
}

/// A number out of an argument, or a default.
fn int_arg(val: Option<&Val>, default: i64) -> Res<i64> {
    val.map_or(Ok(default), text::want_int)
}
