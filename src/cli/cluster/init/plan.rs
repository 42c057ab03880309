//! The flags of `cluster init`, checked, and the names that follow from them.

use std::collections::BTreeSet;
use std::path::PathBuf;

use super::address::Address;
use crate::base::limits::CLUSTER_SLOTS_MAX;
use crate::cluster::subject::Subjects;
use crate::config::ClusterConfig;
use crate::model::MasterName;
use crate::model::word::Word as _;

#[derive(clap::Args)]
pub(in crate::cli) struct Args {
    /// The names of the masters, which are their ids in a Salt cluster
    #[arg(long, value_name = "NAME,...", value_delimiter = ',', required = true)]
    pub(super) masters: Vec<String>,
    /// The hosts of the NATS servers, one or three [default: the first three masters]
    #[arg(long, value_name = "HOST[:PORT],...", value_delimiter = ',')]
    pub(super) server: Vec<String>,
    /// The name of the stream, as `cluster.stream`
    #[arg(long, value_name = "NAME", default_value = "saltcellar")]
    pub(super) stream: String,
    /// Write a file for each server, master and password here, instead of printing them. Passwords that are there are kept
    #[arg(long, value_name = "DIR")]
    pub(super) dir: Option<PathBuf>,
    /// The servers' directory of messages
    #[arg(long, value_name = "DIR", default_value = "/var/lib/nats")]
    pub(super) store_dir: PathBuf,
    /// The servers' directory of `cert.pem`, `key.pem` and `ca.pem`
    #[arg(long, value_name = "DIR", default_value = "/etc/nats/tls")]
    pub(super) tls_dir: PathBuf,
    /// The daemons' directory of `nats.password` and `nats-ca.pem`
    #[arg(long, value_name = "DIR", default_value = "/etc/saltcellar")]
    pub(super) config_dir: PathBuf,
    /// No TLS: passwords and entries are sent unencrypted
    #[arg(long, conflicts_with = "tls_dir")]
    pub(super) no_tls: bool,
}

/// The user who may change the stream.
pub(super) const ADMIN: &str = "nats-admin";

/// The servers themselves, when they connect to each other.
pub(super) const ROUTE: &str = "nats-route";

/// The file of a user's password, or of the password that the servers share.
pub(super) fn password_file(user: &str) -> String {
    format!("{user}.password")
}

/// What is made of the flags, checked.
pub(super) struct Plan<'a> {
    pub(super) args: &'a Args,
    pub(super) masters: Vec<MasterName>,
    pub(super) servers: Vec<Address>,
    pub(super) subjects: Subjects,
}

impl<'a> Plan<'a> {
    /// The reason if the flags do not fit together.
    pub(super) fn of(args: &'a Args) -> Result<Self, String> {
        let mut masters = Vec::new();
        for name in &args.masters {
            // A control character would break the lines of the configuration files, which name the
            // master.
            let name = MasterName::new(name)
                .filter(|name| !name.as_str().contains(char::is_control))
                .ok_or_else(|| format!("read --masters: {}", MasterName::problem(name)))?;
            if name.as_str() == ADMIN {
                return Err(format!(
                    "read --masters: {ADMIN:?} is the user of NATS's owner; give another name"
                ));
            }
            if masters.contains(&name) {
                return Err(format!(
                    "read --masters: {:?} appears twice; give each master its own name",
                    name.as_str()
                ));
            }
            masters.push(name);
        }
        // Each master needs a slot of job ids.
        if masters.len() > usize::from(CLUSTER_SLOTS_MAX) {
            return Err(format!(
                "read --masters: {} names; give at most {CLUSTER_SLOTS_MAX}",
                masters.len()
            ));
        }

        if !ClusterConfig::is_stream_name(&args.stream) {
            return Err(format!(
                "read --stream: {:?} is not accepted; give letters, digits, _ and -",
                args.stream
            ));
        }

        let hosts = match &*args.server {
            // The masters are named after their hosts, as their ids often are.
            [] => args.masters.get(..3).ok_or(
                "read --server: fewer than three masters, and NATS needs three servers, so that one may fail; \
                 give three hosts, or one",
            )?,
            given => given,
        };
        if !matches!(hosts.len(), 1 | 3 | 5) {
            return Err(format!(
                "read --server: {} hosts; give one, or three or five, of which a minority may fail",
                hosts.len()
            ));
        }
        let servers = hosts
            .iter()
            .map(|host| Address::parse(host).map_err(|why| format!("read --server: {why}")))
            .collect::<Result<Vec<_>, _>>()?;
        // Of equal ones only one would run, and NATS would wait for the others.
        let different: BTreeSet<&String> = hosts.iter().collect();
        if different.len() < hosts.len() {
            return Err(
                "read --server: a host appears twice; give each server its own host".to_owned(),
            );
        }

        Ok(Self {
            args,
            masters,
            servers,
            subjects: Subjects::of(&args.stream),
        })
    }
}

/// The name of a master's user in names of files.
pub(super) fn user_file(master: &MasterName) -> String {
    format!("master-{}", master.token())
}

/// A string in quotes, as both YAML and NATS read it.
pub(super) fn quoted(text: &str) -> String {
    // Neither control characters nor quotes are in what is quoted here, but for paths.
    format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\""))
}
