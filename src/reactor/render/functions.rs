//! Native versions of simple execution functions that templates use often.
//!
//! If the master has its own module of the same name (`_modules/pillar.py`), Salt is called for all
//! functions of that module. The directories of such modules are looked at again after
//! [`limits::REACTOR_MODULES_TRUSTED`].

use std::path::PathBuf;
use std::time::Instant;

use parking_lot::Mutex;

use crate::base::limits;
use crate::config::salt_master::SaltMaster;
use crate::model::{Note, NoteLevel};
use crate::wire::python::{Map, Value};

use super::hash;
use crate::reactor::helper::salt::SaltAnswer;

const NAMES: [&str; 19] = [
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

#[derive(Debug, Default)]
pub(in crate::reactor) struct Functions {
    /// The places from which the master loads modules besides those of Salt.
    dirs: Vec<PathBuf>,
    own: Mutex<OwnModules>,
}

/// The modules that the master replaces.
#[derive(Debug, Default)]
struct OwnModules {
    names: Vec<&'static str>,
    /// Until then the directories are not looked at again.
    trusted: Option<Instant>,
}

/// The result; `None` if Salt must be called.
type Answer = Option<Result<Value, (String, String)>>;

impl Functions {
    /// Without the modules that the master replaces.
    pub(in crate::reactor) fn of(master: &SaltMaster) -> Self {
        let roots = master.file_roots.values().flatten();
        let extension_modules = master
            .text("extension_modules")
            .map(|dir| PathBuf::from(dir).join("modules"));

        Self {
            dirs: roots
                .map(|root| root.join("_modules"))
                .chain(extension_modules)
                .chain(master.texts("module_dirs").into_iter().map(PathBuf::from))
                .collect(),
            own: Mutex::default(),
        }
    }

    /// Whether the master has its own module of this name now.
    fn is_own(&self, module: &str) -> bool {
        let mut own = self.own.lock();
        let now = Instant::now();

        if own.trusted.is_none_or(|until| until <= now) {
            own.trusted = Some(now + limits::REACTOR_MODULES_TRUSTED);
            own.names = self.own_modules();
        }
        own.names.contains(&module)
    }

    fn own_modules(&self) -> Vec<&'static str> {
        let mut modules: Vec<&'static str> = NAMES
            .iter()
            .filter_map(|name| Some(name.split_once('.')?.0))
            .collect();
        modules.dedup();

        let mut found = Vec::new();
        for dir in &self.dirs {
            // Most sites lack most of these directories.
            for entry in std::fs::read_dir(dir).into_iter().flatten().flatten() {
                let name = entry.file_name();
                // With any ending, because Salt loads sources, bytecode, libraries and packages.
                let stem = name.to_str().and_then(|name| name.split('.').next());
                let module = modules.iter().find(|known| Some(**known) == stem);
                found.extend(module.copied());
            }
        }
        found
    }

    pub(in crate::reactor) fn names(&self) -> Vec<String> {
        NAMES
            .iter()
            .filter(|name| self.has(name))
            .map(|name| (*name).to_owned())
            .collect()
    }

    pub(in crate::reactor) fn has(&self, fun: &str) -> bool {
        NAMES.contains(&fun)
            && fun
                .split_once('.')
                .is_some_and(|(module, _)| !self.is_own(module))
    }

    /// Calls a native function; `None` if it does not support these arguments.
    pub(in crate::reactor) fn call(
        &self,
        fun: &str,
        args: &[Value],
        kwargs: &Map,
        opts: &Value,
        grains: &Value,
    ) -> Option<SaltAnswer> {
        if !self.has(fun) {
            return None;
        }
        let mut notes = Vec::new();

        // `None` gives the file to Salt, for example because of an argument that is not known here.
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
            ("log", level) => log(level, args, kwargs, &mut notes),
            ("pillar", "get") => pillar_get(args, kwargs),
            ("environ", verb) => environ(verb, args, kwargs),
            ("config", "get") => look_up(args, kwargs, opts),
            ("grains", "get") => look_up(args, kwargs, grains),
            ("hashutil", verb) => hashed(verb, args, kwargs),
            _ => None,
        }?;

        Some(SaltAnswer {
            result,
            retcode: 0,
            notes,
        })
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

fn log(level: &str, args: &[Value], kwargs: &Map, notes: &mut Vec<Note>) -> Answer {
    let message = only(&["message"], args, kwargs)?
        .first()
        .cloned()
        .flatten()?;

    let level = match level {
        "debug" => NoteLevel::Debug,
        "info" => NoteLevel::Info,
        "warning" => NoteLevel::Warning,
        "error" => NoteLevel::Error,
        _ => return None,
    };

    // The message is logged only if the rendering counts, see `Recorded`.
    notes.push(Note::new(
        level,
        "salt.loaded.int.module.logmod",
        message.python_str(),
    ));
    Some(Ok(Value::Bool(true)))
}

/// The master's inner minion has no pillar.
fn pillar_get(args: &[Value], kwargs: &Map) -> Answer {
    match only(&["key", "default"], args, kwargs)?.as_slice() {
        [Some(Value::Str(key)), default] if !key.is_empty() => {
            Some(Ok(default.clone().unwrap_or_else(|| "".into())))
        }
        _ => None,
    }
}

fn environ(verb: &str, args: &[Value], kwargs: &Map) -> Answer {
    let second = if verb == "get" { "default" } else { "value" };
    let given = only(&["key", second], args, kwargs)?;
    let [Some(Value::Str(key)), other] = given.as_slice() else {
        return None;
    };

    // The environment of the daemon stands for that of the master.
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

/// A known value; Salt may know others from other sources.
fn look_up(args: &[Value], kwargs: &Map, root: &Value) -> Answer {
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

fn hashed(verb: &str, args: &[Value], kwargs: &Map) -> Answer {
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
                return Some(Err(("CommandExecutionError".to_owned(), message)));
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
    use crate::wire::python::yaml;

    #[test]
    fn simple_functions_run_without_salt() {
        let functions = Functions::default();
        let (opts, grains) = (
            yaml::load("{id: m, a: {b: c}}").unwrap(),
            yaml::load("{os: Debian}").unwrap(),
        );
        let call = |fun: &str, args: &str, kwargs: &str| {
            let (args, kwargs) = (yaml::load(args).unwrap(), yaml::load(kwargs).unwrap());
            let answer = functions.call(
                fun,
                args.as_list().unwrap(),
                kwargs.as_map().unwrap(),
                &opts,
                &grains,
            )?;
            Some(
                answer
                    .result
                    .map_or_else(|(kind, _)| kind, |value| value.python_str()),
            )
        };
        assert_eq!(call("pillar.get", "[a:b]", "{}").unwrap(), "");
        assert_eq!(call("pillar.get", "[a:b]", "{default: x}").unwrap(), "x");
        assert_eq!(call("pillar.get", "[a:b]", "{merge: true}"), None);
        assert_eq!(call("config.get", "[a:b]", "{}").unwrap(), "c");
        assert_eq!(call("config.get", "[nope, x]", "{}"), None);
        assert_eq!(call("grains.get", "[os]", "{}").unwrap(), "Debian");
        assert_eq!(
            call("environ.get", "[SALTCELLAR_NO_SUCH, x]", "{}").unwrap(),
            "x"
        );
        assert_eq!(
            call("hashutil.digest", "[abc]", "{}").unwrap(),
            "900150983cd24fb0d6963f7d28e17f72"
        );
        assert_eq!(
            call("hashutil.digest", "[abc, crc]", "{}").unwrap(),
            "CommandExecutionError"
        );
        assert_eq!(call("log.info", "[x]", "{}").unwrap(), "True");
        assert_eq!(call("cmd.run", "[x]", "{}"), None);
    }

    #[test]
    fn functions_of_the_master_s_own_modules_are_called_in_salt() {
        let dir = tempfile::tempdir().unwrap();
        let modules = dir.path().join("srv/_modules");
        std::fs::create_dir_all(&modules).unwrap();
        std::fs::write(modules.join("pillar.py"), "").unwrap();
        std::fs::write(
            dir.path().join("master"),
            format!("file_roots: {{base: ['{}/srv']}}\n", dir.path().display()),
        )
        .unwrap();
        let functions = Functions::of(&SaltMaster::read(&dir.path().join("master")));
        let looked_at_again = |expected: [bool; 3]| {
            functions.own.lock().trusted = None;
            let has = ["pillar.get", "log.info", "test.ping"].map(|fun| functions.has(fun));
            assert_eq!(has, expected);
        };
        looked_at_again([false, true, true]);

        // Modules that come and go while the daemon runs.
        std::fs::remove_file(modules.join("pillar.py")).unwrap();
        std::fs::create_dir(modules.join("test")).unwrap();
        looked_at_again([true, true, false]);

        let (none, empty) = (Value::Map(Map::default()), Map::default());
        let answer = functions.call("test.ping", &[], &empty, &none, &none);
        assert!(answer.is_none(), "Salt must be called");
    }
}
