//! Sessions of the page: a random secret in a cookie, and one-time links that begin one.
//!
//! A session belongs to a token, whose scope and limits apply, or to a user of this host, who
//! has asked at the local socket for a link (`page_link`) and has the rights of that socket. Only
//! hashes of the secrets are kept, in memory: a restart of the daemon signs everyone out.
//!
//! # Invariant
//!
//! A session is valid for [`HTTP_SESSION_LIFETIME`], for [`HTTP_SESSION_IDLE`] after its last
//! request, and only while its token is. A stream counts as a request until it ends, and ends with its session. A link begins one session.

use std::collections::HashMap;
use std::time::Duration;

use parking_lot::Mutex;

use super::tokens::{Token, secret};
use crate::api::caller::Caller;
use crate::base::limits::{
    HTTP_SESSION_IDLE, HTTP_SESSION_LIFETIME, HTTP_SESSIONS_MAX, HTTP_SESSIONS_OF_ONE,
    PAGE_LINK_LIFETIME, PAGE_LINKS_MAX,
};
use crate::wire::call::CallError;
use crate::wire::signed::{Digest, sha256};

/// The first characters of every secret of a session.
const SESSION_PREFIX: &str = "scs_";

/// The first characters of every secret of a link.
const LINK_PREFIX: &str = "scl_";

/// The client whose rights a session has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::api) enum Holder {
    /// The owner of a token.
    Token(Box<Token>),
    /// A user of the local socket.
    User(Caller),
}

/// A session without its secret.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(in crate::api) struct SessionId(Digest);

impl SessionId {
    /// The session with this secret, which may not exist.
    pub(in crate::api) fn of(secret: &str) -> Self {
        Self(sha256(secret.as_bytes()))
    }
}

/// Begin and last use of a session, as monotonic times.
struct Session {
    holder: Holder,
    began: Duration,
    used: Duration,
}

impl Session {
    fn is_alive(&self, now: Duration) -> bool {
        now.saturating_sub(self.began) < HTTP_SESSION_LIFETIME
            && now.saturating_sub(self.used) < HTTP_SESSION_IDLE
    }
}

/// A link that nobody has opened yet.
struct Link {
    caller: Caller,
    made: Duration,
}

/// The sessions and links of a daemon.
#[derive(Default)]
pub(crate) struct Sessions {
    /// Lock order: no other lock is taken under it.
    open: Mutex<HashMap<SessionId, Session>>,
    /// Lock order: no other lock is taken under it.
    links: Mutex<HashMap<Digest, Link>>,
    /// True if the network listener has TLS.
    pub(in crate::api) has_tls: bool,
}

/// The key of the entry with the earliest time.
fn earliest<'e, K: Copy + 'e>(entries: impl Iterator<Item = (&'e K, Duration)>) -> Option<K> {
    entries.min_by_key(|(_, at)| *at).map(|(key, _)| *key)
}

impl Sessions {
    /// No sessions, for a listener with or without TLS.
    pub(crate) fn new(has_tls: bool) -> Self {
        Self {
            has_tls,
            ..Self::default()
        }
    }

    /// Begins a session and returns its secret. Beyond a limit the session that was unused for
    /// longest ends.
    pub(in crate::api) fn begin(&self, holder: Holder, now: Duration) -> Result<String, CallError> {
        let text = secret(SESSION_PREFIX)?;
        let mut sessions = self.open.lock();
        sessions.retain(|_, session| session.is_alive(now));

        let of_holder = sessions
            .values()
            .filter(|session| session.holder == holder)
            .count();

        // A holder at its limit ends one of its own sessions, because nobody may sign others out.
        let unused = if of_holder >= HTTP_SESSIONS_OF_ONE {
            let own = sessions
                .iter()
                .filter(|(_, session)| session.holder == holder);
            earliest(own.map(|(key, session)| (key, session.used)))
        } else if sessions.len() >= HTTP_SESSIONS_MAX {
            earliest(sessions.iter().map(|(key, session)| (key, session.used)))
        } else {
            None
        };
        if let Some(unused) = unused {
            sessions.remove(&unused);
        }

        // Only the hash of the secret is kept.
        let session = Session {
            holder,
            began: now,
            used: now,
        };
        sessions.insert(SessionId::of(&text), session);
        Ok(text)
    }

    /// The holder of a valid session, which counts as used. The caller checks that its token still
    /// is valid.
    pub(in crate::api) fn find(&self, id: SessionId, now: Duration) -> Option<Holder> {
        let mut sessions = self.open.lock();
        let session = sessions.get_mut(&id)?;
        if !session.is_alive(now) {
            return None;
        }
        session.used = now;
        Some(session.holder.clone())
    }

    /// Ends a session.
    pub(in crate::api) fn end(&self, id: SessionId) {
        self.open.lock().remove(&id);
    }

    /// Makes a link for a user of the local socket, and returns its secret.
    pub(in crate::api) fn make_link(
        &self,
        caller: Caller,
        now: Duration,
    ) -> Result<String, CallError> {
        let text = secret(LINK_PREFIX)?;
        let mut links = self.links.lock();
        links.retain(|_, link| now.saturating_sub(link.made) < PAGE_LINK_LIFETIME);
        if links.len() >= PAGE_LINKS_MAX
            && let Some(oldest) = earliest(links.iter().map(|(key, link)| (key, link.made)))
        {
            links.remove(&oldest);
        }

        let link = Link { caller, made: now };
        // Only its hash is kept, from which nobody can make the link.
        links.insert(sha256(text.as_bytes()), link);
        Ok(text)
    }

    /// Takes a link, which is then used up, and begins its session. `None` if the link is unknown,
    /// used or too old.
    pub(in crate::api) fn open_link(
        &self,
        text: &str,
        now: Duration,
    ) -> Result<Option<(Caller, String)>, CallError> {
        // Removed before it is checked: a secret works once, whatever comes of it.
        let link = self.links.lock().remove(&sha256(text.as_bytes()));
        let Some(link) = link.filter(|link| now.saturating_sub(link.made) < PAGE_LINK_LIFETIME)
        else {
            return Ok(None);
        };
        let session = self.begin(Holder::User(link.caller.clone()), now)?;
        Ok(Some((link.caller, session)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const START: Duration = Duration::from_secs(1_000_000);

    fn user(uid: u32) -> Holder {
        Holder::User(Caller {
            uid: Some(uid),
            ..Caller::default()
        })
    }

    #[test]
    fn a_session_ends_with_its_lifetime_when_idle_and_at_sign_out() {
        let sessions = Sessions::default();
        let text = sessions.begin(user(1), START).unwrap();
        assert_eq!(sessions.find(SessionId::of(&text), START), Some(user(1)));
        assert_eq!(sessions.find(SessionId::of(&text[1..]), START), None);
        let idle = sessions.begin(user(1), START).unwrap();
        assert_eq!(
            sessions.find(SessionId::of(&idle), START + HTTP_SESSION_IDLE),
            None
        );

        let mut now = START;
        while now < START + HTTP_SESSION_LIFETIME {
            assert!(
                sessions.find(SessionId::of(&text), now).is_some(),
                "used often enough"
            );
            now += HTTP_SESSION_IDLE / 2;
        }
        assert_eq!(
            sessions.find(SessionId::of(&text), START + HTTP_SESSION_LIFETIME),
            None
        );

        let text = sessions.begin(user(1), START).unwrap();
        sessions.end(SessionId::of(&text));
        assert_eq!(sessions.find(SessionId::of(&text), START), None);
        let kept = sessions.open.lock();
        assert!(
            kept.keys()
                .all(|id| id.0 != text.as_bytes() && !text.as_bytes().starts_with(&id.0)),
            "only hashes are kept"
        );
    }

    #[test]
    fn their_number_is_bounded_for_one_holder_and_for_all() {
        let sessions = Sessions::default();
        let later = |n: usize| START + Duration::from_millis(n as u64);
        let other = sessions.begin(user(0), START).unwrap();
        let first = sessions.begin(user(1), later(1)).unwrap();
        let second = sessions.begin(user(1), later(2)).unwrap();
        for n in 2..HTTP_SESSIONS_OF_ONE {
            sessions.begin(user(1), later(n + 1)).unwrap();
        }
        assert!(sessions.find(SessionId::of(&first), later(900)).is_some());
        sessions.begin(user(1), later(901)).unwrap();
        assert_eq!(
            sessions.find(SessionId::of(&second), later(902)),
            None,
            "the one unused for longest"
        );
        assert!(sessions.find(SessionId::of(&first), later(902)).is_some());
        assert!(sessions.find(SessionId::of(&other), later(902)).is_some());
        for n in 0..2 * HTTP_SESSIONS_MAX {
            let uid = u32::try_from(n).unwrap() + 10;
            sessions.begin(user(uid), later(1_000 + n)).unwrap();
        }
        assert_eq!(sessions.open.lock().len(), HTTP_SESSIONS_MAX);
    }

    #[test]
    fn a_link_begins_one_session_within_its_lifetime() {
        let sessions = Sessions::default();
        let caller = Caller {
            uid: Some(7),
            ..Caller::default()
        };
        let text = sessions.make_link(caller.clone(), START).unwrap();
        let (of, session) = sessions.open_link(&text, START).unwrap().unwrap();
        assert_eq!(of, caller);
        assert_eq!(sessions.find(SessionId::of(&session), START), Some(user(7)));
        assert_eq!(sessions.open_link(&text, START), Ok(None), "used");
        let late = sessions.make_link(caller.clone(), START).unwrap();
        assert_eq!(
            sessions.open_link(&late, START + PAGE_LINK_LIFETIME),
            Ok(None)
        );
        let oldest = sessions.make_link(caller.clone(), START).unwrap();
        for _ in 0..PAGE_LINKS_MAX {
            sessions
                .make_link(caller.clone(), START + Duration::from_secs(1))
                .unwrap();
        }
        assert_eq!(sessions.open_link(&oldest, START), Ok(None));
    }
}
