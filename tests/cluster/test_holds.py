"""A hold that is made, or released, on one master counts on all."""
import json

from nodes import Wire, job_calls
from procs import eventually

#: Retention keeps 1,000 entries of jobs, in segments of at most 63.
FEW = {"store": {"free_bytes_low": 1, "free_bytes_min": 1, "classes": [{"name": "jobs", "keep": {"entries": 1000}}]}}


def store(node):
    """Stores a job."""
    jid, calls = job_calls(node.name)
    for call, args in calls:
        node.ask(call, **args)
    return jid


def store_more(node, jobs):
    """Stores jobs of five entries each."""
    with Wire(node.socket) as wire:
        for _ in range(jobs):
            wire.ask_all(job_calls(node.name)[1])


def holds(node):
    rows = json.loads(node.cli("store", "holds", "list", "--output", "json").stdout)
    return {(row["jid"], row["reason"], row["master"]) for row in rows}


def have(nodes, *expected):
    """Waits until these are the holds of all nodes."""
    for node in nodes:
        eventually(f"{node.name} has {expected}", lambda node=node: holds(node) == set(expected))


def is_gone(node, jid):
    """Waits until retention has dropped a job."""
    eventually(f"{jid} is gone from {node.name}", lambda: node.job(jid) is None)


def is_whole(node, jid):
    job = node.job(jid)
    return bool(job) and job["returned"] == 3


def test_a_hold_counts_on_each_node_until_it_is_released_on_any(site):
    site = site(nodes=2, others=FEW).start()
    one, two = site.nodes
    held, later = store(one), store(one)
    eventually("the jobs at m2", lambda: is_whole(two, held) and is_whole(two, later))
    # In another segment: one with a held job stays whole.
    store_more(one, 60)
    other = store(one)
    eventually("the job at m2", lambda: is_whole(two, other))

    one.cli("store", "holds", "add", held, "--reason", "outage")
    have(site.nodes, (held, "outage", "m1"))
    assert "m1" in two.cli("store", "holds", "list").stdout

    # One more while the other daemon is away. It has dropped nothing when it has heard of it.
    two.kill()
    one.cli("store", "holds", "add", later, "--reason", "audit")
    two.start()
    have(site.nodes, (held, "outage", "m1"), (later, "audit", "m1"))

    for node in site.nodes:
        store_more(node, 200)
    for node in site.nodes:
        is_gone(node, other)
        assert is_whole(node, held) and is_whole(node, later), node.name

    # Released where it was not made.
    two.cli("store", "holds", "remove", held)
    have(site.nodes, (later, "audit", "m1"))
    # And while the node that made it is away.
    one.kill()
    two.cli("store", "holds", "remove", later)
    one.start()
    have(site.nodes)
    # Newer ones were dropped in their place.
    for node in site.nodes:
        store_more(node, 200)
    for node in site.nodes:
        is_gone(node, held)
        is_gone(node, later)


def test_of_changes_that_were_made_apart_the_later_one_counts(site):
    site = site(nodes=2)
    one, two = site.nodes
    site.start()
    jid = store(one)
    eventually("the job at m2", lambda: is_whole(two, jid))
    one.cli("store", "holds", "add", jid, "--reason", "first")
    have(site.nodes, (jid, "first", "m1"))

    site.servers.stop()
    two.cli("store", "holds", "remove", jid)
    one.cli("store", "holds", "add", jid, "--reason", "second")
    site.servers.start()
    have(site.nodes, (jid, "second", "m1"))

    site.servers.stop()
    one.cli("store", "holds", "add", jid, "--reason", "third")
    two.cli("store", "holds", "remove", jid)
    site.servers.start()
    have(site.nodes)
