//! Native versions of simple execution functions that templates use often: `salt['pillar.get']('a')`.
//!
//! None has an effect: Salt can therefore rerender a template that proves not to be native.

use std::sync::Arc;

use crate::hash;
use crate::jinja::SaltFunctions;
use crate::value::{Map, Value};

/// The functions that [`call`] knows.
pub const NAMES: [&str; 19] = [
    "config.get",
    "environ.get",
    "environ.has_value",
    "hashutil.digest",
    "hashutil.md5_digest",
    "hashutil.sha256_digest",
    "hashutil.sha512_digest",
    "log.debug",
    "log.error",
    "log.info",
    "log.warning",
    "pillar.get",
    "test.echo",
    "test.false",
    "test.false_",
    "test.ping",
    "test.true",
    "test.true_",
    "grains.get",
];

/// An exception of a function.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{kind}: {message}")]
pub struct Raised {
    /// `type(exception).__name__`
    pub kind: String,
    /// `str(exception)`
    pub message: String,
}

/// The level of a log message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Level {
    /// `log.debug`
    Debug,
    /// `log.info`
    Info,
    /// `log.warning`
    Warning,
    /// `log.error`
    Error,
}

/// A message that a function of `log` would log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Logged {
    /// The level.
    pub level: Level,
    /// The message.
    pub message: String,
}

/// What a call gives.
#[derive(Debug, Clone)]
pub struct Answer {
    /// The function's result.
    pub result: Result<Value, Raised>,
    /// The messages that it logs, in the logger `salt.loaded.int.module.logmod`.
    pub logged: Vec<Logged>,
}

/// The result; `None` if Salt must be called.
type Native = Option<Result<Value, Raised>>;

/// Calls a function; `None` if it is none of [`NAMES`], or needs Salt with these arguments.
///
/// `opts` and `grains` are what is known of the master's options and grains. Salt may know more, so
/// a missing key proves nothing.
pub fn call(
    fun: &str,
    args: &[Value],
    kwargs: &Map,
    opts: &Value,
    grains: &Value,
) -> Option<Answer> {
    let mut logged = Vec::new();
    let result = match fun.split_once('.')? {
        ("test", "ping" | "true" | "true_") if args.is_empty() && kwargs.is_empty() => {
            Some(Ok(Value::Bool(true)))
        }
        ("test", "false" | "false_") if args.is_empty() && kwargs.is_empty() => {
            Some(Ok(Value::Bool(false)))
        }
        ("test", "echo") => only(&["text"], args, kwargs)?
            .first()
            .cloned()
            .flatten()
            .map(Ok),
        ("log", level) => log(level, args, kwargs, &mut logged),
        ("pillar", "get") => pillar_get(args, kwargs),
        ("environ", verb @ ("get" | "has_value")) => environ(verb, args, kwargs),
        ("config", "get") => look_up(args, kwargs, opts),
        ("grains", "get") => look_up(args, kwargs, grains),
        ("hashutil", verb) => hashed(verb, args, kwargs),
        _ => None,
    }?;

    Some(Answer { result, logged })
}

/// [`NAMES`] for templates. An exception, like an argument that is not known here, makes the template not native; log messages are
/// dropped.
#[derive(Debug, Clone)]
pub struct NativeFunctions {
    /// What is known of the master's options.
    pub opts: Arc<Value>,
    /// What is known of its grains.
    pub grains: Arc<Value>,
}

impl SaltFunctions for NativeFunctions {
    fn call(&self, fun: &str, args: &[Value], kwargs: &Map) -> Option<Value> {
        call(fun, args, kwargs, &self.opts, &self.grains)?
            .result
            .ok()
    }
}

/// The values of the named arguments, given by position or by name; `None` if there are other
/// arguments.
fn only(names: &[&str], args: &[Value], kwargs: &Map) -> Option<Vec<Option<Value>>> {
    let known = kwargs.keys().all(|key| {
        key.as_str()
            .is_some_and(|key| names.iter().skip(args.len()).any(|n| *n == key))
    });
    (known && args.len() <= names.len()).then(|| {
        let value =
            |(index, name): (usize, &&str)| args.get(index).or_else(|| kwargs.get(*name)).cloned();
        names.iter().enumerate().map(value).collect()
    })
}

fn log(level: &str, args: &[Value], kwargs: &Map, logged: &mut Vec<Logged>) -> Native {
    let message = only(&["message"], args, kwargs)?
        .first()
        .cloned()
        .flatten()?;

    let level = match level {
        "debug" => Level::Debug,
        "info" => Level::Info,
        "warning" => Level::Warning,
        "error" => Level::Error,
        _ => return None,
    };

    // Only recorded: what a rendering logs counts if Salt does not render the file again.
    logged.push(Logged {
        level,
        message: message.python_str(),
    });
    Some(Ok(Value::Bool(true)))
}

/// The master's inner minion has no pillar.
fn pillar_get(args: &[Value], kwargs: &Map) -> Native {
    match only(&["key", "default"], args, kwargs)?.as_slice() {
        [Some(Value::Str(key)), default] if !key.is_empty() => {
            Some(Ok(default.clone().unwrap_or_else(|| "".into())))
        }
        _ => None,
    }
}

fn environ(verb: &str, args: &[Value], kwargs: &Map) -> Native {
    let second = if verb == "get" { "default" } else { "value" };
    let given = only(&["key", second], args, kwargs)?;
    let [Some(Value::Str(key)), other] = given.as_slice() else {
        return None;
    };

    // The environment of this process stands for the master's environment.
    let value = std::env::var(key).ok();
    Some(Ok(match (verb, other) {
        ("get", default) => {
            value.map_or_else(|| default.clone().unwrap_or_else(|| "".into()), Value::Str)
        }
        (_, None | Some(Value::Null)) => Value::Bool(value.is_some()),
        (_, Some(Value::Str(wanted))) => Value::Bool(value.as_ref() == Some(wanted)),
        _ => return None,
    }))
}

/// A known value; Salt may know more values from other sources.
fn look_up(args: &[Value], kwargs: &Map, root: &Value) -> Native {
    let given = only(&["key", "default"], args, kwargs)?;
    let [Some(Value::Str(path)), _] = given.as_slice() else {
        return None;
    };

    let mut value = root;
    for part in path.split(':') {
        value = value.as_map()?.get(part)?;
    }

    match value {
        // Salt looks such a value up elsewhere.
        Value::Str(text) if text.starts_with("sdb://") => None,
        value => Some(Ok(value.clone())),
    }
}

fn hashed(verb: &str, args: &[Value], kwargs: &Map) -> Native {
    let (name, text) = if verb == "digest" {
        let given = only(&["instr", "checksum"], args, kwargs)?;
        let [Some(Value::Str(text)), name] = given.as_slice() else {
            return None;
        };
        let name = match name {
            None => "md5".to_owned(),
            // The hashes that Salt's function knows.
            Some(Value::Str(name)) if ["md5", "sha256", "sha512"].contains(&name.as_str()) => {
                name.clone()
            }
            // As Salt's function raises it.
            Some(other) => {
                let message = format!("Hash func '{}' is not supported.", other.python_str());
                return Some(Err(Raised {
                    kind: "CommandExecutionError".to_owned(),
                    message,
                }));
            }
        };
        (name, text.clone())
    } else {
        let given = only(&["instr"], args, kwargs)?;
        let [Some(Value::Str(text))] = given.as_slice() else {
            return None;
        };
        (verb.strip_suffix("_digest")?.to_owned(), text.clone())
    };

    hash::by_name(&name, text.as_bytes()).map(|digest| Ok(Value::Str(digest)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::yaml;

    #[test]
    fn simple_functions_run_without_salt() {
        let (opts, grains) = (
            yaml::load("{id: m, a: {b: c}}").unwrap(),
            yaml::load("{os: Debian}").unwrap(),
        );
        let called = |fun: &str, args: &str, kwargs: &str| {
            let (args, kwargs) = (yaml::load(args).unwrap(), yaml::load(kwargs).unwrap());
            call(
                fun,
                args.as_list().unwrap(),
                kwargs.as_map().unwrap(),
                &opts,
                &grains,
            )
        };
        let shown = |fun: &str, args: &str, kwargs: &str| {
            let answer = called(fun, args, kwargs)?;
            Some(
                answer
                    .result
                    .map_or_else(|raised| raised.kind, |value| value.python_str()),
            )
        };
        assert_eq!(shown("pillar.get", "[a:b]", "{}").unwrap(), "");
        assert_eq!(shown("pillar.get", "[a:b]", "{default: x}").unwrap(), "x");
        assert_eq!(shown("pillar.get", "[a:b]", "{merge: true}"), None);
        assert_eq!(shown("config.get", "[a:b]", "{}").unwrap(), "c");
        assert_eq!(shown("config.get", "[nope, x]", "{}"), None);
        assert_eq!(shown("grains.get", "[os]", "{}").unwrap(), "Debian");
        assert_eq!(
            shown("environ.get", "[SALT_SLS_NO_SUCH, x]", "{}").unwrap(),
            "x"
        );
        assert_eq!(shown("environ.items", "[]", "{}"), None);
        assert_eq!(
            shown("hashutil.digest", "[abc]", "{}").unwrap(),
            "900150983cd24fb0d6963f7d28e17f72"
        );
        assert_eq!(
            shown("hashutil.digest", "[abc, crc]", "{}").unwrap(),
            "CommandExecutionError"
        );
        assert_eq!(shown("cmd.run", "[x]", "{}"), None);

        let answer = called("log.info", "[x]", "{}").unwrap();
        let expected = Logged {
            level: Level::Info,
            message: "x".to_owned(),
        };
        assert_eq!(answer.result, Ok(Value::Bool(true)));
        assert_eq!(answer.logged, [expected]);
    }
}
