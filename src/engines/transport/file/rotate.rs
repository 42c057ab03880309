//! Rotation: the file gets the time as a suffix and is compressed; the oldest of such files are
//! removed.
//!
//! ```text
//! audit.jsonl                        the growing file
//! audit.jsonl.20261121T054728Z.zst   rotated at that time (UTC), compressed
//! ```

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::Deserialize;

use crate::base::clock::{Micros, micros};
use crate::config::{Invalid, within};
use crate::model::word;
use crate::store::vfs::{Fs, FsFile};

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct Rotation {
    /// Size from which on the file is rotated.
    #[serde(with = "word")]
    pub(super) bytes: Option<u64>,
    /// Length of a period: at its end, counted from 1970 UTC, the file is rotated.
    #[serde(with = "word")]
    pub(super) time: Option<Duration>,
    /// Number of rotated files; none for all.
    #[serde(with = "word")]
    keep: Option<u32>,
    compress: Compression,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Compression {
    #[default]
    None,
    Gzip,
    Zstd,
}

impl Compression {
    fn suffix(self) -> Option<&'static str> {
        match self {
            Self::None => None,
            Self::Gzip => Some(".gz"),
            Self::Zstd => Some(".zst"),
        }
    }
}

/// The number of the period at a time.
pub(super) fn period_of(length: Option<Duration>, at: Micros) -> i64 {
    length.map_or(0, |length| at.0.div_euclid(micros(length).max(1)))
}

impl Rotation {
    pub(super) fn check(&self) -> Result<(), Invalid> {
        within("rotate.bytes", &self.bytes.unwrap_or(1), 1..)?;
        within(
            "rotate.time",
            &self.time.unwrap_or(Duration::from_secs(60)),
            Duration::from_secs(60)..,
        )
    }

    /// Renames the file at `path`. What follows is up to [`Rotation::finish`].
    pub(super) fn rotate(fs: &dyn Fs, path: &Path, now: Micros) -> io::Result<()> {
        let stamp = now
            .utc()
            .map(|at| at.strftime("%Y%m%dT%H%M%SZ").to_string());
        let stamp = stamp.ok_or_else(|| io::Error::other("the clock is out of range"))?;

        let mut target = with_suffix(path, &format!(".{stamp}"));
        // Any form: a file that is compressed later must not meet one of the same time.
        let is_taken = |target: &Path| {
            [Compression::None, Compression::Gzip, Compression::Zstd]
                .iter()
                .any(|how| with_suffix(target, how.suffix().unwrap_or_default()).exists())
        };

        let mut n = 1;
        while is_taken(&target) {
            // Such a name sorts behind the plain stamp, compressed or not, and `finish` removes the
            // first names.
            target = with_suffix(path, &format!(".{stamp}_{n:04}"));
            n += 1;
        }
        fs.rename(path, &target)
    }

    /// Compresses rotated files that are not yet compressed, and removes the oldest beyond the
    /// limit. A file for which that fails keeps no other one back; the first error is returned.
    pub(super) fn finish(&self, fs: &dyn Fs, path: &Path) -> io::Result<()> {
        let mut result = Ok(());
        let mut note = |file: &Path, done: io::Result<()>| {
            let done = done
                .map_err(|why| io::Error::new(why.kind(), format!("{}: {why}", file.display())));
            if result.is_ok() {
                result = done;
            }
        };

        // Files of an interrupted rotation are compressed as well.
        if let Some(suffix) = self.compress.suffix() {
            for plain in rotated(path)?
                .into_iter()
                .filter(|name| name.extension().is_none_or(is_stamp))
            {
                note(
                    &plain,
                    self.compress(fs, &plain, &with_suffix(&plain, suffix)),
                );
            }
        }

        if let Some(keep) = self.keep {
            // Listed again, because compression has renamed files.
            let all = rotated(path)?;
            // The names sort by time.
            let surplus = all.len().saturating_sub(keep as usize);
            for old in all.iter().take(surplus) {
                note(old, fs.remove_file(old));
            }
        }

        result
    }

    fn compress(&self, fs: &dyn Fs, plain: &Path, target: &Path) -> io::Result<()> {
        // Replaced atomically, and the plain file removed only afterwards: a crash leaves at least
        // one whole copy.
        fs.replace(
            target,
            Box::new(|file| {
                let mut out = At { file, offset: 0 };
                let mut input = File::open(plain)?;
                if self.compress == Compression::Gzip {
                    let mut encoder =
                        flate2::write::GzEncoder::new(out, flate2::Compression::default());
                    io::copy(&mut input, &mut encoder)?;
                    encoder.finish().map(drop)
                } else {
                    // The default level of zstd. Higher levels cost much processor time for a few
                    // percent.
                    zstd::stream::copy_encode(input, &mut out, 3)
                }
            }),
        )?;

        fs.remove_file(plain)
    }
}

/// Writes one after the other into a file.
struct At<'a> {
    file: &'a dyn FsFile,
    offset: u64,
}

impl io::Write for At<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.file.write_all_at(bytes, self.offset)?;
        self.offset += bytes.len() as u64;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    PathBuf::from(name)
}

/// True if this is the time of a rotation: `20261121T054728Z`, or that and a number.
fn is_stamp(text: &std::ffi::OsStr) -> bool {
    let Some((time, number)) = text.to_str().and_then(|text| text.split_once('Z')) else {
        return false;
    };
    let digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    time.len() == 15
        && time
            .split_once('T')
            .is_some_and(|(date, time)| date.len() == 8 && digits(date) && digits(time))
        && (number.is_empty() || number.strip_prefix('_').is_some_and(digits))
}

/// The rotated files of a path, oldest first.
fn rotated(path: &Path) -> io::Result<Vec<PathBuf>> {
    let (Some(dir), Some(name)) = (path.parent(), path.file_name()) else {
        return Ok(Vec::new());
    };

    let mut found = Vec::new();
    for entry in std::fs::read_dir(dir)? {
        let entry = entry?.file_name();
        let rest = entry
            .to_str()
            .zip(name.to_str())
            .and_then(|(entry, name)| entry.strip_prefix(name)?.strip_prefix('.'));
        let stamp = rest.map(|rest| rest.split('.').next().unwrap_or_default());
        // An interrupted compression leaves a temporary file.
        let is_whole = rest.is_some_and(|rest| rest.strip_suffix(".tmp").is_none());
        if is_whole && stamp.is_some_and(|stamp| is_stamp(stamp.as_ref())) {
            found.push(dir.join(entry));
        }
    }

    found.sort();
    Ok(found)
}
