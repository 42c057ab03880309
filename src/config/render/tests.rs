//! Tests of the generated page of configuration keys.

use salt_sls::Glob;

use super::*;
use crate::config::{CliOverrides, Environment, IpcPath, LogLevel, Mode};
use crate::model::{Age, ClassRule, ClassRules, Keep};

#[test]
fn a_rendered_configuration_is_read_back_equal() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("c.yaml");
    let mut config = Config::for_state_dir("/s: odd # \"path\"", "/s/sock");
    config.bus = vec!["/a".into(), "/b c".into()];
    config.socket_group = Some("Null".into());
    config.zeromq.pull = Some(IpcPath("/s/in: #.sock".into()));
    config.zeromq.mode = Some(Mode(0o600));
    config.log.level = LogLevel("info,saltcellar_store=debug".to_owned());
    let rule = |text: &str| ClassRule {
        fun: Some(Glob::new(text)),
        tag: None,
    };
    let keep = Keep {
        age: Age::For(std::time::Duration::from_secs(90)),
        bytes: Some(1 << 30),
        entries: None,
    };
    let rules = vec![rule("a, b: {c}"), rule("[!x]*")];
    config.store.classes.insert(
        0,
        ClassRules {
            name: "own".into(),
            rules,
            keep,
        },
    );
    std::fs::write(&path, config.to_yaml()).unwrap();
    let given = CliOverrides {
        config: Some(path),
        ..CliOverrides::default()
    };
    assert_eq!(
        Config::load(&given, &Environment::default())
            .unwrap()
            .shown()
            .0,
        config.shown().0
    );
}

#[test]
fn each_value_is_rendered_with_its_origin() {
    let given = CliOverrides {
        socket: Some("/flag.sock".into()),
        ..CliOverrides::default()
    };
    let around = Environment {
        state_dir: Some("/e".into()),
        ..Environment::default()
    };
    let config = Config::load(&given, &around).unwrap();
    let yaml = config.to_yaml();
    let lines: Vec<_> = yaml.lines().skip(1).collect();
    assert_eq!(
        lines,
        [
            "state_dir: /e  # SALTCELLAR_STATE_DIR",
            "socket: /flag.sock  # --socket",
            "socket_mode: \"0660\"  # default",
            "# socket_group: not set  # default",
            "socket_peers: write  # default",
            "bus: []  # default",
            "spools:  # default",
            "  - /var/cache/salt/master/saltcellar",
            "  - /var/cache/salt/minion/saltcellar",
            "cluster:",
            "  # slot: not set  # default",
            "  # nats: not set  # default",
            "  stream: saltcellar  # default",
            "  replicas: 3  # default",
            "  # name: not set  # default",
            "  replicate: jobs  # default",
            "  window: 7d  # default",
            "  monitor: []  # default",
            "http:",
            "  # listen: not set  # default",
            "  # unix: not set  # default",
            "  # tls: not set  # default",
            "  hosts: []  # default",
            "  # hook_headers: not set  # default",
            "  minion_metrics: false  # default",
            "  minions: false  # default",
            "https:",
            "  # listen: not set  # default",
            "  # certificate: not set  # default",
            "  # key: not set  # default",
            "  pki_dir: /etc/salt/pki/master  # default",
            "  read: none  # default",
            "ingest:",
            "  filter: []  # default",
            "  redact: []  # default",
            "  masters:  # default",
            "    - /etc/salt/master",
            "  spill_bytes_max: 1GiB  # default",
            "reactor:",
            "  # master: not set  # default",
            "  # minion: not set  # default",
            "  # rules: not set  # default",
            "  shadow: false  # default",
            "  shadow_window: 1m  # default",
            "  options: []  # default",
            "  allow: []  # default",
            "  age_max: 1h  # default",
            "  depth_max: 8  # default",
            "  # election: not set  # default",
            "  without_quorum: stop  # default",
            "  # python: not set  # default",
            "  helper_memory: 1GiB  # default",
            "  helper_timeout: 30s  # default",
            "  program_timeout: 10m  # default",
            "zeromq:",
            "  # pull: not set  # default",
            "  # pub: not set  # default",
            "  # mode: not set  # default",
            "  # group: not set  # default",
            "log:",
            "  level: info  # default",
            "  format: auto  # default",
            "store:",
            "  durability: durable  # default",
            "  segment_bytes_max: 256MiB  # default",
            "  entry_bytes_max: 64MiB  # default",
            "  classes:  # default",
            "    - {name: events, keep: {age: 90d}}",
            "    - {name: jobs, keep: {age: \"90d or salt\"}}",
            "  minion_share: 50  # default",
            "  free_bytes_low: auto  # default",
            "  free_bytes_min: auto  # default",
            "  pin_bytes_max: 10GiB  # default",
            "scripts: {}  # default",
            "sinks: {}  # default",
        ]
    );
    let (values, origins) = config.shown();
    assert_eq!(values["log"]["level"], "info");
    assert_eq!(origins["socket"], "--socket");
}
