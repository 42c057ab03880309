//! Signatures of functions in Salt's Python.

use salt_sls::Value;
use salt_sls::json_form::decode;
use serde_json::Value as Json;

/// The signature of a runner or wheel function, for reactions in the old form.
#[derive(Debug, Clone, PartialEq)]
pub struct Signature {
    /// The Python function's name, for errors.
    pub name: String,
    /// Arguments without a default, in order.
    pub required: Vec<String>,
    /// Arguments with their defaults.
    pub optional: Vec<(String, Value)>,
    /// True if the function accepts other keyword arguments (`**kwargs`).
    pub any_keyword: bool,
}

impl Signature {
    /// Parses `{"name": .., "required": [..], "optional": [[name, default], ..], "any_keyword":
    /// ..}`; `None` if malformed.
    pub fn from_json(json: &Json) -> Option<Self> {
        let text = |json: &Json| json.as_str().map(str::to_owned);
        let optional = |pair: &Json| Some((text(pair.get(0)?)?, decode(pair.get(1)?)));

        Some(Self {
            name: text(json.get("name")?)?,
            required: json
                .get("required")?
                .as_array()?
                .iter()
                .map(text)
                .collect::<Option<_>>()?,
            optional: json
                .get("optional")?
                .as_array()?
                .iter()
                .map(optional)
                .collect::<Option<_>>()?,
            any_keyword: json.get("any_keyword")?.as_bool()?,
        })
    }
}
