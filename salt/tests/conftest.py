"""A daemon that is none: it speaks the wire's contract, remembers what it was asked, and fails on demand."""

import contextlib
import logging
import os
import socket
import struct
import sys
import tempfile
import threading
import time
from pathlib import Path

import msgpack
import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))

from saltext.saltcellar.utils import client as client_  # noqa: E402
from saltext.saltcellar.utils import settings as settings_  # noqa: E402
from saltext.saltcellar.utils import wire  # noqa: E402

with contextlib.suppress(ImportError, AttributeError):
    # Salt holds early log records back and writes them out at exit, to a stream pytest has closed by then.
    import salt._logging.impl

    salt._logging.impl.shutdown_temp_handler()

WRITES = {
    "prep_jid": "20261121031733650863",
    "save_load": None,
    "save_minions": None,
    "returner": None,
    "update_endtime": None,
    "save_reg": None,
    "clean_old_jobs": None,
    "event_return": 1,
}


class Refuse(Exception):
    """Raised by an answer to have the call refused."""

    def __init__(self, code, message="as told"):
        super().__init__(code)
        self.code, self.message = code, message


class FakeDaemon:
    """
    ``calls`` holds ``(call, args)`` in the order received.

    ``answers[call]`` is a value, or a function of the args that returns one or raises :class:`Refuse`.
    ``hang`` makes it take everything and answer nothing; ``hang_up`` closes instead of answering so many
    times; ``last_words`` is a refusal with id nil, followed by closing; ``stray`` an answer nobody asked for.
    ``backwards`` answers so many and one more at a time, the last first; ``in_batches`` all that came together.
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
        """As if killed: nothing listens, and what was open is closed."""
        if self._listener is None:
            return
        listener, self._listener = self._listener, None
        with contextlib.suppress(OSError):
            listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self.path)
        self.drop()

    def drop(self):
        """Close every open connection, and go on listening."""
        for one in self._open:
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()
        self._open = []

    def named(self, *calls):
        return [args for call, args in self.calls if call in calls]

    def _accept(self, listener):
        while True:
            try:
                one, _ = listener.accept()
            except OSError:
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
    """What the daemon would see: ext types and foreign text left as they are."""
    return msgpack.unpackb(data, strict_map_key=False, unicode_errors="surrogateescape")


def _frame(value):
    body = msgpack.packb(value, unicode_errors="surrogateescape")
    return struct.pack(">I", len(body)) + body


class _Source:
    def __init__(self, one):
        self._socket = one
        self._data = bytearray()

    def more(self):
        """Whether a frame that came together with the last one is still to be read."""
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


@pytest.fixture
def in_child():
    """Run a function in a forked child; fails if the child did."""

    def run(function, *args, wait=True):
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
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
    """``with took() as t: ...; t() `` is how long it took, in seconds."""

    @contextlib.contextmanager
    def measure():
        start = time.monotonic()
        end = []
        yield lambda: (end or [time.monotonic()])[0] - start
        end.append(time.monotonic())

    return measure


def spooled(spool):
    """What lies in the spool, as ``(call, args)``."""
    return [tuple(wire.unpack(record.payload)) for record in spool.records()]


@pytest.fixture(name="spooled")
def _spooled(spool):
    return lambda: spooled(spool)


__all__ = ["FakeDaemon", "Refuse", "settings_", "spooled", "unpack"]
