//! YAML in templates: written as PyYAML writes it, and read by `sls/yaml`.

pub(super) mod dump;
pub(super) mod load;
pub(super) mod scalar;
