"""Reactions while the master, single processes of it and the daemon are killed, stopped and frozen.

`make reactor-faults FAULTS=50 REACTIONS=10000 SEED=1` runs many; without these variables the test is short and always the same.

The daemon's reports are verified. Each execution of a job and each start of a runner appends a word to a file; published jobs are
in the master's own job cache; and a listener reads the bus. These are compared with the daemon's archive and its records.
"""
import bisect
import collections
import contextlib
import datetime
import json
import os
import pathlib
import random
import re
import shutil
import sys
import threading
import time

import faults
import procs
import pytest
import rawbus
import salt_lab
from conftest import REPO, Reactor, live_lab, running

SLS = """
note it:
  KIND.note:
    - args:
      - path: FILE
      - word: {{ data['word'] }}
"""
WORD = re.compile(rb"w\d{7}")
#: One of so many reactions starts a runner; the others publish a job.
RUNNER_EACH = 5
#: One of so many jobs is for the running minion, and leaves a note. The others are for a minion that has only a key: a
#: minion with thousands of concurrent jobs would be an additional fault.
NOTED_EACH = 10
#: Maximum number of unfinished reactions while more events are fired.
UNDER_WAY = 50
#: Seconds after the end of a fault in which its consequences may appear: minions reconnect, started processes end.
AFTERMATH = 20
#: The faults of the short form.
SHORT = [("freeze", "master", 2.0, "kill"), ("freeze", "publisher", 0.5, None), ("kill", "master", 0, None)]


class Listener(threading.Thread):
    """Reads the bus of a master that restarts: `new[tag]` is the word of each started job and runner."""

    def __init__(self, sock_dir):
        super().__init__(name="listener", daemon=True)
        self.path, self.done = f"{sock_dir}/master_event_pub.ipc", threading.Event()
        self.fired, self.new = collections.Counter(), []
        self.start()

    def run(self):
        while not self.done.is_set():
            try:
                reader = rawbus.Reader(self.path)
            except OSError:
                self.done.wait(0.05)
                continue
            self.read(reader)
            reader.s.close()

    def read(self, reader):
        while not self.done.is_set():
            until = time.time() + 0.2
            with contextlib.suppress(ConnectionError):
                for _, frame in reader.frames(until):
                    self.take(frame)
            if time.time() < until:
                return  # the peer has closed

    def take(self, frame):
        _, tag, data = rawbus.unwrap(frame)
        if word := WORD.search(data):
            word = word[0].decode()
            if tag.startswith("faults/"):
                self.fired[word] += 1
            elif tag.endswith("/new"):
                self.new.append((tag, word))

    def stop(self):
        self.done.set()
        self.join()


def stamp():
    return datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%S.%f")


class Driver:
    """Fires events, no faster than the reactions to them, through all faults."""

    def __init__(self, lab, listener, framing):
        self.lab, self.listener, self.framing = lab, listener, framing
        self.fired, self.given_up, self.socket = 0, 0, None

    def fire(self):
        n = self.fired
        kind = "run" if n % RUNNER_EACH == 0 else "job"
        data = {"word": f"w{n:07d}", "tgt": "lab-1" if n % NOTED_EACH == 1 else "ghost", "_stamp": stamp()}
        if n % 7:
            data["id"] = f"minion-{n % 5}"
        frame = rawbus.make_frame(f"faults/{kind}/{n}", data, self.framing, True)
        while True:
            try:
                if self.socket is None:
                    self.socket = rawbus.connect(f"{self.lab.sock_dir}/master_event_pull.ipc")
                    self.socket.settimeout(60)
                self.socket.sendall(frame)
                break
            except OSError:  # a partial frame is not an event
                if self.socket is not None:
                    self.socket.close()
                self.socket = None
                time.sleep(0.05)
        self.fired += 1

    def wait_for_room(self):
        """Waits until few reactions are pending. Events lost in a fault would never finish, so it gives up without progress."""
        seen, until = len(self.listener.new), time.monotonic() + 3
        while self.fired - self.given_up - seen > UNDER_WAY:
            time.sleep(0.02)
            now = len(self.listener.new)
            if now != seen:
                seen, until = now, time.monotonic() + 3
            elif time.monotonic() > until:
                self.given_up = self.fired - seen


class Evidence:
    """The observations, by word."""

    def __init__(self, lab, daemon, listener, notes, started):
        self.listener, self.started = listener, started
        self.archived = {event["data"]["word"]: event for event in daemon.events("--tag", "faults/*")}
        self.records = collections.defaultdict(list)
        lines = daemon.cli("reactor", "history", "--tag", "faults/*", "--limit", "1000000", "--output", "jsonl").stdout
        words = {event["seq"]: word for word, event in self.archived.items()}
        for line in lines.splitlines():
            row = json.loads(line)
            self.records[words[row["reaction"]["event"]]].append(row["reaction"])
        self.noted = collections.Counter()
        for path in notes.values():
            self.noted.update(pathlib.Path(path).read_text().split())
        #: When the jobs that the minion ran were sent, in seconds.
        calls = (call for word in self.noted for record in self.records[word] for call in record["calls"])
        self.ran = sorted(call["sent"] / 1e6 for call in calls if call["client"] == "local")
        #: The jids of the jobs of each word, of the master's job cache and of the bus.
        self.jids = collections.defaultdict(set)
        for path in pathlib.Path(lab.lab["dir"], "master/cache/jobs").glob("*/*/.load.p"):
            with open(path.parent / "jid") as jid:
                for word in WORD.findall(path.read_bytes())[:1]:
                    self.jids[word.decode()].add(jid.read().strip())
        self.announced = collections.Counter()
        for tag, word in listener.new:
            if tag.startswith("salt/job/"):
                self.jids[word].add(tag.split("/")[2])
            self.announced[word] += 1

    def in_fault(self, micros):
        """Whether a loss at that moment can be explained by a fault or its consequences: nothing has run since the fault, or not for
        as long as processes take to end. A minion on a busy host may need minutes to find a master that was frozen and replaced."""
        at = micros / 1e6
        for begin, end, _ in self.started:
            first = bisect.bisect_right(self.ran, end)
            runs_again = self.ran[first] if first < len(self.ran) else at
            if begin - 1 <= at <= max(end + AFTERMATH, runs_again):
                return True
        return False

    def violations(self):
        """A list of violations, and counts of permitted losses."""
        bad, figures = [], collections.Counter()
        for word in sorted(self.archived):
            records, times = self.records[word], self.noted[word]
            if len(records) != 1 or len(records[0]["calls"]) != 1:
                bad.append(f"{word}: {len(records)} records: {records}")
                continue
            call = {key: value for key, value in records[0]["calls"][0].items() if key not in ("load", "sls", "id", "fun", "took_us")}
            sent = call["sent"]
            figures[f"{call['client']} {call['outcome']}"] += 1
            if times > 1:
                bad.append(f"{word}: {call['client']} was executed {times} times, recorded as {call}")
            if call["client"] == "runner":
                self.runner(word, call, times, sent, bad, figures)
            else:
                self.job(word, call, times, sent, bad, figures)
        for word in self.noted.keys() - self.archived.keys():
            bad.append(f"{word}: executed for an event that is not in the archive")
        figures["events lost by the bus or not read"] = len(self.listener.fired.keys() - self.archived.keys())
        return bad, figures

    def runner(self, word, call, times, sent, bad, figures):
        if self.announced[word] > 1:
            bad.append(f"{word}: a runner was started {self.announced[word]} times, recorded as {call}")
        if call["outcome"] not in ("started", "unknown", "found", "ran"):
            bad.append(f"{word}: a runner ended as {call}")
        elif not times and call["outcome"] != "unknown":
            figures["runners accepted by the master and lost in a fault"] += 1
            if not self.in_fault(sent):
                bad.append(f"{word}: a runner never ran, and is recorded as {call}")

    def job(self, word, call, times, sent, bad, figures):
        is_noted = self.archived[word]["data"]["tgt"] == "lab-1"
        jids = self.jids[word]
        if jids != {call["jid"]}:
            bad.append(f"{word}: published as {sorted(jids)}, recorded as {call}")
        if self.announced[word] > 1:
            figures["jobs announced again under the same jid"] += 1
        if is_noted and not times:
            figures["jobs that were published and lost in a fault"] += 1
            if not self.in_fault(sent):
                bad.append(f"{word}: a job never ran, and is recorded as {call}")


@pytest.fixture
def stage(place):
    """A master with one minion, a daemon with a reactor, and the files in which executions are noted."""
    notes = {"job": f"{place}/jobs", "run": f"{place}/runners"}
    for kind, client in (("job", "local.labmod"), ("run", "runner.labrun")):
        pathlib.Path(notes[kind]).touch()
        text = SLS.replace("KIND", client).replace("FILE", notes[kind])
        if kind == "job":
            text += "    - tgt: {{ data['tgt'] }}\n"
        salt_lab.write(f"{place}/r/{kind}.sls", text)
    with live_lab(f"{place}/lab", minions=1, master_conf={"worker_threads": 3},
                  minion_conf={"multiprocessing": False, "log_level_logfile": "warning"},
                  module_dirs=[os.path.join(REPO, "tests", "lab", "modules")]) as lab:
        keys = f"{lab.lab['dir']}/master/pki/minions"
        shutil.copy(f"{keys}/lab-1", f"{keys}/ghost")
        rules = [{f"faults/{kind}/*": [f"{place}/r/{kind}.sls"]} for kind in notes]
        with running(Reactor(f"{place}/sc", lab.sock_dir, master=f"{lab.lab['dir']}/conf/master", rules=rules)) as daemon:
            daemon.wait_for_bus()
            yield lab, daemon, notes


def wait_for_the_reactions(daemon):
    """Waits until all reactions are finished. A runner lost with a killed master occupies its slot for a minute."""
    known, until = None, 0
    while True:
        p = daemon.cli("reactor", "rules", "--output", "json", check=False)
        state = json.loads(p.stdout) if p.returncode == 0 else {}
        unfinished = [state.get(key) for key in ("open", "waiting", "behind")]
        if unfinished == [0, 0, 0]:
            return
        if unfinished != known:
            known, until = unfinished, time.monotonic() + 150
        assert time.monotonic() < until, f"no reaction finished in 150 s: {p.stdout} {p.stderr}"
        time.sleep(1)


def test_no_job_is_published_twice_and_no_runner_started_twice_through_faults(stage):
    lab, daemon, notes = stage
    reactions = int(os.environ.get("REACTIONS") or 60)
    seed = int(os.environ.get("SEED") or 1)
    chance = random.Random(seed)
    count = int(os.environ.get("FAULTS") or len(SHORT))
    planned = [faults.random_fault(chance) for _ in range(count)] if os.environ.get("FAULTS") else list(SHORT)
    # Each fault occurs after so many events.
    moments = sorted(chance.randrange(reactions) for _ in planned) if os.environ.get("FAULTS") else [15, 30, 45]
    framing = rawbus.probe(lab.sock_dir)["pull"]
    listener = Listener(lab.sock_dir)
    made = faults.Faults(lab, daemon, chance)
    driver = Driver(lab, listener, framing)
    began, broken = time.time(), []

    def make_faults():
        try:
            for moment, fault in zip(moments, planned, strict=True):
                while driver.fired < moment:
                    time.sleep(0.02)
                say(f"{time.time() - began:7.1f} s, {driver.fired} events: {fault}")
                made.make(fault)
        except BaseException as why:
            broken.append(why)

    say(f"SEED={seed} FAULTS={count} REACTIONS={reactions}")
    thread = threading.Thread(target=make_faults, name="faults", daemon=True)
    thread.start()
    wanted = reactions
    while not broken and (thread.is_alive() or driver.fired < wanted):
        driver.wait_for_room()
        driver.fire()
        if not thread.is_alive() and driver.fired >= wanted:
            # Events from a time without a daemon cause no reaction.
            wanted = driver.fired + max(0, reactions - archived(daemon, driver))
    thread.join()
    assert not broken, broken
    say(f"{time.time() - began:7.1f} s, {driver.fired} events: waiting for the last reactions")
    wait_for_the_reactions(daemon)
    settle(notes)
    listener.stop()
    evidence = Evidence(lab, daemon, listener, notes, made.done)
    bad, figures = evidence.violations()
    say(f"{len(evidence.archived)} reactions, {len(made.done)} faults, {made.restarts} master restarts, {time.time() - began:.0f} s")
    for name, number in sorted(figures.items()):
        say(f"  {name}: {number}")
    assert len(evidence.archived) >= reactions
    assert not bad, f"SEED={seed}: {len(bad)} violations:\n" + "\n".join(bad[:20])


def archived(daemon, driver):
    """Number of archived events, once the latest one is archived."""
    last = f"faults/*/{driver.fired - 1}"
    procs.poll(lambda: daemon.events("--tag", last), 5)
    return len(daemon.events("--tag", "faults/*"))


def settle(notes):
    """Waits until executions end: none for as long as a minion may need to reconnect."""
    sizes = lambda: [os.path.getsize(path) for path in notes.values()]  # noqa: E731
    known = sizes()
    until = time.monotonic() + 5
    while time.monotonic() < until:
        time.sleep(0.1)
        if sizes() != known:
            known, until = sizes(), time.monotonic() + 5


def say(words):
    print(words, file=sys.stderr, flush=True)
