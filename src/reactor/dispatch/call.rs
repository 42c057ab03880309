//! The result of a low chunk: a call of one of Salt's four clients.

use serde_json::{Value as Json, json};

use crate::reactor::encode::{encode, encode_map};
use crate::sls::{Map, Value};

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
pub enum Call {
    /// `LocalClient.cmd_async`.
    Local(LocalCall),
    /// `RunnerClient.low` or `WheelClient.low`.
    Master(MasterCall),
    /// `Caller.cmd`.
    Caller(CallerCall),
}

/// A job for minions.
#[derive(Debug, Clone, PartialEq)]
pub struct LocalCall {
    /// The target.
    pub tgt: Value,
    /// The execution function.
    pub fun: Value,
    /// The other keys of the chunk, as passed to Salt's client.
    pub kwargs: Map,
    /// The payload for the master's request port, without the key; `None` after an error, which is in the notes.
    pub publish: Option<Map>,
    /// The timeout of the master's answer: seconds, as configured.
    pub timeout: Value,
}

/// A function that the master runs.
#[derive(Debug, Clone, PartialEq)]
pub struct MasterCall {
    /// [`Client::Runner`] or [`Client::Wheel`].
    pub client: Client,
    /// The function: `state.orchestrate`.
    pub fun: Value,
    /// Its positional arguments.
    pub args: Vec<Value>,
    /// Its keyword arguments.
    pub kwargs: Value,
    /// The complete low data, including `arg` and `kwarg`.
    pub low: Map,
}

/// A function that runs on this machine.
#[derive(Debug, Clone, PartialEq)]
pub struct CallerCall {
    /// The ID of the reaction.
    pub id: Value,
    /// The file of the reaction.
    pub sls: Value,
    /// The execution function.
    pub fun: Value,
    /// Its positional arguments.
    pub args: Vec<Value>,
    /// Its keyword arguments.
    pub kwargs: Map,
}

impl Call {
    /// The client.
    pub fn client(&self) -> Client {
        match self {
            Call::Local(_) => Client::Local,
            Call::Master(call) => call.client,
            Call::Caller(_) => Client::Caller,
        }
    }

    /// The function's name.
    pub fn fun(&self) -> &Value {
        match self {
            Call::Local(call) => &call.fun,
            Call::Master(call) => &call.fun,
            Call::Caller(call) => &call.fun,
        }
    }

    /// The reaction's ID in its file.
    pub fn id(&self) -> Option<&Value> {
        match self {
            Call::Local(call) => call.kwargs.get("__id__"),
            Call::Master(call) => call.low.get("__id__"),
            Call::Caller(call) => Some(&call.id),
        }
    }

    /// The reaction's file, as Salt shows it.
    pub fn sls(&self) -> Option<&Value> {
        match self {
            Call::Local(call) => call.kwargs.get("__sls__"),
            Call::Master(call) => call.low.get("__sls__"),
            Call::Caller(call) => Some(&call.sls),
        }
    }

    /// The form in conformance cases.
    pub fn to_json(&self) -> Json {
        match self {
            Call::Local(call) => {
                let mut json = json!({
                    "client": "local",
                    "tgt": encode(&call.tgt),
                    "fun": encode(&call.fun),
                    "kwargs": encode_map(&call.kwargs),
                });
                if let (Some(publish), Some(object)) = (&call.publish, json.as_object_mut()) {
                    let mut publish = encode_map(publish);
                    if let Some(publish) = publish.as_object_mut() {
                        publish.insert("__publish_timeout".to_owned(), encode(&call.timeout));
                    }
                    object.insert("publish".to_owned(), publish);
                }
                json
            }
            Call::Master(call) => json!({
                "client": call.client.name(),
                "fun": encode(&call.fun),
                "invoke": {"args": call.args.iter().map(encode).collect::<Vec<_>>(), "kwargs": encode(&call.kwargs)},
                "low": encode_map(&call.low),
            }),
            Call::Caller(call) => json!({
                "client": "caller",
                "fun": encode(&call.fun),
                "args": call.args.iter().map(encode).collect::<Vec<_>>(),
                "kwargs": encode_map(&call.kwargs),
            }),
        }
    }
}
