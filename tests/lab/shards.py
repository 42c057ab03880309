#!/usr/bin/env python3
"""shards: runs the tests of a directory in several concurrent pytest processes, each with its own master or machine.

  shards.py DIR [PYTEST ARGS...]

A master, its minions and the tests mostly wait, so two processes need little more than half the time of one on two
cores. TEST_SHARDS is their number (2). Arguments are passed to each pytest; if one of them is a test or a file, there is
one process with these arguments alone. Runs in the lab's environment: `salt_lab.py in-venv -- python tests/lab/shards.py DIR`.
"""
import glob
import os
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import procs  # noqa: E402

#: Approximate seconds of each file in a directory, beside the other shard, for balance only. A file that is not listed counts as 5.
SECONDS = {
    "cluster": {
        "test_bad_input.py": 75,
        "test_faults.py": 12,
        "test_history.py": 55,
        "test_servers.py": 10,
    },
    "integration": {
        "test_cli.py": 8,
        "test_consumer.py": 15,
        "test_events.py": 20,
        "test_events_send.py": 3,
        "test_forged_returns.py": 8,
        "test_https.py": 23,
        "test_job_queries.py": 7,
        "test_jobs.py": 31,
        "test_messages.py": 11,
        "test_outages.py": 9,
        "test_reactor.py": 13,
        "test_reactor_fallback.py": 35,
        "test_reactor_faults.py": 28,
        "test_reactor_live.py": 80,
        "test_reactor_loops.py": 18,
        "test_reactor_masters.py": 48,
        "test_reactor_shadow.py": 45,
        "test_reactor_syndic.py": 5,
        "test_reactor_user.py": 32,
        "test_runner.py": 8,
        "test_module_dirs.py": 30,
        "test_spool.py": 33,
        "test_topologies.py": 75,
        "test_zeromq.py": 11,
    },
    # One machine with a master serves both test_reactor.py and test_unit.py: these numbers keep them together.
    "systemd": {
        "test_documented.py": 75,
        "test_extension.py": 80,
        "test_packages.py": 60,
        "test_reactor.py": 100,
        "test_setup.py": 200,
        "test_unit.py": 120,
        "test_upgrade.py": 70,
    },
}
NO_TESTS = 5  # pytest's exit code if no test was selected


def files(tests):
    return sorted(glob.glob(os.path.join(tests, "test_*.py")))


def split(paths, count):
    """Divides `paths` into `count` lists of about equal duration; deterministic."""
    def seconds(path):
        directory, name = os.path.split(path)
        return SECONDS.get(os.path.basename(directory), {}).get(name, 5)

    lists = [[] for _ in range(count)]
    totals = [0] * count
    for path in sorted(paths, key=lambda path: (-seconds(path), path)):
        least = totals.index(min(totals))
        lists[least].append(path)
        totals[least] += seconds(path)
    return [sorted(one) for one in lists if one]


class Shard:
    """One pytest process; its output is written to a file and copied to ours line by line."""

    def __init__(self, name, args, started):
        self.name, self.rest = name, ""
        self.out = tempfile.TemporaryFile()
        cmd = [sys.executable, "-m", "pytest", "-q", "-rfEs", "-p", "no:cacheprovider", "--durations=5", *args]
        procs.spawn(cmd, started.append, stdout=self.out, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL)
        self.process, self.at = started[-1], 0

    def forward(self):
        # The child writes at the file's shared position, so reading needs a separate one.
        data = os.pread(self.out.fileno(), 1 << 20, self.at)
        self.at += len(data)
        *lines, self.rest = (self.rest + data.decode(errors="replace")).split("\n")
        for line in lines:
            print(f"{self.name}{line}", flush=True)
        return bool(data)


def run(tests, args):
    names_tests = any(os.path.exists(arg.split("::")[0]) for arg in args)
    shards = [[]] if names_tests else split(files(tests), int(os.environ.get("TEST_SHARDS") or 2))
    procs.install()
    started, running = [], []
    try:
        for number, paths in enumerate(shards, 1):
            name = f"[{number}/{len(shards)}] " if len(shards) > 1 else ""
            running.append(Shard(name, [*args, *paths], started))
        while any([one.forward() or one.process.poll() is None for one in running]):
            time.sleep(0.1)
    except KeyboardInterrupt as exc:
        procs.ignore_signals()
        procs.end([process.pid for process in started], grace=30)
        return 128 + exc.signum
    codes = [one.process.returncode for one in running]
    failed = [code for code in codes if code not in (0, NO_TESTS)]
    return failed[0] if failed else min(codes)


if __name__ == "__main__":
    sys.exit(run(sys.argv[1], sys.argv[2:]))
