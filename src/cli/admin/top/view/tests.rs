//! Tests of the live view in a terminal of 80x24.

use std::time::Duration;

use super::*;
use crate::wire::msgpack::{Stored, Writer};

fn key(code: KeyCode) -> KeyEvent {
    KeyEvent::new(code, KeyModifiers::NONE)
}

fn status(pid: u32, events: u64) -> Status {
    let counters = [
        ("bus_events".to_owned(), events),
        ("returns_stored".to_owned(), events / 2),
    ]
    .into();
    Status {
        pid,
        counters,
        ..Status::default()
    }
}

fn job(jid: &str, fun: &str) -> JobRow {
    let mut w = Writer::new();
    w.str(fun);
    JobRow {
        jid: jid.to_owned(),
        fun: Stored::Packed(w.into_bytes()),
        ..JobRow::default()
    }
}

fn jobs() -> Vec<JobRow> {
    vec![
        job("3", "test.ping"),
        job("2", "state.apply"),
        job("1", "cmd.run"),
    ]
}

#[test]
fn rates_are_differences_of_counters_of_one_daemon() {
    let start = Instant::now();
    let mut view = View::default();
    view.update(start, status(1, 100), jobs(), Vec::new());
    assert_eq!(view.rates, None);
    view.update(
        start + Duration::from_secs(2),
        status(1, 140),
        jobs(),
        Vec::new(),
    );
    let rates = view.rates.unwrap();
    assert_eq!(
        (rates.events, rates.returns, rates.failed),
        (20.0, 10.0, 0.0)
    );
    view.update(
        start + Duration::from_secs(3),
        status(2, 5),
        jobs(),
        Vec::new(),
    );
    assert_eq!(view.rates, None, "restarted");
}

#[test]
fn keys_select_filter_open_and_pause() {
    let mut view = View::default();
    view.update(Instant::now(), status(1, 0), jobs(), Vec::new());
    assert_eq!(view.press(key(KeyCode::Down)), Action::Stay);
    assert_eq!(
        view.press(key(KeyCode::Enter)),
        Action::Open("2".to_owned())
    );
    // The selected job moves when a new one arrives.
    let mut more = jobs();
    more.insert(0, job("4", "test.ping"));
    view.update(Instant::now(), status(1, 0), more, Vec::new());
    assert_eq!(
        view.press(key(KeyCode::Enter)),
        Action::Open("2".to_owned())
    );
    for c in "/cmdq".chars() {
        view.press(key(KeyCode::Char(c)));
    }
    assert!(view.shown().is_empty(), "q belongs to the filter");
    assert_eq!(view.press(key(KeyCode::Enter)), Action::Stay);
    assert_eq!(
        view.press(key(KeyCode::Enter)),
        Action::Stay,
        "nothing to open"
    );
    view.press(key(KeyCode::Esc));
    assert_eq!(view.shown().len(), 4);
    view.press(key(KeyCode::Char('p')));
    assert!(view.is_paused());
    view.press(key(KeyCode::Char('G')));
    assert_eq!(view.selected(), 3);
    view.press(key(KeyCode::Char('g')));
    assert_eq!(view.selected(), 0);
    view.press(key(KeyCode::Char('?')));
    assert!(view.has_help);
    assert_eq!(
        view.press(key(KeyCode::Char('q'))),
        Action::Stay,
        "closes the list of keys"
    );
    assert_eq!(view.press(key(KeyCode::Char('F'))), Action::Reload);
    assert!(view.shown().is_empty(), "nothing has failed");
    view.press(key(KeyCode::Char('F')));
    view.open("2".to_owned(), None, None);
    assert_eq!(
        view.press(key(KeyCode::Char('q'))),
        Action::Stay,
        "closes the job"
    );
    assert!(view.job.is_none());
    assert_eq!(view.press(key(KeyCode::Char('q'))), Action::Quit);
}
