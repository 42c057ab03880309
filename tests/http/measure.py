"""Times of the HTTP API and the page, and the cost of live viewers (``make bench-http``). Prints; asserts no time.

``JOBS`` and ``EVENTS`` set the sizes of the stores, ``LIVE`` the seconds at 5,000 events/s, ``ONLY`` a part: page, query, viewers, start. ``KEEP`` names a
directory whose stores are used again by the next run. Needs root for figures with a cold page cache.
"""
import contextlib
import datetime
import http.client
import json
import os
import pathlib
import random
import selectors
import shutil
import socket
import statistics
import subprocess
import sys
import threading
import time
import urllib.parse

import pytest
from conftest import BIN, Daemon, wait_for

sys.path.append(str(pathlib.Path(__file__).parents[1] / "page"))
import browser  # noqa: E402
import sample  # noqa: E402

JOBS = int(os.environ.get("JOBS", "1000000"))
EVENTS = int(os.environ.get("EVENTS", "100000000"))
LIVE = int(os.environ.get("LIVE", "10"))
VIEWERS = 100
FLEET = 5000
TICK = os.sysconf("SC_CLK_TCK")


def part(name):
    return pytest.mark.skipif(os.environ.get("ONLY", name) != name, reason="not asked for")


def shown(name, seconds):
    """Prints quantiles of durations."""
    ms = sorted(1e3 * one for one in seconds)
    print(f"\n{name}: p50 {statistics.median(ms):.1f} ms, p99 {ms[len(ms) * 99 // 100]:.1f} ms, max {ms[-1]:.1f} ms, {len(ms)} times", flush=True)


def timed(work):
    started = time.monotonic()
    found = work()
    return time.monotonic() - started, found


def cpu(process):
    """Seconds of CPU of a process."""
    fields = pathlib.Path(f"/proc/{process.pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / TICK


class Reader:
    """One connection with a token."""

    def __init__(self, daemon):
        self.token = daemon.call("tokens", "create", f"reader{time.monotonic_ns()}", "--scope", "admin").stdout
        self.token = next(word for word in self.token.replace('"', " ").split() if word.startswith("sct_"))
        self.address = daemon.address
        self.connection = http.client.HTTPConnection(daemon.address, timeout=300)

    def get(self, path, **query):
        path += "?" + urllib.parse.urlencode(query) if query else ""
        self.connection.request("GET", path, headers={"authorization": f"Bearer {self.token}"})
        answer = self.connection.getresponse()
        body = answer.read()
        assert answer.status == 200, body[:1000]
        return body

    def stream(self, accept="text/event-stream", **query):
        """A socket with a stream, whose head is read."""
        host, port = self.address.rsplit(":", 1)
        path = "/api/v1/events/stream?" + urllib.parse.urlencode(query)
        peer = socket.create_connection((host, int(port)))
        peer.sendall(f"GET {path} HTTP/1.1\r\nhost: {host}\r\nauthorization: Bearer {self.token}\r\naccept: {accept}\r\n\r\n".encode())
        head = peer.recv(65536)
        assert head.startswith(b"HTTP/1.1 200"), head
        return peer


@pytest.fixture(scope="module")
def stores(tmp_path_factory):
    """The directory of the stores."""
    return pathlib.Path(os.environ.get("KEEP") or tmp_path_factory.mktemp("stores"))


@contextlib.contextmanager
def running(place):
    place.mkdir(parents=True, exist_ok=True)
    daemon = Daemon(place)
    try:
        yield daemon
    finally:
        daemon.stop()


def fleet_lines(jobs):
    """Jobs of ten days up to now for `jsonl`: most of two minions, twenty of the fleet."""
    chance, site = random.Random(1), sample.Site()
    fleet = [f"web{n:04}.example.net" for n in range(FLEET)]
    step = 14_400 / jobs
    for n in range(jobs, 0, -1):
        fun = chance.choice(("test.ping", "cmd.run", "pkg.version", "disk.usage", "state.apply"))
        wide = n % max(jobs // 20, 1) == 0
        minions = fleet if wide else chance.sample(fleet, 2)

        def answer(minion, fun="state.apply" if wide else fun):
            failed = chance.random() < 0.005
            if fun == "state.apply":
                return sample.states(minion, ["/etc/motd"] if chance.random() < 0.02 else (), ["nginx"] if failed else ()), 2 * failed
            return f"answer {chance.random()}", 127 * failed

        site.job(n * step, "state.apply" if wide else fun, minions, answer, tgt="*", silent=minions[:1] if chance.random() < 0.005 else ())
        if n % 100 == 0:
            site.event(n * step, f"salt/beacon/{minions[0]}/load/", minions[0], id=minions[0])
        yield from site.lines
        site.lines.clear()


@pytest.fixture(scope="module")
def jobs(stores):
    place = stores / f"jobs-{JOBS}"
    if not (place / "complete").exists():
        shutil.rmtree(place, ignore_errors=True)
        with running(place) as daemon:
            feed = subprocess.Popen([BIN, "import", "jsonl", "-", "--socket", daemon.socket], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)
            for line in fleet_lines(JOBS):
                # Without the copies of returns from the bus.
                if '"confirmed": false' not in line:
                    feed.stdin.write(line + "\n")
            feed.stdin.close()
            assert feed.wait() == 0
        (place / "complete").touch()
    with running(place) as daemon:
        yield daemon


@part("page")
def test_page(jobs):
    reader = Reader(jobs)
    shown("overview, first request", [timed(lambda: reader.get("/"))[0]])
    shown("overview, time of the server", [timed(lambda: reader.get("/"))[0] for _ in range(200)])
    for path in ("/api/v1/status", "/api/v1/store", "/api/v1/minions?attention=true&limit=8", "/jobs", "/events", "/minions"):
        shown(path, [timed(lambda: reader.get(path))[0] for _ in range(20)])
    since = (datetime.datetime.now(datetime.timezone.utc) - datetime.timedelta(days=1)).isoformat()
    for result in ("failed", "missing", "changed"):
        shown(f"newest 8 {result} jobs of a day", [timed(lambda: reader.get("/api/v1/jobs", result=result, since=since, limit=8))[0] for _ in range(20)])
    shown(f"newest 50 of {JOBS:,} jobs", [timed(lambda: reader.get("/api/v1/jobs", limit=50))[0] for _ in range(300)])
    if not browser.program():
        pytest.skip("chromium is not installed")
    chromium, loads = browser.Browser(), []
    for _ in range(10):
        # A tab without a cache.
        tab = chromium.page()
        tab.send("Network.setExtraHTTPHeaders", headers={"Authorization": f"Bearer {reader.token}"})
        assert tab.open(f"http://{jobs.address}/") == 200
        loads.append(tab.js("performance.getEntriesByType('navigation')[0].loadEventEnd") / 1e3)
        tab.close()
    chromium.close()
    shown("overview in Chromium, navigation to load, without a cache", loads)


HIT = {"minion": "needle.example.net", "fun": "needle.thread", "jid": "20261121054728123456"}
QUERIES = {
    "tag": {"tag": "salt/job/*/ret/needle*"},
    "minion": {"minion": HIT["minion"]},
    "fun": {"match": json.dumps([{"fun": HIT["fun"]}])},
    "jid": {"jid": HIT["jid"]},
    "minion and where": {"minion": HIT["minion"], "where": "data.retcode == 3"},
    "match of tag and minion": {"match": json.dumps([{"tag": "salt/job/*", "minion": HIT["minion"]}])},
    "where": {"where": f"data.fun == '{HIT['fun']}'"},
}


def fire(socket_path, *events):
    from saltext.saltcellar.utils import calls, settings

    calls.ask(settings.from_opts({"saltcellar.socket": str(socket_path)}), "event_return", events=[{"tag": tag, "data": data} for tag, data in events])


def hit(n):
    return f"salt/job/{HIT['jid']}/ret/{HIT['minion']}", {
        "cmd": "_return", "id": HIT["minion"], "jid": HIT["jid"], "fun": HIT["fun"], "retcode": 3, "success": False, "return": {"n": n},
    }


@pytest.fixture(scope="module")
def haystack(stores):
    """A store with many small events, and 100 others among them."""
    place = stores / f"events-{EVENTS}"
    if not (place / "complete").exists():
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir(parents=True)
        command = [os.environ["SALTCELLAR_BENCH"], "ingest", "--program", BIN, "--keep", "--dir", place, "--load", "small", "--entries", str(EVENTS), "--no-baseline", "--output", "json"]
        started = time.monotonic()
        bench = subprocess.Popen([str(word) for word in command], stdout=subprocess.PIPE, text=True)
        at = wait_for("the daemon", lambda: next((path for path in place.glob("*/s") if path.is_socket()), None))
        # The rate of `make soak` is about 500,000/s; hits that are left are stored at the end.
        pause, sent = EVENTS / 500_000 / 100, 0
        while bench.poll() is None and sent < 100:
            with contextlib.suppress(Exception):
                fire(at, hit(sent))
                sent += 1
            time.sleep(pause)
        found = json.loads(bench.communicate()[0])
        print(f"\n{EVENTS:,} events stored within {time.monotonic() - started:.0f} s: {found['saltcellar']}")
        (log,) = [path for path in place.rglob("log") if path.is_dir()]
        log.parent.rename(place / "state")
        with running(place) as daemon:
            for n in range(sent, 100):
                fire(daemon.socket, hit(n))
        print(f"{sent} of 100 hits among them, the others after them")
        (place / "complete").touch()
    return place


def pages(reader, query, most=100):
    """Events and requests of a query, following its pages."""
    found, requests, more = [], 0, {}
    while len(found) < most:
        page = json.loads(reader.get("/api/v1/events", limit=most - len(found), **query, **more))
        found += page["events"]
        requests += 1
        if not page["next"]:
            break
        more = {"cursor": page["next"]}
    return found, requests


@part("query")
def test_query(haystack):
    for name, query in QUERIES.items():
        with contextlib.suppress(PermissionError):
            os.sync()
            pathlib.Path("/proc/sys/vm/drop_caches").write_text("3")
        with running(haystack) as daemon:
            reader = Reader(daemon)
            took, (found, requests) = timed(lambda: pages(reader, query))
            assert len(found) == 100, (name, len(found))
            print(f"\n{name}, {requests} requests: cold {1e3 * took:.0f} ms", flush=True)
            if took < 30:
                shown(f"{name}, warm", [timed(lambda: pages(reader, query))[0] for _ in range(20 if took < 3 else 3)])


@part("query")
def test_ndjson(haystack):
    with running(haystack) as daemon, Reader(daemon).stream("application/x-ndjson", since="2020-01-01T00:00:00Z") as peer:
        before, started, lines, size = cpu(daemon.process), time.monotonic(), 0, 0
        while time.monotonic() < started + LIVE:
            data = peer.recv(1 << 20)
            lines += data.count(b"\n")
            size += len(data)
        took = time.monotonic() - started
        used = cpu(daemon.process) - before
        print(f"\nNDJSON from the oldest event: {lines / took:,.0f} events/s, {size / took / 1e6:.0f} MB/s, {1e6 * used / lines:.2f} us CPU of the daemon per event")


class Load(threading.Thread):
    """Stores 5,000 events/s in batches of 50, and notes the time of each response."""

    def __init__(self, daemon, rate=5000):
        super().__init__()
        self.to, self.rate, self.times, self.sent, self.count = daemon.socket, rate, [], 0, rate * LIVE

    def run(self):
        batch = [(f"salt/job/2026112103095500{n:04}/ret/web{n}", {
            "fun": "state.apply", "id": f"web{n}", "jid": f"2026112103095500{n:04}", "retcode": 0, "success": True, "return": {"text": "x" * 100}
        }) for n in range(50)]
        started = time.monotonic()
        while self.sent < self.count:
            time.sleep(max(0, started + self.sent / self.rate - time.monotonic()))
            took, _ = timed(lambda: fire(self.to, *batch))
            self.times.append(took)
            self.sent += len(batch)


def watch(address, token, count, query):
    """Reads streams until the input ends; prints the bytes read. A process of its own."""
    one = Reader.__new__(Reader)
    one.address, one.token = address, token
    streams, size, buffer = selectors.DefaultSelector(), 0, bytearray(1 << 20)
    streams.register(sys.stdin, selectors.EVENT_READ)
    for _ in range(count):
        streams.register(one.stream(**query), selectors.EVENT_READ)
    print("open", flush=True)
    while True:
        for key, _ in streams.select():
            if key.fileobj is sys.stdin:
                print(size)
                return
            got = key.fileobj.recv_into(buffer)
            assert got, "a stream ended"
            size += got


@contextlib.contextmanager
def viewers(reader, count, **query):
    command = [sys.executable, __file__, reader.address, reader.token, str(count), json.dumps(query)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "open\n"
    seen = {}
    yield seen
    process.stdin.close()
    seen["bytes"] = int(process.stdout.readline())
    process.wait()


@part("viewers")
def test_viewers(daemon):
    """Live viewers in alternation with none: of all events, of one in fifty, and one that never reads."""
    reader = Reader(daemon)
    sets = {
        "no viewer": None,
        f"{VIEWERS} viewers of one minion": {"count": VIEWERS, "match": json.dumps([{"minion": "web7"}])},
        f"{VIEWERS} viewers of all events": {"count": VIEWERS},
        f"{VIEWERS} viewers of all events, as the page": {"count": VIEWERS, "max_rate": 100},
    }
    found = {name: [] for name in [*sets, "one viewer that never reads"]}
    for _ in range(3):
        for name in found:
            with contextlib.ExitStack() as stack:
                seen = {"bytes": 0}
                if sets.get(name):
                    seen = stack.enter_context(viewers(reader, **sets[name]))
                elif name not in sets:
                    stack.enter_context(reader.stream(since="2020-01-01T00:00:00Z"))
                before, started, load = cpu(daemon.process), time.monotonic(), Load(daemon)
                load.start()
                load.join()
                took = time.monotonic() - started
                used = cpu(daemon.process) - before
                times = sorted(load.times)
            found[name].append((1e3 * statistics.median(times), 1e3 * times[len(times) * 99 // 100], 1e6 * used / load.sent, load.sent / took, seen["bytes"] / took / 1e6))
    for name, runs in found.items():
        p50, p99, cost, rate, size = (statistics.median(one) for one in zip(*runs))
        print(f"\n{name}: answers p50 {p50:.2f} ms, p99 {p99:.2f} ms, {cost:.1f} us CPU of the daemon per event, {rate:,.0f} events/s, {size:.0f} MB/s read (medians of 3)")


@part("start")
def test_start(daemon):
    """The command line, beside a program that does nothing."""
    for name, command in [
        ("/bin/true", ["/bin/true"]),
        ("saltcellar --version", [BIN, "--version"]),
        ("saltcellar status", [BIN, "status", "--socket", daemon.socket]),
    ]:
        shown(name, [timed(lambda: subprocess.run(command, stdout=subprocess.DEVNULL, check=True))[0] for _ in range(200)])


if __name__ == "__main__":
    watch(sys.argv[1], sys.argv[2], int(sys.argv[3]), json.loads(sys.argv[4]))
