//! Shadow mode: comparison of Salt's reactor with saltcellar's.
//!
//! ```text
//! the log -> item: saltcellar calls (records of reactions), of Salt's (its events), loads, gaps
//!         -> comparer: matches them within a time window -> one result per call
//! ```
//!
//! Both sides are in the log, so no state is stored: the daemon compares while the log grows, for
//! its counters, and `saltcellar reactor diff` compares any range of the log again, for its
//! report. The traces of Salt's reactor (3006.28, 3007.15, 3008.3):
//!
//! | reaction | trace | missing in the trace |
//! |---|---|---|
//! | runner, wheel | `salt/run/<jid>/new`, `salt/wheel/<jid>/new` with user `Reactor`: function, arguments | the event, the file, the ID |
//! | the same, of an unknown function | `.../ret` without `fun_args`; on 3008 nothing | arguments |
//! | a runner that such an orchestration starts | as above, with `__pub_user` among the arguments; not a reaction | |
//! | local | `salt/job/<jid>/new`: function, target, arguments; the user is the master's | the publisher |
//! | | its load, where saltcellar is the job cache: `ret`, `kwargs` with `__id__` and `__sls__` | the event |
//! | local, to a target without minions | nothing | |
//! | caller | nothing | |

mod comparer;
mod item;
mod observed_call;
mod pool;

pub(crate) use comparer::{Comparer, Comparison};
pub(crate) use item::{
    FailedReaction, OurCall, SaltsCall, ShadowItem, is_of_interest, is_timely, master_call, mode,
};
pub(crate) use observed_call::{Difference, ObservedCall};

#[cfg(test)]
mod tests;
