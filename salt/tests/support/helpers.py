"""What tests import: a fake daemon that speaks the wire protocol, records calls, and fails on demand; a real daemon; constants."""

import contextlib
import logging
import os
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from pathlib import Path

import msgpack
import pytest

import saltext.saltcellar
from saltext.saltcellar.utils import wire

#: Of the source or as installed, whichever Python finds first.
PACKAGE = Path(saltext.saltcellar.__file__).parent
JID = "20261121031733650863"
RETURN = {
    "cmd": "_return",
    "id": "web1",
    "jid": JID,
    "fun": "test.ping",
    "fun_args": [],
    "return": True,
    "retcode": 0,
}


def with_dirs(conf, run_dir, opts):
    """Salt's configuration with every path in the test's directory."""
    conf.update(
        {
            key: str(run_dir / key)
            for key in ("root_dir", "cachedir", "sock_dir", "pki_dir", "extension_modules")
        },
        module_dirs=[str(PACKAGE)],
        master_job_cache="saltcellar",
        event_return="saltcellar",
        **{"saltcellar.spool_dir": str(run_dir / "cache" / "saltcellar")},
        **{key: value for key, value in opts.items() if key.startswith("saltcellar.")},
    )
    return conf


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
    """Raised by a response function to reject the call."""

    def __init__(self, code, message="as configured"):
        super().__init__(code)
        self.code, self.message = code, message


class FakeDaemon:
    """
    ``calls`` holds ``(call, args)`` in the order received.

    ``answers[call]`` is a value, or a function of the args that returns one or raises :class:`Refuse`.
    ``hang``: reads everything and answers nothing. ``hang_up``: closes the connection instead of answering, so many times.
    ``last_words``: an error with id nil, followed by closing. ``stray``: a response without a request.
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
        paths = [
            "--config",
            self.dir / "saltcellar.yaml",
            "--state-dir",
            self.dir / "state",
            "--socket",
            self.socket,
        ]
        with open(self.dir / "daemon.log", "ab") as log:
            self.process = subprocess.Popen(
                [self.program, "serve", *paths],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=env,
            )
        until = time.monotonic() + 30
        while True:
            with socket.socket(socket.AF_UNIX) as probe:
                if probe.connect_ex(self.socket) == 0:
                    return self
            log = (self.dir / "daemon.log").read_text()[-3000:]
            assert self.process.poll() is None and time.monotonic() < until, (
                f"the daemon did not start: {log}"
            )
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


def with_own_streams():
    """In a forked child: a thread of the parent may have held the lock of a stream, which nobody releases here."""
    fresh = os.fdopen(os.dup(2), "w", encoding="utf-8")
    sys.stdout = sys.stderr = fresh
    for handler in logging.root.handlers:
        if hasattr(handler, "stream"):
            handler.stream = fresh


def spooled(spool):
    """The contents of the spool as ``(call, args)``."""
    return [tuple(wire.unpack(record.payload)) for record in spool.records()]


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
