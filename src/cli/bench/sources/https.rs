//! Minions at the HTTPS source, each with one keep-alive connection and one batch in flight.
//!
//! Signing a batch costs a minion half a millisecond, too much for two cores that simulate all minions of a daemon. So all
//! batches are signed for their connection before the clock starts. The keys and certificates are the public ones of the tests.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Barrier;
use std::time::{Duration, Instant};

use anyhow::{Context as _, anyhow, bail};
use rmpv::Value;

use super::super::Common;
use super::super::child::{Scratch, Subject, cpu_s};
use super::SourceRun;
use crate::api::client::Client;
use crate::api::https::client::{Address, Answer, Connection, Signer};
use crate::clock::{Clock, Micros};
use crate::model::stamped_jid;
use crate::wire::call::request_frame;
use crate::wire::msgpack::{Reader, Writer, as_bool};
use crate::wire::signed::{HELLO_PATH, frames};

const CA: &[u8] = include_bytes!("../../../../tests/data/https/ca.pem");
const CERTIFICATE: &[u8] = include_bytes!("../../../../tests/data/https/server.pem");
const KEY: &[u8] = include_bytes!("../../../../tests/data/https/server.key");
const MINION: &[u8] = include_bytes!("../../../../tests/data/https/minion-a.pem");
const MINION_PUBLIC: &[u8] = include_bytes!("../../../../tests/data/https/minion-a.pub");

/// Timeout until the listener is open.
const TIMEOUT: Duration = Duration::from_secs(30);

/// Interval of requests that keep a connection alive while batches are signed.
const KEEP_ALIVE: Duration = Duration::from_secs(5);

/// The time of the first job, in 2024, because jids of the future are rejected.
const JIDS_FROM: i64 = 1_732_150_800_000_000;

/// Starts a daemon, signs and sends all batches, and stops it.
pub(super) fn run(common: &Common, entries: u64, connections: u64, batch: u64) -> anyhow::Result<SourceRun> {
    let scratch = Scratch::new(common.dir.as_deref(), common.keep)?;
    let config = prepare(scratch.path(), connections)?;
    let subject = Subject::daemon(&scratch, Some(&config))?;
    let address =
        Address::new(wait_until_open(&subject)?, "localhost", CA).context("read the certificate")?;
    let signer = Signer::from_pem(MINION).context("read the minion's key")?;
    let minions = Minions {
        address,
        signer,
        entries,
        connections,
        batch,
        all_signed: Barrier::new(usize::try_from(connections)? + 1),
    };
    let (mut latencies, seconds, sender_cpu_s, daemon_cpu_s) = minions.send(|| subject.cpu_s())?;
    latencies.sort_unstable();
    let rss_peak_mb = subject.rss_peak_mb();
    subject.stop()?;
    Ok(SourceRun { seconds, latencies, daemon_cpu_s, sender_cpu_s, rss_peak_mb })
}

/// Writes the configuration and keys of a daemon that accepts these minions.
fn prepare(dir: &Path, connections: u64) -> anyhow::Result<std::path::PathBuf> {
    let put = |name: &str, bytes: &[u8]| {
        std::fs::write(dir.join(name), bytes).with_context(|| format!("write {name}"))
    };
    std::fs::create_dir_all(dir.join("pki/minions")).context("create the directory of keys")?;
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

/// Waits until the listener is open, and returns its address.
fn wait_until_open(subject: &Subject) -> anyhow::Result<SocketAddr> {
    let deadline = Instant::now() + TIMEOUT;
    loop {
        let status = Client::connect(subject.socket())?.call("status", Value::Map(vec![]))?;
        let source = &status["https"];
        if source["state"].as_str() == Some("open") {
            return source["listen"]
                .as_str()
                .unwrap_or_default()
                .parse()
                .context("read the address of the source");
        }
        if Instant::now() > deadline {
            bail!("wait for the HTTPS source: state {}", source["state"]);
        }
        std::thread::sleep(Duration::from_millis(5));
    }
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
    /// Returns latencies, elapsed seconds, and the CPU seconds of the sender and the daemon.
    fn send(
        &self,
        daemon_cpu: impl Fn() -> anyhow::Result<f64>,
    ) -> anyhow::Result<(Vec<u64>, f64, f64, f64)> {
        let own_cpu = || cpu_s(std::process::id());
        std::thread::scope(|scope| {
            let threads: Vec<_> = (0..self.connections)
                .map(|n| {
                    let named =
                        std::thread::Builder::new().name("sc-load-https".to_owned()).stack_size(256 * 1024);
                    named.spawn_scoped(scope, move || self.run_minion(n)).context("start a thread")
                })
                .collect::<Result<_, _>>()?;
            self.all_signed.wait();
            let (start, own, daemon) = (Instant::now(), own_cpu()?, daemon_cpu()?);
            let mut latencies = Vec::new();
            for thread in threads {
                latencies.extend(thread.join().map_err(|_| anyhow!("run the load: a thread panicked"))??);
            }
            let seconds = start.elapsed().as_secs_f64();
            Ok((latencies, seconds, own_cpu()? - own, daemon_cpu()? - daemon))
        })
    }

    fn run_minion(&self, n: u64) -> anyhow::Result<Vec<u64>> {
        let prepared = self.sign(n);
        // Reached even after a failure, because the other threads wait.
        self.all_signed.wait();
        let (mut connection, batches) = prepared?;
        let mut latencies = Vec::with_capacity(batches.len());
        for batch in &batches {
            let start = Instant::now();
            let answer = connection.post(batch).context("send a batch")?;
            latencies.push(u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX));
            check(&answer)?;
        }
        Ok(latencies)
    }

    fn sign(&self, n: u64) -> anyhow::Result<(Connection, Vec<Vec<u8>>)> {
        let id = name(n);
        let mut connection = Connection::open(&self.address).context("connect")?;
        let sealed = |connection: &mut Connection, payload: &[u8]| {
            connection.sealed(&id, &self.signer, Clock::real().now(), payload).context("sign a batch")
        };
        // An authenticated connection gets a longer idle timeout.
        let first = sealed(&mut connection, &[])?;
        check(&connection.post(&first).context("send a first batch")?)?;
        let mut last_request = Instant::now();
        let mut batches = Vec::new();
        let mut at = n * self.batch;
        while at < self.entries {
            let count = self.batch.min(self.entries - at);
            let payload: Vec<u8> = (at..at + count).flat_map(|entry| returned(&id, entry)).collect();
            batches.push(sealed(&mut connection, &payload)?);
            at += self.connections * self.batch;
            if last_request.elapsed() > KEEP_ALIVE {
                connection.request("GET", HELLO_PATH, &[]).context("keep the connection alive")?;
                last_request = Instant::now();
            }
        }
        Ok((connection, batches))
    }
}

/// A return of 1.2 KB by `state.apply`, with a new jid.
fn returned(id: &str, entry: u64) -> Vec<u8> {
    let mut w = Writer::new();
    w.map(1).str("load").map(7);
    let jid = stamped_jid(Micros(JIDS_FROM.saturating_add_unsigned(entry)));
    w.str("id").str(id).str("jid").str(&jid);
    w.str("fun").str("state.apply").str("fun_args").array(0).str("retcode").int(0).str("success").bool(true);
    w.str("return").map(4);
    for state in 0..4 {
        let name = format!("file_|-/etc/app/{entry}-{state}.conf_|-/etc/app/{entry}-{state}.conf_|-managed");
        w.str(&name)
            .map(5)
            .str("comment")
            .str("File /etc/app is in the correct state")
            .str("name")
            .str(&name);
        w.str("changes")
            .map(0)
            .str("result")
            .bool(true)
            .str("duration")
            .int(i64::try_from(entry % 97).unwrap_or(0));
    }
    request_frame(entry, "returner", &w.into_bytes())
}

/// Fails unless every call of a batch was stored.
fn check(answer: &Answer) -> anyhow::Result<()> {
    for frame in frames(&answer.body) {
        let mut reader = Reader::new(frame.context("read an answer")?);
        let good =
            reader.array().and_then(|_| reader.value()).and_then(|_| reader.value()).ok().and_then(as_bool);
        if good != Some(true) {
            bail!("store a batch: {}", String::from_utf8_lossy(&answer.body));
        }
    }
    if answer.status == 200 { Ok(()) } else { bail!("store a batch: HTTP status {}", answer.status) }
}
