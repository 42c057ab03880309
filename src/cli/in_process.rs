//! Runs a verb of a test against a daemon in process, and keeps what it prints.

use std::ffi::OsString;
use std::os::unix::process::ExitStatusExt as _;
use std::process::{ExitStatus, Output};

use serde_json::Value as Json;

use super::Exit;
use super::format::streams::capture::{begin, end};
use super::format::when;
use crate::daemon::in_process::Cellar;

/// Runs a verb against a daemon.
pub(crate) fn cli(cellar: &Cellar, args: &[&str]) -> Output {
    run(cellar, None, args)
}

/// What a command that must succeed prints on a terminal with this many columns and colours.
pub(crate) fn screen(cellar: &Cellar, columns: usize, args: &[&str]) -> String {
    let output = run(
        cellar,
        Some(columns),
        &[&["--color", "always"], args].concat(),
    );
    let printed = stderr(&output);
    assert_eq!(output.status.code(), Some(0), "{args:?}: {printed}");
    stdout(&output)
}

fn run(cellar: &Cellar, columns: Option<usize>, args: &[&str]) -> Output {
    // Once for the process: without it, times depend on the machine.
    when::use_utc();

    begin(cellar.connector(), columns);
    let args = ["saltcellar"].iter().chain(args);
    let exit: Exit = super::outcome(args.map(OsString::from), super::dispatch);

    let (stdout, stderr) = end();
    Output {
        // As `wait` reports it.
        status: ExitStatus::from_raw(i32::from(exit as u8) << 8),
        stdout,
        stderr,
    }
}

/// The output of a verb that must succeed.
pub(crate) fn text(cellar: &Cellar, args: &[&str]) -> String {
    let output = cli(cellar, args);
    let printed = stderr(&output);
    assert_eq!(output.status.code(), Some(0), "{args:?}: {printed}");
    stdout(&output)
}

/// As [`text`], in JSON.
pub(crate) fn document(cellar: &Cellar, args: &[&str]) -> Json {
    let args = [args, &["--output", "json"]].concat();
    serde_json::from_str(&text(cellar, &args)).unwrap()
}

/// Standard output as text.
pub(crate) fn stdout(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

/// Standard error as text.
pub(crate) fn stderr(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

/// A configuration with everything that HTTP has.
pub(crate) const LISTENER: &str = "http: {listen: '127.0.0.1:0'}\n";

/// The header line of a new token.
pub(crate) fn token(cellar: &Cellar, args: &[&str]) -> String {
    let printed = text(cellar, &[&["tokens", "create"], args].concat());
    format!(
        "authorization: Bearer {}\n",
        printed.lines().last().unwrap()
    )
}
