//! Merges flags, environment, files and defaults.
//!
//! # Invariant
//!
//! No file of the configuration overrides another.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::de::DeserializeOwned;
use serde_json::{Map, Value as Json, json};

use super::environment::{
    CONFIG_DIR, ENV_CLUSTER_SLOT, ENV_LOG, ENV_SOCKET, ENV_STATE_DIR, SYSTEM_SOCKET,
};
use super::error::Invalid;
use super::file::{self, BadYaml, Lines, Places};
use super::overrides::CliOverrides;
use super::{Config, ConfigError, Environment, Origin, fits_a_socket, render};
use crate::base::{limits, utf8};

/// Lists of directories, to which each file adds its own.
const ADDED_LISTS: [&str; 2] = ["bus", "spools"];
/// Mappings of names, to which each file adds its own.
const ADDED_MAPPINGS: [&str; 2] = ["scripts", "sinks"];

/// The daemon's socket for a client, and the origin of that path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SocketChoice {
    /// The path of the socket.
    pub path: PathBuf,
    /// The origin of the path.
    pub origin: Origin,
    /// The error of the configuration file, of which only the key `socket` was used.
    pub ignored: Option<ConfigError>,
}

impl SocketChoice {
    /// The socket that a daemon with these flags, environment and file would listen on.
    ///
    /// Without an explicit path, and if the user's own socket does not exist, this is the system daemon's socket if
    /// that exists, or may exist: its directory is closed to users outside the socket's group.
    ///
    /// An error in the configuration file does not keep a client from a running daemon: of such a
    /// file only the key `socket` is used.
    pub fn find(given: &CliOverrides, environment: &Environment) -> Result<Self, ConfigError> {
        Self::find_beside(Path::new(SYSTEM_SOCKET), given, environment)
    }

    fn find_beside(
        system: &Path,
        given: &CliOverrides,
        environment: &Environment,
    ) -> Result<Self, ConfigError> {
        // A flag or the environment has the last word, therefore the file is not needed.
        let is_named = given.socket.is_some() || environment.socket.is_some();
        let file = MainFile::find(given, environment).filter(|_| !is_named);
        // A client needs one key. An error elsewhere in the files must not keep it from the daemon.
        let (merged, ignored) = match merged(file.as_ref(), given, environment) {
            Ok(config) => (Ok(config), None),
            Err(error) => match &file {
                Some(file) => (lenient(&file.path, given, environment), Some(error)),
                None => (Err(error), None),
            },
        };
        let mut config = merged?;
        default_socket(&mut config, environment)?;

        let origin = config.origin("socket").clone();
        // What cannot be looked at may exist: the directory of the system's socket is closed to
        // others.
        let may_exist = |path: &Path| path.try_exists().unwrap_or(true);
        if origin == Origin::Default && !config.socket.exists() && may_exist(system) {
            system.clone_into(&mut config.socket);
        }

        Ok(Self {
            path: config.socket,
            origin,
            ignored,
        })
    }
}

/// The settings of flags and environment, for files with an error. Of the files only the key
/// `socket` is used, where that line can be read.
fn lenient(
    main: &Path,
    given: &CliOverrides,
    environment: &Environment,
) -> Result<Config, ConfigError> {
    let mut settings = Settings::default();
    let dir = main.parent().unwrap_or(Path::new("")).join(CONFIG_DIR);
    // An unsafe directory is skipped here as well.
    let mut others = list(&dir, main).unwrap_or_default();
    // In the daemon's order: the file itself, then the directory by name.
    others.sort_unstable();

    for path in std::iter::once(main.to_owned()).chain(others) {
        if let Ok(text) = read_text(&path)
            && let Some((line, socket)) = socket_line(&text)
        {
            settings.set("socket", socket, Origin::File { path, line });
        }
    }

    settings.add_overrides(given, environment);
    settings.config()
}

/// The last line of a string that is the key `socket` with an acceptable path, and its number.
fn socket_line(text: &str) -> Option<(usize, Json)> {
    let lines: Vec<(usize, &str)> = (1..).zip(text.lines()).collect();
    lines.into_iter().rev().find_map(|(number, line)| {
        // The rest of the file may be no YAML, but this line is.
        let value = file::parse(line.strip_prefix("socket:").map(|_| line)?)
            .ok()?
            .value
            .get("socket")?
            .clone();

        let socket = PathBuf::from(value.as_str()?);
        let is_usable = socket.is_absolute() && fits_a_socket("socket", &socket).is_ok();
        is_usable.then_some((number, value))
    })
}

/// The configuration file. Further files are in a directory next to it.
struct MainFile {
    path: PathBuf,
    /// It was named; the default one may be missing.
    must_exist: bool,
}

impl MainFile {
    fn find(given: &CliOverrides, environment: &Environment) -> Option<Self> {
        let named = given.config.clone().map(|path| Self {
            path,
            must_exist: true,
        });
        let default = || {
            environment.default_config_file().map(|path| Self {
                path,
                must_exist: false,
            })
        };
        named.or_else(default)
    }
}

impl Config {
    /// Merges flags, environment and file, in order of decreasing precedence.
    pub fn load(given: &CliOverrides, environment: &Environment) -> Result<Self, ConfigError> {
        let file = MainFile::find(given, environment);
        let mut config = merged(file.as_ref(), given, environment)?;

        if *config.origin("state_dir") == Origin::Default {
            config.state_dir = environment.default_state_dir()?;
        }
        default_socket(&mut config, environment)?;

        config.given = given.clone();
        checked(config)
    }

    /// Loads a configuration file and the files in [`CONFIG_DIR`] next to it, with `text` as the contents of one of these; `None` leaves it
    /// out. The file itself may be missing. Neither flags nor the environment count.
    pub fn load_files_with(
        main: &Path,
        replaced: &Path,
        text: Option<&str>,
    ) -> Result<Self, ConfigError> {
        let mut settings = Settings::default();
        settings.read_file_if_there(main)?;
        settings.read_directory(main, Some((replaced, text)))?;
        let config = settings.config()?;
        checked(config)
    }

    /// Loads the configuration again, with the same flags and the environment of this process.
    pub fn reread(&self) -> Result<Self, ConfigError> {
        Self::load(&self.given, &Environment::of_process())
    }

    /// The error for a value at `path`, such as `sinks.audit.encoder`, that the part which uses it does not accept; with its line.
    pub fn error_at(&self, path: String, problem: String) -> ConfigError {
        invalid(&self.origins, &self.places, path, problem)
    }
}

/// Checks what concerns several keys. A client needs only the socket, and does not check it.
fn combined(config: &Config) -> Result<(), Invalid> {
    if config.reactor.election.is_some() && config.cluster.nats.is_none() {
        let problem = "the reactors of several masters meet in a shared history; give cluster.nats";
        return Err(Invalid::new("reactor.election", problem));
    }

    let https = &config.https;

    // All that is missing is named in one message.
    let missing = match (&https.certificate, &https.key) {
        (Some(_), Some(_)) => None,
        (None, Some(_)) => Some("https.certificate"),
        (Some(_), None) => Some("https.key"),
        (None, None) => Some("https.certificate and https.key"),
    };

    if let (Some(_), Some(missing)) = (https.listen, missing) {
        let problem =
            format!("the minion listener needs a certificate and a key; give {missing} too");
        return Err(Invalid::new("https.listen", problem));
    }

    // The limit of one minion's connections needs one count of them.
    if https.listen.is_some() && config.http.minions {
        let problem = "https.listen also serves minions; give only one of them";
        return Err(Invalid::new("http.minions", problem));
    }

    if config.reactor.master.is_some() && config.reactor.minion.is_some() {
        let problem = "reactor.master is also set; set only one of them; run a second daemon for the other reactor";
        return Err(Invalid::new("reactor.minion", problem));
    }

    Ok(())
}

/// The explicit settings; paths that depend on the user are empty unless set.
fn merged(
    file: Option<&MainFile>,
    given: &CliOverrides,
    environment: &Environment,
) -> Result<Config, ConfigError> {
    let mut settings = Settings::default();
    if let Some(MainFile { path, must_exist }) = file {
        // A file that was named must exist. The default one may be missing.
        if *must_exist {
            settings.read_file(path)?;
        } else {
            settings.read_file_if_there(path)?;
        }
        settings.read_directory(path, None)?;
    }

    settings.add_overrides(given, environment);
    settings.config()
}

/// The settings of environment and flags by key, with their origins. Flags win.
fn overrides(
    given: &CliOverrides,
    environment: &Environment,
) -> impl Iterator<Item = (&'static str, Origin, Json)> + use<> {
    let buses: Json = given.bus.iter().map(|path| path_json(path)).collect();
    let environment = [
        (
            "state_dir",
            ENV_STATE_DIR,
            environment.state_dir.as_deref().map(path_json),
        ),
        (
            "socket",
            ENV_SOCKET,
            environment.socket.as_deref().map(path_json),
        ),
        (
            "log.level",
            ENV_LOG,
            environment.log_level.clone().map(Json::from),
        ),
        (
            "cluster.slot",
            ENV_CLUSTER_SLOT,
            environment.cluster_slot.clone().map(Json::from),
        ),
    ];

    let flags = [
        (
            "state_dir",
            "--state-dir",
            given.state_dir.as_deref().map(path_json),
        ),
        ("socket", "--socket", given.socket.as_deref().map(path_json)),
        ("bus", "--bus", (!given.bus.is_empty()).then_some(buses)),
        (
            "log.level",
            "--log-level",
            given.log_level.clone().map(Json::from),
        ),
    ];

    // Absent settings are dropped below, because they must not replace others.
    let environment = environment
        .into_iter()
        .map(|(key, name, value)| (key, Origin::Environment(name), value));
    let flags = flags
        .into_iter()
        .map(|(key, name, value)| (key, Origin::Flag(name), value));

    // Flags come last, because they take precedence.
    environment
        .chain(flags)
        .filter_map(|(key, origin, value)| Some((key, origin, value?)))
}

fn checked(config: Config) -> Result<Config, ConfigError> {
    match combined(&config) {
        Ok(()) => Ok(config),
        Err(Invalid { path: key, problem }) => Err(ConfigError {
            origin: config.origin(&key).clone(),
            key,
            problem,
        }),
    }
}

fn default_socket(config: &mut Config, environment: &Environment) -> Result<(), ConfigError> {
    if *config.origin("socket") == Origin::Default {
        config.socket = environment.default_socket()?;
        fits_a_socket("socket", &config.socket).map_err(|Invalid { path: key, problem }| {
            ConfigError {
                origin: Origin::Default,
                key,
                problem,
            }
        })?;
    }
    Ok(())
}

/// Makes a path of the command line or the environment absolute, from the working directory. A path that is not UTF-8
/// becomes null, which is rejected: the file could not express it either.
fn path_json(path: &Path) -> Json {
    std::path::absolute(path)
        .unwrap_or_else(|_| path.to_owned())
        .to_str()
        .map_or(Json::Null, Json::from)
}

/// Values of file, environment and flags by key, as typed.
#[derive(Default)]
struct Settings {
    values: Map<String, Json>,
    origins: BTreeMap<String, Origin>,
    files: Vec<PathBuf>,
    expected: Vec<PathBuf>,
    places: Places,
}

impl Settings {
    fn set(&mut self, key: &str, value: Json, origin: Origin) {
        self.origins.insert(key.to_owned(), origin);
        // A key is a dotted name everywhere but in the values, which keep the sections that serde
        // expects.
        let (section, name) = match key.split_once('.') {
            Some((section, name)) => (
                self.values
                    .entry(section)
                    .or_insert_with(|| json!({}))
                    .as_object_mut(),
                name,
            ),
            None => (Some(&mut self.values), key),
        };

        // Always a mapping: the files were checked for it, and flags set only known keys.
        if let Some(section) = section {
            section.insert(name.to_owned(), value);
        }
    }

    fn read_file_if_there(&mut self, path: &Path) -> Result<(), ConfigError> {
        // An unreadable file is reported when it is opened.
        if path.try_exists().unwrap_or(true) {
            self.read_file(path)?;
        }
        Ok(())
    }

    /// Reads the files in [`CONFIG_DIR`] next to the configuration file, in the order of their names. `replaced` is one with other contents,
    /// or one to leave out.
    fn read_directory(
        &mut self,
        main: &Path,
        replaced: Option<(&Path, Option<&str>)>,
    ) -> Result<(), ConfigError> {
        let dir = main.parent().unwrap_or(Path::new("")).join(CONFIG_DIR);
        let mut files = list(&dir, main)?;
        // Watched even while they are missing, because they may appear later.
        self.expected.extend([main.to_owned(), dir]);

        // A file that does not exist yet is read in its place as well.
        if let Some((path, _)) = replaced
            && !files.iter().any(|file| file == path)
        {
            files.push(path.to_owned());
        }

        files.sort_unstable();

        for file in files {
            match replaced {
                // Read as if it were removed.
                Some((path, None)) if path == file => {}
                Some((path, Some(text))) if path == file => self.read_text(&file, text)?,
                _ => self.read_file(&file)?,
            }
        }

        Ok(())
    }

    fn add_overrides(&mut self, given: &CliOverrides, environment: &Environment) {
        for (key, origin, value) in overrides(given, environment) {
            self.set(key, value, origin);
        }
    }

    fn read_file(&mut self, path: &Path) -> Result<(), ConfigError> {
        let text =
            read_text(path).map_err(|bad: BadYaml| in_file(path, bad.line, "", bad.problem))?;
        self.read_text(path, &text)
    }

    fn read_text(&mut self, path: &Path, text: &str) -> Result<(), ConfigError> {
        let error = |line, key: &str, problem| in_file(path, line, key, problem);
        // Listed even if it has no settings: it may get some later.
        self.files.push(path.to_owned());
        let document = file::parse(text).map_err(|bad| error(bad.line, "", bad.problem))?;
        let (first_line, lines) = (document.line, document.lines);

        let entries = match document.value {
            // An empty file, or one with comments only.
            Json::Null => return Ok(()),
            Json::Object(entries) => entries,
            other => {
                let problem = format!(
                    "{} where keys are expected; write `key: value`",
                    kind_of(&other)
                );
                return Err(error(first_line, "", problem));
            }
        };

        // The fields are the list of keys, so none has to be maintained.
        let known = render::names();
        let is_section = |name: &str| {
            known
                .iter()
                .any(|key| key.split_once('.').is_some_and(|(s, _)| s == name))
        };

        // `log.level: info` and a section `log` with `level` are the same key from here on.
        let mut keys = Vec::new();
        for (name, value) in entries {
            match value {
                // A section with all keys commented out.
                Json::Null if is_section(&name) => {}
                Json::Object(section) if is_section(&name) => {
                    keys.extend(
                        section
                            .into_iter()
                            .map(|(key, value)| (format!("{name}.{key}"), value)),
                    );
                }
                other if is_section(&name) => {
                    let keys: Vec<_> = known
                        .iter()
                        .filter(|key| key.starts_with(&format!("{name}.")))
                        .collect();

                    let keys = keys
                        .into_iter()
                        .map(String::as_str)
                        .collect::<Vec<_>>()
                        .join(", ");
                    let problem =
                        format!("{} where keys are expected; give {keys}", kind_of(&other));
                    return Err(error(lines.of(&name), &name, problem));
                }
                value => keys.push((name, value)),
            }
        }

        let file = Arc::new(path.to_owned());
        for (key, value) in keys {
            let line = lines.of(&key);

            // Checked before serde sees it, which knows neither the line nor a similar key.
            if !known.contains(&key) {
                let problem = format!(
                    "unknown key; the nearest known key is {}",
                    nearest(&key, &known)
                );
                return Err(error(line, &key, problem));
            }

            self.add(&file, &lines, &key, value)?;
        }

        Ok(())
    }

    /// Adds a key of a file. Two files may both have it only if one does not contradict the other.
    fn add(
        &mut self,
        file: &Arc<PathBuf>,
        lines: &Lines,
        key: &str,
        value: Json,
    ) -> Result<(), ConfigError> {
        let Self {
            values,
            origins,
            places,
            ..
        } = self;

        // Only files meet here. The environment and flags replace values, and are added behind all
        // files.
        if origins.contains_key(key) {
            let earlier = match key.split_once('.') {
                Some((section, name)) => values.get_mut(section).and_then(|s| s.get_mut(name)),
                None => values.get_mut(key),
            };

            // Lists of directories and mappings of names grow from file to file. Any other key has
            // one value.
            match (earlier, value) {
                (Some(Json::Array(all)), Json::Array(more)) if ADDED_LISTS.contains(&key) => {
                    for (n, item) in more.into_iter().enumerate() {
                        // Several files may name the same directory.
                        if !all.contains(&item) {
                            let to = format!("{key}[{}]", all.len());
                            places.add(file, lines, &format!("{key}[{n}]"), &to);
                            all.push(item);
                        }
                    }
                }
                (Some(Json::Object(all)), Json::Object(more)) if ADDED_MAPPINGS.contains(&key) => {
                    for (name, item) in more {
                        let path = format!("{key}.{name}");
                        match all.get(&name) {
                            Some(same) if *same == item => {}
                            Some(_) => return Err(duplicate(file, lines, places, &path)),
                            None => {
                                places.add(file, lines, &path, &path);
                                all.insert(name, item);
                            }
                        }
                    }
                }

                // The same value again is no contradiction.
                (Some(earlier), value) if *earlier == value => {}
                _ => return Err(duplicate(file, lines, places, key)),
            }

            return Ok(());
        }

        places.add(file, lines, key, key);
        let origin = Origin::File {
            path: file.to_path_buf(),
            line: lines.of(key),
        };

        self.set(key, value, origin);
        Ok(())
    }

    fn config(self) -> Result<Config, ConfigError> {
        let values = Json::Object(self.values);
        let mut config: Config = read_options(&values)
            .map_err(|bad| invalid(&self.origins, &self.places, bad.path, bad.problem))?;
        config
            .check()
            .map_err(|bad| invalid(&self.origins, &self.places, bad.path, bad.problem))?;

        config.origins = self.origins;
        config.files = self.files;
        config.expected = self.expected;
        config.places = self.places;

        Ok(config)
    }
}

fn in_file(path: &Path, line: usize, key: &str, problem: String) -> ConfigError {
    ConfigError {
        origin: Origin::File {
            path: path.to_owned(),
            line,
        },
        key: key.to_owned(),
        problem,
    }
}

/// The error for a key to which an earlier file gives another value.
fn duplicate(file: &Path, lines: &Lines, places: &Places, key: &str) -> ConfigError {
    let earlier = places.of(key).map_or_else(
        || "an earlier file".to_owned(),
        |(file, line)| format!("{}:{line}", file.display()),
    );
    let problem = format!("duplicate key, with another value than in {earlier}; keep one of them");
    in_file(file, lines.of(key), key, problem)
}

/// The files with settings in a directory, which may be missing. Names that begin with a dot and other endings than `.yaml` are skipped, as
/// editors and packages leave such files behind.
fn list(dir: &Path, main: &Path) -> Result<Vec<PathBuf>, ConfigError> {
    let error = |problem: String| in_file(dir, 1, "", problem);
    let cannot = |why: std::io::Error| error(format!("cannot read the directory: {why}"));

    let entries = match std::fs::read_dir(dir) {
        Ok(entries) => entries,
        Err(why)
            if matches!(
                why.kind(),
                std::io::ErrorKind::NotFound | std::io::ErrorKind::NotADirectory
            ) =>
        {
            return Ok(Vec::new());
        }
        Err(why) => return Err(cannot(why)),
    };

    // A configuration file may be in /tmp, where anyone can make a directory next to it.
    let found = std::fs::metadata(dir).map_err(cannot)?;
    // Whoever owns the file can change the settings anyway.
    let main_owner = std::fs::metadata(main).ok().map(|main| main.uid());
    let own = rustix::process::geteuid().as_raw();

    let is_ours = [Some(0), Some(own), main_owner].contains(&Some(found.uid()));
    if !is_ours || found.mode() & 0o002 != 0 {
        let problem = format!(
            "it belongs to uid {} and has mode {:04o}; give it to root or to the owner of {}, closed to others",
            found.uid(),
            found.mode() & 0o7777,
            main.display()
        );
        return Err(error(problem));
    }

    let mut files = Vec::new();
    for entry in entries {
        let path = entry.map_err(cannot)?.path();
        let name = path.file_name().and_then(|name| name.to_str());
        let is_yaml = path
            .extension()
            .is_some_and(|extension| extension == "yaml");

        if is_yaml && name.is_some_and(|name| !name.starts_with('.')) {
            // To open a pipe would wait for a writer. A dangling link is reported when it is read.
            if path.metadata().is_ok_and(|found| !found.is_file()) {
                return Err(in_file(&path, 1, "", "not a file; remove it".to_owned()));
            }
            files.push(path);
        }

        // A directory that was named by mistake could have any number of files.
        if files.len() > limits::CONFIG_FILES_MAX {
            return Err(error(format!(
                "more than {} files with settings; move files away, or join them",
                limits::CONFIG_FILES_MAX
            )));
        }
    }

    Ok(files)
}

/// Reads settings from values as in a configuration file.
pub fn read_options<T: DeserializeOwned>(values: &Json) -> Result<T, Invalid> {
    serde_path_to_error::deserialize(values).map_err(|error| {
        Invalid::new(
            error.path().to_string(),
            describe(&error.inner().to_string()),
        )
    })
}

/// The error for the value at `path`, with its exact line.
fn invalid(
    origins: &BTreeMap<String, Origin>,
    places: &Places,
    path: String,
    problem: String,
) -> ConfigError {
    // `bus` contains `bus[0]`, but not `buses`.
    let contains = |key: &&String| {
        path.strip_prefix(*key)
            .is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '[']))
    };

    let origin = match origins
        .keys()
        .find(contains)
        .and_then(|key| origins.get(key))
    {
        Some(Origin::File { path: file, line }) => {
            // Exact to the item, unlike the origin of its key.
            let (file, line) = places.of(&path).unwrap_or((file, *line));
            Origin::File {
                path: file.to_owned(),
                line,
            }
        }
        Some(origin) => origin.clone(),
        None => Origin::Default,
    };

    ConfigError {
        origin,
        key: path,
        problem,
    }
}

/// A message of serde in the words of this module.
fn describe(message: &str) -> String {
    // Only type errors use the terms of serde's data model.
    match message
        .strip_prefix("invalid type: ")
        .and_then(|rest| rest.split_once(", expected "))
    {
        Some((found, accepted)) => {
            let found = match found {
                "sequence" => "a list",
                "map" => "a mapping",
                "null" => "nothing",
                other => other,
            };

            format!(
                "{found} is not accepted; give {}",
                accepted.replace("a sequence", "a list")
            )
        }
        None => message.to_owned(),
    }
}

/// A value of another kind than expected. A long text is cut.
fn kind_of(value: &Json) -> String {
    match value {
        Json::Array(_) => "a list".to_owned(),
        Json::Object(_) => "a mapping".to_owned(),
        Json::String(text) => {
            let shown: String = text.chars().take(SHOWN_CHARS_MAX).collect();
            let more = if shown.len() < text.len() { ".." } else { "" };
            format!("the string {shown:?}{more}")
        }
        other => other.to_string(),
    }
}

/// How much of an unexpected text is shown.
const SHOWN_CHARS_MAX: usize = 60;

/// The known key or section with the smallest edit distance to `name`.
fn nearest<'a>(name: &str, known: &'a [String]) -> &'a str {
    let sections = known.iter().filter_map(|key| Some(key.split_once('.')?.0));
    let names = known.iter().map(String::as_str).chain(sections);
    names
        .min_by_key(|known| strsim::damerau_levenshtein(known, name))
        .unwrap_or_default()
}

fn read_text(path: &Path) -> Result<String, BadYaml> {
    let bad = |line, problem| BadYaml { line, problem };
    let cannot = |error: std::io::Error| bad(1, format!("cannot read the file: {error}"));
    let file = File::open(path).map_err(cannot)?;

    // One byte beyond the limit shows that the file is too long.
    let mut bytes = Vec::new();
    file.take(limits::CONFIG_FILE_BYTES_MAX + 1)
        .read_to_end(&mut bytes)
        .map_err(cannot)?;

    if bytes.len() as u64 > limits::CONFIG_FILE_BYTES_MAX {
        let problem = format!(
            "longer than {} bytes: not a configuration",
            limits::CONFIG_FILE_BYTES_MAX
        );
        return Err(bad(1, problem));
    }

    utf8::text_of(bytes)
        .map_err(|line| bad(line, "not UTF-8 text; save the file as UTF-8".to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::tests::without;

    /// A user's environment within `dir`.
    fn user(dir: &Path) -> Environment {
        Environment {
            home: Some(dir.to_owned()),
            ..Environment::default()
        }
    }

    fn with_file(text: &str) -> (tempfile::TempDir, CliOverrides) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("c.yaml");
        std::fs::write(&path, text).unwrap();
        (
            dir,
            CliOverrides {
                config: Some(path),
                ..CliOverrides::default()
            },
        )
    }

    #[test]
    fn a_file_in_another_encoding_is_rejected_with_the_line() {
        let (dir, given) = with_file("");
        let path = dir.path().join("c.yaml");
        std::fs::write(&path, b"bus: []\n# of M\xfcller\n").unwrap();
        let error = Config::load(&given, &user(dir.path())).unwrap_err();
        let expected = format!(
            "{}:2: not UTF-8 text; save the file as UTF-8",
            path.display()
        );
        assert_eq!(error.to_string(), expected);
    }

    #[test]
    fn a_client_uses_the_socket_of_a_file_that_has_an_error() {
        let check = |text: &str, expected: Option<(usize, &str)>| {
            let (dir, given) = with_file(text);
            let none = dir.path().join("no-system-socket");
            let found = SocketChoice::find_beside(&none, &given, &user(dir.path())).unwrap();
            let problem = found.ignored.expect("the error is reported").to_string();
            assert!(problem.contains("c.yaml:"), "{problem}");
            let line = match found.origin {
                Origin::File { line, .. } => Some((line, found.path.to_str().unwrap().to_owned())),
                _ => None,
            };
            let expected = expected.map(|(line, path)| (line, path.to_owned()));
            assert_eq!(line, expected, "{text}");
        };
        check(
            "socket: /a.sock\nsokcet_mode: '0660'\n",
            Some((1, "/a.sock")),
        );
        check("http: [\nsocket: /a.sock # mine\n", Some((2, "/a.sock")));
        check("socket: '/a.sock'\nsocket: /b.sock\n", Some((2, "/b.sock")));
        check(
            "socket: /a.sock\nhttp: {listen: everywhere}\n",
            Some((1, "/a.sock")),
        );
        check("store:\n  socket: /a.sock\n", None);
        check("socket: relative\n", None);
        check("\u{0}\n", None);

        // A path that is given needs no file.
        let (dir, mut given) = with_file("nonsense: [\n");
        given.socket = Some("/flag.sock".into());
        let none = dir.path().join("no-system-socket");
        let found = SocketChoice::find_beside(&none, &given, &user(dir.path())).unwrap();
        assert_eq!(
            (found.path.to_str(), found.ignored),
            (Some("/flag.sock"), None)
        );
    }

    #[test]
    fn the_system_socket_in_a_closed_directory_is_found() {
        let (dir, given) = with_file("");
        let around = user(dir.path());
        let find = |system: &Path| {
            SocketChoice::find_beside(system, &given, &around)
                .unwrap()
                .path
        };
        let own = around.default_socket().unwrap();
        assert_eq!(find(&dir.path().join("absent")), own);
        // What cannot be looked at may exist. Root can look everywhere, but not below a file.
        let closed = dir.path().join("c.yaml/saltcellar.sock");
        assert_eq!(find(&closed), closed);
    }

    fn problem(text: &str) -> String {
        let (dir, given) = with_file(text);
        let error = Config::load(&given, &user(dir.path())).expect_err("accepted");
        without(&dir, &error)
    }

    #[test]
    fn a_flag_wins_over_the_environment_over_the_file_over_the_default() {
        let (dir, mut given) = with_file("socket: /file.sock\nstate_dir: /file\nbus: [/a, /b]\n");
        let mut around = user(dir.path());
        let load =
            |given: &CliOverrides, around: &Environment| Config::load(given, around).unwrap();

        let config = load(&given, &around);
        assert_eq!(config.socket, Path::new("/file.sock"));
        assert_eq!(
            *config.origin("socket"),
            Origin::File {
                path: given.config.clone().unwrap(),
                line: 1
            }
        );
        around.socket = Some("/environment.sock".into());
        let config = load(&given, &around);
        assert_eq!(config.socket, Path::new("/environment.sock"));
        assert_eq!(
            *config.origin("socket"),
            Origin::Environment("SALTCELLAR_SOCKET")
        );
        given.socket = Some("/flag.sock".into());
        given.bus = vec!["/c".into()];
        let config = load(&given, &around);
        assert_eq!(config.socket, Path::new("/flag.sock"));
        assert_eq!(*config.origin("socket"), Origin::Flag("--socket"));
        assert_eq!(config.bus, [Path::new("/c")]);
        assert_eq!(config.state_dir, Path::new("/file"));
        assert_eq!(*config.origin("log.level"), Origin::Default);
    }

    #[test]
    fn under_systemd_the_directories_are_the_units() {
        let dir = tempfile::tempdir().unwrap();
        let mut environment = user(dir.path());
        environment.service_state_dir = Some("/var/lib/saltcellar".into());
        environment.service_runtime_dir = Some("/run/saltcellar".into());
        let config = Config::load(&CliOverrides::default(), &environment).unwrap();
        assert_eq!(config.state_dir, Path::new("/var/lib/saltcellar"));
        assert_eq!(config.socket, Path::new("/run/saltcellar/saltcellar.sock"));
    }

    #[test]
    fn defaults_follow_the_user() {
        let around = user(Path::new("/home/u"));
        let config = Config::load(&CliOverrides::default(), &around).unwrap();
        assert_eq!(
            config.state_dir,
            Path::new("/home/u/.local/state/saltcellar")
        );
        assert_eq!(
            config.socket,
            Path::new("/home/u/.local/state/saltcellar/saltcellar.sock")
        );

        let around = Environment {
            xdg_state_home: Some("/x/state".into()),
            xdg_runtime_dir: Some("/x/run".into()),
            ..around
        };
        let config = Config::load(&CliOverrides::default(), &around).unwrap();
        assert_eq!(config.state_dir, Path::new("/x/state/saltcellar"));
        assert_eq!(
            config.socket,
            Path::new("/x/run/saltcellar/saltcellar.sock")
        );

        let given = CliOverrides {
            state_dir: Some("/elsewhere".into()),
            ..CliOverrides::default()
        };
        let config = Config::load(&given, &around).unwrap();
        assert_eq!(
            config.socket,
            Path::new("/x/run/saltcellar/saltcellar.sock")
        );
        let root = Environment {
            root: true,
            ..around
        };
        assert_eq!(
            root.default_socket().unwrap(),
            Path::new("/run/saltcellar/saltcellar.sock")
        );
    }

    #[test]
    fn without_a_home_the_missing_path_is_asked_for() {
        let error = Config::load(&CliOverrides::default(), &Environment::default()).unwrap_err();
        assert_eq!(
            error.to_string(),
            "default: state_dir: no default, because HOME is not set; give --state-dir or set \
             SALTCELLAR_STATE_DIR or XDG_STATE_HOME"
        );
    }

    #[test]
    fn a_default_file_is_read_and_a_named_one_must_exist() {
        let dir = tempfile::tempdir().unwrap();
        let home = dir.path().join(".config/saltcellar");
        std::fs::create_dir_all(&home).unwrap();
        std::fs::write(home.join("saltcellar.yaml"), "log:\n  level: debug\n").unwrap();
        let config = Config::load(&CliOverrides::default(), &user(dir.path())).unwrap();
        assert_eq!(config.log.level.0, "debug");

        let given = CliOverrides {
            config: Some("/no/such.yaml".into()),
            ..CliOverrides::default()
        };
        let error = Config::load(&given, &user(dir.path()))
            .unwrap_err()
            .to_string();
        assert!(
            error.starts_with("/no/such.yaml:1: cannot read the file: No such file"),
            "{error}"
        );
    }

    #[test]
    fn an_invalid_file_is_rejected_with_line_key_and_accepted_values() {
        assert_eq!(
            problem("log:\n  levle: info\n"),
            "c.yaml:2: log.levle: unknown key; the nearest known key is log.level"
        );
        assert_eq!(
            problem("bus:\n  - /a\n  - b\n"),
            "c.yaml:3: bus[1]: \"b\" is not accepted; give an absolute path"
        );
        assert_eq!(
            problem("log: info\n"),
            "c.yaml:1: log: the string \"info\" where keys are expected; give log.level, log.format"
        );
        assert_eq!(problem("a: 1\na: 2\n"), "c.yaml:2: duplicate key \"a\"");
        let twice = problem("store:\n  segment_bytes_max: 1GiB\nstore.segment_bytes_max: 2GiB\n");
        assert!(
            twice.starts_with("c.yaml:3:") && twice.contains("duplicate key"),
            "{twice}"
        );
        assert_eq!(
            problem("# the buses\n\n- a\n"),
            "c.yaml:3: a list where keys are expected; write `key: value`"
        );
        let long = "x".repeat(10_000);
        let text = problem(&format!("\n{long}\n"));
        assert!(
            text.starts_with("c.yaml:2: the string \"xxx") && text.len() < 200,
            "{text}"
        );
        assert!(problem("socket: [\n").starts_with("c.yaml:"));
        let long = format!("socket: /{}\n", "x".repeat(120));
        assert!(
            problem(&long)
                .contains("has 121 bytes, too long for a unix socket; give an absolute path")
        );
        assert!(problem(&"#".repeat(1024 * 1024 + 1)).contains("longer than"));
    }

    /// Loads `c.yaml` and files of `conf.d` with these strings; errors and paths without the directory.
    fn with_files(files: &[(&str, &str)]) -> Result<(Config, Vec<String>), String> {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("conf.d")).unwrap();
        for (name, text) in files {
            std::fs::write(dir.path().join(name), text).unwrap();
        }
        let given = CliOverrides {
            config: Some(dir.path().join("c.yaml")),
            ..CliOverrides::default()
        };
        let short = |text: String| text.replace(&format!("{}/", dir.path().display()), "");
        let config =
            Config::load(&given, &user(dir.path())).map_err(|error| short(error.to_string()))?;
        let read = config
            .files()
            .iter()
            .map(|file| short(file.display().to_string()))
            .collect();
        Ok((config, read))
    }

    #[test]
    fn files_beside_the_configuration_file_are_read_in_the_order_of_their_names() {
        let (config, read) = with_files(&[
            (
                "conf.d/20-b.yaml",
                "bus: [/b, /a]\nsinks: {two: {match: []}}\nlog.level: debug\n",
            ),
            (
                "conf.d/10-a.yaml",
                "bus: [/a]\nlog:\n  level: debug\n  format: json\n",
            ),
            ("c.yaml", "bus:\n  - /c\nsinks:\n  one: {match: []}\n"),
            ("conf.d/.hidden.yaml", "nonsense"),
            ("conf.d/saved.yaml~", "nonsense"),
            ("conf.d/x.yaml.dpkg-old", "nonsense"),
        ])
        .unwrap();
        assert_eq!(read, ["c.yaml", "conf.d/10-a.yaml", "conf.d/20-b.yaml"]);
        assert_eq!(config.bus, ["/c", "/a", "/b"].map(PathBuf::from));
        assert_eq!(config.sinks.keys().collect::<Vec<_>>(), ["one", "two"]);
        assert_eq!(config.log.level.0, "debug");
        assert_eq!(config.log.format, crate::config::LogFormat::Json);
        let at = |path: &str| {
            let error = config
                .error_at(path.to_owned(), "bad".to_owned())
                .to_string();
            error.rsplit_once('/').unwrap().1.to_owned()
        };
        assert_eq!(at("sinks.one"), "c.yaml:4: sinks.one: bad");
        assert_eq!(at("sinks.two.match"), "20-b.yaml:2: sinks.two.match: bad");
        assert_eq!(at("bus[2]"), "20-b.yaml:1: bus[2]: bad");
        assert_eq!(at("log.format"), "10-a.yaml:4: log.format: bad");
    }

    #[test]
    fn a_contradiction_between_two_files_names_both_places() {
        let error = |files: &[(&str, &str)]| with_files(files).map(drop).unwrap_err();
        let files = [
            ("c.yaml", "log:\n  level: info\n"),
            ("conf.d/a.yaml", "\nlog.level: debug\n"),
        ];
        assert_eq!(
            error(&files),
            "conf.d/a.yaml:2: log.level: duplicate key, with another value than in c.yaml:2; keep one of them"
        );
        let files = [
            ("c.yaml", "sinks: {s: {encoder: json}}\n"),
            ("conf.d/a.yaml", "sinks:\n  t: {}\n  s: {encoder: states}\n"),
        ];
        assert_eq!(
            error(&files),
            "conf.d/a.yaml:3: sinks.s: duplicate key, with another value than in c.yaml:1; keep one of them"
        );
        let files = [("c.yaml", ""), ("conf.d/a.yaml", "bus: [/a]\nbuss: 1\n")];
        assert_eq!(
            error(&files),
            "conf.d/a.yaml:2: buss: unknown key; the nearest known key is bus"
        );
        let files = [
            ("c.yaml", "bus: [/a]\n"),
            ("conf.d/a.yaml", "bus:\n  - /b\n  - c\n"),
        ];
        assert_eq!(
            error(&files),
            "conf.d/a.yaml:3: bus[2]: \"c\" is not accepted; give an absolute path"
        );
    }

    #[test]
    fn a_pipe_among_the_files_does_not_stop_the_start() {
        use rustix::fs::{CWD, FileType, Mode, mknodat};
        let (dir, given) = with_file("");
        let beside = dir.path().join("conf.d");
        std::fs::create_dir(&beside).unwrap();
        mknodat(CWD, beside.join("p.yaml"), FileType::Fifo, Mode::RWXU, 0).unwrap();

        let error = Config::load(&given, &Environment::default()).unwrap_err();
        assert!(
            error.to_string().contains("conf.d/p.yaml:1: not a file"),
            "{error}"
        );
    }

    #[test]
    fn a_directory_that_others_can_write_to_is_not_read() {
        use std::os::unix::fs::PermissionsExt as _;
        let (dir, given) = with_file("");
        let beside = dir.path().join("conf.d");

        std::fs::create_dir(&beside).unwrap();
        std::fs::set_permissions(&beside, std::fs::Permissions::from_mode(0o777)).unwrap();
        let error = Config::load(&given, &user(dir.path()))
            .unwrap_err()
            .to_string();
        assert!(
            error.contains("conf.d:1: it belongs to uid") && error.contains("mode 0777"),
            "{error}"
        );
    }

    #[test]
    fn a_file_can_be_tried_before_it_is_written() {
        let (dir, _) = with_file("bus: [/a]\n");
        let main = dir.path().join("c.yaml");
        let draft = dir.path().join("conf.d/draft.yaml");
        let load = |text| Config::load_files_with(&main, &draft, text);
        assert_eq!(load(Some("bus: [/b]\n")).unwrap().bus.len(), 2);
        assert_eq!(load(None).unwrap().bus.len(), 1);
        assert!(
            load(Some("buss: 1\n"))
                .unwrap_err()
                .to_string()
                .contains("draft.yaml:1: buss")
        );
        std::fs::remove_file(&main).unwrap();
        assert_eq!(load(Some("bus: [/b]\n")).unwrap().bus.len(), 1);
    }

    #[test]
    fn a_reactor_for_both_a_master_and_a_minion_is_rejected() {
        let (dir, given) = with_file("reactor:\n  master: /m\n  minion: /n\n");
        let error = Config::load(&given, &user(dir.path()))
            .unwrap_err()
            .to_string();
        assert!(
            error.contains(":3: reactor.minion: reactor.master is also set"),
            "{error}"
        );
    }

    #[test]
    fn an_https_source_needs_a_certificate_and_a_key() {
        let problem = |text: &str| {
            let (dir, given) = with_file(text);
            Config::load(&given, &user(dir.path()))
                .unwrap_err()
                .to_string()
        };
        let alone = problem("https:\n  listen: 127.0.0.1:4580\n");
        assert!(
            alone.contains("c.yaml:2: https.listen: the minion listener needs a certificate"),
            "{alone}"
        );
        assert!(
            alone.ends_with("give https.certificate and https.key too"),
            "{alone}"
        );
        let half = problem("https:\n  key: /k\n  listen: 127.0.0.1:4580\n");
        assert!(half.ends_with("give https.certificate too"), "{half}");
        let nowhere = problem("https:\n  listen: everywhere\n");
        assert!(nowhere.contains("give an address and a port"), "{nowhere}");
        let (dir, given) = with_file("https:\n  certificate: /c\n");
        assert!(
            Config::load(&given, &user(dir.path())).is_ok(),
            "a certificate without a source is valid"
        );
        let twice = problem(
            "http: {listen: '0.0.0.0:4581', tls: {certificate: /c, key: /k}, minions: true}\n\
             https: {listen: '0.0.0.0:4580', certificate: /c, key: /k}\n",
        );
        assert!(
            twice.ends_with(
                "c.yaml:1: http.minions: https.listen also serves minions; give only one of them"
            ),
            "{twice}"
        );
    }

    #[test]
    fn the_default_socket_path_must_fit_a_socket_address() {
        let around = user(Path::new(&format!("/{}", "x".repeat(120))));
        let given = CliOverrides {
            state_dir: Some("/s".into()),
            ..CliOverrides::default()
        };
        let error = Config::load(&given, &around).unwrap_err().to_string();
        assert!(
            error.starts_with("default: socket: ") && error.contains("too long"),
            "{error}"
        );
    }

    #[test]
    fn an_empty_file_and_empty_sections_change_nothing() {
        for text in ["", "log:\n", "log:\nstore:\n  # nothing\n"] {
            let (dir, given) = with_file(text);
            let around = user(dir.path());
            let loaded = |given| Config::load(given, &around).unwrap().shown();
            assert_eq!(loaded(&given), loaded(&CliOverrides::default()), "{text:?}");
        }
    }

    #[test]
    fn the_nearest_key_is_found() {
        let known = render::names();
        for (given, expected) in [
            ("sate_dir", "state_dir"),
            ("log.levle", "log.level"),
            ("logs", "log"),
            ("sockets", "socket"),
        ] {
            assert_eq!(nearest(given, &known), expected);
        }
    }
}
