#!/usr/bin/env python3
"""bus_cost: the master's cost of archiving events, by Salt's EventReturn and by saltcellar's bus source.

  salt_lab.py in-venv -- python tests/lab/bus_cost.py [--events N] [--rate RATE] [--json]

A master of the lab logs every event by `event_return: rawfile_json`, in batches of 1,000, and a saltcellar daemon reads the
same bus. N events of 300 to 400 bytes are fired into the master's socket, RATE of them a second. Measured is the processor time, user
and system, of the EventReturn process and of the daemon, from the first event until each has stored the last.
Needs a release build (`$SALTCELLAR_BIN` names another one).
"""
import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import procs  # noqa: E402
import rawbus  # noqa: E402
import salt_lab  # noqa: E402

TICKS = os.sysconf("SC_CLK_TCK")
TIMEOUT = 180  # seconds


def cpu_s(pid):
    with open(f"/proc/{pid}/stat") as f:
        fields = f.read().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def event_return_pid(master):
    """The process of that name below the master's."""
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/cmdline", "rb") as f:
                words = f.read().replace(b"\0", b" ")
            group = os.getpgid(int(pid))
        except (OSError, ProcessLookupError):
            continue
        if b"EventReturn" in words and group == master:
            return int(pid)
    return None


def lines(path):
    try:
        with open(path, "rb") as f:
            return sum(chunk.count(b"\n") for chunk in iter(lambda: f.read(1 << 20), b""))
    except FileNotFoundError:
        return 0


def fire(sock_dir, framing, events, rate):
    """Fires as the master's workers do: one connection, frame after frame."""
    began = time.monotonic()
    data = {"cmd": "_return", "fun": "test.ping", "retcode": 0, "success": True, "return": "x" * 150}
    with rawbus.connect(os.path.join(sock_dir, "master_event_pull.ipc")) as s:
        for n in range(events):
            if n % 50 == 0:
                time.sleep(max(0, began + n / rate - time.monotonic()))
            jid = f"20261121{n:012d}"
            event = {**data, "id": f"web{n % 1000}", "jid": jid, "_stamp": f"2026-11-21T00:00:00.{n:06d}"}
            s.sendall(rawbus.make_frame(f"salt/job/{jid}/ret/web{n % 1000}", event, framing, True))


def status(binary, sock):
    out = subprocess.run([binary, "status", "--socket", sock, "--output", "json"], capture_output=True, text=True)
    return json.loads(out.stdout) if out.returncode == 0 else {}


def wait(what, probe):
    until = time.monotonic() + TIMEOUT
    while True:
        found = probe()
        if found:
            return found
        if time.monotonic() > until:
            raise salt_lab.LabError(f"{what} took longer than {TIMEOUT} s")
        time.sleep(0.5)


def last_lines(log, logged, events):
    """The number of lines at the end, and when they were written. A busy master can lose events of its own EventReturn."""
    found, at = 0, time.monotonic()
    # Salt writes the rest of the last batch with the next event.
    while found < events - 1000 and time.monotonic() < at + 20:
        time.sleep(0.5)
        now = lines(log) - logged
        if now > found:
            found, at = now, time.monotonic()
    return found, at


def measure(binary, events, rate, home, release):
    log = os.path.join(home, "events.json")
    conf = {"event_return": "rawfile_json", "rawfile_json.filename": log, "event_return_queue": 1000,
            "event_return_queue_max_seconds": 1, "ipc_write_buffer": 0}
    lab = salt_lab.start(release, minions=0, master_conf=conf)
    daemon = None
    try:
        sock_dir, sock = os.path.join(lab["dir"], "master", "run"), os.path.join(home, "s")
        daemon = procs.spawn([binary, "serve", "--state-dir", os.path.join(home, "state"), "--socket", sock, "--bus", sock_dir],
                             stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        wait("the bus source", lambda: any(bus["connected"] for bus in status(binary, sock).get("bus", [])))
        master = lab["procs"]["master"]
        logger = wait("Salt's EventReturn process", lambda: event_return_pid(master))
        framing = rawbus.probe(sock_dir)["pull"]
        time.sleep(2)  # events of the start and the probe are processed
        stored = status(binary, sock)["counters"]["entries_stored"]
        logged = lines(log)
        before = cpu_s(logger), cpu_s(daemon.pid)
        began = time.monotonic()
        fire(sock_dir, framing, events, rate)
        wait("saltcellar", lambda: status(binary, sock)["counters"]["entries_stored"] - stored >= events)
        ours = time.monotonic() - began
        found, theirs = last_lines(log, logged, events)
        theirs -= began
        cost = cpu_s(logger) - before[0], cpu_s(daemon.pid) - before[1]
        return {
            "release": lab["release"], "events": events,
            "event_return": {"cpu_s_per_million": round(cost[0] / found * 1e6, 2), "events_per_s": round(found / theirs), "events": found},
            "saltcellar": {"cpu_s_per_million": round(cost[1] / events * 1e6, 2), "events_per_s": round(events / ours), "events": events},
        }
    finally:
        if daemon:
            procs.end([daemon.pid])
        salt_lab.stop(lab)


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--events", type=int, default=50_000)
    ap.add_argument("--rate", type=int, default=5_000, help="events per second")
    ap.add_argument("--release", help="of Salt; default: $SALT_RELEASE, or the newest pinned one")
    ap.add_argument("--json", action="store_true")
    args = ap.parse_args()
    binary = os.environ.get("SALTCELLAR_BIN") or os.path.join(
        os.environ.get("CARGO_TARGET_DIR") or os.path.join(salt_lab.REPO, "target"), "release", "saltcellar")
    if not os.access(binary, os.X_OK):
        sys.exit(f"bus_cost: {binary} does not exist: run `cargo build --release`, or set SALTCELLAR_BIN")
    procs.install()
    home = tempfile.mkdtemp(prefix="bus-cost-")
    try:
        found = measure(binary, args.events, args.rate, home, args.release)
    except salt_lab.LabError as exc:
        sys.exit(f"bus_cost: {exc}")
    finally:
        shutil.rmtree(home, ignore_errors=True)
    if args.json:
        print(json.dumps(found))
        return
    print(f"salt {found['release']}, {found['events']:,} events")
    print(f"{'':26}{'CPU S/M':>8}{'EVENTS/S':>12}{'STORED':>10}")
    for key, name in (("event_return", "EventReturn, rawfile_json"), ("saltcellar", "saltcellar, bus source")):
        row = found[key]
        print(f"{name:26}{row['cpu_s_per_million']:>8.1f}{row['events_per_s']:>12,}{row['events']:>10,}")


if __name__ == "__main__":
    main()
