//! YAML to values, for `load_yaml` and `import_yaml`.

use crate::sls::jinja::budget;
use crate::sls::jinja::exc::{Res, runtime_error};
use crate::sls::jinja::values::convert;
use crate::sls::jinja::values::val::Val;
use crate::sls::yaml;

/// `salt.utils.yaml.safe_load`
pub(crate) fn load(text: &str) -> Res<Val> {
    budget::steps(text.len() as u64 / 8)?;
    match yaml::load(text) {
        Ok(value) => convert::val(&value),
        Err(error) => Err(runtime_error(format!("Encountered error loading yaml: {error}"))),
    }
}
