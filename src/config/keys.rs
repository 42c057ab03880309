//! All configuration keys: name, field of [`Config`], kind, documentation, accepted values, default and example.
//!
//! `docs/CONFIG.md`, the hints for unknown keys, and the output of `saltcellar check` derive from [`KEYS`]. A new key is
//! one item here and one field of [`Config`].

use std::sync::Arc;

use serde::de::{DeserializeSeed, Deserializer, MapAccess};
use serde_json::Value as Json;

use super::environment::{ENV_LOG, ENV_SOCKET, ENV_STATE_DIR};
use super::reactor::ReactorRules;
use super::size::{GIB, MIB};
use super::value::{
    AbsolutePath, Address, AnySpan, ByteSize, EntrySize, Flag, Ipc, LogLevel, Many, Maybe, Memory, Mode,
    Name, Number, Setting, ShadowWindow, SocketPath,
};
use super::{Config, LogFormat, MinionsRead, Space};
use crate::model::{Allow, ClassRules, Durability, FilterRule, RedactRule, Right, RuleOptions};

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
    pub(super) show: fn(&Config) -> Json,
}

/// Reads the value of a key as its kind.
struct Read<T>(std::marker::PhantomData<T>);

impl<'de, T: Setting> DeserializeSeed<'de> for Read<T> {
    type Value = T::Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<T::Value, D::Error> {
        T::read(deserializer)
    }
}

macro_rules! keys {
    ($(
        $(#[doc = $doc:literal])+
        $name:literal => $($field:ident).+: $kind:ty {
            accepts: $accepts:expr,
            default: $default:expr,
            example: $example:expr,
            $(flag: $flag:expr,)?
            $(environment: $environment:expr,)?
        }
    )*) => {
        /// All keys, in the order of the documentation.
        pub const KEYS: &[Key] = &[$(Key {
            name: $name,
            accepts: $accepts,
            default: $default,
            doc: concat!($($doc),+).trim_ascii(),
            example: $example,
            flag: [$(Some($flag),)? None][0],
            environment: [$(Some($environment),)? None][0],
            show: |config| <$kind as Setting>::show(&config.$($field).+),
        }),*];

        /// Reads the value of key `name`, which is the next of `map`.
        pub(super) fn read<'de, A: MapAccess<'de>>(
            config: &mut Config,
            name: &str,
            map: &mut A,
        ) -> Result<(), A::Error> {
            match name {
                $($name => {
                    config.$($field).+ = map.next_value_seed(Read::<$kind>(std::marker::PhantomData))?;
                    Ok(())
                })*
                _ => unreachable!("{name} is not in KEYS"),
            }
        }
    };
}

keys! {
    /// The directory of all the daemon's data. One daemon per directory.
    "state_dir" => state_dir: AbsolutePath {
        accepts: "an absolute path of a directory",
        default: "`/var/lib/saltcellar` for root, else `saltcellar` under `$XDG_STATE_HOME` or `~/.local/state`",
        example: "/var/lib/saltcellar",
        flag: "--state-dir",
        environment: ENV_STATE_DIR,
    }

    /// The unix socket for the Salt extension and the command line.
    "socket" => socket: SocketPath {
        accepts: "an absolute path of at most 107 bytes",
        default: "`/run/saltcellar/saltcellar.sock` for root, else `saltcellar/saltcellar.sock` under `$XDG_RUNTIME_DIR`, `$XDG_STATE_HOME` or `~/.local/state`, the first that is set",
        example: "/run/saltcellar/saltcellar.sock",
        flag: "--socket",
        environment: ENV_SOCKET,
    }

    /// Permissions of the socket. Processes that can write to it have the right `socket_peers`.
    "socket_mode" => socket_mode: Mode {
        accepts: "file permissions in octal, from \"0600\" to \"0777\"",
        default: "\"0660\"",
        example: "\"0660\"",
    }

    /// Group of the socket. Its members can use the command line and the Salt extension. With a group, the daemon's
    /// files are readable by the daemon's own group (umask 0027), otherwise by its user only (0077).
    "socket_group" => socket_group: Maybe<Name> {
        accepts: "the name of a group",
        default: "none: the daemon's own group",
        example: "salt",
    }

    /// The right of socket peers that are not administrators: `read` jobs and events, or also `write` them.
    /// Administrators are root, the daemon's own user, and the owner of the event socket in a directory of `bus`, which
    /// is the user of that master. Only administrators may delete, hold and import jobs, fire events, replay reactions,
    /// and set Thorium's register. docs/WIRE.md lists the calls and their rights.
    "socket_peers" => socket_peers: Right {
        accepts: "read or write",
        default: "write",
        example: "read",
    }

    /// Salt socket directories (`sock_dir`) whose event bus the daemon reads.
    "bus" => bus: Many<AbsolutePath> {
        accepts: "a list of absolute paths of directories",
        default: "[]",
        example: "[/var/run/salt/master]",
        flag: "--bus",
    }

    /// Directories in which the Salt extension of this machine keeps entries while the daemon is unreachable (its
    /// `spool_dir`). `status` and `doctor` inspect them; missing ones are ignored.
    "spools" => spools: Many<AbsolutePath> {
        accepts: "a list of absolute paths of directories",
        default: "[/var/cache/salt/master/saltcellar, /var/cache/salt/minion/saltcellar]",
        example: "[/var/cache/salt/master/saltcellar]",
    }

    /// Address of the HTTPS source for minions, for `--return saltcellar` and `ext_job_cache` on other machines.
    /// Requires `https.certificate` and `https.key`. A minion signs its calls with its own Salt key, and can store only
    /// its own returns (docs/WIRE.md). The daemon must terminate TLS itself: a signature is valid for this certificate
    /// only.
    "https.listen" => https.listen: Maybe<Address> {
        accepts: "an address and a port, such as \"0.0.0.0:4580\" or \"[::]:4580\"",
        default: "none: the HTTPS source is off",
        example: "\"0.0.0.0:4580\"",
    }

    /// The certificate of the HTTPS source, followed by its intermediates up to an authority that the minions trust.
    /// The daemon reads this file and the key again when they change. If either is invalid, the last valid pair stays
    /// in use.
    "https.certificate" => https.certificate: Maybe<AbsolutePath> {
        accepts: "an absolute path of a PEM file",
        default: "none; required by https.listen",
        example: "/etc/saltcellar/tls/certificate.pem",
    }

    /// The private key of that certificate (PKCS #8, PKCS #1 or SEC 1, without a passphrase). Only the daemon's user
    /// should be able to read it.
    "https.key" => https.key: Maybe<AbsolutePath> {
        accepts: "an absolute path of a PEM file",
        default: "none; required by https.listen",
        example: "/etc/saltcellar/tls/key.pem",
    }

    /// The master's `pki_dir`. Signatures are verified with the minion's key in its `minions` directory, which
    /// `salt-key` maintains. A key that is deleted or rejected there is no longer accepted.
    "https.pki_dir" => https.pki_dir: AbsolutePath {
        accepts: "an absolute path of a directory",
        default: "/etc/salt/pki/master",
        example: "/etc/salt/pki/master",
    }

    /// What a minion may read through the HTTPS source (for example with `salt-call ret.get_jid saltcellar JID`):
    /// nothing, its own returns, or all jobs and all returns.
    "https.read" => https.read: MinionsRead {
        accepts: "none, own or all",
        default: "none",
        example: "own",
    }

    /// Rules for storing or dropping events and returns, tried in order at every source (bus, `event_return`,
    /// `returner` and others). The first rule whose globs all match decides; entries without a matching rule are
    /// stored. `tag`, `fun` and `minion` are a glob or a list of globs, as in Salt. A rule without globs matches
    /// everything, so a list that ends in `{do: drop}` stores only entries that an earlier rule matches with `do:
    /// store`. `do` is `store`, `drop`, or `sample N`, which stores one of N entries. The choice depends on a hash of
    /// the jid, or of tag and data for entries without a jid, so every source makes the same choice and a job is kept
    /// as a whole. Loads that Salt publishes are always stored, because Salt treats a job without a load as unknown.
    /// `saltcellar status` counts dropped entries per rule.
    "ingest.filter" => ingest.filter: Vec<FilterRule> {
        accepts: "a list of rules, each with `do` and any of `name`, `tag`, `fun` and `minion`",
        default: "[]",
        example: "[{do: drop, fun: saltutil.find_job}, {do: sample 10, tag: 'salt/beacon/*', minion: [lab-*, test-*]}]",
    }

    /// Rules for replacing values by `[redacted]` at every source, before anything is stored, spilled or queued.
    /// Without rules only masters' keys are redacted (`ingest.masters`), because only the owner of a job cache knows
    /// which returned values are secret. A rule selects values by `keys` (globs for keys of maps at any depth, ignoring
    /// case), `paths` (keys from the top, joined by dots, each a glob: `return.*.password`; an index selects an item of
    /// a list), `patterns` (regular expressions for text; only the matching part is replaced), or a `builtin`:
    /// `passwords` (keys such as password, passwd, passphrase, secret, token, api_key, private_key), `private_keys`
    /// (blocks from `-----BEGIN ... PRIVATE KEY-----` to their end), `pillar` (results of `pillar.*`, and values under
    /// the keys pillar and pillar_override). `tag`, `fun` and `minion` restrict a rule, as under `ingest.filter`. nil,
    /// true and false are kept. So are the keys jid, id, fun, retcode, success, tgt, minions, cmd, out and _stamp of a
    /// return, an event or a load, which identify jobs. Tags are not searched. Redaction is irreversible: `salt-run
    /// jobs.lookup_jid` shows `[redacted]`, too. Entries stored earlier are not changed.
    "ingest.redact" => ingest.redact: Vec<RedactRule> {
        accepts: "a list of rules, each with `builtin`, `keys`, `paths` or `patterns`, and any of `name`, `tag`, `fun` and `minion`",
        default: "[]",
        example: "[{builtin: passwords}, {builtin: private_keys}, {builtin: pillar}, {fun: 'vault.*', paths: [return]}, {patterns: ['AKIA[0-9A-Z]{16}']}]",
    }

    /// Configuration files of the Salt masters whose events the daemon stores; that of `reactor.master` is added. The
    /// keys in their `cachedir` (`.root_key` and those of other users) are redacted in all data, without a rule,
    /// because a master accepts every command from a peer with such a key. The daemon's user needs read access to the
    /// key files.
    "ingest.masters" => ingest.masters: Many<AbsolutePath> {
        accepts: "a list of absolute paths of files",
        default: "[/etc/salt/master]",
        example: "[/etc/salt/master, /srv/other/etc/master]",
    }

    /// Events of a bus that the store cannot accept at once wait in memory, then in files under `spill/` in the state
    /// directory. This is the limit of these files for each bus. Beyond it events are lost and counted, and a gap
    /// record is stored.
    "ingest.spill_bytes_max" => ingest.spill_bytes_max: ByteSize<{ 16 * MIB }, { 1024 * GIB }> {
        accepts: "a size from 16MiB to 1024GiB: a number of bytes, or a number with KiB, MiB or GiB",
        default: "1GiB",
        example: "4GiB",
    }

    /// The master's configuration file; it makes the daemon that master's reactor. `reactor`, `file_roots`, `user`,
    /// `cachedir`, `interface`, `ret_port` and all other options that reactions need come from this file and its
    /// includes, which are read again when they change. A change of this key requires a restart of the daemon. After a
    /// change of `interface` or `ret_port`, restart the master soon: reactions are sent to the new address at once, and
    /// wait until it answers. They also wait while the master's event bus is not connected. The daemon must read the
    /// master's bus (`bus`) and needs read access to the key in its cache. The reactor sees events as they are stored,
    /// after `ingest.filter` and `ingest.redact`. While the master runs Salt's own reactor, this one only watches, as
    /// with `reactor.shadow`. One line in the master's configuration switches over, without a change to the rules:
    /// `engines: [saltcellar-reactor]` (or one more item in an existing list), followed by a restart of the master. No
    /// engine of that name exists; the name keeps the master from adding its own reactor, and lets `salt-run
    /// reactor.list`, `add`, `delete`, `is_leader` and `set_leader` pass, which this reactor answers. Their changes
    /// last until the daemon restarts. `salt://` files are read from `file_roots` directly. Salt fetches those of other
    /// file server backends (`fileserver_backend`, needs `reactor.python`); fetched files are cached for two seconds.
    "reactor.master" => reactor.master: Maybe<AbsolutePath> {
        accepts: "an absolute path of a file",
        default: "none: the reactor is off",
        example: "/etc/salt/master",
    }

    /// Instead of `reactor.master`: a minion's configuration file; it makes the daemon that minion's reactor, with or
    /// without a master. `bus` is the minion's socket directory (`/var/run/salt/minion`). The rules are `reactor` in
    /// the minion's files or `reactor.rules`. Only `caller` reactions run: Salt (`reactor.python`) executes an
    /// execution function on this machine, as `salt-call` would, one at a time. Other reactions are dead-lettered,
    /// because a minion has no request port. A function that raises is not retried. A function interrupted by the
    /// daemon's end runs again at the next start, unless its rule sets `at_most_once`. While the minion's `engines`
    /// list Salt's reactor, this one only watches.
    "reactor.minion" => reactor.minion: Maybe<AbsolutePath> {
        accepts: "an absolute path of a file",
        default: "none: the reactor is off",
        example: "/etc/salt/minion",
    }

    /// Rules, in Salt's form, that replace the master's own.
    "reactor.rules" => reactor.rules: ReactorRules {
        accepts: "a list of rules, or an absolute path of a YAML file with one",
        default: "none: the master's own `reactor`",
        example: "[{'salt/minion/*/start': [/srv/reactor/start.sls, 'salt://reactor/sync.sls']}]",
    }

    /// Render reactions and record the resulting calls without making them, for a trial beside Salt's own reactor.
    /// `saltcellar reactor shadow` shows the differences between the two.
    "reactor.shadow" => reactor.settings.shadow: Flag {
        accepts: "true or false",
        default: "false",
        example: "true",
    }

    /// Shadow only: the time after an event within which Salt's own reactor may make its calls, for the comparison of
    /// `saltcellar reactor shadow`. Salt handles events one at a time; increase this if it lags behind.
    "reactor.shadow_window" => reactor.settings.shadow_window: ShadowWindow {
        accepts: "a time from 1s to 1h",
        default: "1m",
        example: "5m",
    }

    /// Options of single rules. `rule` is the pattern exactly as in the list of rules; such a rule is rendered
    /// separately from others. The master may have carried out a call that it did not answer. A job is then published
    /// again under the same jid, which minions run once, unless the log shows that it was published. A runner or wheel
    /// function is not called again: the log is searched for its start for a minute, and without one the outcome is
    /// `unknown`. `at_most_once`: no call is made a second time, including jobs and `caller` functions.
    /// `retry_unanswered`: runners and wheel functions are called again if their start is not in the log, at the risk
    /// of running twice. `tries`: how often a call that the master rejects is tried before it is dead-lettered (5),
    /// with a pause of `backoff` (1s) that doubles each time. `rate: 10/1m`: excess reactions wait. `budget: 100/1h`:
    /// excess reactions are dead-lettered, which stops runaway loops; the default of every rule is `1000000/1h`, and
    /// `none` removes the limit. `debounce: 5s`: only a minion's last event counts, after a quiet period of this
    /// length. `once_per: 10m`: only a minion's first event in this period counts. `concurrency`: the number of
    /// reactions at a time (8), and of runners in flight (`reactor_worker_threads` of the master, minus one for other
    /// rules). `order`: which events of the rule are handled in order: `minion`, those of one minion and those without
    /// a minion (default); `rule`, all; `none`. `allow`: as `reactor.allow`, for this rule. `saltcellar reactor replay`
    /// runs dead-lettered calls.
    "reactor.options" => reactor.settings.rules: Vec<Arc<RuleOptions>> {
        accepts: "a list of items, each with `rule` and any of `at_most_once`, `retry_unanswered`, `tries`, `backoff`, `rate`, `budget`, `debounce`, `once_per`, `concurrency`, `order` and `allow`",
        default: "[]",
        example: "[{rule: 'salt/minion/*/start', once_per: 10m}, {rule: 'salt/beacon/*', rate: 10/1m, at_most_once: true}]",
    }

    /// Calls that reactions may make. `client` is local, runner, wheel or caller; `fun` and `tgt` are globs. A call
    /// without a matching item is dead-lettered.
    "reactor.allow" => reactor.allow: Vec<Allow> {
        accepts: "a list of items, each with `fun` and any of `client` and `tgt`",
        default: "[]: everything",
        example: "[{client: local, fun: state.apply}, {client: runner, fun: 'state.*'}, {client: wheel, fun: key.accept}]",
    }

    /// An event that is older when its turn comes, because the master or the daemon was down, is skipped; `saltcellar
    /// reactor replay` runs its reactions on demand.
    "reactor.age_max" => reactor.settings.age_max: AnySpan {
        accepts: "a time, such as 10m or 1h",
        default: "1h",
        example: "10m",
    }

    /// The longest chain of reactions to events of reactions. A longer chain is considered a loop and ends. The chain
    /// is followed through jobs, runners, `event.send` and orchestrations, also across restarts. It is not followed
    /// through events that a state, a script, or a job of an orchestration with `batch` or `subset` sends; there the
    /// rule's `budget` is the limit.
    "reactor.depth_max" => reactor.settings.depth_max: Number<1000> {
        accepts: "a number from 1 to 1000",
        default: "8",
        example: "3",
    }

    /// The Python in which Salt is installed. Files that are not rendered natively (`#!py`, most functions of `salt`,
    /// macros, imports, rare filters) are rendered by Salt's own renderers in a separate process; without it such a
    /// file fails. The process runs as Salt's `user`: a daemon that runs as root switches to it; a daemon of another
    /// user can use only its own. The process imports modules from Salt's installation only, not from the current
    /// directory or `PYTHONPATH`. If it dies, its file is rendered again, up to three times in all.
    "reactor.python" => reactor.python: Maybe<AbsolutePath> {
        accepts: "an absolute path of a Python interpreter",
        default: "/opt/saltstack/salt/bin/python3, if it exists",
        example: "/opt/saltstack/salt/bin/python3",
    }

    /// Limit of the data of one process of Salt's Python that renders files (`RLIMIT_DATA`). A file that needs more
    /// fails with `MemoryError`. Commands that a template starts inherit the limit. Processes that run `caller`
    /// reactions are not limited. The kernel's OOM killer kills either kind before the daemon.
    "reactor.helper_memory" => reactor.helper_memory: Memory {
        accepts: "a size from 256MiB on, or none",
        default: "1GiB",
        example: "2GiB",
    }

    /// A ZeroMQ PULL socket for events from any program with a PUSH socket. A message is one frame with tag, two
    /// newlines and a msgpack map, as on Salt's bus, or two frames with tag and map. While the store has no room,
    /// senders wait. Messages are not acknowledged; docs/ZEROMQ.md describes what a killed process can lose.
    "zeromq.pull" => zeromq.pull: Maybe<Ipc> {
        accepts: "ipc:// and an absolute path of at most 107 bytes",
        default: "none: off",
        example: "ipc:///run/saltcellar/events-in.sock",
    }

    /// A ZeroMQ PUB socket with every stored event, in the same form, once it is durable. A SUB socket receives the
    /// events whose tag starts with one of its subscriptions. Events are dropped and counted for a slow subscriber.
    "zeromq.pub" => zeromq.publish: Maybe<Ipc> {
        accepts: "ipc:// and an absolute path of at most 107 bytes",
        default: "none: off",
        example: "ipc:///run/saltcellar/events-out.sock",
    }

    /// Permissions of the ZeroMQ sockets. A process with write access can store events, and read every new event.
    "zeromq.mode" => zeromq.mode: Maybe<Mode> {
        accepts: "file permissions in octal, from \"0600\" to \"0777\"",
        default: "the value of `socket_mode`",
        example: "\"0660\"",
    }

    /// Group of the ZeroMQ sockets.
    "zeromq.group" => zeromq.group: Maybe<Name> {
        accepts: "the name of a group",
        default: "the value of `socket_group`",
        example: "salt",
    }

    /// Verbosity of the daemon's log.
    "log.level" => log.level: LogLevel {
        accepts: "off, error, warn, info, debug or trace, or a filter such as \"info,saltcellar::store=debug\"",
        default: "info",
        example: "debug",
        flag: "--log-level",
        environment: ENV_LOG,
    }

    /// Format of the log: `auto` is text, with colours on a terminal and without times under the journal.
    "log.format" => log.format: LogFormat {
        accepts: "auto, text or json",
        default: "auto",
        example: "json",
    }

    /// When a call is acknowledged. `durable`: after its entries are synced; a power cut loses no acknowledged entry.
    /// `written 5s`: after its entries are handed to the kernel, which are synced within that time; a killed daemon
    /// loses nothing, a power cut loses up to the last five seconds.
    "store.durability" => store.durability: Durability {
        accepts: "durable, or written and a time from 1s to 60s",
        default: "durable",
        example: "written 5s",
    }

    /// The size at which a segment of the log is sealed and a new one started.
    "store.segment_bytes_max" => store.segment_bytes_max: ByteSize<MIB, { 64 * GIB }> {
        accepts: "a size from 1MiB to 64GiB: a number of bytes, or a number with KiB, MiB or GiB",
        default: "256MiB",
        example: "1GiB",
    }

    /// The largest event, load or return that is stored. Larger ones are rejected and counted.
    "store.entry_bytes_max" => store.entry_bytes_max: EntrySize {
        accepts: "a size from 64KiB to 64MiB: a number of bytes, or a number with KiB or MiB",
        default: "64MiB",
        example: "16MiB",
    }

    /// Retention classes. An entry belongs to the first class with a matching item under `match`. Entries without a
    /// match belong to `jobs` if they are part of a job, else to `events`; these two classes always exist. An item has
    /// a glob for the function (`fun`), for the event's tag (`tag`), or both. A function selects its jobs as a whole:
    /// load, returns and events. A tag selects single events. `keep` limits the class by `age` (a time such as `12h` or
    /// `30d`, `forever`, or `salt` for the master's `keep_jobs_seconds`), by `bytes` on disk, and by `entries`. The
    /// oldest entries are deleted first, in segments of at most a sixteenth of each limit. Held jobs are kept
    /// (`saltcellar store hold`).
    "store.classes" => store.classes: Vec<ClassRules> {
        accepts: "a list of classes, each with `name`, `match` and `keep`",
        default: "`jobs` with the age of Salt's `keep_jobs_seconds`, `events` with 30 days",
        example: "[{name: chatter, match: [{fun: saltutil.find_job}, {tag: salt/auth}], keep: {age: 1d}}]",
    }

    /// With less free space than this, retention deletes the oldest segments early: first of classes with a `match`,
    /// then of `events`, then of `jobs`. `auto` is a tenth of the file system, at most 3GiB.
    "store.free_bytes_low" => store.free_bytes_low: Space {
        accepts: "a size: a number of bytes, or a number with KiB, MiB or GiB; or auto",
        default: "auto",
        example: "10GiB",
    }

    /// With less free space than this, the store accepts no entries: callers get `unavailable` and spool. Reading
    /// continues. `auto` is a twentieth of the file system, at most 1GiB.
    "store.free_bytes_min" => store.free_bytes_min: Space {
        accepts: "a size: a number of bytes, or a number with KiB, MiB or GiB; or auto",
        default: "auto",
        example: "2GiB",
    }
}

/// Finds a key by its full name.
pub(super) fn find(name: &str) -> Option<&'static Key> {
    KEYS.iter().find(|key| key.name == name)
}

/// The key of a path such as `store.classes[0].keep`.
pub(super) fn of_path(path: &str) -> Option<&'static Key> {
    KEYS.iter().find(|key| {
        path.strip_prefix(key.name).is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '[']))
    })
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::load::read_value;
    use crate::config::size;
    use crate::limits;

    #[test]
    fn every_example_is_accepted_and_rendered_examples_are_read_back() {
        for key in KEYS {
            let read = |text: &str| {
                let mut config = Config::for_state_dir("/s", "/s/sock");
                read_value(&mut config, key.name, text).map(|()| config)
            };
            let config = read(key.example).unwrap();
            assert_eq!(read(&(key.show)(&config).to_string()), Ok(config), "{}", key.name);
        }
    }

    #[test]
    fn every_plain_default_equals_the_value_of_a_fresh_config() {
        let fresh = Config::for_state_dir("/s", "/s/sock");
        for key in KEYS.iter().filter(|key| !key.default.contains(' ')) {
            let mut config = fresh.clone();
            read_value(&mut config, key.name, key.default).unwrap();
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
            assert!(read_value(&mut config, name, value).is_err(), "{name}: {value:?}");
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
