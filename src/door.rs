//! A unix socket's file, the directory that decides who can come near it, how many come in at once, and what is counted.
//!
//! Who may open a socket is what its mode says. Its directory is the second fence, and the only one around the socket's *name*: who may
//! write there can put a socket of their own in its place and be taken for the daemon.
//!
//! Nobody's socket is taken away: a path at which somebody answers, or which is no socket, is left alone. What a daemon
//! that was killed left behind is removed. A directory that has to be made is closed to others.

use std::fs;
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, FileTypeExt as _, MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::net::{UnixListener, UnixSocket, UnixStream};
use tokio::sync::{Semaphore, watch};
use tokio::time::{sleep, timeout};

use crate::limits::{LISTEN_BACKLOG, PEER_PATIENCE};

/// Why the socket could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum SocketError {
    /// Somebody answers there already.
    #[error("another daemon answers at {}: stop it first, or give another {key}", path.display())]
    InUse {
        /// The socket.
        path: PathBuf,
        /// What names it in the configuration.
        key: &'static str,
    },
    /// Something is there that is no socket, and is left alone.
    #[error("{} exists and is no socket: move it away, or give another {key}", path.display())]
    NoSocket {
        /// What is there.
        path: PathBuf,
        /// What names it in the configuration.
        key: &'static str,
    },
    /// The operating system refused.
    #[error("{action} {}: {why}", path.display())]
    Io {
        /// Verb first.
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// The refusal.
        why: io::Error,
    },
    /// Somebody else could put a socket of their own in its place.
    #[error("{0}")]
    Unsafe(Concern),
    /// The group is not known on this machine.
    #[error("{key}: there is no group `{name}` on this machine")]
    NoGroup {
        /// The group.
        name: String,
        /// What names it in the configuration.
        key: &'static str,
    },
}

/// The socket's file: bound, listening, removed when dropped.
pub struct Door {
    listener: UnixListener,
    path: PathBuf,
}

/// Where a socket is to be, who may open it, and which keys of the configuration say so.
#[derive(Debug, Clone, Copy)]
pub struct Place<'a> {
    /// Its path.
    pub path: &'a Path,
    /// Its permissions.
    pub mode: u32,
    /// Its group; none leaves the daemon's own.
    pub group: Option<&'a str>,
    /// What names the path.
    pub key: &'static str,
    /// What names the group.
    pub group_key: &'static str,
}

impl Drop for Door {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
    }
}

impl Door {
    /// Binds the socket, with a directory for it and its permissions. Must run inside a tokio runtime.
    pub fn open(place: &Place<'_>) -> Result<Self, SocketError> {
        let Place { path, mode, group, key, group_key } = *place;
        let io = |action: &'static str, path: &Path| {
            let path = path.to_owned();
            move |why| SocketError::Io { action, path, why }
        };
        let gid = group
            .map(|name| {
                group_id(name).ok_or_else(|| SocketError::NoGroup { name: name.to_owned(), key: group_key })
            })
            .transpose()?;
        let parent = path.parent().unwrap_or(Path::new("/"));
        if !parent.is_dir() {
            make_dirs(parent, mode).map_err(io("create the directory", parent))?;
            if gid.is_some() {
                std::os::unix::fs::chown(parent, None, gid).map_err(io("change the group of", parent))?;
            }
        }
        let uid = rustix::process::geteuid().as_raw();
        let looking = || io("look at the directory", parent);
        let of_parents = parents(parent, "the socket's directory", uid).map_err(looking())?;
        for concern in concerns(parent, uid, mode, gid).map_err(looking())?.into_iter().chain(of_parents) {
            if concern.grave {
                return Err(SocketError::Unsafe(concern));
            }
            tracing::warn!("{concern}");
        }
        match fs::symlink_metadata(path) {
            Ok(found) if !found.file_type().is_socket() => {
                return Err(SocketError::NoSocket { path: path.to_owned(), key });
            }
            Ok(_) if std::os::unix::net::UnixStream::connect(path).is_ok() => {
                return Err(SocketError::InUse { path: path.to_owned(), key });
            }
            // Nobody listens: a daemon that was killed left it behind.
            Ok(_) => fs::remove_file(path).map_err(io("remove the stale socket", path))?,
            Err(_) => {}
        }
        let listener = bind_closed(path).map_err(io("bind", path))?;
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).map_err(io("set the mode of", path))?;
        if gid.is_some() {
            std::os::unix::fs::chown(path, None, gid).map_err(io("change the group of", path))?;
        }
        Ok(Self { listener, path: path.to_owned() })
    }

    /// Accepts peers until `stop` turns true and hands each to `host`, at most `seats_max` at once; one more goes to
    /// `turn_away`. Returns when the last has ended, or has taken [`PEER_PATIENCE`] over it; the socket is gone before.
    pub async fn serve<F>(
        self,
        seats_max: usize,
        mut stop: watch::Receiver<bool>,
        turn_away: impl Fn(UnixStream),
        host: impl Fn(UnixStream) -> F,
    ) where
        F: Future<Output = ()> + Send + 'static,
    {
        let seats = Arc::new(Semaphore::new(seats_max));
        loop {
            let accepted = tokio::select! {
                accepted = self.listener.accept() => accepted,
                _ = stop.wait_for(|stop| *stop) => break,
            };
            match accepted {
                Ok((stream, _)) => {
                    let Ok(seat) = seats.clone().try_acquire_owned() else {
                        turn_away(stream);
                        continue;
                    };
                    let hosted = host(stream);
                    tokio::spawn(async move {
                        hosted.await;
                        drop(seat);
                    });
                }
                Err(error) => {
                    // Out of file descriptors, most likely: connections that end will give some back.
                    tracing::warn!(socket = %self.path.display(), %error, "could not accept a connection");
                    sleep(Duration::from_millis(50)).await;
                }
            }
        }
        drop(self);
        // Every peer gives its seat back at its end.
        let all = u32::try_from(seats_max).unwrap_or(u32::MAX);
        let _ = timeout(PEER_PATIENCE, seats.acquire_many(all)).await;
    }
}

/// Binds and listens; the file has mode 0600. Linux takes the mode from the unbound socket, so that neither the umask, which
/// other threads use, nor a moment between two calls decides who may connect.
fn bind_closed(path: &Path) -> io::Result<UnixListener> {
    let socket = UnixSocket::new_stream()?;
    rustix::fs::fchmod(&socket, rustix::fs::Mode::from_raw_mode(0o600))?;
    socket.bind(path)?;
    socket.listen(LISTEN_BACKLOG)
}

/// Makes a directory and those above it: mode 0750 if the socket's mode lets a group or others in, otherwise 0700. The umask does
/// not count, because it is that of the store's files.
fn make_dirs(dir: &Path, socket_mode: u32) -> io::Result<()> {
    if let Some(parent) = dir.parent().filter(|parent| !parent.as_os_str().is_empty() && !parent.is_dir()) {
        make_dirs(parent, socket_mode)?;
    }
    let mode = if socket_mode & 0o066 == 0 { 0o700 } else { 0o750 };
    match fs::DirBuilder::new().mode(0o700).create(dir) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists && dir.is_dir() => Ok(()),
        made => made.and_then(|()| fs::set_permissions(dir, fs::Permissions::from_mode(mode))),
    }
}

/// Something about a directory that is not as it should be around the socket, and what would be right.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Concern {
    /// Could somebody else take the daemon's place?
    pub grave: bool,
    words: String,
}

impl std::fmt::Display for Concern {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.words)
    }
}

/// What is to be said about a directory that holds a socket of that user, mode and group.
pub fn concerns(dir: &Path, uid: u32, mode: u32, gid: Option<u32>) -> io::Result<Vec<Concern>> {
    let found = fs::metadata(dir)?;
    Ok(judge(&dir.display().to_string(), &Directory::of(&found), uid, mode, gid))
}

/// What is to be said about the directories above `dir`, which is called `what`: whoever may write to one of them can put another
/// directory in its place.
pub fn parents(dir: &Path, what: &str, uid: u32) -> io::Result<Vec<Concern>> {
    // The names on the way and those of the real path: a link can be replaced as well as a directory.
    let (named, real) = (std::path::absolute(dir)?, dir.canonicalize()?);
    let mut seen = Vec::new();
    let mut concerns = Vec::new();
    for parent in named.ancestors().skip(1).chain(real.ancestors().skip(1)) {
        let found = fs::metadata(parent)?;
        let id = (found.dev(), found.ino());
        if !seen.contains(&id) {
            seen.push(id);
            let words = (parent.display().to_string(), format!("{what} {}", dir.display()));
            concerns.extend(judge_parent((&words.0, &words.1), &Directory::of(&found), uid));
        }
    }
    Ok(concerns)
}

fn judge_parent((name, of): (&str, &str), dir: &Directory, uid: u32) -> Vec<Concern> {
    let mut concerns = Vec::new();
    let mut say = |grave, words| concerns.push(Concern { grave, words });
    // In a sticky directory nobody but the owners can rename or remove what is there.
    let sticky = dir.mode & 0o1000 != 0;
    if dir.uid != 0 && dir.uid != uid {
        let owner = dir.uid;
        say(false, format!("{name} belongs to uid {owner}, who can replace {of}: `chown root {name}`"));
    }
    if dir.mode & 0o002 != 0 && !sticky {
        let mode = dir.mode;
        say(
            true,
            format!("anyone can write to {name} (mode {mode:04o}) and replace {of}: `chmod o-w {name}`"),
        );
    }
    if dir.mode & 0o020 != 0 && !sticky {
        let gid = dir.gid;
        say(
            false,
            format!("members of group {gid} can write to {name} and replace {of}: `chmod g-w {name}`"),
        );
    }
    concerns
}

/// What of a directory matters.
struct Directory {
    uid: u32,
    gid: u32,
    mode: u32,
}

impl Directory {
    fn of(found: &fs::Metadata) -> Self {
        Self { uid: found.uid(), gid: found.gid(), mode: found.mode() & 0o7777 }
    }
}

fn judge(name: &str, dir: &Directory, uid: u32, socket_mode: u32, gid: Option<u32>) -> Vec<Concern> {
    let mut concerns = Vec::new();
    let mut say = |grave, words| concerns.push(Concern { grave, words });
    let sticky = dir.mode & 0o1000 != 0;
    if dir.uid != 0 && dir.uid != uid {
        let owner = dir.uid;
        say(
            true,
            format!(
                "the socket's directory {name} belongs to uid {owner}, who could put another socket in its place: \
                 `chown root {name}`, or give a socket elsewhere"
            ),
        );
    }
    if dir.mode & 0o002 != 0 && !sticky {
        let mode = dir.mode;
        say(
            true,
            format!(
                "anyone may write to the socket's directory {name} (mode {mode:04o}) and put another socket in its \
                 place: `chmod o-rwx {name}`, or give a socket elsewhere"
            ),
        );
    } else if dir.mode & 0o001 != 0 && socket_mode & 0o006 == 0 {
        let mode = dir.mode;
        say(
            false,
            format!(
                "anyone may enter the socket's directory {name} (mode {mode:04o}), and only the socket's own mode \
                 keeps them out: `chmod o-rwx {name}`"
            ),
        );
    }
    if dir.mode & 0o020 != 0 && !sticky {
        let gid = dir.gid;
        say(
            false,
            format!(
                "members of group {gid} may write to the socket's directory {name} and put another socket in its \
                 place: `chmod g-w {name}`"
            ),
        );
    }
    if let Some(gid) = gid
        && dir.mode & 0o001 == 0
        && (dir.gid != gid || dir.mode & 0o010 == 0)
    {
        say(
            false,
            format!(
                "members of the socket's group {gid} cannot enter its directory {name}: `chgrp {gid} {name}` and \
                 `chmod g+x {name}`"
            ),
        );
    }
    concerns
}

/// The number of a group, from `/etc/group`.
pub fn group_id(name: &str) -> Option<u32> {
    let groups = fs::read_to_string("/etc/group").ok()?;
    groups.lines().find_map(|line| {
        let mut fields = line.split(':');
        (fields.next() == Some(name)).then(|| fields.nth(1)?.parse().ok())?
    })
}

/// The name of a user, from `/etc/passwd`; the number where it has none.
pub fn user_name(uid: u32) -> String {
    let users = fs::read_to_string("/etc/passwd").unwrap_or_default();
    let name = users.lines().find_map(|line| {
        let mut fields = line.split(':');
        let name = fields.next()?;
        (fields.nth(1)?.parse() == Ok(uid)).then(|| name.to_owned())
    });
    name.unwrap_or_else(|| uid.to_string())
}

/// What `saltcellar status` shows of a ZeroMQ door.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DoorStatus {
    /// `pull` or `pub`.
    pub name: &'static str,
    /// Its socket.
    pub path: PathBuf,
    /// Connections open now.
    pub peers: u64,
    /// Events taken, or sent: one that goes to three subscribers counts three times.
    pub events: u64,
    /// Events not taken, or not sent because a subscriber was slow.
    pub dropped: u64,
}

#[derive(Debug)]
struct Tally {
    name: &'static str,
    path: PathBuf,
    peers: AtomicU64,
    events: AtomicU64,
    dropped: AtomicU64,
}

/// A [`DoorStatus`] that its door keeps up to date.
#[derive(Debug, Clone)]
pub struct Watch(Arc<Tally>);

impl Watch {
    /// Nothing has happened yet at the door `name`.
    pub fn new(name: &'static str, path: &Path) -> Self {
        let count = AtomicU64::default;
        Self(Arc::new(Tally {
            name,
            path: path.to_owned(),
            peers: count(),
            events: count(),
            dropped: count(),
        }))
    }

    /// How it stands at the moment.
    pub fn status(&self) -> DoorStatus {
        let read = |count: &AtomicU64| count.load(Ordering::Relaxed);
        DoorStatus {
            name: self.0.name,
            path: self.0.path.clone(),
            peers: read(&self.0.peers),
            events: read(&self.0.events),
            dropped: read(&self.0.dropped),
        }
    }

    /// Counts events that went through.
    pub fn count(&self, events: u64) {
        self.0.events.fetch_add(events, Ordering::Relaxed);
    }

    /// Counts events that did not.
    pub fn drop_events(&self, events: u64) {
        self.0.dropped.fetch_add(events, Ordering::Relaxed);
    }

    /// The door's name.
    pub fn name(&self) -> &'static str {
        self.0.name
    }

    /// Counts a connection for as long as it is held.
    pub fn enter(&self) -> Seat {
        self.0.peers.fetch_add(1, Ordering::Relaxed);
        Seat(self.clone())
    }
}

/// One open connection.
pub struct Seat(Watch);

impl Drop for Seat {
    fn drop(&mut self) {
        self.0.0.peers.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(dir: (u32, u32, u32), uid: u32, socket_mode: u32, gid: Option<u32>) -> Vec<(bool, &'static str)> {
        let (owner, group, mode) = dir;
        let words =
            ["belongs to uid", "anyone may write", "anyone may enter", "members of group", "cannot enter"];
        judge("/d", &Directory { uid: owner, gid: group, mode }, uid, socket_mode, gid)
            .iter()
            .map(|concern| (concern.grave, *words.iter().find(|w| concern.words.contains(**w)).unwrap()))
            .collect()
    }

    #[test]
    fn a_directory_that_only_the_daemon_and_the_group_may_enter_is_as_it_should_be() {
        for dir in [(0, 5, 0o750), (0, 5, 0o700), (7, 5, 0o2750)] {
            assert_eq!(said(dir, 7, 0o660, None), [], "{dir:?}");
        }
        assert_eq!(said((0, 5, 0o750), 7, 0o660, Some(5)), []);
        assert_eq!(said((0, 5, 0o755), 7, 0o666, None), [], "everyone is meant to come in");
    }

    #[test]
    fn a_parent_that_others_can_write_to_is_reported_unless_it_is_sticky() {
        let said = |uid, gid, mode| {
            let dir = Directory { uid, gid, mode };
            judge_parent(("/a", "the state directory /a/b"), &dir, 7)
                .iter()
                .map(|concern| {
                    (concern.grave, concern.words.split(' ').next().unwrap_or_default().to_owned())
                })
                .collect::<Vec<_>>()
        };
        let one = |grave, word: &str| vec![(grave, word.to_owned())];
        for dir in [(0, 0, 0o755), (7, 5, 0o755), (0, 0, 0o1777), (0, 5, 0o1775)] {
            assert_eq!(said(dir.0, dir.1, dir.2), [], "{dir:?}");
        }
        assert_eq!(said(8, 0, 0o755), one(false, "/a"));
        assert_eq!(said(0, 0, 0o757), one(true, "anyone"));
        assert_eq!(said(0, 5, 0o775), one(false, "members"));
        assert_eq!(
            said(8, 0, 0o1777),
            one(false, "/a"),
            "the owner of a sticky directory can rename all in it"
        );
    }

    #[test]
    fn all_parents_of_both_ends_of_a_link_are_looked_at() {
        let dir = tempfile::tempdir().unwrap();
        let (open, closed) = (dir.path().join("open"), dir.path().join("closed"));
        for path in [&open.join("dir"), &closed] {
            fs::create_dir_all(path).unwrap();
        }
        fs::set_permissions(&open, fs::Permissions::from_mode(0o777)).unwrap();
        std::os::unix::fs::symlink(open.join("dir"), closed.join("link")).unwrap();
        std::os::unix::fs::symlink(&closed, open.join("link")).unwrap();
        let uid = rustix::process::geteuid().as_raw();
        let grave = |path: &Path| parents(path, "it", uid).unwrap().iter().filter(|c| c.grave).count();
        for (path, count) in
            [("open/dir", 1), ("closed", 0), ("closed/link", 1), ("open/link", 1), ("open", 0)]
        {
            assert_eq!(grave(&dir.path().join(path)), count, "{path}");
        }
    }

    #[tokio::test]
    async fn a_socket_is_closed_to_others_until_its_mode_is_set_whatever_the_umask() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s");
        let listener = bind_closed(&path).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
        drop(listener);
    }

    #[test]
    fn directories_made_for_a_socket_let_in_whom_the_socket_lets_in() {
        for (socket_mode, mode) in [(0o660, 0o750), (0o600, 0o700)] {
            let dir = tempfile::tempdir().unwrap();
            make_dirs(&dir.path().join("a/b"), socket_mode).unwrap();
            for made in ["a", "a/b"] {
                let found = fs::metadata(dir.path().join(made)).unwrap().mode() & 0o777;
                assert_eq!(found, mode, "{made} for {socket_mode:o}");
            }
        }
    }

    #[test]
    fn who_could_take_the_daemons_place_is_grave_and_who_could_come_near_is_told() {
        assert_eq!(said((8, 5, 0o700), 7, 0o660, None), [(true, "belongs to uid")]);
        assert_eq!(said((0, 5, 0o757), 7, 0o660, None), [(true, "anyone may write")]);
        assert_eq!(said((0, 5, 0o1777), 7, 0o660, None), [(false, "anyone may enter")]);
        assert_eq!(said((0, 5, 0o755), 7, 0o660, None), [(false, "anyone may enter")]);
        assert_eq!(said((0, 5, 0o770), 7, 0o660, None), [(false, "members of group")]);
        assert_eq!(said((0, 6, 0o750), 7, 0o660, Some(5)), [(false, "cannot enter")]);
        assert_eq!(said((0, 5, 0o700), 7, 0o660, Some(5)), [(false, "cannot enter")]);
    }
}
