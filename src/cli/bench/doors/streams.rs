//! The doors at which nobody waits for an answer: a bus, and the ZeroMQ PULL. This process plays the other side, and writes as
//! fast as the door reads.

use std::io::{Read as _, Write as _};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use rmpv::Value;

use super::super::child::{Scratch, Subject, cpu_s};
use super::super::template::{Jobs, Pool, Wrap};
use super::super::{Common, load};
use super::Run;
use crate::api::client::Client;
use crate::wire::msgpack::Writer;
use crate::wire::zmtp::{SocketType, greeting, put_message, ready};

/// How long the door may take to open, and how long it may store nothing more.
const PATIENCE: Duration = Duration::from_secs(60);

/// Bytes that are written at once.
const WRITE_BYTES: usize = 256 * 1024;

/// Which of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stream {
    Bus,
    Pull,
}

/// Starts a daemon, sends, waits until everything is stored, stops it.
pub(super) fn run(common: &Common, stream: Stream, entries: u64) -> anyhow::Result<Run> {
    let scratch = Scratch::new(common.dir.as_deref(), common.keep)?;
    let (config, place) = (scratch.path().join("doors.yaml"), scratch.path().join("door"));
    let (listener, text) = match stream {
        Stream::Bus => {
            let listener = UnixListener::bind(&place).context("listen as a bus")?;
            (Some(listener), format!("bus: [\"{}\"]\n", place.display()))
        }
        Stream::Pull => (None, format!("zeromq: {{pull: \"ipc://{}\"}}\n", place.display())),
    };
    std::fs::write(&config, text).context("write a configuration")?;
    let subject = Subject::daemon(&scratch, Some(&config))?;
    let peer = match listener {
        Some(listener) => listener.accept().context("wait for the bus door")?.0,
        None => push(&place)?,
    };
    let pool = Pool::new(&load::mix(common.seed, 1.0), Wrap::Message, Jobs::Interleaved, common.seed);
    let own_cpu = || cpu_s(std::process::id());
    let (start, own, daemon) = (Instant::now(), own_cpu()?, subject.cpu_s()?);
    send(&peer, stream, &pool, entries)?;
    let sender_cpu_s = own_cpu()? - own;
    wait_for(&subject, entries)?;
    let seconds = start.elapsed().as_secs_f64();
    subject.wait_until_idle()?;
    let daemon_cpu_s = subject.cpu_s()? - daemon;
    let rss_peak_mb = subject.rss_peak_mb();
    let words = subject.words();
    anyhow::ensure!(words.is_empty(), "measure a healthy daemon; it said: {words}");
    drop(peer);
    subject.stop()?;
    Ok(Run { seconds, latencies: Vec::new(), daemon_cpu_s, sender_cpu_s, rss_peak_mb })
}

/// Connects as a PUSH.
fn push(place: &Path) -> anyhow::Result<UnixStream> {
    let mut peer = UnixStream::connect(place).context("connect to the PULL")?;
    peer.set_read_timeout(Some(PATIENCE)).context("set a timeout")?;
    peer.write_all(&greeting()).context("greet the PULL")?;
    peer.write_all(&ready(SocketType::Push)).context("greet the PULL")?;
    let theirs = greeting().len() + ready(SocketType::Pull).len();
    peer.read_exact(&mut vec![0; theirs]).context("be greeted by the PULL")?;
    Ok(peer)
}

fn send(mut peer: &UnixStream, stream: Stream, pool: &Pool, entries: u64) -> anyhow::Result<()> {
    let mut head = Writer::new();
    head.map(2).str("head").map(0).str("body");
    let head = head.into_bytes();
    let (mut out, mut message) = (Vec::with_capacity(2 * WRITE_BYTES), Vec::new());
    for n in 0..entries {
        message.clear();
        pool.write(n, &mut message);
        match stream {
            Stream::Bus => {
                let len = u32::try_from(message.len()).context("make a message that fits a frame")?;
                // A bin with its length in four bytes, as Salt writes longer ones.
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

/// Waits until so many entries are stored.
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
        if since.elapsed() > PATIENCE {
            bail!("wait for {entries} entries: {stored} are stored, and no more come");
        }
        std::thread::sleep(Duration::from_millis(2));
    }
}
