//! Ids of jobs on the command line: a whole one, or the beginning of one as narrow tables show it.

use anyhow::{Context as _, bail};

use crate::api::call as calls;
use crate::api::client::Client;
use crate::wire::call::Id;

/// Digits of a whole id, and of the shortest beginning: a day.
const DIGITS: usize = 20;
const DIGITS_MIN: usize = 8;

/// The id of the job that `jid` names: itself, or the only id that begins with it.
pub(super) fn whole(client: &mut Client, jid: &str) -> anyhow::Result<String> {
    let is_beginning =
        (DIGITS_MIN..DIGITS).contains(&jid.len()) && jid.bytes().all(|byte| byte.is_ascii_digit());
    if !is_beginning {
        return Ok(jid.to_owned());
    }

    let call = calls::jobs::ListArgs {
        jid: Some(Id(jid.to_owned())),
        // A second one shows that it is not the only one.
        limit: Some(2),
        // Polling jobs have ids as well, and one of them may be meant.
        include_polling: true,
        ..calls::jobs::ListArgs::default()
    };
    let found = client
        .make::<calls::jobs::List>(&call)
        .context("find the job")?;

    match found.jobs.as_slice() {
        // The caller reports an unknown job, with the id as it was given.
        [] => Ok(jid.to_owned()),
        [only] => Ok(only.jid.clone()),
        _ => bail!(
            "find the job: several ids begin with {jid}; `saltcellar jobs list --jid {jid}` lists them"
        ),
    }
}

/// The error for an unknown job id, which may have any length.
pub(super) fn unknown(jid: &str) -> anyhow::Error {
    let shown: String = jid.chars().take(64).collect();

    let rest = if shown.len() < jid.len() {
        format!("... ({} bytes)", jid.len())
    } else {
        String::new()
    };

    anyhow::anyhow!("unknown job {shown}{rest}; `saltcellar jobs list` lists the known jobs")
}
