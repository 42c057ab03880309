//! Checks of the systemd unit by systemd itself and against the program.

use std::process::Command;

use saltcellar_testkit::missing;

const UNIT: &str = include_str!("../../systemd/saltcellar.service");
const MINION: &str = include_str!("../../systemd/saltcellar-minion.service");
const SOCKET: &str = include_str!("../../systemd/saltcellar.socket");
const SYSUSERS: &str = include_str!("../../systemd/saltcellar.sysusers");
const TMPFILES: &str = include_str!("../../systemd/saltcellar.tmpfiles");

#[test]
fn the_units_pass_systemd_analyze_verify() {
    let dir = tempfile::tempdir().unwrap();
    // systemd requires an installed program; this uses the one just built.
    let installed = "/usr/bin/saltcellar";
    assert!(UNIT.contains(installed) && MINION.contains(installed));
    let units = [
        ("saltcellar.service", UNIT),
        ("saltcellar-minion.service", MINION),
        ("saltcellar.socket", SOCKET),
    ];
    let paths = units.map(|(name, text)| {
        let path = dir.path().join(name);
        std::fs::write(
            &path,
            text.replace(installed, env!("CARGO_BIN_EXE_saltcellar")),
        )
        .unwrap();
        path
    });
    let output = match Command::new("systemd-analyze")
        .args(["verify", "--man=no"])
        .args(&paths)
        .output()
    {
        Ok(output) => output,
        Err(error) => {
            eprintln!("systemd-analyze: {error}");
            return missing("systemd-analyze (package systemd)");
        }
    };
    let printed = String::from_utf8_lossy(&output.stderr).into_owned();
    // systemd may warn about units of the host as well; warnings about ours contain its name.
    let ours: Vec<_> = printed
        .lines()
        .filter(|line| line.contains("saltcellar"))
        .collect();
    assert!(output.status.success() && ours.is_empty(), "{printed}");
}

#[test]
fn the_exposure_by_systemds_own_measure_is_at_most_2_5() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("saltcellar.service");
    std::fs::write(&path, UNIT).unwrap();
    // A unit without any restriction has 9.6.
    let rate = |unit: &std::path::Path| {
        let args = ["security", "--offline=true", "--threshold=25", "--no-pager"];
        Command::new("systemd-analyze")
            .args(args)
            .arg(unit)
            .output()
    };
    let bare = dir.path().join("bare.service");
    std::fs::write(&bare, "[Service]\nExecStart=/bin/true\n").unwrap();
    match rate(&bare) {
        Ok(output)
            if !output.status.success()
                && String::from_utf8_lossy(&output.stdout).contains("exposure") => {}
        other => {
            eprintln!("systemd-analyze: {other:?}");
            return missing(
                "a systemd-analyze that rates units that are not installed (package systemd)",
            );
        }
    }
    let output = rate(&path).unwrap();
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stdout)
    );
}

#[test]
fn the_units_agree_with_the_program() {
    for (unit, name) in [(UNIT, "saltcellar"), (MINION, "saltcellar-minion")] {
        assert!(unit.contains("\nType=notify\n") && unit.contains("\nWatchdogSec="));
        for directory in ["StateDirectory", "RuntimeDirectory"] {
            assert!(unit.contains(&format!("\n{directory}={name}\n")), "{name}");
        }
        assert!(unit.contains("\nFileDescriptorStoreMax=1\n"), "{name}");
        assert!(unit.contains("\nRuntimeDirectoryPreserve=yes\n"), "{name}");
    }
    // A killed child must not end the daemon, and a stop must not end children first.
    assert!(UNIT.contains("\nOOMPolicy=continue\n") && UNIT.contains("\nKillMode=mixed\n"));
    for capability in ["CAP_SETGID", "CAP_SETUID"] {
        assert!(
            UNIT.contains(capability),
            "Salt's Python runs as the master's user: {capability}"
        );
    }
    assert_eq!(saltcellar::config::SYSTEM_STATE_DIR, "/var/lib/saltcellar");
    assert_eq!(
        saltcellar::config::SYSTEM_SOCKET,
        "/run/saltcellar/saltcellar.sock"
    );
    assert!(SYSUSERS.contains("\ng saltcellar "));
    assert!(SOCKET.contains(&format!(
        "\nListenStream={}\n",
        saltcellar::config::SYSTEM_SOCKET
    )));
    assert!(TMPFILES.contains("\nd /run/saltcellar :0750 :root :saltcellar "));
    // The daemon's own umask, and modes that need no restriction; the socket still gets its group.
    assert!(UNIT.contains("\nUMask=0077\n") && UNIT.contains("\nStateDirectoryMode=0700\n"));
    assert!(
        UNIT.contains("\nGroup=saltcellar\n") && UNIT.contains("\nRuntimeDirectoryMode=0750\n")
    );
}
