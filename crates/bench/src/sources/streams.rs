//! Sources without responses: a bus, and the ZeroMQ PULL socket. This process is their peer, and
//! writes as fast as they read, or onto a bus at a rate.

use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use saltcellar::base::connect;
use saltcellar::base::metrics::names;
use saltcellar::wire::zmtp::{SocketType, greeting, put_message, ready};
use saltcellar_testkit::bus::{FakeBus, put_frame};
use saltcellar_testkit::load::template::{Encoding, EventGenerator};
use saltcellar_testkit::usage::{Durations, own_cpu_s};
use tempfile::TempDir;

use super::source::{Args, BenchSource, PROGRESS_TIMEOUT, SourceRun, wait_for_status};
use crate::calls::Daemon;
use crate::child::{Subject, TIMEOUT};

const WRITE_BYTES: usize = 256 * 1024;

/// Starts a daemon, sends all events, and waits until they are stored.
pub(crate) fn run(
    args: &Args,
    program: &Path,
    scratch: &TempDir,
    source: BenchSource,
    entries: u64,
) -> anyhow::Result<(Subject, SourceRun)> {
    let (config, path) = (
        scratch.path().join("sources.yaml"),
        scratch.path().join("source"),
    );

    let is_bus = source == BenchSource::Bus;

    let bus = is_bus
        .then(|| FakeBus::listen(&path))
        .transpose()
        .context("listen as a bus")?;

    let text = if is_bus {
        format!("bus: [\"{}\"]\n", path.display())
    } else {
        format!("zeromq: {{pull: \"ipc://{}\"}}\n", path.display())
    };

    std::fs::write(&config, text).context("write a configuration")?;
    let subject = Subject::daemon(program, scratch, Some(&config))?;

    // It listens on its own socket before it opens the other sockets, and responds after that.
    Daemon::connect(&subject.socket, TIMEOUT)?.status()?;

    // The clock starts when the source is connected.
    let peer = match bus {
        Some(bus) => bus.subscriber().context("wait for the bus source")?,
        None => push(&path)?,
    };

    // The same events as over the local socket.
    let generator = args.load().generator(Encoding::Message);

    let start = Instant::now();
    let own = own_cpu_s()?;
    let cpu_s_before = subject.process.cpu_s()?;
    let latencies = match args.rate {
        Some(rate) if is_bus => send_paced(&peer, &generator, entries, rate)?,
        _ => {
            send(&peer, is_bus, &generator, entries)?;
            Durations::default()
        }
    };
    let sender_cpu_s = own_cpu_s()? - own;

    // Without responses, only the daemon's counter shows that all events are stored.
    wait_for_status(&subject, |status| {
        (
            status
                .counters
                .get(names::entries_stored)
                .copied()
                .unwrap_or(0),
            entries,
        )
    })?;

    let seconds = start.elapsed().as_secs_f64();

    Ok((
        subject,
        SourceRun {
            seconds,
            latencies,
            sender_cpu_s,
            cpu_s_before,
            peer: Some(peer),
        },
    ))
}

fn push(path: &Path) -> anyhow::Result<UnixStream> {
    let mut peer = connect::unix(path, PROGRESS_TIMEOUT).context("connect to the PULL")?;
    peer.set_read_timeout(Some(PROGRESS_TIMEOUT))
        .context("set a timeout")?;

    peer.write_all(&greeting()).context("greet the PULL")?;
    peer.write_all(&ready(SocketType::Push))
        .context("greet the PULL")?;
    // Its greeting has a fixed size, and nothing in it matters here.
    let theirs = greeting().len() + ready(SocketType::Pull).len();
    peer.read_exact(&mut vec![0; theirs])
        .context("read the greeting of the PULL")?;
    Ok(peer)
}

fn send(
    mut peer: &UnixStream,
    is_bus: bool,
    generator: &EventGenerator,
    entries: u64,
) -> anyhow::Result<()> {
    let (mut out, mut frame, mut message) =
        (Vec::with_capacity(2 * WRITE_BYTES), Vec::new(), Vec::new());

    for n in 0..entries {
        message.clear();

        generator.write(n, &mut message);

        if is_bus {
            put_sized_frame(&mut out, &mut frame, &message)?;
        } else {
            put_message(&mut out, &[&message]);
        }

        // Large writes, because the sender must not become the bottleneck.
        if out.len() >= WRITE_BYTES || n + 1 == entries {
            peer.write_all(&out).context("send")?;
            out.clear();
        }
    }
    Ok(())
}

/// Sends each event when it is due and in a separate write, as Salt's publisher does, and returns
/// how long each write took.
fn send_paced(
    mut peer: &UnixStream,
    generator: &EventGenerator,
    entries: u64,
    rate: f64,
) -> anyhow::Result<Durations> {
    let (mut out, mut frame, mut message) = (Vec::new(), Vec::new(), Vec::new());
    let mut writes = Vec::new();
    let start = Instant::now();

    for n in 0..entries {
        message.clear();
        generator.write(n, &mut message);
        out.clear();
        put_sized_frame(&mut out, &mut frame, &message)?;

        let due = Duration::from_secs_f64(n as f64 / rate);
        std::thread::sleep(due.saturating_sub(start.elapsed()));

        let began = Instant::now();
        peer.write_all(&out).context("send")?;
        writes.push(began.elapsed());
    }
    Ok(writes.into_iter().collect())
}

/// Appends the frame of a message with its length before it. `frame` is reused memory.
fn put_sized_frame(out: &mut Vec<u8>, frame: &mut Vec<u8>, message: &[u8]) -> anyhow::Result<()> {
    frame.clear();
    put_frame(frame, message);
    let len = u32::try_from(frame.len()).context("fit a message into a frame")?;
    out.extend_from_slice(&len.to_be_bytes());
    out.extend_from_slice(frame);
    Ok(())
}
