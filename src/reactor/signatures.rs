//! The arguments of runner and wheel functions, which the old way of writing a reaction is mapped onto.
//!
//! The table inside the program is Salt 3008.3's (`signatures.json`, made by `tests/lab/salt_signatures.py`); a master's own, with
//! its custom modules, can take its place ([`Signatures::parse`]).

use std::collections::HashMap;
use std::sync::LazyLock;

use super::encode;
use crate::sls::Value;

/// What one function takes.
#[derive(Debug, Clone, PartialEq)]
pub struct Signature {
    /// The Python function's name, for errors.
    pub name: String,
    /// Arguments without a default, in order.
    pub required: Vec<String>,
    /// Arguments with their defaults.
    pub optional: Vec<(String, Value)>,
    /// Whether any other keyword is taken (`**kwargs`).
    pub any_keyword: bool,
}

/// What the functions of a master take.
#[derive(Debug, Default)]
pub struct Signatures {
    runner: HashMap<String, Signature>,
    wheel: HashMap<String, Signature>,
}

/// A table that cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("signatures: {0}")]
pub struct BadSignatures(String);

static BUILT_IN: LazyLock<Signatures> =
    LazyLock::new(|| Signatures::parse(include_str!("signatures.json")).unwrap_or_default());

impl Signatures {
    /// Those of Salt 3008.3.
    pub fn built_in() -> &'static Signatures {
        &BUILT_IN
    }

    /// Reads a table: `{"runner": {"state.orchestrate": {"name", "required", "optional", "any_keyword"}}, "wheel": {..}}`.
    pub fn parse(text: &str) -> Result<Self, BadSignatures> {
        let file: serde_json::Value =
            serde_json::from_str(text).map_err(|error| BadSignatures(error.to_string()))?;
        let part = |name: &str| -> Result<HashMap<String, Signature>, BadSignatures> {
            let functions = file.get(name).and_then(serde_json::Value::as_object);
            let functions = functions.ok_or_else(|| BadSignatures(format!("no mapping `{name}`")))?;
            functions
                .iter()
                .map(|(function, spec)| match signature(spec) {
                    Some(signature) => Ok((function.clone(), signature)),
                    None => Err(BadSignatures(format!("{name} {function} is no signature"))),
                })
                .collect()
        };
        Ok(Self { runner: part("runner")?, wheel: part("wheel")? })
    }

    /// Salt's own, with a master's runners in place of the built-in ones.
    pub fn with_runners(runner: HashMap<String, Signature>) -> Self {
        Self { runner, wheel: BUILT_IN.wheel.clone() }
    }

    /// A runner's.
    pub fn runner(&self, function: &str) -> Option<&Signature> {
        self.runner.get(function)
    }

    /// A wheel function's.
    pub fn wheel(&self, function: &str) -> Option<&Signature> {
        self.wheel.get(function)
    }

    /// How many functions are known.
    pub fn len(&self) -> usize {
        self.runner.len() + self.wheel.len()
    }

    /// Whether none is known.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

fn signature(spec: &serde_json::Value) -> Option<Signature> {
    let texts = |name: &str| -> Option<Vec<String>> {
        spec.get(name)?.as_array()?.iter().map(|text| Some(text.as_str()?.to_owned())).collect()
    };
    let optional = spec.get("optional")?.as_array()?;
    let optional: Option<Vec<(String, Value)>> = optional
        .iter()
        .map(|pair| {
            let pair = pair.as_array()?;
            Some((pair.first()?.as_str()?.to_owned(), encode::decode(pair.get(1)?)))
        })
        .collect();
    Some(Signature {
        name: spec.get("name")?.as_str()?.to_owned(),
        required: texts("required")?,
        optional: optional?,
        any_keyword: spec.get("any_keyword")?.as_bool()?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_built_in_table_is_whole() {
        let table = Signatures::built_in();
        assert!(table.len() > 150, "{}", table.len());
        let orchestrate = table.runner("state.orchestrate").map(|s| s.required.clone());
        assert_eq!(orchestrate, Some(vec!["mods".to_owned()]));
        assert!(table.wheel("key.accept").is_some_and(|accept| accept.required == ["match"]));
        assert!(table.runner("no.such").is_none());
    }
}
