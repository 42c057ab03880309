//! Redaction of masters' keys in spill files, of events that were spilled before their key was known.

use std::io;
use std::path::Path;

use super::reader::{ReadStep, Reader};
use super::record::Header;
use crate::ingest::master_keys::MasterKeys;
use crate::model::Entry;
use crate::store::vfs::{Disk, Fs as _};

/// Searches all spill files below `spills`, and replaces those with a key if `write`. Returns the number of events
/// with a key. With `write` the daemon must not be running.
pub(crate) fn redact(spills: &Path, keys: &MasterKeys, write: bool) -> io::Result<u64> {
    let mut events = 0;
    for dir in list(spills)? {
        for path in list(&dir)? {
            if !path.is_file() {
                continue;
            }

            let (bytes, found) = redacted(&path, keys)?;
            events += found;
            if write && found > 0 {
                Disk.write_whole(&path, &bytes)?;
            }
        }
    }
    Ok(events)
}

fn list(dir: &Path) -> io::Result<Vec<std::path::PathBuf>> {
    match std::fs::read_dir(dir) {
        Err(error)
            if matches!(
                error.kind(),
                io::ErrorKind::NotFound | io::ErrorKind::NotADirectory
            ) =>
        {
            // The directory may not exist, and some of its items are files.
            Ok(Vec::new())
        }
        items => items?.map(|item| Ok(item?.path())).collect(),
    }
}

/// The file without keys, and the number of events with a key. Bytes outside of records are searched for known keys.
fn redacted(path: &Path, keys: &MasterKeys) -> io::Result<(Vec<u8>, u64)> {
    let bytes = std::fs::read(path)?;
    let Some(mut reader) = Reader::open(Disk.open(path)?, bytes.len() as u64, false)? else {
        // Not a spill file, or its header is lost. Known keys can still be searched for.
        let mut bytes = bytes;
        let found = keys.blank(&mut bytes) as u64;
        return Ok((bytes, found));
    };

    let header = Header::new(reader.header().first.unwrap_or_default());
    let (mut out, mut found) = (header.to_bytes(), 0);

    loop {
        match reader.step()? {
            ReadStep::Record(len) => {
                let Some(record) = reader.record(len) else {
                    break;
                };
                let entry = if record.gap {
                    record.gap_entry()
                } else {
                    record.event(record.unsure).entry
                };

                let cleaned = keys.clean(&entry).filter(|_| !record.gap);
                let entry = match &cleaned {
                    Some(cleaned) => cleaned.replaced.in_entry(Entry {
                        flags: cleaned.flags,
                        ..entry
                    }),
                    None => entry,
                };

                header.write_record((&mut out, 0), &entry, record.number, record.unsure)?;
                found += u64::from(cleaned.is_some());
                reader.pass(len);
            }
            ReadStep::Damage(len) => {
                let range = usize::try_from(reader.at() - len)
                    .ok()
                    .zip(usize::try_from(reader.at()).ok());

                let damaged = range
                    .and_then(|(from, to)| bytes.get(from..to))
                    .unwrap_or_default();

                let mut damaged = damaged.to_vec();
                found += keys.blank(&mut damaged) as u64;
                out.extend(damaged);
            }
            ReadStep::End => break,
        }
    }

    Ok((out, found))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::clock::Micros;
    use crate::model::{KeyTexts, Source};
    use crate::wire::msgpack::{Writer, as_text, get};
    use crate::wire::salt_event::read_event;

    #[test]
    fn keys_in_a_spill_are_replaced_and_the_records_stay_readable() {
        let key = "0123456789abcdef0123456789abcdef";
        let keys = MasterKeys::fixed(KeyTexts::new([key.as_bytes().to_vec()]));
        let event = |name: &str, value: &str| {
            let mut w = Writer::new();
            w.map(1).str(name).str(value);
            w.into_bytes()
        };
        let header = Header::new(7);
        let mut file = header.to_bytes();
        let events = [
            ("salt/reactors/manage/list", event("key", "another key")),
            ("a", event("text", key)),
            ("b", event("key", "no request")),
        ];
        for (n, (tag, data)) in (7..).zip(&events) {
            let entry = read_event(tag.as_bytes(), data, Source::Bus, Micros(1)).entry;
            header
                .write_record((&mut file, 0), &entry, n, n == 8)
                .unwrap();
        }
        file.extend_from_slice(format!("torn {key}").as_bytes());
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("bus/0001000000.spill");
        std::fs::create_dir(dir.path().join("bus")).unwrap();
        std::fs::write(&path, &file).unwrap();
        assert_eq!(redact(dir.path(), &keys, false).unwrap(), 3);
        assert_eq!(std::fs::read(&path).unwrap(), file, "unchanged");
        assert_eq!(redact(dir.path(), &keys, true).unwrap(), 3);
        assert_eq!(redact(dir.path(), &keys, false).unwrap(), 0);
        let file = std::fs::read(&path).unwrap();
        let mut reader = Reader::open(Disk.open(&path).unwrap(), file.len() as u64, false)
            .unwrap()
            .unwrap();
        let mut seen = Vec::new();
        while let ReadStep::Record(len) = reader.step().unwrap() {
            let record = reader.record(len).unwrap();
            let value = get(record.data, "key")
                .or(get(record.data, "text"))
                .and_then(as_text)
                .unwrap();
            seen.push((record.number, record.unsure, value.to_owned()));
            reader.pass(len);
        }
        let blank = format!("[redacted]{}", "*".repeat(22));
        let expected = [
            (7, false, "[redacted]"),
            (8, true, blank.as_str()),
            (9, false, "no request"),
        ];
        assert_eq!(
            seen,
            expected.map(|(n, unsure, text)| (n, unsure, text.to_owned()))
        );
        assert!(file.ends_with(format!("torn {blank}").as_bytes()));
    }
}
