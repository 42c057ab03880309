//! A check of a spill's files, which changes nothing.

use std::path::Path;

use super::reader::scan;
use crate::store::tools::verify::small_files::Fault;
use crate::store::vfs::{Disk, Fs as _};

/// What is wrong with a file in the directory of a bus.
pub(crate) fn faults(path: &Path) -> Vec<Fault> {
    let ending = path.extension().and_then(|ending| ending.to_str());

    // Other files are not delivered: two have no records, and damaged ones are known to be so.
    if !matches!(ending, Some("spill" | "read")) {
        return Vec::new();
    }

    let size = match std::fs::metadata(path) {
        Ok(meta) => meta.len(),
        // It was delivered meanwhile.
        Err(why) if why.kind() == std::io::ErrorKind::NotFound => return Vec::new(),
        Err(why) => return vec![Fault::of_file(why.to_string())],
    };

    match Disk.open(path).and_then(|file| scan(file, size)) {
        Err(why) => vec![Fault::of_file(why.to_string())],
        Ok(scan) if scan.damaged => {
            let what = format!("damaged: {} of its events can be read", scan.events);
            vec![Fault::of_file(what)]
        }
        // Files of a spill are not synced: a power loss can leave zero bytes.
        Ok(scan) if scan.end == 0 && size > 0 => {
            vec![Fault::of_file(
                "no event can be read: zero bytes, or an incomplete header",
            )]
        }
        Ok(scan) if scan.torn => vec![Fault::unfinished("an incomplete last record")],
        Ok(_) => Vec::new(),
    }
}
