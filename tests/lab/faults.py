"""faults: kill, stop and freeze a Salt master, single processes of it, and the daemon beside it.

A fault is `(action, target, seconds, also)`:

  action   `kill` (SIGKILL), `stop` (SIGTERM) or `freeze` (SIGSTOP, SIGCONT after `seconds`)
  target   `master` (all its processes), `worker`, `workers`, `publisher`, `requests` (the request server and its workers) or `daemon`
  also     an action on the daemon while `target` is frozen, or None

A master that does not recover within `RECOVERY` seconds is restarted here, as by systemd.
"""
import contextlib
import os
import signal
import time

import procs
import rawbus
import rawreq
import salt_lab

#: Seconds before a master without answers is restarted.
RECOVERY = 20
#: Timeout of a restarted master, in seconds: its processes share the machine with all others.
START = 180
SIGNALS = {"kill": signal.SIGKILL, "stop": signal.SIGTERM, "freeze": signal.SIGSTOP}


def random_fault(random):
    action = random.choices(("kill", "stop", "freeze"), (4, 2, 4))[0]
    target = random.choices(("master", "worker", "workers", "publisher", "requests", "daemon"), (4, 2, 1, 2, 1, 4))[0]
    # A third of them exceed the daemon's timeout for an answer.
    seconds = random.choice((random.uniform(0.1, 2), random.uniform(2, 8), random.uniform(31, 36))) if action == "freeze" else 0
    also = random.choice((None, None, "kill", "stop")) if action == "freeze" and target != "daemon" else None
    return action, target, seconds, also


def processes(group):
    """The processes of a group: `{pid: (parent, title)}`."""
    found = {}
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        with contextlib.suppress(OSError, IndexError):
            with open(f"/proc/{name}/stat") as file:
                state, parent, its_group = file.read().rpartition(")")[2].split()[:3]
            if int(its_group) == group and state != "Z":
                with open(f"/proc/{name}/cmdline", "rb") as file:
                    found[int(name)] = (int(parent), file.read().replace(b"\0", b" ").decode(errors="replace"))
    return found


class Faults:
    """Faults of one lab and one daemon. `done` lists the executed ones: `(begin, end, fault)`, in seconds since 1970."""

    def __init__(self, lab, daemon, random):
        self.lab, self.daemon, self.random = lab, daemon, random
        self.done, self.restarts = [], 0

    def make(self, fault):
        action, target, seconds, also = fault
        begin = time.time()
        if target == "daemon":
            self.to_daemon(action, seconds)
        else:
            self.to_master(action, target, seconds, also)
        was_started = target == "master" and action != "freeze"
        self.recover(START if was_started else RECOVERY)
        self.done.append((begin, time.time(), fault))

    def to_daemon(self, action, seconds=0.0):
        if action == "freeze":
            self.daemon.process.send_signal(signal.SIGSTOP)
            time.sleep(seconds)
            self.daemon.process.send_signal(signal.SIGCONT)
            return
        if action == "kill":
            self.daemon.kill()
        else:
            assert self.daemon.stop() == 0, "the daemon's exit code"
        self.daemon.start()

    def to_master(self, action, target, seconds, also):
        group = self.lab.lab["procs"]["master"]
        hit = self.members(group, target)
        procs.signal_each(hit, SIGNALS[action], os.kill)
        if action == "freeze":
            time.sleep(seconds / 2)
            if also:
                self.to_daemon(also)
            time.sleep(seconds / 2)
            procs.signal_each(hit, signal.SIGCONT, os.kill)
        elif target == "master":
            self.restart(grace=15 if action == "stop" else 0)
        else:
            # A dying process may still answer, and the run would then wait for a restart forever.
            procs.poll(lambda: not processes(group).keys() & set(hit), 10)

    def members(self, group, target):
        """The processes of a target."""
        all_ = processes(group)
        requests = [pid for pid, (parent, title) in all_.items() if parent == group and "ReqServer_ProcessManager" in title]
        workers = [pid for pid, (parent, title) in all_.items() if parent in requests and "MWorker-" in title]
        match target:
            case "master":
                return list(all_)
            case "worker":
                return [self.random.choice(sorted(workers))] if workers else []
            case "workers":
                return workers
            case "publisher":
                return [pid for pid, (parent, title) in all_.items() if parent == group and "EventPublisher" in title]
            case "requests":
                return requests + [pid for pid, (parent, _) in all_.items() if parent in requests]
        raise ValueError(target)

    def restart(self, grace=0):
        group = self.lab.lab["procs"]["master"]
        procs.poll(lambda: not procs.alive(group), grace)
        procs.signal_each([group], signal.SIGKILL, os.killpg)
        assert procs.poll(lambda: not procs.alive(group), 10), "the master's processes did not exit"
        self.lab.master()

    def recover(self, seconds):
        if procs.poll(self.answers, seconds, pause=0.2):
            return
        self.restarts += 1
        self.restart()
        if not procs.poll(self.answers, START, pause=0.2):
            raise salt_lab.LabError(f"the master does not answer within {START} s of a start")

    def answers(self):
        """Whether the request port answers and the bus exists."""
        try:
            rawreq.ask(self.lab.lab["ret_port"], {"cmd": "ping"}, timeout=5)
            rawbus.connect(os.path.join(self.lab.sock_dir, "master_event_pub.ipc")).close()
            rawbus.connect(os.path.join(self.lab.sock_dir, "master_event_pull.ipc")).close()
        except OSError:
            return False
        return True
