//! The forms of a stream of events: server-sent events, JSON lines, and what salt-api sends.

use hyper::header::HeaderMap;
use serde::Serialize;
use serde_json::json;

use super::super::answer::HttpError;
use crate::api::call::events::{EventRow, FollowedEvents, Unfiltered};
use crate::wire::msgpack::Stored;

/// Appends the JSON form of an event, or of its data.
fn append(seq: u64, value: &impl Serialize, out: &mut Vec<u8>) {
    let start = out.len();
    if let Err(error) = serde_json::to_writer(&mut *out, value) {
        // Answers of calls are whole msgpack, so only a bug leads here. A stream goes on.
        tracing::error!(seq, %error, "event cannot be written as JSON, the stream has null in its place: report this message");
        out.truncate(start);
        out.extend_from_slice(b"null");
    }
}

/// Appends the lines of an event as salt-api sends them.
fn append_for_salt(event: &EventRow, out: &mut Vec<u8>) {
    // A line break in a tag would begin another line.
    let line: String = event
        .tag
        .chars()
        .map(|c| if c.is_control() { ' ' } else { c })
        .collect();

    out.extend_from_slice(format!("\ntag: {line}\ndata: ").as_bytes());
    append(
        event.seq,
        &ForSalt {
            tag: &event.tag,
            data: &event.data,
        },
        out,
    );
}

/// The data of an event as salt-api sends it.
#[derive(Serialize)]
struct ForSalt<'a> {
    tag: &'a str,
    data: &'a Stored,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::api::http) enum Format {
    Sse,
    Ndjson,
    /// The server-sent events of salt-api: `tag`, and `data` with the tag and the event's data.
    Salt,
}

impl Format {
    pub(in crate::api::http) fn of(headers: &HeaderMap) -> Self {
        let accept = headers
            .get_all("accept")
            .iter()
            .filter_map(|value| value.to_str().ok());
        let is_ndjson = accept
            .flat_map(|list| list.split(','))
            .any(|kind| kind.trim().starts_with("application/x-ndjson"));
        if is_ndjson { Self::Ndjson } else { Self::Sse }
    }

    pub(in crate::api::http) fn content_type(self) -> &'static str {
        match self {
            Self::Sse | Self::Salt => "text/event-stream",
            Self::Ndjson => "application/x-ndjson",
        }
    }

    /// Appends the events of a call's result; without any, a heartbeat.
    pub(in crate::api::http) fn append(self, found: &FollowedEvents, out: &mut Vec<u8>) {
        for event in &found.events {
            // In NDJSON the event contains the id.
            if self != Self::Ndjson {
                out.extend_from_slice(b"id: ");
                out.extend_from_slice(event.id.as_bytes());
            }

            match self {
                Self::Sse => {
                    out.extend_from_slice(b"\ndata: ");
                    append(event.seq, event, out);
                }
                Self::Ndjson => append(event.seq, event, out),
                Self::Salt => append_for_salt(event, out),
            }
            out.extend_from_slice(if self == Self::Ndjson { b"\n" } else { b"\n\n" });
        }

        if let Some(Unfiltered { id, reason, .. }) = &found.unfiltered {
            out.extend(self.skipped(1, id, Some(reason)));
        }

        if out.is_empty() {
            out.extend_from_slice(self.sign_of_life());
        }
    }

    pub(in crate::api::http) fn sign_of_life(self) -> &'static [u8] {
        if self == Self::Ndjson {
            b"\n"
        } else {
            b":\n\n"
        }
    }

    /// The message about skipped events; `id` is the last position among them. Without a reason the
    /// events exceeded `max_rate`.
    pub(in crate::api::http) fn skipped(
        self,
        count: u64,
        id: &str,
        reason: Option<&str>,
    ) -> Vec<u8> {
        let mut text = json!({ "count": count, "id": id });
        if let (Some(text), Some(reason)) = (text.as_object_mut(), reason) {
            text.insert("reason".to_owned(), reason.into());
        }

        match self {
            Self::Sse | Self::Salt => {
                format!("id: {id}\nevent: skipped\ndata: {text}\n\n").into_bytes()
            }
            Self::Ndjson => format!("{}\n", json!({ "skipped": text })).into_bytes(),
        }
    }

    pub(in crate::api::http) fn error(self, error: &HttpError) -> Vec<u8> {
        let text = json!({ "error": { "code": error.code, "message": error.message } });
        match self {
            Self::Sse | Self::Salt => format!("event: error\ndata: {text}\n\n").into_bytes(),
            Self::Ndjson => format!("{text}\n").into_bytes(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::clock::Micros;
    use crate::wire::msgpack::{Time, Writer};

    fn event(seq: u64, minion: &str) -> EventRow {
        let mut data = Writer::new();
        data.map(1).str("blob").bin(b"\xff");
        EventRow {
            id: format!("ab:{seq}"),
            seq,
            time: Time(Micros(0)),
            minion: Some(minion.to_owned()),
            data: Stored::Packed(data.into_bytes()),
            ..EventRow::default()
        }
    }

    #[test]
    fn an_event_has_its_time_as_text_and_binary_with_a_tag() {
        let event = json!(event(9, "web1"));
        assert_eq!(event["time"], "1970-01-01T00:00:00.000000Z");
        assert_eq!(event["data"], json!({"blob": {"$bin": "/w=="}}));
        assert_eq!(event.get("jid"), None, "absent ones are left out");
    }

    #[test]
    fn a_stream_has_ids_and_signs_of_life() {
        let found = FollowedEvents {
            events: vec![event(9, "web1"), event(7, "db1")],
            ..FollowedEvents::default()
        };
        let mut sse = Vec::new();
        Format::Sse.append(&found, &mut sse);
        let sse = String::from_utf8(sse).unwrap();
        assert!(
            sse.starts_with("id: ab:9\ndata: {\"id\":\"ab:9\"") && sse.ends_with("}\n\n"),
            "{sse}"
        );
        let mut quiet = Vec::new();
        Format::Ndjson.append(&FollowedEvents::default(), &mut quiet);
        assert_eq!(quiet, b"\n");
    }
}
