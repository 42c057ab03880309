//! `saltcellar tokens`: creates, lists and revokes tokens of the HTTP listener.

use std::io;
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use salt_sls::Glob;

use crate::api::call::NoArgs;
use crate::api::call::tokens::{self, RevokeArgs, Revoked, Scope, TokenRow};
use crate::cli::{Column, Global, Table, ask, show, show_rows};
use crate::model::ReadLimits;

#[derive(clap::Subcommand)]
pub(in crate::cli) enum Tokens {
    /// Create a token and print it; it is not shown again
    #[command(after_long_help = CREATE_EXAMPLES)]
    Create(Create),
    /// List the tokens with their scopes and limits
    List,
    /// Revoke a token; requests with it are rejected from now on
    Revoke(Name),
}

impl Tokens {
    /// Whether it prints a table.
    pub(in crate::cli) fn has_rows(&self) -> bool {
        match self {
            Self::List => true,
            Self::Create(_) | Self::Revoke(_) => false,
        }
    }
}

#[derive(clap::Args)]
pub(in crate::cli) struct Name {
    /// The token's name
    name: String,
}

#[derive(clap::Args)]
pub(in crate::cli) struct Create {
    /// A name for people and for the audit log
    name: String,
    /// Rights of the token: read; also fire hooks and use consumers (write); also control sinks and the reactor (admin)
    #[arg(long, value_name = "read|write|admin", value_parser = ask::words::<Scope>(), hide_possible_values = true)]
    scope: Scope,
    /// Only events and returns of minions that match this glob
    #[arg(long = "minion", value_name = "GLOB")]
    minions: Option<String>,
    /// Only events whose tag matches this glob; also limits the tags of hooks
    #[arg(long = "tag", value_name = "GLOB")]
    tags: Option<String>,
    /// Only events and jobs whose function matches this glob
    #[arg(long = "fun", value_name = "GLOB")]
    functions: Option<String>,
    /// Accept a token that another daemon has made, instead of a new one: a file with it, or `-` for standard input
    #[arg(long, value_name = "FILE")]
    from: Option<PathBuf>,
}

const CREATE_EXAMPLES: &str = "\
The last line of the output is the token. The daemon keeps only a hash of it. A limited token is rejected by requests that cannot apply its limits \
(docs/HTTP.md).

Examples:
  saltcellar tokens create prometheus --scope read
  saltcellar tokens create web-team --scope read --minion 'web*' --fun 'state.*'
  saltcellar tokens create gitlab --scope write --tag 'salt/engines/hook/gitlab/*'
  saltcellar tokens create web --scope read --from -
  curl -H \"Authorization: Bearer $(saltcellar tokens create ci --scope read | tail -1)\" http://127.0.0.1:4581/api/v1/jobs";

/// The token in the last line of a file, which `tokens create` may have printed.
fn given(file: &Path) -> anyhow::Result<String> {
    let text = if file == Path::new("-") {
        io::read_to_string(io::stdin()).context("read the token from standard input")?
    } else {
        let failed = || format!("read the token in {}", file.display());
        std::fs::read_to_string(file).with_context(failed)?
    };
    let last = text.lines().rfind(|line| !line.trim().is_empty());
    Ok(last.unwrap_or_default().trim().to_owned())
}

pub(in crate::cli) fn run(global: &Global, verb: Tokens) -> anyhow::Result<()> {
    match verb {
        Tokens::Create(Create {
            name,
            scope,
            minions,
            tags,
            functions,
            from,
        }) => {
            // Read before the call, because a missing file must not leave a new token behind.
            let token = from.as_deref().map(given).transpose()?;
            let [minions, tags, functions] =
                [minions, tags, functions].map(|glob| glob.map(Glob::from));
            let args = tokens::CreateArgs {
                name,
                scope,
                limits: ReadLimits {
                    minions,
                    tags,
                    functions,
                },
                token,
                ..tokens::CreateArgs::default()
            };

            let new = ask::answer::<tokens::Create>(global, &args, "create the token")?;

            // The token is alone on the last line, for `tail -1` in scripts.
            show(global.output, &new, |out| {
                out.line(&format!(
                    "Token {}, scope {}. It is not shown again.",
                    new.name,
                    scope.name()
                ))?;
                Ok(out.line(&new.token)?)
            })
        }
        Tokens::List => list(global),
        Tokens::Revoke(Name { name }) => ask::change::<tokens::Revoke>(
            global,
            &RevokeArgs {
                name,
                ..RevokeArgs::default()
            },
            "revoke the token",
            |Revoked { name }| format!("{name} is revoked"),
        ),
    }
}

fn list(global: &Global) -> anyhow::Result<()> {
    let list = ask::answer::<tokens::List>(global, &NoArgs {}, "list the tokens")?;
    show_rows(global.output, &list, &list.tokens, |out| {
        // A rejected token has no row below.
        if let Some(problem) = &list.problem {
            out.line(&format!("Not every token is listed: {problem}"))?;
        }

        let columns = ["NAME", "SCOPE", "CREATED", "MINION", "TAG", "FUN"].map(Column::left);

        let cells = |row: &TokenRow| {
            let TokenRow {
                name,
                scope,
                time,
                minions,
                tags,
                functions,
            } = row;
            // No limit means everything.
            let [minions, tags, functions] = [minions, tags, functions]
                .map(|glob| glob.clone().unwrap_or_else(|| "*".to_owned()));
            vec![
                name.clone(),
                scope.name().to_owned(),
                time.0.iso(),
                minions,
                tags,
                functions,
            ]
        };

        let rows: Vec<_> = list.tokens.iter().map(cells).collect();
        Ok(Table::new(columns).print(out, &rows)?)
    })
}
