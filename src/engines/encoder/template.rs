//! The encoder `template`: text of a Jinja template, see [`crate::engines::template`].

use serde::Deserialize;
use serde_json::{Map, Value as Json};

use super::encode::{BoxedEncoder, EncodeError, Encoder};
use crate::engines::event::{Event, Unreadable};
use crate::engines::kind::{Kind, options};
use crate::engines::template::Template;

const DOC: &str = r"The output of a Jinja template. If the output is empty, the event yields no item. An expression has at most 100 nested operations, and `namespace` does not exist.

`text` is the template. Its names are the keys above, `unix`, `unix_ms` and `unix_ns` (the time in seconds, milliseconds, nanoseconds), and `json` (all of it as text). Missing values are empty. `tojson` writes any
value as JSON, with sorted keys: `{{ data | tojson }}`.";

pub(super) const KIND: Kind<BoxedEncoder> = Kind {
    name: "template",
    doc: DOC,
    example: "{text: '{\"text\": {{ (tag ~ \": \" ~ minion) | tojson }}}'}",
    build: |given| {
        let options: TemplateOptions = options(given)?;
        let template = Template::new("text", &options.text)?;
        let uses_json = options.text.replace("tojson", "").contains("json");
        Ok(Box::new(TemplateEncoder {
            template,
            uses_json,
        }))
    },
};

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct TemplateOptions {
    text: String,
}

#[derive(Debug)]
struct TemplateEncoder {
    template: Template,
    /// Whether the text of the JSON form may be needed.
    uses_json: bool,
}

impl Encoder for TemplateEncoder {
    fn break_no_lines(&mut self) {
        self.template.break_no_lines();
    }

    fn encode(&self, event: &Event, items: &mut Vec<Vec<u8>>) -> Result<(), EncodeError> {
        let mut names = context(event)?;
        // Costly for a large event, and rarely used.
        if self.uses_json {
            let json = Json::Object(event.to_json()?).to_string();
            names.insert("json".to_owned(), json.into());
        }

        let text = self.template.render(names)?;
        let text = text.trim();
        if !text.is_empty() {
            items.push(text.as_bytes().to_vec());
        }
        Ok(())
    }
}

/// The names in a template: the keys of the JSON form, and the time in seconds, milliseconds and
/// nanoseconds since 1970. `json` is the whole form as text.
fn context(event: &Event) -> Result<Map<String, Json>, Unreadable> {
    let mut names = event.to_json()?;
    let micros = event.at.0;
    names.insert("unix".to_owned(), micros.div_euclid(1_000_000).into());
    names.insert("unix_ms".to_owned(), micros.div_euclid(1_000).into());
    // As text: JSON numbers of this size are not exact in many programs.
    names.insert("unix_ns".to_owned(), format!("{micros}000").into());
    Ok(names)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::tests::items;
    use super::*;
    use crate::engines::event::tests::event;

    #[test]
    fn a_template_has_all_keys_and_times_and_may_leave_an_event_out() {
        let text = "{% if data.n %}{{ seq }} {{ tag }} {{ minion }} {{ time }} {{ unix }} {{ unix_ms }} {{ unix_ns }} {{ data.n }}{% endif %}\n";
        let options = json!({"text": text});
        let found = items(&KIND, &options, &event(3, "a/b", "web1", json!({"n": 5}))).unwrap();
        let expected =
            "3 a/b web1 2026-11-18T11:06:40.123456Z 1795000000 1795000000123 1795000000123456000 5";
        assert_eq!(found, [expected]);
        assert!(
            items(&KIND, &options, &event(3, "a/b", "web1", json!({})))
                .unwrap()
                .is_empty()
        );
        let whole = items(
            &KIND,
            &json!({"text": "{{ json }}"}),
            &event(3, "a/b", "web1", json!({"n": 5})),
        )
        .unwrap();
        assert!(
            whole[0].starts_with(r#"{"id":"store:3","seq":3,"#)
                && whole[0].ends_with(r#""data":{"n":5}}"#),
            "{whole:?}"
        );
    }

    #[test]
    fn a_template_that_fails_for_an_event_is_an_error_of_that_event() {
        let options = json!({"text": "{{ data.n + 1 }}"});
        assert_eq!(
            items(&KIND, &options, &event(1, "t", "m", json!({"n": 1}))).unwrap(),
            ["2"]
        );
        let error = items(&KIND, &options, &event(1, "t", "m", json!({"n": "x"}))).unwrap_err();
        assert!(
            error
                .to_string()
                .starts_with("the template of the sink failed: line 1: "),
            "{error}"
        );
        let invalid = (KIND.build)(&json!({"text": "{% endif %}"})).unwrap_err();
        assert_eq!(invalid.path, "text");
    }
}
