//! Reactors of several masters of a cluster: an event of a peer, with the mark that Salt gives it, is left to the peer's daemon.

use rmpv::Value;

use crate::fake_daemon::{program, stderr, stdout};
use crate::harness::{Asks as _, map, wait_for};
use crate::reactor::{FakeMaster, LEGACY, Lab, lab, lab_of};

/// An event as the bus of a master has it: `origin` is the peer that fired it, empty for the master itself.
fn event(tag: &str, origin: &str) -> (String, Value) {
    let mut data = vec![("id", "web1".into()), ("_stamp", "2026".into())];
    if !origin.is_empty() {
        data.push(("__peer_id", origin.into()));
    }
    (tag.to_owned(), map(data))
}

fn settled(lab: &Lab) {
    wait_for("the reactor to be done", || (lab.open() == 0).then_some(()));
}

/// The output of `saltcellar` for the daemon.
fn told(lab: &Lab, args: &[&str]) -> String {
    let mut command = program();
    command.arg("--socket").arg(lab.cellar.socket()).args(args);
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", stderr(&output));
    stdout(&output)
}

#[test]
fn each_event_of_a_cluster_of_three_gets_one_reaction_in_total() {
    const MASTERS: [&str; 3] = ["m0", "m1", "m2"];
    let asked_of: Vec<_> = MASTERS.iter().map(|_| FakeMaster::start()).collect();
    let mut labs: Vec<_> = MASTERS
        .iter()
        .zip(&asked_of)
        .map(|(id, master)| {
            let of_master = format!("id: {id}\ncluster_id: c\n");
            let files = [("a.sls", LEGACY)];
            lab_of(master.port, "[{'a/*': DIR/a.sls}]", &files, "", &of_master)
        })
        .collect();

    // In an order of its own on each bus, as events cross each other on their way.
    for (lab, own) in labs.iter_mut().zip(MASTERS) {
        let (ours, theirs): (Vec<_>, Vec<_>) = (0..1000)
            .map(|n| {
                let by = MASTERS[n % 3];
                event(&format!("a/{n}"), if by == own { "" } else { by })
            })
            .partition(|(_, data)| data["__peer_id"].is_nil());
        lab.fire(&ours);
        lab.fire(&theirs);
    }

    let mut all = Vec::new();
    for ((n, lab), master) in labs.iter().enumerate().zip(&asked_of) {
        let own = if n == 0 { 334 } else { 333 };
        lab.cellar
            .counted("reactor_events_ignored_other_master", 1000 - own);
        master.wait(usize::try_from(own).unwrap());
        settled(lab);
        assert_eq!(lab.cellar.counter("reactor_events"), own);
        all.extend(master.asked().into_iter().map(|(_, _, tag, ..)| tag));
    }

    assert_eq!(all.len(), 1000);
    all.sort_unstable();
    all.dedup();
    assert_eq!(all.len(), 1000, "each event once");
}

#[test]
fn a_changed_cluster_id_takes_effect_while_the_daemon_runs_and_is_told() {
    let master = FakeMaster::start();
    let files = [("a.sls", LEGACY)];
    let mut lab = lab(master.port, "[{'a/*': DIR/a.sls}]", &files, "");

    lab.fire(&[event("a/1", "m2")]);
    master.wait(1);
    settled(&lab);
    assert!(!told(&lab, &["reactor", "rules"]).contains("acts only"));
    // A minion of this master has fired it, and the mark is its own.
    assert_eq!(lab.cellar.counter("event_peer_ids_ignored"), 1);
    let screen = told(&lab, &["status"]);
    assert!(screen.contains("event_peer_ids_ignored is 1"), "{screen}");

    let path = lab.cellar.dir.path().join("master");
    let before = std::fs::read_to_string(&path).unwrap();
    std::fs::write(&path, format!("{before}cluster_id: c\n")).unwrap();
    let cluster = |lab: &Lab| lab.cellar.ask("reactor_list", vec![])["cluster_id"].clone();
    wait_for("the change", || (cluster(&lab) == "c".into()).then_some(()));

    lab.fire(&[event("a/2", "m2"), event("a/3", "")]);
    master.wait(2);
    settled(&lab);
    let tags: Vec<_> = master
        .asked()
        .into_iter()
        .map(|(_, _, tag, ..)| tag)
        .collect();
    assert_eq!(tags, ["a/1", "a/3"]);

    let list = told(&lab, &["reactor", "rules"]);
    assert!(
        list.contains("acts only on events that this master fired, because cluster_id is c; 1 of other masters"),
        "{list}"
    );
    let why = told(&lab, &["reactor", "why", "a/2"]);
    assert!(
        why.contains("fired on master m2, whose daemon reacts"),
        "{why}"
    );
    let why = told(&lab, &["reactor", "why", "a/3"]);
    assert!(!why.contains("fired on master"), "{why}");
    let status = lab.cellar.ask("status", vec![]);
    assert_eq!(status["reactions"]["cluster_id"], "c".into());
    assert_eq!(status["reactions"]["of_peers"], 1.into());
    let screen = told(&lab, &["status"]);
    assert!(screen.contains("events of this master"), "{screen}");

    std::fs::write(&path, before).unwrap();
    wait_for("the change", || cluster(&lab).is_nil().then_some(()));
    lab.fire(&[event("a/4", "m2")]);
    master.wait(3);
    settled(&lab);
    assert_eq!(lab.cellar.counter("event_peer_ids_ignored"), 2);
}
