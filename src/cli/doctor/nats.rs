//! The shared history: whether NATS can be reached and logged in to, and whether stream, user and servers keep what masters publish.
//!
//! The checks connect as the daemon does, and only ask: they make no stream, and publish nothing.

use std::fs::File;
use std::sync::Arc;
use std::time::Duration;

use rustls::crypto::ring::default_provider;
use serde::Deserialize;
use ureq::Agent;
use ureq::tls::{Certificate, RootCerts, TlsConfig};

use super::check::{Check, Machine, Run};
use super::finding::{CheckResult, Findings, Reporter, is_denied};
use super::master_use::{MasterContext, Uses};
use crate::client::nats::Connection;
use crate::client::secret::Revealed;
use crate::client::thread::ClientThread;
use crate::client::tls;
use crate::cluster::Cluster;
use crate::cluster::stream::{Difference, FoundStream};
use crate::config::{Config, Nats, Secret};
use crate::daemon::master_id;
use crate::model::word::{MIB, Word as _};

const NATS: &str = "cluster.nats";
const STREAM: &str = "cluster.stream";
const USER: &str = "cluster.user";
const SYNC: &str = "cluster.sync";
const NAME: &str = "cluster.name";

/// Fewer servers cannot lose one.
const SERVERS_MIN: usize = 3;

/// The variable that names systemd's directory of a unit's credentials.
const CREDENTIALS: &str = "CREDENTIALS_DIRECTORY";

/// Longest wait for a server, of which there are several.
const SERVER_TIMEOUT: Duration = Duration::from_secs(5);

/// Longest wait for a monitoring port.
const MONITOR_TIMEOUT: Duration = Duration::from_secs(5);

/// Bytes of a response of a monitoring port.
const MONITOR_BYTES_MAX: u64 = MIB;

pub(super) const CHECKS: &[Check] = &[
    Check {
        name: NATS,
        not_ok_when: "masters [share one history](CLUSTER.md), and a NATS server is not reachable, or rejects the login",
        run: Run::Machine(nats),
    },
    Check {
        name: STREAM,
        not_ok_when: "the stream does not exist, keeps less than `cluster` says, is on fewer than three servers, or one of them is behind",
        run: Run::ByAnother,
    },
    Check {
        name: USER,
        not_ok_when: "the user of NATS may publish for another master, may change the stream, or lacks a right that the daemon needs",
        run: Run::ByAnother,
    },
    Check {
        name: SYNC,
        not_ok_when: "a server of `cluster.monitor` acknowledges messages before they are on its disk, has no JetStream, or does not respond; it is `skipped` without `cluster.monitor`, because nothing else shows it",
        run: Run::ByAnother,
    },
    Check {
        name: NAME,
        not_ok_when: "masters share one history, and the daemon has no slot of job ids, or `cluster.name` is not the id of a master that belongs to a cluster",
        run: Run::Master(name),
    },
];

fn nats(found: &mut Findings, machine: &Machine<'_>) {
    let config = machine.config;
    let cluster = match Cluster::of(config, &master_id(config)) {
        Ok(Some(cluster)) => cluster,
        Ok(None) => return,
        Err(error) => return found.of(NATS).problem(error.to_string()),
    };

    // First, because the monitoring ports need no login and therefore none of the files below.
    sync(&mut found.of(SYNC), config, &cluster.nats);

    // What this user cannot read is no fault of the daemon.
    if let Some(path) = closed_file(&cluster.nats) {
        return found.of(NATS).needs_root(path);
    }
    // systemd passes credentials to the processes of the unit only.
    let secrets = [&cluster.nats.password, &cluster.nats.token];
    let is_credential = |secret| matches!(secret, &Some(Secret::Credential(_)));
    if secrets.into_iter().any(is_credential) && std::env::var_os(CREDENTIALS).is_none() {
        let message = "not checked: the password is a credential of the daemon's unit";
        return found.of(NATS).add(CheckResult::Skipped, message);
    }

    let thread = match ClientThread::start("sc-doctor") {
        Ok(thread) => thread,
        Err(error) => return found.of(NATS).problem(error),
    };
    let Some(connection) = connect(&mut found.of(NATS), &thread, &cluster) else {
        return;
    };

    match thread.block_on(cluster.find_stream(&connection)) {
        Ok(Some(stream)) => report_stream(&mut found.of(STREAM), &cluster, &stream),
        Ok(None) => found.of(STREAM).warn(format!(
            "the stream {} does not exist; a daemon makes it when it connects",
            cluster.subjects.stream()
        )),
        Err(error) => found.of(STREAM).problem_because(
            error,
            "without the stream, masters learn nothing of each other",
            "the findings of cluster.user and the server's log show the cause",
        ),
    }

    report_user(&mut found.of(USER), &thread, &cluster, &connection);
}

/// The first file with a secret, or of TLS, that this user may not read.
fn closed_file(nats: &Nats) -> Option<String> {
    let secrets = [&nats.password, &nats.token].into_iter().flatten();
    let secrets = secrets.filter_map(|secret| match secret {
        Secret::File(path) => Some(path),
        Secret::Credential(_) => None,
    });
    let tls = [&nats.tls.ca, &nats.tls.certificate, &nats.tls.key];
    secrets
        .chain(tls.into_iter().flatten())
        .find(|path| File::open(path).is_err_and(|error| is_denied(&error)))
        .map(|path| path.display().to_string())
}

/// Tries each server, and returns a connection to one of them.
fn connect(
    found: &mut Reporter<'_>,
    thread: &ClientThread,
    cluster: &Cluster,
) -> Option<Connection> {
    const FIX: &str = "start the server, or correct `cluster.nats` and restart the daemon";
    const WHY: &str = "while no server is reachable, the master's entries wait in its own log, and entries of the others are missing here";

    let revealed = Revealed::default();
    let mut connected = None;
    let mut failures = Vec::new();

    for server in &cluster.nats.servers {
        // With all servers the client would settle for the first that responds, and leave the
        // others untested.
        let mut alone = cluster.clone();
        alone.nats.servers = vec![server.clone()];
        alone.nats.timeout = alone.nats.timeout.min(SERVER_TIMEOUT);
        match thread.block_on(alone.connect("doctor", &revealed)) {
            Ok(connection) => {
                let info = connection.context.client().server_info();
                let user = cluster.nats.user.as_deref();
                found.ok(format!(
                    "{server} is {}, version {}; connected{}",
                    info.server_name,
                    info.version,
                    user.map(|user| format!(" as {user}")).unwrap_or_default()
                ));
                connected = Some(connection);
            }
            // Reported below, because how bad it is depends on the other servers.
            Err(error) => failures.push(revealed.scrub(&error)),
        }
    }

    // One reachable server is enough.
    for failure in failures {
        if connected.is_some() {
            found.warn_because(failure, "the daemon uses the other servers meanwhile", FIX);
        } else {
            found.problem_because(failure, WHY, FIX);
        }
    }
    connected
}

fn report_stream(found: &mut Reporter<'_>, cluster: &Cluster, stream: &FoundStream) {
    let name = cluster.subjects.stream();
    let mut is_ok = true;

    // Named and never repaired: what the stream keeps may be the only copy that reaches a master
    // (docs/decisions/one-history.md).
    for difference in &stream.differences {
        let message = format!("the stream {name}: {difference}");
        match difference {
            // Larger entries are split, and this is large enough for most.
            Difference::MessageSize { found, .. } if *found >= MIB => {}
            difference if difference.is_unusable() => {
                is_ok = false;
                found.problem_because(
                    message,
                    "entries published to it do not reach the other masters, or may come from another master than their subject says",
                    format!("`nats stream edit {name}`, or remove the stream: the next daemon that connects creates it"),
                );
            }
            _ => {
                is_ok = false;
                found.warn_because(
                    message,
                    "an entry may not reach every master",
                    format!("`nats stream edit {name}`, or change `cluster` in each daemon's configuration"),
                );
            }
        }
    }

    // Only a warning: `cluster init` accepts a single server, and each daemon keeps its entries.
    if stream.servers < SERVERS_MIN {
        is_ok = false;
        found.warn_because(
            format!("the stream {name} is on {} of NATS's servers", stream.servers),
            "while its server is away, masters learn nothing of each other, and what it loses is gone from the stream",
            format!("three servers, and `nats stream edit {name} --replicas 3`"),
        );
    }
    if !stream.servers_behind.is_empty() {
        is_ok = false;
        found.warn_because(
            format!(
                "the stream {name}: {} away or behind",
                stream.servers_behind.join(", ")
            ),
            "if another server is lost, messages may be lost with it",
            "start these servers; if they run, their logs show the cause",
        );
    }

    if is_ok {
        let messages = stream.last.saturating_add(1).saturating_sub(stream.first);
        found.ok(format!(
            "the stream {name} is on {} servers and has {messages} messages",
            stream.servers
        ));
    }
}

fn report_user(
    found: &mut Reporter<'_>,
    thread: &ClientThread,
    cluster: &Cluster,
    connection: &Connection,
) {
    const FIX: &str = "the user of this master as `saltcellar cluster init` makes it, in the servers' configuration";

    // The server is asked and nothing is tried, because a try that succeeds would change the
    // stream.
    let granted = match thread.block_on(cluster.granted(connection)) {
        Ok(granted) => granted,
        Err(error) => {
            let message = format!(
                "not checked: the server does not say what the user may do, so it may be able to publish for other masters: {error}"
            );
            return found.add(CheckResult::Skipped, message);
        }
    };

    let (subjects, name) = (&cluster.subjects, &cluster.name);
    let mut is_ok = true;

    if let Some(subject) = granted.subject_of_another(subjects, name) {
        is_ok = false;
        found.problem_because(
            format!("the user may publish to {subject}, which is not of this master"),
            "whoever has its password can store entries as another master, and confirm returns for its minions",
            FIX,
        );
    }
    if let Some(call) = granted.dangerous_call(subjects) {
        is_ok = false;
        found.warn_because(
            format!("the user may make the request {call}"),
            "it can remove what other masters published, or have a message published for them",
            FIX,
        );
    }
    for missing in granted.missing(subjects, name) {
        is_ok = false;
        found.problem_because(
            format!("the user may not {missing}"),
            "the daemon needs it; without this right its requests end late and without a reason",
            FIX,
        );
    }

    if is_ok {
        found.ok(format!(
            "the user may publish as {} only, and cannot change the stream",
            name.as_str()
        ));
    }
}

/// What a monitoring port says of its server.
#[derive(Debug, Deserialize)]
struct Varz {
    #[serde(default)]
    server_name: String,
    #[serde(default)]
    jetstream: JetStream,
}

#[derive(Debug, Default, Deserialize)]
struct JetStream {
    config: Option<JetStreamConfig>,
}

#[derive(Debug, Deserialize)]
struct JetStreamConfig {
    #[serde(default)]
    sync_always: bool,
    /// Nanoseconds.
    #[serde(default)]
    sync_interval: u64,
}

/// What a server does with a message before it acknowledges it.
#[derive(Debug, PartialEq, Eq)]
enum Synced {
    Always,
    Every(Duration),
    NoJetStream,
}

impl Varz {
    fn synced(&self) -> Synced {
        match &self.jetstream.config {
            None => Synced::NoJetStream,
            Some(config) if config.sync_always => Synced::Always,
            Some(config) => Synced::Every(Duration::from_nanos(config.sync_interval)),
        }
    }
}

fn sync(found: &mut Reporter<'_>, config: &Config, nats: &Nats) {
    let monitors = &config.cluster.monitor;
    if monitors.is_empty() {
        let message = "not checked: it is unknown whether the servers acknowledge messages before they are on disk; name their monitoring \
                       ports in `cluster.monitor`";
        return found.add(CheckResult::Skipped, message);
    }

    for monitor in monitors {
        let varz = match ask(monitor, nats) {
            Ok(varz) => varz,
            Err(error) => {
                found.warn_because(
                    format!("{monitor} does not respond: {error}"),
                    "it is unknown whether the server acknowledges messages before they are on disk",
                    "start the server, or correct `cluster.monitor` or the option `http` of the server",
                );
                continue;
            }
        };

        let server = &varz.server_name;
        match varz.synced() {
            Synced::Always => {
                found.ok(format!(
                    "the server {server} syncs each message before it acknowledges it"
                ));
            }
            // Two minutes by default.
            Synced::Every(interval) => found.warn_because(
                format!(
                    "the server {server} acknowledges messages, and syncs them every {}",
                    interval.show().unwrap_or_default()
                ),
                "if most servers lose power together, messages are gone that every daemon counts as delivered",
                "`jetstream { sync_interval: always }` in the configuration of the server",
            ),
            Synced::NoJetStream => {
                found.problem(format!(
                    "JetStream is off on the server {server}, which stores no messages: enable `jetstream` in its configuration"
                ));
            }
        }
    }
}

fn ask(monitor: &str, nats: &Nats) -> Result<Varz, String> {
    // NATS does not redirect, so whatever does is no monitoring port.
    let mut config = Agent::config_builder()
        .max_redirects(0)
        .timeout_global(Some(MONITOR_TIMEOUT));

    if monitor.starts_with("https:") {
        // The same authorities as for the servers' port for clients.
        let roots = tls::authorities(&nats.tls)?;
        let roots = roots
            .iter()
            .map(|one| Certificate::from_der(one).to_owned());
        let tls = TlsConfig::builder()
            .root_certs(RootCerts::Specific(Arc::new(roots.collect())))
            .unversioned_rustls_crypto_provider(Arc::new(default_provider()));
        config = config.tls_config(tls.build());
    }

    let agent = config.build().new_agent();
    let mut answer = agent
        .get(format!("{monitor}/varz"))
        .call()
        .map_err(|error| error.to_string())?;
    // Any program may listen at this address, so the response is bounded.
    let bytes = answer
        .body_mut()
        .with_config()
        .limit(MONITOR_BYTES_MAX)
        .read_to_vec()
        .map_err(|error| error.to_string())?;
    serde_json::from_slice(&bytes).map_err(|error| format!("no response of a NATS server: {error}"))
}

fn name(found: &mut Findings, context: &MasterContext<'_>, _: &Uses) {
    let MasterContext { master, config, .. } = context;
    if config.cluster.nats.is_none() {
        return;
    }
    let mut found = found.of(NAME);

    if config.cluster.slot.is_none() {
        found.warn_because(
            "the daemon has no slot of job ids",
            "two masters can make the same job id, and all masters then show both jobs as a conflict",
            "`cluster: {slot: K/N}` in the configuration of each master's daemon, with another K on each, then restart it",
        );
    }

    // Without a name it is the id of the daemon's own master.
    let name = config
        .cluster
        .name
        .as_ref()
        .map_or_else(|| master_id(config), |name| name.as_str().to_owned());
    match master.cluster_id() {
        Some(cluster) if name != master.id && !master.id_is_of_function => found.problem_because(
            format!(
                "the name in the shared history is {name:?}, and the id of the master of the cluster {cluster} is {:?}",
                master.id
            ),
            "events of a cluster name their master by its id, so entries of one master seem to be of two",
            "no `cluster.name`, or the master's id",
        ),
        _ => found.ok(format!("this master is {name:?} in the shared history")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_says_when_it_syncs() {
        for (text, expected) in [
            (
                r#"{"server_name": "n1", "jetstream": {"config": {"sync_interval": 120000000000, "sync_always": true}}}"#,
                Synced::Always,
            ),
            (
                r#"{"jetstream": {"config": {"sync_interval": 10000000000}}}"#,
                Synced::Every(Duration::from_secs(10)),
            ),
            (r#"{"jetstream": {}}"#, Synced::NoJetStream),
            ("{}", Synced::NoJetStream),
        ] {
            let varz: Varz = serde_json::from_str(text).unwrap();
            assert_eq!(varz.synced(), expected, "{text}");
        }
    }
}
