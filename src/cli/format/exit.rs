//! Exit codes, after sysexits(3), and the mapping from errors to them.

use std::process::ExitCode;

use super::ask::NoDaemon;
use super::output::OutputError;
use crate::api::client::ClientError;
use crate::config::ConfigError;
use crate::store::StoreError;
use crate::store::tools::ToolError;
use crate::wire::unix_listener::SocketError;

/// The data of an event is unreadable or not a map.
#[derive(Debug, thiserror::Error)]
#[error("{0:#}")]
pub(in crate::cli) struct BadData(pub(in crate::cli) anyhow::Error);

/// The negative result of an operation that succeeded, such as a check: printed without `failed
/// to`.
#[derive(Debug, thiserror::Error)]
#[error("{message}")]
pub(in crate::cli) struct Finding {
    pub(in crate::cli) exit: Exit,
    pub(in crate::cli) message: String,
}

/// A [`Finding`] with exit code 1.
pub(in crate::cli) fn finding(message: String) -> anyhow::Error {
    Finding {
        exit: Exit::Failed,
        message,
    }
    .into()
}

/// Flags that cannot be combined.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(in crate::cli) struct BadUsage(pub(in crate::cli) String);

/// An exit code. Scripts rely on the values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Exit {
    /// Success.
    Ok = 0,
    /// Failure: an unknown job, or an error not listed below.
    Failed = 1,
    /// Usage or configuration error.
    Usage = 64,
    /// Stored data is unreadable.
    Corrupt = 65,
    /// The daemon is unreachable.
    NoDaemon = 69,
    /// Internal error of saltcellar.
    Software = 70,
    /// Temporary failure, retry: the state directory is locked, or the daemon is overloaded.
    TempFail = 75,
}

impl Exit {
    /// The exit code of an error, by its first cause with a code.
    pub fn of(error: &anyhow::Error) -> Self {
        error
            .chain()
            .find_map(Self::of_cause)
            .unwrap_or(Self::Failed)
    }

    fn of_cause(cause: &(dyn std::error::Error + 'static)) -> Option<Self> {
        // A reader that closes the pipe early (`| head`) is not a failure.
        if let Some(OutputError::Closed) = cause.downcast_ref() {
            return Some(Self::Ok);
        }

        if let Some(finding) = cause.downcast_ref::<Finding>() {
            return Some(finding.exit);
        }

        if cause.is::<ConfigError>() || cause.is::<BadData>() || cause.is::<BadUsage>() {
            return Some(Self::Usage);
        }

        // The types of these errors follow from what is done with them.
        if let Some(error) = cause.downcast_ref() {
            return Some(Self::of_store(error));
        }

        if let Some(error) = cause.downcast_ref() {
            return Some(match error {
                ToolError::Store(error) => Self::of_store(error),
                // The other errors of tools are about their arguments.
                ToolError::Damaged { .. } => Self::Corrupt,
                ToolError::NoSpace { .. } => Self::Failed,
                _ => Self::Usage,
            });
        }

        if let Some(error) = cause.downcast_ref::<SocketError>() {
            return Some(match error {
                SocketError::NoGroup { .. } => Self::Usage,
                SocketError::InUse { .. } => Self::TempFail,
                _ => Self::Failed,
            });
        }

        // The connection never came up. The errors of an open connection follow.
        if cause.is::<NoDaemon>() {
            return Some(Self::NoDaemon);
        }

        Some(match cause.downcast_ref::<ClientError>()? {
            ClientError::Unreachable { .. } | ClientError::Untrusted { .. } => Self::NoDaemon,
            ClientError::TimedOut(_) => Self::TempFail,
            ClientError::Protocol(_) => Self::Software,
            ClientError::Refused { code, .. } => match code.as_str() {
                "bad_args" => Self::Usage,
                "unavailable" => Self::TempFail,
                "internal" | "protocol" => Self::Software,
                _ => Self::Failed,
            },
        })
    }
}

impl Exit {
    fn of_store(error: &StoreError) -> Self {
        match error {
            StoreError::Version { .. }
            | StoreError::FormatLost { .. }
            | StoreError::FrameVersion { .. }
            | StoreError::Corrupt { .. } => Self::Corrupt,
            StoreError::Locked { .. } => Self::TempFail,
            _ => Self::Failed,
        }
    }
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(exit as u8)
    }
}
