"""The Debian and RPM packages: installation, upgrade with data, removal, purge."""
import glob
import os
import tarfile

import pytest
from packages import run
from salted import ADD_USER, wait_for_minion

#: Kinds of Salt's modules, with the extension's name in each.
MODULES = {"returners": "saltcellar", "runners": "saltcellar", "engines": "saltcellar_reactor", "modules": "saltcellar",
           "beacons": "saltcellar_spool"}
REFUSED = ("saltcellar: not removed: the Salt master loads the extension from /usr/share/saltcellar, by /etc/salt/master.d/saltcellar.conf\n"
           "saltcellar: run `saltcellar setup --remove` first, and remove the package then\n")


def exists(host, path):
    return host.sh(f"test -e {path}", check=False).returncode == 0


def started(host, cursor):
    """How often systemd started the daemon since then."""
    host.sh("journalctl --sync")
    return host.sh(f"journalctl -o cat -q --no-pager --after-cursor='{cursor}' _PID=1 UNIT=saltcellar.service").stdout.count("Started saltcellar.service")


def cursor(host):
    host.sh("journalctl --sync")
    return host.sh("journalctl -n0 --show-cursor -q").stdout.split("cursor: ")[-1].strip()


def check_files(host):
    """What a package installs, whichever tool packed it."""
    files = ["/usr/bin/saltcellar", "/etc/saltcellar/saltcellar.yaml", "/usr/lib/sysusers.d/saltcellar.conf", "/usr/lib/tmpfiles.d/saltcellar.conf",
             "/usr/share/man/man1/saltcellar.1*", "/usr/share/man/man1/saltcellar-jobs-list.1*",
             "/usr/share/bash-completion/completions/saltcellar", "/usr/share/fish/vendor_completions.d/saltcellar.fish",
             "/usr/share/zsh/*/_saltcellar", "/usr/share/saltcellar/saltext?saltcellar-*.whl", "/usr/share/doc/saltcellar/SETUP.md",
             "/usr/share/doc/saltcellar/formula/saltcellar/init.sls",
             *(f"/usr/lib/systemd/system/{unit}" for unit in ("saltcellar.service", "saltcellar.socket", "saltcellar-minion.service")),
             "/usr/share/saltcellar/lib/saltext/saltcellar/__init__.py", "/usr/share/saltcellar/lib/saltext/saltcellar/utils/client.py",
             *(f"/usr/share/saltcellar/{kind}/{name}.py" for kind, name in MODULES.items())]
    for file in files:
        host.sh(f"test -f {file}")
    host.sh("systemd-analyze verify /usr/lib/systemd/system/saltcellar*.service")
    host.sh("bash -n /usr/share/bash-completion/completions/saltcellar")
    assert "saltcellar jobs list" in host.sh("zcat -f /usr/share/man/man1/saltcellar-jobs-list.1*").stdout.replace("\\-", "-")
    # the group, and its directory before the first start
    assert host.sh("stat -c '%U %G %a' /run/saltcellar").stdout == "root saltcellar 750\n"
    # nothing runs before `saltcellar setup`
    for unit in ("saltcellar.service", "saltcellar.socket", "saltcellar-minion.service"):
        assert (host.show("ActiveState", unit), host.show("UnitFileState", unit)) == ("inactive", "disabled")
    host.cli("config", "check")
    host.sh("systemctl start saltcellar")
    host.cli("status")


def test_the_debian_package_installs_all_files_and_starts_nothing(fresh):
    installation = fresh.sh("dpkg -i /packages/1.deb").stdout
    assert "saltcellar: run `saltcellar setup` to connect it to this host's Salt master\n" in installation, installation
    check_files(fresh)
    assert fresh.sh("dpkg-query -Wf '${Conffiles}' saltcellar").stdout.split()[0] == "/etc/saltcellar/saltcellar.yaml"
    assert fresh.sh("dpkg -V saltcellar").stdout == ""
    fresh.sh("dpkg -r saltcellar")
    assert fresh.show("LoadState") == "not-found"
    assert not fresh.sh("pgrep -x saltcellar", check=False).stdout
    assert not exists(fresh, "/usr/share/saltcellar") and not exists(fresh, "/run/saltcellar")
    assert exists(fresh, "/var/lib/saltcellar") and exists(fresh, "/etc/saltcellar/saltcellar.yaml")


def test_setup_upgrade_removal_and_purge(installed):
    installed.start_salt()
    installed.cli("setup", "--yes")
    jid = installed.job("test.arg", "before")
    assert jid in installed.jids()
    assert installed.salt("salt-run", "jobs.lookup_jid", jid)["web1"]["args"] == ["before"]

    # The sample configuration differs in the new version. `setup` did not touch it, so dpkg has nothing to ask.
    assert "\nbus: [/var/run/salt/master]\n" in installed.sh("cat /etc/saltcellar/conf.d/setup.yaml").stdout
    before, since = installed.show("MainPID"), cursor(installed)
    installed.sh("dpkg -i /packages/2.deb < /dev/null")
    configuration = installed.sh("cat /etc/saltcellar/saltcellar.yaml").stdout
    assert configuration.endswith("# A new line.\n")
    assert installed.show("MainPID") != before and started(installed, since) == 1
    assert jid in installed.jids()
    after = installed.job("test.arg", "after")
    assert {jid, after} <= installed.jids()

    # The master would not find the extension after its next start, so the package stays.
    removal = installed.sh("dpkg -r saltcellar", check=False)
    assert removal.returncode and REFUSED in removal.stderr, removal
    installed.sh("systemctl restart salt-master")
    wait_for_minion(installed)
    assert installed.show("ActiveState") == "active"

    installed.cli("setup", "--remove", "--yes")
    installed.sh("dpkg -r saltcellar")
    assert not exists(installed, "/usr/share/saltcellar")
    assert exists(installed, "/var/lib/saltcellar") and installed.sh("cat /etc/saltcellar/saltcellar.yaml").stdout == configuration
    again = installed.job("test.arg", "without")
    assert installed.salt("salt-run", "jobs.lookup_jid", again)["web1"]["args"] == ["without"]

    # The data is there after a new installation, and gone after a purge.
    installed.sh("dpkg -i /packages/2.deb; systemctl start saltcellar")
    assert {jid, after} <= installed.jids()
    installed.sh("dpkg -P saltcellar")
    for directory in ("/var/lib/saltcellar", "/var/log/saltcellar", "/etc/saltcellar"):
        assert not exists(installed, directory)


def test_removal_while_salt_has_the_extension_elsewhere_warns(installed):
    installed.write("/etc/salt/master", "user: root\n")
    installed.cli("setup", "--master-only", "--extension", "manual", "--events", "none", "--yes")
    removal = installed.sh("dpkg -r saltcellar")
    warning = (
        "saltcellar: warning: the Salt master is still configured for saltcellar, by /etc/salt/master.d/saltcellar.conf\n"
        "saltcellar: its jobs go to the extension's spool from now on, and cannot be looked up\n")
    assert warning in removal.stderr, removal


def build_id(binary):
    """The number by which debuggers find the symbols of a binary, which may not have them itself."""
    assert bool(binary.endswith(".debug")) == (".debug_info" in run("readelf", "--wide", "--sections", binary)), binary
    (line,) = [line for line in run("readelf", "--notes", binary).splitlines() if "Build ID: " in line]
    return line.split()[-1]


def built(variable):
    """A package of `make deb` or `make dist`."""
    if not os.environ.get(variable):
        pytest.skip(f"{variable} names no package")
    return os.path.abspath(os.environ[variable])


def test_the_symbols_of_the_debian_package_are_in_a_package_of_their_own(tmp_path):
    deb = built("SALTCELLAR_DEB")
    (symbols,) = glob.glob(f"{os.path.dirname(deb)}/saltcellar-dbgsym_*.ddeb")
    assert run("dpkg-deb", "--field", symbols, "Version") == run("dpkg-deb", "--field", deb, "Version")
    for package in (deb, symbols):
        run("dpkg-deb", "--extract", package, tmp_path)
    files = [line.split()[-1] for line in run("dpkg-deb", "--contents", symbols).splitlines() if not line.endswith("/")]
    number = build_id(f"{tmp_path}/usr/bin/saltcellar")
    assert files == [f"./usr/lib/debug/.build-id/{number[:2]}/{number[2:]}.debug"]
    assert build_id(f"{tmp_path}/{files[0]}") == number


def test_the_symbols_of_the_tarball_are_beside_it(tmp_path):
    tarball = built("SALTCELLAR_DIST")
    name = os.path.basename(tarball).removesuffix(".tar.gz")
    with tarfile.open(tarball) as files:
        files.extract(f"{name}/bin/saltcellar", tmp_path)
    assert build_id(tarball.replace(".tar.gz", ".debug")) == build_id(f"{tmp_path}/{name}/bin/saltcellar")


def test_a_daemon_of_another_user_keeps_its_directories(installed):
    installed.sh(ADD_USER)
    installed.write("/etc/systemd/system/saltcellar.service.d/user.conf", "[Service]\nUser=salt\nSupplementaryGroups=salt\n")
    installed.sh("systemctl daemon-reload; systemctl enable --now saltcellar")
    owners = "stat -c '%U %a %n' /var/lib/saltcellar /run/saltcellar /run/saltcellar/saltcellar.sock"
    before, since = installed.sh(owners).stdout, cursor(installed)
    assert before == "salt 700 /var/lib/saltcellar\nsalt 750 /run/saltcellar\nsalt 660 /run/saltcellar/saltcellar.sock\n"
    installed.cli("status")
    installed.sh("dpkg -i /packages/2.deb")
    installed.cli("status")
    assert started(installed, since) == 1 and installed.sh(owners).stdout == before
    installed.sh("systemd-tmpfiles --create")
    assert installed.sh(owners).stdout == before
    installed.reboot()
    assert installed.sh("stat -c '%U %a %n' /run/saltcellar").stdout == "root 750 /run/saltcellar\n"
    # The host's target wants no services.
    installed.sh("systemctl start saltcellar")
    assert installed.sh(owners).stdout == before


def test_the_rpm_package(rpms, fresh):
    # Debian's rpm has an empty database, without the packages that others need.
    rpm = "rpm --nodeps"
    installation = fresh.sh(f"{rpm} -i /packages/1.rpm").stdout
    assert installation == "saltcellar: run `saltcellar setup` to connect it to this host's Salt master\n", installation
    check_files(fresh)
    fresh.sh("echo 'socket_peers: read' >> /etc/saltcellar/saltcellar.yaml")
    before, since = fresh.show("MainPID"), cursor(fresh)
    fresh.sh(f"{rpm} -U /packages/2.rpm")
    assert "socket_peers: read" in fresh.sh("cat /etc/saltcellar/saltcellar.yaml").stdout
    assert fresh.show("MainPID") != before and started(fresh, since) == 1
    fresh.cli("status")
    fresh.write("/etc/salt/master.d/saltcellar.conf", "module_dirs: [/usr/share/saltcellar]\n")
    removal = fresh.sh(f"{rpm} -e saltcellar", check=False)
    assert removal.returncode and REFUSED in removal.stderr, removal
    fresh.sh(f"rm /etc/salt/master.d/saltcellar.conf; {rpm} -e saltcellar")
    assert not fresh.sh("pgrep -x saltcellar", check=False).stdout and not exists(fresh, "/usr/share/saltcellar")
    assert exists(fresh, "/var/lib/saltcellar")
