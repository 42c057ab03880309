//! `saltcellar events tail` and `count`: read events forwards.

use std::collections::BTreeMap;

use anyhow::Context as _;
use serde::Serialize;
use serde_json::{Map, Value as Json, json};

use super::event_rows::{columns, line, row};
use super::filter::EventFlags;
use crate::api::call as calls;
use crate::api::call::events::{
    CountArgs as CountCall, EventGroup, EventRow, FollowArgs, GroupBy, ListArgs as ListCall,
};
use crate::base::clock::{Clock, Micros};
use crate::cli::{
    Column, Format, Global, Output, Table, ask, nested, plain, print_error, short_at, show,
    show_rows, title, value,
};
use crate::wire::msgpack::Time;

pub(in crate::cli) const EXAMPLES: &str = "\
Prints each event once, in the order of the log: first the events since --since, then new ones as they are stored. \
Ends with --limit, --until or --before. JSON includes each event's data. \
The command replaces `salt-run state.event pretty=True`, and needs no access to Salt's bus. \
After a restart of the daemon it continues at its position; an event `saltcellar/gap/retention` stands for events that were deleted meanwhile.

Examples:
  saltcellar events tail
  saltcellar events tail --since 10m --tag 'salt/job/*/ret/*'
  saltcellar events tail --where 'data.success is false and data.fun is startingwith(\"state.\")' --show-data
  saltcellar events tail --output jsonl | jq .data";

pub(in crate::cli) const COUNT_EXAMPLES: &str = "\
Examples:
  saltcellar events count --since 1d --tag 'salt/auth'
  saltcellar events count --fun 'state.*' --failed
  saltcellar events count --since today --by function
  saltcellar events count --since -1d --search 'Permission denied' --by minion";

/// Wait of one call, in milliseconds, which bounds the time until a dead daemon is noticed.
const WAIT_MS: u64 = 10_000;

#[derive(clap::Args)]
pub(in crate::cli) struct Args {
    #[command(flatten)]
    filter: EventFlags,
    /// End after this number of events
    #[arg(short = 'n', long, value_name = "COUNT", value_parser = clap::value_parser!(u64).range(1..))]
    limit: Option<u64>,
    /// It always follows; accepted because `tail` has it
    #[arg(short, long, hide = true)]
    follow: bool,
    /// Show each event's data
    #[arg(long)]
    show_data: bool,
}

#[derive(clap::Args)]
pub(in crate::cli) struct CountArgs {
    #[command(flatten)]
    filter: EventFlags,
    /// Count by function, minion, hour or class
    #[arg(long, value_name = "WHAT", value_parser = ask::words::<GroupBy>(), hide_possible_values = true)]
    by: Option<GroupBy>,
}

impl CountArgs {
    /// Whether it prints a table: without groups there is one number.
    pub(super) fn has_rows(&self) -> bool {
        self.by.is_some()
    }
}

pub(super) fn run(global: &Global, args: &Args) -> anyhow::Result<()> {
    let mut out = Output::new(global.output);
    let mut table = Table::new(columns());
    let [since, until] = [args.filter.when.since(), args.filter.when.until()];
    let bounds = Bounds {
        limit: args.limit.map(ask::rows),
        since: since.map(|Time(at)| at),
        until: until.map(|Time(at)| at),
        before: end_of(global, &args.filter)?,
    };

    // The first call does not wait: its response contains the position from which a later
    // connection continues.
    let mut call = FollowArgs {
        filter: args.filter.args(),
        wait_ms: Some(0),
        ..FollowArgs::default()
    };
    call.start.time = since;

    follow(
        global,
        (&mut out, &mut table),
        call,
        &bounds,
        args.show_data,
    )
}

/// The sequence number before which all events are that may be printed. For a time that has passed, it follows from the newest event
/// before that time.
fn end_of(global: &Global, filter: &EventFlags) -> anyhow::Result<Option<u64>> {
    let has_passed = |Time(until): Time| until <= Clock::real().now();
    if !filter.when.until().is_some_and(has_passed) {
        return Ok(filter.before);
    }

    // There is an index by time, so the rest of the archive is not read only to find no more events of the time.
    let call = ListCall {
        limit: Some(1),
        ..filter.list_args()
    };
    let mut client = ask::connect(global)?;
    let newest = ask::whole::<calls::events::List>(&mut client, call).context("list events")?;
    Ok(Some(newest.events.first().map_or(0, |event| event.seq + 1)))
}

/// What is printed while following, and where it ends; without any of them it does not end.
#[derive(Default)]
pub(super) struct Bounds {
    /// After this number of events.
    limit: Option<usize>,
    /// Only events at or after this time.
    since: Option<Micros>,
    /// Only events before this time; ends when it has passed.
    until: Option<Micros>,
    /// With the events before this sequence number.
    before: Option<u64>,
}

/// Time that an entry may take from its timestamp to the log.
const STORED_WITHIN: i64 = 1_000_000;

impl Bounds {
    /// Only events at or after this time, without an end.
    pub(super) fn since(time: Option<Time>) -> Self {
        Self {
            since: time.map(|Time(at)| at),
            ..Self::default()
        }
    }

    /// Whether the time of an event is within them. An event that waited in a spool is older than the events before it in the log, so
    /// its place says nothing.
    fn has(&self, event: &EventRow) -> bool {
        self.since.is_none_or(|since| event.time.0 >= since)
            && self.until.is_none_or(|until| event.time.0 < until)
    }

    /// The local time at which everything before `until` is stored.
    fn end(&self) -> Option<i64> {
        self.until
            .map(|until| until.0.saturating_add(STORED_WITHIN))
    }

    /// How long a call may wait: not beyond the end.
    fn wait_ms(&self, now: Micros) -> u64 {
        let Some(end) = self.end() else {
            return WAIT_MS;
        };
        let left = end.saturating_sub(now.0).max(0).unsigned_abs();
        left.div_ceil(1000).min(WAIT_MS)
    }

    /// Whether no event before them can follow: `next` is the position that was read up to, at this
    /// time or later.
    fn is_passed(&self, next: u64, read_at: Micros) -> bool {
        self.before.is_some_and(|before| next >= before)
            || self.end().is_some_and(|end| read_at.0 >= end)
    }
}

/// Prints events from where `call` starts, within `bounds`.
pub(super) fn follow(
    global: &Global,
    (out, table): (&mut Output, &mut Table),
    mut call: FollowArgs,
    bounds: &Bounds,
    with_data: bool,
) -> anyhow::Result<()> {
    let operation = "follow the events";
    let mut client = ask::connect(global)?;
    let mut has_position = call.start.seq.is_some();
    let mut left = bounds.limit.unwrap_or(usize::MAX);

    while left > 0 {
        let read_at = Clock::real().now();
        call.limit = Some(left.min(crate::base::limits::CLI_PAGE_ROWS));

        let found = match client.make::<calls::events::Follow>(&call) {
            // Before the first result there is no position from which to continue.
            Err(error) if has_position && ask::is_gone(&error) => {
                client = ask::reconnected(global, None)?;
                continue;
            }
            answer => answer.context(operation)?,
        };

        for event in &found.events {
            // The log is in the order of sequence numbers.
            if bounds.before.is_some_and(|before| event.seq >= before) {
                return Ok(out.flush()?);
            }
            if !bounds.has(event) {
                continue;
            }
            print(out, table, event, with_data)?;
            left = left.saturating_sub(1);
        }

        // Now, because the next call may wait, and a pipe would hold the lines back.
        out.flush()?;

        // After the events before it. It may match, so it is not passed in silence.
        if let Some(unfiltered) = &found.unfiltered {
            print_error(&format!("{}; not shown", plain(&unfiltered.reason)));
        }

        // Everything before the end was stored when the call was made.
        if !found.more && bounds.is_passed(found.next, read_at) {
            return Ok(());
        }

        // From now on by position: by time, an event could be missed or repeated.
        has_position = true;
        call.wait_ms = Some(bounds.wait_ms(Clock::real().now()));
        call.start.time = None;
        call.start.seq = Some(found.next);
    }
    Ok(())
}

fn print(
    out: &mut Output,
    table: &mut Table,
    event: &EventRow,
    with_data: bool,
) -> anyhow::Result<()> {
    if out.format != Format::Table {
        return Ok(out.json(event)?);
    }

    if out.is_csv() {
        return Ok(table.print(out, &[row(event)])?);
    }

    // Not aligned, because the width of later events is unknown.
    out.styled(&line(event))?;

    if with_data {
        nested(&value(&event.data), 4)
            .lines()
            .try_for_each(|line| out.line(line))?;
    }
    Ok(())
}

/// The numbers of events, as JSON.
#[derive(Serialize)]
struct Counted {
    count: u64,
    others: u64,
    groups: Vec<Group>,
}

/// The number of events with a key.
struct Group {
    by: GroupBy,
    key: String,
    count: u64,
}

impl Group {
    /// The start of the hour of a group by hour, which the daemon sends in microseconds.
    fn hour(&self) -> Option<Micros> {
        (self.by == GroupBy::Hour).then(|| self.key.parse().ok().map(Micros))?
    }

    fn title(&self) -> String {
        match self.hour() {
            // Minutes are enough for the start of an hour.
            Some(hour) => short_at(Time(hour)).chars().take(16).collect(),
            // Events without a function or minion.
            None if self.key.is_empty() => "(none)".to_owned(),
            None => self.key.clone(),
        }
    }
}

/// `{"minion": "web1", "count": 3}`
impl Serialize for Group {
    fn serialize<S: serde::Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let key = self.hour().map_or_else(|| self.key.clone(), Micros::iso);
        let row: Map<String, Json> = [
            (self.by.name().to_owned(), json!(key)),
            ("count".to_owned(), json!(self.count)),
        ]
        .into_iter()
        .collect();
        row.serialize(to)
    }
}

pub(super) fn count(global: &Global, args: &CountArgs) -> anyhow::Result<()> {
    let operation = "count the events";
    let mut client = ask::connect(global)?;
    let mut call = CountCall {
        since: args.filter.when.since(),
        until: args.filter.when.until(),
        before: args.filter.before,
        filter: args.filter.args(),
        by: args.by,
        ..CountCall::default()
    };

    let (mut count, mut others) = (0, 0);
    let mut groups: BTreeMap<String, u64> = BTreeMap::new();

    loop {
        let found = client
            .make::<calls::events::Count>(&call)
            .context(operation)?;

        count += found.count;
        others += found.others.unwrap_or(0);

        // Groups continue from page to page.
        for EventGroup { key, count } in found.groups.into_iter().flatten() {
            *groups.entry(key).or_default() += count;
        }

        // One call reads a bounded part of the log, and names where the next one begins.
        if found.next.is_none() {
            break;
        }
        call.from = found.next;
    }

    let Some(by) = args.by else {
        return show(global.output, &json!({ "count": count }), |out| {
            Ok(out.line(&count.to_string())?)
        });
    };

    let group = |(key, count)| Group { by, key, count };
    let mut groups: Vec<Group> = groups.into_iter().map(group).collect();

    // Hours stay in the order of time; other groups begin with the largest.
    if by != GroupBy::Hour {
        groups.sort_by(|a, b| b.count.cmp(&a.count).then_with(|| a.key.cmp(&b.key)));
    }

    let counted = Counted {
        count,
        others,
        groups,
    };

    show_rows(global.output, &counted, &counted.groups, |out| {
        let row = |group: &Group| vec![group.title(), group.count.to_string()];
        let cells: Vec<_> = counted.groups.iter().map(row).collect();

        let name = match by {
            GroupBy::Function => "FUNCTION",
            GroupBy::Minion => "MINION",
            GroupBy::Class => "CLASS",
            GroupBy::Hour => title("HOUR", "HOUR (UTC)"),
        };

        Table::new([Column::middle_truncated(name), Column::right("EVENTS")]).print(out, &cells)?;
        // Beyond the daemon's limit of groups.
        if others > 0 {
            out.line(&format!("{others} events of other groups"))?;
        }

        Ok(out.line(&format!("{count} events"))?)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_waits_until_the_end_at_most() {
        let bounds = Bounds {
            until: Some(Micros(20_000_000)),
            ..Bounds::default()
        };
        let wait = |now| bounds.wait_ms(Micros(now));
        // An entry may be stored a second after its time.
        assert_eq!(
            [20_500_000, 20_999_999, 21_000_000, 90_000_000].map(wait),
            [500, 1, 0, 0]
        );
        assert_eq!(wait(0), WAIT_MS);
        assert_eq!(Bounds::default().wait_ms(Micros(i64::MAX)), WAIT_MS);
    }
}
