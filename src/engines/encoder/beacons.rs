//! The encoder `beacons`: each number of a beacon's event as a measurement.
//!
//! A rule selects beacons by name and finds their numbers, even in strings such as `87.5%`, and in
//! maps of `value` and `unit` as in `/proc/meminfo` (kB become bytes). The rules for Salt's own
//! beacons are in `beacons.yaml`. Events of other beacons have no items.
//!
//! The name of a measurement is the rule's prefix and the path of the number. Its item is a JSON
//! object with `metric`, `value`, `time`, `unix` and `tags`, or the text of the template `item`,
//! which also has `minion`, `beacon`, `id` and `tag_list` (`["minion:web1", ..]`).

use std::collections::BTreeMap;
use std::sync::LazyLock;

use salt_sls::Glob;
use serde::Deserialize;
use serde_json::{Map, Value as Json, json};

use super::encode::{BoxedEncoder, EncodeError, Encoder, bytes_of};
use crate::config::{read_options, read_yaml};
use crate::engines::event::Event;
use crate::engines::kind::{Kind, options};
use crate::engines::template::{Template, at_path};
use crate::model::word;

const DOC: &str = r#"Numbers of beacons as measurements.

Salt's beacons `status`, `diskusage`, `memusage`, `swapusage`, `load` and `network_info`, and `cpu`, have built-in rules. `rules` adds others: `beacon` (a glob for its name), `prefix` (of the measurement's name),
`at` (path of the numbers in the data), `tags` (name: path), `skip` (globs for paths). `tags` adds tags to all measurements. An item is `{"metric", "value", "time", "unix", "tags"}`, or the text of the template
`item`, which also has `minion`, `beacon`, `id` and `tag_list`."#;

pub(super) const KIND: Kind<BoxedEncoder> = Kind {
    name: "beacons",
    doc: DOC,
    example: "{rules: [{beacon: 'sensors*', at: values, prefix: site.sensors, tags: {rack: rack}, skip: ['debug.*']}], tags: {env: prod}}",
    build: |given| {
        let Options { rules, tags, item } = options(given)?;
        let item = item.map(|text| Template::new("item", &text)).transpose()?;
        Ok(Box::new(BeaconEncoder {
            measurements: Measurements::new(rules, tags),
            item,
        }))
    },
};

#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Options {
    /// Tried before those of `beacons.yaml`.
    rules: Rules,
    /// Tags of all measurements.
    tags: BTreeMap<String, Json>,
    /// The template of an item.
    item: Option<String>,
}

pub(super) type Rules = Vec<Rule>;

/// A rule selects beacons and finds their numbers.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Rule {
    #[serde(with = "word")]
    beacon: Glob,
    /// The path of the numbers within the data.
    #[serde(default)]
    at: String,
    /// The first part of each name.
    prefix: String,
    /// Tags: the path of each value within the data.
    #[serde(default)]
    tags: BTreeMap<String, String>,
    /// Paths that do not become measurements.
    #[serde(default, with = "word::many")]
    skip: Vec<Glob>,
}

static RULES: LazyLock<Rules> = LazyLock::new(|| {
    let rules = read_yaml(include_str!("beacons.yaml"))
        .ok()
        .and_then(|rules| read_options(&rules).ok());
    rules.expect("a test reads beacons.yaml")
});

/// Keys of an event that are not values of the beacon.
const ENVELOPE: [&str; 4] = ["id", "_stamp", "master_id", "beacon_name"];

#[derive(Debug)]
pub(super) struct Measurements {
    rules: Rules,
    tags: BTreeMap<String, Json>,
}

pub(super) struct Measured {
    pub(super) minion: String,
    beacon: String,
    pub(super) tags: Map<String, Json>,
    pub(super) list: Vec<Measurement>,
}

/// A number with its name.
pub(super) struct Measurement {
    pub(super) name: String,
    pub(super) value: Json,
}

impl Measurements {
    /// `rules` are tried before the rules of `beacons.yaml`; all measurements have `tags`.
    pub(super) fn new(rules: Rules, tags: BTreeMap<String, Json>) -> Self {
        Self { rules, tags }
    }

    /// The measurements of an event; `None` if it is not of a known beacon.
    pub(super) fn of(&self, event: &Event) -> Result<Option<Measured>, EncodeError> {
        // `salt/beacon/<minion>/<beacon>/...`
        let Some(("salt/beacon", rest)) = event.tag.split_at_checked(11) else {
            return Ok(None);
        };
        let Some((minion, rest)) = rest.strip_prefix('/').and_then(|rest| rest.split_once('/'))
        else {
            return Ok(None);
        };

        let beacon = rest.split('/').next().unwrap_or_default();
        // Rules of the configuration come first, so they can replace those for Salt's beacons.
        let mut rules = self.rules.iter().chain(RULES.iter());
        let Some(rule) = rules.find(|rule| rule.beacon.matches(beacon)) else {
            return Ok(None);
        };

        let mut data = event.data()?;
        // Salt adds these to every event. As numbers they would be measurements.
        if let Some(fields) = data.as_object_mut() {
            fields.retain(|key, _| !ENVELOPE.contains(&key.as_str()));
        }

        let mut tags = Map::from_iter([("minion".to_owned(), Json::from(minion))]);
        tags.extend(
            self.tags
                .iter()
                .map(|(name, value)| (name.clone(), value.clone())),
        );
        for (name, path) in &rule.tags {
            tags.extend(at_path(&data, path).map(|value| (name.clone(), value.clone())));
        }

        let mut numbers = Vec::new();
        if let Some(values) = at_path(&data, &rule.at) {
            collect(values, "", &mut numbers);
        }
        // A number that is a tag would otherwise also be a measurement of itself.
        let is_tag = |path: &str| rule.at.is_empty() && rule.tags.values().any(|tag| tag == path);
        numbers
            .retain(|(path, _)| !is_tag(path) && !rule.skip.iter().any(|glob| glob.matches(path)));

        let named = |(path, value): (String, Json)| Measurement {
            name: metric(&rule.prefix, &path),
            value,
        };
        let list = numbers.into_iter().map(named).collect();

        Ok(Some(Measured {
            minion: minion.to_owned(),
            beacon: beacon.to_owned(),
            tags,
            list,
        }))
    }
}

#[derive(Debug)]
struct BeaconEncoder {
    measurements: Measurements,
    item: Option<Template>,
}

impl Encoder for BeaconEncoder {
    fn break_no_lines(&mut self) {
        if let Some(item) = &mut self.item {
            item.break_no_lines();
        }
    }

    fn encode(&self, event: &Event, items: &mut Vec<Vec<u8>>) -> Result<(), EncodeError> {
        let Some(found) = self.measurements.of(event)? else {
            return Ok(());
        };
        // The list is empty if no value of the event is a number.
        for Measurement { name, value } in &found.list {
            let item = json!({
                "metric": name,
                "value": value,
                "time": event.at.iso(),
                "unix": event.at.0.div_euclid(1_000_000),
                "tags": found.tags,
            });
            items.push(match &self.item {
                None => bytes_of(&item),
                Some(template) => text(template, item, event, &found)?,
            });
        }

        Ok(())
    }
}

fn text(
    template: &Template,
    mut item: Json,
    event: &Event,
    found: &Measured,
) -> Result<Vec<u8>, EncodeError> {
    // Names that only a template needs, so items without one stay small.
    if let Some(names) = item.as_object_mut() {
        let tag_list = found.tags.iter().map(|(name, value)| match value.as_str() {
            Some(text) => format!("{name}:{text}"),
            None => format!("{name}:{value}"),
        });
        names.insert("tag_list".to_owned(), tag_list.collect());
        names.insert("minion".to_owned(), found.minion.as_str().into());
        names.insert("beacon".to_owned(), found.beacon.as_str().into());
        names.insert("id".to_owned(), event.id.as_str().into());
    }

    Ok(template.render(item)?.trim().as_bytes().to_vec())
}

/// The numbers in a value, each with its dotted path.
fn collect(value: &Json, path: &str, found: &mut Vec<(String, Json)>) {
    let below = |key: &str| {
        if path.is_empty() {
            key.to_owned()
        } else {
            format!("{path}.{key}")
        }
    };

    match value {
        Json::Number(_) => found.push((path.to_owned(), value.clone())),
        Json::Bool(flag) => found.push((path.to_owned(), Json::from(u8::from(*flag)))),
        Json::String(text) => {
            found.extend(
                number(text.strip_suffix('%').unwrap_or(text)).map(|n| (path.to_owned(), n)),
            );
        }

        // A pair of value and unit, as in `/proc/meminfo`, is one number. Any other map contains
        // several.
        Json::Object(map) => match (map.get("value"), map.get("unit").and_then(Json::as_str)) {
            (Some(Json::String(text)), Some(unit)) => {
                // A `kB` of `/proc/meminfo` is 1024 bytes.
                let factor = if unit.eq_ignore_ascii_case("kb") {
                    1024.0
                } else {
                    1.0
                };
                let scaled = number(text).and_then(|n| Some(Json::from(n.as_f64()? * factor)));
                found.extend(scaled.map(|n| (path.to_owned(), n)));
            }
            _ => map
                .iter()
                .for_each(|(key, value)| collect(value, &below(key), found)),
        },
        Json::Array(list) => {
            list.iter()
                .enumerate()
                .for_each(|(n, value)| collect(value, &below(&n.to_string()), found));
        }
        Json::Null => {}
    }
}

/// A finite number in a string.
fn number(text: &str) -> Option<Json> {
    let text = text.trim();
    if let Ok(whole) = text.parse::<i64>() {
        return Some(whole.into());
    }
    let digits = text.starts_with(|c: char| c.is_ascii_digit() || c == '-');
    text.parse::<f64>()
        .ok()
        .filter(|n| digits && n.is_finite())
        .map(Json::from)
}

/// The name of a measurement. Characters that metric stores reject become `_`.
fn metric(prefix: &str, path: &str) -> String {
    let valid = |c: char| {
        if c.is_ascii_alphanumeric() || "._-".contains(c) {
            c
        } else {
            '_'
        }
    };

    [prefix, path]
        .iter()
        .filter(|part| !part.is_empty())
        .copied()
        .collect::<Vec<_>>()
        .join(".")
        .chars()
        .map(valid)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::super::tests::items;
    use super::*;
    use crate::engines::event::tests::event;

    /// Name, value and tags of each measurement.
    #[expect(clippy::needless_pass_by_value, reason = "callers pass literals")]
    fn measured(options: Json, beacon: &str, data: Json) -> Vec<(String, Json, Json)> {
        let tag = format!("salt/beacon/web1/{beacon}");
        let found = items(&KIND, &options, &event(1, &tag, "web1", data)).unwrap();
        let parsed = found
            .iter()
            .map(|item| serde_json::from_str::<Json>(item).unwrap());
        parsed
            .map(|item| {
                (
                    item["metric"].as_str().unwrap().to_owned(),
                    item["value"].clone(),
                    item["tags"].clone(),
                )
            })
            .collect()
    }

    #[test]
    fn salts_own_beacons_become_measurements() {
        assert_eq!(RULES.len(), 7);
        let tags = json!({"minion": "web1"});
        let check = |beacon: &str, data: Json, expected: &[(&str, Json)]| {
            let found = measured(json!({}), beacon, data);
            let found: Vec<_> = found
                .iter()
                .map(|(name, value, _)| (name.as_str(), value.clone()))
                .collect();
            assert_eq!(found, expected, "{beacon}");
        };
        check(
            "load/",
            json!({"1m": 0.5, "5m": 1, "15m": 2.25, "id": "web1", "_stamp": "2026-11-21T05:47:28"}),
            &[
                ("salt.load.1m", json!(0.5)),
                ("salt.load.5m", json!(1)),
                ("salt.load.15m", json!(2.25)),
            ],
        );
        check(
            "memusage/",
            json!({"memusage": 63.5, "id": "web1"}),
            &[("salt.memusage", json!(63.5))],
        );
        check(
            "status/2026-11-21T05:47:28",
            json!({"id": "web1", "data": {
                "loadavg": {"1-min": 0.1}, "time": "Sat Nov 21", "vmstats": {"nr_dirty": 7},
                "cpustats": {"cpu": {"idle": 9}, "intr": {"irqs": {"irqs": [1, 2]}}},
                "meminfo": {"MemTotal": {"value": "3977", "unit": "kB"}},
            }}),
            &[
                ("salt.loadavg.1-min", json!(0.1)),
                ("salt.vmstats.nr_dirty", json!(7)),
                ("salt.cpustats.cpu.idle", json!(9)),
                ("salt.meminfo.MemTotal", json!(4_072_448.0)),
            ],
        );
        let disk = measured(
            json!({}),
            "diskusage/",
            json!({"diskusage": "87.5%", "mount": "/var", "id": "web1"}),
        );
        assert_eq!(
            disk,
            [(
                "salt.diskusage".to_owned(),
                json!(87.5),
                json!({"minion": "web1", "mount": "/var"})
            )]
        );
        let network = json!({"interface": "eth0", "network_info": {"bytes_sent": 5}, "id": "web1"});
        let network = measured(json!({"tags": {"env": "prod"}}), "network_info/", network);
        let expected = json!({"minion": "web1", "env": "prod", "interface": "eth0"});
        assert_eq!(
            network,
            [("salt.network.bytes_sent".to_owned(), json!(5), expected)]
        );
        assert_eq!(measured(json!({}), "load/", json!({"1m": 1}))[0].2, tags);
    }

    #[test]
    fn a_rule_of_the_sink_comes_first_and_a_template_makes_the_item() {
        let rules = json!({"rules": [{"beacon": "sens*", "at": "v", "prefix": "site", "tags": {"rack": "rack"}, "skip": ["debug*"]}]});
        let data = json!({"rack": 4, "v": {"temp in": 21.5, "debug": 1, "open": true, "text": "x", "nan": "nan"}});
        let found = measured(rules, "sensors/", data);
        let names: Vec<_> = found
            .iter()
            .map(|(name, value, _)| (name.as_str(), value.clone()))
            .collect();
        assert_eq!(
            names,
            [("site.temp_in", json!(21.5)), ("site.open", json!(1))]
        );
        assert_eq!(found[0].2, json!({"minion": "web1", "rack": 4}));
        let item = json!({"item": "{{ metric }}={{ value }} {{ unix }} {{ minion }} {{ tag_list | tojson }}"});
        let load = event(1, "salt/beacon/web1/load/", "web1", json!({"1m": 2}));
        assert_eq!(
            items(&KIND, &item, &load).unwrap(),
            [r#"salt.load.1m=2 1795000000 web1 ["minion:web1"]"#]
        );
    }

    #[test]
    fn other_events_have_no_items() {
        for tag in [
            "salt/beacon",
            "salt/beacon/web1",
            "salt/beacon/web1/inotify/",
            "salt/auth",
            "salt/beacons/a/load/",
        ] {
            assert!(
                items(&KIND, &json!({}), &event(1, tag, "web1", json!({"1m": 1})))
                    .unwrap()
                    .is_empty(),
                "{tag}"
            );
        }
    }
}
