//! The native functions of `salt` ([`salt_sls::functions`]) that work on this master as Salt's do.
//!
//! If the master has its own module of the same name (`_modules/pillar.py`), Salt is called for all
//! functions of that module. The directories of such modules are looked at again after
//! [`limits::REACTOR_MODULES_TRUSTED`].

use std::path::PathBuf;
use std::time::Instant;

use parking_lot::Mutex;
use salt_sls::functions::{self, Level, Logged, NAMES};
use salt_sls::{Map, Value};

use crate::base::limits;
use crate::config::salt_master::SaltMaster;
use crate::model::{Note, NoteLevel};

/// The result of a function of Salt.
#[derive(Debug, Clone)]
pub struct SaltAnswer {
    /// The value, or the exception's type and text.
    pub result: Result<Value, (String, String)>,
    /// The return code, as a minion would report it.
    pub retcode: i64,
    /// Its log messages of level WARNING or higher.
    pub notes: Vec<Note>,
}

#[derive(Debug, Default)]
pub(in crate::reactor) struct Functions {
    /// The places from which the master loads modules in addition to Salt's modules.
    dirs: Vec<PathBuf>,
    /// Lock order: no other lock is taken under it.
    own: Mutex<OwnModules>,
}

/// The modules that the master replaces.
#[derive(Debug, Default)]
struct OwnModules {
    names: Vec<&'static str>,
    /// Until then the directories are not looked at again.
    trusted: Option<Instant>,
}

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
        // A site's module replaces Salt's module of the same name, and only Salt can run it.
        if !self.has(fun) {
            return None;
        }

        let answer = functions::call(fun, args, kwargs, opts, grains)?;
        Some(SaltAnswer {
            result: answer
                .result
                .map_err(|raised| (raised.kind, raised.message)),
            retcode: 0,
            notes: answer.logged.into_iter().map(note).collect(),
        })
    }
}

/// The note counts if the rendering does, see `Recorded`.
fn note(logged: Logged) -> Note {
    let level = match logged.level {
        Level::Debug => NoteLevel::Debug,
        Level::Info => NoteLevel::Info,
        Level::Warning => NoteLevel::Warning,
        Level::Error => NoteLevel::Error,
    };
    Note::new(level, "salt.loaded.int.module.logmod", logged.message)
}

#[cfg(test)]
mod tests {
    use super::*;

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
