//! Reads a YAML text into a [`Config`], and turns errors of serde into [`ConfigError`]s with line, key and accepted values.

use std::cell::RefCell;
use std::fmt;
use std::marker::PhantomData;

use serde::de::value::MapAccessDeserializer;
use serde::de::{DeserializeOwned, DeserializeSeed, MapAccess, SeqAccess, Unexpected, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::Value as Json;
use serde_saphyr::budget::BudgetBreach;
use serde_saphyr::{Error as YamlError, MergeKeyPolicy, Spanned};

use super::{Config, ConfigError, Origin, keys};
use crate::limits;

/// Applies the keys of `text`; `at` gives the origin of a line.
pub(super) fn apply(
    config: &mut Config,
    text: &str,
    at: &dyn Fn(usize) -> Origin,
) -> Result<(), ConfigError> {
    let options = serde_saphyr::options! {
        budget: serde_saphyr::budget! { max_depth: limits::CONFIG_DEPTH_MAX, max_anchors: 0, max_aliases: 0 },
        merge_keys: MergeKeyPolicy::Error,
        reject_unsupported_tags: true,
        strict_booleans: true,
        with_snippet: false,
    };
    let mut path = String::new();
    let failed = RefCell::default();
    let section = Section { config, at, prefix: String::new(), failed: &failed };
    let read = serde_saphyr::with_deserializer_from_str_with_options(text, options, |yaml| {
        let mut track = serde_path_to_error::Track::new();
        let read = section.deserialize(serde_path_to_error::Deserializer::new(yaml, &mut track));
        read.inspect_err(|_| path = track.path().to_string())
    });
    read.map_err(|error| {
        let name = failed.take();
        // The path has no name for keys with a span: only its part below the key counts.
        let below = path.find('[').and_then(|start| path.get(start..)).unwrap_or_default();
        explain(&error, format!("{name}{below}"), at)
    })
}

/// An error with a line: custom errors of serde have none.
pub(super) fn problem<E: serde::de::Error>(problem: &str, accepted: &str) -> E {
    E::invalid_value(Unexpected::Other(problem), &accepted)
}

fn explain(error: &YamlError, key: String, at: &dyn Fn(usize) -> Origin) -> ConfigError {
    let line = error.location().map_or(1, |place| usize::try_from(place.line()).unwrap_or(usize::MAX));
    let yaml = |problem: &str| (String::new(), problem.to_owned(), String::new());
    let (key, problem, accepted) = match error {
        YamlError::SerdeInvalidValue { unexpected, expected, .. } => {
            (key, unexpected.clone(), expected.clone())
        }
        YamlError::SerdeInvalidType { unexpected, expected, .. } if expected == KEYS_EXPECTED => {
            let accepted = keys::under(&key);
            let accepted = if accepted.is_empty() { accepted } else { format!("give {accepted}") };
            (key, format!("{} where keys are expected", noun(unexpected)), accepted)
        }
        YamlError::SerdeInvalidType { unexpected, expected, .. } => {
            (key, format!("{} is not accepted", noun(unexpected)), expected.clone())
        }
        YamlError::SerdeUnknownField { expected, .. } => {
            (key, "unknown key".to_owned(), format!("give {}", expected.join(", ")))
        }
        YamlError::Unexpected { expected: "string scalar", .. } => {
            (key, "a list or a mapping is not accepted".to_owned(), String::new())
        }
        YamlError::NullIntoString { .. } => (key, "nothing is not accepted".to_owned(), String::new()),
        YamlError::DuplicateMappingKey { key: Some(name), .. } => yaml(&format!("duplicate key {name:?}")),
        YamlError::Budget { breach: BudgetBreach::Anchors { .. } | BudgetBreach::Aliases { .. }, .. } => {
            yaml("anchors and aliases (&name, *name) are not supported; write the value out")
        }
        YamlError::Budget { breach: BudgetBreach::Depth { .. }, .. } => yaml("nested too deeply"),
        YamlError::MultipleDocuments { .. } => yaml("a second document starts here; only one is allowed"),
        other => {
            let text = other.to_string();
            let text = text.split(" at line ").next().unwrap_or_default();
            yaml(&format!("not YAML: {text}"))
        }
    };
    let accepted = match keys::of_path(&key) {
        Some(known) if accepted.is_empty() => format!("give {}", known.accepts),
        _ => accepted,
    };
    ConfigError { origin: at(line), key, problem, accepted }
}

/// Names a value by serde's description of it.
fn noun(unexpected: &str) -> String {
    match unexpected.split_once(' ') {
        _ if unexpected == "map" => "a mapping".to_owned(),
        _ if unexpected == "sequence" => "a list".to_owned(),
        _ if unexpected == "unit value" => "nothing".to_owned(),
        Some(("string", text)) => text.to_owned(),
        Some((_, text)) => text.trim_start_matches("point ").replace('`', "\""),
        None => unexpected.to_owned(),
    }
}

const KEYS_EXPECTED: &str = "keys";

/// The document, or a section of it. Keys at the top may have their full, dotted name.
struct Section<'a> {
    config: &'a mut Config,
    at: &'a dyn Fn(usize) -> Origin,
    prefix: String,
    /// The full name of the key that was rejected.
    failed: &'a RefCell<String>,
}

impl<'de> DeserializeSeed<'de> for Section<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Section<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(KEYS_EXPECTED)
    }

    /// An empty file, or a section with all keys commented out.
    fn visit_unit<E>(self) -> Result<(), E> {
        Ok(())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        let Self { config, at, prefix, failed } = self;
        while let Some(key) = map.next_key::<Spanned<String>>()? {
            let name = format!("{prefix}{}", key.value);
            let origin = at(usize::try_from(key.referenced.line()).unwrap_or(usize::MAX));
            let read = if let Some(key) = keys::find(&name) {
                // Once in its section and once by its dotted name; the parser sees two different keys.
                if matches!((config.origin(&name), &origin), (Origin::File { .. }, Origin::File { .. })) {
                    map.next_value_seed(Refuse("duplicate key", "give it once"))
                } else {
                    config.origins.insert(key.name, origin);
                    keys::read(config, key.name, &mut map)
                }
            } else if keys::under(&name).is_empty() {
                let nearest = format!("the nearest known key is {}", keys::nearest(&name));
                map.next_value_seed(Refuse("unknown key", &nearest))
            } else {
                let prefix = format!("{name}.");
                map.next_value_seed(Section { config: &mut *config, at, prefix, failed })
            };
            if read.is_err() && failed.borrow().is_empty() {
                failed.replace(name);
            }
            read?;
        }
        Ok(())
    }
}

/// Rejects a key.
struct Refuse<'a>(&'a str, &'a str);

impl<'de> DeserializeSeed<'de> for Refuse<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, _: D) -> Result<(), D::Error> {
        Err(problem(self.0, self.1))
    }
}

/// A value written as a mapping.
pub(super) trait Mapping: Sized {
    /// Its keys.
    type Fields: DeserializeOwned + Serialize;

    fn check(fields: Self::Fields) -> Result<Self, Problem>;

    fn fields(&self) -> Self::Fields;
}

/// The reason for rejecting a value, and the accepted values.
pub(super) type Problem = (String, String);

pub(super) struct Keyed<T>(pub(super) T);

impl<'de, T: Mapping> Deserialize<'de> for Keyed<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Fields<T>(PhantomData<T>);

        impl<'de, T: Mapping> Visitor<'de> for Fields<T> {
            type Value = T::Fields;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(KEYS_EXPECTED)
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<T::Fields, A::Error> {
                T::Fields::deserialize(MapAccessDeserializer::new(map))
            }
        }

        let fields = deserializer.deserialize_any(Fields::<T>(PhantomData))?;
        T::check(fields).map(Self).map_err(|(found, accepted)| problem(&found, &accepted))
    }
}

impl<T: Mapping> Serialize for Keyed<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.0.fields().serialize(serializer)
    }
}

/// Reads a list of mappings; `check` compares each item with those before it.
pub(super) fn mappings<'de, D: Deserializer<'de>, T: Mapping>(
    deserializer: D,
    check: impl Fn(&[T], &mut T) -> Result<(), Problem>,
) -> Result<Vec<T>, D::Error> {
    list(deserializer, |before, item: Keyed<T>| {
        let mut item = item.0;
        check(before, &mut item).map(|()| item)
    })
}

/// A list of mappings as in a file.
pub(super) fn show<'a, T: Mapping + 'a>(items: impl IntoIterator<Item = &'a T>) -> Json {
    let one = |item: &T| serde_json::to_value(item.fields()).unwrap_or(Json::Null);
    items.into_iter().map(one).collect()
}

/// Reads a list; `check` turns each item into a value, beside those before it.
pub(super) fn list<'de, D: Deserializer<'de>, T: Deserialize<'de>, V>(
    deserializer: D,
    check: impl Fn(&[V], T) -> Result<V, Problem>,
) -> Result<Vec<V>, D::Error> {
    struct Items<T, V, F>(F, PhantomData<(T, V)>);
    struct Item<'a, T, V, F>(&'a [V], &'a F, PhantomData<T>);

    impl<'de, T: Deserialize<'de>, V, F: Fn(&[V], T) -> Result<V, Problem>> Visitor<'de> for Items<T, V, F> {
        type Value = Vec<V>;

        fn expecting(&self, _: &mut fmt::Formatter<'_>) -> fmt::Result {
            Ok(())
        }

        fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Vec<V>, A::Error> {
            let mut found = Vec::new();
            while let Some(item) = items.next_element_seed(Item(&found, &self.0, PhantomData))? {
                found.push(item);
            }
            Ok(found)
        }
    }

    impl<'de, T, V, F> DeserializeSeed<'de> for Item<'_, T, V, F>
    where
        T: Deserialize<'de>,
        F: Fn(&[V], T) -> Result<V, Problem>,
    {
        type Value = V;

        fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<V, D::Error> {
            let item = T::deserialize(deserializer)?;
            (self.1)(self.0, item).map_err(|(found, accepted)| problem(&found, &accepted))
        }
    }

    deserializer.deserialize_any(Items(check, PhantomData))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Config, String> {
        let mut config = Config::for_state_dir("/s", "/s/sock");
        let at = |line| Origin::File { path: "f".into(), line };
        apply(&mut config, text, &at).map(|()| config).map_err(|error| error.to_string())
    }

    fn refused(text: &str) -> String {
        read(text).expect_err(text)
    }

    #[test]
    fn origins_are_the_lines_of_keys() {
        let config =
            read("# one\nsocket: /a\nbus:\n  - /b\nlog:\n  level: debug\nstore.durability: durable\n")
                .unwrap();
        let lines =
            ["socket", "bus", "log.level", "store.durability"].map(|key| config.origin(key).to_string());
        assert_eq!(lines, ["f:2", "f:3", "f:6", "f:7"]);
        assert_eq!(
            read("socket_mode: 0660\nsocket_group: yes\n").unwrap().socket_group.as_deref(),
            Some("yes")
        );
    }

    #[test]
    fn unsupported_yaml_is_rejected_with_its_line() {
        assert_eq!(refused("bus: []\nsocket: /a\nbus: []\n"), "f:3: duplicate key \"bus\"");
        assert_eq!(refused("bus: []\n'bus': []\n"), "f:2: duplicate key \"bus\"");
        assert!(refused("socket: &x /a\nstate_dir: *x\n").starts_with("f:1: anchors"));
        assert!(refused("socket: !own /a\n").starts_with("f:1: "));
        assert!(refused("bus: []\n---\nbus: []\n").contains("a second document"));
        assert!(refused("[a]: 1\n").starts_with("f:1: "));
        assert!(refused("bus: [/a\nsocket: /b\n").contains("not YAML"));
        assert!(refused(&"[".repeat(50)).contains("nested too deeply"));
        assert_eq!(
            refused("socket:\n"),
            "f:1: socket: nothing is not accepted; give an absolute path of at most 107 bytes"
        );
        assert!(
            refused("\nsocket: [/a]\n")
                .starts_with("f:2: socket: a list or a mapping is not accepted; give an absolute")
        );
    }
}
