//! Numbers of states, of a run.

answers! {
    /// Numbers of states.
    StateCounts {
        total: u64,
        failed: u64,
        changed: u64,
    }
}
