//! The call that shows the configuration in effect.

use std::collections::BTreeMap;

use serde_json::Value as Json;

use super::running::RunningConfig;
use super::{Call, In, NoArgs, Run, Whole};
use crate::config::Config;
use crate::wire::call::CallError;

answers! {
    /// The configuration in effect, without `sinks` and `scripts`.
    ShownConfig {
        /// As in a file.
        config: Json,
        /// The origins of the keys, by dotted name.
        origins: BTreeMap<String, String>,
    }
}

impl ShownConfig {
    /// All of a configuration.
    pub(crate) fn of(config: &Config) -> Self {
        let (config, origins) = config.shown();
        Self { config, origins }
    }
}

/// `config_show`: the keys that `doctor` needs, as in a configuration file. Sinks and scripts, which
/// may contain secrets, are left out.
pub(crate) struct Show;

impl Call for Show {
    const NAME: &'static str = "config_show";
    const DOC: &'static str =
        "Show the configuration that the daemon runs with, without sinks and scripts";
    type Scope = Whole<RunningConfig>;
    type Args<'a> = NoArgs;
    type Answer = ShownConfig;
}

impl Run for Show {
    fn run(ctx: &In<'_, Self>, _: NoArgs) -> Result<ShownConfig, CallError> {
        let mut shown = ShownConfig::of(&ctx.config());
        // Hidden sections are listed by name: a new section is shown unless it is added here.
        if let Some(sections) = shown.config.as_object_mut() {
            sections.retain(|name, _| !matches!(name.as_str(), "sinks" | "scripts"));
        }
        Ok(shown)
    }
}
