//! Tokens of the HTTP listener: `saltcellar token`, and the file `TOKENS` in the state directory.
//!
//! A token is `sct_` and 32 random bytes in base64. The file has its SHA-256, from which the token
//! cannot be found: unlike a password it has 256 random bits, so nothing is gained by a slow hash,
//! and a fast one cannot be used to keep the daemon busy.
//!
//! ```text
//! {"version": 1, "tokens": [{"name": ..., "scope": ..., "hash": <64 hex digits>, "created": <microseconds since 1970>, "minions": <glob>, ...}]}
//! ```
//!
//! # Invariant
//!
//! A token is valid only while its hash is in the file, which is durable before a call is answered.
//! The file has mode 0600 with any umask.
//!
//! Every request over HTTP looks for its token on a thread of the runtime, so no lock that it takes
//! is held while the disk works.

use std::collections::HashSet;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use parking_lot::Mutex;
use ring::rand::{SecureRandom as _, SystemRandom};
use serde::{Deserialize, Serialize};
use subtle::ConstantTimeEq as _;
use tokio::sync::watch;

use crate::base::file_fault::FileFault;
use crate::base::limits::TOKENS_MAX;
use crate::base::named::named;
use crate::model::{ReadLimits, Right};
use crate::store::StoreError;
use crate::store::format::open_small;
use crate::store::tools::layout::TOKENS_FILE;
use crate::store::vfs::Fs;
use crate::wire::call::CallError;
use crate::wire::signed::sha256;

/// The first characters of every token, by which programs that search for secrets recognise one.
const PREFIX: &str = "sct_";

/// Bytes of a token: the prefix, and 32 bytes in base64 without padding.
const TOKEN_LEN: usize = PREFIX.len() + 43;

const VERSION: u32 = 1;

/// The tokens of a daemon.
pub(crate) struct Tokens {
    path: PathBuf,
    fs: Arc<dyn Fs>,
    /// Held during a change, including its writes. Taken before `state`, and never by a request.
    changing: Mutex<()>,
    /// Held for moments only.
    state: Mutex<State>,
    /// Counts changes.
    changes: watch::Sender<u64>,
}

struct State {
    tokens: Vec<Token>,
    /// The reason why the file cannot be used; then no token is valid, and the file stays as it is.
    problem: Option<String>,
}

/// A token without its secret.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, Serialize)]
pub(crate) struct Token {
    /// Its name, for people and for the audit log.
    pub(crate) name: String,
    /// Its right.
    pub(crate) scope: Scope,
    hash: String,
    /// When it was created, in microseconds since 1970.
    pub(in crate::api) created: i64,
    /// Limits of the token.
    #[serde(flatten)]
    pub(crate) limits: ReadLimits,
}

/// The right of a token. [`Right`] accepts no `admin` from the configuration.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum Scope {
    /// [`Right::Read`]
    #[default]
    Read,
    /// [`Right::Write`]
    Write,
    /// [`Right::Admin`]
    Admin,
}

named! {
    Scope {
        Read: "read",
        Write: "write",
        Admin: "admin",
    }
}

impl From<Scope> for Right {
    fn from(scope: Scope) -> Self {
        match scope {
            Scope::Read => Right::Read,
            Scope::Write => Right::Write,
            Scope::Admin => Right::Admin,
        }
    }
}

/// The hashes of the tokens at one moment.
#[derive(Debug, Default)]
pub(in crate::api) struct TokenScanner {
    hashes: HashSet<String>,
}

impl TokenScanner {
    /// True if the bytes contain a valid token, whatever is around it. Other secrets with the same
    /// prefix are not found. The time of a comparison reveals nothing about a token, because hashes
    /// are compared.
    pub(in crate::api) fn finds_in(&self, bytes: &[u8]) -> bool {
        // A token may be glued to other characters of its alphabet, so each prefix is a candidate,
        // with exactly the length of a token.
        let starts = memchr::memmem::find_iter(bytes, PREFIX);
        starts
            .filter_map(|at| bytes.get(at..at + TOKEN_LEN))
            .filter_map(|part| std::str::from_utf8(part).ok())
            .any(|part| self.hashes.contains(&hash(part)))
    }
}

#[derive(Deserialize, Serialize)]
struct TokenFile {
    version: u32,
    tokens: Vec<Token>,
}

impl Tokens {
    /// Reads the file of a state directory. An unusable file is logged, and no token is valid. A
    /// passing error, such as too few file descriptors, is the caller's: the next start may read
    /// the file, and until then no token would be valid.
    pub(crate) fn open(state_dir: &Path, fs: Arc<dyn Fs>) -> Result<Self, StoreError> {
        let path = state_dir.join(TOKENS_FILE);
        let state = match read(&*fs, &path)? {
            Ok(tokens) => State {
                tokens,
                problem: None,
            },
            Err(problem) => {
                // The buses and the local socket matter more than HTTP, so the daemon starts. The
                // file is left for an administrator.
                tracing::error!(path = %path.display(), problem, "tokens unusable, every token is rejected");
                State {
                    tokens: Vec::new(),
                    problem: Some(problem),
                }
            }
        };

        Ok(Self {
            path,
            fs,
            changing: Mutex::new(()),
            state: Mutex::new(state),
            changes: watch::Sender::default(),
        })
    }

    /// The fault of the file, if any.
    pub(crate) fn fault(&self) -> Option<FileFault> {
        let state = self.state.lock();
        let problem = state.problem.as_ref()?;
        Some(FileFault::serious(
            &self.path,
            format!(
                "cannot be used, every token is rejected: {problem}; correct or remove the file, and restart the daemon"
            ),
        ))
    }

    /// True if no token exists.
    pub(crate) fn is_empty(&self) -> bool {
        self.state.lock().tokens.is_empty()
    }

    /// The token with this text. The time that this takes depends on the number of tokens only.
    pub(crate) fn find(&self, text: &str) -> Option<Token> {
        let hash = hash(text);
        let state = self.state.lock();
        let mut found = None;
        // The loop has no early end: the time would tell where in the list a token is.
        for token in &state.tokens {
            if bool::from(token.hash.as_bytes().ct_eq(hash.as_bytes())) {
                found = Some(token.clone());
            }
        }
        found
    }

    /// Finds valid tokens within other text.
    pub(in crate::api) fn scanner(&self) -> TokenScanner {
        let state = self.state.lock();
        TokenScanner {
            hashes: state.tokens.iter().map(|one| one.hash.clone()).collect(),
        }
    }

    /// A new token with all rights.
    #[cfg(test)]
    pub(in crate::api) fn create_for_tests(&self, name: &str) -> String {
        self.create(name, Scope::Admin, ReadLimits::default(), 1)
            .expect("a token")
    }

    /// True if a token that was found still exists.
    pub(crate) fn is_valid(&self, token: &Token) -> bool {
        self.state.lock().tokens.contains(token)
    }

    /// Waits until a token that was found is revoked.
    pub(in crate::api) async fn revoked(&self, token: &Token) {
        let mut changes = self.changes.subscribe();
        while self.is_valid(token) {
            // The sender lives as long as `self`.
            if changes.changed().await.is_err() {
                return std::future::pending().await;
            }
        }
    }

    /// Adds a token, and returns its text, which is not kept.
    pub(in crate::api) fn create(
        &self,
        name: &str,
        scope: Scope,
        limits: ReadLimits,
        now: i64,
    ) -> Result<String, CallError> {
        let text = secret(PREFIX)?;
        let token = Token {
            name: name.to_owned(),
            scope,
            hash: hash(&text),
            created: now,
            limits,
        };

        self.change(|tokens| {
            if tokens.iter().any(|token| token.name == name) {
                return Err(CallError::Refused(format!(
                    "token {name:?} exists; revoke it first"
                )));
            }

            if tokens.len() >= TOKENS_MAX {
                return Err(CallError::Refused(format!(
                    "there are {TOKENS_MAX} tokens already; revoke one first"
                )));
            }
            tokens.push(token);
            Ok(())
        })?;
        Ok(text)
    }

    /// Ends a token.
    pub(in crate::api) fn revoke(&self, name: &str) -> Result<(), CallError> {
        self.change(|tokens| {
            // An unknown name is an error: a typing mistake must not look like a revoked token.
            let before = tokens.len();
            tokens.retain(|token| token.name != name);
            let unknown = || CallError::Refused(format!("there is no token {name:?}"));
            (tokens.len() < before).then_some(()).ok_or_else(unknown)
        })
    }

    /// All tokens, and why the file cannot be used, if it cannot.
    pub(in crate::api) fn list(&self) -> (Vec<Token>, Option<String>) {
        let state = self.state.lock();
        (state.tokens.clone(), state.problem.clone())
    }

    fn change(
        &self,
        change: impl FnOnce(&mut Vec<Token>) -> Result<(), CallError>,
    ) -> Result<(), CallError> {
        let _one = self.changing.lock();

        let mut tokens = {
            let state = self.state.lock();
            // A file that this release cannot read may have tokens of a newer one: it is never
            // replaced.
            if let Some(problem) = &state.problem {
                return Err(CallError::Refused(format!(
                    "{}: {problem}; remove the file and restart the daemon: all tokens must then be created anew",
                    self.path.display()
                )));
            }
            state.tokens.clone()
        };
        change(&mut tokens)?;

        // The file first: if it cannot be written, the tokens stay as they were.
        let written = self.write(&tokens).map_err(|error| {
            CallError::Internal(format!("cannot write {}: {error}", self.path.display()))
        });
        // The new file may be in place although its name could not be made durable. A restart would
        // read it, so the same tokens are valid now.
        if written.is_err() {
            // Unreadable as well: all that is known are the tokens from before.
            let Ok(Ok(of_file)) = read(&*self.fs, &self.path) else {
                return written;
            };
            tokens = of_file;
        }

        // Released before the change is announced, because each waiting stream takes the lock to
        // look at its token.
        self.state.lock().tokens = tokens;
        self.changes.send_modify(|count| *count += 1);
        written
    }

    /// Replaces the file. Durable on return.
    fn write(&self, tokens: &[Token]) -> std::io::Result<()> {
        let text = serde_json::to_vec(&TokenFile {
            version: VERSION,
            tokens: tokens.to_vec(),
        })?;

        self.fs.replace(
            &self.path,
            Box::new(|file| {
                file.set_mode(0o600)?;
                file.write_all_at(&text, 0)
            }),
        )
    }
}

/// A prefix and 32 random bytes in base64.
pub(super) fn secret(prefix: &str) -> Result<String, CallError> {
    let mut random = [0; 32];
    let no_random = |_| {
        CallError::Internal("the kernel provides no random bytes, nothing was created".to_owned())
    };
    SystemRandom::new().fill(&mut random).map_err(no_random)?;
    Ok(format!("{prefix}{}", URL_SAFE_NO_PAD.encode(random)))
}

fn hash(text: &str) -> String {
    let mut hex = String::new();
    for byte in sha256(text.as_bytes()) {
        // Writing to a string does not fail.
        let _ = write!(hex, "{byte:02x}");
    }
    hex
}

/// The tokens of the file, or why it cannot be used. The outer error is a passing one.
fn read(fs: &dyn Fs, path: &Path) -> Result<Result<Vec<Token>, String>, StoreError> {
    let content = match open_small(fs, path) {
        // Lasting: only an administrator can change it.
        Err(StoreError::Io { why, .. }) if why.kind() == std::io::ErrorKind::PermissionDenied => {
            return Ok(Err(why.to_string()));
        }
        read => read?,
    };

    Ok(match content {
        None => Ok(Vec::new()),
        Some(content) if content.is_damaged() => Err("the disk cannot read all of it".to_owned()),
        Some(content) => parse(&content.bytes),
    })
}

/// The tokens in the content of the file.
pub(crate) fn parse(bytes: &[u8]) -> Result<Vec<Token>, String> {
    let file: TokenFile = serde_json::from_slice(bytes).map_err(|error| error.to_string())?;
    if file.version != VERSION {
        return Err(format!(
            "version {} instead of {VERSION}: written by another release",
            file.version
        ));
    }
    Ok(file.tokens)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;
    use std::sync::mpsc;
    use std::time::Duration;

    use rustix::io::Errno;

    use super::*;
    use crate::store::vfs::Disk;
    use crate::store::vfs::faults::{Act, Fault, Faults, Plan};

    #[test]
    fn a_token_is_found_by_its_text_only_and_survives_a_restart() {
        let dir = tempfile::tempdir().unwrap();
        let tokens = Tokens::open(dir.path(), Arc::new(Disk)).unwrap();
        let text = tokens
            .create("grafana", Scope::Read, ReadLimits::default(), 7)
            .unwrap();
        assert!(
            text.starts_with(PREFIX) && text.len() == PREFIX.len() + 43,
            "{text}"
        );
        let other = tokens
            .create("ci", Scope::Write, ReadLimits::default(), 8)
            .unwrap();
        assert_ne!(text, other);
        let path = dir.path().join(TOKENS_FILE);
        let stored = std::fs::read_to_string(&path).unwrap();
        assert!(
            !stored.contains(&text[PREFIX.len()..]),
            "the file has no token"
        );
        assert_eq!(
            std::fs::metadata(&path).unwrap().permissions().mode() & 0o777,
            0o600
        );
        let again = Tokens::open(dir.path(), Arc::new(Disk)).unwrap();
        assert_eq!(again.find(&text).unwrap().name, "grafana");
        assert_eq!(Right::from(again.find(&other).unwrap().scope), Right::Write);
        for wrong in ["", PREFIX, &text[1..], &format!("{text}A")] {
            assert_eq!(again.find(wrong), None, "{wrong}");
        }
        let twice = again
            .create("ci", Scope::Read, ReadLimits::default(), 9)
            .unwrap_err();
        assert!(twice.to_string().contains("exists"), "{twice}");
    }

    #[test]
    fn a_damaged_file_makes_no_token_valid_and_is_kept() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(TOKENS_FILE);
        for text in ["{", "{\"version\": 2, \"tokens\": []}"] {
            std::fs::write(&path, text).unwrap();
            let tokens = Tokens::open(dir.path(), Arc::new(Disk)).unwrap();
            let error = tokens
                .create("a", Scope::Read, ReadLimits::default(), 1)
                .unwrap_err();
            assert!(error.to_string().contains("remove the file"), "{error}");
            assert_eq!(std::fs::read_to_string(&path).unwrap(), text);
        }
    }

    #[test]
    fn a_request_finds_its_token_while_a_change_waits_for_the_disk() {
        let dir = tempfile::tempdir().unwrap();
        let tokens = Tokens::open(dir.path(), Arc::new(Disk)).unwrap();
        let text = tokens.create_for_tests("ci");
        let (started, has_started) = mpsc::sync_channel(1);
        let (go_on, may_go_on) = mpsc::sync_channel::<()>(1);
        std::thread::scope(|scope| {
            let tokens = &tokens;
            scope.spawn(move || {
                let change = |_: &mut Vec<Token>| {
                    started.send(()).unwrap();
                    may_go_on.recv().unwrap();
                    Ok(())
                };
                tokens.change(change).unwrap();
            });
            has_started.recv().unwrap();
            let (found, is_found) = mpsc::sync_channel(1);
            scope.spawn(move || {
                let token = tokens.find(&text);
                let is_valid = token.is_some_and(|token| tokens.is_valid(&token));
                found.send(is_valid && !tokens.is_empty()).unwrap();
            });
            let found = is_found.recv_timeout(Duration::from_secs(30));
            go_on.send(()).unwrap();
            assert_eq!(found, Ok(true));
        });
    }

    #[test]
    fn a_passing_error_ends_the_start_and_a_bad_sector_makes_no_token_valid() {
        let dir = tempfile::tempdir().unwrap();
        let plan = Arc::new(Plan::default());
        let fs: Arc<dyn Fs> = Arc::new(Faults::over(Arc::new(Disk), plan.clone()));
        let text = Tokens::open(dir.path(), fs.clone())
            .unwrap()
            .create_for_tests("ci");

        for errno in [Errno::NOMEM, Errno::MFILE] {
            plan.add(Fault::once(Act::Read, errno));
            let error = Tokens::open(dir.path(), fs.clone())
                .err()
                .unwrap()
                .to_string();
            assert!(error.contains(TOKENS_FILE), "{error}");
            let again = Tokens::open(dir.path(), fs.clone()).unwrap();
            assert!(again.find(&text).is_some() && again.fault().is_none());
        }

        plan.add(Fault::lasting(Act::Read, Errno::IO));
        let tokens = Tokens::open(dir.path(), fs).unwrap();
        assert!(tokens.find(&text).is_none() && tokens.fault().is_some());
    }

    #[test]
    fn tokens_are_those_of_the_file_whatever_step_of_a_change_fails() {
        for (act, is_revoked) in [
            (Act::Create, false),
            (Act::Write, false),
            (Act::Sync, false),
            (Act::Rename, false),
            (Act::SyncDir, true),
        ] {
            let dir = tempfile::tempdir().unwrap();
            let plan = Arc::new(Plan::default());
            let fs = Arc::new(Faults::over(Arc::new(Disk), plan.clone()));
            let tokens = Tokens::open(dir.path(), fs).unwrap();
            let text = tokens.create_for_tests("ci");
            plan.add(Fault::once(act, Errno::IO));
            let revoke = |tokens: &mut Vec<Token>| {
                tokens.clear();
                Ok(())
            };
            let error = tokens.change(revoke).unwrap_err().to_string();
            assert!(error.contains(TOKENS_FILE), "{act:?}: {error}");
            let again = Tokens::open(dir.path(), Arc::new(Disk)).unwrap();
            let found = [&tokens, &again].map(|tokens| tokens.find(&text).is_none());
            assert_eq!(found, [is_revoked; 2], "{act:?}");
        }
    }
}
