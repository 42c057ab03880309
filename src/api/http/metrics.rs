//! `/metrics`: the counters and the state of the daemon in OpenMetrics, by `prometheus-client`.
//!
//! # Invariant
//!
//! Labels are bounded: names from the configuration, of consumers, of classes and of masters, never a job id or
//! a minion id. Only `http.minion_metrics` adds series per minion.

use std::collections::HashMap;
use std::fmt::{self, Write as _};

use parking_lot::Mutex;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, MetricEncoder, NoLabelSet, text};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::Registry;

use crate::api::call::Ctx;
use crate::api::call::causes::minions_by_cause;
use crate::base::limits::METRICS_CAUSES;
use crate::base::metrics::{BUCKETS_US, CounterDefinition, Histogram, Metrics};
use crate::ingest::bus::BusMonitor;
use crate::model::{Flags, SeqNo};
use crate::store::{HIGHSTATE, StoreError};
use crate::wire::call::CallError;

/// The content type of metrics.
pub(super) const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// A metric that is not one of the counters.
struct Family {
    name: &'static str,
    kind: Kind,
    help: &'static str,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Gauge,
    Counter,
    Histogram,
}

impl Kind {
    fn name(self) -> &'static str {
        match self {
            Self::Gauge => "gauge",
            Self::Counter => "counter",
            Self::Histogram => "histogram",
        }
    }
}

const fn gauge(name: &'static str, help: &'static str) -> Family {
    Family {
        name,
        kind: Kind::Gauge,
        help,
    }
}

const fn counter(name: &'static str, help: &'static str) -> Family {
    Family {
        name,
        kind: Kind::Counter,
        help,
    }
}

const fn histogram(name: &'static str, help: &'static str) -> Family {
    Family {
        name,
        kind: Kind::Histogram,
        help,
    }
}

macro_rules! families {
    ($($id:ident = $family:expr;)+) => {
        $(static $id: Family = $family;)+
        /// All metrics except the counters, in the order of the page.
        static FAMILIES: &[&Family] = &[$(&$id,)+];
    };
}

families! {
    BUILD = gauge("build_info", "Always 1; the label `version` is the version of the program");
    START = gauge("start_time_seconds", "Start time of the daemon, in seconds since 1970");
    APPENDER_IDLE = gauge("appender_idle_seconds", "Age of the appender's last heartbeat: above 10, the daemon is stuck in disk I/O");
    STORE_REFUSES = gauge("store_rejects_entries", "1 while the store accepts no entries, because the disk is full or failed");
    NEXT_SEQ = gauge("next_sequence_number", "Sequence number of the next durable entry");
    DISK_FREE = gauge("disk_free_bytes", "Free space of the file system of the state directory");
    DISK_SIZE = gauge("disk_size_bytes", "Size of the file system of the state directory");
    DISK_MIN = gauge("disk_free_min_bytes", "Free space below which no entries are accepted (`store.free_bytes_min`)");
    CLASS_DISK = gauge("class_disk_bytes", "Disk usage of a class");
    CLASS_ENTRIES = gauge("class_entries", "Entries of a class");
    CLASS_SEGMENTS = gauge("class_segments", "Segments of a class");
    BUS_CONNECTED = gauge("bus_connected", "1 while the bus is connected");
    BUS_WAITING = gauge("bus_waiting_events", "Events read from the bus and not stored yet");
    BUS_SPILLED = gauge("bus_spilled_bytes", "Bytes of the bus in the spill on disk");
    CONSUMER_LAG = gauge("consumer_lag_entries", "Stored entries behind the cursor of a consumer, matching or not");
    CONSUMER_LAG_S = gauge("consumer_lag_seconds", "Age of the oldest entry behind the cursor of a consumer");
    CONSUMER_PAUSED = gauge("consumer_paused", "1 while a consumer is paused");
    SINK_LAG = gauge("sink_lag_entries", "Stored entries behind the position of a sink, matching or not");
    SINK_LAG_S = gauge("sink_lag_seconds", "Age of the oldest entry behind the position of a sink");
    SINK_PAUSED = gauge("sink_paused", "1 while a sink is paused");
    SINK_FAILURES = gauge("sink_failed_attempts", "Failed attempts of a sink since its last delivery");
    SINK_DEAD = gauge("sink_dead_letters", "Dead letters of a sink");
    SINK_EVENTS = counter("sink_events", "Events of a sink by `outcome`: delivered, without_items, dead_lettered");
    SINK_REQUESTS = counter("sink_requests", "Requests or writes of a sink by `outcome`: accepted, failed");
    SINK_BYTES = counter("sink_bytes", "Bytes that the destination of a sink has accepted");
    REACTOR_BEHIND = gauge("reactor_lag_entries", "Entries that the reactor has not read yet");
    REACTOR_WAITING = gauge("reactor_waiting_reactions", "Reactions that wait to be carried out");
    REACTOR_OPEN = gauge("reactor_open_events", "Matched events that are not fully processed");
    MASTER_UNREACHABLE = gauge("reactor_master_unreachable", "1 while the reactor's master is unreachable");
    CLUSTER_READING = gauge("cluster_reading", "1 while the histories of the other masters are read; only with `cluster.nats`");
    CLUSTER_BEHIND = gauge("cluster_behind_seconds", "Lag of the history of another master, by `master`; grows while no heartbeat arrives. Only with `cluster.nats`");
    CLUSTER_HEARD = gauge("cluster_heard_seconds", "Time since the last heartbeat of another master, by `master`; absent without one since the start. Only with `cluster.nats`");
    JOBS = counter("jobs", "Jobs stored as published, by `function_class`: the module of the function, or `other`");
    RETURNS = counter(
        "returns",
        "Returns stored, by `function_class`, `outcome` (succeeded, failed) and `confirmed`. A return that is seen on a bus first (`no`) and then \
         confirmed by the job cache (`yes`) counts once in each; with the job cache, select `confirmed=\"yes\"`"
    );
    FAILED_CAUSES = gauge(
        "failed_causes",
        "Minions that failed for the same cause in the last 24 hours, of the ten causes with the most, by `rank` from 1; `saltcellar jobs causes` names them"
    );
    COMMITS = histogram("commit_duration_seconds", "Commit duration: write, sync, index update");
    RESPONSES = histogram(
        "response_duration_seconds",
        "Time from a request on the local socket or over HTTP to its response; for writes, until the entry is stored"
    );
    HIGHSTATE_TIME = gauge(
        "minion_highstate_timestamp_seconds",
        "Last return of a highstate of a minion (`state.apply` or `state.highstate` of all its states, without `test` and `mock`), in seconds since 1970; only with `http.minion_metrics`"
    );
    HIGHSTATE_FAILED = gauge("minion_highstate_failed", "1 if the last highstate of a minion failed; only with `http.minion_metrics`");
}

/// The page `docs/METRICS.md` below its preface.
pub fn reference() -> String {
    let mut page = "| metric | type | meaning |\n|---|---|---|\n".to_owned();
    let mut row = |name: &str, kind: Kind, help: &str| {
        let total = if kind == Kind::Counter { "_total" } else { "" };
        // Writing to a String cannot fail.
        let _ = writeln!(
            page,
            "| `saltcellar_{name}{total}` | {} | {} |",
            kind.name(),
            help.trim_end_matches('.')
        );
    };

    for family in FAMILIES {
        row(family.name, family.kind, family.help);
    }
    for group in grouped() {
        let Some((family, _)) = group.first().and_then(CounterDefinition::family) else {
            for counter in group {
                row(counter.name, Kind::Counter, counter.help);
            }
            continue;
        };

        let values: Vec<_> = group
            .iter()
            .filter_map(|counter| Some((counter.family()?.1, counter.help)))
            .map(|(value, help)| format!("`{value}`: {}", help.trim_end_matches('.')))
            .collect();
        let help = format!("{}.<br>{}", family.help, values.join("<br>"));
        row(family.name, Kind::Counter, &help);
    }

    page
}

/// The counters, grouped by family.
fn grouped() -> impl Iterator<Item = &'static [CounterDefinition]> {
    let name = |counter: &CounterDefinition| counter.family().map(|(family, _)| family.name);
    Metrics::COUNTERS.chunk_by(move |a, b| name(a) == name(b))
}

type Labels = Vec<(&'static str, String)>;

#[derive(Debug)]
enum Value {
    Counter(u64),
    Gauge(f64),
    Histogram { sum: f64, buckets: Vec<(f64, u64)> },
}

impl Value {
    fn encode(&self, to: &mut MetricEncoder<'_>) -> Result<(), fmt::Error> {
        match self {
            Self::Counter(value) => to.encode_counter::<NoLabelSet, _, f64>(value, None),
            Self::Gauge(value) => to.encode_gauge(value),
            Self::Histogram { sum, buckets } => {
                let count = buckets.iter().map(|(_, count)| count).sum();
                to.encode_histogram::<NoLabelSet>(*sum, count, buckets, None)
            }
        }
    }
}

/// The samples of one page, by the name of their family.
#[derive(Debug, Default)]
struct Snapshot {
    samples: HashMap<&'static str, Vec<(Labels, Value)>>,
    counters: Vec<(&'static str, u64)>,
}

impl Snapshot {
    fn add(&mut self, family: &'static Family, labels: Labels, value: Value) {
        self.samples
            .entry(family.name)
            .or_default()
            .push((labels, value));
    }

    fn gauge(&mut self, family: &'static Family, labels: &[(&'static str, &str)], value: f64) {
        self.add(family, owned(labels), Value::Gauge(value));
    }

    fn counter(&mut self, family: &'static Family, labels: &[(&'static str, &str)], value: u64) {
        self.add(family, owned(labels), Value::Counter(value));
    }

    fn histogram(&mut self, family: &'static Family, times: &Histogram) {
        let (sum, counts) = times.get();
        // The counts have one bucket more than there are bounds: everything above the last one.
        let bounds = BUCKETS_US
            .iter()
            .map(|us| *us as f64 / 1e6)
            .chain([f64::INFINITY]);
        let buckets = bounds.zip(counts).collect();

        self.add(
            family,
            Vec::new(),
            Value::Histogram {
                sum: sum as f64 / 1e6,
                buckets,
            },
        );
    }
}

fn owned(labels: &[(&'static str, &str)]) -> Labels {
    labels
        .iter()
        .map(|(name, value)| (*name, (*value).to_owned()))
        .collect()
}

impl Collector for Snapshot {
    fn encode(&self, mut encoder: DescriptorEncoder) -> Result<(), fmt::Error> {
        for family in FAMILIES {
            // Without a bus, a sink or a reactor its series are absent; zeros would look like a
            // working one.
            let Some(samples) = self.samples.get(family.name) else {
                continue;
            };
            let kind = match family.kind {
                Kind::Gauge => MetricType::Gauge,
                Kind::Counter => MetricType::Counter,
                Kind::Histogram => MetricType::Histogram,
            };
            let mut metric = encoder.encode_descriptor(family.name, family.help, None, kind)?;

            for (labels, value) in samples {
                if labels.is_empty() {
                    value.encode(&mut metric)?;
                } else {
                    value.encode(&mut metric.encode_family(labels)?)?;
                }
            }
        }

        // Values and descriptions are in the order in which the counters are declared.
        let mut values = self.counters.iter().map(|(_, value)| *value);
        for group in grouped() {
            let Some((family, _)) = group.first().and_then(CounterDefinition::family) else {
                for (counter, value) in group.iter().zip(&mut values) {
                    let help = counter.help.trim_end_matches('.');
                    let mut metric =
                        encoder.encode_descriptor(counter.name, help, None, MetricType::Counter)?;
                    Value::Counter(value).encode(&mut metric)?;
                }
                continue;
            };

            let mut metric =
                encoder.encode_descriptor(family.name, family.help, None, MetricType::Counter)?;
            for (counter, value) in group.iter().zip(&mut values) {
                if let Some((family, label)) = counter.family() {
                    let labels = [(family.label, label)];
                    Value::Counter(value).encode(&mut metric.encode_family(&labels)?)?;
                }
            }
        }

        Ok(())
    }
}

/// The last highstate of each minion, with the return's sequence number, from which a scrape reads
/// only new returns. Lock order: before the locks of the store, because returns are read under it.
#[derive(Default)]
pub(super) struct Highstates(Mutex<HashMap<String, Highstate>>);

#[derive(Clone, Copy)]
struct Highstate {
    seq: SeqNo,
    at: f64,
    has_failed: bool,
}

impl Highstates {
    fn read(&self, ctx: &Ctx, snapshot: &mut Snapshot) -> Result<(), StoreError> {
        let mut latest = HashMap::new();
        // Whichever source is newer.
        for of_source in [
            ctx.archive.store.latest_of(HIGHSTATE)?,
            ctx.archive.store.latest_on_bus_only(HIGHSTATE)?,
        ] {
            for (minion, job) in of_source {
                let seq = latest.entry(minion).or_insert(job.seq);
                *seq = job.seq.max(*seq);
            }
        }

        // Held while new returns are read, because two simultaneous scrapes must read each return
        // only once.
        let mut known = self.0.lock();
        // A minion whose returns have expired loses its series.
        known.retain(|minion, _| latest.contains_key(minion));

        for (minion, seq) in latest {
            if known.get(&minion).is_none_or(|state| state.seq != seq)
                && let Some(state) = highstate(ctx, seq)?
            {
                known.insert(minion, state);
            }
        }

        for (minion, state) in known.iter() {
            snapshot.gauge(&HIGHSTATE_TIME, &[("minion", minion)], state.at);
            snapshot.gauge(
                &HIGHSTATE_FAILED,
                &[("minion", minion)],
                f64::from(u8::from(state.has_failed)),
            );
        }

        Ok(())
    }
}

fn highstate(ctx: &Ctx, seq: SeqNo) -> Result<Option<Highstate>, StoreError> {
    let (found, _) = ctx
        .archive
        .store
        .entries_from(seq, seq.next(), 1, |_, _: Flags| true)?;
    Ok(found.first().map(|entry| Highstate {
        seq,
        at: entry.at.0 as f64 / 1e6,
        has_failed: entry.flags.failed(entry.retcode),
    }))
}

/// The page. `highstates` is set with `http.minion_metrics`.
pub(super) fn render(ctx: &Ctx, highstates: Option<&Highstates>) -> Result<String, CallError> {
    let snapshot = read(ctx, highstates).map_err(|error| CallError::Internal(error.to_string()))?;

    // A registry per scrape, because a collector is owned by its registry and this one has the
    // values of one moment.
    let mut registry = Registry::with_prefix("saltcellar");
    registry.register_collector(Box::new(snapshot));
    let mut page = String::new();
    text::encode(&mut page, &registry).map_err(|error| {
        CallError::Internal(format!(
            "the metrics cannot be written: report this message: {error}"
        ))
    })?;

    Ok(page)
}

/// The values of this moment.
fn read(ctx: &Ctx, highstates: Option<&Highstates>) -> Result<Snapshot, StoreError> {
    let mut snapshot = Snapshot {
        counters: ctx.archive.metrics.all(),
        ..Snapshot::default()
    };
    let of = &mut snapshot;
    of.gauge(&BUILD, &[("version", env!("CARGO_PKG_VERSION"))], 1.0);
    of.gauge(&START, &[], ctx.process.started.0 as f64 / 1e6);

    store(ctx, of)?;

    // By rank, because a minion must not be able to name a series.
    let causes = minions_by_cause(&ctx.archive)?;
    for (rank, minions) in (1..=METRICS_CAUSES).zip(causes) {
        of.gauge(
            &FAILED_CAUSES,
            &[("rank", &rank.to_string())],
            minions as f64,
        );
    }

    for bus in ctx.reacting.buses.iter().map(BusMonitor::status) {
        let path = bus.path.to_string_lossy();
        let label = [("bus", &*path)];
        of.gauge(&BUS_CONNECTED, &label, flag(bus.connected));
        of.gauge(
            &BUS_WAITING,
            &label,
            (bus.waiting.events + bus.waiting.spilled_events) as f64,
        );
        of.gauge(&BUS_SPILLED, &label, bus.waiting.spilled_bytes as f64);
    }

    for consumer in ctx.archive.store.consumers().all()? {
        let label = [("consumer", consumer.record.name.as_str())];
        of.gauge(&CONSUMER_LAG, &label, consumer.lag_entries as f64);
        of.gauge(&CONSUMER_LAG_S, &label, consumer.lag.as_secs_f64());
        of.gauge(&CONSUMER_PAUSED, &label, flag(consumer.record.paused));
    }

    sinks(ctx, of);

    cluster(ctx, of);

    if let Some(reactor) = &ctx.reacting.handle {
        let status = reactor.status();
        of.gauge(&REACTOR_BEHIND, &[], status.behind as f64);
        of.gauge(&REACTOR_WAITING, &[], status.waiting as f64);
        of.gauge(&REACTOR_OPEN, &[], status.open as f64);
        of.gauge(&MASTER_UNREACHABLE, &[], flag(status.master_unreachable));
    }

    let counts = &ctx.archive.metrics.distributions;
    for (class, count) in counts.jobs.all() {
        of.counter(&JOBS, &[("function_class", class)], count);
    }
    for (confirmed, returns) in [
        ("yes", &counts.confirmed_returns),
        ("no", &counts.unconfirmed_returns),
    ] {
        for (outcome, by_function) in ["succeeded", "failed"].into_iter().zip(returns) {
            for (class, count) in by_function.all() {
                let labels = [
                    ("function_class", class),
                    ("outcome", outcome),
                    ("confirmed", confirmed),
                ];
                of.counter(&RETURNS, &labels, count);
            }
        }
    }

    of.histogram(&COMMITS, &counts.commits);
    of.histogram(&RESPONSES, &counts.responses);

    // A series per minion is much for Prometheus, so it is a choice of the configuration.
    if let Some(highstates) = highstates {
        highstates.read(ctx, of)?;
    }

    Ok(snapshot)
}

fn flag(value: bool) -> f64 {
    f64::from(u8::from(value))
}

fn store(ctx: &Ctx, of: &mut Snapshot) -> Result<(), StoreError> {
    of.gauge(
        &APPENDER_IDLE,
        &[],
        ctx.archive.store.appender_seen_ago().as_secs_f64(),
    );

    // While a disk is full or failing these two still have values; the rest may end in an error.
    of.gauge(
        &STORE_REFUSES,
        &[],
        flag(ctx.archive.store.refusal().is_some()),
    );

    let stats = ctx.archive.store.stats()?;
    of.gauge(&NEXT_SEQ, &[], stats.durable.0 as f64);
    of.gauge(&DISK_FREE, &[], stats.space.free as f64);
    of.gauge(&DISK_SIZE, &[], stats.space.total as f64);
    of.gauge(&DISK_MIN, &[], stats.space.min as f64);

    for class in &stats.classes {
        let label = [("class", &*class.name)];
        of.gauge(&CLASS_DISK, &label, class.segment_usage.disk_bytes as f64);
        of.gauge(&CLASS_ENTRIES, &label, class.segment_usage.entries as f64);
        of.gauge(&CLASS_SEGMENTS, &label, class.segments as f64);
    }

    Ok(())
}

fn cluster(ctx: &Ctx, of: &mut Snapshot) {
    let Some(shared) = &ctx.archive.shared else {
        return;
    };
    let is_reading = shared.links().inbox.is_none();
    of.gauge(&CLUSTER_READING, &[], flag(is_reading));

    for master in shared.others() {
        let label = [("master", master.name.as_str())];
        // Whoever may publish to the stream can make up names of which nothing else is known.
        let Some(behind) = master.behind else {
            continue;
        };
        of.gauge(&CLUSTER_BEHIND, &label, behind.as_secs_f64());
        if let Some(ago) = master.heard_ago {
            of.gauge(&CLUSTER_HEARD, &label, ago.as_secs_f64());
        }
    }
}

fn sinks(ctx: &Ctx, of: &mut Snapshot) {
    for sink in ctx.engines.list() {
        let label = [("sink", sink.settings.name.as_str())];
        // Without a readable position there is no series: a lag of zero would look like none.
        if let Ok(progress) = &sink.progress {
            of.gauge(&SINK_LAG, &label, progress.lag_entries as f64);
            of.gauge(&SINK_LAG_S, &label, progress.lag.as_secs_f64());
            of.gauge(&SINK_PAUSED, &label, flag(progress.is_paused));
        }

        of.gauge(&SINK_FAILURES, &label, f64::from(sink.last.failures));
        of.gauge(&SINK_DEAD, &label, sink.dead_letters as f64);

        let counts = sink.counters;
        for (outcome, count) in [
            ("delivered", counts.delivered),
            ("without_items", counts.without_items),
            ("dead_lettered", counts.dead_lettered),
        ] {
            of.counter(&SINK_EVENTS, &[label[0], ("outcome", outcome)], count);
        }
        for (outcome, count) in [("accepted", counts.requests), ("failed", counts.failures)] {
            of.counter(&SINK_REQUESTS, &[label[0], ("outcome", outcome)], count);
        }
        of.counter(&SINK_BYTES, &label, counts.bytes);
    }
}
