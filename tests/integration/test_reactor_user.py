"""A master that does not run as root: Salt's Python beside the daemon, and the whole reactor, as root and as that user."""
import json
import os
import pwd
import subprocess
import sys
import sysconfig
import uuid

import pytest
import salt_lab
from conftest import Daemon, Reactor, directory, eventually, live_lab, running

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


def missing(what):
    assert "CI" not in os.environ, what
    pytest.skip(what)


def as_user(user):
    """A command prefix that switches to that user."""
    return ["setpriv", "--reset-env", "--reuid", user.pw_name, "--regid", str(user.pw_gid), "--init-groups"]


def account(name):
    """The user of that name, if it may run the Python of this lab and the daemon."""
    if os.geteuid() != 0:
        missing("only root can switch users")
    try:
        wanted = pwd.getpwnam(name)
    except KeyError:
        missing(f"there is no user {name}")
    for cmd in ([sys.executable, "-c", "import salt"], [os.environ["SALTCELLAR_BIN"], "--version"]):
        probe = subprocess.run([*as_user(wanted), *cmd], cwd="/", capture_output=True, text=True)
        if probe.returncode:
            missing(f"{name} cannot run {cmd[0]}: {probe.stderr[-200:]}")
    return wanted


def python_for(user, place):
    """An interpreter with a Salt library that the user can read: the lab's, or a system one of the same version."""
    library = sysconfig.get_path("stdlib")
    readable = [*as_user(user), "sh", "-c", f"exec 3< {library}/multiprocessing/sharedctypes.py"]
    if subprocess.run(readable, cwd="/", capture_output=True).returncode == 0:
        return sys.executable
    system = f"/usr/bin/python{sysconfig.get_python_version()}"
    if not os.path.exists(system):
        missing(f"{user.pw_name} cannot read {library}, and there is no {system}")
    subprocess.run([system, "-m", "venv", "--without-pip", f"{place}/venv"], check=True)
    packages = f"lib/python{sysconfig.get_python_version()}/site-packages"
    salt_lab.write(f"{place}/venv/{packages}/lab.pth", f"{sys.prefix}/{packages}\n")
    return f"{place}/venv/bin/python"


@pytest.fixture
def user():
    """A user other than root."""
    return account("nobody")


@pytest.fixture
def place():
    """A directory that other users may enter."""
    with directory() as path:
        os.chmod(path, 0o755)
        yield path


def test_a_command_in_a_template_ran_as_root_where_salt_runs_it_as_its_user(user, place):
    os.mkdir(f"{place}/cache")
    os.chown(f"{place}/cache", user.pw_uid, user.pw_gid)
    salt_lab.write(f"{place}/master", salt_lab.to_yaml({
        "user": user.pw_name, "root_dir": place, "cachedir": f"{place}/cache", "only_root_reads": {"n": [1, "two"]}}))
    os.chmod(f"{place}/master", 0o600)
    salt_lab.write(f"{place}/who.sls", SLS.replace("CACHE", f"'{place}/cache'"))
    d = Daemon(place, place)
    done = subprocess.run(
        [d.bin, "reactor", "render", f"{place}/who.sls", "--tag", "a", "--salt-config", place,
         "--salt-python", sys.executable, "--output", "json"], capture_output=True, text=True, cwd=place)
    assert done.returncode == 0, (done.stdout, done.stderr)
    answer = json.loads(done.stdout)
    groups = subprocess.run(["id", "-G", user.pw_name], capture_output=True, text=True, check=True).stdout.strip()
    assert answer["calls"][0]["publish"]["arg"] == [user.pw_name, groups, "/", {"n": [1, "two"]}], answer
    assert os.stat(f"{place}/cache/made").st_uid == user.pw_uid


# It needs Salt's Python, a function that the access lists below do not permit, and an argument of the event.
SAY = """
say:
  local.cmd.run:
    - tgt: lab-1
    - args:
      - cmd: echo {{ data['word'] }} {{ salt['cmd.run']('id -un') }}
"""
RUN = """
run:
  runner.event.send:
    - args:
      - tag: ran/{{ data['word'] }}
      - data: {}
"""
WHEEL = """
finger:
  wheel.key.finger:
    - args:
      - match: lab-1
"""


@pytest.fixture(params=["nobody", "salt"])
def user_s_master(request, place):
    """A master of that user, with access lists for another one and a password that permits test.ping."""
    wanted = account(request.param)
    python = python_for(wanted, place)
    for name, text in (("say", SAY), ("run", RUN), ("wheel", WHEEL)):
        salt_lab.write(f"{place}/r/{name}.sls", text)
    with live_lab(f"{place}/lab", minions=1, master_conf={
            "user": wanted.pw_name, "engines": ["saltcellar-reactor"],
            "reactor": [{f"{name}/*": f"{place}/r/{name}.sls"} for name in ("say", "run", "wheel")],
            "publisher_acl": {"daemon": ["test.*"]}, "sharedsecret": "open sesame",
            "external_auth": {"sharedsecret": {"daemon": ["test.*", "@runner"]}}}, python=python) as lab:
        yield lab, wanted


def test_root_and_the_masters_user_can_run_its_reactor(user_s_master, place):
    lab, user = user_s_master
    for runner in (None, user):
        word = uuid.uuid4().hex
        root = f"{place}/{'root' if runner is None else 'user'}"
        d = Reactor(root, lab.sock_dir, master=f"{lab.lab['dir']}/conf/master", python=lab.lab["python"])
        if runner is not None:
            os.chown(root, user.pw_uid, user.pw_gid)
            d.prefix = as_user(user)
        with running(d):
            d.wait_for_bus()
            for kind in ("say", "run", "wheel"):
                lab.fire(f"{kind}/{word}", {"word": word})
            job = d.reaction(f"say/{word}")
            assert job["reaction"]["calls"][0]["outcome"] == "published", job
            d.result(job, "returned")
            returns = d.job(job["reaction"]["calls"][0]["jid"])["returns"]
            assert [(one["minion"], one["return"]) for one in returns] == [("lab-1", f"{word} {user.pw_name}")]
            eventually("the runner's event", lambda: d.events("--tag", f"ran/{word}"))
            call = d.reaction(f"wheel/{word}")["reaction"]["calls"][0]
            assert call["success"] and "lab-1" in call["result"]["minions"], call
            # others have access through their own methods, with fewer rights
            allowed = lab.command("salt", "--out=json", "-a", "sharedsecret", "--username", "daemon", "--password",
                                  "open sesame", "lab-1", "test.ping")
            assert salt_lab.documents(allowed.stdout) == [{"lab-1": True}], (allowed.stdout, allowed.stderr)
            assert lab.run("reactor.list")[0] == {"say/*": f"{place}/r/say.sls"}
            found = d.cli("doctor", "--salt-config", f"{lab.lab['dir']}/conf", check=False).stdout
            assert "rejects the key" not in found, found
