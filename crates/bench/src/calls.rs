//! The daemon's calls as any program makes them: by name, with the arguments and responses of
//! docs/WIRE.md.

use std::collections::{BTreeMap, HashMap};
use std::path::Path;
use std::time::Duration;

use anyhow::Context as _;
use saltcellar::api::client::Client;
use saltcellar::wire::msgpack::{decode, encode};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Value as Json, json};

/// A connection to the daemon under test.
pub(crate) struct Daemon(Client);

impl Daemon {
    /// Connects; each response may take `timeout`.
    pub(crate) fn connect(socket: &Path, timeout: Duration) -> anyhow::Result<Self> {
        let client = Client::connect_within(socket, timeout);
        Ok(Self(client.context("connect to the daemon")?))
    }

    /// Makes a call, and returns its response as msgpack: decoding a large one can take longer than the call.
    pub(crate) fn ask(&mut self, call: &str, args: &Json) -> anyhow::Result<Vec<u8>> {
        let args = encode(args).with_context(|| format!("encode the arguments of {call}"))?;
        let answer = self.0.ask_packed(call, &args);
        answer.with_context(|| format!("ask for {call}"))
    }

    /// Makes a call, and reads its response.
    pub(crate) fn read<T: DeserializeOwned>(
        &mut self,
        call: &str,
        args: &Json,
    ) -> anyhow::Result<T> {
        read(call, &self.ask(call, args)?)
    }

    pub(crate) fn status(&mut self) -> anyhow::Result<Status> {
        self.read("status", &json!({}))
    }
}

/// Reads the response of a call.
pub(crate) fn read<T: DeserializeOwned>(call: &str, answer: &[u8]) -> anyhow::Result<T> {
    decode(answer).with_context(|| format!("read the response of {call}"))
}

/// What is read of `status`.
#[derive(Deserialize)]
pub(crate) struct Status {
    pub(crate) counters: BTreeMap<String, u64>,
    pub(crate) http: Option<Listener>,
    pub(crate) https: Option<Listener>,
}

#[derive(Deserialize)]
pub(crate) struct Listener {
    state: String,
    listen: String,
}

impl Listener {
    /// Its address, if it is open.
    pub(crate) fn open(self) -> Option<String> {
        (self.state == "open").then_some(self.listen)
    }
}

/// What is read of `jobs_list`.
#[derive(Deserialize)]
pub(crate) struct Jobs {
    pub(crate) jobs: Vec<Job>,
}

#[derive(Deserialize)]
pub(crate) struct Job {
    pub(crate) jid: String,
}

/// What is read of `events_list`.
#[derive(Deserialize)]
pub(crate) struct Events {
    pub(crate) events: Vec<Event>,
}

#[derive(Deserialize)]
pub(crate) struct Event {
    pub(crate) minion: Option<String>,
    /// In microseconds since 1970.
    pub(crate) time: i64,
}

/// How many rows a response has: a function of the call's name and its response.
pub(crate) type Rows = fn(&str, &[u8]) -> anyhow::Result<usize>;

pub(crate) fn jobs(call: &str, answer: &[u8]) -> anyhow::Result<usize> {
    Ok(read::<Jobs>(call, answer)?.jobs.len())
}

pub(crate) fn events(call: &str, answer: &[u8]) -> anyhow::Result<usize> {
    Ok(read::<Events>(call, answer)?.events.len())
}

/// The pairs of a map that a call for Salt returns, by jid or minion.
pub(crate) fn pairs(call: &str, answer: &[u8]) -> anyhow::Result<usize> {
    Ok(read::<HashMap<String, Json>>(call, answer)?.len())
}
