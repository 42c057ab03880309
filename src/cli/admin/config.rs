//! `saltcellar config check` and `config show`: validate the configuration and print its effective
//! values.

use anyhow::Context;
use serde_json::json;

use crate::api::call::config::ShownConfig;
use crate::cli::{Global, ask::confirm, show};
use crate::config::{Config, Environment};
use crate::engines::script;
use crate::engines::settings::of_config;

#[derive(clap::Subcommand)]
pub(in crate::cli) enum ConfigVerb {
    /// Validate the configuration
    #[command(after_long_help = CHECK)]
    Check,
    /// Print the effective configuration
    #[command(after_long_help = SHOW)]
    Show,
}

const CHECK: &str = "\
Reads flags, environment and file as `saltcellar serve` does, and starts nothing. Errors name the file, the line and \
the accepted values.

Examples:
  saltcellar config check
  saltcellar config check --config ./saltcellar.yaml
  saltcellar config check && systemctl restart saltcellar

Exit codes: 0 the configuration is valid, 64 it is not.";

const SHOW: &str = "\
Validates the configuration as `config check` does. The output is a valid configuration file; a comment on each value \
names its origin.

Examples:
  saltcellar config show
  saltcellar config show --config ./saltcellar.yaml
  saltcellar config show --output json";

pub(in crate::cli) fn run(global: &Global, verb: &ConfigVerb) -> anyhow::Result<()> {
    let config = Config::load(&global.overrides(), &Environment::of_process())
        .context("read the configuration")?;

    // Sinks and scripts are checked separately, which otherwise only `serve` would do.
    of_config(&config).context("read the configuration")?;
    script::of_config(&config).context("read the configuration")?;

    match verb {
        ConfigVerb::Check => {
            // An invalid configuration ended above, with its error.
            confirm(global, &json!({ "valid": true }), "configuration is valid")
        }
        ConfigVerb::Show => show(global.output, &ShownConfig::of(&config), |out| {
            Ok(out.text(&config.to_yaml())?)
        }),
    }
}
