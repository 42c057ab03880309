//! Why a request has no response, and what is known of it.

/// Why a request to a master has no response. `place` is its address, `why` the cause.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[expect(missing_docs, reason = "the same two fields in each")]
pub enum MasterError {
    /// Nothing was sent: retry when the master is reachable.
    #[error(
        "no Salt master responds at {place}: {why}; is salt-master running? `saltcellar doctor` checks it"
    )]
    Unreachable { place: String, why: String },
    /// The master rejects the key, which is reread for the next request.
    #[error(
        "the master at {place} rejects the key in {path}: {why}; check `reactor.master` and the permissions of the key"
    )]
    Unauthenticated {
        place: String,
        path: String,
        why: String,
    },
    /// The master failed temporarily and did nothing; retry later.
    #[error("the master at {place} failed temporarily: {why}; see the master's log")]
    Retry { place: String, why: String },
    /// The request was sent, but no usable response arrived: it may have been executed.
    #[error(
        "no usable response from the master at {place}, the request may have been executed: {why}; see the master's log"
    )]
    NoAnswer { place: String, why: String },
    /// The master rejected the request; a retry is useless.
    #[error("the master at {place} rejected the request: {why}; see the master's log")]
    Refused { place: String, why: String },
}

impl MasterError {
    /// True if the request certainly had no effect. A repetition is then safe.
    pub(crate) fn was_not_done(&self) -> bool {
        !matches!(self, Self::NoAnswer { .. })
    }

    /// True if the master has responded.
    pub(crate) fn is_response(&self) -> bool {
        !matches!(self, Self::Unreachable { .. } | Self::NoAnswer { .. })
    }
}
