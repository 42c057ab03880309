//! The saved checkpoint: settings of the store ([`crate::store::settings`]), at most a second old, so
//! that a start does not read the whole log.
//!
//! ```text
//! reactor/position       cursor, mode and rules ([`Position`])
//! reactor/open/<block>   the open events of a block ([`OpenBlock`])
//! ```
//!
//! All changes of a save are one batch: of two checkpoints there is never a mixture. Without one the
//! reactor starts with the next event, because events from before the reactor was configured, or from
//! a restored backup, must not cause reactions. A start without a reactor removes it.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use super::Checkpoint;
use super::open::EventProgress;
use crate::model::SeqNo;
use crate::store::StoreError;
use crate::store::settings::{Changes, Save, Setting, Settings};

/// Everything but the open events.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Position {
    /// All entries before it are included.
    cursor: SeqNo,
    /// The first event whose calls are made, because Salt's reactor handled earlier ones; absent in
    /// shadow.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    acting_from: Option<SeqNo>,
    /// Hashes of the rules, with the first event to which each applies.
    rules: BTreeMap<u64, SeqNo>,
}

impl Setting for Position {
    const KIND: &'static str = "reactor";
}

/// The name of [`Position`].
const POSITION: &str = "position";

/// The open events of a block of [`super::open::OpenEvents`].
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
struct OpenBlock {
    /// Low bits of the number, and the number of rules that matched.
    events: Vec<(u16, u32)>,
    /// Low bits, completed rules, and started calls, of events that have any.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    progress: Vec<(u16, Vec<u64>, Vec<u64>)>,
}

impl Setting for OpenBlock {
    const KIND: &'static str = "reactor/open";
}

/// The name of a block. In the order of the events.
fn block_name(block: u64) -> String {
    format!("{block:016x}")
}

impl OpenBlock {
    /// A block of a checkpoint; `None` if no event in it is open.
    fn of(checkpoint: &Checkpoint, block: u64) -> Option<Self> {
        let events = checkpoint.open.block(block)?.to_vec();
        let progress = events.iter().filter_map(|(low, _)| {
            let event = super::open::joined(block, *low);
            let EventProgress { done, started } = checkpoint.open.progress(event);
            let has_any = !done.is_empty() || !started.is_empty();
            has_any.then(|| (*low, done.clone(), started.clone()))
        });
        let progress = progress.collect();
        Some(Self { events, progress })
    }

    /// Adds its events to a checkpoint.
    fn restore(self, checkpoint: &mut Checkpoint, block: u64) {
        let open = &mut checkpoint.open;
        for (low, rule_count) in self.events {
            open.insert(super::open::joined(block, low), rule_count);
        }
        for (low, done, started) in self.progress {
            *open.progress_mut(super::open::joined(block, low)) = EventProgress { done, started };
        }
    }
}

/// What of a checkpoint is saved.
#[derive(Debug, Default)]
pub(crate) struct Saved {
    /// `None` if everything must be saved.
    position: Option<Position>,
}

impl Saved {
    /// Reads the checkpoint of a store whose entries end at `durable`; `None` if there is none. An
    /// error describes what cannot be read.
    pub(crate) fn load(
        settings: &Settings,
        durable: SeqNo,
    ) -> Result<Option<(Self, Checkpoint)>, String> {
        let Some(found) = settings.get::<Position>(POSITION) else {
            // One that is lost is not one that never was.
            return match settings.loss() {
                Some(_) => Err("settings are lost, among them its position".to_owned()),
                None => Ok(None),
            };
        };
        let position = found.value.ok_or("its position cannot be read")?;

        let mut checkpoint = Checkpoint::at(position.cursor);
        checkpoint.acting_from = position.acting_from;
        checkpoint.rules.clone_from(&position.rules);
        for found in settings.all::<OpenBlock>("") {
            let block = u64::from_str_radix(&found.name, 16).ok();
            let (Some(block), Some(value)) = (block, found.value) else {
                return Err(format!("its open events {} cannot be read", found.name));
            };
            value.restore(&mut checkpoint, block);
        }

        // Moved back, never forward: the log may have lost its end, or the settings later positions.
        // What is open from there on is reread.
        checkpoint.cursor = checkpoint.cursor.min(durable);
        let cursor = checkpoint.cursor;
        let late: Vec<SeqNo> = checkpoint.open.from(cursor).collect();
        if cursor < position.cursor || !late.is_empty() || found.is_uncertain {
            tracing::warn!(
                cursor = cursor.0,
                saved = position.cursor.0,
                "reactor checkpoint older than expected, rereading the log from an earlier position"
            );
        }
        for event in &late {
            checkpoint.forget(*event);
        }

        // An unchanged position needs no save.
        let position = Some(position).filter(|_| late.is_empty());
        Ok(Some((Self { position }, checkpoint)))
    }

    /// The changes of a checkpoint since the last call; `None` if there are none.
    pub(crate) fn changes(
        &mut self,
        checkpoint: &mut Checkpoint,
        settings: &Settings,
    ) -> Result<Option<Changes>, StoreError> {
        let position = Position {
            cursor: checkpoint.cursor,
            acting_from: checkpoint.acting_from,
            rules: checkpoint.rules.clone(),
        };
        let mut blocks = checkpoint.take_changed_blocks();
        let is_whole = self.position.is_none();
        if blocks.is_empty() && self.position.as_ref() == Some(&position) {
            return Ok(None);
        }

        let mut changes = Changes::default();
        if is_whole {
            // Also those that are saved and have no open event any more.
            let saved = settings.names::<OpenBlock>();
            let saved = saved
                .iter()
                .filter_map(|name| u64::from_str_radix(name, 16).ok());
            let saved: BTreeSet<u64> = saved.collect();
            blocks.extend(saved);
            blocks.extend(checkpoint.open.blocks());
        }
        for block in blocks {
            let name = block_name(block);
            match OpenBlock::of(checkpoint, block) {
                Some(open) => changes.put(&name, &open)?,
                None => changes.remove::<OpenBlock>(&name),
            }
        }
        changes.put(POSITION, &position)?;

        // Until it proves to have failed.
        self.position = Some(position);
        Ok(Some(changes))
    }

    /// Notes that changes were not saved.
    pub(crate) fn failed(&mut self) {
        self.position = None;
    }
}

/// Removes the checkpoint; false if there is none. Durable on return.
pub(crate) fn remove(settings: &Settings) -> Result<bool, StoreError> {
    let mut changes = Changes::default();
    for name in settings.names::<OpenBlock>() {
        changes.remove::<OpenBlock>(&name);
    }
    let was_there = settings.get::<Position>(POSITION).is_some();
    if was_there {
        changes.remove::<Position>(POSITION);
    }
    settings.commit(changes, Save::Durable)?;
    Ok(was_there)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::base::clock::Micros;
    use crate::reactor::run::record::{Mark, RecordSummary, rule_hash};

    const END: SeqNo = SeqNo(1_000_000);

    fn summary(event: u64, rules: &[&str], rule_count: usize) -> RecordSummary {
        RecordSummary {
            event: SeqNo(event),
            at: Micros(0),
            content: 0,
            rules: rules.iter().map(|rule| rule_hash(rule)).collect(),
            rule_count,
            marks: None,
        }
    }

    struct Rig {
        _dir: tempfile::TempDir,
        settings: Arc<Settings>,
        saved: Saved,
    }

    impl Rig {
        fn new() -> Self {
            let dir = tempfile::tempdir().unwrap();
            Self {
                settings: Settings::for_tests(dir.path()),
                _dir: dir,
                saved: Saved::default(),
            }
        }

        /// Saves the changes; whether there were any.
        fn save(&mut self, checkpoint: &mut Checkpoint) -> bool {
            let changes = self.saved.changes(checkpoint, &self.settings).unwrap();
            let Some(changes) = changes else {
                return false;
            };
            self.settings.commit(changes, Save::Durable).unwrap();
            true
        }

        fn load(&self, durable: SeqNo) -> Checkpoint {
            let loaded = Saved::load(&self.settings, durable).unwrap();
            let (_, mut checkpoint) = loaded.expect("a checkpoint");
            checkpoint.take_changed_blocks();
            checkpoint
        }
    }

    fn checkpoint() -> Checkpoint {
        let mut checkpoint = Checkpoint::at(SeqNo(3));
        checkpoint.set_rules(["a", "b"].into_iter(), SeqNo(3));
        checkpoint.set_mode(false, SeqNo(2));
        checkpoint
    }

    #[test]
    fn a_checkpoint_is_restored_after_each_save() {
        let (mut checkpoint, mut rig) = (checkpoint(), Rig::new());
        assert!(Saved::load(&rig.settings, END).unwrap().is_none());
        assert!(rig.save(&mut checkpoint));
        assert!(!rig.save(&mut checkpoint), "nothing has changed");

        let steps: [fn(&mut Checkpoint); 6] = [
            |checkpoint| {
                for seq in [5, 6, 7, 5000] {
                    checkpoint.opened(SeqNo(seq), 2);
                }
            },
            |checkpoint| checkpoint.apply_record(SeqNo(9), &summary(6, &["a"], 2)),
            |checkpoint| {
                checkpoint.apply_record(SeqNo(9), &summary(6, &["b"], 2));
                let marks = Some(vec![(Mark::Started, 1), (Mark::Started, u64::MAX)]);
                checkpoint.apply_record(
                    SeqNo(9),
                    &RecordSummary {
                        marks,
                        ..summary(7, &["c"], 3)
                    },
                );
            },
            |checkpoint| checkpoint.forget(SeqNo(5000)),
            |checkpoint| checkpoint.set_rules(["a"].into_iter(), SeqNo(9)),
            |checkpoint| checkpoint.set_mode(true, SeqNo(9)),
        ];
        for (n, step) in steps.into_iter().enumerate() {
            step(&mut checkpoint);
            assert!(rig.save(&mut checkpoint), "step {n}");
            assert_eq!(rig.load(END), checkpoint, "step {n}");
        }

        // What was opened and closed between two saves is not written.
        checkpoint.opened(SeqNo(9000), 1);
        checkpoint.forget(SeqNo(9000));
        assert!(checkpoint.take_changed_blocks().is_empty());

        assert!(remove(&rig.settings).unwrap() && !remove(&rig.settings).unwrap());
        assert!(Saved::load(&rig.settings, END).unwrap().is_none());
    }

    #[test]
    fn everything_is_saved_again_after_a_save_that_failed() {
        let (mut checkpoint, mut rig) = (checkpoint(), Rig::new());
        for seq in [4, 5000] {
            checkpoint.opened(SeqNo(seq), 1);
        }
        rig.save(&mut checkpoint);
        checkpoint.forget(SeqNo(5000));
        checkpoint.opened(SeqNo(9000), 1);
        rig.saved
            .changes(&mut checkpoint, &rig.settings)
            .unwrap()
            .unwrap();
        rig.saved.failed();
        assert!(rig.save(&mut checkpoint));
        assert_eq!(rig.load(END), checkpoint);
    }

    #[test]
    fn a_position_behind_the_end_of_the_log_moves_back() {
        let (mut checkpoint, mut rig) = (checkpoint(), Rig::new());
        for seq in [4, 6] {
            checkpoint.opened(SeqNo(seq), 1);
        }
        rig.save(&mut checkpoint);
        let found = rig.load(SeqNo(6));
        assert_eq!(found.cursor, SeqNo(6));
        assert!(found.open.contains(SeqNo(4)) && !found.open.contains(SeqNo(6)));
    }
}
