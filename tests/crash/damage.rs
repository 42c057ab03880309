//! Bytes on disk that are not what was written there.
//!
//! A store of several segments is made and killed. Then, for each kind of file and each kind of damage, a copy
//! of it is damaged and opened. Whatever comes back must be what was sent; what is missing must have been
//! said. What can be made again from the log must cost nothing at all.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::house::House;
use crate::model::Random;

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

const DAMAGES: [Damage; 5] =
    [Damage::CutHalf, Damage::CutLittle, Damage::Flip, Damage::FlipLate, Damage::Delete];

const DAMAGES_OF_LOGS: [Damage; 4] = [
    Damage::FlipIn(Part::Header),
    Damage::FlipIn(Part::FrameHeader),
    Damage::FlipIn(Part::Head),
    Damage::FlipIn(Part::Bodies),
];

/// Where a part of a log lies: of the whole file, or of a random frame (docs/FORMAT.md).
fn place_in(bytes: &[u8], part: Part, random: &mut Random) -> u64 {
    let store_id = u64::from_le_bytes(bytes[64..72].try_into().unwrap());
    let magic = xxhash_rust::xxh3::xxh3_64_with_seed(&[], store_id).to_le_bytes();
    let frames: Vec<usize> =
        (80..bytes.len()).step_by(16).filter(|at| bytes[*at..].starts_with(&magic[..4])).collect();
    let frame = frames[usize::try_from(random.below(frames.len() as u64)).unwrap()];
    let number = |at: usize| u64::from(u32::from_le_bytes(bytes[frame + at..][..4].try_into().unwrap()));
    let (head, bodies) = (number(8), number(12));
    let (from, len) = match part {
        Part::Header => (0, 80),
        Part::FrameHeader => (frame as u64, 48),
        Part::Head => (frame as u64 + 48, head),
        Part::Bodies => (frame as u64 + 48 + head.next_multiple_of(16), bodies),
    };
    from + random.below(len)
}

/// The kind of a file of the state directory, and whether it can be made again.
fn kind(path: &Path, newest: &[PathBuf]) -> (String, bool) {
    let text = path.to_string_lossy();
    let name = path.file_name().unwrap().to_string_lossy().into_owned();
    let class = if text.contains("log/jobs") { "jobs" } else { "events" };
    let part = |of: &str| format!("{of}/{}", name.split('.').next().unwrap_or_default());
    if text.contains("/index/") || text.contains("/index.tmp/") {
        (part("index"), true)
    } else if text.starts_with("state/") {
        (part("state"), true)
    } else if name.starts_with("log.cut-") {
        (part("log.cut"), true)
    } else if text.starts_with("log/") {
        let age = if newest.iter().any(|newest| newest == path) { "growing" } else { "sealed" };
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
    let said;
    match damage {
        Damage::Delete => {
            fs::remove_file(path).unwrap();
            return "deleted".to_owned();
        }
        _ if bytes.is_empty() => {
            bytes = b"garbage".to_vec();
            said = "given content".to_owned();
        }
        Damage::CutHalf => {
            bytes.truncate(bytes.len() / 2);
            said = format!("cut to {} of {len}", bytes.len());
        }
        Damage::CutLittle => {
            bytes.truncate(usize::try_from(len - 1 - random.below(len.min(40))).unwrap());
            said = format!("cut to {} of {len}", bytes.len());
        }
        Damage::Flip | Damage::FlipLate => {
            let late = matches!(damage, Damage::FlipLate);
            let at = if late { len - 1 - random.below(len.min(len / 3 + 1)) } else { random.below(len) };
            bytes[usize::try_from(at).unwrap()] ^= 1 << random.below(8);
            said = format!("flipped a bit of byte {at} of {len}");
        }
        Damage::FlipIn(part) => {
            let at = place_in(&bytes, part, random);
            bytes[usize::try_from(at).unwrap()] ^= 1 << random.below(8);
            said = format!("flipped a bit of byte {at} of {len}, in {part:?}");
        }
    }
    fs::write(path, bytes).unwrap();
    said
}

/// The logs that grow: the last one of each class.
fn newest_logs(all: &[PathBuf]) -> Vec<PathBuf> {
    ["log/jobs", "log/events"]
        .iter()
        .filter_map(|class| all.iter().filter(|p| p.starts_with(class) && p.ends_with("log")).max().cloned())
        .collect()
}

/// What is wrong with what became of a damage.
enum Finding {
    /// Garbage, a panic, or a loss although the log is whole.
    Grave(String),
    /// Something is missing, rightly, and nothing says so; or one bad file keeps the daemon from starting.
    Unsaid(String),
}

#[test]
fn damage_never_becomes_garbage_and_whatever_it_takes_is_counted() {
    let (grave, unsaid) = try_all();
    assert!(grave.is_empty() && unsaid.is_empty(), "{}\n{}", grave.join("\n"), unsaid.join("\n"));
}

/// Every damage to every kind of file: what is wrong, the grave and the merely unsaid.
fn try_all() -> (Vec<String>, Vec<String>) {
    let seed = crate::seed();
    let mut random = Random::new(seed);
    let mut house = House::new(seed);
    // Until each class has a sealed segment: some time of load, and a start that seals what is full.
    for round in 0.. {
        assert!(round < 50, "seed {seed}: nothing is sealed");
        house.start();
        house.wait_until_ready();
        house.load(Duration::from_millis(100), &mut random);
        house.start();
        house.wait_until_ready();
        let sealed = ["jobs", "events"].iter().all(|class| house.is_sealed(class));
        house.kill();
        if sealed {
            break;
        }
    }
    let (pristine, state) = (house.dir.path().join("pristine"), house.state_dir());
    copy(&state, &pristine);
    let mut all = Vec::new();
    files(&pristine, Path::new(""), &mut all);
    all.sort();
    let newest = newest_logs(&all);
    let mut kinds = std::collections::BTreeMap::<(String, bool), Vec<PathBuf>>::new();
    for path in all {
        kinds.entry(kind(&path, &newest)).or_default().push(path);
    }
    assert!(kinds.len() >= 8, "seed {seed}: too few kinds of files: {kinds:?}");
    let (mut grave, mut unsaid) = (Vec::new(), Vec::new());
    // Whole directories: a segment of each age, and a class. Of a growing segment's directory nothing else knows.
    let directory = |path: &Path| path.parent().unwrap().to_owned();
    let logs = kinds.iter().filter(|((kind, _), _)| kind.starts_with("log of") && kind.ends_with("sealed"));
    let mut dirs: Vec<_> = logs.map(|(_, paths)| directory(&paths[0])).collect();
    dirs.extend(["log/jobs".into(), "log/events".into()]);
    kinds.insert(("directories".to_owned(), false), dirs.clone());
    for ((kind, renewable), paths) in &kinds {
        let damages: Vec<Damage> = match kind.as_str() {
            "directories" => vec![Damage::Delete; dirs.len()],
            kind if kind.starts_with("log of") => DAMAGES.into_iter().chain(DAMAGES_OF_LOGS).collect(),
            _ => DAMAGES.to_vec(),
        };
        // All of them in the long form; in the short one each kind of file has one, and another one next time.
        let chosen = random.below(damages.len() as u64);
        let is_tried = |n: usize| crate::is_long() || n as u64 == chosen;
        for (n, damage) in damages.into_iter().enumerate().filter(|(n, _)| is_tried(*n)) {
            let any = usize::try_from(random.below(paths.len() as u64)).unwrap();
            let path = &paths[if kind == "directories" { n } else { any }];
            fs::remove_dir_all(&state).unwrap();
            copy(&pristine, &state);
            let what = apply(damage, &state.join(path), &mut random);
            let verified = if *renewable { String::new() } else { house.verify() };
            house.start();
            let verdict = judge(&mut house, *renewable, path, &verified);
            let told = |words: &str| format!("seed {seed}, {kind}: {} {what}: {words}", path.display());
            match verdict {
                Ok(words) => eprintln!("{}", told(&words)),
                Err(Finding::Grave(words)) => grave.push(told(&words)),
                Err(Finding::Unsaid(words)) => unsaid.push(told(&words)),
            }
        }
    }
    (grave, unsaid)
}

/// What became of it, or what is wrong with that.
fn judge(house: &mut House, renewable: bool, path: &Path, verified: &str) -> Result<String, Finding> {
    if !house.came_up() {
        let code = house.ended();
        let log = house.log();
        let last = log.lines().last().unwrap_or_default().to_owned();
        return match code {
            _ if log.contains("panicked") => Err(Finding::Grave(format!("it panicked: {last}"))),
            Some(65) if !renewable => Ok(format!("refused: {last}")),
            Some(65) if path.ends_with("FORMAT") => Ok(format!("refused: {last}")),
            code if renewable => Err(Finding::Grave(format!("it ended with {code:?}: {last}"))),
            code => Err(Finding::Unsaid(format!("it ended with {code:?}: {last}"))),
        };
    }
    let read = house.read_back(0);
    let counters = house.counters();
    let log = house.log();
    house.kill();
    if log.contains("panicked") && !renewable {
        return Err(Finding::Grave(format!("it panicked:\n{log}")));
    }
    let acknowledged = house.acknowledged();
    let (found, _) = match read {
        Ok(read) => read,
        Err(words) => return Err(Finding::Unsaid(format!("the list of events failed as a whole: {words}"))),
    };
    let found: std::collections::HashSet<_> = found.into_iter().map(|found| found.name).collect();
    let missing = acknowledged.iter().filter(|name| !found.contains(name)).count();
    let counted = counters["frames_damaged"] + counters["tail_bytes_cut"] + counters["segments_missing"] > 0;
    let path = house.state_dir().join(path);
    let named = |line: &str| {
        line.contains(path.to_str().unwrap()) && (line.contains("offset=") || line.contains("at byte "))
    };
    let told = log.lines().any(named);
    match missing {
        0 => Ok(format!("all {} there", acknowledged.len())),
        _ if renewable => Err(Finding::Grave(format!("{missing} of {} missing\n{log}", acknowledged.len()))),
        _ if !counted => {
            Err(Finding::Unsaid(format!("{missing} of {} missing and not counted", acknowledged.len())))
        }
        _ if !told => Err(Finding::Unsaid(format!("{missing} missing, without file and offset:\n{log}"))),
        _ if !verified.contains(path.to_str().unwrap()) => Err(Finding::Unsaid(format!(
            "{missing} missing, and `store verify` does not say so:\n{verified}"
        ))),
        _ => Ok(format!("{missing} of {} missing, and said", acknowledged.len())),
    }
}
