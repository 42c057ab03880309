//! A check of a spill's files, which changes nothing.

use std::path::Path;

use super::file::{READ, WAITING, first_of};
use super::log::{Scan, id, scan};
use crate::store::StoreError;
use crate::store::tools::verify::small_files::Fault;
use crate::store::vfs::Disk;

/// What is wrong with a file in the directory of a bus, of the store with this id.
pub(crate) fn faults(path: &Path, store_id: u64) -> Vec<Fault> {
    let ending = path.extension().and_then(|ending| ending.to_str());

    // Other files are not delivered: two contain no events, and damaged files are already known.
    if !matches!(ending, Some(WAITING | READ)) {
        return Vec::new();
    }
    let Some(first) = first_of(path) else {
        return vec![Fault::of_file("not a name of a spill file")];
    };

    let scan = match scan(&Disk, path, id(store_id, first), true) {
        // It was delivered meanwhile.
        Err(StoreError::Io { why, .. }) if why.kind() == std::io::ErrorKind::NotFound => {
            return Vec::new();
        }
        Err(why) => return vec![Fault::of_file(why.to_string())],
        Ok(Scan::Foreign(why) | Scan::Unread(why)) => return vec![Fault::of_file(why)],
        // Files of a spill are not synced: a power loss can leave zero bytes.
        Ok(Scan::Blank) => {
            let what = "no event can be read: zero bytes, or an incomplete header";
            return vec![Fault::of_file(what)];
        }
        Ok(Scan::Log(scan)) => scan,
    };

    if scan.damaged.is_empty() {
        let torn = scan
            .torn
            .map(|_| Fault::unfinished("an incomplete last write"));
        return torn.into_iter().collect();
    }
    let what = format!("damaged: {} of its events can be read", scan.events);
    vec![Fault::of_file(what)]
}
