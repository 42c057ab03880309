//! The costly parts of the overview, shared by views: lists of minions and jobs that need attention, the counts of the fleet, and rates
//! of events.
//!
//! They are exact while nothing has been stored since they were read; otherwise they are shown up to an
//! age.

use std::collections::VecDeque;
use std::future::Future;
use std::sync::Arc;

use serde::Serialize;
use tokio::time::Instant;

use super::access::Access;
use super::shared_read::SharedRead;
use crate::api::budget::Budget;
use crate::api::call::event_rates::EventRates;
use crate::api::call::jobs::answers::JobsPage;
use crate::api::query::{Fleet, MinionsPage};
use crate::base::limits::{PAGE_ATTENTION_AGE, PAGE_ATTENTION_KEPT};
use crate::model::{ReadLimits, Right, SeqNo};
use crate::wire::msgpack::Time;

/// A part of a view: a response, or the error in its place.
#[derive(Debug, Clone, Serialize)]
#[serde(untagged)]
pub(super) enum Part<T> {
    Shown(T),
    Failed { error: String },
}

impl<T> Part<T> {
    pub(super) fn shown(&self) -> Option<&T> {
        match self {
            Self::Shown(answer) => Some(answer),
            Self::Failed { .. } => None,
        }
    }
}

/// What needs attention: each part with its own error, and none that the limits of the reader exclude.
#[derive(Debug, Clone)]
pub(super) struct Attended {
    pub(super) minions: Option<Part<MinionsPage>>,
    pub(super) fleet: Option<Part<Fleet>>,
    pub(super) rates: Option<Part<EventRates>>,
    /// Jobs with a failed return.
    pub(super) failed: Option<Part<JobsPage>>,
    /// Jobs that a minion has not returned.
    pub(super) missing: Option<Part<JobsPage>>,
    /// Jobs with a state that changed something.
    pub(super) changed: Option<Part<JobsPage>>,
    /// When all of it was read.
    pub(super) time: Time,
}

impl Attended {
    fn has_error(&self) -> bool {
        fn failed<T>(part: Option<&Part<T>>) -> bool {
            matches!(part, Some(Part::Failed { .. }))
        }

        failed(self.minions.as_ref())
            || failed(self.fleet.as_ref())
            || failed(self.rates.as_ref())
            || [&self.failed, &self.missing, &self.changed]
                .iter()
                .any(|jobs| failed(jobs.as_ref()))
    }
}

/// The latest reading for each right and limits. Views that need the same reading wait for the view
/// that makes it, and never for a reading with other limits. Lock order: no other lock is taken
/// under it.
#[derive(Debug, Default)]
pub(super) struct Attention(parking_lot::Mutex<VecDeque<(Reader, Slot)>>);

/// Whose list it is.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Reader {
    right: Right,
    limits: Arc<ReadLimits>,
}

type Slot = Arc<SharedRead<Arc<Known>>>;

#[derive(Debug)]
struct Known {
    durable: SeqNo,
    at: Instant,
    attended: Attended,
}

impl Attention {
    /// What a reader sees, by `read` if nothing valid is known. `durable` is the position to
    /// which the store is readable.
    pub(super) async fn get<F: Future<Output = Attended>>(
        &self,
        access: &Access,
        durable: SeqNo,
        read: impl FnOnce(Arc<Budget>) -> F,
    ) -> Attended {
        // The time of a list must not tell a limited reader whether anything was stored that it may
        // not know.
        let is_whole = !access.caller.limits.is_limited();
        let is_valid = |known: &Arc<Known>| {
            is_whole && known.durable == durable || known.at.elapsed() < PAGE_ATTENTION_AGE
        };

        let read = |budget| {
            // The age counts from before the read: entries that are stored meanwhile may be missing
            // in the list.
            let at = Instant::now();
            let attended = read(budget);
            async move {
                let attended = attended.await;
                // An error, in the place of a part, is not kept.
                if attended.has_error() {
                    return Err(attended);
                }
                Ok(Arc::new(Known {
                    durable,
                    at,
                    attended,
                }))
            }
        };
        let slot = self.slot(access);
        match slot.get(&access.budget, is_valid, read).await {
            Ok(known) => known.attended.clone(),
            Err(attended) => attended,
        }
    }

    fn slot(&self, access: &Access) -> Slot {
        let reader = Reader {
            right: access.right,
            limits: access.caller.limits.clone(),
        };

        let mut slots = self.0.lock();
        if let Some((_, slot)) = slots.iter().find(|(known, _)| *known == reader) {
            return slot.clone();
        }
        // Views that wait for the oldest list keep a reference to it.
        if slots.len() >= PAGE_ATTENTION_KEPT {
            slots.pop_front();
        }

        let slot = Slot::default();
        slots.push_back((reader, slot.clone()));
        slot
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::super::server::BUDGET;
    use super::*;
    use crate::api::budget::{Budgets, Client};
    use crate::api::call::Caller;
    use crate::api::query::NotRead;
    use crate::base::clock::Micros;
    use crate::base::limits::HTTP_ANSWER_BYTES_OF_ONE;
    use salt_sls::Glob;
    use std::time::Duration;

    fn reader(minions: Option<&str>) -> Access {
        Access {
            budget: Budgets::new(BUDGET).of(Client::Nobody),
            session: None,
            name: "token a".to_owned(),
            right: Right::Read,
            caller: Caller {
                limits: Arc::new(ReadLimits {
                    minions: minions.map(Glob::new),
                    ..ReadLimits::default()
                }),
                ..Caller::default()
            },
            token: None,
        }
    }

    /// A list that can be told from others by a number.
    fn list(number: u64) -> Attended {
        attended(Part::Shown(MinionsPage {
            skipped: NotRead {
                jobs_checked: number,
                ..NotRead::default()
            },
            ..MinionsPage::default()
        }))
    }

    fn attended(minions: Part<MinionsPage>) -> Attended {
        Attended {
            minions: Some(minions),
            fleet: Some(Part::Shown(Fleet::default())),
            rates: None,
            failed: None,
            missing: None,
            changed: Some(Part::Shown(JobsPage::default())),
            time: Time(Micros(0)),
        }
    }

    /// The number of a list; none of an error.
    fn number(attended: &Attended) -> Option<u64> {
        let list = attended.minions.as_ref().and_then(Part::shown);
        list.map(|list| list.skipped.jobs_checked)
    }

    #[tokio::test(start_paused = true)]
    async fn a_list_is_read_again_if_it_is_old_or_for_other_limits() {
        let (attention, reads) = (Attention::default(), AtomicU64::new(0));
        let read = |_| async { list(reads.fetch_add(1, Ordering::Relaxed)) };
        let get = async |minions, durable| {
            let reader = reader(minions);
            number(&attention.get(&reader, SeqNo(durable), read).await)
        };
        assert_eq!((get(None, 1).await, get(None, 1).await), (Some(0), Some(0)));
        assert_eq!(get(Some("web*"), 1).await, Some(1), "other limits");
        assert_eq!(get(None, 2).await, Some(0), "young");
        tokio::time::advance(PAGE_ATTENTION_AGE).await;
        assert_eq!(get(None, 1).await, Some(0), "nothing stored since");
        assert_eq!(get(None, 2).await, Some(2));
        let limited = get(Some("web*"), 1).await;
        assert_eq!(
            limited,
            Some(3),
            "whether anything was stored does not count"
        );
        let error = attention
            .get(&reader(Some("db*")), SeqNo(2), |_| async {
                attended(Part::Failed {
                    error: "busy".to_owned(),
                })
            })
            .await;
        assert_eq!(number(&error), None);
        assert_eq!(get(Some("db*"), 2).await, Some(4), "an error is not kept");
    }

    #[tokio::test(start_paused = true)]
    async fn a_view_that_waits_for_its_own_budget_delays_no_other() {
        let attention = Attention::default();
        let (slow, other) = (reader(None), reader(None));
        let all = slow.budget.room(HTTP_ANSWER_BYTES_OF_ONE - 1).await;
        let read = async |budget: Arc<Budget>, number| match budget.room(1).await {
            Ok(_) => list(number),
            Err(error) => attended(Part::Failed {
                error: error.to_string(),
            }),
        };

        let began = Instant::now();
        let one = async {
            let list = attention.get(&slow, SeqNo(1), |budget| read(budget, 1));
            (number(&list.await), began.elapsed())
        };
        let two = async {
            let list = attention.get(&other, SeqNo(1), |budget| read(budget, 2));
            (number(&list.await), began.elapsed())
        };
        let (one, two) = tokio::join!(one, two);
        assert_eq!(two, (Some(2), Duration::ZERO));
        assert_eq!(one, (Some(2), Duration::ZERO), "it need not read any more");
        drop(all);
    }

    #[tokio::test(start_paused = true)]
    async fn a_view_waits_for_its_own_list_only() {
        let (attention, reads) = (Attention::default(), AtomicU64::new(0));
        let (slow, same, other) = (reader(None), reader(None), reader(Some("web*")));
        let (go_on, may_go_on) = tokio::sync::oneshot::channel::<()>();
        let slowly = |_| async {
            reads.fetch_add(1, Ordering::Relaxed);
            may_go_on.await.unwrap();
            list(1)
        };
        let at_once = |_| async {
            reads.fetch_add(1, Ordering::Relaxed);
            list(2)
        };

        let one = attention.get(&slow, SeqNo(1), slowly);
        let two = attention.get(&same, SeqNo(1), at_once);
        let others = async {
            let list = attention.get(&other, SeqNo(1), at_once);
            let list = tokio::time::timeout(PAGE_ATTENTION_AGE, list).await;
            go_on.send(()).unwrap();
            list.unwrap()
        };
        let (one, two, others) = tokio::join!(one, two, others);
        assert_eq!(number(&others), Some(2), "other limits");
        assert_eq!(
            (number(&one), number(&two)),
            (Some(1), Some(1)),
            "the same list"
        );
        assert_eq!(reads.load(Ordering::Relaxed), 2);
    }
}
