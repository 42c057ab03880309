"""`saltcellar cluster init`: three real nats-servers with exactly its output, and what their users may do."""
import base64
import contextlib
import json
import os
import pathlib
import shutil
import socket
import ssl
import subprocess
import tempfile
import time

import pytest
import yaml
from conftest import Cellar, end, eventually, free_port, is_open, program
from test_nats import server

STREAM = "saltcellar"


def free_ports(count):
    """Ports of clients, whose derived ports are free as well."""
    found = []
    while len(found) < count:
        port = free_port()
        if port < 61000 and not any(is_open(port + more) for more in (2000, 4000)) and port not in found:
            found.append(port)
    return found


def certificates(place):
    """An authority, and a certificate for 127.0.0.1 of a server that also connects to others."""
    openssl = program("openssl", package="openssl")
    place.mkdir()
    (place / "ext").write_text("subjectAltName=IP:127.0.0.1\nextendedKeyUsage=serverAuth,clientAuth\n")

    def run(*args):
        subprocess.run([openssl, *args], cwd=place, check=True, capture_output=True)

    key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    run("req", "-x509", *key, "-keyout", "ca.key", "-out", "ca.pem", "-days", "2", "-subj", "/CN=test authority")
    run("req", *key, "-keyout", "key.pem", "-out", "csr", "-subj", "/CN=nats")
    run("x509", "-req", "-in", "csr", "-CA", "ca.pem", "-CAkey", "ca.key", "-days", "2", "-extfile", "ext", "-out", "cert.pem")


class Denied(Exception):
    """The server reported that a right is missing."""


class NobodyAnswers(Exception):
    """No stream or service has the subject."""


class Client:
    """NATS's text protocol over TLS."""

    def __init__(self, port, user, password, inbox, ca):
        plain = socket.create_connection(("127.0.0.1", port), 10)
        info = b""
        while not info.endswith(b"\r\n"):
            info += plain.recv(1)
        self.socket = ssl.create_default_context(cafile=ca).wrap_socket(plain, server_hostname="127.0.0.1")
        self.lines, self.inbox, self.count = self.socket.makefile("rb"), inbox, 0
        options = {"verbose": False, "pedantic": False, "user": user, "pass": password, "headers": True, "no_responders": True, "protocol": 1, "tls_required": True}
        self.send(b"CONNECT %b\r\nSUB %b.> 1\r\nPING\r\n" % (json.dumps(options).encode(), inbox.encode()))
        assert self.next(10) is None

    def send(self, data):
        self.socket.sendall(data)

    def next(self, seconds):
        """The subject and body of the next message; None for a PONG."""
        while True:
            self.socket.settimeout(seconds)
            line = self.lines.readline()
            assert line, "the server closed the connection"
            word, *rest = line.split()
            if word == b"PING":
                self.send(b"PONG\r\n")
            elif word == b"PONG":
                return None
            elif word == b"-ERR":
                raise Denied(line.decode().strip())
            elif word in (b"MSG", b"HMSG"):
                data = self.lines.read(int(rest[-1]) + 2)[:-2]
                head = int(rest[-2]) if word == b"HMSG" else 0
                if head and b" 503" in data[:head]:
                    raise NobodyAnswers
                return rest[0].decode(), data[head:]

    def publish(self, subject, body=b"", reply=""):
        """Returns once the server has read it; raises Denied if it reports a missing right."""
        self.send(f"PUB {subject} {reply} {len(body)}\r\n".encode() + body + b"\r\n")
        self.flush()

    def flush(self):
        """Raises Denied only after the PONG, which would else be that of the next one."""
        self.send(b"PING\r\n")
        error = None
        while True:
            try:
                if self.next(10) is None:
                    break
            except Denied as reported:
                error = reported
        if error:
            raise error

    def request(self, subject, body=b""):
        def answer():
            # A new stream is known to the other servers a moment later.
            with contextlib.suppress(NobodyAnswers):
                return self.ask(subject, body)

        return eventually(f"a response of {subject}", answer, 20)

    def ask(self, subject, body):
        self.count += 1
        reply = f"{self.inbox}.{self.count}"
        self.send(f"PUB {subject} {reply} {len(body)}\r\n".encode() + body + b"\r\n")
        while True:
            subject, found = self.next(10)
            if subject == reply:
                return found

    def api(self, call, **body):
        return json.loads(self.request(f"$JS.API.{call}", json.dumps(body).encode() if body else b""))

    def subscribe(self, subject):
        self.send(f"SUB {subject} 9\r\n".encode())
        self.flush()


class Setting:
    """What `cluster init` wrote, and the servers with it."""

    def __init__(self, run, place, saltcellar, ports, masters=("m1", "m2", "10.0.0.3")):
        self.place, self.ports, self.dir = place, ports, place / "cluster"
        self.masters, self.ca = masters, str(place / "tls/ca.pem")
        self.etc = place / "etc"
        self.etc.mkdir()
        certificates(place / "tls")
        shutil.copy(self.ca, self.etc / "nats-ca.pem")
        self.saltcellar = saltcellar
        self.init()
        self.processes = [run(server(), "-c", self.dir / f"nats-server-127.0.0.1-{port}.conf") for port in ports]
        for port in ports:
            eventually("the start of the servers", lambda port=port: is_open(port), 20)

    def init(self):
        done = subprocess.run(
            [
                self.saltcellar, "cluster", "init", "--masters", ",".join(self.masters), "--server", ",".join(f"127.0.0.1:{port}" for port in self.ports),
                "--dir", self.dir, "--store-dir", self.place / "nats", "--tls-dir", self.place / "tls", "--config-dir", self.etc,
            ],
            capture_output=True, text=True, timeout=60,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def password(self, file):
        return (self.dir / f"{file}.password").read_text().strip()

    def client(self, user, file, inbox, port=0):
        return Client(self.ports[port], user, self.password(file), inbox, self.ca)

    def master(self, name, port=0):
        token = name.replace(".", "=2E")
        return self.client(name, f"master-{token}", f"_INBOX_{token}", port)

    def admin(self):
        return self.client("nats-admin", "nats-admin", "_INBOX_admin")


@pytest.fixture(scope="module")
def setting():
    """Servers elect their leaders for seconds, so all tests share them."""
    with contextlib.ExitStack() as stack:
        place = pathlib.Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="init-", ignore_cleanup_errors=True)))

        def run(*command):
            with open(place / "nats-server.log", "ab") as log:
                process = subprocess.Popen([str(part) for part in command], stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True)
            stack.callback(end, process)
            return process

        found = Setting(run, place, os.environ["SALTCELLAR_BIN"], free_ports(3))

        def has_leader():
            with contextlib.suppress(TimeoutError):
                return "error" not in found.admin().api("INFO")

        eventually("a leader of JetStream", has_leader)
        create(found.master("m1"))
        yield found


def create(client):
    body = {"name": STREAM, "subjects": [f"{STREAM}.log.*"], "storage": "file", "num_replicas": 3, "max_age": 7 * 86_400 * 10**9}
    found = client.api(f"STREAM.CREATE.{STREAM}", **body)
    assert "error" not in found, found


def denied(act):
    with pytest.raises(Denied, match="Permissions Violation"):
        act()


def consume(client, consumer, subject):
    """All messages of a subject, by the only consumer that a master may have."""
    config = {"name": consumer, "ack_policy": "none", "deliver_policy": "all", "filter_subject": subject, "inactive_threshold": 60_000_000_000}
    made = client.api(f"CONSUMER.CREATE.{STREAM}.{consumer}.{subject}", stream_name=STREAM, config=config)
    assert "error" not in made, made
    count = client.api(f"CONSUMER.INFO.{STREAM}.{consumer}")["num_pending"]
    body = json.dumps({"batch": count, "no_wait": True}).encode()
    client.send(f"PUB $JS.API.CONSUMER.MSG.NEXT.{STREAM}.{consumer} {client.inbox}.pull {len(body)}\r\n".encode() + body + b"\r\n")
    found = [client.next(10) for _ in range(count)]
    assert client.api(f"CONSUMER.DELETE.{STREAM}.{consumer}")["success"]
    return found


def test_a_master_publishes_its_own_entries_and_reads_those_of_all(setting):
    m1, m3 = setting.master("m1"), setting.master("10.0.0.3", port=2)
    m1.request(f"{STREAM}.log.m1", b"one")
    m3.subscribe(f"{STREAM}.beat.*")
    assert json.loads(m3.request(f"{STREAM}.log.10=2E0=2E0=2E3", b"two"))["stream"] == STREAM
    m1.publish(f"{STREAM}.beat.m1", b"beat")
    assert m3.next(10) == (f"{STREAM}.beat.m1", b"beat")
    for client, consumer in [(m1, "m1"), (m3, "10=2E0=2E0=2E3")]:
        assert [body for _, body in consume(client, consumer, f"{STREAM}.log.*")][-2:] == [b"one", b"two"]
    info = m1.api(f"STREAM.INFO.{STREAM}")
    assert info["config"]["num_replicas"] == 3, info


def test_a_master_can_neither_be_another_one_nor_change_the_stream(setting):
    m1, m2, admin = setting.master("m1"), setting.master("m2", port=1), setting.admin()
    last = json.loads(m2.request(f"{STREAM}.log.m2", b"kept"))["seq"]

    for subject in [f"{STREAM}.log.m2", f"{STREAM}.beat.m2", f"{STREAM}.log.10=2E0=2E0=2E3", f"{STREAM}.other"]:
        denied(lambda subject=subject: m1.publish(subject, b"forged"))
    for call in ["STREAM.DELETE", "STREAM.UPDATE", "STREAM.PURGE", "STREAM.MSG.DELETE", "STREAM.SNAPSHOT", "STREAM.RESTORE", "STREAM.LEADER.STEPDOWN"]:
        denied(lambda call=call: m1.publish(f"$JS.API.{call}.{STREAM}", b"{}"))
    # Of another master: its consumer, and the responses to its requests.
    for call in ["CREATE", "DELETE", "MSG.NEXT"]:
        denied(lambda call=call: m1.publish(f"$JS.API.CONSUMER.{call}.{STREAM}.m2", b"{}"))
    denied(lambda: m1.subscribe("_INBOX_m2.>"))
    denied(lambda: m1.subscribe(f"{STREAM}.log.*"))

    state = admin.api(f"STREAM.INFO.{STREAM}")["state"]
    assert (state["messages"], state["last_seq"]) == (last, last), state
    assert admin.api(f"STREAM.PURGE.{STREAM}")["success"]


def test_no_request_puts_a_chosen_message_under_the_subject_of_another_master(setting):
    """Whoever asks a server names the subject of the response, for which no right is needed."""
    m1, admin = setting.master("m1"), setting.admin()
    bucket = f"KV_{STREAM}-leases"
    made = m1.api(f"STREAM.CREATE.{bucket}", name=bucket, subjects=[f"$KV.{STREAM}-leases.>"], storage="file", num_replicas=3, allow_direct=True)
    assert "error" not in made, made
    forged, key = b"a block that names another origin", f"$KV.{STREAM}-leases.x"
    first = json.loads(m1.request(f"{STREAM}.log.m1", forged))["seq"]
    m1.request(key, forged)

    victim = f"{STREAM}.log.m2"
    for subject in [f"$JS.API.DIRECT.GET.{bucket}", f"$JS.API.DIRECT.GET.{bucket}.{key}", f"$JS.API.DIRECT.GET.{STREAM}"]:
        denied(lambda subject=subject: m1.publish(subject, b'{"seq": 1}', victim))
    denied(lambda: m1.publish(f"$JS.API.CONSUMER.CREATE.{bucket}.q", b"{}", victim))
    # These are answered, in JSON, which is no block.
    m1.publish(f"$JS.API.STREAM.MSG.GET.{bucket}", b'{"seq": 1}', victim)
    m1.publish(f"$JS.API.STREAM.INFO.{STREAM}", b"", victim)
    # And this with the message, which keeps its own subject.
    config = {"name": "m1", "ack_policy": "none", "deliver_policy": "all"}
    m1.api(f"CONSUMER.CREATE.{STREAM}.m1", stream_name=STREAM, config=config)
    m1.publish(f"$JS.API.CONSUMER.MSG.NEXT.{STREAM}.m1", b'{"batch": 1}', victim)

    def messages():
        last = admin.api(f"STREAM.INFO.{STREAM}")["state"]["last_seq"]
        found = [admin.api(f"STREAM.MSG.GET.{STREAM}", seq=seq)["message"] for seq in range(first, last + 1)]
        return [(one["subject"], base64.b64decode(one["data"])) for one in found]

    eventually("the answers", lambda: sum(subject == victim for subject, _ in messages()) >= 2)
    time.sleep(0.5)
    for subject, body in messages():
        assert body != forged or subject == f"{STREAM}.log.m1", (subject, body)
        assert subject != victim or body.startswith(b"{"), (subject, body)


def doctor(setting, section, password, **more):
    """The findings about the shared history, of a daemon with this section: (check, verdict) and all that they say."""
    shutil.copy(setting.dir / f"{password}.password", setting.etc / "nats.password")
    config = setting.place / "c.yaml"
    config.write_text(section)
    (setting.place / "conf.d").mkdir(exist_ok=True)
    (setting.place / "conf.d/more.yaml").write_text(json.dumps({f"cluster.{key}": value for key, value in more.items()}))
    paths = ["--config", config, "--socket", setting.place / "no.sock"]
    done = subprocess.run(
        [setting.saltcellar, "doctor", "--no-master", "--output", "json", *paths], capture_output=True, text=True, timeout=120
    )
    checks = [one for one in json.loads(done.stdout)["checks"] if one["check"].startswith("cluster.")]
    return [(one["check"], one["result"]) for one in checks], "\n".join(one["message"] for one in checks)


def test_doctor_connects_as_the_daemon_does_and_finds_what_is_wrong(setting):
    section = (setting.dir / "saltcellar-m1.yaml").read_text()
    monitor = [f"http://127.0.0.1:{port + 4000}" for port in setting.ports]

    def is_whole():
        verdicts, said = doctor(setting, section, "master-m1", monitor=monitor)
        return not any(verdict == "warning" for _, verdict in verdicts) and (verdicts, said)

    # A replica may be behind for a moment.
    verdicts, said = eventually("three servers", is_whole)
    assert verdicts == [*[("cluster.sync", "ok")] * 3, *[("cluster.nats", "ok")] * 3, ("cluster.stream", "ok"), ("cluster.user", "ok")], said
    assert "connected as m1" in said and "is on 3 servers" in said and "may publish as m1 only" in said, said

    # Without the monitor nothing tells.
    verdicts, said = doctor(setting, section, "master-m1")
    assert verdicts[0] == ("cluster.sync", "skipped") and "it is unknown" in said, said

    verdicts, said = doctor(setting, section, "master-m2")
    assert [one for one in verdicts if one[1] == "problem"] == [("cluster.nats", "problem")] * 3, said
    assert "authorization violation" in said and setting.password("master-m2") not in said, said

    # Whoever may do everything may be every master.
    verdicts, said = doctor(setting, section.replace('user: "m1"', "user: nats-admin"), "nats-admin")
    assert ("cluster.user", "problem") in verdicts and ("cluster.user", "warning") in verdicts, said
    # The user of another master gets no responses.
    verdicts, said = doctor(setting, section.replace('user: "m1"', 'user: "m2"'), "master-m2")
    assert ("cluster.stream", "problem") in verdicts and 'Permissions Violation for Subscription to "_INBOX_m1.' in said, said

    verdicts, said = doctor(setting, section.replace(f'stream: "{STREAM}"', 'stream: "other"'), "master-m1")
    assert ("cluster.stream", "problem") in verdicts and "cannot find the stream other: Permissions Violation" in said, said

    verdicts, said = doctor(setting, section, "master-m1", window="30d")
    assert ("cluster.stream", "warning") in verdicts and "it keeps messages for" in said, said


def test_daemons_with_the_sections_share_what_their_masters_store(setting, run, place):
    def daemon(name):
        # They read the same file, each when it connects.
        shutil.copy(setting.dir / f"master-{name}.password", setting.etc / "nats.password")
        (place / name).mkdir()
        cluster = yaml.safe_load((setting.dir / f"saltcellar-{name}.yaml").read_text())["cluster"]
        return Cellar(run, place / name, {}, cluster={**cluster, "replicate": "all"})

    def count(client):
        found = client.api(f"STREAM.INFO.{STREAM}", subjects_filter=f"{STREAM}.log.m1")
        return found["state"].get("subjects", {}).get(f"{STREAM}.log.m1", 0)

    admin = setting.admin()
    before = count(admin)
    m1 = daemon("m1")
    m1.fire(("from/m1", {"n": 1}))
    eventually("the entry in the stream", lambda: count(admin) > before)

    m2 = daemon("m2")
    m2.fire(("from/m2", {"n": 2}))
    for one, tag, master in [(m2, "from/m1", "m1"), (m1, "from/m2", "m2")]:
        def rows(one=one, tag=tag):
            return json.loads(one.verb("events", "list", "--tag", tag, "--output", "json"))["events"]

        (row,) = eventually(f"{tag} on the other master", rows)
        assert row["master"] == master, row


def test_a_wrong_password_is_rejected(setting):
    with pytest.raises(Denied, match="Authorization Violation"):
        Client(setting.ports[0], "m1", setting.password("master-m2"), "_INBOX_m1", setting.ca)


def test_a_master_is_added_and_the_others_keep_their_passwords(setting):
    before = {path.name: path.read_text() for path in setting.dir.glob("*")}
    setting.masters = (*setting.masters, "m4")
    setting.init()
    after = {path.name: path.read_text() for path in setting.dir.glob("*")}
    assert set(after) - set(before) == {"master-m4.password", "saltcellar-m4.yaml"}
    changed = {name for name in before if before[name] != after[name]}
    assert changed == {f"nats-server-127.0.0.1-{port}.conf" for port in setting.ports}, changed

    for process in setting.processes:
        process.send_signal(1)
    eventually("the new user", lambda: can_connect(setting, "m4"))
    m4 = setting.master("m4")
    assert json.loads(m4.request(f"{STREAM}.log.m4", b"new"))["stream"] == STREAM


def can_connect(setting, name):
    try:
        return setting.master(name)
    except Denied:
        return None
