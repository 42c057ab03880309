//! Unix socket listeners: the socket's file and directory, the connection limit, and counters.
//!
//! The socket's mode controls who can connect. Its directory is the second barrier, and the only protection of the socket's *name*: a
//! user with write access to it can replace the socket and impersonate the daemon.
//!
//! A live socket, or a file that is not a socket, is never removed. The stale socket of a killed
//! daemon is removed. New directories are closed to other users.
//!
//! A socket that the service manager passed is used only if connections to the path reach it ([`Passed`]). A bound socket keeps its name
//! when its file is removed or replaced, so the name proves nothing.
//!
//! # Invariant
//!
//! Only root, the daemon and the configured group can connect to a socket, and other users cannot
//! replace it. A passed socket is proved by a connection.

use std::collections::VecDeque;
use std::fs;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::fs::{
    DirBuilderExt as _, FileTypeExt as _, MetadataExt as _, PermissionsExt as _,
};
use std::os::unix::net as std_net;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use tokio::net::{UnixListener, UnixSocket, UnixStream};
use tokio::sync::{Semaphore, watch};
use tokio::time::{sleep, timeout};

use saltcellar_base::advice::WRITABLE_DIRECTORY;
use saltcellar_base::connect;
use saltcellar_base::limits::{
    LISTEN_BACKLOG, PEER_TIMEOUT, SOCKET_IN_USE_TIMEOUT, SOCKET_LEFT_POLL, SOCKET_LEFT_TIMEOUT,
};
use saltcellar_base::users::group_id;

/// Why a socket cannot be opened. Each message contains the remedy; `key` is the configuration key to change.
#[expect(missing_docs, reason = "the messages say what the fields are")]
#[derive(Debug, thiserror::Error)]
pub enum SocketError {
    /// Another process listens on it.
    #[error("another daemon listens on {}: stop it first, or set a different {key}", path.display())]
    InUse { path: PathBuf, key: &'static str },
    /// The path is a file of another kind, which is kept.
    #[error("{} exists and is not a socket: move it away, or set a different {key}", path.display())]
    NotASocket { path: PathBuf, key: &'static str },
    /// The operating system rejected a step.
    #[error("{action} {}: {why}{}", path.display(), remedy(why))]
    Io {
        action: &'static str,
        path: PathBuf,
        why: io::Error,
    },
    /// Another user could replace the socket.
    #[error("{0}")]
    Unsafe(DirectoryProblem),
    /// Only root with CAP_CHOWN, or a member of the group, may give it a file.
    #[error(
        "{key}: this process may not give the socket to the group `{name}`: under systemd, set Group={name} in the unit"
    )]
    GroupDenied { name: String, key: &'static str },
    /// The group of the socket is unknown.
    #[error(
        "{key}: there is no group `{name}` on this host: create it with `groupadd {name}`, or change {key}"
    )]
    NoGroup { name: String, key: &'static str },
}

fn remedy(why: &io::Error) -> String {
    let remedy = match why.kind() {
        io::ErrorKind::PermissionDenied => {
            "the daemon's user must own the directory and the socket (`chown`)"
        }
        io::ErrorKind::ReadOnlyFilesystem => WRITABLE_DIRECTORY,
        _ => return String::new(),
    };
    format!("; {remedy}")
}

/// A bound and listening socket, whose file is removed on drop unless the service manager keeps the socket open.
pub struct Listener {
    socket: UnixListener,
    path: PathBuf,
    /// Device and inode of the socket's file; `None` if the service manager keeps the socket open.
    own_file: Option<(u64, u64)>,
    /// Connections that were accepted before [`Listener::serve`], which serves them first.
    waiting: VecDeque<UnixStream>,
}

/// What the service manager passed: the socket that clients reach, and the connections that waited
/// at any passed socket.
#[derive(Debug, Default)]
pub struct Passed {
    live: Option<std_net::UnixListener>,
    waiting: Vec<std_net::UnixStream>,
}

impl Passed {
    /// Whether a passed socket is in use.
    pub fn is_live(&self) -> bool {
        self.live.is_some()
    }

    /// Keeps `socket` if connections to `path` reach it. Otherwise it is closed: its file was removed or replaced, and no client could
    /// connect to it again. Connections that wait at it are kept in both cases.
    pub fn offer(&mut self, socket: std_net::UnixListener, path: &Path) -> io::Result<bool> {
        socket.set_nonblocking(true)?;
        let is_reached = is_reached(&socket, path, &mut self.waiting)?;
        if is_reached {
            self.live = Some(socket);
        }
        Ok(is_reached)
    }
}

/// Whether connections to `path` arrive at `listener`, proved by one. Moves the connections that wait there into `waiting`.
fn is_reached(
    listener: &std_net::UnixListener,
    path: &Path,
    waiting: &mut Vec<std_net::UnixStream>,
) -> io::Result<bool> {
    let probe = rustix::net::socket_with(
        AddressFamily::UNIX,
        SocketType::STREAM,
        SocketFlags::CLOEXEC | SocketFlags::NONBLOCK,
        None,
    )?;
    // The kernel chooses a unique abstract name, by which the other end is recognised.
    rustix::net::bind(&probe, &SocketAddrUnix::new_unnamed())?;
    let probe = std_net::UnixStream::from(probe);
    let own = probe.local_addr()?;
    let target = SocketAddrUnix::new(path)?;

    let before = waiting.len();
    let mut is_waiting_for_room = true;
    loop {
        if is_waiting_for_room {
            match rustix::net::connect(&probe, &target) {
                Ok(()) => is_waiting_for_room = false,
                // The queue at the path is full. If it is the queue of `listener`, accepting makes
                // room.
                Err(Errno::AGAIN) => {}
                // Nothing listens there, or nothing is there. What waited before is accepted all the same.
                Err(Errno::CONNREFUSED | Errno::NOENT | Errno::NOTDIR) => {
                    is_waiting_for_room = false;
                }
                Err(error) => return Err(error.into()),
            }
        }

        match listener.accept() {
            Ok((_, peer)) if peer.as_abstract_name() == own.as_abstract_name() => return Ok(true),
            Ok((stream, _)) => waiting.push(stream),
            // Its queue is empty, so the probe is in another queue, or in none.
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
            Err(error) => return Err(error),
        }

        // More connections than its queue held at the start: clients reach it now, faster than the probe.
        if waiting.len() - before > 2 * LISTEN_BACKLOG as usize {
            return Ok(true);
        }
    }
}

/// Path, permissions and group of a socket, and their configuration keys.
#[derive(Debug, Clone, Copy)]
pub struct ListenerSpec<'a> {
    /// The file of the socket.
    pub path: &'a Path,
    /// The permissions of the file.
    pub mode: u32,
    /// Its group; none keeps the daemon's own.
    pub group: Option<&'a str>,
    /// The configuration key of the path.
    pub key: &'static str,
    /// The configuration key of the group.
    pub group_key: &'static str,
}

impl Drop for Listener {
    fn drop(&mut self) {
        let found = fs::symlink_metadata(&self.path).map(|found| (found.dev(), found.ino()));
        // Not the file of another daemon, which may have replaced this daemon's file.
        if self.own_file.is_some() && found.ok() == self.own_file {
            let _ = fs::remove_file(&self.path);
        }
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// What is at the path of a socket.
enum Found {
    Nothing,
    /// A socket at which nothing listens, left by a stopped or killed daemon.
    Stale,
    /// A process listens at it, perhaps one that hangs.
    Live,
}

impl Found {
    fn at(path: &Path, key: &'static str) -> Result<Self, SocketError> {
        match fs::symlink_metadata(path) {
            Err(why) if why.kind() == io::ErrorKind::NotFound => return Ok(Self::Nothing),
            found => {
                if !found.map_err(io("inspect", path))?.file_type().is_socket() {
                    return Err(SocketError::NotASocket {
                        path: path.to_owned(),
                        key,
                    });
                }
            }
        }

        match connect::unix(path, SOCKET_IN_USE_TIMEOUT) {
            Ok(_) => Ok(Self::Live),
            Err(why) => match why.kind() {
                io::ErrorKind::TimedOut => Ok(Self::Live),
                // The second means another user's socket, for example after a change of `User=` in
                // the unit. Only the owner of the directory can remove it.
                io::ErrorKind::ConnectionRefused | io::ErrorKind::PermissionDenied => {
                    Ok(Self::Stale)
                }
                // Removed meanwhile.
                io::ErrorKind::NotFound => Ok(Self::Nothing),
                // Not stale, for example a socket of another type, such as syslog's.
                _ => Err(io("connect to the socket that exists at", path)(why)),
            },
        }
    }
}

/// Binds the path of a socket. Replaces a stale one; a live one may take up to `timeout` to go away.
///
/// After the last daemon's end, systemd keeps its socket open for a moment: since version 254, a
/// process of systemd's own closes what its store of file descriptors had. A daemon that starts at
/// that moment is not passed the socket, but it can connect to it. The same is true of a process that
/// a killed daemon was about to start.
fn bind(path: &Path, key: &'static str, timeout: Duration) -> Result<UnixListener, SocketError> {
    let deadline = Instant::now() + timeout;

    loop {
        match Found::at(path, key)? {
            Found::Nothing => {}
            Found::Stale => match fs::remove_file(path) {
                // Removed meanwhile.
                Err(why) if why.kind() == io::ErrorKind::NotFound => {}
                removed => removed.map_err(io("remove the stale socket", path))?,
            },
            Found::Live if Instant::now() < deadline => {
                thread::sleep(SOCKET_LEFT_POLL);
                continue;
            }
            Found::Live => {
                return Err(SocketError::InUse {
                    path: path.to_owned(),
                    key,
                });
            }
        }

        match bind_closed(path) {
            // Another process was faster. It is judged as any other that is found.
            Err(why) if why.kind() == io::ErrorKind::AddrInUse && Instant::now() < deadline => {}
            bound => return bound.map_err(io("bind", path)),
        }
    }
}

impl Listener {
    /// Binds the socket, and creates its directory if needed. Requires a tokio runtime.
    pub fn open(spec: &ListenerSpec<'_>) -> Result<Self, SocketError> {
        Self::open_within(spec, SOCKET_LEFT_TIMEOUT)
    }

    /// As [`Listener::open`]. `timeout` is how long a live socket at the path may take to go away.
    fn open_within(spec: &ListenerSpec<'_>, timeout: Duration) -> Result<Self, SocketError> {
        let ListenerSpec { path, key, .. } = *spec;
        let gid = prepare(spec)?;

        // Closed to all other users until its group is set.
        let socket = bind(path, key, timeout)?;
        set_access(spec, gid)?;

        let found = fs::symlink_metadata(path).map_err(io("inspect", path))?;
        Ok(Self {
            socket,
            path: path.to_owned(),
            own_file: Some((found.dev(), found.ino())),
            waiting: VecDeque::new(),
        })
    }

    /// Uses the passed socket that clients reach; the service manager keeps it open, so its file
    /// stays on drop. Without one, binds a new socket. Connections that waited at any passed socket
    /// are served in both cases. Requires a tokio runtime.
    pub fn open_or_inherit(spec: &ListenerSpec<'_>, passed: Passed) -> Result<Self, SocketError> {
        let Passed { live, waiting } = passed;
        let mut listener = match live {
            Some(socket) => Self::inherit(spec, socket)?,
            None => Self::open(spec)?,
        };

        // None is lost by the change of sockets, and their peers see no error.
        for stream in waiting {
            let stream = stream
                .set_nonblocking(true)
                .and_then(|()| UnixStream::from_std(stream));
            listener
                .waiting
                .push_back(stream.map_err(io("accept connections at", spec.path))?);
        }

        Ok(listener)
    }

    fn inherit(
        spec: &ListenerSpec<'_>,
        passed: std_net::UnixListener,
    ) -> Result<Self, SocketError> {
        // The service manager has made the file, perhaps with other permissions.
        let gid = prepare(spec)?;
        set_access(spec, gid)?;

        let socket = passed
            .set_nonblocking(true)
            .and_then(|()| UnixListener::from_std(passed));

        let socket = socket.map_err(io("accept connections at", spec.path))?;
        Ok(Self {
            socket,
            path: spec.path.to_owned(),
            own_file: None,
            waiting: VecDeque::new(),
        })
    }

    /// Leaves the file on drop, because the service manager keeps the socket open for the next daemon.
    pub fn keep(&mut self) {
        self.own_file = None;
    }

    /// Accepts peers until `stop` turns true and passes each to `handle`, at most `permits_max` at
    /// the same time; further peers go to `reject`. The socket is removed first; returns when all
    /// peers are done, or after [`PEER_TIMEOUT`].
    pub async fn serve<F>(
        mut self,
        permits_max: usize,
        mut stop: watch::Receiver<bool>,
        reject: impl Fn(UnixStream),
        handle: impl Fn(UnixStream) -> F,
    ) where
        F: Future<Output = ()> + Send + 'static,
    {
        let permits = Arc::new(Semaphore::new(permits_max));

        loop {
            // Peers that waited at a passed socket came first.
            let accepted = if let Some(stream) = self.waiting.pop_front() {
                Ok(stream)
            } else {
                tokio::select! {
                    accepted = self.socket.accept() => accepted.map(|(stream, _)| stream),
                    _ = stop.wait_for(|stop| *stop) => break,
                }
            };

            match accepted {
                Ok(stream) => {
                    let Ok(permit) = permits.clone().try_acquire_owned() else {
                        // The peer learns the reason instead of waiting in the queue.
                        reject(stream);
                        continue;
                    };

                    let handled = handle(stream);
                    tokio::spawn(async move {
                        handled.await;
                        drop(permit);
                    });
                }
                Err(error) => {
                    // Most likely out of file descriptors: connections that end release some.
                    tracing::warn!(socket = %self.path.display(), %error, "cannot accept a connection, retrying: if too many files are open, raise LimitNOFILE of the unit");
                    sleep(Duration::from_millis(50)).await;
                }
            }
        }

        // Closes the socket, because no client should wait for a daemon that stops.
        drop(self);
        // All permits are free once every connection has ended.
        let all = u32::try_from(permits_max).unwrap_or(u32::MAX);
        let _ = timeout(PEER_TIMEOUT, permits.acquire_many(all)).await;
    }
}

fn io(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> SocketError + use<> {
    let path = path.to_owned();
    move |why| SocketError::Io { action, path, why }
}

/// Creates the socket's directory if needed and checks it. Returns the id of the socket's group.
fn prepare(spec: &ListenerSpec<'_>) -> Result<Option<u32>, SocketError> {
    let ListenerSpec {
        path,
        mode,
        group,
        group_key,
        ..
    } = *spec;

    let gid = group
        .map(|name| {
            group_id(name).ok_or_else(|| SocketError::NoGroup {
                name: name.to_owned(),
                key: group_key,
            })
        })
        .transpose()?;

    let parent = path.parent().unwrap_or(Path::new("/"));
    // Only a new directory gets mode and group: an existing one is the administrator's.
    if !parent.is_dir() {
        make_dirs(parent, mode).map_err(io("create the directory", parent))?;
        if let Some(gid) = gid {
            set_group(spec, parent, gid)?;
        }
    }

    let uid = rustix::process::geteuid().as_raw();
    let inspecting = || io("inspect the directory", parent);
    let above = parent_problems(parent, "the socket's directory", uid).map_err(inspecting())?;
    let own = directory_problems(parent, uid, mode, gid).map_err(inspecting())?;

    // Only a possible impersonation keeps the daemon from starting.
    for problem in own.into_iter().chain(above) {
        if problem.fatal {
            return Err(SocketError::Unsafe(problem));
        }
        tracing::warn!(%problem, "unsafe permissions of the socket's directory, other users may replace the socket: correct them with chmod or chown");
    }

    Ok(gid)
}

/// Sets mode and group of the socket's file, where they differ.
fn set_access(spec: &ListenerSpec<'_>, gid: Option<u32>) -> Result<(), SocketError> {
    let path = spec.path;
    let found = fs::symlink_metadata(path).map_err(io("inspect", path))?;
    if let Some(gid) = gid.filter(|gid| *gid != found.gid()) {
        set_group(spec, path, gid)?;
    }

    if found.mode() & 0o7777 != spec.mode {
        let mode = fs::Permissions::from_mode(spec.mode);
        fs::set_permissions(path, mode).map_err(io("set the mode of", path))?;
    }
    Ok(())
}

fn set_group(spec: &ListenerSpec<'_>, path: &Path, gid: u32) -> Result<(), SocketError> {
    match (std::os::unix::fs::chown(path, None, Some(gid)), spec.group) {
        (Err(error), Some(name)) if error.kind() == io::ErrorKind::PermissionDenied => {
            Err(SocketError::GroupDenied {
                name: name.to_owned(),
                key: spec.group_key,
            })
        }
        (changed, _) => changed.map_err(io("change the group of", path)),
    }
}

/// Binds and listens with mode 0600. Linux takes the mode from the unbound socket, so access depends neither on the umask, which
/// is shared by all threads, nor on the time between two calls.
fn bind_closed(path: &Path) -> io::Result<UnixListener> {
    let socket = UnixSocket::new_stream()?;
    rustix::fs::fchmod(&socket, rustix::fs::Mode::from_raw_mode(0o600))?;
    socket.bind(path)?;
    socket.listen(LISTEN_BACKLOG)
}

/// Creates a directory and its parents: mode 0750 if the socket's mode admits a group or other
/// users, otherwise 0700. The umask is ignored, because it is meant for the store's files.
fn make_dirs(dir: &Path, socket_mode: u32) -> io::Result<()> {
    if let Some(parent) = dir
        .parent()
        .filter(|parent| !parent.as_os_str().is_empty() && !parent.is_dir())
    {
        make_dirs(parent, socket_mode)?;
    }

    let mode = if socket_mode & 0o066 == 0 {
        0o700
    } else {
        0o750
    };

    // Closed until its mode is set, because the umask applies to the creation.
    match fs::DirBuilder::new().mode(0o700).create(dir) {
        // Another process may create it at the same time.
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists && dir.is_dir() => Ok(()),
        made => made.and_then(|()| fs::set_permissions(dir, fs::Permissions::from_mode(mode))),
    }
}

/// An insecure property of a directory of a socket, with the remedy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DirectoryProblem {
    /// Whether another user could impersonate the daemon.
    pub fatal: bool,
    message: String,
}

impl std::fmt::Display for DirectoryProblem {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.message)
    }
}

/// The problems of a directory with a socket of the given user, mode and group.
pub fn directory_problems(
    dir: &Path,
    uid: u32,
    mode: u32,
    gid: Option<u32>,
) -> io::Result<Vec<DirectoryProblem>> {
    let found = fs::metadata(dir)?;
    Ok(check_directory(
        &dir.display().to_string(),
        &Directory::of(&found),
        uid,
        mode,
        gid,
    ))
}

/// The problems of the parents of `dir`, which messages call `what`: a user with write access to a parent can replace
/// the directory.
pub fn parent_problems(dir: &Path, what: &str, uid: u32) -> io::Result<Vec<DirectoryProblem>> {
    // The parents of the given path and of the real one: a link can be replaced as well as a directory.
    let named = std::path::absolute(dir)?;
    let real = dir.canonicalize()?;
    let mut seen = Vec::new();
    let mut problems = Vec::new();

    for parent in named.ancestors().skip(1).chain(real.ancestors().skip(1)) {
        let found = fs::metadata(parent)?;
        let id = (found.dev(), found.ino());

        // Both paths share most of their parents.
        if !seen.contains(&id) {
            seen.push(id);
            let names = (
                parent.display().to_string(),
                format!("{what} {}", dir.display()),
            );
            problems.extend(check_parent(
                (&names.0, &names.1),
                &Directory::of(&found),
                uid,
            ));
        }
    }

    Ok(problems)
}

fn check_parent((name, of): (&str, &str), dir: &Directory, uid: u32) -> Vec<DirectoryProblem> {
    let &Directory {
        uid: owner,
        gid,
        mode,
    } = dir;

    let mut problems = Vec::new();
    let mut report = |fatal, message| problems.push(DirectoryProblem { fatal, message });
    // A parent of another owner is a warning, where the directory itself would be an error: its
    // owner is one user, whom an administrator chose (a home directory, `/srv/salt`), and in a user
    // namespace, as of a rootless container, `/` and `/run` belong to `nobody` and cannot be changed.
    // In a sticky directory only the owners can rename or remove files.
    let sticky = mode & 0o1000 != 0;

    if owner != 0 && owner != uid {
        report(
            false,
            format!("{name} belongs to uid {owner}, who can replace {of}: `chown root {name}`"),
        );
    }

    if mode & 0o002 != 0 && !sticky {
        report(
            true,
            format!(
                "anyone can write to {name} (mode {mode:04o}) and replace {of}: `chmod o-w {name}`"
            ),
        );
    }

    if mode & 0o020 != 0 && !sticky {
        report(
            false,
            format!(
                "members of group {gid} can write to {name} and replace {of}: `chmod g-w {name}`"
            ),
        );
    }

    problems
}

/// The relevant metadata of a directory.
struct Directory {
    uid: u32,
    gid: u32,
    mode: u32,
}

impl Directory {
    fn of(found: &fs::Metadata) -> Self {
        Self {
            uid: found.uid(),
            gid: found.gid(),
            mode: found.mode() & 0o7777,
        }
    }
}

fn check_directory(
    name: &str,
    dir: &Directory,
    uid: u32,
    socket_mode: u32,
    gid: Option<u32>,
) -> Vec<DirectoryProblem> {
    let &Directory {
        uid: owner,
        gid: own_gid,
        mode,
    } = dir;

    let mut problems = Vec::new();
    let mut report = |fatal, message| problems.push(DirectoryProblem { fatal, message });
    // As for the parents, see above.
    let sticky = mode & 0o1000 != 0;

    if owner != 0 && owner != uid {
        // The owner can replace the socket whatever the mode is.
        report(
            true,
            format!(
                "the socket's directory {name} belongs to uid {owner}, who can replace the socket: \
                `chown root {name}`, or move the socket elsewhere"
            ),
        );
    }

    if mode & 0o002 != 0 && !sticky {
        report(
            true,
            format!(
                "anyone can write to the socket's directory {name} (mode {mode:04o}) and replace the \
                socket: `chmod o-rwx {name}`, or move the socket elsewhere"
            ),
        );
    } else if mode & 0o001 != 0 && socket_mode & 0o006 == 0 {
        // The directory is the second barrier, see the top of this file.
        report(
            false,
            format!(
                "anyone can enter the socket's directory {name} (mode {mode:04o}), so that only the socket's own mode \
                protects it: `chmod o-rwx {name}`"
            ),
        );
    }

    if mode & 0o020 != 0 && !sticky {
        report(
            false,
            format!(
                "members of group {own_gid} can write to the socket's directory {name} and replace the \
                socket: `chmod g-w {name}`"
            ),
        );
    }

    // No risk, but the group could not use its socket.
    if let Some(gid) = gid
        && mode & 0o001 == 0
        && (own_gid != gid || mode & 0o010 == 0)
    {
        report(
            false,
            format!(
                "members of the socket's group {gid} cannot enter its directory {name}: `chgrp {gid} {name}` and \
                 `chmod g+x {name}`"
            ),
        );
    }

    problems
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(
        dir: (u32, u32, u32),
        uid: u32,
        socket_mode: u32,
        gid: Option<u32>,
    ) -> Vec<(bool, &'static str)> {
        let (owner, group, mode) = dir;
        let phrases = [
            "belongs to uid",
            "anyone can write",
            "anyone can enter",
            "members of group",
            "cannot enter",
        ];
        check_directory(
            "/d",
            &Directory {
                uid: owner,
                gid: group,
                mode,
            },
            uid,
            socket_mode,
            gid,
        )
        .iter()
        .map(|found| {
            (
                found.fatal,
                *phrases
                    .iter()
                    .find(|phrase| found.message.contains(**phrase))
                    .unwrap(),
            )
        })
        .collect()
    }

    fn spec(path: &Path) -> ListenerSpec<'_> {
        ListenerSpec {
            path,
            mode: 0o660,
            group: None,
            key: "socket",
            group_key: "socket_group",
        }
    }

    #[tokio::test]
    async fn a_listener_that_goes_away_is_waited_for_and_one_that_stays_is_an_error() {
        let dir = tempfile::tempdir().unwrap();
        let path = &dir.path().join("s.sock");
        let spec = spec(path);

        let left = std_net::UnixListener::bind(path).unwrap();
        let (probed, probes) = crossbeam_channel::bounded(1);
        let opened = thread::scope(|threads| {
            threads.spawn(move || {
                // Closed after the daemon has found it.
                left.accept().unwrap();
                probed.send(()).unwrap();
            });
            Listener::open(&spec).unwrap()
        });
        probes.try_recv().unwrap();

        let soon = Duration::from_millis(50);
        let error = Listener::open_within(&spec, soon).err().unwrap();
        assert!(matches!(error, SocketError::InUse { .. }), "{error}");
        drop(opened);
    }

    #[tokio::test]
    async fn only_a_stale_stream_socket_is_replaced_and_only_the_own_file_removed() {
        let dir = tempfile::tempdir().unwrap();
        let path = &dir.path().join("s.sock");
        let spec = spec(path);

        // A socket of another type is in use, as syslog's is.
        let other = std_net::UnixDatagram::bind(path).unwrap();
        let error = Listener::open(&spec).err().unwrap().to_string();
        assert!(error.contains("s.sock: Protocol wrong type"), "{error}");
        assert!(path.exists());
        drop(other);

        // Its process has ended.
        let first = Listener::open(&spec).unwrap();
        fs::remove_file(path).unwrap();
        let second = Listener::open(&spec).unwrap();
        drop(first);
        assert!(std_net::UnixStream::connect(path).is_ok());
        drop(second);
        assert!(!path.exists());
    }

    #[tokio::test]
    async fn a_passed_socket_gets_the_configured_mode_and_keeps_its_file() {
        let dir = tempfile::tempdir().unwrap();
        let path = &dir.path().join("s.sock");
        let spec = spec(path);
        let socket = std_net::UnixListener::bind(path).unwrap();
        let client = std_net::UnixStream::connect(path).unwrap();
        let mut passed = Passed::default();
        assert!(passed.offer(socket, path).unwrap() && passed.is_live());
        let mut listener = Listener::open_or_inherit(&spec, passed).unwrap();
        assert_eq!(fs::metadata(path).unwrap().mode() & 0o7777, 0o660);
        answer_the_one_that_waited(&mut listener, &client);
        drop(listener);
        assert!(path.exists());
        let mut listener = Listener::open(&spec).unwrap();
        listener.keep();
        drop(listener);
        assert!(path.exists());
        drop(Listener::open(&spec).unwrap());
        assert!(!path.exists());
    }

    fn answer_the_one_that_waited(listener: &mut Listener, client: &std_net::UnixStream) {
        let served = listener.waiting.pop_front().unwrap();
        assert!(listener.waiting.is_empty());
        io::Write::write_all(&mut served.into_std().unwrap(), b"waited").unwrap();
        let mut received = [0; 6];
        io::Read::read_exact(&mut &*client, &mut received).unwrap();
        assert_eq!(&received, b"waited");
    }

    #[tokio::test]
    async fn a_passed_socket_that_no_client_reaches_is_bound_anew_and_loses_no_connection() {
        let dir = tempfile::tempdir().unwrap();
        let path = &dir.path().join("s.sock");
        let spec = spec(path);
        let bind = || std_net::UnixListener::bind(path).unwrap();

        // Its file was removed, and nothing is in its place.
        let removed = bind();
        let client = std_net::UnixStream::connect(path).unwrap();
        fs::remove_file(path).unwrap();
        assert_eq!(
            removed.local_addr().unwrap().as_pathname(),
            Some(path.as_path()),
            "the name proves nothing"
        );
        let mut passed = Passed::default();
        assert!(!passed.offer(removed, path).unwrap() && !passed.is_live());
        let mut listener = Listener::open_or_inherit(&spec, passed).unwrap();
        assert!(std_net::UnixStream::connect(path).is_ok());
        fs::remove_file(path).unwrap();

        // Another socket is in its place, dead or alive.
        for is_alive in [false, true] {
            let replaced = bind();
            fs::remove_file(path).unwrap();
            let other = bind();
            let _other = is_alive.then_some(other);
            let mut passed = Passed::default();
            assert!(!passed.offer(replaced, path).unwrap(), "{is_alive}");
            fs::remove_file(path).unwrap();
        }

        // A full queue is emptied, and all of it served.
        let full = bind();
        rustix::net::listen(&full, 2).unwrap();
        let clients: Vec<_> = (0..3)
            .map(|_| std_net::UnixStream::connect(path).unwrap())
            .collect();
        let mut passed = Passed::default();
        assert!(passed.offer(full, path).unwrap());
        assert_eq!(passed.waiting.len(), clients.len());
        answer_the_one_that_waited(&mut listener, &client);
    }

    #[test]
    fn a_directory_that_only_the_daemon_and_the_group_can_enter_is_accepted() {
        for dir in [(0, 5, 0o750), (0, 5, 0o700), (7, 5, 0o2750)] {
            assert_eq!(check(dir, 7, 0o660, None), [], "{dir:?}");
        }
        assert_eq!(check((0, 5, 0o750), 7, 0o660, Some(5)), []);
        assert_eq!(
            check((0, 5, 0o755), 7, 0o666, None),
            [],
            "a socket open to everyone"
        );
    }

    #[test]
    fn a_parent_that_others_can_write_to_is_reported_unless_it_is_sticky() {
        let check = |uid, gid, mode| {
            let dir = Directory { uid, gid, mode };
            check_parent(("/a", "the state directory /a/b"), &dir, 7)
                .iter()
                .map(|found| {
                    (
                        found.fatal,
                        found
                            .message
                            .split(' ')
                            .next()
                            .unwrap_or_default()
                            .to_owned(),
                    )
                })
                .collect::<Vec<_>>()
        };
        let one = |fatal, word: &str| vec![(fatal, word.to_owned())];
        for dir in [(0, 0, 0o755), (7, 5, 0o755), (0, 0, 0o1777), (0, 5, 0o1775)] {
            assert_eq!(check(dir.0, dir.1, dir.2), [], "{dir:?}");
        }
        assert_eq!(check(8, 0, 0o755), one(false, "/a"));
        assert_eq!(check(0, 0, 0o757), one(true, "anyone"));
        assert_eq!(check(0, 5, 0o775), one(false, "members"));
        assert_eq!(
            check(8, 0, 0o1777),
            one(false, "/a"),
            "the owner of a sticky directory can rename all in it"
        );
    }

    #[test]
    fn all_parents_on_both_ends_of_a_link_are_checked() {
        let dir = tempfile::tempdir().unwrap();
        let (open, closed) = (dir.path().join("open"), dir.path().join("closed"));
        for path in [&open.join("dir"), &closed] {
            fs::create_dir_all(path).unwrap();
        }
        fs::set_permissions(&open, fs::Permissions::from_mode(0o777)).unwrap();
        std::os::unix::fs::symlink(open.join("dir"), closed.join("link")).unwrap();
        std::os::unix::fs::symlink(&closed, open.join("link")).unwrap();
        let uid = rustix::process::geteuid().as_raw();
        let fatal = |path: &Path| {
            parent_problems(path, "it", uid)
                .unwrap()
                .iter()
                .filter(|found| found.fatal)
                .count()
        };
        for (path, count) in [
            ("open/dir", 1),
            ("closed", 0),
            ("closed/link", 1),
            ("open/link", 1),
            ("open", 0),
        ] {
            assert_eq!(fatal(&dir.path().join(path)), count, "{path}");
        }
    }

    #[tokio::test]
    async fn a_new_socket_is_closed_to_others_regardless_of_the_umask() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s");
        let listener = bind_closed(&path).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
        drop(listener);
    }

    #[test]
    fn new_directories_admit_the_same_users_as_the_socket() {
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
    fn a_possible_impersonation_is_fatal_and_other_access_is_reported() {
        assert_eq!(
            check((8, 5, 0o700), 7, 0o660, None),
            [(true, "belongs to uid")]
        );
        assert_eq!(
            check((0, 5, 0o757), 7, 0o660, None),
            [(true, "anyone can write")]
        );
        assert_eq!(
            check((0, 5, 0o1777), 7, 0o660, None),
            [(false, "anyone can enter")]
        );
        assert_eq!(
            check((0, 5, 0o755), 7, 0o660, None),
            [(false, "anyone can enter")]
        );
        assert_eq!(
            check((0, 5, 0o770), 7, 0o660, None),
            [(false, "members of group")]
        );
        assert_eq!(
            check((0, 6, 0o750), 7, 0o660, Some(5)),
            [(false, "cannot enter")]
        );
        assert_eq!(
            check((0, 5, 0o700), 7, 0o660, Some(5)),
            [(false, "cannot enter")]
        );
    }
}
