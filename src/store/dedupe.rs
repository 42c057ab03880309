//! What comes in by two doors is stored once.
//!
//! An event can be read off the bus, come again through `event_return`, and a third time as the argument of
//! `returner`: a master hands all three the same map (`salt/utils/job.py`; byte for byte in the recorded calls
//! of 3006 to 3008). So an event is known by its tag and its bytes.
//!
//! Two events may really be equal: the bus adds no number. Each door is therefore counted for itself, and an
//! event is a duplicate only if its door has not yet shown it more often than some other door did. What is
//! stored is as many as the door that showed the most. What a door hands over from its spool counts as a door of its
//! own, because it may have been taken before.
//!
//! An event under `salt/job/<jid>/ret/<id>` can be fired by anybody who may fire events, and a large return is trimmed
//! before it is fired. So the first returner call for a minion's answer that so far was on a bus alone is stored, too: as
//! no event, so that views of events show it once. Readers of the job rely on it ([`Flags::UNCONFIRMED`]), whether it
//! repeats what the bus showed or contradicts it.
//!
//! A minion's own `--return` carries fewer keys than the event; it is the same return if job, minion, `return`,
//! `retcode` and `success` are.
//!
//! # Bounds
//!
//! Two generations of [`DEDUPE_WINDOW`](crate::limits::DEDUPE_WINDOW) fingerprints each. What comes later than that many others is stored
//! again; readers of a job still fold equal returns.

use std::collections::VecDeque;
use std::collections::hash_map::Entry;

use crate::model::{self, FastMap, Flags, Kind, Prints, SeqNo, Source, chained};

type Map<V> = FastMap<u64, V>;

/// Two generations: the older one is dropped whole when the younger is full.
#[derive(Debug)]
struct Generations<V> {
    young: Map<V>,
    old: Map<V>,
    window: usize,
}

impl<V: Copy + Default> Generations<V> {
    fn new(window: usize) -> Self {
        Self { young: Map::default(), old: Map::default(), window }
    }

    /// The place of a key, and whether it was there before. What only the older generation knew is carried over.
    fn place(&mut self, key: u64) -> (&mut V, bool) {
        if self.young.len() >= self.window {
            // The tables change places, so that none has to grow again.
            std::mem::swap(&mut self.young, &mut self.old);
            self.young.clear();
        }
        match self.young.entry(key) {
            Entry::Occupied(place) => (place.into_mut(), true),
            Entry::Vacant(place) => {
                let known = self.old.get(&key).copied();
                (place.insert(known.unwrap_or_default()), known.is_some())
            }
        }
    }

    fn put(&mut self, key: u64, value: V) {
        *self.place(key).0 = value;
    }

    fn remove(&mut self, key: u64) {
        self.young.remove(&key);
        self.old.remove(&key);
    }
}

/// What to do with an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// Store it.
    New,
    /// Store it: another answer of a minion that has answered this job already.
    Differs,
    /// Store it, but as no event: a returner call brought it, and so far the minion's answer was on a bus alone.
    Confirms,
    /// It is stored already.
    Known,
    /// It is stored already, but no bus has told it as often: whoever reacts to what buses say has not seen it. Only if
    /// somebody does ([`Dedupe::note_heard`]).
    Heard,
}

/// The first answer of a minion to a job.
#[derive(Debug, Clone, Copy, Default)]
struct First {
    digest: u64,
    /// Did a returner call vouch for it? Anybody may fire an event; `returner` gets what the minion's own key signed.
    vouched: bool,
}

/// The memory of recent entries.
#[derive(Debug)]
pub struct Dedupe {
    seen: Generations<Counts>,
    answers: Generations<First>,
    /// What undoes each judgement that may still be lost, the latest last.
    undo: VecDeque<Judgement>,
    /// How many of them have not been told what they depend on.
    open: usize,
    /// Is what a bus says of interest even if another door said it before?
    note_heard: bool,
    /// The entry that is judged is one that a bus tells for the first time.
    first_heard: bool,
}

/// A judgement, and what it depends on: that the entries of a class up to this number reach the disk.
#[derive(Debug)]
struct Judgement {
    class: usize,
    seq: SeqNo,
    undo: Undo,
}

impl Judgement {
    fn is_kept(&self, on_disk: &[SeqNo]) -> bool {
        on_disk.get(self.class).is_some_and(|last| self.seq <= *last)
    }
}

type Counts = [u8; Source::COUNT];

#[derive(Debug)]
enum Undo {
    Seen(u64, Counts),
    Answer(u64, Option<First>),
}

impl Dedupe {
    /// An empty memory of two generations of up to `window` fingerprints each.
    pub fn new(window: usize) -> Self {
        Self {
            seen: Generations::new(window),
            answers: Generations::new(window),
            undo: VecDeque::new(),
            open: 0,
            note_heard: false,
            first_heard: false,
        }
    }

    /// From here on, [`Verdict::Heard`] is told from [`Verdict::Known`], or not.
    pub fn note_heard(&mut self, whether: bool) {
        self.note_heard = whether;
    }

    /// Judges an entry and remembers it.
    pub fn judge(&mut self, entry: &model::Entry<'_>, prints: Prints) -> Verdict {
        self.first_heard = false;
        match self.verdict(entry, prints) {
            Verdict::Known if self.note_heard && self.first_heard => Verdict::Heard,
            verdict => verdict,
        }
    }

    fn verdict(&mut self, entry: &model::Entry<'_>, prints: Prints) -> Verdict {
        // Of these the last word counts, and A, B, A is not A, B. A gap is told by nobody else.
        if matches!(entry.kind, Kind::Register | Kind::Endtime | Kind::Gap | Kind::Reaction) {
            return Verdict::New;
        }
        let known = self.shown_elsewhere(entry, prints.whole);
        if entry.kind != Kind::Return {
            return if known { Verdict::Known } else { Verdict::New };
        }
        let on_bus = entry.flags.has(Flags::ON_BUS);
        let vouched = entry.source.confirms();
        let digest = prints.answer;
        let (place, found) = self.answers.place(prints.asked);
        let first = found.then_some(*place);
        let verdict = match first {
            None => Verdict::New,
            Some(first) if vouched && !first.vouched => Verdict::Confirms,
            Some(first) if first.digest == digest => {
                // The event must be kept as it was on the bus; the bare return adds nothing to it.
                if known || !on_bus { Verdict::Known } else { Verdict::New }
            }
            Some(_) if known => Verdict::Known,
            Some(_) => Verdict::Differs,
        };
        *place = match first {
            None => First { digest, vouched },
            Some(_) if verdict == Verdict::Confirms => First { digest, vouched },
            Some(first) => first,
        };
        self.note(Undo::Answer(prints.asked, first));
        verdict
    }

    fn note(&mut self, undo: Undo) {
        self.undo.push_back(Judgement { class: 0, seq: SeqNo::default(), undo });
        self.open += 1;
    }

    /// Counts the entry for its door; true if another door has shown it as often already.
    fn shown_elsewhere(&mut self, entry: &model::Entry<'_>, key: u64) -> bool {
        if matches!(entry.source, Source::SpooledReturner | Source::SpooledEventReturn | Source::SpilledBus)
            && self.handed_over(key, entry)
        {
            return true;
        }
        let (counts, _) = self.seen.place(key);
        let before = *counts;
        let door = entry.source as usize;
        let told = |source: Source| *counts.get(source as usize).expect("a count for each source");
        let told_before = told(Source::Bus).max(told(Source::SpilledBus));
        let most = counts.iter().enumerate().filter(|(d, _)| *d != door).map(|(_, n)| *n).max().unwrap_or(0);
        let own = counts.get_mut(door).expect("a count for each source");
        *own = own.saturating_add(1);
        let own = *own;
        let of_a_bus = matches!(entry.source, Source::Bus | Source::SpilledBus);
        self.first_heard = of_a_bus && own > told_before;
        self.note(Undo::Seen(key, before));
        own <= most
    }

    /// Has this very call been handed over before? A spool repeats itself when an answer gets lost; the time of the
    /// call tells one call from another that brought the same.
    fn handed_over(&mut self, key: u64, entry: &model::Entry<'_>) -> bool {
        let call = chained(key ^ entry.source as u64, [&entry.at.0.to_le_bytes()]);
        let (counts, _) = self.seen.place(call);
        let before = *counts;
        *counts = [1; Source::COUNT];
        self.note(Undo::Seen(call, before));
        before != Counts::default()
    }

    /// What was judged since the last call depends on the entries of a class up to number `seq`.
    pub fn depends_on(&mut self, class: usize, seq: SeqNo) {
        let judged = std::mem::take(&mut self.open);
        for judgement in self.undo.iter_mut().rev().take(judged) {
            (judgement.class, judgement.seq) = (class, seq);
        }
    }

    /// Per class, the last number that is on disk: what depends on those stands for good.
    pub fn keep(&mut self, on_disk: &[SeqNo]) {
        while self.undo.front().is_some_and(|judgement| judgement.is_kept(on_disk)) {
            self.undo.pop_front();
        }
    }

    /// Everything judged so far is on disk.
    pub fn keep_all(&mut self) {
        self.undo.clear();
        self.open = 0;
    }

    /// What is not on disk by now will not be stored: forget it.
    pub fn forget(&mut self, on_disk: &[SeqNo]) {
        self.open = 0;
        for judgement in std::mem::take(&mut self.undo).into_iter().rev() {
            match judgement.undo {
                _ if judgement.is_kept(on_disk) => {}
                Undo::Seen(key, counts) => self.seen.put(key, counts),
                Undo::Answer(key, Some(first)) => self.answers.put(key, first),
                Undo::Answer(key, None) => self.answers.remove(key),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::Micros;
    use crate::limits::DEDUPE_WINDOW;
    use crate::model::Entry;
    use crate::wire::{msgpack, salt_event::prints_of};

    fn memory() -> Dedupe {
        Dedupe::new(DEDUPE_WINDOW)
    }

    fn judge(dedupe: &mut Dedupe, entry: &Entry<'_>) -> Verdict {
        dedupe.judge(entry, prints_of(entry))
    }

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
        let known = Verdict::Known;
        for (doors, second) in [
            ([Source::Bus, Source::EventReturn, Source::SpooledEventReturn], known),
            ([Source::Returner, Source::Bus, Source::SpooledReturner], known),
            ([Source::SpooledReturner, Source::SpooledEventReturn, Source::Bus], known),
            // Stored again as what confirms it, which is no event.
            ([Source::SpooledEventReturn, Source::SpooledReturner, Source::EventReturn], Verdict::Confirms),
        ] {
            let mut dedupe = memory();
            let verdicts = doors.map(|door| judge(&mut dedupe, &entry(door, true, &body)));
            assert_eq!(verdicts, [Verdict::New, second, known], "{doors:?}");
        }
    }

    #[test]
    fn a_spool_may_repeat_itself_as_often_as_it_likes() {
        let body = body(1, true);
        let mut dedupe = memory();
        let mut judge = |at| {
            judge(&mut dedupe, &Entry { at: Micros(at), ..entry(Source::SpooledEventReturn, true, &body) })
        };
        assert_eq!([judge(7), judge(7), judge(7)], [Verdict::New, Verdict::Known, Verdict::Known]);
        assert_eq!([judge(8), judge(8)], [Verdict::New, Verdict::Known], "the same event in another call");
    }

    #[test]
    fn equal_events_of_one_door_are_all_kept() {
        let body = body(1, true);
        let mut dedupe = memory();
        let verdicts =
            [Source::Bus, Source::Bus, Source::EventReturn, Source::EventReturn, Source::EventReturn]
                .map(|door| judge(&mut dedupe, &entry(door, true, &body)));
        assert_eq!(verdicts, [Verdict::New, Verdict::New, Verdict::Known, Verdict::Known, Verdict::New]);
    }

    #[test]
    fn a_bare_return_confirms_its_event_once_and_the_event_is_kept_in_any_order() {
        let (event, bare) = (body(1, true), body(1, false));
        let mut dedupe = memory();
        assert_eq!(judge(&mut dedupe, &entry(Source::Bus, true, &event)), Verdict::New);
        assert_eq!(judge(&mut dedupe, &entry(Source::Returner, false, &bare)), Verdict::Confirms);
        assert_eq!(judge(&mut dedupe, &entry(Source::Returner, false, &bare)), Verdict::Known);
        let mut dedupe = memory();
        assert_eq!(judge(&mut dedupe, &entry(Source::Returner, false, &bare)), Verdict::New);
        assert_eq!(judge(&mut dedupe, &entry(Source::Bus, true, &event)), Verdict::New);
    }

    #[test]
    fn another_answer_of_the_same_minion_is_kept_as_history() {
        let mut dedupe = memory();
        assert_eq!(judge(&mut dedupe, &entry(Source::Returner, false, &body(1, false))), Verdict::New);
        assert_eq!(judge(&mut dedupe, &entry(Source::Returner, false, &body(2, false))), Verdict::Differs);
    }

    #[test]
    fn a_returner_call_stands_against_a_forged_or_trimmed_event() {
        let (forged, real, later) = (body(66, true), body(1, true), body(2, true));
        let mut dedupe = memory();
        let mut judge = |door, body| judge(&mut dedupe, &entry(door, true, body));
        assert_eq!(judge(Source::Bus, &forged), Verdict::New);
        assert_eq!(judge(Source::Bus, &real), Verdict::Differs);
        assert_eq!(judge(Source::Returner, &real), Verdict::Confirms);
        assert_eq!(judge(Source::Bus, &later), Verdict::Differs);
        assert_eq!(judge(Source::Returner, &later), Verdict::Known);
        assert_eq!(judge(Source::SpooledReturner, &real), Verdict::Known);
    }

    #[test]
    fn a_return_seen_on_the_bus_first_was_never_recorded_as_confirmed() {
        let body = body(1, true);
        let mut dedupe = memory();
        let verdicts = [Source::Bus, Source::EventReturn, Source::Returner, Source::SpooledReturner]
            .map(|source| judge(&mut dedupe, &entry(source, true, &body)));
        assert_eq!(verdicts, [Verdict::New, Verdict::Known, Verdict::Confirms, Verdict::Known]);
    }

    #[test]
    fn of_registers_and_end_times_every_word_is_kept() {
        let mut dedupe = memory();
        for (door, n) in [(Source::SpooledReturner, 1), (Source::Returner, 2), (Source::Returner, 1)] {
            let body = body(n, false);
            let entry = Entry { kind: Kind::Register, tag: b"", ..entry(door, false, &body) };
            assert_eq!(judge(&mut dedupe, &entry), Verdict::New);
        }
    }

    #[test]
    fn what_could_not_be_stored_is_new_again() {
        let body = body(1, true);
        let mut dedupe = memory();
        judge(&mut dedupe, &entry(Source::Bus, true, &body));
        dedupe.depends_on(0, SeqNo(1));
        dedupe.forget(&[SeqNo(0)]);
        assert_eq!(judge(&mut dedupe, &entry(Source::EventReturn, true, &body)), Verdict::New);
        dedupe.depends_on(0, SeqNo(2));
        dedupe.keep(&[SeqNo(2)]);
        dedupe.forget(&[SeqNo(0)]);
        assert_eq!(judge(&mut dedupe, &entry(Source::Bus, true, &body)), Verdict::Known);
    }

    #[test]
    fn of_what_is_under_way_only_that_is_forgotten_which_is_not_on_disk() {
        fn of_class(class: usize, body: &[u8]) -> Entry<'_> {
            let web1 = entry(Source::Bus, true, body);
            if class == 0 { web1 } else { Entry { tag: b"salt/job/1/ret/web2", minion: "web2", ..web1 } }
        }
        let mut dedupe = memory();
        for n in 1..=4 {
            let body = body(n, true);
            // Two classes, one of them slower.
            let class = usize::from(n % 2 == 0);
            judge(&mut dedupe, &of_class(class, &body));
            dedupe.depends_on(class, SeqNo(n.unsigned_abs()));
        }
        let on_disk = [SeqNo(3), SeqNo(2)];
        dedupe.keep(&on_disk);
        assert_eq!(dedupe.undo.len(), 2, "an event and an answer");
        dedupe.forget(&on_disk);
        let again = [1, 2, 3, 4].map(|n| {
            let body = body(n, true);
            let entry = of_class(usize::from(n % 2 == 0), &body);
            judge(&mut dedupe, &Entry { source: Source::EventReturn, ..entry })
        });
        assert_eq!(again, [Verdict::Known, Verdict::Known, Verdict::Known, Verdict::Differs]);
    }

    #[test]
    fn memory_is_bounded() {
        let mut dedupe = memory();
        for n in 0..3 * i64::try_from(DEDUPE_WINDOW).unwrap() {
            judge(&mut dedupe, &entry(Source::Bus, true, &body(n, true)));
            dedupe.keep_all();
        }
        assert!(dedupe.seen.young.len() + dedupe.seen.old.len() <= 2 * DEDUPE_WINDOW);
        assert_eq!(dedupe.answers.young.len(), 1);
    }
}
