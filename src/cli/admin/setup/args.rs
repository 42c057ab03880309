//! The flags of setup.

use std::path::PathBuf;

use super::extension::Install;
use crate::config::salt_master::SALT_CONFIG;

#[derive(clap::Args)]
#[expect(clippy::struct_excessive_bools, reason = "they are flags")]
pub(in crate::cli) struct Args {
    /// Show the plan and change nothing
    #[arg(long, conflicts_with = "check")]
    pub(super) dry_run: bool,
    /// Check that everything is in place and in effect
    #[arg(long, conflicts_with = "remove")]
    pub(super) check: bool,
    /// Undo the setup; stored data and the daemon's other settings stay
    #[arg(long)]
    pub(super) remove: bool,
    /// Make the changes without a question
    #[arg(short, long, conflicts_with_all = ["dry_run", "check"])]
    pub(super) yes: bool,
    /// Only watch: read the bus, serve the web UI on a loopback address, and leave the master as it is, without a restart
    #[arg(long, conflicts_with_all = ["remove", "reactor", "no_reactor", "events", "job_cache", "no_job_cache", "extension", "minion_listener", "master_only"])]
    pub(super) passive: bool,
    /// Also import the jobs of Salt's job cache
    #[arg(long, conflicts_with_all = ["check", "remove", "minion_listener", "master_only"])]
    pub(super) import: bool,
    /// Also hand the master's reactor over to saltcellar
    #[arg(long, conflicts_with = "minion_listener")]
    pub(super) reactor: bool,
    /// Hand the reactor back to Salt, after `--reactor` in an earlier run
    #[arg(long, conflicts_with_all = ["reactor", "minion_listener"])]
    pub(super) no_reactor: bool,
    /// Source of events: the bus, Salt's event_return, or none [default: as in the last run, or the bus]
    #[arg(long, value_enum)]
    pub(super) events: Option<Events>,
    /// Make saltcellar the master's job cache, after `--no-job-cache` in an earlier run
    #[arg(long, conflicts_with = "no_job_cache")]
    pub(super) job_cache: bool,
    /// Do not change the master's job cache
    #[arg(long)]
    pub(super) no_job_cache: bool,
    /// Method of installing Salt's extension [default: as in the last run, or module-dirs]
    #[arg(long, value_enum, value_name = "METHOD")]
    pub(super) extension: Option<Install>,
    /// Directory of the extension: `returners/saltcellar.py`, or its wheel [default: /usr/share/saltcellar, or ../share/saltcellar
    /// next to this program]
    #[arg(long, value_name = "DIR")]
    pub(super) extension_dir: Option<PathBuf>,
    /// Only manage the file in master.d: neither the daemon's configuration nor services
    #[arg(long, conflicts_with = "minion_listener")]
    pub(super) master_only: bool,
    /// Manage the file of a minion on another host; URL is the address of the daemon's minion listener
    #[arg(long, value_name = "URL", value_parser = https_url, conflicts_with_all = ["events", "job_cache", "no_job_cache", "extension", "extension_dir"])]
    pub(super) minion_listener: Option<String>,
    /// With --minion-listener: CA certificate of the daemon, in PEM [default: the CAs of the system]
    #[arg(long, value_name = "FILE", value_parser = absolute, requires = "minion_listener")]
    pub(super) ca: Option<PathBuf>,
    /// Salt's configuration directory, as for Salt's option -c
    #[arg(long, value_name = "DIR", default_value = SALT_CONFIG)]
    pub(super) salt_config: PathBuf,
    /// Salt's Python [default: that of the running salt-master, of its unit, or of the installed one]
    #[arg(long, value_name = "PROGRAM")]
    pub(super) salt_python: Option<PathBuf>,
    /// Directory below which system files are found, for tests
    #[arg(long, value_name = "DIR", default_value = "/", hide = true)]
    pub(super) root: PathBuf,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum Events {
    /// `bus` in the daemon's configuration
    Bus,
    /// `event_return` in the master's
    EventReturn,
    /// No events
    None,
}

fn https_url(text: &str) -> Result<String, String> {
    let host = text.strip_prefix("https://").unwrap_or_default();

    let fits = !host.is_empty()
        && !host.starts_with([':', '/'])
        && text
            .chars()
            .all(|c| c.is_ascii_graphic() && !matches!(c, '"' | '\\'));

    fits.then(|| text.to_owned()).ok_or_else(|| {
        "expected the URL of the daemon's minion listener, such as https://master.example:4580"
            .to_owned()
    })
}

/// Parses the path of a file on the minion.
fn absolute(text: &str) -> Result<PathBuf, String> {
    let path = PathBuf::from(text);
    if path.is_absolute() {
        Ok(path)
    } else {
        Err("expected the absolute path of a file on the minion".to_owned())
    }
}
