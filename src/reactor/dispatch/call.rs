//! The result of a low chunk: a call of one of Salt's four clients.

use serde_json::{Value as Json, json};

use crate::reactor::helper::encode::{encode, encode_map};
use crate::wire::python::{Map, Value};

/// One of Salt's clients.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Client {
    /// Publishes a job to minions.
    Local,
    /// Runs a runner on the master.
    Runner,
    /// Runs a wheel function on the master.
    Wheel,
    /// Runs an execution module here.
    Caller,
}

impl Client {
    /// The name in low chunks.
    pub fn name(self) -> &'static str {
        match self {
            Client::Local => "local",
            Client::Runner => "runner",
            Client::Wheel => "wheel",
            Client::Caller => "caller",
        }
    }

    /// The client in a chunk's `state`; `cmd` is the old name of `local`.
    pub fn named(state: &Value) -> Option<Self> {
        Some(match state.as_str()? {
            "local" | "cmd" => Client::Local,
            "runner" => Client::Runner,
            "wheel" => Client::Wheel,
            "caller" => Client::Caller,
            _ => return None,
        })
    }
}

/// A call of one of Salt's clients.
#[derive(Debug, Clone, PartialEq)]
pub struct Call {
    /// The client.
    pub client: Client,
    /// The function: `state.orchestrate`.
    pub fun: Value,
    /// The target of a job; else null.
    pub tgt: Value,
    /// Positional arguments; empty for a job.
    pub args: Vec<Value>,
    /// Keyword arguments, a mapping if the chunk is right; null for a job.
    pub kwargs: Value,
    /// The other keys of the chunk, as passed to Salt's client.
    pub chunk: Map,
    /// A job's payload for the master's request port, without the key; `None` after an error, which is in the notes.
    pub publish: Option<Map>,
    /// The timeout of the master's answer to a job: seconds, as configured.
    pub timeout: Value,
}

impl Call {
    /// The form in conformance cases.
    pub fn to_json(&self) -> Json {
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
            Client::Caller => json!({"client": client, "fun": fun, "args": args(), "kwargs": kwargs}),
        };
        if let (Some(publish), Some(json)) = (&self.publish, json.as_object_mut()) {
            let mut publish = publish.clone();
            publish.insert("__publish_timeout".into(), self.timeout.clone());
            json.insert("publish".to_owned(), encode_map(&publish));
        }
        json
    }
}
