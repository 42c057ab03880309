//! The configuration: flags, environment and files merged into one validated [`Config`].
//!
//! A flag overrides the environment, the environment the files, the files the default. Each value remembers its origin. The files are the
//! configuration file and those in [`CONFIG_DIR`] next to it; no file overrides another.
//! A key is a field of [`Config`] or of one of its sections. `docs/CONFIG.md` is generated from the fields' comments.
//!
//! # Invariant
//!
//! A [`Config`] is valid: paths are absolute, the socket's path fits a socket address, sizes lie within [`crate::base::limits`].
//! Loading one reads these files and no other.

mod cluster;
mod environment;
mod error;
mod file;
mod ingest;
mod items;
mod load;
mod network;
mod overrides;
pub mod python_glob;
mod reactor;
mod render;
pub mod salt_master;
mod secret;
mod store;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Deserializer, Serialize};
use serde_json::{Map, Value as Json};
use tracing_subscriber::EnvFilter;

pub use self::cluster::{ClusterConfig, Replicate};
pub use self::environment::{
    CONFIG_DIR, Environment, SYSTEM_CONFIG, SYSTEM_SOCKET, SYSTEM_STATE_DIR,
};
pub use self::error::{ConfigError, Invalid, Origin, within};
use self::file::Places;
pub use self::file::read_yaml;
pub use self::ingest::{IngestConfig, name_redact_rules};
pub use self::load::{SocketChoice, read_options};
pub use self::network::{ClientTls, HttpConfig, HttpTls, HttpsConfig, MinionsRead, Nats};
pub use self::overrides::CliOverrides;
pub use self::reactor::{ReactorConfig, WithoutQuorum};
pub(crate) use self::render::is_plain_yaml;
use self::salt_master::SaltMaster;
pub use self::secret::{Secret, Text};
pub use self::store::{Space, StoreConfig};
use crate::base::limits;
use crate::model::Right;
use crate::model::word::{self, Word, words};

/// Default spool directories of a packaged master and minion (`saltcellar` in their `cachedir`).
const SPOOLS: [&str; 2] = [
    "/var/cache/salt/master/saltcellar",
    "/var/cache/salt/minion/saltcellar",
];

/// The validated configuration of a daemon.
#[derive(Debug, Clone, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// The directory of all the daemon's data. One daemon per directory.
    ///
    /// - value: an absolute path of a directory
    /// - default: `/var/lib/saltcellar` for root, else `saltcellar` under `$XDG_STATE_HOME` or `~/.local/state`
    /// - example: `/var/lib/saltcellar`
    /// - flag of `serve`: `--state-dir`
    /// - environment: `SALTCELLAR_STATE_DIR`
    #[serde(with = "word")]
    pub state_dir: PathBuf,
    /// The unix socket for the Salt extension and the command line.
    ///
    /// - value: an absolute path of at most 107 bytes
    /// - default: `/run/saltcellar/saltcellar.sock` for root, else `saltcellar/saltcellar.sock` under `$XDG_RUNTIME_DIR`, `$XDG_STATE_HOME` or
    ///   `~/.local/state`, the first that is set
    /// - example: `/run/saltcellar/saltcellar.sock`
    /// - flag of `serve`: `--socket`
    /// - environment: `SALTCELLAR_SOCKET`
    #[serde(with = "word")]
    pub socket: PathBuf,
    /// Permissions of the socket. Processes that can write to it have the right `socket_peers`.
    ///
    /// - value: file permissions in octal, from "0600" to "0777"
    /// - default: `"0660"`
    /// - example: `"0660"`
    #[serde(with = "word")]
    pub socket_mode: Mode,
    /// Group of the socket. Its members can use the command line and the Salt extension. With a group, the daemon's files are readable by the
    /// daemon's own group (umask 0027), otherwise by its user only (0077).
    ///
    /// - value: the name of a group
    /// - default: none: the daemon's own group
    /// - example: `salt`
    #[serde(with = "word")]
    pub socket_group: Option<String>,
    /// The right of socket peers that are not administrators: `read` jobs and events, or also `write` them. Administrators are root, the daemon's own
    /// user, and the owner of the event socket in a directory of `bus`, which is the user of that master. Only administrators may delete, hold and
    /// import jobs, fire events, replay reactions, and set Thorium's register. docs/WIRE.md lists the calls and their rights.
    ///
    /// - value: read or write
    /// - default: `write`
    /// - example: `read`
    pub socket_peers: Right,
    /// Salt socket directories (`sock_dir`) whose event bus the daemon reads.
    ///
    /// - value: a list of absolute paths of directories
    /// - default: `[]`
    /// - example: `[/var/run/salt/master]`
    /// - flag of `serve`: `--bus` (may be repeated)
    #[serde(with = "word::many")]
    pub bus: Vec<PathBuf>,
    /// Directories in which the Salt extension of this host keeps entries while the daemon is unreachable (its `spool_dir`). `status` and `doctor`
    /// inspect them; missing ones are ignored.
    ///
    /// - value: a list of absolute paths of directories
    /// - default: [/var/cache/salt/master/saltcellar, /var/cache/salt/minion/saltcellar]
    /// - example: `[/var/cache/salt/master/saltcellar]`
    #[serde(with = "word::many")]
    pub spools: Vec<PathBuf>,
    /// Several masters.
    pub cluster: ClusterConfig,
    /// The HTTP listener.
    pub http: HttpConfig,
    /// Minions on other machines.
    pub https: HttpsConfig,
    /// Filter, redaction and spill.
    pub ingest: IngestConfig,
    /// The reactor.
    pub reactor: ReactorConfig,
    /// The ZeroMQ sockets.
    pub zeromq: ZeromqConfig,
    /// The daemon's own log.
    pub log: LogConfig,
    /// The store.
    pub store: StoreConfig,
    /// Programs by name whose lines of output become events on Salt's bus. A SIGHUP applies changes. docs/SINKS.md describes the keys.
    ///
    /// - value: a mapping of names to scripts
    /// - default: `{}`
    /// - example: `{temperature: {command: [/usr/local/bin/watch-temperature], rate: 10/1s}}`
    #[serde(deserialize_with = "mapping_or_nothing")]
    pub scripts: Map<String, Json>,
    /// Destinations of events by name: files, HTTP services, programs. Each has an encoder and a transport, or a preset with both, and delivers every
    /// event that matches, from a saved position on. A SIGHUP applies changes. docs/SINKS.md describes the keys.
    ///
    /// - value: a mapping of names to sinks
    /// - default: `{}`
    /// - example: `{audit: {match: [{tag: 'salt/auth*'}], encoder: json, transport: {file: {path: /var/log/saltcellar/audit.jsonl}}}}`
    #[serde(deserialize_with = "mapping_or_nothing")]
    pub sinks: Map<String, Json>,
    /// The origin of each key; absent for a default.
    #[serde(skip)]
    origins: BTreeMap<String, Origin>,
    /// The flags.
    #[serde(skip)]
    given: CliOverrides,
    /// The files that were read, in this order.
    #[serde(skip)]
    files: Vec<PathBuf>,
    /// Where further ones would appear: the configuration file, and the directory next to it.
    #[serde(skip)]
    expected: Vec<PathBuf>,
    /// The places of all values in them.
    #[serde(skip)]
    places: Places,
}

/// A mapping whose items may all be commented out. The part that uses the values checks them, see [`Config::error_at`].
fn mapping_or_nothing<'de, D: Deserializer<'de>>(from: D) -> Result<Map<String, Json>, D::Error> {
    Option::deserialize(from).map(Option::unwrap_or_default)
}

/// The ZeroMQ sockets; each is off unless it has a path.
#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct ZeromqConfig {
    /// A ZeroMQ PULL socket for events from any program with a PUSH socket. A message is one frame with tag, two newlines and a msgpack map, as on
    /// Salt's bus, or two frames with tag and map. While the store has no room, senders wait. Messages are not acknowledged; docs/ZEROMQ.md describes
    /// what a killed process can lose.
    ///
    /// - value: ipc:// and an absolute path of at most 107 bytes
    /// - default: none: off
    /// - example: `ipc:///run/saltcellar/events-in.sock`
    #[serde(with = "word")]
    pub pull: Option<IpcPath>,
    /// A ZeroMQ PUB socket with every stored event, in the same form, once it is durable. A SUB socket receives the events whose tag starts with one
    /// of its subscriptions. Events are dropped for a slow subscriber.
    ///
    /// - value: ipc:// and an absolute path of at most 107 bytes
    /// - default: none: off
    /// - example: `ipc:///run/saltcellar/events-out.sock`
    #[serde(rename = "pub", with = "word")]
    pub publish: Option<IpcPath>,
    /// Permissions of the ZeroMQ sockets. A process with write access can store events, and read every new event.
    ///
    /// - value: file permissions in octal, from "0600" to "0777"
    /// - default: the value of `socket_mode`
    /// - example: `"0660"`
    #[serde(with = "word")]
    pub mode: Option<Mode>,
    /// Group of the ZeroMQ sockets.
    ///
    /// - value: the name of a group
    /// - default: the value of `socket_group`
    /// - example: `salt`
    #[serde(with = "word")]
    pub group: Option<String>,
}

/// The daemon's log.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct LogConfig {
    /// Verbosity of the daemon's log.
    ///
    /// - value: off, error, warn, info, debug or trace, or a filter such as "info,saltcellar_store=debug"
    /// - default: `info`
    /// - example: `debug`
    /// - flag of `serve`: `--log-level`
    /// - environment: `SALTCELLAR_LOG`
    #[serde(with = "word")]
    pub level: LogLevel,
    /// Format of the log: `auto` is text, with colours on a terminal and without times under the journal.
    ///
    /// - value: auto, text or json
    /// - default: `auto`
    /// - example: `json`
    pub format: LogFormat,
}

/// The format of a log line.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum LogFormat {
    /// Text, suited to the output: a terminal, the journal, a file.
    Auto,
    /// Text without colours, with times.
    Text,
    /// One JSON object a line.
    Json,
}

/// A level or an env-filter directive.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogLevel(pub String);

/// File permissions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Mode(pub u32);

/// The path of a ZeroMQ socket.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IpcPath(pub PathBuf);

words! {
    LogLevel: "off, error, warn, info, debug or trace, or a filter such as \"info,saltcellar_store=debug\"",
        |text| {
            let plain = matches!(text, "off" | "error" | "warn" | "info" | "debug" | "trace");
            // The filter reads a lone word that is not a level as a module name; here it is a typing error.
            let filter = text.contains('=') && EnvFilter::builder().parse(text).is_ok();
            (plain || filter).then(|| Self(text.to_owned()))
        },
        |level| level.0.clone();
    Mode: "file permissions in octal, from \"0600\" to \"0777\"",
        |text| {
            let digits = text.strip_prefix("0o").unwrap_or(text);
            let mode = u32::from_str_radix(digits, 8).ok().filter(|_| digits.len() <= 4)?;
            ((0o600..=0o777).contains(&mode) && mode & 0o600 == 0o600).then_some(Self(mode))
        },
        |mode| format!("{:04o}", mode.0);
    IpcPath: "ipc:// and an absolute path; other transports have no file permissions, which protect these sockets",
        |text| PathBuf::parse(text.strip_prefix("ipc://")?).map(Self),
        |path| format!("ipc://{}", path.0.display());
}

impl Default for Config {
    fn default() -> Self {
        Self {
            // Both depend on the user, and are filled when the configuration is loaded.
            state_dir: PathBuf::new(),
            socket: PathBuf::new(),
            socket_mode: Mode(0o660),
            socket_group: None,
            socket_peers: Right::Write,
            bus: Vec::new(),
            spools: SPOOLS.map(PathBuf::from).to_vec(),
            cluster: ClusterConfig::default(),
            http: HttpConfig::default(),
            https: HttpsConfig::default(),
            ingest: IngestConfig::default(),
            reactor: ReactorConfig::default(),
            zeromq: ZeromqConfig::default(),
            log: LogConfig::default(),
            store: StoreConfig::default(),
            scripts: Map::new(),
            sinks: Map::new(),
            origins: BTreeMap::new(),
            given: CliOverrides::default(),
            files: Vec::new(),
            expected: Vec::new(),
            places: Places::default(),
        }
    }
}

impl Default for LogConfig {
    fn default() -> Self {
        Self {
            level: LogLevel("info".to_owned()),
            format: LogFormat::Auto,
        }
    }
}

impl Config {
    /// The defaults with the given state directory and socket; reads no file and no environment.
    pub fn for_state_dir(state_dir: impl Into<PathBuf>, socket: impl Into<PathBuf>) -> Self {
        Self {
            state_dir: state_dir.into(),
            socket: socket.into(),
            ..Self::default()
        }
    }

    /// Whether an address serves minions.
    pub fn serves_minions(&self) -> bool {
        self.https.listen.is_some() || self.http.minions
    }

    /// The first configured master that exists on this host: `reactor.master`, or an item of `ingest.masters`.
    pub fn own_master(&self) -> Option<SaltMaster> {
        let masters = self.reactor.master.iter().chain(&self.ingest.masters);
        let existing = masters.into_iter().find(|path| path.exists());
        existing.map(|path| SaltMaster::read(path))
    }

    /// The umask of the daemon: no access for others, read access for the group if the socket has one.
    pub fn umask(&self) -> u32 {
        if self.socket_group.is_some() {
            0o027
        } else {
            0o077
        }
    }

    /// The files that were read: the configuration file, then those in [`CONFIG_DIR`] next to it.
    pub fn files(&self) -> &[PathBuf] {
        &self.files
    }

    /// The files and the directory whose changes change the configuration; some may be missing.
    pub fn watched(&self) -> impl Iterator<Item = &Path> {
        self.files
            .iter()
            .chain(&self.expected)
            .map(PathBuf::as_path)
    }

    /// The origin of the value of key `name`. If several files give values, the first file counts.
    pub fn origin(&self, name: &str) -> &Origin {
        self.origins.get(name).unwrap_or(&Origin::Default)
    }

    /// Checks values against limits and other values of their section, and names rules without a name.
    fn check(&mut self) -> Result<(), Invalid> {
        fits_a_socket("socket", &self.socket)?;

        // A path that is too long would fail only when the socket is bound.
        for (key, path) in [
            ("zeromq.pull", &self.zeromq.pull),
            ("zeromq.pub", &self.zeromq.publish),
        ] {
            path.as_ref()
                .map_or(Ok(()), |path| fits_a_socket(key, &path.0))?;
        }

        self.http
            .unix
            .as_ref()
            .map_or(Ok(()), |path| fits_a_socket("http.unix", path))?;

        self.cluster.check()?;
        self.http.check()?;
        self.ingest.check()?;
        self.reactor.check()?;
        self.store.check()
    }
}

fn fits_a_socket(key: &str, path: &Path) -> Result<(), Invalid> {
    let bytes = path.as_os_str().len();
    let max = limits::SOCKET_PATH_BYTES_MAX;
    if bytes <= max {
        return Ok(());
    }

    let path = path.display();
    Err(Invalid::new(
        key,
        format!(
            "{path} has {bytes} bytes, too long for a unix socket; give an absolute path of at most {max} bytes"
        ),
    ))
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// The configuration of a file with this text, `c.yaml` in the directory.
    pub(crate) fn in_directory(text: &str) -> Result<(Config, tempfile::TempDir), String> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("c.yaml");
        std::fs::write(&path, text).unwrap();
        let given = CliOverrides {
            config: Some(path),
            ..CliOverrides::default()
        };
        let around = Environment {
            home: Some("/home/u".into()),
            ..Environment::default()
        };
        let config = Config::load(&given, &around).map_err(|error| without(&dir, &error))?;
        Ok((config, dir))
    }

    /// An error without the path of the directory.
    pub(crate) fn without(dir: &tempfile::TempDir, error: &ConfigError) -> String {
        error
            .to_string()
            .replace(&format!("{}/", dir.path().display()), "")
    }

    /// The configuration alone.
    pub(super) fn load(text: &str) -> Result<Config, String> {
        in_directory(text).map(|(config, _)| config)
    }

    /// Asserts the beginning of the error for each text.
    pub(super) fn assert_errors(cases: &[(&str, &str)]) {
        for (text, expected) in cases {
            let error = load(text).expect_err(text);
            assert!(error.starts_with(expected), "{text:?}: {error}");
        }
    }

    /// Asserts that the rendered configuration is read back equal.
    pub(super) fn assert_round_trip(text: &str) -> Config {
        let config = load(text).unwrap_or_else(|error| panic!("{text}: {error}"));
        let again = load(&config.to_yaml()).unwrap_or_else(|error| panic!("{text}: {error}"));
        assert_eq!(again.shown().0, config.shown().0, "{text}");
        config
    }

    /// The keys of `docs/CONFIG.md`, each with its field `name` such as `example`, without the backquotes of code.
    fn documented(name: &str) -> Vec<(&'static str, &'static str)> {
        let page = include_str!("../../docs/CONFIG.md");
        let sections = page.split("\n## `").skip(1);
        let field = |section: &'static str| {
            let (key, rest) = section.split_once('`').unwrap();
            let line = rest.lines().find_map(|line| {
                line.strip_prefix("- ")?
                    .strip_prefix(name)?
                    .strip_prefix(": ")
            });
            let text = line.unwrap_or_else(|| panic!("{key}: no {name}"));
            let code = text
                .strip_prefix('`')
                .and_then(|text| text.strip_suffix('`'));
            (key, code.filter(|code| !code.contains('`')).unwrap_or(text))
        };
        sections.map(field).collect()
    }

    #[test]
    fn every_key_is_documented_and_its_example_accepted_and_rendered() {
        let keys: Vec<_> = documented("example");
        assert_eq!(
            keys.iter().map(|(key, _)| *key).collect::<Vec<_>>(),
            render::names()
        );
        for (key, example) in keys {
            let needs = match key {
                "https.listen" => "https: {certificate: /c, key: /k}\n",
                "http.minions" => {
                    "http: {listen: '0.0.0.0:4581', tls: {certificate: /c, key: /k}}\n"
                }
                "reactor.election" => {
                    "cluster.nats: {servers: ['nats://n1']}\nreactor.master: /etc/salt/master\n"
                }
                _ => "",
            };
            let config = assert_round_trip(&format!("{key}: {example}\n{needs}"));
            assert!(
                config.origin(key).to_string().ends_with("/c.yaml:1"),
                "{key}"
            );
        }
    }

    #[test]
    fn every_documented_default_is_the_default() {
        let fresh = load("").unwrap().shown().0;
        let mut compared = 0;
        for (key, default) in documented("default")
            .into_iter()
            .filter(|(_, default)| !default.contains(' '))
        {
            let config = load(&format!("{key}: {default}\n")).unwrap();
            assert_eq!(config.shown().0, fresh, "{key}");
            compared += 1;
        }
        assert!(compared > 15, "{compared}");
    }

    #[test]
    fn limits_in_the_documentation_match_the_constants() {
        let values: BTreeMap<_, _> = documented("value").into_iter().collect();
        for name in ["socket", "http.unix", "zeromq.pull", "zeromq.pub"] {
            assert!(
                values[name].contains(&format!("at most {} bytes", limits::SOCKET_PATH_BYTES_MAX))
            );
        }
        let entry_bytes_max = limits::ENTRY_BYTES_MAX.show().unwrap();
        assert!(values["store.entry_bytes_max"].contains(&entry_bytes_max));
        let age = crate::model::Age::ACCEPTS;
        for limit in [limits::KEEP_AGE_MIN, limits::KEEP_AGE_MAX] {
            assert!(
                age.contains(&format!(" {} ", limit.show().unwrap())),
                "{age}"
            );
        }
        assert!(crate::model::Action::ACCEPTS.ends_with(&limits::SAMPLE_MAX.to_string()));
    }

    #[test]
    fn values_that_a_key_does_not_accept_are_rejected() {
        for (name, value) in [
            ("state_dir", "relative/path"),
            ("state_dir", "[/a]"),
            ("state_dir", "~"),
            ("socket_mode", "0060"),
            ("socket_mode", "999"),
            ("socket_mode", "00660"),
            ("socket_group", "\"\""),
            ("socket_peers", "admin"),
            ("bus", "/var/run/salt/master"),
            ("bus", "[relative]"),
            ("ingest.filter", "{do: drop}"),
            ("ingest.redact", "passwords"),
            ("ingest.spill_bytes_max", "1MiB"),
            ("zeromq.pull", "tcp://0.0.0.0:5555"),
            ("zeromq.pull", "/run/in.sock"),
            ("zeromq.pub", "ipc://relative"),
            ("zeromq.pub", "ipc://@abstract"),
            ("zeromq.mode", "1777"),
            ("log.level", "inof"),
            ("log.level", "a=b=c"),
            ("log.format", "xml"),
            ("store.durability", "fast"),
            ("store.durability", "written"),
            ("store.durability", "written 0s"),
            ("store.durability", "written 2m"),
            ("store.segment_bytes_max", "1"),
            ("store.segment_bytes_max", "-5"),
            ("store.segment_bytes_max", "12 parsecs"),
            ("store.segment_bytes_max", "99999999999999999999GiB"),
            ("store.entry_bytes_max", "65MiB"),
            ("store.classes", "jobs"),
            ("store.free_bytes_low", "5%"),
            ("store.free_bytes_min", "[auto]"),
        ] {
            let error = load(&format!("{name}: {value}\n")).expect_err(name);
            assert!(error.starts_with(&format!("c.yaml:1: {name}")), "{error}");
        }
    }

    #[test]
    fn messages_name_the_accepted_values() {
        assert_errors(&[
            (
                "log: {format: xml}",
                "c.yaml:1: log.format: unknown variant `xml`, expected one of `auto`, `text`, `json`",
            ),
            (
                "reactor: {shadow: maybe}",
                "c.yaml:1: reactor.shadow: string \"maybe\" is not accepted; give a boolean",
            ),
            (
                "state_dir: [/a]",
                "c.yaml:1: state_dir: a list is not accepted; give an absolute path",
            ),
            (
                "bus: /a",
                "c.yaml:1: bus: string \"/a\" is not accepted; give a list, each item an absolute path",
            ),
            (
                "store.entry_bytes_max: 1",
                "c.yaml:1: store.entry_bytes_max: \"1\" is not accepted; give a value from 64KiB to 64MiB",
            ),
            (
                "https: {listen: everywhere}",
                "c.yaml:1: https.listen: \"everywhere\" is not accepted; give an address and a port",
            ),
        ]);
    }
}
