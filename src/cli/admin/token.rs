//! `saltcellar token`: creates, lists and revokes tokens of the HTTP listener.

use serde_json::{Value as Json, json};

use crate::cli::{Column, Fields as _, Global, Table, ask, show, show_rows};

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

/// A token.
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
    #[arg(long, value_name = "read|write|admin", value_parser = ["read", "write", "admin"], hide_possible_values = true)]
    scope: String,
    /// Only events and returns of minions with such ids
    #[arg(long, value_name = "GLOB")]
    minions: Option<String>,
    /// Only events with such tags; also limits the tags of hooks
    #[arg(long, value_name = "GLOB")]
    tags: Option<String>,
    /// Only events and jobs of such functions
    #[arg(long, value_name = "GLOB")]
    functions: Option<String>,
}

const CREATE_EXAMPLES: &str = "\
The last line of the output is the token. The daemon keeps only a hash of it. A limited token is rejected by requests that cannot apply its limits \
(docs/HTTP.md).

Examples:
  saltcellar token create prometheus --scope read
  saltcellar token create web-team --scope read --minions 'web*' --functions 'state.*'
  saltcellar token create gitlab --scope write --tags 'salt/engines/hook/gitlab/*'
  curl -H \"Authorization: Bearer $(saltcellar token create ci --scope read | tail -1)\" http://127.0.0.1:4581/api/v1/jobs";

pub(in crate::cli) fn run(global: &Global, verb: Tokens) -> anyhow::Result<()> {
    match verb {
        Tokens::Create(Create { name, scope, minions, tags, functions }) => {
            let args = json!({ "name": name, "scope": scope, "minions": minions, "tags": tags, "functions": functions });
            let answer = ask::answer(global, "token_create", args, "create the token")?;
            show(global.output, &answer, |out| {
                out.line(&format!("Token {name}, scope {scope}. It is not shown again."))?;
                Ok(out.line(answer.text("token"))?)
            })
        }
        Tokens::List => list(global),
        Tokens::Revoke(Name { name }) => {
            let answer = ask::answer(global, "token_revoke", json!({ "name": name }), "revoke the token")?;
            show(global.output, &answer, |out| Ok(out.line(&format!("{name} is revoked"))?))
        }
    }
}

fn list(global: &Global) -> anyhow::Result<()> {
    let answer = ask::answer(global, "token_list", (), "list the tokens")?;
    show_rows(global.output, &answer, "tokens", |out| {
        if let Some(problem) = answer.of("problem").as_str() {
            out.line(&format!("The file of tokens is unusable, every token is rejected: {problem}"))?;
        }
        let columns = ["NAME", "SCOPE", "CREATED", "MINIONS", "TAGS", "FUNCTIONS"].map(Column::left);
        let cells = |row: &Json| {
            ["name", "scope", "time", "minions", "tags", "functions"]
                .map(|key| if row.of(key).is_null() { "*".to_owned() } else { row.leaf(key) })
                .to_vec()
        };
        let rows: Vec<_> = answer.list("tokens").iter().map(cells).collect();
        Ok(Table::new(columns).print(out, &rows)?)
    })
}
