//! A master's connection to the servers of NATS.
//!
//! Responses arrive at subjects that no other master's user may subscribe to, see [`super::subject`].

use super::Cluster;
use crate::client::nats::Connection;
use crate::client::secret::Revealed;

impl Cluster {
    /// Connects as this master. `part` says which part of the daemon it is, in the server's list of connections.
    pub(crate) async fn connect(
        &self,
        part: &str,
        revealed: &Revealed,
    ) -> Result<Connection, String> {
        let name = format!("saltcellar {part} {}", self.name.as_str());
        let inbox = self.subjects.inbox_prefix(&self.name);
        Connection::open(&self.nats, &name, Some(&inbox), revealed).await
    }
}
