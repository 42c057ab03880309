"""Destinations that fail in every way, and changes of a sink with a backlog."""
import json
import os
import re
import socket
import subprocess
import threading
import time

import pytest
from conftest import eventually, program
from receiver import Receiver

FAST = {"backoff": "1s", "max": "1s"}


def sink(url, **more):
    http = {"url": url, "timeout": "2s", "body": {"separator": "\n"}}
    return {"match": [{"tag": "salt/*"}], "encoder": "json", "transport": {"http": http}, "batch": {"count": 8, "time": "0s"}, "retry": FAST, **more}


def fire(daemon, count=20, first=0):
    daemon.fire(*[("salt/auth", {"n": n}) for n in range(first, first + count)])


def numbers(bodies):
    return [json.loads(line)["data"]["n"] for body in bodies for line in body.splitlines()]


def error(daemon, name):
    return eventually("an error", lambda: (daemon.sink(name)["error"] or {}).get("message", ""))


def test_a_hostile_receiver_gets_each_event_and_its_poison_record_is_the_only_dead_letter(cellar):
    accepted = []

    def answer(n, body):
        if n == 0:
            return 429, {"retry-after": "2"}, b"slow down"
        if n == 1:
            return 500, {}, b""
        if n == 2:
            return None
        if n == 3:
            return 200, {"content-length": "1000"}, b"half"
        if n == 4:
            time.sleep(4)
            return 200, {}, b"late"
        if body.count(b"\n") >= 4:
            return 413, {}, b"too large"
        if 13 in numbers([body]):
            return 400, {}, b"poison"
        accepted.append(body)
        return 204, {}, b""

    receiver = Receiver(answer)
    daemon = cellar(hook=sink(receiver.url))
    fire(daemon)
    daemon.delivered("hook")
    (letter,) = daemon.letters("hook")
    assert (letter["reason"], json.loads(letter["data"])["n"]) == ("400 Bad Request: poison", 13)
    assert sorted(set(numbers(accepted))) == [n for n in range(20) if n != 13]
    assert len(numbers(accepted)) == 19, "what it accepted is not resent"
    assert numbers(accepted) == sorted(numbers(accepted)), "in order"


def test_a_destination_that_is_down_refuses_or_is_not_http(cellar):
    listener = socket.create_server(("127.0.0.1", 0))
    port = listener.getsockname()[1]
    daemon = cellar(hook=sink(f"http://127.0.0.1:{port}"))

    def garbage():
        while True:
            try:
                stream, _ = listener.accept()
            except OSError:
                return
            with stream:
                stream.recv(100)
                stream.sendall(b"SSH-2.0-OpenSSH_9.2\r\n")

    thread = threading.Thread(target=garbage, daemon=True)
    thread.start()
    fire(daemon)
    assert error(daemon, "hook")
    listener.shutdown(socket.SHUT_RDWR)
    listener.close()
    eventually("a refused connection", lambda: "refused" in error(daemon, "hook").lower())
    assert daemon.sink("hook")["lag_entries"] == 20
    receiver = Receiver()
    daemon.reload({"hook": sink(receiver.url)})
    eventually("the delivery", lambda: len(receiver.requests) and daemon.sink("hook")["lag_entries"] == 0)
    assert numbers(receiver.bodies()) == list(range(20))


def test_a_wrong_certificate_is_retried_and_the_right_one_accepted(cellar, certificates):
    receiver = Receiver(certificate=(certificates["own.pem"], certificates["own.key"]))
    tls = lambda ca: {"http": {"url": receiver.url, "tls": {"ca": ca}, "body": {"separator": "\n"}}}
    daemon = cellar(
        right={**sink(""), "transport": tls(certificates["own.pem"])}, wrong={**sink(""), "transport": tls(certificates["other.pem"])},
    )
    fire(daemon)
    daemon.delivered("right")
    assert "certificate" in error(daemon, "wrong")
    assert numbers(receiver.bodies()) == list(range(20))


def test_a_stalled_receiver_delays_neither_ingest_nor_another_sink(cellar, place):
    release = threading.Event()
    receiver = Receiver(lambda n, body: (200, {}, b"") if release.wait(60) else None)
    log = place / "log"
    daemon = cellar(slow=sink(receiver.url), log={"encoder": "json", "transport": {"file": {"path": str(log)}}})
    for part in range(10):
        fire(daemon, 100, part * 100)
    daemon.delivered("log")
    assert daemon.sink("slow")["lag_entries"] == 1000
    release.set()
    daemon.delivered("slow", 120)


def test_a_template_that_fails_on_one_event_makes_only_it_a_dead_letter(cellar, place):
    log = place / "log"
    daemon = cellar(log={"match": [{"tag": "salt/*"}], "encoder": {"template": {"text": "{{ 10 // data.n }}"}}, "transport": {"file": {"path": str(log)}}})
    fire(daemon, 6)
    daemon.delivered("log")
    assert log.read_text().split() == ["10", "5", "3", "2", "2"]
    (letter,) = daemon.letters("log")
    assert letter["reason"].startswith("the template of the sink failed: line 1: "), letter


def test_a_program_that_writes_garbage_or_forks_is_replaced(cellar, place):
    script = place / "program.py"
    script.write_text(
        "#!/usr/bin/python3\n"
        "import os, sys\n"
        f"place = {str(place)!r}\n"
        "state = f'{place}/state.txt'\n"
        "runs = int(open(state).read()) if os.path.exists(state) else 0\n"
        "open(state, 'w').write(str(runs + 1))\n"
        "if os.fork() == 0:\n"
        "    os.execlp('sleep', f'sleep', '1234.5')\n"
        "for line in sys.stdin:\n"
        "    if runs == 0:\n"
        "        print('<html>', flush=True)\n"
        "    elif runs == 1:\n"
        "        os.write(1, bytes(range(256)) * 100)\n"
        "        sys.exit(3)\n"
        "    else:\n"
        "        open(f'{place}/out', 'a').write(line)\n"
        "        print('ok', flush=True)\n"
    )
    script.chmod(0o755)
    daemon = cellar(program={"match": [{"tag": "salt/*"}], "encoder": "json", "transport": {"exec": {"command": [str(script)], "timeout": "5s"}}, "retry": FAST})
    fire(daemon)
    daemon.delivered("program")
    assert numbers([(place / "out").read_bytes()]) == list(range(20))
    # The processes of the first two programs ended with their groups; the third one still runs.
    sleeping = subprocess.run(["pgrep", "-fc", "^sleep 1234.5"], capture_output=True, text=True).stdout.strip()
    assert sleeping == "1", sleeping


def test_a_sink_that_is_renamed_or_removed_keeps_its_backlog(cellar):
    receiver = Receiver(lambda n, body: (503, {}, b""))
    daemon = cellar(hook=sink(receiver.url))
    fire(daemon)
    error(daemon, "hook")
    fine = Receiver()
    daemon.reload({"renamed": sink(fine.url)})
    eventually("the new sink", lambda: "renamed" in daemon.verb("sinks", "list"))
    eventually("the start of the new sink", lambda: daemon.sink("renamed")["state"] == "idle")
    consumers = {row["name"]: row for row in daemon.ask("consumers_list")["consumers"]}
    assert consumers["hook"]["lag_entries"] == 20, "its position stays"
    fire(daemon, 5, 20)
    daemon.delivered("renamed")
    assert numbers(fine.bodies()) == list(range(20, 25)), "a new sink begins with the next event"
    daemon.reload({"hook": sink(fine.url)})
    eventually("the backlog", lambda: sorted(numbers(fine.bodies())) == sorted([*range(20, 25), *range(25)]))


def test_a_full_disk_pauses_the_sink_and_leaves_no_incomplete_line(cellar, place):
    if os.getuid() != 0:
        pytest.skip("missing: rights to mount a small file system")
    small = place / "small"
    small.mkdir()
    mount = program("mount", package="mount")
    mounted = subprocess.run([mount, "-t", "tmpfs", "-o", "size=64k", "tmpfs", small], capture_output=True, text=True)
    if mounted.returncode:
        pytest.skip(f"missing: rights to mount a small file system: {mounted.stderr.strip()}")
    try:
        log = small / "log"
        (small / "ballast").write_bytes(b"x" * 40_000)
        daemon = cellar(log={"match": [{"tag": "salt/*"}], "encoder": "json", "transport": {"file": {"path": str(log)}}, "batch": {"count": 10}, "retry": FAST})
        daemon.fire(*[("salt/auth", {"n": n, "text": "y" * 300}) for n in range(100)])
        assert re.search("No space left", error(daemon, "log"))
        assert all(json.loads(line) for line in log.read_text().splitlines())
        (small / "ballast").unlink()
        daemon.delivered("log")
        assert numbers([log.read_bytes()]) == list(range(100))
        daemon.kill()
    finally:
        subprocess.run(["umount", "-l", small], check=False)
