//! Who may use the HTTP listener: tokens, and the sessions of the page.

pub(crate) mod sessions;
pub(crate) mod tokens;

use std::sync::Arc;

use self::sessions::Sessions;
use self::tokens::Tokens;
use super::monitor::ListenerMonitor;
use crate::base::clock::Clock;
use crate::store::Store;

/// Signs clients of the HTTP listener in.
pub(crate) struct SignIn {
    pub(crate) tokens: Arc<Tokens>,
    pub(crate) sessions: Sessions,
    /// The listener that has the page, if `http.listen` is set.
    pub(crate) page: Option<ListenerMonitor>,
    pub(crate) clock: Clock,
    /// The store whose settings the tokens are.
    pub(crate) store: Store,
}
