//! `saltcellar status`: shows the state of the daemon.

use serde_json::Value as Json;

use crate::base::clock::Micros;
use crate::cli::format::fields::Fields as _;
use crate::cli::format::nested::leaf;
use crate::cli::format::output::{Output, show};
use crate::cli::format::table::{Column, Table};
use crate::cli::{Global, ask};

pub(in crate::cli) const EXAMPLES: &str = "\
Examples:
  saltcellar status
  saltcellar status --output json | jq .counters";

pub(in crate::cli) fn run(global: &Global) -> anyhow::Result<()> {
    let status = ask::answer(global, "status", (), "query the status")?;
    show(global.output, &status, |out| table(out, &status))
}

fn table(out: &mut Output, status: &Json) -> anyhow::Result<()> {
    for name in ["version", "pid", "uptime_s", "state_dir", "socket", "head", "durable"] {
        out.line(&format!("{name:<10} {}", status.leaf(name)))?;
    }
    let https = status.of("https");
    if !https.is_null() {
        let [listen, state, peers] = ["listen", "state", "peers"].map(|name| https.leaf(name));
        let until = https.of("certificate_until").as_i64().map(|at| Micros(at).iso());
        let until = until.unwrap_or_else(|| "unknown".to_owned());
        out.line(&format!("https      {listen}, {state}, {peers} connections, certificate until {until}"))?;
    }
    list(
        out,
        status.list("bus"),
        &[
            ("path", Column::left("BUS")),
            ("connected", Column::left("CONNECTED")),
            ("framing", Column::left("FRAMING")),
            ("events", Column::right("EVENTS")),
            ("waiting_events", Column::right("WAITING")),
            ("spilled_events", Column::right("SPILLED")),
            ("spilled_bytes", Column::right("SPILL BYTES")),
            ("lost", Column::right("LOST")),
            ("gaps", Column::right("GAPS")),
        ],
    )?;
    list(
        out,
        status.list("rules"),
        &[
            ("name", Column::left("RULE")),
            ("list", Column::left("LIST")),
            ("entries", Column::right("ENTRIES")),
            ("filtered", Column::right("FILTERED")),
        ],
    )?;
    list(
        out,
        status.list("zeromq"),
        &[
            ("source", Column::left("ZEROMQ")),
            ("path", Column::left("PATH")),
            ("process", Column::right("PROCESS")),
            ("restarts", Column::right("RESTARTS")),
        ],
    )?;
    list(
        out,
        status.list("classes"),
        &[
            ("class", Column::left("CLASS")),
            ("segments", Column::right("SEGMENTS")),
            ("entries", Column::right("ENTRIES")),
            ("disk_bytes", Column::right("DISK BYTES")),
            ("raw_bytes", Column::right("RAW BYTES")),
        ],
    )?;
    list(
        out,
        status.list("spools"),
        &[
            ("dir", Column::left("SPOOL")),
            ("waiting_bytes", Column::right("WAITING BYTES")),
            ("dead_letter_bytes", Column::right("DEAD-LETTERED BYTES")),
            ("problem", Column::left("PROBLEM")),
        ],
    )?;
    let counters = status.of("counters").as_object().into_iter().flatten();
    let rows: Vec<_> = counters.map(|(name, value)| vec![name.clone(), leaf(value)]).collect();
    if !rows.is_empty() {
        out.line("")?;
        Table::new([Column::left("COUNTER"), Column::right("VALUE")]).print(out, &rows)?;
    }
    Ok(())
}

/// A table of the fields of `rows`; nothing without rows.
fn list(out: &mut Output, rows: &[Json], columns: &[(&str, Column)]) -> anyhow::Result<()> {
    if rows.is_empty() {
        return Ok(());
    }
    let cells = |row: &Json| columns.iter().map(|(field, _)| row.leaf(field)).collect();
    out.line("")?;
    let mut table = Table::new(columns.iter().map(|(_, column)| *column).collect::<Vec<_>>());
    Ok(table.print(out, &rows.iter().map(cells).collect::<Vec<_>>())?)
}
