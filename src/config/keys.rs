//! Every key of the configuration, once: its name, what it takes, its default, its documentation, an example,
//! and how it is read and shown.
//!
//! `docs/CONFIG.md`, the hints for unknown keys, and what `saltcellar check` prints are all made from
//! [`KEYS`]. A new key is one item here and one field of [`Config`].

use std::path::{Path, PathBuf};

use serde_json::Value as Json;
use tracing_subscriber::EnvFilter;

use super::raw::{Node, Value};
use super::surroundings::{ENV_LOG, ENV_SOCKET, ENV_STATE_DIR};
use super::{Config, LogFormat, Space, classes, duration, https, reactor_keys, rules, size};
use crate::limits;
use crate::model::{Durability, Right};

/// One key. Public so that documentation can be made from it.
pub struct Key {
    /// Dotted name: `log.level` is `level` under `log`.
    pub name: &'static str,
    /// What it takes, so that it reads well after "give".
    pub takes: &'static str,
    /// The default, in words where it depends on the user.
    pub default: &'static str,
    /// What it is for, in one line.
    pub doc: &'static str,
    /// A value, as YAML.
    pub example: &'static str,
    /// The flag of `saltcellar serve` that sets it.
    pub flag: Option<&'static str>,
    /// The environment variable that sets it.
    pub environment: Option<&'static str>,
    pub(super) set: fn(&mut Config, &Value) -> Result<(), Bad>,
    pub(super) show: fn(&Config) -> Json,
}

/// Why a value was not taken.
pub(super) struct Bad {
    /// The line, where it is not that of the key.
    pub(super) line: Option<usize>,
    /// Where below the key, such as `[0].name`; empty where the key's own value is meant.
    pub(super) at: String,
    pub(super) problem: String,
    /// What would be accepted there, where it is not what the key takes.
    pub(super) accepted: Option<String>,
}

impl From<String> for Bad {
    fn from(problem: String) -> Self {
        Self { line: None, at: String::new(), problem, accepted: None }
    }
}

/// All keys, in the order of the documentation.
pub const KEYS: &[Key] = &[
    Key {
        name: "state_dir",
        takes: "an absolute path of a directory",
        default: "`/var/lib/saltcellar` for root, else `saltcellar` under `$XDG_STATE_HOME` or `~/.local/state`",
        doc: "Everything the daemon keeps lives in this directory. One daemon per directory.",
        example: "/var/lib/saltcellar",
        flag: Some("--state-dir"),
        environment: Some(ENV_STATE_DIR),
        set: |config, value| put(&mut config.state_dir, path(value)),
        show: |config| path_json(&config.state_dir),
    },
    Key {
        name: "socket",
        takes: "an absolute path of at most 107 bytes",
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
        takes: "file permissions in octal, from \"0600\" to \"0777\"",
        default: "\"0660\"",
        doc: "Permissions of the socket. Processes that can write to it have the right of `socket_peers`.",
        example: "\"0660\"",
        flag: None,
        environment: None,
        set: |config, value| put(&mut config.socket_mode, mode(value)),
        show: |config| Json::from(format!("{:04o}", config.socket_mode)),
    },
    Key {
        name: "socket_group",
        takes: "the name of a group",
        default: "none: the daemon's own group",
        doc: "Group of the socket: its members may use the command line and the Salt extension. The daemon's files are then readable for its own group (umask 0027), otherwise for its user alone (0077).",
        example: "salt",
        flag: None,
        environment: None,
        set: |config, value| put(&mut config.socket_group, text(value).map(|name| Some(name.to_owned()))),
        show: |config| config.socket_group.clone().map_or(Json::Null, Json::from),
    },
    Key {
        name: "socket_peers",
        takes: "read or write",
        default: "write",
        doc: "What peers of the socket may do that are not administrators: read jobs and events, or add to them as well. \
              Administrators are root, the daemon's own user, and the owner of the event socket in a directory of `bus`, which is the \
              user of that master. Only they may delete, hold and import jobs, fire events, replay reactions, and set \
              Thorium's register. The calls and their rights are listed in docs/WIRE.md.",
        example: "read",
        flag: None,
        environment: None,
        set: |config, value| put(&mut config.socket_peers, peer_right(value)),
        show: |config| Json::from(config.socket_peers.name()),
    },
    Key {
        name: "bus",
        takes: "a list of absolute paths of directories",
        default: "[]",
        doc: "Salt socket directories (`sock_dir`) whose event bus the daemon reads itself.",
        example: "[/var/run/salt/master]",
        flag: Some("--bus"),
        environment: None,
        set: |config, value| put(&mut config.bus, paths(value)),
        show: |config| config.bus.iter().map(|path| path_json(path)).collect(),
    },
    Key {
        name: "spools",
        takes: "a list of absolute paths of directories",
        default: "[/var/cache/salt/master/saltcellar, /var/cache/salt/minion/saltcellar]",
        doc: "Where the Salt extension of this machine keeps entries while the daemon is away (its `spool_dir`). `status` and \
              `doctor` look into them; what is not there is passed over.",
        example: "[/var/cache/salt/master/saltcellar]",
        flag: None,
        environment: None,
        set: |config, value| put(&mut config.spools, paths(value)),
        show: |config| config.spools.iter().map(|path| path_json(path)).collect(),
    },
    Key {
        name: "https.listen",
        takes: "an address and a port, such as \"0.0.0.0:4580\" or \"[::]:4580\"",
        default: "none: there is no such door",
        doc: HTTPS,
        example: "\"0.0.0.0:4580\"",
        flag: None,
        environment: None,
        set: |config, value| put(&mut config.https.listen, https::address(value)),
        show: |config| https::show_address(config.https.listen),
    },
    Key {
        name: "https.certificate",
        takes: "an absolute path of a PEM file",
        default: "none: https.listen needs one",
        doc: "The certificate that the HTTPS door shows, followed by those that vouch for it up to what the minions trust. \
              This file and that of the key are read again when they change; until both are good again, the last good ones \
              are shown.",
        example: "/etc/saltcellar/tls/certificate.pem",
        flag: None,
        environment: None,
        set: |config, value| put(&mut config.https.certificate, path(value).map(Some)),
        show: |config| config.https.certificate.as_deref().map_or(Json::Null, path_json),
    },
    Key {
        name: "https.key",
        takes: "an absolute path of a PEM file",
        default: "none: https.listen needs one",
        doc: "The private key of that certificate (PKCS #8, PKCS #1 or SEC 1, without a passphrase), which nobody but the \
              daemon's user should be able to read.",
        example: "/etc/saltcellar/tls/key.pem",
        flag: None,
        environment: None,
        set: |config, value| put(&mut config.https.key, path(value).map(Some)),
        show: |config| config.https.key.as_deref().map_or(Json::Null, path_json),
    },
    Key {
        name: "https.pki_dir",
        takes: "an absolute path of a directory",
        default: "/etc/salt/pki/master",
        doc: "The master's `pki_dir`. What a minion signed is checked with its key in `minions` below it, which `salt-key` \
              keeps: a key that is deleted or rejected there is not believed any more from then on.",
        example: "/etc/salt/pki/master",
        flag: None,
        environment: None,
        set: |config, value| put(&mut config.https.pki_dir, path(value)),
        show: |config| path_json(&config.https.pki_dir),
    },
    Key {
        name: "https.read",
        takes: "none, own or all",
        default: "none",
        doc: "What a minion may read through the HTTPS door (`salt-call ret.get_jid saltcellar JID` and its kin): nothing, \
              its own returns, or every job and every minion's returns.",
        example: "own",
        flag: None,
        environment: None,
        set: |config, value| put(&mut config.https.read, https::minions_read(value)),
        show: |config| Json::from(config.https.read.name()),
    },
    Key {
        name: "ingest.filter",
        takes: "a list of rules, each with `do` and any of `name`, `tag`, `fun` and `minion`",
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
        takes: "a list of rules, each with `builtin`, `keys`, `paths` or `patterns`, and any of `name`, `tag`, `fun` and `minion`",
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
        takes: "a list of absolute paths of files",
        default: "[/etc/salt/master]",
        doc: "Configuration files of the Salt masters whose events come here; that of `reactor.master` is added. The keys in their \
              `cachedir` (`.root_key` and those of other users) are redacted wherever they occur, without a rule: a master \
              accepts every command from a peer that knows one. The daemon's user has to be able to read the key files.",
        example: "[/etc/salt/master, /srv/other/etc/master]",
        flag: None,
        environment: None,
        set: |config, value| put(&mut config.ingest.masters, paths(value)),
        show: |config| config.ingest.masters.iter().map(|path| path_json(path)).collect(),
    },
    Key {
        name: "ingest.spill_bytes_max",
        takes: "a size from 16MiB to 1024GiB: a number of bytes, or a number with KiB, MiB or GiB",
        default: "1GiB",
        doc: "What each bus says while the store is slow or refuses waits in memory, then in files of at most this size \
              together under `spill/` in the state directory. Beyond it events are lost, counted, and a gap is recorded.",
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
        takes: IPC,
        default: "none: off",
        doc: "A ZeroMQ PULL that takes events from any program with a PUSH socket: one frame with tag, two newlines and a \
              msgpack map, as on Salt's bus, or two frames with tag and map. While the store has no room, senders wait. \
              Nothing is acknowledged; docs/ZEROMQ.md says what a kill may take.",
        example: "ipc:///run/saltcellar/events-in.sock",
        flag: None,
        environment: None,
        set: |config, value| put(&mut config.zeromq.pull, ipc(value).map(Some)),
        show: |config| show_ipc(config.zeromq.pull.as_deref()),
    },
    Key {
        name: "zeromq.pub",
        takes: IPC,
        default: "none: off",
        doc: "A ZeroMQ PUB of every event that is stored, in the same form, once it is durable. A SUB socket gets those \
              whose tag begins with what it subscribed to. For a slow subscriber events are dropped, and counted.",
        example: "ipc:///run/saltcellar/events-out.sock",
        flag: None,
        environment: None,
        set: |config, value| put(&mut config.zeromq.publish, ipc(value).map(Some)),
        show: |config| show_ipc(config.zeromq.publish.as_deref()),
    },
    Key {
        name: "zeromq.mode",
        takes: "file permissions in octal, from \"0600\" to \"0777\"",
        default: "that of `socket_mode`",
        doc: "Permissions of the ZeroMQ sockets: whoever may write to them may add to history, and read all of it that comes.",
        example: "\"0660\"",
        flag: None,
        environment: None,
        set: |config, value| put(&mut config.zeromq.mode, mode(value).map(Some)),
        show: |config| config.zeromq.mode.map_or(Json::Null, |mode| Json::from(format!("{mode:04o}"))),
    },
    Key {
        name: "zeromq.group",
        takes: "the name of a group",
        default: "that of `socket_group`",
        doc: "Group of the ZeroMQ sockets.",
        example: "salt",
        flag: None,
        environment: None,
        set: |config, value| put(&mut config.zeromq.group, text(value).map(|name| Some(name.to_owned()))),
        show: |config| config.zeromq.group.clone().map_or(Json::Null, Json::from),
    },
    Key {
        name: "log.level",
        takes: "off, error, warn, info, debug or trace, or a filter such as \"info,saltcellar::store=debug\"",
        default: "info",
        doc: "How much the daemon says about itself.",
        example: "debug",
        flag: Some("--log-level"),
        environment: Some(ENV_LOG),
        set: |config, value| put(&mut config.log.level, log_level(value)),
        show: |config| Json::from(config.log.level.as_str()),
    },
    Key {
        name: "log.format",
        takes: "auto, text or json",
        default: "auto",
        doc: "Form of the log: `auto` is text, with colours on a terminal and without times under the journal.",
        example: "json",
        flag: None,
        environment: None,
        set: |config, value| put(&mut config.log.format, log_format(value)),
        show: |config| Json::from(config.log.format.name()),
    },
    Key {
        name: "store.durability",
        takes: "durable, or written and a time from 1s to 60s",
        default: "durable",
        doc: "When a call is answered. `durable`: when its entries are synced; a power cut takes nothing that was answered. `written 5s`: when they are handed to the kernel, and synced within that time; a daemon that is killed loses nothing, a power cut takes what was answered in the last five seconds.",
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
        takes: "a size from 1MiB to 64GiB: a number of bytes, or a number with KiB, MiB or GiB",
        default: "256MiB",
        doc: "A segment of the log that has grown to this size is sealed and a new one begun.",
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
        takes: "a size from 64KiB to 64MiB: a number of bytes, or a number with KiB or MiB",
        default: "64MiB",
        doc: "The largest event, load or return that is stored; a larger one is refused and counted.",
        example: "16MiB",
        flag: None,
        environment: None,
        set: |config, value| put(&mut config.store.entry_bytes_max, entry_size(value)),
        show: |config| Json::from(size::show(config.store.entry_bytes_max as u64)),
    },
    Key {
        name: "store.classes",
        takes: "a list of classes, each with `name`, `match` and `keep`",
        default: "`jobs` for as long as Salt's `keep_jobs_seconds` says, `events` for 30 days",
        doc: CLASSES,
        example: "[{name: chatter, match: [{fun: saltutil.find_job}, {tag: salt/auth}], keep: {age: 1d}}]",
        flag: None,
        environment: None,
        set: |config, value| put(&mut config.store.classes, classes::read(value)),
        show: |config| classes::show(&config.store.classes),
    },
    Key {
        name: "store.free_bytes_low",
        takes: "a size: a number of bytes, or a number with KiB, MiB or GiB; or auto",
        default: "auto",
        doc: "With less free space than this, the oldest segments go before their time: of classes with a `match`, \
              then of `events`, then of `jobs`. `auto` is a tenth of the file system, at most 3GiB.",
        example: "10GiB",
        flag: None,
        environment: None,
        set: |config, value| put(&mut config.store.free_bytes_low, space(value)),
        show: |config| show_space(config.store.free_bytes_low),
    },
    Key {
        name: "store.free_bytes_min",
        takes: "a size: a number of bytes, or a number with KiB, MiB or GiB; or auto",
        default: "auto",
        doc: "With less free space than this, nothing more is taken: callers are told `unavailable`, and spool. Reading \
              goes on. `auto` is a twentieth of the file system, at most 1GiB.",
        example: "2GiB",
        flag: None,
        environment: None,
        set: |config, value| put(&mut config.store.free_bytes_min, space(value)),
        show: |config| show_space(config.store.free_bytes_min),
    },
];

const HTTPS: &str = "Where the HTTPS door for minions listens, for `--return saltcellar` and `ext_job_cache` on other machines; \
`https.certificate` and `https.key` belong to it. A minion signs what it sends with its own Salt key, and can store its own \
returns and nothing else (docs/WIRE.md). TLS must end here, at the daemon: a signature holds for this certificate only.";
const IPC: &str = "ipc:// and an absolute path of at most 107 bytes";

const CLASSES: &str = "What is kept how long. An entry goes to the first class with an item under `match` that takes it; \
what none takes goes to `jobs` if it belongs to a job, else to `events`, and these two are always there. An item has a \
glob over the function (`fun`), over the event's tag (`tag`), or both. A function takes its jobs as a whole: load, \
returns and events. A tag takes events one by one. `keep` bounds the class by `age` (a time such as `12h` or `30d`, \
`forever`, or `salt` for what the master's `keep_jobs_seconds` says), by `bytes` on disk, and by `entries`. The oldest \
entries go first, in segments of at most a sixteenth of each bound; jobs that are held stay (`saltcellar store hold`).";

const FILTER: &str = "What is stored. The rules are tried in order at every door (bus, `event_return`, `returner` and others); \
the first whose globs all match decides, and what none takes is stored. `tag`, `fun` and `minion` are a glob or a list of \
globs, as in Salt; a rule without any takes everything, so a list that ends in `{do: drop}` stores only what a rule before \
it takes with `do: store`. `do` is `store`, `drop`, or `sample N`: one of N is stored, chosen by a hash of the jid, or of tag and \
data where there is none, so that every door chooses the same ones and a job is kept as a whole. It is about events and \
returns. A load that Salt publishes is always stored, for Salt takes a job without one for unknown. What is left out is \
counted, per rule in `saltcellar status`.";

const REDACT: &str = "What is replaced by `[redacted]` before anything is stored, spilled or queued, at every door. Without rules only masters' keys are (`ingest.masters`): the job cache gives back what minions returned, and only its owner knows what of that is secret. Each rule \
names values by `keys` (globs over the keys of maps at any depth, without regard to case), `paths` (keys from the top, joined by \
dots, each a glob: `return.*.password`; a place in a list is its number) or `patterns` (regular expressions over texts; what \
matches goes, the rest stays), or is a `builtin`: `passwords` (keys such as password, passwd, passphrase, secret, token, api_key, \
private_key), `private_keys` (blocks from `-----BEGIN ... PRIVATE KEY-----` to their end), `pillar` (what `pillar.*` returns, \
and values under the keys pillar and pillar_override). `tag`, `fun` and `minion` narrow a rule, as under `ingest.filter`. \
nil, true and false stay; so do the keys jid, id, fun, retcode, success, tgt, minions, cmd, out and _stamp of a return, an event or a \
load, by which jobs are known; tags are not searched. What is gone is gone: `salt-run jobs.lookup_jid` shows `[redacted]`, too. What is stored already stays.";

/// The key of that name.
pub(super) fn find(name: &str) -> Option<&'static Key> {
    KEYS.iter().find(|key| key.name == name)
}

/// Whether keys live under that name.
pub(super) fn is_section(name: &str) -> bool {
    !under(name).is_empty()
}

/// The keys under that name, for messages.
pub(super) fn under(name: &str) -> String {
    let within = |key: &&Key| key.name.strip_prefix(name).is_some_and(|rest| rest.starts_with('.'));
    KEYS.iter().filter(within).map(|key| key.name).collect::<Vec<_>>().join(", ")
}

/// The known key that looks most like `name`.
pub(super) fn nearest(name: &str) -> &'static str {
    let sections = KEYS.iter().filter_map(|key| Some(key.name.split_once('.')?.0));
    let names = KEYS.iter().map(|key| key.name).chain(sections);
    names.min_by_key(|known| strsim::damerau_levenshtein(known, name)).unwrap_or("state_dir")
}

pub(super) fn put<T>(place: &mut T, value: Result<T, Bad>) -> Result<(), Bad> {
    *place = value?;
    Ok(())
}

pub(super) fn refused<T>(value: &Value) -> Result<T, Bad> {
    Err(Bad::from(format!("{} is not accepted", value.noun())))
}

pub(super) fn text(value: &Value) -> Result<&str, Bad> {
    match value {
        Value::Text(text) if !text.is_empty() && !text.contains('\0') => Ok(text),
        _ => refused(value),
    }
}

pub(super) fn path(value: &Value) -> Result<PathBuf, Bad> {
    let path = Path::new(text(value)?);
    if path.is_absolute() { Ok(path.to_owned()) } else { refused(value) }
}

fn socket_path(value: &Value) -> Result<PathBuf, Bad> {
    let path = path(value)?;
    let bytes = path.as_os_str().len();
    if bytes > limits::SOCKET_PATH_BYTES_MAX {
        return Err(Bad::from(format!("{} has {bytes} bytes, too long for a unix socket", value.noun())));
    }
    Ok(path)
}

fn ipc(value: &Value) -> Result<PathBuf, Bad> {
    let address = text(value)?;
    match address.split_once("://") {
        Some(("ipc", path)) => socket_path(&Value::Text(path.to_owned())),
        Some((other, _)) => Err(Bad::from(format!(
            "{other}:// is not offered: ZeroMQ here has no authentication beyond the permissions of a file"
        ))),
        None => refused(value),
    }
}

fn show_ipc(path: Option<&Path>) -> Json {
    path.map_or(Json::Null, |path| Json::from(format!("ipc://{}", path.display())))
}

fn paths(value: &Value) -> Result<Vec<PathBuf>, Bad> {
    let Value::List(items) = value else { return refused(value) };
    let item = |node: &Node| path(&node.value).map_err(|bad| Bad { line: Some(node.line), ..bad });
    items.iter().map(item).collect()
}

pub(super) fn path_json(path: &Path) -> Json {
    Json::from(path.to_string_lossy().into_owned())
}

fn mode(value: &Value) -> Result<u32, Bad> {
    let digits = text(value)?;
    let digits = digits.strip_prefix("0o").unwrap_or(digits);
    match u32::from_str_radix(digits, 8) {
        Ok(mode @ 0o600..=0o777) if mode & 0o600 == 0o600 && digits.len() <= 4 => Ok(mode),
        _ => refused(value),
    }
}

fn peer_right(value: &Value) -> Result<Right, Bad> {
    let name = text(value)?;
    [Right::Read, Right::Write]
        .into_iter()
        .find(|right| right.name() == name)
        .map_or_else(|| refused(value), Ok)
}

fn log_level(value: &Value) -> Result<String, Bad> {
    let level = text(value)?;
    let plain = matches!(level, "off" | "error" | "warn" | "info" | "debug" | "trace");
    // To the filter a lone word that is no level is the name of a module; here it is a slip of the pen.
    let filter = level.contains('=') && EnvFilter::builder().parse(level).is_ok();
    if plain || filter { Ok(level.to_owned()) } else { refused(value) }
}

fn log_format(value: &Value) -> Result<LogFormat, Bad> {
    let name = text(value)?;
    LogFormat::ALL.into_iter().find(|format| format.name() == name).map_or_else(|| refused(value), Ok)
}

fn durability(value: &Value) -> Result<Durability, Bad> {
    let words = text(value)?;
    let within = || {
        let within = duration::parse(words.strip_prefix("written ")?.trim())?;
        (1..=60).contains(&within.as_secs()).then_some(Durability::Written { within })
    };
    if words == "durable" { Ok(Durability::Durable) } else { within().map_or_else(|| refused(value), Ok) }
}

fn size_in(value: &Value, least: u64, most: u64) -> Result<u64, Bad> {
    match size::parse(text(value)?) {
        Some(bytes) if (least..=most).contains(&bytes) => Ok(bytes),
        _ => refused(value),
    }
}

fn entry_size(value: &Value) -> Result<usize, Bad> {
    let bytes = size_in(value, 64 * size::KIB, limits::ENTRY_BYTES_MAX as u64)?;
    usize::try_from(bytes).or_else(|_| refused(value))
}

fn space(value: &Value) -> Result<Space, Bad> {
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
    fn every_example_is_accepted_and_shown_again() {
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
    fn every_plain_default_is_what_a_fresh_config_has() {
        let fresh = Config::for_state_dir("/s", "/s/sock");
        for key in KEYS.iter().filter(|key| !key.default.contains(' ')) {
            let mut config = fresh.clone();
            assert!((key.set)(&mut config, &raw::parse(key.default).unwrap().value).is_ok(), "{}", key.name);
            assert_eq!(config, fresh, "{}", key.name);
        }
    }

    #[test]
    fn values_outside_of_what_a_key_takes_are_refused() {
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
    fn bounds_in_prose_are_those_of_the_limits() {
        let takes = |name| find(name).unwrap().takes;
        for name in ["socket", "zeromq.pull", "zeromq.pub"] {
            assert!(takes(name).contains(&format!("at most {} bytes", limits::SOCKET_PATH_BYTES_MAX)));
        }
        assert!(takes("store.entry_bytes_max").contains(&size::show(limits::ENTRY_BYTES_MAX as u64)));
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
