"""The ZeroMQ sockets with libzmq as peer: a daemon alone, no master."""
import contextlib
import os
import shutil
import signal
import socket
import time

import msgpack
import pytest
import salt_lab
import zmq
from conftest import Daemon, eventually


def pack(tag, data):
    return tag.encode() + b"\n\n" + msgpack.packb(data, use_bin_type=True)


def unpack(message):
    tag, _, data = message.partition(b"\n\n")
    return tag.decode(), msgpack.unpackb(data, raw=False)


class Sources(Daemon):
    """A daemon with both sockets, in a directory that only its group may enter."""

    def __init__(self, root):
        super().__init__(root, bus=f"{root}/no-bus")
        self.pull, self.pub = f"ipc://{root}/z/in.sock", f"ipc://{root}/z/out.sock"
        with open(f"{root}/c.yaml", "w") as f:
            f.write(f"zeromq: {{pull: '{self.pull}', pub: '{self.pub}'}}\n")

    def start(self):
        self.flags = ["--config", f"{self.root}/c.yaml"]
        super().start()

    def counter(self, name):
        return self.status()["counters"][name]

    def source(self, name):
        return next(d for d in self.status()["zeromq"] if d["source"] == name)

    def stored(self, count):
        eventually(f"{count} events in the archive", lambda: self.counter("entries_stored") >= count)


@pytest.fixture
def sources():
    root = salt_lab.new_dir("sc-zmq-")
    d = Sources(root)
    d.start()
    yield d
    if d.running:
        d.stop()
    shutil.rmtree(root, ignore_errors=True)


@pytest.fixture
def zmq_socket():
    context = zmq.Context()
    opened = []

    def make(kind, address, **options):
        s = context.socket(kind)
        s.setsockopt(zmq.LINGER, options.pop("linger", 0))
        s.setsockopt(zmq.RCVTIMEO, 20_000)
        for name, value in options.items():
            s.setsockopt(getattr(zmq, name.upper()), value)
        s.connect(address)
        opened.append(s)
        return s
    yield make
    for s in opened:
        s.close(0)
    context.term()


def subscribed(sources, zmq_socket, *prefixes, **options):
    """A SUB whose subscriptions have arrived: marker events are pushed until it receives one."""
    sub = zmq_socket(zmq.SUB, sources.pub, **options)
    for prefix in prefixes:
        sub.subscribe(prefix)
    push = zmq_socket(zmq.PUSH, sources.pull, linger=5000)
    prefix = prefixes[0] if isinstance(prefixes[0], str) else prefixes[0].decode()

    def hears():
        push.send(pack(f"{prefix}/mark", {}))
        return sub.poll(200)
    eventually("the subscription", hears)
    # until an end marker arrives after all other markers
    end = f"{prefix}/mark/{time.monotonic_ns()}"
    push.send(pack(end, {}))
    while unpack(sub.recv())[0] != end:
        pass
    return sub


def test_the_sockets_are_closed_to_others(sources):
    for name in ("in.sock", "out.sock"):
        assert os.stat(f"{sources.root}/z/{name}").st_mode & 0o777 == 0o660
    assert os.stat(f"{sources.root}/z").st_mode & 0o777 == 0o750


def test_a_push_socket_is_archived(sources, zmq_socket):
    push = zmq_socket(zmq.PUSH, sources.pull, linger=5000)
    sent = []
    for n in range(3000):
        event = (f"load/{n % 7}", {"n": n, "text": "žluť", "bin": b"\xff\x00", "none": None, "list": [1.5, {}]})
        sent.append(event)
        if n % 3 == 0:
            push.send_multipart([event[0].encode(), msgpack.packb(event[1], use_bin_type=True)])
        else:
            push.send(pack(*event))
    large = ("load/large", {"n": 3000, "fill": "x" * 3_000_000})
    push.send(pack(*large))
    for wrong in (b"", b"no tag", b"a\n\nno map", b"a\n\n\x90"):
        push.send(wrong)
    push.send_multipart([b"a", b"\x80", b"c"])
    sources.stored(3001)
    events = sources.events("--tag", "load/[0-9]")
    assert [(e["tag"], e["data"]["n"]) for e in events] == [(t, d["n"]) for t, d in sent]
    assert events[0]["source"] == "zeromq"
    assert events[0]["data"]["bin"] == {"$bin": "/wA="}
    assert len(sources.events("--tag", "load/large")[0]["data"]["fill"]) == 3_000_000
    eventually("the count", lambda: sources.counter("zmq_messages_malformed") == 5)


def test_a_socket_of_the_wrong_type_is_rejected_and_others_continue(sources, zmq_socket):
    zmq_socket(zmq.SUB, sources.pull).subscribe("")
    zmq_socket(zmq.REQ, sources.pub)
    zmq_socket(zmq.PUSH, sources.pull, linger=5000).send(pack("fine", {}))
    sources.stored(1)


def test_subscriptions_are_prefixes(sources, zmq_socket):
    everything = subscribed(sources, zmq_socket, "")
    jobs = subscribed(sources, zmq_socket, "salt/job/", b"salt/auth\n\n")
    push = zmq_socket(zmq.PUSH, sources.pull, linger=5000)
    tags = ["salt/job/1/new", "salt/auth", "salt/authority", "salt/job/2/ret/web1", "other"]
    # the subscriber to everything skips the marker events, too
    push.send(pack("begin", {}))
    while unpack(everything.recv())[0] != "begin":
        pass
    for n in range(500):
        push.send(pack(tags[n % 5], {"n": n}))
    got = [unpack(everything.recv()) for _ in range(500)]
    assert got == [(tags[n % 5], {"n": n}) for n in range(500)]
    got = [unpack(jobs.recv()) for _ in range(300)]
    assert got == [(tags[n % 5], {"n": n}) for n in range(500) if n % 5 in (0, 1, 3)]
    jobs.unsubscribe("salt/job/")
    assert not jobs.poll(0)


def test_a_slow_subscriber_delays_no_other(sources, zmq_socket):
    slow = subscribed(sources, zmq_socket, "", rcvhwm=10)
    brisk = subscribed(sources, zmq_socket, "tick")
    push = zmq_socket(zmq.PUSH, sources.pull, linger=5000)
    before = sources.status()["counters"]["entries_stored"]
    for n in range(300):
        push.send(pack("fill", {"n": n, "fill": "x" * 100_000}))
        push.send(pack("tick", {"n": n}))
        assert unpack(brisk.recv()) == ("tick", {"n": n})
    sources.stored(before + 600)
    # the received events are in order, each once
    got = [unpack(slow.recv())]
    with contextlib.suppress(zmq.Again):
        slow.setsockopt(zmq.RCVTIMEO, 1000)
        while True:
            got.append(unpack(slow.recv()))
    for tag in ("fill", "tick"):
        numbers = [d["n"] for t, d in got if t == tag]
        assert numbers and numbers == sorted(set(numbers))


def test_hostile_peers_do_not_affect_others(sources, zmq_socket):
    greeting = b"\xff" + bytes(8) + b"\x7f\x03\x00NULL" + bytes(48)
    assert len(greeting) == 64
    ready = b"\x04\x1a\x05READY\x0bSocket-Type\x00\x00\x00\x04PUSH"
    held = []
    for source in ("in.sock", "out.sock"):
        for words in (b"", b"GET / HTTP/1.1\r\n\r\n", os.urandom(500), greeting, greeting + ready,
                      greeting + b"\x06" + b"\xff" * 8,                                     # an endless command
                      greeting + ready + b"\x02" + (1 << 42).to_bytes(8, "big"),            # 4 TiB
                      greeting + ready + b"\x02" + (50 << 20).to_bytes(8, "big") + b"x"):   # started, never finished
            s = socket.socket(socket.AF_UNIX)
            s.connect(f"{sources.root}/z/{source}")
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                s.sendall(words)
            held.append(s)
    sub = subscribed(sources, zmq_socket, "good")
    zmq_socket(zmq.PUSH, sources.pull, linger=5000).send(pack("good", {"n": 1}))
    assert unpack(sub.recv()) == ("good", {"n": 1})
    for s in held:
        s.close()


@pytest.mark.parametrize("how", ["kill", "stop"])
def test_sockets_reconnect_after_a_daemon_restart(sources, zmq_socket, how):
    sub = subscribed(sources, zmq_socket, "t")
    push = zmq_socket(zmq.PUSH, sources.pull, linger=5000, reconnect_ivl=20)
    push.send(pack("t", {"n": 0}))
    assert unpack(sub.recv()) == ("t", {"n": 0})
    sources.kill() if how == "kill" else sources.stop()
    sources.start()
    # libzmq buffers messages while there is no peer
    push.send(pack("t", {"n": 1}))
    eventually("it in the archive", lambda: [e for e in sources.events("--tag", "t") if e["data"] == {"n": 1}])

    def hears():
        push.send(pack("t", {"n": 2}))
        return sub.poll(200)
    eventually("the subscription again", hears)
    assert unpack(sub.recv())[0] == "t"


def test_an_orderly_stop_keeps_what_libzmq_has_written(sources, zmq_socket):
    push = zmq_socket(zmq.PUSH, sources.pull, linger=5000)
    for n in range(2000):
        push.send(pack("kept", {"n": n}))
    eventually("libzmq to have written it", lambda: sources.counter("zmq_events") >= 2000)
    assert sources.stop() == 0
    sources.start()
    assert [e["data"]["n"] for e in sources.events("--tag", "kept")] == list(range(2000))


def test_status_shows_the_processes_of_the_zeromq_sockets(sources, zmq_socket):
    zmq_socket(zmq.PUSH, sources.pull, linger=5000).send(pack("one", {}))
    sources.stored(1)
    assert os.path.exists(f"/proc/{sources.source('pull')['process']}")
    lines = sources.cli("status").stdout.splitlines()
    rows = [line.split()[2:] for line in lines if line.startswith("zeromq ")]
    assert rows == [["pull", "0", "restarts"], ["pub", "0", "restarts"]]


def test_a_killed_process_is_replaced_and_libzmq_connects_again(sources, zmq_socket):
    sub = subscribed(sources, zmq_socket, "t", reconnect_ivl=20)
    push = zmq_socket(zmq.PUSH, sources.pull, linger=5000, reconnect_ivl=20)
    push.send(pack("t", {"n": 0}))
    assert unpack(sub.recv()) == ("t", {"n": 0})
    for name in ("pull", "pub"):
        os.kill(sources.source(name)["process"], signal.SIGKILL)
    eventually("both counted", lambda: sources.counter("zmq_restarts") == 2)

    def hears():
        push.send(pack("t", {"n": 1}))
        return sub.poll(200)
    eventually("the subscription again", hears)
    assert unpack(sub.recv()) == ("t", {"n": 1})
