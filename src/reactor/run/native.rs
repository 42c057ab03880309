//! The rules of a master, for the running reactor: [`Pipeline`] behind [`React`].

use std::cell::RefCell;
use std::sync::Arc;

use super::{Event, React, Reacted, Wanted, What};
use crate::master::{Call as Request, Cmd};
use crate::model::{Note, NoteLevel};
use crate::reactor::{Body, Call, Client, Detail, Pipeline, Worker};
use crate::sls::Value;

/// Under this name the reactor reacts to `salt-run reactor.list` and its kin. No pattern is spelled so.
const MANAGE: &str = "salt/reactors/manage";

/// See the top of the file.
pub struct Native {
    pipeline: Arc<Pipeline>,
}

thread_local! {
    /// What the templates of one thread share, of the pipeline that it worked for last.
    static WORKER: RefCell<Option<Worker>> = const { RefCell::new(None) };
}

impl Native {
    /// Of that pipeline.
    pub fn new(pipeline: Arc<Pipeline>) -> Self {
        Self { pipeline }
    }
}

impl React for Native {
    fn matching(&self, tag: &str) -> Vec<Arc<str>> {
        if memchr::memmem::find(tag.as_bytes(), MANAGE.as_bytes()).is_some() {
            return vec![MANAGE.into()];
        }
        self.pipeline.matching(tag)
    }

    fn all(&self) -> Vec<(String, Vec<String>)> {
        let Ok(rules) = self.pipeline.rules() else { return Vec::new() };
        let text = |value: &Value| value.as_str().map_or_else(|| value.python_repr(), str::to_owned);
        let mut found = Vec::new();
        for (pattern, value) in rules.entries.iter().filter_map(Value::as_map).flatten() {
            let references = match value {
                Value::List(items) => items.iter().map(text).collect(),
                other => vec![text(other)],
            };
            found.push((text(&pattern.0), references));
        }
        found
    }

    fn react(&self, event: &Event, rules: &[Arc<str>]) -> Reacted {
        let is_request = rules.iter().any(|rule| **rule == *MANAGE);
        let only = (!is_request).then_some(rules);
        let out = WORKER.with_borrow_mut(|kept| {
            let is_ours = |worker: &mut Worker| Arc::ptr_eq(worker.pipeline(), &self.pipeline);
            let mut worker = kept.take_if(is_ours).unwrap_or_else(|| Worker::new(self.pipeline.clone()));
            let out = worker.react_by(&event.tag, Body::Msgpack(&event.body), only, Detail::Everything);
            *kept = Some(worker);
            out
        });
        let mut reacted = Reacted {
            files: out.renders.into_iter().filter_map(|render| Some((render.file, render.text?))).collect(),
            chunks: Value::List(out.low.into_iter().map(Value::Map).collect()),
            wanted: Vec::new(),
            fired: out.fired.into_iter().map(|fired| (fired.tag, fired.data)).collect(),
            notes: Vec::new(),
        };
        let note = |note: &Note| (note.level, note.to_string());
        reacted.notes.extend(out.notes.iter().map(note));
        for call in out.calls {
            match wanted(&call) {
                Some(wanted) => reacted.wanted.push(wanted),
                None => reacted.notes.push((
                    NoteLevel::Error,
                    format!("a call of {} has no function's name and cannot be made", call.client().name()),
                )),
            }
        }
        reacted
    }
}

fn wanted(call: &Call) -> Option<Wanted> {
    let text = |value: Option<&Value>| value.and_then(Value::as_str).unwrap_or_default().to_owned();
    let fun = call.fun().as_str()?.to_owned();
    let (sls, what) = match call {
        Call::Local(local) => {
            let load = local.publish.clone()?;
            (text(local.kwargs.get("__sls__")), What::Ask(Request { cmd: Cmd::Publish, fun, load }))
        }
        Call::Master(call) => {
            let kwargs = call.kwargs.as_map().cloned().unwrap_or_default();
            let request = match call.client {
                Client::Wheel => Request::wheel(&fun, call.args.clone(), kwargs),
                _ => Request::runner(&fun, call.args.clone(), kwargs),
            };
            (text(call.low.get("__sls__")), What::Ask(request))
        }
        Call::Caller(call) => {
            let kwargs = Value::Map(call.kwargs.clone());
            (text(Some(&call.sls)), What::Caller { fun, args: call.args.clone(), kwargs })
        }
    };
    Some(Wanted { id: text(call.id()), sls, what })
}
