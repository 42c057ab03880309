//! `saltcellar cluster init`: prints, or writes, the configuration of NATS servers and of the daemons that use them.
//!
//! # Invariant
//!
//! A password is in the file of its user and in the servers' configuration only, and both are readable by their owner only. Once written it is kept,
//! even when a master is added.

mod address;
mod daemon;
mod plan;
mod server;

use std::collections::BTreeMap;
use std::fs;
use std::io::Write as _;
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::Path;

use anyhow::{Context as _, bail};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use ring::rand::{SecureRandom as _, SystemRandom};
use serde_json::json;

pub(in crate::cli) use self::plan::Args;
use self::plan::{ADMIN, Plan, ROUTE, password_file, user_file};
use crate::cli::format::exit::BadUsage;
use crate::cli::{Global, show};

pub(in crate::cli) const EXAMPLES: &str = "\
Each master gets a NATS user that may publish that master's entries and heartbeats, read the stream, and nothing else: no user but \
nats-admin may change, purge or delete the stream. A server acknowledges a message only after syncing it. docs/CLUSTER.md describes the steps.

Examples:
  saltcellar cluster init --masters m1,m2,m3 --dir cluster
                                             the three masters have a NATS server each
  saltcellar cluster init --masters m1,m2 --server n1,n2,n3 --dir cluster
                                             two masters, and NATS on three hosts
  saltcellar cluster init --masters m1,m2,m3,m4 --dir cluster
                                             add a master: the other passwords stay";

/// Strings by the names of their files.
type Files = BTreeMap<String, String>;

pub(super) fn run(global: &Global, args: &Args) -> anyhow::Result<()> {
    let plan = Plan::of(args).map_err(BadUsage)?;
    let texts = files(&plan, |user| password(args.dir.as_deref(), user))?;

    // Without a directory the passwords are new each time, because no file keeps them.
    let Some(dir) = &args.dir else {
        let document = json!({ "files": texts });
        return show(global.output, &document, |out| {
            for (name, text) in &texts {
                out.line(&format!("# ---------- {name}"))?;
                out.text(text)?;
                out.line("")?;
            }
            Ok(())
        });
    };

    write(dir, &texts).with_context(|| format!("write to {}", dir.display()))?;
    // Only the names are printed, because the files contain passwords.
    let names: Vec<_> = texts.keys().collect();
    let document = json!({ "dir": dir.to_string_lossy(), "files": names });
    show(global.output, &document, |out| {
        for name in &names {
            out.line(&dir.join(name).to_string_lossy())?;
        }
        Ok(())
    })
}

/// All files. `secret` is the password of a user.
fn files(
    plan: &Plan<'_>,
    mut secret: impl FnMut(&str) -> anyhow::Result<String>,
) -> anyhow::Result<Files> {
    let mut files = Files::new();
    let mut passwords = BTreeMap::new();

    let own = [ADMIN, ROUTE].map(str::to_owned);
    let of_masters = plan.masters.iter().map(user_file);
    for user in own.into_iter().chain(of_masters) {
        let password = secret(&user)?;
        files.insert(password_file(&user), format!("{password}\n"));
        passwords.insert(user, password);
    }
    let password = |user: &str| passwords.get(user).map_or("", String::as_str);

    for server in &plan.servers {
        let name = format!("nats-server-{}.conf", server.name());
        files.insert(name, server::config(plan, server, &password));
    }
    // A master's slot is its place among the names. A name that is added at the end leaves the
    // other slots as they are.
    for (n, master) in plan.masters.iter().enumerate() {
        let name = format!("saltcellar-{}.yaml", master.token());
        files.insert(name, daemon::section(plan, n + 1, master));
    }

    Ok(files)
}

/// The password in the directory, or a new one.
fn password(dir: Option<&Path>, user: &str) -> anyhow::Result<String> {
    if let Some(dir) = dir {
        let path = dir.join(password_file(user));
        match fs::read_to_string(&path) {
            Ok(text) => {
                let text = text.trim();
                // It goes into a configuration in quotes. A password that was made here has no
                // other characters.
                let fits = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_');
                if text.is_empty() || !text.chars().all(fits) {
                    bail!(
                        "read {}: a password has letters, digits, _ and - only; remove the file",
                        path.display()
                    );
                }
                return Ok(text.to_owned());
            }
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            Err(error) => return Err(error).with_context(|| format!("read {}", path.display())),
        }
    }

    let mut random = [0; 24];
    SystemRandom::new()
        .fill(&mut random)
        .ok()
        .context("make a random password")?;
    Ok(URL_SAFE_NO_PAD.encode(random))
}

fn write(dir: &Path, files: &Files) -> anyhow::Result<()> {
    fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(dir)?;

    for (name, text) in files {
        let path = dir.join(name);
        // Always a new file, because an existing one may be a link, or open to other users.
        let new = dir.join(format!(".{name}.new"));
        let _ = fs::remove_file(&new);
        let mut file = fs::OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(&new)
            .with_context(|| name.clone())?;
        // Synced before the rename, or a power loss could leave an empty file under the name.
        file.write_all(text.as_bytes())
            .and_then(|()| file.sync_all())
            .and_then(|()| fs::rename(&new, &path))
            .with_context(|| name.clone())?;
    }
    Ok(())
}

#[cfg(test)]
mod tests;
