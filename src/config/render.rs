//! Renders configurations for `saltcellar check`.

use std::fmt::Write;

use serde::ser::Error as _;
use serde::{Serialize, Serializer};
use serde_json::{Map, Value as Json, json};

use super::load::names;
use super::{Config, Origin};

/// The values of all keys, as in a configuration file.
pub(super) fn values(config: &Config) -> Map<String, Json> {
    match serde_json::to_value(config) {
        Ok(Json::Object(values)) => values,
        // The keys of a configuration are texts, and its values can all be written.
        other => unreachable!("{other:?}"),
    }
}

/// Keys whose value is a mapping with names that the user chooses. Every other mapping is a section.
const MAPPINGS: [&str; 2] = ["scripts", "sinks"];

/// The values of all keys by dotted name.
pub(super) fn by_name(config: &Config) -> Map<String, Json> {
    let mut named = Map::new();
    for (name, value) in values(config) {
        match value {
            Json::Object(section) if !MAPPINGS.contains(&name.as_str()) => {
                named.extend(section.into_iter().map(|(key, value)| (format!("{name}.{key}"), value)));
            }
            value => _ = named.insert(name, value),
        }
    }
    named
}

/// Writes a list of mappings without their unset fields.
pub(super) fn items<T: Serialize, S: Serializer>(items: &[T], to: S) -> Result<S::Ok, S::Error> {
    let mut value = serde_json::to_value(items).map_err(S::Error::custom)?;
    remove_unset(&mut value);
    value.serialize(to)
}

fn remove_unset(value: &mut Json) {
    match value {
        Json::Array(items) => items.iter_mut().for_each(remove_unset),
        Json::Object(map) => {
            let is_unset =
                |value: &Json| matches!(value, Json::Null | Json::Bool(false)) || *value == json!([]);
            map.retain(|_, value| !is_unset(value));
            map.values_mut().for_each(remove_unset);
        }
        _ => {}
    }
}

/// The effective configuration as YAML that [`super::Config::load`] can read.
pub(super) fn yaml(config: &Config) -> String {
    let mut text = format!("# saltcellar {}, effective configuration\n", env!("CARGO_PKG_VERSION"));
    for (name, value) in values(config) {
        if MAPPINGS.contains(&name.as_str()) {
            yaml_key(&mut text, "", &name, &value, config.origin(&name));
        } else if let Json::Object(section) = value {
            line(&mut text, format_args!("{name}:"));
            for (key, value) in section {
                yaml_key(&mut text, "  ", &key, &value, config.origin(&format!("{name}.{key}")));
            }
        } else {
            yaml_key(&mut text, "", &name, &value, config.origin(&name));
        }
    }
    text
}

fn yaml_key(text: &mut String, indent: &str, name: &str, value: &Json, origin: &Origin) {
    match value {
        // A key without a value cannot be written, but is listed.
        Json::Null => line(text, format_args!("{indent}# {name}: not set  # {origin}")),
        Json::Array(items) if !items.is_empty() => {
            line(text, format_args!("{indent}{name}:  # {origin}"));
            for item in items {
                line(text, format_args!("{indent}  - {}", scalar(item)));
            }
        }
        Json::Object(items) if !items.is_empty() => {
            line(text, format_args!("{indent}{name}:  # {origin}"));
            for (item, value) in items {
                line(text, format_args!("{indent}  {}: {}", scalar(&json!(item)), scalar(value)));
            }
        }
        _ => line(text, format_args!("{indent}{name}: {}  # {origin}", scalar(value))),
    }
}

/// The effective configuration and its origins.
pub(super) fn json(config: &Config) -> Json {
    let origins = names().into_iter().map(|name| {
        let origin = config.origin(&name).to_string();
        (name, Json::from(origin))
    });
    json!({ "config": values(config), "origins": origins.collect::<Map<_, _>>() })
}

fn line(text: &mut String, arguments: std::fmt::Arguments<'_>) {
    // Writing to a String cannot fail.
    let _ = writeln!(text, "{arguments}");
}

/// A YAML value on one line. Text is bare where that is unambiguous, else quoted as in JSON.
fn scalar(value: &Json) -> String {
    match value {
        Json::String(text) if is_bare(text) => text.clone(),
        Json::Object(map) => {
            let pairs: Vec<_> = map
                .iter()
                .map(|(name, value)| format!("{}: {}", scalar(&json!(name)), scalar(value)))
                .collect();
            format!("{{{}}}", pairs.join(", "))
        }
        Json::Array(items) => format!("[{}]", items.iter().map(scalar).collect::<Vec<_>>().join(", ")),
        other => other.to_string(),
    }
}

fn is_bare(text: &str) -> bool {
    let first = text.chars().next().is_some_and(|c| c.is_ascii_alphabetic() || c == '/');
    let sized =
        text.chars().next().is_some_and(|c| c.is_ascii_digit()) && text.ends_with(['B', 's', 'm', 'h', 'd']);
    let rest = text.chars().all(|c| c.is_ascii_alphanumeric() || "/._-".contains(c));
    (first || sized)
        && rest
        && !matches!(text, "null" | "true" | "false" | "yes" | "no" | "on" | "off" | "y" | "n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{CliOverrides, Environment, IpcPath, LogLevel, Mode};
    use crate::model::{Age, ClassRule, ClassRules, Glob, Keep};

    #[test]
    fn a_rendered_configuration_is_read_back_equal() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("c.yaml");
        let mut config = Config::for_state_dir("/s: odd # \"path\"", "/s/sock");
        config.bus = vec!["/a".into(), "/b c".into()];
        config.socket_group = Some("yes".into());
        config.zeromq.pull = Some(IpcPath("/s/in: #.sock".into()));
        config.zeromq.mode = Some(Mode(0o600));
        config.log.level = LogLevel("info,saltcellar::store=debug".to_owned());
        let rule = |text: &str| ClassRule { fun: Some(Glob::new(text)), tag: None };
        let keep =
            Keep { age: Age::For(std::time::Duration::from_secs(90)), bytes: Some(1 << 30), entries: None };
        let rules = vec![rule("a, b: {c}"), rule("[!x]*")];
        config.store.classes.insert(0, ClassRules { name: "own".into(), rules, keep });
        std::fs::write(&path, config.to_yaml()).unwrap();
        let given = CliOverrides { config: Some(path), ..CliOverrides::default() };
        assert_eq!(
            Config::load(&given, &Environment::default()).unwrap().to_json()["config"],
            config.to_json()["config"]
        );
    }

    #[test]
    fn each_value_is_rendered_with_its_origin() {
        let given = CliOverrides { socket: Some("/flag.sock".into()), ..CliOverrides::default() };
        let around = Environment { state_dir: Some("/e".into()), ..Environment::default() };
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
                "http:",
                "  # listen: not set  # default",
                "  # unix: not set  # default",
                "  # tls: not set  # default",
                "  hosts: []  # default",
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
                "  # python: not set  # default",
                "  helper_memory: 1GiB  # default",
                "  helper_timeout: 30s  # default",
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
                "    - {name: events, keep: {age: 30d}}",
                "    - {name: jobs, keep: {age: salt}}",
                "  free_bytes_low: auto  # default",
                "  free_bytes_min: auto  # default",
                "  pin_bytes_max: 10GiB  # default",
                "scripts: {}  # default",
                "sinks: {}  # default",
            ]
        );
        let json = config.to_json();
        assert_eq!(json["config"]["log"]["level"], "info");
        assert_eq!(json["origins"]["socket"], "--socket");
    }
}
