//! Tokens of the HTTP listener: `saltcellar tokens`.
//!
//! A token is `sct_` and 32 random bytes in base64. Its SHA-256 is a setting of the store
//! ([`crate::store::settings`]), from which the token cannot be found: unlike a password it has 256
//! random bits, so nothing is gained by a slow hash, and a fast one cannot be used to keep the daemon
//! busy.
//!
//! # Invariant
//!
//! A token is valid only while its hash is among the settings, which is durable before a call is
//! answered. A token that may have been revoked, or had its limits changed, by a change that was lost
//! is rejected: what is lost is not open.
//!
//! Every request over HTTP looks for its token on a thread of the runtime, so no lock that it takes
//! is held while the disk works.

use std::collections::HashSet;
use std::fmt::Write as _;
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
use crate::store::settings::{Changes, Save, Setting, Settings};
use crate::wire::call::CallError;
use crate::wire::signed::sha256;

/// The first characters of every token, by which programs that search for secrets recognise one.
const PREFIX: &str = "sct_";

/// Bytes of a token: the prefix, and 32 bytes in base64 without padding.
const TOKEN_LEN: usize = PREFIX.len() + 43;

/// The tokens of a daemon.
pub(crate) struct Tokens {
    settings: Arc<Settings>,
    /// Held during a change, including its writes. Lock order: before `state` and the locks of
    /// the settings; never taken by a request.
    changing: Mutex<()>,
    /// Held for moments only. Lock order: after `changing`; no other lock is taken under it.
    state: Mutex<State>,
    /// Counts changes.
    changes: watch::Sender<u64>,
}

struct State {
    tokens: Vec<Token>,
    /// Names of tokens that are not valid, because a later change of them may be lost.
    rejected: Vec<String>,
}

impl State {
    fn problem(&self) -> Option<String> {
        if self.rejected.is_empty() {
            return None;
        }
        Some(format!(
            "these tokens are rejected, because later changes of them may be lost: {}; revoke them, or accept the loss with `saltcellar store accept-loss`",
            self.rejected.join(", ")
        ))
    }
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

impl Setting for Token {
    const KIND: &'static str = "token";
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

impl Tokens {
    /// The tokens of a store.
    pub(crate) fn open(settings: Arc<Settings>) -> Self {
        let state = read(&settings);
        if let Some(problem) = state.problem() {
            tracing::error!(%problem, "tokens rejected: revoke them, or run `saltcellar store accept-loss`");
        }
        Self {
            settings,
            changing: Mutex::new(()),
            state: Mutex::new(state),
            changes: watch::Sender::default(),
        }
    }

    /// Reads them again, after an administrator has accepted a loss.
    pub(crate) fn reload(&self) {
        let _one = self.changing.lock();
        let state = read(&self.settings);
        *self.state.lock() = state;
        self.changes.send_modify(|count| *count += 1);
    }

    /// Tokens that are rejected, if any.
    pub(crate) fn fault(&self) -> Option<FileFault> {
        let problem = self.state.lock().problem()?;
        Some(FileFault::serious(self.settings.dir(), problem))
    }

    /// True if no token exists.
    pub(crate) fn is_empty(&self) -> bool {
        self.state.lock().tokens.is_empty()
    }

    /// The token with this secret. The time that this takes depends on the number of tokens only.
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
        let text = new_token().expect("a token");
        self.create(&text, name, Scope::Admin, ReadLimits::default(), 1)
            .expect("a token");
        text
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

    /// Adds a token with this secret, which is not kept.
    pub(in crate::api) fn create(
        &self,
        text: &str,
        name: &str,
        scope: Scope,
        limits: ReadLimits,
        now: i64,
    ) -> Result<(), CallError> {
        let token = Token {
            name: name.to_owned(),
            scope,
            hash: hash(text),
            created: now,
            limits,
        };

        self.change(|tokens| {
            if tokens.iter().any(|token| token.name == name) {
                return Err(CallError::Refused(format!(
                    "token {name:?} exists; revoke it first"
                )));
            }

            // Its rights would depend on which token is found first.
            if let Some(same) = tokens.iter().find(|one| one.hash == token.hash) {
                return Err(CallError::Refused(format!(
                    "this token exists, as {:?}",
                    same.name
                )));
            }

            if tokens.len() >= TOKENS_MAX {
                return Err(CallError::Refused(format!(
                    "there are {TOKENS_MAX} tokens already; revoke one first"
                )));
            }
            tokens.push(token);
            Ok(())
        })
    }

    /// Ends a token, even if it is rejected.
    pub(in crate::api) fn revoke(&self, name: &str) -> Result<(), CallError> {
        if self.revoke_rejected(name)? {
            return Ok(());
        }
        self.change(|tokens| {
            // An unknown name is an error: a typing mistake must not look like a revoked token.
            let before = tokens.len();
            tokens.retain(|token| token.name != name);
            let unknown = || {
                CallError::Refused(format!(
                    "there is no token {name:?}: `saltcellar tokens list` lists them"
                ))
            };
            (tokens.len() < before).then_some(()).ok_or_else(unknown)
        })
    }

    /// All tokens, and which of them are rejected and why, if any are.
    pub(in crate::api) fn list(&self) -> (Vec<Token>, Option<String>) {
        let state = self.state.lock();
        (state.tokens.clone(), state.problem())
    }

    fn change(
        &self,
        change: impl FnOnce(&mut Vec<Token>) -> Result<(), CallError>,
    ) -> Result<(), CallError> {
        let _one = self.changing.lock();

        // Not held while the change is saved, because each request looks its token up under it.
        let (before, rejected) = {
            let state = self.state.lock();
            (state.tokens.clone(), state.rejected.clone())
        };
        let mut tokens = before.clone();
        change(&mut tokens)?;

        let mut changes = Changes::default();
        for token in before.iter().filter(|token| !tokens.contains(token)) {
            changes.remove::<Token>(&token.name);
        }
        for token in tokens.iter().filter(|token| !before.contains(token)) {
            let put = changes.put(&token.name, token);
            put.map_err(|error| CallError::Internal(error.to_string()))?;
        }
        // Before it counts: a token that was handed out must exist after a restart.
        self.save(changes)?;

        // Replaced by one of the same name.
        let is_left = |name: &String| tokens.iter().all(|token| token.name != *name);
        let rejected = rejected.into_iter().filter(is_left).collect();
        self.announce(State { tokens, rejected });
        Ok(())
    }

    /// Removes a token that is rejected; false if there is none of this name.
    fn revoke_rejected(&self, name: &str) -> Result<bool, CallError> {
        let _one = self.changing.lock();
        let (tokens, mut rejected) = {
            let state = self.state.lock();
            (state.tokens.clone(), state.rejected.clone())
        };
        let before = rejected.len();
        rejected.retain(|other| other != name);
        if rejected.len() == before {
            return Ok(false);
        }

        let mut changes = Changes::default();
        changes.remove::<Token>(name);
        self.save(changes)?;
        self.announce(State { tokens, rejected });
        Ok(true)
    }

    /// On disk first: if it cannot be written, the tokens stay as they were.
    fn save(&self, changes: Changes) -> Result<(), CallError> {
        let saved = self.settings.commit(changes, Save::Durable);
        saved.map_err(|error| CallError::Internal(format!("cannot save the tokens: {error}")))
    }

    fn announce(&self, state: State) {
        // Released before the change is announced, because each waiting stream takes the lock to
        // look at its token.
        *self.state.lock() = state;
        self.changes.send_modify(|count| *count += 1);
    }
}

fn read(settings: &Settings) -> State {
    let (mut tokens, mut rejected) = (Vec::new(), Vec::new());
    for found in settings.all::<Token>("") {
        match found.value {
            Some(token) if !found.is_uncertain => tokens.push(token),
            _ => rejected.push(found.name),
        }
    }
    State { tokens, rejected }
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

/// The secret of a new token.
pub(in crate::api) fn new_token() -> Result<String, CallError> {
    secret(PREFIX)
}

/// The secret of a token that another daemon has made.
pub(in crate::api) fn given_token(text: String) -> Result<String, CallError> {
    let secret = text.strip_prefix(PREFIX);
    let is_token = secret
        .and_then(|secret| URL_SAFE_NO_PAD.decode(secret).ok())
        .is_some_and(|secret| secret.len() == 32);
    if is_token {
        return Ok(text);
    }
    // Without the text, which is somebody's secret.
    let expected = format!(
        "argument `token`: expected a token that a daemon has made: {PREFIX} and 43 characters"
    );
    Err(CallError::Argument(expected))
}

fn hash(text: &str) -> String {
    let mut hex = String::new();
    for byte in sha256(text.as_bytes()) {
        // Writing to a string does not fail.
        let _ = write!(hex, "{byte:02x}");
    }
    hex
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::sync::mpsc;
    use std::time::Duration;

    use rustix::io::Errno;

    use super::*;
    use crate::store::vfs::Disk;
    use crate::store::vfs::faults::{Act, Fault, Faults, Plan};

    fn open(dir: &tempfile::TempDir) -> Tokens {
        Tokens::open(Settings::for_tests(dir.path()))
    }

    impl Tokens {
        fn create_of(
            &self,
            name: &str,
            scope: Scope,
            limits: ReadLimits,
            now: i64,
        ) -> Result<String, CallError> {
            let text = new_token()?;
            self.create(&text, name, scope, limits, now)?;
            Ok(text)
        }
    }

    #[test]
    fn a_token_of_another_daemon_is_accepted_once_and_nothing_else_is() {
        let dirs = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
        let [one, two] = dirs.each_ref().map(open);
        let text = one.create_for_tests("reader");
        assert!(two.find(&text).is_none());

        let given = given_token(text.clone()).unwrap();
        let create = |name| two.create(&given, name, Scope::Read, ReadLimits::default(), 1);
        create("reader").unwrap();
        assert_eq!(two.find(&text).unwrap().scope, Scope::Read);
        let refused = create("again").unwrap_err().to_string();
        assert!(
            refused.contains("this token exists, as \"reader\""),
            "{refused}"
        );

        let short = text.get(..text.len() - 1).unwrap();
        let longer = format!("{text}A");
        let other = text.replace(PREFIX, "scx_");
        for wrong in ["", "sct_", "hunter2", short, &longer, &other] {
            let refused = given_token(wrong.to_owned()).unwrap_err().to_string();
            assert!(!refused.contains("hunter2"), "{refused}");
        }
    }

    #[derive(serde::Serialize, serde::Deserialize)]
    struct Other;

    impl Setting for Other {
        const KIND: &'static str = "other";
    }

    /// Damages the last change of the settings in both copies.
    fn lose_last(state_dir: &Path) {
        let copies = std::fs::read_dir(state_dir.join("log/settings")).unwrap();
        let logs: Vec<_> = copies
            .map(|copy| copy.unwrap().path().join("log"))
            .map(|log| (std::fs::read(&log).unwrap().len(), log))
            .collect();
        assert_eq!(logs.len(), 2);

        // A change behind it: otherwise it looks like an unfinished write.
        let settings = Settings::for_tests(state_dir);
        settings.put("behind", &Other, Save::Durable).unwrap();
        drop(settings);

        for (end, log) in logs {
            let mut bytes = std::fs::read(&log).unwrap();
            assert!(bytes.len() > end, "the change behind it is in the same log");
            // Zeros at the end may be padding.
            let last = bytes[..end].iter().rposition(|byte| *byte != 0).unwrap();
            bytes[last] ^= 1;
            std::fs::write(&log, bytes).unwrap();
        }
    }

    #[test]
    fn a_token_is_found_by_its_text_only_and_survives_a_restart() {
        let dir = tempfile::tempdir().unwrap();
        let tokens = open(&dir);
        let text = tokens
            .create_of("grafana", Scope::Read, ReadLimits::default(), 7)
            .unwrap();
        assert!(
            text.starts_with(PREFIX) && text.len() == PREFIX.len() + 43,
            "{text}"
        );
        let other = tokens
            .create_of("ci", Scope::Write, ReadLimits::default(), 8)
            .unwrap();
        assert_ne!(text, other);
        drop(tokens);
        let again = open(&dir);
        assert_eq!(again.find(&text).unwrap().name, "grafana");
        assert_eq!(Right::from(again.find(&other).unwrap().scope), Right::Write);
        for wrong in ["", PREFIX, &text[1..], &format!("{text}A")] {
            assert_eq!(again.find(wrong), None, "{wrong}");
        }
        let twice = again
            .create_of("ci", Scope::Read, ReadLimits::default(), 9)
            .unwrap_err();
        assert!(twice.to_string().contains("exists"), "{twice}");
    }

    #[test]
    fn a_token_that_may_have_been_changed_is_rejected_until_the_loss_is_accepted() {
        let dir = tempfile::tempdir().unwrap();
        let tokens = open(&dir);
        let text = tokens.create_for_tests("ci");
        let revoked = tokens.create_for_tests("gone");
        tokens
            .change(|tokens| {
                tokens.retain(|token| token.name == "ci");
                Ok(())
            })
            .unwrap();
        drop(tokens);

        // The change that revoked it, in both copies.
        lose_last(dir.path());
        let tokens = open(&dir);
        assert_eq!((tokens.find(&text), tokens.find(&revoked)), (None, None));
        let problem = tokens.fault().unwrap().problem;
        assert_eq!(
            problem,
            "these tokens are rejected, because later changes of them may be lost: ci, gone; \
             revoke them, or accept the loss with `saltcellar store accept-loss`"
        );

        // A new one of the same name is valid.
        let fresh = tokens.create_for_tests("ci");
        assert!(tokens.find(&fresh).is_some() && tokens.find(&text).is_none());
        assert!(tokens.revoke_rejected("gone").unwrap());
        assert!(tokens.fault().is_none());
        tokens.settings.accept_loss().unwrap();
        tokens.reload();
        assert!(tokens.find(&fresh).is_some() && tokens.find(&revoked).is_none());
    }

    #[test]
    fn a_request_finds_its_token_while_a_change_waits_for_the_disk() {
        let dir = tempfile::tempdir().unwrap();
        let tokens = open(&dir);
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
    fn a_change_that_cannot_be_saved_changes_nothing() {
        for act in [Act::Write, Act::Sync] {
            let dir = tempfile::tempdir().unwrap();
            let plan = Arc::new(Plan::default());
            let fs = Arc::new(Faults::over(Arc::new(Disk), plan.clone()));
            let tokens = Tokens::open(Settings::for_tests_on(dir.path(), fs).unwrap());
            let text = tokens.create_for_tests("ci");

            let revoke = |tokens: &mut Vec<Token>| {
                tokens.clear();
                Ok(())
            };
            plan.add(Fault::lasting(act, Errno::IO));
            let error = tokens.change(revoke).unwrap_err().to_string();
            assert!(error.contains("cannot save the tokens"), "{act:?}: {error}");
            assert!(tokens.find(&text).is_some());

            plan.heal();
            tokens.change(revoke).unwrap();
            drop(tokens);
            assert!(open(&dir).find(&text).is_none(), "{act:?}");
        }
    }
}
