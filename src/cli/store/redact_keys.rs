//! `saltcellar store redact-keys`: redacts masters' keys that an earlier release stored.

use std::cell::RefCell;
use std::path::PathBuf;

use anyhow::Context as _;
use serde_json::json;

use super::tool::{config, count, field};
use crate::base::clock::Clock;
use crate::cli::{Bar, Global, Unit, finding, show};
use crate::config::salt_master::read_key;
use crate::ingest::master_keys::MasterKeys;
use crate::ingest::spill;
use crate::model::{Entry, KEY_BYTES_MIN, KeyTexts, REDACTED, Replaced, is_manage_tag};
use crate::store::tools::redact::{self, LockedStore, Redact};
use crate::wire::msgpack;

#[derive(clap::Args)]
pub(in crate::cli) struct Args {
    /// Report the entries that would be redacted and change nothing; the daemon may be running
    #[arg(long)]
    dry_run: bool,
    /// Also redact the key in this file; may be repeated
    #[arg(long, value_name = "FILE")]
    key_file: Vec<PathBuf>,
}

pub(in crate::cli) const EXAMPLES: &str = "\
Earlier releases stored the events of `salt-run reactor.*` with the Salt master's key in plain text. A peer with this key \
can become root on all minions. This command redacts the key in these events, and the text of each known key in all other \
entries: in sealed and growing segments and in the spill. Known keys are those of the configured masters (ingest.masters, \
reactor.master), those in the stored events, and those of --key-file. The indexes are rebuilt. The daemon must be \
stopped, except with --dry-run.

Afterwards, remove the copies that this command cannot reach:
  1. Backups: run `saltcellar store backup --delete DIR` on each backup directory; delete other copies and exports.
  2. The key itself: stop salt-master, delete the files .*_key in its cachedir, start it again; it generates new keys.

Exit codes: 0 no keys found, or all redacted; 1 keys found with --dry-run, or a file could not be searched.

Examples:
  saltcellar store redact-keys --dry-run
  systemctl stop saltcellar && saltcellar store redact-keys && systemctl start saltcellar";

/// Collects the keys in stored requests to the reactor.
#[derive(Default)]
struct Collector(RefCell<Vec<Vec<u8>>>);

impl Redact for Collector {
    fn entry(&self, entry: &Entry<'_>) -> Option<Replaced> {
        let key = is_manage_tag(entry.tag)
            .then(|| msgpack::get(entry.body, "key").and_then(msgpack::as_text))??;

        let mut found = self.0.borrow_mut();
        // Shorter texts would match in ordinary data.
        if key != REDACTED
            && key.len() >= KEY_BYTES_MIN
            && !found.iter().any(|known| known == key.as_bytes())
        {
            found.push(key.as_bytes().to_vec());
        }
        // Nothing is replaced while keys are collected.
        None
    }

    fn bytes(&self, _: &mut [u8]) -> usize {
        0
    }
}

/// Redacts all entries except requests to the reactor. These come last, because the next run after
/// an interruption collects the keys from them.
struct ExceptRequests<'a>(&'a MasterKeys);

impl Redact for ExceptRequests<'_> {
    fn entry(&self, entry: &Entry<'_>) -> Option<Replaced> {
        if is_manage_tag(entry.tag) {
            None
        } else {
            Redact::entry(self.0, entry)
        }
    }

    fn bytes(&self, bytes: &mut [u8]) -> usize {
        Redact::bytes(self.0, bytes)
    }
}

pub(super) fn run(global: &Global, args: &Args) -> anyhow::Result<()> {
    let config = config(global)?;
    let dir = &config.state_dir;

    // Before anything is searched or written: the spill belongs to the daemon as well, and has no
    // lock of its own.
    let locked = if args.dry_run {
        None
    } else {
        let holder = format!("pid {}, redacting keys", std::process::id());
        Some(LockedStore::take(dir, &holder).context("redact keys")?)
    };

    let collector = Collector::default();

    // First, because the requests that show a key are themselves redacted below.
    let mut bar = Bar::new("search for keys", Unit::Segments);
    redact::dry_run(dir, &collector, &mut bar).context("search the store for keys")?;
    drop(bar);

    // All sources together: a master that changed its key is known only by its old requests.
    let mut keys = collector.0.into_inner();
    let reactor = config.reactor.of_whom().map(|(role, path, _)| (role, path));
    keys.extend(MasterKeys::new(&config.ingest.masters, reactor).keys());

    for path in &args.key_file {
        keys.push(read_key(path).with_context(|| format!("read the key {}", path.display()))?);
    }

    let keys = MasterKeys::fixed(KeyTexts::new(keys));
    let known = keys.counts().0 as u64;

    // The spill comes before the requests in the store, see `ExceptRequests`.
    let spilled = spill::redact::redact(&dir.join("spill"), &keys, locked.is_some())
        .context("redact keys in the spill")?;

    let mut bar = Bar::new("redact keys", Unit::Segments);
    let report = match &locked {
        None => redact::dry_run(dir, &keys, &mut bar).context("search the store for keys")?,
        // The requests come last: see `ExceptRequests`.
        Some(locked) => locked
            .redact(&[&ExceptRequests(&keys), &keys], &mut bar)
            .context("redact keys")?,
    };

    drop(bar);

    // Redacted entries have other positions, so the indexes of their segments are gone.
    if let Some(locked) = locked
        && report.segments_affected > 0
    {
        let holder = format!("pid {}, redacting keys", std::process::id());
        let options = crate::cli::serve::store_options(&config, holder, Clock::real());
        // Opening builds missing indexes. With the same lock: a daemon that starts now must not make
        // this fail.
        drop(locked.open(&options).context("rebuild the indexes")?);
        // The files belong to root now, if root runs this; the daemon has to open them.
        crate::store::tools::files::inherit_owner(dir)?;
    }

    let found = report.entries + spilled;
    let document = json!({
        "state_dir": dir.to_string_lossy(), "dry_run": args.dry_run, "keys_known": known, "segments": report.segments,
        "segments_affected": report.segments_affected, "entries": report.entries, "spilled_events": spilled,
        "unsearchable": report.unsearchable.iter().map(|path| path.to_string_lossy()).collect::<Vec<_>>(),
    });

    show(global.output, &document, |out| {
        field(out, "state dir", &dir.to_string_lossy())?;

        let (segments, affected) = (
            count(report.segments, "segment", "segments"),
            report.segments_affected,
        );
        field(
            out,
            "searched",
            &format!(
                "{segments}, for {} and for keys in requests",
                count(known, "known key", "known keys")
            ),
        )?;

        let what = if args.dry_run {
            "with a key in plain text"
        } else {
            "redacted"
        };

        let words = format!(
            "{} {what}, in {}",
            count(report.entries, "entry", "entries"),
            count(affected, "segment", "segments")
        );
        field(out, "store", &words)?;
        field(
            out,
            "spill",
            &format!("{} {what}", count(spilled, "event", "events")),
        )?;

        for path in &report.unsearchable {
            field(
                out,
                "unsearchable",
                &format!(
                    "{} cannot be searched: delete it once it is not needed",
                    path.display()
                ),
            )?;
        }

        if found > 0 {
            field(
                out,
                "next",
                "update every backup with `store backup --delete`, delete exports, and rotate the master's keys (--help)",
            )?;
        }
        Ok(())
    })?;

    if args.dry_run && found > 0 {
        let text = format!(
            "{} a key in plain text",
            count(found, "entry contains", "entries contain")
        );
        return Err(finding(text));
    }

    if !report.unsearchable.is_empty() {
        let files = count(report.unsearchable.len() as u64, "file", "files");
        return Err(finding(format!("{files} could not be searched")));
    }

    Ok(())
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::config::Config;
    use crate::store::Store;

    #[test]
    fn beside_a_running_daemon_nothing_is_redacted() {
        let dir = tempfile::tempdir().unwrap();
        let state = dir.path().join("state");
        let config = Config::for_state_dir(&state, "/s");
        let options =
            crate::cli::serve::store_options(&config, "the daemon".to_owned(), Clock::real());
        let daemon = Store::open(&options).unwrap();

        let key = "0123456789abcdef0123456789abcdef";
        let spill = state.join("spill/bus/0001000000.spill");
        fs::create_dir_all(spill.parent().unwrap()).unwrap();
        fs::write(&spill, format!("torn {key}")).unwrap();
        fs::write(dir.path().join("key"), key).unwrap();
        fs::write(dir.path().join("c.yaml"), "{}\n").unwrap();

        let global = Global {
            state_dir: Some(state.clone()),
            config: Some(dir.path().join("c.yaml")),
            ..Global::with_json()
        };
        let args = Args {
            dry_run: false,
            key_file: vec![dir.path().join("key")],
        };
        let spilled = || fs::read_to_string(&spill).unwrap();

        let error = run(&global, &args).unwrap_err();
        let error = format!("{error:#}");
        assert!(error.contains("is in use by the daemon"), "{error}");
        assert_eq!(spilled(), format!("torn {key}"));

        // Without the daemon the same run replaces the key.
        drop(daemon);
        run(&global, &args).unwrap();
        assert!(!spilled().contains(key), "{}", spilled());
    }
}
