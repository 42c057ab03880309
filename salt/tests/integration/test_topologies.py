"""Several masters, each with a daemon: what docs/TOPOLOGIES.md states."""
import uuid

import salt_lab
from conftest import eventually


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
        assert [event["data"]["word"] for event in site.daemon.events("--tag", tag)] == ["once"]


def test_each_master_of_a_cluster_confirms_its_minions_answers(cluster):
    every = every_minion(cluster)
    for publisher in cluster.values():
        jid = publisher.lab.detached("*", "test.echo", "hello")
        for site in cluster.values():
            own = set(site.lab.minions)
            eventually(f"the answers of {own} at {site.name}", lambda site=site, own=own: own <= set(site.daemon.returned(jid)))
            eventually(f"the expected minions at {site.name}", lambda site=site: site.daemon.job(jid)["minions"] == every)
            assert site.lookup(jid).items() >= {minion: "hello" for minion in own}.items()
            assert not own & set(site.daemon.job(jid)["not_confirmed"])


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
        assert sorted(one["arg"] for one in site.daemon.job(jid)["publishes"]) == [["first"], ["second"]]


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
