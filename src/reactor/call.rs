//! The result of a low chunk: a call of one of Salt's four clients.

use salt_sls::{Map, Value};
use serde_json::{Value as Json, json};

use crate::reactor::encode::{encode, encode_map};
use crate::reactor::master::Client;

#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Call {
    pub(crate) client: Client,
    /// The function: `state.orchestrate`.
    pub(crate) fun: Value,
    /// The target of a job; else null.
    pub(crate) tgt: Value,
    /// Positional arguments; empty for a job.
    pub(crate) args: Vec<Value>,
    /// Keyword arguments, a mapping if the chunk is right; null for a job.
    pub(crate) kwargs: Value,
    /// The other keys of the chunk, as passed to Salt's client.
    pub(crate) chunk: Map,
    /// A job's payload for the master's request port, without the key; `None` after an error, which
    /// is in the notes.
    pub(crate) publish: Option<Map>,
    /// The timeout of the master's response to a job: seconds, as configured.
    pub(crate) timeout: Value,
}

impl Call {
    /// The form in conformance cases.
    pub(crate) fn to_json(&self) -> Json {
        let (client, fun) = (self.client.name(), encode(&self.fun));
        let args = || self.args.iter().map(encode).collect::<Vec<_>>();
        let (chunk, kwargs) = (encode_map(&self.chunk), encode(&self.kwargs));

        let mut json = match self.client {
            Client::Local => {
                json!({"client": client, "tgt": encode(&self.tgt), "fun": fun, "kwargs": chunk})
            }
            Client::Runner | Client::Wheel => json!({
                "client": client, "fun": fun, "invoke": {"args": args(), "kwargs": kwargs}, "low": chunk,
            }),
            Client::Caller => {
                json!({"client": client, "fun": fun, "args": args(), "kwargs": kwargs})
            }
        };

        if let (Some(publish), Some(json)) = (&self.publish, json.as_object_mut()) {
            let mut publish = publish.clone();
            publish.insert("__publish_timeout".into(), self.timeout.clone());
            json.insert("publish".to_owned(), encode_map(&publish));
        }

        json
    }
}
