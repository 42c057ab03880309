//! The restart of the master around a change of its configuration.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context as _;

use super::managed::Before;
use super::plan::{Done, ensure_undone};
use super::service;
use crate::cli::salt_python::MASTER_UNIT;
use crate::config::salt_master::SaltMaster;
use crate::reactor::master::{Master, MasterAddress};

/// Timeout for a response from a restarted master.
pub(super) const MASTER_START_TIME: Duration = Duration::from_secs(120);

/// The address at which to wait for a restarted master; `None` if only Salt speaks its transport.
pub(super) fn waited_for(master: &SaltMaster) -> Option<MasterAddress> {
    let is_spoken = master
        .text("transport")
        .is_none_or(|transport| transport == "zeromq");
    is_spoken.then(|| MasterAddress::of(master))
}

/// Starts the master, and waits until it responds.
fn start_master(address: Option<&MasterAddress>) -> anyhow::Result<()> {
    service::systemctl("start", &[MASTER_UNIT])?;
    let Some(address) = address else {
        return Ok(());
    };

    let master = Master::new(address.clone(), Arc::default());

    // systemd may consider the master started before its processes listen, so its state alone
    // proves nothing.
    let until = Instant::now() + MASTER_START_TIME;
    loop {
        // Any process of the master that responds proves that it has started with the new file.
        let error = match master.ping(Duration::from_secs(10)) {
            Ok(()) => return Ok(()),
            Err(error) => error,
        };

        // A master that ended will not respond.
        let has_ended = !service::is("is-active", MASTER_UNIT)?;
        if has_ended || Instant::now() > until {
            return Err(error).with_context(|| {
                format!("wait for {MASTER_UNIT} (see `journalctl -u {MASTER_UNIT}`)")
            });
        }

        std::thread::sleep(Duration::from_millis(200));
    }
}

/// Changes a file while the master is stopped, because two reactors must never act at the same
/// time. If the master does not respond afterwards, restores the file and restarts the master.
pub(super) fn restarted_around(
    path: &Path,
    address: Option<&MasterAddress>,
    change: impl FnOnce(&Path) -> std::io::Result<()>,
) -> anyhow::Result<Done> {
    let before = Before::of(path).with_context(|| format!("read {}", path.display()))?;

    service::systemctl("stop", &[MASTER_UNIT])?;

    // The error is kept, because a stopped master must be started again whatever failed.
    let changed = change(path)
        .with_context(|| format!("change {}", path.display()))
        .and_then(|()| start_master(address));

    let path = path.to_owned();
    let back = move || {
        before
            .restore(&path)
            .with_context(|| format!("restore {}", path.display()))?;
        service::systemctl("restart", &[MASTER_UNIT])
    };

    match changed {
        Ok(()) => {
            let does = "restore the master's configuration, and restart it";
            Ok(Done::new()
                .with_result(format!("{MASTER_UNIT} responds with it"))
                .undone_by(does, back))
        }

        Err(error) => {
            // A master without a response publishes no job, so the previous file returns before
            // anything else.
            let what = "restore the master's configuration and restart it";
            ensure_undone(&error, what, back())?;
            Err(error.context("restart the master; its previous configuration is restored"))
        }
    }
}
