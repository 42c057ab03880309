//! `saltcellar reactor diff`: compares the shadow reactor with Salt's own.

use std::collections::BTreeMap;

use anyhow::Context as _;
use salt_sls::json_form::encode;
use serde::Serialize;
use serde_json::{Value as Json, json};

use crate::api::call as calls;
use crate::api::call::reactor::ShadowArgs;
use crate::api::client::{Client, ClientError};
use crate::base::clock::{Clock, Micros};
use crate::base::limits::{REACTOR_MODE_INTERVAL, REACTOR_SHADOW_LATE, REACTOR_SHADOW_WINDOW_MAX};
use crate::cli::{Column, Global, Output, Table, When, ask, finding, plain, short_at, show};
use crate::reactor::shadow::{
    Comparer, Comparison, Difference, FailedReaction, ObservedCall, OurCall, SaltsCall,
};
use crate::wire::msgpack::Time;

#[derive(clap::Args)]
pub(in crate::cli) struct Args {
    /// Start of the time range of events: 2h or -2h (ago), 'yesterday 14:00', '2026-11-21 05:47'
    #[arg(
        long,
        value_name = "TIME",
        default_value = "1d",
        allow_hyphen_values = true
    )]
    since: When,
    /// End of the time range of events
    #[arg(long, value_name = "TIME", allow_hyphen_values = true)]
    until: Option<When>,
    /// Maximum number of differences shown; all are counted
    #[arg(short = 'n', long, value_name = "COUNT", default_value_t = 100)]
    limit: usize,
    /// Exit with 1 if there are differences
    #[arg(long)]
    exit_code: bool,
}

pub(super) const EXAMPLES: &str = "\
Compares the calls that saltcellar's reactor would have made with the calls of Salt's reactor, from the log, for the \
time during which saltcellar was in shadow mode. The results are:
  only saltcellar    Salt made no similar call within reactor.shadow_window after the event. This includes jobs whose
                     target matches no minion, because Salt leaves no trace of them.
  only Salt          no rule of saltcellar makes the call, or once_per, debounce, rate, budget or allow prevents it (shown)
  saltcellar failed  rendering failed, with file, line and cause, and with Salt's call if it is visible
  different          the fields shown differ
  not comparable     Salt leaves no trace of such a call, for example of `caller`
While Salt's reactor is at its limit of runners (reactor_worker_threads), the window of waiting calls is extended. The \
publisher of a job is known only if saltcellar is the master's job cache; otherwise jobs without a similar call of \
saltcellar are counted separately.

Examples:
  saltcellar reactor diff
  saltcellar reactor diff --since 2h --output json | jq .differences
  saltcellar reactor diff --since 1d --exit-code";

#[derive(Default, Clone, Copy, serde::Serialize)]
struct Counts {
    same: u64,
    different: u64,
    only_saltcellar: u64,
    only_salt: u64,
    saltcellar_failed: u64,
    not_comparable: u64,
}

impl Counts {
    fn differences(self) -> u64 {
        self.different + self.only_saltcellar + self.only_salt + self.saltcellar_failed
    }
}

#[derive(Default)]
struct ShadowReport {
    all: Counts,
    rules: BTreeMap<String, Counts>,
    /// The first `limit` differences.
    differences: Vec<Comparison>,
    limit: usize,
    unseen: BTreeMap<String, u64>,
    /// Calls that only Salt made, by the option of saltcellar's rule that prevented saltcellar's.
    throttled: BTreeMap<String, u64>,
    unattributed: u64,
}

impl ShadowReport {
    fn note(&mut self, comparison: Comparison) {
        // A call of several rules is counted once, under all of their names.
        let (rule, counter): (String, fn(&mut Counts) -> &mut u64) = match &comparison {
            Comparison::Same(ours, ..) => (ours.rules.join(", "), |counts| &mut counts.same),
            Comparison::Differs(ours, ..) => {
                (ours.rules.join(", "), |counts| &mut counts.different)
            }
            Comparison::OnlyOurs(ours) => {
                (ours.rules.join(", "), |counts| &mut counts.only_saltcellar)
            }
            Comparison::OnlySalts(_, ours) => {
                let rules = ours.as_ref().map(|ours| ours.rules.join(", "));
                (rules.unwrap_or_default(), |counts| &mut counts.only_salt)
            }
            Comparison::OursFailed(failed, _) => (failed.rules.join(", "), |counts| {
                &mut counts.saltcellar_failed
            }),
            Comparison::Unseen(ours, _) => {
                (ours.rules.join(", "), |counts| &mut counts.not_comparable)
            }
            Comparison::Unattributed(_) => {
                // Nobody knows whose call it was, so no rule counts it.
                self.unattributed += 1;
                return;
            }
        };

        *counter(&mut self.all) += 1;
        *counter(self.rules.entry(rule).or_default()) += 1;

        if let Comparison::OnlySalts(_, Some(ours)) = &comparison
            && !ours.throttle.is_empty()
        {
            *self.throttled.entry(ours.throttle.clone()).or_default() += 1;
        }

        match comparison {
            Comparison::Same(_, _, unseen) => {
                for what in unseen {
                    *self.unseen.entry(what).or_default() += 1;
                }
            }
            Comparison::Unseen(_, why) => *self.unseen.entry(why.to_owned()).or_default() += 1,
            // All are counted above, even if they are not kept.
            other if self.differences.len() < self.limit => self.differences.push(other),
            _ => {}
        }
    }
}

pub(super) fn run(global: &Global, args: &Args) -> anyhow::Result<()> {
    let mut client = ask::connect(global)?;
    let until = args.until.map_or(Micros(i64::MAX), When::micros);

    let mut report = ShadowReport {
        limit: args.limit,
        ..ShadowReport::default()
    };

    let read =
        read(&mut client, args.since.micros(), until, &mut report).context("read the reactions")?;

    show(global.output, &document(&report, &read, args), |out| {
        print(out, &report, &read)
    })?;

    // After the report, which explains the exit code.
    match report.all.differences() {
        count if count > 0 && args.exit_code => Err(finding(format!(
            "{count} differences between saltcellar's reactor and Salt's"
        ))),
        _ => Ok(()),
    }
}

/// State of the comparison at the end of the log.
struct ReadState {
    window_s: u64,
    waiting: (usize, usize),
    compared_early: u64,
    shadow: bool,
}

fn read(
    client: &mut Client,
    since: Micros,
    until: Micros,
    report: &mut ShadowReport,
) -> Result<ReadState, ClientError> {
    let invalid = |what: &str| ClientError::Protocol(format!("reactor_shadow: {what}"));

    // A quarter, because the sums below must not overflow.
    let micros =
        |time: std::time::Duration| i64::try_from(time.as_micros()).unwrap_or(i64::MAX / 4);

    // Early enough to include a mode entry, and calls that started before the range and end within
    // it.
    let begin = since
        .0
        .saturating_sub(micros(REACTOR_MODE_INTERVAL) + 2 * micros(REACTOR_SHADOW_WINDOW_MAX));

    let mut call = ShadowArgs {
        since: Some(Time(Micros(begin))),
        from: None,
        ..ShadowArgs::default()
    };
    let mut comparer: Option<Comparer> = None;

    loop {
        let page = client.make::<calls::reactor::Shadow>(&call)?;

        let window = std::time::Duration::from_secs(page.window_s);
        let workers =
            usize::try_from(page.workers).map_err(|_| invalid("more workers than memory"))?;

        // The first page says how long calls wait for a counterpart.
        let comparer = comparer.get_or_insert_with(|| Comparer::new(window, workers, since, until));

        for item in page.items {
            comparer
                .take(item)
                .into_iter()
                .for_each(|comparison| report.note(comparison));
        }

        let Time(reached) = page.reached;
        comparer
            .pass(reached)
            .into_iter()
            .for_each(|comparison| report.note(comparison));

        // Entries this much later do not belong to the range.
        let is_beyond = reached.0 > until.0.saturating_add(8 * micros(window));

        if !page.more || is_beyond {
            let (waiting, compared_early, shadow) = (
                comparer.waiting(),
                comparer.compared_early,
                comparer.is_shadow(),
            );
            return Ok(ReadState {
                window_s: page.window_s,
                waiting,
                compared_early,
                shadow,
            });
        }

        // A daemon that repeats a page would be read forever.
        if call.from == Some(page.next) {
            return Err(invalid("the log does not advance"));
        }

        call = ShadowArgs {
            since: None,
            from: Some(page.next),
            ..ShadowArgs::default()
        };
    }
}

/// The counts of a rule, as JSON.
#[derive(Serialize)]
struct RuleCounts<'a> {
    #[serde(flatten)]
    counts: Counts,
    /// None for calls that no saltcellar rule made.
    rule: Option<&'a String>,
}

fn document(report: &ShadowReport, read: &ReadState, args: &Args) -> Json {
    // An empty name stands for calls that no saltcellar rule made.
    let rules = report.rules.iter().map(|(rule, counts)| RuleCounts {
        counts: *counts,
        rule: Some(rule).filter(|rule| !rule.is_empty()),
    });

    json!({
        "since": args.since.micros().iso(),
        "until": args.until.map_or_else(|| Clock::real().now(), When::micros).iso(),
        "window_s": read.window_s,
        "shadow": read.shadow,
        "counts": report.all,
        "rules": rules.collect::<Vec<_>>(),
        "differences": report.differences.iter().map(difference).collect::<Vec<_>>(),
        "not_comparable": report.unseen,
        "throttled": report.throttled,
        "unattributed": report.unattributed,
        "waiting": {"saltcellar": read.waiting.0, "salt": read.waiting.1},
        "compared_early": read.compared_early,
    })
}

fn of_ours(ours: &OurCall) -> Json {
    json!({
        "event": ours.event.0, "time": ours.at.iso(), "tag": ours.tag, "rules": ours.rules,
        "reaction": ours.reaction.0, "call": ours.call,
    })
}

fn of_salts(salts: &SaltsCall) -> Json {
    json!({
        "event": salts.seq.0, "time": salts.at.iso(), "jid": salts.jid, "call": salts.call,
    })
}

fn difference(comparison: &Comparison) -> Json {
    match comparison {
        Comparison::Differs(ours, salts, fields) => {
            // Null for a field that one side lacks.
            let shown = |value: &Option<salt_sls::Value>| value.as_ref().map(encode);
            let field = |one: &Difference| json!({"field": one.field, "saltcellar": shown(&one.ours), "salt": shown(&one.salts)});
            json!({
                "what": "different", "fields": fields.iter().map(field).collect::<Vec<_>>(),
                "saltcellar": of_ours(ours), "salt": of_salts(salts),
            })
        }
        Comparison::OnlyOurs(ours) => {
            json!({"what": "only_saltcellar", "saltcellar": of_ours(ours)})
        }
        Comparison::OnlySalts(salts, prevented_by) => json!({
            "what": "only_salt", "salt": of_salts(salts),
            "blocked": prevented_by.as_ref().map(|ours| json!({
                "why": ours.prevented_by,
                "throttle": Some(&ours.throttle).filter(|name| !name.is_empty()),
                "saltcellar": of_ours(ours),
            })),
        }),
        Comparison::OursFailed(failed, salts) => {
            json!({
                "what": "saltcellar_failed",
                "saltcellar": {
                    "event": failed.event.0, "time": failed.at.iso(), "tag": failed.tag, "rules": failed.rules,
                    "reaction": failed.reaction.0, "failures": failed.failures,
                },
                "salt": salts.as_ref().map(|salts| of_salts(salts)),
            })
        }
        // Counted, but not listed.
        Comparison::Same(..) | Comparison::Unseen(..) | Comparison::Unattributed(_) => Json::Null,
    }
}

fn print(out: &mut Output, report: &ShadowReport, read: &ReadState) -> anyhow::Result<()> {
    // Before the counts, because the summary ends the output.
    for comparison in &report.differences {
        print_comparison(out, comparison)?;
        out.line("")?;
    }

    let columns = [
        Column::truncated("RULE"),
        Column::right("SAME"),
        Column::right("DIFFERENT"),
        Column::right("ONLY SALTCELLAR"),
        Column::right("ONLY SALT"),
        Column::right("SALTCELLAR FAILED"),
        Column::right("NOT COMPARABLE"),
    ];

    let row = |name: &str, counts: &Counts| {
        let numbers = [
            counts.same,
            counts.different,
            counts.only_saltcellar,
            counts.only_salt,
            counts.saltcellar_failed,
            counts.not_comparable,
        ];
        let mut row = vec![plain(name).into_owned()];
        row.extend(numbers.map(|count| count.to_string()));
        row
    };

    let named = |name: &str| {
        // Calls of Salt that none of saltcellar's rules explains.
        if name.is_empty() {
            "(no rule)".to_owned()
        } else {
            name.to_owned()
        }
    };

    let rows: Vec<_> = report
        .rules
        .iter()
        .map(|(name, counts)| row(&named(name), counts))
        .collect();

    Table::new(columns).print(out, &rows)?;

    let hidden = report
        .all
        .differences()
        .saturating_sub(report.differences.len() as u64);
    // Beyond `--limit`.
    if hidden > 0 {
        out.line(&format!(
            "{hidden} more differences are not shown (--limit)"
        ))?;
    }

    for (name, count) in &report.throttled {
        out.line(&format!(
            "{count} only Salt, because `{name}` of the rule prevented saltcellar's call"
        ))?;
    }

    for (what, count) in &report.unseen {
        out.line(&plain(&format!("{count} not comparable: {what}")))?;
    }

    if report.unattributed > 0 {
        out.line(&format!(
            "{} jobs have no similar call of saltcellar; their publisher is unknown",
            report.unattributed
        ))?;
    }

    // Calls whose counterpart may still come are no differences yet.
    let (ours, salts) = read.waiting;
    if ours + salts > 0 {
        let due_s = read.window_s + REACTOR_SHADOW_LATE.as_secs();
        out.line(&format!(
            "not compared yet: {ours} calls of saltcellar, due {due_s} s after their event, and {salts} calls of Salt's, due {} s after they were made \
             (reactor.shadow_window)",
            2 * due_s
        ))?;
    }

    if !read.shadow {
        out.line("the reactor is not in shadow mode")?;
    }

    Ok(())
}

fn print_comparison(out: &mut Output, comparison: &Comparison) -> anyhow::Result<()> {
    let call = |call: &ObservedCall| {
        // Names come from events, and therefore from minions.
        plain(&format!("{}.{} {}", call.client, call.fun, call.target()))
            .trim_end()
            .to_owned()
    };

    let time = |at: Micros| short_at(Time(at));

    let by = |ours: &OurCall| {
        let (event, tag, rules, reaction) =
            (ours.event, &ours.tag, ours.rules.join(", "), ours.reaction);
        plain(&format!(
            "  event {event} {tag} of {}, rule {rules}, reaction {reaction}",
            time(ours.at)
        ))
        .into_owned()
    };

    // The chunk is known only from some of Salt's calls.
    let with = |salts: &SaltsCall| {
        let named = if salts.call.id.is_empty() {
            String::new()
        } else {
            format!(", {} of {}", salts.call.id, salts.call.sls)
        };
        plain(&format!(
            "  Salt's job {} of {}{named}",
            salts.jid,
            time(salts.at)
        ))
        .into_owned()
    };

    match comparison {
        Comparison::Differs(ours, salts, fields) => {
            out.heading(&format!("different: {}", call(&ours.call)))?;
            out.line(&by(ours))?;
            out.line(&with(salts))?;

            let shown = |value: &Option<salt_sls::Value>| match value {
                Some(value) => encode(value).to_string(),
                None => "absent".to_owned(),
            };

            for one in fields {
                // A field that only one side sets is a difference as well.
                let (ours, salts) = (shown(&one.ours), shown(&one.salts));
                out.line(&plain(&format!(
                    "  {}: saltcellar {ours}, Salt {salts}",
                    one.field
                )))?;
            }
        }
        Comparison::OnlyOurs(ours) => {
            out.heading(&format!("only saltcellar: {}", call(&ours.call)))?;
            out.line(&by(ours))?;
            arguments(out, &ours.call)?;
        }
        Comparison::OnlySalts(salts, prevented_by) => {
            out.heading(&format!("only Salt: {}", call(&salts.call)))?;
            out.line(&with(salts))?;
            // A throttle, say, explains why only Salt made the call.
            if let Some(ours) = prevented_by {
                out.line(&by(ours))?;
                out.line(&plain(&format!(
                    "  saltcellar's call was prevented: {}",
                    ours.why()
                )))?;
            }
            arguments(out, &salts.call)?;
        }
        Comparison::OursFailed(failed, salts) => {
            match salts {
                // Without a visible call it stays open what Salt would have done.
                Some(salts) => {
                    out.heading(&format!("saltcellar failed: {}", call(&salts.call)))?;
                    out.line(&with(salts))?;
                }
                None => out.heading("saltcellar failed, no call of Salt is visible")?,
            }

            let FailedReaction {
                event,
                tag,
                rules,
                reaction,
                ..
            } = failed;

            let at = time(failed.at);
            let rules = rules.join(", ");
            out.line(&plain(&format!(
                "  event {event} {tag} of {at}, rule {rules}, reaction {reaction}"
            )))?;

            for failure in &failed.failures {
                out.line(&plain(&format!("  rendering failed: {failure}")))?;
            }
        }
        // Never kept in `differences`.
        Comparison::Same(..) | Comparison::Unseen(..) | Comparison::Unattributed(_) => {}
    }
    Ok(())
}

fn arguments(out: &mut Output, call: &ObservedCall) -> anyhow::Result<()> {
    if let Some(args) = call.args.as_ref().filter(|args| !args.is_empty()) {
        out.line(&plain(&format!(
            "  arguments {}",
            encode(&salt_sls::Value::List(args.clone()))
        )))?;
    }
    Ok(())
}
