//! The parts of the daemon that calls reach. Each call names the part that it needs, and gets no
//! other.

use std::path::PathBuf;
use std::sync::Arc;

use super::accept::Acceptor;
use super::archive::Archive;
use super::rights::Rights;
use super::running::RunningConfig;
use crate::api::monitor::{ListenerMonitor, ZmqSocketStatus};
use crate::api::sign_in::SignIn;
use crate::base::clock::Micros;
use crate::bus::firing::Firing;
use crate::engines::runtime::Engines;
use crate::engines::script::ScriptMonitor;
use crate::ingest::bus::BusMonitor;
use crate::model::Slot;
use crate::reactor::run::engine::Handle;

/// All parts, for the interfaces: they find the call first, and then what it needs.
pub struct Ctx {
    pub(crate) archive: Archive,
    pub(crate) acceptor: Acceptor,
    pub(crate) firing: Firing,
    pub(crate) reacting: Reacting,
    pub(crate) engines: Arc<Engines>,
    pub(crate) rights: Rights,
    pub(crate) sign_in: SignIn,
    pub(crate) process: Process,
}

/// The reactor, if there is one, and the buses from which it gets events.
pub(crate) struct Reacting {
    pub(crate) handle: Option<Handle>,
    pub(crate) buses: Vec<BusMonitor>,
    pub(crate) archive: Archive,
}

/// The process: what it was started with, and what runs besides the calls.
pub(crate) struct Process {
    pub(crate) started: Micros,
    pub(crate) socket: PathBuf,
    /// The slot of new job ids.
    pub(crate) slot: Option<Slot>,
    pub(crate) config: Arc<RunningConfig>,
    pub(crate) spools: Vec<PathBuf>,
    /// The bus of this host's Salt master, if no event of it arrives.
    pub(crate) unread_bus: Option<PathBuf>,
    /// The HTTP listener, if `http.listen` is set.
    pub(crate) http: Option<ListenerMonitor>,
    /// The address that serves minions, if any: its own, or the address of the HTTP listener.
    pub(crate) https: Option<ListenerMonitor>,
    pub(crate) scripts: Arc<ScriptMonitor>,
    pub(crate) zeromq: Vec<ZmqSocketStatus>,
}

/// A part that calls can name.
pub(crate) trait Part: 'static {
    fn of(ctx: &Ctx) -> &Self;
}

macro_rules! parts {
    ($($part:ty: $ctx:ident => $of:expr;)+) => {
        $(impl Part for $part {
            fn of($ctx: &Ctx) -> &Self {
                $of
            }
        })+
    };
}

parts! {
    Archive: ctx => &ctx.archive;
    Acceptor: ctx => &ctx.acceptor;
    Firing: ctx => &ctx.firing;
    Reacting: ctx => &ctx.reacting;
    Engines: ctx => &ctx.engines;
    SignIn: ctx => &ctx.sign_in;
    RunningConfig: ctx => &ctx.process.config;
    // For `status` alone: it shows six of the eight parts, so a part of its own would be this
    // struct again. What each of its rows reads is named at the row.
    Ctx: ctx => ctx;
}
