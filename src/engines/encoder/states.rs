//! The encoder `states`: one flat record per state of a return of `state.apply` and its kin, with a fixed set of fields.
//!
//! `changes` is JSON in a text, so that the number of a log store's fields does not grow with the states. Other events have no items.

use serde::Deserialize;
use serde_json::{Map, Value as Json, json};

use super::{BoxedEncoder, EncodeError, Encoder, bytes_of};
use crate::engines::event::Event;
use crate::engines::settings::kind::{Kind, options};

pub(super) const KIND: Kind<BoxedEncoder> = Kind {
    name: "states",
    doc: "One flat JSON object per state of a state run.",
    example: "{}",
    build: |given| Ok(Box::new(options::<StatesEncoder>(given)?)),
};

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct StatesEncoder {}

impl Encoder for StatesEncoder {
    fn encode(&self, event: &Event, items: &mut Vec<Vec<u8>>) -> Result<(), EncodeError> {
        let data = event.data()?;
        let Some(states) = data.get("return").and_then(Json::as_object) else {
            return Ok(());
        };
        let states = states
            .iter()
            .filter_map(|(key, state)| record(key, state.as_object()?));
        let header = event.header()?;
        for (n, state) in states.enumerate() {
            let mut record = header.clone();
            record.insert("id".to_owned(), format!("{}:{n}", event.id).into());
            record.extend(state);
            items.push(bytes_of(&Json::Object(record)));
        }
        Ok(())
    }
}

/// The fields of one state; `None` if the key is not `module_|-id_|-name_|-function`.
fn record(key: &str, state: &Map<String, Json>) -> Option<Map<String, Json>> {
    const SEPARATOR: &str = "_|-";
    let (module, rest) = key.split_once(SEPARATOR)?;
    let (id, rest) = rest.split_once(SEPARATOR)?;
    let (name_of_key, function) = rest.rsplit_once(SEPARATOR)?;
    let field = |name: &str| state.get(name).cloned().unwrap_or(Json::Null);
    let text = |value: Json| match value {
        Json::Null | Json::String(_) => value,
        other => other.to_string().into(),
    };
    let changes = field("changes");
    let is_changed =
        !matches!(&changes, Json::Null) && changes != json!({}) && changes != json!([]);
    let of_key = || Json::from(name_of_key);
    let name = state
        .get("name")
        .filter(|name| name.is_string())
        .cloned()
        .unwrap_or_else(of_key);
    let record = json!({
        "state": format!("{module}.{function}"),
        "state_id": state.get("__id__").filter(|id| id.is_string()).cloned().unwrap_or_else(|| id.into()),
        "name": name,
        "sls": text(field("__sls__")),
        "result": field("result"),
        "changed": is_changed,
        "changes": if is_changed { Json::from(changes.to_string()) } else { Json::Null },
        "comment": text(field("comment")),
        // Salt has written it as a number and as `12.5 ms`.
        "duration_ms": duration(&field("duration")),
        "run_num": state.get("__run_num__").filter(|n| n.is_u64()).cloned(),
    });
    match record {
        Json::Object(record) => Some(record),
        _ => None,
    }
}

fn duration(value: &Json) -> Option<f64> {
    match value {
        Json::String(text) => text.strip_suffix("ms").unwrap_or(text).trim().parse().ok(),
        value => value.as_f64(),
    }
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
