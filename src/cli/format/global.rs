//! The options that every verb has.

use std::path::PathBuf;

use super::colour::Choice;
use super::output::Form;
use crate::config::CliOverrides;

#[derive(clap::Args)]
pub(in crate::cli) struct Global {
    /// The daemon's unix socket [env: SALTCELLAR_SOCKET]
    #[arg(
        long,
        global = true,
        value_name = "PATH",
        help_heading = "Global options"
    )]
    pub(in crate::cli) socket: Option<PathBuf>,
    /// The daemon's state directory [env: SALTCELLAR_STATE_DIR]
    #[arg(
        long,
        global = true,
        value_name = "DIR",
        help_heading = "Global options"
    )]
    pub(in crate::cli) state_dir: Option<PathBuf>,
    /// Read this configuration file, and `conf.d` in its directory, instead of the default ones
    #[arg(
        long,
        global = true,
        value_name = "FILE",
        help_heading = "Global options"
    )]
    pub(in crate::cli) config: Option<PathBuf>,
    /// Output format
    #[arg(short, long, global = true, value_enum, default_value_t = Form::Table, hide_possible_values = true,
          value_name = "table|json|jsonl|csv", help_heading = "Global options")]
    pub(in crate::cli) output: Form,
    /// Colour by result: auto is on a terminal, unless NO_COLOR is set
    #[arg(long, global = true, value_enum, default_value_t = Choice::Auto, hide_possible_values = true,
          value_name = "auto|always|never", help_heading = "Global options")]
    pub(in crate::cli) color: Choice,
    /// Print no progress and no confirmation, only errors and what was asked for
    #[arg(short, long, global = true, help_heading = "Global options")]
    pub(in crate::cli) quiet: bool,
    /// Show and read times in UTC, not in the local time zone; JSON output is always in UTC
    #[arg(long, global = true, help_heading = "Global options")]
    pub(in crate::cli) utc: bool,
    /// Print long output without a pager [env: PAGER]
    #[arg(long, global = true, help_heading = "Global options")]
    pub(in crate::cli) no_pager: bool,
}

#[cfg(test)]
impl Global {
    /// No flag but `--output json`.
    pub(in crate::cli) fn with_json() -> Self {
        Self {
            socket: None,
            state_dir: None,
            config: None,
            output: Form::Json,
            color: Choice::Auto,
            quiet: false,
            utc: false,
            no_pager: false,
        }
    }
}

impl Global {
    pub(in crate::cli) fn overrides(&self) -> CliOverrides {
        CliOverrides {
            config: self.config.clone(),
            state_dir: self.state_dir.clone(),
            socket: self.socket.clone(),
            ..CliOverrides::default()
        }
    }
}
