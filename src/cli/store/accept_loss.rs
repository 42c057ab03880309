//! `saltcellar store accept-loss`: settings that were lost count as gone.

use anyhow::bail;

use crate::api::call::store::LossAccepted;
use crate::api::call::{self as calls, NoArgs};
use crate::cli::{Global, ask, show};

pub(super) const EXAMPLES: &str = "\
Settings are what cannot be rebuilt from stored events: consumers, holds, tokens, dead letters, the reactor's position. They are kept twice. \
If changes of both copies are damaged, `saltcellar status` says so, and until you accept the loss the daemon errs on the safe side: \
new consumers begin with the oldest event, tokens from before are rejected, and every job counts as held.

Check `saltcellar consumers list`, `saltcellar tokens list`, `saltcellar store holds list` and the sink dead letters first: correct what is \
wrong, or restore a backup. Afterwards the settings count as they are.

Examples:
  saltcellar store accept-loss";

pub(super) fn run(global: &Global) -> anyhow::Result<()> {
    let operation = "accept the loss";
    let answer = ask::answer::<calls::store::AcceptLoss>(global, &NoArgs {}, operation)?;
    if !answer.accepted {
        bail!("accept the loss: no settings are lost");
    }
    show(global.output, &answer, |out| {
        let LossAccepted { changes, .. } = &answer;
        let changes = changes.map_or("an unknown number of".to_owned(), |n| n.to_string());
        Ok(out.line(&format!(
            "accepted: {changes} changes of the settings are lost"
        ))?)
    })
}
