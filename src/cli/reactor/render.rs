//! `saltcellar reactor render`: renders a file for an event and shows its calls.

use anyhow::Context;
use salt_sls::json_form::{decode, encode, encode_map};
use salt_sls::{Key, Map, Value};
use serde_json::{Value as Json, json};

use super::salt::{Chosen, SaltArgs};
use crate::cli::{Global, Output, finding, plain, show};
use crate::model::NoteLevel;
use crate::reactor::{Body, Detail, Outcome, Pipeline, Worker};

pub(super) const EXAMPLES: &str = "\
Renders the file for the event as the reactor does, compiles it to low chunks and these to calls. Makes no calls and \
requires no master. If the master's configuration exists, its file_roots, jinja_env, nodegroups and other options apply.

Examples:
  saltcellar reactor render /srv/reactor/start.sls --tag salt/minion/web1/start --data '{\"id\": \"web1\"}'
  saltcellar reactor render salt://reactor/key.sls --tag salt/key --data \"$(cat event.json)\" --output json

Exit codes: 0 no errors, 1 errors among the notes.";

#[derive(clap::Args)]
pub(in crate::cli) struct Args {
    /// The file, or a salt:// reference
    #[arg(value_name = "FILE")]
    file: String,
    /// The event's tag
    #[arg(long, value_name = "TAG")]
    tag: String,
    /// The event's data, a JSON object
    #[arg(long, value_name = "JSON", default_value = "{}")]
    data: String,
    #[command(flatten)]
    salt: SaltArgs,
}

pub(super) fn run(global: &Global, args: &Args) -> anyhow::Result<()> {
    let data: Json = serde_json::from_str(&args.data).context("read --data as JSON")?;
    // JSON of events marks types that JSON lacks.
    let data = decode(&data);

    let Chosen { master, salt, .. } = args.salt.choose(global)?;

    let pipeline = Pipeline::new(&master, salt);

    // A single rule for every tag, because only this file is to be rendered.
    let mut rule = Map::default();
    rule.insert(Key::from("*"), Value::List(vec![args.file.as_str().into()]));
    pipeline.set_rules(&Value::List(vec![Value::Map(rule)]));

    let outcome =
        Worker::new(pipeline.into()).react(&args.tag, Body::Value(&data), Detail::Everything);

    show(global.output, &to_json(&outcome), |out| {
        print(&outcome, out)
    })?;

    // After the output, which contains the notes.
    let errors = outcome
        .notes
        .iter()
        .filter(|note| note.level == NoteLevel::Error)
        .count();

    if errors == 0 {
        Ok(())
    } else {
        Err(finding(format!("{errors} errors, see above")))
    }
}

fn print(outcome: &Outcome, out: &mut Output) -> anyhow::Result<()> {
    for render in &outcome.renders {
        out.heading(&plain(&render.file))?;
        // Without a rendered string the file failed, and a note says why.
        match &render.text {
            Some(text) => {
                for line in text.lines() {
                    out.line(&format!("  {}", plain(line)))?;
                }
            }
            None => out.line("  not rendered")?,
        }
    }

    for file in &outcome.not_native {
        out.line(&plain(&format!(
            "{}: rendered by Salt's Python: {}",
            file.file, file.why
        )))?;
    }

    out.heading(if outcome.calls.is_empty() {
        "No calls"
    } else {
        "Calls"
    })?;

    for call in &outcome.calls {
        // The old form of reactor files names an id for each chunk.
        let id = call
            .chunk
            .get("__id__")
            .map(Value::python_str)
            .unwrap_or_default();

        let line = format!("  {} {} ({id})", call.client.name(), call.fun.python_str());
        out.line(&plain(&line))?;

        let json = call.to_json();
        // Only what a person needs; the JSON output contains the whole call.
        let shown = match json.get("publish") {
            Some(publish) => json!({
                "tgt": publish.get("tgt"), "tgt_type": publish.get("tgt_type"), "arg": publish.get("arg"),
                "ret": publish.get("ret"),
            }),
            None => json
                .get("invoke")
                .cloned()
                .unwrap_or_else(|| json!({"args": json.get("args"), "kwargs": json.get("kwargs")})),
        };

        out.line(&format!("    {}", plain(&shown.to_string())))?;
    }

    for note in &outcome.notes {
        out.line(&plain(&format!("{}: {note}", note.level.name())))?;
    }

    Ok(())
}

fn to_json(outcome: &Outcome) -> Json {
    json!({
        "rendered": outcome
            .renders
            .iter()
            .map(|render| json!({"file": render.file, "text": render.text}))
            .collect::<Vec<_>>(),
        "high": outcome.high.first().map(encode_map),
        "low": outcome.low.iter().map(encode_map).collect::<Vec<_>>(),
        "calls": outcome.calls.iter().map(crate::reactor::Prepared::to_json).collect::<Vec<_>>(),
        "salt_calls": outcome
            .salt_calls
            .iter()
            .map(|call| {
                json!({
                    "fun": call.fun,
                    "args": call.args.iter().map(encode).collect::<Vec<_>>(),
                    "kwargs": encode_map(&call.kwargs),
                    // A function that raised returned nothing, so one of both is null.
                    "return": call.answer.as_ref().ok().map(encode),
                    "raised": call.answer.as_ref().err().map(|(kind, text)| format!("{kind}: {text}")),
                })
            })
            .collect::<Vec<_>>(),
        "not_native": outcome
            .not_native
            .iter()
            .map(|file| json!({"file": file.file, "why": file.why}))
            .collect::<Vec<_>>(),
        "notes": outcome
            .notes
            .iter()
            .map(|note| json!({"level": note.level.name(), "message": note.to_string()}))
            .collect::<Vec<_>>(),
    })
}
