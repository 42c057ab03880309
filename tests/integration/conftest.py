"""One daemon, one real master and two minions for the whole session.

Needs $SALTCELLAR_BIN and Salt, pytest and the extension in this Python; `make test-integration` provides
all of it. $SALT_RELEASE selects the release.
"""
import contextlib
import glob
import json
import os
import re
import shutil
import signal
import socket
import struct
import subprocess
import sys
import time

import msgpack
import pytest

HERE = os.path.dirname(os.path.abspath(__file__))
REPO = os.path.dirname(os.path.dirname(HERE))
sys.path.insert(0, os.path.join(REPO, "tests", "lab"))

import commands  # noqa: E402
import procs  # noqa: E402
import rawbus  # noqa: E402
import rawreq  # noqa: E402
import salt_lab  # noqa: E402
from procs import WAIT_MAX, eventually  # noqa: E402

# The caller's environment would override the lab's configuration in the returners that tests load into this process.
for _name in ("SALTCELLAR_SOCKET", "SALTCELLAR_STATE_DIR"):
    os.environ.pop(_name, None)

FILES = {
    "works.sls": "it works:\n  test.succeed_with_changes: []\n",
    "fails.sls": "it fails:\n  test.fail_without_changes: []\n",
}


#: Timeout of the extension in these labs, long enough for a slow daemon.
TIMEOUT = 20

#: Reactions of both kinds of reactor tests: alone, and beside Salt's reactor.
REACTIONS = {
    "orch.sls": """
orchestrate:
  runner.state.orchestrate:
    - args:
      - mods: orch.works
      - pillar:
          word: {{ data['word'] | json }}
""",
    "wheel.sls": """
fingers:
  wheel.key.finger:
    - args:
      - match: {{ data['id'] }}
""",
}


class Daemon:
    """`saltcellar serve`, which a test may kill and restart on the same files."""

    def __init__(self, root, bus):
        self.root, self.bus, self.process, self.flags = root, bus, None, []
        self.bin = os.environ["SALTCELLAR_BIN"]
        self.socket, self.log = f"{root}/sc.sock", f"{root}/daemon.log"
        self.flags = []  # more flags for `serve`
        self.prefix = []  # a wrapper command, such as one that changes the user

    def start(self):
        cmd = [*self.prefix, self.bin, "serve", "--state-dir", f"{self.root}/state", "--socket", self.socket, "--bus", self.bus,
               *self.flags]
        env = {k: v for k, v in os.environ.items() if not k.startswith("SALTCELLAR_")}
        with open(self.log, "ab") as log:
            procs.spawn(cmd, self._note, stdout=log, stderr=log, stdin=subprocess.DEVNULL, env=env)
        eventually("the daemon answers", self._up)

    def wait_for_bus(self):
        """A connected daemon reads everything published from then on."""
        eventually("the daemon reads the bus", lambda: any(b["connected"] for b in self.status()["bus"]))

    def _note(self, p):
        self.process = p

    def _up(self):
        assert self.process.poll() is None, f"the daemon ended: {open(self.log).read()[-3000:]}"
        return self.cli("status", "--output", "json", check=False).returncode == 0

    def kill(self):
        self.process.kill()
        self.process.wait()

    def stop(self):
        """Stops the daemon with SIGTERM; returns its exit code."""
        self.process.terminate()
        try:
            return self.process.wait(WAIT_MAX)
        except subprocess.TimeoutExpired:
            self.kill()
            pytest.fail(f"the daemon did not stop within {WAIT_MAX} s of SIGTERM")

    @property
    def running(self):
        return self.process is not None and self.process.poll() is None

    # queries
    def cli(self, *args, check=True):
        p = procs.run([*self.prefix, self.bin, *args, "--socket", self.socket], stdin=subprocess.DEVNULL, timeout=WAIT_MAX,
                      stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        assert not check or p.returncode == 0, f"{p.args} ended with {p.returncode}: {p.stderr}"
        return p

    def json(self, *args):
        return json.loads(self.cli(*args, "--output", "json").stdout)

    def status(self):
        # Ends with 1 while something is wrong, such as a process that was just killed.
        return json.loads(self.cli("status", "--output", "json", check=False).stdout)

    def jobs(self, *args):
        return self.json("jobs", "list", "--limit", "1000", *args)["jobs"]

    def job(self, jid):
        """The job, or None."""
        p = self.cli("jobs", "show", jid, "--output", "json", check=False)
        return json.loads(p.stdout) if p.returncode == 0 else None

    def returned(self, jid):
        job = self.job(jid)
        return sorted(r["minion"] for r in job["returns"]) if job else []

    def events(self, *args):
        """All matching archived events, oldest first."""
        lines = self.cli("events", "list", "--no-limit", *args, "--output", "jsonl").stdout.splitlines()
        return [json.loads(line) for line in lines][::-1]

    def connect(self):
        return Wire(self.socket)


class Wire:
    """The local socket without the extension and its spool. An acknowledged call is on disk."""

    def __init__(self, path):
        self.s = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.s.settimeout(WAIT_MAX)
        self.s.connect(path)
        self.s.sendall(b"SCWIRE" + struct.pack(">H", 1))
        self.n = 0

    def call(self, name, **args):
        self.n += 1
        frame = msgpack.packb([self.n, name, args], use_bin_type=True)
        self.s.sendall(struct.pack(">I", len(frame)) + frame)
        n, ok, value = msgpack.unpackb(self._frame(), raw=False, strict_map_key=False)
        assert n == self.n
        assert ok, value
        return value

    def _frame(self):
        return self._exactly(struct.unpack(">I", self._exactly(4))[0])

    def _exactly(self, n):
        got = b""
        while len(got) < n:
            data = self.s.recv(n - len(got))
            if not data:
                raise ConnectionError("the daemon closed the connection")
            got += data
        return got

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.s.close()


class Lab:
    """Salt's commands against the lab's master."""

    def __init__(self, lab):
        self.lab, self.minions = lab, lab["minions"]
        self.env = salt_lab.full_env(lab)
        self.sock_dir = f"{lab['dir']}/master/run"
        self.key = salt_lab.env_of(lab)["SALT_LAB_ROOT_KEY"]
        self.commands = None

    def command(self, *cmd, timeout=WAIT_MAX):
        if self.commands is None:
            self.commands = commands.Commands(salt_lab.salt_command(self.lab, cmd[0])[0], self.env)
        return self.commands.run(*cmd, timeout=timeout)

    def close(self):
        if self.commands is not None:
            self.commands.close()

    def answers(self, *cmd, timeout=WAIT_MAX):
        p = self.command(*cmd, timeout=timeout)
        try:
            return salt_lab.documents(p.stdout)
        except ValueError:
            pytest.fail(f"{cmd} gave no JSON (exit code {p.returncode}):\n{p.stdout}\n{p.stderr}")

    def salt(self, *args, timeout=WAIT_MAX):
        """`salt`: {minion: its return}. (`--static` would create a batch and change the target.)"""
        return {m: r for one in self.answers("salt", "--out=json", *args, timeout=timeout) for m, r in one.items()}

    def detached(self, *args):
        """`salt --async`: the jid."""
        p = self.command("salt", "--async", *args)
        found = re.search(r"job ID: (\d+)", p.stdout)
        assert found, (p.stdout, p.stderr)
        return found[1]

    def spooled(self, jid):
        """Number of a job's returns that `event_return` has left in the master's spool."""
        found = 0
        for path in glob.glob(f"{self.lab['dir']}/master/cache/saltcellar/*"):
            with open(path, "rb") as spool:
                found += spool.read().count(f"salt/job/{jid}/ret/".encode())
        return found

    def run(self, *args):
        """`salt-run`: the result, which follows the progress output."""
        return self.answers("salt-run", "--out=json", *args)[-1]

    def call(self, minion, *args):
        """`salt-call` on that minion: the function's return."""
        return self.answers("salt-call", "-c", f"{self.lab['dir']}/conf-{minion}", "--out=json", *args)[-1]["local"]

    def publish(self, tgt, fun, *args, jid=""):
        """Publishes through the request port, which is faster than Salt's command line. Returns the jid."""
        load = {"cmd": "publish", "tgt": tgt, "fun": fun, "arg": list(args), "tgt_type": "glob", "ret": "",
                "jid": jid, "user": self._user(), "key": open(self.key).read(), "kwargs": {}}
        return rawreq.ask(self.lab["ret_port"], load, address=self.lab["interface"])["load"]["jid"]

    def wheel(self, fun, *args):
        load = {"cmd": "wheel", "fun": fun, "arg": list(args), "kwarg": {}, "user": self._user(),
                "key": open(self.key).read()}
        return rawreq.ask(self.lab["ret_port"], load, address=self.lab["interface"])["data"]

    def _user(self):
        return re.match(r"\.(.*)_key$", os.path.basename(self.key))[1]

    def fire(self, tag, data):
        """Fires an event onto the bus, with the framing of this release."""
        if not hasattr(self, "framing"):
            self.framing = rawbus.probe(self.sock_dir)["pull"]
        rawbus.fire_as(self.sock_dir, tag, {"_stamp": "2026-01-01T00:00:00.000001", **data}, self.framing).close()


class Reactor(Daemon):
    """A daemon with a reactor. `others` are the other parts of its configuration."""

    def __init__(self, root, bus, others=None, **reactor):
        os.makedirs(root)
        super().__init__(root, bus)
        self.settings, self.others = {}, others or {}
        self.configure(**reactor)
        self.flags = ["--config", f"{root}/c.yaml"]

    def configure(self, **reactor):
        """Adds to its configuration; the daemon reloads the changed file."""
        self.settings |= reactor
        salt_lab.write(f"{self.root}/c.yaml", json.dumps({"reactor": self.settings, **self.others}))

    def log_count(self, words):
        """Number of log lines that contain these words."""
        with open(self.log, errors="replace") as log:
            return log.read().count(words)

    def wait_for_log(self, words, before=0, seconds=WAIT_MAX):
        """Waits until more than `before` log lines contain these words."""
        eventually(f"the daemon to log: {words}", lambda: self.log_count(words) > before, seconds)

    def doctor(self, check):
        """Findings of one check of `doctor`."""
        found = json.loads(self.cli("doctor", "--no-master", *self.flags, "--output", "json", check=False).stdout)
        return [one for one in found["checks"] if one["check"] == check]

    def history(self, tag):
        return self.json("reactor", "history", "--tag", tag, "--limit", "100")["reactions"]

    def reaction(self, tag, calls=1, seconds=WAIT_MAX):
        """The latest record about an event with that tag and so many calls."""
        def found():
            return [row for row in self.history(tag) if len(row["reaction"]["calls"]) == calls]
        return eventually(f"a reaction to {tag} with {calls} calls", found, seconds)[0]

    def result(self, row, what):
        def probe():
            result = self.json("reactor", "show", str(row["seq"]))["results"][0]
            return result if result and result.get(what) else None
        return eventually(f"{what} of {row['tag']}", probe)


class Live(Lab):
    """A lab whose minions are started individually."""

    def configure(self, name, **conf):
        # A minion with a rejected key would wait for 10 to 20 s, and exit.
        salt_lab.write_minion(self.lab, name, {
            "loop_interval": 1, "acceptance_wait_time": 1, "rejected_retry": True, **conf})

    def minion(self, name, **conf):
        self.configure(name, **conf)
        self.start(name)

    def start(self, name):
        salt_lab.spawn(self.lab, name, "salt-minion", "-c", f"{self.lab['dir']}/conf-{name}", "--disable-keepalive")

    def master(self):
        salt_lab.spawn(self.lab, "master", "salt-master", "-c", f"{self.lab['dir']}/conf")

    def kill(self, name):
        pgid = self.lab["procs"][name]
        procs.signal_each([pgid], signal.SIGKILL, os.killpg)
        assert procs.poll(lambda: not procs.alive(pgid), WAIT_MAX)

    def runner(self, fun, *args):
        """A runner through Salt's client, without the startup time of `salt-run`."""
        import salt.config
        import salt.runner
        if not hasattr(self, "client"):
            self.client = salt.runner.RunnerClient(salt.config.master_config(f"{self.lab['dir']}/conf/master"))
        return self.client.cmd(fun, list(args), print_event=False)

    def close(self):
        super().close()
        if hasattr(getattr(self, "client", None), "destroy"):  # required by 3008
            self.client.destroy()

    def keys(self):
        """State of each minion's key."""
        pki = f"{self.lab['dir']}/master/pki"
        where = {"accepted": "minions", "pending": "minions_pre", "rejected": "minions_rejected", "denied": "minions_denied"}
        return {state: sorted(os.listdir(f"{pki}/{name}")) if os.path.isdir(f"{pki}/{name}") else []
                for state, name in where.items()}

    def is_key(self, name, state):
        return eventually(f"{name} to be {state}", lambda: name in self.keys()[state])


@contextlib.contextmanager
def directory():
    """A new directory for labs and daemons."""
    path = salt_lab.new_dir("sc-it-")
    try:
        yield path
    finally:
        if os.environ.get("KEEP"):
            print(f"\nfiles kept in {path}", file=sys.stderr)
        else:
            shutil.rmtree(path, ignore_errors=True)


#: One worker, because each costs nearly a second of processor time at every start of a master. The session's master has more.
FEW = {"worker_threads": 1}
#: Every command that loads grains would start twenty programs.
CACHED = {"grains_cache": True}


@contextlib.contextmanager
def started(kind, path, **more):
    """A lab in that directory, killed at the end, because an orderly stop computes for a second; `more` is passed to `salt_lab.start`."""
    with started_together(kind, [{"directory": path, **more}]) as [lab]:
        if lab.minions:
            eventually("the minions answer", lambda: salt_lab.responds(lab.lab, lab.command))
        yield lab


@contextlib.contextmanager
def started_together(kind, several, **conditions):
    """The same for labs whose masters need each other. Their minions are connected, and may not answer yet."""
    labs = [kind(lab) for lab in salt_lab.start_together([salt_lab.settings(ping=False, **one) for one in several], **conditions)]
    try:
        yield labs
    finally:
        for lab in labs:
            lab.close()
        for lab in labs:
            procs.signal_each(lab.lab["procs"].values(), signal.SIGKILL, os.killpg)
        for lab in labs:
            salt_lab.stop(lab.lab, keep=True)


def live_lab(path, master_conf=None, **more):
    """A lab whose minions are started individually."""
    return started(Live, path, master_conf={**FEW, **(master_conf or {})}, **more)


#: A rule of every daemon of a cluster.
REACT = """
react:
  local.test.echo:
    - tgt: {{ data['id'] }}
    - arg: [{{ tag }}]
"""


class Site:
    """One of several masters, with its lab and the daemon beside it."""

    def __init__(self, name, lab, daemon):
        self.name, self.lab, self.daemon = name, lab, daemon

    def lookup(self, jid):
        """`jobs.lookup_jid` on this master: {minion: its return}."""
        return self.lab.run("jobs.lookup_jid", jid)

    def shown(self, jid):
        """`jobs show`, as text."""
        return self.daemon.cli("jobs", "show", jid, check=False).stdout


@contextlib.contextmanager
def several_masters(path, addresses, minions=1, master_conf=None, ports=None, reactor=None, daemon_conf=None, **conditions):
    """Masters on addresses of the loopback network, each with a daemon and minions: `{"a": Site, "b": Site, ...}`.

    All have the same ports. The minions of a are a1, a2 and so on. `master_conf` is a function of the number and the directory of a
    site, for its master's options, `daemon_conf` one for its daemon's. Each daemon's reactor has the same settings. `conditions` are those of
    `salt_lab.start_together`.
    """
    names = "abc"[:len(addresses)]
    ports = ports or salt_lab.free_ports(2, addresses)
    settings, daemons = [], {}
    for number, (name, address) in enumerate(zip(names, addresses)):
        root = f"{path}/{name}"
        one = daemons[name] = Reactor(f"{root}/sc", f"{root}/master/run", daemon_conf(number, root) if daemon_conf else None,
                                      master=f"{root}/conf/master", **{"rules": [], **(reactor or {})})
        settings.append({
            "directory": root, "prefix": name, "minions": minions, "ports": ports, "minion_conf": CACHED,
            "master_conf": {**FEW, **CACHED, "interface": address, "master_job_cache": "saltcellar", "saltcellar.socket": one.socket,
                            "saltcellar.timeout": TIMEOUT, **(master_conf(number, root) if master_conf else {})},
        })
    with contextlib.ExitStack() as stack:
        labs = stack.enter_context(started_together(Live, settings, **conditions))
        # A daemon knows its master's id if the master's files exist when it starts.
        for one in daemons.values():
            stack.enter_context(running(one))
            one.wait_for_bus()
        yield {name: Site(name, lab, daemons[name]) for name, lab in zip(names, labs)}


@contextlib.contextmanager
def clustered(path, **more):
    """A cluster of masters with a minion each: three of 3008, two of 3007."""
    addresses = ["127.0.0.1", "127.0.0.2", "127.0.0.3"][:3 if os.environ["SALT_RELEASE"].startswith("3008.") else 2]
    *ports, pool = salt_lab.free_ports(3, addresses)

    def of_master(number, root):
        # A master of 3008 that joins replaces the shared keys while its own processes read them, or make new ones. One that has joined
        # before does not. The first master founds the cluster, with all others as members.
        if number:
            salt_lab.write(f"{root}/master/cache/.cluster_joined.{addresses[number]}", "")
        # The address is also the name: peers are found by it.
        return {"id": addresses[number], "cluster_id": "together", "cluster_pki_dir": f"{path}/pki", "cluster_pool_port": pool,
                "cluster_peers": [one for one in addresses if one != addresses[number]]}

    def has_keys(_lab):
        return all(os.path.exists(f"{path}/pki/{name}") for name in ("cluster.pub", ".aes"))

    def is_ready(lab):
        # 3008 has an election first.
        sign = "cache/health/ready" if lab["release"].startswith("3008.") else "run/master_event_pull.ipc"
        return os.path.exists(f"{lab['dir']}/master/{sign}")

    os.makedirs(f"{path}/pki")
    with several_masters(path, addresses, master_conf=of_master, ports=ports, has_begun=has_keys, is_ready=is_ready, **more) as sites:
        every = sorted(minion for site in sites.values() for minion in site.lab.minions)
        for site in sites.values():
            # A master publishes to its peers' minions as soon as the cluster has accepted it.
            eventually(f"the minions to answer to master {site.name}", lambda lab=site.lab: salt_lab.responds(lab.lab, lab.command, every))
        yield sites


@contextlib.contextmanager
def running(daemon):
    """The daemon, stopped cleanly at the end."""
    try:
        daemon.start()
        yield daemon
        assert not daemon.running or daemon.stop() == 0
    finally:
        if daemon.running:
            daemon.kill()


@pytest.fixture(scope="session")
def root():
    with directory() as path:
        yield path


@pytest.fixture(scope="module")
def place():
    """A directory for the lab and the daemon of one file."""
    with directory() as path:
        yield path


@pytest.fixture(scope="session")
def daemon(root):
    procs.install()
    d = Daemon(root, bus=f"{root}/lab/master/run")
    try:
        d.start()
        yield d
    finally:
        if d.running:
            d.stop()


@pytest.fixture(scope="session")
def lab(daemon, root):
    """Depends on the daemon, so that Salt is stopped first."""
    with started(
        Lab, f"{root}/lab", minions=2, module_dirs=[os.path.join(REPO, "tests", "lab", "modules")],
        master_conf={**CACHED, "master_job_cache": "saltcellar", "event_return": "saltcellar",
                     "saltcellar.socket": daemon.socket, "saltcellar.timeout": TIMEOUT},
        minion_conf={**CACHED, "saltcellar.socket": daemon.socket, "saltcellar.timeout": TIMEOUT},
    ) as lab:
        for name, text in FILES.items():
            salt_lab.write(f"{root}/lab/srv/salt/{name}", text)
        daemon.wait_for_bus()
        yield lab


@pytest.fixture(autouse=True)
def daemon_is_up(daemon):
    """A test that stopped the daemon and then failed must not affect the others."""
    if not daemon.running:
        daemon.start()


@pytest.fixture(scope="session")
def returners(lab):
    """Returner functions as loaded by Salt for the master's own processes."""
    import salt.config
    import salt.loader
    opts = salt.config.client_config(f"{lab.lab['dir']}/conf/master")
    return salt.loader.returners(opts, functions={})


@contextlib.contextmanager
def same_keys(path, **more):
    """Two masters with one key pair. `hot` is a minion of both, `moves` one of a, or of b while a is away."""
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import rsa
    addresses = ["127.0.0.1", "127.0.0.2"]
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    private = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.TraditionalOpenSSL, serialization.NoEncryption())
    public = key.public_key().public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)

    def of_master(number, root):
        for name, pem in (("master.pem", private), ("master.pub", public)):
            salt_lab.write(f"{root}/master/pki/{name}", pem.decode())
            os.chmod(f"{root}/master/pki/{name}", 0o400)
        return {"id": f"master-{'ab'[number]}"}

    with several_masters(path, addresses, minions=0, master_conf=of_master, **more) as sites:
        first = sites["a"].lab
        first.minion("hot", master=addresses, **CACHED)
        first.minion("moves", master=addresses, master_type="failover", master_alive_interval=1, **CACHED)
        for name, minions in {"a": ["hot", "moves"], "b": ["hot"]}.items():
            lab = sites[name].lab
            eventually(f"the minions to answer to master {name}", lambda lab=lab, minions=minions: salt_lab.responds(lab.lab, lab.command, minions))
        yield sites


@pytest.fixture(scope="module")
def cluster(place):
    if os.environ["SALT_RELEASE"].startswith("3006."):
        pytest.skip("Salt 3006 has no cluster of masters")
    salt_lab.write(f"{place}/react.sls", REACT)
    with clustered(f"{place}/c", reactor={"rules": [{"react/*": [f"{place}/react.sls"]}]}) as sites:
        yield sites


@pytest.fixture(scope="module")
def pair(place):
    with same_keys(f"{place}/p") as sites:
        yield sites
