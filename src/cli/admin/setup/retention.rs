//! The plan's remark about retention. A master reports `keep_jobs_seconds` to its job cache, which
//! must not delete stored jobs unnoticed.

use crate::api::call as calls;
use crate::api::call::store::{PruneArgs, PruneOutcome};
use crate::base::units::span;
use crate::cli::{Global, ask};
use crate::config::Config;
use crate::config::salt_master::SaltMaster;
use crate::model::{Age, JOBS, Keep};

/// States how long jobs are kept once the master reports `keep_jobs_seconds`, and how many entries
/// that would delete.
pub(super) fn remark(global: &Global, config: &Config, master: &SaltMaster) -> Option<String> {
    let keep = config
        .store
        .classes
        .iter()
        .find(|class| class.name == JOBS)?
        .keep;

    // Salt's default is a day.
    let salts = master.int("keep_jobs_seconds").unwrap_or(86_400);
    let text = sentence(keep, salts.unsigned_abs());

    // With every other setting the master's report deletes nothing, so there is nothing to count.
    if keep.age != Age::Salt || salts == 0 {
        return Some(text);
    }

    // The configuration asks for Salt's time, and older jobs go. A dry run says how many.
    let args = PruneArgs {
        class: Some(JOBS.to_owned()),
        age_s: Some(salts.unsigned_abs()),
        dry_run: true,
        ..PruneArgs::default()
    };
    let planned = ask::answer::<calls::store::Prune>(global, &args, "count what retention deletes");

    let count = match planned {
        Ok(pruned) => {
            // Segments with held jobs, for example, are listed and stay.
            let planned = pruned
                .segments
                .iter()
                .filter(|row| row.outcome == PruneOutcome::Planned);
            let entries: u64 = planned.map(|row| row.entries).sum();
            format!("{entries} stored entries")
        }
        Err(_) => "how many is unknown while the daemon does not respond".to_owned(),
    };

    Some(format!("{text}: {count}"))
}

fn sentence(keep: Keep, salts: u64) -> String {
    let salt = match salts {
        0 => "this master's keep_jobs_seconds is forever".to_owned(),
        _ => format!("this master's keep_jobs_seconds is {}", span(salts)),
    };

    // Byte and entry limits end jobs before any age does.
    let limits = keep
        .is_bounded()
        .then_some("up to the limits of their class");
    let or_limits = limits.map_or_else(String::new, |limits| format!(", or {limits}"));

    // What matters is whether the master's report will delete jobs, so every case says that.
    match keep.age {
        Age::Forever => {
            let kept = limits.unwrap_or("forever");
            format!("jobs are kept {kept}; {salt}, and deletes nothing")
        }
        Age::For(age) => format!(
            "jobs are kept for {}{or_limits}; {salt}, and changes nothing",
            span(age.as_secs())
        ),
        Age::AtLeastSalt(age) if salts > 0 => format!(
            "jobs are kept for {}{or_limits}, less only if the disk is nearly full; {salt}, and deletes nothing",
            span(age.as_secs().max(salts))
        ),
        Age::Salt | Age::AtLeastSalt(_) if salts == 0 => {
            let kept = limits.unwrap_or("until the disk is nearly full");
            format!("jobs are kept {kept}: {salt}")
        }
        Age::Salt | Age::AtLeastSalt(_) => {
            format!("{salt}, and store.classes has `age: salt`: older jobs will be deleted")
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn the_plan_states_for_how_long_jobs_are_kept() {
        const DAY: u64 = 86_400;
        let check = |age, salts, expected: &str| {
            let keep = Keep {
                age,
                bytes: None,
                entries: None,
            };
            assert_eq!(sentence(keep, salts), expected);
        };
        let age = Duration::from_secs(90 * DAY);
        check(
            Age::AtLeastSalt(age),
            DAY,
            "jobs are kept for 90d, less only if the disk is nearly full; this master's keep_jobs_seconds is 24h, and deletes nothing",
        );
        check(
            Age::AtLeastSalt(age),
            200 * DAY,
            "jobs are kept for 200d, less only if the disk is nearly full; this master's keep_jobs_seconds is 200d, and deletes nothing",
        );
        check(
            Age::AtLeastSalt(age),
            0,
            "jobs are kept until the disk is nearly full: this master's keep_jobs_seconds is forever",
        );
        check(
            Age::For(age),
            DAY,
            "jobs are kept for 90d; this master's keep_jobs_seconds is 24h, and changes nothing",
        );
        check(
            Age::Salt,
            DAY,
            "this master's keep_jobs_seconds is 24h, and store.classes has `age: salt`: older jobs will be deleted",
        );
    }
    #[test]
    fn other_limits_of_the_class_are_part_of_the_sentence() {
        const DAY: u64 = 86_400;
        let salt = "this master's keep_jobs_seconds is";
        let age = Duration::from_secs(90 * DAY);
        for (age, salts, expected) in [
            (
                Age::Forever,
                DAY,
                format!(
                    "jobs are kept up to the limits of their class; {salt} 24h, and deletes nothing"
                ),
            ),
            (
                Age::For(age),
                DAY,
                format!(
                    "jobs are kept for 90d, or up to the limits of their class; {salt} 24h, and changes nothing"
                ),
            ),
            (
                Age::AtLeastSalt(age),
                DAY,
                format!(
                    "jobs are kept for 90d, or up to the limits of their class, less only if the disk is nearly full; {salt} 24h, and deletes nothing"
                ),
            ),
            (
                Age::Salt,
                0,
                format!("jobs are kept up to the limits of their class: {salt} forever"),
            ),
        ] {
            for (bytes, entries) in [(Some(1), None), (None, Some(1))] {
                let keep = Keep {
                    age,
                    bytes,
                    entries,
                };
                assert_eq!(sentence(keep, salts), expected);
            }
        }
    }
}
