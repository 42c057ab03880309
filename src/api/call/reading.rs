//! The parts of the daemon as calls that only read get them. None of these types leads to a method
//! that changes the store, the reactor, a sink or a token: a call that does so does not compile.

use std::path::Path;

use super::archive::{Archive, OwnMaster};
use super::parts::{Ctx, Part, Process, Reacting};
use super::running::RunningConfig;
use super::shared::SharedHistory;
use crate::api::query::Digest;
use crate::api::sign_in::SignIn;
use crate::api::sign_in::tokens::Token;
use crate::base::clock::Clock;
use crate::base::file_fault::FileFault;
use crate::base::metrics::Metrics;
use crate::config::Config;
use crate::engines::dead_letters::DeadLetter;
use crate::engines::runtime::{Engines, SinkError, SinkStatus};
use crate::ingest::bus::{BusMonitor, BusStatus};
use crate::policy::Policy;
use crate::reactor::run::engine::ReactorReader;
use crate::store::StoreReader;

/// A part that calls can read without changing it.
pub(crate) trait ReadPart: Part {
    type Reading<'a>;

    fn reading(&self) -> Self::Reading<'_>;
}

/// Of [`Archive`].
#[derive(Clone, Copy)]
pub(crate) struct ReadArchive<'a> {
    pub(crate) store: &'a StoreReader,
    pub(crate) state_dir: &'a Path,
    pub(crate) clock: &'a Clock,
    pub(crate) metrics: &'a Metrics,
    pub(crate) master: &'a OwnMaster,
    pub(crate) shared: Option<&'a SharedHistory>,
    pub(crate) digest: &'a Digest,
}

impl ReadPart for Archive {
    type Reading<'a> = ReadArchive<'a>;

    fn reading(&self) -> ReadArchive<'_> {
        ReadArchive {
            store: &self.store,
            state_dir: &self.state_dir,
            clock: &self.clock,
            metrics: &self.metrics,
            master: &self.master,
            shared: self.shared.as_ref(),
            digest: &self.digest,
        }
    }
}

/// Of [`Reacting`].
pub(crate) struct ReadReacting<'a> {
    pub(crate) handle: Option<&'a ReactorReader>,
    buses: &'a [BusMonitor],
    pub(crate) archive: ReadArchive<'a>,
}

impl ReadReacting<'_> {
    pub(crate) fn buses(&self) -> Vec<BusStatus> {
        self.buses.iter().map(BusMonitor::status).collect()
    }
}

impl ReadPart for Reacting {
    type Reading<'a> = ReadReacting<'a>;

    fn reading(&self) -> ReadReacting<'_> {
        ReadReacting {
            handle: self.handle.as_deref(),
            buses: &self.buses,
            archive: self.archive.reading(),
        }
    }
}

/// Of [`Engines`].
pub(crate) struct ReadEngines<'a>(&'a Engines);

impl ReadEngines<'_> {
    pub(crate) fn list(&self) -> Vec<SinkStatus> {
        self.0.list()
    }

    pub(crate) fn dead_letters(&self, name: &str) -> Result<Vec<DeadLetter>, SinkError> {
        self.0.dead_letters(name)
    }

    pub(crate) fn file_faults(&self) -> Vec<FileFault> {
        self.0.file_faults()
    }
}

impl ReadPart for Engines {
    type Reading<'a> = ReadEngines<'a>;

    fn reading(&self) -> ReadEngines<'_> {
        ReadEngines(self)
    }
}

/// Of [`SignIn`]: its tokens.
pub(crate) struct ReadTokens<'a>(&'a SignIn);

impl ReadTokens<'_> {
    pub(crate) fn list(&self) -> (Vec<Token>, Option<String>) {
        self.0.tokens.list()
    }

    pub(crate) fn fault(&self) -> Option<FileFault> {
        self.0.tokens.fault()
    }
}

impl ReadPart for SignIn {
    type Reading<'a> = ReadTokens<'a>;

    fn reading(&self) -> ReadTokens<'_> {
        ReadTokens(self)
    }
}

/// Of [`RunningConfig`].
pub(crate) struct ReadConfig<'a>(&'a RunningConfig);

impl ReadConfig<'_> {
    pub(crate) fn config(&self) -> Config {
        self.0.config()
    }
}

impl ReadPart for RunningConfig {
    type Reading<'a> = ReadConfig<'a>;

    fn reading(&self) -> ReadConfig<'_> {
        ReadConfig(self)
    }
}

/// Of [`Ctx`], for `status`.
pub(crate) struct ReadCtxParts<'a> {
    pub(crate) archive: ReadArchive<'a>,
    pub(crate) policy: &'a Policy,
    pub(crate) reacting: ReadReacting<'a>,
    pub(crate) engines: ReadEngines<'a>,
    pub(crate) tokens: ReadTokens<'a>,
    pub(crate) process: &'a Process,
}

impl ReadPart for Ctx {
    type Reading<'a> = ReadCtxParts<'a>;

    fn reading(&self) -> ReadCtxParts<'_> {
        // A part that is added to the daemon has to be named here, and then is shown or not by
        // choice.
        let Self {
            archive,
            acceptor,
            reacting,
            engines,
            sign_in,
            process,
            firing: _,
            rights: _,
        } = self;

        ReadCtxParts {
            archive: archive.reading(),
            policy: &acceptor.policy,
            reacting: reacting.reading(),
            engines: engines.reading(),
            tokens: sign_in.reading(),
            process,
        }
    }
}
