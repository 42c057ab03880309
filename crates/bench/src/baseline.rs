//! The baseline as a process that receives the load over a unix socket, because transport must cost
//! the same as for the daemon.
//!
//! ```text
//! preamble, then frames: u32 length | u64 id | tags and data                     (big-endian)
//! responses in the daemon's format
//! ```

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::sync::Arc;
use std::thread::Builder;

use anyhow::Context as _;
use crossbeam_channel::Sender;
use saltcellar::base::limits::WIRE_FRAME_BYTES_MAX;
use saltcellar::wire::call::{PREAMBLE_LEN, answer_frame};
use saltcellar_testkit::baseline;
use tokio::signal::unix::{SignalKind, signal};

#[derive(clap::Args)]
pub(crate) struct Args {
    #[arg(long)]
    listen: PathBuf,
    #[arg(long)]
    into: PathBuf,
    #[arg(long, default_value_t = 1)]
    packers: usize,
}

/// The id of a batch, and its sender.
type Token = (u64, Arc<UnixStream>);

pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    std::fs::create_dir(&args.into).with_context(|| format!("create {}", args.into.display()))?;
    let file = File::create(args.into.join("raw")).context("create the file")?;

    let (intake, mut threads) = baseline::start(file, args.packers, |(id, peer): Token| {
        // The peer may have disconnected.
        let _ = (&*peer).write_all(&answer_frame(id, &[0xc0]));
    })?;

    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;

    // Before the socket exists, because a client that connects may already stop this process.
    let mut stop = runtime.block_on(async { signal(SignalKind::terminate()) })?;

    let listener = UnixListener::bind(&args.listen).context("listen")?;

    let accept = move || -> anyhow::Result<()> {
        loop {
            let peer = Arc::new(listener.accept()?.0);
            let intake = intake.clone();
            // The thread ends with its connection.
            Builder::new()
                .name("sc-base-read".to_owned())
                .spawn(move || read(&peer, &intake).ok())?;
        }
    };

    threads.push(
        Builder::new()
            .name("sc-base-accept".to_owned())
            .spawn(accept)
            .context("start a thread")?,
    );

    for thread in threads {
        // None of them ends without an error.
        let exit = move || {
            let outcome = thread.join();
            tracing::error!(?outcome, "baseline failed");
            std::process::exit(1);
        };

        Builder::new()
            .name("sc-base-watch".to_owned())
            .spawn(exit)
            .context("start a thread")?;
    }

    runtime.block_on(stop.recv());
    Ok(())
}

fn read(peer: &Arc<UnixStream>, intake: &Sender<(Vec<u8>, Token)>) -> anyhow::Result<()> {
    let mut from: &UnixStream = peer;
    from.read_exact(&mut [0; PREAMBLE_LEN])?;
    loop {
        let (mut len, mut id) = ([0; 4], [0; 8]);
        from.read_exact(&mut len)?;
        from.read_exact(&mut id)?;

        let len = u32::from_be_bytes(len) as usize;
        // A wrong length must not be allocated.
        anyhow::ensure!(
            (8..=WIRE_FRAME_BYTES_MAX).contains(&len),
            "a frame of {len} bytes"
        );

        let mut batch = Vec::with_capacity(len - 8);
        from.take(len as u64 - 8).read_to_end(&mut batch)?;
        intake.send((batch, (u64::from_be_bytes(id), peer.clone())))?;
    }
}
