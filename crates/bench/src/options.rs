//! The options that benchmarks share.

use std::path::PathBuf;

use anyhow::{Context as _, ensure};
use saltcellar::cli::Format;
use tempfile::TempDir;

use crate::child;

/// Options of every benchmark.
#[derive(clap::Args)]
pub(crate) struct Options {
    /// The saltcellar to measure [default: the one next to this program]
    #[arg(long, global = true, value_name = "FILE")]
    pub(crate) program: Option<PathBuf>,
    /// Configuration file of the daemon [default: defaults]
    #[arg(long, global = true, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    /// Output format
    #[arg(
        long,
        global = true,
        value_enum,
        default_value = "table",
        value_name = "FORMAT"
    )]
    pub(crate) output: Format,
}

impl Options {
    /// The program to measure.
    pub(crate) fn program(&self) -> anyhow::Result<PathBuf> {
        let program = match &self.program {
            Some(program) => std::path::absolute(program).context("find the program to measure")?,
            None => std::env::current_exe()
                .context("find this program")?
                .with_file_name("saltcellar"),
        };

        ensure!(
            program.is_file(),
            "find the program to measure: {} is no file; build it with `cargo build --release`, or name one with --program",
            program.display()
        );
        Ok(program)
    }
}

#[derive(clap::Args)]
pub(crate) struct Common {
    /// Create the temporary state directory in DIR, to measure its disk
    #[arg(long, value_name = "DIR")]
    pub(crate) dir: Option<PathBuf>,
    /// Keep the state directory
    #[arg(long)]
    pub(crate) keep: bool,
    /// Seed of the events; equal seeds generate equal events
    #[arg(long, default_value_t = 1)]
    pub(crate) seed: u64,
}

impl Common {
    pub(crate) fn scratch(&self) -> anyhow::Result<TempDir> {
        child::scratch(self.dir.as_deref(), self.keep)
    }
}

/// Parses a number of events per second.
pub(crate) fn rate(text: &str) -> Result<f64, String> {
    let text = text.strip_suffix("/s").unwrap_or(text);
    let rate = text
        .parse::<f64>()
        .ok()
        .filter(|rate| rate.is_finite() && *rate > 0.0);
    rate.ok_or_else(|| "expected a number of events per second".to_owned())
}
