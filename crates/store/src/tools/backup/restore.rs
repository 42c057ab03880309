//! `restore`: creates a store from a backup.
//!
//! Its sequence numbers continue far behind the backup's numbers (`renumber`). The reactor's
//! checkpoint is not restored: events of the backup are old, and must not cause reactions again.

use std::fs::File;
use std::path::Path;
use std::sync::Arc;

use super::manifest::{Manifest, SmallFile};
use crate::error::io_at;
use crate::settings::{Place, Settings};
use crate::skipped::SkippedNumbers;
use crate::tools::renumber::Renumbering;
use crate::tools::{ToolError, Watch, files};
use crate::vfs::Disk;
use crate::{StoreError, format};
use saltcellar_base::clock::{Clock, Micros};
use saltcellar_base::limits::SETTINGS_GROWTH;
use saltcellar_model::SeqNo;

/// What was restored.
#[derive(Debug)]
pub struct RestoreReport {
    /// Number of segments.
    pub segments: u64,
    /// Bytes of logs.
    pub bytes: u64,
    /// Time of the backup, microseconds since 1970.
    pub made: i64,
    /// The sequence numbers that the new store leaves out.
    pub skipped: SkippedNumbers,
}

/// Restores a backup into an empty directory, and verifies its files against the manifest.
pub fn restore(
    from: &Path,
    to: &Path,
    now: Micros,
    watch: &mut dyn Watch,
) -> Result<RestoreReport, ToolError> {
    let to = &std::path::absolute(to).map_err(io_at("find", to))?;
    let not = |why: &str| ToolError::NotOne {
        path: from.to_owned(),
        wanted: "backup",
        why: why.to_owned(),
    };

    if !from.is_dir() {
        return Err(not(if from.exists() {
            "not a directory; name the directory of a backup"
        } else {
            "no such directory; name the directory of a backup"
        }));
    }

    let Some(manifest) = Manifest::read(from)? else {
        // Most likely a copied store directory, which needs no restore.
        let why = if from.join("FORMAT").is_file() {
            "it is a store; stop its daemon and copy the directory, or create a backup of it"
        } else {
            "it contains no MANIFEST: no backup was ever completed there; make one with `saltcellar store backup`, or name another directory"
        };
        return Err(not(why));
    };

    if manifest.store_format != crate::FORMAT_VERSION {
        // Logs are copied as they are, so another format would not become readable.
        let found = manifest.store_format.to_string();
        let expected = crate::FORMAT_VERSION;
        return Err(StoreError::Version {
            path: from.to_owned(),
            found,
            expected,
        }
        .into());
    }
    files::check_disjoint(from, to)?;

    // The greater one counts: the manifest of a store without `SEQUENCE` contains no number.
    let used = SeqNo(manifest.sequence).max(manifest.last_seq().next());
    let renumbering = Renumbering::new("restore", used, Micros(manifest.made), now)?;
    // Check that all files exist before writing any.
    for (file, bytes) in named(&manifest) {
        let path = from.join(file);
        let found = std::fs::metadata(&path)
            .map_err(io_at("read the metadata of", &path))?
            .len();
        if found < bytes {
            let what = format!(
                "{found} bytes, expected {bytes} by the manifest: the file is damaged. {SALVAGE}"
            );
            return Err(ToolError::Damaged { path, what });
        }
    }

    let total = manifest.logs.iter().map(|log| log.bytes).sum();
    files::check_free_space(to, total)?;
    // Created last: all checks above leave the target untouched.
    files::make_empty(to)?;

    let mut done = 0;
    for log in &manifest.logs {
        let source = from.join(&log.file);
        let dir =
            format::class_dir(to, &log.class_name).join(format::generation_name(log.first_seq, 0));
        files::make_dir(&dir)?;

        let file = File::open(&source).map_err(io_at("open", &source))?;
        let target = dir.join("log");
        let out = File::create_new(&target).map_err(io_at("create", &target))?;
        let hash = files::copy(&file, &source, out, &target, log.bytes, |bytes| {
            done += bytes;
            watch.step(done, total, &log.file);
        })?;
        // After the copy, because reading a large file twice would take twice as long. A damaged
        // one fails the restore before the directory is a store.
        check(&source, hash, log.hash)?;
        files::sync_dir(&dir)?;
    }

    let (last, others): (Vec<_>, Vec<_>) = manifest
        .smalls
        .iter()
        .partition(|small| small.name == "FORMAT");
    // FORMAT last: it makes the directory a store.
    for small in others {
        let bytes = checked(from, small)?;
        files::write_small(&to.join(&small.name), &bytes)?;
    }

    let store_format = last
        .first()
        .ok_or_else(|| not("it contains no copy of FORMAT"))?;
    let text = checked(from, store_format)?;
    let store_id = format::read_format(&String::from_utf8_lossy(&text)).map_err(|found| {
        let path = from.join(&store_format.file);
        let (format::NoStoreId::Damaged(what) | format::NoStoreId::OtherVersion(what)) = found;
        ToolError::Damaged { path, what }
    })?;

    settings_of_backup(to, store_id, now)?;

    // Also before FORMAT: a store without its numbers would reassign the backup's numbers.
    renumbering.write(to, store_id, &manifest.skipped)?;
    files::write_small(&to.join(&store_format.name), &text)?;
    files::inherit_owner(to)?;

    Ok(RestoreReport {
        segments: manifest.logs.len() as u64,
        bytes: total,
        made: manifest.made,
        skipped: renumbering.skipped,
    })
}

/// Removes settings that are true at the time of the backup only, and replaces copies of the settings
/// that a daemon was writing to.
fn settings_of_backup(to: &Path, store_id: u64, now: Micros) -> Result<(), StoreError> {
    let place = Place {
        state_dir: to,
        store_id,
        position: None,
        is_new: false,
        growth: SETTINGS_GROWTH,
    };
    let settings = Settings::open(Arc::new(Disk), place, Clock::manual(now))?;
    settings.forget_the_moment()
}

fn named(manifest: &Manifest) -> impl Iterator<Item = (&str, u64)> {
    let logs = manifest
        .logs
        .iter()
        .map(|log| (log.file.as_str(), log.bytes));
    logs.chain(
        manifest
            .smalls
            .iter()
            .map(|small| (small.file.as_str(), small.bytes)),
    )
}

/// The content of a small file of the backup.
fn checked(from: &Path, small: &SmallFile) -> Result<Vec<u8>, ToolError> {
    let source = from.join(&small.file);
    // A missing file is empty, and fails the checksum.
    let bytes = format::read_small(&Disk, &source)?
        .unwrap_or_default()
        .bytes;
    check(&source, xxhash_rust::xxh3::xxh3_128(&bytes), small.hash)?;
    Ok(bytes)
}

/// The way onward with a damaged backup.
const SALVAGE: &str = "`saltcellar store salvage` copies the readable entries of the backup's directory to a new store";

fn check(path: &Path, found: files::Hash, expected: files::Hash) -> Result<(), ToolError> {
    if found == expected {
        return Ok(());
    }
    Err(ToolError::Damaged {
        path: path.to_owned(),
        what: format!("checksum mismatch: the file is damaged. {SALVAGE}"),
    })
}
