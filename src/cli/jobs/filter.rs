//! Flags of the filter language, and their form in calls: `match` and `where`.

use serde_json::{Map, Value as Json, json};

use crate::api::call::events::{FilterArgs, ListArgs};
use crate::cli::TimeRange;
use crate::wire::call::Id;

/// What a consumer can select by.
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
    /// Only functions that match this glob
    #[arg(long, value_name = "GLOB")]
    pub(super) fun: Option<String>,
    /// Only returns with this exit code; !0 for all except 0
    #[arg(long, value_name = "CODE", allow_hyphen_values = true)]
    pub(super) retcode: Option<String>,
    /// Only failed returns: their exit code is not 0
    #[arg(long, conflicts_with = "retcode")]
    pub(super) failed: bool,
    /// Only retention classes that match this glob
    #[arg(long, value_name = "GLOB")]
    pub(super) retention_class: Option<String>,
    /// Only events whose data contains TEXT (case-sensitive)
    #[arg(long, value_name = "TEXT")]
    pub(super) search: Option<String>,
    /// Only events for which this Jinja expression over tag and data is true
    #[arg(long = "where", value_name = "EXPRESSION")]
    pub(super) condition: Option<String>,
}

/// What events are selected by: the same for a list, for following and for counting.
#[derive(Debug, Clone, clap::Args)]
pub(in crate::cli) struct EventFlags {
    #[command(flatten)]
    pub(super) flags: FilterFlags,
    /// Only events of this job
    #[arg(long, value_name = "JID")]
    pub(super) jid: Option<String>,
    #[command(flatten)]
    pub(super) when: TimeRange,
    /// Only events before this sequence number
    #[arg(long, value_name = "SEQ")]
    pub(super) before: Option<u64>,
}

/// The exit code of a failed return, in the filter language.
const FAILED: &str = "!0";

impl FilterFlags {
    /// The filter in calls.
    pub(super) fn args(&self) -> FilterArgs {
        self.of_job(None)
    }

    /// The filter in calls, for the events of one job.
    fn of_job(&self, jid: Option<&str>) -> FilterArgs {
        let retcode = if self.failed {
            Some(FAILED)
        } else {
            self.retcode.as_deref()
        };

        let fields = [
            ("tag", self.tag.as_deref()),
            ("minion", self.minion.as_deref()),
            ("master", self.master.as_deref()),
            ("fun", self.fun.as_deref()),
            ("retcode", retcode),
            ("class", self.retention_class.as_deref()),
            ("jid", jid),
        ];
        let scope: Map<String, Json> = fields
            .into_iter()
            // An empty string, such as an unset variable of a script, is no filter.
            .filter_map(|(key, value)| {
                Some((key.to_owned(), json!(value.filter(|v| !v.is_empty())?)))
            })
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

impl EventFlags {
    /// The job, unless the string is empty.
    pub(super) fn jid(&self) -> Option<&str> {
        self.jid.as_deref().filter(|jid| !jid.is_empty())
    }

    /// The arguments of a list of these events.
    pub(super) fn list_args(&self) -> ListArgs {
        ListArgs {
            since: self.when.since(),
            until: self.when.until(),
            // There is an index of jobs, which the filter language does not use.
            jid: self.jid().map(|jid| Id(jid.to_owned())),
            filter: self.flags.args(),
            before: self.before,
            ..ListArgs::default()
        }
    }

    /// The filter in calls that read the log forwards.
    pub(super) fn args(&self) -> FilterArgs {
        self.flags.of_job(self.jid())
    }
}
