//! All calls as one JSON document, from which the tables of `docs/WIRE.md` are generated.

use schemars::generate::SchemaSettings;
use serde_json::{Value as Json, json};

use super::CALLS;

/// `{"calls": [{"name", "doc", "right", "args", "answer"}], "types": {NAME: SCHEMA}}`, with JSON
/// schemas. The fields of arguments are in place; the types of responses are referred to.
pub fn document() -> Json {
    let mut args = SchemaSettings::draft2020_12()
        .with(|settings| settings.inline_subschemas = true)
        .into_generator();
    let mut answers = SchemaSettings::draft2020_12()
        .for_serialize()
        .with(|settings| settings.definitions_path = "/types".into())
        .into_generator();

    let calls: Vec<Json> = CALLS
        .iter()
        .map(|call| {
            json!({
                "name": call.name,
                "doc": call.doc,
                "right": call.right.name(),
                "args": (call.args)(&mut args),
                "answer": (call.answer)(&mut answers),
            })
        })
        .collect();

    json!({ "calls": calls, "types": answers.take_definitions(true) })
}
