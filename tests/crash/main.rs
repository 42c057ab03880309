//! Crash and corruption tests of the real program: every acknowledged entry survives, byte for byte, and every stored
//! entry was sent.
//!
//! An ordinary run kills the daemon about 15 times; `CRASHES=500 make crash` is the long form. `CRASH_SEED=n` repeats the
//! data and the times of the kills, as far as the kernel allows.
//!
//! The configuration changes every few kills: durability and classes. Senders replay unacknowledged calls, as the
//! extension does from its spool.
//!
//! A SIGKILL preserves the page cache; power losses are covered by the store's simulation, `crates/store/src/tests/simulation/`.

#![expect(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::print_stderr,
    reason = "a failing test panics and prints its seed"
)]

/// Entries as functions of their numbers, and the state of each sender.
mod model;

/// The daemon under test: start, load, kill, read back.
mod server;

/// A client that preserves the received bytes.
mod wire;

/// Truncated, modified and deleted files.
mod damage;

use std::hash::{BuildHasher as _, Hasher as _};

use saltcellar_testkit::Random;
use server::Server;

fn setting(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|text| {
        text.parse()
            .unwrap_or_else(|_| panic!("{name} is not a number: {text}"))
    })
}

/// Whether the long form is requested.
fn is_long() -> bool {
    setting("CRASHES").is_some()
}

/// The requested or a random seed, printed.
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
    // Debug builds read back slowly.
    let longest = if cfg!(debug_assertions) {
        40_000
    } else {
        150_000
    };
    let mut server = Server::new(seed);
    for crash in 0..crashes {
        if crash % 4 == 3 {
            server.configure(crash / 4 + 1);
        }
        // Occasionally kill it during recovery from the previous kill.
        while random.below(4) == 0 {
            // A sector that cannot be read meanwhile costs nothing once it can be reread.
            if random.below(2) == 0 {
                server.start_with_a_bad_sector(&mut random);
            } else {
                server.start();
            }
            std::thread::sleep(std::time::Duration::from_micros(random.below(40_000)));
            server.kill();
        }
        server.start();
        server.wait_until_ready();
        server.check_new();
        server.load(
            std::time::Duration::from_micros(2_000 + random.below(longest)),
            &mut random,
        );
        if crash % 50 == 49 {
            server.start();
            server.wait_until_ready();
            server.check_all();
            eprintln!("{} kills, {}", crash + 1, server.summary());
            server.kill();
        }
    }
    server.start();
    server.wait_until_ready();
    server.check_all();
    server.terminate();
    server.start();
    server.wait_until_ready();
    server.check_all();
    eprintln!(
        "{crashes} kills under load, seed {seed}: {}",
        server.summary()
    );
}

#[test]
fn a_replay_of_a_replay_is_stored_once() {
    for restart_between in [false, true] {
        let mut server = Server::new(1);
        server.start();
        server.wait_until_ready();
        assert_eq!(
            server.replay(3, restart_between),
            1,
            "killed in between: {restart_between}"
        );
    }
}
