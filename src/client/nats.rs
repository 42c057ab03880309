//! Connections to NATS JetStream.
//!
//! # Invariant
//!
//! A connection is open, or the attempt fails, within the timeout of the settings, however many servers there are.

use std::sync::Arc;
use std::time::Duration;

use async_nats::jetstream::context::Context;
use async_nats::{ConnectOptions, Event, ServerAddr, ServerError};
use parking_lot::Mutex;

use super::secret::Revealed;
use super::tls;
use crate::config::Nats;

/// A connection, which the client makes again whenever it ends. It needs the runtime that it was opened on.
pub(crate) struct Connection {
    pub(crate) context: Context,
    /// Lock order: no other lock is taken under it.
    reported: Arc<Mutex<Option<String>>>,
}

impl Connection {
    /// Connects to any of the servers.
    ///
    /// `name` is shown in lists of connections of the servers. Responses arrive at subjects below `inbox`, or below NATS's own `_INBOX`. A server lets a
    /// user without the right to one subscribe to it in vain: the requests then end late, and [`Connection::last_error`] returns the reason.
    pub(crate) async fn open(
        settings: &Nats,
        name: &str,
        inbox: Option<&str>,
        revealed: &Revealed,
    ) -> Result<Self, String> {
        let place = settings.servers.join(",");
        let late = |_| format!("no response within {} s", settings.timeout.as_secs());

        let connect = Self::connect(settings, name, inbox, revealed);
        tokio::time::timeout(settings.timeout, connect)
            .await
            .map_err(late)
            .and_then(|connected| connected)
            .map_err(|error| format!("cannot connect to {place}: {error}"))
    }

    async fn connect(
        settings: &Nats,
        name: &str,
        inbox: Option<&str>,
        revealed: &Revealed,
    ) -> Result<Self, String> {
        // Errors of the server, such as a missing right, arrive apart from the request that they
        // concern.
        let reported = Arc::new(Mutex::new(None));
        let mut options = ConnectOptions::new()
            .name(name)
            .connection_timeout(time_per_server(settings))
            .tls_client_config(tls::client(&settings.tls)?)
            .event_callback({
                let reported = reported.clone();
                move |event| {
                    keep(&reported, event);
                    std::future::ready(())
                }
            });

        // The user may have the right to subscribe below this prefix only, and each response is a
        // message to such a subject.
        if let Some(inbox) = inbox {
            options = options.custom_inbox_prefix(inbox);
        }

        if let (Some(user), Some(password)) = (&settings.user, &settings.password) {
            let password = revealed
                .secret(password)
                .map_err(|error| error.to_string())?;
            options = options.user_and_password(user.clone(), password);
        }
        if let Some(token) = &settings.token {
            options = options.token(revealed.secret(token).map_err(|error| error.to_string())?);
        }

        // The client gets all servers, because it changes over to another when its server ends.
        let servers: Result<Vec<ServerAddr>, _> = settings
            .servers
            .iter()
            .map(|server| server.parse())
            .collect();
        let servers = servers.map_err(|error| error.to_string())?;

        let client = options
            .connect(servers)
            .await
            .map_err(|error| error.to_string())?;
        // Requests would otherwise have the library's timeout instead of the timeout of the
        // settings.
        let mut context = async_nats::jetstream::new(client);
        context.set_timeout(settings.timeout);

        Ok(Self { context, reported })
    }

    /// What the server last reported, such as a right that the user lacks, once. A request that it concerns ends late, without a reason.
    pub(crate) fn last_error(&self) -> Option<String> {
        self.reported.lock().take()
    }
}

/// A silent server must leave time for the others.
fn time_per_server(settings: &Nats) -> Duration {
    let servers = u32::try_from(settings.servers.len()).unwrap_or(u32::MAX);
    let share = settings.timeout / servers.max(1);
    share.max(Duration::from_secs(1))
}

fn keep(reported: &Mutex<Option<String>>, event: Event) {
    let text = match event {
        Event::ServerError(ServerError::Other(text)) => text,
        Event::ServerError(error) => error.to_string(),
        Event::ClientError(error) => error.to_string(),
        _ => return,
    };
    *reported.lock() = Some(text);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{read_options, read_yaml};

    #[test]
    fn every_server_has_its_share_of_the_timeout() {
        for (servers, timeout, share) in [("a", 10, 10), ("a, b, c, d, e", 10, 2), ("a, b", 1, 1)] {
            let text = format!("{{servers: [{servers}], timeout: {timeout}s}}");
            let settings: Nats = read_options(&read_yaml(&text).unwrap()).unwrap();
            assert_eq!(time_per_server(&settings).as_secs(), share, "{text}");
        }
    }
}
