//! All configuration keys: name, accepted values, default, documentation, example, parser and renderer.
//!
//! `docs/CONFIG.md`, the hints for unknown keys, and the output of `saltcellar check` derive from [`KEYS`]. A new key is
//! one item here and one field of [`Config`].

use std::path::{Path, PathBuf};

use serde_json::Value as Json;
use tracing_subscriber::EnvFilter;

use super::environment::{ENV_LOG, ENV_SOCKET, ENV_STATE_DIR};
use super::raw::{ConfigNode, Value};
use super::{Config, LogFormat, Space, classes, duration, https, reactor_keys, rules, size};
use crate::limits;
use crate::model::{Durability, Right};

/// One key. Public for the generated documentation.
pub struct Key {
    /// Dotted name: `log.level` is `level` under `log`.
    pub name: &'static str,
    /// The accepted values, worded to follow "give".
    pub accepts: &'static str,
    /// The default; in prose where it depends on the user.
    pub default: &'static str,
    /// The documentation, one paragraph.
    pub doc: &'static str,
    /// A value, as YAML.
    pub example: &'static str,
    /// The flag of `saltcellar serve` that sets it.
    pub flag: Option<&'static str>,
    /// The environment variable that sets it.
    pub environment: Option<&'static str>,
    pub(super) set: fn(&mut Config, &Value) -> Result<(), ValueError>,
    pub(super) show: fn(&Config) -> Json,
}

/// The reason for rejecting a value.
pub(super) struct ValueError {
    /// The line, where it differs from the key's.
    pub(super) line: Option<usize>,
    /// The position below the key, such as `[0].name`; empty for the key's own value.
    pub(super) at: String,
    pub(super) problem: String,
    /// The accepted values, where they differ from the key's.
    pub(super) accepted: Option<String>,
}

impl From<String> for ValueError {
    fn from(problem: String) -> Self {
        Self { line: None, at: String::new(), problem, accepted: None }
    }
}

/// All keys, in the order of the documentation.
pub const KEYS: &[Key] = &[
    Key {
        name: "state_dir",
        accepts: "an absolute path of a directory",
        default: "`/var/lib/saltcellar` for root, else `saltcellar` under `$XDG_STATE_HOME` or `~/.local/state`",
        doc: "The directory of all the daemon's data. One daemon per directory.",
        example: "/var/lib/saltcellar",
        flag: Some("--state-dir"),
        environment: Some(ENV_STATE_DIR),
        set: |config, value| put(&mut config.state_dir, path(value)),
        show: |config| path_json(&config.state_dir),
    },
    Key {
        name: "socket",
        accepts: "an absolute path of at most 107 bytes",
        default: "`/run/saltcellar/saltcellar.sock` for root, else `saltcellar/saltcellar.sock` under `$XDG_RUNTIME_DIR`, \
                  `$XDG_STATE_HOME` or `~/.local/state`, the first that is set",
        doc: "The unix socket for the Salt extension and the command line.",
        example: "/run/saltcellar/saltcellar.sock",
        flag: Some("--socket"),
        environment: Some(ENV_SOCKET),
        set: |config, value| put(&mut config.socket, socket_path(value)),
        show: |config| path_json(&config.socket),
    },
    Key {
        name: "socket_mode",
        accepts: "file permissions in octal, from \"0600\" to \"0777\"",
        default: "\"0660\"",
        doc: "Permissions of the socket. Processes that can write to it have the right `socket_peers`.",
        example: "\"0660\"",
        flag: None,
        environment: None,
        set: |config, value| put(&mut config.socket_mode, mode(value)),
        show: |config| Json::from(format!("{:04o}", config.socket_mode)),
    },
    Key {
        name: "socket_group",
        accepts: "the name of a group",
        default: "none: the daemon's own group",
        doc: "Group of the socket. Its members can use the command line and the Salt extension. With a group, the daemon's files are readable by the daemon's own group (umask 0027), otherwise by its user only (0077).",
        example: "salt",
        flag: None,
        environment: None,
        set: |config, value| put(&mut config.socket_group, text(value).map(|name| Some(name.to_owned()))),
        show: |config| config.socket_group.clone().map_or(Json::Null, Json::from),
    },
    Key {
        name: "socket_peers",
        accepts: "read or write",
        default: "write",
        doc: "The right of socket peers that are not administrators: `read` jobs and events, or also `write` them. \
        Administrators are root, the daemon's own user, and the owner of the event socket in a directory of `bus`, which is the \
        user of that master. Only administrators may delete, hold and import jobs, fire events, replay reactions, and set \
        Thorium's register. docs/WIRE.md lists the calls and their rights.",
        example: "read",
        flag: None,
        environment: None,
        set: |config, value| put(&mut config.socket_peers, peer_right(value)),
        show: |config| Json::from(config.socket_peers.name()),
    },
    Key {
        name: "bus",
        accepts: "a list of absolute paths of directories",
        default: "[]",
        doc: "Salt socket directories (`sock_dir`) whose event bus the daemon reads.",
        example: "[/var/run/salt/master]",
        flag: Some("--bus"),
        environment: None,
        set: |config, value| put(&mut config.bus, paths(value)),
        show: |config| config.bus.iter().map(|path| path_json(path)).collect(),
    },
    Key {
        name: "spools",
        accepts: "a list of absolute paths of directories",
        default: "[/var/cache/salt/master/saltcellar, /var/cache/salt/minion/saltcellar]",
        doc: "Directories in which the Salt extension of this machine keeps entries while the daemon is unreachable (its \
        `spool_dir`). `status` and `doctor` inspect them; missing ones are ignored.",
        example: "[/var/cache/salt/master/saltcellar]",
        flag: None,
        environment: None,
        set: |config, value| put(&mut config.spools, paths(value)),
        show: |config| config.spools.iter().map(|path| path_json(path)).collect(),
    },
    Key {
        name: "https.listen",
        accepts: "an address and a port, such as \"0.0.0.0:4580\" or \"[::]:4580\"",
        default: "none: the HTTPS source is off",
        doc: HTTPS,
        example: "\"0.0.0.0:4580\"",
        flag: None,
        environment: None,
        set: |config, value| put(&mut config.https.listen, https::address(value)),
        show: |config| https::show_address(config.https.listen),
    },
    Key {
        name: "https.certificate",
        accepts: "an absolute path of a PEM file",
        default: "none; required by https.listen",
        doc: "The certificate of the HTTPS source, followed by its intermediates up to an authority that the minions trust. \
        The daemon reads this file and the key again when they change. If either is invalid, the last valid pair stays in use.",
        example: "/etc/saltcellar/tls/certificate.pem",
        flag: None,
        environment: None,
        set: |config, value| put(&mut config.https.certificate, path(value).map(Some)),
        show: |config| config.https.certificate.as_deref().map_or(Json::Null, path_json),
    },
    Key {
        name: "https.key",
        accepts: "an absolute path of a PEM file",
        default: "none; required by https.listen",
        doc: "The private key of that certificate (PKCS #8, PKCS #1 or SEC 1, without a passphrase). Only the daemon's user \
        should be able to read it.",
        example: "/etc/saltcellar/tls/key.pem",
        flag: None,
        environment: None,
        set: |config, value| put(&mut config.https.key, path(value).map(Some)),
        show: |config| config.https.key.as_deref().map_or(Json::Null, path_json),
    },
    Key {
        name: "https.pki_dir",
        accepts: "an absolute path of a directory",
        default: "/etc/salt/pki/master",
        doc: "The master's `pki_dir`. Signatures are verified with the minion's key in its `minions` directory, which `salt-key` \
        maintains. A key that is deleted or rejected there is no longer accepted.",
        example: "/etc/salt/pki/master",
        flag: None,
        environment: None,
        set: |config, value| put(&mut config.https.pki_dir, path(value)),
        show: |config| path_json(&config.https.pki_dir),
    },
    Key {
        name: "https.read",
        accepts: "none, own or all",
        default: "none",
        doc: "What a minion may read through the HTTPS source (for example with `salt-call ret.get_jid saltcellar JID`): nothing, \
        its own returns, or all jobs and all returns.",
        example: "own",
        flag: None,
        environment: None,
        set: |config, value| put(&mut config.https.read, https::minions_read(value)),
        show: |config| Json::from(config.https.read.name()),
    },
    Key {
        name: "ingest.filter",
        accepts: "a list of rules, each with `do` and any of `name`, `tag`, `fun` and `minion`",
        default: "[]",
        doc: FILTER,
        example: "[{do: drop, fun: saltutil.find_job}, {do: sample 10, tag: 'salt/beacon/*', minion: [lab-*, test-*]}]",
        flag: None,
        environment: None,
        set: |config, value| put(&mut config.ingest.filter, rules::read_filter(value)),
        show: |config| rules::show_filter(&config.ingest.filter),
    },
    Key {
        name: "ingest.redact",
        accepts: "a list of rules, each with `builtin`, `keys`, `paths` or `patterns`, and any of `name`, `tag`, `fun` and `minion`",
        default: "[]",
        doc: REDACT,
        example: "[{builtin: passwords}, {builtin: private_keys}, {builtin: pillar}, {fun: 'vault.*', paths: [return]}, \
                  {patterns: ['AKIA[0-9A-Z]{16}']}]",
        flag: None,
        environment: None,
        set: |config, value| put(&mut config.ingest.redact, rules::read_redact(value)),
        show: |config| rules::show_redact(&config.ingest.redact),
    },
    Key {
        name: "ingest.masters",
        accepts: "a list of absolute paths of files",
        default: "[/etc/salt/master]",
        doc: "Configuration files of the Salt masters whose events the daemon stores; that of `reactor.master` is added. The keys in their \
        `cachedir` (`.root_key` and those of other users) are redacted in all data, without a rule, because a master \
        accepts every command from a peer with such a key. The daemon's user needs read access to the key files.",
        example: "[/etc/salt/master, /srv/other/etc/master]",
        flag: None,
        environment: None,
        set: |config, value| put(&mut config.ingest.masters, paths(value)),
        show: |config| config.ingest.masters.iter().map(|path| path_json(path)).collect(),
    },
    Key {
        name: "ingest.spill_bytes_max",
        accepts: "a size from 16MiB to 1024GiB: a number of bytes, or a number with KiB, MiB or GiB",
        default: "1GiB",
        doc: "Events of a bus that the store cannot accept at once wait in memory, then in files under `spill/` in the state \
        directory. This is the limit of these files for each bus. Beyond it events are lost and counted, and a gap record is stored.",
        example: "4GiB",
        flag: None,
        environment: None,
        set: |config, value| {
            put(&mut config.ingest.spill_bytes_max, size_in(value, 16 * size::MIB, 1024 * size::GIB))
        },
        show: |config| Json::from(size::show(config.ingest.spill_bytes_max)),
    },
    reactor_keys::MASTER,
    reactor_keys::MINION,
    reactor_keys::RULES,
    reactor_keys::SHADOW,
    reactor_keys::SHADOW_WINDOW,
    reactor_keys::OPTIONS,
    reactor_keys::ALLOW,
    reactor_keys::AGE_MAX,
    reactor_keys::DEPTH_MAX,
    reactor_keys::PYTHON,
    reactor_keys::HELPER_MEMORY,
    Key {
        name: "zeromq.pull",
        accepts: IPC,
        default: "none: off",
        doc: "A ZeroMQ PULL socket for events from any program with a PUSH socket. A message is one frame with tag, two newlines and a \
        msgpack map, as on Salt's bus, or two frames with tag and map. While the store has no room, senders wait. \
        Messages are not acknowledged; docs/ZEROMQ.md describes what a killed process can lose.",
        example: "ipc:///run/saltcellar/events-in.sock",
        flag: None,
        environment: None,
        set: |config, value| put(&mut config.zeromq.pull, ipc(value).map(Some)),
        show: |config| show_ipc(config.zeromq.pull.as_deref()),
    },
    Key {
        name: "zeromq.pub",
        accepts: IPC,
        default: "none: off",
        doc: "A ZeroMQ PUB socket with every stored event, in the same form, once it is durable. A SUB socket receives the events \
        whose tag starts with one of its subscriptions. Events are dropped and counted for a slow subscriber.",
        example: "ipc:///run/saltcellar/events-out.sock",
        flag: None,
        environment: None,
        set: |config, value| put(&mut config.zeromq.publish, ipc(value).map(Some)),
        show: |config| show_ipc(config.zeromq.publish.as_deref()),
    },
    Key {
        name: "zeromq.mode",
        accepts: "file permissions in octal, from \"0600\" to \"0777\"",
        default: "the value of `socket_mode`",
        doc: "Permissions of the ZeroMQ sockets. A process with write access can store events, and read every new event.",
        example: "\"0660\"",
        flag: None,
        environment: None,
        set: |config, value| put(&mut config.zeromq.mode, mode(value).map(Some)),
        show: |config| config.zeromq.mode.map_or(Json::Null, |mode| Json::from(format!("{mode:04o}"))),
    },
    Key {
        name: "zeromq.group",
        accepts: "the name of a group",
        default: "the value of `socket_group`",
        doc: "Group of the ZeroMQ sockets.",
        example: "salt",
        flag: None,
        environment: None,
        set: |config, value| put(&mut config.zeromq.group, text(value).map(|name| Some(name.to_owned()))),
        show: |config| config.zeromq.group.clone().map_or(Json::Null, Json::from),
    },
    Key {
        name: "log.level",
        accepts: "off, error, warn, info, debug or trace, or a filter such as \"info,saltcellar::store=debug\"",
        default: "info",
        doc: "Verbosity of the daemon's log.",
        example: "debug",
        flag: Some("--log-level"),
        environment: Some(ENV_LOG),
        set: |config, value| put(&mut config.log.level, log_level(value)),
        show: |config| Json::from(config.log.level.as_str()),
    },
    Key {
        name: "log.format",
        accepts: "auto, text or json",
        default: "auto",
        doc: "Format of the log: `auto` is text, with colours on a terminal and without times under the journal.",
        example: "json",
        flag: None,
        environment: None,
        set: |config, value| put(&mut config.log.format, log_format(value)),
        show: |config| Json::from(config.log.format.name()),
    },
    Key {
        name: "store.durability",
        accepts: "durable, or written and a time from 1s to 60s",
        default: "durable",
        doc: "When a call is acknowledged. `durable`: after its entries are synced; a power cut loses no acknowledged entry. `written 5s`: after its entries are handed to the kernel, which are synced within that time; a killed daemon loses nothing, a power cut loses up to the last five seconds.",
        example: "written 5s",
        flag: None,
        environment: None,
        set: |config, value| put(&mut config.store.durability, durability(value)),
        show: |config| {
            Json::from(match config.store.durability {
                Durability::Durable => "durable".to_owned(),
                Durability::Written { within } => format!("written {}", duration::show(within)),
            })
        },
    },
    Key {
        name: "store.segment_bytes_max",
        accepts: "a size from 1MiB to 64GiB: a number of bytes, or a number with KiB, MiB or GiB",
        default: "256MiB",
        doc: "The size at which a segment of the log is sealed and a new one started.",
        example: "1GiB",
        flag: None,
        environment: None,
        set: |config, value| {
            put(&mut config.store.segment_bytes_max, size_in(value, size::MIB, 64 * size::GIB))
        },
        show: |config| Json::from(size::show(config.store.segment_bytes_max)),
    },
    Key {
        name: "store.entry_bytes_max",
        accepts: "a size from 64KiB to 64MiB: a number of bytes, or a number with KiB or MiB",
        default: "64MiB",
        doc: "The largest event, load or return that is stored. Larger ones are rejected and counted.",
        example: "16MiB",
        flag: None,
        environment: None,
        set: |config, value| put(&mut config.store.entry_bytes_max, entry_size(value)),
        show: |config| Json::from(size::show(config.store.entry_bytes_max as u64)),
    },
    Key {
        name: "store.classes",
        accepts: "a list of classes, each with `name`, `match` and `keep`",
        default: "`jobs` with the age of Salt's `keep_jobs_seconds`, `events` with 30 days",
        doc: CLASSES,
        example: "[{name: chatter, match: [{fun: saltutil.find_job}, {tag: salt/auth}], keep: {age: 1d}}]",
        flag: None,
        environment: None,
        set: |config, value| put(&mut config.store.classes, classes::read(value)),
        show: |config| classes::show(&config.store.classes),
    },
    Key {
        name: "store.free_bytes_low",
        accepts: "a size: a number of bytes, or a number with KiB, MiB or GiB; or auto",
        default: "auto",
        doc: "With less free space than this, retention deletes the oldest segments early: first of classes with a `match`, \
        then of `events`, then of `jobs`. `auto` is a tenth of the file system, at most 3GiB.",
        example: "10GiB",
        flag: None,
        environment: None,
        set: |config, value| put(&mut config.store.free_bytes_low, space(value)),
        show: |config| show_space(config.store.free_bytes_low),
    },
    Key {
        name: "store.free_bytes_min",
        accepts: "a size: a number of bytes, or a number with KiB, MiB or GiB; or auto",
        default: "auto",
        doc: "With less free space than this, the store accepts no entries: callers get `unavailable` and spool. Reading continues. \
        `auto` is a twentieth of the file system, at most 1GiB.",
        example: "2GiB",
        flag: None,
        environment: None,
        set: |config, value| put(&mut config.store.free_bytes_min, space(value)),
        show: |config| show_space(config.store.free_bytes_min),
    },
];

const HTTPS: &str = "Address of the HTTPS source for minions, for `--return saltcellar` and `ext_job_cache` on other machines. \
Requires `https.certificate` and `https.key`. A minion signs its calls with its own Salt key, and can store only its own \
returns (docs/WIRE.md). The daemon must terminate TLS itself: a signature is valid for this certificate only.";
const IPC: &str = "ipc:// and an absolute path of at most 107 bytes";

const CLASSES: &str = "Retention classes. An entry belongs to the first class with a matching item under `match`. Entries without \
a match belong to `jobs` if they are part of a job, else to `events`; these two classes always exist. An item has a \
glob for the function (`fun`), for the event's tag (`tag`), or both. A function selects its jobs as a whole: load, \
returns and events. A tag selects single events. `keep` limits the class by `age` (a time such as `12h` or `30d`, \
`forever`, or `salt` for the master's `keep_jobs_seconds`), by `bytes` on disk, and by `entries`. The oldest \
entries are deleted first, in segments of at most a sixteenth of each limit. Held jobs are kept (`saltcellar store hold`).";

const FILTER: &str = "Rules for storing or dropping events and returns, tried in order at every source (bus, `event_return`, \
`returner` and others). The first rule whose globs all match decides; entries without a matching rule are stored. `tag`, `fun` and \
`minion` are a glob or a list of globs, as in Salt. A rule without globs matches everything, so a list that ends in `{do: drop}` stores \
only entries that an earlier rule matches with `do: store`. `do` is `store`, `drop`, or `sample N`, which stores one of N entries. The choice \
depends on a hash of the jid, or of tag and data for entries without a jid, so every source makes the same choice and a job is \
kept as a whole. Loads that Salt publishes are always stored, because Salt treats a job without a load as unknown. \
`saltcellar status` counts dropped entries per rule.";

const REDACT: &str = "Rules for replacing values by `[redacted]` at every source, before anything is stored, spilled or queued. Without rules \
only masters' keys are redacted (`ingest.masters`), because only the owner of a job cache knows which returned values are secret. A rule \
selects values by `keys` (globs for keys of maps at any depth, ignoring case), `paths` (keys from the top, joined by \
dots, each a glob: `return.*.password`; an index selects an item of a list), `patterns` (regular expressions for text; only the matching \
part is replaced), or a `builtin`: `passwords` (keys such as password, passwd, passphrase, secret, token, api_key, \
private_key), `private_keys` (blocks from `-----BEGIN ... PRIVATE KEY-----` to their end), `pillar` (results of `pillar.*`, \
and values under the keys pillar and pillar_override). `tag`, `fun` and `minion` restrict a rule, as under `ingest.filter`. \
nil, true and false are kept. So are the keys jid, id, fun, retcode, success, tgt, minions, cmd, out and _stamp of a return, an event or a \
load, which identify jobs. Tags are not searched. Redaction is irreversible: `salt-run jobs.lookup_jid` shows `[redacted]`, too. Entries stored earlier are not changed.";

/// Finds a key by its full name.
pub(super) fn find(name: &str) -> Option<&'static Key> {
    KEYS.iter().find(|key| key.name == name)
}

/// Whether `name` is a section with keys.
pub(super) fn is_section(name: &str) -> bool {
    !under(name).is_empty()
}

/// The full names of the keys in the section `name`, for messages.
pub(super) fn under(name: &str) -> String {
    let within = |key: &&Key| key.name.strip_prefix(name).is_some_and(|rest| rest.starts_with('.'));
    KEYS.iter().filter(within).map(|key| key.name).collect::<Vec<_>>().join(", ")
}

/// The known key or section with the smallest edit distance to `name`.
pub(super) fn nearest(name: &str) -> &'static str {
    let sections = KEYS.iter().filter_map(|key| Some(key.name.split_once('.')?.0));
    let names = KEYS.iter().map(|key| key.name).chain(sections);
    names.min_by_key(|known| strsim::damerau_levenshtein(known, name)).unwrap_or("state_dir")
}

pub(super) fn put<T>(field: &mut T, value: Result<T, ValueError>) -> Result<(), ValueError> {
    *field = value?;
    Ok(())
}

pub(super) fn refused<T>(value: &Value) -> Result<T, ValueError> {
    Err(ValueError::from(format!("{} is not accepted", value.noun())))
}

pub(super) fn text(value: &Value) -> Result<&str, ValueError> {
    match value {
        Value::Text(text) if !text.is_empty() && !text.contains('\0') => Ok(text),
        _ => refused(value),
    }
}

pub(super) fn path(value: &Value) -> Result<PathBuf, ValueError> {
    let path = Path::new(text(value)?);
    if path.is_absolute() { Ok(path.to_owned()) } else { refused(value) }
}

fn socket_path(value: &Value) -> Result<PathBuf, ValueError> {
    let path = path(value)?;
    let bytes = path.as_os_str().len();
    if bytes > limits::SOCKET_PATH_BYTES_MAX {
        return Err(ValueError::from(format!(
            "{} has {bytes} bytes, too long for a unix socket",
            value.noun()
        )));
    }
    Ok(path)
}

fn ipc(value: &Value) -> Result<PathBuf, ValueError> {
    let address = text(value)?;
    match address.split_once("://") {
        Some(("ipc", path)) => socket_path(&Value::Text(path.to_owned())),
        Some((other, _)) => Err(ValueError::from(format!(
            "{other}:// is not supported: ZeroMQ sockets here are protected by file permissions only"
        ))),
        None => refused(value),
    }
}

fn show_ipc(path: Option<&Path>) -> Json {
    path.map_or(Json::Null, |path| Json::from(format!("ipc://{}", path.display())))
}

fn paths(value: &Value) -> Result<Vec<PathBuf>, ValueError> {
    let Value::List(items) = value else { return refused(value) };
    let item =
        |node: &ConfigNode| path(&node.value).map_err(|bad| ValueError { line: Some(node.line), ..bad });
    items.iter().map(item).collect()
}

pub(super) fn path_json(path: &Path) -> Json {
    Json::from(path.to_string_lossy().into_owned())
}

fn mode(value: &Value) -> Result<u32, ValueError> {
    let digits = text(value)?;
    let digits = digits.strip_prefix("0o").unwrap_or(digits);
    match u32::from_str_radix(digits, 8) {
        Ok(mode @ 0o600..=0o777) if mode & 0o600 == 0o600 && digits.len() <= 4 => Ok(mode),
        _ => refused(value),
    }
}

fn peer_right(value: &Value) -> Result<Right, ValueError> {
    let name = text(value)?;
    [Right::Read, Right::Write]
        .into_iter()
        .find(|right| right.name() == name)
        .map_or_else(|| refused(value), Ok)
}

fn log_level(value: &Value) -> Result<String, ValueError> {
    let level = text(value)?;
    let plain = matches!(level, "off" | "error" | "warn" | "info" | "debug" | "trace");
    // The filter reads a lone word that is not a level as a module name; here it is a typing error.
    let filter = level.contains('=') && EnvFilter::builder().parse(level).is_ok();
    if plain || filter { Ok(level.to_owned()) } else { refused(value) }
}

fn log_format(value: &Value) -> Result<LogFormat, ValueError> {
    let name = text(value)?;
    LogFormat::ALL.into_iter().find(|format| format.name() == name).map_or_else(|| refused(value), Ok)
}

fn durability(value: &Value) -> Result<Durability, ValueError> {
    let words = text(value)?;
    let within = || {
        let within = duration::parse(words.strip_prefix("written ")?.trim())?;
        (1..=60).contains(&within.as_secs()).then_some(Durability::Written { within })
    };
    if words == "durable" { Ok(Durability::Durable) } else { within().map_or_else(|| refused(value), Ok) }
}

fn size_in(value: &Value, least: u64, most: u64) -> Result<u64, ValueError> {
    match size::parse(text(value)?) {
        Some(bytes) if (least..=most).contains(&bytes) => Ok(bytes),
        _ => refused(value),
    }
}

fn entry_size(value: &Value) -> Result<usize, ValueError> {
    let bytes = size_in(value, 64 * size::KIB, limits::ENTRY_BYTES_MAX as u64)?;
    usize::try_from(bytes).or_else(|_| refused(value))
}

fn space(value: &Value) -> Result<Space, ValueError> {
    match text(value)? {
        "auto" => Ok(Space::Auto),
        text => size::parse(text).map_or_else(|| refused(value), |bytes| Ok(Space::Bytes(bytes))),
    }
}

fn show_space(space: Space) -> Json {
    match space {
        Space::Auto => Json::from("auto"),
        Space::Bytes(bytes) => Json::from(size::show(bytes)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::raw;

    #[test]
    fn every_example_is_accepted_and_rendered_examples_are_read_back() {
        for key in KEYS {
            let node = raw::parse(key.example).unwrap();
            let mut config = Config::for_state_dir("/s", "/s/sock");
            assert!((key.set)(&mut config, &node.value).is_ok(), "{}: {}", key.name, key.example);
            let shown = (key.show)(&config).to_string();
            let mut again = Config::for_state_dir("/s", "/s/sock");
            assert!(
                (key.set)(&mut again, &raw::parse(&shown).unwrap().value).is_ok(),
                "{}: {shown}",
                key.name
            );
            assert_eq!(again, config, "{}", key.name);
        }
    }

    #[test]
    fn every_plain_default_equals_the_value_of_a_fresh_config() {
        let fresh = Config::for_state_dir("/s", "/s/sock");
        for key in KEYS.iter().filter(|key| !key.default.contains(' ')) {
            let mut config = fresh.clone();
            assert!((key.set)(&mut config, &raw::parse(key.default).unwrap().value).is_ok(), "{}", key.name);
            assert_eq!(config, fresh, "{}", key.name);
        }
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
            let mut config = Config::for_state_dir("/s", "/s/sock");
            let value = raw::parse(value).unwrap().value;
            assert!((find(name).unwrap().set)(&mut config, &value).is_err(), "{name}: {value:?}");
        }
    }

    #[test]
    fn limits_in_prose_match_the_constants() {
        let accepts = |name| find(name).unwrap().accepts;
        for name in ["socket", "zeromq.pull", "zeromq.pub"] {
            assert!(accepts(name).contains(&format!("at most {} bytes", limits::SOCKET_PATH_BYTES_MAX)));
        }
        assert!(accepts("store.entry_bytes_max").contains(&size::show(limits::ENTRY_BYTES_MAX as u64)));
    }

    #[test]
    fn the_nearest_key_is_found() {
        for (given, known) in
            [("sate_dir", "state_dir"), ("log.levle", "log.level"), ("logs", "log"), ("sockets", "socket")]
        {
            assert_eq!(nearest(given), known);
        }
    }
}
