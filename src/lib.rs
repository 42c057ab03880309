pub mod limits;
pub mod metrics;
pub mod clock;
pub mod shutdown;
pub mod model;
pub mod channel;
pub mod wire;
pub mod store;
