//! `saltcellar jobs causes`, and the lines of causes in other verbs.

use anyhow::Context as _;
use salt_sls::Glob;

use super::job_id::{self, unknown};
use super::missing_lines::missing_lines;
use crate::api::call as calls;
use crate::api::call::causes::{CauseRow, CausesPage, ListArgs};
use crate::api::call::jobs::answers::JobAnswer;
use crate::api::client::{Client, ClientError};
use crate::cli::{
    Column, Global, Line, Table, TimeRange, Tone, ask, short_at, short_at_in_zone, show_rows,
};
use crate::wire::call::Id;

const EXAMPLES: &str = "\
Failures with the same state, function and message are one cause; names, paths and numbers in messages are masked. \
Without a JID, the failures of the last day are grouped. KEY names a cause, for `jobs show --cause`.

Examples:
  saltcellar jobs causes 20261121054728123456
  saltcellar jobs causes --since 7d --minion 'web*'
  saltcellar jobs causes 20261121054728123456 --output jsonl | jq -r '.ids[]'";

#[derive(clap::Args)]
#[command(after_long_help = EXAMPLES)]
pub(in crate::cli) struct Args {
    /// Only failures of this job
    jid: Option<String>,
    #[command(flatten)]
    when: TimeRange,
    /// Only minions that match this glob
    #[arg(long, value_name = "GLOB")]
    minion: Option<String>,
    /// Maximum number of causes
    #[arg(short = 'n', long, value_name = "COUNT", value_parser = clap::value_parser!(u64).range(1..))]
    limit: Option<u64>,
}

const OPERATION: &str = "group the failures";

pub(super) fn run(global: &Global, args: &Args) -> anyhow::Result<()> {
    let mut client = ask::connect(global)?;
    let jid = args.jid.as_deref();
    let jid = jid.map(|jid| job_id::whole(&mut client, jid)).transpose()?;

    let call = ListArgs {
        jid: jid.clone().map(Id),
        since: args.when.since(),
        until: args.when.until(),
        minion: args.minion.clone().map(Glob::from),
        limit: args.limit.map(ask::rows),
    };
    let page = client
        .make::<calls::causes::List>(&call)
        .context(OPERATION)?;

    // Without a job there always is a page.
    let Some(page) = page else {
        return Err(unknown(&jid.unwrap_or_default()).context(OPERATION));
    };

    show_rows(global.output, &page, &page.causes, |out| {
        let columns = columns(true);
        let rows: Vec<_> = page
            .causes
            .iter()
            // Programs that read CSV get the whole key.
            .map(|row| cells(row, true, out.is_csv()))
            .collect();
        Table::new(columns).print(out, &rows)?;

        out.line("")?;
        summary(&page)
            .iter()
            .try_for_each(|line| out.styled(line))?;
        missing_lines(&page.missing, &[], out.width)
            .iter()
            .try_for_each(|line| out.styled(line))?;
        Ok(())
    })
}

/// The key of a cause of a job that begins with this string, as tables show it.
pub(super) fn cause_key(client: &mut Client, jid: &str, beginning: &str) -> anyhow::Result<String> {
    let call = ListArgs {
        jid: Some(Id(jid.to_owned())),
        ..ListArgs::default()
    };
    let page = client
        .make::<calls::causes::List>(&call)
        .context(OPERATION)?
        .ok_or_else(|| unknown(jid).context(OPERATION))?;

    let keys = page.causes.into_iter().map(|row| row.key);
    let mut found: Vec<String> = keys.filter(|key| key.starts_with(beginning)).collect();
    match (found.pop(), found.is_empty()) {
        (Some(only), true) => Ok(only),
        (found, _) => {
            let shown: String = beginning.chars().take(64).collect();
            let why = match found {
                Some(_) => "several causes have keys that begin with this",
                None => "no cause has this key",
            };
            anyhow::bail!(
                "find the cause {shown:?} of job {jid}: {why}; `saltcellar jobs causes {jid}` lists them"
            )
        }
    }
}

/// The columns of a table of causes; `whole` for the table of a verb of its own.
fn columns(whole: bool) -> Vec<Column> {
    let mut columns = vec![
        Column::right("MINIONS").toned(Tone::of_failures),
        Column::middle_truncated("STATE").min_chars(12),
        Column::truncated("FUNCTION").min_chars(12),
        Column::truncated("MESSAGE").min_chars(16),
        Column::left("KEY"),
    ];
    if whole {
        columns.insert(1, Column::right("FAILURES").drop_order(2));
        columns.push(Column::time("LAST").drop_order(1));
    }
    columns
}

/// Characters of a key that are shown to people: `--cause` takes the beginning of one.
const KEY: usize = 8;

fn cells(row: &CauseRow, whole: bool, is_csv: bool) -> Vec<String> {
    let cause = &row.cause;
    // Without a failed state the run itself failed.
    let code = cause
        .exit_code
        .map_or_else(String::new, |code| format!(", exit code {code}"));

    let mut cells = vec![
        row.minions.to_string(),
        cause.state.clone().unwrap_or_default(),
        cause.fun.clone() + &code,
        cause.message.clone(),
        if is_csv {
            row.key.clone()
        } else {
            row.key.chars().take(KEY).collect()
        },
    ];
    if whole {
        cells.insert(1, row.count.to_string());
        cells.push(short_at(row.last));
    }
    cells
}

fn summary(page: &CausesPage) -> Vec<Line> {
    let tone = Tone::of_failures(&page.failed_minions.to_string());
    let since = page.since.map_or_else(String::new, |since| {
        format!(" since {}", short_at_in_zone(since))
    });
    let first = Line::new(tone, format!("{} minions failed", page.failed_minions)).and(
        Tone::Plain,
        format!(
            ", {} returns, {} causes{since}",
            page.failed_returns, page.total
        ),
    );

    let more = page.total.saturating_sub(page.causes.len() as u64);
    let more = (more > 0).then(|| Line::from(format!("and {more} more causes")));
    std::iter::once(first).chain(more).collect()
}

/// The causes of a job and its missing minions; `None` if there are neither, or the job is not
/// stored any more.
pub(in crate::cli) fn causes_of(
    client: &mut Client,
    job: &JobAnswer,
    minion: Option<Glob>,
) -> Result<Option<CausesPage>, ClientError> {
    if job.row.failed == 0 && job.missing.is_empty() {
        return Ok(None);
    }
    let call = ListArgs {
        jid: Some(Id(job.row.jid.clone())),
        minion,
        ..ListArgs::default()
    };
    client.make::<calls::causes::List>(&call)
}

/// Causes of a job below its facts; nothing without a failure.
pub(in crate::cli) fn cause_lines(page: &CausesPage, width: Option<usize>) -> Vec<Line> {
    if page.causes.is_empty() {
        return Vec::new();
    }

    let rows: Vec<_> = page
        .causes
        .iter()
        .map(|row| cells(row, false, false))
        .collect();
    let mut lines = vec![Line::default()];
    lines.extend(Table::new(columns(false)).lines(&rows, width));

    // The daemon lists a limited number of causes.
    let more = page.total.saturating_sub(page.causes.len() as u64);
    if more > 0 {
        lines.push(format!("and {more} more causes").into());
    }
    lines
}
