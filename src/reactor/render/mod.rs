//! High data of a file, through its renderers: natively where possible, otherwise by Salt's own
//! renderers.

pub mod data;
pub(super) mod files;
pub(super) mod pipe;
pub(super) mod renderers;

use std::borrow::Cow;
use std::sync::{Arc, OnceLock};

use salt_sls::compile::{self, FileError};
use salt_sls::jinja::{Ambient, Context, Data, Engine, RenderError, SaltFunctions, Source};
use salt_sls::yaml::{self, YamlError};
use salt_sls::{Map, Value, json};

use self::files::{Found, Template, Unusable, wants_grains};
use super::helper::functions::Functions;
use super::helper::salt::{Native, Recorded, Salt, SaltError, SaltFile};
use super::outcome::{NotNative, Outcome, Render};
use crate::model::{Location, Note, NoteLevel};

const LOGGER: &str = "salt.utils.reactor";

/// The inputs of a rendering, except for the file.
pub(super) struct Rendering<'a> {
    pub(super) engine: &'a Engine,
    pub(super) salt: &'a Arc<dyn Salt>,
    pub(super) functions: &'a Arc<Functions>,
    pub(super) ambients: &'a mut Ambients,
    pub(super) tag: &'a str,
    /// The event's data, shared by all files of the event, which may change it.
    pub(super) data: &'a mut Data,
    pub(super) everything: bool,
}

/// The template environments of a thread.
pub(super) struct Ambients {
    opts: Arc<Value>,
    /// Without grains: a file that reads one after all is rendered by Salt.
    plain: (Arc<Value>, Arc<Ambient>),
    /// With Salt's grains; created when a template uses grains.
    full: Option<(Arc<Value>, Arc<Ambient>)>,
}

impl Ambients {
    pub(super) fn new(opts: Arc<Value>) -> Self {
        let grains = Arc::new(Value::Map(Map::default()));
        let plain = (
            Arc::clone(&grains),
            Arc::new(Ambient::new(grains, Arc::clone(&opts), false)),
        );
        Self {
            opts,
            plain,
            full: None,
        }
    }

    /// The environment of a template. Reading grains may start Salt, so only templates that use
    /// them get them.
    fn of(
        &mut self,
        wants: bool,
        salt: &dyn Salt,
    ) -> Result<(&Arc<Value>, &Arc<Ambient>), SaltError> {
        // If Salt gives none, the next template asks again.
        if wants && self.full.is_none() {
            self.full = salt.grains()?.map(|grains| {
                let grains = Arc::new(grains);
                (
                    Arc::clone(&grains),
                    Arc::new(Ambient::new(grains, Arc::clone(&self.opts), true)),
                )
            });
        }

        let (grains, ambient) = self.full.as_ref().filter(|_| wants).unwrap_or(&self.plain);
        Ok((grains, ambient))
    }
}

/// The state of a file between two renderers.
enum Between<'a> {
    Text(Cow<'a, str>),
    Values(Value),
}

/// Why a file yields nothing.
enum Failure {
    Failed(Fault),
    /// Salt must render the file: the construct that is not native, and its line.
    NotNative(String, Option<u32>),
}

/// An error in a file, with its location if known.
pub(super) struct Fault {
    cause: String,
    /// The file, if the error is in an imported template.
    file: Option<String>,
    line: Option<u32>,
}

impl From<String> for Fault {
    fn from(cause: String) -> Self {
        Self {
            cause,
            file: None,
            line: None,
        }
    }
}

impl From<&str> for Fault {
    fn from(cause: &str) -> Self {
        cause.to_owned().into()
    }
}

impl From<YamlError> for Fault {
    fn from(error: YamlError) -> Self {
        Self {
            line: u32::try_from(error.line).ok(),
            ..error.to_string().into()
        }
    }
}

impl From<FileError> for Fault {
    fn from(error: FileError) -> Self {
        match error {
            FileError::Yaml(error) => error.into(),
            FileError::Shape(cause) => cause.into(),
        }
    }
}

impl From<RenderError> for Fault {
    fn from(error: RenderError) -> Self {
        let line = Some(error.line).filter(|line| *line > 0);
        Self {
            cause: error.to_string(),
            line,
            file: Some(error.file),
        }
    }
}

impl Fault {
    /// An exception of Salt's renderers; some include the line in the text.
    fn of_salt(cause: String) -> Self {
        let digits = |rest: &str| {
            rest.split(|c: char| !c.is_ascii_digit())
                .next()?
                .parse()
                .ok()
        };
        let line = cause
            .rsplit_once("line ")
            .and_then(|(_, rest)| digits(rest));
        Self {
            line,
            ..cause.into()
        }
    }
}

/// The first renderer without a native implementation, or with unsupported options.
pub(super) fn foreign_stage(template: &Template) -> Option<String> {
    template
        .stages
        .iter()
        .find(|stage| !stage.is_native())
        .map(pipe::Stage::shown)
}

impl Rendering<'_> {
    /// The file's high data; `None` if it contains none. Errors are in the outcome's notes.
    pub(super) fn file(
        &mut self,
        found: &Found,
        template: Result<Arc<Template>, Unusable>,
        out: &mut Outcome,
    ) -> Option<Map> {
        let template = match template {
            Ok(template) => template,
            Err(Unusable::Empty) => return None,
            Err(Unusable::Reported(note)) => {
                out.notes.push(note.failing(Location::file(&found.path)));
                return None;
            }
            Err(Unusable::Failed(cause)) => {
                out.notes.push(failed(&found.path, cause));
                return None;
            }
        };

        // The file names a renderer that does not exist, as its notes say.
        if template.stages.is_empty() {
            let at = Location {
                line: Some(1),
                ..Location::file(&found.path)
            };
            out.notes.extend(
                template
                    .notes
                    .iter()
                    .map(|note| note.clone().failing(at.clone())),
            );
            return None;
        }

        if let Some(why) = foreign_stage(&template) {
            return self.by_salt(found, &template, &why, None, out);
        }

        // If Salt must render the file after all, it needs the unchanged data.
        let source = Source {
            path: &found.path,
            text: &template.text,
        };

        let prepared = template
            .prepared
            .get_or_init(|| self.engine.prepare(&source));
        let before = prepared.mutates().then(|| self.data.to_value());

        // A file that Salt renders after all logs these again, so they can be taken back.
        let notes_before = out.notes.len();
        out.notes.extend(template.notes.iter().cloned());

        match self.stages(found, &template, out) {
            Ok(high) => high,
            Err(Failure::Failed(fault)) => {
                // Jinja names the file; later renderers count the lines of its text.
                let is_behind = template
                    .stages
                    .first()
                    .is_some_and(|stage| stage.name == "jinja");
                let rendered = is_behind && fault.file.is_none() && fault.line.is_some();

                let mut note = failed(&found.path, fault);
                if let Some(at) = &mut note.fails {
                    at.rendered = rendered;
                }

                out.notes.push(note);
                None
            }
            // Salt repeats these messages.
            Err(Failure::NotNative(why, line)) => {
                out.notes.truncate(notes_before);
                if let Some(before) = before {
                    *self.data = Data::from_value(&before);
                }
                self.by_salt(found, &template, &why, line, out)
            }
        }
    }

    fn stages(
        &mut self,
        found: &Found,
        template: &Template,
        out: &mut Outcome,
    ) -> Result<Option<Map>, Failure> {
        let mut now = Between::Text(Cow::Borrowed(&template.text));
        for (number, stage) in template.stages.iter().enumerate() {
            let last = number + 1 == template.stages.len();

            now = match (stage.name.as_str(), now) {
                // As in Salt, whose renderer accepts `-s` and nothing else.
                ("jinja", _) if !stage.options.is_empty() && stage.options != "-s" => {
                    return Err(Failure::Failed(
                        format!("Unknown renderer option: {}", stage.options).into(),
                    ));
                }
                ("jinja", Between::Text(text)) => {
                    Between::Text(self.jinja(found, template, &text, out)?.into())
                }
                // Rendering data instead of text fails.
                ("jinja", Between::Values(_)) => {
                    self.remember(out, &found.path, None);
                    return Err(Failure::Failed("jinja got data instead of text".into()));
                }
                // The last renderer needs the shared lists of the text, which values no longer
                // show.
                ("yaml", Between::Text(text)) if last => {
                    return compile::high(&text, &found.path)
                        .map(|high| (!high.is_empty()).then_some(high))
                        .map_err(|error| Failure::Failed(error.into()));
                }
                ("yaml", Between::Text(text)) => {
                    let value = yaml::load(&text).map_err(|error| Failure::Failed(error.into()))?;
                    // As in Salt, anything empty is an empty mapping.
                    Between::Values(if value.truthy() {
                        value
                    } else {
                        Value::Map(Map::default())
                    })
                }
                ("json", Between::Text(text)) => {
                    Between::Values(read_json(&text).map_err(Failure::Failed)?)
                }
                (name, Between::Values(_)) => {
                    return Err(Failure::Failed(
                        format!("{name} got data instead of text").into(),
                    ));
                }
                (name, _) => return Err(Failure::NotNative(format!("renderer \"{name}\""), None)),
            };
        }

        match now {
            // An empty file contains no reactions.
            Between::Text(text) if text.is_empty() => Ok(None),
            Between::Text(_) => Err(Failure::Failed(
                "the last renderer returned text instead of data: end the pipe with yaml".into(),
            )),
            Between::Values(value) => {
                padded(value, &found.path).map_err(|cause| Failure::Failed(cause.into()))
            }
        }
    }

    fn jinja(
        &mut self,
        found: &Found,
        template: &Template,
        text: &str,
        out: &mut Outcome,
    ) -> Result<String, Failure> {
        // After another renderer the text differs each time.
        let is_own = std::ptr::eq(text, &raw const *template.text);
        let wants = if is_own {
            template.wants_grains
        } else {
            wants_grains(text)
        };

        let (own, other) = (&template.prepared, OnceLock::new());
        let opts = Arc::clone(&self.ambients.opts);
        let (grains, ambient) = self
            .ambients
            .of(wants, &**self.salt)
            .map_err(|error| Failure::Failed(format!("cannot get grains: {error}").into()))?;

        let recorded = Arc::new(Recorded::new(Native {
            salt: Arc::clone(self.salt),
            functions: Arc::clone(self.functions),
            opts,
            grains: Arc::clone(grains),
        }));
        let salt: Arc<dyn SaltFunctions> = Arc::clone(&recorded) as _;

        let context = Context {
            tag: self.tag,
            data: self.data,
            ambient,
            salt: &salt,
        };

        // Only the text of the file itself is the same for each event.
        let kept = if is_own { own } else { &other };
        match self.engine.render_cached(
            &Source {
                path: &found.path,
                text,
            },
            kept,
            &context,
        ) {
            Ok(rendered) => {
                // From here on the calls count, because Salt does not render the file again.
                recorded.move_to(out);
                if tracing::enabled!(tracing::Level::DEBUG) {
                    tracing::debug!(target: "reactor", "Rendered data from file: {}:\n{}", found.path, rendered.text);
                }
                if self.everything {
                    self.remember(out, &found.path, Some(rendered.text.clone()));
                }
                Ok(rendered.text)
            }
            Err(error) if error.not_native() => {
                // Without calls and messages so far, because Salt repeats them.
                let line = Some(error.line).filter(|line| *line > 0);
                let at = line.map_or_else(String::new, |line| format!("line {line}: "));
                Err(Failure::NotNative(format!("{at}{}", error.message), line))
            }
            Err(error) => {
                recorded.move_to(out);
                self.remember(out, &found.path, None);

                out.notes.push(
                    Note::error("salt.utils.templates", "Rendering exception occurred")
                        .because(error.to_string()),
                );
                Err(Failure::Failed(error.into()))
            }
        }
    }

    /// Renders the whole file with Salt's renderers.
    fn by_salt(
        &mut self,
        found: &Found,
        template: &Template,
        why: &str,
        line: Option<u32>,
        out: &mut Outcome,
    ) -> Option<Map> {
        out.not_native.push(NotNative {
            file: found.path.clone(),
            why: why.to_owned(),
        });

        let data = self.data.to_value();
        let file = SaltFile {
            path: &found.path,
            source: &found.source,
            reference: found
                .remote
                .as_ref()
                .map(|(reference, _)| reference.as_str()),
            tag: self.tag,
            data: &data,
            renderers: template.renderers,
            is_program: template.is_program(),
        };

        let rendered = match self.salt.render(&file) {
            Ok(rendered) => rendered,
            Err(error) => {
                // Salt would have logged these.
                out.notes.extend(template.notes.iter().cloned());
                let cause = format!("{why} is not native: {error}");
                out.notes.push(failed(
                    &found.path,
                    Fault {
                        cause,
                        file: None,
                        line,
                    },
                ));
                return None;
            }
        };

        // For some files Salt's compiler logs an error and returns nothing.
        let gives = matches!(&rendered.result, Some(Err(_)))
            || matches!(&rendered.result, Some(Ok(value)) if value.truthy());
        let complains =
            |note: &Note| note.level == NoteLevel::Error && note.logger == "salt.template";

        out.notes.extend(rendered.notes.into_iter().map(|note| {
            if !gives && complains(&note) {
                note.failing(Location::file(&found.path))
            } else {
                note
            }
        }));

        out.salt_calls.extend(rendered.salt_calls);
        if self.everything {
            out.renders.extend(rendered.renders);
        }

        // Later files of the event see the change, as after a native template.
        if let Some(changed) = rendered.data {
            *self.data = Data::from_value(&changed);
        }

        match rendered.result {
            // Nothing to report here: Salt's messages are among the notes.
            None => None,
            Some(Ok(value)) => match padded(value, &found.path) {
                Ok(high) => high,
                Err(cause) => {
                    out.notes.push(failed(&found.path, cause));
                    None
                }
            },
            Some(Err((kind, text))) => {
                out.notes.push(failed(
                    &found.path,
                    Fault::of_salt(format!("{kind}: {text}")),
                ));
                None
            }
        }
    }

    fn remember(&self, out: &mut Outcome, file: &str, text: Option<String>) {
        if self.everything {
            out.renders.push(Render {
                file: file.to_owned(),
                text,
            });
        }
    }
}

/// Python's JSON renderer: removes a shebang line; empty text is an empty mapping.
fn read_json(text: &str) -> Result<Value, Fault> {
    let text = if text.starts_with("#!") {
        text.split_once('\n').map_or(text, |(_, rest)| rest)
    } else {
        text
    };

    if text.trim().is_empty() {
        return Ok(Value::Map(Map::default()));
    }

    let fault = |error: json::JsonError| Fault {
        line: u32::try_from(error.line).ok(),
        ..error.to_string().into()
    };

    match json::load(text).map_err(fault)? {
        // Salt renders null again, and reads an empty text then.
        Value::Null => Ok(Value::Map(Map::default())),
        value => Ok(value),
    }
}

/// High data from values. Empty iterable values are not high data, and not an error.
fn padded(value: Value, path: &str) -> Result<Option<Map>, String> {
    match value {
        Value::Null
        | Value::Bool(_)
        | Value::Int(_)
        | Value::BigInt(_)
        | Value::Float(_)
        | Value::Object(_) => Err(format!(
            "the renderers gave {} instead of a mapping",
            value.python_repr()
        )),
        // As in Salt, anything empty is a file without reactions.
        value if !value.truthy() => Ok(None),
        value => compile::pad(value, path)
            .map(Some)
            .map_err(|error| error.to_string()),
    }
}

pub(super) fn failed(path: &str, fault: impl Into<Fault>) -> Note {
    let Fault { cause, file, line } = fault.into();
    let at = Location {
        line,
        ..Location::file(file.unwrap_or_else(|| path.to_owned()))
    };

    Note::error(LOGGER, format!("Failed to render \"{path}\": "))
        .because(cause)
        .failing(at)
}
