//! YAML to values, for `load_yaml` and `import_yaml`.

use super::convert;
use super::exc::{Res, runtime_error};
use super::val::Val;
use crate::sls::yaml;

/// `salt.utils.yaml.safe_load`
pub(super) fn load(text: &str) -> Res<Val> {
    super::budget::steps(text.len() as u64 / 8)?;
    match yaml::load(text) {
        Ok(value) => convert::val(&value),
        Err(error) => Err(runtime_error(format!("Encountered error loading yaml: {error}"))),
    }
}
