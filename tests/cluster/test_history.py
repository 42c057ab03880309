"""One history on three nodes, also when NATS or nodes are away for a while."""
import json
import os

import pytest
from nodes import job_calls, new_jid
from procs import eventually


def test_each_node_answers_for_the_jobs_of_all(site):
    site = site().start()
    site.write()
    site.stored()
    site.is_complete()
    for writer in site.writers:
        shown = [node.cli("jobs", "show", writer.jids[0]).stdout for node in site.nodes]
        assert all(one.count("m1-") + one.count("m2-") + one.count("m3-") >= 3 for one in shown), shown
        listed = {row["jid"] for node in site.nodes for row in node.ask("jobs_list", limit=1000)["jobs"]}
        assert set(writer.jids) <= listed
    for node in site.nodes:
        node.is_well()


def test_events_of_runners_are_shared_and_others_only_with_all(site):
    site = site(replicate="jobs")
    site.nodes[0].configure(replicate="all")
    site.start()
    jid = new_jid()
    for node in site.nodes:
        events = [(f"salt/run/{jid}{node.name[1]}/new", {"jid": f"{jid}{node.name[1]}", "fun": "runner.test.arg", "fun_args": [], "user": "root"}),
                  (f"site/{node.name}", {"word": node.name})]
        node.ask("event_return", events=[{"tag": tag, "data": data} for tag, data in events])
    # Events are before this job in each log.
    site.write()
    site.is_complete()

    def tags(node):
        return {entry.get("tag", b"").decode() for entry in node.entries(every=True)}
    for node in site.nodes:
        assert {f"salt/run/{jid}{n}/new" for n in "123"} <= tags(node), node.name
        assert {one for one in tags(node) if one.startswith("site/")} == {"site/m1", f"site/{node.name}"}


def test_three_servers_go_on_without_their_leader(site):
    site = site(servers=3).start()
    site.write()
    site.stored()
    leader = eventually("a leader", lambda: site.servers.leader("saltcellar"))
    leader.kill()
    site.stored()
    site.is_complete()
    leader.start()


@pytest.mark.parametrize("when", ["at start", "while entries arrive"])
def test_nothing_waits_for_nats(site, when):
    site = site()
    if when == "at start":
        for node in site.nodes:
            node.start()
    else:
        site.start()
    site.write()
    if when != "at start":
        site.stored()
        site.servers.stop()
    site.stored()
    for node in site.nodes:
        node.says("cluster")
    site.servers.start()
    site.stored()
    site.is_complete()
    for node in site.nodes:
        node.is_well()


def test_retention_keeps_what_is_not_published_while_nats_is_away_from_the_start(site):
    site = site(nodes=1, window="2m")
    [one] = site.nodes
    one.start()
    site.write()
    site.stored()

    def is_pinned():
        found = json.loads(one.cli("consumers", "list", "--output", "json").stdout)["consumers"]
        return any(row["name"] == "cluster" and row["pin"] for row in found)
    eventually("what waits is kept", is_pinned)
    if os.environ.get("LONG"):
        # Longer than the stream would keep it.
        for writer in site.writers:
            writer.finish()
        eventually("it is not kept any longer", lambda: not is_pinned(), 240)


def test_a_node_that_was_down_learns_what_others_stored(site):
    site = site().start()
    *others, late = site.nodes
    site.write()
    site.stored()
    late.kill()
    before = [len(writer.jids) for writer in site.writers[:2]]
    eventually("jobs of the others", lambda: all(len(writer.jids) > count + 20 for writer, count in zip(site.writers, before)))
    late.start()
    site.stored()
    site.is_complete()


def test_a_node_that_starts_with_an_empty_store_fills_it_from_the_stream(site):
    site = site()
    site.servers.start()
    *early, late = site.nodes
    for node in early:
        node.start()
    site.write(*early)
    site.stored()
    late.start()
    site.is_complete()


def test_a_receiver_that_is_killed_has_each_entry_once(site):
    site = site().start()
    *others, victim = site.nodes
    site.write(*others, pause=0.005)
    for _ in range(6):
        site.stored(15)
        victim.kill()
        victim.start()
    site.is_complete()


def test_a_sender_that_is_killed_has_published_each_entry_once(site):
    site = site().start()
    site.write(pause=0.005)
    for _ in range(6):
        site.stored(15)
        site.nodes[0].kill()
        site.nodes[0].start()
    site.is_complete()


def test_links_that_are_cut_held_up_and_slow(site):
    site = site(links=True).start()
    site.write()
    one, two, three = (site.links[node.name][0] for node in site.nodes)
    for fault in (one.cut, two.hang, lambda: three.slow(20_000)):
        fault()
        site.stored()
    for link in (one, two, three):
        link.heal()
    site.stored()
    site.is_complete()


def test_a_job_of_two_masters_is_whole_on_each(site):
    """A job of a cluster of masters: one publishes, each has the returns of its own minions."""
    site = site().start()
    jid, (load, *returns, end) = job_calls("m", minions=3)
    for node, (call, args) in zip(site.nodes, returns):
        node.ask(call, **args)
    site.nodes[0].ask(load[0], **load[1])
    site.nodes[0].ask(end[0], **end[1])
    for node in site.nodes:
        eventually(f"the job at {node.name}", lambda node=node: (node.job(jid) or {}).get("returned") == 3 and node.job(jid)["expected"] == 3)
        eventually(f"the response at {node.name}", lambda node=node: sorted(node.ask("get_jid", jid=jid)) == ["m-0", "m-1", "m-2"])
        assert all(one["verified"] for one in node.job(jid)["returns"]), node.job(jid)
    site.history.answers_are_equal([jid])
