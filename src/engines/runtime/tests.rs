//! Sinks over a store whose disk can fail, and a destination that a test controls.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::sync_channel;
use std::thread;
use std::time::Instant;

use rustix::io::Errno;
use serde_json::json;

use super::state::SinkCounters;
use super::*;
use crate::engines::encoder::encode::{EncodeError, Encoder};
use crate::engines::event::tests::entry;
use crate::engines::settings::tests::load;
use crate::engines::transport::{Destination, Rejected, RequestLimits, Transport};
use crate::model::{Batch, SeqNo};
use crate::store::vfs::Disk;
use crate::store::vfs::faults::{Act, Fault, Faults, Plan};
use crate::store::{ConsumerStatus, Intake, Options};
use crate::testkit::{receive, wait_for};

/// Decides about one request: the response, or a panic.
type Answer = dyn Fn(&[Item]) -> Result<Vec<Rejected>, DeliverError> + Send + Sync;

/// A destination that records the sequence numbers of accepted requests.
struct FakeDestination {
    answer: Box<Answer>,
    accepted: Mutex<Vec<Vec<u64>>>,
    requests: AtomicUsize,
    reopened: AtomicUsize,
    /// Deliveries wait while it is set.
    is_stalled: AtomicBool,
    /// Connections are not opened while it is set.
    is_slow_to_open: AtomicBool,
}

impl FakeDestination {
    /// Waits until it has this many requests, answered or not.
    fn wait_for_request(&self, count: usize) {
        wait_for("a request", || {
            (self.requests.load(Ordering::SeqCst) == count).then_some(())
        });
    }
}

impl std::fmt::Debug for FakeDestination {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("FakeDestination")
    }
}

/// Shares the destination with the test.
#[derive(Debug)]
struct Shared(Arc<FakeDestination>);

impl Destination for Shared {
    fn open(&self, deps: &transport::Dependencies) -> Box<dyn Transport> {
        deps.secrets.hide(SECRET);
        while self.0.is_slow_to_open.load(Ordering::SeqCst) {
            thread::sleep(Duration::from_millis(1));
        }
        Box::new(FakeTransport(self.0.clone()))
    }

    fn describe(&self) -> String {
        "fake".to_owned()
    }

    fn limits(&self) -> RequestLimits {
        RequestLimits {
            count: 4,
            bytes: 1_000_000,
            time: Duration::ZERO,
        }
    }

    fn concurrency_max(&self) -> usize {
        16
    }
}

/// A secret of the destination's settings.
const SECRET: &str = "T0ken/of secret";

struct FakeTransport(Arc<FakeDestination>);

impl Transport for FakeTransport {
    fn deliver(
        &mut self,
        items: &[Item],
        _: Option<&mut Transcript>,
    ) -> Result<Vec<Rejected>, DeliverError> {
        self.0.requests.fetch_add(1, Ordering::SeqCst);
        while self.0.is_stalled.load(Ordering::SeqCst) {
            thread::sleep(Duration::from_millis(1));
        }
        let rejected = (self.0.answer)(items)?;
        let is_accepted = |n: usize| rejected.iter().all(|one| one.index != n);
        let seqs = items
            .iter()
            .enumerate()
            .filter(|(n, _)| is_accepted(*n))
            .map(|(_, item)| item.seq().0);
        self.0.accepted.lock().push(seqs.collect());
        Ok(rejected)
    }

    fn check(&mut self) -> Result<String, String> {
        Ok("fine".to_owned())
    }

    fn reopen(&mut self) {
        self.0.reopened.fetch_add(1, Ordering::SeqCst);
    }
}

/// Sinks with their store and destination.
struct Rig {
    engines: Engines,
    store: Store,
    intake: Intake,
    /// The faults of the store's disk.
    plan: Arc<Plan>,
    destination: Arc<FakeDestination>,
    _dir: tempfile::TempDir,
}

fn settings(name: &str, rest: &str, destination: &Arc<FakeDestination>) -> SinkSettings {
    let text = format!(
        "sinks: {{{name}: {{encoder: json, transport: {{http: {{url: 'http://h'}}}}{rest}}}}}"
    );
    let mut settings = load(&text).unwrap().remove(0);
    settings.transport = ("fake", Arc::new(Shared(destination.clone())));
    settings.limits = destination_limits();
    settings.retry.backoff = Duration::from_millis(1);
    settings.retry.max = Duration::from_millis(2);
    settings
}

fn destination_limits() -> RequestLimits {
    RequestLimits {
        count: 4,
        bytes: 1_000_000,
        time: Duration::ZERO,
    }
}

fn destination(
    answer: impl Fn(&[Item]) -> Result<Vec<Rejected>, DeliverError> + Send + Sync + 'static,
) -> Arc<FakeDestination> {
    Arc::new(FakeDestination {
        answer: Box::new(answer),
        accepted: Mutex::default(),
        requests: AtomicUsize::default(),
        reopened: AtomicUsize::default(),
        is_stalled: AtomicBool::default(),
        is_slow_to_open: AtomicBool::default(),
    })
}

impl Rig {
    fn start(
        rest: &str,
        answer: impl Fn(&[Item]) -> Result<Vec<Rejected>, DeliverError> + Send + Sync + 'static,
    ) -> Self {
        let destination = destination(answer);
        let settings = settings("one", rest, &destination);
        Self::start_with(destination, vec![settings])
    }

    fn start_with(destination: Arc<FakeDestination>, settings: Vec<SinkSettings>) -> Self {
        let idle = Duration::from_millis(2);
        Self::start_on(Arc::default(), idle, destination, settings)
    }

    /// With these faults of the disk, from the opened store on, and this longest wait for an event.
    fn start_on(
        plan: Arc<Plan>,
        idle: Duration,
        destination: Arc<FakeDestination>,
        settings: Vec<SinkSettings>,
    ) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let (clock, fs) = (
            Clock::real(),
            Arc::new(Faults::over(Arc::new(Disk), plan.clone())),
        );
        let options = Options {
            fs: fs.clone(),
            ..Options::for_tests(dir.path(), clock.clone())
        };

        // Its threads end with the last handle, which a stalled delivery can have.
        let (store, intake, _) = Store::open(&options).unwrap().on_threads();
        let deps = Dependencies {
            store: store.clone(),
            fs,
            clock,
            master_id: "master1".into(),
            idle,
        };

        Self {
            engines: Engines::start(deps, settings, Vec::new()),
            store,
            intake,
            plan,
            destination,
            _dir: dir,
        }
    }

    /// Stores events from the minions `m0` to `m2` in turn, in one commit.
    fn add(&self, count: u64) {
        let first = self.store.durable().0;
        let mut batch = Batch::default();
        for seq in first..first + count {
            let event = entry(seq, "t", &format!("m{}", seq % 3), json!({"n": seq}));
            batch.push(&event.as_entry(), None);
        }

        let (tx, rx) = sync_channel(1);
        let stored = Box::new(move |stored| tx.send(stored).unwrap());
        self.intake.submit(batch, Some(stored)).unwrap();
        receive(&rx).unwrap();
    }

    fn consumer(&self, name: &str) -> ConsumerStatus {
        let all = self.store.consumers().all().unwrap();
        all.into_iter()
            .find(|status| status.record.name == name)
            .unwrap()
    }

    /// The last event that the sink `one` has acknowledged.
    fn acknowledged(&self) -> u64 {
        self.consumer("one").record.cursor.0 - 1
    }

    /// Waits until a sink has passed an event.
    fn wait_until_passed(&self, name: &str, last: u64) {
        wait_for("the position", || {
            (self.consumer(name).record.cursor.0 > last).then_some(())
        });
    }

    /// Whether the sink `one` has given its consumer back.
    fn is_released(&self) -> bool {
        self.consumer("one").lease.is_none()
    }

    fn wait_until_delivered(&self, last: u64) {
        wait_for("the acknowledgement", || {
            (self.acknowledged() == last).then_some(())
        });
    }

    fn wait_for_phase(&self, phase: Phase) {
        wait_for("the phase", || {
            (self.engines.list()[0].last.phase == phase).then_some(())
        });
    }

    /// All accepted sequence numbers, in the order of acceptance.
    fn accepted(&self) -> Vec<u64> {
        self.destination.accepted.lock().concat()
    }

    fn counters(&self) -> SinkCounts {
        self.engines.list()[0].counters
    }

    fn dead(&self) -> Vec<(u64, String)> {
        let letters = self.engines.dead_letters("one").unwrap();
        letters
            .into_iter()
            .map(|letter| (letter.seq, letter.reason))
            .collect()
    }
}

fn accept(items: &[Item]) -> Result<Vec<Rejected>, DeliverError> {
    if items.is_empty() {
        Err(DeliverError::retry("a request without items"))
    } else {
        Ok(Vec::new())
    }
}

#[test]
fn all_events_are_delivered_in_order_within_the_limits_of_a_request() {
    let rig = Rig::start("", accept);
    rig.add(10);
    rig.wait_until_delivered(10);
    assert_eq!(rig.accepted(), (1..=10).collect::<Vec<_>>());
    assert!(
        rig.destination
            .accepted
            .lock()
            .iter()
            .all(|request| request.len() <= 4)
    );
    assert_eq!(
        (
            rig.counters().delivered,
            rig.counters().items,
            rig.counters().failures
        ),
        (10, 10, 0)
    );
    assert!(!rig.is_released());
    rig.engines.stop();
    assert!(rig.is_released());
}

/// An encoder that notes the sequence numbers of what it encodes.
#[derive(Debug)]
struct Noting(Arc<Mutex<Vec<u64>>>);

impl Encoder for Noting {
    fn encode(&self, event: &Event, items: &mut Vec<Vec<u8>>) -> Result<(), EncodeError> {
        self.0.lock().push(event.seq.0);
        items.push(b"{}".to_vec());
        Ok(())
    }
}

#[test]
fn a_backlog_is_read_ahead_and_a_seek_discards_what_was_read() {
    let encoded = Arc::new(Mutex::default());
    let destination = destination(accept);
    let mut settings = settings("one", "", &destination);
    settings.encoder = ("noting", Arc::new(Noting(encoded.clone())));
    let rig = Rig::start_with(destination, vec![settings]);

    rig.destination.is_stalled.store(true, Ordering::SeqCst);
    rig.add(40);
    rig.destination.wait_for_request(1);
    // The second batch of 4, while the first one is delivered.
    wait_for("a batch that is read ahead", || {
        (*encoded.lock() == (1..=8).collect::<Vec<_>>()).then_some(())
    });

    rig.engines.seek("one", Position::Seq(SeqNo(21))).unwrap();
    rig.destination.is_stalled.store(false, Ordering::SeqCst);
    rig.wait_until_delivered(40);
    assert_eq!(
        rig.accepted(),
        (1..=4).chain(21..=40).collect::<Vec<_>>(),
        "not what was read ahead"
    );
    // What is read ahead of this backlog is taken, or it would be read twice.
    let after: Vec<_> = encoded.lock()[8..].to_vec();
    assert_eq!(after, (21..=40).collect::<Vec<_>>());
}

/// The items that a destination has accepted, as text.
type Lines = Arc<Mutex<Vec<String>>>;

/// A destination that accepts everything as long as it works.
fn noting(works: &Arc<AtomicBool>) -> (Arc<FakeDestination>, Lines) {
    let lines = Lines::default();
    let (noted, works) = (lines.clone(), works.clone());
    let destination = destination(move |items| {
        if !works.load(Ordering::SeqCst) {
            return Err(DeliverError::retry("it does not work"));
        }
        let text = |item: &Item| String::from_utf8(item.bytes.clone()).unwrap();
        noted.lock().extend(items.iter().map(text));
        Ok(Vec::new())
    });
    (destination, lines)
}

/// An encoder that notes what it encodes, and writes JSON.
#[derive(Debug)]
struct Counting(Arc<Mutex<Vec<u64>>>);

impl Encoder for Counting {
    fn encode(&self, event: &Event, items: &mut Vec<Vec<u8>>) -> Result<(), EncodeError> {
        self.0.lock().push(event.seq.0);
        items.push(event.to_text()?);
        Ok(())
    }
}

/// The sequence numbers of lines of JSON.
fn seqs_of(lines: &Lines) -> Vec<u64> {
    let lines = lines.lock();
    let seq =
        |line: &String| serde_json::from_str::<serde_json::Value>(line).unwrap()["seq"].as_u64();
    lines.iter().map(|line| seq(line).unwrap()).collect()
}

#[test]
fn sinks_with_the_same_encoder_and_filter_encode_each_event_once() {
    let encoded = Arc::new(Mutex::default());
    let works = Arc::new(AtomicBool::new(true));
    let (one, of_one) = noting(&works);
    let (two, of_two) = noting(&works);
    let with_counting = |name, destination| {
        let mut settings = settings(name, "", destination);
        settings.encoder = ("counting", Arc::new(Counting(encoded.clone())));
        settings
    };
    let mut second = with_counting("two", &two);
    // Neither the size of a request nor of a batch changes what is shared.
    second.limits.count = 7;
    let rig = Rig::start_with(one.clone(), vec![with_counting("one", &one), second]);
    for _ in 0..3 {
        rig.add(20);
    }
    rig.wait_until_delivered(60);
    rig.wait_until_passed("two", 60);

    assert_eq!(*of_one.lock(), *of_two.lock());
    assert_eq!(seqs_of(&of_one), (1..=60).collect::<Vec<_>>());
    let mut once = encoded.lock().clone();
    once.sort_unstable();
    assert_eq!(once, (1..=60).collect::<Vec<_>>());
}

#[test]
fn a_failure_and_a_seek_of_a_sink_concern_no_other_one_with_the_same_encoder_and_filter() {
    let works = Arc::new(AtomicBool::new(true));
    let works_later = Arc::new(AtomicBool::new(false));
    let ((one, of_one), (two, of_two)) = (noting(&works_later), noting(&works));
    let both = vec![settings("one", "", &one), settings("two", "", &two)];
    let rig = Rig::start_with(one, both);
    rig.add(20);
    rig.wait_until_passed("two", 20);
    rig.engines.seek("two", Position::Seq(SeqNo(5))).unwrap();
    rig.add(10);
    rig.wait_until_passed("two", 30);
    assert_eq!(seqs_of(&of_two), (1..=20).chain(5..=30).collect::<Vec<_>>());
    assert_eq!(rig.acknowledged(), 0);

    works_later.store(true, Ordering::SeqCst);
    rig.wait_until_delivered(30);
    assert_eq!(seqs_of(&of_one), (1..=30).collect::<Vec<_>>());
}

#[test]
fn sinks_with_another_filter_redaction_or_encoder_never_get_the_items_of_each_other() {
    let works = Arc::new(AtomicBool::new(true));
    let started = |name: &str, rest: &str, encoder: &str| {
        let (destination, lines) = noting(&works);
        let mut settings = settings(name, rest, &destination);
        if !encoder.is_empty() {
            let text = format!(
                "sinks: {{{name}: {{encoder: {encoder}, transport: {{http: {{url: 'http://h'}}}}}}}}"
            );
            let other = load(&text).unwrap().remove(0);
            (settings.encoder, settings.source) = (other.encoder, other.source);
        }
        (settings, lines)
    };
    let found = [
        started("one", "", ""),
        started("same", ", batch: {count: 9}, rate: 1000000/1s", ""),
        started("redacted", ", redact: [{paths: [n]}]", ""),
        started("filtered", ", where: data.n > 6", ""),
        started("text", "", "{template: {text: '{{ seq }}'}}"),
        started("other", "", "{template: {text: '{{ minion }}'}}"),
    ];
    let (all, lines): (Vec<_>, Vec<_>) = found.into_iter().unzip();
    let keys: HashSet<_> = all.iter().map(SinkSettings::encoding_key).collect();
    assert_eq!(keys.len(), 5, "two of them are equal: {keys:?}");
    let names: Vec<_> = all.iter().map(|one| one.name.clone()).collect();
    let rig = Rig::start_with(destination(accept), all);
    rig.add(12);
    for name in &names {
        rig.wait_until_passed(name, 12);
    }

    let [one, same, redacted, filtered, text, other] = &lines[..] else {
        panic!("six sinks");
    };
    assert_eq!(*one.lock(), *same.lock());
    let n = |line: &String| {
        serde_json::from_str::<serde_json::Value>(line).unwrap()["data"]["n"].clone()
    };
    let numbers = |lines: &Lines| lines.lock().iter().map(n).collect::<Vec<_>>();
    assert_eq!(numbers(one), (1..=12).map(|n| json!(n)).collect::<Vec<_>>());
    assert_eq!(numbers(redacted), vec![json!("[redacted]"); 12]);
    assert_eq!(
        numbers(filtered),
        (7..=12).map(|n| json!(n)).collect::<Vec<_>>()
    );
    let expected = (1..=12).map(|n| n.to_string()).collect::<Vec<_>>();
    assert_eq!(*text.lock(), expected);
    let expected = (1..=12).map(|n| format!("m{}", n % 3)).collect::<Vec<_>>();
    assert_eq!(*other.lock(), expected);
}

#[test]
fn a_failed_delivery_is_repeated_until_it_succeeds_and_nothing_is_acknowledged_before() {
    let attempts = AtomicUsize::new(0);
    let rig = Rig::start("", move |_| match attempts.fetch_add(1, Ordering::SeqCst) {
        0..3 => Err(DeliverError::retry("down")),
        _ => Ok(Vec::new()),
    });
    rig.add(2);
    rig.wait_until_delivered(2);
    let failures = rig.counters().failures;
    assert_eq!(failures, 3);
    assert_eq!(rig.engines.list()[0].last.error.as_ref().unwrap().1, "down");
    assert_eq!(rig.engines.list()[0].last.failures, 0);
    let mut accepted = rig.accepted();
    accepted.dedup();
    assert_eq!(accepted, [1, 2]);
}

#[test]
fn one_poison_record_in_a_batch_is_dead_lettered_alone() {
    let rig = Rig::start("", |items| {
        let is_poisoned = items.iter().any(|item| item.seq().0 == 6);
        if is_poisoned {
            Err(DeliverError::Refused {
                reason: "field type".to_owned(),
            })
        } else {
            accept(items)
        }
    });
    rig.add(9);
    rig.wait_until_delivered(9);
    assert_eq!(rig.accepted(), [1, 2, 3, 4, 5, 7, 8, 9]);
    assert_eq!(rig.dead(), [(6, "field type".to_owned())]);
    assert_eq!(
        (rig.counters().delivered, rig.counters().dead_lettered),
        (8, 1)
    );
}

#[test]
fn rejected_items_of_a_bulk_request_are_dead_lettered_or_sent_again_alone() {
    let is_first = AtomicBool::new(true);
    let rig = Rig::start("", move |items| {
        let find = |seq: u64| items.iter().position(|item| item.seq().0 == seq);
        let rejected = |index, is_temporary| Rejected {
            index,
            reason: "why".to_owned(),
            is_temporary,
        };
        let mut all: Vec<_> = find(2)
            .map(|index| rejected(index, false))
            .into_iter()
            .collect();
        if find(3).is_some() && is_first.swap(false, Ordering::SeqCst) {
            all.extend(find(3).map(|index| rejected(index, true)));
        }
        Ok(all)
    });
    rig.add(4);
    rig.wait_until_delivered(4);
    let mut accepted = rig.accepted();
    accepted.sort_unstable();
    assert_eq!(accepted, [1, 3, 4]);
    assert_eq!(rig.dead(), [(2, "why".to_owned())]);
}

/// Accepts, except that the first deliveries of some events are not accepted for now. Others of the request are.
fn busy_for(seqs: &[u64]) -> impl Fn(&[Item]) -> Result<Vec<Rejected>, DeliverError> + use<> {
    let left = Mutex::new(seqs.to_vec());
    move |items| {
        let mut left = left.lock();
        let busy = items.iter().enumerate().filter_map(|(index, item)| {
            let at = left.iter().position(|seq| *seq == item.seq().0)?;
            left.remove(at);
            Some(Rejected {
                index,
                reason: "429: busy".to_owned(),
                is_temporary: true,
            })
        });
        Ok(busy.collect())
    }
}

#[test]
fn later_items_of_a_minion_wait_behind_one_that_is_not_accepted_now() {
    for (order, concurrency) in [("minion", 1), ("minion", 3), ("none", 1)] {
        let rest = format!(
            ", concurrency: {concurrency}, order: {order}, batch: {{count: 20, bytes: 1MiB}}"
        );
        // Event 5 twice; 8 is of the same minion, 10 of another one.
        let destination = destination(busy_for(&[5, 5, 8, 10]));
        let mut settings = settings("one", &rest, &destination);
        settings.limits.count = 20;
        let rig = Rig::start_with(destination, vec![settings]);
        rig.add(40);
        rig.wait_until_delivered(40);
        let accepted = rig.accepted();
        let mut all = accepted.clone();
        all.sort_unstable();
        all.dedup();
        assert_eq!(all, (1..=40).collect::<Vec<_>>(), "{order}");
        if order == "none" {
            assert_eq!(accepted.len(), 40, "nothing is delivered twice");
            continue;
        }
        for minion in 0..3 {
            // Of a repeated delivery the last one counts: it has the state that the destination keeps.
            let last = |seq: u64| accepted.iter().rposition(|one| *one == seq).unwrap();
            let of_minion: Vec<_> = (1..=40).filter(|seq| seq % 3 == minion).map(last).collect();
            assert!(of_minion.is_sorted(), "{concurrency}: {accepted:?}");
        }
    }
}

#[test]
fn no_report_of_a_destination_has_a_secret() {
    let echo = "403 for %54%30ken%2Fof%20secret, VDBrZW4vb2Ygc2VjcmV0, \"T0ken\\/of secret\"";
    let far = format!("{} {SECRET}", "x".repeat(1_020));
    let destination = destination(move |items| match items[0].seq().0 {
        1 => Err(DeliverError::Refused {
            reason: echo.to_owned(),
        }),
        2 => Ok(vec![Rejected {
            index: 0,
            reason: far.clone(),
            is_temporary: false,
        }]),
        _ => Err(DeliverError::retry(echo)),
    });
    let mut settings = settings("one", "", &destination);
    settings.limits.count = 1;
    let rig = Rig::start_with(destination, vec![settings]);
    rig.add(3);
    let status = wait_for("a failure", || {
        let last = rig.engines.list()[0].last.clone();
        (last.phase == Phase::Retrying && rig.dead().len() == 2).then_some(last)
    });
    let letters = rig.engines.dead_letters("one").unwrap();
    let shown = format!(
        "{status:?} {:?} {letters:?}",
        rig.engines.test("one").unwrap().error
    );
    for part in ["T0", "%54", "ken", "VDBr"] {
        assert!(!shown.contains(part), "{part}: {shown}");
    }
    assert_eq!(
        shown.matches("[redacted], [redacted]").count(),
        3,
        "{shown}"
    );
}

#[test]
fn a_value_forges_no_line_where_lines_separate_items() {
    let text = |transport: &str| {
        format!(
            "sinks: {{one: {{encoder: {{template: {{text: '{{{{ data.a }}}};{{{{ seq }}}}'}}}}, transport: {transport}}}}}"
        )
    };
    for (transport, expected) in [
        ("{file: {path: /f}}", r"a\nb\rc;1"),
        ("{exec: {command: [/bin/cat]}}", r"a\nb\rc;1"),
        (
            r#"{http: {url: 'http://h', body: {separator: "\n"}}}"#,
            r"a\nb\rc;1",
        ),
        (
            "{http: {url: 'http://h', body: {separator: ','}}}",
            "a\nb\rc;1",
        ),
    ] {
        let settings = load(&text(transport)).unwrap().remove(0);
        let event = crate::engines::event::tests::event(1, "t", "m", json!({"a": "a\nb\rc"}));
        let event = Arc::new(event);
        let mut encoded = Vec::new();
        settings.encoder.1.encode(&event, &mut encoded).unwrap();
        let items: Vec<_> = Item::of(&event, &mut encoded, settings.framing()).collect();
        assert_eq!(items.len(), 1);
        assert_eq!(items[0].bytes, expected.as_bytes(), "{transport}");
    }
}

#[test]
fn dead_letters_are_retried_and_dropped() {
    let is_broken = Arc::new(AtomicBool::new(true));
    let broken = is_broken.clone();
    let rig = Rig::start("", move |items| {
        if broken.load(Ordering::SeqCst) {
            return Err(DeliverError::Refused {
                reason: "no".to_owned(),
            });
        }
        let third = items.iter().position(|item| item.seq().0 == 3);
        let rejected = |index| Rejected {
            index,
            reason: "still no".to_owned(),
            is_temporary: false,
        };
        Ok(third.map(rejected).into_iter().collect())
    });
    rig.add(3);
    rig.wait_until_delivered(3);
    assert_eq!(rig.dead().len(), 3);
    is_broken.store(false, Ordering::SeqCst);
    let third = rig.engines.dead_letters("one").unwrap()[2].id.clone();
    let named = ["1".to_owned(), third, "99".to_owned()];
    assert_eq!(
        rig.engines.retry_dead_letters("one", Some(&named)).unwrap(),
        2
    );
    wait_for("the retries", || {
        (rig.dead().len() == 2 && rig.dead()[1].1 == "still no").then_some(())
    });
    assert_eq!(rig.accepted(), [1]);
    assert_eq!(rig.engines.dead_letters("one").unwrap()[1].attempts, 2);
    assert_eq!(rig.engines.drop_dead_letters("one", None).unwrap(), 2);
    assert_eq!(rig.dead(), []);
}

#[test]
fn an_event_that_cannot_be_encoded_is_dead_lettered() {
    let destination = destination(accept);
    let mut settings = settings("one", "", &destination);
    let text = "sinks: {one: {encoder: {template: {text: '{{ data.n + data.x.y }}'}}, transport: {http: {url: 'http://h'}}}}";
    settings.encoder = load(text).unwrap().remove(0).encoder;
    let rig = Rig::start_with(destination, vec![settings]);
    rig.add(1);
    rig.wait_until_delivered(1);
    let dead = rig.dead();
    assert!(
        dead[0]
            .1
            .starts_with("the template of the sink failed: line 1: "),
        "{dead:?}"
    );
    assert_eq!(rig.accepted(), [0_u64; 0]);
}

#[test]
fn parallel_deliveries_keep_the_order_of_each_minion() {
    let rig = Rig::start(", concurrency: 3", |items| {
        // Some lanes are slower than others.
        thread::sleep(Duration::from_millis(items[0].seq().0 % 3));
        Ok(Vec::new())
    });
    rig.add(60);
    rig.wait_until_delivered(60);
    let accepted = rig.accepted();
    for minion in 0..3 {
        let of_minion: Vec<_> = accepted.iter().filter(|seq| **seq % 3 == minion).collect();
        assert!(of_minion.is_sorted(), "{of_minion:?}");
        assert_eq!(of_minion.len(), 20);
    }
}

#[test]
fn a_paused_sink_delivers_nothing_until_it_is_resumed() {
    let rig = Rig::start("", accept);
    rig.engines.pause("one", true).unwrap();
    rig.add(3);
    wait_for("the pause", || {
        (rig.engines.list()[0].last.phase == Phase::Paused).then_some(())
    });
    assert_eq!(rig.accepted(), [0_u64; 0]);
    rig.engines.pause("one", false).unwrap();
    rig.wait_until_delivered(3);
}

#[test]
fn a_seek_gives_up_a_failing_delivery() {
    let rig = Rig::start("", |items| match items[0].seq().0 {
        1 => Err(DeliverError::Retry {
            reason: "down".to_owned(),
            after: Some(Duration::from_secs(3_600)),
        }),
        _ => Ok(Vec::new()),
    });
    rig.add(5);
    wait_for("a failure", || {
        (rig.engines.list()[0].last.phase == Phase::Retrying).then_some(())
    });
    rig.engines.seek("one", Position::Seq(SeqNo(4))).unwrap();
    rig.wait_until_delivered(5);
    assert_eq!(rig.accepted(), [4, 5]);
    let error = rig
        .engines
        .seek("two", Position::Newest)
        .unwrap_err()
        .to_string();
    assert_eq!(error, "no sink \"two\" is configured; configured are: one");
}

#[test]
fn a_reload_replaces_changed_sinks_and_leaves_others_alone() {
    let destination = destination(accept);
    let (one, two) = (
        settings("one", "", &destination),
        settings("two", "", &destination),
    );
    let rig = Rig::start_with(destination.clone(), vec![one.clone(), two]);
    let first = rig.engines.sinks.lock()["two"].state.clone();
    rig.engines.apply(vec![
        one.clone(),
        settings("two", ", rate: 5/1s", &destination),
    ]);
    wait_for("the reopening", || {
        (destination.reopened.load(Ordering::SeqCst) == 1).then_some(())
    });
    let names = |rig: &Rig| -> Vec<String> {
        rig.engines
            .list()
            .iter()
            .map(|status| status.settings.name.clone())
            .collect()
    };
    assert_eq!(names(&rig), ["one", "two"]);
    let second = rig.engines.sinks.lock()["two"].state.clone();
    rig.engines
        .apply(vec![settings("three", "", &destination), one]);
    assert_eq!(names(&rig), ["three", "one"]);
    // A thread shares its sink's state.
    wait_for("the end of both", || {
        (Arc::strong_count(&first) + Arc::strong_count(&second) == 2).then_some(())
    });
}

#[test]
fn a_sink_that_cannot_start_or_panics_stops_no_other() {
    let broken = destination(|_| panic!("a test panics"));
    let destination = destination(accept);
    let mut all = vec![
        settings("without_feed", "", &destination),
        settings("panics", "", &broken),
        settings("one", "", &destination),
    ];
    // No name of a consumer.
    all[0].name = "without feed".to_owned();
    destination.is_stalled.store(true, Ordering::SeqCst);
    let rig = Rig::start_with(destination, all);
    rig.add(3);
    wait_for("the panic", || {
        (rig.engines.list()[1].last.phase == Phase::Failed).then_some(())
    });
    rig.destination.is_stalled.store(false, Ordering::SeqCst);
    rig.wait_until_delivered(3);
    let status = rig.engines.list();
    assert_eq!(status[0].last.phase, Phase::Failed);
    let reason = status[0].progress.as_ref().unwrap_err();
    assert!(
        reason.starts_with("\"without feed\" is not a name for a consumer"),
        "{reason}"
    );
    let error = rig
        .engines
        .pause("without feed", true)
        .unwrap_err()
        .to_string();
    assert!(
        error.starts_with(&format!("the sink could not start: {reason}")),
        "{error}"
    );
    assert!(rig.engines.check()[0].1.is_err() && rig.engines.check()[2].1.is_ok());
}

#[test]
fn a_seek_a_pause_and_a_stop_end_the_wait_for_events() {
    let destination = destination(accept);
    let settings = settings("one", "", &destination);
    // A wait that nothing else ends.
    let idle = Duration::from_secs(3_600);
    let rig = Rig::start_on(Arc::default(), idle, destination, vec![settings]);
    rig.add(2);
    rig.wait_until_delivered(2);

    rig.wait_for_phase(Phase::Idle);
    rig.engines.seek("one", Position::Seq(SeqNo(2))).unwrap();
    rig.wait_until_delivered(2);
    assert_eq!(rig.accepted(), [1, 2, 2]);

    rig.wait_for_phase(Phase::Idle);
    rig.engines.pause("one", true).unwrap();
    rig.wait_for_phase(Phase::Paused);
    rig.engines.pause("one", false).unwrap();

    rig.wait_for_phase(Phase::Idle);
    assert!(!rig.is_released());
    rig.engines.stop();
    assert!(rig.is_released());
}

#[test]
fn a_sink_of_the_daemon_itself_is_neither_moved_nor_tested() {
    let destination = destination(accept);
    let settings = settings("one", "", &destination);
    let idle = Duration::from_secs(3_600);
    let mut rig = Rig::start_on(Arc::default(), idle, destination, vec![settings.clone()]);
    rig.engines.own.push(settings);
    rig.add(2);
    rig.wait_until_delivered(2);

    let moved = rig.engines.seek("one", Position::Oldest);
    assert!(matches!(moved, Err(SinkError::Own(_))), "{moved:?}");
    let tested = rig.engines.test("one").map(drop);
    assert!(matches!(tested, Err(SinkError::Own(_))), "{tested:?}");
    rig.engines.pause("one", true).unwrap();
    rig.wait_for_phase(Phase::Paused);
    assert_eq!(rig.accepted(), [1, 2]);
}

#[test]
fn a_stop_abandons_a_delivery_to_a_stalled_destination() {
    let rig = Rig::start("", accept);
    rig.destination.is_stalled.store(true, Ordering::SeqCst);
    rig.add(1);
    rig.destination.wait_for_request(1);
    rig.engines.stop_within(Duration::ZERO);
    assert_eq!(
        rig.acknowledged(),
        0,
        "not acknowledged, so it is redelivered"
    );
    rig.destination.is_stalled.store(false, Ordering::SeqCst);
}

#[test]
fn a_test_sends_the_newest_event_and_redaction_is_applied() {
    let rig = Rig::start(", redact: [{paths: [n]}]", accept);
    assert_eq!(
        rig.engines.test("one").unwrap_err().to_string(),
        "no stored event matches the sink's filter"
    );
    rig.add(2);
    rig.wait_until_delivered(2);
    assert_eq!(rig.counters().redacted, 2);
    let result = rig.engines.test("one").unwrap();
    assert_eq!(
        (result.event.seq, result.items, result.error),
        (SeqNo(2), 1, None)
    );
    let redacted = crate::wire::msgpack::encode(&json!({"n": "[redacted]"})).unwrap();
    assert_eq!(result.event.body, redacted);
}

/// Rejects everything for good.
#[expect(clippy::unnecessary_wraps, reason = "a destination can fail")]
fn reject(items: &[Item]) -> Result<Vec<Rejected>, DeliverError> {
    let all = (0..items.len()).map(|index| Rejected {
        index,
        reason: "no".to_owned(),
        is_temporary: false,
    });
    Ok(all.collect())
}

#[test]
fn a_reload_during_a_delivery_loses_no_dead_letter() {
    let rig = Rig::start("", reject);
    rig.destination.is_stalled.store(true, Ordering::SeqCst);
    rig.add(1);
    rig.destination.wait_for_request(1);
    // The new sink knows the dead letters before the old one adds its last.
    rig.engines
        .apply(vec![settings("one", ", rate: 1000/1s", &rig.destination)]);
    rig.destination.is_stalled.store(false, Ordering::SeqCst);
    rig.wait_until_delivered(1);
    rig.add(1);
    rig.wait_until_delivered(2);
    let expected = [(1, "no".to_owned()), (2, "no".to_owned())];
    assert_eq!(rig.dead(), expected);
    assert_eq!(rig.dead().len(), 2);

    // A drop reaches the instance that the old thread writes with.
    rig.destination.is_stalled.store(true, Ordering::SeqCst);
    rig.add(1);
    rig.destination.wait_for_request(3);
    rig.engines
        .apply(vec![settings("one", ", rate: 2000/1s", &rig.destination)]);
    assert_eq!(rig.engines.drop_dead_letters("one", None).unwrap(), 2);
    rig.destination.is_stalled.store(false, Ordering::SeqCst);
    rig.wait_until_delivered(3);
    assert_eq!(rig.dead(), [(3, "no".to_owned())]);
    assert_eq!(rig.dead().len(), 1);
}

#[test]
fn a_removed_sink_that_returns_waits_for_the_delivery_in_flight() {
    let rig = Rig::start("", accept);
    rig.destination.is_stalled.store(true, Ordering::SeqCst);
    rig.add(1);
    rig.destination.wait_for_request(1);
    rig.engines.apply(Vec::new());
    rig.engines
        .apply(vec![settings("one", "", &rig.destination)]);
    // Time for a second thread, which must not start.
    let until = Instant::now() + Duration::from_millis(200);
    while rig.destination.requests.load(Ordering::SeqCst) < 2 && Instant::now() < until {
        thread::sleep(Duration::from_millis(2));
    }
    assert_eq!(rig.destination.requests.load(Ordering::SeqCst), 1);
    rig.destination.is_stalled.store(false, Ordering::SeqCst);
    rig.add(1);
    rig.wait_until_delivered(2);
    assert_eq!(rig.accepted(), [1, 2]);
}

#[test]
fn a_stop_waits_for_the_delivery_of_a_removed_sink() {
    let rig = Rig::start("", |items| {
        // Longer than the stop takes without a wait.
        thread::sleep(Duration::from_millis(50));
        accept(items)
    });
    rig.add(1);
    rig.destination.wait_for_request(1);
    rig.engines.apply(Vec::new());
    rig.engines.stop();
    assert_eq!(rig.acknowledged(), 1);
    assert!(rig.is_released());
}

#[test]
fn a_reload_that_the_stop_overtakes_starts_no_sink() {
    let rig = Rig::start("", accept);
    rig.engines.stop();
    // One that was there, and a new one.
    let names = ["one", "two"];
    let reloaded = names.map(|name| settings(name, "", &rig.destination));
    rig.engines.apply(reloaded.into());
    assert!(rig.engines.sinks.lock().is_empty());
    assert!(rig.is_released());
}

#[test]
fn only_what_is_accepted_is_counted_and_repeated_rejections_are_failures_in_a_row() {
    let is_busy = Arc::new(AtomicBool::new(true));
    let accepted_bytes = Arc::new(AtomicUsize::new(0));
    let (busy, bytes) = (is_busy.clone(), accepted_bytes.clone());
    let rig = Rig::start("", move |items| {
        let rejected = |index: usize, is_temporary| Rejected {
            index,
            reason: "why".to_owned(),
            is_temporary,
        };
        let mut all = Vec::new();
        for (index, item) in items.iter().enumerate() {
            match item.seq().0 {
                1 => all.push(rejected(index, false)),
                2 if busy.load(Ordering::SeqCst) => all.push(rejected(index, true)),
                _ => _ = bytes.fetch_add(item.bytes.len(), Ordering::SeqCst),
            }
        }
        Ok(all)
    });
    rig.add(3);
    let last = wait_for("failures in a row", || {
        let last = rig.engines.list()[0].last.clone();
        (last.failures >= 3).then_some(last)
    });
    assert_eq!(last.phase, Phase::Retrying);
    is_busy.store(false, Ordering::SeqCst);
    rig.wait_until_delivered(3);
    assert_eq!(rig.counters().items, 2);
    assert_eq!(
        rig.counters().bytes,
        accepted_bytes.load(Ordering::SeqCst) as u64
    );
    let last = rig.engines.list()[0].last.clone();
    assert!(last.failures == 0 && last.delivered_at.is_some());
}

#[test]
fn the_pause_after_a_failed_acknowledgement_grows() {
    let destination = destination(accept);
    let mut settings = settings("one", "", &destination);
    settings.retry.max = Duration::from_secs(3_600);
    settings.retry.jitter = 0;
    let rig = Rig::start_with(destination, vec![settings]);
    // Where positions are saved; the events are stored.
    rig.plan.add(Fault {
        within: "settings".to_owned(),
        ..Fault::lasting(Act::Write, Errno::ROFS)
    });
    let started = Instant::now();
    rig.add(1);
    wait_for("the failures", || {
        (rig.counters().failures >= 8).then_some(())
    });
    // 1, 2, 4 and so on up to 64 ms, which no fast host shortens.
    assert!(started.elapsed() >= Duration::from_millis(127));
}

#[test]
fn a_seek_or_a_reload_forgets_no_retry_of_a_dead_letter() {
    for is_reload in [false, true] {
        // 0: rejects for good, 1: is down, 2: accepts.
        let mode = Arc::new(AtomicUsize::new(0));
        let now = mode.clone();
        let rig = Rig::start("", move |items| match now.load(Ordering::SeqCst) {
            0 => reject(items),
            1 => Err(DeliverError::Retry {
                reason: "down".to_owned(),
                after: Some(Duration::from_secs(3_600)),
            }),
            _ => Ok(Vec::new()),
        });
        rig.add(1);
        rig.wait_until_delivered(1);
        mode.store(1, Ordering::SeqCst);
        assert_eq!(rig.engines.retry_dead_letters("one", None).unwrap(), 1);
        wait_for("a failure", || {
            (rig.engines.list()[0].last.phase == Phase::Retrying).then_some(())
        });
        mode.store(2, Ordering::SeqCst);
        if is_reload {
            rig.engines
                .apply(vec![settings("one", ", rate: 1000/1s", &rig.destination)]);
        } else {
            rig.engines.seek("one", Position::Seq(SeqNo(2))).unwrap();
        }
        wait_for("the retry", || rig.dead().is_empty().then_some(()));
        assert_eq!(rig.accepted(), [1]);
    }
}

#[test]
fn a_sink_that_opens_slowly_does_not_hold_up_the_check_of_a_name() {
    let rig = Rig::start("", accept);
    let is_slow = &rig.destination.is_slow_to_open;
    is_slow.store(true, Ordering::SeqCst);
    let all = vec![
        settings("one", "", &rig.destination),
        settings("slow", "", &rig.destination),
    ];
    thread::scope(|scope| {
        let reload = scope.spawn(|| rig.engines.apply(all));
        let found = scope.spawn(|| {
            // Whenever the consumer exists, its name is known.
            while !rig.store.consumers().is_of_sink("slow") {
                thread::sleep(Duration::from_millis(1));
            }
            rig.engines.has("slow") && is_slow.load(Ordering::SeqCst)
        });
        let until = Instant::now() + Duration::from_secs(10);
        while !found.is_finished() && Instant::now() < until {
            thread::sleep(Duration::from_millis(1));
        }
        is_slow.store(false, Ordering::SeqCst);
        assert!(
            found.join().unwrap(),
            "known only after the consumer was made"
        );
        reload.join().unwrap();
    });
    assert!(rig.engines.has("one") && !rig.engines.has("two"));
}

#[test]
fn counters_keep_their_names_and_their_order_in_answers() {
    let counters = SinkCounters::default();
    counters.delivered.add(3);
    counters.dead_lettered.add(1);
    counters.redacted.add(2);
    assert_eq!(
        serde_json::to_string(&counters.get()).unwrap(),
        r#"{"bytes":0,"dead_lettered":1,"delivered":3,"failures":0,"items":0,"redacted":2,"requests":0,"without_items":0}"#
    );
}
