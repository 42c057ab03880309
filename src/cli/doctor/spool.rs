//! Spools of the extension: entries that wait, were lost, or that the daemon rejected.

use std::fmt::Write as _;

use super::check::{Check, Machine, Run};
use super::finding::{Findings, is_denied};
use crate::api::call::status::SPOOL_WAITS_MAX;
use crate::base::clock::Clock;
use crate::base::units::{bytes, span};
use crate::cli::plain;
use crate::ingest::spool::Spool;

pub(super) const CHECKS: &[Check] = &[Check {
    name: "spool",
    not_ok_when: "entries wait in a spool of the extension, were lost, or were dead-lettered; the master's own spool is found through its configuration",
    run: Run::Machine(check_spools),
}];

fn check_spools(found: &mut Findings, machine: &Machine<'_>) {
    let named = &machine.spools;

    for dir in machine.config.spools.iter().chain(named) {
        let name = dir.display();

        match Spool::inspect(dir) {
            Ok(None) if named.contains(dir) => {
                found.of("spool").ok(format!("{name}: never used"));
            }
            // The extension creates its spool with the first entry that has to wait.
            Ok(None) => {}
            Ok(Some(spool)) => check_spool(found, &spool, machine.daemon_answers),
            Err(error) if is_denied(&error) => found.of("spool").needs_root(name),
            Err(error) => found
                .of("spool")
                .warn(format!("cannot read {name}: {error}")),
        }
    }
}

fn check_spool(found: &mut Findings, spool: &Spool, daemon_answers: bool) {
    let name = spool.dir.display();

    let age = spool.oldest.map_or(0, |at| {
        Clock::real().now().0.saturating_sub(at.0) / 1_000_000
    });

    let waiting = format!(
        "{name}: {} are waiting, the oldest for {}",
        bytes(spool.waiting_bytes),
        span(u64::try_from(age).unwrap_or(0))
    );

    match spool.waiting_bytes {
        0 => found.of("spool").ok(format!("{name}: empty")),
        _ if !daemon_answers => {
            let message = format!("{waiting}; they are delivered once the daemon is reachable");
            found.of("spool").warn(message);
        }
        // Any call of a working extension would have delivered them by now.
        _ if age > SPOOL_WAITS_MAX => {
            let message = format!(
                "{waiting}, although the daemon is reachable: is the master running, and does its option \
                 `saltcellar.socket` name this daemon?"
            );
            found.of("spool").problem(message);
        }
        _ => {
            let message = format!("{waiting}; Salt's next calls deliver them");
            found.of("spool").warn(message);
        }
    }

    // Reported in addition to what waits, because these entries are not delivered later.
    if spool.dead_letter_bytes > 0 {
        let message = format!(
            "{name}/spool.dead-letter holds {} of records that the daemon failed to store repeatedly: keep the file and report a bug",
            bytes(spool.dead_letter_bytes)
        );
        found.of("spool").warn(message);
    }

    if spool.lost_entries() > 0 {
        let mut message = format!(
            "{name}: entries were lost (spool.counters; remove the file once the cause is known):"
        );

        for (reason, n) in &spool.lost {
            // Writing to a String cannot fail.
            let _ = write!(message, " {} {n}", plain(reason));
        }
        found.of("spool").warn(message);
    }
}
