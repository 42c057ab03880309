//! Rights: what a peer of the local socket may do, from the uid that the kernel reports for it.
//!
//! The socket's permissions decide who can connect. Every call in [`CALLS`](super::CALLS) names the
//! right that it needs.

use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::path::PathBuf;
use std::sync::Arc;

use crate::api::caller::Caller;
use crate::base::metrics::Metrics;
use crate::ingest::bus::BusMonitor;
use crate::model::{Limit, ReadLimits, Right};
use crate::wire::call::CallError;

/// The first limit of a caller, if any, that a call does not apply, which therefore must not be made.
pub(in crate::api) fn unapplied(applies: &[Limit], limits: &ReadLimits) -> Option<Limit> {
    let is_unapplied = |limit: &Limit| limits.of(*limit).is_some() && !applies.contains(limit);
    Limit::ALL.into_iter().find(is_unapplied)
}

/// Maps uids to rights.
pub(crate) struct Rights {
    daemon: u32,
    others: Right,
    buses: Vec<BusMonitor>,
    metrics: Arc<Metrics>,
}

impl Rights {
    /// Administrators are root, the user `daemon`, and the owners of the sockets of `buses`; all
    /// other peers have the right `others`.
    pub(crate) fn new(
        daemon: u32,
        others: Right,
        buses: Vec<BusMonitor>,
        metrics: Arc<Metrics>,
    ) -> Self {
        Self {
            daemon,
            others,
            buses,
            metrics,
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

    pub(in crate::api) fn of(&self, caller: &Caller) -> Right {
        if let Some(granted) = caller.granted {
            return granted;
        }

        let is_admin =
            |uid| uid == 0 || uid == self.daemon || self.owners().any(|(_, owner)| uid == owner);
        if caller.uid.is_some_and(is_admin) {
            Right::Admin
        } else {
            self.others
        }
    }

    /// Rejects a call whose caller lacks the right for it, or has limits that it does not apply.
    /// Its arguments can need another right, see [`Raised`](super::Raised).
    pub(in crate::api) fn check(
        &self,
        call: &str,
        (right, applies): (Right, &[Limit]),
        caller: &Caller,
    ) -> Result<(), CallError> {
        // Before anything else of the call: under a limit that it cannot apply, even an error would
        // tell something.
        if let Some(limit) = unapplied(applies, &caller.limits) {
            self.metrics.calls_denied.add(1);
            return Err(CallError::Denied(format!(
                "call `{call}` cannot apply the limit by {} of its caller",
                limit.name()
            )));
        }

        self.check_right((call, ""), right, caller)
    }

    /// Rejects a caller without the right for a call, or for a purpose such as ` for an import`.
    pub(super) fn check_right(
        &self,
        (call, purpose): (&str, &str),
        needed: Right,
        caller: &Caller,
    ) -> Result<(), CallError> {
        // Most calls need no access to the buses' sockets.
        if caller.granted.is_none() && needed <= self.others {
            return Ok(());
        }

        let has = self.of(caller);
        if needed <= has {
            return Ok(());
        }

        self.metrics.calls_denied.add(1);
        Err(CallError::Denied(format!(
            "call `{call}`{purpose} needs the right `{}`, {}",
            needed.name(),
            self.denial(needed, has, caller)
        )))
    }

    /// What the caller has, and the remedy.
    fn denial(&self, needed: Right, has: Right, caller: &Caller) -> String {
        if caller.granted.is_some() {
            return format!("the token has `{}`", has.name());
        }

        let uid = caller
            .uid
            .map_or_else(|| "an unknown uid".to_owned(), |uid| format!("uid {uid}"));

        // The remedy must be one that the reader can carry out.
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

        format!("{uid} has `{}`: {remedy}", has.name())
    }
}
