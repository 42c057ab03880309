//! Merges flags, environment, file and defaults.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use serde::de::DeserializeOwned;
use serde_json::{Map, Value as Json, json};

use super::environment::{ENV_LOG, ENV_SOCKET, ENV_STATE_DIR, SYSTEM_SOCKET};
use super::error::Invalid;
use super::file::{self, Lines};
use super::{Config, ConfigError, Environment, Origin, fits_a_socket, render};
use crate::base::limits;

/// Settings from the command line.
#[derive(Debug, Clone, Default)]
pub struct CliOverrides {
    /// `--config`: replaces the default file. It must exist.
    pub config: Option<PathBuf>,
    /// `--state-dir`
    pub state_dir: Option<PathBuf>,
    /// `--socket`
    pub socket: Option<PathBuf>,
    /// `--bus`, each occurrence; replaces the file's list.
    pub bus: Vec<PathBuf>,
    /// `--log-level`
    pub log_level: Option<String>,
}

/// The daemon's socket for a client, and the origin of that path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SocketChoice {
    /// The path of the socket.
    pub path: PathBuf,
    /// The origin of the path.
    pub origin: Origin,
}

impl SocketChoice {
    /// The socket that a daemon with these flags, environment and file would listen on.
    ///
    /// Without an explicit path, and if the user's own socket does not exist, this is the system daemon's socket if
    /// that exists.
    pub fn find(given: &CliOverrides, environment: &Environment) -> Result<Self, ConfigError> {
        let mut config = merged(given, environment)?;
        default_socket(&mut config, environment)?;
        let origin = config.origin("socket").clone();
        let system = Path::new(SYSTEM_SOCKET);
        if origin == Origin::Default && !config.socket.exists() && system.exists() {
            system.clone_into(&mut config.socket);
        }
        Ok(Self {
            path: config.socket,
            origin,
        })
    }
}

/// The complete configuration.
pub(super) fn config(
    given: &CliOverrides,
    environment: &Environment,
) -> Result<Config, ConfigError> {
    let mut config = merged(given, environment)?;
    if *config.origin("state_dir") == Origin::Default {
        config.state_dir = environment.default_state_dir()?;
    }
    default_socket(&mut config, environment)?;
    config.given = given.clone();
    match combined(&config) {
        Ok(()) => Ok(config),
        Err(Invalid { path: key, problem }) => Err(ConfigError {
            origin: config.origin(&key).clone(),
            key,
            problem,
        }),
    }
}

/// Checks what concerns several keys. A client needs only the socket, and does not check it.
fn combined(config: &Config) -> Result<(), Invalid> {
    let https = &config.https;
    let missing = match (&https.certificate, &https.key) {
        (Some(_), Some(_)) => None,
        (None, Some(_)) => Some("https.certificate"),
        (Some(_), None) => Some("https.key"),
        (None, None) => Some("https.certificate and https.key"),
    };
    if let (Some(_), Some(missing)) = (https.listen, missing) {
        let problem = format!("the HTTPS source needs a certificate and a key; give {missing} too");
        return Err(Invalid::new("https.listen", problem));
    }
    if https.listen.is_some() && config.http.minions {
        let problem = "https.listen serves minions, too; give only one of them";
        return Err(Invalid::new("http.minions", problem));
    }
    if config.reactor.master.is_some() && config.reactor.minion.is_some() {
        let problem = "reactor.master is also set; set only one of them; run a second daemon for the other reactor";
        return Err(Invalid::new("reactor.minion", problem));
    }
    Ok(())
}

/// The explicit settings; paths that depend on the user are empty unless set.
fn merged(given: &CliOverrides, environment: &Environment) -> Result<Config, ConfigError> {
    let mut settings = Settings::default();
    if let Some(path) = given
        .config
        .clone()
        .or_else(|| environment.default_config_file())
    {
        settings.read_file(&path)?;
    }
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
    let environment = environment
        .into_iter()
        .map(|(key, name, value)| (key, Origin::Environment(name), value));
    let flags = flags
        .into_iter()
        .map(|(key, name, value)| (key, Origin::Flag(name), value));
    for (key, origin, value) in environment.chain(flags) {
        if let Some(value) = value {
            settings.set(key, value, origin);
        }
    }
    settings.config()
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
    lines: Lines,
}

impl Settings {
    fn set(&mut self, key: &str, value: Json, origin: Origin) {
        self.origins.insert(key.to_owned(), origin);
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
        if let Some(section) = section {
            section.insert(name.to_owned(), value);
        }
    }

    fn read_file(&mut self, path: &Path) -> Result<(), ConfigError> {
        let error = |line: usize, key: &str, problem: String| ConfigError {
            origin: Origin::File {
                path: path.to_owned(),
                line,
            },
            key: key.to_owned(),
            problem,
        };
        let text = read_text(path).map_err(|problem| error(1, "", problem))?;
        let document = file::parse(&text).map_err(|bad| error(bad.line, "", bad.problem))?;
        self.lines = document.lines;
        let entries = match document.value {
            Json::Null => return Ok(()),
            Json::Object(entries) => entries,
            Json::Array(_) => {
                return Err(error(1, "", "a list where keys are expected".to_owned()));
            }
            other => return Err(error(1, "", format!("{other} where keys are expected"))),
        };
        let known = names();
        let is_section = |name: &str| {
            known
                .iter()
                .any(|key| key.split_once('.').is_some_and(|(s, _)| s == name))
        };
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
                    let problem = format!("{other} where keys are expected; give {keys}");
                    return Err(error(self.lines.of(&name), &name, problem));
                }
                value => keys.push((name, value)),
            }
        }
        for (key, value) in keys {
            let line = self.lines.of(&key);
            if !known.contains(&key) {
                let problem = format!(
                    "unknown key; the nearest known key is {}",
                    nearest(&key, &known)
                );
                return Err(error(line, &key, problem));
            }
            self.set(
                &key,
                value,
                Origin::File {
                    path: path.to_owned(),
                    line,
                },
            );
        }
        Ok(())
    }

    fn config(self) -> Result<Config, ConfigError> {
        let values = Json::Object(self.values);
        let mut config: Config = read_options(&values)
            .map_err(|bad| invalid(&self.origins, &self.lines, bad.path, bad.problem))?;
        config
            .check()
            .map_err(|bad| invalid(&self.origins, &self.lines, bad.path, bad.problem))?;
        config.origins = self.origins;
        config.lines = self.lines;
        Ok(config)
    }
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
pub(super) fn invalid(
    origins: &BTreeMap<String, Origin>,
    lines: &Lines,
    path: String,
    problem: String,
) -> ConfigError {
    let contains = |key: &&String| {
        path.strip_prefix(*key)
            .is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '[']))
    };
    let origin = match origins
        .keys()
        .find(contains)
        .and_then(|key| origins.get(key))
    {
        Some(Origin::File { path: file, .. }) => Origin::File {
            path: file.clone(),
            line: lines.of(&path),
        },
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

/// The dotted names of all keys.
pub(super) fn names() -> Vec<String> {
    render::by_name(&Config::default())
        .into_iter()
        .map(|(name, _)| name)
        .collect()
}

/// The known key or section with the smallest edit distance to `name`.
fn nearest<'a>(name: &str, known: &'a [String]) -> &'a str {
    let sections = known.iter().filter_map(|key| Some(key.split_once('.')?.0));
    let names = known.iter().map(String::as_str).chain(sections);
    names
        .min_by_key(|known| strsim::damerau_levenshtein(known, name))
        .unwrap_or_default()
}

fn read_text(path: &Path) -> Result<String, String> {
    let cannot = |error: std::io::Error| format!("cannot read the file: {error}");
    let file = File::open(path).map_err(cannot)?;
    let mut bytes = Vec::new();
    file.take(limits::CONFIG_FILE_BYTES_MAX + 1)
        .read_to_end(&mut bytes)
        .map_err(cannot)?;
    if bytes.len() as u64 > limits::CONFIG_FILE_BYTES_MAX {
        return Err(format!(
            "longer than {} bytes: not a configuration",
            limits::CONFIG_FILE_BYTES_MAX
        ));
    }
    String::from_utf8(bytes).map_err(|_| "not UTF-8 text".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

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

    fn problem(text: &str) -> String {
        let (dir, given) = with_file(text);
        let error = Config::load(&given, &user(dir.path())).expect_err("accepted");
        error
            .to_string()
            .replace(&format!("{}/", dir.path().display()), "")
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
            "c.yaml:1: log: \"info\" where keys are expected; give log.level, log.format"
        );
        assert_eq!(problem("a: 1\na: 2\n"), "c.yaml:2: duplicate key \"a\"");
        let twice = problem("store:\n  segment_bytes_max: 1GiB\nstore.segment_bytes_max: 2GiB\n");
        assert!(
            twice.starts_with("c.yaml:3:") && twice.contains("duplicate key"),
            "{twice}"
        );
        assert_eq!(problem("- a\n"), "c.yaml:1: a list where keys are expected");
        assert!(problem("socket: [\n").starts_with("c.yaml:"));
        let long = format!("socket: /{}\n", "x".repeat(120));
        assert!(
            problem(&long)
                .contains("has 121 bytes, too long for a unix socket; give an absolute path")
        );
        assert!(problem(&"#".repeat(1024 * 1024 + 1)).contains("longer than"));
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
            alone.contains("c.yaml:2: https.listen: the HTTPS source needs a certificate"),
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
                "c.yaml:1: http.minions: https.listen serves minions, too; give only one of them"
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
            let loaded = |given| Config::load(given, &around).unwrap().to_json();
            assert_eq!(loaded(&given), loaded(&CliOverrides::default()), "{text:?}");
        }
    }

    #[test]
    fn the_nearest_key_is_found() {
        let known = names();
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
