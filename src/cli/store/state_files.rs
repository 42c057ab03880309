//! Checks of files in a state directory that modules above the store read, for `verify` and
//! `salvage`.

use std::path::Path;

use crate::ingest::spill;
use crate::store::tools::layout::SPILL_DIR;
use crate::store::tools::verify::small_files::Fault;

/// Checks a file by its name within the state directory; its path, its content and the store id
/// follow.
pub(super) fn check(name: &str, path: &Path, _: &[u8], store_id: u64) -> Vec<Fault> {
    match name.split('/').next().unwrap_or_default() {
        SPILL_DIR => spill::faults(path, store_id),
        _ => Vec::new(),
    }
}
