//! Flags of the filter language, and their form in calls: `match` and `where`.

use serde_json::{Map, Value as Json, json};

use crate::api::call::events::FilterArgs;

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
    /// Only masters of a cluster that match this glob; . for the daemon's own
    #[arg(long, value_name = "GLOB")]
    pub(super) master: Option<String>,
    #[command(flatten)]
    pub(super) more: DataFilter,
}

impl DataFilter {
    /// The filter in calls.
    pub(super) fn args(&self) -> FilterArgs {
        self.with([])
    }

    /// The filter with more keys of its scope.
    fn with<const N: usize>(&self, more: [(&str, &Option<String>); N]) -> FilterArgs {
        let own = [
            ("fun", &self.fun),
            ("retcode", &self.retcode),
            ("class", &self.class),
        ];
        let scope: Map<String, Json> = more
            .into_iter()
            .chain(own)
            .filter_map(|(key, value)| Some((key.to_owned(), json!(value.as_ref()?))))
            .collect();

        FilterArgs {
            // Without a scope everything matches.
            scopes: if scope.is_empty() {
                Json::Null
            } else {
                json!([scope])
            },
            search: json!(self.search),
            condition: json!(self.condition),
            ..FilterArgs::default()
        }
    }
}

impl FilterFlags {
    /// The filter in calls.
    pub(super) fn args(&self) -> FilterArgs {
        self.more.with([
            ("tag", &self.tag),
            ("minion", &self.minion),
            ("master", &self.master),
        ])
    }
}
