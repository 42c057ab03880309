"""A Salt master and a minion for a host, and a host with nothing but these."""
import json
import os
import shlex
import sys
import sysconfig

from machine import Machine
from procs import eventually

REPO = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

#: Where Salt's packages have their Python, and where saltcellar finds it without configuration.
SALT = "/opt/saltstack/salt"
#: One worker, because each costs nearly a second of processor time at every start of a master.
MASTER = {
    "interface": "127.0.0.1", "auto_accept": True, "worker_threads": 1, "timeout": 15, "gather_job_timeout": 5,
    "enable_fqdns_grains": False, "enable_gpu_grains": False, "user": "root",
}
MINION = {
    "master": "127.0.0.1", "id": "web1", "random_startup_delay": 0, "mine_enabled": False, "acceptance_wait_time": 2,
    "enable_fqdns_grains": False, "enable_gpu_grains": False,
}
#: Salt's packages create this user.
ADD_USER = "id salt >/dev/null 2>&1 || useradd --system --home-dir /var/cache/salt --shell /usr/sbin/nologin salt"
UNIT = """[Service]
Environment=PYTHONWARNINGS=ignore
ExecStart={salt}/bin/python3 {salt}/bin/salt-{role}
KillMode=mixed
TimeoutStopSec=10
"""


def is_connected(host):
    """Whether the minion is connected to the master, which costs nothing: each of Salt's commands takes a second of processor time."""
    return bool(host.sh("ss -Htn state established sport = 4505").stdout)


def publishes(host):
    """Whether the master publishes a job, and the minion answers."""
    done = host.sh(f"{SALT}/bin/python3 -W ignore {SALT}/bin/salt web1 test.ping -t 5 --out=json", check=False)
    return '"web1": true' in done.stdout


def wait_for_minion(host):
    """The minion answers jobs of the running master. One that has answered since both of them started is not asked again."""
    def answers():
        running = host.sh("systemctl show -P InvocationID salt-master salt-minion").stdout
        if host.answered != running:
            host.answered = running if is_connected(host) and publishes(host) else None
        return host.answered
    eventually("the minion answers", answers)


def let_users_read_python(host):
    """Root may have built this Python with files that the user salt cannot read."""
    library = sysconfig.get_path("stdlib")
    host.sh(f"find {library} -not -perm -o+r -not -type l -exec chmod a+rX {{}} +; dir={library};"
            "while [ $dir != / ]; do chmod a+x $dir; dir=$(dirname $dir); done")


class Salted(Machine):
    """A host before saltcellar: `packages` is a directory of packages, Salt has no extension, and its files can be changed.

    `prefixes` are environments of Salt's releases: the first is installed.
    """

    program = "saltcellar"

    def __init__(self, packages, prefixes=(sys.prefix,)):
        super().__init__({"/src": REPO, "/packages": packages, **{f"{SALT}.{number}": prefix for number, prefix in enumerate(prefixes)}})
        self.changes = 0
        try:
            self.sh(f"mkdir -p {SALT}")
            self.install_salt(0)
            self.sh("""
                # Images of containers leave out manual pages and documents. An index of all manual pages takes ten seconds.
                rm -f /etc/dpkg/dpkg.cfg.d/* /var/lib/man-db/auto-update
            """)
        except BaseException:
            self.stop()
            raise

    def install_salt(self, number):
        """Replaces Salt by the release in that prefix, as a package does: what `salt-pip` put below `extras-` stays."""
        layers = f"/run/salt-{self.changes}"
        self.changes += 1
        self.sh(f"""
            mkdir -p {layers}/upper {layers}/work
            if mountpoint -q {SALT}; then
                mkdir {layers}/kept
                find {SALT} -maxdepth 1 -name 'extras-*' -exec cp -r {{}} {layers}/kept ';'
                umount {SALT}
                cp -r {layers}/kept/. {layers}/upper
            fi
            mount -t overlay overlay -o lowerdir={SALT}.{number},upperdir={layers}/upper,workdir={layers}/work {SALT}
            rm -rf {SALT}/lib/python*/site-packages/saltext*
        """)

    def salt_release(self):
        return self.sh(f"{SALT}/bin/python3 -c 'import salt.version; print(salt.version.__version__)'").stdout.strip()

    def configure_salt(self, minion=None, **master):
        """Makes the units of master and minion, with these options beside the default ones."""
        for role, conf in (("master", {**MASTER, **master}), ("minion", {**MINION, **(minion or {})})):
            self.write(f"/etc/salt/{role}", json.dumps(conf))
            self.write(f"/etc/systemd/system/salt-{role}.service", UNIT.format(salt=SALT, role=role))
        self.sh("systemctl daemon-reload")

    def start_salt(self, **master):
        """Starts master and minion, with these options of the master beside the default ones, and waits until they are connected."""
        self.configure_salt(**master)
        self.sh("systemctl start --no-block salt-master salt-minion")
        eventually("the minion is connected", lambda: is_connected(self))

    def findings(self, check):
        """The findings of doctor about one thing: results and messages."""
        found = json.loads(self.cli("doctor", "--output", "json", check=False).stdout)
        return [(each["result"], each["message"]) for each in found["checks"] if each["check"] == check]

    def salt(self, program, *args, check=True):
        """The response of `salt`, `salt-run` or `salt-call`."""
        done = self.sh(f"{SALT}/bin/python3 -W ignore {SALT}/bin/{program} {shlex.join(args)} --out=json --out-indent=-1", check=check)
        return json.loads(done.stdout)

    def job(self, *call):
        """Runs a function on the minion, once it has found a restarted master; the job id."""
        wait_for_minion(self)
        done = self.sh(f"{SALT}/bin/python3 -W ignore {SALT}/bin/salt web1 {shlex.join(call)} --show-jid")
        assert "web1:" in done.stdout and "did not return" not in done.stdout, done
        return next(line.split()[-1] for line in done.stdout.splitlines() if line.startswith("jid:"))

    def cli(self, *args, check=True):
        return self.sh(shlex.join([self.program, *args]), check=check)

    def jids(self):
        """The stored jobs."""
        return {job["jid"] for job in json.loads(self.cli("jobs", "list", "--limit", "1000", "--output", "json").stdout)["jobs"]}

    def show(self, what, unit="saltcellar.service"):
        return self.sh(f"systemctl show -P {what} {unit}").stdout.strip()
