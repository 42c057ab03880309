//! Calls about minions.

use super::super::lists::glob;
use super::super::{ReadCtx, document, failed};
use crate::api::query::{MinionsFilter, minion, minions_list};
use crate::base::limits::MINIONS_ROWS_MAX;
use crate::wire::call::{Args, CallError};

pub(in crate::api::call) fn list(ctx: &ReadCtx<'_>, args: &Args<'_>) -> Result<Vec<u8>, CallError> {
    let filter = MinionsFilter {
        minion: glob(args, "minion")?,
        attention: args.flag("attention")?,
        after: args.text("after")?.map(str::to_owned),
        limit: args
            .count("limit")?
            .unwrap_or(MINIONS_ROWS_MAX)
            .clamp(1, MINIONS_ROWS_MAX),
    };
    document(&minions_list(&ctx.store, &filter).map_err(failed)?)
}

pub(in crate::api::call) fn show(ctx: &ReadCtx<'_>, args: &Args<'_>) -> Result<Vec<u8>, CallError> {
    let id = args.text("minion")?.ok_or(CallError::BadArgs {
        key: "minion",
        expected: "a minion id",
    })?;
    document(&minion(&ctx.store, id).map_err(failed)?)
}
