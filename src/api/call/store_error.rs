//! Errors of the store, as callers get them.

use crate::base::work::Ended;
use crate::store::StoreError;
use crate::wire::call::CallError;

/// Converts a store error for the caller, and logs it.
pub(in crate::api) fn failed(error: StoreError) -> CallError {
    match error {
        // The peer is gone, or the daemon stops: nobody has to look into it.
        StoreError::Stopping | StoreError::Ended(Ended::Abandoned) => {
            CallError::Unavailable(error.to_string())
        }
        // The client asked for too much work; the message says what to narrow.
        StoreError::Ended(Ended::TooLong(_)) => CallError::Refused(error.to_string()),
        error => {
            tracing::error!(%error, "cannot read the store for a call, the caller gets an error: check the disk for errors and run `saltcellar store verify`");
            CallError::Internal(error.to_string())
        }
    }
}
