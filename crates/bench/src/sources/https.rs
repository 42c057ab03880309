//! Minions at the minion listener, each with one keep-alive connection and one batch in flight.
//!
//! Signing a batch costs a minion half a millisecond, too much for two cores that simulate all
//! minions of a daemon. Therefore all batches are signed for their connection before the clock
//! starts. The keys and certificates are the public test keys and certificates.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Barrier;
use std::time::{Duration, Instant};

use anyhow::{Context as _, anyhow, bail};
use saltcellar::base::clock::{Clock, Micros};
use saltcellar::model::stamped_jid;
use saltcellar::wire::call::request_frame;
use saltcellar::wire::msgpack::{Reader, as_bool};
use saltcellar::wire::signed::{HELLO_PATH, frames};
use saltcellar_testkit::load::packed;
use saltcellar_testkit::minion::{Address, HttpsAnswer, HttpsConnection, Signer};
use saltcellar_testkit::usage::own_cpu_s;
use serde_json::{Map, json};
use tempfile::TempDir;

use super::source::{SourceRun, wait_for_status};
use crate::calls::Listener;
use crate::child::Subject;

const CA: &[u8] = include_bytes!("../../../../salt/tests/data/https/ca.pem");
const CERTIFICATE: &[u8] = include_bytes!("../../../../salt/tests/data/https/server.pem");
const KEY: &[u8] = include_bytes!("../../../../salt/tests/data/https/server.key");
const MINION: &[u8] = include_bytes!("../../../../salt/tests/data/https/minion-a.pem");
const MINION_PUBLIC: &[u8] = include_bytes!("../../../../salt/tests/data/https/minion-a.pub");

/// Interval of requests that keep a connection alive while batches are signed.
const KEEP_ALIVE: Duration = Duration::from_secs(5);

/// The time of the first job, in 2024, because jids of the future are rejected.
const JIDS_FROM: i64 = 1_732_150_800_000_000;

/// Starts a daemon, signs and sends all batches.
pub(crate) fn run(
    program: &Path,
    scratch: &TempDir,
    entries: u64,
    connections: u64,
    batch: u64,
) -> anyhow::Result<(Subject, SourceRun)> {
    let config = prepare(scratch.path(), connections)?;
    let subject = Subject::daemon(program, scratch, Some(&config))?;

    let mut open = None;

    // The daemon chooses the port, and opens it after its own socket.
    wait_for_status(&subject, |status| {
        open = status.https.and_then(Listener::open);
        (u64::from(open.is_some()), 1)
    })?;

    let address = open
        .unwrap_or_default()
        .parse::<SocketAddr>()
        .context("read the address of the source")?;

    let address = Address::new(address, "localhost", CA).context("read the certificate")?;
    let signer = Signer::from_pem(MINION).context("read the minion's key")?;

    let all_signed = Barrier::new(usize::try_from(connections)? + 1);

    let minions = Minions {
        address,
        signer,
        entries,
        connections,
        batch,
        all_signed,
    };

    let run = minions.send(&subject)?;
    Ok((subject, run))
}

/// Writes the configuration and keys of a daemon that accepts these minions.
fn prepare(dir: &Path, connections: u64) -> anyhow::Result<std::path::PathBuf> {
    let put = |name: &str, bytes: &[u8]| {
        std::fs::write(dir.join(name), bytes).with_context(|| format!("write {name}"))
    };

    std::fs::create_dir_all(dir.join("pki/minions")).context("create the directory of keys")?;
    // One key for all: a minion is known by the name of the file.
    for n in 0..connections {
        put(&format!("pki/minions/{}", name(n)), MINION_PUBLIC)?;
    }

    put("tls.pem", CERTIFICATE)?;
    put("tls.key", KEY)?;

    let shown = dir.display();
    let text = format!(
        "https: {{listen: \"127.0.0.1:0\", certificate: \"{shown}/tls.pem\", key: \"{shown}/tls.key\", pki_dir: \"{shown}/pki\"}}\n"
    );

    put("https.yaml", text.as_bytes())?;
    Ok(dir.join("https.yaml"))
}

fn name(n: u64) -> String {
    format!("minion-{n}")
}

struct Minions {
    address: Address,
    signer: Signer,
    entries: u64,
    connections: u64,
    batch: u64,
    /// Reached by all threads once their batches are signed.
    all_signed: Barrier,
}

impl Minions {
    fn send(&self, subject: &Subject) -> anyhow::Result<SourceRun> {
        std::thread::scope(|scope| {
            let threads: Vec<_> = (0..self.connections)
                .map(|n| scope.spawn(move || self.run_minion(n)))
                .collect();
            // The clock starts when the last batch is signed.
            self.all_signed.wait();

            let (start, own, cpu_s_before) =
                (Instant::now(), own_cpu_s()?, subject.process.cpu_s()?);

            let mut latencies = Vec::new();
            for thread in threads {
                latencies.extend(
                    thread
                        .join()
                        .map_err(|_| anyhow!("run the load: a thread panicked"))??,
                );
            }

            let seconds = start.elapsed().as_secs_f64();
            let latencies = latencies.into_iter().collect();
            let sender_cpu_s = own_cpu_s()? - own;

            Ok(SourceRun {
                seconds,
                latencies,
                sender_cpu_s,
                cpu_s_before,
                peer: None,
            })
        })
    }

    fn run_minion(&self, n: u64) -> anyhow::Result<Vec<Duration>> {
        let prepared = self.sign(n);

        // Reached even after a failure, because the other threads wait.
        self.all_signed.wait();
        let (mut connection, batches) = prepared?;

        let mut latencies = Vec::with_capacity(batches.len());

        for batch in &batches {
            let start = Instant::now();
            let answer = connection.post(batch).context("send a batch")?;
            latencies.push(start.elapsed());
            check(&answer)?;
        }
        Ok(latencies)
    }

    fn sign(&self, n: u64) -> anyhow::Result<(HttpsConnection, Vec<Vec<u8>>)> {
        let id = name(n);
        let mut connection = HttpsConnection::open(&self.address).context("connect")?;

        let sealed = |connection: &mut HttpsConnection, payload: &[u8]| {
            connection
                .sealed(&id, &self.signer, Clock::real().now(), payload)
                .context("sign a batch")
        };

        // An authenticated connection gets a longer idle timeout.
        let first = sealed(&mut connection, &[])?;
        check(&connection.post(&first).context("send a first batch")?)?;

        let mut last_request = Instant::now();
        let mut batches = Vec::new();
        let mut at = n * self.batch;

        while at < self.entries {
            let count = self.batch.min(self.entries - at);
            let payload: Vec<u8> = (at..at + count)
                .flat_map(|entry| returned(&id, entry))
                .collect();

            batches.push(sealed(&mut connection, &payload)?);
            // Entries are dealt out to the minions in turn.
            at += self.connections * self.batch;

            if last_request.elapsed() > KEEP_ALIVE {
                connection
                    .request("GET", HELLO_PATH, &[])
                    .context("keep the connection alive")?;
                last_request = Instant::now();
            }
        }

        Ok((connection, batches))
    }
}

/// A return of 1.2 KB by `state.apply`, with a new jid.
fn returned(id: &str, entry: u64) -> Vec<u8> {
    let state = |n| {
        let name =
            format!("file_|-/etc/app/{entry}-{n}.conf_|-/etc/app/{entry}-{n}.conf_|-managed");
        let comment = "File /etc/app is in the correct state";
        let result = json!({ "comment": comment, "name": name, "changes": {}, "result": true, "duration": entry % 97 });
        (name, result)
    };

    let load = json!({
        "id": id, "jid": stamped_jid(Micros(JIDS_FROM.saturating_add_unsigned(entry))), "fun": "state.apply",
        "fun_args": [], "retcode": 0, "success": true, "return": (0..4).map(state).collect::<Map<_, _>>(),
    });
    request_frame(entry, "returner", &packed(&json!({ "load": load })))
}

/// Fails unless every call of a batch was stored.
fn check(answer: &HttpsAnswer) -> anyhow::Result<()> {
    for frame in frames(&answer.body) {
        let mut reader = Reader::new(frame.context("read a response")?);

        // The second element says whether the call succeeded.
        let good = reader
            .array()
            .and_then(|_| reader.value())
            .and_then(|_| reader.value())
            .ok()
            .and_then(as_bool);

        if good != Some(true) {
            bail!("store a batch: {}", String::from_utf8_lossy(&answer.body));
        }
    }

    if answer.status == 200 {
        Ok(())
    } else {
        bail!("store a batch: HTTP status {}", answer.status)
    }
}
