//! Resolution of references to files: local paths and patterns, and `salt://` in the master's
//! `file_roots`, or fetched by Salt if its file server uses other backends. Caches the strings of
//! unchanged files.
//!
//! # Invariant
//!
//! A cached text is used only if time, size and inode of its file are unchanged. A file that was
//! written less than 3 s before it was read could be rewritten with equal time and size, so it
//! is read each time until it has settled.

use std::fs::{self, Metadata};
use std::io::Read as _;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use quick_cache::sync::Cache;
use salt_sls::Glob;
use salt_sls::jinja::{Engine, Prepared, Source};

use super::pipe::{self, RendererSettings, Stage};
use super::renderers::{Owner, Renderers, SiteRenderers};
use crate::base::clock::Clock;
use crate::base::limits;
use crate::config::python_glob::{glob, has_magic};
use crate::config::salt_master::{Roots, SaltMaster};
use crate::model::{Location, Note, NoteLevel};
use crate::reactor::helper::salt::Salt;

const LOGGER: &str = "salt.utils.reactor";

/// File systems record timestamps in ticks; two writes within a tick have equal timestamps.
const SETTLED_SECONDS: i64 = 2;

/// The identity of an unchanged file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::reactor) struct Fingerprint {
    dev: u64,
    ino: u64,
    size: u64,
    modified: (i64, i64),
    changed: (i64, i64),
    settled: bool,
}

impl Fingerprint {
    pub(in crate::reactor) fn of(path: &Path) -> Option<Self> {
        fs::metadata(path)
            .ok()
            .map(|metadata| Self::from_metadata(&metadata))
    }

    fn from_metadata(metadata: &Metadata) -> Self {
        Self {
            dev: metadata.dev(),
            ino: metadata.ino(),
            size: metadata.size(),
            modified: (metadata.mtime(), metadata.mtime_nsec()),
            changed: (metadata.ctime(), metadata.ctime_nsec()),
            settled: Clock::real().now().0 / 1_000_000 - metadata.mtime() > SETTLED_SECONDS,
        }
    }

    /// True if a string read at this fingerprint is valid for a file with the fingerprint `now`.
    pub(in crate::reactor) fn is_unchanged(&self, now: &Self) -> bool {
        self.settled
            && (self.dev, self.ino, self.size, self.modified, self.changed)
                == (now.dev, now.ino, now.size, now.modified, now.changed)
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Found {
    /// The path as Salt shows it: for `salt://`, the path in Salt's cache.
    pub(crate) path: String,
    pub(crate) source: PathBuf,
    /// The `salt://` reference and environment; `None` for a local file.
    pub(crate) remote: Option<(String, String)>,
}

#[derive(Debug)]
pub(crate) struct Template {
    pub(crate) text: Arc<str>,
    pub(crate) stages: Vec<Stage>,
    /// The state of the renderers from which the stages follow.
    pub(crate) renderers: u64,
    /// Log messages of each use: unknown or disallowed renderers.
    pub(crate) notes: Vec<Note>,
    /// The compiled text.
    pub(in crate::reactor) prepared: OnceLock<Prepared>,
    /// Whether the text contains the word `grains`.
    pub(in crate::reactor) wants_grains: bool,
    not_native: OnceLock<Vec<String>>,
    settled: bool,
}

/// The files of a reference with their templates, in order.
pub(in crate::reactor) type Opened = Arc<Vec<(Found, Result<Arc<Template>, Unusable>)>>;

impl Template {
    /// The error that prevents any rendering.
    pub(crate) fn fault(&self) -> Option<String> {
        self.notes
            .iter()
            .find(|note| note.level == NoteLevel::Error)
            .map(|note| note.message.clone())
    }

    /// Whether only Salt can render what is not native: the text is Jinja, JSON or YAML, or for a
    /// renderer of the site.
    pub(crate) fn needs_salt(&self) -> bool {
        let is_of_site = |stage: &Stage| stage.owner == Owner::Site;
        self.stages.iter().all(Stage::is_native) || self.stages.iter().any(is_of_site)
    }

    /// Whether its rendering depends on no data: without Jinja, or without any of its tags. Another
    /// `jinja_env` may have other tags.
    pub(crate) fn is_static(&self, has_usual_tags: bool) -> bool {
        let is_jinja = |stage: &Stage| stage.name == "jinja" || stage.owner == Owner::Site;
        // Others expand templates, or are not known here.
        let known = [
            "yaml",
            "json",
            "toml",
            "msgpack",
            "yamlex",
            "py",
            "pydsl",
            "pyobjects",
        ];

        let is_known = |stage: &Stage| is_jinja(stage) || known.contains(&stage.name.as_str());
        if !self.stages.iter().all(is_known) {
            return false;
        }

        let has_tags = || ["{{", "{%", "{#"].iter().any(|tag| self.text.contains(tag));
        // The absence of tags proves something only if they have their usual form.
        !self.stages.iter().any(is_jinja) || has_usual_tags && !has_tags()
    }

    /// Whether it is a program, see [`Stage::is_program`].
    pub(crate) fn is_program(&self) -> bool {
        self.stages.iter().any(Stage::is_program)
    }

    /// The parts without a native implementation, as far as static analysis finds them.
    pub(crate) fn not_native(&self, engine: &Engine, path: &str) -> &[String] {
        self.not_native.get_or_init(|| {
            let foreign = self.stages.iter().filter(|stage| !stage.is_native());
            let mut found: Vec<String> = foreign.map(Stage::shown).collect();

            // A file that Salt renders anyway needs no analysis.
            if found.is_empty() && self.stages.iter().any(|stage| stage.name == "jinja") {
                let source = Source {
                    path,
                    text: &self.text,
                };
                found.extend(engine.check(&source).into_iter().map(|what| {
                    if what.line == 0 {
                        what.what
                    } else {
                        format!("line {}: {}", what.line, what.what)
                    }
                }));
            }

            found
        })
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Unusable {
    /// The file is empty, which is not an error.
    Empty,
    /// Salt's ERROR.
    Reported(Note),
    /// Cannot be read; Salt raises an exception.
    Failed(String),
}

/// Use of Salt for the file server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct BeyondRoots {
    /// The option that requires it, with its value.
    pub(crate) what: String,
    /// True if files found in `roots` take precedence over other backends.
    pub(crate) roots_first: bool,
}

#[derive(Debug, Clone)]
pub(crate) struct FileSettings {
    /// The file server's directories.
    pub(crate) roots: Roots,
    /// The default environment of `salt://`.
    pub(crate) saltenv: String,
    /// Salt's cache directory for fetched files.
    pub(crate) cachedir: String,
    /// Files hidden by the file server.
    pub(crate) ignored: Vec<Glob>,
    /// Set if the file server has other backends than `roots`, or options without a native
    /// implementation.
    pub(crate) beyond_roots: Option<BeyondRoots>,
    pub(crate) renderers: RendererSettings,
}

impl FileSettings {
    pub(crate) fn of(master: &SaltMaster) -> Self {
        let owned = |name: &str| {
            master
                .texts(name)
                .into_iter()
                .map(str::to_owned)
                .collect::<Vec<_>>()
        };

        let backends = owned("fileserver_backend");
        let (other_backends, has_regex) = (
            backends.iter().any(|backend| backend != "roots"),
            !owned("file_ignore_regex").is_empty(),
        );

        // Globs of ignored files are applied here, but not Python's regular expressions.
        let beyond_roots = (other_backends || has_regex).then(|| BeyondRoots {
            what: if other_backends {
                format!("fileserver_backend: [{}]", backends.join(", "))
            } else {
                "file_ignore_regex".to_owned()
            },
            // An expression can hide a file of the roots, and only Salt can tell.
            roots_first: !has_regex && backends.first().is_some_and(|first| first == "roots"),
        });

        Self {
            roots: master.file_roots.clone(),
            saltenv: master
                .text("saltenv")
                .filter(|env| !env.is_empty())
                .unwrap_or("base")
                .to_owned(),
            cachedir: master.cachedir.to_string_lossy().into_owned(),
            ignored: owned("file_ignore_glob")
                .iter()
                .map(|glob| Glob::new(glob))
                .collect(),
            beyond_roots,
            renderers: RendererSettings {
                default: master.text("renderer").unwrap_or("jinja|yaml").to_owned(),
                whitelist: owned("renderer_whitelist"),
                blacklist: owned("renderer_blacklist"),
                site: Arc::new(SiteRenderers::of(master)),
            },
        }
    }

    /// Finds a file in an environment: in its directories, or fetched by Salt. An error names the
    /// reason why Salt was needed.
    fn locate(
        &self,
        path: &str,
        saltenv: &str,
        salt: &dyn Salt,
    ) -> Result<Option<PathBuf>, String> {
        // It is used in paths, here (`__env__` in `file_roots`) and in Salt's cache.
        if normal(saltenv).as_deref() != Some(saltenv) {
            return Err(format!(
                "the saltenv {saltenv:?} is not a relative path without `.` and `..`"
            ));
        }

        // With another backend first, its file may hide one in the roots.
        let ours = match &self.beyond_roots {
            Some(BeyondRoots {
                roots_first: false, ..
            }) => None,
            _ => self.find(path, saltenv),
        };

        // It is found, or no other backend can have it.
        let (None, Some(beyond), Some(path)) = (&ours, &self.beyond_roots, normal(path)) else {
            return Ok(ours);
        };

        // A leading bar makes a question mark a part of the name.
        let bar = if path.contains('?') { "|" } else { "" };
        let reference = format!("salt://{bar}{path}?saltenv={saltenv}");
        salt.fetch(&reference)
            .map_err(|error| format!("{} requires Salt to fetch the file: {error}", beyond.what))
    }

    /// Finds a file in the directories of an environment. The name has no `..`.
    fn find(&self, path: &str, saltenv: &str) -> Option<PathBuf> {
        let path = normal(path)?;

        let (dirs, env) = match self.roots.get(saltenv) {
            Some(dirs) => (dirs, None),
            // As in Salt, `__env__` stands for each environment that has no roots.
            None => (self.roots.get("__env__")?, Some(saltenv)),
        };

        dirs.iter().find_map(|dir| {
            let full = match env {
                Some(env) => {
                    PathBuf::from(dir.to_string_lossy().replace("__env__", env)).join(&path)
                }
                None => dir.join(&path),
            };

            // As in Salt's file server, an ignored file does not hide one in a later directory.
            let served = full.is_file()
                && !self
                    .ignored
                    .iter()
                    .any(|glob| glob.matches(&full.to_string_lossy()));
            served.then_some(full)
        })
    }
}

/// A relative path without `.`, `..` and duplicate slashes; `None` if it leaves the directory.
fn normal(path: &str) -> Option<String> {
    if path.starts_with('/') || path.contains("../") || path == ".." || path.contains('\0') {
        return None;
    }

    let parts: Vec<&str> = path
        .split('/')
        .filter(|part| !part.is_empty() && *part != ".")
        .collect();
    let leads_out = parts.last() == Some(&"..") || parts.is_empty();
    (!leads_out).then(|| parts.join("/"))
}

/// Path and environment of a reference without `salt://`.
fn split_reference(rest: &str, saltenv: &str) -> (String, String) {
    // A leading bar makes a question mark a part of the name.
    if let Some(escaped) = rest.strip_prefix('|') {
        return match escaped.split_once("?saltenv=") {
            Some((path, env)) => (path.trim_start_matches('|').to_owned(), env.to_owned()),
            None => (
                escaped.trim_start_matches('|').to_owned(),
                saltenv.to_owned(),
            ),
        };
    }

    let (path, query) = rest.split_once('?').unwrap_or((rest, ""));
    let env = query
        .split('&')
        .find_map(|part| part.strip_prefix("saltenv="));

    (
        path.to_owned(),
        env.filter(|env| !env.is_empty())
            .unwrap_or(saltenv)
            .to_owned(),
    )
}

/// Finds the files of a reference, in order. Notes an ERROR if there are none.
pub(crate) fn resolve(
    reference: &str,
    tag: &str,
    settings: &FileSettings,
    salt: &dyn Salt,
    notes: &mut Vec<Note>,
) -> Vec<Found> {
    let missing = |shown: &str| {
        Note::error(
            LOGGER,
            format!("Can not render SLS {shown} for tag {tag}. File missing or not found."),
        )
        .failing(Location::file(reference))
    };

    let Some(rest) = reference.strip_prefix("salt://") else {
        // Without that prefix it is a local path, as for Salt.
        let files = local(reference);
        if files.is_empty() {
            notes.push(missing(reference));
        }
        return files
            .into_iter()
            .map(|path| Found {
                source: PathBuf::from(&path),
                path,
                remote: None,
            })
            .collect();
    };

    let (path, saltenv) = split_reference(rest, &settings.saltenv);
    let unable = || {
        let words = format!("Unable to cache file 'salt://{path}' from saltenv '{saltenv}'.");
        Note::error("salt.loaded.int.module.cp", words)
    };

    let source = match settings.locate(&path, &saltenv, salt) {
        Ok(Some(source)) => source,
        Ok(None) => {
            // Salt's two messages: from its file client, and from the reactor, which has no path
            // then.
            notes.extend([unable(), missing("")]);
            return Vec::new();
        }
        Err(why) => {
            notes.extend([unable().because(why), missing("")]);
            return Vec::new();
        }
    };

    // Salt copies the file to its cache, and shows that path.
    let relative = normal(&path).unwrap_or(path);
    let shown = format!(
        "{}/files/{saltenv}/{relative}",
        settings.cachedir.trim_end_matches('/')
    );
    vec![Found {
        path: shown,
        source,
        remote: Some((reference.to_owned(), saltenv)),
    }]
}

fn local(reference: &str) -> Vec<String> {
    if has_magic(reference) {
        return glob(reference);
    }
    if fs::symlink_metadata(reference).is_ok() {
        vec![reference.to_owned()]
    } else {
        Vec::new()
    }
}

/// Cache of file strings, shared by all threads.
#[derive(Debug)]
pub(crate) struct Templates {
    kept: Cache<PathBuf, Kept>,
    /// By reference, with the end of validity.
    trusted: Cache<String, (Instant, Opened)>,
}

impl Default for Templates {
    fn default() -> Self {
        Self {
            kept: Cache::new(limits::REACTOR_TEMPLATES_MAX),
            trusted: Cache::new(limits::REACTOR_TEMPLATES_MAX),
        }
    }
}

#[derive(Debug, Clone)]
struct Kept {
    fingerprint: Fingerprint,
    renderers: Renderers,
    template: Result<Arc<Template>, Unusable>,
}

impl Templates {
    /// The files of a reference with their templates; may be slightly out of date.
    pub(in crate::reactor) fn open(
        &self,
        reference: &str,
        tag: &str,
        settings: &FileSettings,
        salt: &Arc<dyn Salt>,
        notes: &mut Vec<Note>,
    ) -> Opened {
        let now = Instant::now();
        if let Some((until, opened)) = self.trusted.get(reference)
            && now < until
        {
            return opened;
        }

        // Two threads may find and read the same files.
        let found = resolve(reference, tag, settings, &**salt, notes);
        let opened: Vec<_> = found
            .into_iter()
            .map(|found| {
                let template = self.get(&found, &settings.renderers, salt);
                (found, template)
            })
            .collect();

        // Missing, broken and recently written files are checked each time.
        let good = |template: &Result<Arc<Template>, Unusable>| {
            template.as_ref().is_ok_and(|template| template.settled)
        };
        let all_good = !opened.is_empty() && opened.iter().all(|(_, template)| good(template));
        let opened = Arc::new(opened);

        if all_good {
            self.trusted.insert(
                reference.to_owned(),
                (now + limits::REACTOR_FILES_TRUSTED, Arc::clone(&opened)),
            );
        }

        opened
    }

    /// The current template of a file.
    pub(crate) fn get(
        &self,
        found: &Found,
        settings: &RendererSettings,
        salt: &Arc<dyn Salt>,
    ) -> Result<Arc<Template>, Unusable> {
        let does_not_exist = || {
            Unusable::Reported(Note::error(
                "salt.template",
                format!("Template does not exist: {}", found.path),
            ))
        };

        let metadata = fs::metadata(&found.source).map_err(|_| does_not_exist())?;
        // Salt does not read directories or devices either.
        if !metadata.is_file() {
            return Err(does_not_exist());
        }

        // From before the file is read: if it changes meanwhile, it is reread for the next
        // event.
        let now = Fingerprint::from_metadata(&metadata);
        let renderers = settings.site.now(salt);

        let kept = self
            .kept
            .get(&found.source)
            .filter(|kept| kept.renderers == *renderers && kept.fingerprint.is_unchanged(&now));
        if let Some(kept) = kept {
            return kept.template;
        }

        let template = read(found, &now, settings, &renderers, &**salt);
        self.kept.insert(
            found.source.clone(),
            Kept {
                fingerprint: now,
                renderers: (*renderers).clone(),
                template: template.clone(),
            },
        );

        template
    }
}

fn read(
    found: &Found,
    seen: &Fingerprint,
    settings: &RendererSettings,
    renderers: &Renderers,
    salt: &dyn Salt,
) -> Result<Arc<Template>, Unusable> {
    // Salt says nothing about an empty file.
    if seen.size == 0 {
        return Err(Unusable::Empty);
    }

    let text = text_of(&found.source).map_err(Unusable::Failed)?;
    if text.trim().is_empty() {
        return Err(Unusable::Reported(Note::error(
            "salt.template",
            format!("Template is nothing but whitespace: {}", found.path),
        )));
    }

    let mut notes = Vec::new();
    let mut stages = pipe::stages(&text, settings, renderers, &mut notes);
    if stages.is_empty()
        && let Some(all) = renderers.with_packages(salt)
    {
        // An installed extension of Salt may have the renderer.
        notes.clear();
        stages = pipe::stages(&text, settings, &all, &mut notes);
    }

    Ok(Arc::new(Template {
        wants_grains: wants_grains(&text),
        prepared: OnceLock::new(),
        text: text.into(),
        renderers: renderers.state,
        stages,
        notes,
        not_native: OnceLock::new(),
        settled: seen.settled,
    }))
}

/// Reads a file of at most [`limits::REACTOR_TEMPLATE_BYTES_MAX`] bytes.
fn text_of(path: &Path) -> Result<String, String> {
    let mut bytes = Vec::new();
    let file = fs::File::open(path).map_err(|error| error.to_string())?;
    // One byte more detects a file that is too large, even if it has grown.
    file.take(limits::REACTOR_TEMPLATE_BYTES_MAX + 1)
        .read_to_end(&mut bytes)
        .map_err(|error| error.to_string())?;

    if bytes.len() as u64 > limits::REACTOR_TEMPLATE_BYTES_MAX {
        return Err(format!(
            "the file contains more than {} bytes",
            limits::REACTOR_TEMPLATE_BYTES_MAX
        ));
    }

    // Salt reads files as UTF-8 only.
    String::from_utf8(bytes)
        .map_err(|error| format!("not UTF-8 from byte {}", error.utf8_error().valid_up_to()))
}

/// Whether a string contains the word `grains`.
pub(in crate::reactor) fn wants_grains(text: &str) -> bool {
    text.contains("grains")
}

#[cfg(test)]
mod tests;
