//! The history that several masters share: its part of the status, and the reasons that it gives.
//!
//! # Invariant
//!
//! A cause is one reason. While this master's own connection does not work, nothing is said of what follows from it.

use std::time::Duration;

use super::answer::{ClusterRow, MasterRow, SinkRow, Status};
use super::level::Level::{Problem, Warning};
use super::level::{LAG_S_MAX, Reasons};
use crate::api::call::SharedHistory;
use crate::base::units::span;
use crate::cluster::OUTBOX;
use crate::cluster::peers::{Links, PeerView};
use crate::engines::runtime::Phase;
use crate::wire::msgpack::Time;

/// Where the cause of a connection that does not work is looked for.
const CHECKS: &str = "; `saltcellar doctor` checks NATS and the stream";

/// Seconds without a heartbeat of another master that need attention: a restart takes less.
const SILENT_S_MAX: u64 = 60;

/// Collects the state of the shared history.
pub(super) fn cluster(shared: &SharedHistory, sinks: &[SinkRow]) -> ClusterRow {
    let Links {
        inbox,
        differences,
        twin,
        slot_twin,
    } = shared.links();
    let outbox = outbox(sinks);

    ClusterRow {
        name: shared.own().to_owned(),
        stream: shared.stream().to_owned(),
        slot: shared.slot().map(str::to_owned),
        not_reading: inbox,
        unpublished_entries: outbox.map_or(0, |row| row.lag_entries),
        unpublished_s: outbox.map_or(0, |row| row.lag_s),
        differences,
        name_twin: twin,
        slot_twin,
        foreign: shared.foreign(),
        masters: shared
            .others()
            .into_iter()
            .map(|view| master(view, shared.window()))
            .collect(),
    }
}

fn outbox(sinks: &[SinkRow]) -> Option<&SinkRow> {
    sinks.iter().find(|row| row.name == OUTBOX)
}

fn master(view: PeerView, window: Duration) -> MasterRow {
    MasterRow {
        gone: view.is_gone(window),
        complete: view.is_complete(),
        behind_s: view.behind.map(|behind| behind.as_secs()),
        // Zero stands for a master of which nothing was received yet.
        complete_until: (view.complete.0 > 0).then_some(Time(view.complete)),
        heard_s: view.heard_ago.map(|ago| ago.as_secs()),
        skew_s: view.skew.map(|us| us / 1_000_000),
        name: view.name,
        slot: view.slot,
        version: view.version,
        entries: view.entries,
        rejected: view.rejected,
        rejection: view.rejection,
        missing: view.missing,
    }
}

/// Adds why the shared history is not well. The sink that publishes this master's part gives no separate reasons.
pub(super) fn reasons(found: &mut Reasons, status: &Status) {
    let Some(row) = &status.cluster else {
        return;
    };

    connection(found, row, status);

    if let Some(master) = &row.slot_twin {
        let message = format!(
            "master {master} also has the slot {}, so both may make the same job id: give each its own `cluster.slot`",
            row.slot.as_deref().unwrap_or_default()
        );
        found.add(Warning, "cluster", message);
    }

    for difference in &row.differences {
        // Then nothing works, and that is said already.
        let is_said = row
            .not_reading
            .as_ref()
            .is_some_and(|why| why.contains(difference));
        if !is_said {
            let message = format!(
                "the stream {} differs from the settings: {difference}; `saltcellar doctor` shows the remedy",
                row.stream
            );
            found.add(Warning, "cluster", message);
        }
    }

    for master in &row.masters {
        of_master(found, master, row, status);
    }

    if row.foreign > 0 {
        let message = format!(
            "{} messages of the stream are of no master and were passed over: who else may publish to {}.log.>?",
            row.foreign, row.stream
        );
        found.add(Warning, "cluster", message);
    }
}

/// Whether this master's part is published, and the others' parts are read.
fn connection(found: &mut Reasons, row: &ClusterRow, status: &Status) {
    if let Some(twin) = &row.name_twin {
        // What is not published for this reason waits in this daemon's log.
        let message = format!(
            "another daemon already publishes as {} (instance {twin}), so this one does not publish: give each a unique `cluster.name`",
            row.name
        );
        found.add(Problem, "cluster", message);
    }

    // With a twin nothing is published, which was said above.
    let unpublished = outbox(&status.sinks)
        .filter(|_| row.name_twin.is_none())
        .and_then(|sink| Some((sink, unpublished(sink)?)));
    // The lag of a master that is alive, or was.
    let overdue = |lag_s: u64| {
        if lag_s > LAG_S_MAX { Problem } else { Warning }
    };
    let known = row.masters.iter().filter(|master| !master.gone);
    let behind_s = known
        .filter_map(|master| master.behind_s)
        .max()
        .unwrap_or(0);

    match (unpublished, &row.not_reading) {
        (Some((sink, why)), Some(not_reading)) if sink.state != Phase::Paused => {
            // Mostly one cause, in two words.
            let why = if *not_reading == why {
                why
            } else {
                format!("{why}; {not_reading}")
            };
            let message = format!(
                "nothing is published for {} and nothing received, all of it is caught up with later: {why}{CHECKS}",
                span(sink.lag_s)
            );
            found.add(overdue(sink.lag_s.max(behind_s)), "cluster", message);
        }
        (unpublished, not_reading) => {
            if let Some((sink, why)) = unpublished {
                let checks = if sink.failures > 0 { CHECKS } else { "" };
                let message = format!(
                    "this master's history is {} behind for the other masters: {why}{checks}",
                    span(sink.lag_s)
                );
                found.add(overdue(sink.lag_s), "cluster", message);
            }
            if let Some(why) = not_reading {
                let message = format!(
                    "the histories of the other masters are not read, the last is {} behind: {why}{CHECKS}",
                    span(behind_s)
                );
                found.add(overdue(behind_s), "cluster", message);
            }
        }
    }
}

/// Whether the reasons say why the sink that publishes this master's history does not.
pub(crate) fn explains_outbox(status: &Status) -> bool {
    status.cluster.as_ref().is_some_and(|row| {
        row.name_twin.is_some() || outbox(&status.sinks).and_then(unpublished).is_some()
    })
}

/// Why this master's part is not published; `None` while it is.
fn unpublished(sink: &SinkRow) -> Option<String> {
    let error = || sink.error.as_deref().unwrap_or("unknown error").to_owned();

    if sink.state == Phase::Failed {
        return Some(format!(
            "delivery thread crashed; restart the daemon: {}",
            error()
        ));
    }
    if sink.state == Phase::Paused {
        return Some(format!(
            "it is paused, see `saltcellar sinks resume {OUTBOX}`"
        ));
    }

    if sink.failures > 0 {
        return Some(error());
    }
    (sink.lag_s > LAG_S_MAX).then(|| format!("{} entries wait", sink.lag_entries))
}

fn of_master(found: &mut Reasons, master: &MasterRow, row: &ClusterRow, status: &Status) {
    let name = &master.name;
    // Otherwise a master that no longer exists would be a reason forever.
    let behind_s = master.behind_s.filter(|_| !master.gone);
    // Nobody is heard without a connection, nor right after the start.
    if let Some(behind_s) = behind_s.filter(|_| row.not_reading.is_none()) {
        let silent_s = master.heard_s.unwrap_or(status.uptime_s);
        if silent_s > SILENT_S_MAX {
            let message = format!(
                "master {name} was not heard of for {}, its history here is {} behind: is its daemon running, and does it reach NATS?",
                span(silent_s),
                span(behind_s)
            );
            found.add(Warning, "cluster", message);
        } else if behind_s > LAG_S_MAX {
            let message = format!(
                "the history of master {name} is {} behind: see `saltcellar status` there, or this daemon is too slow",
                span(behind_s)
            );
            found.add(Warning, "cluster", message);
        }
    }

    if let Some(skew_s) = master.skew_s {
        let direction = if skew_s < 0 { "ahead of" } else { "behind" };
        let message = format!(
            "the clock of master {name} is {} {direction} the clock of this host, so jobs of both are in a wrong order: synchronise them",
            span(skew_s.unsigned_abs())
        );
        found.add(Warning, "cluster", message);
    }

    let other = master.version.as_ref();
    if let Some(version) = other.filter(|version| **version != status.version) {
        let message = format!(
            "master {name} has saltcellar {version}, and this one {}: update the older one",
            status.version
        );
        found.add(Warning, "cluster", message);
    }

    if master.rejected > 0 {
        let message = format!(
            "{} messages of master {name} were rejected since the start, the last because: {}",
            master.rejected,
            master.rejection.as_deref().unwrap_or("unknown")
        );
        found.add(Warning, "cluster", message);
    }

    if master.missing > 0 {
        let message = format!(
            "at most {} entries of master {name} are missing here, the stream did not have them any more: `saltcellar cluster join` copies them from a backup of another daemon",
            master.missing
        );
        found.add(Warning, "cluster", message);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::api::call::status::{Disk, Level, health};
    use crate::base::clock::{Clock, Micros};
    use crate::cluster::peers::{Beat, Mark, Peers};
    use crate::model::MasterName;
    use crate::store::free_space::SpaceLevel;
    use crate::store::settings::{Changes, Settings};

    /// 1 h after 1970.
    const START: i64 = 3_600_000_000;

    struct Rig {
        peers: Arc<Peers>,
        clock: Clock,
        sink: SinkRow,
        uptime_s: u64,
        _dir: tempfile::TempDir,
    }

    impl Rig {
        fn new() -> Self {
            let dir = tempfile::tempdir().unwrap();
            let clock = Clock::manual(Micros(START));
            let peers = Peers::new(
                MasterName::new("a").unwrap(),
                Some("1/2".to_owned()),
                "one".to_owned(),
                &Settings::for_tests(dir.path()),
                clock.clone(),
            );
            peers.receives(None);
            let sink = SinkRow {
                name: OUTBOX.to_owned(),
                state: Phase::Idle,
                ..SinkRow::default()
            };
            Self {
                peers: Arc::new(peers),
                clock,
                sink,
                uptime_s: 0,
                _dir: dir,
            }
        }

        fn beat(&self, name: &str) -> Beat {
            Beat {
                name: name.to_owned(),
                epoch: "e".to_owned(),
                instance: "two".to_owned(),
                published: 0,
                unpublished_us: 0,
                at: self.clock.now().0,
                slot: Some("2/2".to_owned()),
                version: "1".to_owned(),
                holds_digest: None,
                holds: Vec::new(),
            }
        }

        fn heard(&self, beat: Beat) {
            let sender = MasterName::new(&beat.name).unwrap();
            self.peers.heard(&sender, beat);
        }

        fn status(&self) -> Status {
            let window = Duration::from_secs(86_400);
            let shared = SharedHistory::new(self.peers.clone(), "s", window);
            let sinks = vec![self.sink.clone()];
            Status {
                version: "1".to_owned(),
                uptime_s: self.uptime_s,
                disk: Disk {
                    state: SpaceLevel::Ample,
                    ..Disk::default()
                },
                cluster: Some(cluster(&shared, &sinks)),
                sinks,
                ..Status::default()
            }
        }

        #[track_caller]
        fn check(&self, expected: &[(Level, &str)]) {
            let found = health(&self.status(), self.clock.now()).reasons;
            assert!(found.iter().all(|one| one.part == "cluster"), "{found:?}");
            let reasons: Vec<_> = found
                .iter()
                .map(|one| (one.level, one.message.as_str()))
                .collect();
            assert_eq!(reasons, expected);
        }
    }

    #[test]
    fn a_shared_history_that_works_has_a_row_for_each_master_and_no_reason() {
        let rig = Rig::new();
        rig.check(&[]);
        rig.heard(rig.beat("b"));
        let mark = Mark {
            number: 7,
            at: Micros(START - 9),
        };
        let mut changes = Changes::default();
        rig.peers.have(("b", "e"), mark, 7, &mut changes).unwrap();
        rig.clock.wind(3_000_000);
        rig.check(&[]);

        let row = rig.status().cluster.unwrap();
        let expected = MasterRow {
            name: "b".to_owned(),
            complete: true,
            behind_s: Some(3),
            complete_until: Some(Time(Micros(START))),
            heard_s: Some(3),
            slot: Some("2/2".to_owned()),
            version: Some("1".to_owned()),
            entries: 7,
            ..MasterRow::default()
        };
        assert_eq!(row.masters, [expected]);
        assert_eq!(
            (&*row.name, &*row.stream, row.not_reading),
            ("a", "s", None)
        );
    }

    #[test]
    fn a_connection_that_does_not_work_is_one_reason() {
        let mut rig = Rig::new();
        assert!(!explains_outbox(&rig.status()));
        rig.sink.failures = 2;
        rig.sink.lag_s = 30;
        assert!(explains_outbox(&rig.status()));
        rig.sink.error = Some("refused".to_owned());
        rig.check(&[(
            Warning,
            "this master's history is 30s behind for the other masters: refused; `saltcellar doctor` checks NATS and the stream",
        )]);

        // The other master cannot be heard either.
        rig.heard(rig.beat("b"));
        rig.clock.wind(120_000_000);
        rig.peers.receives(Some("refused".to_owned()));
        rig.check(&[(
            Warning,
            "nothing is published for 30s and nothing received, all of it is caught up with later: refused; `saltcellar doctor` checks NATS and the stream",
        )]);
        rig.peers.receives(Some("no stream".to_owned()));
        rig.clock.wind(600_000_000);
        rig.check(&[(
            Problem,
            "nothing is published for 30s and nothing received, all of it is caught up with later: refused; no stream; `saltcellar doctor` checks NATS and the stream",
        )]);

        rig.sink.failures = 0;
        rig.check(&[(
            Problem,
            "the histories of the other masters are not read, the last is 12m behind: no stream; `saltcellar doctor` checks NATS and the stream",
        )]);
        rig.sink.state = Phase::Paused;
        rig.peers.receives(None);
        rig.heard(rig.beat("b"));
        rig.check(&[(
            Warning,
            "this master's history is 30s behind for the other masters: it is paused, see `saltcellar sinks resume cluster`",
        )]);
    }

    #[test]
    fn a_name_or_slot_that_two_have_is_named() {
        let mut rig = Rig::new();
        rig.sink.failures = 2;
        rig.sink.error = Some("another node publishes as a".to_owned());
        rig.heard(rig.beat("a"));
        rig.heard(Beat {
            slot: Some("1/2".to_owned()),
            ..rig.beat("b")
        });
        rig.check(&[
            (
                Problem,
                "another daemon already publishes as a (instance two), so this one does not publish: give each a unique `cluster.name`",
            ),
            (
                Warning,
                "master b also has the slot 1/2, so both may make the same job id: give each its own `cluster.slot`",
            ),
        ]);
    }

    #[test]
    fn a_stream_that_differs_is_one_reason_for_each_difference() {
        let rig = Rig::new();
        rig.peers.found_stream(vec!["it is in memory".to_owned()]);
        rig.check(&[(
            Warning,
            "the stream s differs from the settings: it is in memory; `saltcellar doctor` shows the remedy",
        )]);
        let why = "the stream s cannot be used: it is in memory".to_owned();
        rig.peers.receives(Some(why));
        rig.check(&[(
            Warning,
            "the histories of the other masters are not read, the last is 0s behind: the stream s cannot be used: it is in memory; `saltcellar doctor` checks NATS and the stream",
        )]);
    }

    #[test]
    fn a_master_that_is_silent_needs_attention_until_it_is_taken_for_gone() {
        let mut rig = Rig::new();
        rig.heard(rig.beat("b"));
        rig.clock.wind(60_000_000);
        rig.check(&[]);
        rig.clock.wind(60_000_000);
        rig.check(&[(
            Warning,
            "master b was not heard of for 2m, its history here is 2m behind: is its daemon running, and does it reach NATS?",
        )]);
        rig.clock.wind(86_400_000_000);
        rig.check(&[]);

        // Known of a former start only.
        let mark = Mark {
            number: 7,
            at: Micros(rig.clock.now().0 - 7_000_000),
        };
        let mut changes = Changes::default();
        rig.peers.have(("c", "e"), mark, 7, &mut changes).unwrap();
        rig.check(&[]);
        rig.uptime_s = 61;
        rig.check(&[(
            Warning,
            "master c was not heard of for 61s, its history here is 7s behind: is its daemon running, and does it reach NATS?",
        )]);
    }

    #[test]
    fn what_is_wrong_with_another_master_is_said_of_it() {
        let rig = Rig::new();
        rig.heard(Beat {
            at: START - 60_000_000,
            version: "2".to_owned(),
            ..rig.beat("b")
        });
        rig.peers.rejected(Some("b"), "damaged");
        rig.peers.rejected(None, "of whom?");
        rig.peers.missed("b", 4);
        rig.check(&[
            (
                Warning,
                "the clock of master b is 60s behind the clock of this host, so jobs of both are in a wrong order: synchronise them",
            ),
            (
                Warning,
                "master b has saltcellar 2, and this one 1: update the older one",
            ),
            (
                Warning,
                "1 messages of master b were rejected since the start, the last because: damaged",
            ),
            (
                Warning,
                "at most 4 entries of master b are missing here, the stream did not have them any more: `saltcellar cluster join` copies them from a backup of another daemon",
            ),
            (
                Warning,
                "1 messages of the stream are of no master and were passed over: who else may publish to s.log.>?",
            ),
        ]);
        rig.heard(Beat {
            at: START,
            unpublished_us: 660_000_000,
            ..rig.beat("d")
        });
        let rows = health(&rig.status(), rig.clock.now()).reasons;
        let of_d = rows.iter().find(|one| one.message.contains("master d"));
        assert_eq!(
            of_d.map(|one| one.message.as_str()),
            Some(
                "the history of master d is 11m behind: see `saltcellar status` there, or this daemon is too slow"
            )
        );
    }
}
