//! Starts the daemon's own log, on standard error.

use std::io::{self, IsTerminal};

use tracing_subscriber::EnvFilter;

use crate::config::{LogConfig, LogFormat};

/// From here on, what the program says about itself is printed. A second call changes nothing.
pub(super) fn start(config: &LogConfig) {
    let filter = EnvFilter::builder().parse_lossy(&config.level);
    let log = tracing_subscriber::fmt().with_env_filter(filter).with_writer(io::stderr);
    // An error means that a log has been started already.
    let _ = match config.format {
        LogFormat::Json => log.json().flatten_event(true).try_init(),
        LogFormat::Text => log.with_ansi(false).try_init(),
        LogFormat::Auto => {
            let colour = std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
            let log = log.with_ansi(io::stderr().is_terminal() && colour);
            // The journal stamps each line itself.
            if std::env::var_os("JOURNAL_STREAM").is_some() {
                log.without_time().try_init()
            } else {
                log.try_init()
            }
        }
    };
}
