//! Killed at random moments, damaged at random places: what was acknowledged must be there, byte for byte,
//! and what is there must be what was sent.
//!
//! The ordinary test run kills the real program about fifteen times; `CRASHES=500 make crash` is the long
//! form. `CRASH_SEED=n` repeats what was sent and when it was killed, as far as the kernel lets it.
//!
//! The configuration changes every few kills: both durabilities, and classes that come and go. Senders replay what was not answered,
//! as the extension does from its spool.
//!
//! A SIGKILL leaves the page cache alone: what a power cut takes is shown by the store's own
//! trials, `src/store/trials/`.

#![expect(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::print_stderr,
    reason = "a test may fail by panicking, and says its seed"
)]

/// Entries as functions of their numbers, and what was acknowledged of them.
mod model;

/// The daemon under test: started, loaded, killed, read back.
mod house;

/// A client that keeps the bytes as they came.
mod wire;

/// Files cut, flipped and deleted.
mod damage;

use std::hash::{BuildHasher as _, Hasher as _};

use house::House;
use model::Random;

fn setting(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|text| text.parse().unwrap_or_else(|_| panic!("{name} is a number: {text}")))
}

/// The long form is asked for by saying how many crashes there are to be.
fn is_long() -> bool {
    setting("CRASHES").is_some()
}

/// The seed asked for, or a new one, said aloud.
fn seed() -> u64 {
    let any = || std::hash::RandomState::new().build_hasher().finish() % 1_000_000;
    let seed = setting("CRASH_SEED").unwrap_or_else(any);
    eprintln!("CRASH_SEED={seed}");
    seed
}

#[test]
fn nothing_acknowledged_is_lost_by_kill_9() {
    let seed = seed();
    let crashes = setting("CRASHES").unwrap_or(15);
    let mut random = Random::new(seed);
    // A debug build is slow to read back what it has taken.
    let longest = if cfg!(debug_assertions) { 40_000 } else { 150_000 };
    let mut house = House::new(seed);
    for crash in 0..crashes {
        if crash % 4 == 3 {
            house.configure(crash / 4 + 1);
        }
        // Now and then it dies while it is still looking at what the last one left.
        while random.below(5) == 0 {
            house.start();
            std::thread::sleep(std::time::Duration::from_micros(random.below(40_000)));
            house.kill();
        }
        house.start();
        house.wait_until_ready();
        house.check_new();
        house.load(std::time::Duration::from_micros(2_000 + random.below(longest)), &mut random);
        if crash % 50 == 49 {
            house.start();
            house.wait_until_ready();
            house.check_all();
            eprintln!("{} kills, {}", crash + 1, house.summary());
            house.kill();
        }
    }
    house.start();
    house.wait_until_ready();
    house.check_all();
    house.terminate();
    house.start();
    house.wait_until_ready();
    house.check_all();
    eprintln!("{crashes} kills under load, seed {seed}: {}", house.summary());
}

#[test]
fn a_replay_of_a_replay_is_stored_once() {
    for restart_between in [false, true] {
        let mut house = House::new(1);
        house.start();
        house.wait_until_ready();
        assert_eq!(house.replay(3, restart_between), 1, "killed in between: {restart_between}");
    }
}
