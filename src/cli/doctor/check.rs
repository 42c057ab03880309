//! A check: the name of its findings, what the page says of it, and what it looks at.

use std::path::PathBuf;

use super::finding::Findings;
use super::master_use::{MasterContext, Uses};
use crate::api::call::status::Status;
use crate::api::client::Client;
use crate::config::Config;

/// A row of the table in docs/DOCTOR.md. Each file of checks contains a list of them.
pub(super) struct Check {
    /// The name of its findings.
    pub(super) name: &'static str,
    /// What follows "reports a warning or problem if" in the table.
    pub(super) not_ok_when: &'static str,
    pub(super) run: Run,
}

/// How a check runs: with what it looks at.
pub(super) enum Run {
    /// Asks the daemon; left out if it does not respond.
    Daemon(fn(&mut Findings, &mut Daemon<'_>)),
    /// Looks at this host, with or without a daemon.
    Machine(fn(&mut Findings, &Machine<'_>)),
    /// Looks at the configuration of the Salt master; left out without one.
    Master(fn(&mut Findings, &MasterContext<'_>, &Uses)),
    /// A row only. Another check reports under this name, or it runs before all others because they
    /// need what it finds.
    ByAnother,
}

pub(super) struct Daemon<'a> {
    pub(super) client: Client,
    pub(super) status: Status,
    pub(super) config: &'a Config,
}

pub(super) struct Machine<'a> {
    pub(super) config: &'a Config,
    pub(super) daemon_uid: u32,
    pub(super) daemon_answers: bool,
    /// Spools in addition to the configured spools.
    pub(super) spools: Vec<PathBuf>,
}
