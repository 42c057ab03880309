"""
The job caches that ``returners.py`` measures: requirements, start, bulk loading, and disk usage.

A cache is filled directly, with the data that its own ``save_load`` and ``returner`` would write: through them some would take
hours. Timed calls use Salt's loader only.
"""

import contextlib
import importlib.util
import json
import os
import pwd
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import salt.config
import salt.minion
import salt.payload
import salt.utils.jid

HERE = Path(__file__).resolve()
REPO = HERE.parents[2]
SRC = REPO / "salt" / "src"
TICKS_PER_S = os.sysconf("SC_CLK_TCK")
#: Timeout of a server's start and stop, in seconds.
TIMEOUT_S = 60


class Unavailable(Exception):
    """This cache cannot be measured here; the message gives the reason."""


class JobCache:
    """``local_cache``, and the base of the others."""

    name = "local_cache"
    #: Salt's name, as in ``master_job_cache``.
    returner = "local_cache"
    #: Durability at the time of the answer.
    durable = "no: written to the page cache"

    def __init__(self, base):
        self.dir = Path(base) / self.name.replace(" ", "-")
        self.minion = None
        self.opts = None

    # ---- lifecycle

    def needs(self):
        """Raises :class:`Unavailable` if the cache cannot run here."""

    def start(self):
        """Starts with an empty cache, loaded as in the master."""
        self.dir.mkdir(mode=0o755)
        self.begin()
        conf = {
            "user": pwd.getpwuid(os.geteuid()).pw_name,
            "root_dir": str(self.dir),
            "pki_dir": str(self.dir / "pki"),
            "cachedir": str(self.dir / "cache"),
            "sock_dir": str(self.dir / "run"),
            "extension_modules": str(self.dir / "extmods"),
            "log_file": str(self.dir / "log"),
            "enable_fqdns_grains": False,
            "enable_gpu_grains": False,
            # Salt's other job ids are times alone, and two processes may generate the same one.
            "unique_jid": True,
            "master_job_cache": self.returner,
            **self.conf(),
        }
        path = self.dir / "master"
        path.write_text("".join(f"{key}: {json.dumps(value)}\n" for key, value in conf.items()))
        self.opts = salt.config.master_config(str(path))
        self.opts["__role"] = "master"
        # The objects of the master's workers, created before the fork as in the master.
        self.minion = salt.minion.MasterMinion(self.opts, states=False, rend=False)
        for function in ("prep_jid", "save_load", "returner", "get_load", "get_jid", "get_jids"):
            if f"{self.returner}.{function}" not in self.minion.returners:
                raise Unavailable(f"Salt's loader has no {self.returner}.{function}")

    def begin(self):
        """Starts the server, if there is one."""

    def end(self):
        """Stops the server."""

    def stop(self):
        """Removes everything."""
        if self.minion is not None and hasattr(self.minion, "destroy"):
            self.minion.destroy()
            # 3008 considers it not destroyed unless these attributes are deleted.
            self.minion.returners = self.minion.functions = self.minion.utils = None
        self.minion = None
        self.end()
        shutil.rmtree(self.dir, ignore_errors=True)

    def conf(self):
        """Its options in the master's configuration."""
        return {}

    def function(self, name):
        """A returner function as Salt's loader passes it to the master, or None."""
        full = f"{self.returner}.{name}"
        return self.minion.returners.get(full)

    def set_keep(self, seconds):
        """``keep_jobs_seconds``, also in the loaded returner."""
        for opts in (self.opts, self.minion.opts, getattr(self.minion.returners, "opts", {})):
            opts["keep_jobs_seconds"] = seconds

    # ---- bulk loading

    def fill(self, jobs):
        """Stores ``(jid, load, [return, ...])`` of each job."""
        root = os.path.join(self.opts["cachedir"], "jobs")
        for jid, load, returns in jobs:
            at = salt.utils.jid.jid_dir(jid, root, self.opts["hash_type"])
            os.makedirs(at)
            _write(f"{at}/jid", jid.encode())
            _write(f"{at}/.load.p", salt.payload.dumps(load))
            _write(f"{at}/.minions.p", salt.payload.dumps(sorted(one["id"] for one in returns)))
            for one in returns:
                os.mkdir(f"{at}/{one['id']}")
                _write(f"{at}/{one['id']}/return.p", salt.payload.dumps(_answer(one)))

    def expire(self):
        """Called once all jobs have expired, for caches that need more than age."""

    # ---- cost

    def places(self):
        """Directories of its data."""
        return [self.dir / "cache"]

    def usage(self):
        """Bytes allocated on disk, and inodes."""
        occupied = inodes = 0
        for place in self.places():
            for base, _, files in os.walk(place):
                for name in (base, *(os.path.join(base, file) for file in files)):
                    # Files may be deleted meanwhile.
                    with contextlib.suppress(FileNotFoundError):
                        occupied += os.lstat(name).st_blocks * 512
                        inodes += 1
        return occupied, inodes

    def server_cpu_s(self):
        """Processor seconds used by the server."""
        return 0.0

    def server_memory(self):
        """Bytes of memory used by the server."""
        return 0


class SaltCache(JobCache):
    """Salt's returner on ``salt.cache``, with its default driver; only in 3008."""

    name = "salt_cache"
    returner = "salt_cache"

    def needs(self):
        if importlib.util.find_spec("salt.returners.salt_cache") is None:
            raise Unavailable("this Salt has no such returner")

    def fill(self, jobs):
        root = os.path.join(self.opts["cachedir"], "jobs")
        for bank in ("loads", "minions", "returns"):
            os.makedirs(f"{root}/{bank}", exist_ok=True)
        for jid, load, returns in jobs:
            _write(f"{root}/loads/{jid}.p", salt.payload.dumps(load))
            _write(
                f"{root}/minions/{jid}.p", salt.payload.dumps(sorted(one["id"] for one in returns))
            )
            os.mkdir(f"{root}/returns/{jid}")
            for one in returns:
                _write(f"{root}/returns/{jid}/{one['id']}.p", salt.payload.dumps(_answer(one)))


class Served(JobCache):
    """A cache with a server."""

    def __init__(self, base):
        super().__init__(base)
        self.process = None

    def spawn(self, *command, **more):
        """Starts the server with its output in a file."""
        with open(self.dir / "server.log", "ab") as log:
            self.process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, **more
            )

    def wait_for(self, path):
        """Waits for a listener on that socket."""
        until = time.monotonic() + TIMEOUT_S
        while time.monotonic() < until:
            with socket.socket(socket.AF_UNIX) as probe:
                if probe.connect_ex(str(path)) == 0:
                    return
            if self.process.poll() is not None:
                break
            time.sleep(0.02)
        words = (self.dir / "server.log").read_text(errors="replace")[-500:]
        raise Unavailable(f"its server did not start: {words}")

    def end(self):
        if self.process is None:
            return
        # postgres: disconnect clients without waiting. Other servers treat it as SIGTERM.
        self.process.send_signal(signal.SIGINT)
        try:
            self.process.wait(TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.process = None

    def pids(self):
        """The server's processes."""
        return [self.process.pid]

    def server_cpu_s(self):
        # A forking server's own count includes finished children.
        own = _stat(self.process.pid)
        ended = sum(int(own[field]) for field in (13, 14)) if own else 0
        alive = [_stat(pid) for pid in self.pids()]
        return (ended + sum(int(one[11]) + int(one[12]) for one in alive if one)) / TICKS_PER_S

    def server_memory(self):
        # Proportional, for processes that share memory.
        held = 0
        for pid in self.pids():
            with contextlib.suppress(OSError):
                text = Path(f"/proc/{pid}/smaps_rollup").read_text()
                held += int(text.split("\nPss:", 1)[1].split()[0]) * 1024
        return held


class Pgjsonb(Served):
    """PostgreSQL of Debian, over a unix socket."""

    name = "pgjsonb"
    returner = "pgjsonb"
    durable = "yes: synchronous_commit, its default"

    def needs(self):
        if importlib.util.find_spec("psycopg2") is None:
            raise Unavailable(
                "no psycopg2 (pip install --target DIR psycopg2-binary, PYTHONPATH=DIR)"
            )
        self.program("postgres")

    def program(self, name):
        """The newest installed program of PostgreSQL with that name."""
        where = sorted(
            Path("/usr/lib/postgresql").glob(f"*/bin/{name}"),
            key=lambda path: int(path.parts[4].split(".")[0]),
        )
        found = str(where[-1]) if where else shutil.which(name)
        if not found:
            raise Unavailable("PostgreSQL is not installed (apt-get install postgresql)")
        return found

    def begin(self):
        data, as_user = self.dir / "data", {}
        if os.geteuid() == 0:
            # It does not run as root.
            as_user = {"user": "postgres", "group": "postgres", "extra_groups": [], "cwd": "/"}
            with contextlib.suppress(KeyError):
                shutil.chown(self.dir, "postgres", "postgres")
            if self.dir.owner() != "postgres":
                raise Unavailable("root cannot run PostgreSQL, and there is no user postgres")
        initdb = [
            self.program("initdb"),
            "-D",
            str(data),
            "-U",
            "salt",
            "-A",
            "trust",
            "-E",
            "UTF8",
            "--no-instructions",
        ]
        with open(self.dir / "server.log", "ab") as log:
            subprocess.run(
                initdb, stdin=subprocess.DEVNULL, stdout=log, stderr=log, check=True, **as_user
            )
        self.spawn(
            self.program("postgres"),
            "-D",
            str(data),
            "-k",
            str(self.dir),
            "-c",
            "listen_addresses=",
            **as_user,
        )
        self.wait_for(self.dir / ".s.PGSQL.5432")
        with self.connect("postgres") as (_, cursor):
            cursor.execute("CREATE DATABASE salt")
        with self.connect() as (_, cursor):
            # The schema of the module's documentation.
            cursor.execute(self.schema())

    def schema(self):
        """The statements from the returner's docstring."""
        import salt.returners.pgjsonb as module

        text = module.__doc__.split(".. code-block:: sql", 1)[1].split(
            "Required python modules", 1
        )[0]
        return text[text.index("-- Table structure for table `jids`") :].replace(
            "--\n    -- Table", "-- Table"
        )

    @contextlib.contextmanager
    def connect(self, database="salt"):
        """A cursor that commits each statement, once the server answers."""
        import psycopg2

        until = time.monotonic() + TIMEOUT_S
        while True:
            try:
                connection = psycopg2.connect(host=str(self.dir), user="salt", dbname=database)
                break
            except psycopg2.OperationalError:
                if time.monotonic() > until:
                    raise
                time.sleep(0.05)
        try:
            connection.autocommit = True
            with connection.cursor() as cursor:
                yield connection, cursor
        finally:
            connection.close()

    def conf(self):
        key = "returner.pgjsonb"
        return {
            f"{key}.host": str(self.dir),
            f"{key}.user": "salt",
            f"{key}.pass": "",
            f"{key}.db": "salt",
        }

    def fill(self, jobs):
        import io

        def copy(into, rows):
            text = "".join("\t".join(row).replace("\\", "\\\\") + "\n" for row in rows)
            with self.connect() as (_, cursor):
                cursor.copy_expert(f"COPY {into} FROM STDIN", io.StringIO(text))

        for some in _chunks(jobs, 20_000):
            copy("jids (jid, load)", ((jid, json.dumps(load)) for jid, load, _ in some))
            copy(
                "salt_returns (fun, jid, return, id, success, full_ret)",
                (
                    (
                        one["fun"],
                        jid,
                        json.dumps(one["return"]),
                        one["id"],
                        str(one["success"]),
                        json.dumps(one),
                    )
                    for jid, _, returns in some
                    for one in returns
                ),
            )
        with self.connect() as (_, cursor):
            # Its automatic maintenance would do this later.
            cursor.execute("VACUUM ANALYZE")

    def places(self):
        return [self.dir / "data"]

    def pids(self):
        children = (
            Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        )
        return [self.process.pid, *map(int, children)]


class Redis(Served):
    """redis-server of Debian, over a unix socket."""

    name = "redis"
    returner = "redis"
    durable = "no: a snapshot from time to time"
    synced = ()

    def needs(self):
        if importlib.util.find_spec("redis") is None:
            raise Unavailable("no redis client (pip install --target DIR redis, PYTHONPATH=DIR)")
        if not shutil.which("redis-server"):
            raise Unavailable("redis-server is not installed (apt-get install redis-server)")
        if importlib.util.find_spec("salt.returners.redis_return") is None:
            with contextlib.suppress(ModuleNotFoundError):
                if importlib.util.find_spec("saltext.redis.returners") is not None:
                    return
            raise Unavailable("this Salt has no redis returner, and saltext.redis is not installed")

    def begin(self):
        data = self.dir / "data"
        data.mkdir()
        at = ("--port", "0", "--unixsocket", str(self.dir / "redis.sock"), "--dir", str(data))
        self.spawn("redis-server", *at, *self.synced)
        self.wait_for(self.dir / "redis.sock")

    def conf(self):
        return {"redis.unix_socket_path": str(self.dir / "redis.sock"), "redis.db": "0"}

    def connection(self):
        """The returner's own connection."""
        import redis

        return redis.StrictRedis(unix_socket_path=str(self.dir / "redis.sock"))

    def fill(self, jobs):
        keep = 86_400
        for some in _chunks(jobs, 2_000):
            with self.connection().pipeline(transaction=False) as line:
                for jid, load, returns in some:
                    line.setex(f"load:{jid}", keep, json.dumps(load))
                    for one in returns:
                        line.hset(f"ret:{jid}", one["id"], json.dumps(one))
                        line.set(f"{one['id']}:{one['fun']}", jid, ex=keep)
                        line.sadd("minions", one["id"])
                    line.expire(f"ret:{jid}", keep)
                line.execute()

    def expire(self):
        server = self.connection()
        for some in _chunks(server.scan_iter(match="*:2*", count=1000), 5_000):
            with server.pipeline(transaction=False) as line:
                for key in some:
                    line.expire(key, 1)
                line.execute()

    def places(self):
        return [self.dir / "data"]


class RedisSynced(Redis):
    """Redis with a sync per write before the answer."""

    name = "redis, synced"
    durable = "yes: appendfsync always"
    synced = ("--appendonly", "yes", "--appendfsync", "always")


class Saltcellar(Served):
    """saltcellar."""

    name = "saltcellar"
    returner = "saltcellar"
    durable = "yes: its default"
    program = os.environ.get("SALTCELLAR_BIN") or str(REPO / "target" / "release" / "saltcellar")
    #: In production the jobs of a day span many segments, which are dropped whole. A few seconds of jobs need small
    #: ones for that.
    segment_bytes_max = None

    def needs(self):
        if not os.access(self.program, os.X_OK):
            raise Unavailable(f"{self.program} does not exist (cargo build --release)")

    def begin(self):
        conf = (
            {"store": {"segment_bytes_max": self.segment_bytes_max}}
            if self.segment_bytes_max
            else {}
        )
        (self.dir / "saltcellar.yaml").write_text(json.dumps(conf))
        self.spawn(
            *(self.program, "serve", "--config", str(self.dir / "saltcellar.yaml")),
            *(
                "--state-dir",
                str(self.dir / "state"),
                "--socket",
                str(self.dir / "s.sock"),
                "--log-level",
                "warn",
            ),
        )
        self.wait_for(self.dir / "s.sock")

    def conf(self):
        return {
            "saltcellar.socket": str(self.dir / "s.sock"),
            "module_dirs": [str(SRC / "saltext" / "saltcellar")],
        }

    def fill(self, jobs):
        from saltext.saltcellar.utils import wire

        connection = wire.Connection(str(self.dir / "s.sock"), time.monotonic() + TIMEOUT_S)
        for some in _chunks(jobs, 500):
            calls = []
            for jid, load, returns in some:
                minions = [one["id"] for one in returns]
                calls.append(
                    wire.Call("save_load", {"jid": jid, "load": load, "minions": minions}).request
                )
                calls += (wire.Call("returner", {"load": one}).request for one in returns)
            for few in _chunks(calls, 1_000):
                deadline = time.monotonic() + TIMEOUT_S
                for _ in connection.send(few, deadline):
                    _, answer = connection.receive(deadline)
                    if isinstance(answer, wire.Refusal):
                        raise RuntimeError(f"the daemon rejected a bulk load: {answer}")
        connection.close()

    def cli(self, *args):
        """Output and duration of a verb of the command line."""
        started = time.perf_counter()
        command = (self.program, *args, "--socket", str(self.dir / "s.sock"))
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        return done.stdout, time.perf_counter() - started

    def spooled_or_lost(self):
        """Entries that did not reach the daemon; a measurement with any of them is invalid."""
        return [
            str(path)
            for path in (self.dir / "cache" / "saltcellar").glob("spool*")
            if path.stat().st_size
        ]

    def places(self):
        return [self.dir / "state"]


#: In the order of the table.
ALL = (JobCache, SaltCache, Pgjsonb, Redis, RedisSynced, Saltcellar)


def _answer(one):
    return {key: one[key] for key in ("return", "retcode", "success")}


def _write(path, data):
    with open(path, "wb") as out:
        out.write(data)


def _stat(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    except OSError:
        return None


def _chunks(things, size):
    some = []
    for one in things:
        some.append(one)
        if len(some) == size:
            yield some
            some = []
    if some:
        yield some


sys.path.insert(0, str(SRC))
