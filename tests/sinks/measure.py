"""Rates and costs of sinks, each beside a baseline of the same run (``make bench-sinks``). Prints; asserts no time.

``EVENTS`` sets the number of stored events, ``LOAD`` their kind (mix, small: 1,340 and 170 bytes), ``LIVE`` the seconds at 5,000 events/s, ``ONLY`` a part: file, http, postgres, live, twelve, memory, tail.
"""
import contextlib
import json
import os
import pathlib
import socket
import statistics
import subprocess
import sys
import threading
import time

import pytest
from conftest import Cellar, end, eventually, free_port, is_open
from test_postgres import postgres, sink as postgres_sink  # noqa: F401 (a fixture)

EVENTS = int(os.environ.get("EVENTS", "1000000"))
LIVE = int(os.environ.get("LIVE", "20"))
#: Salt's event_return fills the first one only.
TABLES = os.environ.get("TABLES", "salt_events").split(",")
TICK = os.sysconf("SC_CLK_TCK")
COLLECTOR = pathlib.Path(__file__).with_name("collector.py")


def cpu(process):
    """Seconds of CPU of a process."""
    fields = pathlib.Path(f"/proc/{process.pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / TICK


def part(name):
    return pytest.mark.skipif(os.environ.get("ONLY", name) != name, reason="not asked for")


@pytest.fixture(scope="module")
def archive(tmp_path_factory):
    """A store with the events of a busy master."""
    place = tmp_path_factory.mktemp("archive")
    subprocess.run(
        [os.environ["SALTCELLAR_BENCH"], "ingest", "--program", os.environ["SALTCELLAR_BIN"], "--keep", "--dir", place, "--load", os.environ.get("LOAD", "mix"), "--entries", str(EVENTS),
         "--no-baseline", "--output", "json"], check=True, stdout=subprocess.DEVNULL,
    )
    (found,) = [path for path in place.rglob("log") if path.is_dir()]
    return found.parent


@pytest.fixture
def backlog(archive, run, place):
    """Starts a daemon with these sinks on a copy of the archive, and measures the delivery of all of it."""
    subprocess.run(["cp", "-a", archive, place / "state"], check=True)

    def measure(sinks, wait_for=None):
        daemon = Cellar(run, place, sinks)
        before, started = cpu(daemon.process), time.monotonic()
        for name in wait_for or sinks:
            daemon.verb("sinks", "seek", name, "oldest")
        for name in wait_for or sinks:
            daemon.delivered(name, 1800)
        return daemon, time.monotonic() - started, cpu(daemon.process) - before

    return measure


def report(name, events, seconds, cost, **more):
    print(f"\n{name}: {events / seconds:,.0f} events/s, {1e6 * cost / events:.2f} us CPU of the daemon per event", *(f"{k} {v}" for k, v in more.items()), sep=", ")


@part("file")
def test_file(backlog, place):
    target = place / "out.jsonl"
    daemon, seconds, cost = backlog({"copy": {"encoder": "json", "transport": {"file": {"path": str(target)}}}})
    with open(target, "rb") as lines:
        events = sum(1 for _ in lines)
    size = target.stat().st_size
    end(daemon.process)
    started = time.monotonic()
    subprocess.run(["dd", f"if={target}", f"of={place}/copy", "bs=1M", "conv=fsync", "status=none"], check=True)
    baseline = time.monotonic() - started
    report("file", events, seconds, cost, bytes_per_event=size // events, baseline_dd=f"{events / baseline:,.0f}/s", ratio=f"{baseline / seconds:.2f}")


@part("http")
def test_http(backlog, run, place):
    port = free_port()
    collector = run(sys.executable, COLLECTOR, port)
    eventually("the collector listens", lambda: is_open(port))
    http = {"url": f"http://127.0.0.1:{port}", "body": {"separator": "\n", "suffix": "\n"}}
    sinks = {"hook": {"encoder": "json", "transport": {"http": http}, "batch": {"count": 500}}}
    _, seconds, cost = backlog(sinks)
    with socket.create_connection(("127.0.0.1", port)) as peer:
        peer.sendall(b"GET / HTTP/1.1\r\n\r\n")
        head, _, body = peer.recv(65536).partition(b"\r\n\r\n")
    found = json.loads(body)
    # The same bytes by a client that only writes.
    per = found["bytes"] // found["requests"]
    request = b"POST / HTTP/1.1\r\ncontent-length: %d\r\n\r\n" % per + b"x" * per
    started = time.monotonic()
    with socket.create_connection(("127.0.0.1", port)) as peer:
        for _ in range(found["requests"]):
            peer.sendall(request)
            peer.recv(4096)
    baseline = time.monotonic() - started
    report("http", found["lines"], seconds, cost, requests=found["requests"], bytes_per_event=found["bytes"] // found["lines"],
           baseline_client=f"{found['lines'] / baseline:,.0f}/s", ratio=f"{baseline / seconds:.2f}", collector_cpu=f"{cpu(collector):.1f} s")


@part("postgres")
def test_postgres(backlog, place, postgres):  # noqa: F811
    import salt.config
    import salt.loader

    target = place / "out.jsonl"
    copy = {"encoder": "json", "transport": {"file": {"path": str(target)}}}
    daemon, seconds, cost = backlog({"pg": postgres_sink(postgres, place, tables=TABLES)})
    events = postgres.count("salt_events")
    end(daemon.process)
    daemon = Cellar(lambda *a, **k: daemon.run(*a, **k), place, {"copy": copy})
    daemon.verb("sinks", "seek", "copy", "oldest")
    eventually("a part of the events as lines", lambda: target.exists() and target.stat().st_size > 100_000_000 or daemon.sink("copy")["lag_entries"] == 0, 300)
    end(daemon.process)
    with open(target) as lines:
        sample = [json.loads(line) for _, line in zip(range(20_000), lines)]
    opts = {**salt.config.DEFAULT_MASTER_OPTS, "id": "master", "extension_modules": str(place), "cachedir": str(place)}
    for key, value in {"host": "127.0.0.1", "port": postgres.port, "user": "postgres", "pass": "", "db": "salt"}.items():
        opts[f"returner.pgjsonb.{key}"] = value
    returners = salt.loader.returners(opts, {})
    returner = returners["pgjsonb.event_return"]
    # Salt's master gives event_return up to `event_return_queue` events.
    started = time.monotonic()
    for at in range(0, len(sample), 1000):
        returner([{"tag": event["tag"], "data": event["data"]} for event in sample[at:at + 1000]])
    baseline = time.monotonic() - started
    report(f"postgres {' '.join(TABLES)}", events, seconds, cost, pgjsonb_in_batches_of_1000=f"{len(sample) / baseline:,.0f}/s",
           ratio=f"{events / seconds / (len(sample) / baseline):.1f}")


class Load(threading.Thread):
    """Stores 5,000 events/s in batches of 50, and notes the time of each response."""

    def __init__(self, daemon, seconds, rate=5000):
        super().__init__()
        self.daemon_, self.seconds, self.rate, self.times, self.sent = daemon, seconds, rate, [], 0

    def run(self):
        batch = [(f"salt/job/2026112103095500{n:04}/ret/web{n}", {
            "fun": "state.apply", "id": f"web{n}", "jid": f"2026112103095500{n:04}", "retcode": 0, "success": True, "return": {"text": "x" * 400}
        }) for n in range(50)]
        started = time.monotonic()
        while self.sent < self.seconds * self.rate:
            pause = started + self.sent / self.rate - time.monotonic()
            if pause > 0:
                time.sleep(pause)
            at = time.monotonic()
            self.daemon_.fire(*batch)
            self.times.append(time.monotonic() - at)
            self.sent += len(batch)

    def summary(self):
        times = sorted(self.times)
        return {"p50_ms": f"{1e3 * statistics.median(times):.2f}", "p99_ms": f"{1e3 * times[len(times) * 99 // 100]:.2f}"}


def under_load(daemon, rate=5000):
    load = Load(daemon, LIVE, rate)
    before, started = cpu(daemon.process), time.monotonic()
    load.start()
    load.join()
    took = time.monotonic() - started
    return load, cpu(daemon.process) - before, took


def files(place, count):
    return {f"file{n}": {"encoder": "json", "transport": {"file": {"path": str(place / f"{n}.jsonl")}}} for n in range(count)}


@part("live")
def test_live(run, place):
    daemon = Cellar(run, place, {})
    under_load(daemon)
    costs = {count: [] for count in (0, 1)}
    for count in (0, 1) * 3:
        daemon.reload(files(place, count))
        eventually("the sinks", lambda: len(daemon.ask("sinks_list")["sinks"]) == count)
        load, cost, _ = under_load(daemon)
        costs[count].append(1e6 * cost / load.sent)
    without, with_one = (statistics.median(costs[count]) for count in (0, 1))
    print(f"\nlive at 5,000 events/s: {with_one - without:.2f} us CPU per event for one consumer (file), {without:.2f} us for storing (medians of 3)")


@part("twelve")
def test_twelve(run, place):
    """Ten sinks to files, then in addition a destination that is down and one that answers after a second."""
    port = free_port()
    run(sys.executable, COLLECTOR, port, "1")
    eventually("the collector listens", lambda: is_open(port))
    http = lambda port: {"encoder": "json", "transport": {"http": {"url": f"http://127.0.0.1:{port}", "body": {"separator": "\n"}}}}  # noqa: E731
    sets = {"none": {}, "ten": files(place, 10), "twelve": {**files(place, 10), "dead": http(free_port()), "slow": http(port)}}
    daemon = Cellar(run, place, {})
    under_load(daemon)
    for rate in (5000, 1_000_000):
        found = {name: [] for name in sets}
        for name in [*sets] * 3:
            daemon.reload(sets[name])
            eventually("the sinks", lambda: len(daemon.ask("sinks_list")["sinks"]) == len(sets[name]))
            load, cost, took = under_load(daemon, rate) if rate == 5000 else unlimited(daemon)
            for sink in files(place, 10) if sets[name] else []:
                daemon.delivered(sink, 600)
            found[name].append((load.sent / took, load.summary()))
        for name, runs in found.items():
            print(f"\n{'unlimited' if rate > 5000 else rate} {name}: {statistics.median(run[0] for run in runs):,.0f} events/s of one client", *[run[1] for run in runs])


def unlimited(daemon):
    """100,000 events as fast as one client stores them."""
    load = Load(daemon, 1, 100_000)
    load.rate = 100_000
    before, started = cpu(daemon.process), time.monotonic()
    load.start()
    load.join()
    return load, cpu(daemon.process) - before, time.monotonic() - started


@part("memory")
def test_memory(run, place):
    daemon = Cellar(run, place, files(place, 1))
    under_load(daemon)
    status = pathlib.Path(f"/proc/{daemon.process.pid}/status").read_text()
    print("\nmemory of a daemon with one sink after load:", *[" ".join(line.split()) for line in status.splitlines() if line.startswith(("VmHWM", "VmRSS", "Rss"))], sep=" | ")


@part("tail")
def test_tail(run, place):
    """The time from the call that stores an event to its line, idle and beside 5,000 events/s."""
    port = free_port()
    daemon = Cellar(run, place, {}, http={"listen": f"127.0.0.1:{port}"})
    token = daemon.verb("tokens", "create", "reader", "--scope", "read").split()[-1]
    tail = [daemon.program, "events", "tail", "--tag", "probe/*", "--output", "jsonl", "--socket", daemon.socket]
    stream = ["curl", "-fsSN", "-G", "--data-urlencode", 'match=[{"tag": "probe/*"}]', "-H", f"Authorization: Bearer {token}",
              f"http://127.0.0.1:{port}/api/v1/events/stream"]
    for name, command in [("events tail", tail), ("events/stream", stream)]:
        for load in (None, Load(daemon, 20)):
            reader = subprocess.Popen([str(part) for part in command], stdout=subprocess.PIPE, stdin=subprocess.DEVNULL)
            time.sleep(1)
            if load:
                load.start()
            times = []
            for number in range(300):
                started = time.monotonic()
                daemon.fire((f"probe/{number}", {"n": number}))
                line = b"\n"
                while f"probe/{number}".encode() not in line:
                    line = reader.stdout.readline()
                    assert line, f"{name} ended: {reader.wait()}"
                times.append(time.monotonic() - started)
                time.sleep(0.03)
            reader.kill()
            reader.wait()
            if load:
                load.join()
            times.sort()
            print(f"\n{name}, {'beside 5,000 events/s' if load else 'idle'}: p50 {1e3 * times[150]:.1f} ms, p99 {1e3 * times[297]:.1f} ms, max {1e3 * times[-1]:.1f} ms")
