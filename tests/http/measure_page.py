"""Processor time and bytes of the page's views in a large store (``make bench-page``). Prints a table with the limits; asserts no time.

``NIGHTS`` is the number of nightly highstates of 1,000 minions with 220 states, ``JOBS`` the jobs of the store of which the overview is asked,
``ONLY`` a part: fleet, million. ``KEEP`` names a directory whose stores are used again by the next run of the same day.

Processor time is the daemon's, user and system: what else runs on the host changes it little. Each figure is the median of REPEATS rounds, and a
round has as many requests as the kernel's clock needs.
"""

import dataclasses
import datetime
import json
import os
import pathlib
import shutil
import statistics
import subprocess
import sys
import time

import pytest
from conftest import BIN
from measure import JOBS, Reader, cpu, jobs, part, running, stores  # noqa: F401 (fixtures)

sys.path.append(str(pathlib.Path(__file__).parents[1] / "page"))
import fleet  # noqa: E402

NIGHTS = int(os.environ.get("NIGHTS", "14"))
REPEATS = int(os.environ.get("REPEATS", "5"))
#: Seconds of processor time after which a round ends: the clock counts in hundredths.
ROUND_S = 0.3


@dataclasses.dataclass
class Row:
    """A line of the table: a request, and the most that it may take and be."""

    name: str
    path: str
    cpu_ms: int | None = None
    bytes: int | None = None


@pytest.fixture(scope="module")
def site(stores):  # noqa: F811
    """The directory of a filled store, and what is in it."""
    place = stores / f"fleet-{NIGHTS}-{datetime.date.today():%Y%m%d}"
    done = place / "complete"
    if not done.exists():
        shutil.rmtree(place, ignore_errors=True)
        large = fleet.Fleet(dataclasses.replace(fleet.Sizes(), nights=NIGHTS))
        with running(place) as daemon:
            feed = subprocess.Popen([BIN, "import", "jsonl", "-", "--socket", daemon.socket], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)
            large.write(feed.stdin)
            feed.stdin.close()
            assert feed.wait() == 0
        names = ("nightly", "before", "wide", "hostile", "calm")
        done.write_text(json.dumps({name: getattr(large, name) for name in names}))
    return place, json.loads(done.read_text())


def ask(reader, path, encoding=None):
    """The status of a response, the bytes on the wire, and how they are encoded."""
    headers = {"authorization": f"Bearer {reader.token}", **({"accept-encoding": encoding} if encoding else {})}
    reader.connection.request("GET", path, headers=headers)
    answer = reader.connection.getresponse()
    return answer.status, len(answer.read()), answer.getheader("content-encoding")


def round_ms(daemon, reader, path):
    """Milliseconds of processor time per request."""
    before, count = cpu(daemon.process), 0
    while (used := cpu(daemon.process) - before) < ROUND_S and count < 100:
        ask(reader, path)
        count += 1
    return 1e3 * used / count


def limited(value, limit, unit):
    """A figure, marked if it is above its limit."""
    return "" if value is None else f"{value:,.1f} {unit}" if limit is None else f"{value:,.1f} {unit}{' **above**' if value > limit else ''}"


def measured(daemon, reader, row):
    status, size, _ = ask(reader, row.path)
    if status != 200:
        return f"| {row.name} | | answers {status} | | | |"
    _, packed, encoding = ask(reader, row.path, "zstd, gzip")
    took = statistics.median(round_ms(daemon, reader, row.path) for _ in range(REPEATS))
    limits = [f"{row.cpu_ms} ms" if row.cpu_ms else "", f"{row.bytes // 1000} kB" if row.bytes else ""]
    small = f"{packed / 1e3:,.1f} kB ({encoding})" if encoding else "not compressed"
    cells = [limits[0], limited(took, row.cpu_ms, "ms"), limits[1], limited(size / 1e3, row.bytes and row.bytes / 1e3, "kB"), small]
    return f"| {row.name} | " + " | ".join(cells) + " |"


def rows(facts):
    job, now = f"/jobs/{facts['nightly']}", datetime.datetime.now(datetime.timezone.utc)
    week = (now - datetime.timedelta(days=7)).isoformat().replace("+00:00", "Z")
    api = "/api/v1"
    return [
        Row("job, first view", job, 100, 150_000),
        Row("job, result=failed", f"{job}?result=failed", 100, 150_000),
        Row("job, one minion", f"{job}?minion={facts['calm']}"),
        Row("job compared with the one before", f"{job}/diff"),
        Row("causes of a job", f"{api}/causes?jid={facts['nightly']}", 50),
        Row("causes of 24 h, repeated", f"{api}/causes", 200),
        Row("causes of a week, repeated", f"{api}/causes?since={week}"),
        Row("strip of a job", f"{api}/jobs/{facts['nightly']}/strip"),
        Row("fleet, 14 days", f"{api}/fleet"),
        Row("durations of a job", f"{api}/jobs/{facts['nightly']}/durations"),
        Row("durations of a week", f"{api}/durations"),
        Row("overview", "/"),
        Row("jobs", "/jobs"),
        Row("failed jobs of a day", "/jobs?result=failed&last=1d"),
        Row("changed jobs of a minion, a week", f"/jobs?minion={facts['calm']}&result=changed&last=7d"),
        Row("job of 10,000 minions", f"/jobs/{facts['wide']}"),
        Row("hostile job", f"/jobs/{facts['hostile']}"),
        Row("minions", "/minions"),
        Row("a minion", f"/minions/{facts['calm']}"),
        Row("events", "/events"),
        Row("reactor", "/reactor"),
        Row("sinks", "/sinks"),
        Row("consumers", "/consumers"),
    ]


HEAD = "\n| view | CPU limit | CPU | bytes limit | bytes | with `Accept-Encoding: zstd, gzip` |\n|---|---|---|---|---|---|"


@part("fleet")
def test_views(site):
    place, facts = site
    # The first responses after a start have nothing in memory.
    for name, path, limit in (("causes of 24 h, first after a start", "/api/v1/causes", 200), ("overview, first after a start", "/", None)):
        with running(place) as daemon:
            reader, before = Reader(daemon), cpu(daemon.process)
            status, size, _ = ask(reader, path)
            used = 1e3 * (cpu(daemon.process) - before)
            found = f"{limited(used, limit, 'ms')}, {size / 1e3:,.1f} kB" if status == 200 else f"answers {status}"
            print(f"\n{name}: {found}", flush=True)

    with running(place) as daemon:
        reader = Reader(daemon)
        print(f"\n{BIN}, {NIGHTS} nights" + HEAD, flush=True)
        for row in rows(facts):
            print(measured(daemon, reader, row), flush=True)

        sizes = [ask(reader, f"/assets/{name}")[1] for name in ("page.css", "page.js", "icon.svg")]
        packed = [ask(reader, f"/assets/{name}", "zstd, gzip")[1] for name in ("page.css", "page.js", "icon.svg")]
        print(f"| assets | | | 20 kB | {limited(sum(sizes) / 1e3, 20, 'kB')} | {sum(packed) / 1e3:,.1f} kB |")


@part("million")
def test_overview_of_many_jobs(jobs):  # noqa: F811
    reader, walls = Reader(jobs), []
    ask(reader, "/")
    before = cpu(jobs.process)
    for _ in range(200):
        started = time.monotonic()
        assert ask(reader, "/")[0] == 200
        walls.append(1e3 * (time.monotonic() - started))
    used = 1e3 * (cpu(jobs.process) - before) / len(walls)
    walls.sort()
    p99 = walls[len(walls) * 99 // 100]
    print(f"\noverview with {JOBS:,} jobs, limit p99 50 ms: p50 {statistics.median(walls):.1f} ms, p99 {limited(p99, 50, 'ms')}, CPU {used:.1f} ms a request")
