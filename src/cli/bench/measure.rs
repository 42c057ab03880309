//! Costs of the parts of an index, printed without checks: `cargo test --profile bench --lib measure -- --ignored --nocapture`.

#![expect(clippy::print_stdout, reason = "a measure fingerprints")]

use std::path::Path;
use std::time::Duration;

use super::load;
use super::load::template::{Encoding, EventGenerator, EventTemplate, Jobs, Random};
use crate::clock::{Clock, Micros};
use crate::model::{Batch, JidKey, SeqNo, Source};
use crate::store::index::{MemIndex, SealedIndex, sealed};
use crate::store::log::builder::{BlockBuilder, Packer};
use crate::store::log::file::BlockMeta;
use crate::wire::msgpack;
use crate::wire::salt_event::fingerprinted_entry;

const ENTRIES: u64 = 1_000_000;
const BATCH: u64 = 1_000;

fn cpu() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec.unsigned_abs(), u32::try_from(time.tv_nsec).unwrap())
}

pub(super) fn disk(dir: &Path) -> u64 {
    use std::os::unix::fs::MetadataExt as _;
    let used = |item: std::fs::DirEntry| {
        let meta = item.metadata().unwrap();
        if meta.is_dir() { disk(&item.path()) } else { meta.blocks() * 512 }
    };
    std::fs::read_dir(dir).unwrap().map(|item| used(item.unwrap())).sum()
}

fn batch(generator: &EventGenerator, numbers: std::ops::Range<u64>, now: Micros) -> Batch {
    let mut batch = Batch::default();
    let mut event = Vec::new();
    for n in numbers {
        event.clear();
        generator.write(n, &mut event);
        let tag = msgpack::get(&event, "tag").and_then(msgpack::as_text).unwrap();
        let (entry, fingerprints) = fingerprinted_entry(
            tag.as_bytes(),
            msgpack::get(&event, "data").unwrap(),
            Source::Bus,
            Micros(now.0 + n.cast_signed()),
        );
        batch.push(&entry, Some(fingerprints));
    }
    batch
}

fn one_load(name: &str, templates: &[EventTemplate], jobs: Jobs) {
    let generator = EventGenerator::new(templates, Encoding::EventReturn, jobs, 1);
    let now = Clock::real().now();
    let mut index = MemIndex::new(SeqNo(1));
    let (mut builder, mut packer) = (BlockBuilder::default(), Packer::new().unwrap());
    let mut adding = Duration::ZERO;
    let (mut offset, mut keys) = (64, Vec::new());
    let mut seq = 0;
    for start in (0..ENTRIES).step_by(usize::try_from(BATCH).unwrap()) {
        let batch = batch(&generator, start..start + BATCH, now);
        for (entry, _) in batch.entries() {
            builder.push(SeqNo(seq + 1 + builder.len() as u64), &entry).unwrap();
            if start % 100_000 == 0 && !entry.jid.is_empty() {
                keys.push(JidKey::of(entry.jid));
            }
        }
        let (at_min, at_max) = builder.times();
        let (first_seq, last_seq) = builder.seqs();
        let packed = builder.finish(&mut packer).unwrap();
        let len = u32::try_from(packed.head.len() + packed.bodies.len() + 48).unwrap();
        let head_len = u32::try_from(packed.head.len()).unwrap();
        drop(packed);
        let count = u32::try_from(builder.len()).unwrap();
        let meta = BlockMeta { offset, len, head_len, count, first_seq, last_seq, at_min, at_max };
        let templates = builder.templates();
        builder.clear();
        offset += u64::from(len);
        let started = cpu();
        index.add_block(meta, &templates);
        for (at, (entry, _)) in batch.entries().enumerate() {
            seq += 1;
            index.add(at, SeqNo(seq), &entry, entry.raw_len(), || entry.body).unwrap();
        }
        adding += cpu().saturating_sub(started);
    }
    let dir = tempfile::tempdir().unwrap();
    let started = cpu();
    let metadata = sealed::write(&index, None, dir.path()).unwrap();
    let writing = cpu().saturating_sub(started);
    let started = cpu();
    let open = SealedIndex::open(dir.path()).unwrap();
    let opening = cpu().saturating_sub(started);
    let mut random = Random::of(1, 7);
    let mut ask = |times: u32, work: &mut dyn FnMut(JidKey)| {
        let started = cpu();
        for _ in 0..times {
            work(keys[usize::try_from(random.below(keys.len() as u64)).unwrap()]);
        }
        cpu().saturating_sub(started) / times
    };
    let positions = ask(10_000, &mut |key| assert!(!open.positions(key).unwrap().is_empty()));
    let newest = ask(200, &mut |_| assert!(open.rows_below(None, 50).unwrap().len() <= 50));
    let newest_in_memory = ask(200, &mut |_| assert!(index.rows_below(None, 50).len() <= 50));
    println!(
        "{name}: {} jobs; add {:.0} ns each; memory {:.1} B an entry; sealed: cpu {:.3} s/M, disk {:.1} B, open {opening:?}, \
         positions {positions:?}, newest 50 {newest:?} (memory {newest_in_memory:?})",
        metadata.jobs,
        adding.as_secs_f64() * 1e9 / ENTRIES as f64,
        index.memory() as f64 / ENTRIES as f64,
        writing.as_secs_f64() * 1e6 / ENTRIES as f64,
        disk(dir.path()) as f64 / ENTRIES as f64,
    );
    println!("  {}", index.memory_words());
}

#[test]
#[ignore = "a measure, and slow"]
fn cost_of_an_index() {
    one_load("small", &load::small(1, 1.0), Jobs::Interleaved);
    one_load("mix", &load::mix(1, 0.2), Jobs::Interleaved);
    one_load("jobs of two returns", &load::jobs(1, 2), Jobs::Of(3));
}

#[test]
#[ignore = "a measure, and slow"]
fn cost_of_a_search() {
    use crate::model::{EventFilter, Glob};
    use crate::store::{Limits, Options, Store};
    const STORED: u64 = 600_000;
    let dir = tempfile::tempdir().unwrap();
    let options = |limits| Options {
        dir: dir.path().to_owned(),
        holder: "the measure".to_owned(),
        clock: Clock::real(),
        metrics: std::sync::Arc::default(),
        limits,
        free: crate::store::FreeSpace { low: Some(0), min: Some(0) },
        fs: std::sync::Arc::new(crate::store::vfs::Disk),
        classes: crate::store::Classes::default(),
    };
    let generator = EventGenerator::new(&load::jobs(1, 2), Encoding::EventReturn, Jobs::Of(3), 1);
    let open = |limits| Store::open(&options(limits)).unwrap().on_threads();
    // With SEGMENTS=1 nothing is sealed, and opening reads the whole log.
    let segments = std::env::var("SEGMENTS").ok().and_then(|n| n.parse().ok()).unwrap_or(2);
    let most = if segments == 1 { u64::MAX } else { STORED / segments };
    let limits = Limits { segment_entries_max: most, ..Limits::default() };
    let (store, intake, threads) = open(limits);
    let now = Clock::real().now();
    for start in (0..STORED).step_by(usize::try_from(BATCH).unwrap()) {
        intake.submit(batch(&generator, start..start + BATCH, now), None).unwrap();
    }
    drop((store, intake));
    for thread in threads {
        thread.join().unwrap();
    }
    println!("on disk: {:.1} B an entry", disk(dir.path()) as f64 / STORED as f64);
    let (started, opened) = (cpu(), std::time::Instant::now());
    let (store, intake, threads) = open(limits);
    println!("open: {:?}, {:?} of CPU", opened.elapsed(), cpu().saturating_sub(started));
    for pattern in ["*/ret/absent-*", "salt/job/19991231*/ret/*", "*/ret/web1234?", "*"] {
        let filter = EventFilter { tag: Some(Glob::new(pattern)), ..EventFilter::default() };
        let rounds = if pattern == "*" {
            1
        } else if pattern.contains("1999") {
            400
        } else {
            20
        };
        let started = cpu();
        let mut found = 0;
        for _ in 0..rounds {
            found = store.events_before(&filter, SeqNo(u64::MAX), usize::MAX, usize::MAX).unwrap().len();
        }
        let each = cpu().saturating_sub(started).as_secs_f64() / f64::from(rounds);
        println!("{pattern}: {found} found, {:.1} M entries a CPU second", STORED as f64 / each / 1e6);
    }
    drop((store, intake));
    for thread in threads {
        thread.join().unwrap();
    }
}

/// Writes the bodies of full blocks to `$DUMP/<load>/<number>`, for experiments with compression.
#[test]
#[ignore = "needs DUMP"]
fn bodies_of_full_blocks() {
    use super::load::corpus;
    let Some(to) = std::env::var_os("DUMP").map(std::path::PathBuf::from) else { return };
    let dump = |name: &str, templates: &[EventTemplate], jobs: Jobs| {
        std::fs::create_dir_all(to.join(name)).unwrap();
        let generator = EventGenerator::new(templates, Encoding::EventReturn, jobs, 1);
        let mut block = Vec::new();
        let (mut blocks, mut n) = (0, 0);
        while blocks < 64 {
            for (entry, _) in batch(&generator, n..n + 50, Micros(0)).entries() {
                block.extend_from_slice(entry.body);
            }
            n += 50;
            if block.len() > 230_000 {
                std::fs::write(to.join(name).join(format!("{blocks:03}")), &block).unwrap();
                block.clear();
                blocks += 1;
            }
        }
    };
    dump("small", &load::small(1, 1.0), Jobs::Interleaved);
    dump("mix", &load::mix(1, 1.0), Jobs::Interleaved);
    for recording in ["3006.28", "3007.15", "3008.3"] {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/data/{recording}.sbus"));
        let corpus = corpus::read(&path).unwrap();
        dump(recording, &corpus.templates, Jobs::Replayed(corpus.jobs));
    }
}
