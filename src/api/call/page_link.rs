//! The call that makes a link to the web UI.

use super::{Call, Caller, Changing, In, NoArgs, Run};
use crate::api::sign_in::SignIn;
use crate::base::limits::PAGE_LINK_LIFETIME;
use crate::wire::call::CallError;

/// The path of the page that takes a link's secret, with the secret behind it.
const LINK_PATH: &str = "/sign-in/";

answers! {
    /// A link that signs in to the page, once.
    PageLink {
        /// The path with the link's secret.
        path: String,
        /// The address of the listener with the path.
        url: String,
        /// Seconds until it is not valid any more.
        seconds: u64,
    }
}

/// `page_link`: makes a link that signs the caller in to the page with the caller's rights.
pub(crate) struct MakeLink;

impl Call for MakeLink {
    const NAME: &'static str = "page_link";
    const DOC: &'static str = "Create a one-time link that signs in to the page";
    type Scope = Changing<SignIn>;
    type Args<'a> = NoArgs;
    type Answer = PageLink;
}

impl Run for MakeLink {
    fn run(ctx: &In<'_, Self>, _: NoArgs) -> Result<PageLink, CallError> {
        let Some(listener) = &ctx.page else {
            let why =
                "there is no page: set `http.listen` in the configuration and restart the daemon";
            return Err(CallError::Refused(why.to_owned()));
        };
        // The session outlives the process.
        let signed_in = Caller {
            pid: None,
            ..ctx.caller.clone()
        };

        let text = ctx.sessions.make_link(signed_in, ctx.clock.monotonic())?;
        tracing::info!(target: "audit", action = "page_link", uid = ctx.caller.uid, "one-time link to the web UI created");

        let path = format!("{LINK_PATH}{text}");
        let scheme = if ctx.sessions.has_tls {
            "https"
        } else {
            "http"
        };

        Ok(PageLink {
            url: format!("{scheme}://{}{path}", listener.status().listen),
            path,
            seconds: PAGE_LINK_LIFETIME.as_secs(),
        })
    }
}
