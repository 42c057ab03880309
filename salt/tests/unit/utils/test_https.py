"""HTTPS: what is signed and verified, and that nothing is lost while the daemon rejects entries."""

import hashlib
import http.server
import logging
import os
import shutil
import socket
import ssl
import struct
import threading
from pathlib import Path

import msgpack
import pytest
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import padding

from saltext.saltcellar.utils import client as client_
from saltext.saltcellar.utils import settings as settings_
from saltext.saltcellar.utils import wire
from tests.support.helpers import unpack

DATA = Path(__file__).resolve().parents[2] / "data" / "https"
CHALLENGE = bytes(range(16))


class FakeHttpsDaemon(http.server.ThreadingHTTPServer):
    """The daemon's side, with the standard library: verifies requests as specified in docs/WIRE.md, and records calls."""

    daemon_threads = True

    def __init__(self, certificate="server"):
        super().__init__(("127.0.0.1", 0), Handler)
        self.calls, self.numbers, self.connections = [], [], 0
        self.refusal, self.hang_up, self.status = None, 0, 200
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(DATA / f"{certificate}.pem", DATA / f"{certificate}.key")
        pem = (DATA / f"{certificate}.pem").read_text()
        self.shown = hashlib.sha256(ssl.PEM_cert_to_DER_cert(pem)).digest()
        self.key = serialization.load_pem_public_key((DATA / "minion-a.pub").read_bytes())
        self.socket = context.wrap_socket(
            self.socket, server_side=True, do_handshake_on_connect=False
        )
        threading.Thread(target=self.serve_forever, args=(0.02,), daemon=True).start()

    @property
    def url(self):
        return f"https://localhost:{self.server_port}"

    def handle_error(self, request, client_address):
        """Some tests cause failed handshakes."""


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def setup(self):
        self.server.connections += 1
        super().setup()

    def log_message(self, *args):
        pass

    def do_GET(self):
        assert self.path == "/v1/hello"
        self.answer(200, msgpack.packb({"version": 1, "challenge": CHALLENGE, "time": 0}))

    def do_POST(self):
        assert self.path == "/v1/batch"
        body = self.rfile.read(int(self.headers["Content-Length"]))
        at, challenge, number, digest, length, ids, signatures = struct.unpack(
            ">q16sQ32sIHH", body[8:80]
        )
        minion, signature = body[80 : 80 + ids], body[80 + ids :][:signatures]
        payload = body[80 + ids + signatures :]
        text = b"POST /v1/batch\n" + self.server.shown + body[:78] + minion
        try:
            self.server.key.verify(signature, text, padding.PKCS1v15(), hashes.SHA256())
            assert body[:8] == b"SCSIGN\x00\x01" and challenge == CHALLENGE and at > 1.7e15
            assert (length, digest) == (len(payload), hashlib.sha256(payload).digest())
        except (InvalidSignature, AssertionError) as exc:
            return self.answer(
                403, frame([None, False, {"code": "signature", "message": repr(exc)}])
            )
        if self.server.hang_up:
            self.server.hang_up -= 1
            self.close_connection = True
            return None
        if self.server.refusal:
            return self.answer(self.server.status, frame([None, False, self.server.refusal]))
        out = b""
        while payload:
            (size,) = struct.unpack_from(">I", payload)
            number_, call, args = unpack(payload[4 : 4 + size])
            payload = payload[4 + size :]
            self.server.calls.append((minion.decode(), call, args))
            out += frame([number_, True, None])
        self.server.numbers.append(number)
        return self.answer(200, out)

    def answer(self, status, body):
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        if status != 200:
            self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(body)


def frame(value):
    body = msgpack.packb(value)
    return struct.pack(">I", len(body)) + body


@pytest.fixture
def source():
    opened = []

    def open_(certificate="server"):
        opened.append(FakeHttpsDaemon(certificate))
        return opened[-1]

    yield open_
    for one in opened:
        one.shutdown()
        one.server_close()


@pytest.fixture
def minion(run_dir):
    """A client as created by a minion's returner."""
    pki = run_dir / "pki"
    pki.mkdir()
    shutil.copy(DATA / "minion-a.pem", pki / "minion.pem")

    def client(url, **more):
        opts = {
            "__role": "minion",
            "id": "a",
            "cachedir": str(run_dir / "cache"),
            "pki_dir": str(pki),
            "saltcellar.url": url,
            "saltcellar.ca": str(DATA / "ca.pem"),
            "saltcellar.timeout": 5,
        }
        opts.update({f"saltcellar.{key}": value for key, value in more.items()})
        return client_.get_client({key: value for key, value in opts.items() if value is not None})

    client.pki = pki
    return client


def ret(n):
    return {"load": {"jid": str(n), "id": "a", "return": n}}


def spooled(client):
    return [wire.unpack(record.payload)[1]["load"]["return"] for record in client.spool.records()]


def test_signed_returns_share_one_connection(source, minion):
    far = source()
    client = minion(far.url)
    for n in range(3):
        client.write("returner", ret(n))
    assert [(who, call, args["load"]["return"]) for who, call, args in far.calls] == [
        ("a", "returner", n) for n in range(3)
    ]
    assert (far.connections, far.numbers) == (1, [1, 2, 3])
    assert not any("replay" in args for _, _, args in far.calls)
    assert spooled(client) == []


def test_a_call_whose_answer_was_lost_is_resent_as_a_replay(source, minion):
    far = source()
    client = minion(far.url)
    client.write("returner", ret(1))
    far.hang_up = 1
    client.write("returner", ret(2))
    assert [args.get("replay") for _, _, args in far.calls] == [None, True]
    assert far.connections == 2


@pytest.mark.parametrize(
    "code", ["not_accepted", "signature", "clock", "replayed", "unavailable", "internal"]
)
def test_temporarily_rejected_entries_wait_and_arrive_later(source, minion, caplog, code):
    far = source()
    client = minion(far.url)
    far.refusal, far.status = {"code": code, "message": "as things are"}, 403
    with caplog.at_level(logging.ERROR):
        client.write("returner", ret(1))
    assert spooled(client) == [1]
    assert f"{code}: as things are" in caplog.text
    # The next call does not try to connect: otherwise each job of a minion would.
    connections = far.connections
    client.write("returner", ret(2))
    assert (spooled(client), far.connections) == ([1, 2], connections)
    # Repetition does not dead-letter the entry.
    for _ in range(client_.spool_.TRIES_MAX + 5):
        client_.forget()
        client.hand_over(60)
    assert spooled(client) == [1, 2]
    far.refusal = None
    client_.forget()
    client.write("returner", ret(3))
    assert [args["load"]["return"] for _, _, args in far.calls] == [3, 1, 2]
    assert [args.get("replay") for _, _, args in far.calls] == [None, True, True]
    assert spooled(client) == [] and client.spool.counters() == {}


def test_a_permanent_rejection_is_counted(source, minion):
    far = source()
    client = minion(far.url)
    far.refusal, far.status = {"code": "too_large", "message": "no"}, 413
    client.write("returner", ret(1))
    assert (spooled(client), client.spool.counters()) == (
        [],
        {"too_large": 1, "value_too_large": 1},
    )


@pytest.mark.parametrize(
    "certificate, settings, words",
    [
        ("expired", {}, "certificate has expired: renew it"),
        ("server", {"ca": None}, "set saltcellar.ca to its CA file"),
        ("server", {"ca": str(DATA / "renewed.pem")}, "certificate is not trusted"),
        ("server", {"ca": "/nowhere/ca.pem"}, "saltcellar.ca: cannot load /nowhere/ca.pem"),
        ("server", {"pki_dir": "/nowhere"}, "cannot sign with /nowhere/minion.pem"),
    ],
)
def test_nothing_is_sent_to_an_untrusted_daemon_or_without_a_key(
    source, minion, caplog, certificate, settings, words
):
    far = source(certificate)
    client = minion(far.url, **settings)
    with caplog.at_level(logging.ERROR):
        client.write("returner", ret(1))
    assert words in caplog.text
    assert (far.calls, spooled(client)) == ([], [1])


def test_the_name_must_be_the_certificates(source, minion, caplog):
    far = source()
    client = minion(far.url.replace("localhost", "127.0.0.2"))
    far.socket.close()
    bound = socket.create_server(("127.0.0.2", 0))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(DATA / "server.pem", DATA / "server.key")

    def shake():
        one, _ = bound.accept()
        try:
            context.wrap_socket(one, server_side=True)
        except OSError:
            one.close()

    threading.Thread(target=shake, daemon=True).start()
    client = minion(f"https://127.0.0.2:{bound.getsockname()[1]}")
    with caplog.at_level(logging.ERROR):
        client.write("returner", ret(1))
    assert "IP address mismatch" in caplog.text and "saltcellar.url" in caplog.text
    assert spooled(client) == [1]
    bound.close()


@pytest.mark.parametrize(
    "url", ["http://x:1", "x:4580", "https://", "https://x:port", "https://x:1/path", "https://u@x"]
)
def test_an_invalid_address_is_logged_and_causes_no_connection(minion, caplog, url):
    client = minion(url)
    with caplog.at_level(logging.ERROR):
        client.write("returner", ret(1))
    assert "is not of the form https://host:4580" in caplog.text
    assert spooled(client) == [1]


def test_a_port_without_tls_is_reported(minion, caplog):
    plain = http.server.ThreadingHTTPServer(("127.0.0.1", 0), http.server.BaseHTTPRequestHandler)
    plain.RequestHandlerClass.log_message = lambda *_: None
    threading.Thread(target=plain.serve_forever, args=(0.02,), daemon=True).start()
    client = minion(f"https://localhost:{plain.server_port}")
    with caplog.at_level(logging.ERROR):
        client.write("returner", ret(1))
    plain.shutdown()
    plain.server_close()
    assert "TLS handshake failed" in caplog.text
    assert spooled(client) == [1]


def test_a_child_opens_a_new_connection(source, minion, in_child):
    far = source()
    client = minion(far.url)
    client.write("returner", ret(1))
    in_child(client.write, "returner", ret(2))
    client.write("returner", ret(3))
    assert [args["load"]["return"] for _, _, args in far.calls] == [1, 2, 3]
    assert far.connections == 2


def test_a_key_that_was_exchanged_is_read_again(source, minion):
    far = source()
    client = minion(far.url)
    client.write("returner", ret(1))
    shutil.copy(DATA / "minion-b.pem", minion.pki / "minion.pem")
    client.write("returner", ret(2))
    assert spooled(client) == [2], "signed with a key that the daemon does not know"
    far.key = serialization.load_pem_public_key((DATA / "minion-b.pub").read_bytes())
    client_.forget()
    client.write("returner", ret(3))
    assert spooled(client) == []


def test_the_settings_of_a_minion(monkeypatch):
    opts = {
        "id": "web1",
        "pki_dir": "/pki",
        "saltcellar.url": "https://master:4580",
        "saltcellar.ca": "/ca.pem",
    }
    got = settings_.from_opts(opts)
    assert (got.address, got.minion_id, got.pki_dir, got.ca) == (
        "https://master:4580",
        "web1",
        "/pki",
        "/ca.pem",
    )
    assert got.timeout == settings_.URL_TIMEOUT
    assert (
        settings_.from_opts(
            {**opts, "saltcellar.timeout": 3, "saltcellar.pki_dir": "/other"}
        ).pki_dir
        == "/other"
    )
    assert settings_.from_opts({"id": "web1"}).address == settings_.from_opts({}).socket
    monkeypatch.setenv("SALTCELLAR_SOCKET", "/env")
    assert (settings_.from_opts(opts).address, settings_.from_opts(opts).url) == ("/env", None)
    assert os.path.isabs(settings_.DEFAULT_PKI_DIR)
