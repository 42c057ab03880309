//! `saltcellar minions`: lists minions, and shows one, from the archive.

use anyhow::Context as _;
use serde_json::{Value as Json, json};

use crate::api::call as calls;
use crate::api::client::ClientError;
use crate::api::query::{
    Minion, MinionEvent, MinionRow, MinionRun, MinionsPage, NotRead, StateCounts,
};
use crate::base::clock::{Clock, Micros};
use crate::base::units::span;
use crate::cli::{
    Column, Fields as _, Global, Output, Table, ask, or_empty, short_at, short_in_zone, show,
    show_rows, title,
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
    /// Maximum number of minions
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u64).range(1..))]
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

    let (page, all) = whole_list(args, |call| {
        ask::call_as::<calls::minions::List>(&mut client, call)
    })
    .context(operation)?;

    show_rows(global.output, &all, "minions", |out| {
        let columns = [
            Column::middle_truncated("MINION"),
            Column::right("SEEN"),
            Column::left("HIGHSTATE"),
            Column::right("CHANGED"),
            Column::right("MISSING"),
            Column::truncated("LAST FUNCTION").min_chars(13),
            Column::left("JID").drop_order(1),
        ];

        let now = Clock::real().now();

        let cells = |row: MinionRow| {
            let states = row.highstate.as_ref().and_then(|run| run.states.as_ref());
            let last = row.last.unwrap_or_default();
            vec![
                row.id,
                age(row.last_seen.map(|seen| seen.time), now),
                row.highstate
                    .as_ref()
                    .map_or("-".to_owned(), |run| highstate(run, now)),
                or_empty(states.map(|states| states.changed)),
                row.missing.to_string(),
                last.fun,
                last.jid,
            ]
        };

        let rows: Vec<_> = page.minions.into_iter().map(cells).collect();
        Table::new(columns).print(out, &rows)?;
        skipped(out, &page.skipped)
    })
}

/// Reads pages until `limit`. Returns them as one: all rows, the position after the last one, and
/// everything that a page did not examine.
fn whole_list(
    args: &List,
    mut read: impl FnMut(&Json) -> Result<(MinionsPage, Json), ClientError>,
) -> Result<(MinionsPage, Json), ClientError> {
    let mut call = json!({ "minion": args.minion, "limit": args.limit });
    let (mut rows, mut minions, mut skipped) = (Vec::new(), Vec::new(), NotRead::default());

    loop {
        let (mut page, mut answer) = read(&call)?;

        if let Some(Json::Array(more)) = answer.get_mut("minions") {
            rows.append(more);
        }
        minions.append(&mut page.minions);
        skipped.add(&page.skipped);

        let left = args
            .limit
            .map(|limit| limit.saturating_sub(minions.len() as u64));

        let Some(next) = page.next.clone().filter(|_| page.more && left != Some(0)) else {
            // The last page says whether there are more.
            ask::set(&mut answer, "minions", rows.into());
            ask::set(&mut answer, "skipped", json!(skipped));

            let whole = MinionsPage {
                minions,
                skipped,
                ..page
            };
            return Ok((whole, answer));
        };

        // A daemon that repeats a page would be read forever.
        if call.of("after") == next.as_str() {
            return Err(ClientError::Protocol(
                "minions_list: the list does not advance".to_owned(),
            ));
        }

        // A page ends before the limit if it was costly to collect.
        ask::set(&mut call, "after", next.into());
        ask::set(&mut call, "limit", left.into());
    }
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
    let mut answer =
        ask::answer::<calls::minions::Show>(global, json!({ "minion": id }), operation)?;

    if answer.is_null() {
        // An id from the command line may have any length.
        let shown: String = id.chars().take(64).collect();
        return Err(
            anyhow::anyhow!("no entry of the archive names the minion {shown}").context(operation),
        );
    }

    let minion: Minion = ask::typed(&answer).context(operation)?;
    // As in the list, where its time is text.
    ask::set(&mut answer, "skipped", json!(minion.skipped));

    show(global.output, &answer, |out| details(out, minion))
}

fn details(out: &mut Output, minion: Minion) -> anyhow::Result<()> {
    // Single times are followed by their zone; columns have it in the heading.
    let in_zone = |at: Option<Time>| {
        at.map(|at| short_in_zone(&at.0.iso().into()))
            .unwrap_or_default()
    };
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
        out.line(&format!(
            "           {}",
            highstate_counts(last, Clock::real().now())
        ))?;

        for (title, states) in [
            ("failed", &minion.failed_states),
            ("changed", &minion.changed_states),
        ] {
            if !states.is_empty() {
                out.line(&format!("{title:<9}  {}", states.join(", ")))?;
            }
        }
    }

    let time = || Column::left(title("TIME", "TIME (UTC)"));
    let cells = |run: MinionRun| vec![run.time.map(short_at).unwrap_or_default(), run.fun, run.jid];
    let missing: Vec<_> = minion.missing_jobs.into_iter().map(cells).collect();

    if !missing.is_empty() {
        out.line("")?;
        Table::new([
            time(),
            Column::truncated("MISSING RETURN OF"),
            Column::left("JID"),
        ])
        .print(out, &missing)?;
    }

    out.line("")?;
    // Printed even without rows, so that nothing looks missing.
    let functions: Vec<_> = minion.functions.into_iter().map(cells).collect();
    Table::new([
        time(),
        Column::truncated("LAST RUN OF"),
        Column::left("JID"),
    ])
    .print(out, &functions)?;

    if !minion.timeline.is_empty() {
        out.line("")?;
        let columns = [
            time(),
            Column::middle_truncated("EVENT"),
            Column::right("RETCODE"),
        ];
        let cells =
            |event: MinionEvent| vec![short_at(event.time), event.tag, or_empty(event.retcode)];
        Table::new(columns).print(
            out,
            &minion.timeline.into_iter().map(cells).collect::<Vec<_>>(),
        )?;
    }

    skipped(out, &minion.skipped)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn args(limit: Option<u64>) -> List {
        List {
            minion: None,
            limit,
        }
    }

    #[test]
    fn pages_become_one_list_with_what_all_of_them_skipped() {
        // The pages that a daemon returns, and the arguments of the calls for them.
        let read = |limit: Option<u64>| {
            let pages = [
                json!({ "minions": [{ "id": "a" }, { "id": "b" }], "more": true, "next": "b",
                        "skipped": { "jobs_checked": 7, "jobs_skipped": true, "events_since": null, "states_unread": 2 } }),
                json!({ "minions": [{ "id": "c" }], "more": true, "next": "c",
                        "skipped": { "jobs_checked": 8, "jobs_skipped": false, "events_since": 1_000_000, "states_unread": 3 } }),
                json!({ "minions": [{ "id": "d" }], "more": false, "next": null, "other": 1,
                        "skipped": { "jobs_checked": 8, "jobs_skipped": false, "events_since": 0, "states_unread": 0 } }),
            ];
            let mut calls = Vec::new();
            let (page, all) = whole_list(&args(limit), |call| {
                let answer = pages[calls.len()].clone();
                calls.push((call.of("after").clone(), call.of("limit").clone()));
                Ok((ask::typed(&answer)?, answer))
            })
            .unwrap();
            (page, all, calls)
        };

        let (page, all, calls) = read(None);
        let ids: Vec<_> = page.minions.iter().map(|row| row.id.as_str()).collect();
        assert_eq!(ids, ["a", "b", "c", "d"]);
        assert_eq!(
            all,
            json!({ "minions": [{ "id": "a" }, { "id": "b" }, { "id": "c" }, { "id": "d" }],
                    "more": false, "next": null, "other": 1,
                    "skipped": { "jobs_checked": 8, "jobs_skipped": true, "events_since": "1970-01-01T00:00:01.000000Z", "states_unread": 5 } })
        );
        assert_eq!(
            calls,
            [
                (Json::Null, Json::Null),
                ("b".into(), Json::Null),
                ("c".into(), Json::Null)
            ]
        );

        // The limit ends the list, and the next list can begin there.
        let (page, all, calls) = read(Some(3));
        assert_eq!((page.minions.len(), page.skipped.states_unread), (3, 5));
        assert_eq!(
            (all.of("more"), all.of("next")),
            (&json!(true), &json!("c"))
        );
        assert_eq!(calls[1], ("b".into(), 1.into()));
    }

    #[test]
    fn a_list_that_does_not_advance_is_an_error() {
        let page = json!({ "minions": [{ "id": "a" }], "more": true, "next": "a" });
        let error = whole_list(&args(None), |_| Ok((ask::typed(&page)?, page.clone())));
        assert!(error.unwrap_err().to_string().contains("does not advance"));
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
