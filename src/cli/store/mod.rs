//! `saltcellar store ...`: statistics, retention, integrity, backup and recovery of the store.

mod backup;
mod hold;
mod prune;
mod rebuild;
mod redact_keys;
mod restore;
mod salvage;
mod stats;
mod tool;
mod verify;

use serde_json::Value as Json;

use super::Global;
use super::format::fields::Fields as _;

/// Verbs under `store`.
#[derive(clap::Subcommand)]
pub(super) enum Store {
    /// Show segments, entries, bytes, ages, rates and free space
    #[command(after_long_help = stats::EXAMPLES)]
    Stats,
    /// Drop expired segments now
    #[command(after_long_help = prune::EXAMPLES)]
    Prune(prune::Args),
    /// Exempt a job from retention
    #[command(after_long_help = hold::EXAMPLES)]
    Hold(hold::Args),
    /// Verify the checksums and the consistency of the store
    #[command(after_long_help = verify::EXAMPLES)]
    Verify(verify::Args),
    /// Rebuild all indexes from the log
    #[command(after_long_help = rebuild::EXAMPLES)]
    Rebuild(rebuild::Args),
    /// Redact Salt masters' keys that are stored in plain text
    #[command(name = "redact-keys", after_long_help = redact_keys::EXAMPLES)]
    RedactKeys(redact_keys::Args),
    /// Recover a damaged store into a new one
    #[command(after_long_help = salvage::EXAMPLES)]
    Salvage(salvage::Args),
    /// Back up the store incrementally, also while the daemon runs
    #[command(after_long_help = backup::EXAMPLES)]
    Backup(backup::Args),
    /// Restore a backup to a new state directory
    #[command(after_long_help = restore::EXAMPLES)]
    Restore(restore::Args),
}

pub(super) fn run(global: &Global, store: Store) -> anyhow::Result<()> {
    match store {
        Store::Stats => stats::run(global),
        Store::Prune(args) => prune::run(global, &args),
        Store::Hold(args) => hold::run(global, &args),
        Store::Verify(args) => verify::run(global, &args),
        Store::Rebuild(args) => rebuild::run(global, &args),
        Store::RedactKeys(args) => redact_keys::run(global, &args),
        Store::Salvage(args) => salvage::run(global, &args),
        Store::Backup(args) => backup::run(global, &args),
        Store::Restore(args) => restore::run(global, &args),
    }
}

/// Formats bytes in at most six characters: `1023B`, `47.2K`, `9.81G`.
fn bytes(n: u64) -> String {
    let mut unit = 0_usize;
    let mut scaled = n;
    let mut rest = 0;
    while scaled >= 1024 && unit < 6 {
        rest = scaled % 1024;
        scaled /= 1024;
        unit += 1;
    }
    let name = ["B", "K", "M", "G", "T", "P", "E"].get(unit).copied().unwrap_or("E");
    match (unit, scaled) {
        (0, _) | (_, 100..) => format!("{scaled}{name}"),
        (_, 10..) => format!("{scaled}.{}{name}", rest * 10 / 1024),
        _ => format!("{scaled}.{:02}{name}", rest * 100 / 1024),
    }
}

/// Formats a duration in one unit: `59s`, `47h`, `400d`.
fn span(seconds: u64) -> String {
    match seconds {
        0..120 => format!("{seconds}s"),
        120..7_200 => format!("{}m", seconds / 60),
        7_200..172_800 => format!("{}h", seconds / 3_600),
        _ => format!("{}d", seconds / 86_400),
    }
}

/// Formats the age of a time; a dash if the time is absent.
fn ago(row: &Json, name: &str, now: i64) -> String {
    match row.of(name).as_i64() {
        Some(at) => span(u64::try_from(now.saturating_sub(at) / 1_000_000).unwrap_or(0)),
        None => "-".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_and_durations_are_short() {
        for (n, shown) in [
            (0, "0B"),
            (1023, "1023B"),
            (1024, "1.00K"),
            (48_333, "47.2K"),
            (700 * 1024, "700K"),
            (1023 * 1024 + 1023, "1023K"),
            (10_538_225_664, "9.81G"),
            (u64::MAX, "15.9E"),
        ] {
            assert_eq!(bytes(n), shown);
        }
        for (seconds, shown) in [(59, "59s"), (120, "2m"), (7199, "119m"), (7200, "2h"), (34_560_000, "400d")]
        {
            assert_eq!(span(seconds), shown);
        }
    }
}
