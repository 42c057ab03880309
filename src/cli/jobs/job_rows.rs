//! Jobs as rows of a table, and the forms of their columns.

use serde_json::Value as Json;

use crate::api::call::jobs::answers::JobRow;
use crate::cli::{joined, leaf, line_of, plain, short_at, value};
use crate::wire::msgpack::Stored;

pub(super) fn returned(job: &JobRow) -> String {
    // Of minions whose masters are behind.
    let unknown = match job.unknown_count {
        0 => String::new(),
        count => format!(" ({count} unknown)"),
    };
    match job.expected {
        Some(expected) => format!("{}/{expected}{unknown}", job.returned),
        None => job.returned.to_string(),
    }
}

pub(in crate::cli) fn row(job: &JobRow) -> Vec<String> {
    // Several jobs were published under this id, of which the row shows one.
    let conflict = if job.conflict { " (conflict)" } else { "" };
    vec![
        plain(&job.jid).into_owned(),
        short_at(job.time),
        joined(&job.fun) + conflict,
        joined(&job.tgt),
        line_of(&job.user),
        returned(job),
        job.failed.to_string(),
        arg(job),
        plain(job.master.as_deref().unwrap_or_default()).into_owned(),
    ]
}

pub(super) fn arg(job: &JobRow) -> String {
    args(&job.arg)
}

pub(super) fn args(list: &Stored) -> String {
    match value(list) {
        // The arguments as in a shell: separated, without empty arguments.
        Json::Array(items) => items
            .iter()
            .map(argument)
            .filter(|text| !text.is_empty())
            .collect::<Vec<_>>()
            .join(" "),
        other => leaf(&other),
    }
}

/// Formats an argument as on Salt's command line. Keyword arguments are a map that also holds
/// internal keys of Salt.
fn argument(arg: &Json) -> String {
    let of_salt = |key: &String| key == "orchestration_jid" || key.starts_with("__");

    match arg.as_object() {
        Some(keywords) if keywords.keys().any(of_salt) => {
            let public = keywords.iter().filter(|(key, _)| !of_salt(key));
            public
                .map(|(key, value)| format!("{key}={}", leaf(value)))
                .collect::<Vec<_>>()
                .join(" ")
        }
        _ => leaf(arg),
    }
}
