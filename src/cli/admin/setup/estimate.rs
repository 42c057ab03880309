//! The plan's remark about the disk: for how many days of history there is room.
//!
//! The best source is the daemon, if it has already run for a while (`setup --passive`): the entries of
//! its last day. Before that, it is the job cache that saltcellar replaces.

use std::fs;
use std::io;
use std::path::Path;
use std::time::{Duration, SystemTime};

use crate::api::call::status::Disk;
use crate::api::call::{self as calls, NoArgs};
use crate::api::query::DAY_US;
use crate::base::clock::{Clock, Micros};
use crate::base::units::bytes;
use crate::cli::{Global, ask};
use crate::config::Config;
use crate::config::salt_master::SaltMaster;

/// Bytes of a return before compression for each of its bytes on disk (docs/SIZING.md).
const COMPRESSION: u64 = 4;
/// Job directories that are examined. They are named by a hash, so the first of them are a random sample.
const SAMPLE_JOBS: usize = 1_000;

/// States for how many days the free space lasts, and what the figure is based on.
pub(super) fn remark(global: &Global, config: &Config, master: &SaltMaster) -> String {
    let running = ask::answer::<calls::status::Show>(global, &NoArgs {}, "query the status");
    // An error is no news here, because before the first setup there is no daemon.
    if let Ok(status) = running
        && status.disk.bytes_per_day > 0
    {
        return of_daemon(&status.disk);
    }

    let dir = &config.state_dir;
    let usable = match usable(dir, config) {
        Ok(usable) => usable,
        Err(error) => {
            return format!(
                "how long the disk lasts is unknown: cannot query the file system of {}: {error}",
                dir.display()
            );
        }
    };

    let jobs = master.cachedir.join("jobs");
    match of_last_day(&jobs, Clock::real().now()) {
        Ok(raw) if raw > 0 => {
            // At least 1, because it divides below.
            let per_day = (raw / COMPRESSION).max(1);
            format!(
                "{} are usable for entries, about {}: Salt's job cache received {} in the last day, about {} on this disk",
                bytes(usable),
                days(usable / per_day),
                bytes(raw),
                bytes(per_day)
            )
        }
        // Without a job in the last day there is no rate.
        Ok(_) => format!(
            "{} are usable for entries; for how many days they last, `saltcellar status` shows after a day",
            bytes(usable)
        ),
        Err(error) => format!(
            "{} are usable for entries; for how many days they last, `saltcellar status` shows after a day, because {} cannot be read: {error}",
            bytes(usable),
            jobs.display()
        ),
    }
}

/// A number of days, as far as an estimate is worth: the next years will not be like the last day.
fn days(days: u64) -> String {
    match days {
        3_650.. => "10 years or more".to_owned(),
        1 => "a day".to_owned(),
        _ => format!("{days} days"),
    }
}

fn of_daemon(disk: &Disk) -> String {
    let grown = format!(
        "the last day's entries need {} of disk, {} are free",
        bytes(disk.bytes_per_day),
        bytes(disk.free_bytes)
    );
    match disk.days_left {
        Some(left) => format!(
            "{grown}: room for {}, then the oldest are deleted",
            days(left)
        ),
        None => format!("{grown}: enough for what the classes keep"),
    }
}

/// Bytes of the state directory's file system that entries may use, before the oldest of them go.
fn usable(dir: &Path, config: &Config) -> io::Result<u64> {
    // A missing directory will be created on its parent's file system.
    let existing = dir.ancestors().find(|dir| dir.exists()).unwrap_or(dir);
    let space = rustix::fs::statvfs(existing)?;
    let bytes = |blocks: u64| blocks.saturating_mul(space.f_frsize);

    // The blocks that the file system reserves for root are not counted, as in the daemon's measure
    // of free space.
    let (low, _) = crate::daemon::free_space(config).thresholds(bytes(space.f_blocks));
    Ok(bytes(space.f_bavail).saturating_sub(low))
}

/// Bytes of the returns that a tree of Salt's `local_cache` received in the day before `now`,
/// extrapolated from a sample of its jobs.
fn of_last_day(jobs: &Path, now: Micros) -> io::Result<u64> {
    let since = u64::try_from(now.0.saturating_sub(DAY_US)).unwrap_or(0);
    let since = SystemTime::UNIX_EPOCH + Duration::from_micros(since);
    // A master that has run no job yet has none.
    let Some(tops) = found(fs::read_dir(jobs))? else {
        return Ok(0);
    };
    let tops: Vec<_> = tops.collect::<io::Result<_>>()?;

    let (mut examined, mut sum, mut seen) = (0_u64, 0_u64, 0_usize);
    for top in &tops {
        // Only between directories: the sum is scaled by their number, so each must be counted
        // whole.
        if seen >= SAMPLE_JOBS {
            break;
        }
        examined += 1;

        let Some(of_top) = found(fs::read_dir(top.path()))? else {
            continue;
        };
        for job in of_top {
            seen += 1;
            sum += returned_since(&job?.path(), since)?;
        }
    }

    Ok(sum.saturating_mul(tops.len() as u64) / examined.max(1))
}

/// Bytes of a job's `return.p` files, if the job was written to since that time.
fn returned_since(job: &Path, since: SystemTime) -> io::Result<u64> {
    let Some(metadata) = found(fs::metadata(job))? else {
        return Ok(0);
    };
    // A return creates a directory in the job's directory, whose time therefore changes. An older
    // job is skipped without reading its minions.
    if !metadata.is_dir() || metadata.modified()? < since {
        return Ok(0);
    }

    let Some(minions) = found(fs::read_dir(job))? else {
        return Ok(0);
    };
    let mut sum = 0;
    for minion in minions {
        let file = found(fs::metadata(minion?.path().join("return.p")))?;
        sum += file.map_or(0, |file| file.len());
    }
    Ok(sum)
}

/// `None` if there is no such file. The master may delete a job while its cache is read, and the load of a job is a file among the directories
/// of its minions.
fn found<T>(result: io::Result<T>) -> io::Result<Option<T>> {
    match result {
        Ok(found) => Ok(Some(found)),
        Err(error) => match error.kind() {
            io::ErrorKind::NotFound | io::ErrorKind::NotADirectory => Ok(None),
            _ => Err(error),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn disk(per_day: u64, days_left: Option<u64>) -> String {
        of_daemon(&Disk {
            bytes_per_day: per_day,
            free_bytes: 20 << 30,
            days_left,
            ..Disk::default()
        })
    }

    #[test]
    fn a_daemon_that_has_run_knows_the_days() {
        assert_eq!(
            disk(1 << 30, Some(17)),
            "the last day's entries need 1.00G of disk, 20.0G are free: room for 17 days, then the oldest are deleted"
        );
        assert_eq!([0, 1, 3_649].map(days), ["0 days", "a day", "3649 days"]);
        assert_eq!(days(u64::MAX), "10 years or more");
        assert_eq!(
            disk(1 << 20, None),
            "the last day's entries need 1.00M of disk, 20.0G are free: enough for what the classes keep"
        );
    }

    #[test]
    fn the_job_cache_is_extrapolated_from_the_jobs_of_its_last_day() -> anyhow::Result<()> {
        let dir = tempfile::tempdir()?;
        let jobs = dir.path();
        for top in 0..4 {
            let minion = jobs.join(format!("{top:02x}/{top}/web1"));
            fs::create_dir_all(&minion)?;
            fs::write(minion.join("return.p"), [0; 100])?;
            fs::write(jobs.join(format!("{top:02x}/{top}/.load.p")), [0; 5_000])?;
        }

        let now = Clock::real().now();
        assert_eq!(of_last_day(jobs, now)?, 400);
        // Two days later the same jobs are older than a day.
        assert_eq!(of_last_day(jobs, Micros(now.0 + 2 * DAY_US))?, 0);

        // The first of the directories fills the sample, and counts for all four.
        for n in 0..SAMPLE_JOBS {
            for top in 0..4 {
                let minion = jobs.join(format!("{top:02x}/more{n}/web1"));
                fs::create_dir_all(&minion)?;
                fs::write(minion.join("return.p"), [0; 10])?;
            }
        }
        assert_eq!(of_last_day(jobs, now)?, 4 * (100 + 10 * SAMPLE_JOBS as u64));
        Ok(())
    }
}
