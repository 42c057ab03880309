//! Whether Salt's loader finds the extension in Salt's Python, as a package or in a directory of `module_dirs`.
//!
//! That Python lists its packages, and Salt checks the types of the configured options.

use std::fs::File;
use std::io::{BufRead as _, BufReader, Read as _, Seek as _};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

use salt_sls::json_form::encode_map;
use serde_json::Value as Json;

use crate::config::salt_master::SaltMaster;
use crate::reactor::{SaltPython, memory_file};

const TIMEOUT: Duration = Duration::from_secs(15);
/// Bytes of a file that are searched for its version.
const HEAD_BYTES: u64 = 64 * 1024;
/// What Python prints at most: 50 warnings of 400 characters, each of 12 bytes in JSON.
const ANSWER_BYTES_MAX: u64 = 1024 * 1024;
/// Precedes the version of Python in the name of a directory of `salt-pip`.
const EXTRAS: &str = "extras-";
/// Precedes the version in a module of a directory for `module_dirs`.
const WRITTEN_FROM: &str = "# Written from saltext.saltcellar ";

/// Prints versions, the path of the returner's module, whether its entry point exists, and Salt's
/// warnings about the options on standard input. Also the id that a master with these options has,
/// if Salt looks for a name of the host, for which it may ask DNS.
const QUERY: &str = r#"
import importlib.metadata as metadata, importlib.util, json, logging, sys, threading
def version(name):
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None
def path(name):
    try:
        spec = importlib.util.find_spec(name)
    except ImportError:
        return None
    return spec and spec.origin
warnings, ids = [], []
class Warnings(logging.Handler):
    def emit(self, record):
        warnings.append(record.getMessage()[:400])
def comparable(value):
    encoded = isinstance(value, dict) and any(key.startswith("$") for key in value)
    return not encoded and not str(value).startswith("sdb://")
def identify(given):
    ids.append(salt.config.apply_master_config(given)["id"])
try:
    import salt.config
    options = json.load(sys.stdin)
    given = {key: value for key, value in options.items() if comparable(value)}
    log, handler = logging.getLogger("salt.config"), Warnings()
    log.addHandler(handler)
    salt.config._validate_opts(given)
    log.removeHandler(handler)
    if not options.get("id") and not options.get("id_function"):
        asking = threading.Thread(target=identify, args=(given,), daemon=True)
        asking.start()
        asking.join(5)
except ImportError:
    pass
except Exception as error:
    warnings.append(f"cannot check the types of options: {error!r}")
entries = [entry.value for entry in metadata.entry_points(group="salt.loader")]
print(json.dumps({
    "salt": version("salt"),
    "extension": version("saltext.saltcellar"),
    "python": "%d.%d" % sys.version_info[:2],
    "module": path("saltext.saltcellar.returners.saltcellar"),
    "entry": any(value.split(":")[0] == "saltext.saltcellar" for value in entries),
    "id": ids[0] if ids else None,
    "warnings": warnings[:50],
}))
"#;

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Installed {
    pub(super) python: PathBuf,
    /// Salt's version.
    pub(super) salt: Option<String>,
    /// Python's version, such as 3.11.
    pub(super) version: Option<String>,
    /// The extension's version, if Salt's loader finds the package.
    pub(super) extension: Option<String>,
    /// The path of the package's returner.
    pub(super) module: Option<PathBuf>,
    /// The id that Salt makes of the name of the host, unless it does not have to, or takes long.
    pub(super) id: Option<String>,
    /// Salt's warnings about the types of options.
    pub(super) warnings: Vec<String>,
}

/// Runs [`QUERY`] in that Python, as the master's user. An error is the reason, without a subject.
pub(super) fn ask(python: &Path, master: &SaltMaster) -> Result<Installed, String> {
    let salt_python = SaltPython::to_ask(python, master.configured_user())?;
    // In an unnamed file, because the master's user may lack the right to read the configuration.
    let options = encode_map(master.given()).to_string();
    let options = memory_file(options.as_bytes()).map_err(|error| error.to_string())?;
    // A file, because nobody reads a pipe before the process has ended.
    let mut answer = memory_file(&[]).map_err(|error| error.to_string())?;
    let printed = answer.try_clone().map_err(|error| error.to_string())?;

    let mut child = salt_python
        .isolated()
        .args(["-c", QUERY])
        .stdin(Stdio::from(options))
        .stdout(Stdio::from(printed))
        .stderr(Stdio::null())
        .spawn()
        .map_err(|error| error.to_string())?;

    let started = Instant::now();
    // Polled, because the standard library cannot wait with a timeout.
    let status = loop {
        match child.try_wait() {
            Ok(Some(status)) => break status,
            Ok(None) if started.elapsed() < TIMEOUT => {
                std::thread::sleep(Duration::from_millis(10));
            }
            // An error means that it has just exited; it is reaped either way.
            Ok(None) | Err(_) => {
                let _ = child.kill();
                let _ = child.wait();
                return Err(format!("no response within {} s", TIMEOUT.as_secs()));
            }
        }
    };

    let mut text = String::new();
    let read = answer
        .rewind()
        .and_then(|()| answer.take(ANSWER_BYTES_MAX).read_to_string(&mut text));

    let answer: Option<Json> = read
        .ok()
        .and_then(|_| serde_json::from_str(text.lines().last()?).ok());

    let Some(answer) = answer.filter(|_| status.success()) else {
        return Err(format!(
            "no response, {status}; Python 3.10 or later is required"
        ));
    };

    let text = |key: &str| answer.get(key).and_then(Json::as_str).map(str::to_owned);
    let warnings = answer
        .get("warnings")
        .and_then(Json::as_array)
        .into_iter()
        .flatten();
    let yes = |key: &str| answer.get(key).and_then(Json::as_bool) == Some(true);

    Ok(Installed {
        python: python.to_owned(),
        salt: text("salt"),
        version: text("python"),
        // Salt loads a package only by its entry point.
        extension: text("extension").filter(|_| text("module").is_some() && yes("entry")),
        module: text("module").map(PathBuf::from),
        id: text("id"),
        warnings: warnings
            .filter_map(Json::as_str)
            .map(str::to_owned)
            .collect(),
    })
}

/// Directories of `salt-pip` in Salt's packages that contain the extension, one for each minor
/// version of Python, next to its `bin`.
pub(super) fn extras_with_extension(python: &Path) -> Vec<PathBuf> {
    let root = python
        .parent()
        .and_then(Path::parent)
        .unwrap_or(Path::new("/"));

    // A missing directory only means that this Python is not one of Salt's packages.
    let mut found: Vec<PathBuf> = std::fs::read_dir(root)
        .into_iter()
        .flatten()
        .filter_map(Result::ok)
        .filter(|entry| {
            entry
                .file_name()
                .to_str()
                .is_some_and(|name| name.starts_with(EXTRAS))
        })
        .map(|entry| entry.path())
        .filter(|dir| dir.join("saltext/saltcellar").is_dir())
        .collect();

    // A directory lists its entries in any order, and the first one is named in the finding.
    found.sort_unstable();
    found
}

pub(super) fn is_in_extras(path: &Path) -> bool {
    path.components().any(|part| {
        part.as_os_str()
            .to_str()
            .is_some_and(|name| name.starts_with(EXTRAS))
    })
}

/// The first existing candidate, and the version in its head.
pub(super) fn module_file(candidates: &[PathBuf]) -> Option<(PathBuf, Option<String>)> {
    let path = candidates.iter().find(|path| path.is_file())?;

    let lines = File::open(path)
        .ok()
        .map(|file| BufReader::new(file.take(HEAD_BYTES)).lines());

    let version = lines
        .into_iter()
        .flatten()
        .map_while(Result::ok)
        .find_map(|line| {
            let rest = line.strip_prefix(WRITTEN_FROM)?;
            Some(rest.split_whitespace().next()?.to_owned())
        });

    Some((path.clone(), version))
}

#[cfg(test)]
mod tests;
