//! Import of the tables of Salt's returner `pgjsonb`: `jids`, `salt_returns`, `salt_events`.
//!
//! `psql` reads them, because it supports all connection methods of PostgreSQL. Two `COPY ... TO STDOUT` each stream a snapshot,
//! sorted by the server; columns are text with `\t`, `\n` and `\\` escaped.

use std::io::{BufRead as _, BufReader, Read as _};
use std::process::{Child, Command, Stdio};

use anyhow::{Context as _, bail};

use super::super::BadUsage;
use super::feed::Feed;
use super::item::{ImportItem, Payload};
use super::jsonl;
use crate::base::limits::JSON_LINE_BYTES_MAX;
use crate::model::{JidKey, Kind};
use crate::store::tools::Watch;
use crate::wire::json::plain_value;
use crate::wire::msgpack::{self, Writer};

/// Loads and returns by job, each load first. A load has the time of its jid, or of the job's first return.
const JOBS: &str = "COPY (SELECT what, jid, id, body, (extract(epoch FROM at) * 1000000)::bigint FROM \
    (SELECT 0 AS what, j.jid, '' AS id, j.load::text AS body, \
     (SELECT min(r.alter_time) FROM salt_returns r WHERE r.jid = j.jid) AS at FROM jids j \
     UNION ALL SELECT 1, jid, id, full_ret::text, alter_time FROM salt_returns) AS rows \
    ORDER BY jid COLLATE \"C\", what, at) TO STDOUT";

const EVENTS: &str = "COPY (SELECT id, tag, data::text, (extract(epoch FROM alter_time) * 1000000)::bigint \
    FROM salt_events ORDER BY alter_time, id) TO STDOUT";

const COUNT: &str = "COPY (SELECT (SELECT count(*) FROM jids), (SELECT count(*) FROM salt_returns), \
    (SELECT count(*) FROM salt_events)) TO STDOUT";

/// Imports the tables, with events on request.
pub(super) fn import(
    feed: &mut Feed,
    connection: &str,
    events: bool,
    watch: &mut dyn Watch,
) -> anyhow::Result<()> {
    let connection = Connection::of(connection)?;
    let mut counts = Vec::new();
    connection.rows(COUNT, |columns| {
        counts = columns.iter().map(|n| n.parse::<u64>().unwrap_or(0)).collect();
        Ok(())
    })?;
    let total: u64 = counts.iter().take(if events { 3 } else { 2 }).sum();
    let mut done = 0;
    connection.rows(JOBS, |columns| {
        done += 1;
        let [what, jid, id, body, at] = columns else { bail!("read a row: expected five columns") };
        watch.step(done, total, jid);
        let origin =
            if what == "0" { format!("jids, {jid}") } else { format!("salt_returns, {jid} of {id}") };
        match job_item(what == "0", [jid, id, body], at) {
            Ok((at, payload)) => feed.push(ImportItem { at, origin, payload }),
            Err(why) => {
                feed.skip(&origin, &why);
                Ok(())
            }
        }
    })?;
    if events {
        connection.rows(EVENTS, |columns| {
            done += 1;
            let [id, tag, data, at] = columns else { bail!("read a row: expected four columns") };
            watch.step(done, total, tag);
            let origin = format!("salt_events, {id}");
            match (packed(data), at.parse()) {
                (Ok(data), Ok(at)) => {
                    let tag = tag.clone().into_bytes();
                    let payload = Payload { tag, ..Payload::new(Kind::Event, "", data) };
                    feed.push(ImportItem { at, origin, payload })
                }
                (Err(why), _) => {
                    feed.skip(&origin, &why);
                    Ok(())
                }
                (_, Err(_)) => {
                    feed.skip(&origin, "no time");
                    Ok(())
                }
            }
        })?;
    }
    feed.finish()
}

fn job_item(is_load: bool, [jid, id, body]: [&str; 3], at: &str) -> Result<(i64, Payload), String> {
    let of_jid = JidKey::of(jid).time().map(|at| at.0);
    let of_row = at.parse().ok();
    let body = packed(body)?;
    if msgpack::Reader::new(&body).map().is_err() {
        return Err("not an object".to_owned());
    }
    if is_load {
        // Without any time, the feed uses the current one.
        let at = of_jid.or(of_row).unwrap_or(i64::MAX);
        return Ok((at, Payload::new(Kind::Load, jid, body)));
    }
    // The columns `jid` and `id` take precedence. The column `success` is ignored: it is false if the minion sent none.
    let pairs: Vec<_> = msgpack::pairs(&body)
        .filter(|(key, _)| !matches!(msgpack::as_text(key), Some("jid" | "id")))
        .collect();
    let mut w = Writer::new();
    w.map(pairs.len() + 2).str("jid").str(jid).str("id").str(id);
    for (key, value) in pairs {
        w.raw(key).raw(value);
    }
    let at = of_row.or(of_jid).unwrap_or(i64::MAX);
    Ok((at, Payload { id: id.to_owned(), ..Payload::new(Kind::Return, jid, w.into_bytes()) }))
}

/// Converts JSON of the database to msgpack. Keys that start with `$` have no special meaning.
fn packed(text: &str) -> Result<Vec<u8>, String> {
    let json = serde_json::from_str(text).map_err(|error| format!("invalid JSON: {error}"))?;
    jsonl::packed(&plain_value(json))
}

/// A connection string of `psql` without a password, which `psql` reads from its environment or a file.
struct Connection<'a>(&'a str);

impl<'a> Connection<'a> {
    /// Rejects passwords, because all users of this machine can read the arguments of processes. The error does not repeat it.
    fn of(text: &'a str) -> Result<Self, BadUsage> {
        if holds_password(text) {
            return Err(BadUsage(
                "read CONNECTION: it contains a password, which all users of this machine can read in the process list; remove it, and \
                 set PGPASSWORD or PGPASSFILE, or write it to ~/.pgpass"
                    .to_owned(),
            ));
        }
        Ok(Self(text))
    }

    /// Calls `take` with the columns of each row of a query.
    fn rows(&self, query: &str, mut take: impl FnMut(&[String]) -> anyhow::Result<()>) -> anyhow::Result<()> {
        let mut command = Command::new("psql");
        command.args(["--no-psqlrc", "--quiet", "--no-password", "--set", "ON_ERROR_STOP=1"]);
        command.args(["--command", query, "--dbname", self.0]);
        command.env("PGCLIENTENCODING", "UTF8").env("PGAPPNAME", "saltcellar");
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let child = command.spawn().context("run psql (package postgresql-client)")?;
        let mut running = Running(child);
        let out = running.0.stdout.take().context("read from psql")?;
        let mut out = BufReader::with_capacity(1024 * 1024, out);
        let mut line = Vec::new();
        loop {
            line.clear();
            let count = out
                .by_ref()
                .take(JSON_LINE_BYTES_MAX)
                .read_until(b'\n', &mut line)
                .context("read from psql")?;
            if count == 0 {
                return running.end();
            }
            if line.pop() != Some(b'\n') {
                if count as u64 == JSON_LINE_BYTES_MAX {
                    bail!("read a row of psql: longer than {JSON_LINE_BYTES_MAX} bytes");
                }
                return running.end().and_then(|()| bail!("read from psql: output ends within a row"));
            }
            let columns: Option<Vec<String>> = line.split(|byte| *byte == b'\t').map(unescaped).collect();
            take(&columns.context("read a row of psql: invalid UTF-8")?)?;
        }
    }
}

/// A running `psql`, killed on drop.
struct Running(Child);

impl Running {
    fn end(&mut self) -> anyhow::Result<()> {
        let mut stderr = String::new();
        if let Some(pipe) = self.0.stderr.take() {
            pipe.take(16 * 1024).read_to_string(&mut stderr).context("read from psql")?;
        }
        let status = self.0.wait().context("wait for psql")?;
        if !status.success() {
            bail!("read the database: psql failed with {status}: {}", stderr.trim());
        }
        Ok(())
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // It has exited, or its output is no longer needed.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Decodes a column of `COPY`'s text format.
fn unescaped(column: &[u8]) -> Option<String> {
    if column == b"\\N" {
        return Some(String::new());
    }
    let mut out = Vec::with_capacity(column.len());
    let mut bytes = column.iter();
    while let Some(&byte) = bytes.next() {
        out.push(match byte {
            b'\\' => match bytes.next()? {
                b'n' => b'\n',
                b't' => b'\t',
                b'r' => b'\r',
                b'b' => 8,
                b'f' => 12,
                b'v' => 11,
                other => *other,
            },
            byte => byte,
        });
    }
    String::from_utf8(out).ok()
}

/// Whether a connection string contains a password in any form that libpq accepts. May have false positives.
fn holds_password(text: &str) -> bool {
    // As in libpq, the part of a URL before the first `@` or `/` is user and password.
    let login = text.split_once("://").and_then(|(_, rest)| {
        let end = rest.find(['@', '/'])?;
        rest.get(end..)?.starts_with('@').then(|| rest.get(..end))?
    });
    if login.and_then(|login| login.split_once(':')).is_some_and(|(_, password)| !password.is_empty()) {
        return true;
    }
    // `password = x` and `sslpassword=x` as words, or as URL parameters, in which any character may be escaped as `%70`.
    let decoded = percent_decoded(text).to_ascii_lowercase();
    decoded.match_indices("password").any(|(at, word)| {
        decoded.get(at + word.len()..).is_some_and(|rest| rest.trim_start().starts_with('='))
    })
}

fn percent_decoded(text: &str) -> String {
    let mut out = Vec::new();
    let mut rest = text.as_bytes();
    while let Some((&byte, after)) = rest.split_first() {
        let code = after.get(..2).and_then(|digits| std::str::from_utf8(digits).ok());
        let code = code.and_then(|digits| u8::from_str_radix(digits, 16).ok()).filter(|_| byte == b'%');
        out.push(code.unwrap_or(byte));
        rest = if code.is_some() { after.get(2..).unwrap_or_default() } else { after };
    }
    String::from_utf8_lossy(&out).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_forms_of_a_password_are_recognised() {
        for text in [
            "postgresql://salt:s%3Acret@db/salt?x=1",
            "postgres://:secret@db",
            "postgresql://salt@db/salt?password=secret",
            "postgresql://salt@db/salt?pass%77ord=secret",
            "host=db password=secret dbname=salt",
            "host=db password = 'sec ret' dbname=salt",
            "host=db sslpassword=secret",
        ] {
            assert!(holds_password(text), "{text}");
        }
        for text in [
            "postgresql://salt@db:5432/salt?options=-c%20x%3Dy",
            "postgresql://db:5432/a@b:c",
            "postgresql://salt:@db/salt",
            "host=db dbname=password user=salt",
            "host=db passfile=/root/.pgpass",
            "service=salt",
            "salt",
        ] {
            assert!(!holds_password(text), "{text}");
        }
    }

    #[test]
    fn columns_are_unescaped() {
        for (column, text) in [("a\\tb\\\\n", Some("a\tb\\n")), ("\\N", Some("")), ("x\\", None)] {
            assert_eq!(unescaped(column.as_bytes()).as_deref(), text, "{column}");
        }
    }

    #[test]
    fn tagged_json_of_the_database_is_not_interpreted() {
        let bytes = packed(r#"{"a": {"$bin": "AP8="}, "n": 1.50, "big": 18446744073709551615}"#).unwrap();
        let value = rmpv::decode::read_value(&mut bytes.as_slice()).unwrap();
        assert_eq!(value.to_string(), r#"{"a": {"$bin": "AP8="}, "n": 1.5, "big": 18446744073709551615}"#);
    }
}
