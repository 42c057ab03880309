//! Export as a tree of Salt's own job cache (`cli/import/local_cache.rs` documents the layout).
//!
//! # Invariant
//!
//! Jobs are created atomically: under [`SCRATCH_DIR`], which Salt ignores, then renamed. That directory exists until the export
//! is complete, and marks the tree as resumable. Existing jobs are not changed.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context as _, bail};
use ring::digest;
use rmpv::Value;
use serde_json::json;

use super::super::ask::Pages;
use super::super::format::fields::Fields as _;
use super::super::format::output::{plain, show};
use super::super::format::progress::{Bar, Unit};
use super::super::format::when::When;
use super::super::import::{entries_args, skipped};
use super::super::jobs::LIST_CALL;
use super::super::{Global, ask};
use crate::api::client::Client;
use crate::api::query::{Precedence, is_of_cached_job, load_of, rank};
use crate::base::limits::IMPORT_BAD_NAMED;
use crate::model::{JidKey, Kind};
use crate::store::tools::Watch as _;
use crate::store::tools::files::tree::Tree;
use crate::wire::msgpack::{self, Writer, as_text, is_nil};
use crate::wire::salt_codec::repaired_for_salt;

/// Arguments of `export local_cache`.
#[derive(clap::Args)]
pub(in crate::cli) struct Args {
    /// Target directory: missing, empty, or that of an interrupted export
    #[arg(value_name = "DIR")]
    dir: PathBuf,
    /// Only jobs started since: 10m, 2h, 3d (ago), or 2026-11-21 (UTC)
    #[arg(long, value_name = "TIME")]
    since: Option<When>,
    /// Add to an existing job cache, without changing its jobs
    #[arg(long)]
    into_existing: bool,
    /// The master's hash_type, which determines directory names
    #[arg(long, value_enum, default_value_t = Hash::Sha256, value_name = "NAME")]
    hash_type: Hash,
}

/// Values of Salt's `hash_type`, except the insecure ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Hash {
    Sha1,
    Sha256,
    Sha384,
    Sha512,
}

pub(super) const EXAMPLES: &str = "\
Writes the job cache that `salt-run jobs.list_jobs` and `jobs.lookup_jid` read with `master_job_cache: local_cache`. \
Files get the times of their entries. Change the owner of the tree to the master's user afterwards (`chown -R salt`). \
Salt deletes jobs older than its keep_jobs_seconds.

Examples:
  saltcellar export local_cache /srv/jobs
  saltcellar export local_cache --into-existing --since 7d /var/cache/salt/master/jobs";

/// Directory of incomplete jobs. Salt reads only `<dir>/*/*/.load.p`, and these are one level deeper.
const SCRATCH_DIR: &str = ".saltcellar-export";

pub(super) fn run(global: &Global, args: &Args) -> anyhow::Result<()> {
    let mut client = ask::connect(global)?;
    let tree = prepare(args)?;
    let mut export = Export { args, tree, jobs: 0, existing: 0, returns: 0, bad: 0 };
    let mut bar = Bar::new("export", Unit::Jobs);
    // Later entries are not exported.
    let until = ask::call(&mut client, "status", ()).context("query the status")?.number("durable");
    let every = json!({ "limit": u64::MAX, "find_job": true, "since": args.since });
    let mut pages = Pages::new(global, LIST_CALL, every)?;
    loop {
        let rows = pages.next()?;
        for row in &rows {
            let jid = row.text("jid");
            bar.step(0, 0, &format!("{} jobs, {jid}", export.jobs + export.existing));
            export.job(&mut client, jid, until)?;
        }
        if rows.is_empty() {
            break;
        }
    }
    let dir = args.dir.display();
    export.tree.sync_file_system().with_context(|| format!("sync {dir}"))?;
    export.tree.remove(SCRATCH_DIR).with_context(|| format!("remove {SCRATCH_DIR} in {dir}"))?;
    let seconds = bar.seconds();
    drop(bar);
    export.report(global, seconds)?;
    match export.bad {
        0 => Ok(()),
        bad => Err(skipped(bad)),
    }
}

/// Opens the target directory, after checking that it may be written to.
fn prepare(args: &Args) -> anyhow::Result<Tree> {
    let dir = &args.dir;
    let writing = || format!("write to {}", dir.display());
    let tree = Tree::root(dir).with_context(writing)?;
    let names = tree.list("").with_context(writing)?;
    if !names.is_empty() && !names.iter().any(|name| name == SCRATCH_DIR) && !args.into_existing {
        bail!(
            "write to {}: the directory is not empty and holds no interrupted export; choose a new directory, or use --into-existing \
             to add to Salt's job cache",
            dir.display()
        );
    }
    tree.make_dir(SCRATCH_DIR).with_context(writing)?;
    Ok(tree)
}

struct Export<'a> {
    args: &'a Args,
    tree: Tree,
    jobs: u64,
    existing: u64,
    returns: u64,
    bad: u64,
}

/// A return that is on disk.
struct WrittenReturn {
    standing: Precedence,
    bus_only: bool,
}

/// An incomplete job. Returns are on disk, the rest is in memory.
struct PartialJob<'a> {
    dir: &'a Tree,
    load: Vec<u8>,
    rank: u8,
    minions: Option<BTreeSet<Vec<u8>>>,
    syndics: BTreeMap<String, BTreeSet<Vec<u8>>>,
    answers: BTreeMap<String, WrittenReturn>,
    /// Salt stored the job through the extension, so returns seen only on a bus do not count.
    cached: bool,
    endtime: Option<Vec<u8>>,
    /// Start time of the job, or the time of its first entry; microseconds.
    at: i64,
}

impl Export<'_> {
    fn skip(&mut self, what: &str, why: &str) {
        self.bad += 1;
        if self.bad <= IMPORT_BAD_NAMED {
            // A failed write is ignored: the number of skipped entries is reported at the end.
            let _ = writeln!(io::stderr(), "saltcellar: skipped {}: {}", plain(what), plain(why));
        }
    }

    /// Exports a job, page by page.
    fn job(&mut self, client: &mut Client, jid: &str, until: u64) -> anyhow::Result<()> {
        let name = dir_name(self.args.hash_type, jid);
        let (top, rest) = name.split_at(2);
        let (target, scratch) =
            (Path::new(top).join(rest), Path::new(SCRATCH_DIR).join("partial").join("job"));
        let writing = || format!("write job {jid} to {}", self.args.dir.display());
        if self.tree.file_type(&target).with_context(writing)?.is_some() {
            self.existing += 1;
            return Ok(());
        }
        self.tree.remove(&scratch).with_context(writing)?;
        let dir = self.tree.make_dir(&scratch).with_context(writing)?;
        let mut partial: Option<PartialJob<'_>> = None;
        let mut from = None;
        loop {
            client.post("entries", &entries_args(jid, from)).context("read a job")?;
            let (_, answer) = client.next_answer().context("read a job")?;
            let answer = answer.context("read a job")?;
            for entry in answer["entries"].as_array().map(Vec::as_slice).unwrap_or_default() {
                if entry["seq"].as_u64().is_some_and(|seq| seq < until) {
                    let partial = partial.get_or_insert_with(|| PartialJob::of(jid, &dir, entry));
                    self.take(partial, jid, entry).with_context(writing)?;
                }
            }
            from = answer["next"].as_u64();
            if from.is_none() {
                break;
            }
        }
        // None: the job has expired meanwhile, or started after the export.
        let Some(mut partial) = partial else { return Ok(()) };
        partial.finish(jid).with_context(writing)?;
        self.tree.rename(&scratch, &target).with_context(writing)?;
        self.jobs += 1;
        self.returns += partial.answers.len() as u64;
        Ok(())
    }

    fn take(&mut self, partial: &mut PartialJob<'_>, jid: &str, entry: &Value) -> io::Result<()> {
        let Some(kind) = entry["kind"].as_str().and_then(Kind::named) else { return Ok(()) };
        if matches!(kind, Kind::Event | Kind::Register | Kind::Gap | Kind::Reaction | Kind::SeenOnBus) {
            return Ok(());
        }
        // A value that Salt cannot decode would hide this job, or all jobs.
        let body = match repaired_for_salt(entry["body"].as_slice().unwrap_or_default()) {
            Ok(body) => body,
            Err(why) => {
                self.skip(&format!("job {jid}"), &format!("an entry of kind {}: {why}", kind.name()));
                return Ok(());
            }
        };
        let body = &*body;
        partial.cached |= is_of_cached_job(kind);
        if rank(kind) > partial.rank {
            partial.rank = rank(kind);
            partial.load = load_of(kind, body).to_vec();
        }
        match kind {
            Kind::Load | Kind::ReturnLoad => {
                if let Some(minions) = msgpack::elements(body).nth(1).filter(|minions| !is_nil(minions)) {
                    partial.expect(minions);
                }
            }
            Kind::JobNew => {
                if let Some(minions) = msgpack::get(body, "minions") {
                    partial.expect(minions);
                }
            }
            Kind::Minions => {
                let mut parts = msgpack::elements(body);
                let minions = parts.next().unwrap_or_default();
                match parts.next().and_then(as_text).filter(|syndic| is_file_name(syndic)) {
                    Some(syndic) => {
                        let of_syndic = partial.syndics.entry(syndic.to_owned()).or_default();
                        of_syndic.extend(msgpack::elements(minions).map(<[u8]>::to_vec));
                    }
                    None => partial.expect(minions),
                }
            }
            Kind::Endtime => partial.endtime = as_text(body).map(|text| text.as_bytes().to_vec()),
            Kind::NoCache => write(partial.dir, "nocache", b"", partial.at)?,
            Kind::Return => {
                let minion = entry["minion"].as_str().unwrap_or_default();
                let reserved = ["jid", "nocache", "endtime"].contains(&minion);
                if !is_file_name(minion) || reserved || minion.starts_with('.') {
                    self.skip(&format!("job {jid}"), &format!("{minion:?} is not a valid directory name"));
                    return Ok(());
                }
                partial.write_return(minion, entry, body)?;
            }
            Kind::Event | Kind::Register | Kind::Gap | Kind::Reaction | Kind::SeenOnBus => {}
        }
        Ok(())
    }

    fn report(&self, global: &Global, seconds: f64) -> anyhow::Result<()> {
        let Self { jobs, existing, returns, bad, .. } = self;
        let document = json!({
            "dir": self.args.dir.to_string_lossy(), "jobs": jobs, "existing": existing, "returns": returns,
            "skipped": bad, "seconds": seconds,
        });
        show(global.output, &document, |out| {
            out.line(&format!(
                "jobs       {jobs} exported with {returns} returns, {existing} exist already, in {seconds:.1} s"
            ))?;
            if *bad > 0 {
                out.line(&format!("skipped    {bad}"))?;
            }
            Ok(())
        })
    }
}

impl<'a> PartialJob<'a> {
    fn of(jid: &str, dir: &'a Tree, first: &Value) -> Self {
        let at = JidKey::of(jid).time().map(|at| at.0);
        Self {
            dir,
            load: Vec::new(),
            rank: 0,
            minions: None,
            syndics: BTreeMap::new(),
            answers: BTreeMap::new(),
            cached: false,
            endtime: None,
            at: at.or(first["time"].as_i64()).unwrap_or(0),
        }
    }

    fn expect(&mut self, minions: &[u8]) {
        let names = msgpack::elements(minions).map(<[u8]>::to_vec);
        self.minions.get_or_insert_default().extend(names);
    }

    /// Writes a return, unless one with precedence exists.
    fn write_return(&mut self, minion: &str, entry: &Value, body: &[u8]) -> io::Result<()> {
        let confirmed = entry["confirmed"].as_bool();
        let standing = Precedence::of(confirmed == Some(true), body);
        match self.answers.get(minion) {
            Some(known) if !standing.overrides(known.standing) => return Ok(()),
            _ => self
                .answers
                .insert(minion.to_owned(), WrittenReturn { standing, bus_only: confirmed == Some(false) }),
        };
        let dir = self.dir.make_dir(minion)?;
        let at = entry["time"].as_i64().unwrap_or(self.at);
        let pairs: Vec<_> = ["return", "retcode", "success"]
            .into_iter()
            .filter_map(|key| Some((key, msgpack::get(body, key)?)))
            .collect();
        let mut w = Writer::new();
        w.map(pairs.len());
        for (key, value) in pairs {
            w.str(key).raw(value);
        }
        write(&dir, "return.p", &w.into_bytes(), at)?;
        match msgpack::get(body, "out") {
            Some(out) => write(&dir, "out.p", out, at),
            None => dir.remove("out.p"),
        }
    }

    fn finish(&mut self, jid: &str) -> io::Result<()> {
        if self.cached {
            for (minion, _) in self.answers.iter().filter(|(_, written)| written.bus_only) {
                self.dir.remove(minion)?;
            }
            self.answers.retain(|_, written| !written.bus_only);
        }
        let list = |names: &BTreeSet<Vec<u8>>| {
            let mut w = Writer::new();
            w.array(names.len());
            for name in names {
                w.raw(name);
            }
            w.into_bytes()
        };
        if self.rank > 0 {
            write(self.dir, ".load.p", &with_jid(&self.load, jid), self.at)?;
        }
        // Salt's `get_load` requires this file, even if it is empty.
        let none = BTreeSet::new();
        write(self.dir, ".minions.p", &list(self.minions.as_ref().unwrap_or(&none)), self.at)?;
        for (syndic, minions) in &self.syndics {
            write(self.dir, &format!(".minions.{syndic}.p"), &list(minions), self.at)?;
        }
        if let Some(endtime) = &self.endtime {
            write(self.dir, "endtime", endtime, self.at)?;
        }
        write(self.dir, "jid", jid.as_bytes(), self.at)
    }
}

/// Adds the jid to a load, which `get_jids` of local_cache requires.
fn with_jid(load: &[u8], jid: &str) -> Vec<u8> {
    if msgpack::get(load, "jid").is_some() {
        return load.to_vec();
    }
    let pairs: Vec<_> = msgpack::pairs(load).collect();
    let mut w = Writer::new();
    w.map(pairs.len() + 1);
    for (key, value) in pairs {
        w.raw(key).raw(value);
    }
    w.str("jid").str(jid);
    w.into_bytes()
}

fn is_file_name(name: &str) -> bool {
    !name.is_empty() && name.len() < 200 && name != "." && name != ".." && !name.contains(['/', '\0'])
}

/// Replaces a file and sets its modification time.
fn write(dir: &Tree, name: &str, bytes: &[u8], at: i64) -> io::Result<()> {
    dir.remove(name)?;
    let mut file = dir.create_new(name)?;
    file.write_all(bytes)?;
    let since = Duration::from_micros(u64::try_from(at).unwrap_or(0));
    let time: SystemTime = UNIX_EPOCH.checked_add(since).unwrap_or(UNIX_EPOCH);
    file.set_modified(time)
}

/// The hexadecimal hash of a jid, as in `jid_dir` of `salt/utils/jid.py`.
fn dir_name(hash: Hash, jid: &str) -> String {
    let of = match hash {
        Hash::Sha1 => &digest::SHA1_FOR_LEGACY_USE_ONLY,
        Hash::Sha256 => &digest::SHA256,
        Hash::Sha384 => &digest::SHA384,
        Hash::Sha512 => &digest::SHA512,
    };
    let digits =
        |byte: &u8| [byte >> 4, byte & 15].map(|digit| char::from_digit(u32::from(digit), 16).unwrap_or('0'));
    digest::digest(of, jid.as_bytes()).as_ref().iter().flat_map(digits).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn directory_names_are_those_of_salt() {
        // python3 -c 'import hashlib; print(hashlib.sha256(b"20261121030955505683").hexdigest())'
        let name = dir_name(Hash::Sha256, "20261121030955505683");
        assert_eq!(name.len(), 64);
        assert_eq!(dir_name(Hash::Sha1, "abc"), "a9993e364706816aba3e25717850c26c9cd0d89d");
    }
}
