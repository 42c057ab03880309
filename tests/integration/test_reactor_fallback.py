"""The engine `saltcellar_reactor` in a real master: which reactor acts, and Salt's as a fallback under a lease.

A separate lab without minions: the rule runs a command on the master.
"""
import os
import signal

import procs
import pytest
import salt_lab
from conftest import Reactor, eventually, live_lab, running

RULE = """
write it down:
  runner.salt.cmd:
    - arg:
      - cmd.run
      - echo {{ data['word'] }} >> DIR/made
    - kwarg:
        python_shell: true
"""


@pytest.fixture(scope="module")
def live(place):
    salt_lab.write(f"{place}/rule.sls", RULE.replace("DIR", place))
    rules = [{"fallback/word": [f"{place}/rule.sls"]}]
    with live_lab(f"{place}/lab", minions=0, master_conf={
            "reactor": rules, "engines": ["saltcellar_reactor"], "saltcellar.reactor_fallback": True,
            "saltcellar.timeout": 1, "saltcellar.socket": f"{place}/sc/sc.sock"}) as lab:
        yield lab


@pytest.fixture(scope="module")
def reactor(live, place):
    python = f"{live.lab['bin']}/python"
    d = Reactor(f"{place}/sc", live.sock_dir, master=f"{live.lab['dir']}/conf/master", python=python)
    with running(d):
        d.wait_for_bus()
        yield d


def acting(reactor):
    """The acting reactor of the rule, as the daemon reports it."""
    return {rule["handled_by"] for rule in reactor.json("reactor", "rules")["rules"]}


def is_logged(live, words, before=0):
    with open(f"{live.lab['dir']}/master/log", errors="replace") as log:
        return log.read().count(words) > before


def made(place):
    try:
        with open(f"{place}/made") as file:
            return file.read().split()
    except FileNotFoundError:
        return []


def fire_until_made(live, place, word):
    """Fires numbered words until one is made; a reactor that starts misses the first. Returns those that were fired."""
    fired = []

    def probe():
        fired.append(f"{word}{len(fired)}")
        live.fire("fallback/word", {"word": fired[-1]})
        return procs.poll(lambda: fired[-1] in made(place), 2)

    eventually(f"a word to be made: {word}", probe)
    return fired


def test_one_reactor_acts_while_the_daemon_is_killed_or_paused(live, reactor, place):
    eventually("the daemon has a lease", lambda: acting(reactor) == {"saltcellar"})
    fire_until_made(live, place, "ours")
    assert eventually("the engine logs which reactor acts", lambda: is_logged(live, "saltcellar reactor: saltcellar"))

    # killed: Salt's reactor acts
    reactor.kill()
    eventually("the fallback", lambda: is_logged(live, "Salt's reactor acts, as the fallback"))
    fire_until_made(live, place, "killed")

    # back: the fallback ends first
    reactor.start()
    reactor.wait_for_bus()
    eventually("the daemon acts again", lambda: acting(reactor) == {"saltcellar"})
    assert is_logged(live, "ending Salt's reactor")
    fire_until_made(live, place, "back")

    # paused for longer than its lease: events of that time are the fallback's, also those that the daemon reads later
    reactor.process.send_signal(signal.SIGSTOP)
    try:
        eventually("the fallback", lambda: is_logged(live, "Salt's reactor acts, as the fallback", 1))
        paused = fire_until_made(live, place, "paused")
    finally:
        reactor.process.send_signal(signal.SIGCONT)
    eventually("the daemon acts again", lambda: acting(reactor) == {"saltcellar"})
    fire_until_made(live, place, "again")
    words = made(place)
    assert len(words) == len(set(words)), f"made twice: {words}"
    rows = reactor.history("fallback/word")
    outcomes = {call["outcome"] for row in rows for call in row["reaction"]["calls"]}
    assert "shadowed" in outcomes and paused[-1] in words, outcomes


def test_an_engine_that_is_killed_leaves_one_reactor(live, reactor, place):
    engines = [pid for pid in live_children(live) if "saltcellar_reactor" in cmdline(pid)]
    if not engines:
        pytest.skip("processes have no titles here (setproctitle is not installed)")
    os.kill(engines[0], signal.SIGKILL)
    eventually("the daemon acts", lambda: acting(reactor) == {"saltcellar"})
    fire_until_made(live, place, "engine")
    words = made(place)
    assert len(words) == len(set(words)), f"made twice: {words}"


def live_children(live):
    group = live.lab["procs"]["master"]
    return [int(pid) for pid in os.listdir("/proc") if pid.isdigit() and _group(int(pid)) == group]


def _group(pid):
    try:
        return os.getpgid(pid)
    except ProcessLookupError:
        return None


def cmdline(pid):
    with open(f"/proc/{pid}/cmdline", "rb") as file:
        return file.read().decode("utf-8", "replace")
