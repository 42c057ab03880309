//! Salt's filters about regular expressions.

use super::{Filter, flag};
use crate::sls::jinja::eval::args::Args;
use crate::sls::jinja::eval::interp::Interp;
use crate::sls::jinja::exc::{Res, type_error};
use crate::sls::jinja::library::re::{self, At};
use crate::sls::jinja::values::val::Val;

pub(super) const FILTERS: &[(&str, Filter)] = &[
    ("regex_match", regex_match),
    ("regex_search", regex_search),
    ("regex_replace", regex_replace),
    ("regex_escape", regex_escape),
];

fn subject(val: &Val) -> Res<&str> {
    if let Val::Undef(undef) = val {
        undef.check()?;
    }
    val.as_str()
        .ok_or_else(|| type_error(format!("expected string or bytes-like object, got '{}'", val.type_name())))
}

fn found(val: &Val, args: Args, at: At) -> Res<Val> {
    let [pattern, ignore_case, multiline] = args.bind("regex", ["rgx", "ignorecase", "multiline"], 1)?;
    let pattern = pattern.unwrap_or(Val::None);
    let (ignore_case, multiline) = (flag(ignore_case.as_ref(), false)?, flag(multiline.as_ref(), false)?);
    let Some(pattern) = pattern.as_str() else {
        return Err(type_error("first argument must be string or compiled pattern"));
    };
    let regex = re::compile(pattern, at, ignore_case, multiline)?;
    re::groups(&regex, subject(val)?)
}

fn regex_match(_: &mut Interp<'_>, val: Val, args: Args) -> Res<Val> {
    found(&val, args, At::Start)
}

fn regex_search(_: &mut Interp<'_>, val: Val, args: Args) -> Res<Val> {
    found(&val, args, At::Anywhere)
}

fn regex_replace(_: &mut Interp<'_>, val: Val, args: Args) -> Res<Val> {
    let [pattern, template, ignore_case, multiline] =
        args.bind("regex_replace", ["rgx", "val", "ignorecase", "multiline"], 2)?;
    let (pattern, template) = (pattern.unwrap_or(Val::None), template.unwrap_or(Val::None));
    let (ignore_case, multiline) = (flag(ignore_case.as_ref(), false)?, flag(multiline.as_ref(), false)?);
    let Some(pattern) = pattern.as_str() else {
        return Err(type_error("first argument must be string or compiled pattern"));
    };
    let regex = re::compile(pattern, At::Anywhere, ignore_case, multiline)?;
    let Some(template) = template.as_str() else {
        return Err(type_error("decoding to str: need a bytes-like object"));
    };
    re::replace(&regex, subject(&val)?, template).map(Val::str)
}

fn regex_escape(_: &mut Interp<'_>, val: Val, args: Args) -> Res<Val> {
    args.none("regex_escape")?;
    Ok(Val::str(re::escape(subject(&val)?)))
}
