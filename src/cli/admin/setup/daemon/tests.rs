//! Tests of the plan's steps for the daemon.

use super::*;
use crate::cli::Global;

fn wanted(reactor: bool) -> Keys {
    Keys {
        bus: Some("/run/m".into()),
        reactor: reactor.then(|| "/etc/salt/master".into()),
        ..Keys::default()
    }
}

/// A daemon that setup has to start.
const STOPPED: service::State = service::State {
    is_enabled: false,
    is_active: false,
};

/// Plans and makes the change in a directory with these files. The steps, or the error without the directory, and the file of setup.
fn planned(
    files: &[(&str, &str)],
    wanted: &Keys,
    choices: Choices,
) -> (Result<String, String>, Option<String>) {
    let dir = tempfile::tempdir().unwrap();
    for (name, text) in files {
        let path = dir.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }
    let main = dir.path().join("c.yaml");
    let mut plan = Plan::default();
    let outcome = Settings::read(&main)
        .and_then(|settings| configure(&mut plan, &settings, wanted, choices, STOPPED))
        .map(|_| plan.needed().join(","))
        .map_err(|error| format!("{error:#}").replace(&format!("{}/", dir.path().display()), ""));
    let global = Global::with_json();
    if outcome.is_ok() {
        plan.carry_out(&global, true, &serde_json::Value::Null)
            .unwrap();
    }
    for (name, text) in files.iter().filter(|(name, _)| *name == "c.yaml") {
        assert_eq!(
            fs::read_to_string(dir.path().join(name)).unwrap(),
            *text,
            "it stays"
        );
    }
    (outcome, fs::read_to_string(file_beside(&main)).ok())
}

const HEAD: &str =
    "# Settings for this host's Salt master. To undo: `saltcellar setup --remove`.\n";

#[test]
fn settings_are_written_to_a_file_of_their_own() {
    let choices = Choices::default();
    let done = |main: Option<&str>, reactor, expected: &str| {
        let files: Vec<_> = main.map(|text| ("c.yaml", text)).into_iter().collect();
        let (outcome, written) = planned(&files, &wanted(reactor), choices);
        assert_eq!(outcome.as_deref(), Ok("configuration"), "{main:?}");
        assert_eq!(
            written.as_deref(),
            Some(marked(&format!("{HEAD}{expected}")).as_str())
        );
        let again = written.clone().unwrap();
        let files = [files, vec![("conf.d/setup.yaml", again.as_str())]].concat();
        assert_eq!(
            planned(&files, &wanted(reactor), choices),
            (Ok(String::new()), written),
            "the second time"
        );
    };
    let both = "bus: [/run/m]\nreactor.master: /etc/salt/master\n";
    done(None, false, "bus: [/run/m]\n");
    done(Some("{}\n"), true, both);
    done(Some("bus: [/other]\nreactor: {depth_max: 3}\n"), true, both);
    done(
        Some("bus: [/run/m]\n"),
        true,
        "reactor.master: /etc/salt/master\n",
    );

    let all = [(
        "c.yaml",
        "bus: [/run/m]\nreactor: {master: /etc/salt/master}\n",
    )];
    assert_eq!(
        planned(&all, &wanted(true), choices),
        (Ok(String::new()), None)
    );
    let reactor = Choices {
        reactor: true,
        ..choices
    };
    let (_, written) = planned(&all, &wanted(true), reactor);
    assert_eq!(
        written,
        Some(marked(&format!("{HEAD}# Choices: --reactor\n")))
    );
}

#[test]
fn settings_that_are_no_longer_wanted_are_removed() {
    let text = marked(&format!("{HEAD}bus: [/run/m]\n"));
    let files = [("conf.d/setup.yaml", text.as_str())];
    let none = Choices::default();
    assert_eq!(
        planned(&files, &Keys::default(), none),
        (Ok("configuration".to_owned()), None)
    );
}

#[test]
fn a_persons_values_are_not_changed() {
    let error = |files: &[(&str, &str)]| {
        planned(files, &wanted(true), Choices::default())
            .0
            .unwrap_err()
    };
    assert_eq!(
        error(&[("c.yaml", "reactor: {master: /srv/master}\n")]),
        "configure the daemon: conf.d/setup.yaml:4: reactor.master: duplicate key, with another value than in c.yaml:1; keep one of them"
    );
    assert_eq!(
        error(&[("c.yaml", "reactor: {shadow: true}\n")]),
        "hand the reactor over: `reactor.shadow` is true in c.yaml:1; remove it"
    );
    assert!(
        error(&[("c.yaml", "buss: 1\n")])
            .contains("read the configuration: c.yaml:1: buss: unknown key")
    );
    let changed = format!("{}log.level: debug\n", marked("bus: [/run/m]\n"));
    assert_eq!(
        error(&[("conf.d/setup.yaml", changed.as_str())]),
        "change conf.d/setup.yaml: it is changed by hand; move it away first, or keep it and do not use setup"
    );
}

#[test]
fn paths_with_any_characters_are_read_back_as_they_are() {
    for path in [
        "/run/a,b",
        "/run/a: b",
        "/run/a # b",
        "/run/a]",
        "/run/\"a\"",
        "/run/it's",
    ] {
        let wanted = Keys {
            bus: Some(path.into()),
            reactor: Some(path.into()),
            python: Some(path.into()),
            listen: Some("127.0.0.1:4581".to_owned()),
        };
        let (outcome, written) = planned(&[], &wanted, Choices::default());
        assert_eq!(outcome.as_deref(), Ok("configuration"), "{path}");

        let dir = tempfile::tempdir().unwrap();
        let main = dir.path().join("c.yaml");
        let written = written.unwrap();
        let config = Config::load_files_with(&main, &file_beside(&main), Some(&written)).unwrap();
        assert_eq!(config.bus, [Path::new(path)], "{written}");
        assert_eq!(config.reactor.master.as_deref(), Some(Path::new(path)));
        assert_eq!(config.reactor.python.as_deref(), Some(Path::new(path)));

        // What was written is in place at the next run, and its address is known.
        let files = [("conf.d/setup.yaml", written.as_str())];
        assert_eq!(
            planned(&files, &wanted, Choices::default()).0,
            Ok(String::new()),
            "{path}"
        );
        assert!(
            written.contains("\nhttp.listen: \"127.0.0.1:4581\"\n"),
            "{written}"
        );
    }
}
