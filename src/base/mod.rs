//! Used by all modules: the time, every limit, every counter, the stop signal, and short forms of numbers.

pub mod clock;
pub mod limits;
pub mod metrics;
pub mod shutdown;
pub mod units;
