//! The baseline: the minimum work of any durable store for the same bytes.
//!
//! It is a separate process that receives the load over a unix socket, so that transport costs the same as for the
//! daemon. It compresses waiting batches by zstd level 1 in blocks of 256 KiB, appends them to one file, calls fdatasync,
//! and answers, while the next blocks are compressed. It has no tags, order, index or checksums.
//!
//! ```text
//! preamble, then frames: u32 length | u64 id | tags and data                     (big-endian)
//! answers in the format of the daemon
//! ```

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::Context as _;
use crossbeam_channel::{Receiver, Sender};

use crate::limits::{BLOCK_RAW_BYTES, WIRE_FRAME_BYTES_MAX, ZSTD_LEVEL};
use crate::wire::call::{PREAMBLE_LEN, answer_frame};

/// Maximum number of raw bytes in one commit.
const COMMIT_RAW_BYTES: usize = 4 * 1024 * 1024;

/// Capacity of the queue of frames.
const FRAMES_WAITING: usize = 1024;

/// Flags of the hidden verb.
#[derive(clap::Args)]
pub(in crate::cli) struct Args {
    #[arg(long)]
    listen: PathBuf,
    #[arg(long)]
    into: PathBuf,
    #[arg(long, default_value_t = 1)]
    packers: usize,
}

/// A batch and its sender.
struct Request {
    frame: Vec<u8>,
    peer: Arc<UnixStream>,
}

/// Compressed blocks, and the batches in them.
struct Packed {
    bytes: Vec<u8>,
    requests: Vec<Request>,
}

pub(super) fn run(args: &Args) -> anyhow::Result<()> {
    std::fs::create_dir(&args.into).with_context(|| format!("create {}", args.into.display()))?;
    let file = File::create(args.into.join("raw")).context("create the file")?;
    let (intake, waiting) = crossbeam_channel::bounded(FRAMES_WAITING);
    let (packed, ready) = crossbeam_channel::bounded(1);
    let spawn = |name: &str, work: Box<dyn FnOnce() -> anyhow::Result<()> + Send>| {
        let outcome = std::thread::Builder::new().name(format!("sc-base-{name}")).spawn(move || {
            if let Err(error) = work() {
                tracing::error!(%error, "baseline failed");
                std::process::exit(1);
            }
        });
        outcome.map(drop).context("start a thread")
    };
    for _ in 0..args.packers.max(1) {
        let (waiting, packed) = (waiting.clone(), packed.clone());
        spawn("pack", Box::new(move || pack(&waiting, &packed)))?;
    }
    spawn("write", Box::new(move || write(file, &ready)))?;
    let stop = stop_signal()?;
    let listener = UnixListener::bind(&args.listen).context("listen")?;
    spawn(
        "accept",
        Box::new(move || {
            for peer in listener.incoming() {
                let (peer, intake) = (Arc::new(peer?), intake.clone());
                // The thread ends with its connection.
                let name = "sc-base-read".to_owned();
                std::thread::Builder::new().name(name).spawn(move || read(&peer, &intake).ok())?;
            }
            Ok(())
        }),
    )?;
    stop()
}

/// Installs a handler of SIGTERM, and returns a function that waits for it.
fn stop_signal() -> anyhow::Result<impl FnOnce() -> anyhow::Result<()>> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let mut stop = {
        let _inside = runtime.enter();
        tokio::signal::unix::signal(tokio::signal::unix::SignalKind::terminate())?
    };
    Ok(move || {
        runtime.block_on(stop.recv());
        Ok(())
    })
}

fn read(peer: &Arc<UnixStream>, intake: &Sender<Request>) -> anyhow::Result<()> {
    let mut from: &UnixStream = peer;
    from.read_exact(&mut [0; PREAMBLE_LEN])?;
    loop {
        let mut header = [0; 4];
        from.read_exact(&mut header)?;
        let len = u32::from_be_bytes(header) as usize;
        anyhow::ensure!(len <= WIRE_FRAME_BYTES_MAX, "a frame of {len} bytes");
        let mut frame = Vec::with_capacity(len);
        from.take(len as u64).read_to_end(&mut frame)?;
        intake.send(Request { frame, peer: peer.clone() })?;
    }
}

fn pack(waiting: &Receiver<Request>, packed: &Sender<Packed>) -> anyhow::Result<()> {
    let mut compressor = zstd::bulk::Compressor::new(ZSTD_LEVEL)?;
    let mut block = Vec::with_capacity(BLOCK_RAW_BYTES);
    let mut space = vec![0; zstd::zstd_safe::compress_bound(BLOCK_RAW_BYTES)];
    while let Ok(first) = waiting.recv() {
        let mut out = Packed { bytes: Vec::new(), requests: Vec::new() };
        let mut flush = |block: &mut Vec<u8>, to: &mut Vec<u8>| -> anyhow::Result<()> {
            let len = compressor.compress_to_buffer(block, space.as_mut_slice())?;
            to.extend_from_slice(space.get(..len).unwrap_or_default());
            block.clear();
            Ok(())
        };
        let mut raw_len = 0;
        let mut next = Some(first);
        while let Some(work) = next {
            let mut rest = work.frame.get(8..).unwrap_or_default();
            raw_len += rest.len();
            while !rest.is_empty() {
                let (now, later) = rest.split_at(rest.len().min(BLOCK_RAW_BYTES - block.len()));
                block.extend_from_slice(now);
                rest = later;
                if block.len() == BLOCK_RAW_BYTES {
                    flush(&mut block, &mut out.bytes)?;
                }
            }
            out.requests.push(work);
            next = if raw_len < COMMIT_RAW_BYTES { waiting.try_recv().ok() } else { None };
        }
        if !block.is_empty() {
            flush(&mut block, &mut out.bytes)?;
        }
        packed.send(out)?;
    }
    Ok(())
}

fn write(mut file: File, ready: &Receiver<Packed>) -> anyhow::Result<()> {
    while let Ok(packed) = ready.recv() {
        file.write_all(&packed.bytes)?;
        file.sync_data()?;
        for work in packed.requests {
            let id = work.frame.first_chunk().map_or(0, |id| u64::from_be_bytes(*id));
            // The peer may have disconnected.
            let _ = (&*work.peer).write_all(&answer_frame(id, &[0xc0]));
        }
    }
    Ok(())
}
