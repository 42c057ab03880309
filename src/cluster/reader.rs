//! Reads the stream in its order, from a message on.
//!
//! The server keeps nothing of a reader but its position, which no message acknowledges: the place is in the store's settings.

use async_nats::jetstream::consumer::{AckPolicy, DeliverPolicy, pull};
use async_nats::jetstream::message::Message;
use futures_util::StreamExt as _;

use super::Cluster;
use crate::base::limits::{CLUSTER_AWAY, CLUSTER_BEAT, CLUSTER_MESSAGES_AHEAD};
use crate::client::nats::Connection;

/// The messages from one on.
pub(crate) struct Reader {
    messages: pull::Stream,
    /// The number of the last message, among those for this reader.
    read: u64,
}

impl Cluster {
    /// Reads from this message of the stream on.
    pub(crate) async fn reader(
        &self,
        connection: &Connection,
        from: u64,
    ) -> Result<Reader, String> {
        let failed = |error: &dyn std::fmt::Display| format!("cannot read the stream: {error}");
        let stream = self.subjects.stream();
        let stream = connection.context.get_stream_no_info(stream).await;
        let stream = stream.map_err(|error| failed(&error))?;

        // An earlier consumer of this name stands at another position. Mostly there is none.
        let name = self.subjects.consumer(&self.name);
        let _ = stream.delete_consumer(&name).await;
        let consumer = stream
            .create_consumer(pull::Config {
                name: Some(name),
                deliver_policy: DeliverPolicy::ByStartSequence {
                    start_sequence: from,
                },
                // The place is saved here together with the entries, so the server need not know
                // it.
                ack_policy: AckPolicy::None,
                // The consumer of a daemon that never returns is removed by the server.
                inactive_threshold: 6 * CLUSTER_AWAY,
                // It is recreated after any failure, therefore one server keeps it in memory.
                num_replicas: 1,
                memory_storage: true,
                ..pull::Config::default()
            })
            .await
            .map_err(|error| failed(&error))?;

        // Without heartbeats of the server a dead connection would look like a quiet stream.
        let messages = consumer
            .stream()
            .max_messages_per_batch(CLUSTER_MESSAGES_AHEAD)
            .heartbeat(CLUSTER_BEAT)
            .expires(2 * CLUSTER_AWAY)
            .messages()
            .await
            .map_err(|error| failed(&error))?;
        Ok(Reader { messages, read: 0 })
    }
}

impl Reader {
    /// The next message. Nothing is dropped if the future is.
    pub(crate) async fn next(&mut self) -> Result<(u64, Message), String> {
        let Some(message) = self.messages.next().await else {
            return Err("the server has ended the reading of the stream".to_owned());
        };
        let message = message.map_err(|error| format!("cannot read the stream: {error}"))?;

        let info = message.info().map_err(|error| error.to_string())?;
        let (number, among) = (info.stream_sequence, info.consumer_sequence);
        // What was on its way when a connection ended is not resent.
        if among != self.read + 1 {
            return Err(format!(
                "messages before message {number} of the stream were lost in transit, rereading them"
            ));
        }
        self.read = among;
        Ok((number, message))
    }
}
