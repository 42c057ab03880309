//! The keys of the network listeners.

mod http;
mod https;

pub use self::http::{HttpConfig, HttpTls};
pub use self::https::{HttpsConfig, MinionsRead};
