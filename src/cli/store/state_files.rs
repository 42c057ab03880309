//! Checks of files in a state directory that modules above the store read, for `verify` and
//! `salvage`.

use std::path::Path;

use crate::api::sign_in::tokens;
use crate::engines::dead_letters;
use crate::ingest::spill;
use crate::model::SeqNo;
use crate::reactor::run::checkpoint::file as checkpoint;
use crate::store::tools::layout::{SINKS_DIR, SPILL_DIR, TOKENS_FILE};
use crate::store::tools::verify::small_files::Fault;

/// Checks a file by its name within the state directory; its path, its content and the store id
/// follow.
pub(super) fn check(name: &str, path: &Path, bytes: &[u8], store_id: u64) -> Vec<Fault> {
    match name.split('/').next().unwrap_or_default() {
        // Reading them as their owners do finds what their owners would reject.
        TOKENS_FILE => match tokens::parse(bytes) {
            Ok(_) => Vec::new(),
            Err(what) => vec![Fault::of_file(format!("no token is valid: {what}"))],
        },
        "REACTOR" => match checkpoint::parse(bytes, SeqNo(u64::MAX)) {
            Err(what) => vec![Fault::of_file(what)],
            Ok((_, 0)) => Vec::new(),
            // An interrupted write; the daemon reads the log instead.
            Ok((_, ignored)) => {
                let what =
                    format!("{ignored} bytes at the end are ignored, and the log is read instead");
                vec![Fault::unfinished(what)]
            }
        },
        SINKS_DIR => dead_letters::faults(bytes),
        SPILL_DIR => spill::faults(path, store_id),
        _ => Vec::new(),
    }
}
