//! Verbs and requests over HTTP, against a daemon in process.

mod causes;
mod consumers;
mod filters;
mod http_api;
mod http_encoding;
mod http_limits;
mod http_page;
mod http_page_lists;
mod http_page_sinks;
mod http_rate;
mod http_salt_api;
mod jobs;
mod minions;
mod moving;
mod outcomes;
mod reactor_lint;
mod sinks;
mod terminal;
