//! The configuration of a NATS server.

use std::fmt::Write as _;

use super::address::Address;
use super::plan::{ADMIN, Plan, ROUTE, quoted, user_file};
use crate::cluster::rights::Rights;

/// Bytes of a message, and so of a block. More is discouraged by NATS.
const PAYLOAD_MAX: u64 = 8 * 1024 * 1024;

/// The configuration of a server. `password` returns the password of a user by the name of its file.
pub(super) fn config<'a>(
    plan: &Plan<'_>,
    server: &Address,
    password: &impl Fn(&str) -> &'a str,
) -> String {
    let name = server.name();
    let store = plan.args.store_dir.join(&name);
    let listen = server.listen();

    let mut text = format!(
        "# The NATS server on {host}: nats-server -c FILE\n\
         server_name: {name}\n\
         listen: {listen}\n\
         # `saltcellar doctor` asks it, on this machine.\n\
         http: {monitor}\n\
         max_payload: {PAYLOAD_MAX}\n\n\
         jetstream {{\n  \
           store_dir: {store}\n  \
           # What is acknowledged is on the disk of most servers.\n  \
           sync_interval: always\n\
         }}\n",
        host = server.host,
        name = quoted(&name),
        listen = quoted(&listen.to_string()),
        monitor = quoted(&server.monitor()),
        store = quoted(&store.display().to_string()),
    );

    // Writing to a string cannot fail.
    let _ = write!(text, "{}", tls(plan, "", false));
    // A single server is no cluster, in which JetStream would need routes to other servers.
    if plan.servers.len() > 1 {
        let _ = write!(text, "{}", routes(plan, server, password(ROUTE)));
    }
    let _ = write!(text, "{}", users(plan, password));
    text
}

fn tls(plan: &Plan<'_>, indent: &str, verify: bool) -> String {
    if plan.args.no_tls {
        return String::new();
    }

    let file = |name: &str| quoted(&plan.args.tls_dir.join(name).display().to_string());
    let verify = if verify { ", verify: true" } else { "" };
    format!(
        "\n{indent}tls {{\n\
         {indent}  cert_file: {cert}\n\
         {indent}  key_file: {key}\n\
         {indent}  ca_file: {ca}{verify}\n\
         {indent}}}\n",
        cert = file("cert.pem"),
        key = file("key.pem"),
        ca = file("ca.pem"),
    )
}

fn routes(plan: &Plan<'_>, server: &Address, password: &str) -> String {
    let others: Vec<_> = plan
        .servers
        .iter()
        .filter(|other| *other != server)
        .map(|other| {
            let route = format!("nats-route://{ROUTE}:{password}@{}", other.route());
            format!("    {}\n", quoted(&route))
        })
        .collect();

    format!(
        "\ncluster {{\n  \
           name: {name}\n  \
           listen: {listen}\n  \
           # The daemons know all servers.\n  \
           no_advertise: true\n  \
           authorization {{ user: {ROUTE}, password: {password} }}\n  \
           routes: [\n{routes}  ]\n\
         {tls}}}\n",
        name = quoted(plan.subjects.stream()),
        listen = quoted(&server.listen().route().to_string()),
        password = quoted(password),
        routes = others.concat(),
        // Servers must show each other a certificate. The daemons log in with a password instead.
        tls = tls(plan, "  ", true),
    )
}

fn users<'a>(plan: &Plan<'_>, password: &impl Fn(&str) -> &'a str) -> String {
    let list = |patterns: &[String]| {
        let lines = patterns
            .iter()
            .map(|pattern| format!("        {}\n", quoted(pattern)));
        format!("[\n{}      ]", lines.collect::<String>())
    };

    let mut text = format!(
        "\nauthorization {{\n  users: [\n    \
           # May do everything, as the owner of the stream.\n    \
           {{ user: {ADMIN}, password: {} }}\n",
        quoted(password(ADMIN))
    );
    for master in &plan.masters {
        // `doctor` compares a user with the same rights, so what is printed here passes its check.
        let rights = Rights::of(&plan.subjects, master);
        // Writing to a string cannot fail.
        let _ = write!(
            text,
            "    {{ user: {user}, password: {password}, permissions: {{\n      \
               publish: {publish}\n      \
               subscribe: {subscribe}\n    \
             }} }}\n",
            user = quoted(master.as_str()),
            password = quoted(password(&user_file(master))),
            publish = list(&rights.publish),
            subscribe = list(&rights.subscribe),
        );
    }
    text.push_str("  ]\n}\n");
    text
}
