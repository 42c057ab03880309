//! Merges configuration files as Salt does: a main file, then `default_include` and `include`. The files of an include are
//! merged with each other; the result replaces options of the main file, key by key.

use std::path::{Path, PathBuf};

use salt_sls::{Key, Map, Value, yaml};

use super::keys::read_small;
use crate::base::limits::{SALT_CONFIG_FILE_BYTES_MAX, SALT_CONFIG_FILES_MAX};
use crate::base::utf8;
use crate::config::python_glob::glob;
use crate::model::{Note, NoteLevel};

/// The logger of Salt's loader.
const LOGGER: &str = "salt.config";
/// Salt follows includes without a limit; real configurations do not nest this deep.
const INCLUDE_DEPTH_MAX: usize = 16;

/// Reads files and records their paths and problems.
#[derive(Debug, Default)]
pub(super) struct Reader {
    pub(super) files: Vec<PathBuf>,
    pub(super) notes: Vec<Note>,
    /// A file in a directory of included files, read as if it had this content, or as if it did not exist.
    pub(super) overlay: Option<(PathBuf, Option<String>)>,
}

impl Reader {
    /// The main file with all its includes.
    pub(super) fn main_file(&mut self, path: &Path, default_include: &str) -> Map {
        let mut options = self.file(path).unwrap_or_default();

        let included = match options.get("default_include") {
            Some(given) => given.clone(),
            None => default_include.into(),
        };
        let include = options.get("include").cloned().unwrap_or(Value::Null);

        // In Salt's order, in which `include` wins over `default_include`.
        options.extend(self.included(&included, path, false, 0));
        options.extend(self.included(&include, path, true, 0));
        options
    }

    /// Reads one file. `None` if it is missing, or unusable, which is noted.
    pub(super) fn file(&mut self, path: &Path) -> Option<Map> {
        // `setup` looks at the configuration before it writes or removes a file.
        let planned = self.overlay.as_ref().filter(|(planned, _)| planned == path);
        let read = match planned {
            Some((_, Some(text))) => Ok(text.clone().into_bytes()),
            Some((_, None)) => return None,
            None => read_small(path, SALT_CONFIG_FILE_BYTES_MAX),
        };

        let bytes = match read {
            Ok(bytes) => bytes,
            // For Salt a missing file is not an error.
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return None,
            Err(error) => {
                self.note(
                    NoteLevel::Error,
                    format!(
                        "Error reading configuration file: {} - {error}",
                        path.display()
                    ),
                );
                return None;
            }
        };

        // Even if it is invalid: callers watch these files for changes.
        self.files.push(path.to_owned());
        let text = match utf8::text_of(bytes) {
            Ok(text) => text,
            Err(line) => {
                self.note(
                    NoteLevel::Error,
                    format!(
                        "Error parsing configuration file: {} - line {line}: it is not UTF-8",
                        path.display()
                    ),
                );
                return None;
            }
        };

        let mut options = match yaml::load(&text) {
            Ok(Value::Map(map)) => map,
            // An empty file, for example.
            Ok(value) if !value.truthy() => Map::default(),
            Ok(_) => {
                // In Salt's words, because users compare the notes with its log.
                self.note(
                    NoteLevel::Error,
                    format!(
                        "Error parsing configuration file: {} - conf should be a document, a mapping of options",
                        path.display()
                    ),
                );
                return None;
            }
            Err(error) => {
                self.note(
                    NoteLevel::Error,
                    format!(
                        "Error parsing configuration file: {} - {error}",
                        path.display()
                    ),
                );
                return None;
            }
        };

        // Salt turns an id such as the number 42 into a string.
        if let Some(id) = options.get_mut("id")
            && !matches!(id, Value::Str(_))
        {
            *id = Value::Str(id.python_str());
        }

        Some(options)
    }

    /// The files matching `include`, sorted per pattern, merged with each other.
    fn included(&mut self, include: &Value, from: &Path, verbose: bool, depth: usize) -> Map {
        let patterns: Vec<&str> = match include {
            Value::Str(one) if !one.is_empty() => vec![one],
            Value::List(many) => many.iter().filter_map(Value::as_str).collect(),
            _ => return Map::default(),
        };

        // A file that includes itself would otherwise be read forever.
        if depth >= INCLUDE_DEPTH_MAX || self.files.len() > SALT_CONFIG_FILES_MAX {
            let message = format!(
                "{}: includes nest deeper than {INCLUDE_DEPTH_MAX}, or read more than {SALT_CONFIG_FILES_MAX} files; the rest is ignored",
                from.display()
            );
            self.note(NoteLevel::Error, message);
            return Map::default();
        }

        let mut merged = Map::default();
        for pattern in patterns {
            let pattern = relative_to(&expand_user(pattern), from);
            let mut found = glob(&pattern);

            // A planned file may not exist yet.
            if let Some((path, Some(_))) = &self.overlay
                && let Some(path) = path
                    .to_str()
                    .filter(|path| pattern.strip_suffix("/*.conf") == parent(path))
                && !found.iter().any(|known| known == path)
            {
                found.push(path.to_owned());
            }

            if found.is_empty() && verbose {
                self.note(
                    NoteLevel::Warning,
                    format!(
                        "Warning parsing configuration file: \"include\" path/glob '{pattern}' matches no files"
                    ),
                );
            }

            // By name, as in Salt, because later files replace options of earlier files.
            found.sort();
            for path in found {
                let path = PathBuf::from(path);
                // As in Salt, an unusable file was noted and contributes nothing.
                let mut options = self.file(&path).unwrap_or_default();
                if let Some(inner) = options.get("include").cloned() {
                    // Salt replaces options here (`dict.update`), although it merges the files of
                    // one pattern.
                    let inner = self.included(&inner, &path, verbose, depth + 1);
                    options.extend(inner);
                }
                update(&mut merged, options);
            }
        }

        merged
    }

    pub(super) fn note(&mut self, level: NoteLevel, message: String) {
        self.notes.push(Note::new(level, LOGGER, message));
    }
}

/// Salt's recursive update: mappings are merged, lists get the missing items, other values are replaced.
fn update(into: &mut Map, from: Map) {
    for (key, value) in from {
        match (into.get_mut(&key), value) {
            (Some(Value::Map(old)), Value::Map(new)) => update(old, new),
            (Some(Value::List(old)), Value::List(new)) => {
                let fresh: Vec<Value> = new
                    // Salt compares with Python's rules, by which 1 equals True.
                    .into_iter()
                    .filter(|item| !old.iter().any(|had| had.python_eq(item)))
                    .collect();
                old.extend(fresh);
            }

            (Some(old), value) => *old = value,
            (None, value) => {
                into.insert(key, value);
            }
        }
    }
}

fn parent(path: &str) -> Option<&str> {
    Some(path.rsplit_once('/')?.0)
}

fn expand_user(path: &str) -> String {
    match (path.strip_prefix('~'), std::env::var("HOME")) {
        (Some(rest), Ok(home)) if rest.is_empty() || rest.starts_with('/') => {
            format!("{home}{rest}")
        }
        _ => path.to_owned(),
    }
}

fn relative_to(path: &str, file: &Path) -> String {
    if path.starts_with('/') {
        return path.to_owned();
    }
    match file.parent().and_then(Path::to_str) {
        Some(dir) if !dir.is_empty() => format!("{dir}/{path}"),
        _ => path.to_owned(),
    }
}

/// A mapping, or a list of one-key mappings, as a mapping.
pub(super) fn repack(value: &Value) -> Option<Map> {
    match value {
        Value::Map(map) => Some(map.clone()),
        Value::List(items) => {
            let mut map = Map::default();
            for item in items {
                match item.as_map() {
                    Some(one) if one.len() == 1 => map.extend(one.clone()),
                    _ => return None,
                }
            }
            Some(map)
        }
        _ => None,
    }
}

/// A key as a string, as Python's `str()` gives it.
pub(super) fn key_text(key: &Key) -> String {
    key.0.python_str()
}
