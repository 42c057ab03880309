//! The load generator: several connections, each with a window of batches in flight. Latency is the
//! time from a batch's due time to its response.
//!
//! Without a rate the loop is closed: a connection sends while fewer than [`LoadSpec::in_flight`]
//! of its batches are unanswered. At saturation, latency is then the number in flight divided by
//! throughput (Little's law), so smaller windows have lower latency at the same throughput. With a
//! rate, batches are due by the clock, and late batches count from their due time.

use std::io::{BufReader, Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, anyhow, bail};

use super::template::{Encoding, EventGenerator};
use crate::usage::{Durations, own_cpu_s};
use saltcellar_wire::call::preamble;
use saltcellar_wire::msgpack::{Reader, Writer, as_bool, as_int, as_text, get};

const TIMEOUT: Duration = Duration::from_secs(120);

/// A load: which entries, and how they are sent.
pub struct LoadSpec<'a> {
    /// Makes each event from its index.
    pub generator: &'a EventGenerator,
    /// Index of the first event.
    pub first: u64,
    /// Number of events, over all connections.
    pub entries: u64,
    /// Number of connections, each with a separate sender and receiver.
    pub connections: u64,
    /// Batches of a connection that may wait for their responses.
    pub in_flight: usize,
    /// Entries in a batch.
    pub batch: u64,
    /// Entries per second; unlimited if `None`.
    pub rate: Option<f64>,
}

impl<'a> LoadSpec<'a> {
    /// Single events, one at a time on one connection.
    pub fn new(generator: &'a EventGenerator, entries: u64) -> Self {
        Self {
            generator,
            first: 0,
            entries,
            connections: 1,
            in_flight: 1,
            batch: 1,
            rate: None,
        }
    }
}

/// What a load took.
pub struct LoadResult {
    /// From the first batch to the last response.
    pub seconds: f64,
    /// Tags and bodies as sent, without their framing.
    pub raw_bytes: u64,
    /// Of each batch.
    pub latencies: Durations,
    /// CPU seconds of the generator.
    pub own_cpu_s: f64,
}

/// One connection, shared by its sender and its receiver.
struct LoadConnection<'a> {
    spec: &'a LoadSpec<'a>,
    number: u64,
    start: Instant,
    /// Due time of each batch, in nanoseconds since the start.
    due: Vec<AtomicU64>,
    last: AtomicU64,
    failed: &'a AtomicBool,
}

impl LoadConnection<'_> {
    /// First event and number of events of batch `id`.
    fn batch(&self, id: u64) -> (u64, u64) {
        let at = (id * self.spec.connections + self.number) * self.spec.batch;
        (
            self.spec.first + at,
            self.spec.batch.min(self.spec.entries.saturating_sub(at)),
        )
    }

    fn now(&self) -> u64 {
        u64::try_from(self.start.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }

    fn send(
        &self,
        mut to: &UnixStream,
        permits: &crossbeam_channel::Sender<()>,
    ) -> anyhow::Result<u64> {
        let mut frame = preamble().to_vec();
        let mut raw_bytes = 0;

        for (id, due) in (0..).zip(&self.due) {
            let (first, count) = self.batch(id);
            let begin = frame.len();
            frame.extend_from_slice(&[0; 4]);
            raw_bytes += self.write_request(id, first, count, &mut frame);

            let len = u32::try_from(frame.len() - begin - 4).context("fit a batch into a frame")?;

            // The length precedes the request, but is known only now.
            for (target, byte) in frame.iter_mut().skip(begin).zip(len.to_be_bytes()) {
                *target = byte;
            }

            // With a rate a batch is due by the clock, even if it is sent late.
            let at = self.spec.rate.map(|rate| {
                #[expect(
                    clippy::cast_possible_truncation,
                    clippy::cast_sign_loss,
                    reason = "nanoseconds"
                )]
                let at = ((first - self.spec.first) as f64 / rate * 1e9) as u64;
                std::thread::sleep(Duration::from_nanos(at.saturating_sub(self.now())));
                at
            });

            // Waits while the window is full.
            if permits.send_timeout((), TIMEOUT).is_err() {
                bail!("wait for a response");
            }

            // Sending on would only delay the report of the first error.
            if self.failed.load(Ordering::Relaxed) {
                bail!("another connection failed");
            }

            // Before the write, because the receiver must find it.
            due.store(at.unwrap_or_else(|| self.now()), Ordering::Release);
            to.write_all(&frame).context("send a batch")?;
            frame.clear();
        }

        Ok(raw_bytes)
    }

    fn write_request(&self, id: u64, first: u64, count: u64, frame: &mut Vec<u8>) -> u64 {
        let mut w = Writer::new();
        match self.spec.generator.encoding {
            Encoding::EventReturn => {
                w.array(3).uint(id).str("event_return").map(1).str("events");
                w.array(usize::try_from(count).unwrap_or(0));
            }
            Encoding::Returner => {
                w.array(3).uint(id).str("returner").map(1).str("load");
            }
            // No envelope, only a number that the baseline returns.
            Encoding::Bare | Encoding::Message => {
                w.raw(&id.to_be_bytes());
            }
        }

        frame.extend_from_slice(&w.into_bytes());
        (first..first + count)
            .map(|n| self.spec.generator.write(n, frame) as u64)
            .sum()
    }

    fn receive(
        &self,
        from: &UnixStream,
        permits: &crossbeam_channel::Receiver<()>,
        answered: &AtomicU64,
    ) -> anyhow::Result<Vec<Duration>> {
        // A daemon that stops answering must end the run, not block it.
        from.set_read_timeout(Some(TIMEOUT))
            .context("set a timeout")?;
        let mut from = BufReader::with_capacity(64 * 1024, from);
        let mut latencies = Vec::with_capacity(self.due.len());
        let mut payload = Vec::new();

        while latencies.len() < self.due.len() {
            let mut header = [0; 4];
            from.read_exact(&mut header)
                .context("wait for a response")?;
            payload.resize(u32::from_be_bytes(header) as usize, 0);
            from.read_exact(&mut payload).context("read a response")?;

            // Before parsing, which does not count.
            let now = self.now();

            let id = read_answer(&payload)?;
            let due = usize::try_from(id).ok().and_then(|id| self.due.get(id));
            let due = due.with_context(|| format!("read a response: unknown request {id}"))?;

            latencies.push(Duration::from_nanos(
                now.saturating_sub(due.load(Ordering::Acquire)),
            ));

            answered.fetch_add(self.batch(id).1, Ordering::Relaxed);
            self.last.fetch_max(now, Ordering::Relaxed);
            // Makes room in the window for the sender.
            let _ = permits.try_recv();
        }

        Ok(latencies)
    }
}

fn read_answer(payload: &[u8]) -> anyhow::Result<u64> {
    let mut reader = Reader::new(payload);
    let invalid = |_| anyhow!("the response is not [id, good, value]");
    reader.array().map_err(invalid)?;
    let id = as_int(reader.value().map_err(invalid)?);
    let good = as_bool(reader.value().map_err(invalid)?);
    let value = reader.value().map_err(invalid)?;

    if good != Some(true) {
        let text = |key| get(value, key).and_then(as_text).unwrap_or("?").to_owned();
        bail!("store a batch: {} ({})", text("message"), text("code"));
    }

    id.and_then(|id| u64::try_from(id).ok())
        .context("read the id of a response")
}

/// Sends all events to a socket and waits for all responses. Calls `watch` several times per second
/// with the number of acknowledged entries and the elapsed seconds.
pub fn run_load(
    socket: &Path,
    spec: &LoadSpec<'_>,
    mut watch: impl FnMut(u64, f64) -> anyhow::Result<()>,
) -> anyhow::Result<LoadResult> {
    let failed = AtomicBool::new(false);
    let answered = AtomicU64::new(0);
    let batches = spec.entries.div_ceil(spec.batch);
    let connections = spec.connections.min(batches).max(1);
    let spec = &LoadSpec {
        connections,
        ..*spec
    };

    // Before the threads start, to include their work.
    let cpu_s = own_cpu_s()?;
    let start = Instant::now();

    let connect = |number| {
        // Batches go to the connections in turn, so the first connections may get one more.
        let own = (batches + connections - 1).saturating_sub(number) / connections;
        let due = (0..own).map(|_| AtomicU64::new(0)).collect();

        let stream = UnixStream::connect(socket)?;
        Ok((
            stream,
            LoadConnection {
                spec,
                number,
                start,
                due,
                last: AtomicU64::new(0),
                failed: &failed,
            },
        ))
    };

    let connections = (0..connections)
        .map(connect)
        .collect::<std::io::Result<Vec<_>>>();
    let connections = connections.with_context(|| format!("connect to {}", socket.display()))?;

    std::thread::scope(|scope| {
        let mut threads = Vec::new();
        for (stream, connection) in &connections {
            let (permits, returned_permits) = crossbeam_channel::bounded(spec.in_flight.max(1));
            let answered = &answered;

            let named = |name: &str| std::thread::Builder::new().name(format!("sc-load-{name}"));

            // Two threads a connection: a sender that also read would wait for the daemon in
            // between.
            let sender = named("send").spawn_scoped(scope, move || {
                connection
                    .send(stream, &permits)
                    .inspect_err(|_| abort(connection, stream))
            });
            let receiver = named("wait").spawn_scoped(scope, move || {
                connection
                    .receive(stream, &returned_permits, answered)
                    .inspect_err(|_| abort(connection, stream))
            });

            threads.push((
                sender.context("start a thread")?,
                receiver.context("start a thread")?,
            ));
        }

        while !threads.iter().all(|(_, receiver)| receiver.is_finished()) {
            // Often at first, because a short load ends within milliseconds.
            std::thread::sleep(Duration::from_millis(if start.elapsed().as_secs() < 1 {
                2
            } else {
                20
            }));
            watch(
                answered.load(Ordering::Relaxed),
                start.elapsed().as_secs_f64(),
            )?;
        }

        let mut latencies = Vec::new();
        let mut raw_bytes = 0;
        let mut first_error = None;
        for (sender, receiver) in threads {
            let panicked = |_| anyhow!("run the load: a thread panicked");

            // The receiver's error is the cause of the sender's.
            match (
                receiver.join().map_err(panicked)?,
                sender.join().map_err(panicked)?,
            ) {
                (Ok(received), Ok(sent)) => {
                    latencies.extend(received);
                    raw_bytes += sent;
                }
                (Err(error), _) | (_, Err(error)) => first_error = first_error.or(Some(error)),
            }
        }

        if let Some(error) = first_error {
            return Err(error);
        }

        // Measured by the threads, because this thread polls only from time to time.
        let last = connections
            .iter()
            .map(|(_, connection)| connection.last.load(Ordering::Relaxed))
            .max();

        Ok(LoadResult {
            seconds: last.unwrap_or(0) as f64 / 1e9,
            raw_bytes,
            latencies: latencies.into_iter().collect(),
            own_cpu_s: own_cpu_s()? - cpu_s,
        })
    })
}

fn abort(connection: &LoadConnection<'_>, stream: &UnixStream) {
    connection.failed.store(true, Ordering::Relaxed);
    let _ = stream.shutdown(std::net::Shutdown::Both);
}
