//! What this daemon knows of the other masters: how much of their histories is here, and whether they are alive.
//!
//! The outbox (a sink), the inbox (a source) and the calls about jobs share it.
//!
//! # Invariant
//!
//! A mark says that this store contains all entries of an origin up to a number, except entries that a gap record names. It moves only when the
//! entries are on disk.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use super::shared_hold::SharedHold;
use crate::base::clock::{Clock, Micros};
use crate::base::limits::{
    CLUSTER_AWAY, CLUSTER_BEAT, CLUSTER_HOLDS_AGAIN, CLUSTER_NUMBERINGS_MAX, CLUSTER_PEERS_MAX,
    CLUSTER_SKEW_MAX, CLUSTER_TWIN, CLUSTER_WORD_BYTES_MAX,
};
use crate::model::{MasterName, SeqNo};
use crate::store::StoreError;
use crate::store::settings::{Changes, Save, Setting, Settings};

/// How far this store has the history of an origin, under one of its numberings.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Mark {
    /// The number of the last entry.
    pub(crate) number: u64,
    /// Its arrival at the origin.
    pub(crate) at: Micros,
}

impl Setting for Mark {
    const KIND: &'static str = "cluster-mark";
}

/// The place in the stream, and in this daemon's log.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Place {
    /// When the stream was made.
    pub(crate) created: Micros,
    /// The number of the last message of it that was worked on.
    pub(crate) message: u64,
    /// What the marks count is before this number of this daemon's log.
    pub(crate) upto: SeqNo,
    /// How often the store was restored from a backup before: a backup may have later marks than entries.
    #[serde(default)]
    pub(crate) restores: usize,
    /// Up to this message the stream may have entries that a restored log contains beyond the marks, at any place.
    #[serde(default)]
    pub(crate) compared_upto: u64,
    /// The stream was recreated, and its masters are refilling it: entries beyond the marks may arrive in any later message.
    #[serde(default)]
    pub(crate) is_refilled: bool,
}

impl Setting for Place {
    const KIND: &'static str = "cluster-place";
}

/// A heartbeat.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Beat {
    /// The sender.
    pub(crate) name: String,
    /// Its numbering.
    pub(crate) epoch: String,
    /// A random number of its process.
    pub(crate) instance: String,
    /// The number of the last entry that it has published.
    pub(crate) published: u64,
    /// How old its oldest entry is that it has not published; 0 if there is none. In microseconds.
    pub(crate) unpublished_us: u64,
    /// Its time, in microseconds since 1970.
    pub(crate) at: i64,
    /// Its slot, `k/n`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) slot: Option<String>,
    /// Its release.
    pub(crate) version: String,
    /// What all of its holds have in common with others that are the same: see [`super::holds`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) holds_digest: Option<String>,
    /// Changes of holds.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) holds: Vec<SharedHold>,
}

impl Beat {
    /// Whether it can be kept and shown.
    fn is_short(&self) -> bool {
        let slot = self.slot.as_deref().unwrap_or_default();
        let digest = self.holds_digest.as_deref().unwrap_or_default();
        [&self.epoch, &self.instance, slot, &self.version, digest]
            .iter()
            .all(|word| word.len() <= CLUSTER_WORD_BYTES_MAX)
    }
}

/// One master as this daemon knows it.
#[derive(Debug, Default)]
struct Peer {
    /// By numbering.
    marks: BTreeMap<String, Mark>,
    beat: Option<(Beat, Duration)>,
    /// Local clock minus the peer's clock.
    skew_us: i64,
    /// The history is here up to this time of the peer.
    complete: Micros,
    entries: u64,
    rejected: u64,
    rejection: Option<String>,
    missing: u64,
}

/// What is reported of a master.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct PeerView {
    pub(crate) name: String,
    /// How far this daemon is behind it; `None` if it was never heard of.
    pub(crate) behind: Option<Duration>,
    /// Its history is here up to this time.
    pub(crate) complete: Micros,
    /// It is alive: it was heard of within [`CLUSTER_AWAY`].
    pub(crate) is_heard: bool,
    /// Since when it was not heard of.
    pub(crate) heard_ago: Option<Duration>,
    /// The time of this host minus the time of the peer, if they differ by more than [`CLUSTER_SKEW_MAX`].
    pub(crate) skew: Option<i64>,
    pub(crate) slot: Option<String>,
    pub(crate) version: Option<String>,
    /// Entries received since the start.
    pub(crate) entries: u64,
    /// Messages rejected since the start, and why the last one was.
    pub(crate) rejected: u64,
    pub(crate) rejection: Option<String>,
    /// Entries that the stream did not have any more.
    pub(crate) missing: u64,
}

impl PeerView {
    /// It was away for longer than the stream keeps messages, so it is taken for one that does not exist any more.
    pub(crate) fn is_gone(&self, window: Duration) -> bool {
        let is_long = |time: Duration| time > window;
        self.heard_ago.is_none_or(is_long) && self.behind.is_none_or(is_long)
    }

    /// Everything that it had published when it was last heard of is here, and that was just now.
    pub(crate) fn is_complete(&self) -> bool {
        self.is_heard && self.behind.is_some_and(|behind| behind <= CLUSTER_AWAY)
    }
}

/// What the outbox and the inbox do.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Links {
    /// Why nothing is received; `None` if messages are.
    pub(crate) inbox: Option<String>,
    /// What the stream keeps less than the settings say.
    pub(crate) differences: Vec<String>,
    /// Another node that uses this daemon's name.
    pub(crate) twin: Option<String>,
    /// Another master that uses this daemon's slot.
    pub(crate) slot_twin: Option<String>,
}

#[derive(Debug, Default)]
struct State {
    peers: BTreeMap<String, Peer>,
    links: Links,
    /// When a heartbeat of another node with this daemon's name was last heard.
    twin_heard: Option<Duration>,
    slot_twin_heard: Option<Duration>,
    foreign: u64,
    /// When another master was first heard of.
    first_heard: Option<Duration>,
    /// The digest of the holds that were sent last, and when.
    holds_told: Option<(String, Duration)>,
}

impl State {
    /// Whether a master that is alive has other holds. One of an earlier release does not tell.
    fn holds_differ(&self, digest: &str, now: Duration) -> bool {
        self.peers.values().any(|peer| {
            peer.beat.as_ref().is_some_and(|(beat, heard)| {
                let theirs = beat.holds_digest.as_deref();
                now <= *heard + CLUSTER_AWAY && theirs.is_some_and(|theirs| theirs != digest)
            })
        })
    }

    /// False for a new master if there are too many: names cost nothing where NATS has no users.
    fn may_know(&self, name: &str) -> bool {
        self.peers.contains_key(name) || self.peers.len() < CLUSTER_PEERS_MAX
    }
}

/// All masters of the shared history.
#[derive(Debug)]
pub(crate) struct Peers {
    /// The name of this master.
    pub(crate) own: MasterName,
    slot: Option<String>,
    instance: String,
    clock: Clock,
    /// The last message of the stream whose entries are on disk here.
    read: AtomicU64,
    /// Lock order: no other lock is taken under it.
    state: Mutex<State>,
}

impl Mark {
    /// The name of its setting.
    pub(crate) fn name_of(origin: &str, epoch: &str) -> String {
        // An origin may contain a slash, an epoch never does.
        format!("{epoch}/{origin}")
    }
}

impl Peers {
    /// Starts with the peers whose marks the store has saved.
    pub(crate) fn new(
        own: MasterName,
        slot: Option<String>,
        instance: String,
        settings: &Settings,
        clock: Clock,
    ) -> Self {
        let mut state = State::default();
        for found in settings.all::<Mark>("") {
            // At the first slash, because an origin may contain one and an epoch does not.
            let Some((epoch, origin)) = found.name.split_once('/') else {
                continue;
            };
            if let Some(mark) = found.value {
                let peer = state.peers.entry(origin.to_owned()).or_default();
                peer.complete = peer.complete.max(mark.at);
                peer.marks.insert(epoch.to_owned(), mark);
            }
        }

        state.links.inbox = Some("not connected yet".to_owned());

        Self {
            own,
            slot,
            instance,
            clock,
            // Zero until the inbox has compared the log with its marks.
            read: AtomicU64::new(0),
            state: Mutex::new(state),
        }
    }

    /// Notes that the entries of all messages of the stream up to this one are on disk.
    pub(crate) fn has_stored(&self, message: u64) {
        self.read.store(message, Ordering::Release);
    }

    /// Whether the entries of all messages up to this one are here.
    pub(crate) fn has_read(&self, message: u64) -> bool {
        self.read.load(Ordering::Acquire) >= message
    }

    /// The number up to which the history of an origin is here; 0 without any of it.
    pub(crate) fn mark(&self, origin: &str, epoch: &str) -> u64 {
        let state = self.state.lock();
        let peer = state.peers.get(origin);
        let mark = peer.and_then(|peer| peer.marks.get(epoch));
        mark.map_or(0, |mark| mark.number)
    }

    /// The mark of an origin's newest numbering, which may have lower numbers than an earlier one; 0 without one.
    pub(crate) fn newest_mark(&self, origin: &str) -> u64 {
        let state = self.state.lock();
        let peer = state.peers.get(origin);
        let newest = peer.and_then(|peer| peer.marks.values().max_by_key(|mark| mark.at));
        newest.map_or(0, |mark| mark.number)
    }

    /// Whether entries of a master are taken: a history has a limited number of masters. It is one of them from now on.
    pub(crate) fn know(&self, master: &str) -> bool {
        let mut state = self.state.lock();
        let is_known = master == self.own.as_str() || state.may_know(master);
        if is_known {
            state.peers.entry(master.to_owned()).or_default();
        }
        is_known
    }

    /// Notes that the entries of an origin up to a number are on disk. Adds it to what is to be saved.
    pub(crate) fn have(
        &self,
        (origin, epoch): (&str, &str),
        mark: Mark,
        entries: u64,
        changes: &mut Changes,
    ) -> Result<(), StoreError> {
        // First, because a mark that cannot be saved must not count here either.
        changes.put(&Mark::name_of(origin, epoch), &mark)?;

        let mut state = self.state.lock();
        let peer = state.peers.entry(origin.to_owned()).or_default();
        peer.entries += entries;
        peer.complete = peer.complete.max(mark.at);
        peer.marks.insert(epoch.to_owned(), mark);
        // A master has few numberings, and none can make this store keep many.
        if peer.marks.len() > CLUSTER_NUMBERINGS_MAX
            && let Some(oldest) = peer.oldest_mark()
        {
            peer.marks.remove(&oldest);
            changes.remove::<Mark>(&Mark::name_of(origin, &oldest));
        }
        peer.update();
        Ok(())
    }

    /// Forgets all marks.
    pub(crate) fn forget_marks(&self, settings: &Settings) -> Result<(), StoreError> {
        let mut changes = Changes::default();
        for name in settings.names::<Mark>() {
            changes.remove::<Mark>(&name);
        }
        settings.commit(changes, Save::Durable)?;
        for peer in self.state.lock().peers.values_mut() {
            peer.marks.clear();
            peer.complete = Micros::default();
        }
        Ok(())
    }

    /// Notes that the stream did not have entries any more.
    pub(crate) fn missed(&self, origin: &str, entries: u64) {
        let mut state = self.state.lock();
        state.peers.entry(origin.to_owned()).or_default().missing += entries;
    }

    /// Counts a message that was rejected. Without a master, no master publishes at its subject.
    pub(crate) fn rejected(&self, master: Option<&str>, why: &str) {
        let mut state = self.state.lock();
        let master = master.filter(|master| state.may_know(master));
        let Some(master) = master else {
            state.foreign += 1;
            return;
        };
        let peer = state.peers.entry(master.to_owned()).or_default();
        peer.rejected += 1;
        let end = why.floor_char_boundary(CLUSTER_WORD_BYTES_MAX);
        peer.rejection = why.get(..end).map(str::to_owned);
    }

    /// Takes a heartbeat; `sender` is the name in its subject. Returns the changes of holds in it, if it is one of another master.
    pub(crate) fn heard(&self, sender: &MasterName, mut beat: Beat) -> Vec<SharedHold> {
        // Otherwise any master could report another one as alive.
        if beat.name != sender.as_str() {
            let why = format!("a heartbeat that names {:?}", beat.name);
            self.rejected(Some(sender.as_str()), &why);
            return Vec::new();
        }
        // Its words are kept and shown in the status, so a peer must not choose their size.
        if !beat.is_short() {
            let why = "a heartbeat with a longer word than any has";
            self.rejected(Some(sender.as_str()), why);
            return Vec::new();
        }
        let holds = std::mem::take(&mut beat.holds);

        let (now, wall) = (self.clock.monotonic(), self.clock.now());
        let mut state = self.state.lock();

        let is_own = *sender == self.own;
        // A daemon hears its own heartbeats as well.
        if is_own && beat.instance == self.instance {
            return Vec::new();
        }
        // The outbox publishes nothing while another node uses this name.
        if is_own {
            state.links.twin = Some(beat.instance);
            state.twin_heard = Some(now);
            return Vec::new();
        }

        if !state.may_know(&beat.name) {
            state.foreign += 1;
            return Vec::new();
        }
        state.first_heard.get_or_insert(now);
        // Two masters with the same slot can give two jobs the same id.
        if beat.slot.is_some() && beat.slot == self.slot {
            state.links.slot_twin = Some(beat.name.clone());
            state.slot_twin_heard = Some(now);
        }

        let peer = state.peers.entry(beat.name.clone()).or_default();
        peer.skew_us = wall.0.saturating_sub(beat.at);
        peer.beat = Some((beat, now));
        peer.update();
        holds
    }

    /// Whether to send all changes of holds, which have this digest: a master that is heard of has others, and these were not sent just now.
    pub(crate) fn must_tell_holds(&self, digest: &str) -> bool {
        let now = self.clock.monotonic();
        let mut state = self.state.lock();
        let is_told = state
            .holds_told
            .as_ref()
            .is_some_and(|(told, at)| told == digest && now < *at + CLUSTER_HOLDS_AGAIN);
        let must = !is_told && state.holds_differ(digest, now);
        if must {
            state.holds_told = Some((digest.to_owned(), now));
        }
        must
    }

    /// Whether every master that is alive was heard of, and has the holds with this digest.
    pub(crate) fn has_all_holds(&self, digest: &str) -> bool {
        let now = self.clock.monotonic();
        let state = self.state.lock();
        // Of two heartbeats one may be late.
        let are_heard = state
            .first_heard
            .is_some_and(|first| now >= first + 2 * CLUSTER_BEAT);
        are_heard && !state.holds_differ(digest, now)
    }

    /// Another node publishes under this daemon's name; says which.
    pub(crate) fn twin(&self) -> Option<String> {
        let mut state = self.state.lock();
        let now = self.clock.monotonic();

        // A twin that was not heard lately has stopped, or now uses another name or slot.
        if state
            .twin_heard
            .is_none_or(|heard| now > heard + CLUSTER_TWIN)
        {
            state.links.twin = None;
        }
        if state
            .slot_twin_heard
            .is_none_or(|heard| now > heard + CLUSTER_TWIN)
        {
            state.links.slot_twin = None;
        }

        state.links.twin.clone()
    }

    /// The slot of this master, `k/n`.
    pub(crate) fn slot(&self) -> Option<&str> {
        self.slot.as_deref()
    }

    /// The random number of this process.
    pub(crate) fn instance(&self) -> &str {
        &self.instance
    }

    /// Notes why nothing is received, or that messages are.
    pub(crate) fn receives(&self, problem: Option<String>) {
        self.state.lock().links.inbox = problem;
    }

    /// Notes what the stream keeps less than the settings say.
    pub(crate) fn found_stream(&self, differences: Vec<String>) {
        self.state.lock().links.differences = differences;
    }

    /// What the outbox and the inbox do.
    pub(crate) fn links(&self) -> Links {
        self.twin();
        self.state.lock().links.clone()
    }

    /// Messages with a subject of no master.
    pub(crate) fn foreign(&self) -> u64 {
        self.state.lock().foreign
    }

    /// All other masters that are known, by name.
    pub(crate) fn all(&self) -> Vec<PeerView> {
        let (now, wall) = (self.clock.monotonic(), self.clock.now());
        let state = self.state.lock();
        let others = state
            .peers
            .iter()
            .filter(|(name, _)| name.as_str() != self.own.as_str());
        others
            .map(|(name, peer)| peer.view(name, now, wall))
            .collect()
    }
}

impl Peer {
    /// The numbering whose last entry is the oldest.
    fn oldest_mark(&self) -> Option<String> {
        let oldest = self.marks.iter().min_by_key(|(_, mark)| mark.at);
        oldest.map(|(epoch, _)| epoch.clone())
    }

    /// Learns from the last heartbeat whether everything that the peer has published is here.
    fn update(&mut self) {
        let Some((beat, _)) = &self.beat else {
            return;
        };
        let mark = self.marks.get(&beat.epoch);
        if beat.published <= mark.map_or(0, |mark| mark.number) {
            let unpublished = i64::try_from(beat.unpublished_us).unwrap_or(i64::MAX);
            let until = Micros(beat.at.saturating_sub(unpublished));
            self.complete = self.complete.max(until);
        }
    }

    fn view(&self, name: &str, now: Duration, wall: Micros) -> PeerView {
        let heard_ago = self
            .beat
            .as_ref()
            .map(|(_, heard)| now.saturating_sub(*heard));
        // Marks without a heartbeat are from before this daemon's start.
        let is_known = self.beat.is_some() || !self.marks.is_empty();

        // Compared by the peer's clock, as far as it is known.
        let peer_now = wall.0.saturating_sub(self.skew_us);
        let behind = peer_now.saturating_sub(self.complete.0);
        let behind = Duration::from_micros(u64::try_from(behind).unwrap_or(0));

        PeerView {
            name: name.to_owned(),
            behind: is_known.then_some(behind),
            complete: self.complete,
            is_heard: heard_ago.is_some_and(|ago| ago <= CLUSTER_AWAY),
            heard_ago,
            // Without a heartbeat the difference is unknown, and zero only stands for it.
            skew: Some(self.skew_us).filter(|skew| {
                self.beat.is_some()
                    && u128::from(skew.unsigned_abs()) > CLUSTER_SKEW_MAX.as_micros()
            }),
            slot: self.beat.as_ref().and_then(|(beat, _)| beat.slot.clone()),
            version: self.beat.as_ref().map(|(beat, _)| beat.version.clone()),
            entries: self.entries,
            rejected: self.rejected,
            rejection: self.rejection.clone(),
            missing: self.missing,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    struct Rig {
        peers: Peers,
        clock: Clock,
        settings: Arc<Settings>,
        _dir: tempfile::TempDir,
    }

    fn rig() -> Rig {
        let dir = tempfile::tempdir().unwrap();
        let settings = Settings::for_tests(dir.path());
        let clock = Clock::manual(Micros(100_000_000));
        let own = MasterName::new("m1").unwrap();
        let slot = Some("1/3".to_owned());
        let peers = Peers::new(own, slot, "one".to_owned(), &settings, clock.clone());
        Rig {
            peers,
            clock,
            settings,
            _dir: dir,
        }
    }

    fn beat(name: &str, published: u64, at: i64) -> Beat {
        Beat {
            name: name.to_owned(),
            epoch: "e".to_owned(),
            instance: "two".to_owned(),
            published,
            unpublished_us: 0,
            at,
            slot: Some("2/3".to_owned()),
            version: "1".to_owned(),
            holds_digest: None,
            holds: Vec::new(),
        }
    }

    impl Rig {
        fn heard(&self, sender: &str, beat: Beat) {
            self.peers.heard(&MasterName::new(sender).unwrap(), beat);
        }

        fn have(&self, number: u64, at: i64) {
            let mut changes = Changes::default();
            let mark = Mark {
                number,
                at: Micros(at),
            };
            self.peers.have(("m2", "e"), mark, 1, &mut changes).unwrap();
            self.settings.commit(changes, Save::Durable).unwrap();
        }

        fn m2(&self) -> PeerView {
            self.peers
                .all()
                .into_iter()
                .find(|one| one.name == "m2")
                .unwrap()
        }
    }

    #[test]
    fn a_peer_is_behind_until_all_that_it_has_published_is_here() {
        let rig = rig();
        assert_eq!(rig.peers.all(), []);

        rig.heard("m2", beat("m2", 9, 100_000_000));
        assert!(!rig.m2().is_complete(), "none of it is here");
        rig.have(8, 90_000_000);
        assert_eq!(rig.m2().behind, Some(Duration::from_secs(10)));
        rig.have(9, 91_000_000);
        assert_eq!(rig.m2().behind, Some(Duration::ZERO));
        assert!(rig.m2().is_complete());

        // What it could not publish is also missing.
        let held_up = Beat {
            unpublished_us: 30_000_000,
            ..beat("m2", 9, 140_000_000)
        };
        rig.clock.wind(40_000_000);
        rig.heard("m2", held_up);
        assert_eq!(rig.m2().behind, Some(Duration::from_secs(30)));

        // Away: it may have stored what nobody knows.
        rig.clock.wind(60_000_000);
        assert_eq!(rig.m2().behind, Some(Duration::from_secs(90)));
        assert!(!rig.m2().is_heard && !rig.m2().is_complete());
    }

    #[test]
    fn what_is_here_is_known_after_a_restart() {
        let rig = rig();
        rig.have(9, 91_000_000);
        let own = MasterName::new("m1").unwrap();
        let again = Peers::new(own, None, "x".to_owned(), &rig.settings, rig.clock.clone());
        assert_eq!(again.mark("m2", "e"), 9);
        assert_eq!(again.mark("m2", "f"), 0);
        assert_eq!(
            again.all().first().map(|one| one.complete),
            Some(Micros(91_000_000))
        );
    }

    #[test]
    fn clocks_that_differ_are_reported_and_do_not_count_as_lag() {
        let rig = rig();
        rig.have(9, 1);
        rig.heard("m2", beat("m2", 9, 100_000_000 - 3_600_000_000));
        assert_eq!(rig.m2().skew, Some(3_600_000_000));
        assert_eq!(rig.m2().behind, Some(Duration::ZERO));
    }

    #[test]
    fn another_node_with_the_own_name_or_slot_is_known_until_it_is_gone() {
        let rig = rig();
        let of = |name: &str, instance: &str, slot: &str| Beat {
            instance: instance.to_owned(),
            slot: Some(slot.to_owned()),
            ..beat(name, 0, 100_000_000)
        };
        rig.heard("m1", of("m1", "one", "1/3"));
        assert_eq!(rig.peers.twin(), None, "its own heartbeat");
        rig.heard("m1", of("m1", "two", "1/3"));
        assert_eq!(rig.peers.twin().as_deref(), Some("two"));
        rig.heard("m3", of("m3", "three", "1/3"));
        assert_eq!(rig.peers.links().slot_twin.as_deref(), Some("m3"));
        rig.clock.wind(11_000_000);
        assert_eq!(rig.peers.twin(), None);
        assert_eq!(rig.peers.links().slot_twin, None);
    }

    #[test]
    fn holds_are_sent_to_a_master_that_has_others_until_it_has_the_same() {
        let rig = rig();
        let with = |digest: &str| Beat {
            holds_digest: Some(digest.to_owned()),
            ..beat("m2", 0, 100_000_000)
        };
        assert!(!rig.peers.must_tell_holds("one"), "nobody hears it");
        assert!(!rig.peers.has_all_holds("one"), "nobody was heard");

        rig.heard("m2", with("other"));
        assert!(rig.peers.must_tell_holds("one"));
        assert!(!rig.peers.must_tell_holds("one"), "just sent");
        assert!(rig.peers.must_tell_holds("two"), "changed since");
        rig.clock.wind(9_000_000);
        assert!(!rig.peers.must_tell_holds("two"));
        rig.clock.wind(1_000_000);
        assert!(rig.peers.must_tell_holds("two"), "it may be lost");
        assert!(!rig.peers.has_all_holds("two"));

        rig.heard("m2", with("two"));
        rig.clock.wind(10_000_000);
        assert!(!rig.peers.must_tell_holds("two"));
        assert!(rig.peers.has_all_holds("two"));
        assert!(!rig.peers.has_all_holds("one"));
        // One that is away does not count, nor one that does not tell.
        rig.clock.wind(1_000_000);
        assert!(!rig.peers.must_tell_holds("one") && rig.peers.has_all_holds("one"));
        rig.heard("m2", beat("m2", 0, 100_000_000));
        assert!(!rig.peers.must_tell_holds("one") && rig.peers.has_all_holds("one"));
    }

    #[test]
    fn holds_are_taken_of_other_masters_only() {
        let rig = rig();
        let json = r#"{"jid": "1", "at": 1}"#;
        let hold: SharedHold = serde_json::from_str(json).unwrap();
        let with = |name: &str| Beat {
            holds: vec![hold.clone()],
            ..beat(name, 0, 100_000_000)
        };
        let heard = |sender: &str, beat| {
            let sender = MasterName::new(sender).unwrap();
            rig.peers.heard(&sender, beat).len()
        };
        assert_eq!(heard("m2", with("m2")), 1);
        assert_eq!(heard("m3", with("m2")), 0);
        assert_eq!(heard("m1", with("m1")), 0, "a twin");
    }

    #[test]
    fn no_master_makes_the_store_keep_many_numberings_and_no_stranger_many_masters() {
        let rig = rig();
        for n in 0..=CLUSTER_NUMBERINGS_MAX {
            let at = Micros(i64::try_from(n).unwrap());
            let mark = Mark { number: 9, at };
            let mut changes = Changes::default();
            let epoch = format!("{n:016x}");
            rig.peers
                .have(("m2", &epoch), mark, 1, &mut changes)
                .unwrap();
            rig.settings.commit(changes, Save::Durable).unwrap();
        }
        let kept = rig.settings.names::<Mark>();
        assert_eq!(kept.len(), CLUSTER_NUMBERINGS_MAX);
        assert!(!kept.contains(&Mark::name_of("m2", "0000000000000000")));

        for n in 0..2 * CLUSTER_PEERS_MAX {
            let name = format!("x{n}");
            rig.heard(&name, beat(&name, 0, 100_000_000));
        }
        assert_eq!(rig.peers.all().len(), CLUSTER_PEERS_MAX);
        assert!(rig.peers.foreign() > 0);

        // Nor are entries taken of further masters.
        assert!(rig.peers.know("m1") && rig.peers.know("m2"));
        assert!(!rig.peers.know("another"));
    }

    #[test]
    fn a_sign_of_life_counts_for_its_sender_only() {
        let rig = rig();
        rig.have(9, 91_000_000);
        rig.heard("m3", beat("m2", 9, 100_000_000));
        assert!(!rig.m2().is_heard);
        let sender = rig.peers.all().into_iter().find(|one| one.name == "m3");
        assert_eq!(sender.map(|one| one.rejected), Some(1));
        rig.peers.rejected(None, "x");
        assert_eq!(rig.peers.foreign(), 1);

        // What it says is kept for whoever asks for the status.
        let long = Beat {
            version: "x".repeat(1 << 20),
            ..beat("m2", 9, 100_000_000)
        };
        rig.heard("m2", long);
        assert!(!rig.m2().is_heard);
        rig.peers.rejected(Some("m2"), &"\u{e9}".repeat(1 << 20));
        let shown = rig.m2().rejection.unwrap();
        assert!(shown.len() <= CLUSTER_WORD_BYTES_MAX && !shown.is_empty());
    }
}
