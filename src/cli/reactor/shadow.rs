//! `saltcellar reactor shadow`: in what our reactor and Salt's own differ.

use std::collections::BTreeMap;

use anyhow::Context as _;
use rmpv::Value;
use serde_json::{Map as JsonMap, Value as Json, json};

use super::super::output::{Format, Output, plain};
use super::super::table::{Column, Table};
use super::super::when::{When, short};
use super::super::{Global, ask};
use crate::api::client::{Client, ClientError, args};
use crate::clock::{Clock, Micros};
use crate::limits::{REACTOR_MODE_TOLD, REACTOR_SHADOW_WINDOW_MAX};
use crate::master::pack;
use crate::model::ReactionFailure;
use crate::reactor::shadow::{Act, Comparer, Difference, Failed, Item, Ours, Salts, Verdict};
use crate::sls;
use crate::wire::json::to_json;

/// Flags of `reactor shadow`.
#[derive(clap::Args)]
pub(in crate::cli) struct Args {
    /// Events not older than: 10m, 2h, 3d, 2026-11-21
    #[arg(long, value_name = "TIME", default_value = "1d")]
    since: When,
    /// Events not younger than
    #[arg(long, value_name = "TIME")]
    until: Option<When>,
    /// Show so many differences at most; all are counted
    #[arg(long, value_name = "COUNT", default_value_t = 100)]
    limit: usize,
}

pub(super) const EXAMPLES: &str = "\
Holds what our reactor would have called against what Salt's own reactor called, while ours was in shadow, out of the \
log. While Salt's reactor runs as many runners as it can (reactor_worker_threads), the window of the others goes on. `only ours`: Salt did nothing like it within reactor.shadow_window after the event. `only Salt's`: no rule of ours \
wanted it, or one did and is kept from it, by `once_per`, `debounce`, `rate`, `budget` or `allow`, which is then said. \
`ours failed`: our rendering failed, with file, line and cause; Salt's call in its place is shown, if one can be seen. `differs`: in the fields shown. `unseen`: nothing of Salt's side can be seen, as with `caller`. A job shows \
whether a reactor published it only where saltcellar is the master's job cache; without, jobs that ours has nothing like \
are counted apart. Of a job whose target no minion matches Salt leaves nothing behind, so it is `only ours`.

Examples:
  saltcellar reactor shadow
  saltcellar reactor shadow --since 2h --output json | jq .differences

Exit code 1 if there are differences.";

/// They are not the same. It has been told.
#[derive(Debug, thiserror::Error)]
#[error("find our reactor and Salt's alike: {0} differences")]
pub(in crate::cli) struct Unlike(u64);

/// How many of each kind.
#[derive(Default, Clone, Copy)]
struct Counts {
    same: u64,
    differs: u64,
    only_ours: u64,
    only_salts: u64,
    failed: u64,
    unseen: u64,
}

impl Counts {
    fn differences(self) -> u64 {
        self.differs + self.only_ours + self.only_salts + self.failed
    }

    fn json(self) -> JsonMap<String, Json> {
        let pairs = [
            ("same", self.same),
            ("differs", self.differs),
            ("only_ours", self.only_ours),
            ("only_salts", self.only_salts),
            ("failed", self.failed),
            ("unseen", self.unseen),
        ];
        pairs.into_iter().map(|(name, count)| (name.to_owned(), count.into())).collect()
    }
}

/// What has been found.
#[derive(Default)]
struct Report {
    all: Counts,
    rules: BTreeMap<String, Counts>,
    /// The first `limit` of them.
    differences: Vec<Verdict>,
    limit: usize,
    unseen: BTreeMap<String, u64>,
    /// Of those that only Salt did: by the option of a rule that left ours out.
    throttled: BTreeMap<String, u64>,
    unattributed: u64,
}

impl Report {
    fn note(&mut self, verdict: Verdict) {
        let (rule, place): (String, fn(&mut Counts) -> &mut u64) = match &verdict {
            Verdict::Same(ours, ..) => (ours.rules.join(", "), |counts| &mut counts.same),
            Verdict::Differs(ours, ..) => (ours.rules.join(", "), |counts| &mut counts.differs),
            Verdict::OnlyOurs(ours) => (ours.rules.join(", "), |counts| &mut counts.only_ours),
            Verdict::OnlySalts(_, ours) => {
                let rules = ours.as_ref().map(|ours| ours.rules.join(", "));
                (rules.unwrap_or_default(), |counts| &mut counts.only_salts)
            }
            Verdict::OursFailed(failed, _) => (failed.rules.join(", "), |counts| &mut counts.failed),
            Verdict::Unseen(ours, _) => (ours.rules.join(", "), |counts| &mut counts.unseen),
            Verdict::Unattributed(_) => {
                self.unattributed += 1;
                return;
            }
        };
        *place(&mut self.all) += 1;
        *place(self.rules.entry(rule).or_default()) += 1;
        if let Verdict::OnlySalts(_, Some(ours)) = &verdict
            && !ours.throttle.is_empty()
        {
            *self.throttled.entry(ours.throttle.clone()).or_default() += 1;
        }
        match verdict {
            Verdict::Same(_, _, unseen) => {
                for what in unseen {
                    *self.unseen.entry(what).or_default() += 1;
                }
            }
            Verdict::Unseen(_, why) => *self.unseen.entry(why.to_owned()).or_default() += 1,
            other if self.differences.len() < self.limit => self.differences.push(other),
            _ => {}
        }
    }
}

pub(super) fn run(global: &Global, args: &Args) -> anyhow::Result<()> {
    let mut client = ask::connect(global)?;
    let until = args.until.map_or(Micros(i64::MAX), |When(micros)| Micros(micros));
    let mut report = Report { limit: args.limit, ..Report::default() };
    let read = read(&mut client, Micros(args.since.0), until, &mut report).context("read what was done")?;
    let mut out = Output::new(global.output);
    if out.format == Format::Table {
        print(&mut out, &report, &read)?;
    } else {
        out.json(&document(&report, &read, args))?;
    }
    out.flush()?;
    match report.all.differences() {
        0 => Ok(()),
        count => Err(Unlike(count).into()),
    }
}

/// What else is known after reading the log.
struct Read {
    window_s: u64,
    waiting: (usize, usize),
    hurried: u64,
    shadow: bool,
}

fn read(client: &mut Client, since: Micros, until: Micros, report: &mut Report) -> Result<Read, ClientError> {
    let odd = |what: &str| ClientError::Protocol(format!("reactor_shadow: {what}"));
    let micros = |time: std::time::Duration| i64::try_from(time.as_micros()).unwrap_or(i64::MAX / 4);
    // Far enough back to learn whether the reactor was in shadow, and what began before and ends within.
    let begin = since.0.saturating_sub(micros(REACTOR_MODE_TOLD) + 2 * micros(REACTOR_SHADOW_WINDOW_MAX));
    let mut asked = ("since", Value::from(begin));
    let mut comparer: Option<Comparer> = None;
    loop {
        let page = client.call("reactor_shadow", args([asked.clone()]))?;
        let of = |name| ask::field(&page, name);
        let window_s = of("window_s").and_then(Value::as_u64).ok_or_else(|| odd("no window"))?;
        let window = std::time::Duration::from_secs(window_s);
        let workers = of("workers").and_then(Value::as_u64).and_then(|workers| usize::try_from(workers).ok());
        let workers = workers.ok_or_else(|| odd("no workers"))?;
        let comparer = comparer.get_or_insert_with(|| Comparer::new(window, workers, since, until));
        for item in of("items").and_then(Value::as_array).ok_or_else(|| odd("no items"))? {
            let item = value(item).as_ref().and_then(Item::from_value).ok_or_else(|| odd("an odd item"))?;
            comparer.take(item, &mut |verdict| report.note(verdict));
        }
        let reached = of("reached").and_then(Value::as_i64).ok_or_else(|| odd("no time"))?;
        comparer.pass(Micros(reached), &mut |verdict| report.note(verdict));
        let more = of("more").and_then(Value::as_bool).unwrap_or(false);
        // Nothing that belongs to the stretch comes so much later.
        let is_beyond = reached > until.0.saturating_add(8 * micros(window));
        if !more || is_beyond {
            let (waiting, hurried, shadow) = (comparer.waiting(), comparer.hurried, comparer.is_shadow());
            return Ok(Read { window_s, waiting, hurried, shadow });
        }
        let next = of("next").and_then(Value::as_u64).ok_or_else(|| odd("no place to go on"))?;
        if asked == ("from", Value::from(next)) {
            return Err(odd("the log does not advance"));
        }
        asked = ("from", Value::from(next));
    }
}

fn value(value: &Value) -> Option<sls::Value> {
    let mut bytes = Vec::new();
    rmpv::encode::write_value(&mut bytes, value).ok()?;
    pack::unpacked(&bytes)
}

fn json_of(value: &sls::Value) -> Json {
    let bytes = pack::packed(value);
    rmpv::decode::read_value(&mut bytes.as_slice()).map_or(Json::Null, |value| to_json(&value))
}

fn document(report: &Report, read: &Read, args: &Args) -> Json {
    let rules = report.rules.iter().map(|(rule, counts)| {
        let mut row = counts.json();
        let rule = Some(rule.as_str()).filter(|rule| !rule.is_empty());
        row.insert("rule".to_owned(), rule.map_or(Json::Null, Json::from));
        Json::Object(row)
    });
    json!({
        "since": Micros(args.since.0).iso(),
        "until": args.until.map_or_else(|| Clock::real().now(), |When(micros)| Micros(micros)).iso(),
        "window_s": read.window_s,
        "shadow": read.shadow,
        "counts": report.all.json(),
        "rules": rules.collect::<Vec<_>>(),
        "differences": report.differences.iter().map(difference).collect::<Vec<_>>(),
        "unseen": report.unseen,
        "throttled": report.throttled,
        "unattributed": report.unattributed,
        "waiting": {"ours": read.waiting.0, "salts": read.waiting.1},
        "hurried": read.hurried,
    })
}

fn of_ours(ours: &Ours) -> Json {
    json!({
        "event": ours.event.0, "time": ours.at.iso(), "tag": ours.tag, "rules": ours.rules,
        "reaction": ours.reaction.0, "call": json_of(&ours.act.to_value()),
    })
}

fn of_salts(salts: &Salts) -> Json {
    json!({
        "event": salts.seq.0, "time": salts.at.iso(), "jid": salts.jid, "call": json_of(&salts.act.to_value()),
    })
}

fn failure(failure: &ReactionFailure) -> Json {
    let ReactionFailure { at, cause } = failure;
    json!({"file": at.file, "line": at.line, "rendered": at.rendered, "cause": cause})
}

fn difference(verdict: &Verdict) -> Json {
    match verdict {
        Verdict::Differs(ours, salts, fields) => {
            let shown = |value: &Option<sls::Value>| value.as_ref().map(json_of);
            let field = |one: &Difference| json!({"field": one.field, "ours": shown(&one.ours), "salts": shown(&one.salts)});
            json!({
                "what": "differs", "fields": fields.iter().map(field).collect::<Vec<_>>(),
                "ours": of_ours(ours), "salts": of_salts(salts),
            })
        }
        Verdict::OnlyOurs(ours) => json!({"what": "only_ours", "ours": of_ours(ours)}),
        Verdict::OnlySalts(salts, barred) => json!({
            "what": "only_salts", "salts": of_salts(salts),
            "barred": barred.as_ref().map(|ours| json!({
                "why": ours.barred,
                "throttle": Some(&ours.throttle).filter(|name| !name.is_empty()),
                "ours": of_ours(ours),
            })),
        }),
        Verdict::OursFailed(failed, salts) => {
            json!({
                "what": "ours_failed",
                "ours": {
                    "event": failed.event.0, "time": failed.at.iso(), "tag": failed.tag, "rules": failed.rules,
                    "reaction": failed.reaction.0, "failures": failed.failures.iter().map(failure).collect::<Vec<_>>(),
                },
                "salts": salts.as_ref().map(|salts| of_salts(salts)),
            })
        }
        Verdict::Same(..) | Verdict::Unseen(..) | Verdict::Unattributed(_) => Json::Null,
    }
}

fn print(out: &mut Output, report: &Report, read: &Read) -> anyhow::Result<()> {
    for verdict in &report.differences {
        tell(out, verdict)?;
        out.line("")?;
    }
    let columns = [
        Column::shrinks("RULE"),
        Column::right("SAME"),
        Column::right("DIFFERS"),
        Column::right("ONLY OURS"),
        Column::right("ONLY SALT'S"),
        Column::right("OURS FAILED"),
        Column::right("UNSEEN"),
    ];
    let row = |name: &str, counts: &Counts| {
        let numbers =
            [counts.same, counts.differs, counts.only_ours, counts.only_salts, counts.failed, counts.unseen];
        let mut row = vec![plain(name).into_owned()];
        row.extend(numbers.map(|count| count.to_string()));
        row
    };
    let named = |name: &str| if name.is_empty() { "(none of ours)".to_owned() } else { name.to_owned() };
    let rows: Vec<_> = report.rules.iter().map(|(name, counts)| row(&named(name), counts)).collect();
    Table::new(columns).print(out, &rows)?;
    let hidden = report.all.differences().saturating_sub(report.differences.len() as u64);
    if hidden > 0 {
        out.line(&format!("{hidden} more differences are not shown (--limit)"))?;
    }
    for (name, count) in &report.throttled {
        out.line(&format!("{count} only Salt's because `{name}` of our rule leaves them out"))?;
    }
    for (what, count) in &report.unseen {
        out.line(&plain(&format!("of {count} cannot be seen: {what}")))?;
    }
    if report.unattributed > 0 {
        out.line(&format!(
            "{} jobs are like none of ours; nothing shows whether Salt's reactor published them",
            report.unattributed
        ))?;
    }
    let (ours, salts) = read.waiting;
    if ours + salts > 0 {
        let window = read.window_s;
        out.line(&format!(
            "{ours} calls of ours and {salts} jobs are too young to be judged (window of {window} s)"
        ))?;
    }
    if !read.shadow {
        out.line("the reactor is not in shadow")?;
    }
    Ok(())
}

fn tell(out: &mut Output, verdict: &Verdict) -> anyhow::Result<()> {
    let call =
        |act: &Act| plain(&format!("{}.{} {}", act.client, act.fun, act.target())).trim_end().to_owned();
    let time = |at: Micros| short(&Json::from(at.iso()));
    let by = |ours: &Ours| {
        let (event, tag, rules, reaction) = (ours.event, &ours.tag, ours.rules.join(", "), ours.reaction);
        plain(&format!("  event {event} {tag} of {}, rule {rules}, reaction {reaction}", time(ours.at)))
            .into_owned()
    };
    let with = |salts: &Salts| {
        let named = if salts.act.id.is_empty() {
            String::new()
        } else {
            format!(", {} of {}", salts.act.id, salts.act.sls)
        };
        plain(&format!("  Salt's job {} of {}{named}", salts.jid, time(salts.at))).into_owned()
    };
    match verdict {
        Verdict::Differs(ours, salts, fields) => {
            out.heading(&format!("differs: {}", call(&ours.act)))?;
            out.line(&by(ours))?;
            out.line(&with(salts))?;
            let shown = |value: &Option<sls::Value>| match value {
                Some(value) => json_of(value).to_string(),
                None => "not there".to_owned(),
            };
            for one in fields {
                let words =
                    format!("  {}: ours {}, Salt's {}", one.field, shown(&one.ours), shown(&one.salts));
                out.line(&plain(&words))?;
            }
        }
        Verdict::OnlyOurs(ours) => {
            out.heading(&format!("only ours: {}", call(&ours.act)))?;
            out.line(&by(ours))?;
            arguments(out, &ours.act)?;
        }
        Verdict::OnlySalts(salts, barred) => {
            out.heading(&format!("only Salt's: {}", call(&salts.act)))?;
            out.line(&with(salts))?;
            if let Some(ours) = barred {
                out.line(&by(ours))?;
                out.line(&plain(&format!("  ours is not made: {}", ours.why())))?;
            }
            arguments(out, &salts.act)?;
        }
        Verdict::OursFailed(failed, salts) => {
            match salts {
                Some(salts) => {
                    out.heading(&format!("ours failed: {}", call(&salts.act)))?;
                    out.line(&with(salts))?;
                }
                None => out.heading("ours failed, and nothing can be seen that Salt did")?,
            }
            let Failed { event, tag, rules, reaction, .. } = failed;
            let (at, rules) = (time(failed.at), rules.join(", "));
            let words = format!("  event {event} {tag} of {at}, rule {rules}, reaction {reaction}");
            out.line(&plain(&words))?;
            for failure in &failed.failures {
                out.line(&plain(&format!("  our rendering failed: {failure}")))?;
            }
        }
        Verdict::Same(..) | Verdict::Unseen(..) | Verdict::Unattributed(_) => {}
    }
    Ok(())
}

fn arguments(out: &mut Output, act: &Act) -> anyhow::Result<()> {
    if let Some(args) = act.args.as_ref().filter(|args| !args.is_empty()) {
        out.line(&plain(&format!("  arguments {}", json_of(&sls::Value::List(args.clone())))))?;
    }
    Ok(())
}
