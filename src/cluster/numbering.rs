//! The numbering of this store, which names its entries for the other masters together with their numbers.
//!
//! A sequence number is used once, even after a restore, which leaves out numbers ([`SkippedNumbers`]). The state directory of a host
//! that was set back to a snapshot uses numbers again: the stream then contains more entries of this master than the store, or another entry
//! under the same number. The store then begins a new numbering, so no entry has the name of another.
//!
//! # Invariants
//!
//! A numbering is on disk before an entry is published under it.
//!
//! The first number that may have been used twice is where the outbox was when the store was opened, and not where it is when the stream tells of
//! the later entries: until then it may have passed entries that are not shared, whose numbers the lost entries have.

use async_nats::jetstream::stream::LastRawMessageErrorKind;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use super::envelope::Header;
use super::{Cluster, OUTBOX, random_name};
use crate::base::clock::Micros;
use crate::client::nats::Connection;
use crate::model::{Flags, Kind, SeqNo};
use crate::store::settings::{Save, Setting, Settings};
use crate::store::{SkippedNumbers, Start, Store, StoreError};

/// A numbering that is over.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Earlier {
    epoch: String,
    from: u64,
    /// The last number of it that this store has.
    last: u64,
}

/// The numbering in use.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Numbering {
    /// A random number, 16 hexadecimal digits.
    pub(crate) epoch: String,
    /// The first number under it.
    pub(crate) from: u64,
    /// The number of the last entry that was published under it, or of the last one before.
    pub(crate) published: u64,
    /// When the stream was made that has what was published.
    #[serde(default)]
    pub(crate) stream: Micros,
    /// Where the outbox was when the store was opened, until the numbering agrees with the stream, even across restarts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    opened_at: Option<u64>,
    /// The epoch of another state of this store, or of another node with its name, after whose message this numbering was begun.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    begun_after: Option<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    earlier: Vec<Earlier>,
}

impl Setting for Numbering {
    const KIND: &'static str = "cluster-numbering";
}

/// The numbering, as the outbox changes it and the inbox reads it.
#[derive(Debug)]
pub(crate) struct OwnNumbering {
    /// Lock order: before the locks of the settings.
    current: Mutex<Numbering>,
}

impl OwnNumbering {
    /// That of the store; a new one if it has none. Opened before the outbox moves.
    pub(crate) fn of(store: &Store) -> Result<Self, StoreError> {
        let settings = store.settings();
        let mut found = Numbering::of(settings)?;
        if found.opened_at.is_none() {
            found.opened_at = Some(cursor(store)?.0);
            settings.put("", &found, Save::Durable)?;
        }
        let current = Mutex::new(found);
        Ok(Self { current })
    }

    /// As it is now.
    pub(crate) fn get(&self) -> Numbering {
        self.current.lock().clone()
    }

    /// Notes that all entries up to a number are published.
    pub(crate) fn published(&self, last: u64, settings: &Settings) -> Result<(), StoreError> {
        self.current.lock().published(last, settings)
    }

    /// Makes it agree with the messages of this master in the stream. Done before anything is published, and before such messages are taken
    /// for messages of this store.
    pub(crate) fn agree(
        &self,
        cluster: &Cluster,
        store: &Store,
        newest: Option<Newest>,
        created: Micros,
    ) -> Result<(), StoreError> {
        let settings = store.settings();
        // Held throughout, because the outbox and the inbox both do this for each connection.
        let mut own = self.current.lock();

        own.agree(store, newest)?;

        if created == own.stream {
            return Ok(());
        }
        // The first stream of a numbering replaces none.
        if own.stream != Micros::default() {
            let since = store.now().before(cluster.window);
            store.consumers().seek(OUTBOX, Start::Time(since))?;
            tracing::warn!(
                stream = cluster.subjects.stream(),
                "the stream was replaced, republishing the entries within cluster.window"
            );
        }
        // Last: after a crash before, all of it happens again.
        own.is_in(created, settings)
    }
}

/// The number of the next entry to be published.
fn cursor(store: &Store) -> Result<SeqNo, StoreError> {
    let all = store.consumer_states()?;
    let outbox = all.into_iter().find(|one| one.record.name == OUTBOX);
    // Not made yet: nothing was published.
    Ok(outbox.map_or(SeqNo::FIRST, |one| one.record.cursor))
}

/// Whether the store was set back to an earlier state: the stream contains a later entry of its own numbering, or another entry with that number.
fn is_set_back(store: &Store, last: u64, last_at: Micros) -> Result<bool, StoreError> {
    if last >= store.durable().0 {
        return Ok(true);
    }
    let mut found = None;
    let any = |_: Kind, _: Flags| true;
    store.first_entry(any, SeqNo(last), |entry| {
        found = Some((entry.seq.0, entry.at));
    })?;
    // Retention may have dropped it.
    Ok(found.is_some_and(|(seq, at)| seq == last && at != last_at))
}

/// What the newest message of this master in the stream says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Newest {
    /// Its number in the stream.
    pub(crate) message: u64,
    pub(crate) epoch: String,
    pub(crate) last: u64,
    pub(crate) last_at: Micros,
}

impl Numbering {
    /// That of the store; a new one if it has none.
    pub(crate) fn of(settings: &Settings) -> Result<Self, StoreError> {
        if let Some(known) = settings.get::<Self>("").and_then(|found| found.value) {
            return Ok(known);
        }
        let first = Self {
            epoch: random_name()?,
            from: 1,
            published: 0,
            stream: Micros::default(),
            opened_at: None,
            begun_after: None,
            earlier: Vec::new(),
        };
        settings.put("", &first, Save::Durable)?;
        Ok(first)
    }

    /// Begins a new numbering with the number `next`, the first one that may have been used twice.
    pub(crate) fn renew(&mut self, next: SeqNo, settings: &Settings) -> Result<(), StoreError> {
        let last = next.0.saturating_sub(1);
        let mut new = self.clone();
        // Without an entry of it, nothing was published under it.
        if last >= self.from {
            new.earlier.push(Earlier {
                epoch: self.epoch.clone(),
                from: self.from,
                last,
            });
        }
        new.opened_at = None;
        new.epoch = random_name()?;
        new.from = next.0;
        new.published = last;
        settings.put("", &new, Save::Durable)?;
        *self = new;
        Ok(())
    }

    /// Begins a new numbering if the store was set back.
    fn agree(&mut self, store: &Store, newest: Option<Newest>) -> Result<(), StoreError> {
        let settings = store.settings();
        if let Some(newest) = newest {
            if self.is_behind(store, &newest)? {
                // All before it was published before the store was set back.
                let opened_at = self
                    .opened_at
                    .map_or_else(|| cursor(store), |at| Ok(SeqNo(at)))?;
                let first = opened_at.max(SeqNo(self.published + 1));
                // If it cannot be saved, all of it happens again.
                let mut new = self.clone();
                new.begun_after = Some(newest.epoch);
                new.renew(first, settings)?;
                *self = new;
                tracing::warn!(
                    last = newest.last,
                    first = first.0,
                    "the stream contains later entries of this master than the store, which was restored or copied; starting a new numbering"
                );
            } else if newest.epoch == self.epoch {
                // The note is saved some time after the entries are published, so a crash may have
                // lost it.
                self.published(newest.last, settings)?;
            }
        }
        if self.opened_at.take().is_some() {
            settings.put("", self, Save::Durable)?;
        }
        Ok(())
    }

    /// Whether the store was set back to a state before it published what the newest message says.
    fn is_behind(&self, store: &Store, newest: &Newest) -> Result<bool, StoreError> {
        if newest.epoch == self.epoch {
            return is_set_back(store, newest.last, newest.last_at);
        }
        // Such a message was there when this numbering was begun.
        let is_known = self
            .earlier
            .iter()
            .any(|earlier| earlier.epoch == newest.epoch)
            || self.begun_after.as_ref() == Some(&newest.epoch);
        // Otherwise a later state of this store wrote it, and may have used numbers of this numbering before; or another node with this name did.
        Ok(!is_known)
    }

    /// Notes that all entries up to a number are published.
    pub(crate) fn published(&mut self, last: u64, settings: &Settings) -> Result<(), StoreError> {
        if last > self.published {
            self.published = last;
            settings.put("", self, Save::Later)?;
        }
        Ok(())
    }

    /// The numbering of a number of this store, and its first number.
    pub(crate) fn of_number(&self, number: u64) -> (&str, u64) {
        if number >= self.from {
            return (&self.epoch, self.from);
        }
        let mut of_earlier = self.earlier.iter().rev();
        let found = of_earlier.find(|earlier| earlier.from <= number);
        found.map_or((&self.epoch, 1), |earlier| (&earlier.epoch, earlier.from))
    }

    /// Whether two numbers of this store have the same numbering.
    pub(crate) fn is_one(&self, a: u64, b: u64) -> bool {
        self.of_number(a) == self.of_number(b)
    }

    /// Notes in which stream it is from now on.
    pub(crate) fn is_in(&mut self, stream: Micros, settings: &Settings) -> Result<(), StoreError> {
        self.stream = stream;
        settings.put("", self, Save::Durable)
    }

    /// Whether this store has the entry of this name itself, and nobody has to send it. What was
    /// lost with an older state of the store has a number that was left out, or a numbering that
    /// this store does not know.
    pub(crate) fn has(&self, epoch: &str, number: u64, skipped: &[SkippedNumbers]) -> bool {
        let is_left_out = |range: &SkippedNumbers| (range.first.0..range.end.0).contains(&number);
        let earlier = || self.earlier.iter().find(|earlier| earlier.epoch == epoch);
        let is_in = if epoch == self.epoch {
            number >= self.from
        } else {
            earlier().is_some_and(|earlier| (earlier.from..=earlier.last).contains(&number))
        };
        is_in && !skipped.iter().any(is_left_out)
    }
}

impl Cluster {
    /// What the newest message of this master in the stream says; `None` if there is none.
    pub(crate) async fn newest_of_own(
        &self,
        connection: &Connection,
    ) -> Result<Option<Newest>, String> {
        let (name, subject) = (self.subjects.stream(), self.subjects.log(&self.name));
        let stream = connection.context.get_stream_no_info(name).await;
        let stream = stream.map_err(|error| error.to_string())?;

        // Read through the stream's leader: no user has the right to read directly
        // (`$JS.API.DIRECT.GET`).
        let found = stream.get_last_raw_message_by_subject(&subject).await;
        let message = match found {
            Ok(message) => message,
            Err(error) if error.kind() == LastRawMessageErrorKind::NoMessageFound => {
                return Ok(None);
            }
            Err(error) => {
                return Err(format!(
                    "cannot read the newest message of {subject}: {error}"
                ));
            }
        };
        // Another node with this name may publish what it wants; it is not this store's.
        let read = Header::read(&message.payload).ok();
        let (epoch, last, last_at) = read.map_or_else(Default::default, |(header, _)| {
            (header.epoch, header.last, Micros(header.last_at))
        });
        Ok(Some(Newest {
            message: message.sequence,
            epoch,
            last,
            last_at,
        }))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::sync_channel;

    use super::*;
    use crate::base::clock::Clock;
    use crate::model::{Batch, Source};
    use crate::store::Options;
    use crate::testkit::receive;
    use crate::wire::filter::EntryFilter;
    use crate::wire::salt_event::event_entry;

    /// Runs something with the store in a directory, which is closed afterwards.
    fn with_store<T>(dir: &std::path::Path, work: impl FnOnce(&Store) -> T) -> T {
        let options = Options::for_tests(dir, Clock::manual(Micros(1_000_000)));
        let (store, intake, threads) = Store::open(&options).unwrap().on_threads();
        let (sender, stored) = sync_channel(1);
        let mut batch = Batch::default();
        for n in 0..5 {
            batch.push(&event_entry(b"t", b"\x80", Source::Bus, Micros(n)), None);
        }
        let done = Box::new(move |result| sender.send(result).unwrap());
        intake.submit(batch, Some(done)).unwrap();
        receive(&stored).unwrap();

        let found = work(&store);
        drop((store, intake));
        for thread in threads {
            thread.join().unwrap();
        }
        found
    }

    /// The outbox passes all entries, as ones that are not shared.
    fn pass_all(store: &Store) {
        let consumers = store.consumers();
        let start = || Start::Seq(store.durable());
        if consumers.seek(OUTBOX, start()).is_err() {
            consumers
                .create(OUTBOX, EntryFilter::default(), start())
                .unwrap();
        }
    }

    fn newest(epoch: &str, last: u64) -> Newest {
        Newest {
            message: 9,
            epoch: epoch.to_owned(),
            last,
            last_at: Micros(77),
        }
    }

    #[test]
    fn numbers_that_a_store_used_after_it_was_set_back_are_of_a_new_numbering() {
        // Whether the daemon restarts before it reaches the stream.
        for is_restarted in [false, true] {
            let dir = tempfile::tempdir().unwrap();
            let (epoch, first) = with_store(dir.path(), |store| {
                let own = OwnNumbering::of(store).unwrap();
                pass_all(store);
                own.current.lock().agree(store, None).unwrap();
                (own.get().epoch, store.durable().0)
            });

            // The state of a snapshot. The lost entries have the same numbers as these, which are not shared.
            let passed = |store: &Store| {
                let own = OwnNumbering::of(store).unwrap();
                pass_all(store);
                own
            };
            if is_restarted {
                with_store(dir.path(), |store| _ = passed(store));
            }
            with_store(dir.path(), |store| {
                let own = passed(store);
                own.current
                    .lock()
                    .agree(store, Some(newest(&epoch, 99)))
                    .unwrap();
                let now = own.get();
                assert_ne!(now.epoch, epoch);
                assert!(now.has(&epoch, first - 1, &[]), "{now:?}");
                let numbers = first..store.durable().0;
                assert!(numbers.clone().count() >= 5);
                for number in numbers {
                    assert!(!now.has(&epoch, number, &[]), "{number} {now:?}");
                    assert!(now.has(&now.epoch, number, &[]), "{number} {now:?}");
                }
            });
        }
    }

    #[test]
    fn a_message_of_an_unknown_numbering_is_of_a_later_state_of_the_store() {
        let dir = tempfile::tempdir().unwrap();
        with_store(dir.path(), |store| {
            pass_all(store);
            let own = OwnNumbering::of(store).unwrap();
            let agreed = |newest| {
                let mut own = own.current.lock();
                own.agree(store, newest).unwrap();
                own.clone()
            };
            let first = agreed(None);
            let second = agreed(Some(newest("later", 3)));
            assert_ne!(second.epoch, first.epoch);
            // Once: it remains the newest until something is published.
            assert_eq!(agreed(Some(newest("later", 3))), second);
            assert_eq!(agreed(Some(newest(&first.epoch, 3))), second);
            assert_eq!(Numbering::of(store.settings()).unwrap(), second);
        });
    }

    #[test]
    fn a_store_knows_which_entries_it_has_and_which_it_lost() {
        let dir = tempfile::tempdir().unwrap();
        let settings = Settings::for_tests(dir.path());
        let mut numbering = Numbering::of(&settings).unwrap();
        assert_eq!(Numbering::of(&settings).unwrap(), numbering, "kept");

        let skipped = [SkippedNumbers {
            first: SeqNo(501),
            end: SeqNo(1 << 32),
        }];
        let first = numbering.epoch.clone();
        assert!(numbering.has(&first, 500, &skipped));
        assert!(!numbering.has(&first, 501, &skipped), "of the lost store");
        assert!(numbering.has(&first, 1 << 32, &skipped));
        assert!(!numbering.has("0000000000000000", 1, &skipped));

        // Set back to number 300, while the stream contains more.
        numbering.renew(SeqNo(301), &settings).unwrap();
        assert_ne!(numbering.epoch, first);
        assert!(numbering.has(&first, 300, &[]));
        assert!(!numbering.has(&first, 301, &[]), "of the lost state");
        assert!(
            !numbering.has(
                &first,
                200,
                &[SkippedNumbers {
                    first: SeqNo(200),
                    end: SeqNo(201)
                }]
            ),
            "left out before"
        );
        let second = numbering.epoch.clone();
        assert_eq!(numbering.of_number(300), (&*first, 1));
        assert_eq!(numbering.of_number(301), (&*second, 301));
        assert!(numbering.has(&second, 301, &[]) && !numbering.has(&second, 300, &[]));

        numbering.published(310, &settings).unwrap();
        numbering.published(305, &settings).unwrap();
        assert_eq!(Numbering::of(&settings).unwrap(), numbering);
        assert_eq!(numbering.published, 310);
    }
}
