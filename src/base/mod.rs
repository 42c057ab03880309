//! Used by all modules: the time, every limit, every counter, and the stop signal.

pub mod clock;
pub mod limits;
pub mod metrics;
pub mod shutdown;
