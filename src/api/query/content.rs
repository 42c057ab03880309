//! The content of a job's answers, a part at a time.

use std::collections::BTreeMap;
use std::ops::ControlFlow;

use super::answer::Answer;
use super::job::Job;
use super::others::Others;
use super::parts::Parts;
use crate::base::limits::PART_MINIONS_MIN;
use crate::store::{StoreError, StoreView};

/// Answers with their content, by minion.
pub(crate) type Answers = BTreeMap<String, Answer>;

impl Job {
    /// The answers of some of its minions with their content. The caller sees to it that they are no more than a part.
    pub(crate) fn answers_of(
        &self,
        store: &StoreView,
        others: &Others,
        minions: &[&str],
    ) -> Result<Answers, StoreError> {
        let mut part = self.part(store, minions)?;
        others.settle(&mut part);
        Ok(part.answers)
    }

    /// Calls `take` with the answers of these minions and their content.
    pub(crate) fn each_answer(
        &self,
        store: &StoreView,
        others: &Others,
        minions: &[&str],
        mut take: impl FnMut(&Answer),
    ) -> Result<(), StoreError> {
        let take = |answer: &Answer| {
            take(answer);
            ControlFlow::Continue(())
        };
        self.walk(store, others, Parts::of_all(minions), take)
    }

    /// Whether one of the answers of these minions is meant.
    pub(crate) fn any_answer(
        &self,
        store: &StoreView,
        others: &Others,
        minions: &[&str],
        mut is_meant: impl FnMut(&Answer) -> bool,
    ) -> Result<bool, StoreError> {
        let mut found = false;
        let take = |answer: &Answer| {
            found = is_meant(answer);
            if found {
                ControlFlow::Break(())
            } else {
                ControlFlow::Continue(())
            }
        };
        let parts = Parts::beginning_with(minions, PART_MINIONS_MIN);
        self.walk(store, others, parts, take)?;
        Ok(found)
    }

    fn walk(
        &self,
        store: &StoreView,
        others: &Others,
        mut parts: Parts<'_, &str>,
        mut take: impl FnMut(&Answer) -> ControlFlow<()>,
    ) -> Result<(), StoreError> {
        while let Some(part) = parts.next(|id| self.bytes_of(id)) {
            let answers = self.answers_of(store, others, part)?;
            let of_part = part.iter().filter_map(|id| answers.get(*id));
            for answer in of_part {
                if take(answer).is_break() {
                    return Ok(());
                }
            }
        }
        Ok(())
    }
}
