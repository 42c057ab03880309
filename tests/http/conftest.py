"""A daemon with its HTTP listener, from the binary in SALTCELLAR_BIN."""

import json
import os
import shutil
import subprocess
import time
import urllib.request

import pytest

BIN = os.environ.get("SALTCELLAR_BIN", "saltcellar")
DEADLINE = 60


def program(name):
    """A program of a package that a test needs: missing, the test is skipped, or fails if CI is set."""
    found = shutil.which(name)
    if found:
        return found
    message = f"{name} is not installed (Debian: apt-get install prometheus)"
    if os.environ.get("CI"):
        pytest.fail(message)
    pytest.skip(message)


def wait_for(what, attempt):
    until = time.monotonic() + DEADLINE
    while time.monotonic() < until:
        found = attempt()
        if found:
            return found
        time.sleep(0.1)
    raise AssertionError(f"{what} did not happen within {DEADLINE} s")


def fetch(url):
    with urllib.request.urlopen(url, timeout=DEADLINE) as answer:
        return answer.read().decode()


class Daemon:
    def __init__(self, directory):
        self.directory = directory
        self.socket = directory / "s.sock"
        (directory / "c.yaml").write_text("http: {listen: '127.0.0.1:0'}\n")
        command = [BIN, "serve", "--config", directory / "c.yaml", "--state-dir", directory / "state"]
        self.process = subprocess.Popen([*command, "--socket", self.socket], stderr=open(directory / "log", "w"))
        wait_for("the listener", lambda: (self.status().get("http") or {}).get("state") == "open")
        self.address = self.status()["http"]["listen"]

    def call(self, *args):
        command = [BIN, *args, "--socket", self.socket, "--output", "json"]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    def status(self):
        done = self.call("status")
        return json.loads(done.stdout) if done.returncode == 0 else {}

    def stop(self):
        self.process.terminate()
        assert self.process.wait(DEADLINE) == 0, (self.directory / "log").read_text()


@pytest.fixture
def daemon(tmp_path):
    running = Daemon(tmp_path)
    yield running
    running.stop()
