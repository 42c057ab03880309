//! The keys under `reactor`.

use serde_json::Value as Json;

use super::keys::{Key, ValueError, path, path_json, put, text};
use super::{duration, reactor, size};

pub(super) const MASTER: Key = Key {
    name: "reactor.master",
    accepts: "an absolute path of a file",
    default: "none: the reactor is off",
    doc: REACTOR,
    example: "/etc/salt/master",
    flag: None,
    environment: None,
    set: |config, value| put(&mut config.reactor.master, path(value).map(Some)),
    show: |config| config.reactor.master.as_deref().map_or(Json::Null, path_json),
};

pub(super) const MINION: Key = Key {
    name: "reactor.minion",
    accepts: "an absolute path of a file",
    default: "none: the reactor is off",
    doc: REACTOR_MINION,
    example: "/etc/salt/minion",
    flag: None,
    environment: None,
    set: |config, value| put(&mut config.reactor.minion, path(value).map(Some)),
    show: |config| config.reactor.minion.as_deref().map_or(Json::Null, path_json),
};

pub(super) const RULES: Key = Key {
    name: "reactor.rules",
    accepts: "a list of rules, or an absolute path of a YAML file with one",
    default: "none: the master's own `reactor`",
    doc: "Rules, in Salt's form, that replace the master's own.",
    example: "[{'salt/minion/*/start': [/srv/reactor/start.sls, 'salt://reactor/sync.sls']}]",
    flag: None,
    environment: None,
    set: |config, value| put(&mut config.reactor.rules, reactor::read_rules(value)),
    show: |config| reactor::show_rules(config.reactor.rules.as_ref()),
};

pub(super) const SHADOW: Key = Key {
    name: "reactor.shadow",
    accepts: "true or false",
    default: "false",
    doc: "Render reactions and record the resulting calls without making them, for a trial beside Salt's own reactor. `saltcellar reactor shadow` \
    shows the differences between the two.",
    example: "true",
    flag: None,
    environment: None,
    set: |config, value| put(&mut config.reactor.settings.shadow, reactor::truth(value)),
    show: |config| Json::from(config.reactor.settings.shadow),
};

pub(super) const SHADOW_WINDOW: Key = Key {
    name: "reactor.shadow_window",
    accepts: "a time from 1s to 1h",
    default: "1m",
    doc: "Shadow only: the time after an event within which Salt's own reactor may make its calls, for the comparison of \
    `saltcellar reactor shadow`. Salt handles events one at a time; increase this if it lags behind.",
    example: "5m",
    flag: None,
    environment: None,
    set: |config, value| put(&mut config.reactor.settings.shadow_window, reactor::window(value)),
    show: |config| Json::from(duration::show(config.reactor.settings.shadow_window)),
};

pub(super) const OPTIONS: Key = Key {
    name: "reactor.options",
    accepts: "a list of items, each with `rule` and any of `at_most_once`, `retry_unanswered`, `tries`, `backoff`, `rate`, `budget`, `debounce`, `once_per`, `concurrency`, `order` and `allow`",
    default: "[]",
    doc: REACTOR_OPTIONS,
    example: "[{rule: 'salt/minion/*/start', once_per: 10m}, {rule: 'salt/beacon/*', rate: 10/1m, at_most_once: true}]",
    flag: None,
    environment: None,
    set: |config, value| put(&mut config.reactor.settings.rules, reactor::read_options(value)),
    show: |config| reactor::show_options(&config.reactor.settings.rules),
};

pub(super) const ALLOW: Key = Key {
    name: "reactor.allow",
    accepts: "a list of items, each with `fun` and any of `client` and `tgt`",
    default: "[]: everything",
    doc: "Calls that reactions may make. `client` is local, runner, wheel or caller; `fun` and `tgt` are globs. A call without a \
    matching item is dead-lettered.",
    example: "[{client: local, fun: state.apply}, {client: runner, fun: 'state.*'}, {client: wheel, fun: key.accept}]",
    flag: None,
    environment: None,
    set: |config, value| {
        let allow = reactor::read_allow(value)?;
        reactor::put_plain(&mut config.reactor, |plain| plain.allow = allow);
        Ok(())
    },
    show: |config| reactor::show_allow(&config.reactor.settings.plain.allow),
};

pub(super) const AGE_MAX: Key = Key {
    name: "reactor.age_max",
    accepts: "a time, such as 10m or 1h",
    default: "1h",
    doc: "An event that is older when its turn comes, because the master or the daemon was down, is skipped; \
    `saltcellar reactor replay` runs its reactions on demand.",
    example: "10m",
    flag: None,
    environment: None,
    set: |config, value| {
        let age = duration::parse(text(value)?)
            .ok_or_else(|| ValueError::from(format!("{} is not accepted", value.noun())));
        put(&mut config.reactor.settings.age_max, age)
    },
    show: |config| Json::from(duration::show(config.reactor.settings.age_max)),
};

pub(super) const DEPTH_MAX: Key = Key {
    name: "reactor.depth_max",
    accepts: "a number from 1 to 1000",
    default: "8",
    doc: "The longest chain of reactions to events of reactions. A longer chain is considered a loop and ends. The chain is \
    followed through jobs, runners, `event.send` and orchestrations, also across restarts. It is not followed through events that \
    a state, a script, or a job of an orchestration with `batch` or `subset` sends; there the rule's `budget` is the limit.",
    example: "3",
    flag: None,
    environment: None,
    set: |config, value| put(&mut config.reactor.settings.depth_max, reactor::depth(value)),
    show: |config| Json::from(config.reactor.settings.depth_max),
};

pub(super) const PYTHON: Key = Key {
    name: "reactor.python",
    accepts: "an absolute path of a Python interpreter",
    default: "/opt/saltstack/salt/bin/python3, if it exists",
    doc: "The Python in which Salt is installed. Files that are not rendered natively (`#!py`, most functions of `salt`, macros, \
    imports, rare filters) are rendered by Salt's own renderers in a separate process; without it such a file fails. The process runs as Salt's `user`: a daemon that runs as root switches to it; a \
    daemon of another user can use only its own. The process imports modules from Salt's installation only, not from the \
    current directory or `PYTHONPATH`. If it dies, its file is rendered again, up to three times in all.",
    example: "/opt/saltstack/salt/bin/python3",
    flag: None,
    environment: None,
    set: |config, value| put(&mut config.reactor.python, path(value).map(Some)),
    show: |config| config.reactor.python.as_deref().map_or(Json::Null, path_json),
};

pub(super) const HELPER_MEMORY: Key = Key {
    name: "reactor.helper_memory",
    accepts: "a size from 256MiB on, or none",
    default: "1GiB",
    doc: "Limit of the data of one process of Salt's Python that renders files (`RLIMIT_DATA`). A file that needs more fails with \
    `MemoryError`. Commands that a template starts inherit the limit. Processes that run `caller` reactions are not limited. The \
    kernel's OOM killer kills either kind before the daemon.",
    example: "2GiB",
    flag: None,
    environment: None,
    set: |config, value| put(&mut config.reactor.helper_memory, reactor::helper_memory(value)),
    show: |config| Json::from(config.reactor.helper_memory.map_or_else(|| "none".to_owned(), size::show)),
};

const REACTOR: &str = "The master's configuration file; it makes the daemon that master's reactor. `reactor`, `file_roots`, `user`, \
`cachedir`, `interface`, `ret_port` and all other options that reactions need come from this file and its includes, which are read \
again when they change. A change of this key requires a restart of the daemon. After a change of `interface` or \
`ret_port`, restart the master soon: reactions are sent to the new address at once, and wait until it answers. They also wait while the \
master's event bus is not connected. The daemon must read the master's bus (`bus`) and needs read access to the key in its cache. The reactor sees events as \
they are stored, after `ingest.filter` and `ingest.redact`. While the master runs Salt's own \
reactor, this one only watches, as with `reactor.shadow`. One line in the master's configuration switches over, without a change to the rules: \
`engines: [saltcellar-reactor]` (or one more item in an existing list), followed by a restart of the \
master. No engine of that name exists; the name keeps the master from adding its own reactor, and lets `salt-run reactor.list`, `add`, `delete`, \
`is_leader` and `set_leader` pass, which this reactor answers. Their changes last until the daemon restarts. `salt://` \
files are read from `file_roots` directly. Salt fetches those of other file server backends (`fileserver_backend`, needs \
`reactor.python`); fetched files are cached for two seconds.";
const REACTOR_MINION: &str = "Instead of `reactor.master`: a minion's configuration file; it makes the daemon that minion's \
reactor, with or without a master. `bus` is the minion's socket directory (`/var/run/salt/minion`). The rules are \
`reactor` in the minion's files or `reactor.rules`. Only `caller` reactions run: Salt (`reactor.python`) executes an execution function on this \
machine, as `salt-call` would, one at a time. Other reactions are dead-lettered, because a minion has no request port. A function that raises is \
not retried. A function interrupted by the daemon's end runs again at the next start, unless its rule sets `at_most_once`. While \
the minion's `engines` list Salt's reactor, this one only watches.";
const REACTOR_OPTIONS: &str = "Options of single rules. `rule` is the pattern exactly as in the list of rules; such a rule is rendered \
separately from others. The master may have carried out a call that it did not answer. A job is then published again under the same jid, \
which minions run once, unless the log shows that it was published. A runner or wheel function is not called again: the log is searched \
for its start for a minute, and without one the outcome is `unknown`. `at_most_once`: no call is made a second time, including jobs and `caller` \
functions. `retry_unanswered`: runners and wheel functions are called again if their start is not in the log, at the risk \
of running twice. `tries`: how often a call that the master rejects is tried before it is dead-lettered (5), with a pause of \
`backoff` (1s) that doubles each time. `rate: 10/1m`: excess reactions wait. `budget: 100/1h`: excess reactions are \
dead-lettered, which stops runaway loops; the default of every rule is `1000000/1h`, and `none` removes the limit. `debounce: 5s`: only a minion's last event counts, after a quiet period of this length. \
`once_per: 10m`: only a minion's first event in this period counts. `concurrency`: the number of reactions at a time (8), and of \
runners in flight (`reactor_worker_threads` of the master, minus one for other rules). `order`: which events \
of the rule are handled in order: `minion`, those of one minion and those without a minion (default); `rule`, all; `none`. `allow`: as `reactor.allow`, for this rule. `saltcellar reactor replay` runs dead-lettered calls.";
