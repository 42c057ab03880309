//! Synthetic loads, generated from a seed.
//!
//! `mix`: 80 % of 300 to 400 bytes, 18 % of 2 to 3 KB, 2 % of 20 to 40 KB, mean 1.3 KB; words of Salt's returns with random
//! numbers between them, so that zstd level 1 compresses about 4.2 times. `small`: pings, publishes, beacons and tokens,
//! median 180 bytes.

pub(super) mod corpus;
pub(super) mod driver;
pub(super) mod template;

use self::template::{EventTemplate, JID_LEN, MINION_DIGITS, Random, Slot, SlotContent, Template};
use crate::wire::msgpack::Writer;

/// Number of templates of a load. Their words are fixed; every number is new in every event. The number is large enough
/// that a template never repeats within the window of a compressor.
const TEMPLATES: u64 = 8_192;

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

/// Writes text with slots: `{jid}`, `{id}`, `{stamp}`, and `0` for each random digit.
struct TemplateWriter {
    w: Vec<u8>,
    slots: Vec<Slot>,
}

impl TemplateWriter {
    fn new() -> Self {
        Self { w: Vec::new(), slots: Vec::new() }
    }

    fn part(self) -> Template {
        Template { bytes: self.w, slots: self.slots }
    }

    /// Appends msgpack without slots.
    fn raw(&mut self, write: impl FnOnce(&mut Writer)) -> &mut Self {
        let mut w = Writer::new();
        write(&mut w);
        self.w.extend_from_slice(&w.into_bytes());
        self
    }

    /// Appends text with slots, without a msgpack head.
    fn text(&mut self, text: &str) -> &mut Self {
        let mut rest = text;
        while let Some(c) = rest.chars().next() {
            let (content, filler, word): (_, &[u8], _) = if rest.starts_with("{jid}") {
                (SlotContent::Jid(0), &ZEROS[..JID_LEN], 5)
            } else if rest.starts_with("{stamp}") {
                (SlotContent::Stamp, b"2026-11-21T00:00:00.000000+00:00", 7)
            } else if rest.starts_with("{id}") {
                self.w.extend_from_slice(b"web");
                (SlotContent::Minion(0), &ZEROS[..MINION_DIGITS], 4)
            } else if c == '0' {
                let run = (rest.len() - rest.trim_start_matches('0').len()).min(ZEROS.len());
                (
                    SlotContent::Digits(u32::try_from(run).unwrap_or(0)),
                    ZEROS.get(..run).unwrap_or_default(),
                    run,
                )
            } else {
                let mut buffer = [0; 4];
                self.w.extend_from_slice(c.encode_utf8(&mut buffer).as_bytes());
                rest = rest.get(c.len_utf8()..).unwrap_or_default();
                continue;
            };
            self.slots.push(Slot { at: self.w.len(), content });
            self.w.extend_from_slice(filler);
            rest = rest.get(word..).unwrap_or_default();
        }
        self
    }

    /// Appends a msgpack str with slots.
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
        self.slots.extend(body.slots.iter().map(|p| Slot { at: p.at + shift, ..*p }));
        self.w.extend_from_slice(&body.w);
        self
    }
}

fn tag(text: &str) -> Template {
    let mut writer = TemplateWriter::new();
    writer.text(text);
    writer.part()
}

/// The event of a minion's return.
fn a_return(fun: &str, answer: impl FnOnce(&mut TemplateWriter)) -> EventTemplate {
    let mut writer = TemplateWriter::new();
    writer.raw(|w| {
        w.map(8).str("cmd").str("_return").str("id");
    });
    writer.str("{id}").raw(|w| {
        w.str("success").bool(true).str("return");
    });
    answer(&mut writer);
    writer.raw(|w| {
        w.str("retcode").int(0).str("jid");
    });
    writer.str("{jid}").raw(|w| {
        w.str("fun").str(fun).str("_stamp");
    });
    writer.str("{stamp}");
    EventTemplate { tag: tag("salt/job/{jid}/ret/{id}"), data: writer.part() }
}

fn a_publish(fun: &str) -> EventTemplate {
    let mut writer = TemplateWriter::new();
    writer.raw(|w| {
        w.map(8).str("jid");
    });
    writer.str("{jid}").raw(|w| {
        w.str("tgt_type").str("glob").str("tgt");
    });
    writer.str("{id}").raw(|w| {
        w.str("user").str("root").str("fun").str(fun).str("arg").array(0).str("minions").array(1);
    });
    writer.str("{id}").raw(|w| {
        w.str("_stamp");
    });
    writer.str("{stamp}");
    EventTemplate { tag: tag("salt/job/{jid}/new"), data: writer.part() }
}

fn a_ping() -> EventTemplate {
    a_return("test.ping", |writer| {
        writer.raw(|w| {
            w.bool(true);
        });
    })
}

fn a_beacon() -> EventTemplate {
    let mut writer = TemplateWriter::new();
    writer.raw(|w| {
        w.map(4).str("1m");
    });
    writer.str("0.000").raw(|w| {
        w.str("5m");
    });
    writer.str("0.000").raw(|w| {
        w.str("id");
    });
    writer.str("{id}").raw(|w| {
        w.str("_stamp");
    });
    writer.str("{stamp}");
    EventTemplate { tag: tag("salt/beacon/{id}/load/"), data: writer.part() }
}

fn a_token() -> EventTemplate {
    let mut writer = TemplateWriter::new();
    writer.raw(|w| {
        w.map(5).str("result").bool(true).str("act").str("accept").str("id");
    });
    writer.str("{id}").raw(|w| {
        w.str("nonce");
    });
    writer.str("00000000000000000000").raw(|w| {
        w.str("_stamp");
    });
    writer.str("{stamp}");
    EventTemplate { tag: tag("salt/auth"), data: writer.part() }
}

/// The return of a state run of about `bytes` bytes, including the tag.
fn a_state_run(bytes: usize, random: &mut Random) -> EventTemplate {
    let bare = a_return("state.apply", |writer| {
        writer.str(&"x".repeat(64));
    });
    let frame = bare.tag.bytes.len() + bare.data.bytes.len() - 64;
    let mut text = String::new();
    while text.len() + frame < bytes {
        let word = usize::try_from(random.below(WORDS.len() as u64)).ok().and_then(|n| WORDS.get(n));
        // Words contain no zero digits, which would be slots.
        text.push_str(word.copied().unwrap_or_default());
        text.push_str(if random.below(2) == 0 { "000000" } else { " 000" });
    }
    a_return("state.apply", |writer| {
        writer.str(&text);
    })
}

/// The templates of `mix`, with all sizes multiplied by `scale`.
pub(super) fn mix(seed: u64, scale: f64) -> Vec<EventTemplate> {
    let mut random = Random::of(seed, u64::MAX);
    let template = |n: u64| {
        // Deterministic, so that the mean does not depend on the seed.
        let bytes = match n * 37 % 100 {
            0..80 => 300 + random.below(100),
            80..98 => 2_000 + random.below(1_000),
            _ => 20_000 + random.below(20_000),
        };
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a size of some KB")]
        a_state_run((bytes as f64 * scale) as usize, &mut random)
    };
    (0..TEMPLATES / 100 * 100).map(template).collect()
}

/// The templates of `small`, with all sizes multiplied by `scale`.
pub(super) fn small(seed: u64, scale: f64) -> Vec<EventTemplate> {
    let mut random = Random::of(seed, u64::MAX);
    let template = |n: u64| match n * 7 % 20 {
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
    (0..TEMPLATES / 20 * 20).map(template).collect()
}

/// The templates of jobs: a publish followed by `returns` returns.
pub(super) fn jobs(seed: u64, returns: u64) -> Vec<EventTemplate> {
    let mut random = Random::of(seed, u64::MAX);
    let each = returns + 1;
    let template = |n: u64| match n % each {
        0 => a_publish("state.apply"),
        _ => a_state_run(250 + usize::try_from(random.below(100)).unwrap_or(0), &mut random),
    };
    (0..(TEMPLATES / each).max(1) * each).map(template).collect()
}

/// The templates of returns: pings and state runs.
pub(super) fn returns(seed: u64) -> Vec<EventTemplate> {
    let mut random = Random::of(seed, u64::MAX);
    let template = |n: u64| match n % 4 {
        0..3 => a_ping(),
        _ => a_state_run(300 + usize::try_from(random.below(1_500)).unwrap_or(0), &mut random),
    };
    (0..TEMPLATES / 4 * 4).map(template).collect()
}

/// Mean and median bytes of an event.
pub(super) fn sizes(templates: &[EventTemplate]) -> (f64, usize) {
    let mut bytes: Vec<_> = templates.iter().map(|f| f.tag.bytes.len() + f.data.bytes.len()).collect();
    bytes.sort_unstable();
    let sum: usize = bytes.iter().sum();
    (sum as f64 / bytes.len().max(1) as f64, bytes.get(bytes.len() / 2).copied().unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::msgpack::Reader;

    #[test]
    fn loads_have_their_documented_sizes() {
        let (mean, median) = sizes(&mix(7, 1.0));
        assert!((1250.0..1400.0).contains(&mean) && (300..=400).contains(&median), "{mean} {median}");
        let (_, median) = sizes(&small(7, 1.0));
        assert!((165..=195).contains(&median), "{median}");
        let (mean, _) = sizes(&mix(7, 2.0));
        assert!((2500.0..2800.0).contains(&mean), "{mean}");
    }

    #[test]
    fn every_template_is_valid_msgpack() {
        for template in mix(1, 1.0).iter().chain(&small(1, 1.0)).chain(&small(1, 2.0)).chain(&jobs(1, 2)) {
            let value = Reader::new(&template.data.bytes).value().unwrap();
            assert_eq!(value.len(), template.data.bytes.len());
        }
    }
}
