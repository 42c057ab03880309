//! The configuration of a Salt master, read as Salt reads it: who needs to know where the master keeps its keys, on
//! which port it answers or what its `reactor` says asks here. That of a minion is read the same way, over other defaults.
//!
//! [`SaltMaster::read`] follows `default_include` and `include`, lays the result over Salt's defaults
//! (`options.json`, made by `tests/lab/salt_options.py`), and puts `root_dir` before the paths. It never fails: what
//! cannot be used is a [`Note`] in Salt's words, and Salt's default stands. Reading touches nothing but the files.
//!
//! ```text
//! let master = SaltMaster::read(Path::new("/etc/salt/master"));
//! master.pki_dir; master.text("master_job_cache"); master.option("reactor"); master.notes;
//! ```

mod keys;
mod merge;
mod types;

use std::path::{Path, PathBuf};
use std::sync::LazyLock;

pub use self::keys::{key_files, read_key};
use self::merge::{Reader, key_text, repack};
use crate::config::python_glob::{glob, has_magic};
use crate::model::{Note, NoteLevel};
use crate::sls::value::Key;
use crate::sls::{Map, Value};

/// Where a packaged master is configured.
pub const SALT_MASTER_FILE: &str = "/etc/salt/master";

/// Where Salt's own packages have their Python.
pub const SALT_PYTHON: &str = "/opt/saltstack/salt/bin/python3";

/// The same file or directory, by whichever name; names are compared where nothing is there.
pub fn same_place(one: &Path, other: &Path) -> bool {
    let real = |path: &Path| path.canonicalize().unwrap_or_else(|_| path.to_owned());
    one == other || real(one) == real(other)
}

/// Salt's defaults and types of options, as `tests/lab/salt_options.py` printed them.
static OPTIONS: LazyLock<Table> = LazyLock::new(|| Table::parse(include_str!("options.json")));

#[derive(Debug, Default)]
struct Table {
    master: Map,
    minion: Map,
    types: serde_json::Map<String, serde_json::Value>,
}

impl Table {
    /// An empty table for a file that is not as it should be; a test holds that it is.
    fn parse(text: &str) -> Self {
        let Ok(serde_json::Value::Object(mut file)) = serde_json::from_str(text) else {
            return Self::default();
        };
        let mut part = |name: &str| match file.remove(name) {
            Some(serde_json::Value::Object(map)) => map,
            _ => serde_json::Map::new(),
        };
        let to_map = |map: serde_json::Map<String, serde_json::Value>| -> Map {
            map.into_iter().map(|(key, value)| (Key::from(key), from_json(value))).collect()
        };
        Self { master: to_map(part("master")), minion: to_map(part("minion")), types: part("types") }
    }
}

fn from_json(value: serde_json::Value) -> Value {
    match value {
        serde_json::Value::Null => Value::Null,
        serde_json::Value::Bool(b) => Value::Bool(b),
        serde_json::Value::Number(n) => match n.as_i64() {
            Some(int) => Value::Int(int),
            None => Value::Float(n.as_f64().unwrap_or(f64::NAN)),
        },
        serde_json::Value::String(text) => Value::Str(text),
        serde_json::Value::Array(items) => Value::List(items.into_iter().map(from_json).collect()),
        serde_json::Value::Object(map) => {
            Value::Map(map.into_iter().map(|(key, value)| (Key::from(key), from_json(value))).collect())
        }
    }
}

/// A directory list per environment of Salt's file server.
pub type Roots = indexmap::IndexMap<String, Vec<PathBuf>>;

/// What is otherwise in a minion's defaults, of what both have.
const MINION: [(&str, &str); 5] = [
    ("default_include", "minion.d/*.conf"),
    ("pki_dir", "/etc/salt/pki/minion"),
    ("cachedir", "/var/cache/salt/minion"),
    ("sock_dir", "/var/run/salt/minion"),
    ("file_client", "remote"),
];

/// Whose configuration it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// A master's.
    Master,
    /// A minion's.
    Minion,
}

/// A master's configuration, or a minion's.
#[derive(Debug, Clone)]
pub struct SaltMaster {
    /// Whose it is.
    pub role: Role,
    /// The main file, there or not.
    pub conf_file: PathBuf,
    /// The files that were read, in order.
    pub files: Vec<PathBuf>,
    /// What was odd, in Salt's words.
    pub notes: Vec<Note>,
    /// The master's id; without `id`, what Salt would take: the machine's minion id or name, with `_master`.
    pub id: String,
    /// The user that the master runs as; `root` unless configured.
    pub user: String,
    /// Where the master keeps its cache and its users' keys.
    pub cachedir: PathBuf,
    /// Where the master's sockets lie.
    pub sock_dir: PathBuf,
    /// Where the master keeps its keys and those of its minions.
    pub pki_dir: PathBuf,
    /// Where the file server looks, per environment.
    pub file_roots: Roots,
    given: Map,
    options: Map,
}

impl SaltMaster {
    /// Reads a master's main file and all that it includes.
    pub fn read(conf_file: &Path) -> Self {
        Self::read_as(conf_file, Role::Master)
    }

    /// Reads a minion's.
    pub fn read_minion(conf_file: &Path) -> Self {
        Self::read_as(conf_file, Role::Minion)
    }

    /// Reads the main file of either.
    pub fn read_as(conf_file: &Path, role: Role) -> Self {
        let mut reader = Reader::default();
        let mut options = OPTIONS.master.clone();
        if role == Role::Minion {
            options.extend(OPTIONS.minion.clone());
            options.extend(MINION.map(|(name, value)| (Key::from(name), value.into())));
        }
        let default_include = text_of(&options, "default_include", "");
        let given = reader.main_file(conf_file, &default_include);
        options.extend(given.clone());
        Self { given, ..Self::checked(conf_file, options, reader, role) }
    }

    /// What the files say, over Salt's defaults.
    fn checked(conf_file: &Path, mut options: Map, mut reader: Reader, role: Role) -> Self {
        options.insert("conf_file".into(), path_value(conf_file));
        let (word, id_ends) = match role {
            Role::Master => ("master", "_master"),
            Role::Minion => ("minion", ""),
        };
        options.insert("__role".into(), word.into());
        if options.get("user").and_then(Value::as_str).is_none() {
            options.insert("user".into(), "root".into());
        }
        environment(&mut options, &mut reader);
        shorten_sock_dir(&mut options);
        let root = text_of(&options, "root_dir", "/");
        if !options.get("id").is_some_and(Value::truthy) {
            let id = format!("{}{id_ends}", machine_id(&root));
            options.insert("id".into(), id.into());
        }
        for name in ["pki_dir", "cachedir", "sock_dir", "extension_modules", "token_dir", "log_file"] {
            if let Some(path) = options.get(name).and_then(Value::as_str)
                && !path.contains("://")
            {
                let path = below_root(path, &root);
                options.insert(name.into(), path.into());
            }
        }
        for name in ["file_roots", "pillar_roots"] {
            let roots = options.get(name).and_then(Value::as_map).map(normal_roots);
            let roots = roots.unwrap_or_else(|| {
                reader.note(
                    NoteLevel::Warning,
                    "The file_roots parameter is not properly formatted, using defaults".to_owned(),
                );
                OPTIONS.master.get(name).and_then(Value::as_map).map(normal_roots).unwrap_or_default()
            });
            options.insert(name.into(), Value::Map(roots));
        }
        if let Some(Value::Str(hash)) = options.get_mut("hash_type") {
            *hash = hash.to_lowercase();
        }
        for complaint in types::complaints(&options, &OPTIONS.types) {
            reader.note(NoteLevel::Warning, complaint);
        }
        let nodegroups = options.get("nodegroups").and_then(repack).unwrap_or_default();
        options.insert("nodegroups".into(), Value::Map(nodegroups));
        Self {
            role,
            conf_file: conf_file.to_owned(),
            files: reader.files,
            notes: reader.notes,
            id: text_of(&options, "id", "master"),
            user: text_of(&options, "user", "root"),
            cachedir: text_of(&options, "cachedir", "/var/cache/salt/master").into(),
            sock_dir: text_of(&options, "sock_dir", "/var/run/salt/master").into(),
            pki_dir: text_of(&options, "pki_dir", "/etc/salt/pki/master").into(),
            file_roots: options.get("file_roots").and_then(Value::as_map).map(roots_of).unwrap_or_default(),
            given: Map::default(),
            options,
        }
    }

    /// What the files say, without Salt's defaults.
    pub fn given(&self) -> &Map {
        &self.given
    }

    /// The user that the files name. Without one Salt runs as whoever starts it.
    pub fn configured_user(&self) -> Option<&str> {
        self.given.get("user")?.as_str()
    }

    /// An option as configured, else Salt's default.
    pub fn option(&self, name: &str) -> Option<&Value> {
        self.options.get(name)
    }

    /// An option that is text.
    pub fn text(&self, name: &str) -> Option<&str> {
        self.option(name)?.as_str()
    }

    /// An option that is true in Python's eyes.
    pub fn flag(&self, name: &str) -> bool {
        self.option(name).is_some_and(Value::truthy)
    }

    /// An option that is a whole number.
    pub fn int(&self, name: &str) -> Option<i64> {
        match self.option(name)? {
            Value::Int(int) => Some(*int),
            _ => None,
        }
    }

    /// An option's texts, if it is a list; a text alone is a list of one.
    pub fn texts(&self, name: &str) -> Vec<&str> {
        match self.option(name) {
            Some(Value::Str(one)) => vec![one],
            Some(Value::List(many)) => many.iter().filter_map(Value::as_str).collect(),
            _ => Vec::new(),
        }
    }

    /// All options, Salt's defaults included.
    pub fn options(&self) -> &Map {
        &self.options
    }

    /// What templates see as `opts`: the options of the minion that a master has inside, for rendering.
    pub fn minion_options(&self) -> Map {
        let mut options = OPTIONS.minion.clone();
        options.extend(self.options.clone());
        options.insert("file_client".into(), "local".into());
        options
    }

    /// The file with the key that the master accepts from its own user, and asks of reactor requests.
    pub fn key_file(&self) -> PathBuf {
        self.cachedir.join(format!(".{}_key", self.user))
    }

    /// Does Salt start its own reactor?
    ///
    /// A master adds that engine by itself where `reactor` says something, unless `engines` names it. It looks for the name
    /// with Python's `in`, so that in a list also a longer one counts, such as `saltcellar-reactor`; and engines that do not
    /// exist are passed over. A minion starts what `engines` names.
    pub fn runs_reactor(&self) -> bool {
        let own = |name: &str, options: &Value| {
            let module = options.as_map().and_then(|options| options.get("engine_module"));
            module.map_or(name, |module| module.as_str().unwrap_or_default()) == "reactor"
        };
        let started = |map: &Map| map.iter().any(|(name, options)| own(&key_text(name), options));
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

    /// Does `salt-run reactor.list` ask, instead of saying that no reactor is running? It looks for the name as above.
    pub fn lets_ask_reactor(&self) -> bool {
        match self.option("engines") {
            Some(Value::List(items)) if !items.is_empty() => items.iter().any(names_reactor),
            Some(Value::Map(map)) if !map.is_empty() => {
                map.keys().any(|name| key_text(name).contains("reactor"))
            }
            _ => self.flag("reactor"),
        }
    }

    /// The names of the engines that the master starts.
    pub fn engines(&self) -> Vec<String> {
        let mut names = Vec::new();
        match self.option("engines") {
            Some(Value::List(items)) => {
                for item in items {
                    match item {
                        Value::Str(name) => names.push(name.clone()),
                        Value::Map(map) => names.extend(map.keys().map(key_text)),
                        _ => {}
                    }
                }
            }
            Some(Value::Map(map)) => names.extend(map.keys().map(key_text)),
            _ => {}
        }
        names
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

fn path_value(path: &Path) -> Value {
    Value::Str(path.to_string_lossy().into_owned())
}

fn text_of(options: &Map, name: &str, otherwise: &str) -> String {
    options.get(name).and_then(Value::as_str).unwrap_or(otherwise).to_owned()
}

/// `environment` is the old name of `saltenv`.
fn environment(options: &mut Map, reader: &mut Reader) {
    let Some(old) = options.get("environment").cloned() else { return };
    if options.get("saltenv").is_some_and(|new| *new != Value::Null) {
        reader.note(
            NoteLevel::Warning,
            "The 'saltenv' and 'environment' master config options cannot both be used. Ignoring 'environment' in \
             favor of 'saltenv'."
                .to_owned(),
        );
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

/// A socket's path has little room, so Salt moves long ones into the cache directory.
fn shorten_sock_dir(options: &mut Map) {
    let (sock_dir, cachedir) = (text_of(options, "sock_dir", ""), text_of(options, "cachedir", ""));
    if sock_dir.chars().count() > cachedir.chars().count() + 10 {
        options.insert("sock_dir".into(), format!("{}/.salt-unix", cachedir.trim_end_matches('/')).into());
    }
    if !options.get("extension_modules").is_some_and(Value::truthy) {
        options
            .insert("extension_modules".into(), format!("{}/extmods", cachedir.trim_end_matches('/')).into());
    }
    options.insert("token_dir".into(), format!("{}/tokens", cachedir.trim_end_matches('/')).into());
}

/// Salt puts `root_dir` before every path that does not lie below it yet.
fn below_root(path: &str, root: &str) -> String {
    let root = root.trim_end_matches('/');
    if path == root || path.strip_prefix(root).is_some_and(|rest| rest.starts_with('/')) {
        return path.to_owned();
    }
    format!("{root}/{}", path.trim_start_matches('/'))
}

/// Environments have text names and lists of directories, patterns among them spread out.
fn normal_roots(roots: &Map) -> Map {
    let mut normal = Map::new();
    for (env, dirs) in roots {
        let dirs = match dirs {
            Value::List(dirs) | Value::Tuple(dirs) => dirs.as_slice(),
            _ => &[],
        };
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
            (key_text(env), dirs.iter().filter_map(Value::as_str).map(PathBuf::from).collect())
        })
        .collect()
}

/// What Salt takes for an id where none is configured.
fn machine_id(root: &str) -> String {
    let cached = std::fs::read_to_string(format!("{}/etc/salt/minion_id", root.trim_end_matches('/')));
    let cached = cached.ok().and_then(|text| Some(text.lines().next()?.trim().to_owned()));
    match cached {
        Some(id) if !id.is_empty() && id != "localhost" => id,
        _ => rustix::system::uname().nodename().to_string_lossy().into_owned(),
    }
}

#[cfg(test)]
mod tests;
