//! A case of a file, and the directory in which it runs.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use salt_sls::json_form::tag;
use serde_json::Value as Json;

/// Why a case cannot run.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CaseError {
    /// It cannot be read or written.
    #[error("{path}: {error}")]
    Io {
        /// The file or directory.
        path: PathBuf,
        /// Why.
        error: io::Error,
    },
    /// It is not a case.
    #[error("{path}: {what}")]
    NoCase {
        /// The file.
        path: PathBuf,
        /// The error.
        what: String,
    },
}

/// A case.
#[derive(Debug, Clone)]
pub(crate) struct Case {
    /// Its name.
    pub(crate) id: String,
    /// The case's advice about following Salt.
    pub(crate) advice: String,
    pub(super) master_config: String,
    pub(super) files: Vec<(String, FileText)>,
    pub(super) events: Vec<Json>,
    pub(super) is_leader: bool,
    pub(super) pool_full: bool,
    pub(super) salt_stubs: Json,
    pub(super) unordered_renders: bool,
    pub(super) expect: Json,
}

#[derive(Debug, Clone)]
pub(super) enum FileText {
    Text(String),
    Bytes(Vec<u8>),
}

/// The case files of a directory, sorted.
pub(crate) fn read_cases(dir: &Path) -> Result<Vec<PathBuf>, CaseError> {
    let io = |error| CaseError::Io {
        path: dir.to_owned(),
        error,
    };

    let mut found = Vec::new();
    for entry in fs::read_dir(dir).map_err(io)? {
        let path = entry.map_err(io)?.path();
        if path
            .extension()
            .is_some_and(|extension| extension == "json")
        {
            found.push(path);
        }
    }

    // By name, because two runs must report in the same order.
    found.sort();
    Ok(found)
}

impl Case {
    /// Reads a case.
    pub(crate) fn read(path: &Path) -> Result<Self, CaseError> {
        let no_case = |what: String| CaseError::NoCase {
            path: path.to_owned(),
            what,
        };

        let text = fs::read_to_string(path).map_err(|error| CaseError::Io {
            path: path.to_owned(),
            error,
        })?;

        let json: Json = serde_json::from_str(&text).map_err(|error| no_case(error.to_string()))?;
        Self::of(&json).map_err(|what| no_case(what.to_owned()))
    }

    fn of(json: &Json) -> Result<Self, &'static str> {
        let input = json.get("input").ok_or("no `input`")?;
        let text = |of: &Json, name: &str| {
            of.get(name)
                .and_then(Json::as_str)
                .unwrap_or_default()
                .to_owned()
        };

        let flag =
            |name: &str, otherwise| input.get(name).and_then(Json::as_bool).unwrap_or(otherwise);

        let mut files = Vec::new();
        if let Some(given) = input.get("files") {
            for (name, content) in given.as_object().ok_or("`files` is not an object")? {
                files.push((
                    name.clone(),
                    file_text(content).ok_or("a file is neither text nor `$bin`")?,
                ));
            }
        }

        Ok(Self {
            id: json
                .get("id")
                .and_then(Json::as_str)
                .ok_or("no `id`")?
                .to_owned(),
            advice: text(json, "advice"),
            master_config: text(input, "master_config"),
            files,
            events: input
                .get("events")
                .and_then(Json::as_array)
                .ok_or("no `events`")?
                .clone(),
            // Without these flags a case has the state of a reactor that has just started.
            is_leader: flag("is_leader", true),
            pool_full: flag("pool_full", false),
            salt_stubs: input
                .get("salt_stubs")
                .cloned()
                .unwrap_or_else(|| Json::Object(serde_json::Map::new())),
            unordered_renders: flag("unordered_renders", false),
            expect: json
                .get("expect")
                .ok_or("no `expect`: record it with tests/lab/reactor_oracle.py")?
                .clone(),
        })
    }
}

fn file_text(content: &Json) -> Option<FileText> {
    match content {
        Json::String(text) => Some(FileText::Text(text.clone())),
        Json::Object(object) => {
            let bytes = object.get(tag::BIN)?.as_str()?;
            Some(FileText::Bytes(BASE64.decode(bytes).ok()?))
        }
        _ => None,
    }
}

/// The base configuration of each case.
const BASE: &str = "\
root_dir: ${ROOT}
user: root
id: saltmaster_master
file_roots:
  base:
    - ${ROOT}/srv/salt
  dev:
    - ${ROOT}/srv/salt-dev
pillar_roots:
  base:
    - ${ROOT}/srv/pillar
";

const MASTER_KEY: &str = "test-master-key";

/// The cache of the master, below the root directory.
const CACHE: &str = "/var/cache/salt/master";

/// The directory of a case; removed on drop.
#[derive(Debug)]
pub(super) struct CaseDir {
    root: String,
}

impl Drop for CaseDir {
    fn drop(&mut self) {
        // On failure the directory is left in the temporary directory.
        let _ = fs::remove_dir_all(&self.root);
    }
}

impl CaseDir {
    /// Creates the directory with the case's files.
    pub(super) fn set(case: &Case) -> Result<Self, CaseError> {
        // Cases may run concurrently, in one process or several.
        static NUMBER: AtomicU64 = AtomicU64::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let dir = std::env::temp_dir().join(format!(
            "saltcellar-conformance-{}-{number}",
            std::process::id()
        ));

        let io = |path: &Path, error| CaseError::Io {
            path: path.to_owned(),
            error,
        };

        fs::create_dir(&dir).map_err(|error| io(&dir, error))?;
        // Without symbolic links, because paths in results are compared as strings.
        let dir = dir.canonicalize().map_err(|error| io(&dir, error))?;

        let case_dir = Self {
            root: dir.to_string_lossy().into_owned(),
        };

        // From here on the directory is removed even if a file cannot be written.
        for dir in [
            "srv/salt",
            "srv/salt-dev",
            "srv/pillar",
            "srv/reactor",
            "etc/salt/master.d",
        ] {
            let path = PathBuf::from(&case_dir.root).join(dir);
            fs::create_dir_all(&path).map_err(|error| io(&path, error))?;
        }

        let config = FileText::Text(format!("{BASE}{}", case.master_config));
        case_dir.write("etc/salt/master", &config)?;
        case_dir.write(
            &format!("{CACHE}/.root_key"),
            &FileText::Text(MASTER_KEY.to_owned()),
        )?;

        for (name, text) in &case.files {
            case_dir.write(name, text)?;
        }

        Ok(case_dir)
    }

    fn write(&self, name: &str, text: &FileText) -> Result<(), CaseError> {
        let name = name.trim_start_matches('/');
        let path = PathBuf::from(&self.root).join(name);
        let io = |error| CaseError::Io {
            path: path.clone(),
            error,
        };

        // A case from elsewhere must not write outside of its directory.
        if name.split('/').any(|part| part == "..") {
            return Err(CaseError::NoCase {
                path,
                what: "a file is outside of the case's directory".to_owned(),
            });
        }

        if let Some(dir) = path.parent() {
            fs::create_dir_all(dir).map_err(io)?;
        }

        match text {
            FileText::Text(text) => {
                fs::write(&path, text.replace("${ROOT}", &self.root)).map_err(io)
            }
            // Bytes are written as they are, without placeholders.
            FileText::Bytes(bytes) => fs::write(&path, bytes).map_err(io),
        }
    }

    /// The master's configuration file.
    pub(super) fn config(&self) -> PathBuf {
        PathBuf::from(&self.root).join("etc/salt/master")
    }

    /// Replaces placeholders by the directory.
    pub(super) fn placed(&self, json: &Json) -> Json {
        mapped(json, &|text| text.replace("${ROOT}", &self.root))
    }

    /// Replaces the directory by placeholders.
    pub(super) fn general(&self, json: &Json) -> Json {
        mapped(json, &|text| self.general_text(text))
    }

    pub(super) fn general_text(&self, text: &str) -> String {
        let cache = format!("{}{CACHE}", self.root);
        let text = text
            .replace(&cache, "${CACHE}")
            .replace(&self.root, "${ROOT}");
        if text.contains(" at 0x") {
            without_addresses(&text)
        } else {
            text
        }
    }
}

/// Replaces addresses of Python objects, which differ each time.
fn without_addresses(text: &str) -> String {
    let mut out = String::new();
    let mut rest = text;
    while let Some(at) = rest.find("0x") {
        let (before, after) = rest.split_at(at + 2);
        out.push_str(before);

        let digits = after
            .bytes()
            .take_while(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(b))
            .count();

        let (hex, behind) = after.split_at(digits);
        // Shorter and longer numbers are no addresses.
        out.push_str(if (8..=16).contains(&digits) {
            "ADDRESS"
        } else {
            hex
        });

        rest = behind;
    }
    out + rest
}

pub(super) fn mapped(json: &Json, change: &impl Fn(&str) -> String) -> Json {
    match json {
        Json::String(text) => Json::String(change(text)),
        Json::Array(items) => items.iter().map(|item| mapped(item, change)).collect(),
        Json::Object(object) => Json::Object(
            object
                .iter()
                .map(|(key, value)| (change(key), mapped(value, change)))
                .collect(),
        ),
        other => other.clone(),
    }
}
