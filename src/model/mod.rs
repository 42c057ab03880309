//! Plain data types for the nouns of Salt and of the store, without I/O.

mod entry;
mod filter;
mod glob;
mod hashing;
mod jid;
mod master_key;
mod note;
mod right;
mod seqno;
mod settings;

pub use entry::{
    Batch, Entry, Fingerprints, Flags, FrameBatch, GAP_TAG, Kind, REACTION_TAG, RequestBatch, Source,
};
pub use filter::EventFilter;
pub use glob::{Glob, Literal};
pub use hashing::{FastHasher, FastMap, chained, secret_seed};
pub use jid::{JidKey, JidSpeller, stamped_jid, start_time};
pub use master_key::{KEY_BYTES_MIN, KeyTexts, MANAGE_TAG, REDACTED, is_manage_tag, same_key};
pub use note::{Location, Note, NoteLevel, ReactionFailure};
pub use right::Right;
pub use seqno::SeqNo;
pub use settings::class::{Age, ClassRule, ClassRules, EVENTS, JOBS, Keep, is_class_name};
pub use settings::durability::Durability;
pub use settings::reaction::{
    Allow, ListedRule, Rate, ReactorSettings, RuleOptions, RuleOrder, RunnerLimits, SaltsReactor,
};
pub use settings::rule::{Action, Builtin, Pattern, RedactRule, RetcodePattern, Scope};
pub use settings::word;
