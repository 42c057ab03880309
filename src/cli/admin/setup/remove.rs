//! Removal: Salt uses its own job cache and reactor again, and nothing is lost.
//!
//! # Invariant
//!
//! Nothing is removed while another file of the master would keep both reactors off. Entries in the
//! spool are delivered before the daemon is stopped. Data is never deleted.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};

use super::daemon;
use super::extension::Salt;
use super::managed::{self, Before, FileState, refuse_foreign};
use super::options::MasterOptions;
use super::plan::{Done, Plan};
use super::restart::{restarted_around, waited_for};
use super::service::{self, GROUP, SOCKET_UNIT, UNIT};
use crate::cli::salt_python::MASTER_UNIT;
use crate::config::salt_master::SaltMaster;
use crate::ingest::spool::Spool;

/// Maximum number of runs of the extension's maintenance, each some seconds long, after which the
/// rest of the spool is reported.
const DELIVERIES_MAX: usize = 20;

pub(super) struct Removal<'a> {
    pub(super) options: &'a MasterOptions,
    /// State of the file in `master.d`.
    pub(super) found: FileState,
    /// The daemon's state directory, if its configuration can be read.
    pub(super) state_dir: Option<PathBuf>,
    pub(super) config_file: &'a Path,
    /// The spool of the master's extension.
    pub(super) spool: PathBuf,
    /// Salt, or why it cannot deliver the spool.
    pub(super) salt: anyhow::Result<Salt>,
    /// False: only the file in `master.d`.
    pub(super) services: bool,
}

pub(super) fn plan(plan: &mut Plan, removal: Removal<'_>) -> anyhow::Result<()> {
    let Removal {
        options,
        found,
        state_dir,
        config_file,
        spool,
        salt,
        services,
    } = removal;

    // A file that a person edited stays, and everything that it needs with it.
    refuse_foreign(&options.path, found)?;

    // The configuration that the master will have decides, not the present one: another file may
    // keep Salt's reactor off.
    let after = options.without();
    ensure_a_reactor(&after)?;

    let is_there = matches!(found, FileState::InPlace | FileState::Outdated);
    let does = format!("remove {}", options.path.display());
    let path = options.path.clone();
    // Where the restarted master listens follows from the configuration that it then reads.
    let address = waited_for(&after);

    // First, because the extension delivers to the daemon that a later step stops.
    if services {
        deliver(plan, spool.clone(), salt)?;
    }

    match (is_there, services && service::is("is-active", MASTER_UNIT)?) {
        (false, _) => plan.in_place("master", format!("{does}: it does not exist")),
        (true, true) => plan.step(
            "master",
            format!("stop {MASTER_UNIT}, {does}, and start it"),
            move || restarted_around(&path, address.as_ref(), managed::remove),
        ),
        (true, false) => {
            // A stopped master only needs the change; without services it is not setup's to
            // restart.
            plan.afterwards
                .push("restart the master: its processes read the option only at start".to_owned());
            plan.step("master", does, move || {
                let before =
                    Before::of(&path).with_context(|| format!("read {}", path.display()))?;
                managed::remove(&path).with_context(|| format!("remove {}", path.display()))?;
                Ok(
                    Done::new().undone_by(format!("restore {}", path.display()), move || {
                        Ok(before.restore(&path)?)
                    }),
                )
            });
        }
    }

    if services {
        // After the master, which uses the daemon until its restart.
        stop(plan)?;
        daemon::remove(plan, config_file)?;
        let user = &after.user;

        // A user that does not exist is in no group.
        if user != "root" && matches!(service::is_member(user), Ok(true)) {
            plan.afterwards.push(format!(
                "{user} stays in the group {GROUP}; to remove it: gpasswd -d {user} {GROUP}"
            ));
        }
    }

    let reactor = if after.flag("reactor") {
        " and reactor"
    } else {
        ""
    };

    let cache = after.text("master_job_cache").unwrap_or("local_cache");
    plan.remarks.push(format!(
        "Salt uses its own job cache ({cache}){reactor} again"
    ));
    plan.remarks.push(format!(
        "jobs and events stay in {}; to take them along, run `saltcellar export` (docs/MIGRATE.md) before, while the daemon runs",
        state_dir.as_ref().map_or_else(
            || "the daemon's state directory".to_owned(),
            |dir| dir.display().to_string()
        )
    ));

    // Named, never deleted: they may be the only copy of the data.
    let kept: Vec<_> = state_dir
        .as_deref()
        .into_iter()
        .chain([config_file, &spool])
        .filter(|path| path.exists())
        .map(|path| path.display().to_string())
        .collect();

    if !kept.is_empty() {
        plan.afterwards.push(format!(
            "these stay, and can be deleted once nothing in them is needed: {}",
            kept.join(", ")
        ));
    }

    Ok(())
}

/// Fails if no reactor would act after the removal.
fn ensure_a_reactor(after: &SaltMaster) -> anyhow::Result<()> {
    if !after.flag("reactor") || after.runs_reactor() {
        return Ok(());
    }

    let files = after.option_by_file("engines");
    // The file that Salt reads last decides, so the change belongs there.
    let file = files.last().map_or_else(
        || after.conf_file.display().to_string(),
        |(file, _)| file.display().to_string(),
    );

    bail!(
        "hand the reactor back: no reactor would act on the rules of `reactor`, because `engines` in {file} keeps Salt's reactor off; \
         remove the item that names saltcellar's reactor there"
    )
}

fn deliver(plan: &mut Plan, spool: PathBuf, salt: anyhow::Result<Salt>) -> anyhow::Result<()> {
    let does = format!("deliver the entries that wait in {}", spool.display());
    let waiting = move |dir: &Path| -> anyhow::Result<u64> {
        let found = Spool::inspect(dir).with_context(|| format!("read {}", dir.display()))?;
        Ok(found.map_or(0, |spool| spool.waiting_bytes))
    };

    if waiting(&spool)? == 0 {
        plan.in_place("spool", does);
        return Ok(());
    }

    plan.step("spool", does, move || {
        let left = |left: u64, why: &str| {
            let result = format!("{left} bytes of entries are left in {}{why}: they are delivered if saltcellar is set up later", spool.display());
            Done::new().with_result(result)
        };

        let mut before = waiting(&spool)?;
        let salt = match salt {
            // Salt's Python may be gone, which must not prevent a removal. The entries stay in the
            // spool.
            Ok(salt) => salt,
            Err(error) => return Ok(left(before, &format!(" ({error:#})"))),
        };

        // Each run of the extension's maintenance delivers for a limited time only, so a large
        // spool needs several.
        for _ in 0..DELIVERIES_MAX {
            // The file in `master.d` still exists, so Salt finds the extension.
            if let Err(error) = salt.deliver(None) {
                return Ok(left(before, &format!(" ({error:#})")));
            }

            let now = waiting(&spool)?;
            if now == 0 {
                return Ok(Done::new().with_result("the spool is empty"));
            }
            // Further runs would make no progress either.
            if now >= before {
                return Ok(left(now, " (the daemon accepts none of them: `saltcellar doctor`)"));
            }

            before = now;
        }

        Ok(left(before, ""))
    });
    Ok(())
}

/// Plans to stop the daemon and to keep it stopped at the next boot.
fn stop(plan: &mut Plan) -> anyhow::Result<()> {
    let (mut units, mut enabled, mut active) = (Vec::new(), Vec::new(), Vec::new());
    // An enabled socket unit would start the daemon with the next connection.
    for unit in [SOCKET_UNIT, UNIT] {
        let (is_enabled, is_active) = (
            service::is("is-enabled", unit)?,
            service::is("is-active", unit)?,
        );
        units.extend((is_enabled || is_active).then_some(unit));
        enabled.extend(is_enabled.then_some(unit));
        active.extend(is_active.then_some(unit));
    }

    let does = format!("stop and disable {UNIT}");
    if units.is_empty() {
        plan.in_place("service", does);
        return Ok(());
    }

    plan.step("service", does, move || {
        // Both units in one command: a connection to the socket would restart a service that was
        // stopped before it.
        service::systemctl("disable --now", &units)?;
        Ok(
            Done::new().undone_by(format!("enable and start {UNIT}"), move || {
                if !enabled.is_empty() {
                    service::systemctl("enable", &enabled)?;
                }
                if !active.is_empty() {
                    service::systemctl("start", &active)?;
                }
                Ok(())
            }),
        )
    });
    Ok(())
}
