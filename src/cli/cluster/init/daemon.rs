//! The section `cluster` of a daemon.

use std::fmt::Write as _;

use super::plan::{Plan, password_file, quoted, user_file};
use crate::model::MasterName;

/// The settings of the daemon of the master with this number, from 1 on.
pub(super) fn section(plan: &Plan<'_>, number: usize, master: &MasterName) -> String {
    let config = &plan.args.config_dir;
    let name = master.as_str();
    let scheme = if plan.args.no_tls { "nats" } else { "tls" };
    // Each daemon knows all servers, because no server announces the others (`no_advertise`).
    let servers: Vec<_> = plan
        .servers
        .iter()
        .map(|server| quoted(&format!("{scheme}://{server}")))
        .collect();

    let mut text = format!(
        "# The daemon of the master {name}: {config}/conf.d/cluster.yaml. {password_file} is {config}/nats.password there, which only\n\
         # the daemon's user may read.\n\
         cluster:\n  \
           slot: {number}/{all}\n  \
           name: {quoted_name}\n  \
           stream: {stream}\n  \
           replicas: {replicas}\n  \
           nats:\n    \
             servers: [{servers}]\n    \
             user: {quoted_name}\n    \
             password: {password}\n",
        config = config.display(),
        password_file = password_file(&user_file(master)),
        all = slots(plan.masters.len()),
        quoted_name = quoted(name),
        stream = quoted(plan.subjects.stream()),
        replicas = plan.servers.len().min(3),
        servers = servers.join(", "),
        password = quoted(&format!("file:{}", config.join("nats.password").display())),
    );

    // Writing to a string cannot fail.
    if !plan.args.no_tls {
        let ca = config.join("nats-ca.pem").display().to_string();
        let _ = writeln!(text, "    tls: {{ca: {}}}", quoted(&ca));
    }
    // The monitoring port is open to the server's own host only.
    if let Some(server) = plan.servers.iter().find(|server| server.is_host(name)) {
        let _ = writeln!(
            text,
            "  monitor: [{}]",
            quoted(&format!("http://{}", server.monitor()))
        );
    }
    text
}

/// Slots for some masters more, which can then be added without a change on the others.
fn slots(masters: usize) -> usize {
    masters.max(8).next_power_of_two()
}
