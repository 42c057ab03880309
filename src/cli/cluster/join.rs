//! `saltcellar cluster join`: copies the history of a peer's daemon into this daemon's store.

use std::path::PathBuf;

use anyhow::{Context as _, anyhow};
use serde_json::json;

use crate::base::clock::Clock;
use crate::cli::format::exit::BadUsage;
use crate::cli::store::tool::{config, count, field};
use crate::cli::{Bar, Global, Unit, show};
use crate::cluster::Cluster;
use crate::daemon::open_for_command;
use crate::ingest::join::Joining;
use crate::model::MasterName;
use crate::store::tools::backup::restore;

#[derive(clap::Args)]
pub(in crate::cli) struct Args {
    /// The backup that the peer's daemon has made (`store backup`)
    #[arg(value_name = "BACKUP")]
    backup: PathBuf,
    /// The name of that master in the shared history
    #[arg(long, value_name = "NAME")]
    peer: String,
}

pub(in crate::cli) const EXAMPLES: &str = "\
A new daemon, and one that was away for longer than cluster.window, learns from the stream what is not older. What is older, or missing \
after a gap, it copies from the backup of any other daemon of the history: the entries of that master, and what its daemon has of the \
others. Nothing is stored twice. The own daemon must be stopped, and needs room for a copy of the backup next to its state directory.

Examples:
  on m1:  saltcellar store backup /backup/m1
  on m3:  saltcellar cluster join /backup/m1 --peer m1 && systemctl start saltcellar";

pub(super) fn run(global: &Global, args: &Args) -> anyhow::Result<()> {
    let config = config(global)?;
    let cluster = Cluster::of(&config, &crate::daemon::master_id(&config))?;
    let cluster = cluster.ok_or_else(|| {
        BadUsage(
            "join the history: cluster.nats is not configured; `saltcellar cluster init` writes the configuration of each master"
                .to_owned(),
        )
    })?;
    let peer = MasterName::new(&args.peer).ok_or_else(|| {
        BadUsage(format!(
            "read --peer: {:?} is not the name of a master; give its cluster.name, or the id of its Salt master",
            args.peer
        ))
    })?;

    let clock = Clock::real();
    let holder = format!("pid {}, joining a history", std::process::id());
    let options = crate::daemon::store_options(&config, holder, clock.clone());
    let (policy, _) = crate::daemon::policy(&config, &clock, &options.metrics);
    // Opened before the backup is copied: its lock shows that the daemon is stopped.
    let (store, intake, threads) = open_for_command(&options)
        .context("open the store")?
        .on_threads();

    // In the file system of the state directory, which has room for histories.
    let mut beside = options.dir.clone().into_os_string();
    beside.push(".joining");
    let beside = PathBuf::from(beside);
    if beside.exists() {
        let what = || {
            format!(
                "remove {}, the rest of an earlier attempt; delete it by hand",
                beside.display()
            )
        };
        std::fs::remove_dir_all(&beside).with_context(what)?;
    }
    let mut bar = Bar::new("read the backup", Unit::Bytes);
    restore::restore(&args.backup, &beside, clock.now(), &mut bar).context("read the backup")?;
    drop(bar);

    let mut of_peer = crate::daemon::store_options(&config, "a copy".to_owned(), clock);
    of_peer.dir.clone_from(&beside);
    let (from, from_intake, from_threads) = open_for_command(&of_peer)
        .context("open the copy of the backup")?
        .on_threads();

    let joining = Joining {
        store: &store,
        intake: &intake,
        policy: &policy,
        metrics: &options.metrics,
        name: &cluster.name,
        shared: cluster.shared(),
    };
    let joined = joining
        .copy(&from, &peer)
        .with_context(|| format!("copy from {}", args.backup.display()));

    // Closed in any case: both stores write what is open.
    drop((from, from_intake, intake));
    for thread in threads.into_iter().chain(from_threads) {
        thread.join().map_err(|_| {
            anyhow!("close the store: a thread panicked; report the backtrace above")
        })?;
    }
    store.note_stop()?;
    // An error of the copying counts more than that of its end.
    let removed = std::fs::remove_dir_all(&beside);
    let joined = joined?;
    removed.with_context(|| format!("remove {}, the copy of the backup: the history is joined; delete the directory by hand", beside.display()))?;

    let masters: Vec<_> = joined.masters.iter().cloned().collect();
    let document = json!({
        "backup": args.backup.to_string_lossy(),
        "stored": joined.stored,
        "known": joined.known,
        "masters": masters,
    });
    show(global.output, &document, |out| {
        field(out, "stored", &count(joined.stored, "entry", "entries"))?;
        field(out, "known", &count(joined.known, "entry", "entries"))?;
        Ok(field(out, "masters", &masters.join(", "))?)
    })
}
