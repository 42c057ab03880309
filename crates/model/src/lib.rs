//! Plain data types for the nouns of Salt and of the store, without I/O.

mod entry;
mod filter;
mod hashing;
mod jid;
mod master_key;
mod note;
mod read_limits;
mod right;
mod seqno;
mod settings;
mod throttle;

pub use entry::{Batch, Entry, Fingerprints, Flags, FrameBatch, Kind, Source};
pub use entry::{GAP_TAG, Names, REACTION_TAG, Replaced};
pub use filter::{EventFilter, Masters};
pub use hashing::{FastMap, chained, secret_seed};
pub use jid::{Jid, JidKey, JidSpeller, stamped_jid, start_time};
pub use master_key::REDACTED;
pub use master_key::{KeyTexts, MANAGE_TAG, is_manage_tag, same_key};
pub use note::{Location, Note, NoteLevel, ReactionFailure};
pub use read_limits::{Limit, ReadLimits};
pub use right::Right;
pub use seqno::SeqNo;
pub use settings::class::{
    Age, ClassRule, EVENTS, JOBS, MINION_SHARE, OVERFLOW, SETTINGS, is_class_name,
};
pub use settings::class::{ClassRules, Keep};
pub use settings::durability::Durability;
pub use settings::master_name::MasterName;
pub use settings::reaction::RuleOrder;
pub use settings::reaction::{
    Allow, ListedRule, Rate, ReactorSettings, RuleOptions, RunnerLimits, SaltsReactor,
};
pub use settings::rule::{Action, Builtin, OWN_MASTER, Pattern, RedactRule, RetcodePattern, Scope};
pub use settings::slot::Slot;
pub use settings::word;
pub use throttle::Throttle;
