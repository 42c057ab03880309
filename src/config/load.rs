//! Puts flags, environment, file and defaults together.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use super::keys::{self, Bad};
use super::raw::{self, Entry, Node, Value};
use super::surroundings::{ENV_LOG, ENV_SOCKET, ENV_STATE_DIR, SYSTEM_SOCKET};
use super::{Config, ConfigError, Origin, Surroundings};
use crate::limits;

/// What the command line says.
#[derive(Debug, Clone, Default)]
pub struct Given {
    /// `--config`: this file instead of the default one. It must exist.
    pub config: Option<PathBuf>,
    /// `--state-dir`
    pub state_dir: Option<PathBuf>,
    /// `--socket`
    pub socket: Option<PathBuf>,
    /// `--bus`, each time; the file's list counts only if there is none.
    pub bus: Vec<PathBuf>,
    /// `--log-level`
    pub log_level: Option<String>,
}

/// The socket at which a client looks for the daemon, and who said so.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SocketChoice {
    /// The socket.
    pub path: PathBuf,
    /// Who named it.
    pub origin: Origin,
}

impl SocketChoice {
    /// The socket that the daemon of these flags, environment and file would listen on.
    ///
    /// If nobody names one and the user's own does not exist, this is the socket of the system's daemon,
    /// where that exists.
    pub fn find(given: &Given, surroundings: &Surroundings) -> Result<Self, ConfigError> {
        let mut config = said(given, surroundings)?;
        default_socket(&mut config, surroundings)?;
        let origin = config.origin("socket").clone();
        let system = Path::new(SYSTEM_SOCKET);
        if origin == Origin::Default && !config.socket.exists() && system.exists() {
            system.clone_into(&mut config.socket);
        }
        Ok(Self { path: config.socket, origin })
    }
}

/// The whole configuration.
pub(super) fn config(given: &Given, surroundings: &Surroundings) -> Result<Config, ConfigError> {
    let mut config = said(given, surroundings)?;
    if *config.origin("state_dir") == Origin::Default {
        config.state_dir = surroundings.default_state_dir()?;
    }
    default_socket(&mut config, surroundings)?;
    whole_https(&config)?;
    one_reactor(&config)?;
    Ok(config)
}

/// A daemon reacts for a master, or for a minion.
fn one_reactor(config: &Config) -> Result<(), ConfigError> {
    if config.reactor.master.is_none() || config.reactor.minion.is_none() {
        return Ok(());
    }
    Err(ConfigError {
        origin: config.origin("reactor.minion").clone(),
        key: "reactor.minion".to_owned(),
        problem: "reactor.master is given, too".to_owned(),
        accepted: "give one of them; the other's reactor is a daemon of its own".to_owned(),
    })
}

/// An HTTPS door has a certificate and its key.
fn whole_https(config: &Config) -> Result<(), ConfigError> {
    let https = &config.https;
    let missing = match (&https.certificate, &https.key) {
        _ if https.listen.is_none() => return Ok(()),
        (Some(_), Some(_)) => return Ok(()),
        (None, Some(_)) => "https.certificate",
        (Some(_), None) => "https.key",
        (None, None) => "https.certificate and https.key",
    };
    Err(ConfigError {
        origin: config.origin("https.listen").clone(),
        key: "https.listen".to_owned(),
        problem: "this door has no certificate to show".to_owned(),
        accepted: format!("give {missing} too"),
    })
}

/// What was said; the paths that depend on the user are empty if nobody named them.
fn said(given: &Given, surroundings: &Surroundings) -> Result<Config, ConfigError> {
    let mut config = Config::for_state_dir("", "");
    match &given.config {
        Some(path) => read_file(&mut config, path)?,
        None => {
            if let Some(path) = surroundings.default_config_file() {
                read_file(&mut config, &path)?;
            }
        }
    }
    let environment = [
        ("state_dir", ENV_STATE_DIR, surroundings.state_dir.as_deref().map(path_value)),
        ("socket", ENV_SOCKET, surroundings.socket.as_deref().map(path_value)),
        ("log.level", ENV_LOG, surroundings.log_level.clone().map(Value::Text)),
    ];
    for (name, variable, value) in environment {
        if let Some(value) = value {
            set(&mut config, name, &value, &Origin::Environment(variable))?;
        }
    }
    let buses = given.bus.iter().map(|path| Node { line: 0, value: path_value(path) }).collect::<Vec<_>>();
    let flags = [
        ("state_dir", "--state-dir", given.state_dir.as_deref().map(path_value)),
        ("socket", "--socket", given.socket.as_deref().map(path_value)),
        ("bus", "--bus", (!buses.is_empty()).then_some(Value::List(buses))),
        ("log.level", "--log-level", given.log_level.clone().map(Value::Text)),
    ];
    for (name, flag, value) in flags {
        if let Some(value) = value {
            set(&mut config, name, &value, &Origin::Flag(flag))?;
        }
    }
    Ok(config)
}

fn default_socket(config: &mut Config, surroundings: &Surroundings) -> Result<(), ConfigError> {
    if *config.origin("socket") != Origin::Default {
        return Ok(());
    }
    let path = surroundings.default_socket()?;
    // Set like any other value, for the check of its length; the origin stays what it is.
    set(config, "socket", &path_value(&path), &Origin::Default)
}

/// A path of the command line or the environment counts from the working directory. One that is not UTF-8
/// is refused later, as a path that cannot be written in a file either.
fn path_value(path: &Path) -> Value {
    let absolute = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    absolute.to_str().map_or(Value::Null, |path| Value::Text(path.to_owned()))
}

fn set(config: &mut Config, name: &str, value: &Value, origin: &Origin) -> Result<(), ConfigError> {
    let Some(key) = keys::find(name) else {
        return Err(unknown(origin.clone(), name));
    };
    (key.set)(config, value).map_err(|Bad { line, at, problem, accepted }| {
        let origin = match (origin, line) {
            (Origin::File { path, .. }, Some(line)) => Origin::File { path: path.clone(), line },
            _ => origin.clone(),
        };
        let accepted = accepted.unwrap_or_else(|| format!("give {}", key.takes));
        ConfigError { origin, key: format!("{name}{at}"), problem, accepted }
    })?;
    config.origins.insert(key.name, origin.clone());
    Ok(())
}

fn unknown(origin: Origin, name: &str) -> ConfigError {
    ConfigError {
        origin,
        key: name.to_owned(),
        problem: "unknown key".to_owned(),
        accepted: format!("the nearest known key is {}", keys::nearest(name)),
    }
}

fn read_file(config: &mut Config, path: &Path) -> Result<(), ConfigError> {
    let at = |line: usize| Origin::File { path: path.to_owned(), line };
    let bad = |line: usize, problem: String| ConfigError {
        origin: at(line),
        key: String::new(),
        problem,
        accepted: String::new(),
    };
    let text = read_text(path).map_err(|problem| bad(1, problem))?;
    let node = raw::parse(&text).map_err(|error| bad(error.line, error.problem))?;
    match node.value {
        Value::Null => Ok(()),
        Value::Map(entries) => {
            entries.iter().try_for_each(|entry| apply(config, "", entry, &|line| at(line)))
        }
        other => Err(bad(node.line, format!("{} where keys are expected", other.noun()))),
    }
}

/// Applies one entry, or what lies under it.
fn apply(
    config: &mut Config,
    prefix: &str,
    entry: &Entry,
    at: &dyn Fn(usize) -> Origin,
) -> Result<(), ConfigError> {
    let name = format!("{prefix}{}", entry.name);
    if keys::find(&name).is_some() {
        if matches!(config.origin(&name), Origin::File { .. }) {
            // Once under its section and once by its dotted name; the parser sees two different keys.
            return Err(ConfigError {
                origin: at(entry.line),
                key: name,
                problem: "given twice".to_owned(),
                accepted: "give it once".to_owned(),
            });
        }
        return set(config, &name, &entry.node.value, &at(entry.line));
    }
    if !keys::is_section(&name) {
        return Err(unknown(at(entry.line), &name));
    }
    match &entry.node.value {
        // A section whose keys are all commented out.
        Value::Null => Ok(()),
        Value::Map(entries) => {
            let prefix = format!("{name}.");
            entries.iter().try_for_each(|entry| apply(config, &prefix, entry, at))
        }
        other => Err(ConfigError {
            origin: at(entry.node.line),
            key: name.clone(),
            problem: format!("{} where keys are expected", other.noun()),
            accepted: format!("give {}", keys::under(&name)),
        }),
    }
}

fn read_text(path: &Path) -> Result<String, String> {
    let cannot = |error: std::io::Error| format!("cannot read the file: {error}");
    let file = File::open(path).map_err(cannot)?;
    let mut bytes = Vec::new();
    file.take(limits::CONFIG_FILE_BYTES_MAX + 1).read_to_end(&mut bytes).map_err(cannot)?;
    if bytes.len() as u64 > limits::CONFIG_FILE_BYTES_MAX {
        return Err(format!("longer than {} bytes: not a configuration", limits::CONFIG_FILE_BYTES_MAX));
    }
    String::from_utf8(bytes).map_err(|_| "not UTF-8 text".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A user's surroundings within `dir`.
    fn user(dir: &Path) -> Surroundings {
        Surroundings { home: Some(dir.to_owned()), ..Surroundings::default() }
    }

    fn with_file(text: &str) -> (tempfile::TempDir, Given) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("c.yaml");
        std::fs::write(&path, text).unwrap();
        (dir, Given { config: Some(path), ..Given::default() })
    }

    fn problem(text: &str) -> String {
        let (dir, given) = with_file(text);
        let error = Config::load(&given, &user(dir.path())).expect_err("accepted");
        error.to_string().replace(&format!("{}/", dir.path().display()), "")
    }

    #[test]
    fn a_flag_wins_over_the_environment_over_the_file_over_the_default() {
        let (dir, mut given) = with_file("socket: /file.sock\nstate_dir: /file\nbus: [/a, /b]\n");
        let mut around = user(dir.path());
        let load = |given: &Given, around: &Surroundings| Config::load(given, around).unwrap();

        let config = load(&given, &around);
        assert_eq!(config.socket, Path::new("/file.sock"));
        assert_eq!(*config.origin("socket"), Origin::File { path: given.config.clone().unwrap(), line: 1 });
        around.socket = Some("/environment.sock".into());
        let config = load(&given, &around);
        assert_eq!(config.socket, Path::new("/environment.sock"));
        assert_eq!(*config.origin("socket"), Origin::Environment("SALTCELLAR_SOCKET"));
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
        let mut surroundings = user(dir.path());
        surroundings.service_state_dir = Some("/var/lib/saltcellar".into());
        surroundings.service_runtime_dir = Some("/run/saltcellar".into());
        let config = Config::load(&Given::default(), &surroundings).unwrap();
        assert_eq!(config.state_dir, Path::new("/var/lib/saltcellar"));
        assert_eq!(config.socket, Path::new("/run/saltcellar/saltcellar.sock"));
    }

    #[test]
    fn defaults_follow_the_user() {
        let around = user(Path::new("/home/u"));
        let config = Config::load(&Given::default(), &around).unwrap();
        assert_eq!(config.state_dir, Path::new("/home/u/.local/state/saltcellar"));
        assert_eq!(config.socket, Path::new("/home/u/.local/state/saltcellar/saltcellar.sock"));

        let around = Surroundings {
            xdg_state_home: Some("/x/state".into()),
            xdg_runtime_dir: Some("/x/run".into()),
            ..around
        };
        let config = Config::load(&Given::default(), &around).unwrap();
        assert_eq!(config.state_dir, Path::new("/x/state/saltcellar"));
        assert_eq!(config.socket, Path::new("/x/run/saltcellar/saltcellar.sock"));

        let given = Given { state_dir: Some("/elsewhere".into()), ..Given::default() };
        let config = Config::load(&given, &around).unwrap();
        assert_eq!(config.socket, Path::new("/x/run/saltcellar/saltcellar.sock"));
        let root = Surroundings { root: true, ..around };
        assert_eq!(root.default_socket().unwrap(), Path::new("/run/saltcellar/saltcellar.sock"));
    }

    #[test]
    fn without_a_home_the_missing_path_is_asked_for() {
        let error = Config::load(&Given::default(), &Surroundings::default()).unwrap_err();
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
        let config = Config::load(&Given::default(), &user(dir.path())).unwrap();
        assert_eq!(config.log.level, "debug");

        let given = Given { config: Some("/no/such.yaml".into()), ..Given::default() };
        let error = Config::load(&given, &user(dir.path())).unwrap_err().to_string();
        assert!(error.starts_with("/no/such.yaml:1: cannot read the file: No such file"), "{error}");
    }

    #[test]
    fn a_bad_file_is_refused_with_line_key_and_what_would_do() {
        assert_eq!(
            problem("log:\n  levle: info\n"),
            "c.yaml:2: log.levle: unknown key; the nearest known key is log.level"
        );
        assert_eq!(
            problem("bus:\n  - /a\n  - b\n"),
            "c.yaml:3: bus: \"b\" is not accepted; give a list of absolute paths of directories"
        );
        assert_eq!(
            problem("log: info\n"),
            "c.yaml:1: log: \"info\" where keys are expected; give log.level, log.format"
        );
        assert_eq!(problem("a: 1\na: 2\n"), "c.yaml:2: the key \"a\" is given twice");
        let twice = problem("store:\n  segment_bytes_max: 1GiB\nstore.segment_bytes_max: 2GiB\n");
        assert!(twice.starts_with("c.yaml:3:") && twice.contains("given twice"), "{twice}");
        assert_eq!(problem("- a\n"), "c.yaml:1: a list where keys are expected");
        assert!(problem("socket: [\n").starts_with("c.yaml:"));
        let long = format!("socket: /{}\n", "x".repeat(120));
        assert!(problem(&long).contains("has 121 bytes, too long for a unix socket; give an absolute path"));
        assert!(problem(&"#".repeat(1024 * 1024 + 1)).contains("longer than"));
    }

    #[test]
    fn a_daemon_reacts_for_one() {
        let (dir, given) = with_file("reactor:\n  master: /m\n  minion: /n\n");
        let error = Config::load(&given, &user(dir.path())).unwrap_err().to_string();
        assert!(error.contains(":3: reactor.minion: reactor.master is given, too"), "{error}");
    }

    #[test]
    fn an_https_door_needs_a_certificate_and_its_key() {
        let problem = |text: &str| {
            let (dir, given) = with_file(text);
            Config::load(&given, &user(dir.path())).unwrap_err().to_string()
        };
        let alone = problem("https:\n  listen: 127.0.0.1:4580\n");
        assert!(alone.contains("c.yaml:2: https.listen: this door has no certificate to show"), "{alone}");
        assert!(alone.ends_with("give https.certificate and https.key too"), "{alone}");
        let half = problem("https:\n  key: /k\n  listen: 127.0.0.1:4580\n");
        assert!(half.ends_with("give https.certificate too"), "{half}");
        let nowhere = problem("https:\n  listen: everywhere\n");
        assert!(nowhere.contains("give an address and a port"), "{nowhere}");
        let (dir, given) = with_file("https:\n  certificate: /c\n");
        assert!(Config::load(&given, &user(dir.path())).is_ok(), "without a door they stand by");
    }

    #[test]
    fn the_default_socket_must_fit_too() {
        let around = user(Path::new(&format!("/{}", "x".repeat(120))));
        let given = Given { state_dir: Some("/s".into()), ..Given::default() };
        let error = Config::load(&given, &around).unwrap_err().to_string();
        assert!(error.starts_with("default: socket: ") && error.contains("too long"), "{error}");
    }

    #[test]
    fn an_empty_file_and_empty_sections_change_nothing() {
        for text in ["", "log:\n", "log:\nstore:\n  # nothing\n"] {
            let (dir, given) = with_file(text);
            let around = user(dir.path());
            assert_eq!(Config::load(&given, &around), Config::load(&Given::default(), &around), "{text:?}");
        }
    }
}
