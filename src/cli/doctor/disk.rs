//! Free bytes and inodes of the state directory's file system.

use std::path::Path;

use super::check::{Check, Machine, Run};
use super::finding::{CheckResult, Findings};
use crate::base::units::bytes;

/// Free inodes below which they may soon run out: a segment needs about ten, Salt's caches need
/// thousands.
const FREE_INODES_LOW: u64 = 20_000;
/// Free inodes below which creating the next segment or the spool may fail.
const FREE_INODES_MIN: u64 = 200;

pub(super) const CHECKS: &[Check] = &[
    Check {
        name: "disk",
        not_ok_when: "little or no free space; only checked while no daemon responds, which would report it itself",
        run: Run::Machine(check),
    },
    Check {
        name: "inodes",
        not_ok_when: "few are free, or none",
        run: Run::ByAnother,
    },
];

/// Checks the state directory's file system. Bytes are checked only without a daemon, which
/// otherwise reports them itself.
fn check(found: &mut Findings, machine: &Machine<'_>) {
    let config = machine.config;
    let mut found = found.of("disk");

    // A missing directory will be created on its parent's file system.
    let Some(dir) = config.state_dir.ancestors().find(|dir| dir.exists()) else {
        return;
    };

    let space = match rustix::fs::statvfs(dir) {
        Ok(space) => space,
        Err(error) => {
            return found.warn(format!(
                "cannot query the file system of {}: {error}",
                dir.display()
            ));
        }
    };

    inodes(found.found, dir, space.f_favail, space.f_files);
    // A running daemon reports bytes itself, with its own result.
    if !machine.daemon_answers {
        let bytes = |blocks: u64| blocks.saturating_mul(space.f_frsize);
        let (free, total) = (bytes(space.f_bavail), bytes(space.f_blocks));
        let (low, min) = crate::daemon::free_space(config).thresholds(total);
        free_bytes(found.found, dir, free, low, min);
    }
}

fn free_bytes(found: &mut Findings, dir: &Path, free: u64, low: u64, min: u64) {
    let mut found = found.of("disk");

    let message = format!(
        "{} free on the file system of {}",
        bytes(free),
        dir.display()
    );

    // The limits are the daemon's, because it acts on them.
    let (result, why) = match free {
        _ if free < min => (
            CheckResult::Problem,
            format!("below {} the daemon rejects all entries", bytes(min)),
        ),
        _ if free < low => (
            CheckResult::Warning,
            format!("below {} the oldest segments are dropped early", bytes(low)),
        ),
        _ => return found.ok(message),
    };

    let write = "free space, or reduce `keep` in store.classes";
    found.advise(result, message, why, write);
}

fn inodes(found: &mut Findings, dir: &Path, free: u64, total: u64) {
    let mut found = found.of("inodes");

    // File systems that allocate inodes dynamically report 0.
    if total == 0 {
        return;
    }

    let message = format!(
        "{free} of {total} inodes free on the file system of {}",
        dir.display()
    );

    let result = match free {
        _ if free < FREE_INODES_MIN => CheckResult::Problem,
        _ if free < FREE_INODES_LOW => CheckResult::Warning,
        _ => return found.ok(message),
    };

    found.advise(
        result,
        message,
        "without free inodes no file can be created despite free space: no segment, no spool, none of Salt's files",
        "`du --inodes -x / | sort -n | tail` shows their use; Salt's job cache needs about six per return \
        (/var/cache/salt/master/jobs)",
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    fn results(check_space: impl Fn(&mut Findings)) -> Vec<(&'static str, CheckResult)> {
        let mut found = Findings::default();
        check_space(&mut found);
        found
            .0
            .iter()
            .map(|finding| (finding.check, finding.result))
            .collect()
    }

    #[test]
    fn free_space_is_checked_against_the_limits_of_the_daemon() {
        let bytes = |free| results(|found| free_bytes(found, Path::new("/d"), free, 300, 100));
        assert_eq!(bytes(300), [("disk", CheckResult::Ok)]);
        assert_eq!(bytes(299), [("disk", CheckResult::Warning)]);
        assert_eq!(bytes(99), [("disk", CheckResult::Problem)]);
    }

    #[test]
    fn few_free_inodes_are_reported() {
        let free = |free, total| results(|found| inodes(found, Path::new("/d"), free, total));
        assert_eq!(free(0, 0), [], "inodes are allocated dynamically");
        assert_eq!(free(199, 1_000_000), [("inodes", CheckResult::Problem)]);
        assert_eq!(free(200, 1_000_000), [("inodes", CheckResult::Warning)]);
        assert_eq!(free(20_000, 1_000_000), [("inodes", CheckResult::Ok)]);
    }
}
