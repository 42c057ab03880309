//! The loads that are made up: what a busy and what a quiet master fires, from a seed.
//!
//! `mix`: 80 % of 300 to 400 bytes, 18 % of 2 to 3 KB, 2 % of 20 to 40 KB, mean 1.3 KB; words as in Salt's
//! returns with random numbers between them, so that zstd level 1 packs them about 4.2 times. `small`: pings,
//! publishes, beacons and tokens, median 180 bytes.

use super::template::{Form, JID_LEN, MINION_DIGITS, Part, Place, Random, What};
use crate::wire::msgpack::Writer;

/// Forms of a load. They hold the words; every number in them is new in every event. So many that a packer
/// never sees the same form twice within its window.
const FORMS: u64 = 8_192;

const ZEROS: &[u8; 32] = &[b'0'; 32];

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

/// Writes text and marks places in it: `{jid}`, `{id}`, `{stamp}`, and `0` for each random digit.
struct Pen {
    w: Vec<u8>,
    places: Vec<Place>,
}

impl Pen {
    fn new() -> Self {
        Self { w: Vec::new(), places: Vec::new() }
    }

    fn part(self) -> Part {
        Part { bytes: self.w, places: self.places }
    }

    /// msgpack without places.
    fn raw(&mut self, write: impl FnOnce(&mut Writer)) -> &mut Self {
        let mut w = Writer::new();
        write(&mut w);
        self.w.extend_from_slice(&w.into_bytes());
        self
    }

    /// Text with places, bare.
    fn text(&mut self, text: &str) -> &mut Self {
        let mut rest = text;
        while let Some(c) = rest.chars().next() {
            let (what, filler, word): (_, &[u8], _) = if rest.starts_with("{jid}") {
                (What::Jid(0), &ZEROS[..JID_LEN], 5)
            } else if rest.starts_with("{stamp}") {
                (What::Stamp, b"2026-11-21T00:00:00.000000+00:00", 7)
            } else if rest.starts_with("{id}") {
                self.w.extend_from_slice(b"web");
                (What::Minion(0), &ZEROS[..MINION_DIGITS], 4)
            } else if c == '0' {
                let run = (rest.len() - rest.trim_start_matches('0').len()).min(ZEROS.len());
                (What::Digits(u32::try_from(run).unwrap_or(0)), ZEROS.get(..run).unwrap_or_default(), run)
            } else {
                let mut buffer = [0; 4];
                self.w.extend_from_slice(c.encode_utf8(&mut buffer).as_bytes());
                rest = rest.get(c.len_utf8()..).unwrap_or_default();
                continue;
            };
            self.places.push(Place { at: self.w.len(), what });
            self.w.extend_from_slice(filler);
            rest = rest.get(word..).unwrap_or_default();
        }
        self
    }

    /// A msgpack str with places.
    fn str(&mut self, text: &str) -> &mut Self {
        let mut body = Self::new();
        body.text(text);
        let len = body.w.len();
        let filler = "x".repeat(len);
        self.raw(|w| {
            w.str(&filler);
        });
        self.w.truncate(self.w.len() - len);
        let shift = self.w.len();
        self.places.extend(body.places.iter().map(|p| Place { at: p.at + shift, ..*p }));
        self.w.extend_from_slice(&body.w);
        self
    }
}

fn tag(text: &str) -> Part {
    let mut pen = Pen::new();
    pen.text(text);
    pen.part()
}

/// A minion's return, as the master fires it.
fn a_return(fun: &str, answer: impl FnOnce(&mut Pen)) -> Form {
    let mut pen = Pen::new();
    pen.raw(|w| {
        w.map(8).str("cmd").str("_return").str("id");
    });
    pen.str("{id}").raw(|w| {
        w.str("success").bool(true).str("return");
    });
    answer(&mut pen);
    pen.raw(|w| {
        w.str("retcode").int(0).str("jid");
    });
    pen.str("{jid}").raw(|w| {
        w.str("fun").str(fun).str("_stamp");
    });
    pen.str("{stamp}");
    Form { tag: tag("salt/job/{jid}/ret/{id}"), data: pen.part() }
}

/// The publish of a job.
fn a_publish(fun: &str) -> Form {
    let mut pen = Pen::new();
    pen.raw(|w| {
        w.map(8).str("jid");
    });
    pen.str("{jid}").raw(|w| {
        w.str("tgt_type").str("glob").str("tgt");
    });
    pen.str("{id}").raw(|w| {
        w.str("user").str("root").str("fun").str(fun).str("arg").array(0).str("minions").array(1);
    });
    pen.str("{id}").raw(|w| {
        w.str("_stamp");
    });
    pen.str("{stamp}");
    Form { tag: tag("salt/job/{jid}/new"), data: pen.part() }
}

/// The return of a ping.
fn a_ping() -> Form {
    a_return("test.ping", |pen| {
        pen.raw(|w| {
            w.bool(true);
        });
    })
}

fn a_beacon() -> Form {
    let mut pen = Pen::new();
    pen.raw(|w| {
        w.map(4).str("1m");
    });
    pen.str("0.000").raw(|w| {
        w.str("5m");
    });
    pen.str("0.000").raw(|w| {
        w.str("id");
    });
    pen.str("{id}").raw(|w| {
        w.str("_stamp");
    });
    pen.str("{stamp}");
    Form { tag: tag("salt/beacon/{id}/load/"), data: pen.part() }
}

fn a_token() -> Form {
    let mut pen = Pen::new();
    pen.raw(|w| {
        w.map(5).str("result").bool(true).str("act").str("accept").str("id");
    });
    pen.str("{id}").raw(|w| {
        w.str("nonce");
    });
    pen.str("00000000000000000000").raw(|w| {
        w.str("_stamp");
    });
    pen.str("{stamp}");
    Form { tag: tag("salt/auth"), data: pen.part() }
}

/// The return of a state run of about so many bytes, tag and all.
fn a_state_run(bytes: usize, random: &mut Random) -> Form {
    let bare = a_return("state.apply", |pen| {
        pen.str(&"x".repeat(64));
    });
    let frame = bare.tag.bytes.len() + bare.data.bytes.len() - 64;
    let mut text = String::new();
    while text.len() + frame < bytes {
        let word = usize::try_from(random.below(WORDS.len() as u64)).ok().and_then(|n| WORDS.get(n));
        // Words have no zero digit: a zero is a place.
        text.push_str(word.copied().unwrap_or_default());
        text.push_str(if random.below(2) == 0 { "000000" } else { " 000" });
    }
    a_return("state.apply", |pen| {
        pen.str(&text);
    })
}

/// The forms of `mix`, with every size times `scale`.
pub(super) fn mix(seed: u64, scale: f64) -> Vec<Form> {
    let mut random = Random::of(seed, u64::MAX);
    let form = |n: u64| {
        // By turns, not by chance: the mean must not depend on the seed.
        let bytes = match n * 37 % 100 {
            0..80 => 300 + random.below(100),
            80..98 => 2_000 + random.below(1_000),
            _ => 20_000 + random.below(20_000),
        };
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a size of some KB")]
        a_state_run((bytes as f64 * scale) as usize, &mut random)
    };
    (0..FORMS / 100 * 100).map(form).collect()
}

/// The forms of `small`, with every size times `scale`.
pub(super) fn small(seed: u64, scale: f64) -> Vec<Form> {
    let mut random = Random::of(seed, u64::MAX);
    let form = |n: u64| match n * 7 % 20 {
        _ if scale > 1.3 =>
        {
            #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a size of some KB")]
            a_state_run((190.0 * scale) as usize, &mut random)
        }
        0..8 => a_ping(),
        8..12 => a_publish("test.ping"),
        12..16 => a_beacon(),
        16..18 => a_token(),
        _ => a_state_run(240 + usize::try_from(random.below(160)).unwrap_or(0), &mut random),
    };
    (0..FORMS / 20 * 20).map(form).collect()
}

/// The forms of jobs: a publish, then so many returns.
pub(super) fn jobs(seed: u64, returns: u64) -> Vec<Form> {
    let mut random = Random::of(seed, u64::MAX);
    let each = returns + 1;
    let form = |n: u64| match n % each {
        0 => a_publish("state.apply"),
        _ => a_state_run(250 + usize::try_from(random.below(100)).unwrap_or(0), &mut random),
    };
    (0..(FORMS / each).max(1) * each).map(form).collect()
}

/// The forms of returns alone: pings and state runs.
pub(super) fn returns(seed: u64) -> Vec<Form> {
    let mut random = Random::of(seed, u64::MAX);
    let form = |n: u64| match n % 4 {
        0..3 => a_ping(),
        _ => a_state_run(300 + usize::try_from(random.below(1_500)).unwrap_or(0), &mut random),
    };
    (0..FORMS / 4 * 4).map(form).collect()
}

/// Mean and median bytes of an event.
pub(super) fn sizes(forms: &[Form]) -> (f64, usize) {
    let mut bytes: Vec<_> = forms.iter().map(|f| f.tag.bytes.len() + f.data.bytes.len()).collect();
    bytes.sort_unstable();
    let sum: usize = bytes.iter().sum();
    (sum as f64 / bytes.len().max(1) as f64, bytes.get(bytes.len() / 2).copied().unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::msgpack::Reader;

    #[test]
    fn the_loads_have_the_sizes_they_are_named_for() {
        let (mean, median) = sizes(&mix(7, 1.0));
        assert!((1250.0..1400.0).contains(&mean) && (300..=400).contains(&median), "{mean} {median}");
        let (_, median) = sizes(&small(7, 1.0));
        assert!((165..=195).contains(&median), "{median}");
        let (mean, _) = sizes(&mix(7, 2.0));
        assert!((2500.0..2800.0).contains(&mean), "{mean}");
    }

    #[test]
    fn every_form_is_msgpack() {
        for form in mix(1, 1.0).iter().chain(&small(1, 1.0)).chain(&small(1, 2.0)).chain(&jobs(1, 2)) {
            let value = Reader::new(&form.data.bytes).value().unwrap();
            assert_eq!(value.len(), form.data.bytes.len());
        }
    }
}
