//! Fires events onto a Salt bus, as `event.send` and `event.fire_master` do.
//!
//! In addition to the publisher's socket, a bus has one for incoming events
//! (`master_event_pull.ipc`). It accepts one frame per event and sends no response. Its framing can
//! differ from the publisher's: 3007.15 and 3008.2 publish plain frames and accept length-prefixed
//! frames. The framing is therefore detected once for each socket that Salt creates:
//!
//! | publisher | accepted framing |
//! |---|---|
//! | sends length-prefixed frames (3006.26 and later) | the same |
//! | sends plain frames | the form of the probe that appears on the bus |
//!
//! The plain probe is sent first: a socket that expects length prefixes reads it as an announcement of 2 GB, and closing the connection ends that silently.
//! In the reverse order old releases would log errors.

use std::collections::HashMap;
use std::hash::{BuildHasher as _, RandomState};
use std::io::{ErrorKind, Read as _};
use std::os::unix::fs::MetadataExt as _;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::patience::Patience;
use super::{BusLink, LinkState};
use crate::base::clock::Clock;
use crate::base::limits::{
    ENTRY_BYTES_MAX, FIRE_HUNG_PAUSE, FIRE_PROBE_PAUSE, FIRE_TIMEOUT, TAG_BYTES_FIRED_MAX,
};
use crate::base::shutdown::Drain;
use crate::wire::frame::{self, FrameError, FrameSplitter, Framing};
use crate::wire::salt_event;

/// Why an event was not fired.
#[derive(Debug, thiserror::Error)]
pub enum FireError {
    /// The tag cannot be fired.
    #[error("the tag is not accepted: expected {TAG_EXPECTED}")]
    BadTag,
    /// The event is larger than Salt's buses take.
    #[error("the event has {len} bytes, the limit is {max}: shorten its data")]
    TooLarge {
        /// Bytes of its data.
        len: usize,
        /// The limit.
        max: usize,
    },
    /// No bus is configured.
    #[error(
        "no bus is configured: set `bus` in the configuration, or pass --bus to `saltcellar serve`"
    )]
    NoBus,
    /// Several buses are configured, and the call names none.
    #[error("several buses are configured, name one of: {0}")]
    WhichBus(String),
    /// The named bus is not configured.
    #[error("bus {asked} is not configured; configured are: {known}")]
    UnknownBus {
        /// The requested bus.
        asked: String,
        /// The configured buses.
        known: String,
    },
    /// Salt's socket is unreachable or does not accept data; retry later.
    #[error("Salt does not accept events at {}: {why}", path.display())]
    Unreachable {
        /// The path of the socket.
        path: PathBuf,
        /// The reason, and what to do.
        why: String,
    },
    /// The master does not accept connections or data in time; retry later.
    #[error("Salt's master does not take events at {}: it accepted none for {} s; restart salt-master if it hangs", path.display(), FIRE_TIMEOUT.as_secs())]
    Hung {
        /// The path of the socket.
        path: PathBuf,
    },
    /// The daemon or the caller lacks permission.
    #[error("{who} may not fire events at {}: only {owner} may", path.display())]
    NotAllowed {
        /// The daemon or the caller.
        who: &'static str,
        /// The path of the socket.
        path: PathBuf,
        /// The permitted users.
        owner: String,
    },
}

/// What a tag must be.
pub const TAG_EXPECTED: &str = "1 to 1024 bytes without control characters";

/// A tag that may be fired. Every event that the daemon puts onto a bus has one, whoever asks for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FiredTag<'t>(&'t str);

impl<'t> FiredTag<'t> {
    /// Checks a tag.
    pub fn new(tag: &'t str) -> Result<Self, FireError> {
        if tag.len() <= TAG_BYTES_FIRED_MAX && salt_event::is_clean_tag(tag.as_bytes()) {
            Ok(Self(tag))
        } else {
            Err(FireError::BadTag)
        }
    }

    /// The tag.
    pub fn as_str(self) -> &'t str {
        self.0
    }
}

/// The identity of a socket when its framing was detected: Salt creates a new one at each start.
type Identity = (u64, u64, i64, i64);

/// Fires events onto the configured buses.
#[derive(Debug)]
pub struct Firer {
    buses: Vec<BusLink>,
    clock: Clock,
    /// The framing of each socket. Lock order: no other lock is taken under it.
    known: Mutex<HashMap<PathBuf, (Identity, Framing)>>,
    /// Sockets of masters that hang, with the time of the last timeout. Lock order: no other lock
    /// is taken under it.
    hung: Mutex<HashMap<PathBuf, Instant>>,
    /// Ends every wait.
    stop: Drain,
    /// How long to wait for a master.
    timeout: Duration,
}

impl Default for Firer {
    fn default() -> Self {
        Self {
            buses: Vec::new(),
            clock: Clock::default(),
            known: Mutex::default(),
            hung: Mutex::default(),
            stop: Drain::default(),
            timeout: FIRE_TIMEOUT,
        }
    }
}

/// A socket that accepts events.
#[derive(Debug, Clone)]
pub struct Target {
    publisher: PathBuf,
    /// The path of the socket.
    pub path: PathBuf,
    identity: Identity,
    /// The owner, who may fire.
    pub owner: u32,
    published: Option<Framing>,
}

impl Firer {
    /// Whether a bus that is read has this framing.
    pub(crate) fn reads(&self, framing: Framing) -> bool {
        self.buses
            .iter()
            .any(|bus| bus.state().framing == Some(framing))
    }

    /// A sender for these buses.
    pub fn new(buses: Vec<BusLink>, clock: Clock) -> Self {
        Self {
            buses,
            clock,
            ..Self::default()
        }
    }

    /// Ends waits for a master that hangs: the daemon stops.
    pub(crate) fn stop(&self) {
        self.stop.stop();
    }

    /// How long to wait for a master. A master that hung a moment ago gets no time, because its
    /// events must not delay other work.
    fn patience(&self, path: &Path) -> Patience<'_> {
        let hung = self.hung.lock().get(path).copied();
        let waits = hung.is_none_or(|at| at.elapsed() >= FIRE_HUNG_PAUSE);
        let time = if waits { self.timeout } else { Duration::ZERO };

        Patience {
            until: Instant::now() + time,
            stop: &self.stop,
        }
    }

    /// Notes whether the master hangs.
    fn note<T>(&self, target: &Target, outcome: Result<T, FireError>) -> Result<T, FireError> {
        // Held for the whole update, because only one of two timeouts may begin the pause.
        let mut hung = self.hung.lock();
        match &outcome {
            // The pause begins with the first timeout. Attempts within it do not restart it.
            Err(FireError::Hung { .. }) => {
                let at = hung.entry(target.path.clone()).or_insert_with(Instant::now);
                if at.elapsed() >= FIRE_HUNG_PAUSE {
                    *at = Instant::now();
                }
            }
            _ => drop(hung.remove(&target.path)),
        }

        outcome
    }

    /// The event socket of the bus named by its directory or its publisher's socket; without a
    /// name, the socket of the only bus.
    pub fn target(&self, asked: Option<&str>) -> Result<Target, FireError> {
        let paths: Vec<_> = self.buses.iter().map(BusLink::state).collect();
        let known = || {
            let names = paths
                .iter()
                .map(|bus| bus.path.parent().unwrap_or(&bus.path).display().to_string());
            names.collect::<Vec<_>>().join(", ")
        };

        let bus = match (asked, paths.as_slice()) {
            // First, because without a bus every name would be reported as unknown, and a bus is
            // what is missing.
            (_, []) => return Err(FireError::NoBus),
            (None, [only]) => only,
            (None, _) => return Err(FireError::WhichBus(known())),
            (Some(asked), _) => {
                let path = Path::new(asked);
                let is = |bus: &&LinkState| bus.path == path || bus.path.parent() == Some(path);
                let found = paths.iter().find(is);
                found.ok_or_else(|| FireError::UnknownBus {
                    asked: asked.to_owned(),
                    known: known(),
                })?
            }
        };

        let name = bus
            .path
            .file_name()
            .and_then(|name| name.to_str())
            .unwrap_or_default();
        let path = bus.path.with_file_name(name.replace("_pub.", "_pull."));

        // Without a counterpart the event would go to the publisher's socket.
        if path == bus.path {
            let why = format!(
                "the socket name {name} has no counterpart for incoming events: set `bus` to the `sock_dir` of a master or minion"
            );
            return Err(FireError::Unreachable { path, why });
        }

        let found = std::fs::metadata(&path).map_err(|why| unreachable(&path, &why))?;
        Ok(Target {
            publisher: bus.path.clone(),
            path,
            identity: (found.dev(), found.ino(), found.ctime(), found.ctime_nsec()),
            owner: found.uid(),
            // Only of a live connection: a new master may use another framing.
            published: bus.framing.filter(|_| bus.connected),
        })
    }

    /// The publisher's socket of the bus in `directory`, if that bus is configured and not connected.
    pub fn disconnected(&self, directory: &str) -> Option<PathBuf> {
        let mut buses = self.buses.iter().map(BusLink::state);
        let found = buses.find(|bus| bus.path.parent() == Some(Path::new(directory)))?;
        (!found.connected).then_some(found.path)
    }

    /// The framing that the socket accepts; detects it on first use.
    pub fn framing(&self, target: &Target) -> Result<Framing, FireError> {
        // Releases that publish length-prefixed frames accept them as well, so no probe is needed.
        if target.published == Some(Framing::Len32) {
            return Ok(Framing::Len32);
        }

        if let Some((identity, framing)) = self.known.lock().get(&target.path)
            && *identity == target.identity
        {
            return Ok(*framing);
        }

        // No lock is held while probing: a master that hangs must not delay events for other buses.
        let patience = self.patience(&target.path);
        let framing = self.note(target, probe(target, &self.clock, &patience))?;

        tracing::info!(socket = %target.path.display(), framing = framing.name(), "detected the framing for firing events");
        self.known
            .lock()
            .insert(target.path.clone(), (target.identity, framing));
        Ok(framing)
    }

    /// Fires an event onto the bus in `directory`, or onto the only bus, however its directory is
    /// spelled; `data` is a msgpack map with `_stamp`.
    pub(crate) fn fire_in(&self, directory: &str, tag: &str, data: &[u8]) -> Result<(), FireError> {
        let tag = FiredTag::new(tag)?;
        let target = match self.target(Some(directory)) {
            // Of several buses none is meant: the caller learns which name was not found.
            Err(unknown @ FireError::UnknownBus { .. }) => {
                self.target(None).map_err(|error| match error {
                    FireError::WhichBus(_) => unknown,
                    other => other,
                })?
            }
            found => found?,
        };
        let framing = self.framing(&target)?;
        self.fire(&target, framing, tag, data)
    }

    /// Fires an event; `data` is a msgpack map with `_stamp`.
    pub fn fire(
        &self,
        target: &Target,
        framing: Framing,
        tag: FiredTag<'_>,
        data: &[u8],
    ) -> Result<(), FireError> {
        let patience = self.patience(&target.path);
        let sent = send(target, framing, tag.as_str(), data, &patience);
        self.note(target, sent).map(drop)
    }
}

fn unreachable(path: &Path, why: &std::io::Error) -> FireError {
    let path = path.to_owned();
    if why.kind() == ErrorKind::PermissionDenied {
        let owner = "the user that Salt's master runs as, and root".to_owned();
        return FireError::NotAllowed {
            who: "the daemon",
            path,
            owner,
        };
    }

    // Salt's socket has a listener that neither accepts nor reads.
    if matches!(why.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) {
        return FireError::Hung { path };
    }

    let why = match why.kind() {
        ErrorKind::NotFound => "the socket does not exist".to_owned(),
        ErrorKind::ConnectionRefused => "the socket has no listener".to_owned(),
        _ => why.to_string(),
    };
    let why = format!("{why}; is salt-master running? `saltcellar doctor` checks it");
    FireError::Unreachable { path, why }
}

/// Writes one frame. The caller keeps the returned stream to keep the connection open.
fn send(
    target: &Target,
    framing: Framing,
    tag: &str,
    data: &[u8],
    patience: &Patience<'_>,
) -> Result<UnixStream, FireError> {
    let failed = |why| unreachable(&target.path, &why);
    let mut stream = patience.connect(&target.path).map_err(failed)?;
    let frame = frame::fired(framing, tag.as_bytes(), data);
    patience.write(&mut stream, &frame).map_err(failed)?;
    Ok(stream)
}

/// Fires probes in both framings and returns the framing whose probe appears on the bus.
fn probe(target: &Target, clock: &Clock, patience: &Patience<'_>) -> Result<Framing, FireError> {
    let gone = |why: std::io::Error| unreachable(&target.publisher, &why);
    let mut from = patience.connect(&target.publisher).map_err(gone)?;
    let mut splitter = FrameSplitter::new(ENTRY_BYTES_MAX + 64);

    // The name is unique to this probe.
    let name = format!(
        "saltcellar/probe/{:016x}",
        RandomState::new().hash_one(std::process::id())
    );
    let tag = |framing: Framing| format!("{name}/{}", framing.name());

    // The publisher accepts a subscriber asynchronously, so the first probes may be published too early.
    let mut held = Vec::new();
    let mut pause = FIRE_PROBE_PAUSE;
    read_tags(&mut from, &mut splitter, Instant::now() + pause, |_| {
        None::<()>
    })
    .map_err(gone)?;

    while patience.left().is_ok() {
        for framing in [Framing::Plain, Framing::Len32] {
            held.push(send(
                target,
                framing,
                &tag(framing),
                &salt_event::stamped(&[0x80], clock.now().iso().trim_end_matches('Z')),
                patience,
            )?);
            let found = read_tags(&mut from, &mut splitter, Instant::now() + pause, |seen| {
                [Framing::Plain, Framing::Len32]
                    .into_iter()
                    .find(|framing| seen == tag(*framing).as_bytes())
            });

            if let Some(framing) = found.map_err(gone)? {
                return Ok(framing);
            }
        }

        // A slow master may need longer, so each round waits twice as long as the one before.
        pause *= 2;
    }

    let why = "fired events do not appear on the bus; see the log of salt-master, and restart it"
        .to_owned();
    Err(FireError::Unreachable {
        path: target.path.clone(),
        why,
    })
}

/// Reads tags from a bus until `recognise` returns a value or the time is over.
fn read_tags<T>(
    from: &mut UnixStream,
    splitter: &mut FrameSplitter,
    until: Instant,
    mut recognise: impl FnMut(&[u8]) -> Option<T>,
) -> std::io::Result<Option<T>> {
    let mut buffer = vec![0; 64 * 1024];
    loop {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Ok(None);
        }

        // At least a millisecond, because a timeout of zero is an error.
        from.set_read_timeout(Some(left.max(Duration::from_millis(1))))?;
        match from.read(&mut buffer) {
            // The publisher has closed the connection, which is reported like a socket without a
            // listener.
            Ok(0) => return Err(ErrorKind::ConnectionRefused.into()),
            Ok(n) => splitter.feed(buffer.get(..n).unwrap_or_default()),
            Err(e) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                return Ok(None);
            }
            Err(e) if e.kind() == ErrorKind::Interrupted => continue,
            Err(e) => return Err(e),
        }

        loop {
            match splitter.next_frame() {
                Ok(Some(frame)) => {
                    let tag = frame::body(frame)
                        .and_then(salt_event::split)
                        .map(|(tag, _)| tag);
                    if let Some(found) = tag.and_then(&mut recognise) {
                        return Ok(Some(found));
                    }
                }
                Ok(None) => break,
                // Not an event that is looked for.
                Err(FrameError::Oversized { .. }) => {}
                // The boundaries of frames are lost, so nothing that follows can be read.
                Err(error) => {
                    return Err(std::io::Error::new(
                        ErrorKind::InvalidData,
                        error.to_string(),
                    ));
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;

    use super::*;

    #[test]
    fn a_tag_has_no_control_characters() {
        for tag in ["salt/engines/hook/ci", "a", "ünï code", &"x".repeat(1024)] {
            assert_eq!(FiredTag::new(tag).unwrap().as_str(), tag);
        }
        for tag in [
            "",
            "ci\n",
            "a\n\nb",
            "a\0",
            "\x1b[2J",
            "a\u{85}",
            &"x".repeat(1025),
        ] {
            assert!(
                matches!(FiredTag::new(tag), Err(FireError::BadTag)),
                "{tag:?}"
            );
        }
    }

    #[test]
    fn the_error_is_that_of_the_directory_that_was_asked_for() {
        let dir = tempfile::tempdir().unwrap();
        let [here, there, elsewhere] = ["here", "there", "elsewhere"].map(|n| dir.path().join(n));
        let link = |dir: &Path| BusLink::new(dir.join("master_event_pub.ipc"));
        let firer =
            |dirs: &[&PathBuf]| Firer::new(dirs.iter().map(|d| link(d)).collect(), Clock::real());
        let fire = |firer: &Firer, dir: &Path| firer.fire_in(dir.to_str().unwrap(), "t", &[0x80]);

        let both = firer(&[&here, &there]);
        let away = fire(&both, &there);
        assert!(
            matches!(&away, Err(FireError::Unreachable { path, .. }) if path.starts_with(&there)),
            "{away:?}"
        );
        let unknown = fire(&both, &elsewhere);
        assert!(
            matches!(&unknown, Err(FireError::UnknownBus { asked, .. }) if asked.ends_with("elsewhere")),
            "{unknown:?}"
        );
        // However it is spelled, the only bus is meant.
        let only = fire(&firer(&[&here]), &elsewhere);
        assert!(
            matches!(&only, Err(FireError::Unreachable { path, .. }) if path.starts_with(&here)),
            "{only:?}"
        );
    }

    /// A socket of a master that accepts no connection, with a full backlog.
    fn hung(dir: &Path) -> (UnixListener, Vec<UnixStream>, Target) {
        let path = dir.join("master_event_pull.ipc");
        let listener = UnixListener::bind(&path).unwrap();
        rustix::net::listen(&listener, 0).unwrap();
        let patience = Patience {
            until: Instant::now(),
            stop: &Drain::new(),
        };
        let waiting = std::iter::from_fn(|| patience.connect(&path).ok()).collect();
        let target = Target {
            publisher: dir.join("master_event_pub.ipc"),
            path,
            identity: (0, 0, 0, 0),
            owner: 0,
            published: Some(Framing::Len32),
        };
        (listener, waiting, target)
    }

    #[test]
    fn a_master_that_hangs_delays_the_first_event_for_a_time_and_the_next_ones_not() {
        let dir = tempfile::tempdir().unwrap();
        let (_listener, _waiting, target) = hung(dir.path());
        let mut firer = Firer {
            timeout: Duration::from_millis(100),
            ..Firer::default()
        };
        let tag = FiredTag::new("t").unwrap();
        let fire = |firer: &Firer| firer.fire(&target, Framing::Len32, tag, &[0x80]);
        assert!(matches!(fire(&firer), Err(FireError::Hung { .. })));
        // If one of them waited, the test would not end.
        firer.timeout = Duration::from_secs(86_400);
        for _ in 0..3 {
            assert!(matches!(fire(&firer), Err(FireError::Hung { .. })));
        }
    }

    #[test]
    fn the_stop_of_the_daemon_ends_the_wait_for_a_master_that_hangs() {
        let dir = tempfile::tempdir().unwrap();
        let (_listener, _waiting, target) = hung(dir.path());
        let stop = Drain::new();
        let patience = Patience {
            until: Instant::now() + Duration::from_secs(3600),
            stop: &stop,
        };
        std::thread::scope(|scope| {
            let sending = scope.spawn(|| send(&target, Framing::Len32, "t", &[0x80], &patience));
            stop.stop();
            assert!(matches!(
                sending.join().unwrap(),
                Err(FireError::Hung { .. })
            ));
        });
    }
}
