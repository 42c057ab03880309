//! Rights: what a peer of the local socket may do, from the uid that the kernel reports for it.
//!
//! The socket's permissions decide who can connect. Every call in [`CALLS`](super::CALLS) names the
//! right that it needs.

use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::path::PathBuf;
use std::sync::Arc;

use super::{CallEntry, CallHandler, Ctx};
use crate::ingest::bus::BusMonitor;
use crate::model::{Limit, ReadLimits, Right};
use crate::wire::call::{Args, CallError};

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Caller {
    /// The effective user when the caller connected; `None` if the kernel does not report it.
    pub(crate) uid: Option<u32>,
    /// The process id when the caller connected, if it is a process of this machine.
    pub(crate) pid: Option<u32>,
    /// Limits on what the caller may read.
    pub(crate) limits: Arc<ReadLimits>,
}

/// A call with its arguments.
#[derive(Clone, Copy)]
struct Asked {
    is_import: bool,
    is_of_sink: bool,
}

impl CallEntry {
    fn asked(&self, ctx: &Ctx, args: &Args<'_>) -> Result<Asked, CallError> {
        let is_import = matches!(self.run, CallHandler::Write(_)) && args.flag("import")?;
        let is_of_sink = self.changes_consumer
            // An engine may be new and have no consumer yet, or be removed and have left one.
            && args
                .text("name")?
                .is_some_and(|name| ctx.engines.has(name) || ctx.store.is_of_sink(name));

        Ok(Asked {
            is_import,
            is_of_sink,
        })
    }

    fn right_for(&self, asked: Asked) -> Right {
        if asked.is_import || asked.is_of_sink {
            Right::Admin
        } else {
            self.right
        }
    }

    /// The right that the call needs with these arguments: an import needs more, and so does a
    /// change of the consumer of a sink, which is the sink's position, filter and switch.
    pub(in crate::api) fn needed(&self, ctx: &Ctx, args: &Args<'_>) -> Result<Right, CallError> {
        Ok(self.right_for(self.asked(ctx, args)?))
    }

    /// The first limit, if any, that the call does not apply: it must not be made under these
    /// limits.
    pub(in crate::api) fn unapplied(&self, limits: &ReadLimits) -> Option<Limit> {
        let is_unapplied =
            |limit: &Limit| limits.of(*limit).is_some() && !self.applies.contains(limit);
        Limit::ALL.into_iter().find(is_unapplied)
    }
}

/// Maps uids to rights.
pub(crate) struct Rights {
    daemon: u32,
    others: Right,
    buses: Vec<BusMonitor>,
}

impl Rights {
    /// Administrators are root, the user `daemon`, and the owners of the sockets of `buses`; all
    /// other peers have the right `others`.
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

    pub(in crate::api) fn of(&self, caller: &Caller) -> Right {
        let is_admin =
            |uid| uid == 0 || uid == self.daemon || self.owners().any(|(_, owner)| uid == owner);
        if caller.uid.is_some_and(is_admin) {
            Right::Admin
        } else {
            self.others
        }
    }

    /// Rejects a call whose caller lacks the right for it, or has limits that it does not apply.
    pub(in crate::api) fn check(
        &self,
        ctx: &Ctx,
        call: &CallEntry,
        args: &Args<'_>,
        caller: &Caller,
    ) -> Result<(), CallError> {
        // Before anything else of the call: under a limit that it cannot apply, even an error would
        // tell something.
        if let Some(limit) = call.unapplied(&caller.limits) {
            ctx.metrics.calls_denied.add(1);
            return Err(CallError::Refused(format!(
                "call `{}` cannot apply the limit by {} of its caller",
                call.name,
                limit.name()
            )));
        }

        let asked = call.asked(ctx, args)?;
        let needed = call.right_for(asked);
        // Most calls need no access to the buses' sockets.
        if needed <= self.others {
            return Ok(());
        }

        let has = self.of(caller);
        if needed <= has {
            return Ok(());
        }

        ctx.metrics.calls_denied.add(1);
        Err(CallError::Refused(
            self.denial(call.name, asked, needed, has, caller),
        ))
    }

    fn denial(
        &self,
        call: &str,
        asked: Asked,
        needed: Right,
        has: Right,
        caller: &Caller,
    ) -> String {
        let uid = caller
            .uid
            .map_or_else(|| "an unknown uid".to_owned(), |uid| format!("uid {uid}"));

        let how = match asked {
            Asked {
                is_import: true, ..
            } => " for an import",
            Asked {
                is_of_sink: true, ..
            } => " for the consumer of a sink",
            _ => "",
        };

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

        format!(
            "call `{call}`{how} needs the right `{}`, {uid} has `{}`: {remedy}",
            needed.name(),
            has.name()
        )
    }
}
