//! `saltcellar status`: shows the state of the daemon.

use anyhow::Context;
use serde_json::Value as Json;

use crate::cli::format::nested::leaf;
use crate::cli::format::output::{Format, Output, OutputError};
use crate::cli::format::table::{Column, Table};
use crate::cli::{Global, ask};
use crate::clock::Micros;

pub(in crate::cli) const EXAMPLES: &str = "\
Examples:
  saltcellar status
  saltcellar status --output json | jq .counters";

pub(in crate::cli) fn run(global: &Global) -> anyhow::Result<()> {
    let mut client = ask::connect(global)?;
    let status = ask::call(&mut client, "status", []).context("query the status")?;
    let mut out = Output::new(global.output);
    match out.format {
        Format::Table => table(&mut out, &status)?,
        Format::Json | Format::Jsonl => out.json(&status)?,
    }
    Ok(out.flush()?)
}

fn table(out: &mut Output, status: &Json) -> Result<(), OutputError> {
    for name in ["version", "pid", "uptime_s", "state_dir", "socket", "head", "durable"] {
        out.line(&format!("{name:<10} {}", cell(status, name)))?;
    }
    if let Some(https) = status.get("https").filter(|https| !https.is_null()) {
        let [listen, state, peers] = ["listen", "state", "peers"].map(|name| cell(https, name));
        let until = https.get("certificate_until").and_then(Json::as_i64).map(|at| Micros(at).iso());
        let until = until.unwrap_or_else(|| "unknown".to_owned());
        out.line(&format!("https      {listen}, {state}, {peers} connections, certificate until {until}"))?;
    }
    list(
        out,
        status,
        "bus",
        [
            "path",
            "connected",
            "framing",
            "events",
            "waiting_events",
            "spilled_events",
            "spilled_bytes",
            "lost",
            "gaps",
        ],
        [
            Column::left("BUS"),
            Column::left("CONNECTED"),
            Column::left("FRAMING"),
            Column::right("EVENTS"),
            Column::right("WAITING"),
            Column::right("SPILLED"),
            Column::right("SPILL BYTES"),
            Column::right("LOST"),
            Column::right("GAPS"),
        ],
    )?;
    list(
        out,
        status,
        "rules",
        ["name", "list", "entries", "filtered"],
        [Column::left("RULE"), Column::left("LIST"), Column::right("ENTRIES"), Column::right("FILTERED")],
    )?;
    list(
        out,
        status,
        "zeromq",
        ["source", "path", "peers", "events", "dropped"],
        [
            Column::left("ZEROMQ"),
            Column::left("PATH"),
            Column::right("PEERS"),
            Column::right("EVENTS"),
            Column::right("DROPPED"),
        ],
    )?;
    list(
        out,
        status,
        "classes",
        ["class", "segments", "entries", "disk_bytes", "raw_bytes"],
        [
            Column::left("CLASS"),
            Column::right("SEGMENTS"),
            Column::right("ENTRIES"),
            Column::right("DISK BYTES"),
            Column::right("RAW BYTES"),
        ],
    )?;
    list(
        out,
        status,
        "spools",
        ["dir", "waiting_bytes", "dead_letter_bytes", "problem"],
        [
            Column::left("SPOOL"),
            Column::right("WAITING BYTES"),
            Column::right("DEAD-LETTERED BYTES"),
            Column::left("PROBLEM"),
        ],
    )?;
    if let Some(counters) = status.get("counters").and_then(Json::as_object).filter(|c| !c.is_empty()) {
        out.line("")?;
        let rows: Vec<_> = counters.iter().map(|(name, value)| vec![name.clone(), leaf(value)]).collect();
        Table::new([Column::left("COUNTER"), Column::right("VALUE")]).print(out, &rows)?;
    }
    Ok(())
}

fn list<const N: usize>(
    out: &mut Output,
    status: &Json,
    name: &str,
    fields: [&str; N],
    columns: [Column; N],
) -> Result<(), OutputError> {
    let Some(rows) = status.get(name).and_then(Json::as_array).filter(|rows| !rows.is_empty()) else {
        return Ok(());
    };
    let rows: Vec<_> = rows.iter().map(|row| fields.map(|field| cell(row, field)).to_vec()).collect();
    out.line("")?;
    Table::new(columns).print(out, &rows)
}

fn cell(row: &Json, field: &str) -> String {
    row.get(field).map(leaf).unwrap_or_default()
}
