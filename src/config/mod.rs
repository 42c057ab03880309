//! The configuration: flags, environment and file merged into one validated [`Config`].
//!
//! A flag overrides the environment, the environment the file, the file the default. Each value remembers its origin.
//! [`KEYS`] and `docs/CONFIG.md` list the keys.
//!
//! # Invariant
//!
//! A [`Config`] is valid: paths are absolute, the socket's path fits a socket address, sizes lie within [`crate::limits`].
//! Loading one reads the configuration file and no other file.

mod classes;
mod duration;
mod environment;
mod error;
mod https;
mod keys;
mod load;
pub mod python_glob;
mod reactor;
mod read;
mod render;
mod rules;
pub mod salt_master;
mod size;
mod value;

use std::collections::BTreeMap;
use std::path::PathBuf;

pub use self::duration::parse as parse_duration;
pub use self::environment::{Environment, SYSTEM_CONFIG, SYSTEM_SOCKET, SYSTEM_STATE_DIR};
pub use self::error::{ConfigError, Origin};
pub use self::https::{HttpsConfig, MinionsRead};
pub use self::keys::{KEYS, Key};
pub use self::load::{CliOverrides, SocketChoice};
pub use self::reactor::ReactorConfig;
pub use self::render::markdown;
pub use self::size::parse as parse_size;
use crate::limits;
use crate::model::{ClassRules, Durability, FilterRule, RedactRule, Right};

/// Default spool directories of a packaged master and minion (`saltcellar` in their `cachedir`).
const SPOOLS: [&str; 2] = ["/var/cache/salt/master/saltcellar", "/var/cache/salt/minion/saltcellar"];

/// The validated configuration of a daemon.
#[derive(Debug, Clone)]
pub struct Config {
    /// Directory of all the daemon's data.
    pub state_dir: PathBuf,
    /// The unix socket for the extension and the command line.
    pub socket: PathBuf,
    /// Permission bits of the socket.
    pub socket_mode: u32,
    /// Group of the socket, by name; none leaves the daemon's own.
    pub socket_group: Option<String>,
    /// The right of socket peers other than administrators.
    pub socket_peers: Right,
    /// Salt socket directories whose event bus is read.
    pub bus: Vec<PathBuf>,
    /// Spool directories of this machine's Salt extension; inspected, never written.
    pub spools: Vec<PathBuf>,
    /// The source for minions on other machines.
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
    /// The origin of each key; absent for a default.
    origins: BTreeMap<&'static str, Origin>,
}

/// Filter, redaction and spill of the sources.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IngestConfig {
    /// Rules for dropping entries.
    pub filter: Vec<FilterRule>,
    /// Rules for replacing values.
    pub redact: Vec<RedactRule>,
    /// Configuration files of the Salt masters whose keys are always redacted.
    pub masters: Vec<PathBuf>,
    /// Bytes of the spill of each bus on disk.
    pub spill_bytes_max: u64,
}

/// The ZeroMQ sockets; each is off unless it has a path.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ZeromqConfig {
    /// The socket of the PULL.
    pub pull: Option<PathBuf>,
    /// The socket of the PUB.
    pub publish: Option<PathBuf>,
    /// Permission bits of both; none means those of the local socket.
    pub mode: Option<u32>,
    /// Group of both; none means that of the local socket.
    pub group: Option<String>,
}

/// The daemon's log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogConfig {
    /// A level or an env-filter directive, validated.
    pub level: String,
    /// The format of a line.
    pub format: LogFormat,
}

impl Config {
    /// The umask of the daemon: no access for others, read access for the group if the socket has one.
    pub fn umask(&self) -> u32 {
        if self.socket_group.is_some() { 0o027 } else { 0o077 }
    }
}

impl Space {
    /// The bytes, unless automatic.
    pub fn bytes(self) -> Option<u64> {
        match self {
            Self::Auto => None,
            Self::Bytes(bytes) => Some(bytes),
        }
    }
}

/// The format of a log line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogFormat {
    /// Text, suited to the output: a terminal, the journal, a file.
    Auto,
    /// Text without colours, with times.
    Text,
    /// One JSON object a line.
    Json,
}

impl LogFormat {
    const ALL: [Self; 3] = [Self::Auto, Self::Text, Self::Json];

    fn name(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Text => "text",
            Self::Json => "json",
        }
    }
}

/// Settings of the store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoreConfig {
    /// When a call is acknowledged.
    pub durability: Durability,
    /// Bytes after which a segment of the log is sealed.
    pub segment_bytes_max: u64,
    /// Bytes of the largest accepted entry; at most [`limits::ENTRY_BYTES_MAX`].
    pub entry_bytes_max: usize,
    /// Retention classes; `jobs` and `events` are among them.
    pub classes: Vec<ClassRules>,
    /// Retention deletes early below this free space.
    pub free_bytes_low: Space,
    /// The store accepts no entries below this free space.
    pub free_bytes_min: Space,
}

/// An amount of free space on the state directory's file system.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Space {
    /// A share of the file system, up to a limit (see [`limits::FREE_BYTES_MIN`]).
    Auto,
    /// A number of bytes.
    Bytes(u64),
}

impl Config {
    /// The defaults with the given state directory and socket; reads no file and no environment.
    pub fn for_state_dir(state_dir: impl Into<PathBuf>, socket: impl Into<PathBuf>) -> Self {
        Self {
            state_dir: state_dir.into(),
            socket: socket.into(),
            socket_mode: 0o660,
            socket_group: None,
            socket_peers: Right::Write,
            bus: Vec::new(),
            spools: SPOOLS.map(PathBuf::from).to_vec(),
            https: HttpsConfig::default(),
            ingest: IngestConfig {
                filter: Vec::new(),
                redact: Vec::new(),
                masters: vec![PathBuf::from(salt_master::SALT_MASTER_FILE)],
                spill_bytes_max: size::GIB,
            },
            reactor: ReactorConfig::default(),
            zeromq: ZeromqConfig::default(),
            log: LogConfig { level: "info".to_owned(), format: LogFormat::Auto },
            store: StoreConfig {
                durability: Durability::Durable,
                segment_bytes_max: 256 * size::MIB,
                entry_bytes_max: limits::ENTRY_BYTES_MAX,
                classes: classes::defaults(),
                free_bytes_low: Space::Auto,
                free_bytes_min: Space::Auto,
            },
            origins: BTreeMap::new(),
        }
    }

    /// Merges flags, environment and file, in order of decreasing precedence.
    pub fn load(given: &CliOverrides, environment: &Environment) -> Result<Self, ConfigError> {
        load::config(given, environment)
    }

    /// The origin of the value of key `name`.
    pub fn origin(&self, name: &str) -> &Origin {
        self.origins.get(name).unwrap_or(&Origin::Default)
    }

    /// The effective configuration as YAML, each value with its origin in a comment.
    pub fn to_yaml(&self) -> String {
        render::yaml(self)
    }

    /// The effective configuration as JSON: `config` as in a file, `origins` by dotted name.
    pub fn to_json(&self) -> serde_json::Value {
        render::json(self)
    }
}

/// Equality ignores origins.
impl PartialEq for Config {
    fn eq(&self, other: &Self) -> bool {
        KEYS.iter().all(|key| (key.show)(self) == (key.show)(other))
    }
}

impl Eq for Config {}
