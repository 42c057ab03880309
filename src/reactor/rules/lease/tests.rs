//! Tests of the lease.

use super::*;

const S: fn(u64) -> Duration = Duration::from_secs;
const LEASE: u64 = REACTOR_LEASE.as_secs();

fn renew(lease: &mut Lease, token: &str, now: u64) {
    lease.report(
        &EngineReport {
            token: Some(token),
            fallback: true,
            ..EngineReport::default()
        },
        S(now),
    );
}

#[test]
fn without_a_fallback_no_lease_is_needed() {
    let mut lease = Lease::new(false, Micros(7));
    assert_eq!(lease.blocked(S(0)), None);
    lease.report(
        &EngineReport {
            token: Some(&lease.token(S(1))),
            ..EngineReport::default()
        },
        S(2),
    );
    assert_eq!(lease.blocked(S(1000)), None);
}

#[test]
fn a_lease_ends_after_its_token_was_issued_not_after_the_report() {
    let mut lease = Lease::new(true, Micros(7));
    assert!(
        lease
            .blocked(S(0))
            .unwrap()
            .contains("since the start of the daemon")
    );
    let token = lease.token(S(10));
    renew(&mut lease, &token, 12);
    assert_eq!(lease.blocked(S(10 + LEASE - 1)), None);
    assert!(
        lease
            .blocked(S(10 + LEASE))
            .unwrap()
            .contains(&format!("for {LEASE} s"))
    );
    // Read late from the socket, as after SIGSTOP.
    renew(&mut lease, &token, 10 + LEASE);
    assert!(lease.blocked(S(10 + LEASE)).is_some());
    let token = lease.token(S(100));
    renew(&mut lease, &token, 101);
    assert_eq!(lease.blocked(S(101)), None);
}

#[test]
fn tokens_of_another_process_and_invalid_ones_renew_nothing() {
    let mut lease = Lease::new(true, Micros(7));
    for token in [
        "8-1000000",
        "7",
        "7-",
        "7--5",
        "x-y",
        "",
        "7-99999999999999999999",
    ] {
        renew(&mut lease, token, 1);
        assert!(lease.blocked(S(1)).is_some(), "{token}");
    }
    let mut other = Lease::new(true, Micros(7));
    renew(&mut other, &Lease::new(true, Micros(8)).token(S(1)), 1);
    assert!(other.blocked(S(1)).is_some());
}

#[test]
fn the_fallback_blocks_until_a_current_report_ends_it_and_keeps_its_events() {
    let mut lease = Lease::new(false, Micros(7));
    let acting = EngineReport {
        acts: true,
        fallback: true,
        began: Some(Micros(50)),
        ..EngineReport::default()
    };
    lease.report(&acting, S(1));
    assert!(
        lease.fallback_acts()
            && lease
                .blocked(S(1))
                .unwrap()
                .contains("acts as the fallback")
    );
    assert!(
        !lease.is_of_fallback(Micros(49))
            && lease.is_of_fallback(Micros(50))
            && lease.is_of_fallback(Micros(90))
    );
    // Made before the fallback began, read afterwards.
    renew(&mut lease, "6-1", 2);
    assert!(lease.fallback_acts());
    lease.configure(false);
    assert!(
        lease.blocked(S(2)).is_some(),
        "it acts with any configuration"
    );
    let token = lease.token(S(3));
    let ended = EngineReport {
        token: Some(&token),
        acts: false,
        ended: Some(Micros(80)),
        ..acting
    };
    lease.report(&ended, S(4));
    assert_eq!(lease.blocked(S(4)), None);
    assert!(lease.is_of_fallback(Micros(79)) && !lease.is_of_fallback(Micros(80)));
}

#[test]
fn a_changed_configuration_ends_the_need_for_a_lease_and_does_not_create_one() {
    let mut lease = Lease::new(true, Micros(7));
    lease.configure(false);
    assert_eq!(lease.blocked(S(1)), None);
    lease.configure(true);
    assert_eq!(lease.blocked(S(1)), None);
}
