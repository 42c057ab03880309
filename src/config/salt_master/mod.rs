//! The configuration of a Salt master, read as Salt reads it: directories, ports, `reactor` rules and other options. A
//! minion's is read the same way, with other defaults.
//!
//! [`SaltMaster::read`] follows `default_include` and `include`, applies the result to Salt's defaults of the options that
//! are read here, and prepends `root_dir` to the paths. It never fails: an unusable value becomes a [`Note`] in Salt's words,
//! and Salt's default applies. It reads only the configuration files.
//!
//! ```text
//! let master = SaltMaster::read(Path::new("/etc/salt/master"));
//! master.pki_dir; master.text("master_job_cache"); master.option("reactor"); master.notes;
//! ```

mod id;
mod keys;
mod merge;
pub mod python;
mod watched;

use std::path::{Path, PathBuf};

use salt_sls::{Key, Map, Value};

use self::id::{id_of, is_of_function};
pub use self::keys::{FileIdentity, key_files, read_key, read_small};
use self::merge::{Reader, key_text, repack};
pub use self::watched::WatchedFiles;
use crate::config::python_glob::{glob, has_magic};
use crate::model::{Note, NoteLevel};

/// The configuration file of a packaged master.
pub const SALT_MASTER_FILE: &str = "/etc/salt/master";
/// Configuration directory of Salt's packages.
pub const SALT_CONFIG: &str = "/etc/salt";

/// Whether two paths lead to the same file or directory; compares names where nothing exists.
pub fn same_file(one: &Path, other: &Path) -> bool {
    let real = |path: &Path| path.canonicalize().unwrap_or_else(|_| path.to_owned());
    one == other || real(one) == real(other)
}

/// A directory list per environment of Salt's file server.
pub type Roots = indexmap::IndexMap<String, Vec<PathBuf>>;

/// Salt's defaults of a master's options.
const TEXTS: [(&str, &str); 10] = [
    ("cachedir", "/var/cache/salt/master"),
    ("default_include", "master.d/*.conf"),
    ("extension_modules", "/var/cache/salt/master/extmods"),
    ("interface", "0.0.0.0"),
    ("master_job_cache", "local_cache"),
    ("pki_dir", "/etc/salt/pki/master"),
    ("renderer", "jinja|yaml"),
    ("root_dir", "/"),
    ("sock_dir", "/var/run/salt/master"),
    ("transport", "zeromq"),
];
const NUMBERS: [(&str, i64); 7] = [
    ("keep_jobs_seconds", 86_400),
    ("max_event_size", 1_048_576),
    ("publish_timeout", 30),
    ("reactor_worker_hwm", 10_000),
    ("reactor_worker_threads", 10),
    ("ret_port", 4506),
    ("timeout", 5),
];

/// The defaults in which a minion differs from a master.
const MINION: [(&str, &str); 6] = [
    ("default_include", "minion.d/*.conf"),
    ("pki_dir", "/etc/salt/pki/minion"),
    ("cachedir", "/var/cache/salt/minion"),
    ("sock_dir", "/var/run/salt/minion"),
    ("file_client", "remote"),
    ("extension_modules", "/var/cache/salt/minion/extmods"),
];

/// The daemon that a configuration belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// `salt-master`.
    Master,
    /// `salt-minion`.
    Minion,
}

impl Role {
    /// The name of its configuration file, and of the directory next to it without `.d`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Master => "master",
            Self::Minion => "minion",
        }
    }
}

/// Location of the keys of a master's minions.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AcceptedKeys {
    /// A `pki_dir`: the accepted keys are the files of `minions` in it.
    Files(PathBuf),
    /// A driver of Salt's cache without such files, such as `mmap_key`.
    Driver(String),
}

/// The value of `keys.cache_driver` that keeps keys as files.
const FILES_DRIVER: &str = "localfs_key";

/// The configuration of a master or minion.
#[derive(Debug, Clone)]
pub struct SaltMaster {
    /// The daemon that the configuration belongs to.
    pub role: Role,
    /// The main file; it may not exist.
    pub conf_file: PathBuf,
    /// The files that were read, in order.
    pub files: Vec<PathBuf>,
    /// Problems, in Salt's words.
    pub notes: Vec<Note>,
    /// The master's id. Without `id`, Salt's default: the system's minion id or host name, with `_master`.
    pub id: String,
    /// The id is another one: what `id_function` returns, which only Salt can run.
    pub id_is_of_function: bool,
    /// The user that the master runs as; `root` unless configured.
    pub user: String,
    /// The master's cache, with its users' keys.
    pub cachedir: PathBuf,
    /// The directory of the master's sockets.
    pub sock_dir: PathBuf,
    /// The directory of the master's keys and of its minions' keys.
    pub pki_dir: PathBuf,
    /// The file server's directories per environment.
    pub file_roots: Roots,
    given: Map,
    options: Map,
}

impl SaltMaster {
    /// Reads a master's main file and all that it includes.
    pub fn read(conf_file: &Path) -> Self {
        Self::read_as(conf_file, Role::Master)
    }

    /// Reads the main file of a master or minion, and its includes.
    pub fn read_as(conf_file: &Path, role: Role) -> Self {
        Self::read_by(Reader::default(), conf_file, role)
    }

    /// Reads a master's files as they will be once `file`, in the directory of included files, has this content or is removed.
    pub fn read_with(conf_file: &Path, file: &Path, text: Option<&str>) -> Self {
        let overlay = Some((file.to_owned(), text.map(str::to_owned)));
        Self::read_by(
            Reader {
                overlay,
                ..Reader::default()
            },
            conf_file,
            Role::Master,
        )
    }

    fn read_by(mut reader: Reader, conf_file: &Path, role: Role) -> Self {
        let mut options = defaults(role);
        let default_include = text_of(&options, "default_include", "");
        let given = reader.main_file(conf_file, &default_include);
        options.extend(given.clone());
        Self {
            given,
            ..Self::checked(conf_file, options, reader, role)
        }
    }

    /// Completes and checks options that are already merged with Salt's defaults.
    fn checked(conf_file: &Path, mut options: Map, mut reader: Reader, role: Role) -> Self {
        // Salt adds this and `__role`, and templates can see them.
        options.insert("conf_file".into(), path_value(conf_file));
        let (word, id_ends) = match role {
            Role::Master => ("master", "_master"),
            Role::Minion => ("minion", ""),
        };
        options.insert("__role".into(), word.into());

        // Salt's default is the user that starts it, which no file tells.
        if options.get("user").and_then(Value::as_str).is_none() {
            options.insert("user".into(), "root".into());
        }

        environment(&mut options, &mut reader);
        // In Salt's order: before `root_dir` is prepended.
        shorten_sock_dir(&mut options);

        let root = text_of(&options, "root_dir", "/");
        let id = id_of(&options, &root, id_ends);
        let id_is_of_function = is_of_function(&options, &root);
        options.insert("id".into(), id.into());

        for name in [
            "pki_dir",
            "cachedir",
            "sock_dir",
            "extension_modules",
            "token_dir",
            "log_file",
        ] {
            // An address, for example of a log server, is not a path.
            if let Some(path) = options.get(name).and_then(Value::as_str)
                && !path.contains("://")
            {
                let path = below_root(path, &root);
                options.insert(name.into(), path.into());
            }
        }

        for name in ["file_roots", "pillar_roots"] {
            let given = options.get(name).and_then(Value::as_map);
            if given.is_none() && options.contains_key(name) {
                reader.note(
                    NoteLevel::Warning,
                    "The file_roots parameter is not properly formatted, using defaults".to_owned(),
                );
            }

            let roots = given.map_or_else(|| normal_roots(&default_roots(name)), normal_roots);
            options.insert(name.into(), Value::Map(roots));
        }

        // As Salt's loader does it.
        if let Some(Value::Str(hash)) = options.get_mut("hash_type") {
            *hash = hash.to_lowercase();
        }

        // Salt also accepts a list of groups, and makes one mapping of it.
        let nodegroups = options
            .get("nodegroups")
            .and_then(repack)
            .unwrap_or_default();
        options.insert("nodegroups".into(), Value::Map(nodegroups));

        Self {
            role,
            conf_file: conf_file.to_owned(),
            files: reader.files,
            notes: reader.notes,
            id: text_of(&options, "id", "master"),
            id_is_of_function,
            user: text_of(&options, "user", "root"),
            cachedir: text_of(&options, "cachedir", "/var/cache/salt/master").into(),
            sock_dir: text_of(&options, "sock_dir", "/var/run/salt/master").into(),
            pki_dir: text_of(&options, "pki_dir", "/etc/salt/pki/master").into(),
            file_roots: options
                .get("file_roots")
                .and_then(Value::as_map)
                .map(roots_of)
                .unwrap_or_default(),
            given: Map::default(),
            options,
        }
    }

    /// The options of the files, without Salt's defaults.
    pub fn given(&self) -> &Map {
        &self.given
    }

    /// The value of an option in each file that sets it, in the order in which the files are read.
    pub fn option_by_file(&self, name: &str) -> Vec<(PathBuf, Value)> {
        let of = |file: &PathBuf| {
            Some((
                file.clone(),
                Reader::default().file(file)?.get(name)?.clone(),
            ))
        };
        self.files.iter().filter_map(of).collect()
    }

    /// The name of the cluster that the master belongs to.
    pub fn cluster_id(&self) -> Option<String> {
        let id = self.option("cluster_id").filter(|id| id.truthy())?;
        Some(id.python_str())
    }

    /// Location of the keys of the master's minions. Since 3008 an option names the driver; clusters have a shared directory.
    pub fn accepted_keys(&self) -> AcceptedKeys {
        let set = |name: &str| self.text(name).filter(|text| !text.is_empty());
        let driver = set("keys.cache_driver").unwrap_or(FILES_DRIVER);
        if driver != FILES_DRIVER {
            return AcceptedKeys::Driver(driver.to_owned());
        }

        let dir = self
            .cluster_id()
            .and_then(|_| set("cluster_pki_dir"))
            .map(PathBuf::from);
        AcceptedKeys::Files(dir.unwrap_or_else(|| self.pki_dir.clone()))
    }

    /// The user that the files name. Without one Salt runs as the user that starts it.
    pub fn configured_user(&self) -> Option<&str> {
        self.given.get("user")?.as_str()
    }

    /// An option as configured, else Salt's default if it is known here.
    pub fn option(&self, name: &str) -> Option<&Value> {
        self.options.get(name)
    }

    /// A string option.
    pub fn text(&self, name: &str) -> Option<&str> {
        self.option(name)?.as_str()
    }

    /// An option's truth value in Python.
    pub fn flag(&self, name: &str) -> bool {
        self.option(name).is_some_and(Value::truthy)
    }

    /// An integer option.
    pub fn int(&self, name: &str) -> Option<i64> {
        match self.option(name)? {
            Value::Int(int) => Some(*int),
            _ => None,
        }
    }

    /// The strings of a list option; a single string is a list of one.
    pub fn texts(&self, name: &str) -> Vec<&str> {
        match self.option(name) {
            Some(Value::Str(one)) => vec![one],
            Some(Value::List(many)) => many.iter().filter_map(Value::as_str).collect(),
            _ => Vec::new(),
        }
    }

    /// The `opts` of templates: the options of a master's internal minion, as far as they are known here.
    pub fn minion_options(&self) -> Map {
        let mut options = self.options.clone();
        options.insert("file_client".into(), "local".into());
        options
    }

    /// The key file of the master's own user, whose key authorizes reactor requests.
    pub fn key_file(&self) -> PathBuf {
        self.cachedir.join(format!(".{}_key", self.user))
    }

    /// Whether Salt starts its own reactor.
    ///
    /// A master with `reactor` rules adds that engine unless `engines` names it. It searches for
    /// the name with Python's `in`, so in a list a longer name such as `saltcellar_reactor` also
    /// matches; engines that do not exist are ignored. A minion starts the engines in `engines`.
    pub fn runs_reactor(&self) -> bool {
        // An engine can have any name and name its module by `engine_module`.
        let own = |name: &str, options: &Value| {
            let module = options
                .as_map()
                .and_then(|options| options.get("engine_module"));
            module.map_or(name, |module| module.as_str().unwrap_or_default()) == "reactor"
        };

        let started = |map: &Map| {
            map.iter()
                .any(|(name, options)| own(&key_text(name), options))
        };

        // The search for the name is looser than the start of an engine, so the two are separate.
        let adds = self.role == Role::Master && self.flag("reactor");

        match self.option("engines") {
            Some(Value::List(items)) => {
                let named = items.iter().any(names_reactor);
                let is_own = |item: &Value| match item {
                    Value::Str(name) => name == "reactor",
                    Value::Map(map) => started(map),
                    _ => false,
                };
                items.iter().any(is_own) || (adds && !named)
            }
            Some(Value::Map(map)) => started(map) || (adds && !map.contains_key("reactor")),
            _ => adds,
        }
    }

    /// Whether the extension's engine `saltcellar_reactor` may start Salt's reactor as a fallback.
    pub fn has_reactor_fallback(&self) -> bool {
        let is_engine = |item: &Value| item.as_str() == Some("saltcellar_reactor");
        let in_section = || self.option("saltcellar")?.as_map()?.get("reactor_fallback");
        let option = self
            .option("saltcellar.reactor_fallback")
            .or_else(in_section);
        matches!(self.option("engines"), Some(Value::List(items)) if items.iter().any(is_engine))
            && option == Some(&Value::Bool(true))
    }

    /// Whether `salt-run reactor.list` sends its request instead of reporting that no reactor runs. It searches for the name as above.
    pub fn sends_reactor_requests(&self) -> bool {
        match self.option("engines") {
            Some(Value::List(items)) if !items.is_empty() => items.iter().any(names_reactor),
            Some(Value::Map(map)) if !map.is_empty() => {
                map.keys().any(|name| key_text(name).contains("reactor"))
            }
            _ => self.flag("reactor"),
        }
    }
}

/// `"reactor" in item`
fn names_reactor(item: &Value) -> bool {
    match item {
        Value::Str(name) => name.contains("reactor"),
        Value::Map(map) => map.contains_key("reactor"),
        _ => false,
    }
}

fn defaults(role: Role) -> Map {
    let mut options: Map = TEXTS
        .map(|(name, text)| (Key::from(name), text.into()))
        .into_iter()
        .collect();
    options.extend(NUMBERS.map(|(name, number)| (Key::from(name), Value::Int(number))));
    options.insert("job_cache".into(), Value::Bool(true));
    options.insert("reactor".into(), Value::List(Vec::new()));

    if role == Role::Minion {
        options.extend(MINION.map(|(name, value)| (Key::from(name), value.into())));
    }
    options
}

/// The default of `file_roots` or `pillar_roots`.
fn default_roots(name: &str) -> Map {
    let kind = if name == "pillar_roots" {
        "pillar"
    } else {
        "salt"
    };
    let dirs = [format!("/srv/{kind}"), format!("/srv/spm/{kind}")].map(Value::Str);
    [(Key::from("base"), Value::List(dirs.into()))]
        .into_iter()
        .collect()
}

fn path_value(path: &Path) -> Value {
    Value::Str(path.to_string_lossy().into_owned())
}

fn text_of(options: &Map, name: &str, otherwise: &str) -> String {
    options
        .get(name)
        .and_then(Value::as_str)
        .unwrap_or(otherwise)
        .to_owned()
}

/// `environment` is the old name of `saltenv`.
fn environment(options: &mut Map, reader: &mut Reader) {
    let Some(old) = options.get("environment").cloned() else {
        return;
    };

    // In Salt's words, because users compare them with its log.
    if options
        .get("saltenv")
        .is_some_and(|new| *new != Value::Null)
    {
        reader.note(
            NoteLevel::Warning,
            "The 'saltenv' and 'environment' master config options cannot both be used. Ignoring 'environment' in \
             favor of 'saltenv'."
                .to_owned(),
        );
        // Salt keeps the old name for custom modules that read it.
        let new = options.get("saltenv").cloned().unwrap_or(Value::Null);
        options.insert("environment".into(), new);
    } else {
        reader.note(
            NoteLevel::Warning,
            format!(
                "The 'environment' master config option has been renamed to 'saltenv'. Using {} as the 'saltenv' \
                 config value.",
                old.python_str()
            ),
        );
        options.insert("saltenv".into(), old);
    }
}

/// Salt moves long socket paths into the cache directory, because a socket address is short.
fn shorten_sock_dir(options: &mut Map) {
    let (sock_dir, cachedir) = (
        text_of(options, "sock_dir", ""),
        text_of(options, "cachedir", ""),
    );

    // Salt's condition, which counts characters and not bytes.
    if sock_dir.chars().count() > cachedir.chars().count() + 10 {
        options.insert(
            "sock_dir".into(),
            format!("{}/.salt-unix", cachedir.trim_end_matches('/')).into(),
        );
    }

    // Salt derives these two from `cachedir`.
    if !options.get("extension_modules").is_some_and(Value::truthy) {
        options.insert(
            "extension_modules".into(),
            format!("{}/extmods", cachedir.trim_end_matches('/')).into(),
        );
    }

    options.insert(
        "token_dir".into(),
        format!("{}/tokens", cachedir.trim_end_matches('/')).into(),
    );
}

/// Salt prepends `root_dir` to every path outside of it.
fn below_root(path: &str, root: &str) -> String {
    let root = root.trim_end_matches('/');
    if path == root
        || path
            .strip_prefix(root)
            .is_some_and(|rest| rest.starts_with('/'))
    {
        return path.to_owned();
    }
    format!("{root}/{}", path.trim_start_matches('/'))
}

/// Converts the names of environments to strings and their directories to lists, and expands patterns.
fn normal_roots(roots: &Map) -> Map {
    let mut normal = Map::default();
    for (env, dirs) in roots {
        // Salt takes anything else for an environment without directories.
        let dirs = match dirs {
            Value::List(dirs) | Value::Tuple(dirs) => dirs.as_slice(),
            _ => &[],
        };

        // Salt expands patterns once, when it reads its configuration.
        let mut spread = Vec::new();
        for dir in dirs {
            match dir {
                Value::Str(pattern) if has_magic(pattern) => {
                    spread.extend(glob(pattern).into_iter().map(Value::Str));
                }
                other => spread.push(other.clone()),
            }
        }

        normal.insert(key_text(env).into(), Value::List(spread));
    }

    normal
}

fn roots_of(roots: &Map) -> Roots {
    roots
        .iter()
        .map(|(env, dirs)| {
            let dirs = dirs.as_list().unwrap_or_default();
            (
                key_text(env),
                dirs.iter()
                    .filter_map(Value::as_str)
                    .map(PathBuf::from)
                    .collect(),
            )
        })
        .collect()
}

#[cfg(test)]
mod tests;
