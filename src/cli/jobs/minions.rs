//! `saltcellar minions`: lists minions, and shows one, from the archive.

use std::time::Duration;

use anyhow::Context as _;
use salt_sls::Glob;

use crate::api::call as calls;
use crate::api::call::minions::{ListArgs, ShowArgs};
use crate::api::query::{
    Minion, MinionEvent, MinionRow, MinionRun, MinionState, NotRead, StateCounts,
};
use crate::base::clock::{Clock, Micros};
use crate::base::units::span;
use crate::cli::{
    Column, Global, Line, Output, Table, Tone, ask, duration, or_empty, short_at, short_at_in_zone,
    show, show_rows, title,
};
use crate::wire::msgpack::Time;

#[derive(clap::Subcommand)]
pub(in crate::cli) enum Minions {
    /// List minions with their last job, last highstate and missing returns
    List(List),
    /// Show one minion: last jobs by function, highstate, missing returns, timeline
    Show(Show),
}

#[derive(clap::Args)]
#[command(after_long_help = LIST_EXAMPLES)]
pub(in crate::cli) struct List {
    /// Only minions that match this glob
    #[arg(value_name = "GLOB")]
    minion: Option<String>,
    /// Only minions whose last highstate of the last 14 days failed
    #[arg(long, conflicts_with = "missing")]
    failed: bool,
    /// Only minions that have not returned a job of the last 24 hours
    #[arg(long)]
    missing: bool,
    /// Only minions that were seen before, and not for this long: 2h, 3d
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    not_seen_since: Option<Duration>,
    /// Maximum number of minions
    #[arg(short = 'n', long, value_name = "COUNT", value_parser = clap::value_parser!(u64).range(1..))]
    limit: Option<u64>,
}

#[derive(clap::Args)]
#[command(after_long_help = SHOW_EXAMPLES)]
pub(in crate::cli) struct Show {
    /// The minion's id
    #[arg(value_name = "ID")]
    minion: String,
}

const LIST_EXAMPLES: &str = "\
SEEN is the age of the last event or return, HIGHSTATE that of the last highstate with its result: \
state.highstate or state.apply of all states, without test and mock. \
MISSING the number of recent jobs that expect a return.

Examples:
  saltcellar minions list
  saltcellar minions list 'web*'
  saltcellar minions list --failed
  saltcellar minions list --not-seen-since 2d
  saltcellar minions list --output jsonl | jq -r 'select(.highstate.failed) | .id'";

const SHOW_EXAMPLES: &str = "\
Examples:
  saltcellar minions show web1.example.com
  saltcellar minions show web1.example.com --output json | jq .failed_states";

pub(in crate::cli) fn run(global: &Global, verb: Minions) -> anyhow::Result<()> {
    match verb {
        Minions::List(args) => list(global, &args),
        Minions::Show(args) => show_one(global, &args.minion),
    }
}

fn list(global: &Global, args: &List) -> anyhow::Result<()> {
    let operation = "list the minions";
    let mut client = ask::connect(global)?;

    let call = ListArgs {
        minion: args.minion.clone().map(Glob::from),
        state: match (args.failed, args.missing) {
            (true, _) => Some(MinionState::Failed),
            (_, true) => Some(MinionState::Missing),
            _ => None,
        },
        not_seen_since: args.not_seen_since.map(ago),
        limit: args.limit.map(ask::rows),
        ..ListArgs::default()
    };
    let page = ask::whole::<calls::minions::List>(&mut client, call).context(operation)?;

    show_rows(global.output, &page, &page.minions, |out| {
        let columns = [
            Column::middle_truncated("MINION"),
            Column::right("SEEN"),
            Column::left("HIGHSTATE").toned(Tone::of_word),
            Column::right("CHANGED").toned(Tone::of_changes),
            Column::right("MISSING").toned(Tone::of_changes),
            Column::truncated("LAST FUNCTION").min_chars(13),
            Column::jid().drop_order(1),
        ];

        // The same time for all rows, because their ages are compared with each other.
        let now = Clock::real().now();

        let cells = |row: &MinionRow| {
            let states = row.highstate.as_ref().and_then(|run| run.states.as_ref());
            // A minion that was only seen in events has no job.
            let last = row.last.clone().unwrap_or_default();
            vec![
                row.id.clone(),
                age(row.last_seen.as_ref().map(|seen| seen.time), now),
                row.highstate
                    .as_ref()
                    .map_or("-".to_owned(), |run| highstate(run, now)),
                or_empty(states.map(|states| states.changed)),
                row.missing.to_string(),
                last.fun,
                last.jid,
            ]
        };

        let rows: Vec<_> = page.minions.iter().map(cells).collect();
        Table::new(columns).print(out, &rows)?;
        skipped(out, &page.skipped)
    })
}

// With a limit, because a page ends before it if it was costly to collect.
ask::paged! {
    calls::minions::List: MinionRow, in minions, after String, in after,
    limited by limit, joined by |before, page| page.skipped.add(&before.skipped)
}

/// This long before now.
fn ago(age: Duration) -> Time {
    let age = i64::try_from(age.as_micros()).unwrap_or(i64::MAX);
    Time(Micros(Clock::real().now().0.saturating_sub(age)))
}

fn age(at: Option<Time>, now: Micros) -> String {
    let ago =
        |Time(at): Time| span(u64::try_from(now.0.saturating_sub(at.0) / 1_000_000).unwrap_or(0));
    at.map_or("-".to_owned(), ago)
}

/// `ok 3h` or `failed 2d`
fn highstate(run: &MinionRun, now: Micros) -> String {
    let result = match run.failed {
        Some(true) => "failed",
        Some(false) => "ok",
        None => "unknown",
    };
    format!("{result} {}", age(run.time, now))
}

/// `failed 2d: 5 states, 1 failed, 0 changed`; without numbers if its states were not read.
fn highstate_counts(run: &MinionRun, now: Micros) -> String {
    let result = highstate(run, now);
    match &run.states {
        Some(StateCounts {
            total,
            failed,
            changed,
        }) => format!("{result}: {total} states, {failed} failed, {changed} changed"),
        None => format!(
            "{result}: its states were not read, see `saltcellar jobs show {}`",
            run.jid
        ),
    }
}

/// Prints what the response does not cover.
fn skipped(out: &mut Output, skipped: &NotRead) -> anyhow::Result<()> {
    // Filled only for what was skipped.
    // Said at the end of each response, because a list that was cut short must not look complete.
    let notes = [
        skipped.jobs_skipped.then(|| {
            format!(
                "missing returns of the newest {} jobs",
                skipped.jobs_checked
            )
        }),
        skipped
            .events_since
            .map(|at| format!("events without a return since {}", short_at(at))),
        skipped.highstates_since.map(|at| {
            format!(
                "highstates since {} (repeat the command for earlier ones)",
                short_at(at)
            )
        }),
        (skipped.states_unread > 0)
            .then(|| format!("{} highstates without their states", skipped.states_unread)),
    ];

    let notes: Vec<String> = notes.into_iter().flatten().collect();
    if !notes.is_empty() {
        out.line(&format!("limited to: {}", notes.join("; ")))?;
    }
    Ok(())
}

fn show_one(global: &Global, id: &str) -> anyhow::Result<()> {
    let operation = "show the minion";
    let call = ShowArgs {
        minion: id.to_owned(),
        ..ShowArgs::default()
    };

    let Some(minion) = ask::answer::<calls::minions::Show>(global, &call, operation)? else {
        // An id from the command line may have any length.
        let shown: String = id.chars().take(64).collect();
        return Err(anyhow::anyhow!(
            "no entry of the archive names the minion {shown}; `saltcellar minions list` lists the known minions"
        )
        .context(operation));
    };

    show(global.output, &minion, |out| details(out, &minion))
}

fn details(out: &mut Output, minion: &Minion) -> anyhow::Result<()> {
    // Single times are followed by their zone; columns show it in the heading.
    let in_zone = |at: Option<Time>| at.map(short_at_in_zone).unwrap_or_default();
    let run = |run: &MinionRun| format!("{}  {}  {}", in_zone(run.time), run.fun, run.jid);

    let row = &minion.row;
    out.line(&format!("minion     {}", row.id))?;
    out.line(&format!(
        "last seen  {}",
        in_zone(row.last_seen.as_ref().map(|seen| seen.time))
    ))?;

    if let Some(last) = &row.last {
        // A minion that was only seen in events has none.
        out.line(&format!("last job   {}", run(last)))?;
    }

    if let Some(last) = &row.highstate {
        out.line(&format!("highstate  {}", run(last)))?;
        let counts = highstate_counts(last, Clock::real().now());
        let tone = Tone::of_word(&counts);
        out.styled(&Line::from("           ").and(tone, counts))?;

        for (title, states) in [
            ("failed", &minion.failed_states),
            ("changed", &minion.changed_states),
        ] {
            if !states.is_empty() {
                let line = Line::new(Tone::of_word(title), format!("{title:<9}  "));
                out.styled(&line.and(Tone::Plain, states.join(", ")))?;
            }
        }
    }

    let time = || Column::time(title("TIME", "TIME (UTC)"));
    let cells = |run: &MinionRun| {
        let time = run.time.map(short_at).unwrap_or_default();
        vec![time, run.fun.clone(), run.jid.clone()]
    };
    let missing: Vec<_> = minion.missing_jobs.iter().map(cells).collect();

    if !missing.is_empty() {
        out.line("")?;
        Table::new([
            time(),
            Column::truncated("MISSING RETURN OF"),
            Column::jid(),
        ])
        .print(out, &missing)?;
    }

    out.line("")?;
    // Printed even without rows. Otherwise it would look as if a part were missing.
    let functions: Vec<_> = minion.functions.iter().map(cells).collect();
    Table::new([time(), Column::truncated("LAST RUN OF"), Column::jid()]).print(out, &functions)?;

    if !minion.timeline.is_empty() {
        out.line("")?;
        let columns = [
            time(),
            Column::middle_truncated("EVENT"),
            Column::right("RETCODE").toned(Tone::of_failures),
        ];
        let cells = |event: &MinionEvent| {
            vec![
                short_at(event.time),
                event.tag.clone(),
                or_empty(event.retcode),
            ]
        };
        let rows: Vec<_> = minion.timeline.iter().map(cells).collect();
        Table::new(columns).print(out, &rows)?;
    }

    skipped(out, &minion.skipped)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::query::MinionsPage;

    fn page(ids: &[&str], next: Option<&str>, skipped: NotRead) -> MinionsPage {
        let row = |id: &&str| MinionRow {
            id: (*id).to_owned(),
            ..MinionRow::default()
        };
        MinionsPage {
            minions: ids.iter().map(row).collect(),
            more: next.is_some(),
            next: next.map(str::to_owned),
            skipped,
            ..MinionsPage::default()
        }
    }

    #[test]
    fn pages_become_one_list_with_what_all_of_them_skipped() {
        let skipped = |jobs_checked, jobs_skipped, since: Option<i64>, states_unread| NotRead {
            jobs_checked,
            jobs_skipped,
            events_since: since.map(|at| Time(Micros(at))),
            highstates_since: since.map(|at| Time(Micros(at))),
            states_unread,
        };
        // The pages that a daemon returns, and the arguments of the calls for them.
        let read = |limit: Option<usize>| {
            let pages = [
                page(&["a", "b"], Some("b"), skipped(7, true, None, 2)),
                page(&["c"], Some("c"), skipped(8, false, Some(1_000_000), 3)),
                page(&["d"], None, skipped(8, false, Some(0), 0)),
            ];
            let mut calls = Vec::new();
            let args = ListArgs {
                limit,
                ..ListArgs::default()
            };
            let make = |args: &ListArgs| {
                calls.push((args.after.clone(), args.limit));
                Ok(pages[calls.len() - 1].clone())
            };
            let all = ask::Pages::<calls::minions::List, _>::new(args, make)
                .whole()
                .unwrap();
            (all, calls)
        };
        let ids = |page: &MinionsPage| -> Vec<String> {
            page.minions.iter().map(|row| row.id.clone()).collect()
        };

        let (all, calls) = read(None);
        assert_eq!(ids(&all), ["a", "b", "c", "d"]);
        assert_eq!((all.more, &all.next), (false, &None));
        assert_eq!(all.skipped, skipped(8, true, Some(1_000_000), 5));
        let after = |id: &str| Some(id.to_owned());
        assert_eq!(
            calls,
            [(None, None), (after("b"), None), (after("c"), None)]
        );

        // The limit ends the list, and the next list can begin there.
        let (all, calls) = read(Some(3));
        assert_eq!((ids(&all).len(), all.skipped.states_unread), (3, 5));
        assert_eq!((all.more, &all.next), (true, &after("c")));
        assert_eq!(calls, [(None, Some(3)), (after("b"), Some(1))]);
    }

    #[test]
    fn a_list_that_does_not_advance_is_an_error() {
        let make = |_: &ListArgs| Ok(page(&["a"], Some("a"), NotRead::default()));
        let pages = ask::Pages::<calls::minions::List, _>::new(ListArgs::default(), make);
        let error = pages.whole().unwrap_err().to_string();
        assert!(error.contains("does not advance"), "{error}");
    }

    #[test]
    fn states_that_were_not_read_have_no_numbers() {
        let mut run = MinionRun {
            jid: "20261121054728123456".to_owned(),
            failed: Some(true),
            ..MinionRun::default()
        };
        let shown = |run: &MinionRun| highstate_counts(run, Micros(0));
        assert_eq!(
            shown(&run),
            "failed -: its states were not read, see `saltcellar jobs show 20261121054728123456`"
        );
        run.states = Some(StateCounts {
            total: 3,
            failed: 1,
            changed: 2,
        });
        assert_eq!(shown(&run), "failed -: 3 states, 1 failed, 2 changed");
    }
}
