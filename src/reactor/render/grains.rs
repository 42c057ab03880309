//! The grains of this machine that are cheap to read, for templates without access to Salt.

use std::fs;

use crate::sls::{Map, Value};

/// The native grains.
pub(in crate::reactor) fn native(id: &str) -> Value {
    let uname = rustix::system::uname();
    let text = |field: &std::ffi::CStr| Value::Str(field.to_string_lossy().into_owned());
    let node = uname.nodename().to_string_lossy().into_owned();
    let host = node.split('.').next().unwrap_or(&node).to_owned();
    let domain = node.split_once('.').map(|(_, domain)| domain.to_owned()).unwrap_or_default();
    let mut grains = Map::new();
    grains.insert("id".into(), id.into());
    grains.insert("kernel".into(), text(uname.sysname()));
    grains.insert("kernelrelease".into(), text(uname.release()));
    grains.insert("kernelversion".into(), text(uname.version()));
    grains.insert("cpuarch".into(), text(uname.machine()));
    grains.insert("nodename".into(), node.as_str().into());
    grains.insert("host".into(), host.into());
    grains.insert("fqdn".into(), node.into());
    grains.insert("domain".into(), domain.into());
    if let Ok(cpus) = std::thread::available_parallelism() {
        grains.insert("num_cpus".into(), Value::Int(i64::try_from(cpus.get()).unwrap_or(1)));
    }
    if let Ok(release) = fs::read_to_string("/etc/os-release") {
        os(&release, &mut grains);
    }
    Value::Map(grains)
}

/// Name, family and release, from `os-release`.
fn os(release: &str, grains: &mut Map) {
    let get = |key: &str| {
        let line = release.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix('='));
        line.map(|value| value.trim_matches(['"', '\'']).to_owned()).unwrap_or_default()
    };
    let (id, like, version) = (get("ID"), get("ID_LIKE"), get("VERSION_ID"));
    let (name, family) = match id.as_str() {
        "debian" => ("Debian", "Debian"),
        "ubuntu" => ("Ubuntu", "Debian"),
        "rhel" => ("RedHat", "RedHat"),
        "centos" => ("CentOS", "RedHat"),
        "rocky" => ("Rocky", "RedHat"),
        "almalinux" => ("AlmaLinux", "RedHat"),
        "fedora" => ("Fedora", "RedHat"),
        "amzn" => ("Amazon", "RedHat"),
        "arch" => ("Arch", "Arch"),
        "alpine" => ("Alpine", "Alpine"),
        _ if like.contains("debian") => (id.as_str(), "Debian"),
        _ if like.contains("rhel") || like.contains("fedora") => (id.as_str(), "RedHat"),
        _ if like.contains("suse") => ("SUSE", "Suse"),
        _ => (id.as_str(), id.as_str()),
    };
    if name.is_empty() {
        return;
    }
    let major = version.split('.').next().unwrap_or_default();
    grains.insert("os".into(), name.into());
    grains.insert("os_family".into(), family.into());
    grains.insert("osrelease".into(), version.as_str().into());
    grains.insert("oscodename".into(), get("VERSION_CODENAME").into());
    if let Ok(major) = major.parse() {
        grains.insert("osmajorrelease".into(), Value::Int(major));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn native_grains_have_kernel_and_os() {
        let Value::Map(grains) = native("m_master") else { panic!("grains are a mapping") };
        assert_eq!(grains.get("kernel"), Some(&"Linux".into()));
        assert_eq!(grains.get("id"), Some(&"m_master".into()));
        let mut grains = Map::new();
        os("ID=ubuntu\nID_LIKE=debian\nVERSION_ID=\"24.04\"\nVERSION_CODENAME=noble\n", &mut grains);
        let get = |name: &str| grains.get(name).map(Value::python_str).unwrap_or_default();
        assert_eq!(
            [get("os"), get("os_family"), get("osrelease"), get("osmajorrelease"), get("oscodename")],
            ["Ubuntu", "Debian", "24.04", "24", "noble"]
        );
    }
}
