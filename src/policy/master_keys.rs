//! Masters' keys: redacted from every entry, at every source and independent of the configured rules.
//!
//! - The field `key` in the data of a request to the reactor ([`crate::model::MANAGE_TAG`]) is redacted because of the tag, even
//!   if the key is unknown.
//! - The text of each known key is blanked wherever it occurs in a body, a tag, or another name of an entry. The known keys are the key files in the `cachedir` of the
//!   configured masters. [`MasterKeys::follow`] reloads them when they change: Salt 3006 creates a new key at each start.
//!
//! The same files tell whether a master is in a cluster.
//!
//! The reactor needs to know whether a request contained the right key. Therefore the key is first compared with the current key
//! file, and the entry carries the result ([`Flags::MASTER_KEY`]).
//!
//! # Invariant
//!
//! No master's key reaches a queue, a spill or the log, from any source, without configuration.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::{Mutex, RwLock};
use salt_sls::Glob;

use super::redact::{Redacted, Redactor};
use crate::base::limits::{MASTER_KEYS_MAX, MASTER_KEYS_POLL};
use crate::base::shutdown::Drain;
use crate::config::salt_master::{FileIdentity, Role, SaltMaster, WatchedFiles, read_key};
use crate::model::{
    Batch, Entry, Flags, KeyTexts, Kind, REDACTED, RedactRule, Replaced, is_manage_tag, same_key,
};
use crate::wire::msgpack;
use crate::wire::salt_event::fingerprints_of;

/// `None` for a missing file.
type Identity = Option<FileIdentity>;

fn identity(path: &Path) -> Identity {
    FileIdentity::of(path).ok()
}

/// Key files, each with its content or the reason why it is unreadable.
type KeyFiles = BTreeMap<PathBuf, (Identity, Result<Vec<u8>, String>)>;

#[derive(Debug, Default)]
struct Known {
    texts: KeyTexts,
    /// The key file of the master whose events the reactor reacts to.
    reactor: Option<PathBuf>,
    unreadable: Vec<String>,
}

/// A master's configuration at its last read.
#[derive(Debug)]
struct Master {
    conf_file: PathBuf,
    role: Role,
    is_of_reactor: bool,
    files: WatchedFiles,
    cachedir: PathBuf,
    key_file: PathBuf,
    has_cluster: bool,
}

impl Master {
    fn read(conf_file: &Path, role: Role, is_of_reactor: bool) -> Self {
        let mut master = Self {
            conf_file: conf_file.to_owned(),
            role,
            is_of_reactor,
            files: WatchedFiles::default(),
            cachedir: PathBuf::new(),
            key_file: PathBuf::new(),
            has_cluster: false,
        };
        master.reread();
        master
    }

    fn reread(&mut self) {
        let salt = SaltMaster::read_watched(&self.conf_file, self.role, &mut self.files);
        self.key_file = salt.key_file();
        self.has_cluster = self.role == Role::Master && salt.cluster_id().is_some();
        self.cachedir = salt.cachedir;
    }
}

/// An entry's parts without keys.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Cleaned {
    pub(crate) replaced: Replaced,
    pub flags: Flags,
    /// The data could not be parsed, so all of it was replaced.
    pub(crate) unparsed: bool,
}

/// The keys of masters, which are redacted wherever an event carries one.
pub struct MasterKeys {
    /// Lock order: after `masters` and `read`; no other lock is taken under it.
    known: RwLock<Arc<Known>>,
    /// Held during a whole refresh. Lock order: before `read` and `known`.
    masters: Mutex<Vec<Master>>,
    /// Lock order: after `masters`, before `known`.
    read: Mutex<KeyFiles>,
    /// Written by a refresh, and read without the others.
    in_cluster: AtomicBool,
    field: Redactor,
}

impl MasterKeys {
    /// The keys of the masters with these configuration files. `reactor` is the one whose requests the reactor carries out; it
    /// is added if missing.
    pub fn new(masters: &[PathBuf], reactor: Option<(Role, &Path)>) -> Self {
        // The reactor's file is read once, with its role: it can be the file of a minion.
        let others = masters
            .iter()
            .filter(|path| reactor.is_none_or(|(_, known)| known != path.as_path()));
        let others = others.map(|path| Master::read(path, Role::Master, false));

        let masters = reactor
            .iter()
            .map(|(role, path)| Master::read(path, *role, true))
            .chain(others)
            .collect();

        let keys = Self {
            masters: Mutex::new(masters),
            ..Self::none()
        };

        // Before any source starts, because no entry may pass without the keys.
        keys.refresh();
        keys
    }

    /// No known key; the field of requests is still redacted.
    pub(crate) fn none() -> Self {
        let rule = RedactRule {
            keys: vec![Glob::new("key")],
            ..RedactRule::default()
        };
        Self {
            known: RwLock::default(),
            masters: Mutex::default(),
            read: Mutex::default(),
            in_cluster: AtomicBool::new(false),
            field: Redactor::new(&[rule]),
        }
    }

    /// No known key, and the master is in a cluster.
    #[cfg(test)]
    pub(crate) fn of_cluster() -> Self {
        Self {
            in_cluster: AtomicBool::new(true),
            ..Self::none()
        }
    }

    /// The number of known keys, and the unreadable files.
    pub(crate) fn counts(&self) -> (usize, Vec<String>) {
        let known = self.known();
        (known.texts.len(), known.unreadable.clone())
    }

    /// Whether one of the masters has a `cluster_id`. False for masters whose configuration cannot be read.
    pub(crate) fn is_in_cluster(&self) -> bool {
        self.in_cluster.load(Ordering::Relaxed)
    }

    /// Reloads changed files until shutdown.
    pub(crate) fn follow(&self, drain: &Drain) {
        while !drain.wait(MASTER_KEYS_POLL) {
            self.refresh();
        }
    }

    /// Reloads changed files.
    pub(crate) fn refresh(&self) {
        // Held until the end, because the later of two refreshes must win. Locks are taken in the
        // order `masters`, `read`, `known`.
        let mut masters = self.masters.lock();
        for master in &mut *masters {
            if master.files.have_changed() {
                master.reread();
            }
        }

        let in_cluster = masters.iter().any(|master| master.has_cluster);
        if self.in_cluster.swap(in_cluster, Ordering::Relaxed) != in_cluster {
            let message = if in_cluster {
                "a master is in a cluster: marks of peers in events (`__peer_id`) count"
            } else {
                "no master is in a cluster: marks of peers in events (`__peer_id`) do not count"
            };
            tracing::info!("{message}");
        }

        let mut read = self.read.lock();
        let (mut unreadable, mut files) = (Vec::new(), Vec::new());
        for master in &*masters {
            match crate::config::salt_master::key_files(&master.cachedir) {
                Ok(found) => files.extend(found),
                Err(error) => unreadable.push(format!("{}: {error}", master.cachedir.display())),
            }
        }

        read.retain(|path, _| files.contains(path));
        for path in files {
            // Before the content is read: the next refresh then notices a change in between.
            let now = identity(&path);
            if read.get(&path).is_none_or(|(known, _)| *known != now) {
                let text = read_key(&path).map_err(|error| format!("{}: {error}", path.display()));
                read.insert(path, (now, text));
            }
        }

        unreadable.extend(
            read.values()
                .filter_map(|(_, text)| text.as_ref().err().cloned()),
        );

        let texts = read
            .values()
            .filter_map(|(_, text)| text.as_ref().ok().cloned());

        let reactor = masters
            .iter()
            .find(|master| master.is_of_reactor)
            .map(|master| master.key_file.clone());

        let known = self.known();
        let texts = KeyTexts::new(texts);
        if texts.left_out() > 0 {
            unreadable.push(format!(
                "{} key files beyond the first {MASTER_KEYS_MAX}: narrow `publisher_acl`, for each of whose users the master makes a key",
                texts.left_out()
            ));
        }

        // Nearly every refresh finds nothing new. Without this check each would write a line to the
        // log.
        if texts.keys() == known.texts.keys()
            && reactor == known.reactor
            && unreadable == known.unreadable
        {
            return;
        }

        // Once per change, because the same file fails again at each refresh.
        if unreadable != known.unreadable {
            for error in &unreadable {
                tracing::warn!(
                    error,
                    "cannot read a master's key, it is redacted only from requests to the reactor (salt-run reactor.*): give the daemon's user access to the file"
                );
            }
        }

        tracing::info!(keys = texts.len(), "loaded the masters' keys for redaction");
        let known = Arc::new(Known {
            texts,
            reactor,
            unreadable,
        });

        // Built before it is locked, because every source reads it for each entry.
        *self.known.write() = known;
    }

    fn known(&self) -> Arc<Known> {
        self.known.read().clone()
    }

    /// The entry without keys; `None` if it contains none.
    pub(crate) fn clean(&self, entry: &Entry<'_>) -> Option<Cleaned> {
        let known = self.known.read();
        let is_request = is_manage_tag(entry.tag);
        let has_text = known.texts.occur_in(entry.body);
        // Tag, minion, function and jid are stored separately from the body.
        let names = known.texts.blank_names(entry);

        if !is_request && !has_text && names.is_none() {
            return None;
        }

        // Released here, because what follows may read a file, and a refresh that waits for the lock
        // would stop all other sources.
        let shared = Arc::clone(&known);
        drop(known);
        let known = shared;

        let mut body = None;
        let mut flags = entry.flags;
        let mut unparsed = false;
        if is_request {
            if known
                .reactor
                .as_deref()
                .is_some_and(|path| carries(entry.body, path))
            {
                flags = flags.with(Flags::MASTER_KEY);
            }

            // An event that was stored before the bus showed it has a separate kind.
            let kind = if entry.kind == Kind::SeenOnBus {
                Kind::Event
            } else {
                entry.kind
            };

            (body, unparsed) = match self.field.redact(&Entry { kind, ..*entry }) {
                Redacted::Untouched => (None, false),
                Redacted::Changed(body) => (Some(body), false),
                Redacted::Unparsed(body) => (Some(body), true),
            };
        }

        if has_text {
            known
                .texts
                .blank(body.get_or_insert_with(|| entry.body.to_vec()));
        }

        let replaced = Replaced { body, names };
        (!replaced.is_nothing()).then_some(Cleaned {
            replaced,
            flags,
            unparsed,
        })
    }

    pub(crate) fn clean_batch(&self, batch: Batch) -> Batch {
        let cleaned: Vec<_> = batch
            .entries()
            .map(|(entry, _)| self.clean(&entry))
            .collect();

        // Nearly always, and then nothing is copied.
        if cleaned.iter().all(Option::is_none) {
            return batch;
        }

        let mut clean = Batch::with_room(batch.bytes());
        for ((entry, fingerprints), cleaned) in batch.entries().zip(cleaned) {
            match cleaned {
                // Its fingerprints are of the bytes that stay, and are not computed again.
                None => clean.push(&entry, fingerprints),
                Some(Cleaned {
                    replaced, flags, ..
                }) => {
                    let entry = replaced.in_entry(Entry { flags, ..entry });
                    clean.push(&entry, fingerprints.map(|_| fingerprints_of(&entry)));
                }
            }
        }

        clean
    }
}

/// Whether the data contains the current key of the file.
fn carries(data: &[u8], key_file: &Path) -> bool {
    let Some(given) = msgpack::get(data, "key").and_then(msgpack::as_text) else {
        return false;
    };
    given != REDACTED && read_key(key_file).is_ok_and(|key| same_key(given.as_bytes(), &key))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::base::clock::Micros;
    use crate::model::Source;
    use crate::wire::msgpack::{Writer, as_text, get};
    use crate::wire::salt_event::event_entry;

    const OLD: &str = "0123456789abcdef0123456789abcdef";
    const NEW: &str = "fedcba9876543210fedcba9876543210";
    const LIST: &str = "salt/run/1/salt/reactors/manage/list";

    fn data(name: &str, value: &str) -> Vec<u8> {
        let mut w = Writer::new();
        w.map(2).str(name).str(value).str("n").uint(1);
        w.into_bytes()
    }

    /// A master in a directory, with its keys.
    fn lab() -> (tempfile::TempDir, MasterKeys) {
        let dir = tempfile::tempdir().unwrap();
        let conf = dir.path().join("master");
        fs::write(
            &conf,
            format!("cachedir: {}\nuser: salt\n", dir.path().display()),
        )
        .unwrap();
        fs::write(dir.path().join(".salt_key"), OLD).unwrap();
        let keys = MasterKeys::new(&[], Some((Role::Master, &conf)));
        (dir, keys)
    }

    fn cleaned(keys: &MasterKeys, tag: &str, data: &[u8]) -> Option<Cleaned> {
        keys.clean(&event_entry(tag.as_bytes(), data, Source::Bus, Micros(0)))
    }

    /// The flag, and the text in place of the key.
    fn request(keys: &MasterKeys, key: &str) -> (bool, String) {
        let cleaned = cleaned(keys, LIST, &data("key", key)).unwrap();
        let body = cleaned.replaced.body.unwrap();
        let left = get(&body, "key").and_then(as_text).unwrap();
        (cleaned.flags.has(Flags::MASTER_KEY), left.to_owned())
    }

    #[test]
    fn a_request_carries_only_a_flag_whether_its_key_was_right() {
        let (_dir, keys) = lab();
        assert_eq!(request(&keys, OLD), (true, REDACTED.to_owned()));
        assert_eq!(request(&keys, NEW), (false, REDACTED.to_owned()));
        assert_eq!(
            cleaned(&keys, LIST, &data("key", REDACTED)),
            None,
            "redacted once"
        );
        let unknown = MasterKeys::none();
        assert_eq!(
            request(&unknown, OLD),
            (false, REDACTED.to_owned()),
            "because of the tag"
        );
    }

    #[test]
    fn a_key_file_created_or_changed_after_the_start_is_loaded() {
        let (dir, keys) = lab();
        let is_found =
            |keys: &MasterKeys, key| cleaned(keys, "other", &data("text", key)).is_some();
        assert!(is_found(&keys, OLD) && !is_found(&keys, NEW));
        fs::write(dir.path().join(".salt_key.new"), NEW).unwrap();
        fs::rename(
            dir.path().join(".salt_key.new"),
            dir.path().join(".salt_key"),
        )
        .unwrap();
        assert!(
            request(&keys, NEW).0,
            "a request is compared with the current file"
        );
        assert!(!request(&keys, OLD).0);
        keys.refresh();
        assert!(!is_found(&keys, OLD) && is_found(&keys, NEW));
        fs::write(dir.path().join(".joe_key"), OLD).unwrap();
        keys.refresh();
        assert!(is_found(&keys, OLD) && is_found(&keys, NEW));
        // The master moves its cache.
        fs::create_dir(dir.path().join("other")).unwrap();
        fs::write(
            dir.path().join("master"),
            format!("cachedir: {}/other\n", dir.path().display()),
        )
        .unwrap();
        keys.refresh();
        assert!(!is_found(&keys, OLD) && !is_found(&keys, NEW));
        assert_eq!(keys.counts(), (0, vec![]));
    }

    #[test]
    fn a_cluster_is_known_from_the_file_of_any_master_as_it_is_now() {
        let (dir, keys) = lab();
        assert!(!keys.is_in_cluster());
        let write = |text: &str| {
            let text = format!("cachedir: {}\n{text}", dir.path().display());
            fs::write(dir.path().join("master"), text).unwrap();
            keys.refresh();
        };
        write("cluster_id: c\n");
        assert!(keys.is_in_cluster());
        write("cluster_id: ''\n");
        assert!(!keys.is_in_cluster());
        write("cluster_id: c\n");
        fs::remove_file(dir.path().join("master")).unwrap();
        keys.refresh();
        assert!(!keys.is_in_cluster());

        // A minion has no peers, whatever its file says.
        write("cluster_id: c\n");
        let path = dir.path().join("master");
        for (masters, reactor, known) in [
            (vec![path.clone()], None, true),
            (vec![], Some((Role::Minion, &*path)), false),
            (vec![dir.path().join("none"), path.clone()], None, true),
        ] {
            assert_eq!(MasterKeys::new(&masters, reactor).is_in_cluster(), known);
        }
    }

    #[test]
    fn an_unreadable_key_file_is_reported() {
        let (dir, keys) = lab();
        fs::create_dir(dir.path().join(".joe_key")).unwrap();
        keys.refresh();
        let (known, unreadable) = keys.counts();
        assert_eq!((known, unreadable.len()), (1, 1));
        assert!(unreadable[0].contains(".joe_key: "), "{unreadable:?}");
    }

    #[test]
    fn a_key_stays_nowhere_in_an_entry() {
        let (_dir, keys) = lab();
        let long = format!("x{OLD}y");
        let body = data("id", &long);
        let of_event = event_entry(b"t", &body, Source::Bus, Micros(0));
        assert_eq!(of_event.minion, long, "the column of the store");
        let tag = format!("salt/job/{OLD}/ret/{long}");
        for entry in [
            of_event,
            Entry {
                tag: tag.as_bytes(),
                ..of_event
            },
            Entry {
                fun: &long,
                minion: "",
                body: b"\x80",
                ..of_event
            },
            Entry {
                jid: OLD,
                minion: "",
                body: b"\x80",
                ..of_event
            },
        ] {
            let cleaned = keys.clean(&entry).unwrap();
            let clean = cleaned.replaced.in_entry(entry);
            let shown = format!("{clean:?} {}", String::from_utf8_lossy(clean.tag));
            assert!(!shown.contains(OLD), "{shown}");
            assert!(memchr::memmem::find(clean.body, OLD.as_bytes()).is_none());
            assert!(keys.clean(&clean).is_none(), "once");
        }
        // A batch from a spill is cleaned likewise.
        let mut batch = Batch::with_room(100);
        batch.push(&of_event, None);
        let clean = keys.clean_batch(batch);
        assert!(
            clean
                .entries()
                .all(|(entry, _)| !entry.minion.contains(OLD))
        );
    }

    #[test]
    fn malformed_data_is_cleaned_of_keys() {
        let (_dir, keys) = lab();
        let broken = [b"\x82\xa3key".as_slice(), OLD.as_bytes()].concat();
        let request = cleaned(&keys, LIST, &broken).unwrap();
        let body = request.replaced.body.unwrap();
        assert!(request.unparsed && memchr::memmem::find(&body, OLD.as_bytes()).is_none());
        let other = cleaned(&keys, "other", &broken).unwrap();
        assert_eq!(
            other.replaced.body.unwrap(),
            [b"\x82\xa3key".as_slice(), b"[redacted]", &[b'*'; 22]].concat()
        );
        let seen = data("key", NEW);
        let event = event_entry(LIST.as_bytes(), &seen, Source::Bus, Micros(0));
        let body = keys
            .clean(&Entry {
                kind: Kind::SeenOnBus,
                ..event
            })
            .unwrap()
            .replaced
            .body
            .unwrap();
        assert_eq!(get(&body, "key").and_then(as_text), Some(REDACTED));
    }
}
