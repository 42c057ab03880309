//! Connects the shared history of several masters with the daemon: the sink that publishes, and the source that receives.

use std::sync::Arc;
use std::thread::JoinHandle;

use anyhow::Context as _;

use crate::api::call::SharedHistory;
use crate::base::clock::{Clock, Micros};
use crate::base::limits::CLUSTER_HOLDS_WAIT;
use crate::base::metrics::Metrics;
use crate::base::shutdown::Drain;
use crate::base::threads;
use crate::cluster::election::Election;
use crate::cluster::numbering::OwnNumbering;
use crate::cluster::peers::Peers;
use crate::cluster::{Cluster, random_name};
use crate::config::{Config, ReactorConfig};
use crate::engines::outbox::outbox;
use crate::engines::settings::SinkSettings;
use crate::engines::transport::cluster::OutboxParts;
use crate::ingest::cluster::{Inbox, InboxParts};
use crate::model::word::Word;
use crate::policy::Policy;
use crate::store::{Intake, Store};

/// What the parts of the shared history have in common.
pub(super) struct History {
    cluster: Arc<Cluster>,
    numbering: Arc<OwnNumbering>,
    metrics: Arc<Metrics>,
    clock: Clock,
    peers: Arc<Peers>,
    /// With `reactor.election`.
    election: Option<Arc<Election>>,
}

impl History {
    /// `None` if the configuration contains no servers for it.
    pub(super) fn open(
        (config, master_id): (&Config, &str),
        store: &Store,
        clock: &Clock,
        metrics: &Arc<Metrics>,
    ) -> anyhow::Result<Option<Self>> {
        let cluster = Cluster::of(config, master_id).context("read the configuration")?;
        let Some(cluster) = cluster else {
            return Ok(None);
        };

        // Retention must wait: other masters may hold jobs of which this store does not know yet.
        store.await_holds(CLUSTER_HOLDS_WAIT);

        let numbering =
            OwnNumbering::of(store).context("read or save the state of the shared history")?;
        let instance = random_name().context("start the shared history")?;

        let ReactorConfig {
            election,
            without_quorum,
            ..
        } = &config.reactor;
        let election = election.as_ref().map(|name| {
            let own = cluster.name.clone();
            Arc::new(Election::new(name, own, *without_quorum, clock.clone()))
        });

        let slot = cluster.slot.as_ref().and_then(Word::show);
        let peers = Peers::new(
            cluster.name.clone(),
            slot,
            instance,
            store.settings(),
            clock.clone(),
        );
        Ok(Some(Self {
            cluster: Arc::new(cluster),
            numbering: Arc::new(numbering),
            metrics: metrics.clone(),
            clock: clock.clone(),
            peers: Arc::new(peers),
            election,
        }))
    }

    /// The election of the reactor that acts.
    pub(super) fn election(&self) -> Option<Arc<Election>> {
        self.election.clone()
    }

    /// Takes part in the election until the signal.
    pub(super) fn elect(&self, drain: &Drain) -> anyhow::Result<Option<JoinHandle<()>>> {
        let Some(election) = self.election.clone() else {
            return Ok(None);
        };

        let (cluster, peers, drain) = (self.cluster.clone(), self.peers.clone(), drain.clone());
        let work = move || {
            let has_read = |message| peers.has_read(message);
            election.run(&cluster, peers.instance(), &has_read, &drain);
        };
        let thread = threads::spawn("sc-elect", work).context("start the election")?;
        Ok(Some(thread))
    }

    /// What calls read of it.
    pub(super) fn shared(&self) -> SharedHistory {
        let Cluster {
            subjects, window, ..
        } = &*self.cluster;
        SharedHistory::new(self.peers.clone(), subjects.stream(), *window)
    }

    /// The sink that publishes this master's history.
    pub(super) fn outbox(&self, store: &Store, now: Micros) -> SinkSettings {
        let parts = OutboxParts {
            cluster: self.cluster.clone(),
            peers: self.peers.clone(),
            numbering: self.numbering.clone(),
            store: store.clone(),
            metrics: self.metrics.clone(),
        };
        outbox(parts, now)
    }

    /// The source that receives the histories of the others.
    pub(super) fn inbox(
        &self,
        store: &Store,
        intake: Intake,
        policy: &Arc<Policy>,
        drain: &Drain,
    ) -> Inbox {
        Inbox::new(InboxParts {
            cluster: self.cluster.clone(),
            peers: self.peers.clone(),
            numbering: self.numbering.clone(),
            store: store.clone(),
            intake,
            policy: policy.clone(),
            metrics: self.metrics.clone(),
            clock: self.clock.clone(),
            drain: drain.clone(),
        })
    }
}
