"""A master without saltcellar: the directory for `module_dirs`, `saltcellar setup`, a restart, and removal.

A separate lab. The extension's package cannot be imported in it before the directory is configured, although it is installed here.
"""
import json
import os
import subprocess
import sys

import procs
import pytest
import salt_lab
from conftest import FEW, REPO, Lab, eventually, started

TOOLS = os.path.join(REPO, "salt", "tools")
#: Run by every Python of the lab before anything else: hides the installed package, but not the one in the directory.
WITHOUT_PACKAGE = """
import sys

class Hidden:
    def find_spec(name, path=None, target=None):
        if name == "saltext.saltcellar" and not any(entry.endswith("/share/lib") for entry in sys.path):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Hidden)
"""


@pytest.fixture(scope="module")
def bare(daemon, root):
    """A lab without saltcellar in the configuration of its master. Its minion has the directory."""
    script = os.path.join(TOOLS, "package.py")
    subprocess.run([sys.executable, script, "--modules", f"{root}/share"], check=True, stdout=subprocess.DEVNULL)
    salt_lab.write(f"{root}/without/sitecustomize.py", WITHOUT_PACKAGE)
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = f"{root}/without"
    try:
        with started(Lab, f"{root}/bare", minions=1, prefix="bare-", master_conf=FEW,
                     minion_conf={"saltcellar.socket": daemon.socket, "module_dirs": [f"{root}/share"]}) as lab:
            yield lab
    finally:
        if before is None:
            del os.environ["PYTHONPATH"]
        else:
            os.environ["PYTHONPATH"] = before


def restart_master(lab):
    master = lab.lab["procs"].pop("master")
    assert procs.end([master]) == []
    again = salt_lab.spawn(lab.lab, "master", "salt-master", "-c", lab.env["SALT_CONFIG_DIR"])
    eventually("the master answers again", lambda: again.poll() is None and salt_lab.connected(lab.lab) and salt_lab.responds(lab.lab, lab.command))


def test_the_directory_and_setup_can_be_installed_and_removed(bare, daemon, root):
    conf, share = bare.env["SALT_CONFIG_DIR"], f"{root}/share"
    flags = ("--salt-config", conf, "--salt-python", sys.executable)
    options = (*flags, "--master-only", "--extension-dir", share)

    def findings(check):
        found = json.loads(daemon.cli("doctor", "--output", "json", *flags, check=False).stdout)["checks"]
        return [one for one in found if one["check"] == check]

    # nothing is configured yet
    (found,) = findings("master_job_cache")
    assert found["result"] == "warning"
    assert daemon.cli("setup", "--check", *options, check=False).returncode == 1
    jid = bare.detached("bare-1", "test.echo", "before")
    assert daemon.job(jid) is None

    # setup, and a restart
    p = daemon.cli("setup", "--yes", *options)
    assert "loads it" in p.stdout
    daemon.cli("setup", "--check", *options)
    again = daemon.cli("setup", "--yes", *options)
    assert again.stdout.endswith("everything is in place, nothing was changed\n")
    (found,) = findings("master_job_cache")
    assert found["result"] == "ok"
    # it deletes what is not in salt://_returners
    bare.run("saltutil.sync_returners")
    restart_master(bare)
    jid = bare.detached("bare-1", "test.echo", "after")
    eventually("the job is in the cache", lambda: daemon.returned(jid) == ["bare-1"])
    assert daemon.job(jid)["fun"] == "test.echo"
    assert bare.run("jobs.lookup_jid", jid) == {"bare-1": "after"}
    # doctor's Python also finds the package, which the lab hides from the master
    (problem, fine) = findings("extension")
    assert problem["message"] == f"the extension is installed twice: as {share}/returners/saltcellar.py and as a package"
    assert fine["result"] == "ok", fine

    # the other modules: the runner of the master, the execution module of the minion
    assert bare.run("saltcellar.job", jid)["fun"] == "test.echo"
    assert bare.call("bare-1", "saltcellar.status")["reachable"] is True

    # a minion without a master: the master gets no event of it
    word = "by the minion alone"
    answer = bare.call("bare-1", "--local", "--return", "saltcellar", "test.echo", word)
    assert answer == word
    alone = eventually("the minion's own return", lambda: [
        job for job in daemon.jobs("--fun", "test.echo", "--minion", "bare-1") if job["jid"] > jid])
    (stored,) = daemon.job(alone[0]["jid"])["returns"]
    assert stored["return"] == word

    # and as before
    daemon.cli("setup", "--remove", "--yes", *options)
    assert not os.path.exists(f"{conf}/master.d/saltcellar.conf")
    (found,) = findings("master_job_cache")
    assert found["result"] == "warning"
