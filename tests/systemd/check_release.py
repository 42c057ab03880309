"""Each file of `make release`, installed as an operator does, and the README's commands with it.

`make release-check` runs this file and sets $SALTCELLAR_RELEASE to the directory.
"""
import glob
import json
import os
import re

import pytest
from conftest import boot
from packages import run
from salted import REPO, SALT, Salted, wait_for_minion

#: Commands of the README, by the heading above them.
HEADINGS = ("Watch your master without changing it", "Make it the job cache", "Everyday commands")
#: Time for a command that only a signal ends, in seconds.
FOLLOWED_S = 3


@pytest.fixture(scope="module")
def release():
    return os.path.abspath(os.environ["SALTCELLAR_RELEASE"])


@pytest.fixture
def machine(release):
    """A machine with a running master and minion, and the files of the release in /packages."""
    try:
        made = boot(lambda: Salted(release))
    except pytest.skip.Exception as exc:
        # Elsewhere an obstacle skips a test; what was not installed is not shown to work.
        pytest.fail(str(exc))
    for program in ("salt", "salt-run", "salt-call"):
        made.write(f"/usr/bin/{program}", f'#!/bin/sh\nexec {SALT}/bin/python3 -W ignore {SALT}/bin/{program} "$@"\n')
    made.sh("chmod +x /usr/bin/salt /usr/bin/salt-run /usr/bin/salt-call")
    made.start_salt()
    wait_for_minion(made)
    yield made
    # pytest shows it for a failed test.
    print(made.sh("journalctl -u saltcellar -o short-precise --no-pager", check=False).stdout)
    made.stop()


def readme():
    """The README's commands, without comments."""
    with open(os.path.join(REPO, "README.md")) as file:
        text = file.read()
    found = []
    for heading in HEADINGS:
        (section,) = re.findall(rf"^## {heading}\n(.*?)^## ", text, re.MULTILINE | re.DOTALL)
        lines = [re.sub(r"\s+# .*", "", line) for line in re.findall(r"^ {4}(\S.*)$", section, re.MULTILINE)]
        found += [line for line in lines if line.startswith(("apt ", "salt"))]
    assert len(found) > 10, found
    return found


def run_readme(machine, skip=("apt ",)):
    """Runs them in order. A question is answered, the example of a jid is one that exists, and a follower is ended."""
    jid = machine.job("test.arg", "of the README")
    for line in readme():
        if line.startswith(skip):
            continue
        if re.fullmatch("saltcellar setup( --passive| --remove)?", line):
            line += " --yes"
        # Everyday commands follow the removal, and are about a master with saltcellar.
        if line == "saltcellar status":
            machine.cli("setup", "--yes")
            wait_for_minion(machine)
            jid = machine.job("test.arg", "of the README")
            assert jid in machine.jids()
        line = re.sub(r"\b20\d{18}\b", jid, line)
        if " tail " in line:
            line = f"timeout {FOLLOWED_S} {line}; test $? = 124"
        machine.sh(f"PATH=$PATH:/usr/local/bin; {line}")
        wait_for_minion(machine)


def file_of(release, pattern):
    (path,) = glob.glob(f"{release}/{pattern}")
    return f"/packages/{os.path.basename(path)}"


def test_the_debian_package(machine, release):
    machine.sh(f"cd /packages; apt-get install -y -qq ./{os.path.basename(file_of(release, 'saltcellar_*.deb'))}")
    run_readme(machine)


def test_the_rpm_package(machine, release):
    # Debian's rpm has an empty database, without the packages that others need.
    machine.sh(f"rpm --nodeps -i {file_of(release, '*.rpm')}")
    run_readme(machine)


def test_the_tarball(machine, release):
    machine.sh(f"tar -C /usr/local --strip-components=1 -xzf {file_of(release, 'saltcellar-*-musl.tar.gz')}")
    machine.program = "/usr/local/bin/saltcellar"
    linked = machine.sh("ldd /usr/local/bin/saltcellar 2>&1", check=False).stdout
    assert "statically linked" in linked or "not a dynamic executable" in linked, linked
    run_readme(machine)


def test_the_wheel(machine, release):
    machine.sh(f"dpkg -i {file_of(release, 'saltcellar_*.deb')}")
    wheel = file_of(release, "*.whl")
    machine.sh(f"{SALT}/bin/python3 -m pip install -q --no-index --no-deps {wheel}")
    machine.cli("setup", "--yes", "--extension", "manual")
    wait_for_minion(machine)
    jid = machine.job("test.arg", "by the wheel")
    assert jid in machine.jids()
    (version,) = re.findall(r"-(\d+\.\d+\.\d+)-", wheel)
    assert machine.findings("extension")[-1] == ("ok", f"version {version}")


def test_the_checksums_name_every_file(release):
    named = {line.split()[-1] for line in open(f"{release}/SHA256SUMS")}
    assert named == set(os.listdir(release)) - {"SHA256SUMS"}
    run("sh", "-c", f"cd {release} && sha256sum --check --quiet SHA256SUMS")


def test_the_bill_lists_the_dependencies_with_their_licences(release):
    (path,) = glob.glob(f"{release}/*.cdx.json")
    with open(path) as file:
        bill = json.load(file)
    components = {one["name"]: one for one in bill["components"]}
    locked = set(re.findall(r'^name = "(.*)"$', open(os.path.join(REPO, "Cargo.lock")).read(), re.MULTILINE))
    assert {"sled", "rustls", "tokio", "saltext.saltcellar"} <= set(components)
    assert set(components) <= locked | {"saltext.saltcellar"}
    assert [name for name, one in components.items() if not one.get("licenses")] == []


def test_the_manual_pages_are_those_of_each_command(release):
    (path,) = glob.glob(f"{release}/*-man.tar.gz")
    names = run("tar", "-tzf", path).split()
    assert "man/saltcellar.1" in names and "man/saltcellar-jobs-list.1" in names


def test_one_version_everywhere(release):
    version = json.load(open(glob.glob(f"{release}/*.cdx.json")[0]))["metadata"]["component"]["version"]
    without = [name for name in os.listdir(release) if name != "SHA256SUMS" and version not in name]
    assert without == []
