//! Firing onto a Salt bus, as `event.send` and `event.fire_master` do.
//!
//! A bus has a socket to fire at beside the one that publishes (`master_event_pull.ipc`). It takes one frame per event,
//! answers nothing, and its framing is its own: 3007.15 and 3008.2 publish plain frames and take ones behind their length.
//! So it is found out, once for each time that Salt has made the socket:
//!
//! | what is seen | then it takes |
//! |---|---|
//! | the publisher sends frames behind their length (3006.26 and later) | the same |
//! | the publisher sends plain frames | whichever form of a probe comes out of it |
//!
//! The plain probe goes first: to a socket that wants lengths it announces 2 GB, and closing ends that without a word.
//! The other way round old releases would log errors.

use std::collections::HashMap;
use std::hash::{BuildHasher as _, RandomState};
use std::io::{ErrorKind, Read as _, Write as _};
use std::os::unix::fs::MetadataExt as _;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::bus::Watch;
use crate::clock::Clock;
use crate::limits::{ENTRY_BYTES_MAX, FIRE_PATIENCE, FIRE_PROBE_PAUSE};
use crate::wire::frame::{self, Framing, Splitter};
use crate::wire::salt_event;

/// Why an event was not fired.
#[derive(Debug, thiserror::Error)]
pub enum FireError {
    /// The daemon reads no bus.
    #[error("no bus is configured: give `bus` in the configuration, or --bus to `saltcellar serve`")]
    NoBus,
    /// There are several, and none was named.
    #[error("there are several buses; name one of them: {0}")]
    WhichBus(String),
    /// None of those that there are.
    #[error("{asked} is no configured bus; there are: {known}")]
    UnknownBus {
        /// What was asked for.
        asked: String,
        /// Those that there are.
        known: String,
    },
    /// Salt is not there, or does not take anything at the moment: try again later.
    #[error("no Salt takes events at {}: {why}", path.display())]
    Away {
        /// The socket.
        path: PathBuf,
        /// What happened.
        why: String,
    },
    /// The daemon, or who asked, may not.
    #[error("{who} may not fire at {}: only {owner} may", path.display())]
    NotAllowed {
        /// Who.
        who: &'static str,
        /// The socket.
        path: PathBuf,
        /// Who may.
        owner: String,
    },
}

/// What a socket was when its framing was found out: Salt makes a new one at each start.
type Identity = (u64, u64, i64, i64);

/// Fires at the buses that are read.
#[derive(Debug, Default)]
pub struct Firer {
    buses: Vec<Watch>,
    clock: Clock,
    known: Mutex<HashMap<PathBuf, (Identity, Framing)>>,
}

/// A socket to fire at.
#[derive(Debug, Clone)]
pub struct Target {
    publisher: PathBuf,
    /// The socket.
    pub path: PathBuf,
    identity: Identity,
    /// Who owns it, and may fire.
    pub owner: u32,
    published: Option<Framing>,
}

impl Firer {
    /// Fires at these buses.
    pub fn new(buses: Vec<Watch>, clock: Clock) -> Self {
        Self { buses, clock, known: Mutex::default() }
    }

    /// The socket of the bus that was asked for, by its directory or its publisher's socket; of the only one if none was.
    pub fn target(&self, asked: Option<&str>) -> Result<Target, FireError> {
        let paths: Vec<_> = self.buses.iter().map(Watch::status).collect();
        let known = || {
            let names = paths.iter().map(|bus| bus.path.parent().unwrap_or(&bus.path).display().to_string());
            names.collect::<Vec<_>>().join(", ")
        };
        let bus = match (asked, paths.as_slice()) {
            (_, []) => return Err(FireError::NoBus),
            (None, [only]) => only,
            (None, _) => return Err(FireError::WhichBus(known())),
            (Some(asked), _) => {
                let path = Path::new(asked);
                let is = |bus: &&super::bus::BusStatus| bus.path == path || bus.path.parent() == Some(path);
                let found = paths.iter().find(is);
                found.ok_or_else(|| FireError::UnknownBus { asked: asked.to_owned(), known: known() })?
            }
        };
        let name = bus.path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        let path = bus.path.with_file_name(name.replace("_pub.", "_pull."));
        if path == bus.path {
            let why = format!("the bus {name} has no name from which that of its other socket follows");
            return Err(FireError::Away { path, why });
        }
        let found = std::fs::metadata(&path).map_err(|why| away(&path, &why))?;
        Ok(Target {
            publisher: bus.path.clone(),
            path,
            identity: (found.dev(), found.ino(), found.ctime(), found.ctime_nsec()),
            owner: found.uid(),
            published: bus.framing.filter(|_| bus.connected),
        })
    }

    /// The publisher's socket of the bus in that directory, if that bus is read and is not connected.
    pub fn disconnected(&self, directory: &str) -> Option<PathBuf> {
        let mut buses = self.buses.iter().map(Watch::status);
        let found = buses.find(|bus| bus.path.parent() == Some(Path::new(directory)))?;
        (!found.connected).then_some(found.path)
    }

    /// How the socket wants its frames; finds it out if nobody has yet.
    pub fn framing(&self, target: &Target) -> Result<Framing, FireError> {
        if target.published == Some(Framing::Len32) {
            return Ok(Framing::Len32);
        }
        let known = || self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((identity, framing)) = known().get(&target.path)
            && *identity == target.identity
        {
            return Ok(*framing);
        }
        let framing = probe(target, &self.clock)?;
        tracing::info!(socket = %target.path.display(), framing = framing.name(), "found out how to fire at the bus");
        known().insert(target.path.clone(), (target.identity, framing));
        Ok(framing)
    }

    /// Fires an event; `data` is a msgpack map with its `_stamp`.
    pub fn fire(&self, target: &Target, framing: Framing, tag: &str, data: &[u8]) -> Result<(), FireError> {
        send(target, framing, tag, data).map(drop)
    }
}

fn away(path: &Path, why: &std::io::Error) -> FireError {
    let path = path.to_owned();
    if why.kind() == ErrorKind::PermissionDenied {
        let owner = "the user that Salt's master runs as, and root".to_owned();
        return FireError::NotAllowed { who: "the daemon", path, owner };
    }
    let why = match why.kind() {
        ErrorKind::NotFound => "there is no socket; is the master running?".to_owned(),
        ErrorKind::ConnectionRefused => "nobody listens; is the master running?".to_owned(),
        ErrorKind::WouldBlock | ErrorKind::TimedOut => "it did not take the event in time".to_owned(),
        _ => why.to_string(),
    };
    FireError::Away { path, why }
}

/// Writes one frame; the connection lives as long as what is returned.
fn send(target: &Target, framing: Framing, tag: &str, data: &[u8]) -> Result<UnixStream, FireError> {
    let away = |why| away(&target.path, &why);
    let mut stream = UnixStream::connect(&target.path).map_err(away)?;
    stream.set_write_timeout(Some(FIRE_PATIENCE)).map_err(away)?;
    stream.write_all(&frame::fired(framing, tag.as_bytes(), data)).map_err(away)?;
    Ok(stream)
}

/// Fires probes in both framings and sees which comes out.
fn probe(target: &Target, clock: &Clock) -> Result<Framing, FireError> {
    let gone = |why: std::io::Error| away(&target.publisher, &why);
    let mut from = UnixStream::connect(&target.publisher).map_err(gone)?;
    let mut splitter = Splitter::new(ENTRY_BYTES_MAX + 64);
    // Nobody else's probe has this name.
    let name = format!("saltcellar/probe/{:016x}", RandomState::new().hash_one(std::process::id()));
    let tag = |framing: Framing| format!("{name}/{}", framing.name());
    let until = Instant::now() + FIRE_PATIENCE;
    // The publisher accepts a subscriber in its own time, so the first probes may come out before it listens.
    let mut held = Vec::new();
    let mut pause = FIRE_PROBE_PAUSE;
    hear(&mut from, &mut splitter, Instant::now() + pause, |_| None::<()>).map_err(gone)?;
    while Instant::now() < until {
        for framing in [Framing::Plain, Framing::Len32] {
            held.push(send(
                target,
                framing,
                &tag(framing),
                &salt_event::stamped(&[0x80], clock.now().iso().trim_end_matches('Z')),
            )?);
            let found = hear(&mut from, &mut splitter, Instant::now() + pause, |heard| {
                [Framing::Plain, Framing::Len32].into_iter().find(|framing| heard == tag(*framing).as_bytes())
            });
            if let Some(framing) = found.map_err(gone)? {
                return Ok(framing);
            }
        }
        pause *= 2;
    }
    let why = "events fired at it do not come out of the bus; is the master well?".to_owned();
    Err(FireError::Away { path: target.path.clone(), why })
}

/// Reads tags off a bus until one is recognised or the time is over.
fn hear<T>(
    from: &mut UnixStream,
    splitter: &mut Splitter,
    until: Instant,
    mut recognise: impl FnMut(&[u8]) -> Option<T>,
) -> std::io::Result<Option<T>> {
    let mut buffer = vec![0; 64 * 1024];
    loop {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Ok(None);
        }
        from.set_read_timeout(Some(left.max(Duration::from_millis(1))))?;
        match from.read(&mut buffer) {
            Ok(0) => return Err(ErrorKind::ConnectionRefused.into()),
            Ok(n) => splitter.feed(buffer.get(..n).unwrap_or_default()),
            Err(e) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => return Ok(None),
            Err(e) if e.kind() == ErrorKind::Interrupted => continue,
            Err(e) => return Err(e),
        }
        loop {
            match splitter.next_frame() {
                Ok(Some(frame)) => {
                    let tag = frame::body(frame).and_then(salt_event::split).map(|(tag, _)| tag);
                    if let Some(found) = tag.and_then(&mut recognise) {
                        return Ok(Some(found));
                    }
                }
                Ok(None) => break,
                Err(error) => return Err(std::io::Error::new(ErrorKind::InvalidData, error.to_string())),
            }
        }
    }
}
