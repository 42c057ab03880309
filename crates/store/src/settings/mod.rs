//! Settings: what cannot be rebuilt from entries, such as the cursors of consumers, holds and
//! tokens.
//!
//! They are records, a key with a value or nil, in a separate log class and in the same frames as
//! entries. The last record of a key counts. [`Settings`] keeps all latest values in memory, as a
//! view of that log; the owner of a kind of setting implements [`Setting`] for it.
//!
//! # Invariants
//!
//! A segment begins with all live values, and is removed only when two newer segments contain them.
//! Each change is appended to the two newest segments, so damage of one segment loses nothing.
//! Changes have positions without gaps, so what is damaged in both is counted, and stays reported
//! until an administrator accepts it ([`Loss`]).
//!
//! **Unknown is never new.** After a loss each owner takes the careful side for values that may be
//! out of date ([`Found::is_uncertain`]) and for names that it does not know ([`Settings::loss`]).
//!
//! The class has separate sequence numbers, because its records are written even while the appender
//! is busy, rejects entries because the disk is nearly full, or does not run.
//!
//! # Modules
//!
//! ```text
//! setting    what has values
//! record     the body of a record;  values: the latest ones, by key
//! loss       what was lost
//! found      what the segments hold, whatever is damaged
//! journal    writes segments
//! ```

mod found;
mod journal;
mod loss;
mod record;
mod setting;
#[cfg(test)]
pub(crate) mod tests;
mod values;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::{Mutex, RwLock};

pub use found::{BadPart, Found as FoundSettings, Missing};
use journal::Journal;
pub use loss::Loss;
pub(crate) use loss::loss_text;
use loss::{Removed, is_of_loss, loss_of, upto};
pub use setting::Setting;
use setting::key;
use values::{Stored, Values, apply};

use crate::error::StoreError;
use crate::format::{self, make_dir};
use crate::vfs::Fs;
use saltcellar_base::clock::{Clock, Micros};
use saltcellar_base::file_fault::FileFault;
use saltcellar_model::SeqNo;

pub(crate) use saltcellar_model::SETTINGS;

/// Kinds of settings that are true only at their time, and are not restored from a backup. Events
/// of a backup are old, and their later records are lost: they must not cause reactions again. The
/// time of a backup is the time of its newest entry.
const OF_THE_MOMENT: &[&str] = &["reactor", "clock"];

/// A setting that was found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Found<T> {
    /// Its name, without the kind.
    pub name: String,
    /// `None` if this release cannot read the value.
    pub value: Option<T>,
    /// Whether a later change of it may be lost.
    pub is_uncertain: bool,
}

/// Changes that are made together: after a crash there are all of them or none.
#[derive(Debug, Default)]
pub struct Changes(Vec<(String, Option<Vec<u8>>)>);

impl Changes {
    /// Sets a value.
    pub fn put<T: Setting>(&mut self, name: &str, value: &T) -> Result<(), StoreError> {
        self.0.push((key::<T>(name), Some(value.encode()?)));
        Ok(())
    }

    /// Removes a value.
    pub fn remove<T: Setting>(&mut self, name: &str) {
        self.0.push((key::<T>(name), None));
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Adds a [`Removed`] for each value that is removed.
    fn note_removals(&mut self) -> Result<(), StoreError> {
        let removed = self.0.iter().filter(|(_, value)| value.is_none());
        let removed: Vec<String> = removed.map(|(key, _)| key.clone()).collect();
        let removed = removed.iter().filter(|key| !is_of_loss(key));
        removed
            .cloned()
            .try_for_each(|key| self.put(&key, &Removed {}))
    }
}

/// When a change is on disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Save {
    /// On return.
    Durable,
    /// With the next durable change. Survives the end of the process from the return on.
    Later,
}

/// All settings.
#[derive(Debug)]
pub struct Settings {
    clock: Clock,
    /// Held while a change is written and synced, so never taken on a thread of a runtime. Lock
    /// order: before `view`.
    journal: Mutex<Journal>,
    /// Held for moments only. Lock order: after `journal`; no other lock is taken under it.
    view: RwLock<Values>,
    /// What was damaged at the start. Nothing of it is in use any more.
    damage: Vec<BadPart>,
    dir: PathBuf,
}

/// Where [`Settings::open`] finds what.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Place<'a> {
    pub(crate) state_dir: &'a Path,
    pub(crate) store_id: u64,
    /// The last position at a clean stop, if there was one.
    pub(crate) position: Option<u64>,
    /// Whether the store has just been created. There are no settings yet then.
    pub(crate) is_new: bool,
    /// Bytes of changes after which a segment begins, beyond the size of its snapshot.
    pub(crate) growth: u64,
}

impl Settings {
    /// Reads the settings, and repairs damaged copies from intact copies. What is lost becomes a
    /// [`Loss`].
    pub(crate) fn open(
        fs: Arc<dyn Fs>,
        place: Place<'_>,
        clock: Clock,
    ) -> Result<Self, StoreError> {
        let dir = format::class_dir(place.state_dir, SETTINGS);
        make_dir(&*fs, &dir)?;
        let mut found = FoundSettings::read(&*fs, place.state_dir, place.store_id, place.position)?;
        if found.segments.is_empty() && !place.is_new {
            found.lose_all();
        }
        recover(&*fs, &dir, place.store_id, &mut found)?;

        // After a clean stop the copies are equal; after a crash one may lack the end of the other.
        if place.position.is_some() && !found.is_whole() && found.damage.is_empty() {
            found.damage.push(BadPart {
                first_seq: SeqNo::default(),
                path: dir,
                offset: 0,
                bytes: 0,
                what: INCOMPLETE.to_owned(),
            });
        }
        Self::with(fs, &place, found, clock)
    }

    /// With what was found elsewhere: the settings of another directory.
    pub(crate) fn create(
        fs: Arc<dyn Fs>,
        place: Place<'_>,
        mut found: FoundSettings,
        clock: Clock,
    ) -> Result<Self, StoreError> {
        make_dir(&*fs, &format::class_dir(place.state_dir, SETTINGS))?;
        if found.segments.is_empty() {
            found.lose_all();
        }
        // They are not in this directory.
        found.segments.clear();
        Self::with(fs, &place, found, clock)
    }

    fn with(
        fs: Arc<dyn Fs>,
        place: &Place<'_>,
        mut found: FoundSettings,
        clock: Clock,
    ) -> Result<Self, StoreError> {
        let dir = format::class_dir(place.state_dir, SETTINGS);
        let now = clock.now();
        let mut values = std::mem::take(&mut found.values);
        if let Some(missing) = found.missing {
            let logs = keep_damaged(&dir)?;
            note_loss(&mut values, missing, logs, now)?;
        }

        let mut journal = Journal::new(fs, dir.clone(), place.store_id, &found, place.growth)?;
        journal.resume(&found, &values, now)?;
        Ok(Self {
            clock,
            journal: Mutex::new(journal),
            view: RwLock::new(values),
            damage: found.damage,
            dir,
        })
    }

    /// Those of a directory without a store around them, for tests.
    pub fn for_tests(state_dir: &Path) -> Arc<Self> {
        Self::for_tests_on(state_dir, Arc::new(crate::vfs::Disk)).expect("settings")
    }

    /// As [`Settings::for_tests`], on this file system.
    pub fn for_tests_on(state_dir: &Path, fs: Arc<dyn Fs>) -> Result<Arc<Self>, StoreError> {
        let dir = format::class_dir(state_dir, SETTINGS);
        let place = Place {
            state_dir,
            store_id: 7,
            position: None,
            is_new: !dir.is_dir(),
            growth: 4096,
        };
        Self::open(fs, place, Clock::manual(Micros(1))).map(Arc::new)
    }

    /// Their directory, for messages.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// The parts of segments that were damaged at the start. All of them are replaced.
    pub(crate) fn damage(&self) -> &[BadPart] {
        &self.damage
    }

    /// Makes all changes durable; returns the position of the last one, for the record of a clean stop.
    pub(crate) fn close(&self) -> Result<u64, StoreError> {
        let mut journal = self.journal.lock();
        journal.sync()?;
        Ok(journal.position())
    }

    /// Makes changes. After an error none of them is in effect; the next start may find them.
    pub fn commit(&self, changes: Changes, save: Save) -> Result<(), StoreError> {
        if changes.0.is_empty() {
            return Ok(());
        }

        let mut journal = self.journal.lock();
        let now = self.clock.now();
        let mut changes = changes;
        if self.loss().is_some() {
            changes.note_removals()?;
        }
        let batch = journal.batch(changes.0)?;

        if journal.can_append() {
            journal.append(&batch, now, save == Save::Durable)?;
            let mut view = self.view.write();
            for record in &batch {
                apply(&mut view, record);
            }
        } else {
            // What the files hold is unknown, or there is only one of them: all values are written
            // again, with the changes.
            let mut values = self.view.read().clone();
            for record in &batch {
                apply(&mut values, record);
            }
            journal.renew(&values, now)?;
            *self.view.write() = values;
        }

        if journal.has_grown() {
            let values = self.view.read().clone();
            // The changes are saved in any case; the next one retries.
            if let Err(error) = journal.begin_segment(&values, now) {
                tracing::warn!(dir = %journal.class_dir().display(), %error, "cannot start a settings segment, nothing is lost, retrying with the next change");
            }
        }
        Ok(())
    }

    /// Sets one value.
    pub fn put<T: Setting>(&self, name: &str, value: &T, save: Save) -> Result<(), StoreError> {
        let mut changes = Changes::default();
        changes.put(name, value)?;
        self.commit(changes, save)
    }

    /// Removes one value; false if there is none. Durable on return.
    pub(crate) fn remove<T: Setting>(&self, name: &str) -> Result<bool, StoreError> {
        if !self.view.read().contains_key(&key::<T>(name)) {
            return Ok(false);
        }
        let mut changes = Changes::default();
        changes.remove::<T>(name);
        self.commit(changes, Save::Durable)?;
        Ok(true)
    }

    /// The value of a name.
    pub fn get<T: Setting>(&self, name: &str) -> Option<Found<T>> {
        let view = self.view.read();
        let stored = view.get(&key::<T>(name))?;
        Some(found_of(name, stored, upto(&view)))
    }

    /// All values of a kind whose names begin with a prefix, sorted by name.
    pub fn all<T: Setting>(&self, prefix: &str) -> Vec<Found<T>> {
        let begin = key::<T>(prefix);
        let view = self.view.read();
        let upto = upto(&view);
        view.range(begin.clone()..)
            .take_while(|(key, _)| key.starts_with(&begin))
            .map(|(key, stored)| {
                let name = key.get(T::KIND.len() + 1..).unwrap_or_default();
                found_of(name, stored, upto)
            })
            .collect()
    }

    /// The names of a kind.
    pub fn names<T: Setting>(&self) -> Vec<String> {
        let begin = key::<T>("");
        let view = self.view.read();
        let keys = view.range(begin.clone()..).map(|(key, _)| key);
        let keys = keys.take_while(|key| key.starts_with(&begin));
        keys.filter_map(|key| key.get(begin.len()..).map(str::to_owned))
            .collect()
    }

    /// The number of values of a kind whose names begin with a prefix, and their bytes.
    pub fn size<T: Setting>(&self, prefix: &str) -> (usize, u64) {
        let begin = key::<T>(prefix);
        let view = self.view.read();
        let of_kind = view.range(begin.clone()..);
        let of_kind = of_kind.take_while(|(key, _)| key.starts_with(&begin));
        of_kind.fold((0, 0), |(count, bytes), (_, stored)| {
            (count + 1, bytes + stored.value.len() as u64)
        })
    }

    /// Changes that were lost.
    pub fn loss(&self) -> Option<Loss> {
        loss_of(&self.view.read())
    }

    /// An administrator accepts a loss: all values count as they are, and unknown names are new. False
    /// if nothing is lost. Durable on return.
    pub fn accept_loss(&self) -> Result<bool, StoreError> {
        if self.loss().is_none() {
            return Ok(false);
        }
        let mut changes = Changes::default();
        for name in self.names::<Removed>() {
            changes.remove::<Removed>(&name);
        }
        changes.remove::<Loss>("");
        self.commit(changes, Save::Durable)?;
        Ok(true)
    }

    /// What is lost, for the status.
    pub(crate) fn fault(&self) -> Option<FileFault> {
        let problem = loss_text(&self.loss()?);
        Some(FileFault::serious(&self.dir, problem))
    }

    /// Removes what is true at another time only ([`OF_THE_MOMENT`]). Durable on return.
    pub(crate) fn forget_the_moment(&self) -> Result<(), StoreError> {
        let is_of = |key: &&String| {
            let kind = key.split_once('/').map(|(kind, _)| kind);
            kind.is_some_and(|kind| OF_THE_MOMENT.contains(&kind))
        };
        let keys: Vec<String> = self.view.read().keys().filter(is_of).cloned().collect();
        let removed = keys.into_iter().map(|key| (key, None)).collect();
        self.commit(Changes(removed), Save::Durable)
    }
}

/// What is wrong if the two copies differ without damage.
pub(crate) const INCOMPLETE: &str =
    "one of the two copies of the settings is incomplete or missing";

fn found_of<T: Setting>(name: &str, stored: &Stored, upto: u64) -> Found<T> {
    Found {
        name: name.to_owned(),
        value: T::decode(&stored.value),
        is_uncertain: stored.position <= upto,
    }
}

/// Adds what is missing to what was lost before. `logs` are the damaged logs that were kept.
fn note_loss(
    values: &mut Values,
    missing: Missing,
    logs: Vec<String>,
    now: Micros,
) -> Result<(), StoreError> {
    let before = loss_of(values);
    // Logs from two losses do not fit together, so after an earlier loss none are named.
    let logs = if before.is_none() { logs } else { Vec::new() };
    let before = before.map(|loss| Missing {
        records: loss.records,
        upto: loss.upto,
    });

    let Missing { records, upto } = missing.joined(before);
    let loss = Loss {
        records,
        found: now,
        upto,
        logs,
    };
    tracing::error!(
        records,
        loss = %loss_text(&loss),
        "settings lost: check them, then run `saltcellar store accept-loss`"
    );

    let stored = Stored {
        position: upto,
        value: loss.encode()?.into(),
    };
    values.insert(key::<Loss>(""), stored);
    Ok(())
}

/// Gives damaged logs a second name, which stays when they are replaced: another attempt may read
/// more of them. Returns the names.
fn keep_damaged(class_dir: &Path) -> Result<Vec<String>, StoreError> {
    let mut kept = Vec::new();
    for generation in format::generations(class_dir)? {
        let name = format!("{}{DAMAGED}", format::name_of(&generation.dir));
        // A link, not a copy: a copy would need another read of the sectors.
        match std::fs::hard_link(generation.dir.join("log"), class_dir.join(&name)) {
            Err(why) if why.kind() != std::io::ErrorKind::AlreadyExists => {
                // Only the evidence is lost.
                tracing::warn!(dir = %generation.dir.display(), error = %why, "cannot keep a copy of the damaged settings log, lost settings cannot be recovered from it later");
            }
            _ => kept.push(name),
        }
    }
    Ok(kept)
}

/// Ends a loss if the damaged logs can be read now, such as after errors of a cable. What was changed
/// since stays.
fn recover(
    fs: &dyn Fs,
    class_dir: &Path,
    store_id: u64,
    found: &mut FoundSettings,
) -> Result<(), StoreError> {
    let Some(loss) = loss_of(&found.values).filter(|loss| !loss.logs.is_empty()) else {
        return Ok(());
    };
    if found.missing.is_some() {
        return Ok(());
    }

    let mut logs = Vec::new();
    for name in &loss.logs {
        let generation = name.strip_suffix(DAMAGED).and_then(format::generation_of);
        if let Some((first_seq, _)) = generation {
            logs.push((class_dir.join(name), class_dir.to_owned(), first_seq));
        }
    }
    let before = FoundSettings::of_logs(fs, logs, store_id, None)?;
    // Not all of it: it stays lost.
    if before.missing.is_some() || !before.has_segments() || loss_of(&before.values).is_some() {
        return Ok(());
    }

    tracing::warn!(dir = %class_dir.display(), "the damaged settings logs are readable now, nothing is lost");
    let values = &mut found.values;
    for (key, stored) in before.values {
        let is_changed = values
            .get(&key)
            .is_some_and(|known| known.position > loss.upto);
        let is_removed = values.contains_key(&setting::key::<Removed>(&key));
        if !is_changed && !is_removed {
            values.insert(key, stored);
        }
    }
    values.retain(|key, _| !is_of_loss(key));
    found.position = found.position.max(before.position);
    // Both copies have to be made again.
    found.segments.clear();
    Ok(())
}

/// Suffix of the second name of a damaged log.
pub(crate) const DAMAGED: &str = ".damaged";
