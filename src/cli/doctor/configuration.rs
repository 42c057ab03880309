//! The configuration of the daemon, as it runs or else as its file says.

use serde_json::Value as Json;

use super::check::{Check, Run};
use super::finding::Findings;
use crate::api::call::{self as calls, NoArgs};
use crate::api::client::Client;
use crate::config::{Config, ConfigError, Invalid, read_options};

pub(super) const CHECKS: &[Check] = &[Check {
    name: "configuration",
    not_ok_when: "the configuration file contains an error: the daemon keeps its previous configuration, and its next start fails. The other checks use the configuration of the running daemon, which is asked for it, or else the file",
    run: Run::ByAnother,
}];

/// The configuration with which the daemon runs. Its file may differ from this program's, or be
/// unreadable for this user.
pub(super) fn running(client: &mut Client) -> Result<Config, String> {
    let running = client
        .make::<calls::config::Show>(&NoArgs {})
        .map_err(|error| error.to_string())?;
    let mut config = running.config;
    remove_unset(&mut config);
    read_options(&config).map_err(|Invalid { path, problem }| format!("{path}: {problem}"))
}

/// Removes keys without a value, which no configuration file can express.
fn remove_unset(value: &mut Json) {
    if let Json::Object(map) = value {
        map.retain(|_, value| !value.is_null());
        map.values_mut().for_each(remove_unset);
    }
}

/// The configuration for the other checks: the running daemon's, or else the file's.
pub(super) fn check(
    found: &mut Findings,
    file: Result<Config, ConfigError>,
    running: Option<Result<Config, String>>,
) -> anyhow::Result<Config> {
    let mut found = found.of("configuration");

    if let Err(error) = &file {
        found.problem_because(
            error.to_string(),
            "a running daemon keeps its previous configuration, and its next start fails",
            "correct that line; `saltcellar config check` shows whether the file is accepted",
        );
    }

    match (running, file) {
        // What the daemon runs with counts more than what it would read next.
        (Some(Ok(running)), file) => {
            if file.is_ok() {
                found.ok("accepted; the checks below use what the running daemon uses");
            }
            Ok(running)
        }
        (Some(Err(why)), Ok(file)) => {
            found.warn(format!(
                "the running daemon's configuration is unknown, the checks below use the configuration of this program: {why}"
            ));
            Ok(file)
        }
        (None, Ok(file)) => {
            found.ok("accepted");
            Ok(file)
        }

        // Nothing is known about the daemon's paths.
        (_, Err(error)) => Err(anyhow::Error::new(error).context("read the configuration")),
    }
}
