//! Shadow: what Salt's own reactor did, beside what ours would have done.
//!
//! ```text
//! the log -> item: calls of ours (records of reactions), of Salt's (its events), loads, gaps
//!         -> comparer: who belongs to whom, within a window of time -> verdicts, one for each call
//! ```
//!
//! Both sides are in the log, so nothing is kept: the daemon compares as the log grows, to count, and `saltcellar reactor shadow`
//! compares any stretch of it again, to tell. Salt's reactor leaves behind (3006.28, 3007.15, 3008.3):
//!
//! | reaction | what shows it | what that lacks |
//! |---|---|---|
//! | runner, wheel | `salt/run/<jid>/new`, `salt/wheel/<jid>/new` with user `Reactor`: function, arguments | the event, the file, the ID |
//! | the same, of a function that is not there | `.../ret` without `fun_args`; on 3008 nothing | arguments |
//! | a runner that such an orchestration starts | as above, with `__pub_user` among the arguments: no reaction | |
//! | local | `salt/job/<jid>/new`: function, target, arguments; the user is the master's | that a reactor made it |
//! | | its load, where saltcellar is the job cache: `ret`, `kwargs` with `__id__` and `__sls__` | the event |
//! | local, to a target without minions | nothing | |
//! | caller | nothing | |

mod act;
mod comparer;
mod item;
mod pool;

pub use act::{Act, Difference};
pub use comparer::{Comparer, Comparison};
pub use item::{Failed, Item, Ours, Salts, asked, is_of_interest, is_timely, master_call, mode};

#[cfg(test)]
mod tests;
