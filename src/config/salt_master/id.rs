//! The id of a master or a minion: `get_id` and its callers in `salt/config/__init__.py`.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr};

use salt_sls::{Map, Value};

const HOSTS: &str = "/etc/hosts";
/// What names begin with that Salt does not take for an id.
const LOCAL_NAMES: [&str; 3] = ["localhost", "ip6-", "ipv6-"];

/// Whether the id is what a function of Salt's modules returns, which is not run here.
pub(super) fn is_of_function(options: &Map, root: &str) -> bool {
    let is_set = |name: &str| options.get(name).is_some_and(Value::truthy);
    is_set("id_function") && !is_set("id") && cached(options, root).is_none()
}

/// The id that Salt takes, with files below `root`. `ends` is what it appends to an id that is not
/// configured. Salt also asks DNS for a full name that the system's file of hosts does not have,
/// which can take long and is not done here.
pub(super) fn id_of(options: &Map, root: &str, ends: &str) -> String {
    let given = options.get("id").filter(|id| id.truthy());
    let (mut id, is_address, ends) = match (given, cached(options, root)) {
        (Some(id), _) => (id.python_str(), false, ""),
        (None, Some(id)) => (id, false, ends),
        (None, None) => {
            let id = guessed(options, host_name());
            let is_address = id.parse::<Ipv4Addr>().is_ok();
            (id, is_address, ends)
        }
    };

    // A domain does not make sense behind an address.
    let domain = options.get("append_domain").and_then(Value::as_str);
    if let Some(domain) = domain.filter(|_| !is_address)
        && !id.ends_with(domain)
        && !id.ends_with('.')
    {
        id = format!("{id}.{domain}");
    }
    id + ends
}

/// The name of this host that Salt takes.
fn host_name() -> String {
    let name = rustix::system::uname();
    let node = name.nodename().to_string_lossy();
    // Without the file only DNS could tell another name.
    let hosts = std::fs::read_to_string(HOSTS).unwrap_or_default();
    full_name(&node, &hosts).map_or_else(|| node.clone().into_owned(), str::to_owned)
}

/// What Python's `socket.getfqdn` makes of the name of a host by a file of hosts: the address of the
/// name, and of the names of that address the first with a domain. `None` if that is no id, or if
/// the file does not tell it for certain.
fn full_name<'a>(node: &str, hosts: &'a str) -> Option<&'a str> {
    let lines = || {
        hosts.lines().filter_map(|line| {
            let mut words = line.split('#').next()?.split_whitespace();
            let address: IpAddr = words.next()?.parse().ok()?;
            Some((address, words.collect::<Vec<&str>>()))
        })
    };
    let is_node = |name: &&str| name.eq_ignore_ascii_case(node);

    let mut found = BTreeSet::new();
    for (of_node, _) in lines().filter(|(_, names)| names.iter().any(is_node)) {
        // A resolver takes the first line of an address.
        let (_, names) = lines().find(|(address, _)| *address == of_node)?;
        let with_domain = names.iter().find(|name| name.contains('.'));
        found.extend(with_domain.or(names.first()).copied());
    }

    // With several addresses, the order in which a resolver returns them decides.
    let name = found.pop_first().filter(|_| found.is_empty())?;
    let is_local = LOCAL_NAMES.iter().any(|start| name.starts_with(start));
    (!is_local).then_some(name)
}

/// What Salt makes of the name of a host.
fn guessed(options: &Map, mut id: String) -> String {
    let is_set = |name: &str| options.get(name).is_some_and(Value::truthy);
    if is_set("minion_id_lowercase") {
        id = id.to_lowercase();
    }
    match options.get("minion_id_remove_domain") {
        Some(Value::Bool(true)) => id.truncate(id.find('.').unwrap_or(id.len())),
        Some(Value::Str(domain)) if !domain.is_empty() => {
            let end = format!(".{domain}").to_uppercase();
            if id.to_uppercase().ends_with(&end) {
                id.truncate(id.len().saturating_sub(domain.len() + 1));
            }
        }
        _ => {}
    }
    id
}

/// The id that a minion on this host has saved.
fn cached(options: &Map, root: &str) -> Option<String> {
    if options
        .get("minion_id_caching")
        .is_some_and(|caching| !caching.truthy())
    {
        return None;
    }
    let file = format!("{}/etc/salt/minion_id", root.trim_end_matches('/'));
    let text = std::fs::read_to_string(file).ok()?;
    let id = text.lines().next()?.trim();
    // Salt ignores a cached `localhost` as well.
    Some(id.to_owned()).filter(|id| !id.is_empty() && id != "localhost")
}

#[cfg(test)]
mod tests {
    use salt_sls::yaml;

    use super::*;

    fn id(yaml: &str) -> String {
        let options = yaml::load(yaml).unwrap();
        let options = options.as_map().unwrap();
        let root = options.get("root_dir").and_then(Value::as_str);
        id_of(options, root.unwrap(), "_master")
    }

    /// Each is what `salt.config.master_config` of 3008.3 returns.
    #[test]
    fn an_id_is_that_of_salt() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().display();
        let node = host_name();

        assert_eq!(id(&format!("root_dir: {root}")), format!("{node}_master"));
        let lower = id(&format!("{{root_dir: {root}, minion_id_lowercase: true}}"));
        assert_eq!(lower, format!("{}_master", node.to_lowercase()));

        let file = dir.path().join("etc/salt/minion_id");
        std::fs::create_dir_all(file.parent().unwrap()).unwrap();
        std::fs::write(&file, "Web1.example.net\n").unwrap();
        for (options, expected) in [
            ("", "Web1.example.net_master"),
            // Of the name of the host only.
            (
                ", minion_id_lowercase: true, minion_id_remove_domain: true",
                "Web1.example.net_master",
            ),
            (", append_domain: example.net", "Web1.example.net_master"),
            (", append_domain: b", "Web1.example.net.b_master"),
            (", id: m", "m"),
            (", id: 7, append_domain: b", "7.b"),
            (", id: m., append_domain: b", "m."),
        ] {
            assert_eq!(id(&format!("{{root_dir: {root}{options}}}")), expected);
        }

        std::fs::write(&file, "192.0.2.7").unwrap();
        let address = id(&format!("{{root_dir: {root}, append_domain: b}}"));
        assert_eq!(address, "192.0.2.7.b_master", "a cached one is a name");
        let uncached = id(&format!("{{root_dir: {root}, minion_id_caching: false}}"));
        assert_eq!(uncached, format!("{node}_master"));
    }

    #[test]
    fn only_a_name_of_the_host_loses_its_domain() {
        for (options, expected) in [
            ("{}", "Salt.Example.net"),
            ("minion_id_lowercase: true", "salt.example.net"),
            ("minion_id_remove_domain: true", "Salt"),
            ("minion_id_remove_domain: example.NET", "Salt"),
            ("minion_id_remove_domain: net", "Salt.Example"),
            ("minion_id_remove_domain: ample.net", "Salt.Example.net"),
        ] {
            let options = yaml::load(options).unwrap();
            let id = guessed(options.as_map().unwrap(), "Salt.Example.net".to_owned());
            assert_eq!(id, expected);
        }
    }

    /// Each is what Python's `socket.getfqdn` returns with this file, but for the last ones.
    #[test]
    fn a_full_name_is_that_of_the_file_of_hosts() {
        for (hosts, expected) in [
            (
                "127.0.0.1 localhost\n127.0.1.1\tsalt.example.net salt # this host\n",
                Some("salt.example.net"),
            ),
            ("192.0.2.7 SALT salt.example.net", Some("salt.example.net")),
            ("192.0.2.7 other salt", Some("other")),
            // The first line of the address counts.
            (
                "192.0.2.7 first.example.net\n192.0.2.7 salt.example.net salt",
                Some("first.example.net"),
            ),
            // Salt takes the name of the host instead.
            ("127.0.0.1 localhost.localdomain localhost salt", None),
            ("127.0.0.1 localhost\n127.0.0.1 salt", None),
            ("::1 ip6-localhost ip6-loopback salt", None),
            // DNS may know more.
            ("#192.0.2.7 salt.example.net salt", None),
            ("192.0.2.7 salt.example.net", None),
            ("", None),
            // The order of the addresses is the resolver's.
            ("192.0.2.7 salt.a salt\n2001:db8::7 salt.b salt", None),
            (
                "192.0.2.7 salt.a salt\n2001:db8::7 salt.a salt",
                Some("salt.a"),
            ),
        ] {
            assert_eq!(full_name("salt", hosts), expected, "{hosts:?}");
        }
    }

    #[test]
    fn an_id_that_a_function_of_salt_returns_is_not_known() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().to_str().unwrap();
        let is_of_function = |yaml: &str| {
            let options = yaml::load(yaml).unwrap();
            is_of_function(options.as_map().unwrap(), root)
        };
        assert!(is_of_function("id_function: grains.get_id"));
        assert!(!is_of_function("id_function: ''"));
        assert!(!is_of_function("{id_function: grains.get_id, id: m}"));
        let file = dir.path().join("etc/salt/minion_id");
        std::fs::create_dir_all(file.parent().unwrap()).unwrap();
        std::fs::write(&file, "web1").unwrap();
        assert!(!is_of_function("id_function: grains.get_id"));
        let uncached = "{id_function: grains.get_id, minion_id_caching: false}";
        assert!(is_of_function(uncached));
    }
}
