#!/usr/bin/env python3
"""
Throughput of the extension against a separate daemon.

  extension.py event_return   one process, batches of 1,000, as Salt's EventReturn calls it
  extension.py returner       1 and 8 processes, one synchronous call at a time each, as the master's workers do

Run it with Salt's Python, after `cargo build --release`:

    tests/lab/salt_lab.py in-venv -- python salt/bench/extension.py event_return
    tests/lab/salt_lab.py in-venv -- python salt/bench/extension.py returner

The returner is loaded by Salt's loader, from this repository. The events are a recorded bus, with new jids per repetition,
unpacked to the maps that `salt.utils.event` passes. `--profile` prints a profile of Python's time instead of
throughput.
"""

import argparse
import cProfile
import json
import multiprocessing
import os
import pstats
import random
import signal
import socket
import statistics
import struct
import subprocess
import sys
import tempfile
import time
from pathlib import Path

REPO = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(REPO / "salt" / "src"))

import salt.config
import salt.loader
import salt.payload
import salt.utils.msgpack

CORPUS = REPO / "tests" / "data" / "3008.3.sbus"
TICKS_PER_S = os.sysconf("SC_CLK_TCK")


class Daemon:
    """``saltcellar serve`` in a new directory, stopped at the end of the block."""

    def __init__(self, program, directory):
        self._scratch = tempfile.TemporaryDirectory(prefix="sc-bench-", dir=directory)
        self.dir = Path(self._scratch.name)
        self.socket = str(self.dir / "s.sock")
        self._process = subprocess.Popen(
            [
                program,
                "serve",
                "--state-dir",
                self.dir / "state",
                "--socket",
                self.socket,
                "--log-level",
                "warn",
            ]
        )

    def __enter__(self):
        until = time.monotonic() + 30
        while time.monotonic() < until:
            with socket.socket(socket.AF_UNIX) as probe:
                if probe.connect_ex(self.socket) == 0:
                    return self
            if self._process.poll() is not None:
                break
            time.sleep(0.01)
        raise SystemExit("the daemon did not start")

    def __exit__(self, *_):
        self._process.send_signal(signal.SIGTERM)
        self._process.wait(30)
        self._scratch.cleanup()

    def cpu_s(self):
        """Processor seconds used by the daemon."""
        fields = Path(f"/proc/{self._process.pid}/stat").read_text().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / TICKS_PER_S

    def opts(self):
        """A master's configuration that uses this daemon."""
        paths = {
            key: str(self.dir / key) for key in ("root_dir", "cachedir", "sock_dir", "pki_dir")
        }
        return dict(
            salt.config.DEFAULT_MASTER_OPTS,
            __role="master",
            module_dirs=[str(REPO / "salt" / "src" / "saltext" / "saltcellar")],
            extension_modules=str(self.dir / "extmods"),
            **paths,
            **{"saltcellar.socket": self.socket},
        )

    def spooled_or_lost(self):
        """Entries that did not reach the daemon; a measurement with any of them is invalid."""
        return [
            str(path)
            for path in (self.dir / "cachedir" / "saltcellar").glob("spool*")
            if path.stat().st_size
        ]


def recorded():
    """The frames of a recorded bus, as ``(tag, packed data)``."""
    data = CORPUS.read_bytes()
    at = data.index(b"\n") + 1
    at += 4 + struct.unpack_from(">I", data, at)[0]
    while at < len(data):
        (size,) = struct.unpack_from(">I", data, at + 8)
        frame = salt.utils.msgpack.unpackb(data[at + 12 : at + 12 + size], raw=True)
        tag, _, packed = frame[b"body"].partition(b"\n\n")
        yield tag, packed
        at += 12 + size


def pinged():
    """A minion's answer to ``test.ping``, the most frequent event of a busy master."""
    jid = "20261121030955505683"
    data = {
        "cmd": "_return",
        "id": "web00001",
        "success": True,
        "return": True,
        "retcode": 0,
        "jid": jid,
    }
    data |= {
        "fun": "test.ping",
        "fun_args": [],
        "user": "root",
        "_stamp": "2026-11-21T03:09:55.600000+00:00",
    }
    yield f"salt/job/{jid}/ret/web00001".encode(), salt.payload.dumps(data, use_bin_type=True)


def events(load, count):
    """So many events, in EventReturn's form. Every repetition of the recording has other jobs."""
    originals = list(recorded() if load == "corpus" else pinged())
    jids = {tag.split(b"/")[2] for tag, _ in originals if tag.startswith(b"salt/job/")}
    jids = {jid for jid in jids if len(jid) == 20 and jid.isdigit()}
    dice = random.Random(1)
    made = []
    while len(made) < count:
        swaps = {jid: b"2026112%013d" % dice.randrange(10**13) for jid in jids}
        for tag, packed in originals:
            for old, new in swaps.items():
                if old in tag or old in packed:
                    tag, packed = tag.replace(old, new), packed.replace(old, new)
            made.append({"tag": tag.decode(), "data": salt.payload.loads(packed)})
    return made[:count], sum(len(tag) + len(packed) for tag, packed in originals) / len(originals)


def own_cpu_s():
    """Processor seconds of this process."""
    times = os.times()
    return times.user + times.system


def bench_event_return(args):
    """One process, one batch after the other."""
    pool, mean = events(args.load, min(args.events, 50_000))
    batches = [pool[at : at + args.batch] for at in range(0, len(pool), args.batch)]
    with Daemon(args.saltcellar, args.dir) as daemon:
        store = salt.loader.returners(daemon.opts(), {})["saltcellar.event_return"]
        store(batches[0])
        number = max(1, args.events // args.batch)
        cpu, daemon_cpu, start = own_cpu_s(), daemon.cpu_s(), time.perf_counter()
        took = []
        with profiled(args.profile):
            for n in range(number):
                started = time.perf_counter()
                store(batches[n % len(batches)])
                took.append(time.perf_counter() - started)
        seconds = time.perf_counter() - start
        stored = number * args.batch
        if left := daemon.spooled_or_lost():
            raise SystemExit(f"entries did not reach the daemon: {left}")
        return {
            "events": stored,
            "bytes_per_event": round(mean),
            "events_per_s": round(stored / seconds),
            "batch_ms_p50": round(statistics.median(took) * 1e3, 3),
            "python_cpu_s_per_million": round((own_cpu_s() - cpu) / stored * 1e6, 2),
            "daemon_cpu_s_per_million": round((daemon.cpu_s() - daemon_cpu) / stored * 1e6, 2),
        }


class profiled:  # pylint: disable=invalid-name
    """``with profiled(True): ...`` prints the slowest functions."""

    def __init__(self, wanted):
        self._profile = cProfile.Profile() if wanted else None

    def __enter__(self):
        if self._profile:
            self._profile.enable()

    def __exit__(self, *_):
        if self._profile:
            self._profile.disable()
            pstats.Stats(self._profile, stream=sys.stderr).sort_stats("tottime").print_stats(15)


def work(opts, worker, calls, profile, ready, results):
    """A master worker: synchronous returns of its own jobs."""
    store = salt.loader.returners(opts, {})["saltcellar.returner"]
    loads = [
        {
            "cmd": "_return",
            "id": f"web{worker}{n:06d}",
            "success": True,
            "return": {"up": n, "text": "The service nginx is already running"},
            "retcode": 0,
            "jid": f"20261121{worker:02d}{n // 50:010d}",
            "fun": "service.running",
            "fun_args": [],
            "user": "root",
            "_stamp": "2026-11-21T03:09:55.600000+00:00",
        }
        for n in range(calls + 50)
    ]
    for load in loads[calls:]:
        store(load)
    ready.wait()
    cpu, start, took = own_cpu_s(), time.perf_counter(), []
    with profiled(profile):
        for load in loads[:calls]:
            started = time.perf_counter()
            store(load)
            took.append(time.perf_counter() - started)
    results.put((start, time.perf_counter(), own_cpu_s() - cpu, took))


def bench_returner(args):
    """Concurrent processes, one call at a time each."""
    runs = []
    for workers in args.workers:
        with Daemon(args.saltcellar, args.dir) as daemon:
            calls = args.calls // workers
            ready, results = multiprocessing.Barrier(workers), multiprocessing.Queue()
            cpu = daemon.cpu_s()
            forks = [
                multiprocessing.Process(
                    target=work,
                    args=(daemon.opts(), n, calls, args.profile and n == 0, ready, results),
                )
                for n in range(workers)
            ]
            for fork in forks:
                fork.start()
            came = [results.get(timeout=300) for _ in forks]
            for fork in forks:
                fork.join()
            if left := daemon.spooled_or_lost():
                raise SystemExit(f"entries did not reach the daemon: {left}")
            took = sorted(one for *_, some in came for one in some)
            seconds = max(end for _, end, *_ in came) - min(start for start, *_ in came)
            runs.append(
                {
                    "workers": workers,
                    "calls_per_s": round(len(took) / seconds),
                    "p50_us": round(took[len(took) // 2] * 1e6),
                    "p99_us": round(took[len(took) * 99 // 100] * 1e6),
                    "python_cpu_us_per_call": round(sum(one[2] for one in came) / len(took) * 1e6),
                    "daemon_cpu_us_per_call": round((daemon.cpu_s() - cpu) / len(took) * 1e6),
                }
            )
    return runs


def main():
    """Measure, and print JSON."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument(
        "--saltcellar", default=os.environ.get("SALTCELLAR_BIN", REPO / "target/release/saltcellar")
    )
    common.add_argument("--dir", help="directory of the daemon's store (default: $TMPDIR)")
    common.add_argument("--profile", action="store_true")
    what = parser.add_subparsers(dest="what", required=True)
    one = what.add_parser("event_return", parents=[common])
    one.add_argument("--events", type=int, default=500_000)
    one.add_argument("--batch", type=int, default=1000)
    one.add_argument("--load", choices=["corpus", "ping"], default="corpus")
    two = what.add_parser("returner", parents=[common])
    two.add_argument("--calls", type=int, default=20_000)
    two.add_argument("--workers", type=int, nargs="+", default=[1, 8])
    args = parser.parse_args()
    run = {"event_return": bench_event_return, "returner": bench_returner}[args.what]
    print(json.dumps(run(args), indent=2))


if __name__ == "__main__":
    main()
