//! The overview's list of minions, shared by views.
//!
//! A list is exact while nothing has been stored since it was read; otherwise it is shown up to an
//! age.

use std::collections::VecDeque;
use std::future::Future;
use std::sync::Arc;

use serde_json::Value as Json;
use tokio::sync::Mutex;
use tokio::time::Instant;

use super::super::access::Access;
use crate::base::limits::{PAGE_ATTENTION_AGE, PAGE_ATTENTION_KEPT};
use crate::model::{ReadLimits, Right, SeqNo};

/// The latest list for each right and limits. Views that need the same list wait for one that reads
/// it.
#[derive(Debug, Default)]
pub(in super::super) struct Attention(Mutex<VecDeque<Known>>);

#[derive(Debug)]
struct Known {
    right: Right,
    limits: Arc<ReadLimits>,
    durable: SeqNo,
    at: Instant,
    list: Json,
}

impl Attention {
    /// The list for a reader, by `read` if no valid one is known. `durable` is the position to
    /// which the store is readable.
    pub(super) async fn get<F: Future<Output = Json>>(
        &self,
        access: &Access,
        durable: SeqNo,
        read: impl FnOnce() -> F,
    ) -> Json {
        // Held while the list is read: views that need the same list wait, and then find it.
        let mut lists = self.0.lock().await;
        let is_of =
            |known: &Known| known.right == access.right && known.limits == access.caller.limits;

        // The time of a list must not tell a limited reader whether anything was stored that it may
        // not know.
        let is_whole = !access.caller.limits.is_limited();
        let is_valid = |known: &Known| {
            is_whole && known.durable == durable || known.at.elapsed() < PAGE_ATTENTION_AGE
        };

        if let Some(known) = lists.iter().find(|known| is_of(known) && is_valid(known)) {
            return known.list.clone();
        }

        // The age counts from before the read: entries that are stored meanwhile may be missing in
        // the list.
        let (at, list) = (Instant::now(), read().await);

        lists.retain(|known| !is_of(known));

        // An error, in the list's place, is not kept.
        if list.get("error").is_none() {
            if lists.len() >= PAGE_ATTENTION_KEPT {
                lists.pop_front();
            }

            let (right, limits) = (access.right, access.caller.limits.clone());
            lists.push_back(Known {
                right,
                limits,
                durable,
                at,
                list: list.clone(),
            });
        }

        list
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use serde_json::json;

    use super::super::super::server::BUDGET;
    use super::*;
    use crate::api::budget::{Budgets, Client};
    use crate::api::call::Caller;
    use crate::model::Glob;

    fn reader(minions: Option<&str>) -> Access {
        Access {
            budget: Budgets::new(BUDGET).of(Client::Nobody),
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

    #[tokio::test(start_paused = true)]
    async fn a_list_is_read_again_if_it_is_old_or_for_other_limits() {
        let (attention, reads) = (Attention::default(), AtomicU64::new(0));
        let read = || async { json!({ "minions": reads.fetch_add(1, Ordering::Relaxed) }) };
        let get = async |minions, durable| {
            attention.get(&reader(minions), SeqNo(durable), read).await["minions"].clone()
        };
        assert_eq!(
            (get(None, 1).await, get(None, 1).await),
            (json!(0), json!(0))
        );
        assert_eq!(get(Some("web*"), 1).await, json!(1), "other limits");
        assert_eq!(get(None, 2).await, json!(0), "young");
        tokio::time::advance(PAGE_ATTENTION_AGE).await;
        assert_eq!(get(None, 1).await, json!(0), "nothing stored since");
        assert_eq!(get(None, 2).await, json!(2));
        let limited = get(Some("web*"), 1).await;
        assert_eq!(
            limited,
            json!(3),
            "whether anything was stored does not count"
        );
        let error = attention
            .get(&reader(Some("db*")), SeqNo(2), || async {
                json!({ "error": "busy" })
            })
            .await;
        assert_eq!(error["error"], "busy");
        assert_eq!(get(Some("db*"), 2).await, json!(4), "an error is not kept");
    }
}
