//! Notifications to systemd: ready, alive, stopping. No-ops without systemd.

use std::time::Duration;

use sd_notify::NotifyState;

use crate::config::Config;

/// Reports that the daemon accepts calls.
pub(super) fn ready(config: &Config) {
    let status =
        format!("Listening at {}, reading {} event bus(es)", config.socket.display(), config.bus.len());
    notify(&[NotifyState::Ready, NotifyState::Status(&status)]);
}

/// Reports that the daemon is shutting down.
pub(super) fn stopping() {
    notify(&[NotifyState::Stopping]);
}

/// Feeds the watchdog while this runtime runs and `seen_s_ago`, the seconds since the appender's last iteration,
/// is below systemd's timeout. Never returns.
pub(super) async fn feed(seen_s_ago: impl Fn() -> u64) {
    let Some(timeout) = sd_notify::watchdog_enabled() else {
        return std::future::pending().await;
    };
    let mut beat = tokio::time::interval(timeout.max(Duration::from_millis(20)) / 3);
    loop {
        beat.tick().await;
        // The appender iterates at least once a second.
        let stuck = seen_s_ago();
        if stuck > timeout.as_secs().max(2) {
            tracing::error!(
                stuck_s = stuck,
                "appender is stuck, probably in disk I/O; not feeding the watchdog"
            );
        } else {
            notify(&[NotifyState::Watchdog]);
        }
    }
}

fn notify(states: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(states) {
        tracing::warn!(%error, "cannot notify systemd");
    }
}
