//! What systemd is told: ready, alive, stopping. Without systemd nothing is.

use std::time::Duration;

use sd_notify::NotifyState;

use crate::config::Config;

/// The daemon takes calls from now on.
pub(super) fn ready(config: &Config) {
    let status =
        format!("Listening at {}, reading {} event bus(es)", config.socket.display(), config.bus.len());
    tell(&[NotifyState::Ready, NotifyState::Status(&status)]);
}

/// The daemon stores what has arrived, and ends.
pub(super) fn stopping() {
    tell(&[NotifyState::Stopping]);
}

/// Says in time that the daemon is alive, for as long as the runtime that runs this is and `seen_s_ago`, the seconds
/// since the appender came round, stays below systemd's patience. Never ends.
pub(super) async fn feed(seen_s_ago: impl Fn() -> u64) {
    let Some(patience) = sd_notify::watchdog_enabled() else {
        return std::future::pending().await;
    };
    let mut beat = tokio::time::interval(patience.max(Duration::from_millis(20)) / 3);
    loop {
        beat.tick().await;
        // The appender comes round every second at the latest.
        let stuck = seen_s_ago();
        if stuck > patience.as_secs().max(2) {
            tracing::error!(
                stuck_s = stuck,
                "the appender is stuck, most likely in a disk; the watchdog is not fed"
            );
        } else {
            tell(&[NotifyState::Watchdog]);
        }
    }
}

fn tell(words: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(words) {
        tracing::warn!(%error, "could not tell systemd");
    }
}
