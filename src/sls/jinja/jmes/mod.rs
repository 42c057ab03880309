//! JMESPath, for `json_query`.

pub(super) mod parse;
pub(super) mod query;
