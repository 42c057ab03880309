"""nodes: daemons that share one history, writers that store jobs as a master would, and what must be the same on all of them.

There is no Salt here: a writer makes the calls of the extension over the local socket. A master whose daemon is away spools its calls and
hands them over later, so a writer repeats every call that was not acknowledged, as a replay.
"""
import collections
import contextlib
import datetime
import json
import os
import pathlib
import random
import shutil
import signal
import socket
import struct
import subprocess
import sys
import threading
import time

import msgpack

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "lab"))
import procs  # noqa: E402
from procs import WAIT_MAX, eventually  # noqa: E402

#: Kinds of entries that a job consists of, and that a peer must have.
KINDS = ("load", "return", "return_load", "minions", "endtime", "nocache")
#: Calls that a writer sends before it reads their responses.
BATCH = 32


class Refused(Exception):
    """The daemon refused a call: its code and message."""


class Wire:
    """A connection to the local socket."""

    def __init__(self, path, timeout=WAIT_MAX):
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.socket.settimeout(timeout)
        self.number = 0
        try:
            self.socket.connect(str(path))
            self.socket.sendall(b"SCWIRE" + struct.pack(">H", 1))
        except OSError:
            self.socket.close()
            raise
        self.data = self.socket.makefile("rb")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.data.close()
        self.socket.close()

    def ask_all(self, calls):
        """The responses to calls, which are sent together: a list with a value or a `Refused` for each."""
        first, out = self.number + 1, []
        for name, args in calls:
            self.number += 1
            frame = msgpack.packb([self.number, name, args])
            out.append(struct.pack(">I", len(frame)) + frame)
        self.socket.sendall(b"".join(out))
        found = {}
        while len(found) < len(calls):
            number, good, value = msgpack.unpackb(self._exactly(struct.unpack(">I", self._exactly(4))[0]), strict_map_key=False)
            found[number] = value if good else Refused(value["code"], value["message"])
        return [found[number] for number in range(first, self.number + 1)]

    def ask(self, name, **args):
        (answer,) = self.ask_all([(name, args)])
        if isinstance(answer, Refused):
            raise answer
        return answer

    def _exactly(self, count):
        data = self.data.read(count)
        if len(data) < count:
            raise ConnectionError("the daemon closed the connection")
        return data


class Node:
    """One daemon. `servers` are the addresses that it has of NATS; `cluster` are more keys of its configuration."""

    def __init__(self, place, name, slot, servers, password, stream="saltcellar", replicas=1, others=None, **cluster):
        self.name, self.program = name, os.environ["SALTCELLAR_BIN"]
        self.place = pathlib.Path(place)
        self.place.mkdir(exist_ok=True)
        self.socket, self.log, self.state = str(self.place / "d.sock"), self.place / "daemon.log", self.place / "state"
        (self.place / "password").write_text(password)
        self.nats = {"servers": servers, "user": name, "password": f"file:{self.place}/password", "timeout": "2s"}
        self.cluster = {"slot": slot, "name": name, "stream": stream, "replicas": replicas, **cluster}
        # Retention must delete nothing for a full disk of the host that tests.
        self.others, self.process = {"store": {"free_bytes_low": 1, "free_bytes_min": 1}, **(others or {})}, None

    def configure(self, **cluster):
        self.cluster |= cluster

    def start(self, wait=True):
        config = {**self.others, "cluster": {**self.cluster, **({"nats": self.nats} if self.nats else {})}}
        (self.place / "saltcellar.yaml").write_text(json.dumps(config))
        env = {key: value for key, value in os.environ.items() if not key.startswith("SALTCELLAR_")}
        command = [self.program, "serve", "--config", self.place / "saltcellar.yaml", "--state-dir", self.state, "--socket", self.socket]
        with open(self.log, "ab") as log:
            procs.spawn([str(part) for part in command], self._note, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=env)
        if wait:
            eventually(f"{self.name} answers", self.answers)
        return self

    def _note(self, process):
        self.process = process

    @property
    def runs(self):
        return self.process is not None and self.process.poll() is None

    def answers(self):
        assert self.runs, f"{self.name} ended: {self.log.read_text()[-3000:]}"
        with contextlib.suppress(OSError), Wire(self.socket, 5) as wire:
            wire.ask("status")
            return True
        return False

    def kill(self):
        if self.runs:
            self.process.kill()
            self.process.wait()

    def stop(self):
        """Ends it in order; its exit code is 0."""
        self.process.terminate()
        assert self.process.wait(WAIT_MAX) == 0

    def freeze(self):
        self.process.send_signal(signal.SIGSTOP)

    def thaw(self):
        self.process.send_signal(signal.SIGCONT)

    def ask(self, call, **args):
        with Wire(self.socket) as wire:
            return wire.ask(call, **args)

    def cli(self, *args, check=True):
        done = procs.run([self.program, *map(str, args), "--socket", self.socket], stdin=subprocess.DEVNULL, timeout=WAIT_MAX,
                         stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        assert not check or done.returncode == 0, f"{args}: {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done

    def status(self):
        return json.loads(self.cli("status", "--output", "json", check=False).stdout)

    def reasons(self):
        """Why the daemon says that not all is well, one line each."""
        return [f"{one['level']} {one['part']}: {one['message']}" for one in self.status()["health"]["reasons"]]

    def says(self, *words, seconds=WAIT_MAX):
        """Waits for a reason of `status` with all these words."""
        def look():
            last.clear()
            last.extend(self.reasons())
            return [line for line in last if all(word.lower() in line.lower() for word in words)]
        last = []
        try:
            return eventually(f"a reason of {self.name} with {words}", look, seconds)
        except AssertionError as error:
            raise AssertionError(f"{error}; it has {last}") from None

    def doctor(self, check):
        """The findings of a check of `doctor` that are not well."""
        done = self.cli("doctor", "--no-master", "--config", self.place / "saltcellar.yaml", "--output", "json", check=False)
        return [one for one in json.loads(done.stdout)["checks"] if one["check"] == check and one["result"] in ("warning", "problem")]

    def doctor_says(self, check, *words):
        """Waits for a finding of a check of `doctor` that is not well, with all these words."""
        def look():
            last[:] = self.doctor(check)
            return [one for one in last if all(word in json.dumps(one) for word in words)]
        last = []
        try:
            return eventually(f"a finding of {check} at {self.name} with {words}", look)
        except AssertionError as error:
            raise AssertionError(f"{error}; it has {last}") from None

    def is_well(self, seconds=WAIT_MAX):
        """Waits until nothing of the cluster is wrong any more."""
        def look():
            last.clear()
            last.extend(line for line in self.reasons() if "cluster" in line)
            return not last
        last = []
        try:
            eventually(f"{self.name} is well", look, seconds)
        except AssertionError as error:
            raise AssertionError(f"{error}; it has {last}") from None

    def entries(self, since=1, every=False):
        """The stored entries from a sequence number on, in the order of the log."""
        found, args = [], {"all": True} if every else {}
        with Wire(self.socket) as wire:
            while since is not None:
                page = wire.ask("entries", **{"from": since}, **args)
                found += page["entries"]
                since = page["next"]
        return found

    def job(self, jid):
        return self.ask("job_show", jid=jid)

    def backup(self, to):
        self.cli("store", "backup", to, "--state-dir", self.state)

    def restore(self, backup):
        """Replaces the state directory by the restored backup; the daemon is down."""
        shutil.rmtree(self.state)
        self.cli("store", "restore", backup, self.state)


def identity(entry):
    """What an entry is, without its place: the same on each node. A body is compared as bytes."""
    return entry["kind"], entry.get("jid"), entry.get("minion"), entry["body"]


_jids = random.Random()
_jid_lock = threading.Lock()
_last_jid = 0


def new_jid():
    """A job id that no other call has returned: the time in microseconds."""
    global _last_jid
    with _jid_lock:
        _last_jid = max(_last_jid + 1, time.time_ns() // 1000)
        at = datetime.datetime(1970, 1, 1) + datetime.timedelta(microseconds=_last_jid)
    return at.strftime("%Y%m%d%H%M%S%f")


def job_calls(name, minions=3, size=50, fun="test.echo", jid=None):
    """The calls of a master for one job: its load, a minion of a syndic, the returns, its end."""
    jid = jid or new_jid()
    ids = [f"{name}-{n}" for n in range(minions)]
    load = {"jid": jid, "fun": fun, "arg": ["x" * size], "tgt": f"{name}-*", "tgt_type": "glob", "user": "root", "cmd": "publish", "kwargs": {}, "ret": ""}
    returns = [
        {"cmd": "_return", "id": minion, "jid": jid, "fun": fun, "fun_args": ["x" * size], "return": f"{minion} {os.urandom(size // 2).hex()}",
         "retcode": n % 2, "success": not n % 2} for n, minion in enumerate(ids)
    ]
    return jid, [
        ("save_load", {"jid": jid, "load": load, "minions": ids}),
        *[("returner", {"load": one}) for one in returns],
        ("update_endtime", {"jid": jid, "endtime": "2026, Nov 27 12:00:00.000000"}),
    ]


#: Kinds of entries by the call that stores them. A call has one of them.
KINDS_OF = {
    "save_load": {"load"}, "save_minions": {"minions"}, "returner": {"return", "return_load"}, "update_endtime": {"endtime"},
    "prep_jid": {"nocache"},
}


class Writer(threading.Thread):
    """A master: stores jobs at its daemon until it is stopped, and every one of its calls until it is acknowledged.

    `acked` has what was acknowledged: (call, jid, minion). `find_jobs` are jobs that must stay where they are.
    """

    def __init__(self, node, pause=0.02, minions=3, size=50):
        super().__init__(daemon=True)
        self.node, self.pause, self.minions, self.size = node, pause, minions, size
        self.acked, self.jids, self.find_jobs = set(), [], set()
        self.waiting = collections.deque()
        self.stopping = self.holding = False
        self.idle = threading.Event()
        self.start()

    def run(self):
        wire, count = None, 0
        while not (self.stopping and not self.waiting):
            if self.holding and not self.waiting:
                self.idle.set()
                time.sleep(0.01)
                continue
            self.idle.clear()
            try:
                # One that is frozen must not keep it from stopping.
                wire = wire or Wire(self.node.socket, 60)
                if not self.waiting:
                    count += 1
                    self._new_job(count)
                    time.sleep(self.pause)
                self._send(wire)
            except OSError:
                if wire:
                    wire.__exit__()
                wire = None
                time.sleep(0.05)
        if wire:
            wire.__exit__()

    def _new_job(self, count):
        is_find_job = count % 7 == 0
        jid, calls = job_calls(self.node.name, self.minions, self.size, "saltutil.find_job" if is_find_job else "test.echo")
        if is_find_job:
            # Salt stores no end of it.
            calls.pop()
        (self.find_jobs.add if is_find_job else self.jids.append)(jid)
        at = time.time_ns() // 1000
        self.waiting.extend((call, {**args, "at": at}) for call, args in calls)

    def _send(self, wire):
        calls = [self.waiting[n] for n in range(min(BATCH, len(self.waiting)))]
        # Until the response is here, each of them may be stored or not.
        for n, (call, args) in enumerate(calls):
            self.waiting[n] = (call, {**args, "replay": True})
        answers = wire.ask_all(calls)
        left = []
        for call, answer in zip(calls, answers):
            self.waiting.popleft()
            if isinstance(answer, Refused):
                assert answer.args[0] in ("unavailable", "internal"), answer
                left.append((call[0], {**call[1], "replay": True}))
            else:
                self.acked.add(self.what(*call))
        self.waiting.extendleft(reversed(left))
        if left:
            time.sleep(0.1)

    @staticmethod
    def what(call, args):
        return call, args.get("jid") or args["load"]["jid"], args.get("load", {}).get("id")

    def hold(self):
        """No new jobs; waits until all calls are acknowledged. The daemon must be up."""
        self.holding = True
        assert self.idle.wait(WAIT_MAX), f"calls at {self.node.name} were not acknowledged"

    def resume(self):
        self.idle.clear()
        self.holding = False

    def finish(self):
        """Stops; each call that it made is acknowledged."""
        self.stopping, self.holding = True, False
        self.join(WAIT_MAX)
        assert not self.is_alive(), f"{len(self.waiting)} calls at {self.node.name} were not acknowledged: {self.node.reasons() if self.node.runs else 'it is down'}"


class History:
    """What all nodes must have: the entries of each origin, once, in its order."""

    def __init__(self, nodes, writers):
        self.nodes, self.writers = nodes, writers
        #: For each origin what its log had before it was replaced by an older one, in its order: a list for each time.
        self.before = collections.defaultdict(list)
        self.seen = {node.name: (1, []) for node in nodes}

    def read(self, node):
        """All entries of jobs on a node, of which those that were read before are not reread."""
        since, known = self.seen[node.name]
        new = node.entries(since)
        if new:
            known += [(one["seq"], identity(one)) for one in new if one["kind"] in KINDS]
            self.seen[node.name] = (new[-1]["seq"] + 1, known)
        return [one for _, one in known]

    def forget(self, node):
        """The node's log is replaced by another one."""
        self.seen[node.name] = (1, [])

    def of(self, node, writer):
        """The entries of an origin on a node, in the order of its log."""
        jids = set(writer.jids)
        return [one for one in self.read(node) if one[1] in jids]

    def keep(self, node):
        """To be called before the node's log is replaced: what it has now was in this order."""
        writer = next(one for one in self.writers if one.node is node)
        self.before[node.name].append(self.of(node, writer))

    def problem(self):
        """What is not as it must be, or None."""
        for writer in self.writers:
            found = {node.name: self.of(node, writer) for node in self.nodes}
            own = found[writer.node.name]
            for name, entries in found.items():
                # A call that is repeated after a kill stores an end time once more: the last one counts. The copies are as many.
                doubles = [
                    one[:3] for one, count in collections.Counter(entries).items()
                    if count > (own.count(one) if one[0] == "endtime" else 1)
                ]
                if doubles:
                    return f"{name} has {len(doubles)} entries of {writer.node.name} more than once: {doubles[:3]}"
                if lacks := self.lacks(writer, entries):
                    return f"{name} lacks {len(lacks)} of {len(writer.acked)} acknowledged calls at {writer.node.name}: {sorted(lacks)[:3]}"
                if different := set(own) ^ set(entries):
                    return f"{name} and {writer.node.name} differ in {len(different)} entries of {writer.node.name}: {[one[:3] for one in different][:3]}"
                if name != writer.node.name and (problem := self.order(writer, own, entries)):
                    return f"{name}: {problem}"
        for writer in self.writers:
            for node in self.nodes:
                strange = [one[:3] for one in self.read(node) if one[1] in writer.find_jobs]
                if node is not writer.node and strange:
                    return f"{node.name} has {len(strange)} entries of saltutil.find_job of {writer.node.name}: {strange[:3]}"
        return None

    @staticmethod
    def lacks(writer, entries):
        """The acknowledged calls that left no entry."""
        has = {(kind, jid, minion) for kind, jid, minion, _ in entries}
        return {
            (call, jid, minion) for call, jid, minion in writer.acked
            if jid not in writer.find_jobs and not any((kind, jid, minion) in has for kind in KINDS_OF[call])
        }

    def order(self, writer, own, entries):
        """Compares the order with that of the origin's logs, of which the last one is the present one."""
        past, known = self.before[writer.node.name], set()
        for log in [*past, own]:
            part = [one for one in log if one not in known]
            known.update(part)
            expected, wanted = part, set(part)
            got = [one for one in entries if one in wanted]
            if log is own and past:
                # What the origin itself has learned again from the stream is not in the order in which it was stored.
                continue
            if got != expected:
                at = next((n for n, (a, b) in enumerate(zip(got, expected)) if a != b), min(len(got), len(expected)))
                return f"entry {at} of {writer.node.name} is {got[at][:3] if at < len(got) else None}, and not {expected[at][:3] if at < len(expected) else None}"
        return None

    def is_complete(self, seconds=WAIT_MAX):
        """Waits until each node has the entries of all origins."""
        if not procs.poll(lambda: self.problem() is None, seconds, pause=0.2):
            shown = "\n".join(f"{node.name}: {node.reasons() if node.runs else 'down'}" for node in self.nodes)
            raise AssertionError(f"not within {seconds} s: {self.problem()}\n{shown}")

    def answers_are_equal(self, jids=None):
        """`jobs show` and what `jobs.lookup_jid` asks for are equal on all nodes."""
        jids = jids or [jid for writer in self.writers for jid in writer.jids]
        for at in range(0, len(jids), 100):
            part, answers = jids[at:at + 100], []
            for node in self.nodes:
                with Wire(node.socket) as wire:
                    found = wire.ask_all([(call, {"jid": jid}) for jid in part for call in ("job_show", "get_jid", "get_load", "get_endtime")])
                answers.append([without_place(one) for one in found])
            for node, other in zip(self.nodes[1:], answers[1:]):
                for n, (mine, theirs) in enumerate(zip(answers[0], other)):
                    assert mine == theirs, f"job {part[n // 4]}: {self.nodes[0].name} answers {mine}\n{node.name} answers {theirs}"


#: Parts of a response that say where something is stored.
PLACE = ("seq", "master", "origin", "id")


def without_place(value):
    if isinstance(value, Refused):
        return str(value)
    if isinstance(value, dict):
        return {key: without_place(item) for key, item in value.items() if key not in PLACE}
    if isinstance(value, list):
        return [without_place(item) for item in value]
    return value
