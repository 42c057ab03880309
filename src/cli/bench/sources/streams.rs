//! The sources without answers: a bus, and the ZeroMQ PULL socket. This process is their peer, and writes as fast as they read.

use std::io::{Read as _, Write as _};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use rmpv::Value;

use super::super::child::{Scratch, Subject, cpu_s};
use super::super::load::template::{Encoding, EventGenerator, Jobs};
use super::super::{Common, load};
use super::SourceRun;
use crate::api::client::Client;
use crate::wire::msgpack::Writer;
use crate::wire::zmtp::{SocketType, greeting, put_message, ready};

/// Timeout until the listener is open, and until the store makes progress.
const TIMEOUT: Duration = Duration::from_secs(60);

/// Bytes of one write.
const WRITE_BYTES: usize = 256 * 1024;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stream {
    Bus,
    Pull,
}

/// Starts a daemon, sends all events, waits until they are stored, and stops it.
pub(super) fn run(common: &Common, stream: Stream, entries: u64) -> anyhow::Result<SourceRun> {
    let scratch = Scratch::new(common.dir.as_deref(), common.keep)?;
    let (config, path) = (scratch.path().join("sources.yaml"), scratch.path().join("source"));
    let (listener, text) = match stream {
        Stream::Bus => {
            let listener = UnixListener::bind(&path).context("listen as a bus")?;
            (Some(listener), format!("bus: [\"{}\"]\n", path.display()))
        }
        Stream::Pull => (None, format!("zeromq: {{pull: \"ipc://{}\"}}\n", path.display())),
    };
    std::fs::write(&config, text).context("write a configuration")?;
    let subject = Subject::daemon(&scratch, Some(&config))?;
    let peer = match listener {
        Some(listener) => listener.accept().context("wait for the bus source")?.0,
        None => push(&path)?,
    };
    let generator =
        EventGenerator::new(&load::mix(common.seed, 1.0), Encoding::Message, Jobs::Interleaved, common.seed);
    let own_cpu = || cpu_s(std::process::id());
    let (start, own, daemon) = (Instant::now(), own_cpu()?, subject.cpu_s()?);
    send(&peer, stream, &generator, entries)?;
    let sender_cpu_s = own_cpu()? - own;
    wait_for(&subject, entries)?;
    let seconds = start.elapsed().as_secs_f64();
    subject.wait_until_idle()?;
    let daemon_cpu_s = subject.cpu_s()? - daemon;
    let rss_peak_mb = subject.rss_peak_mb();
    let log = subject.log_text();
    anyhow::ensure!(log.is_empty(), "check the daemon: unexpected log output: {log}");
    drop(peer);
    subject.stop()?;
    Ok(SourceRun { seconds, latencies: Vec::new(), daemon_cpu_s, sender_cpu_s, rss_peak_mb })
}

/// Connects as a PUSH.
fn push(path: &Path) -> anyhow::Result<UnixStream> {
    let mut peer = UnixStream::connect(path).context("connect to the PULL")?;
    peer.set_read_timeout(Some(TIMEOUT)).context("set a timeout")?;
    peer.write_all(&greeting()).context("greet the PULL")?;
    peer.write_all(&ready(SocketType::Push)).context("greet the PULL")?;
    let theirs = greeting().len() + ready(SocketType::Pull).len();
    peer.read_exact(&mut vec![0; theirs]).context("read the greeting of the PULL")?;
    Ok(peer)
}

fn send(
    mut peer: &UnixStream,
    stream: Stream,
    generator: &EventGenerator,
    entries: u64,
) -> anyhow::Result<()> {
    let mut head = Writer::new();
    head.map(2).str("head").map(0).str("body");
    let head = head.into_bytes();
    let (mut out, mut message) = (Vec::with_capacity(2 * WRITE_BYTES), Vec::new());
    for n in 0..entries {
        message.clear();
        generator.write(n, &mut message);
        match stream {
            Stream::Bus => {
                let len = u32::try_from(message.len()).context("fit a message into a frame")?;
                // A bin32, as Salt encodes long bodies.
                let frame = u32::try_from(head.len() + 5)? + len;
                out.extend_from_slice(&frame.to_be_bytes());
                out.extend_from_slice(&head);
                out.push(0xc6);
                out.extend_from_slice(&len.to_be_bytes());
                out.extend_from_slice(&message);
            }
            Stream::Pull => put_message(&mut out, &[&message]),
        }
        if out.len() >= WRITE_BYTES || n + 1 == entries {
            peer.write_all(&out).context("send")?;
            out.clear();
        }
    }
    Ok(())
}

/// Waits until this many entries are stored.
fn wait_for(subject: &Subject, entries: u64) -> anyhow::Result<()> {
    let mut client = Client::connect(subject.socket())?;
    let (mut seen, mut since) = (0, Instant::now());
    loop {
        let status = client.call("status", Value::Map(vec![]))?;
        let stored = status["counters"]["entries_stored"].as_u64().unwrap_or(0);
        if stored >= entries {
            return Ok(());
        }
        if stored > seen {
            (seen, since) = (stored, Instant::now());
        }
        if since.elapsed() > TIMEOUT {
            bail!("wait for {entries} entries: no progress after {stored}");
        }
        std::thread::sleep(Duration::from_millis(2));
    }
}
