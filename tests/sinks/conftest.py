"""A daemon with sinks, and the destinations, each started for its test on free ports in a temporary directory.

Needs $SALTCELLAR_BIN and Salt with the extension in this Python; `make test-sinks` provides both, and the Python packages of destinations.
"""
import contextlib
import json
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time

import pytest
from saltext.saltcellar.utils import calls, settings


#: After Salt's packages, which must not be replaced.
LIBS = os.environ.get("SINKS_LIBS", "")
if LIBS:
    sys.path.append(LIBS)


def missing(what):
    """Skips the test because of an obstacle; fails it if ``CI`` is set."""
    if os.environ.get("CI"):
        pytest.fail(f"missing: {what}")
    pytest.skip(f"missing: {what}")


def program(*names, package):
    """The path of a program of this Debian package."""
    for name in names:
        found = shutil.which(name, path=f"{os.environ['PATH']}:/usr/sbin:/usr/bin")
        if found:
            return found
    missing(f"{names[0]} (package {package})")


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def eventually(what, look, seconds=60):
    """Waits until ``look`` returns something true, and returns it."""
    until = time.monotonic() + seconds
    while True:
        found = look()
        if found:
            return found
        assert time.monotonic() < until, f"not within {seconds} s: {what}"
        time.sleep(0.02)


def is_open(port):
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


@pytest.fixture
def place():
    """A directory whose path is short enough for unix sockets, and which other users can enter."""
    path = pathlib.Path(tempfile.mkdtemp(prefix="sinks-"))
    path.chmod(0o755)
    yield path
    shutil.rmtree(path, ignore_errors=True)


@pytest.fixture
def run(place):
    """Starts programs; ends them after the test."""
    with contextlib.ExitStack() as stack:
        def start(*command, **how):
            with open(place / f"{os.path.basename(command[0])}.log", "ab") as log:
                process = subprocess.Popen(
                    [str(part) for part in command], stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True, **how
                )
            stack.callback(end, process)
            return process

        yield start


def end(process):
    """Ends a process with the group that it leads."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGTERM)
    try:
        process.wait(15)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


class Cellar:
    """``saltcellar serve`` with these sinks."""

    def __init__(self, run, place, sinks, **others):
        self.run, self.place, self.socket, self.others = run, place, str(place / "d.sock"), others
        self.program = os.environ["SALTCELLAR_BIN"]
        self.config = place / "saltcellar.yaml"
        self.configure(sinks)
        self.process = None
        self.start()

    def configure(self, sinks):
        self.config.write_text(json.dumps({**self.others, "sinks": sinks}))

    def start(self):
        env = {key: value for key, value in os.environ.items() if not key.startswith("SALTCELLAR_")}
        paths = ["--config", self.config, "--state-dir", self.place / "state", "--socket", self.socket]
        self.process = self.run(self.program, "serve", *paths, env=env)
        eventually("the start of the daemon", self.answers)

    def answers(self):
        assert self.process.poll() is None, (self.place / "saltcellar.log").read_text()[-3000:]
        with socket.socket(socket.AF_UNIX) as probe:
            return probe.connect_ex(self.socket) == 0

    def kill(self):
        self.process.kill()
        self.process.wait()

    def reload(self, sinks):
        self.configure(sinks)
        self.process.send_signal(signal.SIGHUP)

    def ask(self, call, **args):
        return calls.ask(settings.from_opts({"saltcellar.socket": self.socket}), call, **args)

    def fire(self, *events):
        """Stores events: pairs of a tag and data."""
        self.ask("event_return", events=[{"tag": tag, "data": data} for tag, data in events])

    def verb(self, *args, code=0):
        done = subprocess.run(
            [self.program, *args, "--socket", self.socket], capture_output=True, text=True, timeout=60, stdin=subprocess.DEVNULL
        )
        assert done.returncode == code, f"{args}: {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done.stdout + done.stderr

    def sink(self, name):
        return json.loads(self.verb("sinks", "show", name, "--output", "json"))

    def delivered(self, name, seconds=60):
        """Waits until a sink has no backlog; returns its status."""
        def look():
            row = self.sink(name)
            return row if row["lag_entries"] == 0 else None

        try:
            return eventually(f"{name} delivers", look, seconds)
        except AssertionError as error:
            raise AssertionError(f"{error}: {self.sink(name)}") from None

    def letters(self, name):
        text = self.verb("sinks", "dead-letters", "list", name, "--output", "jsonl")
        return [json.loads(line) for line in text.splitlines()]

    def checked(self, name):
        """The line of `doctor` for the destination of a sink, and the request and answer of a test."""
        found = {row["name"]: row for row in self.ask("sinks_check")["sinks"]}[name]
        assert found["ok"], found
        assert found["found"] in self.verb_any("doctor", "--no-master"), found
        shown = self.verb("sinks", "test", name)
        assert "request" in shown and "response" in shown, shown
        return found["found"], shown

    def verb_any(self, *args):
        """The output of a verb with any result."""
        done = subprocess.run([self.program, *args, "--socket", self.socket], capture_output=True, text=True, timeout=60)
        return done.stdout


@pytest.fixture
def cellar(run, place):
    """Starts a daemon with these sinks."""
    return lambda **sinks: Cellar(run, place, sinks)


@pytest.fixture
def certificates(place):
    """A certificate of 127.0.0.1, its key, and one of another name: paths by name."""
    openssl = program("openssl", package="openssl")
    for name, alt in [("own", "IP:127.0.0.1"), ("other", "DNS:other.example")]:
        subprocess.run([
            openssl, "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2",
            "-subj", f"/CN={name}", "-addext", f"subjectAltName={alt}", "-addext", "basicConstraints=critical,CA:FALSE",
            "-keyout", place / f"{name}.key", "-out", place / f"{name}.pem",
        ], check=True, capture_output=True)
        os.chmod(place / f"{name}.key", 0o644)
    return {name: str(place / name) for name in ["own.pem", "own.key", "other.pem", "other.key"]}
