//! The id of a master or a minion: `get_id` and its callers in `salt/config/__init__.py`.

use std::net::Ipv4Addr;

use salt_sls::{Map, Value};

/// The id that Salt takes, with files below `root`. `ends` is what it appends to an id that is not
/// configured. Salt also asks DNS for a full name, and runs `id_function`: neither is done here.
pub(super) fn id_of(options: &Map, root: &str, ends: &str) -> String {
    let given = options.get("id").filter(|id| id.truthy());
    let (mut id, is_address, ends) = match (given, cached(options, root)) {
        (Some(id), _) => (id.python_str(), false, ""),
        (None, Some(id)) => (id, false, ends),
        (None, None) => {
            let id = guessed(options);
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

fn guessed(options: &Map) -> String {
    let name = rustix::system::uname();
    let mut id = name.nodename().to_string_lossy().into_owned();
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
        let node = rustix::system::uname();
        let node = node.nodename().to_str().unwrap();

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
}
