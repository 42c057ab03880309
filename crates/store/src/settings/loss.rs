//! Settings that were lost, until an administrator accepts it: a setting itself.

use saltcellar_base::clock::Micros;
use serde::{Deserialize, Serialize};

use super::setting::{Setting, key};
use super::values::Values;

/// Changes that were lost and not accepted yet.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Loss {
    /// Their number; `None` if it is not known.
    pub records: Option<u64>,
    /// When it was found.
    pub(crate) found: Micros,
    /// Values set up to this position are uncertain.
    pub(super) upto: u64,
    /// The names of the damaged logs that were kept, which a later start may be able to read.
    #[serde(default)]
    pub(super) logs: Vec<String>,
}

/// A key that was removed while a loss was not accepted: what is read of damaged logs later does not
/// bring it back.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Removed {}

impl Setting for Loss {
    const KIND: &'static str = "loss";
}

impl Setting for Removed {
    const KIND: &'static str = "removed";
}

/// A loss in words: what happened, what follows, and what to do.
pub(crate) fn loss_text(loss: &Loss) -> String {
    let records = match loss.records {
        Some(1) => "1 settings change is".to_owned(),
        Some(records) => format!("{records} settings changes are"),
        None => "an unknown number of settings changes is".to_owned(),
    };
    format!(
        "both copies were damaged, {records} lost (found {}): consumers continue at earlier positions, new ones begin with the oldest event; \
         earlier tokens are rejected; every job counts as held. Check `saltcellar consumers list`, `saltcellar tokens list` and \
         `saltcellar store holds list`, then accept the loss with `saltcellar store accept-loss`",
        loss.found.iso()
    )
}

/// Whether a key is about a loss.
pub(super) fn is_of_loss(key: &str) -> bool {
    let kind = key.split('/').next();
    [Loss::KIND, Removed::KIND]
        .iter()
        .any(|of_loss| kind == Some(of_loss))
}

/// The loss among these values.
pub(super) fn loss_of(view: &Values) -> Option<Loss> {
    let stored = view.get(&key::<Loss>(""))?;
    // One that cannot be read is still one.
    Some(Loss::decode(&stored.value).unwrap_or(Loss {
        records: None,
        found: Micros::default(),
        upto: u64::MAX,
        logs: Vec::new(),
    }))
}

/// Values set up to this position are uncertain.
pub(super) fn upto(view: &Values) -> u64 {
    loss_of(view).map_or(0, |loss| loss.upto)
}
