"""Ten thousand readers of event streams that do not read."""

import http.client
import json
import resource
import select
import socket
import urllib.request

import pytest
from conftest import DEADLINE, wait_for

READERS = 10_000
#: limits::HTTP_STREAMS_OF_ONE: all readers have one token.
STREAMS_MAX = 64


@pytest.fixture
def many_files():
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    if before[1] < READERS + 1000:
        pytest.skip(f"the limit of open files is {before[1]}")
    resource.setrlimit(resource.RLIMIT_NOFILE, (before[1], before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


def status_of(peer):
    """The status of a response; None if the connection was closed without one."""
    peer.settimeout(DEADLINE)
    try:
        line = peer.recv(12)
    except ConnectionResetError:
        return None
    return int(line.split()[1]) if line else None


@pytest.fixture
def peers():
    """The sockets of readers, which are closed whatever happens: later tests have low numbers for their files."""
    opened = []
    yield opened
    for peer in opened:
        peer.close()


def test_readers_above_the_limit_are_answered_503_and_all_others_are_served(many_files, peers, daemon):
    token = json.loads(daemon.call("tokens", "create", "reader", "--scope", "read").stdout)["token"]
    host, port = daemon.address.rsplit(":", 1)
    head = f"GET /api/v1/events/stream HTTP/1.1\r\nhost: {host}\r\nauthorization: Bearer {token}\r\n\r\n".encode()
    # Another client, whose connection was there before and stays: it is used now and then, because the daemon closes idle ones.
    other = http.client.HTTPConnection(host, int(port), timeout=DEADLINE)
    other.connect()
    # If the daemon closes it, no other one is opened instead.
    other.auto_open = 0
    assert health_of(other) == 200
    for n in range(READERS):
        peer = socket.create_connection((host, int(port)), timeout=DEADLINE)
        peer.sendall(head)
        peers.append(peer)
        if n % 1000 == 999:
            # A new client, between them.
            request = urllib.request.Request(f"http://{daemon.address}/api/v1/events?limit=1", headers={"authorization": f"Bearer {token}"})
            answer = wait_for("an answer", lambda: attempt(request))
            assert "events" in answer
            assert health_of(other) == 200
    found = [status_of(peer) for peer in peers]
    assert found.count(200) == STREAMS_MAX, {one: found.count(one) for one in set(found)}
    # A burst may also exceed the limits of connections: then one is answered 429, or closed without a response.
    assert found.count(503) + found.count(429) > READERS / 2 and set(found) <= {200, 429, 503, None}, {one: found.count(one) for one in set(found)}
    assert health_of(other) == 200
    # Refused connections are closed; accepted ones are not, and a place becomes free with each that ends.
    refused = [peer for peer, status in zip(peers, found) if status in (429, 503)]
    assert all(select.select([peer], [], [], DEADLINE)[0] for peer in refused[:100])
    for peer in peers:
        peer.close()
    wait_for("a free stream", lambda: is_accepted(host, port, head))
    other.close()


def health_of(client):
    """The status of a request over an open connection."""
    client.request("GET", "/healthz", headers={"host": "localhost"})
    answer = client.getresponse()
    answer.read()
    return answer.status


def attempt(request):
    """A response, unless the connection was closed because there are too many."""
    try:
        with urllib.request.urlopen(request, timeout=DEADLINE) as answer:
            return json.load(answer)
    except (ConnectionError, urllib.error.URLError):
        return None


def is_accepted(host, port, head):
    with socket.create_connection((host, int(port)), timeout=DEADLINE) as peer:
        peer.sendall(head)
        return status_of(peer) == 200
