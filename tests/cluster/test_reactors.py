"""Hot masters: each event comes to the bus of each master, and one reactor acts."""
import collections
import json
import time

import pytest
from masters import Master
from procs import eventually


@pytest.fixture
def hot(site, place):
    """Starts daemons, one for each master: `hot(nodes=3)`. Further arguments are settings of the reactor."""
    made = []

    def make(nodes=3, servers=1, cluster=None, **reactor):
        found = site(nodes=nodes, servers=servers, **(cluster or {}))
        found.masters = [Master(place / f"master{n}", node.name) for n, node in enumerate(found.nodes)]
        made.extend(found.masters)
        for node, master in zip(found.nodes, found.masters):
            node.others = {**node.others, **master.settings("hot", **reactor)}
        found.start()
        for node, master in zip(found.nodes, found.masters):
            eventually(f"{node.name} reads its bus", master.has_readers)
        return found
    yield make
    for master in made:
        master.end()


def reactor(node):
    return node.status()["reactions"]


def leader(found):
    """Waits until one leads and all others know it; its place."""
    def look():
        running = [(n, reactor(node)["election"]) for n, node in enumerate(found.nodes) if node.runs]
        leads = [n for n, election in running if election["leads"]]
        names = {election.get("leader") for n, election in running if n not in leads}
        return len(leads) == 1 and names <= {found.nodes[leads[0]].name} and [leads[0]]
    return eventually("one reactor leads", look)[0]


def fire(found, *tags, at=None):
    """Each event comes to each of these masters, or to all."""
    for tag in tags:
        for master in found.masters if at is None else at:
            master.fire(tag, n=tag)


def calls(found):
    return collections.Counter(tag for master in found.masters for tag in master.calls)


def are_called(found, tags, seconds=60):
    eventually(f"a reaction to {len(tags)} events", lambda: set(tags) <= set(calls(found)), seconds)


def nothing_is_open(found):
    """Each daemon knows that everything is handled."""
    for node in found.nodes:
        if node.runs:
            eventually(f"nothing is open at {node.name}", lambda node=node: reactor(node)["open"] == 0)


def test_one_reactor_acts_and_the_others_know_what_it_did(hot):
    found = hot()
    first = leader(found)
    tags = [f"x/{n}" for n in range(100)]
    fire(found, *tags)
    are_called(found, tags)
    nothing_is_open(found)
    assert calls(found) == collections.Counter(tags)
    assert [bool(master.calls) for master in found.masters] == [n == first for n in range(3)]

    for n, node in enumerate(found.nodes):
        [row] = json.loads(node.cli("reactor", "history", "--tag", "x/7", "--output", "json").stdout)["reactions"]
        assert row["master"] == (None if n == first else found.nodes[first].name)
        assert reactor(node)["ended"]["done"] == (100 if n == first else 0)
        listed = node.cli("reactor", "rules").stdout
        words = "leads in the election hot" if n == first else f"on standby: the reactor of the master {found.nodes[first].name} leads"
        assert words in listed, listed
        assert not [line for line in node.reasons() if "reactor" in line]
    seen = found.nodes[(first + 1) % 3]
    failed = seen.cli("reactor", "replay", "--render", "1", check=False)
    assert failed.returncode != 0 and "leads" in failed.stderr, failed.stderr


def test_another_reactor_continues_when_the_leader_is_killed_ends_or_loses_its_master(hot):
    found, sent = hot(servers=3), []

    def during(act, between):
        """Fires events before, while and after a leader is lost. Only events from between may be handled twice: their records were on the way."""
        first = leader(found)
        tags = [f"x/{len(sent)}-{n}" for n in range(60)]
        sent.extend(tags)
        fire(found, *tags[:20])
        are_called(found, tags[:20])
        nothing_is_open(found)
        fire(found, *tags[20:40])
        act(first)
        fire(found, *tags[40:])
        are_called(found, tags)
        nothing_is_open(found)
        again = {tag: count for tag, count in calls(found).items() if count > 1 and tag in tags}
        assert set(again) <= set(tags[20:40] if between else []), again
        return first

    killed = during(lambda first: found.nodes[first].kill(), between=True)
    found.nodes[killed].start()
    assert leader(found) != killed

    ended = during(lambda first: found.nodes[first].stop(), between=True)
    found.nodes[ended].start()
    assert leader(found) != ended

    # Its daemon runs and its master is gone: calls that wait are left to another.
    during(lambda first: found.masters[first].end(), between=True)


def test_without_nats_no_reactor_acts_and_nothing_is_lost(hot):
    found = hot(nodes=2)
    first = leader(found)
    found.servers.stop()
    for node in found.nodes:
        eventually(f"{node.name} does not lead", lambda node=node: not reactor(node)["election"]["leads"])
    tags = [f"x/{n}" for n in range(20)]
    fire(found, *tags)
    for node in found.nodes:
        eventually(f"{node.name} has the events", lambda node=node: reactor(node)["open"] == len(tags))
        node.says("reactor")
    assert not calls(found)

    found.servers.start()
    are_called(found, tags)
    nothing_is_open(found)
    assert calls(found) == collections.Counter(tags)
    assert first in (0, 1)


def test_without_nats_every_reactor_acts_if_the_settings_say_so(hot):
    found = hot(nodes=2, without_quorum="act")
    leader(found)
    found.servers.stop()
    for node in found.nodes:
        eventually(f"{node.name} leads", lambda node=node: not reactor(node)["election"].get("leader") and reactor(node)["election"]["leads"])
    fire(found, "x/1")
    eventually("both act", lambda: calls(found)["x/1"] == 2)


def test_the_leader_reacts_to_what_only_another_master_has(hot):
    found = hot(nodes=2, cluster={"replicate": "all"})
    first = leader(found)
    other = found.masters[1 - first]
    fire(found, "x/both")
    fire(found, "x/other", at=[other])
    # At both masters, and the leader's copy is late.
    fire(found, "x/late", at=[other])
    time.sleep(2)
    fire(found, "x/late", at=[found.masters[first]])
    are_called(found, ["x/both", "x/late", "x/other"])
    nothing_is_open(found)
    assert calls(found) == collections.Counter(["x/both", "x/late", "x/other"])
    assert not other.calls
