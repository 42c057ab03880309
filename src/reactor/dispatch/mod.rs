//! Calls from low chunks, as Salt's reactor passes them to its clients
//! (`salt.utils.reactor.ReactWrap`).
//!
//! # Invariant
//!
//! A chunk yields one call or one ERROR, and does not affect other chunks.

pub(super) mod arguments;
mod nodegroup;

use salt_sls::{Map, Object, Value, with_room};

use self::arguments::{Refusal, cannot, text_of, unpacked};
use super::helper::salt::Salt;
use super::prepared::Prepared;
use super::signature::Signature;
use crate::config::salt_master::SaltMaster;
use crate::model::{Location, Note};
use crate::reactor::master::{self, Client};

const LOGGER: &str = "salt.utils.reactor";
/// Logger of messages that Salt lacks.
pub(super) const OWN_LOGGER: &str = "saltcellar.reactor";

pub(crate) use crate::reactor::master::REACTOR_USER;

#[derive(Debug, Clone)]
pub(crate) struct DispatchSettings {
    user: String,
    nodegroups: Map,
    ext_job_cache: String,
    order_masters: bool,
    timeout: Value,
    publish_timeout: Value,
    conf_file: String,
}

impl DispatchSettings {
    pub(crate) fn of(master: &SaltMaster) -> Self {
        let option = |name: &str| master.option(name).cloned().unwrap_or(Value::Null);
        Self {
            user: master.user.clone(),
            nodegroups: master
                .option("nodegroups")
                .and_then(Value::as_map)
                .cloned()
                .unwrap_or_default(),
            ext_job_cache: master.text("ext_job_cache").unwrap_or_default().to_owned(),
            order_masters: master.flag("order_masters"),
            timeout: option("timeout"),
            publish_timeout: option("publish_timeout"),
            conf_file: master.conf_file.display().to_string(),
        }
    }
}

/// True for the old form, whose keys are assigned to the arguments of a runner or wheel function.
fn is_mapped(chunk: &Map) -> bool {
    let has = |name: &str| chunk.contains_key(name);
    !(has("args") || has("arg") && has("kwarg"))
}

pub(super) struct Dispatch<'a> {
    pub(super) settings: &'a DispatchSettings,
    /// Has the signatures of runners and wheel functions.
    pub(super) salt: &'a dyn Salt,
    pub(super) pool_full: bool,
}

impl Dispatch<'_> {
    /// The call of a chunk; `None` after an error, which is in the notes.
    pub(super) fn call(&self, mut chunk: Map, notes: &mut Vec<Note>) -> Option<Prepared> {
        let state = chunk.get("state").unwrap_or(&Value::Null);
        let Some(client) = state.as_str().and_then(Client::named) else {
            notes.push(unknown_type(&chunk, state));
            return None;
        };

        // Before the conversion, while the chunk is as in the file.
        silent_mistakes(client, &chunk, notes);
        match self
            .prepare(client, &mut chunk, notes)
            .and_then(|()| match client {
                Client::Local => Ok(self.local(std::mem::take(&mut chunk), notes)),
                Client::Runner | Client::Wheel => self.master(client, &mut chunk),
                Client::Caller => caller(&mut chunk),
            }) {
            Ok(call) => {
                // A job with such an argument has failed already, see `publish`.
                if client != Client::Local {
                    passed_as_text(&call, notes);
                }
                Some(call)
            }
            Err(Refusal::Reported(message)) => {
                notes.push(Note::error(LOGGER, message).failing(location_of(&chunk)));
                None
            }
            Err(Refusal::Failed(cause)) => {
                notes.push(failed(client, &chunk, &text_of(&chunk, "fun"), cause));
                None
            }
        }
    }

    /// Converts a chunk to the keyword arguments of Salt's client; `fun` and `tgt` are still among
    /// them.
    fn prepare(
        &self,
        client: Client,
        chunk: &mut Map,
        notes: &mut Vec<Note>,
    ) -> Result<(), Refusal> {
        // Salt passes `tgt` and `fun` as positional arguments, so Python raises without a target.
        if client == Client::Local && !chunk.contains_key("tgt") {
            return Err("local takes at least 2 arguments (1 given): no `tgt`"
                .to_owned()
                .into());
        }

        let is_of_master = client.is_of_master();

        // Before the marks below are added, which must not become arguments of the function.
        let mut mapped = (Value::Tuple(Vec::new()), Value::Map(Map::default()));
        if is_of_master && is_mapped(chunk) {
            let Some(signature) = self.signature(client, chunk)? else {
                return Err(cannot(client, chunk, "function not available"));
            };
            let (positional, keywords) = arguments::mapped(chunk, &signature)?;
            mapped = (Value::List(positional), Value::Map(keywords));
        }

        if is_of_master {
            // Salt's reactor marks its calls, and renames `state`, which some runner functions do
            // not expect.
            chunk.insert("__user__".into(), REACTOR_USER.into());
            if let Some(state) = chunk.shift_remove("state") {
                chunk.insert("__state__".into(), state);
            }
        }

        if let Some(args) = chunk.shift_remove("args") {
            arguments::present(client, chunk, args, notes)?;
        } else {
            chunk.entry("arg".into()).or_insert(mapped.0);
            chunk.entry("kwarg".into()).or_insert(mapped.1);
        }

        // Python raises on these when the chunk becomes the keywords of the client's method.
        for key in chunk.keys() {
            match key.as_str() {
                Some("self") => {
                    return Err(format!(
                        "{} got multiple values for argument 'self'",
                        client.name()
                    )
                    .into());
                }
                Some(_) => {}
                None => {
                    return Err(format!("keywords must be strings: {}", key.0.python_str()).into());
                }
            }
        }

        Ok(())
    }

    fn signature(&self, client: Client, chunk: &Map) -> Result<Option<Signature>, Refusal> {
        let Some(fun) = chunk.get("fun").and_then(Value::as_str) else {
            return Ok(None);
        };
        self.salt.signature(client, fun).map_err(|error| {
            Refusal::Failed(format!(
                "without `args`, the function's signature is needed: {error}"
            ))
        })
    }

    fn master(&self, client: Client, chunk: &mut Map) -> Result<Prepared, Refusal> {
        // Only conformance cases set it; runners of the daemon are limited by its scheduler.
        if self.pool_full {
            let (id, kind, fun) = (
                text_of(chunk, "__id__"),
                client.name(),
                text_of(chunk, "fun"),
            );
            // With two blanks, as in Salt.
            return Err(Refusal::Reported(format!(
                "Reactor '{id}' failed  to execute {kind} '{fun}': TaskPool queue is full!Consider tuning \
                 reactor_worker_threads and/or reactor_worker_hwm"
            )));
        }

        let args = unpacked(chunk.get("arg").unwrap_or(&Value::Null))?;
        let kwargs = chunk.get("kwarg").and_then(Value::as_map).cloned();
        let kwargs = kwargs.unwrap_or_default();
        let fun = chunk.shift_remove("fun").unwrap_or(Value::Null);

        Ok(Prepared {
            client,
            fun,
            tgt: Value::Null,
            chunk: std::mem::take(chunk),
            load: Some(match client {
                Client::Runner => master::runner_load(args, kwargs),
                _ => master::wheel_load(args, kwargs),
            }),
            timeout: Value::Null,
        })
    }

    fn local(&self, mut kwargs: Map, notes: &mut Vec<Note>) -> Prepared {
        let tgt = kwargs.shift_remove("tgt").unwrap_or(Value::Null);
        let fun = kwargs.shift_remove("fun").unwrap_or(Value::Null);

        // As in Salt: `publish_timeout` without a `timeout`, and the option `timeout` for one that
        // is no number.
        let timeout = match kwargs.get("timeout") {
            None | Some(Value::Null) => self.settings.publish_timeout.clone(),
            Some(given) => whole_seconds(given).unwrap_or_else(|| self.settings.timeout.clone()),
        };

        // After an error the call remains, without a payload; the notes contain the reason.
        let load = match self.publish(&tgt, &fun, &kwargs, &timeout, notes) {
            Ok(load) => Some(load),
            Err(cause) => {
                notes.push(failed(Client::Local, &kwargs, &fun.python_str(), cause));
                None
            }
        };

        Prepared {
            client: Client::Local,
            fun,
            tgt,
            chunk: kwargs,
            load,
            timeout,
        }
    }

    /// The payload for the request port, without the key.
    fn publish(
        &self,
        tgt: &Value,
        fun: &Value,
        kwargs: &Map,
        timeout: &Value,
        notes: &mut Vec<Note>,
    ) -> Result<Map, String> {
        // Salt's client passes this one itself, and Python rejects a second value.
        if kwargs.contains_key("listen") {
            return Err("run_job() got multiple values for keyword argument 'listen'".to_owned());
        }

        let given = |name: &str| kwargs.get(name).unwrap_or(&Value::Null);
        let arg = conditioned(given("arg"), given("kwarg"))?;

        let get = |name: &str, otherwise: Value| kwargs.get(name).cloned().unwrap_or(otherwise);
        // The master would not know a nodegroup: Salt's client resolves it before.
        let tgt_type = get("tgt_type", "glob".into());
        let (tgt, tgt_type) = nodegroup::resolved(
            tgt,
            tgt_type,
            &self.settings.nodegroups,
            &self.settings.conf_file,
            notes,
        )?;

        // The option adds a returner to the returners of the chunk.
        let mut ret = get("ret", "".into());
        if !self.settings.ext_job_cache.is_empty() {
            ret = match ret {
                Value::Str(own) if !own.is_empty() => {
                    format!("{own},{}", self.settings.ext_job_cache).into()
                }
                other if other.truthy() => {
                    return Err(format!(
                        "`ret` is not a string, so ext_job_cache cannot be appended: {}",
                        other.python_str()
                    ));
                }
                _ => self.settings.ext_job_cache.as_str().into(),
            };
        }

        let mut payload = with_room(11);
        payload.insert("cmd".into(), "publish".into());
        payload.insert("tgt".into(), tgt);
        payload.insert("fun".into(), fun.clone());
        payload.insert("arg".into(), Value::List(arg));
        payload.insert("tgt_type".into(), tgt_type);
        payload.insert("ret".into(), ret);
        payload.insert("jid".into(), get("jid", "".into()));

        // Everything else in the chunk is passed on; the master uses `PUBLISH_KEYWORDS` of it.
        let mut rest = with_room(kwargs.len());
        let is_own = |key: &str| {
            matches!(
                key,
                "arg" | "kwarg" | "tgt_type" | "ret" | "jid" | "timeout"
            )
        };
        let others = kwargs
            .iter()
            .filter(|(key, _)| !key.as_str().is_some_and(is_own));
        rest.extend(others.map(|(key, value)| (key.clone(), value.clone())));

        if !rest.is_empty() {
            payload.insert("kwargs".into(), Value::Map(rest));
        }

        // The user whose key the request carries.
        payload.insert("user".into(), self.settings.user.as_str().into());
        // A master of syndics passes the timeout on.
        if self.settings.order_masters {
            payload.insert("to".into(), timeout.clone());
        }

        // Salt's client raises this when it packs the request.
        match payload.values().find_map(unpackable) {
            Some((_, why)) => Err(why.to_owned()),
            None => Ok(payload),
        }
    }
}

/// The first object that Salt's codec cannot pack, with its reason.
fn unpackable(value: &Value) -> Option<(&Object, &str)> {
    match value {
        Value::Object(object) => Some((&**object, object.packed.as_ref().err()?.as_str())),
        Value::List(items) | Value::Tuple(items) | Value::Set(items) => {
            items.iter().find_map(unpackable)
        }
        Value::Map(map) => map
            .iter()
            .find_map(|(key, value)| unpackable(&key.0).or_else(|| unpackable(value))),
        _ => None,
    }
}

/// Warns of an argument that Salt's reactor would pass to the function as the object it is: another
/// process runs the function here.
fn passed_as_text(call: &Prepared, notes: &mut Vec<Note>) {
    let mut values = call.load.iter().flat_map(Map::values);
    if let Some((object, _)) = values.find_map(unpackable) {
        let (sls, id) = (
            text_of(&call.chunk, "__sls__"),
            text_of(&call.chunk, "__id__"),
        );
        let what = format!(
            "{sls}: ID '{id}': an argument is a {}, which is passed as a string: {}",
            object.type_name, object.text
        );
        notes.push(Note::warning(OWN_LOGGER, what));
    }
}

fn caller(chunk: &mut Map) -> Result<Prepared, Refusal> {
    let args = unpacked(chunk.get("arg").unwrap_or(&Value::Null))?;
    let kwarg = chunk.get("kwarg").unwrap_or(&Value::Null);
    // Salt unpacks it with `**`, which raises for anything but a mapping.
    let Value::Map(kwargs) = kwarg else {
        return Err(format!("`kwarg` is not a mapping: {}", kwarg.python_str()).into());
    };

    // Python raises on these when the client's `cmd` is called with them as keywords.
    for key in kwargs.keys() {
        match key.as_str() {
            Some(name @ ("self" | "fun")) => {
                return Err(format!("cmd() got multiple values for argument '{name}'").into());
            }
            Some(_) => {}
            None => return Err(format!("keywords must be strings: {}", key.0.python_str()).into()),
        }
    }

    let load = master::caller_load(args, kwarg.clone());
    let fun = chunk.get("fun").cloned().unwrap_or(Value::Null);

    Ok(Prepared {
        client: Client::Caller,
        fun,
        tgt: Value::Null,
        chunk: std::mem::take(chunk),
        load: Some(load),
        timeout: Value::Null,
    })
}

/// Salt's `condition_input`: integers that look like a job id become strings, keyword arguments a
/// marked mapping at the end.
fn conditioned(arg: &Value, kwarg: &Value) -> Result<Vec<Value>, String> {
    let mut args: Vec<Value> = unpacked(arg)?
        .into_iter()
        .map(|item| match item {
            // 20 digits exceed 64 bits.
            Value::BigInt(digits) if digits.len() == 20 => Value::Str(digits),
            Value::Int(int) if int.to_string().len() == 20 => Value::Str(int.to_string()),
            other => other,
        })
        .collect();

    if let Value::Map(kwarg) = kwarg
        && !kwarg.is_empty()
    {
        let mut marked = with_room(kwarg.len() + 1);
        // The mark tells a minion keywords from a mapping that is the last positional argument.
        marked.insert("__kwarg__".into(), Value::Bool(true));
        marked.extend(
            kwarg
                .iter()
                .map(|(key, value)| (key.clone(), value.clone())),
        );
        args.push(Value::Map(marked));
    }

    Ok(args)
}

/// The `timeout` of a chunk: a number, or a number as a string; otherwise Salt uses the master's
/// option.
fn whole_seconds(given: &Value) -> Option<Value> {
    match given {
        Value::Int(_) | Value::BigInt(_) | Value::Bool(_) => Some(given.clone()),
        Value::Str(text) => text.trim().replace('_', "").parse().ok().map(Value::Int),
        _ => None,
    }
}

fn failed(client: Client, chunk: &Map, fun: &str, cause: String) -> Note {
    let id = text_of(chunk, "__id__");
    Note::error(
        LOGGER,
        format!("Reactor '{id}' failed to execute {} '{fun}'", client.name()),
    )
    .because(cause)
    .failing(location_of(chunk))
}

fn location_of(chunk: &Map) -> Location {
    Location::file(text_of(chunk, "__sls__"))
}

/// The error of a chunk of an unknown type, of which Salt's process dies.
fn unknown_type(chunk: &Map, state: &Value) -> Note {
    let state = state.python_str();
    Note::error(
        LOGGER,
        format!("ReactWrap is missing a wrapper function for '{state}'"),
    )
    .because(format!(
        "{}: ID '{}': unknown reaction type `{state}`, expected local, runner, wheel or caller",
        text_of(chunk, "__sls__"),
        text_of(chunk, "__id__"),
    ))
    .failing(location_of(chunk))
}

/// Mistakes that Salt accepts silently with another meaning.
fn silent_mistakes(client: Client, chunk: &Map, notes: &mut Vec<Note>) {
    let mut warn = |what: String| {
        let (sls, id) = (text_of(chunk, "__sls__"), text_of(chunk, "__id__"));
        notes.push(Note::warning(
            OWN_LOGGER,
            format!("{sls}: ID '{id}': {what}"),
        ));
    };

    if client == Client::Local && chunk.contains_key("expr_form") {
        warn("`expr_form` is ignored and the target is a glob; use `tgt_type`".to_owned());
    }

    // `args` replaces `arg` and `kwarg`, and Salt itself warns of both.
    if chunk.contains_key("args") {
        return;
    }

    if client == Client::Local {
        if matches!(chunk.get("kwarg"), Some(value) if !matches!(value, Value::Map(_) | Value::Null))
        {
            warn("`kwarg` is not a mapping and is ignored; use `args`, or one mapping".to_owned());
        }
        if matches!(chunk.get("arg"), Some(Value::Str(text)) if !text.is_empty()) {
            warn("`arg` is a string, so each character is an argument; use a list".to_owned());
        }
    }

    // For runners and wheel functions other keys are arguments, in the old form.
    if matches!(client, Client::Local | Client::Caller) {
        let unused: Vec<String> = chunk
            .keys()
            .filter_map(|key| key.as_str())
            .filter(|name| !is_known(client, name))
            .map(|name| format!("`{name}`"))
            .collect();
        if !unused.is_empty() {
            warn(format!(
                "{} next to the target are not passed to the function; put them below `args`",
                unused.join(", ")
            ));
        }
    }
}

/// The keywords next to a job's target that the master uses (`_prep_pub` in `salt/master.py`).
pub(super) const PUBLISH_KEYWORDS: [&str; 9] = [
    "ret_config",
    "ret_kwargs",
    "metadata",
    "module_executors",
    "executor_opts",
    "start_event",
    "delimiter",
    "master_id",
    "id",
];

/// True for keys that the client, the master or the compiler reads.
fn is_known(client: Client, name: &str) -> bool {
    const COMPILED: [&str; 7] = [
        "state", "name", "__sls__", "__id__", "fun", "order", "__env__",
    ];
    const REQUISITES: [&str; 7] = [
        "require",
        "watch",
        "onchanges",
        "onfail",
        "prereq",
        "listen",
        "names",
    ];
    const LOCAL: [&str; 8] = [
        "tgt",
        "tgt_type",
        "arg",
        "kwarg",
        "ret",
        "jid",
        "timeout",
        "expr_form",
    ];
    const CALLER: [&str; 2] = ["arg", "kwarg"];

    let own: &[&str] = if client == Client::Local {
        &LOCAL
    } else {
        &CALLER
    };

    // With the suffixes that Salt's compiler accepts.
    COMPILED.contains(&name)
        || own.contains(&name)
        || (client == Client::Local && PUBLISH_KEYWORDS.contains(&name))
        || REQUISITES.iter().any(|requisite| {
            name.strip_prefix(requisite)
                .is_some_and(|rest| matches!(rest, "" | "_any" | "_all" | "_in"))
        })
}

#[cfg(test)]
mod tests;
