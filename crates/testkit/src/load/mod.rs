//! Loads: synthetic loads, generated from a seed, and recorded buses.
//!
//! `mix`: 80 % of 300 to 400 bytes, 18 % of 2 to 3 KB, 2 % of 20 to 40 KB, mean 1.3 KB; words of
//! Salt's returns with random numbers between them, which zstd level 1 compresses about 4.2 times.
//! `small`: pings, publishes, beacons and tokens, median 180 bytes.

pub mod driver;
mod examples;
pub mod template;

use std::path::Path;

use anyhow::Context as _;
use serde_json::{Value as Json, json};

use self::template::{Encoding, EventGenerator, EventTemplate, Jobs};
use super::{Random, bus};
use saltcellar_wire::msgpack::Reader;
use saltcellar_wire::msgpack::json::from_json;
use saltcellar_wire::{frame, salt_event};

/// Number of templates of a load. Their words are fixed; every number is new in every event. The number is large enough
/// that a template never repeats within the window of a compressor.
const TEMPLATES: u64 = 8_192;

/// Larger recorded events are skipped: a recording of some minutes contains one or two of a
/// megabyte, which would dominate the replay.
const EVENT_BYTES_MAX: usize = 64 * 1024;

/// Bytes of tag and data of a state run's return without its text.
const STATE_RUN_BYTES: usize = 176;

const WORDS: [&str; 24] = [
    "state_|-nginx_|-running",
    "result",
    "changes",
    "comment",
    "The service nginx is already running",
    "duration",
    "start_time",
    "name",
    "pkg",
    "installed",
    "version",
    "/etc/nginx/nginx.conf",
    "managed",
    "diff",
    "True",
    "retcode",
    "__run_num__",
    "__sls__",
    "file_|-sshd_config_|-/etc/ssh/sshd_config_|-",
    "All specified packages are already",
    "lsb_distrib_release",
    "Unchanged",
    "old",
    "new",
];

/// Templates of events, and how they form jobs.
#[derive(Debug)]
pub struct Load {
    templates: Vec<EventTemplate>,
    jobs: Jobs,
    seed: u64,
}

impl Load {
    fn new(events: &[(String, Json)], jobs: Jobs, seed: u64) -> Self {
        let events: Vec<(&[u8], Vec<u8>)> = events
            .iter()
            .map(|(tag, data)| (tag.as_bytes(), packed(data)))
            .collect();
        let (templates, _) =
            examples::templates(events.iter().map(|(tag, data)| (*tag, data.as_slice())));
        Self {
            templates,
            jobs,
            seed,
        }
    }

    /// A generator of the load's events.
    pub fn generator(&self, encoding: Encoding) -> EventGenerator {
        EventGenerator::new(&self.templates, encoding, self.jobs, self.seed)
    }

    /// Mean and median bytes of an event.
    pub fn sizes(&self) -> (f64, usize) {
        let mut bytes: Vec<_> = self.templates.iter().map(EventTemplate::len).collect();
        bytes.sort_unstable();
        let sum: usize = bytes.iter().sum();
        (
            sum as f64 / bytes.len().max(1) as f64,
            bytes.get(bytes.len() / 2).copied().unwrap_or(0),
        )
    }
}

/// A value as msgpack.
pub fn packed(value: &Json) -> Vec<u8> {
    let value = from_json(value).expect("loads contain no special form of a value");
    let mut bytes = Vec::new();
    rmpv::encode::write_value(&mut bytes, &value).expect("a write to memory succeeds");
    bytes
}

const JID: &str = "20261121000000000000";
const STAMP: &str = "2026-11-21T00:00:00.000000+00:00";

fn a_return(fun: &str, answer: &Json) -> (String, Json) {
    let data = json!({
        "cmd": "_return", "id": "web1", "success": true, "return": answer, "retcode": 0, "jid": JID, "fun": fun,
        "_stamp": STAMP,
    });
    (format!("salt/job/{JID}/ret/web1"), data)
}

fn a_ping() -> (String, Json) {
    a_return("test.ping", &true.into())
}

fn a_publish(fun: &str) -> (String, Json) {
    let data = json!({
        "jid": JID, "tgt_type": "glob", "tgt": "web1", "user": "root", "fun": fun, "arg": [], "minions": ["web1"],
        "_stamp": STAMP,
    });
    (format!("salt/job/{JID}/new"), data)
}

fn a_beacon() -> (String, Json) {
    let data = json!({ "1m": "0.000", "5m": "0.000", "id": "web1", "_stamp": STAMP });
    ("salt/beacon/web1/load/".to_owned(), data)
}

fn a_token() -> (String, Json) {
    let nonce = "0".repeat(20);
    let data =
        json!({ "result": true, "act": "accept", "id": "web1", "nonce": nonce, "_stamp": STAMP });
    ("salt/auth".to_owned(), data)
}

/// The return of a state run of about `bytes` bytes, including the tag.
fn a_state_run(bytes: u64, scale: f64, random: &mut Random) -> (String, Json) {
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a size of some KB"
    )]
    let bytes = (bytes as f64 * scale) as usize;

    let mut text = String::new();
    while text.len() + STATE_RUN_BYTES < bytes {
        text.push_str(random.pick(&WORDS).copied().unwrap_or_default());
        text.push_str(if random.below(2) == 0 {
            "000000"
        } else {
            " 000"
        });
    }

    a_return("state.apply", &text.into())
}

/// A load of the first templates, a multiple of `cycle`.
fn load(
    seed: u64,
    jobs: Jobs,
    cycle: u64,
    mut event: impl FnMut(u64, &mut Random) -> (String, Json),
) -> Load {
    let mut random = Random::of(seed, u64::MAX);

    // Whole cycles, because a replay must keep the proportions.
    let events: Vec<_> = (0..(TEMPLATES / cycle).max(1) * cycle)
        .map(|n| event(n, &mut random))
        .collect();

    Load::new(&events, jobs, seed)
}

/// The load `mix`, with all sizes multiplied by `scale`.
pub fn mix(seed: u64, scale: f64) -> Load {
    load(seed, Jobs::Interleaved, 100, |n, random| {
        // Deterministic, because the mean must not depend on the seed.
        let bytes = match n * 37 % 100 {
            0..80 => 300 + random.below(100),
            80..98 => 2_000 + random.below(1_000),
            _ => 20_000 + random.below(20_000),
        };
        a_state_run(bytes, scale, random)
    })
}

/// The load `small`, with all sizes multiplied by `scale`.
pub fn small(seed: u64, scale: f64) -> Load {
    load(seed, Jobs::Interleaved, 20, |n, random| match n * 7 % 20 {
        _ if scale > 1.3 => a_state_run(190, scale, random),
        0..8 => a_ping(),
        8..12 => a_publish("test.ping"),
        12..16 => a_beacon(),
        16..18 => a_token(),
        _ => a_state_run(240 + random.below(160), 1.0, random),
    })
}

/// Jobs: a publish followed by `returns` returns.
pub fn jobs(seed: u64, returns: u64) -> Load {
    load(
        seed,
        Jobs::Of(returns + 1),
        returns + 1,
        |n, random| match n % (returns + 1) {
            0 => a_publish("state.apply"),
            _ => a_state_run(250 + random.below(100), 1.0, random),
        },
    )
}

/// Returns: pings and state runs.
pub fn returns(seed: u64) -> Load {
    load(seed, Jobs::Interleaved, 4, |n, random| match n % 4 {
        0..3 => a_ping(),
        _ => a_state_run(300 + random.below(1_500), 1.0, random),
    })
}

/// A recorded bus, replayed repeatedly, see [`bus`] for the file and [`examples`] for what changes.
pub fn recorded(path: &Path, seed: u64) -> anyhow::Result<Load> {
    let read = || {
        let bytes = std::fs::read(path)?;
        let (_, frames) = bus::read_recording(&bytes)?;

        let events = frames
            .iter()
            .filter_map(|frame| frame::body(frame).and_then(salt_event::split));

        // Only complete values, because templates are made from parsed values. A stamp of another
        // form than Salt's would stay as it was recorded, and the daemon warns of stamps that are a
        // day off.
        let has_odd_stamp = |data| {
            salt_event::stamp_of(data).is_some_and(|stamp| !examples::is_stamp(stamp.as_bytes()))
        };
        let events = events.filter(|(tag, data)| {
            !has_odd_stamp(data)
                && tag.len() + data.len() <= EVENT_BYTES_MAX
                && Reader::new(data)
                    .value()
                    .is_ok_and(|value| value.len() == data.len())
        });

        let (templates, jobs) = examples::templates(events);
        anyhow::ensure!(!templates.is_empty(), "no events");

        Ok(Load {
            templates,
            jobs: Jobs::Replayed(jobs),
            seed,
        })
    };
    read().with_context(|| format!("read the recorded bus {}", path.display()))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn loads_have_their_documented_sizes() {
        let (mean, median) = mix(7, 1.0).sizes();
        assert!(
            (1250.0..1400.0).contains(&mean) && (300..=400).contains(&median),
            "{mean} {median}"
        );
        let (_, median) = small(7, 1.0).sizes();
        assert!((165..=195).contains(&median), "{median}");
        let (mean, _) = mix(7, 2.0).sizes();
        assert!((2500.0..2800.0).contains(&mean), "{mean}");
    }

    #[test]
    fn every_event_is_valid_msgpack_with_a_new_jid_and_minion() {
        for load in [
            mix(1, 0.1),
            small(1, 1.0),
            small(1, 2.0),
            jobs(1, 2),
            returns(1),
        ] {
            let generator = load.generator(Encoding::EventReturn);
            for n in 0..load.templates.len() as u64 {
                let mut out = Vec::new();
                generator.write(n, &mut out);
                assert_eq!(
                    Reader::new(&out).value().map(<[u8]>::len),
                    Ok(out.len()),
                    "event {n}"
                );
                let text = String::from_utf8_lossy(&out);
                assert!(
                    !text.contains(JID) && !text.contains("web1/") && !text.contains(STAMP),
                    "{text}"
                );
            }
        }
    }

    #[test]
    fn each_replay_has_new_values_and_is_valid_msgpack() {
        for release in ["3006.28", "3007.15", "3008.3"] {
            let path = format!(
                "{}/../../tests/data/{release}.sbus",
                env!("CARGO_MANIFEST_DIR")
            );
            let load = recorded(Path::new(&path), 7).unwrap();
            let generator = load.generator(Encoding::EventReturn);
            let mut seen = BTreeSet::new();
            let mut job_tags = 0;
            for n in 0..2 * load.templates.len() as u64 {
                let mut out = Vec::new();
                generator.write(n, &mut out);
                let whole = Reader::new(&out).value().map(<[u8]>::len);
                assert_eq!(whole, Ok(out.len()), "{release} event {n}");
                let value = rmpv::decode::read_value(&mut out.as_slice()).unwrap();
                let tag = value["tag"]
                    .as_slice()
                    .unwrap_or_else(|| value["tag"].as_str().unwrap().as_bytes());
                let recorded = tag
                    .split(|b| *b == b'/')
                    .any(|word| word == b"web1" || word == b"db1");
                assert!(!recorded, "{}", String::from_utf8_lossy(tag));
                if tag.starts_with(b"salt/job/") {
                    job_tags += 1;
                    assert!(
                        seen.insert((n, tag.to_vec())),
                        "{}",
                        String::from_utf8_lossy(tag)
                    );
                }
            }
            assert!(job_tags > 10);
        }
    }
}
