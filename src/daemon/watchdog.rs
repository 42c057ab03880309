//! Notifications to systemd: ready, reloading, alive, stopping, and the local socket, which systemd
//! keeps open while the daemon restarts (docs/decisions/systemd-unit.md). No-ops without systemd.

use std::os::fd::AsFd as _;
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::time::Duration;

use sd_notify::NotifyState;

use crate::config::Config;
use crate::wire::unix_listener::{Listener, Passed};

/// The socket's name in systemd's store of file descriptors.
const STORED_NAME: &str = "socket";
const STORED_AS: NotifyState<'static> = NotifyState::FdName(STORED_NAME);

/// Reports that the daemon accepts calls.
pub(super) fn ready(config: &Config) {
    let status = format!(
        "Listening at {}, reading {} event bus(es)",
        config.socket.display(),
        config.bus.len()
    );
    notify(&[NotifyState::Ready, NotifyState::Status(&status)]);
}

/// Reports that the configuration is being reread; [`ready`] ends this.
pub(super) fn reloading() {
    match NotifyState::monotonic_usec_now() {
        Ok(now) => notify(&[
            NotifyState::Reloading,
            now,
            NotifyState::Status("Reloading the configuration"),
        ]),
        Err(error) => {
            tracing::warn!(%error, "cannot read the monotonic clock, systemd is not told about the reload");
        }
    }
}

/// The listening socket at `path` that systemd passed, if clients reach it: the previous daemon's,
/// or a socket unit's.
///
/// Changes environment variables, so it must run before any thread reads them.
pub(super) fn inherited(path: &Path) -> Passed {
    let names = std::env::var("LISTEN_FDNAMES").unwrap_or_default();
    let mut names = names.split(':');

    let mut sockets = listenfd::ListenFd::from_env();
    let mut passed = Passed::default();

    for n in 0..sockets.len() {
        // One name for each descriptor, in the same order (sd_listen_fds_with_names(3)).
        let name = names.next().unwrap_or_default();

        let socket = match sockets.take_unix_listener(n) {
            Ok(Some(socket)) => socket,
            Ok(None) => continue,
            Err(error) => {
                tracing::warn!(%error, "systemd passed a file descriptor that is not a listening unix socket, ignored: correct the .socket unit");
                continue;
            }
        };

        match accepts(&mut passed, socket, path) {
            Ok(()) => {}
            // The daemon binds the socket again, and gives the new one to systemd.
            Err(problem) if name == STORED_NAME => {
                tracing::warn!(socket = %path.display(), %problem, "socket kept by systemd not used, rebinding it");
                notify(&[NotifyState::FdStoreRemove, STORED_AS]);
            }
            Err(problem) => tracing::warn!(
                unit = name, socket = %path.display(), %problem,
                "socket of a systemd unit not used: stop saltcellar.service, then restart or disable the socket unit"
            ),
        }
    }

    passed
}

/// Takes a passed socket, or returns the reason why it cannot be used.
fn accepts(passed: &mut Passed, socket: UnixListener, path: &Path) -> Result<(), String> {
    if passed.is_live() {
        return Err("another one is in use".to_owned());
    }

    let bound = socket
        .local_addr()
        .ok()
        .and_then(|address| address.as_pathname().map(Path::to_owned));
    if bound.as_deref() != Some(path) {
        return Err(format!(
            "it listens at {}, which is not `socket`",
            bound.unwrap_or_default().display()
        ));
    }

    // A bound socket keeps its name after its file is removed, so only a connection proves that
    // clients reach it.
    match passed.offer(socket, path) {
        Ok(true) => Ok(()),
        Ok(false) => Err("its file was removed or replaced, so no client reaches it".to_owned()),
        Err(error) => Err(format!("cannot connect to it: {error}")),
    }
}

/// Hands a copy of the socket to systemd, which passes it to the next daemon: connections wait
/// while the daemon restarts.
pub(super) fn store_socket(listener: &mut Listener) {
    // Not started by systemd.
    if std::env::var_os("NOTIFY_SOCKET").is_none() {
        return;
    }

    match sd_notify::notify_with_fds(&[NotifyState::FdStore, STORED_AS], &[listener.as_fd()]) {
        Ok(()) => listener.keep(),
        Err(error) => {
            tracing::warn!(%error, "cannot hand the socket to systemd, connections fail during a restart: run the daemon with the packaged unit");
        }
    }
}

/// Reports that the daemon is shutting down.
pub(super) fn stopping() {
    notify(&[NotifyState::Stopping]);
}

/// Feeds the watchdog while this runtime runs and `seen_s_ago`, the seconds since the appender's
/// last iteration, is below systemd's timeout. Never returns.
pub(super) async fn feed(seen_s_ago: impl Fn() -> u64) {
    let Some(timeout) = sd_notify::watchdog_enabled() else {
        return std::future::pending().await;
    };

    // A third of the timeout leaves room for a late beat; the minimum prevents a busy loop.
    let mut beat = tokio::time::interval(timeout.max(Duration::from_millis(20)) / 3);
    loop {
        beat.tick().await;
        // The appender iterates at least once a second, so less than two seconds prove nothing.
        let stuck = seen_s_ago();
        if stuck > timeout.as_secs().max(2) {
            tracing::error!(
                stuck_s = stuck,
                "appender stuck, probably in disk I/O; not feeding the watchdog, systemd restarts the daemon: look for disk errors in `dmesg`"
            );
        } else {
            notify(&[NotifyState::Watchdog]);
        }
    }
}

fn notify(states: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(states) {
        tracing::warn!(%error, "cannot notify systemd, which may restart the daemon: is NOTIFY_SOCKET accessible?");
    }
}
