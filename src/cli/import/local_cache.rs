//! Import of the tree of Salt's job cache, `salt/returners/local_cache.py`.
//!
//! ```text
//! jobs/<2 digits of the jid's hash>/<the other digits>/
//!     jid                    the jid, as text
//!     .load.p                the load, msgpack
//!     .minions.p             minions expected, msgpack
//!     .minions.<syndic>.p    minions that a syndic reported
//!     <minion>/return.p      {"return", "retcode", "success"}; before 2015 the bare return
//!     <minion>/out.p         name of an outputter
//!     endtime                text
//!     nocache                empty, optional
//! ```
//!
//! Jobs are imported in the order of their jids. Segments then cover short time ranges, and
//! retention drops the oldest first. To bound memory, each walk over the tree collects only the
//! next [`IMPORT_JOBS_SORTED`] jobs.
//!
//! The time of a load is the time of its jid. The time of all other items is the time of their
//! file. The tree may be in use: jobs deleted meanwhile are skipped.

use std::collections::BinaryHeap;
use std::fs;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

use anyhow::bail;

use super::feed::Feed;
use super::item::{ImportItem, Payload};
use crate::base::limits::{ENTRY_BYTES_MAX, IMPORT_JOBS_SORTED, NAME_BYTES_MAX, RMPV_DEPTH_MAX};
use crate::model::{JidKey, Kind};
use crate::store::tools::Watch;
use crate::wire::msgpack::{self, Reader, Writer};
use crate::wire::salt_event::peek;

/// A job, and its path below the root.
type FoundJob = (JidKey, Box<Path>);

/// Imports the tree at `dir` and returns the number of jobs.
pub(super) fn import(
    feed: &mut Feed,
    dir: &Path,
    since: Option<i64>,
    watch: &mut dyn Watch,
) -> anyhow::Result<u64> {
    let root = root(dir)?;

    let mut done = 0;
    let mut total = None;

    let mut walk = Walk {
        root: &root,
        since,
        jobs_max: IMPORT_JOBS_SORTED,
        after: None,
    };

    loop {
        let JobChunk { jobs, all, more } = walk.next(watch, &mut |path, why| {
            feed.skip(&path.display().to_string(), why);
        })?;
        // Later walks count only the jobs that are left.
        let total = *total.get_or_insert(all);

        for (key, place) in jobs {
            let path = root.join(place);

            // The key contains jids of Salt's form; any other jid is reread.
            let jid = match key.text() {
                Some(jid) => Some(jid),
                None => jid_of(&path).unwrap_or_else(|why| {
                    feed.skip(&path.display().to_string(), &why);
                    None
                }),
            };

            if let Some(jid) = jid {
                watch.step(done, total, &jid);
                Reading {
                    feed,
                    jid: &jid,
                    started: key.time().map(|at| at.0),
                    fun: None,
                }
                .read(&path)?;
                done += 1;
            }
        }

        if !more {
            break;
        }
    }

    feed.finish()?;
    Ok(done)
}

/// `dir`, or its subdirectory `jobs` if that is the tree.
fn root(dir: &Path) -> anyhow::Result<PathBuf> {
    let has_tops = |dir: &Path| -> io::Result<bool> {
        Ok(fs::read_dir(dir)?
            .any(|item| item.is_ok_and(|item| is_top(&item.file_name().to_string_lossy()))))
    };

    if has_tops(dir).map_err(|error| unread(dir, error))? {
        return Ok(dir.to_owned());
    }

    let below = dir.join("jobs");
    if below.is_dir() {
        return Ok(below);
    }

    // An empty directory is a cache without jobs.
    let mut all = fs::read_dir(dir).map_err(|error| unread(dir, error))?;
    if all.next().is_some() {
        bail!(
            "find Salt's job cache in {}: no directories named by two hexadecimal digits; the default is \
             /var/cache/salt/master/jobs, see the master's option cachedir",
            dir.display()
        );
    }

    Ok(dir.to_owned())
}

/// The error for a directory that cannot be read, with what helps.
fn unread(dir: &Path, error: io::Error) -> anyhow::Error {
    let remedy = match error.kind() {
        io::ErrorKind::PermissionDenied => ", run the import as root or the user of salt-master",
        io::ErrorKind::NotFound => ", see the master's option cachedir",
        _ => "",
    };
    anyhow::Error::new(error).context(format!("read {}{remedy}", dir.display()))
}

fn is_top(name: &str) -> bool {
    name.len() == 2 && name.bytes().all(|byte| byte.is_ascii_hexdigit())
}

/// Paths of a directory's entries, sorted; empty if it does not exist.
fn list(dir: &Path) -> io::Result<Vec<PathBuf>> {
    let mut found = match fs::read_dir(dir) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        items => items?
            .map(|item| item.map(|item| item.path()))
            .collect::<io::Result<Vec<_>>>()?,
    };
    found.sort();
    Ok(found)
}

/// Iterates over the jobs of the tree in the order of their jids, in parts.
struct Walk<'a> {
    root: &'a Path,
    /// Only jobs started since this time.
    since: Option<i64>,
    /// Maximum number of jobs in a part.
    jobs_max: usize,
    /// The last job of the previous part.
    after: Option<FoundJob>,
}

struct JobChunk {
    jobs: Vec<FoundJob>,
    /// Number of jobs after the previous part.
    all: u64,
    /// Whether another part follows.
    more: bool,
}

impl Walk<'_> {
    /// Calls `skip` for entries that are not jobs, only in the first part.
    fn next(
        &mut self,
        watch: &mut dyn Watch,
        skip: &mut dyn FnMut(&Path, &str),
    ) -> anyhow::Result<JobChunk> {
        // Later walks would report the same entries again.
        let first = self.after.is_none();
        let mut skip = |path: &Path, why: &str| {
            if first {
                skip(path, why);
            }
        };

        // The largest is at the top.
        let mut jobs: BinaryHeap<FoundJob> = BinaryHeap::new();
        let mut all = 0;

        for top in list(self.root).map_err(|error| unread(self.root, error))? {
            let name = top
                .file_name()
                .unwrap_or_default()
                .to_string_lossy()
                .into_owned();

            if !is_top(&name) {
                // Hidden directories include the scratch directory of an interrupted export.
                if !name.starts_with('.') {
                    skip(&top, "not a part of a job cache");
                }
                continue;
            }

            watch.step(0, 0, &format!("looking for jobs: {all} so far"));

            let dirs = match list(&top) {
                Ok(dirs) => dirs,
                Err(error) => {
                    skip(&top, &error.to_string());
                    continue;
                }
            };

            for dir in dirs {
                match jid_of(&dir) {
                    Ok(Some(jid)) => {
                        let place = dir.strip_prefix(self.root).unwrap_or(&dir);
                        let job = (JidKey::of(&jid), place.into());
                        if self.includes(&job) {
                            all += 1;
                            jobs.push(job);
                        }
                        // Only the lowest jids are kept, which bounds the memory.
                        if jobs.len() > self.jobs_max {
                            jobs.pop();
                        }
                    }
                    Ok(None) => {}
                    Err(why) => skip(&dir, &why),
                }
            }
        }

        let more = all > jobs.len() as u64;
        let jobs = jobs.into_sorted_vec();
        // A part without jobs is the last one.
        self.after = jobs.last().cloned().or(self.after.take());

        Ok(JobChunk { jobs, all, more })
    }

    fn includes(&self, job: &FoundJob) -> bool {
        job.0
            .time()
            .is_none_or(|at| self.since.is_none_or(|since| at.0 >= since))
            && self.after.as_ref().is_none_or(|after| job > after)
    }
}

/// The jid of a job's directory; `None` if it is empty.
fn jid_of(dir: &Path) -> Result<Option<String>, String> {
    // This file is short, and a load may be large. The load is read only without it.
    let text = match read(&dir.join("jid"), NAME_BYTES_MAX)? {
        Some(text) => {
            Some(String::from_utf8(text).map_err(|_| "the jid is not a string".to_owned())?)
        }
        None => None,
    };

    if let Some(jid) = text
        .map(|jid| jid.trim().to_owned())
        .filter(|jid| !jid.is_empty())
    {
        return Ok(Some(jid));
    }

    // The load also names its job.
    if let Some(load) = read(&dir.join(".load.p"), ENTRY_BYTES_MAX)? {
        let jid = msgpack::get(&load, "jid")
            .and_then(msgpack::as_text)
            .filter(|jid| !jid.is_empty());
        return jid
            .map(|jid| Some(jid.to_owned()))
            .ok_or_else(|| "neither `jid` nor `.load.p` contains a jid".to_owned());
    }

    match list(dir) {
        Ok(items) if items.is_empty() => Ok(None),
        Ok(_) => Err("a job without `jid` and without `.load.p`".to_owned()),
        Err(error) => Err(error.to_string()),
    }
}

/// A file's bytes; `None` if it does not exist.
fn read(path: &Path, bytes_max: usize) -> Result<Option<Vec<u8>>, String> {
    // Checked before it is opened: a named pipe would wait for a writer.
    let meta = match fs::metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        meta => meta.map_err(|error| error.to_string())?,
    };

    if !meta.is_file() {
        return Err("not a file".to_owned());
    }

    let file = match fs::File::open(path) {
        // Deleted since: the tree may be in use.
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        file => file.map_err(|error| error.to_string())?,
    };

    let mut bytes = Vec::new();
    // One byte beyond the limit shows that there are more.
    file.take(bytes_max as u64 + 1)
        .read_to_end(&mut bytes)
        .map_err(|error| error.to_string())?;

    if bytes.len() > bytes_max {
        return Err(format!("more than {bytes_max} bytes"));
    }

    Ok(Some(bytes))
}

/// A file's one msgpack value.
fn read_value(path: &Path) -> Result<Option<Vec<u8>>, String> {
    let Some(bytes) = read(path, ENTRY_BYTES_MAX)? else {
        return Ok(None);
    };

    match Reader::new(&bytes).value() {
        _ if bytes.is_empty() => Err("empty: Salt was stopped during the write".to_owned()),
        Ok(value) if value.len() < bytes.len() => Err("trailing bytes after the value".to_owned()),
        Ok(_) => {
            // Values nested too deeply could not be reread.
            match rmpv::decode::read_value_with_max_depth(&mut bytes.as_slice(), RMPV_DEPTH_MAX) {
                Ok(_) => Ok(Some(bytes)),
                Err(error) => Err(error.to_string()),
            }
        }
        Err(error) => Err(error.to_string()),
    }
}

fn mtime(path: &Path) -> Option<i64> {
    let at = fs::metadata(path).and_then(|meta| meta.modified()).ok()?;
    i64::try_from(at.duration_since(UNIX_EPOCH).ok()?.as_micros()).ok()
}

struct Reading<'a> {
    feed: &'a mut Feed,
    jid: &'a str,
    /// The job's start time according to its jid.
    started: Option<i64>,
    /// The function according to the load, because returns in the cache lack it.
    fun: Option<String>,
}

impl Reading<'_> {
    fn read(&mut self, dir: &Path) -> anyhow::Result<()> {
        let items = match list(dir) {
            Ok(items) => items,
            Err(error) => {
                self.feed
                    .skip(&dir.display().to_string(), &error.to_string());
                return Ok(());
            }
        };

        let name = |path: &Path| {
            path.file_name()
                .unwrap_or_default()
                .to_string_lossy()
                .into_owned()
        };

        // In the order in which Salt makes the calls: `prep_jid`, the load, the returns, the end.
        if items.iter().any(|path| name(path) == "nocache") {
            self.push(&dir.join("nocache"), Payload::nocache(self.jid))?;
        }

        // Before the returns, because it names their function.
        self.load(dir)?;

        let mut answers: Vec<(Option<i64>, PathBuf)> = Vec::new();

        for path in items {
            let name = name(&path);
            match name.as_str() {
                "jid" | "nocache" | "endtime" | ".load.p" | ".minions.p" => {}
                // Hidden files are Salt's scratch files, apart from the minions of syndics.
                other if other.starts_with('.') => {
                    let syndic = other
                        .strip_prefix(".minions.")
                        .and_then(|rest| rest.strip_suffix(".p"));
                    if syndic.is_some() {
                        self.minions(&path, syndic)?;
                    }
                }

                _ if path.is_dir() => answers.push((mtime(&path.join("return.p")), path)),
                _ => self
                    .feed
                    .skip(&path.display().to_string(), "not a part of a job"),
            }
        }

        // In the order in which the returns were stored.
        answers.sort();
        for (_, path) in answers {
            self.answer(&path)?;
        }

        let path = dir.join("endtime");
        match read(&path, NAME_BYTES_MAX).map(|text| text.map(String::from_utf8)) {
            Ok(None) => {}
            Ok(Some(Ok(text))) => {
                self.push(&path, Payload::endtime(self.jid, text.trim_matches('\n')))?;
            }
            Ok(Some(Err(_))) => self.feed.skip(&path.display().to_string(), "not text"),
            Err(why) => self.feed.skip(&path.display().to_string(), &why),
        }

        Ok(())
    }

    fn push(&mut self, path: &Path, payload: Payload) -> anyhow::Result<()> {
        let of_jid = self
            .started
            .filter(|_| matches!(payload.kind, Kind::Load | Kind::NoCache));

        let at = of_jid
            .or_else(|| mtime(path))
            .or(self.started)
            // `Feed::push` reduces this to the present.
            .unwrap_or(i64::MAX);

        self.feed.push(ImportItem {
            at,
            origin: path.display().to_string(),
            // The jobs of this host's master.
            master: String::new(),
            payload,
        })
    }

    /// A file's value if `is_one` accepts it; otherwise skips it with the message `form`.
    fn value(
        &mut self,
        path: &Path,
        form: &str,
        is_one: impl Fn(&[u8]) -> bool,
    ) -> Option<Vec<u8>> {
        // A missing file is normal, because the master may have deleted the job meanwhile.
        match read_value(path) {
            Ok(None) => None,
            Ok(Some(value)) if is_one(&value) => Some(value),
            Ok(Some(_)) => {
                self.feed.skip(&path.display().to_string(), form);
                None
            }
            Err(why) => {
                self.feed.skip(&path.display().to_string(), &why);
                None
            }
        }
    }

    fn load(&mut self, dir: &Path) -> anyhow::Result<()> {
        let (path, minions_path) = (dir.join(".load.p"), dir.join(".minions.p"));

        let is_map = |value: &[u8]| Reader::new(value).map().is_ok();
        let Some(load) = self.value(&path, "the load is not a map", is_map) else {
            // A job without its load may still list its minions.
            return self.minions(&minions_path, None);
        };

        self.fun = peek(&load).fun().map(str::to_owned);
        let minions = self.names(&minions_path).unwrap_or_default();

        self.push(
            &path,
            Payload {
                minions,
                ..Payload::new(Kind::Load, self.jid, load)
            },
        )
    }

    fn names(&mut self, path: &Path) -> Option<Vec<u8>> {
        let is_list = |value: &[u8]| msgpack::is_nil(value) || Reader::new(value).array().is_ok();
        // An empty list is equivalent to none: only publishes have minions.
        let value = self.value(path, "the minions are not a list", is_list);
        value.filter(|value| msgpack::elements(value).next().is_some())
    }

    fn minions(&mut self, path: &Path, syndic: Option<&str>) -> anyhow::Result<()> {
        let Some(minions) = self.names(path) else {
            return Ok(());
        };
        let id = syndic.unwrap_or_default().to_owned();
        self.push(
            path,
            Payload {
                id,
                minions,
                ..Payload::new(Kind::Minions, self.jid, Vec::new())
            },
        )
    }

    fn answer(&mut self, dir: &Path) -> anyhow::Result<()> {
        let path = dir.join("return.p");

        let Some(minion) = dir
            .file_name()
            .and_then(|name| name.to_str())
            .map(str::to_owned)
        else {
            self.feed
                .skip(&dir.display().to_string(), "the minion id is not a string");
            return Ok(());
        };

        // Any value, because Salt stored the bare return before 2015.
        let Some(value) = self.value(&path, "", |_| true) else {
            // Salt makes the directory before it writes the return.
            return Ok(());
        };

        let out = self.value(&dir.join("out.p"), "", |_| true);

        let load = return_of(
            self.jid,
            &minion,
            self.fun.as_deref(),
            &value,
            out.as_deref(),
        );

        self.push(
            &path,
            Payload {
                id: minion,
                ..Payload::new(Kind::Return, self.jid, load)
            },
        )
    }
}

/// The argument map of `returner`.
fn return_of(
    jid: &str,
    minion: &str,
    fun: Option<&str>,
    value: &[u8],
    out: Option<&[u8]>,
) -> Vec<u8> {
    // Written below, whatever the file says.
    let of_job = |key: &[u8]| matches!(msgpack::as_text(key), Some("jid" | "id" | "fun" | "out"));

    let mut pairs: Vec<(&[u8], &[u8])> = msgpack::pairs(value)
        .filter(|(key, _)| !of_job(key))
        .collect();

    // A bare return, as before 2015.
    if msgpack::get(value, "return").is_none() {
        pairs = vec![(b"\xa6return", value)];
    }

    let mut w = Writer::new();
    w.map(pairs.len() + 2 + usize::from(fun.is_some()) + usize::from(out.is_some()));
    w.str("jid").str(jid).str("id").str(minion);
    if let Some(fun) = fun {
        w.str("fun").str(fun);
    }

    for (key, value) in pairs {
        w.raw(key).raw(value);
    }

    if let Some(out) = out {
        w.str("out").raw(out);
    }

    w.into_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    struct NoProgress;

    impl Watch for NoProgress {
        fn step(&mut self, _: u64, _: u64, _: &str) {}
    }

    #[test]
    fn jobs_are_read_in_the_order_of_jids_for_any_part_size() {
        let dir = tempfile::tempdir().unwrap();
        let mut jids: Vec<String> = (0..50)
            .map(|n| format!("20261121030955{:06}", n * 7919 % 50))
            .collect();
        jids.extend(["mine", "yours"].map(str::to_owned));
        for (n, jid) in jids.iter().enumerate() {
            let place = dir.path().join(format!("{:02x}/{n:030x}", n % 5));
            fs::create_dir_all(&place).unwrap();
            fs::write(place.join("jid"), jid).unwrap();
        }
        fs::create_dir_all(dir.path().join("00/empty")).unwrap();
        fs::create_dir(dir.path().join("stray")).unwrap();
        jids.sort_by_key(|jid| JidKey::of(jid));
        let since = JidKey::of(jids.get(10).unwrap()).time().map(|at| at.0);
        for (since, expected) in [(None, &jids[..]), (since, &jids[10..])] {
            for jobs_max in [1, 7, 42, 52, 100] {
                let mut walk = Walk {
                    root: dir.path(),
                    since,
                    jobs_max,
                    after: None,
                };
                let (mut found, mut skipped, mut parts) = (Vec::new(), 0, 0);
                loop {
                    let part = walk
                        .next(&mut NoProgress, &mut |_, _| skipped += 1)
                        .unwrap();
                    assert_eq!(part.all, (expected.len() - found.len()) as u64);
                    found.extend(part.jobs.iter().map(|(_, place)| {
                        fs::read_to_string(dir.path().join(place).join("jid")).unwrap()
                    }));
                    parts += 1;
                    if !part.more {
                        break;
                    }
                }
                assert_eq!(found, expected);
                assert_eq!((skipped, parts), (1, expected.len().div_ceil(jobs_max)));
            }
        }
    }
}
