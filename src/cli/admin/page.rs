//! `saltcellar page`: prints a link that signs in to the web UI once.

use crate::api::call::NoArgs;
use crate::api::call::page_link::MakeLink;
use crate::cli::{Global, ask, show};

pub(in crate::cli) const EXAMPLES: &str = "\
The link works once, for two minutes. Its session has the rights that you have at the daemon's socket; no token is needed. \
For a page on a loopback address of another host, forward its port first: ssh -L 4581:127.0.0.1:4581 HOST.

Examples:
  sudo saltcellar page
  xdg-open \"$(sudo saltcellar page)\"";

pub(in crate::cli) fn run(global: &Global) -> anyhow::Result<()> {
    let link = ask::answer::<MakeLink>(global, &NoArgs {}, "make a link to the web UI")?;
    show(global.output, &link, |out| Ok(out.line(&link.url)?))
}
