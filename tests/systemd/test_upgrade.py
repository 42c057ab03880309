"""A change of Salt's release below a running saltcellar, with two real releases."""
import importlib.metadata
import re

import pytest
import salt_lab
from conftest import boot, missing
from procs import eventually
from salted import SALT, Salted, publishes, wait_for_minion

PYTHON = f"{SALT}/bin/python3"


@pytest.fixture
def changed(package_dir):
    """A host with the older of two releases, and their numbers: the oldest one, and that of this test run or else the newest."""
    own, oldest = importlib.metadata.version("salt"), salt_lab.RELEASES[-1]
    releases = [oldest, own if own != oldest else salt_lab.RELEASES[0]]
    try:
        prefixes = [salt_lab.ensure_venv(release, extension=False) for release in releases]
    except salt_lab.LabError as exc:
        missing(str(exc))
    host = boot(lambda: Salted(package_dir, prefixes))
    host.sh("dpkg -i /packages/1.deb")
    yield host, releases
    # pytest shows it for a failed test.
    print(host.sh("journalctl -u saltcellar -o short-precise --no-pager; tail -n 50 /var/log/salt/master", check=False).stdout)
    host.stop()


def change(host, number):
    """Replaces the release and restarts Salt, without waiting for a minion that answers."""
    host.sh("systemctl stop salt-minion salt-master")
    host.install_salt(number)
    host.sh("rm -f /var/run/salt/master/publish_pull.ipc; systemctl start --no-block salt-master salt-minion")
    eventually("the master runs", lambda: host.sh("test -S /var/run/salt/master/publish_pull.ipc", check=False).returncode == 0)


def is_stored(host, *jids):
    assert set(jids) <= host.jids()
    return all(host.salt("salt-run", "jobs.lookup_jid", jid)["web1"]["args"] for jid in jids)


def test_a_change_of_release_loses_a_package_of_salt_pip_and_no_file_of_ours(changed):
    """Salt's packages find `extras-<version of Python>` by a line like this one, and those with another Python do not."""
    host, releases = changed
    site = host.sh(f"{PYTHON} -c 'import site; print(site.getsitepackages()[0])'").stdout.strip()
    version = re.search(r"/python(3\.\d+)/", site)[1]
    extras = f"{SALT}/extras-{version}"
    host.sh(f"{PYTHON} -m pip install -q --no-index --no-deps --target {extras} /usr/share/saltcellar/*.whl; echo {extras} > {site}/extras.pth")
    host.start_salt()
    host.cli("setup", "--yes", "--extension", "manual")
    assert host.salt_release() == releases[0]
    module = f"{extras}/saltext/saltcellar/returners/saltcellar.py"
    found = host.findings("extension")
    assert found[0] == ("warning", f"the extension is installed for Python {version} only: {module}") and found[1][0] == "ok", found
    before = host.job("test.arg", "before")

    change(host, 1)
    assert host.salt_release() == releases[1]
    problem = f"Salt's Python ({PYTHON}) does not find the extension: it is installed for another Python, in {extras}"
    assert host.findings("extension") == [("problem", problem)]
    assert not publishes(host)
    # Setup keeps the choice of the first run, but does not claim that all is well with it.
    refused = host.cli("setup", "--yes", check=False)
    assert refused.returncode == 1 and "let `saltcellar setup --extension module-dirs` do it" in refused.stderr, refused
    host.cli("setup", "--yes", "--extension", "module-dirs")
    wait_for_minion(host)
    # The directory of the package is not below Salt's.
    host.sh(f"rm -rf {extras}")
    after = host.job("test.arg", "after")
    assert is_stored(host, before, after) and host.findings("extension") == [found[1]]

    # And back
    change(host, 0)
    assert host.salt_release() == releases[0]
    again = host.job("test.arg", "again")
    assert is_stored(host, before, after, again) and host.findings("extension") == [found[1]]
