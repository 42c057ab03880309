//! The load generator: several connections, each with a window of batches under way, each batch timed from
//! when it was due to when its answer came.
//!
//! Without a rate the loop is closed: a connection sends as long as fewer than [`Drive::in_flight`] of its
//! batches are unanswered. At saturation the time to an answer is then what is under way divided by the
//! throughput (Little's law), so a smaller window shows shorter times at the same rate. With a rate, batches
//! are due by the clock, and one that could not be sent in time counts from when it was due.

use std::io::{BufReader, Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, anyhow, bail};

use super::template::{Pool, Wrap};
use crate::wire::call::preamble;
use crate::wire::msgpack::{Reader, Writer, as_bool, as_int, as_text, get};

/// A daemon that answers nothing for so long is broken.
const PATIENCE: Duration = Duration::from_secs(120);

/// What to send.
pub(super) struct Drive<'a> {
    pub(super) socket: &'a Path,
    pub(super) pool: &'a Pool,
    pub(super) wrap: Wrap,
    /// Number of the first event, and how many.
    pub(super) first: u64,
    pub(super) entries: u64,
    pub(super) connections: u64,
    pub(super) in_flight: usize,
    pub(super) batch: u64,
    /// Entries per second; as fast as it goes if none.
    pub(super) rate: Option<f64>,
}

/// What came of it.
pub(super) struct Driven {
    pub(super) seconds: f64,
    pub(super) raw_bytes: u64,
    /// Nanoseconds from due to answered, one for each batch, sorted.
    pub(super) latencies: Vec<u64>,
}

impl Driven {
    /// A latency in milliseconds; `share` is 0.5 for the median.
    pub(super) fn latency_ms(&self, share: f64) -> f64 {
        percentile(&self.latencies, share) as f64 / 1e6
    }
}

/// The value below which a share of the sorted values lies.
pub(super) fn percentile(sorted: &[u64], share: f64) -> u64 {
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a place in a list")]
    let at = (sorted.len() as f64 * share) as usize;
    sorted.get(at.min(sorted.len().saturating_sub(1))).copied().unwrap_or(0)
}

/// One connection's share of the work, seen by its sender and its receiver.
struct Lane<'a> {
    drive: &'a Drive<'a>,
    number: u64,
    start: Instant,
    /// When each batch was due, in nanoseconds since the start.
    due: Vec<AtomicU64>,
    /// When the last answer came.
    last: AtomicU64,
    failed: &'a AtomicBool,
}

impl Lane<'_> {
    /// First event and number of events of this lane's batch `id`.
    fn batch(&self, id: u64) -> (u64, u64) {
        let at = (id * self.drive.connections + self.number) * self.drive.batch;
        (self.drive.first + at, self.drive.batch.min(self.drive.entries.saturating_sub(at)))
    }

    fn batches(drive: &Drive<'_>, number: u64) -> u64 {
        let all = drive.entries.div_ceil(drive.batch);
        (all + drive.connections - 1).saturating_sub(number) / drive.connections
    }

    fn last_answer(&self) -> f64 {
        self.last.load(Ordering::Relaxed) as f64 / 1e9
    }

    fn now(&self) -> u64 {
        u64::try_from(self.start.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }

    fn send(&self, mut to: &UnixStream, places: &crossbeam_channel::Sender<()>) -> anyhow::Result<u64> {
        let mut frame = preamble().to_vec();
        let mut raw_bytes = 0;
        for (id, due) in (0..).zip(&self.due) {
            let (first, count) = self.batch(id);
            let begin = frame.len();
            frame.extend_from_slice(&[0; 4]);
            raw_bytes += self.write_request(id, first, count, &mut frame);
            let len = u32::try_from(frame.len() - begin - 4).context("make a batch that fits a frame")?;
            for (place, byte) in frame.iter_mut().skip(begin).zip(len.to_be_bytes()) {
                *place = byte;
            }
            let at = self.drive.rate.map(|rate| {
                #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "nanoseconds")]
                let at = ((first - self.drive.first) as f64 / rate * 1e9) as u64;
                std::thread::sleep(Duration::from_nanos(at.saturating_sub(self.now())));
                at
            });
            if places.send_timeout((), PATIENCE).is_err() {
                bail!("wait for an answer");
            }
            if self.failed.load(Ordering::Relaxed) {
                bail!("another connection failed");
            }
            due.store(at.unwrap_or_else(|| self.now()), Ordering::Release);
            to.write_all(&frame).context("send a batch")?;
            frame.clear();
        }
        Ok(raw_bytes)
    }

    fn write_request(&self, id: u64, first: u64, count: u64, frame: &mut Vec<u8>) -> u64 {
        let mut w = Writer::new();
        match self.drive.wrap {
            Wrap::EventReturn => {
                w.array(3).uint(id).str("event_return").map(1).str("events");
                w.array(usize::try_from(count).unwrap_or(0));
            }
            Wrap::Returner => {
                w.array(3).uint(id).str("returner").map(1).str("load");
            }
            Wrap::Bare | Wrap::Message => {
                w.raw(&id.to_be_bytes());
            }
        }
        frame.extend_from_slice(&w.into_bytes());
        (first..first + count).map(|n| self.drive.pool.write(n, frame) as u64).sum()
    }

    fn receive(
        &self,
        from: &UnixStream,
        places: &crossbeam_channel::Receiver<()>,
        answered: &AtomicU64,
    ) -> anyhow::Result<Vec<u64>> {
        from.set_read_timeout(Some(PATIENCE)).context("set a timeout")?;
        let mut from = BufReader::with_capacity(64 * 1024, from);
        let mut latencies = Vec::with_capacity(self.due.len());
        let mut payload = Vec::new();
        while latencies.len() < self.due.len() {
            let mut header = [0; 4];
            from.read_exact(&mut header).context("wait for an answer")?;
            payload.resize(u32::from_be_bytes(header) as usize, 0);
            from.read_exact(&mut payload).context("read an answer")?;
            let now = self.now();
            let id = read_answer(&payload)?;
            let due = usize::try_from(id).ok().and_then(|id| self.due.get(id));
            let due = due.with_context(|| format!("read an answer to request {id}, which was not sent"))?;
            latencies.push(now.saturating_sub(due.load(Ordering::Acquire)));
            answered.fetch_add(self.batch(id).1, Ordering::Relaxed);
            self.last.fetch_max(now, Ordering::Relaxed);
            let _ = places.try_recv();
        }
        Ok(latencies)
    }
}

fn read_answer(payload: &[u8]) -> anyhow::Result<u64> {
    let mut reader = Reader::new(payload);
    let odd = |_| anyhow!("the answer is no [id, good, value]");
    reader.array().map_err(odd)?;
    let id = as_int(reader.value().map_err(odd)?);
    let good = as_bool(reader.value().map_err(odd)?);
    let value = reader.value().map_err(odd)?;
    if good != Some(true) {
        let text = |key| get(value, key).and_then(as_text).unwrap_or("?").to_owned();
        bail!("store a batch: {} ({})", text("message"), text("code"));
    }
    id.and_then(|id| u64::try_from(id).ok()).context("read the id of an answer")
}

/// Sends everything and waits for every answer. `watch` is called several times a second with the entries
/// answered so far.
pub(super) fn drive(drive: &Drive<'_>, watch: &mut dyn FnMut(u64, f64)) -> anyhow::Result<Driven> {
    let failed = AtomicBool::new(false);
    let answered = AtomicU64::new(0);
    let lanes = drive.connections.min(drive.entries.div_ceil(drive.batch)).max(1);
    let streams = (0..lanes).map(|_| UnixStream::connect(drive.socket)).collect::<Result<Vec<_>, _>>();
    let streams = streams.with_context(|| format!("connect to {}", drive.socket.display()))?;
    let drive = &Drive { connections: lanes, ..*drive };
    let start = Instant::now();
    let lanes: Vec<Lane<'_>> = (0..lanes)
        .map(|number| {
            let due = (0..Lane::batches(drive, number)).map(|_| AtomicU64::new(0)).collect();
            Lane { drive, number, start, due, last: AtomicU64::new(0), failed: &failed }
        })
        .collect();
    std::thread::scope(|scope| {
        let mut threads = Vec::new();
        for (lane, stream) in lanes.iter().zip(&streams) {
            let (places, taken) = crossbeam_channel::bounded(drive.in_flight.max(1));
            let answered = &answered;
            let named = |name: &str| std::thread::Builder::new().name(format!("sc-load-{name}"));
            let sender = named("send").spawn_scoped(scope, move || {
                lane.send(stream, &places).inspect_err(|_| give_up(lane, stream))
            });
            let receiver = named("wait").spawn_scoped(scope, move || {
                lane.receive(stream, &taken, answered).inspect_err(|_| give_up(lane, stream))
            });
            threads.push((sender.context("start a thread")?, receiver.context("start a thread")?));
        }
        while !threads.iter().all(|(_, receiver)| receiver.is_finished()) {
            std::thread::sleep(Duration::from_millis(if start.elapsed().as_secs() < 1 { 2 } else { 20 }));
            watch(answered.load(Ordering::Relaxed), start.elapsed().as_secs_f64());
        }
        let mut driven = Driven { seconds: 0.0, raw_bytes: 0, latencies: Vec::new() };
        let mut first_error = None;
        for (sender, receiver) in threads {
            let panicked = |_| anyhow!("run the load: a thread panicked");
            // What the receiver met is the cause; the sender only stumbled over it.
            match (receiver.join().map_err(panicked)?, sender.join().map_err(panicked)?) {
                (Ok(latencies), Ok(raw_bytes)) => {
                    driven.latencies.extend(latencies);
                    driven.raw_bytes += raw_bytes;
                }
                (Err(error), _) | (_, Err(error)) => first_error = first_error.or(Some(error)),
            }
        }
        if let Some(error) = first_error {
            return Err(error);
        }
        // The threads look at the clock themselves: how seldom this one does must not count.
        driven.seconds = lanes.iter().map(Lane::last_answer).fold(0.0, f64::max);
        driven.latencies.sort_unstable();
        Ok(driven)
    })
}

fn give_up(lane: &Lane<'_>, stream: &UnixStream) {
    lane.failed.store(true, Ordering::Relaxed);
    let _ = stream.shutdown(std::net::Shutdown::Both);
}
