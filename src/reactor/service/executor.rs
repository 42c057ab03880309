//! Execution of reactions: requests to the master, `caller` functions, and events fired onto the
//! bus.

use std::path::PathBuf;
use std::sync::Arc;

use parking_lot::RwLock;
use salt_sls::{Glob, Value};

use super::build::Built;
use crate::base::clock::Clock;
use crate::base::metrics::Metrics;
use crate::bus::fire::{FireError, Firer};
use crate::reactor::master::{Answer, Call, Client, Master, MasterError, pack};
use crate::reactor::run::{CallerError, CallerReturn, Executor};
use crate::reactor::{Helper, NO_SALT, SaltAnswer, SaltError};
use crate::wire::salt_event;

/// Why a minion's reactor rejects reactions other than `caller`.
const NO_MASTER: &str = "a minion's reactor (reactor.minion) supports `caller` reactions only";

pub(super) struct MasterExecutor {
    /// Replaced when the configuration changes; calls in flight keep the old one. `None` for a
    /// minion. Lock order: no other lock is taken under it.
    pub(super) target: RwLock<Option<MasterTarget>>,
    /// Runs `caller` reactions, one at a time. Lock order: no other lock is taken under it.
    pub(super) callers: RwLock<Option<Arc<Helper>>>,
    pub(super) firer: Arc<Firer>,
    /// The socket directory of the bus that is reacted to; replaced like `target`. Lock order: no
    /// other lock is taken under it.
    pub(super) sock_dir: RwLock<PathBuf>,
    pub(super) clock: Clock,
    pub(super) metrics: Arc<Metrics>,
}

/// A master and the relevant parts of its configuration.
#[derive(Clone)]
pub(super) struct MasterTarget {
    pub(super) master: Arc<Master>,
    /// The directory of accepted keys; `None` if the master also publishes jobs without matching
    /// keys.
    pub(super) accepted: Option<PathBuf>,
    /// Why requests to it are impossible with its configuration.
    pub(super) unsupported: Option<String>,
}

impl MasterExecutor {
    fn target(&self) -> Option<MasterTarget> {
        self.target.read().clone()
    }

    fn sock_dir(&self) -> String {
        self.sock_dir.read().to_string_lossy().into_owned()
    }

    /// Fails if the master's event bus is disconnected. Without a bus the master is not running
    /// properly: it cannot publish a job or report the start of a runner, and every request would
    /// raise an exception at an unknown point.
    fn has_bus(&self, master: &Master) -> Result<(), MasterError> {
        self.firer
            .disconnected(&self.sock_dir())
            .map_or(Ok(()), |bus| {
                let why = format!("its event bus is not connected ({})", bus.display());
                Err(MasterError::Unreachable {
                    place: master.place().to_string(),
                    why,
                })
            })
    }

    /// Runs `caller` reactions with another process from now on; a function that runs keeps the old
    /// one.
    pub(super) fn replace_callers(&self, callers: Option<Arc<Helper>>) {
        *self.callers.write() = callers;
    }

    /// Applies a changed configuration. The key is checked for each request anyway.
    pub(super) fn apply(&self, built: &Built) {
        self.sock_dir.write().clone_from(&built.sock_dir);

        // The reactor of a minion has no master.
        let (Some(place), Some(known)) = (&built.place, self.target()) else {
            return;
        };

        // An unchanged address keeps its connections.
        let master = if known.master.place() == place {
            known.master
        } else {
            tracing::info!(
                master = %place, user = place.user, before = %known.master.place(),
                "master address changed, sending reactions to the new one"
            );
            Arc::new(Master::new(place.clone(), self.metrics.clone()))
        };

        let (accepted, unsupported) = (built.accepted.clone(), built.unsupported.clone());
        let target = MasterTarget {
            master,
            accepted,
            unsupported,
        };

        *self.target.write() = Some(target);
    }
}

impl Executor for MasterExecutor {
    fn ask(
        &self,
        call: &Call,
        jid: &str,
        timeout: std::time::Duration,
    ) -> Result<Answer, MasterError> {
        match self.target() {
            Some(target) => {
                self.has_bus(&target.master)?;
                target.master.ask(call, jid, timeout)
            }
            None => Err(MasterError::Refused {
                place: "no address".to_owned(),
                why: NO_MASTER.to_owned(),
            }),
        }
    }

    fn reach(&self) -> Result<(), MasterError> {
        let Some(target) = self.target() else {
            return Ok(());
        };
        self.has_bus(&target.master)?;
        target.master.reach()
    }

    fn unsupported(&self, client: Client) -> Option<String> {
        match self.target() {
            _ if client == Client::Caller => None,
            Some(target) => target.unsupported,
            None => Some(NO_MASTER.to_owned()),
        }
    }

    fn blocked_by(&self) -> Option<String> {
        self.target()?.unsupported
    }

    fn no_target(&self, tgt: &Value, tgt_type: &str) -> Option<String> {
        let accepted = self.target()?.accepted?;
        let is_there = |name: &str| {
            // A name with a slash is not a minion id, and could lead out of the directory.
            !name.contains('/') && accepted.join(name).symlink_metadata().is_ok()
        };

        let found = match (tgt_type, tgt) {
            ("glob", Value::Str(glob)) if glob.contains(['*', '?', '[']) => {
                let glob = Glob::new(glob);
                let mut keys = std::fs::read_dir(&accepted).ok()?;
                keys.any(|key| {
                    key.is_ok_and(|key| key.file_name().to_str().is_some_and(|id| glob.matches(id)))
                })
            }
            // Without the directory nothing is known about the keys.
            ("glob", Value::Str(name)) => accepted.is_dir().then(|| is_there(name))?,
            ("list", Value::List(names)) => accepted
                .is_dir()
                .then(|| names.iter().filter_map(Value::as_str).any(is_there))?,
            // Other targets depend on data of the minions.
            _ => return None,
        };

        (!found).then(|| "no minion with an accepted key matches the target".to_owned())
    }

    fn caller(&self, call: &Call) -> Result<CallerReturn, CallerError> {
        let args = call
            .load
            .get("args")
            .and_then(Value::as_list)
            .unwrap_or_default();
        let kwargs = call
            .load
            .get("kwargs")
            .and_then(Value::as_map)
            .cloned()
            .unwrap_or_default();

        let helper = self.callers.read().clone();
        let helper = helper.ok_or_else(|| CallerError::NotStarted(NO_SALT.to_owned()))?;

        let answer = helper
            .call(&call.fun, args, &kwargs)
            .map_err(|error| match error {
                SaltError::Absent(why) => CallerError::NotStarted(why),
                // It ran until it was killed, and would do that again.
                error @ SaltError::TooLong { .. } => CallerError::Failed(error.to_string()),
                // How far it ran is unknown.
                error @ SaltError::Broken(_) => CallerError::Lost(error.to_string()),
            })?;

        let SaltAnswer {
            result, retcode, ..
        } = answer;
        result
            .map(|value| CallerReturn { value, retcode })
            .map_err(|(kind, text)| CallerError::Failed(format!("{kind}: {text}")))
    }

    fn fire(&self, tag: &str, data: &Value) -> Result<(), String> {
        let stamp = self.clock.now().iso();
        let data = salt_event::stamped(&pack::packed(data), stamp.trim_end_matches('Z'));
        self.firer
            .fire_in(&self.sock_dir(), tag, &data)
            .map_err(|error: FireError| error.to_string())?;
        self.metrics.events_fired.add(1);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;
    use std::os::unix::net::UnixListener;
    use std::path::Path;

    use super::*;
    use crate::bus::BusLink;
    use crate::config::salt_master::{Role, SaltMaster};
    use crate::wire::frame::Framing;

    /// A bus in a directory, and the socket that takes its events.
    fn bus(dir: &Path) -> (BusLink, UnixListener) {
        std::fs::create_dir(dir).unwrap();
        let link = BusLink::new(dir.join("master_event_pub.ipc"));
        link.change(|state| (state.connected, state.framing) = (true, Some(Framing::Len32)));
        let socket = UnixListener::bind(dir.join("master_event_pull.ipc")).unwrap();
        (link, socket)
    }

    /// Whether the next event on a bus is that with this tag.
    fn takes(socket: &UnixListener, tag: &str) -> bool {
        let mut event = Vec::new();
        socket.accept().unwrap().0.read_to_end(&mut event).unwrap();
        memchr::memmem::find(&event, format!("{tag}\n\n").as_bytes()).is_some()
    }

    #[test]
    fn after_a_reload_events_are_fired_onto_the_bus_of_the_new_directory() {
        let dir = tempfile::tempdir().unwrap();
        let [old, new] = ["old", "new"].map(|name| dir.path().join(name));
        let ((old_link, old_socket), (new_link, new_socket)) = (bus(&old), bus(&new));
        let executor = MasterExecutor {
            target: RwLock::default(),
            callers: RwLock::default(),
            firer: Arc::new(Firer::new(vec![old_link, new_link], Clock::real())),
            sock_dir: RwLock::new(old),
            clock: Clock::real(),
            metrics: Arc::default(),
        };
        executor.fire("a", &Value::Null).unwrap();

        let (path, metrics) = (dir.path().join("minion"), Arc::default());
        // Salt takes another directory if the path of the sockets is much longer than the cache's.
        let text = format!("sock_dir: {0}\ncachedir: {0}\n", new.display());
        std::fs::write(&path, text).unwrap();
        let config = crate::config::ReactorConfig::default();
        let master = SaltMaster::read_as(&path, Role::Minion);
        let mut said = super::super::build::Said::default();
        let built =
            super::super::build::build(&master, &path, "minion", &config, &metrics, &mut said);
        executor.apply(&built.unwrap());
        executor.fire("b", &Value::Null).unwrap();
        assert!(takes(&old_socket, "a") && takes(&new_socket, "b"));
    }
}
