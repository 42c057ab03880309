//! The search of every view: what a string can name, and where it leads.

use salt_sls::Glob;
use serde::Serialize;

use super::super::answer::HttpError;
use super::super::attention::Part;
use super::super::v1;
use super::address::query;
use super::ask::Ask;
use super::render::encoded;
use super::response::LocalPath;
use crate::api::call::jobs::answers::JobsPage;
use crate::api::call::{events, jobs, minions};
use crate::api::query::MinionsPage;
use crate::base::limits::{PAGE_FIND_ROWS, PAGE_OVERVIEW_ROWS};

/// What was found: places, or lists of what it may be.
pub(super) enum Found {
    At(LocalPath),
    Lists(Box<FoundLists>),
}

/// Lists of what a string may be; `None` for those that the reader may not see.
#[derive(Debug, Default, Serialize)]
pub(super) struct FoundLists {
    q: String,
    /// The text as a glob, for links to whole lists.
    glob: String,
    minions: Option<Part<MinionsPage>>,
    functions: Option<Part<JobsPage>>,
    arguments: Option<Part<JobsPage>>,
    /// Whether the reader may look for events by their tags.
    events: bool,
}

/// What a string is by its form.
#[derive(Debug, PartialEq, Eq)]
enum Form<'a> {
    Nothing,
    /// A job id: its time, in 20 digits, and the process that made it if there were two.
    Job(&'a str),
    /// A tag, or the beginning of one.
    Tag(String),
    /// A glob for anything else.
    Name(String),
}

impl<'a> Form<'a> {
    fn of(text: &'a str) -> Self {
        let (time, process) = text.split_once('_').unwrap_or((text, "0"));
        let is_number =
            |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());

        if text.is_empty() {
            Self::Nothing
        } else if time.len() == 20 && is_number(time) && is_number(process) {
            Self::Job(text)
        } else if text.contains('/') {
            Self::Tag(if is_glob(text) {
                text.to_owned()
            } else {
                format!("{text}*")
            })
        } else if is_glob(text) {
            Self::Name(text.to_owned())
        } else {
            // Without a wildcard a part of a name is enough.
            Self::Name(format!("*{text}*"))
        }
    }
}

fn is_glob(text: &str) -> bool {
    text.contains(['*', '?', '['])
}

pub(super) async fn find(ask: &Ask<'_>) -> Result<Found, HttpError> {
    let text = ask.field("q").unwrap_or_default().trim();

    let glob = match Form::of(text) {
        Form::Nothing => return Ok(Found::Lists(Box::default())),
        Form::Job(jid) => return Ok(at(&format!("/jobs/{}", encoded(jid)))),
        Form::Tag(glob) if v1::may::<events::List>(ask.access) => {
            return Ok(at(&format!(
                "/events{}",
                query([("tag", &*glob)].into_iter())
            )));
        }
        // An argument may be a path.
        Form::Tag(_) => format!("*{text}*"),
        Form::Name(glob) => glob,
    };

    let of_minions = minions::ListArgs {
        minion: Some(Glob::new(&glob)),
        limit: Some(PAGE_FIND_ROWS),
        ..minions::ListArgs::default()
    };

    let listed = jobs::ListArgs {
        limit: Some(PAGE_OVERVIEW_ROWS),
        ..jobs::ListArgs::default()
    };
    let of_functions = jobs::ListArgs {
        fun: Some(Glob::new(&glob)),
        ..listed.clone()
    };
    let of_arguments = jobs::ListArgs {
        arg: Some(text.to_owned()),
        ..listed
    };

    let (minions, functions, arguments) = tokio::join!(
        ask.allowed::<minions::List>(of_minions),
        ask.allowed::<jobs::List>(of_functions),
        ask.allowed::<jobs::List>(of_arguments),
    );

    // The minion, if nothing else can be meant.
    if let Some(Part::Shown(page)) = &minions {
        // If many ids contain this string, the minion with exactly this id may be none of the
        // first.
        let is_known = async || {
            let minion = text.to_owned();
            let shown = ask.get::<minions::Show>(minions::ShowArgs { minion });
            Ok::<_, HttpError>(shown.await?.is_some())
        };
        let is_listed = page.minions.iter().any(|row| row.id == text);
        let is_exact = is_listed || page.more && is_known().await?;
        let has_jobs = [&functions, &arguments].into_iter().any(|jobs| {
            let page = jobs.as_ref().and_then(Part::shown);
            page.is_some_and(|page| !page.jobs.is_empty())
        });
        let only = page
            .minions
            .first()
            .filter(|_| page.total == 1 && !has_jobs);
        let id = if is_exact {
            Some(text)
        } else {
            only.map(|row| row.id.as_str())
        };
        if let Some(id) = id {
            return Ok(at(&format!("/minions/{}", encoded(id))));
        }
    }

    Ok(Found::Lists(Box::new(FoundLists {
        q: text.to_owned(),
        glob,
        minions,
        functions,
        arguments,
        events: v1::may::<events::List>(ask.access),
    })))
}

fn at(path: &str) -> Found {
    Found::At(LocalPath::or_root(path))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_is_a_job_a_tag_or_a_name() {
        let tag = |text: &str| Form::Tag(text.to_owned());
        let name = |text: &str| Form::Name(text.to_owned());
        for (text, expected) in [
            ("", Form::Nothing),
            ("20261121054728123456", Form::Job("20261121054728123456")),
            (
                "20261121054728123456_77",
                Form::Job("20261121054728123456_77"),
            ),
            ("20261121", name("*20261121*")),
            ("20261121054728123456_", name("*20261121054728123456_*")),
            ("salt/job", tag("salt/job*")),
            ("salt/*/new", tag("salt/*/new")),
            ("web1", name("*web1*")),
            ("web[12]", name("web[12]")),
        ] {
            assert_eq!(Form::of(text), expected, "{text}");
        }
    }
}
