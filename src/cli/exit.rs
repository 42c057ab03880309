//! How the program ends: exit codes, after sysexits(3), and which error means which.

use std::process::ExitCode;

use super::BadUsage;
use super::ask::NoDaemon;
use super::doctor::Unwell;
use super::events::BadData;
use super::import::LeftOut;
use super::jobs::Unfinished;
use super::output::OutputError;
use super::reactor::{Broken, NotAsSalt, Unlike};
use crate::api::client::ClientError;
use crate::config::ConfigError;
use crate::door::SocketError;
use crate::store::StoreError;
use crate::store::tools::ToolError;

/// An exit code. Scripts rely on the numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Exit {
    /// Done.
    Ok = 0,
    /// Understood and not possible: an unknown job, an error not listed below.
    Failed = 1,
    /// Bad usage or configuration.
    Usage = 64,
    /// What is stored cannot be read.
    Corrupt = 65,
    /// No daemon answers.
    NoDaemon = 69,
    /// A fault of saltcellar itself.
    Software = 70,
    /// Not now: try again later. Another daemon has the state directory, or the daemon is overloaded.
    TempFail = 75,
}

impl Exit {
    /// What that error means to whoever ran the program.
    pub fn of(error: &anyhow::Error) -> Self {
        error.chain().find_map(Self::of_cause).unwrap_or(Self::Failed)
    }

    fn of_cause(cause: &(dyn std::error::Error + 'static)) -> Option<Self> {
        // A reader that has seen enough (`| head`) is no failure.
        if let Some(OutputError::Closed) = cause.downcast_ref() {
            return Some(Self::Ok);
        }
        if cause.is::<Unfinished>() {
            return Some(Self::TempFail);
        }
        if cause.is::<ConfigError>() || cause.is::<BadData>() || cause.is::<BadUsage>() {
            return Some(Self::Usage);
        }
        if let Some(error) = cause.downcast_ref() {
            return Some(Self::of_store(error));
        }
        if let Some(error) = cause.downcast_ref() {
            return Some(match error {
                ToolError::Store(error) => Self::of_store(error),
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
        if cause.is::<Broken>() || cause.is::<NotAsSalt>() || cause.is::<Unlike>() {
            return Some(Self::Failed);
        }
        if cause.is::<LeftOut>() {
            return Some(Self::Corrupt);
        }
        if let Some(unwell) = cause.downcast_ref::<Unwell>() {
            return Some(if unwell.away { Self::NoDaemon } else { Self::Failed });
        }
        if cause.is::<NoDaemon>() {
            return Some(Self::NoDaemon);
        }
        Some(match cause.downcast_ref::<ClientError>()? {
            ClientError::Away { .. } | ClientError::Untrusted { .. } => Self::NoDaemon,
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
            StoreError::Version { .. } | StoreError::FormatLost { .. } | StoreError::Corrupt { .. } => {
                Self::Corrupt
            }
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
