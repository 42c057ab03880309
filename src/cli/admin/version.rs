//! `saltcellar version`: prints the versions of the program and its formats.

use serde_json::{Map, Value as Json, json};

use crate::cli::Global;
use crate::cli::format::output::{Format, Output};

/// Versions of the formats that other programs or other releases read.
const FORMATS: &[(&str, u32)] =
    &[("store", crate::store::FORMAT_VERSION), ("wire", crate::wire::call::VERSION as u32)];

pub(in crate::cli) fn run(global: &Global) -> anyhow::Result<()> {
    let version = env!("CARGO_PKG_VERSION");
    let mut out = Output::new(global.output);
    match out.format {
        Format::Table => {
            out.line(&format!("saltcellar {version}"))?;
            for (name, format) in FORMATS {
                out.line(&format!("{name} format {format}"))?;
            }
        }
        Format::Json | Format::Jsonl => {
            let formats: Map<_, _> =
                FORMATS.iter().map(|(name, format)| ((*name).to_owned(), Json::from(*format))).collect();
            out.json(&json!({ "version": version, "formats": formats }))?;
        }
    }
    Ok(out.flush()?)
}
