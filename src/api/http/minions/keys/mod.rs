//! The keys accepted by the master: `<pki_dir>/minions/<id>`, as `salt-key` stores them.
//!
//! # Invariant
//!
//! A key is valid only while its file exists: each lookup checks the file for changes.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use quick_cache::sync::Cache;
use rustls::pki_types::SubjectPublicKeyInfoDer;
use rustls::pki_types::pem::PemObject as _;

use crate::base::limits::{HTTPS_KEYS_REMEMBERED, PEM_BYTES_MAX};
use crate::config::salt_master::{FileIdentity, read_small};
use crate::wire::signed::der::rsa_public_key;

/// The reason why no key is available.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum NoKey {
    /// The master has not accepted the key: it is unknown, pending, rejected or denied.
    #[error(
        "the key of minion {id} is {state} at this master: {}",
        remedy(id, state)
    )]
    NotAccepted {
        id: String,
        /// The state in `salt-key`.
        state: &'static str,
    },
    /// The accepted key cannot be read.
    #[error("the accepted key of minion {id} cannot be read: {why}")]
    Unreadable { id: String, why: String },
}

/// What helps against a state in `salt-key`, which accepts by default pending keys only.
fn remedy(id: &str, state: &str) -> String {
    match state {
        UNKNOWN => {
            "check that the minion's option `master` names this master, and restart it".to_owned()
        }
        "pending" => format!("accept it with `salt-key -a {id}`"),
        _ => format!("accept it with `salt-key -a {id} --include-{state}`"),
    }
}

/// The store of Salt's driver `mmap_key`, which replaces the files of `localfs_key`
/// (`keys.cache_driver`, from 3008 on).
const OTHER_STORE: &str = ".mmap_keys.idx";

/// The state of a key that the master does not have.
const UNKNOWN: &str = "unknown";

/// Directories of other keys, and their states in `salt-key`.
const NOT_ACCEPTED: [(&str, &str); 3] = [
    ("minions_pre", "pending"),
    ("minions_rejected", "rejected"),
    ("minions_denied", "denied"),
];

/// An `RSAPublicKey` in DER.
pub(super) type PublicKey = Arc<[u8]>;

/// The key directory, with a cache of recently used keys.
pub(super) struct Keys {
    dir: PathBuf,
    known: Cache<String, (FileIdentity, PublicKey)>,
}

impl Keys {
    /// The keys in the master's `pki_dir`.
    pub(super) fn of(pki_dir: &Path) -> Self {
        let keys = Self {
            dir: pki_dir.to_owned(),
            known: Cache::new(HTTPS_KEYS_REMEMBERED),
        };
        // Reported at the start, because otherwise the first sign is a minion that is rejected.
        if let Some(why) = keys.not_files() {
            tracing::error!(dir = %pki_dir.display(), %why, "all batches of minions are rejected: `saltcellar doctor` checks `pki_dir`");
        }
        keys
    }

    /// The reason why this directory does not have the keys that the master accepts.
    fn not_files(&self) -> Option<String> {
        let dir = self.dir.display();
        // With the other driver the files of `localfs_key` may still exist and be stale, so none of
        // them counts.
        if self.dir.join(OTHER_STORE).exists() {
            return Some(format!(
                "the master keeps its keys in {dir}/{OTHER_STORE} (keys.cache_driver: mmap_key), and the minion listener reads only files of \
                 localfs_key; if the master uses localfs_key again, remove {OTHER_STORE}*"
            ));
        }

        (!self.dir.join("minions").is_dir()).then(|| {
            format!(
                "there is no directory {dir}/minions: the master's keys are elsewhere (https.pki_dir), or not in files (keys.cache_driver)"
            )
        })
    }

    /// The accepted key of a minion. The envelope's parser guarantees that `id` is a valid file
    /// name.
    pub(super) fn accepted(&self, id: &str) -> Result<PublicKey, NoKey> {
        let path = self.dir.join("minions").join(id);
        let unreadable = |why: &dyn std::fmt::Display| NoKey::Unreadable {
            id: id.to_owned(),
            why: format!("{}: {why}", path.display()),
        };
        let unread = |error: &std::io::Error| match error.kind() {
            std::io::ErrorKind::PermissionDenied => unreadable(&format!(
                "{error}; give the daemon's user access to `pki_dir`"
            )),
            _ => unreadable(error),
        };

        // Read for each lookup, because a changed driver takes effect without a restart.
        if let Some(why) = self.not_files() {
            return Err(NoKey::Unreadable {
                id: id.to_owned(),
                why,
            });
        }

        let identity = match FileIdentity::of(&path) {
            Ok(identity) => identity,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                // The cache forgets a deleted key. Otherwise it would keep ids that the master no
                // longer knows.
                self.known.remove(id);
                return Err(NoKey::NotAccepted {
                    id: id.to_owned(),
                    state: self.state(id),
                });
            }
            Err(error) => return Err(unread(&error)),
        };

        if let Some((known, key)) = self.known.get(id)
            && known == identity
        {
            return Ok(key);
        }

        // The identity was taken before the text is read: if the file is replaced in between, the
        // next lookup reads it again.
        let text = read_small(&path, PEM_BYTES_MAX).map_err(|error| unread(&error))?;
        let key: PublicKey = public_key(&text).map_err(|why| unreadable(&why))?.into();

        self.known.insert(id.to_owned(), (identity, key.clone()));
        Ok(key)
    }

    fn state(&self, id: &str) -> &'static str {
        let found = NOT_ACCEPTED
            .iter()
            .find(|(dir, _)| self.dir.join(dir).join(id).exists());
        found.map_or(UNKNOWN, |(_, state)| state)
    }
}

/// Parses PEM. Old releases of Salt labelled both forms as a bare RSA key.
fn public_key(text: &[u8]) -> Result<Vec<u8>, &'static str> {
    const WANTED: &str = "no RSA public key in PEM (BEGIN PUBLIC KEY)";
    let text = String::from_utf8_lossy(text).replace("RSA PUBLIC KEY", "PUBLIC KEY");
    let der = SubjectPublicKeyInfoDer::from_pem_slice(text.as_bytes()).map_err(|_| WANTED)?;
    rsa_public_key(&der).map(<[u8]>::to_vec).ok_or(WANTED)
}

#[cfg(test)]
mod tests;
