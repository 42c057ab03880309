//! The gap of a bus over restarts of the daemon, with a wound clock.

use std::thread::JoinHandle;

use super::*;
use crate::base::clock::micros;
use crate::base::limits::{BUS_RESTART_MAX, BUS_SETTLED};
use crate::ingest::bus::{Bus, BusMonitor};
use crate::testkit::bus::FakeBus;

/// A bus, and a daemon that reads it.
struct Machine {
    harness: Harness,
    intake: Option<Intake>,
    publisher: FakeBus,
    clock: Clock,
}

/// A running bus source, with the publisher's end of its connection.
struct Reader {
    drain: Drain,
    monitor: BusMonitor,
    thread: JoinHandle<()>,
    _subscriber: std::os::unix::net::UnixStream,
}

impl Machine {
    fn new() -> Self {
        let mut harness = Harness::new();
        let intake = harness.opened.as_ref().unwrap().intake.clone();
        harness.start();
        let path = harness.dir.path().join("master_event_pub.ipc");
        Self {
            publisher: FakeBus::listen(&path).unwrap(),
            intake: Some(intake),
            clock: Clock::manual(Micros(1_795_230_637_000_000)),
            harness,
        }
    }

    fn wind(&self, by: Duration) {
        self.clock.wind(micros(by));
    }

    /// Starts a daemon, and waits until it is connected.
    fn start(&self) -> Reader {
        let metrics = self.harness.metrics.clone();
        let policy = Policy::new(
            &[],
            &[],
            Arc::new(MasterKeys::none()),
            1 << 20,
            self.clock.clone(),
            metrics.clone(),
        );
        let drain = Drain::new();
        let bus = Bus::new(
            0,
            self.harness.dir.path(),
            BusDependencies {
                intake: self.intake.clone().unwrap(),
                policy: Arc::new(policy),
                spills: self.harness.dir.path().join("state/spill"),
                spill_bytes_max: 1 << 20,
                fs: self.harness.fs.clone(),
                clock: self.clock.clone(),
                metrics,
                drain: drain.clone(),
                readers: Readers {
                    reacts: true,
                    store: self.harness.store.clone().unwrap(),
                },
            },
        );
        let monitor = bus.watch();
        let thread = spawn(|| bus.run());
        let subscriber = self.publisher.subscriber().unwrap();
        wait_until("the connection", || monitor.status().connected);
        Reader {
            drain,
            monitor,
            thread,
            _subscriber: subscriber,
        }
    }

    /// Lets the time pass on a quiet bus.
    fn rest(&self, reader: &Reader, span: Duration) {
        self.wind(span);
        wait_until("a look at the quiet bus", || {
            reader.monitor.status().waiting.seen == Some(self.clock.now())
        });
    }

    /// Ends the store; returns the seconds of each gap, nil if unknown.
    fn gaps(mut self) -> Vec<Option<f64>> {
        drop(self.intake.take());
        self.harness
            .threads
            .drain(..)
            .for_each(|thread| thread.join().unwrap());
        let store = self.harness.store.take().unwrap();
        let all = EventFilter::default();
        let mut found = store
            .events_before(&all, SeqNo(u64::MAX), usize::MAX, usize::MAX)
            .unwrap();
        found.reverse();
        let seconds = |entry: &crate::store::read::StoredEntry| {
            assert_eq!(&entry.tag[..], b"saltcellar/gap/start-up");
            let value = rmpv::decode::read_value(&mut &entry.body[..]).unwrap();
            value["seconds"].as_f64()
        };
        found.iter().map(seconds).collect()
    }
}

impl Reader {
    /// Stops the daemon as at a restart.
    fn stop(self) {
        self.drain.stop();
        self.thread.join().unwrap();
    }
}

const DOWN: Duration = Duration::from_secs(40);

#[test]
fn a_gap_begins_at_the_stop_however_long_the_bus_was_quiet() {
    let machine = Machine::new();
    let reader = machine.start();
    machine.rest(&reader, BUS_SETTLED);
    machine.rest(&reader, 100 * BUS_RESTART_MAX);
    reader.stop();
    machine.wind(DOWN);
    let reader = machine.start();
    machine.rest(&reader, BUS_SETTLED);
    reader.stop();
    assert_eq!(machine.gaps(), [Some(DOWN.as_secs_f64())]);
}

#[test]
fn restarts_in_quick_succession_are_one_gap_each() {
    let machine = Machine::new();
    // Also the first one of all.
    machine.start().stop();
    for _ in 0..3 {
        machine.wind(DOWN);
        machine.start().stop();
    }
    machine.wind(DOWN);
    let reader = machine.start();
    machine.rest(&reader, BUS_SETTLED);
    reader.stop();
    assert_eq!(machine.gaps(), [Some(DOWN.as_secs_f64()); 4]);
}
