//! The baseline: the minimum work of any durable store for the same bytes.
//!
//! It compresses waiting batches by zstd level 1 in blocks of 256 KiB, appends them to one file,
//! calls fdatasync, and acknowledges them, while the next blocks are compressed. It has no tags,
//! order, index or checksums.

use std::fs::File;
use std::io::Write as _;
use std::thread::{Builder, JoinHandle};

use anyhow::Context as _;
use crossbeam_channel::{Receiver, Sender};

use saltcellar_base::limits::{BLOCK_RAW_BYTES, ZSTD_LEVEL};

/// Maximum number of raw bytes in one commit.
const COMMIT_RAW_BYTES: usize = 4 * 1024 * 1024;

/// Capacity of the queue of batches.
const BATCHES_WAITING: usize = 1024;

/// A baseline's queue of batches, each with a token, and its threads, which end when all senders are dropped.
pub type Baseline<T> = (Sender<(Vec<u8>, T)>, Vec<JoinHandle<anyhow::Result<()>>>);

/// Starts `packers` threads that compress, and one that writes and then calls `durable` with the token of each batch.
pub fn start<T: Send + 'static>(
    file: File,
    packers: usize,
    durable: impl FnMut(T) + Send + 'static,
) -> anyhow::Result<Baseline<T>> {
    let (intake, waiting) = crossbeam_channel::bounded(BATCHES_WAITING);
    // One packed commit may wait while another is written.
    let (packed, ready) = crossbeam_channel::bounded(1);
    let named = |name: &str| Builder::new().name(format!("sc-base-{name}"));

    let write = named("write")
        .spawn(move || write(file, &ready, durable))
        .context("start a thread")?;

    let mut threads = vec![write];
    for _ in 0..packers.max(1) {
        let (waiting, packed) = (waiting.clone(), packed.clone());
        threads.push(
            named("pack")
                .spawn(move || pack(&waiting, &packed))
                .context("start a thread")?,
        );
    }

    Ok((intake, threads))
}

/// Compressed blocks, and the tokens of the batches in them.
type Packed<T> = (Vec<u8>, Vec<T>);

fn pack<T>(waiting: &Receiver<(Vec<u8>, T)>, packed: &Sender<Packed<T>>) -> anyhow::Result<()> {
    let mut compressor = zstd::bulk::Compressor::new(ZSTD_LEVEL)?;
    // Allocated once, as a store would: the baseline must measure only unavoidable work.
    let mut space = vec![0; zstd::zstd_safe::compress_bound(BLOCK_RAW_BYTES)];
    let mut block = Vec::with_capacity(BLOCK_RAW_BYTES);

    while let Ok(first) = waiting.recv() {
        let (mut bytes, mut tokens) = (Vec::new(), Vec::new());
        let mut flush = |block: &mut Vec<u8>| -> anyhow::Result<()> {
            let len = compressor.compress_to_buffer(block, space.as_mut_slice())?;
            bytes.extend_from_slice(space.get(..len).unwrap_or_default());
            block.clear();
            Ok(())
        };

        let mut raw_len = 0;
        let mut next = Some(first);
        while let Some((batch, token)) = next {
            let mut rest = batch.as_slice();
            raw_len += rest.len();
            while !rest.is_empty() {
                let (now, later) = rest.split_at(rest.len().min(BLOCK_RAW_BYTES - block.len()));
                block.extend_from_slice(now);
                rest = later;
                if block.len() == BLOCK_RAW_BYTES {
                    flush(&mut block)?;
                }
            }
            tokens.push(token);

            // Whatever waits now becomes part of this commit; it does not wait for more.
            next = if raw_len < COMMIT_RAW_BYTES {
                waiting.try_recv().ok()
            } else {
                None
            };
        }

        if !block.is_empty() {
            flush(&mut block)?;
        }

        // Fails only if the writer has ended, whose own error is the cause.
        packed
            .send((bytes, tokens))
            .ok()
            .context("hand over to the writer")?;
    }
    Ok(())
}

fn write<T>(
    mut file: File,
    ready: &Receiver<Packed<T>>,
    mut durable: impl FnMut(T),
) -> anyhow::Result<()> {
    while let Ok((bytes, tokens)) = ready.recv() {
        file.write_all(&bytes)?;
        file.sync_data()?;
        tokens.into_iter().for_each(&mut durable);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_file_holds_all_bytes_of_durable_batches() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("raw");
        let (durable, tokens) = crossbeam_channel::bounded(3);
        let durable = move |token| durable.send(token).unwrap();
        let (intake, threads) = start(File::create(&path).unwrap(), 1, durable).unwrap();
        let batches = [10, 3 * BLOCK_RAW_BYTES, 1].map(|len| crate::Random::new(1).bytes(len));
        for (token, batch) in batches.iter().enumerate() {
            intake.send((batch.clone(), token)).unwrap();
        }
        drop(intake);
        for thread in threads {
            thread.join().unwrap().unwrap();
        }
        assert_eq!(tokens.iter().collect::<Vec<_>>(), [0, 1, 2]);
        let stored = zstd::stream::decode_all(File::open(&path).unwrap()).unwrap();
        assert!(stored == batches.concat());
    }
}
