//! Salt's nouns and the store's words for them: plain data, no I/O.

mod entry;
mod filter;
mod glob;
mod hashing;
mod jid;
mod seqno;

pub use entry::{Batch, Draft, Entry, Flags, Kind, Source};
pub use filter::EventFilter;
pub use glob::Glob;
pub use hashing::{FastHasher, FastMap};
pub use jid::{JidKey, stamped_jid, start_time};
pub use seqno::SeqNo;
