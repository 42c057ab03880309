//! The encoder `states`: one flat record per state of a return of `state.apply` and its kin, with a
//! fixed set of fields.
//!
//! `changes` is JSON in a string. Otherwise the number of a log store's fields would grow with the
//! states. Other events contain no items.

use serde::Deserialize;
use serde_json::{Value as Json, json};

use super::encode::{BoxedEncoder, EncodeError, Encoder, bytes_of};
use crate::engines::event::Event;
use crate::engines::kind::{Kind, options};
use crate::wire::outcome::states::StateRow;

const DOC: &str = r"One flat JSON object per state of a state run.

The keys of `json` except `data`, and `state` (`pkg.installed`), `state_id`, `name`, `sls`, `result`, `changed`, `changes` (JSON as a string), `comment`, `duration_ms`, `run_num`. Therefore a log store has a fixed set of fields.
Returns of several functions and results of orchestrations also have items; in items of an orchestration, `minion` is the id that Salt gives with the states. Events without state results have no items.";

pub(super) const KIND: Kind<BoxedEncoder> = Kind {
    name: "states",
    doc: DOC,
    example: "{}",
    build: |given| Ok(Box::new(options::<StatesEncoder>(given)?)),
};

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct StatesEncoder {}

impl Encoder for StatesEncoder {
    fn encode(&self, event: &Event, items: &mut Vec<Vec<u8>>) -> Result<(), EncodeError> {
        let outcome = event.outcome();
        let states = outcome.states(&event.minion);
        if states.is_empty() {
            return Ok(());
        }

        let header = event.header()?;
        // A list of reasons why nothing ran is no state.
        for (n, state) in states.iter().filter(|row| !row.key.is_empty()).enumerate() {
            // States are numbered within their event, therefore a repeated delivery has the same
            // ids.
            let mut record = header.clone();
            record.insert("id".to_owned(), format!("{}:{n}", event.id).into());
            // In an orchestration, the master's id that Salt gives with its states.
            if !state.minion.is_empty() {
                record.insert("minion".to_owned(), state.minion.into());
            }
            if let Json::Object(fields) = record_of(state)? {
                record.extend(fields);
            }
            items.push(bytes_of(&Json::Object(record)));
        }
        Ok(())
    }
}

/// The fields of one state.
fn record_of(state: &StateRow<'_>) -> Result<Json, EncodeError> {
    // The map of a state without changes is empty, and would look like a change.
    let changes = state.changes.filter(|_| state.changed());
    let changes = changes.map(json_of).transpose()?;

    // A comment is a string in Salt's states, and may be anything in others.
    let comment = match state.comment.map(json_of).transpose()? {
        None | Some(Json::Null) => Json::Null,
        Some(Json::String(text)) => Json::String(text),
        Some(other) => other.to_string().into(),
    };

    Ok(json!({
        "state": state.fun,
        "state_id": state.id,
        "name": state.name,
        "sls": state.sls,
        "result": state.result,
        "changed": state.changed(),
        "changes": changes.map(|changes| changes.to_string()),
        "comment": comment,
        "duration_ms": state.duration,
        "run_num": state.run_num,
    }))
}

fn json_of(value: &[u8]) -> Result<Json, EncodeError> {
    Ok(crate::engines::event::json_of(value)?)
}

#[cfg(test)]
mod tests {
    use super::super::tests::items;
    use super::*;
    use crate::engines::event::tests::event;

    #[test]
    fn each_state_is_a_record_with_changes_as_text() {
        let ret = json!({
            "pkg_|-web_|-nginx_|-installed": {
                "__id__": "web", "__sls__": "web", "__run_num__": 0, "name": "nginx", "result": true,
                "changes": {"nginx": {"old": "", "new": "1.26"}}, "comment": "installed", "duration": 12.5,
            },
            "file_|-conf_|-/etc/a_|-b_|-managed": {"result": false, "changes": {}, "comment": ["x"], "duration": "3 ms"},
        });
        let event = event(
            9,
            "salt/job/1/ret/web1",
            "web1",
            json!({"fun": "state.apply", "return": ret}),
        );
        let found = items(&KIND, &json!({}), &event).unwrap();
        let [first, second] = &found[..] else {
            panic!("{found:?}")
        };
        let first: Json = serde_json::from_str(first).unwrap();
        let expected = json!({
            "id": "store:9:0", "seq": 9, "time": "2026-11-18T11:06:40.123456Z", "tag": "salt/job/1/ret/web1",
            "minion": "web1", "fun": null, "jid": null, "master_id": "master1",
            "state": "pkg.installed", "state_id": "web", "name": "nginx", "sls": "web", "result": true, "changed": true,
            "changes": "{\"nginx\":{\"old\":\"\",\"new\":\"1.26\"}}", "comment": "installed", "duration_ms": 12.5, "run_num": 0,
        });
        assert_eq!(first, expected);
        let second: Json = serde_json::from_str(second).unwrap();
        assert_eq!(
            (&second["name"], &second["state_id"]),
            (&json!("/etc/a_|-b"), &json!("conf"))
        );
        assert_eq!(
            (&second["comment"], &second["duration_ms"]),
            (&json!("[\"x\"]"), &json!(3.0))
        );
        assert_eq!(
            (&second["changed"], &second["changes"]),
            (&json!(false), &Json::Null)
        );
        assert_eq!(
            expected.as_object().unwrap().len(),
            second.as_object().unwrap().len(),
            "the same fields"
        );
    }

    #[test]
    fn other_events_have_no_records() {
        for data in [
            json!({}),
            json!({"return": true}),
            json!({"return": {"a": {"b": 1}, "c": 2}}),
            json!({"return": ["x"]}),
        ] {
            assert!(
                items(&KIND, &json!({}), &event(1, "t", "m", data.clone()))
                    .unwrap()
                    .is_empty(),
                "{data}"
            );
        }
    }
}
