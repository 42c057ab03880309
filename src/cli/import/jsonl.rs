//! Import of JSON lines, as written by `export jsonl`. docs/EXPORT.md lists the fields.

use std::fs::File;
use std::io::{self, BufRead as _, BufReader, Read};
use std::path::Path;

use anyhow::{Context as _, bail};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use rmpv::Value;
use serde_json::Value as Json;

use super::super::format::when;
use super::feed::Feed;
use super::item::{ImportItem, Payload};
use crate::base::limits::{JSON_LINE_BYTES_MAX, RMPV_DEPTH_MAX};
use crate::base::named::Named as _;
use crate::model::Kind;
use crate::store::tools::Watch;
use crate::wire::call::id_text;
use crate::wire::json::parse;
use crate::wire::msgpack::json::from_json;
use crate::wire::msgpack::{self, Reader, is_nil};
use crate::wire::salt_event::peek;

/// The format version in the first line.
pub(in crate::cli) const VERSION: u64 = 2;

/// Imports a file, or standard input.
pub(super) fn import(feed: &mut Feed, file: &Path, watch: &mut dyn Watch) -> anyhow::Result<()> {
    let name = if file.as_os_str() == "-" {
        "standard input".to_owned()
    } else {
        file.display().to_string()
    };

    let reading = || format!("read {name}");

    let (from, total): (Box<dyn Read>, u64) = if file.as_os_str() == "-" {
        // The size of standard input is unknown.
        (Box::new(io::stdin()), 0)
    } else {
        let file = File::open(file).with_context(reading)?;
        let total = file.metadata().with_context(reading)?.len();
        (Box::new(file), total)
    };

    let mut from = BufReader::with_capacity(1024 * 1024, from);
    let mut done = 0;
    let mut number = 0_u64;
    let mut line = Vec::new();

    loop {
        line.clear();
        number += 1;

        // A file without line ends must not be read into memory as a whole.
        let count = from
            .by_ref()
            .take(JSON_LINE_BYTES_MAX)
            .read_until(b'\n', &mut line)
            .with_context(reading)?;

        if count == 0 {
            return feed.finish();
        }

        done += count as u64;
        watch.step(done.min(total), total, &format!("line {number}"));

        let origin = format!("{name}, line {number}");

        // Not kept in memory: the rest of the line is read over.
        if line.last() != Some(&b'\n') && count as u64 == JSON_LINE_BYTES_MAX {
            feed.skip(&origin, &format!("longer than {JSON_LINE_BYTES_MAX} bytes"));
            done += skip_line(&mut from).with_context(reading)?;
            continue;
        }

        match item(line.trim_ascii()) {
            Ok(JsonLine::Item(at, master, payload)) => feed.push(ImportItem {
                at,
                origin,
                master,
                payload,
            })?,
            // Accepted on any line, because several exports may follow each other.
            Ok(JsonLine::Head(version)) => check_version(version).with_context(reading)?,
            Ok(JsonLine::Foreign(kind)) => feed.leave_out(kind),
            Ok(JsonLine::Empty) => {}
            Err(why) => feed.skip(&origin, &why),
        }
    }
}

fn check_version(version: u64) -> anyhow::Result<()> {
    // The fields of another version may mean something else.
    if version != VERSION {
        bail!("format version {version} is not supported, only {VERSION}: export the file again");
    }
    Ok(())
}

fn skip_line(from: &mut impl io::BufRead) -> io::Result<u64> {
    let mut skipped = 0;
    loop {
        let part = from.fill_buf()?;
        let (count, is_end) = match memchr::memchr(b'\n', part) {
            Some(at) => (at + 1, true),
            None => (part.len(), part.is_empty()),
        };
        from.consume(count);
        skipped += count as u64;
        if is_end {
            return Ok(skipped);
        }
    }
}

enum JsonLine {
    /// Its time, the id of its master, and its data.
    Item(i64, String, Payload),
    /// An entry of this kind says what the exporting daemon saw or did, which is not true of the
    /// importing daemon.
    Foreign(Kind),
    Head(u64),
    Empty,
}

fn item(line: &[u8]) -> Result<JsonLine, String> {
    if line.is_empty() {
        return Ok(JsonLine::Empty);
    }

    let mut json = parse(line).map_err(|error| format!("invalid JSON: {error}"))?;
    let name = json
        .get("kind")
        .and_then(Json::as_str)
        .ok_or("expected an object with `kind`")?
        .to_owned();
    if name == "saltcellar" {
        // A missing version counts as another one.
        return Ok(JsonLine::Head(
            json.get("version")
                .and_then(Json::as_u64)
                .unwrap_or(u64::MAX),
        ));
    }

    let kind = Kind::named(&name).ok_or_else(|| format!("unknown kind {name:?}"))?;
    if matches!(
        kind,
        Kind::Gap | Kind::Reaction | Kind::SeenOnBus | Kind::Setting
    ) {
        return Ok(JsonLine::Foreign(kind));
    }

    let at = match json.get("time") {
        Some(Json::String(text)) => when::date_micros(text),
        Some(time) => time.as_i64(),
        None => None,
    };

    let at = at.ok_or("expected `time`, as 2026-11-21T05:47:28.123456Z or in microseconds")?;

    let raw = json.get("raw").map(raw_body).transpose()?;

    // Taken out of the line instead of copied, because a body may be large.
    let mut value = |key: &str| -> Result<Option<Value>, String> {
        match json.get_mut(key).map(Json::take) {
            None | Some(Json::Null) => Ok(None),
            Some(json) => from_json(&json)
                .map(Some)
                .map_err(|error| format!("`{key}`: {error}")),
        }
    };

    let needs =
        |key: &str, value: Option<Value>| value.ok_or_else(|| format!("{name} requires `{key}`"));
    let text = |key: &str, value: Option<Value>| -> Result<String, String> {
        let value = needs(key, value)?;
        value
            .as_str()
            .map(str::to_owned)
            .ok_or_else(|| format!("`{key}` must be a string"))
    };

    // The bytes of a value: the body's if the line contains `raw`, or the bytes of an element of it
    // if the body is a list of several fields.
    let bytes = |value: Option<Value>, element: Option<usize>| match (&raw, element) {
        (Some(raw), None) => Ok(Some(raw.clone())),
        (Some(raw), Some(n)) => Ok(msgpack::elements(raw)
            .nth(n)
            .filter(|part| !is_nil(part))
            .map(<[u8]>::to_vec)),
        (None, _) => value.as_ref().map(packed).transpose(),
    };

    let list = |key: &str, value: Option<Value>, element: usize| match bytes(value, Some(element))?
    {
        None => Ok(Vec::new()),
        Some(list) if Reader::new(&list).array().is_ok() => Ok(list),
        Some(_) => Err(format!("`{key}` must be a list")),
    };

    let map = |key: &str, value: Option<Value>, element: Option<usize>| {
        let found = bytes(value, element)?.ok_or_else(|| format!("{name} requires `{key}`"))?;
        if Reader::new(&found).map().is_err() {
            return Err(format!("`{key}` must be a map"));
        }
        Ok(found)
    };

    // Lines of a program, and of a daemon without a master, name none.
    let master = match value("master")? {
        None => String::new(),
        master => text("master", master)?,
    };

    let on_bus = value("on_bus")?.and_then(|flag| flag.as_bool()) == Some(true);

    // Lines that a program writes may lack it, because what a program imports was returned.
    let confirmed = value("confirmed")?.and_then(|flag| flag.as_bool()) != Some(false);

    let payload = match kind {
        _ if on_bus => {
            let tag = match needs("tag", value("tag")?)? {
                // Nil in msgpack.
                Value::String(tag) => tag.into_bytes(),
                Value::Binary(tag) => tag,
                _ => return Err("`tag` must be a string".to_owned()),
            };
            let data = bytes(value("data")?, None)?.unwrap_or_else(|| vec![0xc0]);

            // A return event becomes a return, which the daemon also lists as an event.
            match returned(&tag, &data).filter(|_| kind == Kind::Return && confirmed) {
                Some((jid, id)) => Payload {
                    id,
                    ..Payload::new(Kind::Return, jid, data)
                },
                None => Payload {
                    tag,
                    ..Payload::new(Kind::Event, "", data)
                },
            }
        }
        Kind::Load | Kind::ReturnLoad => Payload {
            minions: list("minions", value("minions")?, 1)?,
            ..Payload::new(
                Kind::Load,
                text("jid", value("jid")?)?,
                map("load", value("load")?, Some(0))?,
            )
        },
        Kind::Minions => Payload {
            minions: list("minions", value("minions")?, 0)?,
            id: value("syndic")?
                .and_then(|syndic| syndic.as_str().map(str::to_owned))
                .unwrap_or_default(),
            ..Payload::new(kind, text("jid", value("jid")?)?, Vec::new())
        },
        Kind::Return => Payload {
            id: text("minion", value("minion")?)?,
            ..Payload::new(
                kind,
                text("jid", value("jid")?)?,
                map("data", value("data")?, None)?,
            )
        },
        Kind::Endtime => Payload::endtime(
            text("jid", value("jid")?)?,
            &text("endtime", value("endtime")?)?,
        ),
        Kind::NoCache => Payload::nocache(text("jid", value("jid")?)?),
        Kind::Register => {
            let data = bytes(value("data")?, None)?;
            Payload::new(kind, "", data.unwrap_or_else(|| vec![0xc0]))
        }
        // These exist only as events of a bus.
        Kind::Event
        | Kind::JobNew
        | Kind::Gap
        | Kind::Reaction
        | Kind::SeenOnBus
        | Kind::Setting => {
            return Err(format!("{name} requires `on_bus`"));
        }
    };

    Ok(JsonLine::Item(at, master, payload))
}

/// The body of an entry, from `raw`.
fn raw_body(text: &Json) -> Result<Vec<u8>, String> {
    let body = text.as_str().and_then(|text| BASE64.decode(text).ok());
    let body = body.ok_or("`raw` must be base64")?;

    let mut reader = Reader::new(&body);
    if reader.value().is_err() || !reader.rest().is_empty() {
        return Err("data other than msgpack cannot be imported".to_owned());
    }
    Ok(body)
}

/// The job and the minion of a return event, which the master fires before it calls `returner` with
/// the same map. The daemon recognises it by the same fields and also lists it as an event.
fn returned(tag: &[u8], data: &[u8]) -> Option<(String, String)> {
    let seen = peek(data);
    let text = |key| msgpack::get(data, key).and_then(id_text);
    let (jid, minion) = (text("jid")?, text("id")?);

    let fired = seen.stamp().is_some() && seen.cmd() == Some("_return");
    (fired && tag == format!("salt/job/{jid}/ret/{minion}").as_bytes()).then_some((jid, minion))
}

pub(super) fn packed(value: &Value) -> Result<Vec<u8>, String> {
    let mut bytes = Vec::new();
    rmpv::encode::write_value(&mut bytes, value).map_err(|error| error.to_string())?;
    // Values nested too deeply could not be reread.
    rmpv::decode::read_value_with_max_depth(&mut bytes.as_slice(), RMPV_DEPTH_MAX)
        .map_err(|error| error.to_string())?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_lines_of_this_version_are_read() {
        check_version(VERSION).unwrap();
        for other in [VERSION - 1, VERSION + 1] {
            let why = check_version(other).unwrap_err().to_string();
            assert!(
                why.contains(&format!("version {other} is not supported")),
                "{why}"
            );
        }
    }

    #[test]
    fn errors_of_lines_name_the_expected_value() {
        for (line, why) in [
            ("{", "invalid JSON"),
            ("[]", "expected an object with `kind`"),
            (r#"{"kind": "song"}"#, "unknown kind"),
            (
                r#"{"kind": "endtime", "jid": "1", "endtime": "x"}"#,
                "expected `time`",
            ),
            (
                r#"{"kind": "endtime", "time": 1, "endtime": "x"}"#,
                "requires `jid`",
            ),
            (
                r#"{"kind": "load", "time": 1, "jid": "1", "load": []}"#,
                "`load` must be a map",
            ),
            (
                r#"{"kind": "load", "time": 1, "jid": "1", "load": {"a": {"$bin": 1}}}"#,
                "`load`: not the JSON form",
            ),
            (
                r#"{"kind": "minions", "time": 1, "jid": "1", "minions": 3}"#,
                "must be a list",
            ),
            (
                r#"{"kind": "event", "time": 1, "tag": "a", "data": {}}"#,
                "requires `on_bus`",
            ),
            (
                r#"{"kind": "event", "time": 1, "on_bus": true, "tag": 1, "data": {}}"#,
                "`tag` must be a string",
            ),
        ] {
            let found = item(line.as_bytes()).err().unwrap_or_default();
            assert!(found.contains(why), "{line}: {found}");
        }
    }
}
