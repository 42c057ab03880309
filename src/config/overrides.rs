//! What the command line sets.

use std::path::PathBuf;

/// Settings from the command line.
#[derive(Debug, Clone, Default)]
pub struct CliOverrides {
    /// `--config`: replaces the default file. It must exist.
    pub config: Option<PathBuf>,
    /// `--state-dir`
    pub state_dir: Option<PathBuf>,
    /// `--socket`
    pub socket: Option<PathBuf>,
    /// `--bus`, each occurrence; replaces the file's list.
    pub bus: Vec<PathBuf>,
    /// `--log-level`
    pub log_level: Option<String>,
}
