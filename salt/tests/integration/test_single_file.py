"""A master without saltcellar: the single file by sync, `saltcellar setup`, a restart, and removal.

A separate lab. The extension's package cannot be imported in it, although it is installed here.
"""
import json
import os
import shutil
import subprocess
import sys

import procs
import pytest
import salt_lab
from conftest import FEW, HERE, Lab, eventually, started

TOOLS = os.path.join(os.path.dirname(os.path.dirname(HERE)), "tools")
#: Imported by every Python of the lab before anything else.
WITHOUT_PACKAGE = "import sys\nsys.modules['saltext.saltcellar'] = None\n"


@pytest.fixture(scope="module")
def bare(daemon, root):
    """A lab without saltcellar in its configuration."""
    salt_lab.write(f"{root}/without/sitecustomize.py", WITHOUT_PACKAGE)
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = f"{root}/without"
    try:
        with started(Lab, f"{root}/bare", minions=1, prefix="bare-", master_conf=FEW,
                     minion_conf={"saltcellar.socket": daemon.socket}) as lab:
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


def test_the_single_file_and_setup_can_be_installed_and_removed(bare, daemon):
    conf = bare.env["SALT_CONFIG_DIR"]
    flags = ("--salt-config", conf)
    options = (*flags, "--master-only", "--install", "none")

    def checks():
        p = daemon.cli("doctor", "--output", "json", *flags, "--salt-python", sys.executable, check=False)
        return {one["check"]: one["verdict"] for one in json.loads(p.stdout)["checks"]}

    # nothing is installed yet
    assert "saltcellar" not in bare.call("bare-1", "sys.list_returners")
    assert checks()["master_job_cache"] == "warning"
    assert daemon.cli("setup", "--check", *options, check=False).returncode == 1
    jid = bare.detached("bare-1", "test.echo", "before")
    assert daemon.job(jid) is None

    # the file, to the master and to the minion
    script = os.path.join(TOOLS, "single_file.py")
    into = f"{bare.lab['dir']}/srv/salt/_returners/saltcellar.py"
    subprocess.run([sys.executable, script, "--output", into], check=True, stdout=subprocess.DEVNULL)
    assert bare.run("saltutil.sync_returners") == ["returners.saltcellar"]
    assert bare.salt("bare-1", "saltutil.sync_returners") == {"bare-1": ["returners.saltcellar"]}
    assert "saltcellar" in bare.call("bare-1", "sys.list_returners")

    # setup, and a restart
    daemon.cli("setup", "--yes", *options)
    daemon.cli("setup", "--check", *options)
    found = checks()
    assert found["master_job_cache"] == "ok"
    assert "problem" not in (found["extension"], found["saltcellar.socket"])
    restart_master(bare)
    jid = bare.detached("bare-1", "test.echo", "after")
    eventually("the job is in the cache", lambda: daemon.returned(jid) == ["bare-1"])
    assert daemon.job(jid)["fun"] == "test.echo"
    assert bare.run("jobs.lookup_jid", jid) == {"bare-1": "after"}

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
    assert checks()["master_job_cache"] == "warning"


def test_the_extension_in_a_directory_of_its_own_survives_synchronizations(bare, daemon):
    conf = bare.env["SALT_CONFIG_DIR"]
    share = f"{bare.lab['dir']}/share"
    script = os.path.join(TOOLS, "single_file.py")
    into = f"{share}/returners/saltcellar.py"
    os.makedirs(os.path.dirname(into), exist_ok=True)
    subprocess.run([sys.executable, script, "--output", into], check=True, stdout=subprocess.DEVNULL)
    # the file of the test before
    shutil.rmtree(f"{bare.lab['dir']}/srv/salt/_returners")
    flags = ("--salt-config", conf, "--salt-python", sys.executable)
    p = daemon.cli("setup", "--yes", "--master-only", "--extension", share, *flags)
    assert "loads it" in p.stdout
    again = daemon.cli("setup", "--yes", "--master-only", "--extension", share, *flags)
    assert again.stdout.endswith("everything is in place, nothing was changed\n")
    # deletes what is not in salt://_returners
    bare.run("saltutil.sync_returners")
    restart_master(bare)
    jid = bare.detached("bare-1", "test.echo", "from its own directory")
    eventually("the job is in the cache", lambda: daemon.returned(jid) == ["bare-1"])
    found = json.loads(daemon.cli("doctor", "--output", "json", *flags, check=False).stdout)["checks"]
    # doctor's Python also finds the package, which the lab hides from the master
    (problem, fine) = [one for one in found if one["check"] == "extension"]
    assert problem["found"] == f"the extension is installed twice: as {into} and as a package"
    assert fine["verdict"] == "ok", fine
    daemon.cli("setup", "--remove", "--yes", "--master-only", *flags)
