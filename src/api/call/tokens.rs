//! Calls about the tokens of the HTTP listener.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Call, Changing, In, NoArgs, Run, Whole};
use crate::api::sign_in::SignIn;
pub(crate) use crate::api::sign_in::tokens::Scope;
use crate::api::sign_in::tokens::{Token, given_token, new_token};
use crate::base::clock::Micros;
use crate::base::limits::TOKEN_TEXT_BYTES_MAX;
use crate::model::{Limit, ReadLimits, Right};
use crate::wire::call::CallError;
use crate::wire::msgpack::Time;

answers! {
    /// A new token, whose text is not kept.
    NewToken {
        name: String,
        token: String,
    }
    /// Tokens.
    TokenList {
        tokens: Vec<TokenRow>,
        /// Which tokens are rejected and not listed, and why.
        problem: Option<String>,
    }
    /// A token without its secret.
    TokenRow {
        name: String,
        scope: Scope,
        time: Time,
        minions: Option<String>,
        tags: Option<String>,
        functions: Option<String>,
    }
    /// A token that is no longer valid.
    Revoked {
        name: String,
    }
}

fn check_text(key: &str, text: &str) -> Result<(), CallError> {
    let is_plain =
        !text.is_empty() && text.len() <= TOKEN_TEXT_BYTES_MAX && !text.contains(char::is_control);
    let expected = format!(
        "argument `{key}`: expected 1 to {TOKEN_TEXT_BYTES_MAX} bytes without control characters"
    );
    if is_plain {
        Ok(())
    } else {
        Err(CallError::Argument(expected))
    }
}

/// `token_create`.
pub(crate) struct Create;

#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
pub(crate) struct CreateArgs {
    /// Its name, for people and for the audit log
    pub(crate) name: String,
    /// Its right
    pub(crate) scope: Scope,
    #[serde(flatten)]
    pub(crate) limits: ReadLimits,
    /// A token that another daemon has made, to be accepted here as well
    pub(crate) token: Option<String>,
}

impl Call for Create {
    const NAME: &'static str = "token_create";
    const DOC: &'static str = "Create a token for the HTTP listener";
    const RIGHT: Right = Right::Admin;
    type Scope = Changing<SignIn>;
    type Args<'a> = CreateArgs;
    type Answer = NewToken;
}

impl Run for Create {
    fn run(ctx: &In<'_, Self>, args: CreateArgs) -> Result<NewToken, CallError> {
        let CreateArgs {
            name,
            scope,
            limits,
            token,
        } = args;

        // The list of tokens shows the name and the globs, and the audit log contains the name.
        check_text("name", &name)?;
        for limit in Limit::ALL {
            if let Some(glob) = limits.of(limit) {
                check_text(limit.name(), glob.as_str())?;
            }
        }

        let (text, now) = (token.map_or_else(new_token, given_token)?, ctx.clock.now());
        ctx.tokens.create(&text, &name, scope, limits, now.0)?;
        // Without the token's text, which only the caller gets.
        tracing::info!(target: "audit", action = "token_create", token = name, ?scope, "token created");

        Ok(NewToken { name, token: text })
    }
}

/// `token_list`.
pub(crate) struct List;

impl Call for List {
    const NAME: &'static str = "token_list";
    const DOC: &'static str = "List tokens";
    const RIGHT: Right = Right::Admin;
    type Scope = Whole<SignIn>;
    type Args<'a> = NoArgs;
    type Answer = TokenList;
}

impl Run for List {
    fn run(ctx: &In<'_, Self>, _: NoArgs) -> Result<TokenList, CallError> {
        let (tokens, problem) = ctx.list();

        let row = |token: &Token| {
            let text = |limit| token.limits.of(limit).map(|glob| glob.as_str().to_owned());
            TokenRow {
                name: token.name.clone(),
                scope: token.scope,
                time: Time(Micros(token.created)),
                minions: text(Limit::Minions),
                tags: text(Limit::Tags),
                functions: text(Limit::Functions),
            }
        };

        Ok(TokenList {
            tokens: tokens.iter().map(row).collect(),
            problem,
        })
    }
}

/// `token_revoke`.
pub(crate) struct Revoke;

#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
pub(crate) struct RevokeArgs {
    /// The token's name
    pub(crate) name: String,
}

impl Call for Revoke {
    const NAME: &'static str = "token_revoke";
    const DOC: &'static str = "Revoke a token";
    const RIGHT: Right = Right::Admin;
    type Scope = Changing<SignIn>;
    type Args<'a> = RevokeArgs;
    type Answer = Revoked;
}

impl Run for Revoke {
    fn run(ctx: &In<'_, Self>, args: RevokeArgs) -> Result<Revoked, CallError> {
        let RevokeArgs { name } = args;
        ctx.tokens.revoke(&name)?;
        tracing::info!(target: "audit", action = "token_revoke", token = name, "token revoked");

        Ok(Revoked { name })
    }
}
