//! Room for what is stored and for what waits: bytes and inodes, asked of the file system itself.

use std::path::Path;

use super::{Advice, Findings, Verdict};
use crate::config::{Config, Space};
use crate::limits::{FREE_BYTES_LOW, FREE_BYTES_MIN};

/// Free inodes below which files may not be made for long: a segment takes some ten, Salt's own caches take thousands.
const FREE_INODES_LOW: u64 = 20_000;
/// Free inodes below which the next segment, or the spool, may not find one.
const FREE_INODES_MIN: u64 = 200;

/// Looks at the state directory's file system. While a daemon answers, it is the one to say how many bytes are enough.
pub(super) fn look(found: &mut Findings, config: &Config, away: bool) {
    const CHECK: &str = "disk";
    // What is not there yet will be made where its parent is.
    let Some(dir) = config.state_dir.ancestors().find(|dir| dir.exists()) else { return };
    let space = match rustix::fs::statvfs(dir) {
        Ok(space) => space,
        Err(error) => {
            return found.say(
                CHECK,
                Verdict::Warning,
                format!("cannot ask about {}: {error}", dir.display()),
            );
        }
    };
    inodes(found, dir, space.f_favail, space.f_files);
    if away {
        let bytes = |blocks: u64| blocks.saturating_mul(space.f_frsize);
        let (free, total) = (bytes(space.f_bavail), bytes(space.f_blocks));
        let bound =
            |asked: Space, (part, most): (u64, u64)| asked.bytes().unwrap_or((total / part.max(1)).min(most));
        let low = bound(config.store.free_bytes_low, FREE_BYTES_LOW);
        let min = bound(config.store.free_bytes_min, FREE_BYTES_MIN);
        free_bytes(found, dir, free, low, min);
    }
}

fn free_bytes(found: &mut Findings, dir: &Path, free: u64, low: u64, min: u64) {
    const CHECK: &str = "disk";
    let words = format!("{} bytes are free where {} is", free, dir.display());
    let (verdict, why) = match free {
        _ if free < min => (Verdict::Problem, format!("below {min} a daemon takes nothing")),
        _ if free < low => {
            (Verdict::Warning, format!("below {low} the oldest segments go before their time"))
        }
        _ => return found.say(CHECK, Verdict::Ok, words),
    };
    let write = "make room, or a smaller `keep` in store.classes".to_owned();
    found.advise(CHECK, verdict, words, Advice { why, write });
}

fn inodes(found: &mut Findings, dir: &Path, free: u64, total: u64) {
    const CHECK: &str = "inodes";
    // Some file systems make them as they need them, and say 0.
    if total == 0 {
        return;
    }
    let words = format!("{free} of {total} are free where {} is", dir.display());
    let verdict = match free {
        _ if free < FREE_INODES_MIN => Verdict::Problem,
        _ if free < FREE_INODES_LOW => Verdict::Warning,
        _ => return found.say(CHECK, Verdict::Ok, words),
    };
    found.advise(
        CHECK,
        verdict,
        words,
        Advice {
            why: "without one no file can be made, though there is room: neither a segment, nor the spool, nor Salt's own files"
                .to_owned(),
            write: "`du --inodes -x / | sort -n | tail` shows who has them; Salt's own job cache takes some six a return \
                    (/var/cache/salt/master/jobs)"
                .to_owned(),
        },
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(say: impl Fn(&mut Findings)) -> Vec<(&'static str, Verdict)> {
        let mut found = Findings::default();
        say(&mut found);
        found.0.iter().map(|finding| (finding.check, finding.verdict)).collect()
    }

    #[test]
    fn room_is_judged_by_what_the_daemon_would_do() {
        let bytes = |free| said(|found| free_bytes(found, Path::new("/d"), free, 300, 100));
        assert_eq!(bytes(300), [("disk", Verdict::Ok)]);
        assert_eq!(bytes(299), [("disk", Verdict::Warning)]);
        assert_eq!(bytes(99), [("disk", Verdict::Problem)]);
    }

    #[test]
    fn a_file_system_may_have_room_and_no_inodes() {
        let free = |free, total| said(|found| inodes(found, Path::new("/d"), free, total));
        assert_eq!(free(0, 0), [], "it makes them as it needs them");
        assert_eq!(free(199, 1_000_000), [("inodes", Verdict::Problem)]);
        assert_eq!(free(200, 1_000_000), [("inodes", Verdict::Warning)]);
        assert_eq!(free(20_000, 1_000_000), [("inodes", Verdict::Ok)]);
    }
}
