//! The pipeline from an event to calls. It has no access to a master or store, and sends nothing.
//!
//! One [`Pipeline`] serves all threads; each thread has a [`Worker`] with its template state.
//!
//! # Invariant
//!
//! Each event yields an [`Outcome`], for any data, rules and files. Where Salt's process dies, the
//! outcome contains an ERROR.

mod msgpack;

use std::path::PathBuf;
use std::sync::{Arc, Weak};

use parking_lot::{Mutex, RwLock};
use salt_sls::jinja::{Data, Engine, EngineOptions};
use salt_sls::{Map, Value, compile};

use super::dispatch::{Dispatch, DispatchSettings, REACTOR_USER};
use super::helper::functions::Functions;
use super::helper::salt::Salt;
use super::outcome::{Detail, Outcome, Render};
use super::render::data::from_msgpack;
use super::render::files::{FileSettings, Templates};
use super::render::{Ambients, Rendering};
use super::rules::manage::{self, Request};
use super::rules::{Rules, RulesFile};
use crate::base::limits::REACTOR_CHANGES_MAX;
use crate::config::salt_master::SaltMaster;
use crate::model::{Location, Note};

const LOGGER: &str = "salt.utils.reactor";

/// The parts of a pipeline that are the same for all events.
pub struct Pipeline {
    engine: Engine,
    templates: Templates,
    files: FileSettings,
    dispatch: DispatchSettings,
    /// Lock order: after `managed`, before the file of rules in it.
    rules: RwLock<Source>,
    /// Lock order: before `rules`; the lock of a replaced pipeline before the lock of its
    /// successor.
    managed: Mutex<Managed>,
    id: String,
    key_file: PathBuf,
    salt: Arc<dyn Salt>,
    functions: Arc<Functions>,
    opts: Arc<Value>,
    pool_full: bool,
}

/// Changes by `salt-run reactor.*`.
struct Managed {
    /// The value of `set_leader`.
    leader: Value,
    /// Rules that `reactor.add` added (with references) and `reactor.delete` deleted (`None`): the
    /// latest change per pattern.
    changes: Vec<(Value, Option<Value>)>,
    /// The pipeline that replaced this one, and handles its remaining requests.
    successor: Option<Arc<Pipeline>>,
}

enum Source {
    List(Arc<Rules>),
    /// Lock order: after `managed` and `rules`; no other lock is taken under it.
    File(Box<Mutex<RulesFile>>),
}

/// An event's data, in either form.
#[derive(Debug, Clone, Copy)]
pub enum Body<'a> {
    /// Data of a test, or of a synthetic event.
    Value(&'a Value),
    /// A stored event, whose master key was redacted.
    Stored {
        /// Its msgpack.
        data: &'a [u8],
        /// True if it carried the master's key.
        has_key: bool,
    },
}

/// The state of a pipeline in one thread.
pub struct Worker {
    pipeline: Arc<Pipeline>,
    ambients: Option<Ambients>,
}

/// A worker at rest. It does not keep its pipeline, which a reload may replace, nor the processes
/// of that.
pub(crate) struct RestingWorker {
    pipeline: Weak<Pipeline>,
    ambients: Option<Ambients>,
}

impl Pipeline {
    /// A pipeline with the master's configuration. `salt` does what has no native implementation.
    pub fn new(master: &SaltMaster, salt: Arc<dyn Salt>) -> Self {
        let jinja_env = master
            .option("jinja_env")
            .and_then(Value::as_map)
            .cloned()
            .unwrap_or_default();

        let functions = Arc::new(Functions::of(master));
        let options = EngineOptions {
            jinja_env,
            allow_undefined: master.flag("allow_undefined"),
            functions: functions.names(),
            ..EngineOptions::default()
        };

        let reactor = master.option("reactor").cloned().unwrap_or(Value::Null);
        Self {
            engine: Engine::new(options),
            templates: Templates::default(),
            files: FileSettings::of(master),
            dispatch: DispatchSettings::of(master),
            rules: RwLock::new(Source::new(&reactor)),
            managed: Mutex::new(Managed {
                leader: Value::Bool(true),
                changes: Vec::new(),
                successor: None,
            }),
            id: master.id.clone(),
            key_file: master.key_file(),
            salt,
            functions,
            // The configured options with a few defaults; a template that reads any other goes to
            // Salt.
            opts: Arc::new(Value::Map(master.minion_options())),
            pool_full: false,
        }
    }

    /// For conformance cases: the pool of runners and wheel functions is full.
    #[cfg(test)]
    #[must_use]
    pub(crate) fn with_full_pool(mut self, full: bool) -> Self {
        self.pool_full = full;
        self
    }

    /// Replaces the rules after a reload.
    pub(crate) fn set_rules(&self, reactor: &Value) {
        *self.rules.write() = Source::new(reactor);
    }

    /// As `salt-run reactor.set_leader`.
    #[cfg(test)]
    pub(crate) fn set_leader(&self, leader: bool) {
        self.managed.lock().leader = Value::Bool(leader);
    }

    /// True if this reactor handles events.
    pub(crate) fn is_leader(&self) -> bool {
        self.managed.lock().leader.truthy()
    }

    /// The rules in use; an ERROR if their file could never be read.
    pub(crate) fn rules(&self) -> Result<Arc<Rules>, Note> {
        match &*self.rules.read() {
            Source::List(rules) => Ok(Arc::clone(rules)),
            Source::File(file) => file.lock().rules(),
        }
    }

    /// Why the file of the rules, as it is now, is not in use: the rules from before stay.
    pub(crate) fn rules_problem(&self) -> Option<Note> {
        match &*self.rules.read() {
            Source::List(_) => None,
            Source::File(file) => file.lock().problem(),
        }
    }

    /// The file of the rules, if they are in a separate one.
    fn rules_file(&self) -> Location {
        match &*self.rules.read() {
            Source::List(_) => Location::default(),
            Source::File(file) => Location::file(file.lock().path.clone()),
        }
    }

    /// Files and renderers, for checks.
    pub(crate) fn files(&self) -> (&FileSettings, &Templates, &Engine) {
        (&self.files, &self.templates, &self.engine)
    }

    /// The patterns that match a tag, in the order of the configuration, without duplicates; empty
    /// if this reactor is not the leader.
    pub(crate) fn matching(&self, tag: &str) -> Vec<Arc<str>> {
        let mut found: Vec<Arc<str>> = Vec::new();
        if !self.is_leader() {
            return found;
        }

        // Only before a file of rules was read for the first time; a daemon does not start with
        // such a file.
        let Ok(rules) = self.rules() else {
            return found;
        };

        // Cheaper than the search below, and false for most tags.
        if rules.matches(tag) {
            for (pattern, _) in rules.matching(tag) {
                if !found.contains(pattern) {
                    found.push(pattern.clone());
                }
            }
        }

        found
    }

    /// Takes over the state of the pipeline that this one replaces: the leader, and the changes by
    /// `salt-run`.
    pub(crate) fn take_over(self: &Arc<Self>, from: &Self) {
        // Lock order: the replaced pipeline before its successor. A request waits meanwhile, and is
        // then carried out by the successor.
        let mut before = from.managed.lock();
        let mut managed = self.managed.lock();
        managed.leader = before.leader.clone();
        for (pattern, references) in before.changes.clone() {
            // A file with the same rules, or a separate file of rules, needs no change.
            drop(self.change(&mut managed, pattern, references, &mut Vec::new()));
        }

        before.successor = Some(self.clone());
    }

    /// Calls `f` with the pipeline in use: this one, or the last of its successors. Blocks
    /// replacements meanwhile.
    fn manage<R>(&self, f: impl FnOnce(&Self, &mut Managed) -> R) -> R {
        let mut managed = self.managed.lock();
        match managed.successor.clone() {
            None => f(self, &mut managed),
            Some(successor) => {
                drop(managed);
                successor.manage(f)
            }
        }
    }

    /// Adds or deletes a rule; the result is whether anything changed.
    fn change(
        &self,
        managed: &mut Managed,
        pattern: Value,
        references: Option<Value>,
        notes: &mut Vec<Note>,
    ) -> Result<bool, Note> {
        let changed = self.change_rules(|rules| match &references {
            Some(references) => rules.with(pattern.clone(), references.clone(), notes),
            None => rules.without(&pattern, notes),
        })?;

        // The latest change of each pattern is enough to repeat them on the rules of a reload.
        if changed {
            let changes = &mut managed.changes;
            changes.retain(|(known, _)| !known.python_eq(&pattern));
            if changes.len() >= REACTOR_CHANGES_MAX {
                changes.remove(0);
            }
            changes.push((pattern, references));
        }

        Ok(changed)
    }

    fn change_rules(&self, change: impl FnOnce(&Rules) -> Option<Rules>) -> Result<bool, Note> {
        let mut source = self.rules.write();

        match &*source {
            Source::List(rules) => match change(rules) {
                Some(changed) => {
                    *source = Source::List(Arc::new(changed));
                    Ok(true)
                }
                None => Ok(false),
            },
            Source::File(file) => {
                // The file is the only source of its rules: a change in memory would be lost when
                // it is reread.
                let path = &file.lock().path;
                Err(Note::error(
                    LOGGER,
                    format!(
                        "The reactor's rules are in the file {path}: edit that file, changes take effect immediately"
                    ),
                ))
            }
        }
    }
}

impl Source {
    fn new(reactor: &Value) -> Self {
        match reactor {
            Value::Str(path) => Source::File(Box::new(Mutex::new(RulesFile::new(path)))),
            other => Source::List(Arc::new(Rules::new(other))),
        }
    }
}

impl Worker {
    /// A worker that has used no template.
    pub fn new(pipeline: Arc<Pipeline>) -> Self {
        Self {
            pipeline,
            ambients: None,
        }
    }

    /// A worker for this pipeline, with the state of one at rest if that is of the same pipeline.
    pub(crate) fn resume(pipeline: &Arc<Pipeline>, resting: Option<RestingWorker>) -> Self {
        let ambients = resting
            .filter(|resting| std::ptr::eq(resting.pipeline.as_ptr(), Arc::as_ptr(pipeline)))
            .and_then(|resting| resting.ambients);
        Self {
            pipeline: Arc::clone(pipeline),
            ambients,
        }
    }

    pub(crate) fn pipeline(&self) -> &Arc<Pipeline> {
        &self.pipeline
    }

    pub(crate) fn rest(self) -> RestingWorker {
        RestingWorker {
            pipeline: Arc::downgrade(&self.pipeline),
            ambients: self.ambients,
        }
    }

    /// Handles an event.
    pub fn react(&mut self, tag: &str, body: Body<'_>, detail: Detail) -> Outcome {
        self.react_by(tag, body, None, detail)
    }

    /// Handles an event with only some of the rules, given by their patterns.
    pub(crate) fn react_by(
        &mut self,
        tag: &str,
        body: Body<'_>,
        only: Option<&[Arc<str>]>,
        detail: Detail,
    ) -> Outcome {
        let mut out = Outcome::default();
        let request = Request::of(tag);
        let rules = self.pipeline.rules();

        // Most events match no rule, so their data is not read.
        if request.is_none() && rules.as_ref().is_ok_and(|rules| !rules.matches(tag)) {
            return out;
        }

        let data = match body.opened() {
            Ok(data) => data,
            Err(what) => {
                out.notes.push(
                    Note::error(
                        LOGGER,
                        format!("event {tag} ignored: its data is {what}, not a mapping"),
                    )
                    .failing(Location::default()),
                );
                return out;
            }
        };

        // As in Salt: otherwise the runners of a reaction could cause it again.
        if data.is_reactor_s() {
            return out;
        }

        if let Some(request) = request
            && !self.managed(request, &data, body, &mut out)
        {
            return out;
        }

        // After the request, which may have made this reactor the leader.
        if !self.pipeline.is_leader() {
            return out;
        }

        // Any event may have been meant by rules that cannot be read, so each one fails.
        let rules = match rules {
            Ok(rules) => rules,
            Err(note) => {
                out.notes.push(note.failing(self.pipeline.rules_file()));
                return out;
            }
        };

        for (pattern, references) in rules.matching(tag) {
            if only.is_none_or(|only| only.contains(pattern)) {
                out.matched.extend(references.iter().cloned());
            }
        }

        if out.matched.is_empty() {
            return out;
        }

        if let Some(chunks) = self.chunks(tag, &data, detail, &mut out) {
            self.calls(chunks, detail, &mut out);
        }

        out
    }

    /// Handles a request; true if the event must also be matched with the rules.
    fn managed(
        &mut self,
        request: Request,
        data: &Opened<'_>,
        body: Body<'_>,
        out: &mut Outcome,
    ) -> bool {
        let data = data.map();
        let has_key = match body {
            Body::Value(_) => manage::has_key(&data, &self.pipeline.key_file),
            Body::Stored { has_key, .. } => has_key,
        };

        // Whoever may fire an event could otherwise change the rules.
        if !has_key {
            out.notes
                .push(manage::without_key().failing(Location::default()));
            return false;
        }

        let verb = match request {
            Request::Other => return true,
            Request::IsLeader | Request::SetLeader => {
                self.pipeline.manage(|pipeline, managed| {
                    // The request goes to all masters on the bus; only the master that it names
                    // changes.
                    let ours = data.get("id").and_then(Value::as_str) == Some(&pipeline.id);
                    if request == Request::SetLeader && ours {
                        match data.get("value") {
                            Some(value) => managed.leader = value.clone(),
                            None => out
                                .notes
                                .push(manage::lacks("value").failing(Location::default())),
                        }
                    }
                    out.fired.push(manage::leader(managed.leader.clone()));
                });
                // Unlike the other requests, these are events for the rules as well, as in Salt.
                return true;
            }
            Request::List => "list-results",
            Request::Add => "add-complete",
            Request::Delete => "delete-complete",
        };

        // The pipeline may have been replaced since the event was read; the change is for its
        // successor.
        self.pipeline.manage(|pipeline, managed| {
            let result = match request {
                Request::Add => match (data.get("event"), data.get("reactors")) {
                    (Some(event), Some(reactors)) => {
                        let references = Some(reactors.clone());
                        let added =
                            pipeline.change(managed, event.clone(), references, &mut out.notes);
                        Some(status_of(
                            added,
                            "Reactor added.",
                            "Reactor already exists.",
                            out,
                        ))
                    }
                    (None, _) => return refused(manage::lacks("event"), out),
                    (_, None) => return refused(manage::lacks("reactors"), out),
                },
                Request::Delete => match data.get("event") {
                    Some(event) => {
                        let deleted = pipeline.change(managed, event.clone(), None, &mut out.notes);
                        Some(status_of(
                            deleted,
                            "Reactor deleted.",
                            "Reactor does not exists.",
                            out,
                        ))
                    }
                    None => return refused(manage::lacks("event"), out),
                },
                _ => None,
            };

            // The response shows the rules after the change.
            match pipeline.rules() {
                Ok(rules) => out.fired.push(manage::answer(
                    verb,
                    Value::List(rules.entries.clone()),
                    result,
                )),
                Err(note) => out.notes.push(note.failing(pipeline.rules_file())),
            }
            false
        })
    }

    /// Renders and compiles all references of an event.
    fn chunks(
        &mut self,
        tag: &str,
        data: &Opened<'_>,
        detail: Detail,
        out: &mut Outcome,
    ) -> Option<Vec<Map>> {
        let pipeline = Arc::clone(&self.pipeline);
        let ambients = self
            .ambients
            .get_or_insert_with(|| Ambients::new(Arc::clone(&pipeline.opts)));

        // One object for all files, because a file sees what an earlier one has changed in it.
        let mut data = match data.for_templates() {
            Ok(data) => data,
            Err(cause) => {
                out.notes.push(
                    Note::error(LOGGER, "Exception encountered while compiling reactions")
                        .because(cause)
                        .failing(Location::default()),
                );
                return None;
            }
        };

        let mut rendering = Rendering {
            engine: &pipeline.engine,
            salt: &pipeline.salt,
            functions: &pipeline.functions,
            ambients,
            tag,
            data: &mut data,
            everything: detail == Detail::Everything,
        };

        let mut highs = Vec::new();

        // Moved out, because the renderings write to the rest of `out`.
        let matched = std::mem::take(&mut out.matched);
        let mut is_text = true;

        for reference in &matched {
            let Some(text) = reference.as_str() else {
                out.notes.push(
                    Note::error(LOGGER, "Exception encountered while compiling reactions")
                        .because(format!(
                            "a reference is not a string: {}",
                            reference.python_repr()
                        ))
                        .failing(Location::default()),
                );
                // The exception that Salt raises here ends all reactions to the event.
                is_text = false;
                break;
            };

            let mut of_reference = Map::default();
            let (files, salt) = (&pipeline.files, &pipeline.salt);
            for (found, template) in
                &*pipeline
                    .templates
                    .open(text, tag, files, salt, &mut out.notes)
            {
                tracing::debug!(target: "reactor", "compile template: {}", found.path);
                if let Some(high) = rendering.file(found, template.clone(), out) {
                    if rendering.everything {
                        of_reference.extend(high.clone());
                    }
                    highs.push(high);
                }
            }

            if rendering.everything {
                out.high.push(of_reference);
            }
        }

        out.matched = matched;
        if !is_text || highs.is_empty() {
            return None;
        }

        // As one, like Salt: an error in any of the files drops the chunks of all.
        match compile::low(highs) {
            Ok(chunks) => Some(chunks),
            Err(refused) => {
                let names: Vec<String> = out
                    .matched
                    .iter()
                    .filter_map(Value::as_str)
                    .map(str::to_owned)
                    .collect();
                out.notes.push(
                    Note::error("salt.utils.reactor", refused.message(tag, &names))
                        .failing(Location::file(names.join(", "))),
                );
                None
            }
        }
    }

    fn calls(&self, chunks: Vec<Map>, detail: Detail, out: &mut Outcome) {
        if detail == Detail::Everything {
            out.low.clone_from(&chunks);
        }

        let Pipeline {
            dispatch: settings,
            salt,
            pool_full,
            ..
        } = &*self.pipeline;
        let dispatch = Dispatch {
            settings,
            salt: &**salt,
            pool_full: *pool_full,
        };

        for chunk in chunks {
            // Only with the rendered strings, lines are known.
            let id = chunk
                .get("__id__")
                .filter(|_| !out.renders.is_empty())
                .map(Value::python_str);

            let before = out.notes.len();
            out.calls.extend(dispatch.call(chunk, &mut out.notes));

            // Only the notes of this chunk.
            let places = out
                .notes
                .iter_mut()
                .skip(before)
                .filter_map(|note| note.fails.as_mut());
            for place in places.filter(|place| place.line.is_none()) {
                place.line = id
                    .as_ref()
                    .and_then(|id| line_of(id, &place.file, &out.renders));
                place.rendered = place.line.is_some();
            }
        }
    }
}

/// The line of an ID in the rendered text of a file, if it is unique.
fn line_of(id: &str, file: &str, renders: &[Render]) -> Option<u32> {
    let text = renders
        .iter()
        .rev()
        .find(|render| render.file == file)?
        .text
        .as_ref()?;

    // An ID is a key of the rendered text, quoted or not.
    let is_id = |line: &str| {
        let line = line.trim_start_matches(['"', '\'']);
        line.strip_prefix(id).is_some_and(|rest| {
            rest.trim_start_matches(['"', '\''])
                .trim_start()
                .starts_with(':')
        })
    };

    let mut found = (1..)
        .zip(text.lines())
        .filter(|(_, line)| is_id(line))
        .map(|(number, _)| number);

    // An ID that occurs twice names no line, which is better than a wrong one.
    found.next().filter(|_| found.next().is_none())
}

fn refused(note: Note, out: &mut Outcome) -> bool {
    out.notes.push(note.failing(Location::default()));
    false
}

fn status_of(changed: Result<bool, Note>, yes: &str, no: &str, out: &mut Outcome) -> Value {
    match changed {
        Ok(true) => manage::status(true, yes),
        Ok(false) => manage::status(false, no),
        Err(note) => {
            let answer = manage::status(false, &note.message);
            out.notes.push(note.failing(Location::default()));
            answer
        }
    }
}

/// An event's data as a mapping.
enum Opened<'a> {
    Value(&'a Value),
    Msgpack(&'a [u8], Option<&'a str>),
}

impl<'a> Body<'a> {
    /// The type of data that is not a mapping.
    fn opened(self) -> Result<Opened<'a>, &'static str> {
        match self {
            Body::Value(value @ Value::Map(_)) => Ok(Opened::Value(value)),
            Body::Value(Value::Null) => Err("nothing"),
            Body::Value(Value::List(_)) => Err("a list"),
            Body::Value(_) => Err("a single value"),
            Body::Stored { data, .. } => match msgpack::user_of(data) {
                Some(user) => Ok(Opened::Msgpack(data, user)),
                None => Err("not a msgpack mapping"),
            },
        }
    }
}

impl Opened<'_> {
    /// Events caused by the reactor's own runners and wheel functions are ignored.
    fn is_reactor_s(&self) -> bool {
        match self {
            Opened::Value(value) => {
                value
                    .as_map()
                    .and_then(|map| map.get("user"))
                    .and_then(Value::as_str)
                    == Some(REACTOR_USER)
            }
            Opened::Msgpack(_, user) => *user == Some(REACTOR_USER),
        }
    }

    fn map(&self) -> Map {
        match self {
            Opened::Value(Value::Map(map)) => map.clone(),
            Opened::Value(_) => Map::default(),
            Opened::Msgpack(bytes, _) => {
                match from_msgpack(bytes).map(|data| data.to_value()) {
                    Ok(Value::Map(map)) => map,
                    // The data is too deep; a request then lacks its fields and is rejected.
                    _ => Map::default(),
                }
            }
        }
    }

    fn for_templates(&self) -> Result<Data, String> {
        match self {
            Opened::Value(value) => Ok(Data::from_value(value)),
            Opened::Msgpack(bytes, _) => from_msgpack(bytes),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reactor::helper::salt::NoSalt;
    use salt_sls::yaml;

    fn patterns(pipeline: &Pipeline) -> String {
        let rules = pipeline.rules().unwrap();
        rules
            .all()
            .map(|(pattern, _)| &**pattern)
            .collect::<Vec<_>>()
            .join(" ")
    }

    #[test]
    fn only_salt_has_grains_and_the_options_that_are_not_configured() {
        let dir = tempfile::tempdir().unwrap();
        let (file, sls) = (dir.path().join("master"), dir.path().join("a.sls"));
        std::fs::write(
            &file,
            format!("owner: me\nreactor: [{{a: [{}]}}]\n", sls.display()),
        )
        .unwrap();
        let pipeline = Arc::new(Pipeline::new(&SaltMaster::read(&file), Arc::new(NoSalt)));
        let check = |value: &str, expected: Result<&str, &str>| {
            std::fs::write(
                &sls,
                format!("x:\n  local.test.arg:\n    - tgt: {{{{ {value} }}}}\n"),
            )
            .unwrap();
            let data = yaml::load("{}").unwrap();
            let out =
                Worker::new(pipeline.clone()).react("a", Body::Value(&data), Detail::Everything);
            let causes: String = out
                .notes
                .iter()
                .filter_map(|note| note.cause.clone())
                .collect();
            match expected {
                Ok(tgt) => assert_eq!(
                    out.low[0].get("tgt"),
                    Some(&tgt.into()),
                    "{value}: {causes}"
                ),
                Err(why) => assert!(
                    causes.contains(why) && causes.contains("reactor.python"),
                    "{causes}"
                ),
            }
        };
        check("opts['owner']", Ok("me"));
        check("opts['master_job_cache']", Ok("local_cache"));
        check("opts['hash_type']", Err("hash_type"));
        check("opts.keys()|length", Err("all grains or options"));
        check("'some' if grains else 'none'", Ok("some"));
        check("'some' if opts.keys() else 'none'", Ok("some"));
        check("grains['os']", Err("os"));
    }

    #[test]
    fn a_reload_keeps_the_changes_by_salt_run() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("master");
        let read = |rules: &str| {
            std::fs::write(
                &file,
                format!(
                    "id: m\ncachedir: {}\nreactor: {rules}\n",
                    dir.path().display()
                ),
            )
            .unwrap();
            Arc::new(Pipeline::new(&SaltMaster::read(&file), Arc::new(NoSalt)))
        };
        std::fs::write(dir.path().join(".root_key"), "the key").unwrap();
        let old = read("[{a: [/a]}, {b: [/b]}]");
        let ask = |tag: &str, data: &str| {
            let data = yaml::load(&format!("{{key: the key, {data}}}")).unwrap();
            let tag = format!("salt/run/1/salt/reactors/manage/{tag}");
            let out = Worker::new(old.clone()).react(&tag, Body::Value(&data), Detail::Everything);
            assert!(
                out.notes.is_empty() && out.fired.len() == 1,
                "{:?}",
                out.notes
            );
        };
        ask("add", "event: c, reactors: [/c]");
        ask("delete", "event: a");
        ask("add", "event: d, reactors: [/d]");
        ask("delete", "event: d");
        ask("set_leader", "id: m, value: false");
        assert_eq!(patterns(&old), "b c");
        let new = read("[{a: [/a]}, {b: [/b]}, {e: [/e]}]");
        new.take_over(&old);
        assert_eq!((patterns(&new).as_str(), new.is_leader()), ("b e c", false));
        let newer = read("[{c: [/c]}, {b: [/b]}]");
        newer.take_over(&new);
        assert_eq!(
            (patterns(&newer).as_str(), newer.is_leader()),
            ("c b", false)
        );
        // A request that was under way during a reload changed rules that were no longer in use, and was answered with success.
        ask("add", "event: late, reactors: [/late]");
        ask("set_leader", "id: m, value: true");
        assert_eq!(
            (patterns(&newer).as_str(), newer.is_leader()),
            ("c b late", true)
        );
    }
}
