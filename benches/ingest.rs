//! Ingest of the store alone, in this process, compared with the baseline of `saltcellar-bench ingest`.
//!
//! Both get the loads `mix` and `small` of `saltcellar-bench ingest`, in batches of 64. CPU seconds include making the batches.
//!
//! Output: events/s and CPU seconds per million for both, their ratio, and bytes on disk per event.
//! `cargo bench --bench ingest`; `EVENTS=2000000` for a longer run.

#![expect(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a bench prints, and may panic"
)]

use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use saltcellar::base::clock::Clock;
use saltcellar::model::{Batch, Source};
use saltcellar::store::{Classes, FreeSpace, Limits, Options, Store, vfs};
use saltcellar::wire::msgpack::{as_text, get};
use saltcellar::wire::salt_event::{PeerMark, read_event};
use saltcellar_testkit::baseline;
use saltcellar_testkit::load::template::{Encoding, EventGenerator};
use saltcellar_testkit::load::{Load, mix, small};
use saltcellar_testkit::usage::{disk_bytes, own_cpu_s};

const BATCH: usize = 64;

/// Appends events to a buffer, and returns the bytes of their tags and data.
fn write(generator: &EventGenerator, count: u64, mut each: impl FnMut(&[u8], bool)) -> u64 {
    let (mut bytes, mut raw) = (Vec::new(), 0);
    for n in 0..count {
        bytes.clear();
        raw += generator.write(n, &mut bytes) as u64;
        each(
            &bytes,
            (n + 1).is_multiple_of(BATCH as u64) || n + 1 == count,
        );
    }
    raw
}

fn run_baseline(dir: &Path, load: &Load, count: u64) -> u64 {
    let file = std::fs::File::create(dir.join("raw")).unwrap();
    let (intake, threads) = baseline::start(file, 1, |()| {}).unwrap();
    let mut batch = Vec::new();
    let raw = write(&load.generator(Encoding::Bare), count, |event, is_last| {
        batch.extend_from_slice(event);
        if is_last {
            intake.send((std::mem::take(&mut batch), ())).unwrap();
        }
    });
    drop(intake);
    for thread in threads {
        thread.join().unwrap().unwrap();
    }
    raw
}

fn run_store(dir: &Path, load: &Load, count: u64) -> u64 {
    let options = Options {
        dir: dir.to_owned(),
        holder: "the bench".to_owned(),
        lock_timeout: std::time::Duration::ZERO,
        clock: Clock::real(),
        metrics: Arc::default(),
        limits: Limits::default(),
        classes: Classes::default(),
        free: FreeSpace::default(),
        fs: Arc::new(vfs::Disk),
    };
    let (store, intake, threads) = Store::open(&options).unwrap().on_threads();
    let now = Clock::real().now();
    let mut batch = Batch::default();
    let raw = write(
        &load.generator(Encoding::EventReturn),
        count,
        |event, is_last| {
            let tag = get(event, "tag").and_then(as_text).unwrap();
            let data = get(event, "data").unwrap();
            let event = read_event(tag.as_bytes(), data, Source::Bus, now, PeerMark::Data);
            batch.push(&event.entry(), Some(event.fingerprints));
            if is_last {
                intake.submit(std::mem::take(&mut batch), None).unwrap();
            }
        },
    );
    drop((store, intake));
    for thread in threads {
        thread.join().unwrap();
    }
    raw
}

fn main() {
    let count: u64 = std::env::var("EVENTS")
        .ok()
        .and_then(|n| n.parse().ok())
        .unwrap_or(400_000);
    println!("{count} events");
    println!(
        "load   store       events/s  of baseline  CPU s/M  raw B/event  disk B/event  disk/raw"
    );
    for (name, load) in [("mix", mix(1, 1.0)), ("small", small(1, 1.0))] {
        let mut baseline = None;
        let runs = [
            ("baseline", run_baseline as fn(&Path, &Load, u64) -> u64),
            ("saltcellar", run_store),
        ];
        for (store, run) in runs {
            let dir = tempfile::tempdir().unwrap();
            let (start, cpu) = (Instant::now(), own_cpu_s().unwrap());
            let raw = run(dir.path(), &load, count) as f64 / count as f64;
            let rate = count as f64 / start.elapsed().as_secs_f64();
            let cpu = (own_cpu_s().unwrap() - cpu) * 1e6 / count as f64;
            let disk = disk_bytes(dir.path()).unwrap() as f64 / count as f64;
            let share = 100.0 * rate / *baseline.get_or_insert(rate);
            println!(
                "{name:<6} {store:<10} {rate:>9.0}  {share:>11.0} %  {cpu:>7.2}  {raw:>11.0}  {disk:>12.0}  {:>8.3}",
                disk / raw,
            );
        }
    }
}
