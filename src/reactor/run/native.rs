//! The rules of a master for the running reactor: implements [`RuleEngine`] with [`Pipeline`].

use std::cell::RefCell;
use std::sync::Arc;

use salt_sls::Value;

use super::{Event, ReactionPlan, RuleEngine};
use crate::model::{ListedRule, Note};
use crate::reactor::pipeline::RestingWorker;
use crate::reactor::rules::manage::is_answer;
use crate::reactor::{Body, Detail, Pipeline, Worker};

/// Pseudo rule for the requests of `salt-run reactor.list` and similar commands. No pattern equals
/// it.
const MANAGE: &str = crate::model::MANAGE_TAG;

/// The pipeline as the engine of rules, with a worker for each thread.
pub struct Native {
    pipeline: Arc<Pipeline>,
}

thread_local! {
    /// Template state of this thread, for the pipeline that it used last.
    static WORKER: RefCell<Option<RestingWorker>> = const { RefCell::new(None) };
}

impl Native {
    /// Rules of this pipeline.
    pub fn new(pipeline: Arc<Pipeline>) -> Self {
        Self { pipeline }
    }
}

impl RuleEngine for Native {
    fn matching(&self, tag: &str) -> Vec<Arc<str>> {
        // On the bus a response to a request looks like another request, and would fail without the
        // key.
        if is_answer(tag) {
            return Vec::new();
        }

        // The runner fires its request below its own prefix, so the text may be anywhere in the
        // tag.
        if memchr::memmem::find(tag.as_bytes(), MANAGE.as_bytes()).is_some() {
            return vec![MANAGE.into()];
        }
        self.pipeline.matching(tag)
    }

    fn all(&self) -> Vec<ListedRule> {
        self.pipeline
            .rules()
            .map(|rules| rules.listed())
            .unwrap_or_default()
    }

    fn blocked_by(&self) -> Option<String> {
        if !self.pipeline.is_leader() {
            return Some(
                "another reactor is the leader (`salt-run reactor.set_leader`)".to_owned(),
            );
        }
        self.pipeline.rules().err().map(|note| note.to_string())
    }

    fn react(&self, event: &Event, rules: &[Arc<str>]) -> ReactionPlan {
        let is_request = rules.iter().any(|rule| **rule == *MANAGE);
        let only = (!is_request).then_some(rules);

        // Taken out while it renders: a panic, which the caller catches, drops the worker instead
        // of leaving its template state half changed for the next event.
        let out = WORKER.with_borrow_mut(|kept| {
            let mut worker = Worker::resume(&self.pipeline, kept.take());
            let body = Body::Stored {
                data: &event.body,
                has_key: event.has_key,
            };
            let out = worker.react_by(&event.tag, body, only, Detail::Everything);
            *kept = Some(worker.rest());
            out
        });

        // A file that did not render has no text; the reason is among the notes.
        let mut plan = ReactionPlan {
            files: out
                .renders
                .into_iter()
                .filter_map(|render| Some((render.file, render.text?)))
                .collect(),
            chunks: Value::List(out.low.into_iter().map(Value::Map).collect()),
            calls: Vec::new(),
            fired: out
                .fired
                .into_iter()
                .map(|fired| (fired.tag, fired.data))
                .collect(),
            notes: Vec::new(),
            failures: out.notes.iter().filter_map(Note::failure).collect(),
        };

        let note = |note: &Note| (note.level, note.to_string());
        plan.notes.extend(out.notes.iter().map(note));

        for prepared in out.calls {
            // The notes contain the reason why a job cannot be published.
            let is_noted = prepared.load.is_none();
            let client = prepared.client.name();
            match prepared.into_call() {
                Some(call) => plan.calls.push(call),
                None if is_noted => {}
                None => plan.fail(format!(
                    "cannot make a {client} call without a function name"
                )),
            }
        }

        plan
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::salt_master::SaltMaster;
    use crate::model::SeqNo;
    use crate::reactor::NoSalt;

    #[test]
    fn the_reactor_s_own_answer_is_not_a_request() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("master");
        std::fs::write(
            &file,
            format!(
                "cachedir: {}\nreactor: [{{'*': /a}}]\n",
                dir.path().display()
            ),
        )
        .unwrap();
        std::fs::write(dir.path().join(".root_key"), "the key").unwrap();
        let native = Native::new(Arc::new(Pipeline::new(
            &SaltMaster::read(&file),
            Arc::new(NoSalt),
        )));
        let matching = |tag: &str| {
            native
                .matching(tag)
                .iter()
                .map(ToString::to_string)
                .collect::<Vec<_>>()
        };
        let request = "salt/run/1/salt/reactors/manage/list";
        assert_eq!(matching(request), [MANAGE]);
        let mut body = crate::wire::msgpack::Writer::new();
        body.map(1).str("key").str(crate::model::REDACTED);
        let event = Event {
            seq: SeqNo(1),
            at: crate::base::clock::Micros(1),
            tag: request.to_owned(),
            body: body.into_bytes().into(),
            has_key: true,
            ..Event::default()
        };
        let plan = native.react(&event, &native.matching(request));
        assert_eq!((plan.failures, plan.fired.len()), (Vec::new(), 1));
        // On the bus the response looks like a request without the key.
        assert!(matching(&plan.fired[0].0).is_empty(), "{:?}", plan.fired);
    }

    #[test]
    fn an_idle_thread_does_not_keep_a_replaced_pipeline() {
        let dir = tempfile::tempdir().unwrap();
        let (file, sls) = (dir.path().join("master"), dir.path().join("a.sls"));
        let text = format!("reactor: [{{a: [{}]}}]\n", sls.display());
        std::fs::write(&file, text).unwrap();
        std::fs::write(&sls, "x:\n  local.test.ping:\n    - tgt: {{ tag }}\n").unwrap();
        let pipeline = Arc::new(Pipeline::new(&SaltMaster::read(&file), Arc::new(NoSalt)));
        let native = Native::new(Arc::clone(&pipeline));
        let event = Event {
            tag: "a".to_owned(),
            body: (&b"\x80"[..]).into(),
            ..Event::default()
        };
        for _ in 0..2 {
            let plan = native.react(&event, &["a".into()]);
            assert_eq!((plan.calls.len(), plan.failures), (1, Vec::new()));
        }
        let kept = Arc::downgrade(&pipeline);
        drop((native, pipeline));
        assert!(kept.upgrade().is_none(), "with its processes");
    }
}
