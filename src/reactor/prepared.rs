//! A low chunk as Salt's reactor passes it to one of its clients, and the call that follows from it.

use salt_sls::json_form::{encode, encode_map};
use salt_sls::{Map, Value};
use serde_json::{Value as Json, json};

use crate::reactor::master::{Call, Client};

/// A call as Salt's reactor passes it to one of its clients.
///
/// Not a [`Call`], which can be made. Salt also passes on what cannot: a function that is not a
/// string, a job without a load. The recorded cases and `reactor render` show those too, with the
/// chunk and the values of Python, of which a call and its record need only the result.
#[derive(Debug, Clone, PartialEq)]
pub struct Prepared {
    pub(crate) client: Client,
    /// The function: `state.orchestrate`.
    pub(crate) fun: Value,
    /// The target of a job; else null.
    pub(crate) tgt: Value,
    /// The other keys of the chunk.
    pub(crate) chunk: Map,
    /// The load of the call; `None` for a job that cannot be published, for a reason in the notes.
    pub(crate) load: Option<Map>,
    /// The timeout of the master's response to a job: seconds, as configured.
    pub(crate) timeout: Value,
}

impl Prepared {
    /// The call; `None` without a load, or without the name of a function.
    pub(crate) fn into_call(self) -> Option<Call> {
        let text = |name: &str| {
            let text = self.chunk.get(name).and_then(Value::as_str);
            text.unwrap_or_default().to_owned()
        };
        let (id, sls) = (text("__id__"), text("__sls__"));

        Some(Call {
            id,
            sls,
            ..Call::new(self.client, self.fun.as_str()?, self.load?)
        })
    }

    /// The form in conformance cases.
    pub(crate) fn to_json(&self) -> Json {
        let (client, fun) = (self.client.name(), encode(&self.fun));
        let chunk = encode_map(&self.chunk);

        // Inside the load, which depends on the client.
        let of_load = |name: &str| {
            let load = self.load.as_ref()?;
            let both = load.get("kwarg").filter(|_| self.client == Client::Runner);
            both.and_then(Value::as_map).unwrap_or(load).get(name)
        };
        let args = |name: &str| {
            let args = of_load(name).and_then(Value::as_list).unwrap_or_default();
            args.iter().map(encode).collect::<Vec<_>>()
        };
        // As in the chunk: Salt passes one on that is no mapping.
        let kwargs = encode(self.chunk.get("kwarg").unwrap_or(&Value::Null));

        let mut json = match self.client {
            Client::Local => {
                json!({"client": client, "tgt": encode(&self.tgt), "fun": fun, "kwargs": chunk})
            }
            Client::Runner | Client::Wheel => json!({
                "client": client, "fun": fun, "invoke": {"args": args("arg"), "kwargs": kwargs}, "low": chunk,
            }),
            Client::Caller => {
                json!({"client": client, "fun": fun, "args": args("args"), "kwargs": kwargs})
            }
        };

        if self.client == Client::Local
            && let (Some(load), Some(json)) = (&self.load, json.as_object_mut())
        {
            // The recorded cases have the timeout among the fields of the payload.
            let mut load = load.clone();
            load.insert("__publish_timeout".into(), self.timeout.clone());
            json.insert("publish".to_owned(), encode_map(&load));
        }

        json
    }
}
