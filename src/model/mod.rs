//! Plain data types for the nouns of Salt and of the store, without I/O.

mod class;
mod durability;
mod entry;
mod filter;
mod glob;
mod hashing;
mod jid;
mod master_key;
mod note;
mod reaction;
mod right;
mod rule;
mod seqno;

pub use class::{Age, ClassRule, ClassRules, EVENTS, JOBS, Keep, is_class_name};
pub use durability::Durability;
pub use entry::{
    Batch, Entry, Fingerprints, Flags, FrameBatch, GAP_TAG, Kind, REACTION_TAG, RequestBatch, Source,
};
pub use filter::EventFilter;
pub use glob::{Glob, Literal};
pub use hashing::{FastHasher, FastMap, chained, secret_seed};
pub use jid::{JidKey, JidSpeller, stamped_jid, start_time};
pub use master_key::{KEY_BYTES_MIN, KeyTexts, MANAGE_TAG, REDACTED, is_manage_tag, same_key};
pub use note::{Location, Note, NoteLevel, ReactionFailure};
pub use reaction::{
    Allow, ListedRule, Rate, ReactorSettings, RuleOptions, RuleOrder, RunnerLimits, SaltsReactor,
};
pub use right::Right;
pub use rule::{Action, Builtin, FilterRule, Pattern, RedactRule, Scope};
pub use seqno::SeqNo;
