//! The keys under `reactor`.

use serde_json::Value as Json;

use super::keys::{Bad, Key, path, path_json, put, text};
use super::{duration, reactor, size};

pub(super) const MASTER: Key = Key {
    name: "reactor.master",
    takes: "an absolute path of a file",
    default: "none: there is no reactor",
    doc: REACTOR,
    example: "/etc/salt/master",
    flag: None,
    environment: None,
    set: |config, value| put(&mut config.reactor.master, path(value).map(Some)),
    show: |config| config.reactor.master.as_deref().map_or(Json::Null, path_json),
};

pub(super) const MINION: Key = Key {
    name: "reactor.minion",
    takes: "an absolute path of a file",
    default: "none: there is no reactor",
    doc: REACTOR_MINION,
    example: "/etc/salt/minion",
    flag: None,
    environment: None,
    set: |config, value| put(&mut config.reactor.minion, path(value).map(Some)),
    show: |config| config.reactor.minion.as_deref().map_or(Json::Null, path_json),
};

pub(super) const RULES: Key = Key {
    name: "reactor.rules",
    takes: "a list of rules, or an absolute path of a YAML file with one",
    default: "none: the master's own `reactor`",
    doc: "The rules, in Salt's form, in place of the master's own.",
    example: "[{'salt/minion/*/start': [/srv/reactor/start.sls, 'salt://reactor/sync.sls']}]",
    flag: None,
    environment: None,
    set: |config, value| put(&mut config.reactor.rules, reactor::read_rules(value)),
    show: |config| reactor::show_rules(config.reactor.rules.as_ref()),
};

pub(super) const SHADOW: Key = Key {
    name: "reactor.shadow",
    takes: "true or false",
    default: "false",
    doc: "Render and write down what would be done, and do nothing: for a trial beside Salt's own reactor. `saltcellar reactor shadow` \
          tells in what the two differ.",
    example: "true",
    flag: None,
    environment: None,
    set: |config, value| put(&mut config.reactor.settings.shadow, reactor::truth(value)),
    show: |config| Json::from(config.reactor.settings.shadow),
};

pub(super) const SHADOW_WINDOW: Key = Key {
    name: "reactor.shadow_window",
    takes: "a time from 1s to 1h",
    default: "1m",
    doc: "In shadow: how long after an event Salt's own reactor may take to do what `saltcellar reactor shadow` then compares. It works \
          one event after the other; give more if it lags behind.",
    example: "5m",
    flag: None,
    environment: None,
    set: |config, value| put(&mut config.reactor.settings.shadow_window, reactor::window(value)),
    show: |config| Json::from(duration::show(config.reactor.settings.shadow_window)),
};

pub(super) const OPTIONS: Key = Key {
    name: "reactor.options",
    takes: "a list of items, each with `rule` and any of `at_most_once`, `retry_unanswered`, `tries`, `backoff`, `rate`, `budget`, `debounce`, `once_per`, `concurrency`, `order` and `allow`",
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
    takes: "a list of items, each with `fun` and any of `client` and `tgt`",
    default: "[]: everything",
    doc: "What reactions may call. `client` is local, runner, wheel or caller; `fun` and `tgt` are globs. A call that no item \
          takes is set aside.",
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
    takes: "a time, such as 10m or 1h",
    default: "1h",
    doc: "An event that is older when its turn comes, because the master or the daemon was away, is not reacted to; \
          `saltcellar reactor replay` does it after all.",
    example: "10m",
    flag: None,
    environment: None,
    set: |config, value| {
        let age = duration::parse(text(value)?)
            .ok_or_else(|| Bad::from(format!("{} is not accepted", value.noun())));
        put(&mut config.reactor.settings.age_max, age)
    },
    show: |config| Json::from(duration::show(config.reactor.settings.age_max)),
};

pub(super) const DEPTH_MAX: Key = Key {
    name: "reactor.depth_max",
    takes: "a number from 1 to 1000",
    default: "8",
    doc: "A reaction causes events, to which others may react, and so on. A longer chain is taken for a loop, and ends. The chain is \
          followed through jobs, runners, `event.send` and orchestrations, also over a restart. It is not followed through events that \
          a state, a script, or a job of an orchestration with `batch` or `subset` sends; there the rule's `budget` is the limit.",
    example: "3",
    flag: None,
    environment: None,
    set: |config, value| put(&mut config.reactor.settings.depth_max, reactor::depth(value)),
    show: |config| Json::from(config.reactor.settings.depth_max),
};

pub(super) const PYTHON: Key = Key {
    name: "reactor.python",
    takes: "an absolute path of a Python interpreter",
    default: "/opt/saltstack/salt/bin/python3, if it is there",
    doc: "The Python that Salt is installed in. What is not rendered natively (`#!py`, `salt[...]`, macros, imports, rare \
          filters) is rendered by Salt's own renderers, in a process of its own; without it, such a file fails. The process runs as Salt's own `user`, which a daemon of root switches to; a \
          daemon of another user can start it for that user alone. Its modules are those of Salt's installation: neither the \
          current directory nor `PYTHONPATH` is searched. If it dies, its file is rendered again, three times in all.",
    example: "/opt/saltstack/salt/bin/python3",
    flag: None,
    environment: None,
    set: |config, value| put(&mut config.reactor.python, path(value).map(Some)),
    show: |config| config.reactor.python.as_deref().map_or(Json::Null, path_json),
};

pub(super) const HELPER_MEMORY: Key = Key {
    name: "reactor.helper_memory",
    takes: "a size from 256MiB on, or none",
    default: "1GiB",
    doc: "Limit the data of one process of Salt's Python that renders files (`RLIMIT_DATA`). A file that needs more fails with \
          `MemoryError`. Commands that a template starts inherit the limit. Processes that run `caller` reactions have none. The \
          kernel's OOM killer chooses either kind before the daemon.",
    example: "2GiB",
    flag: None,
    environment: None,
    set: |config, value| put(&mut config.reactor.helper_memory, reactor::helper_memory(value)),
    show: |config| Json::from(config.reactor.helper_memory.map_or_else(|| "none".to_owned(), size::show)),
};

const REACTOR: &str = "The master's configuration file; with it, the daemon is that master's reactor. Out of it and the files that it \
includes come `reactor`, `file_roots`, `user`, `cachedir`, `interface`, `ret_port` and all else that reactions need; they are read \
again when they change; that another file is named here takes effect at the next start. After a change of `interface` or \
`ret_port`, restart the master soon: reactions go to the new address at once, and wait until it answers. They also wait while the \
master's event bus is not connected. The daemon must read the master's bus (`bus`) and be able to read the key in its cache. It sees events as \
they are stored: what `ingest.filter` leaves out or `ingest.redact` replaces, it does not see. While the master runs Salt's own \
reactor, this one watches only, as with `reactor.shadow`. One line hands over, with the rules left where they are: \
`engines: [saltcellar-reactor]` in the master's configuration (one item more if there is a list already), and a restart of the \
master. There is no such engine; its name keeps the master from adding its own, and lets `salt-run reactor.list`, `add`, `delete`, \
`is_leader` and `set_leader` through, which are answered here. What they change lasts until the daemon is started again. `salt://` \
is read from `file_roots` directly; what other backends of the file server have (`fileserver_backend`), Salt fetches \
(`reactor.python`), and it is trusted for two seconds.";
const REACTOR_MINION: &str = "In place of `reactor.master`: a minion's configuration file; with it, the daemon is that minion's \
reactor, whether or not the minion has a master. `bus` is the minion's socket directory (`/var/run/salt/minion`), the rules are \
`reactor` of the minion's files or `reactor.rules`. Reactions are `caller`: an execution function, run on this machine by Salt \
(`reactor.python`) as `salt-call` would, one after the other; for the others a minion has no port to ask. What a function raises is \
not tried again. With the daemon ending in the middle it runs again at the next start, unless its rule says `at_most_once`. While \
the minion's `engines` name Salt's reactor, this one watches only.";
const REACTOR_OPTIONS: &str = "How rules run; `rule` is a pattern as it stands in the list of rules, and such a rule is rendered \
apart from others. A call without an answer from the master may have been carried out. A job is then published again under the same jid, \
which minions run once, unless the log shows that it was published. A runner or a wheel function is not called again: the log is searched \
for its start for a minute, and without one the outcome is `unknown`. `at_most_once`: no call is made a second time, jobs and `caller` \
functions included. `retry_unanswered`: runners and wheel functions are called again if their start is not in the log, at the risk \
that they run twice. `tries`: how often a call is tried that the master refuses (5), with \
`backoff` (1s) and then twice the pause before; then it is set aside. `rate: 10/1m`: more reactions wait. `budget: 100/1h`: more are \
dead-lettered, which stops runaway loops; every rule has `1000000/1h` by default, and `none` removes the limit. `debounce: 5s`: of a minion's events the last one counts, once it is quiet for so long. \
`once_per: 10m`: of a minion's events the first one counts, in so much time. `concurrency`: so many reactions at once (8), and at \
most so many runners under way (`reactor_worker_threads` of the master, but for one that is left to other rules). `order`: which events \
of the rule wait for one another: `minion`, those of one minion and those without one (default); `rule`, all; `none`. `allow`: as `reactor.allow`, for this rule. What is set aside waits for `saltcellar reactor replay`.";
