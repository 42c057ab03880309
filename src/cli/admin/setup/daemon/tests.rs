//! Tests of the plan's steps for the daemon.

use super::*;

fn planned(text: Option<&str>, reactor: bool) -> (Result<String, String>, Option<String>) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("etc/c.yaml");
    if let Some(text) = text {
        fs::create_dir(dir.path().join("etc")).unwrap();
        fs::write(&path, text).unwrap();
    }
    let mut plan = Plan::default();
    let keys = Keys {
        bus: Some(Path::new("/run/m")),
        reactor: reactor.then_some(Path::new("/etc/salt/master")),
    };
    let outcome = configure(&mut plan, &path, &keys);
    let outcome = outcome.map(|_| plan.needed().join(",")).map_err(|error| {
        format!("{error:#}").replace(&format!("{}/etc/", dir.path().display()), "")
    });
    let global = crate::cli::Global {
        socket: None,
        state_dir: None,
        config: None,
        output: crate::cli::Form::Json,
        utc: false,
        no_pager: false,
    };
    if outcome.is_ok() {
        plan.carry_out(&global, true, &serde_json::Value::Null)
            .unwrap();
    }
    (outcome, fs::read_to_string(&path).ok())
}

#[test]
fn keys_are_appended_and_the_rest_stays() {
    let done = |text: Option<&str>, reactor, expected: &str| {
        let (outcome, written) = planned(text, reactor);
        assert_eq!(outcome.as_deref(), Ok("configuration"), "{text:?}");
        assert_eq!(written.as_deref(), Some(expected));
        assert_eq!(
            planned(written.as_deref(), reactor),
            (Ok(String::new()), written),
            "the second time"
        );
    };
    let both = "bus: [/run/m]\nreactor.master: /etc/salt/master\n";
    done(None, false, "bus: [/run/m]\n");
    done(Some("{}\n"), true, both);
    done(
        Some("# mine\nlog.level: debug"),
        true,
        &format!("# mine\nlog.level: debug\n{both}"),
    );
    done(
        Some("reactor:\n  depth_max: 3\n"),
        true,
        &format!("reactor:\n  depth_max: 3\n{both}"),
    );
}

#[test]
fn a_persons_values_are_not_changed() {
    let error = |text: &str| planned(Some(text), true).0.unwrap_err();
    assert_eq!(
        error("bus: [/other]\n"),
        "configure the bus: `bus` in c.yaml has other directories; add /run/m to it"
    );
    assert_eq!(
        error("{log: {level: debug}}\n"),
        "change c.yaml: its keys cannot be appended to; add by hand, and run setup again: bus: [/run/m], reactor.master: /etc/salt/master"
    );
    assert_eq!(
        error("reactor: {shadow: true}\n"),
        "hand the reactor over: `reactor.shadow` is true in c.yaml; remove it"
    );
    assert!(
        error("buss: 1\n").contains("read the configuration: c.yaml:1: buss: unknown key"),
        "{}",
        error("buss: 1\n")
    );
}
