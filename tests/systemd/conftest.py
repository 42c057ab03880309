"""One host for the whole session, with a Salt master, a minion, and saltcellar under its own units.

Needs root, systemd-nspawn, $SALTCELLAR_BIN and Salt with the extension in this Python; `make test-systemd` provides the last two.
"""
import json
import os
import shlex
import shutil
import sys

import machine
import packages
import pytest
import salted
from machine import Machine
from procs import eventually
from salted import REPO, SALT, UNIT, Salted, wait_for_minion

#: The default of the system's saltcellar.
CONFIG = {"bus": ["/var/run/salt/master"], "reactor": {"master": "/etc/salt/master"}}
MASTER = {
    **salted.MASTER, "master_job_cache": "saltcellar", "engines": ["saltcellar-reactor"], "fileserver_backend": ["roots", "minionfs"],
    "file_recv": True,
    "reactor": [
        {"job/*": ["/srv/reactor/job.sls"]}, {"slow/*": ["/srv/reactor/slow.sls"]}, {"eat/*": ["/srv/reactor/eat.sls"]},
        {"pushed/*": ["salt://web1/srv/pushed.sls"]}, {"probe/*": ["/srv/reactor/probe.sls"]},
    ],
}
MINION = {**salted.MINION, "reactor": [{"own/*": ["/srv/reactor/own.sls"]}]}


def missing(what):
    """Skips the tests because of an obstacle; fails them if ``CI`` is set."""
    what = f"no test under a real systemd: {what}"
    if os.environ.get("CI"):
        pytest.fail(what)
    pytest.skip(what)


class Unit:
    """A unit of the product, which a test may configure differently."""

    def __init__(self, host, name, config_file, config):
        self.host, self.name, self.config_file, self.config = host, name, config_file, config
        self.drop_in = f"/etc/systemd/system/{name}.service.d/tests.conf"
        self.changed = True

    def sh(self, command, **how):
        return self.host.sh(command, **how)

    def configure(self, service=(), restart=True, **config):
        """Restarts the unit with these lines in a drop-in, and these keys instead of the default ones."""
        self.changed = bool(service or config)
        self.host.write(self.config_file, json.dumps({**self.config, **config}))
        self.host.write(self.drop_in, "\n".join(["[Service]", *service, ""]))
        self.sh(f"systemctl daemon-reload; systemctl reset-failed {self.name} 2>/dev/null || true")
        if restart:
            self.restart()

    def restart(self):
        self.sh(f"systemctl reset-failed {self.name} 2>/dev/null; systemctl restart {self.name}")

    def show(self, what):
        return self.sh(f"systemctl show -P {what} {self.name}").stdout.strip()

    @property
    def pid(self):
        return int(self.show("MainPID"))

    def cli(self, *args, check=True):
        return self.sh(shlex.join(["saltcellar", *args, "--config", self.config_file, *self.flags]), check=check)

    @property
    def flags(self):
        return ["--socket", f"/run/{self.name}/saltcellar.sock"]

    def json(self, *args):
        return json.loads(self.cli(*args, "--output", "json").stdout)

    def wait_for_bus(self):
        """A connected daemon reads everything published afterwards."""
        eventually("the daemon reads the bus", lambda: all(bus["connected"] for bus in self.json("status")["bus"]))

    def cursor(self):
        """A position in the journal."""
        self.sh("journalctl --sync")
        return self.sh("journalctl -n0 --show-cursor -q").stdout.split("cursor: ")[-1].strip()

    def log(self, cursor):
        self.sh("journalctl --sync")
        return self.sh(f"journalctl -u {self.name} -o cat --no-pager --after-cursor={shlex.quote(cursor)}").stdout

    def wait_for_log(self, words, cursor):
        eventually(f"the log to contain {words!r}", lambda: words in self.log(cursor))

    # the reactor
    def fire(self, tag, data="{}"):
        self.wait_for_bus()
        self.cli("events", "send", tag, data)

    def history(self, tag):
        return self.json("reactor", "history", "--tag", tag, "--limit", "100")["reactions"]

    def reaction(self, tag):
        """The only finished reaction to the events with that tag."""
        rows = eventually(f"a reaction to {tag}", lambda: self.history(tag))
        assert len(rows) == 1, rows
        return rows[0]["reaction"]

    def helpers(self):
        """Process ids of Salt's Python, children of the daemon."""
        return self.sh(f"grep -lsa saltcellar-helper $(for pid in $(cat /proc/{self.pid}/task/*/children); do echo /proc/$pid/cmdline; done)"
                       " </dev/null | cut -d/ -f3").stdout.split()


def boot(make):
    """The host that `make` makes; skips the tests where there can be none."""
    obstacle = machine.obstacle()
    if obstacle:
        missing(obstacle)
    try:
        return make()
    except AssertionError as exc:
        if any(words in str(exc).lower() for words in ("permission denied", "not permitted")):
            pytest.skip(f"no test under a real systemd: containers are forbidden here: {exc}")
        raise


@pytest.fixture(scope="session")
def host():
    host = boot(lambda: Machine({"/usr/bin/saltcellar": os.environ["SALTCELLAR_BIN"], "/src": REPO, SALT: sys.prefix}))
    try:
        install(host)
        yield host
    finally:
        host.stop()


@pytest.fixture(scope="session")
def package_files(tmp_path_factory):
    """The files of all packages that are not in the source tree."""
    generated = str(tmp_path_factory.mktemp("files") / "generated")
    packages.generate(os.environ["SALTCELLAR_BIN"], generated)
    return generated


@pytest.fixture(scope="session")
def package_dir(tmp_path_factory, request):
    """1.deb, and 2.deb with a higher version and another sample configuration."""
    obstacle = machine.obstacle() or ("not installed: dpkg" if not shutil.which("dpkg-deb") else None)
    if obstacle:
        missing(obstacle)
    # Not needed by tests that are skipped.
    generated = request.getfixturevalue("package_files")
    dir, scratch = (str(tmp_path_factory.mktemp(name)) for name in ("packages", "scratch"))
    os.chmod(os.path.dirname(dir), 0o755)
    shutil.copyfile(os.environ.get("SALTCELLAR_DEB") or packages.build_deb(generated, "0.0.1", scratch), f"{dir}/1.deb")
    shutil.copyfile(packages.build_deb(generated, "99", scratch, "# A new line.\n"), f"{dir}/2.deb")
    return dir


@pytest.fixture(scope="session")
def rpms(package_dir, package_files, tmp_path_factory):
    """1.rpm, and 2.rpm with a higher version, beside the Debian packages."""
    if not shutil.which("rpmbuild"):
        missing("not installed: rpm")
    scratch = str(tmp_path_factory.mktemp("rpms"))
    shutil.copyfile(os.environ.get("SALTCELLAR_RPM") or packages.build_rpm(package_files, "0.0.1", scratch), f"{package_dir}/1.rpm")
    shutil.copyfile(packages.build_rpm(package_files, "99", scratch), f"{package_dir}/2.rpm")


@pytest.fixture
def fresh(package_dir):
    """A new host with the packages in /packages, none of them installed."""
    fresh = boot(lambda: Salted(package_dir))
    yield fresh
    # pytest shows it for a failed test.
    print(fresh.sh("journalctl -u saltcellar -o short-precise --no-pager", check=False).stdout)
    fresh.stop()


@pytest.fixture
def installed(fresh):
    """A new host with the Debian package."""
    fresh.sh("dpkg -i /packages/1.deb")
    return fresh


def install(host):
    """Installs the units as a package does, and starts Salt."""
    host.sh("""
        ip address add 192.0.2.7/24 dev lo
        cp /src/systemd/*.service /src/systemd/*.socket /etc/systemd/system/
        mkdir -p /usr/lib/sysusers.d /usr/lib/tmpfiles.d
        cp /src/systemd/saltcellar.sysusers /usr/lib/sysusers.d/saltcellar.conf
        cp /src/systemd/saltcellar.tmpfiles /usr/lib/tmpfiles.d/saltcellar.conf
        systemd-sysusers saltcellar.conf
        {user}
        usermod -aG saltcellar salt
        mkdir -pm 700 /etc/salt/gpgkeys
        export GNUPGHOME=/etc/salt/gpgkeys
        gpg -q --batch --passphrase '' --quick-generate-key tests default default never
        echo decrypted | gpg -q --batch --trust-model always -r tests -e > /srv/secret.gpg
        gpgconf --kill gpg-agent
    """.replace("{user}", salted.ADD_USER))
    salted.let_users_read_python(host)
    for role, conf in (("master", MASTER), ("minion", MINION)):
        host.write(f"/etc/salt/{role}", json.dumps(conf))
        host.write(f"/etc/systemd/system/salt-{role}.service", UNIT.format(salt=SALT, role=role))
    for name, text in FILES.items():
        host.write(f"/srv/reactor/{name}", text)
    host.write("/var/cache/salt/master/minions/web1/files/srv/pushed.sls", FILES["job.sls"])
    host.sh("systemctl daemon-reload; systemctl start --no-block salt-master salt-minion")


#: Reactor files. `job` needs a function of Salt's Python; `probe` writes its responses where Salt's Python may write.
FILES = {
    "probe.sls": """#!py
import ctypes, json, os, socket, subprocess, tempfile

def attempt(function, *args):
    try:
        return function(*args)
    except Exception as exc:
        return repr(exc)

def run():
    volatile = ('pid', 'cwd', 'saltpath', 'systempath', 'shell', 'ps')
    seen = {'grains ' + name: value for name, value in __grains__.items() if name not in volatile}
    for fun in ('network.interfaces', 'network.ip_addrs', 'network.default_route', 'network.routes', 'network.netstat',
                'network.active_tcp', 'network.get_hostname', 'status.pid', 'user.list_users', 'file.lstat',
                'pkg.version', 'timezone.get_zone', 'locale.get_locale', 'service.get_all', 'sysctl.get', 'shadow.info', 'hosts.list_hosts'):
        args = {'status.pid': ['systemd-journald'], 'file.lstat': ['/etc/passwd'], 'pkg.version': ['bash'], 'sysctl.get': ['kernel.pid_max'],
                'shadow.info': ['root']}.get(fun, [])
        seen[fun] = attempt(__salt__[fun], *args)
    for command in ('ip -json address', 'ip -json route', 'ss -Hltn', 'id', 'umask', 'ps -eo comm', 'cat /proc/1/cmdline', 'df --output=fstype,target /srv', 'hostname',
                    'echo $HOME', 'git --version', 'gpg --version', 'mktemp -u', 'lsblk', 'systemctl is-active salt-master', 'uname -a', 'free -b -t'):
        done = subprocess.run(command, shell=True, capture_output=True, text=True)
        seen[command] = [done.returncode, done.stdout, done.stderr]
    seen['interfaces'] = attempt(socket.if_nameindex)
    seen['addresses'] = attempt(lambda: sorted(str(found) for found in socket.getaddrinfo('localhost', 80)))
    seen['callback'] = attempt(lambda: ctypes.CFUNCTYPE(ctypes.c_int)(lambda: 7)())
    seen['temporary file'] = attempt(lambda: tempfile.TemporaryFile().write(b'x'))
    seen['secret'] = attempt(lambda: __salt__['gpg.decrypt'] and subprocess.run(
        ['gpg', '--homedir', '/etc/salt/gpgkeys', '--batch', '-d', '/srv/secret.gpg'], stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, text=True).stdout.splitlines()[-1:])
    with open('/var/cache/salt/probe.json', 'w') as out:
        json.dump(seen, out, default=str)
    return {}
""",
    "job.sls": """
say:
  local.test.arg:
    - tgt: web1
    - arg:
      - {{ salt['cmd.run']('id -un') }}
      - {{ tag }}
""",
    "slow.sls": """#!py
import pathlib, time

def run():
    cache = pathlib.Path('/var/cache/salt')
    (cache / 'started').touch()
    while not (cache / 'finish').exists():
        time.sleep(0.1)
    return {'say': {'local.test.arg': [{'tgt': 'web1'}, {'arg': [tag]}]}}
""",
    "eat.sls": """#!py
import os

def run():
    ate = '/var/cache/salt/ate'
    if not os.path.exists(ate):
        open(ate, 'w').close()
        held = [b'x' * (1 << 20) for _ in range(4096)]
    return {'say': {'local.test.arg': [{'tgt': 'web1'}, {'arg': [tag]}]}}
""",
    "own.sls": """
run:
  caller.cmd.shell:
    - args:
      - cmd: sleep {{ data['seconds'] }}; id -un > /root/{{ data['name'] }}; dd if=/dev/null of=/etc/{{ data['name'] }}
""",
}


@pytest.fixture(scope="session")
def salt(host):
    """The running master, once its minion answers."""
    wait_for_minion(host)
    return host


@pytest.fixture(scope="session")
def unit(host):
    unit = Unit(host, "saltcellar", "/etc/saltcellar/saltcellar.yaml", CONFIG)
    unit.configure()
    return unit


@pytest.fixture
def daemon(unit):
    """The daemon under the shipped unit with the default configuration, which a test may change."""
    if unit.changed:
        unit.configure()
        unit.changed = False
    return unit
