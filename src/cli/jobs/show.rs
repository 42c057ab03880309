//! `saltcellar jobs show`: shows one job.

use anyhow::Context as _;
use rmpv::Value;
use serde_json::{Value as Json, json};

use super::super::format::nested::{leaf, nested};
use super::super::format::output::{Form, Format, Output, plain};
use super::super::format::outputter;
use super::super::format::when::{iso_in, short};
use super::super::{Global, ask};
use super::{arg, field, fun, list_of, tgt, unknown};
use crate::wire::json::to_json;

const EXAMPLES: &str = "\
With --output json the job is one object; with jsonl each return is a line. nested and highstate format the returns as \
Salt does. json with --returns prints {minion: return}, as Salt does.

Examples:
  saltcellar jobs show 20261121054728123456
  saltcellar jobs show 20261121054728123456 --output highstate
  saltcellar jobs show 20261121054728123456 --result failed --minion 'web*'
  saltcellar jobs show 20261121054728123456 --output json | jq '.missing'
  saltcellar jobs show 20261121054728123456 --output json --returns | jq '.web1'";

/// Flags of `jobs show`.
#[derive(clap::Args)]
#[command(after_long_help = EXAMPLES)]
pub(in crate::cli) struct Args {
    /// The job's id
    jid: String,
    /// Only returns of minions that match this glob
    #[arg(long, value_name = "GLOB")]
    minion: Option<String>,
    /// Only returns with this result: failed, succeeded or changed (by a state)
    #[arg(long, value_name = "RESULT", value_parser = ["failed", "succeeded", "changed"], hide_possible_values = true)]
    result: Option<String>,
    /// Show only the returns
    #[arg(long)]
    returns: bool,
}

pub(super) fn run(global: &Global, args: &Args) -> anyhow::Result<()> {
    let mut client = ask::connect(global)?;
    let text = |value: &Option<String>| value.as_deref().map_or(Value::Nil, Value::from);
    let call_args = [
        ("jid", Value::from(args.jid.as_str())),
        ("minion", text(&args.minion)),
        ("result", text(&args.result)),
        ("links", Value::from(true)),
    ];
    let answer = ask::call_paged(&mut client, "job_show", "returns", &call_args).context("show the job")?;
    if answer.is_nil() {
        return Err(unknown(&args.jid).context("show the job"));
    }
    let mut out = Output::new(global.output);
    match out.form {
        Form::Nested | Form::Highstate => {
            let returns = returns(&answer);
            let failed = ask::field(&answer, "failed").and_then(Value::as_u64).is_some_and(|n| n > 0);
            let text = if out.form == Form::Highstate {
                outputter::highstate(&returns, out.colours())
            } else {
                outputter::nested(&returns, 0, out.colours(), failed)
            };
            out.rendered(text.trim_end())?;
        }
        Form::Json if args.returns => out.json(&to_json(&returns(&answer)))?,
        Form::Jsonl if args.returns => {
            for pair in returns(&answer).as_map().into_iter().flatten() {
                out.json(&to_json(&Value::Map(vec![pair.clone()])))?;
            }
        }
        _ => show(&mut out, to_json(&answer), args.returns)?,
    }
    Ok(out.flush()?)
}

/// `{minion: return}`, as Salt's own commands print it.
fn returns(job: &Value) -> Value {
    let list = ask::field(job, "returns").and_then(Value::as_array);
    let pair = |answer: &Value| {
        let of = |name: &str| ask::field(answer, name).cloned().unwrap_or(Value::Nil);
        (of("minion"), of("return"))
    };
    Value::Map(list.into_iter().flatten().map(pair).collect())
}

fn show(out: &mut Output, mut job: Json, returns_only: bool) -> anyhow::Result<()> {
    iso_in(&mut job);
    for name in ["first_answer", "last_answer"] {
        super::super::format::when::iso_at(&mut job, name);
    }
    if let Some(Json::Array(returns)) = job.get_mut("returns") {
        for answer in returns {
            iso_in(answer);
            if let Some(Json::Array(others)) = answer.get_mut("others") {
                others.iter_mut().for_each(iso_in);
            }
        }
    }
    match out.format {
        Format::Json => out.json(&job)?,
        Format::Jsonl => {
            for answer in list_of(&job, "returns") {
                let mut line = json!({ "jid": job.get("jid") });
                if let (Json::Object(line), Json::Object(answer)) = (&mut line, answer) {
                    line.extend(answer.clone());
                }
                out.json(&line)?;
            }
        }
        Format::Table => {
            if !returns_only {
                head(out, &job)?;
            }
            for answer in list_of(&job, "returns") {
                if !returns_only {
                    out.line("")?;
                }
                one_return(out, &job, answer)?;
            }
            if !returns_only {
                foot(out, &job)?;
            }
        }
    }
    Ok(())
}

fn head(out: &mut Output, job: &Json) -> anyhow::Result<()> {
    let time = job.get("time").map(short).unwrap_or_default();
    let time = if time.is_empty() { time } else { format!("{time} UTC") };
    let tgt_type = field(job, "tgt_type");
    let tgt = if tgt_type.is_empty() { tgt(job) } else { format!("{} ({tgt_type})", tgt(job)) };
    let expected = match job.get("expected").and_then(Json::as_u64) {
        Some(expected) => format!(" of {expected}"),
        None => String::new(),
    };
    let bus_only = match job.get("bus_only").and_then(Json::as_u64) {
        None | Some(0) => String::new(),
        Some(count) => format!(", {count} seen on the bus only"),
    };
    let returned = format!("{}{expected}, {} failed{bus_only}", field(job, "returned"), field(job, "failed"));
    let codes = job.get("retcodes").map(retcodes).unwrap_or_default();
    let seconds = |us: &Json| us.as_i64().map(|us| format!("{:.3} s", us as f64 / 1e6));
    let took = job.get("duration_us").and_then(seconds);
    let last = job.get("last_answer").map(short).unwrap_or_default();
    let head = [
        ("jid", field(job, "jid")),
        ("time", time),
        ("fun", fun(job)),
        ("arg", arg(job)),
        ("tgt", tgt),
        ("user", field(job, "user")),
        ("returned", returned),
        ("retcodes", codes),
        ("took", took.map_or_else(String::new, |took| format!("{took}, last return {last}"))),
        ("endtime", field(job, "endtime")),
        ("metadata", field(job, "metadata")),
        ("parent", field(job, "parent")),
        ("nocache", job.get("nocache").filter(|it| it.as_bool() == Some(true)).map(leaf).unwrap_or_default()),
    ];
    for (name, value) in head.iter().filter(|(_, value)| !value.is_empty()) {
        out.line(&format!("{name:<9} {}", plain(value)))?;
    }
    Ok(())
}

/// Formats `0: 9, 2: 1`; empty if all are zero.
fn retcodes(codes: &Json) -> String {
    let pairs: Vec<(String, String)> = match codes {
        // The keys are integers, which JSON tags with `$map`.
        Json::Object(tagged) => {
            let pairs = tagged.get("$map").and_then(Json::as_array).into_iter().flatten();
            pairs.filter_map(|pair| Some((leaf(pair.get(0)?), leaf(pair.get(1)?)))).collect()
        }
        _ => Vec::new(),
    };
    if pairs.iter().all(|(code, _)| code == "0") {
        return String::new();
    }
    pairs.iter().map(|(code, count)| format!("{code}: {count}")).collect::<Vec<_>>().join(", ")
}

fn one_return(out: &mut Output, job: &Json, answer: &Json) -> anyhow::Result<()> {
    let mut marks = vec![answer.get("time").map(short).unwrap_or_default()];
    if let Some(code) = answer.get("retcode").filter(|code| !code.is_null()) {
        marks.push(format!("retcode {}", leaf(code)));
    }
    let unsuccessful = answer.get("success").and_then(Json::as_bool) == Some(false);
    if answer.get("failed").and_then(Json::as_bool).unwrap_or(unsuccessful) {
        marks.push("failed".to_owned());
    }
    if answer.get("bus_only").and_then(Json::as_bool) == Some(true) {
        marks.push("seen on the bus only".to_owned());
    }
    if answer.get("not_targeted").and_then(Json::as_bool) == Some(true) {
        marks.push("not targeted by this job".to_owned());
    }
    if let Some(count) = answer.get("duplicates").and_then(Json::as_u64).filter(|count| *count > 0) {
        marks.push(format!("{count} different later return(s)"));
    }
    out.heading(&format!("{}: ({})", field(answer, "minion"), marks.join(", ")))?;
    let nothing = Json::Null;
    let value = answer.get("return").unwrap_or(&nothing);
    // The return of a runner or a wheel function is its final event.
    let ended = |value: &&Json| value.get("jid") == job.get("jid") && value.get("fun").is_some();
    let inner = Some(value).filter(ended).and_then(|event| event.get("return"));
    out.text(&nested(inner.unwrap_or(value), 4))?;
    for other in list_of(answer, "others") {
        let code = other.get("retcode").map(|code| format!(", retcode {}", leaf(code))).unwrap_or_default();
        let time = other.get("time").map(short).unwrap_or_default();
        out.line(&format!("    later return: ({time}{code})"))?;
        out.text(&nested(other.get("return").unwrap_or(&nothing), 8))?;
    }
    Ok(())
}

fn foot(out: &mut Output, job: &Json) -> anyhow::Result<()> {
    let children = list_of(job, "children");
    if !children.is_empty() {
        out.line("")?;
        out.heading("started:")?;
        for child in children {
            let result = match child.get("result").and_then(Json::as_bool) {
                Some(true) => "succeeded",
                Some(false) => "failed",
                None => "would change",
            };
            let [jid, kind, name, id] = ["jid", "fun", "name", "id"].map(|name| field(child, name));
            let id = if id == name { String::new() } else { format!(" ({id})") };
            out.line(&format!("    {jid}  {kind} {name}{id}: {result}"))?;
        }
    }
    let lists =
        [("missing:", "missing"), ("seen on the bus only, not confirmed by the master:", "not_confirmed")];
    for (heading, name) in lists {
        let minions = list_of(job, name);
        if !minions.is_empty() {
            out.line("")?;
            out.heading(heading)?;
            for minion in minions {
                out.line(&plain(&format!("    {}", leaf(minion))))?;
            }
        }
    }
    Ok(())
}
