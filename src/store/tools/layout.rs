//! What lies in a state directory, told by names alone.

use std::fs::File;
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};

use super::{ToolError, files};
use crate::model::{SeqNo, is_class_name};
use crate::store::frame::LogId;
use crate::store::medium::open_to_read;
use crate::store::rewrite::SEALED;
use crate::store::{StoreError, format};

/// Files directly in a state directory that are neither made from the log nor part of it.
pub const SMALL_FILES: [&str; 2] = ["FORMAT", "HOLDS"];

/// A segment, by the names of its files.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place {
    /// Its class.
    pub class_name: String,
    /// Its first sequence number.
    pub first_seq: SeqNo,
    /// Its directory.
    pub dir: PathBuf,
    /// Does it have an index, which only a finished segment has?
    pub is_sealed: bool,
    /// Is it the last one of its class?
    pub is_newest: bool,
}

impl Place {
    /// Its log.
    pub fn log(&self) -> PathBuf {
        self.dir.join("log")
    }

    /// Opens its log for reading; none if the segment was dropped since it was listed. A daemon may let a sealed segment take
    /// its place meanwhile (`rewrite`), with a moment at which it has the name `.sealed` alone. Afterwards `dir` is where the
    /// log was found.
    pub fn open_log(&mut self) -> Result<Option<File>, StoreError> {
        let place = self.dir.with_extension("");
        // Without the first name the second one is there, or has just become the first one: so this order misses nothing.
        for dir in [place.clone(), place.with_extension(SEALED), place] {
            let path = dir.join("log");
            match open_to_read(&path) {
                Err(e) if e.kind() == std::io::ErrorKind::NotFound => {}
                file => {
                    let file = file.map_err(crate::store::error::io_at("open", &path))?;
                    self.dir = dir;
                    return Ok(Some(file));
                }
            }
        }
        Ok(None)
    }

    /// Which log it is, in the store with this id.
    pub fn id(&self, store_id: u64) -> LogId {
        LogId { store_id, first_seq: self.first_seq }
    }

    /// As people name it.
    pub fn name(&self) -> String {
        format!("{}/{}", self.class_name, format::segment_name(self.first_seq))
    }

    /// Does it take entries, or would the next start let it?
    pub fn grows(&self) -> bool {
        self.is_newest && !self.is_sealed
    }
}

/// The store id that `FORMAT` names; an error if this is no store, or one that this release cannot read.
pub fn check_store(dir: &Path) -> Result<u64, ToolError> {
    let wanted = "store of saltcellar";
    let not = |why: &str| ToolError::NotOne { path: dir.to_owned(), wanted, why: why.to_owned() };
    if !dir.is_dir() {
        return Err(not(if dir.exists() { "it is no directory" } else { "there is no such directory" }));
    }
    let Some(text) = files::text(&dir.join("FORMAT"))? else {
        if dir.join("MANIFEST").is_file() {
            return Err(not("it is a backup; `saltcellar store restore` makes a store of it"));
        }
        if dir.join("log").is_dir() {
            return Err(not(
                "the file FORMAT is missing; `saltcellar store salvage` makes a store of what is there",
            ));
        }
        return Err(not("it has no file FORMAT"));
    };
    match format::read_format(&text) {
        Ok(store_id) => Ok(store_id),
        Err(found) if found.contains("damaged") => {
            Err(not("its file FORMAT is damaged; `saltcellar store salvage` makes a store of what is there"))
        }
        Err(found) => {
            let expected = format::FORMAT_VERSION;
            Err(StoreError::Version { path: dir.to_owned(), found, expected }.into())
        }
    }
}

/// Who holds the lock of a state directory, in the words of `LOCK`; nobody if none.
pub fn holder(dir: &Path) -> Result<Option<String>, StoreError> {
    let path = dir.join("LOCK");
    let file = match File::open(&path) {
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        file => file.map_err(crate::store::error::io_at("open", &path))?,
    };
    if flock(&file, FlockOperation::NonBlockingLockShared).is_ok() {
        return Ok(None);
    }
    let words = files::text(&path)?.unwrap_or_default();
    Ok(Some(if words.trim().is_empty() { "another process" } else { words.trim() }.to_owned()))
}

/// Every segment, by class and number. What is being swapped at the moment counts under its old name.
pub fn segments(dir: &Path) -> Result<Vec<Place>, StoreError> {
    // A daemon may rename directories meanwhile: what was seen twice alike was there.
    let mut before = list_segments(dir)?;
    for _ in 0..100 {
        let now = list_segments(dir)?;
        if now == before {
            break;
        }
        before = now;
    }
    Ok(before)
}

fn list_segments(dir: &Path) -> Result<Vec<Place>, StoreError> {
    let mut places = Vec::new();
    for class_name in format::class_names(dir)? {
        let mut of_class: Vec<Place> = Vec::new();
        for path in files::list(&format::class_dir(dir, &class_name))? {
            let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
            // `.sealed` is the whole segment, about to take the place of the other.
            let name = name.strip_suffix(SEALED).and_then(|name| name.strip_suffix('.')).unwrap_or(name);
            let Some(first_seq) = format::segment_seq(name) else {
                continue;
            };
            if of_class.last().is_some_and(|place| place.first_seq == first_seq)
                || !path.join("log").is_file()
            {
                continue;
            }
            let is_sealed = path.join("index").is_dir();
            of_class.push(Place {
                class_name: class_name.clone(),
                first_seq,
                dir: path,
                is_sealed,
                is_newest: false,
            });
        }
        if let Some(newest) = of_class.last_mut() {
            newest.is_newest = true;
        }
        places.append(&mut of_class);
    }
    Ok(places)
}

/// Directories of segments whose log is not there.
pub fn without_log(dir: &Path) -> Result<Vec<Place>, StoreError> {
    let mut found = Vec::new();
    for class_name in format::class_names(dir)? {
        for path in files::list(&format::class_dir(dir, &class_name))? {
            let first_seq = path.file_name().and_then(|name| format::segment_seq(name.to_str()?));
            let Some(first_seq) = first_seq.filter(|_| path.is_dir() && !path.join("log").is_file()) else {
                continue;
            };
            let is_sealed = path.join("index").is_dir();
            let class_name = class_name.clone();
            let mut place = Place { class_name, first_seq, dir: path, is_sealed, is_newest: false };
            // It may have been swapped, or dropped, between the two looks above.
            if place.open_log()?.is_none() && place.dir.is_dir() {
                found.push(place);
            }
        }
    }
    Ok(found)
}

/// Files and directories under a state directory that no release puts there.
pub fn foreign(dir: &Path) -> Result<Vec<PathBuf>, StoreError> {
    let known = |path: &PathBuf| {
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        let known = [
            "FORMAT",
            "LOCK",
            "SEQUENCE",
            "HOLDS",
            "REACTOR",
            "CLOCK",
            "state",
            "log",
            "trash",
            "spill",
            "state.damaged",
        ];
        known.contains(&name) || Path::new(name).extension().is_some_and(|end| end == "tmp")
    };
    let mut found: Vec<PathBuf> = files::list(dir)?.into_iter().filter(|path| !known(path)).collect();
    for class_dir in files::list(&dir.join("log"))? {
        let name = class_dir.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        if !class_dir.is_dir() || !is_class_name(name) {
            found.push(class_dir);
            continue;
        }
        for segment in files::list(&class_dir)? {
            let name = segment.file_name().and_then(|name| name.to_str()).unwrap_or_default();
            if format::segment_seq(name.split('.').next().unwrap_or_default()).is_none() {
                found.push(segment);
                continue;
            }
            let is_known = |path: &PathBuf| {
                let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
                matches!(name, "log" | "index" | "log.tmp" | "index.tmp") || name.starts_with("log.cut-")
            };
            found.extend(files::list(&segment)?.into_iter().filter(|path| !is_known(path)));
        }
    }
    Ok(found)
}
