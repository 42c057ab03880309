"""Random ``kill -9`` of the daemon and of a destination: nothing is missing there, and only one batch at a time arrives again.

``KILLS`` sets their number, ``SEED`` repeats a run (``make sink-kills``).
"""
import json
import os
import pathlib
import random
import signal
import sys
import threading
import time

from conftest import eventually, free_port, is_open
from salt.exceptions import CommandExecutionError

#: Events of one request, and of one write to the file.
BATCH = 50
RECEIVER = pathlib.Path(__file__).with_name("durable_receiver.py")


class Sender(threading.Thread):
    """Stores numbered events until it is stopped. Those of a failed call are resent, under new numbers."""

    def __init__(self, daemon):
        super().__init__(daemon=True)
        self.cellar, self.stored, self.last, self.stopping = daemon, [], 0, False

    def run(self):
        while not self.stopping:
            numbers = range(self.last, self.last + 20)
            self.last += 20
            try:
                self.cellar.fire(*[(f"salt/auth/{n % 7}", {"n": n, "text": "x" * (n % 300)}) for n in numbers])
            except CommandExecutionError:
                time.sleep(0.02)
            else:
                self.stored.extend(numbers)


def check(name, lines, stored):
    """Compares what arrived, in its order, with the events whose storage was acknowledged."""
    events = [json.loads(line) for line in lines]
    by_id = {}
    for event in events:
        first = by_id.setdefault(event["id"], event)
        assert first == event, f"{name}: one id, two events"
    missing = set(stored) - {event["data"]["n"] for event in by_id.values()}
    assert not missing, f"{name}: {len(missing)} of {len(stored)} events are missing: {sorted(missing)[:10]}"
    again, newest, known = 0, 0, []
    for event in events:
        if event["seq"] > newest:
            newest = event["seq"]
            known.append(newest)
        else:
            again += 1
            assert event["seq"] in known[-BATCH:], f"{name}: event {event['seq']} came again after {newest}: beyond one batch"
    return len(by_id), again


def test_after_random_kills_nothing_is_missing_and_at_most_one_batch_comes_again(cellar, run, place):
    kills, seed = int(os.environ.get("KILLS", "10")), os.environ.get("SEED") or str(random.randrange(2**32))
    chance, port, received, written = random.Random(seed), free_port(), place / "received.jsonl", place / "written.jsonl"
    print(f"{kills} kills, SEED={seed}")

    def receive():
        receiver = run(sys.executable, RECEIVER, port, received)
        eventually("the receiver listens", lambda: is_open(port))
        return receiver

    receiver = receive()
    common = {"encoder": "json", "match": [{"tag": "salt/*"}], "retry": {"backoff": "1s", "max": "1s"}}
    http = {"url": f"http://127.0.0.1:{port}", "timeout": "5s", "body": {"separator": "\n", "suffix": "\n"}}
    daemon = cellar(
        hook={"transport": {"http": http}, "batch": {"count": BATCH, "time": "0s"}, **common},
        copy={"transport": {"file": {"path": str(written)}}, "batch": {"count": BATCH}, **common},
    )
    sender = Sender(daemon)
    sender.start()
    killed = {"daemon": 0, "receiver": 0}
    for _ in range(kills):
        time.sleep(chance.uniform(0.02, 0.4))
        victim = chance.choice(sorted(killed))
        killed[victim] += 1
        if victim == "daemon":
            daemon.kill()
            daemon.start()
        else:
            os.killpg(receiver.pid, signal.SIGKILL)
            receiver.wait()
            time.sleep(chance.uniform(0, 0.2))
            receiver = receive()
    before = len(sender.stored)
    eventually("events are stored after the last kill", lambda: len(sender.stored) > before)
    sender.stopping = True
    sender.join()
    for name, path in [("hook", received), ("copy", written)]:
        daemon.delivered(name, 120)
        different, again = check(name, path.read_text().splitlines(), sender.stored)
        print(f"{name}: {different} events, {again} of them again, {len(sender.stored)} acknowledged, kills {killed}")
    assert not daemon.letters("hook") and not daemon.letters("copy")
