//! `saltcellar version`: prints the versions of the program and its formats.

use serde_json::{Map, Value as Json, json};

use crate::cli::{Global, show};

/// Versions of the formats that other programs or other releases read.
const FORMATS: &[(&str, u32)] = &[
    ("store", crate::store::FORMAT_VERSION),
    ("wire", crate::wire::call::VERSION as u32),
];

pub(in crate::cli) fn run(global: &Global) -> anyhow::Result<()> {
    let version = env!("CARGO_PKG_VERSION");

    let formats: Map<_, _> = FORMATS
        .iter()
        .map(|(name, format)| ((*name).to_owned(), Json::from(*format)))
        .collect();

    show(
        global.output,
        &json!({ "version": version, "formats": formats }),
        |out| {
            out.line(&format!("saltcellar {version}"))?;
            Ok(FORMATS
                .iter()
                .try_for_each(|(name, format)| out.line(&format!("{name} format {format}")))?)
        },
    )
}
