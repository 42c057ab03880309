//! Dead letters: events that a destination rejected for good, or that cannot be encoded. Each has
//! its reason and a copy of the event, which retention does not touch.
//!
//! # On disk
//!
//! Text. `sinks/<name>.dead` in the state directory, one line per event, appended and synced before
//! the event counts as delivered.
//!
//! ```text
//! <xxh3-64 of the JSON, 16 hexadecimal digits> {"seq": .., "at": .., "failed_at": .., "attempts": .., "reason": .., "id": .., "tag": ..,
//!     "minion": .., "fun": .., "jid": .., "master_id": .., "body": "<msgpack in base64>"}
//! ```
//!
//! The last line of an id counts: sequence numbers repeat if the store is replaced. A line whose
//! checksum does not match is preserved and reported. An incomplete last line is cut off: its event
//! was not acknowledged. Removals rewrite the file.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::xxh3_64;

use super::event::Event;
use crate::base::clock::Micros;
use crate::base::file_fault::FileFault;
use crate::base::limits::{DEAD_LETTERS_BYTES_MAX, DEAD_LETTERS_MAX};
use crate::model::SeqNo;
use crate::store::format::open_small;
use crate::store::tools::verify::small_files::Fault;
use crate::store::vfs::read::Content;
use crate::store::vfs::{Fs, FsFile};

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
    /// Data: msgpack in base64.
    pub(crate) body: String,
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
    Store(#[from] crate::store::StoreError),
    #[error("cannot {action} {}: {why}", path.display())]
    Io {
        action: &'static str,
        path: PathBuf,
        why: std::io::Error,
    },
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
            body: BASE64.encode(&event.body),
        }
    }

    fn key(&self) -> (u64, String) {
        (self.seq, self.id.clone())
    }

    /// True if `name` is the event's id or its sequence number.
    pub(crate) fn is(&self, name: &str) -> bool {
        self.id == name || name.parse() == Ok(self.seq)
    }

    /// The event. Data that is not base64 is empty, which no encoder reads.
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
            body: BASE64.decode(&self.body).unwrap_or_default(),
        }
    }
}

#[derive(Debug)]
pub(crate) struct DeadLetters {
    fs: Arc<dyn Fs>,
    path: PathBuf,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// By sequence number, then id.
    letters: BTreeMap<(u64, String), DeadLetter>,
    /// Lines whose checksum does not match.
    damaged: Vec<Vec<u8>>,
    /// Their numbers at the start.
    damaged_lines: Vec<usize>,
    /// Whether the disk could not read a part of the file at the start. The part may be its end,
    /// in which no line is seen.
    is_unreadable: bool,
    /// `None` before the first change, and after an error: the file is rewritten then.
    file: Option<Box<dyn FsFile>>,
    bytes: u64,
}

impl DeadLetters {
    /// Reads the dead letters of a sink, if it has any.
    pub(crate) fn open(
        state_dir: &Path,
        name: &str,
        fs: Arc<dyn Fs>,
    ) -> Result<Self, DeadLetterError> {
        let path = state_dir.join("sinks").join(format!("{name}.dead"));
        // A line with an unreadable part is damaged, and the file is kept under a second name.
        let content = open_small(&*fs, &path)?;

        let mut state = State {
            is_unreadable: content.as_ref().is_some_and(Content::is_damaged),
            ..State::default()
        };
        let bytes = content.unwrap_or_default().bytes;
        // An incomplete last line was not synced, and its event not acknowledged.
        let whole = whole_lines(&bytes);

        for (number, line) in (1..).zip(lines(whole)) {
            if let Some(letter) = parse(line) {
                state.letters.insert(letter.key(), letter);
            } else {
                tracing::error!(path = %path.display(), line = number, "damaged dead letter, keeping its line");
                state.damaged.push(line.to_owned());
                state.damaged_lines.push(number);
            }
        }

        state.bytes = whole.len() as u64;
        Ok(Self {
            fs,
            path,
            state: Mutex::new(state),
        })
    }

    /// The lines of the file that are no dead letters.
    pub(crate) fn fault(&self) -> Option<FileFault> {
        let state = self.state.lock();
        if state.is_unreadable {
            let problem = "a part could not be read at the start: the events in it cannot be delivered again; \
                           the file is kept beside it as `.damaged` until you delete that";
            return Some(FileFault::new(&self.path, problem));
        }
        if state.damaged.is_empty() {
            return None;
        }
        let meaning = "their events cannot be delivered again; they are kept until all dead letters of the sink are dropped";
        FileFault::of_lines(&self.path, &state.damaged_lines, meaning)
    }

    pub(crate) fn count(&self) -> usize {
        let state = self.state.lock();
        state.letters.len() + state.damaged.len()
    }

    pub(crate) fn all(&self) -> Vec<DeadLetter> {
        self.state.lock().letters.values().cloned().collect()
    }

    /// Adds an event, or the new reason of one that was retried. Durable on return.
    pub(crate) fn add(
        &self,
        event: &Event,
        reason: &str,
        now: Micros,
    ) -> Result<(), DeadLetterError> {
        let mut state = self.state.lock();

        let key = (event.seq.0, event.id.clone());
        let known = state.letters.get(&key).map(|letter| letter.attempts);
        let letter = DeadLetter::new(event, reason, known.unwrap_or(0).saturating_add(1), now);
        let line = line(&letter);

        let count = state.letters.len() + state.damaged.len();
        let bytes = state.bytes.saturating_add(line.len() as u64);

        // A known letter takes no further place, and the first one is accepted whatever its size: a
        // sink must not stop for one event.
        if known.is_none()
            && count > 0
            && (count >= DEAD_LETTERS_MAX || bytes > DEAD_LETTERS_BYTES_MAX)
        {
            return Err(DeadLetterError::Full {
                count,
                bytes: state.bytes,
            });
        }

        let offset = state.bytes;
        let before = state.letters.insert(key.clone(), letter);

        let saved = match &state.file {
            // The lines of earlier attempts are dropped when the file is rewritten.
            Some(file) if known.is_none() => {
                let written = file
                    .write_all_at(line.as_bytes(), offset)
                    .and_then(|()| file.sync_data());
                state.bytes = bytes;
                written.map_err(|why| DeadLetterError::Io {
                    action: "append to",
                    path: self.path.clone(),
                    why,
                })
            }
            _ => self.rewrite(&mut state),
        };

        if saved.is_err() {
            // What is on disk after a failed write or sync is unknown, so the next change rewrites
            // the file.
            state.file = None;
            match before {
                Some(before) => _ = state.letters.insert(key, before),
                None => _ = state.letters.remove(&key),
            }
        }

        saved
    }

    /// Removes the letters with these ids; without a list all of them, and the damaged lines.
    /// Returns their number. Durable on return.
    pub(crate) fn remove(&self, ids: Option<&[String]>) -> Result<usize, DeadLetterError> {
        let mut state = self.state.lock();
        // Copies, so that memory still agrees with the file if the rewrite fails.
        let (letters, damaged) = (state.letters.clone(), state.damaged.clone());

        if let Some(ids) = ids {
            state
                .letters
                .retain(|_, letter| !ids.iter().any(|id| letter.is(id)));
        } else {
            state.letters.clear();
            state.damaged.clear();
        }

        let removed = letters.len() + damaged.len() - state.letters.len() - state.damaged.len();
        if removed > 0
            && let Err(error) = self.rewrite(&mut state)
        {
            (state.letters, state.damaged, state.file) = (letters, damaged, None);
            return Err(error);
        }

        Ok(removed)
    }

    /// Writes all lines to a new file.
    fn rewrite(&self, state: &mut State) -> Result<(), DeadLetterError> {
        let failed = |action| {
            move |why| DeadLetterError::Io {
                action,
                path: self.path.clone(),
                why,
            }
        };

        // The directory exists once any sink has had a dead letter. Its own name must be durable
        // before that of a file in it.
        if let Some(dir) = self.path.parent().filter(|dir| !dir.is_dir()) {
            match self.fs.make_dir(dir) {
                // The thread of another sink has created it.
                Err(why) if why.kind() == std::io::ErrorKind::AlreadyExists => {}
                made => made.map_err(failed("create the directory of"))?,
            }
            dir.parent()
                .map_or(Ok(()), |above| self.fs.sync_dir(above))
                .map_err(failed("create the directory of"))?;
        }

        let mut text = Vec::new();
        for line in &state.damaged {
            text.extend_from_slice(line);
            text.push(b'\n');
        }
        for letter in state.letters.values() {
            text.extend_from_slice(line(letter).as_bytes());
        }

        // The open file is the old one as soon as the new one has its name.
        state.file = None;
        self.fs
            .write_whole(&self.path, &text)
            .map_err(failed("write"))?;
        state.file = Some(self.fs.open_to_write(&self.path).map_err(failed("open"))?);

        state.bytes = text.len() as u64;
        Ok(())
    }
}

/// The faults in the content of a file of dead letters.
pub(crate) fn faults(bytes: &[u8]) -> Vec<Fault> {
    let whole = whole_lines(bytes);
    let numbered = (1..).zip(lines(whole));
    let damaged = numbered.filter(|(_, line)| parse(line).is_none());

    let mut found: Vec<_> = damaged
        .map(|(line, _)| Fault::at(line, "damaged dead letter: its event cannot be delivered"))
        .collect();

    if whole.len() < bytes.len() {
        found.push(Fault::unfinished("an incomplete last line"));
    }

    found
}

/// The content up to its last line break.
fn whole_lines(bytes: &[u8]) -> &[u8] {
    let end = memchr::memrchr(b'\n', bytes).map_or(0, |end| end + 1);
    bytes.get(..end).unwrap_or_default()
}

/// The lines, byte for byte: a damaged one is written back as it is.
fn lines(whole: &[u8]) -> impl Iterator<Item = &[u8]> {
    let lines = whole.split_inclusive(|byte| *byte == b'\n');
    lines.map(|line| line.strip_suffix(b"\n").unwrap_or(line))
}

fn line(letter: &DeadLetter) -> String {
    // A struct of strings and numbers can always be written.
    let json = serde_json::to_string(letter).unwrap_or_default();
    format!("{:016x} {json}\n", xxh3_64(json.as_bytes()))
}

fn parse(line: &[u8]) -> Option<DeadLetter> {
    // An editor may have changed the line ends, which changes nothing of the letter.
    let line = line.strip_suffix(b"\r").unwrap_or(line);
    let line = std::str::from_utf8(line).ok()?;
    let (sum, json) = line.split_once(' ')?;
    let is_whole = u64::from_str_radix(sum, 16).ok()? == xxh3_64(json.as_bytes());
    serde_json::from_str(json).ok().filter(|_| is_whole)
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
        DeadLetters::open(dir.path(), "audit", Arc::new(Disk)).unwrap()
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
        let again = open(&dir);
        assert_eq!(reasons(&again), expected);
        assert_eq!(again.all()[1].event(), bad);
        assert_eq!(
            again
                .remove(Some(&["2".to_owned(), "7".to_owned()]))
                .unwrap(),
            1
        );
        again
            .add(&event(5, "t", "m", json!({})), "new", Micros(11))
            .unwrap();
        assert_eq!(open(&dir).count(), 2);
        assert_eq!(again.remove(None).unwrap(), 2);
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
        let again = open(&dir);
        assert_eq!(
            reasons(&again),
            [(3, 1, "before".to_owned()), (3, 1, "after".to_owned())]
        );
        assert_eq!(again.remove(Some(&["old:3".to_owned()])).unwrap(), 1);
        assert_eq!(reasons(&again), [(3, 1, "after".to_owned())]);
    }

    #[test]
    fn an_incomplete_line_is_cut_off_and_a_damaged_one_is_kept() {
        let dir = tempfile::tempdir().unwrap();
        let letters = open(&dir);
        for seq in 1..=3 {
            letters
                .add(&event(seq, "t", "m", json!({})), "why", Micros(9))
                .unwrap();
        }
        let path = dir.path().join("sinks/audit.dead");
        let text = std::fs::read_to_string(&path).unwrap();
        std::fs::write(&path, &text[..text.len() - 5]).unwrap();
        assert_eq!(open(&dir).count(), 2);
        std::fs::write(&path, text.replacen("why", "wHy", 1)).unwrap();
        let damaged = open(&dir);
        assert_eq!((damaged.count(), damaged.all().len()), (3, 2));
        damaged.remove(Some(&["store:2".to_owned()])).unwrap();
        assert!(std::fs::read_to_string(&path).unwrap().contains("wHy"));
    }

    #[test]
    fn a_damaged_line_keeps_its_bytes() {
        let dir = tempfile::tempdir().unwrap();
        let letters = open(&dir);
        letters
            .add(&event(1, "t", "m", json!({})), "why", Micros(9))
            .unwrap();
        let path = dir.path().join("sinks/audit.dead");
        let valid = std::fs::read(&path).unwrap();
        let damaged: &[u8] = b"0123456789abcdef {\"tag\": \"\xff\xfe\"}\n\r\nx\r\n";
        std::fs::write(&path, [damaged, &valid].concat()).unwrap();
        let letters = open(&dir);
        assert_eq!((letters.count(), letters.all().len()), (4, 1));
        letters.remove(Some(&["1".to_owned()])).unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), damaged);
        assert_eq!(faults(damaged).len(), 3);
        // Line ends of another system are no damage.
        let valid = String::from_utf8(valid).unwrap().replace('\n', "\r\n");
        std::fs::write(&path, valid).unwrap();
        assert_eq!(open(&dir).all().len(), 1);
    }

    #[test]
    fn a_failed_write_adds_nothing_and_the_next_one_succeeds() {
        let dir = tempfile::tempdir().unwrap();
        let plan = Arc::new(Plan::default());
        let fs = Arc::new(Faults::over(Arc::new(Disk), plan.clone()));
        let letters = DeadLetters::open(dir.path(), "audit", fs).unwrap();
        letters
            .add(&event(1, "t", "m", json!({})), "why", Micros(9))
            .unwrap();
        for act in [Act::Write, Act::Sync] {
            plan.add(Fault::once(act, Errno::NOSPC));
            let error = letters
                .add(&event(2, "t", "m", json!({})), "why", Micros(9))
                .unwrap_err();
            assert!(
                error.to_string().starts_with("cannot append to /"),
                "{error}"
            );
            assert_eq!(letters.count(), 1);
            letters
                .add(&event(3, "t", "m", json!({})), "why", Micros(9))
                .unwrap();
            assert_eq!(letters.remove(Some(&["3".to_owned()])).unwrap(), 1);
        }
        plan.add(Fault::once(Act::Rename, Errno::IO));
        assert!(letters.remove(None).is_err());
        assert_eq!(letters.count(), 1);
        assert_eq!(open(&dir).count(), 1);
    }

    #[test]
    fn a_full_file_is_an_error() {
        let dir = tempfile::tempdir().unwrap();
        let letters = open(&dir);
        {
            let mut state = letters.state.lock();
            let letter = DeadLetter::new(&event(1, "t", "m", json!({})), "why", 1, Micros(9));
            let letter = |seq: u64| DeadLetter {
                seq,
                id: format!("store:{seq}"),
                ..letter.clone()
            };
            state.letters = (0..DEAD_LETTERS_MAX as u64)
                .map(|seq| (letter(seq).key(), letter(seq)))
                .collect();
        }
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
