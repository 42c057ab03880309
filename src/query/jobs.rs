//! Lists of jobs, the latest first.
//!
//! A jid made of time sorts by it. Jobs with any other jid sort behind all of those, in no promised order.

use std::borrow::Cow;

use super::job::Job;
use crate::clock::Micros;
use crate::limits::JOBS_READ_AT_ONCE;
use crate::model::{Glob, JidKey};
use crate::store::{JobRow, Store, StoreError};
use crate::wire::msgpack::{self, as_text};

/// Which jobs somebody wants to see; what is `None` does not filter.
#[derive(Debug, Clone, Default)]
pub struct JobFilter {
    /// The user, exactly.
    pub user: Option<String>,
    /// Pattern over the function; over each one of a job with several.
    pub fun: Option<Glob>,
    /// Pattern over the target; over each one of a list.
    pub tgt: Option<Glob>,
    /// A minion that answered or was asked.
    pub minion: Option<String>,
    /// Started at this instant or later.
    pub since: Option<Micros>,
    /// Started before this instant.
    pub until: Option<Micros>,
    /// Also `saltutil.find_job`, with which Salt asks whether a job still runs.
    pub find_job: bool,
}

/// A row of a list.
#[derive(Debug, Clone)]
pub struct Listed {
    /// The summary.
    pub row: JobRow,
    /// When it started: what its jid says, else when its first entry came.
    pub at: Micros,
}

impl JobFilter {
    fn allows(&self, listed: &Listed) -> bool {
        let row = &listed.row;
        let any = |glob: &Option<Glob>, value: &[u8]| {
            glob.as_ref().is_none_or(|glob| words(value).iter().any(|word| glob.matches(word)))
        };
        (self.find_job || as_text(&row.fun) != Some("saltutil.find_job"))
            && self.user.as_deref().is_none_or(|user| as_text(&row.user) == Some(user))
            && any(&self.fun, &row.fun)
            && any(&self.tgt, &row.tgt)
            && self.since.is_none_or(|since| listed.at >= since)
            && self.until.is_none_or(|until| listed.at < until)
    }
}

/// A value as text, or its elements as texts.
fn words(value: &[u8]) -> Vec<&str> {
    as_text(value).map_or_else(|| msgpack::elements(value).filter_map(as_text).collect(), |word| vec![word])
}

/// Jobs before `before` that pass, the latest first, up to `limit`; and whether there may be more.
pub fn jobs_before(
    store: &Store,
    filter: &JobFilter,
    before: Option<&str>,
    limit: usize,
) -> Result<(Vec<Listed>, bool), StoreError> {
    let mut at = before.map(JidKey::of);
    let mut found = Vec::new();
    loop {
        let page = store.jobs_before(at, JOBS_READ_AT_ONCE)?;
        let whole = page.len() == JOBS_READ_AT_ONCE;
        for (key, row) in page {
            at = Some(key);
            let listed = Listed { at: key.time().unwrap_or(Micros(row.first_at)), row };
            // Everything further back is older still.
            if key.time().is_some() && filter.since.is_some_and(|since| listed.at < since) {
                return Ok((found, false));
            }
            if listed.row.rank == 0 || !filter.allows(&listed) || !answered_by(store, filter, &listed)? {
                continue;
            }
            if found.len() == limit {
                return Ok((found, true));
            }
            found.push(listed);
        }
        if !whole {
            return Ok((found, false));
        }
    }
}

fn answered_by(store: &Store, filter: &JobFilter, listed: &Listed) -> Result<bool, StoreError> {
    let Some(minion) = &filter.minion else { return Ok(true) };
    let job = Job::read_load(store, &listed.row.jid)?;
    Ok(job.is_some_and(|job| {
        job.answers.contains_key(minion) || job.minions.is_some_and(|minions| minions.contains(minion))
    }))
}

/// A row whose values are whole: those that were too long for it are read from the log.
pub fn row_load<'a>(store: &Store, row: &'a JobRow) -> Result<Cow<'a, JobRow>, StoreError> {
    if !row.abridged {
        return Ok(Cow::Borrowed(row));
    }
    let mut whole = row.clone();
    if let Some(job) = Job::read_load(store, &row.jid)? {
        whole.take_load(&job.load, usize::MAX);
    }
    Ok(Cow::Owned(whole))
}
