//! Rights: what a peer of the local socket may do, from the uid that the kernel reports for it.
//!
//! The socket's permissions decide who can connect. Every call in [`CALLS`](super::CALLS) names the right that it needs.

use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::path::PathBuf;

use super::{Call, CallHandler};
use crate::base::metrics::Metrics;
use crate::ingest::bus::BusMonitor;
use crate::model::Right;
use crate::wire::call::{Args, CallError};

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Caller {
    /// Its effective user when it connected; `None` if the kernel does not report it.
    pub(crate) uid: Option<u32>,
    /// Its id when it connected, if it is a process of this machine.
    pub(crate) pid: Option<u32>,
}

/// Maps uids to rights.
pub(crate) struct Rights {
    daemon: u32,
    others: Right,
    buses: Vec<BusMonitor>,
}

impl Rights {
    /// Administrators are root, the user `daemon`, and the owners of the sockets of `buses`; all other peers have the right `others`.
    pub(crate) fn new(daemon: u32, others: Right, buses: Vec<BusMonitor>) -> Self {
        Self {
            daemon,
            others,
            buses,
        }
    }

    /// Reads the sockets' owners each time: a master creates its socket when it starts.
    fn owners(&self) -> impl Iterator<Item = (PathBuf, u32)> {
        self.buses.iter().filter_map(|bus| {
            let path = bus.status().path;
            let found = std::fs::symlink_metadata(&path)
                .ok()
                .filter(|found| found.file_type().is_socket())?;
            Some((path, found.uid()))
        })
    }

    pub(in crate::api) fn of(&self, caller: Caller) -> Right {
        let is_admin =
            |uid| uid == 0 || uid == self.daemon || self.owners().any(|(_, owner)| uid == owner);
        if caller.uid.is_some_and(is_admin) {
            Right::Admin
        } else {
            self.others
        }
    }

    /// Rejects a call whose caller lacks the right for it.
    pub(in crate::api) fn check(
        &self,
        call: &Call,
        args: &Args<'_>,
        caller: Caller,
        metrics: &Metrics,
    ) -> Result<(), CallError> {
        let is_import = matches!(call.run, CallHandler::Write(_)) && args.flag("import")?;
        let needed = if is_import { Right::Admin } else { call.right };
        // Most calls need no access to the buses' sockets.
        if needed <= self.others {
            return Ok(());
        }
        let has = self.of(caller);
        if needed <= has {
            return Ok(());
        }
        metrics.calls_denied.add(1);
        Err(CallError::Refused(
            self.denial(call.name, is_import, needed, has, caller),
        ))
    }

    fn denial(
        &self,
        call: &str,
        is_import: bool,
        needed: Right,
        has: Right,
        caller: Caller,
    ) -> String {
        let uid = caller
            .uid
            .map_or_else(|| "an unknown uid".to_owned(), |uid| format!("uid {uid}"));
        let how = if is_import { " for an import" } else { "" };
        let remedy = if needed < Right::Admin {
            "`socket_peers: write` in the daemon's configuration gives it to all peers".to_owned()
        } else {
            let of_bus = |(path, owner): (PathBuf, u32)| {
                format!(", the owner of {} (uid {owner})", path.display())
            };
            let owners = self.owners().map(of_bus).collect::<Vec<_>>().concat();
            format!(
                "root, the daemon's user (uid {}){owners} have it",
                self.daemon
            )
        };
        format!(
            "call `{call}`{how} needs the right `{}`, {uid} has `{}`: {remedy}",
            needed.name(),
            has.name()
        )
    }
}
