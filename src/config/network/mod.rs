//! The keys of the network listeners, and what the settings of connections to other programs share.

mod http;
mod https;
mod nats;
mod tls;

pub use self::http::{HttpConfig, HttpTls};
pub use self::https::{HttpsConfig, MinionsRead};
pub use self::nats::Nats;
pub use self::tls::ClientTls;
