//! What comes in by two doors is stored once.
//!
//! An event can be read off the bus, come again through `event_return`, and a third time as the argument of
//! `returner`: a master hands all three the same map (`salt/utils/job.py`; byte for byte in the recorded calls
//! of 3006 to 3008). So an event is known by its tag and its bytes.
//!
//! Two events may really be equal: the bus adds no number. Each door is therefore counted for itself, and an
//! event is a duplicate only if its door has not yet shown it more often than some other door did. What is
//! stored is as many as the door that showed the most.
//!
//! An event under `salt/job/<jid>/ret/<id>` can be fired by anybody who may fire events, and a large return is trimmed
//! before it is fired. So when a returner call brings an answer other than the first one seen on the bus, it is stored
//! once more, as no event, and readers of the job believe it.
//!
//! A minion's own `--return` carries fewer keys than the event; it is the same return if job, minion, `return`,
//! `retcode` and `success` are.
//!
//! # Bounds
//!
//! Two generations of [`DEDUPE_WINDOW`] fingerprints each. What comes later than that many others is stored
//! again; readers of a job still fold equal returns.

use xxhash_rust::xxh3::xxh3_64_with_seed;

use crate::limits::DEDUPE_WINDOW;
use crate::model::{Entry, FastMap, Flags, Kind, Source};
use crate::wire::msgpack;

type Map<V> = FastMap<u64, V>;

/// Two generations: the older one is dropped whole when the younger is full.
#[derive(Debug)]
struct Generations<V> {
    young: Map<V>,
    old: Map<V>,
}

impl<V: Copy> Generations<V> {
    fn new() -> Self {
        Self { young: Map::default(), old: Map::default() }
    }

    fn get(&self, key: u64) -> Option<V> {
        self.young.get(&key).or_else(|| self.old.get(&key)).copied()
    }

    fn put(&mut self, key: u64, value: V) {
        if self.young.len() >= DEDUPE_WINDOW {
            self.old = std::mem::take(&mut self.young);
        }
        self.young.insert(key, value);
    }
}

/// What to do with an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// Store it.
    New,
    /// Store it: another answer of a minion that has answered this job already.
    Differs,
    /// Store it, but as no event: a returner call vouches for an answer of which the bus showed another one first.
    Confirms,
    /// It is stored already.
    Known,
}

/// The first answer of a minion to a job.
#[derive(Debug, Clone, Copy)]
struct First {
    digest: u64,
    /// Did a returner call vouch for it? Anybody may fire an event; `returner` gets what the minion's own key signed.
    vouched: bool,
}

/// The memory of recent entries.
#[derive(Debug)]
pub struct Dedupe {
    /// Chosen at random, so that nobody can prepare two events with one fingerprint.
    seed: u64,
    seen: Generations<[u8; Source::COUNT]>,
    answers: Generations<First>,
    undo: Vec<Undo>,
}

#[derive(Debug)]
enum Undo {
    Seen(u64, [u8; Source::COUNT]),
    Answer(u64, Option<First>),
}

impl Dedupe {
    /// Remembers nothing yet.
    pub fn new(seed: u64) -> Self {
        Self { seed, seen: Generations::new(), answers: Generations::new(), undo: Vec::new() }
    }

    /// Judges an entry and remembers it.
    pub fn judge(&mut self, entry: &Entry<'_>) -> Verdict {
        // Of these the last word counts, and A, B, A is not A, B.
        if matches!(entry.kind, Kind::Register | Kind::Endtime) {
            return Verdict::New;
        }
        let known = self.shown_elsewhere(entry);
        if entry.kind != Kind::Return {
            return if known { Verdict::Known } else { Verdict::New };
        }
        let on_bus = entry.flags.has(Flags::ON_BUS);
        let vouched = matches!(entry.source, Source::Returner | Source::Spool);
        let (key, digest) = self.answer(entry);
        let first = self.answers.get(key);
        let verdict = match first {
            None => Verdict::New,
            Some(first) if first.digest == digest => {
                // The event must be kept as it was on the bus; the bare return adds nothing to it.
                if known || !on_bus { Verdict::Known } else { Verdict::New }
            }
            Some(first) if vouched && !first.vouched => Verdict::Confirms,
            Some(_) if known => Verdict::Known,
            Some(_) => Verdict::Differs,
        };
        let now = match first {
            None => First { digest, vouched },
            Some(first) if first.digest == digest => First { digest, vouched: first.vouched || vouched },
            Some(_) if verdict == Verdict::Confirms => First { digest, vouched },
            Some(first) => first,
        };
        self.undo.push(Undo::Answer(key, first));
        self.answers.put(key, now);
        verdict
    }

    /// Counts the entry for its door; true if another door has shown it as often already.
    fn shown_elsewhere(&mut self, entry: &Entry<'_>) -> bool {
        // What has no tag is told apart by its kind.
        let of_kind = self.seed ^ if entry.tag.is_empty() { u64::from(entry.kind as u8) + 1 } else { 0 };
        let key = chained(of_kind, [entry.tag, entry.jid.as_bytes(), entry.body]);
        let before = self.seen.get(key).unwrap_or_default();
        let mut counts = before;
        let door = entry.source as usize;
        let most = counts.iter().enumerate().filter(|(d, _)| *d != door).map(|(_, n)| *n).max().unwrap_or(0);
        let own = counts.get_mut(door).map_or(0, |n| {
            *n = n.saturating_add(1);
            *n
        });
        self.undo.push(Undo::Seen(key, before));
        self.seen.put(key, counts);
        own <= most
    }

    fn answer(&self, entry: &Entry<'_>) -> (u64, u64) {
        let key = chained(self.seed, [entry.jid.as_bytes(), entry.minion.as_bytes()]);
        (key, answer_digest(entry.body, self.seed))
    }

    /// What was judged since the last call is stored.
    pub fn keep(&mut self) {
        self.undo.clear();
    }

    /// What was judged since the last [`Dedupe::keep`] was not stored: forget it.
    pub fn forget(&mut self) {
        for undo in std::mem::take(&mut self.undo).into_iter().rev() {
            match undo {
                Undo::Seen(key, counts) => self.seen.put(key, counts),
                Undo::Answer(key, Some(first)) => self.answers.put(key, first),
                Undo::Answer(key, None) => {
                    self.answers.young.remove(&key);
                    self.answers.old.remove(&key);
                }
            }
        }
    }
}

/// A fingerprint of what a minion answered: `return`, `retcode`, `success`.
pub fn answer_digest(body: &[u8], seed: u64) -> u64 {
    let nothing: &[u8] = &[];
    let [mut answer, mut retcode, mut success] = [nothing; 3];
    for (key, value) in msgpack::pairs(body) {
        match msgpack::as_text(key) {
            Some("return") => answer = value,
            Some("retcode") => retcode = value,
            Some("success") => success = value,
            _ => {}
        }
    }
    chained(seed, [answer, retcode, success])
}

/// A hash of several pieces, each seeded by those before it: where one ends matters.
fn chained<const N: usize>(seed: u64, pieces: [&[u8]; N]) -> u64 {
    pieces.iter().fold(seed, |hash, piece| xxh3_64_with_seed(piece, hash))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::Micros;

    fn entry(source: Source, on_bus: bool, body: &[u8]) -> Entry<'_> {
        let flags = if on_bus { Flags::ON_BUS } else { Flags::default() };
        Entry {
            kind: Kind::Return,
            source,
            flags,
            at: Micros(0),
            tag: b"salt/job/1/ret/web1",
            jid: "1",
            minion: "web1",
            fun: "",
            retcode: 0,
            body,
        }
    }

    fn body(answer: i64, stamp: bool) -> Vec<u8> {
        let mut w = msgpack::Writer::new();
        w.map(1 + usize::from(stamp)).str("return").int(answer);
        if stamp {
            w.str("_stamp").str("now");
        }
        w.into_bytes()
    }

    #[test]
    fn one_event_by_three_doors_is_stored_once() {
        let body = body(1, true);
        for doors in [
            [Source::Bus, Source::EventReturn, Source::Returner],
            [Source::Returner, Source::Bus, Source::Spool],
        ] {
            let mut dedupe = Dedupe::new(1);
            let verdicts = doors.map(|door| dedupe.judge(&entry(door, true, &body)));
            assert_eq!(verdicts, [Verdict::New, Verdict::Known, Verdict::Known], "{doors:?}");
        }
    }

    #[test]
    fn equal_events_of_one_door_are_all_kept() {
        let body = body(1, true);
        let mut dedupe = Dedupe::new(1);
        let verdicts =
            [Source::Bus, Source::Bus, Source::EventReturn, Source::EventReturn, Source::EventReturn]
                .map(|door| dedupe.judge(&entry(door, true, &body)));
        assert_eq!(verdicts, [Verdict::New, Verdict::New, Verdict::Known, Verdict::Known, Verdict::New]);
    }

    #[test]
    fn a_bare_return_folds_into_its_event_but_not_the_other_way_round() {
        let (event, bare) = (body(1, true), body(1, false));
        let mut dedupe = Dedupe::new(1);
        assert_eq!(dedupe.judge(&entry(Source::Bus, true, &event)), Verdict::New);
        assert_eq!(dedupe.judge(&entry(Source::Returner, false, &bare)), Verdict::Known);
        let mut dedupe = Dedupe::new(1);
        assert_eq!(dedupe.judge(&entry(Source::Returner, false, &bare)), Verdict::New);
        assert_eq!(dedupe.judge(&entry(Source::Bus, true, &event)), Verdict::New);
    }

    #[test]
    fn another_answer_of_the_same_minion_is_kept_as_history() {
        let mut dedupe = Dedupe::new(1);
        assert_eq!(dedupe.judge(&entry(Source::Returner, false, &body(1, false))), Verdict::New);
        assert_eq!(dedupe.judge(&entry(Source::Returner, false, &body(2, false))), Verdict::Differs);
    }

    #[test]
    fn a_returner_call_stands_against_a_forged_or_trimmed_event() {
        let (forged, real, later) = (body(66, true), body(1, true), body(2, true));
        let mut dedupe = Dedupe::new(1);
        let mut judge = |door, body| dedupe.judge(&entry(door, true, body));
        assert_eq!(judge(Source::Bus, &forged), Verdict::New);
        assert_eq!(judge(Source::Bus, &real), Verdict::Differs);
        assert_eq!(judge(Source::Returner, &real), Verdict::Confirms);
        assert_eq!(judge(Source::Bus, &later), Verdict::Differs);
        assert_eq!(judge(Source::Returner, &later), Verdict::Known);
        assert_eq!(judge(Source::Spool, &real), Verdict::Known);
    }

    #[test]
    fn of_registers_and_end_times_every_word_is_kept() {
        let mut dedupe = Dedupe::new(1);
        for (door, n) in [(Source::Spool, 1), (Source::Returner, 2), (Source::Returner, 1)] {
            let body = body(n, false);
            let entry = Entry { kind: Kind::Register, tag: b"", ..entry(door, false, &body) };
            assert_eq!(dedupe.judge(&entry), Verdict::New);
        }
    }

    #[test]
    fn what_could_not_be_stored_is_new_again() {
        let body = body(1, true);
        let mut dedupe = Dedupe::new(1);
        dedupe.judge(&entry(Source::Bus, true, &body));
        dedupe.forget();
        assert_eq!(dedupe.judge(&entry(Source::EventReturn, true, &body)), Verdict::New);
        dedupe.keep();
        dedupe.forget();
        assert_eq!(dedupe.judge(&entry(Source::Bus, true, &body)), Verdict::Known);
    }

    #[test]
    fn memory_is_bounded() {
        let mut dedupe = Dedupe::new(1);
        for n in 0..3 * i64::try_from(DEDUPE_WINDOW).unwrap() {
            dedupe.judge(&entry(Source::Bus, true, &body(n, true)));
            dedupe.keep();
        }
        assert!(dedupe.seen.young.len() + dedupe.seen.old.len() <= 2 * DEDUPE_WINDOW);
        assert_eq!(dedupe.answers.young.len(), 1);
    }
}
