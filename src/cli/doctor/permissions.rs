//! Who else can read or write the state directory and the key of HTTPS, or replace the directories that hold them.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use super::{Advice, Findings, Verdict};
use crate::config::Config;
use crate::door;

/// Looks at both; `uid` is whom the daemon runs as.
pub(super) fn look(found: &mut Findings, config: &Config, uid: u32) {
    let why = "it holds every event and return in clear: secrets, and what minions are told to do";
    let dir =
        Private { check: "state directory", path: &config.state_dir, forbidden: config.umask(), why, uid };
    dir.look(found);
    if let Some(key) = &config.https.key {
        let why = "with it another machine can pass for the daemon";
        // A key that a group may read is usual: `ssl-cert`.
        Private { check: "https.key", path: key, forbidden: 0o037, why, uid }.look(found);
    }
}

/// A file or directory that only the daemon's user, and perhaps a group, is to come to.
struct Private<'a> {
    check: &'static str,
    path: &'a Path,
    /// Permissions that it should not have.
    forbidden: u32,
    /// Why it matters.
    why: &'a str,
    uid: u32,
}

impl Private<'_> {
    fn look(&self, found: &mut Findings) {
        let Self { check, path, forbidden, why, uid } = *self;
        let name = path.display();
        let looked = fs::metadata(path).and_then(|file| Ok((file, door::parents(path, check, uid)?)));
        let (file, replaced) = match looked {
            // The daemon makes its directory; a key that is not there is said by `check`.
            Err(error) if error.kind() == io::ErrorKind::NotFound => return,
            Err(error) => {
                return found.say(check, Verdict::Warning, format!("cannot look at {name}: {error}"));
            }
            Ok(looked) => looked,
        };
        let before = found.0.len();
        let advise = |found: &mut Findings, words: String, write: String| {
            found.advise(check, Verdict::Warning, words, Advice { why: why.to_owned(), write });
        };
        let mode = file.mode() & 0o7777;
        if mode & forbidden != 0 {
            let has = |bits: u32| mode & forbidden & bits != 0;
            let whose = if has(0o007) { "others" } else { "its group" };
            let what = if has(0o022) { "read or write" } else { "read" };
            advise(
                found,
                format!("{whose} can {what} {name} (mode {mode:04o})"),
                format!("`chmod {:04o} {name}`", mode & !forbidden),
            );
        }
        if file.uid() != 0 && file.uid() != uid {
            let owner = file.uid();
            advise(
                found,
                format!("{name} belongs to uid {owner}, the daemon runs as uid {uid}"),
                format!("`chown {uid} {name}`"),
            );
        }
        for concern in replaced {
            let verdict = if concern.grave { Verdict::Problem } else { Verdict::Warning };
            found.say(check, verdict, concern.to_string());
        }
        if found.0.len() == before {
            found.say(check, Verdict::Ok, format!("{name}, mode {mode:04o}, owner {}", file.uid()));
        }
    }
}
