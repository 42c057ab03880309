//! Dead letters: events that a destination rejected for good, or that cannot be encoded. Each has
//! its reason and a copy of the event, which retention does not touch.
//!
//! They are settings of the store ([`crate::store::settings`]), named by sink, sequence number and
//! id: sequence numbers repeat if the store is replaced. One is durable before its event counts as
//! delivered.
//!
//! ```text
//! value    {"seq": .., "at": .., "failed_at": .., "attempts": .., "reason": .., "id": .., "tag": .., "minion": .., "fun": ..,
//!          "jid": .., "master_id": ..} as JSON, a line feed, and the event's msgpack
//! ```

use std::sync::Arc;

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use super::event::{Event, Stored};
use crate::base::clock::Micros;
use crate::base::file_fault::FileFault;
use crate::base::limits::{DEAD_LETTERS_BYTES_MAX, DEAD_LETTERS_MAX};
use crate::model::SeqNo;
use crate::store::StoreError;
use crate::store::settings::{Changes, Save, Setting, Settings};

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct DeadLetter {
    pub(crate) seq: u64,
    /// Arrival of the event, microseconds since 1970.
    pub(crate) at: i64,
    /// Time of the last rejection.
    pub(crate) failed_at: i64,
    pub(crate) attempts: u32,
    /// The destination's reason, or the encoder's.
    pub(crate) reason: String,
    /// The event's id, as all other fields of the event.
    pub(crate) id: String,
    pub(crate) tag: String,
    pub(crate) minion: String,
    pub(crate) fun: String,
    pub(crate) jid: String,
    pub(crate) master_id: String,
    /// Data: msgpack.
    #[serde(skip)]
    pub(crate) body: Vec<u8>,
}

impl Setting for DeadLetter {
    const KIND: &'static str = "dead_letter";

    fn encode(&self) -> Result<Vec<u8>, StoreError> {
        let json = serde_json::to_vec(self);
        let mut value = json.map_err(|_| StoreError::Broken("a dead letter that is not JSON"))?;
        // Not as a part of the JSON, where it would be a third longer: the largest event must fit.
        value.push(b'\n');
        value.extend_from_slice(&self.body);
        Ok(value)
    }

    fn decode(value: &[u8]) -> Option<Self> {
        let end = memchr::memchr(b'\n', value)?;
        let letter: Self = serde_json::from_slice(value.get(..end)?).ok()?;
        let body = value.get(end + 1..)?.to_vec();
        Some(Self { body, ..letter })
    }
}

/// The reason why dead letters were not stored, read or removed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum DeadLetterError {
    #[error(
        "the dead letters are full ({count}, {bytes} bytes): deliveries stop until some are retried or dropped \
         (`saltcellar sinks dead-letters retry NAME --all`, or `drop`)"
    )]
    Full { count: usize, bytes: u64 },
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl DeadLetter {
    fn new(event: &Event, reason: &str, attempts: u32, now: Micros) -> Self {
        Self {
            seq: event.seq.0,
            at: event.at.0,
            failed_at: now.0,
            attempts,
            reason: reason.to_owned(),
            id: event.id.clone(),
            tag: event.tag.clone(),
            minion: event.minion.clone(),
            fun: event.fun.clone(),
            jid: event.jid.clone(),
            master_id: event.master_id.to_string(),
            body: event.body.clone(),
        }
    }

    /// Its place among the letters of its sink: by sequence number, then by id.
    fn name(&self) -> String {
        format!("{:020}/{}", self.seq, self.id)
    }

    /// True if `name` is the event's id or its sequence number.
    pub(crate) fn is(&self, name: &str) -> bool {
        self.id == name || name.parse() == Ok(self.seq)
    }

    pub(crate) fn event(&self) -> Event {
        Event {
            id: self.id.clone(),
            seq: SeqNo(self.seq),
            at: Micros(self.at),
            tag: self.tag.clone(),
            minion: self.minion.clone(),
            fun: self.fun.clone(),
            jid: self.jid.clone(),
            master_id: self.master_id.as_str().into(),
            body: self.body.clone(),
            stored: Stored::default(),
        }
    }
}

#[derive(Debug)]
pub(crate) struct DeadLetters {
    settings: Arc<Settings>,
    /// The first part of the names: the sink's name and a slash.
    prefix: String,
    /// Held from the look at a letter to its change. Lock order: before the locks of the settings.
    changing: Mutex<()>,
}

impl DeadLetters {
    /// The dead letters of a sink.
    pub(crate) fn of(settings: Arc<Settings>, sink: &str) -> Self {
        Self {
            settings,
            prefix: format!("{sink}/"),
            changing: Mutex::default(),
        }
    }

    /// Letters that cannot be read.
    pub(crate) fn fault(&self) -> Option<FileFault> {
        let found = self.settings.all::<DeadLetter>(&self.prefix);
        let unreadable = found.iter().filter(|found| found.value.is_none()).count();
        let problem = || {
            format!(
                "{unreadable} dead letters of the sink {} cannot be read by this release: their events cannot be redelivered; \
                 they are kept until all dead letters of the sink are dropped",
                self.prefix.trim_end_matches('/')
            )
        };
        (unreadable > 0).then(|| FileFault::new(self.settings.dir(), problem()))
    }

    pub(crate) fn count(&self) -> usize {
        self.settings.size::<DeadLetter>(&self.prefix).0
    }

    pub(crate) fn all(&self) -> Vec<DeadLetter> {
        let found = self.settings.all(&self.prefix).into_iter();
        found.filter_map(|found| found.value).collect()
    }

    /// Adds an event, or the new reason of one that was retried. Durable on return.
    pub(crate) fn add(
        &self,
        event: &Event,
        reason: &str,
        now: Micros,
    ) -> Result<(), DeadLetterError> {
        // Number and bytes are compared with their limits first, and no other letter may come in
        // between.
        let _one = self.changing.lock();
        let mut letter = DeadLetter::new(event, reason, 1, now);
        let name = format!("{}{}", self.prefix, letter.name());
        let known = self.settings.get::<DeadLetter>(&name);

        // A known letter takes no further place, and the first one is accepted whatever its size: a
        // sink must not stop for one event.
        if let Some(known) = known {
            let attempts = known.value.map_or(0, |known| known.attempts);
            letter.attempts = attempts.saturating_add(1);
        } else {
            let (count, bytes) = self.settings.size::<DeadLetter>(&self.prefix);
            let with_it = bytes.saturating_add(letter.encode()?.len() as u64);
            if count > 0 && (count >= DEAD_LETTERS_MAX || with_it > DEAD_LETTERS_BYTES_MAX) {
                return Err(DeadLetterError::Full { count, bytes });
            }
        }

        Ok(self.settings.put(&name, &letter, Save::Durable)?)
    }

    /// Removes the letters with these ids; without a list all of them, including letters that
    /// cannot be read. Returns their number. Durable on return.
    pub(crate) fn remove(&self, ids: Option<&[String]>) -> Result<usize, DeadLetterError> {
        let _one = self.changing.lock();
        let mut changes = Changes::default();
        let mut removed = 0;
        for found in self.settings.all::<DeadLetter>(&self.prefix) {
            let is_wanted = match (ids, &found.value) {
                (None, _) => true,
                (Some(ids), Some(letter)) => ids.iter().any(|id| letter.is(id)),
                // A letter that cannot be read has no id by which it could be named.
                (Some(_), None) => false,
            };
            if is_wanted {
                changes.remove::<DeadLetter>(&found.name);
                removed += 1;
            }
        }

        self.settings.commit(changes, Save::Durable)?;
        Ok(removed)
    }
}

#[cfg(test)]
mod tests {
    use rustix::io::Errno;
    use serde_json::json;

    use super::*;
    use crate::engines::event::tests::event;
    use crate::store::vfs::Disk;
    use crate::store::vfs::faults::{Act, Fault, Faults, Plan};

    fn open(dir: &tempfile::TempDir) -> DeadLetters {
        DeadLetters::of(Settings::for_tests(dir.path()), "audit")
    }

    fn reasons(letters: &DeadLetters) -> Vec<(u64, u32, String)> {
        letters
            .all()
            .into_iter()
            .map(|letter| (letter.seq, letter.attempts, letter.reason))
            .collect()
    }

    #[test]
    fn letters_survive_a_restart_and_keep_the_event() {
        let dir = tempfile::tempdir().unwrap();
        let letters = open(&dir);
        let bad = event(3, "salt/auth", "web1", json!({"x": [1, null]}));
        for seq in [2, 3] {
            letters
                .add(
                    &Event {
                        seq: SeqNo(seq),
                        id: format!("store:{seq}"),
                        ..bad.clone()
                    },
                    "why",
                    Micros(9),
                )
                .unwrap();
        }
        letters.add(&bad, "how", Micros(10)).unwrap();
        letters.add(&bad, "again", Micros(10)).unwrap();
        let expected = [(2, 1, "why".to_owned()), (3, 3, "again".to_owned())];
        assert_eq!(reasons(&letters), expected);
        drop(letters);
        let again = open(&dir);
        assert_eq!(reasons(&again), expected);
        // All that an item can be made of.
        let kept = Event {
            stored: Stored::default(),
            ..bad
        };
        assert_eq!(again.all()[1].event(), kept);
        assert_eq!(
            again
                .remove(Some(&["2".to_owned(), "7".to_owned()]))
                .unwrap(),
            1
        );
        again
            .add(&event(5, "t", "m", json!({})), "new", Micros(11))
            .unwrap();
        drop(again);
        let again = open(&dir);
        assert_eq!(again.count(), 2);
        assert_eq!(again.remove(None).unwrap(), 2);
        drop(again);
        assert_eq!(open(&dir).count(), 0);
    }

    #[test]
    fn events_of_two_stores_with_the_same_number_are_two_letters() {
        let dir = tempfile::tempdir().unwrap();
        let letters = open(&dir);
        let new = event(3, "t", "m", json!({}));
        letters
            .add(
                &Event {
                    id: "old:3".to_owned(),
                    ..new.clone()
                },
                "before",
                Micros(9),
            )
            .unwrap();
        letters.add(&new, "after", Micros(9)).unwrap();
        drop(letters);
        let again = open(&dir);
        assert_eq!(
            reasons(&again),
            [(3, 1, "before".to_owned()), (3, 1, "after".to_owned())]
        );
        assert_eq!(again.remove(Some(&["old:3".to_owned()])).unwrap(), 1);
        assert_eq!(reasons(&again), [(3, 1, "after".to_owned())]);
    }

    #[test]
    fn the_letters_of_a_sink_are_its_own() {
        let dir = tempfile::tempdir().unwrap();
        let settings = Settings::for_tests(dir.path());
        let [audit, other] =
            ["audit", "audit-2"].map(|sink| DeadLetters::of(settings.clone(), sink));
        for letters in [&audit, &other] {
            letters
                .add(&event(1, "t", "m", json!({})), "why", Micros(9))
                .unwrap();
        }
        assert_eq!(audit.remove(None).unwrap(), 1);
        assert_eq!((audit.count(), other.count()), (0, 1));
    }

    #[test]
    fn a_failed_write_adds_nothing_and_the_next_one_succeeds() {
        let dir = tempfile::tempdir().unwrap();
        let plan = Arc::new(Plan::default());
        let fs = Arc::new(Faults::over(Arc::new(Disk), plan.clone()));
        let letters = DeadLetters::of(Settings::for_tests_on(dir.path(), fs).unwrap(), "audit");
        letters
            .add(&event(1, "t", "m", json!({})), "why", Micros(9))
            .unwrap();
        for act in [Act::Write, Act::Sync] {
            plan.add(Fault::once(act, Errno::NOSPC));
            let error = letters
                .add(&event(2, "t", "m", json!({})), "why", Micros(9))
                .unwrap_err();
            assert!(error.to_string().contains("/log/settings/"), "{error}");
            assert_eq!(letters.count(), 1);
            letters
                .add(&event(3, "t", "m", json!({})), "why", Micros(9))
                .unwrap();
            assert_eq!(letters.remove(Some(&["3".to_owned()])).unwrap(), 1);
        }
        drop(letters);
        assert_eq!(open(&dir).count(), 1);
    }

    #[test]
    fn no_letter_is_added_beyond_the_limit() {
        let dir = tempfile::tempdir().unwrap();
        let letters = open(&dir);
        let letter = DeadLetter::new(&event(1, "t", "m", json!({})), "why", 1, Micros(9));
        let mut changes = Changes::default();
        for seq in 0..DEAD_LETTERS_MAX as u64 {
            let letter = DeadLetter {
                seq,
                id: format!("store:{seq}"),
                ..letter.clone()
            };
            let name = format!("audit/{}", letter.name());
            changes.put(&name, &letter).unwrap();
        }
        letters.settings.commit(changes, Save::Durable).unwrap();

        let error = letters
            .add(&event(99_999, "t", "m", json!({})), "why", Micros(9))
            .unwrap_err();
        assert!(
            error
                .to_string()
                .starts_with("the dead letters are full (10000, "),
            "{error}"
        );
        letters
            .add(&event(5, "t", "m", json!({})), "again", Micros(9))
            .unwrap();
    }
}
