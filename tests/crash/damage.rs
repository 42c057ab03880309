//! Corruption on disk.
//!
//! The test creates a store of several segments and kills the daemon. For each kind of file and of damage, it damages a copy
//! and opens it. Entries read back must equal those sent, and losses must be reported. Damage to derived data must cost no
//! entry.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use saltcellar_testkit::Random;

use crate::server::Server;

#[derive(Debug, Clone, Copy)]
enum Damage {
    CutHalf,
    CutLittle,
    Flip,
    FlipLate,
    Delete,
    /// A bit of a part of a log.
    FlipIn(Part),
}

/// The parts of a log.
#[derive(Debug, Clone, Copy)]
enum Part {
    Header,
    FrameHeader,
    Head,
    Bodies,
}

const DAMAGES: [Damage; 5] = [
    Damage::CutHalf,
    Damage::CutLittle,
    Damage::Flip,
    Damage::FlipLate,
    Damage::Delete,
];

const DAMAGES_OF_LOGS: [Damage; 4] = [
    Damage::FlipIn(Part::Header),
    Damage::FlipIn(Part::FrameHeader),
    Damage::FlipIn(Part::Head),
    Damage::FlipIn(Part::Bodies),
];

/// Offset of a random byte in a part of a log: of the file, or of a random frame (docs/FORMAT.md).
fn place_in(bytes: &[u8], part: Part, random: &mut Random) -> u64 {
    let store_id = u64::from_le_bytes(bytes[64..72].try_into().unwrap());
    let magic = xxhash_rust::xxh3::xxh3_64_with_seed(&[], store_id).to_le_bytes();
    let frames: Vec<usize> = (80..bytes.len())
        .step_by(16)
        .filter(|at| bytes[*at..].starts_with(&magic[..4]))
        .collect();
    let frame = frames[usize::try_from(random.below(frames.len() as u64)).unwrap()];
    let number = |at: usize| {
        u64::from(u32::from_le_bytes(
            bytes[frame + at..][..4].try_into().unwrap(),
        ))
    };
    let (head, bodies) = (number(8), number(12));
    let (from, len) = match part {
        Part::Header => (0, 80),
        Part::FrameHeader => (frame as u64, 48),
        Part::Head => (frame as u64 + 48, head),
        Part::Bodies => (frame as u64 + 48 + head.next_multiple_of(16), bodies),
    };
    from + random.below(len)
}

/// The kind of a file in the state directory, and whether it is derived from the log.
fn kind(path: &Path, newest: &[PathBuf]) -> (String, bool) {
    let text = path.to_string_lossy();
    let name = path.file_name().unwrap().to_string_lossy().into_owned();
    let class = if text.contains("log/jobs") {
        "jobs"
    } else {
        "events"
    };
    let part = |of: &str| format!("{of}/{}", name.split('.').next().unwrap_or_default());
    if name.starts_with("index") {
        ("index".to_owned(), true)
    } else if text.starts_with("state/") {
        (part("state"), true)
    } else if name.starts_with("log.cut-") {
        (part("log.cut"), true)
    } else if text.starts_with("log/") {
        let age = if newest.iter().any(|newest| newest == path) {
            "active"
        } else {
            "sealed"
        };
        (format!("log of {class}, {age}"), false)
    } else {
        (name, true)
    }
}

fn files(dir: &Path, under: &Path, found: &mut Vec<PathBuf>) {
    for item in fs::read_dir(dir.join(under)).unwrap() {
        let item = item.unwrap();
        let path = under.join(item.file_name());
        if item.file_type().unwrap().is_dir() {
            files(dir, &path, found);
        } else {
            found.push(path);
        }
    }
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for item in fs::read_dir(from).unwrap() {
        let item = item.unwrap();
        let (from, to) = (item.path(), to.join(item.file_name()));
        if from.is_dir() {
            copy(&from, &to);
        } else {
            fs::copy(&from, &to).unwrap();
        }
    }
}

fn apply(damage: Damage, path: &Path, random: &mut Random) -> String {
    if path.is_dir() {
        fs::remove_dir_all(path).unwrap();
        return "deleted".to_owned();
    }
    let mut bytes = fs::read(path).unwrap();
    let len = bytes.len() as u64;
    let description;
    match damage {
        Damage::Delete => {
            fs::remove_file(path).unwrap();
            return "deleted".to_owned();
        }
        _ if bytes.is_empty() => {
            bytes = b"garbage".to_vec();
            description = "replaced by garbage".to_owned();
        }
        Damage::CutHalf => {
            bytes.truncate(bytes.len() / 2);
            description = format!("truncated to {} of {len}", bytes.len());
        }
        Damage::CutLittle => {
            bytes.truncate(usize::try_from(len - 1 - random.below(len.min(40))).unwrap());
            description = format!("truncated to {} of {len}", bytes.len());
        }
        Damage::Flip | Damage::FlipLate => {
            let late = matches!(damage, Damage::FlipLate);
            let at = if late {
                len - 1 - random.below(len.min(len / 3 + 1))
            } else {
                random.below(len)
            };
            bytes[usize::try_from(at).unwrap()] ^= 1 << random.below(8);
            description = format!("flipped a bit of byte {at} of {len}");
        }
        Damage::FlipIn(part) => {
            let at = place_in(&bytes, part, random);
            bytes[usize::try_from(at).unwrap()] ^= 1 << random.below(8);
            description = format!("flipped a bit of byte {at} of {len}, in {part:?}");
        }
    }
    fs::write(path, bytes).unwrap();
    description
}

/// The active logs: the last one of each class.
fn newest_logs(all: &[PathBuf]) -> Vec<PathBuf> {
    ["log/jobs", "log/events"]
        .iter()
        .filter_map(|class| {
            all.iter()
                .filter(|p| p.starts_with(class) && p.ends_with("log"))
                .max()
                .cloned()
        })
        .collect()
}

/// A violation of the contract.
enum Violation {
    /// Garbage, a panic, or a loss although the log is intact.
    Corruption(String),
    /// An unreported loss, or a daemon that does not start because of one damaged file.
    Unreported(String),
}

#[test]
fn damage_never_yields_garbage_and_every_loss_is_reported() {
    let (corruption, unreported) = try_all();
    assert!(
        corruption.is_empty() && unreported.is_empty(),
        "{}\n{}",
        corruption.join("\n"),
        unreported.join("\n")
    );
}

/// Applies every damage to every kind of file; returns the violations by kind.
fn try_all() -> (Vec<String>, Vec<String>) {
    let seed = crate::seed();
    let mut random = Random::new(seed);
    let mut server = Server::new(seed);
    // Load and restart until each class has a sealed segment.
    for round in 0_u32.. {
        assert!(round < 50, "seed {seed}: nothing is sealed");
        server.start();
        server.wait_until_ready();
        // On a busy machine little is stored in that time, so later rounds are longer.
        server.load(Duration::from_millis(100 << (round / 10)), &mut random);
        server.start();
        server.wait_until_ready();
        let sealed = ["jobs", "events"]
            .iter()
            .all(|class| server.is_sealed(class));
        server.kill();
        if sealed {
            break;
        }
    }
    let (pristine, state) = (server.dir.path().join("pristine"), server.state_dir());
    copy(&state, &pristine);
    let mut all = Vec::new();
    files(&pristine, Path::new(""), &mut all);
    all.sort();
    let newest = newest_logs(&all);
    let mut kinds = std::collections::BTreeMap::<(String, bool), Vec<PathBuf>>::new();
    for path in all {
        kinds.entry(kind(&path, &newest)).or_default().push(path);
    }
    assert!(
        kinds.len() >= 8,
        "seed {seed}: too few kinds of files: {kinds:?}"
    );
    let (mut corruption, mut unreported) = (Vec::new(), Vec::new());
    // Whole directories: a sealed segment, and a class. The directory of an active segment is recorded nowhere else.
    let directory = |path: &Path| path.parent().unwrap().to_owned();
    let logs = kinds
        .iter()
        .filter(|((kind, _), _)| kind.starts_with("log of") && kind.ends_with("sealed"));
    let mut dirs: Vec<_> = logs.map(|(_, paths)| directory(&paths[0])).collect();
    dirs.extend(["log/jobs".into(), "log/events".into()]);
    kinds.insert(("directories".to_owned(), false), dirs.clone());
    for ((kind, renewable), paths) in &kinds {
        let damages: Vec<Damage> = match kind.as_str() {
            "directories" => vec![Damage::Delete; dirs.len()],
            kind if kind.starts_with("log of") => {
                DAMAGES.into_iter().chain(DAMAGES_OF_LOGS).collect()
            }
            _ => DAMAGES.to_vec(),
        };
        // The short form tries one random damage per kind of file.
        let chosen = random.below(damages.len() as u64);
        let is_tried = |n: usize| crate::is_long() || n as u64 == chosen;
        for (n, damage) in damages
            .into_iter()
            .enumerate()
            .filter(|(n, _)| is_tried(*n))
        {
            let any = usize::try_from(random.below(paths.len() as u64)).unwrap();
            let path = &paths[if kind == "directories" { n } else { any }];
            fs::remove_dir_all(&state).unwrap();
            copy(&pristine, &state);
            let what = apply(damage, &state.join(path), &mut random);
            let verified = if *renewable {
                String::new()
            } else {
                server.verify()
            };
            server.start();
            let outcome = check(&mut server, *renewable, path, &verified);
            let describe =
                |text: &str| format!("seed {seed}, {kind}: {} {what}: {text}", path.display());
            match outcome {
                Ok(text) => eprintln!("{}", describe(&text)),
                Err(Violation::Corruption(text)) => corruption.push(describe(&text)),
                Err(Violation::Unreported(text)) => unreported.push(describe(&text)),
            }
        }
    }
    (corruption, unreported)
}

/// Starts on the damaged copy and checks the contract; returns a description of the outcome.
fn check(
    server: &mut Server,
    renewable: bool,
    path: &Path,
    verified: &str,
) -> Result<String, Violation> {
    if !server.came_up() {
        let code = server.ended();
        let log = server.log();
        let last = log.lines().last().unwrap_or_default().to_owned();
        return match code {
            _ if log.contains("panicked") => Err(Violation::Corruption(format!("panic: {last}"))),
            Some(65) if !renewable => Ok(format!("rejected: {last}")),
            Some(65) if path.ends_with("FORMAT") => Ok(format!("rejected: {last}")),
            code if renewable => Err(Violation::Corruption(format!("exit code {code:?}: {last}"))),
            code => Err(Violation::Unreported(format!("exit code {code:?}: {last}"))),
        };
    }
    let read = server.read_back(0);
    let counters = server.counters();
    let log = server.log();
    server.kill();
    if log.contains("panicked") && !renewable {
        return Err(Violation::Corruption(format!("panic:\n{log}")));
    }
    let acknowledged = server.acknowledged();
    let (found, _) = match read {
        Ok(read) => read,
        Err(error) => {
            return Err(Violation::Unreported(format!(
                "cannot list events: {error}"
            )));
        }
    };
    let found: std::collections::HashSet<_> = found.into_iter().map(|found| found.name).collect();
    let missing = acknowledged
        .iter()
        .filter(|name| !found.contains(name))
        .count();
    let counted = counters["frames_damaged"]
        + counters["tail_bytes_truncated"]
        + counters["segments_missing"]
        > 0;
    let mut path = server.state_dir().join(path);
    // Of a segment that is gone, nothing tells the generation.
    if !path.exists() && path.extension().is_some_and(|n| n.to_str() != Some("log")) {
        path.set_extension("");
    }
    let named = |line: &str| {
        line.contains(path.to_str().unwrap())
            && (line.contains("offset=") || line.contains("at byte "))
    };
    let reported = log.lines().any(named);
    match missing {
        0 => Ok(format!("all {} entries found", acknowledged.len())),
        _ if renewable => Err(Violation::Corruption(format!(
            "{missing} of {} missing\n{log}",
            acknowledged.len()
        ))),
        _ if !counted => Err(Violation::Unreported(format!(
            "{missing} of {} missing and not counted",
            acknowledged.len()
        ))),
        _ if !reported => Err(Violation::Unreported(format!(
            "{missing} missing, file and offset not logged:\n{log}"
        ))),
        _ if !verified.contains(path.to_str().unwrap()) => Err(Violation::Unreported(format!(
            "{missing} missing, not reported by `store verify`:\n{verified}"
        ))),
        _ => Ok(format!(
            "{missing} of {} missing, reported",
            acknowledged.len()
        )),
    }
}
