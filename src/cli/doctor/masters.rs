//! Several masters: what the daemon of each needs, as far as files of this host show.
//!
//! The master's options name a cluster. Hot masters and failover are options of minions; the minion of this host, if it has one,
//! stands for all of them. Nothing is asked over the network.

use super::check::{Check, Run};
use super::finding::{Findings, Reporter};
use super::master_use::{MasterContext, Uses, option_origin};

use crate::config::Config;
use crate::config::salt_master::{Role, SaltMaster};
use crate::model::word::Word as _;

const CLUSTER: &str = "cluster_id";
const MINION: &str = "masters";

pub(super) const CHECKS: &[Check] = &[
    Check {
        name: CLUSTER,
        not_ok_when: "the master belongs to a [cluster](TOPOLOGIES.md#a-cluster), and the daemon has no slot of job ids, or a slot for fewer masters than there are; otherwise it shows which returns are not verified",
        run: Run::Master(cluster),
    },
    Check {
        name: MINION,
        not_ok_when: "this host's minion has [several masters](TOPOLOGIES.md#hot-masters-and-failover), and the daemon has no slot of job ids, or a slot for fewer masters than there are; or the reactors of all of them act on its events",
        run: Run::Master(minion),
    },
];

/// The same findings for a plan of `setup`, as a sentence each.
pub(in crate::cli) fn of_several_masters(
    master: &SaltMaster,
    config: &Config,
    job_cache: bool,
) -> Vec<String> {
    let mut found = Findings::default();

    if let Some(cluster) = Cluster::of(master) {
        cluster.report(&mut found, master, config, job_cache);
    }
    if let Some(masters) = MastersOfMinion::beside(master) {
        masters.report(&mut found, config, job_cache);
    }

    let sentence = |message: String, write: Option<String>| match write {
        Some(write) => format!("{message}: {write}"),
        None => message,
    };
    found
        .0
        .into_iter()
        .map(|one| sentence(one.message, one.advice.map(|advice| advice.remedy)))
        .collect()
}

fn cluster(found: &mut Findings, context: &MasterContext<'_>, uses: &Uses) {
    if !uses.any() {
        return;
    }
    let MasterContext { master, config, .. } = context;

    if let Some(cluster) = Cluster::of(master) {
        cluster.report(found, master, config, uses.job_cache);
    }
}

fn minion(found: &mut Findings, context: &MasterContext<'_>, uses: &Uses) {
    if !uses.any() {
        return;
    }
    let MasterContext { master, config, .. } = context;

    if let Some(masters) = MastersOfMinion::beside(master) {
        masters.report(found, config, uses.job_cache);
    }
}

/// A cluster that a master belongs to.
struct Cluster {
    id: String,
    /// The other masters. Since 3008 masters can join a cluster that does not name them.
    peers: Vec<String>,
}

impl Cluster {
    fn of(master: &SaltMaster) -> Option<Self> {
        let id = master.text(CLUSTER).filter(|id| !id.is_empty())?.to_owned();
        let peers = master.texts("cluster_peers");
        let peers = peers.into_iter().map(str::to_owned).collect();
        Some(Self { id, peers })
    }

    fn report(&self, found: &mut Findings, master: &SaltMaster, config: &Config, job_cache: bool) {
        let mut found = found.of(CLUSTER);
        let origin = option_origin(master, CLUSTER);
        let id = &self.id;

        // Without named peers the number of masters is unknown, because a master can join unnamed.
        let (count, which) = if self.peers.is_empty() {
            (None, format!("a master of the cluster {id} ({origin})"))
        } else {
            let count = self.peers.len() + 1;
            let which = format!("one of the {count} masters of the cluster {id} ({origin})");
            (Some(count), which)
        };
        let peers = self.peers.join(", ");
        let others = match count {
            Some(_) => format!("{which}; each needs a daemon: {peers}"),
            None => format!("{which}; each needs a daemon"),
        };

        report_slot(&mut found, &others, count, config, job_cache);

        // No returner call of this master confirms a response that a peer received. That is not a
        // fault of this master, and cannot be remedied here.
        if job_cache {
            found.ok(
                "returns from minions of the other masters are shown as not verified; `salt-run jobs.lookup_jid` on this master shows \
                only the returns of its own minions",
            );
        }
    }
}

/// The masters of this host's minion, if there are several.
struct MastersOfMinion {
    masters: Vec<String>,
    /// The minion uses one of them at a time.
    is_failover: bool,
}

impl MastersOfMinion {
    /// From the file next to the master's.
    fn beside(master: &SaltMaster) -> Option<Self> {
        let file = master.conf_file.with_file_name(Role::Minion.name());
        let minion = SaltMaster::read_as(&file, Role::Minion);

        let masters = minion.texts("master");
        if masters.len() < 2 {
            return None;
        }

        let is_failover = matches!(minion.text("master_type"), Some("failover" | "distributed"));
        let masters = masters.into_iter().map(str::to_owned).collect();
        Some(Self {
            masters,
            is_failover,
        })
    }

    fn report(&self, found: &mut Findings, config: &Config, job_cache: bool) {
        let mut found = found.of(MINION);
        let count = self.masters.len();

        // Masters of one host share a daemon.
        if config.bus.len() >= count {
            return;
        }

        let masters = self.masters.join(", ");
        let when = if self.is_failover {
            ", one at a time"
        } else {
            ""
        };
        let which = format!(
            "this host's minion has {count} masters{when}; each needs a daemon, which stores only the jobs of its master: {masters}"
        );
        report_slot(&mut found, &which, Some(count), config, job_cache);

        // With failover only one master at a time receives the minion's events.
        let reactor = &config.reactor;
        if !self.is_failover && reactor.master.is_some() && reactor.election.is_none() {
            found.warn_because(
                "each master's reactor acts on the minion's events",
                "a minion tells its events to all of its masters, and each reactor makes the reaction",
                "`cluster.nats` and `reactor: {election: NAME}` in the configuration of each master's daemon (docs/CLUSTER.md), then restart it",
            );
        }
    }
}

/// Whether the daemon's job ids differ from those of the other masters.
fn report_slot(
    found: &mut Reporter<'_>,
    which: &str,
    masters: Option<usize>,
    config: &Config,
    job_cache: bool,
) {
    const WHY: &str = "two masters can make the same job id; a minion then runs one of the two jobs, and its response is shown for both";

    // Salt makes the job ids.
    if !job_cache {
        return found.ok(which);
    }

    // The number of masters may be unknown, see `Cluster::peers`.
    let slots = masters.map_or_else(|| "N".to_owned(), |count| count.to_string());
    let write = format!(
        "`cluster: {{slot: K/{slots}}}` in the configuration of each master's daemon, with another K from 1 to {slots}, then restart it"
    );

    match config.cluster.slot {
        None => found.warn_because(
            format!("the daemon has no slot of job ids: {which}"),
            WHY,
            write,
        ),
        Some(slot) if masters.is_some_and(|count| count > usize::from(slot.of())) => {
            let slot = slot.show().unwrap_or_default();
            found.warn_because(
                format!("the slot of job ids is {slot}, for fewer masters than there are: {which}"),
                WHY,
                write,
            );
        }
        Some(slot) => {
            let slot = slot.show().unwrap_or_default();
            found.ok(format!("slot {slot} of job ids; {which}"));
        }
    }
}
