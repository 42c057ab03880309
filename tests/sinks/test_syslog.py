"""The transport `syslog`, with rsyslog."""
import json
import os
import subprocess

import pytest
from conftest import eventually, free_port, is_open, program

TEMPLATE = (
    'template(name="t" type="list") { constant(value="{") property(name="hostname" format="jsonf") constant(value=",") '
    'property(name="app-name" format="jsonf") constant(value=",") property(name="msgid" format="jsonf") constant(value=",") '
    'property(name="structured-data" format="jsonf") constant(value=",") property(name="pri" format="jsonf") constant(value=",") '
    'property(name="msg" format="jsonf") constant(value="}\\n") }\n'
)


@pytest.fixture
def rsyslog(run, place):
    """Starts rsyslog with inputs; returns what it has written."""
    rsyslogd = program("rsyslogd", package="rsyslog")
    out = place / "out.jsonl"

    def start(inputs):
        config = place / "rsyslog.conf"
        config.write_text(
            f'global(workDirectory="{place}" maxMessageSize="256k")\n{inputs}\n{TEMPLATE}*.* action(type="omfile" file="{out}" template="t")\n'
        )
        run(rsyslogd, "-n", "-f", config, "-i", place / "rsyslog.pid")
        return lambda: [json.loads(line) for line in out.read_text().splitlines()] if out.exists() else []

    return start


def sink(address, **options):
    transport = {"syslog": {"address": address, "facility": "local3", "severity": "warning", **options}}
    return {"match": [{"tag": "salt/*"}], "encoder": "json", "transport": transport, "retry": {"backoff": "1s", "max": "1s"}}


def fire(daemon, first=0):
    daemon.fire(*[("salt/job/7/ret/web1", {"n": n, "id": "web1", "fun": "test.ping", "jid": "7", "text": 'a\n"]\\'}) for n in range(first, first + 20)])


def check(found):
    rows = [row for row in found() if row["pri"] == str(19 * 8 + 4)]
    numbers = [json.loads(row["msg"])["data"]["n"] for row in rows]
    if len(set(numbers)) < 20:
        return None
    assert (rows[0]["hostname"], rows[0]["app-name"], rows[0]["msgid"]) == ("web1", "salt", "test.ping"), rows[0]
    assert 'tag="salt/job/7/ret/web1" jid="7"]' in rows[0]["structured-data"], rows[0]
    return numbers


def test_messages_over_a_unix_socket(cellar, place, rsyslog):
    path = place / "log"
    found = rsyslog(f'module(load="imuxsock" SysSock.Use="off")\ninput(type="imuxsock" Socket="{path}" UseSpecialParser="off" ParseHostname="on")')
    eventually("the socket", path.exists)
    daemon = cellar(syslog=sink(f"unix:{path}"))
    fire(daemon)
    daemon.delivered("syslog")
    eventually("the messages", lambda: check(found))
    assert "accepts connections" in daemon.checked("syslog")[0]


def test_messages_over_tcp_with_octet_counting(cellar, rsyslog):
    port = free_port()
    found = rsyslog(f'module(load="imtcp")\ninput(type="imtcp" address="127.0.0.1" port="{port}")')
    daemon = cellar(syslog=sink(f"tcp://127.0.0.1:{port}"))
    # Before and after the start of the receiver.
    fire(daemon)
    eventually("the start of rsyslog", lambda: is_open(port))
    daemon.delivered("syslog")
    assert len(eventually("the messages", lambda: check(found))) >= 20
    daemon.checked("syslog")


def test_messages_over_tls_and_a_wrong_certificate(cellar, place, certificates, rsyslog):
    plugin = next((p for p in ["/usr/lib/x86_64-linux-gnu/rsyslog/lmnsd_ossl.so", "/usr/lib/x86_64-linux-gnu/rsyslog/lmnsd_gtls.so"] if os.path.exists(p)), None)
    if plugin:
        driver = "ossl" if "ossl" in plugin else "gtls"
        port = free_port()
        found = rsyslog(
            f'global(DefaultNetstreamDriver="{driver}" DefaultNetstreamDriverCAFile="{certificates["own.pem"]}" '
            f'DefaultNetstreamDriverCertFile="{certificates["own.pem"]}" DefaultNetstreamDriverKeyFile="{certificates["own.key"]}")\n'
            f'module(load="imtcp" StreamDriver.Name="{driver}" StreamDriver.Mode="1" StreamDriver.AuthMode="anon")\n'
            f'input(type="imtcp" address="127.0.0.1" port="{port}")'
        )
    else:
        # The TLS drivers of rsyslog are packages of their own; this terminates TLS before it.
        plain, port = free_port(), free_port()
        found = rsyslog(f'module(load="imtcp")\ninput(type="imtcp" address="127.0.0.1" port="{plain}")')
        eventually("the start of rsyslog", lambda: is_open(plain))
        terminate(port, plain, certificates)
    eventually("the start of the receiver", lambda: is_open(port))
    daemon = cellar(
        syslog=sink(f"tls://127.0.0.1:{port}", tls={"ca": certificates["own.pem"]}),
        wrong=sink(f"tls://127.0.0.1:{port}", tls={"ca": certificates["other.pem"]}),
    )
    fire(daemon)
    daemon.delivered("syslog")
    eventually("the messages", lambda: check(found))
    error = eventually("an error", lambda: (daemon.sink("wrong")["error"] or {}).get("message", ""))
    assert "certificate" in error, error
    assert daemon.sink("wrong")["lag_entries"] == 20


def terminate(port, target, certificates):
    """Accepts TLS on a port and passes the bytes on to another one."""
    import socket
    import ssl
    import threading

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificates["own.pem"], certificates["own.key"])
    listener = socket.create_server(("127.0.0.1", port))

    def pump(raw):
        try:
            with context.wrap_socket(raw, server_side=True) as stream, socket.create_connection(("127.0.0.1", target)) as out:
                while data := stream.recv(65536):
                    out.sendall(data)
        except OSError:
            raw.close()

    def serve():
        while True:
            raw, _ = listener.accept()
            threading.Thread(target=pump, args=(raw,), daemon=True).start()

    threading.Thread(target=serve, daemon=True).start()


def test_entries_of_the_journal(cellar, place):
    """Against a real journald, which a host without systemd does not have."""
    if not os.path.exists("/run/systemd/journal/socket"):
        pytest.skip("missing: a running systemd-journald")
    daemon = cellar(journal={"encoder": "json", "transport": {"journald": {"identifier": f"salt-{os.getpid()}"}}})
    daemon.fire(("salt/auth", {"n": 1}), ("salt/auth", {"n": 2, "text": "x" * 300_000}))
    daemon.delivered("journal")

    def found():
        shown = subprocess.run(["journalctl", "-o", "json", "-t", f"salt-{os.getpid()}"], capture_output=True, text=True)
        rows = [json.loads(line) for line in shown.stdout.splitlines()]
        return rows if len(rows) == 2 else None

    rows = eventually("the entries", found)
    assert rows[0]["SALT_TAG"] == "salt/auth"
