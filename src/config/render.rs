//! Renders configurations and their documentation: `saltcellar check` and `docs/CONFIG.md`.

use std::fmt::Write;

use serde_json::{Map, Value as Json, json};

use super::{Config, KEYS, Key, Origin};

/// The effective configuration as YAML that [`super::Config::load`] can read.
pub(super) fn yaml(config: &Config) -> String {
    let mut text = format!("# saltcellar {}, effective configuration\n", env!("CARGO_PKG_VERSION"));
    let mut section = "";
    for key in KEYS {
        let value = (key.show)(config);
        let (indent, name) = match key.name.split_once('.') {
            Some((outer, name)) => {
                if outer != section {
                    line(&mut text, format_args!("{outer}:"));
                    section = outer;
                }
                ("  ", name)
            }
            None => ("", key.name),
        };
        let origin = config.origin(key.name);
        match &value {
            // A key without a value cannot be written, but is listed.
            Json::Null => line(&mut text, format_args!("{indent}# {name}: not set  # {origin}")),
            Json::Array(items) if !items.is_empty() => {
                line(&mut text, format_args!("{indent}{name}:  # {origin}"));
                for item in items {
                    line(&mut text, format_args!("{indent}  - {}", scalar(item)));
                }
            }
            _ => line(&mut text, format_args!("{indent}{name}: {}  # {origin}", scalar(&value))),
        }
    }
    text
}

/// The effective configuration and its origins.
pub(super) fn json(config: &Config) -> Json {
    let mut values = Map::new();
    let mut origins = Map::new();
    for key in KEYS {
        let value = (key.show)(config);
        match key.name.split_once('.') {
            Some((outer, name)) => {
                let section = values.entry(outer).or_insert_with(|| json!({}));
                if let Json::Object(section) = section {
                    section.insert(name.to_owned(), value);
                }
            }
            None => {
                values.insert(key.name.to_owned(), value);
            }
        }
        origins.insert(key.name.to_owned(), origin_json(config.origin(key.name)));
    }
    json!({ "config": values, "origins": origins })
}

/// `docs/CONFIG.md`, from [`KEYS`].
pub fn markdown() -> String {
    let mut text = String::from(PREFACE);
    for key in KEYS {
        key_markdown(&mut text, key);
    }
    text
}

const PREFACE: &str = "\
<!-- Generated from src/config/keys.rs; renew with: UPDATE_EXPECT=1 cargo test --test tidy -->
# Configuration

`saltcellar serve` runs without any configuration. `saltcellar check` prints the effective configuration and
the origin of each value.

A flag overrides the environment, the environment the file, the file the default. The file is YAML:
the one named by `--config`, else `/etc/saltcellar/saltcellar.yaml` for root and
`$XDG_CONFIG_HOME/saltcellar/saltcellar.yaml` (or `~/.config/...`) for other users, if it exists. Unknown
keys, values of the wrong kind and duplicate keys are rejected with file, line, and the accepted
values. Anchors, aliases and tags of YAML are not supported. Paths in a file are absolute; paths in flags and
environment are relative to the working directory.

A client (`saltcellar jobs`, `events`, `status`) finds the socket by the same rules. Without an explicit path, and if
the user's own socket does not exist, it uses the system's, `/run/saltcellar/saltcellar.sock`.

```yaml
state_dir: /var/lib/saltcellar
bus: [/var/run/salt/master]
log:
  level: info
store:
  segment_bytes_max: 256MiB
  classes:
    - name: chatter            # frequent polling, and key events
      match: [{fun: saltutil.find_job}, {fun: saltutil.running}, {tag: salt/auth}]
      keep: {age: 1d, bytes: 1GiB}
    - name: jobs               # jobs without a class above
      keep: {age: salt}        # the default: the master's keep_jobs_seconds
    - name: events             # everything else
      keep: {age: 30d}         # the default
```
";

fn key_markdown(text: &mut String, key: &Key) {
    line(text, format_args!("\n## `{}`\n\n{}\n", key.name, key.doc));
    line(text, format_args!("- value: {}", key.accepts));
    let plain = !key.default.contains(' ') && !key.default.contains('`');
    let quote = if plain { "`" } else { "" };
    line(text, format_args!("- default: {quote}{}{quote}", key.default));
    line(text, format_args!("- example: `{}`", key.example));
    if let Some(flag) = key.flag {
        let times = if key.name == "bus" { " (may be repeated)" } else { "" };
        line(text, format_args!("- flag of `serve`: `{flag}`{times}"));
    }
    if let Some(variable) = key.environment {
        line(text, format_args!("- environment: `{variable}`"));
    }
}

fn line(text: &mut String, arguments: std::fmt::Arguments<'_>) {
    // Writing to a String cannot fail.
    let _ = writeln!(text, "{arguments}");
}

fn origin_json(origin: &Origin) -> Json {
    Json::from(origin.to_string())
}

/// A YAML value on one line. Text is bare where that is unambiguous, else quoted as in JSON.
fn scalar(value: &Json) -> String {
    match value {
        Json::String(text) if is_bare(text) => text.clone(),
        Json::Object(map) => {
            let pairs: Vec<_> =
                map.iter().map(|(name, value)| format!("{name}: {}", scalar(value))).collect();
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
    use crate::config::{CliOverrides, Environment};
    use crate::model::{Age, ClassRule, ClassRules, Glob, Keep};

    #[test]
    fn a_rendered_configuration_is_read_back_equal() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("c.yaml");
        let mut config = Config::for_state_dir("/s: odd # \"path\"", "/s/sock");
        config.bus = vec!["/a".into(), "/b c".into()];
        config.socket_group = Some("yes".into());
        config.zeromq.pull = Some("/s/in: #.sock".into());
        config.zeromq.mode = Some(0o600);
        config.log.level = "info,saltcellar::store=debug".into();
        let rule = |text: &str| ClassRule { fun: Some(Glob::new(text)), tag: None };
        let keep =
            Keep { age: Age::For(std::time::Duration::from_secs(90)), bytes: Some(1 << 30), entries: None };
        let rules = vec![rule("a, b: {c}"), rule("[!x]*")];
        config.store.classes.insert(0, ClassRules { name: "own".into(), rules, keep });
        std::fs::write(&path, config.to_yaml()).unwrap();
        let given = CliOverrides { config: Some(path), ..CliOverrides::default() };
        assert_eq!(Config::load(&given, &Environment::default()), Ok(config));
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
            ]
        );
        let json = config.to_json();
        assert_eq!(json["config"]["log"]["level"], "info");
        assert_eq!(json["origins"]["socket"], "--socket");
    }
}
