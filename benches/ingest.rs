//! Ingest against the physical baseline, in one run.
//!
//! Input: events of two loads, generated from a fixed seed. `mix`: 80 % of 300 to 400 bytes, 18 % of 2 to 3 KB,
//! 2 % of 20 to 40 KB, mean 1.3 KB. `small`: median 180 bytes, as on a quiet bus. Both arrive in batches of 64.
//!
//! The baseline does only the physically necessary work: the same bytes, in the same batches, compressed with
//! zstd level 1 in pieces of 256 KiB, appended to a file, fdatasync after each commit-sized piece.
//!
//! Output: events/s and CPU seconds per million for both, their ratio, and bytes on disk per event.
//! `cargo bench --bench ingest`; `EVENTS=2000000` for a longer run.

#![expect(clippy::unwrap_used, clippy::print_stdout, reason = "a bench prints, and may panic")]

use std::fs::File;
use std::io::Write as _;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use saltcellar::clock::{Clock, Micros};
use saltcellar::limits::{BLOCK_RAW_BYTES, ZSTD_LEVEL};
use saltcellar::model::{Batch, Source, stamped_jid};
use saltcellar::store::{Classes, FreeSpace, Limits, Options, Store};
use saltcellar::wire::msgpack::Writer;
use saltcellar::wire::salt_event::fingerprinted_entry;

const BATCH: usize = 64;

struct Random(u64);

impl Random {
    fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % n
    }
}

const WORDS: [&str; 16] = [
    "state_|-nginx_|-running",
    "result",
    "changes",
    "comment",
    "The service nginx is already running",
    "duration",
    "start_time",
    "name",
    "pkg",
    "installed",
    "version",
    "/etc/nginx/nginx.conf",
    "managed",
    "diff",
    "True",
    "retcode",
];

/// Event `n` of a load: its tag and its data.
fn event(n: u64, small: bool, random: &mut Random) -> (String, Vec<u8>) {
    let jid = stamped_jid(Micros(1_795_230_637_000_000 + (n / 50).cast_signed() * 137_001));
    let minion = format!("web{:05}.example", random.below(20_000));
    let size = if small {
        60 + random.below(120)
    } else {
        match random.below(100) {
            0..80 => 180 + random.below(100),
            80..98 => 1_900 + random.below(1_000),
            _ => 20_000 + random.below(20_000),
        }
    };
    let mut text = String::new();
    while (text.len() as u64) < size {
        text.push_str(WORDS.get(usize::try_from(random.below(16)).unwrap()).unwrap());
        text.push_str(&random.below(1_000_000).to_string());
    }
    let mut w = Writer::new();
    w.map(6).str("id").str(&minion).str("jid").str(&jid).str("fun").str("state.apply").str("retcode").int(0);
    w.str("return").str(&text).str("_stamp").str(&Micros(n.cast_signed()).iso());
    (format!("salt/job/{jid}/ret/{minion}"), w.into_bytes())
}

fn cpu() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec.unsigned_abs(), u32::try_from(time.tv_nsec).unwrap())
}

struct Outcome {
    seconds: f64,
    cpu_s: f64,
    disk: u64,
}

fn measured(work: impl FnOnce() -> u64) -> Outcome {
    let (start, used) = (Instant::now(), cpu());
    let disk = work();
    Outcome { seconds: start.elapsed().as_secs_f64(), cpu_s: cpu().saturating_sub(used).as_secs_f64(), disk }
}

fn blocks_used(dir: &Path) -> u64 {
    use std::os::unix::fs::MetadataExt as _;
    let used = |item: std::fs::DirEntry| {
        let meta = item.metadata().unwrap();
        if meta.is_dir() { blocks_used(&item.path()) } else { meta.blocks() * 512 }
    };
    std::fs::read_dir(dir).unwrap().map(|item| used(item.unwrap())).sum()
}

type Events = Vec<(String, Vec<u8>)>;

fn baseline(dir: &Path, events: &Events) -> u64 {
    let mut file = File::create(dir.join("raw")).unwrap();
    let mut piece = Vec::new();
    let mut flush = |piece: &mut Vec<u8>| {
        file.write_all(&zstd::bulk::compress(piece, ZSTD_LEVEL).unwrap()).unwrap();
        file.sync_data().unwrap();
        piece.clear();
    };
    for (tag, data) in events {
        piece.extend_from_slice(tag.as_bytes());
        piece.extend_from_slice(data);
        if piece.len() >= BLOCK_RAW_BYTES {
            flush(&mut piece);
        }
    }
    flush(&mut piece);
    blocks_used(dir)
}

fn saltcellar(dir: &Path, events: &Events) -> u64 {
    let options = Options {
        dir: dir.to_owned(),
        holder: "the bench".to_owned(),
        clock: Clock::real(),
        metrics: Arc::default(),
        limits: Limits::default(),
        classes: Classes::default(),
        free: FreeSpace::default(),
        fs: Arc::new(saltcellar::store::vfs::Disk),
    };
    let opened = Store::open(&options).unwrap();
    let (store, intake) = (opened.store, opened.intake);
    let (appender, committer, sealer) = (opened.appender, opened.committer, opened.sealer);
    let threads = [
        std::thread::Builder::new().name("sc-append".into()).spawn(move || appender.run()).unwrap(),
        std::thread::Builder::new().name("sc-commit".into()).spawn(move || committer.run()).unwrap(),
        std::thread::Builder::new().name("sc-seal".into()).spawn(move || sealer.run()).unwrap(),
    ];
    let now = Clock::real().now();
    for chunk in events.chunks(BATCH) {
        let mut batch = Batch::default();
        for (tag, data) in chunk {
            let (entry, prints) = fingerprinted_entry(tag.as_bytes(), data, Source::Bus, now);
            batch.push(&entry, Some(prints));
        }
        intake.submit(batch, None).unwrap();
    }
    drop((store, intake));
    for thread in threads {
        thread.join().unwrap();
    }
    blocks_used(dir)
}

fn main() {
    let count: u64 = std::env::var("EVENTS").ok().and_then(|n| n.parse().ok()).unwrap_or(400_000);
    println!("{count} events; seconds of CPU include making the batches");
    println!("load   store       events/s  of baseline  CPU s/M  raw B/event  disk B/event  disk/raw");
    for small in [false, true] {
        let mut random = Random(7);
        let events: Events = (0..count).map(|n| event(n, small, &mut random)).collect();
        let raw: usize = events.iter().map(|(tag, data)| tag.len() + data.len()).sum();
        let mut base = 0.0;
        for (name, run) in [("baseline", baseline as fn(&Path, &Events) -> u64), ("saltcellar", saltcellar)] {
            let dir = tempfile::tempdir().unwrap();
            let outcome = measured(|| run(dir.path(), &events));
            let rate = count as f64 / outcome.seconds;
            if base == 0.0 {
                base = rate;
            }
            println!(
                "{:<6} {name:<10} {rate:>9.0}  {:>11.0} %  {:>7.2}  {:>11.0}  {:>12.0}  {:>8.3}",
                if small { "small" } else { "mix" },
                100.0 * rate / base,
                outcome.cpu_s * 1e6 / count as f64,
                raw as f64 / count as f64,
                outcome.disk as f64 / count as f64,
                outcome.disk as f64 / raw as f64,
            );
        }
    }
}
