"""The reactor pipelines of Salt and of saltcellar, on the same rules and files, in one run.

    python tests/lab/bench_reactor.py        # with a Python that has Salt; SALTCELLAR_BIN names the program
"""

import json
import os
import re
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
# Labels of bench_reactor_salt.py, by the names of `saltcellar-bench reactor`.
NAMES = {
    "one matches": r"^(\d+) configured, 1 matches, local file, 1 reaction",
    "one matches, if false": r"^(\d+) configured, 1 matches, local file, if false",
    "none matches": r"^(\d+) configured, none matches",
    "one matches, salt://": r"^(\d+) configured, 1 matches, salt:// file",
    "all match one file": r"^(\d+) configured, all \d+ match one file",
}


def salt():
    """Salt's median events/s by situation and number of rules."""
    run = subprocess.run(
        [sys.executable, os.path.join(HERE, "bench_reactor_salt.py")], capture_output=True, text=True, check=True
    )
    found = {}
    for line in run.stdout.splitlines():
        rate = re.search(r"median\s+(\d+) ev/s", line)
        for name, pattern in NAMES.items():
            entries = re.match(pattern, line)
            if rate and entries:
                found[name, int(entries.group(1))] = float(rate.group(1))
    return found


def main():
    theirs = salt()
    program = os.environ.get("SALTCELLAR_BENCH", "saltcellar-bench")
    run = subprocess.run([program, "reactor", "--output", "json"], capture_output=True, text=True, check=True)
    print(f"{'situation':<24}{'rules':>6}{'Salt/s':>12}{'ours/s':>12}{'times':>8}{'p50 us':>9}{'p99 us':>9}")
    for row in json.loads(run.stdout):
        rate = theirs.get((row["situation"], row["entries"]))
        times = f"{row['events_per_s'] / rate:.0f}" if rate else "-"
        shown = f"{rate:.0f}" if rate else "-"
        print(
            f"{row['situation']:<24}{row['entries']:>6}{shown:>12}{row['events_per_s']:>12.0f}{times:>8}"
            f"{row['p50_us']:>9.2f}{row['p99_us']:>9.2f}"
        )


if __name__ == "__main__":
    main()
