//! Flags of the filter language, and their form in calls: `match` and `where`.

use serde::ser::{Serialize, SerializeMap as _, Serializer};
use serde_json::json;

#[derive(Debug, Clone, Default, clap::Args)]
pub(in crate::cli) struct DataFilter {
    /// Only functions that match this glob
    #[arg(long, value_name = "GLOB")]
    pub(super) fun: Option<String>,
    /// Only returns with this exit code; !0 for all except 0
    #[arg(long, value_name = "CODE", allow_hyphen_values = true)]
    pub(super) retcode: Option<String>,
    /// Only retention classes that match this glob
    #[arg(long, value_name = "GLOB")]
    pub(super) class: Option<String>,
    /// Only events whose data contain this text; upper and lower case differ
    #[arg(long, value_name = "TEXT")]
    pub(super) search: Option<String>,
    /// Only events for which this Jinja expression over tag and data is true
    #[arg(long = "where", value_name = "EXPRESSION")]
    pub(super) condition: Option<String>,
}

#[derive(Debug, Clone, Default, clap::Args)]
pub(in crate::cli) struct FilterFlags {
    /// Only tags that match this glob; * crosses slashes, as in Salt
    #[arg(long, value_name = "GLOB")]
    pub(super) tag: Option<String>,
    /// Only minions that match this glob
    #[arg(long, value_name = "GLOB")]
    pub(super) minion: Option<String>,
    #[command(flatten)]
    pub(super) more: DataFilter,
}

fn serialize<S: Serializer>(
    scope: &[(&str, Option<&String>)],
    search: Option<&String>,
    condition: Option<&String>,
    to: S,
) -> Result<S::Ok, S::Error> {
    let scope: serde_json::Map<_, _> = scope
        .iter()
        .filter_map(|(key, value)| Some(((*key).to_owned(), json!((*value)?))))
        .collect();

    let mut map = to.serialize_map(None)?;

    // Without a scope everything matches.
    if !scope.is_empty() {
        map.serialize_entry("match", &json!([scope]))?;
    }

    if let Some(search) = search {
        map.serialize_entry("search", search)?;
    }
    if let Some(condition) = condition {
        map.serialize_entry("where", condition)?;
    }

    map.end()
}

impl Serialize for DataFilter {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let scope = [
            ("fun", self.fun.as_ref()),
            ("retcode", self.retcode.as_ref()),
            ("class", self.class.as_ref()),
        ];
        serialize(&scope, self.search.as_ref(), self.condition.as_ref(), to)
    }
}

impl Serialize for FilterFlags {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let DataFilter {
            fun,
            retcode,
            class,
            search,
            condition,
        } = &self.more;

        let scope = [
            ("tag", self.tag.as_ref()),
            ("minion", self.minion.as_ref()),
            ("fun", fun.as_ref()),
            ("retcode", retcode.as_ref()),
            ("class", class.as_ref()),
        ];

        serialize(&scope, search.as_ref(), condition.as_ref(), to)
    }
}
