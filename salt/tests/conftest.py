"""Fixtures: a fake daemon that speaks the wire protocol, records calls, and fails on demand; and a real daemon."""

import contextlib
import logging
import os
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import msgpack
import pytest
import salt.config
import salt.loader
import salt.utils.job

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))

from saltext.saltcellar.utils import client as client_  # noqa: E402
from saltext.saltcellar.utils import settings as settings_  # noqa: E402
from saltext.saltcellar.utils import wire  # noqa: E402

with contextlib.suppress(ImportError, AttributeError):
    # Salt buffers early log records and writes them at exit, to a stream that pytest has closed by then.
    import salt._logging.impl

    salt._logging.impl.shutdown_temp_handler()

WRITES = {
    "prep_jid": "20261121031733650863",
    "save_load": None,
    "save_minions": None,
    "returner": lambda args: True if args.get("endtime") else None,
    "update_endtime": None,
    "save_reg": None,
    "clean_old_jobs": None,
    "event_return": 1,
}


def missing(what):
    """Skips a test because ``what`` is missing; fails it if ``CI`` is set."""
    if os.environ.get("CI"):
        pytest.fail(f"needs {what}, which is required if CI is set")
    pytest.skip(f"needs {what}")


class Refuse(Exception):
    """Raised by an answer function to reject the call."""

    def __init__(self, code, message="as configured"):
        super().__init__(code)
        self.code, self.message = code, message


class FakeDaemon:
    """
    ``calls`` holds ``(call, args)`` in the order received.

    ``answers[call]`` is a value, or a function of the args that returns one or raises :class:`Refuse`.
    ``hang``: reads everything and answers nothing. ``hang_up``: closes the connection instead of answering, so many times.
    ``last_words``: an error with id nil, followed by closing. ``stray``: an answer without a request.
    ``backwards``: answers in groups of n + 1, in reverse order. ``in_batches``: the same for all requests of one read.
    """

    def __init__(self, path):
        self.path = path
        self.calls = []
        self.frames = []
        self.answers = dict(WRITES)
        self.hang = False
        self.hang_up = 0
        self.last_words = None
        self.backwards = 0
        self.in_batches = False
        self.stray = None
        self.connections = 0
        self.greetings = []
        self._open = []
        self._coming = threading.Lock()
        self._listener = None

    def start(self):
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self.path)
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(self.path)
        self._listener.listen(64)
        threading.Thread(target=self._accept, args=(self._listener,), daemon=True).start()
        return self

    def stop(self):
        """Closes the listener and all connections, as a kill does."""
        if self._listener is None:
            return
        with self._coming:
            listener, self._listener = self._listener, None
        with contextlib.suppress(OSError):
            listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self.path)
        self.drop()

    def drop(self):
        """Closes every open connection and continues to listen."""
        # A client may reconnect immediately: that connection stays, and is closed by the next call.
        with self._coming:
            gone, self._open = self._open, []
        for one in gone:
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()

    def named(self, *calls):
        return [args for call, args in self.calls if call in calls]

    def _accept(self, listener):
        while True:
            try:
                one, _ = listener.accept()
            except OSError:
                return
            with self._coming:
                if self._listener is not listener:
                    # Stopped in the meantime.
                    one.close()
                    return
                self._open.append(one)
            self.connections += 1
            threading.Thread(target=self._serve, args=(one,), daemon=True).start()

    def _serve(self, one):
        with contextlib.suppress(OSError, EOFError):
            source = _Source(one)
            self.greetings.append(source.exactly(8))
            held = []
            while True:
                (size,) = struct.unpack(">I", source.exactly(4))
                body = source.exactly(size)
                self.frames.append(body)
                number, call, args = unpack(body)
                if self.hang_up:
                    self.hang_up -= 1
                    one.shutdown(socket.SHUT_RDWR)
                    return
                if self.hang:
                    continue
                if self.last_words:
                    one.sendall(_frame([None, False, self.last_words]))
                    one.shutdown(socket.SHUT_RDWR)
                    return
                if self.stray:
                    one.sendall(_frame(self.stray))
                held.append(_frame(self._answer(number, call, args)))
                if not source.more() if self.in_batches else len(held) > self.backwards:
                    one.sendall(b"".join(reversed(held)))
                    held = []

    def _answer(self, number, call, args):
        if call not in self.answers:
            return [number, False, {"code": "unknown_call", "message": f"no call {call}"}]
        answer = self.answers[call]
        try:
            value = answer(args) if callable(answer) else answer
        except Refuse as exc:
            return [number, False, {"code": exc.code, "message": exc.message}]
        self.calls.append((call, args))
        return [number, True, value]


def unpack(data):
    """Unpacks as the daemon does: ext types and invalid UTF-8 unchanged."""
    return msgpack.unpackb(data, strict_map_key=False, unicode_errors="surrogateescape")


def _frame(value):
    body = msgpack.packb(value, unicode_errors="surrogateescape")
    return struct.pack(">I", len(body)) + body


class _Source:
    def __init__(self, one):
        self._socket = one
        self._data = bytearray()

    def more(self):
        """Whether another frame of the same read is buffered."""
        return len(self._data) > 0

    def exactly(self, size):
        while len(self._data) < size:
            got = self._socket.recv(1 << 20)
            if not got:
                raise EOFError
            self._data += got
        data = bytes(self._data[:size])
        del self._data[:size]
        return data


class Cellar:
    """A real daemon: ``saltcellar serve`` in a temporary directory."""

    def __init__(self, program, directory, config=""):
        self.program, self.dir = program, Path(directory)
        self.socket = str(self.dir / "d.sock")
        self.process = None
        (self.dir / "saltcellar.yaml").write_text(config)

    def start(self):
        env = {key: value for key, value in os.environ.items() if not key.startswith("SALTCELLAR_")}
        paths = ["--config", self.dir / "saltcellar.yaml", "--state-dir", self.dir / "state", "--socket", self.socket]
        with open(self.dir / "daemon.log", "ab") as log:
            self.process = subprocess.Popen(
                [self.program, "serve", *paths], stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=env
            )
        until = time.monotonic() + 30
        while True:
            with socket.socket(socket.AF_UNIX) as probe:
                if probe.connect_ex(self.socket) == 0:
                    return self
            log = (self.dir / "daemon.log").read_text()[-3000:]
            assert self.process.poll() is None and time.monotonic() < until, f"the daemon did not start: {log}"
            time.sleep(0.01)

    def kill(self):
        self.process.kill()
        self.process.wait()

    def stop(self):
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            self.process.wait(30)

    def ask(self, call, **args):
        """A call over the socket, without the extension."""
        connection = wire.Connection(self.socket, time.monotonic() + 20)
        try:
            return connection.ask(wire.Call(call, args), time.monotonic() + 20)
        finally:
            connection.close()

    def counter(self, name):
        return self.ask("status")["counters"][name]


@pytest.fixture(scope="session")
def program():
    """The binary named by ``SALTCELLAR_BIN``, else the debug build if it exists."""
    named = os.environ.get("SALTCELLAR_BIN")
    target = Path(os.environ.get("CARGO_TARGET_DIR", Path(__file__).resolve().parents[2] / "target"))
    found = Path(named) if named else target / "debug" / "saltcellar"
    if not named and not found.exists():
        missing("a saltcellar binary: build it, or name it in SALTCELLAR_BIN")
    assert found.exists(), f"SALTCELLAR_BIN: {found} does not exist"
    return str(found.resolve())


@pytest.fixture
def make_cellar(program, run_dir):
    """Starts a real daemon with this configuration."""
    made = []

    def make(config=""):
        made.append(Cellar(program, run_dir, config))
        return made[-1].start()

    yield make
    for one in made:
        one.stop()


@pytest.fixture
def cellar(make_cellar):
    return make_cellar()


@pytest.fixture
def run_dir():
    # Not tmp_path: a socket's path must stay below 108 bytes.
    with tempfile.TemporaryDirectory(prefix="sc-") as path:
        yield Path(path)


@pytest.fixture(autouse=True)
def _clean(monkeypatch):
    monkeypatch.delenv("SALTCELLAR_SOCKET", raising=False)
    client_.forget()
    yield
    client_.forget()


@pytest.fixture
def daemon(run_dir):
    fake = FakeDaemon(str(run_dir / "s.sock")).start()
    yield fake
    fake.stop()


@pytest.fixture
def opts(run_dir):
    return {
        "__role": "master",
        "cachedir": str(run_dir / "cache"),
        "saltcellar.socket": str(run_dir / "s.sock"),
        "saltcellar.timeout": 5,
        "saltcellar.listing_timeout": 10,
        "keep_jobs_seconds": 86400,
    }


@pytest.fixture
def client(opts):
    return client_.of(opts)


@pytest.fixture
def spool(client):
    return client.spool


def with_own_streams():
    """In a forked child: a thread of the parent may have held the lock of a stream, which nobody releases here."""
    fresh = os.fdopen(os.dup(2), "w", encoding="utf-8")
    sys.stdout = sys.stderr = fresh
    for handler in logging.root.handlers:
        if hasattr(handler, "stream"):
            handler.stream = fresh


@pytest.fixture
def in_child():
    """Runs a function in a forked child; fails if the child fails."""

    def run(function, *args, wait=True):
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                with_own_streams()
                function(*args)
                code = 0
            except BaseException:  # pylint: disable=broad-except
                logging.getLogger(__name__).exception("in the child")
                import traceback

                traceback.print_exc()
            finally:
                os._exit(code)
        if wait:
            assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        return pid

    return run


@pytest.fixture
def took():
    """``with took() as t: ...``; then ``t()`` is the duration in seconds."""

    @contextlib.contextmanager
    def measure():
        start = time.monotonic()
        end = []
        yield lambda: (end or [time.monotonic()])[0] - start
        end.append(time.monotonic())

    return measure


def spooled(spool):
    """The contents of the spool as ``(call, args)``."""
    return [tuple(wire.unpack(record.payload)) for record in spool.records()]


@pytest.fixture(name="spooled")
def _spooled(spool):
    return lambda: spooled(spool)


# ---- Salt's own loader


PACKAGE = Path(__file__).resolve().parents[1] / "src" / "saltext" / "saltcellar"
JID = "20261121031733650863"
RETURN = {"cmd": "_return", "id": "web1", "jid": JID, "fun": "test.ping", "fun_args": [], "return": True, "retcode": 0}


def with_dirs(conf, run_dir, opts):
    """Salt's configuration with every path in the test's directory."""
    conf.update(
        {key: str(run_dir / key) for key in ("root_dir", "cachedir", "sock_dir", "pki_dir", "extension_modules")},
        module_dirs=[str(PACKAGE)],
        master_job_cache="saltcellar",
        event_return="saltcellar",
        **{"saltcellar.spool_dir": str(run_dir / "cache" / "saltcellar")},
        **{key: value for key, value in opts.items() if key.startswith("saltcellar.")},
    )
    return conf


@pytest.fixture
def master_opts(run_dir, opts):
    return with_dirs(dict(salt.config.DEFAULT_MASTER_OPTS, __role="master"), run_dir, opts)


@pytest.fixture
def returners(master_opts):
    return salt.loader.returners(master_opts, {})


@pytest.fixture
def store(master_opts):
    """Stores a return as a master's worker does, with the current options."""

    def run(load=RETURN, event=None, **options):
        master_opts.update(options)
        minion = type("Minion", (), {"returners": salt.loader.returners(master_opts, {})})()
        load = dict(load)
        salt.utils.job.store_job(master_opts, load, event=event, mminion=minion)
        return load

    return run


@pytest.fixture
def mirror(monkeypatch, master_opts):
    """Handles an event of a peer as the process ``EventMonitor`` does, with Salt's code and loader."""
    import asyncio
    import multiprocessing

    import salt.master
    import salt.minion
    import salt.utils.event

    monitor = getattr(salt.master, "EventMonitor", None)
    if monitor is None or "store_job" not in monitor.handle_event.__code__.co_names:
        pytest.skip("this Salt mirrors no jobs")

    class Minion:
        def __init__(self, opts, **_):
            self.returners = salt.loader.returners(opts, {})

        def __enter__(self):
            return self

        def __exit__(self, *_):
            return False

    monkeypatch.setattr(salt.minion, "MasterMinion", Minion)
    monkeypatch.setattr(multiprocessing.current_process(), "name", "EventMonitor")

    def run(tag, data, **options):
        opts = dict(master_opts, cluster_id="c", cluster_peers=[], **options)
        package = salt.utils.event.SaltEvent.pack(tag, data)
        asyncio.run(monitor(opts, None).handle_event(package))
        return package

    return run


class Bus:
    """The bus on which a worker fires returns; ``raises`` an exception or ``does`` something at each event."""

    def __init__(self, raises=None, does=None):
        self.raises, self.does = raises, does

    def fire_event(self, load, _tag):
        load["_stamp"] = "2026-11-21T03:09:55.600000"
        if self.does:
            self.does()
        if self.raises:
            raise self.raises

    def fire_ret_load(self, load):
        pass


__all__ = ["Bus", "FakeDaemon", "Refuse", "missing", "settings_", "spooled", "unpack", "with_dirs"]
