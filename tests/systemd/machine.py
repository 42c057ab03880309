"""A host with a real systemd, in a container over this host's own file system. Nothing outside is changed.

systemd-nspawn refuses `/` as its root, so the tree is an overlay whose upper layer is in memory, in a mount namespace of its own. It
survives a reboot of the machine. `--register=no --keep-unit` and the empty /run replace the system bus, which a container or a
build host may lack. The host's only network is its own `lo`. Its default target starts nothing but what the tests add to it.

`--keep-unit` also leaves the host in the control group of its caller, where units of two hosts have the same groups: the systemd
of one removes the empty group of a unit that the other one is starting (status=219/CGROUP). Therefore each host has groups of its own.
"""
import errno
import os
import shutil
import signal
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "lab"))
from procs import WAIT_MAX, eventually  # noqa: E402

#: The commands that a test host needs, with Debian's packages.
NEEDS = {"systemd-nspawn": "systemd-container", "unshare": "util-linux", "nsenter": "util-linux", "setpriv": "util-linux",
         "ip": "iproute2", "useradd": "passwd", "gpg": "gpg", "gpg-agent": "gpg-agent"}

BOOT = """
mount -t tmpfs tmpfs /run
mount -t tmpfs -o mode=755 tmpfs "$1"
mkdir "$1/root" "$1/upper" "$1/work"
mount -t overlay overlay -o "lowerdir=/,upperdir=$1/upper,workdir=$1/work" "$1/root"
cd "$1/root"
rm -rf etc/salt etc/saltcellar var/cache/salt var/log/salt var/log/journal var/lib/saltcellar srv
mkdir -p etc/salt etc/saltcellar srv etc/systemd/journald.conf.d
printf '[Journal]\\nStorage=persistent\\nRateLimitIntervalSec=0\\n' > etc/systemd/journald.conf.d/tests.conf
printf '[Unit]\\nRequires=basic.target\\nAfter=basic.target\\n' > etc/systemd/system/tests.target
cd /
shift
while [ "$1" != -- ]; do
  echo $$ > "$1/cgroup.procs"
  shift
done
shift
code=133
# The code of a reboot.
while [ $code = 133 ]; do
  code=0
  systemd-nspawn --quiet --register=no --keep-unit --private-network --console=read-only --boot "$@" systemd.unit=tests.target || code=$?
done
exit $code
"""


def obstacle():
    """Why there can be no host here; None if there can."""
    if os.geteuid() != 0:
        return "only root can start a container"
    missing = sorted({package for command, package in NEEDS.items() if not shutil.which(command)})
    return f"not installed: {' '.join(missing)}" if missing else None


def control_groups(name):
    """Groups of that name below those of this process, in each hierarchy that a host's systemd uses."""
    with open("/proc/self/cgroup") as lines:
        for _, controllers, path in (line.rstrip("\n").split(":", 2) for line in lines):
            mount = {"": "/sys/fs/cgroup/unified" if os.path.isdir("/sys/fs/cgroup/unified") else "/sys/fs/cgroup",
                     "name=systemd": "/sys/fs/cgroup/systemd"}.get(controllers)
            if mount and os.path.isdir(mount + path):
                yield os.path.join(mount + path, name)


class Machine:
    """`binds` are files and directories of this host by their paths in the new one, where they are read-only."""

    def __init__(self, binds):
        self.dir = tempfile.mkdtemp(prefix="sc-machine-")
        self.log = f"{self.dir}.log"
        self.groups = list(control_groups(os.path.basename(self.dir)))
        for group in self.groups:
            os.mkdir(group)
        flags = [f"--directory={self.dir}/root", f"--machine=sc{os.getpid()}"]
        flags += [f"--bind-ro={source}:{path}" for path, source in binds.items()]
        with open(self.log, "w") as log:
            self.nspawn = subprocess.Popen(
                ["unshare", "-m", "--propagation", "private", "sh", "-euc", BOOT, "sh", self.dir, *self.groups, "--", *flags],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True)
        self.leader = None
        #: The run of master and minion in which the minion answered last.
        self.answered = None
        try:
            self._wait_for_boot()
        except BaseException:
            self.stop()
            raise

    def _wait_for_boot(self):
        before = self.leader

        def booted():
            assert self.nspawn.poll() is None, f"the container ended: {open(self.log, errors='replace').read()[-3000:]}"
            self.leader = self._first_process()
            if self.leader in (None, before):
                self.leader = None
                return False
            state = self.sh("systemctl is-system-running", check=False).stdout.strip()
            return state in ("running", "degraded")
        eventually("the host has booted", booted)

    def _first_process(self):
        """The host's systemd, a child of systemd-nspawn; None before it runs."""
        pid = self.nspawn.pid
        for _ in range(2):
            try:
                with open(f"/proc/{pid}/task/{pid}/children") as children:
                    pid = children.read().split()[0]
                with open(f"/proc/{pid}/comm") as comm:
                    if comm.read().strip() == "systemd":
                        return int(pid)
            except (FileNotFoundError, IndexError):
                return None
        return None

    def sh(self, command, check=True, stdin="", timeout=120):
        """Runs a shell command as root in the host, outside of all units."""
        done = subprocess.run(
            ["nsenter", "-t", str(self.leader), "-m", "-u", "-i", "-n", "-p", "-C", "-r", "-w", "env", "-i", "LC_ALL=C.UTF-8",
             "HOME=/root", "PATH=/usr/sbin:/usr/bin:/sbin:/bin", "bash", "-c", command],
            input=stdin, capture_output=True, text=True, timeout=timeout)
        assert not check or done.returncode == 0, f"{command} ended with {done.returncode}:\n{done.stdout}\n{done.stderr}"
        return done

    def write(self, path, text):
        self.sh(f"mkdir -p $(dirname {path}); cat > {path}", stdin=text)

    def reboot(self):
        self.sh("systemctl reboot", check=False)
        self._wait_for_boot()

    def stop(self):
        # The end of its first process ends all others of the machine.
        leader = self._first_process()
        if leader is not None:
            os.kill(leader, signal.SIGKILL)
        try:
            self.nspawn.wait(10)
        except subprocess.TimeoutExpired:
            os.killpg(self.nspawn.pid, signal.SIGKILL)
            self.nspawn.wait(WAIT_MAX)
        for group in self.groups:
            eventually(f"{group} is removed", lambda: removed(group))
        os.rmdir(self.dir)
        os.remove(self.log)


def removed(group):
    """Removes a control group and those below it, unless a process of the host has not quite ended."""
    for path, _, _ in os.walk(group, topdown=False):
        try:
            os.rmdir(path)
        except OSError as exc:
            if exc.errno != errno.EBUSY:
                raise
            return False
    return True
