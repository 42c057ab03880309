//! `saltcellar completions SHELL` and `saltcellar man DIR`: output generated from the definition of
//! the command line, as `docs/CLI.md` is.

use std::path::PathBuf;

use anyhow::Context as _;
use clap_complete::Shell;

use crate::cli::{Format, Output};

#[derive(clap::Args)]
#[command(after_long_help = EXAMPLES)]
pub(in crate::cli) struct Args {
    /// The shell
    shell: Shell,
}

const EXAMPLES: &str = "\
Examples:
  saltcellar completions bash > ~/.local/share/bash-completion/completions/saltcellar
  saltcellar completions zsh > ~/.zfunc/_saltcellar
  saltcellar completions fish > ~/.config/fish/completions/saltcellar.fish";

pub(in crate::cli) fn run(command: &mut clap::Command, args: &Args) -> anyhow::Result<()> {
    // The generator panics if a write fails, so it writes to memory.
    let mut script = Vec::new();
    clap_complete::generate(args.shell, command, "saltcellar", &mut script);
    let mut out = Output::new(Format::Table);
    out.text(&String::from_utf8_lossy(&script))?;
    Ok(out.flush()?)
}

#[derive(clap::Args)]
pub(in crate::cli) struct ManArgs {
    /// An existing directory
    directory: PathBuf,
}

/// Writes `saltcellar.1` and a page of each verb, such as `saltcellar-jobs-list.1`.
pub(in crate::cli) fn man(command: clap::Command, args: &ManArgs) -> anyhow::Result<()> {
    clap_mangen::generate_to(command, &args.directory)
        .with_context(|| format!("write manual pages to {}", args.directory.display()))
}
