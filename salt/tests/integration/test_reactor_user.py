"""Salt's Python beside the daemon runs as the master's user, with a configuration that only root can read."""
import json
import os
import pwd
import shutil
import subprocess
import sys

import pytest
import salt_lab
from conftest import Daemon

SLS = """
{% do salt['file.mkdir'](CACHE ~ '/made') %}
who:
  local.test.arg:
    - tgt: '*'
    - arg:
      - {{ salt['cmd.run']('id -un') | json }}
      - {{ salt['cmd.run']('id -G') | json }}
      - {{ salt['cmd.run']('pwd') | json }}
      - {{ salt['config.get']('only_root_reads') | json }}
"""


@pytest.fixture
def user():
    """A user other than root, that the Python of this lab may be run by."""
    if os.geteuid() != 0:
        assert "CI" not in os.environ, "this needs root"
        pytest.skip("only root can switch users")
    wanted = pwd.getpwnam("nobody")
    args = ["setpriv", "--reuid", "nobody", "--regid", str(wanted.pw_gid), "--init-groups", sys.executable, "-c", "import salt"]
    probe = subprocess.run(args, cwd="/", capture_output=True, text=True)
    if probe.returncode:
        assert "CI" not in os.environ, probe.stderr
        pytest.skip(f"others than root cannot run {sys.executable}: {probe.stderr[-200:]}")
    return wanted


@pytest.fixture
def place():
    path = salt_lab.new_dir("sc-user-")
    os.chmod(path, 0o755)
    yield path
    shutil.rmtree(path, ignore_errors=True)


def test_a_command_in_a_template_ran_as_root_where_salt_runs_it_as_its_user(user, place):
    os.mkdir(f"{place}/cache")
    os.chown(f"{place}/cache", user.pw_uid, user.pw_gid)
    salt_lab.write(f"{place}/master", salt_lab.to_yaml({
        "user": user.pw_name, "root_dir": place, "cachedir": f"{place}/cache", "only_root_reads": {"n": [1, "two"]}}))
    os.chmod(f"{place}/master", 0o600)
    salt_lab.write(f"{place}/who.sls", SLS.replace("CACHE", f"'{place}/cache'"))
    d = Daemon(place, place)
    done = subprocess.run(
        [d.bin, "reactor", "test", f"{place}/who.sls", "--tag", "a", "--master-config", f"{place}/master",
         "--salt-python", sys.executable, "--output", "json"], capture_output=True, text=True, cwd=place)
    assert done.returncode == 0, (done.stdout, done.stderr)
    said = json.loads(done.stdout)
    groups = subprocess.run(["id", "-G", user.pw_name], capture_output=True, text=True, check=True).stdout.strip()
    assert said["calls"][0]["publish"]["arg"] == [user.pw_name, groups, "/", {"n": [1, "two"]}], said
    assert os.stat(f"{place}/cache/made").st_uid == user.pw_uid
