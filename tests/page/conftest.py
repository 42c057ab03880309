"""A daemon with its page, a bus and a sink, from the binary in SALTCELLAR_BIN; and Chromium."""

import http.server
import json
import os
import re
import socket
import subprocess
import threading
import time

import browser
import msgpack
import pytest

BIN = os.environ.get("SALTCELLAR_BIN", "saltcellar")
DEADLINE = 60
TOKEN = re.compile(r"sct_\S+")

CONFIG = """
http: {{listen: '127.0.0.1:{port}'}}
bus: [{dir}]
sinks:
  audit: {{encoder: json, match: [{{tag: 'salt/auth*'}}], transport: {{file: {{path: {dir}/audit.jsonl}}}}}}
  splunk: {{encoder: json, transport: {{http: {{url: 'http://127.0.0.1:9/collector'}}}}}}
{sinks}reactor:
  master: {dir}/master
  shadow: true
  shadow_window: 1s
  rules:
    - 'salt/auth': {dir}/accept.sls
    - 'deploy/*': [{dir}/deploy.sls, {dir}/broken.sls]
"""
ACCEPT = "accept:\n  wheel.key.accept:\n    - args:\n      - match: {{ data['id'] }}\n"
DEPLOY = "restart:\n  local.service.restart:\n    - tgt: {{ data['id'] }}\n    - arg: [nginx]\n"
BROKEN = "report:\n  runner.http.query:\n    - args:\n      - url: {{ data['url'].strip() }}\n"


def pytest_addoption(parser):
    parser.addoption("--screenshots", metavar="DIR", help="write a picture of each answer of test_tasks.py there")


def wait_for(what, attempt):
    until = time.monotonic() + DEADLINE
    while time.monotonic() < until:
        if found := attempt():
            return found
        time.sleep(0.05)
    raise AssertionError(f"{what} did not happen within {DEADLINE} s")


class Bus:
    """The publishing socket of a master, with one subscriber."""

    def __init__(self, directory):
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.bind(str(directory / "master_event_pub.ipc"))
        self.socket.listen()
        self.peers, self.connected = [], threading.Event()
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        while True:
            try:
                self.peers.append(self.socket.accept()[0])
            except OSError:
                return
            self.connected.set()

    def fire(self, tag, **data):
        body = tag.encode() + b"\n\n" + msgpack.packb(data)
        self.peers[-1].sendall(msgpack.packb({"head": {}, "body": body}))

    def close(self):
        self.socket.close()


#: Its destination takes nothing.
SINK_WITH_LETTERS = "soc-webhook"


class RejectingPeer:
    """A destination that rejects every event for good, each with a message of its own."""

    def __init__(self):
        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self):
                size = len(self.rfile.read(int(self.headers["content-length"])))
                text = f"field host of request {time.monotonic_ns()} has {size} bytes, at most 12 are accepted".encode()
                self.send_response(400)
                self.send_header("content-length", str(len(text)))
                self.end_headers()
                self.wfile.write(text)

            def log_message(self, *_):
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def sink(self):
        url = f"http://127.0.0.1:{self.server.server_port}/alerts"
        return f"  {SINK_WITH_LETTERS}: {{encoder: json, match: [{{tag: 'soc/alert/*'}}], transport: {{http: {{url: '{url}'}}}}}}\n"

    def close(self):
        self.server.shutdown()
        self.server.server_close()


class Daemon:
    def __init__(self, directory, sinks=""):
        self.directory, self.sinks = directory, sinks
        #: More of the configuration.
        self.more = ""
        (directory / "cache").mkdir()
        (directory / "cache" / ".root_key").write_text("key")
        (directory / "master").write_text(f"cachedir: {directory}/cache\nsock_dir: {directory}\nuser: root\nid: master\nret_port: 9\n")
        for name, text in (("accept.sls", ACCEPT), ("deploy.sls", DEPLOY), ("broken.sls", BROKEN)):
            (directory / name).write_text(text)
        self.bus = Bus(directory)
        self.log = directory / "log"
        self.start(0)

    def start(self, port):
        directory = self.directory
        (directory / "c.yaml").write_text(CONFIG.format(dir=directory, port=port, sinks=self.sinks) + self.more)
        self.bus.connected.clear()
        command = [BIN, "serve", "--config", directory / "c.yaml", "--state-dir", directory / "state"]
        self.process = subprocess.Popen([*command, "--socket", directory / "s.sock"], stderr=open(self.log, "a"))
        try:
            address = wait_for("the listener", lambda: (self.status().get("http") or {}).get("state") == "open" and self.status()["http"]["listen"])
            assert self.bus.connected.wait(DEADLINE), self.log.read_text()
        except BaseException:
            self.process.kill()
            raise
        self.url = f"http://{address}"

    def restart(self, meanwhile=lambda: None):
        """With the same address. `meanwhile` is done while it is down."""
        self.process.terminate()
        assert self.process.wait(DEADLINE) == 0, self.log.read_text()
        meanwhile()
        self.start(int(self.url.rsplit(":", 1)[1]))

    def join(self, directory, site, name):
        """Shares a history with the daemon of a master of this name, which has stored a site and is away."""
        directory.mkdir()
        nats = "cluster: {{name: {}, nats: {{servers: ['nats://127.0.0.1:9']}}}}\n"
        (directory / "c.yaml").write_text(nats.format(name))
        run = lambda *args, **how: subprocess.run([BIN, *args], check=True, capture_output=True, text=True, timeout=DEADLINE, **how)
        command = [BIN, "serve", "--config", directory / "c.yaml", "--state-dir", directory / "state", "--socket", directory / "s.sock"]
        with subprocess.Popen(command, stderr=open(directory / "log", "a")) as peer:
            try:
                socket = ["--socket", directory / "s.sock"]
                wait_for("the peer", lambda: subprocess.run([BIN, "status", *socket], capture_output=True, check=False).stdout)
                run("import", "jsonl", "-", *socket, input=site.text())
                run("store", "backup", directory / "backup", "--state-dir", directory / "state", *socket)
            finally:
                peer.terminate()
        self.more = nats.format("master")
        # A numbering of its own comes first.
        self.restart()
        own = ["--config", self.directory / "c.yaml", "--state-dir", self.directory / "state"]
        self.restart(lambda: run("cluster", "join", directory / "backup", "--peer", name, *own))

    def call(self, *args, stdin=None):
        done = subprocess.run([BIN, *args, "--socket", self.directory / "s.sock"], input=stdin, capture_output=True, text=True, check=False)
        assert done.returncode == 0, (args, done.stdout, done.stderr)
        return done.stdout

    def status(self):
        done = subprocess.run([BIN, "status", "--output", "json", "--socket", self.directory / "s.sock"], capture_output=True, text=True, check=False)
        # With a problem it ends with 1.
        return json.loads(done.stdout) if done.stdout else {}

    def load(self, site):
        self.call("import", "jsonl", "-", stdin=site.text())

    def stream(self, lines):
        """Imports lines without all of them in memory."""
        command = [BIN, "import", "jsonl", "-", "--socket", self.directory / "s.sock"]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True) as feed:
            for line in lines:
                feed.stdin.write(line + "\n")
            feed.stdin.close()
            assert feed.wait(DEADLINE) == 0

    def react(self):
        """Fires events that rules match, and waits until they are recorded."""
        self.bus.fire("salt/auth", id="web7.example.net", act="pend", result=True)
        self.bus.fire("deploy/started", id="web1.example.net", version="2.4.1")
        wait_for("the reactions", lambda: len(json.loads(self.call("reactor", "history", "--output", "json"))["reactions"]) >= 2)

    def token(self, name, *args):
        return TOKEN.search(self.call("tokens", "create", name, "--scope", "admin", *args))[0]

    def letters(self, sink):
        """How many dead letters a sink has."""
        return next(one["dead_letters"] for one in self.status()["sinks"] if one["name"] == sink)

    def newest(self):
        return json.loads(self.call("events", "list", "--limit", "1", "--output", "json"))["events"][0]["seq"]

    def stop(self):
        self.process.terminate()
        code = self.process.wait(DEADLINE)
        self.bus.close()
        assert code == 0, self.log.read_text()


@pytest.fixture
def daemon(tmp_path):
    running = Daemon(tmp_path)
    yield running
    running.stop()


@pytest.fixture(scope="session")
def chromium():
    if not browser.program():
        message = "chromium is not installed (Debian: apt-get install chromium)"
        if os.environ.get("CI"):
            pytest.fail(message)
        pytest.skip(message)
    running = browser.Browser()
    yield running
    running.close()


@pytest.fixture
def tab(chromium):
    page = chromium.page()
    yield page
    page.close()


def sign_in(page, daemon, token):
    page.open(f"{daemon.url}/sign-in")
    page.js(f"document.getElementById('token').value = {json.dumps(token)}")
    page.js("document.querySelector('form.sign-in button').click()")
    page.loaded()
    assert page.js("document.querySelector('nav a[aria-current]').textContent") == "Overview"


def views(jid, seq):
    """The name and path of every view."""
    return {
        "overview": "/",
        "jobs": "/jobs",
        "job": f"/jobs/{jid}",
        "job-causes": f"/jobs/{jid}/causes",
        "job-durations": f"/jobs/{jid}/durations",
        "diff": f"/jobs/{jid}/diff",
        "causes": "/causes",
        "durations": "/durations",
        "find": "/find?q=web",
        "events": "/events",
        "event": f"/events/{seq}",
        "minions": "/minions",
        "minion": "/minions/web2.example.net",
        "reactor": "/reactor",
        "sinks": "/sinks",
        "consumers": "/consumers",
        "sink": "/sinks/splunk",
        "sign-in": "/sign-in",
    }
