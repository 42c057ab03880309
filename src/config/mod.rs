//! The configuration: from what flags, environment and file say to one checked [`Config`].
//!
//! A flag wins over the environment, the environment over the file, the file over the default. Each value
//! remembers where it came from. What a file may say is listed in [`KEYS`] and in `docs/CONFIG.md`.
//!
//! # Invariant
//!
//! A [`Config`] that exists can be used as it stands: paths are absolute, the socket's path fits a socket
//! address, sizes lie within [`crate::limits`]. Making one reads the configuration file and touches nothing
//! else.

mod classes;
mod duration;
mod error;
mod https;
mod keys;
mod load;
pub mod python_glob;
mod raw;
mod reactor;
mod reactor_keys;
mod render;
mod rules;
pub mod salt_master;
mod size;
mod surroundings;

use std::collections::BTreeMap;
use std::path::PathBuf;

pub use self::duration::parse as parse_duration;
pub use self::error::{ConfigError, Origin};
pub use self::https::{HttpsConfig, MinionsRead};
pub use self::keys::{KEYS, Key};
pub use self::load::{Given, SocketChoice};
pub use self::reactor::ReactorConfig;
pub use self::render::markdown;
pub use self::size::parse as parse_size;
pub use self::surroundings::{SYSTEM_CONFIG, SYSTEM_SOCKET, SYSTEM_STATE_DIR, Surroundings};
use crate::limits;
use crate::model::{ClassRules, Durability, FilterRule, RedactRule, Right};

/// Where the extension of a packaged master and minion spools (`saltcellar` in their `cachedir`).
const SPOOLS: [&str; 2] = ["/var/cache/salt/master/saltcellar", "/var/cache/salt/minion/saltcellar"];

/// What the daemon runs on.
#[derive(Debug, Clone)]
pub struct Config {
    /// Everything the daemon keeps lives below this directory.
    pub state_dir: PathBuf,
    /// The unix socket for the extension and the command line.
    pub socket: PathBuf,
    /// Permission bits of the socket.
    pub socket_mode: u32,
    /// Group of the socket, by name; none leaves the daemon's own.
    pub socket_group: Option<String>,
    /// The right of the socket's peers other than administrators.
    pub socket_peers: Right,
    /// Salt socket directories whose event bus is read.
    pub bus: Vec<PathBuf>,
    /// Directories in which the Salt extension of this machine spools; looked into, never written.
    pub spools: Vec<PathBuf>,
    /// The door for minions on other machines.
    pub https: HttpsConfig,
    /// What passes the doors.
    pub ingest: IngestConfig,
    /// The reactor.
    pub reactor: ReactorConfig,
    /// The ZeroMQ doors.
    pub zeromq: ZeromqConfig,
    /// The daemon's own log.
    pub log: LogConfig,
    /// The store.
    pub store: StoreConfig,
    /// Where each key's value was said; a key that is absent has its default.
    origins: BTreeMap<&'static str, Origin>,
}

/// What passes the doors.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IngestConfig {
    /// What is stored and what is not.
    pub filter: Vec<FilterRule>,
    /// What is replaced before anything is stored.
    pub redact: Vec<RedactRule>,
    /// Configuration files of the Salt masters whose keys are redacted from everything.
    pub masters: Vec<PathBuf>,
    /// Bytes on disk that each bus may have waiting for the store.
    pub spill_bytes_max: u64,
}

/// The ZeroMQ doors; each is off unless it has a path.
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

/// How the daemon speaks about itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogConfig {
    /// A level or an env-filter directive; known to parse.
    pub level: String,
    /// The form of a line.
    pub format: LogFormat,
}

impl Config {
    /// The umask of the daemon: nothing for others; reading for the group if the socket has one.
    pub fn umask(&self) -> u32 {
        if self.socket_group.is_some() { 0o027 } else { 0o077 }
    }
}

impl Space {
    /// The bytes, if it says any.
    pub fn bytes(self) -> Option<u64> {
        match self {
            Self::Auto => None,
            Self::Bytes(bytes) => Some(bytes),
        }
    }
}

/// The form of a log line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogFormat {
    /// Text, fitted to where it goes: a terminal, the journal, a file.
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

/// Bounds of the store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoreConfig {
    /// When a call is answered.
    pub durability: Durability,
    /// Bytes after which a segment of the log is sealed.
    pub segment_bytes_max: u64,
    /// Bytes of the largest entry taken; at most [`limits::ENTRY_BYTES_MAX`].
    pub entry_bytes_max: usize,
    /// Retention classes; `jobs` and `events` are among them.
    pub classes: Vec<ClassRules>,
    /// Below so much free space retention tightens.
    pub free_bytes_low: Space,
    /// Below so much free space nothing is taken.
    pub free_bytes_min: Space,
}

/// So much of the file system that the state directory is on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Space {
    /// A part of it that suits most, up to a bound (see [`limits::FREE_BYTES_MIN`]).
    Auto,
    /// So many bytes.
    Bytes(u64),
}

impl Config {
    /// Defaults for that state directory and socket, without a look at files or environment.
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

    /// Reads flags, environment and file, in that order of weight.
    pub fn load(given: &Given, surroundings: &Surroundings) -> Result<Self, ConfigError> {
        load::config(given, surroundings)
    }

    /// Where the value of the key `name` was said.
    pub fn origin(&self, name: &str) -> &Origin {
        self.origins.get(name).unwrap_or(&Origin::Default)
    }

    /// The effective configuration as YAML, each value with its origin in a comment.
    pub fn to_yaml(&self) -> String {
        render::yaml(self)
    }

    /// The effective configuration as JSON: `config` as a file would hold it, `origins` by dotted name.
    pub fn to_json(&self) -> serde_json::Value {
        render::json(self)
    }
}

/// Two configurations are equal if a daemon would run alike on them, whoever said so.
impl PartialEq for Config {
    fn eq(&self, other: &Self) -> bool {
        KEYS.iter().all(|key| (key.show)(self) == (key.show)(other))
    }
}

impl Eq for Config {}
