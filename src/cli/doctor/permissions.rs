//! Permissions of the state directory and the HTTPS key, and of the directories above them.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use super::check::{Check, Machine, Run};
use super::finding::{CheckResult, Findings, is_denied};
use crate::wire::unix_listener;

pub(super) const CHECKS: &[Check] = &[
    Check {
        name: "state directory",
        not_ok_when: "other users can read or write it (the group may read it if `socket_group` is set), or can replace it: a parent is writable, and not sticky",
        run: Run::Machine(state_directory),
    },
    Check {
        name: "https.key",
        not_ok_when: "the same for the key of the minion listener; a group may read it",
        run: Run::Machine(https_key),
    },
];

fn state_directory(found: &mut Findings, machine: &Machine<'_>) {
    let config = machine.config;
    let why = "it contains every event and return in plain text, including secrets";
    let dir = PrivatePath {
        check: "state directory",
        path: &config.state_dir,
        forbidden: config.umask(),
        why,
        uid: machine.daemon_uid,
    };

    dir.check(found);
}

fn https_key(found: &mut Findings, machine: &Machine<'_>) {
    if let Some(key) = &machine.config.https.key {
        let why = "with it another host can impersonate the daemon";

        // Group read access is usual for keys: `ssl-cert`.
        PrivatePath {
            check: "https.key",
            path: key,
            forbidden: 0o037,
            why,
            uid: machine.daemon_uid,
        }
        .check(found);
    }
}

/// A file or directory that should be accessible only to the daemon's user, and possibly a group.
struct PrivatePath<'a> {
    check: &'static str,
    path: &'a Path,
    /// Mode bits that it must not have.
    forbidden: u32,
    why: &'a str,
    uid: u32,
}

impl PrivatePath<'_> {
    fn check(&self, found: &mut Findings) {
        let Self {
            check,
            path,
            forbidden,
            why,
            uid,
        } = *self;

        let name = path.display();
        let looked = fs::metadata(path)
            .and_then(|file| Ok((file, unix_listener::parent_problems(path, check, uid)?)));

        let (file, replaced) = match looked {
            // The daemon creates its directory; `saltcellar config check` reports a missing key.
            Err(error) if error.kind() == io::ErrorKind::NotFound => return,
            Err(error) if is_denied(&error) => return found.of(check).needs_root(name),
            Err(error) => {
                return found
                    .of(check)
                    .warn(format!("cannot inspect {name}: {error}"));
            }
            Ok(looked) => looked,
        };

        // The path is reported as private only if nothing is found from here on.
        let before = found.0.len();
        let advise = |found: &mut Findings, message: String, write: String| {
            found.of(check).warn_because(message, why, write);
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

        // Root may own it, because root has access in any case.
        if file.uid() != 0 && file.uid() != uid {
            let owner = file.uid();
            advise(
                found,
                format!("{name} is owned by uid {owner}, but the daemon runs as uid {uid}"),
                format!("`chown {uid} {name}`"),
            );
        }

        // Whoever can replace a directory above it can replace the path itself.
        for concern in replaced {
            let result = if concern.fatal {
                CheckResult::Problem
            } else {
                CheckResult::Warning
            };
            found.of(check).add(result, concern.to_string());
        }

        if found.0.len() == before {
            found
                .of(check)
                .ok(format!("{name}, mode {mode:04o}, owner {}", file.uid()));
        }
    }
}
