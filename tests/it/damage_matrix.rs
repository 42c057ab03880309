//! Every file of a state directory deleted, zeroed, halved, and with a flipped bit, and both copies of the settings, under the real
//! program.
//!
//! The daemon starts, or it says which file stops it. What is missing then is named by the status; nothing that was not
//! acknowledged is skipped, no token may do more than before, and no held job is free.
//!
//! `MATRIX_FLIPS=n` flips n bits of each file, one after the other; 1 otherwise. Bad sectors are in `bad_sectors`.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use parking_lot::Mutex;
use rmpv::Value;
use saltcellar_testkit::Random;
use saltcellar_testkit::usage::Process;

use crate::bad_sectors::{
    ENTRIES_PER_BLOCK_MAX, EVENTS, Made, cellar_status, copy_of, filled, is_log, listed, number,
    reasons,
};
use crate::fake_daemon::{program, stderr, stdout};
use crate::harness::{Asks as _, Cellar, serve_command, wait_for};

/// Events of the consumer that are acknowledged before the damage.
const ACKNOWLEDGED: usize = 20;

/// What happens to a file while no daemon runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Damage {
    Deleted,
    Zeroed,
    Halved,
    /// A bit at this offset of the file.
    Flipped(u64),
}

impl Damage {
    fn apply(self, path: &Path) {
        if self == Self::Deleted {
            return std::fs::remove_file(path).unwrap();
        }

        let mut bytes = std::fs::read(path).unwrap();
        match self {
            Self::Deleted => {}
            Self::Zeroed => bytes.fill(0),
            Self::Halved => bytes.truncate(bytes.len() / 2),
            Self::Flipped(at) => bytes[usize::try_from(at).unwrap()] ^= 1 << (at % 8),
        }
        std::fs::write(path, bytes).unwrap();
    }
}

/// Files and what happens to each of them.
#[derive(Debug, Clone)]
struct Case {
    /// Within the directory of the store: one, or all copies of the settings.
    names: Vec<PathBuf>,
    damage: Damage,
}

impl Case {
    /// Whether a string names one of the files, or for a segment its directory.
    fn is_named_in(&self, text: &str) -> bool {
        let name = |path: &Path| path.file_name().unwrap().to_str().unwrap().to_owned();
        self.names.iter().any(|path| {
            text.contains(&name(path)) || path.parent().is_some_and(|dir| text.contains(&name(dir)))
        })
    }
}

/// What a user sees of a store.
#[derive(Debug, Default, PartialEq, Eq)]
struct Seen {
    events: BTreeSet<u64>,
    /// Events that the consumer has still to get; `None` without the consumer.
    pending: Option<BTreeSet<u64>>,
    holds: BTreeSet<String>,
    dead_letters: usize,
    /// Whether the limited token is valid.
    token: bool,
    job: bool,
}

impl Seen {
    fn of(cellar: &Cellar, made: &Made) -> Self {
        let job = cellar.ask("get_jid", vec![("jid", "4711".into())]);
        let letters = cellar.ask("sink_dead_letters", vec![("name", "dead".into())]);
        let holds = cellar.ask("store_holds", vec![]);
        let jid = |hold: &Value| hold["jid"].as_str().unwrap().to_owned();

        Self {
            events: listed(cellar),
            pending: pending(cellar),
            holds: holds["holds"].as_array().unwrap().iter().map(jid).collect(),
            dead_letters: letters["dead_letters"].as_array().unwrap().len(),
            token: token_works(cellar, made),
            job: job.as_map().is_some_and(|minions| !minions.is_empty()),
        }
    }

    /// What is missing, in words.
    fn missing(&self, before: &Self) -> Vec<String> {
        let mut missing = Vec::new();
        let lost = before.events.difference(&self.events).count();
        if lost > 0 {
            missing.push(format!("{lost} events"));
        }
        if self.pending.is_none() {
            missing.push("the consumer".to_owned());
        }
        if !before.holds.is_subset(&self.holds) {
            missing.push("the hold".to_owned());
        }
        if self.dead_letters < before.dead_letters {
            missing.push("the dead letter".to_owned());
        }
        if before.token && !self.token {
            missing.push("the token".to_owned());
        }
        if before.job && !self.job {
            missing.push("the job".to_owned());
        }
        missing
    }
}

/// Acknowledges events of the consumer.
fn acknowledge(cellar: &Cellar, events: usize) {
    let args = vec![
        ("name", "audit".into()),
        ("holder", "me".into()),
        ("limit", events.into()),
    ];
    let batch = cellar.ask("consumer_next", args);
    let last = batch["events"].as_array().unwrap().last().unwrap()["seq"].clone();
    let args = vec![
        ("name", "audit".into()),
        ("holder", "me".into()),
        ("seq", last),
    ];
    cellar.ask("consumer_ack", args);
}

fn pending(cellar: &Cellar) -> Option<BTreeSet<u64>> {
    let list = cellar.ask("consumers_list", vec![]);
    let is_it = |consumer: &&Value| consumer["name"].as_str() == Some("audit");
    list["consumers"].as_array()?.iter().find(is_it)?;

    let mut found = BTreeSet::new();
    loop {
        let args = vec![
            ("name", "audit".into()),
            ("holder", "me".into()),
            ("limit", 40.into()),
        ];
        let batch = cellar.ask("consumer_next", args);
        let events = batch["events"].as_array().unwrap();
        found.extend(events.iter().filter_map(|e| number(e["tag"].as_str()?)));
        let Some(last) = events.last() else {
            return Some(found);
        };
        let args = vec![
            ("name", "audit".into()),
            ("holder", "me".into()),
            ("seq", last["seq"].clone()),
        ];
        cellar.ask("consumer_ack", args);
    }
}

/// Whether the token is valid. It may read what is about minion `web1`, and no event of this store is.
fn token_works(cellar: &Cellar, made: &Made) -> bool {
    let address = crate::http::address(cellar);
    let answer = crate::http::get(&address, "/api/v1/events?limit=1000", &made.token);
    if answer.status == 200 {
        assert!(
            !answer.text().contains("test/"),
            "the token may read everything: {}",
            answer.text()
        );
    }
    let changed = crate::http::request(
        &address,
        "DELETE",
        "/api/v1/consumers/audit",
        &made.token,
        b"",
    );
    assert!(
        matches!(changed.status, 401 | 403 | 404 | 405),
        "a token to read deleted a consumer: {}",
        changed.status
    );
    answer.status == 200
}

/// Starts a daemon on a damaged store; its log if it refuses.
fn start(dir: tempfile::TempDir) -> Result<Cellar, String> {
    let log = std::fs::File::create(dir.path().join("log")).unwrap();
    let mut command = serve_command(dir.path());
    command
        .arg("--config")
        .arg(dir.path().join("c.yaml"))
        .stdout(Stdio::null())
        .stderr(log);
    let process = Process(command.spawn().unwrap());
    let mut cellar = Cellar {
        dir,
        process,
        flags: Vec::new(),
    };

    let is_up = wait_for("the daemon", || {
        if cellar.process.0.try_wait().unwrap().is_some() {
            return Some(false);
        }
        cellar_status(&cellar).map(|_| true)
    });
    if is_up { Ok(cellar) } else { Err(cellar.log()) }
}

fn verified(state: &Path) -> String {
    let output = program()
        .args(["store", "verify", "--state-dir"])
        .arg(state)
        .output()
        .unwrap();
    format!("{}{}", stdout(&output), stderr(&output))
}

/// One file for each kind of name: the files of a sealed segment and of the growing one stand for all.
fn names(made: &Made) -> Vec<PathBuf> {
    let state = made.state();
    let names = crate::bad_sectors::files(&state);
    let names = names.into_iter().map(|path| {
        let name = path.strip_prefix(&state).unwrap();
        Path::new("state").join(name)
    });
    let names: Vec<_> = names.collect();

    let mut kept: BTreeSet<PathBuf> = BTreeSet::new();
    for class in std::fs::read_dir(state.join("log")).unwrap() {
        let class = Path::new("state/log").join(class.unwrap().file_name());
        let of_class = names.iter().filter(|name| name.starts_with(&class));
        let segments: BTreeSet<_> = of_class.filter_map(|name| name.parent()).collect();
        kept.extend(segments.first().map(|name| (*name).to_owned()));
        kept.extend(segments.last().map(|name| (*name).to_owned()));
    }
    let is_kept = |name: &PathBuf| {
        !name.starts_with("state/log") || kept.iter().any(|segment| name.starts_with(segment))
    };
    names.into_iter().filter(is_kept).collect()
}

fn cases(made: &Made) -> Vec<Case> {
    let flips = std::env::var("MATRIX_FLIPS").map_or(1, |n| n.parse().unwrap());
    let mut random = Random::new(7);

    let mut sets: Vec<_> = names(made).into_iter().map(|name| vec![name]).collect();
    // The settings have two copies: what one loses, the other one has.
    let of_settings = |name: &&PathBuf| name.starts_with("state/log/settings");
    let both: Vec<_> = sets.iter().flatten().filter(of_settings).cloned().collect();
    assert!(both.len() > 1, "{both:?}");
    sets.push(both);

    let mut cases = Vec::new();
    for names in sets {
        let sizes = names
            .iter()
            .map(|name| std::fs::metadata(made.path().join(name)).unwrap().len());
        let smallest = sizes.min().unwrap_or(0);
        let mut add = |damage| {
            cases.push(Case {
                names: names.clone(),
                damage,
            });
        };
        add(Damage::Deleted);
        // An empty file has nothing to damage.
        if smallest == 0 {
            continue;
        }
        add(Damage::Zeroed);
        add(Damage::Halved);
        for _ in 0..flips {
            add(Damage::Flipped(random.below(smallest)));
        }
    }
    cases
}

fn check(case: &Case, made: &Made, before: &Seen) {
    let dir = copy_of(made, true);
    for name in &case.names {
        case.damage.apply(&dir.path().join(name));
    }
    let state = dir.path().join("state");
    let verify = verified(&state);

    let mut cellar = match start(dir) {
        Ok(cellar) => cellar,
        // Nothing can be read without the store id, and the error names the file and what to do.
        Err(log) => {
            let is_format = case.names.iter().all(|name| name.ends_with("FORMAT"));
            return assert!(is_format && log.contains("FORMAT"), "{case:?}: {log}");
        }
    };

    let after = Seen::of(&cellar, made);
    let missing = after.missing(before);
    let reasons = reasons(&cellar);
    if !missing.is_empty() {
        assert!(
            case.is_named_in(&reasons),
            "{case:?}: {missing:?} missing, but status says: {reasons}"
        );
        assert!(
            case.is_named_in(&verify),
            "{case:?}: {missing:?} missing, but verify says: {verify}"
        );
    }

    // A lost log takes its entries with it, and no others.
    let lost = before.events.difference(&after.events).count();
    let is_of_entries = |name: &PathBuf| is_log(name) && !name.starts_with("state/log/settings");
    if !case.names.iter().any(is_of_entries) {
        assert_eq!(lost, 0, "{case:?}");
    } else if matches!(case.damage, Damage::Flipped(_)) {
        assert!(lost <= ENTRIES_PER_BLOCK_MAX, "{case:?}: {lost} lost");
    }

    // Delivered again is fine, skipped is not. A consumer that is lost begins with the oldest.
    let pending = after.pending.clone().unwrap_or_else(|| {
        cellar.ask("consumer_create", vec![("name", "audit".into())]);
        pending(&cellar).unwrap()
    });
    let should = before.pending.as_ref().unwrap();
    let should: BTreeSet<_> = should.intersection(&after.events).copied().collect();
    assert!(
        pending.is_superset(&should),
        "{case:?}: skipped {:?}",
        should.difference(&pending)
    );

    // A lost hold holds everything, until somebody has decided.
    if !before.holds.is_subset(&after.holds) && after.job {
        let args = vec![("class", "jobs".into()), ("age_s", 0.into())];
        let pruned = cellar.call("store_prune", args);
        let job = cellar.ask("get_jid", vec![("jid", "4711".into())]);
        assert!(
            job.as_map().is_some_and(|minions| !minions.is_empty()),
            "{case:?}: the evidence is gone: {pruned:?}"
        );
    }
    assert!(cellar.terminate(), "{case:?}: {}", cellar.log());
}

#[test]
fn no_damage_of_a_file_is_silent() {
    let made = filled(tempfile::tempdir().unwrap());
    let mut cellar = start(copy_of(&made, true)).unwrap();
    acknowledge(&cellar, ACKNOWLEDGED);
    assert!(cellar.terminate());
    // The store with the acknowledgements is the one that is damaged.
    let state = made.path().join("state");
    std::fs::remove_dir_all(&state).unwrap();
    std::fs::rename(cellar.dir.path().join("state"), &state).unwrap();

    let mut cellar = start(copy_of(&made, true)).unwrap();
    let before = Seen::of(&cellar, &made);
    assert!(cellar.terminate());
    // The first ones are acknowledged; some of them are other events of the store.
    let pending = before.pending.as_ref().unwrap();
    assert!(
        !pending.contains(&0) && pending.contains(&(EVENTS - 1)),
        "{pending:?}"
    );
    assert_eq!(before.missing(&before), Vec::<String>::new());
    assert_eq!(
        (before.events.len() as u64, before.dead_letters),
        (EVENTS, 1)
    );

    let cases = Mutex::new(cases(&made).into_iter());
    let failures = Mutex::new(Vec::new());
    // A start waits for a disk most of the time.
    std::thread::scope(|threads| {
        for _ in 0..3 {
            threads.spawn(|| {
                loop {
                    let Some(case) = cases.lock().next() else {
                        return;
                    };
                    let checked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                        check(&case, &made, &before);
                    }));
                    if let Err(panic) = checked {
                        let text = panic.downcast_ref::<String>().cloned();
                        failures.lock().push(text.unwrap_or_default());
                    }
                }
            });
        }
    });

    let failures = failures.into_inner();
    assert!(
        failures.is_empty(),
        "{} cases failed:\n{}",
        failures.len(),
        failures.join("\n\n")
    );
}
