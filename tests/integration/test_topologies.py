"""Several masters, each with a daemon: what docs/TOPOLOGIES.md states."""
import json
import os
import uuid

import pytest
import salt.channel.server
import salt_lab
from conftest import eventually
from test_forged_returns import forge_from_minion, forged


def every_minion(sites):
    return sorted(minion for site in sites.values() for minion in site.lab.minions)


# ------------------------------------------------------------------- a cluster
def test_an_event_of_a_cluster_is_stored_once_by_each_daemon(cluster):
    sender, *others = cluster.values()
    tag, later = f"site/{uuid.uuid4().hex}", f"site/{uuid.uuid4().hex}"
    for one in (tag, later):
        sender.lab.fire(one, {"word": "once"})
        for site in cluster.values():
            eventually(f"the event at {site.name}", lambda site=site, one=one: site.daemon.events("--tag", one))
    for site in cluster.values():
        assert [(event["data"], event["master"]) for event in site.daemon.events("--tag", tag)] == [
            (sender.daemon.events("--tag", tag)[0]["data"], sender.lab.lab["interface"])]


def test_each_master_of_a_cluster_verifies_the_answers_of_its_own_minions(cluster):
    every = every_minion(cluster)
    owner = {minion: site for site in cluster.values() for minion in site.lab.minions}
    for publisher in cluster.values():
        jid = publisher.lab.detached("*", "test.echo", "hello")
        for site in cluster.values():
            # A job whose `new` event is still on its way to a peer has no expected minions there.
            eventually(f"the responses at {site.name}",
                       lambda site=site: site.daemon.returned(jid) == every and site.daemon.job(jid)["minions"] == every)
            job = site.daemon.job(jid)
            shown = {one["minion"]: (one["return"], one["verified"], one["master"]) for one in job["returns"]}
            assert shown == {minion: ("hello", True, None) if owner[minion] is site else ("hello", False, owner[minion].lab.lab["interface"])
                             for minion in every}
            assert site.lookup(jid) == {minion: "hello" for minion in site.lab.minions}
            assert site.shown(jid).count("not verified here") >= len(every) - len(site.lab.minions)


def test_a_job_of_a_cluster_is_stored_once_by_each_daemon_and_is_known_in_an_export_of_another(cluster, place):
    first, *others = cluster.values()
    jid = first.lab.detached("*", "test.echo", "hello")
    expected = sorted([f"salt/job/{jid}/new", f"salt/job/{jid}/publish", *(f"salt/job/{jid}/ret/{one}" for one in every_minion(cluster))])

    def stored(site):
        return sorted(event["tag"] for event in site.daemon.events("--tag", f"salt/job/{jid}/*"))
    for site in cluster.values():
        eventually(f"the job at {site.name}", lambda site=site: set(stored(site)) == set(expected))
        # What peers tell a master about the job has arrived before what they tell about a later one.
    later = first.lab.detached("*", "test.echo", "later")
    for site in cluster.values():
        eventually(f"the later job at {site.name}", lambda site=site: len(site.daemon.events("--tag", f"salt/job/{later}/ret/*")) == len(expected) - 2)
        assert stored(site) == expected, site.name

    file = f"{place}/{others[0].name}.jsonl"
    others[0].daemon.cli("export", "jsonl", file)
    first.daemon.cli("import", "jsonl", file)
    assert stored(first) == expected


def test_different_jobs_under_one_id_are_a_conflict_at_each_master_of_a_cluster(cluster):
    first, second, *_ = cluster.values()
    jid = first.lab.publish(first.lab.minions[0], "test.echo", "first")
    second.lab.publish(second.lab.minions[0], "test.echo", "second", jid=jid)
    for site in cluster.values():
        eventually(f"the conflict at {site.name}", lambda site=site: (site.daemon.job(jid) or {}).get("conflict"))
        job = site.daemon.job(jid)
        assert ([one["arg"] for one in job["publishes"]], job["arg"], job["load"]["arg"]) == ([["first"], ["second"]], ["first"], ["first"])
        assert [one["master"] for one in job["publishes"]] == [first.lab.lab["interface"], second.lab.lab["interface"]]
        own = ["second"] if site is second else ["first"]
        assert site.lab.run("jobs.list_job", jid)["Arguments"] == own


def test_a_forged_return_is_verified_by_no_master_of_a_cluster(cluster):
    publisher, *others = cluster.values()
    forger, victim = others[-1], publisher.lab.minions[0]
    flag = f"{publisher.lab.lab['dir']}/runs"
    with open(flag, "w"):
        jid = publisher.lab.detached(victim, "cmd.run", f"while [ -e {flag} ]; do sleep 0.1; done; echo real")

    forge_from_minion(forger.lab, jid, victim, by=forger.lab.minions[0])
    for site in cluster.values():
        eventually(f"the forged return at {site.name}", lambda site=site: site.daemon.events("--tag", f"salt/job/{jid}/ret/{victim}"))
    # Salt 3008 stores at each peer what it was told, one after the other: also this job of the forger's master, which is later.
    later = forger.lab.detached(forger.lab.minions[0], "test.echo", "later")
    for site in cluster.values():
        eventually(f"a later answer at {site.name}", lambda site=site: site.daemon.returned(later) == forger.lab.minions)
        assert not [one for one in (site.daemon.job(jid) or {"returns": []})["returns"] if one["verified"]]
        assert site.lookup(jid) == {}

    os.remove(flag)
    eventually("the real return", lambda: publisher.lookup(jid) == {victim: "real"})
    shown = publisher.daemon.job(jid)["returns"]
    assert [(one["minion"], one["return"], one["verified"]) for one in shown] == [(victim, "real", True)]
    for site in others:
        assert site.lookup(jid) == {}


def test_a_forged_return_that_a_minion_has_delegated_to_a_peer_is_not_verified(cluster):
    if not hasattr(salt.channel.server.MasterPubServerChannel, "_handle_delegate_write"):
        pytest.skip("this Salt delegates no jobs")
    publisher, *others = cluster.values()
    forger, victim = others[-1].lab, publisher.lab.minions[0]
    flag = f"{publisher.lab.lab['dir']}/runs"
    with open(flag, "w"):
        jid = publisher.lab.detached(victim, "cmd.run", f"while [ -e {flag} ]; do sleep 0.1; done; echo real")

    # The minion's master passes it on, and the publisher's stores it, in a process that makes no other such calls.
    payload = {"owner": publisher.lab.lab["interface"], "write_kind": "store_job", "payload": forged(jid, victim)}
    preload = {"pretag": None, "events": [{"tag": "cluster/runner/delegate_write", "data": payload}]}
    forger.call(forger.minions[0], "event.fire_master", "{}", "x", f"preload={json.dumps(preload)}")
    job = eventually("the delegated return", lambda: (job := publisher.daemon.job(jid))["returns"] + job["not_confirmed"] and job)
    assert (job["not_confirmed"], job["returns"]) == ([victim], [])
    assert publisher.lookup(jid) == {}

    os.remove(flag)
    eventually("the real return", lambda: publisher.lookup(jid) == {victim: "real"})


def test_one_daemon_of_a_cluster_reacts_to_an_event(cluster):
    for sender in cluster.values():
        minion, tag = sender.lab.minions[0], f"react/{uuid.uuid4().hex}"
        sender.lab.call(minion, "event.send", tag)
        row = sender.daemon.reaction(tag)
        sender.daemon.result(row, "returned")
        for site in cluster.values():
            eventually(f"the event at {site.name}", lambda site=site: site.daemon.events("--tag", tag))
            # The daemon reacts in the order of its log, so it has decided about the event when it has reacted to a later one.
            later = f"react/{uuid.uuid4().hex}"
            site.lab.fire(later, {"id": minion})
            site.daemon.reaction(later)
            assert len(site.daemon.history(tag)) == (site is sender)


def test_the_daemons_of_a_cluster_react_to_each_event_exactly_once(cluster):
    """CLUSTER_EVENTS is the number of events; each makes a job of a minion."""
    count = int(os.environ.get("CLUSTER_EVENTS", 30))
    patience = 180 + count
    run, sites = uuid.uuid4().hex, list(cluster.values())
    by = {f"react/{run}/{number}": sites[number % len(sites)] for number in range(count)}
    for tag, site in by.items():
        site.lab.fire(tag, {"id": site.lab.minions[0]})

    def reactions(site):
        return site.daemon.json("reactor", "history", "--tag", f"react/{run}/*", "--limit", str(count + 1))["reactions"]
    for site in sites:
        own = sum(one is site for one in by.values())
        eventually(f"the events at {site.name}",
                   lambda site=site: len(site.daemon.events("--tag", f"react/{run}/*")) == count, patience)
        eventually(f"the reactions of {site.name}", lambda site=site, own=own: len(reactions(site)) >= own, patience)
    for site in sites:
        # It has decided about all events when it has reacted to a later one.
        later = f"react/{uuid.uuid4().hex}"
        site.lab.fire(later, {"id": site.lab.minions[0]})
        site.daemon.reaction(later)
        made = [(row["tag"], row["reaction"]["state"], len(row["reaction"]["calls"])) for row in reactions(site)]
        assert sorted(made) == sorted((tag, "done", 1) for tag, one in by.items() if one is site)

    # What masters published: a job about each event, which names its tag.
    for site in sites:
        def published(site=site):
            jobs = site.daemon.events("--tag", "salt/job/*/new", "--search", f"react/{run}/")
            return sorted(tag for job in jobs for tag in job["data"]["arg"])
        eventually(f"the jobs at {site.name}", lambda published=published: len(published()) >= count, patience)
        assert published() == sorted(by)


# ------------------------------------------------------------------- a minion of two masters
def test_a_job_is_in_the_store_of_the_hot_master_that_published_it(pair):
    for publisher, other in (pair["a"], pair["b"]), (pair["b"], pair["a"]):
        jid = publisher.lab.detached("hot", "test.echo", "hello")
        eventually("the answer", lambda: publisher.daemon.returned(jid) == ["hot"])
        assert publisher.lookup(jid) == {"hot": "hello"}

        # A later event of the same minion has arrived, so nothing of the job is on its way.
        tag = f"site/{uuid.uuid4().hex}"
        publisher.lab.salt("hot", "event.send", tag)
        eventually("the event at the other master", lambda: other.daemon.events("--tag", tag))
        assert other.daemon.job(jid) is None
        assert other.lookup(jid) == {}


def test_an_event_of_a_minions_daemon_is_stored_once_by_each_hot_master(pair):
    tag = f"site/{uuid.uuid4().hex}"
    pair["a"].lab.salt("hot", "event.send", tag)
    for site in pair.values():
        eventually(f"the event at {site.name}", lambda site=site: site.daemon.events("--tag", tag))
    for site in pair.values():
        assert [event["data"]["id"] for event in site.daemon.events("--tag", tag)] == ["hot"]


# ------------------------------------------------------------------- failover; must be the last test: a master ends
def test_after_a_failover_each_daemon_has_the_jobs_of_its_master(pair):
    first, second = pair["a"], pair["b"]
    before = first.lab.detached("moves", "test.echo", "before")
    eventually("the answer", lambda: first.daemon.returned(before) == ["moves"])

    first.lab.kill("master")
    eventually("the minion to answer to the other master", lambda: salt_lab.responds(second.lab.lab, second.lab.command, ["moves"]))
    after = second.lab.detached("moves", "test.echo", "after")
    eventually("the answer", lambda: second.daemon.returned(after) == ["moves"])

    assert second.lookup(after) == {"moves": "after"}
    assert second.lookup(before) == {} and second.daemon.job(before) is None
    assert first.daemon.returned(before) == ["moves"] and first.daemon.job(after) is None
